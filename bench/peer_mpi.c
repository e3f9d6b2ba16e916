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

int peer_has(int what, abc_type type)
{
    (void)what; /* all of them */
    return type == ABC_F32 || type == ABC_I8;
}

static int ping_pong(const struct peer_call *call, MPI_Datatype type)
{
    int n = (int)call->count, rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) {
        int status = MPI_Send(call->in, n, type, 1, 0, MPI_COMM_WORLD);
        return status != MPI_SUCCESS ? status : MPI_Recv(call->out, n, type, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    int status = MPI_Recv(call->out, n, type, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return status != MPI_SUCCESS ? status : MPI_Send(call->in, n, type, 0, 0, MPI_COMM_WORLD);
}

static int send_receive(const struct peer_call *call, MPI_Datatype type)
{
    int n = (int)call->count, rank, nranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    return MPI_Sendrecv(call->in, n, type, (rank + 1) % nranks, 0, call->out, n, type, (rank + nranks - 1) % nranks, 0,
                        MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int peer_run(const struct peer_call *call)
{
    const void *in = call->in == call->out ? MPI_IN_PLACE : call->in;
    void *out = call->out;
    const struct peer_blocks *b = call->blocks;
    MPI_Datatype type = call->type == ABC_I8 ? MPI_INT8_T : MPI_FLOAT;
    MPI_Comm all = MPI_COMM_WORLD;
    int n = (int)call->count, root = call->root;
    switch (call->what) {
    case ABC_ALLREDUCE:
        return MPI_Allreduce(in, out, n, type, MPI_SUM, all);
    case ABC_REDUCE_SCATTER:
        return MPI_Reduce_scatter_block(in, out, n, type, MPI_SUM, all);
    case ABC_ALLGATHER:
        return MPI_Allgather(in, n, type, out, n, type, all);
    case ABC_BARRIER:
        return MPI_Barrier(all);
    case ABC_REDUCE:
        return MPI_Reduce(in, out, n, type, MPI_SUM, root, all);
    case ABC_GATHER:
        return MPI_Gather(in, n, type, out, n, type, root, all);
    case ABC_SCATTER:
        return MPI_Scatter(in, n, type, out, n, type, root, all);
    case ABC_ALLTOALL:
        return MPI_Alltoall(in, n, type, out, n, type, all);
    case ABC_SCAN:
        return MPI_Scan(in, out, n, type, MPI_SUM, all);
    case ABC_EXSCAN:
        return MPI_Exscan(in, out, n, type, MPI_SUM, all);
    case ABC_ALLGATHERV:
        return MPI_Allgatherv(in, n, type, out, b->out, b->out_at, type, all);
    case ABC_ALLTOALLV:
        return MPI_Alltoallv(in, b->in, b->in_at, type, out, b->out, b->out_at, type, all);
    case PEER_SENDRECV:
        return send_receive(call, type);
    case PEER_PINGPONG:
        return ping_pong(call, type);
    default:
        return MPI_Bcast(out, n, type, root, all);
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
