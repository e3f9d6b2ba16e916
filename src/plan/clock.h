/*
 * clock.h - stage 3, for check.c alone: which steps of all ranks have certainly happened before a step starts.
 *
 * Steps of one rank are ordered only as their `after` lists say, so a clock has one hand for each chain of dependent steps, not for
 * each rank. Most ranks have one or two chains. Steps that nobody waits for have no place on a clock at all.
 */
#ifndef ABCI_CLOCK_H
#define ABCI_CLOCK_H

#include "plan/plan.h"

#define ABCI_CLOCK_MAX_BYTES (1ull << 30) /* of all clocks of a plan */

struct abci_clock {
    const struct abci_plan_set *set;
    uint32_t *first; /* [nranks + 1] event number of each rank's step 0; event = first[rank] + step */
    uint32_t *chain; /* [events] or ABCI_NO_CHAIN */
    uint16_t *place; /* [events] position in its chain */
    int32_t *before; /* [events] the PUBLISH of the same counter before a PUBLISH, as a step; else -1 */
    uint16_t **row;  /* [events] what had happened when the event ended; NULL: only its own chain */
    uint16_t *owner; /* [chains] rank */
    uint32_t nchains;
    uint16_t *now; /* [chains] the past of the current event: steps of each chain that are over */
    uint32_t event;
    size_t bytes; /* of all rows */
    bool foreign; /* `now` has more in it than the current event's own chain */
};

#define ABCI_NO_CHAIN UINT32_MAX

/* ABC_OK or ABC_ERR_MEMORY; close it in both cases. */
int abci_clock_open(struct abci_clock *clock, const struct abci_plan_set *set);
void abci_clock_close(struct abci_clock *clock);
/* Make (rank, step) the current event: its past is what its own rank has ordered before it. */
void abci_clock_begin(struct abci_clock *clock, int rank, uint32_t step);
/* The current event also waited for another event, which has ended. */
void abci_clock_join(struct abci_clock *clock, uint32_t event);
/* Is `event` over, in every possible run, when the current event starts? */
bool abci_clock_over(const struct abci_clock *clock, uint32_t event);
/* Keep the current event's past. ABC_ERR_MEMORY, or ABC_ERR_UNSUPPORTED when all together exceed ABCI_CLOCK_MAX_BYTES. */
int abci_clock_end(struct abci_clock *clock);

#endif
