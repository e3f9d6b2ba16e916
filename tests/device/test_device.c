/*
 * test_device.c - accelerator memory through allreduce with today's API: a vector in the memory of a fake device (device.h) is
 * copied out in chunks to bounce buffers, summed over the ranks and copied back. Streams start the operations by callbacks,
 * completed operations queue the copies back, and with a progress thread the caller does nothing but wait for the device. What
 * overlaps is forced by order, not by time: a rank holds a chunk back until its peer has told that it has gone on.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../engine/harness.h"
#include "device.h"

#define CHUNKS 8
#define BOUNCES 3 /* buffers that the chunks share, so that copies and operations must give way to each other */
#define COUNT 40009u
#define BYTES (COUNT * sizeof(float))
#define SECONDS 20

enum event { NOTHING, COPIED_OUT, STARTED, REDUCED, COPIED_IN };

struct chunk {
    struct pipe *pipe;
    int number;
    struct gate may_copy_out, bounce_free;
    float *device, *bounce;
    abc_request *request; /* written by the device's thread before it queues anything further of this chunk */
    int status, callbacks;
};

/* One rank's vector on its way. */
struct pipe {
    struct rank *rank;
    abc_comm *comm;
    struct device *device;
    struct stream *out, *in;
    struct chunk chunk[CHUNKS];
    pthread_mutex_t lock; /* of what follows, and of status and callbacks of the chunks */
    pthread_cond_t changed;
    struct {
        enum event event;
        int chunk;
    } trace[CHUNKS * 4 + 4];
    int traced, started, over; /* over: chunks that are back, or will never be */
    bool failed;
};

static void note(struct chunk *c, enum event event)
{
    struct pipe *p = c->pipe;
    pthread_mutex_lock(&p->lock);
    p->trace[p->traced].event = event;
    p->trace[p->traced++].chunk = c->number;
    p->started += event == STARTED;
    p->over += event == COPIED_IN;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* Position of an event in the trace, -1: it has not happened. */
static int when(struct pipe *p, enum event event, int chunk)
{
    int at = -1;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->traced && at < 0; i++)
        if (p->trace[i].event == event && p->trace[i].chunk == chunk)
            at = i;
    pthread_mutex_unlock(&p->lock);
    return at;
}

/* Wait until the number is there; false after SECONDS. */
static bool reach(struct pipe *p, const int *number, int wanted)
{
    struct timespec end;
    int late = 0;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += SECONDS;
    pthread_mutex_lock(&p->lock);
    while (*number < wanted && !late)
        late = pthread_cond_timedwait(&p->changed, &p->lock, &end);
    bool there = *number >= wanted;
    pthread_mutex_unlock(&p->lock);
    return there;
}

/* ---- the road of a chunk: copied out, started, reduced, copied in ---- */

static void copied_in(void *context, bool failed)
{
    struct chunk *c = context;
    if (c->number + BOUNCES < CHUNKS)
        gate_open(c->pipe->device, &c[BOUNCES].bounce_free);
    note(c, COPIED_IN);
    (void)failed;
}

static void reduced(abc_request *request, int status, void *context)
{
    struct chunk *c = context;
    struct pipe *p = c->pipe;
    (void)request;
    pthread_mutex_lock(&p->lock);
    c->status = status;
    c->callbacks++;
    pthread_mutex_unlock(&p->lock);
    note(c, REDUCED);
    if (status == ABC_OK)
        stream_copy_in(p->in, c->device, c->bounce, BYTES);
    stream_call(p->in, copied_in, c);
}

static void copied_out(void *context, bool failed)
{
    struct chunk *c = context;
    struct pipe *p = c->pipe;
    abc_call call;
    note(c, COPIED_OUT);
    if (failed) {
        abc_comm_abort(p->comm, "the device could not copy a chunk out");
        pthread_mutex_lock(&p->lock);
        p->failed = true;
        pthread_mutex_unlock(&p->lock);
    }
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = ABC_IN_PLACE;
    call.out = c->bounce;
    call.count = COUNT;
    call.callback = reduced;
    call.callback_context = c;
    int status = abc_start(p->comm, &call, &c->request);
    if (status != ABC_OK) { /* only after an abort; the chunk ends here */
        c->request = NULL;
        c->status = status;
        note(c, REDUCED);
        stream_call(p->in, copied_in, c);
    }
    note(c, STARTED);
}

