/*
 * call.c - draws a call, lays it out, makes it and compares what came out. Buffers are as long as the call says and new each time,
 * so that AddressSanitizer sees whoever goes beyond; without it a line behind them is compared.
 */
#include "call.h"

#include <stdlib.h>
#include <string.h>

#include "plan/part.h"
#include "plan/plan.h"

#define KEY 1000003u /* between the pieces of a buffer */
#define GUARD 64
#define FILL 0xa5

static uint64_t below(uint64_t *dice, uint64_t end)
{
    return random_next(dice) % end;
}

/* ---- What all ranks agree on ---- */

/* Bytes of a block: at an edge or beside it, mostly. */
static uint64_t draw_bytes(const struct ground *g, uint64_t *dice, uint64_t most, uint64_t size, uint64_t ranks)
{
    uint64_t first = 0, fit = 0, bytes = below(dice, most + 1), add = below(dice, 3) * size;
    while (fit < g->edges && g->edge[fit] <= most)
        first += g->edge[fit++] <= (most > CALL_SHORT ? CALL_SHORT : 0); /* a long call is one */
    uint64_t edge = fit > first ? g->edge[first + below(dice, fit - first)] : most, each = below(dice, 2) ? ranks : 1;
    if (below(dice, 8))
        bytes = edge / each / size * size + add > size ? edge / each / size * size + add - size : 0;
    return bytes < most / ranks ? bytes : most / ranks;
}

static void draw_counts(uint64_t *dice, int n, uint64_t most, struct one_call *c)
{
    bool all_zero = below(dice, 20) == 0, same = c->collective == ABC_REDUCE_SCATTERV;
    for (int from = 0; from < n; from++)
        for (int to = 0; to < n; to++) {
            const uint64_t counts[] = {most, most, most / 2, most > 0 ? most - 1 : 0, 1, 0};
            uint64_t count = all_zero ? 0 : counts[below(dice, 6)];
            c->count[from][to] = from > 0 && same ? c->count[0][to] : count < most ? count : most;
        }
}

static void draw_kind(const struct ground *g, uint64_t *dice, struct one_call *c)
{
    static const abc_collective lists[] = {ABC_GATHERV, ABC_SCATTERV, ABC_ALLGATHERV, ABC_REDUCE_SCATTERV, ABC_ALLTOALLV};
    static const abc_op ops[] = {ABC_SUM, ABC_SUM, ABC_MAX, ABC_MIN, ABC_AVG};
    uint64_t kind = below(dice, 16);
    c->collective = kind < 5    ? ABC_ALLREDUCE
                    : kind < 10 ? (abc_collective)below(dice, ABCI_PLANNED)
                    : kind < 13 ? lists[below(dice, 5)]
                                : ABC_SEND;
    c->type = values_types[below(dice, VALUES_TYPES)];
    c->op = ops[below(dice, 5)];
    if (c->op == ABC_AVG && (c->type == ABC_U8 || c->type == ABC_I32 || c->collective == ABC_SCAN || c->collective == ABC_EXSCAN))
        c->op = ABC_SUM;
    c->root = (int)below(dice, (uint64_t)g->nranks);
    c->distance = 1 + (int)below(dice, (uint64_t)g->nranks);
    c->tag = (int)below(dice, 3);
    c->seed = (uint32_t)random_next(dice);
    c->repeats = below(dice, 3) ? 0 : (int)below(dice, 5);
}

static bool is_list(const struct one_call *c)
{
    return c->collective >= ABC_GATHERV && c->collective < ABC_COLLECTIVE_COUNT;
}

static abc_collective plain(const struct one_call *c)
{
    return c->collective == ABC_SEND ? c->collective : (abc_collective)abci_plain(c->collective);
}

static bool is_wide(const struct one_call *c)
{
    return c->collective != ABC_SEND && abci_part_by_rank(plain(c));
}

static void draw_own(uint64_t *own, struct one_call *c)
{
    static const unsigned shifts[] = {0, 0, 0, 8, 64, 1, 35};
    c->how = below(own, 2) ? CALL_BLOCKING : (enum call_how)below(own, CALL_HOWS);
    c->in_place = below(own, 3) == 0;
    c->by_name = below(own, 2);
    c->in_arena = below(own, 8) == 0;
    c->out_arena = below(own, 8) == 0;
    c->in_shift = shifts[below(own, 7)];
    c->out_shift = shifts[below(own, 7)];
}

