/*
 * check.c - stage 3: proves a set of plans. Plays all ranks symbolically, in list order (so nothing depends on how far the executor
 * looks ahead), once for each way in which buffers may lie: out of place or in place, read directly or staged, and mixtures. A
 * step's possible past comes from clock.c, so a race is found whichever rank happens to play first. Neighbours: validate.c has
 * proved the structure; play.c plays, value.c knows sums. One thread; cost: linear in the blocks that steps touch, times the ranks
 * for clocks.
 */
#include "plan/play.h"

#include <string.h>

#include "base/base.h"
#include "plan/part.h"

#define MAX_CELLS (1ull << 26)
#define MIXTURES 2 /* random settings beside the four pure ones */

/* ---- Beginning and end of an operation ---- */

static bool has_block(const struct abci_plan *plan, int buffer, int block)
{
    abc_collective coll = (abc_collective)plan->collective;
    if (!abci_part_exists(coll, buffer, plan->rank, plan->root))
        return false;
    return abci_part_width(coll, buffer) != ABCI_SINGLE || block == plan->rank;
}

static void reset(struct abci_checker *c)
{
    size_t n = (size_t)c->set->nranks;
    memset(c->cells, 0, c->ncells * sizeof *c->cells);
    memset(c->next, 0, n * sizeof *c->next);
    memset(c->busy, 0, n * sizeof *c->busy);
    memset(c->over, 0, n);
    c->nreads = 1; /* 0 ends a list */
    c->values.used = 0;
    for (int rank = 0; rank < c->set->nranks; rank++)
        for (int block = 0; block < c->set->plan[rank]->nblocks; block++)
            if (has_block(c->set->plan[rank], ABCI_IN, block))
                abci_check_cell(c, rank, AREA_IN, block)->value = abci_value_input(&c->values, rank, block);
}

/* Collectives that only move: whose input must stand in an output block, and which block of it? */
static bool source_of(const struct abci_plan *plan, int block, int *owner, int *source)
{
    *source = block;
    switch (plan->collective) {
    case ABC_ALLGATHER:
    case ABC_GATHER:
        *owner = block;
        return true;
    case ABC_BROADCAST:
    case ABC_SCATTER:
        *owner = plan->root;
        return true;
    case ABC_ALLTOALL:
        *owner = block;
        *source = plan->rank;
        return true;
    default:
        return false;
    }
}

/* scan and exscan: the sum over just the ranks up to the last one that counts, in the claimed order. */
static bool check_prefix(struct abci_checker *c, int rank, int block, uint32_t value)
{
    const struct abci_plan *plan = c->set->plan[rank];
    struct abci_value_info info = abci_value_info(&c->values, value);
    if (!abci_check_is_prefix(c, rank, value))
        return abci_check_fault(c, ABC_ERR_PLAN,
                                "rank %d: out block %d ends with %u contributions, not with those of ranks 0 to %d [%s]", rank,
                                block, info.ranks, abci_check_last(plan), c->setting);
    if ((plan->ordered && !info.contiguous) || (plan->rank_order && !info.strict))
        return abci_check_fault(c, ABC_ERR_PLAN, "rank %d: out block %d is not summed in the order that the plan claims [%s]", rank,
                                block, c->setting);
    c->report->rank_order = c->report->rank_order && info.strict;
    return true;
}

static bool check_block(struct abci_checker *c, int rank, int block)
{
    const struct abci_plan *plan = c->set->plan[rank];
    uint32_t value = abci_check_cell(c, rank, AREA_OUT, block)->value;
    if (value == 0)
        return abci_check_fault(c, ABC_ERR_PLAN, "rank %d: nobody writes out block %d [%s]", rank, block, c->setting);
    struct abci_value_info info = abci_value_info(&c->values, value);
    int owner, source;
    if (source_of(plan, block, &owner, &source)) {
        if (value == abci_value_input(&c->values, owner, source))
            return true;
        return abci_check_fault(c, ABC_ERR_PLAN,
                                "rank %d: out block %d ends with block %u of rank %u instead of block %d of rank %d [%s]", rank,
                                block, info.block, info.lo, source, owner, c->setting);
    }
    if (info.block != (uint32_t)block)
        return abci_check_fault(c, ABC_ERR_PLAN, "rank %d: out block %d ends with block %u [%s]", rank, block, info.block,
                                c->setting);
    if (abci_is(ABCI_PREFIX, plan->collective))
        return check_prefix(c, rank, block, value);
    if (info.final || plan->nranks == 1)
        return true;
    return abci_check_fault(c, ABC_ERR_PLAN, "rank %d: out block %d ends without the contribution of rank %d [%s]", rank, block,
                            abci_value_lacks(&c->values, value), c->setting);
}

