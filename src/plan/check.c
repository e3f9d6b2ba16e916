/*
 * check.c - stage 3: proves a set of plans. Plays all ranks symbolically, in list order (so nothing depends on how far the executor
 * looks ahead), once for each way in which buffers may lie: out of place or in place, read directly or staged, and mixtures. A
 * step's possible past comes from clock.c, so a race is found whichever rank happens to play first. Neighbours: validate.c has
 * proved the structure; value.c knows sums. One thread; cost: linear in the blocks that steps touch, times ranks / 64 for clocks.
 */
#include "plan/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "plan/clock.h"
#include "plan/part.h"
#include "plan/value.h"

#define MAX_CELLS (1ull << 26)
#define MIXTURES 2 /* random settings beside the four pure ones */

/* One block of memory that steps of several ranks can touch. */
struct cell {
    uint32_t value;
    uint32_t writer; /* event + 1; 0: the caller before the operation, or nobody */
    uint32_t reads;  /* list of reads since the last write */
};
struct read {
    uint32_t event, next;
};

/* How the buffers of one rank lie. */
struct lie {
    bool in_place;
    bool staged[2]; /* IN, OUT */
};

struct checker {
    const struct abci_plan_set *set;
    struct abci_check_report *report;
    struct abci_clock clock;
    struct abci_values values;
    const char *setting;
    struct lie *lie;    /* [nranks] */
    size_t *first_cell; /* [nranks] */
    struct cell *cells;
    struct read *reads;
    uint32_t nreads, read_room;
    int32_t **published; /* [nranks * ABCI_COUNTERS] step of each value, from 1 on */
    uint32_t *reach;     /* [nranks * ABCI_COUNTERS] last value of each counter */
    uint32_t *next;      /* [nranks] step to play next */
    uint16_t *depth;     /* [events] reading steps on the longest way to the end of the event */
    uint32_t *time;      /* [events] blocks read, one after another, by then */
    uint32_t *busy;      /* [nranks] when the rank is free, in blocks */
    unsigned char *met;  /* barrier: [nranks * nranks] rank's past contains a step of the other */
    size_t ncells;
};

/* Places that blocks of a rank have: IN, OUT, what peers see of them when staged, then the temporaries. */
enum area { AREA_IN, AREA_OUT, AREA_STAGED_IN, AREA_STAGED_OUT, AREA_TMP };

