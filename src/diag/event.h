/*
 * event.h - what a rank did lately: one 64-byte record at the start and at the end of each operation, in a ring that lies in the
 * process's shared segment. So `abcomm inspect` reads it from outside, and it outlives its process as long as somebody has the
 * segment open. Writer: the holder of the engine's claim, hence one at a time. Readers: anybody, at any time, without a lock. Cost:
 * two records an operation, below 20 ns together where the time stamp counter can be used.
 */
#ifndef ABCI_EVENT_H
#define ABCI_EVENT_H

#include <stdatomic.h>
#include <string.h>

#include "base/base.h"

#define ABCI_EVENTS 256 /* records of a ring; a power of two */
#define ABCI_EVENT_NAME 16
#define ABCI_EVENT_MAGIC 0x61626365u

enum abci_event_kind { ABCI_EVENT_NONE, ABCI_EVENT_START, ABCI_EVENT_END, ABCI_EVENT_ERROR, ABCI_EVENT_KINDS };

/* One record. `number` is 0 while the record is being written, so that a reader can tell a whole one. */
struct abci_event {
    _Atomic uint64_t number; /* 1 for the ring's first; release: everything below is written, pairs with the reader's second look */
    uint64_t time;           /* ticks of the ring's clock; of a short call's end: when it last looked at its peers */
    uint64_t count;
    uint32_t sequence; /* the operation's number, which is that of its first chunk; 0: it ended before it got one */
    uint32_t root;
    int32_t status;
    int32_t tag;
    int16_t culprit; /* ERROR: the rank that the failure names, -1: none */
    uint8_t kind;    /* enum abci_event_kind */
    uint8_t collective, type, op;
    uint16_t in_flight; /* chunks issued of which this rank still reads */
    char algorithm[ABCI_EVENT_NAME];
};
_Static_assert(sizeof(struct abci_event) == ABCI_LINE, "a record is one line");

enum abci_event_clock { ABCI_CLOCK_COARSE, ABCI_CLOCK_TSC };

struct abci_event_ring {
    /* Calibration: the same moment in ticks and on the monotonic clock; a second such pair, taken at any time, gives the rate. */
    _Alignas(ABCI_LINE) uint32_t magic;
    uint32_t clock; /* enum abci_event_clock; the coarse clock's ticks are nanoseconds */
    uint64_t start_ticks;
    uint64_t start_ns;
    uint64_t next; /* records written so far; the writer's own */
    struct abci_event event[ABCI_EVENTS];
};

/* event.c: make a ring of zeroed memory. */
void abci_event_ring_init(struct abci_event_ring *ring);
/* Whether the time stamp counter runs at one rate on all CPUs, asleep or not. */
bool abci_event_tsc_usable(void);
/*
 * Copy the whole records of a ring to `out`, oldest first, at most `most` of the newest; returns how many. Safe against a writer:
 * records that are being overwritten are left out.
 */
int abci_event_copy(const struct abci_event_ring *ring, struct abci_event *out, int most);
/* The same from two copies of a ring, taken one after the other by means that give no atomic loads (a file's bytes). */
int abci_event_pick(const struct abci_event_ring *first, const struct abci_event_ring *second, struct abci_event *out, int most);
/* Nanoseconds since a record was written; waits up to 10 ms on a ring that is too young to know its rate. */
uint64_t abci_event_age(const struct abci_event_ring *ring, uint64_t time);
/* "start", "end", "error"; "?" for others. */
const char *abci_event_kind_name(int kind);

static inline uint64_t abci_event_coarse(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t abci_event_ticks(uint32_t clock)
{
#if defined(__x86_64__)
    if (ABCI_LIKELY(clock == ABCI_CLOCK_TSC))
        return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    if (ABCI_LIKELY(clock == ABCI_CLOCK_TSC)) {
        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
        return ticks;
    }
#endif
    return abci_event_coarse();
}

/* The next record, to be filled by the caller, the time too, and ended by abci_event_commit; until then it may be opened again. */
static inline struct abci_event *abci_event_open(struct abci_event_ring *ring)
{
    struct abci_event *event = &ring->event[ring->next % ABCI_EVENTS];
    atomic_store_explicit(&event->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* the 0 before the fields; pairs with the reader's second look */
    return event;
}

/* The same, with the time of now. */
static inline struct abci_event *abci_event_begin(struct abci_event_ring *ring, enum abci_event_kind kind)
{
    struct abci_event *event = abci_event_open(ring);
    event->time = abci_event_ticks(ring->clock);
    event->kind = (uint8_t)kind;
    return event;
}

static inline void abci_event_commit(struct abci_event_ring *ring, struct abci_event *event)
{
    atomic_store_explicit(&event->number, ++ring->next, memory_order_release); /* pairs with pick in event.c */
}

#endif