void call_draw(const struct ground *g, uint64_t *shared, uint64_t bytes, const struct one_call *like, struct one_call *c)
{
    memset(c, 0, sizeof *c);
    draw_kind(g, shared, c);
    if (like) {
        c->collective = like->collective;
        c->type = like->type;
        c->op = like->op;
    }
    uint64_t size = abc_type_size(c->type), block = draw_bytes(g, shared, bytes, size, is_wide(c) ? (uint64_t)g->nranks : 1) / size;
    bool arena = below(shared, 3) == 0;
    if (like && below(shared, 4)) /* so that a group of them outgrows one operation */
        block = (bytes - below(shared, bytes / 8 + 1)) / size;
    if (c->collective == ABC_BARRIER)
        block = 0;
    c->count[0][0] = block;
    if (is_list(c))
        draw_counts(shared, g->nranks, block, c);
    draw_own(&g->r->random, c);
    c->in_arena |= arena; /* on all ranks, or here and there */
    c->out_arena |= arena;
    if (is_list(c) && c->collective != ABC_ALLGATHERV)
        c->in_place = false;
    if (c->collective == ABC_SEND || c->collective == ABC_BARRIER)
        c->in_place = false;
    if (bytes > CALL_SHORT && c->repeats > 1)
        c->repeats = 1;
}

/* ---- Where the pieces lie ---- */

/* Elements from one rank to another. */
static uint64_t count_of(const struct one_call *c, int from, int to)
{
    if (!is_list(c))
        return c->count[0][0];
    bool one_row = c->collective == ABC_SCATTERV || c->collective == ABC_REDUCE_SCATTERV;
    bool one_column = c->collective == ABC_GATHERV || c->collective == ABC_ALLGATHERV;
    return c->count[one_row ? 0 : from][one_column ? 0 : to];
}

/* Blocks one behind another; those with counts of their own have gaps between them. */
static int add_pieces(const struct ground *g, const struct one_call *c, bool in, struct piece *pieces)
{
    uint64_t at = 0;
    for (int r = 0; r < g->nranks; r++) {
        struct piece *p = &pieces[r];
        *p = (struct piece){.at = at, .count = in ? count_of(c, g->rank, r) : count_of(c, r, g->rank), .rank = in ? g->rank : r};
        bool gathers = plain(c) == ABC_ALLGATHER || plain(c) == ABC_GATHER;
        p->key = KEY * (uint64_t)(in ? r : gathers ? 0 : g->rank);
        at += p->count;
        if (is_list(c) && c->collective != ABC_REDUCE_SCATTERV && c->by_name)
            at += (uint64_t)(r % 3);
    }
    return g->nranks;
}

static void lay_in(const struct ground *g, struct one_call *c)
{
    abc_collective k = plain(c);
    if (k == ABC_BARRIER || ((k == ABC_SCATTER || k == ABC_BROADCAST) && g->rank != c->root))
        return;
    if (k == ABC_REDUCE_SCATTER || k == ABC_SCATTER || k == ABC_ALLTOALL) {
        c->in_pieces = add_pieces(g, c, true, c->in_piece);
        return;
    }
    c->in_piece[0] = (struct piece){.count = count_of(c, g->rank, 0), .rank = g->rank};
    c->in_pieces = 1;
}

static void lay_out(const struct ground *g, struct one_call *c)
{
    abc_collective k = plain(c);
    int n = g->nranks;
    struct piece one = {.count = count_of(c, 0, g->rank)};
    if (k == ABC_BARRIER || ((k == ABC_GATHER || k == ABC_REDUCE) && g->rank != c->root) || (k == ABC_EXSCAN && g->rank == 0))
        return;
    if (k == ABC_ALLGATHER || k == ABC_GATHER || k == ABC_ALLTOALL) {
        c->out_pieces = add_pieces(g, c, false, c->out_piece);
        return;
    }
    if (k == ABC_SCATTER || k == ABC_REDUCE_SCATTER)
        one.key = KEY * (uint64_t)g->rank;
    if (k == ABC_BROADCAST || k == ABC_SCATTER)
        one.rank = c->root;
    else if (k == ABC_SEND)
        one.rank = (g->rank + n * 2 - c->distance) % n;
    else
        one.ranks = k == ABC_SCAN ? g->rank + 1 : k == ABC_EXSCAN ? g->rank : n;
    c->out_piece[0] = one;
    c->out_pieces = 1;
}

