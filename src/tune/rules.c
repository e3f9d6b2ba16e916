/*
 * rules.c - makes the lists of rules.h. Prices are straight lines in bytes, so the cheapest algorithm changes at a few crossings;
 * rows of a tuning file replace what the prices say in their range, where their algorithm may be taken at all. Called by choose.c
 * under its lock, once a collective. Every rank makes the same list from the same input.
 */
#include "tune/rules.h"

#include <math.h>

#include "base/base.h"

static bool allowed(const struct abci_rules_config *c, const struct abci_option *o)
{
    if (c->rank_order && c->one_rounding && !o->algo->rank_order)
        return false;
    return (o->one_rounding || !c->one_rounding) && (o->algo->ordered || !c->ordered) &&
           (!o->algo->direct || c->memory == ABCI_ARENA);
}

/* Of operations from `from` bytes on, up to pair_to where that is more: what pairs costs 0.7 of its price, measured near and far.
 */
static double per_byte(const struct abci_rules_config *c, const struct abci_option *o, uint64_t from)
{
    return o->price[c->memory].per_byte * (o->pairs && from < c->pair_to ? 0.7 : 1);
}

static double price_at(const struct abci_rules_config *c, const struct abci_option *o, uint64_t bytes)
{
    return o->price[c->memory].fixed + per_byte(c, o, bytes) * (double)bytes;
}

static struct abci_option *cheapest(const struct abci_rules_config *c, uint64_t bytes)
{
    struct abci_option *best = NULL;
    for (int i = 0; i < c->count; i++)
        if (allowed(c, &c->options[i]) && (!best || price_at(c, &c->options[i], bytes) < price_at(c, best, bytes)))
            best = &c->options[i];
    return best;
}

/* The size above `bytes` from which another option is cheaper than `best`, which becomes that one. */
static uint64_t next_crossing(const struct abci_rules_config *c, struct abci_option **best, uint64_t bytes)
{
    uint64_t next = UINT64_MAX;
    const struct abci_price *a = &(*best)->price[c->memory];
    const double least = per_byte(c, *best, bytes);
    struct abci_option *then = NULL;
    for (int i = 0; i < c->count; i++) {
        const struct abci_price *b = &c->options[i].price[c->memory];
        const double each = per_byte(c, &c->options[i], bytes);
        if (!allowed(c, &c->options[i]) || each >= least)
            continue;
        double at = floor((b->fixed - a->fixed) / (least - each)) + 1;
        at = at > (double)bytes ? at : (double)bytes + 1;
        if (at > 1e18 || (uint64_t)at > next || ((uint64_t)at == next && each >= per_byte(c, then, bytes)))
            continue;
        next = (uint64_t)at;
        then = &c->options[i];
    }
    *best = then;
    return next;
}

uint64_t abci_rules_chunk(const struct abci_rules_config *c, const struct abci_option *o, uint64_t bytes)
{
    if (bytes < c->long_from)
        return c->chunk;
    return o && o->pairs && c->pair_long ? c->pair_long : c->long_chunk;
}

/* A list that grows. */
struct list {
    struct abci_rule *first, *end;
};

/* Append, unless it says what the rule before says. */
static void append(struct list *l, struct abci_rule rule)
{
    if (l->end > l->first && l->end[-1].option == rule.option && l->end[-1].chunk == rule.chunk && l->end[-1].why == rule.why)
        return;
    *l->end++ = rule;
}

/* One option for from <= bytes < to. chunk 0: nobody has asked for one, so it depends on the size. */
static void append_range(const struct abci_rules_config *c, struct list *l, struct abci_rule rule, uint64_t to)
{
    uint64_t asked = c->forced_chunk ? c->forced_chunk : rule.chunk;
    rule.chunk = asked ? asked : abci_rules_chunk(c, rule.option, rule.from);
    append(l, rule);
    if (!asked && rule.from < c->long_from && c->long_from < to) {
        rule.from = c->long_from;
        rule.chunk = abci_rules_chunk(c, rule.option, rule.from);
        append(l, rule);
    }
}

/* What the prices say for from <= bytes < to: two sets of straight lines, if pair_to lies between. */
static void append_priced(const struct abci_rules_config *c, struct list *l, uint64_t from, uint64_t to, uint64_t chunk,
                          enum abci_why why)
{
    if (from < c->pair_to && c->pair_to < to) {
        append_priced(c, l, from, c->pair_to, chunk, why);
        from = c->pair_to;
    }
    struct abci_option *best = cheapest(c, from);
    while (from < to) { /* at most once an option: prices per byte fall from one to the next */
        struct abci_rule rule = {from, best, chunk, why};
        uint64_t next = best ? next_crossing(c, &best, from) : to;
        append_range(c, l, rule, next < to ? next : to);
        from = next;
    }
}

/* What a row says; its algorithm may not be taken for every operation. */
static void append_row(const struct abci_rules_config *c, struct list *l, const struct abci_tuning_row *row)
{
    if (row->algorithm == ABCI_TUNING_AUTO) {
        append_priced(c, l, row->from, row->to, row->chunk, ABCI_BY_FILE);
        return;
    }
    for (int i = 0; i < c->count; i++)
        if (c->options[i].algo == abci_algos[row->algorithm] && allowed(c, &c->options[i])) {
            append_range(c, l, (struct abci_rule){row->from, &c->options[i], row->chunk, ABCI_BY_FILE}, row->to);
            return;
        }
    append_priced(c, l, row->from, row->to, 0, ABCI_BY_PRICE);
}

struct abci_rule *abci_rules_make(const struct abci_rules_config *c)
{
    /* Between two rows the prices cross at most as often as there are algorithms; once the lines and once the chunk change. */
    size_t most = (size_t)(2 * c->nrows + 2) * (size_t)(c->count + 1) + 3;
    struct list l = {.first = abci_alloc(most * sizeof *l.first)};
    if (!l.first)
        return NULL;
    l.end = l.first;
    struct abci_option *forced = NULL;
    for (int i = 0; i < c->count; i++)
        if (c->forced == c->options[i].algo && (c->forced->ordered || !c->ordered) &&
            (!c->forced->direct || c->memory == ABCI_ARENA))
            forced = &c->options[i];
    uint64_t from = 0;
    if (forced) {
        append_range(c, &l, (struct abci_rule){0, forced, 0, ABCI_BY_SETTING}, UINT64_MAX);
        from = UINT64_MAX;
    }
    for (uint32_t i = 0; i < c->nrows && from < UINT64_MAX; i++) {
        append_priced(c, &l, from, c->rows[i].from, 0, ABCI_BY_PRICE);
        append_row(c, &l, &c->rows[i]);
        from = c->rows[i].to;
    }
    append_priced(c, &l, from, UINT64_MAX, 0, ABCI_BY_PRICE);
    *l.end = (struct abci_rule){UINT64_MAX, NULL, 0, ABCI_BY_PRICE};
    return l.first;
}
