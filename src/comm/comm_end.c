/*
 * comm_end.c - the end of a communicator: destroy, abort, and what is said about a failure. Destroy is not collective: the rank's
 * control block stays until every peer has left it (or died), on a list that later creations and destroys sweep.
 */
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"

struct retired {
    struct abci_shm *shm;
    struct retired *next;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct retired *retired;
static uint32_t retired_generation;

void abci_comm_reap(void)
{
    struct retired *over = NULL;
    abci_fork_guard(&lock);
    pthread_mutex_lock(&lock);
    if (retired_generation != abci_fork_generation) {
        retired = NULL; /* the parent's, not ours */
        retired_generation = abci_fork_generation;
    }
    for (struct retired **at = &retired; *at;) {
        struct retired *r = *at;
        if (!abci_shm_unused(r->shm)) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        r->next = over;
        over = r;
    }
    pthread_mutex_unlock(&lock);
    while (over) {
        struct retired *next = over->next;
        abci_shm_free(over->shm);
        abci_free(over->shm);
        abci_free(over);
        over = next;
    }
}

void abci_comm_retire(struct abci_shm *shm)
{
    struct retired *r = abci_alloc(sizeof *r);
    if (!r)
        return; /* leaks one control block rather than freeing what peers may touch */
    r->shm = shm;
    pthread_mutex_lock(&lock);
    r->next = retired_generation == abci_fork_generation ? retired : NULL;
    retired_generation = abci_fork_generation;
    retired = r;
    pthread_mutex_unlock(&lock);
    abci_comm_reap();
}

int abci_comm_usable(const struct abc_comm *comm)
{
    if (!comm)
        return abci_error(ABC_ERR_HANDLE, "the communicator is null");
    if (comm->fork_generation != abci_fork_generation)
        return abci_error(ABC_ERR_HANDLE, "the communicator belongs to the process that this one was forked from");
    return ABC_OK;
}

int abci_comm_report(const struct abc_comm *comm, const struct abci_call_id *call)
{
    struct abci_failure f;
    char what[96] = "";
    int status = abci_shm_failure(comm->shm, &f);
    if (status == ABC_OK)
        return ABC_OK;
    if (call)
        abci_call_describe(call, what, sizeof what);
    abci_error(status, "rank %d on host %s%s%s: %s", comm->rank, abci_hostname(), call ? ": " : "", what, f.text);
    return status;
}

ABC_API int abc_comm_status(const abc_comm *comm)
{
    struct abci_failure f;
    int status = abci_comm_usable(comm);
    return status == ABC_OK && abci_shm_failed(comm->shm) ? abci_shm_failure(comm->shm, &f) : status;
}

ABC_API int abc_comm_error(const abc_comm *comm, char *text, size_t capacity)
{
    struct abci_failure f = {.status = ABC_OK};
    int status = abci_comm_usable(comm);
    if (!text || capacity == 0)
        return abci_error(ABC_ERR_ARGUMENT, "the place for the text is null or empty");
    text[0] = 0;
    if (status == ABC_OK && abci_shm_failed(comm->shm)) {
        status = abci_shm_failure(comm->shm, &f);
        snprintf(text, capacity, "%s", f.text);
    }
    return status;
}

ABC_API int abc_comm_abort(abc_comm *comm, const char *reason)
{
    int status = abci_comm_usable(comm);
    if (status != ABC_OK)
        return status;
    char clean[160];
    abci_text_clean(clean, sizeof clean, reason ? reason : "no reason was given");
    abci_shm_fail(comm->shm, ABC_ERR_ABORTED, comm->rank, NULL, NULL, "rank %d aborted the communicator: %s", comm->rank, clean);
    return ABC_OK;
}

static void stop_thread(struct abc_comm *comm)
{
    if (!comm->has_thread)
        return;
    atomic_store_explicit(&comm->stop, 1, memory_order_release); /* pairs with abci_engine_progress */
    abci_engine_poke(&comm->engine);
    pthread_join(comm->thread, NULL);
    comm->has_thread = false;
}

ABC_API int abc_comm_destroy(abc_comm *comm)
{
    if (!comm)
        return ABC_OK;
    int status = abci_comm_usable(comm);
    if (status != ABC_OK)
        return status;
    uint32_t live = atomic_load_explicit(&comm->live, memory_order_acquire);
    if (live > 0 && !abci_shm_failed(comm->shm) && abci_engine_busy(&comm->engine))
        return abci_error(ABC_ERR_STATE, "requests in progress: %u; wait for them or abort the communicator first", live);
    if (live > 0)
        return abci_error(ABC_ERR_STATE,
                          "requests not freed: %u; call abc_wait or abc_request_free for each, or end the group that keeps them",
                          live);
    stop_thread(comm);
    status = abci_engine_drain(&comm->engine, comm->timeout);
    if (abci_shm_failed(comm->shm)) /* a mismatch that only the peer could see is told here at the latest */
        status = abci_comm_report(comm, NULL);
    else if (status == ABC_OK)
        status = abci_mail_unreceived(&comm->engine);
    abci_shm_leave(comm->shm);
    abci_engine_close(&comm->engine);
    abci_chooser_close(comm->chooser);
    for (struct abc_request *q = comm->spare, *next; q; q = next) {
        next = q->next;
        abci_free(q);
    }
    abci_free(atomic_load_explicit(&comm->spare_first, memory_order_relaxed));
    abci_free(atomic_load_explicit(&comm->spare_counts, memory_order_relaxed));
    pthread_mutex_destroy(&comm->lock);
    abci_comm_retire(comm->shm);
    abci_free(comm);
    return status;
}

ABC_API int abc_comm_rank(const abc_comm *comm)
{
    return comm ? comm->rank : ABC_ERR_HANDLE;
}

ABC_API int abc_comm_size(const abc_comm *comm)
{
    return comm ? comm->nranks : ABC_ERR_HANDLE;
}
