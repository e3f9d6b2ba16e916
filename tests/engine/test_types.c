/*
 * test_types.c - every type with every operation that it has, through the default algorithm with difficult numbers (in rank order,
 * to the bit) and through each other algorithm with numbers that any order adds alike; scaled sums; what is refused; and the modes
 * of ABCOMM_DETERMINISTIC. The reference is the oracle of the kernels' tests, which knows neither kernels nor plans.
 */
#include <stdlib.h>
#include <string.h>

#include "../reduce/oracle.h"
#include "harness.h"
#include "plan/plan.h"

#define RANKS 4
#define MOST 4099
#define MOST_BYTES (MOST * 16 * RANKS)

struct room {
    char in[RANKS][MOST_BYTES], out[MOST_BYTES];
};

/* A number that every type holds exactly, and that stays exact in sums of RANKS and in products. */
static void easy_element(abc_type type, uint64_t dice, char *to)
{
    int value = (int)(dice % 3) - 1, index = (int)(dice >> 8 & 7);
    float f = (float)value;
    double d = value;
    unsigned small = oracle_is_float(type) && oracle_size(type) < 4 ? oracle_narrow(type, d) : (unsigned)value;
    size_t size = oracle_size(type);
    memset(to, value < 0 ? 0xff : 0, size);
    if (type == ABC_F32 || type == ABC_COMPLEX64 || type == ABC_F32_I32)
        memcpy(to, &f, 4);
    else if (type == ABC_F64 || type == ABC_COMPLEX128 || type == ABC_F64_I32)
        memcpy(to, &d, 8);
    else
        memcpy(to, &small, size < 4 ? size : 4);
    if (type == ABC_COMPLEX64 || type == ABC_COMPLEX128)
        memcpy(to + size / 2, size == 8 ? (void *)&(float){dice & 16 ? 1 : 0} : (void *)&(double){dice & 16 ? 1 : 0}, size / 2);
    if (type >= ABC_F32_I32)
        memcpy(to + (type == ABC_F64_I32 ? 8 : 4), &index, 4);
}

/* Any bits at all; numbers of a size for wide floats, which else would be infinite soon. */
static void hard_element(abc_type type, uint64_t dice, char *to)
{
    uint64_t state = dice;
    size_t size = oracle_size(type);
    float f[2] = {(float)(int32_t)dice / 4096, (float)(int32_t)(dice >> 32) * 3};
    double d[2] = {(double)(int64_t)dice / 3e9, (double)(int32_t)dice};
    for (size_t i = 0; i < size; i++)
        to[i] = (char)random_next(&state);
    if (type == ABC_F32 || type == ABC_COMPLEX64)
        memcpy(to, f, size);
    else if (type == ABC_F64 || type == ABC_COMPLEX128)
        memcpy(to, d, size);
    else if (type >= ABC_F32_I32)
        easy_element(type, dice, to);
}

static void fill(abc_type type, bool easy, uint64_t seed, int rank, uint64_t count, char *to)
{
    uint64_t state = seed * 1000 + (uint64_t)rank;
    for (uint64_t i = 0; i < count; i++)
        (easy ? easy_element : hard_element)(type, random_next(&state), to + i * oracle_size(type));
}

/* -0 becomes 0 in what consists of floats: which of them a complex product has depends on the order. */
static void plain_zeros(abc_type type, char *at)
{
    size_t part = type == ABC_COMPLEX64 ? 4 : 8;
    for (size_t i = 0; i < 2 * part; i += part) {
        float f;
        double d;
        memcpy(&f, at + i, 4);
        memcpy(&d, at + (part == 8 ? i : 0), 8);
        f += 0.0f;
        d += 0.0;
        memcpy(at + i, part == 4 ? (void *)&f : (void *)&d, part);
    }
}