static bool fault(struct checker *c, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool fault(struct checker *c, int status, const char *format, ...)
{
    if (c->report->status != ABC_OK)
        return false;
    c->report->status = status;
    va_list args;
    va_start(args, format);
    vsnprintf(c->report->text, sizeof c->report->text, format, args);
    va_end(args);
    return false;
}

/* A fault of a step: rank, step, kind, words, and in which setting it shows. */
static bool step_fault(struct checker *c, int rank, uint32_t at, const char *format, ...) __attribute__((format(printf, 4, 5)));
static bool step_fault(struct checker *c, int rank, uint32_t at, const char *format, ...)
{
    char words[160];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    return fault(c, ABC_ERR_PLAN, "rank %d step %u (%s): %s [%s]", rank, at, abci_kind_name(c->set->plan[rank]->steps[at].kind),
                 words, c->setting);
}

/* ---- Memory ---- */

/* The rank's OUT block that is also an IN block when it works in place. */
static bool shared_block(const struct checker *c, int rank, int block)
{
    const struct abci_plan *plan = c->set->plan[rank];
    switch (plan->collective) {
    case ABC_REDUCE_SCATTER:
    case ABC_ALLGATHER:
        return block == rank;
    case ABC_BROADCAST:
        return rank == plan->root;
    default:
        return true;
    }
}

static struct cell *cell_in(struct checker *c, int rank, int area, int block)
{
    if (area == AREA_OUT && c->lie[rank].in_place && shared_block(c, rank, block))
        area = AREA_IN;
    return &c->cells[c->first_cell[rank] + (size_t)area * c->set->plan[0]->nblocks + (size_t)block];
}

/* Own memory of a buffer. */
static int own_area(int buffer)
{
    return buffer < ABCI_TMP ? buffer : AREA_TMP + buffer - ABCI_TMP;
}

static bool is_staged(const struct checker *c, int rank, int buffer)
{
    return buffer < ABCI_TMP && c->lie[rank].staged[buffer];
}

/* What peers see of a buffer. */
static int shown_area(const struct checker *c, int rank, int buffer)
{
    return is_staged(c, rank, buffer) ? AREA_STAGED_IN + buffer : own_area(buffer);
}

static int rank_of_event(const struct checker *c, uint32_t event)
{
    int low = 0, high = c->set->nranks - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (c->clock.first[middle] <= event)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The current event reads a block. Returns its value, 0 after a fault. */
static uint32_t read_cell(struct checker *c, int rank, uint32_t at, struct cell *cell, int owner, int buffer, int block)
{
    uint32_t event = c->clock.event;
    if (cell->value == 0) {
        step_fault(c, rank, at, "reads %s block %d of rank %d, which nobody has written", abci_buffer_name(buffer), block, owner);
        return 0;
    }
    if (cell->writer && cell->writer - 1 != event && !abci_clock_over(&c->clock, cell->writer - 1)) {
        int other = rank_of_event(c, cell->writer - 1);
        step_fault(c, rank, at, "reads %s block %d of rank %d, which rank %d step %u may still write", abci_buffer_name(buffer),
                   block, owner, other, cell->writer - 1 - c->clock.first[other]);
        return 0;
    }
    if (c->nreads == c->read_room) {
        uint32_t room = 2 * c->read_room;
        struct read *more = abci_alloc(room * sizeof *more);
        if (!more)
            return fault(c, ABC_ERR_MEMORY, "no memory to check the plan");
        memcpy(more, c->reads, c->nreads * sizeof *more);
        abci_free(c->reads);
        c->reads = more;
        c->read_room = room;
    }
    c->reads[c->nreads] = (struct read){event, cell->reads};
    cell->reads = c->nreads++;
    return cell->value;
}

/* The current event writes a block of its own rank: all reads and the write before must be over. */
static bool write_cell(struct checker *c, int rank, uint32_t at, struct cell *cell, int buffer, int block, uint32_t value)
{
    uint32_t event = c->clock.event;
    if (cell->writer && cell->writer - 1 != event && !abci_clock_over(&c->clock, cell->writer - 1))
        return step_fault(c, rank, at, "writes %s block %d, which step %u may write at the same time", abci_buffer_name(buffer),
                          block, cell->writer - 1 - c->clock.first[rank]);
    for (uint32_t i = cell->reads; i; i = c->reads[i].next) {
        uint32_t reader = c->reads[i].event;
        if (reader == event || abci_clock_over(&c->clock, reader))
            continue;
        int other = rank_of_event(c, reader);
        return step_fault(c, rank, at, "writes %s block %d while rank %d step %u may still read it", abci_buffer_name(buffer),
                          block, other, reader - c->clock.first[other]);
    }
    cell->reads = 0;
    cell->writer = event + 1;
    cell->value = value;
    return true;
}

/* A step's result: to dst, and with ABCI_STAGE also to where peers see it. */
static bool write_result(struct checker *c, int rank, uint32_t at, const struct abci_step *step, int i, uint32_t value)
{
    int buffer = step->dst.buffer, block = step->dst.block + i;
    struct cell *dst = cell_in(c, rank, own_area(buffer), block);
    bool onto_itself = step->kind == ABCI_COPY && cell_in(c, rank, own_area(step->src.buffer), step->src.block + i) == dst;
    if (!onto_itself && !write_cell(c, rank, at, dst, buffer, block, value))
        return false;
    if (!(step->flags & ABCI_STAGE) || !is_staged(c, rank, buffer))
        return true;
    return write_cell(c, rank, at, cell_in(c, rank, shown_area(c, rank, buffer), block), buffer, block, value);
}

/* ---- Steps ---- */

static uint32_t read_own(struct checker *c, int rank, uint32_t at, struct abci_ref ref, int i)
{
    struct cell *cell = cell_in(c, rank, own_area(ref.buffer), ref.block + i);
    return read_cell(c, rank, at, cell, rank, ref.buffer, ref.block + i);
}

static uint32_t read_peer(struct checker *c, int rank, uint32_t at, int peer, struct abci_ref ref, int i)
{
    struct cell *cell = cell_in(c, peer, shown_area(c, peer, ref.buffer), ref.block + i);
    return read_cell(c, rank, at, cell, peer, ref.buffer, ref.block + i);
}

/* Direct: nothing moves. Staged: the bytes are copied now, or have been by an ABCI_STAGE step. */
static bool play_publish(struct checker *c, int rank, uint32_t at, const struct abci_step *step)
{
    int buffer = step->src.buffer;
    if (step->src.count == 0 || !is_staged(c, rank, buffer))
        return true;
    for (int i = 0; i < step->src.count; i++) {
        int block = step->src.block + i;
        struct cell *shown = cell_in(c, rank, shown_area(c, rank, buffer), block);
        uint32_t value = read_own(c, rank, at, step->src, i);
        if (!value)
            return false;
        if (!(step->flags & ABCI_STAGED)) {
            if (!write_cell(c, rank, at, shown, buffer, block, value))
                return false;
            continue;
        }
        if (shown->value != value)
            return step_fault(c, rank, at, "%s block %d counts as staged, but no step has staged what it holds now",
                              abci_buffer_name(buffer), block);
        if (!read_cell(c, rank, at, shown, rank, buffer, block))
            return false;
    }
    return true;
}

static bool add_operand(struct checker *c, int rank, uint32_t at, uint32_t sum, uint32_t value, int owner)
{
    if (!value)
        return false;
    const char *wrong = abci_value_add(&c->values, sum, value);
    return !wrong || step_fault(c, rank, at, "%s, from rank %d", wrong, owner);
}

/* A sum is final exactly when it is complete, and then it must be as the plan claims. */
static bool check_sum(struct checker *c, int rank, uint32_t at, const struct abci_step *step, uint32_t sum)
{
    const struct abci_plan *plan = c->set->plan[rank];
    int lacks = abci_value_lacks(&c->values, sum);
    if (step->flags & ABCI_FINAL) {
        struct abci_value_info info = abci_value_info(&c->values, sum);
        if (lacks >= 0)
            return step_fault(c, rank, at, "is marked final, but lacks the contribution of rank %d", lacks);
        if (plan->ordered && !info.contiguous)
            return step_fault(c, rank, at, "the plan claims ordered operands, but this sum's are not in rank order");
        if (plan->rank_order && !info.strict)
            return step_fault(c, rank, at, "the plan claims rank order, but this sum is bracketed otherwise");
        c->report->rank_order = c->report->rank_order && info.strict;
        abci_value_finish(&c->values, sum);
        return true;
    }
    return lacks >= 0 || step_fault(c, rank, at, "completes the sum without being marked final");
}

static bool play_reduce(struct checker *c, int rank, uint32_t at, const struct abci_step *step)
{
    const struct abci_peer *peers = &c->set->plan[rank]->peers[step->peer];
    for (int i = 0; i < step->src.count; i++) {
        uint32_t sum = abci_value_sum(&c->values);
        if (!sum)
            return fault(c, ABC_ERR_MEMORY, "no memory to check the plan");
        for (int k = 0; k <= step->npeers; k++) {
            if (step->own.buffer != ABCI_NONE && k == step->own_at &&
                !add_operand(c, rank, at, sum, read_own(c, rank, at, step->own, i), rank))
                return false;
            if (k < step->npeers &&
                !add_operand(c, rank, at, sum, read_peer(c, rank, at, peers[k].rank, step->src, i), peers[k].rank))
                return false;
        }
        if (!check_sum(c, rank, at, step, sum) || !write_result(c, rank, at, step, i, sum))
            return false;
    }
    return true;
}

static bool play_move(struct checker *c, int rank, uint32_t at, const struct abci_step *step)
{
    const struct abci_peer *peers = c->set->plan[rank]->peers;
    for (int i = 0; i < step->src.count; i++) {
        uint32_t value = step->kind == ABCI_COPY ? read_own(c, rank, at, step->src, i)
                                                 : read_peer(c, rank, at, peers[step->peer].rank, step->src, i);
        if (!value || !write_result(c, rank, at, step, i, value))
            return false;
    }
    return true;
}

/* Position of a step on the two measures of the critical path. */
static void measure(struct checker *c, int rank, uint32_t at, const struct abci_step *step)
{
    const struct abci_plan *plan = c->set->plan[rank];
    uint32_t base = c->clock.first[rank], event = base + at, start = c->busy[rank];
    uint16_t depth = 0;
    int32_t wait[3] = {step->after[0], step->after[1], c->clock.before[event]};
    for (int k = 0; k < 3; k++)
        if (wait[k] >= 0 && c->depth[base + (uint32_t)wait[k]] > depth)
            depth = c->depth[base + (uint32_t)wait[k]];
    bool reads = step->kind != ABCI_PUBLISH && step->npeers > 0;
    for (uint32_t k = step->peer; reads && k < step->peer + step->npeers; k++) {
        const struct abci_peer *peer = &plan->peers[k];
        uint32_t e = c->clock.first[peer->rank] + (uint32_t)c->published[peer->rank * ABCI_COUNTERS + peer->counter][peer->value];
        depth = c->depth[e] > depth ? c->depth[e] : depth;
        start = c->time[e] > start ? c->time[e] : start;
    }
    c->depth[event] = (uint16_t)(depth + reads);
    c->time[event] = c->busy[rank] = start + (reads ? (uint32_t)step->npeers * step->src.count : 0);
    if (c->depth[event] > c->report->steps)
        c->report->steps = c->depth[event];
    if ((int)c->time[event] > c->report->blocks)
        c->report->blocks = (int)c->time[event];
}

/* Have all peers published what the step waits for? */
static bool is_ready(const struct checker *c, int rank, const struct abci_step *step)
{
    const struct abci_plan *plan = c->set->plan[rank];
    if (step->kind == ABCI_PUBLISH)
        return true;
    for (uint32_t k = step->peer; k < step->peer + step->npeers; k++) {
        const struct abci_peer *peer = &plan->peers[k];
        if (c->next[peer->rank] <= (uint32_t)c->published[peer->rank * ABCI_COUNTERS + peer->counter][peer->value])
            return false;
    }
    return true;
}

static bool play(struct checker *c, int rank, uint32_t at)
{
    const struct abci_plan *plan = c->set->plan[rank];
    const struct abci_step *step = &plan->steps[at];
    abci_clock_begin(&c->clock, rank, at);
    for (uint32_t k = step->peer; step->kind != ABCI_PUBLISH && k < step->peer + step->npeers; k++) {
        const struct abci_peer *peer = &plan->peers[k];
        abci_clock_join(&c->clock, c->clock.first[peer->rank] +
                                       (uint32_t)c->published[peer->rank * ABCI_COUNTERS + peer->counter][peer->value]);
    }
    measure(c, rank, at, step);
    if (c->met)
        for (uint32_t chain = 0; chain < c->clock.nchains; chain++)
            if (c->clock.now[chain] > 0)
                c->met[rank * c->set->nranks + c->clock.owner[chain]] = 1;
    bool ok = step->kind == ABCI_PUBLISH  ? play_publish(c, rank, at, step)
              : step->kind == ABCI_REDUCE ? play_reduce(c, rank, at, step)
              : step->kind == ABCI_AWAIT  ? true
                                          : play_move(c, rank, at, step);
    if (ok && !abci_clock_end(&c->clock))
        return fault(c, ABC_ERR_MEMORY, "no memory to check the plan");
    return ok;
}

/* Nobody can go on: name the first rank that is stuck and what it waits for. */
static bool deadlock(struct checker *c)
{
    for (int rank = 0; rank < c->set->nranks; rank++) {
        const struct abci_plan *plan = c->set->plan[rank];
        if (c->next[rank] == plan->nsteps)
            continue;
        const struct abci_step *step = &plan->steps[c->next[rank]];
        for (uint32_t k = step->peer; k < step->peer + step->npeers; k++) {
            const struct abci_peer *peer = &plan->peers[k];
            uint32_t publish = (uint32_t)c->published[peer->rank * ABCI_COUNTERS + peer->counter][peer->value];
            if (c->next[peer->rank] <= publish)
                return step_fault(c, rank, c->next[rank], "deadlock: waits for rank %d step %u, but that rank is stuck at step %u",
                                  peer->rank, publish, c->next[peer->rank]);
        }
    }
    return true;
}

/* Play every rank as far as it can go, in turn, until all are done or nobody moves. */
static bool play_all(struct checker *c)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (int rank = 0; rank < c->set->nranks; rank++) {
            const struct abci_plan *plan = c->set->plan[rank];
            for (; c->next[rank] < plan->nsteps && is_ready(c, rank, &plan->steps[c->next[rank]]); c->next[rank]++) {
                if (!play(c, rank, c->next[rank]))
                    return false;
                moved = true;
            }
        }
    }
    return deadlock(c);
}

