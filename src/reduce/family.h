/*
 * family.h - stage 5: the table that each kernel family fills and reduce.c chooses from, and which kernels there are. Constant
 * data; any thread. Not every pair of type and operation has a kernel of its own: routes.c says who does whose work.
 */
#ifndef ABCI_REDUCE_FAMILY_H
#define ABCI_REDUCE_FAMILY_H

#include "reduce/element.h"

/*
 * As abci_reduce, which jumps here with its arguments where they are; n counts the kernel's elements. Of the reduction it reads the
 * ranks that an average divides by, and the store kind of dst.
 */
typedef void abci_kernel(const struct abci_reduction *r, void *dst, void *dst2, const void *const *src, int nsrc, uint64_t n);

/* Unrolled operand loops exist for the usual numbers of ranks of one host; class 0 takes any number. */
enum { ABCI_CLASS_ANY, ABCI_CLASS_2, ABCI_CLASS_3, ABCI_CLASS_4, ABCI_CLASS_8, ABCI_CLASSES };

#define ABCI_ROW(type, op) ((type)*ABC_OP_COUNT + (op))

/* As abci_reduce_swap; n counts the kernel's elements, at least a vector of them. */
typedef void abci_swap_kernel(const struct abci_reduction *r, void *dst, const void *const *src, uint64_t n,
                              const struct abci_swap *swap);

struct abci_family {
    const char *name;
    /* The row of every route is full: class 0 stands in where a number of operands has no kernel of its own. */
    abci_kernel *kernel[ABC_TYPE_COUNT * ABC_OP_COUNT][ABCI_CLASSES];
    /* NULL where there is none. */
    abci_swap_kernel *swap[ABC_TYPE_COUNT * ABC_OP_COUNT];
    size_t vector; /* bytes */
    /* Copy to dst (by the store kind) and, when not NULL, to dst2. dst may equal src. */
    void (*copy)(char *dst, char *dst2, const char *src, size_t bytes, enum abci_store store);
};

extern const struct abci_family abci_family_scalar;
extern const struct abci_family abci_family_generic;
#if defined(__x86_64__)
extern const struct abci_family abci_family_avx2;
extern const struct abci_family abci_family_avx512;
#endif

/* Who does the work of (type, op): a kernel, and the power of two of its elements that make one of the type's. */
struct abci_route {
    uint16_t row;
    uint8_t shift;
    bool exists;
};
extern const struct abci_route abci_routes[ABC_TYPE_COUNT][ABC_OP_COUNT];

/* wide.c: one loop for all families. */
abci_kernel abci_wide_complex64_prod, abci_wide_complex128_prod;
abci_kernel abci_wide_f32_i32_min, abci_wide_f64_i32_min, abci_wide_i32_i32_min;
abci_kernel abci_wide_f32_i32_max, abci_wide_f64_i32_max, abci_wide_i32_i32_max;

/* One kernel for all numbers of operands. */
#define ABCI_ROW_OF(TYPE, OP, KERNEL) [ABCI_ROW(ABC_##TYPE, ABC_##OP)] = {KERNEL, KERNEL, KERNEL, KERNEL, KERNEL}
#define ABCI_WIDE_ROWS                                                                                                             \
    ABCI_ROW_OF(COMPLEX64, PROD, abci_wide_complex64_prod), ABCI_ROW_OF(COMPLEX128, PROD, abci_wide_complex128_prod),              \
        ABCI_ROW_OF(F32_I32, MINLOC, abci_wide_f32_i32_min), ABCI_ROW_OF(F32_I32, MAXLOC, abci_wide_f32_i32_max),                  \
        ABCI_ROW_OF(F64_I32, MINLOC, abci_wide_f64_i32_min), ABCI_ROW_OF(F64_I32, MAXLOC, abci_wide_f64_i32_max),                  \
        ABCI_ROW_OF(I32_I32, MINLOC, abci_wide_i32_i32_min), ABCI_ROW_OF(I32_I32, MAXLOC, abci_wide_i32_i32_max)

/* X(type, op) over the kernels of all families. Sums and averages of these carry the training traffic and get all classes. */
#define ABCI_SUM_MAP(X)                                                                                                            \
    X(F32, SUM)                                                                                                                    \
    X(F32, AVG)                                                                                                                    \
    X(F64, SUM)                                                                                                                    \
    X(F64, AVG)                                                                                                                    \
    X(BF16, SUM)                                                                                                                   \
    X(BF16, AVG)                                                                                                                   \
    X(F16, SUM)                                                                                                                    \
    X(F16, AVG)
/* These the one for two operands. */
#define ABCI_TWO_MAP(X) X(I32, SUM) X(I32, AVG) X(I8, SUM)
/* One kernel for any number of operands. */
#define ABCI_FLOAT_ROWS(X, TYPE) X(TYPE, MIN) X(TYPE, MAX) X(TYPE, PROD)
#define ABCI_SIGNED_ROWS(X, TYPE) X(TYPE, MIN) X(TYPE, MAX) X(TYPE, PROD) X(TYPE, LAND) X(TYPE, LOR) X(TYPE, LXOR)
#define ABCI_ONE_MAP(X)                                                                                                            \
    ABCI_FLOAT_ROWS(X, F32)                                                                                                        \
    ABCI_FLOAT_ROWS(X, F64)                                                                                                        \
    ABCI_FLOAT_ROWS(X, BF16)                                                                                                       \
    ABCI_FLOAT_ROWS(X, F16)                                                                                                        \
    ABCI_FLOAT_ROWS(X, FP8_E4M3)                                                                                                   \
    ABCI_FLOAT_ROWS(X, FP8_E5M2)                                                                                                   \
    ABCI_SIGNED_ROWS(X, I8)                                                                                                        \
    ABCI_SIGNED_ROWS(X, I16)                                                                                                       \
    ABCI_SIGNED_ROWS(X, I32)                                                                                                       \
    ABCI_SIGNED_ROWS(X, I64)                                                                                                       \
    X(FP8_E4M3, SUM)                                                                                                               \
    X(FP8_E4M3, AVG)                                                                                                               \
    X(FP8_E5M2, SUM)                                                                                                               \
    X(FP8_E5M2, AVG)                                                                                                               \
    X(I16, SUM)                                                                                                                    \
    X(I16, AVG)                                                                                                                    \
    X(U16, AVG)                                                                                                                    \
    X(U32, AVG)                                                                                                                    \
    X(I64, SUM)                                                                                                                    \
    X(U8, MIN) X(U8, MAX) X(U16, MIN) X(U16, MAX) X(U32, MIN) X(U32, MAX) X(U64, MIN) X(U64, MAX) X(I8, BAND) X(I8, BOR) X(I8, BXOR)
/* Too wide to be divided as floats, or too much code for what it is. */
#define ABCI_SCALAR_MAP(X) X(I64, AVG) X(U64, AVG) X(I8, AVG) X(U8, AVG)

/* scalar.c */
#define ABCI_SCALAR_DECLARE(TYPE, OP) abci_kernel abci_scalar_##TYPE##_##OP;
#define ABCI_SCALAR_ROW(TYPE, OP) ABCI_ROW_OF(TYPE, OP, abci_scalar_##TYPE##_##OP),
ABCI_SUM_MAP(ABCI_SCALAR_DECLARE)
ABCI_TWO_MAP(ABCI_SCALAR_DECLARE)
ABCI_ONE_MAP(ABCI_SCALAR_DECLARE)
ABCI_SCALAR_MAP(ABCI_SCALAR_DECLARE)

#endif