static bool check_end(struct abci_checker *c)
{
    int n = c->set->nranks;
    for (int rank = 0; rank < n; rank++) {
        for (int other = 0; c->met && other < n; other++)
            if (other != rank && !c->met[rank * n + other])
                return abci_check_fault(c, ABC_ERR_PLAN, "rank %d may leave the barrier before rank %d has entered it", rank,
                                        other);
        for (int block = 0; block < c->set->plan[rank]->nblocks; block++)
            if (has_block(c->set->plan[rank], ABCI_OUT, block) && !check_block(c, rank, block))
                return false;
        if (c->set->plan[rank]->direct && !c->over[rank])
            return abci_check_fault(c, ABC_ERR_PLAN, "rank %d: a direct plan without a last step", rank);
    }
    return true;
}

/* ---- Before playing: do the plans fit together? ---- */

static bool check_heads(struct abci_checker *c)
{
    const struct abci_plan_set *set = c->set;
    char why[128];
    for (int rank = 0; rank < set->nranks; rank++) {
        const struct abci_plan *plan = set->plan[rank], *zero = set->plan[0];
        if (!plan)
            return abci_check_fault(c, ABC_ERR_PLAN, "rank %d has no plan", rank);
        if (abci_plan_validate(plan, why, sizeof why) != ABC_OK)
            return abci_check_fault(c, ABC_ERR_PLAN, "rank %d %s", rank, why);
        if (plan->rank != rank || plan->nranks != set->nranks)
            return abci_check_fault(c, ABC_ERR_PLAN, "the plan at place %d is for rank %d of %d", rank, plan->rank, plan->nranks);
        if (plan->collective != zero->collective || plan->root != zero->root || plan->nblocks != zero->nblocks ||
            plan->ntmp != zero->ntmp || plan->rank_order != zero->rank_order || plan->ordered != zero->ordered ||
            plan->direct != zero->direct || strcmp(plan->name, zero->name) != 0)
            return abci_check_fault(c, ABC_ERR_PLAN, "the plan of rank %d differs from rank 0's in its head", rank);
        c->report->max_steps = plan->nsteps > c->report->max_steps ? plan->nsteps : c->report->max_steps;
    }
    return true;
}

static bool names_reader(const struct abci_plan *plan, const struct abci_step *publish, int rank)
{
    for (uint32_t k = publish->peer; k < publish->peer + publish->npeers; k++)
        if (plan->peers[k].rank == rank)
            return true;
    return false;
}

/* Is block `block` of the peer shown to `rank` by the awaited value of the counter, or one before it? */
static bool is_shown(const struct abci_checker *c, const struct abci_peer *peer, int rank, int buffer, int block)
{
    const struct abci_plan *plan = c->set->plan[peer->rank];
    const int32_t *published = c->published[peer->rank * ABCI_COUNTERS + peer->counter];
    for (int value = peer->value; value > 0; value--) {
        const struct abci_step *publish = &plan->steps[published[value]];
        if (publish->src.buffer == buffer && block >= publish->src.block && block < publish->src.block + publish->src.count &&
            names_reader(plan, publish, rank))
            return true;
    }
    return false;
}

static bool check_wait(struct abci_checker *c, int rank, uint32_t at, const struct abci_step *step, const struct abci_peer *peer)
{
    const struct abci_plan *plan = c->set->plan[peer->rank];
    uint32_t counter = (uint32_t)peer->rank * ABCI_COUNTERS + peer->counter;
    if (peer->value > c->reach[counter])
        return abci_check_step_fault(c, rank, at, "waits for value %d of rank %d's counter %d, which ends at %u", peer->value,
                                     peer->rank, peer->counter, c->reach[counter]);
    const struct abci_step *publish = &plan->steps[c->published[counter][peer->value]];
    if (!names_reader(plan, publish, rank))
        return abci_check_step_fault(c, rank, at, "waits for rank %d step %d, which does not name it as a reader", peer->rank,
                                     (int)c->published[counter][peer->value]);
    for (int i = 0; i < step->src.count; i++)
        if (!is_shown(c, peer, rank, step->src.buffer, step->src.block + i))
            return abci_check_step_fault(c, rank, at, "reads %s block %d of rank %d, which is not published to it by then",
                                         abci_buffer_name(step->src.buffer), step->src.block + i, peer->rank);
    return true;
}

static bool check_waits(struct abci_checker *c)
{
    for (int rank = 0; rank < c->set->nranks; rank++) {
        const struct abci_plan *plan = c->set->plan[rank];
        for (uint32_t i = 0; i < plan->nsteps; i++)
            for (uint32_t k = 0; plan->steps[i].kind != ABCI_PUBLISH && k < plan->steps[i].npeers; k++)
                if (!check_wait(c, rank, i, &plan->steps[i], &plan->peers[plan->steps[i].peer + k]))
                    return false;
    }
    return true;
}

/* Step of every value of every counter. */
static bool index_values(struct abci_checker *c)
{
    for (int rank = 0; rank < c->set->nranks; rank++) {
        const struct abci_plan *plan = c->set->plan[rank];
        uint32_t *reach = &c->reach[rank * ABCI_COUNTERS];
        for (uint32_t i = 0; i < plan->nsteps; i++)
            reach[plan->steps[i].counter] += plan->steps[i].kind == ABCI_PUBLISH;
        for (int k = 0; k < ABCI_COUNTERS; k++) {
            int32_t *list = abci_alloc((reach[k] + 1u) * sizeof *list);
            if (!list)
                return false;
            c->published[rank * ABCI_COUNTERS + k] = list;
            for (uint32_t i = 0; i < plan->nsteps; i++)
                if (plan->steps[i].kind == ABCI_PUBLISH && plan->steps[i].counter == k)
                    list[plan->steps[i].value] = (int32_t)i;
        }
    }
    return true;
}