/* ---- a rank's vector ---- */

static float value_of(int rank, int chunk, unsigned i)
{
    return (float)((int)(i % 97) - 40 + 3 * rank + chunk);
}

static void fill(void *memory, size_t bytes, void *context)
{
    const struct chunk *c = context;
    float *x = memory;
    for (unsigned i = 0; i < bytes / sizeof(float); i++)
        x[i] = value_of(c->pipe->rank->rank, c->number, i);
}

static void verify(void *memory, size_t bytes, void *context)
{
    const struct chunk *c = context;
    const float *x = memory;
    struct rank *r = c->pipe->rank;
    for (unsigned i = 0; i < bytes / sizeof(float); i++) {
        float sum = 0;
        for (int q = 0; q < r->nranks; q++)
            sum += value_of(q, c->number, i);
        if (!check(r, x[i] == sum, "chunk %d: element %u is %g, must be %g", c->number, i, (double)x[i], (double)sum))
            return;
    }
}

static bool pipe_open(struct pipe *p, struct rank *r, abc_comm *comm)
{
    void *bounce[BOUNCES];
    memset(p, 0, sizeof *p);
    p->rank = r;
    p->comm = comm;
    p->device = device_open();
    p->out = stream_create(p->device);
    p->in = stream_create(p->device);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    for (int b = 0; b < BOUNCES; b++)
        if (!check_status(r, abc_mem_alloc(BYTES, &bounce[b]), ABC_OK, "abc_mem_alloc"))
            return false;
    for (int i = 0; i < CHUNKS; i++) {
        struct chunk *c = &p->chunk[i];
        c->pipe = p;
        c->number = i;
        c->status = 999;
        c->device = device_alloc(p->device, BYTES);
        c->bounce = bounce[i % BOUNCES];
        c->bounce_free.open = i < BOUNCES;
        stream_kernel(p->out, fill, c->device, BYTES, c);
    }
    return true;
}

static void pipe_queue(struct pipe *p)
{
    for (int i = 0; i < CHUNKS; i++) {
        struct chunk *c = &p->chunk[i];
        stream_wait(p->out, &c->bounce_free);
        stream_wait(p->out, &c->may_copy_out);
        stream_copy_out(p->out, c->bounce, c->device, BYTES);
        stream_call(p->out, copied_out, c);
    }
}

static void release(struct pipe *p, int from, int to)
{
    for (int i = from; i < to; i++)
        gate_open(p->device, &p->chunk[i].may_copy_out);
}

/* All is copied back: free the requests, whose statuses must be as told, and check the sums in the device's memory. */
static int pipe_close(struct pipe *p, bool sums)
{
    struct rank *r = p->rank;
    bool good = check(r, reach(p, &p->over, CHUNKS), "only %d of %d chunks came back", p->over, CHUNKS);
    for (int i = 0; i < CHUNKS && good; i++) {
        struct chunk *c = &p->chunk[i];
        if (sums)
            stream_kernel(p->in, verify, c->device, BYTES, c);
        good = check(r, c->callbacks == (c->request != NULL), "chunk %d: %d callbacks", i, c->callbacks);
        if (c->request && good)
            good = check(r, abc_wait(&c->request) == c->status, "chunk %d: the callback got status %d", i, c->status);
    }
    device_close(p->device);
    for (int b = 0; b < BOUNCES; b++)
        abc_mem_free(p->chunk[b].bounce);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    return good ? 0 : 1;
}

/* ---- scenarios ---- */

