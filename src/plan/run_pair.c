/*
 * run_pair.c - stage 3: two ranks exchange a long operation chunk by chunk, in one loop. The same headers, tokens and sequences as
 * the general machine's (run_issue.c, run_step.c), so that a peer cannot tell, and when it is late the general machine goes on
 * where this stops. What is gained: a chunk costs a few hundred instructions less; its header says at once that it is staged; and
 * the next input is staged where the peer's has just been read, in the same pass (abci_reduce_swap). Runs under the claim.
 */
#include <stddef.h>
#include <string.h>

#include "plan/price.h"
#include "plan/run_internal.h"

#define STRETCH (512u << 10) /* of the output, until it is found out anew how to store it */
#define PIECE (8u << 10)     /* at its beginning that is timed */
#define TILE (16u << 10)     /* stays in the nearest cache */
#define AHEAD 2048           /* as abci_reduce_swap fetches */
#define SLOW 3               /* times what reading takes */

/* The operation under way; positions in elements. */
struct pair {
    struct abc_request *q;
    const struct abci_peer *peer;
    int own_at; /* the own operand's place among the two */
    uint64_t element;
    struct abci_reduction how;
    double slow;    /* seconds for a piece from which on the output's lines may be elsewhere; 0: not looked at */
    uint64_t known; /* elements for which `tiled` holds */
    bool tiled;
    struct abci_cut cut;
    uint64_t shown, combined;        /* how far chunks are issued, are finished */
    uint32_t chain[ABCI_SLOTS];      /* of the chunks in flight, by their number */
    struct abci_header header;       /* what all headers of this rank have alike */
    char *memory[2 * ABCI_SWAPS];    /* staging of each token */
    uint64_t offset[2 * ABCI_SWAPS]; /* where that is in its segment */
};

/* What the general machine would do with this request's input: stage it. */
static bool is_staged(const struct abci_engine *e, const struct abc_request *q)
{
    return (q->run->plan->stage_in_place && q->in_place) ||
           (!q->is_direct[ABCI_IN] && !(e->machine.remote_from && e->shm->remote_for_all));
}

/* Is the chunk shown as this file would have shown it, and the peer's not combined yet? */
static bool has_come_so_far(const struct abci_instance *inst, const struct abc_request *q)
{
    return inst->request == q && inst->state == ABCI_INSTANCE_STEPS && inst->first == q->run->lead && inst->ahead == 0 &&
           !inst->region && !inst->offered && !inst->flags && inst->mode[ABCI_IN] == ABCI_MODE_STAGED;
}

/* Of the operations in flight the only one, or else the queue's first. NULL: there are several, or one waits for its readers. */
static struct abc_request *only_one(const struct abci_engine *e)
{
    uint32_t unread = e->next_sequence - e->reads_over - 1;
    if (e->messages || e->header_stored || e->reads_over_mask || (uint32_t)__builtin_popcount(e->active) != unread)
        return NULL;
    return unread ? e->instance[(e->reads_over + 1) % ABCI_SLOTS].request : e->queue;
}

/* The operation under way, if it is one for this file. */
static struct abc_request *candidate(const struct abci_engine *e)
{
    struct abc_request *q = only_one(e);
    if (!q || !q->pairs || !is_staged(e, q) || e->next_sequence - e->reads_over - 1 != q->issued - q->finished)
        return NULL;
    for (uint32_t s = e->reads_over + 1; s != e->next_sequence; s++)
        if (!has_come_so_far(&e->instance[s % ABCI_SLOTS], q))
            return NULL;
    return q;
}

/* Elements of a chunk. */
static uint64_t length_of(const struct pair *p, uint64_t chunk, uint64_t first)
{
    uint64_t most = p->q->shape.count - first, n = (p->cut.least + (chunk < p->cut.more)) * p->cut.unit;
    return n < most ? n : most;
}

