/*
 * test_errors.c - what a caller can do wrong before an operation has a number: the status, a text that names what is wrong, buffers
 * that nobody has touched, and a communicator that goes on working. Only rank 0 makes the mistakes: nobody else may notice.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define N 64

/* The same good call on all ranks. */
static bool still_works(struct rank *r)
{
    float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)(i + r->rank);
    bool ok = check_status(r, abc_allreduce(x, y, N, ABC_F32, ABC_SUM, r->comm), ABC_OK, "a good call after the bad");
    for (int i = 0; i < N && ok; i++)
        ok = check(r, y[i] == (float)(i * r->nranks + r->nranks * (r->nranks - 1) / 2), "element %d", i);
    return ok;
}

/* The call fails with `wanted`, its text contains `word`, and the buffers stay. */
static bool refused(struct rank *r, const abc_call *call, int wanted, const char *word)
{
    abc_request *q = NULL;
    unsigned char *bytes = call->out, before[N * 4];
    bool readable = bytes && call->out != (void *)ABC_IN_PLACE;
    if (readable)
        memcpy(before, bytes, sizeof before);
    int status = abc_run(r->comm, call);
    bool ok = check(r, status == wanted, "\"%s\": %s instead of %s", word, abc_status_name(status), abc_status_name(wanted));
    ok = ok && check(r, strstr(abc_last_error(), word), "\"%s\" is not in: %s", word, abc_last_error());
    ok = ok && check(r, strstr(abc_last_error(), abc_status_remedy(wanted)), "no remedy in: %s", abc_last_error());
    ok = ok && check_status(r, abc_start(r->comm, call, &q), wanted, "start") && check(r, !q, "a request came out of a bad call");
    ok = ok && check_status(r, abc_request_create(r->comm, call, &q), wanted, "create") && check(r, !q, "a request came out");
    return ok && check(r, !readable || memcmp(before, bytes, sizeof before) == 0, "\"%s\": the output was touched", word);
}

static bool bad_calls(struct rank *r)
{
    float in[4 * N] = {1}, out[4 * N] = {2};
    abc_call good, c;
    abc_call_init(&good, ABC_ALLREDUCE);
    good.in = in;
    good.out = out;
    good.count = N;
    bool ok = check_status(r, abc_run(r->comm, NULL), ABC_ERR_ARGUMENT, "no call");
    c = good, c.size = 8;
    ok = ok && refused(r, &c, ABC_ERR_VERSION, "abc_call_init");
    c = good, c.collective = 17;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "17");
    c = good, c.type = 99;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "ABC_I32_I32");
    c = good, c.op = 60;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "ABC_SUM");
    c = good, c.op = ABC_OP_USER + 5;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "abc_op_create");
    c = good, c.op = ABC_OP_LIMIT + 100;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "abc_op_create");
    c = good, c.count = UINT64_MAX / 4;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "more than memory");
    c = good, c.in = NULL;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "input buffer is null");
    c = good, c.out = NULL;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "output buffer is null");
    c = good, c.in = out + 1;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "overlap");
    c = good, c.in = out + N - 1;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "overlap");
    c = good, c.timeout = -1;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "timeout");
    c = good, c.timeout = __builtin_nan("");
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "timeout");
    c = good, c.codec = "int8";
    ok = ok && refused(r, &c, ABC_ERR_UNSUPPORTED, "codec");
    c = good, c.priority = 3;
    ok = ok && refused(r, &c, ABC_ERR_UNSUPPORTED, "priority");
    c = good, c.algorithm = "fastest";
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "oneshot");
    c = good, c.algorithm = "";
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "algorithm");
    return ok;
}