/* ---- Beginning and end of an operation ---- */

static bool has_block(const struct abci_plan *plan, int buffer, int block)
{
    if (plan->collective == ABC_BARRIER)
        return false;
    if (plan->collective == ABC_BROADCAST && buffer == ABCI_IN)
        return plan->rank == plan->root;
    return abci_part_width((abc_collective)plan->collective, buffer) != ABCI_SINGLE || block == plan->rank;
}

static void reset(struct checker *c)
{
    int n = c->set->nranks;
    memset(c->cells, 0, c->ncells * sizeof *c->cells);
    memset(c->next, 0, (size_t)n * sizeof *c->next);
    memset(c->busy, 0, (size_t)n * sizeof *c->busy);
    c->nreads = 1; /* 0 ends a list */
    c->values.used = 0;
    for (int rank = 0; rank < n; rank++)
        for (int block = 0; block < c->set->plan[rank]->nblocks; block++)
            if (has_block(c->set->plan[rank], ABCI_IN, block))
                cell_in(c, rank, AREA_IN, block)->value = abci_value_input(&c->values, rank, block);
}

static bool check_block(struct checker *c, int rank, int block)
{
    const struct abci_plan *plan = c->set->plan[rank];
    uint32_t value = cell_in(c, rank, AREA_OUT, block)->value;
    if (value == 0)
        return fault(c, ABC_ERR_PLAN, "rank %d: nobody writes out block %d [%s]", rank, block, c->setting);
    struct abci_value_info info = abci_value_info(&c->values, value);
    if (plan->collective == ABC_ALLGATHER || plan->collective == ABC_BROADCAST) {
        int owner = plan->collective == ABC_ALLGATHER ? block : plan->root;
        if (value == abci_value_input(&c->values, owner, block))
            return true;
        return fault(c, ABC_ERR_PLAN, "rank %d: out block %d ends with block %u of rank %u instead of block %d of rank %d [%s]",
                     rank, block, info.block, info.lo, block, owner, c->setting);
    }
    if (info.block != (uint32_t)block)
        return fault(c, ABC_ERR_PLAN, "rank %d: out block %d ends with block %u [%s]", rank, block, info.block, c->setting);
    if (info.final || plan->nranks == 1)
        return true;
    return fault(c, ABC_ERR_PLAN, "rank %d: out block %d ends without the contribution of rank %d [%s]", rank, block,
                 abci_value_lacks(&c->values, value), c->setting);
}

