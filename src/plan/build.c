/*
 * build.c - stage 3: the builder that algorithms speak to, and plans' lifetime. Turns calls of src/algo/ into one rank's immutable
 * plan; the executor, the checker and the printers read it. Owner: whoever asked for the plan. One thread a builder; cost: once per
 * (algorithm, collective, ranks, root), linear in the steps.
 */
#include "plan/plan.h"

#include <string.h>

#include "base/base.h"

/* What the builder remembers between calls. */
struct abci_build_state {
    uint32_t step_room, peer_room;
    uint16_t next_value[ABCI_COUNTERS]; /* of each own counter */
    int after[2];                       /* for the next step */
    bool after_given;
    int flags; /* for the next step */
};

void abci_plan_free(struct abci_plan *plan)
{
    if (!plan)
        return;
    abci_free(plan->steps);
    abci_free(plan->peers);
    abci_free(plan->sources);
    abci_free(plan->readers);
    abci_free(plan);
}

static void fail(struct abci_builder *b, int status, const char *text)
{
    if (b->status == ABC_OK)
        b->status = abci_error(status, "plan %s for rank %d of %d: %s", b->plan->name, b->rank, b->nranks, text);
}

/* Make room for one more element of an array; doubles. */
static bool grow(struct abci_builder *b, void **array, uint32_t *room, uint32_t used, size_t size)
{
    if (used < *room)
        return true;
    uint32_t more = *room ? *room * 2 : 16;
    void *bigger = abci_alloc(more * size);
    if (!bigger) {
        fail(b, ABC_ERR_MEMORY, "out of memory");
        return false;
    }
    if (used > 0)
        memcpy(bigger, *array, used * size);
    abci_free(*array);
    *array = bigger;
    *room = more;
    return true;
}

/* Append a step of a kind with what abci_b_after and abci_b_flags have left for it. Returns NULL once the builder has failed. */
static struct abci_step *add_step(struct abci_builder *b, enum abci_kind kind)
{
    struct abci_plan *plan = b->plan;
    struct abci_build_state *s = b->state;
    if (b->status != ABC_OK)
        return NULL;
    if (plan->nsteps >= ABCI_MAX_STEPS) {
        fail(b, ABC_ERR_PLAN, "too many steps");
        return NULL;
    }
    if (!grow(b, (void **)&plan->steps, &s->step_room, plan->nsteps, sizeof *plan->steps))
        return NULL;
    struct abci_step *step = &plan->steps[plan->nsteps];
    memset(step, 0, sizeof *step);
    step->kind = (uint8_t)kind;
    step->flags = (uint8_t)s->flags;
    step->src.buffer = step->own.buffer = step->dst.buffer = ABCI_NONE;
    step->peer = plan->npeers;
    step->after[0] = s->after_given ? s->after[0] : (int)plan->nsteps - 1;
    step->after[1] = s->after_given ? s->after[1] : -1;
    s->after_given = false;
    s->flags = 0;
    plan->nsteps++;
    return step;
}

static int last(const struct abci_builder *b)
{
    return (int)b->plan->nsteps - 1;
}

/* Append a rank to the last step's peer list, if that step is of one of two kinds. */
static void add_peer(struct abci_builder *b, enum abci_kind kind, enum abci_kind other, int rank, int counter, int value)
{
    struct abci_plan *plan = b->plan;
    if (b->status != ABC_OK)
        return;
    struct abci_step *step = plan->nsteps > 0 ? &plan->steps[plan->nsteps - 1] : NULL;
    if (!step || (step->kind != kind && step->kind != other)) {
        fail(b, ABC_ERR_PLAN, "a peer was added to a step that takes none");
        return;
    }
    if (!grow(b, (void **)&plan->peers, &b->state->peer_room, plan->npeers, sizeof *plan->peers))
        return;
    plan->peers[plan->npeers++] = (struct abci_peer){(uint16_t)rank, (uint8_t)counter, (uint16_t)value};
    step->npeers++;
}

void abci_b_after(struct abci_builder *b, int step0, int step1)
{
    b->state->after[0] = step0;
    b->state->after[1] = step1;
    b->state->after_given = true;
}

void abci_b_flags(struct abci_builder *b, int flags)
{
    b->state->flags = flags;
}

