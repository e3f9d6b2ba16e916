/*
 * test_pairs.c - every collective, those with a count for each rank too, with every type, operation, layout and way of calling: a
 * sample in which each pair of levels that can meet does, on 1 to 4 ranks; `--full` runs the whole product. Blocking and started
 * calls go through the function of that name, the others through abc_call. Reductions are compared with the oracle of the kernels'
 * tests, in rank order and to the bit; what is only moved, byte by byte.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../reduce/oracle.h"
#include "harness.h"

#define RANKS 4
#define MOST 1500
#define GUARD 64
#define FILL 0x5a
#define BYTES ((MOST + 2 * RANKS) * 16 * RANKS + 2 * GUARD + 16)

enum layout { APART, IN_PLACE, UNALIGNED, ARENA, ZERO, LAYOUTS };
enum form { BLOCKING, STARTED, PERSISTENT, GROUPED, FORMS };
enum { D_COLLECTIVE, D_TYPE, D_OP, D_LAYOUT, D_FORM, DIMENSIONS };
#define LEVELS 20

/* One call, as all ranks know it. */
struct combo {
    uint8_t level[DIMENSIONS];
};

struct list {
    struct combo *at;
    size_t count;
};

struct program {
    struct list list;
    uint64_t seed;
};

/* One call, as one rank makes it. */
struct play {
    abc_collective coll;
    abc_type type;
    abc_op op;
    enum layout layout;
    enum form form;
    int rank, nranks, root;
    uint64_t count;
    size_t size;
    uint64_t n_in[RANKS], n_out[RANKS], in_total, out_total; /* elements of blocks, of all of them */
    char *in, *out, *region;                                 /* region: what the guards stand around */
    size_t region_bytes;
    const void *in_argument;
};

struct room {
    char all[RANKS][BYTES], want[BYTES], private[2][BYTES];
    char *arena[2];
};

/* ---- What there is ---- */

static bool wide(abc_collective c, bool out)
{
    bool both = c == ABC_ALLTOALL || c == ABC_ALLTOALLV;
    if (out)
        return both || c == ABC_ALLGATHER || c == ABC_GATHER || c == ABC_ALLGATHERV || c == ABC_GATHERV;
    return both || c == ABC_REDUCE_SCATTER || c == ABC_SCATTER || c == ABC_REDUCE_SCATTERV || c == ABC_SCATTERV;
}

static bool reduces(abc_collective c)
{
    return c == ABC_ALLREDUCE || c == ABC_REDUCE_SCATTER || c == ABC_REDUCE || c == ABC_SCAN || c == ABC_EXSCAN ||
           c == ABC_REDUCE_SCATTERV;
}

static bool only_root_gets(abc_collective c)
{
    return c == ABC_REDUCE || c == ABC_GATHER || c == ABC_GATHERV;
}

static bool only_root_gives(abc_collective c)
{
    return c == ABC_BROADCAST || c == ABC_SCATTER || c == ABC_SCATTERV;
}

/* Levels that mean nothing are 0, so that they count once. */
static bool can_be(const struct combo *c)
{
    abc_collective coll = (abc_collective)c->level[D_COLLECTIVE];
    abc_op op = (abc_op)c->level[D_OP];
    if (coll == ABC_BARRIER)
        return c->level[D_TYPE] == 0 && op == 0 && c->level[D_LAYOUT] == 0;
    if (!reduces(coll))
        return op == 0;
    return abc_op_fits(op, (abc_type)c->level[D_TYPE]) && !(op == ABC_AVG && (coll == ABC_SCAN || coll == ABC_EXSCAN));
}

static struct list whole_product(void)
{
    static const uint8_t ends[DIMENSIONS] = {ABC_COLLECTIVE_COUNT, ABC_TYPE_COUNT, ABC_OP_COUNT, LAYOUTS, FORMS};
    size_t product = 1;
    for (int d = 0; d < DIMENSIONS; d++)
        product *= ends[d];
    struct list l = {calloc(product, sizeof *l.at), 0};
    for (size_t i = 0; l.at && i < product; i++) {
        struct combo c;
        size_t rest = i;
        for (int d = 0; d < DIMENSIONS; d++) {
            c.level[d] = (uint8_t)(rest % ends[d]);
            rest /= ends[d];
        }
        if (can_be(&c))
            l.at[l.count++] = c;
    }
    return l;
}

