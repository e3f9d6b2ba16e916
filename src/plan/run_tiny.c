/*
 * run_tiny.c - stage 3: a short allreduce on an idle engine: the one-shot plan with its PUBLISH and its REDUCE fused. Short is what
 * fits a header, or is staged before the header is stored. Writes the same header and reads the same headers as the general machine
 * (run_issue.c, run_step.c), so that a peer cannot tell; when a peer is late the general machine takes over where this stops. What
 * the call needs is kept from the last one like it: the second call of a kind comes here. A started request comes here twice: its
 * start stores the header, its wait reads the peers'. Runs under the claim. Cost: the lines of the header and the payload written
 * once, as many read a peer, no division, no search.
 */
#include <string.h>

#include "plan/run_internal.h"

/* Compiled into the blocking call as well as into the halves of a started one: functions that are called cost it 10 % more
 * instructions. */
#define ABCI_TWICE __attribute__((always_inline)) static inline

/* A plan of just [PUBLISH IN ... ][REDUCE over all peers, own operand in rank order, into OUT], one block. */
static bool fusible(const struct abci_runnable *run, int nranks)
{
    const struct abci_plan *p = run->plan;
    if (p->collective != ABC_ALLREDUCE || p->nsteps != run->lead + 1 || run->lead != 1 || p->nblocks != 1)
        return false;
    const struct abci_step *s = &p->steps[run->lead];
    if (s->kind != ABCI_REDUCE || !(s->flags & ABCI_FINAL) || s->npeers != nranks - 1 || s->own_at != p->rank)
        return false;
    for (int k = 0; k < s->npeers; k++)
        if (p->peers[s->peer + (uint32_t)k].rank != k + (k >= p->rank))
            return false;
    return s->own.buffer == ABCI_IN && s->src.buffer == ABCI_IN && s->dst.buffer == ABCI_OUT;
}

void abci_tiny_learn(struct abci_engine *e, const struct abc_request *q)
{
    struct abci_tiny *t = &e->tiny;
    uint64_t bytes = q->shape.count * q->shape.element;
    if (e->machine.price.crowding > 1) /* the peers are hardly ever there: this would be work for nothing */
        return;
    if (bytes == 0 || bytes > ABCI_TINY_MAX || q->planned != 1 || q->reduction.user || e->shm->nranks < 2 ||
        !fusible(q->run, e->shm->nranks))
        return;
    t->bytes = (uint32_t)bytes;
    t->staged = bytes > ABCI_INLINE_HEADER;
    t->like = *q;
    t->like.tag = 0;
    t->like.ran_direct = false;
    t->like.reduction.final = 1;
    t->like.reduction.store = ABCI_STORE_PLAIN;
}

bool abci_tiny_like(const struct abci_engine *e, const void *in, const void *out, uint64_t count, abc_type type, abc_op op)
{
    const struct abci_tiny *t = &e->tiny;
    uintptr_t apart = (uintptr_t)in > (uintptr_t)out ? (uintptr_t)in - (uintptr_t)out : (uintptr_t)out - (uintptr_t)in;
    return t->bytes && t->like.id.count == count && t->like.reduction.type == type && t->like.reduction.op == op &&
           in != ABC_IN_PLACE && out != ABC_IN_PLACE && (apart == 0 || apart >= t->bytes);
}

/* Staging for a payload that no header holds, and the payload in it. False: none is free now. */
static bool stage(struct abci_engine *e, struct abci_tiny *t, uint32_t sequence, const void *in, const void *out)
{
    struct abci_instance *inst = &e->instance[sequence % ABCI_SLOTS];
    t->like.in_place = in == out;
    inst->request = &t->like;
    inst->run = t->like.run;
    inst->shape = t->like.shape;
    inst->sequence = sequence;
    inst->flags = inst->token = inst->gained = 0;
    inst->region = NULL;
    if (abci_lay_out(e, inst) != ABC_OK)
        return false;
    abci_copy(inst->stage[ABCI_IN], NULL, in, t->bytes, ABCI_STORE_PLAIN);
    return true;
}

