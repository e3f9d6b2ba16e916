/*
 * choose.c - which algorithm an operation gets: the cheapest by price among those whose result has the promised bits, unless the
 * caller, a setting or the tuning file names another. All of that becomes a list of rules once per collective (rules.c), so a
 * choice is a few comparisons. Owner: the communicator.
 */
#include "tune/choose.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "plan/price.h"
#include "tune/rules.h"

#define MAX_ALGOS 16
#define PRICED_RANKS 128 /* beyond, pricing all ranks' plans costs more than it tells: the rule below decides */

#define MAX_CHUNK (1u << 30)
#define CLASSES 4 /* bit 0: one_rounding, bit 1: ordered */

struct options {
    _Atomic bool priced; /* release: rows and rules are complete; acquire in abci_choose */
    int count;
    struct abci_option option[MAX_ALGOS];
    struct abci_rule *rules[ABCI_MEMORY_COUNT][CLASSES];
};

/* ABCOMM_ALGO for one collective. */
struct forced {
    const struct abci_algo *algo;
    uint64_t chunk;
};

/* A plan that the caller has loaded. */
struct loaded {
    struct abci_runnable *run;
    bool one_rounding; /* see abci_option */
    struct loaded *next;
};

struct abci_chooser {
    int rank, nranks;
    uint64_t forced_chunk; /* by ABCOMM_CHUNK, or 0 */
    struct abci_price_constants constants;
    struct options options[ABC_COLLECTIVE_COUNT];
    struct forced forced[ABC_COLLECTIVE_COUNT];
    bool strict; /* ABCOMM_DETERMINISTIC */
    struct abci_tuning *tuning;
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
    for (int c = 0; c < ABCI_PLANNED; c++)
        if (strcmp(name, abc_collective_name((abc_collective)c)) == 0)
            return c;
    return -1;
}

static void known_collectives(char *text, size_t capacity)
{
    size_t at = 0;
    for (int c = 0; c < ABCI_PLANNED && at < capacity; c++)
        at += (size_t)snprintf(text + at, capacity - at, "%s%s", c ? ", " : "", abc_collective_name((abc_collective)c));
}

/* "ring@64K" into name and chunk; without @ the chunk stays 0. */
static int split_name(const char *text, char name[ABCI_NAME_MAX], uint64_t *chunk)
{
    char why[200];
    double number = 0;
    const char *at = strchr(text, '@');
    size_t length = at ? (size_t)(at - text) : strlen(text);
    *chunk = 0;
    if (length >= ABCI_NAME_MAX)
        return unknown_algorithm(text);
    memcpy(name, text, length);
    name[length] = 0;
    if (!at)
        return ABC_OK;
    if (abci_setting_parse(&abci_setting_table[ABCI_SET_CHUNK], at + 1, &number, why, sizeof why) != ABC_OK || number < 1)
        return abci_error(ABC_ERR_ARGUMENT, "algorithm \"%.60s\": after @ stands the chunk, 1 to %u bytes, with K, M or G", text,
                          MAX_CHUNK);
    *chunk = (uint64_t)number;
    return ABC_OK;
}

/* "allreduce:ring;broadcast:binomial@64K" */
static int parse_forced(struct abci_chooser *c, const char *text)
{
    while (*text) {
        char coll[32], word[64], name[ABCI_NAME_MAX];
        uint64_t chunk;
        int n = 0;
        if (sscanf(text, " %31[a-z_] : %63[a-zA-Z0-9_@] %n", coll, word, &n) < 2 || (text[n] != 0 && text[n] != ';'))
            return abci_error(ABC_ERR_ARGUMENT, "ABCOMM_ALGO: \"%.60s\" is not collective:algorithm, separated by ';'", text);
        int which = collective_of(coll);
        if (which < 0) {
            char names[256];
            known_collectives(names, sizeof names);
            return abci_error(ABC_ERR_ARGUMENT, "ABCOMM_ALGO: \"%s\" is no collective; use one of %s", coll, names);
        }
        int status = split_name(word, name, &chunk);
        if (status != ABC_OK)
            return status;
        const struct abci_algo *found = abci_algo_find(name);
        if (!found)
            return unknown_algorithm(name);
        if (!abci_algo_fits(found, (abc_collective)which, c->nranks) && c->nranks > 1)
            return unfit_algorithm(name, (abc_collective)which, c->nranks);
        c->forced[which] = (struct forced){c->nranks > 1 ? found : NULL, chunk};
        text += n;
        if (*text == ';')
            text++;
    }
    return ABC_OK;
}

