/*
 * test_reduce.c - stage 5 against the oracle: every family, type, operation, number of operands, length, offset, alias, second
 * destination and store kind as a seeded random sample. ABC_TEST_SEED=n repeats one, ABC_TEST_FULL=1 runs the product of all but
 * the offsets. `test_reduce expect NAME` checks which family ABCOMM_SIMD has chosen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "oracle.h"

#define MOST_OPERANDS 64
#define GUARD 80
#define FILL 0xa5
#define BIG 1000003u
#define FAMILIES 4

enum alias { ALIAS_NONE, ALIAS_FIRST, ALIAS_LAST, ALIAS_COUNT };
struct shape {
    struct abci_reduction r;
    int nsrc;
    uint64_t n;
    enum alias alias;
    bool second;
    bool plain_numbers; /* no NaN and Inf: else long sums are NaN and show nothing */
};

static const char *const families[FAMILIES] = {"scalar", "generic", "avx2", "avx512"};
static uint64_t seed, state;

static uint64_t random64(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static unsigned below(unsigned n)
{
    return (unsigned)((random64() >> 20) % n);
}

/* A float of 32 or 64 bits that is likely to hurt: zeros, denormals, Inf, NaN of both kinds, largest and odd values. */
static void hard_float(abc_type type, bool plain, char *to)
{
    static const uint32_t hard[] = {0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x7f7fffff,
                                    0xff7fffff, 0x3f800000, 0x3f808000, 0x3f818000, 0x3f80ffff, 0x7f7f8000,
                                    0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff, 0x7fffffff};
    uint32_t low = below(4) ? (uint32_t)random64() : hard[below(plain ? 12 : 18)];
    uint64_t wide = ((uint64_t)low << 32) | (below(2) ? (uint32_t)random64() : 0);
    if (type == ABC_F64 && below(2))
        wide = (wide & UINT64_C(0x800fffffffffffff)) | ((uint64_t)(1000 + below(48)) << 52);
    else if (type == ABC_F64 && plain && (wide >> 52 & 0x7ff) == 0x7ff)
        wide ^= UINT64_C(1) << 60;
    if (below(2) || (plain && (low & 0x7f800000) == 0x7f800000))
        low = (low & 0x807fffff) | ((110 + below(24)) << 23);
    uint16_t half = (uint16_t)(low >> 16);
    memcpy(to, type == ABC_F64 ? (void *)&wide : type == ABC_BF16 ? (void *)&half : (void *)&low, oracle_size(type));
}

/* Pairs have few values and few places, so that ties happen. */
static void hard_pair(abc_type type, bool plain, char *to)
{
    static const double values[] = {0, -0.0, 1, -1, 2, INFINITY, -INFINITY, NAN};
    double value = values[below(type == ABC_I32_I32 ? 5 : plain ? 7 : 8)];
    float single = (float)value;
    int32_t number = type == ABC_I32_I32 ? (int32_t)value : 0, index = (int32_t)below(4) - 1, junk = (int32_t)random64();
    size_t size = type == ABC_F64_I32 ? 8 : 4;
    memcpy(to, type == ABC_F64_I32 ? (void *)&value : type == ABC_F32_I32 ? (void *)&single : (void *)&number, size);
    memcpy(to + size, &index, 4);
    if (type == ABC_F64_I32)
        memcpy(to + 12, &junk, 4);
}

/* An element of any type. A small float is drawn from all its numbers, an integer often from its ends. */
static void hard_element(abc_type type, bool plain, char *to)
{
    static const uint64_t ends[] = {0, 1, ~UINT64_C(0), UINT64_C(0x7fffffff7fff7f7f), UINT64_C(0x8000000080008080), 2};
    uint64_t bits = type == ABC_BOOL && below(2) ? below(2) : below(3) ? random64() : ends[below(6)];
    uint32_t low;
    size_t size = oracle_size(type);
    if (type <= ABC_BF16) {
        hard_float(type, plain, to);
    } else if (type == ABC_COMPLEX64 || type == ABC_COMPLEX128) {
        hard_float(type == ABC_COMPLEX64 ? ABC_F32 : ABC_F64, plain, to);
        hard_float(type == ABC_COMPLEX64 ? ABC_F32 : ABC_F64, plain, to + size / 2);
    } else if (type >= ABC_F32_I32) {
        hard_pair(type, plain, to);
    } else {
        low = (uint32_t)bits & (size == 1 ? 0xff : 0xffff);
        if (oracle_is_float(type) && plain && !isfinite(oracle_widen(type, low)))
            bits ^= size == 1 ? 0x44 : 0x4000;
        memcpy(to, &bits, size);
    }
}

static void fill(const struct shape *s, char *to)
{
    for (uint64_t i = 0; i < s->n; i++)
        hard_element(s->r.type, s->plain_numbers, to + i * oracle_size(s->r.type));
}

static void describe(const struct shape *s, const char *family, const char *what)
{
    print_error("seed %llu family %s type %d op %d final %d ranks %d operands %d n %llu alias %d second %d store %d: %s\n",
                (unsigned long long)seed, family, s->r.type, s->r.op, s->r.final, s->r.nranks, s->nsrc, (unsigned long long)s->n,
                s->alias, s->second, s->r.store, what);
}

/* A destination between guards at any offset. */
struct target {
    char *base, *at;
    size_t bytes;
};

static struct target target_new(size_t bytes)
{
    struct target t = {.base = malloc(bytes + 2 * GUARD + 64), .bytes = bytes};
    assert_non_null(t.base);
    memset(t.base, FILL, bytes + 2 * GUARD + 64);
    t.at = t.base + GUARD + below(64);
    return t;
}

static bool guards_intact(const struct target *t)
{
    for (const char *p = t->base; p < t->at; p++)
        if (*(const unsigned char *)p != FILL)
            return false;
    for (const char *p = t->at + t->bytes; p < t->base + t->bytes + 2 * GUARD + 64; p++)
        if (*(const unsigned char *)p != FILL)
            return false;
    return true;
}

static void compare(const struct shape *s, const char *family, const char *got, const char *want, const char *what)
{
    size_t size = oracle_size(s->r.type);
    for (uint64_t i = 0; i < s->n; i++)
        if (!oracle_same(s->r.type, got + i * size, want + i * size)) {
            describe(s, family, what);
            fail_msg("element %llu differs", (unsigned long long)i);
        }
}

/* Run one shape on one family; sources are exact allocations so that a sanitizer sees a read past their end. */
static void run_family(const struct shape *s, const char *family, const void *const *src, const char *want)
{
    size_t bytes = s->n * oracle_size(s->r.type);
    const void *operands[MOST_OPERANDS];
    memcpy(operands, src, sizeof(operands[0]) * (size_t)s->nsrc);
    struct target dst = target_new(bytes), dst2 = target_new(bytes);
    if (s->alias != ALIAS_NONE) {
        int k = s->alias == ALIAS_FIRST ? 0 : s->nsrc - 1;
        memcpy(dst.at, src[k], bytes);
        operands[k] = dst.at;
    }
    abci_reduce(&s->r, dst.at, s->second ? dst2.at : NULL, operands, s->nsrc, s->n);
    compare(s, family, dst.at, want, "first destination");
    if (s->second)
        compare(s, family, dst2.at, want, "second destination");
    if (!guards_intact(&dst) || !guards_intact(&dst2)) {
        describe(s, family, "guard bytes");
        fail();
    }
    free(dst.base);
    free(dst2.base);
}

/* The same sum of two operands, one of which lies where other elements go afterwards. */
static void run_swap(const struct shape *s, const char *family, const void *const *src, const char *want)
{
    size_t bytes = s->n * oracle_size(s->r.type);
    int foreign = (int)below(2);
    struct target dst = target_new(bytes), room = target_new(bytes), next = target_new(bytes);
    const void *operands[2] = {src[0], src[1]};
    bool stays = below(4) == 0, twice = below(4) == 0;
    memcpy(room.at, src[foreign], bytes);
    operands[foreign] = room.at;
    fill(s, next.at);
    if (s->alias != ALIAS_NONE) {
        memcpy(dst.at, src[!foreign], bytes);
        operands[!foreign] = dst.at;
    }
    struct abci_swap swap = {.foreign = foreign, .room = stays ? NULL : room.at, .next = twice ? NULL : next.at};
    abci_reduce_swap(&s->r, dst.at, operands, s->n, &swap);
    compare(s, family, dst.at, want, "sum beside a swap");
    if (memcmp(room.at, stays ? src[foreign] : twice ? dst.at : next.at, bytes) != 0) {
        describe(s, family, "what comes after the operand");
        fail();
    }
    if (!guards_intact(&dst) || !guards_intact(&room) || !guards_intact(&next)) {
        describe(s, family, "guard bytes of a swap");
        fail();
    }
    free(dst.base);
    free(room.base);
    free(next.base);
}

static void run_shape(const struct shape *s)
{
    size_t size = oracle_size(s->r.type);
    char *base[MOST_OPERANDS];
    const void *src[MOST_OPERANDS];
    for (int k = 0; k < s->nsrc; k++) {
        size_t offset = below(2) ? below(64) : 0;
        base[k] = malloc(s->n * size + offset + (s->n * size + offset == 0));
        assert_non_null(base[k]);
        src[k] = base[k] + offset;
        fill(s, base[k] + offset);
    }
    char *want = malloc(s->n * size + 1);
    assert_non_null(want);
    for (uint64_t i = 0; i < s->n; i++)
        oracle_element(&s->r, src, s->nsrc, i * size, want + i * size);
    for (int f = 0; f < FAMILIES; f++)
        if (abci_reduce_select(families[f]) == 0) {
            run_family(s, families[f], src, want);
            if (s->nsrc == 2)
                run_swap(s, families[f], src, want);
        }
    free(want);
    for (int k = 0; k < s->nsrc; k++)
        free(base[k]);
}

/* Kinds are the operations, and then the average of all ranks. False: the type has no such operation. */
#define KINDS (ABC_OP_COUNT + 1)
static bool set_op(struct shape *s, unsigned kind)
{
    s->r.op = kind == ABC_OP_COUNT ? ABC_AVG : (abc_op)kind;
    s->r.final = kind == ABC_OP_COUNT || (s->r.op != ABC_AVG && below(2));
    s->r.nranks = below(2) ? s->nsrc : 1 + (int)below(1024);
    return abci_reduce_has(s->r.type, s->r.op);
}

static void draw_op(struct shape *s)
{
    while (!set_op(s, below(2) ? below(KINDS) : below(4)))
        ;
}

static const int operand_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64};
#define OPERAND_COUNTS (sizeof(operand_counts) / sizeof(operand_counts[0]))

