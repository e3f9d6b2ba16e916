/*
 * run_learn.c - stage 3: which calls are short, and what the next one like them needs to know. A short call's plan shows the input
 * at once and then reads every peer in one step: it reduces, or it moves pieces to where they belong, or it just waits. What was
 * prepared for it is kept in a small table by kind of call, so that programs which alternate a few calls find each of them again.
 * run_tiny.c does the call. Runs under the claim. Cost: a dozen instructions to find a kind; to learn one, some hundred once.
 */
#include <string.h>

#include "plan/run_internal.h"

/* ---- Which plans ---- */

/* Is this buffer of the step one block? The others' bytes are not at one place. */
static bool one_block(const struct abci_ref *ref, int buffer)
{
    return ref->buffer == buffer && ref->count == 1;
}

/* The peers of a step, each once: a run of ranks with this one left out. Notes what their counters must say. */
static bool read_peers(struct abci_tiny *t, const struct abci_plan *p, const struct abci_step *s, bool in_order)
{
    uint16_t low = UINT16_MAX, high = 0;
    for (int k = 0; k < s->npeers; k++) {
        const struct abci_peer *peer = &p->peers[s->peer + (uint32_t)k];
        if (peer->counter != 0 || (in_order && k > 0 && peer->rank <= peer[-1].rank))
            return false;
        low = peer->rank < low ? peer->rank : low;
        high = peer->rank > high ? peer->rank : high;
        t->wanted = peer->value > t->wanted ? peer->value : t->wanted;
    }
    if (s->npeers == 0)
        return false;
    t->first = low < t->first ? low : t->first;
    t->end = high >= t->end ? high + 1 : t->end;
    return true;
}

/* Are all ranks from first to end - 1 read, but for this one? */
static bool reads_all(const struct abci_tiny *t, int rank, uint32_t readings)
{
    bool among = rank >= t->first && rank < t->end;
    return t->end - t->first - among == (int)readings;
}

static bool learn_reduce(struct abci_tiny *t, const struct abc_request *q, const struct abci_plan *p, const struct abci_step *s)
{
    if (!(s->flags & ABCI_FINAL) || !one_block(&s->src, ABCI_IN) || !one_block(&s->own, ABCI_IN) || !one_block(&s->dst, ABCI_OUT) ||
        !read_peers(t, p, s, true))
        return false;
    t->first = p->rank < t->first ? p->rank : t->first; /* the own operand is one of them */
    t->end = p->rank >= t->end ? p->rank + 1 : t->end;
    struct abci_range from = abci_part_block(&q->shape, ABCI_IN, s->src.block);
    struct abci_range own = abci_part_block(&q->shape, ABCI_IN, s->own.block);
    struct abci_range to = abci_part_block(&q->shape, ABCI_OUT, s->dst.block);
    uint64_t bytes = q->shape.count * q->shape.element;
    t->work = ABCI_TINY_REDUCE;
    t->at = (uint32_t)from.area;
    t->piece = (uint32_t)from.bytes;
    t->own = (uint32_t)own.user;
    return reads_all(t, p->rank, s->npeers) && s->own_at == p->rank - t->first && to.user == 0 && from.bytes == bytes &&
           own.bytes == bytes && to.bytes == bytes;
}

static bool learn_copy(struct abci_tiny *t, const struct abc_request *q, const struct abci_step *s)
{
    if (!one_block(&s->src, ABCI_IN) || !one_block(&s->dst, ABCI_OUT) || t->moves_own)
        return false;
    struct abci_range from = abci_part_block(&q->shape, ABCI_IN, s->src.block);
    struct abci_range to = abci_part_block(&q->shape, ABCI_OUT, s->dst.block);
    t->moves_own = true;
    t->own = (uint32_t)from.user;
    t->own_to = (uint32_t)to.user;
    t->piece = (uint32_t)from.bytes;
    return from.bytes == to.bytes;
}

