/*
 * bench.h - the parts of `abcomm bench`, shared with the programs in bench/: an honest clock frame around a call, data that shows
 * every misplaced element, statistics. Uses the public API alone. Each rank is a process with one measuring thread.
 */
#ifndef TOOLS_BENCH_H
#define TOOLS_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <abcomm/abcomm.h>

/* ---- bench_frame.c: barrier, common start, time of a call over all ranks -------------------------------------------------------
 */

/* Give `bytes` of rank 0 to all ranks; returns 0 or a negative status. How a frame finds its shared memory. */
typedef int bench_share_fn(void *context, void *data, size_t bytes);

struct bench_board; /* the memory that the ranks of a frame share */
struct bench_frame {
    int rank, nranks;
    int ncpus;           /* CPUs that the ranks may use when the frame was opened */
    bool crowded;        /* more ranks than CPUs: waiting yields */
    bool tsc;            /* ticks are of the time stamp counter, else nanoseconds of CLOCK_MONOTONIC */
    double ticks_per_us; /* the same on all ranks */
    double floor_us;     /* what the frame itself measures around nothing */
    uint64_t random;     /* same sequence on all ranks */
    uint32_t arrivals;   /* barriers passed */
    uint32_t exchanges;  /* bare exchanges done */
    uint32_t tokens;     /* tokens passed along the chain or between two ranks */
    uint64_t start;      /* this rank's start of the timed call */
    size_t board_bytes;
    struct bench_board *board;
};

/*
 * Collective over all ranks of one host. pin: rank r to the r-th allowed CPU, modulo. Says on stderr why it failed; then returns
 * -1. Costs 50 ms.
 */
int bench_frame_open(struct bench_frame *f, int rank, int nranks, bool pin, bench_share_fn *share, void *context);
void bench_frame_close(struct bench_frame *f);
/* Wait for all ranks; touches nothing of the library under test. -1: a rank gave up or is missing for 300 s; then all must end. */
int bench_frame_barrier(struct bench_frame *f);
/* Make the other ranks' next barrier fail at once. */
void bench_frame_fail(struct bench_frame *f);
/*
 * One timed call: begin, the call, end. begin is a barrier and a common start, of which one rank, chosen at random, is up to 1 us
 * late. end is a barrier too; it returns, on every rank, the microseconds from the last start to the last end less the floor, or a
 * negative value when the ranks are no more together.
 */
int bench_frame_begin(struct bench_frame *f);
double bench_frame_end(struct bench_frame *f);
/* Sum of one number of each rank. */
uint64_t bench_frame_sum(struct bench_frame *f, uint64_t mine);
double bench_frame_max(struct bench_frame *f, double mine);
/* The bare hand-off, timed as a call: every rank stores one flag in a line of its own and waits for all others. */
double bench_frame_exchange(struct bench_frame *f);
/* The bare chain, timed as a call: a token passes from rank 0 to the last rank and back, 2 (p - 1) hand-offs. */
double bench_frame_chain(struct bench_frame *f);

/* ---- bench_data.c: inputs and their expected results ---------------------------------------------------------------------------
 */

/* What distinguishes the data of one rank in one call. */
uint32_t bench_seed(uint32_t iteration, int rank);
/* Write elements first .. first + count of the vector that the seed stands for. limit: bench_data_limit of the ranks and type. */
void bench_fill(void *dst, abc_type type, uint32_t limit, uint32_t seed, uint64_t first, uint64_t count);
/* Values lie in -limit/2 .. limit/2 - 1 (unsigned: 0 .. limit - 1; limit 2: -1 and 1); so small that sums over nranks are exact in
 * the type. A power of two. */
uint32_t bench_data_limit(abc_type type, int nranks);
/* Number of elements of buf that differ from the reduction of nseeds such vectors. Only averages have a tolerance. */
uint64_t bench_check(const void *buf, abc_type type, abc_op op, uint32_t limit, const uint32_t *seeds, int nseeds, uint64_t first,
                     uint64_t count);
/* Read all of a buffer. */
void bench_read(const void *buf, size_t bytes);

