/*
 * stores.c - which instruction should write what another core has read? Two processes, each on a CPU of its own: the writer fills a
 * shared block with the library's kernels, the reader copies it out, and so on. Prints, for sizes of 8 KiB to 1 MiB and the three
 * ways to store, microseconds of the write alone and until the reader is through; medians. First the hand-off of a line, near or
 * far. Usage: bench_stores
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "reduce/reduce.h"

#define ROUNDS 41
#define MOST (1u << 20)
#define NEAR_US 0.15 /* as BENCH_NEAR_US of tools/bench.h */

enum way { VECTOR, STREAM, MEMCPY, WAYS };
static const char *const way_names[WAYS] = {"vector stores", "streaming stores", "memcpy"};

struct shared {
    _Alignas(64) _Atomic unsigned written; /* release: the block is there; acquire in await */
    _Alignas(64) _Atomic unsigned read;    /* release: it has been copied; acquire in await */
};

static struct shared *shared;
static char *block, *private;

static void await(_Atomic unsigned *word, unsigned value)
{
    for (unsigned spins = 0; (int)(atomic_load_explicit(word, memory_order_acquire) - value) < 0;) {
        abci_pause();
        if (++spins > 100000)
            sched_yield();
    }
}

/* The parent to the first CPU that it may use, the child to the last. */
static void part(bool last)
{
    cpu_set_t allowed, one;
    int chosen = -1;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE && (last || chosen < 0); cpu++)
        chosen = CPU_ISSET(cpu, &allowed) ? cpu : chosen;
    CPU_SET(chosen, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static void store(enum way way, size_t bytes)
{
    const struct abci_reduction sum = {.type = ABC_I32, .op = ABC_SUM, .nranks = 1};
    const void *from = private;
    if (way == VECTOR)
        abci_reduce(&sum, block, NULL, &from, 1, bytes / 4);
    else
        abci_copy(block, NULL, private, bytes, way == STREAM ? ABCI_STORE_STREAM : ABCI_STORE_PLAIN);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, compare);
    return values[ROUNDS / 2] * 1e6;
}

/* The writer's side of ROUNDS rounds, bytes 0: just a line. `n` counts the rounds of both sides. */
static void write_rounds(enum way way, size_t bytes, unsigned *n, double *alone, double *both)
{
    for (int i = 0; i < ROUNDS; i++) {
        double start = abci_now();
        if (bytes)
            store(way, bytes);
        alone[i] = abci_now() - start;
        atomic_store_explicit(&shared->written, ++*n, memory_order_release); /* pairs with await */
        await(&shared->read, *n);
        both[i] = abci_now() - start;
    }
}

static void read_rounds(size_t bytes, unsigned *n)
{
    for (int i = 0; i < ROUNDS; i++) {
        await(&shared->written, ++*n);
        if (bytes)
            abci_copy(private, NULL, block, bytes, ABCI_STORE_PLAIN);
        atomic_store_explicit(&shared->read, *n, memory_order_release); /* pairs with await */
    }
}

static void measure(bool writer)
{
    double alone[ROUNDS], both[ROUNDS];
    unsigned n = 0;
    memset(private, 1, MOST);
    for (int warm = 0; warm < 2; warm++) {
        if (!writer) {
            read_rounds(0, &n);
            continue;
        }
        write_rounds(VECTOR, 0, &n, alone, both);
        double hand_off = median(both) / 2;
        if (warm)
            printf("hand-off %.2f us, %s; kernels: %s\n%8s  %-16s %10s %14s\n", hand_off, hand_off < NEAR_US ? "near" : "far",
                   abci_reduce_family(), "bytes", "stores", "write us", "and read us");
    }
    for (size_t bytes = 8 << 10; bytes <= MOST; bytes *= 2)
        for (int way = 0; way < WAYS; way++) {
            if (!writer) {
                read_rounds(bytes, &n);
                continue;
            }
            write_rounds((enum way)way, bytes, &n, alone, both);
            printf("%8zu  %-16s %10.2f %14.2f\n", bytes, way_names[way], median(alone), median(both));
        }
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    block = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    private = aligned_alloc(4096, MOST);
    if (shared == MAP_FAILED || block == MAP_FAILED || !private || abci_reduce_select("auto") != 0) {
        fprintf(stderr, "bench_stores: no memory\n");
        return 1;
    }
    pid_t child = fork();
    if (child < 0) {
        perror("bench_stores: fork");
        return 1;
    }
    part(child == 0);
    measure(child > 0);
    if (child == 0)
        _exit(0);
    int status;
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
