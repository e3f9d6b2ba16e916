/*
 * test_start.c - short allreduces that are started and waited for: start stores the header, wait reads the peers' (run_tiny.c).
 * Which requests go that way, and what may happen between the two halves: nothing, other requests, other threads, the peer going
 * on, the end of the communicator. The linker puts counters in front of the halves. Links the testing library.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"
#include "harness.h"
#include "plan/run_internal.h"

static _Thread_local int begun, ended; /* halves that this thread has gone through */

bool __real_abci_tiny_begin(struct abci_engine *e, struct abci_tiny *t, const char *in);
bool __wrap_abci_tiny_begin(struct abci_engine *e, struct abci_tiny *t, const char *in);
int __real_abci_tiny_end(struct abci_engine *e, const char *in, char *out);
int __wrap_abci_tiny_end(struct abci_engine *e, const char *in, char *out);

bool __wrap_abci_tiny_begin(struct abci_engine *e, struct abci_tiny *t, const char *in)
{
    bool done = __real_abci_tiny_begin(e, t, in);
    begun += done;
    return done;
}

int __wrap_abci_tiny_end(struct abci_engine *e, const char *in, char *out)
{
    int status = __real_abci_tiny_end(e, in, out);
    ended += status == ABC_OK;
    return status;
}

static bool start(struct rank *r, const int32_t *in, int32_t *out, int count, abc_request **q)
{
    return check_status(r, abc_allreduce_start(in, out, (uint64_t)count, ABC_I32, ABC_SUM, r->comm, q), ABC_OK, "start");
}

static bool create(struct rank *r, const int32_t *in, int32_t *out, int count, abc_request **q)
{
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = in;
    call.out = out;
    call.count = (uint64_t)count;
    call.type = ABC_I32;
    return check_status(r, abc_request_create(r->comm, &call, q), ABC_OK, "create");
}

/* Input of one operation, which every rank can compute for every other. */
static int32_t input(int rank, int round, int i)
{
    return rank * 1000 + round * 7 + i;
}

static void fill(int32_t *x, int count, int rank, int round)
{
    for (int i = 0; i < count; i++)
        x[i] = input(rank, round, i);
}

static bool right(struct rank *r, const int32_t *sum, int count, int round)
{
    bool ok = true;
    for (int i = 0; i < count && ok; i++) {
        int32_t wanted = 0;
        for (int k = 0; k < r->nranks; k++)
            wanted += input(k, round, i);
        ok = check(r, sum[i] == wanted, "round %d, %d values: element %d is %d, must be %d", round, count, i, sum[i], wanted);
    }
    return ok;
}

/* ---- Which requests go that way ---- */

/* All ranks have started when the first one waits, so no wait finds a peer late: in a header, in several lines, staged. */
static int in_halves(struct rank *r)
{
    static _Thread_local int32_t x[1000], sum[1000];
    static const int counts[] = {2, 25, 1000};
    enum { ROUNDS = 40 };
    bool ok = true;
    for (int k = 0; k < 6 && ok; k++) {
        int count = counts[k % 3];
        abc_request *q = NULL;
        bool persistent = k >= 3;
        ok = !persistent || create(r, x, sum, count, &q);
        begun = ended = 0;
        for (int round = 0; round < ROUNDS && ok; round++) {
            doing(r, "%d values, round %d", count, round);
            fill(x, count, r->rank, round);
            ok = persistent ? check_status(r, abc_restart(q), ABC_OK, "restart") : start(r, x, sum, count, &q);
            ok = ok && meet(r) && check_status(r, abc_wait(&q), ABC_OK, "wait") && right(r, sum, count, round);
        }
        /* the first one of a kind is learnt; staging may be with the peer now and then */
        int least = count < 1000 ? ROUNDS - 1 : ROUNDS / 2;
        ok = ok && check(r, begun >= least && ended == begun, "%d values: of %d rounds %d began short, %d ended so", count, ROUNDS,
                         begun, ended);
        ok = ok && (!persistent || check_status(r, abc_request_free(q), ABC_OK, "free"));
    }
    return !ok;
}

