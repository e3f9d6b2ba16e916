/*
 * compare.c - calls of another library and ours in one process, sample by sample, by the rules of `abcomm bench`: same buffers,
 * fresh data, full check, one rank late, time from the last start to the last end. Built and started with each peer's own tools, a
 * file peer_*.c being the peer; bench/peers.py does both. Rank 0 prints, for each cell, one line of medians and one of samples for
 * each of peer, ours, arena and the hand-off:
 *   row,SETTING,what,ranks,bytes,place,peer_us,ours_us,arena_us,handoff_us,copy_us,half_us,read_us,read_half_us,
 *       samples,wrong_peer,wrong_ours
 *   samples,SETTING,what,ranks,bytes,place,WHO,NANOSECONDS...
 * copy_us and half_us, with two ranks only: each rank copies what the other has just written, the whole size or half of it, into
 * its own memory. Together with the hand-off they bound what any library can reach. read_us, read_half_us: it only reads that.
 * Usage: compare SETTING PART [MOST_BYTES [SCALE]]; SCALE multiplies the number of samples. Parts: `tune`, allreduce without arena
 * and copies; `allreduce`; `collectives`, those that trainings use beside it; `rest`, all others and messages; `types`, allreduce
 * of short types; `crowd`, two calls that many ranks can make; `own`, our calls among themselves.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"

#define LENGTH(list) (sizeof(list) / sizeof(list)[0])
#define WARMUP 2
#define MOST_BYTES (32u << 20)   /* with two ranks */
#define MOST_CROWDED (8u << 20)  /* with more */
#define LEAST_BYTES 4096         /* of a buffer; small cells have one element of each rank */
#define REQUEST_SAMPLES_FACTOR 3 /* differences of some nanoseconds need more samples */

static const size_t sizes[] = {8, 64, 128, 512, 2048, 8192, 32768, 131072, 524288, 2097152, 8388608, 33554432};
static const size_t few_sizes[] = {8, 512, 8192, 131072, 2097152, 8388608};

static struct {
    const char *setting;
    size_t most;
    double scale;
    bool tuning;
} wanted;

void compare_fail(struct session *s, const char *what)
{
    fprintf(stderr, "compare: rank %d: %s\n", s->rank, what);
    peer_abort();
    abort();
}

static int samples_of(const struct session *s, const struct cell *cell)
{
    static const struct {
        size_t most;
        int samples, crowded;
    } table[] = {{8192, 200, 80},   {32768, 100, 60}, {131072, 60, 40}, {524288, 40, 24},
                 {2097152, 30, 12}, {8388608, 20, 8}, {SIZE_MAX, 10, 5}};
    int i = 0;
    while (cell->bytes > table[i].most)
        i++;
    double more = cell->form == BLOCKING ? 1 : REQUEST_SAMPLES_FACTOR;
    int n = (int)(wanted.scale * more * (s->frame.crowded ? table[i].crowded : table[i].samples) + 0.5);
    return n < 3 ? 3 : (n > MOST_SAMPLES ? MOST_SAMPLES : n);
}

/* Sorts a copy: the samples are printed in their order. */
static double median(const double *samples, int n)
{
    static double sorted[MOST_SAMPLES];
    memcpy(sorted, samples, (size_t)n * sizeof *sorted);
    return bench_percentile(sorted, (size_t)n, 0.5);
}

static void print_start(const char *kind, const struct session *s, const struct cell *cell)
{
    printf("%s,%s,%s,%d,%zu,%s,", kind, wanted.setting, cell->what, s->nranks, cell->bytes, cell->in_place ? "ip" : "oop");
}

static void print_samples(const struct session *s, const struct cell *cell, const char *who, const double *samples, int n)
{
    print_start("samples", s, cell);
    printf("%s,", who);
    for (int i = 0; i < n; i++)
        printf("%s%ld", i ? " " : "", lround(samples[i] * 1000));
    putchar('\n');
}

static void print_optional(bool measured, double us)
{
    if (measured)
        printf("%.4f", us);
    putchar(',');
}

static double faster_copy(const struct session *s, enum copy copy, int n)
{
    double by_library = median(s->copies[copy][LIBRARY], n), by_vectors = median(s->copies[copy][VECTORS], n);
    return by_library < by_vectors ? by_library : by_vectors;
}

