/*
 * test_reports.c - what users of other libraries have reported in public, replayed with the ranks, counts and types of the report:
 * calls that disagree, results that were wrong, the ends of communicators. docs/reports.md has the list of all reports, with the
 * thread of each and the test that replays it.
 */
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "harness.h"

static bool ok_status(struct rank *r, int status, const char *what)
{
    return check_status(r, status, ABC_OK, what);
}

/* ---- Calls that disagree ---- */

static int lengths_differ(struct rank *r)
{
    static const uint64_t pairs[][2] = {{256000, 512000}, {1, 2}, {409600, 409598}, {8, 7}, {409600, 3276800}};
    float *in = calloc(3276800, sizeof *in), *out = calloc(3276800, sizeof *out);
    bool ok = check(r, in && out, "no memory");
    for (int i = 0; i < 5 && ok; i++) {
        abc_comm *comm = NULL;
        char words[32];
        doing(r, "counts %llu and %llu", (unsigned long long)pairs[i][0], (unsigned long long)pairs[i][1]);
        ok = ok_status(r, rank_create(r, 0, 0, &comm), "creation");
        int status = ok ? abc_allreduce(in, out, pairs[i][r->rank % 2], ABC_F32, ABC_SUM, comm) : ABC_OK;
        ok = ok && check_status(r, status, ABC_ERR_MISMATCH, "counts that differ");
        for (int k = 0; k < 2 && ok; k++) {
            snprintf(words, sizeof words, "count %llu", (unsigned long long)pairs[i][k]);
            ok = check(r, strstr(abc_last_error(), words) != NULL, "\"%s\" does not say \"%s\"", abc_last_error(), words);
        }
        ok = ok && check_status(r, abc_comm_destroy(comm), ABC_ERR_MISMATCH, "destroy");
    }
    free(in);
    free(out);
    return !ok;
}

/* One rank sends nothing where its peer expects something, the other way round, and what agrees in spite of empty sides. */
static int empty_sides(struct rank *r)
{
    static const uint64_t in[2][2][2] = {{{0, 0}, {0, 0}}, {{1, 1}, {0, 0}}}, out[2][2][2] = {{{0, 7}, {0, 0}}, {{1, 0}, {1, 0}}};
    uint16_t from[64] = {0}, to[64];
    int me = r->rank;
    bool ok = true;
    for (int k = 0; k < 2 && ok; k++) {
        abc_comm *comm = NULL;
        memset(to, 0x5a, sizeof to);
        ok = ok_status(r, rank_create(r, 0, 0, &comm), "creation");
        int status = ok ? abc_alltoallv(from, in[k][me], NULL, to, out[k][me], NULL, ABC_BF16, comm) : ABC_OK;
        if (k == 1) { /* rank 0 gets 1 of itself, rank 1 gets 1 of rank 0: all that is sent is expected */
            ok = ok && ok_status(r, status, "splits that agree") && check(r, to[0] == 0 && to[1] == 0x5a5a, "wrong elements");
            ok = ok && ok_status(r, abc_comm_destroy(comm), "destroy");
            continue;
        }
        for (int turn = 0; turn < 20 && status == ABC_OK; turn++)
            status = abc_barrier(comm);
        ok = ok && check_status(r, status, ABC_ERR_MISMATCH, "7 expected, 0 sent") &&
             check(r, strstr(abc_last_error(), "expects 7") || strstr(abc_last_error(), "get 7"), "%s", abc_last_error());
        ok = ok && check_status(r, abc_comm_destroy(comm), ABC_ERR_MISMATCH, "destroy");
    }
    return !ok;
}

/* ---- Wrong results ---- */

