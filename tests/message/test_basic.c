/*
 * test_basic.c - messages one case at a time: each size in each kind of memory, matching, wildcards, status, messages to oneself,
 * sendrecv, started and persistent requests, callbacks, collectives at the same time, and every refusal with its words.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../engine/harness.h"
#include "bytes.h"

static const size_t sizes[] = {0,    1,     8,     39,    40,    41,     64,     500,     4095,    4096,          4097,
                               9001, 16384, 16385, 65535, 65536, 200001, 300000, 1048576, 1048577, (3u << 20) + 5};
#define SIZES (sizeof sizes / sizeof sizes[0])
#define LARGEST ((3u << 20) + 5)

static void *memory(bool arena, size_t bytes)
{
    void *p = NULL;
    if (!arena)
        return malloc(bytes);
    return abc_mem_alloc(bytes, &p) == ABC_OK ? p : NULL;
}

static void give_back(bool arena, void *p)
{
    if (arena)
        abc_mem_free(p);
    else
        free(p);
}

/* Rank 0 sends each size to all others, at an odd address; the byte behind what was received must stay. */
static int every_size(struct rank *r)
{
    for (int kind = 0; kind < 4; kind++) {
        bool arena = kind & 1;
        size_t shift = kind & 2 ? 3 : 0;
        char *buffer = memory(arena, LARGEST + 8);
        if (!check(r, buffer != NULL, "no memory"))
            return 1;
        for (size_t i = 0; i < SIZES; i++) {
            size_t n = sizes[i];
            abc_received got = {.count = 99};
            doing(r, "%zu bytes, kind %d", n, kind);
            for (int to = 1; to < r->nranks && r->rank == 0; to++) {
                bytes_fill(buffer + shift, n, bytes_key(0, to, (int)n));
                if (!check_status(r, abc_send(buffer + shift, n, ABC_U8, to, to, r->comm), ABC_OK, "send"))
                    return 1;
            }
            if (r->rank == 0)
                continue;
            memset(buffer, 0x5a, LARGEST + 8);
            if (!check_status(r, abc_recv(buffer + shift, n + 1, ABC_U8, 0, r->rank, r->comm, &got), ABC_OK, "recv"))
                return 1;
            size_t wrong = bytes_wrong(buffer + shift, n, bytes_key(0, r->rank, (int)n));
            check(r, wrong == n, "byte %zu of %zu is wrong", wrong, n);
            check(r, got.count == n && got.source == 0 && got.tag == r->rank && got.type == ABC_U8, "received %d %d %llu %d",
                  got.source, got.tag, (unsigned long long)got.count, (int)got.type);
            check(r, buffer[shift + n] == 0x5a && (shift == 0 || buffer[shift - 1] == 0x5a), "%zu: a byte beside it changed", n);
        }
        check_status(r, abc_barrier(r->comm), ABC_OK, "barrier");
        give_back(arena, buffer);
    }
    return 0;
}

/* Tags out of order, and many before any is received: each receive gets the first of its tag. */
static int by_tag(struct rank *r)
{
    enum { EACH = 10 };
    int x = -1;
    if (r->rank == 0) {
        for (int i = 0; i < EACH * 3; i++) {
            x = i;
            check_status(r, abc_send(&x, 1, ABC_I32, 1, i % 3, r->comm), ABC_OK, "send");
        }
        return 0;
    }
    if (r->rank > 1)
        return 0;
    for (int tag = 2; tag >= 0; tag--)
        for (int i = 0; i < EACH; i++) {
            check_status(r, abc_recv(&x, 1, ABC_I32, 0, tag, r->comm, NULL), ABC_OK, "recv");
            check(r, x == i * 3 + tag, "tag %d: message %d instead of %d", tag, x, i * 3 + tag);
        }
    return 0;
}

