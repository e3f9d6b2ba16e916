/*
 * kernels.c - micro-benchmark of stage 5: time and GB/s of the reduction kernels, family by family, beside memcpy. Bytes are
 * counted as moved by the element loop: every operand read once, the result written once. One thread, warm buffers, median of
 * samples. Usage: bench_kernels [f32|f64|bf16|f16|i8|... [operands]] [cross]; `cross` has a thread on CPU 1 rewrite the operands
 * before each sample.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "reduce/reduce.h"
#include "reduce/small.h"

#define SAMPLES 15
#define MOST (64u << 20)
#define OPERANDS 8

struct load {
    struct abci_reduction reduction;
    size_t element;
    char *dst;
    char *src[OPERANDS];
    int nsrc;
};

/* As in abc_type_name, which lies in another part. */
static const char *const type_names[ABC_TYPE_COUNT] = {
    [ABC_F32] = "f32",
    [ABC_F64] = "f64",
    [ABC_BF16] = "bf16",
    [ABC_I32] = "i32",
    [ABC_F16] = "f16",
    [ABC_FP8_E4M3] = "fp8_e4m3",
    [ABC_FP8_E5M2] = "fp8_e5m2",
    [ABC_I8] = "i8",
    [ABC_U8] = "u8",
    [ABC_I16] = "i16",
    [ABC_I64] = "i64",
    [ABC_BOOL] = "bool",
    [ABC_COMPLEX64] = "complex64",
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

/* The writer stays on its CPU and spins for its turn, so that the operands are in that core's cache when the measurement starts. */
static struct {
    atomic_size_t turn; /* bytes to rewrite; 0: done; SIZE_MAX: end */
    struct load *load;
} writer;

static void *rewrite(void *unused)
{
    pin(1);
    for (size_t bytes; (bytes = atomic_load(&writer.turn)) != SIZE_MAX; abci_pause())
        if (bytes > 0) {
            for (int k = 0; k < writer.load->nsrc; k++)
                memset(writer.load->src[k], k + 1, bytes);
            atomic_store(&writer.turn, 0);
        }
    return NULL;
}

static void have_rewritten(size_t bytes)
{
    atomic_store(&writer.turn, bytes);
    while (atomic_load(&writer.turn) != 0)
        abci_pause();
}

/* Seconds of one call. Small sizes are repeated within a sample, unless the operands must come fresh from the other core. */
static double measure(struct load *load, size_t bytes, bool copy, bool cross)
{
    double sample[SAMPLES];
    uint64_t n = bytes / load->element;
    size_t repeat = cross ? 1 : bytes < 4096 ? 100000 : (256u << 10) / (bytes >> 4) + 1;
    const void *const *src = (const void *const *)load->src;
    for (int s = 0; s < SAMPLES; s++) {
        if (cross) {
            have_rewritten(bytes);
            /* A first call that needs no operand: wakes the vector units and the code. */
            abci_reduce(&load->reduction, load->dst + bytes, NULL, (const void *[]){load->dst, load->dst}, 2, 64);
        }
        double start = abci_now();
        for (size_t i = 0; i < repeat; i++) {
            if (copy)
                memcpy(load->dst, load->src[0], bytes);
            else
                abci_reduce(&load->reduction, load->dst, NULL, src, load->nsrc, n);
            __asm__ volatile("" ::: "memory");
        }
        sample[s] = (abci_now() - start) / (double)repeat;
    }
    qsort(sample, SAMPLES, sizeof(sample[0]), by_value);
    return sample[SAMPLES / 2];
}

static void line(struct load *load, const char *name, bool copy, bool cross)
{
    static const size_t sizes[] = {8, 64, 512, 4096, 16384, 131072, 1u << 20, MOST};
    printf("%-14s", name);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        double seconds = measure(load, sizes[i], copy, cross);
        double moved = (double)sizes[i] * (copy ? 2 : load->nsrc + 1);
        if (sizes[i] < 1024)
            printf(" %7.1f ns", seconds * 1e9);
        else
            printf(" %10.1f", moved / seconds * 1e-9);
    }
    printf("\n");
    fflush(stdout);
}

static int run(struct load *load, bool cross)
{
    static const char *const families[] = {"scalar", "generic", "avx2", "avx512"};
    printf("%s sum of %d operands%s; ns, then GB/s\n%-14s %10s %10s %10s %10s %10s %10s %10s %10s\n",
           type_names[load->reduction.type], load->nsrc, cross ? " written by another thread" : "", "bytes", "8", "64", "512", "4K",
           "16K", "128K", "1M", "64M");
    line(load, "memcpy", true, cross);
    for (int f = 0; f < 4; f++) {
        if (abci_reduce_select(families[f]) != 0) {
            printf("%-14s not available on this CPU\n", families[f]);
            continue;
        }
        load->reduction.store = ABCI_STORE_PLAIN;
        line(load, families[f], false, cross);
        char name[32];
        snprintf(name, sizeof(name), "%s stream", families[f]);
        load->reduction.store = ABCI_STORE_STREAM;
        line(load, name, false, cross);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct load load = {.reduction = {.type = ABC_F32, .op = ABC_SUM, .final = 1, .nranks = 2}, .nsrc = 2};
    bool cross = argc > 1 && strcmp(argv[argc - 1], "cross") == 0;
    argc -= cross;
    for (int t = 0; argc > 1 && t < ABC_TYPE_COUNT; t++)
        if (type_names[t] && strcmp(argv[1], type_names[t]) == 0)
            load.reduction.type = (abc_type)t;
    if (argc > 2)
        load.nsrc = atoi(argv[2]);
    if (load.nsrc < 1 || load.nsrc > OPERANDS) {
        fprintf(stderr, "bench_kernels: the number of operands is 1 to %d\n", OPERANDS);
        return 1;
    }
    load.element = abci_element_size(load.reduction.type);
    load.dst = abci_alloc_aligned(MOST + 4096, 64);
    bool ready = load.dst != NULL;
    for (int k = 0; k < load.nsrc; k++) {
        load.src[k] = abci_alloc_aligned(MOST, 64);
        ready = ready && load.src[k];
        if (ready)
            memset(load.src[k], k + 1, MOST);
    }
    if (!ready)
        fprintf(stderr, "bench_kernels: no memory for %d buffers of 64 MiB\n", load.nsrc + 1);
    pthread_t thread;
    writer.load = &load;
    if (cross && ready) {
        pin(0);
        ready = pthread_create(&thread, NULL, rewrite, NULL) == 0;
    }
    int status = ready ? run(&load, cross) : 1;
    if (cross && ready) {
        atomic_store(&writer.turn, SIZE_MAX);
        pthread_join(thread, NULL);
    }
    for (int k = 0; k < load.nsrc; k++)
        abci_free(load.src[k]);
    abci_free(load.dst);
    return status;
}
