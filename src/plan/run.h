/*
 * run.h - stage 3: the executor. An engine advances all operations of one rank in one communicator; it is the only caller of the
 * transport and of the reductions. Every operation is a resumable state machine: nobody blocks inside it, whoever holds the claim
 * drives all of it.
 */
#ifndef ABCI_RUN_H
#define ABCI_RUN_H

#include <stdatomic.h>

#include "diag/event.h"
#include "plan/part.h"
#include "plan/plan.h"
#include "reduce/reduce.h"
#include "transport/shm.h"

/* A plan with what the executor derives from it once. Immutable. */
struct abci_runnable {
    struct abci_plan *plan;
    uint32_t hash;       /* of the name */
    uint32_t lead;       /* leading PUBLISH steps of IN on counter 0, fused with the header */
    uint16_t lead_value; /* what they raise counter 0 to */
    bool publishes_in, publishes_out;
    uint16_t first_shown[2], last_shown[2]; /* of IN, OUT: all published and staged blocks lie between these, if there are any */
    bool in_by_lead;                        /* IN is published by the leading steps only */
    bool reads_lead;                        /* this rank reads IN blocks of peers */
    bool single_values; /* every other PUBLISH is the only one of its counter: small blocks may travel in its line */
    bool pairs;         /* two ranks, of which each shows one block of IN and adds one of the peer's to its own: see run_pair.c */
    bool reads_ahead;   /* peers' IN goes to OUT and nowhere else: remote blocks are read as wholes, see run_step.c */
    bool keeps_staging; /* its staging may be in use when its readers are over: temporaries, or a plan that a caller has loaded */
};
/* Takes over the plan. NULL when there is no memory or the plan uses a step kind that the executor does not know. */
struct abci_runnable *abci_runnable_make(struct abci_plan *plan);
void abci_runnable_free(struct abci_runnable *runnable);

/* What was measured at start-up; rank 0's values hold for all. */
struct abci_machine {
    struct abci_price_constants price;
    double staged[2];   /* seconds per byte: write a block that the peer has read (plain, streaming), the peer reads it */
    double remote_call; /* process_vm_readv: seconds per call, per byte; 0: not measured */
    double remote_byte;
    uint8_t stream_shared; /* what a peer has read is overwritten by streaming stores: staging, peers' outputs */
    uint8_t measured;
    uint32_t remote_from; /* private areas of so many KiB and more are read by process_vm_readv; 0: never */
    uint32_t remote_huge; /* or blocks of so many KiB, in huge pages and for a single reader; see run_stage.c */
};
/*
 * run_probe.c: ranks 0 and 1 measure, once in the life of rank 0's process; called by all ranks after binding. Takes a few
 * milliseconds at most; where the peers do not answer in time the built-in values stay.
 */
void abci_probe(struct abci_shm *shm, struct abci_machine *machine);

/* What a call reads and writes here in bytes, and how far the output lies behind the input when they are one (modulo 2^64). */
struct abci_room {
    uint64_t in, out, apart;
};
/* In place, or apart from each other? */
static inline bool abci_room_fits(const struct abci_room *room, const void *in, const void *out)
{
    uint64_t apart = (uint64_t)((uintptr_t)out - (uintptr_t)in);
    return apart == room->apart || apart - room->in <= 0 - (room->in + room->out) || room->in == 0 || room->out == 0;
}

enum abci_request_state {
    ABCI_REQUEST_IDLE,
    ABCI_REQUEST_STARTED,
    ABCI_REQUEST_CALLBACK,
    ABCI_REQUEST_COMPLETE,
    ABCI_REQUEST_FREED,
    ABCI_REQUEST_GROUPED /* starts at the end of its group */
};

