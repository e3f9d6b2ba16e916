/*
 * pairwise.c - stage 3: alltoall in rounds; in each one a rank exchanges a block with one partner. Up to p - 1 reading steps, as
 * many as there are partners, but a block is read soon after it was staged, while caches still hold it: for large blocks.
 *
 * Bytes touched per element and rank, without staging: 2, the minimum. Round k pairs the ranks whose sum is k modulo p, as in a
 * tournament, so partners name each other for every p. Hence in place works: a rank has shown a partner its block before it
 * overwrites it, though only a staged copy may be read then. Known as pairwise exchange (Thakur, Rabenseifner and Gropp 2005).
 */
#include "plan/plan.h"

static int partner_in(int rank, int round, int p)
{
    return (round - rank + p) % p;
}

/* How many blocks a rank has shown when the round is over: in at most two rounds it is its own partner. */
static int shown_by(int rank, int round, int p)
{
    int shown = 0;
    for (int k = 0; k <= round; k++)
        shown += partner_in(rank, k, p) != rank;
    return shown;
}

static void build(struct abci_builder *b)
{
    int p = b->nranks, me = b->rank, published = -1;
    b->nblocks = p;
    b->stage_in_place = true;
    for (int round = 0; round < p; round++) {
        int partner = partner_in(me, round, p);
        abci_b_after(b, published, -1);
        if (partner == me) {
            abci_b_copy(b, abci_ref(ABCI_IN, me, 1), abci_ref(ABCI_OUT, me, 1));
            continue;
        }
        published = abci_b_publish(b, 0, abci_ref(ABCI_IN, partner, 1));
        abci_b_reader(b, partner);
        abci_b_fetch(b, partner, 0, shown_by(partner, round, p), abci_ref(ABCI_IN, me, 1), abci_ref(ABCI_OUT, partner, 1));
    }
}

const struct abci_algo abci_algo_pairwise = {
    .name = "pairwise",
    .doc = "blocks are exchanged with one partner after the other: up to p-1 steps; for alltoall with large blocks",
    .collectives = 1u << ABC_ALLTOALL,
    .rank_order = true,
    .ordered = true,
    .min_ranks = 2,
    .max_ranks = ABCI_MAX_RANKS,
    .build = build,
};
