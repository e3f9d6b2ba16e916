/*
 * run_counts.c - stage 3: blocks of different sizes. Each chunk is the same range of every block, so all ranks must know how long
 * the longest one is; and sender and receiver must mean the same number. Where not all know all counts, a small request in front
 * exchanges both (src/api/counts.c makes it); this file reads what came. Blocks that are short enough travel with their counts, and
 * then that request is all. Runs under the claim, once an operation; only the packing is done by the caller's thread before. Cost:
 * linear in the ranks.
 */
#include <string.h>

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

static uint64_t word(const char *row, int which)
{
    uint64_t value;
    memcpy(&value, row + (size_t)which * sizeof value, sizeof value);
    return value;
}

/* The same on all ranks, for all know the longest block by then; a row without room holds none. */
static bool fits_rows(const struct abc_request *q, uint64_t most)
{
    return most * q->shape.element <= q->counts->row - ABCI_COUNTS_WORDS && q->counts->row > ABCI_COUNTS_WORDS;
}

bool abci_counts_placed(const struct abc_request *q)
{
    const struct abci_counts *c = q->counts;
    return q->id.collective == ABC_ALLTOALLV && c && c->row >= ABCI_COUNTS_WORDS + sizeof(uint64_t) && !fits_rows(q, c->most);
}

uint64_t abci_counts_place(const struct abc_request *q, int peer)
{
    return word(q->counts->heard + (uint64_t)peer * q->counts->row, 2);
}

void abci_counts_pack(const struct abci_engine *e, const struct abc_request *q)
{
    const struct abci_counts *c = q->counts;
    const uint64_t element = q->shape.element, *count = c->vector.count[ABCI_IN], *offset = c->vector.offset[ABCI_IN];
    for (int r = 0; r < e->shm->nranks && abci_counts_placed(q); r++)
        memcpy(c->told + (uint64_t)r * c->row + ABCI_COUNTS_WORDS, &offset[r], sizeof offset[r]);
    if (!fits_rows(q, c->most) || (abci_is(ABCI_ROOTED, q->id.collective) && q->id.root != (uint32_t)e->shm->rank))
        return;
    for (int r = 0; r < e->shm->nranks; r++)
        if (count[r])
            memcpy(c->told + (uint64_t)r * c->row + ABCI_COUNTS_WORDS, q->in + offset[r] * element, count[r] * element);
}

/* Blocks that came with their counts go to their places. */
static void deliver(const struct abci_engine *e, const struct abc_request *q)
{
    const struct abci_counts *c = q->counts;
    const uint64_t element = q->shape.element;
    bool rooted = abci_is(ABCI_ROOTED, q->id.collective);
    for (int r = 0; r < (rooted ? 1 : e->shm->nranks); r++) {
        uint64_t count = rooted ? c->mine : c->vector.count[ABCI_OUT][r];
        uint64_t to = rooted ? 0 : c->vector.offset[ABCI_OUT][r] * element;
        if (count)
            memcpy(q->out + to, c->heard + (uint64_t)r * c->row + ABCI_COUNTS_WORDS, count * element);
    }
}

int abci_counts_settle(struct abci_engine *e, struct abc_request *q)
{
    const struct abci_counts *c = q->counts;
    uint64_t most = c->most;
    bool rooted = abci_is(ABCI_ROOTED, q->id.collective);
    if (c->first->status != ABC_OK)
        return c->first->status;
    for (int r = 0; r < (rooted ? 1 : e->shm->nranks); r++) {
        const char *row = c->heard + (uint64_t)r * c->row;
        uint64_t theirs = word(row, 0), mine = c->expected ? c->expected[r] : c->mine;
        if (theirs != mine && !abci_mutated("c6_counts_not_compared"))
            return differs(e, q, rooted ? (int)q->id.root : r, mine, theirs);
        most = word(row, 1) > most ? word(row, 1) : most;
    }
    if (fits_rows(q, most)) {
        deliver(e, q);
        return ABCI_DELIVERED;
    }
    q->shape.count = q->shape.length = most;
    q->shape.first = 0;
    q->chunks = abci_part_chunks(q->shape.collective, e->shm->nranks, q->shape.element, most, q->chunk_bytes);
    return ABC_OK;
}
