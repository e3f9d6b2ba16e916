/*
 * tune_measure.c - the measuring half of `abcomm tune`: for each size of each collective, the choice by price and every algorithm
 * and chunk beside it, alternating, on fresh buffers, by the frame of `abcomm bench`. All ranks run this in step; what they decide
 * (who is too slow to go on) follows from times that all of them have. tune_file.c makes the file of it.
 */
#include "tune.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE (2u << 20)
#define MOST_SAMPLES 64
#define WARMUP 2
#define TRIAL 4      /* samples after which the slow are left out */
#define HOPELESS 1.6 /* times the best */
#define ATTEMPTS 3   /* at a case during which the cores moved */

static void *alloc_private(size_t bytes)
{
    size_t whole = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *p = aligned_alloc(HUGE_PAGE, whole);
    if (p)
        madvise(p, whole, MADV_HUGEPAGE);
    return p;
}

static void free_buffers(struct tune_job *job)
{
    if (job->memory == BENCH_PRIVATE) {
        free(job->in);
        free(job->out);
    } else {
        abc_mem_free(job->in);
        abc_mem_free(job->out);
    }
    job->in = job->out = NULL;
}

static int alloc_buffers(struct tune_job *job)
{
    size_t bytes = job->args->end + 64 * (size_t)job->nranks;
    job->in = job->out = NULL;
    if (job->memory == BENCH_PRIVATE) {
        job->in = alloc_private(bytes);
        job->out = alloc_private(bytes);
    } else if (abc_mem_alloc(bytes, (void **)&job->in) != ABC_OK || abc_mem_alloc(bytes, (void **)&job->out) != ABC_OK) {
        fprintf(stderr, "abcomm tune: %s\n", abc_last_error());
    }
    bool ok = job->in && job->out;
    if (ok) {
        memset(job->in, 0, bytes);
        memset(job->out, 0, bytes);
    } else {
        fprintf(stderr, "abcomm tune: no memory for two buffers of %zu bytes; lower -e\n", bytes);
    }
    if (bench_frame_sum(&job->frame, !ok) == 0)
        return 0;
    free_buffers(job);
    return -1;
}

/* ---- Candidates ---- */

static abc_call call_of(const struct tune_job *job, const struct tune_case *c, int place, const char *algorithm)
{
    abc_call call;
    size_t block = c->count * sizeof(float), shift = block * (size_t)job->rank;
    abc_call_init(&call, c->collective);
    call.in = place == 1 || (c->collective == ABC_BROADCAST && job->rank != 0) ? job->out : job->in;
    call.out = job->out;
    if (c->collective == ABC_ALLGATHER && place == 1)
        call.in = job->out + shift;
    call.count = c->count;
    call.algorithm = algorithm;
    return call;
}

/* May the library choose it for a float32 sum? */
static bool eligible(const struct tune_job *job, const struct abci_algo *algo, abc_collective collective)
{
    struct abci_plan_set set;
    if (!abci_algo_fits(algo, collective, job->nranks) || (algo->direct && job->memory == BENCH_PRIVATE))
        return false;
    if (collective != ABC_ALLREDUCE && collective != ABC_REDUCE_SCATTER)
        return true;
    if (abci_plan_set_build(algo, collective, job->nranks, 0, &set) != ABC_OK)
        return false;
    bool once = abci_rounds_once(&set);
    abci_plan_set_free(&set);
    return once;
}

/* The same plan and the same number of chunks as a candidate before? */
static bool known(const struct tune_case *c, const char *name, uint64_t chunk)
{
    for (int i = 0; i < c->ncandidates; i++) {
        unsigned long long theirs = 0;
        char algo[32] = "";
        sscanf(c->candidate[i].name, "%31[^@]@%llu", algo, &theirs);
        if (strcmp(algo, name) == 0 && (theirs == 0 || theirs == chunk || (theirs >= c->bytes && chunk >= c->bytes)))
            return true;
    }
    return false;
}

