/*
 * test_requests.c - started and persistent requests: order of waiting, testing, callbacks, several communicators and threads at
 * once. Every scenario runs as processes and as threads, with and without the progress thread, and must give the same bits in all
 * four.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "harness.h"

#define MANY 40

static int count_for(int i)
{
    static const int counts[] = {1, 4099, 7, 70001, 0, 600, 13, 33000};
    return counts[i % 8] + i;
}

static struct values values_for(int i)
{
    return (struct values){.seed = 100u + (unsigned)i, .type = ABC_F32, .op = TEST_SUM};
}

/* Buffers of `n` operations, every third in the arena. */
static bool take(struct rank *r, float **in, float **out, int n)
{
    for (int i = 0; i < n; i++) {
        size_t bytes = sizeof(float) * (size_t)count_for(i) + 4;
        void *a, *b;
        if (i % 3 == 0) {
            if (!check_status(r, abc_mem_alloc(bytes, &a), ABC_OK, "alloc") ||
                !check_status(r, abc_mem_alloc(bytes, &b), ABC_OK, "alloc"))
                return false;
        } else {
            a = malloc(bytes);
            b = malloc(bytes);
        }
        in[i] = a;
        out[i] = b;
        struct values v = values_for(i);
        values_fill(&v, r->rank, 0, (uint64_t)count_for(i), in[i]);
        memset(out[i], 0xee, bytes);
    }
    return true;
}

static void give(float **in, float **out, int n)
{
    for (int i = 0; i < n; i++) {
        if (i % 3 == 0) {
            abc_mem_free(in[i]);
            abc_mem_free(out[i]);
        } else {
            free(in[i]);
            free(out[i]);
        }
    }
}

static bool right(struct rank *r, int i, const float *out)
{
    uint64_t got = 0, want = 0, n = (uint64_t)count_for(i);
    struct values v = values_for(i);
    uint64_t at = reduction_differs(&v, r->nranks, 0, n, out, &got, &want);
    return check(r, at == n, "operation %d: element %llu is %llx, must be %llx", i, (unsigned long long)at, (unsigned long long)got,
                 (unsigned long long)want);
}

static bool start(struct rank *r, abc_comm *comm, int i, float **in, float **out, abc_request **q)
{
    return check_status(r, abc_allreduce_start(in[i], out[i], (uint64_t)count_for(i), ABC_F32, ABC_SUM, comm, q), ABC_OK, "start");
}

/* Started in order, waited for backwards; ranks come at odd times. */
static bool reverse(struct rank *r, int n)
{
    float *in[MANY], *out[MANY];
    abc_request *q[MANY];
    bool ok = take(r, in, out, n);
    for (int round = 0; round < 3 && ok; round++) {
        for (int i = 0; i < n && ok; i++) {
            random_nap(r, 200);
            doing(r, "starting %d of %d", i, n);
            ok = start(r, r->comm, i, in, out, &q[i]);
        }
        for (int i = n; i-- > 0 && ok;) {
            random_nap(r, 200);
            doing(r, "waiting for %d of %d", i, n);
            ok = check_status(r, abc_wait(&q[i]), ABC_OK, "wait") && check(r, !q[i], "the request stayed") && right(r, i, out[i]);
        }
    }
    give(in, out, n);
    return ok;
}

static int reverse_16(struct rank *r)
{
    return !reverse(r, 16);
}

static int reverse_40(struct rank *r)
{
    return !reverse(r, 40);
}

