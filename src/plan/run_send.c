/*
 * run_send.c - stage 3: the sending end of messages. A short message is copied into the mailbox and is over at once; a long one
 * stays with its sender until the receiver has taken it: it is read where it is, or copied through tiles when the receiver asks for
 * it. Without a free slot the message waits, and those behind it to the same peer, too: that bounds the memory, and keeps the
 * order. Under the claim; allocates only for the first message to a peer. Cost of a short one: one line to the receiver.
 */
#include <string.h>

#include "plan/run_mail.h"

#define WARM_PIECE 4096u
#define LOW_SLOTS 16 /* the slots that a slow talk uses: few lines, which stay in the caches */

static int cannot(struct abci_engine *e, int status)
{
    abci_shm_fail(e->shm, status, e->shm->rank, NULL, NULL, "rank %d: %s", e->shm->rank, abci_error_text());
    return status;
}

static int outbound_of(struct abci_engine *e, int peer, struct abci_outbound **result)
{
    struct abci_outbound *out = e->mail->out[peer];
    int status = ABC_OK;
    *result = out;
    if (out)
        return ABC_OK;
    out = abci_alloc(sizeof *out);
    if (!out)
        status = abci_error(ABC_ERR_MEMORY, "no memory for messages to rank %d", peer);
    else
        out->box = abci_mail_open(e->shm, peer, &status);
    if (status != ABC_OK) {
        abci_free(out);
        return cannot(e, status);
    }
    out->pending_end = &out->pending;
    e->mail->out[peer] = *result = out;
    return ABC_OK;
}

/*
 * The slot after the next one: free, low. What the receiver has taken is looked at only when the low ones seem to be in use, since
 * that line comes from the receiver. Acquire: pairs with abci_mail_tell; the receiver has read what will be overwritten.
 */
static bool find_slot(struct abci_outbound *out, uint8_t *after)
{
    uint64_t mine = 1ull << out->next | out->waiting; /* a sender that has not heard yet still has its slot */
    uint64_t free = ~(out->used ^ out->taken) & ~mine;
    if (!(free & ((1u << LOW_SLOTS) - 1))) {
        out->taken = abci_mail_seen(&out->box->taken);
        free = ~(out->used ^ out->taken) & ~mine;
    }
    if (abci_mutated("c5_mail_without_credit"))
        free = ~mine & 0xff;
    if (free == 0)
        return false;
    *after = (uint8_t)__builtin_ctzll(free);
    return true;
}

/*
 * The message that has used the head has been taken: it is free, unless the receiver has kept it. Relaxed: `kept` was stored before
 * `taken`, and the bit stays while this rank does not use the slot again.
 */
static void head_over(struct abci_outbound *out, int head)
{
    if (atomic_load_explicit(&out->box->kept, memory_order_relaxed) >> out->head_slot[head] & 1)
        out->given |= (uint8_t)(1u << head);
    else
        out->heads &= (uint8_t) ~(1u << head);
}

/* Heads whose message has been taken, as far as is known. */
static void free_heads(struct abci_outbound *out)
{
    for (int h = 0; h < ABCI_MAIL_HEADS; h++)
        if ((out->heads & ~out->given) >> h & 1 && !((out->used ^ out->taken) >> out->head_slot[h] & 1))
            head_over(out, h);
}

/* A free head, or -1; better one that is in this core's cache. Acquire: as in find_slot. */
static int find_head(struct abci_outbound *out)
{
    enum { ALL = (1u << ABCI_MAIL_HEADS) - 1 };
    if (out->heads == ALL)
        free_heads(out);
    if (out->heads == ALL) {
        out->taken = abci_mail_seen(&out->box->taken);
        free_heads(out);
    }
    unsigned free = ALL & ~(unsigned)out->heads, warm = free & out->warm;
    return !free || !out->tiles ? -1 : __builtin_ctz(warm ? warm : free);
}

