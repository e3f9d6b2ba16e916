/*
 * test_counts.c - collectives with a count for each rank, against values that are a function of (rank, place): counts with zeros,
 * blocks with gaps and in any order, in place, several chunks, blocking, started and persistent, by name or as a call. And what
 * disagrees: both numbers in the text, nothing written.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

#define ROUNDS 60
#define UNTOUCHED 0x5a5a5a5au

struct lists {
    uint64_t count[MAX_TEST_RANKS], offset[MAX_TEST_RANKS], end;
};

static uint64_t below(uint64_t *dice, uint64_t n)
{
    return random_next(dice) % n;
}

/* What rank `from` has for rank `to` at place i. */
static uint32_t value(uint64_t seed, int from, int to, uint64_t i)
{
    return (uint32_t)(seed * 2654435761u + (uint64_t)from * 40503 + (uint64_t)to * 9176 + i * 17);
}

/* Elements that go from one rank to another; every rank knows the dice. */
static uint64_t size_of(uint64_t seed, int from, int to, uint64_t most)
{
    uint64_t dice = seed + (uint64_t)from * 131 + (uint64_t)to * 7919;
    random_next(&dice);
    return below(&dice, 4) == 0 ? 0 : below(&dice, most + 1);
}

/* Offsets in any order, with gaps. */
static void place(uint64_t *dice, int n, struct lists *l)
{
    int order[MAX_TEST_RANKS];
    l->end = below(dice, 3);
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int k = (int)below(dice, (uint64_t)i + 1), t = order[i];
        order[i] = order[k];
        order[k] = t;
    }
    for (int i = 0; i < n; i++) {
        l->offset[order[i]] = l->end;
        l->end += l->count[order[i]] + below(dice, 3);
    }
}

/* By the function of its name, where nothing is asked for that only a call can say. */
static int run(const abc_call *c, abc_comm *comm)
{
    if (c->algorithm)
        return abc_run(comm, c);
    switch (c->collective) {
    case ABC_GATHERV:
        return abc_gatherv(c->in, c->count, c->out, c->out_counts, c->out_offsets, c->type, c->root, comm);
    case ABC_SCATTERV:
        return abc_scatterv(c->in, c->in_counts, c->in_offsets, c->out, c->count, c->type, c->root, comm);
    case ABC_ALLGATHERV:
        return abc_allgatherv(c->in, c->out, c->out_counts, c->out_offsets, c->type, comm);
    case ABC_REDUCE_SCATTERV:
        return abc_reduce_scatterv(c->in, c->out, c->in_counts, c->type, c->op, comm);
    default:
        return abc_alltoallv(c->in, c->in_counts, c->in_offsets, c->out, c->out_counts, c->out_offsets, c->type, comm);
    }
}

static int start(const abc_call *c, abc_comm *comm, abc_request **q)
{
    if (c->algorithm)
        return abc_start(comm, c, q);
    switch (c->collective) {
    case ABC_GATHERV:
        return abc_gatherv_start(c->in, c->count, c->out, c->out_counts, c->out_offsets, c->type, c->root, comm, q);
    case ABC_SCATTERV:
        return abc_scatterv_start(c->in, c->in_counts, c->in_offsets, c->out, c->count, c->type, c->root, comm, q);
    case ABC_ALLGATHERV:
        return abc_allgatherv_start(c->in, c->out, c->out_counts, c->out_offsets, c->type, comm, q);
    case ABC_REDUCE_SCATTERV:
        return abc_reduce_scatterv_start(c->in, c->out, c->in_counts, c->type, c->op, comm, q);
    default:
        return abc_alltoallv_start(c->in, c->in_counts, c->in_offsets, c->out, c->out_counts, c->out_offsets, c->type, comm, q);
    }
}

