/*
 * run_case.c - one call with everything around it: guard bytes before and after the output, an input that must not change, and the
 * comparison with the reference. Used by whoever wants to know whether a communicator still computes.
 */
#include "run_case.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GUARD 128
#define FILL 0xa5

bool buffers_open(struct rank *r, struct buffers *b, size_t bytes)
{
    b->bytes = bytes;
    for (int k = 0; k < 2; k++) {
        void *arena;
        if (!check_status(r, abc_mem_alloc(bytes, &arena), ABC_OK, "abc_mem_alloc"))
            return false;
        b->memory[0][k] = arena;
        b->memory[1][k] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (!check(r, b->memory[1][k] != MAP_FAILED, "no memory for buffers"))
            return false;
    }
    return true;
}

void buffers_close(struct buffers *b)
{
    for (int k = 0; k < 2; k++) {
        abc_mem_free(b->memory[0][k]);
        munmap(b->memory[1][k], b->bytes);
    }
}

static uint64_t in_elements(const struct one_case *c, int nranks)
{
    bool wide = c->collective == ABC_REDUCE_SCATTER || c->collective == ABC_SCATTER || c->collective == ABC_ALLTOALL;
    return c->collective == ABC_BARRIER ? 0 : wide ? c->count * (uint64_t)nranks : c->count;
}

static uint64_t out_elements(const struct one_case *c, int nranks)
{
    bool wide = c->collective == ABC_ALLGATHER || c->collective == ABC_GATHER || c->collective == ABC_ALLTOALL;
    return c->collective == ABC_BARRIER ? 0 : wide ? c->count * (uint64_t)nranks : c->count;
}

static bool has_input(const struct one_case *c, int rank)
{
    return (c->collective != ABC_BROADCAST && c->collective != ABC_SCATTER) || rank == c->root;
}

static bool has_output(const struct one_case *c, int rank)
{
    if (c->collective == ABC_EXSCAN)
        return rank > 0;
    return (c->collective != ABC_REDUCE && c->collective != ABC_GATHER) || rank == c->root;
}

/* In place the larger buffer is the input. */
static bool in_holds_out(const struct one_case *c)
{
    return c->collective == ABC_REDUCE_SCATTER || c->collective == ABC_SCATTER;
}

size_t case_bytes(const struct one_case *c, int nranks)
{
    uint64_t in = in_elements(c, nranks), out = out_elements(c, nranks);
    return (in > out ? in : out) * abc_type_size(c->type) + 2 * GUARD + 64;
}

static void lay_out(const struct place *r, const struct buffers *b, const struct one_case *c, struct layout *l)
{
    size_t size = abc_type_size(c->type);
    int kind_in = c->memory, kind_out = c->memory;
    if (c->memory == 2) {
        uint64_t dice = c->seed + (uint64_t)r->rank * 7919;
        kind_in = (int)(random_next(&dice) & 1);
        kind_out = (int)(random_next(&dice) & 1);
    }
    l->in_bytes = in_elements(c, r->nranks) * size;
    l->out_bytes = out_elements(c, r->nranks) * size;
    bool only_root = c->collective == ABC_REDUCE || c->collective == ABC_GATHER || c->collective == ABC_SCATTER;
    l->apart = c->place == 0 || (only_root && r->rank != c->root); /* the others have one buffer */
    l->out = b->memory[kind_out][1] + GUARD + c->out_shift;
    l->in = b->memory[kind_in][0] + GUARD + c->in_shift;
    l->mine = 0;
    if (!l->apart && in_holds_out(c)) {
        l->in = l->out;
        l->mine = (size_t)r->rank * l->out_bytes;
        l->out = l->in + l->mine;
    } else if (!l->apart) {
        l->mine = c->collective == ABC_ALLGATHER || c->collective == ABC_GATHER ? (size_t)r->rank * l->in_bytes : 0;
        l->in = l->out + l->mine;
    }
    l->argument = c->place == 1 && !l->apart ? ABC_IN_PLACE : l->in;
    if (c->collective == ABC_BARRIER)
        l->argument = l->in = l->out = NULL;
}

static void prepare(const struct place *r, const struct one_case *c, const struct values *v, struct layout *l)
{
    if (!l->out)
        return;
    if (l->apart || !in_holds_out(c))
        memset(l->out - GUARD, FILL, l->out_bytes + 2 * GUARD);
    if (l->apart || in_holds_out(c))
        memset(l->in - GUARD, FILL, l->in_bytes + 2 * GUARD);
    if (has_input(c, r->rank))
        values_fill(v, r->rank, 0, in_elements(c, r->nranks), l->in);
    else if (l->apart && (c->seed & 1))
        l->argument = NULL; /* whatever it is, it is not looked at */
}

/* Up to where a blocking call is over and the others are under way. */
static int call(struct running *run)
{
    const struct one_case *c = &run->c;
    abc_call call;
    abc_call_init(&call, c->collective);
    call.in = run->l.argument;
    call.out = has_output(c, run->at.rank) || c->seed & 1 || c->place ? run->l.out : NULL;
    call.count = c->count;
    call.type = c->type;
    call.op = op_for(c->op);
    call.root = c->root;
    call.algorithm = c->algorithm;
    if (c->how == 0)
        return abc_run(run->at.comm, &call);
    if (c->how == 3) {
        int began = abc_group_start(), called = began == ABC_OK ? abc_run(run->at.comm, &call) : began;
        int ended = abc_group_end();
        return called != ABC_OK ? called : ended;
    }
    if (c->how == 1)
        return abc_start(run->at.comm, &call, &run->request);
    int status = abc_request_create(run->at.comm, &call, &run->request);
    return status == ABC_OK ? abc_restart(run->request) : status;
}

