/*
 * mail.h - stage 4: the shared words of messages between two ranks. Every ordered pair that talks has one mailbox, in the sender's
 * segment: 64 lines, one a message that has not been taken yet, and a page for the bytes of each. A full mailbox makes the sender
 * wait, so its size bounds the memory whatever the sender does. The receiver pulls, and writes two words only: what it has taken,
 * and whose bytes it wants next. Owner of everything here: the holder of the engine's claim on either side. docs/protocol.md has
 * the argument; src/plan/run_send.c and run_recv.c are the users.
 */
#ifndef ABCI_MAIL_H
#define ABCI_MAIL_H

#include "transport/shm.h"

#define ABCI_MAIL_SLOTS 64
#define ABCI_MAIL_LINE 40            /* bytes of a message that travel in its line */
#define ABCI_MAIL_EAGER 4096         /* ... in its page */
#define ABCI_MAIL_PAGED 512          /* more than that rather goes into a head, if one is free, */
#define ABCI_MAIL_HEAD (16u << 10)   /* ... or before it is asked for, in one of a few larger pages, as far as it fits; */
#define ABCI_MAIL_HEADS 4            /* those are used by turns, and few, so that they stay in the caches */
#define ABCI_MAIL_TILE (16u << 10)   /* the rest is copied through tiles, once the receiver has asked for it, */
#define ABCI_MAIL_TILES 16           /* or all is read where it is */
#define ABCI_MAIL_QUANTUM (1u << 20) /* bytes that are read of one message before others get their turn */
#define ABCI_MAIL_REMOTE (64u << 10) /* from so many bytes on tiles and process_vm_readv compete, where that works */

/* Where the bytes of a message are. */
enum abci_mail_mode {
    ABCI_MAIL_IN_LINE,
    ABCI_MAIL_IN_PAGE,
    ABCI_MAIL_IN_HEAD, /* head: offset in the sender's segment, or in the receiver's */
    ABCI_MAIL_DIRECT,  /* place: offset in the sender's segment */
    ABCI_MAIL_OWN,     /* place: address; the sender is the receiver */
    ABCI_MAIL_PRIVATE  /* place: address in the sender's process. The receiver reads it there by process_vm_readv, or names the
                          message in `wanted`: then it comes through the tiles; unless `head` is 0, so much as a head holds is there
                          already */
};

/* One message. The sender writes everything, then `number` (release); the receiver loads `number` (acquire) until it is the one
 * that comes next. */
struct abci_mail_slot {
    _Atomic uint64_t number; /* 1 for the first message of the pair */
    uint64_t count;
    int32_t tag;
    uint8_t type, mode;
    uint8_t next; /* slot of the following message; it is free already */
    uint8_t lent; /* the head is one of the receiver's own, which the sender has kept */
    union {
        uint8_t payload[ABCI_MAIL_LINE];
        struct {
            uint64_t place, head;
        };
    };
};
_Static_assert(sizeof(struct abci_mail_slot) == ABCI_LINE, "a message is one line");

struct abci_mailbox {
    _Alignas(ABCI_LINE) _Atomic uint64_t filled; /* tiles that the sender has filled, since ever */
    uint64_t tiles;                              /* their offset in the sender's segment; before the first `filled` */
    _Alignas(ABCI_LINE) _Atomic uint64_t taken;  /* of the receiver: bit s changes when the message in slot s has been taken */
    _Atomic uint64_t drained;                    /* of the receiver: tiles that it has copied, since ever */
    _Atomic uint64_t kept;   /* of the receiver: bit s: it keeps the head of the message in slot s, to write where it has read */
    _Atomic uint64_t wanted; /* of the receiver: number of the message whose bytes shall come through the tiles */
    _Alignas(ABCI_LINE) struct abci_mail_slot slot[ABCI_MAIL_SLOTS];
    _Alignas(4096) uint8_t page[ABCI_MAIL_SLOTS][ABCI_MAIL_EAGER];
};

/*
 * The own mailbox to a peer, and its tiles, behind which the heads lie: made on first use, freed with the control block. NULL:
 * *status has the reason.
 */
struct abci_mailbox *abci_mail_open(struct abci_shm *shm, int peer, int *status);
char *abci_mail_tiles(struct abci_shm *shm, int peer, int *status);
/* The mailbox of a peer to this rank. NULL: there is none yet, or *status is an error. */
struct abci_mailbox *abci_mail_find(const struct abci_shm *shm, int peer, int *status);
void abci_mail_free(struct abci_shm *shm);

/* The message is complete in its slot. Release: pairs with abci_mail_arrived. */
static inline void abci_mail_publish(struct abci_shm *shm, struct abci_mail_slot *slot, uint64_t number)
{
    atomic_store_explicit(&slot->number, number, abci_mutated("c10_relaxed_mail") ? memory_order_relaxed : memory_order_release);
    abci_shm_notify(shm);
}
static inline bool abci_mail_arrived(const struct abci_mail_slot *slot, uint64_t number)
{
    return atomic_load_explicit(&slot->number, memory_order_acquire) == number;
}
/* One of the words that only grow, or `taken`. Release: pairs with abci_mail_seen. */
static inline void abci_mail_tell(struct abci_shm *shm, _Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, abci_mutated("c10_relaxed_taken") ? memory_order_relaxed : memory_order_release);
    abci_shm_notify(shm);
}
static inline uint64_t abci_mail_seen(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

#endif
