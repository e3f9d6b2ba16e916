/*
 * push.c - stage 3: each rank sums one slice over all ranks and writes the result into everybody's output. One reading step and one
 * signal; nothing is copied but the result itself. Only for buffers that all ranks can reach where they are (the arena): see
 * ABCI_SPREAD in plan/plan.h and "Writing into a peer's buffer" in docs/protocol.md.
 *
 * Bytes touched per element and rank with p ranks: p reads of 1/p and p writes of 1/p, so 2 whatever p; half of it crosses from
 * another rank's cache. Sums add in rank order. Rank j's slice of every buffer is read and written by rank j alone, so in place
 * needs no copy. The reduce-scatter and allgather of Rabenseifner (2004), the second half turned from a read into a write.
 */
#include "plan/plan.h"

static void build(struct abci_builder *b)
{
    int p = b->nranks, me = b->rank;
    b->nblocks = p;
    abci_b_publish(b, 0, abci_ref(ABCI_IN, 0, p)); /* the permission to read IN and to write OUT */
    for (int k = 1; k < p; k++)
        abci_b_reader(b, (me + k) % p);
    abci_b_flags(b, ABCI_FINAL | ABCI_SPREAD);
    abci_b_reduce(b, abci_ref(ABCI_IN, me, 1), abci_ref(ABCI_OUT, me, 1));
    for (int peer = 0; peer < p; peer++) {
        if (peer == me)
            abci_b_own(b, abci_ref(ABCI_IN, me, 1));
        else
            abci_b_operand(b, peer, 0, 1);
    }
    abci_b_publish(b, 1, abci_ref(ABCI_NONE, 0, 0));
    for (int k = 1; k < p; k++)
        abci_b_reader(b, (me + k) % p);
    abci_b_await(b);
    for (int k = 1; k < p; k++)
        abci_b_awaited(b, (me + k) % p, 1, 1);
}

const struct abci_algo abci_algo_push = {
    .name = "push",
    .doc = "each rank finishes one slice and writes it into all outputs: 1 step and a signal; for arena buffers on all ranks",
    .collectives = 1u << ABC_ALLREDUCE,
    .rank_order = true,
    .ordered = true,
    .direct = true,
    .min_ranks = 2,
    .max_ranks = ABCI_MAX_RANKS,
    .build = build,
};
