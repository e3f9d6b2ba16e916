/*
 * run_recv.c - stage 3: the receiving end of messages. Arrived messages are matched in the order in which they were sent with
 * receives in the order in which they were started; what nobody has asked for stays in its sender's mailbox. Long messages are
 * pulled a piece a pass, one a pair at a time. Under the claim; allocates only for the first message from a peer. Cost of a short
 * message: one line from the sender.
 */
#include <errno.h>
#include <string.h>

#include "plan/run_mail.h"

static int cannot(struct abci_engine *e, int status, int peer)
{
    abci_shm_fail(e->shm, status, peer, NULL, NULL, "rank %d: %s", e->shm->rank, abci_error_text());
    return status;
}

static int make_inbound(struct abci_engine *e, int peer)
{
    struct abci_inbound *in = abci_alloc(sizeof *in);
    if (!in)
        return cannot(e, abci_error(ABC_ERR_MEMORY, "no memory for messages from rank %d", peer), peer);
    in->number = 1;
    in->pulls_end = &in->pulls;
    e->mail->in[peer] = in;
    return ABC_OK;
}

/* The receiving end with its mailbox; NULL when the peer has sent nothing so far. */
static int inbound_of(struct abci_engine *e, int peer, struct abci_inbound **result)
{
    struct abci_inbound *in = e->mail->in[peer];
    int status = ABC_OK;
    *result = in;
    if (ABCI_LIKELY(in && in->box))
        return ABC_OK;
    *result = NULL;
    struct abci_mailbox *box = abci_mail_find(e->shm, peer, &status);
    if (status != ABC_OK)
        return cannot(e, status, peer);
    if (!box)
        return ABC_OK;
    if (!in)
        status = make_inbound(e, peer);
    if (status == ABC_OK) {
        *result = in = e->mail->in[peer];
        in->box = box;
    }
    return status;
}

/* ---- One message and its receive ---- */

/*
 * Whose is the head of a message that has been read? One of this rank's own comes home. One of the sender's is kept for the next
 * message to it, to write where this rank has read, unless there is one already or nothing was ever sent there.
 */
__attribute__((noinline)) static void sort_head(struct abci_engine *e, struct abci_inbound *in, int slot, int source)
{
    const struct abci_mail_slot *s = &in->box->slot[slot];
    struct abci_outbound *out = e->mail->out[source];
    uint64_t bit = 1ull << slot;
    bool in_head = s->mode == ABCI_MAIL_IN_HEAD, keeps = in_head && !s->lent && out && !out->foreign;
    if (in_head && s->lent && out)
        abci_send_regain(e, source, s->head);
    if (keeps) {
        out->foreign = abci_segment_at(e->shm->peer[source].segment, s->head, ABCI_MAIL_HEAD);
        out->foreign_at = s->head;
        keeps = out->foreign != NULL;
    }
    if (keeps == (in->kept >> slot & 1))
        return;
    in->kept ^= bit;
    atomic_store_explicit(&in->box->kept, in->kept, memory_order_relaxed); /* ordered by `taken`; see head_over */
}

/* The sender may use the slot again. */
static void take(struct abci_engine *e, struct abci_inbound *in, int slot, int source)
{
    if (in->box->slot[slot].mode >= ABCI_MAIL_IN_HEAD)
        sort_head(e, in, slot, source);
    in->taken ^= 1ull << slot;
    abci_mail_tell(e->shm, &in->box->taken, in->taken);
}

/* Everything has been read. The last look at the record comes after that: what a dead communicator brought is not believed. */
static int finish(struct abci_engine *e, struct abci_inbound *in, struct abc_request *q)
{
    ABCI_HOOK(e->shm->rank, (uint32_t)q->mail.number, ABCI_STOP_TAKE);
    atomic_thread_fence(memory_order_acquire); /* all reads of the sender's memory before the look */
    if (abci_shm_failed(e->shm) && !abci_mutated("c7_mail_last_look"))
        return ABC_ERR_PEER;
    take(e, in, q->mail.slot, q->mail.source);
    abci_mail_complete(e, q, ABC_OK);
    return 1;
}

static struct abci_segment *head_segment(const struct abci_engine *e, const struct abci_mail_slot *s, int source)
{
    return e->shm->peer[s->lent ? e->shm->rank : source].segment;
}

