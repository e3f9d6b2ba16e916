/*
 * validate.c - stage 3: is a plan well formed? Looks at one rank alone: indices in range, kinds known, counters ascending, buffers
 * that the collective has. What several ranks do together is proved by check.c. Every plan passes here before anything else
 * touches it, so everything behind may index without looking. Pure; linear in the steps; input is untrusted.
 */
#include "plan/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "plan/part.h"

/* Where we are and where the words go. */
struct validator {
    const struct abci_plan *plan;
    char *why;
    size_t capacity;
    int at; /* step, -1 for the head of the plan */
};

static bool refuse(const struct validator *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(const struct validator *v, const char *format, ...)
{
    int used = 0;
    if (v->capacity == 0)
        return false;
    if (v->at >= 0)
        used = snprintf(v->why, v->capacity, "step %d: ", v->at);
    if (used < 0 || (size_t)used >= v->capacity)
        return false;
    va_list args;
    va_start(args, format);
    vsnprintf(v->why + used, v->capacity - (size_t)used, format, args);
    va_end(args);
    return false;
}

static bool has_width(const struct abci_plan *plan, int buffer, enum abci_width width)
{
    return abci_part_width((abc_collective)plan->collective, buffer) == width;
}

/* A block range of `owner`'s memory: does that buffer exist there and have these blocks? */
static bool valid_ref(const struct validator *v, const char *what, struct abci_ref ref, int owner)
{
    const struct abci_plan *plan = v->plan;
    if (ref.buffer != ABCI_IN && ref.buffer != ABCI_OUT && (ref.buffer < ABCI_TMP || ref.buffer >= ABCI_TMP + plan->ntmp))
        return refuse(v, "%s names buffer %d, which the plan does not have (%d temporaries)", what, ref.buffer, plan->ntmp);
    if (ref.count < 1 || ref.block + ref.count > plan->nblocks)
        return refuse(v, "%s names %d blocks from %d on, the plan has %d", what, ref.count, ref.block, plan->nblocks);
    if (plan->collective == ABC_BARRIER)
        return refuse(v, "%s names a block, but a barrier has no buffers", what);
    if (ref.buffer < ABCI_TMP && !abci_part_exists((abc_collective)plan->collective, ref.buffer, owner, plan->root))
        return refuse(v, "%s names the %sput of rank %d, which has none (root %d)", what, abci_buffer_name(ref.buffer), owner,
                      plan->root);
    if (plan->nranks > 1 && has_width(plan, ref.buffer, ABCI_SINGLE) && (ref.block != owner || ref.count != 1))
        return refuse(v, "%s names block %d, but that buffer of rank %d holds only block %d", what, ref.block, owner, owner);
    return true;
}

static bool valid_peers(const struct validator *v, const struct abci_step *step)
{
    const struct abci_plan *plan = v->plan;
    if (step->peer > plan->npeers || step->npeers > plan->npeers - step->peer)
        return refuse(v, "its peer list lies outside the plan's");
    unsigned char seen[ABCI_MAX_RANKS] = {0};
    for (uint32_t k = step->peer; k < step->peer + step->npeers; k++) {
        const struct abci_peer *peer = &plan->peers[k];
        if (peer->rank >= plan->nranks || peer->rank == plan->rank)
            return refuse(v, "peer %d is no other rank of %d", peer->rank, plan->nranks);
        if (seen[peer->rank])
            return refuse(v, "peer %d is named twice", peer->rank);
        seen[peer->rank] = 1;
        if (step->kind == ABCI_PUBLISH && (peer->counter != 0 || peer->value != 0))
            return refuse(v, "reader %d has a counter or value", peer->rank);
        if (step->kind != ABCI_PUBLISH && (peer->counter >= ABCI_COUNTERS || peer->value < 1))
            return refuse(v, "peer %d is awaited on counter %d for value %d", peer->rank, peer->counter, peer->value);
    }
    return true;
}

/* Own ranges [a, b) of one buffer that overlap; in place, IN and OUT may be one buffer, but then equal blocks are equal memory. */
static bool overlap(struct abci_ref a, struct abci_ref b)
{
    return a.buffer == b.buffer && a.block < b.block + b.count && b.block < a.block + a.count;
}

static bool valid_dst(const struct validator *v, const struct abci_step *step)
{
    if (!valid_ref(v, "dst", step->dst, v->plan->rank))
        return false;
    if (step->dst.buffer == ABCI_IN)
        return refuse(v, "dst is the input, which nobody may write");
    if (step->dst.count != step->src.count)
        return refuse(v, "src has %d blocks, dst %d", step->src.count, step->dst.count);
    return true;
}

static bool valid_publish(const struct validator *v, const struct abci_step *step, int *values)
{
    if (step->counter >= ABCI_COUNTERS)
        return refuse(v, "counter %d, there are %d", step->counter, ABCI_COUNTERS);
    if (step->value != values[step->counter] + 1)
        return refuse(v, "counter %d is raised from %d to %d, must go up by one", step->counter, values[step->counter],
                      step->value);
    values[step->counter] = step->value;
    if (step->dst.buffer != ABCI_NONE)
        return refuse(v, "a publish has no dst");
    if (step->src.buffer != ABCI_NONE && !valid_ref(v, "src", step->src, v->plan->rank))
        return false;
    if (step->npeers < 1)
        return refuse(v, "a publish names no reader");
    return true;
}

static bool valid_reduce(const struct validator *v, const struct abci_step *step)
{
    const struct abci_plan *plan = v->plan;
    if (!abci_is(ABCI_REDUCING, plan->collective))
        return refuse(v, "a reduce in a collective that does not reduce");
    bool has_own = step->own.buffer != ABCI_NONE;
    if (step->npeers < 1)
        return refuse(v, "a reduce names no peer");
    for (uint32_t k = step->peer; k < step->peer + step->npeers; k++)
        if (!valid_ref(v, "src", step->src, plan->peers[k].rank))
            return false;
    if (!valid_dst(v, step))
        return false;
    if (!has_own)
        return step->own_at == 0 || refuse(v, "own_at without an own operand");
    if (!valid_ref(v, "own", step->own, plan->rank))
        return false;
    if (step->own_at > step->npeers)
        return refuse(v, "own_at %d lies behind the %d peers", step->own_at, step->npeers);
    if (step->own.count != step->dst.count)
        return refuse(v, "own has %d blocks, dst %d", step->own.count, step->dst.count);
    if (overlap(step->own, step->dst) && step->own.block != step->dst.block)
        return refuse(v, "own and dst overlap without being equal");
    return true;
}

/* Fields that the kind does not use are zero, and refs to no buffer name no blocks: nothing behind has to ask again. */
static bool valid_unused(const struct validator *v, const struct abci_step *step)
{
    const struct abci_ref refs[3] = {step->src, step->own, step->dst};
    for (int k = 0; k < 3; k++)
        if (refs[k].buffer == ABCI_NONE && (refs[k].block != 0 || refs[k].count != 0))
            return refuse(v, "blocks of no buffer");
    if (step->kind != ABCI_PUBLISH && (step->counter != 0 || step->value != 0))
        return refuse(v, "a counter in a step that is no publish");
    if (step->kind != ABCI_REDUCE && (step->own.buffer != ABCI_NONE || step->own_at != 0))
        return refuse(v, "an own operand in a step that is no reduce");
    return true;
}

static bool valid_step(const struct validator *v, const struct abci_step *step, int *values)
{
    const struct abci_plan *plan = v->plan;
    int allowed = step->kind == ABCI_PUBLISH  ? ABCI_STAGED
                  : step->kind == ABCI_REDUCE ? ABCI_FINAL | ABCI_STAGE | ABCI_SPREAD
                  : step->kind == ABCI_AWAIT  ? 0
                                              : ABCI_STAGE;
    for (int i = 0; i < 2; i++)
        if (step->after[i] < -1 || step->after[i] >= v->at)
            return refuse(v, "waits for step %d, which does not come before it", (int)step->after[i]);
    if (step->kind > ABCI_AWAIT)
        return refuse(v, "kind %d is not run by this version", step->kind);
    if (step->flags & ~allowed)
        return refuse(v, "flags %d do not fit its kind", step->flags);
    if ((step->flags & ABCI_STAGED && step->src.buffer != ABCI_OUT) || (step->flags & ABCI_STAGE && step->dst.buffer != ABCI_OUT))
        return refuse(v, "only out can be staged by a step: temporaries are read where they are, and nobody writes in");
    if (step->flags & ABCI_SPREAD &&
        (plan->collective != ABC_ALLREDUCE || step->dst.buffer != ABCI_OUT || step->flags & ABCI_STAGE))
        return refuse(v, "only out of an allreduce can be spread, and it is not staged then");
    if (!valid_unused(v, step) || !valid_peers(v, step))
        return false;
    switch (step->kind) {
    case ABCI_PUBLISH:
        return valid_publish(v, step, values);
    case ABCI_REDUCE:
        return valid_reduce(v, step);
    case ABCI_FETCH:
        if (step->npeers != 1)
            return refuse(v, "a fetch has %d peers instead of one", step->npeers);
        return valid_ref(v, "src", step->src, plan->peers[step->peer].rank) && valid_dst(v, step);
    case ABCI_COPY:
        if (step->npeers != 0)
            return refuse(v, "a copy has peers");
        if (!valid_ref(v, "src", step->src, plan->rank) || !valid_dst(v, step))
            return false;
        return !overlap(step->src, step->dst) || refuse(v, "src and dst overlap");
    default: /* AWAIT */
        if (step->npeers < 1 || step->src.buffer != ABCI_NONE || step->dst.buffer != ABCI_NONE)
            return refuse(v, "an await has peers and no blocks");
        return true;
    }
}

static bool ascending(const uint16_t *list, int n, int nranks)
{
    for (int i = 0; i < n; i++)
        if (list[i] >= nranks || (i > 0 && list[i] <= list[i - 1]))
            return false;
    return true;
}

static bool valid_head(const struct validator *v)
{
    const struct abci_plan *plan = v->plan;
    if (memchr(plan->name, 0, sizeof plan->name) == NULL || plan->name[0] == 0)
        return refuse(v, "its name is empty or too long");
    if (plan->collective >= ABCI_PLANNED)
        return refuse(v, "collective %d does not exist", plan->collective);
    if (plan->nranks < 1 || plan->nranks > ABCI_MAX_RANKS || plan->rank >= plan->nranks || plan->root >= plan->nranks)
        return refuse(v, "rank %d and root %d of %d ranks (1 to %d)", plan->rank, plan->root, plan->nranks, ABCI_MAX_RANKS);
    bool wide = abci_part_by_rank((abc_collective)plan->collective);
    if (plan->nblocks < 1 || (wide && plan->nblocks != plan->nranks))
        return refuse(v, "%d blocks for %d ranks", plan->nblocks, plan->nranks);
    if (plan->ntmp > ABCI_MAX_TMP)
        return refuse(v, "%d temporaries, at most %d", plan->ntmp, ABCI_MAX_TMP);
    if (plan->nsteps > ABCI_MAX_STEPS || (plan->nsteps > 0 && !plan->steps) || (plan->npeers > 0 && !plan->peers))
        return refuse(v, "%u steps, at most %d", plan->nsteps, ABCI_MAX_STEPS);
    if (!ascending(plan->sources, plan->nsources, plan->nranks) || !ascending(plan->readers, plan->nreaders, plan->nranks))
        return refuse(v, "its lists of sources and readers are not ascending");
    return true;
}

int abci_plan_validate(const struct abci_plan *plan, char *why, size_t capacity)
{
    struct validator v = {plan, why, capacity, -1};
    int values[ABCI_COUNTERS] = {0};
    if (capacity > 0)
        why[0] = 0;
    if (!valid_head(&v))
        return ABC_ERR_PLAN;
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        v.at = (int)i;
        if (!valid_step(&v, &plan->steps[i], values))
            return ABC_ERR_PLAN;
    }
    return ABC_OK;
}