/* Completed by testing alone, round and round, with blocking calls in between. */
static int test_loops(struct rank *r)
{
    float *in[MANY], *out[MANY];
    abc_request *q[MANY];
    bool ok = take(r, in, out, 12);
    for (int round = 0; round < 5 && ok; round++) {
        for (int i = 0; i < 12 && ok; i++)
            ok = start(r, r->comm, i, in, out, &q[i]);
        if (round & 1)
            ok = ok && check_status(r, abc_barrier(r->comm), ABC_OK, "barrier among started requests");
        doing(r, "testing, round %d", round);
        for (int left = 12; left > 0 && ok;) {
            left = 0;
            for (int i = 0; i < 12 && ok; i++) {
                int status = abc_test(q[i]);
                left += status == ABC_PENDING;
                ok = check(r, status == ABC_PENDING || status == ABC_OK, "test: %s", abc_last_error());
            }
            random_nap(r, 50);
        }
        for (int i = 0; i < 12 && ok; i++)
            ok = check_status(r, i & 1 ? abc_wait(&q[i]) : abc_request_free(q[i]), ABC_OK, "free") && right(r, i, out[i]);
    }
    give(in, out, 12);
    return !ok;
}

/* Two persistent requests, started again and again, their buffers changed in between. */
static int persistent(struct rank *r)
{
    int32_t a[100], b[5000], sum[100];
    abc_request *q[2];
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.type = ABC_I32;
    call.op = ABC_SUM;
    call.in = a;
    call.out = sum;
    call.count = 100;
    bool ok = check_status(r, abc_request_create(r->comm, &call, &q[0]), ABC_OK, "create");
    call.in = ABC_IN_PLACE;
    call.out = b;
    call.count = 5000;
    ok = ok && check_status(r, abc_request_create(r->comm, &call, &q[1]), ABC_OK, "create");
    ok = ok && check_status(r, abc_test(q[0]), ABC_ERR_STATE, "test before the first start");
    for (int i = 0; i < 1000 && ok; i++) {
        doing(r, "restart %d", i);
        for (int k = 0; k < 100; k++)
            a[k] = i * k + r->rank;
        for (int k = 0; k < 5000; k += 37)
            b[k] = i + k;
        ok = check_status(r, abc_restart(q[0]), ABC_OK, "restart") && check_status(r, abc_restart(q[1]), ABC_OK, "restart");
        ok = ok && check_status(r, abc_wait(&q[1]), ABC_OK, "wait") && check_status(r, abc_wait(&q[0]), ABC_OK, "wait");
        int extra = r->nranks * (r->nranks - 1) / 2;
        for (int k = 0; k < 100 && ok; k++)
            ok = check(r, sum[k] == i * k * r->nranks + extra, "restart %d: element %d", i, k);
        for (int k = 0; k < 5000 && ok; k += 37)
            ok = check(r, b[k] == (i + k) * r->nranks, "restart %d: in-place element %d", i, k);
    }
    ok = ok && check_status(r, abc_request_free(q[0]), ABC_OK, "free") && check_status(r, abc_request_free(q[1]), ABC_OK, "free");
    return !ok;
}

/* ---- Several threads of a rank ---- */

struct worker {
    struct rank *r;
    abc_comm *own, *shared, *other;
    pthread_mutex_t *lock;
    int *turn; /* whose turn it is on the shared communicator: the same row on all ranks */
    int me, status;
};

/* One communicator a thread, and one shared by both whose order a mutex and a turn fix. */
static void *work(void *argument)
{
    struct worker *w = argument;
    for (int i = 0; i < 60 && w->status == ABC_OK; i++) {
        int32_t x = i + w->me, sum = 0;
        w->status = abc_allreduce(&x, &sum, 1, ABC_I32, ABC_SUM, w->own);
        if (w->status == ABC_OK && sum != x * w->r->nranks)
            w->status = ABC_ERR_INTERNAL;
        for (bool done = false; !done && w->status == ABC_OK;) {
            abc_request *q = NULL;
            pthread_mutex_lock(w->lock);
            done = *w->turn % 2 == w->me;
            if (done) {
                w->status = abc_allreduce_start(&x, &sum, 1, ABC_I32, ABC_MAX, w->shared, &q);
                ++*w->turn;
            }
            pthread_mutex_unlock(w->lock);
            if (q)
                w->status = abc_wait(&q);
            else
                nap(0.00002);
        }
    }
    return NULL;
}