/* Where the bytes of a short message are; NULL: it is long, or cannot be mapped (the general way says so). */
static const char *short_bytes(struct abci_engine *e, const struct abci_inbound *in, int slot, int source, uint64_t bytes)
{
    const struct abci_mail_slot *s = &in->box->slot[slot];
    if (s->mode == ABCI_MAIL_IN_LINE && bytes <= ABCI_MAIL_LINE)
        return (const char *)s->payload;
    if (s->mode == ABCI_MAIL_IN_PAGE && bytes <= ABCI_MAIL_EAGER)
        return (const char *)in->box->page[slot];
    if (s->mode == ABCI_MAIL_IN_HEAD && bytes <= ABCI_MAIL_HEAD)
        return abci_segment_at(head_segment(e, s, source), s->head, bytes);
    return NULL;
}

/* The message is for this receive. 1: complete, or being pulled. Negative: the communicator has failed, the receive is nowhere. */
static int deliver(struct abci_engine *e, struct abc_request *q, int source, int slot)
{
    struct abci_inbound *in = e->mail->in[source];
    const struct abci_mail_slot *s = &in->box->slot[slot];
    q->mail.source = source;
    q->mail.slot = (uint8_t)slot;
    q->mail.number = s->number;
    q->mail.got_tag = s->tag;
    q->mail.got_count = s->count;
    q->mail.got_type = s->type;
    if ((s->type != q->id.type || s->count > q->id.count) && !abci_mutated("c6_mail_not_compared")) {
        q->mail.refused = true;
        take(e, in, slot, source);
        abci_mail_complete(e, q, ABC_ERR_MISMATCH);
        return 1;
    }
    uint64_t bytes = s->count * q->shape.element;
    const char *from = short_bytes(e, in, slot, source, bytes);
    if (from) {
        if (bytes)
            memcpy(q->out, from, bytes);
        return finish(e, in, q);
    }
    q->mail.mode = s->mode;
    q->mail.bytes = bytes;
    abci_mail_append(&in->pulls_end, q);
    e->mail->receiving[source / 64] |= 1ull << ((uint32_t)source % 64);
    return 1;
}

/* ---- Matching ---- */

static bool fits(const struct abc_request *q, int source, int tag)
{
    return (q->mail.peer == source || q->mail.peer == ABC_ANY_SOURCE) && (q->tag == tag || q->tag == ABC_ANY_TAG);
}

/* The first posted receive that the message fits; taken out of the list. */
static struct abc_request *claim_posted(struct abci_engine *e, int source, int tag)
{
    struct abci_mailroom *m = e->mail;
    for (struct abc_request **at = &m->posted; *at; at = &(*at)->next) {
        struct abc_request *q = *at;
        if (!fits(q, source, tag))
            continue;
        *at = q->next;
        if (m->posted_end == &q->next)
            m->posted_end = at;
        if (q->mail.peer == ABC_ANY_SOURCE) {
            m->any--;
            m->turn = (source + 1) % e->shm->nranks;
        } else {
            m->in[source]->posted--;
        }
        return q;
    }
    return NULL;
}

/* A receive that has no message yet. */
static int post(struct abci_engine *e, struct abc_request *q)
{
    struct abci_mailroom *m = e->mail;
    int source = q->mail.peer;
    if (source == ABC_ANY_SOURCE) {
        m->any++;
    } else {
        if (!m->in[source] && make_inbound(e, source) != ABC_OK)
            return ABC_ERR_MEMORY;
        m->in[source]->posted++;
        m->receiving[source / 64] |= 1ull << (source % 64);
    }
    abci_mail_append(&m->posted_end, q);
    return 0;
}

/* Look for arrived messages of a source, at most so many; give them to receives, or hold them. 1 some, 0 none, negative: failed. */
static int look(struct abci_engine *e, int source, int most)
{
    struct abci_inbound *in;
    int moved = 0, status = inbound_of(e, source, &in);
    if (status != ABC_OK || !in)
        return status;
    for (; most > 0 && abci_mail_arrived(&in->box->slot[in->next], in->number); most--) {
        int slot = in->next;
        const struct abci_mail_slot *s = &in->box->slot[slot];
        struct abc_request *q = claim_posted(e, source, s->tag);
        in->next = s->next % ABCI_MAIL_SLOTS;
        in->number++;
        moved = 1;
        if (q) {
            int r = deliver(e, q, source, slot);
            if (r < 0) {
                abci_mail_append(&e->mail->posted_end, q); /* it fails with the rest */
                return r;
            }
        } else if (in->nheld < ABCI_MAIL_SLOTS) {
            in->held[in->nheld++] = (uint8_t)slot;
        }
    }
    return moved;
}

