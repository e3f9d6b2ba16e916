/*
 * test_group.c - groups of calls: sends and receives that would wait for each other, allreduces that become one operation without a
 * changed bit, several communicators in any order, one thread that acts for several ranks; and what goes wrong in a group. With the
 * testing library, to see how many operations a group takes.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "harness.h"

#define LONG 60000 /* floats of a message that no slot holds */
#define MANY 90

static bool ok_status(struct rank *r, int status, const char *what)
{
    return check_status(r, status, ABC_OK, what);
}

static uint32_t operations(const abc_comm *comm)
{
    return comm->engine.next_sequence;
}

/* ---- Messages ---- */

/* Everybody sends a long message to everybody, itself too, before it receives. */
static int all_to_all(struct rank *r)
{
    int n = r->nranks;
    float *in = malloc(sizeof(float) * LONG), *out = malloc(sizeof(float) * LONG * (size_t)n);
    abc_received got[MAX_TEST_RANKS];
    bool ok = check(r, in && out, "no memory");
    for (int round = 0; round < 5 && ok; round++) {
        for (int i = 0; i < LONG && ok; i++)
            in[i] = (float)(r->rank * 1000 + i % 997 + round);
        ok = ok_status(r, abc_group_start(), "group_start");
        for (int peer = 0; peer < n && ok; peer++)
            ok = ok_status(r, abc_send(in, LONG, ABC_F32, peer, round, r->comm), "send");
        for (int peer = 0; peer < n && ok; peer++)
            ok = ok_status(r, abc_recv(out + (size_t)peer * LONG, LONG, ABC_F32, peer, round, r->comm, &got[peer]), "recv");
        ok = ok && ok_status(r, abc_group_end(), "group_end");
        for (int peer = 0; peer < n && ok; peer++)
            for (int i = 0; i < LONG && ok; i += 59)
                ok = check(r,
                           out[(size_t)peer * LONG + (size_t)i] == (float)(peer * 1000 + i % 997 + round) &&
                               got[peer].source == peer && got[peer].count == LONG,
                           "element %d from %d is %g", i, peer, (double)out[(size_t)peer * LONG + (size_t)i]);
    }
    free(in);
    free(out);
    return !ok;
}

/* A ring of sendrecv, a request that is waited for after the group, and a message that is refused. */
static int message_kinds(struct rank *r)
{
    int right = (r->rank + 1) % r->nranks, left = (r->rank + r->nranks - 1) % r->nranks;
    int32_t out = -1, late = -1, in = r->rank, two[2] = {1, 2}, one = 0;
    abc_request *q = NULL;
    abc_received got;
    bool ok = ok_status(r, abc_group_start(), "group_start") &&
              ok_status(r, abc_sendrecv(&in, 1, right, 1, &out, 1, left, 1, ABC_I32, r->comm, &got), "sendrecv") &&
              ok_status(r, abc_recv_start(&late, 1, ABC_I32, left, 2, r->comm, NULL, &q), "recv_start") &&
              check_status(r, abc_wait(&q), ABC_ERR_STATE, "wait inside the group") &&
              check_status(r, abc_test(q), ABC_ERR_STATE, "test inside the group") &&
              check_status(r, abc_request_free(q), ABC_ERR_STATE, "free inside the group") &&
              ok_status(r, abc_send(&in, 1, ABC_I32, right, 2, r->comm), "send") && ok_status(r, abc_group_end(), "group_end");
    ok = ok && check(r, out == left && got.tag == 1 && got.source == left, "sendrecv brought %d", out);
    ok = ok && ok_status(r, abc_wait(&q), "wait") && check(r, late == left, "the started receive brought %d", late);
    ok =
        ok && ok_status(r, abc_group_start(), "group_start") &&
        check_status(r, abc_sendrecv(two, 2, right, 1, two + 1, 1, left, 1, ABC_I32, r->comm, NULL), ABC_ERR_ARGUMENT, "overlap") &&
        check_status(r, abc_group_end(), ABC_ERR_ARGUMENT, "group_end after a bad sendrecv");
    ok = ok && ok_status(r, abc_group_start(), "group_start") &&
         ok_status(r, abc_send(two, 2, ABC_I32, right, 3, r->comm), "send") &&
         ok_status(r, abc_recv(&one, 1, ABC_I32, left, 3, r->comm, NULL), "recv") &&
         check_status(r, abc_group_end(), ABC_ERR_MISMATCH, "a message that is too long") &&
         check(r, strstr(abc_last_error(), "room") != NULL, "%s", abc_last_error());
    return !(ok && ok_status(r, abc_barrier(r->comm), "barrier afterwards"));
}