/* The element with which a chunk begins. */
static uint64_t first_of(const struct pair *p, uint64_t chunk)
{
    struct abci_shape shape = p->q->shape;
    abci_part_cut_chunk(&shape, &p->cut, chunk);
    return shape.first;
}

/* What the headers of all chunks have alike. */
static void fill_header(struct abci_header *h, const struct abc_request *q)
{
    h->collective = q->id.collective;
    h->type = q->id.type;
    h->op = q->id.op;
    h->root = (uint16_t)q->id.root;
    h->counter0 = q->run->lead_value;
    h->algorithm = q->id.algorithm;
    h->count = q->id.count;
    h->mode[ABCI_IN] = ABCI_MODE_STAGED;
    h->mode[ABCI_OUT] = ABCI_MODE_NONE;
}

/* The chunks in flight are taken over from the general machine. */
static void enter(struct abci_engine *e, struct pair *p, struct abc_request *q)
{
    const struct abci_step *add = &q->run->plan->steps[q->run->lead];
    bool stream = !q->in_place && q->shape.count * q->shape.element >= e->stream_from / 2; /* measured: docs/performance.md */
    memset(&p->header, 0, sizeof p->header);
    p->q = q;
    p->peer = q->run->plan->peers + add->peer;
    p->own_at = add->own_at;
    p->element = q->shape.element;
    p->how = q->reduction;
    p->how.final = 1;
    p->how.store = stream ? ABCI_STORE_STREAM : ABCI_STORE_PLAIN;
    bool look = !stream && !q->in_place && e->stream_from != UINT64_MAX && e->machine.price.hand_off >= ABCI_DISTANT;
    p->slow = look ? e->machine.price.hand_off + SLOW * PIECE * e->machine.price.read : 0;
    p->known = 0;
    p->tiled = false;
    p->cut = abci_part_cut(&q->shape, q->chunk_bytes);
    p->shown = first_of(p, q->issued);
    p->combined = first_of(p, q->finished);
    fill_header(&p->header, q);
    for (int t = 0; t < 2 * ABCI_SWAPS; t++) {
        p->memory[t] = abci_token_memory(e, t);
        p->offset[t] = abci_token_offset(e, t);
    }
    for (uint32_t s = e->reads_over + 1; s != e->next_sequence; s++) {
        p->chain[(s - q->first_sequence) % ABCI_SLOTS] = e->instance[s % ABCI_SLOTS].chain;
        e->instance[s % ABCI_SLOTS].state = ABCI_INSTANCE_FREE;
    }
    e->active = 0;
}

/* What is in flight becomes the general machine's. */
static void leave(struct abci_engine *e, const struct pair *p)
{
    for (uint64_t chunk = p->q->finished; chunk < p->q->issued; chunk++)
        abci_hand_over(e, p->q, chunk, p->chain[chunk % ABCI_SLOTS]);
}

/* May the next chunk be issued, when so many more are finished and so many tokens more are gained? */
static bool may_issue(struct abci_engine *e, const struct pair *p, int more)
{
    const struct abc_request *q = p->q;
    return q->issued < q->chunks && q->issued - q->finished < (uint64_t)e->pipeline + (uint64_t)more && e->tokens + more > 0 &&
           abci_slot_free(e, e->next_sequence);
}

