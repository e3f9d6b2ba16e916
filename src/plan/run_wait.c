/*
 * run_wait.c - stage 3: nothing moves. How long that may last, what is said about it, and the words with which it ends. Before:
 * run.c's loop. Below: transport/wait.c spins, yields and sleeps, and finds the dead. Runs under the claim.
 */
#include <stdio.h>
#include <string.h>

#include "plan/run_internal.h"

static double current_timeout(const struct abci_engine *e)
{
    double t = e->queue ? e->queue->timeout : 0;
    for (int s = 0; s < ABCI_SLOTS; s++)
        if (e->active >> s & 1 && (t == 0 || e->instance[s].request->timeout < t))
            t = e->instance[s].request->timeout;
    double messages = e->messages ? abci_mail_timeout(e) : 0;
    if (messages > 0 && (t == 0 || messages < t))
        t = messages;
    return t > 0 ? t : e->shm->wait.timeout;
}

/* The oldest operation in flight, to name it. */
static void describe_oldest(const struct abci_engine *e, char *text, size_t capacity)
{
    uint32_t bits = abci_in_order(e);
    if (bits) {
        uint32_t sequence = e->next_sequence - ABCI_SLOTS + (uint32_t)__builtin_ctz(bits);
        abci_call_describe(&e->instance[sequence % ABCI_SLOTS].id, text, capacity);
        size_t n = strlen(text);
        snprintf(text + n, capacity - n, " #%u", sequence);
        return;
    }
    snprintf(text, capacity, "an operation that waits for a free slot");
    if (!e->queue)
        abci_mail_describe(e, text, capacity);
}

static void say_slow(struct abci_engine *e)
{
    struct abci_waiting *w = &e->waiting;
    if (w->said || w->since == 0 || e->nblocked == 0)
        return;
    double waited = abci_now() - w->since;
    if (waited < e->shm->wait.slow)
        return;
    char what[128];
    describe_oldest(e, what, sizeof what);
    int r = e->blocked[0];
    w->said = true;
    ABCI_LOG(ABCI_LOG_WARN, "plan", e->shm->rank, "waiting for rank %d (pid %u) in %s for %.0f s", r, e->shm->peer[r].pid, what,
             waited);
}

#define LONG_FROM (32u << 10) /* measured with 4 and 8 ranks on 2 CPUs: docs/performance.md */

/* Is much to be moved in the oldest operation? Then a peer is late for longer than a few polls last. */
static bool is_long(const struct abci_engine *e)
{
    uint32_t slot = (e->reads_over + 1) % ABCI_SLOTS;
    const struct abci_shape *shape = &e->instance[slot].shape;
    return e->active >> slot & 1 && shape->count * shape->element > LONG_FROM;
}

/* Crowded, a late peer may need this very CPU. */
int abci_wait_for_peers(struct abci_engine *e, bool may_sleep)
{
    if (e->waiting.spins < e->shm->wait.skipped && is_long(e))
        e->waiting.spins = e->shm->wait.skipped;
    int status = abci_shm_wait(e->shm, &e->waiting, e->blocked, e->nblocked, current_timeout(e), may_sleep, &e->suspect);
    if (ABCI_LIKELY(status == ABC_PENDING)) {
        if (e->waiting.since != 0 && !e->waiting.said)
            say_slow(e);
        return ABC_OK;
    }
    char what[128];
    int r = e->suspect;
    describe_oldest(e, what, sizeof what);
    if (status == ABC_ERR_PEER)
        abci_shm_fail(e->shm, status, r, NULL, NULL, "rank %d (pid %u) has died or left while rank %d waited for it in %s", r,
                      r >= 0 ? e->shm->peer[r].pid : 0, e->shm->rank, what);
    else if (r < 0) /* a message of the rank to itself */
        abci_shm_fail(e->shm, status, r, NULL, NULL, "nothing came within %g s while rank %d waited in %s", current_timeout(e),
                      e->shm->rank, what);
    else
        abci_shm_fail(e->shm, status, r, NULL, NULL,
                      "rank %d (pid %u) did not arrive within %g s while rank %d waited for it in %s", r,
                      r >= 0 ? e->shm->peer[r].pid : 0, current_timeout(e), e->shm->rank, what);
    return status;
}
