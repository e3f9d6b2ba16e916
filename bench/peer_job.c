/*
 * peer_job.c - ranks started by `abcomm run` find each other, for peers that have no launcher of their own: peer_own.c and
 * peer_gloo.cc. One communicator a process, used by its one thread, never inside a timed call.
 */
#include <stdio.h>

#include "peer.h"

static abc_comm *job;

abc_comm *peer_job_open(int *rank, int *nranks)
{
    if (abc_comm_create(NULL, &job) != ABC_OK) {
        fprintf(stderr, "compare: %s\n", abc_last_error());
        return NULL;
    }
    *rank = abc_comm_rank(job);
    *nranks = abc_comm_size(job);
    return job;
}

int peer_job_share(void *data, size_t bytes)
{
    /* Words if it is words: the library has no type of one byte. */
    return bytes % sizeof(int32_t) == 0 ? abc_broadcast(data, data, bytes / sizeof(int32_t), ABC_I32, 0, job) : -1;
}

void peer_job_close(void)
{
    abc_comm_destroy(job);
    job = NULL;
}
