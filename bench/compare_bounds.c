/*
 * compare_bounds.c - what bounds any library, measured between the calls of bench/compare.c: the bare hand-off of a cache line,
 * and, with two ranks, the time in which both at once copy what the other has just written into their own memory. The same without
 * the stores is what nobody can beat at all: a copy must fetch lines of its target too, which a call may find in its cache.
 */
#include <string.h>

#include "compare.h"

void compare_open_mailboxes(struct session *s, size_t bytes)
{
    struct bench_mailboxes m;
    if (bench_mailboxes_open(&s->frame, peer_share, NULL, bytes, &m) != 0)
        compare_fail(s, "no shared memory for the copies");
    s->mailbox[0] = (float *)(void *)m.own;
    s->mailbox[1] = (float *)(void *)m.other;
}

/* In registers that every x86-64 has; four at a time, so that none waits for another. */
static void read_by_vectors(const float *src, size_t bytes)
{
    typedef uint64_t vector __attribute__((vector_size(16), aligned(4), may_alias));
    const vector *from = (const vector *)src;
    vector a = {0}, b = {0}, c = {0}, d = {0};
    size_t n = bytes / sizeof(vector), whole = n - n % 4;
    for (size_t i = 0; i < whole; i += 4) {
        a ^= from[i];
        b ^= from[i + 1];
        c ^= from[i + 2];
        d ^= from[i + 3];
    }
    bench_read(from + whole, bytes - whole * sizeof(vector));
    a ^= b ^ c ^ d;
    __asm__ volatile("" ::"m"(a)); /* counts as used, so the loop stays */
}

static double sample_copy(struct session *s, size_t bytes, enum hand hand)
{
    s->iteration++;
    bench_fill(s->mailbox[0], ABC_F32, bench_data_limit(ABC_F32, s->nranks), bench_seed(s->iteration, s->rank), 0,
               bytes / sizeof(float));
    if (bench_frame_begin(&s->frame) != 0)
        compare_fail(s, "the ranks are no more together");
    if (hand == VECTORS)
        bench_copy_plainly(s->plain[1], s->mailbox[1], bytes);
    else if (hand == READ)
        read_by_vectors(s->mailbox[1], bytes);
    else
        memcpy(s->plain[1], s->mailbox[1], bytes);
    double us = bench_frame_end(&s->frame);
    if (us < 0)
        compare_fail(s, "the ranks are no more together");
    return us;
}

void compare_sample_bounds(struct session *s, const struct cell *cell, int i)
{
    double us = bench_frame_exchange(&s->frame);
    if (us < 0)
        compare_fail(s, "the ranks are no more together");
    if (i >= 0)
        s->handoff[i] = us;
    if (!s->mailbox[0])
        return;
    /* Half of the bytes cross only in place. */
    for (int copy = 0; copy < (cell->in_place ? COPY_COUNT : HALF); copy++)
        for (int hand = 0; hand < HAND_COUNT; hand++) {
            us = sample_copy(s, copy == HALF ? cell->bytes / 2 : cell->bytes, (enum hand)hand);
            if (i >= 0)
                s->copies[copy][hand][i] = us;
        }
}