static bool open_memory(struct abci_checker *c)
{
    const struct abci_plan *zero = c->set->plan[0];
    size_t n = (size_t)c->set->nranks, events = c->clock.first[n] + 1u,
           each = (size_t)zero->nblocks * (size_t)(AREA_TMP + zero->ntmp);
    c->ncells = n * each;
    if (c->ncells > MAX_CELLS)
        return abci_check_fault(c, ABC_ERR_UNSUPPORTED,
                                "%d ranks with %d blocks and %d temporaries are too large to check; use fewer ranks",
                                c->set->nranks, zero->nblocks, zero->ntmp);
    c->read_room = 256;
    c->lie = abci_alloc(n * sizeof *c->lie);
    c->first_cell = abci_alloc(n * sizeof *c->first_cell);
    c->cells = abci_alloc(c->ncells * sizeof *c->cells);
    c->reads = abci_alloc(c->read_room * sizeof *c->reads);
    c->published = abci_alloc(n * ABCI_COUNTERS * sizeof *c->published);
    c->reach = abci_alloc(n * ABCI_COUNTERS * sizeof *c->reach);
    c->next = abci_alloc(n * sizeof *c->next);
    c->busy = abci_alloc(n * sizeof *c->busy);
    c->over = abci_alloc(n);
    c->depth = abci_alloc(events * sizeof *c->depth);
    c->time = abci_alloc(events * sizeof *c->time);
    if (zero->collective == ABC_BARRIER)
        c->met = abci_alloc(n * n);
    bool ok = c->lie && c->first_cell && c->cells && c->reads && c->published && c->reach && c->next && c->busy && c->over &&
              c->depth && c->time && (c->met || zero->collective != ABC_BARRIER) && index_values(c);
    if (!ok)
        return abci_check_fault(c, ABC_ERR_MEMORY, "no memory to check the plan");
    for (size_t r = 0; r < n; r++)
        c->first_cell[r] = r * each;
    return true;
}

static void close_memory(struct abci_checker *c)
{
    for (int i = 0; c->published && i < c->set->nranks * ABCI_COUNTERS; i++)
        abci_free(c->published[i]);
    abci_free(c->lie);
    abci_free(c->first_cell);
    abci_free(c->cells);
    abci_free(c->reads);
    abci_free(c->published);
    abci_free(c->reach);
    abci_free(c->next);
    abci_free(c->busy);
    abci_free(c->over);
    abci_free(c->depth);
    abci_free(c->time);
    abci_free(c->met);
}

/* Setting 0 to 3: bit 0 in place, bit 1 staged, the same on all ranks. From 4 on: each rank as a fixed random draw says. */
static void choose_setting(struct abci_checker *c, int setting)
{
    static const char *const names[] = {"out of place, direct", "in place, direct", "out of place, staged", "in place, staged"};
    uint32_t draw = 0x9e3779b9u * (uint32_t)(setting + 1);
    c->setting = setting < 4 ? names[setting] : "buffers differ from rank to rank";
    for (int rank = 0; rank < c->set->nranks; rank++) {
        draw ^= draw << 13; /* xorshift */
        draw ^= draw >> 17;
        draw ^= draw << 5;
        uint32_t bits = setting < 4 ? (uint32_t)(setting & 1) | (setting & 2 ? 6u : 0) : draw >> 8;
        struct abci_lie *lie = &c->lie[rank];
        if (c->set->plan[rank]->direct)
            bits &= 1;
        lie->in_place = bits & 1;
        lie->staged[0] = (bits & 2) || (lie->in_place && c->set->plan[rank]->stage_in_place);
        lie->staged[1] = bits & 4;
    }
}

void abci_plan_check(const struct abci_plan_set *set, struct abci_check_report *report)
{
    struct abci_checker c = {.set = set, .report = report, .setting = "any buffers"};
    memset(report, 0, sizeof *report);
    report->rank_order = true;
    if (set->nranks < 1 || !set->plan) {
        abci_check_fault(&c, ABC_ERR_PLAN, "there are no ranks");
        return;
    }
    if (!check_heads(&c))
        return;
    int status = abci_clock_open(&c.clock, set);
    if (status != ABC_OK)
        abci_check_fault(&c, status, "no memory to check the plan");
    if (status == ABC_OK && open_memory(&c) && check_waits(&c)) {
        abci_values_open(&c.values, set->nranks, set->plan[0]->nblocks);
        bool ok = true;
        for (int setting = 0; ok && setting < 4 + MIXTURES; setting++) {
            choose_setting(&c, setting);
            reset(&c);
            ok = abci_check_play(&c) && check_end(&c);
        }
        abci_values_close(&c.values);
    }
    close_memory(&c);
    abci_clock_close(&c.clock);
}
