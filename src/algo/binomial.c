/*
 * binomial.c - stage 3: a binomial tree. Allreduce and barrier go up to rank 0 and down again, at most 2 ceil(log2 p) steps;
 * broadcast and scatter go down from any root in ceil(log2 p), gather goes up; reduce goes up to rank 0, from which the root
 * fetches. One peer is read a step, so few lines move: for many ranks and small buffers.
 *
 * Bytes touched per element, without staging: allreduce at most 3 ceil(log2 p) at rank 0 and 5 at a leaf's parent; broadcast 2;
 * gather and scatter up to log2 p of a block at inner ranks.
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
    while (place.children < 16 && v + (1 << place.children) < p && /* 10 with the most ranks there are */
           !(v & (1 << place.children)))
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

/* Up, with partial sums in a temporary. The tree is rank 0's whoever is the root, so that operands keep rank order. */
static void build_reduce(struct abci_builder *b)
{
    struct place me = place_of(b->rank, b->nranks);
    struct abci_ref in = abci_ref(ABCI_IN, 0, 1), out = abci_ref(ABCI_OUT, 0, 1), tmp = abci_ref(ABCI_TMP, 0, 1);
    b->ntmp = 1;
    for (int j = 0; j < me.children; j++) {
        int child = me.v + (1 << j);
        bool last = j == me.children - 1 && me.v == 0;
        abci_b_flags(b, last ? ABCI_FINAL : 0);
        abci_b_reduce(b, place_of(child, me.p).children > 0 ? tmp : in, last && b->root == 0 ? out : tmp);
        abci_b_own(b, j == 0 ? in : tmp);
        abci_b_operand(b, child, 0, 1);
    }
    if (me.v > 0 || b->root > 0) {
        abci_b_publish(b, 0, me.children > 0 ? tmp : in);
        abci_b_reader(b, me.v > 0 ? me.parent : b->root);
    }
    if (b->root > 0 && b->rank == b->root)
        abci_b_fetch(b, 0, 0, 1, tmp, out);
}

/* Blocks of the subtree at place v, as ranges of ranks: one, or two where they wrap around. */
struct span {
    struct abci_ref part[2];
    int parts;
};

static struct span span_of(const struct abci_builder *b, struct place place, int buffer)
{
    int width = place.v == 0 ? place.p : 1 << place.children, first = (b->root + place.v) % place.p;
    if (place.v + width > place.p)
        width = place.p - place.v;
    int head = first + width > place.p ? place.p - first : width;
    struct span s = {{abci_ref(buffer, first, head), abci_ref(buffer, 0, width - head)}, head < width ? 2 : 1};
    return s;
}

/* Fetch a span from a child or the parent, both parts after the same steps, which they replace as what comes next waits for. */
static void fetch_span(struct abci_builder *b, int peer, int first_value, struct span src, struct span dst, int after[2])
{
    int fetched[2] = {-1, -1};
    for (int k = 0; k < src.parts; k++) {
        abci_b_after(b, after[0], after[1]);
        fetched[k] = abci_b_fetch(b, peer, 0, first_value + k, src.part[k], dst.part[k]);
    }
    after[0] = fetched[0];
    after[1] = fetched[1];
}

/* Up: each inner rank collects the blocks of its subtree in a temporary, the root in OUT. */
static void build_gather(struct abci_builder *b)
{
    struct place me = place_of((b->rank - b->root + b->nranks) % b->nranks, b->nranks);
    struct abci_ref mine = abci_ref(ABCI_IN, b->rank, 1);
    int into = me.v == 0 ? ABCI_OUT : ABCI_TMP;
    b->nblocks = b->nranks;
    b->ntmp = 1;
    int after[2] = {-1, -1};
    if (me.children > 0)
        after[0] = abci_b_copy(b, mine, abci_ref(into, b->rank, 1));
    for (int j = 0; j < me.children; j++) {
        struct place child = place_of(me.v + (1 << j), me.p);
        struct span from = span_of(b, child, child.children > 0 ? ABCI_TMP : ABCI_IN);
        fetch_span(b, (b->root + child.v) % me.p, 1, from, span_of(b, child, into), after);
    }
    struct span shown = span_of(b, me, ABCI_TMP);
    for (int k = 0; me.v > 0 && k < shown.parts; k++) {
        abci_b_after(b, k ? -1 : after[0], k ? -1 : after[1]); /* the second follows the first anyway: they share a counter */
        abci_b_publish(b, 0, me.children > 0 ? shown.part[k] : mine);
        abci_b_reader(b, (b->root + me.parent) % me.p);
    }
}

/* Down: an inner rank takes the blocks of its whole subtree. Children get values of counter 0, largest subtree first. */
static void build_scatter(struct abci_builder *b)
{
    struct place me = place_of((b->rank - b->root + b->nranks) % b->nranks, b->nranks);
    struct abci_ref out = abci_ref(ABCI_OUT, b->rank, 1);
    int from = me.v == 0 ? ABCI_IN : ABCI_TMP, after[2] = {-1, -1};
    b->nblocks = b->nranks;
    b->ntmp = 1;
    if (me.v > 0) {
        struct place parent = place_of(me.parent, me.p);
        int value = 0;
        for (int j = parent.children - 1; parent.v + (1 << j) > me.v; j--)
            value += span_of(b, place_of(parent.v + (1 << j), me.p), ABCI_IN).parts;
        struct span src = span_of(b, me, parent.v == 0 ? ABCI_IN : ABCI_TMP);
        struct span dst = span_of(b, me, me.children > 0 ? ABCI_TMP : ABCI_OUT);
        fetch_span(b, (b->root + parent.v) % me.p, value + 1, src, dst, after);
    }
    for (int left = me.children; left > 0; left--) {
        struct place child = place_of(me.v + (1 << (left - 1)), me.p);
        struct span s = span_of(b, child, from);
        for (int k = 0; k < s.parts; k++) {
            bool first = k == 0 && left == me.children; /* the others follow it anyway: they share a counter */
            abci_b_after(b, first ? after[0] : -1, first ? after[1] : -1);
            abci_b_publish(b, 0, s.part[k]);
            abci_b_reader(b, (b->root + child.v) % me.p);
        }
    }
    abci_b_after(b, after[0], after[1]);
    if (me.children > 0)
        abci_b_copy(b, abci_ref(from, b->rank, 1), out);
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
    switch (b->collective) {
    case ABC_BROADCAST:
        build_broadcast(b);
        break;
    case ABC_REDUCE:
        build_reduce(b);
        break;
    case ABC_GATHER:
        build_gather(b);
        break;
    case ABC_SCATTER:
        build_scatter(b);
        break;
    default:
        b->root = 0; /* the tree's, whatever the caller gave */
        if (b->collective == ABC_ALLREDUCE)
            build_allreduce(b);
        else
            build_barrier(b);
    }
}

const struct abci_algo abci_algo_binomial = {
    .name = "binomial",
    .doc = "a tree, up to rank 0 and down: at most 2 ceil(log2 p) steps, one peer a step; for many ranks and small buffers",
    .collectives =
        1u << ABC_ALLREDUCE | 1u << ABC_BROADCAST | 1u << ABC_BARRIER | 1u << ABC_REDUCE | 1u << ABC_GATHER | 1u << ABC_SCATTER,
    .rank_order = false,
    .ordered = true,
    .min_ranks = 2,
    .max_ranks = ABCI_MAX_RANKS,
    .build = build,
};
