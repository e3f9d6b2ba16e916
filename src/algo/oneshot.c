/*
 * oneshot.c - stage 3: everybody reads everything that it needs straight from its owners, once. The least possible latency: one
 * reading step for every collective.
 *
 * Bytes touched per element and rank with p ranks (reads + writes, without staging): allreduce p reads + 1 write of the whole
 * buffer, so it is for small buffers; reduce-scatter p + 1 of the own block and allgather 2p, which is the minimum; broadcast 2.
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

static void build_reduction(struct abci_builder *b)
{
    bool scatter = b->collective == ABC_REDUCE_SCATTER;
    struct abci_ref mine = abci_ref(ABCI_IN, scatter ? b->rank : 0, 1);
    b->nblocks = scatter ? b->nranks : 1;
    if (scatter) {
        for (int k = 1; k < b->nranks; k++) { /* each block has one reader: let the neighbour start first */
            int reader = (b->rank + k) % b->nranks;
            abci_b_after(b, -1, -1);
            abci_b_publish(b, 0, abci_ref(ABCI_IN, reader, 1));
            abci_b_reader(b, reader);
        }
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
            abci_b_operand(b, peer, 0, scatter ? (b->rank - peer + b->nranks) % b->nranks : 1);
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
    default:
        build_reduction(b);
    }
}

const struct abci_algo abci_algo_oneshot = {
    .name = "oneshot",
    .doc = "every rank reads all it needs from the owners: 1 step; best for small buffers, reduce-scatter and allgather",
    .collectives = 1u << ABC_ALLREDUCE | 1u << ABC_REDUCE_SCATTER | 1u << ABC_ALLGATHER | 1u << ABC_BROADCAST | 1u << ABC_BARRIER,
    .rank_order = true,
    .ordered = true,
    .min_ranks = 2,
    .max_ranks = ABCI_MAX_RANKS,
    .build = build,
};
