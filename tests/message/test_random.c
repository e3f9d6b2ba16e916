/*
 * test_random.c - random traffic against an oracle. All ranks draw the same messages from one seed; receivers draw in which order
 * and how they ask: by source and tag, with any tag, from any source, both. The oracle is a list of each sender's messages: a
 * receive must get the first one in it that fits and is not gone. Collectives run at the same time. Also for -Db_sanitize=thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../engine/harness.h"
#include "bytes.h"

#define MOST 160 /* messages of a phase, of all ranks */
#define TAGS 3

struct message {
    int source, dest, tag;
    size_t bytes;
    bool gone; /* for the receiver's oracle */
};

enum asks { BY_BOTH, BY_SOURCE, BY_TAG, BY_NOTHING, WAYS };

struct receive {
    int source, tag; /* as asked for */
    size_t room;
    unsigned char *buffer;
    abc_received got;
    abc_request *request;
};

static size_t draw_bytes(uint64_t *seed)
{
    uint64_t dice = random_next(seed), n = random_next(seed);
    switch (dice % 8) {
    case 0:
        return 0;
    case 1:
    case 2:
    case 3:
        return n % 64;
    case 4:
    case 5:
        return n % 6000;
    case 6:
        return n % 40000;
    default:
        return n % 300000;
    }
}

/* The receive got something: is it what it must have got? */
static bool judge(struct rank *r, struct message *all, int count, const struct receive *v, int phase)
{
    for (int i = 0; i < count; i++) {
        struct message *m = &all[i];
        bool fits = m->dest == r->rank && !m->gone && m->source == v->got.source && (v->tag == ABC_ANY_TAG || m->tag == v->tag);
        if (!fits)
            continue;
        m->gone = true;
        size_t wrong = bytes_wrong(v->buffer, m->bytes, bytes_key(m->source, m->tag, phase * MOST + i));
        return check(r, v->got.tag == m->tag && v->got.count == m->bytes && wrong == m->bytes,
                     "phase %d: message %d of rank %d (tag %d, %zu bytes): got tag %d, %llu bytes, first wrong %zu", phase, i,
                     m->source, m->tag, m->bytes, v->got.tag, (unsigned long long)v->got.count, wrong);
    }
    return check(r, false, "phase %d: a message from %d that was never sent", phase, v->got.source);
}

static void shuffle(struct receive *v, int n, uint64_t *seed)
{
    for (int i = n - 1; i > 0; i--) {
        int k = (int)(random_next(seed) % (uint64_t)(i + 1));
        struct receive t = v[i];
        v[i] = v[k];
        v[k] = t;
    }
}

/* Start one's sends, in order, and one's receives, in any; some of them blocking. */
static bool traffic(struct rank *r, struct message *all, int count, int phase)
{
    static const int rooms = 300000;
    struct receive *in = calloc(MOST, sizeof *in);
    abc_request *out[MOST];
    unsigned char *bytes[MOST];
    int nin = 0, nout = 0, at_send = 0, at_receive = 0;
    enum asks asks = (enum asks)(random_next(&r->random) % WAYS);
    bool ok = in != NULL;
    for (int i = 0; i < count && ok; i++)
        if (all[i].dest == r->rank)
            in[nin++] = (struct receive){.source = asks == BY_BOTH || asks == BY_SOURCE ? all[i].source : ABC_ANY_SOURCE,
                                         .tag = asks == BY_BOTH || asks == BY_TAG ? all[i].tag : ABC_ANY_TAG};
    shuffle(in, nin, &r->random);
    while (ok && (at_send < count || at_receive < nin)) {
        if (at_receive == nin || (at_send < count && random_next(&r->random) % 2)) {
            const struct message *m = &all[at_send++];
            if (m->source != r->rank)
                continue;
            bytes[nout] = malloc(m->bytes + 1);
            bytes_fill(bytes[nout], m->bytes, bytes_key(m->source, m->tag, phase * MOST + at_send - 1));
            ok = check_status(r, abc_send_start(bytes[nout], m->bytes, ABC_U8, m->dest, m->tag, r->comm, &out[nout]), ABC_OK,
                              "send");
            nout += ok;
            continue;
        }
        struct receive *v = &in[at_receive++];
        v->buffer = malloc((size_t)rooms);
        ok = check_status(r, abc_recv_start(v->buffer, (uint64_t)rooms, ABC_U8, v->source, v->tag, r->comm, &v->got, &v->request),
                          ABC_OK, "recv");
        if (random_next(&r->random) % 8 == 0)
            abc_test(v->request);
    }
    for (int i = 0; i < at_receive && ok; i++)
        ok = check_status(r, abc_wait(&in[i].request), ABC_OK, "wait recv") && judge(r, all, count, &in[i], phase);
    for (int i = 0; i < nout && ok; i++)
        ok = check_status(r, abc_wait(&out[i]), ABC_OK, "wait send");
    for (int i = 0; i < nout && ok; i++)
        free(bytes[i]);
    for (int i = 0; i < at_receive && ok; i++)
        free(in[i].buffer);
    free(in);
    return ok;
}

static int phases(struct rank *r)
{
    const struct options *o = r->argument;
    uint64_t seed = o->seed;
    r->random = o->seed * 31 + (uint64_t)r->rank;
    for (int phase = 0; phase < (o->full ? 300 : 12); phase++) {
        struct message all[MOST];
        int count = (int)(random_next(&seed) % MOST), in = r->rank, sum = -1;
        abc_request *q = NULL;
        for (int i = 0; i < count; i++)
            all[i] = (struct message){.source = (int)(random_next(&seed) % (uint64_t)r->nranks),
                                      .dest = (int)(random_next(&seed) % (uint64_t)r->nranks),
                                      .tag = (int)(random_next(&seed) % TAGS),
                                      .bytes = draw_bytes(&seed)};
        doing(r, "phase %d, %d messages", phase, count);
        bool ok = check_status(r, abc_allreduce_start(&in, &sum, 1, ABC_I32, ABC_SUM, r->comm, &q), ABC_OK, "allreduce") &&
                  traffic(r, all, count, phase) && check_status(r, abc_wait(&q), ABC_OK, "wait allreduce") &&
                  check(r, sum == r->nranks * (r->nranks - 1) / 2, "the sum is %d", sum) &&
                  check_status(r, abc_barrier(r->comm), ABC_OK, "barrier");
        if (!ok)
            return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const no_remote[] = {"ABCOMM_PVR=off", NULL};
    struct options o;
    options_read(argc, argv, &o);
    for (int nranks = 1; nranks <= 5; nranks++)
        for (int way = 0; way < 4; way++) {
            char name[64];
            snprintf(name, sizeof name, "%d ranks%s%s", nranks, way & 2 ? ", no remote reads" : "",
                     way & 1 && nranks % 2 ? ", progress thread" : "");
            job_run(&(struct job){.name = name,
                                  .body = phases,
                                  .argument = &o,
                                  .nranks = nranks,
                                  .threads = way & 1,
                                  .progress = way & 1 && nranks % 2,
                                  .limit = o.full ? 300 : 40,
                                  .timeout = 15,
                                  .environment = way & 2 ? no_remote : NULL});
        }
    return jobs_end();
}
