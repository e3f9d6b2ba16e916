/*
 * allocations.c - counts the calls of malloc and its kin by the whole process, the library included: a program that links this file
 * takes the names from the C library and passes every call on. Only where the C library has a second name for them, and not under
 * sanitizers, which want the names for themselves.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "usage.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif

#if defined(__GLIBC__) && !defined(SANITIZED)

#define EXPORTED __attribute__((visibility("default")))

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *ptr, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
EXPORTED void *memalign(size_t alignment, size_t bytes);

static _Atomic int64_t calls;

EXPORTED void *malloc(size_t bytes)
{
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    return __libc_malloc(bytes);
}

EXPORTED void *calloc(size_t count, size_t bytes)
{
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    return __libc_calloc(count, bytes);
}

EXPORTED void *realloc(void *ptr, size_t bytes)
{
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    return __libc_realloc(ptr, bytes);
}

EXPORTED void *memalign(size_t alignment, size_t bytes)
{
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    return __libc_memalign(alignment, bytes);
}

EXPORTED void *aligned_alloc(size_t alignment, size_t bytes)
{
    return memalign(alignment, bytes);
}

EXPORTED int posix_memalign(void **ptr, size_t alignment, size_t bytes)
{
    void *p = memalign(alignment, bytes);
    if (!p)
        return ENOMEM;
    *ptr = p;
    return 0;
}

int64_t usage_allocations(void)
{
    return atomic_load_explicit(&calls, memory_order_relaxed);
}

#else

int64_t usage_allocations(void)
{
    return -1;
}

#endif