/* One message of a tag that is received last does not hold up a thousand others. */
static int one_stays(struct rank *r)
{
    int x = 77;
    for (int i = -1; i < 1000 && r->rank == 0; i++) {
        int value = i < 0 ? 77 : i;
        check_status(r, abc_send(&value, 1, ABC_I32, 1, i < 0 ? 9 : 1, r->comm), ABC_OK, "send");
    }
    for (int i = 0; i <= 1000 && r->rank == 1; i++) {
        check_status(r, abc_recv(&x, 1, ABC_I32, 0, i == 1000 ? 9 : 1, r->comm, NULL), ABC_OK, "recv");
        check(r, x == (i == 1000 ? 77 : i), "%d: %d", i, x);
    }
    return 0;
}

/* A large message that is not wanted yet lets a later one pass, whatever way its bytes take. */
static int large_out_of_order(struct rank *r)
{
    enum { N = 700000 };
    unsigned char *a = malloc(N), *b = malloc(N);
    abc_request *q[2];
    if (r->rank < 2)
        for (int i = 0; i < 2; i++) {
            unsigned char *buffer = i ? b : a;
            bytes_fill(buffer, N, bytes_key(r->rank, i, 0));
            if (r->rank == 0)
                check_status(r, abc_send_start(buffer, N, ABC_U8, 1, i, r->comm, &q[i]), ABC_OK, "start");
        }
    if (r->rank == 0)
        for (int i = 0; i < 2; i++)
            check_status(r, abc_wait(&q[i]), ABC_OK, "wait");
    for (int tag = 1; tag >= 0 && r->rank == 1; tag--) {
        check_status(r, abc_recv(a, N, ABC_U8, 0, tag, r->comm, NULL), ABC_OK, "recv");
        check(r, bytes_wrong(a, N, bytes_key(0, tag, 0)) == N, "tag %d: wrong bytes", tag);
    }
    free(a);
    free(b);
    return 0;
}

/* More messages with a head than there are heads, received in any order; in each round slots and heads are used again. */
static int heads_out_of_order(struct rank *r)
{
    enum { N = 40000, EACH = 7, ROUNDS = 40 };
    static const size_t lengths[EACH] = {9000, 16384, N, 5000, 16385, 8, 12000};
    unsigned char *buffer = malloc((size_t)N * EACH);
    abc_request *q[EACH];
    for (int round = 0; round < ROUNDS && r->rank == 0; round++) {
        for (int i = 0; i < EACH; i++) {
            bytes_fill(buffer + (size_t)i * N, lengths[i], bytes_key(0, i, round));
            check_status(r, abc_send_start(buffer + (size_t)i * N, lengths[i], ABC_U8, 1, i, r->comm, &q[i]), ABC_OK, "start");
        }
        for (int i = 0; i < EACH; i++)
            check_status(r, abc_wait(&q[i]), ABC_OK, "wait");
    }
    for (int k = 0; k < ROUNDS * EACH && r->rank == 1; k++) {
        int round = k / EACH, tag = (k * 3 + round) % EACH;
        check_status(r, abc_recv(buffer, N, ABC_U8, 0, tag, r->comm, NULL), ABC_OK, "recv");
        check(r, bytes_wrong(buffer, lengths[tag], bytes_key(0, tag, round)) == lengths[tag], "round %d, tag %d: wrong", round,
              tag);
    }
    free(buffer);
    return 0;
}

/*
 * Heads change hands: both ranks start some messages, a few of which have heads, then receive the other's in another order; some do
 * not fit their receive. The numbers of messages differ, so now and then a rank has heads of the other's and now and then none.
 */
