/*
 * choose.c - which algorithm an operation gets: the cheapest by price among those whose result has the promised bits. Prices are
 * straight lines in bytes, computed once per collective, so a choice is a few multiplications. Owner: the communicator.
 */
#include "tune/choose.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define MAX_ALGOS 16
#define PRICED_RANKS 128 /* beyond, pricing all ranks' plans costs more than it tells: the rule below decides */

struct option {
    const struct abci_algo *algo;
    struct abci_price price;
    _Atomic(struct abci_runnable *) *run; /* [nranks], by root; built on first use */
    bool one_rounding;
};

struct options {
    _Atomic bool priced; /* release: the rows are complete; acquire in abci_choose */
    int count;
    struct option option[MAX_ALGOS];
};

/* A plan that the caller has loaded. */
struct loaded {
    struct abci_runnable *run;
    struct loaded *next;
};

struct abci_chooser {
    int rank, nranks;
    uint64_t chunk;
    struct abci_price_constants constants;
    struct options options[ABC_COLLECTIVE_COUNT];
    const struct abci_algo *forced[ABC_COLLECTIVE_COUNT];
    _Atomic(struct loaded *) loaded; /* release: the plan is complete; acquire in named() */
    pthread_mutex_t lock;            /* of whoever adds rows, plans or loaded ones; readers take none */
};

static void known_names(char *text, size_t capacity, abc_collective coll, int nranks)
{
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; abci_algos[i] && at < capacity; i++)
        if (coll == ABC_COLLECTIVE_COUNT || abci_algo_fits(abci_algos[i], coll, nranks))
            at += (size_t)snprintf(text + at, capacity - at, "%s%s", at ? ", " : "", abci_algos[i]->name);
}

static int unknown_algorithm(const char *name)
{
    char names[256];
    known_names(names, sizeof names, ABC_COLLECTIVE_COUNT, 0);
    return abci_error(ABC_ERR_ARGUMENT, "there is no algorithm \"%.40s\"; known are %s", name, names);
}

static int unfit_algorithm(const char *name, abc_collective coll, int nranks)
{
    char names[256];
    known_names(names, sizeof names, coll, nranks);
    return abci_error(ABC_ERR_UNSUPPORTED, "algorithm %s does not do %s with %d ranks; these do: %s", name,
                      abc_collective_name(coll), nranks, names);
}

static int collective_of(const char *name)
{
    for (int c = 0; c < ABC_COLLECTIVE_COUNT; c++)
        if (strcmp(name, abc_collective_name((abc_collective)c)) == 0)
            return c;
    return -1;
}

/* "allreduce:ring;broadcast:binomial" */
static int parse_forced(struct abci_chooser *c, const char *text)
{
    while (*text) {
        char coll[32], algo[ABCI_NAME_MAX];
        int n = 0;
        if (sscanf(text, " %31[a-z_] : %31[a-z0-9_] %n", coll, algo, &n) < 2 || (text[n] != 0 && text[n] != ';'))
            return abci_error(ABC_ERR_ARGUMENT, "ABCOMM_ALGO: \"%.60s\" is not collective:algorithm, separated by ';'", text);
        int which = collective_of(coll);
        if (which < 0)
            return abci_error(
                ABC_ERR_ARGUMENT,
                "ABCOMM_ALGO: \"%s\" is no collective; use allreduce, reduce_scatter, allgather, broadcast or barrier", coll);
        const struct abci_algo *found = abci_algo_find(algo);
        if (!found)
            return unknown_algorithm(algo);
        if (!abci_algo_fits(found, (abc_collective)which, c->nranks) && c->nranks > 1)
            return unfit_algorithm(algo, (abc_collective)which, c->nranks);
        c->forced[which] = c->nranks > 1 ? found : NULL;
        text += n;
        if (*text == ';')
            text++;
    }
    return ABC_OK;
}

int abci_chooser_open(int rank, int nranks, const struct abci_price_constants *constants, const char *forced, uint64_t chunk,
                      struct abci_chooser **chooser)
{
    struct abci_chooser *c = abci_alloc(sizeof *c);
    if (!c)
        return abci_error(ABC_ERR_MEMORY, "no memory to choose algorithms");
    pthread_mutex_init(&c->lock, NULL);
    c->rank = rank;
    c->nranks = nranks;
    c->constants = *constants;
    c->chunk = chunk ? chunk : nranks <= 2 ? 256 << 10 : nranks <= 4 ? 1 << 20 : 2 << 20;
    int status = parse_forced(c, forced);
    if (status != ABC_OK) {
        abci_chooser_close(c);
        return status;
    }
    *chooser = c;
    return ABC_OK;
}