/* One operation. On the stack for blocking calls, from the heap otherwise. */
struct abc_request {
    abc_comm *comm;
    const struct abci_runnable *run;
    struct abci_call_id id;
    struct abci_shape shape; /* of the whole call; first and length are set for each chunk */
    struct abci_reduction reduction;
    struct abci_user_op user;
    const char *in;
    char *out;
    struct abci_room room;
    uint64_t direct[2]; /* offset of in, out in the own segment */
    bool is_direct[2];
    const struct abci_runnable *direct_run; /* for buffers in the arena on all ranks; NULL: this rank does not offer its own */
    uint64_t chunk_bytes;
    uint64_t planned;                  /* chunks, unless the direct plan is run: that takes one */
    uint64_t chunks, issued, finished; /* of the run under way */
    uint32_t first_sequence;           /* of the first chunk: the operation's number; 0 before it is issued */
    double timeout;
    int status;
    _Atomic int state;
    struct abc_request *next; /* inbox, issue queue, callback list: one at a time */
    abc_callback callback;
    void *callback_context;
    const char *unscaled; /* of a scaled sum: the caller's input; `in` is where the products go */
    void *products;       /* their room, where neither buffer can hold them */
    void *backup;         /* preserve: copy of in-place input */
    uint64_t backup_bytes;
    uint64_t extent[2];         /* bytes of in and out */
    struct abci_counts *counts; /* blocks of different sizes; NULL: all alike */
    bool in_place, persistent, heap, counted;
    bool ran_direct;              /* all ranks have offered their buffers */
    bool pairs;                   /* run_pair.c may run it */
    bool remote[2];               /* peers read in, out by process_vm_readv; the same for all chunks */
    bool read_in_place;           /* peers read a chunk of this run where the caller has it */
    bool plain;                   /* no option differs from the defaults */
    bool message;                 /* to or from one peer: see run_mail.c; `run` is NULL */
    bool may_join;                /* its result has the same bits as part of a longer operation: see api/group.c */
    bool joined;                  /* it is part of one now */
    bool deferred;                /* a blocking call in a group: the group waits for it */
    bool dropped;                 /* never started, because its group failed */
    struct abc_request *sibling;  /* the group's next */
    struct abc_request **members; /* of several joint operations: see run_joint.c; else NULL */
    uint32_t nmembers;
    int tag;
    struct {
        int peer;        /* ABC_ANY_SOURCE: any */
        uint8_t mode;    /* enum abci_mail_mode */
        uint8_t slot;    /* of the receiver: where the message is */
        bool refused;    /* it does not fit the receive: got_* say what it is */
        uint64_t number; /* of the message in its pair */
        uint64_t bytes, moved;
        int source, got_tag;
        uint8_t got_type;
        uint64_t got_count;
        abc_received *received; /* the caller's, or NULL */
    } mail;
};

struct abci_engine;

/*
 * Counts of a call whose blocks differ. Where only sender and receiver know them (ABCI_PAIRS) they are exchanged first, by a
 * request of its own that runs just before. `told` has a row for each rank: how many elements this rank thinks that it sends or
 * gets, the most that it knows of any block, and the block itself if that most leaves room for it; `heard` has the same from
 * others. From the heap; kept for the next call.
 */
#define ABCI_COUNTS_WORDS (2 * sizeof(uint64_t)) /* at the beginning of a row */
struct abci_counts {
    struct abci_vector vector;
    struct abc_request *first; /* the exchange, or NULL */
    char *told, *heard;        /* [nranks] rows of an alltoallv; of the rooted ones told is the root's, heard has one row */
    uint64_t row;              /* bytes of a row: what leaves all of them in a header, where that is possible */
    uint64_t most;             /* of any block that this rank knows */
    uint64_t total;            /* of all blocks, where this rank knows them */
    const uint64_t *expected;  /* [nranks] what must be heard from each; NULL: only from the root, `mine` */
    uint64_t mine;
};
/* run_counts.c: put the blocks beside their counts before the exchange starts, if all fit. */
void abci_counts_pack(const struct abci_engine *engine, const struct abc_request *request);
/*
 * The exchange is over: compare, and see how many chunks it takes. ABCI_DELIVERED: none, the exchange has brought the blocks.
 * Negative: mismatch, the communicator has failed.
 */
#define ABCI_DELIVERED 1
int abci_counts_settle(struct abci_engine *engine, struct abc_request *request);

#define ABCI_EAGER (16 << 10)    /* IN areas up to this size are staged before the header is stored */
#define ABCI_TINY_MAX (64 << 10) /* with two ranks, in ordinary memory; else ABCI_EAGER */
#define ABCI_TINY_KINDS 16       /* a power of two; two kinds may want the same place, then each makes the other forgotten */

/* What is left to do when the peers' pieces are known. NONE: an empty place. */
enum abci_tiny_work { ABCI_TINY_NONE, ABCI_TINY_REDUCE, ABCI_TINY_MOVE, ABCI_TINY_LISTS };

/* Of a short call with a count for each rank: its lists, and in bytes what goes to and comes from each. From the heap. */
struct abci_lists {
    uint64_t *count[2], *offset[2]; /* as in struct abci_vector, but of wide buffers only */
    uint64_t row;                   /* blocks travel in rows beside their counts (struct abci_counts); 0: the peers know them */
    uint64_t most;                  /* elements of any block that this rank knows */
    uint64_t hash;
    struct abci_parcel {
        uint32_t from, sent, to, got;
    } parcel[];
};