/* ---- Collectives ---- */

/* What all ranks agree on, and for each rank how it makes the call. */
struct one {
    uint64_t count;
    abc_type type;
    abc_op op;
    int how, place; /* blocking, started, persistent; out of place, in place */
};

static struct one draw(uint64_t *dice, uint64_t *own)
{
    static const abc_type types[] = {ABC_F32, ABC_F32, ABC_F32, ABC_BF16, ABC_F64, ABC_I32};
    static const uint64_t counts[] = {0, 1, 2, 7, 64, 200, 511, 513, 3000};
    struct one c = {.type = types[random_next(dice) % 4 ? 0 : random_next(dice) % 6],
                    .op = random_next(dice) % 5   ? ABC_SUM
                          : random_next(dice) % 2 ? ABC_AVG
                                                  : ABC_MAX,
                    .count = counts[random_next(dice) % 9]};
    c.how = (int)(random_next(own) % 3);
    c.place = (int)(random_next(own) % 2);
    return c;
}

static void fill(char *to, const struct one *c, uint64_t *dice)
{
    uint64_t bytes = c->count * abc_type_size(c->type);
    for (uint64_t i = 0; i < bytes; i += 2) { /* small exponents: no NaN in any type */
        uint16_t word = (uint16_t)(random_next(dice) & 0xbfff) | 0x1000;
        memcpy(to + i, &word, 2);
    }
}

#define ROOM (3000 * 8)
struct buffers {
    char in[MANY][ROOM], out[MANY][ROOM], want[MANY][ROOM];
};

static bool call_one(struct rank *r, struct buffers *b, int i, const struct one *c, abc_request **q)
{
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = c->place ? ABC_IN_PLACE : b->in[i];
    call.out = b->out[i];
    call.count = c->count;
    call.type = c->type;
    call.op = c->op;
    call.preserve = c->place;
    if (c->place)
        memcpy(b->out[i], b->in[i], c->count * abc_type_size(c->type));
    *q = NULL;
    if (c->how == 0)
        return ok_status(r, abc_run(r->comm, &call), "run");
    if (c->how == 1)
        return ok_status(r, abc_start(r->comm, &call, q), "start");
    return ok_status(r, abc_request_create(r->comm, &call, q), "create") && ok_status(r, abc_restart(*q), "restart");
}

/* The same calls alone and in a group, blocking or not as each rank likes, with a message among them: the same bits. */
static int same_bits(struct rank *r)
{
    struct buffers *b = malloc(sizeof *b);
    uint64_t shared = *(uint64_t *)r->argument, *own = &r->random;
    struct one c[MANY];
    abc_request *q[MANY];
    bool ok = check(r, b != NULL, "no memory");
    for (int round = 0; round < 12 && ok; round++) {
        int n = 1 + (int)(random_next(&shared) % MANY), message = (int)(random_next(own) % MANY);
        int32_t sent = round, got = -1;
        for (int i = 0; i < n && ok; i++) {
            c[i] = draw(&shared, own);
            fill(b->in[i], &c[i], own);
            ok = ok_status(r, abc_allreduce(b->in[i], b->want[i], c[i].count, c[i].type, c[i].op, r->comm), "alone");
        }
        doing(r, "round %d, a group of %d", round, n);
        ok = ok && ok_status(r, abc_group_start(), "group_start");
        for (int i = 0; i < n && ok; i++) {
            if (i == message)
                ok = ok_status(r, abc_sendrecv(&sent, 1, r->rank, 5, &got, 1, r->rank, 5, ABC_I32, r->comm, NULL), "sendrecv");
            ok = ok && call_one(r, b, i, &c[i], &q[i]);
        }
        ok = ok && ok_status(r, abc_group_end(), "group_end");
        for (int i = n; i-- > 0 && ok;) {
            if (q[i])
                ok = ok_status(r, c[i].how == 2 ? (abc_wait(&q[i]), abc_request_free(q[i])) : abc_wait(&q[i]), "wait");
            ok = ok && check(r, memcmp(b->out[i], b->want[i], c[i].count * abc_type_size(c[i].type)) == 0,
                             "call %d of %d in round %d, %llu %s, has other bits than alone", i, n, round,
                             (unsigned long long)c[i].count, abc_type_name(c[i].type));
        }
        ok = ok && check(r, got == (message < n ? round : -1), "the message is %d", got);
    }
    free(b);
    return !ok;
}

