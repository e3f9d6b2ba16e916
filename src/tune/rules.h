/*
 * rules.h - the table behind a choice: ranges of sizes, each with the algorithm that is taken there. Built once for a collective
 * from prices and the rows of a tuning file; then looked up without a lock. Private to choose.c and rules.c, and to tests that ask
 * where choices change.
 */
#ifndef ABCI_RULES_H
#define ABCI_RULES_H

#include "tune/choose.h"

/* A way to do a collective, as far as a rule knows it. */
struct abci_option {
    const struct abci_algo *algo;
    struct abci_price price[ABCI_MEMORY_COUNT];
    bool one_rounding;                    /* every reduction on every rank is a whole one */
    bool pairs;                           /* its chunks are exchanged in one loop: src/plan/run_pair.c */
    _Atomic(struct abci_runnable *) *run; /* [nranks], by root; built on first use; of choose.c */
};

/* From `from` bytes on, until the next rule. The last one of a list stands at UINT64_MAX and is never taken. */
struct abci_rule {
    uint64_t from;
    struct abci_option *option; /* NULL: nobody does it */
    uint64_t chunk;
    enum abci_why why;
};

/* What the rules of one list are for. */
struct abci_rules_config {
    struct abci_option *options;
    int count;
    enum abci_memory memory;
    bool one_rounding, ordered;         /* who may be taken: see abci_wish */
    bool rank_order;                    /* who may be taken, where bits matter: by ABCOMM_DETERMINISTIC=strict */
    const struct abci_algo *forced;     /* by ABCOMM_ALGO, or NULL */
    uint64_t chunk;                     /* where nothing else is said, for operations below long_from bytes */
    uint64_t long_chunk, long_from;     /* and for longer ones */
    uint64_t pair_long;                 /* the latter for options that pair; 0: no difference */
    uint64_t pair_to;                   /* up to this size those are cheaper than their price; 0: never */
    uint64_t forced_chunk;              /* by ABCOMM_CHUNK or ABCOMM_ALGO, 0: by nobody */
    const struct abci_tuning_row *rows; /* of this case, ascending */
    uint32_t nrows;
};
/* The chunk of an operation of this size where nobody asks for one. */
uint64_t abci_rules_chunk(const struct abci_rules_config *config, const struct abci_option *option, uint64_t bytes);
/* The list, from the heap (abci_free), or NULL without memory. */
struct abci_rule *abci_rules_make(const struct abci_rules_config *config);

/* choose.c: the list that decides for wishes like this one; root and bytes do not matter. The chooser's. */
int abci_chooser_rules(struct abci_chooser *chooser, const struct abci_wish *wish, const struct abci_rule **rules);

/* A few comparisons, none for short operations: the list is short, and ascends. */
static inline const struct abci_rule *abci_rules_find(const struct abci_rule *list, uint64_t bytes)
{
    while (list[1].from <= bytes)
        list++;
    return list;
}

#endif
