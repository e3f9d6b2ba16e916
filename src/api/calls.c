/* calls.c - stage 0: the common calls, as an abc_call each. Also memory and plans, which only pass through. */
#include <string.h>

#include "api/api.h"

ABC_API void abc_call_init(abc_call *call, abc_collective collective)
{
    if (call)
        *call = (abc_call){.size = sizeof *call, .collective = collective};
}

static abc_call describe(abc_collective collective, const void *in, void *out, uint64_t count, abc_type type, abc_op op, int root)
{
    abc_call c = {
        .size = sizeof c, .collective = collective, .in = in, .out = out, .count = count, .type = type, .op = op, .root = root};
    return c;
}

ABC_API int abc_allreduce(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm)
{
    abc_call c = describe(ABC_ALLREDUCE, in, out, count, type, op, 0);
    return abc_run(comm, &c);
}

ABC_API int abc_reduce_scatter(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm)
{
    abc_call c = describe(ABC_REDUCE_SCATTER, in, out, count, type, op, 0);
    return abc_run(comm, &c);
}

ABC_API int abc_allgather(const void *in, void *out, uint64_t count, abc_type type, abc_comm *comm)
{
    abc_call c = describe(ABC_ALLGATHER, in, out, count, type, ABC_SUM, 0);
    return abc_run(comm, &c);
}

ABC_API int abc_broadcast(const void *in, void *out, uint64_t count, abc_type type, int root, abc_comm *comm)
{
    abc_call c = describe(ABC_BROADCAST, in, out, count, type, ABC_SUM, root);
    return abc_run(comm, &c);
}

ABC_API int abc_barrier(abc_comm *comm)
{
    abc_call c = describe(ABC_BARRIER, NULL, NULL, 0, ABC_F32, ABC_SUM, 0);
    return abc_run(comm, &c);
}

ABC_API int abc_reduce(const void *in, void *out, uint64_t count, abc_type type, abc_op op, int root, abc_comm *comm)
{
    abc_call c = describe(ABC_REDUCE, in, out, count, type, op, root);
    return abc_run(comm, &c);
}

ABC_API int abc_gather(const void *in, void *out, uint64_t count, abc_type type, int root, abc_comm *comm)
{
    abc_call c = describe(ABC_GATHER, in, out, count, type, ABC_SUM, root);
    return abc_run(comm, &c);
}

ABC_API int abc_scatter(const void *in, void *out, uint64_t count, abc_type type, int root, abc_comm *comm)
{
    abc_call c = describe(ABC_SCATTER, in, out, count, type, ABC_SUM, root);
    return abc_run(comm, &c);
}

ABC_API int abc_alltoall(const void *in, void *out, uint64_t count, abc_type type, abc_comm *comm)
{
    abc_call c = describe(ABC_ALLTOALL, in, out, count, type, ABC_SUM, 0);
    return abc_run(comm, &c);
}

ABC_API int abc_scan(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm)
{
    abc_call c = describe(ABC_SCAN, in, out, count, type, op, 0);
    return abc_run(comm, &c);
}

ABC_API int abc_exscan(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm)
{
    abc_call c = describe(ABC_EXSCAN, in, out, count, type, op, 0);
    return abc_run(comm, &c);
}

ABC_API int abc_gatherv(const void *in, uint64_t count, void *out, const uint64_t *counts, const uint64_t *offsets, abc_type type,
                        int root, abc_comm *comm)
{
    abc_call c = describe(ABC_GATHERV, in, out, count, type, ABC_SUM, root);
    c.out_counts = counts;
    c.out_offsets = offsets;
    return abc_run(comm, &c);
}

ABC_API int abc_scatterv(const void *in, const uint64_t *counts, const uint64_t *offsets, void *out, uint64_t count, abc_type type,
                         int root, abc_comm *comm)
{
    abc_call c = describe(ABC_SCATTERV, in, out, count, type, ABC_SUM, root);
    c.in_counts = counts;
    c.in_offsets = offsets;
    return abc_run(comm, &c);
}

