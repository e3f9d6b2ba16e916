/*
 * event.c - the cold half of the event ring: making one, reading one, turning ticks into time. The hot half is inline in event.h.
 * Neighbours: the executor (plan/run.c) writes, tools/inspect.c reads. No state of its own; any thread.
 */
#include "diag/event.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define YOUNGEST_NS 10000000u /* a rate is taken over at least this time */
#define AGE_MOST 1e18         /* ns: 31 years */

bool abci_event_tsc_usable(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007u, &a, &b, &c, &d) && (d & 1u << 8); /* "invariant TSC" */
#elif defined(__aarch64__)
    return true; /* the architecture's counter runs at one rate */
#else
    return false;
#endif
}

static uint64_t monotonic_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void abci_event_ring_init(struct abci_event_ring *ring)
{
    memset(ring, 0, sizeof *ring);
    ring->clock = abci_event_tsc_usable() ? ABCI_CLOCK_TSC : ABCI_CLOCK_COARSE;
    ring->start_ticks = abci_event_ticks(ring->clock);
    ring->start_ns = monotonic_ns();
    ring->magic = ABCI_EVENT_MAGIC;
}

/* Copy the newest records whose number is the same in both looks and fits their place. */
static int pick(const struct abci_event_ring *first, const struct abci_event_ring *second, struct abci_event *out, int most)
{
    uint64_t newest = 0;
    int n = 0;
    for (int i = 0; i < ABCI_EVENTS; i++) {
        uint64_t number = atomic_load_explicit(&first->event[i].number, memory_order_relaxed);
        newest = number > newest ? number : newest;
    }
    if (most > ABCI_EVENTS)
        most = ABCI_EVENTS;
    uint64_t oldest = newest > (uint64_t)most ? newest - (uint64_t)most + 1 : 1;
    /* Counted, since in memory that a broken process has filled the newest may be the last number that there is. */
    for (int i = 0; i < most && newest - oldest >= (uint64_t)i && newest != 0; i++) {
        uint64_t number = oldest + (uint64_t)i;
        const struct abci_event *e = &first->event[(number - 1) % ABCI_EVENTS], *again = &second->event[(number - 1) % ABCI_EVENTS];
        if (atomic_load_explicit(&e->number, memory_order_acquire) != number) /* pairs with abci_event_commit */
            continue;
        out[n] = *e;
        atomic_thread_fence(memory_order_acquire); /* the copy before the second look */
        if (atomic_load_explicit(&again->number, memory_order_relaxed) == number)
            n++;
    }
    return n;
}

int abci_event_copy(const struct abci_event_ring *ring, struct abci_event *out, int most)
{
    return pick(ring, ring, out, most);
}

int abci_event_pick(const struct abci_event_ring *first, const struct abci_event_ring *second, struct abci_event *out, int most)
{
    return pick(first, second, out, most);
}

uint64_t abci_event_age(const struct abci_event_ring *ring, uint64_t time)
{
    if (ring->clock != ABCI_CLOCK_TSC) {
        uint64_t now = abci_event_coarse();
        return now > time ? now - time : 0;
    }
    uint64_t ns = monotonic_ns();
    while (ns - ring->start_ns < YOUNGEST_NS) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        ns = monotonic_ns();
    }
    uint64_t now = abci_event_ticks(ring->clock);
    if (now <= time || now <= ring->start_ticks)
        return 0;
    double age = (double)(now - time) * ((double)(ns - ring->start_ns) / (double)(now - ring->start_ticks));
    return age < AGE_MOST ? (uint64_t)age : (uint64_t)AGE_MOST; /* more is not the library's writing */
}

const char *abci_event_kind_name(int kind)
{
    static const char *const names[ABCI_EVENT_KINDS] = {"?", "start", "end", "error"};
    return kind > 0 && kind < ABCI_EVENT_KINDS ? names[kind] : "?";
}
