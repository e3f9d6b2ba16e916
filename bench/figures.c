/*
 * figures.c - measures the figures that the library promises beside its speed, one a run, as a job:
 *   abcomm run -n RANKS -- figures NAME [--count N] [--bytes N] [--seconds S] [--factor F]
 * Rank 0 prints "name value unit goal ok|over" lines; the exit code is 1 when one is over. --factor makes goals so many times
 * easier: tests use 10. figures.py runs them all, and `steady` under strace. Names: see the table at the end.
 */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../tools/bench.h"
#include "base/base.h"
#include "usage.h"

#define SAMPLES 400
#define LEVEL_STEPS 6
#define MARK 0x7ffffff1 /* no process: getpgid of it marks a place in a trace of system calls */

static struct {
    struct bench_frame frame;
    abc_comm *comm;
    int rank, nranks;
    int count;      /* operations or communicators */
    size_t bytes;   /* of a message */
    double seconds; /* how late the slow peer is */
    double factor;
    int over;                        /* figures over their goal */
    double create_begin, create_end; /* of the first communicator */
    struct usage before, after;      /* the same */
} run = {.factor = 1};

static void fail(const char *what)
{
    fprintf(stderr, "figures: rank %d: %s\n", run.rank, what);
    bench_frame_fail(&run.frame);
    exit(1);
}

static void must(int status)
{
    if (status != ABC_OK)
        fail(abc_last_error());
}

/* One line. `sign` is '<' for goals that may not be exceeded, '>' for those to reach. */
static void show(const char *name, double value, const char *unit, char sign, double goal)
{
    double limit = sign == '<' ? goal * run.factor : goal / run.factor;
    int ok = sign == '<' ? value <= limit : value >= limit;
    run.over += !ok;
    if (run.rank == 0)
        printf("%s %.4g %s %c=%g %s\n", name, value, unit, sign, limit, ok ? "ok" : "over");
}

/* A value without a goal. */
static void note(const char *name, double value, const char *unit)
{
    if (run.rank == 0)
        printf("%s %.4g %s - ok\n", name, value, unit);
}

static const char *named(const char *format, int number)
{
    static char name[64];
    snprintf(name, sizeof name, format, number);
    return name;
}

static double timed(double us)
{
    if (us < 0)
        fail("the ranks are no more together");
    return us;
}

static double median(double *samples)
{
    return bench_percentile(samples, SAMPLES, 0.5);
}

/* One timed float32 sum with fresh data and a check. */
static double allreduce(float *in, float *out, size_t bytes, const char *algorithm)
{
    static uint32_t iteration;
    uint32_t limit = bench_data_limit(ABC_F32, run.nranks), seeds[64];
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = in;
    call.out = out;
    call.count = bytes / sizeof(float);
    call.type = ABC_F32;
    call.op = ABC_SUM;
    call.algorithm = algorithm;
    iteration++;
    for (int r = 0; r < run.nranks; r++)
        seeds[r] = bench_seed(iteration, r);
    bench_fill(in, ABC_F32, limit, seeds[run.rank], 0, call.count);
    if (bench_frame_begin(&run.frame) != 0)
        fail("the ranks are no more together");
    must(abc_run(run.comm, &call));
    double us = timed(bench_frame_end(&run.frame));
    if (bench_check(out, ABC_F32, ABC_SUM, limit, seeds, run.nranks, 0, call.count) != 0)
        fail("a result is wrong");
    return us;
}

static void figure_handoff(void)
{
    static float in[16], out[16];
    double ours[SAMPLES], bare[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        ours[i] = allreduce(in, out, 8, NULL);
        bare[i] = timed(bench_frame_exchange(&run.frame));
    }
    show(named("8B-over-handoff-%d", run.nranks), median(ours) - median(bare), "us", '<', 0.15);
    note(named("handoff-%d", run.nranks), median(bare), "us");
}

static void figure_chain(void)
{
    static float in[16], out[16];
    double ours[SAMPLES], bare[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        ours[i] = allreduce(in, out, 8, "chain");
        bare[i] = timed(bench_frame_chain(&run.frame));
    }
    int hops = 2 * (run.nranks - 1);
    note(named("chain-hop-%d", run.nranks), median(ours) / hops, "us");
    show(named("chain-hop-over-handoff-%d", run.nranks), median(ours) / median(bare), "ratio", '<', 1.3);
}

/* The better quarter of sums of several sizes, to be compared with those of another process that has other settings. */
static void figure_sums(void)
{
    static const size_t sizes[] = {8, 8192, 524288};
    static double samples[SAMPLES];
    float *in = malloc(524288), *out = malloc(524288);
    if (!in || !out)
        fail("no memory");
    for (int s = 0; s < 3; s++) {
        int n = sizes[s] > 8192 ? SAMPLES / 4 : SAMPLES;
        for (int i = 0; i < n; i++)
            samples[i] = allreduce(in, out, sizes[s], NULL);
        char name[64];
        snprintf(name, sizeof name, "sum-%d-%zuB", run.nranks, sizes[s]);
        note(name, bench_percentile(samples, (size_t)n, 0.25), "us");
    }
    free(in);
    free(out);
}

