/*
 * bench.c - `abcomm bench COLLECTIVE`: times a collective over sizes, types and operations and checks every result. Runs as all
 * ranks of a job at once; rank 0 prints. Built of bench_args.c (command line), bench_frame.c (clock), bench_data.c (inputs and
 * checks) and bench_report.c (output); this file makes the buffers and the calls.
 */
#include "bench.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "plan/part.h"
#include "tools.h"

#define HUGE_PAGE (2u << 20)
#define NO_ROOT (-1)

/* One run of the program. */
struct bench {
    struct bench_args args;
    struct bench_frame frame;
    struct bench_report report; /* rank 0 */
    abc_comm *comm;
    int rank, nranks;
    uint32_t iteration;             /* of all calls so far: no two have the same data */
    unsigned memory;                /* of the buffers now */
    void *in, *out;                 /* of args.end bytes */
    double *samples[2], *exchanges; /* of args.iterations */
    uint32_t *seeds;                /* of the ranks whose data the result is made of */
    abc_call *calls;                /* of args.calls: what one sample times */
    abc_request **requests;
    double handoff_sum; /* of the rows' hand-offs */
    bool show_progress;
};

/* Where a call finds and puts its bytes on this rank. */
struct layout {
    void *in, *out;     /* as passed */
    uint64_t in_count;  /* elements that this rank gives */
    uint64_t out_first; /* position of the output in the whole result */
    uint64_t out_count; /* elements that this rank gets */
};

void *bench_alloc_private(size_t bytes)
{
    size_t whole = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *p = aligned_alloc(HUGE_PAGE, whole);
    if (p) {
        madvise(p, whole, MADV_HUGEPAGE);
        memset(p, 0, whole);
    }
    return p;
}

static int alloc_buffers(struct bench *b)
{
    size_t bytes = (b->args.end + 64) * (size_t)b->args.calls;
    b->in = b->out = NULL;
    if (b->memory == BENCH_PRIVATE) {
        b->in = bench_alloc_private(bytes);
        b->out = bench_alloc_private(bytes);
    } else if (abc_mem_alloc(bytes, &b->in) == ABC_OK && abc_mem_alloc(bytes, &b->out) == ABC_OK) {
        memset(b->in, 0, bytes);
        memset(b->out, 0, bytes);
    }
    if (b->in && b->out)
        return 0;
    fprintf(stderr, "abcomm bench: no memory for two %s buffers of %zu bytes; lower -e%s\n",
            b->memory == BENCH_PRIVATE ? "private" : "arena", bytes, b->args.calls > 1 ? " or the number of calls" : "");
    return -1;
}

static void free_buffers(struct bench *b)
{
    if (b->memory == BENCH_PRIVATE) {
        free(b->in);
        free(b->out);
    } else {
        abc_mem_free(b->in);
        abc_mem_free(b->out);
    }
    b->in = b->out = NULL;
}

/* Elements of the `count` argument of a size, as nccl-tests understands sizes. */
static uint64_t count_of(const struct bench *b, uint64_t bytes, abc_type type)
{
    uint64_t elements = bytes / abc_type_size(type);
    return abci_part_by_rank(b->args.collective) ? elements / (uint64_t)b->nranks : elements;
}

/* Each call of a sample has a piece of the buffers. */
static struct layout lay_out(const struct bench *b, const struct bench_row *row, bool in_place, int call)
{
    size_t piece = (row->bytes + 63) / 64 * 64 * (size_t)call;
    char *in_base = (char *)b->in + piece, *out_base = (char *)b->out + piece;
    uint64_t n = row->count, all = n * (uint64_t)b->nranks, first = n * (uint64_t)b->rank;
    size_t offset = first * abc_type_size(row->type);
    bool root = b->rank == row->root;
    switch (b->args.collective) {
    case ABC_REDUCE_SCATTER:
        return (struct layout){in_base, in_place ? in_base + offset : out_base, all, first, n};
    case ABC_ALLGATHER:
        return (struct layout){in_place ? out_base + offset : in_base, out_base, n, 0, all};
    case ABC_BROADCAST:
        return (struct layout){in_place ? out_base : in_base, out_base, root ? n : 0, 0, n};
    case ABC_REDUCE:
        return (struct layout){in_place && root ? out_base : in_base, out_base, n, 0, root ? n : 0};
    case ABC_GATHER:
        return (struct layout){in_place && root ? out_base + offset : in_base, out_base, n, 0, root ? all : 0};
    case ABC_SCATTER:
        return (struct layout){in_base, in_place && root ? in_base + offset : out_base, root ? all : 0, first, n};
    case ABC_ALLTOALL:
        return (struct layout){in_place ? out_base : in_base, out_base, all, first, all};
    case ABC_EXSCAN:
        return (struct layout){in_place ? out_base : in_base, out_base, n, 0, b->rank > 0 ? n : 0};
    default:
        return (struct layout){in_place ? out_base : in_base, out_base, n, 0, n};
    }
}

