/*
 * oracle.h - the independent reference of the reduction tests. Shares no code with src/reduce: it looks at numbers by their
 * classes, rounds small floats by searching neighbours and cuts whole numbers of 128 bits, so that a wrong bit trick over there is
 * not repeated here.
 */
#ifndef TEST_ORACLE_H
#define TEST_ORACLE_H

#include <stdbool.h>
#include <stddef.h>

#include "reduce/reduce.h"

size_t oracle_size(abc_type type);
bool oracle_is_float(abc_type type);
/* One element: fold operands at byte `at` in order and write the result to out. */
void oracle_element(const struct abci_reduction *r, const void *const *src, int nsrc, size_t at, void *out);
/* Are two elements the same: equal bits, or both NaN (whose sign and payload are not defined; quiet in 16 bits)? */
bool oracle_same(abc_type type, const void *got, const void *want);
/* Floats of 8 and 16 bits to numbers and back, the second by the nearest of the two neighbours. */
double oracle_widen(abc_type type, unsigned bits);
unsigned oracle_narrow(abc_type type, double value);

#endif
