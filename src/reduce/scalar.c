/*
 * scalar.c - stage 5: the reference family. One element after the other, no vectors, no streaming stores; the other families are
 * measured against it, in bits and in speed. Next to it: element.h (meaning), generic.c and others (fast). No state; any thread.
 */
#include "reduce/family.h"

#define SCALAR_KERNEL(TYPE, OP)                                                                                                    \
    static void scalar_##TYPE##_##OP(char *dst, char *dst2, const void *const *src, int nsrc, uint64_t n, int nranks,              \
                                     enum abci_store store)                                                                        \
    {                                                                                                                              \
        (void)store;                                                                                                               \
        abci_element_loop(ABC_##TYPE, ABCI_KERNEL_##OP, nranks, dst, dst2, src, nsrc, 0, n);                                       \
    }
ABCI_SUM_MAP(SCALAR_KERNEL)
ABCI_MIN_MAP(SCALAR_KERNEL)

static void scalar_copy(char *dst, char *dst2, const char *src, size_t bytes, enum abci_store store)
{
    (void)store;
    if (dst != src)
        memcpy(dst, src, bytes);
    if (dst2)
        memcpy(dst2, src, bytes);
}

/* The same loop serves every number of operands. */
#define SCALAR_ROW(TYPE, OP)                                                                                                       \
    [ABC_##TYPE][ABCI_KERNEL_##OP] = {scalar_##TYPE##_##OP, scalar_##TYPE##_##OP, scalar_##TYPE##_##OP, scalar_##TYPE##_##OP,      \
                                      scalar_##TYPE##_##OP},
const struct abci_family abci_family_scalar = {
    .name = "scalar", .kernel = {ABCI_SUM_MAP(SCALAR_ROW) ABCI_MIN_MAP(SCALAR_ROW)}, .copy = scalar_copy};
