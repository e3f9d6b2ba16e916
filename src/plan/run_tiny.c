/*
 * run_tiny.c - stage 3: a short call on an idle engine: the header, and the plan's one reading step. Short is what fits a header,
 * or is staged before the header is stored; what the call needs is kept from one like it (run_learn.c). Writes the same header and
 * reads the same headers as the general machine (run_issue.c, run_step.c), so that a peer cannot tell; when a peer is late the
 * general machine takes over where this stops. A started request comes here twice: its start stores the header, its wait reads the
 * peers'. Runs under the claim. Cost: the lines of the header and the payload written once, as many read a peer, no division, no
 * search.
 */
#include <stddef.h>
#include <string.h>

#include "plan/run_internal.h"

/* Compiled into the blocking call as well as into the halves of a started one: functions that are called cost it 10 % more
 * instructions. */
#define ABCI_TWICE __attribute__((always_inline)) static inline

/* Staging for a payload that no header holds, and the payload in it. False: none is free now. */
static bool stage(struct abci_engine *e, struct abci_tiny *t, uint32_t sequence, const char *in)
{
    struct abci_instance *inst = &e->instance[sequence % ABCI_SLOTS];
    inst->run = t->like.run;
    inst->sequence = sequence;
    inst->flags = inst->token = inst->gained = 0;
    inst->region = NULL;
    inst->tmp_area = 0;
    inst->mode[ABCI_IN] = ABCI_MODE_STAGED; /* as abci_lay_out has it for a short input, wherever that lies */
    inst->mode[ABCI_OUT] = ABCI_MODE_NONE;
    if (abci_take_staging(e, inst, t->copy.room) != ABC_OK)
        return false;
    inst->stage[ABCI_IN] = inst->tmp - t->copy.base;
    inst->stage[ABCI_OUT] = NULL;
    char *to = inst->stage[ABCI_IN] + t->copy.to;
    in += t->copy.from;
    for (uint32_t k = 0; k < t->copy.pieces; k++, in += t->copy.bytes, to += t->copy.stride)
        abci_copy(to, NULL, in, t->copy.bytes, ABCI_STORE_PLAIN);
    return true;
}

/* Up to 32 bytes, by two moves that may overlap: a call of memcpy would part the stores to one line. */
ABCI_TWICE void copy_short(uint8_t *to, const char *from, uint32_t bytes)
{
    if (bytes >= 16) {
        uint64_t v[4];
        memcpy(v, from, 16);
        memcpy(v + 2, from + bytes - 16, 16);
        memcpy(to, v, 16);
        memcpy(to + bytes - 16, v + 2, 16);
    } else if (ABCI_LIKELY(bytes >= 8)) {
        uint64_t v[2];
        memcpy(v, from, 8);
        memcpy(v + 1, from + bytes - 8, 8);
        memcpy(to, v, 8);
        memcpy(to + bytes - 8, v + 1, 8);
    } else {
        for (uint32_t i = 0; i < bytes; i++)
            to[i] = (uint8_t)from[i];
    }
}

static void fill_descriptors(const struct abci_instance *inst, struct abci_header *h)
{
    h->base[ABCI_IN] = inst->staging_offset + (uint64_t)(inst->stage[ABCI_IN] - inst->tmp);
    h->base[ABCI_OUT] = 0;
    h->region = 0;
    h->mode[ABCI_IN] = ABCI_MODE_STAGED;
    h->mode[ABCI_OUT] = ABCI_MODE_NONE;
    h->token = inst->token;
    h->arena = 0;
}

/* Line by line, each once: memcpy stores the end first and some bytes twice, so that lines are taken away in between. */
__attribute__((noinline)) static void copy_lines(uint8_t *to, const char *from, uint32_t bytes)
{
    uint32_t whole = bytes & ~15u;
    for (uint32_t i = 0; i < whole; i += 16)
        memcpy(to + i, from + i, 16);
    if (whole < bytes)
        memcpy(to + bytes - 16, from + bytes - 16, 16);
}

#define KNOWN (offsetof(struct abci_header, chain) - offsetof(struct abci_header, collective))