/* One call after the other, as bench/figures_python.py makes them. */
static void figure_loop(void)
{
    static float in[2], out[2];
    int count = run.count ? run.count : 100000;
    for (int i = 0; i < count / 10; i++)
        must(abc_allreduce(in, out, 2, ABC_F32, ABC_SUM, run.comm));
    must(bench_frame_barrier(&run.frame));
    double begin = abci_now();
    for (int i = 0; i < count; i++)
        must(abc_allreduce(in, out, 2, ABC_F32, ABC_SUM, run.comm));
    note(named("loop-8B-%d", run.nranks), bench_frame_max(&run.frame, abci_now() - begin) / count * 1e6, "us");
}

static void figure_default(void)
{
    static float in[1024], out[1024];
    static const size_t sizes[] = {8, 64, 512, 4096};
    double chain[SAMPLES], chosen[SAMPLES];
    for (int s = 0; s < 4; s++) {
        for (int i = 0; i < SAMPLES; i++) {
            chain[i] = allreduce(in, out, sizes[s], "chain");
            chosen[i] = allreduce(in, out, sizes[s], NULL);
        }
        char name[64];
        snprintf(name, sizeof name, "chain-over-default-%d-%zuB", run.nranks, sizes[s]);
        show(name, median(chain) / median(chosen), "ratio", '>', 2.1);
    }
}

/* The first communicator of the processes: from the last rank's start to the last rank's end. */
static void figure_create(void)
{
    double begin = bench_frame_max(&run.frame, run.create_begin), end = bench_frame_max(&run.frame, run.create_end);
    double touched = bench_frame_max(&run.frame, run.after.touched_kib - run.before.touched_kib);
    show(named("create-%d", run.nranks), (end - begin) * 1e3, "ms", '<', 150);
    show(named("create-touched-%d", run.nranks), touched, "KiB", '<', 1024);
}

static void figure_memory(void)
{
    size_t bytes = run.bytes ? run.bytes : 32u << 20;
    float *in = malloc(bytes), *out = malloc(bytes);
    abc_comm *first = run.comm, *second = NULL;
    if (!in || !out)
        fail("no memory");
    must(abc_comm_split(first, 0, run.rank, &second));
    for (int i = 0; i < 2; i++) {
        allreduce(in, out, bytes, NULL);
        run.comm = second;
    }
    run.comm = first;
    struct usage u;
    if (usage_read(&u) != 0)
        fail("/proc/self/smaps_rollup cannot be read");
    double pss = bench_frame_max(&run.frame, u.pss_kib - 2.0 * (double)bytes / 1024);
    show(named("pss-beyond-buffers-%d", run.nranks), pss / 1024, "MiB", '<', 32);
    must(abc_comm_destroy(second));
    free(in);
    free(out);
}

static void mark(void)
{
    syscall(SYS_getpgid, MARK);
}

/* Operations in a row, nothing between them. figures.py counts the system calls between the marks. */
static void figure_steady(void)
{
    size_t bytes = run.bytes ? run.bytes : 8;
    int count = run.count ? run.count : 100000;
    float *in = calloc(1, bytes), *out = calloc(1, bytes);
    if (!in || !out)
        fail("no memory");
    for (int i = 0; i < 1000 && i < count; i++)
        must(abc_allreduce(in, out, bytes / sizeof(float), ABC_F32, ABC_SUM, run.comm));
    must(bench_frame_barrier(&run.frame));
    int64_t before = usage_allocations();
    mark();
    for (int i = 0; i < count; i++)
        must(abc_allreduce(in, out, bytes / sizeof(float), ABC_F32, ABC_SUM, run.comm));
    mark();
    int64_t after = usage_allocations();
    must(bench_frame_barrier(&run.frame));
    uint64_t allocations = bench_frame_sum(&run.frame, (uint64_t)(after - before));
    if (before >= 0)
        show(named(bytes > 8 ? "allocations-large-in-%d" : "allocations-8B-in-%d", count), (double)allocations, "calls", '<', 0);
    free(in);
    free(out);
}

static void show_growth(const char *what, int count, const struct usage *a, const struct usage *b)
{
    const struct {
        const char *name, *unit;
        double value, goal;
    } rows[] = {{"memory", "KiB", b->touched_kib - a->touched_kib, 64},
                {"descriptors", "count", b->descriptors - a->descriptors, 0},
                {"threads", "count", b->threads - a->threads, 0},
                {"segments", "count", b->segments - a->segments, 0}};
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "growth-%d-%s-of-%d-%s", count, what, run.nranks, rows[i].name);
        show(name, bench_frame_max(&run.frame, rows[i].value), rows[i].unit, '<', rows[i].goal);
    }
}

static void growth_step(int communicators)
{
    static float in[256], out[256];
    abc_comm *comm = NULL;
    if (communicators)
        must(abc_comm_split(run.comm, 0, run.rank, &comm));
    must(abc_allreduce(in, out, 256, ABC_F32, ABC_SUM, comm ? comm : run.comm));
    must(abc_comm_destroy(comm));
}