static int heads_both_ways(struct rank *r)
{
    enum { N = 40000, MOST = 6, ROUNDS = 300 };
    static const size_t lengths[] = {9000, 16384, 513, 8, 16383, N, 3000};
    unsigned char *out = malloc((size_t)N * MOST), *in = malloc(N);
    abc_request *q[MOST];
    uint64_t dice = 5;
    for (int round = 0; round < ROUNDS; round++) {
        int count[2] = {(int)(random_next(&dice) % MOST), (int)(random_next(&dice) % MOST)},
            turn = (int)(random_next(&dice) % MOST);
        int me = r->rank, peer = 1 - me;
        for (int i = 0; i < count[me]; i++) {
            size_t n = lengths[(round + i) % 7];
            bytes_fill(out + (size_t)i * N, n, bytes_key(me, i, round));
            check_status(r, abc_send_start(out + (size_t)i * N, n, ABC_U8, peer, i, r->comm, &q[i]), ABC_OK, "start");
        }
        for (int k = 0; k < count[peer]; k++) {
            int tag = (k + turn) % count[peer];
            size_t n = lengths[(round + tag) % 7];
            bool fits = (round + tag) % 5 != 0;
            int status = abc_recv(in, fits ? N : n - 1, ABC_U8, peer, tag, r->comm, NULL);
            check_status(r, status, fits ? ABC_OK : ABC_ERR_MISMATCH, "recv");
            check(r, !fits || bytes_wrong(in, n, bytes_key(peer, tag, round)) == n, "round %d, tag %d: wrong bytes", round, tag);
        }
        for (int i = 0; i < count[me]; i++)
            check_status(r, abc_wait(&q[i]), ABC_OK, "wait");
    }
    free(out);
    free(in);
    return 0;
}

/* After all this the sender still has heads: two messages go out though nobody receives. */
static int heads_are_left(struct rank *r, unsigned char *out, unsigned char *in)
{
    enum { N = 9000 };
    abc_request *q[2];
    check_status(r, abc_barrier(r->comm), ABC_OK, "barrier");
    for (int i = 0; i < 2 && r->rank == 0; i++) {
        bytes_fill(out, N, bytes_key(0, i, 1));
        check_status(r, abc_send_start(out, N, ABC_U8, 1, i, r->comm, &q[i]), ABC_OK, "start");
        check_status(r, abc_test(q[i]), ABC_OK, "a send for which there is a head");
    }
    meet(r);
    for (int i = 0; i < 2 && r->rank == 1; i++) {
        check_status(r, abc_recv(in, N, ABC_U8, 0, i, r->comm, NULL), ABC_OK, "recv");
        check(r, bytes_wrong(in, N, bytes_key(0, i, 1)) == N, "message %d: wrong bytes", i);
    }
    for (int i = 0; i < 2 && r->rank == 0; i++)
        check_status(r, abc_wait(&q[i]), ABC_OK, "wait");
    return 0;
}

/* The blocking calls, which go a short way: there and back, both at once, several one way. */
static int heads_briefly(struct rank *r)
{
    enum { ROUNDS = 400 };
    static unsigned char buffers[MAX_TEST_RANKS][2][16384];
    unsigned char *out = buffers[r->rank][0], *in = buffers[r->rank][1];
    int peer = 1 - r->rank;
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = 500 + (size_t)(round * 733) % 15885;
        int kind = round / 7 % 3, times = kind == 2 ? 3 : 1;
        for (int i = 0; i < times; i++) {
            bool first = kind == 1 ? r->rank == round % 2 : r->rank == 0;
            bytes_fill(out, n, bytes_key(r->rank, round, i));
            memset(in, 0, n);
            if (kind == 0)
                check_status(r, abc_sendrecv(out, n, peer, 1, in, n, peer, 1, ABC_U8, r->comm, NULL), ABC_OK, "sendrecv");
            if (kind > 0 && first)
                check_status(r, abc_send(out, n, ABC_U8, peer, 1, r->comm), ABC_OK, "send");
            if (kind > 0 && (kind == 1 || !first))
                check_status(r, abc_recv(in, n, ABC_U8, peer, 1, r->comm, NULL), ABC_OK, "recv");
            if (kind == 1 && !first)
                check_status(r, abc_send(out, n, ABC_U8, peer, 1, r->comm), ABC_OK, "send");
            bool got = kind < 2 || !first;
            check(r, !got || bytes_wrong(in, n, bytes_key(peer, round, i)) == n, "round %d: wrong bytes", round);
        }
    }
    return heads_are_left(r, out, in);
}

