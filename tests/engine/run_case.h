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
bool run_case(struct rank *r, struct buffers *b, const struct one_case *c);

#endif