void abci_chooser_close(struct abci_chooser *c)
{
    if (!c)
        return;
    for (int k = 0; k < ABC_COLLECTIVE_COUNT; k++)
        for (int i = 0; i < c->options[k].count; i++) {
            struct option *o = &c->options[k].option[i];
            for (int r = 0; o->run && r < c->nranks; r++)
                abci_runnable_free(atomic_load(&o->run[r]));
            abci_free((void *)o->run);
        }
    for (struct loaded *l = atomic_load(&c->loaded), *next; l; l = next) {
        next = l->next;
        abci_runnable_free(l->run);
        abci_free(l);
    }
    pthread_mutex_destroy(&c->lock);
    abci_free(c);
}

/* The option's plan for a root, built if it is not there; the caller holds the lock. */
static int runnable(struct abci_chooser *c, struct option *o, abc_collective coll, int root, struct abci_runnable **run)
{
    struct abci_plan *plan;
    *run = atomic_load_explicit(&o->run[root], memory_order_relaxed);
    if (*run)
        return ABC_OK;
    int status = abci_plan_build(o->algo, coll, c->nranks, c->rank, root, &plan);
    if (status != ABC_OK)
        return status;
    *run = abci_runnable_make(plan);
    if (!*run) {
        abci_plan_free(plan);
        return abci_error(ABC_ERR_MEMORY, "no memory for a plan");
    }
    atomic_store_explicit(&o->run[root], *run, memory_order_release); /* pairs with abci_choose */
    return ABC_OK;
}

/* Every reduction on every rank is a whole one. Asked of the set: a rank that only sends partial sums on has none of its own, and
 * ranks that answered for themselves would choose differently. */
static bool rounds_once(const struct abci_plan_set *set)
{
    for (int r = 0; r < set->nranks; r++)
        for (uint32_t i = 0; i < set->plan[r]->nsteps; i++)
            if (set->plan[r]->steps[i].kind == ABCI_REDUCE && !(set->plan[r]->steps[i].flags & ABCI_FINAL))
                return false;
    return true;
}

/* With very many ranks no prices are computed: one reading step per rank costs p, so the slices win. */
static void rule_of_thumb(struct option *o, int nranks)
{
    bool sliced = strcmp(o->algo->name, "twoshot") == 0 || strcmp(o->algo->name, "oneshot") == 0;
    o->one_rounding = sliced;
    o->price.fixed = sliced ? 1e-6 * nranks : 1e-3 * nranks;
    o->price.per_byte = strcmp(o->algo->name, "oneshot") == 0 ? 1e-10 * nranks : 1e-9;
}

/* Fill the table of a collective: who can do it, at what price. The caller holds the lock. */
static int price_all(struct abci_chooser *c, abc_collective coll)
{
    struct options *all = &c->options[coll];
    all->count = 0; /* an attempt that ran out of memory begins again */
    for (int i = 0; abci_algos[i] && all->count < MAX_ALGOS; i++) {
        if (!abci_algo_fits(abci_algos[i], coll, c->nranks))
            continue;
        struct option *o = &all->option[all->count++];
        struct abci_runnable *run;
        o->algo = abci_algos[i];
        o->run = o->run ? o->run : abci_alloc(sizeof *o->run * (size_t)c->nranks);
        if (!o->run)
            return abci_error(ABC_ERR_MEMORY, "no memory for plans");
        int status = runnable(c, o, coll, 0, &run);
        if (status != ABC_OK)
            return status;
        if (c->nranks > PRICED_RANKS) {
            rule_of_thumb(o, c->nranks);
            continue;
        }
        struct abci_plan_set set;
        status = abci_plan_set_build(o->algo, coll, c->nranks, 0, &set);
        if (status != ABC_OK)
            return status;
        o->one_rounding = rounds_once(&set);
        abci_plan_price(&set, &c->constants, &o->price);
        abci_plan_set_free(&set);
        ABCI_LOG(ABCI_LOG_DEBUG, "tune", c->rank, "%s by %s: %.2f us + %.3f us per MiB", abc_collective_name(coll), o->algo->name,
                 o->price.fixed * 1e6, o->price.per_byte * 1e6 * 1048576);
    }
    atomic_store_explicit(&all->priced, true, memory_order_release); /* pairs with abci_choose */
    return ABC_OK;
}

static struct option *cheapest(struct options *all, const struct abci_wish *wish)
{
    struct option *best = NULL;
    double lowest = 0;
    for (int i = 0; i < all->count; i++) {
        struct option *o = &all->option[i];
        double price = o->price.fixed + o->price.per_byte * (double)wish->bytes;
        if ((wish->one_rounding && !o->one_rounding) || (wish->ordered && !o->algo->ordered))
            continue;
        if (!best || price < lowest) {
            best = o;
            lowest = price;
        }
    }
    return best;
}

