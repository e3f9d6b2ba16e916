/*
 * bench_data.c - the inputs of the benchmarks and the check of their results. Every call gets new values, so that neither a result
 * left from the call before nor data cached by a peer can pass; values depend on the position, so that a misplaced slice, page or
 * element shows. All are small whole numbers: sums are exact in every type and do not depend on the order. Untimed code.
 */
#include "bench.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 1024 }; /* elements whose expectation is computed at a time; stays in the first cache */

uint32_t bench_seed(uint32_t iteration, int rank)
{
    uint32_t x = iteration * 2654435761u + (uint32_t)rank * 40503u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ x >> 13;
}

/* Whole numbers up to it are exact in the type; 0: all that matter. Eight bits of significance, eleven, four, three. */
static uint32_t most_exact(abc_type type)
{
    return type == ABC_BF16 ? 256 : type == ABC_F16 ? 2048 : type == ABC_FP8_E4M3 ? 16 : type == ABC_FP8_E5M2 ? 8 : 0;
}

static bool is_unsigned(abc_type type)
{
    return type == ABC_U8 || type == ABC_U16 || type == ABC_U32 || type == ABC_U64 || type == ABC_BOOL;
}

uint32_t bench_data_limit(abc_type type, int nranks)
{
    uint32_t most = most_exact(type), limit = most ? most : 1024;
    if (type == ABC_BOOL)
        return 2;
    if (abc_type_size(type) == 1 && !most)
        return 128;
    limit = limit > 1024 ? 1024 : limit;
    while (most && limit > 2 && limit / 2 * (uint32_t)nranks > most)
        limit /= 2;
    return limit;
}

/* The values: (something & mask) * step + low. */
struct values {
    uint32_t mask, seed;
    int32_t step, low;
};

/* Two values are -1 and 1, so that products are, too. */
static struct values values_of(abc_type type, uint32_t limit, uint32_t seed)
{
    bool two = limit == 2 && !is_unsigned(type);
    return (struct values){.mask = limit - 1,
                           .seed = seed,
                           .step = two ? 2 : 1,
                           .low = is_unsigned(type) ? 0
                                  : two             ? -1
                                                    : -(int32_t)(limit / 2)};
}

