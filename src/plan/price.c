/*
 * price.c - stage 3: what an operation costs. Walks the same plans as the executor with a clock for each rank, once with no bytes
 * and once with many: the line through both is the price. Prices rank plans for the selection; they are no promises. Pure; the
 * same constants give the same bits on every rank, which selection relies on. Cost: linear in the steps.
 */
#include "plan/price.h"

#include <string.h>

#include "base/base.h"
#include "plan/part.h"

#define PROBE_BYTES (64.0 * 1024 * 1024)

/* A value of a counter. */
struct raised {
    double at;        /* when the counter reached it, -1 not yet */
    uint32_t readers; /* of what it shows */
};

struct walk {
    const struct abci_plan_set *set;
    const struct abci_price_constants *c;
    double block;           /* bytes */
    double crowding;        /* at least 1 */
    bool direct;            /* peers reach the caller's buffers where they are */
    struct raised **raised; /* [nranks * ABCI_COUNTERS][value] */
    uint32_t *values;       /* [nranks * ABCI_COUNTERS] length of these lists */
    double *now;            /* [nranks] */
    uint32_t *next;         /* [nranks] step */
};

static struct raised *raised_by(const struct walk *w, const struct abci_peer *peer)
{
    int counter = peer->rank * ABCI_COUNTERS + peer->counter;
    return peer->value < w->values[counter] ? &w->raised[counter][peer->value] : NULL;
}

/*
 * Ranks that share a CPU share its caches. Half of what a rank touches is there already, and of those that read the same block only
 * the first has to fetch it. Measured with 3 to 16 ranks on 2 CPUs: docs/performance.md.
 */
static double own_share(const struct walk *w)
{
    return w->crowding > 2 ? w->crowding / 2 : 1;
}

/* How often the peers' bytes cross between CPUs, while each rank of this CPU does the step: once a peer at least. */
static double crossings(const struct walk *w, int rank, const struct abci_step *step)
{
    double sum = 0, cpus = w->set->nranks / w->crowding;
    for (uint32_t k = step->peer; k < step->peer + step->npeers; k++) {
        const struct raised *r = raised_by(w, &w->set->plan[rank]->peers[k]);
        double share = own_share(w) * (r && r->readers > cpus ? cpus / r->readers : 1);
        sum += share > 1 ? share : 1;
    }
    return sum;
}

/* Work of a step on the rank's own CPU, without waiting. */
static double work(const struct walk *w, int rank, const struct abci_step *step)
{
    const struct abci_price_constants *c = w->c;
    bool reads = step->kind != ABCI_PUBLISH && step->npeers > 1; /* each further peer is one more line to look at */
    double bytes = w->block * step->src.count, own = bytes * own_share(w), read = 0;
    double time = w->crowding * c->step * (reads ? step->npeers : 1);
    if (step->kind == ABCI_FETCH || step->kind == ABCI_REDUCE)
        read = bytes * crossings(w, rank, step) * c->read;
    switch (step->kind) {
    case ABCI_PUBLISH:
        if (step->src.buffer < ABCI_TMP && !(step->flags & ABCI_STAGED) && !w->direct)
            time += own * c->copy;
        break;
    case ABCI_FETCH:
        time += read > own * c->copy ? read : own * c->copy;
        break;
    case ABCI_REDUCE:
        time += read + own * (step->npeers + (step->own.buffer != ABCI_NONE)) * c->reduce;
        break;
    case ABCI_COPY:
        time += own * c->copy;
        break;
    default:
        break;
    }
    if ((step->flags & ABCI_STAGE) && !w->direct) /* beside a sum a second store of what is in registers; a copy loses memcpy */
        time += (step->kind == ABCI_REDUCE ? 0.5 : 1.25) * own * c->copy;
    if (step->flags & ABCI_SPREAD)
        time += own * step->npeers * c->copy;
    return time;
}

/* When can the step start? False: a peer has not come so far. */
static bool wait_of(const struct walk *w, int rank, const struct abci_step *step, double *start)
{
    const struct abci_plan *plan = w->set->plan[rank];
    bool yields = w->crowding > 1, late = false;
    *start = w->now[rank];
    for (uint32_t k = step->peer; step->kind != ABCI_PUBLISH && k < step->peer + step->npeers; k++) {
        const struct raised *raised = raised_by(w, &plan->peers[k]);
        if (!raised || raised->at < 0)
            return false;
        double at = raised->at + w->c->hand_off;
        late |= at > *start;
        *start = at > *start ? at : *start;
    }
    if (yields && late)
        *start += w->c->hand_off; /* the CPU has to be given away and got back */
    return true;
}

static bool advance(struct walk *w, int rank)
{
    const struct abci_plan *plan = w->set->plan[rank];
    bool moved = false;
    for (double start; w->next[rank] < plan->nsteps; w->next[rank]++, moved = true) {
        const struct abci_step *step = &plan->steps[w->next[rank]];
        if (!wait_of(w, rank, step, &start))
            break;
        w->now[rank] = start + work(w, rank, step);
        if (step->kind == ABCI_PUBLISH)
            w->raised[rank * ABCI_COUNTERS + step->counter][step->value] = (struct raised){w->now[rank], step->npeers};
    }
    return moved;
}