/* out must be the reduction of elements first .. first + count of all inputs. */
static bool expect(struct rank *r, struct room *room, abc_type type, abc_op op, uint64_t first, uint64_t count, const char *what)
{
    const struct abci_reduction how = {.type = type, .op = op, .final = 1, .nranks = r->nranks};
    const void *src[RANKS];
    size_t size = oracle_size(type);
    bool zeros = strcmp(what, "default") != 0 && (type == ABC_COMPLEX64 || type == ABC_COMPLEX128);
    char want[16];
    for (int k = 0; k < r->nranks; k++)
        src[k] = room->in[k];
    for (uint64_t i = 0; i < count; i++) {
        oracle_element(&how, src, r->nranks, (first + i) * size, want);
        if (zeros) {
            plain_zeros(type, want);
            plain_zeros(type, room->out + i * size);
        }
        if (!oracle_same(type, room->out + i * size, want))
            return check(r, false, "%s of %s by %s: element %llu of %llu", abc_op_name(op), abc_type_name(type), what,
                         (unsigned long long)i, (unsigned long long)count);
    }
    return true;
}

static bool one_call(struct rank *r, struct room *room, abc_call *call, uint64_t seed)
{
    bool scatter = call->collective == ABC_REDUCE_SCATTER;
    const char *what = call->algorithm ? call->algorithm : "default";
    for (int k = 0; k < r->nranks; k++)
        fill(call->type, call->algorithm != NULL, seed, k, call->count * (scatter ? (uint64_t)r->nranks : 1), room->in[k]);
    call->in = room->in[r->rank];
    call->out = room->out;
    return check_status(r, abc_run(r->comm, call), ABC_OK, what) &&
           expect(r, room, call->type, call->op, scatter ? call->count * (uint64_t)r->rank : 0, call->count, what);
}

static bool all_algorithms(struct rank *r, struct room *room, abc_type type, abc_op op)
{
    static const uint64_t counts[] = {1, 37, MOST};
    bool ok = true;
    for (int coll = ABC_ALLREDUCE; coll <= ABC_REDUCE_SCATTER; coll++)
        for (int a = -1; ok && (a < 0 || abci_algos[a]); a++) {
            if (a >= 0 && !abci_algo_fits(abci_algos[a], (abc_collective)coll, r->nranks))
                continue;
            abc_call call;
            abc_call_init(&call, (abc_collective)coll);
            call.type = type;
            call.op = op;
            call.algorithm = a < 0 ? NULL : abci_algos[a]->name;
            for (int i = 0; i < 3 && ok; i++) {
                call.count = a >= 0 && i == 2 ? 517 : counts[i];
                ok = one_call(r, room, &call, (uint64_t)(type * 1000 + op * 10 + i));
            }
        }
    return ok;
}

static bool refused(struct rank *r, int status, const char *words)
{
    return check_status(r, status, ABC_ERR_UNSUPPORTED, words) &&
           check(r, strstr(abc_last_error(), words) != NULL, "\"%s\" does not say \"%s\"", abc_last_error(), words);
}

static int every_pair(struct rank *r)
{
    struct room *room = malloc(sizeof *room);
    bool ok = check(r, room != NULL, "no memory");
    for (int type = 0; type < ABC_TYPE_COUNT && ok; type++)
        for (int op = 0; op < ABC_OP_COUNT && ok; op++) {
            doing(r, "%s of %s", abc_op_name((abc_op)op), abc_type_name((abc_type)type));
            if (abc_op_fits((abc_op)op, (abc_type)type))
                ok = all_algorithms(r, room, (abc_type)type, (abc_op)op);
            else
                ok = refused(r, abc_allreduce(room->in, room->out, 1, (abc_type)type, (abc_op)op, r->comm),
                             type == ABC_BOOL ? "bool has sum, min, max, prod" : "means nothing");
        }
    free(room);
    return ok ? 0 : 1;
}

/* ---- Scaled sums: rank k multiplies by k + 2, 1/4 of it in small types ---- */

