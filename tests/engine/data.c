/*
 * data.c - inputs, user operations and the scalar reference. Elements are raw bits in a uint64_t; buffers may have any alignment,
 * so all access is by memcpy. Pure, but for the two operations of the process.
 */
#include "data.h"

#include <math.h>
#include <string.h>

#include "harness.h"

/* ---- Elements ---- */

static uint64_t load(abc_type type, const void *at, uint64_t index)
{
    uint64_t bits = 0;
    memcpy(&bits, (const char *)at + index * abc_type_size(type), abc_type_size(type)); /* little endian */
    return bits;
}

static double to_number(abc_type type, uint64_t bits)
{
    uint32_t word = (uint32_t)bits;
    double d;
    float f;
    if (type == ABC_F64) {
        memcpy(&d, &bits, sizeof d);
        return d;
    }
    if (type == ABC_I32)
        return (double)(int32_t)word;
    if (type == ABC_BF16)
        word <<= 16;
    memcpy(&f, &word, sizeof f);
    return f;
}

/* Round a float to bf16, ties to even, by arithmetic on the two candidates. */
static uint64_t bf16_of(float f)
{
    uint32_t word;
    memcpy(&word, &f, sizeof word);
    if (isnan(f))
        return 0x7fc0;
    uint32_t low = word & 0xffff, high = word >> 16;
    return low > 0x8000 || (low == 0x8000 && (high & 1)) ? high + 1 : high;
}

static uint64_t from_number(abc_type type, double d)
{
    float f = (float)d;
    uint64_t bits = 0;
    uint32_t word;
    if (type == ABC_F64) {
        memcpy(&bits, &d, sizeof bits);
        return bits;
    }
    if (type == ABC_I32)
        return (uint32_t)(int32_t)d;
    if (type == ABC_BF16)
        return bf16_of(f);
    memcpy(&word, &f, sizeof word);
    return word;
}

/* ---- Inputs ---- */

uint64_t value_of(const struct values *v, int rank, uint64_t index)
{
    uint64_t state = v->seed ^ (uint64_t)rank << 48 ^ index;
    uint64_t dice = random_next(&state);
    uint64_t mask = v->type == ABC_F64 ? ~0ull : v->type == ABC_BF16 ? 0xffff : 0xffffffff;
    if (v->op == TEST_USER_AFFINE || (v->type == ABC_I32 && !v->exact))
        return dice & mask;
    if (v->exact)
        return from_number(v->type, (double)(int64_t)(dice % 7) - 3);
    if (v->op == TEST_MIN || v->op == TEST_MAX) /* zeros of both signs and NaN among them */
        if (dice % 61 < 3)
            return from_number(v->type, dice % 61 == 0 ? 0.0 : dice % 61 == 1 ? -0.0 : (double)NAN);
    union {
        uint64_t bits;
        double number;
    } scale = {.bits = (1023 - 75 + dice % 24) << 52}; /* a power of two */
    return from_number(v->type, (double)(int64_t)dice * scale.number);
}

void values_fill(const struct values *v, int rank, uint64_t first, uint64_t count, void *to)
{
    size_t size = abc_type_size(v->type);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = value_of(v, rank, first + i);
        memcpy((char *)to + i * size, &bits, size);
    }
}

uint64_t values_differ(const struct values *v, int rank, uint64_t first, uint64_t count, const void *from)
{
    for (uint64_t i = 0; i < count; i++)
        if (load(v->type, from, i) != value_of(v, rank, first + i))
            return i;
    return count;
}

/* ---- User operations ---- */

/* x -> a x + b with both in one element, half of its bits each: composition is associative and does not commute. */
static uint64_t affine(abc_type type, uint64_t f, uint64_t g)
{
    int half = (int)abc_type_size(type) * 4;
    uint64_t mask = (1ull << half) - 1;
    uint64_t a = (f & mask) * (g & mask) & mask;
    uint64_t b = ((f & mask) * (g >> half) + (f >> half)) & mask;
    return a | b << half;
}

static uint64_t add(abc_type type, uint64_t x, uint64_t y)
{
    if (type == ABC_I32)
        return (uint32_t)(x + y);
    if (type == ABC_F64)
        return from_number(type, to_number(type, x) + to_number(type, y));
    return from_number(type, (float)to_number(type, x) + (float)to_number(type, y));
}

