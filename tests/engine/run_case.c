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
    return c->collective == ABC_BARRIER ? 0 : c->collective == ABC_REDUCE_SCATTER ? c->count * (uint64_t)nranks : c->count;
}

static uint64_t out_elements(const struct one_case *c, int nranks)
{
    return c->collective == ABC_BARRIER ? 0 : c->collective == ABC_ALLGATHER ? c->count * (uint64_t)nranks : c->count;
}

size_t case_bytes(const struct one_case *c, int nranks)
{
    uint64_t in = in_elements(c, nranks), out = out_elements(c, nranks);
    return (in > out ? in : out) * abc_type_size(c->type) + 2 * GUARD + 64;
}

/* One call's buffers. */
struct layout {
    char *in, *out;
    size_t in_bytes, out_bytes;
    size_t mine; /* in place: where in the larger buffer the smaller lies */
    bool apart;  /* out of place */
    const void *argument;
};

static void lay_out(const struct rank *r, const struct buffers *b, const struct one_case *c, struct layout *l)
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
    l->apart = c->place == 0;
    l->out = b->memory[kind_out][1] + GUARD + c->out_shift;
    l->in = b->memory[kind_in][0] + GUARD + c->in_shift;
    l->mine = 0;
    if (!l->apart && c->collective == ABC_REDUCE_SCATTER) { /* the input is the larger one */
        l->in = l->out;
        l->mine = (size_t)r->rank * l->out_bytes;
        l->out = l->in + l->mine;
    } else if (!l->apart) {
        l->mine = c->collective == ABC_ALLGATHER ? (size_t)r->rank * l->in_bytes : 0;
        l->in = l->out + l->mine;
    }
    l->argument = c->place == 1 ? ABC_IN_PLACE : l->in;
    if (c->collective == ABC_BARRIER)
        l->argument = l->in = l->out = NULL;
}

static void prepare(const struct rank *r, const struct one_case *c, const struct values *v, struct layout *l)
{
    if (!l->out)
        return;
    bool has_input = c->collective != ABC_BROADCAST || r->rank == c->root;
    if (l->apart || c->collective != ABC_REDUCE_SCATTER)
        memset(l->out - GUARD, FILL, l->out_bytes + 2 * GUARD);
    if (l->apart || c->collective == ABC_REDUCE_SCATTER)
        memset(l->in - GUARD, FILL, l->in_bytes + 2 * GUARD);
    if (has_input)
        values_fill(v, r->rank, 0, in_elements(c, r->nranks), l->in);
    else if (l->apart && (c->seed & 1))
        l->argument = NULL; /* whatever it is, it is not looked at */
}

static int call(struct rank *r, const struct one_case *c, const struct layout *l)
{
    abc_call call;
    abc_request *request;
    abc_call_init(&call, c->collective);
    call.in = l->argument;
    call.out = l->out;
    call.count = c->count;
    call.type = c->type;
    call.op = op_for(c->op);
    call.root = c->root;
    call.algorithm = c->algorithm;
    if (c->how == 0)
        return abc_run(r->comm, &call);
    if (c->how == 1) {
        int status = abc_start(r->comm, &call, &request);
        return status == ABC_OK ? abc_wait(&request) : status;
    }
    int status = abc_request_create(r->comm, &call, &request);
    if (status != ABC_OK)
        return status;
    status = abc_restart(request);
    if (status == ABC_OK)
        status = abc_wait(&request);
    int freed = abc_request_free(request);
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

static bool compare(struct rank *r, const struct one_case *c, const struct values *v, const struct layout *l)
{
    uint64_t got = 0, want = 0, at = 0, n = c->count;
    size_t size = abc_type_size(c->type);
    switch (c->collective) {
    case ABC_ALLREDUCE:
        at = reduction_differs(v, r->nranks, 0, n, l->out, &got, &want);
        break;
    case ABC_REDUCE_SCATTER:
        at = reduction_differs(v, r->nranks, (uint64_t)r->rank * n, n, l->out, &got, &want);
        break;
    case ABC_BROADCAST:
        at = values_differ(v, c->root, 0, n, l->out);
        break;
    case ABC_ALLGATHER:
        for (int p = 0; p < r->nranks; p++) {
            at = values_differ(v, p, 0, n, l->out + (size_t)p * n * size);
            if (!check(r, at == n, "block %d differs at element %llu", p, (unsigned long long)at))
                return false;
        }
        break;
    default:
        return true;
    }
    return check(r, at == n, "element %llu is %llx, must be %llx", (unsigned long long)at, (unsigned long long)got,
                 (unsigned long long)want);
}

static bool run_prepared(struct rank *r, const struct one_case *c, const struct values *v, struct layout *l)
{
    prepare(r, c, v, l);
    int status = call(r, c, l);
    if (c->unsupported)
        return check_status(r, status, ABC_ERR_UNSUPPORTED, "an algorithm that swaps operands");
    if (!check_status(r, status, ABC_OK, "call") || !compare(r, c, v, l))
        return false;
    if (!l->out)
        return true;
    if (l->apart) {
        bool has_input = c->collective != ABC_BROADCAST || r->rank == c->root;
        uint64_t n = in_elements(c, r->nranks);
        if (has_input && !check(r, values_differ(v, r->rank, 0, n, l->in) == n, "the input has changed"))
            return false;
        return guards(r, "output", l->out, l->out_bytes) && guards(r, "input", l->in, l->in_bytes);
    }
    if (c->collective == ABC_REDUCE_SCATTER)
        return guards(r, "buffer", l->in, l->in_bytes);
    return guards(r, "buffer", l->out, l->out_bytes);
}

bool run_case(struct rank *r, struct buffers *b, const struct one_case *c)
{
    struct values v = {.seed = c->seed, .type = c->type, .op = c->op, .exact = c->exact};
    struct layout l;
    char text[192];
    case_text(c, text, sizeof text);
    doing(r, "%s", text);
    if (!check(r, case_bytes(c, r->nranks) <= b->bytes, "the test's buffers are too small"))
        return false;
    lay_out(r, b, c, &l);
    return run_prepared(r, c, &v, &l);
}