static bool takes(struct rank *r, uint32_t wanted, uint64_t count, const char *what)
{
    static _Thread_local float in[MANY][4096], out[MANY][4096];
    uint32_t before = operations(r->comm);
    bool ok = ok_status(r, abc_group_start(), "group_start");
    for (int i = 0; i < 50 && ok; i++) {
        in[i][0] = (float)(i + r->rank);
        ok = ok_status(r, abc_allreduce(in[i], out[i], count, ABC_F32, ABC_SUM, r->comm), what);
    }
    ok = ok && ok_status(r, abc_group_end(), "group_end");
    for (int i = 0; i < 50 && ok; i++)
        ok = check(r, out[i][0] == (float)(r->nranks * i + r->nranks * (r->nranks - 1) / 2), "%s: sum %d is %g", what, i,
                   (double)out[i][0]);
    uint32_t made = operations(r->comm) - before;
    return ok && check(r, made == wanted, "%s: 50 calls of %llu floats took %u operations, not %u", what, (unsigned long long)count,
                       made, wanted);
}

static int joins(struct rank *r)
{
    return !(takes(r, 1, 2, "short") && takes(r, 4, 512, "to the limit") && takes(r, 50, 513, "longer"));
}

/* A named algorithm that adds in another order: joined sums would have other bits. */
static int joins_not(struct rank *r)
{
    return !takes(r, 50, 2, "by a ring");
}

/* ---- Several communicators ---- */

static int crossed(struct rank *r)
{
    abc_comm *a = NULL, *b = NULL;
    float x[3] = {1, 2, 3}, y[3] = {0}, z[3] = {0}, long_in[9000] = {1}, long_out[9000];
    bool odd = r->rank & 1,
         ok = ok_status(r, abc_comm_split(r->comm, 0, 0, &a), "split") && ok_status(r, abc_comm_split(r->comm, 0, 0, &b), "split");
    for (int round = 0; round < 50 && ok; round++) {
        doing(r, "round %d", round);
        ok = ok_status(r, abc_group_start(), "group_start") && ok_status(r, abc_group_start(), "inner group_start") &&
             ok_status(r, abc_allreduce(x, odd ? y : z, 3, ABC_F32, ABC_SUM, odd ? a : b), "first") &&
             ok_status(r, abc_group_end(), "inner group_end") && check(r, y[0] == 0 && z[0] == 0, "the inner end has started it") &&
             ok_status(r, abc_allreduce(long_in, long_out, 9000, ABC_F32, ABC_SUM, odd ? a : b), "long") &&
             ok_status(r, abc_allreduce(x, odd ? z : y, 3, ABC_F32, ABC_SUM, odd ? b : a), "second") &&
             ok_status(r, abc_allreduce(long_in, long_out, 9000, ABC_F32, ABC_SUM, odd ? b : a), "long") &&
             ok_status(r, abc_group_end(), "group_end") &&
             check(r, y[2] == (float)(3 * r->nranks) && z[2] == y[2], "sums %g and %g", (double)y[2], (double)z[2]);
        y[0] = z[0] = 0;
    }
    return !(ok && ok_status(r, abc_comm_destroy(a), "destroy") && ok_status(r, abc_comm_destroy(b), "destroy"));
}

/* A rank whose peers come late with a group of several communicators sleeps: about 20 ms of CPU in this second. */
static int waits_asleep(struct rank *r)
{
    abc_comm *a = NULL;
    struct timespec before, after;
    float x = 1, y = 0, z = 0;
    bool ok = ok_status(r, abc_comm_split(r->comm, 0, 0, &a), "split") && meet(r);
    if (r->rank == 1)
        nap(1);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    ok = ok && ok_status(r, abc_group_start(), "group_start") &&
         ok_status(r, abc_allreduce(&x, &y, 1, ABC_F32, ABC_SUM, a), "first") &&
         ok_status(r, abc_allreduce(&x, &z, 1, ABC_F32, ABC_SUM, r->comm), "second") &&
         ok_status(r, abc_group_end(), "group_end") && check(r, y == 2 && z == 2, "sums %g and %g", (double)y, (double)z);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    double used = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    ok = ok && check(r, used < 0.3, "waiting for a second took %.3f s of CPU", used);
    return !(ok && ok_status(r, abc_comm_destroy(a), "destroy"));
}

struct creation {
    struct rank *r;
    int rank;
    abc_comm *comm;
    abc_exchange exchange;
    struct exchange_context context;
};

