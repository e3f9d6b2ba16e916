/*
 * compare_calls.c - one timed call of bench/compare.c: new data, the call of the peer or ours inside the frame, a full check. Also
 * our communicator and all buffers. Only what lies between the frame's begin and end is timed; that part allocates nothing of its
 * own.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "compare.h"

#define HUGE_PAGE (2u << 20)

/* What the ranks must know of each other before they have a communicator. */
struct meeting {
    char address[64];
    unsigned char key[32];
};

/* A loopback address that was free a moment ago, and a key that strangers do not know. */
static void arrange(struct session *s, struct meeting *m)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) != 0 || getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        compare_fail(s, "no free port on the loopback interface");
    close(fd);
    snprintf(m->address, sizeof m->address, "127.0.0.1:%d", ntohs(address.sin_port));
    if (getrandom(m->key, sizeof m->key, 0) != (ssize_t)sizeof m->key)
        compare_fail(s, "no random key");
}

static void create_comm(struct session *s)
{
    struct meeting meeting = {0};
    if (s->rank == 0)
        arrange(s, &meeting);
    if (peer_share(NULL, &meeting, sizeof meeting) != 0)
        compare_fail(s, "the peer cannot share an address");
    abc_comm_config config;
    abc_comm_config_init(&config);
    config.rank = s->rank;
    config.nranks = s->nranks;
    config.address = meeting.address;
    config.key = meeting.key;
    config.key_length = sizeof meeting.key;
    if (abc_comm_create(&config, &s->comm) != ABC_OK)
        compare_fail(s, abc_last_error());
}

static void *alloc_private(struct session *s, size_t bytes)
{
    size_t whole = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *p = aligned_alloc(HUGE_PAGE, whole);
    if (!p) {
        compare_fail(s, "no memory");
        return NULL;
    }
    madvise(p, whole, MADV_HUGEPAGE);
    memset(p, 0, whole);
    return p;
}

void compare_open(struct session *s, size_t bytes, bool arena)
{
    s->seeds = calloc((size_t)s->nranks, sizeof *s->seeds);
    if (!s->seeds)
        compare_fail(s, "no memory");
    for (int i = 0; i < 2; i++)
        s->plain[i] = alloc_private(s, bytes);
    create_comm(s);
    for (int i = 0; i < 2 && arena; i++) {
        if (abc_mem_alloc(bytes, &s->arena[i]) != ABC_OK)
            compare_fail(s, abc_last_error());
        memset(s->arena[i], 0, bytes);
    }
}

void compare_close(struct session *s)
{
    abc_comm_destroy(s->comm);
    for (int i = 0; i < 2; i++) {
        free(s->plain[i]);
        abc_mem_free(s->arena[i]);
    }
    free(s->seeds);
}

static int ping_pong(const struct peer_call *c, abc_comm *comm)
{
    int rank = abc_comm_rank(comm);
    int status = rank == 0 ? abc_send(c->in, c->count, c->type, 1, 0, comm) : abc_recv(c->out, c->count, c->type, 0, 0, comm, NULL);
    if (status != ABC_OK)
        return status;
    return rank == 0 ? abc_recv(c->out, c->count, c->type, 1, 0, comm, NULL) : abc_send(c->in, c->count, c->type, 0, 0, comm);
}

static int send_receive(const struct peer_call *c, abc_comm *comm)
{
    int rank = abc_comm_rank(comm), nranks = abc_comm_size(comm);
    return abc_sendrecv(c->in, c->count, (rank + 1) % nranks, 0, c->out, c->count, (rank + nranks - 1) % nranks, 0, c->type, comm,
                        NULL);
}

