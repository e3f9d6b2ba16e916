/*
 * oracle.c - the independent reference of the reduction tests: slow, one element at a time, by definition rather than by bits.
 */
#include <math.h>
#include <string.h>

#include "oracle.h"

typedef __int128 whole;

static bool is_pair(abc_type type)
{
    return type == ABC_F32_I32 || type == ABC_F64_I32 || type == ABC_I32_I32;
}

static bool is_complex(abc_type type)
{
    return type == ABC_COMPLEX64 || type == ABC_COMPLEX128;
}

bool oracle_is_float(abc_type type)
{
    return type <= ABC_BF16 || type == ABC_F16 || type == ABC_FP8_E4M3 || type == ABC_FP8_E5M2;
}

size_t oracle_size(abc_type type)
{
    static const size_t sizes[ABC_TYPE_COUNT] = {4, 8, 2, 4, 2, 1, 1, 1, 1, 2, 2, 4, 8, 8, 1, 8, 16, 8, 16, 8};
    return sizes[type];
}

/* ---- Floats: the numbers of a type without their sign are counted up from zero ---- */

static int exponent_bits(abc_type type)
{
    return type == ABC_BF16 ? 8 : type == ABC_FP8_E4M3 ? 4 : 5;
}

static int mantissa_bits(abc_type type)
{
    return (int)oracle_size(type) * 8 - 1 - exponent_bits(type);
}

/* The first code that is no finite number. */
static unsigned end_code(abc_type type)
{
    if (type == ABC_FP8_E4M3)
        return 0x7f;
    return ((1u << exponent_bits(type)) - 1) << mantissa_bits(type);
}

/* As if the type went on beyond its end. */
static double number_of_code(abc_type type, unsigned code)
{
    int m = mantissa_bits(type), bias = (1 << (exponent_bits(type) - 1)) - 1;
    unsigned exponent = code >> m, fraction = code & ((1u << m) - 1);
    if (exponent == 0)
        return ldexp(fraction, 1 - bias - m);
    return ldexp(fraction + (double)(1u << m), (int)exponent - bias - m);
}

double oracle_widen(abc_type type, unsigned bits)
{
    unsigned sign = 1u << (oracle_size(type) * 8 - 1), code = bits & (sign - 1);
    bool infinite = type != ABC_FP8_E4M3 && code == end_code(type);
    double size = code < end_code(type) ? number_of_code(type, code) : infinite ? HUGE_VAL : NAN;
    return bits & sign ? -size : size;
}

/* The largest code that is not above, or its successor: take the nearer, on a tie the even one. */
unsigned oracle_narrow(abc_type type, double value)
{
    unsigned sign = signbit(value) ? 1u << (oracle_size(type) * 8 - 1) : 0, low = 0, high = end_code(type);
    unsigned nan = type == ABC_FP8_E4M3 ? 0x7f : end_code(type) | 1u << (mantissa_bits(type) - 1);
    value = fabs(value);
    if (isnan(value))
        return nan;
    if (value >= number_of_code(type, high))
        return sign | high;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (number_of_code(type, middle) <= value)
            low = middle;
        else
            high = middle;
    }
    double down = value - number_of_code(type, low), up = number_of_code(type, low + 1) - value;
    return sign | (down < up || (down == up && low % 2 == 0) ? low : low + 1);
}

static double load_float(abc_type type, const void *at)
{
    float f;
    double d;
    unsigned bits = 0;
    switch (type) {
    case ABC_F32:
        memcpy(&f, at, 4);
        return (double)f;
    case ABC_F64:
        memcpy(&d, at, 8);
        return d;
    default:
        memcpy(&bits, at, oracle_size(type)); /* little-endian hosts only, as the tests are */
        return oracle_widen(type, bits);
    }
}

static void store_float(abc_type type, double value, void *at)
{
    float f = (float)value;
    unsigned bits = type <= ABC_F64 ? 0 : oracle_narrow(type, value);
    memcpy(at, type == ABC_F32 ? (void *)&f : type == ABC_F64 ? (void *)&value : (void *)&bits, oracle_size(type));
}