ABCI_TWICE void fill_payload(struct abci_header_slot *slot, const struct abci_tiny *t, uint32_t sequence, const char *in)
{
    memcpy(slot->head.payload, in, t->bytes < 32 ? t->bytes : 32);
    for (uint32_t line = 0, at = 32; at < t->bytes; line++, at += 60) {
        memcpy(slot->more[line].payload, in + at, t->bytes - at < 60 ? t->bytes - at : 60);
        atomic_store_explicit(&slot->more[line].sequence, sequence, memory_order_release); /* pairs with complete */
    }
}

static void fill_descriptors(const struct abci_instance *inst, struct abci_header *h)
{
    h->base[ABCI_IN] = inst->staging_offset;
    h->base[ABCI_OUT] = 0;
    h->region = 0;
    h->mode[ABCI_IN] = ABCI_MODE_STAGED;
    h->mode[ABCI_OUT] = ABCI_MODE_NONE;
    h->token = inst->token;
    h->arena = 0;
}

ABCI_TWICE void store_header(struct abci_engine *e, const struct abci_tiny *t, uint32_t sequence, uint32_t chain, const void *in)
{
    struct abci_header_slot *slot = abci_shm_header(e->shm->control, sequence);
    struct abci_header *h = &slot->head;
    h->collective = t->like.id.collective;
    h->type = t->like.id.type;
    h->op = t->like.id.op;
    h->flags = t->staged ? 0 : ABCI_HEADER_PAYLOAD | ABCI_COUNTER_PAYLOAD;
    h->root = 0;
    h->counter0 = t->like.run->lead_value;
    h->algorithm = t->like.id.algorithm;
    h->count = t->like.id.count;
    h->chain = chain;
    h->done = e->reads_over;
    if (t->staged)
        fill_descriptors(&e->instance[sequence % ABCI_SLOTS], h);
    else
        fill_payload(slot, t, sequence, in);
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
    return h->collective == t->like.id.collective && h->type == t->like.id.type && h->op == t->like.id.op && h->root == 0 &&
           h->algorithm == t->like.id.algorithm && h->count == t->like.id.count && h->chain == chain;
}

/* Put a payload of more than a line together. False: a line is not there yet. */
static bool complete(const struct abci_header_slot *slot, const struct abci_tiny *t, uint32_t sequence, char *to)
{
    memcpy(to, slot->head.payload, 32);
    for (uint32_t line = 0, at = 32; at < t->bytes; line++, at += 60) {
        if (atomic_load_explicit(&slot->more[line].sequence, memory_order_acquire) != sequence) /* pairs with store_header */
            return false;
        memcpy(to + at, slot->more[line].payload, t->bytes - at < 60 ? t->bytes - at : 60);
    }
    return true;
}

/* Where a peer's staged payload lies; NULL where only the general machine can reach it. */
static const char *staged(struct abci_engine *e, const struct abci_tiny *t, int peer, const struct abci_header *h)
{
    struct abci_segment *segment = e->shm->peer[peer].segment;
    if (h->counter0 < t->like.run->lead_value || h->mode[ABCI_IN] == ABCI_MODE_REMOTE || h->token > 2 * ABCI_SWAPS)
        return NULL;
    if (h->token)
        segment = e->shm->peer[(h->token - 1) / ABCI_SWAPS].segment;
    return abci_segment_at(segment, h->base[ABCI_IN], t->bytes);
}

ABCI_TWICE bool gather_peers(struct abci_engine *e, const struct abci_tiny *t, uint32_t sequence, uint32_t chain)
{
    uint32_t polls = e->shm->wait.spins;
    for (int r = 0; r < e->shm->nranks; r++) {
        if (r == e->shm->rank)
            continue;
        struct abci_shm_peer *p = &e->shm->peer[r];
        const struct abci_header_slot *slot = abci_shm_header(p->control, sequence);
        char *whole = e->gather + (size_t)r * 256;
        bool lines = !t->staged && t->bytes > 32;
        while (!same_call(&slot->head, t, sequence, chain) || (lines && !complete(slot, t, sequence, whole))) {
            if (polls-- == 0)
                return false;
            abci_pause();
        }
        p->done = slot->head.done; /* as old as the header: at worst the slots' watermark is asked again */
        if (t->staged)
            e->sources[r] = staged(e, t, r, &slot->head);
        else
            e->sources[r] = lines ? whole : (const char *)slot->head.payload;
        if (!e->sources[r])
            return false;
    }
    return true;
}