static int keep_tuning(struct abci_chooser *c, const struct abci_tuning *tuning)
{
    if (!tuning || tuning->count == 0)
        return ABC_OK;
    c->tuning = abci_alloc(sizeof *c->tuning);
    if (!c->tuning)
        return abci_error(ABC_ERR_MEMORY, "no memory for the rows of a tuning file");
    *c->tuning = *tuning;
    return ABC_OK;
}

int abci_chooser_open(const struct abci_chooser_config *config, struct abci_chooser **chooser)
{
    struct abci_chooser *c = abci_alloc(sizeof *c);
    if (!c)
        return abci_error(ABC_ERR_MEMORY, "no memory to choose algorithms");
    pthread_mutex_init(&c->lock, NULL);
    c->rank = config->rank;
    c->nranks = config->nranks;
    c->constants = *config->constants;
    c->forced_chunk = config->chunk;
    c->strict = strcmp(abci_setting_string(ABCI_SET_DETERMINISTIC), "strict") == 0;
    int status = parse_forced(c, config->forced);
    if (status == ABC_OK)
        status = keep_tuning(c, config->tuning);
    if (status != ABC_OK) {
        abci_chooser_close(c);
        return status;
    }
    *chooser = c;
    return ABC_OK;
}

const struct abci_tuning *abci_chooser_tuning(const struct abci_chooser *c)
{
    return c->tuning;
}

void abci_chooser_close(struct abci_chooser *c)
{
    if (!c)
        return;
    for (int k = 0; k < ABC_COLLECTIVE_COUNT; k++) {
        for (int i = 0; i < c->options[k].count; i++) {
            struct abci_option *o = &c->options[k].option[i];
            for (int r = 0; o->run && r < c->nranks; r++)
                abci_runnable_free(atomic_load(&o->run[r]));
            abci_free((void *)o->run);
        }
        for (int i = 0; i < ABCI_MEMORY_COUNT * CLASSES; i++)
            abci_free(c->options[k].rules[i / CLASSES][i % CLASSES]);
    }
    abci_free(c->tuning);
    for (struct loaded *l = atomic_load(&c->loaded), *next; l; l = next) {
        next = l->next;
        abci_runnable_free(l->run);
        abci_free(l);
    }
    pthread_mutex_destroy(&c->lock);
    abci_free(c);
}

/* The option's plan for a root, built if it is not there; the caller holds the lock. */
static int runnable(struct abci_chooser *c, struct abci_option *o, abc_collective coll, int root, struct abci_runnable **run)
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
bool abci_rounds_once(const struct abci_plan_set *set)
{
    for (int r = 0; r < set->nranks; r++)
        for (uint32_t i = 0; i < set->plan[r]->nsteps; i++)
            if (set->plan[r]->steps[i].kind == ABCI_REDUCE && !(set->plan[r]->steps[i].flags & ABCI_FINAL))
                return false;
    return true;
}

/* With very many ranks no prices are computed: one reading step per rank costs p, so the slices win. */
static void rule_of_thumb(struct abci_option *o, int nranks)
{
    bool sliced = strcmp(o->algo->name, "twoshot") == 0 || strcmp(o->algo->name, "oneshot") == 0;
    o->one_rounding = sliced;
    o->price[ABCI_PRIVATE].fixed = sliced ? 1e-6 * nranks : 1e-3 * nranks;
    o->price[ABCI_PRIVATE].per_byte = strcmp(o->algo->name, "oneshot") == 0 ? 1e-10 * nranks : 1e-9;
    o->price[ABCI_ARENA] = o->price[ABCI_PRIVATE];
}

static int price_one(struct abci_chooser *c, abc_collective coll, struct abci_option *o)
{
    struct abci_plan_set set;
    int status = abci_plan_set_build(o->algo, coll, c->nranks, 0, &set);
    if (status != ABC_OK)
        return status;
    o->one_rounding = abci_rounds_once(&set);
    abci_plan_price(&set, &c->constants, &o->price[ABCI_PRIVATE]);
    abci_plan_price_direct(&set, &c->constants, &o->price[ABCI_ARENA]);
    abci_plan_set_free(&set);
    for (int m = 0; m < ABCI_MEMORY_COUNT; m++)
        ABCI_LOG(ABCI_LOG_DEBUG, "tune", c->rank, "%s by %s, %s: %.2f us + %.3f us per MiB", abc_collective_name(coll),
                 o->algo->name, abci_memory_name(m), o->price[m].fixed * 1e6, o->price[m].per_byte * 1e6 * 1048576);
    return ABC_OK;
}

