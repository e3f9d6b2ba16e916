/*
 * run_issue.c - stage 3: an instance starts. Waits for its slot and its staging (run_stage.c), then stores the operation's header,
 * which publishes small payloads with the same lines. Before: run.c's queue. After: run_step.c. Runs under the claim.
 */
#include <string.h>

#include "plan/run_internal.h"

uint32_t abci_call_hash(const struct abci_call_id *id)
{
    uint32_t hash = abci_chained(0, (uint32_t)id->collective | (uint32_t)id->type << 8 | (uint32_t)id->op << 16);
    hash = abci_chained(hash, id->root ^ id->algorithm);
    return abci_chained(hash, (uint32_t)id->count ^ (uint32_t)(id->count >> 32) * 0x85ebca6bu);
}

/* All peers must be done with the operation that used the slot 16 sequences ago. */
bool abci_slot_free(struct abci_engine *e, uint32_t sequence)
{
    if ((int32_t)(e->slots_free_to - sequence) >= 0 || abci_mutated("c5_slot_reused_early"))
        return true;
    uint32_t low = sequence + ABCI_SLOTS;
    for (int p = 0; p < e->shm->nranks; p++) {
        if (p == e->shm->rank)
            continue;
        if (!abci_shm_peer_done(&e->shm->peer[p], sequence - ABCI_SLOTS)) {
            abci_blocked_by(e, p);
            return false;
        }
        if ((int32_t)(low - e->shm->peer[p].done) > 0)
            low = e->shm->peer[p].done;
    }
    e->slots_free_to = low + ABCI_SLOTS;
    return true;
}

/* Do all of the instance's published blocks fit lines? Then which lines. */
static uint8_t inline_flags(const struct abci_instance *inst)
{
    const struct abci_runnable *run = inst->run;
    uint64_t in = run->publishes_in ? abci_part_end(&inst->shape, ABCI_IN) : 0;
    uint64_t out = run->publishes_out || run->plan->ntmp ? abci_part_end(&inst->shape, ABCI_OUT) : 0;
    if ((run->publishes_in && !run->in_by_lead) || in > ABCI_INLINE_HEADER || out > ABCI_INLINE_COUNTER ||
        ((run->publishes_out || run->plan->ntmp) && !run->single_values))
        return 0;
    if (run->plan->ntmp && abci_part_end(&inst->shape, ABCI_TMP) > ABCI_INLINE_COUNTER)
        return 0;
    return ABCI_COUNTER_PAYLOAD | (run->lead ? ABCI_HEADER_PAYLOAD : 0);
}

/* Copy the blocks of a buffer that the leading steps publish to `to`, laid out as an area. */
static void gather_lead(const struct abci_instance *inst, char *to)
{
    const char *user = abci_user(inst, ABCI_IN);
    for (uint32_t i = 0; i < inst->run->lead; i++) {
        struct abci_ref ref = inst->run->plan->steps[i].src;
        for (int k = 0; k < ref.count; k++) {
            struct abci_range r = abci_part_block(&inst->shape, ref.buffer, ref.block + k);
            if (r.bytes)
                memcpy(to + r.area, user + r.user, r.bytes);
        }
    }
}

static void fill_descriptors(struct abci_instance *inst, struct abci_header *h)
{
    for (int b = ABCI_IN; b <= ABCI_OUT; b++) {
        h->mode[b] = inst->mode[b];
        h->base[b] = 0;
        if (inst->mode[b] == ABCI_MODE_DIRECT)
            h->base[b] = inst->request->direct[b];
        else if (inst->mode[b] == ABCI_MODE_REMOTE)
            h->base[b] = (uint64_t)(uintptr_t)abci_user(inst, b);
        else if (inst->mode[b] == ABCI_MODE_STAGED)
            h->base[b] = inst->staging_offset + (uint64_t)(inst->stage[b] - inst->tmp);
    }
    h->region = inst->staging_offset;
    h->token = inst->token;
    h->arena = 0;
    if (inst->offered) {
        h->arena = ABCI_ARENA_OFFER | (inst->request->in_place ? ABCI_ARENA_IN_PLACE : 0);
        h->base[ABCI_OUT] = inst->request->direct[ABCI_OUT];
        if (inst->mode[ABCI_IN] != ABCI_MODE_STAGED) /* the other plan may not show IN here, the direct one always does */
            h->base[ABCI_IN] = inst->request->direct[ABCI_IN];
        return; /* whether IN is staged is not known before all ranks' offers */
    }
    bool eager = inst->mode[ABCI_IN] != ABCI_MODE_STAGED || abci_part_area(&inst->shape, ABCI_IN) <= ABCI_EAGER;
    if (!inst->run->lead || !eager)
        return;
    if (inst->mode[ABCI_IN] == ABCI_MODE_STAGED)
        gather_lead(inst, inst->stage[ABCI_IN]);
    h->counter0 = inst->run->lead_value;
    inst->first = inst->run->lead;
}