/* This rank reads nothing more: staging goes back, a token that it has read is its own, the watermark moves. */
ABCI_TWICE void finish(struct abci_engine *e, const struct abci_tiny *t, uint32_t sequence)
{
    struct abci_instance *inst = &e->instance[sequence % ABCI_SLOTS];
    e->next_sequence = sequence + 1;
    if (t->staged && inst->region)
        inst->region->used = false;
    uint8_t gained =
        t->staged && e->shm->nranks == 2 ? abci_shm_header(e->shm->peer[1 - e->shm->rank].control, sequence)->head.token : 0;
    abci_reads_over(e, sequence, gained);
}

/* Is the engine idle, the slot free and, where no header holds it, the payload staged? */
ABCI_TWICE bool ready(struct abci_engine *e, uint32_t sequence, const void *in, const void *out)
{
    return !(e->active | (uint32_t)(e->queue != NULL) | e->reads_over_mask) && e->reads_over + 1 == sequence &&
           abci_slot_free(e, sequence) && !atomic_load_explicit(&e->inbox, memory_order_relaxed) && !abci_shm_failed(e->shm) &&
           (!e->tiny.staged || stage(e, &e->tiny, sequence, in, out));
}

/* The first half, which waits for nobody; returns the chain up to this call. */
ABCI_TWICE uint32_t show(struct abci_engine *e, uint32_t sequence, const void *in)
{
    const struct abci_tiny *t = &e->tiny;
    uint32_t chain = abci_chained(e->chain, &t->like.id);
    abci_note(e, &t->like, ABCI_EVENT_START, sequence, ABC_PENDING);
    ABCI_HOOK(e->shm->rank, sequence, ABCI_STOP_HEADER);
    store_header(e, t, sequence, chain, in);
    return chain;
}

/* The second half; ABCI_LATE: a peer is not there, nothing has happened yet. */
ABCI_TWICE int conclude(struct abci_engine *e, uint32_t sequence, uint32_t chain, const void *in, void *out)
{
    const struct abci_tiny *t = &e->tiny;
    if (!gather_peers(e, t, sequence, chain))
        return ABCI_LATE;
    e->sources[e->shm->rank] = in;
    ABCI_HOOK(e->shm->rank, sequence, 1); /* the step of the plan that this is */
    abci_reduce(&t->like.reduction, out, NULL, e->sources, e->shm->nranks, t->like.id.count);
    e->chain = chain;
    finish(e, t, sequence);
    ABCI_HOOK(e->shm->rank, sequence, ABCI_STOP_LAST);
    atomic_thread_fence(memory_order_acquire); /* all reads of peers' memory before the last look at the record */
    if (abci_shm_failed(e->shm) && !abci_mutated("c7_last_look"))
        return ABC_ERR_PEER;
    abci_note(e, &t->like, ABCI_EVENT_END, sequence, ABC_OK);
    return ABC_OK;
}

int abci_tiny_run(struct abci_engine *e, const void *in, void *out)
{
    uint32_t sequence = e->next_sequence;
    if (!ready(e, sequence, in, out))
        return ABC_PENDING;
    uint32_t chain = show(e, sequence, in);
    int status = conclude(e, sequence, chain, in, out);
    if (ABCI_LIKELY(status == ABC_OK))
        return ABC_OK;
    if (status == ABCI_LATE)
        e->header_stored = true;
    else
        abci_note(e, &e->tiny.like, ABCI_EVENT_ERROR, sequence, status); /* the caller asks again and is told why */
    return status;
}

bool abci_tiny_begin(struct abci_engine *e, const void *in, void *out)
{
    uint32_t sequence = e->next_sequence;
    if (!ready(e, sequence, in, out))
        return false;
    e->tiny.chain = show(e, sequence, in);
    e->header_stored = true;
    return true;
}

int abci_tiny_end(struct abci_engine *e, const void *in, void *out)
{
    int status = conclude(e, e->next_sequence, e->tiny.chain, in, out);
    if (status != ABCI_LATE)
        e->header_stored = false;
    return status;
}
