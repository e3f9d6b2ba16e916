/*
 * reduce.h - stage 5: element-wise reductions of n operands. Scalar reference (scalar.c) and SIMD kernels chosen once per process
 * by what the CPU has; all give the same bits. No state but the dispatch table; any thread; never fails for valid arguments.
 */
#ifndef ABCI_REDUCE_H
#define ABCI_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <abcomm/abcomm.h>

/* Stores that bypass the cache for `dst`. Ends with a store fence. */
enum abci_store { ABCI_STORE_PLAIN = 0, ABCI_STORE_STREAM = 1 };

/* One reduction. dst may equal one of the operands exactly; other overlap is not allowed. No alignment is required. */
struct abci_reduction {
    abc_type type;
    abc_op op; /* built-in or ABC_OP_USER.. (then user is set) */
    int final; /* all ranks' contributions are in: ABC_AVG divides by nranks */
    int nranks;
    enum abci_store store; /* for dst; dst2 is always stored plainly */
    const struct abci_user_op *user;
};

/* Of two operands one that another core has written, and what becomes of its place: see abci_reduce_swap. */
struct abci_swap {
    int foreign;      /* which operand: 0 or 1 */
    void *room;       /* where it lies, or NULL: it stays */
    const void *next; /* what is stored there once it is read: as many elements; NULL: the result */
};
/* An operation that the caller made: a function, or without one the sum of inputs that are scaled first. */
struct abci_user_op {
    abc_op_fn fn;
    void *context;
    int commutes;
    bool scaled;
    abc_type type; /* scaled: of the scalar and of what it multiplies */
    unsigned char scalar[16];
};

/*
 * dst[i] = src[0][i] op src[1][i] op ... in this order, n elements; dst2, when not NULL, gets the same values. nsrc >= 1. Floats of
 * 8 and 16 bits accumulate in float32 and round once. min and max give NaN when an operand is NaN, and order -0 below +0. Cost:
 * reads nsrc * n, writes n (2n with dst2), elements.
 */
void abci_reduce(const struct abci_reduction *r, void *dst, void *dst2, const void *const *src, int nsrc, uint64_t n);

/*
 * dst[i] = src[0][i] op src[1][i], and afterwards room[i] = next[i] (or dst[i]), if there is a room, in one pass: a line that has
 * just come from another core is overwritten while it lies in the nearest cache, and that hides behind the wait for the next ones.
 * next may not overlap anything that is written. Cost: reads 2n, or 3n, and writes n, or 2n, elements.
 */
void abci_reduce_swap(const struct abci_reduction *r, void *dst, const void *const *src, uint64_t n, const struct abci_swap *swap);

/* A caller's function, on this thread, cannot do its work (NULL: no reason); outside of one: nothing. failed: whether one could not
 * since the last question, with the reason. */
void abci_reduce_fail(const char *reason);
bool abci_reduce_failed(char *reason, size_t capacity);

/* dst[i] = src[i] * *scalar, rounded to the type (which must have ABC_PROD); dst may be src. */
void abci_reduce_scale(abc_type type, void *dst, const void *src, const void *scalar, uint64_t n);

/* Is there such a reduction? The same bits in any order of operands? A type that accumulates in a wider one? */
bool abci_reduce_has(abc_type type, abc_op op);
bool abci_reduce_exact(abc_type type, abc_op op);
bool abci_reduce_narrow(abc_type type);

/* Copy bytes, optionally to two places, with the given store kind for dst. */
void abci_copy(void *dst, void *dst2, const void *src, size_t bytes, enum abci_store store);

/* Kernel families, for tests and `abcomm info`: "scalar", "generic", "avx2", "avx512". select also takes "auto"; returns -1 when
 * the CPU lacks it. */
const char *abci_reduce_family(void);
int abci_reduce_select(const char *family);

#endif