static void test_sample(void **unused)
{
    for (unsigned i = 0; i < 9000; i++) {
        struct shape s = {.r = {.type = (abc_type)(i % ABC_TYPE_COUNT)}, .nsrc = operand_counts[below(OPERAND_COUNTS)]};
        draw_op(&s);
        if (s.nsrc > 9 && below(3))
            s.nsrc = 2;
        s.n = below(8) ? below(131) : 131 + below(2000);
        s.alias = (enum alias)below(ALIAS_COUNT);
        s.second = below(2);
        s.plain_numbers = below(3) > 0;
        s.r.store = below(2) ? ABCI_STORE_STREAM : ABCI_STORE_PLAIN;
        run_shape(&s);
    }
}

static void test_big(void **unused)
{
    for (unsigned t = 0; t < ABC_TYPE_COUNT; t++) {
        struct shape s = {.r = {.type = (abc_type)t, .store = t % 2 ? ABCI_STORE_STREAM : ABCI_STORE_PLAIN},
                          .nsrc = 2 + (int)below(2)};
        draw_op(&s);
        s.n = t < 4 ? BIG : BIG / 16;
        s.plain_numbers = true;
        run_shape(&s);
    }
}

static void test_product(void **unused)
{
    if (!getenv("ABC_TEST_FULL")) {
        print_message("the whole product runs with ABC_TEST_FULL=1\n");
        skip();
    }
    for (unsigned i = 0; i < ABC_TYPE_COUNT * KINDS * OPERAND_COUNTS * 12; i++) {
        struct shape s = {.r = {.type = (abc_type)(i % ABC_TYPE_COUNT)}};
        unsigned rest = i / ABC_TYPE_COUNT;
        s.nsrc = operand_counts[rest % OPERAND_COUNTS];
        rest /= OPERAND_COUNTS;
        if (!set_op(&s, rest % KINDS))
            continue;
        rest /= KINDS;
        s.alias = (enum alias)(rest % 3);
        s.second = rest / 3 % 2;
        s.r.store = rest / 6 ? ABCI_STORE_STREAM : ABCI_STORE_PLAIN;
        for (unsigned n = 0; n <= 130; n++) {
            s.n = n;
            s.plain_numbers = below(3) > 0;
            run_shape(&s);
        }
    }
}

