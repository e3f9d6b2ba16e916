/*
 * chain.c - stage 3: one rank after the other, there and back. 2 (p - 1) steps for allreduce and barrier, p - 1 for broadcast: the
 * baseline that the others are measured against, and the only one that sums in rank order reading one peer a step.
 *
 * Bytes touched per element and rank, without staging: allreduce 3 on the way there, 2 on the way back; broadcast 2. A long
 * operation is a row of instances, so its chunks fill the chain like a pipeline.
 */
#include "plan/plan.h"

/* There: add the own input to the sum of all lower ranks. Back: take the total from the right. */
static void build_allreduce(struct abci_builder *b)
{
    int me = b->rank, end = b->nranks - 1;
    struct abci_ref in = abci_ref(ABCI_IN, 0, 1), out = abci_ref(ABCI_OUT, 0, 1);
    if (me > 0) {
        abci_b_flags(b, ABCI_STAGE | (me == end ? ABCI_FINAL : 0));
        abci_b_reduce(b, me == 1 ? in : out, out);
        abci_b_operand(b, me - 1, 0, 1);
        abci_b_own(b, in);
    }
    if (me < end) {
        abci_b_flags(b, me > 0 ? ABCI_STAGED : 0);
        abci_b_publish(b, 0, me > 0 ? out : in);
        abci_b_reader(b, me + 1);
        abci_b_flags(b, me > 0 ? ABCI_STAGE : 0);
        abci_b_fetch(b, me + 1, 1, 1, out, out);
    }
    if (me > 0) {
        abci_b_flags(b, ABCI_STAGED);
        abci_b_publish(b, 1, out);
        abci_b_reader(b, me - 1);
    }
}

static void build_broadcast(struct abci_builder *b)
{
    int p = b->nranks, place = (b->rank - b->root + p) % p;
    struct abci_ref in = abci_ref(ABCI_IN, 0, 1), out = abci_ref(ABCI_OUT, 0, 1);
    bool more = place < p - 1;
    if (place > 0) {
        abci_b_flags(b, more ? ABCI_STAGE : 0);
        abci_b_fetch(b, (b->rank - 1 + p) % p, 0, 1, place == 1 ? in : out, out);
    }
    if (more) {
        abci_b_flags(b, place > 0 ? ABCI_STAGED : 0);
        abci_b_publish(b, 0, place > 0 ? out : in);
        abci_b_reader(b, (b->rank + 1) % p);
    }
    if (place == 0)
        abci_b_copy(b, in, out);
}

static void build_barrier(struct abci_builder *b)
{
    int me = b->rank, end = b->nranks - 1;
    struct abci_ref nothing = abci_ref(ABCI_NONE, 0, 0);
    if (me > 0) {
        abci_b_await(b);
        abci_b_awaited(b, me - 1, 0, 1);
    }
    if (me < end) {
        abci_b_publish(b, 0, nothing);
        abci_b_reader(b, me + 1);
        abci_b_await(b);
        abci_b_awaited(b, me + 1, 1, 1);
    }
    if (me > 0) {
        abci_b_publish(b, 1, nothing);
        abci_b_reader(b, me - 1);
    }
}

static void build(struct abci_builder *b)
{
    if (b->collective == ABC_ALLREDUCE)
        build_allreduce(b);
    else if (b->collective == ABC_BROADCAST)
        build_broadcast(b);
    else
        build_barrier(b);
}

const struct abci_algo abci_algo_chain = {
    .name = "chain",
    .doc = "one rank after the other, there and back: 2(p-1) steps; the baseline",
    .collectives = 1u << ABC_ALLREDUCE | 1u << ABC_BROADCAST | 1u << ABC_BARRIER,
    .rank_order = true,
    .ordered = true,
    .min_ranks = 2,
    .max_ranks = ABCI_MAX_RANKS,
    .build = build,
};