/* Whom the progress thread looks after must not depend on a wait. */
static int with_progress_thread(struct rank *r)
{
    int32_t x[2], sum[2];
    abc_request *q = NULL;
    bool ok = create(r, x, sum, 2, &q);
    for (int round = 0; round < 30 && ok; round++) {
        fill(x, 2, r->rank, round);
        ok = check_status(r, abc_restart(q), ABC_OK, "restart");
        int status = ABC_PENDING;
        /* no call into the library: the thread must end it */
        for (double end = now_seconds() + 10; ok && status == ABC_PENDING && now_seconds() < end; nap(0.0002))
            status = atomic_load_explicit(&q->state, memory_order_acquire) == ABCI_REQUEST_COMPLETE ? ABC_OK : ABC_PENDING;
        ok =
            ok && check_status(r, status, ABC_OK, "what the progress thread ends") && check_status(r, abc_wait(&q), ABC_OK, "wait");
        ok = ok && right(r, sum, 2, round);
    }
    ok = ok && check(r, begun == 0, "%d requests waited for a wait", begun);
    return !(ok && check_status(r, abc_request_free(q), ABC_OK, "free"));
}

/* ---- Between start and wait ---- */

/* Rank 0 waits only when its peers have finished the operation and begun the next: they need its start alone. */
static int late_wait(struct rank *r)
{
    _Atomic int *over = board_words(r->board);
    int32_t x[2][2], sum[2][2];
    bool ok = true;
    for (int round = 0; round < 40 && ok; round++) {
        abc_request *q[2];
        doing(r, "round %d", round);
        for (int k = 0; k < 2; k++)
            fill(x[k], 2, r->rank, 2 * round + k);
        ok = start(r, x[0], sum[0], 2, &q[0]);
        if (r->rank > 0) {
            ok = ok && check_status(r, abc_wait(&q[0]), ABC_OK, "wait") && start(r, x[1], sum[1], 2, &q[1]);
            atomic_fetch_add(&over[0], 1);
        } else {
            for (double end = now_seconds() + 10; atomic_load(&over[0]) < (round + 1) * (r->nranks - 1) && now_seconds() < end;)
                nap(0.0001);
            ok = ok && check(r, atomic_load(&over[0]) == (round + 1) * (r->nranks - 1), "the peers needed more than the start");
            ok = ok && check_status(r, abc_wait(&q[0]), ABC_OK, "late wait") && start(r, x[1], sum[1], 2, &q[1]);
        }
        ok = ok && check_status(r, abc_wait(&q[1]), ABC_OK, "wait");
        ok = ok && right(r, sum[0], 2, 2 * round) && right(r, sum[1], 2, 2 * round + 1) && meet(r);
    }
    return !ok;
}

#define FLIGHT 6 /* requests of the mix */
#define MOST 9000

struct mix {
    struct rank *r;
    int count[FLIGHT], round[FLIGHT];
    bool persistent[FLIGHT], busy[FLIGHT];
    abc_request *q[FLIGHT];
    _Atomic int called[FLIGHT];
    int32_t (*x)[MOST], (*sum)[MOST];
};

static void count_call(abc_request *request, int status, void *context)
{
    atomic_fetch_add((_Atomic int *)context, status == ABC_OK ? 1 : 100);
}

static bool finish(struct mix *m, int k)
{
    struct rank *r = m->r;
    if (!m->busy[k])
        return true;
    m->busy[k] = false;
    for (int tests = (int)(random_next(&r->random) % 4); tests > 0; tests--) /* 0 to 3 looks before the wait */
        if (!check(r, abc_test(m->q[k]) >= 0, "test: %s", abc_last_error()))
            return false;
    if (!check_status(r, abc_wait(&m->q[k]), ABC_OK, "wait") || !right(r, m->sum[k], m->count[k], m->round[k]))
        return false;
    return check(r, atomic_exchange(&m->called[k], 0) == (k == 5), "callbacks of request %d", k);
}

/* Three persistent requests, two of them of one kind, started ones of changing kinds, and one with a callback. */
static bool launch(struct mix *m, int k, int round, uint64_t dice)
{
    static const int counts[] = {2, 2, 2, 25, 1000, 9000, 3};
    struct rank *r = m->r;
    if (!m->persistent[k])
        m->count[k] = counts[dice % 7];
    m->round[k] = round;
    m->busy[k] = true;
    fill(m->x[k], m->count[k], r->rank, round);
    if (m->persistent[k])
        return check_status(r, abc_restart(m->q[k]), ABC_OK, "restart");
    if (k != 5)
        return start(r, m->x[k], m->sum[k], m->count[k], &m->q[k]);
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = m->x[k];
    call.out = m->sum[k];
    call.count = (uint64_t)m->count[k];
    call.type = ABC_I32;
    call.callback = count_call;
    call.callback_context = (void *)&m->called[k];
    return check_status(r, abc_start(r->comm, &call, &m->q[k]), ABC_OK, "start with a callback");
}