/* 3 ranks, splits [3,2,1], [2,2,2] and [1,2,3]. */
static int uneven_splits(struct rank *r)
{
    static const uint64_t give[3][3] = {{3, 2, 1}, {2, 2, 2}, {1, 2, 3}};
    int32_t in[6], out[9], *at = out;
    uint64_t get[3], place = 0;
    bool ok = true;
    for (int q = 0; q < 3; q++) {
        get[q] = give[q][r->rank];
        for (uint64_t i = 0; i < give[r->rank][q]; i++)
            in[place++] = r->rank * 100 + q * 10 + (int)i;
    }
    ok = ok_status(r, abc_alltoallv(in, give[r->rank], NULL, out, get, NULL, ABC_I32, r->comm), "alltoallv");
    for (int q = 0; q < 3 && ok; q++)
        for (uint64_t i = 0; i < get[q] && ok; i++, at++)
            ok = check(r, *at == q * 100 + r->rank * 10 + (int)i, "element %llu of rank %d is %d", (unsigned long long)i, q, *at);
    return !ok;
}

/* Small whole numbers wrap, in every place of a vector and in its tail. */
static int small_numbers_wrap(struct rank *r)
{
    int16_t in[70], out[70];
    int8_t small_in[70], small_out[70];
    bool ok = true;
    for (uint64_t n = 1; n <= 70 && ok; n++) {
        for (int i = 0; i < 70; i++)
            in[i] = 16384, small_in[i] = 100;
        ok = ok_status(r, abc_allreduce(in, out, n, ABC_I16, ABC_SUM, r->comm), "i16") &&
             ok_status(r, abc_allreduce(small_in, small_out, n, ABC_I8, ABC_SUM, r->comm), "i8");
        for (uint64_t i = 0; i < n && ok; i++)
            ok = check(r, out[i] == -32768 && small_out[i] == -56, "of %llu: element %llu is %d and %d", (unsigned long long)n,
                       (unsigned long long)i, out[i], small_out[i]);
    }
    return !ok;
}

/* A NaN of any rank, in any place, comes out of min and max on every rank, and nowhere else. */
static int nan_everywhere(struct rank *r)
{
    static const abc_op ops[] = {ABC_MIN, ABC_MAX};
    float in[19], out[19];
    bool ok = true;
    for (int k = 0; k < 2 * r->nranks * 19 && ok; k++) {
        int op = k % 2, who = k / 2 % r->nranks, where = k / 2 / r->nranks;
        for (int i = 0; i < 19; i++)
            in[i] = r->rank == who && i == where ? NAN : (float)(r->rank + 1);
        ok = ok_status(r, abc_allreduce(in, out, 19, ABC_F32, ops[op], r->comm), "allreduce");
        for (int i = 0; i < 19 && ok; i++)
            ok = check(r, i == where ? isnan(out[i]) : out[i] == (float)(op ? r->nranks : 1), "NaN at %d of rank %d: %d is %g",
                       where, who, i, (double)out[i]);
    }
    return !ok;
}

/* Odd lengths and lengths around what other libraries change their ways at. */
static int odd_lengths(struct rank *r)
{
    static const uint64_t counts[] = {12, 100, 3000, 49151, 49152, 49153, 131071, 131072, 131073, 262144, 1319573};
    int n = r->nranks;
    float *in = malloc(1319573 * sizeof *in), *out = malloc(1319573 * sizeof *out);
    bool ok = check(r, in && out, "no memory");
    for (int k = 0; k < 11 && ok; k++) {
        for (uint64_t i = 0; i < counts[k]; i++)
            in[i] = (float)((uint64_t)r->rank + i % 1000);
        ok = ok_status(r, abc_allreduce(in, out, counts[k], ABC_F32, ABC_SUM, r->comm), "allreduce");
        for (uint64_t i = 0; i < counts[k] && ok; i++)
            ok = check(r, out[i] == (float)((uint64_t)n * (i % 1000) + (uint64_t)(n * (n - 1) / 2)), "of %llu: element %llu is %g",
                       (unsigned long long)counts[k], (unsigned long long)i, (double)out[i]);
    }
    free(in);
    free(out);
    return !ok;
}

