/*
 * fail.c - stage 4: the one door through which a communicator ends. The first caller writes the record in rank 0's control block,
 * which outlives rank 0 in everybody's mapping, then rings all ranks. Any thread; never blocks longer than a second.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "transport/shm.h"

void abci_call_describe(const struct abci_call_id *c, char *text, size_t capacity)
{
    const char *name = abc_collective_name((abc_collective)c->collective);
    const char *type = abc_type_name((abc_type)c->type);
    unsigned long long n = (unsigned long long)c->count;
    char peer[16] = "any", tag[16] = "any"; /* of a message: its tag stands in `algorithm` */
    if (c->collective == ABC_SEND || c->collective == ABC_RECV) {
        if ((int32_t)c->root >= 0)
            snprintf(peer, sizeof peer, "%d", (int32_t)c->root);
        if ((int32_t)c->algorithm >= 0)
            snprintf(tag, sizeof tag, "%d", (int32_t)c->algorithm);
        const char *way = c->collective == ABC_SEND ? "to" : "from";
        snprintf(text, capacity, "%s(count %llu, %s, %s %s, tag %s)", name, n, type, way, peer, tag);
        return;
    }
    if (abci_is(ABCI_PAIRS, c->collective)) { /* no count that ranks could compare */
        if (abci_is(ABCI_ROOTED, c->collective))
            snprintf(text, capacity, "%s(%s, root %u)", name, type, c->root);
        else
            snprintf(text, capacity, "%s(%s)", name, type);
        return;
    }
    switch (c->collective) {
    case ABC_BARRIER:
        snprintf(text, capacity, "%s()", name);
        break;
    case ABC_BROADCAST:
    case ABC_GATHER:
    case ABC_SCATTER:
        snprintf(text, capacity, "%s(count %llu, %s, root %u)", name, n, type, c->root);
        break;
    case ABC_REDUCE:
        snprintf(text, capacity, "%s(count %llu, %s, %s, root %u)", name, n, type, abc_op_name((abc_op)c->op), c->root);
        break;
    case ABC_ALLTOALL:
    case ABC_ALLGATHER:
    case ABC_ALLGATHERV:
        snprintf(text, capacity, "%s(count %llu, %s)", name, n, type);
        break;
    default:
        snprintf(text, capacity, "%s(count %llu, %s, %s)", name, n, type, abc_op_name((abc_op)c->op));
    }
}

void abci_shm_fail(struct abci_shm *shm, int status, int culprit, const struct abci_call_id *mine,
                   const struct abci_call_id *theirs, const char *format, ...)
{
    struct abci_failure *f = shm->failure;
    uint32_t none = 0;
    /* Only claims the record, the store of 2 publishes it. acq_rel pairs with the same exchange of a caller who comes second. */
    if (!f || !atomic_compare_exchange_strong_explicit(&f->state, &none, 1, memory_order_acq_rel, memory_order_acquire))
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    f->status = status;
    f->reporter = shm->rank;
    f->culprit = culprit;
    f->has_calls = mine && theirs;
    if (f->has_calls) {
        f->mine = *mine;
        f->theirs = *theirs;
    }
    atomic_store_explicit(&f->state, 2, memory_order_release); /* pairs with abci_shm_failed and abci_shm_failure */
    ABCI_LOG(ABCI_LOG_INFO, "transport", shm->rank, "communicator ends: %s", f->text);
    for (int r = 0; r < shm->nranks && !abci_mutated("c7_no_ring_all"); r++)
        if (shm->peer[r].control)
            abci_shm_ring(shm->peer[r].control);
}

void abci_shm_settle(struct abci_shm *shm)
{
    double end = abci_now() + shm->wait.timeout;
    for (int r = 0; r < shm->nranks && !abci_mutated("c7_reader_inside"); r++) {
        struct abci_control *c = shm->peer[r].control;
        if (r == shm->rank || !c || shm->peer[r].pidfd >= 0)
            continue;
        /* An addition, not a load: who claims later has it before its own look at the record, which then shows the failure. acq_rel
         * pairs with try_claim and, for the reads of whoever was inside, with release_claim and fail_all. */
        while (atomic_fetch_add_explicit(&c->claim, 0, memory_order_acq_rel) == ABCI_CLAIM_HELD && abci_now() < end)
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

int abci_shm_failure(const struct abci_shm *shm, struct abci_failure *copy)
{
    const struct abci_failure *f = shm->failure;
    double end = abci_now() + 1;
    uint32_t state;
    while ((state = atomic_load_explicit(&f->state, memory_order_acquire)) == 1 && abci_now() < end)
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    memset(copy, 0, sizeof *copy);
    if (state == 0)
        return ABC_OK;
    if (state == 1) { /* the rank that began the record died while writing it */
        copy->status = ABC_ERR_PEER;
        copy->reporter = copy->culprit = -1;
        snprintf(copy->text, sizeof copy->text, "a rank died while it reported a failure");
        return copy->status;
    }
    copy->status = f->status;
    copy->reporter = f->reporter;
    copy->culprit = f->culprit;
    copy->has_calls = f->has_calls;
    copy->mine = f->mine;
    copy->theirs = f->theirs;
    memcpy(copy->text, f->text, sizeof copy->text);
    copy->text[sizeof copy->text - 1] = 0;
    return copy->status;
}