static bool two_threads(struct rank *r, abc_comm *a, abc_comm *b, abc_comm *shared, void *(*body)(void *))
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread;
    int turn = 0;
    struct worker w[2] = {{r, a, shared, b, &lock, &turn, 0, ABC_OK}, {r, b, shared, a, &lock, &turn, 1, ABC_OK}};
    if (!check(r, pthread_create(&thread, NULL, body, &w[1]) == 0, "no thread"))
        return false;
    body(&w[0]);
    pthread_join(thread, NULL);
    return check_status(r, w[0].status, ABC_OK, "thread 0") && check_status(r, w[1].status, ABC_OK, "thread 1");
}

static int threads_share(struct rank *r)
{
    abc_comm *a = NULL, *b = NULL;
    bool ok = check_status(r, abc_comm_split(r->comm, 0, 0, &a), ABC_OK, "split") &&
              check_status(r, abc_comm_split(r->comm, 0, 0, &b), ABC_OK, "split") && two_threads(r, a, b, r->comm, work);
    ok = ok && check_status(r, abc_comm_destroy(b), ABC_OK, "destroy") && check_status(r, abc_comm_destroy(a), ABC_OK, "destroy");
    return !ok;
}

/* Two communicators, each thread starts on one and waits for it after the other's: crossed, so each must be driven by whoever
 * waits. */
static void *cross(void *argument)
{
    struct worker *w = argument;
    struct rank mine = {.random = (uint64_t)(w->r->rank * 2 + w->me)}; /* the rank's own dice belong to its first thread */
    for (int i = 0; i < 40 && w->status == ABC_OK; i++) {
        int32_t x[500], sum[500];
        abc_request *q[3];
        for (int k = 0; k < 500; k++)
            x[k] = i + k;
        int started = 0;
        for (; started < 3 && w->status == ABC_OK; started++)
            w->status = abc_allreduce_start(x, sum, 500, ABC_I32, started == 2 ? ABC_SUM : ABC_MIN, w->own, &q[started]);
        random_nap(&mine, 100);
        for (int k = started; k-- > 0 && w->status == ABC_OK;)
            w->status = abc_wait(&q[k]);
    }
    return NULL;
}

static int threads_cross(struct rank *r)
{
    abc_comm *a = NULL;
    bool ok = check_status(r, abc_comm_split(r->comm, 3, -r->rank, &a), ABC_OK, "split");
    ok = ok && two_threads(r, a, r->comm, NULL, cross);
    return !(ok && check_status(r, abc_comm_destroy(a), ABC_OK, "destroy"));
}

/* Both threads start on one communicator without an order between them: all calls are the same, so any order is the same order. */
static void *crowd(void *argument)
{
    struct worker *w = argument;
    for (int i = 0; i < 150 && w->status == ABC_OK; i++) {
        int32_t x = 5, sum = 0;
        abc_request *q;
        if (i % 3 == 0) {
            w->status = abc_allreduce_start(&x, &sum, 1, ABC_I32, ABC_SUM, w->own, &q);
            if (w->status == ABC_OK)
                w->status = abc_wait(&q);
        } else {
            w->status = abc_allreduce(&x, &sum, 1, ABC_I32, ABC_SUM, w->own);
        }
        if (w->status == ABC_OK && sum != 5 * w->r->nranks)
            w->status = ABC_ERR_INTERNAL;
    }
    return NULL;
}

static int threads_crowd(struct rank *r)
{
    return !two_threads(r, r->comm, r->comm, NULL, crowd);
}

/* ---- Callbacks ---- */

struct relay {
    struct rank *r;
    _Atomic int left, bad;
    int32_t value, sum;
    abc_request *q[64];
    int started;
};