/* f16: eight times 7500 is 60000, and the average of eight times 60000 is 60000, though their sum is no f16. */
static int half_does_not_overflow(struct rank *r)
{
    static const uint16_t h7500 = 0x6f53, h60000 = 0x7b53, tiny = 0x0001;
    uint16_t in[3] = {h7500, h60000, tiny}, out[3] = {0};
    bool ok = ok_status(r, abc_allreduce(in, out, 1, ABC_F16, ABC_SUM, r->comm), "sum") &&
              ok_status(r, abc_allreduce(in + 1, out + 1, 2, ABC_F16, ABC_AVG, r->comm), "average");
    return !(ok && check(r, out[0] == h60000 && out[1] == h60000 && out[2] == tiny, "%04x %04x %04x", out[0], out[1], out[2]));
}

/* Two types in one group, 4 Mi elements of each. */
static int types_in_a_group(struct rank *r)
{
    size_t n = 4u << 20;
    uint16_t *half = malloc(n * 2);
    float *full = malloc(n * 4);
    bool ok = check(r, half && full, "no memory");
    for (size_t i = 0; i < n && ok; i++)
        half[i] = 0x3c00, full[i] = (float)(i % 4096);
    ok = ok && ok_status(r, abc_group_start(), "group_start") &&
         ok_status(r, abc_allreduce(ABC_IN_PLACE, half, n, ABC_F16, ABC_SUM, r->comm), "f16") &&
         ok_status(r, abc_allreduce(ABC_IN_PLACE, full, n, ABC_F32, ABC_SUM, r->comm), "f32") &&
         ok_status(r, abc_group_end(), "group_end");
    for (size_t i = 0; i < n && ok; i++)
        ok = check(r, half[i] == 0x4000 && full[i] == 2 * (float)(i % 4096), "element %zu is %04x and %g", i, half[i],
                   (double)full[i]);
    free(half);
    free(full);
    return !ok;
}

/* ---- The same bits ---- */

#define LONG 70000

/* The first elements do not change when more follow, and all ranks have the same, by every algorithm. */
static int bits_do_not_depend(struct rank *r)
{
    static const char *const algorithms[] = {NULL, "oneshot", "twoshot", "ring", "recdbl", "chain"};
    static const uint64_t lengths[] = {3, 64, 1000, 20000, LONG};
    float *in = malloc(LONG * 4), *out = malloc(LONG * 4), *whole = malloc(LONG * 4),
          *others = malloc((size_t)r->nranks * LONG * 4);
    bool ok = check(r, in && out && whole && others, "no memory");
    for (int i = 0; i < LONG && ok; i++)
        in[i] = (float)(int32_t)random_next(&r->random) * 1e-7f;
    for (int a = 0; a < 6 && ok; a++)
        for (int k = 4; k >= 0 && ok; k--) {
            abc_call call;
            abc_call_init(&call, ABC_ALLREDUCE);
            call.in = in;
            call.out = k == 4 ? whole : out;
            call.count = lengths[k];
            call.algorithm = algorithms[a];
            uint64_t bytes = lengths[k] * 4;
            ok = ok_status(r, abc_run(r->comm, &call), "allreduce") &&
                 ok_status(r, abc_allgather(call.out, others, lengths[k], ABC_F32, r->comm), "allgather");
            for (int p = 0; p < r->nranks && ok; p++)
                ok = check(r, memcmp((char *)others + bytes * (size_t)p, call.out, bytes) == 0, "rank %d has other bits", p);
            bool splits = a == 3; /* which rank is first in a ring depends on the block */
            ok = ok && (splits || check(r, memcmp(call.out, whole, bytes) == 0, "%s: the first %llu differ",
                                        algorithms[a] ? algorithms[a] : "default", (unsigned long long)lengths[k]));
        }
    free(in);
    free(out);
    free(whole);
    free(others);
    return !ok;
}

/* ---- Threads, signals, the end ---- */

struct other_way {
    struct rank *r;
    abc_comm *comm;
    bool ok;
};

static void *large_alltoall(void *argument)
{
    struct other_way *o = argument;
    size_t n = (8u << 20) / 4 / (size_t)o->r->nranks;
    int32_t *in = malloc(8u << 20), *out = malloc(8u << 20);
    o->ok = in && out;
    for (int round = 0; round < 3 && o->ok; round++) {
        for (size_t i = 0; i < n * (size_t)o->r->nranks; i++)
            in[i] = o->r->rank * 1000 + (int)(i / n) + round;
        o->ok = abc_alltoall(in, out, n, ABC_I32, o->comm) == ABC_OK;
        for (size_t i = 0; i < n * (size_t)o->r->nranks && o->ok; i += 97)
            o->ok = out[i] == (int)(i / n) * 1000 + o->r->rank + round;
    }
    free(in);
    free(out);
    return NULL;
}

