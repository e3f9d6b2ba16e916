/*
 * scalar.c - stage 5: the reference family. One element after the other, no vectors, no streaming stores; the other families are
 * measured against it, in bits and in speed. Next to it: element.h (meaning), generic.c and others (fast). No state; any thread.
 */
#include "reduce/family.h"

#define SCALAR_KERNEL(TYPE, OP)                                                                                                    \
    void abci_scalar_##TYPE##_##OP(const struct abci_reduction *r, void *dst, void *dst2, const void *const *src, int nsrc,        \
                                   uint64_t n)                                                                                     \
    {                                                                                                                              \
        abci_element_loop(ABC_##TYPE, ABC_##OP, r->nranks, dst, dst2, src, nsrc, 0, n);                                            \
    }
ABCI_SUM_MAP(SCALAR_KERNEL)
ABCI_TWO_MAP(SCALAR_KERNEL)
ABCI_ONE_MAP(SCALAR_KERNEL)
ABCI_SCALAR_MAP(SCALAR_KERNEL)

static void scalar_copy(char *dst, char *dst2, const char *src, size_t bytes, enum abci_store store)
{
    (void)store;
    if (dst != src)
        memcpy(dst, src, bytes);
    if (dst2)
        memcpy(dst2, src, bytes);
}

const struct abci_family abci_family_scalar = {
    .name = "scalar",
    .kernel = {ABCI_SUM_MAP(ABCI_SCALAR_ROW) ABCI_TWO_MAP(ABCI_SCALAR_ROW) ABCI_ONE_MAP(ABCI_SCALAR_ROW)
                   ABCI_SCALAR_MAP(ABCI_SCALAR_ROW) ABCI_WIDE_ROWS},
    .copy = scalar_copy,
};