/* A held message of the source for a receive that starts. 1 found, 0 none, negative: failed. */
static int try_held(struct abci_engine *e, struct abc_request *q, int source)
{
    struct abci_inbound *in = e->mail->in[source];
    for (int i = 0; in && i < in->nheld; i++) {
        int slot = in->held[i];
        if (!fits(q, source, in->box->slot[slot].tag))
            continue;
        memmove(&in->held[i], &in->held[i + 1], (size_t)(in->nheld - i - 1));
        in->nheld--;
        return deliver(e, q, source, slot);
    }
    return 0;
}

#define KEEN 100 /* as in run_tiny.c: so many looks follow each other at once */

/*
 * Nothing is posted, so the next message of the peer is for this receive if it fits. What does not fit, is long or comes after the
 * end of the communicator is left as it is.
 */
bool abci_receive_brief(struct abci_engine *e, const struct abci_brief *b)
{
    struct abci_inbound *in = e->mail->in[b->peer];
    uint32_t polls = e->shm->wait.spins, relax = polls > KEEN ? polls - KEEN : 0, clock = e->shm->events->clock;
    if (!in || !in->box || in->nheld || b->peer == e->shm->rank)
        return false;
    int slot = in->next;
    const struct abci_mail_slot *s = &in->box->slot[slot];
    uint64_t looked = abci_event_ticks(clock); /* 10 ns, spent where the call waits anyway */
    for (; !abci_mail_arrived(s, in->number); looked = abci_event_ticks(clock)) {
        if (polls-- == 0)
            return false;
        if (polls < relax)
            abci_shm_relax(e->shm, polls, &(uint16_t){(uint16_t)b->peer}, 1);
    }
    if ((s->tag != b->tag && b->tag != ABC_ANY_TAG) || s->type != b->type || s->count > b->count)
        return false;
    uint64_t bytes = s->count * b->element;
    const char *from = short_bytes(e, in, slot, b->peer, bytes);
    if (!from)
        return false;
    memcpy(b->out, from, bytes);
    abc_received got = {.source = b->peer, .tag = s->tag, .count = s->count, .type = (abc_type)s->type};
    uint8_t next = s->next % ABCI_MAIL_SLOTS;
    ABCI_HOOK(e->shm->rank, (uint32_t)in->number, ABCI_STOP_TAKE);
    atomic_thread_fence(memory_order_acquire); /* as in finish */
    if (abci_shm_failed(e->shm) && !abci_mutated("c7_brief_last_look"))
        return false;
    in->next = next;
    take(e, in, slot, b->peer);
    if (b->received)
        *b->received = got;
    abci_mail_note(e, b, in->number++, looked);
    return true;
}

int abci_receive_first(struct abci_engine *e, struct abc_request *q)
{
    int n = e->shm->nranks, source = q->mail.peer, first = e->mail->turn; /* others' matches move the turn on meanwhile */
    bool any = source == ABC_ANY_SOURCE;
    for (int k = 0; k < (any ? n : 1); k++) {
        int from = any ? (first + k) % n : source;
        int r = look(e, from, ABCI_MAIL_SLOTS);
        if (r >= 0)
            r = try_held(e, q, from);
        if (r < 0)
            return r;
        if (r > 0 && any)
            e->mail->turn = (from + 1) % n;
        if (r > 0)
            return 1;
    }
    return post(e, q);
}

/* ---- Long messages ---- */

/* What is there of the message already. 1 something, 0 nothing, negative: failed. */
static int copy_head(struct abci_engine *e, struct abci_inbound *in, struct abc_request *q, int source)
{
    uint64_t head = in->box->slot[q->mail.slot].head, n = q->mail.bytes < ABCI_MAIL_HEAD ? q->mail.bytes : ABCI_MAIL_HEAD;
    const char *from = head ? abci_segment_at(e->shm->peer[source].segment, head, n) : NULL;
    if (head && !from)
        return cannot(e, abci_error(ABC_ERR_MEMORY, "cannot map the shared memory of rank %d (ulimit -v?)", source), source);
    if (head) {
        abci_copy(q->out, NULL, from, n, q->mail.bytes >= e->stream_from ? ABCI_STORE_STREAM : ABCI_STORE_PLAIN);
        q->mail.moved = n;
    }
    return head != 0;
}

