/*
 * device.c - the fake accelerator of device.h. Its memory is one memfd, mapped twice: where nothing is allowed, for the addresses
 * that the host gets, and where the device's thread works. That thread does the first possible piece of each stream in turn;
 * everything else only queues, under one lock.
 */
#include "device.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY (64u << 20)
#define STREAMS 8

enum kind { COPY_OUT, COPY_IN, KERNEL, CALL, WAIT };

struct work {
    struct work *next;
    enum kind kind;
    char *memory; /* as the device sees it */
    char *host;
    size_t bytes;
    device_kernel kernel;
    device_call call;
    const struct gate *gate;
    void *context;
};

struct stream {
    struct device *device;
    struct work *first, **end;
    int copies_left; /* until one fails; 0: none will */
    bool failed;
};

struct device {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct stream stream[STREAMS];
    int streams;
    char *shown, *real; /* the two mappings */
    size_t used;
    bool closing;
};

/* ---- the device's thread ---- */

/* Takes the first piece of work off the stream if it can be done now. */
static struct work *take(struct stream *s)
{
    struct work *w = s->first;
    if (!w || (w->kind == WAIT && !w->gate->open))
        return NULL;
    s->first = w->next;
    if (!s->first)
        s->end = &s->first;
    return w;
}

/* Under the lock: does this copy fail? */
static bool copy_fails(struct stream *s, const struct work *w)
{
    if (w->kind != COPY_OUT && w->kind != COPY_IN)
        return s->failed;
    if (s->copies_left > 0 && --s->copies_left == 0)
        s->failed = true;
    return s->failed;
}

static void carry_out(const struct work *w, bool failed)
{
    if (w->kind == CALL)
        w->call(w->context, failed);
    else if (failed)
        return;
    else if (w->kind == COPY_OUT)
        memcpy(w->host, w->memory, w->bytes);
    else if (w->kind == COPY_IN)
        memcpy(w->memory, w->host, w->bytes);
    else if (w->kind == KERNEL)
        w->kernel(w->memory, w->bytes, w->context);
}

static void *serve(void *argument)
{
    struct device *d = argument;
    pthread_mutex_lock(&d->lock);
    for (bool idle = false; !(idle && d->closing);) {
        if (idle)
            pthread_cond_wait(&d->changed, &d->lock);
        idle = true;
        for (int i = 0; i < d->streams; i++) {
            struct work *w = take(&d->stream[i]);
            if (!w)
                continue;
            idle = false;
            bool failed = copy_fails(&d->stream[i], w);
            pthread_mutex_unlock(&d->lock);
            carry_out(w, failed);
            free(w);
            pthread_mutex_lock(&d->lock);
        }
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- the host's side ---- */

struct device *device_open(void)
{
    struct device *d = calloc(1, sizeof *d);
    int fd = memfd_create("device", MFD_CLOEXEC);
    if (!d || fd < 0 || ftruncate(fd, MEMORY) != 0)
        abort();
    d->shown = mmap(NULL, MEMORY, PROT_NONE, MAP_SHARED, fd, 0);
    d->real = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (d->shown == MAP_FAILED || d->real == MAP_FAILED)
        abort();
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    if (pthread_create(&d->thread, NULL, serve, d) != 0)
        abort();
    return d;
}

void device_close(struct device *d)
{
    pthread_mutex_lock(&d->lock);
    d->closing = true;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    for (int i = 0; i < d->streams; i++)
        for (struct work *w = d->stream[i].first, *next; w; w = next) {
            next = w->next; /* behind a gate that never opened */
            free(w);
        }
    munmap(d->shown, MEMORY);
    munmap(d->real, MEMORY);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->changed);
    free(d);
}

void *device_alloc(struct device *d, size_t bytes)
{
    pthread_mutex_lock(&d->lock);
    size_t at = d->used, taken = (bytes + 255) & ~(size_t)255;
    bool fits = taken <= MEMORY - at;
    d->used += fits ? taken : 0;
    pthread_mutex_unlock(&d->lock);
    return fits ? d->shown + at : NULL;
}

struct stream *stream_create(struct device *d)
{
    pthread_mutex_lock(&d->lock);
    if (d->streams == STREAMS)
        abort();
    struct stream *s = &d->stream[d->streams];
    s->device = d;
    s->end = &s->first;
    d->streams++;
    pthread_mutex_unlock(&d->lock);
    return s;
}

void stream_break(struct stream *s, int n)
{
    pthread_mutex_lock(&s->device->lock);
    s->copies_left = n;
    pthread_mutex_unlock(&s->device->lock);
}

static void queue(struct stream *s, struct work work)
{
    struct work *w = malloc(sizeof *w);
    if (!w)
        abort();
    *w = work;
    pthread_mutex_lock(&s->device->lock);
    *s->end = w;
    s->end = &w->next;
    pthread_cond_signal(&s->device->changed);
    pthread_mutex_unlock(&s->device->lock);
}

/* The device's own address for what the host was shown. */
static char *inside(const struct device *d, const void *shown)
{
    return d->real + ((const char *)shown - d->shown);
}

void stream_copy_out(struct stream *s, void *host, const void *memory, size_t bytes)
{
    queue(s, (struct work){.kind = COPY_OUT, .host = host, .memory = inside(s->device, memory), .bytes = bytes});
}

void stream_copy_in(struct stream *s, void *memory, const void *host, size_t bytes)
{
    queue(s, (struct work){.kind = COPY_IN, .host = (char *)(uintptr_t)host, .memory = inside(s->device, memory), .bytes = bytes});
}

void stream_kernel(struct stream *s, device_kernel kernel, void *memory, size_t bytes, void *context)
{
    queue(s,
          (struct work){.kind = KERNEL, .kernel = kernel, .memory = inside(s->device, memory), .bytes = bytes, .context = context});
}

void stream_call(struct stream *s, device_call call, void *context)
{
    queue(s, (struct work){.kind = CALL, .call = call, .context = context});
}

void stream_wait(struct stream *s, const struct gate *gate)
{
    queue(s, (struct work){.kind = WAIT, .gate = gate});
}

void gate_open(struct device *d, struct gate *gate)
{
    pthread_mutex_lock(&d->lock);
    gate->open = true;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
}