/* A blocking call among started ones. */
static bool block(struct rank *r, int round, uint64_t dice)
{
    int32_t x[25], sum[25];
    int count = dice % 2 ? 2 : 25;
    if (dice % 5 == 0)
        return check_status(r, abc_barrier(r->comm), ABC_OK, "barrier");
    fill(x, count, r->rank, round);
    return check_status(r, abc_allreduce(x, sum, (uint64_t)count, ABC_I32, ABC_SUM, r->comm), ABC_OK, "allreduce") &&
           right(r, sum, count, round);
}

/* All ranks start in one order, which the shared dice say; each waits in an order of its own. */
static int mixed(struct rank *r)
{
    static _Thread_local int32_t x[FLIGHT][MOST], sum[FLIGHT][MOST];
    struct mix m = {.r = r, .x = x, .sum = sum};
    uint64_t shared = 77;
    bool ok = true;
    for (int k = 0; k < 3 && ok; k++) {
        m.count[k] = k < 2 ? 2 : 25;
        m.persistent[k] = true;
        ok = create(r, x[k], sum[k], m.count[k], &m.q[k]);
    }
    for (int round = 0; round < 600 && ok; round++) {
        uint64_t dice = random_next(&shared);
        int k = (int)(dice % FLIGHT);
        doing(r, "round %d: request %d", round, k);
        ok = finish(&m, k);
        if (dice >> 8 & 1) /* often enough alone, so that it begins short */
            for (int i = 0; i < FLIGHT && ok; i++)
                ok = finish(&m, i);
        ok = ok && (dice >> 10 & 3 ? launch(&m, k, round, dice >> 16) : block(r, round, dice >> 16));
        if (random_next(&r->random) % 4 == 0)
            random_nap(r, 200);
        if (random_next(&r->random) % 3 == 0)
            ok = ok && finish(&m, (int)(random_next(&r->random) % FLIGHT));
    }
    for (int k = FLIGHT; k-- > 0 && ok;)
        ok = finish(&m, k) && (!m.persistent[k] || check_status(r, abc_request_free(m.q[k]), ABC_OK, "free"));
    if (r->nranks <= abci_cpu_available() && !r->comm->has_thread)
        ok = ok && check(r, begun > 20, "only %d requests began short", begun);
    return !ok;
}

/* ---- Threads of a rank ---- */

struct worker {
    struct rank *r;
    int me, status;
};

/* Equal calls in any order: while one thread's header is out the other blocks, starts or waits. */
static void *equal_calls(void *argument)
{
    struct worker *w = argument;
    for (int i = 0; i < 300 && w->status == ABC_OK; i++) {
        int32_t x[2] = {5, 6}, sum[2] = {0};
        abc_request *q;
        if ((i + w->me) % 3 == 0) {
            w->status = abc_allreduce(x, sum, 2, ABC_I32, ABC_SUM, w->r->comm);
        } else {
            w->status = abc_allreduce_start(x, sum, 2, ABC_I32, ABC_SUM, w->r->comm, &q);
            if (i % 7 == 0)
                nap(0.0001);
            if (w->status == ABC_OK)
                w->status = abc_wait(&q);
        }
        if (w->status == ABC_OK && (sum[0] != 5 * w->r->nranks || sum[1] != 6 * w->r->nranks))
            w->status = ABC_ERR_INTERNAL;
    }
    return NULL;
}

static int threads_mix(struct rank *r)
{
    struct worker w[2] = {{r, 0, ABC_OK}, {r, 1, ABC_OK}};
    pthread_t thread;
    if (!check(r, pthread_create(&thread, NULL, equal_calls, &w[1]) == 0, "no thread"))
        return 1;
    equal_calls(&w[0]);
    pthread_join(thread, NULL);
    return !(check_status(r, w[0].status, ABC_OK, "thread 0") && check_status(r, w[1].status, ABC_OK, "thread 1"));
}

/* As if another thread had held the claim for the moment of the second start: its request is handed over, behind a header that is
 * out, and it is waited for first. */
