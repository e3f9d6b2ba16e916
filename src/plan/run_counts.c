/*
 * run_counts.c - stage 3: blocks of different sizes. Each chunk is the same range of every block, so all ranks must know how long
 * the longest one is; and sender and receiver must mean the same number. Where not all know all counts, a small request in front
 * exchanges both (src/api/counts.c makes it); this file reads what came. Runs under the claim, once an operation. Cost: linear in
 * the ranks.
 */
#include "plan/run_internal.h"

/* Which rank sends what differs, in words. */
static int differs(struct abci_engine *e, const struct abc_request *q, int peer, uint64_t mine, uint64_t theirs)
{
    char what[96];
    bool sends = q->id.collective == ABC_GATHERV; /* a rank of gatherv hears what the root expects of it */
    abci_call_describe(&q->id, what, sizeof what);
    abci_shm_fail(e->shm, ABC_ERR_MISMATCH, e->shm->nranks == 2 ? -1 : peer, NULL, NULL,
                  sends ? "%s: rank %d called it with a count of %llu, but the root, rank %d, expects %llu from it"
                        : "%s: rank %d called it to get %llu elements from rank %d, which sends it %llu",
                  what, e->shm->rank, (unsigned long long)mine, peer, (unsigned long long)theirs);
    return ABC_ERR_MISMATCH;
}

int abci_counts_settle(struct abci_engine *e, struct abc_request *q)
{
    const struct abci_counts *c = q->counts;
    uint64_t most = c->most;
    bool rooted = abci_is(ABCI_ROOTED, q->id.collective);
    if (c->first->status != ABC_OK)
        return c->first->status;
    for (int r = 0; r < (rooted ? 1 : e->shm->nranks); r++) {
        uint64_t theirs = c->heard[2 * r], mine = c->expected ? c->expected[r] : c->mine;
        if (theirs != mine && !abci_mutated("c6_counts_not_compared"))
            return differs(e, q, rooted ? (int)q->id.root : r, mine, theirs);
        most = c->heard[2 * r + 1] > most ? c->heard[2 * r + 1] : most;
    }
    q->shape.count = q->shape.length = most;
    q->shape.first = 0;
    q->chunks = abci_part_chunks(q->shape.collective, e->shm->nranks, q->shape.element, most, q->chunk_bytes);
    return ABC_OK;
}
