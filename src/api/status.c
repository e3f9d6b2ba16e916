/*
 * status.c - stage 0: the public names and texts of statuses, types, operations and collectives, the last error and the version.
 * Thin over src/base/error.c; pure but for the calling thread's error text. Any thread.
 */
#include <abcomm/abcomm.h>

#include "base/base.h"

#define TEXT(x) #x
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

static const struct {
    const char *name;
    size_t bytes;
} types[ABC_TYPE_COUNT] = {
    [ABC_F32] = {"f32", 4},
    [ABC_F64] = {"f64", 8},
    [ABC_BF16] = {"bf16", 2},
    [ABC_I32] = {"i32", 4},
    [ABC_F16] = {"f16", 2},
    [ABC_FP8_E4M3] = {"fp8_e4m3", 1},
    [ABC_FP8_E5M2] = {"fp8_e5m2", 1},
    [ABC_I8] = {"i8", 1},
    [ABC_U8] = {"u8", 1},
    [ABC_I16] = {"i16", 2},
    [ABC_U16] = {"u16", 2},
    [ABC_U32] = {"u32", 4},
    [ABC_I64] = {"i64", 8},
    [ABC_U64] = {"u64", 8},
    [ABC_BOOL] = {"bool", 1},
    [ABC_COMPLEX64] = {"complex64", 8},
    [ABC_COMPLEX128] = {"complex128", 16},
    [ABC_F32_I32] = {"f32_i32", 8},
    [ABC_F64_I32] = {"f64_i32", 16},
    [ABC_I32_I32] = {"i32_i32", 8},
};
static const char *const ops[ABC_OP_COUNT] = {
    [ABC_SUM] = "sum",   [ABC_MIN] = "min",       [ABC_MAX] = "max",       [ABC_AVG] = "avg",   [ABC_PROD] = "prod",
    [ABC_BAND] = "band", [ABC_BOR] = "bor",       [ABC_BXOR] = "bxor",     [ABC_LAND] = "land", [ABC_LOR] = "lor",
    [ABC_LXOR] = "lxor", [ABC_MINLOC] = "minloc", [ABC_MAXLOC] = "maxloc",
};
static const char *const collectives[ABC_COLLECTIVE_COUNT] = {
    [ABC_ALLREDUCE] = "allreduce",
    [ABC_REDUCE_SCATTER] = "reduce_scatter",
    [ABC_ALLGATHER] = "allgather",
    [ABC_BROADCAST] = "broadcast",
    [ABC_BARRIER] = "barrier",
    [ABC_REDUCE] = "reduce",
    [ABC_GATHER] = "gather",
    [ABC_SCATTER] = "scatter",
    [ABC_ALLTOALL] = "alltoall",
    [ABC_SCAN] = "scan",
    [ABC_EXSCAN] = "exscan",
    [ABC_GATHERV] = "gatherv",
    [ABC_SCATTERV] = "scatterv",
    [ABC_ALLGATHERV] = "allgatherv",
    [ABC_REDUCE_SCATTERV] = "reduce_scatterv",
    [ABC_ALLTOALLV] = "alltoallv",
};

/* The casts make negative values large: one comparison finds all unknown ones. */
size_t abc_type_size(abc_type type)
{
    return (unsigned)type < ABC_TYPE_COUNT ? types[type].bytes : 0;
}

const char *abc_type_name(abc_type type)
{
    return (unsigned)type < ABC_TYPE_COUNT ? types[type].name : "?";
}

const char *abc_op_name(abc_op op)
{
    if ((unsigned)op < ABC_OP_COUNT)
        return ops[op];
    return op >= ABC_OP_USER && op < ABC_OP_LIMIT ? "user" : "?";
}

const char *abc_collective_name(abc_collective coll)
{
    if (coll == ABC_SEND || coll == ABC_RECV)
        return coll == ABC_SEND ? "send" : "recv";
    return (unsigned)coll < ABC_COLLECTIVE_COUNT ? collectives[coll] : "?";
}

const char *abc_status_name(int status)
{
    return abci_status_row(status)->name;
}

const char *abc_status_text(int status)
{
    return abci_status_row(status)->text;
}

const char *abc_status_remedy(int status)
{
    return abci_status_row(status)->remedy;
}

const char *abc_last_error(void)
{
    return abci_error_text();
}

const char *abc_version(void)
{
    return VERSION(ABC_VERSION_MAJOR, ABC_VERSION_MINOR, ABC_VERSION_PATCH);
}