static void shuffle(struct list *l, uint64_t *dice)
{
    for (size_t i = l->count; i > 1; i--) {
        size_t k = random_next(dice) % i;
        struct combo c = l->at[i - 1];
        l->at[i - 1] = l->at[k];
        l->at[k] = c;
    }
}

static int fresh_pairs(bool seen[DIMENSIONS][LEVELS][DIMENSIONS][LEVELS], const struct combo *c, bool mark)
{
    int fresh = 0;
    for (int b = 0; b < DIMENSIONS; b++)
        for (int a = 0; a < b; a++) {
            bool *one = &seen[a][c->level[a]][b][c->level[b]];
            fresh += !*one;
            *one |= mark;
        }
    return fresh;
}

/* Take the calls that bring many new pairs, then those that bring fewer, until none brings any: all pairs are there. */
static struct list covering(const struct list *from)
{
    static bool seen[DIMENSIONS][LEVELS][DIMENSIONS][LEVELS];
    struct list l = {calloc(from->count, sizeof *l.at), 0};
    int pairs = 0;
    for (int least = DIMENSIONS * (DIMENSIONS - 1) / 2; l.at && least > 0; least--)
        for (size_t i = 0; i < from->count; i++)
            if (fresh_pairs(seen, &from->at[i], false) >= least) {
                pairs += fresh_pairs(seen, &from->at[i], true);
                l.at[l.count++] = from->at[i];
            }
    printf("%zu of %zu calls have all %d pairs\n", l.count, from->count, pairs);
    return l;
}

/* ---- Before a call ---- */

/* Elements that go from one rank to another. The sizes of alltoallv are symmetric, as in place they must be. */
static uint64_t size_of(const struct play *p, int from, int to)
{
    int key = p->coll == ABC_ALLTOALLV ? from + to : p->coll == ABC_SCATTERV || p->coll == ABC_REDUCE_SCATTERV ? to : from;
    if (p->coll < ABC_GATHERV)
        return p->layout == ZERO ? 0 : p->count;
    return p->layout == ZERO && key % 2 == 0 ? 0 : p->count + (uint64_t)key;
}

/* Elements in front of block `to` of the input of rank `from`. */
static uint64_t before(const struct play *p, int from, int to)
{
    uint64_t n = 0;
    for (int q = 0; q < to && wide(p->coll, false); q++)
        n += size_of(p, from, q);
    return n;
}

static uint64_t input_of(const struct play *p, int rank)
{
    return wide(p->coll, false) ? before(p, rank, p->nranks) : size_of(p, rank, 0);
}

/* Whole numbers of all bits, floats of a bearable size, pairs and truths as they are. */
static void fill(abc_type type, uint64_t seed, uint64_t count, char *to)
{
    size_t size = oracle_size(type);
    for (uint64_t i = 0; i < count; i++, to += size) {
        uint64_t bits[2] = {random_next(&seed), random_next(&seed)};
        float f[2] = {(float)(int32_t)bits[0] / 65536, (float)(int32_t)bits[1] / 4096};
        double d[2] = {(double)(int64_t)bits[0] / 3e12, (double)(int32_t)bits[1]};
        int32_t index = (int32_t)(bits[1] % 9), whole = (int32_t)(bits[0] % 5);
        memcpy(to, bits, size);
        if (type == ABC_F32 || type == ABC_COMPLEX64)
            memcpy(to, f, size);
        else if (type == ABC_F64 || type == ABC_COMPLEX128)
            memcpy(to, d, size);
        else if (type == ABC_F64_I32)
            memcpy(to, &(struct {
                       double value;
                       int32_t index, no_data;
                   }){whole, index, 0},
                   16);
        else if (type == ABC_F32_I32)
            memcpy(to, &(struct {
                       float value;
                       int32_t index;
                   }){(float)whole, index},
                   8);
        else if (type == ABC_I32_I32)
            memcpy(to, &(struct { int32_t value, index; }){whole, index}, 8);
    }
}