static uint64_t end_of(const struct piece *pieces, int count, abc_type type)
{
    uint64_t end = 0;
    for (int i = 0; i < count; i++)
        end = pieces[i].at + pieces[i].count > end ? pieces[i].at + pieces[i].count : end;
    return end * abc_type_size(type);
}

static bool open_buffer(const struct ground *g, struct buffer *b, uint64_t bytes, bool arena, unsigned shift, uint64_t guard)
{
    void *memory = NULL;
    uint64_t all = bytes + shift + guard;
    if (arena && !check_status(g->r, abc_mem_alloc(all, &memory), ABC_OK, "abc_mem_alloc"))
        return false;
    if (!arena)
        memory = malloc(all ? all : 1);
    if (!check(g->r, memory != NULL, "no memory for buffers"))
        return false;
    *b = (struct buffer){.base = memory, .at = (char *)memory + shift, .bytes = bytes, .arena = arena};
    memset(memory, FILL, all);
    return true;
}

static void close_buffer(struct buffer *b)
{
    if (b->base && b->arena)
        abc_mem_free(b->base);
    else
        free(b->base);
    *b = (struct buffer){.base = NULL};
}

/* What is in front of the buffer, and behind it. */
static bool is_whole(const struct buffer *b, uint64_t guard)
{
    bool whole = true;
    for (const char *at = b->base; at && at < b->at; at++)
        whole &= *(const unsigned char *)at == FILL;
    for (uint64_t i = 0; b->base && i < guard; i++)
        whole &= (unsigned char)b->at[b->bytes + i] == FILL;
    return whole;
}

static uint64_t guard_of(const struct one_call *c)
{
    return c->seed % 2 ? GUARD : 0;
}

static void put_input(struct one_call *c)
{
    for (int i = 0; i < c->in_pieces; i++)
        values_put(c->in.at, &c->in_piece[i], c->type, c->seed);
}

static void fill_lists(struct one_call *c, int b)
{
    const struct piece *p = b ? c->out_piece : c->in_piece;
    for (int i = 0; i < (b ? c->out_pieces : c->in_pieces); i++) {
        c->counts[b][i] = p[i].count;
        c->offsets[b][i] = p[i].at;
    }
}

bool call_open(const struct ground *g, struct one_call *c)
{
    lay_in(g, c);
    lay_out(g, c);
    fill_lists(c, 0);
    fill_lists(c, 1);
    uint64_t size = abc_type_size(c->type), guard = guard_of(c);
    uint64_t in = end_of(c->in_piece, c->in_pieces, c->type), out = end_of(c->out_piece, c->out_pieces, c->type);
    bool in_holds_out = plain(c) == ABC_REDUCE_SCATTER || plain(c) == ABC_SCATTER;
    c->in_place &= c->in_pieces > 0 && c->out_pieces > 0;
    bool ok = true;
    if (!c->in_place || !in_holds_out)
        ok = open_buffer(g, &c->out, out, c->out_arena, c->out_shift, guard);
    if (ok && (!c->in_place || in_holds_out))
        ok = open_buffer(g, &c->in, in, c->in_arena, c->in_shift, guard);
    if (ok && c->in_place && in_holds_out)
        c->out.at = c->in.at + c->in_piece[g->rank].at * size;
    else if (ok && c->in_place)
        c->in.at = c->out.at + (c->out_pieces > 1 && c->in_pieces == 1 ? c->out_piece[g->rank].at * size : 0);
    if (ok)
        put_input(c);
    return ok;
}

/* ---- Making it ---- */

static void fill_call(const struct one_call *c, abc_call *call)
{
    bool holds = plain(c) == ABC_REDUCE_SCATTER || plain(c) == ABC_SCATTER;
    abc_call_init(call, c->collective);
    call->in = c->in_pieces == 0 ? NULL : c->in_place && c->by_name && !holds ? ABC_IN_PLACE : c->in.at;
    call->out = c->out_pieces == 0 ? NULL : c->in_place && c->by_name && holds ? (void *)ABC_IN_PLACE : c->out.at;
    call->count = c->count[0][0];
    call->type = c->type;
    call->op = c->op;
    call->root = c->root;
    if (!is_list(c))
        return;
    bool wide[2] = {abci_part_width(plain(c), ABCI_IN) == ABCI_WIDE, abci_part_width(plain(c), ABCI_OUT) == ABCI_WIDE};
    call->count = c->collective == ABC_GATHERV ? c->in_piece[0].count : c->collective == ABC_SCATTERV ? c->out_piece[0].count : 0;
    call->in_counts = wide[0] && c->in_pieces ? c->counts[0] : NULL;
    call->out_counts = wide[1] && c->out_pieces ? c->counts[1] : NULL;
    call->in_offsets = wide[0] && c->in_pieces && c->collective != ABC_REDUCE_SCATTERV ? c->offsets[0] : NULL;
    call->out_offsets = wide[1] && c->out_pieces ? c->offsets[1] : NULL;
}

