/*
 * test_random.c - random programs against a scalar model. A program is a sequence of steps that all ranks derive from one seed:
 * operations on the world, on splits and on splits of splits, several in flight, and communicators that come and go. What may
 * differ from rank to rank does: memory, alignment, in place or not, blocking, started or persistent, the order of waits, delays.
 * Jobs differ in ranks and settings. `--full` goes on for ten minutes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/part.h"
#include "run_case.h"

#define WORLD 6
#define COMMS 6
#define FLYING 6
#define MOST_BYTES (1u << 20)

struct program {
    uint64_t seed;
    int steps;
    bool progress;   /* threads advance all communicators */
    bool exact;      /* an algorithm is forced that adds in another order */
    uint64_t bounds; /* bytes of the largest operation */
};

/* A communicator as all ranks of the world know it: who is in which part of it. */
struct partition {
    bool used;
    int part[WORLD]; /* smallest world rank of the part, -1: in none */
    int rank[WORLD], size[WORLD];
};

struct player {
    struct rank *r;
    const struct program *program;
    uint64_t shared; /* dice, the same on all ranks */
    struct partition at[COMMS];
    abc_comm *comm[COMMS];
    struct running flying[FLYING];
    struct buffers buffers[FLYING];
    bool busy[FLYING];
    int of[FLYING]; /* the communicator it is on */
};

static uint64_t below(uint64_t *dice, uint64_t end)
{
    return random_next(dice) % end;
}

/* ---- Operations ---- */

static uint64_t draw_count(uint64_t *dice, uint64_t bounds, uint64_t element, uint64_t share)
{
    static const uint64_t most[] = {1, 4, 33, 60, 300, 5000, 20000, 70000, 300000, MOST_BYTES};
    uint64_t bytes = most[below(dice, sizeof most / sizeof most[0])];
    bytes = bytes < bounds ? bytes : bounds;
    return below(dice, bytes / element / share + 2);
}

/* What the ranks of a part agree on comes from `dice`, the rest from the rank's own. */
static void draw_case(const struct program *program, uint64_t *dice, uint64_t *own, int nranks, struct one_case *c)
{
    static const unsigned shifts[] = {0, 0, 1, 4, 16, 35, 63};
    memset(c, 0, sizeof *c);
    c->collective = below(dice, 3) ? (abc_collective)below(dice, ABCI_PLANNED) : ABC_ALLREDUCE;
    bool reduces = abci_is(ABCI_REDUCING, c->collective), wide = abci_part_by_rank(c->collective);
    c->type = (abc_type)below(dice, TEST_TYPES);
    c->op = reduces ? (enum test_op)below(dice, TEST_OP_COUNT) : TEST_SUM;
    if (c->op == TEST_AVG && abci_is(ABCI_PREFIX, c->collective))
        c->op = TEST_SUM;
    c->count = draw_count(dice, program->bounds, abc_type_size(c->type), wide ? (uint64_t)nranks : 1);
    c->root = abci_is(ABCI_ROOTED, c->collective) ? (int)below(dice, (uint64_t)nranks) : 0;
    c->seed = random_next(dice);
    c->exact = program->exact || c->op == TEST_USER_ADD;
    int count = 0;
    while (abci_algos[count])
        count++;
    const struct abci_algo *a = abci_algos[below(dice, (uint64_t)count)];
    if (below(dice, 2) && abci_algo_fits(a, c->collective, nranks)) {
        c->algorithm = a->name;
        c->exact |= !a->rank_order || c->type == ABC_BF16;
        c->unsupported = c->op == TEST_USER_AFFINE && !a->ordered;
    }
    if (c->collective == ABC_BARRIER)
        c->count = 0, c->type = ABC_F32;
    c->place = c->collective == ABC_BARRIER ? 0 : (int)below(own, 3);
    if ((c->collective == ABC_REDUCE_SCATTER || c->collective == ABC_SCATTER) && c->place == 1)
        c->place = 2;
    c->memory = (int)below(own, 3);
    c->how = (int)below(own, 4);
    c->in_shift = c->place ? 0 : shifts[below(own, 7)];
    c->out_shift = shifts[below(own, 7)];
}

static bool end_one(struct player *p, int i)
{
    p->busy[i] = false;
    return case_end(p->r, &p->flying[i]);
}

