/* run_internal.h - what the files of the executor share: run.c (claim, queue, driving), run_wait.c (waiting), run_issue.c (header),
 * run_stage.c (staging), run_offer.c (buffers in the arena), run_step.c (steps), run_tiny.c (the short cut). */
#ifndef ABCI_RUN_INTERNAL_H
#define ABCI_RUN_INTERNAL_H

#include "diag/event.h"
#include "plan/run.h"

#define ABCI_REMOTE_TILE (256 << 10)
/* Tokens start off the page boundary: equal low address bits in user buffers make loads wait for stores. */
#define ABCI_SWAP_SHIFT 3840
#define ABCI_TOKEN_ROOM (ABCI_SWAP_BYTES - ABCI_SWAP_SHIFT) /* bytes that one holds */
#define ABCI_WINDOW 32                                      /* steps that may be ahead of the first incomplete one */

/* One readable piece of a peer: an address, or an address in the peer's process. */
struct source {
    const char *local;
    uint64_t remote; /* when local is NULL */
};

enum abci_instance_state { ABCI_INSTANCE_FREE, ABCI_INSTANCE_OFFER, ABCI_INSTANCE_STEPS, ABCI_INSTANCE_READERS };

/* One chunk of one operation in flight; lives in slot sequence % ABCI_SLOTS. */
struct abci_instance {
    struct abc_request *request;
    const struct abci_runnable *run;
    struct abci_shape shape;
    struct abci_call_id id;
    uint32_t sequence;
    uint8_t state;
    bool offered;               /* peers may write OUT: its pages are given up should the operation fail */
    uint8_t flags;              /* of the own header */
    uint8_t mode[2];            /* enum abci_mode of IN, OUT */
    struct abci_region *region; /* borrowed, or NULL */
    uint64_t staging_offset;    /* of tmp in the segment that holds the token, or the own one */
    uint8_t token;              /* own staging token + 1, or 0 */
    uint8_t gained;             /* token + 1 that is this rank's when its reads are over, or 0 */
    char *stage[2];             /* own staging areas of IN, OUT */
    char *tmp;                  /* own temporaries */
    uint64_t tmp_area;          /* bytes of one */
    uint32_t chain;
    uint32_t first;   /* steps before it are complete */
    uint32_t ahead;   /* bit i: step first + i is complete */
    uint32_t at_step; /* step whose peers up to at_peer are known to be ready */
    uint16_t at_peer;
    uint16_t reader;                               /* readers before it are over */
    uint64_t verified[ABCI_MAX_RANKS / 64];        /* peers whose header has been compared */
    char tiny[ABCI_MAX_TMP * ABCI_INLINE_COUNTER]; /* temporaries that travel in counter lines */
};

/* Staging memory lent to one instance; free again when every peer's watermark has passed it. */
struct abci_region {
    char *memory;
    uint64_t offset, bytes;
    uint32_t sequence; /* last user */
    bool used;
    struct abci_region *next; /* most recently used first */
};

/* run_issue.c: put the queue's next chunk in flight if a slot and staging are free. 1 moved, 0 not now, negative error. */
int abci_issue(struct abci_engine *e);
/* Make a chunk that run_pair.c has in flight, staged in a token and shown, an instance. */
void abci_hand_over(struct abci_engine *e, struct abc_request *q, uint64_t chunk, uint32_t chain);
/* run_pair.c: two ranks exchange a long operation, as long as neither is late. 1 moved, 0 not now or none, negative: the
 * communicator has failed. *over: the request that is complete by this, or NULL. */
int abci_pair_run(struct abci_engine *e, struct abc_request **over);
/* May this sequence use its slot? Peers must be done with the one 16 before. */
bool abci_slot_free(struct abci_engine *e, uint32_t sequence);

/* run_stage.c: decide how peers reach each buffer and find staging for it. ABC_PENDING when all staging is in use. */
int abci_lay_out(struct abci_engine *e, struct abci_instance *inst);
/* The token that this rank has read last; its staging in this process, and in the segment that holds it. */
int abci_token_take(struct abci_engine *e);
char *abci_token_memory(const struct abci_engine *e, int token);
uint64_t abci_token_offset(const struct abci_engine *e, int token);
/* Only the memory for it, of an instance whose sequence, plan and buffers' modes are known. */
int abci_take_staging(struct abci_engine *e, struct abci_instance *inst, uint64_t bytes);
/* A result, or a block that is passed on: to dst and, if not NULL, to `room`, where peers read it. src[] moves on. */
void abci_reduce_staged(struct abci_reduction *how, char *dst, char *room, const void **src, int nsrc, uint64_t bytes,
                        uint64_t element);