static int named(struct abci_chooser *c, const struct abci_wish *wish, struct option **out, const struct abci_runnable **run)
{
    for (struct loaded *l = atomic_load_explicit(&c->loaded, memory_order_acquire); l; l = l->next) {
        const struct abci_plan *p = l->run->plan;
        if (strcmp(p->name, wish->algorithm) != 0)
            continue;
        if (p->collective != wish->collective || (wish->collective == ABC_BROADCAST && p->root != wish->root))
            return abci_error(ABC_ERR_UNSUPPORTED, "plan %s is one for %s with root %u", p->name,
                              abc_collective_name((abc_collective)p->collective), p->root);
        *run = l->run;
        return ABC_OK;
    }
    const struct abci_algo *algo = abci_algo_find(wish->algorithm);
    if (!algo)
        return unknown_algorithm(wish->algorithm);
    struct options *all = &c->options[wish->collective];
    for (int i = 0; i < all->count; i++)
        if (all->option[i].algo == algo) {
            if (wish->ordered && !algo->ordered)
                return abci_error(ABC_ERR_UNSUPPORTED, "algorithm %s swaps operands; the operation does not commute", algo->name);
            *out = &all->option[i];
            return ABC_OK;
        }
    return unfit_algorithm(wish->algorithm, wish->collective, c->nranks);
}

/* The option that the wish, the settings or the prices name. */
static int pick(struct abci_chooser *c, const struct abci_wish *wish, struct option **out, const struct abci_runnable **run)
{
    struct options *all = &c->options[wish->collective];
    const struct abci_algo *forced = c->forced[wish->collective];
    *out = NULL;
    if (wish->algorithm)
        return named(c, wish, out, run);
    if (forced && !(wish->ordered && !forced->ordered)) {
        for (int i = 0; i < all->count; i++)
            if (all->option[i].algo == forced)
                *out = &all->option[i];
    } else {
        *out = cheapest(all, wish);
    }
    if (!*out)
        return abci_error(ABC_ERR_UNSUPPORTED, "no algorithm does %s with %d ranks", abc_collective_name(wish->collective),
                          c->nranks);
    return ABC_OK;
}

static int price_locked(struct abci_chooser *c, abc_collective coll)
{
    pthread_mutex_lock(&c->lock);
    int status = atomic_load_explicit(&c->options[coll].priced, memory_order_relaxed) ? ABC_OK : price_all(c, coll);
    pthread_mutex_unlock(&c->lock);
    return status;
}

int abci_choose(struct abci_chooser *c, const struct abci_wish *wish, const struct abci_runnable **run, uint64_t *chunk)
{
    struct option *o;
    struct abci_runnable *built;
    int status = ABC_OK;
    if (ABCI_UNLIKELY(!atomic_load_explicit(&c->options[wish->collective].priced, memory_order_acquire)))
        status = price_locked(c, wish->collective);
    *chunk = c->chunk;
    *run = NULL;
    if (status == ABC_OK)
        status = pick(c, wish, &o, run);
    if (status != ABC_OK || *run)
        return status;
    int root = wish->collective == ABC_BROADCAST ? wish->root : 0;
    *run = atomic_load_explicit(&o->run[root], memory_order_acquire);
    if (ABCI_LIKELY(*run != NULL))
        return ABC_OK;
    pthread_mutex_lock(&c->lock);
    status = runnable(c, o, wish->collective, root, &built);
    pthread_mutex_unlock(&c->lock);
    if (status == ABC_OK)
        *run = built;
    return status;
}

static int add_locked(struct abci_chooser *c, struct abci_plan_set *set)
{
    const char *name = set->plan[0]->name;
    for (struct loaded *l = atomic_load(&c->loaded); l; l = l->next)
        if (strcmp(l->run->plan->name, name) == 0)
            return abci_error(ABC_ERR_STATE, "a plan named %s is loaded already", name);
    struct loaded *l = abci_alloc(sizeof *l);
    struct abci_runnable *run = l ? abci_runnable_make(set->plan[c->rank]) : NULL;
    if (!run) {
        abci_free(l);
        return abci_error(ABC_ERR_PLAN, "plan %s cannot be run: no memory, or a step kind that is reserved", name);
    }
    set->plan[c->rank] = NULL;
    run->keeps_staging = true; /* it may publish what nobody waits for */
    l->run = run;
    l->next = atomic_load(&c->loaded);
    atomic_store_explicit(&c->loaded, l, memory_order_release); /* pairs with named() */
    return ABC_OK;
}

int abci_chooser_add(struct abci_chooser *c, struct abci_plan_set *set)
{
    if (set->nranks != c->nranks)
        return abci_error(ABC_ERR_PLAN, "the plan is for %d ranks, the communicator has %d", set->nranks, c->nranks);
    if (abci_algo_find(set->plan[0]->name))
        return abci_error(ABC_ERR_PLAN, "plan name %s is a built-in algorithm's; rename it", set->plan[0]->name);
    pthread_mutex_lock(&c->lock);
    int status = add_locked(c, set);
    pthread_mutex_unlock(&c->lock);
    return status;
}