static int run_as(struct rank *r, const abc_call *call, int how)
{
    abc_request *request = NULL;
    if (how == 0)
        return run(call, r->comm);
    int status = how == 1 ? start(call, r->comm, &request) : abc_request_create(r->comm, call, &request);
    for (int again = 0; status == ABC_OK && again < (how == 2 ? 2 : 1); again++) {
        if (how == 2)
            status = abc_restart(request);
        if (status == ABC_OK)
            status = abc_wait(&request);
    }
    if (how == 2 && request)
        abc_request_free(request);
    return status;
}

/* Every element of the output is what it should be: blocks from `from`'s list, gaps untouched. */
static bool compare(struct rank *r, const uint32_t *out, const struct lists *l, uint64_t seed, bool moves_mine, const char *what)
{
    bool ok = true;
    for (int p = 0; p < r->nranks && ok; p++)
        for (uint64_t i = 0; i < l->count[p] && ok; i++)
            ok = check(r, out[l->offset[p] + i] == value(seed, p, moves_mine ? r->rank : 0, i),
                       "%s: element %llu of rank %d is wrong", what, (unsigned long long)i, p);
    for (uint64_t i = 0; i < l->end && ok; i++) {
        bool in_block = false;
        for (int p = 0; p < r->nranks; p++)
            in_block |= i >= l->offset[p] && i < l->offset[p] + l->count[p];
        ok = in_block || check(r, out[i] == UNTOUCHED, "%s: place %llu between blocks was written", what, (unsigned long long)i);
    }
    return ok;
}

static void fill(uint32_t *to, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        to[i] = UNTOUCHED;
}

static bool alltoallv(struct rank *r, uint32_t *in, uint32_t *out, uint64_t seed, uint64_t most, uint64_t *own)
{
    struct lists from, to;
    bool in_place = seed % 3 == 0; /* symmetric sizes then */
    int me = r->rank;
    for (int p = 0; p < r->nranks; p++) {
        bool swap = in_place && p < me;
        to.count[p] = size_of(seed, swap ? p : me, swap ? me : p, most);
        from.count[p] = in_place ? to.count[p] : size_of(seed, p, me, most);
    }
    place(own, r->nranks, &from);
    place(own, r->nranks, &to);
    fill(out, from.end);
    for (int p = 0; p < r->nranks; p++)
        for (uint64_t i = 0; i < to.count[p]; i++)
            (in_place ? out + from.offset[p] : in + to.offset[p])[i] = value(seed, me, p, i);
    abc_call c;
    abc_call_init(&c, ABC_ALLTOALLV);
    c.in = in_place ? ABC_IN_PLACE : in;
    c.out = out;
    c.type = ABC_U32;
    c.in_counts = in_place ? NULL : to.count;
    c.in_offsets = to.offset;
    c.out_counts = from.count;
    c.out_offsets = from.offset;
    c.algorithm = seed % 5 == 0 && r->nranks > 1 ? "pairwise" : NULL;
    return check_status(r, run_as(r, &c, in_place ? (int)(seed / 3 % 2) : (int)(seed / 3 % 3)), ABC_OK, "alltoallv") &&
           compare(r, out, &from, seed, true, "alltoallv");
}

static bool gatherv(struct rank *r, uint32_t *in, uint32_t *out, uint64_t seed, uint64_t most, uint64_t *own)
{
    struct lists l;
    bool all = seed & 1, is_root = all || r->rank == (int)(seed / 2 % (uint64_t)r->nranks);
    for (int p = 0; p < r->nranks; p++)
        l.count[p] = size_of(seed, p, 0, most);
    place(own, r->nranks, &l);
    fill(out, l.end);
    bool in_place = is_root && seed % 3 == 0;
    uint32_t *mine = in_place ? out + l.offset[r->rank] : in;
    for (uint64_t i = 0; i < l.count[r->rank]; i++)
        mine[i] = value(seed, r->rank, 0, i);
    abc_call c;
    abc_call_init(&c, all ? ABC_ALLGATHERV : ABC_GATHERV);
    c.in = in_place && seed & 4 ? ABC_IN_PLACE : mine;
    c.out = is_root ? out : NULL;
    c.count = all ? 0 : l.count[r->rank];
    c.type = ABC_U32;
    c.root = all ? 0 : (int)(seed / 2 % (uint64_t)r->nranks);
    c.out_counts = is_root ? l.count : NULL;
    c.out_offsets = l.offset;
    static const char *const names[] = {NULL, "ring", "recdbl", "oneshot"};
    c.algorithm = all && r->nranks > 1 ? names[seed / 8 % 4] : NULL;
    if (!check_status(r, run_as(r, &c, (int)(seed / 3 % 3)), ABC_OK, all ? "allgatherv" : "gatherv"))
        return false;
    return !is_root || compare(r, out, &l, seed, false, all ? "allgatherv" : "gatherv");
}

