/*
 * run_step.c - stage 3: the steps of an instance. Waits by polling only: a step that cannot go on says so and the next one is
 * tried. A peer's header is compared with the own call before anything of that peer is used. Bytes touched per step: PUBLISH of a
 * staged block reads and writes it once; FETCH, REDUCE read each source and write the result once (twice with ABCI_STAGE).
 */
#include <errno.h>
#include <string.h>

#include "plan/run_internal.h"

#define STEP_PENDING 0
#define STEP_DONE 1

/* ---- Is the peer where we need it? ---- */

static void call_of_header(const struct abci_header *h, struct abci_call_id *id)
{
    *id = (struct abci_call_id){.collective = h->collective, .type = h->type, .op = h->op, .root = h->root, .count = h->count};
    id->algorithm = h->algorithm;
}

/* The ranks called different things: say both, end the communicator. */
static int mismatch(struct abci_engine *e, const struct abci_instance *inst, int peer, const struct abci_header *h)
{
    struct abci_call_id theirs;
    char a[96], b[96];
    call_of_header(h, &theirs);
    theirs.sequence = inst->sequence;
    abci_call_describe(&inst->id, a, sizeof a);
    abci_call_describe(&theirs, b, sizeof b);
    bool same = strcmp(a, b) == 0;
    const char *why = !same                                    ? ""
                      : theirs.algorithm != inst->id.algorithm ? " with another algorithm or chunk size"
                                                               : " but an earlier call differed";
    if (same && theirs.algorithm != inst->id.algorithm && abci_is(ABCI_VECTOR, inst->id.collective))
        why = " with other counts, or another algorithm or chunk size";
    abci_shm_fail(e->shm, ABC_ERR_MISMATCH, e->shm->nranks == 2 ? -1 : peer, &inst->id, &theirs,
                  "rank %d called %s, rank %d called %s%s", e->shm->rank, a, peer, b, why);
    return ABC_ERR_MISMATCH;
}

int abci_verify(struct abci_engine *e, struct abci_instance *inst, int peer)
{
    struct abci_shm_peer *p = &e->shm->peer[peer];
    const struct abci_header *h = &abci_shm_header(p->control, inst->sequence)->head;
    if (atomic_load_explicit(&h->sequence, memory_order_acquire) != inst->sequence) /* pairs with store_header */
        return STEP_PENDING;
    if ((h->collective != inst->id.collective || h->type != inst->id.type || h->op != inst->id.op || h->root != inst->id.root ||
         h->count != inst->id.count || h->algorithm != inst->id.algorithm || h->chain != inst->chain) &&
        !abci_mutated("c6_no_compare"))
        return mismatch(e, inst, peer, h);
    if ((int32_t)(h->done - p->done) > 0)
        p->done = h->done;
    if (!(h->flags & ABCI_COUNTER_PAYLOAD) && h->token <= 2 * ABCI_SWAPS)
        inst->gained = h->token;
    inst->verified[peer / 64] |= 1ull << (peer % 64);
    return STEP_DONE;
}

static int peer_ready(struct abci_engine *e, struct abci_instance *inst, const struct abci_peer *want)
{
    int peer = want->rank;
    if (!(inst->verified[peer / 64] >> (peer % 64) & 1)) {
        int r = abci_verify(e, inst, peer);
        if (r <= 0)
            return r;
    }
    const struct abci_control *c = e->shm->peer[peer].control;
    if (want->counter == 0 && inst->run->plan->direct)
        return STEP_DONE; /* the offer in the header has published IN */
    if (want->counter == 0 && want->value <= abci_shm_header(c, inst->sequence)->head.counter0)
        return STEP_DONE;
    return abci_shm_reached(abci_shm_counter(c, inst->sequence, want->counter), inst->sequence, want->value);
}

/* Are all peers of the step ready? Remembers how far it got, so that a peer is not polled again. */
static int peers_ready(struct abci_engine *e, struct abci_instance *inst, const struct abci_step *s, uint32_t index)
{
    const struct abci_peer *list = inst->run->plan->peers + s->peer;
    if (inst->at_step != index) {
        inst->at_step = index;
        inst->at_peer = 0;
    }
    for (; inst->at_peer < s->npeers; inst->at_peer++) {
        int r = peer_ready(e, inst, &list[inst->at_peer]);
        if (r < 0)
            return r;
        if (r == STEP_PENDING) {
            abci_blocked_by(e, list[inst->at_peer].rank);
            return STEP_PENDING;
        }
    }
    inst->at_step = UINT32_MAX;
    return STEP_DONE;
}

