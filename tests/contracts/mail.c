/* mail.c - contracts about messages between two ranks: bytes before the announcement, credits, the last look, the comparison. */
#include <string.h>

#include "harness.h"

/* Messages in their line and in their page, received while they are being sent. */
static int mail_whole(struct rank *r)
{
    static unsigned char buffer[4000];
    abc_comm *comm = must_create(r, 2);
    for (int i = 1; comm && i <= 12 && !r->failures; i++) {
        uint64_t n = i % 2 ? 8 : sizeof buffer;
        memset(buffer, r->rank == 0 ? i : 0, sizeof buffer);
        if (r->rank == 0)
            expect_ok(r, abc_send(buffer, n, ABC_U8, 1, 0, comm), "send");
        else if (expect_ok(r, abc_recv(buffer, n, ABC_U8, 0, 0, comm, NULL), "recv"))
            expect(r, buffer[0] == i && buffer[n - 1] == i, "message %d has %d and %d", i, buffer[0], buffer[n - 1]);
    }
    if (comm)
        destroy(r, comm);
    return comm ? r->failures : 1;
}

int check_mail_whole(void)
{
    return run_processes(2, mail_whole);
}

/* Three mailboxes full of messages; the receiver comes when the sender is held up, and finds all of them in order. */
static int mail_credits(struct rank *r)
{
    enum { N = 3 * 64 };
    abc_comm *comm = must_create(r, 2);
    if (!comm)
        return 1;
    if (r->rank == 1)
        sleep_ms(60);
    for (int i = 0; i < N && !r->failures; i++) {
        int x = r->rank == 0 ? i : -1;
        if (r->rank == 0)
            expect_ok(r, abc_send(&x, 1, ABC_I32, 1, 0, comm), "send");
        else if (expect_ok(r, abc_recv(&x, 1, ABC_I32, 0, 0, comm, NULL), "recv"))
            expect(r, x == i, "message %d is %d", i, x);
    }
    destroy(r, comm);
    return r->failures;
}

int check_mail_credits(void)
{
    return run_processes(2, mail_credits);
}

static abc_comm *aborted;

static void abort_in_take(int rank, uint32_t sequence, int step)
{
    (void)rank;
    (void)sequence;
    if (step == ABCI_STOP_TAKE && aborted)
        abc_comm_abort(aborted, "on purpose");
}

/* Receive from rank 0; the communicator ends when the message has been read. */
static void receive_aborted(struct rank *r, abc_comm *comm)
{
    int x;
    abci_hook = abort_in_take;
    aborted = comm;
    int status = abc_recv(&x, 1, ABC_I32, 0, 0, comm, NULL);
    aborted = NULL;
    expect(r, status == ABC_ERR_ABORTED, "a receive during which the communicator ended: %s", abc_status_name(status));
}

/* The communicator ends when the message has been read: the receive must not tell success. */
static int mail_last_look(struct rank *r)
{
    int x = 1;
    abc_comm *comm = must_create(r, 2);
    if (!comm)
        return 1;
    expect_ok(r, abc_send(&x, 1, ABC_I32, 0, 0, comm), "send");
    receive_aborted(r, comm);
    destroy(r, comm);
    return r->failures;
}

int check_mail_last_look(void)
{
    return run_processes(1, mail_last_look);
}

/* The same where the receive goes the short way: the second of two messages, when nothing else is outstanding. */
static int mail_brief_last_look(struct rank *r)
{
    int x = 1, y = 0;
    abc_comm *comm = must_create(r, 2);
    if (!comm)
        return 1;
    expect_ok(r, abc_sendrecv(&x, 1, 1 - r->rank, 0, &y, 1, 1 - r->rank, 0, ABC_I32, comm, NULL), "sendrecv");
    if (r->rank == 0) {
        expect_ok(r, abc_send(&x, 1, ABC_I32, 1, 0, comm), "send");
    } else {
        sleep_ms(20);
        receive_aborted(r, comm);
    }
    destroy(r, comm);
    return r->failures;
}

int check_mail_brief_last_look(void)
{
    return run_processes(2, mail_brief_last_look);
}

static int mail_compared(struct rank *r)
{
    int32_t numbers[4] = {-5, -5, -5, -5};
    float one = 1;
    abc_comm *comm = must_create(r, 2);
    if (!comm)
        return 1;
    if (r->rank == 0)
        expect_ok(r, abc_send(&one, 1, ABC_F32, 1, 7, comm), "send");
    else
        expect(r, abc_recv(numbers, 4, ABC_I32, 0, 7, comm, NULL) == ABC_ERR_MISMATCH, "a float was taken for an integer");
    expect(r, numbers[0] == -5, "a message of another type was written");
    expect_ok(r, abc_barrier(comm), "barrier");
    destroy(r, comm);
    return r->failures;
}

int check_mail_compared(void)
{
    return run_processes(2, mail_compared);
}
