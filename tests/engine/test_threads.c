/*
 * test_threads.c - ranks as threads of one process, for ThreadSanitizer: it sees every store and load of the protocol here, which
 * it cannot between processes. All collectives, sizes on both sides of each limit, requests, the progress thread, split, threads
 * that share a communicator, abort and mismatch. Everything in this one process, without a fork, so that the sanitizer's report has
 * one reader.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "board.h"
#include "cases.h"
#include "run_case.h"

/* More than small machines have CPUs, so the general machine runs all; a second round with 2 takes the short way. */
#define RANKS 4
#define CASES 150

static struct one_case cases[CASES];
static size_t largest;

static bool some_cases(struct rank *r)
{
    struct buffers b;
    bool ok = buffers_open(r, &b, largest);
    for (int i = 0; i < CASES && ok; i++)
        ok = run_case(r, &b, &cases[i]);
    if (ok)
        buffers_close(&b);
    return ok;
}

static bool some_requests(struct rank *r)
{
    bool ok = true;
    for (int round = 0; round < 10 && ok; round++) {
        abc_request *q[20];
        int32_t x[20][300], sum[20][300];
        for (int i = 0; i < 20 && ok; i++) {
            for (int k = 0; k < 300; k++)
                x[i][k] = i + k * round;
            ok = check_status(r, abc_allreduce_start(x[i], sum[i], (uint64_t)(i % 3 ? 300 : 4), ABC_I32, ABC_SUM, r->comm, &q[i]),
                              ABC_OK, "start");
        }
        for (int i = 20; i-- > 0 && ok;) {
            while (round & 1 && abc_test(q[i]) == ABC_PENDING)
                ;
            ok = check_status(r, abc_wait(&q[i]), ABC_OK, "wait");
            for (int k = 0; k < (i % 3 ? 300 : 4) && ok; k++)
                ok = check(r, sum[i][k] == x[i][k] * r->nranks, "request %d element %d", i, k);
        }
    }
    return ok;
}

struct helper {
    struct rank *r;
    int status;
};

/* Two threads of a rank make equal calls on one communicator, without an order between them. */
static void *same_calls(void *argument)
{
    struct helper *h = argument;
    for (int i = 0; i < 60 && h->status == ABC_OK; i++) {
        int32_t x = 5, sum = 0;
        h->status = abc_allreduce(&x, &sum, 1, ABC_I32, ABC_SUM, h->r->comm);
        if (h->status == ABC_OK && sum != 5 * h->r->nranks)
            h->status = ABC_ERR_INTERNAL;
    }
    return NULL;
}

static bool two_threads(struct rank *r)
{
    struct helper a = {r, ABC_OK}, b = {r, ABC_OK};
    pthread_t thread;
    if (!check(r, pthread_create(&thread, NULL, same_calls, &b) == 0, "no thread"))
        return false;
    same_calls(&a);
    pthread_join(thread, NULL);
    return check_status(r, a.status, ABC_OK, "one thread") && check_status(r, b.status, ABC_OK, "the other");
}

static bool some_splits(struct rank *r)
{
    bool ok = true;
    for (int i = 0; i < 5 && ok; i++) {
        abc_comm *part = NULL;
        int32_t one = 1, sum = 0;
        ok = check_status(r, abc_comm_split(r->comm, r->rank & 1, -r->rank, &part), ABC_OK, "split");
        ok = ok && check_status(r, abc_allreduce(&one, &sum, 1, ABC_I32, ABC_SUM, part), ABC_OK, "part") &&
             check(r, sum == r->nranks / 2, "part");
        ok = ok && check_status(r, abc_comm_destroy(part), ABC_OK, "destroy");
    }
    return ok;
}

