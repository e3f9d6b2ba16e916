/*
 * choose.h - which algorithm and chunk size an operation gets. A pure function of what all ranks hold in identical form: the call,
 * the job settings and rank 0's measured constants. One chooser a communicator and rank; any thread, no lock once a plan exists.
 */
#ifndef ABCI_CHOOSE_H
#define ABCI_CHOOSE_H

#include "plan/plan.h"
#include "plan/run.h"

struct abci_chooser;

/* forced: ABCOMM_ALGO's text ("allreduce:ring;broadcast:binomial"), "" for none. An unknown name is an error that lists the known.
 */
int abci_chooser_open(int rank, int nranks, const struct abci_price_constants *constants, const char *forced, uint64_t chunk,
                      struct abci_chooser **chooser);
void abci_chooser_close(struct abci_chooser *chooser);

/* What matters for the choice. */
struct abci_wish {
    abc_collective collective;
    int root;
    uint64_t bytes;        /* count * element size */
    bool one_rounding;     /* floats: bits must not depend on the algorithm */
    bool ordered;          /* operands may not be swapped (user operation that does not commute) */
    const char *algorithm; /* named by the caller, or NULL */
};
/*
 * The plan to run and the chunk size. Plans are built on first use and kept. Errors: ABC_ERR_UNSUPPORTED for a named algorithm that
 * does not do this collective (the text lists those that do), ABC_ERR_ARGUMENT for an unknown name.
 */
int abci_choose(struct abci_chooser *chooser, const struct abci_wish *wish, const struct abci_runnable **run, uint64_t *chunk);
/* Add a caller's plan set under its name; takes this rank's plan out of the set. */
int abci_chooser_add(struct abci_chooser *chooser, struct abci_plan_set *set);

#endif