/*
 * Both ranks send first and receive then, in either kind of memory, more messages than there are heads, by either kind of call:
 * short sends wait for nobody.
 */
static int both_send_first(struct rank *r)
{
    enum { MOST = 4096, N = 6 };
    static const size_t lengths[] = {513, 3000, MOST};
    for (int kind = 0; kind < 4; kind++) {
        bool arena = !(kind & 1), started = kind & 2;
        char *out = memory(arena, MOST), *in = memory(arena, MOST);
        if (!check(r, out && in, "no memory"))
            return 1;
        for (int i = 0; i < N * 3; i++) {
            abc_request *q = NULL;
            size_t n = lengths[i / N];
            doing(r, "message %d of %zu bytes, kind %d", i, n, kind);
            bytes_fill(out, n, bytes_key(r->rank, i, kind));
            int status = started ? abc_send_start(out, n, ABC_U8, 1 - r->rank, i, r->comm, &q)
                                 : abc_send(out, n, ABC_U8, 1 - r->rank, i, r->comm);
            if (!check_status(r, status, ABC_OK, "send") || (q && !check_status(r, abc_test(q), ABC_OK, "test")))
                return 1;
            check_status(r, q ? abc_wait(&q) : ABC_OK, ABC_OK, "wait");
        }
        for (int i = 0; i < N * 3; i++) {
            size_t n = lengths[i / N];
            check_status(r, abc_recv(in, n, ABC_U8, 1 - r->rank, i, r->comm, NULL), ABC_OK, "recv");
            check(r, bytes_wrong(in, n, bytes_key(1 - r->rank, i, kind)) == n, "message %d, kind %d: wrong bytes", i, kind);
        }
        check_status(r, abc_barrier(r->comm), ABC_OK, "barrier");
        give_back(arena, out);
        give_back(arena, in);
    }
    return 0;
}

static int to_oneself(struct rank *r)
{
    enum { N = 100000 };
    static const size_t lengths[] = {0, 8, 4000, N};
    unsigned char *in = malloc(N), *out = malloc(N);
    abc_request *q[2];
    abc_received got;
    for (int i = 0; i < 4; i++)
        for (int first = 0; first < 2; first++) {
            size_t n = lengths[i];
            bytes_fill(in, n, (uint64_t)i);
            memset(out, 0, N);
            for (int k = 0; k < 2; k++)
                if ((k == 0) == (first == 0))
                    check_status(r, abc_send_start(in, n, ABC_U8, r->rank, 3, r->comm, &q[0]), ABC_OK, "send");
                else
                    check_status(r, abc_recv_start(out, N, ABC_U8, ABC_ANY_SOURCE, 3, r->comm, &got, &q[1]), ABC_OK, "recv");
            check_status(r, abc_wait(&q[1]), ABC_OK, "wait recv");
            check_status(r, abc_wait(&q[0]), ABC_OK, "wait send");
            check(r, got.source == r->rank && got.count == n && bytes_wrong(out, n, (uint64_t)i) == n, "length %zu", n);
        }
    free(in);
    free(out);
    return 0;
}

/* Everybody to the right; large ones would deadlock if one way waited for the other. */
static int around(struct rank *r)
{
    static const size_t lengths[] = {0, 1, 4000, 500000};
    int right = (r->rank + 1) % r->nranks, left = (r->rank + r->nranks - 1) % r->nranks;
    unsigned char *in = malloc(500000), *out = malloc(500000);
    for (int i = 0; i < 40; i++) {
        size_t n = lengths[i % 4];
        abc_received got;
        bytes_fill(in, n, bytes_key(r->rank, i, 0));
        if (!check_status(r, abc_sendrecv(in, n, right, i, out, n, left, i, ABC_U8, r->comm, &got), ABC_OK, "sendrecv"))
            break;
        check(r, got.source == left && got.count == n && bytes_wrong(out, n, bytes_key(left, i, 0)) == n, "round %d", i);
    }
    free(in);
    free(out);
    return 0;
}

