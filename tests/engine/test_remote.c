/*
 * test_remote.c - private buffers that peers read where they are: an alltoall in huge pages, mixed with ranks whose pages are
 * small; blocks that are read as wholes though their operation has many chunks; owners that wait until their readers are over, and
 * one that ends before.
 * Which way a block went is told by the reads that are counted, whatever this machine was measured to like.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"
#include "harness.h"

#define HUGE (2u << 20)
#define LEAST (256u << 10) /* bytes of a block that this test has read where it is, as on a machine that likes it */

static int reads;        /* of peers' private memory, by this process */
static int gone_fd = -1; /* of a process that has ended: the next read makes it the owner's */

int __real_abci_shm_read_remote(const struct abci_shm *shm, int peer, void *to, uint64_t from, uint64_t bytes);
int __wrap_abci_shm_read_remote(const struct abci_shm *shm, int peer, void *to, uint64_t from, uint64_t bytes);

int __wrap_abci_shm_read_remote(const struct abci_shm *shm, int peer, void *to, uint64_t from, uint64_t bytes)
{
    reads++;
    if (gone_fd >= 0) {
        close(shm->peer[peer].pidfd);
        ((struct abci_shm *)(uintptr_t)shm)->peer[peer].pidfd = gone_fd;
        gone_fd = -1;
    }
    return __real_abci_shm_read_remote(shm, peer, to, from, bytes);
}