/* Wait for everything, or all that is on one communicator, beginning anywhere and going either way. */
static bool end_all(struct player *p, int comm)
{
    int first = (int)below(&p->r->random, FLYING), way = below(&p->r->random, 2) ? 1 : FLYING - 1;
    bool ok = true;
    for (int k = 0; k < FLYING && ok; k++) {
        int i = (first + k * way) % FLYING;
        if (p->busy[i] && (comm < 0 || p->of[i] == comm))
            ok = end_one(p, i);
    }
    return ok;
}

/* Who blocks on one communicator advances no other, unless there are progress threads: then all ranks must block in one order. */
static bool settle(struct player *p, int s)
{
    bool ok = true;
    for (int i = 0; i < FLYING && ok && !p->program->progress; i++)
        if (p->busy[i] && p->of[i] != s)
            ok = end_one(p, i);
    return ok;
}

static bool operate(struct player *p, int s)
{
    int me = p->r->rank, slot = -1;
    uint64_t dice = random_next(&p->shared) + (uint64_t)(p->at[s].part[me] + 1) * 1000003;
    if (!p->comm[s])
        return true;
    if (!settle(p, s))
        return false;
    for (int i = 0; i < FLYING && slot < 0; i++)
        if (!p->busy[i])
            slot = i;
    if (slot < 0) {
        slot = (int)below(&p->r->random, FLYING);
        if (!end_one(p, slot))
            return false;
    }
    struct one_case c;
    struct place at = {p->comm[s], p->at[s].rank[me], p->at[s].size[me]};
    draw_case(p->program, &dice, &p->r->random, at.nranks, &c);
    if (!case_begin(p->r, &at, &p->buffers[slot], &c, &p->flying[slot]))
        return false;
    p->busy[slot] = p->flying[slot].request != NULL;
    p->of[slot] = s;
    for (int i = 0; i < FLYING; i++)
        if (p->busy[i] && below(&p->r->random, 4) == 0 && abc_test(p->flying[i].request) < 0)
            return end_one(p, i); /* says why */
    return p->busy[slot] || case_end(p->r, &p->flying[slot]);
}

/* ---- Communicators ---- */

/* The parts of a new partition, as abc_comm_split must make them. */
static void model_split(const struct partition *old, const int *color, const int *key, struct partition *new)
{
    new->used = true;
    for (int w = 0; w < WORLD; w++) {
        new->part[w] = -1;
        new->rank[w] = new->size[w] = 0;
        if (old->part[w] < 0 || color[w] < 0)
            continue;
        for (int o = WORLD - 1; o >= 0; o--) {
            if (old->part[o] != old->part[w] || color[o] != color[w])
                continue;
            new->part[w] = o;
            new->size[w]++;
            new->rank[w] += key[o] < key[w] || (key[o] == key[w] && old->rank[o] < old->rank[w]);
        }
    }
}

static bool divide(struct player *p, int from, int to)
{
    int color[WORLD], key[WORLD], me = p->r->rank;
    for (int w = 0; w < WORLD; w++) {
        color[w] = (int)below(&p->shared, 4) - 1;
        key[w] = (int)below(&p->shared, 5) - 2;
    }
    model_split(&p->at[from], color, key, &p->at[to]);
    p->comm[to] = NULL;
    if (!p->comm[from])
        return true;
    doing(p->r, "split of communicator %d, color %d, key %d", from, color[me], key[me]);
    if (!settle(p, from) || !check_status(p->r, abc_comm_split(p->comm[from], color[me], key[me], &p->comm[to]), ABC_OK, "split"))
        return false;
    if (color[me] < 0)
        return check(p->r, !p->comm[to], "a communicator without taking part");
    return check(p->r, abc_comm_rank(p->comm[to]) == p->at[to].rank[me] && abc_comm_size(p->comm[to]) == p->at[to].size[me],
                 "rank %d of %d, must be %d of %d", abc_comm_rank(p->comm[to]), abc_comm_size(p->comm[to]), p->at[to].rank[me],
                 p->at[to].size[me]);
}

static bool drop(struct player *p, int s)
{
    doing(p->r, "destroying communicator %d", s);
    p->at[s].used = false;
    return (!p->comm[s] || settle(p, s)) && end_all(p, s) &&
           check_status(p->r, abc_comm_destroy(p->comm[s]), ABC_OK, "destroy of a split");
}