static void add(struct tune_job *job, struct tune_case *c, const char *name, uint64_t chunk)
{
    char text[96];
    struct tune_candidate *new = &c->candidate[c->ncandidates];
    if (c->ncandidates == TUNE_CANDIDATES || known(c, name, chunk))
        return;
    snprintf(new->name, sizeof new->name, "%s@%llu", name, (unsigned long long)chunk);
    abc_call call = call_of(job, c, 0, new->name);
    /* Not every algorithm takes every kind of memory; the answer is the same on all ranks. */
    if (abc_explain(job->comm, &call, text, sizeof text) == ABC_OK)
        c->ncandidates++;
}

static int list_candidates(struct tune_job *job, struct tune_case *c)
{
    static const uint64_t whole[] = {64 << 10, 256 << 10, 1 << 20, 4 << 20}, few[] = {128 << 10, 1 << 20};
    const uint64_t *chunks = job->args->quick ? few : whole;
    int nchunks = job->args->quick ? 2 : 4;
    char text[96];
    abc_call call = call_of(job, c, 0, NULL);
    c->ncandidates = 1;
    if (abc_explain(job->comm, &call, text, sizeof text) != ABC_OK || sscanf(text, "%47s", c->candidate[0].name) != 1) {
        fprintf(stderr, "abcomm tune: %s\n", abc_last_error());
        return -1;
    }
    const char *direct = strstr(text, "; "); /* the buffers of all ranks are in the arena */
    if (direct)
        sscanf(direct, "; %47s", c->candidate[0].name);
    for (int a = 0; abci_algos[a]; a++) {
        if (!eligible(job, abci_algos[a], c->collective))
            continue;
        for (int k = 0; k < nchunks; k++)
            add(job, c, abci_algos[a]->name, chunks[k]);
    }
    for (int i = 0; i < c->ncandidates; i++) {
        c->candidate[i].alive = true;
        c->candidate[i].count = 0;
        for (int place = 0; place < TUNE_PLACES; place++)
            c->candidate[i].samples[place] = job->room + (i * TUNE_PLACES + place) * MOST_SAMPLES;
    }
    return 0;
}

/* ---- Samples ---- */

/* One call on fresh data; us, or -1 when it failed, which has been said. */
static double sample(struct tune_job *job, const struct tune_case *c, int place, const char *algorithm)
{
    abc_call call = call_of(job, c, place, algorithm);
    bool gives = c->collective != ABC_BROADCAST || job->rank == 0;
    uint64_t all = c->count * (c->collective == ABC_REDUCE_SCATTER ? (uint64_t)job->nranks : 1);
    uint64_t got = c->count * (c->collective == ABC_ALLGATHER ? (uint64_t)job->nranks : 1);
    uint32_t limit = bench_data_limit(ABC_F32, job->nranks);
    job->iteration++;
    if (gives)
        bench_fill((void *)(uintptr_t)call.in, ABC_F32, limit, bench_seed(job->iteration, job->rank), 0, all);
    if (bench_frame_begin(&job->frame) != 0)
        return -1;
    if (abc_run(job->comm, &call) != ABC_OK) {
        fprintf(stderr, "abcomm tune: %s\n", abc_last_error());
        bench_frame_fail(&job->frame);
        return -1;
    }
    double us = bench_frame_end(&job->frame);
    bench_read(call.out, got * sizeof(float));
    return us;
}

static int samples_of(const struct tune_job *job, const struct tune_case *c)
{
    int n = c->bytes <= 128 << 10 ? 60 : c->bytes <= 2 << 20 ? 40 : 12;
    n = job->args->quick ? n / 3 : n;
    return n < TRIAL ? TRIAL : n / 2 * 2;
}

static double median_of(const double *samples, int count, int first, int step)
{
    double sorted[MOST_SAMPLES];
    int n = 0;
    for (int i = first; i < count; i += step)
        sorted[n++] = samples[i];
    return bench_percentile(sorted, (size_t)n, 0.5);
}

static void summarise(struct tune_case *c)
{
    for (int i = 0; i < c->ncandidates; i++)
        for (int place = 0; place < c->places; place++) {
            struct tune_candidate *k = &c->candidate[i];
            k->median[place] = median_of(k->samples[place], k->count, 0, 1);
            for (int half = 0; half < 2; half++)
                k->half[half][place] = median_of(k->samples[place], k->count, half, 2);
        }
}

