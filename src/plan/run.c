/*
 * run.c - stage 3: who drives, and in which order. One thread at a time holds an engine's claim and drives all of its operations;
 * others hand their requests over without blocking and sleep until theirs is complete or the claim is free. A blocking call on an
 * idle engine runs inline: no queue, allocation, system call or other thread. Neighbours: api/ above, run_issue.c and run_step.c
 * below.
 */
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "plan/run_internal.h"

#ifdef ABCI_HOOKS
void (*abci_hook)(int rank, uint32_t sequence, int step);
#endif

/* ---- Local threads ---- */

static bool try_claim(struct abci_engine *e)
{
    uint32_t free = ABCI_CLAIM_FREE;
    /* acquire: pairs with release_claim; the engine's plain fields belong to the holder. And with abci_shm_settle */
    return atomic_load_explicit(e->claim, memory_order_relaxed) == ABCI_CLAIM_FREE &&
           atomic_compare_exchange_strong_explicit(e->claim, &free, ABCI_CLAIM_HELD, memory_order_seq_cst, memory_order_relaxed);
}

static void wake_local(struct abci_engine *e)
{
    if (ABCI_LIKELY(atomic_load_explicit(&e->sleepers, memory_order_seq_cst) == 0))
        return;
    atomic_fetch_add_explicit(&e->event, 1, memory_order_seq_cst);
    syscall(SYS_futex, &e->event, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

/* The same after a store that a sleeper looks at: the store comes before the load of sleepers. */
static void wake_waiter(struct abci_engine *e)
{
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the sleeper's additions and loads in sleep_local */
    wake_local(e);
}

static void futex_sleep(_Atomic uint32_t *word, uint32_t value)
{
    struct timespec slice = {.tv_nsec = 100000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &slice, NULL, 0);
}

static int state_of(struct abc_request *q)
{
    return atomic_load_explicit(&q->state, memory_order_acquire); /* pairs with complete() */
}

static void complete(struct abci_engine *e, struct abc_request *q, int status)
{
    e->pairing -= q->pairs;
    q->status = status;
    if (!q->joined)
        abci_note(e, q, status == ABC_OK ? ABCI_EVENT_END : ABCI_EVENT_ERROR, q->first_sequence, status);
    if (ABCI_UNLIKELY(q->members != NULL)) {
        if (q->counted)
            atomic_fetch_sub_explicit(&e->outstanding, 1, memory_order_relaxed);
        abci_joint_over(e, q, status);
        return;
    }
    if (status != ABC_OK && q->backup)
        memcpy(q->out, q->backup, q->backup_bytes);
    if (q->callback && abci_mutated("c4_callback_under_claim")) {
        q->callback(q, status, q->callback_context);
    } else if (q->callback) {
        q->next = NULL;
        *e->callbacks_end = q;
        e->callbacks_end = &q->next;
        atomic_store_explicit(&q->state, ABCI_REQUEST_CALLBACK, memory_order_release); /* pairs with state_of */
        return;
    }
    if (q->counted)
        atomic_fetch_sub_explicit(&e->outstanding, 1, memory_order_relaxed);
    /* pairs with state_of and the API's loads: the waiter may free q from here on */
    atomic_store_explicit(&q->state, ABCI_REQUEST_COMPLETE, memory_order_release);
}

void abci_complete(struct abci_engine *e, struct abc_request *q, int status, bool own)
{
    complete(e, q, status);
    if (!own)
        wake_waiter(e);
}

static void wake_progress(struct abci_engine *e)
{
    if (ABCI_LIKELY(atomic_load_explicit(&e->idle, memory_order_seq_cst) == 0))
        return;
    atomic_store_explicit(&e->idle, 0, memory_order_seq_cst);
    syscall(SYS_futex, &e->idle, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void free_claim(struct abci_engine *e)
{
    atomic_store_explicit(e->claim, ABCI_CLAIM_FREE, memory_order_release); /* pairs with try_claim */
    if (ABCI_UNLIKELY(!e->shm->barrier_by_kernel))
        atomic_thread_fence(memory_order_seq_cst); /* before the loads of sleepers and idle; else a sleeper's barrier orders them */
    atomic_signal_fence(memory_order_seq_cst);
}

static void wake_drivers(struct abci_engine *e)
{
    wake_local(e);
    if (ABCI_UNLIKELY(atomic_load_explicit(&e->outstanding, memory_order_relaxed)))
        wake_progress(e);
}

/* Give the claim back, then run callbacks, which may start operations, so nothing is held; and wake who waits. */
static void release_claim(struct abci_engine *e)
{
    struct abc_request *called = e->callbacks;
    e->callbacks = NULL;
    e->callbacks_end = &e->callbacks;
    free_claim(e);
    while (called) {
        struct abc_request *q = called;
        called = q->next;
        q->callback(q, q->status, q->callback_context);
        if (q->counted)
            atomic_fetch_sub_explicit(&e->outstanding, 1, memory_order_relaxed);
        atomic_store_explicit(&q->state, ABCI_REQUEST_COMPLETE, memory_order_release); /* pairs with state_of, as in complete */
        wake_waiter(e);
    }
    wake_drivers(e);
}

static bool claim_is_free(struct abci_engine *e)
{
    return atomic_load_explicit(e->claim, memory_order_seq_cst) == ABCI_CLAIM_FREE;
}

static bool needs_sleep(struct abci_engine *e, struct abc_request *q)
{
    int state = state_of(q);
    return state != ABCI_REQUEST_COMPLETE && !(state == ABCI_REQUEST_STARTED && claim_is_free(e));
}

/*
 * Sleep until an event of the engine, unless the request is complete, or needs a driver and the claim is free. Two looks: the
 * barrier between them, which costs a system call, stands for the fence that release_claim does not have.
 */
static void sleep_local(struct abci_engine *e, struct abc_request *q)
{
    atomic_fetch_add_explicit(&e->sleepers, 1, memory_order_seq_cst);
    uint32_t event = atomic_load_explicit(&e->event, memory_order_seq_cst);
    if (needs_sleep(e, q)) {
        abci_shm_order_others(e->shm);
        if (needs_sleep(e, q))
            futex_sleep(&e->event, event);
    }
    atomic_fetch_sub_explicit(&e->sleepers, 1, memory_order_seq_cst);
}

static bool is_undriven(struct abci_engine *e)
{
    return atomic_load_explicit(&e->outstanding, memory_order_seq_cst) && claim_is_free(e);
}

/* The progress thread has nothing to do, or somebody else does it: sleep until there is something that nobody drives. */
static void sleep_progress(struct abci_engine *e, _Atomic int *stop)
{
    atomic_store_explicit(&e->idle, 1, memory_order_seq_cst); /* before the loads below; pairs with release_claim and start */
    if (!is_undriven(e)) {
        abci_shm_order_others(e->shm); /* as in sleep_local */
        if (!is_undriven(e) && !atomic_load_explicit(stop, memory_order_acquire))
            futex_sleep(&e->idle, 1);
    }
    atomic_store_explicit(&e->idle, 0, memory_order_seq_cst);
}

/* ---- Driving: only by the claim's holder ---- */

/* The order of this fixes the order of all collectives of this rank, and of its messages to each peer. */
static void enqueue(struct abci_engine *e, struct abc_request *q)
{
    if (q->message) {
        abci_mail_post(e, q);
        return;
    }
    const uint64_t bytes = q->shape.count * q->shape.element, longest = bytes < q->chunk_bytes ? bytes : q->chunk_bytes;
    q->pairs = q->run->pairs && !q->run->keeps_staging && !q->direct_run && !q->reduction.user && bytes > ABCI_EAGER &&
               longest <= ABCI_TOKEN_ROOM;
    e->pairing += q->pairs;
    q->next = NULL;
    *e->queue_end = q;
    e->queue_end = &q->next;
}

/* Move started requests into the queue, oldest first. */
static void take_inbox(struct abci_engine *e)
{
    if (ABCI_LIKELY(!atomic_load_explicit(&e->inbox, memory_order_relaxed)))
        return;
    struct abc_request *newest = atomic_exchange_explicit(&e->inbox, NULL, memory_order_acquire), *oldest = NULL;
    while (newest) {
        struct abc_request *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest) {
        struct abc_request *next = oldest->next;
        enqueue(e, oldest);
        oldest = next;
    }
}

static int fail_local(struct abci_engine *e, int status)
{
    abci_shm_fail(e->shm, status, -1, NULL, NULL, "rank %d: %s", e->shm->rank, abci_error_text());
    return status;
}

/* The communicator has ended: every operation of this rank ends with its status, in order, once no thread reads its buffers. */
static void fail_all(struct abci_engine *e)
{
    struct abci_failure record;
    atomic_store_explicit(e->claim, ABCI_CLAIM_ENDED, memory_order_release); /* pairs with abci_shm_settle: others wait for this */
    abci_shm_settle(e->shm);
    e->status = abci_shm_failure(e->shm, &record);
    if (e->status == ABC_OK)
        e->status = ABC_ERR_INTERNAL;
    take_inbox(e);
    for (uint32_t s = e->next_sequence - ABCI_SLOTS; s != e->next_sequence; s++) {
        struct abci_instance *inst = &e->instance[s % ABCI_SLOTS];
        if (inst->state == ABCI_INSTANCE_FREE || inst->sequence != s)
            continue;
        struct abc_request *q = inst->request;
        if (inst->offered)
            abci_offer_revoke(inst);
        for (int k = 0; k < ABCI_SLOTS; k++) /* all chunks of it: once complete, the request may be gone */
            if (e->instance[k].request == q)
                e->instance[k].state = ABCI_INSTANCE_FREE;
        if (q != e->queue)
            complete(e, q, e->status);
    }
    e->active = 0;
    e->undecided = false;
    while (e->queue) {
        struct abc_request *q = e->queue;
        e->queue = q->next;
        complete(e, q, e->status);
    }
    e->queue_end = &e->queue;
    e->header_stored = false;
    abci_mail_fail(e, e->status);
    wake_local(e);
}

/* A request is over; whoever else waits for it is woken. */
static void over(struct abci_engine *e, struct abc_request *q, const struct abc_request *own)
{
    complete(e, q, ABC_OK);
    if (q != own)
        wake_waiter(e);
}

/* Advance every instance in flight, then put new ones in flight. 1 something moved, 0 nothing, negative: failed. */
static int pass(struct abci_engine *e, struct abc_request *own)
{
    int moved = 0;
    abci_blocked_clear(e);
    if (abci_shm_failed(e->shm))
        return ABC_ERR_PEER;
    take_inbox(e);
    if (ABCI_UNLIKELY(e->pairing)) {
        struct abc_request *exchanged;
        moved = abci_pair_run(e, &exchanged);
        if (moved < 0)
            return moved;
        if (exchanged)
            over(e, exchanged, own);
    }
    for (uint32_t left = abci_in_order(e); left; left &= left - 1) {
        uint32_t sequence = e->next_sequence - ABCI_SLOTS + (uint32_t)__builtin_ctz(left);
        struct abci_instance *inst = &e->instance[sequence % ABCI_SLOTS];
        struct abc_request *q = inst->request;
        int r = abci_advance(e, inst);
        if (r < 0)
            return r;
        moved |= r;
        if (inst->state == ABCI_INSTANCE_FREE && q->finished == q->chunks)
            over(e, q, own);
    }
    while (e->queue) {
        int r = abci_issue(e);
        if (r < 0)
            return fail_local(e, r);
        if (r == 0)
            break;
        moved = 1;
    }
    if (ABCI_UNLIKELY(e->messages)) {
        int r = abci_mail_pass(e, own);
        return r < 0 ? r : moved | r;
    }
    return moved;
}

/* Something moved: the wait, if there was one, is over, and the next one counts from its own beginning. */
static void moved_on(struct abci_engine *e)
{
    const struct abci_waiting *w = &e->waiting;
    if (w->since != 0 || w->armed || w->spins)
        abci_shm_wait_over(e->shm, &e->waiting, e->blocked, e->nblocked);
}

/* Drive until the request is complete (or, without one, until nothing is outstanding or somebody wants the claim). */
static void drive(struct abci_engine *e, struct abc_request *own)
{
    for (;;) {
        int moved = pass(e, own);
        if (ABCI_UNLIKELY(moved < 0)) {
            abci_shm_wait_over(e->shm, &e->waiting, e->blocked, e->nblocked);
            fail_all(e);
            return;
        }
        if (own ? state_of(own) != ABCI_REQUEST_STARTED
                : !e->active && !e->queue && !e->messages && !atomic_load_explicit(&e->inbox, memory_order_relaxed))
            break;
        if (moved) {
            moved_on(e);
            continue;
        }
        if (!own && atomic_load_explicit(&e->sleepers, memory_order_relaxed) > 0)
            break; /* a thread waits for its request: it drives better than we do */
        if (abci_wait_for_peers(e, true) != ABC_OK) {
            fail_all(e);
            return;
        }
    }
    moved_on(e);
}

/* ---- For the API ---- */

static void begin(struct abc_request *q)
{
    q->issued = q->finished = 0;
    q->chunks = q->planned;
    q->ran_direct = q->pairs = q->joined = q->read_in_place = false;
    q->remote[ABCI_IN] = q->remote[ABCI_OUT] = false; /* run_pair.c may show the first chunk, which decides elsewhere: staged */
    q->first_sequence = 0;
    q->status = ABC_PENDING;
    atomic_store_explicit(&q->state, ABCI_REQUEST_STARTED, memory_order_relaxed);
}

/* Where there is a progress thread it looks after what is counted. Before the claim is given back, for sleep_progress. */
static void count(struct abci_engine *e, struct abc_request *q)
{
    q->counted = e->has_progress;
    if (q->counted)
        atomic_fetch_add_explicit(&e->outstanding, 1, memory_order_seq_cst);
}

/* Hand over to whoever drives next. */
static void push_inbox(struct abci_engine *e, struct abc_request *q)
{
    begin(q);
    count(e, q);
    struct abc_request *head = atomic_load_explicit(&e->inbox, memory_order_relaxed);
    do
        q->next = head;
    while (!atomic_compare_exchange_weak_explicit(&e->inbox, &head, q, memory_order_seq_cst,
                                                  memory_order_relaxed)); /* pairs with take_inbox */
}

/* The header of the request is out since its start and nothing has happened since: read the peers' headers, unless one is late. */
static bool end_short(struct abci_engine *e, struct abc_request *q)
{
    if (!e->header_stored || e->queue != q || abci_tiny_end(e, q->in, q->out) != ABC_OK)
        return false; /* the general machine goes on, or finds the failure */
    e->queue = q->next;
    if (!e->queue)
        e->queue_end = &e->queue;
    q->status = ABC_OK;
    atomic_store_explicit(&q->state, ABCI_REQUEST_COMPLETE, memory_order_release); /* pairs with state_of, as in complete */
    return true;
}

int abci_engine_wait(struct abci_engine *e, struct abc_request *q)
{
    while (state_of(q) != ABCI_REQUEST_COMPLETE) {
        if (state_of(q) == ABCI_REQUEST_STARTED && try_claim(e)) {
            if (state_of(q) == ABCI_REQUEST_STARTED && !end_short(e, q))
                drive(e, q);
            release_claim(e);
        } else {
            sleep_local(e, q);
        }
    }
    return q->status;
}

/* The claim is ours and everything that was started before is queued. */
static int run_claimed(struct abci_engine *e, struct abc_request *q)
{
    begin(q);
    q->counted = false;
    enqueue(e, q);
    drive(e, q);
    release_claim(e);
    return ABCI_LIKELY(state_of(q) == ABCI_REQUEST_COMPLETE) ? q->status : abci_engine_wait(e, q);
}

int abci_engine_run(struct abci_engine *e, struct abc_request *q)
{
    if (!try_claim(e)) {
        push_inbox(e, q);
        abci_shm_ring(e->shm->control); /* the holder may sleep on the doorbell: let it see the inbox */
        return abci_engine_wait(e, q);
    }
    take_inbox(e);
    if (q->plain)
        abci_tiny_learn(e, q);
    return run_claimed(e, q);
}

/* Peers may reach such buffers where they are, which is quicker. */
static bool in_arena(const char *buffer, uint64_t bytes)
{
    uint64_t offset;
    return abci_segment_find(buffer, bytes, &offset);
}

int abci_engine_run_tiny(struct abci_engine *e, const abc_call *call)
{
    const char *in;
    char *out;
    if (!try_claim(e))
        return ABC_PENDING;
    struct abci_tiny *t = abci_tiny_like(e, call, &in, &out);
    if (t && t->large && (in_arena(in, t->like.room.in) || in_arena(out, t->like.room.out)))
        t = NULL;
    int status = t ? abci_tiny_run(e, t, in, out) : ABC_PENDING;
    if (status != ABCI_LATE) { /* as release_claim; a short call has no callback */
        free_claim(e);
        wake_drivers(e);
    }
    return status;
}

int abci_engine_run_late(struct abci_engine *e, struct abc_request *q)
{
    return run_claimed(e, q);
}

void abci_engine_drop_late(struct abci_engine *e, int status)
{
    fail_local(e, status);
    fail_all(e);
    release_claim(e);
}

/* Nothing is outstanding that a pass would advance, so nobody is held up by a wait for one message. */
static bool is_idle(const struct abci_engine *e)
{
    return !(e->active | e->messages | (uint32_t)(e->queue != NULL)) && !atomic_load_explicit(&e->inbox, memory_order_relaxed) &&
           !abci_shm_failed(e->shm);
}

int abci_engine_run_briefs(struct abci_engine *e, const struct abci_brief *messages, int count)
{
    int over = 0;
    if (!try_claim(e))
        return 0;
    for (bool more = is_idle(e); more && over < count; over += more)
        more = messages[over].send ? abci_send_brief(e, &messages[over]) : abci_receive_brief(e, &messages[over]);
    release_claim(e);
    return over;
}

/*
 * A short call like one before, on an idle engine: only its header is stored now, end_short or abci_issue does the rest.
 * With a progress thread the general machine starts it: who ends it is open then.
 */
static bool begin_short(struct abci_engine *e, struct abc_request *q)
{
    if (!q->plain || q->counted || q->counts || e->queue || e->active)
        return false;
    struct abci_tiny *t = abci_tiny_known(e, q);
    if (!t) {
        abci_tiny_learn(e, q);
        return false;
    }
    if (!abci_tiny_begin(e, t, q->in))
        return false;
    q->first_sequence = e->next_sequence; /* abci_issue would set the same */
    return true;
}

/* One pass for whoever only looks in; false: nothing moved. */
static bool look_in(struct abci_engine *e, struct abc_request *own)
{
    int moved = pass(e, own);
    if (moved < 0)
        fail_all(e);
    else if (moved)
        moved_on(e);
    return moved != 0;
}

/* The claim is ours: the request is queued, and what can be done without waiting is done. */
static void start_claimed(struct abci_engine *e, struct abc_request *q)
{
    take_inbox(e);
    begin(q);
    count(e, q);
    bool is_short = begin_short(e, q);
    enqueue(e, q);
    e->starting = true;
    if (!is_short)
        look_in(e, NULL);
    e->starting = false;
    release_claim(e); /* wakes the progress thread, too */
}

void abci_engine_start(struct abci_engine *e, struct abc_request *q)
{
    if (try_claim(e)) {
        start_claimed(e, q);
        return;
    }
    push_inbox(e, q);
    if (try_claim(e)) { /* the holder has left meanwhile, perhaps without seeing the inbox */
        look_in(e, NULL);
        release_claim(e);
    } else {
        abci_shm_ring(e->shm->control); /* the holder may sleep on the doorbell: let it see the inbox */
    }
    wake_progress(e);
}

int abci_engine_test(struct abci_engine *e, struct abc_request *q, double *quiet)
{
    if (state_of(q) == ABCI_REQUEST_STARTED && try_claim(e)) {
        if (!look_in(e, q) && state_of(q) == ABCI_REQUEST_STARTED && abci_wait_for_peers(e, false) != ABC_OK)
            fail_all(e);
        if (quiet) {
            double now_quiet = e->waiting.since != 0 ? abci_now() - e->waiting.since : 0;
            *quiet = now_quiet < *quiet ? now_quiet : *quiet;
        }
        release_claim(e);
    }
    return state_of(q) == ABCI_REQUEST_COMPLETE ? q->status : ABC_PENDING;
}

bool abci_engine_busy(struct abci_engine *e)
{
    if (!try_claim(e))
        return true;
    bool busy = e->active || e->queue || e->messages || atomic_load_explicit(&e->inbox, memory_order_relaxed) ||
                atomic_load_explicit(&e->outstanding, memory_order_relaxed);
    release_claim(e);
    return busy;
}

void abci_engine_progress(struct abci_engine *e, _Atomic int *stop)
{
    while (!atomic_load_explicit(stop, memory_order_acquire)) {
        if (atomic_load_explicit(&e->outstanding, memory_order_seq_cst) && try_claim(e)) {
            drive(e, NULL);
            release_claim(e);
        }
        sleep_progress(e, stop);
    }
}

void abci_engine_poke(struct abci_engine *e)
{
    wake_progress(e);
}