static bool scaled_sum(struct rank *r, struct room *room, abc_type type, abc_op op, int way, uint64_t count)
{
    size_t size = oracle_size(type);
    uint64_t blocks = way >= 2 ? (uint64_t)r->nranks : 1, first = way >= 2 ? count * (uint64_t)r->rank : 0;
    char *in = room->in[r->rank];
    for (int k = 0; k < r->nranks; k++)
        fill(type, true, count + (uint64_t)way, k, count * blocks, room->in[k]);
    if (way == 1)
        memcpy(room->out, in, count * size);
    int status = way == 0   ? abc_allreduce(in, room->out, count, type, op, r->comm)
                 : way == 1 ? abc_allreduce(ABC_IN_PLACE, room->out, count, type, op, r->comm)
                            : abc_reduce_scatter(in, room->out, count, type, op, r->comm);
    char again[16], scalar[16];
    bool ok = check_status(r, status, ABC_OK, "scaled sum");
    fill(type, true, count + (uint64_t)way, r->rank, 1, again);
    ok = ok && check(r, memcmp(again, in, size) == 0, "the input has changed");
    for (int k = 0; k < r->nranks && ok; k++)
        for (uint64_t i = 0; i < count * blocks; i++) { /* the reference's inputs are the products */
            const struct abci_reduction product = {.type = type, .op = ABC_PROD, .nranks = 2};
            char *at = room->in[k] + i * size;
            fill(type, true, 9, 0, 1, scalar);
            if (type == ABC_I32)
                memcpy(scalar, &(int){k + 2}, 4);
            else
                memcpy(scalar, type == ABC_F16 ? (void *)&(unsigned){oracle_narrow(ABC_F16, k + 2)} : &(float){(float)k + 2},
                       type == ABC_F16 ? 2 : 4);
            memset(scalar + (type == ABC_COMPLEX64 ? 4 : 8), 0, 4);
            oracle_element(&product, (const void *[]){at, scalar}, 2, 0, again);
            memcpy(at, again, size);
        }
    return ok && expect(r, room, type, ABC_SUM, first, count, "scaling");
}

static bool make_scalar(struct rank *r, abc_type type, abc_op *op)
{
    float f[2] = {(float)r->rank + 2, 0};
    unsigned half = oracle_narrow(ABC_F16, r->rank + 2);
    int whole = r->rank + 2;
    const void *scalar = type == ABC_I32 ? (void *)&whole : type == ABC_F16 ? (void *)&half : (void *)f;
    return check_status(r, abc_op_create_scaled(scalar, type, op), ABC_OK, "create_scaled");
}

static bool scaled_again(struct rank *r, abc_op op)
{
    float x[100], y[100];
    int sum = 0;
    abc_request *q = NULL;
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = x;
    call.out = y;
    call.count = 100;
    call.type = ABC_F32;
    call.op = op;
    bool ok = check_status(r, abc_request_create(r->comm, &call, &q), ABC_OK, "create");
    for (int k = 0; k < r->nranks; k++)
        sum += k + 2;
    for (int turn = 0; turn < 3 && ok; turn++) {
        for (int i = 0; i < 100; i++)
            x[i] = (float)(i + turn);
        ok = check_status(r, abc_restart(q), ABC_OK, "restart") && check_status(r, abc_wait(&q), ABC_OK, "wait");
        for (int i = 0; i < 100 && ok; i++)
            ok = check(r, y[i] == (float)(sum * (i + turn)) && x[i] == (float)(i + turn), "turn %d element %d", turn, i);
    }
    return check_status(r, abc_request_free(q), ABC_OK, "free") && ok;
}

static int scaling(struct rank *r)
{
    static const abc_type types[] = {ABC_F32, ABC_F16, ABC_I32, ABC_COMPLEX64};
    struct room *room = malloc(sizeof *room);
    bool ok = check(r, room != NULL, "no memory");
    for (int t = 0; t < 4 && ok; t++) {
        abc_op op;
        ok = make_scalar(r, types[t], &op) && check(r, abc_op_fits(op, types[t]) && !abc_op_fits(op, ABC_U8), "fits");
        for (int way = 0; way < 3 && ok; way++)
            ok = scaled_sum(r, room, types[t], op, way, 3) && scaled_sum(r, room, types[t], op, way, 3000);
        ok = ok && refused(r, abc_allreduce(room->in, room->out, 1, ABC_U8, op, r->comm), "the scaled sum was made for");
        ok = ok && (types[t] != ABC_F32 || scaled_again(r, op));
        ok = ok && check_status(r, abc_op_free(op), ABC_OK, "free");
    }
    abc_op none;
    ok = ok && refused(r, abc_op_create_scaled("", ABC_BOOL, &none), "bool means nothing");
    ok = ok && refused(r, abc_op_create_scaled("", ABC_I32_I32, &none), "i32_i32 means nothing");
    ok = ok && check_status(r, abc_op_create_scaled(NULL, ABC_F32, &none), ABC_ERR_ARGUMENT, "no scalar");
    free(room);
    return ok ? 0 : 1;
}

