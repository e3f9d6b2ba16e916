/*
 * run_mail.c - stage 3: messages between two ranks. They have no sequence and need no order with collectives: each pass over an
 * engine looks at them, too. Here are their queues, their end and their failure; run_send.c and run_recv.c are the two ends of a
 * pair. Under the claim. An idle mailroom costs one load a pass.
 */
#include <stdio.h>
#include <string.h>

#include "plan/run_mail.h"

int abci_mail_room_open(struct abci_engine *e)
{
    size_t n = (size_t)e->shm->nranks;
    struct abci_mailroom *m = e->mail = abci_alloc(sizeof *m);
    if (!m)
        return ABC_ERR_MEMORY;
    m->out = abci_alloc(sizeof *m->out * n);
    m->in = abci_alloc(sizeof *m->in * n);
    m->only_remote = strcmp(abci_setting_string(ABCI_SET_PVR), "on") == 0;
    m->fresh_end = &m->fresh;
    m->posted_end = &m->posted;
    return m->out && m->in ? ABC_OK : ABC_ERR_MEMORY;
}

void abci_mail_room_close(struct abci_engine *e)
{
    struct abci_mailroom *m = e->mail;
    for (int r = 0; m && r < e->shm->nranks; r++) {
        abci_free(m->out ? m->out[r] : NULL);
        abci_free(m->in ? m->in[r] : NULL);
    }
    if (m) {
        abci_free(m->out);
        abci_free(m->in);
    }
    abci_free(m);
    e->mail = NULL;
}

void abci_mail_post(struct abci_engine *e, struct abc_request *q)
{
    struct abci_mailroom *m = e->mail;
    q->mail.number = q->mail.moved = 0;
    q->mail.refused = false;
    abci_mail_append(&m->fresh_end, q);
    e->messages++;
    m->hasty += q->timeout < e->shm->wait.timeout;
}

void abci_mail_complete(struct abci_engine *e, struct abc_request *q, int status)
{
    struct abci_mailroom *m = e->mail;
    e->messages--;
    m->hasty -= q->timeout < e->shm->wait.timeout;
    q->first_sequence = (uint32_t)q->mail.number;
    if (status == ABC_OK && q->mail.received)
        *q->mail.received = (abc_received){
            .source = q->mail.source, .tag = q->mail.got_tag, .count = q->mail.got_count, .type = (abc_type)q->mail.got_type};
    abci_complete(e, q, status, q == m->own);
}

/* Peers whose bit is set in a map, by `advance`. */
static int advance_each(struct abci_engine *e, const uint64_t *map, int (*advance)(struct abci_engine *, int))
{
    int moved = 0;
    for (int w = 0; w * 64 < e->shm->nranks; w++)
        for (uint64_t left = map[w]; left; left &= left - 1) {
            int r = advance(e, w * 64 + __builtin_ctzll(left));
            if (r < 0)
                return r;
            moved |= r;
        }
    return moved;
}

int abci_mail_pass(struct abci_engine *e, const struct abc_request *own)
{
    struct abci_mailroom *m = e->mail;
    int moved = 0, r;
    m->own = own;
    while (m->fresh) {
        struct abc_request *q = m->fresh, *next = q->next;
        r = abci_mail_is_send(q) ? abci_send_first(e, q) : abci_receive_first(e, q);
        if (r < 0) {
            q->next = next; /* not placed: it fails with the rest */
            return r;
        }
        if (r == 0)
            abci_note(e, q, ABCI_EVENT_START, (uint32_t)q->mail.number, ABC_PENDING);
        moved |= r;
        m->fresh = next;
        if (!next)
            m->fresh_end = &m->fresh;
    }
    r = advance_each(e, m->sending, abci_send_advance);
    if (r >= 0) {
        moved |= r;
        r = advance_each(e, m->receiving, abci_receive_advance);
    }
    if (r >= 0 && m->any) {
        moved |= r;
        r = abci_receive_any(e);
    }
    return r < 0 ? r : moved | r;
}