/* Computes in the accumulation type; a volatile keeps each step rounded and in order. */
static double compute(bool wide, char what, double a, double b)
{
    volatile float x = (float)a, y = (float)b, f = what == '+' ? x + y : what == '*' ? x * y : x / y;
    volatile double d = what == '+' ? a + b : what == '*' ? a * b : a / b;
    return wide ? d : (double)f;
}

static double least(double a, double b, bool want_max)
{
    if (isnan(a) || isnan(b))
        return NAN;
    if (a == 0 && b == 0)
        return (signbit(a) != 0) == !want_max ? a : b;
    return (a < b) == !want_max ? a : b;
}

static void reduce_float(const struct abci_reduction *r, const void *const *src, int nsrc, size_t at, void *out)
{
    double value = load_float(r->type, (const char *)src[0] + at);
    for (int k = 1; k < nsrc; k++) {
        double next = load_float(r->type, (const char *)src[k] + at);
        if (r->op == ABC_MIN || r->op == ABC_MAX)
            value = least(value, next, r->op == ABC_MAX);
        else
            value = compute(r->type == ABC_F64, r->op == ABC_PROD ? '*' : '+', value, next);
    }
    if (r->op == ABC_AVG && r->final)
        value = compute(r->type == ABC_F64, '/', value, r->nranks);
    store_float(r->type, value, out);
}

/* ---- Whole numbers: without bounds, then cut ---- */

static bool is_signed(abc_type type)
{
    return type == ABC_I8 || type == ABC_I16 || type == ABC_I32 || type == ABC_I64;
}

static whole cut(abc_type type, whole value)
{
    whole range = (whole)1 << oracle_size(type) * 8;
    value = (value % range + range) % range;
    return is_signed(type) && value >= range / 2 ? value - range : value;
}

static whole load_whole(abc_type type, const void *at)
{
    unsigned long long bits = 0;
    memcpy(&bits, at, oracle_size(type));
    return type == ABC_BOOL ? bits != 0 : cut(type, bits);
}

static whole fold_whole(abc_op op, whole a, whole b)
{
    switch (op) {
    case ABC_MIN:
        return a < b ? a : b;
    case ABC_MAX:
        return a > b ? a : b;
    case ABC_PROD:
        return (whole)((unsigned __int128)a * (unsigned __int128)b);
    case ABC_BAND:
        return a & b;
    case ABC_BOR:
        return a | b;
    case ABC_BXOR:
        return a ^ b;
    case ABC_LAND:
        return a && b;
    case ABC_LOR:
        return a || b;
    case ABC_LXOR:
        return !a != !b;
    default:
        return a + b;
    }
}

static void reduce_whole(const struct abci_reduction *r, const void *const *src, int nsrc, size_t at, void *out)
{
    bool logical = r->op >= ABC_LAND && r->op <= ABC_LXOR;
    whole value = load_whole(r->type, (const char *)src[0] + at);
    value = logical ? value != 0 : value;
    for (int k = 1; k < nsrc; k++)
        value = cut(r->type, fold_whole(r->op, value, load_whole(r->type, (const char *)src[k] + at)));
    if (r->type == ABC_BOOL)
        value = value != 0;
    if (r->op == ABC_AVG && r->final)
        value /= r->nranks;
    unsigned long long bits = (unsigned long long)value;
    memcpy(out, &bits, oracle_size(r->type));
}

/* A sum of bools beyond 255 would come out false: fold them as truth. */
static abc_op bool_op(abc_op op)
{
    return op == ABC_SUM || op == ABC_MAX ? ABC_LOR : op == ABC_PROD || op == ABC_MIN ? ABC_LAND : op;
}

/* ---- Two parts ---- */