static bool learn_fetch(struct abci_tiny *t, const struct abc_request *q, const struct abci_plan *p, const struct abci_step *s)
{
    if (!one_block(&s->src, ABCI_IN) || !one_block(&s->dst, ABCI_OUT) || !read_peers(t, p, s, false))
        return false;
    struct abci_range from = abci_part_block(&q->shape, ABCI_IN, s->src.block);
    struct abci_range to = abci_part_block(&q->shape, ABCI_OUT, s->dst.block);
    t->at = (uint32_t)from.area;
    t->piece = (uint32_t)from.bytes;
    if (p->peers[s->peer].rank == t->first)
        t->to = (uint32_t)to.user;
    return from.bytes == to.bytes;
}

/* Does every fetch read the same place, and write where `to` and `step` say? */
static bool in_rows(const struct abci_tiny *t, const struct abc_request *q, const struct abci_plan *p, const struct abci_step *s)
{
    uint32_t k = (uint32_t)(p->peers[s->peer].rank - t->first);
    return abci_part_block(&q->shape, ABCI_IN, s->src.block).area == t->at &&
           abci_part_block(&q->shape, ABCI_IN, s->src.block).bytes == t->piece &&
           abci_part_block(&q->shape, ABCI_OUT, s->dst.block).user == t->to + (uint64_t)k * t->step;
}

static bool learn_moves(struct abci_tiny *t, const struct abc_request *q, const struct abci_plan *p, uint32_t lead)
{
    uint32_t fetches = 0;
    t->work = ABCI_TINY_MOVE;
    for (uint32_t i = lead; i < p->nsteps; i++) {
        const struct abci_step *s = &p->steps[i];
        fetches += s->kind == ABCI_FETCH;
        if (s->flags || !(s->kind == ABCI_FETCH ? learn_fetch(t, q, p, s) : s->kind == ABCI_COPY && learn_copy(t, q, s)))
            return false;
    }
    t->step = t->end - t->first > 1 ? t->piece : 0;
    for (uint32_t i = lead; i < p->nsteps; i++)
        if (p->steps[i].kind == ABCI_FETCH && !in_rows(t, q, p, &p->steps[i]))
            return false;
    return fetches == 0 || reads_all(t, p->rank, fetches);
}

/* What comes after the leading steps, which the header does. */
static bool learn_steps(struct abci_tiny *t, const struct abc_request *q)
{
    const struct abci_plan *p = q->run->plan;
    uint32_t lead = q->run->lead, rest = p->nsteps - lead;
    const struct abci_step *s = &p->steps[lead];
    t->first = UINT16_MAX;
    bool known;
    if (rest == 1 && s->kind == ABCI_REDUCE) {
        known = learn_reduce(t, q, p, s);
    } else if (rest == 1 && s->kind == ABCI_AWAIT) {
        t->work = ABCI_TINY_MOVE;
        known = read_peers(t, p, s, true) && reads_all(t, p->rank, s->npeers);
    } else {
        known = learn_moves(t, q, p, lead);
    }
    if (t->first > t->end)
        t->first = t->end = 0; /* it reads nobody */
    return known;
}

/* ---- What goes out ---- */

static void learn_staging(struct abci_tiny *t, const struct abc_request *q)
{
    const struct abci_runnable *run = q->run;
    int n = run->last_shown[ABCI_IN] - run->first_shown[ABCI_IN] + 1;
    struct abci_range first = abci_part_block(&q->shape, ABCI_IN, run->first_shown[ABCI_IN]);
    struct abci_range last = abci_part_block(&q->shape, ABCI_IN, run->last_shown[ABCI_IN]);
    bool joined = abci_part_joined(&q->shape, ABCI_IN);
    t->copy.pieces = joined ? 1 : (uint32_t)n;
    t->copy.from = (uint32_t)first.user;
    t->copy.to = (uint32_t)first.area;
    t->copy.bytes = (uint32_t)(joined ? last.user + last.bytes - first.user : first.bytes);
    t->copy.base = (uint32_t)(first.area / ABCI_LINE * ABCI_LINE);
    t->copy.room = (uint32_t)((last.area + last.bytes - t->copy.base + ABCI_LINE - 1) / ABCI_LINE * ABCI_LINE);
    t->copy.stride = n > 1 ? (uint32_t)((last.area - first.area) / (uint32_t)(n - 1)) : 0;
}