/* One NaN, at each operand and each lane, must give exactly one NaN; with Inf in the other operands too. */
static void test_nan_everywhere(void **unused)
{
    enum { N = 67, OPERANDS = 5 };
    static const uint64_t nans[ABC_TYPE_COUNT][4] = {
        [ABC_F32] = {0x7fc00000, 0xffc00000, 0x7f810000, 0x7f800001},
        [ABC_F64] = {0x7ff8ull << 48, 0xfff8ull << 48, 0x7ff0000000000001, UINT64_MAX},
        [ABC_BF16] = {0x7fc0, 0xffc0, 0x7f81, 0xffff},
        [ABC_F16] = {0x7e00, 0xfe00, 0x7c01, 0xffff},
        [ABC_FP8_E4M3] = {0x7f, 0xff, 0x7f, 0xff},
        [ABC_FP8_E5M2] = {0x7d, 0x7e, 0xff, 0xfd},
    };
    for (unsigned type = 0; type < ABC_TYPE_COUNT; type++)
        for (unsigned kind = 0; nans[type][0] && kind < KINDS; kind++)
            for (int where = 0; where < OPERANDS * N; where += 1 + (int)below(3)) {
                struct shape s = {.r = {.type = (abc_type)type}, .nsrc = OPERANDS, .n = N, .plain_numbers = true};
                char data[OPERANDS][N * 8], want[N * 8];
                const void *src[OPERANDS];
                size_t size = oracle_size(s.r.type);
                if (!set_op(&s, kind))
                    break;
                for (int k = 0; k < OPERANDS; k++) {
                    fill(&s, data[k]);
                    src[k] = data[k];
                }
                memcpy(data[where / N] + (size_t)(where % N) * size, &nans[type][where % 4], size);
                for (size_t i = 0; i < N; i++)
                    oracle_element(&s.r, src, OPERANDS, i * size, want + i * size);
                for (int f = 0; f < FAMILIES; f++)
                    if (abci_reduce_select(families[f]) == 0)
                        run_family(&s, families[f], src, want);
            }
}