static void reduce_complex(const struct abci_reduction *r, const void *const *src, int nsrc, size_t at, void *out)
{
    bool wide = r->type == ABC_COMPLEX128;
    abc_type part = wide ? ABC_F64 : ABC_F32;
    size_t size = oracle_size(part);
    if (r->op != ABC_PROD) {
        struct abci_reduction one = *r;
        one.type = part;
        reduce_float(&one, src, nsrc, at, out);
        reduce_float(&one, src, nsrc, at + size, (char *)out + size);
        return;
    }
    double re = load_float(part, (const char *)src[0] + at), im = load_float(part, (const char *)src[0] + at + size);
    for (int k = 1; k < nsrc; k++) {
        double c = load_float(part, (const char *)src[k] + at), d = load_float(part, (const char *)src[k] + at + size);
        double new_re = compute(wide, '+', compute(wide, '*', re, c), -compute(wide, '*', im, d));
        im = compute(wide, '+', compute(wide, '*', re, d), compute(wide, '*', im, c));
        re = new_re;
    }
    store_float(part, re, out);
    store_float(part, im, (char *)out + size);
}

static double pair_value(abc_type type, const char *at)
{
    int i;
    memcpy(&i, at, 4);
    return type == ABC_I32_I32 ? i : load_float(type == ABC_F32_I32 ? ABC_F32 : ABC_F64, at);
}

static void reduce_pair(const struct abci_reduction *r, const void *const *src, int nsrc, size_t at, void *out)
{
    size_t value_size = r->type == ABC_F64_I32 ? 8 : 4;
    const char *best = NULL;
    for (int k = 0; k < nsrc; k++) {
        const char *next = (const char *)src[k] + at;
        double a = best ? pair_value(r->type, best) : 0, b = pair_value(r->type, next);
        int i = 0, j;
        if (best)
            memcpy(&i, best + value_size, 4);
        memcpy(&j, next + value_size, 4);
        bool equal = a == b || (isnan(a) && isnan(b));
        bool better = isnan(b) ? !isnan(a) : !isnan(a) && (r->op == ABC_MINLOC ? b < a : b > a);
        if (!best || better || (equal && j < i))
            best = next;
    }
    memset(out, 0, oracle_size(r->type));
    memcpy(out, best, value_size + 4);
}

void oracle_element(const struct abci_reduction *r, const void *const *src, int nsrc, size_t at, void *out)
{
    struct abci_reduction one = *r;
    one.op = r->type == ABC_BOOL ? bool_op(r->op) : r->op;
    if (oracle_is_float(r->type))
        reduce_float(r, src, nsrc, at, out);
    else if (is_complex(r->type))
        reduce_complex(r, src, nsrc, at, out);
    else if (is_pair(r->type))
        reduce_pair(r, src, nsrc, at, out);
    else
        reduce_whole(&one, src, nsrc, at, out);
}

static bool same_float(abc_type type, const char *got, const char *want)
{
    unsigned bits = 0;
    if (memcmp(got, want, oracle_size(type)) == 0)
        return true;
    if (!isnan(load_float(type, want)) || !isnan(load_float(type, got)))
        return false;
    if (type != ABC_BF16 && type != ABC_F16)
        return true;
    memcpy(&bits, got, 2);
    return (bits & 1u << (mantissa_bits(type) - 1)) != 0;
}

bool oracle_same(abc_type type, const void *got, const void *want)
{
    const char *a = got, *b = want;
    abc_type part = type == ABC_COMPLEX64 || type == ABC_F32_I32 ? ABC_F32 : ABC_F64;
    size_t size = oracle_size(part);
    if (is_complex(type))
        return same_float(part, a, b) && same_float(part, a + size, b + size);
    if (type == ABC_F32_I32 || type == ABC_F64_I32)
        return same_float(part, a, b) && memcmp(a + size, b + size, oracle_size(type) - size) == 0;
    return oracle_is_float(type) ? same_float(type, a, b) : memcmp(a, b, oracle_size(type)) == 0;
}