/* Store the header; its sequence last, which publishes everything before it to whoever loads it (run_step.c, abci_verify). */
static void store_header(struct abci_engine *e, struct abci_instance *inst)
{
    struct abci_header_slot *slot = abci_shm_header(e->shm->control, inst->sequence);
    struct abci_header *h = &slot->head;
    h->collective = inst->id.collective;
    h->type = inst->id.type;
    h->op = inst->id.op;
    h->flags = inst->flags;
    h->root = (uint16_t)inst->id.root;
    h->counter0 = 0;
    h->algorithm = inst->id.algorithm;
    h->count = inst->id.count;
    h->chain = inst->chain;
    h->done = e->reads_over;
    if (inst->flags & ABCI_COUNTER_PAYLOAD) {
        if (inst->flags & ABCI_HEADER_PAYLOAD)
            gather_lead(inst, (char *)abci_shm_payload(slot, abci_part_end(&inst->shape, ABCI_IN)));
        h->counter0 = inst->run->lead_value;
    } else {
        fill_descriptors(inst, h);
    }
    atomic_store_explicit(&h->sequence, inst->sequence,
                          abci_mutated("c10_relaxed_header") ? memory_order_relaxed
                                                             : memory_order_release); /* pairs with abci_verify */
    abci_shm_notify(e->shm);
}

static void leave_queue(struct abci_engine *e)
{
    e->queue = e->queue->next;
    if (!e->queue)
        e->queue_end = &e->queue;
}

/* May the queue's next chunk go now? */
static bool may_issue(struct abci_engine *e, const struct abc_request *q, const struct abci_instance *inst)
{
    return q && inst->state == ABCI_INSTANCE_FREE && !e->undecided && q->issued - q->finished < (uint64_t)e->pipeline &&
           abci_slot_free(e, e->next_sequence);
}

/* The operation's counts are known, and with short blocks it is over by that. 1 it is, 0 go on, ABC_PENDING, negative error. */
static int settle_counts(struct abci_engine *e, struct abc_request *q)
{
    struct abc_request *first = q->counts->first;
    if (!first || q->issued > 0)
        return 0;
    if (atomic_load_explicit(&first->state, memory_order_relaxed) != ABCI_REQUEST_COMPLETE)
        return ABC_PENDING; /* the exchange of counts is in flight */
    int status = abci_counts_settle(e, q);
    if (status != ABCI_DELIVERED)
        return status;
    q->first_sequence = first->first_sequence;
    abci_note(e, q, ABCI_EVENT_START, q->first_sequence, ABC_PENDING);
    leave_queue(e);
    abci_complete(e, q, ABC_OK, false);
    return 1;
}

/* Fill the instance for a chunk of the request, as far as that says nothing about where the bytes are. */
static void fill_instance(struct abci_engine *e, struct abci_instance *inst, struct abc_request *q, uint64_t chunk)
{
    inst->request = q;
    inst->run = q->run;
    inst->shape = q->shape;
    if (q->chunks > 1)
        abci_part_chunk(&inst->shape, q->chunk_bytes, chunk);
    inst->first = inst->ahead = 0;
    inst->at_step = UINT32_MAX;
    inst->reader = 0;
    memset(inst->verified, 0, sizeof inst->verified[0] * (size_t)((e->shm->nranks + 63) / 64));
}