/* Sums of one operand, which is every number there is, and of a second one near it in size, so that ties happen. */
static void check_rounding(abc_type type, const void *a, const void *b, unsigned n)
{
    static char got[65536 * 2], want[2][65536 * 2];
    const struct abci_reduction r = {.type = type, .op = ABC_SUM, .nranks = 2};
    size_t size = oracle_size(type);
    for (unsigned i = 0; i < 2 * n; i++)
        oracle_element(&r, (const void *[]){a, b}, 1 + i / n, i % n * size, want[i / n] + i % n * size);
    for (int f = 0; f < FAMILIES; f++) {
        if (abci_reduce_select(families[f]) != 0)
            continue;
        for (int nsrc = 1; nsrc <= 2; nsrc++) {
            abci_reduce(&r, got, NULL, (const void *[]){a, b}, nsrc, n);
            for (unsigned i = 0; i < n; i++)
                if (!oracle_same(type, got + i * size, want[nsrc - 1] + i * size))
                    fail_msg("family %s type %d operands %d: element %u", families[f], type, nsrc, i);
        }
    }
}

static void test_rounding(void **unused)
{
    static uint16_t a[65536], b[65536];
    static uint8_t c[65536], d[65536];
    for (unsigned i = 0; i < 65536; i++) {
        a[i] = (uint16_t)i;
        b[i] = (uint16_t)((i & 0x7f80) - 0x400 + below(0x400));
        c[i] = (uint8_t)i; /* every pair */
        d[i] = (uint8_t)(i >> 8);
    }
    check_rounding(ABC_BF16, a, b, 65536);
    check_rounding(ABC_F16, a, b, 65536);
    check_rounding(ABC_FP8_E4M3, c, d, 65536);
    check_rounding(ABC_FP8_E5M2, c, d, 65536);
}

