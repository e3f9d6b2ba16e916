/*
 * play.c - stage 3, inside the checker: what steps do to memory, symbolically. Every read and write of a block is held against all
 * earlier ones by the clock: what is not certainly over is a race. Called by check.c; one thread.
 */
#include "plan/play.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

bool abci_check_fault(struct abci_checker *c, int status, const char *format, ...)
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

bool abci_check_step_fault(struct abci_checker *c, int rank, uint32_t at, const char *format, ...)
{
    char words[160];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    return abci_check_fault(c, ABC_ERR_PLAN, "rank %d step %u (%s): %s [%s]", rank, at,
                            abci_kind_name(c->set->plan[rank]->steps[at].kind), words, c->setting);
}

/* ---- Memory ---- */

/* The rank's OUT block that is also an IN block when it works in place. */
static bool shared_block(const struct abci_checker *c, int rank, int block)
{
    const struct abci_plan *plan = c->set->plan[rank];
    switch (plan->collective) {
    case ABC_REDUCE_SCATTER:
    case ABC_ALLGATHER:
        return block == rank;
    case ABC_GATHER:
    case ABC_SCATTER:
        return rank == plan->root && block == rank;
    case ABC_BROADCAST:
    case ABC_REDUCE:
        return rank == plan->root;
    default:
        return true;
    }
}

struct abci_cell *abci_check_cell(struct abci_checker *c, int rank, int area, int block)
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

static bool is_staged(const struct abci_checker *c, int rank, int buffer)
{
    return buffer < ABCI_TMP && c->lie[rank].staged[buffer];
}

/* What peers see of a buffer. */
static int shown_area(const struct abci_checker *c, int rank, int buffer)
{
    return is_staged(c, rank, buffer) ? AREA_STAGED_IN + buffer : own_area(buffer);
}

static int rank_of_event(const struct abci_checker *c, uint32_t event)
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
static uint32_t read_cell(struct abci_checker *c, int rank, uint32_t at, struct abci_cell *cell, int owner, int buffer, int block)
{
    uint32_t event = c->clock.event;
    if (owner != rank && c->over[owner]) {
        abci_check_step_fault(c, rank, at, "reads %s block %d of rank %d, which may be through already", abci_buffer_name(buffer),
                              block, owner);
        return 0;
    }
    if (cell->value == 0) {
        abci_check_step_fault(c, rank, at, "reads %s block %d of rank %d, which nobody has written", abci_buffer_name(buffer),
                              block, owner);
        return 0;
    }
    if (cell->writer && cell->writer - 1 != event && !abci_clock_over(&c->clock, cell->writer - 1)) {
        int other = rank_of_event(c, cell->writer - 1);
        abci_check_step_fault(c, rank, at, "reads %s block %d of rank %d, which rank %d step %u may be writing",
                              abci_buffer_name(buffer), block, owner, other, cell->writer - 1 - c->clock.first[other]);
        return 0;
    }
    if (c->nreads == c->read_room) {
        uint32_t room = 2 * c->read_room;
        struct abci_read *more = abci_alloc(room * sizeof *more);
        if (!more)
            return abci_check_fault(c, ABC_ERR_MEMORY, "no memory to check the plan");
        memcpy(more, c->reads, c->nreads * sizeof *more);
        abci_free(c->reads);
        c->reads = more;
        c->read_room = room;
    }
    c->reads[c->nreads] = (struct abci_read){event, cell->reads};
    cell->reads = c->nreads++;
    return cell->value;
}

/* The current event writes a block of the owner's: all reads and the write before must be over. */
static bool write_cell(struct abci_checker *c, int rank, uint32_t at, struct abci_cell *cell, int buffer, int block, uint32_t value)
{
    uint32_t event = c->clock.event;
    if (cell->writer && cell->writer - 1 != event && !abci_clock_over(&c->clock, cell->writer - 1)) {
        int other = rank_of_event(c, cell->writer - 1);
        return abci_check_step_fault(c, rank, at, "writes %s block %d, which rank %d step %u may write at the same time",
                                     abci_buffer_name(buffer), block, other, cell->writer - 1 - c->clock.first[other]);
    }
    for (uint32_t i = cell->reads; i; i = c->reads[i].next) {
        uint32_t reader = c->reads[i].event;
        if (reader == event || abci_clock_over(&c->clock, reader))
            continue;
        int other = rank_of_event(c, reader);
        return abci_check_step_fault(c, rank, at, "writes %s block %d while rank %d step %u may still read it",
                                     abci_buffer_name(buffer), block, other, reader - c->clock.first[other]);
    }
    cell->reads = 0;
    cell->writer = event + 1;
    cell->value = value;
    return true;
}

