/*
 * test_json.c - plans out and in: print, parse, print is the identity for every built-in plan; whatever else comes in is refused
 * with its place named; the text for people equals the golden files (ABC_GOLDEN_WRITE=1 writes them anew).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "plan/plan.h"

static void build(const char *name, abc_collective coll, int nranks, int root, struct abci_plan_set *set)
{
    assert_int_equal(abci_plan_set_build(abci_algo_find(name), coll, nranks, root, set), ABC_OK);
}

static void test_round_trip(void **state)
{
    (void)state;
    int ranks[] = {1, 2, 3, 5, 8, 17};
    for (int a = 0; abci_algos[a]; a++)
        for (int coll = 0; coll < ABCI_PLANNED; coll++)
            for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r++) {
                struct abci_plan_set set, again;
                struct abci_check_report report;
                char why[200];
                if (!abci_algo_fits(abci_algos[a], (abc_collective)coll, ranks[r]))
                    continue;
                build(abci_algos[a]->name, (abc_collective)coll, ranks[r], ranks[r] / 2, &set);
                char *json = abci_plan_json(&set), *text = abci_plan_text(&set);
                if (abci_plan_parse(json, &again, why, sizeof why) != ABC_OK)
                    fail_msg("%s\n%s", why, json);
                char *json2 = abci_plan_json(&again), *text2 = abci_plan_text(&again);
                assert_string_equal(json, json2);
                assert_string_equal(text, text2);
                abci_plan_check(&again, &report);
                assert_int_equal(report.status, ABC_OK);
                for (int k = 0; k < ranks[r]; k++) {
                    assert_int_equal(set.plan[k]->nsources, again.plan[k]->nsources);
                    assert_int_equal(set.plan[k]->nreaders, again.plan[k]->nreaders);
                }
                free(json);
                free(json2);
                free(text);
                free(text2);
                abci_plan_set_free(&set);
                abci_plan_set_free(&again);
            }
}

#define HEAD                                                                                                                       \
    "{\"abcomm_plan\":1,\"name\":\"x\",\"collective\":\"allreduce\",\"ranks\":2,\"root\":0,\"blocks\":2,\"temporaries\":1,"        \
    "\"rank_order\":true,\"ordered\":true,\"plan\":"
#define STEP(text) HEAD "[[" text "],[]]}"

static const struct {
    const char *json, *expect; /* words that the reason must contain; NULL: accepted */
} cases[] = {
    {HEAD "[[],[]]}", NULL},
    {"", "line 1"},
    {"{", "line 1"},
    {"[]", "one object"},
    {"3", "column"},
    {"{}", "abcomm_plan"},
    {"{\"abcomm_plan\":2}", "abcomm_plan is 2"},
    {"{\"abcomm_plan\":1,\"abcomm_plan\":1}", "duplicate"},
    {"{\"abcomm_plan\":1,\"name\":\"a b\"}", "name must be"},
    {"{\"abcomm_plan\":1,\"name\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}", "name must be"},
    {"{\"abcomm_plan\":1,\"nome\":\"x\"}", "key \"nome\""},
    {HEAD "[[]]}", "list of 2 lists"},
    {HEAD "[[],3]}", "rank 1: must be a list"},
    {HEAD "[[],[]],\"stage_in_place\":[2]}", "stage_in_place is 2"},
    {HEAD "[[],[]],\"stage_in_place\":[1]}", NULL},
    {STEP("1"), "rank 0 step 0: must be an object"},
    {STEP("{\"do\":\"push\"}"), "do must be"},
    {STEP("{\"do\":\"await\",\"after\":[],\"peers\":[[1,0,1]],\"x\":1}"), "key \"x\""},
    {STEP("{\"do\":\"await\",\"after\":[0],\"peers\":[[1,0,1]]}"), "after must be empty"},
    {STEP("{\"do\":\"await\",\"after\":[],\"peers\":[[1,0,0]]}"), "value is 0"},
    {STEP("{\"do\":\"await\",\"after\":[],\"peers\":[[1,4,1]]}"), "counter is 4"},
    {STEP("{\"do\":\"await\",\"after\":[],\"peers\":[[1,0,70000]]}"), "value is 70000"},
    {STEP("{\"do\":\"await\",\"after\":[],\"peers\":[[2,0,1]]}"), "rank is 2"},
    {STEP("{\"do\":\"await\",\"after\":[],\"peers\":[[0,0,1]]}"), "no other rank"},
    {STEP("{\"do\":\"await\",\"after\":[],\"peers\":[]}"), "peers must be"},
    {STEP("{\"do\":\"await\",\"after\":[]}"), "await has peers"},
    {STEP("{\"do\":\"await\",\"after\":[],\"peers\":[[1,0,1.5]]}"), "integer"},
    {STEP("{\"do\":\"await\",\"after\":[],\"peers\":[[1,0,99999999999999999999]]}"), "too big"},
    {STEP("{\"do\":\"await\",\"after\":[],\"peers\":[[1,0,1]],\"src\":[\"in\",0,1]}"), "no blocks"},
    {STEP("{\"do\":\"copy\",\"after\":[],\"src\":[\"in\",0,1],\"dst\":[\"out\",0,1]}"), NULL},
    {STEP("{\"do\":\"copy\",\"after\":[],\"src\":[\"in\",0,1],\"dst\":[\"in\",1,1]}"), "nobody may write"},
    {STEP("{\"do\":\"copy\",\"after\":[],\"src\":[\"out\",0,1],\"dst\":[\"out\",0,1]}"), "overlap"},
    {STEP("{\"do\":\"copy\",\"after\":[],\"src\":[\"in\",1,2],\"dst\":[\"out\",1,2]}"), "2 blocks from 1 on"},
    {STEP("{\"do\":\"copy\",\"after\":[],\"src\":[\"in\",0,2],\"dst\":[\"out\",0,1]}"), "src has 2 blocks"},
    {STEP("{\"do\":\"copy\",\"after\":[],\"src\":[\"tmp1\",0,1],\"dst\":[\"out\",0,1]}"), "names buffer"},
    {STEP("{\"do\":\"copy\",\"after\":[],\"src\":[\"up\",0,1],\"dst\":[\"out\",0,1]}"), "must begin with a buffer"},
    {STEP("{\"do\":\"copy\",\"after\":[],\"src\":[\"in\",0,1],\"dst\":[\"out\",0,1],\"flags\":[\"final\"]}"), "do not fit"},
    {STEP("{\"do\":\"copy\",\"after\":[],\"src\":[\"in\",0,1],\"dst\":[\"tmp0\",0,1],\"flags\":[\"stage\"]}"), "only out"},
    {STEP("{\"do\":\"copy\",\"after\":[],\"flags\":[\"stage\",\"stage\"]}"), "at most once"},
    {STEP("{\"do\":\"publish\",\"after\":[],\"counter\":0,\"value\":2,\"readers\":[1]}"), "must go up by one"},
    {STEP("{\"do\":\"publish\",\"after\":[],\"counter\":0,\"value\":1}"), "names no reader"},
    {STEP("{\"do\":\"publish\",\"after\":[],\"counter\":0,\"value\":1,\"readers\":[1]}"), NULL},
    {STEP("{\"do\":\"reduce\",\"after\":[],\"src\":[\"in\",0,1],\"dst\":[\"out\",0,1]}"), "names no peer"},
    {STEP("{\"do\":\"reduce\",\"after\":[],\"src\":[\"in\",0,1],\"dst\":[\"out\",0,1],\"own\":[\"in\",0,1],\"own_at\":2,"
          "\"peers\":[[1,0,1]]}"),
     "own_at 2"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct abci_plan_set set;
        char why[200];
        int status = abci_plan_parse(cases[i].json, &set, why, sizeof why);
        if (!cases[i].expect && status != ABC_OK)
            fail_msg("refused: %s: %s", cases[i].json, why);
        if (cases[i].expect && (status != ABC_ERR_PLAN || !strstr(why, cases[i].expect)))
            fail_msg("%s\nstatus %d, \"%s\" does not say \"%s\"", cases[i].json, status, why, cases[i].expect);
        if (status == ABC_OK)
            abci_plan_set_free(&set);
        else
            assert_null(set.plan);
    }
}

