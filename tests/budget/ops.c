/*
 * ops.c - one operation at a time for callgrind to count: each collective, size and way to call it, on two ranks of one process.
 * budget.py runs it and compares the counts with budget.csv.
 *
 * Both ranks are driven by one thread, so that the count is the same each time and no waiting is in it. The peer starts first;
 * measured() is rank 0's call, from its entry to its end. Where rank 0 would wait for the peer, the wrapped abci_shm_wait lets the
 * peer go on instead, in peers_turn(), which is not counted. The machine is a fixed one: two CPUs, and nothing probed.
 *
 * Prints "warm" and "case COLLECTIVE BYTES MODE OPERATIONS" for each case; callgrind dumps its counts at each line, by counted().
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../engine/board.h"
#include "base/base.h"
#include "plan/run.h"

#define NRANKS 2
#define LARGEST (1u << 20)
#define TURNS_MAX 100000 /* the peer's turns in one operation; more means that nothing moves any more */
/* A function that keeps its name and its own frame: callgrind is told about it by name. */
#ifdef __clang__
#define WHOLE __attribute__((noinline))
#else
#define WHOLE __attribute__((noipa))
#endif
#ifndef BUDGET_OPTIMIZATION
#define BUDGET_OPTIMIZATION "?"
#endif

enum mode { BLOCKING, STARTED, PERSISTENT, MODES };
static const char *const mode_names[MODES] = {"blocking", "started", "persistent"};

static const struct shape {
    const char *name;
    abc_collective collective;
    int root;
} shapes[] = {
    {"allreduce", ABC_ALLREDUCE, 0},
    {"reduce_scatter", ABC_REDUCE_SCATTER, 0},
    {"allgather", ABC_ALLGATHER, 0},
    {"broadcast", ABC_BROADCAST, 1}, /* rank 0 reads */
    {"broadcast_root", ABC_BROADCAST, 0},
    {"barrier", ABC_BARRIER, 0},
    {"reduce", ABC_REDUCE, 0},
    {"gather", ABC_GATHER, 0},
    {"scatter", ABC_SCATTER, 1},
    {"alltoall", ABC_ALLTOALL, 0}, /* of the rooted ones rank 0 reads */
    {"exscan", ABC_EXSCAN, 0},     /* and writes its input only */
    {"allgatherv", ABC_ALLGATHERV, 0},
    {"alltoallv", ABC_ALLTOALLV, 0}, /* with equal blocks, and no offsets */
    {"send", ABC_SEND, 1},
    {"recv", ABC_RECV, 1}, /* the message is there already */
};
static const uint32_t sizes[] = {8, 4096, LARGEST};

static struct side {
    pthread_t thread;
    struct board *board;
    int rank;
    abc_comm *comm;
    char *in, *out;
    abc_call call;
    uint64_t counts[NRANKS];
    abc_request *request;
} side[NRANKS];

static bool by_turns;  /* an operation is under way: nobody waits */
static bool measuring; /* in measured(), not in peers_turn() */
static int turns;

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "ops: %s: %s\n", what, abc_last_error());
    exit(1);
}

/* ---- The machine ---- */

int __real_abci_shm_wait(struct abci_shm *shm, struct abci_waiting *w, const uint16_t *blocked, int nblocked, double timeout,
                         bool may_sleep, int *culprit);
int __wrap_abci_shm_wait(struct abci_shm *shm, struct abci_waiting *w, const uint16_t *blocked, int nblocked, double timeout,
                         bool may_sleep, int *culprit);
void __real_abci_probe(struct abci_shm *shm, struct abci_machine *machine);
void __wrap_abci_probe(struct abci_shm *shm, struct abci_machine *machine);
void __wrap_abci_cpu_mask(uint64_t mask[16]);
double __wrap_abci_cpu_quota(const char *root);

/* Not counted. */
static WHOLE void peers_turn(void)
{
    measuring = false;
    must(++turns < TURNS_MAX, "the ranks wait for each other");
    must(abc_test(side[1].request) >= 0, "the peer");
    measuring = true;
}

int __wrap_abci_shm_wait(struct abci_shm *shm, struct abci_waiting *w, const uint16_t *blocked, int nblocked, double timeout,
                         bool may_sleep, int *culprit)
{
    if (!by_turns)
        return __real_abci_shm_wait(shm, w, blocked, nblocked, timeout, may_sleep, culprit);
    if (measuring)
        peers_turn();
    return ABC_PENDING;
}

/* As if there were no peer to measure with: the built-in values stay. */
void __wrap_abci_probe(struct abci_shm *shm, struct abci_machine *machine)
{
    struct abci_shm alone = *shm;
    alone.nranks = 1;
    __real_abci_probe(&alone, machine);
}

void __wrap_abci_cpu_mask(uint64_t mask[16])
{
    memset(mask, 0, 16 * sizeof mask[0]);
    mask[0] = 3;
}

double __wrap_abci_cpu_quota(const char *root)
{
    return 0;
}

#ifdef BUDGET_SLOWER
/* What a careless change might add to the road of every reduction; the budget must notice. */
void __real_abci_reduce(const struct abci_reduction *r, void *dst, void *dst2, const void *const *src, int nsrc, uint64_t n);
void __wrap_abci_reduce(const struct abci_reduction *r, void *dst, void *dst2, const void *const *src, int nsrc, uint64_t n);

void __wrap_abci_reduce(const struct abci_reduction *r, void *dst, void *dst2, const void *const *src, int nsrc, uint64_t n)
{
    for (volatile int i = 0; i < 20; i++)
        ;
    __real_abci_reduce(r, dst, dst2, src, nsrc, n);
}
#endif

