/*
 * plan.h - stage 3: what every rank does in one collective, as plain data. Emitted by src/algo/ through the builder, run by run.c,
 * proved by check.c, priced by price.c, printed and read by print.c and json.c. Immutable once built, shared by threads; holds no
 * pointers to user memory and no sizes: part.c alone turns blocks into bytes.
 *
 * A plan describes one *instance*: one chunk of an operation. A long operation is a row of instances of the same plan.
 */
#ifndef ABCI_PLAN_H
#define ABCI_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <abcomm/abcomm.h>

#define ABCI_COUNTERS 4     /* counters of an instance that a plan may name */
#define ABCI_MAX_TMP 16     /* temporaries of a plan */
#define ABCI_MAX_RANKS 1024 /* of one communicator */
#define ABCI_MAX_STEPS 8192 /* of one rank */
#define ABCI_NAME_MAX 32

#define ABCI_PLANNED (ABC_EXSCAN + 1) /* collectives that have plans; those behind run the plans of abci_plain */

/* What the collectives have in common, as bit masks over abc_collective. */
#define ABCI_REDUCING                                                                                                              \
    (1u << ABC_REDUCE_SCATTERV | 1u << ABC_ALLREDUCE | 1u << ABC_REDUCE_SCATTER | 1u << ABC_REDUCE | 1u << ABC_SCAN |              \
     1u << ABC_EXSCAN)
#define ABCI_PREFIX (1u << ABC_SCAN | 1u << ABC_EXSCAN) /* each rank's sum ends at that rank */
#define ABCI_ROOTED                                                                                                                \
    (1u << ABC_BROADCAST | 1u << ABC_REDUCE | 1u << ABC_GATHER | 1u << ABC_SCATTER | 1u << ABC_GATHERV | 1u << ABC_SCATTERV)
/* A count for each rank; and those of them where only sender and receiver know it. */
#define ABCI_VECTOR                                                                                                                \
    (1u << ABC_GATHERV | 1u << ABC_SCATTERV | 1u << ABC_ALLGATHERV | 1u << ABC_REDUCE_SCATTERV | 1u << ABC_ALLTOALLV)
#define ABCI_PAIRS (1u << ABC_GATHERV | 1u << ABC_SCATTERV | 1u << ABC_ALLTOALLV)
/* Buffers that only the root has. */
#define ABCI_IN_AT_ROOT (1u << ABC_BROADCAST | 1u << ABC_SCATTERV | 1u << ABC_SCATTER)
#define ABCI_OUT_AT_ROOT (1u << ABC_REDUCE | 1u << ABC_GATHERV | 1u << ABC_GATHER)

/* The collective with equal blocks whose plans a collective runs. */
static inline abc_collective abci_plain(abc_collective collective)
{
    switch (collective) {
    case ABC_GATHERV:
        return ABC_GATHER;
    case ABC_SCATTERV:
        return ABC_SCATTER;
    case ABC_ALLGATHERV:
        return ABC_ALLGATHER;
    case ABC_REDUCE_SCATTERV:
        return ABC_REDUCE_SCATTER;
    case ABC_ALLTOALLV:
        return ABC_ALLTOALL;
    default:
        return collective;
    }
}

static inline bool abci_is(unsigned mask, unsigned collective)
{
    return collective < 32 && mask >> collective & 1; /* it may come from a broken process */
}

/* What a step does. The kinds from PUSH on are reserved: the checker and the executor refuse them until a user of them exists. */
enum abci_kind {
    ABCI_PUBLISH, /* make `src` readable by the ranks in the peer list, then raise own `counter` to `value` */
    ABCI_FETCH,   /* wait for the one peer, copy its `src` to own `dst` */
    ABCI_REDUCE,  /* wait for all peers, own `dst` = peers' `src` blocks and own block `own`, combined in the order of the operands
                   */
    ABCI_COPY,    /* own `src` to own `dst` */
    ABCI_AWAIT,   /* wait for all peers, read nothing */
    ABCI_PUSH,
    ABCI_ENCODE,
    ABCI_DECODE_REDUCE,
    ABCI_FORWARD_FRAME,
    ABCI_GROUP,
    ABCI_DEVICE_COPY,
    ABCI_KIND_COUNT
};

/* Buffers that a plan names. ABCI_TMP + k is temporary k; temporaries live in memory that peers can read directly. */
enum abci_buffer { ABCI_IN = 0, ABCI_OUT = 1, ABCI_TMP = 2, ABCI_NONE = 255 };

