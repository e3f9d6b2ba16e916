/*
 * wide.c - stage 5: elements of two parts that no vector kernel knows: products of complex numbers, and pairs of a value and its
 * place. Plain loops, one element after the other, the same for all families; so is the result. No state; any thread.
 *
 * A complex product is (ac - bd) + (ad + bc)i as it stands, each operation rounded; it does not repair infinite operands.
 * The better pair is the one with the smaller (larger) value, of equal values the one with the smaller index; a NaN is better than
 * all numbers, so that it is found whoever has it, and -0 equals +0.
 */
#include "reduce/family.h"

struct complex64 {
    float re, im;
};
struct complex128 {
    double re, im;
};
struct f32_i32 {
    float value;
    int32_t index;
};
struct f64_i32 {
    double value;
    int32_t index, unused;
};
struct i32_i32 {
    int32_t value, index;
};

/* Each operation rounds by itself: -ffp-contract=off sees to it. */
#define COMPLEX_FOLD(T)                                                                                                            \
    static struct T T##_prod(struct T a, struct T b)                                                                               \
    {                                                                                                                              \
        return (struct T){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};                                                   \
    }
/* A NaN is what differs from itself: integers may ask that, too. */
#define PAIR_FOLD(T, NAME, BETTER)                                                                                                 \
    static struct T T##_##NAME(struct T a, struct T b) {                                                                           \
        bool nan_a = a.value != a.value, nan_b = b.value != b.value;                                                               \
        bool same = a.value == b.value || (nan_a && nan_b);                                                                        \
        bool take = same ? b.index < a.index : nan_b || (!nan_a && b.value BETTER a.value);                                        \
        return take ? b : a;                                                                                                       \
    }
/* TIDY clears what is not data. */
#define WIDE_KERNEL(T, NAME, TIDY)                                                                                                 \
    void abci_wide_##T##_##NAME(const struct abci_reduction *r, void *dst, void *dst2, const void *const *src, int nsrc,           \
                                uint64_t n)                                                                                        \
    {                                                                                                                              \
        struct T sum, next;                                                                                                        \
        (void)r;                                                                                                                   \
        for (size_t at = 0; at < n * sizeof(sum); at += sizeof(sum)) {                                                             \
            memcpy(&sum, (const char *)src[0] + at, sizeof(sum));                                                                  \
            for (int k = 1; k < nsrc; k++) {                                                                                       \
                memcpy(&next, (const char *)src[k] + at, sizeof(next));                                                            \
                sum = T##_##NAME(sum, next);                                                                                       \
            }                                                                                                                      \
            TIDY;                                                                                                                  \
            memcpy((char *)dst + at, &sum, sizeof(sum));                                                                           \
            if (dst2)                                                                                                              \
                memcpy((char *)dst2 + at, &sum, sizeof(sum));                                                                      \
        }                                                                                                                          \
    }

COMPLEX_FOLD(complex64)
COMPLEX_FOLD(complex128)
PAIR_FOLD(f32_i32, min, <)
PAIR_FOLD(f64_i32, min, <)
PAIR_FOLD(i32_i32, min, <)
PAIR_FOLD(f32_i32, max, >)
PAIR_FOLD(f64_i32, max, >)
PAIR_FOLD(i32_i32, max, >)

WIDE_KERNEL(complex64, prod, (void)0)
WIDE_KERNEL(complex128, prod, (void)0)
WIDE_KERNEL(f32_i32, min, (void)0)
WIDE_KERNEL(f64_i32, min, sum.unused = 0)
WIDE_KERNEL(i32_i32, min, (void)0)
WIDE_KERNEL(f32_i32, max, (void)0)
WIDE_KERNEL(f64_i32, max, sum.unused = 0)
WIDE_KERNEL(i32_i32, max, (void)0)