/* What run_issue.c stores in the header, run_step.c compares of a peer's, and abci_note writes. */
static void learn_words(struct abci_tiny *t, const struct abc_request *q, uint8_t flags)
{
    struct abci_header *h = &t->header, mask = {.collective = 0xff, .type = 0xff, .op = 0xff, .root = 0xffff};
    h->collective = q->id.collective;
    h->type = q->id.type;
    h->op = q->id.op;
    h->flags = ABCI_HEADER_PAYLOAD;
    h->root = (uint16_t)q->id.root;
    h->algorithm = q->id.algorithm;
    h->count = q->id.count;
    t->hash = abci_call_hash(&q->id);
    mask.flags = t->reads_staged ? 0 : ABCI_HEADER_PAYLOAD; /* a payload that is read must be there */
    memcpy(&t->wants, &h->collective, sizeof t->wants);
    memcpy(&t->mask, &mask.collective, sizeof t->mask);
    t->wants &= t->mask;
    h->flags = flags;
    h->counter0 = q->run->lead_value;
    t->record = (struct abci_event){
        .count = q->id.count,
        .root = q->id.root,
        .culprit = -1,
        .collective = q->id.collective,
        .type = q->id.type,
        .op = q->id.op,
    };
    memcpy(t->record.algorithm, q->run->plan->name, sizeof t->record.algorithm);
}

/* As run_issue.c decides it, inline_flags and fill_descriptors. */
static bool learn_header(struct abci_tiny *t, const struct abc_request *q)
{
    const struct abci_runnable *run = q->run;
    uint64_t end = abci_part_end(&q->shape, ABCI_IN);
    bool in_header = end <= ABCI_INLINE_HEADER;
    if (abci_part_area(&q->shape, ABCI_IN) > (t->large ? ABCI_TINY_MAX : ABCI_EAGER) || !run->in_by_lead || run->publishes_out ||
        run->keeps_staging)
        return false;
    t->staged = run->publishes_in && !in_header;
    t->reads_staged = t->piece && t->end > t->first && !in_header;
    learn_words(t, q, t->staged ? 0 : ABCI_COUNTER_PAYLOAD | (run->lead ? ABCI_HEADER_PAYLOAD : 0));
    t->shown = run->publishes_in && in_header ? (uint32_t)end : 0;
    if (t->piece && in_header && end > ABCI_INLINE_LINE) {
        t->fetch = t->at / ABCI_LINE * ABCI_LINE;
        t->fetch_end = t->at + t->piece;
    }
    t->listens = !run->publishes_in && t->end > t->first;
    if (t->staged)
        learn_staging(t, q);
    return true;
}

/* ---- The table ---- */

static struct abci_tiny *place_for(struct abci_engine *e, const struct abc_request *q)
{
    return abci_tiny_place(e, q->id.collective, q->id.count, (uint32_t)q->reduction.type, (uint32_t)q->reduction.op, q->id.root);
}

static bool is_direct(const struct abc_request *q)
{
    return q->is_direct[ABCI_IN] || q->is_direct[ABCI_OUT];
}

struct abci_tiny *abci_tiny_known(struct abci_engine *e, const struct abc_request *q)
{
    struct abci_tiny *t = place_for(e, q);
    bool same = t->work != ABCI_TINY_NONE && t->like.run == q->run && t->like.id.collective == q->id.collective &&
                t->like.id.count == q->id.count && t->like.reduction.type == q->reduction.type &&
                t->like.reduction.op == q->reduction.op && t->like.id.root == q->id.root && !t->lists;
    return same && !(t->large && is_direct(q)) ? t : NULL;
}

static void keep(struct abci_tiny *place, const struct abci_tiny *t)
{
    if (place->lists != t->lists)
        abci_free(place->lists);
    *place = *t;
}

void abci_tiny_close(struct abci_engine *e)
{
    for (int i = 0; i < ABCI_TINY_KINDS; i++)
        abci_free(e->tiny[i].lists);
    memset(e->tiny, 0, sizeof e->tiny);
}