/* Products and truth need values whose results stay small. */
static uint32_t row_limit(const struct bench *b, const struct bench_row *row)
{
    bool small = row->op == ABC_PROD || row->op == ABC_LAND || row->op == ABC_LOR || row->op == ABC_LXOR;
    return small ? 2 : bench_data_limit(row->type, b->nranks);
}

/* Number of wrong elements on this rank, after reading all of the output. */
static uint64_t inspect(struct bench *b, const struct bench_row *row, const struct layout *l)
{
    abc_collective collective = b->args.collective;
    uint32_t limit = row_limit(b, row);
    size_t block = row->count * abc_type_size(row->type);
    uint64_t wrong = 0;
    if (!b->args.check) {
        bench_read(l->out, l->out_count * abc_type_size(row->type));
        return 0;
    }
    if (l->out_count == 0)
        return 0;
    if (abci_part_width(collective, ABCI_OUT) == ABCI_WIDE) { /* block r comes from rank r */
        for (int r = 0; r < b->nranks; r++)
            wrong += bench_check((char *)l->out + (size_t)r * block, row->type, ABC_SUM, limit, &b->seeds[r], 1, l->out_first,
                                 row->count);
        return wrong;
    }
    bool one = !abci_is(ABCI_REDUCING, collective);
    int added = collective == ABC_SCAN ? b->rank + 1 : collective == ABC_EXSCAN ? b->rank : b->nranks;
    return bench_check(l->out, row->type, one ? ABC_SUM : row->op, limit, one ? &b->seeds[row->root] : b->seeds, one ? 1 : added,
                       l->out_first, l->out_count);
}

/* For the test of the check: one element of the last rank's output changes beyond any tolerance. */
static void corrupt(const struct bench *b, const struct bench_row *row, const struct layout *l)
{
    size_t size = abc_type_size(row->type);
    if (b->rank == b->nranks - 1 && l->out_count > 0)
        ((unsigned char *)l->out)[(l->out_count / 2) * size + size - 1] ^= 0x40;
}

static abc_call call_of(const struct bench *b, const struct bench_row *row, const struct layout *l)
{
    abc_call call;
    abc_call_init(&call, b->args.collective);
    if (b->args.collective != ABC_BARRIER) {
        call.in = l->in;
        call.out = l->out;
        call.count = row->count;
        call.type = row->type;
        call.op = row->op;
        call.root = row->root == NO_ROOT ? 0 : row->root;
    }
    call.algorithm = b->args.algorithm;
    return call;
}

static void take_seeds(struct bench *b, uint32_t iteration)
{
    for (int r = 0; r < b->nranks; r++)
        b->seeds[r] = bench_seed(iteration, r);
}

/* What is timed. */
static int make_calls(struct bench *b)
{
    int n = b->args.calls, status = ABC_OK;
    if (n == 1)
        return abc_run(b->comm, b->calls);
    if (b->args.grouped) {
        status = abc_group_start();
        for (int i = 0; i < n && status == ABC_OK; i++)
            status = abc_run(b->comm, &b->calls[i]);
        return status == ABC_OK ? abc_group_end() : status;
    }
    for (int i = 0; i < n && status == ABC_OK; i++)
        status = abc_start(b->comm, &b->calls[i], &b->requests[i]);
    for (int i = 0; i < n && status == ABC_OK; i++)
        status = abc_wait(&b->requests[i]);
    return status;
}

/* One sample with all that belongs to it; the time is negative when a call failed, which has been said then. */
static double sample(struct bench *b, const struct bench_row *row, bool in_place, uint64_t *wrong)
{
    uint32_t limit = row_limit(b, row), first = b->iteration + 1;
    b->iteration += (uint32_t)b->args.calls;
    for (int i = 0; i < b->args.calls; i++) {
        struct layout l = lay_out(b, row, in_place, i);
        b->calls[i] = call_of(b, row, &l);
        bench_fill(l.in, row->type, limit, bench_seed(first + (uint32_t)i, b->rank), 0, l.in_count);
    }
    if (bench_frame_begin(&b->frame) != 0)
        return -1;
    int status = make_calls(b);
    if (status != ABC_OK) {
        fprintf(stderr, "abcomm bench: %s\n", abc_last_error());
        bench_frame_fail(&b->frame);
        return -1;
    }
    double us = bench_frame_end(&b->frame);
    for (int i = 0; i < b->args.calls; i++) {
        struct layout l = lay_out(b, row, in_place, i);
        take_seeds(b, first + (uint32_t)i);
        if (b->args.corrupt && i == b->args.calls - 1)
            corrupt(b, row, &l);
        *wrong += inspect(b, row, &l);
    }
    return us;
}

