/*
 * request.c - stage 0: blocking calls, started and persistent requests. Only checks and hands on: prepare.c fills the request, the
 * engine runs it. A blocking call keeps its request on the stack.
 */
#include <string.h>

#include "api/api.h"

/* The status with its text for the calling thread. */
int abci_report(const struct abc_request *q, int status)
{
    if (ABCI_LIKELY(status == ABC_OK))
        return status;
    if (q->message && q->mail.refused)
        return abci_message_refused(q);
    if (q->dropped)
        return abci_error(status, "the operation was never started, because its group failed or was dropped");
    return abci_comm_report(q->comm, &q->id) != ABC_OK ? status : abci_error(status, "the operation ended without a record");
}

/* preserve: keep the in-place input so that an error can give it back. */
static int back_up(struct abc_request *q, const abc_call *call)
{
    bool own_input = q->unscaled && q->unscaled != q->in; /* `in` is scratch of ours, the caller's input stays as it is */
    if (!call->preserve || !q->in_place || own_input)
        return ABC_OK;
    uint64_t n = q->extent[ABCI_OUT];
    if (abci_part_by_rank(call->collective) && q->shape.collective != ABC_ALLTOALL)
        return ABC_OK; /* only blocks of others are written there; the own input stays, or is the caller's single block */
    q->backup = abci_alloc(n ? n : 1);
    q->backup_bytes = n;
    if (!q->backup)
        return abci_error(ABC_ERR_MEMORY, "no memory to preserve %llu bytes", (unsigned long long)n);
    return ABC_OK;
}

/* What an operation needs of its input before it starts. */
void abci_request_keep(struct abc_request *q)
{
    if (q->backup)
        memcpy(q->backup, q->out, q->backup_bytes);
    abci_scale(q);
    if (ABCI_UNLIKELY(q->counts && q->counts->first)) { /* the exchange of counts; the operation itself is queued behind it */
        abci_counts_pack(&q->comm->engine, q);
        abci_engine_start(&q->comm->engine, q->counts->first);
    }
}

/* Go on with a call whose header abci_engine_run_tiny has stored; the claim is held. */
static int run_late(abc_comm *comm, const abc_call *call)
{
    struct abc_request q;
    q.heap = q.persistent = false;
    int status = abci_prepare(comm, call, &q); /* it is the call that was prepared before: only memory for counts can be missing */
    if (ABCI_UNLIKELY(status != ABC_OK)) {
        abci_engine_drop_late(&comm->engine, status);
        return status;
    }
    struct abci_counts *counts = q.counts;
    if (ABCI_LIKELY(!counts || !counts->first))
        status = abci_engine_run_late(&comm->engine, &q);
    else {
        abci_counts_pack(&comm->engine, &q);
        abci_engine_run_late(&comm->engine, counts->first); /* its header it was */
        status = abci_engine_run(&comm->engine, &q);
    }
    status = abci_report(&q, status);
    abci_counts_give(comm, counts);
    return status;
}

/* A call that may be short, with no option set: the engine may know it already. */
static bool maybe_tiny(const abc_comm *comm, const abc_call *c)
{
    return comm && c && c->size == sizeof *c && c->count <= ABCI_TINY_MAX && !c->algorithm && !c->callback && !c->preserve &&
           c->timeout == 0 && c->tag == 0 && !c->codec && !c->stream && c->priority == 0 &&
           comm->fork_generation == abci_fork_generation;
}

static int defer(struct abci_group *group, abc_comm *comm, const abc_call *call);

ABC_API int abc_run(abc_comm *comm, const abc_call *call)
{
    struct abc_request q;
    struct abci_group *group = abci_group_here();
    if (ABCI_UNLIKELY(group != NULL))
        return defer(group, comm, call);
    if (comm && call && (call->collective == ABC_SEND || call->collective == ABC_RECV))
        return abci_message_run(comm, call);
    if (maybe_tiny(comm, call)) {
        int tiny = abci_engine_run_tiny(&comm->engine, call);
        if (ABCI_LIKELY(tiny == ABC_OK || tiny == ABCI_LATE))
            return tiny == ABC_OK ? tiny : run_late(comm, call);
    }
    q.heap = q.persistent = false;
    int status = abci_prepare(comm, call, &q);
    if (ABCI_UNLIKELY(status != ABC_OK))
        return status;
    status = back_up(&q, call);
    if (status == ABC_OK) {
        abci_request_keep(&q);
        status = abci_report(&q, abci_engine_run(&comm->engine, &q));
    }
    if (ABCI_UNLIKELY(q.backup || q.products || q.counts)) {
        abci_counts_give(comm, q.counts);
        abci_free(q.backup);
        abci_free(q.products);
    }
    return status;
}

