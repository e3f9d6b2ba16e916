/*
 * run_probe.c - stage 3, at creation: what this machine is like between rank 0 and rank 1. Measures the hand-off of a line, staging
 * written with plain and with streaming stores, and process_vm_readv. Talks over the probe lines of the two control blocks. Every
 * wait is bounded: a rank that does not answer leaves the built-in values in place.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "plan/run.h"

#define BLOCK (64u << 10)
#define HUGE_BYTES (2u << 20)
#define ROUNDS 150    /* hand-offs */
#define COPIES 9      /* copies of a block, each kind */
#define PATIENCE 0.02 /* seconds for any single answer */

/* Words of the probe lines; one line each. */
enum { WORD_STATE, WORD_PING, WORD_BLOCK, WORD_PRIVATE, WORD_COPY, WORD_CALL, WORD_BYTE, WORD_HUGE, WORD_HUGE_BYTE, WORD_COUNT };
enum { STATE_GO = 1, STATE_SKIP = 2, STATE_READY = 3, STATE_OVER = 4 };

static struct {
    pthread_mutex_t lock;
    bool valid;
    struct abci_machine machine;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Atomic uint64_t *word(struct abci_control *c, int which)
{
    return &c->probe[which * 8];
}

static void put(struct abci_control *c, int which, uint64_t value)
{
    atomic_store_explicit(word(c, which), value, memory_order_release); /* pairs with await */
}

/* Spin, then yield, until the word has the value; false when patience ends. */
static bool await(struct abci_control *c, int which, uint64_t value)
{
    for (int i = 0; i < 2000; i++) {
        if (atomic_load_explicit(word(c, which), memory_order_acquire) == value)
            return true;
        abci_pause();
    }
    for (double end = abci_now() + PATIENCE; abci_now() < end; sched_yield())
        if (atomic_load_explicit(word(c, which), memory_order_acquire) == value)
            return true;
    return false;
}

/* A loaded machine gives wild values: keep to what hardware can do. */
static double within(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}

static void built_in(struct abci_machine *m)
{
    memset(m, 0, sizeof *m);
    m->price = (struct abci_price_constants){
        .hand_off = 2e-7, .step = 3e-8, .copy = 2.5e-11, .read = 3.5e-11, .reduce = 2.5e-11, .crowding = 1};
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Not the least: a poll that looks at the right moment now and then finds a line sooner than it travels. */
static double median(double *times, int n)
{
    qsort(times, (size_t)n, sizeof *times, compare);
    return times[n / 2];
}

/* Rank 0's half of the hand-off: half of a round trip. The clock's own cost is taken out. */
static bool ping(struct abci_control *own, struct abci_control *peer, double *hand_off)
{
    double times[ROUNDS], clock = 1;
    for (uint64_t n = 1; n <= ROUNDS; n++) {
        double start = abci_now(), tick = abci_now();
        put(own, WORD_PING, n);
        if (!await(peer, WORD_PING, n))
            return false;
        double end = abci_now();
        clock = tick - start < clock ? tick - start : clock;
        times[n - 1] = end - tick;
    }
    *hand_off = within((median(times, ROUNDS) - clock) / 2, 2e-8, 1);
    return *hand_off < 2e-6; /* else the two ranks had one CPU: nothing can be learnt now */
}

static bool pong(struct abci_control *own, struct abci_control *peer)
{
    for (uint64_t n = 1; n <= ROUNDS; n++) {
        if (!await(peer, WORD_PING, n))
            return false;
        put(own, WORD_PING, n);
    }
    return true;
}

/*
 * Rank 0 writes the block with either store kind, rank 1 reads it; seconds per byte, hand-offs taken out. First all of one kind,
 * then all of the other: what a plain store costs depends on how the line came to the reader the time before.
 */
static bool write_blocks(struct abci_control *own, struct abci_control *peer, char *block, const char *from, double hand_off,
                         double *cost)
{
    uint64_t n = 0;
    double times[COPIES];
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < COPIES; i++) {
            double start = abci_now();
            abci_copy(block, NULL, from, BLOCK, (enum abci_store)kind);
            put(own, WORD_COPY, ++n);
            if (!await(peer, WORD_COPY, n))
                return false;
            times[i] = (abci_now() - start - 2 * hand_off) / BLOCK;
        }
        cost[kind] = median(times, COPIES);
    }
    return true;
}

