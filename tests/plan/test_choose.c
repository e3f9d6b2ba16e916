/*
 * test_choose.c - all ranks choose the same algorithm, without a word between them: each asks its own chooser, for each number of
 * ranks at which another algorithm becomes the cheapest.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tune/choose.h"

static const uint64_t sizes[] = {4, 8, 512, 64 << 10, 16 << 20};

/* What a rank chooses for each size, with and without the promise of one rounding. */
static void choices(int rank, int nranks, double crowding, abc_collective coll, const char *name[2][5])
{
    const struct abci_price_constants constants = {
        .hand_off = 0.2e-6, .step = 0.03e-6, .copy = 0.08e-9, .read = 0.12e-9, .reduce = 0.05e-9, .crowding = crowding};
    struct abci_chooser *chooser;
    const struct abci_chooser_config config = {.rank = rank, .nranks = nranks, .constants = &constants, .forced = ""};
    assert_int_equal(abci_chooser_open(&config, &chooser), ABC_OK);
    for (int k = 0; k < 10; k++) {
        struct abci_choice choice;
        struct abci_wish wish = {.collective = coll, .bytes = sizes[k % 5], .one_rounding = k >= 5};
        assert_int_equal(abci_choose(chooser, &wish, &choice), ABC_OK);
        name[k / 5][k % 5] = abci_algo_find(choice.run->plan->name)->name;
    }
    abci_chooser_close(chooser);
}

static void agree(int nranks, double crowding, abc_collective coll)
{
    const char *first[2][5], *other[2][5];
    int stride = nranks > 64 ? 13 : 1; /* 13: ranks of all shapes, low and high bits alike */
    choices(0, nranks, crowding, coll, first);
    for (int rank = 1; rank < nranks; rank = rank < nranks - 1 && rank + stride >= nranks ? nranks - 1 : rank + stride) {
        choices(rank, nranks, crowding, coll, other);
        for (int k = 0; k < 10; k++)
            if (strcmp(first[k / 5][k % 5], other[k / 5][k % 5]) != 0)
                fail_msg("%s of %llu bytes, %d ranks, crowding %g: rank 0 takes %s, rank %d %s", abc_collective_name(coll),
                         (unsigned long long)sizes[k % 5], nranks, crowding, first[k / 5][k % 5], rank, other[k / 5][k % 5]);
    }
}

static void test_agree(void **state)
{
    static const int ranks[] = {2, 3, 4, 7, 8, 16, 23, 24, 32, 48, 128, 129};
    (void)state;
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++)
        for (int coll = 0; coll < ABCI_PLANNED; coll++) {
            agree(ranks[i], 1, (abc_collective)coll);
            agree(ranks[i], ranks[i] / 2.0, (abc_collective)coll);
        }
}

/* Of what rounds more than once, floats get nothing unasked. */
static void test_rounding(void **state)
{
    (void)state;
    for (int nranks = 3; nranks <= 130; nranks += nranks < 32 ? 1 : 49) {
        const char *name[2][5];
        choices(nranks / 2, nranks, nranks / 2.0, ABC_ALLREDUCE, name);
        for (int k = 0; k < 5; k++)
            assert_true(strcmp(name[1][k], "oneshot") == 0 || strcmp(name[1][k], "twoshot") == 0);
    }
}

static void expect_choice(struct abci_chooser *chooser, struct abci_wish wish, const char *name, uint64_t chunk)
{
    struct abci_choice choice;
    assert_int_equal(abci_choose(chooser, &wish, &choice), ABC_OK);
    assert_string_equal(choice.run->plan->name, name);
    assert_int_equal(choice.chunk, chunk);
}