static void summarise(struct bench *b, struct bench_result *result, double *samples, uint64_t wrong)
{
    size_t n = (size_t)b->args.iterations;
    result->mean = bench_mean(samples, n);
    result->p50 = bench_percentile(samples, n, 0.5);
    result->p99 = bench_percentile(samples, n, 0.99);
    result->min = samples[0]; /* sorted */
    result->wrong = bench_frame_sum(&b->frame, wrong);
    result->measured = true;
}

/* Which algorithm the row shows. */
static void explain(const struct bench *b, struct bench_row *row)
{
    char text[96] = "";
    struct layout l = lay_out(b, row, b->args.places == BENCH_IN_PLACE, 0);
    abc_call call = call_of(b, row, &l);
    row->algorithm[0] = row->why[0] = 0;
    if (abc_explain(b->comm, &call, text, sizeof text) != ABC_OK || sscanf(text, "%47s by %15[^;]", row->algorithm, row->why) != 2)
        snprintf(row->algorithm, sizeof row->algorithm, "-"); /* the call itself will tell why */
    const char *direct = strstr(text, "; ");                  /* this rank's buffers are in the arena, and so are all others' */
    if (direct && row->algorithm[0] != '-')
        sscanf(direct, "; %47s", row->algorithm);
}

/* All samples of one row; both places and the hand-off alternate, so that they see the same machine. */
static int measure(struct bench *b, struct bench_row *row)
{
    uint64_t wrong[2] = {0, 0};
    explain(b, row);
    for (int i = -b->args.warmup; i < b->args.iterations; i++) {
        for (int place = 0; place < 2; place++) {
            if (!(b->args.places & 1u << place))
                continue;
            double us = sample(b, row, place == 1, &wrong[place]);
            if (us < 0)
                return -1;
            if (i >= 0)
                b->samples[place][i] = us;
        }
        double us = bench_frame_exchange(&b->frame);
        if (us < 0)
            return -1;
        if (i >= 0)
            b->exchanges[i] = us;
    }
    for (int place = 0; place < 2; place++)
        if (b->args.places & 1u << place)
            summarise(b, &row->place[place], b->samples[place], wrong[place]);
    row->handoff = bench_percentile(b->exchanges, (size_t)b->args.iterations, 0.5);
    b->handoff_sum += row->handoff;
    return 0;
}

static void progress(const struct bench *b, const struct bench_row *row)
{
    if (!b->show_progress)
        return;
    if (row)
        fprintf(stderr, "\rmeasuring %" PRIu64 " bytes %s %s ...\033[K", row->bytes, abc_type_name(row->type),
                abc_op_name(row->op));
    else
        fprintf(stderr, "\r\033[K");
    fflush(stderr);
}

static int run_size(struct bench *b, struct bench_row *row, uint64_t bytes)
{
    memset(row->place, 0, sizeof row->place);
    row->count = count_of(b, bytes, row->type);
    row->bytes = row->count * abc_type_size(row->type) * (abci_part_by_rank(b->args.collective) ? (uint64_t)b->nranks : 1);
    progress(b, row);
    int status = measure(b, row);
    progress(b, NULL);
    if (status == 0 && b->rank == 0)
        bench_report_row(&b->report, row);
    return status;
}

static int run_sizes(struct bench *b, struct bench_row *row)
{
    const struct bench_args *a = &b->args;
    if (a->collective == ABC_BARRIER)
        return run_size(b, row, 0);
    for (uint64_t bytes = a->begin; bytes <= a->end; bytes = a->step ? bytes + a->step : bytes * a->factor) {
        if (run_size(b, row, bytes) != 0)
            return -1;
        if (bytes == 0 && a->step == 0)
            break;
    }
    return 0;
}

/* One kind of memory: all types, operations and roots that were asked for and that the collective has. */
static int run_memory(struct bench *b, unsigned memory)
{
    const struct bench_args *a = &b->args;
    bool reduces = abci_is(ABCI_REDUCING, a->collective), prefix = abci_is(ABCI_PREFIX, a->collective);
    bool rooted = abci_is(ABCI_ROOTED, a->collective), typed = a->collective != ABC_BARRIER;
    int first = rooted ? (a->root < 0 ? 0 : a->root) : NO_ROOT, last = rooted ? (a->root < 0 ? b->nranks - 1 : a->root) : NO_ROOT;
    struct bench_row row = {.memory = memory};
    b->memory = memory;
    if (b->rank == 0)
        bench_report_section(&b->report, memory);
    int status = alloc_buffers(b);
    if (bench_frame_sum(&b->frame, status != 0) != 0)
        status = -1; /* here or on another rank */
    for (int type = 0; status == 0 && type < ABC_TYPE_COUNT; type++) {
        if (!(a->types & 1u << type) && typed)
            continue;
        for (int op = 0; status == 0 && op < ABC_OP_COUNT; op++) {
            if (reduces && (!(a->ops & 1u << op) || !abc_op_fits((abc_op)op, (abc_type)type) || (prefix && op == ABC_AVG)))
                continue;
            row.type = (abc_type)type;
            row.op = (abc_op)op;
            for (row.root = first; status == 0 && row.root <= last; row.root++)
                status = run_sizes(b, &row);
            if (!reduces)
                break;
        }
        if (!typed)
            break;
    }
    free_buffers(b);
    return status;
}

