/* test_data.c - the check of the benchmarks sees what it should: wrong, misplaced and stale elements; and accepts what is right. */
#include <setjmp.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../tools/bench.h"
#include "../reduce/oracle.h"

enum { COUNT = 5000, MOST_RANKS = 9 };

static bool whole_numbers(abc_type type)
{
    return type == ABC_I32 || (type >= ABC_I8 && type <= ABC_BOOL);
}

static bool small_float(abc_type type)
{
    return type == ABC_BF16 || type == ABC_F16 || type == ABC_FP8_E4M3 || type == ABC_FP8_E5M2;
}

/* The obvious way, element by element, on numbers. */
static double fold(abc_type type, abc_op op, double a, double b)
{
    switch (op) {
    case ABC_MIN:
    case ABC_MINLOC:
        return b < a ? b : a;
    case ABC_MAX:
    case ABC_MAXLOC:
        return b > a ? b : a;
    case ABC_PROD:
        return a * b;
    case ABC_BAND:
        return (double)((int64_t)a & (int64_t)b);
    case ABC_BOR:
        return (double)((int64_t)a | (int64_t)b);
    case ABC_BXOR:
        return (double)((int64_t)a ^ (int64_t)b);
    case ABC_LAND:
        return a != 0 && b != 0;
    case ABC_LOR:
        return a != 0 || b != 0;
    case ABC_LXOR:
        return (a != 0) != (b != 0);
    default:
        return type == ABC_BOOL ? a != 0 || b != 0 : a + b;
    }
}

/* A whole number in an integer type: these wrap. */
static double wrapped(abc_type type, double value)
{
    double range = exp2((double)abc_type_size(type) * 8);
    bool has_sign = type == ABC_I8 || type == ABC_I16 || type == ABC_I32 || type == ABC_I64;
    if (abc_type_size(type) == 8) /* nothing here comes near its ends */
        return value;
    value -= floor(value / range) * range;
    return has_sign && value >= range / 2 ? value - range : value;
}

static double reduced(abc_type type, abc_op op, const double *v, int n)
{
    double r = op >= ABC_LAND && op <= ABC_LXOR ? v[0] != 0 : v[0];
    for (int i = 1; i < n; i++)
        r = fold(type, op, r, v[i]);
    if (whole_numbers(type))
        r = wrapped(type, r);
    if (op == ABC_AVG)
        r = whole_numbers(type) ? trunc(r / n) : r / n;
    return r;
}

/* In small types and in what has two parts the number stands first. */
static double get(const void *buf, abc_type type, size_t i)
{
    const char *at = (const char *)buf + i * abc_type_size(type);
    uint64_t bits = 0;
    int32_t word;
    float f;
    double d;
    memcpy(&f, at, sizeof f);
    memcpy(&word, at, sizeof word);
    if (type == ABC_F32 || type == ABC_COMPLEX64 || type == ABC_F32_I32)
        return (double)f;
    if (type == ABC_I32_I32)
        return word;
    if (type == ABC_F64 || type == ABC_COMPLEX128 || type == ABC_F64_I32) {
        memcpy(&d, at, sizeof d);
        return d;
    }
    memcpy(&bits, at, abc_type_size(type));
    if (small_float(type))
        return oracle_widen(type, (unsigned)bits);
    return type == ABC_I64 ? (double)(int64_t)bits : wrapped(type, (double)bits);
}

static void put(void *buf, abc_type type, size_t i, double value)
{
    size_t size = abc_type_size(type);
    char *at = (char *)buf + i * size;
    float f = (float)value;
    int64_t bits = small_float(type) ? (int64_t)oracle_narrow(type, (double)f) : (int64_t)value;
    memset(at, 0, size);
    if (type == ABC_F32 || type == ABC_COMPLEX64 || type == ABC_F32_I32)
        memcpy(at, &f, sizeof f);
    else if (type == ABC_F64 || type == ABC_COMPLEX128 || type == ABC_F64_I32)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &bits, type == ABC_I32_I32 ? 4 : size);
}

/* Values that stay small in products: -1 and 1, which are much alike from place to place. */
static bool alike(abc_type type, abc_op op)
{
    return type == ABC_BOOL || op == ABC_PROD || (op >= ABC_BAND && op <= ABC_LXOR);
}

/* Inputs of the ranks and their true result. */
struct case_data {
    double in[MOST_RANKS][2 * COUNT], out[2 * COUNT]; /* room for any type */
    uint32_t seeds[MOST_RANKS], limit;
};

static void make(struct case_data *c, abc_type type, abc_op op, int ranks, uint32_t iteration)
{
    double v[MOST_RANKS];
    c->limit = alike(type, op) && op != ABC_BAND && op != ABC_BOR && op != ABC_BXOR ? 2 : bench_data_limit(type, ranks);
    for (int r = 0; r < ranks; r++) {
        c->seeds[r] = bench_seed(iteration, r);
        bench_fill(c->in[r], type, c->limit, c->seeds[r], 0, COUNT);
    }
    for (size_t i = 0; i < COUNT; i++) {
        for (int r = 0; r < ranks; r++)
            v[r] = get(c->in[r], type, i);
        put(c->out, type, i, reduced(type, op, v, ranks));
    }
}

