/*
 * run_offer.c - stage 3: operations whose buffers lie in the arena. No rank can know where the others' buffers lie before it has
 * seen their headers. So a rank whose own buffers peers can reach *offers* them in its header: base[OUT] is where peers may write.
 * When every rank has made the offer, all go on with the direct plan (src/algo/push.c), else all with the plan for any buffers: a
 * rank without an offer has not even waited, and what it has issued is what that plan needs. The direct plan takes one instance for
 * the whole operation, so later sequences wait for the decision if there would have been several chunks.
 *
 * Safety: an offer is made only for whole pages, and the caller gets the pages back either when every peer has signalled that it
 * wrote its part, or, after a failure, as private memory that no peer has mapped: whoever wakes up late writes into pages that
 * nobody uses any more. Runs under the claim. Cost of the offer: nothing when all agree; else the wait for one header.
 */
#include "plan/run_internal.h"

#define TILE (32u << 10)       /* bytes that stay in a near cache between the sum and its copies */
#define STREAM_FROM (2u << 20) /* bytes of a slice, see one_pass */

/* The staging that the other plan would have used goes back; peers do the same with theirs. */
static void give_back_staging(struct abci_engine *e, struct abci_instance *inst)
{
    if (inst->token)
        e->token[e->tokens++] = inst->token - 1;
    if (inst->region)
        inst->region->used = false;
    inst->token = inst->gained = 0;
    inst->region = NULL;
    inst->stage[ABCI_IN] = inst->stage[ABCI_OUT] = NULL;
}

/* One instance for the whole operation, by the direct plan. */
static void go_direct(struct abci_engine *e, struct abci_instance *inst)
{
    struct abc_request *q = inst->request;
    give_back_staging(e, inst);
    q->ran_direct = true;
    inst->run = q->direct_run;
    inst->shape = q->shape;
    inst->shape.nblocks = q->direct_run->plan->nblocks;
    inst->first = q->direct_run->lead; /* IN is published by the offer */
    inst->ahead = 0;
    if (q->chunks > 1) { /* it is still the queue's first */
        q->chunks = 1;
        e->queue = q->next;
        if (!e->queue)
            e->queue_end = &e->queue;
    }
}

int abci_offer_decide(struct abci_engine *e, struct abci_instance *inst)
{
    bool all = true;
    for (int r = 0; r < e->shm->nranks && all; r++) {
        if (r == e->shm->rank)
            continue;
        int found = inst->verified[r / 64] >> (r % 64) & 1 ? 1 : abci_verify(e, inst, r);
        if (found == 0)
            abci_blocked_by(e, r);
        if (found <= 0)
            return found;
        const struct abci_header *h = &abci_shm_header(e->shm->peer[r].control, inst->sequence)->head;
        all = !(h->flags & ABCI_COUNTER_PAYLOAD) && h->arena & ABCI_ARENA_OFFER;
    }
    if (inst->request->chunks > 1) /* else `undecided` speaks of a later operation */
        e->undecided = false;
    if (all)
        go_direct(e, inst);
    else
        inst->offered = false; /* all see the same headers: nobody writes */
    inst->state = ABCI_INSTANCE_STEPS;
    return 1;
}

void abci_offer_revoke(struct abci_instance *inst)
{
    const struct abc_request *q = inst->request;
    inst->offered = false;
    if (abci_mutated("c8_pages_stay_shared"))
        return;
    if (abci_segment_detach(q->out, q->shape.count * q->shape.element) != ABC_OK)
        ABCI_LOG(ABCI_LOG_ERROR, "plan", -1, "a peer that is late may still write to the output at %p: %s", (void *)q->out,
                 abci_error_text());
}

/*
 * With two ranks one pass can store both results. In place that is best: this rank has just read the lines that it overwrites. Out
 * of place the peer shares each line, having read its old output, and a plain vector store takes as long as to fetch it (8 GB/s
 * between distant cores). There a tile is summed first and copied then, by memcpy: its string instruction overwrites whole lines
 * without fetching them, and leaves them where the peer finds them. What outgrows the caches anyhow is streamed in one pass, in
 * place too: lines that were streamed once are slow to store to by plain stores. Measured with near and with distant cores:
 * docs/performance.md.
 */
static bool one_pass(const struct abci_instance *inst, uint64_t bytes)
{
    return inst->request->in_place || bytes >= STREAM_FROM;
}

int abci_spread(struct abci_engine *e, struct abci_instance *inst, const struct abci_step *s, struct abci_range to, char *dst,
                struct abci_reduction *how, int nsrc)
{
    const struct abci_peer *list = inst->run->plan->peers + s->peer;
    uint64_t element = inst->shape.element, tile = TILE / element * element;
    for (int k = 0; k < s->npeers; k++) {
        int status = abci_locate(e, inst, list[k].rank, 0, ABCI_OUT, to, &e->located[k]);
        if (status != ABC_OK)
            return status;
    }
    how->store = to.bytes < STREAM_FROM ? ABCI_STORE_PLAIN : ABCI_STORE_STREAM;
    struct abci_swap two = {.foreign = !s->own_at};
    if (s->npeers == 1 && !how->user && one_pass(inst, to.bytes)) {
        two.room = dst;
        abci_reduce_swap(how, (char *)(uintptr_t)e->located[0].local, e->sources, to.bytes / element, &two);
        return ABC_OK;
    }
    how->store = ABCI_STORE_PLAIN;
    for (uint64_t at = 0; at < to.bytes; at += tile) {
        uint64_t bytes = to.bytes - at < tile ? to.bytes - at : tile;
        for (int k = 0; at > 0 && k < nsrc; k++)
            e->sources[k] = (const char *)e->sources[k] + tile;
        if (s->npeers == 1)
            abci_reduce_swap(how, dst + at, e->sources, bytes / element, &two);
        else
            abci_reduce(how, dst + at, NULL, e->sources, nsrc, bytes / element);
        for (int k = 0; k < s->npeers; k++)
            abci_copy((char *)(uintptr_t)e->located[k].local + at, NULL, dst + at, bytes, ABCI_STORE_PLAIN);
    }
    return ABC_OK;
}