void abci_send_regain(struct abci_engine *e, int peer, uint64_t at)
{
    struct abci_outbound *out = e->mail->out[peer];
    uint64_t head = (at - out->box->tiles - ABCI_MAIL_TILE * ABCI_MAIL_TILES) / ABCI_MAIL_HEAD;
    if (head < ABCI_MAIL_HEADS) {
        out->heads &= (uint8_t) ~(1u << head);
        out->given &= (uint8_t) ~(1u << head);
        out->warm |= (uint8_t)(1u << head);
    }
}

/* To lines that this core has read last, by plain stores: in such pieces memcpy takes no string instruction, which is slower there.
 */
static void copy_warm(char *to, const char *from, uint64_t bytes)
{
    for (; bytes > WARM_PIECE; bytes -= WARM_PIECE, to += WARM_PIECE, from += WARM_PIECE)
        memcpy(to, from, WARM_PIECE);
    memcpy(to, from, bytes);
}

/* The first bytes of a message, at most what fits, to a head; how many. */
static uint64_t copy_to_head(struct abci_outbound *out, struct abci_mail_slot *s, int head, const char *in, uint64_t bytes)
{
    uint64_t at = ABCI_MAIL_TILE * ABCI_MAIL_TILES + (uint64_t)head * ABCI_MAIL_HEAD;
    uint64_t n = bytes < ABCI_MAIL_HEAD ? bytes : ABCI_MAIL_HEAD;
    uint8_t bit = (uint8_t)(1u << head);
    s->head = out->box->tiles + at;
    s->lent = false;
    out->heads |= bit;
    out->head_slot[head] = (uint8_t)(s - out->box->slot);
    if (out->warm & bit)
        copy_warm(out->tiles + at, in, n);
    else
        abci_copy(out->tiles + at, NULL, in, n, ABCI_STORE_PLAIN);
    out->warm &= (uint8_t)~bit;
    return n;
}

/* All of a message to the peer's head that this rank has kept: back to its owner. */
static void copy_to_foreign(struct abci_outbound *out, struct abci_mail_slot *s, const char *in, uint64_t bytes)
{
    s->head = out->foreign_at;
    s->lent = true;
    copy_warm(out->foreign, in, bytes);
    out->foreign = NULL;
}

/* Before a slot gets another message: the one before it has been taken. */
static void forget_head(struct abci_outbound *out, int slot)
{
    for (int h = 0; h < ABCI_MAIL_HEADS; h++)
        if ((out->heads & ~out->given) >> h & 1 && out->head_slot[h] == slot)
            head_over(out, h);
}

/* How the bytes go when they fit neither line nor page. */
static uint8_t long_mode(const struct abci_engine *e, const struct abc_request *q)
{
    if (q->mail.peer == e->shm->rank)
        return ABCI_MAIL_OWN;
    if (q->is_direct[ABCI_IN])
        return ABCI_MAIL_DIRECT;
    return ABCI_MAIL_PRIVATE;
}