/* The second term makes elements one period apart differ too. */
static inline int32_t value_at(const struct values *v, uint32_t index)
{
    return (int32_t)((index + (index >> 10) * 37u + v->seed) & v->mask) * v->step + v->low;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* f16 and those of 8 bits: bits of the mantissa, bias of the exponent, bit of the sign. */
static int mantissa_of(abc_type type)
{
    return type == ABC_F16 ? 10 : type == ABC_FP8_E4M3 ? 3 : 2;
}

static int bias_of(abc_type type)
{
    return type == ABC_FP8_E4M3 ? 7 : 15;
}

static int sign_of(abc_type type)
{
    return type == ABC_F16 ? 15 : 7;
}

/* To nearest, ties to even, in units of the last place; what is too large becomes Inf, or the NaN of e4m3. */
static uint32_t to_small(abc_type type, float value)
{
    int m = mantissa_of(type), bias = bias_of(type);
    uint32_t sign = signbit(value) ? 1u << sign_of(type) : 0, top = type == ABC_FP8_E4M3 ? 0x7f : 0x1fu << m;
    if (value == 0)
        return sign;
    int exponent = ilogbf(value) > 1 - bias ? ilogbf(value) : 1 - bias;
    double code = rint(ldexp(fabs((double)value), m - exponent)) + ldexp(exponent + bias - 1, m);
    return sign | (code < top ? (uint32_t)code : top);
}

static double from_small(abc_type type, uint32_t bits)
{
    int m = mantissa_of(type), bias = bias_of(type), exponent = (int)(bits & ((1u << sign_of(type)) - 1)) >> m;
    uint32_t fraction = bits & ((1u << m) - 1);
    bool special = type == ABC_FP8_E4M3 ? (bits & 0x7f) == 0x7f : exponent == 0x1f;
    double size = ldexp(exponent ? fraction + ldexp(1, m) : fraction, (exponent ? exponent : 1) - bias - m);
    size = special ? (double)NAN : size; /* Inf is as wrong */
    return bits >> sign_of(type) & 1 ? -size : size;
}

/* A whole number as an element of any type: a complex number without imaginary part, a pair at place 0. */
static void encode(abc_type type, int64_t value, char *to)
{
    size_t size = abc_type_size(type);
    float f = (float)value;
    double d = (double)value;
    uint64_t bits = 0;
    memset(to, 0, size);
    switch (type) {
    case ABC_F32:
    case ABC_COMPLEX64:
    case ABC_F32_I32:
        memcpy(to, &f, sizeof f);
        return;
    case ABC_F64:
    case ABC_COMPLEX128:
    case ABC_F64_I32:
        memcpy(to, &d, sizeof d);
        return;
    case ABC_BF16:
        bits = to_bf16(f);
        break;
    case ABC_F16:
    case ABC_FP8_E4M3:
    case ABC_FP8_E5M2:
        bits = to_small(type, f);
        break;
    default: /* cut to its size: it wraps */
        bits = type == ABC_BOOL ? value != 0 : (uint64_t)value;
    }
    memcpy(to, &bits, type == ABC_I32_I32 ? 4 : size);
}

/* The other way: a number, of a complex one the real part. */
static double decode(abc_type type, const char *from)
{
    float f;
    double d;
    uint32_t bits = 0;
    switch (type) {
    case ABC_F32:
    case ABC_COMPLEX64:
        memcpy(&f, from, sizeof f);
        return (double)f;
    case ABC_F64:
    case ABC_COMPLEX128:
        memcpy(&d, from, sizeof d);
        return d;
    default:
        memcpy(&bits, from, abc_type_size(type));
        return type == ABC_BF16 ? (double)from_bf16((uint16_t)bits) : from_small(type, bits);
    }
}

/* There are few different values: each is encoded once. */
static void fill_by_table(char *dst, abc_type type, const struct values *v, uint32_t at, uint64_t count)
{
    char table[1024][16];
    size_t size = abc_type_size(type);
    for (uint32_t i = 0; i <= v->mask && i < 1024; i++)
        encode(type, (int32_t)i * v->step + v->low, table[i]);
    for (uint64_t i = 0; i < count; i++)
        memcpy(dst + i * size, table[(uint32_t)(value_at(v, at + (uint32_t)i) - v->low) / (uint32_t)v->step], size);
}

void bench_fill(void *dst, abc_type type, uint32_t limit, uint32_t seed, uint64_t first, uint64_t count)
{
    const struct values v = values_of(type, limit, seed);
    uint32_t at = (uint32_t)first;
    if (type == ABC_F32)
        for (uint64_t i = 0; i < count; i++)
            ((float *)dst)[i] = (float)value_at(&v, at + (uint32_t)i);
    else if (type == ABC_F64)
        for (uint64_t i = 0; i < count; i++)
            ((double *)dst)[i] = value_at(&v, at + (uint32_t)i);
    else if (type == ABC_I32)
        for (uint64_t i = 0; i < count; i++)
            ((int32_t *)dst)[i] = value_at(&v, at + (uint32_t)i);
    else
        fill_by_table(dst, type, &v, at, count);
}

static int32_t fold(abc_op op, int32_t a, int32_t b)
{
    switch (op) {
    case ABC_MIN:
    case ABC_MINLOC:
        return a < b ? a : b;
    case ABC_MAX:
    case ABC_MAXLOC:
        return a > b ? a : b;
    case ABC_PROD:
        return a * b;
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
        return a + b;
    }
}

/* One more vector joins the expectation. */
static void accumulate(int32_t *want, abc_op op, const struct values *v, uint32_t first, uint32_t count, bool start)
{
    bool logical = op == ABC_LAND || op == ABC_LOR || op == ABC_LXOR;
    for (uint32_t i = 0; i < count; i++) {
        int32_t next = value_at(v, first + i);
        next = logical ? next != 0 : next;
        want[i] = start ? next : fold(op, want[i], next);
    }
}

/* A whole number as the type holds it, wrapped. */
static int64_t wrapped(abc_type type, int64_t value)
{
    unsigned spare = 64 - 8 * (unsigned)abc_type_size(type);
    return is_unsigned(type) ? (int64_t)((uint64_t)value << spare >> spare) : (int64_t)((uint64_t)value << spare) >> spare;
}

/* The imaginary part of a complex number, which must be zero. */
static bool has_imaginary(abc_type type, const char *from)
{
    float f;
    double d;
    memcpy(&f, from + 4, sizeof f);
    memcpy(&d, from + sizeof d * (type == ABC_COMPLEX128), sizeof d);
    return type == ABC_COMPLEX128 ? d != 0 : f != 0;
}

static bool is_complex(abc_type type)
{
    return type == ABC_COMPLEX64 || type == ABC_COMPLEX128;
}

/* Averages of floats divide or multiply by the reciprocal: a few units in the last place either way. */
static uint64_t count_far(const char *buf, abc_type type, const int32_t *want, int nranks, uint32_t count)
{
    static const double tolerance[ABC_TYPE_COUNT] = {
        [ABC_F32] = 0x1p-21,     [ABC_F64] = 0x1p-50,     [ABC_BF16] = 0x1p-7,       [ABC_F16] = 0x1p-10,
        [ABC_FP8_E4M3] = 0x1p-3, [ABC_FP8_E5M2] = 0x1p-2, [ABC_COMPLEX64] = 0x1p-21, [ABC_COMPLEX128] = 0x1p-50,
    };
    uint64_t wrong = 0;
    size_t size = abc_type_size(type);
    for (uint32_t i = 0; i < count; i++) {
        char whole[16];
        if (tolerance[type] == 0) {
            int64_t sum = wrapped(type, want[i]);
            encode(type, is_unsigned(type) ? (int64_t)((uint64_t)sum / (unsigned)nranks) : sum / nranks, whole);
            wrong += memcmp(buf + i * size, whole, size) != 0;
            continue;
        }
        double expected = (double)want[i] / nranks;
        bool near = fabs(decode(type, buf + i * size) - expected) <= tolerance[type] * fabs(expected);
        wrong += !near || (is_complex(type) && has_imaginary(type, buf + i * size));
    }
    return wrong;
}

/* Sums of whole numbers are exact; so is all else. */
static uint64_t count_different(const char *buf, abc_type type, const int32_t *want, uint32_t count)
{
    uint64_t wrong = 0;
    size_t size = abc_type_size(type);
    if (type == ABC_F32)
        for (uint32_t i = 0; i < count; i++)
            wrong += ((const float *)buf)[i] != (float)want[i];
    else if (type == ABC_F64)
        for (uint32_t i = 0; i < count; i++)
            wrong += ((const double *)buf)[i] != (double)want[i];
    else if (is_complex(type)) /* zeros of both signs */
        for (uint32_t i = 0; i < count; i++)
            wrong += decode(type, buf + i * size) != want[i] || has_imaginary(type, buf + i * size);
    else
        for (uint32_t i = 0; i < count; i++) {
            char whole[16];
            encode(type, want[i], whole);
            wrong += memcmp(buf + i * size, whole, size) != 0;
        }
    return wrong;
}

uint64_t bench_check(const void *buf, abc_type type, abc_op op, uint32_t limit, const uint32_t *seeds, int nseeds, uint64_t first,
                     uint64_t count)
{
    const struct values v = values_of(type, limit, 0);
    int32_t want[BLOCK] = {0};
    uint64_t wrong = 0;
    abc_op what = type == ABC_BOOL && op == ABC_SUM ? ABC_LOR : op;
    for (uint64_t at = 0; at < count; at += BLOCK) {
        uint32_t n = count - at < BLOCK ? (uint32_t)(count - at) : BLOCK;
        for (int k = 0; k < nseeds; k++)
            accumulate(want, what, &(struct values){v.mask, seeds[k], v.step, v.low}, (uint32_t)(first + at), n, k == 0);
        const char *part = (const char *)buf + at * abc_type_size(type);
        wrong += op == ABC_AVG ? count_far(part, type, want, nseeds, n) : count_different(part, type, want, n);
    }
    return wrong;
}

void bench_read(const void *buf, size_t bytes)
{
    uint64_t sum = 0, word;
    for (size_t i = 0; i + sizeof word <= bytes; i += sizeof word) {
        memcpy(&word, (const char *)buf + i, sizeof word);
        sum += word;
    }
    __asm__ volatile("" ::"r"(sum)); /* the sum counts as used, so the loop stays */
}
