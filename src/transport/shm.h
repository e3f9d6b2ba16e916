/*
 * shm.h - stage 4: the shared words of a communicator on one host, and how ranks wait for them. docs/protocol.md lists every word
 * with writer, readers and ordering. A rank writes only its own control block, except: `waiters` and `left` of a peer, a peer's
 * doorbell, the failure record in rank 0's block, of two ranks staging tokens that it owns in the peer's segment, and output
 * buffers that their owner has offered (src/plan/run_offer.c). Else readers pull.
 */
#ifndef ABCI_SHM_H
#define ABCI_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "plan/plan.h"
#include "transport/segment.h"

#define ABCI_SLOTS 16
#define ABCI_INLINE_LINE 32    /* payload bytes in a header's first line; longer ones lie behind it, */
#define ABCI_INLINE_HEADER 512 /* up to so many bytes; as ABCI_PACKED of plan/part.h */
#define ABCI_INLINE_COUNTER 48 /* payload bytes in a counter's line */
#define ABCI_RECORD_MAGIC 0x61626354u
#define ABCI_SWAPS 2               /* of two ranks: staging tokens that each starts with, see run_stage.c */
#define ABCI_SWAP_BYTES (1u << 20) /* of one; touched as far as used */

/* The call as every rank must have made it; compared in the header, kept in the failure record. */
struct abci_call_id {
    uint8_t collective, type, op, in_place; /* in_place is not compared */
    uint32_t root;
    uint64_t count;
    uint32_t algorithm; /* hash of plan name and chunk size */
    uint32_t sequence;
};

/* How peers reach a rank's buffer in this instance. */
enum abci_mode {
    ABCI_MODE_NONE,   /* not published */
    ABCI_MODE_STAGED, /* base: offset of the chunk's area in the segment that holds the token, or the owner's */
    ABCI_MODE_DIRECT, /* base: offset of element 0 of the user's buffer in the owner's segment */
    ABCI_MODE_REMOTE  /* base: address of element 0 in the owner's process, for process_vm_readv */
};

/* Where the owner's buffers lie. With the offer base[OUT] is a place in its segment whatever the mode says, and peers may write OUT
 * if every rank has made the offer for this operation: see run_offer.c. */
enum abci_arena_flags { ABCI_ARENA_OFFER = 1, ABCI_ARENA_IN_PLACE = 2 };

enum abci_header_flags {
    ABCI_HEADER_PAYLOAD = 1, /* IN's area is in the header lines */
    ABCI_COUNTER_PAYLOAD = 2 /* blocks published by counters are in the counters' lines */
};

/* Line 0 of an operation's header. Everything is written before `sequence` (release); readers load `sequence` first (acquire). */
struct abci_header {
    _Atomic uint32_t sequence;
    uint8_t collective, type, op, flags;
    uint16_t root;
    uint16_t counter0; /* value that counter 0 has with this header */
    uint32_t algorithm;
    uint64_t count;
    uint32_t chain; /* hash over this rank's calls up to this one */
    uint32_t done;  /* copy of the done watermark */
    union {
        uint8_t payload[ABCI_INLINE_LINE];
        struct {
            uint64_t base[2]; /* IN, OUT */
            uint64_t region;  /* temporaries: offset in the segment */
            uint8_t mode[2];
            uint8_t token; /* staging token + 1 that holds the temporaries and staged areas, 0: a region of the owner */
            uint8_t arena; /* enum abci_arena_flags */
            uint8_t spare[4];
        };
    };
};
_Static_assert(sizeof(struct abci_header) == ABCI_LINE, "a header starts with one line");

/* Lines come in pairs, and a CPU that fetches one may fetch its neighbour with it. */
struct abci_header_slot {
    _Alignas(2 * ABCI_LINE) struct abci_header head;
    uint8_t payload[ABCI_INLINE_HEADER]; /* that line 0 is too short for; published by its sequence */
};

/* (sequence << 32 | progress): never reset. One line, so that a small block travels with it. */
struct abci_counter {
    _Atomic uint64_t word;
    uint8_t payload[ABCI_INLINE_COUNTER];
    uint64_t spare;
};
_Static_assert(sizeof(struct abci_counter) == ABCI_LINE, "a counter is one line");

/* One record a communicator and host: the first failure. */
struct abci_failure {
    _Atomic uint32_t state; /* 0 none, 1 being written, 2 complete (release; acquire in abci_shm_failed) */
    int32_t status;
    int32_t reporter, culprit; /* ranks; culprit -1: none can be named */
    struct abci_call_id mine, theirs;
    uint8_t has_calls;
    char text[256];
};