/* The caller queues everything and waits for the device; it is in no call of the library meanwhile. */
static int alone(struct rank *r)
{
    struct pipe p;
    int ends[2];
    if (!pipe_open(&p, r, r->comm) || !check(r, pipe(ends) == 0, "no pipe"))
        return 1;
    /* Neither this test nor the library can have touched the memory by accident: the kernel cannot either. */
    if (!check(r, write(ends[1], p.chunk[0].device, 1) == -1 && errno == EFAULT, "the host can read the device's memory"))
        return 1;
    close(ends[0]);
    close(ends[1]);
    pipe_queue(&p);
    release(&p, 0, CHUNKS);
    return pipe_close(&p, true);
}

/* Without a progress thread somebody must be in a call: the caller waits for one chunk after the other. */
static int driven(struct rank *r)
{
    struct pipe p;
    if (!pipe_open(&p, r, r->comm))
        return 1;
    pipe_queue(&p);
    release(&p, 0, CHUNKS);
    for (int i = 0; i < CHUNKS; i++) {
        if (!check(r, reach(&p, &p.started, i + 1), "chunk %d was not started", i))
            return 1;
        while (abc_test(p.chunk[i].request) == ABC_PENDING)
            ;
    }
    return pipe_close(&p, true);
}

/* Wait until a rank has told that it has come so far. */
static bool await_word(struct rank *r, int word)
{
    double end = now_seconds() + SECONDS;
    while (!atomic_load(&board_words(r->board)[word]) && now_seconds() < end)
        nap(0.001);
    return check(r, atomic_load(&board_words(r->board)[word]), "the peer did not get to point %d", word);
}

static bool await_event(struct pipe *p, enum event event, int chunk)
{
    double end = now_seconds() + SECONDS;
    while (when(p, event, chunk) < 0 && now_seconds() < end)
        nap(0.001);
    return check(p->rank, when(p, event, chunk) >= 0, "event %d of chunk %d did not come", event, chunk);
}

/*
 * Rank 0 copies out and starts all that it has buffers for while the first chunk cannot be over, because rank 1 holds its own back;
 * and it has chunk 0 back on the device while the last one cannot be over. A start that blocked, or a queue that waited for its
 * operations, would end here.
 */
static int overlap(struct rank *r)
{
    struct pipe p;
    bool good = pipe_open(&p, r, r->comm);
    if (!good)
        return 1;
    pipe_queue(&p);
    if (r->rank == 0) {
        release(&p, 0, CHUNKS);
        good = await_event(&p, STARTED, BOUNCES - 1);
        atomic_store(&board_words(r->board)[0], 1);
        good = good && await_event(&p, COPIED_IN, 0);
        atomic_store(&board_words(r->board)[1], 1);
    } else {
        good = r->rank > 1 || await_word(r, 0);
        release(&p, 0, CHUNKS - 1);
        good = good && (r->rank > 1 || await_word(r, 1));
        release(&p, CHUNKS - 1, CHUNKS);
    }
    good = good && check(r, reach(&p, &p.over, CHUNKS), "only %d of %d chunks came back", p.over, CHUNKS);
    if (r->rank == 0 && good) {
        int first = when(&p, REDUCED, 0), last = when(&p, REDUCED, CHUNKS - 1);
        good = check(r, when(&p, COPIED_OUT, BOUNCES - 1) < first, "chunk 0 was over before the buffers were filled") &&
               check(r, when(&p, COPIED_IN, 0) < last, "nothing was copied back before all was over") &&
               check(r, when(&p, COPIED_OUT, BOUNCES) > when(&p, COPIED_IN, 0), "a buffer was filled before it was free");
    }
    return pipe_close(&p, true) == 0 && good ? 0 : 1;
}

