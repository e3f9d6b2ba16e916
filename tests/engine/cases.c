/*
 * cases.c - choosing cases. Each new case is the best of a few random ones: the one with most pairs of levels that no case had
 * before. After some thousand cases all possible pairs have occurred, and what follows is plain random.
 */
#include "cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "plan/part.h"

#define TRIES 12
#define LEVELS 24

static const uint8_t levels[DIMENSIONS] = {
    [D_RANKS] = 9,    [D_THREADS] = 4,     [D_PVR] = 3,    [D_CHUNK] = 6,          [D_PIPELINE] = 4, [D_STORES] = 3,
    [D_SIMD] = 4,     [D_COLLECTIVE] = 11, [D_TYPE] = 4,   [D_OP] = TEST_OP_COUNT, [D_SIZE] = 22,    [D_PLACE] = 3,
    [D_IN_SHIFT] = 6, [D_OUT_SHIFT] = 6,   [D_MEMORY] = 3, [D_ALGORITHM] = 9,      [D_ROOT] = 3,     [D_HOW] = 4,
};
static const unsigned shifts[] = {0, 1, 4, 16, 35, 63};
static const char *const chunks[] = {NULL, "4K", "16K", "100K", "64", "2M"}; /* the last: more than a token of two ranks holds */
static const uint64_t chunk_bytes[] = {512 << 10, 4 << 10, 16 << 10, 100 << 10, 64, 2 << 20};

struct sample {
    uint64_t random;
    unsigned long possible_count, seen_count;
    bool possible[DIMENSIONS][LEVELS][DIMENSIONS][LEVELS];
    bool seen[DIMENSIONS][LEVELS][DIMENSIONS][LEVELS];
};

int setting_ranks(const struct vector *v)
{
    return v->level[D_RANKS] + 1;
}

/* ---- What can be ---- */

static bool reduces(const struct vector *v)
{
    return abci_is(ABCI_REDUCING, v->level[D_COLLECTIVE]);
}

static const struct abci_algo *algorithm_of(const struct vector *v)
{
    const struct abci_algo *const *a = abci_algos;
    for (int i = 1; i < v->level[D_ALGORITHM] && *a; i++)
        a++;
    return v->level[D_ALGORITHM] ? *a : NULL;
}

/* Make levels that mean nothing here 0, and impossible ones possible, so that pairs are counted honestly. */
static void normalise(struct vector *v)
{
    if (!reduces(v))
        v->level[D_OP] = 0;
    if (abci_is(ABCI_PREFIX, v->level[D_COLLECTIVE]) && v->level[D_OP] == TEST_AVG)
        v->level[D_OP] = TEST_SUM;
    if (!abci_is(ABCI_ROOTED, v->level[D_COLLECTIVE]))
        v->level[D_ROOT] = 0;
    if (v->level[D_COLLECTIVE] == ABC_BARRIER)
        for (int d = D_TYPE; d < DIMENSIONS; d++)
            if (d != D_ALGORITHM && d != D_HOW)
                v->level[d] = 0;
    bool in_holds_out = v->level[D_COLLECTIVE] == ABC_REDUCE_SCATTER || v->level[D_COLLECTIVE] == ABC_SCATTER;
    if (in_holds_out && v->level[D_PLACE] == 1)
        v->level[D_PLACE] = 2;
    if (v->level[D_PLACE])
        v->level[D_IN_SHIFT] = 0;
    const struct abci_algo *a = algorithm_of(v);
    if (!a || !abci_algo_fits(a, (abc_collective)v->level[D_COLLECTIVE], setting_ranks(v)))
        v->level[D_ALGORITHM] = 0;
}

static void draw(struct sample *s, struct vector *v, int first, int end)
{
    for (int d = first; d < end; d++)
        v->level[d] = (uint8_t)(random_next(&s->random) % levels[d]);
}

static unsigned long fresh_pairs(struct sample *s, const struct vector *v, int first, bool mark)
{
    unsigned long fresh = 0;
    for (int b = first; b < DIMENSIONS; b++)
        for (int a = 0; a < b; a++) {
            bool *seen = &s->seen[a][v->level[a]][b][v->level[b]];
            fresh += !*seen;
            *seen |= mark;
        }
    return fresh;
}

struct sample *sample_open(uint64_t seed)
{
    struct sample *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->random = 4711;
    for (int i = 0; i < 100000; i++) {
        struct vector v;
        draw(s, &v, 0, DIMENSIONS);
        normalise(&v);
        for (int b = SETTING_DIMENSIONS; b < DIMENSIONS; b++)
            for (int a = 0; a < b; a++) {
                bool *possible = &s->possible[a][v.level[a]][b][v.level[b]];
                s->possible_count += !*possible;
                *possible = true;
            }
    }
    s->random = seed;
    return s;
}

void sample_close(struct sample *s)
{
    free(s);
}

/* Settings go round through the levels of each dimension at different speeds, so that few jobs see them all. */
void sample_setting(struct sample *s, struct vector *v)
{
    draw(s, v, 0, SETTING_DIMENSIONS);
}

