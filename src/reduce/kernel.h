/*
 * kernel.h - stage 5: the one body of all vector kernels. A family file defines the few things that differ, then includes this:
 *   FAMILY        its name                      TARGET   the function attribute that allows its instructions, or nothing
 *   VBYTES        bytes of a vector             V_MIN_F32(a, b), V_MIN_F64(a, b): b unless a < b, on float vectors
 *   V_STREAM(to, v), V_STREAM_HALF(to, v): store a whole, half a vector past the cache, at an aligned address; V_FENCE()
 * Everything else is vector arithmetic of the compiler (GCC and clang), force-inlined with constant type, op and operand count, so
 * that each kernel is one straight loop. This file is the loops over memory; lanes.h says what a vector of elements means. No
 * state; any thread.
 *
 * Cost: memory traffic. Blocks of UNITS vectors are read from every operand before they are written, which makes an exact alias of
 * dst and an operand correct and keeps the accumulators in registers whatever the number of operands. There is no prefetching: from
 * another core's cache it gained nothing (16 to 48 lines ahead, 4 KiB to 64 MiB), and it cost 1 ns at 64 bytes and a fifth at
 * 4 KiB in the first-level cache.
 */
#include "reduce/family.h"

#define GLUE2(a, b) a##_##b
#define GLUE1(a, b) GLUE2(a, b)
#define UNITS 4          /* vectors of a block: enough to hide the latency of an addition */
#define STREAM_LEAST 512 /* bytes below which streaming stores are not worth peeling to a line */

#include "reduce/lanes.h"

/* Fold `units` vectors at byte `at` of every operand into sum. */
V_INLINE void v_read(abc_type type, abc_op op, int units, vec *sum, const void *const *src, int nsrc, size_t at, int nranks)
{
    const size_t step = V_STEP(type);
    for (int u = 0; u < units; u++)
        sum[u] = v_enter(type, op, (const char *)src[0] + at + (size_t)u * step);
    for (int k = 1; k < nsrc; k++)
        for (int u = 0; u < units; u++)
            sum[u] = v_fold(type, op, sum[u], v_enter(type, op, (const char *)src[k] + at + (size_t)u * step));
    for (int u = 0; u < units; u++)
        sum[u] = v_finish(type, op, sum[u], nranks);
}

/* All whole vectors of elements [i, n). */
V_INLINE void v_span(abc_type type, abc_op op, bool stream, char *dst, char *dst2, const void *const *src, int nsrc, uint64_t i,
                     uint64_t n, int nranks)
{
    const size_t step = V_STEP(type), end = n * abci_element_size(type);
    size_t at = i * abci_element_size(type);
    const int units = V_LONG(type) ? 1 : UNITS; /* a long conversion hides the latency by itself */
    vec sum[UNITS];
    for (; units > 1 && end - at >= UNITS * step; at += UNITS * step) {
        v_read(type, op, UNITS, sum, src, nsrc, at, nranks);
        for (int u = 0; u < UNITS; u++)
            v_store(type, stream, dst + at + (size_t)u * step, dst2 ? dst2 + at + (size_t)u * step : NULL, sum[u]);
    }
    for (; end - at >= step; at += step) {
        v_read(type, op, 1, sum, src, nsrc, at, nranks);
        v_store(type, stream, dst + at, dst2 ? dst2 + at : NULL, sum[0]);
    }
}

/*
 * A reduction of one vector or more. `fixed` > 0 is the constant number of operands. What is left over after the last whole vector
 * is done by a vector that ends at the last element: computed before anything is written, since dst may be an operand, and stored
 * at the end, where it writes some elements a second time with the values that they have.
 */
V_INLINE void v_large(abc_type type, abc_op op, int fixed, char *dst, char *dst2, const void *const *src, int nsrc, uint64_t n,
                      int nranks, enum abci_store store)
{
    const size_t size = abci_element_size(type);
    const void *own[8];
    if (fixed > 0) { /* a copy that no store can change, so that the pointers need not be read again */
        for (int k = 0; k < fixed; k++)
            own[k] = src[k];
        src = own;
        nsrc = fixed;
    }
    size_t last = n * size - V_STEP(type);
    vec rest;
    v_read(type, op, 1, &rest, src, nsrc, last, nranks);
    uint64_t i = 0;
    bool stream = store == ABCI_STORE_STREAM && n * size >= STREAM_LEAST && (uintptr_t)dst % size == 0;
    if (stream) { /* whole lines only: a line streamed in two parts costs two trips to memory */
        i = (-(uintptr_t)dst % 64) / size;
        abci_family_scalar.kernel[type][op][ABCI_CLASS_ANY](dst, dst2, src, nsrc, i, nranks, ABCI_STORE_PLAIN);
    }
    v_span(type, op, stream, dst, dst2, src, nsrc, i, n, nranks);
    v_store(type, false, dst + last, dst2 ? dst2 + last : NULL, rest);
    if (stream)
        V_FENCE();
}