/* Put the next chunk in flight, in the token that this rank has read last. */
static void issue(struct abci_engine *e, struct pair *p, bool filled)
{
    struct abc_request *q = p->q;
    uint32_t sequence = e->next_sequence;
    uint64_t n = length_of(p, q->issued, p->shown);
    int token = abci_token_take(e);
    if (!filled)
        abci_copy(p->memory[token], NULL, q->in + p->shown * p->element, n * p->element, ABCI_STORE_PLAIN);
    if (q->issued == 0) {
        q->first_sequence = sequence;
        abci_note(e, q, ABCI_EVENT_START, sequence, ABC_PENDING);
    }
    ABCI_HOOK(e->shm->rank, sequence, ABCI_STOP_HEADER);
    struct abci_header *h = &abci_shm_header(e->shm->control, sequence)->head;
    p->header.chain = e->chain = p->chain[q->issued % ABCI_SLOTS] = abci_chained(e->chain, abci_call_hash(&q->id));
    p->header.done = e->reads_over;
    p->header.base[ABCI_IN] = p->offset[token];
    p->header.token = (uint8_t)(token + 1);
    memcpy(&h->collective, &p->header.collective, sizeof *h - offsetof(struct abci_header, collective));
    atomic_store_explicit(&h->sequence, sequence, memory_order_release); /* pairs with is_shown and abci_verify */
    abci_shm_notify(e->shm);
    e->next_sequence = sequence + 1;
    p->shown += n;
    if (++q->issued == q->chunks) {
        e->queue = q->next;
        if (!e->queue)
            e->queue_end = &e->queue;
    }
}

/* Has the peer shown its chunk, of the same call? What differs, or lies elsewhere than in a token, is for the general machine. */
static bool is_shown(struct abci_engine *e, const struct pair *p, const struct abci_header *h, uint32_t sequence)
{
    /* pairs with issue, and store_header in run_issue.c */
    if (atomic_load_explicit(&h->sequence, memory_order_acquire) != sequence)
        return false;
    if (h->counter0 < p->peer->value &&
        !abci_shm_reached(abci_shm_counter(e->shm->peer[p->peer->rank].control, sequence, 0), sequence, p->peer->value))
        return false;
    const struct abci_header *own = &p->header;
    return h->collective == own->collective && h->type == own->type && h->op == own->op && h->root == own->root &&
           h->count == own->count && h->algorithm == own->algorithm && h->chain == p->chain[p->q->finished % ABCI_SLOTS] &&
           h->mode[ABCI_IN] == ABCI_MODE_STAGED && !h->flags && h->token - 1u < 2 * ABCI_SWAPS &&
           h->base[ABCI_IN] == p->offset[h->token - 1];
}

/* A sum of n elements under way: each of its parts moves it on. */
struct span {
    char *out;
    const char *operand[2];
    struct abci_swap swap;
};

/* Combine the next n elements. tiled: into a tile, which memcpy puts to the output without fetching its lines. */
static void advance(const struct pair *p, struct span *s, uint64_t n, bool tiled)
{
    _Alignas(64) char tile[TILE];
    const uint64_t most = tiled ? TILE / p->element : n;
    for (; n > 0; n -= most < n ? most : n) {
        uint64_t count = most < n ? most : n, bytes = count * p->element;
        abci_reduce_swap(&p->how, tiled ? tile : s->out, (const void *const[]){s->operand[0], s->operand[1]}, count, &s->swap);
        if (tiled)
            abci_copy(s->out, NULL, tile, bytes, ABCI_STORE_PLAIN);
        s->out += bytes;
        s->operand[0] += bytes;
        s->operand[1] += bytes;
        if (s->swap.room) {
            s->swap.room = (char *)s->swap.room + bytes;
            s->swap.next = (const char *)s->swap.next + bytes;
        }
    }
}

/* The same for a piece; the seconds that it takes. What comes after it is asked for, as if there were no end. */
static double advance_timed(const struct pair *p, struct span *s, uint64_t n)
{
    const char *after = s->operand[!p->own_at] + n * p->element;
    double start = abci_now();
    for (int line = 0; line < AHEAD; line += ABCI_LINE)
        __builtin_prefetch(after + line);
    advance(p, s, n, false);
    return abci_now() - start;
}

/*
 * Another core may have read the output since it was written, and a vector store to such a line waits for it to be fetched back:
 * four times as long between distant cores. By way of a tile it is less than twice as long, but a quarter more than necessary where
 * the lines are this core's. So a piece at the beginning of each stretch tells.
 */
