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

uint32_t bench_data_limit(abc_type type, int nranks)
{
    if (type != ABC_BF16)
        return 1024;
    /* Eight bits of significance: whole numbers to 256. */
    uint32_t limit = 256;
    while (limit > 2 && limit / 2 * (uint32_t)nranks > 256)
        limit /= 2;
    return limit;
}

/* The second term makes elements one period apart differ too. */
static inline int32_t value_at(uint32_t index, uint32_t seed, uint32_t limit)
{
    return (int32_t)((index + (index >> 10) * 37u + seed) & (limit - 1)) - (int32_t)(limit / 2);
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

void bench_fill(void *dst, abc_type type, uint32_t limit, uint32_t seed, uint64_t first, uint64_t count)
{
    uint32_t at = (uint32_t)first;
    if (type == ABC_F32)
        for (uint64_t i = 0; i < count; i++)
            ((float *)dst)[i] = (float)value_at(at + (uint32_t)i, seed, limit);
    else if (type == ABC_F64)
        for (uint64_t i = 0; i < count; i++)
            ((double *)dst)[i] = value_at(at + (uint32_t)i, seed, limit);
    else if (type == ABC_I32)
        for (uint64_t i = 0; i < count; i++)
            ((int32_t *)dst)[i] = value_at(at + (uint32_t)i, seed, limit);
    else
        for (uint64_t i = 0; i < count; i++)
            ((uint16_t *)dst)[i] = to_bf16((float)value_at(at + (uint32_t)i, seed, limit));
}

/* One more vector joins the expectation. */
static void accumulate(int32_t *want, abc_op op, uint32_t limit, uint32_t seed, uint32_t first, uint32_t count, bool start)
{
    for (uint32_t i = 0; i < count; i++) {
        int32_t v = value_at(first + i, seed, limit);
        if (start)
            want[i] = v;
        else if (op == ABC_MIN)
            want[i] = v < want[i] ? v : want[i];
        else if (op == ABC_MAX)
            want[i] = v > want[i] ? v : want[i];
        else
            want[i] += v;
    }
}

/* Averages divide or multiply by the reciprocal: a few units in the last place either way. */
static uint64_t count_far(const void *buf, abc_type type, const int32_t *want, int nranks, uint64_t at, uint32_t count)
{
    static const double tolerance[ABC_TYPE_COUNT] = {[ABC_F32] = 0x1p-21, [ABC_F64] = 0x1p-50, [ABC_BF16] = 0x1p-7};
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (type == ABC_I32) {
            wrong += ((const int32_t *)buf)[at + i] != want[i] / nranks;
            continue;
        }
        double is = type == ABC_F32   ? (double)((const float *)buf)[at + i]
                    : type == ABC_F64 ? ((const double *)buf)[at + i]
                                      : (double)from_bf16(((const uint16_t *)buf)[at + i]);
        double expected = (double)want[i] / nranks;
        wrong += !(fabs(is - expected) <= tolerance[type] * fabs(expected));
    }
    return wrong;
}

/* Sums of whole numbers are exact; so are minimum and maximum. */
static uint64_t count_different(const void *buf, abc_type type, const int32_t *want, uint64_t at, uint32_t count)
{
    uint32_t wrong = 0;
    if (type == ABC_F32)
        for (uint32_t i = 0; i < count; i++)
            wrong += ((const float *)buf)[at + i] != (float)want[i];
    else if (type == ABC_F64)
        for (uint32_t i = 0; i < count; i++)
            wrong += ((const double *)buf)[at + i] != (double)want[i];
    else if (type == ABC_I32)
        for (uint32_t i = 0; i < count; i++)
            wrong += ((const int32_t *)buf)[at + i] != want[i];
    else
        for (uint32_t i = 0; i < count; i++)
            wrong += from_bf16(((const uint16_t *)buf)[at + i]) != (float)want[i];
    return wrong;
}

uint64_t bench_check(const void *buf, abc_type type, abc_op op, uint32_t limit, const uint32_t *seeds, int nseeds, uint64_t first,
                     uint64_t count)
{
    int32_t want[BLOCK] = {0};
    uint64_t wrong = 0;
    for (uint64_t at = 0; at < count; at += BLOCK) {
        uint32_t n = count - at < BLOCK ? (uint32_t)(count - at) : BLOCK;
        for (int k = 0; k < nseeds; k++)
            accumulate(want, op, limit, seeds[k], (uint32_t)(first + at), n, k == 0);
        wrong += op == ABC_AVG ? count_far(buf, type, want, nseeds, at, n) : count_different(buf, type, want, at, n);
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