/* Short requests alone, with others in flight, and by two threads at once: with two ranks they go the short way, in two halves. */
static void *short_requests(void *argument)
{
    struct helper *h = argument;
    abc_request *persistent = NULL, *q;
    int32_t x[2] = {5, 6}, sum[2] = {0}, y[2] = {5, 6}, other[2] = {0};
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = x;
    call.out = sum;
    call.count = 2;
    call.type = ABC_I32;
    h->status = abc_request_create(h->r->comm, &call, &persistent);
    for (int i = 0; i < 200 && h->status == ABC_OK; i++) {
        bool two = i % 4 == 0;
        h->status = abc_restart(persistent);
        if (h->status == ABC_OK && two)
            h->status = abc_allreduce_start(y, other, 2, ABC_I32, ABC_SUM, h->r->comm, &q);
        if (h->status == ABC_OK && i % 8 == 1)
            h->status = abc_allreduce(y, other, 2, ABC_I32, ABC_SUM, h->r->comm);
        if (h->status == ABC_OK)
            h->status = abc_wait(&persistent);
        if (h->status == ABC_OK && two)
            h->status = abc_wait(&q);
        if (h->status == ABC_OK && (sum[0] != 5 * h->r->nranks || sum[1] != 6 * h->r->nranks))
            h->status = ABC_ERR_INTERNAL;
    }
    if (h->status == ABC_OK)
        h->status = abc_request_free(persistent);
    return NULL;
}

static bool short_ones(struct rank *r)
{
    struct helper a = {r, ABC_OK}, b = {r, ABC_OK};
    pthread_t thread;
    short_requests(&a); /* alone */
    if (!check_status(r, a.status, ABC_OK, "short requests") ||
        !check(r, pthread_create(&thread, NULL, short_requests, &b) == 0, "no thread"))
        return false;
    short_requests(&a);
    pthread_join(thread, NULL);
    return check_status(r, a.status, ABC_OK, "one thread") && check_status(r, b.status, ABC_OK, "the other");
}

/* The last act: one rank aborts while the others wait, or calls something else. */
static bool the_end(struct rank *r, bool mismatch)
{
    int32_t x[8] = {0}, y[8];
    abc_comm *c = NULL;
    bool ok = check_status(r, abc_comm_split(r->comm, 0, 0, &c), ABC_OK, "split");
    int wanted = mismatch ? ABC_ERR_MISMATCH : ABC_ERR_ABORTED, status = wanted;
    if (ok && mismatch)
        status = abc_allreduce(x, y, r->rank == 1 ? 8 : 4, ABC_I32, ABC_SUM, c);
    else if (ok && r->rank == 1)
        ok = check_status(r, abc_comm_abort(c, "enough"), ABC_OK, "abort");
    else if (ok)
        status = abc_allreduce(x, y, 4, ABC_I32, ABC_SUM, c);
    ok = ok && check_status(r, status, wanted, "the end");
    return check_status(r, abc_comm_destroy(c), wanted, "destroy says so") && ok;
}

#define ROOM 90000u /* elements: chunks, and more than are read in a moment */

/* Everything where peers read it. Whoever gets an operation back uses its buffers at once, also after an abort: nobody may still
 * read them. */
static bool reuse_after_abort(struct rank *r, int round, float *in, float *out)
{
    abc_comm *c = NULL;
    abc_request *q = NULL, *receive = NULL;
    abc_call call;
    static const abc_collective kinds[] = {ABC_ALLREDUCE, ABC_BROADCAST, ABC_ALLTOALL, ABC_REDUCE, ABC_SEND, ABC_ALLGATHER};
    abc_collective kind = kinds[round % 6];
    int right = (r->rank + 1) % r->nranks, left = (r->rank + r->nranks - 1) % r->nranks;
    bool wide = kind == ABC_ALLTOALL || kind == ABC_ALLGATHER, ok = true;
    if (!check_status(r, abc_comm_split(r->comm, 0, 0, &c), ABC_OK, "split"))
        return false;
    abc_call_init(&call, kind);
    call.in = in;
    call.out = out;
    call.count = wide ? ROOM / (uint64_t)r->nranks : ROOM;
    call.root = kind == ABC_SEND ? right : round % r->nranks;
    for (int i = 0; i < 4 && ok; i++) { /* the abort comes into one of them, or into none */
        for (unsigned k = 0; k < ROOM; k++)
            in[k] = out[k] = (float)(r->rank + i);
        if (kind == ABC_SEND)
            abc_recv_start(out, ROOM, ABC_F32, left, 0, c, NULL, &receive);
        int status = abc_start(c, &call, &q);
        if (i == 2 && r->rank == round % r->nranks) {
            random_nap(r, 200);
            abc_comm_abort(c, "in the middle");
        }
        status = status == ABC_OK ? abc_wait(&q) : status;
        if (receive)
            abc_wait(&receive);
        ok = check(r, status == ABC_OK || status == ABC_ERR_ABORTED, "kind %d: %s", (int)kind, abc_status_name(status));
    }
    for (unsigned k = 0; k < ROOM; k++)
        in[k] = out[k] = -1;
    abc_comm_destroy(c);
    return ok;
}