/* ---- Calls with a count for each rank ---- */

/* One piece of memory. */
static struct abci_lists *new_lists(size_t n)
{
    struct abci_lists *l = abci_alloc(sizeof *l + n * (sizeof *l->parcel + 4 * sizeof(uint64_t)));
    uint64_t *list = l ? (uint64_t *)(void *)(l->parcel + n) : NULL;
    for (int b = ABCI_IN; l && b <= ABCI_OUT; b++, list += 2 * n) {
        l->count[b] = list;
        l->offset[b] = list + n;
    }
    return l;
}

static uint64_t hash_lists(const struct abc_request *q, int nranks)
{
    const struct abci_vector *v = q->shape.vector;
    uint64_t h = q->id.collective;
    for (int b = ABCI_IN; b <= ABCI_OUT; b++)
        for (int r = 0; r < nranks; r++) {
            h = (h ^ v->count[b][r]) * 0xbf58476d1ce4e5b9u;
            h = ((h ^ h >> 29) ^ v->offset[b][r]) * 0x94d049bb133111ebu;
        }
    return h ^ h >> 32;
}

static void fill_lists(const struct abci_engine *e, struct abci_lists *l, const struct abc_request *q)
{
    const int rank = e->shm->rank, nranks = e->shm->nranks;
    const struct abci_vector *v = q->shape.vector;
    const uint64_t element = q->shape.element;
    bool all = q->id.collective == ABC_ALLTOALLV;
    l->row = all ? q->counts->row : 0;
    l->most = q->counts->most;
    l->hash = e->lists_seen;
    for (int b = ABCI_IN; b <= ABCI_OUT; b++)
        for (int r = 0; r < nranks; r++) {
            l->count[b][r] = v->count[b][r];
            l->offset[b][r] = v->offset[b][r];
        }
    for (int r = 0; r < nranks; r++)
        l->parcel[r] = (struct abci_parcel){
            .from = all ? (uint32_t)(v->offset[ABCI_IN][r] * element) : 0,
            .sent = (uint32_t)(v->count[ABCI_IN][all ? r : rank] * element),
            .to = (uint32_t)(v->offset[ABCI_OUT][r] * element),
            .got = (uint32_t)(v->count[ABCI_OUT][r] * element),
        };
}

/* What a call of equal blocks, each as long as the longest, comes to; then only what there is of them is shown and fetched. */
static bool learn_equal(struct abci_tiny *t, const struct abc_request *q, const struct abci_lists *l, int rank)
{
    struct abc_request equal = l->row ? *q->counts->first : *q;
    equal.shape.vector = NULL;
    if (!learn_steps(t, &equal) || t->work != ABCI_TINY_MOVE || !learn_header(t, &equal))
        return false;
    t->shown = 0;
    t->work = ABCI_TINY_LISTS;
    t->copy.bytes = l->parcel[rank].sent;
    t->copy.pieces = l->parcel[rank].sent > 0;
    if (l->row) {
        uint32_t most = 0;
        for (int r = t->first; r < t->end; r++)
            most = l->parcel[r].got > most ? l->parcel[r].got : most;
        t->fetch_end = t->at + (uint32_t)ABCI_COUNTS_WORDS + most;
    }
    t->like = *q;
    t->like.run = equal.run;
    t->like.id.count = q->counts->mine;
    t->like.shape.vector = NULL;
    t->like.counts = NULL;
    return true;
}

