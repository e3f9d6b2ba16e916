/*
 * bench_frame.c - the honest frame around a timed call: a barrier of its own, so that nothing of the library under test is warmed
 * by it, a start that all ranks agree on with one of them a little late, and one time per call for all ranks: from the last start
 * to the last end. Also the bare hand-offs, which bound what any library can reach, timed by the same frame. The memory is a memfd
 * of rank 0 that the others open through /proc; it has no name and dies with the ranks.
 */
#include "bench.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#include "base/base.h"

#define LINES 128          /* bytes apart: CPUs fetch lines in pairs */
#define LATE_NS 1000       /* how late the late rank may be */
#define LEAD_US 2.0        /* from the decision to the start; the line with it must reach all ranks */
#define OPEN_LIMIT 30.0    /* seconds for all ranks to come, */
#define OPEN_EACH 0.25     /* and so many more for each rank: they start one after another */
#define BARRIER_LIMIT 300. /* seconds; then a peer is taken for dead */
#define CLOCK_TRIPS 64
#define FLOOR_SAMPLES 200
#define FLOOR_CROWDED 30
#define PADDED _Alignas(LINES)

/* Every word has one writer. Readers acquire what the writer released. */
struct lines {
    PADDED _Atomic uint32_t arrival;  /* barriers entered */
    PADDED _Atomic uint32_t exchange; /* bare exchanges entered */
    PADDED _Atomic uint32_t up;       /* token from the rank below */
    PADDED _Atomic uint32_t down;     /* token from the rank above */
    PADDED _Atomic uint64_t stamp;    /* clock comparison: the answer of this rank */
    PADDED uint64_t start;            /* of the last call; ordered by the barrier, as `end` and `value` are */
    uint64_t end;
    uint64_t value;
};

struct bench_board {
    PADDED _Atomic uint32_t failed;
    PADDED _Atomic uint64_t go; /* start of the next call, by rank 0; never twice the same */
    PADDED double ticks_per_us; /* set by rank 0 while the frame is opened, as is `tsc` */
    uint32_t tsc;
    struct lines rank[];
};

static inline uint64_t read_tsc(void)
{
#if defined(__x86_64__)
    unsigned cpu;
    uint64_t t = __rdtscp(&cpu);
    _mm_lfence();
    return t;
#else
    return 0;
#endif
}

static inline uint64_t read_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t ticks(const struct bench_frame *f)
{
    return f->tsc ? read_tsc() : read_clock();
}

static bool tsc_is_invariant(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1u << 8);
#else
    return false;
#endif
}

static double open_limit(const struct bench_frame *f)
{
    return OPEN_LIMIT + OPEN_EACH * f->nranks;
}

/* One more poll without success. Gives the CPU away when it must be shared; false when there is no hope any more. */
static inline bool keep_waiting(const struct bench_frame *f, uint32_t *polls, double *deadline, double limit)
{
    uint32_t n = ++*polls;
    if (f->crowded ? n > 20 : n > 20000)
        sched_yield();
    else
        abci_pause();
    if (ABCI_LIKELY(n & 1023))
        return true;
    double now = abci_now();
    if (*deadline == 0)
        *deadline = now + limit;
    return now < *deadline && !atomic_load_explicit(&f->board->failed, memory_order_relaxed);
}

/* Wait until a word has come to `value`, which never is more than half a turn away. */
static inline int await(const struct bench_frame *f, _Atomic uint32_t *word, uint32_t value, double limit)
{
    uint32_t polls = 0;
    double deadline = 0;
    while ((int32_t)(atomic_load_explicit(word, memory_order_acquire) - value) < 0)
        if (!keep_waiting(f, &polls, &deadline, limit))
            return -1;
    return 0;
}

static int barrier_within(struct bench_frame *f, double limit)
{
    struct bench_board *b = f->board;
    uint32_t turn = ++f->arrivals;
    atomic_store_explicit(&b->rank[f->rank].arrival, turn, memory_order_release);
    for (int k = 1; k < f->nranks; k++)
        if (await(f, &b->rank[(f->rank + k) % f->nranks].arrival, turn, limit) != 0) {
            bench_frame_fail(f);
            return -1;
        }
    return 0;
}

int bench_frame_barrier(struct bench_frame *f)
{
    return barrier_within(f, BARRIER_LIMIT);
}

void bench_frame_fail(struct bench_frame *f)
{
    if (f->board)
        atomic_store_explicit(&f->board->failed, 1, memory_order_relaxed);
}

static uint64_t next_random(struct bench_frame *f)
{
    f->random ^= f->random << 13;
    f->random ^= f->random >> 7;
    f->random ^= f->random << 17;
    return f->random;
}

