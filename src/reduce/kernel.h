/*
 * kernel.h - stage 5: the one body of all vector kernels. A family file defines the few things that differ, then includes this:
 *   FAMILY        its name                      TARGET   the function attribute that allows its instructions, or nothing
 *   VBYTES        bytes of a vector             V_MIN_F32(a, b), V_MIN_F64(a, b): b unless a < b, on float vectors
 *   V_STREAM(to, v): store a vector past the cache, at an aligned address; V_FENCE()
 * Everything else is vector arithmetic of the compiler (GCC and clang), force-inlined with constant type, op and operand count, so
 * that each kernel is one straight loop. This file is the loops over memory; lanes.h says what a vector of elements means. No
 * state; any thread.
 *
 * Cost: memory traffic. Blocks of VECTORS vectors are read from every operand before they are written, which makes an exact alias
 * of dst and an operand correct and keeps the accumulators in registers whatever the number of operands. Only what another core has
 * written is prefetched (v_swap): elsewhere it cost 1 ns at 64 bytes and a fifth at 4 KiB in the first-level cache.
 */
#include "reduce/family.h"

#define GLUE2(a, b) a##_##b
#define GLUE1(a, b) GLUE2(a, b)
#define VECTORS 4        /* of a block: enough to hide the latency of an addition */
#define STREAM_LEAST 512 /* bytes below which streaming stores are not worth peeling to a line */

#include "reduce/lanes.h"

/* May a NaN that is not quiet come out? Arithmetic makes it quiet. */
V_INLINE bool v_noisy(abc_type type, abc_op op, int nsrc)
{
    return type == ABC_BF16 && (op == ABC_MIN || op == ABC_MAX || nsrc == 1);
}

/* Fold `units` steps at byte `at` of every operand into sum. */
V_INLINE void v_read(abc_type type, abc_op op, int units, vec *sum, const void *const *src, int nsrc, size_t at, int nranks)
{
    const int parts = V_PARTS(type), count = units * parts;
    for (int v = 0; v < count; v++)
        sum[v] = v_enter(type, op, (const char *)src[0] + at + (size_t)(v / parts) * V_STEP(type), v % parts);
    for (int k = 1; k < nsrc; k++) {
        const char *from = (const char *)src[k] + at;
        for (int v = 0; v < count; v++)
            sum[v] = v_fold(type, op, sum[v], v_enter(type, op, from + (size_t)(v / parts) * V_STEP(type), v % parts));
    }
    if (v_noisy(type, op, nsrc))
        for (int v = 0; v < count; v++)
            sum[v] = v_quiet(sum[v]);
    for (int v = 0; v < count; v++)
        sum[v] = v_finish(type, op, sum[v], nranks);
}

/* Eight bytes of all operands, of elements of one or two. */
V_INLINE uint64_t v_word(abc_type type, abc_op op, const void *const *src, int nsrc, size_t at, int nranks)
{
    const int parts = type == ABC_BF16 ? 2 : 1;
    vec sum[2];
    uint64_t word;
    memcpy(&word, (const char *)src[0] + at, sizeof word);
    for (int v = 0; v < parts; v++)
        sum[v] = v_enter_word(type, op, word, v);
    for (int k = 1; k < nsrc; k++) {
        memcpy(&word, (const char *)src[k] + at, sizeof word);
        for (int v = 0; v < parts; v++)
            sum[v] = v_fold(type, op, sum[v], v_enter_word(type, op, word, v));
    }
    for (int v = 0; v < parts; v++)
        sum[v] = v_finish(type, op, v_noisy(type, op, nsrc) ? v_quiet(sum[v]) : sum[v], nranks);
    return v_leave_word(type, op, sum);
}

/* Eight bytes or more: the last word overlaps others and is done as v_large does its last vector. */
V_INLINE void v_words(abc_type type, abc_op op, int nranks, char *dst, char *dst2, const void *const *src, int nsrc, size_t bytes)
{
    const size_t last = bytes - sizeof(uint64_t);
    uint64_t rest = v_word(type, op, src, nsrc, last, nranks);
    for (size_t at = 0; at < last; at += sizeof(uint64_t)) {
        uint64_t word = v_word(type, op, src, nsrc, at, nranks);
        memcpy(dst + at, &word, sizeof word);
        if (dst2)
            memcpy(dst2 + at, &word, sizeof word);
    }
    memcpy(dst + last, &rest, sizeof rest);
    if (dst2)
        memcpy(dst2 + last, &rest, sizeof rest);
}