static bool scatterv(struct rank *r, uint32_t *in, uint32_t *out, uint64_t seed, uint64_t most, uint64_t *own)
{
    struct lists l;
    int root = (int)(seed / 2 % (uint64_t)r->nranks);
    bool is_root = r->rank == root, ok = true;
    for (int p = 0; p < r->nranks; p++)
        l.count[p] = size_of(seed, 0, p, most);
    place(own, r->nranks, &l);
    for (int p = 0; p < r->nranks && is_root; p++)
        for (uint64_t i = 0; i < l.count[p]; i++)
            in[l.offset[p] + i] = value(seed, 0, p, i);
    abc_call c;
    abc_call_init(&c, ABC_SCATTERV);
    c.in = is_root ? in : NULL;
    bool in_place = is_root && seed % 3 == 0;
    c.out = in_place ? (void *)(intptr_t)-1 : out; /* ABC_IN_PLACE */
    c.count = l.count[r->rank];
    c.type = ABC_U32;
    c.root = root;
    c.in_counts = is_root ? l.count : NULL;
    c.in_offsets = l.offset;
    if (!check_status(r, run_as(r, &c, (int)(seed / 3 % 3)), ABC_OK, "scatterv"))
        return false;
    const uint32_t *got = in_place ? in + l.offset[root] : out;
    for (uint64_t i = 0; i < c.count && ok; i++)
        ok = check(r, got[i] == value(seed, 0, r->rank, i), "scatterv: element %llu is wrong", (unsigned long long)i);
    return ok;
}

static bool reduce_scatterv(struct rank *r, uint32_t *in, uint32_t *out, uint64_t seed, uint64_t most, uint64_t *own)
{
    uint64_t counts[MAX_TEST_RANKS], at = 0, mine = 0;
    bool ok = true;
    for (int p = 0; p < r->nranks; p++) {
        counts[p] = size_of(seed, 0, p, most);
        mine = p == r->rank ? at : mine;
        for (uint64_t i = 0; i < counts[p]; i++)
            in[at++] = value(seed, r->rank, p, i);
    }
    abc_call c;
    abc_call_init(&c, ABC_REDUCE_SCATTERV);
    c.in = in;
    c.out = out;
    c.type = ABC_U32;
    c.in_counts = counts;
    c.algorithm = seed % 3 == 0 && r->nranks > 1 ? "ring" : NULL;
    if (below(own, 2))
        c.out = in + mine; /* the input is gone after it: never run twice */
    if (!check_status(r, run_as(r, &c, (int)(seed / 3 % 2)), ABC_OK, "reduce_scatterv"))
        return false;
    for (uint64_t i = 0; i < counts[r->rank] && ok; i++) {
        uint32_t sum = 0;
        for (int p = 0; p < r->nranks; p++)
            sum += value(seed, p, r->rank, i);
        ok = check(r, ((uint32_t *)c.out)[i] == sum, "reduce_scatterv: element %llu is wrong", (unsigned long long)i);
    }
    return ok;
}

