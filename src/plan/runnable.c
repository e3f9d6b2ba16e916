/*
 * runnable.c - stage 3: what the executor derives from a plan once, so that no call looks for it: which steps lead, what is shown,
 * whether two ranks pair. Before: build.c or json.c makes the plan. After: the chooser keeps the runnable, run.c runs it. No state.
 */
#include "plan/run_internal.h"

static uint32_t hash_name(const char *name)
{
    uint32_t h = 2166136261u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    return h;
}

static bool leads(const struct abci_step *s, uint32_t index)
{
    bool free_standing = (s->after[0] < 0 || s->after[0] < (int32_t)index) && (s->after[1] < 0 || s->after[1] < (int32_t)index);
    return s->kind == ABCI_PUBLISH && s->counter == 0 && free_standing && (s->src.buffer == ABCI_IN || s->src.count == 0);
}

/* Only what is shown takes staging, or what a step stages though nobody reads it there. */
static void show_blocks(struct abci_runnable *r, const struct abci_ref *ref)
{
    uint16_t *first = &r->first_shown[ref->buffer], *last = &r->last_shown[ref->buffer], end = ref->block + ref->count - 1;
    *first = ref->block < *first ? ref->block : *first;
    *last = end > *last ? end : *last;
}

static void derive_publishes(struct abci_runnable *r)
{
    const struct abci_plan *p = r->plan;
    uint32_t used = 0;
    r->in_by_lead = r->single_values = true;
    r->first_shown[ABCI_IN] = r->first_shown[ABCI_OUT] = UINT16_MAX;
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct abci_step *s = &p->steps[i];
        if (s->flags & ABCI_STAGE && s->dst.buffer == ABCI_OUT)
            show_blocks(r, &s->dst);
        if (s->kind != ABCI_PUBLISH || s->src.count == 0)
            continue;
        if (s->src.buffer <= ABCI_OUT)
            show_blocks(r, &s->src);
        r->publishes_in |= s->src.buffer == ABCI_IN;
        r->publishes_out |= s->src.buffer == ABCI_OUT;
        if (i < r->lead)
            continue;
        r->in_by_lead &= s->src.buffer != ABCI_IN;
        r->single_values &= !(used >> s->counter & 1);
        used |= 1u << s->counter;
    }
}

/* Is this all: show a block of IN, add one of the peer's to an own one? */
static bool pairs(const struct abci_runnable *r)
{
    const struct abci_plan *p = r->plan;
    bool narrow = abci_part_width((abc_collective)p->collective, ABCI_IN) == ABCI_NARROW;
    if (p->nranks != 2 || !narrow || p->nblocks != 1 || r->lead != 1 || p->nsteps != 2 || p->ntmp > 0 || p->direct)
        return false;
    const struct abci_ref show = p->steps[0].src;
    const struct abci_step *add = &p->steps[1];
    return show.buffer == ABCI_IN && show.count == 1 && add->kind == ABCI_REDUCE && add->npeers == 1 && add->flags == ABCI_FINAL &&
           add->src.buffer == ABCI_IN && add->src.count == 1 && add->own.buffer == ABCI_IN && add->own.count == 1 &&
           add->dst.buffer == ABCI_OUT && add->dst.count == 1;
}

/* Do blocks go from peers' IN to the own OUT, and is that all that is done with them? Then any part may be read at any time. */
static bool reads_ahead(const struct abci_runnable *r)
{
    for (uint32_t i = 0; i < r->plan->nsteps; i++) {
        const struct abci_step *s = &r->plan->steps[i];
        bool from_in = s->src.buffer == ABCI_IN || s->src.count == 0;
        if (!from_in || s->kind == ABCI_REDUCE || s->flags & ABCI_STAGE || (s->kind == ABCI_FETCH && s->dst.buffer != ABCI_OUT))
            return false;
    }
    return !r->plan->direct;
}

struct abci_runnable *abci_runnable_make(struct abci_plan *plan)
{
    struct abci_runnable *r = abci_alloc(sizeof *r);
    for (uint32_t i = 0; r && i < plan->nsteps; i++)
        if (plan->steps[i].kind >= ABCI_PUSH && !abci_mutated("c3_reserved_kind_accepted")) {
            abci_error(ABC_ERR_UNSUPPORTED, "plan %s: step %u is of a kind that is reserved", plan->name, i);
            abci_free(r);
            return NULL;
        }
    if (!r)
        return NULL;
    r->plan = plan;
    r->hash = hash_name(plan->name);
    while (r->lead < plan->nsteps && leads(&plan->steps[r->lead], r->lead))
        r->lead_value = plan->steps[r->lead++].value;
    r->keeps_staging = plan->ntmp > 0;
    derive_publishes(r);
    r->pairs = pairs(r);
    r->reads_ahead = reads_ahead(r);
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const struct abci_step *s = &plan->steps[i];
        r->reads_lead |= (s->kind == ABCI_REDUCE || s->kind == ABCI_FETCH) && s->src.buffer == ABCI_IN;
    }
    return r;
}

void abci_runnable_free(struct abci_runnable *r)
{
    if (r)
        abci_plan_free(r->plan);
    abci_free(r);
}
