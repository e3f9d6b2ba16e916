/*
 * test_offer.c - buffers in the arena: when all ranks offer theirs the direct plan is run, else the general one, and the sum is the
 * same. Which ranks offer, in place or not on each, sizes around pages, chunks and slices, every way to start a call; which plan
 * was run is read from the event ring. Also what happens to the memory when such an operation fails.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "diag/event.h"
#include "harness.h"
#include "transport/segment.h"

#define PAGE 4096u
#define MOST (3u << 20) /* bytes */

/* What one call is: the same on all ranks, but for the bits of offers and in_place, one a rank. */
struct trial {
    uint64_t bytes;
    unsigned offers, in_place;
    int how; /* blocking, started, persistent twice */
    const char *algorithm;
    int direct; /* expected: the direct plan was run; -1: either */
};

struct memory {
    char *in[2], *out[2]; /* [private, arena] */
};

static const char *last_algorithm(struct rank *r)
{
    static _Thread_local struct abci_event last;
    memset(&last, 0, sizeof last);
    abci_event_copy(r->comm->engine.shm->events, &last, 1);
    return last.algorithm;
}

static int run_call(struct rank *r, const struct trial *t, abc_call *call)
{
    abc_request *request;
    if (t->how == 0)
        return abc_run(r->comm, call);
    if (t->how == 1) {
        int status = abc_start(r->comm, call, &request);
        return status == ABC_OK ? abc_wait(&request) : status;
    }
    int status = abc_request_create(r->comm, call, &request);
    for (int k = 0; k < 2 && status == ABC_OK; k++) { /* the first time the sum is one of old contents: only the second counts */
        if (k == 1)
            for (uint64_t i = 0; i < t->bytes / 4; i++)
                ((int32_t *)(uintptr_t)call->in)[i] = (int32_t)i * (r->rank + 1);
        status = abc_restart(request);
        status = status == ABC_OK ? abc_wait(&request) : status;
    }
    abc_request_free(request);
    return status;
}

static bool try_one(struct rank *r, const struct memory *m, const struct trial *t)
{
    int kind = t->offers >> r->rank & 1, n = r->nranks;
    bool here = t->in_place >> r->rank & 1;
    uint64_t count = t->bytes / 4;
    int32_t *out = (int32_t *)m->out[kind], *in = here ? out : (int32_t *)m->in[kind];
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = in;
    call.out = out;
    call.count = count;
    call.type = ABC_I32;
    call.op = ABC_SUM;
    call.algorithm = t->algorithm;
    doing(r, "%llu bytes, offers %x, in place %x, how %d", (unsigned long long)t->bytes, t->offers, t->in_place, t->how);
    for (uint64_t i = 0; i < count; i++)
        in[i] = (int32_t)i * (r->rank + 1);
    out[count] = 77; /* behind the end */
    random_nap(r, 200);
    if (!check_status(r, run_call(r, t, &call), ABC_OK, "allreduce"))
        return false;
    for (uint64_t i = 0; i < count; i++)
        if (!check(r, out[i] == (int32_t)i * (n * (n + 1) / 2), "element %llu is %d", (unsigned long long)i, out[i]))
            return false;
    for (uint64_t i = 0; !here && i < count; i++)
        if (!check(r, in[i] == (int32_t)i * (r->rank + 1), "input %llu has changed to %d", (unsigned long long)i, in[i]))
            return false;
    bool direct = strcmp(last_algorithm(r), "push") == 0;
    return check(r, out[count] == 77, "written behind the end") &&
           check(r, t->direct < 0 || direct == t->direct, "run by %s, expected %s", last_algorithm(r),
                 t->direct ? "push" : "another plan");
}

static bool open_memory(struct rank *r, struct memory *m)
{
    void *a, *b;
    if (!check_status(r, abc_mem_alloc(MOST + PAGE, &a), ABC_OK, "alloc") ||
        !check_status(r, abc_mem_alloc(MOST + PAGE, &b), ABC_OK, "alloc"))
        return false;
    m->in[1] = a;
    m->out[1] = b;
    m->in[0] = malloc(MOST + PAGE);
    m->out[0] = malloc(MOST + PAGE);
    return m->in[0] && m->out[0];
}

static void close_memory(struct memory *m)
{
    abc_mem_free(m->in[1]);
    abc_mem_free(m->out[1]);
    free(m->in[0]);
    free(m->out[0]);
}