static bool step(struct player *p)
{
    uint64_t dice = below(&p->shared, 100);
    int s = (int)below(&p->shared, COMMS), to = (int)below(&p->shared, COMMS - 1) + 1;
    if (!p->at[s].used)
        s = 0;
    random_nap(p->r, dice == 50 ? 20000 : 60);
    if (dice < 4 && s != to)
        return (!p->at[to].used || drop(p, to)) && divide(p, s, to);
    if (dice < 6 && s > 0)
        return drop(p, s);
    return dice < 12 ? end_all(p, -1) : operate(p, s);
}

static int body(struct rank *r)
{
    struct player *p = calloc(1, sizeof *p);
    if (!check(r, p != NULL, "no memory"))
        return 1;
    p->r = r;
    p->program = r->argument;
    p->shared = p->program->seed;
    r->random ^= p->program->seed << 8;
    p->comm[0] = r->comm;
    p->at[0].used = true;
    for (int w = 0; w < WORLD; w++) {
        p->at[0].part[w] = w < r->nranks ? 0 : -1;
        p->at[0].rank[w] = w;
        p->at[0].size[w] = r->nranks;
    }
    bool ok = true;
    for (int i = 0; i < FLYING && ok; i++)
        ok = buffers_open(r, &p->buffers[i], MOST_BYTES + 4096);
    for (int i = 0; i < p->program->steps && ok; i++)
        ok = step(p);
    ok = ok && end_all(p, -1);
    for (int s = 1; s < COMMS && ok; s++)
        ok = !p->at[s].used || drop(p, s);
    for (int i = 0; i < FLYING && ok; i++)
        buffers_close(&p->buffers[i]);
    free(p);
    return ok ? 0 : 1;
}

/* ---- Jobs ---- */

/* An algorithm for each collective, as far as one fits. */
static void force(uint64_t *dice, int nranks, char *text, size_t capacity)
{
    size_t at = (size_t)snprintf(text, capacity, "ABCOMM_ALGO=");
    const char *between = "";
    int count = 0;
    while (abci_algos[count])
        count++;
    for (int coll = 0; coll < ABCI_PLANNED; coll++) {
        const struct abci_algo *a = abci_algos[below(dice, (uint64_t)count)];
        if (!abci_algo_fits(a, (abc_collective)coll, nranks))
            continue;
        at += (size_t)snprintf(text + at, capacity - at, "%s%s:%s", between, abc_collective_name((abc_collective)coll), a->name);
        between = ";";
    }
}

static bool one_job(uint64_t seed, int number, int steps)
{
    static const char *const pvr[] = {"auto", "on", "off"}, *const chunk[] = {"0", "64", "4K", "100K", "2M"};
    static const char *const stores[] = {"auto", "plain", "stream"}, *const spin[] = {"-1", "0", "1000"};
    uint64_t dice = seed + (uint64_t)number * 7919;
    struct program program = {.seed = random_next(&dice), .steps = steps};
    char text[6][320], name[64];
    const char *environment[7] = {text[0], text[1], text[2], text[3], text[4], NULL, NULL};
    int nranks = 2 + (int)below(&dice, WORLD - 1), c = (int)below(&dice, 5);
    snprintf(text[0], sizeof text[0], "ABCOMM_PVR=%s", pvr[below(&dice, 3)]);
    snprintf(text[1], sizeof text[1], "ABCOMM_PIPELINE=%d", 1 + (int)below(&dice, 4));
    snprintf(text[2], sizeof text[2], "ABCOMM_STORES=%s", stores[below(&dice, 3)]);
    snprintf(text[3], sizeof text[3], "ABCOMM_SPIN=%s", spin[below(&dice, 3)]);
    snprintf(text[4], sizeof text[4], "ABCOMM_CHUNK=%s", chunk[c]);
    program.bounds = c == 1 ? 8192 : MOST_BYTES;
    if (below(&dice, 2)) {
        force(&dice, nranks, text[5], sizeof text[5]);
        environment[5] = text[5];
        program.exact = true;
    }
    snprintf(name, sizeof name, "random program %d", number);
    struct job job = {.name = name, .body = body, .argument = &program, .nranks = nranks, .environment = environment};
    job.threads = below(&dice, 3) == 0;
    job.progress = program.progress = below(&dice, 3) == 0;
    return job_run(&job);
}

int main(int argc, char **argv)
{
    struct options o;
    options_read(argc, argv, &o);
    ops_open();
    double start = now_seconds();
    int failed = 0;
    for (int i = 0; failed < 5 && now_seconds() - start < (o.full ? 600 : 12) && (o.full || i < 24); i++)
        failed += !one_job(o.seed, i, o.full ? 600 : 120);
    ops_close();
    return jobs_end();
}