static bool aborts(struct rank *r)
{
    void *memory[2] = {0};
    bool ok = check_status(r, abc_mem_alloc(ROOM * sizeof(float), &memory[0]), ABC_OK, "memory") &&
              check_status(r, abc_mem_alloc(ROOM * sizeof(float), &memory[1]), ABC_OK, "memory");
    for (int round = 0; round < 18 && ok; round++)
        ok = reuse_after_abort(r, round, memory[0], memory[1]);
    abc_mem_free(memory[0]);
    abc_mem_free(memory[1]);
    return ok;
}

struct seat {
    struct board *board;
    int rank, nranks, progress;
};

static void *be_rank(void *argument)
{
    const struct seat *seat = argument;
    struct rank r = {
        .rank = seat->rank, .nranks = seat->nranks, .threads = true, .board = seat->board, .random = (uint64_t)seat->rank + 1};
    bool ok = check_status(&r, rank_create(&r, seat->progress, 0, &r.comm), ABC_OK, "create");
    ok = ok && (r.nranks < RANKS || some_cases(&r)) && some_requests(&r) && short_ones(&r) && two_threads(&r) && some_splits(&r) &&
         aborts(&r) && the_end(&r, true) && the_end(&r, false);
    ok = ok && check_status(&r, abc_comm_destroy(r.comm), ABC_OK, "destroy");
    check(&r, ok, "failed");
    return NULL;
}

static bool round_of(int nranks, int progress)
{
    struct board *board = board_make();
    struct seat seat[RANKS];
    pthread_t thread[RANKS];
    bool ok = true;
    if (!board)
        return false;
    board->timeout = 60;
    for (int i = 0; i < nranks; i++) {
        seat[i] = (struct seat){board, i, nranks, progress};
        if (pthread_create(&thread[i], NULL, be_rank, &seat[i]) != 0)
            abort();
    }
    for (int i = 0; i < nranks; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < nranks; i++)
        if (atomic_load(&board->note[i].failed)) {
            printf("    rank %d: %s [while: %s]\n", i, board->note[i].failure, board->note[i].doing);
            ok = false;
        }
    printf("%s %d ranks as threads%s\n", ok ? "ok    " : "FAILED", nranks, progress ? ", progress threads" : "");
    board_free(board);
    return ok;
}

int main(int argc, char **argv)
{
    struct options o;
    options_read(argc, argv, &o);
    struct sample *s = sample_open(o.seed);
    setenv("ABCOMM_CHUNK", "16K", 0);
    for (int i = 0; i < CASES; i++) {
        struct vector v = {{0}};
        v.level[D_RANKS] = RANKS - 1;
        v.level[D_CHUNK] = 2;
        sample_case(s, &v, true);
        case_of(&v, o.seed + (uint64_t)i, &cases[i]);
        size_t need = case_bytes(&cases[i], RANKS);
        largest = need > largest ? need : largest;
    }
    sample_close(s);
    ops_open();
    bool ok = round_of(RANKS, 0) && round_of(RANKS, 1) && round_of(2, 0) && round_of(2, 1);
    ops_close();
    return !ok;
}
