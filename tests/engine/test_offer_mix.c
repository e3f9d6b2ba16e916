/*
 * test_offer_mix.c - offered buffers among all that may happen at once: two communicators over parts of one allocation, several
 * requests in flight, persistent ones that outlive the failure of the other communicator, callbacks, user operations, scaled sums,
 * preserved inputs; one communicator is aborted at a random step while another rank sleeps in the middle of its own, and what the
 * ranks then write must stay as it is. Programs are random from a seed; `--full` goes on longer.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "harness.h"

#define FLYING 6
#define KEPT 2 /* persistent requests of communicator 0 */
#define PART (512u << 10)
#define GUARD 4096u

enum kind { SUM, MAX, AVG, USER, SCALED, KINDS };

/* One call. Shared by all ranks but for the last line. */
struct plan_of {
    int comm, preserve;
    abc_type type;
    enum kind kind;
    uint64_t count, seed;
    const char *algorithm;
    bool arena, in_place, has_callback;
};

struct flight {
    struct plan_of p;
    char *in, *out;
    abc_request *request;
    int called; /* by the callback */
};

struct player {
    struct rank *r;
    uint64_t shared;
    abc_comm *comm[2];
    char *arena, *heap;
    abc_op user, scaled[2];
    struct flight flight[FLYING];
};

/* ---- Values: small numbers, exact in every type ---- */

static unsigned value(const struct plan_of *p, int rank, uint64_t i)
{
    return (unsigned)((i * 7 + (uint64_t)rank * 3 + p->seed) % 8);
}

static uint16_t half_bits(double x)
{
    int e = 0;
    if (x == 0)
        return 0;
    for (; x >= 2; e++)
        x /= 2;
    for (; x < 1; e--)
        x *= 2;
    return (uint16_t)((e + 15) << 10 | (int)((x - 1) * 1024));
}

static void put(abc_type type, char *at, uint64_t i, double x)
{
    float f = (float)x;
    int32_t n = (int32_t)x;
    uint32_t bits;
    uint16_t half = half_bits(x);
    memcpy(&bits, &f, 4);
    if (type == ABC_BF16)
        half = (uint16_t)(bits >> 16);
    if (type == ABC_BF16 || type == ABC_F16)
        memcpy(at + i * 2, &half, 2);
    else
        memcpy(at + i * 4, type == ABC_I32 ? (void *)&n : (void *)&f, 4);
}

static double wanted(const struct plan_of *p, int n, uint64_t i)
{
    double sum = 0, most = 0;
    for (int r = 0; r < n; r++) {
        double x = value(p, r, i);
        sum += x;
        most = x > most ? x : most;
    }
    return p->kind == MAX      ? most
           : p->kind == AVG    ? (p->type == ABC_I32 ? (int)sum / n : sum / n)
           : p->kind == SCALED ? 2 * sum
                               : sum;
}

static uint64_t differs(const struct plan_of *p, int n, const char *out, int of_rank)
{
    char want[4];
    uint64_t size = abc_type_size(p->type);
    for (uint64_t i = 0; i < p->count; i++) {
        put(p->type, want, 0, of_rank < 0 ? wanted(p, n, i) : value(p, of_rank, i));
        if (memcmp(out + i * size, want, size) != 0)
            return i;
    }
    return p->count;
}

static void add(const void *in, void *inout, uint64_t count, abc_type type, void *context)
{
    (void)context;
    for (uint64_t i = 0; i < count; i++) {
        if (type == ABC_I32)
            ((int32_t *)inout)[i] += ((const int32_t *)in)[i];
        else
            ((float *)inout)[i] += ((const float *)in)[i];
    }
}

/* ---- One call ---- */

static uint64_t below(uint64_t *dice, uint64_t end)
{
    return random_next(dice) % end;
}

static void draw(struct player *p, int i)
{
    static const abc_type types[] = {ABC_F32, ABC_I32, ABC_BF16, ABC_F16};
    static const char *const names[] = {"push", "push", "push", NULL, "twoshot", "oneshot", "push@4K"};
    uint64_t *dice = &p->shared, *own = &p->r->random;
    struct plan_of *c = &p->flight[i].p;
    int n = p->r->nranks;
    *c = (struct plan_of){.comm = i < KEPT ? 0 : (int)below(dice, 2), .type = types[below(dice, 4)], .seed = below(dice, 1000)};
    c->kind = (enum kind)below(dice, KINDS);
    if ((c->kind == AVG && (n & (n - 1))) || (c->kind == SCALED && c->type != ABC_F32 && c->type != ABC_I32))
        c->kind = SUM;
    if (c->kind == USER && c->type != ABC_F32)
        c->type = ABC_I32;
    uint64_t size = abc_type_size(c->type), pages = 4 + below(dice, PART / 4096 - 4);
    c->count = below(dice, 8) == 0 ? below(dice, PART / size) : pages * 4096 / size;
    c->algorithm = names[below(dice, 7)];
    c->arena = below(own, 12) > 0;
    c->in_place = below(own, 2);
    c->preserve = c->in_place && below(own, 4) == 0;
    c->has_callback = below(own, 3) == 0;
}