#define ABCI_RANK_WORDS (ABCI_MAX_RANKS / 64) /* that hold a bit for each rank */

/* Does a thread of this rank drive the communicator? Who holds the claim may read peers' memory; once ENDED it does no more. */
enum abci_claim { ABCI_CLAIM_FREE, ABCI_CLAIM_HELD, ABCI_CLAIM_ENDED };

/* One rank's end of a communicator in its own segment. */
struct abci_control {
    _Alignas(ABCI_LINE) uint32_t magic; /* identity: cold */
    uint32_t rank, nranks, pid;
    uint64_t epoch;
    uint64_t self;                                 /* address of this block in the owner's process */
    uint64_t swap_offset;                          /* of two ranks: its staging tokens; 0: none */
    uint64_t events_offset;                        /* ring of struct abci_event, see diag/event.h */
    _Atomic uint64_t mail;                         /* offset of the table of mailboxes, see mail.h; 0: no message was sent */
    _Alignas(ABCI_LINE) _Atomic uint32_t doorbell; /* this rank sleeps on it; ringers add 1 and wake */
    _Alignas(ABCI_LINE) _Atomic uint64_t waiters;  /* bit rank % 64: that rank sleeps until this one writes something */
    _Alignas(ABCI_LINE) _Atomic uint64_t waiter[ABCI_RANK_WORDS]; /* beyond 64 ranks: bit r: which ranks those are */
    _Alignas(ABCI_LINE) _Atomic uint32_t done;                    /* every operation up to it reads nothing more of a peer */
    _Alignas(ABCI_LINE) _Atomic uint32_t claim;                   /* enum abci_claim; between the threads of the owner's process */
    _Alignas(ABCI_LINE) struct abci_failure failure;              /* used in rank 0's block only */
    _Alignas(ABCI_LINE) _Atomic uint64_t left[ABCI_RANK_WORDS];   /* bit r: rank r has left and never touches this block again */
    _Alignas(ABCI_LINE) _Atomic uint64_t probe[8 * 16];           /* start-up measurement: a line a word */
    _Alignas(ABCI_LINE) _Atomic uint32_t cpu;                     /* 1 + the CPU on which this rank last waited; 0: not known */
    _Alignas(4096) struct abci_header_slot header[ABCI_SLOTS];
    _Alignas(4096) struct abci_counter counter[ABCI_SLOTS][ABCI_COUNTERS];
};

struct abci_shm_peer {
    struct abci_control *control;
    struct abci_segment *segment;
    int pidfd;     /* -1: same process */
    uint32_t pid;  /* as seen here */
    uint32_t done; /* last known watermark of the peer */
    bool readable; /* process_vm_readv from it works */
    bool bound;    /* it has this rank's block mapped, or soon will */
};

/* How long to do what while waiting; set at creation from ranks and CPUs. */
struct abci_wait_policy {
    uint32_t spins;
    uint32_t skipped;  /* of these, where a peer is late with much: see abci_wait_for_peers */
    double yield_time; /* seconds of yielding before sleeping */
    double slow, timeout;
};

/* This rank's end. The holder of the communicator's claim is the only user, except abci_shm_fail and abci_shm_ring_own. */
struct abci_shm {
    int rank, nranks;
    double cpus; /* that the ranks may use together */
    struct abci_control *control;
    uint64_t control_offset;
    struct abci_segment *segment;
    struct abci_failure *failure; /* in rank 0's block */
    struct abci_shm_peer *peer;   /* [nranks]; own row included */
    struct abci_wait_policy wait;
    char *swap[2];          /* of two ranks: the staging tokens in rank 0's and in rank 1's segment */
    bool barrier_by_kernel; /* membarrier works: publishers need no fence */
    bool remote_for_all;    /* every peer can read this rank by process_vm_readv */
    struct abci_event_ring *events;
    struct abci_mail_own *mail;   /* mail.c: mailboxes to peers; NULL until the first message */
    _Atomic uint64_t *mail_table; /* their offsets, for the peers */
};

/* ---- shm.c ---- */
int abci_shm_prepare(struct abci_shm *shm, int rank, int nranks); /* own control block, zeroed */
int abci_shm_bind(struct abci_shm *shm, int peer, struct abci_segment *segment, uint64_t control_offset, int pidfd);
/* Say goodbye to all peers' blocks. Afterwards only abci_shm_free may be used, once abci_shm_unused. */
void abci_shm_leave(struct abci_shm *shm);
/* After a creation that failed: let go of the peers' memory and descriptors now, keep the own block for those who have it mapped.
 */
