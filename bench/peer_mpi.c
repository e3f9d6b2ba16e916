/*
 * peer_mpi.c - any MPI as the peer of bench/compare.c. Built with that MPI's mpicc and started by its mpirun. Blocking calls on
 * MPI_COMM_WORLD; all of them have counts of 31 bits, which the sizes of the benchmark respect.
 */
#include <mpi.h>

#include "peer.h"

int peer_open(int *argc, char ***argv, int *rank, int *nranks)
{
    if (MPI_Init(argc, argv) != MPI_SUCCESS)
        return -1;
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, nranks);
    return 0;
}

int peer_share(void *context, void *data, size_t bytes)
{
    (void)context;
    return MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD) == MPI_SUCCESS ? 0 : -1;
}

int peer_has(abc_collective collective)
{
    return collective <= ABC_BROADCAST;
}

int peer_run(const struct peer_call *call)
{
    const void *in = call->in == call->out ? MPI_IN_PLACE : call->in;
    int n = (int)call->count;
    switch (call->collective) {
    case ABC_ALLREDUCE:
        return MPI_Allreduce(in, call->out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case ABC_REDUCE_SCATTER:
        return MPI_Reduce_scatter_block(in, call->out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case ABC_ALLGATHER:
        return MPI_Allgather(in, n, MPI_FLOAT, call->out, n, MPI_FLOAT, MPI_COMM_WORLD);
    default:
        return MPI_Bcast(call->out, n, MPI_FLOAT, call->root, MPI_COMM_WORLD);
    }
}

void peer_abort(void)
{
    MPI_Abort(MPI_COMM_WORLD, 1);
}

void peer_close(void)
{
    MPI_Finalize();
}
