/*
 * counts.c - stage 0: calls with a count for each rank. Checks counts and offsets and copies them, for the caller may change its
 * own while the operation runs; makes the small request that goes first where only sender and receiver know a count
 * (plan/run_counts.c reads what it brings). Before: prepare.c's check of the call. Any thread; allocates when several such calls
 * are open at a time; cost: linear in the ranks, with blocks of an output in no ascending order quadratic.
 */
#include <string.h>

#include "api/api.h"

#define ADDRESSABLE (1ull << 47)

/* Rows of the exchange that all ranks' fit a header together; the longer ones are cut for the eight bytes of most elements. */
static uint64_t row_bytes(int nranks)
{
    uint64_t row = ABCI_PACKED / (uint64_t)nranks / 8 * 8;
    return row > ABCI_COUNTS_WORDS ? row : ABCI_COUNTS_WORDS;
}

/* All in one piece of memory: the request of the exchange, then the lists, then what is told and heard. */
static struct abci_counts *allocate(abc_comm *comm)
{
    size_t n = (size_t)comm->nranks + 2; /* one more than blocks, for tests that look behind the last */
    size_t cleared = sizeof(struct abci_counts) + sizeof(struct abc_request) + 4 * n * sizeof(uint64_t);
    struct abci_counts *c = abci_counts_take(comm, cleared + 2 * n * row_bytes(comm->nranks));
    if (!c)
        return NULL;
    memset(c, 0, cleared);
    uint64_t *list = (uint64_t *)(void *)((char *)(c + 1) + sizeof(struct abc_request));
    for (int b = ABCI_IN; b <= ABCI_OUT; b++, list += 2 * n) {
        c->vector.count[b] = list;
        c->vector.offset[b] = list + n;
    }
    c->row = row_bytes(comm->nranks);
    c->told = (char *)list;
    c->heard = c->told + n * c->row;
    return c;
}

/* The lists of a buffer that holds all blocks. */
static int take_list(const abc_call *call, int nranks, int b, const uint64_t *counts, const uint64_t *offsets,
                     struct abci_counts *c)
{
    uint64_t at = 0, most = ADDRESSABLE / abc_type_size(call->type);
    const char *buffer = b == ABCI_IN ? "in" : "out";
    if (!counts)
        return abci_error(ABC_ERR_ARGUMENT, "%s needs %s_counts: one count for each of the %d ranks",
                          abc_collective_name(call->collective), buffer, nranks);
    for (int r = 0; r < nranks; r++) {
        uint64_t offset = offsets ? offsets[r] : at;
        if (counts[r] > most || offset > most - counts[r])
            return abci_error(ABC_ERR_ARGUMENT, "%s_counts[%d] is %llu and its offset %llu: more than memory can hold", buffer, r,
                              (unsigned long long)counts[r], (unsigned long long)offset);
        c->vector.count[b][r] = counts[r];
        c->vector.offset[b][r] = offset;
        c->most = counts[r] > c->most ? counts[r] : c->most;
        at = offset + counts[r];
    }
    return ABC_OK;
}

/* Two blocks of an output in one place would be written in any order. */
static int refuse_overlap(const struct abci_counts *c, int nranks)
{
    const uint64_t *count = c->vector.count[ABCI_OUT], *offset = c->vector.offset[ABCI_OUT];
    bool ascending = true;
    uint64_t end = 0;
    for (int r = 0; r < nranks && ascending; r++) {
        if (count[r] == 0)
            continue;
        ascending = offset[r] >= end;
        end = offset[r] + count[r];
    }
    for (int a = 0; a < nranks && !ascending; a++)
        for (int b = 0; b < a; b++)
            if (count[a] && count[b] && offset[a] < offset[b] + count[b] && offset[b] < offset[a] + count[a])
                return abci_error(ABC_ERR_ARGUMENT,
                                  "blocks %d and %d of the output overlap (offsets %llu and %llu, counts %llu and %llu)", b, a,
                                  (unsigned long long)offset[b], (unsigned long long)offset[a], (unsigned long long)count[b],
                                  (unsigned long long)count[a]);
    return ABC_OK;
}

/* Sender and receiver of a block on this very rank. */
static int own_block_agrees(const abc_comm *comm, const abc_call *call, uint64_t in, uint64_t out)
{
    if (in == out)
        return ABC_OK;
    return abci_error(ABC_ERR_ARGUMENT, "%s: rank %d sends itself %llu elements and gets %llu from itself",
                      abc_collective_name(call->collective), comm->rank, (unsigned long long)in, (unsigned long long)out);
}

/* The buffer that holds one block: its count is in the other's list, or is the call's. */
static int take_single(const abc_comm *comm, const abc_call *call, struct abci_counts *c)
{
    int single = abci_part_width(call->collective, ABCI_IN) == ABCI_SINGLE ? ABCI_IN : ABCI_OUT, me = comm->rank;
    int status = ABC_OK;
    const uint64_t *listed = c->vector.count[1 - single];
    memcpy(c->vector.count[single], listed, sizeof(uint64_t) * (size_t)comm->nranks);
    if (!abci_is(ABCI_PAIRS, call->collective))
        return ABC_OK;
    if (me == call->root)
        status = own_block_agrees(comm, call, single == ABCI_IN ? call->count : listed[me],
                                  single == ABCI_OUT ? call->count : listed[me]);
    c->vector.count[single][me] = call->count;
    c->most = call->count > c->most ? call->count : c->most;
    return status;
}