/* Cut a good text anywhere and change any byte: never a crash, and what is still a plan can be printed and checked. */
static void test_damage(void **state)
{
    (void)state;
    struct abci_plan_set set, again;
    struct abci_check_report report;
    char why[200];
    build("twoshot", ABC_ALLREDUCE, 3, 0, &set);
    char *json = abci_plan_json(&set);
    size_t n = strlen(json);
    for (size_t i = 0; i < n; i++) {
        char old = json[i];
        for (int k = 0; k < 4; k++) {
            json[i] = "\0000 ["[k];
            if (abci_plan_parse(json, &again, why, sizeof why) != ABC_OK)
                continue;
            abci_plan_check(&again, &report);
            free(abci_plan_text(&again));
            abci_plan_set_free(&again);
        }
        json[i] = old;
    }
    free(json);
    abci_plan_set_free(&set);
}

/* Random bytes in every field of a plan but the lengths of its arrays, which are its owner's word: validate answers, and what it
 * lets pass is safe to check and price. */
static void test_garbage(void **state)
{
    (void)state;
    struct abci_plan_set set;
    struct abci_price_constants constants = {1e-7, 1e-8, 1e-10, 1e-10, 1e-10, 1};
    size_t head = offsetof(struct abci_plan, collective), tail = offsetof(struct abci_plan, nsteps);
    uint32_t draw = 1, passed = 0;
    build("recdbl", ABC_ALLREDUCE, 3, 0, &set);
    for (int i = 0; i < 20000; i++) {
        struct abci_plan *plan = set.plan[i % 3], saved = *plan;
        struct abci_step step[16];
        struct abci_check_report report;
        struct abci_price price;
        char why[100];
        memcpy(step, plan->steps, plan->nsteps * sizeof *step);
        draw = draw * 1664525u + 1013904223u;
        unsigned char *at = draw & 0x10000 ? (unsigned char *)plan->steps + (draw >> 20) % (plan->nsteps * sizeof *step)
                                           : (unsigned char *)plan + head + (draw >> 20) % (tail - head);
        bool is_bool = at == (void *)&plan->rank_order || at == (void *)&plan->ordered || at == (void *)&plan->stage_in_place;
        *at = (unsigned char)(draw >> 8) & (is_bool ? 1 : 255);
        if (abci_plan_validate(plan, why, sizeof why) == ABC_OK) {
            passed++;
            abci_plan_check(&set, &report);
            abci_plan_price(&set, &constants, &price);
        } else {
            assert_true(strlen(why) > 5);
        }
        memcpy(saved.steps, step, saved.nsteps * sizeof *step);
        *plan = saved;
    }
    assert_true(passed > 0);
    abci_plan_set_free(&set);
}