/* run_learn.c: a short call, kept for the next one like it; run_tiny.c does it. IN and OUT are the caller's buffers here. */
struct abci_tiny {
    uint8_t work;
    bool staged;                    /* this rank's input does not fit its header: it is staged */
    bool large;                     /* more than ABCI_EAGER: not for buffers in the arena */
    bool swaps;                     /* two ranks, what is read is fetched ahead: large, or of a type that takes many instructions */
    bool reads_staged;              /* so do the inputs that it reads */
    bool listens;                   /* this rank shows nothing, but reads */
    bool moves_own;                 /* MOVE: from IN + own to OUT + own_to, too */
    uint16_t first, end;            /* peers that are waited for and read; this rank among them is left out */
    uint16_t wanted;                /* what their counter 0 must say */
    uint32_t fetch, fetch_end;      /* or these bytes behind the first line of the peers' headers are fetched; 0: none */
    uint32_t shown;                 /* bytes of IN in the own header */
    uint32_t at, piece;             /* which bytes of a peer's area of IN are read */
    uint32_t own, own_to, to, step; /* MOVE: peer r's go to OUT + to + (r - first) * step */
    struct {                        /* to staging: so many pieces of IN, one behind another there */
        uint32_t pieces, from, to, bytes, stride, base, room; /* base: where staging begins in the area; room: its bytes */
    } copy;
    struct abci_lists *lists;  /* blocks of different sizes; NULL: all alike */
    uint32_t hash;             /* of the call, for the chain */
    struct abci_header header; /* the own one, as far as it is known before: from `collective` to `count` */
    uint64_t wants, mask;      /* the same bytes of a peer's up to counter0, and which of them are compared */
    struct abci_event record;  /* what both records of the call have in common */
    struct abc_request like;   /* the call as it was prepared; its buffers mean nothing any more */
};

/* A message with no option set, to or from one named peer; the arguments are sound. */
struct abci_brief {
    const char *in;
    char *out;
    uint64_t count;         /* of a receive: room */
    uint64_t element;       /* bytes of one */
    abc_received *received; /* of a receive, or NULL */
    int peer, tag;          /* ABC_ANY_TAG: any */
    uint8_t type;
    bool send;
};

struct abci_instance;
struct abci_region;
struct abci_mailroom;

struct abci_engine {
    struct abci_shm *shm;
    struct abci_machine machine;
    int pipeline;
    bool has_progress;    /* a progress thread may drive: started requests are counted, and it is woken for them */
    bool offers;          /* every peer is another process: buffers in the arena may be offered, see run_offer.c */
    uint64_t stream_from; /* bytes of an operation whose output is streamed: it outgrows the caches */
    /* between threads */
    _Atomic uint32_t *claim;             /* enum abci_claim; in the control block */
    _Atomic uint32_t event;              /* futex: claim released or a request of somebody else completed */
    _Atomic uint32_t sleepers;           /* threads on `event` */
    _Atomic uint32_t idle;               /* futex: 1 while the progress thread sleeps */
    _Atomic(struct abc_request *) inbox; /* started, not yet queued; newest first */
    _Atomic uint32_t outstanding;        /* requests for the progress thread: started, not complete */
    /* of the claim's holder */
    uint32_t next_sequence;
    uint32_t reads_over;      /* the done watermark */
    uint32_t reads_over_mask; /* bit i: sequence reads_over + 1 + i reads nothing more */
    uint32_t slots_free_to;   /* peers' watermarks allow sequences up to it */
    uint32_t chain;
    struct abc_request *queue, **queue_end;         /* not fully issued, in order */
    struct abc_request *callbacks, **callbacks_end; /* complete, in the order of completion */
    struct abci_instance *instance;                 /* [ABCI_SLOTS] */
    uint32_t pairing;                               /* requests in the queue or in flight that pair */
    uint32_t active;                                /* bit slot: instance in flight */
    struct abci_region *regions;
    uint8_t token[2 * ABCI_SWAPS]; /* staging tokens that are this rank's to write, latest last */
    int tokens;
    uint16_t *blocked; /* peers that the last pass waited for */
    int nblocked;
    uint64_t is_blocked[ABCI_MAX_RANKS / 64];
    struct abci_waiting waiting;
    int suspect;            /* peer that looked dead at the last look, -1 */
    const void **sources;   /* operands of the reduction under way */
    struct source *located; /* where each peer's piece of it lies */
    char *remote;           /* tiles read by process_vm_readv */
    int status;             /* ABC_OK, or why the communicator ended */
    bool starting;          /* this pass announces and matches messages, but copies no long ones: the caller has more to start */
    bool undecided;         /* the queue's first operation takes one sequence or several: see run_offer.c */
    bool header_stored;     /* run_tiny.c has stored the header of next_sequence, for the queue's first request */
    struct abci_tiny *short_out; /* whose header that is, and the chain up to it */
    uint32_t short_chain;
    uint64_t looked;                        /* run_tiny.c: ticks at the last look at the clock */
    struct abci_tiny tiny[ABCI_TINY_KINDS]; /* by kind of call, see run_learn.c */
    uint64_t lists_seen;                    /* hash of the last call's counts: learnt when they come again */
    struct abci_mailroom *mail;             /* messages to and from one peer */
    uint32_t messages;                      /* of those, started and not complete */
    _Atomic(struct abc_request *) leads;    /* spare ones, see run_joint.c; taken and given by any thread */
    _Atomic int nleads;
};