/*
 * A spare request still holds what it was prepared for. When this call is a short, plain one of the same kind only the
 * buffers differ, and neither the checks nor the choice are due again: both depend on the kind alone, and on buffers that are
 * looked at here.
 */
static bool reuse(const abc_comm *comm, const abc_call *c, struct abc_request *q)
{
    const struct abci_room *room = &q->room;
    if (!maybe_tiny(comm, c) || !q->run || !q->plain || q->reduction.user || q->shape.vector || q->id.collective != c->collective ||
        q->id.count != c->count || q->reduction.type != c->type || q->reduction.op != c->op || q->id.root != (uint32_t)c->root)
        return false;
    if (room->in > ABCI_EAGER || room->out > ABCI_EAGER || c->in == ABC_IN_PLACE || c->out == ABC_IN_PLACE ||
        (room->in && !c->in) || (room->out && !c->out) || !abci_room_fits(room, c->in, c->out))
        return false;
    q->in = c->in;
    q->out = c->out;
    q->in_place = room->in > 0 && room->out > 0 && (uintptr_t)c->out - (uintptr_t)c->in == room->apart;
    q->id.in_place = q->in_place;
    return true;
}

/* Inline in the hot path of a start only. */
static inline __attribute__((always_inline)) int create(abc_comm *comm, const abc_call *call, bool persistent,
                                                        abc_request **request)
{
    if (!request)
        return abci_error(ABC_ERR_ARGUMENT, "the place for the request is null");
    int status = abci_comm_usable(comm);
    if (status != ABC_OK)
        return status;
    struct abc_request *q = abci_request_take(comm);
    if (!q)
        return abci_error(ABC_ERR_MEMORY, "no memory for a request");
    if (!reuse(comm, call, q)) {
        status = abci_prepare(comm, call, q);
        if (status == ABC_OK)
            status = back_up(q, call);
    }
    if (status != ABC_OK) {
        abci_request_give(comm, q);
        return status;
    }
    q->heap = true;
    q->persistent = persistent;
    q->deferred = q->dropped = false;
    atomic_store_explicit(&q->state, ABCI_REQUEST_IDLE, memory_order_relaxed);
    atomic_fetch_add_explicit(&comm->live, 1, memory_order_relaxed);
    *request = q;
    return ABC_OK;
}

static __attribute__((noinline)) int create_apart(abc_comm *comm, const abc_call *call, bool persistent, abc_request **request)
{
    return create(comm, call, persistent, request);
}

/* A call that starts, inside a group: checked now, started at the end. */
static __attribute__((noinline)) int start_later(struct abci_group *group, abc_comm *comm, const abc_call *call,
                                                 abc_request **request)
{
    int status = create_apart(comm, call, false, request);
    if (status != ABC_OK)
        return abci_group_refuse(group, status);
    abci_group_add(group, *request);
    return ABC_OK;
}

/* The same of a blocking call, for which the group waits. */
static int defer(struct abci_group *group, abc_comm *comm, const abc_call *call)
{
    struct abc_request *q;
    int status = start_later(group, comm, call, &q);
    if (status == ABC_OK)
        q->deferred = true;
    return status;
}

/* It belongs to whoever waits for it from here on. */
void abci_request_launch(struct abc_request *q)
{
    abci_request_keep(q);
    abci_engine_start(&q->comm->engine, q);
}

ABC_API int abc_start(abc_comm *comm, const abc_call *call, abc_request **request)
{
    struct abci_group *group = abci_group_here();
    if (ABCI_UNLIKELY(group != NULL))
        return start_later(group, comm, call, request);
    int status = create(comm, call, false, request);
    if (status == ABC_OK)
        abci_request_launch(*request);
    return status;
}

