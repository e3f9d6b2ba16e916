/*
 * values.c - a rank's number at a place is a hash of the place, 0 to 7, plus the rank. So eight numbers are all that a result can
 * have, whatever its length, and they are worked out before a buffer is compared.
 */
#include "values.h"

#include <string.h>

#define KINDS 8

const abc_type values_types[VALUES_TYPES] = {ABC_F32, ABC_BF16, ABC_U8, ABC_I32, ABC_F64};

static uint32_t kind_of(uint64_t place, uint32_t seed)
{
    return ((uint32_t)place * 0x9e3779b1u + seed) >> 29;
}

static void encode(abc_type type, double value, void *to)
{
    const float f = (float)value;
    const int32_t n = (int32_t)value;
    const uint8_t byte = (uint8_t)n;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint16_t half = (uint16_t)(bits >> 16);
    const void *from = type == ABC_F64    ? (const void *)&value
                       : type == ABC_F32  ? (const void *)&f
                       : type == ABC_I32  ? (const void *)&n
                       : type == ABC_BF16 ? (const void *)&half
                                          : (const void *)&byte;
    memcpy(to, from, abc_type_size(type));
}

/* What stands where the kind is k. */
static double number(const struct piece *p, abc_op op, uint32_t k)
{
    if (p->ranks == 0)
        return k + p->rank;
    double n = p->ranks, others = n * (n - 1) / 2;
    return op == ABC_MIN ? k : op == ABC_MAX ? k + n - 1 : op == ABC_AVG ? k + others / n : n * k + others;
}

static void table(const struct piece *p, abc_type type, abc_op op, char bits[KINDS * 8])
{
    for (uint32_t k = 0; k < KINDS; k++)
        encode(type, number(p, op, k), bits + k * abc_type_size(type));
}

void values_put(char *buffer, const struct piece *p, abc_type type, uint32_t seed)
{
    char bits[KINDS * 8];
    const size_t size = abc_type_size(type);
    table(p, type, ABC_SUM, bits);
    char *to = buffer + p->at * size;
    for (uint64_t i = 0; i < p->count; i++)
        memcpy(to + i * size, bits + kind_of(p->key + i, seed) * size, size);
}

uint64_t values_wrong(const char *buffer, const struct piece *p, abc_type type, abc_op op, uint32_t seed)
{
    char bits[KINDS * 8];
    const size_t size = abc_type_size(type);
    uint64_t i = 0;
    table(p, type, op, bits);
    const char *from = buffer + p->at * size;
    while (i < p->count && memcmp(from + i * size, bits + kind_of(p->key + i, seed) * size, size) == 0)
        i++;
    return i;
}