ABCI_TWICE void store_header(struct abci_engine *e, const struct abci_tiny *t, uint32_t sequence, uint32_t chain, const char *in)
{
    struct abci_header_slot *slot = abci_shm_header(e->shm->control, sequence);
    struct abci_header *h = &slot->head;
    if (t->shown > ABCI_INLINE_LINE)
        copy_lines(slot->payload, in, t->shown);
    memcpy(&h->collective, &t->header.collective, KNOWN);
    h->chain = chain;
    h->done = e->reads_over;
    if (t->staged)
        fill_descriptors(&e->instance[sequence % ABCI_SLOTS], h);
    else if (t->shown <= ABCI_INLINE_LINE)
        copy_short(h->payload, in, t->shown);
    atomic_store_explicit(&h->sequence, sequence, memory_order_release); /* pairs with same_call and abci_verify */
    abci_shm_notify(e->shm);
}

/* Has the peer stored the same call? A difference is left to the general machine, which says it. */
static bool same_call(const struct abci_header *h, const struct abci_tiny *t, uint32_t sequence, uint32_t chain)
{
    if (atomic_load_explicit(&h->sequence, memory_order_acquire) != sequence) /* pairs with store_header */
        return false;
    if (abci_mutated("c6_no_compare"))
        return true;
    uint64_t known;
    memcpy(&known, &h->collective, sizeof known);
    return (known & t->mask) == t->wants && h->algorithm == t->header.algorithm && h->count == t->header.count && h->chain == chain;
}

/* Blocks of different sizes: the own one, or, in rows, one for each peer beside what that peer compares. */
__attribute__((noinline)) static void show_lists(struct abci_engine *e, const struct abci_tiny *t, uint32_t sequence,
                                                 const char *in)
{
    struct abci_header_slot *slot = abci_shm_header(e->shm->control, sequence);
    const struct abci_lists *l = t->lists;
    int me = e->shm->rank;
    if (t->staged)
        return; /* copied before */
    if (l->row == 0) {
        memcpy(t->fetch_end ? slot->payload : slot->head.payload, in, l->parcel[me].sent);
        return;
    }
    for (int r = t->first; r < t->end; r++) {
        const struct abci_parcel *p = &l->parcel[r];
        const uint64_t words[2] = {l->count[ABCI_IN][r], l->most};
        uint8_t *row = slot->payload + (uint64_t)r * l->row;
        if (r == me)
            continue;
        memcpy(row, words, sizeof words);
        if (p->sent)
            memcpy(row + sizeof words, in + p->from, p->sent);
    }
}

/* Do all peers send what this rank expects, and does each know of short blocks only? Else the general machine has the rest. */
static bool rows_fit(const struct abci_engine *e, const struct abci_tiny *t)
{
    const struct abci_lists *l = t->lists;
    for (int r = t->first; r < t->end; r++) {
        uint64_t words[2];
        if (r == e->shm->rank)
            continue;
        memcpy(words, e->sources[r], sizeof words);
        if (words[0] != l->count[ABCI_OUT][r] || words[1] * t->like.shape.element > l->row - ABCI_COUNTS_WORDS)
            return false;
    }
    return true;
}

static void move_lists(const struct abci_engine *e, const struct abci_tiny *t, const char *in, char *out)
{
    const struct abci_lists *l = t->lists;
    const struct abci_parcel *own = &l->parcel[e->shm->rank];
    uint64_t behind = l->row ? ABCI_COUNTS_WORDS : 0;
    if (own->got && in + own->from != out + own->to)
        memcpy(out + own->to, in + own->from, own->got);
    for (int r = t->first; r < t->end; r++)
        if (r != e->shm->rank && l->parcel[r].got)
            memcpy(out + l->parcel[r].to, (const char *)e->sources[r] + behind, l->parcel[r].got);
}

/* Where a peer's staged payload lies; NULL where only the general machine can reach it. */
static const char *staged(struct abci_engine *e, const struct abci_tiny *t, int peer, const struct abci_header *h)
{
    struct abci_segment *segment = e->shm->peer[peer].segment;
    if (h->mode[ABCI_IN] != ABCI_MODE_STAGED || h->token > 2 * ABCI_SWAPS)
        return NULL;
    if (h->token)
        segment = e->shm->peer[(h->token - 1) / ABCI_SWAPS].segment;
    return abci_segment_at(segment, h->base[ABCI_IN] + t->at, t->piece);
}

