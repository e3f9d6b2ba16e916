/*
 * test_table.c - asking a launcher's table where rank 0 is: each of its system calls and allocations fails in turn, and the table
 * breaks off after each byte of its answer. Whatever happens, the process gets an error with a text at once, and no descriptor is
 * left. Each try is a process of its own, since a process asks once.
 */
#include "job.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "comm/exchange.h"

#define QUICK 1.0
#define PORT "@tbl%04u"

enum table { PMI_ZERO, PMI_OTHER, TORCH_ZERO, TABLES };
static const char *const table_name[TABLES] = {"rank 0 over PMI", "rank 1 over PMI", "rank 0 over torch's store"};

#define HEX32 "00112233445566778899aabbccddeeff"
static const char pmi_zero[] = "cmd=response_to_init rc=0\ncmd=my_kvsname kvsname=k\ncmd=put_result rc=0\ncmd=barrier_out\n";
static const char pmi_other[] = "cmd=response_to_init rc=0\ncmd=my_kvsname kvsname=k\ncmd=barrier_out\n"
                                "cmd=get_result rc=0 value=abcomm1/127.0.0.1:5/" HEX32 HEX32 "\n";
static const char torch_zero[] = "\0\013\0\0\0\0\0\0\0abcomm1/!/-";
static const struct {
    const char *bytes;
    size_t length;
} answer[TABLES] = {{pmi_zero, sizeof pmi_zero - 1}, {pmi_other, sizeof pmi_other - 1}, {torch_zero, sizeof torch_zero - 1}};

/* What the process at the other end does: answer, whatever is asked, a line a message where there are messages, and close its side.
 */
static void say(int fd, enum table table, size_t length)
{
    for (size_t at = 0, part; at < length; at += part) {
        const char *from = answer[table].bytes + at, *end = memchr(from, '\n', length - at);
        part = end && table != TORCH_ZERO ? (size_t)(end + 1 - from) : length - at;
        if (send(fd, from, part, MSG_NOSIGNAL) != (ssize_t)part)
            return; /* whoever asked has failed already */
    }
    shutdown(fd, SHUT_WR);
}

static void start_pmi(enum table table, size_t length)
{
    char number[16];
    int ends[2];
    must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "socketpair: %s", strerror(errno));
    say(ends[1], table, length);
    snprintf(number, sizeof number, "%d", ends[0]);
    setenv("PMI_FD", number, 1);
}

/* MASTER_ADDR:MASTER_PORT gives the address of a Unix socket, which a child serves. */
static void start_torch(enum table table, size_t length)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char port[16], drain[256];
    snprintf(port, sizeof port, PORT, (unsigned)getpid() % 10000u);
    memcpy(at.sun_path + 1, port + 1, strlen(port) - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(port));
    must(fd >= 0 && bind(fd, (struct sockaddr *)&at, bytes) == 0 && listen(fd, 1) == 0, "listen: %s", strerror(errno));
    pid_t parent = getpid();
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody may ever call */
        if (getppid() != parent)
            _exit(0);
        alarm(10);
        int one = accept(fd, NULL, NULL);
        if (one >= 0)
            say(one, table, length);
        while (one >= 0 && recv(one, drain, sizeof drain, 0) > 0)
            ;
        _exit(0);
    }
    setenv("MASTER_ADDR", "unix", 1);
    setenv("MASTER_PORT", port, 1);
    close(fd);
}

/* a: table, b: pass that fails, c: bytes of the answer that come, -1: all, d: where the number of passes goes. */
static void run(const struct scenario *s)
{
    enum table table = (enum table)s->a;
    bool whole = s->c < 0;
    size_t length = whole ? answer[table].length : (size_t)s->c;
    struct abci_launch launch = {.rank = table == PMI_OTHER, .nranks = 2, .listen_fd = -1, .local = true};
    launch.table = table == TORCH_ZERO ? ABCI_TABLE_TORCH : ABCI_TABLE_PMI;
    ends_anyhow();
    if (table == TORCH_ZERO)
        start_torch(table, length);
    else
        start_pmi(table, length);
    int fds = count_fds();
    double start = abci_now();
    abci_fault_arm((uint64_t)s->b);
    int status = abci_launch_agree(&launch, 5);
    long passes = (long)abci_fault_passes();
    abci_fault_arm(0);
    double seconds = abci_now() - start;
    if (s->d) {
        must(status == ABC_OK, "without a fault: %s", abci_error_text());
        *(volatile long *)(uintptr_t)s->d = passes;
        _exit(0);
    }
    must(seconds < QUICK, "it took %.1f s: %s", seconds, abci_error_text());
    must(status != ABC_OK, "it went well");
    must(strlen(abci_error_text()) > 20, "status %d without a text", status);
    must(count_fds() == fds, "%d descriptors before, %d after: %s", fds, count_fds(), abci_error_text());
    must(launch.listen_fd == -1 || table == PMI_OTHER, "the listening socket %d is still told", launch.listen_fd);
    _exit(0); /* not by way of what was registered for the end of the process: the table is broken */
}

static long passes_of(enum table table)
{
    long *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(shared != MAP_FAILED, "mmap: %s", strerror(errno));
    struct scenario s = {.name = "no fault", .run = run, .a = (long)table, .c = -1, .d = (long)(uintptr_t)shared};
    must(run_scenarios(&s, 1, 1) == 0 && *shared > 0, "%s without a fault", table_name[table]);
    long passes = *shared;
    munmap(shared, sizeof *shared);
    return passes;
}

int main(void)
{
    struct scenario *list = NULL;
    int count = 0;
    setenv("ABCOMM_DEBUG", "NONE", 1);
    for (int table = 0; table < TABLES; table++) {
        long passes = passes_of((enum table)table);
        printf("%s: %ld passes\n", table_name[table], passes);
        for (long n = 1; n <= passes; n++) {
            struct scenario *s = add_scenario(&list, &count);
            *s = (struct scenario){.run = run, .limit = 20, .a = table, .b = n, .c = -1};
            snprintf(s->name, sizeof s->name, "fault %ld of %s", n, table_name[table]);
        }
        for (long n = 0; n < (long)answer[table].length; n += full_mode() ? 1 : 9) {
            struct scenario *s = add_scenario(&list, &count);
            *s = (struct scenario){.run = run, .limit = 20, .a = table, .c = n};
            snprintf(s->name, sizeof s->name, "%ld bytes for %s", n, table_name[table]);
        }
    }
    int code = run_scenarios(list, count, 4);
    free(list);
    return code;
}
