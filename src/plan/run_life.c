/*
 * run_life.c - stage 3: an engine's memory, made with its communicator and given back at its end, when no peer reads it any more.
 * Neighbours: comm.c calls it, run.c drives in between.
 */
#include <string.h>

#include "plan/run_internal.h"

#ifdef ABCI_HOOKS
bool abci_offer_to_threads;
void (*abci_hook_measured)(struct abci_engine *engine);
#else
static const bool abci_offer_to_threads = false;
#endif

/* The ring lies beside the control block and lives as long as it, see abci_shm_free. */
static int open_events(struct abci_shm *shm)
{
    void *memory;
    int status = abci_segment_alloc(sizeof *shm->events, &memory, &shm->control->events_offset);
    if (status != ABC_OK)
        return status;
    shm->events = memory;
    abci_event_ring_init(shm->events);
    return ABC_OK;
}

int abci_engine_open(struct abci_engine *e, struct abci_shm *shm, uint32_t seed)
{
    size_t n = (size_t)shm->nranks;
    memset(e, 0, sizeof *e);
    e->shm = shm;
    e->claim = &shm->control->claim;
    e->next_sequence = 1;
    e->slots_free_to = ABCI_SLOTS;
    e->chain = seed;
    e->queue_end = &e->queue;
    e->callbacks_end = &e->callbacks;
    e->suspect = -1;
    e->offers = shm->nranks > 1;
    for (int r = 0; r < shm->nranks; r++) /* a thread of this process would write where the pages have become private */
        e->offers &= r == shm->rank || shm->peer[r].pidfd >= 0 || abci_offer_to_threads;
    e->pipeline = (int)abci_setting_int(ABCI_SET_PIPELINE);
    abci_tokens_open(e);
    shm->control->epoch = seed; /* `abcomm inspect` matches the ends of a communicator by it */
    int status = open_events(shm);
    if (status != ABC_OK)
        return status;
    e->instance = abci_alloc_aligned(sizeof *e->instance * ABCI_SLOTS, ABCI_LINE);
    e->blocked = abci_alloc(sizeof *e->blocked * n);
    e->sources = abci_alloc(sizeof *e->sources * (n + 1));
    e->located = abci_alloc(sizeof *e->located * (n + 1));
    if (e->instance && e->blocked && e->sources && e->located && abci_mail_room_open(e) == ABC_OK)
        return ABC_OK;
    abci_engine_close(e);
    return abci_error(ABC_ERR_MEMORY, "no memory for the engine of %d ranks", shm->nranks);
}

void abci_engine_close(struct abci_engine *e)
{
    abci_tokens_close(e);
    abci_regions_free(e);
    abci_joint_close(e);
    abci_tiny_close(e);
    abci_mail_room_close(e);
    abci_free(e->instance);
    abci_free(e->blocked);
    abci_free(e->sources);
    abci_free(e->located);
    abci_free(e->remote);
    e->instance = NULL;
    e->blocked = NULL;
    e->sources = NULL;
    e->located = NULL;
    e->remote = NULL;
}

int abci_engine_allow_remote(struct abci_engine *e)
{
    e->remote = abci_alloc((size_t)ABCI_REMOTE_TILE * (size_t)e->shm->nranks);
    return e->remote ? ABC_OK : abci_error(ABC_ERR_MEMORY, "no memory for tiles of %d ranks", e->shm->nranks);
}

int abci_engine_drain(struct abci_engine *e, double timeout)
{
    uint32_t last = e->next_sequence - 1;
    struct abci_waiting w = {0};
    int suspect = -1, result = ABC_OK;
    for (int r = 0; r < e->shm->nranks; r++) {
        uint16_t one = (uint16_t)r;
        while (r != e->shm->rank && e->shm->peer[r].control && !abci_shm_peer_done(&e->shm->peer[r], last) &&
               !abci_shm_failed(e->shm)) {
            int status = abci_shm_wait(e->shm, &w, &one, 1, timeout, true, &suspect);
            if (status == ABC_ERR_TIMEOUT) { /* whatever it reads from now on, it must not take for a result */
                abci_shm_fail(e->shm, status, r, NULL, NULL,
                              "rank %d has not finished operation #%u within %g s while rank %d destroyed the communicator", r,
                              last, timeout, e->shm->rank);
                result = status;
            }
            if (status == ABC_ERR_PEER)
                break; /* dead or gone: it reads nothing any more */
        }
        abci_shm_wait_over(e->shm, &w, &one, 1);
    }
    if (abci_shm_failed(e->shm))
        abci_shm_settle(e->shm); /* nobody reads the staging that goes back now */
    return result;
}
