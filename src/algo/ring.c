/*
 * ring.c - stage 3: blocks travel around a ring; every rank reads only its left neighbour. 2 (p - 1) steps for allreduce, p - 1 for
 * reduce-scatter and allgather.
 *
 * Bytes touched per element and rank with p ranks, without staging: allreduce 3 (p - 1) / p while reducing and 2 (p - 1) / p while
 * gathering, a little more than two-shot; but each rank reads one neighbour only, which matters where memory is far. Block k
 * starts at rank k + 1 and is complete at rank k, so its sum begins with x(k + 1): its operands wrap around, hence neither
 * rank_order nor ordered. Known as the bandwidth-optimal ring (Patarasuk and Yuan 2009).
 */
#include "plan/plan.h"

static int wrap(const struct abci_builder *b, int n)
{
    return ((n % b->nranks) + b->nranks) % b->nranks;
}

/* p - 1 steps after which this rank has its own block complete in OUT. Partial sums live in `partial`. Returns the last
 * publishing step. */
static int scatter_phase(struct abci_builder *b, int partial, bool publish_result)
{
    int p = b->nranks, left = wrap(b, b->rank - 1), right = wrap(b, b->rank + 1);
    int shown = abci_b_publish(b, 0, abci_ref(ABCI_IN, left, 1)); /* block k starts at rank k + 1 */
    abci_b_reader(b, right);
    for (int s = 1; s < p; s++) {
        int block = wrap(b, b->rank - 1 - s);
        bool last = s == p - 1, show = !last || publish_result;
        bool stage = show && partial == ABCI_OUT; /* temporaries are read where they are */
        abci_b_flags(b, (last ? ABCI_FINAL : 0) | (stage ? ABCI_STAGE : 0));
        abci_b_reduce(b, abci_ref(s == 1 ? ABCI_IN : partial, block, 1), abci_ref(last ? ABCI_OUT : partial, block, 1));
        abci_b_operand(b, left, 0, s);
        abci_b_own(b, abci_ref(ABCI_IN, block, 1));
        if (!show)
            continue;
        abci_b_flags(b, stage ? ABCI_STAGED : 0);
        shown = abci_b_publish(b, 0, abci_ref(last ? ABCI_OUT : partial, block, 1));
        abci_b_reader(b, right);
    }
    return shown;
}

/* p - 1 steps that bring the others' finished blocks. The left neighbour has published its own as value `first`. */
static void gather_phase(struct abci_builder *b, int first, int first_buffer, int after)
{
    int p = b->nranks, left = wrap(b, b->rank - 1), right = wrap(b, b->rank + 1);
    for (int s = 1; s < p; s++) {
        struct abci_ref block = abci_ref(ABCI_OUT, wrap(b, b->rank - s), 1);
        if (s == 1)
            abci_b_after(b, after, -1);
        abci_b_flags(b, s < p - 1 ? ABCI_STAGE : 0);
        abci_b_fetch(b, left, 0, first + s - 1, abci_ref(s == 1 ? first_buffer : ABCI_OUT, block.block, 1), block);
        if (s == p - 1)
            return;
        abci_b_flags(b, ABCI_STAGED);
        abci_b_publish(b, 0, block);
        abci_b_reader(b, right);
    }
}

static void build_allgather(struct abci_builder *b)
{
    int published = abci_b_publish(b, 0, abci_ref(ABCI_IN, b->rank, 1));
    abci_b_reader(b, wrap(b, b->rank + 1));
    abci_b_copy(b, abci_ref(ABCI_IN, b->rank, 1), abci_ref(ABCI_OUT, b->rank, 1));
    gather_phase(b, 1, ABCI_IN, published);
}

static void build(struct abci_builder *b)
{
    b->nblocks = b->nranks;
    if (b->collective == ABC_ALLGATHER) {
        build_allgather(b);
    } else if (b->collective == ABC_REDUCE_SCATTER) {
        b->ntmp = 1;
        scatter_phase(b, ABCI_TMP, false);
    } else {
        int shown = scatter_phase(b, ABCI_OUT, true);
        gather_phase(b, b->nranks, ABCI_OUT, shown);
    }
}

const struct abci_algo abci_algo_ring = {
    .name = "ring",
    .doc = "blocks go round, each rank reads its left neighbour: 2(p-1) steps; little memory traffic between far neighbours",
    .collectives = 1u << ABC_ALLREDUCE | 1u << ABC_REDUCE_SCATTER | 1u << ABC_ALLGATHER,
    .rank_order = false,
    .ordered = false,
    .min_ranks = 2,
    .max_ranks = ABCI_MAX_RANKS,
    .build = build,
};
