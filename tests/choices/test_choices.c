/*
 * test_choices.c - random programs on random machines. What a communicator chooses follows from what it measured when it was
 * created, so the machine that runs the tests sees one choice of many. Here the measured values are drawn (machine.h), and the
 * sizes of calls lie at and beside those at which the engine or the chooser changes something. Every element of every result is
 * compared; under AddressSanitizer nobody may touch what lies behind a piece of staging, an allocation or a buffer. `--full` goes
 * on for ten minutes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "machine.h"

#define FLYING 5
#define GROUP 30
#define SWEEP 5    /* each so many-th machine sees every edge */
#define SECONDS 13 /* of the default run */

struct program {
    struct machine machine;
    uint64_t seed;
    int steps;
    int parts;  /* the ranks part into so many communicators */
    bool sweep; /* first a sum at each edge and beside it */
};

struct player {
    struct ground ground;
    const struct program *program;
    uint64_t shared; /* dice of all ranks */
    struct one_call flying[FLYING];
    bool busy[FLYING], is_long[FLYING];
};

static uint64_t below(uint64_t *dice, uint64_t end)
{
    return random_next(dice) % end;
}

static bool end_one(struct player *p, int i)
{
    p->busy[i] = false;
    return call_end(&p->ground, &p->flying[i], false);
}

static bool end_all(struct player *p)
{
    int first = (int)below(&p->ground.r->random, FLYING);
    bool ok = true;
    for (int k = 0; k < FLYING && ok; k++)
        if (p->busy[(first + k) % FLYING])
            ok = end_one(p, (first + k) % FLYING);
    return ok;
}

/* Several calls at once: of all kinds, or mostly short sums of one kind, which become one operation. */
static bool group(struct player *p)
{
    const struct ground *g = &p->ground;
    const struct one_call sum = {.collective = ABC_ALLREDUCE, .type = values_types[below(&p->shared, VALUES_TYPES)], .op = ABC_SUM};
    struct one_call *calls = calloc(GROUP, sizeof *calls);
    bool ok = check(g->r, calls != NULL, "no memory"), sums = below(&p->shared, 2);
    int count = 1 + (int)below(&p->shared, sums ? GROUP : GROUP / 5);
    for (int i = 0; i < count && ok; i++) {
        uint64_t bytes = sums ? 2048 + below(&p->shared, 2) : below(&p->shared, 8) ? CALL_SHORT : CALL_MOST / 4;
        call_draw(g, &p->shared, bytes, sums && below(&p->shared, 12) ? &sum : NULL, &calls[i]);
        ok = call_open(g, &calls[i]);
    }
    ok = ok && check_status(g->r, abc_group_start(), ABC_OK, "group_start");
    for (int i = 0; i < count && ok; i++)
        ok = call_begin(g, &calls[i]);
    doing(g->r, "end of a group of %d", count);
    ok = ok && check_status(g->r, abc_group_end(), ABC_OK, "group_end");
    for (int i = 0; i < count && ok; i++)
        ok = call_end(g, &calls[i], true);
    free(calls);
    return ok;
}

/* A call that stays under way until its place is needed, unless it is a blocking one or comes again. */
static bool operate(struct player *p)
{
    int at = (int)below(&p->ground.r->random, FLYING);
    bool is_long = below(&p->shared, 3) == 0;
    for (int i = 0; i < FLYING; i++)
        if (p->busy[i] && (i == at || (is_long && p->is_long[i])) && !end_one(p, i))
            return false;
    struct one_call *c = &p->flying[at];
    call_draw(&p->ground, &p->shared, is_long ? CALL_MOST : CALL_SHORT, NULL, c);
    p->is_long[at] = is_long;
    if (!call_open(&p->ground, c) || !call_begin(&p->ground, c))
        return false;
    p->busy[at] = true;
    return c->how != CALL_BLOCKING && c->repeats == 0 ? true : end_one(p, at);
}

static bool step(struct player *p)
{
    uint64_t kind = below(&p->shared, 20);
    if (kind == 0)
        return end_all(p);
    if (below(&p->ground.r->random, 4) == 0)
        random_nap(p->ground.r, kind == 1 ? 5000 : 60);
    return kind < 3 ? group(p) : operate(p);
}