static void lay_out(struct play *p, struct room *room)
{
    char **memory = room->arena, *private[2] = {room->private[0], room -> private[1]};
    int me = p->rank, shift = p->layout == UNALIGNED;
    if (p->layout != ARENA)
        memory = private;
    p->in_total = p->out_total = 0;
    for (int q = 0; q < p->nranks; q++) {
        p->n_in[q] = wide(p->coll, false) ? size_of(p, me, q) : 0;
        p->n_out[q] = wide(p->coll, true) ? size_of(p, q, me) : 0;
        p->out_total += p->n_out[q];
    }
    p->in_total = input_of(p, me);
    if (!wide(p->coll, true))
        p->out_total = size_of(p, p->root, me);
    p->in = memory[0] + GUARD + shift;
    p->out = p->region = memory[1] + GUARD + shift * 3;
    p->region_bytes = p->out_total * p->size;
    p->in_argument = p->in;
    bool roots = only_root_gets(p->coll) || p->coll == ABC_SCATTER || p->coll == ABC_SCATTERV;
    if (p->layout != IN_PLACE || (roots && me != p->root))
        return;
    if (wide(p->coll, false) && !wide(p->coll, true)) { /* the larger one is the input */
        p->region = p->in;
        p->region_bytes = p->in_total * p->size;
        p->out = p->in + before(p, me, me) * p->size;
        return;
    }
    p->in = p->out;
    p->in_argument = ABC_IN_PLACE;
    if (wide(p->coll, false))
        return;
    for (int q = 0; q < me; q++)
        p->in += p->n_out[q] * p->size;
}

/* ---- The call ---- */

static int by_name(const struct play *p, abc_comm *comm)
{
    const void *in = p->in_argument;
    void *out = p->out;
    uint64_t own = size_of(p, p->rank, p->rank);
    switch (p->coll) {
    case ABC_ALLREDUCE:
        return abc_allreduce(in, out, own, p->type, p->op, comm);
    case ABC_REDUCE_SCATTER:
        return abc_reduce_scatter(in, out, own, p->type, p->op, comm);
    case ABC_ALLGATHER:
        return abc_allgather(in, out, own, p->type, comm);
    case ABC_BROADCAST:
        return abc_broadcast(in, out, own, p->type, p->root, comm);
    case ABC_BARRIER:
        return abc_barrier(comm);
    case ABC_REDUCE:
        return abc_reduce(in, out, own, p->type, p->op, p->root, comm);
    case ABC_GATHER:
        return abc_gather(in, out, own, p->type, p->root, comm);
    case ABC_SCATTER:
        return abc_scatter(in, out, own, p->type, p->root, comm);
    case ABC_ALLTOALL:
        return abc_alltoall(in, out, own, p->type, comm);
    case ABC_SCAN:
        return abc_scan(in, out, own, p->type, p->op, comm);
    case ABC_EXSCAN:
        return abc_exscan(in, out, own, p->type, p->op, comm);
    case ABC_GATHERV:
        return abc_gatherv(in, own, out, p->n_out, NULL, p->type, p->root, comm);
    case ABC_SCATTERV:
        return abc_scatterv(in, p->n_in, NULL, out, own, p->type, p->root, comm);
    case ABC_ALLGATHERV:
        return abc_allgatherv(in, out, p->n_out, NULL, p->type, comm);
    case ABC_REDUCE_SCATTERV:
        return abc_reduce_scatterv(in, out, p->n_in, p->type, p->op, comm);
    default:
        return abc_alltoallv(in, p->n_in, NULL, out, p->n_out, NULL, p->type, comm);
    }
}

static int start_by_name(const struct play *p, abc_comm *comm, abc_request **q)
{
    const void *in = p->in_argument;
    void *out = p->out;
    uint64_t own = size_of(p, p->rank, p->rank);
    switch (p->coll) {
    case ABC_ALLREDUCE:
        return abc_allreduce_start(in, out, own, p->type, p->op, comm, q);
    case ABC_REDUCE_SCATTER:
        return abc_reduce_scatter_start(in, out, own, p->type, p->op, comm, q);
    case ABC_ALLGATHER:
        return abc_allgather_start(in, out, own, p->type, comm, q);
    case ABC_BROADCAST:
        return abc_broadcast_start(in, out, own, p->type, p->root, comm, q);
    case ABC_BARRIER:
        return abc_barrier_start(comm, q);
    case ABC_REDUCE:
        return abc_reduce_start(in, out, own, p->type, p->op, p->root, comm, q);
    case ABC_GATHER:
        return abc_gather_start(in, out, own, p->type, p->root, comm, q);
    case ABC_SCATTER:
        return abc_scatter_start(in, out, own, p->type, p->root, comm, q);
    case ABC_ALLTOALL:
        return abc_alltoall_start(in, out, own, p->type, comm, q);
    case ABC_SCAN:
        return abc_scan_start(in, out, own, p->type, p->op, comm, q);
    case ABC_EXSCAN:
        return abc_exscan_start(in, out, own, p->type, p->op, comm, q);
    case ABC_GATHERV:
        return abc_gatherv_start(in, own, out, p->n_out, NULL, p->type, p->root, comm, q);
    case ABC_SCATTERV:
        return abc_scatterv_start(in, p->n_in, NULL, out, own, p->type, p->root, comm, q);
    case ABC_ALLGATHERV:
        return abc_allgatherv_start(in, out, p->n_out, NULL, p->type, comm, q);
    case ABC_REDUCE_SCATTERV:
        return abc_reduce_scatterv_start(in, out, p->n_in, p->type, p->op, comm, q);
    default:
        return abc_alltoallv_start(in, p->n_in, NULL, out, p->n_out, NULL, p->type, comm, q);
    }
}