/* A thread for each of two communicators, 8 MB alltoall on both at once. */
static int two_at_once(struct rank *r)
{
    struct other_way way[2] = {{.r = r}, {.r = r}};
    pthread_t thread;
    bool ok = ok_status(r, abc_comm_split(r->comm, 0, 0, &way[0].comm), "split") &&
              ok_status(r, abc_comm_split(r->comm, 0, -r->rank, &way[1].comm), "split");
    if (!ok || !check(r, abc_comm_rank(way[1].comm) == r->nranks - 1 - r->rank, "keys order the ranks"))
        return 1;
    struct rank reversed = *r;
    reversed.rank = r->nranks - 1 - r->rank;
    way[1].r = &reversed;
    ok = check(r, pthread_create(&thread, NULL, large_alltoall, &way[1]) == 0, "no thread");
    large_alltoall(&way[0]);
    if (ok)
        pthread_join(thread, NULL);
    ok = ok && check(r, way[0].ok && way[1].ok, "wrong: %s", abc_last_error());
    return !(ok && ok_status(r, abc_comm_destroy(way[0].comm), "destroy") &&
             ok_status(r, abc_comm_destroy(way[1].comm), "destroy"));
}

static void on_signal(int number)
{
    (void)number;
}

/* A profiler's signals, 1000 a second of CPU time and of the clock, from the creation to the destruction. */
static int under_signals(struct rank *r)
{
    struct sigaction act = {.sa_handler = on_signal}; /* no SA_RESTART */
    struct itimerval fast = {{0, 1000}, {0, 1000}}, none = {{0, 0}, {0, 0}};
    sigaction(SIGPROF, &act, NULL);
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_PROF, &fast, NULL);
    setitimer(ITIMER_REAL, &fast, NULL);
    bool ok = true;
    float in[5000] = {1}, out[5000];
    for (int i = 0; i < 5 && ok; i++) {
        abc_comm *comm = NULL;
        ok = ok_status(r, rank_create(r, 0, 0, &comm), "creation");
        for (int k = 0; k < 300 && ok; k++)
            ok = ok_status(r, abc_allreduce(in, out, 5000, ABC_F32, ABC_SUM, comm), "allreduce") &&
                 check(r, out[0] == (float)r->nranks, "sum %g", (double)out[0]);
        ok = ok && ok_status(r, abc_comm_destroy(comm), "destroy");
    }
    setitimer(ITIMER_PROF, &none, NULL);
    setitimer(ITIMER_REAL, &none, NULL);
    return !ok;
}

/* The library leaves the caller's CPUs as they were. */
static int affinity_stays(struct rank *r)
{
    cpu_set_t before, after;
    abc_comm *comm = NULL;
    sched_getaffinity(0, sizeof before, &before);
    bool ok = ok_status(r, rank_create(r, 1, 0, &comm), "creation") && ok_status(r, abc_barrier(comm), "barrier");
    sched_getaffinity(0, sizeof after, &after);
    ok = ok && check(r, CPU_EQUAL(&before, &after), "the CPUs of the thread have changed") &&
         ok_status(r, abc_comm_destroy(comm), "destroy");
    sched_getaffinity(0, sizeof after, &after);
    return !(ok && check(r, CPU_EQUAL(&before, &after), "the CPUs of the thread have changed at the end"));
}

