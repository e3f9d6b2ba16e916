/*
 * value.c - stage 3: symbolic values for the checker, see value.h. Owned by one check; one thread. Inputs cost no memory, a sum one
 * bit a rank.
 */
#include "plan/value.h"

#include <string.h>

#include "base/base.h"

void abci_values_open(struct abci_values *v, int nranks, int nblocks)
{
    memset(v, 0, sizeof *v);
    v->nranks = (uint32_t)nranks;
    v->nblocks = (uint32_t)nblocks;
    v->words = (v->nranks + 63) / 64;
}

void abci_values_close(struct abci_values *v)
{
    abci_free(v->info);
    abci_free(v->set);
    memset(v, 0, sizeof *v);
}

static uint32_t first_sum(const struct abci_values *v)
{
    return 1 + v->nranks * v->nblocks;
}

uint32_t abci_value_input(const struct abci_values *v, int rank, int block)
{
    return 1 + (uint32_t)rank * v->nblocks + (uint32_t)block;
}

struct abci_value_info abci_value_info(const struct abci_values *v, uint32_t value)
{
    if (value >= first_sum(v))
        return v->info[value - first_sum(v)];
    uint32_t rank = (value - 1) / v->nblocks;
    return (struct abci_value_info){
        .block = (value - 1) % v->nblocks, .lo = rank, .hi = rank, .ranks = 1, .contiguous = true, .strict = true};
}

static bool grow(struct abci_values *v)
{
    uint32_t room = v->room ? 2 * v->room : 64;
    struct abci_value_info *info = abci_alloc(room * sizeof *info);
    uint64_t *set = abci_alloc((size_t)room * v->words * sizeof *set);
    if (!info || !set) {
        abci_free(info);
        abci_free(set);
        return false;
    }
    if (v->used > 0) {
        memcpy(info, v->info, v->used * sizeof *info);
        memcpy(set, v->set, (size_t)v->used * v->words * sizeof *set);
    }
    abci_free(v->info);
    abci_free(v->set);
    v->info = info;
    v->set = set;
    v->room = room;
    return true;
}

uint32_t abci_value_sum(struct abci_values *v)
{
    if (v->used == v->room && !grow(v))
        return 0;
    memset(&v->info[v->used], 0, sizeof *v->info);
    memset(&v->set[(size_t)v->used * v->words], 0, v->words * sizeof *v->set);
    return first_sum(v) + v->used++;
}

/* Merge the operand's contributions; false if one is there already. */
static bool merge(struct abci_values *v, uint32_t sum, uint32_t operand, uint32_t lo)
{
    uint64_t *to = &v->set[(size_t)(sum - first_sum(v)) * v->words];
    if (operand < first_sum(v)) {
        uint64_t bit = 1ull << lo % 64;
        bool fresh = !(to[lo / 64] & bit);
        to[lo / 64] |= bit;
        return fresh;
    }
    const uint64_t *from = &v->set[(size_t)(operand - first_sum(v)) * v->words];
    uint64_t twice = 0;
    for (uint32_t i = 0; i < v->words; i++) {
        twice |= to[i] & from[i];
        to[i] |= from[i];
    }
    return twice == 0;
}

const char *abci_value_add(struct abci_values *v, uint32_t sum, uint32_t operand)
{
    struct abci_value_info add = abci_value_info(v, operand);
    struct abci_value_info *to = &v->info[sum - first_sum(v)];
    if (add.final)
        return "adds a result that is complete and final already";
    if (to->ranks > 0 && add.block != to->block)
        return "adds blocks that do not belong together";
    if (!merge(v, sum, operand, add.lo))
        return "adds a contribution twice";
    if (to->ranks == 0) {
        *to = add;
        return NULL;
    }
    to->contiguous = to->contiguous && add.contiguous && add.lo == to->hi + 1;
    to->strict = to->strict && to->contiguous && add.ranks == 1;
    to->hi = add.hi;
    to->ranks += add.ranks;
    return NULL;
}

int abci_value_lacks(const struct abci_values *v, uint32_t value)
{
    for (uint32_t rank = 0; rank < v->nranks; rank++) {
        bool has = value >= first_sum(v) ? v->set[(size_t)(value - first_sum(v)) * v->words + rank / 64] >> rank % 64 & 1
                                         : value > 0 && (value - 1) / v->nblocks == rank;
        if (!has)
            return (int)rank;
    }
    return -1;
}

void abci_value_finish(struct abci_values *v, uint32_t sum)
{
    v->info[sum - first_sum(v)].final = true;
}