int peer_run_ours(const struct peer_call *c, abc_comm *comm)
{
    const struct peer_blocks *b = c->blocks;
    switch (c->what) {
    case ABC_REDUCE_SCATTER:
        return abc_reduce_scatter(c->in, c->out, c->count, c->type, ABC_SUM, comm);
    case ABC_ALLGATHER:
        return abc_allgather(c->in, c->out, c->count, c->type, comm);
    case ABC_BROADCAST:
        return abc_broadcast(c->in, c->out, c->count, c->type, c->root, comm);
    case ABC_BARRIER:
        return abc_barrier(comm);
    case ABC_REDUCE:
        return abc_reduce(c->in, c->out, c->count, c->type, ABC_SUM, c->root, comm);
    case ABC_GATHER:
        return abc_gather(c->in, c->out, c->count, c->type, c->root, comm);
    case ABC_SCATTER:
        return abc_scatter(c->in, c->out, c->count, c->type, c->root, comm);
    case ABC_ALLTOALL:
        return abc_alltoall(c->in, c->out, c->count, c->type, comm);
    case ABC_SCAN:
        return abc_scan(c->in, c->out, c->count, c->type, ABC_SUM, comm);
    case ABC_EXSCAN:
        return abc_exscan(c->in, c->out, c->count, c->type, ABC_SUM, comm);
    case ABC_ALLGATHERV:
        return abc_allgatherv(c->in, c->out, b->wide_out, b->wide_out_at, c->type, comm);
    case ABC_ALLTOALLV:
        return abc_alltoallv(c->in, b->wide_in, b->wide_in_at, c->out, b->wide_out, b->wide_out_at, c->type, comm);
    case PEER_SENDRECV:
        return send_receive(c, comm);
    case PEER_PINGPONG:
        return ping_pong(c, comm);
    default:
        return abc_allreduce(c->in, c->out, c->count, c->type, ABC_SUM, comm);
    }
}

/* Start and wait together. */
static int call_ours(struct session *s, const struct cell *cell, const struct peer_call *c)
{
    if (cell->form == BLOCKING)
        return peer_run_ours(c, s->comm);
    if (cell->form == STARTED) {
        abc_request *request;
        int status = abc_allreduce_start(c->in, c->out, c->count, c->type, ABC_SUM, s->comm, &request);
        return status == ABC_OK ? abc_wait(&request) : status;
    }
    int status = abc_restart(s->request);
    return status == ABC_OK ? abc_wait(&s->request) : status;
}

void compare_prepare(struct session *s, const struct cell *cell)
{
    memset(s->wrong, 0, sizeof s->wrong);
    if (cell->form != PERSISTENT)
        return;
    struct peer_call c = compare_lay_out(s, cell, OURS);
    abc_call call;
    abc_call_init(&call, (abc_collective)cell->collective);
    call.in = c.in;
    call.out = c.out;
    call.count = c.count;
    call.type = c.type;
    call.op = ABC_SUM;
    if (abc_request_create(s->comm, &call, &s->request) != ABC_OK)
        compare_fail(s, abc_last_error());
}

void compare_finish(struct session *s)
{
    if (s->request && abc_request_free(s->request) != ABC_OK)
        compare_fail(s, abc_last_error());
    s->request = NULL;
}

double compare_sample(struct session *s, const struct cell *cell, enum who who)
{
    s->iteration++;
    for (int r = 0; r < s->nranks; r++)
        s->seeds[r] = bench_seed(s->iteration, r);
    struct peer_call call = compare_lay_out(s, cell, who);
    int status;
    compare_fill(s, &call);
    if (bench_frame_begin(&s->frame) != 0)
        compare_fail(s, "the ranks are no more together");
    if (who != PEER)
        status = call_ours(s, cell, &call);
    else if (cell->against_own)
        status = peer_run_ours(&call, s->comm);
    else
        status = peer_run(&call);
    double us = bench_frame_end(&s->frame);
    if (status != 0)
        compare_fail(s, who == PEER && !cell->against_own ? "the peer's call failed" : abc_last_error());
    if (us < 0)
        compare_fail(s, "the ranks are no more together");
    s->wrong[who] += compare_check(s, &call);
    return us;
}
