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
        abci_element_loop(ABC_##TYPE, ABC_##OP, nranks, dst, dst2, src, nsrc, 0, n);                                               \
    }
ABCI_SUM_MAP(SCALAR_KERNEL)
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

/* The same loop serves every number of operands. */
#define SCALAR_ROW(TYPE, OP) [ABC_##TYPE][ABC_##OP] = {scalar_##TYPE##_##OP},
const struct abci_family abci_family_scalar = {
    .name = "scalar",
    .kernel =
        {
            ABCI_SUM_MAP(SCALAR_ROW) ABCI_ONE_MAP(SCALAR_ROW)
                ABCI_SCALAR_MAP(SCALAR_ROW)[ABC_COMPLEX64][ABC_PROD] = {abci_wide_complex64_prod},
            [ABC_COMPLEX128][ABC_PROD] = {abci_wide_complex128_prod},
            [ABC_F32_I32][ABC_MINLOC] = {abci_wide_f32_i32_min},
            [ABC_F32_I32][ABC_MAXLOC] = {abci_wide_f32_i32_max},
            [ABC_F64_I32][ABC_MINLOC] = {abci_wide_f64_i32_min},
            [ABC_F64_I32][ABC_MAXLOC] = {abci_wide_f64_i32_max},
            [ABC_I32_I32][ABC_MINLOC] = {abci_wide_i32_i32_min},
            [ABC_I32_I32][ABC_MAXLOC] = {abci_wide_i32_i32_max},
        },
    .copy = scalar_copy,
};