int abci_b_publish(struct abci_builder *b, int counter, struct abci_ref src)
{
    if (b->status == ABC_OK && (counter < 0 || counter >= ABCI_COUNTERS))
        fail(b, ABC_ERR_PLAN, "a counter is out of range");
    struct abci_step *step = add_step(b, ABCI_PUBLISH);
    if (!step)
        return -1;
    step->counter = (uint8_t)counter;
    step->value = ++b->state->next_value[counter];
    step->src = src;
    return last(b);
}

void abci_b_reader(struct abci_builder *b, int rank)
{
    add_peer(b, ABCI_PUBLISH, ABCI_PUBLISH, rank, 0, 0);
}

int abci_b_fetch(struct abci_builder *b, int peer, int counter, int value, struct abci_ref src, struct abci_ref dst)
{
    struct abci_step *step = add_step(b, ABCI_FETCH);
    if (!step)
        return -1;
    step->src = src;
    step->dst = dst;
    add_peer(b, ABCI_FETCH, ABCI_FETCH, peer, counter, value);
    return b->status == ABC_OK ? last(b) : -1;
}

int abci_b_copy(struct abci_builder *b, struct abci_ref src, struct abci_ref dst)
{
    struct abci_step *step = add_step(b, ABCI_COPY);
    if (!step)
        return -1;
    step->src = src;
    step->dst = dst;
    return last(b);
}

int abci_b_reduce(struct abci_builder *b, struct abci_ref src, struct abci_ref dst)
{
    struct abci_step *step = add_step(b, ABCI_REDUCE);
    if (!step)
        return -1;
    step->src = src;
    step->dst = dst;
    return last(b);
}

void abci_b_operand(struct abci_builder *b, int peer, int counter, int value)
{
    add_peer(b, ABCI_REDUCE, ABCI_REDUCE, peer, counter, value);
}

void abci_b_own(struct abci_builder *b, struct abci_ref own)
{
    if (b->status != ABC_OK)
        return;
    struct abci_step *step = b->plan->nsteps > 0 ? &b->plan->steps[b->plan->nsteps - 1] : NULL;
    if (!step || step->kind != ABCI_REDUCE || step->own.buffer != ABCI_NONE) {
        fail(b, ABC_ERR_PLAN, "an own operand was added twice or to a step that is no REDUCE");
        return;
    }
    step->own = own;
    step->own_at = step->npeers;
}

int abci_b_await(struct abci_builder *b)
{
    return add_step(b, ABCI_AWAIT) ? last(b) : -1;
}

void abci_b_awaited(struct abci_builder *b, int peer, int counter, int value)
{
    add_peer(b, ABCI_AWAIT, ABCI_AWAIT, peer, counter, value);
}

/* Ranks that occur in the peer lists of PUBLISH steps (readers) or of the others (sources), ascending. */
static int collect_ranks(const struct abci_plan *plan, bool readers, uint16_t **list, uint16_t *count)
{
    unsigned char seen[ABCI_MAX_RANKS] = {0};
    uint16_t n = 0;
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const struct abci_step *step = &plan->steps[i];
        if ((step->kind == ABCI_PUBLISH) != readers)
            continue;
        for (uint32_t k = step->peer; k < step->peer + step->npeers; k++) {
            uint16_t rank = plan->peers[k].rank;
            if (rank < ABCI_MAX_RANKS && !seen[rank]) {
                seen[rank] = 1;
                n++;
            }
        }
    }
    *list = abci_alloc((n + 1u) * sizeof **list);
    if (!*list)
        return abci_error(ABC_ERR_MEMORY, "no memory for a plan of rank %d", plan->rank);
    *count = 0;
    for (int rank = 0; rank < ABCI_MAX_RANKS; rank++)
        if (seen[rank])
            (*list)[(*count)++] = (uint16_t)rank;
    return ABC_OK;
}

int abci_plan_index(struct abci_plan *plan)
{
    plan->direct = false;
    for (uint32_t i = 0; i < plan->nsteps; i++)
        plan->direct |= plan->steps[i].flags & ABCI_SPREAD;
    int status = collect_ranks(plan, false, &plan->sources, &plan->nsources);
    return status == ABC_OK ? collect_ranks(plan, true, &plan->readers, &plan->nreaders) : status;
}