static int share_by_broadcast(void *comm, void *data, size_t bytes)
{
    return abc_broadcast(data, data, bytes / 4, ABC_I32, 0, comm);
}

static int run_all(struct bench *b)
{
    for (unsigned memory = BENCH_PRIVATE; memory <= BENCH_ARENA; memory <<= 1)
        if (b->args.memory & memory && run_memory(b, memory) != 0)
            return 1;
    /* A library that is done must still be in step. */
    return abc_barrier(b->comm) == ABC_OK ? 0 : 1;
}

static int measure_all(struct bench *b)
{
    size_t n = (size_t)b->args.iterations;
    b->samples[0] = calloc(n, sizeof(double));
    b->samples[1] = calloc(n, sizeof(double));
    b->exchanges = calloc(n, sizeof(double));
    b->seeds = calloc((size_t)b->nranks, sizeof(uint32_t));
    b->calls = calloc((size_t)b->args.calls, sizeof(abc_call));
    b->requests = calloc((size_t)b->args.calls, sizeof(abc_request *));
    int code = 1, opened = 0;
    if (!b->samples[0] || !b->samples[1] || !b->exchanges || !b->seeds || !b->calls || !b->requests)
        fprintf(stderr, "abcomm bench: no memory\n");
    else if (b->rank == 0 && bench_report_open(&b->report, &b->args, &b->frame) != 0)
        opened = 0;
    else
        opened = 1;
    /* All go on or none. */
    if (bench_frame_sum(&b->frame, !opened) == 0)
        code = run_all(b);
    if (opened && b->rank == 0) {
        double rows = b->report.rows ? b->report.rows : 1;
        if (bench_report_close(&b->report, b->handoff_sum / rows) != 0)
            code = 1;
    }
    uint64_t wrong = bench_frame_sum(&b->frame, b->rank == 0 ? b->report.wrong : 0);
    free(b->samples[0]);
    free(b->samples[1]);
    free(b->exchanges);
    free(b->seeds);
    free(b->calls);
    free(b->requests);
    return code == 0 && wrong > 0 ? 1 : code;
}

int tool_bench(int argc, char **argv)
{
    struct bench b = {0};
    char why[256] = "";
    int code = bench_args_parse(&b.args, argc, argv, why, sizeof why);
    if (code == 0) {
        bench_args_help(stdout);
        return 0;
    }
    /* Ranks of a job join it even to refuse the command line: then one of them says why, not all. */
    if (abc_comm_create(NULL, &b.comm) != ABC_OK) {
        if (code != BENCH_RUN)
            return tool_misuse("bench", "%s", why);
        fprintf(stderr, "abcomm bench: %s\nabcomm bench: start with: abcomm run -n 4 -- abcomm bench %s\n", abc_last_error(),
                b.args.messages ? "sendrecv" : abc_collective_name(b.args.collective));
        return TOOL_USAGE;
    }
    b.rank = abc_comm_rank(b.comm);
    b.nranks = abc_comm_size(b.comm);
    b.show_progress = b.rank == 0 && isatty(STDERR_FILENO);
    if (code == BENCH_RUN && b.args.root >= b.nranks) {
        snprintf(why, sizeof why, "-r: there is no rank %d among %d", b.args.root, b.nranks);
        code = TOOL_USAGE;
    }
    if (code == BENCH_RUN && b.args.messages && b.nranks != 2) {
        snprintf(why, sizeof why, "sendrecv is measured between 2 ranks, not %d; start it with: abcomm run -n 2", b.nranks);
        code = TOOL_USAGE;
    }
    if (code != BENCH_RUN) {
        if (b.rank == 0)
            tool_misuse("bench", "%s", why);
        abc_barrier(b.comm); /* rank 0 has spoken before the first rank ends */
    } else if (bench_frame_open(&b.frame, b.rank, b.nranks, b.args.pin, share_by_broadcast, b.comm) != 0) {
        code = 1;
    } else {
        code = b.args.messages ? bench_messages(&b.args, &b.frame, share_by_broadcast, b.comm) : measure_all(&b);
        bench_frame_close(&b.frame);
    }
    abc_comm_destroy(b.comm);
    return code;
}