enum abci_step_flags {
    ABCI_FINAL = 1, /* REDUCE: completes the reduction over all ranks (avg divides here; bf16 rounds here) */
    /* REDUCE, FETCH, COPY: `dst` is published next, so the result also goes where peers read it (saves a copy). Counts even for a
     * COPY of a block onto itself, as it happens in place. */
    ABCI_STAGE = 2,
    ABCI_STAGED = 4, /* PUBLISH: an ABCI_STAGE step has put the bytes there already */
    /* REDUCE into OUT: the result also goes to the same block of OUT of every peer in the list. Makes the plan direct. */
    ABCI_SPREAD = 8
};

/* `count` consecutive blocks of a buffer. count 0: nothing (barriers). */
struct abci_ref {
    uint8_t buffer;
    uint16_t block;
    uint16_t count;
};

/* One rank in a peer list. Readers: wait until its `counter` has reached `value`. PUBLISH: a reader (counter, value unused, 0). */
struct abci_peer {
    uint16_t rank;
    uint8_t counter;
    uint16_t value;
};

struct abci_step {
    uint8_t kind;  /* enum abci_kind */
    uint8_t flags; /* enum abci_step_flags */
    uint8_t counter;
    uint16_t value;
    struct abci_ref src; /* PUBLISH, COPY: own; FETCH, REDUCE: of each peer */
    struct abci_ref own; /* REDUCE: own operand, or buffer ABCI_NONE */
    struct abci_ref dst; /* FETCH, REDUCE, COPY */
    uint16_t own_at;     /* REDUCE: position of the own operand among the operands: before peer `own_at` of the list */
    uint32_t peer;       /* first entry in plan->peers */
    uint16_t npeers;
    int32_t after[2]; /* own steps that must be complete first, -1 for none */
};

/* One rank's plan. */
struct abci_plan {
    char name[ABCI_NAME_MAX]; /* algorithm */
    uint8_t collective;       /* abc_collective */
    bool rank_order;          /* claims that floats are added as ((x0 + x1) + x2) + ... */
    bool ordered;        /* claims that operands stay in rank order, however bracketed: safe for operations that do not commute */
    bool stage_in_place; /* this rank overwrites IN (as OUT) while peers may read it: in place, IN must be staged, never direct */
    /* Has an ABCI_SPREAD step, thus writes into peers' OUT: for buffers that every rank can reach where they are, on all ranks, and
     * nothing else. When a rank's steps are over no peer touches its buffers any more. Derived by abci_plan_index. */
    bool direct;
    uint16_t nranks;
    uint16_t rank;
    uint16_t root;
    uint16_t nblocks; /* blocks that part.c cuts a buffer into; see part.h */
    uint8_t ntmp;
    uint32_t nsteps;
    uint32_t npeers;
    uint16_t nsources; /* distinct ranks whose blocks or counters this rank waits for, ascending */
    uint16_t nreaders; /* distinct ranks that read this rank's blocks, ascending */
    struct abci_step *steps;
    struct abci_peer *peers;
    uint16_t *sources;
    uint16_t *readers;
};

void abci_plan_free(struct abci_plan *plan);
/* The peer list of a step; NULL when it is empty. */
static inline const struct abci_peer *abci_plan_peers(const struct abci_plan *plan, const struct abci_step *step)
{
    return step->npeers > 0 ? plan->peers + step->peer : NULL;
}
/* Fill sources, readers and direct from the steps (builder and parser do; they must be empty). */
int abci_plan_index(struct abci_plan *plan);

/* ---- Builder: what an algorithm file sees ---- */

/* Given to abci_algo.build. The first fields are inputs; the algorithm sets nblocks and ntmp, then adds steps. */
struct abci_builder {
    abc_collective collective;
    int rank, nranks, root;
    int nblocks, ntmp;
    bool stage_in_place;    /* see abci_plan; set by the algorithm, default false */
    int status;             /* first error; later calls do nothing */
    struct abci_plan *plan; /* private to build.c */
    struct abci_build_state *state;
};

/* An algorithm: one file in src/algo/, one const object named abci_algo_NAME, one word in src/algo/meson.build.
 * With one rank build is not called: the plan is one COPY of IN to OUT. */
struct abci_algo {
    const char *name;
    const char *doc;      /* one sentence: steps, bytes, when it wins */
    unsigned collectives; /* bit mask: 1u << abc_collective */
    bool rank_order;      /* see abci_plan */
    bool ordered;         /* see abci_plan */
    bool direct;          /* see abci_plan; never chosen for other buffers */
    int min_ranks, max_ranks;
    void (*build)(struct abci_builder *b);
};

static inline struct abci_ref abci_ref(int buffer, int block, int count)
{
    struct abci_ref r = {(uint8_t)buffer, (uint16_t)block, (uint16_t)count};
    return r;
}

