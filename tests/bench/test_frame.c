/* test_frame.c - the clock frame of the benchmarks between forked ranks: barriers hold, times are true, nobody waits for the dead.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../tools/bench.h"

enum { RANKS = 3, SLEEP_MS = 20 };

/* One pipe a rank carries what rank 0 shares. */
struct wires {
    int rank, nranks;
    int pipe[RANKS][2];
};

static int share_by_pipe(void *context, void *data, size_t bytes)
{
    struct wires *w = context;
    if (w->rank > 0)
        return read(w->pipe[w->rank][0], data, bytes) == (ssize_t)bytes ? 0 : -1;
    for (int r = 1; r < w->nranks; r++)
        if (write(w->pipe[r][1], data, bytes) != (ssize_t)bytes)
            return -1;
    return 0;
}

typedef int body_fn(struct bench_frame *f);

/* Run body as all ranks of a frame; it returns 0 for right, or the line that is not. */
static void as_ranks(int nranks, body_fn *body)
{
    struct wires w = {.nranks = nranks};
    pid_t children[RANKS];
    for (int r = 0; r < nranks; r++)
        assert_int_equal(pipe(w.pipe[r]), 0);
    for (w.rank = 0; w.rank < nranks; w.rank++) {
        children[w.rank] = fork();
        if (children[w.rank] == 0) {
            struct bench_frame f;
            alarm(20);
            if (bench_frame_open(&f, w.rank, nranks, false, share_by_pipe, &w) != 0)
                _exit(1);
            int line = body(&f);
            if (line)
                print_error("rank %d: line %d\n", w.rank, line);
            bench_frame_close(&f);
            _exit(line ? 1 : 0);
        }
    }
    int bad = 0;
    for (int r = 0; r < nranks; r++) {
        int state = -1;
        waitpid(children[r], &state, 0);
        bad += state != 0;
        close(w.pipe[r][0]);
        close(w.pipe[r][1]);
    }
    assert_int_equal(bad, 0);
}

#define EXPECT(x)                                                                                                                  \
    if (!(x))                                                                                                                      \
    return __LINE__

static void nap(void)
{
    nanosleep(&(struct timespec){0, SLEEP_MS * 1000000}, NULL);
}

/* The time of a call is that of its slowest rank, and every rank learns it. */
static int slowest_counts(struct bench_frame *f)
{
    EXPECT(bench_frame_begin(f) == 0);
    if (f->rank == f->nranks - 1)
        nap();
    double us = bench_frame_end(f);
    EXPECT(us >= SLEEP_MS * 1000 - 1100 && us < 5e6);
    EXPECT(bench_frame_max(f, us) == us);
    EXPECT(bench_frame_sum(f, (uint64_t)f->rank + 1) == (uint64_t)(f->nranks * (f->nranks + 1) / 2));
    EXPECT(bench_frame_max(f, f->rank == 1 ? 5.5 : 1) == 5.5);
    return 0;
}

static int nothing_is_short(struct bench_frame *f)
{
    double samples[100], bare[100], chain[100];
    for (int i = 0; i < 100; i++) {
        EXPECT(bench_frame_begin(f) == 0);
        samples[i] = bench_frame_end(f);
        EXPECT(samples[i] >= 0);
        bare[i] = bench_frame_exchange(f);
        EXPECT(bare[i] >= 0);
        chain[i] = bench_frame_chain(f);
        EXPECT(chain[i] >= 0);
    }
    double floor = bench_percentile(samples, 100, 0.25), exchange = bench_percentile(bare, 100, 0.5);
    EXPECT(floor < 20);
    EXPECT(exchange > 0 || f->crowded);
    EXPECT(bench_percentile(chain, 100, 0.5) > 0);
    return 0;
}

/* One rank gives up; the others do not wait for it. */
static int giving_up_is_seen(struct bench_frame *f)
{
    EXPECT(bench_frame_barrier(f) == 0);
    if (f->rank == 1) {
        nap();
        bench_frame_fail(f);
        return 0;
    }
    EXPECT(bench_frame_barrier(f) == -1);
    EXPECT(bench_frame_begin(f) == -1);
    return 0;
}

static void test_slowest(void **state)
{
    as_ranks(2, slowest_counts);
    as_ranks(3, slowest_counts);
}

static void test_nothing(void **state)
{
    as_ranks(2, nothing_is_short);
    as_ranks(3, nothing_is_short);
}

static void test_giving_up(void **state)
{
    as_ranks(2, giving_up_is_seen);
    as_ranks(3, giving_up_is_seen);
}

/* Rank 0 cannot share: nobody hangs. */
static int share_fails(void *context, void *data, size_t bytes)
{
    return -1;
}

static void test_no_share(void **state)
{
    struct bench_frame f;
    assert_int_equal(bench_frame_open(&f, 0, 2, false, share_fails, NULL), -1);
    assert_null(f.board);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slowest),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_giving_up),
        cmocka_unit_test(test_no_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