static int handed_in(struct rank *r)
{
    _Atomic uint32_t *claim = r->comm->engine.claim;
    int32_t x[2][2], sum[2][2] = {{0}};
    bool ok = true;
    for (int round = 0; round < 20 && ok; round++) {
        abc_request *q[2];
        for (int k = 0; k < 2; k++)
            fill(x[k], 2, r->rank, 2 * round + k);
        ok = start(r, x[0], sum[0], 2, &q[0]);
        atomic_store(claim, 1);
        ok = ok && start(r, x[1], sum[1], 2, &q[1]);
        atomic_store(claim, 0);
        ok = ok && meet(r) && check_status(r, abc_wait(&q[1]), ABC_OK, "wait") && right(r, sum[1], 2, 2 * round + 1);
        ok = ok && check_status(r, abc_wait(&q[0]), ABC_OK, "wait") && right(r, sum[0], 2, 2 * round);
    }
    return !ok;
}

/* Started by one thread, waited for by another. */
static void *wait_for_it(void *argument)
{
    abc_request **q = argument;
    return abc_wait(q) == ABC_OK ? q : NULL;
}

static int handed_over(struct rank *r)
{
    int32_t x[2], sum[2];
    bool ok = true;
    for (int round = 0; round < 50 && ok; round++) {
        pthread_t thread;
        abc_request *q;
        void *result = NULL;
        fill(x, 2, r->rank, round);
        ok = start(r, x, sum, 2, &q) && check(r, pthread_create(&thread, NULL, wait_for_it, &q) == 0, "no thread");
        ok = ok && pthread_join(thread, &result) == 0 && check(r, result == &q, "the other thread's wait") &&
             right(r, sum, 2, round);
    }
    return !ok;
}

/* ---- The end between start and wait ---- */

/* One short request is learnt, one is started. */
static bool one_out(struct rank *r, int32_t *x, int32_t *sum, abc_request **q)
{
    fill(x, 2, r->rank, 0);
    begun = 0;
    bool ok = start(r, x, sum, 2, q) && meet(r) && check_status(r, abc_wait(q), ABC_OK, "wait");
    return ok && create(r, x, sum, 2, q) && check_status(r, abc_restart(*q), ABC_OK, "restart") &&
           check(r, begun == 1, "the request did not begin short");
}

/* What the wait says is what the record says, once; the request is usable no more, but can be freed. */
static bool ends_with(struct rank *r, abc_request *q, int wanted)
{
    static _Thread_local struct abci_event seen[ABCI_EVENTS];
    uint32_t number = q->first_sequence;
    abc_request *handle = q;
    int errors = 0;
    bool ok = check_status(r, abc_wait(&handle), wanted, "wait");
    int n = abci_event_copy(r->comm->engine.shm->events, seen, ABCI_EVENTS);
    for (int i = 0; i < n; i++)
        errors += seen[i].kind == ABCI_EVENT_ERROR && seen[i].sequence == number;
    ok = ok && check(r, errors == 1, "the failure of operation %u was recorded %d times", number, errors);
    ok = ok && check_status(r, abc_restart(q), ABC_OK, "restart") && check_status(r, abc_wait(&q), wanted, "wait again");
    ok = ok && check_status(r, abc_request_free(q), ABC_OK, "free");
    ok = ok && meet(r) && check_status(r, abc_comm_destroy(r->comm), wanted, "destroy says so");
    r->comm = NULL;
    return ok;
}

/* Both have started, so wait finds everything there; only the last look sees the end. */
static int aborted_after(struct rank *r)
{
    int32_t x[2], sum[2];
    abc_request *q;
    bool ok = check_status(r, rank_create(r, 0, 0, &r->comm), ABC_OK, "create") && one_out(r, x, sum, &q) && meet(r);
    if (ok && r->rank == 1)
        ok = check_status(r, abc_comm_abort(r->comm, "enough"), ABC_OK, "abort");
    return !(ok && meet(r) && ends_with(r, q, ABC_ERR_ABORTED));
}

/* The peer never starts: it aborts, or does nothing. */
static int peer_stays_away(struct rank *r, bool aborts)
{
    int32_t x[2], sum[2];
    abc_request *q;
    int wanted = aborts ? ABC_ERR_ABORTED : ABC_ERR_TIMEOUT;
    bool ok = check_status(r, rank_create(r, 0, aborts ? 0 : 0.3, &r->comm), ABC_OK, "create");
    if (r->rank == 0)
        return !(ok && one_out(r, x, sum, &q) && meet(r) && ends_with(r, q, wanted));
    fill(x, 2, 1, 0);
    ok = ok && start(r, x, sum, 2, &q) && meet(r) && check_status(r, abc_wait(&q), ABC_OK, "wait") && meet(r);
    if (aborts)
        ok = ok && check_status(r, abc_comm_abort(r->comm, "enough"), ABC_OK, "abort");
    ok = ok && meet(r) && check_status(r, abc_comm_destroy(r->comm), wanted, "destroy says so");
    r->comm = NULL;
    return !ok;
}