/* The moment to start at: rank 0 decides, the others read it. With shared CPUs there is none; ranks start as they get a CPU. */
static uint64_t agreed_start(struct bench_frame *f)
{
    struct bench_board *b = f->board;
    if (f->crowded)
        return ticks(f);
    uint64_t go, before = f->start;
    if (f->rank == 0) {
        go = ticks(f) + (uint64_t)(LEAD_US * f->ticks_per_us);
        atomic_store_explicit(&b->go, go, memory_order_release);
        return go;
    }
    /* `before` is a start at or after the last go, so a go of this turn is larger. */
    uint32_t polls = 0;
    double deadline = 0;
    while ((go = atomic_load_explicit(&b->go, memory_order_acquire)) <= before)
        if (!keep_waiting(f, &polls, &deadline, BARRIER_LIMIT))
            return before;
    return go;
}

int bench_frame_begin(struct bench_frame *f)
{
    uint64_t random = next_random(f); /* everywhere the same */
    if (bench_frame_barrier(f) != 0)
        return -1;
    uint64_t at = agreed_start(f);
    if ((int)(random % (uint64_t)f->nranks) == f->rank)
        at += (uint64_t)((double)(random >> 32) / 4294967296.0 * LATE_NS * 1e-3 * f->ticks_per_us);
    while (ticks(f) < at)
        abci_pause();
    f->start = ticks(f);
    return 0;
}

double bench_frame_end(struct bench_frame *f)
{
    uint64_t end = ticks(f);
    struct lines *lines = f->board->rank;
    lines[f->rank].start = f->start;
    lines[f->rank].end = end;
    if (bench_frame_barrier(f) != 0)
        return -1;
    uint64_t last_start = 0, last_end = 0;
    for (int r = 0; r < f->nranks; r++) {
        last_start = lines[r].start > last_start ? lines[r].start : last_start;
        last_end = lines[r].end > last_end ? lines[r].end : last_end;
    }
    double us = (double)(last_end - last_start) / f->ticks_per_us - f->floor_us;
    return us > 0 ? us : 0;
}

uint64_t bench_frame_sum(struct bench_frame *f, uint64_t mine)
{
    uint64_t sum = 0;
    f->board->rank[f->rank].value = mine;
    if (bench_frame_barrier(f) != 0)
        return mine;
    for (int r = 0; r < f->nranks; r++)
        sum += f->board->rank[r].value;
    return bench_frame_barrier(f) == 0 ? sum : mine;
}

double bench_frame_max(struct bench_frame *f, double mine)
{
    double max = mine, theirs;
    memcpy(&f->board->rank[f->rank].value, &mine, sizeof mine);
    if (bench_frame_barrier(f) != 0)
        return mine;
    for (int r = 0; r < f->nranks; r++) {
        memcpy(&theirs, &f->board->rank[r].value, sizeof theirs);
        max = theirs > max ? theirs : max;
    }
    return bench_frame_barrier(f) == 0 ? max : mine;
}

double bench_frame_exchange(struct bench_frame *f)
{
    struct lines *lines = f->board->rank;
    uint32_t turn = ++f->exchanges;
    if (bench_frame_begin(f) != 0)
        return -1;
    atomic_store_explicit(&lines[f->rank].exchange, turn, memory_order_release);
    for (int k = 1; k < f->nranks; k++)
        if (await(f, &lines[(f->rank + k) % f->nranks].exchange, turn, BARRIER_LIMIT) != 0)
            return -1;
    return bench_frame_end(f);
}

double bench_frame_chain(struct bench_frame *f)
{
    struct lines *lines = f->board->rank;
    int r = f->rank, last = f->nranks - 1;
    uint32_t turn = ++f->tokens;
    if (bench_frame_begin(f) != 0)
        return -1;
    if (r > 0 && await(f, &lines[r].up, turn, BARRIER_LIMIT) != 0)
        return -1;
    if (r < last) {
        atomic_store_explicit(&lines[r + 1].up, turn, memory_order_release);
        if (await(f, &lines[r].down, turn, BARRIER_LIMIT) != 0)
            return -1;
    }
    if (r > 0)
        atomic_store_explicit(&lines[r - 1].down, turn, memory_order_release);
    return bench_frame_end(f);
}

/* ---- Opening -------------------------------------------------------------------------------------------------------------------
 */

static int pin_to(int rank)
{
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return -1;
    int skip = rank % CPU_COUNT(&allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || skip-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        return sched_setaffinity(0, sizeof one, &one);
    }
    return -1;
}

/* What rank 0 tells the others; words of 4 bytes, so that any broadcast can carry it. */
struct ticket {
    int32_t pid, fd;
    int32_t ncpus;
    int32_t bytes; /* 0: rank 0 failed */
};

static struct ticket make_board(struct bench_frame *f)
{
    struct ticket t = {(int32_t)getpid(), -1, f->ncpus, 0};
    size_t bytes = sizeof(struct bench_board) + (size_t)f->nranks * sizeof(struct lines);
    t.fd = memfd_create("abcomm-bench", MFD_CLOEXEC);
    if (t.fd < 0 || ftruncate(t.fd, (off_t)bytes) != 0)
        perror("bench: cannot make shared memory");
    else
        t.bytes = (int32_t)bytes;
    return t;
}