ABC_API int abc_request_create(abc_comm *comm, const abc_call *call, abc_request **request)
{
    return create_apart(comm, call, true, request);
}

static int usable(const abc_request *q)
{
    if (!q)
        return abci_error(ABC_ERR_HANDLE, "the request is null");
    if (atomic_load_explicit(&q->state, memory_order_relaxed) == ABCI_REQUEST_FREED)
        return abci_error(ABC_ERR_HANDLE, "the request was freed");
    return abci_comm_usable(q->comm);
}

static bool in_progress(const abc_request *q)
{
    int state = atomic_load_explicit(&q->state, memory_order_acquire); /* pairs with run.c, complete */
    return state == ABCI_REQUEST_STARTED || state == ABCI_REQUEST_CALLBACK || state == ABCI_REQUEST_GROUPED;
}

static int restartable(const abc_request *q)
{
    int status = usable(q);
    if (status != ABC_OK)
        return status;
    if (!q->persistent)
        return abci_error(ABC_ERR_STATE, "only requests of abc_request_create can be started again");
    if (in_progress(q))
        return abci_error(ABC_ERR_STATE, "the request is in progress; wait for it before starting it again");
    return ABC_OK;
}

ABC_API int abc_restart(abc_request *q)
{
    struct abci_group *group = abci_group_here();
    int status = restartable(q);
    if (ABCI_UNLIKELY(group != NULL) && status != ABC_OK)
        return abci_group_refuse(group, status);
    if (status != ABC_OK)
        return status;
    q->dropped = false;
    abci_prepare_again(q);
    if (ABCI_UNLIKELY(group != NULL))
        abci_group_add(group, q);
    else
        abci_request_launch(q);
    return ABC_OK;
}

/* Is there something to test or to wait for? */
static int was_started(const abc_request *q)
{
    int state = atomic_load_explicit(&q->state, memory_order_acquire);
    if (ABCI_LIKELY(state != ABCI_REQUEST_IDLE && state != ABCI_REQUEST_GROUPED))
        return ABC_OK;
    return abci_error(ABC_ERR_STATE, state == ABCI_REQUEST_IDLE
                                         ? "the request has not been started"
                                         : "the request starts when its group ends; call abc_group_end first");
}

ABC_API int abc_test(abc_request *q)
{
    int status = usable(q);
    if (status != ABC_OK)
        return status;
    status = was_started(q);
    if (status != ABC_OK)
        return status;
    struct abci_group *group = abci_group_pause();
    status = abci_engine_test(&q->comm->engine, q, NULL);
    abci_group_resume(group);
    return status == ABC_PENDING ? status : abci_report(q, status);
}

/* Back to the spare ones; the last touch of the communicator lets a destroy in another thread go on. */
void abci_request_dispose(struct abc_request *q)
{
    abc_comm *comm = q->comm;
    abci_request_give(comm, q);
    atomic_fetch_sub_explicit(&comm->live, 1, memory_order_release); /* pairs with abc_comm_destroy */
}

ABC_API int abc_wait(abc_request **request)
{
    if (!request)
        return abci_error(ABC_ERR_ARGUMENT, "the place of the request is null");
    struct abc_request *q = *request;
    int status = usable(q);
    if (status != ABC_OK)
        return status;
    status = was_started(q);
    if (status != ABC_OK)
        return status;
    struct abci_group *group = abci_group_pause();
    status = abci_report(q, abci_engine_wait(&q->comm->engine, q));
    abci_group_resume(group);
    if (!q->persistent) {
        *request = NULL;
        abci_request_dispose(q);
    }
    return status;
}

ABC_API int abc_request_free(abc_request *q)
{
    if (!q)
        return ABC_OK;
    int status = usable(q);
    if (status != ABC_OK)
        return status;
    if (in_progress(q))
        return abci_error(ABC_ERR_STATE, "the request is in progress; wait for it before freeing it");
    abci_request_dispose(q);
    return ABC_OK;
}