/* Reading the clock takes 10 ns here, so it is done where the call waits anyway: behind the header, and between looks at it. */
ABCI_TWICE void look_at_clock(struct abci_engine *e)
{
    e->looked = abci_event_ticks(e->shm->events->clock);
}

#define KEEN 100 /* so many looks follow each other at once, 1 us; later ones leave some time to whoever shares the core */

ABCI_TWICE bool gather_peers(struct abci_engine *e, const struct abci_tiny *t, uint32_t sequence, uint32_t chain)
{
    uint32_t polls = e->shm->wait.spins, relax = polls > KEEN ? polls - KEEN : 0;
    for (int r = t->first; r < t->end; r++) {
        if (r == e->shm->rank)
            continue;
        struct abci_shm_peer *p = &e->shm->peer[r];
        const struct abci_header_slot *slot = abci_shm_header(p->control, sequence);
        while (!same_call(&slot->head, t, sequence, chain)) {
            if (polls-- == 0)
                return false;
            if (polls < relax)
                abci_shm_relax(e->shm, polls, &(uint16_t){(uint16_t)r}, 1);
            for (uint32_t at = t->fetch; at < t->fetch_end; at += ABCI_LINE)
                __builtin_prefetch(slot->payload + at); /* so that it comes with the header, and not after it */
            look_at_clock(e);
        }
        p->done = slot->head.done; /* as old as the header: at worst the slots' watermark is asked again */
        if (slot->head.counter0 < t->wanted)
            return false;
        if (t->reads_staged)
            e->sources[r] = staged(e, t, r, &slot->head);
        else
            e->sources[r] = (const char *)(t->fetch_end ? slot->payload : slot->head.payload) + t->at;
        if (!e->sources[r])
            return false;
    }
    return true;
}

/* Pieces to where they belong. In place the own one is there; a barrier has none. */
static void move(const struct abci_engine *e, const struct abci_tiny *t, const char *in, char *out)
{
    if (t->moves_own && in + t->own != out + t->own_to)
        memcpy(out + t->own_to, in + t->own, t->piece);
    if (t->piece == 0)
        return;
    for (int r = t->first; r < t->end; r++)
        if (r != e->shm->rank)
            memcpy(out + t->to + (size_t)(r - t->first) * t->step, e->sources[r], t->piece);
}

/* This rank reads nothing more: staging goes back, a token that it has read is its own, the watermark moves. */
ABCI_TWICE void finish(struct abci_engine *e, const struct abci_tiny *t, uint32_t sequence)
{
    struct abci_instance *inst = &e->instance[sequence % ABCI_SLOTS];
    e->next_sequence = sequence + 1;
    if (t->staged && inst->region)
        inst->region->used = false;
    uint8_t gained = 0;
    if (t->reads_staged && e->shm->nranks == 2)
        gained = abci_shm_header(e->shm->peer[1 - e->shm->rank].control, sequence)->head.token;
    abci_reads_over(e, sequence, gained);
}

/* Is the engine idle, the slot free and, where no header holds it, the payload staged? */
ABCI_TWICE bool ready(struct abci_engine *e, struct abci_tiny *t, uint32_t sequence, const char *in)
{
    return !(e->active | (uint32_t)(e->queue != NULL) | e->reads_over_mask) && e->reads_over + 1 == sequence &&
           abci_slot_free(e, sequence) && !atomic_load_explicit(&e->inbox, memory_order_relaxed) && !abci_shm_failed(e->shm) &&
           (!t->staged || stage(e, t, sequence, in));
}

/* As abci_note, but for the time and the commit; nothing else is in flight. */
ABCI_TWICE struct abci_event *begin_note(struct abci_engine *e, const struct abci_tiny *t, enum abci_event_kind kind,
                                         uint32_t sequence, int status)
{
    struct abci_event *event = abci_event_open(e->shm->events);
    memcpy(&event->count, &t->record.count, sizeof *event - offsetof(struct abci_event, count));
    event->kind = (uint8_t)kind;
    event->sequence = sequence;
    event->status = status;
    return event;
}

