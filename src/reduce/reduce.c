/*
 * reduce.c - stage 5: the entry to all reductions and copies: chooses the kernel family once per process, then one table look-up
 * per call. User-defined operations are folded here in small blocks. Neighbours: plan/run.c calls it, family.h lists the kernels,
 * routes.c says which one does what. State: the chosen family, one atomic pointer. Any thread. Cost of the entry: about 1 ns.
 */
#include <stdatomic.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/base.h"
#include "reduce/family.h"

#define SCALE_BLOCK 4096 /* bytes of the operand that is one scalar many times */
#define USER_BLOCK 4096  /* bytes a user's function gets at once: operand and accumulator stay in the first-level cache */

static const struct abci_family *_Atomic chosen;

static bool has_avx2(void)
{
#if defined(__x86_64__)
    unsigned a, b, c = 0, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C); /* clang knows no name for it */
#else
    return false;
#endif
}

static bool has_avx512(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

/* The family of a name ("auto": the best), NULL when unknown or not for this CPU. */
static const struct abci_family *find(const char *name)
{
    bool best = strcmp(name, "auto") == 0;
#if defined(__x86_64__)
    if ((best || strcmp(name, "avx512") == 0) && has_avx512())
        return &abci_family_avx512;
    if ((best || strcmp(name, "avx2") == 0) && has_avx2())
        return &abci_family_avx2;
#endif
    if (best || strcmp(name, "generic") == 0)
        return &abci_family_generic;
    return strcmp(name, "scalar") == 0 ? &abci_family_scalar : NULL;
}

/* First use: by ABCOMM_SIMD, whose words the table of settings has checked. */
static __attribute__((noinline, cold)) const struct abci_family *choose(void)
{
    const char *wish = abci_setting_string(ABCI_SET_SIMD);
    const struct abci_family *family = find(wish);
    if (!family) {
        family = find("auto");
        ABCI_LOG(ABCI_LOG_WARN, "reduce", -1, "ABCOMM_SIMD=%s is not for this CPU; using %s, as ABCOMM_SIMD=auto would", wish,
                 family->name);
    }
    /* Two first calls at once choose the same, unless a test selects in between: then its choice stays. */
    const struct abci_family *none = NULL;
    return atomic_compare_exchange_strong(&chosen, &none, family) ? family : none;
}

/* Relaxed is enough: the tables are constant data. */
static inline const struct abci_family *family_now(void)
{
    const struct abci_family *family = atomic_load_explicit(&chosen, memory_order_relaxed);
    return ABCI_LIKELY(family != NULL) ? family : choose();
}

const char *abci_reduce_family(void)
{
    return family_now()->name;
}

int abci_reduce_select(const char *name)
{
    const struct abci_family *family = find(name);
    if (!family)
        return -1;
    atomic_store(&chosen, family);
    return 0;
}

/* An operand as the user's function may read it: aligned to its element, copied when it is not. */
static const void *aligned_operand(const char *from, size_t bytes, size_t size, char *room)
{
    if ((uintptr_t)from % size == 0)
        return from;
    memcpy(room, from, bytes);
    return room;
}

/*
 * The user's function folds from the last operand down, because its `in` stands for the lower ranks. It works on a block of our
 * own: it never sees memory that is both operand and result.
 */
static _Thread_local int inside; /* calls of callers' functions on this thread */
static _Thread_local bool failed;
static _Thread_local char failure[128];

void abci_reduce_fail(const char *reason)
{
    if (inside == 0 || failed)
        return;
    failed = true;
    abci_text_clean(failure, sizeof failure, reason && *reason ? reason : "no reason was given");
}

bool abci_reduce_failed(char *reason, size_t capacity)
{
    if (ABCI_LIKELY(!failed))
        return false;
    failed = false;
    abci_text_clean(reason, capacity, failure);
    return true;
}

static void reduce_user(const struct abci_reduction *r, char *dst, char *dst2, const void *const *src, int nsrc, uint64_t n)
{
    _Alignas(64) char block[USER_BLOCK];
    _Alignas(64) char room[USER_BLOCK];
    const size_t size = abci_element_size(r->type);
    const uint64_t most = USER_BLOCK / size;
    inside++;
    for (uint64_t i = 0; i < n && !failed; i += most) {
        uint64_t count = n - i < most ? n - i : most;
        size_t at = (size_t)(i * size), bytes = (size_t)(count * size);
        memcpy(block, (const char *)src[nsrc - 1] + at, bytes);
        for (int k = nsrc - 2; k >= 0 && !failed; k--) {
            int operand = abci_mutated("c15_order_swapped") ? nsrc - 2 - k : k;
            const void *in = aligned_operand((const char *)src[operand] + at, bytes, size, room);
            r->user->fn(in, block, count, r->type, r->user->context);
        }
        memcpy(dst + at, block, bytes);
        if (dst2)
            memcpy(dst2 + at, block, bytes);
    }
    inside--;
}

/* Apart, so that the usual call saves no register and ends in a jump. */
static __attribute__((noinline, cold)) void reduce_first(const struct abci_reduction *r, void *dst, void *dst2,
                                                         const void *const *src, int nsrc, uint64_t n)
{
    choose();
    abci_reduce(r, dst, dst2, src, nsrc, n);
}

void abci_reduce(const struct abci_reduction *r, void *dst, void *dst2, const void *const *src, int nsrc, uint64_t n)
{
    static const uint8_t class_of[9] = {[2] = ABCI_CLASS_2, [3] = ABCI_CLASS_3, [4] = ABCI_CLASS_4, [8] = ABCI_CLASS_8};
    const struct abci_family *family = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (ABCI_UNLIKELY(r->user != NULL)) {
        reduce_user(r, dst, dst2, src, nsrc, n);
        return;
    }
    if (ABCI_UNLIKELY(!family)) {
        reduce_first(r, dst, dst2, src, nsrc, n);
        return;
    }
    const struct abci_route *route = &abci_routes[r->type][r->op == ABC_AVG && !r->final ? ABC_SUM : r->op];
    unsigned class = nsrc <= 8 ? class_of[nsrc] : ABCI_CLASS_ANY;
    family->kernel[route->row][class](r, dst, dst2, src, nsrc, n << route->shift);
}

#define SWAP_PIECE 4096 /* where no kernel does it in one pass: as much as stays in the nearest cache */

void abci_reduce_swap(const struct abci_reduction *r, void *dst, const void *const *src, uint64_t n, const struct abci_swap *swap)
{
    const struct abci_family *family = family_now();
    const struct abci_route *route = &abci_routes[r->type][r->op == ABC_AVG && !r->final ? ABC_SUM
                                                           : r->op < ABC_OP_USER         ? r->op
                                                                                         : 0];
    const size_t size = abci_element_size(r->type);
    abci_swap_kernel *kernel = r->user ? NULL : family->swap[route->row];
    if (ABCI_LIKELY(kernel && n * size >= family->vector)) {
        kernel(r, dst, src, n << route->shift, swap);
        return;
    }
    const uint64_t most = SWAP_PIECE / size;
    for (uint64_t i = 0; i < n; i += most) {
        uint64_t count = n - i < most ? n - i : most;
        size_t at = (size_t)(i * size);
        const void *const operands[2] = {(const char *)src[0] + at, (const char *)src[1] + at};
        abci_reduce(r, (char *)dst + at, NULL, operands, 2, count);
        if (swap->room)
            memcpy((char *)swap->room + at, (const char *)(swap->next ? swap->next : dst) + at, (size_t)(count * size));
    }
}

/* A product with a block of equal elements. */
void abci_reduce_scale(abc_type type, void *dst, const void *src, const void *scalar, uint64_t n)
{
    _Alignas(64) char block[SCALE_BLOCK];
    const struct abci_reduction product = {.type = type, .op = ABC_PROD, .nranks = 1};
    const size_t size = abci_element_size(type);
    const uint64_t most = SCALE_BLOCK / size;
    for (uint64_t i = 0; i < most && i < n; i++)
        memcpy(block + i * size, scalar, size);
    for (uint64_t i = 0; i < n; i += most) {
        const void *const operands[2] = {(const char *)src + i * size, block};
        abci_reduce(&product, (char *)dst + i * size, NULL, operands, 2, n - i < most ? n - i : most);
    }
}

/*
 * memcpy takes another way to store from some size on (512 KiB to 1 MiB here), and then overwrites what another core has read five
 * times as slowly: `./dev bench stores`. So it gets no more than this at once.
 */
#define COPY_PIECE (256u << 10)

static __attribute__((noinline)) void copy_long(char *dst, const char *src, size_t bytes)
{
    for (; bytes > COPY_PIECE; bytes -= COPY_PIECE, dst += COPY_PIECE, src += COPY_PIECE)
        family_now()->copy(dst, NULL, src, COPY_PIECE, ABCI_STORE_PLAIN);
    family_now()->copy(dst, NULL, src, bytes, ABCI_STORE_PLAIN);
}

void abci_copy(void *dst, void *dst2, const void *src, size_t bytes, enum abci_store store)
{
    if (ABCI_UNLIKELY(bytes > COPY_PIECE) && !dst2 && store == ABCI_STORE_PLAIN)
        copy_long(dst, src, bytes);
    else
        family_now()->copy(dst, dst2, src, bytes, store);
}
