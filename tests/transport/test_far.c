/*
 * test_far.c - staging that begins beyond 256 GiB of a process's shared memory: most of that is an allocation which nobody touches,
 * so it costs addresses only. Sums by a plan with temporaries, by one with staged blocks, and by default. Run: abcomm run -n 3
 * test_far
 */
#include <abcomm/abcomm.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT (4u << 20)
#define SKIPPED 77

static abc_comm *comm;

static bool sum_is_right(const char *algorithm)
{
    int *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out), rank = abc_comm_rank(comm), n = abc_comm_size(comm);
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    for (unsigned i = 0; in && i < COUNT; i++)
        in[i] = (int)i + rank;
    call.in = in;
    call.out = out;
    call.count = COUNT;
    call.type = ABC_I32;
    call.algorithm = algorithm;
    bool ok = in && out && abc_run(comm, &call) == ABC_OK;
    if (!ok)
        fprintf(stderr, "%s: %s\n", algorithm ? algorithm : "default", abc_last_error());
    for (unsigned i = 0; ok && i < COUNT; i++)
        if (out[i] != n * (int)i + n * (n - 1) / 2) {
            ok = false;
            fprintf(stderr, "rank %d, %s: element %u is %d\n", rank, algorithm ? algorithm : "default", i, out[i]);
        }
    free(in);
    free(out);
    return ok;
}

int main(void)
{
    void *far;
    int sure, all = 0;
    if (abc_comm_create(NULL, &comm) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), 1;
    sure = abc_mem_alloc((size_t)257 << 30, &far) == ABC_OK; /* what is in front of it is too short for chunks of 16 MiB */
    if (abc_allreduce(&sure, &all, 1, ABC_I32, ABC_MIN, comm) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), 1;
    if (!all)
        return fprintf(stderr, "no such memory here: %s\n", abc_last_error()), SKIPPED;
    bool ok = sum_is_right("recdbl@16M") && sum_is_right("twoshot@16M") && sum_is_right(NULL);
    return abc_comm_destroy(comm) != ABC_OK || !ok;
}
