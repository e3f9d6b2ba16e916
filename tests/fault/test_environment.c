/*
 * test_environment.c - surroundings that do not help: 64 KB of /dev/shm, calls that a seccomp filter forbids, few descriptors,
 * little address space, a busy port, a wrong key, a missing environment, half a CPU. Where the library can go on it gives right
 * results without a word; where it cannot the text says why. Also: in-place contents that preserve = 1 saves from an error.
 */
#include "job.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "transport/shm.h"

#define NRANKS 3
#define LARGE (8u << 20) /* elements: 32 MB */

enum { FLAG_GO };

/* From here on the system call fails with EPERM in this process. */
static void forbid(long number)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        skip("seccomp filters are not allowed here: %s", strerror(errno));
}

static void limit(int what, rlim_t value)
{
    struct rlimit l = {value, value};
    must(setrlimit(what, &l) == 0, "setrlimit: %s", strerror(errno));
}

/* Sums of small and large vectors are right. */
static void must_sum(struct job *job, int rank, abc_comm *comm, size_t largest)
{
    float *x = malloc(largest * sizeof *x), *y = malloc(largest * sizeof *y);
    must(x && y, "no memory");
    for (size_t n = 7; n <= largest; n = n < largest && n * 11 > largest ? largest : n * 11) {
        for (size_t i = 0; i < n; i++)
            x[i] = (float)(i % 100) + (float)rank;
        must(abc_allreduce(x, y, n, ABC_F32, ABC_SUM, comm) == ABC_OK, "allreduce of %zu: %s", n, abc_last_error());
        for (size_t i = 0; i < n; i++)
            must(y[i] == NRANKS * (float)(i % 100) + 3, "wrong sum at %zu of %zu", i, n);
        if (n == largest)
            break;
    }
    free(x);
    free(y);
}

static void works(struct job *job, int rank, size_t largest)
{
    abc_comm *comm = must_create(job, rank, 0);
    must_sum(job, rank, comm, largest);
    must(abc_comm_destroy(comm) == ABC_OK, "destroy: %s", abc_last_error());
}

/* Creation fails on every rank: on the one that lacks something with the word in its text, on the others naming it. */
static void fails(struct job *job, int rank, int lacking, const char *word)
{
    abc_comm *comm = NULL;
    job->connect_timeout = 4;
    int status = create_comm(job, rank, NRANKS, 0, &comm);
    must(status < 0, "rank %d: creation works", rank);
    must_mention(abc_last_error(), rank == lacking || lacking < 0 ? word : "rank 1", "creation");
}

/* ---- The surroundings ---- */

