/*
 * data.h - what goes into a collective and what must come out: values as a pure function of (seed, rank, index), and a scalar
 * reference that adds in rank order. Written without a look at src/reduce, so that the two can disagree.
 */
#ifndef TEST_DATA_H
#define TEST_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include <abcomm/abcomm.h>

/* The first types of abc_type; test_types.c and test_pairs.c have all. */
#define TEST_TYPES 4

/* Beyond the library's own operations. */
enum test_op { TEST_SUM, TEST_MIN, TEST_MAX, TEST_AVG, TEST_USER_ADD, TEST_USER_AFFINE, TEST_OP_COUNT };

struct values {
    uint64_t seed;
    abc_type type;
    enum test_op op;
    bool exact; /* small integers: the same sum in any order and rounding */
};

/* Raw bits of element `index` of a rank's input. */
uint64_t value_of(const struct values *v, int rank, uint64_t index);
void values_fill(const struct values *v, int rank, uint64_t first, uint64_t count, void *to);
/* Index of the first element that differs from the values of a rank, or count. */
uint64_t values_differ(const struct values *v, int rank, uint64_t first, uint64_t count, const void *from);
/* Index of the first element that differs from the reduction over ranks 0..nranks-1, or count; *got and *want are its bits. */
uint64_t reduction_differs(const struct values *v, int nranks, uint64_t first, uint64_t count, const void *from, uint64_t *got,
                           uint64_t *want);

/* The operation for a call: a built-in or one of two that the process creates once. */
abc_op op_for(enum test_op op);
const char *test_op_name(enum test_op op);
/* Create and free the user operations of this process. */
int ops_open(void);
void ops_close(void);

#endif
