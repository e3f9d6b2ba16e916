/*
 * oneshot.c - stage 3: everybody reads everything that it needs straight from its owners, once. The least possible latency: one
 * reading step for every collective.
 *
 * Bytes touched per element and rank with p ranks (reads + writes, without staging): allreduce p reads + 1 write of the whole
 * buffer, so it is for small buffers; reduce-scatter p + 1 of the own block, allgather and alltoall 2p, which is the minimum;
 * broadcast and scatter 2; at the root reduce p + 1 and gather 2p; scan up to p + 1, at the last rank.
 * Sums add in rank order. The direct form of every collective in the classic texts (flat, all-to-all reads over shared memory).
 */
#include "plan/plan.h"

/* The first step: show `src` to all the others. */
static void publish_to_all(struct abci_builder *b, struct abci_ref src)
{
    abci_b_publish(b, 0, src);
    for (int k = 1; k < b->nranks; k++)
        abci_b_reader(b, (b->rank + k) % b->nranks);
}

/* Block j of IN to rank j, for all the others; each has one reader: let the neighbour start first. Rank me + k reads value k. */
static void publish_to_each(struct abci_builder *b)
{
    for (int k = 1; k < b->nranks; k++) {
        int reader = (b->rank + k) % b->nranks;
        abci_b_after(b, -1, -1);
        abci_b_publish(b, 0, abci_ref(ABCI_IN, reader, 1));
        abci_b_reader(b, reader);
    }
}

/* The value of publish_to_each under which `peer` shows this rank its block. */
static int value_of(const struct abci_builder *b, int peer)
{
    return (b->rank - peer + b->nranks) % b->nranks;
}

static void build_reduction(struct abci_builder *b)
{
    bool scatter = b->collective == ABC_REDUCE_SCATTER;
    struct abci_ref mine = abci_ref(ABCI_IN, scatter ? b->rank : 0, 1);
    b->nblocks = scatter ? b->nranks : 1;
    if (scatter) {
        publish_to_each(b);
    } else {
        b->stage_in_place = true; /* peers read IN while the sum goes to OUT */
        publish_to_all(b, mine);
    }
    abci_b_flags(b, ABCI_FINAL);
    abci_b_reduce(b, mine, abci_ref(ABCI_OUT, mine.block, 1));
    for (int peer = 0; peer < b->nranks; peer++) {
        if (peer == b->rank)
            abci_b_own(b, mine);
        else
            abci_b_operand(b, peer, 0, scatter ? value_of(b, peer) : 1);
    }
}

static void build_allgather(struct abci_builder *b)
{
    b->nblocks = b->nranks;
    publish_to_all(b, abci_ref(ABCI_IN, b->rank, 1));
    int published = abci_b_copy(b, abci_ref(ABCI_IN, b->rank, 1), abci_ref(ABCI_OUT, b->rank, 1)) - 1;
    for (int k = 1; k < b->nranks; k++) { /* everybody begins with another peer */
        int peer = (b->rank + k) % b->nranks;
        abci_b_after(b, published, -1);
        abci_b_fetch(b, peer, 0, 1, abci_ref(ABCI_IN, peer, 1), abci_ref(ABCI_OUT, peer, 1));
    }
}

static void build_broadcast(struct abci_builder *b)
{
    if (b->rank == b->root) {
        publish_to_all(b, abci_ref(ABCI_IN, 0, 1));
        abci_b_copy(b, abci_ref(ABCI_IN, 0, 1), abci_ref(ABCI_OUT, 0, 1));
    } else {
        abci_b_fetch(b, b->root, 0, 1, abci_ref(ABCI_IN, 0, 1), abci_ref(ABCI_OUT, 0, 1));
    }
}

static void build_reduce(struct abci_builder *b)
{
    struct abci_ref in = abci_ref(ABCI_IN, 0, 1);
    if (b->rank != b->root) {
        abci_b_publish(b, 0, in);
        abci_b_reader(b, b->root);
        return;
    }
    abci_b_flags(b, ABCI_FINAL);
    abci_b_reduce(b, in, abci_ref(ABCI_OUT, 0, 1));
    for (int peer = 0; peer < b->nranks; peer++) {
        if (peer == b->rank)
            abci_b_own(b, in);
        else
            abci_b_operand(b, peer, 0, 1);
    }
}