static const struct {
    const char *file, *algo;
    abc_collective coll;
    int nranks, root;
} golden[] = {
    {"allreduce-oneshot-3.txt", "oneshot", ABC_ALLREDUCE, 3, 0},     {"allreduce-twoshot-4.txt", "twoshot", ABC_ALLREDUCE, 4, 0},
    {"allreduce-ring-3.txt", "ring", ABC_ALLREDUCE, 3, 0},           {"allreduce-recdbl-5.txt", "recdbl", ABC_ALLREDUCE, 5, 0},
    {"allreduce-chain-4.txt", "chain", ABC_ALLREDUCE, 4, 0},         {"allgather-recdbl-6.txt", "recdbl", ABC_ALLGATHER, 6, 0},
    {"reduce_scatter-ring-3.txt", "ring", ABC_REDUCE_SCATTER, 3, 0}, {"broadcast-binomial-6.txt", "binomial", ABC_BROADCAST, 6, 4},
    {"broadcast-twoshot-4.txt", "twoshot", ABC_BROADCAST, 4, 1},     {"barrier-recdbl-5.txt", "recdbl", ABC_BARRIER, 5, 0},
};

static void test_golden(void **state)
{
    (void)state;
    const char *folder = getenv("ABC_GOLDEN");
    assert_non_null(folder);
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++) {
        struct abci_plan_set set;
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, golden[i].file);
        build(golden[i].algo, golden[i].coll, golden[i].nranks, golden[i].root, &set);
        char *text = abci_plan_text(&set), *wanted = abci_alloc(1 << 16);
        bool write = getenv("ABC_GOLDEN_WRITE") != NULL;
        FILE *file = fopen(path, write ? "w" : "r");
        if (!file)
            fail_msg("cannot open %s", path);
        if (write)
            fputs(text, file);
        else if (fread(wanted, 1, (1 << 16) - 1, file) == 0 || strcmp(text, wanted) != 0)
            fail_msg("%s has changed; if that is meant, run with ABC_GOLDEN_WRITE=1\n%s", golden[i].file, text);
        fclose(file);
        free(text);
        abci_free(wanted);
        abci_plan_set_free(&set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_refusals), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_garbage),    cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
