/*
 * test_part.c - blocks to bytes: for every collective and buffer the blocks cover exactly what they should, without overlap, at all
 * small counts and at counts beyond 32 bits; chunks cover the call.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/part.h"

static bool is_wide(abc_collective coll)
{
    return coll == ABC_REDUCE_SCATTER || coll == ABC_ALLGATHER || (coll >= ABC_GATHER && coll <= ABC_ALLTOALL);
}

/* Narrow: blocks lie one after another from the chunk's first element to its last, lines uncut while there is one for each. */
static void check_narrow(const struct abci_shape *s, int buffer)
{
    uint64_t at = s->first * s->element, least = UINT64_MAX, most = 0;
    uint64_t per_line = 64 / s->element, lines = (s->length + per_line - 1) / per_line;
    for (uint32_t b = 0; b < s->nblocks; b++) {
        struct abci_range r = abci_part_block(s, buffer, (int)b);
        assert_int_equal(r.user, at);
        assert_int_equal(r.area, at - s->first * s->element);
        at += r.bytes;
        if (lines >= s->nblocks && b + 1 < s->nblocks)
            assert_int_equal(r.bytes % 64, 0);
        least = r.bytes < least ? r.bytes : least;
        most = r.bytes > most ? r.bytes : most;
    }
    assert_int_equal(at, (s->first + s->length) * s->element);
    assert_true(most - least <= 128); /* one line more, and the last may be short of one */
    if (s->length >= s->nblocks)
        assert_true(least > 0); /* nobody without work */
    assert_true(abci_part_joined(s, buffer));
    assert_true(abci_part_area(s, buffer) >= s->length * s->element && abci_part_area(s, buffer) % 64 == 0);
}

static void check_wide(const struct abci_shape *s, int buffer)
{
    uint64_t end = 0;
    for (uint32_t b = 0; b < s->nranks; b++) {
        struct abci_range r = abci_part_block(s, buffer, (int)b);
        assert_int_equal(r.user, (b * s->count + s->first) * s->element);
        assert_int_equal(r.bytes, s->length * s->element);
        bool packed = s->length * s->element * s->nranks <= ABCI_PACKED;
        assert_true(r.area >= end && (r.area % 64 == 0 || packed));
        if (abci_part_joined(s, buffer) && b > 0) {
            struct abci_range before = abci_part_block(s, buffer, (int)b - 1);
            assert_true(before.user + before.bytes == r.user && before.area + before.bytes == r.area);
        }
        end = r.area + r.bytes;
    }
    assert_true(abci_part_area(s, buffer) >= end);
}

static void check_buffer(const struct abci_shape *s, int buffer)
{
    switch (abci_part_width(s->collective, buffer)) {
    case ABCI_NARROW:
        check_narrow(s, buffer);
        break;
    case ABCI_WIDE:
        check_wide(s, buffer);
        break;
    default:
        for (uint32_t rank = 0; rank < s->nranks; rank++) {
            struct abci_range r = abci_part_block(s, buffer, (int)rank);
            assert_true(r.user == s->first * s->element && r.area == 0 && r.bytes == s->length * s->element);
        }
        assert_true(abci_part_area(s, buffer) >= s->length * s->element);
    }
}

static void check_call(abc_collective coll, uint32_t p, uint32_t nblocks, uint32_t element, uint64_t count, uint64_t chunk_bytes)
{
    struct abci_shape s = {
        .collective = coll, .nranks = p, .nblocks = is_wide(coll) ? p : nblocks, .element = element, .count = count};
    uint64_t chunks = abci_part_chunks(coll, (int)p, element, count, chunk_bytes), at = 0;
    uint64_t all = element * (is_wide(coll) ? p : 1);
    assert_true(chunks >= 1);
    for (uint64_t n = 0; n < chunks; n++) {
        abci_part_chunk(&s, chunk_bytes, n);
        assert_int_equal(s.first, at);
        at += s.length;
        assert_true(count == 0 || s.length > 0);
        assert_true(s.length * all <= chunk_bytes || s.length == 1);
        if (chunks > 64 && n > 4 && n + 4 < chunks && n % 1021)
            continue;
        for (int buffer = ABCI_IN; buffer <= ABCI_TMP; buffer++)
            check_buffer(&s, buffer);
    }
    assert_int_equal(at, count);
}