/* Counts that come for the second time, of blocks that a header or its staging holds. */
static void learn_lists(struct abci_engine *e, const struct abc_request *q)
{
    const struct abci_counts *c = q->counts;
    bool all = q->id.collective == ABC_ALLTOALLV, far = (q->extent[ABCI_IN] | q->extent[ABCI_OUT]) >> 32;
    uint64_t hash = hash_lists(q, e->shm->nranks), most = c->most * q->shape.element;
    if ((q->id.collective != ABC_ALLGATHERV && !all) || e->shm->nranks < 2 || most == 0 || far || (all && q->in_place) ||
        (all ? most > c->row - ABCI_COUNTS_WORDS || c->first->planned != 1 : q->planned != 1))
        return;
    struct abci_tiny *place =
        abci_tiny_place(e, q->id.collective, c->mine, (uint32_t)q->reduction.type, (uint32_t)q->reduction.op, q->id.root);
    if (hash != e->lists_seen || (place->lists && place->lists->hash == hash)) {
        e->lists_seen = hash;
        return;
    }
    struct abci_tiny t;
    memset(&t, 0, sizeof t);
    t.lists = place->lists ? place->lists : new_lists((size_t)e->shm->nranks);
    if (!t.lists)
        return; /* the next one may have the memory */
    place->work = ABCI_TINY_NONE;
    place->lists = t.lists;
    fill_lists(e, t.lists, q);
    if (learn_equal(&t, q, t.lists, e->shm->rank))
        keep(place, &t);
}

static bool same_list(const struct abci_lists *l, int b, const uint64_t *counts, const uint64_t *offsets, int nranks)
{
    uint64_t at = 0, differs = !counts;
    for (int r = 0; r < nranks && !differs; r++) {
        uint64_t offset = offsets ? offsets[r] : at;
        differs = (counts[r] ^ l->count[b][r]) | (offset ^ l->offset[b][r]);
        at = offset + counts[r];
    }
    return !differs;
}

bool abci_tiny_same_lists(const struct abci_engine *e, const struct abci_tiny *t, const abc_call *c)
{
    int n = e->shm->nranks;
    if (!same_list(t->lists, ABCI_OUT, c->out_counts, c->out_offsets, n))
        return false;
    return t->lists->row == 0 || (c->in != ABC_IN_PLACE && c->out != ABC_IN_PLACE && c->in != c->out &&
                                  same_list(t->lists, ABCI_IN, c->in_counts, c->in_offsets, n));
}

void abci_tiny_learn(struct abci_engine *e, const struct abc_request *q)
{
    uint64_t bytes = q->shape.count * q->shape.element;
    if (e->machine.price.crowding > 1 || bytes > ABCI_TINY_MAX) /* crowded, the peers are hardly ever there: work for nothing */
        return;
    if (q->shape.vector) {
        learn_lists(e, q);
        return;
    }
    bool barrier = q->id.collective == ABC_BARRIER;
    if ((bytes == 0 && !barrier) || q->planned != 1 || q->reduction.user || e->shm->nranks < 2 || abci_tiny_known(e, q))
        return;
    struct abci_tiny t;
    memset(&t, 0, sizeof t);
    t.large = bytes > ABCI_EAGER;
    if (t.large && (e->shm->nranks != 2 || is_direct(q) || q->id.collective != ABC_ALLREDUCE || e->machine.remote_from))
        return;
    if (!learn_steps(&t, q) || !learn_header(&t, q))
        return;
    t.like = *q;
    t.like.tag = 0;
    t.like.ran_direct = false;
    t.like.reduction.final = 1;
    t.like.reduction.store = ABCI_STORE_PLAIN;
    t.swaps = t.large ||
              (t.work == ABCI_TINY_REDUCE && e->shm->nranks == 2 && t.reads_staged && abci_reduce_narrow(t.like.reduction.type));
    keep(place_for(e, q), &t);
}

/* ABC_IN_PLACE, or the other buffer is none: resolved as prepare.c does; false where that has more to say. */
bool abci_tiny_resolve(const struct abci_tiny *t, const char **in, char **out)
{
    const struct abci_room *room = &t->like.room;
    if (*in == ABC_IN_PLACE && *out == ABC_IN_PLACE)
        return false;
    if (*out == ABC_IN_PLACE) {
        if (room->in < room->out || !*in)
            return false;
        *out = (char *)(uintptr_t)((uintptr_t)*in + room->apart);
    } else if (*in == ABC_IN_PLACE) {
        if (room->out < room->in || !*out)
            return false;
        *in = (const char *)((uintptr_t)*out - room->apart);
    }
    return (*in || !room->in) && (*out || !room->out);
}
