/*
 * compare_bounds.c - what bounds any library, measured between the calls of bench/compare.c: the bare hand-off of a cache line,
 * and, with two ranks, the time in which both at once copy what the other has just written into their own memory. The same without
 * the stores is what nobody can beat at all: a copy must fetch lines of its target too, which a call may find in its cache.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "compare.h"

/* Found through /proc as the frame's memory is; it has no name and dies with the ranks. */
void compare_open_mailboxes(struct session *s, size_t bytes)
{
    char path[64];
    int32_t where[2] = {(int32_t)getpid(), -1};
    if (s->rank == 0 && (where[1] = memfd_create("compare", MFD_CLOEXEC)) >= 0 && ftruncate(where[1], (off_t)(2 * bytes)) != 0)
        where[1] = -1;
    if (peer_share(NULL, where, sizeof where) != 0)
        compare_fail(s, "the peer cannot share a file descriptor");
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)where[0], (int)where[1]);
    int fd = where[1] < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
    char *map = fd < 0 ? MAP_FAILED : mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        compare_fail(s, "no shared memory for the copies");
    close(fd);
    for (int i = 0; i < 2; i++)
        s->mailbox[i] = (float *)(map + (size_t)(s->rank ^ i) * bytes);
    memset(s->mailbox[0], 0, bytes);
    if (bench_frame_barrier(&s->frame) != 0)
        compare_fail(s, "the ranks are no more together");
    if (s->rank == 0)
        close(where[1]);
}

/* Plain stores, whatever the size; the compiler must not make a memcpy of it again. */
static void copy_by_vectors(float *dst, const float *src, size_t bytes)
{
    typedef float vector __attribute__((vector_size(64), aligned(4), may_alias));
    size_t n = bytes / sizeof(vector);
    for (size_t i = 0; i < n; i++) {
        ((vector *)dst)[i] = ((const vector *)src)[i];
        __asm__ volatile("" ::: "memory");
    }
    memcpy((char *)dst + n * sizeof(vector), (const char *)src + n * sizeof(vector), bytes % sizeof(vector));
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
        copy_by_vectors(s->plain[1], s->mailbox[1], bytes);
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
