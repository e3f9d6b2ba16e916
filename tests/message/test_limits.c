/*
 * test_limits.c - what bounds messages: a flood holds its sender back and takes no more memory, no source starves, threads of a
 * rank do not get in each other's way; and how it ends: messages left over, a peer that has left or died, a rank that waits for
 * nobody.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <unistd.h>

#include "../engine/harness.h"
#include "bytes.h"

static long shared_kib(void)
{
    char line[256];
    long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "RssShmem:", 9) == 0)
            kib = strtol(line + 9, NULL, 10);
    if (f)
        fclose(f);
    return kib;
}

/* Started sends pile up at their sender, with no more shared memory than one mailbox. */
static int flood(struct rank *r)
{
    enum { N = 2000, BYTES = 4000 };
    static abc_request *q[N];
    unsigned char *buffer = malloc(BYTES);
    bytes_fill(buffer, BYTES, 1);
    long before = shared_kib();
    if (r->rank == 0) {
        int over = 0;
        for (int i = 0; i < N; i++) {
            check_status(r, abc_send_start(buffer, BYTES, ABC_U8, 1, i, r->comm, &q[i]), ABC_OK, "start");
            over += abc_test(q[i]) == ABC_OK;
        }
        check(r, over == 63, "%d messages are out instead of 63", over);
        check(r, shared_kib() - before < 600, "they took %ld KiB", shared_kib() - before);
    }
    meet(r);
    for (int i = N - 1; i >= 0 && r->rank == 1;
         i--) /* from the front of what may be asked for: the order of tags is free within 63 */
        check_status(r, abc_recv(buffer, BYTES, ABC_U8, 0, N - 1 - i, r->comm, NULL), ABC_OK, "recv");
    check(r, bytes_wrong(buffer, BYTES, 1) == BYTES, "wrong bytes");
    for (int i = 0; i < N && r->rank == 0; i++)
        check_status(r, abc_wait(&q[i]), ABC_OK, "wait");
    check(r, shared_kib() - before < 700, "%ld KiB in the end", shared_kib() - before);
    free(buffer);
    return 0;
}

/* All send as fast as they can; a receiver from any source hears all of them. */
static int fair(struct rank *r)
{
    enum { EACH = 400 };
    int x = r->rank, heard[16] = {0};
    for (int i = 0; i < EACH && r->rank > 0; i++)
        check_status(r, abc_send(&x, 1, ABC_I32, 0, 0, r->comm), ABC_OK, "send");
    if (r->rank > 0)
        return 0;
    nap(0.05); /* all mailboxes are full */
    for (int i = 0; i < EACH * (r->nranks - 1); i++) {
        abc_received got;
        if (!check_status(r, abc_recv(&x, 1, ABC_I32, ABC_ANY_SOURCE, ABC_ANY_TAG, r->comm, &got), ABC_OK, "recv"))
            return 1;
        check(r, got.source == x, "source %d, message of %d", got.source, x);
        heard[got.source]++;
        if (i + 1 == 20 * (r->nranks - 1))
            for (int k = 1; k < r->nranks; k++)
                check(r, heard[k] >= 15 && heard[k] <= 25, "of the first %d, %d came from rank %d", i + 1, heard[k], k);
    }
    return 0;
}

struct seat {
    struct rank *r;
    int tag;
};

static void *talk(void *argument)
{
    const struct seat *seat = argument;
    struct rank *r = seat->r;
    unsigned char *in = malloc(100000), *out = malloc(100000);
    for (int i = 0; i < 60; i++) {
        size_t n = i % 3 == 0 ? 8 : i % 3 == 1 ? 3000 : 100000;
        bytes_fill(in, n, bytes_key(r->rank, seat->tag, i));
        check_status(r, abc_sendrecv(in, n, r->rank ^ 1, seat->tag, out, n, r->rank ^ 1, seat->tag, ABC_U8, r->comm, NULL), ABC_OK,
                     "sendrecv");
        check(r, bytes_wrong(out, n, bytes_key(r->rank ^ 1, seat->tag, i)) == n, "tag %d, round %d", seat->tag, i);
    }
    free(in);
    free(out);
    return NULL;
}

static int threads(struct rank *r)
{
    enum { N = 4 };
    pthread_t thread[N];
    struct seat seat[N];
    for (int i = 0; i < N; i++) {
        seat[i] = (struct seat){r, i};
        if (pthread_create(&thread[i], NULL, talk, &seat[i]) != 0)
            return 1;
    }
    for (int i = 0; i < N; i++)
        pthread_join(thread[i], NULL);
    return 0;
}

/* What was sent and not received is told when the receiver destroys; what was sent before leaving still arrives. */
static int left_over(struct rank *r)
{
    int x = 5;
    abc_comm *comm;
    if (!check_status(r, rank_create(r, 0, 5, &comm), ABC_OK, "create"))
        return 1;
    if (r->rank == 0) {
        check_status(r, abc_send(&x, 1, ABC_I32, 1, 3, comm), ABC_OK, "send");
        check_status(r, abc_send(&x, 1, ABC_I32, 1, 4, comm), ABC_OK, "send");
        check_status(r, abc_comm_destroy(comm), ABC_OK, "destroy");
        meet(r);
        return 0;
    }
    meet(r);
    check_status(r, abc_recv(&x, 1, ABC_I32, 0, 4, comm, NULL), ABC_OK, "recv of one that has left");
    check_status(r, abc_comm_destroy(comm), ABC_ERR_MISMATCH, "destroy");
    check(r, strstr(abc_last_error(), "1 i32") && strstr(abc_last_error(), "rank 0") && strstr(abc_last_error(), "tag 3"),
          "text: %s", abc_last_error());
    return 0;
}