/* A sum of private memory of so many bytes, less or more by an element. */
static bool sum_at(struct player *p, uint64_t edge, uint64_t add)
{
    const struct ground *g = &p->ground;
    const struct one_call sum = {.collective = ABC_ALLREDUCE, .type = edge > CALL_SHORT ? ABC_F32 : ABC_U8, .op = ABC_SUM};
    struct one_call *c = &p->flying[0];
    call_draw(g, &p->shared, edge, &sum, c);
    c->count[0][0] = edge / abc_type_size(sum.type) + add - 1;
    c->in_arena = c->out_arena = false;
    return call_open(g, c) && call_begin(g, c) && call_end(g, c, false);
}

static bool sweep(struct player *p)
{
    bool ok = true;
    for (size_t i = 0; i < p->ground.edges && p->ground.edge[i] <= CALL_MOST && ok; i++)
        for (uint64_t add = 0; add < 3 && ok; add++)
            ok = sum_at(p, p->ground.edge[i], add);
    return ok;
}

static bool play(struct rank *r, abc_comm *comm)
{
    const struct program *program = r->argument;
    struct player *p = calloc(1, sizeof *p);
    if (!check(r, p != NULL, "no memory"))
        return false;
    p->program = program;
    p->ground = (struct ground){.r = r, .comm = comm, .rank = abc_comm_rank(comm), .nranks = abc_comm_size(comm)};
    p->ground.edges = machine_edges(comm, p->ground.edge, CALL_EDGES);
    p->shared = program->seed + (uint64_t)p->ground.nranks * 31;
    bool ok = check(r, p->ground.edges < CALL_EDGES, "more edges than expected");
    ok = ok && (!program->sweep || sweep(p));
    for (int i = 0; i < program->steps && ok; i++)
        ok = step(p);
    ok = ok && end_all(p);
    free(p);
    return ok;
}

static int body(struct rank *r)
{
    const struct program *program = r->argument;
    abc_comm *part = NULL;
    r->random ^= program->seed;
    if (program->parts == 1)
        return play(r, r->comm) ? 0 : 1;
    bool ok = check_status(r, abc_comm_split(r->comm, r->rank % program->parts, -r->rank, &part), ABC_OK, "split") && play(r, part);
    return ok && check_status(r, abc_comm_destroy(part), ABC_OK, "destroy of a part") ? 0 : 1;
}

static bool one_job(uint64_t seed, int number, int steps)
{
    static const char *const chunks[] = {"0", "0", "0", "0", "4K", "100K", "2M"};
    uint64_t dice = seed + (uint64_t)number * 7919;
    struct program program = {.seed = random_next(&dice), .steps = steps, .sweep = number % SWEEP == 0};
    char name[320], text[3][48];
    const char *environment[] = {text[0], text[1], text[2], NULL};
    int nranks = below(&dice, 2) ? 2 : 1 + (int)below(&dice, CALL_RANKS), at = snprintf(name, sizeof name, "machine %d: ", number);
    machine_draw(&dice, &program.machine);
    if (number == 0) { /* the machine with the longest chunks, and ranks that pass tokens */
        nranks = 2;
        program.machine.crowding = 2;
        program.machine.remote_from = 0;
    }
    program.parts = nranks > 1 && below(&dice, 6) == 0 ? 2 : 1;
    snprintf(text[0], sizeof text[0], "ABCOMM_PIPELINE=%d", below(&dice, 2) ? 2 : 1 + (int)below(&dice, 4));
    snprintf(text[1], sizeof text[1], "ABCOMM_CHUNK=%s", chunks[number ? below(&dice, 7) : 0]);
    snprintf(text[2], sizeof text[2], "ABCOMM_DETERMINISTIC=%s", below(&dice, 8) ? "false" : "strict");
    machine_text(&program.machine, name + at, sizeof name - (size_t)at);
    machine_use(&program.machine);
    struct job job = {.name = name, .body = body, .argument = &program, .nranks = nranks, .environment = environment, .limit = 120};
    job.threads = below(&dice, 3) == 0;
    job.progress = below(&dice, 4) == 0;
    return job_run(&job);
}

int main(int argc, char **argv)
{
    struct options o;
    options_read(argc, argv, &o);
    double start = now_seconds();
    int failed = 0;
    for (int i = 0; failed < 5 && now_seconds() - start < (o.full ? 600 : SECONDS); i++)
        failed += !one_job(o.seed, i, 40);
    return jobs_end();
}