/* ---- Where bytes are ---- */

static int at_segment(struct abci_engine *e, int peer, struct abci_segment *segment, uint64_t offset, uint64_t bytes,
                      struct source *out)
{
    out->local = abci_segment_at(segment, offset, bytes);
    if (out->local)
        return ABC_OK;
    abci_shm_fail(e->shm, ABC_ERR_MEMORY, peer, NULL, NULL, "rank %d cannot map the shared memory of rank %d (ulimit -v?)",
                  e->shm->rank, peer);
    return ABC_ERR_MEMORY;
}

/*
 * Where a peer's block begins in its buffer. Of blocks of different sizes this rank knows only its own lists: peers that show such
 * a buffer where it is have told (run_counts.c).
 */
static uint64_t in_buffer(const struct abci_instance *inst, const struct abci_shape *shape, int peer, int buffer, uint64_t user)
{
    if (ABCI_UNLIKELY(shape->vector != NULL) && abci_part_width(shape->collective, buffer) == ABCI_WIDE)
        return (abci_counts_place(inst->request, peer) + shape->first) * shape->element;
    return user;
}

/* Where a peer's block lies. counter: the one that published it. */
int abci_locate(struct abci_engine *e, const struct abci_instance *inst, int peer, int counter, int buffer, struct abci_range r,
                struct source *out)
{
    const struct abci_shm_peer *p = &e->shm->peer[peer];
    const struct abci_header_slot *slot = abci_shm_header(p->control, inst->sequence);
    const struct abci_header *h = &slot->head;
    uint64_t offset;
    out->local = NULL;
    if (inst->run->plan->direct) {
        int which = buffer == ABCI_IN && !(h->arena & ABCI_ARENA_IN_PLACE) ? ABCI_IN : ABCI_OUT;
        return at_segment(e, peer, p->segment, h->base[which] + r.user, r.bytes, out);
    }
    if (h->flags & ABCI_COUNTER_PAYLOAD) {
        if (buffer == ABCI_IN)
            out->local = (const char *)abci_shm_payload(slot, abci_part_end(&inst->shape, ABCI_IN)) + r.area;
        else
            out->local = (const char *)abci_shm_counter(p->control, inst->sequence, counter)->payload + r.area;
        return ABC_OK;
    }
    struct abci_segment *segment =
        h->token && h->token <= 2 * ABCI_SWAPS ? e->shm->peer[(h->token - 1) / ABCI_SWAPS].segment : p->segment;
    if (buffer >= ABCI_TMP) {
        offset = h->region + (uint64_t)(buffer - ABCI_TMP) * abci_part_area(&inst->shape, ABCI_TMP) + r.area;
    } else if (h->mode[buffer] == ABCI_MODE_REMOTE) {
        out->remote = h->base[buffer] + in_buffer(inst, &inst->shape, peer, buffer, r.user);
        return ABC_OK;
    } else {
        bool direct = h->mode[buffer] == ABCI_MODE_DIRECT;
        offset = h->base[buffer] + (direct ? r.user : r.area);
        segment = direct ? p->segment : segment;
    }
    return at_segment(e, peer, segment, offset, r.bytes, out);
}

/* What an owner that has ended meanwhile seems to have is not believed: its number may be another process's by now. */
static int read_remote(struct abci_engine *e, int peer, void *to, uint64_t from, uint64_t bytes)
{
    int status = abci_shm_read_remote(e->shm, peer, to, from, bytes), why = errno;
    if (abci_shm_peer_gone(e->shm, peer)) {
        abci_shm_fail(e->shm, ABC_ERR_PEER, peer, NULL, NULL, "rank %d (pid %u) has died while rank %d read its memory", peer,
                      e->shm->peer[peer].pid, e->shm->rank);
        return ABC_ERR_PEER;
    }
    if (status != ABC_OK)
        abci_shm_fail(e->shm, status, peer, NULL, NULL, "rank %d cannot read the memory of rank %d: %s; set ABCOMM_PVR=off",
                      e->shm->rank, peer, strerror(why));
    return status;
}

/* Own block for reading or writing. */
static char *own_block(const struct abci_instance *inst, int buffer, struct abci_range r)
{
    if (buffer >= ABCI_TMP)
        return inst->tmp + (uint64_t)(buffer - ABCI_TMP) * inst->tmp_area + r.area;
    return abci_user(inst, buffer) + r.user;
}

