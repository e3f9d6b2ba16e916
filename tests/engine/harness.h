/*
 * harness.h - run a test body as N ranks: forked processes, or threads of one forked process. The parent never touches the library,
 * so each job has an environment of its own and a crash or a hang of a rank is a failed test, not the end of the program.
 *
 * Ranks meet over an exchange in shared memory (put, wait, get), which the jobs thereby test; a board in the same memory holds what
 * each rank is doing, so that a rank that hangs can be named. The parent kills what it started, by pid, when the job's time is
 * over.
 */
#ifndef TEST_HARNESS_H
#define TEST_HARNESS_H

#include <stdbool.h>
#include <stdint.h>

#include <abcomm/abcomm.h>

#define MAX_TEST_RANKS 64

struct board;

/* One rank inside a body. */
struct rank {
    int rank, nranks;
    bool threads;   /* ranks are threads of one process */
    abc_comm *comm; /* NULL when the job asked for none */
    void *argument; /* the job's */
    struct board *board;
    uint64_t random; /* state of rank_random, different on each rank */
    uint32_t creations;
};

struct job {
    const char *name;
    int (*body)(struct rank *r); /* 0 when all was well; says what was not by check() */
    void *argument;
    int nranks;
    bool threads;
    bool no_comm;                              /* the body creates its communicators itself */
    int progress;                              /* config.progress_thread */
    double timeout;                            /* of operations; 0: 30 s */
    double limit;                              /* seconds until ranks are killed; 0: 60 */
    const char *const *environment;            /* "NAME=value" up to NULL; no other ABCOMM_ name is set */
    const char *(*rank_environment)(int rank); /* one more for each rank (processes only), or NULL */
};

/* Run a job; prints one line. Returns true when every rank's body returned 0 and nothing was left behind. */
bool job_run(const struct job *job);
/* Totals over all jobs; what main returns. Looks for children and descriptors left behind. */
int jobs_end(void);
/* Run only jobs whose name contains the text (NULL: all). */
void jobs_only(const char *text);

/* ---- Inside a body ---- */

/* False, and the text recorded for the report (the first one counts), when ok is false. */
bool check(struct rank *r, bool ok, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* status must be `wanted`; the text names both and the library's own words. */
bool check_status(struct rank *r, int status, int wanted, const char *what);
/* Say what this rank is doing; shown when it hangs or fails. */
void doing(struct rank *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* All ranks have come here; not through the library. Returns false when a rank has failed or the time (20 s) is over. */
bool meet(struct rank *r);
/* A communicator over the harness's exchange; collective. timeout 0: the job's. */
int rank_create(struct rank *r, int progress, double timeout, abc_comm **comm);
/* An exchange whose keys begin with `prefix` of these ranks. */
struct exchange_context {
    struct board *board;
    char prefix[48];
};
void exchange_over_board(struct exchange_context *context, struct board *board, const char *prefix, abc_exchange *exchange);
/* Shared words, zeroed at the job's start, for what a test wants to tell between ranks. */
_Atomic int *board_words(struct board *board);

uint64_t random_next(uint64_t *state); /* splitmix64 */
/* Sleep up to `most` microseconds, sometimes not at all: shakes the order in which ranks come. */
void random_nap(struct rank *r, unsigned most);
void nap(double seconds);
double now_seconds(void);
int open_descriptors(void);

/* ABC_TEST_SEED or --seed, else a fixed one; ABC_TEST_FULL=1 or --full; --only TEXT. Prints the seed. */
struct options {
    uint64_t seed;
    bool full;
};
void options_read(int argc, char **argv, struct options *options);

#endif