static uint64_t check(const struct case_data *c, const void *buf, abc_type type, abc_op op, int ranks, uint64_t count)
{
    return bench_check(buf, type, op, c->limit, c->seeds, ranks, 0, count);
}

static void each(void (*test)(struct case_data *c, abc_type type, abc_op op, int ranks))
{
    struct case_data *c = malloc(sizeof *c);
    assert_non_null(c);
    for (int type = 0; type < ABC_TYPE_COUNT; type++)
        for (int op = 0; op < ABC_OP_COUNT; op++)
            for (int ranks = 1; ranks <= MOST_RANKS && abci_reduce_has((abc_type)type, (abc_op)op); ranks++) {
                make(c, (abc_type)type, (abc_op)op, ranks, 7);
                test(c, (abc_type)type, (abc_op)op, ranks);
            }
    free(c);
}

static void accept_right(struct case_data *c, abc_type type, abc_op op, int ranks)
{
    assert_int_equal(check(c, c->out, type, op, ranks, COUNT), 0);
}

static void count_one(struct case_data *c, abc_type type, abc_op op, int ranks)
{
    ((unsigned char *)c->out)[abc_type_size(type) * (COUNT / 2 + 1) - 1] ^= 0x40;
    assert_int_equal(check(c, c->out, type, op, ranks, COUNT), 1);
}

/* One element, one block of the check, one page. */
static void refuse_shifted(struct case_data *c, abc_type type, abc_op op, int ranks)
{
    size_t size = abc_type_size(type);
    const size_t shifts[] = {1, 1024, 4096 / size};
    if (alike(type, op) || abc_type_size(type) == 1) /* of few numbers many neighbours are equal */
        return;
    for (int i = 0; i < 3; i++) {
        uint64_t n = COUNT - shifts[i];
        assert_true(check(c, (char *)c->out + shifts[i] * size, type, op, ranks, n) > n / 4);
    }
}

static void refuse_stale(struct case_data *c, abc_type type, abc_op op, int ranks)
{
    if (alike(type, op) || abc_type_size(type) == 1)
        return;
    make(c, type, op, ranks, 8);
    for (int r = 0; r < ranks; r++)
        c->seeds[r] = bench_seed(9, r);
    assert_true(check(c, c->out, type, op, ranks, COUNT) > COUNT / 10);
}

static void test_right(void **state)
{
    each(accept_right);
}

static void test_one_wrong(void **state)
{
    each(count_one);
}

static void test_shifted(void **state)
{
    each(refuse_shifted);
}

static void test_stale(void **state)
{
    each(refuse_stale);
}

static void test_nan(void **state)
{
    float nan = __builtin_nanf("");
    uint32_t seed = bench_seed(1, 0);
    assert_int_equal(bench_check(&nan, ABC_F32, ABC_SUM, 1024, &seed, 1, 0, 1), 1);
    assert_int_equal(bench_check(&nan, ABC_F32, ABC_AVG, 1024, &seed, 1, 0, 1), 1);
}

/* A block of a larger vector: as reduce_scatter leaves it. */
static void test_offset(void **state)
{
    static float whole[COUNT];
    uint32_t seed = bench_seed(3, 0);
    bench_fill(whole, ABC_F32, 1024, seed, 0, COUNT);
    assert_int_equal(bench_check(whole + 1234, ABC_F32, ABC_SUM, 1024, &seed, 1, 1234, 1000), 0);
    assert_true(bench_check(whole + 1234, ABC_F32, ABC_SUM, 1024, &seed, 1, 1233, 1000) > 900);
}

static void test_sums_are_exact(void **state)
{
    for (int ranks = 1; ranks <= 128; ranks++)
        assert_true(bench_data_limit(ABC_BF16, ranks) / 2 * (uint32_t)ranks <= 256);
    assert_true(bench_data_limit(ABC_BF16, 1024) >= 2);
}

static void test_percentiles(void **state)
{
    double v[] = {5, 1, 4, 2, 3};
    assert_true(bench_percentile(v, 5, 0.5) == 3.0);
    assert_true(bench_percentile(v, 5, 0.99) == 5.0);
    assert_true(bench_percentile(v, 5, 0) == 1.0);
    assert_true(bench_percentile(v, 0, 0.5) == 0.0);
    assert_true(bench_mean(v, 5) == 3.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right),          cmocka_unit_test(test_one_wrong),   cmocka_unit_test(test_shifted),
        cmocka_unit_test(test_stale),          cmocka_unit_test(test_nan),         cmocka_unit_test(test_offset),
        cmocka_unit_test(test_sums_are_exact), cmocka_unit_test(test_percentiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
