/*
 * clock.c - stage 3: happens-before for the checker, see clock.h. Owned by one check; one thread. Cost: one pass over a row of
 * `nchains` numbers for each wait.
 */
#include "plan/clock.h"

#include <string.h>

#include "base/base.h"

/* Mark the steps that others wait for and link the PUBLISH steps of each counter. */
static void mark_rank(struct abci_clock *clock, int rank)
{
    const struct abci_plan *plan = clock->set->plan[rank];
    uint32_t base = clock->first[rank];
    int32_t published[ABCI_COUNTERS] = {-1, -1, -1, -1};
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const struct abci_step *step = &plan->steps[i];
        clock->chain[base + i] = ABCI_NO_CHAIN;
        clock->before[base + i] = -1;
        for (int k = 0; k < 2; k++)
            if (step->after[k] >= 0)
                clock->chain[base + (uint32_t)step->after[k]] = 0;
        if (step->kind == ABCI_PUBLISH) {
            clock->before[base + i] = published[step->counter];
            published[step->counter] = (int32_t)i;
        }
    }
    for (uint32_t i = 0; i < plan->nsteps; i++)
        if (plan->steps[i].kind == ABCI_PUBLISH)
            clock->chain[base + i] = 0;
}

/* Put each marked step behind a step that it depends on and that ends its chain, else at the head of a new chain. */
static void link_rank(struct abci_clock *clock, int rank, unsigned char *taken)
{
    const struct abci_plan *plan = clock->set->plan[rank];
    uint32_t base = clock->first[rank];
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        uint32_t e = base + i;
        const int32_t wait[3] = {clock->before[e], plan->steps[i].after[0], plan->steps[i].after[1]};
        if (clock->chain[e] == ABCI_NO_CHAIN)
            continue;
        uint32_t chain = ABCI_NO_CHAIN;
        for (int k = 0; k < 3 && chain == ABCI_NO_CHAIN; k++) {
            uint32_t pred = base + (uint32_t)(wait[k] < 0 ? 0 : wait[k]);
            if (wait[k] < 0 || taken[pred])
                continue;
            taken[pred] = 1;
            chain = clock->chain[pred];
            clock->place[e] = (uint16_t)(clock->place[pred] + 1);
        }
        if (chain == ABCI_NO_CHAIN) {
            chain = clock->nchains++;
            clock->owner[chain] = (uint16_t)rank;
        }
        clock->chain[e] = chain;
    }
}

int abci_clock_open(struct abci_clock *clock, const struct abci_plan_set *set)
{
    memset(clock, 0, sizeof *clock);
    clock->set = set;
    uint32_t events = 0;
    clock->first = abci_alloc(((size_t)set->nranks + 1) * sizeof *clock->first);
    for (int r = 0; clock->first && r < set->nranks; r++) {
        clock->first[r] = events;
        events += set->plan[r]->nsteps;
        clock->first[r + 1] = events;
    }
    size_t n = events + 1u;
    clock->chain = abci_alloc(n * sizeof *clock->chain);
    clock->place = abci_alloc(n * sizeof *clock->place);
    clock->before = abci_alloc(n * sizeof *clock->before);
    clock->row = abci_alloc(n * sizeof *clock->row);
    clock->owner = abci_alloc(n * sizeof *clock->owner);
    unsigned char *taken = abci_alloc(n);
    bool ok = clock->first && clock->chain && clock->place && clock->before && clock->row && clock->owner && taken;
    for (int r = 0; ok && r < set->nranks; r++) {
        mark_rank(clock, r);
        link_rank(clock, r, taken);
    }
    abci_free(taken);
    clock->now = ok ? abci_alloc((clock->nchains + 1u) * sizeof *clock->now) : NULL;
    return clock->now ? ABC_OK : ABC_ERR_MEMORY;
}

void abci_clock_close(struct abci_clock *clock)
{
    uint32_t events = clock->first && clock->set ? clock->first[clock->set->nranks] : 0;
    for (uint32_t e = 0; clock->row && e < events; e++)
        abci_free(clock->row[e]);
    abci_free(clock->first);
    abci_free(clock->chain);
    abci_free(clock->place);
    abci_free(clock->before);
    abci_free(clock->row);
    abci_free(clock->owner);
    abci_free(clock->now);
    memset(clock, 0, sizeof *clock);
}

void abci_clock_begin(struct abci_clock *clock, int rank, uint32_t step)
{
    const struct abci_step *s = &clock->set->plan[rank]->steps[step];
    uint32_t base = clock->first[rank];
    memset(clock->now, 0, clock->nchains * sizeof *clock->now);
    clock->event = base + step;
    clock->foreign = false;
    if (clock->before[clock->event] >= 0)
        abci_clock_join(clock, base + (uint32_t)clock->before[clock->event]);
    for (int k = 0; k < 2; k++)
        if (s->after[k] >= 0)
            abci_clock_join(clock, base + (uint32_t)s->after[k]);
}

void abci_clock_join(struct abci_clock *clock, uint32_t event)
{
    uint32_t chain = clock->chain[event];
    const uint16_t *row = clock->row[event];
    if (clock->now[chain] > clock->place[event])
        return; /* known already, and with it all that it knew */
    if (row) {
        for (uint32_t i = 0; i < clock->nchains; i++)
            clock->now[i] = clock->now[i] > row[i] ? clock->now[i] : row[i];
        clock->foreign = true;
    }
    if (chain != clock->chain[clock->event])
        clock->foreign = true;
    clock->now[chain] = (uint16_t)(clock->place[event] + 1);
}

bool abci_clock_over(const struct abci_clock *clock, uint32_t event)
{
    uint32_t chain = clock->chain[event];
    return chain != ABCI_NO_CHAIN && clock->now[chain] > clock->place[event];
}

int abci_clock_end(struct abci_clock *clock)
{
    uint32_t e = clock->event;
    size_t bytes = clock->nchains * sizeof *clock->now;
    if (clock->chain[e] == ABCI_NO_CHAIN || !clock->foreign)
        return ABC_OK;
    if (!clock->row[e]) {
        if (clock->bytes + bytes > ABCI_CLOCK_MAX_BYTES)
            return ABC_ERR_UNSUPPORTED;
        clock->row[e] = abci_alloc(bytes);
        clock->bytes += bytes;
    }
    if (!clock->row[e])
        return ABC_ERR_MEMORY;
    memcpy(clock->row[e], clock->now, bytes);
    return ABC_OK;
}