static bool read_blocks(struct abci_control *own, struct abci_control *peer, const char *block, char *to)
{
    for (uint64_t n = 1; n <= 2 * COPIES; n++) {
        if (!await(peer, WORD_COPY, n))
            return false;
        abci_copy(to, NULL, block, BLOCK, ABCI_STORE_PLAIN);
        put(own, WORD_COPY, n);
    }
    return true;
}

/* Rank 1: time of small and large reads of a private block of rank 0: seconds a call and a byte. False: it cannot be read. */
static bool time_remote(const struct abci_shm *shm, char *to, uint64_t from, double *call, double *byte)
{
    double small = 1, large = 1;
    for (int i = 0; i < 4; i++) {
        double t0 = abci_now();
        if (abci_shm_read_remote(shm, 0, to, from, 8) != ABC_OK)
            return false;
        double t1 = abci_now();
        if (abci_shm_read_remote(shm, 0, to, from, BLOCK) != ABC_OK)
            return false;
        double t2 = abci_now();
        small = t1 - t0 < small ? t1 - t0 : small;
        large = t2 - t1 < large ? t2 - t1 : large;
    }
    *call = small;
    *byte = large > small ? (large - small) / BLOCK : 0;
    return true;
}

/* Rank 1: of both kinds of memory; in picoseconds a call, femtoseconds a byte. */
static void time_both(struct abci_shm *shm, char *to)
{
    struct abci_control *own = shm->control, *peer = shm->peer[0].control;
    double call, byte;
    if (!time_remote(shm, to, atomic_load(word(peer, WORD_PRIVATE)), &call, &byte))
        return;
    put(own, WORD_CALL, (uint64_t)(call * 1e12) + 1);
    put(own, WORD_BYTE, (uint64_t)(byte * 1e15) + 1);
    uint64_t huge = atomic_load(word(peer, WORD_HUGE));
    if (huge && time_remote(shm, to, huge, &call, &byte))
        put(own, WORD_HUGE_BYTE, (uint64_t)(byte * 1e15) + 1);
}