void abci_shm_abandon(struct abci_shm *shm);
bool abci_shm_unused(struct abci_shm *shm); /* every peer has left or is dead */
void abci_shm_free(struct abci_shm *shm);

/*
 * Neighbouring operations use slots at changing distances (bit-reversed numbers, a hex digit each, from the right): at equal ones
 * the CPU foresees the next line and fetches it early, and a line that both ranks hold takes longer to change hands.
 */
#define ABCI_SLOT_ORDER 0xf7b3d591e6a2c480ull
static inline struct abci_header_slot *abci_shm_header(const struct abci_control *c, uint32_t sequence)
{
    return (struct abci_header_slot *)&c->header[ABCI_SLOT_ORDER >> sequence % ABCI_SLOTS * 4 & 15];
}
/* Where a payload of so many bytes lies. */
static inline uint8_t *abci_shm_payload(const struct abci_header_slot *slot, uint64_t bytes)
{
    return (uint8_t *)(bytes <= ABCI_INLINE_LINE ? slot->head.payload : slot->payload);
}
static inline struct abci_counter *abci_shm_counter(const struct abci_control *c, uint32_t sequence, int counter)
{
    return (struct abci_counter *)&c->counter[sequence % ABCI_SLOTS][counter];
}
/*
 * Has the counter of this instance reached value? Acquire: pairs with abci_shm_raise. The sequence must be equal: a counter that
 * was last used 2^31 sequences ago would otherwise look like one of the future. It cannot be ahead: its slot waits for this rank.
 */
static inline bool abci_shm_reached(const struct abci_counter *counter, uint32_t sequence, uint32_t value)
{
    uint64_t word = atomic_load_explicit(&counter->word, memory_order_acquire);
    return (uint32_t)(word >> 32) == sequence && (uint32_t)word >= value;
}

/* Does the rank sleep until the owner of c writes? Both bits must be set, see wait.c: the first alone may be another rank's. */
static inline bool abci_shm_is_waiter(const struct abci_control *c, uint32_t rank)
{
    bool noted = atomic_load_explicit(&c->waiters, memory_order_relaxed) >> (rank % 64) & 1;
    if (c->nranks <= 64 || !noted)
        return noted;
    return rank < ABCI_MAX_RANKS && (atomic_load_explicit(&c->waiter[rank / 64], memory_order_relaxed) >> (rank % 64) & 1);
}
/* Between two looks of a wait that spins; spins counts them, up or down. */
void abci_shm_give_way(const struct abci_shm *shm, const uint16_t *blocked, int nblocked);
static inline void abci_shm_relax(const struct abci_shm *shm, uint32_t spins, const uint16_t *blocked, int nblocked)
{
    if (ABCI_UNLIKELY(spins % 64 == 0)) /* 1 to 2 us, as long as a turn of the scheduler */
        abci_shm_give_way(shm, blocked, nblocked);
    else
        abci_pause();
}
void abci_shm_ring_waiters(struct abci_shm *shm);
/* Wake who sleeps on this rank. Call after every store that a peer may wait for. */
static inline void abci_shm_notify(struct abci_shm *shm)
{
    if (ABCI_UNLIKELY(!shm->barrier_by_kernel))
        atomic_thread_fence(memory_order_seq_cst); /* store before load of waiters; else the sleeper's membarrier orders them */
    atomic_signal_fence(memory_order_seq_cst);
    if (ABCI_UNLIKELY(atomic_load_explicit(&shm->control->waiters, memory_order_relaxed)))
        abci_shm_ring_waiters(shm);
}
/* Publish progress of an instance. Release: pairs with abci_shm_reached. */
static inline void abci_shm_raise(struct abci_shm *shm, uint32_t sequence, int counter, uint32_t value)
{
    atomic_store_explicit(&abci_shm_counter(shm->control, sequence, counter)->word, ((uint64_t)sequence << 32) | value,
                          abci_mutated("c10_relaxed_raise") ? memory_order_relaxed : memory_order_release);
    abci_shm_notify(shm);
}
/* Move the done watermark. Release: everything read from peers was read before; pairs with abci_shm_peer_done. */
static inline void abci_shm_done(struct abci_shm *shm, uint32_t sequence)
{
    atomic_store_explicit(&shm->control->done, sequence,
                          abci_mutated("c10_relaxed_done") ? memory_order_relaxed : memory_order_release);
    abci_shm_notify(shm);
}
/* Has the peer's watermark reached sequence? Looks at its line only when what is known does not suffice. */
static inline bool abci_shm_peer_done(struct abci_shm_peer *peer, uint32_t sequence)
{
    if ((int32_t)(peer->done - sequence) >= 0)
        return true;
    peer->done = atomic_load_explicit(&peer->control->done, memory_order_acquire);
    return (int32_t)(peer->done - sequence) >= 0;
}