static int random_calls(struct rank *r)
{
    static const uint64_t most[] = {1, 3, 9, 300, 5000, 30000};
    static bool (*const calls[])(struct rank *, uint32_t *, uint32_t *, uint64_t, uint64_t,
                                 uint64_t *) = {alltoallv, gatherv, scatterv, reduce_scatterv};
    uint64_t shared = *(const uint64_t *)r->argument, own = shared + (uint64_t)r->rank;
    size_t bytes = ((size_t)r->nranks * 30005 + 64) * 4;
    void *arena[2];
    uint32_t *private[2] = {malloc(bytes), malloc(bytes)};
    bool ok = private[0] && private[1] && abc_mem_alloc(bytes, &arena[0]) == ABC_OK && abc_mem_alloc(bytes, &arena[1]) == ABC_OK;
    for (int i = 0; i < ROUNDS && ok; i++) {
        uint64_t seed = random_next(&shared) >> 8;
        doing(r, "call %d", i);
        uint64_t kind = below(&own, 4);
        uint32_t *in = kind & 1 ? arena[0] : private[0], *out = kind & 2 ? arena[1] : private[1];
        ok = calls[i % 4](r, in, out, seed, most[seed / 64 % 6], &own);
    }
    for (int b = 0; b < 2; b++) {
        free(private[b]);
        abc_mem_free(arena[b]);
    }
    return ok ? 0 : 1;
}

/* The same counts again and again, as the engine remembers them; with other calls in between, and ranks that come late. */
static int again(struct rank *r)
{
    static const uint64_t most[] = {1, 7, 40, 60, 600}, seeds[] = {16, 14, 26};
    uint64_t shared = *(const uint64_t *)r->argument, own = shared + (uint64_t)r->rank;
    uint32_t *in = malloc(8000 * (size_t)r->nranks), *out = malloc(8000 * (size_t)r->nranks);
    bool ok = in && out;
    for (int i = 0; i < 25 && ok; i++) {
        uint64_t kind = below(&shared, 3), longest = most[below(&shared, 5)], where = own;
        for (int k = 0; k < 6 && ok; k++) {
            doing(r, "kind %d, call %d", (int)kind, k);
            own = where; /* the same offsets: of this rank only */
            if (k > 3 && below(&shared, 2) == (uint64_t)r->rank % 2)
                usleep(300);
            ok = kind == 0 ? alltoallv(r, in, out, seeds[0], longest, &own) : gatherv(r, in, out, seeds[kind] | 1, longest, &own);
        }
        ok = ok && check_status(r, abc_barrier(r->comm), ABC_OK, "barrier");
    }
    free(in);
    free(out);
    return ok ? 0 : 1;
}

static bool refused(struct rank *r, int status, const char *part)
{
    return check_status(r, status, ABC_ERR_ARGUMENT, part) &&
           check(r, strstr(abc_last_error(), part) != NULL, "\"%s\" does not say \"%s\"", abc_last_error(), part);
}

/* Found before anything happens: the communicator stays usable. */
static int bad_lists(struct rank *r)
{
    uint32_t in[64] = {0}, out[64] = {0};
    const uint64_t two[] = {2, 2}, overlap[] = {0, 1}, huge[] = {UINT64_MAX, 1}, other[] = {1, 1}, apart[] = {0, 4};
    bool ok = refused(r, abc_allgatherv(in, out, NULL, NULL, ABC_U32, r->comm), "allgatherv needs out_counts") &&
              refused(r, abc_allgatherv(in, out, two, overlap, ABC_U32, r->comm), "blocks 0 and 1 of the output overlap") &&
              refused(r, abc_alltoallv(in, huge, NULL, out, two, NULL, ABC_U32, r->comm), "more than memory can hold") &&
              refused(r, abc_alltoallv(in, two, NULL, out, other, NULL, ABC_U32, r->comm), "sends itself 2 elements and gets 1") &&
              refused(r, abc_gatherv(in, 2, out, two, NULL, ABC_U32, 2, r->comm), "root 2 is not a rank") &&
              refused(r, abc_allgatherv(out + 1, out, two, apart, ABC_U32, r->comm), "overlap without being in place");
    /* Between the blocks of an output there is room for an input. */
    ok = ok && check_status(r, abc_allgatherv(out + 2, out, two, apart, ABC_U32, r->comm), ABC_OK, "input between blocks");
    return ok && check_status(r, abc_alltoallv(in, two, NULL, out, two, NULL, ABC_U32, r->comm), ABC_OK, "afterwards") ? 0 : 1;
}

