/*
 * test_price.c - prices are sane: they grow with ranks and with every constant, and they put algorithms in the order that reason
 * and measurement do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "plan/plan.h"

#define LARGE (64.0 * 1024 * 1024)

static const struct abci_price_constants usual = {
    .hand_off = 0.15e-6, .step = 0.03e-6, .copy = 0.08e-9, .read = 0.12e-9, .reduce = 0.05e-9, .crowding = 1};

static struct abci_price price_of(const char *name, int coll, int nranks, const struct abci_price_constants *c)
{
    struct abci_plan_set set;
    struct abci_price price;
    assert_int_equal(abci_plan_set_build(abci_algo_find(name), (abc_collective)coll, nranks, 0, &set), ABC_OK);
    abci_plan_price(&set, c, &price);
    abci_plan_set_free(&set);
    return price;
}

static double time_of(const char *name, int nranks, double bytes)
{
    struct abci_price price = price_of(name, ABC_ALLREDUCE, nranks, &usual);
    return price.fixed + bytes * price.per_byte;
}

static void test_order(void **state)
{
    (void)state;
    for (int p = 4; p <= 64; p *= 2) {
        if (p <= 16)
            assert_true(time_of("oneshot", p, 8) < time_of("twoshot", p, 8));
        assert_true(time_of("oneshot", p, 16 << 20) > time_of("twoshot", p, 16 << 20));
        assert_true(time_of("ring", p, 16 << 20) > time_of("twoshot", p, 16 << 20));
        assert_true(time_of("recdbl", p, 8) < time_of("binomial", p, 8));
        for (int a = 0; abci_algos[a]; a++) {
            const char *name = abci_algos[a]->name;
            if (strcmp(name, "chain") == 0 || !abci_algo_fits(abci_algos[a], ABC_ALLREDUCE, p))
                continue;
            assert_true(time_of(name, p, 8) <= time_of("chain", p, 8));
            assert_true(time_of(name, p, 16 << 20) < time_of("chain", p, 16 << 20));
        }
    }
}

/* More ranks, or a slower machine in any respect, is never cheaper. */
static void test_monotone(void **state)
{
    (void)state;
    for (int a = 0; abci_algos[a]; a++)
        for (int coll = 0; coll < ABCI_PLANNED; coll++)
            for (int p = 1; p <= 32; p *= 2) {
                if (!abci_algo_fits(abci_algos[a], (abc_collective)coll, p))
                    continue;
                struct abci_price base = price_of(abci_algos[a]->name, coll, p, &usual);
                assert_true(base.fixed >= 0 && base.per_byte >= 0);
                if (p > 1)
                    assert_true(base.fixed > 0 && (base.per_byte > 0) == (coll != ABC_BARRIER));
                for (int k = 0; k < 6; k++) {
                    struct abci_price_constants slow = usual;
                    double *field[] = {&slow.hand_off, &slow.step, &slow.copy, &slow.read, &slow.reduce, &slow.crowding};
                    *field[k] *= 3;
                    struct abci_price slower = price_of(abci_algos[a]->name, coll, p, &slow);
                    assert_true(slower.fixed >= base.fixed);
                    assert_true(slower.fixed + LARGE * slower.per_byte >= (base.fixed + LARGE * base.per_byte) * (1 - 1e-9));
                }
            }
}

/* Crowded, each wait gives the CPU away, so few steps count more; and the same plan has the same price bit for bit. */
static void test_crowding(void **state)
{
    (void)state;
    struct abci_price_constants crowded = usual;
    crowded.crowding = 2;
    crowded.hand_off = 5e-6;
    struct abci_price few = price_of("oneshot", ABC_ALLREDUCE, 4, &crowded), many = price_of("chain", ABC_ALLREDUCE, 4, &crowded);
    assert_true(many.fixed > 5 * few.fixed);
    struct abci_price again = price_of("chain", ABC_ALLREDUCE, 4, &crowded);
    assert_memory_equal(&many, &again, sizeof many);
}

/* Ranks take turns, but half of what they touch is in their CPU's cache already, and what all read crosses once. */
static void test_shared_cache(void **state)
{
    (void)state;
    struct abci_price_constants crowded = usual;
    crowded.crowding = 8;
    double slices =
        price_of("twoshot", ABC_ALLREDUCE, 16, &crowded).per_byte / price_of("twoshot", ABC_ALLREDUCE, 16, &usual).per_byte;
    assert_true(slices > 3 && slices < 4.1);
    crowded.copy = crowded.reduce = 0; /* reading alone */
    struct abci_price_constants alone = crowded;
    alone.crowding = 1;
    double whole =
        price_of("oneshot", ABC_ALLREDUCE, 16, &crowded).per_byte / price_of("oneshot", ABC_ALLREDUCE, 16, &alone).per_byte;
    assert_true(whole > 0.99 && whole < 1.1);
}

/* Of two ranks one shows what the other sums: at the same time, so a second step for a half each does not pay. */
static void test_one_way(void **state)
{
    (void)state;
    struct abci_price_constants distant = usual;
    distant.hand_off = 2.5e-7;
    distant.copy = distant.read = 1e-10;
    for (int k = 0; k < 2; k++) {
        const struct abci_price_constants *c = k ? &distant : &usual;
        struct abci_price once = price_of("oneshot", ABC_REDUCE, 2, c), twice = price_of("twoshot", ABC_REDUCE, 2, c);
        assert_true(once.fixed < twice.fixed && once.per_byte < twice.per_byte);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),        cmocka_unit_test(test_monotone), cmocka_unit_test(test_crowding),
        cmocka_unit_test(test_shared_cache), cmocka_unit_test(test_one_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
