/* ends.c - contracts about threads, sleep and failure: callbacks, doorbells, the last look, late writers, seals. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "transport/segment.h"

#define LARGE (64 << 10)
#define LATE_MS 40  /* after this a waiting rank sleeps */
#define PROMPT 0.03 /* seconds; a rank that nobody rings sleeps on until 100 ms are over */

/* ---- C4 ---- */

struct called {
    abc_comm *comm;
    int inner; /* what a test of an operation started in the callback said */
};

static void start_another(abc_request *request, int status, void *context)
{
    struct called *c = context;
    abc_request *inner;
    static int in = 1, out;
    (void)request;
    (void)status;
    c->inner = abc_allreduce_start(&in, &out, 1, ABC_I32, ABC_SUM, c->comm, &inner);
    if (c->inner == ABC_OK) {
        c->inner = abc_test(inner);
        abc_wait(&inner);
    }
}

/* With one rank nothing is waited for: what a callback starts is complete at once, unless the claim is still held. */
static int callback_free(struct rank *r)
{
    int in = 1, out;
    abc_comm *comm = must_create(r, 2);
    if (!comm)
        return 1;
    struct called c = {comm, ABC_ERR_INTERNAL};
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = &in;
    call.out = &out;
    call.count = 1;
    call.type = ABC_I32;
    call.callback = start_another;
    call.callback_context = &c;
    expect_ok(r, abc_run(comm, &call), "allreduce");
    expect(r, c.inner == ABC_OK, "an operation started by a callback: %s", abc_status_name(c.inner));
    destroy(r, comm);
    return r->failures;
}

int check_callback_free(void)
{
    return run_processes(1, callback_free);
}

/*
 * A round of a test of promptness: rank 0 runs `wait` and sleeps in it; rank 1 runs `wake` LATE_MS later. Counts in rank 0 how
 * often it went on at once. The majority decides: the machine may be busy.
 */
static int prompt_rounds(struct rank *r, int rounds, void (*wait)(struct rank *, abc_comm *),
                         void (*wake)(struct rank *, abc_comm *), bool anew)
{
    int prompt = 0;
    double *woken = board_bytes(r, 1);
    abc_comm *comm = anew ? NULL : must_create(r, 5);
    for (int round = 1; round <= rounds && !r->failures; round++) {
        comm = anew ? must_create(r, 5) : comm;
        if (!comm)
            return 1;
        if (r->rank == 0) {
            atomic_store(board_word(r, 0), round);
            wait(r, comm);
            prompt += abci_now() - *woken < PROMPT;
            atomic_store(board_word(r, 1), round);
        } else {
            expect(r, await_word(r, 0, round), "rank 0 did not come");
            sleep_ms(LATE_MS);
            *woken = abci_now();
            wake(r, comm);
            expect(r, await_word(r, 1, round), "rank 0 did not come back");
        }
        if (anew)
            destroy(r, comm);
    }
    if (!anew)
        destroy(r, comm);
    if (r->rank == 0)
        expect(r, prompt > rounds / 2, "the sleeping rank went on at once in %d of %d rounds", prompt, rounds);
    return r->failures;
}

static void small_allreduce(struct rank *r, abc_comm *comm)
{
    int in = 1, out;
    expect_ok(r, abc_allreduce(&in, &out, 1, ABC_I32, ABC_SUM, comm), "allreduce");
}

static int sleeper_rung(struct rank *r)
{
    return prompt_rounds(r, 5, small_allreduce, small_allreduce, false);
}

int check_sleeper_rung(void)
{
    return run_processes(2, sleeper_rung);
}

/* ---- C7 ---- */

static abc_comm *aborted;

static void abort_in_step(int rank, uint32_t sequence, int step)
{
    (void)rank;
    (void)sequence;
    if (aborted && step >= 0) /* not before the header: that the next pass would see */
        abc_comm_abort(aborted, "in the last step");
}

/* The communicator ends while the last step runs: success must not be told. */
static int last_look(struct rank *r)
{
    int in = 1, out;
    abc_comm *comm = must_create(r, 2);
    if (!comm)
        return 1;
    abci_hook = abort_in_step;
    aborted = comm;
    int status = abc_allreduce(&in, &out, 1, ABC_I32, ABC_SUM, comm);
    aborted = NULL;
    expect(r, status == ABC_ERR_ABORTED, "an operation during which the communicator ended: %s", abc_status_name(status));
    destroy(r, comm);
    return r->failures;
}

int check_last_look(void)
{
    return run_processes(1, last_look);
}

static void wait_for_abort(struct rank *r, abc_comm *comm)
{
    int in = 1, out, status = abc_allreduce(&in, &out, 1, ABC_I32, ABC_SUM, comm);
    expect(r, status == ABC_ERR_ABORTED, "after an abort: %s", abc_status_name(status));
}

static void abort_it(struct rank *r, abc_comm *comm)
{
    expect_ok(r, abc_comm_abort(comm, "on purpose"), "abort");
}

static int failure_rings(struct rank *r)
{
    return prompt_rounds(r, 3, wait_for_abort, abort_it, true);
}