static double pick(double a, double b, int most)
{
    return (a > b) == most ? a : b;
}

/*
 * What is in use over a few steps, at the most or at the least. destroy may leave the release of one communicator's parts to the
 * next call, so single readings differ by that; growth is what the least afterwards exceeds the most before by.
 */
static void read_level(int communicators, int most, struct usage *level)
{
    for (int i = 0; i < LEVEL_STEPS; i++) {
        struct usage u;
        growth_step(communicators);
        must(bench_frame_barrier(&run.frame));
        if (usage_read(&u) != 0)
            fail("/proc/self/smaps_rollup cannot be read");
        must(bench_frame_barrier(&run.frame));
        if (i == 0)
            *level = u;
        level->touched_kib = pick(u.touched_kib, level->touched_kib, most);
        level->descriptors = (int)pick(u.descriptors, level->descriptors, most);
        level->threads = (int)pick(u.threads, level->threads, most);
        level->segments = (int)pick(u.segments, level->segments, most);
    }
}

static void measure_growth(const char *what, int communicators, int warmup, int count)
{
    struct usage a, b;
    for (int i = 0; i < warmup; i++)
        growth_step(communicators);
    read_level(communicators, 1, &a);
    for (int i = 0; i < count; i++)
        growth_step(communicators);
    read_level(communicators, 0, &b);
    show_growth(what, count, &a, &b);
}

static void figure_operations(void)
{
    measure_growth("operations", 0, 1000, run.count ? run.count : 10000);
}

static void figure_communicators(void)
{
    int count = run.count ? run.count : (run.nranks > 2 ? 50 : 1000);
    measure_growth("communicators", 1, 10, count);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* The last rank comes late; the others wait inside the call. */
static void figure_wait(void)
{
    static float in[16], out[16];
    double seconds = run.seconds > 0 ? run.seconds : 10;
    must(bench_frame_barrier(&run.frame));
    double cpu = cpu_seconds(), begin = abci_now();
    if (run.rank == run.nranks - 1)
        nanosleep(&(struct timespec){(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)}, NULL);
    must(abc_allreduce(in, out, 16, ABC_F32, ABC_SUM, run.comm));
    double share = 100 * (cpu_seconds() - cpu) / (abci_now() - begin);
    show(named("waiting-cpu-%d", run.nranks), bench_frame_max(&run.frame, share), "percent", '<', 1);
}

static const struct {
    const char *name;
    void (*run)(void);
} figures[] = {{"handoff", figure_handoff},
               {"chain", figure_chain},
               {"default", figure_default},
               {"sums", figure_sums},
               {"loop", figure_loop},
               {"create", figure_create},
               {"memory", figure_memory},
               {"steady", figure_steady},
               {"operations", figure_operations},
               {"communicators", figure_communicators},
               {"wait", figure_wait}};
#define FIGURES (sizeof figures / sizeof figures[0])

static int usage_error(void)
{
    fprintf(stderr, "usage: abcomm run -n RANKS -- figures NAME [--count N] [--bytes N] [--seconds S] [--factor F]\nnames:");
    for (size_t i = 0; i < FIGURES; i++)
        fprintf(stderr, " %s", figures[i].name);
    fputc('\n', stderr);
    return 2;
}

static int share_by_broadcast(void *comm, void *data, size_t bytes)
{
    return abc_broadcast(data, data, bytes / 4, ABC_I32, 0, comm);
}

static void open_job(void)
{
    usage_read(&run.before);
    run.create_begin = abci_now();
    must(abc_comm_create(NULL, &run.comm));
    run.create_end = abci_now();
    usage_read(&run.after);
    run.rank = abc_comm_rank(run.comm);
    run.nranks = abc_comm_size(run.comm);
    if (run.nranks > 64)
        fail("64 ranks at most");
    if (bench_frame_open(&run.frame, run.rank, run.nranks, true, share_by_broadcast, run.comm) != 0)
        fail("no common frame");
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"count", required_argument, NULL, 'c'},
                                            {"bytes", required_argument, NULL, 'b'},
                                            {"seconds", required_argument, NULL, 's'},
                                            {"factor", required_argument, NULL, 'f'},
                                            {0}};
    for (int flag; (flag = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (flag == '?')
            return usage_error();
        if (flag == 'c')
            run.count = atoi(optarg);
        else if (flag == 'b')
            run.bytes = strtoull(optarg, NULL, 10);
        else if (flag == 's')
            run.seconds = strtod(optarg, NULL);
        else
            run.factor = strtod(optarg, NULL);
    }
    size_t which = 0;
    while (optind < argc && which < FIGURES && strcmp(figures[which].name, argv[optind]) != 0)
        which++;
    if (optind + 1 != argc || which == FIGURES || run.factor <= 0)
        return usage_error();
    open_job();
    figures[which].run();
    must(bench_frame_barrier(&run.frame));
    bench_frame_close(&run.frame);
    must(abc_comm_destroy(run.comm));
    return run.over > 0;
}