static void *create(void *argument)
{
    struct creation *c = argument;
    abc_comm_config config;
    abc_comm_config_init(&config);
    config.rank = c->rank;
    config.nranks = 3;
    config.exchange = &c->exchange;
    config.timeout = 20;
    if (abc_comm_create(&config, &c->comm) != ABC_OK)
        c->comm = NULL;
    return NULL;
}

/* One thread holds all ranks of a communicator: without a group its first call would never end. */
static int one_thread(struct rank *r)
{
    struct creation c[3];
    pthread_t thread[3];
    float x[3][1000], y[3][1000];
    bool ok = true;
    for (int i = 0; i < 3; i++) {
        c[i] = (struct creation){.r = r, .rank = i};
        exchange_over_board(&c[i].context, r->board, "one thread", &c[i].exchange);
        pthread_create(&thread[i], NULL, create, &c[i]);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 3 && ok; i++)
        ok = check(r, c[i].comm != NULL, "no communicator");
    for (int round = 0; round < 100 && ok; round++) {
        for (int i = 0; i < 3; i++)
            x[i][0] = x[i][999] = (float)(i + round);
        ok = ok_status(r, abc_group_start(), "group_start");
        for (int k = 0; k < 4 && ok; k++)
            for (int i = 0; i < 3 && ok; i++)
                ok = ok_status(r, abc_allreduce(x[i] + k * 250, y[i] + k * 250, 250, ABC_F32, ABC_SUM, c[i].comm), "allreduce");
        for (int i = 0; i < 3 && ok; i++)
            ok = ok_status(r, abc_barrier(c[i].comm), "barrier");
        ok = ok && ok_status(r, abc_group_end(), "group_end");
        for (int i = 0; i < 3 && ok; i++)
            ok = check(r, y[i][0] == (float)(3 * round + 3) && y[i][999] == y[i][0], "sum %g", (double)y[i][0]);
    }
    for (int i = 0; i < 3; i++)
        ok = ok_status(r, abc_comm_destroy(c[i].comm), "destroy") && ok;
    return !ok;
}

/* ---- What goes wrong ---- */

static bool says(struct rank *r, const char *words)
{
    return check(r, strstr(abc_last_error(), words) != NULL, "\"%s\" does not say \"%s\"", abc_last_error(), words);
}

/* A refused call: nothing of the group is started, what was given out ends, the communicator goes on. */
static int refused(struct rank *r)
{
    float x = 1, y = 5;
    abc_request *started = NULL, *persistent = NULL;
    abc_comm *part = NULL;
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = &x;
    call.out = &y;
    call.count = 1;
    uint32_t before = operations(r->comm);
    bool ok = check_status(r, abc_group_end(), ABC_ERR_STATE, "an end without a group") && says(r, "abc_group_start") &&
              check_status(r, abc_group_drop(), ABC_ERR_STATE, "a drop without a group") &&
              ok_status(r, abc_request_create(r->comm, &call, &persistent), "create") &&
              ok_status(r, abc_group_start(), "group_start") &&
              ok_status(r, abc_allreduce(&x, &y, 1, ABC_F32, ABC_SUM, r->comm), "allreduce") &&
              ok_status(r, abc_start(r->comm, &call, &started), "start") && ok_status(r, abc_restart(persistent), "restart") &&
              check_status(r, abc_restart(persistent), ABC_ERR_STATE, "a second restart") &&
              check_status(r, abc_allreduce(NULL, &y, 1, ABC_F32, ABC_SUM, r->comm), ABC_ERR_ARGUMENT, "no input") &&
              check_status(r, abc_comm_split(r->comm, 0, 0, &part), ABC_ERR_STATE, "split") &&
              check_status(r, abc_comm_destroy(r->comm), ABC_ERR_STATE, "destroy") && says(r, "group") &&
              check_status(r, abc_group_end(), ABC_ERR_STATE, "group_end") && says(r, "call 4 of the group");
    ok = ok && check(r, y == 5 && operations(r->comm) == before, "something was started") &&
         check_status(r, abc_wait(&started), ABC_ERR_STATE, "the started one") && says(r, "never started") &&
         check_status(r, abc_wait(&persistent), ABC_ERR_STATE, "the persistent one");
    ok = ok && ok_status(r, abc_restart(persistent), "restart afterwards") && ok_status(r, abc_wait(&persistent), "wait") &&
         check(r, y == (float)r->nranks, "sum %g", (double)y) && ok_status(r, abc_request_free(persistent), "free");
    return !ok;
}

