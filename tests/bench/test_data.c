/* test_data.c - the check of the benchmarks sees what it should: wrong, misplaced and stale elements; and accepts what is right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../tools/bench.h"

enum { COUNT = 5000, MOST_RANKS = 9 };
static const size_t type_sizes[ABC_TYPE_COUNT] = {4, 8, 2, 4};

/* The obvious way, element by element, for the types that C knows. */
static double reduced(abc_type type, abc_op op, const double *v, int n)
{
    double r = v[0];
    for (int i = 1; i < n; i++)
        r = op == ABC_MIN ? (v[i] < r ? v[i] : r) : op == ABC_MAX ? (v[i] > r ? v[i] : r) : r + v[i];
    if (op == ABC_AVG)
        r = type == ABC_I32 ? (double)((int32_t)r / n) : r / n;
    return r;
}

static double get(const void *buf, abc_type type, size_t i)
{
    uint32_t bits;
    float f;
    switch (type) {
    case ABC_F32:
        return (double)((const float *)buf)[i];
    case ABC_F64:
        return ((const double *)buf)[i];
    case ABC_I32:
        return ((const int32_t *)buf)[i];
    default:
        bits = (uint32_t)((const uint16_t *)buf)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
}

static void put(void *buf, abc_type type, size_t i, double value)
{
    float f = (float)value;
    uint32_t bits;
    if (type == ABC_F32)
        ((float *)buf)[i] = f;
    else if (type == ABC_F64)
        ((double *)buf)[i] = value;
    else if (type == ABC_I32)
        ((int32_t *)buf)[i] = (int32_t)value;
    else {
        memcpy(&bits, &f, sizeof bits);
        ((uint16_t *)buf)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

/* Inputs of the ranks and their true result. */
struct case_data {
    double in[MOST_RANKS][COUNT], out[COUNT]; /* room for any type */
    uint32_t seeds[MOST_RANKS], limit;
};

static void make(struct case_data *c, abc_type type, abc_op op, int ranks, uint32_t iteration)
{
    double v[MOST_RANKS];
    c->limit = bench_data_limit(type, ranks);
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
            for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
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
    ((unsigned char *)c->out)[type_sizes[type] * (COUNT / 2 + 1) - 1] ^= 0x40;
    assert_int_equal(check(c, c->out, type, op, ranks, COUNT), 1);
}

/* One element, one block of the check, one page. */
static void refuse_shifted(struct case_data *c, abc_type type, abc_op op, int ranks)
{
    size_t size = type_sizes[type];
    const size_t shifts[] = {1, 1024, 4096 / size};
    for (int i = 0; i < 3; i++) {
        uint64_t n = COUNT - shifts[i];
        assert_true(check(c, (char *)c->out + shifts[i] * size, type, op, ranks, n) > n / 4);
    }
}

static void refuse_stale(struct case_data *c, abc_type type, abc_op op, int ranks)
{
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
