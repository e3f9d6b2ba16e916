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

/* The buffers of one call and what belongs in them. */
struct plan {
    abc_type type;
    const void *in;
    void *out;
    uint64_t count; /* as abc_collective says */
    uint64_t block; /* elements of one rank, where the collective has blocks */
    int root;
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

static struct plan plan_of(struct session *s, const struct cell *cell, enum who who)
{
    struct plan p = {.type = who == PEER ? ABC_F32 : cell->type, .root = 0};
    void **buffers = who == ARENA ? s->arena : s->plain;
    uint64_t n = cell->bytes / abc_type_size(p.type), block = n / (uint64_t)s->nranks;
    p.out = buffers[1];
    p.in = cell->in_place ? p.out : buffers[0];
    p.block = block > 0 ? block : 1;
    p.count = cell->collective == ABC_REDUCE_SCATTER || cell->collective == ABC_ALLGATHER ? p.block : n;
    if (cell->collective == ABC_BROADCAST)
        p.root = (int)(s->iteration % (uint32_t)s->nranks);
    return p;
}

/* Each rank's part of the input; a receiver of a broadcast gets data that must not stay. */
static void fill(struct session *s, const struct cell *cell, const struct plan *p, uint32_t limit)
{
    uint64_t first = 0, count = p->count;
    if (cell->collective == ABC_REDUCE_SCATTER)
        count = p->block * (uint64_t)s->nranks;
    else if (cell->collective == ABC_ALLGATHER)
        first = p->block * (uint64_t)s->rank;
    bench_fill((void *)p->in, p->type, limit, s->seeds[s->rank], first, count);
}

static uint64_t check(struct session *s, const struct cell *cell, const struct plan *p, uint32_t limit)
{
    uint64_t wrong = 0, block = p->block;
    size_t size = abc_type_size(p->type);
    switch (cell->collective) {
    case ABC_REDUCE_SCATTER:
        return bench_check(p->out, p->type, ABC_SUM, limit, s->seeds, s->nranks, block * (uint64_t)s->rank, block);
    case ABC_ALLGATHER:
        for (int r = 0; r < s->nranks; r++)
            wrong += bench_check((const char *)p->out + (uint64_t)r * block * size, p->type, ABC_SUM, limit, &s->seeds[r], 1,
                                 (uint64_t)r * block, block);
        return wrong;
    case ABC_BROADCAST:
        return bench_check(p->out, p->type, ABC_SUM, limit, &s->seeds[p->root], 1, 0, p->count);
    default:
        return bench_check(p->out, p->type, ABC_SUM, limit, s->seeds, s->nranks, 0, p->count);
    }
}

static int call_blocking(struct session *s, const struct cell *cell, const struct plan *p)
{
    switch (cell->collective) {
    case ABC_REDUCE_SCATTER:
        return abc_reduce_scatter(p->in, p->out, p->count, p->type, ABC_SUM, s->comm);
    case ABC_ALLGATHER:
        return abc_allgather(p->in, p->out, p->count, p->type, s->comm);
    case ABC_BROADCAST:
        return abc_broadcast(p->in, p->out, p->count, p->type, p->root, s->comm);
    default:
        return abc_allreduce(p->in, p->out, p->count, p->type, ABC_SUM, s->comm);
    }
}

/* Start and wait together. */
static int call_ours(struct session *s, const struct cell *cell, const struct plan *p)
{
    if (cell->form == BLOCKING)
        return call_blocking(s, cell, p);
    if (cell->form == STARTED) {
        abc_request *request;
        int status = abc_allreduce_start(p->in, p->out, p->count, p->type, ABC_SUM, s->comm, &request);
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
    struct plan p = plan_of(s, cell, OURS);
    abc_call call;
    abc_call_init(&call, cell->collective);
    call.in = p.in;
    call.out = p.out;
    call.count = p.count;
    call.type = p.type;
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
    struct plan p = plan_of(s, cell, who);
    struct peer_call theirs = {cell->collective, p.in, p.out, p.count, p.root};
    uint32_t limit = bench_data_limit(p.type, s->nranks);
    int status;
    fill(s, cell, &p, limit);
    if (bench_frame_begin(&s->frame) != 0)
        compare_fail(s, "the ranks are no more together");
    if (who != PEER)
        status = call_ours(s, cell, &p);
    else if (cell->against_own)
        status = call_blocking(s, cell, &p);
    else
        status = peer_run(&theirs);
    double us = bench_frame_end(&s->frame);
    if (status != 0)
        compare_fail(s, who == PEER && !cell->against_own ? "the peer's call failed" : abc_last_error());
    if (us < 0)
        compare_fail(s, "the ranks are no more together");
    s->wrong[who] += check(s, cell, &p, limit);
    return us;
}
