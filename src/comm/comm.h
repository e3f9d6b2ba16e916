/*
 * comm.h - who the ranks are: a rank's end of a communicator, its life and its end. Creation and split block and allocate; what an
 * operation needs is the engine inside.
 */
#ifndef ABCI_COMM_H
#define ABCI_COMM_H

#include <pthread.h>

#include "plan/run.h"
#include "tune/choose.h"

struct abc_comm {
    int rank, nranks;
    uint32_t fork_generation; /* of the process that created it */
    double timeout;
    struct abci_shm *shm; /* outlives the handle until every peer has left: see comm_end.c */
    struct abci_engine engine;
    struct abci_chooser *chooser;
    uint32_t splits;                            /* so far: the same on all ranks */
    uint32_t epoch;                             /* hash that seeds the chain */
    _Atomic uint32_t live;                      /* started or persistent requests that the caller has not freed */
    pthread_mutex_t lock;                       /* guards spare */
    struct abc_request *spare;                  /* freed requests, kept so that starting allocates nothing */
    _Atomic(struct abc_request *) spare_first;  /* one more, taken before those, without the lock */
    _Atomic(struct abci_counts *) spare_counts; /* memory of the last call with counts */
    bool has_thread;
    pthread_t thread;
    _Atomic int stop;
};

/* What all ranks of a communicator hold in identical form, and what this rank's end is like. */
struct abci_comm_config {
    struct abci_machine machine;      /* rank 0's */
    const struct abci_tuning *tuning; /* rank 0's, or NULL */
    uint32_t epoch;
    double timeout;
    int progress; /* as abc_comm_config.progress_thread */
};
/* comm.c: the common last part of creation. `all` peers are bound in shm; takes over shm. */
int abci_comm_assemble(struct abci_shm *shm, const struct abci_comm_config *config, struct abc_comm **comm);

/* A request from the spare ones or the heap, NULL when there is no memory; and back. */
struct abc_request *abci_request_take(struct abc_comm *comm);
void abci_request_give(struct abc_comm *comm, struct abc_request *request);
/* The same for the memory of a call's counts, which has one size for a communicator; it is not cleared. give accepts NULL. */
struct abci_counts *abci_counts_take(struct abc_comm *comm, size_t bytes);
void abci_counts_give(struct abc_comm *comm, struct abci_counts *counts);

/* comm_end.c */
/* Keep the control block until peers have left it. Takes over shm. Also frees others that are over by now. */
void abci_comm_retire(struct abci_shm *shm);
void abci_comm_reap(void);
/* Write "rank 3 on host h: text" with the failure's text for this communicator as the thread's last error; returns its status. */
int abci_comm_report(const struct abc_comm *comm, const struct abci_call_id *call);
/* ABC_OK, or an error with text when the handle is null, of another process, or dead. */
int abci_comm_usable(const struct abc_comm *comm);

#endif