/* What won by measurement between two ranks, near and far: docs/performance.md. */
static void test_two_ranks(void **state)
{
    static const struct {
        double hand_off, staged;
        const char *longest;                /* of sums of 16 MiB */
        uint64_t chunk, middle, long_chunk; /* of sums of 128 KiB, 512 KiB, 2 MiB */
        uint64_t longest_chunk;
    } machines[] = {{0.06e-6, 1.4e-11, "twoshot", 128 << 10, 64 << 10, 64 << 10, 128 << 10},
                    {0.25e-6, 3e-11, "oneshot", 512 << 10, 512 << 10, 128 << 10, 128 << 10}};
    (void)state;
    for (int m = 0; m < 2; m++) {
        const struct abci_price_constants constants = {.hand_off = machines[m].hand_off,
                                                       .step = 3e-8,
                                                       .copy = machines[m].staged,
                                                       .read = machines[m].staged,
                                                       .reduce = 2.5e-11,
                                                       .crowding = 1};
        const struct abci_chooser_config config = {.nranks = 2, .constants = &constants, .forced = ""};
        struct abci_chooser *chooser;
        assert_int_equal(abci_chooser_open(&config, &chooser), ABC_OK);
        for (int k = 0; k < 5; k++) /* a copy to two places is slower than two by memcpy */
            expect_choice(chooser, (struct abci_wish){.collective = ABC_ALLGATHER, .bytes = sizes[k]}, "oneshot", 256 << 10);
        struct abci_wish sum = {.collective = ABC_ALLREDUCE, .bytes = 128 << 10, .one_rounding = true};
        expect_choice(chooser, sum, "oneshot", machines[m].chunk);
        sum.bytes = 64 << 10;
        expect_choice(chooser, sum, "oneshot", machines[m].chunk);
        sum.bytes = 512 << 10;
        expect_choice(chooser, sum, "oneshot", machines[m].middle);
        sum.bytes = 2 << 20;
        expect_choice(chooser, sum, "oneshot", machines[m].long_chunk);
        sum.bytes = 16 << 20;
        expect_choice(chooser, sum, machines[m].longest, machines[m].longest_chunk);
        abci_chooser_close(chooser);
    }
}

/* What won by measurement with more ranks than CPUs, two of them, near and far: docs/performance.md. */
static void test_crowded(void **state)
{
    static const struct {
        int nranks;
        double hand_off;
        uint64_t one, two; /* sums that oneshot does, and that twoshot does */
    } jobs[] = {{4, 3.9e-6, 32 << 10, 256 << 10}, {8, 7.6e-6, 16 << 10, 64 << 10}, {16, 15e-6, 8 << 10, 64 << 10}};
    (void)state;
    for (int k = 0; k < 6; k++) {
        const double staged = k % 2 ? 2.8e-11 : 1.5e-11;
        const int nranks = jobs[k / 2].nranks;
        const struct abci_price_constants constants = {.hand_off = jobs[k / 2].hand_off,
                                                       .step = 3e-8,
                                                       .copy = staged,
                                                       .read = staged,
                                                       .reduce = 2.5e-11,
                                                       .crowding = nranks / 2.0};
        const struct abci_chooser_config config = {.nranks = nranks, .constants = &constants, .forced = ""};
        struct abci_chooser *chooser;
        assert_int_equal(abci_chooser_open(&config, &chooser), ABC_OK);
        struct abci_wish sum = {.collective = ABC_ALLREDUCE, .bytes = jobs[k / 2].one, .one_rounding = true};
        expect_choice(chooser, sum, "oneshot", 4 << 20);
        sum.bytes = jobs[k / 2].two;
        expect_choice(chooser, sum, "twoshot", 4 << 20);
        sum.bytes = 32 << 20;
        expect_choice(chooser, sum, "twoshot", 512 << 10);
        struct abci_wish scatter = {.collective = ABC_REDUCE_SCATTER, .bytes = 2 << 20, .one_rounding = true};
        expect_choice(chooser, scatter, "oneshot", 512 << 10);
        expect_choice(chooser, (struct abci_wish){.collective = ABC_BROADCAST, .bytes = 32 << 20}, "oneshot", 4 << 20);
        abci_chooser_close(chooser);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agree),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_crowded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
