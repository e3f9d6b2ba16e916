/*
 * group.c - stage 0: groups of calls. Between abc_group_start and the end that belongs to it a thread's calls are checked and kept,
 * not started; at the end all are started, on however many communicators, and those that would have blocked are waited for
 * together. So sends and receives of one group cannot wait for each other, and one thread may act for several ranks.
 *
 * Short allreduces of one kind that follow each other become one operation (plan/run_joint.c). Which do must be the same on all
 * ranks, so it depends on nothing but what ranks compare: the order of a communicator's collectives, their types, operations and
 * counts, and the choice of algorithms. Element by element the sums are the same ones.
 *
 * A group belongs to its thread and is freed with it. Before: request.c, which makes the requests. After: the engine.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/api.h"

#define JOIN_MOST 2048 /* bytes of an allreduce that may join others: copying more costs more than a header */

struct abci_group {
    int depth, status; /* status: of the first call that failed, with its text */
    uint32_t calls, generation;
    char text[1024];
    struct abc_request *first, **end; /* by sibling, in the order of the calls */
    struct abc_request *waits;        /* of those, started: what the group waits for */
};

/* ---- A thread's group ---- */

static pthread_key_t at_exit;

static void forget(struct abci_group *g)
{
    abci_group_set(NULL);
    if (pthread_getspecific(at_exit) == g)
        pthread_setspecific(at_exit, NULL);
}

/* Nothing of the group has been started: blocking calls are over, what the caller holds a handle of ends with the status. Callbacks
 * hear it as they hear every end. */
static void drop_all(struct abci_group *g, int status)
{
    for (struct abc_request *q = g->first, *next; q; q = next) {
        next = q->sibling;
        if (q->callback)
            q->callback(q, status, q->callback_context);
        if (q->deferred) {
            abci_request_dispose(q);
            continue;
        }
        q->status = status;
        q->dropped = true;
        atomic_store_explicit(&q->state, ABCI_REQUEST_COMPLETE, memory_order_release); /* pairs with request.c, in_progress */
    }
}

static void thread_ends(void *group)
{
    struct abci_group *g = group;
    abci_group_set(NULL);
    if (g->generation == abci_fork_generation)
        drop_all(g, ABC_ERR_STATE);
    abci_free(g);
}

static void make_key(void)
{
    pthread_key_create(&at_exit, thread_ends);
}

/* The open group. What a forked child finds is its parent's: not looked at again. */
static struct abci_group *here(void)
{
    struct abci_group *g = abci_group_here();
    if (!g || ABCI_LIKELY(g->generation == abci_fork_generation))
        return g;
    forget(g);
    return NULL;
}

ABC_API int abc_group_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct abci_group *g = here();
    if (g) {
        g->depth++;
        return ABC_OK;
    }
    pthread_once(&once, make_key);
    g = abci_alloc(sizeof *g);
    if (!g || pthread_setspecific(at_exit, g) != 0) {
        abci_free(g);
        return abci_error(ABC_ERR_MEMORY, "no memory for a group");
    }
    g->depth = 1;
    g->generation = abci_fork_generation;
    g->end = &g->first;
    abci_group_set(g);
    return ABC_OK;
}

void abci_group_add(struct abci_group *g, struct abc_request *q)
{
    g->calls++;
    q->sibling = NULL;
    *g->end = q;
    g->end = &q->sibling;
    atomic_store_explicit(&q->state, ABCI_REQUEST_GROUPED, memory_order_relaxed);
}

int abci_group_refuse(struct abci_group *g, int status)
{
    g->calls++;
    if (g->status == ABC_OK) {
        g->status = status;
        snprintf(g->text, sizeof g->text, "call %u of the group: %s", g->calls, abci_error_text());
    }
    return status;
}

/* ---- Joining ---- */

