/*
 * mpi.c - a communicator from an MPI_Comm: the exchange over which it is created is MPI itself, a key being a tag. From then on no
 * MPI call is needed, and none is made. Compile with MPI's compiler:
 *
 *     mpicc mpi.c $(pkg-config --cflags --libs abcomm) -o mpi && mpirun -n 4 ./mpi
 */
#include <abcomm/abcomm.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int tag_of(const char *key)
{
    unsigned hash = 0;
    int *limit = NULL, known;
    while (*key)
        hash = hash * 31 + (unsigned char)*key++;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &known);
    return (int)(hash % (unsigned)*limit);
}

/* Every rank tells rank 0, and rank 0 tells all: more is not asked of an exchange. */
static int put(void *over, const char *key, const void *value, size_t length)
{
    int rank, size;
    MPI_Comm_rank(*(MPI_Comm *)over, &rank);
    MPI_Comm_size(*(MPI_Comm *)over, &size);
    for (int to = rank == 0; to < (rank == 0 ? size : 1); to++)
        MPI_Bsend(value, (int)length, MPI_BYTE, to, tag_of(key), *(MPI_Comm *)over);
    return ABC_OK;
}

static int wait(void *over, const char *key, double timeout)
{
    int there = 0;
    for (double end = MPI_Wtime() + timeout; !there;) {
        MPI_Iprobe(MPI_ANY_SOURCE, tag_of(key), *(MPI_Comm *)over, &there, MPI_STATUS_IGNORE);
        if (!there && MPI_Wtime() > end)
            return ABC_ERR_TIMEOUT;
    }
    return ABC_OK;
}

static int get(void *over, const char *key, void *value, size_t *length)
{
    MPI_Status status;
    int bytes;
    MPI_Recv(value, (int)*length, MPI_BYTE, MPI_ANY_SOURCE, tag_of(key), *(MPI_Comm *)over, &status);
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    *length = (size_t)bytes;
    return ABC_OK;
}

/* Collective over `mpi`. The copy of the communicator keeps our tags from the program's. */
static int comm_from_mpi(MPI_Comm mpi, abc_comm **comm)
{
    abc_comm_config config;
    abc_exchange exchange;
    MPI_Comm over;
    abc_comm_config_init(&config);
    abc_exchange_init(&exchange);
    MPI_Comm_dup(mpi, &over);
    MPI_Comm_rank(over, &config.rank);
    MPI_Comm_size(over, &config.nranks);
    exchange.ctx = &over, exchange.put = put, exchange.wait = wait, exchange.get = get;
    config.exchange = &exchange;
    int room = config.nranks * (config.nranks + 16) * 8192; /* what rank 0 tells: a table of all, to each */
    void *buffer = malloc((size_t)room);
    MPI_Buffer_attach(buffer, room);
    int status = abc_comm_create(&config, comm);
    MPI_Buffer_detach(&buffer, &room);
    free(buffer);
    MPI_Comm_free(&over);
    return status;
}

int main(int argc, char **argv)
{
    abc_comm *comm;
    MPI_Init(&argc, &argv);
    if (comm_from_mpi(MPI_COMM_WORLD, &comm) != ABC_OK) {
        fprintf(stderr, "%s\n", abc_last_error());
        return MPI_Abort(MPI_COMM_WORLD, 1);
    }
    float mine = 1.0f + (float)abc_comm_rank(comm), ours, theirs;
    if (abc_allreduce(&mine, &ours, 1, ABC_F32, ABC_SUM, comm) != ABC_OK) {
        fprintf(stderr, "%s\n", abc_last_error());
        return MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Allreduce(&mine, &theirs, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d: the sum is %g, MPI says %g\n", abc_comm_rank(comm), abc_comm_size(comm), ours, theirs);
    abc_comm_destroy(comm);
    MPI_Finalize();
    return ours == theirs ? 0 : 1;
}