/* ---- The end of the communicator, and what is said while waiting ---- */

static void fail_list(struct abci_engine *e, struct abc_request **head, struct abc_request ***end, int status)
{
    while (*head)
        abci_mail_complete(e, abci_mail_pop(head, end), status);
}

void abci_mail_fail(struct abci_engine *e, int status)
{
    struct abci_mailroom *m = e->mail;
    for (int r = 0; r < e->shm->nranks; r++) {
        struct abci_outbound *out = m->out[r];
        struct abci_inbound *in = m->in[r];
        for (uint64_t left = out ? out->waiting : 0; left; left &= left - 1)
            abci_mail_complete(e, out->in_slot[__builtin_ctzll(left)], status);
        if (out) {
            out->waiting = 0;
            out->tiled = NULL;
            fail_list(e, &out->pending, &out->pending_end, status);
        }
        if (in) {
            fail_list(e, &in->pulls, &in->pulls_end, status);
            in->posted = 0;
        }
    }
    fail_list(e, &m->posted, &m->posted_end, status);
    fail_list(e, &m->fresh, &m->fresh_end, status);
    m->any = 0;
    memset(m->sending, 0, sizeof m->sending);
    memset(m->receiving, 0, sizeof m->receiving);
}

/* Call `see` for each open message, the longest waiting first in each queue, until it returns true. */
static void each_open(const struct abci_engine *e, bool (*see)(const struct abc_request *, void *), void *context)
{
    const struct abci_mailroom *m = e->mail;
    const struct abc_request *q;
    for (q = m->posted; q; q = q->next)
        if (see(q, context))
            return;
    for (int r = 0; r < e->shm->nranks; r++) {
        const struct abci_outbound *out = m->out[r];
        for (q = m->in[r] ? m->in[r]->pulls : NULL; q; q = q->next)
            if (see(q, context))
                return;
        for (uint64_t left = out ? out->waiting : 0; left; left &= left - 1)
            if (see(out->in_slot[__builtin_ctzll(left)], context))
                return;
        for (q = out ? out->pending : NULL; q; q = q->next)
            if (see(q, context))
                return;
    }
}

static bool keep_shortest(const struct abc_request *q, void *context)
{
    double *shortest = context;
    if (*shortest == 0 || q->timeout < *shortest)
        *shortest = q->timeout;
    return false;
}

double abci_mail_timeout(const struct abci_engine *e)
{
    double shortest = e->messages ? e->shm->wait.timeout : 0;
    if (e->mail->hasty)
        each_open(e, keep_shortest, &shortest);
    return shortest;
}

static bool keep_first(const struct abc_request *q, void *context)
{
    *(const struct abc_request **)context = q;
    return true;
}

void abci_mail_describe(const struct abci_engine *e, char *text, size_t capacity)
{
    const struct abc_request *q = e->mail->fresh;
    each_open(e, keep_first, &q);
    if (q)
        abci_call_describe(&q->id, text, capacity);
}

/* Messages to this rank that nobody has asked for, and own ones to peers that have left. */
int abci_mail_unreceived(struct abci_engine *e)
{
    struct abci_mailroom *m = e->mail;
    for (int r = 0; r < e->shm->nranks; r++) {
        struct abci_inbound *in = m->in[r];
        int status;
        struct abci_mailbox *box = in && in->box ? in->box : abci_mail_find(e->shm, r, &status);
        uint8_t slot = in && in->nheld ? in->held[0] : in ? in->next : 0;
        uint64_t next = in ? in->number : 1;
        if (!box || (!(in && in->nheld) && !abci_mail_arrived(&box->slot[slot], next)))
            continue;
        const struct abci_mail_slot *s = &box->slot[slot];
        return abci_error(ABC_ERR_MISMATCH,
                          "rank %d destroyed the communicator and had not received a message of %llu %s from rank %d with tag %d",
                          e->shm->rank, (unsigned long long)s->count, abc_type_name((abc_type)s->type), r, (int)s->tag);
    }
    return ABC_OK;
}