/* Each completion starts the next operation. */
static void next_leg(abc_request *request, int status, void *context)
{
    struct relay *relay = context;
    if (status != ABC_OK || relay->sum != relay->value * relay->r->nranks)
        atomic_store(&relay->bad, 1);
    relay->value++;
    if (relay->started < 64) {
        abc_call call;
        abc_call_init(&call, ABC_ALLREDUCE);
        call.in = &relay->value;
        call.out = &relay->sum;
        call.count = 1;
        call.type = ABC_I32;
        call.callback = next_leg;
        call.callback_context = relay;
        int at = relay->started++;
        if (abc_start(relay->r->comm, &call, &relay->q[at]) != ABC_OK)
            atomic_store(&relay->bad, 1);
    }
    atomic_fetch_sub(&relay->left, 1); /* the last word: q[at] is there */
}

static int callbacks(struct rank *r)
{
    struct relay relay = {.r = r, .value = 3, .left = 65};
    abc_call call;
    abc_request *first;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = &relay.value;
    call.out = &relay.sum;
    call.count = 1;
    call.type = ABC_I32;
    call.callback = next_leg;
    call.callback_context = &relay;
    bool ok =
        check_status(r, abc_start(r->comm, &call, &first), ABC_OK, "start") && check_status(r, abc_wait(&first), ABC_OK, "wait");
    double end = now_seconds() + 10;
    for (int i = 0; i < 64 && ok; i++) {
        while (atomic_load(&relay.left) > 64 - i && now_seconds() < end)
            nap(0.0001);
        doing(r, "leg %d", i);
        ok = check(r, atomic_load(&relay.left) <= 64 - i, "leg %d was never started", i);
        ok = ok && check_status(r, abc_wait(&relay.q[i]), ABC_OK, "wait for a leg");
    }
    return !(ok && check(r, !atomic_load(&relay.bad), "a leg was wrong") && check(r, relay.value == 68, "value %d", relay.value));
}

/* Several requests with callbacks at once: each callback runs once, before its request counts as complete. Their order is not
 * promised. */
static void count_one(abc_request *request, int status, void *context)
{
    atomic_fetch_add((_Atomic int *)context, status == ABC_OK ? 1 : 100);
}

static int callbacks_at_once(struct rank *r)
{
    bool ok = true;
    for (int round = 0; round < 50 && ok; round++) {
        _Atomic int calls[8] = {0};
        abc_request *q[8];
        int32_t x[8], sum[8];
        abc_call call;
        abc_call_init(&call, ABC_ALLREDUCE);
        call.count = 1;
        call.type = ABC_I32;
        call.callback = count_one;
        for (int i = 0; i < 8 && ok; i++) {
            x[i] = i;
            call.in = &x[i];
            call.out = &sum[i];
            call.callback_context = (void *)&calls[i];
            random_nap(r, 100);
            ok = check_status(r, abc_start(r->comm, &call, &q[i]), ABC_OK, "start");
        }
        for (int i = 8; i-- > 0 && ok;) {
            ok = check_status(r, abc_wait(&q[i]), ABC_OK, "wait") && check(r, sum[i] == i * r->nranks, "sum %d", i);
            ok = ok && check(r, atomic_load(&calls[i]) == 1, "callback %d ran %d times", i, atomic_load(&calls[i]));
        }
    }
    return !ok;
}

/* ---- Time ---- */

/* Ranks that are late again and again, each time less than the timeout: tested operations must not add the waits up. */
static int late_but_in_time(struct rank *r)
{
    bool ok = true;
    for (int i = 0; i < 5 && ok; i++) {
        int32_t x = 1, sum;
        abc_request *q;
        doing(r, "round %d", i);
        if (r->rank == 1)
            nap(0.4);
        ok = check_status(r, abc_allreduce_start(&x, &sum, 1, ABC_I32, ABC_SUM, r->comm, &q), ABC_OK, "start");
        int status = ABC_PENDING;
        while (ok && (status = abc_test(q)) == ABC_PENDING)
            nap(0.0005);
        ok = ok && check_status(r, status, ABC_OK, "test") && check_status(r, abc_wait(&q), ABC_OK, "wait");
    }
    return !ok;
}