static void as_call(const struct play *p, abc_call *call)
{
    abc_call_init(call, p->coll);
    if (p->coll == ABC_BARRIER)
        return;
    call->in = p->in_argument;
    call->out = p->out;
    call->type = p->type;
    call->op = p->op;
    call->root = p->root;
    bool of_lists = p->coll == ABC_ALLGATHERV || p->coll == ABC_REDUCE_SCATTERV || p->coll == ABC_ALLTOALLV;
    call->count = of_lists ? 0 : size_of(p, p->rank, p->rank);
    call->in_counts = p->coll >= ABC_GATHERV && wide(p->coll, false) ? p->n_in : NULL;
    call->out_counts = p->coll >= ABC_GATHERV && wide(p->coll, true) ? p->n_out : NULL;
}

static int make_call(const struct play *p, abc_comm *comm)
{
    abc_request *q = NULL;
    abc_call call;
    as_call(p, &call);
    if (p->form == BLOCKING)
        return by_name(p, comm);
    if (p->form == GROUPED) {
        int began = abc_group_start(), status = began == ABC_OK ? abc_run(comm, &call) : began;
        int after = status == ABC_OK ? abc_barrier(comm) : status, ended = abc_group_end();
        return after == ABC_OK ? ended : after;
    }
    int status = p->form == STARTED ? start_by_name(p, comm, &q) : abc_request_create(comm, &call, &q);
    for (int turn = p->form == PERSISTENT && p->layout != IN_PLACE ? 2 : 1; turn > 0 && status == ABC_OK; turn--) {
        status = p->form == PERSISTENT ? abc_restart(q) : ABC_OK;
        status = status == ABC_OK ? abc_wait(&q) : status;
    }
    int freed = p->form == PERSISTENT && q ? abc_request_free(q) : ABC_OK;
    return status == ABC_OK ? freed : status;
}

/* ---- After it ---- */

static bool has_output(const struct play *p)
{
    return p->coll != ABC_BARRIER && (!only_root_gets(p->coll) || p->rank == p->root) && (p->coll != ABC_EXSCAN || p->rank > 0);
}

/* The output as it must be, over what lies there before the call. */
static void expect(const struct play *p, struct room *room)
{
    const void *src[RANKS];
    const struct abci_reduction how = {.type = p->type, .op = p->op, .final = 1, .nranks = p->nranks};
    int nsrc = p->coll == ABC_SCAN ? p->rank + 1 : p->coll == ABC_EXSCAN ? p->rank : p->nranks;
    char *to = room->want;
    memcpy(room->want, p->out, p->out_total * p->size);
    if (!has_output(p))
        return;
    for (int k = 0; k < p->nranks; k++)
        src[k] = room->all[k];
    for (uint64_t i = 0; reduces(p->coll) && i < p->out_total; i++) {
        size_t at = (before(p, 0, p->rank) + i) * p->size;
        if (nsrc > 1)
            oracle_element(&how, src, nsrc, at, to + i * p->size);
        else
            memcpy(to + i * p->size, room->all[0] + at, p->size); /* as it is */
    }
    if (only_root_gives(p->coll))
        memcpy(to, room->all[p->root] + before(p, p->root, p->rank) * p->size, p->out_total * p->size);
    for (int k = 0; wide(p->coll, true) && k < p->nranks; k++) {
        memcpy(to, room->all[k] + before(p, k, p->rank) * p->size, p->n_out[k] * p->size);
        to += p->n_out[k] * p->size;
    }
}

