/*
 * run_mail.h - what the files of the executor that carry messages share: run_mail.c (queues, one pass over all messages),
 * run_send.c and run_recv.c (the two ends). Everything belongs to the holder of the claim.
 */
#ifndef ABCI_RUN_MAIL_H
#define ABCI_RUN_MAIL_H

#include <string.h>

#include "plan/run_internal.h"
#include "transport/mail.h"

/* The sending end of a pair. */
struct abci_outbound {
    struct abci_mailbox *box;
    char *tiles;
    uint64_t number;  /* of the last message */
    uint64_t used;    /* bit s changes when slot s gets a message: the slot is free while it equals the bit of `taken` */
    uint64_t taken;   /* as last seen */
    uint64_t waiting; /* slots whose message keeps its sender: its bytes are read where they are, or come through the tiles */
    uint64_t filled;  /* tiles */
    uint8_t next;     /* slot of the next message: kept free for it, and known to the receiver */
    bool undemanded;  /* the receiver has read the last message where it was: the next one needs no head */
    uint8_t heads;    /* bit h: a message that the receiver has not taken, as far as is known, has its head there */
    uint8_t given;    /* of these: the receiver has kept it */
    uint8_t warm;     /* this rank has been the last one to read it */
    uint8_t head_slot[ABCI_MAIL_HEADS];         /* whose slot is this */
    char *foreign;                              /* a head of the peer's that this rank has kept; NULL: none */
    uint64_t foreign_at;                        /* its offset in the peer's segment */
    struct abc_request *pending, **pending_end; /* for which there is no slot yet, in order */
    struct abc_request *tiled;                  /* whose bytes the receiver wants through the tiles */
    struct abc_request *in_slot[ABCI_MAIL_SLOTS];
};

/* Ways in which a private message gets here. */
enum abci_mail_way { ABCI_WAY_TILES, ABCI_WAY_REMOTE, ABCI_WAYS };
#define ABCI_MAIL_CLASSES 12

/* What messages of about the same length took by either way. */
struct abci_mail_pace {
    uint32_t messages;
    float cost[ABCI_WAYS]; /* seconds a byte; 0: not known */
};

/* The receiving end. */
struct abci_inbound {
    struct abci_mailbox *box; /* NULL: the peer has not sent anything so far */
    uint64_t number;          /* of the next message */
    uint64_t taken, kept;
    uint64_t drained;                       /* tiles */
    uint32_t posted;                        /* receives that name this peer and wait */
    uint8_t next;                           /* slot of the next message */
    uint8_t nheld;                          /* messages that no receive has asked for yet, */
    uint8_t held[ABCI_MAIL_SLOTS];          /* oldest first */
    struct abc_request *pulls, **pulls_end; /* receives whose message is read piece by piece, the first one now */
    double began;                           /* that one, if it is private; 0: it has not begun */
    enum abci_mail_way way;
    bool both_ways; /* when it began, the peer had not taken all of this rank's messages: tiles would need this rank twice */
    struct abci_mail_pace pace[2]
                              [ABCI_MAIL_CLASSES]; /* one way and both ways; by length, from ABCI_MAIL_REMOTE on by powers of two */
};

struct abci_mailroom {
    struct abci_outbound **out;               /* [nranks], NULL: never used */
    struct abci_inbound **in;                 /* [nranks] */
    struct abc_request *fresh, **fresh_end;   /* started, not looked at */
    struct abc_request *posted, **posted_end; /* receives for which no message is there, in order */
    const struct abc_request *own;            /* that the thread which drives waits for, or NULL */
    uint32_t hasty;                           /* of those, with a shorter time-out than the communicator's */
    uint32_t any;                             /* of the posted, from any source */
    bool only_remote;                         /* private messages are never copied through tiles if that is possible */
    int turn;                                 /* source that any-source receives look at first */
    uint64_t sending[ABCI_RANK_WORDS], receiving[ABCI_RANK_WORDS]; /* peers that have something pending */
};

/* run_send.c: a started send goes out or waits for a slot. 1 complete, 0 waits, negative: failed and not placed. */
int abci_send_first(struct abci_engine *e, struct abc_request *q);
int abci_send_advance(struct abci_engine *e, int peer);
/* The peer has lent this rank's own head, at so much in the segment, and its message has been read. */
void abci_send_regain(struct abci_engine *e, int peer, uint64_t at);
/* run_recv.c: the same for receives. */
int abci_receive_first(struct abci_engine *e, struct abc_request *q);
int abci_receive_advance(struct abci_engine *e, int peer);
int abci_receive_any(struct abci_engine *e);

/* run_mail.c: the message is over. */
void abci_mail_complete(struct abci_engine *e, struct abc_request *q, int status);

/* As abci_note at the end of a message that was no request; time: of the event. */
static inline void abci_mail_note(struct abci_engine *e, const struct abci_brief *b, uint64_t number, uint64_t time)
{
    if (abci_mutated("c14_no_end_record"))
        return;
    struct abci_event *event = abci_event_open(e->shm->events);
    event->time = time;
    event->kind = ABCI_EVENT_END;
    event->count = b->count;
    event->sequence = (uint32_t)number;
    event->root = (uint32_t)b->peer;
    event->status = ABC_OK;
    event->tag = b->tag;
    event->culprit = -1;
    event->collective = b->send ? ABC_SEND : ABC_RECV;
    event->type = b->type;
    event->op = 0;
    event->in_flight = 0;
    memcpy(event->algorithm, "message\0\0\0\0\0\0\0\0", sizeof event->algorithm);
    abci_event_commit(e->shm->events, event);
}
static inline bool abci_mail_is_send(const struct abc_request *q)
{
    return q->id.collective == ABC_SEND;
}
static inline uint64_t abci_mail_bytes(const struct abc_request *q)
{
    return q->mail.bytes;
}
/*
 * Tiles that are copied and told as one, beginning with the `at`-th since ever: few of a short message, which should flow; more of
 * a long one, for each costs a hand-off, and between distant cores short copies are slower.
 */
static inline uint64_t abci_mail_group(const struct abc_request *q, uint64_t at)
{
    uint64_t left = (q->mail.bytes - q->mail.moved + ABCI_MAIL_TILE - 1) / ABCI_MAIL_TILE;
    uint64_t group = q->mail.bytes < 256 << 10 ? 1 : 4, to_end = ABCI_MAIL_TILES - at % ABCI_MAIL_TILES;
    group = group < left ? group : left;
    return group < to_end ? group : to_end;
}
static inline void abci_mail_append(struct abc_request ***end, struct abc_request *q)
{
    q->next = NULL;
    **end = q;
    *end = &q->next;
}
static inline struct abc_request *abci_mail_pop(struct abc_request **head, struct abc_request ***end)
{
    struct abc_request *q = *head;
    *head = q->next;
    if (!*head)
        *end = head;
    return q;
}

#endif
