/*
 * oracle.c - the independent reference of the reduction tests: slow, one element at a time, by definition rather than by bits.
 */
#include <math.h>
#include <string.h>

#include "oracle.h"

size_t oracle_size(abc_type type)
{
    static const size_t sizes[ABC_TYPE_COUNT] = {4, 8, 2, 4};
    return sizes[type];
}

float oracle_widen(unsigned short half)
{
    unsigned char bytes[4] = {0, 0, (unsigned char)(half & 0xff), (unsigned char)(half >> 8)};
    float value;
    memcpy(&value, bytes, 4); /* little-endian hosts only, as the tests are */
    return value;
}

/* The neighbours toward and away from zero are the cut pattern and its successor; take the nearer, on a tie the even one. */
unsigned short oracle_narrow(float value)
{
    if (isnan(value))
        return 0x7fc0;
    unsigned bits;
    memcpy(&bits, &value, 4);
    unsigned short low = (unsigned short)(bits / 65536u);
    if (isinf(value))
        return low;
    unsigned short high = (unsigned short)(low + 1);
    double beyond = isinf(oracle_widen(high)) ? copysign(0x1p128, value) : (double)oracle_widen(high);
    double down = fabs((double)value - (double)oracle_widen(low)), up = fabs(beyond - (double)value);
    if (down != up)
        return down < up ? low : high;
    return low % 2 == 0 ? low : high;
}

static double number(abc_type type, const void *at)
{
    float f;
    double d;
    unsigned short half;
    int i;
    switch (type) {
    case ABC_F32:
        memcpy(&f, at, 4);
        return (double)f;
    case ABC_F64:
        memcpy(&d, at, 8);
        return d;
    case ABC_BF16:
        memcpy(&half, at, 2);
        return (double)oracle_widen(half);
    default:
        memcpy(&i, at, 4);
        return (double)i;
    }
}

/* Sums in the accumulation type; a volatile keeps each one rounded and in order. */
static double add(abc_type type, double a, double b)
{
    if (type == ABC_F64) {
        volatile double sum = a + b;
        return sum;
    }
    if (type == ABC_I32) {
        long long sum = (long long)a + (long long)b;
        if (sum > 2147483647LL)
            sum -= 4294967296LL;
        if (sum < -2147483648LL)
            sum += 4294967296LL;
        return (double)sum;
    }
    volatile float sum = (float)a + (float)b;
    return (double)sum;
}

static double least(double a, double b, bool want_max)
{
    if (isnan(a) || isnan(b))
        return NAN;
    if (a == 0 && b == 0)
        return (signbit(a) != 0) == !want_max ? a : b;
    return (a < b) == !want_max ? a : b;
}

static double divide(abc_type type, double sum, int by)
{
    if (type == ABC_F64)
        return sum / by;
    if (type == ABC_I32)
        return (double)((long long)sum / by);
    volatile float quotient = (float)sum / (float)by;
    return (double)quotient;
}

void oracle_element(const struct abci_reduction *r, const void *const *src, int nsrc, size_t at, void *out)
{
    double value = number(r->type, (const char *)src[0] + at);
    for (int k = 1; k < nsrc; k++) {
        double next = number(r->type, (const char *)src[k] + at);
        if (r->op == ABC_MIN || r->op == ABC_MAX)
            value = least(value, next, r->op == ABC_MAX);
        else
            value = add(r->type, value, next);
    }
    if (r->op == ABC_AVG && r->final)
        value = divide(r->type, value, r->nranks);
    float f = (float)value;
    unsigned short half = r->type == ABC_BF16 ? oracle_narrow(f) : 0;
    int i = r->type == ABC_I32 ? (int)value : 0;
    const void *from = r->type == ABC_F64    ? (const void *)&value
                       : r->type == ABC_BF16 ? (const void *)&half
                       : r->type == ABC_I32  ? (const void *)&i
                                             : (const void *)&f;
    memcpy(out, from, oracle_size(r->type));
}

bool oracle_same(abc_type type, const void *got, const void *want)
{
    if (memcmp(got, want, oracle_size(type)) == 0)
        return true;
    if (type == ABC_I32 || !isnan(number(type, want)) || !isnan(number(type, got)))
        return false;
    unsigned short half = 0x40;
    if (type == ABC_BF16)
        memcpy(&half, got, 2);
    return (half & 0x40) != 0;
}