/* Whole pages; the direct plan needs every rank's offer, and to be larger than what is staged eagerly. */
static int sizes(struct rank *r)
{
    static const uint64_t bytes[] = {4096, 16384, 20480, 65536, 69632, 262144, 1u << 20, (1u << 20) + 4096, 3u << 20};
    struct memory m;
    bool ok = open_memory(r, &m);
    unsigned all = (1u << r->nranks) - 1;
    for (size_t k = 0; ok && k < sizeof bytes / sizeof bytes[0]; k++)
        for (int how = 0; ok && how < 3; how++)
            for (unsigned at = 0; ok && at < 4; at++) {
                unsigned in_place = at == 0 ? 0 : at == 1 ? all : at == 2 ? 1 : all & ~1u;
                bool large = bytes[k] > 16384;
                ok =
                    try_one(r, &m, &(struct trial){bytes[k], all, in_place, how, "push", large}) &&
                    try_one(r, &m, &(struct trial){bytes[k], all & ~(1u << k % (unsigned)r->nranks), in_place, how, NULL, false}) &&
                    try_one(r, &m, &(struct trial){bytes[k], 0, in_place, how, NULL, false});
            }
    /* the automatic choice; the direct plan by name where it can be, and any other as it is */
    ok = ok && try_one(r, &m, &(struct trial){2u << 20, all, 0, 0, NULL, true}) &&
         try_one(r, &m, &(struct trial){65536, all & ~1u, 0, 0, "push", false}) &&
         try_one(r, &m, &(struct trial){65536, all, 0, 0, "twoshot", false}) &&
         try_one(r, &m, &(struct trial){65536, all, all, 0, "oneshot", false});
    close_memory(&m);
    return !ok;
}

/* Chunks so short that their blocks travel in headers: such a header cannot carry an offer. */
static int short_chunks(struct rank *r)
{
    struct memory m;
    bool ok = open_memory(r, &m);
    unsigned all = (1u << r->nranks) - 1;
    for (unsigned offers = 0; ok && offers <= all; offers++)
        ok = try_one(r, &m, &(struct trial){20480, offers, 0, 0, NULL, -1}) &&
             try_one(r, &m, &(struct trial){20480, offers, all, 1, "push", -1});
    close_memory(&m);
    return !ok;
}

/* Only whole pages may be offered: what else lies on a page would be taken away with it when an operation fails. */
static int pages(struct rank *r)
{
    struct memory m;
    char *tight;
    void *p = NULL;
    bool ok = open_memory(r, &m) && check_status(r, abc_mem_alloc(70000, &p), ABC_OK, "alloc");
    tight = ok ? p : NULL;
    unsigned all = (1u << r->nranks) - 1;
    ok = ok && try_one(r, &m, &(struct trial){65536 + 4, all, all, 0, NULL, false}); /* the page goes on */
    struct memory odd = m;
    odd.out[1] += 64;
    odd.in[1] += 64;
    ok = ok && try_one(r, &odd, &(struct trial){65536, all, all, 0, NULL, false}) && /* it begins on a page that has begun */
         try_one(r, &odd, &(struct trial){65536, all, 0, 0, NULL, false});
    odd.out[1] = m.out[1];
    ok = ok && try_one(r, &odd, &(struct trial){65536, all, 0, 0, "push", true}); /* an input is only read */
    ok = ok && check(r, abci_segment_whole(tight, 70000), "the end of an allocation is nobody else's") &&
         check(r, !abci_segment_whole(tight, 69000), "the rest of the last page may be somebody's");
    abc_mem_free(p);
    close_memory(&m);
    return !ok;
}

/* The general plan of a rank may not show its input at all (the last rank of a chain adds and hands on): the direct one does. */
static int silent_input(struct rank *r)
{
    struct memory m;
    bool ok = open_memory(r, &m);
    unsigned all = (1u << r->nranks) - 1;
    for (unsigned at = 0; ok && at < 4; at++) {
        unsigned in_place = at == 0 ? 0 : at == 1 ? all : at == 2 ? 1 : all & ~1u;
        ok = try_one(r, &m, &(struct trial){65536, all, in_place, (int)at % 3, "push", true}) &&
             try_one(r, &m, &(struct trial){1u << 20, all, in_place, (int)at % 3, "push", true}) &&
             try_one(r, &m, &(struct trial){1u << 20, all & ~2u, in_place, (int)at % 3, "push", false});
    }
    close_memory(&m);
    return !ok;
}

static int stop_rank;
static _Atomic int stop_once;

static void stop_in_reduce(int rank, uint32_t sequence, int step)
{
    (void)sequence;
    if (rank == stop_rank && step == 1 && atomic_exchange(&stop_once, 0))
        nap(0.6);
}