/* One operation is polled, then everyone computes for longer than the timeout: the next operation starts with a clock of its own.
 */
static int long_computing(struct rank *r)
{
    int32_t x = 1, sum;
    abc_request *q;
    bool ok = true;
    for (int i = 0; i < 2 && ok; i++) {
        if (r->rank == 1)
            nap(0.1);
        ok = check_status(r, abc_allreduce_start(&x, &sum, 1, ABC_I32, ABC_SUM, r->comm, &q), ABC_OK, "start");
        int status = ABC_PENDING;
        while (ok && (status = abc_test(q)) == ABC_PENDING)
            nap(0.0005);
        ok = ok && check_status(r, status, ABC_OK, "test after a pause") && check_status(r, abc_wait(&q), ABC_OK, "wait");
        if (i == 0)
            nap(1.3);
    }
    return !ok;
}

/* Many ranks on few CPUs, late at random: every call must end, and none may oversleep a wake-up (100 ms is the longest sleep). */
static int crowded(struct rank *r)
{
    bool ok = true;
    int slept = 0;
    for (int i = 0; i < 300 && ok; i++) {
        int32_t x[40], sum[40];
        for (int k = 0; k < 40; k++)
            x[k] = k + r->rank;
        doing(r, "call %d", i);
        if ((int)(random_next(&r->random) % 16) == 0)
            nap(0.003);
        double start = now_seconds();
        ok = check_status(r, abc_allreduce(x, sum, 40, ABC_I32, ABC_SUM, r->comm), ABC_OK, "allreduce");
        slept += now_seconds() - start > 0.09;
        for (int k = 0; k < 40 && ok; k++)
            ok = check(r, sum[k] == k * r->nranks + r->nranks * (r->nranks - 1) / 2, "element %d", k);
    }
    atomic_fetch_add(&board_words(r->board)[0], slept);
    ok = ok && meet(r);
    int all = atomic_load(&board_words(r->board)[0]);
    if (r->rank == 0 && all)
        printf("    %d of %d calls took 90 ms or more\n", all, 300 * r->nranks);
    return !ok;
}

/* ---- All of it ---- */

static const struct {
    const char *name;
    int (*body)(struct rank *r);
    int nranks;
} scenarios[] = {
    {"reverse 16", reverse_16, 3},       {"reverse 40", reverse_40, 4},       {"test loops", test_loops, 3},
    {"persistent", persistent, 2},       {"callbacks", callbacks, 2},         {"callbacks at once", callbacks_at_once, 3},
    {"threads share", threads_share, 2}, {"threads cross", threads_cross, 3}, {"threads crowd", threads_crowd, 3},
};

int main(int argc, char **argv)
{
    struct options o;
    options_read(argc, argv, &o);
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
        for (int kind = 0; kind < 4; kind++) {
            char name[64];
            snprintf(name, sizeof name, "%s%s", scenarios[i].name, kind & 1 ? ", progress thread" : "");
            struct job job = {
                .name = name, .body = scenarios[i].body, .nranks = scenarios[i].nranks, .threads = kind & 2, .progress = kind & 1};
            job_run(&job);
        }
    job_run(&(struct job){.name = "late but in time", .body = late_but_in_time, .nranks = 2, .timeout = 1});
    job_run(&(struct job){.name = "long computing", .body = long_computing, .nranks = 2, .timeout = 1});
    job_run(&(struct job){.name = "crowded", .body = crowded, .nranks = 16, .limit = 90});
    job_run(&(struct job){.name = "crowded", .body = crowded, .nranks = 16, .threads = true, .limit = 90});
    if (o.full)
        job_run(&(struct job){.name = "crowded", .body = crowded, .nranks = 32, .limit = 200});
    return jobs_end();
}
