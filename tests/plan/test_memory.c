/*
 * test_memory.c - every single allocation of building, checking, pricing and reading plans fails once: always a clean error, never
 * a crash, and under the address sanitizer no leak. Linked with the copy of base that injects faults.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "plan/plan.h"

/* Fail the first pass, the second ... until a whole round passes unharmed. */
static void walk(int (*round)(void *), void *context)
{
    uint64_t n = 1;
    for (;; n++) {
        abci_fault_arm(n);
        int status = round(context);
        bool harmed = abci_fault_passes() >= n;
        if (!harmed) {
            assert_int_equal(status, ABC_OK);
            break;
        }
        assert_int_equal(status, ABC_ERR_MEMORY);
    }
    abci_fault_arm(0);
    assert_true(n > 3);
}

/* The first collective that it does. */
static abc_collective first_of(const struct abci_algo *algo)
{
    return (abc_collective)__builtin_ctz(algo->collectives);
}

static int build_round(void *context)
{
    struct abci_plan_set set;
    int status = abci_plan_set_build(context, first_of(context), 5, 0, &set);
    if (status == ABC_OK)
        abci_plan_set_free(&set);
    else
        assert_null(set.plan);
    return status;
}

static int check_round(void *context)
{
    struct abci_check_report report;
    abci_plan_check(context, &report);
    return report.status;
}

static int price_round(void *context)
{
    static const struct abci_price_constants constants = {1e-7, 1e-8, 1e-10, 1e-10, 1e-10, 1};
    struct abci_price price;
    abci_plan_price(context, &constants, &price);
    return price.fixed < 1 ? ABC_OK : ABC_ERR_MEMORY;
}

static int parse_round(void *context)
{
    struct abci_plan_set set;
    char why[200];
    int status = abci_plan_parse(context, &set, why, sizeof why);
    if (status == ABC_OK)
        abci_plan_set_free(&set);
    else
        assert_string_equal(strstr(why, "out of memory"), "out of memory");
    return status;
}

static void test_walk(void **state)
{
    (void)state;
    for (int a = 0; abci_algos[a]; a++) {
        struct abci_plan_set set;
        walk(build_round, (void *)abci_algos[a]);
        assert_int_equal(abci_plan_set_build(abci_algos[a], first_of(abci_algos[a]), 5, 0, &set), ABC_OK);
        walk(check_round, &set);
        walk(price_round, &set);
        char *json = abci_plan_json(&set);
        walk(parse_round, json);
        free(json);
        abci_plan_set_free(&set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
