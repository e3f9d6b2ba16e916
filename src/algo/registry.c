/*
 * registry.c - stage 3: the table of built-in algorithms, made from the list of names in meson.build. Constant data, any thread.
 */
#include "plan/plan.h"

#include <string.h>

#include "algo/algos.h"

#define ABCI_ALGO_EXTERN(name) extern const struct abci_algo abci_algo_##name;
ABCI_ALGO_MAP(ABCI_ALGO_EXTERN)

#define ABCI_ALGO_ENTRY(name) &abci_algo_##name,
const struct abci_algo *const abci_algos[] = {ABCI_ALGO_MAP(ABCI_ALGO_ENTRY) NULL};

const struct abci_algo *abci_algo_find(const char *name)
{
    for (int i = 0; abci_algos[i]; i++)
        if (strcmp(abci_algos[i]->name, name) == 0)
            return abci_algos[i];
    return NULL;
}

bool abci_algo_fits(const struct abci_algo *algo, abc_collective coll, int nranks)
{
    if ((unsigned)coll >= ABC_COLLECTIVE_COUNT || !(algo->collectives & (1u << coll)))
        return false;
    return nranks == 1 || (nranks >= algo->min_ranks && nranks <= algo->max_ranks);
}
