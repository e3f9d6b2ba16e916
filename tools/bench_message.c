/*
 * bench_message.c - `abcomm bench sendrecv`: messages between two ranks by the rules of the other measurements. Two figures a size:
 * one way of a ping-pong, and a sendrecv in which both ranks send at once; beside each its bound, measured between the calls: a
 * bare hand-off of a cache line, and the copy of what the other rank has written. Runs as both ranks of a job; rank 0 prints.
 */
#include "bench.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define INLINE_BYTES 56 /* that can travel in the line of the flag: the hand-off alone bounds them */

enum { ONE_WAY, BOTH_WAYS, DIRECTIONS };
static const char *const direction_names[] = {"one_way", "both_ways"};

/* Samples of one size; [0] of what is bare is memcpy, [1] plain vector stores. */
struct series {
    double *call, *handoff, *copy[2];
};

struct messages {
    const struct bench_args *args;
    struct bench_frame *frame;
    abc_comm *comm;
    int rank;
    unsigned memory;
    char *in, *out;
    struct bench_mailboxes box;
    struct series series[DIRECTIONS];
    uint32_t iteration;
    FILE *table, *json;
    uint64_t wrong, rows;
};

/* One figure of a row, in microseconds. */
struct figure {
    double mean, p50, p99, bound;
    uint64_t wrong;
};

static int alloc_buffers(struct messages *m, size_t bytes)
{
    void *p[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        if (m->memory == BENCH_ARENA)
            abc_mem_alloc(bytes, &p[i]);
        else
            p[i] = bench_alloc_private(bytes);
        if (p[i])
            memset(p[i], 0, bytes);
    }
    m->in = p[0];
    m->out = p[1];
    return m->in && m->out ? 0 : -1;
}

static void free_buffers(struct messages *m)
{
    if (m->memory == BENCH_ARENA) {
        abc_mem_free(m->in);
        abc_mem_free(m->out);
    } else {
        free(m->in);
        free(m->out);
    }
}

static int ping_pong(struct messages *m, uint64_t count, abc_type type)
{
    int status = m->rank == 0 ? abc_send(m->in, count, type, 1, 0, m->comm) : abc_recv(m->out, count, type, 0, 0, m->comm, NULL);
    if (status != ABC_OK)
        return status;
    return m->rank == 0 ? abc_recv(m->out, count, type, 1, 0, m->comm, NULL) : abc_send(m->in, count, type, 0, 0, m->comm);
}

/* One call with new data and a check; the time is negative when it failed, which has been said then. */
static double sample(struct messages *m, int direction, uint64_t count, abc_type type, uint64_t *wrong)
{
    uint32_t limit = bench_data_limit(type, 2), seed = bench_seed(++m->iteration, 1 - m->rank);
    int other = 1 - m->rank, status;
    bench_fill(m->in, type, limit, bench_seed(m->iteration, m->rank), 0, count);
    if (bench_frame_begin(m->frame) != 0)
        return -1;
    if (direction == ONE_WAY)
        status = ping_pong(m, count, type);
    else
        status = abc_sendrecv(m->in, count, other, 0, m->out, count, other, 0, type, m->comm, NULL);
    if (status != ABC_OK) {
        fprintf(stderr, "abcomm bench: %s\n", abc_last_error());
        bench_frame_fail(m->frame);
        return -1;
    }
    double us = bench_frame_end(m->frame);
    if (m->args->corrupt && count > 0)
        m->out[count * abc_type_size(type) - 1] ^= 0x40;
    if (m->args->check)
        *wrong += bench_check(m->out, type, ABC_SUM, limit, &seed, 1, 0, count);
    else
        bench_read(m->out, count * abc_type_size(type));
    return direction == ONE_WAY ? us / 2 : us;
}

/* What the other rank has written, copied by both ranks at once, or by one. */
static double sample_copy(struct messages *m, int direction, size_t bytes, bool plainly)
{
    bench_fill(m->box.own, ABC_F32, bench_data_limit(ABC_F32, 2), ++m->iteration, 0, bytes / sizeof(float));
    if (bench_frame_begin(m->frame) != 0)
        return -1;
    if (direction == ONE_WAY && m->rank == (int)(m->iteration & 1))
        return bench_frame_end(m->frame);
    if (plainly)
        bench_copy_plainly(m->out, m->box.other, bytes);
    else
        memcpy(m->out, m->box.other, bytes);
    return bench_frame_end(m->frame);
}

