/*
 * together.c - one rank of a job whose ranks the scheduler puts on one CPU once the communicator stands, though there are more: a
 * rank that spins keeps the awaited one from its CPU. Rank 0 prints "N us a call": the mean of many sums of 8 bytes.
 */
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include <abcomm/abcomm.h>

#define CALLS 2000

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(void)
{
    abc_comm *comm;
    cpu_set_t allowed, one;
    int first = 0;
    if (abc_comm_create(NULL, &comm) != ABC_OK || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return fprintf(stderr, "together: %s\n", abc_last_error()), 1;
    while (!CPU_ISSET(first, &allowed))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        return perror("together: sched_setaffinity"), 1;
    double begin = now();
    for (int i = 0; i < CALLS; i++) {
        float mine[2] = {1, (float)i}, sum[2];
        if (abc_allreduce(mine, sum, 2, ABC_F32, ABC_SUM, comm) != ABC_OK)
            return fprintf(stderr, "together: %s\n", abc_last_error()), 1;
        if (sum[0] != (float)abc_comm_size(comm) || sum[1] != (float)(i * abc_comm_size(comm)))
            return fprintf(stderr, "together: call %d gives %g, %g\n", i, sum[0], sum[1]), 1;
    }
    double each = (now() - begin) / CALLS * 1e6;
    if (abc_comm_rank(comm) == 0)
        printf("%.1f us a call, %d ranks on 1 of %d CPUs\n", each, abc_comm_size(comm), CPU_COUNT(&allowed));
    return abc_comm_destroy(comm) != ABC_OK;
}
