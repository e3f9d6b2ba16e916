/*
 * bench_report.c - what rank 0 prints: the table of nccl-tests with the percentiles behind it, and the same numbers as JSON. The
 * first 13 columns stand where scripts for nccl-tests look for them.
 */
#include "bench.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/utsname.h>

#include "plan/plan.h"

double bench_algbw(uint64_t bytes, double us)
{
    return us > 0 ? (double)bytes / us * 1e-3 : 0;
}

double bench_bus_factor(abc_collective collective, int nranks)
{
    double n = nranks;
    switch (collective) {
    case ABC_ALLREDUCE:
        return 2 * (n - 1) / n;
    case ABC_REDUCE_SCATTER:
    case ABC_ALLGATHER:
    case ABC_GATHER:
    case ABC_SCATTER:
    case ABC_ALLTOALL:
        return (n - 1) / n;
    default:
        return 1;
    }
}

static const char *memory_name(unsigned memory)
{
    return memory == BENCH_ARENA ? "arena" : "private";
}

/* Where the two cores lie, as far as the hand-off tells. */
static const char *distance_name(const struct bench_frame *f, double handoff)
{
    if (f->nranks != 2)
        return "-";
    return handoff < BENCH_NEAR_US ? "near" : "far";
}

static bool has_op(abc_collective collective)
{
    return abci_is(ABCI_REDUCING, collective);
}

static void json_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c < 0x20)
            fprintf(out, "\\u%04x", *c);
        else
            fprintf(out, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    fputc('"', out);
}

static void open_json(const struct bench_report *report)
{
    const struct bench_frame *f = report->frame;
    const struct bench_args *a = report->args;
    struct utsname host;
    uname(&host);
    FILE *out = report->json;
    fprintf(out, "{\n  \"version\": \"%s\",\n  \"collective\": \"%s\",\n", abc_version(), abc_collective_name(a->collective));
    fprintf(out, "  \"ranks\": %d,\n  \"cpus\": %d,\n  \"pinned\": %s,\n  \"algorithm\": ", f->nranks, f->ncpus,
            a->pin ? "true" : "false");
    json_text(out, a->algorithm ? a->algorithm : "auto");
    fprintf(out, ",\n  \"calls\": %d,\n  \"grouped\": %s", a->calls, a->grouped ? "true" : "false");
    fprintf(out, ",\n  \"iterations\": %d,\n  \"checked\": %s,\n", a->iterations, a->check ? "true" : "false");
    fprintf(out, "  \"clock\": \"%s\",\n  \"floor_us\": %.4f,\n  \"host\": ", f->tsc ? "tsc" : "monotonic", f->floor_us);
    json_text(out, host.nodename);
    fprintf(out, ",\n  \"kernel\": ");
    json_text(out, host.release);
    fprintf(out, ",\n  \"rows\": [");
}

static void open_table(const struct bench_report *report)
{
    const struct bench_frame *f = report->frame;
    const struct bench_args *a = report->args;
    fprintf(report->table, "# abcomm %s bench %s: %d ranks on %d CPUs%s, algorithm %s\n", abc_version(),
            abc_collective_name(a->collective), f->nranks, f->ncpus, a->pin ? ", pinned" : "",
            a->algorithm ? a->algorithm : "auto");
    if (a->calls > 1)
        fprintf(report->table, "# a time is that of %d calls, %s\n", a->calls,
                a->grouped ? "in a group" : "started one after another");
    fprintf(report->table,
            "# minBytes %" PRIu64 " maxBytes %" PRIu64 " %s: %" PRIu64 " warmup iters: %d iters: %d validation: %d\n", a->begin,
            a->end, a->step ? "step" : "factor", a->step ? a->step : a->factor, a->warmup, a->iterations, a->check);
    fprintf(report->table,
            "# clock: %s, its floor of %.3f us is subtracted; fresh data before every call, time from last start to "
            "last end\n",
            f->tsc ? "time stamp counter" : "CLOCK_MONOTONIC", f->floor_us);
}

int bench_report_open(struct bench_report *report, const struct bench_args *args, const struct bench_frame *frame)
{
    bool only_json = args->json && strcmp(args->json, "-") == 0;
    *report = (struct bench_report){.args = args, .frame = frame, .table = only_json ? NULL : stdout};
    if (args->json) {
        report->json = only_json ? stdout : fopen(args->json, "w");
        if (!report->json) {
            fprintf(stderr, "abcomm bench: --json: cannot write %s: %s\n", args->json, strerror(errno));
            return -1;
        }
        open_json(report);
    }
    if (report->table)
        open_table(report);
    return 0;
}

void bench_report_section(struct bench_report *report, unsigned memory)
{
    if (!report->table)
        return;
    fprintf(report->table, "#\n# buffers: %s\n#\n", memory == BENCH_ARENA ? "arena (abc_mem_alloc)" : "private");
    fprintf(report->table, "# %58s%39s\n", "out-of-place", "in-place");
    fprintf(report->table, "#%11s %12s %6s %6s %5s %9s %8s %8s %7s %9s %8s %8s %7s %9s %9s %9s %9s %8s  %s\n", "size", "count",
            "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", "p50", "p99", "ip-p50",
            "ip-p99", "hand-off", "algorithm");
    fprintf(report->table, "#%11s %12s %6s %6s %5s %9s %8s %8s %7s %9s %8s %8s %7s %9s %9s %9s %9s %8s  %s\n", "(B)", "(elements)",
            "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(us)", "(us)", "(us)", "");
    fflush(report->table);
}