static void combine_span(struct pair *p, struct span *s, uint64_t n)
{
    const uint64_t piece = PIECE / p->element;
    while (n > 0) {
        if (p->slow > 0 && p->known == 0 && n > piece) {
            p->tiled = advance_timed(p, s, piece) > p->slow;
            p->known = STRETCH / p->element;
            n -= piece;
        }
        const bool known = p->known > 0;
        const uint64_t count = known && p->known < n ? p->known : n;
        advance(p, s, count, known && p->tiled);
        p->known -= known ? count : 0;
        n -= count;
    }
}

/*
 * Combine n elements with the peer's, `theirs`. The input of the next chunk, `next` elements of it, is put where they were; chunks
 * do not grow.
 */
static void combine(struct pair *p, char *theirs, uint64_t n, uint64_t next)
{
    uint64_t at = p->combined * p->element;
    struct span s = {.out = p->q->out + at,
                     .swap = {.foreign = !p->own_at, .room = theirs, .next = p->q->in + p->shown * p->element}};
    s.operand[p->own_at] = p->q->in + at;
    s.operand[!p->own_at] = theirs;
    combine_span(p, &s, next);
    s.swap.room = NULL;
    combine_span(p, &s, n - next);
}

/* The peer's header of the chunk; NULL: it is late, and the general machine waits. */
static const struct abci_header *await_chunk(struct abci_engine *e, const struct pair *p, uint32_t sequence)
{
    const struct abci_header *h = &abci_shm_header(e->shm->peer[p->peer->rank].control, sequence)->head;
    /* Only at first: once a wait has begun, wait.c counts its spins, yields, sleeps and finds a dead peer, with one look here a
     * pass. */
    bool waits = e->waiting.spins || e->waiting.since != 0;
    for (uint32_t polls = waits ? 0 : e->shm->wait.spins; !is_shown(e, p, h, sequence); polls--) {
        if (polls == 0)
            return NULL;
        abci_shm_relax(e->shm, polls, &(uint16_t){(uint16_t)p->peer->rank}, 1);
    }
    return h;
}

/* Finish a chunk, and issue the next one. 1; 0: the peer is late; negative: the communicator has failed. */
static int exchange(struct abci_engine *e, struct pair *p)
{
    struct abc_request *q = p->q;
    uint32_t sequence = e->reads_over + 1;
    const struct abci_header *h = await_chunk(e, p, sequence);
    if (!h)
        return 0;
    uint8_t token = h->token;
    uint64_t n = length_of(p, q->finished, p->combined);
    e->shm->peer[p->peer->rank].done = h->done;
    bool fill = may_issue(e, p, 1);
    ABCI_HOOK(e->shm->rank, sequence, (int)q->run->lead);
    combine(p, p->memory[token - 1], n, fill ? length_of(p, q->issued, p->shown) : 0);
    __builtin_prefetch(&abci_shm_header(e->shm->peer[p->peer->rank].control, sequence + 1)->head); /* written, as a rule */
    p->combined += n;
    q->finished++;
    abci_reads_over(e, sequence, token);
    ABCI_HOOK(e->shm->rank, sequence, ABCI_STOP_LAST);
    atomic_thread_fence(memory_order_acquire); /* all reads of the peer's memory before the last look at the record */
    if (abci_shm_failed(e->shm) && !abci_mutated("c7_last_look"))
        return ABC_ERR_PEER;
    if (fill)
        issue(e, p, true);
    return 1;
}

int abci_pair_run(struct abci_engine *e, struct abc_request **over)
{
    struct pair p;
    struct abc_request *q = candidate(e);
    int moved = 0, r = 1;
    *over = NULL;
    if (!q)
        return 0;
    enter(e, &p, q);
    while (r > 0 && q->finished < q->chunks) {
        for (; may_issue(e, &p, 0); moved = 1)
            issue(e, &p, false);
        r = q->finished < q->issued ? exchange(e, &p) : 0;
        moved |= r > 0;
    }
    leave(e, &p);
    if (r < 0)
        return r;
    if (q->finished == q->chunks)
        *over = q;
    return moved;
}