void abci_copy_staged(char *dst, char *room, const char *src, uint64_t bytes, enum abci_store store);
void abci_tokens_open(struct abci_engine *e);
void abci_tokens_close(struct abci_engine *e);
void abci_regions_free(struct abci_engine *e);

/* The hash over all calls up to and including one; the hash of one. */
static inline uint32_t abci_chained(uint32_t chain, uint32_t hash)
{
    chain ^= hash;
    chain *= 0x9e3779b1u;
    return chain ^ chain >> 15;
}
uint32_t abci_call_hash(const struct abci_call_id *id);

/* run_learn.c: keep what a short call needs; find it for a call like it (and its buffers, resolved), or for a prepared request. */
void abci_tiny_learn(struct abci_engine *e, const struct abc_request *request);
struct abci_tiny *abci_tiny_known(struct abci_engine *e, const struct abc_request *request);
bool abci_tiny_resolve(const struct abci_tiny *t, const char **in, char **out);
bool abci_tiny_same_lists(const struct abci_engine *e, const struct abci_tiny *t, const abc_call *call);
void abci_tiny_close(struct abci_engine *e); /* frees what is kept */
static inline struct abci_tiny *abci_tiny_place(struct abci_engine *e, uint32_t collective, uint64_t count, uint32_t type,
                                                uint32_t op, uint32_t root)
{
    uint32_t mixed = ((uint32_t)count * 0x9e3779b1u >> 20) + collective * 2 + type * 4 + op + root;
    return &e->tiny[mixed % ABCI_TINY_KINDS];
}
static inline struct abci_tiny *abci_tiny_like(struct abci_engine *e, const abc_call *c, const char **in, char **out)
{
    uint32_t collective = (uint32_t)c->collective, type = (uint32_t)c->type, op = (uint32_t)c->op, root = (uint32_t)c->root;
    struct abci_tiny *t = abci_tiny_place(e, collective, c->count, type, op, root);
    const struct abc_request *q = &t->like;
    uint64_t other = (q->id.count ^ c->count) | (q->id.collective ^ collective) | ((uint32_t)q->reduction.type ^ type) |
                     ((uint32_t)q->reduction.op ^ op) | (q->id.root ^ root);
    if (other || t->work == ABCI_TINY_NONE || (ABCI_UNLIKELY(t->lists != NULL) && !abci_tiny_same_lists(e, t, c)))
        return NULL;
    *in = c->in;
    *out = c->out;
    bool plain = (uintptr_t)*in + 1 > 1 && (uintptr_t)*out + 1 > 1; /* neither none nor ABC_IN_PLACE */
    return (ABCI_LIKELY(plain) || abci_tiny_resolve(t, in, out)) && abci_room_fits(&q->room, *in, *out) ? t : NULL;
}

/* run_tiny.c; run's status: ABC_OK, ABC_PENDING (nothing has happened), ABCI_LATE (the header is stored), ABC_ERR_PEER. */
int abci_tiny_run(struct abci_engine *e, struct abci_tiny *t, const char *in, char *out);
/*
 * The same in two parts, for a started request. begin stores the header; false: nothing has happened. Afterwards the request must
 * be first in the queue until it is over: by end, or by abci_issue, which finds the header stored. end does not note a failure: who
 * gets ABC_ERR_PEER from it ends all requests.
 */
bool abci_tiny_begin(struct abci_engine *e, struct abci_tiny *t, const char *in);
int abci_tiny_end(struct abci_engine *e, const char *in, char *out);

/* run_offer.c: do all ranks offer their buffers? Goes on with the direct plan, or with the one for any buffers. 1 decided, 0 a
 * header is missing, negative: mismatch. */
int abci_offer_decide(struct abci_engine *e, struct abci_instance *inst);
/* The operation has failed: a peer that wakes up late must find no memory of the caller's to write into. */
void abci_offer_revoke(struct abci_instance *inst);
/* Combine the nsrc operands in e->sources, one piece, and write it to the own OUT and to every peer's. */
int abci_spread(struct abci_engine *e, struct abci_instance *inst, const struct abci_step *s, struct abci_range to, char *dst,
                struct abci_reduction *how, int nsrc);
/* run_counts.c: have peers been told where their blocks begin in this rank's input? Where, in elements, does this one's in a
 * peer's? */
bool abci_counts_placed(const struct abc_request *q);
uint64_t abci_counts_place(const struct abc_request *q, int peer);
/* run_step.c: where a peer's block lies; counter: the one that published it. */
int abci_locate(struct abci_engine *e, const struct abci_instance *inst, int peer, int counter, int buffer, struct abci_range r,
                struct source *out);
