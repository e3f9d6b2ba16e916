/* rules.c - contracts about form: step kinds, sizes of structs, the exchange, event records, and what all ranks must hold alike. */
#include <stdlib.h>
#include <string.h>

#include "diag/event.h"
#include "harness.h"

/* ---- C3 ---- */

int check_reserved_kinds(void)
{
    struct rank nobody = {0};
    struct abci_plan *plan;
    const struct abci_algo *algo = abci_algo_find("oneshot");
    if (!expect(&nobody, algo && abci_plan_build(algo, ABC_ALLREDUCE, 2, 0, 0, &plan) == ABC_OK, "a plan cannot be built"))
        return 1;
    for (int kind = ABCI_PUSH; kind < ABCI_KIND_COUNT; kind++) {
        plan->steps[0].kind = (uint8_t)kind;
        struct abci_runnable *run = abci_runnable_make(plan);
        if (!expect(&nobody, !run, "a plan with a step of kind %s can be run", abci_kind_name(kind)))
            return 1;
    }
    abci_plan_free(plan);
    return nobody.failures;
}

/* ---- C11 ---- */

static int sizes(struct rank *r)
{
    int in = 3, out = 0;
    abc_comm *comm = must_create(r, 1);
    if (!comm)
        return 1;
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = &in;
    call.out = &out;
    call.count = 1;
    call.type = ABC_I32;
    call.size -= 8; /* a caller that was compiled with another header */
    int status = abc_run(comm, &call);
    expect(r, status == ABC_ERR_VERSION, "a struct of another size: %s", abc_status_name(status));
    call.size = sizeof call;
    expect_ok(r, abc_run(comm, &call), "the right size");
    expect(r, out == 3, "the result is %d", out);
    destroy(r, comm);
    return r->failures;
}

int check_sizes(void)
{
    return run_processes(1, sizes);
}

/* ---- C12 ---- */

static int exchange(struct rank *r)
{
    abc_comm *comm = must_create(r, 1);
    if (!comm)
        return 1;
    expect(r, exchange_calls(r) > 0, "the caller's exchange was not used");
    expect_ok(r, abc_barrier(comm), "barrier");
    destroy(r, comm);
    return r->failures;
}

int check_exchange(void)
{
    return run_processes(2, exchange);
}

/* ---- C14 ---- */

static int events(struct rank *r)
{
    static struct abci_event seen[ABCI_EVENTS];
    float in[14] = {1}, out[14];
    abc_comm *comm = must_create(r, 1);
    if (!comm)
        return 1;
    for (int i = 0; i < 3; i++)
        expect_ok(r, abc_allreduce(in, out, 14, ABC_F32, ABC_MAX, comm), "allreduce");
    abc_comm_abort(comm, "on purpose");
    abc_allreduce(in, out, 14, ABC_F32, ABC_MAX, comm);
    int n = abci_event_copy(comm->shm->events, seen, ABCI_EVENTS);
    if (expect(r, n >= 7, "%d records of four operations", n))
        for (int i = 0; i < 3; i++) {
            const struct abci_event *start = &seen[2 * i], *end = start + 1;
            expect(r, start->kind == ABCI_EVENT_START && end->kind == ABCI_EVENT_END, "operation %d: kinds %d, %d", i, start->kind,
                   end->kind);
            expect(r, start->sequence == (uint32_t)i + 1 && end->sequence == start->sequence, "operation %d has the number %u", i,
                   start->sequence);
            expect(r, end->count == 14 && end->op == ABC_MAX && end->status == ABC_OK && end->time >= start->time,
                   "the end of operation %d is not what was called", i);
        }
    if (!r->failures)
        expect(r, seen[n - 1].kind == ABCI_EVENT_ERROR && seen[n - 1].status == ABC_ERR_ABORTED, "the error was not recorded");
    destroy(r, comm);
    return r->failures;
}

int check_events(void)
{
    return run_processes(1, events);
}

/* ---- C16 ---- */

/* Only ranks 0 and 1 measure, and not the same; all must hold rank 0's constants nevertheless. */
static int constants(struct rank *r)
{
    abc_comm *comm = must_create(r, 2);
    if (!comm)
        return 1;
    struct abci_price_constants *mine = board_bytes(r, r->rank), *first = board_bytes(r, 0);
    *mine = comm->engine.machine.price;
    expect_ok(r, abc_barrier(comm), "barrier");
    expect(r, memcmp(mine, first, sizeof *mine) == 0, "constants differ from rank 0's: hand-off %g and %g, crowding %g and %g",
           mine->hand_off, first->hand_off, mine->crowding, first->crowding);
    destroy(r, comm);
    return r->failures;
}

int check_constants(void)
{
    return run_processes(3, constants);
}

static int settings(struct rank *r)
{
    abc_comm *comm = NULL;
    setenv("ABCOMM_CHUNK", r->rank ? "65536" : "131072", 1);
    int status = create(r, 1, &comm);
    expect(r, status == ABC_ERR_VERSION, "ranks with different job settings: %s", abc_status_name(status));
    expect(r, strstr(abc_last_error(), "ABCOMM_CHUNK=131072") != NULL, "the error does not name the setting: %s", abc_last_error());
    destroy(r, comm);
    return r->failures;
}

int check_settings(void)
{
    return run_processes(2, settings);
}