/* ---- Deterministic modes ---- */

static int by(struct rank *r, const char *algorithm, abc_type type, abc_op op)
{
    double in[8] = {1}, out[8];
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = in;
    call.out = out;
    call.count = 8;
    call.type = type;
    call.op = op;
    call.algorithm = algorithm;
    return abc_run(r->comm, &call);
}

static int strict(struct rank *r)
{
    struct room *room = malloc(sizeof *room);
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.type = ABC_BF16;
    call.count = MOST;
    bool ok = check(r, room != NULL, "no memory") && one_call(r, room, &call, 5);
    ok = ok && refused(r, by(r, "ring", ABC_F32, ABC_SUM), "ABCOMM_DETERMINISTIC=strict asks for; these do: ");
    ok = ok && check(r, strstr(abc_last_error(), "oneshot") && !strstr(abc_last_error(), "recdbl"), "%s", abc_last_error());
    ok = ok && refused(r, by(r, "recdbl", ABC_COMPLEX64, ABC_PROD), "rank order");
    ok = ok && refused(r, by(r, "chain", ABC_BF16, ABC_SUM), "rank order"); /* in rank order, but rounded at each rank */
    ok = ok && check_status(r, by(r, "chain", ABC_F32, ABC_SUM), ABC_OK, "chain");
    ok = ok && check_status(r, by(r, "ring", ABC_I32, ABC_SUM), ABC_OK, "whole numbers in any order");
    ok = ok && check_status(r, by(r, "ring", ABC_F32, ABC_MAX), ABC_OK, "a maximum in any order");
    free(room);
    return ok ? 0 : 1;
}

static int strict_and_forced(struct rank *r)
{
    return refused(r, by(r, NULL, ABC_F32, ABC_SUM), "algorithm ring does not add in rank order") &&
                   check_status(r, by(r, NULL, ABC_I8, ABC_SUM), ABC_OK, "whole numbers") &&
                   check_status(r, by(r, "oneshot", ABC_F32, ABC_SUM), ABC_OK, "oneshot")
               ? 0
               : 1;
}

static int shipped(struct rank *r)
{
    return check_status(r, by(r, NULL, ABC_F32, ABC_SUM), ABC_OK, "default") &&
                   check_status(r, by(r, "ring", ABC_F32, ABC_SUM), ABC_OK, "ring")
               ? 0
               : 1;
}

int main(int argc, char **argv)
{
    static const char *const strict_mode[] = {"ABCOMM_DETERMINISTIC=strict", NULL};
    static const char *const forced[] = {"ABCOMM_DETERMINISTIC=strict", "ABCOMM_ALGO=allreduce:ring", NULL};
    static const char *const shipped_mode[] = {"ABCOMM_DETERMINISTIC=true", NULL};
    struct options o;
    options_read(argc, argv, &o);
    job_run(&(struct job){.name = "every type and operation", .body = every_pair, .nranks = RANKS});
    job_run(&(struct job){.name = "every type and operation, three threads", .body = every_pair, .nranks = 3, .threads = true});
    job_run(&(struct job){.name = "scaled sums", .body = scaling, .nranks = 3});
    job_run(&(struct job){.name = "strict", .body = strict, .nranks = RANKS, .environment = strict_mode});
    job_run(&(struct job){.name = "strict, a ring forced", .body = strict_and_forced, .nranks = RANKS, .environment = forced});
    job_run(&(struct job){.name = "deterministic", .body = shipped, .nranks = RANKS, .environment = shipped_mode});
    return jobs_end();
}