/* The rows of the tuning file for a collective: they lie together. */
static const struct abci_tuning_row *rows_of(const struct abci_chooser *c, abc_collective coll, int memory, uint32_t *count)
{
    const struct abci_tuning_row *first = NULL;
    *count = 0;
    for (uint32_t i = 0; c->tuning && i < c->tuning->count; i++) {
        const struct abci_tuning_row *row = &c->tuning->row[i];
        if (row->ranks != c->nranks || row->collective != coll || row->memory != memory)
            continue;
        first = first ? first : row;
        ++*count;
    }
    return first;
}

/* Staging of a whole host: each of its ranks may have 4 regions of 2 chunks in use. */
#define HOST_STAGING (1ull << 30)

static void bound_chunks(const struct abci_chooser *c, struct abci_rules_config *config)
{
    uint64_t most = HOST_STAGING / (8 * (uint64_t)c->nranks);
    config->chunk = config->chunk < most ? config->chunk : most;
    config->long_chunk = config->long_chunk < most ? config->long_chunk : most;
}

/*
 * Chunks where nobody names them. Each chunk costs its waits; a large one is written to memory before a peer has read it. All
 * measured with 2 CPUs by `abcomm tune` (bench/results/regret.md):
 *
 * - A CPU for each rank, 2 ranks: 256 KiB of private memory stay in the caches of both, in the arena 1 MiB gains 10 %. Sums want
 *   128 KiB between near cores and 512 KiB between distant ones, where each wait costs more. Those that pair (run_pair.c) take 2 to
 *   5 % less time by 64 KiB near, from 256 KiB on, and 3 to 12 % less by 128 KiB far, above 512 KiB. Cores may move apart while a
 *   job runs: then 64 KiB cost 4 %, 32 KiB 15 to 20, 16 KiB 40. Up to 6 MiB near 5 to 20 % less time than by two steps, beyond 10
 *   to 20 % more, in place.
 * - With more ranks each reads a slice of a chunk, so chunks grow with the ranks.
 * - Crowded, a wait is a yield of the CPU, so few large chunks win. Of long sums 512 KiB: private ones are staged, and beside
 *   larger chunks neither staging nor input and output stay in the caches. 8 ranks, 8 MiB in place, near: 3.0 ms, by 1 MiB 4.2;
 *   far: 3.0, by 256 KiB 3.2. Sums of arena memory take the same chunks but want larger ones: 4 ranks, 8 MiB: 0.35 ms, by 256 KiB
 *   0.42, by 1 MiB 0.32.
 */
static void set_chunks(const struct abci_chooser *c, abc_collective coll, struct abci_rules_config *config)
{
    bool wide = abci_part_by_rank(coll), arena = config->memory == ABCI_ARENA;
    uint64_t share = wide ? (uint64_t)c->nranks : 1; /* of a whole buffer: sizes here are those of one block */
    if (c->constants.crowding > 1) {
        config->chunk = 4 << 20;
        config->long_chunk = abci_is(ABCI_REDUCING, coll) ? 512 << 10 : 4 << 20;
        config->long_from = ((uint64_t)c->nranks << 20) / share + 1;
    } else if (c->nranks == 2 && coll == ABC_ALLREDUCE && !arena) {
        bool near = c->constants.hand_off < ABCI_DISTANT;
        config->chunk = config->long_chunk = near ? 128 << 10 : 512 << 10;
        config->long_from = near ? 256 << 10 : (512 << 10) + 1;
        config->pair_long = near ? 64 << 10 : 128 << 10;
        config->pair_to = near ? 6 << 20 : UINT64_MAX;
    } else {
        config->chunk = c->nranks > 4 ? 2 << 20 : c->nranks > 2 || arena ? 1 << 20 : 256 << 10;
        config->long_chunk = config->chunk;
        config->long_from = UINT64_MAX;
    }
    bound_chunks(c, config);
}

/* What a call gets that names an algorithm without a chunk. */
static uint64_t usual_chunk(const struct abci_chooser *c, const struct abci_wish *wish, const struct abci_option *option)
{
    struct abci_rules_config config = {.memory = wish->arena ? ABCI_ARENA : ABCI_PRIVATE};
    set_chunks(c, wish->collective, &config);
    return c->forced_chunk ? c->forced_chunk : abci_rules_chunk(&config, option, wish->bytes);
}