/* Tiles of the message: ask for them, then copy what is there. The sender fills tiles while the head is being copied. */
static int drain_tiles(struct abci_engine *e, struct abci_inbound *in, struct abc_request *q, int source)
{
    struct abci_mailbox *box = in->box;
    int moved = 0;
    if (q->mail.moved == 0 && atomic_load_explicit(&box->wanted, memory_order_relaxed) != q->mail.number) {
        abci_mail_tell(e->shm, &box->wanted, q->mail.number);
        if (copy_head(e, in, q, source) < 0)
            return ABC_ERR_MEMORY;
        moved = 1;
    }
    uint64_t filled = abci_mail_seen(&box->filled);
    const char *from = NULL;
    if (filled != in->drained)
        from = abci_segment_at(e->shm->peer[source].segment, box->tiles, ABCI_MAIL_TILE * ABCI_MAIL_TILES);
    if (filled != in->drained && !from)
        return cannot(e, abci_error(ABC_ERR_MEMORY, "cannot map the tiles of rank %d (ulimit -v?)", source), source);
    for (; in->drained != filled && q->mail.moved < q->mail.bytes; moved = 1) {
        uint64_t left = q->mail.bytes - q->mail.moved, tiles = abci_mail_group(q, in->drained);
        tiles = tiles < filled - in->drained ? tiles : filled - in->drained;
        uint64_t n = tiles * ABCI_MAIL_TILE < left ? tiles * ABCI_MAIL_TILE : left;
        abci_copy(q->out + q->mail.moved, NULL, from + in->drained % ABCI_MAIL_TILES * ABCI_MAIL_TILE, n,
                  q->mail.bytes >= e->stream_from ? ABCI_STORE_STREAM : ABCI_STORE_PLAIN);
        q->mail.moved += n;
        in->drained += tiles;
        abci_mail_tell(e->shm, &box->drained, in->drained);
    }
    return moved;
}

/* Read a piece of a message in memory that is mapped here. */
static int read_piece(struct abci_engine *e, struct abci_inbound *in, struct abc_request *q, int source)
{
    uint64_t left = q->mail.bytes - q->mail.moved, n = left < ABCI_MAIL_QUANTUM ? left : ABCI_MAIL_QUANTUM;
    const struct abci_mail_slot *s = &in->box->slot[q->mail.slot];
    uint64_t from = (q->mail.mode == ABCI_MAIL_IN_HEAD ? s->head : s->place) + q->mail.moved;
    char *to = q->out + q->mail.moved;
    struct abci_segment *segment = q->mail.mode == ABCI_MAIL_IN_HEAD ? head_segment(e, s, source) : e->shm->peer[source].segment;
    const char *src = q->mail.mode == ABCI_MAIL_OWN ? (const char *)(uintptr_t)from : abci_segment_at(segment, from, n);
    if (!src)
        return cannot(e, abci_error(ABC_ERR_MEMORY, "cannot map the shared memory of rank %d (ulimit -v?)", source), source);
    abci_copy(to, NULL, src, n, q->mail.bytes >= e->stream_from ? ABCI_STORE_STREAM : ABCI_STORE_PLAIN);
    q->mail.moved += n;
    return 1;
}

/* ---- Private messages: through tiles, or by process_vm_readv ---- */

/* The first messages of a length go by turns, later ones by the quicker way; but the 16th, 32nd, 64th and each 128th by the other,
 * for buffers and distances change. */
#define TRIALS 6
#define AGAIN 128
#define UNTIMED (-1.)

static struct abci_mail_pace *pace_of(struct abci_inbound *in, uint64_t bytes)
{
    int class = bytes < ABCI_MAIL_REMOTE ? -1 : 47 - __builtin_clzll(bytes); /* 64 KiB have 47 zeros before their one */
    return class < 0 ? NULL : &in->pace[in->both_ways][class < ABCI_MAIL_CLASSES ? class : ABCI_MAIL_CLASSES - 1];
}

/* How dear process_vm_readv is depends on the pages of both buffers, and tiles on what the sender does meanwhile. */
static enum abci_mail_way choose_way(const struct abci_engine *e, struct abci_inbound *in, int source, uint64_t bytes)
{
    struct abci_mail_pace *p = pace_of(in, bytes);
    if (!e->shm->peer[source].readable)
        return ABCI_WAY_TILES;
    if (e->mail->only_remote)
        return ABCI_WAY_REMOTE;
    if (!p)
        return ABCI_WAY_TILES;
    uint32_t n = p->messages++;
    if (n < TRIALS)
        return n % 2 ? ABCI_WAY_REMOTE : ABCI_WAY_TILES;
    bool remote = p->cost[ABCI_WAY_REMOTE] <= p->cost[ABCI_WAY_TILES];
    bool other = n % AGAIN == 0 || (n >= 16 && (n & (n - 1)) == 0);
    return remote != other ? ABCI_WAY_REMOTE : ABCI_WAY_TILES;
}