/* ---- fail.c: the one door ---- */
static inline bool abci_shm_failed(const struct abci_shm *shm)
{
    return ABCI_UNLIKELY(atomic_load_explicit(&shm->failure->state, memory_order_acquire) != 0);
}
/* First caller wins; rings every rank. culprit -1: unknown. calls may be NULL. Any thread. */
void abci_shm_fail(struct abci_shm *shm, int status, int culprit, const struct abci_call_id *mine,
                   const struct abci_call_id *theirs, const char *format, ...) ABCI_PRINTF(6, 7);
/* Copy of the record once state != 0; waits for the writer to complete it, not longer than a second. Returns the status. */
int abci_shm_failure(const struct abci_shm *shm, struct abci_failure *copy);
/*
 * The communicator has failed: wait until no other rank of this process is inside a pass, where it may read this rank's buffers and
 * staging; a later pass sees the failure first. Ranks of other processes may be stopped and are not waited for. At most the
 * communicator's timeout.
 */
void abci_shm_settle(struct abci_shm *shm);
/* "allreduce(count 14, f32, sum)". */
void abci_call_describe(const struct abci_call_id *call, char *text, size_t capacity);

/* ---- wait.c ---- */
/* State of one wait without progress; zero it whenever something has moved. */
struct abci_waiting {
    uint32_t spins;
    bool armed;       /* waiters' bits are set: look once more, then sleep */
    bool brief;       /* armed without the kernel's barrier: sleep only a little */
    bool said;        /* the "waiting for" line has been written */
    uint32_t bell;    /* doorbell before arming */
    double since;     /* start of the wait, 0 until it lasts */
    double next_look; /* without sleeping: when to look again at who is alive */
};
/*
 * Nothing moved: spin, yield, or (may_sleep) sleep until one of the blocked peers writes, at most 100 ms. Returns ABC_PENDING to
 * look again, ABC_ERR_PEER or ABC_ERR_TIMEOUT with *culprit set when waiting is pointless. timeout in seconds for this wait.
 */
int abci_shm_wait(struct abci_shm *shm, struct abci_waiting *w, const uint16_t *blocked, int nblocked, double timeout,
                  bool may_sleep, int *culprit);
/* Every thread of the job passes a full fence now, for those that go without one; nothing where they have one. A system call. */
void abci_shm_order_others(const struct abci_shm *shm);
/* Something moved: take back the bits. */
void abci_shm_wait_over(struct abci_shm *shm, struct abci_waiting *w, const uint16_t *blocked, int nblocked);
void abci_shm_ring(struct abci_control *control);
/* Choose the policy from ranks on this host and CPUs. */
void abci_shm_wait_policy(struct abci_shm *shm, double timeout);
bool abci_shm_peer_gone(const struct abci_shm *shm, int peer);

/* ---- handshake.c: passing memfds and pidfds over a Unix socket ---- */
struct abci_passed {
    int memfd, pidfd;
};
/* Rank 0: an abstract listening socket with a random name. */
int abci_handshake_listen(int *fd, char name[64]);
/* Asked a few times a second while rank 0 waits for others: ABC_OK as long as all are well, else an error with a text. */
struct abci_watch {
    int (*look)(void *context);
    void *context;
};
/*
 * Rank 0 collects the descriptors of all and gives them to all; others connect to `name`. token is the creation's secret. passed
 * gets nranks rows, owned by the caller. Ends with an error at the deadline, or when the watch (may be NULL) tells one.
 */
int abci_handshake(int rank, int nranks, int listen_fd, const char *name, const unsigned char token[32], double timeout,
                   const struct abci_watch *watch, struct abci_passed *passed);

/* ---- remote.c: reading a peer's private memory by process_vm_readv ---- */
/* One trial read of every peer's control block; fills peer[].readable. */
void abci_shm_try_remote(struct abci_shm *shm);
/* Read bytes at an address of the peer's process. ABC_ERR_PEER with errno set. */
int abci_shm_read_remote(const struct abci_shm *shm, int peer, void *to, uint64_t from, uint64_t bytes);
/* Does this memory of the process lie in huge pages, which peers read quickly? False where the kernel does not tell: before 6.7. */
bool abci_shm_is_huge(const void *memory, uint64_t bytes);

#endif