/* Whole steps of bytes [at, end), `units` at once; where that stopped. */
/* NOLINTNEXTLINE(readability-function-size): inlined, the parameters are constants and registers */
V_INLINE size_t v_span(abc_type type, abc_op op, int units, bool stream, char *dst, char *dst2, const void *const *src, int nsrc,
                       size_t at, size_t end, int nranks)
{
    const size_t step = V_STEP(type);
    vec sum[VECTORS];
    for (; end - at >= (size_t)units * step; at += (size_t)units * step) {
        v_read(type, op, units, sum, src, nsrc, at, nranks);
        for (int u = 0; u < units; u++)
            v_store(type, op, stream, dst + at + (size_t)u * step, dst2 ? dst2 + at + (size_t)u * step : NULL,
                    sum + u * V_PARTS(type));
    }
    return at;
}

/* The usual store is in a loop of its own, without a test: narrow floats are bound by instructions, not by memory. */
V_INLINE void v_spans(abc_type type, abc_op op, bool stream, char *dst, char *dst2, const void *const *src, int nsrc, size_t at,
                      size_t end, int nranks)
{
    const int units = V_LONG(type) ? 1 : VECTORS / V_PARTS(type); /* a long conversion hides the latency by itself */
    if (!stream && !dst2)
        at = v_span(type, op, units, false, dst, NULL, src, nsrc, at, end, nranks);
    v_span(type, op, 1, stream, dst, dst2, src, nsrc, at, end, nranks);
}

/*
 * A reduction of one vector or more. `fixed` > 0 is the constant number of operands. What is left over after the last whole vector
 * is done by a vector that ends at the last element: computed before anything is written, since dst may be an operand, and stored
 * at the end, where it writes some elements a second time with the values that they have.
 */
V_INLINE void v_large(abc_type type, abc_op op, int fixed, const struct abci_reduction *r, char *dst, char *dst2,
                      const void *const *src, int nsrc, uint64_t n)
{
    const size_t size = abci_element_size(type);
    const int nranks = r->nranks;
    const void *own[8];
    if (fixed > 0) { /* a copy that no store can change, so that the pointers need not be read again */
        for (int k = 0; k < fixed; k++)
            own[k] = src[k];
        src = own;
        nsrc = fixed;
    }
    size_t last = n * size - V_STEP(type);
    vec rest[2];
    v_read(type, op, 1, rest, src, nsrc, last, nranks);
    size_t at = 0;
    bool stream = r->store == ABCI_STORE_STREAM && n * size >= STREAM_LEAST && (uintptr_t)dst % size == 0;
    if (stream) { /* whole lines only: a line streamed in two parts costs two trips to memory */
        at = -(uintptr_t)dst % 64;
        abci_family_scalar.kernel[ABCI_ROW(type, op)][ABCI_CLASS_ANY](r, dst, dst2, src, nsrc, at / size);
    }
    v_spans(type, op, stream, dst, dst2, src, nsrc, at, n * size, nranks);
    v_store(type, op, false, dst + last, dst2 ? dst2 + last : NULL, rest);
    if (stream)
        V_FENCE();
}

/*
 * Bytes that are fetched before they are needed; less hides less of a distant core's latency, more gains nothing. With float32 the
 * processor itself looks some KiB further ahead, but not past the many instructions that narrow floats take; at the beginning of a
 * short call it would cost more than it hides.
 */
#define AHEAD 2048
#define AHEAD_NARROW 4096
#define NARROW_FROM (16u << 10)

/* Whole blocks of bytes [at, end); where that stopped. ahead: so far on there are bytes of the operand still; 0: there are not. */
V_INLINE size_t v_swap_span(abc_type type, abc_op op, bool stream, char *dst, const void *const *src, const struct abci_swap *swap,
                            size_t at, size_t end, size_t ahead, int nranks)
{
    const int units = V_LONG(type) ? 1 : VECTORS / V_PARTS(type);
    const size_t step = V_STEP(type), block = (size_t)units * step;
    const char *foreign = src[swap->foreign], *next = swap->next;
    char *room = next ? swap->room : NULL, *dst2 = next ? NULL : swap->room;
    vec sum[VECTORS];
    for (; end - at >= block; at += block) {
        for (size_t line = 0; ahead && line < block; line += 64)
            __builtin_prefetch(foreign + at + ahead + line);
        v_read(type, op, units, sum, src, 2, at, nranks);
        for (size_t part = 0; room && part < block; part += VBYTES)
            *(vec_at *)(room + at + part) = *(const vec_at *)(next + at + part);
        for (int u = 0; u < units; u++)
            v_store(type, op, stream, dst + at + (size_t)u * step, dst2 ? dst2 + at + (size_t)u * step : NULL,
                    sum + u * V_PARTS(type));
    }
    return at;
}

