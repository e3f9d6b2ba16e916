/*
 * cases.h - the product of everything that may matter for a collective, and samples of it. A setting is what holds for a whole job
 * (ranks, environment); a case is one call. Deterministic from a seed.
 */
#ifndef TEST_CASES_H
#define TEST_CASES_H

#include <stdbool.h>
#include <stdint.h>

#include "data.h"

/* Dimensions of the product. The first SETTING_DIMENSIONS belong to the job. */
enum dimension {
    D_RANKS,    /* 1 to 9 */
    D_THREADS,  /* processes, threads, threads with the progress thread, processes with it */
    D_PVR,      /* auto, on, off */
    D_CHUNK,    /* default, 4K, 16K, 100K, 64 */
    D_PIPELINE, /* 1 to 4 */
    D_STORES,   /* auto, plain, stream */
    D_SIMD,     /* auto, scalar, generic, avx2 */
    SETTING_DIMENSIONS,
    D_COLLECTIVE = SETTING_DIMENSIONS,
    D_TYPE,
    D_OP,
    D_SIZE,
    D_PLACE,    /* out of place, ABC_IN_PLACE, equal pointers */
    D_IN_SHIFT, /* bytes off a line, of the input and of the output */
    D_OUT_SHIFT,
    D_MEMORY,    /* arena, private, mixed by rank and buffer */
    D_ALGORITHM, /* default, then by place in the list */
    D_ROOT,      /* first, last, middle */
    D_HOW,       /* blocking, started, persistent, blocking in a group of its own */
    DIMENSIONS
};

struct vector {
    uint8_t level[DIMENSIONS];
};

struct one_case {
    abc_collective collective;
    abc_type type;
    enum test_op op;
    uint64_t count;
    int place, memory, root, how;
    unsigned in_shift, out_shift;
    const char *algorithm; /* NULL: default */
    bool unsupported;      /* the algorithm does not suit the call, which must be said */
    bool exact;            /* values that any order adds alike */
    uint64_t seed;
};

struct sample;
/* Prepare to choose; counts the pairs of levels that can occur. */
struct sample *sample_open(uint64_t seed);
/* The next job's setting, then vectors for it; each prefers pairs that no earlier one had. */
void sample_setting(struct sample *s, struct vector *v);
void sample_case(struct sample *s, struct vector *v, bool greedy);
void sample_report(const struct sample *s, unsigned long *seen, unsigned long *possible);
void sample_close(struct sample *s);

/* What a vector means. */
int setting_ranks(const struct vector *v);
void setting_environment(const struct vector *v, char text[8][64], const char *list[8]);
void case_of(const struct vector *v, uint64_t seed, struct one_case *c);
void case_text(const struct one_case *c, char *text, size_t capacity);

#endif