/* One sample of everything, so that all of it sees the same machine. i < 0: not kept. */
static int sample_all(struct messages *m, uint64_t count, abc_type type, int i, uint64_t wrong[DIRECTIONS])
{
    size_t bytes = count * abc_type_size(type);
    for (int d = 0; d < DIRECTIONS; d++) {
        double us = sample(m, d, count, type, &wrong[d]), copy[2] = {0, 0};
        double handoff = us < 0 ? -1 : d == ONE_WAY ? bench_frame_chain(m->frame) / 2 : bench_frame_exchange(m->frame);
        for (int k = 0; k < 2 && handoff >= 0 && bytes > INLINE_BYTES; k++)
            copy[k] = sample_copy(m, d, bytes, k == 1);
        if (handoff < 0 || copy[0] < 0 || copy[1] < 0)
            return -1;
        if (i < 0)
            continue;
        m->series[d].call[i] = us;
        m->series[d].handoff[i] = handoff;
        m->series[d].copy[0][i] = copy[0];
        m->series[d].copy[1][i] = copy[1];
    }
    return 0;
}

static void summarise(struct messages *m, int d, uint64_t wrong, struct figure *f)
{
    size_t n = (size_t)m->args->iterations;
    const struct series *s = &m->series[d];
    double copy[2] = {bench_percentile(s->copy[0], n, 0.5), bench_percentile(s->copy[1], n, 0.5)};
    f->mean = bench_mean(s->call, n);
    f->p50 = bench_percentile(s->call, n, 0.5);
    f->p99 = bench_percentile(s->call, n, 0.99);
    f->bound = bench_percentile(s->handoff, n, 0.5) + (copy[0] < copy[1] ? copy[0] : copy[1]);
    f->wrong = bench_frame_sum(m->frame, wrong);
    m->wrong += f->wrong;
}

/* ---- Output --------------------------------------------------------------------------------------------------------------------
 */

static const char *memory_name(const struct messages *m)
{
    return m->memory == BENCH_ARENA ? "arena" : "private";
}

static void print_head(const struct messages *m)
{
    const struct bench_args *a = m->args;
    if (m->json)
        fprintf(m->json,
                "{\n  \"version\": \"%s\",\n  \"collective\": \"sendrecv\",\n  \"ranks\": 2,\n  \"cpus\": %d,\n  \"rows\": [",
                abc_version(), m->frame->ncpus);
    if (!m->table)
        return;
    fprintf(m->table, "# abcomm %s bench sendrecv: 2 ranks on %d CPUs%s\n", abc_version(), m->frame->ncpus,
            a->pin ? ", pinned" : "");
    fprintf(m->table, "# warmup iters: %d iters: %d validation: %d\n", a->warmup, a->iterations, a->check);
    fprintf(m->table,
            "# fresh data before every call; bound: a bare hand-off, and the copy of what the other rank has written\n#\n");
    fprintf(m->table, "#%39s%57s%57s\n", "", "ping-pong, one way", "sendrecv, both ways at once");
    fprintf(m->table, "#%11s %12s %6s %7s", "size", "count", "type", "memory");
    for (int d = 0; d < DIRECTIONS; d++)
        fprintf(m->table, " %9s %8s %9s %9s %9s %7s", "time", "algbw", "p50", "p99", "bound", "#wrong");
    fprintf(m->table, "\n#%11s %12s %6s %7s", "(B)", "(elements)", "", "");
    for (int d = 0; d < DIRECTIONS; d++)
        fprintf(m->table, " %9s %8s %9s %9s %9s %7s", "(us)", "(GB/s)", "(us)", "(us)", "(us)", "");
    fprintf(m->table, "\n");
}

static void print_row(struct messages *m, uint64_t count, abc_type type, const struct figure f[DIRECTIONS])
{
    uint64_t bytes = count * abc_type_size(type);
    if (m->table)
        fprintf(m->table, "%12" PRIu64 " %12" PRIu64 " %6s %7s", bytes, count, abc_type_name(type), memory_name(m));
    if (m->json)
        fprintf(m->json, "%s\n    {\"bytes\": %" PRIu64 ", \"count\": %" PRIu64 ", \"type\": \"%s\", \"memory\": \"%s\"",
                m->rows ? "," : "", bytes, count, abc_type_name(type), memory_name(m));
    for (int d = 0; d < DIRECTIONS; d++) {
        char wrong[24] = "N/A";
        if (m->args->check)
            snprintf(wrong, sizeof wrong, "%" PRIu64, f[d].wrong);
        if (m->table)
            fprintf(m->table, " %9.2f %8.3f %9.3f %9.2f %9.3f %7s", f[d].mean, bench_algbw(bytes, f[d].mean), f[d].p50, f[d].p99,
                    f[d].bound, wrong);
        if (m->json)
            fprintf(m->json,
                    ", \"%s\": {\"time_us\": %.4f, \"p50_us\": %.4f, \"p99_us\": %.4f, \"bound_us\": %.4f, \"wrong\": %" PRIu64 "}",
                    direction_names[d], f[d].mean, f[d].p50, f[d].p99, f[d].bound, f[d].wrong);
    }
    if (m->json)
        fputc('}', m->json);
    if (m->table) {
        fputc('\n', m->table);
        fflush(m->table);
    }
    m->rows++;
}