static bool bad_shapes(struct rank *r)
{
    float in[4 * N] = {1}, out[4 * N] = {2};
    abc_call c;
    abc_call_init(&c, ABC_BROADCAST);
    c.in = in;
    c.out = out;
    c.count = N;
    c.root = r->nranks;
    bool ok = refused(r, &c, ABC_ERR_ARGUMENT, "root");
    c.root = -1;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "root");
    c.root = 0;
    c.algorithm = "ring";
    ok = ok && refused(r, &c, ABC_ERR_UNSUPPORTED, "binomial");
    abc_call_init(&c, ABC_REDUCE_SCATTER);
    c.in = ABC_IN_PLACE;
    c.out = out;
    c.count = N;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "rank * count");
    abc_call_init(&c, ABC_ALLGATHER);
    c.in = out + 1;
    c.out = out;
    c.count = N / 2;
    ok = ok && refused(r, &c, ABC_ERR_ARGUMENT, "overlap");
    return ok;
}

static void add(const void *in, void *inout, uint64_t count, abc_type type, void *context)
{
}

static bool bad_handles(struct rank *r)
{
    float x[4] = {0};
    abc_request *q = NULL;
    abc_op op;
    void *p, *p2;
    bool ok = check_status(r, abc_allreduce(x, x, 4, ABC_F32, ABC_SUM, NULL), ABC_ERR_HANDLE, "no communicator");
    ok = ok && check_status(r, abc_wait(NULL), ABC_ERR_ARGUMENT, "no place") &&
         check_status(r, abc_wait(&q), ABC_ERR_HANDLE, "no request");
    ok = ok && check_status(r, abc_test(NULL), ABC_ERR_HANDLE, "no request") &&
         check_status(r, abc_restart(NULL), ABC_ERR_HANDLE, "restart");
    ok = ok && check_status(r, abc_request_free(NULL), ABC_OK, "free nothing");
    abc_call barrier;
    abc_call_init(&barrier, ABC_BARRIER);
    ok = ok && check_status(r, abc_request_create(r->comm, &barrier, &q), ABC_OK, "create") &&
         check_status(r, abc_request_free(q), ABC_OK, "free");
    ok = ok && check_status(r, abc_request_free(q), ABC_ERR_HANDLE, "freed twice") &&
         check_status(r, abc_restart(q), ABC_ERR_HANDLE, "a freed request") &&
         check_status(r, abc_test(q), ABC_ERR_HANDLE, "a freed request") &&
         check_status(r, abc_wait(&q), ABC_ERR_HANDLE, "a freed request");
    ok = ok && check_status(r, abc_allreduce_start(x, x, 4, ABC_F32, ABC_SUM, r->comm, NULL), ABC_ERR_ARGUMENT, "no place");
    ok = ok && check_status(r, abc_op_create(NULL, 1, NULL, &op), ABC_ERR_ARGUMENT, "no function");
    ok = ok && check_status(r, abc_op_create(add, 1, NULL, &op), ABC_OK, "op") &&
         check_status(r, abc_op_free(op), ABC_OK, "op free");
    ok = ok && check_status(r, abc_op_free(op), ABC_ERR_ARGUMENT, "op freed twice");
    ok = ok && check_status(r, abc_allreduce(x, x, 4, ABC_F32, op, r->comm), ABC_ERR_ARGUMENT, "a freed op");
    ok = ok && check_status(r, abc_mem_alloc(100000, &p), ABC_OK, "alloc");
    ok = ok && check_status(r, abc_mem_free((char *)p + 64), ABC_ERR_ARGUMENT, "the middle of a buffer");
    ok =
        ok && check_status(r, abc_mem_free(p), ABC_OK, "free") && check_status(r, abc_mem_free(p), ABC_ERR_ARGUMENT, "freed twice");
    ok = ok && check(r, strstr(abc_last_error(), "twice"), "the text says: %s", abc_last_error());
    ok = ok && check_status(r, abc_mem_free(x), ABC_ERR_ARGUMENT, "memory of somebody else") &&
         check_status(r, abc_mem_free(NULL), ABC_OK, "null");
    ok = ok && check_status(r, abc_mem_alloc(1, NULL), ABC_ERR_ARGUMENT, "no place") &&
         check_status(r, abc_mem_alloc(0, &p2), ABC_OK, "nothing");
    ok = ok && check_status(r, abc_mem_free(p2), ABC_OK, "free") &&
         check_status(r, abc_mem_alloc(1ull << 60, &p), ABC_ERR_MEMORY, "too much");
    ok = ok && check_status(r, abc_comm_split(r->comm, 0, 0, NULL), ABC_ERR_ARGUMENT, "no place");
    ok = ok && check_status(r, abc_comm_load_plan(r->comm, NULL, 1), ABC_ERR_ARGUMENT, "no plan");
    ok = ok && check_status(r, abc_comm_load_plan(r->comm, "{", 1), ABC_ERR_PLAN, "half a plan");
    return ok && check(r, abc_comm_status(r->comm) == ABC_OK, "the communicator ended: %s", abc_last_error());
}

