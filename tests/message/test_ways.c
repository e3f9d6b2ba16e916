/*
 * test_ways.c - long private messages go through tiles or by process_vm_readv, whichever is quicker here: the slower way is left,
 * be it the one or the other; and where the system call is no longer permitted, even in the middle of a message, tiles bring it.
 * The test's own process_vm_readv stands before the system's: it counts, sleeps or refuses.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "../engine/harness.h"
#include "bytes.h"

enum { N = 3 << 20, MESSAGES = 60, TRIALS = 10, SLOW_US = 3000 };

static int calls, slow_us, refused_from; /* refused_from: the number of the first call that is refused; 0: none is */

static void nap_us(int us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000L}, NULL);
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long nlocal, const struct iovec *remote,
                         unsigned long nremote, unsigned long flags)
{
    calls++;
    if (refused_from && calls >= refused_from) {
        errno = EPERM;
        return -1;
    }
    if (slow_us)
        nap_us(slow_us);
    return syscall(SYS_process_vm_readv, pid, local, nlocal, remote, nremote, flags);
}

static bool is_permitted(struct rank *r)
{
    char mine = 1, got = 0;
    struct iovec to = {&got, 1}, from = {&mine, 1};
    return check(r, syscall(SYS_process_vm_readv, getpid(), &to, 1, &from, 1, 0) == 1 || errno == EPERM || errno == ENOSYS, "%s",
                 strerror(errno)) &&
           got == 1 && calls > 0; /* the trial at creation */
}

/* So many messages of so many bytes from rank 0 to rank 1, whole. late_us: how long the sender does other things after each start.
 */
static bool stream(struct rank *r, int count, size_t bytes, int late_us)
{
    char *buffer = malloc(N);
    bool ok = check(r, buffer != NULL, "no memory");
    for (int i = 0; i < count && ok; i++) {
        abc_request *q;
        uint64_t key = bytes_key(0, i, (int)bytes);
        if (r->rank == 0) {
            bytes_fill(buffer, bytes, key);
            ok = check_status(r, abc_send_start(buffer, bytes, ABC_U8, 1, 0, r->comm, &q), ABC_OK, "start");
            if (late_us)
                nap_us(late_us);
            ok = ok && check_status(r, abc_wait(&q), ABC_OK, "wait");
        } else {
            memset(buffer, 0x5a, bytes);
            ok = check_status(r, abc_recv(buffer, bytes, ABC_U8, 0, 0, r->comm, NULL), ABC_OK, "recv") &&
                 check(r, bytes_wrong(buffer, bytes, key) == bytes, "message %d of %zu bytes: wrong bytes", i, bytes);
        }
    }
    free(buffer);
    return ok;
}

/* Calls that messages made: those of the receiver. */
static int calls_of(struct rank *r, int count, size_t bytes, int late_us)
{
    int before = calls;
    return stream(r, count, bytes, late_us) && r->rank == 1 ? calls - before : 0;
}

/* The sender is elsewhere: only process_vm_readv gets on without it. */
static int absent_sender(struct rank *r)
{
    int n = calls_of(r, MESSAGES, 200000, SLOW_US);
    if (r->rank == 1 && is_permitted(r))
        check(r, n >= MESSAGES - TRIALS, "%d of %d messages were read where they are, though tiles had to wait for the sender", n,
              MESSAGES);
    return 0;
}

static int slow_reads(struct rank *r)
{
    slow_us = SLOW_US;
    int n = calls_of(r, MESSAGES, 200000, 0);
    slow_us = 0;
    if (r->rank == 1 && is_permitted(r))
        check(r, n > 0 && n <= TRIALS, "%d of %d messages were read where they are, though that takes %d us", n, MESSAGES, SLOW_US);
    return 0;
}

/* At which call, the job's argument says; a message of N bytes takes several. */
static int refused(struct rank *r)
{
    refused_from = calls + *(const int *)r->argument;
    if (!stream(r, TRIALS / 2, N, 0) || !stream(r, TRIALS, 70000, 0))
        return 1;
    if (r->rank == 1 && is_permitted(r))
        check(r, calls == refused_from, "%d calls after the one that was refused", calls - refused_from);
    return 0;
}

/* Every length class, next to their limits. */
static int lengths(struct rank *r)
{
    for (size_t bytes = 64u << 10; bytes < N; bytes *= 2)
        for (int more = -1; more <= 1; more++)
            if (!stream(r, 4, bytes + (size_t)more, 0))
                return 1;
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const always[] = {"ABCOMM_PVR=on", NULL}, *const never[] = {"ABCOMM_PVR=off", NULL};
    static int first = 1, second = 2, fifth = 5;
    static const struct job jobs[] = {
        {.name = "the sender is elsewhere", .body = absent_sender},
        {.name = "slow reads", .body = slow_reads},
        {.name = "refused at once", .body = refused, .argument = &first},
        {.name = "refused in the middle", .body = refused, .argument = &second},
        {.name = "refused later, reads wanted", .body = refused, .argument = &fifth, .environment = always},
        {.name = "lengths", .body = lengths},
        {.name = "lengths, reads wanted", .body = lengths, .environment = always},
        {.name = "lengths, no reads", .body = lengths, .environment = never}};
    struct options o;
    options_read(argc, argv, &o);
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        struct job job = jobs[i];
        job.nranks = 2;
        job.limit = 20;
        job.timeout = 10;
        job_run(&job);
    }
    return jobs_end();
}