static void test_small(void **state)
{
    (void)state;
    static const uint32_t elements[] = {2, 4, 8}, ranks[] = {1, 2, 3, 4, 5, 7, 8, 16};
    static const uint64_t chunk[] = {1, 64, 100, 256, 1 << 20};
    for (int coll = 0; coll < ABCI_PLANNED; coll += 1 + (coll == ABC_BROADCAST))
        for (size_t e = 0; e < 3; e++)
            for (size_t r = 0; r < 8; r++)
                for (uint64_t count = 0; count <= 200; count++)
                    for (size_t c = 0; c < 5; c++)
                        check_call((abc_collective)coll, ranks[r], ranks[r], elements[e], count, chunk[c]);
}

static void test_large(void **state)
{
    (void)state;
    static const uint64_t counts[] = {(1ull << 31) + 1, (1ull << 32) - 1, (1ull << 33) + 12345, 1ull << 40};
    for (int coll = 0; coll < ABCI_PLANNED; coll += 1 + (coll == ABC_BROADCAST))
        for (size_t i = 0; i < 4; i++)
            for (uint32_t p = 1; p <= 1024; p = p * 3 + 1) {
                check_call((abc_collective)coll, p, p, 4, counts[i], UINT64_MAX / 2);
                check_call((abc_collective)coll, p, 1, 8, counts[i], counts[i] * 8 / 100);
            }
}

static void test_width(void **state)
{
    (void)state;
    assert_int_equal(abci_part_width(ABC_ALLREDUCE, ABCI_IN), ABCI_NARROW);
    assert_int_equal(abci_part_width(ABC_REDUCE_SCATTER, ABCI_IN), ABCI_WIDE);
    assert_int_equal(abci_part_width(ABC_REDUCE_SCATTER, ABCI_OUT), ABCI_SINGLE);
    assert_int_equal(abci_part_width(ABC_REDUCE_SCATTER, ABCI_TMP + 3), ABCI_WIDE);
    assert_int_equal(abci_part_width(ABC_ALLGATHER, ABCI_IN), ABCI_SINGLE);
    assert_int_equal(abci_part_width(ABC_ALLGATHER, ABCI_OUT), ABCI_WIDE);
    assert_int_equal(abci_part_width(ABC_REDUCE, ABCI_OUT), ABCI_NARROW);
    assert_int_equal(abci_part_width(ABC_GATHER, ABCI_IN), ABCI_SINGLE);
    assert_int_equal(abci_part_width(ABC_SCATTER, ABCI_OUT), ABCI_SINGLE);
    assert_int_equal(abci_part_width(ABC_ALLTOALL, ABCI_IN), ABCI_WIDE);
    assert_int_equal(abci_part_width(ABC_EXSCAN, ABCI_TMP), ABCI_NARROW);
    assert_true(abci_part_exists(ABC_GATHER, ABCI_OUT, 2, 2) && !abci_part_exists(ABC_GATHER, ABCI_OUT, 1, 2));
    assert_true(abci_part_exists(ABC_SCATTER, ABCI_OUT, 1, 2) && !abci_part_exists(ABC_SCATTER, ABCI_IN, 1, 2));
    assert_true(abci_part_exists(ABC_EXSCAN, ABCI_OUT, 1, 0) && !abci_part_exists(ABC_EXSCAN, ABCI_OUT, 0, 0));
}

/* A barrier has no elements, and asks nothing of part.c but not to divide by them. */
static void test_nothing(void **state)
{
    (void)state;
    struct abci_shape s = {.collective = ABC_BARRIER, .nranks = 4, .nblocks = 1};
    assert_int_equal(abci_part_chunks(ABC_BARRIER, 4, 0, 0, 1 << 20), 1);
    abci_part_chunk(&s, 1 << 20, 0);
    assert_int_equal(abci_part_block(&s, ABCI_IN, 0).bytes, 0);
    assert_int_equal(abci_part_area(&s, ABCI_IN), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_width),
        cmocka_unit_test(test_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