/* Where the bytes will be: in lines, or in staging. laid_out: run_tiny.c has found the staging. ABC_PENDING: none is free. */
static int find_place(struct abci_engine *e, struct abci_instance *inst, bool laid_out)
{
    const struct abc_request *q = inst->request;
    inst->flags = inline_flags(inst);
    inst->offered = q->direct_run && q->issued == 0 && !laid_out && !inst->flags; /* a payload leaves no room for the offer */
    if (!laid_out || inst->flags) { /* what a header holds has not been laid out: the slot still says what its last user had */
        inst->region = NULL;
        inst->token = inst->gained = 0;
    }
    if (inst->flags) {
        inst->mode[ABCI_IN] = inst->mode[ABCI_OUT] = ABCI_MODE_NONE;
        inst->tmp = inst->tiny;
        inst->tmp_area = ABCI_INLINE_COUNTER;
        return ABC_OK;
    }
    return laid_out ? ABC_OK : abci_lay_out(e, inst);
}

/* The instance has its sequence; with its last chunk the request leaves the queue. */
static void set_in_flight(struct abci_engine *e, struct abci_instance *inst)
{
    struct abc_request *q = inst->request;
    inst->id = q->id;
    inst->id.sequence = inst->sequence;
    inst->chain = e->chain = abci_chained(e->chain, abci_call_hash(&inst->id));
    inst->state = inst->offered ? ABCI_INSTANCE_OFFER : ABCI_INSTANCE_STEPS;
    e->undecided = inst->offered && q->chunks > 1; /* how many sequences it takes is open */
    e->active |= 1u << (inst->sequence % ABCI_SLOTS);
    e->next_sequence = inst->sequence + 1;
    if (q->issued == 0)
        q->first_sequence = inst->sequence;
    if (++q->issued == q->chunks)
        leave_queue(e);
}

int abci_issue(struct abci_engine *e)
{
    struct abc_request *q = e->queue;
    struct abci_instance *inst = &e->instance[e->next_sequence % ABCI_SLOTS];
    int status = ABCI_UNLIKELY(q && q->counts) ? settle_counts(e, q) : 0;
    if (status != 0)
        return status == ABC_PENDING ? 0 : status;
    if (!may_issue(e, q, inst))
        return 0;
    bool laid_out = e->header_stored; /* by run_tiny.c, which has staged the input too where no header holds it */
    inst->sequence = e->next_sequence;
    fill_instance(e, inst, q, q->issued);
    status = find_place(e, inst, laid_out);
    if (status != ABC_OK)
        return status == ABC_PENDING ? 0 : status;
    set_in_flight(e, inst);
    if (inst->flags & ABCI_HEADER_PAYLOAD || laid_out)
        inst->first = inst->run->lead;
    if (laid_out) {
        e->header_stored = false; /* the same bytes, and the start is noted */
        return 1;
    }
    ABCI_HOOK(e->shm->rank, inst->sequence, ABCI_STOP_HEADER);
    store_header(e, inst);
    if (q->issued == 1)
        abci_note(e, q, ABCI_EVENT_START, inst->sequence, ABC_PENDING);
    return 1;
}

void abci_hand_over(struct abci_engine *e, struct abc_request *q, uint64_t chunk, uint32_t chain)
{
    uint32_t sequence = q->first_sequence + (uint32_t)chunk;
    struct abci_instance *inst = &e->instance[sequence % ABCI_SLOTS];
    inst->sequence = sequence;
    fill_instance(e, inst, q, chunk);
    inst->first = q->run->lead;
    inst->offered = false;
    inst->flags = inst->token = inst->gained = 0;
    inst->mode[ABCI_IN] = ABCI_MODE_STAGED;
    inst->mode[ABCI_OUT] = ABCI_MODE_NONE;
    inst->region = NULL;
    inst->stage[ABCI_IN] = inst->stage[ABCI_OUT] = inst->tmp = NULL;
    inst->id = q->id;
    inst->id.sequence = sequence;
    inst->chain = chain;
    inst->state = ABCI_INSTANCE_STEPS;
    e->active |= 1u << (sequence % ABCI_SLOTS);
}