/* Requests in the wrong state, alone: a communicator of one rank. */
static bool bad_states(struct rank *r)
{
    int32_t x = 1, y = 0;
    abc_request *q = NULL;
    abc_call c;
    abc_comm_config config;
    abc_comm *alone;
    abc_comm_config_init(&config);
    config.rank = 0;
    config.nranks = 1;
    bool ok = check_status(r, abc_comm_create(&config, NULL), ABC_ERR_ARGUMENT, "no place");
    config.timeout = -1;
    ok = ok && check_status(r, abc_comm_create(&config, &alone), ABC_ERR_ARGUMENT, "a negative timeout");
    config.timeout = 0;
    config.connect_timeout = __builtin_nan("");
    ok = ok && check_status(r, abc_comm_create(&config, &alone), ABC_ERR_ARGUMENT, "a timeout that is no number");
    config.connect_timeout = 0;
    config.progress_thread = 7;
    ok = ok && check_status(r, abc_comm_create(&config, &alone), ABC_ERR_ARGUMENT, "seven progress threads");
    config.progress_thread = -1;
    config.nranks = 0;
    ok = ok && check_status(r, abc_comm_create(&config, &alone), ABC_ERR_ARGUMENT, "no ranks");
    config.nranks = 1;
    config.size = 3;
    ok = ok && check_status(r, abc_comm_create(&config, &alone), ABC_ERR_VERSION, "size");
    config.size = sizeof config;
    ok = ok && check_status(r, abc_comm_create(&config, &alone), ABC_OK, "alone");
    abc_call_init(&c, ABC_ALLREDUCE);
    c.in = &x;
    c.out = &y;
    c.count = 1;
    c.type = ABC_I32;
    ok = ok && check_status(r, abc_request_create(alone, &c, &q), ABC_OK, "create");
    ok = ok && check_status(r, abc_wait(&q), ABC_ERR_STATE, "wait before start") && check(r, q != NULL, "the request is gone");
    ok = ok && check_status(r, abc_comm_destroy(alone), ABC_ERR_STATE, "destroy with a request");
    ok = ok && check(r, strstr(abc_last_error(), "requests not freed: 1"), "the text says: %s", abc_last_error());
    ok = ok && check_status(r, abc_restart(q), ABC_OK, "restart") && check_status(r, abc_wait(&q), ABC_OK, "wait") &&
         check(r, y == 1, "y");
    ok = ok && check_status(r, abc_wait(&q), ABC_OK, "wait again") && check_status(r, abc_request_free(q), ABC_OK, "free");
    ok = ok && check_status(r, abc_allreduce_start(&x, &y, 1, ABC_I32, ABC_SUM, alone, &q), ABC_OK, "start");
    ok = ok && check_status(r, abc_restart(q), ABC_ERR_STATE, "restart of a started one") &&
         check_status(r, abc_wait(&q), ABC_OK, "wait");
    return ok && check_status(r, abc_comm_destroy(alone), ABC_OK, "destroy");
}