static void build_gather(struct abci_builder *b)
{
    b->nblocks = b->nranks;
    if (b->rank != b->root) {
        abci_b_publish(b, 0, abci_ref(ABCI_IN, b->rank, 1));
        abci_b_reader(b, b->root);
        return;
    }
    abci_b_copy(b, abci_ref(ABCI_IN, b->rank, 1), abci_ref(ABCI_OUT, b->rank, 1));
    for (int k = 1; k < b->nranks; k++) {
        int peer = (b->rank + k) % b->nranks;
        abci_b_after(b, -1, -1);
        abci_b_fetch(b, peer, 0, 1, abci_ref(ABCI_IN, peer, 1), abci_ref(ABCI_OUT, peer, 1));
    }
}

static void build_scatter(struct abci_builder *b)
{
    struct abci_ref in = abci_ref(ABCI_IN, b->rank, 1), out = abci_ref(ABCI_OUT, b->rank, 1);
    b->nblocks = b->nranks;
    if (b->rank != b->root) {
        abci_b_fetch(b, b->root, 0, value_of(b, b->root), in, out);
        return;
    }
    publish_to_each(b);
    abci_b_copy(b, in, out);
}

/* In place a rank may overwrite a block that its reader has not fetched yet: hence the copy that stage_in_place makes. */
static void build_alltoall(struct abci_builder *b)
{
    b->nblocks = b->nranks;
    b->stage_in_place = true;
    publish_to_each(b);
    int published = abci_b_copy(b, abci_ref(ABCI_IN, b->rank, 1), abci_ref(ABCI_OUT, b->rank, 1)) - 1;
    for (int k = b->nranks - 1; k > 0; k--) { /* the rank before this one shows its block first */
        int peer = (b->rank + k) % b->nranks;
        abci_b_after(b, published, -1);
        abci_b_fetch(b, peer, 0, value_of(b, peer), abci_ref(ABCI_IN, b->rank, 1), abci_ref(ABCI_OUT, peer, 1));
    }
}

/* Every rank adds up the inputs below its own; scan also its own. */
static void build_scan(struct abci_builder *b)
{
    struct abci_ref in = abci_ref(ABCI_IN, 0, 1), out = abci_ref(ABCI_OUT, 0, 1);
    bool own = b->collective == ABC_SCAN;
    b->stage_in_place = b->rank > 0 && b->rank < b->nranks - 1; /* who shows IN and overwrites it */
    if (b->rank < b->nranks - 1) {
        abci_b_publish(b, 0, in);
        for (int reader = b->rank + 1; reader < b->nranks; reader++)
            abci_b_reader(b, reader);
    }
    if (b->rank == 0) {
        if (own)
            abci_b_copy(b, in, out);
    } else if (b->rank == 1 && !own) {
        abci_b_fetch(b, 0, 0, 1, in, out);
    } else {
        abci_b_flags(b, ABCI_FINAL);
        abci_b_reduce(b, in, out);
        for (int peer = 0; peer < b->rank; peer++)
            abci_b_operand(b, peer, 0, 1);
        if (own)
            abci_b_own(b, in);
    }
}

static void build_barrier(struct abci_builder *b)
{
    publish_to_all(b, abci_ref(ABCI_NONE, 0, 0));
    abci_b_await(b);
    for (int k = 1; k < b->nranks; k++)
        abci_b_awaited(b, (b->rank + k) % b->nranks, 0, 1);
}

static void build(struct abci_builder *b)
{
    switch (b->collective) {
    case ABC_ALLGATHER:
        build_allgather(b);
        break;
    case ABC_BROADCAST:
        build_broadcast(b);
        break;
    case ABC_BARRIER:
        build_barrier(b);
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
    case ABC_ALLTOALL:
        build_alltoall(b);
        break;
    case ABC_SCAN:
    case ABC_EXSCAN:
        build_scan(b);
        break;
    default:
        build_reduction(b);
    }
}

const struct abci_algo abci_algo_oneshot = {
    .name = "oneshot",
    .doc = "every rank reads all it needs from the owners: 1 step; best for small buffers, and wherever nothing is summed twice",
    .collectives = 1u << ABC_ALLREDUCE | 1u << ABC_REDUCE_SCATTER | 1u << ABC_ALLGATHER | 1u << ABC_BROADCAST | 1u << ABC_BARRIER |
                   1u << ABC_REDUCE | 1u << ABC_GATHER | 1u << ABC_SCATTER | 1u << ABC_ALLTOALL | 1u << ABC_SCAN | 1u << ABC_EXSCAN,
    .rank_order = true,
    .ordered = true,
    .min_ranks = 2,
    .max_ranks = ABCI_MAX_RANKS,
    .build = build,
};