/* The next slot is this message's. */
static struct abci_mail_slot *begin(struct abci_engine *e, struct abci_outbound *out, uint8_t after)
{
    struct abci_mail_slot *s = &out->box->slot[out->next];
    if (ABCI_UNLIKELY(out->heads))
        forget_head(out, out->next);
    out->used ^= 1ull << out->next;
    out->next = after;
    out->number++;
    s->next = after;
    if (abci_mutated("c1_mail_before_copy")) {
        s->mode = ABCI_MAIL_IN_PAGE;
        abci_mail_publish(e->shm, s, out->number);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return s;
}

/* The bytes of a short message; which way they go. */
static uint8_t copy_in(struct abci_outbound *out, struct abci_mail_slot *s, const char *in, uint64_t bytes)
{
    if (bytes > ABCI_MAIL_LINE) {
        memcpy(out->box->page[s - out->box->slot], in, bytes);
        return ABCI_MAIL_IN_PAGE;
    }
    if (bytes)
        memcpy(s->payload, in, bytes);
    return ABCI_MAIL_IN_LINE;
}

/* A long message: its head goes out with its line, if there is a free one and the receiver is not likely to read all where it is.
 */
static uint8_t put_long(struct abci_engine *e, struct abci_outbound *out, struct abc_request *q, struct abci_mail_slot *s)
{
    uint8_t mode = long_mode(e, q);
    int status, head = -1;
    s->head = 0;
    s->place = mode == ABCI_MAIL_DIRECT ? q->direct[ABCI_IN] : (uint64_t)(uintptr_t)q->in;
    if (mode != ABCI_MAIL_PRIVATE || (out->undemanded && q->mail.bytes >= ABCI_MAIL_REMOTE))
        return mode;
    if (out->foreign && q->mail.bytes <= ABCI_MAIL_HEAD) {
        copy_to_foreign(out, s, q->in, q->mail.bytes);
        return ABCI_MAIL_IN_HEAD;
    }
    if (!out->tiles)
        out->tiles = abci_mail_tiles(e->shm, q->mail.peer, &status); /* without, fill_tiles says why */
    head = find_head(out);
    if (head >= 0)
        q->mail.moved = copy_to_head(out, s, head, q->in, q->mail.bytes);
    else if (q->mail.bytes <= ABCI_MAIL_EAGER)
        return copy_in(out, s, q->in, q->mail.bytes);
    return q->mail.moved == q->mail.bytes ? ABCI_MAIL_IN_HEAD : mode;
}

/* Put the message into its slot. True when the sender may have its buffer back. */
static bool put(struct abci_engine *e, struct abci_outbound *out, struct abc_request *q, uint8_t after)
{
    int slot = out->next;
    struct abci_mail_slot *s = begin(e, out, after);
    q->mail.number = out->number;
    s->count = q->id.count;
    s->tag = q->tag;
    s->type = q->id.type;
    bool paged = q->mail.bytes <= ABCI_MAIL_PAGED || (q->mail.bytes <= ABCI_MAIL_EAGER && q->mail.peer == e->shm->rank);
    s->mode = paged ? copy_in(out, s, q->in, q->mail.bytes) : put_long(e, out, q, s);
    q->mail.mode = s->mode;
    bool over = s->mode <= ABCI_MAIL_IN_HEAD;
    ABCI_HOOK(e->shm->rank, (uint32_t)q->mail.number, ABCI_STOP_SEND);
    if (!over) {
        out->waiting |= 1ull << slot;
        out->in_slot[slot] = q;
    }
    abci_mail_publish(e->shm, s, q->mail.number);
    return over;
}

static int put_pending(struct abci_engine *e, struct abci_outbound *out)
{
    int moved = 0;
    uint8_t after;
    while (out->pending && find_slot(out, &after)) {
        struct abc_request *q = abci_mail_pop(&out->pending, &out->pending_end);
        moved = 1;
        if (put(e, out, q, after))
            abci_mail_complete(e, q, ABC_OK);
    }
    return moved;
}

/* Nobody would ever take the message. Acquire: pairs with abci_shm_leave. */
static bool has_left(const struct abci_engine *e, int peer)
{
    return atomic_load_explicit(&e->shm->control->left[peer / 64], memory_order_acquire) >> (peer % 64) & 1;
}

bool abci_send_brief(struct abci_engine *e, const struct abci_brief *b)
{
    struct abci_outbound *out = e->mail->out[b->peer];
    uint64_t bytes = b->count * b->element;
    uint8_t after;
    int head = -1;
    if (!out || bytes > ABCI_MAIL_HEAD || has_left(e, b->peer) || !find_slot(out, &after))
        return false;
    bool longer = bytes > ABCI_MAIL_PAGED && b->peer != e->shm->rank, foreign = longer && out->foreign;
    if (longer && !foreign && !out->tiles)
        return false; /* the general way makes them, and the heads */
    if (longer && !foreign)
        head = find_head(out);
    bool in_head = foreign || head >= 0;
    if (!in_head && bytes > ABCI_MAIL_EAGER)
        return false;
    struct abci_mail_slot *s = begin(e, out, after);
    s->count = b->count;
    s->tag = b->tag;
    s->type = b->type;
    s->mode = in_head ? ABCI_MAIL_IN_HEAD : copy_in(out, s, b->in, bytes);
    if (foreign)
        copy_to_foreign(out, s, b->in, bytes);
    else if (in_head)
        copy_to_head(out, s, head, b->in, bytes);
    ABCI_HOOK(e->shm->rank, (uint32_t)out->number, ABCI_STOP_SEND);
    abci_mail_publish(e->shm, s, out->number);
    abci_mail_note(e, b, out->number, abci_event_ticks(e->shm->events->clock));
    return true;
}

int abci_send_first(struct abci_engine *e, struct abc_request *q)
{
    struct abci_outbound *out;
    int peer = q->mail.peer;
    uint8_t after;
    if (outbound_of(e, peer, &out) != ABC_OK)
        return ABC_ERR_MEMORY;
    if (has_left(e, peer))
        return cannot(e, abci_error(ABC_ERR_PEER, "a message to rank %d, which has left the communicator", peer));
    if (!out->pending && find_slot(out, &after)) {
        if (put(e, out, q, after)) {
            abci_mail_complete(e, q, ABC_OK);
            return 1;
        }
    } else {
        abci_mail_append(&out->pending_end, q);
    }
    e->mail->sending[peer / 64] |= 1ull << (peer % 64);
    return 0;
}

/* Copy into free tiles what the receiver wants. 1 something was copied, 0 nothing, negative: failed. */
static int fill_tiles(struct abci_engine *e, struct abci_outbound *out, int peer)
{
    uint64_t wanted = abci_mail_seen(&out->box->wanted);
    struct abc_request *q = out->tiled;
    int moved = 0;
    if (!q || q->mail.number != wanted) {
        q = NULL;
        for (uint64_t left = out->waiting; left && !q; left &= left - 1)
            if (out->in_slot[__builtin_ctzll(left)]->mail.number == wanted)
                q = out->in_slot[__builtin_ctzll(left)];
        out->tiled = q;
    }
    if (!q || q->mail.mode != ABCI_MAIL_PRIVATE || q->mail.moved == q->mail.bytes)
        return 0;
    if (!out->tiles) {
        int status;
        out->tiles = abci_mail_tiles(e->shm, peer, &status);
        if (!out->tiles)
            return cannot(e, status);
    }
    uint64_t drained = abci_mail_seen(&out->box->drained);
    for (; q->mail.moved < q->mail.bytes; moved = 1) {
        uint64_t left = q->mail.bytes - q->mail.moved, tiles = abci_mail_group(q, out->filled), n = tiles * ABCI_MAIL_TILE;
        if (out->filled + tiles - drained > ABCI_MAIL_TILES)
            break;
        n = n < left ? n : left;
        abci_copy(out->tiles + out->filled % ABCI_MAIL_TILES * ABCI_MAIL_TILE, NULL, q->in + q->mail.moved, n,
                  e->machine.stream_shared ? ABCI_STORE_STREAM : ABCI_STORE_PLAIN);
        q->mail.moved += n;
        out->filled += tiles;
        abci_mail_tell(e->shm, &out->box->filled, out->filled);
    }
    return moved;
}

int abci_send_advance(struct abci_engine *e, int peer)
{
    struct abci_outbound *out = e->mail->out[peer];
    int moved = put_pending(e, out);
    if (out->waiting) {
        out->taken = abci_mail_seen(&out->box->taken);
        uint64_t over = out->waiting & ~(out->used ^ out->taken);
        out->waiting &= ~over;
        moved |= over != 0;
        for (; over; over &= over - 1) {
            struct abc_request *q = out->in_slot[__builtin_ctzll(over)];
            if (out->tiled == q)
                out->tiled = NULL;
            if (q->mail.mode == ABCI_MAIL_PRIVATE)
                out->undemanded = q->mail.moved < q->mail.bytes;
            abci_mail_complete(e, q, ABC_OK);
        }
    }
    if (out->waiting) {
        int r = fill_tiles(e, out, peer);
        if (r < 0)
            return r;
        moved |= r;
    }
    if (!out->pending && !out->waiting)
        e->mail->sending[peer / 64] &= ~(1ull << (peer % 64));
    else if (peer != e->shm->rank)
        abci_blocked_by(e, peer);
    return moved;
}
