/*
 * test_words.c - who sleeps for whom among more than 64 ranks, where bits of `waiters` are shared. The ends of all ranks live in
 * this one process and are driven by hand, so that every order of events is the one that is written here. Links the testing
 * library.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "transport/shm.h"

#define RANKS 200

static struct abci_shm end[RANKS];

static int open_all(void **state)
{
    (void)state;
    for (int r = 0; r < RANKS; r++)
        if (abci_shm_prepare(&end[r], r, RANKS) != ABC_OK)
            return -1;
    for (int r = 0; r < RANKS; r++)
        for (int p = 0; p < RANKS; p++) {
            abci_segment_hold(end[r].segment);
            if (p != r && abci_shm_bind(&end[r], p, end[r].segment, end[p].control_offset, -1) != ABC_OK)
                return -1;
        }
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int r = 0; r < RANKS; r++)
        abci_shm_leave(&end[r]);
    for (int r = 0; r < RANKS; r++) {
        if (!abci_shm_unused(&end[r]))
            return -1;
        abci_shm_free(&end[r]);
    }
    return 0;
}

/* Let a rank wait for another until it would sleep with the next call. */
static void arm(int rank, struct abci_waiting *w, uint16_t peer)
{
    int culprit = -1;
    memset(w, 0, sizeof *w);
    for (int i = 0; i < 100 && !w->armed; i++)
        assert_int_equal(abci_shm_wait(&end[rank], w, &peer, 1, 100, true, &culprit), ABC_PENDING);
    assert_true(w->armed);
    assert_true(abci_shm_is_waiter(end[peer].control, (uint32_t)rank));
}

static uint32_t bell(int rank)
{
    return atomic_load(&end[rank].control->doorbell);
}

/* Ranks 1, 65 and 129 have one bit. The second stops waiting: the others must be rung all the same, it must not. */
static void shared_bit(void **state)
{
    (void)state;
    const uint16_t zero = 0;
    struct abci_waiting w[3];
    uint32_t before[3];
    for (int i = 0; i < 3; i++) {
        before[i] = bell(1 + 64 * i);
        arm(1 + 64 * i, &w[i], 0);
    }
    abci_shm_wait_over(&end[65], &w[1], &zero, 1);
    assert_false(abci_shm_is_waiter(end[0].control, 65));
    assert_true(abci_shm_is_waiter(end[0].control, 129));
    abci_shm_notify(&end[0]);
    assert_int_equal(bell(1), before[0] + 1);
    assert_int_equal(bell(65), before[1]);
    assert_int_equal(bell(129), before[2] + 1);
    abci_shm_notify(&end[0]);
    assert_int_equal(bell(129), before[2] + 1);
}

/* Rank 129 arms after rank 1 was rung: the shared bit has been taken and must be there again. */
static void late_bit(void **state)
{
    (void)state;
    struct abci_waiting w[2];
    arm(1, &w[0], 0);
    abci_shm_notify(&end[0]);
    uint32_t before = bell(129);
    arm(129, &w[1], 0);
    abci_shm_notify(&end[0]);
    assert_int_equal(bell(129), before + 1);
}

/* Every rank waits for rank 70: one store rings all of them, once. */
static void everybody(void **state)
{
    (void)state;
    static struct abci_waiting w[RANKS];
    static uint32_t before[RANKS];
    for (int r = 0; r < RANKS; r++) {
        before[r] = bell(r);
        if (r != 70)
            arm(r, &w[r], 70);
    }
    abci_shm_notify(&end[70]);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(bell(r) - before[r], r != 70);
}

/* 3 waits for 67, 67 for 131, 131 for 199, which waits for nobody: a time-out of rank 3 names rank 199. */
static void culprit_at_the_end(void **state)
{
    (void)state;
    static const uint16_t row[] = {3, 67, 131, 199};
    struct abci_waiting w[3];
    int culprit = -1;
    for (int i = 2; i >= 0; i--)
        arm(row[i], &w[i], row[i + 1]);
    abci_shm_wait_over(&end[3], &w[0], &row[1], 1);
    w[0].since = abci_now() - 10;
    assert_int_equal(abci_shm_wait(&end[3], &w[0], &row[1], 1, 1, true, &culprit), ABC_ERR_TIMEOUT);
    assert_int_equal(culprit, 199);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shared_bit), cmocka_unit_test(late_bit), cmocka_unit_test(everybody),
                                       cmocka_unit_test(culprit_at_the_end)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