static void count_call(abc_request *request, int status, void *context)
{
    (void)request;
    *(int *)context += status == ABC_OK;
}

/* Persistent requests with callbacks, a collective in the middle. */
static int persistent(struct rank *r)
{
    enum { N = 3000 };
    float in[N], out[N], sum = 0, one = 1;
    int calls = 0, peer = r->rank ^ 1;
    abc_request *q[2];
    abc_call c;
    for (int k = 0; k < 2; k++) {
        abc_call_init(&c, k ? ABC_RECV : ABC_SEND);
        c.in = in;
        c.out = out;
        c.count = N;
        c.root = peer;
        c.tag = 5;
        c.callback = count_call;
        c.callback_context = &calls;
        if (!check_status(r, abc_request_create(r->comm, &c, &q[k]), ABC_OK, "create"))
            return 1;
    }
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < N; i++)
            in[i] = (float)(round + r->rank);
        for (int k = 0; k < 2; k++)
            check_status(r, abc_restart(q[k]), ABC_OK, "restart");
        check_status(r, abc_allreduce(&one, &sum, 1, ABC_F32, ABC_SUM, r->comm), ABC_OK, "allreduce");
        for (int k = 0; k < 2; k++)
            check_status(r, abc_wait(&q[k]), ABC_OK, "wait");
        check(r, out[N - 1] == (float)(round + peer) && sum == (float)r->nranks, "round %d: %g %g", round, out[N - 1], sum);
    }
    check(r, calls == 40, "%d calls of 40", calls);
    for (int k = 0; k < 2; k++)
        check_status(r, abc_request_free(q[k]), ABC_OK, "free");
    return 0;
}

/* A message that does not fit is an error of its receive alone. */
static int does_not_fit(struct rank *r)
{
    float x[3] = {1, 2, 3}, y[3] = {-1, -1, -1};
    unsigned char *large = calloc(1, 300000);
    if (r->rank == 0) {
        check_status(r, abc_send(x, 3, ABC_F32, 1, 5, r->comm), ABC_OK, "send");
        check_status(r, abc_send(x, 3, ABC_F32, 1, 6, r->comm), ABC_OK, "send");
        check_status(r, abc_send(large, 300000, ABC_U8, 1, 7, r->comm), ABC_OK, "send");
        check_status(r, abc_send(x, 3, ABC_F32, 1, 8, r->comm), ABC_OK, "send");
    } else if (r->rank == 1) {
        check_status(r, abc_recv(y, 2, ABC_F32, 0, 5, r->comm, NULL), ABC_ERR_MISMATCH, "too long");
        check(r, strstr(abc_last_error(), "count 2") && strstr(abc_last_error(), "3 f32") && strstr(abc_last_error(), "tag 5"),
              "the text: %s", abc_last_error());
        check_status(r, abc_recv(y, 3, ABC_I32, 0, 6, r->comm, NULL), ABC_ERR_MISMATCH, "another type");
        check(r, strstr(abc_last_error(), "i32") && strstr(abc_last_error(), "f32"), "the text: %s", abc_last_error());
        check_status(r, abc_recv(y, 3, ABC_U8, 0, 7, r->comm, NULL), ABC_ERR_MISMATCH, "much too long");
        check(r, y[0] == -1 && y[2] == -1, "the buffer was written");
        check_status(r, abc_recv(y, 3, ABC_F32, 0, 8, r->comm, NULL), ABC_OK, "the next one");
        check(r, y[2] == 3, "the next one brought %g", y[2]);
    }
    free(large);
    return 0;
}

static void refused(struct rank *r, int status, int wanted, const char *part, const char *what)
{
    check_status(r, status, wanted, what);
    check(r, strstr(abc_last_error(), part) != NULL, "%s: no \"%s\" in: %s", what, part, abc_last_error());
}

