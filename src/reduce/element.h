/*
 * element.h - stage 5: what a reduction means for one element. The scalar family is a loop over these functions, and the vector
 * families use them for heads and tails; so this file is the definition of the bits. Force-inlined with constant type and op, so
 * that the switches vanish. Pure functions; any thread; a few cycles each. Elements of two parts: wide.c.
 *
 * How it works: every element travels as raw bits, a float of 8 or 16 bits widened to float32, an integer to 64 bits. An operand
 * is passed through `enter`, folded with `fold` in rank order, and finished by `leave`. A maximum is the minimum of flipped
 * operands, flipped back: one rule for NaN and for signed zeros serves both.
 *   min: -0 is below +0, in any order; a NaN operand gives a NaN.     max: +0 is above -0; a NaN operand gives a NaN.
 * Which NaN comes out (sign, payload) is not defined; everything else is the same bits in all families. A logical operation is the
 * bitwise one on operands that have become 0 or 1.
 */
#ifndef ABCI_REDUCE_ELEMENT_H
#define ABCI_REDUCE_ELEMENT_H

#include <stdbool.h>
#include <string.h>

#include "reduce/reduce.h"
#include "reduce/small.h"

/* Flip so that a smaller result means a larger operand: the sign of a float, all bits of an integer. */
ABCI_INLINE uint64_t abci_element_flip(abc_type type, uint64_t bits)
{
    if (!abci_is_float(type))
        return ~bits;
    return bits ^ (type == ABC_F64 ? UINT64_C(1) << 63 : UINT64_C(1) << 31);
}

/* The number in the low bits of an integer type, extended to 64 by its sign or by zeros. */
ABCI_INLINE uint64_t abci_int_extend(abc_type type, uint64_t bits)
{
    const unsigned spare = 64 - 8 * (unsigned)abci_element_size(type);
    if (abci_is_signed(type))
        return (uint64_t)((int64_t)(bits << spare) >> spare);
    return bits << spare >> spare;
}

/* The raw bits of an element at any address. */
ABCI_INLINE uint64_t abci_element_load(size_t size, const char *from)
{
    uint64_t wide = 0;
    uint32_t word = 0;
    uint16_t half = 0;
    switch (size) {
    case 1:
        return *(const unsigned char *)from;
    case 2:
        memcpy(&half, from, sizeof(half));
        return half;
    case 4:
        memcpy(&word, from, sizeof(word));
        return word;
    default:
        memcpy(&wide, from, sizeof(wide));
        return wide;
    }
}

ABCI_INLINE void abci_element_store(size_t size, uint64_t bits, char *to)
{
    const uint32_t word = (uint32_t)bits;
    const uint16_t half = (uint16_t)bits;
    const unsigned char byte = (unsigned char)bits;
    memcpy(to, size == 1 ? (const void *)&byte : size == 2 ? (const void *)&half : size == 4 ? (const void *)&word : &bits, size);
}

ABCI_INLINE uint64_t abci_element_enter(abc_type type, abc_op op, const char *from)
{
    uint64_t bits = abci_element_load(abci_element_size(type), from);
    if (type == ABC_BF16)
        bits <<= 16;
    else if (abci_is_small(type))
        bits = abci_small_widen(type, (uint32_t)bits);
    else if (!abci_is_float(type))
        bits = abci_is_logical(op) ? bits != 0 : abci_int_extend(type, bits);
    return op == ABC_MAX ? abci_element_flip(type, bits) : bits;
}

/*
 * The smaller operand. Equal floats have equal bits except zeros, and or-ing zeros keeps the minus; or-ing a NaN with anything
 * leaves a NaN. Written without branches because the data decides, and data is not predictable.
 */
ABCI_INLINE uint64_t abci_element_min(abc_type type, uint64_t a, uint64_t b)
{
    bool below, above;
    if (!abci_is_float(type)) {
        below = abci_is_signed(type) ? (int64_t)a < (int64_t)b : a < b;
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

/* A sum or a product. Unsigned integers: they wrap. */
ABCI_INLINE uint64_t abci_element_add(abc_type type, bool product, uint64_t a, uint64_t b)
{
    if (!abci_is_float(type))
        return product ? a * b : a + b;
    if (type == ABC_F64)
        return abci_f64_bits(product ? abci_bits_f64(a) * abci_bits_f64(b) : abci_bits_f64(a) + abci_bits_f64(b));
    return abci_f32_bits(product ? abci_bits_f32(a) * abci_bits_f32(b) : abci_bits_f32(a) + abci_bits_f32(b));
}

ABCI_INLINE uint64_t abci_element_fold(abc_type type, abc_op op, uint64_t a, uint64_t b)
{
    switch (op) {
    case ABC_MIN:
    case ABC_MAX:
        return abci_element_min(type, a, b);
    case ABC_BAND:
    case ABC_LAND:
        return a & b;
    case ABC_BOR:
    case ABC_LOR:
        return a | b;
    case ABC_BXOR:
    case ABC_LXOR:
        return a ^ b;
    default:
        return abci_element_add(type, op == ABC_PROD, a, b);
    }
}

/* The sum that has wrapped is divided, so it is cut to its type first. */
ABCI_INLINE uint64_t abci_element_divide(abc_type type, uint64_t bits, int nranks)
{
    if (type == ABC_F64)
        return abci_f64_bits(abci_bits_f64(bits) / (double)nranks);
    if (abci_is_float(type))
        return abci_f32_bits(abci_bits_f32(bits) / (float)nranks);
    bits = abci_int_extend(type, bits);
    return abci_is_signed(type) ? (uint64_t)((int64_t)bits / nranks) : bits / (uint64_t)nranks;
}

/* Finish an element and write it to any address. */
ABCI_INLINE void abci_element_leave(abc_type type, abc_op op, uint64_t bits, int nranks, char *to, char *to2)
{
    const size_t size = abci_element_size(type);
    if (op == ABC_MAX)
        bits = abci_element_flip(type, bits);
    if (op == ABC_AVG)
        bits = abci_element_divide(type, bits, nranks);
    if (type == ABC_BF16)
        bits = abci_bf16_round((uint32_t)bits);
    else if (abci_is_small(type))
        bits = abci_small_round(type, (uint32_t)bits);
    abci_element_store(size, bits, to);
    if (to2)
        abci_element_store(size, bits, to2);
}

/*
 * Elements [i, end), one after the other. The empty statement of assembler keeps the compiler from making a vector loop of it: in
 * the reference it would defeat the purpose, in a tail it would only add a prologue.
 */
ABCI_INLINE void abci_element_loop(abc_type type, abc_op op, int nranks, char *dst, char *dst2, const void *const *src, int nsrc,
                                   uint64_t i, uint64_t end)
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
