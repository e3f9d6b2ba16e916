/*
 * oracle.h - the independent reference of the reduction tests. Shares no code with src/reduce: it looks at numbers by their classes
 * and does bf16 rounding by searching neighbours, so that a wrong bit trick over there is not repeated here.
 */
#ifndef TEST_ORACLE_H
#define TEST_ORACLE_H

#include <stdbool.h>
#include <stddef.h>

#include "reduce/reduce.h"

size_t oracle_size(abc_type type);
/* One element: fold operands at byte `at` in order and write the result to out. */
void oracle_element(const struct abci_reduction *r, const void *const *src, int nsrc, size_t at, void *out);
/* Are two elements the same: equal bits, or both NaN (whose sign and payload are not defined; quiet in bf16)? */
bool oracle_same(abc_type type, const void *got, const void *want);
/* bf16 to float and back, the second by the nearest of the two neighbours. */
float oracle_widen(unsigned short half);
unsigned short oracle_narrow(float value);

#endif