/* The device of rank 1 fails in the middle: every rank's chunks end, each callback comes once, nobody hangs. */
static int broken(struct rank *r)
{
    struct pipe p;
    char text[512];
    if (!pipe_open(&p, r, r->comm))
        return 1;
    if (r->rank == 1)
        stream_break(p.out, 4);
    pipe_queue(&p);
    release(&p, 0, CHUNKS);
    int code = pipe_close(&p, false);
    int status = abc_comm_error(r->comm, text, sizeof text);
    bool good = check(r, status == ABC_ERR_ABORTED, "the communicator's status is %d: %s", status, text) &&
                check(r, strstr(text, "could not copy a chunk out") != NULL, "the reason is not in: %s", text);
    good = check_status(r, abc_comm_destroy(r->comm), ABC_ERR_ABORTED, "destroy") && good;
    r->comm = NULL;
    return good ? code : 1;
}

/* ---- one operation starts the next ---- */

struct chain {
    struct pipe pipe; /* its lock, condition, communicator, and chunks for buffers and requests */
    int done, status;
};

static void next(abc_request *request, int status, void *context);

static int start_link(struct chain *k)
{
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = ABC_IN_PLACE;
    call.out = k->pipe.chunk[k->done].bounce;
    call.count = 1;
    call.callback = next;
    call.callback_context = k;
    return abc_start(k->pipe.comm, &call, &k->pipe.chunk[k->done].request);
}

/* On the thread that has driven the operation to its end, the next one is started. */
static void next(abc_request *request, int status, void *context)
{
    struct chain *k = context;
    (void)request;
    pthread_mutex_lock(&k->pipe.lock);
    k->done++;
    k->status = status;
    bool more = status == ABC_OK && k->done < CHUNKS;
    pthread_mutex_unlock(&k->pipe.lock);
    if (more && (status = start_link(k)) != ABC_OK)
        k->status = status;
    pthread_mutex_lock(&k->pipe.lock);
    pthread_cond_broadcast(&k->pipe.changed);
    pthread_mutex_unlock(&k->pipe.lock);
}

static int chained(struct rank *r)
{
    struct chain k = {.done = 0};
    float one[CHUNKS];
    pthread_mutex_init(&k.pipe.lock, NULL);
    pthread_cond_init(&k.pipe.changed, NULL);
    k.pipe.comm = r->comm;
    for (int i = 0; i < CHUNKS; i++) {
        one[i] = (float)(i + r->rank);
        k.pipe.chunk[i].bounce = &one[i];
    }
    bool good = check_status(r, start_link(&k), ABC_OK, "start") &&
                check(r, reach(&k.pipe, &k.done, CHUNKS), "the chain ended after %d operations: %d", k.done, k.status);
    for (int i = 0; i < CHUNKS && good; i++)
        good = check_status(r, abc_wait(&k.pipe.chunk[i].request), ABC_OK, "wait") &&
               check(r, one[i] == (float)(r->nranks * i + r->nranks * (r->nranks - 1) / 2), "link %d: wrong sum", i);
    return good ? 0 : 1;
}

/* What is reserved for devices is refused until it means something. */
static int reserved(struct rank *r)
{
    abc_call call;
    float x = 1;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = ABC_IN_PLACE;
    call.out = &x;
    call.count = 1;
    call.stream = &call;
    return check_status(r, abc_run(r->comm, &call), ABC_ERR_UNSUPPORTED, "a call on a stream") ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*body)(struct rank *r);
        int nranks, progress;
    } rows[] = {
        {"device memory, nobody drives", alone, 2, 1},      {"device memory, four ranks", alone, 4, 1},
        {"device memory, the caller drives", driven, 3, 0}, {"copies and operations overlap", overlap, 2, 1},
        {"overlap on three ranks", overlap, 3, 1},          {"a copy fails", broken, 3, 1},
        {"a callback starts the next", chained, 3, 1},      {"streams are reserved", reserved, 1, 0},
    };
    struct options options;
    options_read(argc, argv, &options);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int threads = 0; threads < 2; threads++) {
            struct job job = {.name = rows[i].name,
                              .body = rows[i].body,
                              .nranks = rows[i].nranks,
                              .progress = rows[i].progress,
                              .threads = threads,
                              .timeout = SECONDS};
            job_run(&job);
        }
    return jobs_end();
}