/* run_step.c: compare the peer's header with the own call, once an instance. 1 same, 0 not there yet, negative: mismatch. */
int abci_verify(struct abci_engine *e, struct abci_instance *inst, int peer);

/* run_step.c: advance one instance. 1 moved, 0 not now, negative: the communicator has failed. */
int abci_advance(struct abci_engine *e, struct abci_instance *inst);
/* This rank reads nothing more for the sequence; gained: a token + 1 that it has read, or 0. */
void abci_reads_over(struct abci_engine *e, uint32_t sequence, uint8_t gained);

/* The instances in flight as bits in the order of their sequences: bit 0 is next_sequence - ABCI_SLOTS. */
static inline uint32_t abci_in_order(const struct abci_engine *e)
{
    uint32_t oldest = e->next_sequence % ABCI_SLOTS; /* slot of next_sequence - ABCI_SLOTS */
    return (e->active >> oldest | e->active << (ABCI_SLOTS - oldest)) & ((1u << ABCI_SLOTS) - 1);
}

/* run_wait.c: nothing moved: wait a little, or find that waiting is pointless, which ends the communicator. */
int abci_wait_for_peers(struct abci_engine *e, bool may_sleep);

/* run.c: the request is over. Unless it is this thread's own, whoever waits for it is woken. */
void abci_complete(struct abci_engine *e, struct abc_request *q, int status, bool own);

/* run_joint.c: a lead is over: give its members their parts of the result, complete and free it. */
void abci_joint_over(struct abci_engine *e, struct abc_request *lead, int status);

/* run_mail.c: messages. post only queues; pass advances all: 1 moved, 0 not now, negative: the communicator has failed. */
int abci_mail_room_open(struct abci_engine *e);
void abci_mail_room_close(struct abci_engine *e);
void abci_mail_post(struct abci_engine *e, struct abc_request *q);
int abci_mail_pass(struct abci_engine *e, const struct abc_request *own);
/* run_send.c, run_recv.c: a short message on an idle engine, looked for as long as spinning pays; false: nothing has happened. */
bool abci_send_brief(struct abci_engine *e, const struct abci_brief *b);
bool abci_receive_brief(struct abci_engine *e, const struct abci_brief *b);
void abci_mail_fail(struct abci_engine *e, int status);                            /* all end with the status */
double abci_mail_timeout(const struct abci_engine *e);                             /* the shortest, 0: none is open */
void abci_mail_describe(const struct abci_engine *e, char *text, size_t capacity); /* the longest waiting one */

/* Peers that the pass under way waits for, each once. */
static inline void abci_blocked_by(struct abci_engine *e, int peer)
{
    uint64_t *word = &e->is_blocked[peer / 64], bit = 1ull << (peer % 64);
    if (*word & bit)
        return;
    *word |= bit;
    e->blocked[e->nblocked++] = (uint16_t)peer;
}
static inline void abci_blocked_clear(struct abci_engine *e)
{
    for (; e->nblocked > 0; e->nblocked--)
        e->is_blocked[e->blocked[e->nblocked - 1] / 64] = 0;
}
/* One record in the event ring. sequence 0: the operation never got a number. */
static inline void abci_note(struct abci_engine *e, const struct abc_request *q, enum abci_event_kind kind, uint32_t sequence,
                             int status)
{
    struct abci_event_ring *ring = e->shm->events;
    if (kind != ABCI_EVENT_START && abci_mutated("c14_no_end_record"))
        return;
    struct abci_event *event = abci_event_begin(ring, kind);
    event->count = q->id.count;
    event->sequence = sequence;
    event->root = q->id.root;
    event->status = status;
    event->tag = q->tag;
    event->culprit = kind == ABCI_EVENT_ERROR ? (int16_t)e->shm->failure->culprit : -1;
    event->collective = q->id.collective;
    event->type = q->id.type;
    event->op = q->id.op;
    event->in_flight = (uint16_t)(e->next_sequence - 1 - e->reads_over);
    if (q->message)
        memcpy(event->algorithm, "message\0\0\0\0\0\0\0\0", sizeof event->algorithm);
    else
        memcpy(event->algorithm, (q->ran_direct ? q->direct_run : q->run)->plan->name, sizeof event->algorithm);
    abci_event_commit(ring, event);
}
/* The address of own bytes of a user buffer. */
static inline char *abci_user(const struct abci_instance *inst, int buffer)
{
    return buffer == ABCI_IN ? (char *)inst->request->in : inst->request->out;
}

#endif