/* Seconds until the last rank is done. */
static double walk(struct walk *w, double bytes)
{
    const struct abci_plan *zero = w->set->plan[0];
    int n = w->set->nranks;
    bool wide = abci_part_width((abc_collective)zero->collective, ABCI_OUT) == ABCI_WIDE ||
                abci_part_width((abc_collective)zero->collective, ABCI_IN) == ABCI_WIDE;
    w->block = wide ? bytes : bytes / zero->nblocks;
    for (int rank = 0; rank < n; rank++) {
        w->now[rank] = 0;
        w->next[rank] = 0;
        for (int k = 0; k < ABCI_COUNTERS; k++)
            for (uint32_t v = 0; v < w->values[rank * ABCI_COUNTERS + k]; v++)
                w->raised[rank * ABCI_COUNTERS + k][v].at = -1;
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < n; rank++)
            moved |= advance(w, rank);
    }
    double end = 0;
    for (int rank = 0; rank < n; rank++)
        end = w->now[rank] > end ? w->now[rank] : end;
    return end;
}

/* Room for the times of each counter's values. Awaiting one that never comes is the checker's to report: it ends the walk here. */
static bool open_walk(struct walk *w)
{
    size_t n = (size_t)w->set->nranks;
    w->now = abci_alloc(n * sizeof *w->now);
    w->next = abci_alloc(n * sizeof *w->next);
    w->raised = abci_alloc(n * ABCI_COUNTERS * sizeof *w->raised);
    w->values = abci_alloc(n * ABCI_COUNTERS * sizeof *w->values);
    if (!w->now || !w->next || !w->raised || !w->values)
        return false;
    for (size_t i = 0; i < n * ABCI_COUNTERS; i++) {
        const struct abci_plan *plan = w->set->plan[i / ABCI_COUNTERS];
        w->values[i] = 1; /* value 0 is never awaited */
        for (uint32_t k = 0; k < plan->nsteps; k++)
            w->values[i] += plan->steps[k].kind == ABCI_PUBLISH && plan->steps[k].counter == i % ABCI_COUNTERS;
        w->raised[i] = abci_alloc(w->values[i] * sizeof **w->raised);
        if (!w->raised[i])
            return false;
    }
    return true;
}

static void close_walk(struct walk *w)
{
    for (int i = 0; w->raised && i < w->set->nranks * ABCI_COUNTERS; i++)
        abci_free(w->raised[i]);
    abci_free(w->raised);
    abci_free(w->values);
    abci_free(w->now);
    abci_free(w->next);
}

/*
 * Two ranks that show each other as many blocks of the same buffers stage where they have read last (run_stage.c), at the speed of
 * their own caches. The walk knows nothing of caches, hence these factors, measured from 8 KB to 2 MB: twice the speed; less when
 * one reading step waits for another, and still less between distant cores, where a wait costs most (docs/performance.md).
 */
#define SWAP_ONE_STEP 0.5
#define SWAP_NEAR 0.75
#define SWAP_DISTANT 0.8

static bool swaps(const struct abci_plan_set *set)
{
    if (set->nranks != 2 || set->plan[0]->nsteps == 0 || set->plan[0]->nsteps != set->plan[1]->nsteps || set->plan[0]->ntmp > 0)
        return false; /* temporaries are staged in a rank's own region, always */
    bool shows = false;
    for (uint32_t i = 0; i < set->plan[0]->nsteps; i++) {
        const struct abci_step *a = &set->plan[0]->steps[i], *b = &set->plan[1]->steps[i];
        if (a->kind != ABCI_PUBLISH && b->kind != ABCI_PUBLISH)
            continue;
        if (a->kind != b->kind || a->src.buffer != b->src.buffer || a->src.buffer >= ABCI_TMP || a->src.count != b->src.count)
            return false;
        shows = true;
    }
    return shows;
}

/*
 * Where one of two ranks only shows and the other only sums, the first is at the next chunk, or at its next work, while the other
 * reads. Measured for reduce from 8 KB to 8 MB: never slower than two steps in which both sum a half.
 */
#define ONE_WAY 0.6

static bool is_one_way(const struct abci_plan_set *set)
{
    int shows = 0, sums = 0;
    for (int r = 0; r < 2 && set->nranks == 2; r++)
        for (uint32_t i = 0; i < set->plan[r]->nsteps; i++) {
            const struct abci_step *s = &set->plan[r]->steps[i];
            shows += s->kind == ABCI_PUBLISH;
            sums += s->kind == ABCI_REDUCE;
            if (s->kind == ABCI_FETCH)
                return false;
        }
    return shows == 1 && sums == 1;
}

/* What staging in one's own cache saves, or working at the same time. */
static double swap_gain(const struct abci_plan_set *set, const struct abci_price_constants *c)
{
    int reading = 0;
    for (uint32_t i = 0; i < set->plan[0]->nsteps; i++)
        reading += set->plan[0]->steps[i].kind != ABCI_PUBLISH && set->plan[0]->steps[i].npeers > 0;
    if (is_one_way(set))
        return ONE_WAY;
    return !swaps(set) ? 1 : reading < 2 ? SWAP_ONE_STEP : c->hand_off < ABCI_DISTANT ? SWAP_NEAR : SWAP_DISTANT;
}

static void price_of(const struct abci_plan_set *set, const struct abci_price_constants *c, bool direct, struct abci_price *price)
{
    struct walk w = {.set = set, .c = c, .crowding = c->crowding > 1 ? c->crowding : 1, .direct = direct};
    price->fixed = price->per_byte = 1e9; /* out of memory: nobody chooses it */
    if (open_walk(&w)) {
        price->fixed = walk(&w, 0);
        price->per_byte = (walk(&w, PROBE_BYTES) - price->fixed) / PROBE_BYTES;
        price->per_byte *= direct ? 1 : swap_gain(set, c);
    }
    close_walk(&w);
}

void abci_plan_price(const struct abci_plan_set *set, const struct abci_price_constants *c, struct abci_price *price)
{
    price_of(set, c, false, price);
}

void abci_plan_price_direct(const struct abci_plan_set *set, const struct abci_price_constants *c, struct abci_price *price)
{
    price_of(set, c, true, price);
}
