/*
 * values.h - what the buffers of a call hold and must hold afterwards. A call's buffers are pieces of numbers that follow from the
 * call's seed, a key and the rank, small enough to be exact in every type, and a sum over ranks needs no sum to be known.
 */
#ifndef TEST_VALUES_H
#define TEST_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include <abcomm/abcomm.h>

/* Elements [at, at + count) of a buffer: those of one rank, or what the first `ranks` make of theirs. */
struct piece {
    uint64_t at, count;
    uint64_t key; /* the same for pieces that hold the same */
    int ranks;    /* 0: one rank's, `rank` */
    int rank;
};
#define VALUES_TYPES 5
extern const abc_type values_types[VALUES_TYPES];

void values_put(char *buffer, const struct piece *piece, abc_type type, uint32_t seed);
/* The first element of the piece that is another one; piece->count: none. */
uint64_t values_wrong(const char *buffer, const struct piece *piece, abc_type type, abc_op op, uint32_t seed);

#endif