static bool check_end(struct checker *c)
{
    int n = c->set->nranks;
    for (int rank = 0; rank < n; rank++) {
        for (int other = 0; c->met && other < n; other++)
            if (other != rank && !c->met[rank * n + other])
                return fault(c, ABC_ERR_PLAN, "rank %d may leave the barrier before rank %d has entered it", rank, other);
        for (int block = 0; block < c->set->plan[rank]->nblocks; block++)
            if (has_block(c->set->plan[rank], ABCI_OUT, block) && !check_block(c, rank, block))
                return false;
    }
    return true;
}

/* ---- Before playing: do the plans fit together? ---- */

static bool check_heads(struct checker *c)
{
    const struct abci_plan_set *set = c->set;
    char why[128];
    for (int rank = 0; rank < set->nranks; rank++) {
        const struct abci_plan *plan = set->plan[rank], *zero = set->plan[0];
        if (!plan)
            return fault(c, ABC_ERR_PLAN, "rank %d has no plan", rank);
        if (abci_plan_validate(plan, why, sizeof why) != ABC_OK)
            return fault(c, ABC_ERR_PLAN, "rank %d %s", rank, why);
        if (plan->rank != rank || plan->nranks != set->nranks)
            return fault(c, ABC_ERR_PLAN, "the plan at place %d is for rank %d of %d", rank, plan->rank, plan->nranks);
        if (plan->collective != zero->collective || plan->root != zero->root || plan->nblocks != zero->nblocks ||
            plan->ntmp != zero->ntmp || plan->rank_order != zero->rank_order || plan->ordered != zero->ordered ||
            strcmp(plan->name, zero->name) != 0)
            return fault(c, ABC_ERR_PLAN, "the plan of rank %d differs from rank 0's in its head", rank);
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
static bool is_shown(const struct checker *c, const struct abci_peer *peer, int rank, int buffer, int block)
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

static bool check_wait(struct checker *c, int rank, uint32_t at, const struct abci_step *step, const struct abci_peer *peer)
{
    const struct abci_plan *plan = c->set->plan[peer->rank];
    uint32_t counter = (uint32_t)peer->rank * ABCI_COUNTERS + peer->counter;
    if (peer->value > c->reach[counter])
        return step_fault(c, rank, at, "waits for value %d of rank %d's counter %d, which ends at %u", peer->value, peer->rank,
                          peer->counter, c->reach[counter]);
    const struct abci_step *publish = &plan->steps[c->published[counter][peer->value]];
    if (!names_reader(plan, publish, rank))
        return step_fault(c, rank, at, "waits for rank %d step %d, which does not name it as a reader", peer->rank,
                          (int)c->published[counter][peer->value]);
    for (int i = 0; i < step->src.count; i++)
        if (!is_shown(c, peer, rank, step->src.buffer, step->src.block + i))
            return step_fault(c, rank, at, "reads %s block %d of rank %d, which is not published to it by then",
                              abci_buffer_name(step->src.buffer), step->src.block + i, peer->rank);
    return true;
}

static bool check_waits(struct checker *c)
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
static bool index_values(struct checker *c)
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

static bool open_memory(struct checker *c)
{
    const struct abci_plan *zero = c->set->plan[0];
    size_t n = (size_t)c->set->nranks, events = c->clock.first[n] + 1u,
           each = (size_t)zero->nblocks * (size_t)(AREA_TMP + zero->ntmp);
    c->ncells = n * each;
    if (c->ncells > MAX_CELLS)
        return fault(c, ABC_ERR_UNSUPPORTED, "%d ranks with %d blocks and %d temporaries are too large to check; use fewer ranks",
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
    c->depth = abci_alloc(events * sizeof *c->depth);
    c->time = abci_alloc(events * sizeof *c->time);
    if (zero->collective == ABC_BARRIER)
        c->met = abci_alloc(n * n);
    bool ok = c->lie && c->first_cell && c->cells && c->reads && c->published && c->reach && c->next && c->busy && c->depth &&
              c->time && (c->met || zero->collective != ABC_BARRIER) && index_values(c);
    if (!ok)
        return fault(c, ABC_ERR_MEMORY, "no memory to check the plan");
    for (size_t r = 0; r < n; r++)
        c->first_cell[r] = r * each;
    return true;
}

static void close_memory(struct checker *c)
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
    abci_free(c->depth);
    abci_free(c->time);
    abci_free(c->met);
}

/* Setting 0 to 3: bit 0 in place, bit 1 staged, the same on all ranks. From 4 on: each rank as a fixed random draw says. */
static void choose_setting(struct checker *c, int setting)
{
    static const char *const names[] = {"out of place, direct", "in place, direct", "out of place, staged", "in place, staged"};
    uint32_t draw = 0x9e3779b9u * (uint32_t)(setting + 1);
    c->setting = setting < 4 ? names[setting] : "buffers differ from rank to rank";
    for (int rank = 0; rank < c->set->nranks; rank++) {
        draw ^= draw << 13; /* xorshift */
        draw ^= draw >> 17;
        draw ^= draw << 5;
        uint32_t bits = setting < 4 ? (uint32_t)(setting & 1) | (setting & 2 ? 6u : 0) : draw >> 8;
        struct lie *lie = &c->lie[rank];
        lie->in_place = bits & 1;
        lie->staged[0] = (bits & 2) || (lie->in_place && c->set->plan[rank]->stage_in_place);
        lie->staged[1] = bits & 4;
    }
}

void abci_plan_check(const struct abci_plan_set *set, struct abci_check_report *report)
{
    struct checker c = {.set = set, .report = report, .setting = "any buffers"};
    memset(report, 0, sizeof *report);
    report->rank_order = true;
    if (set->nranks < 1 || !set->plan) {
        fault(&c, ABC_ERR_PLAN, "there are no ranks");
        return;
    }
    if (!check_heads(&c))
        return;
    int status = abci_clock_open(&c.clock, set);
    if (status != ABC_OK)
        fault(&c, status, "%s", abci_error_text());
    if (status == ABC_OK && open_memory(&c) && check_waits(&c)) {
        abci_values_open(&c.values, set->nranks, set->plan[0]->nblocks);
        bool ok = true;
        for (int setting = 0; ok && setting < 4 + MIXTURES; setting++) {
            choose_setting(&c, setting);
            reset(&c);
            ok = play_all(&c) && check_end(&c);
        }
        abci_values_close(&c.values);
    }
    close_memory(&c);
    abci_clock_close(&c.clock);
}