/* Small floats whose bits are known: the largest, the smallest, what lies between them and their neighbours, and beyond. */
static void test_known_floats(void **unused)
{
    static const struct {
        abc_type type;
        uint16_t a, b, sum;
    } known[] = {
        {ABC_F16, 0x7bff, 0x4b80, 0x7bff}, /* 65504 + 15 stays */
        {ABC_F16, 0x7bff, 0x4c00, 0x7c00}, /* 65504 + 16 is the tie, and infinite is even */
        {ABC_F16, 0x0001, 0x0001, 0x0002}, /* denormals */
        {ABC_F16, 0x03ff, 0x0001, 0x0400}, /* the smallest normal one */
        {ABC_F16, 0x3c00, 0x1000, 0x3c00}, /* 1 + 2^-11 is the tie */
        {ABC_FP8_E4M3, 0x7e, 0x58, 0x7e},  /* 448 + 16 is the tie between 448 and what is not there */
        {ABC_FP8_E4M3, 0x7e, 0x59, 0x7f},  /* 448 + 18 is too large */
        {ABC_FP8_E4M3, 0x07, 0x01, 0x08},  /* 7/512 + 1/512 */
        {ABC_FP8_E5M2, 0x7b, 0x6b, 0x7b},  /* 57344 + 3584 stays */
        {ABC_FP8_E5M2, 0x7b, 0x6c, 0x7c},  /* 57344 + 4096 is the tie, and infinite is even */
        {ABC_FP8_E5M2, 0x01, 0x01, 0x02},
    };
    for (int f = 0; f < FAMILIES; f++)
        for (size_t i = 0; i < sizeof known / sizeof known[0] && abci_reduce_select(families[f]) == 0; i++) {
            struct abci_reduction r = {.type = known[i].type, .op = ABC_SUM, .nranks = 2};
            uint16_t a[64], b[64], sum[64]; /* as bytes: low and zero; zero and zero make zero */
            for (int k = 0; k < 64; k++) {
                a[k] = known[i].a;
                b[k] = known[i].b;
            }
            abci_reduce(&r, sum, NULL, (const void *[]){a, b}, 2, 64 * 2 / oracle_size(r.type));
            for (int k = 0; k < 64; k++)
                assert_int_equal(sum[k], known[i].sum);
        }
}

/* Every pair of a type and an operation is there in every family, or refused. */
static void test_table(void **unused)
{
    char data[64 * 16] = {0}, out[64 * 16];
    unsigned count = 0;
    for (unsigned type = 0; type < ABC_TYPE_COUNT; type++)
        for (unsigned op = 0; op < ABC_OP_COUNT; op++) {
            struct abci_reduction r = {.type = (abc_type)type, .op = (abc_op)op, .final = 1, .nranks = 1};
            count += abci_reduce_has(r.type, r.op);
            for (int f = 0; f < FAMILIES && abci_reduce_has(r.type, r.op); f++)
                if (abci_reduce_select(families[f]) == 0)
                    abci_reduce(&r, out, NULL, (const void *[]){data}, 1, 64);
        }
    assert_int_equal(count, 6 * 5 + 8 * 11 + 10 + 2 * 3 + 3 * 2);
    assert_false(abci_reduce_has(ABC_BOOL, ABC_AVG));
    assert_false(abci_reduce_has(ABC_F32, ABC_BAND));
    assert_false(abci_reduce_has(ABC_COMPLEX64, ABC_MAX));
    assert_false(abci_reduce_has(ABC_F32, ABC_MINLOC));
    assert_false(abci_reduce_has((abc_type)-1, ABC_SUM));
    assert_false(abci_reduce_has(ABC_F32, (abc_op)ABC_OP_USER));
}