static int finish(struct running *run)
{
    if (!run->request)
        return ABC_OK;
    int status = abc_wait(&run->request);
    int freed = run->c.how == 2 ? abc_request_free(run->request) : ABC_OK;
    return status == ABC_OK ? freed : status;
}

static bool guards(struct rank *r, const char *what, const char *at, size_t bytes)
{
    for (int i = 1; i <= GUARD; i++)
        if (!check(r, (unsigned char)at[-i] == FILL, "%s: byte %d before the buffer was written", what, i) ||
            !check(r, (unsigned char)at[bytes + (size_t)i - 1] == FILL, "%s: byte %d after the buffer was written", what, i - 1))
            return false;
    return true;
}

static bool compare(struct rank *r, const struct running *run)
{
    const struct one_case *c = &run->c;
    const struct values *v = &run->v;
    const struct layout *l = &run->l;
    const struct place *at = &run->at;
    uint64_t got = 0, want = 0, same = 0, n = c->count;
    size_t size = abc_type_size(c->type);
    if (!has_output(c, at->rank)) {
        for (size_t i = 0; l->apart && i < l->out_bytes; i++)
            if (!check(r, (unsigned char)l->out[i] == FILL, "byte %zu was written where this rank has no output", i))
                return false;
        return l->apart || check(r, values_differ(v, at->rank, 0, n, l->out) == n, "the input was overwritten");
    }
    switch (c->collective) {
    case ABC_SCAN:
    case ABC_EXSCAN:
        same = reduction_differs(v, at->rank + (c->collective == ABC_SCAN), 0, n, l->out, &got, &want);
        break;
    case ABC_REDUCE:
    case ABC_ALLREDUCE:
        same = reduction_differs(v, at->nranks, 0, n, l->out, &got, &want);
        break;
    case ABC_REDUCE_SCATTER:
        same = reduction_differs(v, at->nranks, (uint64_t)at->rank * n, n, l->out, &got, &want);
        break;
    case ABC_BROADCAST:
        same = values_differ(v, c->root, 0, n, l->out);
        break;
    case ABC_SCATTER:
        same = values_differ(v, c->root, (uint64_t)at->rank * n, n, l->out);
        break;
    case ABC_GATHER:
    case ABC_ALLTOALL:
    case ABC_ALLGATHER:
        for (int p = 0; p < at->nranks; p++) {
            uint64_t first = c->collective == ABC_ALLTOALL ? (uint64_t)at->rank * n : 0;
            same = values_differ(v, p, first, n, l->out + (size_t)p * n * size);
            if (!check(r, same == n, "block %d differs at element %llu", p, (unsigned long long)same))
                return false;
        }
        break;
    default:
        return true;
    }
    return check(r, same == n, "element %llu is %llx, must be %llx", (unsigned long long)same, (unsigned long long)got,
                 (unsigned long long)want);
}

static bool untouched(struct rank *r, const struct running *run)
{
    const struct one_case *c = &run->c;
    const struct layout *l = &run->l;
    if (!l->out)
        return true;
    if (l->apart) {
        uint64_t n = in_elements(c, run->at.nranks);
        if (has_input(c, run->at.rank) &&
            !check(r, values_differ(&run->v, run->at.rank, 0, n, l->in) == n, "the input has changed"))
            return false;
        return guards(r, "output", l->out, l->out_bytes) && guards(r, "input", l->in, l->in_bytes);
    }
    if (in_holds_out(c))
        return guards(r, "buffer", l->in, l->in_bytes);
    return guards(r, "buffer", l->out, l->out_bytes);
}

bool case_begin(struct rank *r, const struct place *at, struct buffers *b, const struct one_case *c, struct running *run)
{
    char text[192];
    case_text(c, text, sizeof text);
    doing(r, "%s", text);
    if (!check(r, case_bytes(c, at->nranks) <= b->bytes, "the test's buffers are too small"))
        return false;
    *run = (struct running){.c = *c, .at = *at};
    run->v = (struct values){.seed = c->seed, .type = c->type, .op = c->op, .exact = c->exact};
    lay_out(at, b, c, &run->l);
    prepare(at, c, &run->v, &run->l);
    int status = call(run);
    if (!c->unsupported)
        return check_status(r, status, ABC_OK, "call");
    run->request = NULL;
    return check_status(r, status, ABC_ERR_UNSUPPORTED, "an algorithm that swaps operands");
}

bool case_end(struct rank *r, struct running *run)
{
    char text[192];
    case_text(&run->c, text, sizeof text);
    doing(r, "the end of %s", text);
    return run->c.unsupported || (check_status(r, finish(run), ABC_OK, "wait") && compare(r, run) && untouched(r, run));
}

bool run_case(struct rank *r, struct buffers *b, const struct one_case *c)
{
    struct place at = {r->comm, r->rank, r->nranks};
    struct running run;
    return case_begin(r, &at, b, c, &run) && case_end(r, &run);
}
