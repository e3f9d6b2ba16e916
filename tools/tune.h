/*
 * tune.h - the parts of `abcomm tune`: measuring every algorithm against the choice by price, and the tuning file. Uses the public
 * API, the frame of `abcomm bench` and the library's list of algorithms.
 */
#ifndef TOOLS_TUNE_H
#define TOOLS_TUNE_H

#include "bench.h"

#include "tune/choose.h"

#define TUNE_RUNS 8        /* numbers of ranks of one command */
#define TUNE_CANDIDATES 64 /* ways to do one call */
#define TUNE_PLACES 2      /* out of place, in place */

struct tune_args {
    int ranks[TUNE_RUNS], nruns;
    const char *out, *csv;
    unsigned collectives;        /* mask of 1 << abc_collective */
    unsigned memory;             /* mask of BENCH_PRIVATE, BENCH_ARENA */
    uint64_t begin, end, factor; /* bytes of the largest buffer */
    double margin;               /* what a row must win, e.g. 0.05 */
    bool quick, pin, job;        /* job: this process is a rank */
};

/* One way to do a call. */
struct tune_candidate {
    char name[48];                /* as abc_call.algorithm takes it, "twoshot@65536"; of the first: what the price has chosen */
    bool alive;                   /* not yet known to be slow */
    int count;                    /* samples of each place */
    double *samples[TUNE_PLACES]; /* us, in the order of measuring */
    double median[TUNE_PLACES];   /* of all samples */
    double half[2][TUNE_PLACES];  /* of every second sample, beginning with the first and with the second */
};

/* One size of one collective: all candidates, the price's choice first. */
struct tune_case {
    abc_collective collective;
    unsigned memory;
    uint64_t bytes;    /* of the largest buffer */
    uint64_t count;    /* of the call */
    int places;        /* 1, or 2 where in place matters */
    double handoff[2]; /* us, bare, median: before and after the case */
    int ncandidates;
    struct tune_candidate candidate[TUNE_CANDIDATES];
};

/* A rank of the job that measures. */
struct tune_job {
    const struct tune_args *args;
    struct bench_frame frame;
    abc_comm *comm;
    int rank, nranks;
    uint32_t iteration;
    unsigned memory;        /* of the buffers now */
    char *in, *out;         /* of args->end bytes and more */
    double *room;           /* of all candidates' samples */
    double handoff;         /* us, bare, median: when the job began */
    FILE *csv;              /* rank 0, or NULL */
    struct tune_file *file; /* rank 0 */
};

/* tune_measure.c: the bare hand-off, us, as median. 0, or -1 after a message. */
int tune_measure_handoff(struct tune_job *job, double *us);
/* Every case of the job, one after the other; rank 0 tells the file of each. 0, or -1 after a message. */
int tune_measure_all(struct tune_job *job);

/* tune_file.c: rank 0 alone. 0, or -1 after a message. */
int tune_file_open(struct tune_job *job);
/* A case is measured: print a line, and keep what has won. */
void tune_file_case(struct tune_job *job, const struct tune_case *c);
/* The sizes of one collective and kind of memory are over: make rows of them. */
void tune_file_group(struct tune_job *job);
int tune_file_close(struct tune_job *job, bool ok);
/* Best candidate: the smallest product of medians over the places. half: 0 or 1 of the samples, -1 for all of them. */
int tune_best(const struct tune_case *c, int half);
/* Time of a candidate relative to that of the first: below 1 is faster. */
double tune_ratio(const struct tune_case *c, int candidate, int half);

#endif