static void test_scale(void **unused)
{
    static float x[5000], y[5000];
    float factor = 0.1f;
    for (int i = 0; i < 5000; i++)
        x[i] = (float)i;
    abci_reduce_scale(ABC_F32, y, x, &factor, 5000);
    for (int i = 0; i < 5000; i++)
        assert_true(y[i] == (float)i * factor);
    abci_reduce_scale(ABC_F32, x, x, &factor, 5000);
    assert_memory_equal(x, y, sizeof x);
}

static void test_known_values(void **unused)
{
    int32_t low[2] = {INT32_MIN, INT32_MAX}, one[2] = {-1, 1}, ints[2];
    float zeros[2] = {-0.0f, 0.0f}, other[2] = {0.0f, -0.0f}, floats[2];
    for (int f = 0; f < FAMILIES; f++) {
        if (abci_reduce_select(families[f]) != 0)
            continue;
        struct abci_reduction r = {.type = ABC_I32, .op = ABC_AVG, .final = 1, .nranks = 2};
        abci_reduce(&r, ints, NULL, (const void *[]){low, one}, 2, 2);
        assert_int_equal(ints[0], INT32_MAX / 2);
        assert_int_equal(ints[1], INT32_MIN / 2);
        r = (struct abci_reduction){.type = ABC_F32, .op = ABC_MIN};
        abci_reduce(&r, floats, NULL, (const void *[]){zeros, other}, 2, 2);
        assert_true(signbit(floats[0]) && signbit(floats[1]));
        r.op = ABC_MAX;
        abci_reduce(&r, floats, NULL, (const void *[]){zeros, other}, 2, 2);
        assert_true(!signbit(floats[0]) && !signbit(floats[1]));
    }
}

struct order {
    uint64_t calls;
    bool bad;
};

/* Neither commutes nor associates: any other order of folding gives other numbers. */
static void three_minus_twice(const void *in, void *inout, uint64_t count, abc_type type, void *context)
{
    struct order *order = context;
    order->calls++;
    order->bad |= type != ABC_I32 || (uintptr_t)in % 4 != 0 || (uintptr_t)inout % 4 != 0 || in == inout;
    for (uint64_t i = 0; i < count; i++)
        ((uint32_t *)inout)[i] = 3u * ((const uint32_t *)in)[i] - 2u * ((uint32_t *)inout)[i];
}

static void test_user_op(void **unused)
{
    enum { N = 2500, OPERANDS = 5 };
    static char raw[OPERANDS][N * 4 + 8];
    static uint32_t want[N], got2[N];
    struct order order = {0};
    struct abci_user_op user = {.fn = three_minus_twice, .context = &order};
    struct abci_reduction r = {.type = ABC_I32, .op = ABC_OP_USER, .nranks = OPERANDS, .user = &user};
    for (int nsrc = 1; nsrc <= OPERANDS; nsrc++)
        for (int offset = 0; offset < 3; offset++) {
            const void *src[OPERANDS];
            for (int k = 0; k < nsrc; k++) {
                src[k] = raw[k] + offset;
                for (size_t i = 0; i < N; i++)
                    memcpy(raw[k] + offset + 4 * i, &(uint32_t){(uint32_t)random64()}, 4);
            }
            for (size_t i = 0; i < N; i++) {
                memcpy(&want[i], (const char *)src[nsrc - 1] + 4 * i, 4);
                for (int k = nsrc - 2; k >= 0; k--) {
                    uint32_t in;
                    memcpy(&in, (const char *)src[k] + 4 * i, 4);
                    want[i] = 3u * in - 2u * want[i];
                }
            }
            order.calls = 0;
            abci_reduce(&r, raw[0] + offset, got2, src, nsrc, N); /* in place of the first operand */
            assert_memory_equal(raw[0] + offset, want, sizeof(want));
            assert_memory_equal(got2, want, sizeof(want));
            assert_int_equal(order.calls, 3 * (nsrc - 1)); /* blocks of 4 KiB */
            assert_false(order.bad);
        }
}