static void tiny_shm(struct job *job, int rank, const struct scenario *s)
{
    works(job, rank, LARGE);
}
static void no_pvr(struct job *job, int rank, const struct scenario *s)
{
    if (s->b < 0 || s->b == rank)
        forbid(SYS_process_vm_readv);
    setenv("ABCOMM_PVR", s->c ? "on" : "auto", 1);
    works(job, rank, LARGE / 8);
}
/* Without the right to look into other processes: no root, not dumpable. */
static void undumpable(struct job *job, int rank, const struct scenario *s)
{
    if (geteuid() == 0 && setuid(65534) != 0)
        skip("setuid: %s", strerror(errno));
    prctl(PR_SET_DUMPABLE, 0);
    works(job, rank, LARGE / 8);
}
static void no_membarrier(struct job *job, int rank, const struct scenario *s)
{
    if (s->b < 0 || s->b == rank)
        forbid(SYS_membarrier);
    works(job, rank, LARGE / 8);
    abc_comm *comm = must_create(job, rank, 0);
    for (int i = 0; i < 20; i++) { /* sleep and be woken */
        if (i % NRANKS == rank)
            nap(0.01);
        must(abc_barrier(comm) == ABC_OK, "barrier: %s", abc_last_error());
    }
    abc_comm_destroy(comm);
}
static void no_memfd(struct job *job, int rank, const struct scenario *s)
{
    if (rank == 1)
        forbid(SYS_memfd_create);
    fails(job, rank, 1, "memfd_create");
}
static void no_pidfd(struct job *job, int rank, const struct scenario *s)
{
    if (rank == 1)
        forbid(SYS_pidfd_open);
    fails(job, rank, 1, "descriptors");
}
static void few_descriptors(struct job *job, int rank, const struct scenario *s)
{
    if (rank == 1) /* n more than there are now */
        limit(RLIMIT_NOFILE, (rlim_t)(count_fds() + s->b));
    abc_comm *comm = NULL;
    job->connect_timeout = 4;
    int status = create_comm(job, rank, NRANKS, 0, &comm);
    must(status == ABC_OK || strlen(abc_last_error()) > 30, "no text");
    must(status == ABC_OK || rank == 1 || strstr(abc_last_error(), "rank 1"), "rank %d: \"%s\"", rank, abc_last_error());
    if (comm) {
        float x = 1;
        status = abc_allreduce(ABC_IN_PLACE, &x, 1, ABC_F32, ABC_SUM, comm);
        must(status != ABC_OK || x == NRANKS, "wrong sum");
        abc_comm_destroy(comm);
    }
}
static void little_space(struct job *job, int rank, const struct scenario *s)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    must(f && fscanf(f, "%ld", &pages) == 1, "statm");
    fclose(f);
    if (rank == 1) { /* a look for leaks takes more room than this */
        ends_anyhow();
        limit(RLIMIT_AS, (rlim_t)pages * 4096 + (rlim_t)(s->b << 20));
    }
    abc_comm *comm = NULL;
    job->connect_timeout = 4;
    int status = create_comm(job, rank, NRANKS, 0, &comm);
    must(status == ABC_OK || strlen(abc_last_error()) > 30, "no text");
    float *x = rank == 1 ? NULL : malloc((size_t)LARGE * 4);
    if (rank == 1 && comm && !(x = malloc((size_t)LARGE / 8 * 4)))
        must(abc_comm_abort(comm, "no memory") == ABC_OK, "abort");
    for (size_t n = 10; comm && x && n < LARGE / 8 && status == ABC_OK; n *= 7) {
        status = abc_allreduce(ABC_IN_PLACE, x, n, ABC_F32, ABC_MAX, comm);
        must(status == ABC_OK || strlen(abc_last_error()) > 30, "no text");
        if (status != ABC_OK && abc_comm_status(comm) == ABC_OK)
            abc_comm_abort(comm, "a call could not be started");
    }
    abc_comm_destroy(comm);
    free(x);
}
static void busy_port(struct job *job, int rank, const struct scenario *s)
{
    if (rank == 0) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        a.sin_port = htons((uint16_t)atoi(strchr(job->address, ':') + 1));
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        must(bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 8) == 0, "bind: %s", strerror(errno));
        atomic_store(&job->shared->flag[FLAG_GO], 1);
    }
    wait_flag(job, FLAG_GO, 1, 5);
    abc_comm *comm = NULL;
    job->connect_timeout = 1;
    int status = create_comm(job, rank, NRANKS, 0, &comm);
    must(status < 0, "creation works on a busy port");
    must_mention(abc_last_error(), strchr(job->address, ':'), "the address");
}
static void wrong_key(struct job *job, int rank, const struct scenario *s)
{
    abc_comm_config c;
    abc_comm *comm = NULL;
    abc_comm_config_init(&c);
    c.rank = rank;
    c.nranks = NRANKS;
    c.address = job->address;
    c.connect_timeout = rank == 1 ? 1.5 : 3; /* the refused one gives up first */
    c.key = rank == 1 ? "another key of 32 bytes for that." : "a key of 32 bytes for this job...";
    c.key_length = 32;
    int status = abc_comm_create(&c, &comm);
    must(status == (rank == 1 ? ABC_ERR_AUTH : ABC_ERR_TIMEOUT), "rank %d: status %d: %s", rank, status, abc_last_error());
    must_mention(abc_last_error(), rank == 1 ? "key" : "rank 1", "the text");
}
static void bad_environment(struct job *job, int rank, const struct scenario *s)
{
    abc_comm *comm = NULL;
    unsetenv("ABCOMM_RANK");
    unsetenv("ABCOMM_SIZE");
    unsetenv("ABCOMM_ADDR");
    if (rank == 1)
        setenv("ABCOMM_RANK", "1", 1);
    if (rank == 2) {
        setenv("ABCOMM_RANK", "5", 1);
        setenv("ABCOMM_SIZE", "3", 1);
        setenv("ABCOMM_ADDR", job->address, 1);
    }
    int status = abc_comm_create(NULL, &comm);
    must(status == ABC_ERR_ENVIRONMENT, "status %d: %s", status, abc_last_error());
    must_mention(abc_last_error(), rank == 2 ? "5" : "ABCOMM_", "the text");
    must(create_comm(job, 3, 3, 0, &comm) == ABC_ERR_ARGUMENT, "rank 3 of 3");
    must(create_comm(job, 0, 0, 0, &comm) == ABC_ERR_ARGUMENT, "rank 0 of 0");
}
/* Ranks 0 and 2 call, rank 1 leaves: after the error the buffer in place holds the input again. */
static void preserve(struct job *job, int rank, const struct scenario *s)
{
    size_t n = (size_t)s->b;
    float *x = malloc(n * sizeof *x);
    abc_comm *comm = must_create(job, rank, 5);
    abc_call c;
    abc_call_init(&c, (abc_collective)s->c);
    c.in = ABC_IN_PLACE;
    c.out = x;
    c.count = n;
    c.preserve = 1;
    c.root = 1;
    c.algorithm = s->d ? abci_algos[s->d - 1]->name : NULL;
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(i % 1000) + (float)rank;
    must(abc_barrier(comm) == ABC_OK, "barrier: %s", abc_last_error());
    meet(job);
    if (rank == 1) {
        ends_anyhow();
        exit(0);
    }
    must(abc_run(comm, &c) == ABC_ERR_PEER, "status: %s", abc_last_error());
    for (size_t i = 0; i < n; i++)
        must(x[i] == (float)(i % 1000) + (float)rank, "element %zu was not preserved", i);
    must(abc_comm_destroy(comm) == ABC_ERR_PEER, "destroy");
    free(x);
}
/* A cgroup that grants half a CPU, made before the ranks start. */
static char cgroup[64];
static bool write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return ok;
}
static void half_a_cpu(struct job *job, int rank, const struct scenario *s)
{
    works(job, rank, 100000);
    if (rank == 0)
        must(abci_cpu_available() <= 1, "%.2f CPUs are seen, the quota is 0.5", abci_cpu_available()); /* never less than 1 */
}