static void print_place(struct bench_report *report, const struct bench_row *row, const struct bench_result *r)
{
    double algbw = bench_algbw(row->bytes * (uint64_t)report->args->calls, r->mean);
    char wrong[24] = "N/A";
    if (report->args->check)
        snprintf(wrong, sizeof wrong, "%" PRIu64, r->wrong);
    if (r->measured)
        fprintf(report->table, " %9.2f %8.3f %8.3f %7s", r->mean, algbw,
                algbw * bench_bus_factor(report->args->collective, report->frame->nranks), wrong);
    else
        fprintf(report->table, " %9s %8s %8s %7s", "-", "-", "-", "-");
}

static void print_percentiles(FILE *out, const struct bench_result *r)
{
    if (r->measured)
        fprintf(out, " %9.2f %9.2f", r->p50, r->p99);
    else
        fprintf(out, " %9s %9s", "-", "-");
}

static void print_row(struct bench_report *report, const struct bench_row *row)
{
    abc_collective collective = report->args->collective;
    fprintf(report->table, "%12" PRIu64 " %12" PRIu64 " %6s %6s %5d", row->bytes, row->count, abc_type_name(row->type),
            has_op(collective) ? abc_op_name(row->op) : "none", row->root);
    for (int i = 0; i < 2; i++)
        print_place(report, row, &row->place[i]);
    for (int i = 0; i < 2; i++)
        print_percentiles(report->table, &row->place[i]);
    fprintf(report->table, " %8.3f  %s%s%s\n", row->handoff, row->algorithm, row->why[0] ? "/" : "", row->why);
    fflush(report->table);
}

static void json_row(struct bench_report *report, const struct bench_row *row)
{
    static const char *const places[] = {"out_of_place", "in_place"};
    FILE *out = report->json;
    fprintf(out, "%s\n    {\"bytes\": %" PRIu64 ", \"count\": %" PRIu64 ", \"type\": \"%s\", \"op\": \"%s\", \"root\": %d, ",
            report->rows ? "," : "", row->bytes, row->count, abc_type_name(row->type),
            has_op(report->args->collective) ? abc_op_name(row->op) : "none", row->root);
    fprintf(out, "\"memory\": \"%s\", \"algorithm\": \"%s\", \"why\": \"%s\", \"handoff_us\": %.4f", memory_name(row->memory),
            row->algorithm, row->why, row->handoff);
    for (int i = 0; i < 2; i++) {
        const struct bench_result *r = &row->place[i];
        double algbw = bench_algbw(row->bytes * (uint64_t)report->args->calls, r->mean);
        if (!r->measured)
            continue;
        fprintf(out, ", \"%s\": {\"time_us\": %.4f, \"p50_us\": %.4f, \"p99_us\": %.4f, \"min_us\": %.4f, ", places[i], r->mean,
                r->p50, r->p99, r->min);
        fprintf(out, "\"algbw\": %.4f, \"busbw\": %.4f, \"wrong\": %" PRIu64 "}", algbw,
                algbw * bench_bus_factor(report->args->collective, report->frame->nranks), r->wrong);
    }
    fputc('}', out);
}

void bench_report_row(struct bench_report *report, const struct bench_row *row)
{
    if (report->table)
        print_row(report, row);
    if (report->json)
        json_row(report, row);
    report->rows++;
    for (int i = 0; i < 2; i++) {
        const struct bench_result *r = &row->place[i];
        if (!r->measured)
            continue;
        report->wrong += r->wrong;
        report->busbw_sum += bench_algbw(row->bytes * (uint64_t)report->args->calls, r->mean) *
                             bench_bus_factor(report->args->collective, report->frame->nranks);
        report->busbw_count++;
    }
}

int bench_report_close(struct bench_report *report, double handoff)
{
    double average = report->busbw_count ? report->busbw_sum / report->busbw_count : 0;
    const char *distance = distance_name(report->frame, handoff);
    int failed = 0;
    if (report->table) {
        fprintf(report->table, "# Bare hand-off        : %.3f us, %s\n", handoff,
                report->frame->nranks == 2 ? distance : "all ranks exchange one flag");
        fprintf(report->table, "# Out of bounds values : %" PRIu64 " %s\n", report->wrong, report->wrong ? "FAILED" : "OK");
        fprintf(report->table, "# Avg bus bandwidth    : %.6g\n", average);
        failed |= fflush(report->table) != 0;
    }
    if (report->json) {
        fprintf(report->json, "\n  ],\n  \"wrong\": %" PRIu64 ",\n  \"avg_busbw\": %.4f,\n  \"handoff_us\": %.4f,\n", report->wrong,
                average, handoff);
        fprintf(report->json, "  \"distance\": \"%s\"\n}\n", distance);
        failed |= (report->json == stdout ? fflush(stdout) : fclose(report->json)) != 0;
    }
    if (failed)
        fprintf(stderr, "abcomm bench: cannot write the results: %s\n", strerror(errno));
    return failed ? -1 : 0;
}
