/*
 * test_waits.c - how ranks and threads wait: a timeout counts from the beginning of each wait, however one waits; callbacks run in
 * the order of completion; who waits for a callback in another thread sleeps; a sleeping rank is rung by each rank that it waits
 * for. Links the testing library.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm/comm.h"
#include "harness.h"

/* ---- Timeouts: 0.5 s; rank 1 is late again and again, by less ---- */

#define LATE 0.12
#define VALUES 12288 /* 12 chunks of 4 KiB */

enum how { BY_TEST, BY_WAIT, BLOCKING };
static int32_t in[VALUES], out[VALUES];

static bool finish(struct rank *r, abc_request *q, bool by_test)
{
    int status = ABC_PENDING;
    while (by_test && (status = abc_test(q)) == ABC_PENDING)
        ;
    return (!by_test || check_status(r, status, ABC_OK, "test")) && check_status(r, abc_wait(&q), ABC_OK, "wait");
}

static bool operation(struct rank *r, uint64_t count, enum how how)
{
    abc_request *q;
    if (how == BLOCKING)
        return check_status(r, abc_allreduce(in, out, count, ABC_I32, ABC_SUM, r->comm), ABC_OK, "allreduce");
    return check_status(r, abc_allreduce_start(in, out, count, ABC_I32, ABC_SUM, r->comm, &q), ABC_OK, "start") &&
           finish(r, q, how == BY_TEST);
}

/* Polled, then both compute for longer than the timeout, then waited for. */
static int after_a_pause(struct rank *r)
{
    nap(r->rank == 1 ? LATE : 0);
    bool ok = operation(r, 10, BY_TEST);
    nap(r->rank == 1 ? 0.9 : 0.7);
    return !(ok && operation(r, 10, BY_WAIT));
}

/* Looked at once and left alone for longer than the timeout: the next start finds it complete, and its own wait is new. */
static int after_a_look(struct rank *r)
{
    abc_request *first, *second;
    nap(r->rank == 1 ? LATE : 0);
    bool ok = check_status(r, abc_allreduce_start(in, out, 10, ABC_I32, ABC_SUM, r->comm, &first), ABC_OK, "start");
    for (double end = now_seconds() + LATE / 2; r->rank == 0 && ok && now_seconds() < end;)
        abc_test(first);
    nap(r->rank == 1 ? 0.9 : 0.7);
    ok = ok && check_status(r, abc_allreduce_start(in, out + 20, 10, ABC_I32, ABC_SUM, r->comm, &second), ABC_OK, "start");
    return !(ok && finish(r, second, false) && finish(r, first, false));
}

static bool row(struct rank *r, enum how how)
{
    bool ok = true;
    for (int i = 0; i < 6 && ok; i++) {
        doing(r, "operation %d, waited for in way %d", i, (int)how);
        nap(r->rank == 1 ? LATE : 0);
        ok = operation(r, 10, how);
    }
    return ok;
}

static int rows(struct rank *r)
{
    return !(row(r, BY_TEST) && row(r, BY_WAIT) && row(r, BLOCKING));
}

static void late_header(int rank, uint32_t sequence, int step)
{
    if (rank == 1 && step == ABCI_STOP_HEADER && sequence % 2 == 0)
        nap(LATE);
}

/* One operation, whose parts are late one after the other. */
static int late_parts(struct rank *r)
{
    bool ok = true;
    abci_hook = late_header;
    for (int how = BY_TEST; how <= BLOCKING && ok; how++) {
        doing(r, "way %d", how);
        ok = operation(r, VALUES, (enum how)how);
    }
    return !ok;
}

/* ---- Callbacks ---- */

static int order[8], ran;
static double slow;

static void note(abc_request *request, int status, void *context)
{
    int mine = *(int *)context;
    order[ran++ % 8] = status == ABC_OK ? mine : -1;
    if (mine == 0)
        nap(slow);
}

/* Eight operations with callbacks that are all complete as soon as rank 0 looks at them. */
static bool start_eight(struct rank *r, abc_request *q[8], int number[8])
{
    abc_call call;
    bool ok = true;
    if (r->rank != 0)
        ok = meet(r);
    abc_call_init(&call, ABC_ALLREDUCE);
    call.count = 4;
    call.type = ABC_I32;
    call.callback = note;
    for (int i = 0; i < 8 && ok; i++) {
        number[i] = i;
        call.in = in + 4 * i;
        call.out = out + 4 * i;
        call.callback_context = &number[i];
        ok = check_status(r, abc_start(r->comm, &call, &q[i]), ABC_OK, "start");
    }
    return ok && (r->rank != 0 || meet(r)) && meet(r);
}

static int in_order(struct rank *r)
{
    bool ok = true;
    for (int round = 0; round < 5 && ok; round++) {
        abc_request *q[8];
        int number[8];
        ran = 0;
        ok = start_eight(r, q, number);
        for (int i = 8; i-- > 0 && ok;)
            ok = check_status(r, abc_wait(&q[i]), ABC_OK, "wait");
        for (int i = 0; i < 8 && ok && r->rank == 0; i++)
            ok = check(r, order[i] == i, "callback %d ran as number %d", order[i], i);
    }
    return !ok;
}