/* After a few rounds: who is far behind stops. The first is never left out. */
static void leave_out_slow(struct tune_case *c)
{
    summarise(c);
    int best = tune_best(c, -1);
    for (int i = 1; i < c->ncandidates; i++)
        if (tune_ratio(c, i, -1) > HOPELESS * tune_ratio(c, best, -1))
            c->candidate[i].alive = false;
}

/* Rounds over all candidates; each begins with another one, so that none always follows the same. */
static int measure_case(struct tune_job *job, struct tune_case *c)
{
    int n = samples_of(job, c);
    for (int round = -WARMUP; round < n; round++) {
        for (int k = 0; k < c->ncandidates; k++) {
            int i = (k + round + WARMUP) % c->ncandidates;
            struct tune_candidate *candidate = &c->candidate[i];
            for (int place = 0; candidate->alive && place < c->places; place++) {
                double us = sample(job, c, place, i == 0 ? NULL : candidate->name);
                if (us < 0)
                    return -1;
                if (round >= 0)
                    candidate->samples[place][round] = us > 1e-3 ? us : 1e-3; /* less is less than the clock can tell */
            }
            if (candidate->alive && round >= 0)
                candidate->count = round + 1;
        }
        if (round == TRIAL - 1)
            leave_out_slow(c);
    }
    summarise(c);
    return 0;
}

/* ---- All of it ---- */

int tune_measure_handoff(struct tune_job *job, double *us)
{
    double samples[MOST_SAMPLES];
    for (int i = 0; i < MOST_SAMPLES; i++)
        if ((samples[i] = bench_frame_exchange(&job->frame)) < 0)
            return -1;
    *us = bench_percentile(samples, MOST_SAMPLES, 0.5);
    return 0;
}

static bool is_near(double handoff)
{
    return handoff < BENCH_NEAR_US;
}

/* All candidates with the cores at one distance: a virtual machine may move them, and then the case begins again. */
static int measure_settled(struct tune_job *job, struct tune_case *c)
{
    int status = 0;
    for (int attempt = 0; attempt < ATTEMPTS && status == 0; attempt++) {
        status = tune_measure_handoff(job, &c->handoff[0]);
        if (status == 0)
            status = list_candidates(job, c);
        if (status == 0)
            status = measure_case(job, c);
        if (status == 0)
            status = tune_measure_handoff(job, &c->handoff[1]);
        if (job->nranks != 2 || is_near(c->handoff[0]) == is_near(c->handoff[1]))
            break;
    }
    return status;
}

static int measure_group(struct tune_job *job, abc_collective collective)
{
    bool wide = collective == ABC_REDUCE_SCATTER || collective == ABC_ALLGATHER;
    struct tune_case *c = calloc(1, sizeof *c);
    int status = c ? 0 : -1;
    for (uint64_t bytes = job->args->begin; status == 0 && bytes <= job->args->end; bytes *= job->args->factor) {
        *c = (struct tune_case){.collective = collective, .memory = job->memory, .places = collective == ABC_ALLREDUCE ? 2 : 1};
        c->count = bytes / sizeof(float) / (wide ? (uint64_t)job->nranks : 1);
        c->count = c->count > 0 ? c->count : 1;
        c->bytes = c->count * sizeof(float) * (wide ? (uint64_t)job->nranks : 1);
        status = measure_settled(job, c);
        if (status == 0 && job->rank == 0)
            tune_file_case(job, c);
    }
    if (status == 0 && job->rank == 0)
        tune_file_group(job);
    free(c);
    return status;
}

int tune_measure_all(struct tune_job *job)
{
    job->room = calloc((size_t)TUNE_CANDIDATES * TUNE_PLACES * MOST_SAMPLES, sizeof *job->room);
    int status = bench_frame_sum(&job->frame, !job->room) == 0 ? 0 : -1;
    for (job->memory = BENCH_PRIVATE; status == 0 && job->memory <= BENCH_ARENA; job->memory <<= 1) {
        if (!(job->args->memory & job->memory))
            continue;
        status = alloc_buffers(job);
        for (int k = 0; status == 0 && k < ABC_BARRIER; k++)
            if (job->args->collectives & 1u << k)
                status = measure_group(job, (abc_collective)k);
        free_buffers(job);
    }
    free(job->room);
    return status;
}
