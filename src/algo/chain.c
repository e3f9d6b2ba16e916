/*
 * chain.c - stage 3: one rank after the other, there and back. 2 (p - 1) steps for allreduce and barrier, p - 1 for broadcast, scan
 * and exscan, p for reduce: the baseline that the others are measured against, and the only one that sums in rank order reading one
 * peer a step.
 *
 * Bytes touched per element and rank, without staging: allreduce 3 on the way there, 2 on the way back; broadcast 2, scan 3. A long
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

/* There as in an allreduce, with sums in a temporary; then the root fetches the total from the last rank. */
static void build_reduce(struct abci_builder *b)
{
    int me = b->rank, end = b->nranks - 1;
    struct abci_ref in = abci_ref(ABCI_IN, 0, 1), out = abci_ref(ABCI_OUT, 0, 1), tmp = abci_ref(ABCI_TMP, 0, 1);
    bool is_root = me == b->root;
    b->ntmp = 1;
    if (me > 0) {
        abci_b_flags(b, me == end ? ABCI_FINAL : 0);
        abci_b_reduce(b, me == 1 ? in : tmp, me == end && is_root ? out : tmp);
        abci_b_operand(b, me - 1, 0, 1);
        abci_b_own(b, in);
    }
    if (me < end || !is_root) {
        abci_b_publish(b, 0, me > 0 ? tmp : in);
        abci_b_reader(b, me < end ? me + 1 : b->root);
    }
    if (me < end && is_root)
        abci_b_fetch(b, end, 0, 1, tmp, out);
}

/* Each rank adds its input to the sum of all lower ranks and shows that to the next. */
static void build_scan(struct abci_builder *b)
{
    int me = b->rank, end = b->nranks - 1;
    struct abci_ref in = abci_ref(ABCI_IN, 0, 1), out = abci_ref(ABCI_OUT, 0, 1);
    if (me > 0) {
        abci_b_flags(b, me < end ? ABCI_STAGE : 0);
        abci_b_reduce(b, me == 1 ? in : out, out);
        abci_b_operand(b, me - 1, 0, 1);
        abci_b_own(b, in);
    }
    if (me < end) {
        abci_b_flags(b, me > 0 ? ABCI_STAGED : 0);
        abci_b_publish(b, 0, me > 0 ? out : in);
        abci_b_reader(b, me + 1);
    }
    if (me == 0)
        abci_b_copy(b, in, out);
}

/* The same, but what a rank keeps is the sum that it was shown; what it shows goes to a temporary. */
static void build_exscan(struct abci_builder *b)
{
    int me = b->rank, end = b->nranks - 1;
    struct abci_ref in = abci_ref(ABCI_IN, 0, 1), out = abci_ref(ABCI_OUT, 0, 1), tmp = abci_ref(ABCI_TMP, 0, 1);
    struct abci_ref shown = me == 1 ? in : tmp;
    b->ntmp = 1;
    if (me > 0 && me < end) {
        abci_b_reduce(b, shown, tmp);
        abci_b_operand(b, me - 1, 0, 1);
        abci_b_own(b, in);
    }
    if (me < end) {
        abci_b_publish(b, 0, me > 0 ? tmp : in);
        abci_b_reader(b, me + 1);
    }
    if (me > 0)
        abci_b_fetch(b, me - 1, 0, 1, shown, out);
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
    switch (b->collective) {
    case ABC_ALLREDUCE:
        build_allreduce(b);
        break;
    case ABC_BROADCAST:
        build_broadcast(b);
        break;
    case ABC_REDUCE:
        build_reduce(b);
        break;
    case ABC_SCAN:
        build_scan(b);
        break;
    case ABC_EXSCAN:
        build_exscan(b);
        break;
    default:
        build_barrier(b);
    }
}

const struct abci_algo abci_algo_chain = {
    .name = "chain",
    .doc = "one rank after the other, there and back: 2(p-1) steps; the baseline",
    .collectives =
        1u << ABC_ALLREDUCE | 1u << ABC_BROADCAST | 1u << ABC_BARRIER | 1u << ABC_REDUCE | 1u << ABC_SCAN | 1u << ABC_EXSCAN,
    .rank_order = true,
    .ordered = true,
    .min_ranks = 2,
    .max_ranks = ABCI_MAX_RANKS,
    .build = build,
};
