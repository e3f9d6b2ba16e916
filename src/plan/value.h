/*
 * value.h - stage 3, for check.c alone: what a block of memory holds, as a set of contributions and what is known of their order.
 * A value is a number: 0 is "never written", the next nranks * nblocks are the inputs, the rest are sums.
 */
#ifndef ABCI_VALUE_H
#define ABCI_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct abci_value_info {
    uint32_t block;  /* of the inputs */
    uint32_t lo, hi; /* first rank and last rank, when contiguous */
    uint32_t ranks;  /* contributions */
    bool contiguous; /* operands stand in ascending order without gap, however bracketed */
    bool strict;     /* ((x_lo + x_lo+1) + ...) + x_hi */
    bool final;      /* by a REDUCE that said so */
};

struct abci_values {
    uint32_t nranks, nblocks, words;
    struct abci_value_info *info; /* [room] of sums */
    uint64_t *set;                /* [room * words] their contributions as bits */
    uint32_t used, room;
};

void abci_values_open(struct abci_values *v, int nranks, int nblocks);
void abci_values_close(struct abci_values *v);
uint32_t abci_value_input(const struct abci_values *v, int rank, int block);
struct abci_value_info abci_value_info(const struct abci_values *v, uint32_t value);
/* A new, empty sum, to which operands are then added in order. 0 when there is no memory. */
uint32_t abci_value_sum(struct abci_values *v);
/* What is wrong with the operand, or NULL. */
const char *abci_value_add(struct abci_values *v, uint32_t sum, uint32_t operand);
/* Lowest rank that a sum lacks, -1 if none. */
int abci_value_lacks(const struct abci_values *v, uint32_t value);
void abci_value_finish(struct abci_values *v, uint32_t sum);

#endif