/* A request in progress can be neither freed nor restarted, and its communicator not destroyed. */
static bool in_progress(struct rank *r)
{
    int32_t x = r->rank, y = 0;
    bool ok = true;
    if (r->rank == 0) {
        abc_request *q = NULL;
        ok = check_status(r, abc_allreduce_start(&x, &y, 1, ABC_I32, ABC_SUM, r->comm, &q), ABC_OK, "start");
        ok = ok && check_status(r, abc_test(q), ABC_PENDING, "test") && check_status(r, abc_request_free(q), ABC_ERR_STATE, "free");
        ok = ok && check_status(r, abc_comm_destroy(r->comm), ABC_ERR_STATE, "destroy") && meet(r);
        return ok && check_status(r, abc_wait(&q), ABC_OK, "wait");
    }
    return meet(r) && check_status(r, abc_allreduce(&x, &y, 1, ABC_I32, ABC_SUM, r->comm), ABC_OK, "allreduce");
}

static int body(struct rank *r)
{
    bool (*const parts[])(struct rank *) = {bad_calls, bad_shapes, bad_handles, bad_states};
    bool ok = still_works(r);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && ok; i++) {
        doing(r, "part %zu", i);
        ok = (r->rank != 0 || parts[i](r)) && still_works(r);
    }
    return !(ok && in_progress(r) && still_works(r));
}

/* ---- An operation of the caller that cannot go on ---- */

struct spoiler {
    _Atomic int left; /* calls before the one that fails; negative: none does */
};

static void spoil(const void *in, void *inout, uint64_t count, abc_type type, void *context)
{
    struct spoiler *s = context;
    (void)in, (void)inout, (void)count, (void)type;
    if (s->left-- == 0)
        abc_op_fail("no\nroom");
}

/* On one rank, at its first call or a later one: everybody hears it, at the next call at the latest, and then all is as before.
 */
static bool spoiled(struct rank *r, uint64_t count, int calls, int how)
{
    struct spoiler s = {r->rank == r->nranks - 1 ? calls : INT_MIN / 2};
    float *in = calloc(count, sizeof *in), *out = calloc(count, sizeof *out);
    abc_comm *comm = NULL;
    abc_request *q = NULL;
    abc_op op;
    doing(r, "%llu elements, call %d, way %d", (unsigned long long)count, calls, how);
    bool ok = check(r, in && out, "no memory") && check_status(r, rank_create(r, 0, 0, &comm), ABC_OK, "create") &&
              check_status(r, abc_op_create(spoil, how & 1, &s, &op), ABC_OK, "op_create");
    int status = ok && how < 2 ? abc_allreduce(in, out, count, ABC_F32, op, comm) : ABC_OK;
    if (ok && how >= 2 && check_status(r, abc_allreduce_start(in, out, count, ABC_F32, op, comm, &q), ABC_OK, "start"))
        status = abc_wait(&q);
    if (ok && status == ABC_OK && r->rank < r->nranks - 1)
        status = abc_barrier(comm); /* this rank may have added everything itself */
    ok = ok && check_status(r, status, ABC_ERR_ABORTED, "an operation that fails") &&
         check(r, strstr(abc_last_error(), "no?room") && strstr(abc_last_error(), "operation"), "%s", abc_last_error()) &&
         check_status(r, abc_comm_destroy(comm), ABC_ERR_ABORTED, "destroy") && check_status(r, abc_op_free(op), ABC_OK, "op_free");
    free(in);
    free(out);
    abc_op_fail("outside of any");
    return ok && meet(r) && still_works(r);
}

static int failing_operation(struct rank *r)
{
    bool ok = true;
    for (int how = 0; how < 4 && ok; how++)
        ok = spoiled(r, 1, 0, how) && spoiled(r, 4000, 0, how) && spoiled(r, 300000, 0, how) && spoiled(r, 300000, 20, how);
    return !ok;
}

int main(int argc, char **argv)
{
    struct options o;
    options_read(argc, argv, &o);
    job_run(&(struct job){.name = "errors", .body = body, .nranks = 3});
    job_run(&(struct job){.name = "errors", .body = body, .nranks = 3, .threads = true});
    for (int n = 2; n <= 3; n++) {
        job_run(&(struct job){.name = "an operation that fails", .body = failing_operation, .nranks = n});
        job_run(&(struct job){.name = "an operation that fails", .body = failing_operation, .nranks = n, .threads = true});
    }
    return jobs_end();
}
