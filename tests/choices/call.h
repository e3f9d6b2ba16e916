/*
 * call.h - one call of a random program: a collective, one with counts, or a message to each rank. Drawn alike on all ranks but for
 * where the buffers lie and how it is made.
 */
#ifndef TEST_CALL_H
#define TEST_CALL_H

#include "harness.h"
#include "values.h"

#define CALL_RANKS 9
#define CALL_MOST (6u << 20) /* bytes of a buffer */
#define CALL_SHORT (192u << 10)
#define CALL_EDGES 192

/* Where a program runs, and the sizes at which something changes there. */
struct ground {
    struct rank *r;
    abc_comm *comm;
    int rank, nranks;
    uint64_t edge[CALL_EDGES];
    size_t edges;
};

enum call_how { CALL_BLOCKING, CALL_STARTED, CALL_PERSISTENT, CALL_HOWS };

struct buffer {
    char *base, *at; /* at: the first element */
    uint64_t bytes;
    bool arena;
};

struct one_call {
    abc_collective collective; /* ABC_SEND: every rank sends one and gets one */
    abc_type type;
    abc_op op;
    int root, distance, tag;                /* of a message: how many ranks on it goes */
    uint64_t count[CALL_RANKS][CALL_RANKS]; /* elements from one rank to another, or of the only block in [0][0] */
    uint32_t seed;
    int repeats;
    enum call_how how; /* from here on each rank has its own */
    bool in_place, by_name, in_arena, out_arena;
    unsigned in_shift, out_shift;
    struct piece in_piece[CALL_RANKS], out_piece[CALL_RANKS];
    uint64_t counts[2][CALL_RANKS], offsets[2][CALL_RANKS]; /* of in, of out */
    int in_pieces, out_pieces;
    struct buffer in, out; /* out is `in` when in place, or the other way round */
    abc_request *request[2];
};

/* bytes: at most so many in a buffer. like: another call of the same collective, type and operation, or NULL. */
void call_draw(const struct ground *g, uint64_t *shared, uint64_t bytes, const struct one_call *like, struct one_call *c);
/* Buffers, with the input in them. */
bool call_open(const struct ground *g, struct one_call *c);
/* Up to where it is under way; a blocking one is over, unless a group is open. */
bool call_begin(const struct ground *g, struct one_call *c);
/* Wait, compare, repeat; and give the buffers back. */
bool call_end(const struct ground *g, struct one_call *c, bool grouped);

#endif