/* ---- Cases ---- */

static WHOLE int measured(struct side *s, enum mode mode)
{
    int status = mode == BLOCKING     ? abc_run(s->comm, &s->call)
                 : mode == PERSISTENT ? abc_restart(s->request)
                                      : abc_start(s->comm, &s->call, &s->request);
    return mode == BLOCKING || status != ABC_OK ? status : abc_wait(&s->request);
}

/* callgrind writes its counts when this returns. */
static WHOLE void counted(const char *what, const char *shape, uint32_t bytes, enum mode mode, int operations)
{
    printf("%s %s %u %s %d\n", what, shape, bytes, mode_names[mode], operations);
    fflush(stdout);
}

static void operate(enum mode mode)
{
    by_turns = true;
    turns = 0;
    must(abc_start(side[1].comm, &side[1].call, &side[1].request) == ABC_OK, "the peer's start");
    measuring = true;
    int status = measured(&side[0], mode);
    measuring = false;
    must(status == ABC_OK, "rank 0");
    while ((status = abc_test(side[1].request)) == ABC_PENDING)
        must(++turns < TURNS_MAX, "the peer does not come to its end");
    must(status == ABC_OK && abc_wait(&side[1].request) == ABC_OK, "the peer");
    by_turns = false;
}

/* A multiple of the slots, so that what happens once in a round of them is counted in full. */
static int operations_of(uint32_t bytes)
{
    return bytes < LARGEST ? 32 : 4;
}

static void run_case(const struct shape *shape, uint32_t bytes, enum mode mode)
{
    for (int r = 0; r < NRANKS; r++) {
        bool message = shape->collective >= ABC_SEND;
        abc_collective other = shape->collective == ABC_SEND ? ABC_RECV : ABC_SEND;
        abc_call_init(&side[r].call, message && r == 1 ? other : shape->collective);
        side[r].call.in = side[r].in;
        side[r].call.out = side[r].out;
        side[r].call.count = bytes / sizeof(float);
        side[r].call.root = message ? 1 - r : shape->root;
        for (int k = 0; k < NRANKS; k++)
            side[r].counts[k] = side[r].call.count;
        side[r].call.in_counts = shape->collective == ABC_ALLTOALLV ? side[r].counts : NULL;
        side[r].call.out_counts = shape->collective == ABC_ALLTOALLV || shape->collective == ABC_ALLGATHERV ? side[r].counts : NULL;
        side[r].request = NULL;
    }
    for (int i = 0; i < operations_of(bytes); i++) /* plans, staging, what is kept from call to call */
        operate(BLOCKING);
    if (mode == PERSISTENT)
        must(abc_request_create(side[0].comm, &side[0].call, &side[0].request) == ABC_OK, "a persistent request");
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < operations_of(bytes); i++)
            operate(mode);
        counted(round == 0 ? "warm" : "case", shape->name, bytes, mode, operations_of(bytes));
    }
    if (mode == PERSISTENT)
        must(abc_request_free(side[0].request) == ABC_OK, "free");
}

/* ---- Frame ---- */

static void *create(void *argument)
{
    struct side *s = argument;
    struct exchange_context context;
    abc_exchange exchange;
    abc_comm_config config;
    exchange_over_board(&context, s->board, "budget", &exchange);
    abc_comm_config_init(&config);
    config.rank = s->rank;
    config.nranks = NRANKS;
    config.exchange = &exchange;
    must(abc_comm_create(&config, &s->comm) == ABC_OK, "creation");
    must(posix_memalign((void **)&s->in, 4096, NRANKS * LARGEST) == 0, "memory");
    must(posix_memalign((void **)&s->out, 4096, NRANKS * LARGEST) == 0, "memory");
    memset(s->in, 0, NRANKS * LARGEST);
    memset(s->out, 0, NRANKS * LARGEST);
    return NULL;
}

/* The counts mean something only for the library as it is delivered. */
static const char *unfit(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return "a sanitizer counts too";
#elif defined(ABCI_FAULTS)
    return "fault injection counts too";
#else
    return strcmp(BUDGET_OPTIMIZATION, "3") == 0 ? NULL : "the build is not optimised as the library is (-Doptimization=3)";
#endif
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "", *why = unfit();
    if (why) {
        printf("skip: %s\n", why);
        return 77;
    }
#ifdef __clang__
    printf("compiler clang %d\n", __clang_major__);
#else
    printf("compiler gcc %d\n", __GNUC__);
#endif
    struct board *board = board_make();
    must(board != NULL, "the board");
    for (int r = 0; r < NRANKS; r++) {
        side[r].board = board;
        side[r].rank = r;
        must(pthread_create(&side[r].thread, NULL, create, &side[r]) == 0, "a thread");
    }
    for (int r = 0; r < NRANKS; r++)
        pthread_join(side[r].thread, NULL);
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        for (size_t b = 0; b < (shapes[k].collective == ABC_BARRIER ? 1 : sizeof sizes / sizeof *sizes); b++)
            for (int mode = 0; mode < MODES; mode++) {
                uint32_t bytes = shapes[k].collective == ABC_BARRIER ? 0 : sizes[b];
                char name[64];
                snprintf(name, sizeof name, "%s %u %s", shapes[k].name, bytes, mode_names[mode]);
                if (strstr(name, only))
                    run_case(&shapes[k], bytes, mode);
            }
    for (int r = 0; r < NRANKS; r++) {
        must(abc_comm_destroy(side[r].comm) == ABC_OK, "destroy");
        free(side[r].in);
        free(side[r].out);
    }
    board_free(board);
    return 0;
}
