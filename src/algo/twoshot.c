/*
 * twoshot.c - stage 3: each rank works on one slice for all, then everybody collects the slices. Two reading steps.
 *
 * Allreduce: rank j sums slice j over all ranks and publishes the result; all fetch the other slices. Bytes touched per element and
 * rank with p ranks, without staging: (p + 1) / p for the sum, 2 (p - 1) / p for collecting: under 3 whatever p, the minimum for
 * ranks that only read. Sums add in rank order. Broadcast: the others fetch one slice each from the root and the rest from each
 * other, so the root's memory is read once instead of p - 1 times; 4 (p - 2) / (p - 1) or less per element.
 * Reduce: as allreduce, but only the root collects.
 * In the literature: reduce-scatter followed by allgather (Rabenseifner 2004) and scatter-allgather broadcast (van de Geijn), here
 * with direct reads instead of messages.
 */
#include "plan/plan.h"

static void build_allreduce(struct abci_builder *b)
{
    int p = b->nranks, me = b->rank;
    b->nblocks = p;
    for (int k = 1; k < p; k++) { /* one reader a slice, nearest first: value k goes to rank me + k */
        int reader = (me + k) % p;
        abci_b_after(b, -1, -1);
        abci_b_publish(b, 0, abci_ref(ABCI_IN, reader, 1));
        abci_b_reader(b, reader);
    }
    abci_b_flags(b, ABCI_FINAL | ABCI_STAGE);
    abci_b_reduce(b, abci_ref(ABCI_IN, me, 1), abci_ref(ABCI_OUT, me, 1));
    for (int peer = 0; peer < p; peer++) {
        if (peer == me)
            abci_b_own(b, abci_ref(ABCI_IN, me, 1));
        else
            abci_b_operand(b, peer, 0, (me - peer + p) % p);
    }
    abci_b_flags(b, ABCI_STAGED);
    int done = abci_b_publish(b, 1, abci_ref(ABCI_OUT, me, 1));
    for (int k = 1; k < p; k++)
        abci_b_reader(b, (me + k) % p);
    for (int k = 1; k < p; k++) { /* in place: the slice's owner has read our input before it published */
        int peer = (me + k) % p;
        abci_b_after(b, done, -1);
        abci_b_fetch(b, peer, 1, 1, abci_ref(ABCI_OUT, peer, 1), abci_ref(ABCI_OUT, peer, 1));
    }
}

/* As allreduce, but only the root collects the slices, which the others show it in a temporary. */
static void build_reduce(struct abci_builder *b)
{
    int p = b->nranks, me = b->rank;
    b->nblocks = p;
    b->ntmp = 1;
    for (int k = 1; k < p; k++) {
        int reader = (me + k) % p;
        abci_b_after(b, -1, -1);
        abci_b_publish(b, 0, abci_ref(ABCI_IN, reader, 1));
        abci_b_reader(b, reader);
    }
    struct abci_ref sum = abci_ref(me == b->root ? ABCI_OUT : ABCI_TMP, me, 1);
    abci_b_flags(b, ABCI_FINAL);
    abci_b_reduce(b, abci_ref(ABCI_IN, me, 1), sum);
    for (int peer = 0; peer < p; peer++) {
        if (peer == me)
            abci_b_own(b, abci_ref(ABCI_IN, me, 1));
        else
            abci_b_operand(b, peer, 0, (me - peer + p) % p);
    }
    if (me != b->root) {
        abci_b_publish(b, 1, sum);
        abci_b_reader(b, b->root);
        return;
    }
    for (int k = 1; k < p; k++) { /* in place: the slice's owner has read our input before it published */
        int peer = (me + k) % p;
        abci_b_after(b, p - 2, -1);
        abci_b_fetch(b, peer, 1, 1, abci_ref(ABCI_TMP, peer, 1), abci_ref(ABCI_OUT, peer, 1));
    }
}

static void build_broadcast_root(struct abci_builder *b)
{
    for (int slice = 0; slice < b->nranks - 1; slice++) {
        abci_b_after(b, -1, -1);
        abci_b_publish(b, 0, abci_ref(ABCI_IN, slice, 1));
        abci_b_reader(b, (b->root + 1 + slice) % b->nranks);
    }
    abci_b_copy(b, abci_ref(ABCI_IN, 0, b->nblocks), abci_ref(ABCI_OUT, 0, b->nblocks));
}

/* Slices belong to the ranks behind the root, in turn: slice 0 to root + 1 and so on. */
static void build_broadcast(struct abci_builder *b)
{
    int p = b->nranks, slices = p - 1;
    b->nblocks = slices;
    if (b->rank == b->root) {
        build_broadcast_root(b);
        return;
    }
    int mine = (b->rank - b->root - 1 + p) % p;
    abci_b_flags(b, slices > 1 ? ABCI_STAGE : 0);
    int got = abci_b_fetch(b, b->root, 0, mine + 1, abci_ref(ABCI_IN, mine, 1), abci_ref(ABCI_OUT, mine, 1));
    if (slices == 1)
        return;
    abci_b_flags(b, ABCI_STAGED);
    abci_b_publish(b, 1, abci_ref(ABCI_OUT, mine, 1));
    for (int k = 1; k < slices; k++)
        abci_b_reader(b, (b->root + 1 + (mine + k) % slices) % p);
    for (int k = 1; k < slices; k++) {
        int slice = (mine + k) % slices;
        abci_b_after(b, got, -1);
        abci_b_fetch(b, (b->root + 1 + slice) % p, 1, 1, abci_ref(ABCI_OUT, slice, 1), abci_ref(ABCI_OUT, slice, 1));
    }
}

static void build(struct abci_builder *b)
{
    if (b->collective == ABC_ALLREDUCE)
        build_allreduce(b);
    else if (b->collective == ABC_REDUCE)
        build_reduce(b);
    else
        build_broadcast(b);
}

const struct abci_algo abci_algo_twoshot = {
    .name = "twoshot",
    .doc = "each rank finishes one slice for all, then all collect the slices: 2 steps; best for large buffers",
    .collectives = 1u << ABC_ALLREDUCE | 1u << ABC_BROADCAST | 1u << ABC_REDUCE,
    .rank_order = true,
    .ordered = true,
    .min_ranks = 2,
    .max_ranks = ABCI_MAX_RANKS,
    .build = build,
};