/* A step's result: to dst, and with ABCI_STAGE also to where peers see it. */
static bool write_result(struct abci_checker *c, int rank, uint32_t at, const struct abci_step *step, int i, uint32_t value)
{
    int buffer = step->dst.buffer, block = step->dst.block + i;
    struct abci_cell *dst = abci_check_cell(c, rank, own_area(buffer), block);
    bool onto_itself = step->kind == ABCI_COPY && abci_check_cell(c, rank, own_area(step->src.buffer), step->src.block + i) == dst;
    if (!onto_itself && !write_cell(c, rank, at, dst, buffer, block, value))
        return false;
    if (!(step->flags & ABCI_STAGE) || !is_staged(c, rank, buffer))
        return true;
    return write_cell(c, rank, at, abci_check_cell(c, rank, shown_area(c, rank, buffer), block), buffer, block, value);
}

/* ABCI_SPREAD: the result also to every peer's own block. The wait for a peer's publish is the permission: its call has begun. */
static bool spread_result(struct abci_checker *c, int rank, uint32_t at, const struct abci_step *step, int i, uint32_t value)
{
    const struct abci_peer *peers = abci_plan_peers(c->set->plan[rank], step);
    int block = step->dst.block + i;
    for (int k = 0; step->flags & ABCI_SPREAD && k < step->npeers; k++) {
        int peer = peers[k].rank;
        if (c->over[peer])
            return abci_check_step_fault(c, rank, at, "writes out block %d of rank %d, which may be through already", block, peer);
        if (!write_cell(c, rank, at, abci_check_cell(c, peer, AREA_OUT, block), ABCI_OUT, block, value))
            return false;
    }
    return true;
}

/* The last step of a direct plan: the caller gets the buffers back, so whatever others do to them must be over. */
static bool close_rank(struct abci_checker *c, int rank)
{
    const struct abci_plan *plan = c->set->plan[rank];
    uint32_t at = plan->nsteps - 1;
    for (int cell = 0; cell < 2 * plan->nblocks; cell++) {
        const struct abci_cell *m = &c->cells[c->first_cell[rank] + (size_t)cell];
        if (m->writer && m->writer - 1 != c->clock.event && !abci_clock_over(&c->clock, m->writer - 1))
            return abci_check_step_fault(c, rank, at, "ends while rank %d may still write block %d of its buffers",
                                         rank_of_event(c, m->writer - 1), cell % plan->nblocks);
        for (uint32_t i = m->reads; i; i = c->reads[i].next)
            if (c->reads[i].event != c->clock.event && !abci_clock_over(&c->clock, c->reads[i].event))
                return abci_check_step_fault(c, rank, at, "ends while rank %d may still read block %d of its buffers",
                                             rank_of_event(c, c->reads[i].event), cell % plan->nblocks);
    }
    c->over[rank] = 1;
    return true;
}

/* ---- Steps ---- */

static uint32_t read_own(struct abci_checker *c, int rank, uint32_t at, struct abci_ref ref, int i)
{
    struct abci_cell *cell = abci_check_cell(c, rank, own_area(ref.buffer), ref.block + i);
    return read_cell(c, rank, at, cell, rank, ref.buffer, ref.block + i);
}

static uint32_t read_peer(struct abci_checker *c, int rank, uint32_t at, int peer, struct abci_ref ref, int i)
{
    struct abci_cell *cell = abci_check_cell(c, peer, shown_area(c, peer, ref.buffer), ref.block + i);
    return read_cell(c, rank, at, cell, peer, ref.buffer, ref.block + i);
}

/* Direct: nothing moves. Staged: the bytes are copied now, or have been by an ABCI_STAGE step. */
static bool play_publish(struct abci_checker *c, int rank, uint32_t at, const struct abci_step *step)
{
    int buffer = step->src.buffer;
    if (step->src.count == 0 || !is_staged(c, rank, buffer))
        return true;
    for (int i = 0; i < step->src.count; i++) {
        int block = step->src.block + i;
        struct abci_cell *shown = abci_check_cell(c, rank, shown_area(c, rank, buffer), block);
        uint32_t value = read_own(c, rank, at, step->src, i);
        if (!value)
            return false;
        if (!(step->flags & ABCI_STAGED)) {
            if (!write_cell(c, rank, at, shown, buffer, block, value))
                return false;
            continue;
        }
        if (shown->value != value)
            return abci_check_step_fault(c, rank, at, "%s block %d counts as staged, but no step has staged what it holds now",
                                         abci_buffer_name(buffer), block);
        if (!read_cell(c, rank, at, shown, rank, buffer, block))
            return false;
    }
    return true;
}

static bool add_operand(struct abci_checker *c, int rank, uint32_t at, uint32_t sum, uint32_t value, int owner)
{
    if (!value)
        return false;
    const char *wrong = abci_value_add(&c->values, sum, value);
    return !wrong || abci_check_step_fault(c, rank, at, "%s, from rank %d", wrong, owner);
}

int abci_check_last(const struct abci_plan *plan)
{
    if (!abci_is(ABCI_PREFIX, plan->collective))
        return plan->nranks - 1;
    return plan->rank - (plan->collective == ABC_EXSCAN);
}