static void counts_ends(abc_request *request, int status, void *context)
{
    (void)request;
    *(int *)context += status == ABC_ERR_STATE ? 1 : 100;
}

static int dropped(struct rank *r)
{
    int ends = 0;
    abc_call call;
    abc_call_init(&call, ABC_BARRIER);
    call.callback = counts_ends;
    call.callback_context = &ends;
    float x = 1, y = 5;
    abc_request *q = NULL;
    bool ok = ok_status(r, abc_group_start(), "group_start") && ok_status(r, abc_group_start(), "inner") &&
              ok_status(r, abc_allreduce(&x, &y, 1, ABC_F32, ABC_SUM, r->comm), "allreduce") &&
              ok_status(r, abc_allreduce_start(&x, &y, 1, ABC_F32, ABC_SUM, r->comm, &q), "start") &&
              ok_status(r, abc_run(r->comm, &call), "run") && ok_status(r, abc_group_drop(), "inner drop") &&
              check_status(r, abc_group_end(), ABC_ERR_STATE, "the end around a dropped one") && says(r, "dropped") &&
              check_status(r, abc_wait(&q), ABC_ERR_STATE, "wait") && check(r, !q && y == 5, "something was started") &&
              check(r, ends == 1, "the callback was told %d", ends);
    ok = ok && ok_status(r, abc_group_start(), "group_start") && ok_status(r, abc_group_end(), "an empty group") &&
         ok_status(r, abc_group_start(), "group_start") && ok_status(r, abc_group_drop(), "drop of an empty group");
    return !(ok && ok_status(r, abc_allreduce(&x, &y, 1, ABC_F32, ABC_SUM, r->comm), "afterwards") &&
             check(r, y == (float)r->nranks, "sum %g", (double)y));
}

/* A thread that ends inside a group takes what it has kept with it. */
static void *forgetful(void *argument)
{
    struct rank *r = argument;
    static float x, y[MAX_TEST_RANKS];
    abc_group_start();
    abc_allreduce(&x, &y[r->rank], 1, ABC_F32, ABC_SUM, r->comm);
    return NULL;
}

static int thread_ends(struct rank *r)
{
    pthread_t thread;
    pthread_create(&thread, NULL, forgetful, r);
    pthread_join(thread, NULL);
    return !(check(r, atomic_load(&r->comm->live) == 0, "%u requests are left", atomic_load(&r->comm->live)) &&
             ok_status(r, abc_barrier(r->comm), "barrier"));
}

/* Callbacks of what a thread drives inside a group start theirs at once, not with the group. */
static void starts_more(abc_request *request, int status, void *context)
{
    struct rank *r = context;
    static float x = 1, y[MAX_TEST_RANKS];
    (void)request;
    if (status == ABC_OK)
        abc_allreduce_start(&x, &y[r->rank], 1, ABC_F32, ABC_SUM, r->comm, (abc_request **)r->argument);
}

static int callbacks(struct rank *r)
{
    abc_request *second = NULL, *first = NULL;
    float x = 1, y = 0;
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = &x;
    call.out = &y;
    call.count = 1;
    call.callback = starts_more;
    call.callback_context = r;
    r->argument = &second;
    bool ok = ok_status(r, abc_start(r->comm, &call, &first), "start") && ok_status(r, abc_group_start(), "group_start") &&
              ok_status(r, abc_wait(&first), "wait inside a group for what was started before") &&
              ok_status(r, abc_wait(&second), "wait for what the callback has started") &&
              ok_status(r, abc_run(r->comm, &call), "run") && ok_status(r, abc_group_end(), "group_end") &&
              ok_status(r, abc_wait(&second), "wait");
    return !ok;
}

/* One rank groups, the other does not: told, on both, in time. */
static int alone(struct rank *r)
{
    float x[2] = {1, 2}, y[2];
    abc_comm *comm = NULL;
    bool grouped = r->rank == 0;
    int status = rank_create(r, 0, 0, &comm);
    if (status == ABC_OK && grouped)
        status = abc_group_start();
    for (int i = 0; i < 2 && status == ABC_OK; i++)
        status = abc_allreduce(&x[i], &y[i], 1, ABC_F32, ABC_SUM, comm);
    if (grouped)
        status = abc_group_end();
    return !(check_status(r, status, ABC_ERR_MISMATCH, "a group on one rank only") &&
             check_status(r, abc_comm_destroy(comm), ABC_ERR_MISMATCH, "destroy"));
}