static int refusals(struct rank *r)
{
    float x[4] = {0};
    abc_call c;
    abc_request *q;
    abc_comm *comm = r->comm;
    refused(r, abc_send(x, 1, ABC_F32, r->nranks, 0, comm), ABC_ERR_ARGUMENT, "destination", "dest too large");
    refused(r, abc_send(x, 1, ABC_F32, -1, 0, comm), ABC_ERR_ARGUMENT, "destination -1", "dest any");
    refused(r, abc_send(x, 1, ABC_F32, 0, -1, comm), ABC_ERR_ARGUMENT, "tag -1", "tag any");
    refused(r, abc_send(x, 1, (abc_type)99, 0, 0, comm), ABC_ERR_ARGUMENT, "type 99", "type");
    refused(r, abc_send(x, 1ull << 60, ABC_F32, 0, 0, comm), ABC_ERR_ARGUMENT, "more than memory", "count");
    refused(r, abc_send(NULL, 1, ABC_F32, 0, 0, comm), ABC_ERR_ARGUMENT, "input buffer is null", "null");
    refused(r, abc_send(ABC_IN_PLACE, 1, ABC_F32, 0, 0, comm), ABC_ERR_ARGUMENT, "in place", "in place");
    refused(r, abc_recv(x, 1, ABC_F32, -2, 0, comm, NULL), ABC_ERR_ARGUMENT, "source -2", "source");
    refused(r, abc_recv(x, 1, ABC_F32, 0, -2, comm, NULL), ABC_ERR_ARGUMENT, "tag -2", "tag");
    refused(r, abc_recv(NULL, 1, ABC_F32, 0, 0, comm, NULL), ABC_ERR_ARGUMENT, "output buffer is null", "null");
    refused(r, abc_send(x, 1, ABC_F32, 0, 0, NULL), ABC_ERR_HANDLE, "null", "no communicator");
    refused(r, abc_sendrecv(x, 2, 0, 0, x + 1, 2, 0, 0, ABC_F32, comm, NULL), ABC_ERR_ARGUMENT, "overlap", "overlap");
    abc_call_init(&c, ABC_SEND);
    c.in = x;
    c.count = 1;
    c.algorithm = "ring";
    refused(r, abc_run(comm, &c), ABC_ERR_UNSUPPORTED, "algorithm", "algorithm");
    c.algorithm = NULL;
    c.timeout = -1;
    refused(r, abc_start(comm, &c, &q), ABC_ERR_ARGUMENT, "timeout", "timeout");
    check(r, strcmp(abc_collective_name(ABC_SEND), "send") == 0 && strcmp(abc_collective_name(ABC_RECV), "recv") == 0, "names");
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*body)(struct rank *r);
        int nranks;
    } cases[] = {
        {"every size", every_size, 3},
        {"by tag", by_tag, 2},
        {"one stays", one_stays, 2},
        {"large, order", large_out_of_order, 2},
        {"heads, order", heads_out_of_order, 2},
        {"heads, both ways", heads_both_ways, 2},
        {"heads, briefly", heads_briefly, 2},
        {"both send first", both_send_first, 2},
        {"to oneself", to_oneself, 2},
        {"alone", to_oneself, 1},
        {"around", around, 4},
        {"persistent", persistent, 4},
        {"does not fit", does_not_fit, 2},
        {"refusals", refusals, 2},
    };
    static const char *const remote[][2] = {{"ABCOMM_PVR=auto"}, {"ABCOMM_PVR=off"}, {"ABCOMM_PVR=on"}};
    static const char *const said[] = {"", ", no remote reads", ", remote reads"};
    struct options o;
    options_read(argc, argv, &o);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int way = 0; way < 6; way++) {
            char name[64];
            snprintf(name, sizeof name, "%s%s%s", cases[i].name, way & 1 ? ", threads" : "", said[way / 2]);
            job_run(&(struct job){.name = name,
                                  .body = cases[i].body,
                                  .nranks = cases[i].nranks,
                                  .threads = way & 1,
                                  .limit = 20,
                                  .timeout = 10,
                                  .environment = remote[way / 2]});
        }
    return jobs_end();
}
