/*
 * choose.h - which algorithm and chunk size an operation gets. A pure function of what all ranks hold in identical form: the call,
 * the job settings, rank 0's measured constants and rank 0's tuning file. One chooser a communicator and rank; any thread, no lock
 * once a plan exists.
 */
#ifndef ABCI_CHOOSE_H
#define ABCI_CHOOSE_H

#include "plan/plan.h"
#include "plan/run.h"
#include "tune/tuning.h"

struct abci_chooser;

struct abci_chooser_config {
    int rank, nranks;
    const struct abci_price_constants *constants;
    const char *forced;               /* ABCOMM_ALGO's text ("allreduce:ring;broadcast:binomial@64K"), "" for none */
    uint64_t chunk;                   /* ABCOMM_CHUNK, 0 for none */
    const struct abci_tuning *tuning; /* rank 0's, copied; NULL for none */
};
/* An unknown name in `forced` is an error that lists the known. */
int abci_chooser_open(const struct abci_chooser_config *config, struct abci_chooser **chooser);
void abci_chooser_close(struct abci_chooser *chooser);
/* What it was opened with; NULL for none. */
const struct abci_tuning *abci_chooser_tuning(const struct abci_chooser *chooser);

/* What matters for the choice. */
struct abci_wish {
    abc_collective collective;
    int root;
    uint64_t bytes;        /* count * element size */
    bool one_rounding;     /* floats: bits must not depend on the algorithm */
    bool narrow;           /* such a type that accumulates in a wider one, or folds as the caller's function does */
    bool ordered;          /* operands may not be swapped (user operation that does not commute) */
    bool arena;            /* every rank's buffers lie in its arena, and every rank knows that of all */
    const char *algorithm; /* named by the caller, or NULL; "ring@64K" names the chunk, too */
};
enum abci_why { ABCI_BY_PRICE, ABCI_BY_FILE, ABCI_BY_SETTING, ABCI_BY_CALL };
struct abci_choice {
    const struct abci_runnable *run;
    uint64_t chunk;
    enum abci_why why;
    bool one_rounding; /* floats have the same bits as by every other algorithm that has this */
};
/*
 * Plans are built on first use and kept. Errors: ABC_ERR_UNSUPPORTED for a named algorithm that does not do this collective (the
 * text lists those that do), ABC_ERR_ARGUMENT for an unknown name.
 */
int abci_choose(struct abci_chooser *chooser, const struct abci_wish *wish, struct abci_choice *choice);
/* "price", "file", "setting", "call". */
const char *abci_why_name(enum abci_why why);
/* One line for each range of sizes: "from 64 KiB: twoshot, chunks of 1 MiB (price)". root and bytes of the wish do not matter. */
int abci_chooser_print(struct abci_chooser *chooser, const struct abci_wish *wish, FILE *out);
/* Is every reduction a whole one, on every rank? Then floats have the same bits whatever else the algorithm does. */
bool abci_rounds_once(const struct abci_plan_set *set);
/* Add a caller's plan set under its name; takes this rank's plan out of the set. */
int abci_chooser_add(struct abci_chooser *chooser, struct abci_plan_set *set);

#endif
