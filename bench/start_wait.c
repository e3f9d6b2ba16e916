/*
 * start_wait.c - what start and wait cost above the blocking call, for an allreduce of 8 bytes: abcomm run -n RANKS -- start_wait
 * [BATCHES]. Batches of calls, one mode after the other, back to back on all ranks; the median of the batches of each mode counts.
 * Rank 0 prints "mode us above_ns" lines; the goal of both differences is 50 ns.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <abcomm/abcomm.h>

#define CALLS 1000 /* in a batch */
#define BATCHES 301
#define GOAL 50 /* ns */

enum { BLOCKING, STARTED, PERSISTENT, MODES };
static const char *const names[MODES] = {"blocking", "started", "persistent"};

static float in[2] = {1, 2}, out[2];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void must(int status)
{
    if (status == ABC_OK)
        return;
    fprintf(stderr, "start_wait: %s\n", abc_last_error());
    exit(1);
}

/* Nanoseconds of one call. */
static double batch(abc_comm *comm, int mode, abc_request *persistent)
{
    abc_request *request = persistent;
    double start = now();
    for (int i = 0; i < CALLS; i++) {
        if (mode == BLOCKING) {
            must(abc_allreduce(in, out, 2, ABC_F32, ABC_SUM, comm));
            continue;
        }
        must(mode == STARTED ? abc_allreduce_start(in, out, 2, ABC_F32, ABC_SUM, comm, &request) : abc_restart(request));
        must(abc_wait(&request));
    }
    return (now() - start) / CALLS;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int batches = argc > 1 ? atoi(argv[1]) : BATCHES;
    abc_comm *comm;
    abc_call call;
    abc_request *persistent;
    if (batches < 1) {
        fprintf(stderr, "start_wait: BATCHES is a number from 1 up, not \"%s\"\n", argv[1]);
        return 2;
    }
    double *took = malloc(sizeof *took * MODES * (size_t)batches);
    if (!took)
        return 1;
    must(abc_comm_create(NULL, &comm));
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = in;
    call.out = out;
    call.count = 2;
    must(abc_request_create(comm, &call, &persistent));
    for (int i = -1; i < batches; i++) /* the first round warms */
        for (int mode = 0; mode < MODES; mode++) {
            double one = batch(comm, mode, persistent);
            if (i >= 0)
                took[mode * batches + i] = one;
        }
    if (out[0] != in[0] * (float)abc_comm_size(comm) || out[1] != in[1] * (float)abc_comm_size(comm)) {
        fprintf(stderr, "start_wait: rank %d: a wrong sum\n", abc_comm_rank(comm));
        return 1;
    }
    double blocking = 0;
    for (int mode = 0; mode < MODES && abc_comm_rank(comm) == 0; mode++) {
        qsort(took + mode * batches, (size_t)batches, sizeof *took, compare);
        double median = took[mode * batches + batches / 2];
        if (mode == BLOCKING)
            blocking = median;
        printf("%-10s %.4f us", names[mode], median / 1e3);
        if (mode == BLOCKING)
            printf("\n");
        else
            printf(", %.0f ns above the blocking call (goal: %d) %s\n", median - blocking, GOAL,
                   median - blocking <= GOAL ? "ok" : "over");
    }
    must(abc_request_free(persistent));
    must(abc_comm_destroy(comm));
    free(took);
    return 0;
}