int abci_engine_open(struct abci_engine *engine, struct abci_shm *shm, uint32_t seed);
void abci_engine_close(struct abci_engine *engine);
/* Tiles for reading peers' private memory; needed before any peer publishes that way. */
int abci_engine_allow_remote(struct abci_engine *engine);
/* Run a prepared request to its end on this thread; returns its status. */
int abci_engine_run(struct abci_engine *engine, struct abc_request *request);
/*
 * The same for a short call with no option set, if one like it has been prepared before. ABC_OK; ABC_PENDING: nothing has happened;
 * ABC_ERR_PEER: the communicator has ended; ABCI_LATE: the header is stored, a peer is late, the claim stays with the caller, who
 * must go on with the same call by abci_engine_run_late.
 */
#define ABCI_LATE 2
int abci_engine_run_tiny(struct abci_engine *engine, const abc_call *call);
int abci_engine_run_late(struct abci_engine *engine, struct abc_request *request);
/* The caller cannot go on: the communicator ends with the thread's last error. */
void abci_engine_drop_late(struct abci_engine *engine, int status);
/*
 * Short messages on an idle engine, one after another: returns how many of them are over. Of the next one nothing has happened:
 * there is no free slot, it is long, its message is late or another one came; abci_engine_run does it.
 */
int abci_engine_run_briefs(struct abci_engine *engine, const struct abci_brief *messages, int count);
/*
 * Start without blocking; wait and test below complete it. Of a short call that the engine knows only the header is stored
 * here, and peers' memory is left alone: a look at a header that is not there yet would slow down the peer that is about to write
 * it.
 */
void abci_engine_start(struct abci_engine *engine, struct abc_request *request);
/*
 * run_joint.c: several operations of one kind as one. take gives the request that stands for them, with room for so many members
 * and bytes, or NULL without memory; the caller prepares it for that room and sets its members. When it is over they are complete,
 * and it is back among the spare ones.
 */
#define ABCI_JOINT_MEMBERS 256
#define ABCI_JOINT_BYTES (32 << 10)
struct abc_request *abci_joint_take(struct abci_engine *engine, char **in, char **out);
void abci_joint_give(struct abci_engine *engine, struct abc_request *lead);
void abci_joint_close(struct abci_engine *engine); /* frees the spare ones */
void abci_engine_start_joint(struct abci_engine *engine, struct abc_request *lead);
int abci_engine_wait(struct abci_engine *engine, struct abc_request *request);
/* quiet, where not NULL: is lowered to the seconds for which nothing has moved here, unless another thread drives. */
int abci_engine_test(struct abci_engine *engine, struct abc_request *request, double *quiet);
/* Is a started request not complete? For the owner's question only: others may start one at any moment. */
bool abci_engine_busy(struct abci_engine *engine);
/* Body of the progress thread; has_progress is set before it starts: drives whenever something is outstanding, until *stop. */
void abci_engine_progress(struct abci_engine *engine, _Atomic int *stop);
void abci_engine_poke(struct abci_engine *engine); /* let the progress thread look at *stop */
/* Wait until every peer has stopped reading what this rank published; bounded by timeout. */
int abci_engine_drain(struct abci_engine *engine, double timeout);
/* At the end: ABC_ERR_MISMATCH with a text when a message to this rank was never received. */
int abci_mail_unreceived(struct abci_engine *engine);

/* Stop points for tests: called at each step with (rank, sequence, step); a constant no-op otherwise. */
enum {
    ABCI_STOP_TAKE = -4,
    ABCI_STOP_SEND = -3,
    ABCI_STOP_HEADER = -2,
    ABCI_STOP_LAST = -1
}; /* besides steps: a message is read, or written, but not taken, or published; before the header is stored; before the last look
      at the record */
#ifdef ABCI_HOOKS
extern void (*abci_hook)(int rank, uint32_t sequence, int step);
extern bool abci_offer_to_threads; /* as if every peer were another process */
/* May change what was measured, at the end of a communicator's creation: choices then are those of another machine. */
extern void (*abci_hook_measured)(struct abci_engine *engine);
#define ABCI_HOOK(rank, sequence, step) (abci_hook ? abci_hook((rank), (sequence), (step)) : (void)0)
#define ABCI_HOOK_MEASURED(engine) (abci_hook_measured ? abci_hook_measured(engine) : (void)0)
#else
#define ABCI_HOOK(rank, sequence, step) ((void)0)
#define ABCI_HOOK_MEASURED(engine) ((void)0)
#endif

#endif