ABC_API int abc_allgatherv(const void *in, void *out, const uint64_t *counts, const uint64_t *offsets, abc_type type,
                           abc_comm *comm)
{
    abc_call c = describe(ABC_ALLGATHERV, in, out, 0, type, ABC_SUM, 0);
    c.out_counts = counts;
    c.out_offsets = offsets;
    return abc_run(comm, &c);
}

ABC_API int abc_reduce_scatterv(const void *in, void *out, const uint64_t *counts, abc_type type, abc_op op, abc_comm *comm)
{
    abc_call c = describe(ABC_REDUCE_SCATTERV, in, out, 0, type, op, 0);
    c.in_counts = counts;
    return abc_run(comm, &c);
}

ABC_API int abc_alltoallv(const void *in, const uint64_t *in_counts, const uint64_t *in_offsets, void *out,
                          const uint64_t *out_counts, const uint64_t *out_offsets, abc_type type, abc_comm *comm)
{
    abc_call c = describe(ABC_ALLTOALLV, in, out, 0, type, ABC_SUM, 0);
    c.in_counts = in_counts;
    c.in_offsets = in_offsets;
    c.out_counts = out_counts;
    c.out_offsets = out_offsets;
    return abc_run(comm, &c);
}

ABC_API int abc_allreduce_start(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm,
                                abc_request **req)
{
    abc_call c = describe(ABC_ALLREDUCE, in, out, count, type, op, 0);
    return abc_start(comm, &c, req);
}

ABC_API int abc_reduce_scatter_start(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm,
                                     abc_request **req)
{
    abc_call c = describe(ABC_REDUCE_SCATTER, in, out, count, type, op, 0);
    return abc_start(comm, &c, req);
}

ABC_API int abc_allgather_start(const void *in, void *out, uint64_t count, abc_type type, abc_comm *comm, abc_request **req)
{
    abc_call c = describe(ABC_ALLGATHER, in, out, count, type, ABC_SUM, 0);
    return abc_start(comm, &c, req);
}

ABC_API int abc_broadcast_start(const void *in, void *out, uint64_t count, abc_type type, int root, abc_comm *comm,
                                abc_request **req)
{
    abc_call c = describe(ABC_BROADCAST, in, out, count, type, ABC_SUM, root);
    return abc_start(comm, &c, req);
}

ABC_API int abc_barrier_start(abc_comm *comm, abc_request **req)
{
    abc_call c = describe(ABC_BARRIER, NULL, NULL, 0, ABC_F32, ABC_SUM, 0);
    return abc_start(comm, &c, req);
}

ABC_API int abc_reduce_start(const void *in, void *out, uint64_t count, abc_type type, abc_op op, int root, abc_comm *comm,
                             abc_request **req)
{
    abc_call c = describe(ABC_REDUCE, in, out, count, type, op, root);
    return abc_start(comm, &c, req);
}

ABC_API int abc_gather_start(const void *in, void *out, uint64_t count, abc_type type, int root, abc_comm *comm, abc_request **req)
{
    abc_call c = describe(ABC_GATHER, in, out, count, type, ABC_SUM, root);
    return abc_start(comm, &c, req);
}

ABC_API int abc_scatter_start(const void *in, void *out, uint64_t count, abc_type type, int root, abc_comm *comm, abc_request **req)
{
    abc_call c = describe(ABC_SCATTER, in, out, count, type, ABC_SUM, root);
    return abc_start(comm, &c, req);
}

ABC_API int abc_alltoall_start(const void *in, void *out, uint64_t count, abc_type type, abc_comm *comm, abc_request **req)
{
    abc_call c = describe(ABC_ALLTOALL, in, out, count, type, ABC_SUM, 0);
    return abc_start(comm, &c, req);
}