static bool next_joins(const struct abc_request *first, const struct abc_request *q, uint64_t bytes)
{
    return q->may_join && q->reduction.type == first->reduction.type && q->reduction.op == first->reduction.op &&
           q->extent[ABCI_IN] <= JOIN_MOST && bytes + q->extent[ABCI_IN] <= ABCI_JOINT_BYTES;
}

/* How many of its communicator's collectives, from this one on, can be one; messages have no order with them. */
static uint32_t span(const struct abc_request *first, uint64_t *bytes)
{
    uint32_t n = 0;
    *bytes = 0;
    for (const struct abc_request *q = first; q && n < ABCI_JOINT_MEMBERS; q = q->sibling) {
        if (q->comm != first->comm || q->message)
            continue;
        if (!next_joins(first, q, *bytes))
            break;
        *bytes += q->extent[ABCI_IN];
        n++;
    }
    return n;
}

/* The operation that stands for them, without members yet. */
static int make_lead(const struct abc_request *first, uint64_t bytes, struct abc_request **out)
{
    struct abci_engine *engine = &first->comm->engine;
    abc_call call;
    char *in, *sum;
    struct abc_request *lead = abci_joint_take(engine, &in, &sum);
    if (!lead)
        return abci_error(ABC_ERR_MEMORY, "no memory to join calls of a group");
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = in;
    call.out = sum;
    call.type = first->reduction.type;
    call.op = first->reduction.op;
    call.count = bytes / abc_type_size(call.type);
    int status = abci_prepare(first->comm, &call, lead);
    if (status != ABC_OK) {
        abci_joint_give(engine, lead);
        return status;
    }
    lead->members = (struct abc_request **)(void *)(lead + 1);
    lead->nmembers = 0;
    lead->heap = true;
    *out = lead;
    return ABC_OK;
}

/* Take the members of a lead out of the list. */
static void gather(struct abc_request **at, uint32_t n, struct abc_request *lead)
{
    const struct abc_comm *comm = (*at)->comm;
    while (lead->nmembers < n) {
        struct abc_request *q = *at;
        if (q->comm != comm || q->message) {
            at = &q->sibling;
            continue;
        }
        lead->timeout = lead->nmembers == 0 || q->timeout < lead->timeout ? q->timeout : lead->timeout;
        lead->members[lead->nmembers++] = q;
        *at = q->sibling;
    }
}

/* Put a lead in the place of each span. On an error nothing has been started. */
static int join(struct abci_group *g)
{
    for (struct abc_request **at = &g->first; *at; at = &(*at)->sibling) {
        struct abc_request *lead = NULL;
        uint64_t bytes;
        uint32_t n = (*at)->message ? 0 : span(*at, &bytes);
        if (n < 2 || bytes == 0)
            continue;
        int status = make_lead(*at, bytes, &lead);
        if (status != ABC_OK)
            return status;
        if (!lead->may_join) { /* together they would get an algorithm that adds in another order */
            abci_joint_give(&lead->comm->engine, lead);
            continue;
        }
        gather(at, n, lead);
        lead->sibling = *at;
        *at = lead;
    }
    return ABC_OK;
}

/* Before anything is started the members can go back to where they were. */
static void part(struct abci_group *g)
{
    struct abc_request **at = &g->first;
    while (*at) {
        struct abc_request *q = *at, *after = q->sibling;
        for (uint32_t i = 0; q->members && i < q->nmembers; i++) {
            *at = q->members[i];
            at = &(*at)->sibling;
        }
        if (q->members) {
            *at = after;
            abci_joint_give(&q->comm->engine, q);
        } else {
            at = &q->sibling;
        }
    }
}

/* ---- The end ---- */

/* Append what the group waits for to the list whose end this is; the new end. */
static struct abc_request **will_wait(struct abc_request **end, struct abc_request *q)
{
    if (!q->deferred)
        return end;
    q->sibling = NULL;
    *end = q;
    return &q->sibling;
}