/* Everything that an algorithm may count on, checked before it is called. */
static int check_request(const struct abci_algo *algo, abc_collective coll, int nranks, int rank, int root)
{
    if (nranks < 1 || nranks > ABCI_MAX_RANKS)
        return abci_error(ABC_ERR_UNSUPPORTED, "%d ranks: plans exist for 1 to %d ranks", nranks, ABCI_MAX_RANKS);
    if (rank < 0 || rank >= nranks || root < 0 || root >= nranks)
        return abci_error(ABC_ERR_ARGUMENT, "rank %d and root %d must be from 0 to %d", rank, root, nranks - 1);
    if ((unsigned)coll >= ABC_COLLECTIVE_COUNT || !(algo->collectives & (1u << coll)))
        return abci_error(ABC_ERR_UNSUPPORTED, "algorithm %s does not do collective %d", algo->name, (int)coll);
    if (nranks > 1 && (nranks < algo->min_ranks || nranks > algo->max_ranks))
        return abci_error(ABC_ERR_UNSUPPORTED, "algorithm %s does %d to %d ranks, not %d", algo->name, algo->min_ranks,
                          algo->max_ranks, nranks);
    return ABC_OK;
}

/* One rank has nobody to talk to: whatever the algorithm, the result is its input. */
static void build_alone(struct abci_builder *b)
{
    b->nblocks = 1;
    if (b->collective != ABC_BARRIER && b->collective != ABC_EXSCAN)
        abci_b_copy(b, abci_ref(ABCI_IN, 0, 1), abci_ref(ABCI_OUT, 0, 1));
}

/* Take over what the algorithm has set and prove the structure. */
static int finish(struct abci_builder *b)
{
    struct abci_plan *plan = b->plan;
    char why[160];
    if (b->status != ABC_OK)
        return b->status;
    if (b->nblocks < 1 || b->nblocks > UINT16_MAX || b->ntmp < 0 || b->ntmp > ABCI_MAX_TMP)
        return abci_error(ABC_ERR_PLAN, "plan %s: %d blocks and %d temporaries are out of range", plan->name, b->nblocks, b->ntmp);
    plan->nblocks = (uint16_t)b->nblocks;
    plan->ntmp = (uint8_t)b->ntmp;
    plan->stage_in_place = b->stage_in_place;
    int status = abci_plan_index(plan);
    if (status != ABC_OK)
        return status;
    status = abci_plan_validate(plan, why, sizeof why);
    return status == ABC_OK ? ABC_OK : abci_error(status, "plan %s of rank %d of %d: %s", plan->name, b->rank, b->nranks, why);
}

int abci_plan_build(const struct abci_algo *algo, abc_collective coll, int nranks, int rank, int root, struct abci_plan **plan)
{
    int status = check_request(algo, coll, nranks, rank, root);
    if (status != ABC_OK)
        return status;
    struct abci_build_state state = {0};
    struct abci_builder b = {.collective = coll, .rank = rank, .nranks = nranks, .root = root, .nblocks = 1, .state = &state};
    b.plan = abci_alloc(sizeof *b.plan);
    if (!b.plan)
        return abci_error(ABC_ERR_MEMORY, "no memory for a plan of rank %d", rank);
    strncpy(b.plan->name, algo->name, ABCI_NAME_MAX - 1);
    b.plan->collective = (uint8_t)coll;
    b.plan->rank_order = algo->rank_order;
    b.plan->ordered = algo->ordered;
    b.plan->nranks = (uint16_t)nranks;
    b.plan->rank = (uint16_t)rank;
    b.plan->root = (uint16_t)root;
    if (nranks == 1)
        build_alone(&b);
    else
        algo->build(&b);
    status = finish(&b);
    if (status == ABC_OK)
        *plan = b.plan;
    else
        abci_plan_free(b.plan);
    return status;
}

int abci_plan_set_build(const struct abci_algo *algo, abc_collective coll, int nranks, int root, struct abci_plan_set *set)
{
    memset(set, 0, sizeof *set);
    int status = check_request(algo, coll, nranks, 0, root);
    if (status != ABC_OK)
        return status;
    set->plan = abci_alloc((size_t)nranks * sizeof(struct abci_plan *));
    if (!set->plan)
        return abci_error(ABC_ERR_MEMORY, "no memory for %d plans", nranks);
    set->nranks = nranks;
    for (int r = 0; r < nranks && status == ABC_OK; r++)
        status = abci_plan_build(algo, coll, nranks, r, root, &set->plan[r]);
    if (status != ABC_OK)
        abci_plan_set_free(set);
    return status;
}

void abci_plan_set_free(struct abci_plan_set *set)
{
    for (int r = 0; set->plan && r < set->nranks; r++)
        abci_plan_free(set->plan[r]);
    abci_free(set->plan);
    memset(set, 0, sizeof *set);
}
