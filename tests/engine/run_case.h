/* run_case.h - one case on one rank: lay out buffers, call, compare. */
#ifndef TEST_RUN_CASE_H
#define TEST_RUN_CASE_H

#include "cases.h"
#include "harness.h"

/* Buffers of a rank, kept from case to case: two kinds of memory, input and output each. */
struct buffers {
    char *memory[2][2]; /* [arena, private][in, out] */
    size_t bytes;       /* of each */
};
bool buffers_open(struct rank *r, struct buffers *b, size_t bytes);
void buffers_close(struct buffers *b);
/* Bytes that a case needs in one buffer, guards included. */
size_t case_bytes(const struct one_case *c, int nranks);

/* Where a case runs: a communicator, and what this rank is there. */
struct place {
    abc_comm *comm;
    int rank, nranks;
};

/* One call's buffers. */
struct layout {
    char *in, *out;
    size_t in_bytes, out_bytes;
    size_t mine; /* in place: where in the larger buffer the smaller lies */
    bool apart;  /* out of place */
    const void *argument;
};

/* A case between its start and its end. */
struct running {
    struct one_case c;
    struct place at;
    struct values v;
    struct layout l;
    abc_request *request; /* NULL: a blocking call, or one that was refused as it must be */
};
/* Lay out and call; blocking cases run to their end here. Buffers belong to the case until case_end. */
bool case_begin(struct rank *r, const struct place *at, struct buffers *b, const struct one_case *c, struct running *run);
/* Wait where there is something to wait for, and compare. */
bool case_end(struct rank *r, struct running *run);
/* Both. */
bool run_case(struct rank *r, struct buffers *b, const struct one_case *c);

#endif