static int make_rules(struct abci_chooser *c, abc_collective coll)
{
    struct options *all = &c->options[coll];
    for (int i = 0; i < ABCI_MEMORY_COUNT * CLASSES; i++) {
        struct abci_rules_config config = {.options = all->option,
                                           .count = all->count,
                                           .memory = (enum abci_memory)(i / CLASSES),
                                           .one_rounding = i % CLASSES & 1,
                                           .ordered = i % CLASSES & 2,
                                           .rank_order = c->strict,
                                           .forced = c->forced[coll].algo,
                                           .forced_chunk = c->forced[coll].chunk ? c->forced[coll].chunk : c->forced_chunk};
        set_chunks(c, coll, &config);
        config.rows = rows_of(c, coll, config.memory, &config.nrows);
        abci_free(all->rules[i / CLASSES][i % CLASSES]);
        all->rules[i / CLASSES][i % CLASSES] = abci_rules_make(&config);
        if (!all->rules[i / CLASSES][i % CLASSES])
            return abci_error(ABC_ERR_MEMORY, "no memory to choose algorithms");
    }
    return ABC_OK;
}

/* Fill the table of a collective: who can do it, at what price. The caller holds the lock. */
static int price_all(struct abci_chooser *c, abc_collective coll)
{
    struct options *all = &c->options[coll];
    all->count = 0; /* an attempt that ran out of memory begins again */
    for (int i = 0; abci_algos[i] && all->count < MAX_ALGOS; i++) {
        if (!abci_algo_fits(abci_algos[i], coll, c->nranks))
            continue;
        struct abci_option *o = &all->option[all->count++];
        struct abci_runnable *run;
        o->algo = abci_algos[i];
        o->run = o->run ? o->run : abci_alloc(sizeof *o->run * (size_t)c->nranks);
        if (!o->run)
            return abci_error(ABC_ERR_MEMORY, "no memory for plans");
        int status = runnable(c, o, coll, 0, &run);
        if (status != ABC_OK)
            return status;
        o->pairs = run->pairs;
        if (c->nranks > PRICED_RANKS)
            rule_of_thumb(o, c->nranks);
        else if ((status = price_one(c, coll, o)) != ABC_OK)
            return status;
    }
    int status = make_rules(c, coll);
    if (status == ABC_OK)
        atomic_store_explicit(&all->priced, true, memory_order_release); /* pairs with abci_choose */
    return status;
}

/* May it be taken for the wish under ABCOMM_DETERMINISTIC=strict? Chains of partial sums are in rank order, but a narrow type would
 * be rounded in each, and a function of the caller's would be bracketed another way. */
static bool strict_enough(const struct abci_chooser *c, const struct abci_wish *wish, bool rank_order, bool one_rounding)
{
    return !c->strict || !wish->one_rounding || (rank_order && (one_rounding || !wish->narrow));
}

static int not_strict(const struct abci_chooser *c, const struct abci_wish *wish, const char *name)
{
    char names[256] = "";
    const struct options *all = &c->options[wish->collective];
    size_t at = 0;
    for (int i = 0; i < all->count && at < sizeof names; i++)
        if (strict_enough(c, wish, all->option[i].algo->rank_order, all->option[i].one_rounding))
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", all->option[i].algo->name);
    return abci_error(ABC_ERR_UNSUPPORTED,
                      "algorithm %s does not add in rank order, which ABCOMM_DETERMINISTIC=strict asks for; "
                      "these do: %s",
                      name, names);
}

static const struct abci_rule *lookup(const struct abci_chooser *c, const struct abci_wish *wish)
{
    const struct abci_rule *list = c->options[wish->collective].rules[wish->arena][wish->one_rounding + 2 * wish->ordered];
    return abci_rules_find(list, wish->bytes);
}

/* What the caller has named: a loaded plan, or an option. A direct one speaks only of buffers in the arena. */
static int named(struct abci_chooser *c, const struct abci_wish *wish, struct abci_option **out, struct abci_choice *choice)
{
    char name[ABCI_NAME_MAX];
    uint64_t chunk;
    int status = split_name(wish->algorithm, name, &chunk);
    if (status != ABC_OK)
        return status;
    choice->why = ABCI_BY_CALL;
    choice->chunk = chunk ? chunk : usual_chunk(c, wish, NULL);
    for (struct loaded *l = atomic_load_explicit(&c->loaded, memory_order_acquire); l; l = l->next) {
        const struct abci_plan *p = l->run->plan;
        if (strcmp(p->name, name) != 0)
            continue;
        if (p->collective != wish->collective || (abci_is(ABCI_ROOTED, wish->collective) && p->root != wish->root))
            return abci_error(ABC_ERR_UNSUPPORTED, "plan %s is one for %s with root %u", p->name,
                              abc_collective_name((abc_collective)p->collective), p->root);
        if (!strict_enough(c, wish, p->rank_order, l->one_rounding))
            return not_strict(c, wish, p->name);
        choice->run = l->run;
        choice->one_rounding = l->one_rounding;
        return ABC_OK;
    }
    const struct abci_algo *algo = abci_algo_find(name);
    if (!algo)
        return unknown_algorithm(name);
    struct options *all = &c->options[wish->collective];
    for (int i = 0; i < all->count; i++)
        if (all->option[i].algo == algo) {
            if (wish->ordered && !algo->ordered)
                return abci_error(ABC_ERR_UNSUPPORTED, "algorithm %s swaps operands; the operation does not commute", algo->name);
            if (!strict_enough(c, wish, algo->rank_order, all->option[i].one_rounding))
                return not_strict(c, wish, algo->name);
            *out = algo->direct && !wish->arena ? lookup(c, wish)->option : &all->option[i];
            choice->chunk = chunk ? chunk : usual_chunk(c, wish, *out);
            return ABC_OK;
        }
    return unfit_algorithm(name, wish->collective, c->nranks);
}

