/*
 * bench_bound.c - memory that two ranks share outside of the library under test, to measure what bounds it: the time in which a
 * rank copies what the other has just written. Found through /proc as the frame's memory is; it has no name and dies with the
 * ranks.
 */
#include "bench.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int bench_mailboxes_open(struct bench_frame *f, bench_share_fn *share, void *context, size_t bytes, struct bench_mailboxes *m)
{
    char path[64];
    int32_t where[2] = {(int32_t)getpid(), -1};
    m->own = m->other = NULL;
    if (f->rank == 0 && (where[1] = memfd_create("abcomm-bound", MFD_CLOEXEC)) >= 0 && ftruncate(where[1], (off_t)(2 * bytes)) != 0)
        where[1] = -1;
    if (share(context, where, sizeof where) != 0)
        return -1;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)where[0], (int)where[1]);
    int fd = where[1] < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
    char *map = fd < 0 ? MAP_FAILED : mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    uint64_t failed = bench_frame_sum(f, map == MAP_FAILED);
    if (f->rank == 0 && where[1] >= 0)
        close(where[1]);
    if (failed) {
        if (map != MAP_FAILED)
            munmap(map, 2 * bytes);
        return -1;
    }
    m->bytes = bytes;
    m->own = map + (size_t)f->rank * bytes;
    m->other = map + (size_t)(1 - f->rank) * bytes;
    memset(m->own, 0, bytes);
    return bench_frame_barrier(f);
}

void bench_mailboxes_close(struct bench_mailboxes *m)
{
    if (m->own)
        munmap(m->own < m->other ? m->own : m->other, 2 * m->bytes);
    m->own = m->other = NULL;
}

/* The compiler must not make a memcpy of it again. */
void bench_copy_plainly(void *dst, const void *src, size_t bytes)
{
    typedef float vector __attribute__((vector_size(64), aligned(4), may_alias));
    size_t n = bytes / sizeof(vector);
    for (size_t i = 0; i < n; i++) {
        ((vector *)dst)[i] = ((const vector *)src)[i];
        __asm__ volatile("" ::: "memory");
    }
    memcpy((char *)dst + n * sizeof(vector), (const char *)src + n * sizeof(vector), bytes % sizeof(vector));
}
