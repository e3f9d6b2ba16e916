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
    if (strcmp(name, "twoshot") == 0 || strcmp(name, "push") == 0)
        return 2;
    if (strcmp(name, "ring") == 0)
        return coll == ABC_ALLREDUCE ? 2 * (p - 1) : p - 1;
    if (strcmp(name, "pairwise") == 0)
        return 1; /* fetches wait for nothing but the partner */
    if (strcmp(name, "chain") == 0)
        return coll == ABC_ALLREDUCE || coll == ABC_BARRIER ? 2 * (p - 1) : coll == ABC_REDUCE ? p : p - 1;
    if (coll == ABC_BROADCAST || coll == ABC_GATHER || coll == ABC_SCATTER)
        return log;
    if (coll == ABC_REDUCE)
        return log + 1;
    return 2 * log;
}

static void test_all_algorithms(void **state)
{
    (void)state;
    for (int a = 0; abci_algos[a]; a++) {
        const struct abci_algo *algo = abci_algos[a];
        for (int coll = 0; coll < ABCI_PLANNED; coll++)
            for (int p = 1; p <= 64; p++) {
                if (!abci_algo_fits(algo, (abc_collective)coll, p))
                    continue;
                int roots = abci_is(ABCI_ROOTED, (unsigned)coll) ? p : 1, stride = p <= 9 ? 1 : p / 2;
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

#define HEAD(collective, order)                                                                                                    \
    "{\"abcomm_plan\":1,\"name\":\"x\",\"collective\":\"" collective "\",\"ranks\":2,\"root\":0,\"blocks\":1,\"temporaries\":1,"   \
    "\"rank_order\":" order ",\"ordered\":false,\"plan\":"
#define PUBLISH(peer, after)                                                                                                       \
    "{\"do\":\"publish\",\"src\":[\"in\",0,1],\"counter\":0,\"value\":1,\"readers\":[" peer "],\"after\":[" after "]}"
#define SUM(peer, at, after)                                                                                                       \
    "{\"do\":\"reduce\",\"src\":[\"in\",0,1],\"dst\":[\"out\",0,1],\"own\":[\"in\",0,1],\"own_at\":" at ",\"peers\":[[" peer       \
    ",0,1]],\"after\":[" after "],\"flags\":[\"final\"]}"
#define AWAIT(peer, after) "{\"do\":\"await\",\"peers\":[[" peer ",0,1]],\"after\":[" after "]}"
#define SIGNAL(peer, after) "{\"do\":\"publish\",\"counter\":0,\"value\":1,\"readers\":[" peer "],\"after\":[" after "]}"

/* Plans that are well formed and wrong, and what the checker must say about each. */
static const struct {
    const char *json, *expect;
} faults[] = {
    {HEAD("allreduce", "true") "[[" PUBLISH("1", "") "," SUM("1", "0", "0") "],[" PUBLISH("0", "") "," SUM(
         "0", "1", "0") "]],"
                        "\"stage_in_place\":[0,1]}",
     NULL},
    {HEAD("allreduce", "true") "[[" PUBLISH("1", "") "," SUM("1", "0", "0") "],[" PUBLISH("0", "") "," SUM("0", "1", "0") "]]}",
     "reads in block 0 of rank 1, which rank 1 step 1 may be writing [in place, direct]"},
    {HEAD("allreduce", "true") "[[" PUBLISH("1", "") "," SUM("1", "0", "0") "],[" PUBLISH("0", "") "," SUM(
         "0", "0", "0") "]],"
                        "\"stage_in_place\":[0,1]}",
     "rank 1 step 1 (reduce): the plan claims rank order"},
    {HEAD("allreduce", "true") "[[" SUM("1", "0", "") "," PUBLISH("1", "0") "],[" SUM("0", "1", "") "," PUBLISH("0", "0") "]]}",
     "rank 0 step 0 (reduce): deadlock: waits for rank 1 step 1"},
    {HEAD("allreduce", "true") "[[" PUBLISH("1", "") "," SUM("1", "0", "0") "],[" PUBLISH("0", "") "]],\"stage_in_place\":[0,1]}",
     "rank 1: nobody writes out block 0"},
    {HEAD("allreduce", "true") "[[" PUBLISH("1", "") "],[" SUM("0", "1", "") "]]}", "rank 0: nobody writes out block 0"},
    {HEAD("allreduce", "true") "[[],[" SUM("0", "1", "") "]]}", "waits for value 1 of rank 0's counter 0, which ends at 0"},
    {HEAD("barrier", "true") "[[" SIGNAL("1", "") "," AWAIT("1", "0") "],[" SIGNAL("0", "") "," AWAIT("0", "0") "]]}", NULL},
    {HEAD("barrier", "true") "[[" SIGNAL("1", "") "," AWAIT("1", "0") "],[" SIGNAL("0", "") "]]}",
     "rank 1 may leave the barrier before rank 0 has entered it"},
    {HEAD("barrier", "true") "[[" AWAIT("1", "") "," SIGNAL("1", "0") "],[" AWAIT("0", "") "," SIGNAL("0", "0") "]]}", "deadlock"},
};

static void test_faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        struct abci_plan_set set;
        struct abci_check_report report;
        char why[200];
        if (abci_plan_parse(faults[i].json, &set, why, sizeof why) != ABC_OK)
            fail_msg("%s\n%s", why, faults[i].json);
        abci_plan_check(&set, &report);
        if (!faults[i].expect && report.status != ABC_OK)
            fail_msg("refused: %s: %s", report.text, faults[i].json);
        if (faults[i].expect && (report.status != ABC_ERR_PLAN || !strstr(report.text, faults[i].expect)))
            fail_msg("%s\n\"%s\" does not say \"%s\"", faults[i].json, report.text, faults[i].expect);
        abci_plan_set_free(&set);
    }
}

/* Four ranks: at most 3 steps by an algorithm that could be a default; the chain takes 6 there and back. */
static void test_four_ranks(void **state)
{
    (void)state;
    for (int coll = 0; coll < ABCI_PLANNED; coll++) {
        int least = 99;
        for (int a = 0; abci_algos[a]; a++)
            if (abci_algo_fits(abci_algos[a], (abc_collective)coll, 4)) {
                int steps = prove(abci_algos[a], coll, 4, 0).steps;
                least = steps < least ? steps : least;
            }
        assert_true(least <= 3);
    }
    assert_int_equal(prove(abci_algo_find("twoshot"), ABC_ALLREDUCE, 4, 0).steps, 2);
    assert_int_equal(prove(abci_algo_find("recdbl"), ABC_ALLREDUCE, 4, 0).steps, 2);
    assert_int_equal(prove(abci_algo_find("chain"), ABC_ALLREDUCE, 4, 0).steps, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_algorithms),
        cmocka_unit_test(test_four_ranks),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