static int map_board(struct bench_frame *f, const struct ticket *t)
{
    char path[64];
    int fd = t->fd;
    if (f->rank > 0) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)t->pid, (int)t->fd);
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0) {
            fprintf(stderr, "bench: cannot open %s of rank 0 (%m); all ranks must run on one host and as one user\n", path);
            return -1;
        }
    }
    f->board_bytes = (size_t)t->bytes;
    void *map = mmap(NULL, f->board_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (f->rank > 0)
        close(fd);
    if (map == MAP_FAILED) {
        perror("bench: cannot map shared memory");
        return -1;
    }
    f->board = (struct bench_board *)map;
    return 0;
}

/*
 * Are the time stamp counters of all ranks' CPUs one clock? An answer must lie between question and receipt. Rank 0 asks. Not when
 * ranks share CPUs: each answer then takes a turn of all ranks on the scheduler, which is no comparison and with some hundred ranks
 * takes minutes.
 */
static bool clocks_agree(struct bench_frame *f)
{
    struct lines *lines = f->board->rank;
    bool agree = true;
    for (int r = 1; r < f->nranks; r++)
        for (int k = 0; k < CLOCK_TRIPS; k++) {
            uint32_t turn = ++f->tokens;
            if (f->rank == r) {
                if (await(f, &lines[r].up, turn, open_limit(f)) != 0)
                    return false;
                atomic_store_explicit(&lines[r].stamp, read_tsc(), memory_order_relaxed);
                atomic_store_explicit(&lines[r].down, turn, memory_order_release);
            }
            if (f->rank != 0)
                continue;
            uint64_t asked = read_tsc();
            atomic_store_explicit(&lines[r].up, turn, memory_order_release);
            if (await(f, &lines[r].down, turn, open_limit(f)) != 0)
                return false;
            uint64_t told = atomic_load_explicit(&lines[r].stamp, memory_order_relaxed);
            agree = agree && asked <= told && told <= read_tsc();
        }
    return agree;
}

static double calibrate(void)
{
    double begin = abci_now(), now;
    uint64_t first = read_tsc();
    while ((now = abci_now()) - begin < 0.02)
        abci_pause();
    return (double)(read_tsc() - first) / (now - begin) * 1e-6;
}

static int choose_clock(struct bench_frame *f)
{
    struct bench_board *b = f->board;
    bool agree = !f->crowded && tsc_is_invariant() && clocks_agree(f);
    if (f->rank == 0) {
        b->tsc = agree;
        b->ticks_per_us = agree ? calibrate() : 1000.0;
    }
    if (barrier_within(f, open_limit(f)) != 0)
        return -1;
    f->tsc = b->tsc;
    f->ticks_per_us = b->ticks_per_us;
    return 0;
}

static int measure_floor(struct bench_frame *f)
{
    double samples[FLOOR_SAMPLES];
    int count = f->crowded ? FLOOR_CROWDED : FLOOR_SAMPLES; /* a crowded one costs some turns of all ranks */
    for (int i = 0; i < count; i++)
        if (bench_frame_begin(f) != 0 || (samples[i] = bench_frame_end(f)) < 0)
            return -1;
    /* All ranks saw the same samples and find the same floor. */
    f->floor_us = bench_percentile(samples, (size_t)count, 0.5);
    return 0;
}

int bench_frame_open(struct bench_frame *f, int rank, int nranks, bool pin, bench_share_fn *share, void *context)
{
    *f = (struct bench_frame){.rank = rank, .nranks = nranks, .random = 0x9e3779b97f4a7c15u, .ticks_per_us = 1000.0};
    cpu_set_t allowed;
    f->ncpus = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
    struct ticket t = {0};
    if (rank == 0)
        t = make_board(f);
    if (share(context, &t, sizeof t) != 0 || t.bytes == 0)
        return -1;
    f->ncpus = t.ncpus; /* all must agree on whether starts are agreed */
    f->crowded = nranks > f->ncpus;
    if (pin && pin_to(rank) != 0)
        perror("bench: cannot pin; going on without");
    int status = map_board(f, &t);
    if (status == 0)
        status = barrier_within(f, open_limit(f));
    if (rank == 0)
        close(t.fd);
    if (status == 0 && choose_clock(f) == 0 && measure_floor(f) == 0)
        return 0;
    if (f->board)
        fprintf(stderr, "bench: rank %d: not all ranks joined the measurement\n", rank);
    bench_frame_close(f);
    return -1;
}

void bench_frame_close(struct bench_frame *f)
{
    if (f->board)
        munmap(f->board, f->board_bytes);
    f->board = NULL;
}