/* The lists of both buffers, as far as this rank has and knows them. */
static int take_lists(const abc_comm *comm, const abc_call *call, struct abci_counts *c)
{
    const int n = comm->nranks, me = comm->rank;
    int status = ABC_OK;
    bool in_place = call->collective == ABC_ALLTOALLV && call->in == ABC_IN_PLACE;
    for (int b = ABCI_IN; b <= ABCI_OUT && status == ABC_OK; b++) {
        if (abci_part_width(call->collective, b) != ABCI_WIDE || !abci_part_exists(call->collective, b, me, call->root))
            continue;
        bool as_in = b == ABCI_IN && !in_place;
        status = take_list(call, n, b, as_in ? call->in_counts : call->out_counts, as_in ? call->in_offsets : call->out_offsets, c);
        if (status == ABC_OK && b == ABCI_OUT)
            status = refuse_overlap(c, n);
    }
    if (status != ABC_OK)
        return status;
    if (call->collective == ABC_ALLTOALLV)
        return own_block_agrees(comm, call, c->vector.count[ABCI_IN][me], c->vector.count[ABCI_OUT][me]);
    return take_single(comm, call, c);
}

/* Each receiver learns what its sender thinks (of gatherv: each sender what the root thinks), and the longest block. */
static int make_exchange(abc_comm *comm, const abc_call *call, struct abci_counts *c)
{
    bool all = call->collective == ABC_ALLTOALLV;
    const uint64_t *known = c->vector.count[call->collective == ABC_GATHERV ? ABCI_OUT : ABCI_IN];
    abc_call first;
    if (call->collective == ABC_GATHERV) /* its blocks go the other way */
        c->row = ABCI_COUNTS_WORDS;
    for (int r = 0; r < comm->nranks; r++) {
        const uint64_t words[2] = {known[r], c->most};
        memcpy(c->told + (uint64_t)r * c->row, words, sizeof words);
    }
    c->expected = all ? c->vector.count[ABCI_OUT] : NULL;
    abc_call_init(&first, all ? ABC_ALLTOALL : ABC_SCATTER);
    first.in = c->told;
    first.out = c->heard;
    first.count = c->row;
    first.type = ABC_U8;
    first.root = call->root;
    first.timeout = call->timeout;
    c->first = (struct abc_request *)(void *)(c + 1);
    int status = abci_prepare(comm, &first, c->first);
    c->first->id.collective = (uint8_t)call->collective; /* what the caller called is what ranks compare and texts tell */
    c->first->id.type = (uint8_t)call->type;
    c->first->id.count = 0;
    c->first->plain = false;
    return status;
}

int abci_counts_make(abc_comm *comm, const abc_call *call, struct abc_request *q)
{
    struct abci_counts *c = q->counts = allocate(comm);
    if (!c)
        return abci_error(ABC_ERR_MEMORY, "no memory for the counts of %d ranks", comm->nranks);
    c->mine = call->count;
    int status = take_lists(comm, call, c);
    const uint64_t element = abc_type_size(call->type);
    for (int b = ABCI_IN; b <= ABCI_OUT; b++) {
        bool wide = abci_part_width(call->collective, b) == ABCI_WIDE;
        q->extent[b] = 0;
        for (int r = wide ? 0 : comm->rank; r < (wide ? comm->nranks : comm->rank + 1); r++) {
            uint64_t end = c->vector.count[b][r] ? (c->vector.offset[b][r] + c->vector.count[b][r]) * element : 0;
            q->extent[b] = end > q->extent[b] ? end : q->extent[b];
            c->total += wide ? c->vector.count[b][r] : 0;
        }
        if (!abci_part_exists(call->collective, b, comm->rank, call->root))
            q->extent[b] = 0;
    }
    return status == ABC_OK && abci_is(ABCI_PAIRS, call->collective) ? make_exchange(comm, call, c) : status;
}

bool abci_counts_mingle(const abc_comm *comm, const abc_call *call, const struct abc_request *q)
{
    const struct abci_vector *v = &q->counts->vector;
    const uint64_t element = abc_type_size(call->type);
    const bool in_wide = abci_part_width(call->collective, ABCI_IN) == ABCI_WIDE;
    const bool out_wide = abci_part_width(call->collective, ABCI_OUT) == ABCI_WIDE;
    const int n = comm->nranks, me = comm->rank;
    for (int i = in_wide ? 0 : me; i < (in_wide ? n : me + 1); i++)
        for (int o = out_wide ? 0 : me; o < (out_wide ? n : me + 1); o++) {
            uint64_t in_bytes = v->count[ABCI_IN][i] * element, out_bytes = v->count[ABCI_OUT][o] * element;
            const char *in = (const char *)q->in + (in_wide ? v->offset[ABCI_IN][i] * element : 0);
            const char *out = (const char *)q->out + (out_wide ? v->offset[ABCI_OUT][o] * element : 0);
            if (in_bytes && out_bytes && in < out + out_bytes && out < in + in_bytes)
                return true;
        }
    return false;
}

uint32_t abci_counts_hash(const abc_comm *comm, const struct abc_request *q)
{
    int wide = abci_part_width(q->shape.collective, ABCI_IN) == ABCI_WIDE ? ABCI_IN : ABCI_OUT;
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (int r = 0; r < comm->nranks; r++) {
        h = (h ^ q->counts->vector.count[wide][r]) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 29;
    }
    return (uint32_t)(h >> 32);
}