/* A block in a huge page, where the system gives one; *all is what to unmap, NULL: nothing. */
static char *huge_block(void **all)
{
    *all = mmap(NULL, 2 * HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*all == MAP_FAILED) {
        *all = NULL;
        return NULL;
    }
    char *block = (char *)(((uintptr_t)*all + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
    madvise(block, HUGE_BYTES, MADV_HUGEPAGE);
    memset(block, 1, BLOCK);
    return abci_shm_is_huge(block, BLOCK) ? block : NULL;
}

/*
 * Two ranks that have just been woken by one socket often sit on one CPU, where nothing can be measured: for the moment each goes
 * to a CPU of its own among those that it may use, rank 0 to the first, rank 1 to the last. *back: the set to restore.
 */
static bool part_ways(int rank, cpu_set_t *back)
{
    cpu_set_t one;
    int chosen = -1;
    if (sched_getaffinity(0, sizeof *back, back) != 0 || CPU_COUNT(back) < 2)
        return false;
    for (int cpu = 0; cpu < CPU_SETSIZE && (rank > 0 || chosen < 0); cpu++)
        chosen = CPU_ISSET(cpu, back) ? cpu : chosen;
    CPU_ZERO(&one);
    CPU_SET(chosen, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
}

/* What the measured times come to. */
static void conclude(struct abci_machine *m, struct abci_control *peer)
{
    m->measured = 1;
    m->stream_shared = m->staged[ABCI_STORE_STREAM] < 0.9 * m->staged[ABCI_STORE_PLAIN];
    double staged = within(m->staged[m->stream_shared], 1e-11, 5e-10);
    m->price.read = staged * 0.5;
    m->price.copy = staged * 0.5;
    m->remote_call = 1e-12 * (double)atomic_load(word(peer, WORD_CALL));
    m->remote_byte = 1e-15 * (double)atomic_load(word(peer, WORD_BYTE));
    if (m->remote_call > 0 && m->remote_call + m->remote_byte * (256 << 10) < 0.7 * staged * (256 << 10))
        m->remote_from = 256;
    /* Where a read of huge pages is about as quick as one of staging, it saves writing that. A call must not cost much. */
    double huge = 1e-15 * (double)atomic_load(word(peer, WORD_HUGE_BYTE));
    if (m->remote_call > 0 && m->remote_call < 1e-5 && huge > 0 && huge < 2 * staged)
        m->remote_huge = 256;
}

static void lead(struct abci_shm *shm, struct abci_machine *m, char *private)
{
    struct abci_control *own = shm->control, *peer = shm->peer[1].control;
    void *block, *huge_all;
    uint64_t offset;
    if (abci_segment_alloc(BLOCK, &block, &offset) != ABC_OK)
        return;
    put(own, WORD_BLOCK, offset);
    put(own, WORD_PRIVATE, (uint64_t)(uintptr_t) private);
    put(own, WORD_HUGE, (uint64_t)(uintptr_t)huge_block(&huge_all));
    put(own, WORD_STATE, STATE_GO);
    bool ok = await(peer, WORD_STATE, STATE_READY) && ping(own, peer, &m->price.hand_off) &&
              write_blocks(own, peer, block, private, m->price.hand_off, m->staged) && await(peer, WORD_STATE, STATE_OVER);
    if (ok)
        conclude(m, peer);
    else
        built_in(m);
    if (huge_all)
        munmap(huge_all, 2 * HUGE_BYTES);
    abci_segment_free(block);
}

static void follow(struct abci_shm *shm, char *private)
{
    struct abci_control *own = shm->control, *peer = shm->peer[0].control;
    double end = abci_now() + 1;
    uint64_t state;
    while ((state = atomic_load_explicit(word(peer, WORD_STATE), memory_order_acquire)) == 0 && abci_now() < end)
        sched_yield();
    if (state != STATE_GO)
        return;
    char *block = abci_segment_at(shm->peer[0].segment, atomic_load(word(peer, WORD_BLOCK)), BLOCK);
    put(own, WORD_STATE, STATE_READY);
    if (!block || !pong(own, peer) || !read_blocks(own, peer, block, private))
        return;
    if (shm->peer[0].readable)
        time_both(shm, private);
    put(own, WORD_STATE, STATE_OVER);
}

void abci_probe(struct abci_shm *shm, struct abci_machine *m)
{
    built_in(m);
    if (shm->nranks < 2 || shm->rank > 1 || strcmp(abci_setting_string(ABCI_SET_DETERMINISTIC), "false") != 0)
        return;
    if (shm->rank == 0) {
        abci_fork_guard(&known.lock);
        pthread_mutex_lock(&known.lock);
        bool skip = known.valid;
        if (skip)
            *m = known.machine;
        pthread_mutex_unlock(&known.lock);
        if (skip) {
            put(shm->control, WORD_STATE, STATE_SKIP);
            return;
        }
    }
    char *private = abci_alloc_aligned(BLOCK, 4096);
    if (!private)
        return;
    memset(private, 1, BLOCK);
    cpu_set_t allowed;
    bool moved = part_ways(shm->rank, &allowed);
    if (shm->rank == 1) {
        follow(shm, private);
    } else {
        lead(shm, m, private);
        pthread_mutex_lock(&known.lock);
        known.machine = *m;
        known.valid = m->measured;
        pthread_mutex_unlock(&known.lock);
    }
    if (moved)
        sched_setaffinity(0, sizeof allowed, &allowed);
    abci_free(private);
}