/* The second destination of an ABCI_STAGE step: where peers will read the block; NULL when they read the first. */
static char *staged_block(const struct abci_instance *inst, const struct abci_step *s, struct abci_range r)
{
    if (!(s->flags & ABCI_STAGE) || s->dst.buffer > ABCI_OUT || inst->flags & ABCI_COUNTER_PAYLOAD || !inst->stage[s->dst.buffer])
        return NULL;
    return inst->stage[s->dst.buffer] + r.area;
}

/* Walk the blocks of refs of equal count; joined blocks are one piece. Returns the number of pieces. */
static int pieces(const struct abci_instance *inst, const struct abci_ref *ref)
{
    if (ref->count == 0)
        return 0;
    return abci_part_joined(&inst->shape, ref->buffer) ? 1 : ref->count;
}

static struct abci_range piece(const struct abci_instance *inst, const struct abci_ref *ref, int npieces, int i)
{
    struct abci_range r = abci_part_block(&inst->shape, ref->buffer, ref->block + i);
    if (npieces == 1 && ref->count > 1) {
        struct abci_range last = abci_part_block(&inst->shape, ref->buffer, ref->block + ref->count - 1);
        r.bytes = last.area + last.bytes - r.area;
    }
    return r;
}

/* Streaming stores pay only for results that nobody reads soon: user buffers, out of place, when the machine says so. */
static enum abci_store store_kind(const struct abci_engine *e, const struct abci_instance *inst, int buffer, uint64_t bytes)
{
    if (buffer != ABCI_OUT || inst->request->in_place || bytes < 4096)
        return ABCI_STORE_PLAIN;
    return inst->request->shape.count * inst->shape.element >= e->stream_from ? ABCI_STORE_STREAM : ABCI_STORE_PLAIN;
}

/* ---- The steps ---- */

