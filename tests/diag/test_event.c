/*
 * test_event.c - the event ring by itself: what is written is read back, the oldest goes first, a record under way is left out,
 * ages are right on both clocks, and two records cost what the design allows (printed; ten times that fails).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "diag/event.h"

#define COST_GOAL 20e-9 /* seconds for the two records of an operation */

static struct abci_event_ring ring;
static struct abci_event out[ABCI_EVENTS];

static void write_one(enum abci_event_kind kind, uint32_t sequence)
{
    struct abci_event *event = abci_event_begin(&ring, kind);
    event->sequence = sequence;
    event->count = sequence * 10ull;
    event->culprit = -1;
    memcpy(event->algorithm, "fifteen_letters", ABCI_EVENT_NAME);
    abci_event_commit(&ring, event);
}

static void test_empty(void **state)
{
    abci_event_ring_init(&ring);
    assert_int_equal(abci_event_copy(&ring, out, ABCI_EVENTS), 0);
    assert_int_equal(ring.magic, ABCI_EVENT_MAGIC);
}

static void test_order(void **state)
{
    abci_event_ring_init(&ring);
    for (uint32_t i = 1; i <= 5; i++)
        write_one(i % 2 ? ABCI_EVENT_START : ABCI_EVENT_END, i);
    assert_int_equal(abci_event_copy(&ring, out, ABCI_EVENTS), 5);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(out[i].sequence, i + 1);
        assert_int_equal(out[i].count, (i + 1) * 10);
        assert_int_equal(out[i].kind, i % 2 ? ABCI_EVENT_END : ABCI_EVENT_START);
        assert_true(i == 0 || out[i].time >= out[i - 1].time);
    }
    assert_int_equal(abci_event_copy(&ring, out, 2), 2);
    assert_int_equal(out[0].sequence, 4);
    assert_string_equal(out[0].algorithm, "fifteen_letters");
}

static void test_wraps(void **state)
{
    abci_event_ring_init(&ring);
    for (uint32_t i = 1; i <= 3 * ABCI_EVENTS + 7; i++)
        write_one(ABCI_EVENT_START, i);
    assert_int_equal(abci_event_copy(&ring, out, 10 * ABCI_EVENTS), ABCI_EVENTS);
    assert_int_equal(out[0].sequence, 2 * ABCI_EVENTS + 8);
    assert_int_equal(out[ABCI_EVENTS - 1].sequence, 3 * ABCI_EVENTS + 7);
}

/* A writer that was stopped inside a record, or that overwrote one between two looks. */
/* What a broken process may have left in its memory: the last number that there is, and a clock that cannot be. */
static void test_broken(void **state)
{
    abci_event_ring_init(&ring);
    write_one(ABCI_EVENT_START, 1);
    ring.event[(UINT64_MAX - 1) % ABCI_EVENTS].number = UINT64_MAX;
    assert_int_equal(abci_event_copy(&ring, out, ABCI_EVENTS), 1); /* once around and no further */
    assert_true(out[0].number == UINT64_MAX);
    assert_int_equal(abci_event_copy(&ring, out, 0), 0);
    abci_event_ring_init(&ring);
    if (ring.clock == ABCI_CLOCK_TSC) {
        ring.start_ns = 0;
        ring.start_ticks = abci_event_ticks(ring.clock) - 1;
        assert_true(abci_event_age(&ring, 0) >= 1000000000u);
    }
}

static void test_torn(void **state)
{
    static struct abci_event_ring before;
    abci_event_ring_init(&ring);
    for (uint32_t i = 1; i <= ABCI_EVENTS; i++)
        write_one(ABCI_EVENT_START, i);
    before = ring;
    abci_event_begin(&ring, ABCI_EVENT_END); /* takes the place of record 1 */
    assert_int_equal(abci_event_copy(&ring, out, ABCI_EVENTS), ABCI_EVENTS - 1);
    assert_int_equal(out[0].sequence, 2);
    assert_int_equal(abci_event_pick(&before, &ring, out, ABCI_EVENTS), ABCI_EVENTS - 1);
    assert_int_equal(abci_event_pick(&before, &before, out, ABCI_EVENTS), ABCI_EVENTS);
}

static void check_age(uint32_t clock)
{
    abci_event_ring_init(&ring);
    if (clock == ABCI_CLOCK_COARSE) {
        ring.clock = clock;
        ring.start_ticks = abci_event_coarse();
    }
    write_one(ABCI_EVENT_START, 1);
    double start = abci_now();
    nanosleep(&(struct timespec){.tv_nsec = 60000000}, NULL);
    uint64_t age = abci_event_age(&ring, ring.event[0].time);
    double waited = abci_now() - start;
    assert_true((double)age * 1e-9 > 0.045); /* the coarse clock may be a tick of 10 ms off */
    assert_true((double)age * 1e-9 < waited + 0.02);
}

static void test_age(void **state)
{
    check_age(ABCI_CLOCK_COARSE);
    if (abci_event_tsc_usable())
        check_age(ABCI_CLOCK_TSC);
    assert_string_equal(abci_event_kind_name(ABCI_EVENT_ERROR), "error");
    assert_string_equal(abci_event_kind_name(77), "?");
}

static void test_cost(void **state)
{
    abci_event_ring_init(&ring);
    double best = 1;
    for (int round = 0; round < 20; round++) {
        double start = abci_now();
        for (uint32_t i = 0; i < 10000; i++) {
            write_one(ABCI_EVENT_START, i);
            write_one(ABCI_EVENT_END, i);
        }
        double each = (abci_now() - start) / 10000;
        best = each < best ? each : best;
    }
    printf("two records: %.1f ns with the %s (goal: %.0f ns)\n", best * 1e9,
           ring.clock == ABCI_CLOCK_TSC ? "time stamp counter" : "coarse clock", COST_GOAL * 1e9);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
    return; /* instrumented code says nothing about cost */
#endif
    assert_true(best < 10 * COST_GOAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_empty), cmocka_unit_test(test_order), cmocka_unit_test(test_wraps),
                                       cmocka_unit_test(test_torn),  cmocka_unit_test(test_age),   cmocka_unit_test(test_cost),
                                       cmocka_unit_test(test_broken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
