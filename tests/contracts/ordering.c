/*
 * ordering.c - contract C10: the protocol between ranks that are threads, watched by ThreadSanitizer, which this program is
 * compiled with, the library included. Data travels by every kind of store that publishes: the header, a counter, the done
 * watermark. Exit code 66 when a race is seen.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define LARGE (64 << 10)

/* Small payloads travel in the header: its store alone publishes them. */
static void by_header(struct rank *r, abc_comm *comm)
{
    int in[14], out[14];
    for (int round = 0; round < 20 && !r->failures; round++) {
        for (int i = 0; i < 14; i++)
            in[i] = round + i;
        if (expect_ok(r, abc_allreduce(in, out, 14, ABC_I32, ABC_SUM, comm), "allreduce"))
            expect(r, out[13] == r->nranks * (round + 13), "round %d: %d", round, out[13]);
    }
}

/* A large one is staged: a counter publishes it, and only the reader's watermark frees the region for the next. */
static void by_counter(struct rank *r, abc_comm *comm, unsigned char *buffer)
{
    for (int round = 1; round <= 24 && !r->failures; round++) {
        memset(buffer, r->rank == 0 ? round : 0, LARGE);
        if (expect_ok(r, abc_broadcast(buffer, buffer, LARGE / 4, ABC_I32, 0, comm), "broadcast"))
            expect(r, buffer[LARGE - 1] == round, "round %d: %d", round, buffer[LARGE - 1]);
    }
}

/* Peers write into the offered output; their counter publishes that, and the header the permission. */
static void by_spread(struct rank *r, abc_comm *comm)
{
    void *memory = NULL;
    if (!expect_ok(r, abc_mem_alloc(LARGE, &memory), "abc_mem_alloc"))
        return;
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = call.out = memory;
    call.count = LARGE / 4;
    call.type = ABC_I32;
    call.algorithm = "push";
    for (int round = 1; round <= 20 && !r->failures; round++) {
        int *x = memory;
        for (int i = 0; i < LARGE / 4; i++)
            x[i] = round + i;
        if (expect_ok(r, abc_run(comm, &call), "allreduce"))
            expect(r, x[99] == r->nranks * (round + 99), "round %d: %d", round, x[99]);
    }
    abc_mem_free(memory);
}

/* Messages: in a line, in a page, through tiles; more of them than there are slots. */
static void by_mail(struct rank *r, abc_comm *comm, unsigned char *buffer)
{
    static const int bytes[] = {8, 300, LARGE};
    for (int i = 0; i < 200 && r->rank < 2 && !r->failures; i++) {
        int n = bytes[i % 20 == 0 ? 2 : i % 2];
        if (r->rank == 0) {
            memset(buffer, i, (size_t)n);
            expect_ok(r, abc_send(buffer, (uint64_t)n, ABC_U8, 1, 0, comm), "send");
        } else if (expect_ok(r, abc_recv(buffer, (uint64_t)n, ABC_U8, 0, 0, comm, NULL), "recv")) {
            expect(r, buffer[n - 1] == i, "message %d: %d", i, buffer[n - 1]);
        }
    }
}

static int body(struct rank *r)
{
    unsigned char *buffer = malloc(LARGE);
    abc_comm *comm = must_create(r, 20);
    if (!comm || !buffer)
        return 1;
    by_header(r, comm);
    by_counter(r, comm, buffer);
    by_spread(r, comm);
    by_mail(r, comm, buffer);
    destroy(r, comm);
    free(buffer);
    return r->failures;
}

int main(void)
{
    abci_offer_to_threads = true;
    setenv("ABCOMM_PVR", "off", 1);
    setenv("ABCOMM_DEBUG", "NONE", 0);
    return run_threads(2, body) || run_threads(3, body); /* two ranks swap staging, three have their own */
}