static bool compare(struct rank *r, const struct play *p, const struct room *room)
{
    bool exact = !reduces(p->coll) || !has_output(p);
    for (uint64_t i = 0; i < p->out_total; i++) {
        const char *got = p->out + i * p->size, *want = room->want + i * p->size;
        if (!check(r, exact ? memcmp(got, want, p->size) == 0 : oracle_same(p->type, got, want), "element %llu of %llu is wrong",
                   (unsigned long long)i, (unsigned long long)p->out_total))
            return false;
    }
    for (int i = 0; i < GUARD; i++)
        if (!check(r, p->region[-1 - i] == FILL && p->region[p->region_bytes + (size_t)i] == FILL, "written %d bytes outside", i))
            return false;
    bool gave = !only_root_gives(p->coll) || p->rank == p->root;
    return !gave || p->region == p->in || p->in_argument == ABC_IN_PLACE ||
           check(r, memcmp(p->in, room->all[p->rank], p->in_total * p->size) == 0, "the input has changed");
}

static bool one_call(struct rank *r, struct room *room, const struct combo *c, uint64_t seed)
{
    static const uint64_t counts[] = {1, 2, 3, 5, 8, 17, 33, 64, 130, MOST};
    static const char *const layouts[] = {"apart", "in place", "unaligned", "arena", "zero counts"};
    static const char *const forms[] = {"blocking", "started", "persistent", "in a group"};
    struct play p = {.coll = (abc_collective)c->level[D_COLLECTIVE], .type = (abc_type)c->level[D_TYPE]};
    p.op = (abc_op)c->level[D_OP];
    p.layout = (enum layout)c->level[D_LAYOUT];
    p.form = (enum form)c->level[D_FORM];
    p.rank = r->rank;
    p.nranks = r->nranks;
    p.count = p.coll == ABC_BARRIER ? 0 : counts[random_next(&seed) % 10];
    p.root = only_root_gets(p.coll) || only_root_gives(p.coll) ? (int)(random_next(&seed) % (uint64_t)r->nranks) : 0;
    p.size = oracle_size(p.type);
    doing(r, "%s %s %s count %llu root %d, %s, %s", abc_collective_name(p.coll), abc_type_name(p.type), abc_op_name(p.op),
          (unsigned long long)p.count, p.root, layouts[p.layout], forms[p.form]);
    lay_out(&p, room);
    memset(p.region - GUARD, FILL, p.region_bytes + 2 * GUARD);
    for (int k = 0; k < r->nranks; k++)
        fill(p.type, seed + (uint64_t)k * 7919, input_of(&p, k), room->all[k]);
    if (!only_root_gives(p.coll) || p.rank == p.root)
        memcpy(p.in, room->all[p.rank], p.in_total * p.size);
    expect(&p, room);
    return check_status(r, make_call(&p, r->comm), ABC_OK, "call") && compare(r, &p, room);
}

static int body(struct rank *r)
{
    const struct program *program = r->argument;
    struct room *room = calloc(1, sizeof *room);
    bool ok = check(r, room != NULL, "no memory");
    for (int b = 0; b < 2 && ok; b++)
        ok = check_status(r, abc_mem_alloc(BYTES, (void **)&room->arena[b]), ABC_OK, "abc_mem_alloc");
    for (size_t i = 0; i < program->list.count && ok; i++)
        ok = one_call(r, room, &program->list.at[i], program->seed + i * 104729);
    for (int b = 0; b < 2 && ok; b++)
        ok = check_status(r, abc_mem_free(room->arena[b]), ABC_OK, "abc_mem_free");
    free(room);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct options o;
    options_read(argc, argv, &o);
    uint64_t dice = o.seed;
    struct list whole = whole_product();
    shuffle(&whole, &dice);
    struct list sample = covering(&whole);
    struct program program = {o.full ? whole : sample, o.seed};
    for (int kind = 0; kind < (o.full ? 3 : 2); kind++)
        for (int n = 1; n <= RANKS; n++) {
            char name[64];
            snprintf(name, sizeof name, "%zu calls on %d %s%s", program.list.count, n, kind == 1 ? "threads" : "processes",
                     kind == 2 ? " with progress threads" : "");
            struct job job = {.name = name, .body = body, .argument = &program, .nranks = n, .threads = kind == 1, .limit = 300};
            job.progress = kind == 2;
            job_run(&job);
            program.seed += 1;
        }
    free(whole.at);
    free(sample.at);
    return jobs_end();
}
