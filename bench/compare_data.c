/*
 * compare_data.c - the buffers of one call of bench/compare.c: which bytes a rank gives and gets, new data before the call, a full
 * check after it. Data of rank r come from seed r, wherever they are read. Nothing here is timed.
 */
#include "compare.h"

/* Blocks of half as many and of one and a half times as many elements by turns; the last of an odd number is whole. */
static uint64_t block_of(const struct session *s, uint64_t whole, int rank)
{
    uint64_t half = whole / 2;
    if (rank == s->nranks - 1 && s->nranks % 2)
        return whole;
    return rank % 2 ? whole - half : whole + half;
}

static uint64_t start_of(const struct session *s, uint64_t whole, int rank)
{
    uint64_t sum = 0;
    for (int r = 0; r < rank; r++)
        sum += block_of(s, whole, r);
    return sum;
}

/* Every rank gives rank r as many elements as block_of says. */
static void divide(struct session *s, const struct cell *cell, uint64_t whole)
{
    struct peer_blocks *b = &s->blocks;
    bool all_to_all = cell->collective == ABC_ALLTOALLV;
    uint64_t own = block_of(s, whole, s->rank);
    for (int r = 0; r < s->nranks; r++) {
        b->wide_in[r] = block_of(s, whole, r);
        b->wide_in_at[r] = start_of(s, whole, r);
        b->wide_out[r] = all_to_all ? own : b->wide_in[r];
        b->wide_out_at[r] = all_to_all ? own * (uint64_t)r : b->wide_in_at[r];
        b->in[r] = (int)b->wide_in[r];
        b->in_at[r] = (int)b->wide_in_at[r];
        b->out[r] = (int)b->wide_out[r];
        b->out_at[r] = (int)b->wide_out_at[r];
    }
}

static uint64_t count_of(const struct session *s, const struct cell *cell, uint64_t n, uint64_t block)
{
    switch (cell->collective) {
    case ABC_REDUCE_SCATTER:
    case ABC_ALLGATHER:
    case ABC_GATHER:
    case ABC_SCATTER:
    case ABC_ALLTOALL:
        return block;
    case ABC_ALLGATHERV:
    case ABC_ALLTOALLV:
        return block_of(s, block, s->rank);
    default:
        return n;
    }
}

struct peer_call compare_lay_out(struct session *s, const struct cell *cell, enum who who)
{
    struct peer_call call = {.what = cell->collective, .type = who == PEER && cell->against_own ? ABC_F32 : cell->type};
    void **buffers = who == ARENA ? s->arena : s->plain;
    uint64_t n = cell->bytes / abc_type_size(call.type), block = n / (uint64_t)s->nranks;
    block = block > 0 ? block : 1;
    call.out = buffers[1];
    call.in = cell->in_place ? call.out : buffers[0];
    call.count = count_of(s, cell, n, block);
    if (cell->rooted)
        call.root = (int)(s->iteration % (uint32_t)s->nranks);
    if (cell->collective == ABC_ALLGATHERV || cell->collective == ABC_ALLTOALLV)
        divide(s, cell, block);
    call.blocks = &s->blocks;
    return call;
}

/* Elements that this rank gives, and where they stand in its vector. A receiver of a broadcast gets data that must not stay. */
static uint64_t given(const struct session *s, const struct peer_call *c, uint64_t *first)
{
    *first = 0;
    switch (c->what) {
    case ABC_REDUCE_SCATTER:
    case ABC_SCATTER:
    case ABC_ALLTOALL:
        return c->count * (uint64_t)s->nranks;
    case ABC_ALLTOALLV:
        return s->blocks.wide_in_at[s->nranks - 1] + s->blocks.wide_in[s->nranks - 1];
    case ABC_ALLGATHER:
    case ABC_GATHER:
        *first = c->count * (uint64_t)s->rank;
        return c->count;
    case ABC_ALLGATHERV:
        *first = s->blocks.wide_out_at[s->rank];
        return c->count;
    default:
        return c->count;
    }
}

void compare_fill(struct session *s, const struct peer_call *c)
{
    uint64_t first, count = given(s, c, &first);
    bench_fill((void *)c->in, c->type, bench_data_limit(c->type, s->nranks), s->seeds[s->rank], first, count);
}

/* Elements `first` and following of what rank `from` has given, at `at` of the output. */
static uint64_t check_copy(const struct session *s, const struct peer_call *c, int from, uint64_t first, uint64_t at,
                           uint64_t count)
{
    const char *out = (const char *)c->out + at * abc_type_size(c->type);
    return bench_check(out, c->type, ABC_SUM, bench_data_limit(c->type, s->nranks), &s->seeds[from], 1, first, count);
}

/* The sum over ranks 0 to last, elements `first` and following. */
static uint64_t check_sum(const struct session *s, const struct peer_call *c, int last, uint64_t first)
{
    uint32_t limit = bench_data_limit(c->type, s->nranks);
    return bench_check(c->out, c->type, ABC_SUM, limit, s->seeds, last + 1, first, c->count);
}

/* Blocks of all ranks one behind another. */
static uint64_t check_blocks(const struct session *s, const struct peer_call *c)
{
    const struct peer_blocks *b = &s->blocks;
    uint64_t wrong = 0, n = c->count, own = (uint64_t)s->rank;
    for (int r = 0; r < s->nranks; r++) {
        uint64_t at = n * (uint64_t)r;
        if (c->what == ABC_ALLTOALL)
            wrong += check_copy(s, c, r, n * own, at, n);
        else if (c->what == ABC_ALLTOALLV)
            wrong += check_copy(s, c, r, b->wide_in_at[s->rank], b->wide_out_at[r], b->wide_out[r]);
        else if (c->what == ABC_ALLGATHERV)
            wrong += check_copy(s, c, r, b->wide_out_at[r], b->wide_out_at[r], b->wide_out[r]);
        else
            wrong += check_copy(s, c, r, at, at, n);
    }
    return wrong;
}

uint64_t compare_check(const struct session *s, const struct peer_call *c)
{
    uint64_t own = c->count * (uint64_t)s->rank;
    switch (c->what) {
    case ABC_BARRIER:
        return 0;
    case ABC_REDUCE_SCATTER:
        return check_sum(s, c, s->nranks - 1, own);
    case ABC_BROADCAST:
        return check_copy(s, c, c->root, 0, 0, c->count);
    case ABC_SCATTER:
        return check_copy(s, c, c->root, own, 0, c->count);
    case ABC_SCAN:
        return check_sum(s, c, s->rank, 0);
    case ABC_EXSCAN:
        return s->rank > 0 ? check_sum(s, c, s->rank - 1, 0) : 0;
    case PEER_SENDRECV:
    case PEER_PINGPONG:
        return check_copy(s, c, (s->rank + s->nranks - 1) % s->nranks, 0, 0, c->count);
    case ABC_REDUCE:
        return s->rank == c->root ? check_sum(s, c, s->nranks - 1, 0) : 0;
    case ABC_GATHER:
        return s->rank == c->root ? check_blocks(s, c) : 0;
    case ABC_ALLREDUCE:
        return check_sum(s, c, s->nranks - 1, 0);
    default:
        return check_blocks(s, c);
    }
}