/* Streams, or has two destinations: a sum of one operand. Else it is memcpy's. */
TARGET static void GLUE1(FAMILY, copy)(char *dst, char *dst2, const char *src, size_t bytes, enum abci_store store)
{
    bool stream = store == ABCI_STORE_STREAM && bytes >= STREAM_LEAST;
    if ((!stream && !dst2) || bytes < VBYTES) {
        abci_family_scalar.copy(dst, dst2, src, bytes, ABCI_STORE_PLAIN);
        return;
    }
    size_t head = stream ? -(uintptr_t)dst % 64 : 0;
    size_t last = bytes - VBYTES;
    vec rest = *(const vec_at *)(src + last);
    abci_family_scalar.copy(dst, dst2, src, head, ABCI_STORE_PLAIN);
    const void *from = src + head;
    v_span(ABC_I32, ABC_SUM, stream, dst + head, dst2 ? dst2 + head : NULL, &from, 1, 0, (bytes - head) / 4, 1);
    v_store(ABC_I32, false, dst + last, dst2 ? dst2 + last : NULL, rest);
    if (stream)
        V_FENCE();
}

/*
 * Two functions for each (type, op, class): the entry deals with less than a vector on the spot, without the prologue that the
 * other needs. A few bytes are the common case of loss values and flags.
 */
#define DEFINE_CLASS(TYPE, OP, CLASS, FIXED)                                                                                       \
    TARGET static __attribute__((noinline)) void GLUE1(FAMILY, TYPE##_##OP##_##CLASS##_large)(                                     \
        char *dst, char *dst2, const void *const *src, int nsrc, uint64_t n, int nranks, enum abci_store store)                    \
    {                                                                                                                              \
        v_large(ABC_##TYPE, ABC_##OP, FIXED, dst, dst2, src, nsrc, n, nranks, store);                                              \
    }                                                                                                                              \
    static void GLUE1(FAMILY, TYPE##_##OP##_##CLASS)(char *dst, char *dst2, const void *const *src, int nsrc, uint64_t n,          \
                                                     int nranks, enum abci_store store)                                            \
    {                                                                                                                              \
        if (n >= V_LANES(ABC_##TYPE))                                                                                              \
            GLUE1(FAMILY, TYPE##_##OP##_##CLASS##_large)(dst, dst2, src, nsrc, n, nranks, store);                                  \
        else                                                                                                                       \
            abci_element_loop(ABC_##TYPE, ABC_##OP, nranks, dst, dst2, src, FIXED > 0 ? FIXED : nsrc, 0, n);                       \
    }
#define DEFINE_SUM(TYPE, OP)                                                                                                       \
    DEFINE_CLASS(TYPE, OP, ANY, 0)                                                                                                 \
    DEFINE_CLASS(TYPE, OP, 2, 2)                                                                                                   \
    DEFINE_CLASS(TYPE, OP, 3, 3)                                                                                                   \
    DEFINE_CLASS(TYPE, OP, 4, 4)                                                                                                   \
    DEFINE_CLASS(TYPE, OP, 8, 8)
/* The rarer ones leave a few bytes to the scalar family. */
#define DEFINE_ONE(TYPE, OP)                                                                                                       \
    TARGET static void GLUE1(FAMILY, TYPE##_##OP##_ANY)(char *dst, char *dst2, const void *const *src, int nsrc, uint64_t n,       \
                                                        int nranks, enum abci_store store)                                         \
    {                                                                                                                              \
        if (n >= V_LANES(ABC_##TYPE))                                                                                              \
            v_large(ABC_##TYPE, ABC_##OP, 0, dst, dst2, src, nsrc, n, nranks, store);                                              \
        else                                                                                                                       \
            abci_family_scalar.kernel[ABC_##TYPE][ABC_##OP][ABCI_CLASS_ANY](dst, dst2, src, nsrc, n, nranks, store);               \
    }
#define NAME(TYPE, OP, CLASS) GLUE1(FAMILY, TYPE##_##OP##_##CLASS)
#define ROW_SUM(TYPE, OP)                                                                                                          \
    [ABC_##TYPE][ABC_##OP] = {NAME(TYPE, OP, ANY), NAME(TYPE, OP, 2), NAME(TYPE, OP, 3), NAME(TYPE, OP, 4), NAME(TYPE, OP, 8)},
#define ROW_ONE(TYPE, OP)                                                                                                          \
    [ABC_##TYPE][ABC_##OP] = {NAME(TYPE, OP, ANY), NAME(TYPE, OP, ANY), NAME(TYPE, OP, ANY), NAME(TYPE, OP, ANY),                  \
                              NAME(TYPE, OP, ANY)},

ABCI_SUM_MAP(DEFINE_SUM)
ABCI_ONE_MAP(DEFINE_ONE)

#define QUOTE2(x) #x
#define QUOTE1(x) QUOTE2(x)
const struct abci_family GLUE1(abci_family, FAMILY) = {
    .name = QUOTE1(FAMILY), .kernel = {ABCI_SUM_MAP(ROW_SUM) ABCI_ONE_MAP(ROW_ONE)}, .copy = GLUE1(FAMILY, copy)};