static int death(struct rank *r)
{
    float in[20][600] = {{1}}, out[20][600], kept[600];
    abc_request *q = NULL;
    static abc_comm *comm; /* not lost when its rank leaves without a word */
    abc_call call;
    bool ok = ok_status(r, rank_create(r, 0, 0, &comm), "create");
    if (r->rank == r->nranks - 1)
        return !ok;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = ABC_IN_PLACE;
    call.out = kept;
    call.count = 100;
    call.preserve = 1;
    for (int i = 0; i < 600; i++)
        kept[i] = (float)i;
    ok = ok && ok_status(r, abc_group_start(), "group_start") && ok_status(r, abc_start(comm, &call, &q), "start");
    for (int i = 0; i < 20 && ok; i++)
        ok = ok_status(r, abc_allreduce(in[i], out[i], i % 2 ? 100 : 600, ABC_F32, ABC_SUM, comm), "allreduce");
    ok = ok && check_status(r, abc_group_end(), ABC_ERR_PEER, "group_end") && check_status(r, abc_wait(&q), ABC_ERR_PEER, "wait");
    for (int i = 0; i < 600 && ok; i++)
        ok = check(r, kept[i] == (float)i, "element %d was not preserved", i);
    return !(ok && check_status(r, abc_comm_destroy(comm), ABC_ERR_PEER, "destroy"));
}

/* Memory ends at each allocation in turn; some can be done without. */
static int no_memory(struct rank *r)
{
    float x = 1, y[4] = {0};
    for (uint64_t n = 1, more = 1; more; n++) {
        int status = ABC_OK;
        abc_request *q = NULL;
        abci_fault_arm(n);
        int began = abc_group_start();
        for (int i = 0; i < 3 && began == ABC_OK && status == ABC_OK; i++)
            status = abc_allreduce(&x, &y[i], 1, ABC_F32, ABC_SUM, r->comm);
        if (began == ABC_OK && status == ABC_OK)
            status = abc_allreduce_start(&x, &y[3], 1, ABC_F32, ABC_SUM, r->comm, &q);
        int ended = began == ABC_OK ? abc_group_end() : began;
        more = abci_fault_passes() >= n;
        abci_fault_arm(0);
        if (!check(r, ended == ABC_OK || (more && ended == ABC_ERR_MEMORY), "fault %llu: %s", (unsigned long long)n,
                   abc_last_error()) ||
            (q && !check_status(r, abc_wait(&q), ended, "wait")) ||
            !check(r, atomic_load(&r->comm->live) == 0, "fault %llu: requests are left", (unsigned long long)n) || n > 100)
            return 1;
    }
    return !check(r, y[3] == (float)r->nranks, "sum %g", (double)y[3]);
}

int main(int argc, char **argv)
{
    static const char *const ring[] = {"ABCOMM_ALGO=allreduce:ring", NULL};
    struct options o;
    options_read(argc, argv, &o);
    for (int n = 1; n <= 4; n++)
        for (int threads = 0; threads <= 1; threads++) {
            job_run(&(struct job){"messages to all", all_to_all, NULL, n, threads});
            job_run(&(struct job){"kinds of messages", message_kinds, NULL, n, threads});
            job_run(&(struct job){"the same bits", same_bits, &o.seed, n, threads, .progress = n == 3});
            job_run(&(struct job){"crossed communicators", crossed, NULL, n, threads});
        }
    job_run(&(struct job){"short ones are joined", joins, NULL, 3});
    job_run(&(struct job){"not where bits would change", joins_not, NULL, 3, .environment = ring});
    for (int threads = 0; threads < 2; threads++)
        job_run(&(struct job){"waits asleep", waits_asleep, NULL, 2, threads});
    job_run(&(struct job){"one thread for three ranks", one_thread, NULL, 1});
    job_run(&(struct job){"refused calls", refused, NULL, 2});
    job_run(&(struct job){"dropped groups", dropped, NULL, 2, true});
    job_run(&(struct job){"a thread ends in a group", thread_ends, NULL, 2});
    job_run(&(struct job){"callbacks", callbacks, NULL, 2});
    job_run(&(struct job){"callbacks, progress thread", callbacks, NULL, 2, .progress = 1});
    job_run(&(struct job){"a group on one rank", alone, NULL, 2, .no_comm = true});
    job_run(&(struct job){"a peer has died", death, NULL, 3, .no_comm = true});
    job_run(&(struct job){"no memory", no_memory, NULL, 1});
    return jobs_end();
}