static int aborted_before(struct rank *r)
{
    return peer_stays_away(r, true);
}

static int never_there(struct rank *r)
{
    return peer_stays_away(r, false);
}

/* A header that is out differs from the peer's. */
static int differs(struct rank *r)
{
    int32_t x[3] = {0}, sum[3];
    abc_request *q;
    bool ok = check_status(r, rank_create(r, 0, 0, &r->comm), ABC_OK, "create") && start(r, x, sum, 2, &q) && meet(r) &&
              check_status(r, abc_wait(&q), ABC_OK, "wait") && start(r, x, sum, 2 + r->rank, &q);
    ok = ok && check_status(r, abc_wait(&q), ABC_ERR_MISMATCH, "wait") && meet(r);
    ok = ok && check_status(r, abc_comm_destroy(r->comm), ABC_ERR_MISMATCH, "destroy says so");
    r->comm = NULL;
    return !ok;
}

/* A request whose header is out is in progress. */
static int destroyed_early(struct rank *r)
{
    int32_t x[2], sum[2];
    abc_request *q;
    bool ok = check_status(r, rank_create(r, 0, 0, &r->comm), ABC_OK, "create") && one_out(r, x, sum, &q);
    ok = ok && check_status(r, abc_comm_destroy(r->comm), ABC_ERR_STATE, "destroy") &&
         check(r, strstr(abc_last_error(), "requests in progress: 1"), "the text says: %s", abc_last_error());
    ok = ok && check_status(r, abc_restart(q), ABC_ERR_STATE, "restart in progress");
    ok = ok && check_status(r, abc_request_free(q), ABC_ERR_STATE, "free in progress");
    ok = ok && check_status(r, abc_wait(&q), ABC_OK, "wait") && right(r, sum, 2, 0);
    ok = ok && check_status(r, abc_comm_destroy(r->comm), ABC_ERR_STATE, "destroy") &&
         check(r, strstr(abc_last_error(), "requests not freed: 1"), "the text says: %s", abc_last_error());
    ok = ok && check_status(r, abc_request_free(q), ABC_OK, "free") && meet(r);
    ok = ok && check_status(r, abc_comm_destroy(r->comm), ABC_OK, "destroy");
    r->comm = NULL;
    return !ok;
}

static const struct {
    const char *name;
    int (*body)(struct rank *r);
    bool no_comm, short_only, any_thread;
} scenarios[] = {
    {"in halves", in_halves, false, true, false},
    {"late wait", late_wait, false, false, true},
    {"mixed", mixed, false, false, true},
    {"threads mix", threads_mix, false, false, true},
    {"handed over", handed_over, false, false, true},
    {"handed in", handed_in, false, true, false},
    {"aborted after both starts", aborted_after, true, true, false},
    {"aborted before the peer's start", aborted_before, true, true, false},
    {"never there", never_there, true, true, false},
    {"differs", differs, true, true, false},
    {"destroyed early", destroyed_early, true, true, false},
};

int main(int argc, char **argv)
{
    struct options o;
    options_read(argc, argv, &o);
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
        for (int kind = 0; kind < 4; kind++) {
            char name[64];
            if ((scenarios[i].short_only && abci_cpu_available() < 2) || (kind & 1 && !scenarios[i].any_thread))
                continue; /* crowded ranks never take the short way, and with a progress thread nobody does */
            snprintf(name, sizeof name, "%s%s", scenarios[i].name, kind & 1 ? ", progress thread" : "");
            job_run(&(struct job){.name = name,
                                  .body = scenarios[i].body,
                                  .nranks = 2,
                                  .threads = kind & 2,
                                  .progress = kind & 1,
                                  .no_comm = scenarios[i].no_comm});
        }
    job_run(&(struct job){.name = "with the progress thread", .body = with_progress_thread, .nranks = 2, .progress = 1});
    job_run(&(struct job){.name = "mixed", .body = mixed, .nranks = 3});
    job_run(&(struct job){.name = "late wait", .body = late_wait, .nranks = 3});
    return jobs_end();
}