static int open_output(struct messages *m)
{
    const char *json = m->args->json;
    bool only_json = json && strcmp(json, "-") == 0;
    if (m->rank != 0)
        return 0;
    m->table = only_json ? NULL : stdout;
    m->json = !json ? NULL : only_json ? stdout : fopen(json, "w");
    if (json && !m->json) {
        fprintf(stderr, "abcomm bench: --json: cannot write %s: %s\n", json, strerror(errno));
        return -1;
    }
    print_head(m);
    return 0;
}

static int close_output(struct messages *m)
{
    int failed = 0;
    if (m->table) {
        fprintf(m->table, "# Out of bounds values : %" PRIu64 " %s\n", m->wrong, m->wrong ? "FAILED" : "OK");
        failed |= fflush(m->table) != 0;
    }
    if (m->json) {
        fprintf(m->json, "\n  ],\n  \"wrong\": %" PRIu64 "\n}\n", m->wrong);
        failed |= (m->json == stdout ? fflush(stdout) : fclose(m->json)) != 0;
    }
    if (failed)
        fprintf(stderr, "abcomm bench: cannot write the results: %s\n", strerror(errno));
    return failed ? -1 : 0;
}

/* ---- All rows ------------------------------------------------------------------------------------------------------------------
 */

static int run_size(struct messages *m, uint64_t bytes, abc_type type)
{
    uint64_t count = bytes / abc_type_size(type), wrong[DIRECTIONS] = {0, 0};
    struct figure figures[DIRECTIONS];
    for (int i = -m->args->warmup; i < m->args->iterations; i++)
        if (sample_all(m, count, type, i, wrong) != 0)
            return -1;
    for (int d = 0; d < DIRECTIONS; d++)
        summarise(m, d, wrong[d], &figures[d]);
    if (m->rank == 0)
        print_row(m, count, type, figures);
    return 0;
}

static int run_memory(struct messages *m, unsigned memory)
{
    const struct bench_args *a = m->args;
    m->memory = memory;
    int status = alloc_buffers(m, a->end + 64);
    if (bench_frame_sum(m->frame, status != 0) != 0) {
        if (m->rank == 0)
            fprintf(stderr, "abcomm bench: no memory for two buffers of %" PRIu64 " bytes; lower -e\n", a->end);
        status = -1;
    }
    for (int type = 0; status == 0 && type < ABC_TYPE_COUNT; type++)
        for (uint64_t bytes = a->begin; status == 0 && a->types >> type & 1 && bytes <= a->end;) {
            status = run_size(m, bytes, (abc_type)type);
            uint64_t next = a->step ? bytes + a->step : bytes * a->factor;
            if (next <= bytes)
                break;
            bytes = next;
        }
    free_buffers(m);
    return status;
}

static int alloc_samples(struct messages *m)
{
    size_t n = (size_t)m->args->iterations;
    int missing = 0;
    for (int d = 0; d < DIRECTIONS; d++) {
        double **all[] = {&m->series[d].call, &m->series[d].handoff, &m->series[d].copy[0], &m->series[d].copy[1]};
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            missing |= !(*all[k] = calloc(n, sizeof(double)));
    }
    return missing;
}

int bench_messages(const struct bench_args *args, struct bench_frame *frame, bench_share_fn *share, abc_comm *comm)
{
    struct messages m = {.args = args, .frame = frame, .comm = comm, .rank = frame->rank};
    int failed = alloc_samples(&m) || open_output(&m) != 0, code = 1;
    if (bench_frame_sum(frame, (uint64_t)failed) == 0 && bench_mailboxes_open(frame, share, comm, args->end + 64, &m.box) == 0) {
        code = 0;
        for (unsigned memory = BENCH_PRIVATE; code == 0 && memory <= BENCH_ARENA; memory <<= 1)
            code = args->memory & memory && run_memory(&m, memory) != 0;
    } else if (frame->rank == 0 && !failed) {
        fprintf(stderr, "abcomm bench: no shared memory for the bounds of %" PRIu64 " bytes; lower -e\n", args->end);
    }
    bench_mailboxes_close(&m.box);
    if (frame->rank == 0 && !failed && close_output(&m) != 0)
        code = 1;
    for (int d = 0; d < DIRECTIONS; d++) {
        free(m.series[d].call);
        free(m.series[d].handoff);
        free(m.series[d].copy[0]);
        free(m.series[d].copy[1]);
    }
    return code == 0 && m.wrong > 0 ? 1 : code;
}