/* The option that the call, the settings, the tuning file or the prices name. */
static int pick(struct abci_chooser *c, const struct abci_wish *wish, struct abci_option **out, struct abci_choice *choice)
{
    if (wish->algorithm)
        return named(c, wish, out, choice);
    const struct abci_rule *rule = lookup(c, wish);
    if (rule->option && !strict_enough(c, wish, rule->option->algo->rank_order, rule->option->one_rounding))
        return not_strict(c, wish, rule->option->algo->name);
    choice->chunk = rule->chunk;
    choice->why = rule->why;
    *out = rule->option;
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

int abci_choose(struct abci_chooser *c, const struct abci_wish *wish, struct abci_choice *choice)
{
    struct abci_option *o = NULL;
    struct abci_runnable *built;
    int status = ABC_OK;
    if (ABCI_UNLIKELY(!atomic_load_explicit(&c->options[wish->collective].priced, memory_order_acquire)))
        status = price_locked(c, wish->collective);
    choice->run = NULL;
    if (status == ABC_OK)
        status = pick(c, wish, &o, choice);
    if (status != ABC_OK || choice->run)
        return status;
    choice->one_rounding = o->one_rounding;
    int root = abci_is(ABCI_ROOTED, wish->collective) ? wish->root : 0;
    choice->run = atomic_load_explicit(&o->run[root], memory_order_acquire);
    if (ABCI_LIKELY(choice->run != NULL))
        return ABC_OK;
    pthread_mutex_lock(&c->lock);
    status = runnable(c, o, wish->collective, root, &built);
    pthread_mutex_unlock(&c->lock);
    if (status == ABC_OK)
        choice->run = built;
    return status;
}

const char *abci_why_name(enum abci_why why)
{
    static const char *const names[] = {"price", "file", "setting", "call"};
    return names[why];
}

static void print_size(FILE *out, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    int unit = 0;
    for (; unit < 3 && bytes >= 1024 && bytes % 1024 == 0; unit++)
        bytes /= 1024;
    fprintf(out, "%llu %s", (unsigned long long)bytes, units[unit]);
}

int abci_chooser_rules(struct abci_chooser *c, const struct abci_wish *wish, const struct abci_rule **rules)
{
    struct abci_wish first = *wish;
    struct abci_choice choice;
    first.bytes = 0;
    first.root = 0;
    int status = abci_choose(c, &first, &choice);
    if (status == ABC_OK)
        *rules = lookup(c, &first);
    return status;
}

int abci_chooser_print(struct abci_chooser *c, const struct abci_wish *wish, FILE *out)
{
    const struct abci_rule *r;
    int status = abci_chooser_rules(c, wish, &r);
    if (status != ABC_OK)
        return status;
    for (; r->from != UINT64_MAX; r++) {
        fprintf(out, "  from ");
        print_size(out, r->from);
        fprintf(out, ": %s, chunks of ", r->option ? r->option->algo->name : "nothing");
        print_size(out, r->chunk);
        fprintf(out, " (%s)\n", abci_why_name(r->why));
    }
    return ABC_OK;
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
    l->one_rounding = abci_rounds_once(set);
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
    if (set->plan[0]->direct)
        return abci_error(ABC_ERR_PLAN, "plan %s writes into peers' buffers (flag spread); only built-in plans may",
                          set->plan[0]->name);
    if (abci_algo_find(set->plan[0]->name))
        return abci_error(ABC_ERR_PLAN, "plan name %s is a built-in algorithm's; rename it", set->plan[0]->name);
    pthread_mutex_lock(&c->lock);
    int status = add_locked(c, set);
    pthread_mutex_unlock(&c->lock);
    return status;
}