/*
 * Add a step; each returns its index, or -1 once b->status is set. A step waits for the one added before it unless abci_b_after was
 * called just before adding it. PUBLISH steps of one counter take effect in list order whatever they wait for. A wait names the
 * value of a PUBLISH that names the waiting rank as a reader; it also covers blocks published to it under smaller values of that
 * counter.
 */
void abci_b_after(struct abci_builder *b, int step0, int step1);              /* the next step waits for these (-1: none) instead */
void abci_b_flags(struct abci_builder *b, int flags);                         /* flags of the next step */
int abci_b_publish(struct abci_builder *b, int counter, struct abci_ref src); /* value = 1, 2, ... per counter */
void abci_b_reader(struct abci_builder *b, int rank);                         /* add a reader to the last PUBLISH */
int abci_b_fetch(struct abci_builder *b, int peer, int counter, int value, struct abci_ref src, struct abci_ref dst);
int abci_b_copy(struct abci_builder *b, struct abci_ref src, struct abci_ref dst);
int abci_b_reduce(struct abci_builder *b, struct abci_ref src, struct abci_ref dst); /* then operands, in order */
void abci_b_operand(struct abci_builder *b, int peer, int counter, int value);
void abci_b_own(struct abci_builder *b, struct abci_ref own); /* at most once per REDUCE, at its place among the operands */
int abci_b_await(struct abci_builder *b);                     /* then peers */
void abci_b_awaited(struct abci_builder *b, int peer, int counter, int value);

/* All built-in algorithms, NULL-terminated; from the generated list. */
extern const struct abci_algo *const abci_algos[];
const struct abci_algo *abci_algo_find(const char *name);
bool abci_algo_fits(const struct abci_algo *algo, abc_collective coll, int nranks);

/* Build one rank's plan. ABC_ERR_UNSUPPORTED when the algorithm does not do the collective, ABC_ERR_PLAN when it is malformed. */
int abci_plan_build(const struct abci_algo *algo, abc_collective coll, int nranks, int rank, int root, struct abci_plan **plan);

/* ---- Sets: the plans of all ranks ---- */

struct abci_plan_set {
    int nranks;
    struct abci_plan **plan; /* [nranks] */
};
int abci_plan_set_build(const struct abci_algo *algo, abc_collective coll, int nranks, int root, struct abci_plan_set *set);
void abci_plan_set_free(struct abci_plan_set *set);

/* Structure only (indices in range, counters ascending, kinds known, lists sorted); every plan passes it before it is run. */
int abci_plan_validate(const struct abci_plan *plan, char *why, size_t capacity);

/* What the checker found. */
struct abci_check_report {
    int status;         /* ABC_OK or ABC_ERR_PLAN */
    char text[256];     /* first fault: rank, step, block */
    int steps;          /* reading steps one after another on the critical path */
    int blocks;         /* blocks read one after another on the critical path */
    bool rank_order;    /* every reduction adds in rank order */
    uint64_t max_steps; /* of any rank */
};
/*
 * Simulate all ranks symbolically, out of place and in place, direct and staged. Proves that every output block has each rank's
 * contribution exactly once and in the claimed order, that no block is read while it may be written (happens-before), and that
 * nothing deadlocks.
 */
void abci_plan_check(const struct abci_plan_set *set, struct abci_check_report *report);

/* Constants of the machine, measured by rank 0's process and given to all. Seconds and seconds per byte. */
struct abci_price_constants {
    double hand_off; /* one line from one rank to another */
    double step;     /* fixed cost of a step */
    double copy;     /* per byte, own memory to own memory */
    double read;     /* per byte, written by another rank just now */
    double reduce;   /* per byte and operand */
    double crowding; /* ranks per CPU, at least 1: multiplies bytes; above 1 hand_off is a yield */
};
/* Time of an operation of n bytes (count * element size) ~ fixed + n * per_byte. */
struct abci_price {
    double fixed, per_byte;
};
void abci_plan_price(const struct abci_plan_set *set, const struct abci_price_constants *c, struct abci_price *price);

/* Words for a step kind ("publish") and a buffer ("in", "out", "tmp0", "none"); "?" for others. Static strings. */
const char *abci_kind_name(int kind);
const char *abci_buffer_name(int buffer);

/* ---- Printing and reading ---- */
/* Text for people and JSON for programs; malloc'ed, freed by the caller. NULL on memory exhaustion. */
/* The parts of the text: a head line, then one rank's steps. */
void abci_plan_print_head(FILE *out, const struct abci_plan *plan);
void abci_plan_print(FILE *out, const struct abci_plan *plan);
char *abci_plan_text(const struct abci_plan_set *set);
char *abci_plan_json(const struct abci_plan_set *set);
/* Read back. On error: status and one line in why that names the place. Input is untrusted. */
int abci_plan_parse(const char *json, struct abci_plan_set *set, char *why, size_t capacity);

#endif
