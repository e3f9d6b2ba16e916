/*
 * element.h - stage 5: what a reduction means for one element. The scalar family is a loop over these functions, and the vector
 * families use them for heads and tails; so this file is the definition of the bits. Force-inlined with constant type and op, so
 * that the switches vanish. Pure functions; any thread; a few cycles each.
 *
 * How it works: every element travels as raw bits (bf16 widened to float32). An operand is passed through `enter`, folded with
 * `fold` in rank order, and finished by `leave`. A maximum is the minimum of flipped operands, flipped back: one rule for NaN and
 * for signed zeros serves both.
 *   min: -0 is below +0, in any order; a NaN operand gives a NaN.     max: +0 is above -0; a NaN operand gives a NaN.
 * Which NaN comes out (sign, payload) is not defined; everything else is the same bits in all families.
 * Nothing here multiplies, so no compiler can contract a product and a sum into one rounding.
 */
#ifndef ABCI_REDUCE_ELEMENT_H
#define ABCI_REDUCE_ELEMENT_H

#include <stdbool.h>
#include <string.h>

#include "reduce/reduce.h"

#define ABCI_INLINE static inline __attribute__((always_inline))

/* Kernels exist for these four; an average that is not final yet is a sum. */
enum abci_kernel_op { ABCI_KERNEL_SUM, ABCI_KERNEL_MIN, ABCI_KERNEL_MAX, ABCI_KERNEL_AVG, ABCI_KERNEL_OPS };

#define ABCI_BF16_QUIET 0x40u /* the bit of a bf16 that makes a NaN quiet, and keeps a cut payload from becoming Inf */

/* Bytes of an element; constant when type is. */
ABCI_INLINE size_t abci_element_size(abc_type type)
{
    return type == ABC_F64 ? 8 : type == ABC_BF16 ? 2 : 4;
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

/* Flip so that a smaller result means a larger operand: the sign of a float, all bits of an integer. */
ABCI_INLINE uint64_t abci_element_flip(abc_type type, uint64_t bits)
{
    if (type == ABC_I32)
        return (uint32_t)~bits;
    return bits ^ (type == ABC_F64 ? UINT64_C(1) << 63 : UINT64_C(1) << 31);
}

/* Read an element at any address. */
ABCI_INLINE uint64_t abci_element_enter(abc_type type, enum abci_kernel_op op, const char *from)
{
    uint64_t wide = 0;
    uint32_t word = 0;
    uint16_t half = 0;
    if (type == ABC_F64) {
        memcpy(&wide, from, sizeof(wide));
    } else if (type == ABC_BF16) {
        memcpy(&half, from, sizeof(half));
        wide = (uint64_t)half << 16;
    } else {
        memcpy(&word, from, sizeof(word));
        wide = word;
    }
    return op == ABCI_KERNEL_MAX ? abci_element_flip(type, wide) : wide;
}

/*
 * The smaller operand. Equal floats have equal bits except zeros, and or-ing zeros keeps the minus; or-ing a NaN with anything
 * leaves a NaN. Written without branches because the data decides, and data is not predictable.
 */
ABCI_INLINE uint64_t abci_element_min(abc_type type, uint64_t a, uint64_t b)
{
    bool below, above;
    if (type == ABC_I32) {
        below = (int32_t)(uint32_t)a < (int32_t)(uint32_t)b;
        above = !below;
    } else if (type == ABC_F64) {
        below = abci_bits_f64(a) < abci_bits_f64(b);
        above = abci_bits_f64(b) < abci_bits_f64(a);
    } else {
        below = abci_bits_f32(a) < abci_bits_f32(b);
        above = abci_bits_f32(b) < abci_bits_f32(a);
    }
    return (below ? a : b) | (above ? b : a);
}

ABCI_INLINE uint64_t abci_element_fold(abc_type type, enum abci_kernel_op op, uint64_t a, uint64_t b)
{
    if (op == ABCI_KERNEL_MIN || op == ABCI_KERNEL_MAX)
        return abci_element_min(type, a, b);
    if (type == ABC_I32)
        return (uint32_t)a + (uint32_t)b; /* unsigned: wraps */
    if (type == ABC_F64)
        return abci_f64_bits(abci_bits_f64(a) + abci_bits_f64(b));
    return abci_f32_bits(abci_bits_f32(a) + abci_bits_f32(b));
}

/* float32 bits to bf16, nearest, ties to even. A NaN stays one: rounding could carry it into Inf or cut its payload to zero. */
ABCI_INLINE uint16_t abci_bf16_round(uint32_t bits)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | ABCI_BF16_QUIET);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Finish an element and write it to any address. */
ABCI_INLINE void abci_element_leave(abc_type type, enum abci_kernel_op op, uint64_t bits, int nranks, char *to, char *to2)
{
    if (op == ABCI_KERNEL_MAX)
        bits = abci_element_flip(type, bits);
    if (op == ABCI_KERNEL_AVG) {
        if (type == ABC_I32)
            bits = (uint32_t)((int32_t)(uint32_t)bits / nranks);
        else if (type == ABC_F64)
            bits = abci_f64_bits(abci_bits_f64(bits) / (double)nranks);
        else
            bits = abci_f32_bits(abci_bits_f32(bits) / (float)nranks);
    }
    uint32_t word = (uint32_t)bits;
    uint16_t half = type == ABC_BF16 ? abci_bf16_round(word) : 0;
    const void *value = type == ABC_F64 ? (const void *)&bits : type == ABC_BF16 ? (const void *)&half : (const void *)&word;
    memcpy(to, value, abci_element_size(type));
    if (to2)
        memcpy(to2, value, abci_element_size(type));
}

/*
 * Elements [i, end), one after the other. The empty statement of assembler keeps the compiler from making a vector loop of it: in
 * the reference it would defeat the purpose, in a tail it would only add a prologue.
 */
ABCI_INLINE void abci_element_loop(abc_type type, enum abci_kernel_op op, int nranks, char *dst, char *dst2, const void *const *src,
                                   int nsrc, uint64_t i, uint64_t end)
{
    const size_t size = abci_element_size(type);
    for (; i < end; i++) {
        uint64_t bits = abci_element_enter(type, op, (const char *)src[0] + i * size);
        for (int k = 1; k < nsrc; k++)
            bits = abci_element_fold(type, op, bits, abci_element_enter(type, op, (const char *)src[k] + i * size));
        abci_element_leave(type, op, bits, nranks, dst + i * size, dst2 ? dst2 + i * size : NULL);
        __asm__ volatile("");
    }
}

#endif
