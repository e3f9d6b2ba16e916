/*
 * family.h - stage 5: the table that each kernel family fills and reduce.c chooses from. Constant data; any thread.
 */
#ifndef ABCI_REDUCE_FAMILY_H
#define ABCI_REDUCE_FAMILY_H

#include "reduce/element.h"

/* dst, dst2 or NULL, operands, their number (>= 1), elements, ranks that an average divides by, store kind of dst. */
typedef void abci_kernel(char *dst, char *dst2, const void *const *src, int nsrc, uint64_t n, int nranks, enum abci_store store);

/* Unrolled operand loops exist for the usual numbers of ranks of one host; class 0 takes any number. */
enum { ABCI_CLASS_ANY, ABCI_CLASS_2, ABCI_CLASS_3, ABCI_CLASS_4, ABCI_CLASS_8, ABCI_CLASSES };

struct abci_family {
    const char *name;
    abci_kernel *kernel[ABC_TYPE_COUNT][ABCI_KERNEL_OPS][ABCI_CLASSES];
    /* Copy to dst (by the store kind) and, when not NULL, to dst2. dst may equal src. */
    void (*copy)(char *dst, char *dst2, const char *src, size_t bytes, enum abci_store store);
};

extern const struct abci_family abci_family_scalar;
extern const struct abci_family abci_family_generic;
#if defined(__x86_64__)
extern const struct abci_family abci_family_avx2;
extern const struct abci_family abci_family_avx512;
#endif

/* X(type, op) over the kernels of a family. */
#define ABCI_SUM_MAP(X)                                                                                                            \
    X(F32, SUM)                                                                                                                    \
    X(F32, AVG)                                                                                                                    \
    X(F64, SUM)                                                                                                                    \
    X(F64, AVG)                                                                                                                    \
    X(BF16, SUM)                                                                                                                   \
    X(BF16, AVG)                                                                                                                   \
    X(I32, SUM)                                                                                                                    \
    X(I32, AVG)
#define ABCI_MIN_MAP(X)                                                                                                            \
    X(F32, MIN)                                                                                                                    \
    X(F32, MAX)                                                                                                                    \
    X(F64, MIN)                                                                                                                    \
    X(F64, MAX)                                                                                                                    \
    X(BF16, MIN)                                                                                                                   \
    X(BF16, MAX)                                                                                                                   \
    X(I32, MIN)                                                                                                                    \
    X(I32, MAX)

#endif