/* ---- Frame ---- */

static const struct surroundings {
    const char *name;
    rank_body body;
    long b, c, d;
} all[] = {
    {"64 KB of /dev/shm", tiny_shm, 0, 0, 0},
    {"process_vm_readv forbidden", no_pvr, -1, 0, 0},
    {"process_vm_readv forbidden in rank 0", no_pvr, 0, 0, 0},
    {"process_vm_readv forbidden in rank 2, wanted", no_pvr, 2, 1, 0},
    {"not dumpable, not root", undumpable, 0, 0, 0},
    {"membarrier forbidden", no_membarrier, -1, 0, 0},
    {"membarrier forbidden in rank 1", no_membarrier, 1, 0, 0},
    {"memfd_create forbidden", no_memfd, 0, 0, 0},
    {"pidfd_open forbidden", no_pidfd, 0, 0, 0},
    {"0 descriptors", few_descriptors, 0, 0, 0},
    {"1 descriptor", few_descriptors, 1, 0, 0},
    {"2 descriptors", few_descriptors, 2, 0, 0},
    {"4 descriptors", few_descriptors, 4, 0, 0},
    {"6 descriptors", few_descriptors, 6, 0, 0},
    {"8 descriptors", few_descriptors, 8, 0, 0},
    {"4 MB of address space", little_space, 4, 0, 0},
    {"16 MB of address space", little_space, 16, 0, 0},
    {"40 MB of address space", little_space, 40, 0, 0},
    {"a busy port", busy_port, 0, 0, 0},
    {"a wrong key", wrong_key, 0, 0, 0},
    {"a bad environment", bad_environment, 0, 0, 0},
    {"preserve, small", preserve, 10, ABC_ALLREDUCE, 0},
    {"preserve, large", preserve, 1000000, ABC_ALLREDUCE, 0},
    {"preserve, ring", preserve, 300000, ABC_ALLREDUCE, 5},
    {"preserve, another algorithm", preserve, 300000, ABC_ALLREDUCE, 3},
    {"preserve, broadcast", preserve, 300000, ABC_BROADCAST, 0},
    {"half a CPU", half_a_cpu, 0, 0, 0},
};

static void enter_cgroup(void)
{
    char path[128], pid[16];
    snprintf(cgroup, sizeof cgroup, "/sys/fs/cgroup/cpu/abc-fault-%d", (int)getpid());
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    if (mkdir(cgroup, 0755) != 0)
        skip("no cgroup can be made in /sys/fs/cgroup/cpu: %s", strerror(errno));
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", cgroup);
    bool ok = write_text(path, "50000");
    snprintf(path, sizeof path, "%s/cgroup.procs", cgroup);
    if (!ok || !write_text(path, pid)) {
        rmdir(cgroup);
        skip("the cgroup takes no quota: %s", strerror(errno));
    }
}

static void run(const struct scenario *s)
{
    struct job job;
    bool quota = all[s->a].body == half_a_cpu;
    if (quota)
        enter_cgroup();
    job_start(&job, NRANKS, all[s->a].body, s);
    job_wait(&job, 40);
    if (quota && write_text("/sys/fs/cgroup/cpu/cgroup.procs", "0"))
        rmdir(cgroup);
    if (all[s->a].body == preserve)
        job.state[1] = 0;
    job_must_succeed(&job);
    job_must_be_clean(&job);
}

int main(void)
{
    struct scenario *list = NULL;
    int count = 0;
    setenv("ABCOMM_DEBUG", "NONE", 1);
    if (!private_world())
        printf("no private /dev/shm and network: it is as it is\n");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct scenario *s = add_scenario(&list, &count);
        *s = (struct scenario){.run = run, .limit = 60, .a = (long)i, .b = all[i].b, .c = all[i].c, .d = all[i].d};
        snprintf(s->name, sizeof s->name, "%s", all[i].name);
    }
    int code = run_scenarios(list, count, 4);
    free(list);
    return code;
}
