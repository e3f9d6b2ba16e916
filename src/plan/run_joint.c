/*
 * run_joint.c - stage 3: several short operations of one kind as one. Their inputs are put one behind another into one buffer, that
 * is one operation with one header, and its result is cut up again. What may be joined so that no bit changes, and that all ranks
 * do the same, is for the caller (api/group.c) to see. Packing: the starting thread; cutting up: the claim's holder. Cost: two
 * copies of the bytes.
 */
#include <string.h>

#include "plan/run_internal.h"

#define SPARE 8 /* leads that are kept: 0.5 MiB at most */

/* What a lead is, in one piece of memory. */
struct joint {
    struct abc_request request;
    struct abc_request *members[ABCI_JOINT_MEMBERS];
    _Alignas(ABCI_LINE) char in[ABCI_JOINT_BYTES];
    char out[ABCI_JOINT_BYTES];
};

struct abc_request *abci_joint_take(struct abci_engine *e, char **in, char **out)
{
    /* All of them, so that the list cannot change under the first one; acquire: pairs with abci_joint_give */
    struct abc_request *first = atomic_exchange_explicit(&e->leads, NULL, memory_order_acquire);
    struct joint *j = (struct joint *)first;
    if (first)
        atomic_fetch_sub_explicit(&e->nleads, 1, memory_order_relaxed);
    for (struct abc_request *q = first ? first->next : NULL, *next; q; q = next) {
        next = q->next;
        atomic_fetch_sub_explicit(&e->nleads, 1, memory_order_relaxed);
        abci_joint_give(e, q);
    }
    if (!j)
        j = abci_alloc_aligned(sizeof *j, ABCI_LINE);
    if (!j)
        return NULL;
    *in = j->in;
    *out = j->out;
    return &j->request;
}

void abci_joint_give(struct abci_engine *e, struct abc_request *q)
{
    if (atomic_fetch_add_explicit(&e->nleads, 1, memory_order_relaxed) >= SPARE) {
        atomic_fetch_sub_explicit(&e->nleads, 1, memory_order_relaxed);
        abci_free(q);
        return;
    }
    q->next = atomic_load_explicit(&e->leads, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&e->leads, &q->next, q, memory_order_release, memory_order_relaxed))
        ; /* release: pairs with abci_joint_take */
}

void abci_joint_close(struct abci_engine *e)
{
    for (struct abc_request *q = atomic_load(&e->leads), *next; q; q = next) {
        next = q->next;
        abci_free(q);
    }
    atomic_store(&e->leads, NULL);
}

void abci_engine_start_joint(struct abci_engine *e, struct abc_request *lead)
{
    char *to = (char *)(uintptr_t)lead->in; /* our own room */
    for (uint32_t i = 0; i < lead->nmembers; i++) {
        struct abc_request *m = lead->members[i];
        memcpy(to, m->in, m->extent[ABCI_IN]);
        to += m->extent[ABCI_IN];
        m->joined = true;
        m->counted = m->pairs = false;
        m->status = ABC_PENDING;
        atomic_store_explicit(&m->state, ABCI_REQUEST_STARTED, memory_order_relaxed);
    }
    abci_engine_start(e, lead);
}

void abci_joint_over(struct abci_engine *e, struct abc_request *lead, int status)
{
    const char *from = lead->out;
    for (uint32_t i = 0; i < lead->nmembers; i++) {
        struct abc_request *m = lead->members[i];
        uint64_t bytes = m->extent[ABCI_OUT];
        if (status == ABC_OK)
            memcpy(m->out, from, bytes);
        from += bytes;
        abci_complete(e, m, status, true); /* it may be gone from here on */
    }
    abci_joint_give(e, lead);
}
