/*
 * compare.h - the parts of bench/compare.c: one session a process, cells, and who is timed in them. Rank and peers are processes;
 * every function here is called by all ranks in the same order, by the one thread of each.
 */
#ifndef BENCH_COMPARE_H
#define BENCH_COMPARE_H

#include <stdbool.h>

#include "../tools/bench.h"
#include "peer.h"

#define MOST_SAMPLES 1000

enum who { PEER, OURS, ARENA, WHO_COUNT };
enum form { BLOCKING, STARTED, PERSISTENT };
enum copy { WHOLE, HALF, COPY_COUNT };
/* Who copies: memcpy, or a loop of plain stores, of which the faster one counts; READ has no stores at all. */
enum hand { LIBRARY, VECTORS, READ, HAND_COUNT };

/* What is timed in turns. The peer always has a blocking call; the form is of our side. */
struct cell {
    const char *what; /* its name in the rows */
    int collective;   /* or a message, see peer.h */
    abc_type type;
    enum form form;
    size_t bytes; /* of the whole vector; each rank has at least one element of it */
    bool in_place;
    bool rooted;      /* the roots take turns */
    bool against_own; /* the peer's part is played by our own blocking call of float32 on the same communicator */
};

struct session {
    struct bench_frame frame;
    abc_comm *comm;
    int rank, nranks;
    void *plain[2], *arena[2]; /* private memory and arena: input, output */
    uint32_t *seeds;
    uint32_t iteration;
    float *mailbox[2]; /* written by this rank, by the other; NULL: no copies are measured */
    struct peer_blocks blocks;
    abc_request *request;
    uint64_t wrong[WHO_COUNT];
    double samples[WHO_COUNT][MOST_SAMPLES], handoff[MOST_SAMPLES], copies[COPY_COUNT][HAND_COUNT][MOST_SAMPLES];
};

/* Says what is wrong and ends the job. */
void compare_fail(struct session *s, const char *what);

/* ---- compare_calls.c ------------------------------------------------------------------------------------------------------------
 */

/* Our communicator, and buffers of `bytes`; arena too when that is wanted. */
void compare_open(struct session *s, size_t bytes, bool arena);
void compare_close(struct session *s);
/* Before and after the samples of a cell. */
void compare_prepare(struct session *s, const struct cell *cell);
void compare_finish(struct session *s);
/* One call with new data before and a full check after it, in microseconds. */
double compare_sample(struct session *s, const struct cell *cell, enum who who);

/* ---- compare_data.c -------------------------------------------------------------------------------------------------------------
 */

/* The call of this iteration: buffers, count, root. Blocks of different sizes need buffers of twice the cell's bytes. */
struct peer_call compare_lay_out(struct session *s, const struct cell *cell, enum who who);
/* New data in this rank's input. */
void compare_fill(struct session *s, const struct peer_call *call);
/* Wrong elements of this rank's output. */
uint64_t compare_check(const struct session *s, const struct peer_call *call);

/* ---- compare_bounds.c -----------------------------------------------------------------------------------------------------------
 */

/* Memory that two ranks share. */
void compare_open_mailboxes(struct session *s, size_t bytes);
/* Sample i of the bare hand-off, and of the copies where they bound something. Warm-up has i < 0. */
void compare_sample_bounds(struct session *s, const struct cell *cell, int i);

#endif