static uint32_t *pages(size_t bytes, bool huge)
{
    size_t whole = (bytes + HUGE - 1) / HUGE * HUGE;
    uint32_t *memory = aligned_alloc(HUGE, whole);
    if (!memory)
        abort();
    madvise(memory, whole, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(memory, 0, whole);
    return memory;
}

/* Element i of the block from one rank to another. */
static uint32_t value(int from, int to, int round, uint64_t i)
{
    return (uint32_t)i * 2654435761u + (uint32_t)(from * 64 + to * 8 + round);
}

static void fill(const struct rank *r, uint32_t *in, uint64_t count, int round)
{
    for (int to = 0; to < r->nranks; to++)
        for (uint64_t i = 0; i < count; i++)
            in[(uint64_t)to * count + i] = value(r->rank, to, round, i);
}

static bool arrived(struct rank *r, const uint32_t *out, int from, int to, uint64_t count, int round)
{
    for (uint64_t i = 0; i < count; i++)
        if (out[i] != value(from, to, round, i))
            return check(r, false, "element %llu from rank %d is %x, must be %x", (unsigned long long)i, from, out[i],
                         value(from, to, round, i));
    return true;
}

/* One call, its result, and how many reads it took (-1: any number). The input is overwritten at once: no peer may read it now. */
static bool exchange(struct rank *r, uint32_t *in, uint32_t *out, uint64_t count, int round, int wanted)
{
    bool ok = true;
    fill(r, in, count, round);
    reads = 0;
    doing(r, "alltoall of %llu, round %d", (unsigned long long)count, round);
    ok = check_status(r, abc_alltoall(in, out, count, ABC_U32, r->comm), ABC_OK, "alltoall");
    if (in != out)
        memset(in, 0xee, count * sizeof *in * (size_t)r->nranks);
    for (int from = 0; from < r->nranks && ok; from++)
        ok = arrived(r, out + (uint64_t)from * count, from, r->rank, count, round);
    return ok && check(r, wanted < 0 || reads == wanted, "%d blocks of %llu elements were read where they are, must be %d", reads,
                       (unsigned long long)count, wanted);
}

/* The same of an allgather. */
static bool gather(struct rank *r, uint32_t *in, uint32_t *out, uint64_t count, int round, int wanted)
{
    for (uint64_t i = 0; i < count; i++)
        in[i] = value(r->rank, 0, round, i);
    reads = 0;
    doing(r, "allgather of %llu, round %d", (unsigned long long)count, round);
    bool ok = check_status(r, abc_allgather(in, out, count, ABC_U32, r->comm), ABC_OK, "allgather");
    memset(in, 0xee, count * sizeof *in);
    for (int from = 0; from < r->nranks && ok; from++)
        ok = arrived(r, out + (uint64_t)from * count, from, 0, count, round);
    return ok && check(r, reads == wanted, "%d blocks of an allgather were read where they are, must be %d", reads, wanted);
}

/* Blocks of different sizes, which lie in another order than their ranks and apart. */
static bool exchange_lists(struct rank *r, uint32_t *in, uint32_t *out, uint64_t most, int round, int wanted)
{
    const int n = r->nranks;
    uint64_t in_counts[MAX_TEST_RANKS], in_offsets[MAX_TEST_RANKS], out_counts[MAX_TEST_RANKS], out_offsets[MAX_TEST_RANKS];
    for (int k = n - 1, at = 3; k >= 0; k--) {
        in_counts[k] = most - most / 5 * (uint64_t)((r->rank + k) % 2) - (uint64_t)k;
        out_counts[k] = most - most / 5 * (uint64_t)((r->rank + k) % 2) - (uint64_t)r->rank;
        in_offsets[k] = out_offsets[k] = (uint64_t)at;
        at += (int)most + 7;
        for (uint64_t i = 0; i < in_counts[k]; i++)
            in[in_offsets[k] + i] = value(r->rank, k, round, i);
    }
    reads = 0;
    doing(r, "alltoallv of %llu, round %d", (unsigned long long)most, round);
    bool ok = check_status(r, abc_alltoallv(in, in_counts, in_offsets, out, out_counts, out_offsets, ABC_U32, r->comm), ABC_OK,
                           "alltoallv");
    memset(in, 0xee, (size_t)n * most * sizeof *in);
    for (int from = 0; from < n && ok; from++)
        ok = arrived(r, out + out_offsets[from], from, r->rank, out_counts[from], round);
    return ok &&
           check(r, wanted < 0 || reads == wanted, "%d blocks of an alltoallv were read where they are, must be %d", reads, wanted);
}

/* Has the process a huge page there, and does its kernel tell? */
static bool told_huge(struct rank *r, uint32_t *huge, uint32_t *small, size_t bytes)
{
    return check(r, !abci_shm_is_huge(small, bytes), "small pages are said to be huge") && abci_shm_is_huge(huge, bytes);
}

/* From `least` on huge pages are read where they are, small ones never. The rank `odd` has small ones. */
static int huge_pages(struct rank *r)
{
    const uint64_t least = LEAST / sizeof(uint32_t) * (r->nranks == 2 ? 2 : 1), most = 2 * least + 5;
    const size_t bytes = (most + 16) * sizeof(uint32_t) * (size_t)r->nranks;
    uint32_t *huge = pages(bytes, true), *small = pages(bytes, false), *out = pages(bytes, true);
    bool ok = true, tells = told_huge(r, huge, small, bytes), all = true;
    uint32_t telling = tells, sum = 0;
    ok = check_status(r, abc_allreduce(&telling, &sum, 1, ABC_U32, ABC_MIN, r->comm), ABC_OK, "allreduce");
    all = sum && r->comm->shm->remote_for_all;
    r->comm->engine.machine.remote_from = 0;
    r->comm->engine.machine.remote_huge = LEAST >> 10;
    for (int round = 0; round < 3 && ok; round++) {
        ok = exchange(r, huge, out, least - 16, round, 0) && exchange(r, huge, out, least, round, all ? r->nranks - 1 : 0) &&
             exchange(r, huge, out, most, round, all ? r->nranks - 1 : 0) &&
             exchange(r, r->rank == 1 ? small : huge, out, least, round,
                      !all           ? 0
                      : r->rank == 1 ? r->nranks - 1
                                     : r->nranks - 2) &&
             exchange(r, small, out, least, round, 0) && exchange(r, huge, huge, least, round, 0);
        ok = ok && exchange_lists(r, huge, out, most, round, all ? r->nranks - 1 : 0) &&
             exchange_lists(r, huge, out, least / 2, round, 0) && exchange_lists(r, small, out, most, round, 0);
        r->comm->engine.machine.price.hand_off = round == 1 ? 2e-7 : 6e-8;
        ok = ok && gather(r, huge, out, 2 * least, round, all && r->nranks == 2 && round != 1 ? 1 : 0);
    }
    if (r->rank == 0 && !all)
        printf("       huge pages: this kernel gives none, or does not tell\n");
    free(huge);
    free(small);
    free(out);
    return !ok;
}

/*
 * Many chunks, all ranks' memory read where it is: each block by one read. Leaves of a scatter come late, and the root must not
 * return before they have read, for it overwrites its input then.
 */
static int chunks(struct rank *r)
{
    const uint64_t count = 50000;
    uint32_t *in = pages(count * sizeof *in * (size_t)r->nranks, false),
             *out = pages(count * sizeof *in * (size_t)r->nranks, false);
    bool ok = true, remote = r->comm->shm->remote_for_all;
    for (int round = 0; round < 4 && ok; round++) {
        int root = round % r->nranks;
        ok = exchange(r, in, out, count, round, remote ? r->nranks - 1 : 0);
        uint32_t *place = r->rank == root ? out : in; /* in place on one rank only: it may not read over what it has to show */
        ok = ok && exchange(r, place, out, count, round, -1);
        ok = ok && exchange_lists(r, in, out, count - 20, round, remote ? r->nranks - 1 : 0);
        fill(r, in, count, round);
        if (r->rank != root)
            usleep(3000);
        ok = ok && check_status(r, abc_scatter(in, out, count, ABC_U32, root, r->comm), ABC_OK, "scatter");
        memset(in, 0xee, count * sizeof *in * (size_t)r->nranks);
        ok = ok && arrived(r, out, root, r->rank, count, round);
    }
    free(in);
    free(out);
    return !ok;
}

/* The owner has ended by the time of the read, which brings bytes of whatever process has its number then. */
static int owner_ends(struct rank *r)
{
    const uint64_t count = 50000;
    uint32_t *in = pages(2 * count * sizeof *in, false), *out = pages(2 * count * sizeof *in, false);
    abc_comm *comm;
    if (!check_status(r, rank_create(r, 0, 0, &comm), ABC_OK, "creation"))
        return 1;
    bool remote = comm->shm->remote_for_all;
    pid_t child = r->rank == 1 ? fork() : -1;
    if (child == 0)
        _exit(0);
    if (r->rank == 1) {
        gone_fd = (int)syscall(SYS_pidfd_open, child, 0);
        remote &= gone_fd >= 0;
        waitid(P_PID, (id_t)child, &(siginfo_t){0}, WEXITED);
        comm->engine.machine.remote_from = 0; /* the own input is staged: this rank has to wait for nobody */
        nap(0.1);
    }
    int status = abc_alltoall(in, out, count, ABC_U32, comm);
    bool ok = r->rank == 0 || !remote || check_status(r, status, ABC_ERR_PEER, "alltoall");
    abc_comm_destroy(comm);
    free(in);
    free(out);
    return !ok;
}

int main(int argc, char **argv)
{
    static const char *const whole[] = {"ABCOMM_PVR=auto", NULL}, *const cut[] = {"ABCOMM_CHUNK=100K", NULL},
                             *const always[] = {"ABCOMM_PVR=on", "ABCOMM_CHUNK=32K", NULL},
                             *const once[] = {"ABCOMM_PVR=on", "ABCOMM_CHUNK=1M", NULL},
                             *const pairwise[] = {"ABCOMM_CHUNK=100K", "ABCOMM_ALGO=alltoall:pairwise", NULL};
    struct options o;
    options_read(argc, argv, &o);
    for (int n = 2; n <= 4; n++) {
        job_run(&(struct job){.name = "huge pages", .body = huge_pages, .nranks = n, .environment = whole});
        job_run(&(struct job){.name = "huge pages in chunks", .body = huge_pages, .nranks = n, .environment = cut});
        job_run(&(struct job){.name = "huge pages, pairwise", .body = huge_pages, .nranks = n, .environment = pairwise});
        job_run(&(struct job){.name = "many chunks", .body = chunks, .nranks = n, .environment = always});
    }
    job_run(&(struct job){
        .name = "an owner ends", .body = owner_ends, .nranks = 2, .no_comm = true, .timeout = 5, .environment = once});
    return jobs_end();
}