/* Rank 2 leaves: receives from any source go on with the others; from nobody else they end. */
static int leaves(struct rank *r)
{
    int x = 1;
    abc_comm *comm;
    if (!check_status(r, rank_create(r, 0, 5, &comm), ABC_OK, "create"))
        return 1;
    if (r->rank == 2)
        abc_comm_destroy(comm);
    meet(r);
    if (r->rank == 0) {
        check_status(r, abc_recv(&x, 1, ABC_I32, ABC_ANY_SOURCE, 0, comm, NULL), ABC_OK, "recv from rank 1");
        check_status(r, abc_recv(&x, 1, ABC_I32, 2, 0, comm, NULL), ABC_ERR_PEER, "recv from one that has left");
        check(r, strstr(abc_last_error(), "rank 2") != NULL, "text: %s", abc_last_error());
    } else if (r->rank == 1) {
        nap(0.3);
        check_status(r, abc_send(&x, 1, ABC_I32, 0, 0, comm), ABC_OK, "send");
        check_status(r, abc_recv(&x, 1, ABC_I32, 0, 0, comm, NULL), ABC_ERR_PEER, "the communicator ends");
    }
    if (r->rank < 2)
        abc_comm_destroy(comm);
    return 0;
}

static int waits_in_vain(struct rank *r)
{
    int x = 1;
    abc_comm *comm;
    abc_call c;
    if (!check_status(r, rank_create(r, 0, 5, &comm), ABC_OK, "create"))
        return 1;
    abc_call_init(&c, ABC_RECV);
    c.out = &x;
    c.count = 1;
    c.type = ABC_I32;
    c.root = r->rank == 0 ? 0 : ABC_ANY_SOURCE;
    c.timeout = 0.3;
    double start = now_seconds();
    int status = abc_run(comm, &c);
    check(r, status == ABC_ERR_TIMEOUT, "status %s: %s", abc_status_name(status), abc_last_error());
    check(r, strstr(abc_last_error(), "recv(count 1, i32") != NULL, "text: %s", abc_last_error());
    check(r, now_seconds() - start < 2, "took %g s", now_seconds() - start);
    abc_comm_destroy(comm);
    return 0;
}

/* A rank dies, or aborts, or is stopped for good, in the middle of traffic: the others hear it in time. */
enum ends { DIES, ABORTS };
static int ends_badly(struct rank *r)
{
    enum { N = 200000 };
    int how = *(int *)r->argument, victim = r->nranks - 1, status = ABC_OK;
    unsigned char *in = calloc(1, N), *out = calloc(1, N);
    abc_comm *comm;
    if (!check_status(r, rank_create(r, 0, 5, &comm), ABC_OK, "create"))
        return 1;
    double start = 0;
    for (int i = 0; status == ABC_OK; i++) {
        int peer = r->rank == victim ? i % victim : victim;
        size_t n = i % 2 ? N : 100;
        if (r->rank == victim && i == 33) {
            if (how == ABORTS)
                abc_comm_abort(comm, "as planned");
            else
                _exit(0); /* without destroying: as far as the others can tell, it died */
        }
        start = now_seconds();
        if (r->rank == victim)
            status = abc_sendrecv(in, n, peer, 0, out, N, ABC_ANY_SOURCE, ABC_ANY_TAG, ABC_U8, comm, NULL);
        else
            status = abc_sendrecv(in, n, peer, 0, out, N, ABC_ANY_SOURCE, ABC_ANY_TAG, ABC_U8, comm, NULL);
    }
    check(r, status == (how == ABORTS ? ABC_ERR_ABORTED : ABC_ERR_PEER), "status %s: %s", abc_status_name(status),
          abc_last_error());
    check(r, now_seconds() - start < 2, "took %g s", now_seconds() - start);
    abc_comm_destroy(comm);
    free(in);
    free(out);
    return 0;
}

int main(int argc, char **argv)
{
    struct options o;
    int dies = DIES, aborts = ABORTS;
    options_read(argc, argv, &o);
    const struct job jobs[] = {
        {.name = "flood", .body = flood, .nranks = 2},
        {.name = "fair", .body = fair, .nranks = 5},
        {.name = "fair, threads", .body = fair, .nranks = 5, .threads = true},
        {.name = "threads", .body = threads, .nranks = 2},
        {.name = "threads, progress thread", .body = threads, .nranks = 2, .progress = 1},
        {.name = "left over", .body = left_over, .nranks = 2, .no_comm = true},
        {.name = "left over, threads", .body = left_over, .nranks = 2, .no_comm = true, .threads = true},
        {.name = "leaves", .body = leaves, .nranks = 3, .no_comm = true},
        {.name = "waits in vain, one", .body = waits_in_vain, .nranks = 1, .no_comm = true},
        {.name = "waits in vain, all", .body = waits_in_vain, .nranks = 3, .no_comm = true},
        {.name = "dies", .body = ends_badly, .argument = &dies, .nranks = 3, .no_comm = true},
        {.name = "aborts", .body = ends_badly, .argument = &aborts, .nranks = 3, .no_comm = true},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        struct job job = jobs[i];
        job.limit = 20;
        job_run(&job);
    }
    return jobs_end();
}