bool abci_check_is_prefix(const struct abci_checker *c, int rank, uint32_t value)
{
    int last = abci_check_last(c->set->plan[rank]), lacks = abci_value_lacks(&c->values, value);
    return (int)abci_value_info(&c->values, value).ranks == last + 1 && (lacks < 0 || lacks == last + 1);
}

/* A sum is final exactly when it is complete, and then it must be as the plan claims. Of prefixes only those that nobody adds to.
 */
static bool check_sum(struct abci_checker *c, int rank, uint32_t at, const struct abci_step *step, uint32_t sum)
{
    const struct abci_plan *plan = c->set->plan[rank];
    int lacks = abci_value_lacks(&c->values, sum);
    if (step->flags & ABCI_FINAL) {
        struct abci_value_info info = abci_value_info(&c->values, sum);
        if (abci_is(ABCI_PREFIX, plan->collective) && !abci_check_is_prefix(c, rank, sum))
            return abci_check_step_fault(c, rank, at, "is marked final, but is not the sum over ranks 0 to %d",
                                         abci_check_last(plan));
        if (lacks >= 0 && !abci_is(ABCI_PREFIX, plan->collective))
            return abci_check_step_fault(c, rank, at, "is marked final, but lacks the contribution of rank %d", lacks);
        if (plan->ordered && !info.contiguous)
            return abci_check_step_fault(c, rank, at, "the plan claims ordered operands, but this sum's are not in rank order");
        if (plan->rank_order && !info.strict)
            return abci_check_step_fault(c, rank, at, "the plan claims rank order, but this sum is bracketed otherwise");
        c->report->rank_order = c->report->rank_order && info.strict;
        abci_value_finish(&c->values, sum);
        return true;
    }
    if (lacks >= 0 || abci_is(ABCI_PREFIX, plan->collective))
        return true;
    return abci_check_step_fault(c, rank, at, "completes the sum without being marked final");
}

static bool play_reduce(struct abci_checker *c, int rank, uint32_t at, const struct abci_step *step)
{
    const struct abci_peer *peers = abci_plan_peers(c->set->plan[rank], step);
    for (int i = 0; i < step->src.count; i++) {
        uint32_t sum = abci_value_sum(&c->values);
        if (!sum)
            return abci_check_fault(c, ABC_ERR_MEMORY, "no memory to check the plan");
        for (int k = 0; k <= step->npeers; k++) {
            if (step->own.buffer != ABCI_NONE && k == step->own_at &&
                !add_operand(c, rank, at, sum, read_own(c, rank, at, step->own, i), rank))
                return false;
            if (k < step->npeers &&
                !add_operand(c, rank, at, sum, read_peer(c, rank, at, peers[k].rank, step->src, i), peers[k].rank))
                return false;
        }
        if (!check_sum(c, rank, at, step, sum) || !write_result(c, rank, at, step, i, sum) ||
            !spread_result(c, rank, at, step, i, sum))
            return false;
    }
    return true;
}

static bool play_move(struct abci_checker *c, int rank, uint32_t at, const struct abci_step *step)
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
static void measure(struct abci_checker *c, int rank, uint32_t at, const struct abci_step *step)
{
    const struct abci_plan *plan = c->set->plan[rank];
    uint32_t base = c->clock.first[rank], event = base + at, start = c->busy[rank];
    uint32_t depth = 0;
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
    c->depth[event] = depth + reads;
    c->time[event] = c->busy[rank] = start + (reads ? (uint32_t)step->npeers * step->src.count : 0);
    if ((int)c->depth[event] > c->report->steps)
        c->report->steps = (int)c->depth[event];
    if ((int)c->time[event] > c->report->blocks)
        c->report->blocks = (int)c->time[event];
}

/* Have all peers published what the step waits for? */
static bool is_ready(const struct abci_checker *c, int rank, const struct abci_step *step)
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

static bool play(struct abci_checker *c, int rank, uint32_t at)
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
    if (ok && plan->direct && at == plan->nsteps - 1)
        ok = close_rank(c, rank);
    int status = ok ? abci_clock_end(&c->clock) : ABC_OK;
    if (status == ABC_ERR_UNSUPPORTED)
        return abci_check_fault(c, status, "the order of %u steps in %u chains is too large to check; use fewer ranks",
                                c->clock.first[c->set->nranks], c->clock.nchains);
    if (status != ABC_OK)
        return abci_check_fault(c, status, "no memory to check the plan");
    return ok;
}

/* Nobody can go on: name the first rank that is stuck and what it waits for. */
static bool deadlock(struct abci_checker *c)
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
                return abci_check_step_fault(c, rank, c->next[rank],
                                             "deadlock: waits for rank %d step %u, but that rank is stuck at step %u", peer->rank,
                                             publish, c->next[peer->rank]);
        }
    }
    return true;
}

/* Play every rank as far as it can go, in turn, until all are done or nobody moves. */
bool abci_check_play(struct abci_checker *c)
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