static void note(abc_request *request, int status, void *context)
{
    (void)request;
    (void)status;
    ++*(int *)context;
}

static void lay_out(struct player *p, int i)
{
    struct flight *f = &p->flight[i];
    char *base = (f->p.arena ? p->arena : p->heap) + (size_t)i * 2 * (PART + GUARD);
    f->out = base;
    f->in = f->p.in_place ? base : base + PART + GUARD;
}

static void fill(struct player *p, int i)
{
    struct flight *f = &p->flight[i];
    memset(f->out, 0x33, PART + GUARD);
    if (f->in != f->out)
        memset(f->in, 0x33, PART + GUARD);
    for (uint64_t k = 0; k < f->p.count; k++)
        put(f->p.type, f->in, k, value(&f->p, p->r->rank, k));
}

static bool make(struct player *p, int i, bool persistent)
{
    struct flight *f = &p->flight[i];
    abc_call c;
    abc_call_init(&c, ABC_ALLREDUCE);
    c.in = f->in;
    c.out = f->out;
    c.count = f->p.count;
    c.type = f->p.type;
    c.op = f->p.kind == MAX      ? ABC_MAX
           : f->p.kind == AVG    ? ABC_AVG
           : f->p.kind == USER   ? p->user
           : f->p.kind == SCALED ? p->scaled[f->p.type == ABC_I32]
                                 : ABC_SUM;
    c.algorithm = f->p.algorithm;
    c.preserve = f->p.preserve;
    c.callback = f->p.has_callback ? note : NULL;
    c.callback_context = &f->called;
    return check_status(
        p->r, persistent ? abc_request_create(p->comm[f->p.comm], &c, &f->request) : abc_start(p->comm[f->p.comm], &c, &f->request),
        ABC_OK, "make a request");
}

static bool right(struct player *p, int i)
{
    const struct flight *f = &p->flight[i];
    int rank = p->r->rank, n = p->r->nranks;
    uint64_t at = differs(&f->p, n, f->out, -1), bytes = f->p.count * abc_type_size(f->p.type);
    bool ok = check(p->r, at == f->p.count, "request %d: element %llu is wrong", i, (unsigned long long)at);
    if (ok && f->in != f->out)
        ok = check(p->r, differs(&f->p, n, f->in, rank) == f->p.count, "request %d: the input has changed", i);
    for (uint64_t k = bytes; ok && k < PART + GUARD; k++)
        ok = check(p->r, f->out[k] == 0x33, "request %d: byte %llu behind the end was written", i, (unsigned long long)k);
    return ok;
}

/* ---- The failure ---- */

static struct {
    abc_comm *comm;
    int rank, sleeper, steps;
    _Atomic int seen, slept;
} accident;

static void strike(int rank, uint32_t sequence, int step)
{
    (void)sequence;
    int n = atomic_fetch_add(&accident.seen, 1);
    if (accident.comm && rank == accident.sleeper && step == 1 && n >= accident.steps / 2 &&
        atomic_exchange(&accident.slept, 1) == 0)
        nap(0.02);
    if (accident.comm && rank == accident.rank && n == accident.steps)
        abc_comm_abort(accident.comm, "struck");
}

static void *abort_soon(void *comm)
{
    nap(0.001);
    abc_comm_abort(comm, "by a thread");
    return NULL;
}

/* ---- A round ---- */

static bool open_memory(struct player *p)
{
    size_t bytes = (size_t)FLYING * 2 * (PART + GUARD);
    void *m = NULL;
    bool ok = check_status(p->r, abc_mem_alloc(bytes, &m), ABC_OK, "alloc");
    p->arena = m;
    for (int i = 0; ok && i < KEPT; i++) {
        draw(p, i);
        lay_out(p, i);
        ok = make(p, i, true);
    }
    return ok;
}

static bool close_memory(struct player *p)
{
    bool ok = true;
    for (int i = 0; i < KEPT; i++)
        ok = check_status(p->r, abc_request_free(p->flight[i].request), ABC_OK, "free a request") && ok;
    return check_status(p->r, abc_mem_free(p->arena), ABC_OK, "free") && ok;
}

static bool end_one(struct player *p, int i, bool *failed)
{
    struct flight *f = &p->flight[i];
    int status = abc_wait(&f->request);
    if (f->p.has_callback && !check(p->r, f->called == 1, "request %d: %d callbacks", i, f->called))
        return false;
    if (status == ABC_OK)
        return right(p, i);
    if (!check(p->r, f->p.comm == 1 && status == ABC_ERR_ABORTED, "request %d: %s, %s", i, abc_status_name(status),
               abc_last_error()))
        return false;
    *failed = true;
    if (f->p.preserve && f->p.kind != SCALED &&
        !check(p->r, differs(&f->p, p->r->nranks, f->in, p->r->rank) == f->p.count, "request %d: not preserved", i))
        return false;
    memset(f->out, 0x77, PART);
    return true;
}

