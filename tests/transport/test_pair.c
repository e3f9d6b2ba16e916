/*
 * test_pair.c - two ranks exchange long operations in one loop, and leave it and come back as the peer is late: chunks of many
 * sizes, also such as no staging token holds, in place and not, blocking and started, between other operations that use the same
 * staging, and against a rank whose buffers lie in the arena. Every value is checked. Run: abcomm run -n 2 test_pair
 */
#include <abcomm/abcomm.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST (1024 * 1024)
#define ROUNDS 120

static int *in, *out, *shared_in, *shared_out;
static abc_comm *comm;
static unsigned state = 12345; /* the same on both ranks */

static unsigned draw(unsigned n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

static int value(int rank, unsigned round, unsigned i)
{
    return (int)(i * 7u + round * 1000u + (unsigned)rank * 13u);
}

static int say(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, abc_last_error());
    return -1;
}

/* Staging changes hands in between, or runs out on one side. */
static int other_call(unsigned round)
{
    static int row[3000];
    int root = (int)(round % 2);
    for (unsigned i = 0; i < 3000; i++)
        row[i] = abc_comm_rank(comm) == root ? value(root, round, i) : -1;
    for (unsigned k = 0; k < round % 4; k++)
        if (abc_broadcast(row, row, 3000, ABC_I32, root, comm) != ABC_OK)
            return say("broadcast");
    for (unsigned i = 0; round % 4 && i < 3000; i++)
        if (row[i] != value(root, round, i)) {
            fprintf(stderr, "round %u: element %u of a broadcast\n", round, i);
            return -1;
        }
    return 0;
}

/* The library finds nothing clean where a call puts what it needs. */
__attribute__((noinline)) static void dirty_stack(void)
{
    volatile char room[16384];
    for (size_t i = 0; i < sizeof room; i++)
        room[i] = 1;
}

static int run(abc_call *call, bool started)
{
    dirty_stack();
    if (!started)
        return abc_run(comm, call) == ABC_OK ? 0 : say("run");
    abc_request *request;
    if (abc_start(comm, call, &request) != ABC_OK)
        return say("start");
    return abc_wait(&request) == ABC_OK ? 0 : say("wait");
}

/* A sum, a maximum or an average, of a size and in chunks that both ranks draw alike. */
static int one_call(unsigned round)
{
    static const char *const algorithms[] = {"oneshot@8K", "oneshot@100", "oneshot@5000", "oneshot@128K", "oneshot@1M",
                                             "oneshot@4M", NULL};
    static const abc_op ops[] = {ABC_SUM, ABC_MAX, ABC_SUM, ABC_AVG};
    int rank = abc_comm_rank(comm);
    unsigned count = 5000 + draw(round % 5 ? 20000 : MOST - 5000), which = draw(7), op = draw(4), late = draw(8);
    bool in_place = draw(2), started = draw(3) == 0, arena = draw(4) == 0, own_arena = arena && rank == (int)draw(2);
    if (which == 1)
        count = 5000 + count % 2000; /* some hundred chunks */
    if (which == 5)
        count = MOST - count; /* one chunk, which no staging token holds */
    int *from = own_arena ? shared_in : in, *to = own_arena ? shared_out : out;
    if (in_place)
        from = to;
    for (unsigned i = 0; i < count; i++)
        from[i] = value(rank, round, i);
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = from;
    call.out = to;
    call.count = count;
    call.type = ABC_I32;
    call.op = ops[op];
    call.algorithm = algorithms[which];
    if (late < 2 && rank == (int)late)
        usleep(3000);
    if (run(&call, started) != 0)
        return -1;
    for (unsigned i = 0; i < count; i++) {
        int a = value(0, round, i), b = value(1, round, i);
        int want = ops[op] == ABC_SUM ? a + b : ops[op] == ABC_MAX ? b : (a + b) / 2;
        if (to[i] != want) {
            fprintf(stderr, "rank %d round %u: %u elements by %s: element %u is %d, not %d\n", rank, round, count,
                    algorithms[which] ? algorithms[which] : "choice", i, to[i], want);
            return -1;
        }
    }
    return 0;
}

int main(void)
{
    void *shared[2];
    if (abc_comm_create(NULL, &comm) != ABC_OK)
        return say("create"), 1;
    in = malloc(MOST * sizeof *in);
    out = malloc(MOST * sizeof *out);
    if (!in || !out || abc_mem_alloc(MOST * sizeof *in, &shared[0]) != ABC_OK ||
        abc_mem_alloc(MOST * sizeof *in, &shared[1]) != ABC_OK)
        return say("memory"), 1;
    shared_in = shared[0];
    shared_out = shared[1];
    int failed = 0;
    for (unsigned round = 0; round < ROUNDS && !failed; round++)
        failed = one_call(round) != 0 || other_call(round) != 0;
    abc_comm_destroy(comm);
    abc_mem_free(shared[0]);
    abc_mem_free(shared[1]);
    free(in);
    free(out);
    return failed;
}
