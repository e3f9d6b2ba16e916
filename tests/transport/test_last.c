/*
 * test_last.c - an operation whose last chunk is short enough for a header, while peers read the others where the caller has them:
 * the call returns when those are read, too. The root takes its time, the sender writes into its buffer as soon as it has it back.
 * Links the testing library. Run: abcomm run -n 2 test_last
 */
#include <abcomm/abcomm.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "plan/run.h"

#define COUNT 2296u /* 32 chunks: of 576 bytes, but the last of 512 */

/* Each step of the root, which reads. */
static void dawdle(int rank, uint32_t sequence, int step)
{
    if (rank == 0 && step >= 0)
        usleep(500);
}

static double value(int rank, int round, unsigned i)
{
    return rank * 10000 + round * 3000 + (int)i;
}

/* Wrong elements at the root; negative after an error. */
static int one_round(abc_comm *comm, double *in, double *out, int round)
{
    int rank = abc_comm_rank(comm), wrong = 0;
    abc_call call;
    for (unsigned i = 0; i < COUNT; i++)
        in[i] = value(rank, round, i);
    abc_call_init(&call, ABC_GATHER);
    call.in = in;
    call.out = out;
    call.count = COUNT;
    call.type = ABC_F64;
    call.algorithm = "oneshot@1152";
    if (abc_run(comm, &call) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), -1;
    for (unsigned i = 0; i < COUNT; i++)
        in[i] = -1;
    for (unsigned i = 0; rank == 0 && i < 2 * COUNT; i++)
        wrong += out[i] != value((int)(i / COUNT), round, i % COUNT);
    return wrong;
}

int main(void)
{
    abc_comm *comm;
    void *in, *out;
    if (abc_comm_create(NULL, &comm) != ABC_OK || abc_mem_alloc(COUNT * sizeof(double), &in) != ABC_OK ||
        abc_mem_alloc(2 * COUNT * sizeof(double), &out) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), 1;
    abci_hook = dawdle;
    bool ok = true;
    for (int round = 0; round < 3 && ok; round++) {
        int wrong = one_round(comm, in, out, round);
        ok = wrong == 0;
        if (wrong > 0)
            fprintf(stderr, "round %d: %d elements are wrong\n", round, wrong);
    }
    return abc_comm_destroy(comm) != ABC_OK || !ok;
}