/* ---- bench_stat.c --------------------------------------------------------------------------------------------------------------
 */

/* Sorts. p in 0..1; the nearest rank, so p99 of 20 samples is the largest. 0 of no samples. */
double bench_percentile(double *samples, size_t count, double p);
double bench_mean(const double *samples, size_t count);

/* ---- bench_bound.c -------------------------------------------------------------------------------------------------------------
 */

/* Memory that two ranks share: one half is written by this rank, the other by the other. */
struct bench_mailboxes {
    char *own, *other;
    size_t bytes; /* of one */
};
/* Both ranks; -1: there is no such memory, on both. */
int bench_mailboxes_open(struct bench_frame *f, bench_share_fn *share, void *context, size_t bytes, struct bench_mailboxes *m);
void bench_mailboxes_close(struct bench_mailboxes *m);
/* With plain vector stores, whatever the size. */
void bench_copy_plainly(void *dst, const void *src, size_t bytes);

/* ---- bench_args.c --------------------------------------------------------------------------------------------------------------
 */

#define BENCH_NEAR_US 0.15 /* two ranks: cores behind one cache hand a line over in less */

enum { BENCH_PRIVATE = 1, BENCH_ARENA = 2 };         /* memory */
enum { BENCH_OUT_OF_PLACE = 1, BENCH_IN_PLACE = 2 }; /* places; values of this and the above are masks */
enum { BENCH_RUN = -1 };                             /* bench_args_parse: go on */

struct bench_args {
    abc_collective collective;
    bool messages;                     /* sendrecv instead of a collective */
    uint64_t begin, end, step, factor; /* bytes; step 0: multiply by factor */
    int iterations, warmup;
    unsigned types, ops; /* masks of 1 << abc_type, 1 << abc_op */
    int root;            /* -1: each in turn */
    int calls;           /* timed as one */
    bool grouped;        /* so many: in a group, else started one after another */
    bool check, pin, corrupt;
    unsigned memory, places;
    const char *algorithm; /* NULL: the library's choice */
    const char *json;      /* file name, "-" or NULL */
};

/* Returns BENCH_RUN, 0 when help was asked for, or TOOL_USAGE with the reason in `why`. Prints nothing. */
int bench_args_parse(struct bench_args *args, int argc, char **argv, char *why, size_t capacity);
void bench_args_help(FILE *out);

/* ---- bench_report.c: what rank 0 prints ----------------------------------------------------------------------------------------
 */

struct bench_result {
    double mean, p50, p99, min; /* us */
    uint64_t wrong;
    bool measured;
};
struct bench_row {
    uint64_t bytes, count;
    abc_type type;
    abc_op op;
    int root;
    unsigned memory;
    struct bench_result place[2]; /* out of place, in place */
    char algorithm[48], why[16];  /* "ring@65536", "price" */
    double handoff;               /* us of the bare exchange, measured between the calls */
};
struct bench_report {
    const struct bench_args *args;
    const struct bench_frame *frame;
    FILE *table; /* NULL: not wanted */
    FILE *json;
    int rows;
    uint64_t wrong; /* results */
    double busbw_sum;
    int busbw_count;
};

/* GB/s from bytes and microseconds, and what share of it crosses the bus by the convention of nccl-tests. */
double bench_algbw(uint64_t bytes, double us);
double bench_bus_factor(abc_collective collective, int nranks);
/* bench.c: zeroed, of huge pages where there are any, for free; NULL: no memory. */
void *bench_alloc_private(size_t bytes);
/* bench_message.c: all of `bench sendrecv`, on both ranks; the exit code. */
int bench_messages(const struct bench_args *args, struct bench_frame *frame, bench_share_fn *share, abc_comm *comm);
/* 0, or -1 after a message. */
int bench_report_open(struct bench_report *report, const struct bench_args *args, const struct bench_frame *frame);
void bench_report_section(struct bench_report *report, unsigned memory);
void bench_report_row(struct bench_report *report, const struct bench_row *row);
int bench_report_close(struct bench_report *report, double handoff);

#endif