static void apply(const void *in, void *inout, uint64_t count, abc_type type, uint64_t (*f)(abc_type, uint64_t, uint64_t))
{
    size_t size = abc_type_size(type);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = f(type, load(type, in, i), load(type, inout, i));
        memcpy((char *)inout + i * size, &bits, size);
    }
}

static void user_add(const void *in, void *inout, uint64_t count, abc_type type, void *context)
{
    apply(in, inout, count, type, add);
}

static void user_affine(const void *in, void *inout, uint64_t count, abc_type type, void *context)
{
    apply(in, inout, count, type, affine);
}

static abc_op user_op[2];

int ops_open(void)
{
    int status = abc_op_create(user_add, 1, NULL, &user_op[0]);
    return status != ABC_OK ? status : abc_op_create(user_affine, 0, NULL, &user_op[1]);
}

void ops_close(void)
{
    abc_op_free(user_op[0]);
    abc_op_free(user_op[1]);
}

abc_op op_for(enum test_op op)
{
    return op >= TEST_USER_ADD ? user_op[op - TEST_USER_ADD] : (abc_op)op;
}

const char *test_op_name(enum test_op op)
{
    return op == TEST_USER_ADD ? "user-add" : op == TEST_USER_AFFINE ? "user-affine" : abc_op_name((abc_op)op);
}

/* ---- Reference ---- */

static uint64_t extreme(const struct values *v, int nranks, uint64_t index)
{
    uint64_t best = value_of(v, 0, index);
    for (int r = 1; r < nranks; r++) {
        uint64_t bits = value_of(v, r, index);
        double a = to_number(v->type, best), b = to_number(v->type, bits);
        if (isnan(a))
            return best;
        bool take = v->op == TEST_MIN ? b < a : b > a;
        if (a == 0 && b == 0 && v->type != ABC_I32)
            take = v->op == TEST_MIN ? signbit(b) : !signbit(b);
        if (take || isnan(b))
            best = bits;
    }
    return best;
}

static uint64_t total_i32(const struct values *v, int nranks, uint64_t index)
{
    uint32_t sum = 0;
    for (int r = 0; r < nranks; r++)
        sum += (uint32_t)value_of(v, r, index);
    return v->op == TEST_AVG ? (uint32_t)((int32_t)sum / nranks) : sum;
}

static uint64_t total_f64(const struct values *v, int nranks, uint64_t index)
{
    double sum = to_number(v->type, value_of(v, 0, index));
    for (int r = 1; r < nranks; r++)
        sum += to_number(v->type, value_of(v, r, index));
    return from_number(v->type, v->op == TEST_AVG ? sum / nranks : sum);
}

/* f32 and bf16: accumulated in f32, rounded once. */
static uint64_t total_f32(const struct values *v, int nranks, uint64_t index)
{
    volatile float sum =
        (float)to_number(v->type, value_of(v, 0, index)); /* volatile: no wider intermediate, whatever the compiler */
    for (int r = 1; r < nranks; r++)
        sum += (float)to_number(v->type, value_of(v, r, index));
    if (v->op == TEST_AVG)
        sum /= (float)nranks;
    return from_number(v->type, sum);
}

static uint64_t reduced(const struct values *v, int nranks, uint64_t index)
{
    if (v->op == TEST_USER_ADD || v->op == TEST_USER_AFFINE) {
        uint64_t bits = value_of(v, 0, index);
        for (int r = 1; r < nranks; r++)
            bits = (v->op == TEST_USER_ADD ? add : affine)(v->type, bits, value_of(v, r, index));
        return bits;
    }
    if (v->op == TEST_MIN || v->op == TEST_MAX)
        return extreme(v, nranks, index);
    return v->type == ABC_I32   ? total_i32(v, nranks, index)
           : v->type == ABC_F64 ? total_f64(v, nranks, index)
                                : total_f32(v, nranks, index);
}

uint64_t reduction_differs(const struct values *v, int nranks, uint64_t first, uint64_t count, const void *from, uint64_t *got,
                           uint64_t *want)
{
    for (uint64_t i = 0; i < count; i++) {
        *got = load(v->type, from, i);
        *want = reduced(v, nranks, first + i);
        bool both_nan =
            v->type != ABC_I32 && v->op <= TEST_AVG && isnan(to_number(v->type, *got)) && isnan(to_number(v->type, *want));
        if (*got != *want && !both_nan)
            return i;
    }
    return count;
}