int check_failure_rings(void)
{
    return run_processes(2, failure_rings);
}

static _Atomic int inside; /* 1: rank 1 is in the middle of a read of rank 0's buffer */

static void read_slowly(const void *in, void *inout, uint64_t count, abc_type type, void *context)
{
    (void)in;
    (void)inout;
    (void)count;
    (void)type;
    if (context) {
        atomic_store(&inside, 1);
        sleep_ms(100);
        atomic_store(&inside, 0);
    }
}

/* Ranks are threads. Rank 1 is reading rank 0's buffer where it is when rank 0 aborts: rank 0 must not get it back before the read
 * is over. */
static int reader_inside(struct rank *r)
{
    void *memory = NULL;
    abc_op op;
    abc_request *request;
    abc_call call;
    abc_comm *comm = must_create(r, 5);
    if (!comm || !expect_ok(r, abc_mem_alloc(LARGE, &memory), "abc_mem_alloc") ||
        !expect_ok(r, abc_op_create(read_slowly, 1, r->rank == 1 ? r : NULL, &op), "abc_op_create"))
        return 1;
    abc_call_init(&call, ABC_REDUCE);
    call.in = call.out = memory;
    call.count = LARGE / 4;
    call.type = ABC_I32;
    call.op = op;
    call.root = 1;
    memset(memory, 1, LARGE);
    expect_ok(r, abc_start(comm, &call, &request), "start");
    if (r->rank == 0) {
        for (int ms = 0; ms < 2000 && !atomic_load(&inside); ms++) {
            abc_test(request);
            sleep_ms(1);
        }
        expect(r, atomic_load(&inside), "rank 1 does not read");
        expect_ok(r, abc_comm_abort(comm, "on purpose"), "abort");
    }
    int status = abc_wait(&request);
    expect(r, status == ABC_ERR_ABORTED, "after an abort: %s", abc_status_name(status));
    expect(r, r->rank == 1 || !atomic_load(&inside), "the buffer was given back while rank 1 read it");
    memset(memory, 2, LARGE);
    destroy(r, comm);
    abc_mem_free(memory);
    abc_op_free(op);
    return r->failures;
}

int check_no_reader_inside(void)
{
    return run_threads(2, reader_inside);
}

/* ---- C8 ---- */

static _Atomic int stop_once;

static void stop_in_step(int rank, uint32_t sequence, int step)
{
    (void)sequence;
    if (rank == 1 && step >= 0 && atomic_exchange(&stop_once, 0))
        sleep_ms(600);
}

/* Rank 1 is held up in the middle of the call; rank 0 gives up, uses its buffer for something else, and finds it as it left it. */
static int give_up(struct rank *r, abc_collective collective, const char *algorithm)
{
    void *memory = NULL;
    abc_comm *comm = must_create(r, 0.2);
    if (!comm || !expect_ok(r, abc_mem_alloc(LARGE, &memory), "abc_mem_alloc"))
        return 1;
    unsigned char *buffer = memory;
    abc_call call;
    abc_call_init(&call, collective);
    call.in = call.out = buffer;
    call.count = LARGE / 4;
    call.type = ABC_I32;
    call.algorithm = algorithm;
    memset(buffer, 1, LARGE);
    expect_ok(r, abc_run(comm, &call), "the call"); /* each has mapped the other's memory now */
    expect_ok(r, abc_barrier(comm), "barrier");
    abci_hook = stop_in_step;
    atomic_store(&stop_once, 1);
    int status = abc_run(comm, &call);
    expect(r, status < 0, "an operation that a rank gave up: %s", abc_status_name(status));
    if (r->rank == 0) {
        memset(buffer, 0x77, LARGE);
        expect(r, await_word(r, 0, 1), "rank 1 did not come back");
        for (int i = 0; i < LARGE && !r->failures; i++)
            expect(r, buffer[i] == 0x77, "byte %d was written after the operation had ended", i);
    } else {
        atomic_store(board_word(r, 0), 1);
    }
    destroy(r, comm);
    return r->failures;
}

static int no_late_writer(struct rank *r)
{
    return give_up(r, ABC_BROADCAST, NULL);
}

int check_no_late_writer(void)
{
    return run_processes(2, no_late_writer);
}

/* Rank 0 has offered its buffer: rank 1 goes on to write its part of the result, and rank 0 must not see it. */
static int no_late_spread(struct rank *r)
{
    return give_up(r, ABC_ALLREDUCE, "push");
}

int check_no_late_spread(void)
{
    return run_processes(2, no_late_spread);
}

static int sealed(struct rank *r)
{
    abc_comm *comm = must_create(r, 1);
    if (!comm)
        return 1;
    int fd = abci_segment_fd(abci_segment_self());
    expect(r, ftruncate(fd, 4096) != 0, "shared memory could be shrunk under its readers");
    if (!r->failures)
        destroy(r, comm); /* else its memory is gone */
    return r->failures;
}

int check_sealed(void)
{
    return run_processes(1, sealed);
}