/* 100 started calls, all waited for, and the end at once: nobody is told of an error. */
static int many_then_destroy(struct rank *r)
{
    bool ok = true;
    int32_t in[4] = {r->rank, r->rank, r->rank, r->rank}, out[100][4];
    for (int round = 0; round < 20 && ok; round++) {
        abc_comm *comm = NULL;
        abc_request *q[100] = {NULL};
        ok = ok_status(r, rank_create(r, round % 2, 0, &comm), "creation");
        for (int i = 0; i < 100 && ok; i++)
            ok = ok_status(r, abc_alltoall_start(in, out[i], 1, ABC_I32, comm, &q[i]), "start");
        for (int i = 0; i < 100 && ok; i++)
            ok = ok_status(r, abc_wait(&q[i]), "wait") && check(r, out[i][r->nranks - 1] == r->nranks - 1, "wrong element");
        ok = ok && ok_status(r, abc_comm_destroy(comm), "destroy");
    }
    return !ok;
}

/* Three of four ranks destroy their communicator; the fourth does so later. Nobody waits for it. */
static int not_all_destroy(struct rank *r)
{
    abc_comm *comm = NULL;
    bool ok = ok_status(r, rank_create(r, 0, 0, &comm), "creation") && ok_status(r, abc_barrier(comm), "barrier");
    double start = now_seconds();
    if (r->rank == 3)
        nap(1.5);
    else
        start = now_seconds();
    ok = ok && ok_status(r, abc_comm_destroy(comm), "destroy");
    return !(ok && (r->rank == 3 || check(r, now_seconds() - start < 1, "destroy took %.1f s", now_seconds() - start)));
}

static long resident_pages(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%*s %ld", &pages) != 1)
        pages = -1;
    if (f)
        fclose(f);
    return pages;
}

#ifdef __SANITIZE_ADDRESS__
#define GROWTH LONG_MAX /* what is freed stays, to catch late users; leaks are told at the end */
#else
#define GROWTH 64
#endif

static int groups_keep_no_memory(struct rank *r)
{
    float in[2][4] = {{1}, {2}}, out[2][4];
    long after_first = 0;
    bool ok = true;
    for (int i = 0; i < 30000 && ok; i++) {
        ok = ok_status(r, abc_group_start(), "group_start") &&
             ok_status(r, abc_allreduce(in[0], out[0], 4, ABC_F32, ABC_SUM, r->comm), "sum") &&
             ok_status(r, abc_allreduce(in[1], out[1], 4, ABC_F32, ABC_MAX, r->comm), "max") &&
             ok_status(r, abc_group_end(), "group_end");
        if (i == 3000)
            after_first = resident_pages();
    }
    long grown = resident_pages() - after_first;
    return !(ok && check(r, after_first > 0 && grown < GROWTH, "27000 groups kept %ld pages", grown));
}

int main(int argc, char **argv)
{
    struct options o;
    options_read(argc, argv, &o);
    const struct job jobs[] = {
        {"lengths differ", lengths_differ, .nranks = 4, .no_comm = true},
        {"lengths differ", lengths_differ, .nranks = 8, .no_comm = true},
        {"empty sides", empty_sides, .nranks = 2, .no_comm = true},
        {"uneven splits", uneven_splits, .nranks = 3},
        {"small numbers wrap", small_numbers_wrap, .nranks = 2},
        {"NaN everywhere", nan_everywhere, .nranks = 2},
        {"NaN everywhere", nan_everywhere, .nranks = 4},
        {"odd lengths", odd_lengths, .nranks = 3},
        {"odd lengths", odd_lengths, .nranks = 6},
        {"odd lengths", odd_lengths, .nranks = 8},
        {"half does not overflow", half_does_not_overflow, .nranks = 8},
        {"types in a group", types_in_a_group, .nranks = 2},
        {"bits do not depend", bits_do_not_depend, .nranks = 3},
        {"bits do not depend", bits_do_not_depend, .nranks = 6},
        {"bits do not depend", bits_do_not_depend, .nranks = 7},
        {"two at once", two_at_once, .nranks = 4},
        {"under signals", under_signals, .nranks = 2, .no_comm = true},
        {"affinity stays", affinity_stays, .nranks = 2, .no_comm = true},
        {"many, then destroy", many_then_destroy, .nranks = 4, .no_comm = true},
        {"not all destroy", not_all_destroy, .nranks = 4, .no_comm = true},
        {"groups keep no memory", groups_keep_no_memory, .nranks = 2},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        job_run(&jobs[i]);
    return jobs_end();
}
