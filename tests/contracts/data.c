/* data.c - contracts about bytes: publishing, blocks, slots and regions, comparing calls, arena offsets, order of operands. */
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define LARGE (64 << 10) /* bytes; staged, and published by a counter rather than with the header */

static bool all_are(const unsigned char *bytes, size_t n, unsigned char value)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* Rank 0 broadcasts `rounds` buffers of `bytes`, each full of its number; the others start `late_ms` later. */
static int broadcasts(struct rank *r, abc_comm *comm, unsigned char *buffer, size_t bytes, int rounds, int late_ms)
{
    if (r->rank)
        sleep_ms(late_ms);
    for (int i = 1; i <= rounds && !r->failures; i++) {
        memset(buffer, r->rank == 0 ? i : 0, bytes);
        if (expect_ok(r, abc_broadcast(buffer, buffer, bytes / 4, ABC_I32, 0, comm), "broadcast"))
            expect(r, all_are(buffer, bytes, (unsigned char)i), "broadcast %d did not bring what rank 0 sent", i);
    }
    destroy(r, comm);
    return r->failures;
}

static int staged_broadcasts(struct rank *r, int rounds, int late_ms)
{
    static unsigned char buffer[LARGE];
    abc_comm *comm = must_create(r, 1);
    return comm ? broadcasts(r, comm, buffer, sizeof buffer, rounds, late_ms) : 1;
}

static int copy_before_publish(struct rank *r)
{
    return staged_broadcasts(r, 8, 0);
}

int check_copy_before_publish(void)
{
    return run_processes(2, copy_before_publish);
}

/* Fewer than there are slots: only the staging memory holds rank 0 back. */
static int staging_waits(struct rank *r)
{
    return staged_broadcasts(r, ABCI_SLOTS - 1, 60);
}

/* Two ranks swap staging, more have regions of their own. */
int check_swaps_wait(void)
{
    return run_processes(2, staging_waits);
}

int check_regions_wait(void)
{
    return run_processes(3, staging_waits);
}

static int slots_wait(struct rank *r)
{
    static unsigned char buffer[16];
    abc_comm *comm = must_create(r, 1);
    return comm ? broadcasts(r, comm, buffer, sizeof buffer, 3 * ABCI_SLOTS, 60) : 1;
}

int check_slots_wait(void)
{
    return run_processes(2, slots_wait);
}

static int arena_offsets(struct rank *r)
{
    void *buffer = NULL;
    abc_comm *comm = must_create(r, 2);
    if (!comm || !expect_ok(r, abc_mem_alloc(2 * LARGE, &buffer), "abc_mem_alloc"))
        return 1;
    /* What lies behind the message is not what the message holds. */
    memset(buffer, 0xee, 2 * LARGE);
    return broadcasts(r, comm, buffer, LARGE, 4, 0);
}

int check_arena_offsets(void)
{
    return run_processes(2, arena_offsets);
}

static int every_block(struct rank *r)
{
    enum { COUNT = 3001 };
    static int in[COUNT], out[COUNT];
    abc_comm *comm = must_create(r, 2);
    if (!comm)
        return 1;
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    for (int i = 0; i < COUNT; i++)
        in[i] = i + r->rank;
    call.in = in;
    call.out = out;
    call.count = COUNT;
    call.type = ABC_I32;
    call.algorithm = "twoshot";
    if (expect_ok(r, abc_run(comm, &call), "allreduce"))
        for (int i = 0; i < COUNT && !r->failures; i++)
            expect(r, out[i] == 3 * i + 3, "element %d is %d, not %d", i, out[i], 3 * i + 3);
    destroy(r, comm);
    return r->failures;
}

int check_every_block(void)
{
    return run_processes(3, every_block);
}

static int calls_compared(struct rank *r)
{
    float in[14], out[14];
    abc_comm *comm = must_create(r, 2);
    if (!comm)
        return 1;
    for (int i = 0; i < 14; i++) {
        in[i] = 1;
        out[i] = -5;
    }
    int status = abc_allreduce(in, out, r->rank ? 10 : 14, ABC_F32, ABC_SUM, comm);
    expect(r, status == ABC_ERR_MISMATCH, "14 elements against 10: %s", abc_status_name(status));
    for (int i = 0; i < 14; i++)
        expect(r, out[i] == -5, "element %d was written", i);
    destroy(r, comm);
    return r->failures;
}

int check_calls_compared(void)
{
    return run_processes(2, calls_compared);
}

static int counts_compared(struct rank *r)
{
    const uint64_t counts[2] = {0, 10};
    float in[10] = {1}, out[14];
    abc_comm *comm = must_create(r, 2);
    if (!comm)
        return 1;
    for (int i = 0; i < 14; i++)
        out[i] = -5;
    int status = abc_scatterv(in, counts, NULL, out, r->rank ? 14 : 0, ABC_F32, 0, comm); /* the root need not wait for it */
    expect(r, status == ABC_ERR_MISMATCH || r->rank == 0, "14 elements against 10: %s", abc_status_name(status));
    for (int i = 0; i < 14; i++)
        expect(r, out[i] == -5, "element %d was written", i);
    destroy(r, comm);
    return r->failures;
}

int check_counts_compared(void)
{
    return run_processes(2, counts_compared);
}

static void keep_lower(const void *in, void *inout, uint64_t count, abc_type type, void *context)
{
    (void)type;
    (void)context;
    memcpy(inout, in, count * sizeof(int));
}

static int operand_order(struct rank *r)
{
    int in[20], out[20];
    abc_op op;
    abc_comm *comm = must_create(r, 2);
    if (!comm || !expect_ok(r, abc_op_create(keep_lower, 0, NULL, &op), "abc_op_create"))
        return 1;
    for (int i = 0; i < 20; i++)
        in[i] = 100 * r->rank + i;
    if (expect_ok(r, abc_allreduce(in, out, 20, ABC_I32, op, comm), "allreduce"))
        for (int i = 0; i < 20 && !r->failures; i++)
            expect(r, out[i] == i, "the lowest rank's element %d should remain, not %d", i, out[i]);
    abc_op_free(op);
    destroy(r, comm);
    return r->failures;
}

int check_operand_order(void)
{
    return run_processes(3, operand_order);
}