/* abci_reduce_swap, of one step or more. The ends are done as in v_large. */
V_INLINE void v_swap(abc_type type, abc_op op, const struct abci_reduction *r, char *dst, const void *const *src, uint64_t n,
                     const struct abci_swap *swap)
{
    const size_t size = abci_element_size(type), bytes = n * size, block = (size_t)VECTORS * VBYTES;
    const void *own[2] = {src[0], src[1]};
    const struct abci_swap s = *swap;
    const int nranks = r->nranks;
    char *room = s.next ? s.room : NULL, *dst2 = s.next ? NULL : s.room;
    const size_t ahead = abci_is_narrow(type) && bytes > NARROW_FROM ? AHEAD_NARROW : AHEAD;
    size_t last = bytes - V_STEP(type), at = 0;
    vec rest[2];
    for (size_t line = 0; line < ahead && line < bytes; line += 64)
        __builtin_prefetch((const char *)own[s.foreign] + line);
    v_read(type, op, 1, rest, own, 2, last, nranks);
    size_t far = bytes > ahead + block ? bytes - ahead - block : 0; /* up to here there is something to fetch */
    if (r->store == ABCI_STORE_STREAM && far > 64 && (uintptr_t)dst % size == 0) {
        at = -(uintptr_t)dst % 64;
        abci_family_scalar.kernel[ABCI_ROW(type, op)][ABCI_CLASS_ANY](r, dst, dst2, own, 2, at / size);
        if (room)
            memcpy(room, s.next, at);
        at = v_swap_span(type, op, true, dst, own, &s, at, far, ahead, nranks);
        V_FENCE();
    }
    at = v_swap_span(type, op, false, dst, own, &s, at, far, ahead, nranks);
    at = v_swap_span(type, op, false, dst, own, &s, at, bytes, 0, nranks);
    v_span(type, op, 1, false, dst, dst2, own, 2, at, bytes, nranks);
    v_store(type, op, false, dst + last, dst2 ? dst2 + last : NULL, rest);
    if (room)
        memcpy(room + at, (const char *)s.next + at, bytes - at);
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
    const void *from = src;
    if (!stream) /* then there are two: the common kind has a loop of its own here, too */
        head = v_span(ABC_I32, ABC_SUM, VECTORS, false, dst, dst2, &from, 1, head, bytes, 1);
    v_span(ABC_I32, ABC_SUM, 1, stream, dst, dst2, &from, 1, head, bytes, 1);
    v_store(ABC_I32, ABC_SUM, false, dst + last, dst2 ? dst2 + last : NULL, &rest);
    if (stream)
        V_FENCE();
}

/*
 * Two functions for each (type, op, class): the entry sends what is less than a vector elsewhere, without the prologue that the
 * other needs. A few bytes are the common case of loss values and flags: the family of the shortest vectors adds them up on the
 * spot, the longer ones leave them to it. Elements of 8 and 16 bits, which are many even then, go eight bytes at once.
 */
#define V_IN_WORDS(type, n) (abci_element_size(type) <= 2 && !V_IS_FP8(type) && (n)*abci_element_size(type) >= sizeof(uint64_t))
#define NAME(TYPE, OP, CLASS) GLUE1(FAMILY, TYPE##_##OP##_##CLASS)
#define KERNEL(NAME) NAME(const struct abci_reduction *r, void *dst, void *dst2, const void *const *src, int nsrc, uint64_t n)
#define SHORTER(FROM, TYPE, OP, CLASS)                                                                                             \
    abci_family_##FROM.kernel[ABCI_ROW(ABC_##TYPE, ABC_##OP)][ABCI_CLASS_##CLASS](r, dst, dst2, src, nsrc, n)