/* A wait of another kind may be in a single time, so it counts twice what is known at most. */
static void note_pace(struct abci_inbound *in, uint64_t bytes)
{
    struct abci_mail_pace *p = pace_of(in, bytes);
    if (!p || in->began == UNTIMED)
        return;
    float now = (float)((abci_now() - in->began) / (double)bytes), *cost = &p->cost[in->way];
    if (*cost == 0)
        *cost = now;
    else if (now < *cost) /* soon: the tiles' first touches were in the times before */
        *cost -= (*cost - now) * 3 / 4;
    else
        *cost += (now < 2 * *cost ? now - *cost : *cost) / 4;
}

/* By process_vm_readv. Where that is no longer possible the message begins again, through tiles; so it does when its sender is
 * dead. */
static int read_remote(struct abci_engine *e, struct abci_inbound *in, struct abc_request *q, int source)
{
    uint64_t left = q->mail.bytes - q->mail.moved, n = left < ABCI_MAIL_QUANTUM ? left : ABCI_MAIL_QUANTUM;
    uint64_t from = in->box->slot[q->mail.slot].place + q->mail.moved;
    if (abci_shm_read_remote(e->shm, source, q->out + q->mail.moved, from, n) == ABC_OK) {
        q->mail.moved += n;
        if (q->mail.moved < q->mail.bytes || !abci_shm_peer_gone(e->shm, source))
            return 1; /* it has lived until now, so its number has not become another process's */
    } else {
        ABCI_LOG(ABCI_LOG_INFO, "plan", e->shm->rank,
                 "the memory of rank %d cannot be read (%s): messages are copied through tiles", source, strerror(errno));
    }
    e->shm->peer[source].readable = false;
    in->way = ABCI_WAY_TILES;
    q->mail.moved = 0;
    return 1;
}

static int pull_private(struct abci_engine *e, struct abci_inbound *in, struct abc_request *q, int source)
{
    if (in->began == 0) {
        in->both_ways = e->mail->out[source] && e->mail->out[source]->waiting;
        in->way = choose_way(e, in, source, q->mail.bytes);
        in->began = e->shm->peer[source].readable ? abci_now() : UNTIMED;
    }
    int moved = in->way == ABCI_WAY_REMOTE ? read_remote(e, in, q, source) : drain_tiles(e, in, q, source);
    if (moved >= 0 && q->mail.moved == q->mail.bytes) {
        note_pace(in, q->mail.bytes);
        in->began = 0;
    }
    return moved;
}

/* The first message that is being pulled from this source. */
static int pull(struct abci_engine *e, int source)
{
    struct abci_inbound *in = e->mail->in[source];
    struct abc_request *q = in->pulls;
    int moved = q->mail.mode == ABCI_MAIL_PRIVATE ? pull_private(e, in, q, source) : read_piece(e, in, q, source);
    if (moved < 0 || q->mail.moved < q->mail.bytes)
        return moved;
    abci_mail_pop(&in->pulls, &in->pulls_end);
    int r = finish(e, in, q);
    if (r < 0)
        abci_mail_append(&in->pulls_end, q); /* it fails with the rest */
    return r;
}

int abci_receive_advance(struct abci_engine *e, int source)
{
    struct abci_inbound *in = e->mail->in[source];
    int moved = 0;
    if (in->posted) {
        moved = look(e, source, ABCI_MAIL_SLOTS);
        if (moved < 0)
            return moved;
    }
    if (in->pulls && !e->starting) {
        int r = pull(e, source);
        if (r < 0)
            return r;
        moved |= r;
    }
    if (!in->posted && !in->pulls)
        e->mail->receiving[source / 64] &= ~(1ull << (source % 64));
    else if (source != e->shm->rank)
        abci_blocked_by(e, source);
    return moved;
}

/* Receives from any source: one message of each source in turn. Waits for all peers that can still send. */
int abci_receive_any(struct abci_engine *e)
{
    struct abci_mailroom *m = e->mail;
    int n = e->shm->nranks, moved = 0, first = m->turn, alive = 0;
    for (int k = 0; k < n && m->any; k++) {
        int r = look(e, (first + k) % n, 1);
        if (r < 0)
            return r;
        moved |= r;
    }
    if (moved || !m->any)
        return moved;
    for (int r = 0; r < n; r++) {
        uint64_t left = atomic_load_explicit(&e->shm->control->left[r / 64], memory_order_acquire); /* pairs with abci_shm_leave */
        if (r == e->shm->rank || left >> (r % 64) & 1)
            continue;
        alive++;
        abci_blocked_by(e, r);
    }
    if (alive == 0 && n > 1)
        abci_blocked_by(e, e->shm->rank == 0 ? 1 : 0); /* nobody is left to send: that ends the wait */
    return 0;
}