static void *wait_for_first(void *argument)
{
    abc_request **q = argument;
    return abc_wait(q) == ABC_OK ? NULL : argument;
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Another thread runs a slow callback; the one of this thread's request comes after it. */
static int sleeps_meanwhile(struct rank *r)
{
    abc_request *q[8];
    int number[8];
    pthread_t thread;
    void *bad = NULL;
    slow = r->rank == 0 ? 0.5 : 0;
    ran = 0;
    bool ok = start_eight(r, q, number) && check(r, pthread_create(&thread, NULL, wait_for_first, &q[0]) == 0, "no thread");
    if (!ok)
        return 1;
    nap(0.15); /* by now it is in the callback */
    double cpu = cpu_seconds(), start = now_seconds();
    ok = check_status(r, abc_wait(&q[7]), ABC_OK, "wait");
    cpu = cpu_seconds() - cpu;
    if (r->rank == 0)
        ok = ok && check(r, now_seconds() - start > 0.2, "it did not wait: nothing was shown") &&
             check(r, cpu < 0.1, "it took %.2f s of CPU time to wait", cpu);
    pthread_join(thread, &bad);
    for (int i = 1; i < 7 && ok; i++)
        ok = check_status(r, abc_wait(&q[i]), ABC_OK, "wait");
    return !(ok && check(r, !bad, "the thread's wait failed"));
}

/* ---- One rank waits for many ---- */

#define CROWD 24

/* By the algorithm whose steps wait for a peer each, at the same time. */
static bool gather(struct rank *r, const int32_t *mine, int32_t *all, uint64_t count)
{
    abc_call call;
    abc_call_init(&call, ABC_ALLGATHER);
    call.in = mine;
    call.out = all;
    call.count = count;
    call.type = ABC_I32;
    call.algorithm = "oneshot";
    return check_status(r, abc_run(r->comm, &call), ABC_OK, "allgather");
}

/* Nobody goes on before rank 0 has left all of them a note that it waits. */
static int notes_for_all(struct rank *r)
{
    int32_t mine = r->rank, all[CROWD];
    _Atomic int *noted = &board_words(r->board)[0];
    bool mine_noted = r->rank == 0;
    for (double end = now_seconds() + 5; r->rank > 0 && atomic_load(noted) < CROWD - 1 && now_seconds() < end; nap(0.001))
        if (!mine_noted && atomic_load(&r->comm->shm->control->waiters) & 1) {
            mine_noted = true;
            atomic_fetch_add(noted, 1);
        }
    bool ok = check(r, mine_noted, "rank 0 waits, but has not noted it here");
    ok = gather(r, &mine, all, 1) && ok;
    for (int i = 0; i < CROWD && ok; i++)
        ok = check(r, all[i] == i, "block %d", i);
    return !ok;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How long after the last rank's call does a rank return? At the median far less than the longest sleep. */
static int timely(struct rank *r)
{
    enum { ROUNDS = 15 };
    int32_t part[16] = {0}, all[16 * CROWD];
    double late[ROUNDS], zero = (double)atomic_load(&board_words(r->board)[CROWD]);
    bool ok = true;
    for (int i = 0; i < ROUNDS && ok; i++) {
        random_nap(r, 20000);
        atomic_store(&board_words(r->board)[r->rank], (int)((now_seconds() - zero) * 1e6));
        ok = gather(r, part, all, 16);
        int now = (int)((now_seconds() - zero) * 1e6), last = 0;
        for (int k = 0; k < CROWD; k++) {
            int start = atomic_load(&board_words(r->board)[k]);
            last = start > last ? start : last;
        }
        late[i] = 1e-6 * (now - last);
        ok = ok && meet(r);
    }
    qsort(late, ROUNDS, sizeof *late, by_size);
    return !(ok &&
             check(r, late[ROUNDS / 2] < 0.05, "the median call ends %.0f ms after the last rank came", 1e3 * late[ROUNDS / 2]));
}

static int timely_since(struct rank *r)
{
    if (r->rank == 0)
        atomic_store(&board_words(r->board)[CROWD], (int)now_seconds()); /* so that microseconds fit an int */
    return meet(r) ? timely(r) : 1;
}

int main(int argc, char **argv)
{
    struct options o;
    static const char *const no_spin[] = {"ABCOMM_SPIN=0", "ABCOMM_CHUNK=4K", "ABCOMM_PIPELINE=1", NULL};
    options_read(argc, argv, &o);
    for (int spin = 0; spin < 2; spin++) {
        const char *const *environment = spin ? &no_spin[1] : no_spin;
        struct job job = {.nranks = 2, .timeout = 0.5, .environment = environment};
        static const struct {
            const char *name;
            int (*body)(struct rank *r);
        } late[] = {{"a pause", after_a_pause}, {"a look", after_a_look}, {"rows", rows}, {"late parts", late_parts}};
        for (size_t i = 0; i < sizeof late / sizeof late[0]; i++) {
            if (spin && late[i].body != rows)
                continue;
            char name[64];
            snprintf(name, sizeof name, "%s%s", late[i].name, spin ? "" : ", no spinning");
            job.name = name;
            job.body = late[i].body;
            job_run(&job);
        }
    }
    job_run(&(struct job){.name = "callbacks in order", .body = in_order, .nranks = 2});
    job_run(&(struct job){.name = "sleeps during a callback", .body = sleeps_meanwhile, .nranks = 2});
    job_run(&(struct job){.name = "notes for all", .body = notes_for_all, .nranks = CROWD, .threads = true});
    job_run(&(struct job){.name = "timely", .body = timely_since, .nranks = CROWD});
    return jobs_end();
}
