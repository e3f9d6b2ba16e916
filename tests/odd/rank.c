/*
 * rank.c - one rank of the tests on odd machines: every collective over several sizes, in private memory and in memory that peers
 * read. Each result is compared bit by bit with the sum in rank order that this rank computes alone. Rank 0 prints "right: N
 * operations"; a wrong result or an error ends it with code 1 and a line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <abcomm/abcomm.h>

#define RANKS_MAX 16

static const uint64_t counts[] = {2, 1000, 33333, 400000};
#define LARGEST 400000

static abc_comm *comm;
static int rank, nranks, operations;

static void must(int ok, const char *what, uint64_t count)
{
    if (ok)
        return;
    fprintf(stderr, "odd: rank %d: %s of %llu elements: %s\n", rank, what, (unsigned long long)count, abc_last_error());
    exit(1);
}

/* Element i of a rank's input: of any size and sign, so that the order of a sum shows in its last bits. */
static float element(int of, uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + (uint64_t)of * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 31;
    x *= 0x94d049bb133111ebull;
    return (float)((double)(int64_t)(x ^ x >> 29) * 1e-15);
}

static float sum(uint64_t i)
{
    float s = element(0, i);
    for (int r = 1; r < nranks; r++)
        s += element(r, i);
    return s;
}

static int same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void check_collectives(float *in, float *out, uint64_t n)
{
    uint64_t me = (uint64_t)rank * n, all = (uint64_t)nranks * n;
    for (uint64_t i = 0; i < all; i++)
        in[i] = element(rank, i);
    must(abc_allreduce(in, out, n, ABC_F32, ABC_SUM, comm) == ABC_OK, "allreduce", n);
    for (uint64_t i = 0; i < n; i++)
        must(same(out[i], sum(i)), "allreduce is wrong", n);
    must(abc_reduce_scatter(in, out, n, ABC_F32, ABC_SUM, comm) == ABC_OK, "reduce_scatter", n);
    for (uint64_t i = 0; i < n; i++)
        must(same(out[i], sum(me + i)), "reduce_scatter is wrong", n);
    must(abc_allgather(in, out, n, ABC_F32, comm) == ABC_OK, "allgather", n);
    for (uint64_t i = 0; i < all; i++)
        must(same(out[i], element((int)(i / n), i % n)), "allgather is wrong", n);
    must(abc_broadcast(in, out, n, ABC_F32, nranks - 1, comm) == ABC_OK, "broadcast", n);
    for (uint64_t i = 0; i < n; i++)
        must(same(out[i], element(nranks - 1, i)), "broadcast is wrong", n);
    must(abc_barrier(comm) == ABC_OK, "barrier", 0);
    operations += 5;
}

static void *buffer(int arena)
{
    void *memory = NULL;
    size_t bytes = sizeof(float) * LARGEST * (size_t)nranks;
    if (arena)
        must(abc_mem_alloc(bytes, &memory) == ABC_OK, "memory", LARGEST);
    else
        memory = malloc(bytes);
    must(memory != NULL, "memory", LARGEST);
    return memory;
}

int main(void)
{
    must(abc_comm_create(NULL, &comm) == ABC_OK, "creation", 0);
    rank = abc_comm_rank(comm);
    nranks = abc_comm_size(comm);
    must(nranks <= RANKS_MAX, "too many ranks", 0);
    for (int arena = 0; arena < 2; arena++) {
        float *in = buffer(arena), *out = buffer(arena);
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
            for (int again = 0; again < 2; again++) /* the second call of a kind may take a shorter way */
                check_collectives(in, out, counts[k]);
        if (arena) {
            abc_mem_free(in);
            abc_mem_free(out);
        } else {
            free(in);
            free(out);
        }
    }
    must(abc_comm_destroy(comm) == ABC_OK, "destroy", 0);
    if (rank == 0)
        printf("right: %d operations\n", operations);
    return 0;
}