static void print_cell(struct session *s, const struct cell *cell, int n)
{
    uint64_t wrong[WHO_COUNT];
    for (int who = 0; who < WHO_COUNT; who++)
        wrong[who] = bench_frame_sum(&s->frame, s->wrong[who]);
    if (s->rank != 0)
        return;
    print_start("row", s, cell);
    printf("%.4f,%.4f,", median(s->samples[PEER], n), median(s->samples[OURS], n));
    print_optional(s->arena[0], median(s->samples[ARENA], n));
    printf("%.4f,", median(s->handoff, n));
    print_optional(s->mailbox[0], faster_copy(s, WHOLE, n));
    print_optional(s->mailbox[0] && cell->in_place, faster_copy(s, HALF, n));
    print_optional(s->mailbox[0], median(s->copies[WHOLE][READ], n));
    print_optional(s->mailbox[0] && cell->in_place, median(s->copies[HALF][READ], n));
    printf("%d,%llu,%llu\n", n, (unsigned long long)wrong[PEER], (unsigned long long)(wrong[OURS] + wrong[ARENA]));
    if (!wanted.tuning) {
        print_samples(s, cell, "peer", s->samples[PEER], n);
        print_samples(s, cell, "ours", s->samples[OURS], n);
        if (s->arena[0])
            print_samples(s, cell, "arena", s->samples[ARENA], n);
        print_samples(s, cell, "handoff", s->handoff, n);
    }
    fflush(stdout);
}

/* Who goes first changes from sample to sample. */
static void measure_cell(struct session *s, const struct cell *cell)
{
    int n = samples_of(s, cell), whos = s->arena[0] ? WHO_COUNT : ARENA;
    compare_prepare(s, cell);
    for (int i = -WARMUP; i < n; i++) {
        for (int k = 0; k < whos; k++) {
            enum who who = (enum who)((i & 1) ? whos - 1 - k : k);
            double us = compare_sample(s, cell, who);
            if (i >= 0)
                s->samples[who][i] = us;
        }
        compare_sample_bounds(s, cell, i);
    }
    compare_finish(s);
    print_cell(s, cell, n);
}

/* ---- Parts ---------------------------------------------------------------------------------------------------------------------
 */

static void measure_allreduce(struct session *s)
{
    for (size_t i = 0; i < LENGTH(sizes) && sizes[i] <= wanted.most; i++)
        for (int in_place = 0; in_place < 2; in_place++)
            measure_cell(s,
                         &(struct cell){.what = "allreduce", .collective = ABC_ALLREDUCE, .bytes = sizes[i], .in_place = in_place});
}

/* One call that the peer has, at each of these sizes. */
static void measure_sizes(struct session *s, struct cell cell, const size_t *some, size_t count)
{
    bool known = cell.against_own || peer_has(cell.collective, cell.type);
    for (size_t i = 0; known && i < count && some[i] <= wanted.most; i++) {
        cell.bytes = some[i];
        measure_cell(s, &cell);
    }
}

static void measure_collective(struct session *s, int collective, const size_t *some, size_t count)
{
    bool rooted = collective == ABC_BROADCAST || collective == ABC_REDUCE || collective == ABC_GATHER || collective == ABC_SCATTER;
    struct cell cell = {.what = abc_collective_name((abc_collective)collective),
                        .collective = collective,
                        .rooted = rooted,
                        .in_place = collective == ABC_BROADCAST}; /* which has one buffer */
    measure_sizes(s, cell, some, count);
}

static void measure_collectives(struct session *s)
{
    static const int these[] = {ABC_REDUCE_SCATTER, ABC_ALLGATHER, ABC_BROADCAST, ABC_ALLTOALL};
    for (size_t k = 0; k < LENGTH(these); k++)
        measure_collective(s, these[k], few_sizes, LENGTH(few_sizes));
}