/* After a failure the buffers are private: the same contents, written by nobody, used by the next communicator like any others. */
static int given_up(struct rank *r)
{
    struct memory m;
    uint64_t at;
    abc_comm *comm = NULL;
    if (!open_memory(r, &m) || !check_status(r, rank_create(r, 0, 0.2, &comm), ABC_OK, "create"))
        return 1;
    stop_rank = r->nranks - 1;
    abci_hook = stop_in_reduce;
    atomic_store(&stop_once, 1);
    memset(m.out[1], 1, 65536);
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = call.out = m.out[1];
    call.count = 16384;
    call.type = ABC_I32;
    call.algorithm = "push"; /* a plan that stages its input would have an end for the others */
    int status = abc_run(comm, &call);
    bool ok = check(r, status < 0, "an operation that a rank gave up: %s", abc_status_name(status));
    ok = ok && check(r, !abci_segment_find(m.out[1], 4, &at), "the output is still shared");
    memset(m.out[1], 0x77, 65536);
    meet(r);
    nap(0.7);
    for (int i = 0; i < 65536 && ok; i++)
        ok = check(r, m.out[1][i] == 0x77, "byte %d was written after the operation had ended", i);
    abc_comm_destroy(comm);
    ok = ok && try_one(r, &m, &(struct trial){65536, (1u << r->nranks) - 1, 0, 0, NULL, false});
    ok = ok && check_status(r, abc_mem_free(m.out[1]), ABC_OK, "free") &&
         check_status(r, abc_mem_free(m.out[1]), ABC_ERR_ARGUMENT, "free again");
    void *again = NULL;
    ok = ok && check_status(r, abc_mem_alloc(MOST + PAGE, &again), ABC_OK, "alloc") &&
         check(r, again != (void *)m.out[1], "memory that a late peer may write to was handed out again");
    m.out[1] = again;
    ok = ok && try_one(r, &m, &(struct trial){65536, (1u << r->nranks) - 1, 0, 0, "push", true});
    close_memory(&m);
    return !ok;
}

/* Threads of one process have the pages mapped where the caller has: there nothing is offered. */
static int threads(struct rank *r)
{
    struct memory m;
    bool ok = open_memory(r, &m) && try_one(r, &m, &(struct trial){65536, (1u << r->nranks) - 1, 0, 0, NULL, false});
    close_memory(&m);
    return !ok;
}

int main(int argc, char **argv)
{
    static const char *const small_chunks[] = {"ABCOMM_CHUNK=64K", "ABCOMM_PVR=on", NULL};
    static const char *const streaming[] = {"ABCOMM_STORES=stream", NULL};
    static const char *const others[][3] = {{"ABCOMM_ALGO=allreduce:chain", "ABCOMM_CHUNK=64K", NULL},
                                            {"ABCOMM_ALGO=allreduce:recdbl", "ABCOMM_CHUNK=64K", NULL},
                                            {"ABCOMM_ALGO=allreduce:ring", "ABCOMM_CHUNK=64K", NULL}};
    struct options o;
    options_read(argc, argv, &o);
    for (int n = 2; n <= 5; n++)
        for (int k = 0; k < 3; k++)
            job_run(&(struct job){.name = "another general plan", .body = silent_input, .nranks = n, .environment = others[k]});
    for (int n = 2; n <= 5; n++) {
        job_run(&(struct job){.name = "sizes", .body = sizes, .nranks = n});
        job_run(&(struct job){.name = "sizes, small chunks", .body = sizes, .nranks = n, .environment = small_chunks});
    }
    job_run(&(struct job){.name = "streaming", .body = sizes, .nranks = 2, .environment = streaming});
    for (int n = 2; n <= 3; n++) {
        static const char *const lines[] = {"ABCOMM_CHUNK=32", NULL}, *const headers[] = {"ABCOMM_CHUNK=128", NULL};
        job_run(&(struct job){.name = "chunks of a line", .body = short_chunks, .nranks = n, .environment = lines});
        job_run(&(struct job){.name = "chunks of a header", .body = short_chunks, .nranks = n, .environment = headers});
    }
    job_run(&(struct job){.name = "pages", .body = pages, .nranks = 2});
    job_run(&(struct job){.name = "given up", .body = given_up, .nranks = 2});
    job_run(&(struct job){.name = "given up", .body = given_up, .nranks = 4});
    job_run(&(struct job){.name = "threads", .body = threads, .nranks = 3, .threads = true});
    return jobs_end();
}
