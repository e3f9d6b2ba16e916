/*
 * small.h - stage 5: sizes and kinds of types, and the floats of 8 and 16 bits: to float32, which is exact, and back, rounded to
 * nearest, ties to even. Force-inlined with a constant type. Pure functions; any thread; a few cycles each.
 *
 * f16, fp8_e4m3 and fp8_e5m2 differ in two numbers, so one pair of functions serves them: `m` bits of mantissa, and the bias of the
 * exponent. A number below the smallest normal one has a fixed distance to its neighbours; adding the float32 whose neighbours are
 * as far apart makes the processor do the rounding, and no float32 on the way is itself denormal, so a thread that flushes those
 * gets the same bits.
 */
#ifndef ABCI_REDUCE_SMALL_H
#define ABCI_REDUCE_SMALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <abcomm/abcomm.h>

#define ABCI_INLINE static inline __attribute__((always_inline))
#define ABCI_BF16_QUIET 0x40u /* the bit of a bf16 that makes a NaN quiet, and keeps a cut payload from becoming Inf */

/* Bytes of an element; constant when type is. */
ABCI_INLINE size_t abci_element_size(abc_type type)
{
    switch (type) {
    case ABC_FP8_E4M3:
    case ABC_FP8_E5M2:
    case ABC_I8:
    case ABC_U8:
    case ABC_BOOL:
        return 1;
    case ABC_BF16:
    case ABC_F16:
    case ABC_I16:
    case ABC_U16:
        return 2;
    case ABC_F64:
    case ABC_I64:
    case ABC_U64:
    case ABC_COMPLEX64:
    case ABC_F32_I32:
    case ABC_I32_I32:
        return 8;
    case ABC_COMPLEX128:
    case ABC_F64_I32:
        return 16;
    default:
        return 4;
    }
}

/* The small floats with a function of their own; a bf16 is the upper half of a float32. */
ABCI_INLINE bool abci_is_small(abc_type type)
{
    return type == ABC_F16 || type == ABC_FP8_E4M3 || type == ABC_FP8_E5M2;
}

ABCI_INLINE bool abci_is_narrow(abc_type type)
{
    return type == ABC_BF16 || abci_is_small(type);
}

ABCI_INLINE bool abci_is_float(abc_type type)
{
    return type == ABC_F32 || type == ABC_F64 || abci_is_narrow(type);
}

ABCI_INLINE bool abci_is_signed(abc_type type)
{
    return type == ABC_I8 || type == ABC_I16 || type == ABC_I32 || type == ABC_I64;
}

ABCI_INLINE bool abci_is_logical(abc_op op)
{
    return op == ABC_LAND || op == ABC_LOR || op == ABC_LXOR;
}

ABCI_INLINE float abci_bits_f32(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float value;
    memcpy(&value, &low, sizeof(value));
    return value;
}

ABCI_INLINE uint64_t abci_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

ABCI_INLINE double abci_bits_f64(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

ABCI_INLINE uint64_t abci_f64_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* float32 bits to bf16, nearest, ties to even. A NaN stays one: rounding could carry it into Inf or cut its payload to zero. */
ABCI_INLINE uint16_t abci_bf16_round(uint32_t bits)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | ABCI_BF16_QUIET);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* What makes a small float. Sizes are bits without the sign. */
struct abci_small {
    unsigned m;       /* bits of mantissa */
    unsigned sign_at; /* bit of the sign */
    uint32_t rebase;  /* added to a normal number's bits, moved into place, it makes those of the float32 */
    uint32_t normal;  /* float32 bits of the smallest normal number */
    uint32_t magic;   /* float32 bits of the number whose neighbours are as far apart as the denormal ones */
    uint32_t top;     /* size of Inf and the least of NaN, or of the only NaN; what is too large becomes it */
    uint32_t quiet;   /* size of the NaN that comes out */
};

ABCI_INLINE struct abci_small abci_small_of(abc_type type)
{
    const unsigned m = type == ABC_F16 ? 10 : type == ABC_FP8_E4M3 ? 3 : 2, bias = type == ABC_FP8_E4M3 ? 7 : 15;
    return (struct abci_small){
        .m = m,
        .sign_at = type == ABC_F16 ? 15 : 7,
        .rebase = (127 - bias) << 23,
        .normal = (128 - bias) << 23,
        .magic = (151 - bias - m) << 23,
        .top = type == ABC_F16        ? 0x7c00
               : type == ABC_FP8_E4M3 ? 0x7f
                                      : 0x7c,
        .quiet = type == ABC_F16        ? 0x7e00
                 : type == ABC_FP8_E4M3 ? 0x7f
                                        : 0x7e,
    };
}

/* To float32 bits. */
ABCI_INLINE uint32_t abci_small_widen(abc_type type, uint32_t raw)
{
    const struct abci_small s = abci_small_of(type);
    uint32_t size = raw & ((1u << s.sign_at) - 1), sign = raw >> s.sign_at << 31, wide = size << (23 - s.m);
    if (size < 1u << s.m)
        wide = (uint32_t)abci_f32_bits(abci_bits_f32(wide + s.normal) - abci_bits_f32(s.normal));
    else
        wide = size >= s.top ? wide | 0x7f800000u : wide + s.rebase;
    return wide | sign;
}

/* From float32 bits. */
ABCI_INLINE uint32_t abci_small_round(abc_type type, uint32_t bits)
{
    const struct abci_small s = abci_small_of(type);
    const unsigned shift = 23 - s.m;
    uint32_t size = bits & 0x7fffffffu, sign = bits >> 31 << s.sign_at, rounded;
    if (size > 0x7f800000u)
        return sign | s.quiet;
    if (size < s.normal)
        rounded = (uint32_t)abci_f32_bits(abci_bits_f32(size) + abci_bits_f32(s.magic)) - s.magic;
    else
        rounded = (size - s.rebase + (1u << (shift - 1)) - 1 + ((size >> shift) & 1u)) >> shift;
    return sign | (rounded < s.top ? rounded : s.top);
}

#endif