/* What has been started may be over, and with its waiter gone: only what the group itself waits for is touched again. */
static void start_all(struct abci_group *g)
{
    struct abc_request **end = &g->waits;
    for (struct abc_request *q = g->first, *next; q; q = next) {
        next = q->sibling;
        if (!q->members) {
            end = will_wait(end, q);
            abci_prepare_again(q); /* since its call a failure elsewhere may have made its pages private */
            abci_request_launch(q);
            continue;
        }
        for (uint32_t i = 0; i < q->nmembers; i++) {
            end = will_wait(end, q->members[i]);
            abci_request_keep(q->members[i]);
        }
        abci_engine_start_joint(&q->comm->engine, q);
    }
}

static bool is_over(const struct abc_request *q)
{
    return atomic_load_explicit(&q->state, memory_order_acquire) == ABCI_REQUEST_COMPLETE; /* pairs with run.c, complete */
}

#define QUIET 200e-6 /* seconds in which nothing moved on any communicator, before the first nap */

/* Nothing has moved for so long: a short nap, for there is no one doorbell for several communicators. */
static void nap(double quiet)
{
    double length = quiet < 16e-3 ? quiet / 16 : 1e-3;
    struct timespec t = {.tv_nsec = (long)((length < 50e-6 || quiet == HUGE_VAL ? 50e-6 : length) * 1e9)};
    nanosleep(&t, NULL);
}

/* One communicator: whoever waits for one operation advances all. Several: by turns, for peers may need any of them first. */
static void wait_all(const struct abci_group *g)
{
    bool several = false, open = true;
    for (const struct abc_request *q = g->waits; q; q = q->sibling)
        several |= q->comm != g->waits->comm;
    for (struct abc_request *q = g->waits; q && !several; q = q->sibling)
        abci_engine_wait(&q->comm->engine, q);
    while (several && open) {
        double quiet = HUGE_VAL;
        open = false;
        for (struct abc_request *q = g->waits; q; q = q->sibling)
            if (!is_over(q))
                open |= abci_engine_test(&q->comm->engine, q, &quiet) == ABC_PENDING;
        if (open && quiet > QUIET)
            nap(quiet);
    }
}

/* The first failure, with its text. */
static int collect(struct abci_group *g)
{
    int first = ABC_OK;
    for (struct abc_request *q = g->waits, *next; q; q = next) {
        next = q->sibling;
        int status = abci_report(q, q->status);
        if (status != ABC_OK && first == ABC_OK) {
            first = status;
            snprintf(g->text, sizeof g->text, "%s", abci_error_text());
        }
        abci_request_dispose(q);
    }
    return first == ABC_OK ? ABC_OK : abci_error(first, "%s", g->text);
}

static int finish(struct abci_group *g)
{
    int status = g->status;
    if (status == ABC_OK) {
        status = join(g);
        if (status != ABC_OK) {
            snprintf(g->text, sizeof g->text, "%s", abci_error_text());
            part(g);
        }
    }
    if (status != ABC_OK) {
        drop_all(g, status);
        return abci_error(status, "nothing of the group was started: %s", g->text);
    }
    start_all(g);
    wait_all(g);
    return collect(g);
}

ABC_API int abc_group_end(void)
{
    struct abci_group *g = here();
    if (!g)
        return abci_error(ABC_ERR_STATE, "there is no group to end; abc_group_start begins one");
    if (--g->depth > 0)
        return ABC_OK;
    forget(g);
    int status = finish(g);
    abci_free(g);
    return status;
}

ABC_API int abc_group_drop(void)
{
    struct abci_group *g = here();
    if (!g)
        return abci_error(ABC_ERR_STATE, "there is no group to drop; abc_group_start begins one");
    if (g->status == ABC_OK) {
        g->status = ABC_ERR_STATE;
        snprintf(g->text, sizeof g->text, "a group inside it was dropped");
    }
    if (--g->depth > 0)
        return ABC_OK;
    forget(g);
    drop_all(g, ABC_ERR_STATE);
    abci_free(g);
    return ABC_OK;
}
