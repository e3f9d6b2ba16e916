/*
 * crowd.c - one rank of many on few CPUs: a few calls of each collective, from a word to several chunks, each result compared with
 * what it must be. Run by `abcomm run`; see test_many.py. Exit code 1 after a line that says what was wrong.
 */
#include <abcomm/abcomm.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int rank, nranks;

static int bad(const char *what, uint64_t count, uint64_t at)
{
    fprintf(stderr, "rank %d of %d: %s of %llu values: element %llu is wrong\n", rank, nranks, what, (unsigned long long)count,
            (unsigned long long)at);
    return 1;
}

static int refused(const char *what)
{
    fprintf(stderr, "rank %d of %d: %s: %s\n", rank, nranks, what, abc_last_error());
    return 1;
}

/* What rank r gives at element i: small whole numbers, so that every order of adding has the same sum. */
static float given(int r, uint64_t i)
{
    return (float)((uint64_t)r * 7 % 16 + i % 5);
}

static float sum_at(uint64_t i)
{
    float sum = 0;
    for (int r = 0; r < nranks; r++)
        sum += given(r, 0);
    return sum + (float)((uint64_t)nranks * (i % 5));
}

static int allreduce(abc_comm *comm, float *in, float *out, uint64_t count)
{
    float base = sum_at(0);
    for (uint64_t i = 0; i < count; i++)
        in[i] = given(rank, i);
    if (abc_allreduce(in, out, count, ABC_F32, ABC_SUM, comm) != ABC_OK)
        return refused("allreduce");
    for (uint64_t i = 0; i < count; i++)
        if (out[i] != base + (float)((uint64_t)nranks * (i % 5)))
            return bad("allreduce", count, i);
    return 0;
}

static int scatter_and_gather(abc_comm *comm, float *in, float *out, uint64_t count)
{
    uint64_t all = count * (uint64_t)nranks, first = count * (uint64_t)rank;
    for (uint64_t i = 0; i < all; i++)
        in[i] = given(rank, i);
    if (abc_reduce_scatter(in, out, count, ABC_F32, ABC_SUM, comm) != ABC_OK)
        return refused("reduce_scatter");
    for (uint64_t i = 0; i < count; i++)
        if (out[i] != sum_at(first + i))
            return bad("reduce_scatter", count, i);
    if (abc_allgather(out, in, count, ABC_F32, comm) != ABC_OK)
        return refused("allgather");
    float base = sum_at(0);
    for (uint64_t i = 0; i < all; i++)
        if (in[i] != base + (float)((uint64_t)nranks * (i % 5)))
            return bad("allgather", count, i);
    return 0;
}

static int broadcast(abc_comm *comm, float *data, uint64_t count, int root)
{
    for (uint64_t i = 0; i < count; i++)
        data[i] = rank == root ? given(root, i) : -1;
    if (abc_broadcast(data, data, count, ABC_F32, root, comm) != ABC_OK)
        return refused("broadcast");
    for (uint64_t i = 0; i < count; i++)
        if (data[i] != given(root, i))
            return bad("broadcast", count, i);
    return 0;
}

/* What rank r has for rank to, element i of it. */
static float addressed(int r, int to, uint64_t i)
{
    return (float)((uint64_t)r * 13 % 29 + (uint64_t)to * 5 % 11 + i % 7);
}

static int alltoall(abc_comm *comm, float *in, float *out, uint64_t count)
{
    for (int r = 0; r < nranks; r++)
        for (uint64_t i = 0; i < count; i++)
            in[(uint64_t)r * count + i] = addressed(rank, r, i);
    if (abc_alltoall(in, out, count, ABC_F32, comm) != ABC_OK)
        return refused("alltoall");
    for (int r = 0; r < nranks; r++)
        for (uint64_t i = 0; i < count; i++)
            if (out[(uint64_t)r * count + i] != addressed(r, rank, i))
                return bad("alltoall", count, (uint64_t)r * count + i);
    return 0;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Some of them in a row; rank 0 says what one takes. */
static int timed(abc_comm *comm, float *in, float *out, uint64_t count, int rounds)
{
    double start = now();
    for (int i = 0; i < rounds; i++)
        if (abc_barrier(comm) != ABC_OK)
            return refused("barrier");
    double middle = now();
    for (int i = 0; i < rounds; i++)
        if (abc_alltoall(in, out, count, ABC_F32, comm) != ABC_OK)
            return refused("alltoall");
    double end = now();
    if (rank == 0)
        printf("barrier %.0f us, alltoall of %llu bytes to each %.0f us\n", (middle - start) / rounds * 1e6,
               (unsigned long long)count * sizeof(float), (end - middle) / rounds * 1e6);
    return 0;
}

int main(int argc, char **argv)
{
    abc_comm *comm;
    uint64_t most = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    if (most == 0 || abc_comm_create(NULL, &comm) != ABC_OK)
        return most ? refused("create") : 2;
    rank = abc_comm_rank(comm);
    nranks = abc_comm_size(comm);
    uint64_t room = most > 64 * (uint64_t)nranks ? most : 64 * (uint64_t)nranks;
    float *in = malloc(room * sizeof *in), *out = malloc(room * sizeof *out);
    int wrong = !in || !out;
    for (uint64_t count = 1; count <= most && !wrong; count *= 64)
        wrong = allreduce(comm, in, out, count) || broadcast(comm, in, count, (int)(count % (uint64_t)nranks));
    wrong = wrong || allreduce(comm, in, out, most) || broadcast(comm, out, most, nranks - 1) ||
            scatter_and_gather(comm, in, out, 1) || scatter_and_gather(comm, in, out, 33) || alltoall(comm, in, out, 1) ||
            alltoall(comm, in, out, room / (uint64_t)nranks) || timed(comm, in, out, 2, 20);
    abc_comm_destroy(comm);
    free(in);
    free(out);
    return wrong;
}