void sample_case(struct sample *s, struct vector *v, bool greedy)
{
    struct vector best = *v;
    unsigned long most = 0;
    for (int i = 0; i < (greedy ? TRIES : 1); i++) {
        struct vector one = *v;
        draw(s, &one, SETTING_DIMENSIONS, DIMENSIONS);
        normalise(&one);
        unsigned long fresh = fresh_pairs(s, &one, SETTING_DIMENSIONS, false);
        if (i == 0 || fresh > most) {
            best = one;
            most = fresh;
        }
    }
    s->seen_count += fresh_pairs(s, &best, SETTING_DIMENSIONS, true);
    *v = best;
}

void sample_report(const struct sample *s, unsigned long *seen, unsigned long *possible)
{
    *seen = s->seen_count;
    *possible = s->possible_count;
}

/* ---- What it means ---- */

void setting_environment(const struct vector *v, char text[8][64], const char *list[8])
{
    static const char *const pvr[] = {"auto", "on", "off"}, *const stores[] = {"auto", "plain", "stream"};
    static const char *const simd[] = {"auto", "scalar", "generic", "avx2"};
    int n = 0;
    snprintf(text[n++], 64, "ABCOMM_PVR=%s", pvr[v->level[D_PVR]]);
    snprintf(text[n++], 64, "ABCOMM_PIPELINE=%d", v->level[D_PIPELINE] + 1);
    snprintf(text[n++], 64, "ABCOMM_STORES=%s", stores[v->level[D_STORES]]);
    bool avx2 = __builtin_cpu_supports("avx2");
    snprintf(text[n++], 64, "ABCOMM_SIMD=%s", v->level[D_SIMD] == 3 && !avx2 ? "auto" : simd[v->level[D_SIMD]]);
    if (chunks[v->level[D_CHUNK]])
        snprintf(text[n++], 64, "ABCOMM_CHUNK=%s", chunks[v->level[D_CHUNK]]);
    for (int i = 0; i < n; i++)
        list[i] = text[i];
    list[n] = NULL;
}

/* Elements for a level: limits of the header line, the counter line, a page, the eager copy, a small region and the chunk. */
static uint64_t count_of(const struct vector *v, uint64_t element, uint64_t ranks)
{
    static const uint64_t edges[] = {32, 48, 512, 4096, 16 << 10, 64 << 10};
    bool wide = abci_part_by_rank((abc_collective)v->level[D_COLLECTIVE]);
    uint64_t share = wide ? ranks : 1, level = v->level[D_SIZE];
    uint64_t chunk = chunk_bytes[v->level[D_CHUNK]];
    if (chunk == 64 && level >= 14) /* as many chunks as bearable */
        return (16 << 10) / 64 * (64 / element) / share + level - 14;
    if (v->level[D_CHUNK] == 0)
        chunk = ranks <= 2 ? 512 << 10 : ranks <= 4 ? 1 << 20 : 2 << 20;
    switch (level) {
    case 0:
    case 1:
        return level;
    case 2:
        return 3;
    case 3:
        return 37;
    case 17:
    case 18:
    case 19:
        return chunk / element / share + level - 18;
    case 20:
        return 3 * (chunk / element / share) + 5;
    case 21:
        return chunk > (100 << 10) ? chunk / element / share * 2 + 1 : 11 * (chunk / element / share) + 1;
    default: { /* two or three counts around each edge; blocks of wide buffers too */
        uint64_t edge = edges[(level - 4) / 2 % 6];
        if (chunk == 64 && edge > 4096)
            edge = 4096;
        return edge / element + (level & 1 ? 1 : 0) - (level % 3 == 0 && edge / element > 1 ? 1 : 0);
    }
    }
}

void case_of(const struct vector *v, uint64_t seed, struct one_case *c)
{
    const struct abci_algo *a = algorithm_of(v);
    int ranks = setting_ranks(v);
    memset(c, 0, sizeof *c);
    c->collective = (abc_collective)v->level[D_COLLECTIVE];
    c->type = (abc_type)v->level[D_TYPE];
    c->op = (enum test_op)v->level[D_OP];
    c->count = count_of(v, abc_type_size(c->type), (uint64_t)ranks);
    c->place = v->level[D_PLACE];
    c->memory = v->level[D_MEMORY];
    c->root = v->level[D_ROOT] == 0 ? 0 : v->level[D_ROOT] == 1 ? ranks - 1 : ranks / 2;
    c->how = v->level[D_HOW];
    c->in_shift = shifts[v->level[D_IN_SHIFT]];
    c->out_shift = shifts[v->level[D_OUT_SHIFT]];
    c->seed = seed;
    c->exact = c->op == TEST_USER_ADD; /* associative as far as the user promised: the bracketing is the library's */
    if (!a)
        return;
    c->algorithm = a->name;
    c->exact |= !a->rank_order || c->type == ABC_BF16;
    c->unsupported = c->op == TEST_USER_AFFINE && !a->ordered;
}

void case_text(const struct one_case *c, char *text, size_t capacity)
{
    static const char *const place[] = {"out of place", "IN_PLACE", "equal"}, *const memory[] = {"arena", "private", "mixed"};
    static const char *const how[] = {"blocking", "started", "persistent", "in a group"};
    snprintf(text, capacity, "%s %s %s count %llu root %d, %s, %s, shifts %u %u, %s, %s", abc_collective_name(c->collective),
             abc_type_name(c->type), test_op_name(c->op), (unsigned long long)c->count, c->root, place[c->place], memory[c->memory],
             c->in_shift, c->out_shift, c->algorithm ? c->algorithm : "default", how[c->how]);
}