/* Nobody may write what a failed request has given back. */
static bool stays(struct player *p)
{
    bool ok = meet(p->r);
    nap(0.03);
    for (int i = KEPT; ok && i < FLYING; i++)
        for (size_t k = 0; ok && p->flight[i].p.comm == 1 && p->flight[i].out[0] == 0x77 && k < PART; k++)
            ok = check(p->r, p->flight[i].out[k] == 0x77, "request %d: byte %zu was written after the failure", i, k);
    return ok;
}

static bool again(struct player *p)
{
    bool ok = stays(p) && meet(p->r);
    abc_comm_destroy(p->comm[1]);
    if (ok && below(&p->shared, 2)) /* else go on with memory that peers cannot reach any more */
        ok = close_memory(p) && open_memory(p);
    return ok && check_status(p->r, rank_create(p->r, 0, 0, &p->comm[1]), ABC_OK, "create");
}

static bool one_round(struct player *p, int round)
{
    int way = (int)below(&p->shared, 4), n = p->r->nranks;
    pthread_t thread;
    bool ok = meet(p->r), failed = false; /* an abort of this round must not meet somebody's last one */
    accident.rank = (int)below(&p->shared, (uint64_t)n);
    accident.sleeper = (int)below(&p->shared, (uint64_t)n);
    accident.steps = (int)below(&p->shared, 30);
    atomic_store(&accident.seen, 0);
    atomic_store(&accident.slept, 0);
    accident.comm = way == 1 ? p->comm[1] : NULL;
    doing(p->r, "round %d, way %d", round, way);
    for (int i = 0; ok && i < FLYING; i++) {
        p->flight[i].called = 0;
        if (i >= KEPT) {
            draw(p, i);
            lay_out(p, i);
        }
        fill(p, i);
        ok = i < KEPT ? check_status(p->r, abc_restart(p->flight[i].request), ABC_OK, "restart") : make(p, i, false);
    }
    bool by_thread = way == 2 && p->r->rank == accident.rank;
    if (by_thread)
        pthread_create(&thread, NULL, abort_soon, p->comm[1]);
    for (int i = 0; ok && i < FLYING; i++)
        ok = end_one(p, i, &failed);
    if (by_thread)
        pthread_join(thread, NULL);
    accident.comm = NULL;
    return ok && (way == 1 || way == 2 ? abc_comm_abort(p->comm[1], "or at the end") == ABC_OK && again(p) : !failed);
}

static int mix(struct rank *r)
{
    struct player p = {.r = r, .shared = *(const uint64_t *)r->argument * 8 + (uint64_t)r->nranks, .comm = {r->comm, NULL}};
    int rounds = (int)((const uint64_t *)r->argument)[1];
    const float two = 2;
    const int32_t both = 2;
    p.heap = malloc((size_t)FLYING * 2 * (PART + GUARD));
    abci_hook = strike;
    bool ok = p.heap && check_status(r, abc_op_create(add, 1, NULL, &p.user), ABC_OK, "an operation") &&
              check_status(r, abc_op_create_scaled(&two, ABC_F32, &p.scaled[0]), ABC_OK, "a scaled sum") &&
              check_status(r, abc_op_create_scaled(&both, ABC_I32, &p.scaled[1]), ABC_OK, "a scaled sum") &&
              check_status(r, rank_create(r, 0, 0, &p.comm[1]), ABC_OK, "create") && open_memory(&p);
    for (int round = 0; ok && round < rounds; round++)
        ok = one_round(&p, round);
    ok = ok && meet(r) && close_memory(&p);
    abci_hook = NULL;
    abc_comm_destroy(p.comm[1]);
    free(p.heap);
    return !ok;
}

int main(int argc, char **argv)
{
    static const char *const settings[][4] = {{NULL},
                                              {"ABCOMM_CHUNK=4K", "ABCOMM_PIPELINE=1", NULL},
                                              {"ABCOMM_CHUNK=64K", "ABCOMM_PIPELINE=4", "ABCOMM_ALGO=allreduce:chain", NULL},
                                              {"ABCOMM_CHUNK=100K", "ABCOMM_PIPELINE=3", "ABCOMM_STORES=stream", NULL}};
    struct options o;
    options_read(argc, argv, &o);
    uint64_t arguments[2] = {o.seed, o.full ? 300 : 10};
    for (int n = 2; n <= 5; n++)
        for (int k = 0; k < 4; k++)
            job_run(&(struct job){.name = "mix",
                                  .body = mix,
                                  .argument = arguments,
                                  .nranks = n,
                                  .progress = k == 3,
                                  .limit = o.full ? 600 : 60,
                                  .environment = settings[k]});
    return jobs_end();
}