static void copy_once(size_t bytes, bool second, bool same, enum abci_store store)
{
    struct target dst = target_new(bytes), dst2 = target_new(bytes);
    char *base = malloc(bytes + 64);
    assert_non_null(base);
    char *src = base + below(64);
    for (size_t i = 0; i < bytes; i++)
        src[i] = (char)random64();
    if (same)
        memcpy(dst.at, src, bytes);
    abci_copy(dst.at, second ? dst2.at : NULL, same ? dst.at : src, bytes, store);
    assert_memory_equal(dst.at, src, bytes);
    if (second)
        assert_memory_equal(dst2.at, src, bytes);
    assert_true(guards_intact(&dst) && guards_intact(&dst2));
    free(base);
    free(dst.base);
    free(dst2.base);
}

static void test_copy(void **unused)
{
    for (int f = 0; f < FAMILIES; f++)
        if (abci_reduce_select(families[f]) == 0)
            for (unsigned i = 0; i < 3000; i++)
                copy_once(below(4) ? below(300) : below(9000), i & 1, (i & 6) == 6, i & 8 ? ABCI_STORE_STREAM : ABCI_STORE_PLAIN);
}

/* A long plain copy goes in pieces of 256 KiB. */
static void test_copy_long(void **unused)
{
    static const size_t bytes[] = {(256 << 10) - 1, 256 << 10, (256 << 10) + 1, (512 << 10), (512 << 10) + 1, (1 << 20) + 4097};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        for (int way = 0; way < 8; way++)
            copy_once(bytes[i], way & 1, way & 2, way & 4 ? ABCI_STORE_STREAM : ABCI_STORE_PLAIN);
}

static void test_select(void **unused)
{
    assert_int_equal(abci_reduce_select("sse9"), -1);
    assert_int_equal(abci_reduce_select(""), -1);
    assert_int_equal(abci_reduce_select("generic"), 0);
    assert_string_equal(abci_reduce_family(), "generic");
    assert_int_equal(abci_reduce_select("auto"), 0);
    for (int f = 0; f < FAMILIES; f++)
        if (abci_reduce_select(families[f]) != 0)
            print_message("family %s is not available on this CPU\n", families[f]);
        else
            assert_string_equal(abci_reduce_family(), families[f]);
}

/* What did the setting choose? "auto" stands for the best family. */
static int expect(const char *name)
{
    char got[16];
    snprintf(got, sizeof(got), "%s", abci_reduce_family());
    if (strcmp(name, "auto") == 0 && abci_reduce_select("auto") == 0)
        name = abci_reduce_family();
    if (strcmp(got, name) != 0)
        fprintf(stderr, "test_reduce: the family is %s, expected %s\n", got, name);
    return strcmp(got, name) != 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "expect") == 0)
        return expect(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_select),    cmocka_unit_test(test_known_values), cmocka_unit_test(test_sample),
        cmocka_unit_test(test_big),       cmocka_unit_test(test_product),      cmocka_unit_test(test_nan_everywhere),
        cmocka_unit_test(test_rounding),  cmocka_unit_test(test_user_op),      cmocka_unit_test(test_copy),
        cmocka_unit_test(test_copy_long), cmocka_unit_test(test_known_floats), cmocka_unit_test(test_table),
        cmocka_unit_test(test_scale),
    };
    const char *given = getenv("ABC_TEST_SEED");
    seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    state = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    print_message("ABC_TEST_SEED=%llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests_name("reduce", tests, NULL, NULL);
}