ABCI_TWICE void end_note(struct abci_engine *e, struct abci_event *event)
{
    event->time = e->looked;
    abci_event_commit(e->shm->events, event);
}

/* The first half, which waits for nobody; returns the chain up to this call. */
ABCI_TWICE uint32_t show(struct abci_engine *e, const struct abci_tiny *t, uint32_t sequence, const char *in)
{
    uint32_t chain = abci_chained(e->chain, t->hash);
    if (ABCI_UNLIKELY(t->lists != NULL))
        show_lists(e, t, sequence, in);
    ABCI_HOOK(e->shm->rank, sequence, ABCI_STOP_HEADER);
    store_header(e, t, sequence, chain, in);
    look_at_clock(e);
    end_note(e, begin_note(e, t, ABCI_EVENT_START, sequence, ABC_PENDING));
    return chain;
}

/* The second half; ABCI_LATE: a peer is not there, nothing has happened yet. */
ABCI_TWICE int conclude(struct abci_engine *e, const struct abci_tiny *t, uint32_t sequence, uint32_t chain, const char *in,
                        char *out)
{
    struct abci_event *end = begin_note(e, t, ABCI_EVENT_END, sequence, ABC_OK); /* while the peers' lines are on their way */
    if (!gather_peers(e, t, sequence, chain) || (t->work == ABCI_TINY_LISTS && t->lists->row && !rows_fit(e, t)))
        return ABCI_LATE;
    ABCI_HOOK(e->shm->rank, sequence, (int)t->like.run->lead); /* the step of the plan that this is */
    if (ABCI_LIKELY(t->work == ABCI_TINY_REDUCE)) {
        e->sources[e->shm->rank] = in + t->own;
        if (ABCI_UNLIKELY(t->swaps)) /* two ranks */
            abci_reduce_swap(&t->like.reduction, out, e->sources, t->like.id.count,
                             &(struct abci_swap){.foreign = 1 - e->shm->rank});
        else
            abci_reduce(&t->like.reduction, out, NULL, e->sources + t->first, t->end - t->first, t->like.id.count);
    } else if (t->work == ABCI_TINY_MOVE) {
        move(e, t, in, out);
    } else {
        move_lists(e, t, in, out);
    }
    e->chain = chain;
    finish(e, t, sequence);
    ABCI_HOOK(e->shm->rank, sequence, ABCI_STOP_LAST);
    atomic_thread_fence(memory_order_acquire); /* all reads of peers' memory before the last look at the record */
    if (abci_shm_failed(e->shm) && !abci_mutated("c7_last_look"))
        return ABC_ERR_PEER;
    if (!abci_mutated("c14_no_end_record"))
        end_note(e, end);
    return ABC_OK;
}

int abci_tiny_run(struct abci_engine *e, struct abci_tiny *t, const char *in, char *out)
{
    uint32_t sequence = e->next_sequence;
    if (t->listens) /* nobody waits for this rank: what it waits for may set out first */
        __builtin_prefetch(abci_shm_header(e->shm->peer[t->first].control, sequence));
    if (!ready(e, t, sequence, in))
        return ABC_PENDING;
    uint32_t chain = show(e, t, sequence, in);
    int status = conclude(e, t, sequence, chain, in, out);
    if (ABCI_LIKELY(status == ABC_OK))
        return ABC_OK;
    if (status == ABCI_LATE)
        e->header_stored = true;
    else
        abci_note(e, &t->like, ABCI_EVENT_ERROR, sequence, status); /* the caller asks again and is told why */
    return status;
}

bool abci_tiny_begin(struct abci_engine *e, struct abci_tiny *t, const char *in)
{
    uint32_t sequence = e->next_sequence;
    if (!ready(e, t, sequence, in))
        return false;
    e->short_out = t;
    e->short_chain = show(e, t, sequence, in);
    e->header_stored = true;
    return true;
}

int abci_tiny_end(struct abci_engine *e, const char *in, char *out)
{
    look_at_clock(e); /* the last look may be long ago */
    int status = conclude(e, e->short_out, e->next_sequence, e->short_chain, in, out);
    if (status != ABCI_LATE)
        e->header_stored = false;
    return status;
}