#if VBYTES == 16
#define SHORT_SUM(TYPE, OP, CLASS, FIXED)                                                                                          \
    abci_element_loop(ABC_##TYPE, ABC_##OP, r->nranks, dst, dst2, src, FIXED > 0 ? FIXED : nsrc, 0, n)
#define SHORT_ONE(TYPE, OP) abci_scalar_##TYPE##_##OP(r, dst, dst2, src, nsrc, n)
#else
#define SHORT_SUM(TYPE, OP, CLASS, FIXED) SHORTER(generic, TYPE, OP, CLASS)
#define SHORT_ONE(TYPE, OP) SHORTER(generic, TYPE, OP, ANY)
#endif

#define DEFINE_WORDS(TYPE, OP)                                                                                                     \
    TARGET static __attribute__((noinline)) void KERNEL(NAME(TYPE, OP, words))                                                     \
    {                                                                                                                              \
        v_words(ABC_##TYPE, ABC_##OP, r->nranks, dst, dst2, src, nsrc, n *abci_element_size(ABC_##TYPE));                          \
    }
#define DEFINE_CLASS(TYPE, OP, CLASS, FIXED)                                                                                       \
    TARGET static __attribute__((noinline)) void KERNEL(NAME(TYPE, OP, CLASS##_large))                                             \
    {                                                                                                                              \
        v_large(ABC_##TYPE, ABC_##OP, FIXED, r, dst, dst2, src, nsrc, n);                                                          \
    }                                                                                                                              \
    static void KERNEL(NAME(TYPE, OP, CLASS))                                                                                      \
    {                                                                                                                              \
        if (n >= V_LANES(ABC_##TYPE))                                                                                              \
            NAME(TYPE, OP, CLASS##_large)(r, dst, dst2, src, nsrc, n);                                                             \
        else if (V_IN_WORDS(ABC_##TYPE, n))                                                                                        \
            NAME(TYPE, OP, words)(r, dst, dst2, src, nsrc, n);                                                                     \
        else                                                                                                                       \
            SHORT_SUM(TYPE, OP, CLASS, FIXED);                                                                                     \
    }
#define DEFINE_SWAP(TYPE, OP)                                                                                                      \
    TARGET static void NAME(TYPE, OP, swap)(const struct abci_reduction *r, void *dst, const void *const *src, uint64_t n,         \
                                            const struct abci_swap *swap)                                                          \
    {                                                                                                                              \
        v_swap(ABC_##TYPE, ABC_##OP, r, dst, src, n, swap);                                                                        \
    }
#define DEFINE_TWO(TYPE, OP)                                                                                                       \
    DEFINE_WORDS(TYPE, OP)                                                                                                         \
    DEFINE_CLASS(TYPE, OP, ANY, 0)                                                                                                 \
    DEFINE_CLASS(TYPE, OP, 2, 2)                                                                                                   \
    DEFINE_SWAP(TYPE, OP)
#define DEFINE_SUM(TYPE, OP)                                                                                                       \
    DEFINE_TWO(TYPE, OP)                                                                                                           \
    DEFINE_CLASS(TYPE, OP, 3, 3)                                                                                                   \
    DEFINE_CLASS(TYPE, OP, 4, 4)                                                                                                   \
    DEFINE_CLASS(TYPE, OP, 8, 8)
/* The rarer ones. */
#define DEFINE_ONE(TYPE, OP)                                                                                                       \
    DEFINE_WORDS(TYPE, OP)                                                                                                         \
    TARGET static void KERNEL(NAME(TYPE, OP, ANY))                                                                                 \
    {                                                                                                                              \
        if (n >= V_LANES(ABC_##TYPE))                                                                                              \
            v_large(ABC_##TYPE, ABC_##OP, 0, r, dst, dst2, src, nsrc, n);                                                          \
        else if (V_PARTS(ABC_##TYPE) == 2 && V_IN_WORDS(ABC_##TYPE, n))                                                            \
            NAME(TYPE, OP, words)(r, dst, dst2, src, nsrc, n);                                                                     \
        else                                                                                                                       \
            SHORT_ONE(TYPE, OP);                                                                                                   \
    }
#define ROW_SUM(TYPE, OP)                                                                                                          \
    [ABCI_ROW(ABC_##TYPE, ABC_##OP)] = {NAME(TYPE, OP, ANY), NAME(TYPE, OP, 2), NAME(TYPE, OP, 3), NAME(TYPE, OP, 4),              \
                                        NAME(TYPE, OP, 8)},
#define ROW_TWO(TYPE, OP)                                                                                                          \
    [ABCI_ROW(ABC_##TYPE, ABC_##OP)] = {NAME(TYPE, OP, ANY), NAME(TYPE, OP, 2), NAME(TYPE, OP, ANY), NAME(TYPE, OP, ANY),          \
                                        NAME(TYPE, OP, ANY)},
#define ROW_SWAP(TYPE, OP) [ABCI_ROW(ABC_##TYPE, ABC_##OP)] = NAME(TYPE, OP, swap),
#define ROW_ONE(TYPE, OP) ABCI_ROW_OF(TYPE, OP, NAME(TYPE, OP, ANY)),

ABCI_SUM_MAP(DEFINE_SUM)
ABCI_TWO_MAP(DEFINE_TWO)
ABCI_ONE_MAP(DEFINE_ONE)

#define QUOTE2(x) #x
#define QUOTE1(x) QUOTE2(x)
const struct abci_family GLUE1(abci_family, FAMILY) = {
    .name = QUOTE1(FAMILY),
    .kernel = {ABCI_SUM_MAP(ROW_SUM) ABCI_TWO_MAP(ROW_TWO) ABCI_ONE_MAP(ROW_ONE) ABCI_SCALAR_MAP(ABCI_SCALAR_ROW) ABCI_WIDE_ROWS},
    .swap = {ABCI_SUM_MAP(ROW_SWAP) ABCI_TWO_MAP(ROW_SWAP)},
    .vector = VBYTES,
    .copy = GLUE1(FAMILY, copy),
};
