/*
 * inspect_say.c - turns what was read of a rank into words: the calls in its headers, the state of its process, and a diagnosis
 * that compares it with its peers. Pure functions over the snapshot of inspect_read.c.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "inspect.h"

/* Text that grows in a buffer of fixed size. */
struct words {
    char *text;
    size_t at, capacity;
};

static __attribute__((format(printf, 2, 3))) void say(struct words *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(w->text + w->at, w->capacity - w->at, format, args);
    va_end(args);
    if (n > 0)
        w->at = w->at + (size_t)n < w->capacity ? w->at + (size_t)n : w->capacity - 1;
}

const char *inspect_process_word(char state)
{
    switch (state) {
    case 'T':
    case 't':
        return "stopped";
    case 'Z':
    case 'X':
    case 0:
        return "gone";
    case 'R':
        return "running";
    case 'D':
        return "blocked in the kernel";
    case 'S':
    case 'I':
        return "sleeping";
    default:
        return "in a state that cannot be seen from here";
    }
}

void inspect_age(const struct inspect_end *end, uint64_t time, char text[32])
{
    double s = (double)abci_event_age(&end->ring, time) * 1e-9;
    if (s >= 1)
        snprintf(text, 32, "%.1f s", s);
    else if (s >= 1e-3)
        snprintf(text, 32, "%.1f ms", s * 1e3);
    else
        snprintf(text, 32, "%.1f us", s * 1e6);
}

int inspect_slots(const struct inspect_end *end, const struct abci_header *slot[ABCI_SLOTS])
{
    int n = 0;
    for (uint32_t s = end->issued; n < ABCI_SLOTS && s != 0; s--) {
        const struct abci_header *h = &abci_shm_header(&end->control, s)->head;
        if (atomic_load_explicit(&h->sequence, memory_order_relaxed) != s)
            break;
        slot[n++] = h;
    }
    return n;
}

void inspect_call(const struct abci_header *h, char *text, size_t capacity)
{
    struct abci_call_id id = {.collective = h->collective, .type = h->type, .op = h->op, .root = h->root, .count = h->count};
    abci_call_describe(&id, text, capacity);
}

static void event_call(const struct abci_event *e, char *text, size_t capacity)
{
    struct abci_call_id id = {.collective = e->collective, .type = e->type, .op = e->op, .root = e->root, .count = e->count};
    abci_call_describe(&id, text, capacity);
}

/* Is the rank past `sequence`, as far as its peers can see? */
static bool has_entered(const struct inspect_end *end, uint32_t sequence)
{
    return end->issued != 0 && (int32_t)(end->issued - sequence) >= 0;
}

static void say_process(struct words *w, const struct inspect_end *peer)
{
    const char *word = inspect_process_word(peer->process);
    if (strcmp(word, "stopped") == 0)
        say(w, "; its process is stopped: kill -CONT %u lets it go on", peer->control.pid);
    else if (strcmp(word, "gone") == 0)
        say(w, "; its process is gone: read that rank's output");
}

/* A rank that has not come to where this one waits. */
static void say_late(struct words *w, const struct inspect_end *peer)
{
    char ago[32];
    const struct abci_control *c = &peer->control;
    say(w, "; rank %u (pid %u) has not: ", c->rank, c->pid);
    if (peer->open) {
        inspect_age(peer, peer->open->time, ago);
        say(w, "it is still in #%u, begun %s ago", peer->open->sequence, ago);
    } else if (peer->last) {
        inspect_age(peer, peer->last->time, ago);
        say(w, "its last operation is #%u, %s %s ago", peer->last->sequence,
            peer->last->kind == ABCI_EVENT_ERROR ? "failed" : "over", ago);
    } else {
        say(w, "it has called nothing yet");
    }
    say_process(w, peer);
}

/* All have come: who is not through, and how far the engine sees it. */
static void say_inside(struct words *w, const struct inspect_end *peer, const struct inspect_end *end, uint32_t sequence)
{
    const struct abci_control *c = &peer->control;
    bool awaited = abci_shm_is_waiter(c, end->control.rank);
    bool through = (int32_t)(atomic_load_explicit(&c->done, memory_order_relaxed) - sequence) >= 0;
    if (through && !awaited)
        return;
    say(w, "; rank %u (pid %u) is in it too, %s%s", c->rank, c->pid,
        through ? "has read all it needs" : "has not read all it needs", awaited ? ", and this rank sleeps until it writes" : "");
    say_process(w, peer);
}

static void say_waiting(struct words *w, const struct inspect *all, const struct inspect_end *end)
{
    char call[128], ago[32];
    const struct abci_event *e = end->open;
    uint32_t done = atomic_load_explicit(&end->control.done, memory_order_relaxed), at = e->sequence;
    if ((int32_t)(done + 1 - at) > 0) /* the first chunk that is not over */
        at = has_entered(end, done + 1) ? done + 1 : end->issued;
    event_call(e, call, sizeof call);
    inspect_age(end, e->time, ago);
    say(w, "rank %u has entered %s #%u %s ago", end->control.rank, call, e->sequence, ago);
    int late = 0, unknown = 0;
    for (uint32_t r = 0; r < end->control.nranks; r++) {
        const struct inspect_end *peer = inspect_peer(all, end, (int)r);
        unknown += !peer;
        if (peer && peer != end && !has_entered(peer, at) && late++ < 8)
            say_late(w, peer);
    }
    if (late > 8)
        say(w, "; %d more have not", late - 8);
    for (uint32_t r = 0; r < end->control.nranks && late == 0; r++) {
        const struct inspect_end *peer = inspect_peer(all, end, (int)r);
        if (peer && peer != end)
            say_inside(w, peer, end, at);
    }
    if (unknown)
        say(w, "; the memory of %d ranks is not open in this process, so nothing is known of them", unknown);
}

static void say_idle(struct words *w, const struct inspect *all, const struct inspect_end *end)
{
    char ago[32];
    int waiting = 0;
    say(w, "rank %u is in no operation", end->control.rank);
    if (end->last) {
        inspect_age(end, end->last->time, ago);
        say(w, "; its last, #%u, %s %s ago", end->last->sequence, end->last->kind == ABCI_EVENT_ERROR ? "failed" : "was over", ago);
    } else {
        say(w, " and has called none yet");
    }
    for (uint32_t r = 0; r < end->control.nranks; r++) {
        const struct inspect_end *peer = inspect_peer(all, end, (int)r);
        if (!peer || peer == end || !peer->open || has_entered(end, peer->open->sequence))
            continue;
        char call[128];
        event_call(peer->open, call, sizeof call);
        inspect_age(peer, peer->open->time, ago);
        if (waiting++ < 8)
            say(w, "; rank %u (pid %u) waits for it in %s #%u since %s", r, peer->control.pid, call, peer->open->sequence, ago);
    }
    if (waiting == 0)
        say(w, "; nobody waits for it");
}

void inspect_diagnose(const struct inspect *all, const struct inspect_end *end, char *text, size_t capacity)
{
    struct words w = {text, 0, capacity};
    const struct inspect_end *first = inspect_peer(all, end, 0);
    text[0] = 0;
    if (first && atomic_load_explicit(&first->control.failure.state, memory_order_relaxed) == 2) {
        char what[sizeof first->control.failure.text];
        abci_text_clean(what, sizeof what, first->control.failure.text);
        say(&w, "the communicator has ended: %s", what);
        return;
    }
    if (end->open)
        say_waiting(&w, all, end);
    else
        say_idle(&w, all, end);
    if (end->process == 'T' || end->process == 't')
        say(&w, "; this process is stopped: kill -CONT %d lets it go on", (int)all->pid);
}