static int step_publish(struct abci_engine *e, struct abci_instance *inst, const struct abci_step *s)
{
    int n = pieces(inst, &s->src), buffer = s->src.buffer;
    struct abci_counter *counter = abci_shm_counter(e->shm->control, inst->sequence, s->counter);
    bool in_line = inst->flags & ABCI_COUNTER_PAYLOAD;
    bool staged = !in_line && buffer <= ABCI_OUT && inst->mode[buffer] == ABCI_MODE_STAGED && !(s->flags & ABCI_STAGED);
    if (abci_mutated("c1_publish_before_copy") && n > 0) {
        abci_shm_raise(e->shm, inst->sequence, s->counter, s->value);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    for (int i = 0; i < n && (in_line || staged); i++) {
        struct abci_range r = piece(inst, &s->src, n, i);
        const char *from = own_block(inst, buffer, r);
        if (in_line)
            memcpy(counter->payload + r.area, from, r.bytes);
        else
            abci_copy(inst->stage[buffer] + r.area, NULL, from, r.bytes,
                      inst->region && e->machine.stream_shared && r.bytes >= 4096 ? ABCI_STORE_STREAM : ABCI_STORE_PLAIN);
    }
    abci_shm_raise(e->shm, inst->sequence, s->counter, s->value);
    return STEP_DONE;
}

/*
 * A block that its owner shows where it is stays as it is until the operation's end: the first chunk's step reads all of it, for
 * one system call costs as much as 40 KiB, and those of later chunks find it done. The plan does nothing else with it
 * (reads_ahead).
 */
static int fetch_whole(struct abci_engine *e, const struct abci_instance *inst, const struct abci_step *s, int peer)
{
    const struct abci_header *h = &abci_shm_header(e->shm->peer[peer].control, inst->sequence)->head;
    struct abci_shape whole = inst->shape;
    int blocks = inst->shape.first > 0 ? 0 : s->dst.count > s->src.count ? s->dst.count : s->src.count, status = ABC_OK;
    whole.first = 0;
    whole.length = whole.count;
    for (int i = 0; i < blocks && status == ABC_OK; i++) {
        struct abci_range from = abci_part_block(&whole, s->src.buffer, s->src.block + i);
        struct abci_range to = abci_part_block(&whole, s->dst.buffer, s->dst.block + i);
        if (to.bytes > 0)
            status = read_remote(e, peer, own_block(inst, s->dst.buffer, to),
                                 h->base[s->src.buffer] + in_buffer(inst, &whole, peer, s->src.buffer, from.user), to.bytes);
    }
    return status == ABC_OK ? STEP_DONE : status;
}

/* Not over own input of later chunks. */
static bool reads_ahead(const struct abci_instance *inst)
{
    return inst->run->reads_ahead && !(inst->run->plan->stage_in_place && inst->request->in_place);
}

static bool is_remote(const struct abci_engine *e, const struct abci_instance *inst, int peer, int buffer)
{
    const struct abci_header *h = &abci_shm_header(e->shm->peer[peer].control, inst->sequence)->head;
    return buffer <= ABCI_OUT && !(h->flags & ABCI_COUNTER_PAYLOAD) && h->mode[buffer] == ABCI_MODE_REMOTE;
}

static int step_fetch(struct abci_engine *e, struct abci_instance *inst, const struct abci_step *s)
{
    const struct abci_peer *peer = inst->run->plan->peers + s->peer;
    int n = pieces(inst, &s->src);
    if (pieces(inst, &s->dst) > n)
        n = pieces(inst, &s->dst);
    if (reads_ahead(inst) && is_remote(e, inst, peer->rank, s->src.buffer))
        return fetch_whole(e, inst, s, peer->rank);
    for (int i = 0; i < n; i++) {
        struct abci_range from = piece(inst, &s->src, n, i), to = piece(inst, &s->dst, n, i);
        struct source src = {0};
        if (to.bytes == 0)
            continue;
        from.bytes = to.bytes; /* of an alltoallv's IN this rank knows its own list: how long its block is, not the peer's */
        int status = abci_locate(e, inst, peer->rank, peer->counter, s->src.buffer, from, &src);
        char *dst = own_block(inst, s->dst.buffer, to), *dst2 = staged_block(inst, s, to);
        if (status == ABC_OK && src.local) {
            abci_copy_staged(dst, dst2, src.local, to.bytes, store_kind(e, inst, s->dst.buffer, to.bytes));
            if (abci_mutated("c8_writes_into_peer"))
                *(char *)(uintptr_t)src.local ^= 1;
        } else if (status == ABC_OK) {
            status = read_remote(e, peer->rank, dst, src.remote, to.bytes);
            if (status == ABC_OK && dst2)
                memcpy(dst2, dst, to.bytes);
        }
        if (status != ABC_OK)
            return status;
    }
    return STEP_DONE;
}

static int step_copy(struct abci_engine *e, struct abci_instance *inst, const struct abci_step *s)
{
    int n = pieces(inst, &s->src);
    if (pieces(inst, &s->dst) > n)
        n = pieces(inst, &s->dst);
    for (int i = 0; i < n; i++) {
        struct abci_range from = piece(inst, &s->src, n, i), to = piece(inst, &s->dst, n, i);
        char *dst = own_block(inst, s->dst.buffer, to), *dst2 = staged_block(inst, s, to);
        const char *src = own_block(inst, s->src.buffer, from);
        if (to.bytes == 0)
            continue;
        if (dst != src)
            abci_copy_staged(dst, dst2, src, to.bytes, store_kind(e, inst, s->dst.buffer, to.bytes));
        else if (dst2)
            memcpy(dst2, src, to.bytes);
    }
    return STEP_DONE;
}

/* Gather the operands' addresses for bytes [at, at + bytes) of one piece; remote ones are read into tiles. */
static int operands(struct abci_engine *e, struct abci_instance *inst, const struct abci_step *s, const struct source *src,
                    const char *own, uint64_t at, uint64_t bytes, int *count)
{
    const struct abci_peer *list = inst->run->plan->peers + s->peer;
    int n = 0, tiles = 0;
    for (int k = 0; k <= s->npeers; k++) {
        if (own && k == s->own_at)
            e->sources[n++] = own + at;
        if (k == s->npeers)
            break;
        if (src[k].local) {
            e->sources[n++] = src[k].local + at;
            continue;
        }
        char *tile = e->remote + (size_t)tiles++ * ABCI_REMOTE_TILE;
        int status = read_remote(e, list[k].rank, tile, src[k].remote + at, bytes);
        if (status != ABC_OK)
            return status;
        e->sources[n++] = tile;
    }
    *count = n;
    return ABC_OK;
}

/* Locate one piece of every peer. Sets *tiled when some of it must be read in tiles. */
static int locate_all(struct abci_engine *e, const struct abci_instance *inst, const struct abci_step *s, struct abci_range from,
                      struct source *src, bool *tiled)
{
    const struct abci_peer *list = inst->run->plan->peers + s->peer;
    for (int k = 0; k < s->npeers; k++) {
        int status = abci_locate(e, inst, list[k].rank, list[k].counter, s->src.buffer, from, &src[k]);
        if (status != ABC_OK)
            return status;
        *tiled |= !src[k].local;
    }
    return ABC_OK;
}

/* An own operand and one that the other core has written: worth prefetching. */
static bool paired(const struct abci_engine *e, const struct abci_step *s, uint64_t bytes)
{
    return e->shm->nranks == 2 && s->npeers == 1 && s->own.buffer != ABCI_NONE && bytes >= 4096;
}

/* Has the caller's function given up? Before the result of the step is shown to anybody. */
static int user_status(struct abci_engine *e)
{
    char reason[128];
    if (!abci_reduce_failed(reason, sizeof reason))
        return ABC_OK;
    abci_shm_fail(e->shm, ABC_ERR_ABORTED, e->shm->rank, NULL, NULL, "the caller's operation on rank %d failed: %s", e->shm->rank,
                  reason);
    return ABC_ERR_ABORTED;
}

static int step_reduce(struct abci_engine *e, struct abci_instance *inst, const struct abci_step *s)
{
    struct abc_request *q = inst->request;
    struct abci_reduction how = q->reduction;
    how.final = (s->flags & ABCI_FINAL) != 0;
    int n = pieces(inst, &s->dst);
    for (int i = 0; i < n; i++) {
        struct abci_range from = piece(inst, &s->src, n, i), to = piece(inst, &s->dst, n, i);
        struct source *src = e->located;
        bool tiled = false;
        if (to.bytes == 0)
            continue;
        int status = locate_all(e, inst, s, from, src, &tiled), count = 0;
        const char *own = NULL;
        if (s->own.buffer != ABCI_NONE)
            own = own_block(inst, s->own.buffer, piece(inst, &s->own, n, i));
        char *dst = own_block(inst, s->dst.buffer, to), *dst2 = staged_block(inst, s, to);
        how.store = store_kind(e, inst, s->dst.buffer, to.bytes);
        for (uint64_t at = 0; at < to.bytes && status == ABC_OK;) {
            uint64_t bytes = tiled && to.bytes - at > ABCI_REMOTE_TILE ? ABCI_REMOTE_TILE : to.bytes - at;
            status = operands(e, inst, s, src, own, at, bytes, &count);
            if (status == ABC_OK && s->flags & ABCI_SPREAD)
                status = abci_spread(e, inst, s, to, dst, &how, count); /* never tiled */
            else if (status == ABC_OK && paired(e, s, bytes))
                abci_reduce_swap(&how, dst + at, e->sources, bytes / inst->shape.element,
                                 &(struct abci_swap){.foreign = !s->own_at, .room = dst2 ? dst2 + at : NULL});
            else if (status == ABC_OK)
                abci_reduce_staged(&how, dst + at, dst2 ? dst2 + at : NULL, e->sources, count, bytes, inst->shape.element);
            if (ABCI_UNLIKELY(how.user != NULL) && user_status(e) != ABC_OK)
                status = ABC_ERR_ABORTED;
            at += bytes;
        }
        if (status != ABC_OK)
            return status;
    }
    return STEP_DONE;
}

/*
 * With two ranks a difference leaves every byte as it was: own blocks go to OUT only once the peer's call has been compared. With
 * more, some rank may have agreed with all that it read, so nothing is promised and nothing waited for.
 */
static int compared(struct abci_engine *e, struct abci_instance *inst)
{
    const struct abci_plan *plan = inst->run->plan;
    for (int i = 0; i < plan->nsources; i++) {
        int peer = plan->sources[i];
        int r = inst->verified[peer / 64] >> (peer % 64) & 1 ? STEP_DONE : abci_verify(e, inst, peer);
        if (r == STEP_PENDING)
            abci_blocked_by(e, peer);
        if (r <= 0)
            return r;
    }
    return STEP_DONE;
}

static int run_step(struct abci_engine *e, struct abci_instance *inst, const struct abci_step *s, uint32_t index)
{
    ABCI_HOOK(e->shm->rank, inst->sequence, (int)index);
    if (s->kind == ABCI_COPY && s->dst.buffer == ABCI_OUT && e->shm->nranks == 2) {
        int r = compared(e, inst);
        if (r <= 0)
            return r;
    }
    if (s->npeers && s->kind != ABCI_PUBLISH) {
        int r = peers_ready(e, inst, s, index);
        if (r <= 0)
            return r;
    }
    switch (s->kind) {
    case ABCI_PUBLISH:
        return step_publish(e, inst, s);
    case ABCI_FETCH:
        return step_fetch(e, inst, s);
    case ABCI_REDUCE:
        return step_reduce(e, inst, s);
    case ABCI_COPY:
        return step_copy(e, inst, s);
    default:
        return STEP_DONE; /* ABCI_AWAIT; other kinds never pass abci_runnable_make */
    }
}

static bool step_over(const struct abci_instance *inst, int32_t index)
{
    return index < (int32_t)inst->first ||
           (index < (int32_t)(inst->first + ABCI_WINDOW) && inst->ahead >> (index - (int32_t)inst->first) & 1);
}

/* All own steps are over: this rank reads nothing more; a token that it has read is its own now. Move the watermark over every
 * sequence for which that holds. */
void abci_reads_over(struct abci_engine *e, uint32_t sequence, uint8_t gained)
{
    if (gained && e->tokens < 2 * ABCI_SWAPS)
        e->token[e->tokens++] = gained - 1;
    e->reads_over_mask |= 1u << (sequence - e->reads_over - 1);
    while (e->reads_over_mask & 1) {
        e->reads_over_mask >>= 1;
        e->reads_over++;
    }
    abci_shm_done(e->shm, e->reads_over);
}

static int advance_steps(struct abci_engine *e, struct abci_instance *inst)
{
    const struct abci_plan *plan = inst->run->plan;
    int moved = 0;
    uint32_t held = 0; /* counters with a PUBLISH that still waits: later ones of the same counter stay behind it */
    for (uint32_t i = inst->first; i < plan->nsteps && i < inst->first + ABCI_WINDOW; i++) {
        const struct abci_step *s = &plan->steps[i];
        if (step_over(inst, (int32_t)i))
            continue;
        bool publish = s->kind == ABCI_PUBLISH;
        if (!step_over(inst, s->after[0]) || !step_over(inst, s->after[1]) || (publish && held >> s->counter & 1)) {
            held |= publish ? 1u << s->counter : 0;
            continue;
        }
        int r = run_step(e, inst, s, i);
        if (r < 0)
            return r;
        if (r == STEP_PENDING)
            continue;
        moved = 1;
        inst->ahead |= 1u << (i - inst->first);
        while (inst->ahead & 1) {
            inst->ahead >>= 1;
            inst->first++;
        }
    }
    return moved;
}

/* Readers of live user memory must be done before the caller gets it back. */
static bool readers_over(struct abci_engine *e, struct abci_instance *inst)
{
    const struct abci_plan *plan = inst->run->plan;
    if (plan->direct || !inst->request->read_in_place)
        return true; /* a direct plan's last step has waited for them */
    if (inst->shape.first + inst->shape.length < inst->request->shape.count)
        return true; /* the last chunk, even if a header holds it, waits for all: who is done with that is done with this */
    for (; inst->reader < plan->nreaders; inst->reader++) {
        int r = plan->readers[inst->reader];
        if (!abci_shm_peer_done(&e->shm->peer[r], inst->sequence)) {
            abci_blocked_by(e, r);
            return false;
        }
    }
    return true;
}

int abci_advance(struct abci_engine *e, struct abci_instance *inst)
{
    int moved = 0;
    if (ABCI_UNLIKELY(inst->state == ABCI_INSTANCE_OFFER)) {
        moved = abci_offer_decide(e, inst);
        if (moved <= 0)
            return moved;
    }
    if (inst->state == ABCI_INSTANCE_STEPS) {
        moved |= advance_steps(e, inst);
        if (moved < 0)
            return moved;
        if (inst->first == inst->run->plan->nsteps) {
            abci_reads_over(e, inst->sequence, inst->gained);
            inst->state = ABCI_INSTANCE_READERS;
            moved = 1;
        }
    }
    if (inst->state != ABCI_INSTANCE_READERS || !readers_over(e, inst))
        return moved;
    ABCI_HOOK(e->shm->rank, inst->sequence, ABCI_STOP_LAST);
    atomic_thread_fence(memory_order_acquire); /* all reads of peers' memory before the last look at the record */
    if (abci_shm_failed(e->shm) && !abci_mutated("c7_last_look"))
        return ABC_ERR_PEER;
    if (inst->region)
        inst->region->used = false;
    inst->state = ABCI_INSTANCE_FREE;
    e->active &= ~(1u << (inst->sequence % ABCI_SLOTS));
    inst->request->finished++;
    return 1;
}