ABC_API int abc_scan_start(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm, abc_request **req)
{
    abc_call c = describe(ABC_SCAN, in, out, count, type, op, 0);
    return abc_start(comm, &c, req);
}

ABC_API int abc_exscan_start(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm, abc_request **req)
{
    abc_call c = describe(ABC_EXSCAN, in, out, count, type, op, 0);
    return abc_start(comm, &c, req);
}

/* NOLINTBEGIN(readability-function-size): these are what the call has */
ABC_API int abc_gatherv_start(const void *in, uint64_t count, void *out, const uint64_t *counts, const uint64_t *offsets,
                              abc_type type, int root, abc_comm *comm, abc_request **req)
{
    abc_call c = describe(ABC_GATHERV, in, out, count, type, ABC_SUM, root);
    c.out_counts = counts;
    c.out_offsets = offsets;
    return abc_start(comm, &c, req);
}

ABC_API int abc_scatterv_start(const void *in, const uint64_t *counts, const uint64_t *offsets, void *out, uint64_t count,
                               abc_type type, int root, abc_comm *comm, abc_request **req)
{
    abc_call c = describe(ABC_SCATTERV, in, out, count, type, ABC_SUM, root);
    c.in_counts = counts;
    c.in_offsets = offsets;
    return abc_start(comm, &c, req);
}

ABC_API int abc_allgatherv_start(const void *in, void *out, const uint64_t *counts, const uint64_t *offsets, abc_type type,
                                 abc_comm *comm, abc_request **req)
{
    abc_call c = describe(ABC_ALLGATHERV, in, out, 0, type, ABC_SUM, 0);
    c.out_counts = counts;
    c.out_offsets = offsets;
    return abc_start(comm, &c, req);
}

ABC_API int abc_reduce_scatterv_start(const void *in, void *out, const uint64_t *counts, abc_type type, abc_op op, abc_comm *comm,
                                      abc_request **req)
{
    abc_call c = describe(ABC_REDUCE_SCATTERV, in, out, 0, type, op, 0);
    c.in_counts = counts;
    return abc_start(comm, &c, req);
}

ABC_API int abc_alltoallv_start(const void *in, const uint64_t *in_counts, const uint64_t *in_offsets, void *out,
                                const uint64_t *out_counts, const uint64_t *out_offsets, abc_type type, abc_comm *comm,
                                abc_request **req)
{
    abc_call c = describe(ABC_ALLTOALLV, in, out, 0, type, ABC_SUM, 0);
    c.in_counts = in_counts;
    c.in_offsets = in_offsets;
    c.out_counts = out_counts;
    c.out_offsets = out_offsets;
    return abc_start(comm, &c, req);
}
/* NOLINTEND(readability-function-size) */

ABC_API int abc_mem_alloc(size_t bytes, void **ptr)
{
    uint64_t offset;
    if (!ptr)
        return abci_error(ABC_ERR_ARGUMENT, "the place for the pointer is null");
    return abci_segment_alloc(bytes, ptr, &offset);
}

ABC_API int abc_mem_free(void *ptr)
{
    return abci_segment_free(ptr);
}

ABC_API int abc_comm_load_plan(abc_comm *comm, const char *json, int check)
{
    struct abci_plan_set set;
    char why[256];
    int status = abci_comm_usable(comm);
    if (status != ABC_OK)
        return status;
    if (!json)
        return abci_error(ABC_ERR_ARGUMENT, "the plan's text is null");
    status = abci_plan_parse(json, &set, why, sizeof why);
    if (status != ABC_OK)
        return abci_error(status, "plan: %s", why);
    if (check) {
        struct abci_check_report report;
        abci_plan_check(&set, &report);
        if (report.status != ABC_OK)
            status = abci_error(ABC_ERR_PLAN, "plan %s: %s", set.plan[0]->name, report.text);
    }
    if (status == ABC_OK)
        status = abci_chooser_add(comm->chooser, &set);
    abci_plan_set_free(&set);
    return status;
}