static bool send_one(const struct ground *g, struct one_call *c)
{
    int to = (g->rank + c->distance) % g->nranks, from = (g->rank + 2 * g->nranks - c->distance) % g->nranks;
    uint64_t n = c->count[0][0];
    if (c->how == CALL_BLOCKING)
        return check_status(g->r, abc_sendrecv(c->in.at, n, to, c->tag, c->out.at, n, from, c->tag, c->type, g->comm, NULL), ABC_OK,
                            "sendrecv");
    return check_status(g->r, abc_recv_start(c->out.at, n, c->type, from, c->tag, g->comm, NULL, &c->request[0]), ABC_OK,
                        "recv_start") &&
           check_status(g->r, abc_send_start(c->in.at, n, c->type, to, c->tag, g->comm, &c->request[1]), ABC_OK, "send_start");
}

static void describe(const struct ground *g, const struct one_call *c)
{
    doing(g->r, "%s, %llu of %s, op %s, root %d, %s%s%s%s, seed %u",
          c->collective == ABC_SEND ? "message" : abc_collective_name(c->collective), (unsigned long long)c->count[0][0],
          abc_type_name(c->type), abc_op_name(c->op), c->root,
          c->how == CALL_BLOCKING  ? "blocking"
          : c->how == CALL_STARTED ? "started"
                                   : "persistent",
          c->in_place ? ", in place" : "", c->in_arena ? ", in arena" : "", c->out_arena ? ", out arena" : "", c->seed);
}

bool call_begin(const struct ground *g, struct one_call *c)
{
    abc_call call;
    describe(g, c);
    if (c->collective == ABC_SEND)
        return send_one(g, c);
    fill_call(c, &call);
    int status = c->how == CALL_BLOCKING  ? abc_run(g->comm, &call)
                 : c->how == CALL_STARTED ? abc_start(g->comm, &call, &c->request[0])
                 : c->request[0]          ? ABC_OK
                                          : abc_request_create(g->comm, &call, &c->request[0]);
    if (status == ABC_OK && c->how == CALL_PERSISTENT)
        status = abc_restart(c->request[0]);
    return check_status(g->r, status, ABC_OK, abc_collective_name(c->collective));
}

/* ---- What came out ---- */

static bool compare(const struct ground *g, const struct one_call *c)
{
    bool ok = true;
    for (int i = 0; i < c->out_pieces && ok; i++) {
        const struct piece *p = &c->out_piece[i];
        uint64_t wrong = values_wrong(c->out.at, p, c->type, c->op, c->seed);
        if (wrong < p->count)
            describe(g, c);
        ok = check(g->r, wrong == p->count, "element %llu of %llu of piece %d is wrong", (unsigned long long)wrong,
                   (unsigned long long)p->count, i);
    }
    return ok && check(g->r, is_whole(&c->in, guard_of(c)) && is_whole(&c->out, guard_of(c)), "bytes beside a buffer were written");
}

static bool wait_both(const struct ground *g, struct one_call *c)
{
    bool ok = true;
    for (int i = 0; i < 2 && ok; i++)
        ok = !c->request[i] || check_status(g->r, abc_wait(&c->request[i]), ABC_OK, "wait");
    return ok;
}

/* Once more, with other numbers in the same buffers. */
static bool again(const struct ground *g, struct one_call *c)
{
    c->seed += 2 * 0x9e3779b9u;
    put_input(c);
    return call_begin(g, c) && wait_both(g, c) && compare(g, c);
}

bool call_end(const struct ground *g, struct one_call *c, bool grouped)
{
    bool ok = wait_both(g, c) && compare(g, c);
    for (int i = 0; i < c->repeats && ok && !grouped; i++)
        ok = again(g, c);
    if (ok && c->how == CALL_PERSISTENT && c->request[0])
        ok = check_status(g->r, abc_request_free(c->request[0]), ABC_OK, "request_free");
    close_buffer(&c->in);
    close_buffer(&c->out);
    return ok;
}