static void measure_rest(struct session *s)
{
    static const int these[] = {ABC_REDUCE, ABC_GATHER, ABC_SCATTER, ABC_SCAN, ABC_EXSCAN, ABC_ALLGATHERV, ABC_ALLTOALLV};
    static const size_t three_sizes[] = {8, 8192, 1u << 20}, none[] = {0};
    measure_collective(s, ABC_BARRIER, none, 1);
    for (size_t k = 0; k < LENGTH(these); k++)
        measure_collective(s, these[k], three_sizes, LENGTH(three_sizes));
    measure_sizes(s, (struct cell){.what = "sendrecv", .collective = PEER_SENDRECV}, three_sizes, LENGTH(three_sizes));
    if (s->nranks == 2)
        measure_sizes(s, (struct cell){.what = "pingpong", .collective = PEER_PINGPONG}, three_sizes, LENGTH(three_sizes));
}

/* Many ranks: do they come to an end, and when? */
static void measure_crowd(struct session *s)
{
    static const size_t small[] = {8, 64u << 10}, none[] = {0};
    measure_collective(s, ABC_ALLTOALL, small, LENGTH(small));
    measure_collective(s, ABC_BARRIER, none, 1);
}

static const struct {
    const char *name;
    abc_type type;
} short_types[] = {{"bf16", ABC_BF16}, {"f16", ABC_F16}, {"i8", ABC_I8}};

static void measure_types(struct session *s)
{
    for (size_t k = 0; k < LENGTH(short_types); k++)
        measure_sizes(s, (struct cell){.what = short_types[k].name, .type = short_types[k].type}, few_sizes, LENGTH(few_sizes));
}

/* Short types have the bytes, not the count, of the float32 call beside them. */
static void measure_own(struct session *s)
{
    for (size_t k = 0; k < LENGTH(short_types); k++)
        measure_sizes(s, (struct cell){.what = short_types[k].name, .type = short_types[k].type, .against_own = true}, few_sizes,
                      LENGTH(few_sizes));
    measure_sizes(s, (struct cell){.what = "started", .form = STARTED, .against_own = true}, few_sizes, 1);
    measure_sizes(s, (struct cell){.what = "persistent", .form = PERSISTENT, .against_own = true}, few_sizes, 1);
}

static const struct {
    const char *name;
    void (*measure)(struct session *s);
    bool tuning, bounds; /* bounds: arena and copies too */
} parts[] = {{"tune", measure_allreduce, true, false},
             {"allreduce", measure_allreduce, false, true},
             {"collectives", measure_collectives, false, false},
             {"rest", measure_rest, false, false},
             {"types", measure_types, false, false},
             {"crowd", measure_crowd, false, false},
             {"own", measure_own, false, false}};

static int usage_error(void)
{
    fprintf(stderr, "usage: compare SETTING tune|allreduce|collectives|rest|types|crowd|own [MOST_BYTES [SCALE]]\n");
    return 2;
}

int main(int argc, char **argv)
{
    static struct session session;
    struct session *s = &session;
    size_t which = 0, count = LENGTH(parts);
    if (argc < 3)
        return usage_error();
    if (peer_open(&argc, &argv, &s->rank, &s->nranks) != 0)
        return 1;
    while (which < count && strcmp(parts[which].name, argv[2]) != 0)
        which++;
    wanted.most = s->nranks == 2 ? MOST_BYTES : MOST_CROWDED;
    if (argc > 3 && strtoull(argv[3], NULL, 10) < wanted.most)
        wanted.most = strtoull(argv[3], NULL, 10);
    wanted.scale = argc > 4 ? strtod(argv[4], NULL) : 1;
    if (which == count || !(wanted.scale > 0))
        return usage_error();
    wanted.setting = argv[1];
    wanted.tuning = parts[which].tuning;

    size_t buffer = wanted.most < LEAST_BYTES ? LEAST_BYTES : wanted.most;
    if (bench_frame_open(&s->frame, s->rank, s->nranks, true, peer_share, NULL) != 0)
        compare_fail(s, "no common frame");
    compare_open(s, 2 * buffer, parts[which].bounds); /* twice: see compare_lay_out */
    if (s->nranks == 2 && parts[which].bounds)
        compare_open_mailboxes(s, buffer);
    parts[which].measure(s);

    compare_close(s);
    bench_frame_close(&s->frame);
    peer_close();
    return 0;
}
