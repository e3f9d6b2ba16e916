/* price.h - stage 3: the second price of a plan, and what it shares with the choice. The first one, for buffers of unknown kind, is
 * in plan.h. */
#ifndef ABCI_PRICE_H
#define ABCI_PRICE_H

#include "plan/plan.h"

/*
 * As abci_plan_price, but every rank's buffers are in its arena: publishing copies nothing. abci_plan_price takes all buffers for
 * private ones, as most are.
 */
void abci_plan_price_direct(const struct abci_plan_set *set, const struct abci_price_constants *c, struct abci_price *price);

/* Seconds of a hand-off from which two cores are distant: no cache is common to them. */
#define ABCI_DISTANT 1.2e-7

#endif
