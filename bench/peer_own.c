/*
 * peer_own.c - our own library as the peer of bench/compare.c, on a communicator of its own: for the figures that compare our calls
 * with each other, and to test the program where no other library is installed. Started by `abcomm run`.
 */
#include <stdlib.h>

#include "peer.h"

static abc_comm *comm;

int peer_open(int *argc, char ***argv, int *rank, int *nranks)
{
    (void)argc;
    (void)argv;
    comm = peer_job_open(rank, nranks);
    return comm ? 0 : -1;
}

int peer_share(void *context, void *data, size_t bytes)
{
    (void)context;
    return peer_job_share(data, bytes);
}

int peer_has(int what, abc_type type)
{
    (void)what;
    return abc_type_size(type) > 0;
}

int peer_run(const struct peer_call *call)
{
    return peer_run_ours(call, comm);
}

/* The launcher ends the others when one rank fails. */
void peer_abort(void)
{
    exit(1);
}

void peer_close(void)
{
    peer_job_close();
}