/* The first of these that a rank hears of it has both numbers; then all ranks know. */
static int disagree(struct rank *r)
{
    uint32_t in[64] = {0}, out[64];
    const uint64_t said[] = {3, 3}, meant[] = {3, 4};
    const int argument = *(const int *)r->argument, which = argument % 4, agreed = argument / 4 * 8, me = r->rank;
    const uint64_t *mine = said, *others = said;
    int status = ABC_OK;
    abc_comm *comm;
    if (!check_status(r, rank_create(r, 0, 0, &comm), ABC_OK, "creation"))
        return 1;
    fill(out, 64);
    for (int i = 0; i < 40 && status == ABC_OK; i++) {
        mine = i < agreed ? said : meant;
        others = i < agreed ? said : which == 3 ? meant : said;
        if (i == agreed)
            fill(out, 64);
        if (which == 0) /* rank 0 expects 4 elements of rank 1, which has 3 */
            status = abc_gatherv(in, 3, out, mine, NULL, ABC_U32, 0, comm);
        else if (which == 1)
            status = abc_scatterv(in, mine, NULL, out, 3, ABC_U32, 0, comm);
        else if (which == 2) /* the counts of the own blocks agree */
            status = abc_alltoallv(in, me == 0 ? mine : said, NULL, out, said, NULL, ABC_U32, comm);
        else
            status = abc_allgatherv(in, out, me == 0 ? said : others, NULL, ABC_U32, comm);
    }
    bool ok = check_status(r, status, ABC_ERR_MISMATCH, "counts that differ");
    for (int i = 0; i < 64 && ok && (me == 1 || which == 3); i++) /* what rank 0 gets of an alltoallv is right */
        ok = check(r, out[i] == UNTOUCHED, "element %d of the output was written", i);
    static const char *const parts[][2] = {
        {"count of 3", "expects 4"}, {"get 3", "sends it 4"}, {"get 3", "sends it 4"}, {"count 6", "count 7"}};
    for (int k = 0; k < 2 && ok; k++)
        ok = check(r, strstr(abc_last_error(), parts[which][k]) != NULL, "\"%s\" does not say \"%s\"", abc_last_error(),
                   parts[which][k]);
    return ok && check_status(r, abc_comm_destroy(comm), ABC_ERR_MISMATCH, "destroy") ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct options o;
    options_read(argc, argv, &o);
    static const char *const small[] = {"ABCOMM_CHUNK=4K", NULL}, *const tiny[] = {"ABCOMM_CHUNK=64", "ABCOMM_PIPELINE=1", NULL};
    int jobs = o.full ? 400 : 10;
    for (int i = 0; i < jobs; i++) {
        uint64_t seed = o.seed + (uint64_t)i * 7919;
        char name[64];
        snprintf(name, sizeof name, "random counts %d", i);
        struct job job = {.name = name, .body = random_calls, .argument = &seed, .nranks = 1 + i % 6, .threads = i % 4 == 3};
        job.progress = i % 5 == 4;
        job.environment = i % 3 == 1 ? small : i % 9 == 2 ? tiny : NULL;
        job_run(&job);
    }
    struct job bad = {.name = "bad lists", .body = bad_lists, .nranks = 2};
    job_run(&bad);
    for (int i = 0; i < 6; i++) {
        uint64_t seed = o.seed + (uint64_t)i * 7919;
        char name[64];
        snprintf(name, sizeof name, "the same counts again %d", i);
        struct job job = {.name = name, .body = again, .argument = &seed, .nranks = 2 + i % 3, .threads = i % 4 == 3};
        job.progress = i == 4;
        job_run(&job);
    }
    for (int which = 0; which < 8; which++) {
        char name[64];
        snprintf(name, sizeof name, "counts that disagree %d", which);
        struct job job = {.name = name, .body = disagree, .argument = &which, .nranks = 2, .no_comm = true};
        job_run(&job);
    }
    return jobs_end();
}
