/*
 * binomial.c - stage 3: a binomial tree. Allreduce and barrier go up to rank 0 and down again, at most 2 ceil(log2 p) steps;
 * broadcast goes down from any root in ceil(log2 p). One peer is read a step, so few lines move: for many ranks and small buffers.
 *
 * Bytes touched per element, without staging: allreduce at most 3 ceil(log2 p) at rank 0 and 5 at a leaf's parent; broadcast 2.
 * The subtree of place v is the range [v, v + 2^j), so children added in ascending order keep operands in rank order, though
 * bracketed as the tree is. The tree is the classic one of MPI implementations (Thakur, Rabenseifner and Gropp 2005).
 */
#include "plan/plan.h"

/* Place in the tree of p places: 0 is the root; a place's children add one bit below its lowest. */
struct place {
    int v, p;
    int parent;   /* -1 for the root */
    int children; /* v + 1, v + 2, v + 4 ... this many */
};

static struct place place_of(int v, int p)
{
    struct place place = {v, p, v > 0 ? (v & (v - 1)) : -1, 0};
    while (v + (1 << place.children) < p && !(v & (1 << place.children)))
        place.children++;
    return place;
}

/* Where a place's subtree sum lies when it publishes it: a leaf shows its input. */
static struct abci_ref shown(struct place place)
{
    return abci_ref(place.children > 0 ? ABCI_OUT : ABCI_IN, 0, 1);
}

/* The children read counter `counter` of this rank, largest subtree first. */
static void publish_down(struct abci_builder *b, struct place place, int counter, struct abci_ref src, int flags)
{
    if (place.children == 0)
        return;
    abci_b_flags(b, flags);
    abci_b_publish(b, counter, src);
    for (int j = place.children - 1; j >= 0; j--)
        abci_b_reader(b, (b->root + place.v + (1 << j)) % place.p);
}

static void build_allreduce(struct abci_builder *b)
{
    struct place me = place_of(b->rank, b->nranks);
    struct abci_ref out = abci_ref(ABCI_OUT, 0, 1);
    for (int j = 0; j < me.children; j++) {
        bool last = j == me.children - 1;
        abci_b_flags(b, (last ? ABCI_STAGE : 0) | (last && me.v == 0 ? ABCI_FINAL : 0));
        abci_b_reduce(b, shown(place_of(me.v + (1 << j), me.p)), out);
        abci_b_own(b, j == 0 ? abci_ref(ABCI_IN, 0, 1) : out);
        abci_b_operand(b, me.v + (1 << j), 0, 1);
    }
    if (me.v > 0) {
        abci_b_flags(b, me.children > 0 ? ABCI_STAGED : 0);
        abci_b_publish(b, 0, shown(me));
        abci_b_reader(b, me.parent);
        abci_b_flags(b, me.children > 0 ? ABCI_STAGE : 0);
        abci_b_fetch(b, me.parent, 1, 1, out, out);
    }
    publish_down(b, me, 1, out, ABCI_STAGED);
}

static void build_broadcast(struct abci_builder *b)
{
    struct place me = place_of((b->rank - b->root + b->nranks) % b->nranks, b->nranks);
    struct abci_ref in = abci_ref(ABCI_IN, 0, 1), out = abci_ref(ABCI_OUT, 0, 1);
    if (me.v == 0) {
        publish_down(b, me, 0, in, 0);
        abci_b_copy(b, in, out);
        return;
    }
    abci_b_flags(b, me.children > 0 ? ABCI_STAGE : 0);
    abci_b_fetch(b, (b->root + me.parent) % me.p, 0, 1, me.parent == 0 ? in : out, out);
    publish_down(b, me, 0, out, ABCI_STAGED);
}

static void build_barrier(struct abci_builder *b)
{
    struct place me = place_of(b->rank, b->nranks);
    struct abci_ref nothing = abci_ref(ABCI_NONE, 0, 0);
    if (me.children > 0) {
        abci_b_await(b);
        for (int j = 0; j < me.children; j++)
            abci_b_awaited(b, me.v + (1 << j), 0, 1);
    }
    if (me.v > 0) {
        abci_b_publish(b, 0, nothing);
        abci_b_reader(b, me.parent);
        abci_b_await(b);
        abci_b_awaited(b, me.parent, 1, 1);
    }
    publish_down(b, me, 1, nothing, 0);
}

static void build(struct abci_builder *b)
{
    if (b->collective == ABC_BROADCAST) {
        build_broadcast(b);
        return;
    }
    b->root = 0; /* the tree's, whatever the caller gave */
    if (b->collective == ABC_ALLREDUCE)
        build_allreduce(b);
    else
        build_barrier(b);
}

const struct abci_algo abci_algo_binomial = {
    .name = "binomial",
    .doc = "a tree, up to rank 0 and down: at most 2 ceil(log2 p) steps, one peer a step; for many ranks and small buffers",
    .collectives = 1u << ABC_ALLREDUCE | 1u << ABC_BROADCAST | 1u << ABC_BARRIER,
    .rank_order = false,
    .ordered = true,
    .min_ranks = 2,
    .max_ranks = ABCI_MAX_RANKS,
    .build = build,
};
