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
    return (o->one_rounding || !c->one_rounding) && (o->algo->ordered || !c->ordered);
}

static double price_at(const struct abci_rules_config *c, const struct abci_option *o, uint64_t bytes)
{
    return o->price[c->memory].fixed + o->price[c->memory].per_byte * (double)bytes;
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
    struct abci_option *then = NULL;
    for (int i = 0; i < c->count; i++) {
        const struct abci_price *b = &c->options[i].price[c->memory];
        if (!allowed(c, &c->options[i]) || b->per_byte >= a->per_byte)
            continue;
        double at = floor((b->fixed - a->fixed) / (a->per_byte - b->per_byte)) + 1;
        at = at > (double)bytes ? at : (double)bytes + 1;
        if (at > 1e18 || (uint64_t)at > next || ((uint64_t)at == next && b->per_byte >= then->price[c->memory].per_byte))
            continue;
        next = (uint64_t)at;
        then = &c->options[i];
    }
    *best = then;
    return next;
}

/* Append, unless it says what the rule before says. */
static struct abci_rule *append(struct abci_rule *first, struct abci_rule *end, struct abci_rule rule)
{
    if (end > first && end[-1].option == rule.option && end[-1].chunk == rule.chunk && end[-1].why == rule.why)
        return end;
    *end = rule;
    return end + 1;
}

/* What the prices say for from <= bytes < to. */
static struct abci_rule *append_priced(const struct abci_rules_config *c, struct abci_rule *first, struct abci_rule *end,
                                       uint64_t from, uint64_t to)
{
    uint64_t chunk = c->forced_chunk ? c->forced_chunk : c->chunk;
    struct abci_option *best = cheapest(c, from);
    while (from < to) { /* at most once an option: prices per byte fall from one to the next */
        end = append(first, end, (struct abci_rule){from, best, chunk, ABCI_BY_PRICE});
        from = best ? next_crossing(c, &best, from) : to;
    }
    return end;
}

/* What a row says; its algorithm may not be taken for every operation. */
static struct abci_rule *append_row(const struct abci_rules_config *c, struct abci_rule *first, struct abci_rule *end,
                                    const struct abci_tuning_row *row)
{
    uint64_t chunk = c->forced_chunk ? c->forced_chunk : row->chunk ? row->chunk : c->chunk;
    if (row->algorithm != ABCI_TUNING_AUTO) {
        for (int i = 0; i < c->count; i++)
            if (c->options[i].algo == abci_algos[row->algorithm] && allowed(c, &c->options[i]))
                return append(first, end, (struct abci_rule){row->from, &c->options[i], chunk, ABCI_BY_FILE});
        return append_priced(c, first, end, row->from, row->to);
    }
    struct abci_rules_config tuned = *c;
    struct abci_rule *start = end;
    tuned.chunk = chunk;
    end = append_priced(&tuned, end, end, row->from, row->to);
    for (; start < end; start++)
        start->why = ABCI_BY_FILE;
    return end;
}

struct abci_rule *abci_rules_make(const struct abci_rules_config *c)
{
    /* Between two rows the prices cross at most as often as there are algorithms. */
    size_t most = (size_t)(2 * c->nrows + 1) * (size_t)(c->count + 1) + 1;
    struct abci_rule *first = abci_alloc(most * sizeof *first), *end = first;
    if (!first)
        return NULL;
    struct abci_option *forced = NULL;
    for (int i = 0; i < c->count; i++)
        if (c->forced == c->options[i].algo && (c->forced->ordered || !c->ordered))
            forced = &c->options[i];
    uint64_t from = 0;
    if (forced) {
        uint64_t chunk = c->forced_chunk ? c->forced_chunk : c->chunk;
        end = append(first, end, (struct abci_rule){0, forced, chunk, ABCI_BY_SETTING});
        from = UINT64_MAX;
    }
    for (uint32_t i = 0; i < c->nrows && from < UINT64_MAX; i++) {
        end = append_priced(c, first, end, from, c->rows[i].from);
        end = append_row(c, first, end, &c->rows[i]);
        from = c->rows[i].to;
    }
    end = append_priced(c, first, end, from, UINT64_MAX);
    *end = (struct abci_rule){UINT64_MAX, NULL, 0, ABCI_BY_PRICE};
    return first;
}
