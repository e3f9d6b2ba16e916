/*
 * tune_file.c - the writing half of `abcomm tune`, on rank 0: which candidate has won by more than noise, ranges of sizes from
 * single sizes, and the file. Rows of other numbers of ranks stay as they are. The file appears whole or not at all: it is written
 * beside its place and renamed. src/tune/tuning.c reads what is written here.
 */
#include "tune.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define SHARED_US 5.0 /* two ranks that run at once hand over in less */
#define MOST_SIZES 64 /* of a collective */

/* What was measured at one size. */
struct outcome {
    uint64_t bytes; /* as in the file: count times element size */
    char name[48];  /* of the winner; "": the price was right */
    double priced_us, us;
};

struct tune_file {
    struct abci_tuning *old; /* rows of the file that was there */
    json_t *jobs;            /* facts of this and earlier jobs */
    json_t *rows;            /* of this job */
    struct outcome outcome[MOST_SIZES];
    int outcomes;
    abc_collective collective;
    unsigned memory;
    int cases, won;
};

/* ---- Who has won ---- */

static const double *times(const struct tune_candidate *k, int half)
{
    return half < 0 ? k->median : k->half[half];
}

double tune_ratio(const struct tune_case *c, int candidate, int half)
{
    double product = 1;
    for (int place = 0; place < c->places; place++)
        product *= times(&c->candidate[candidate], half)[place] / times(&c->candidate[0], half)[place];
    return c->places == 2 ? sqrt(product) : product;
}

int tune_best(const struct tune_case *c, int half)
{
    int best = 0;
    for (int i = 1; i < c->ncandidates; i++)
        if (c->candidate[i].alive && tune_ratio(c, i, half) < tune_ratio(c, best, half))
            best = i;
    return best;
}

/* The best by one half of the samples must win by the other half, too; else luck has chosen it. */
static int winner(const struct tune_case *c, double margin)
{
    int best = tune_best(c, 0);
    bool wins = tune_ratio(c, best, 0) < 1 - margin && tune_ratio(c, best, 1) < 1 - margin;
    return wins ? best : 0;
}

/* ---- Opening ---- */

/* Facts of the file that was there, about other numbers of ranks. */
static void keep_jobs(struct tune_job *job)
{
    struct tune_file *f = job->file;
    size_t at;
    json_t *one, *whole = json_load_file(job->args->out, 0, NULL);
    json_array_foreach(json_object_get(json_object_get(whole, "machine"), "jobs"), at, one)
    {
        if (json_integer_value(json_object_get(one, "ranks")) != job->nranks)
            json_array_append(f->jobs, one);
    }
    json_decref(whole);
}

int tune_file_open(struct tune_job *job)
{
    struct tune_file *f = job->file = calloc(1, sizeof *f);
    const struct tune_args *a = job->args;
    if (f)
        f->old = calloc(1, sizeof *f->old);
    if (!f || !f->old || !(f->rows = json_array()) || !(f->jobs = json_array())) {
        fprintf(stderr, "abcomm tune: no memory\n");
        return -1;
    }
    if (access(a->out, F_OK) == 0) {
        if (abci_tuning_load(a->out, f->old) != ABC_OK) {
            fprintf(stderr, "abcomm tune: --out would replace a file that is no tuning file; remove it or give another name: %s\n",
                    abc_last_error());
            return -1;
        }
        keep_jobs(job);
    }
    if (a->csv && !(job->csv = fopen(a->csv, "a"))) {
        fprintf(stderr, "abcomm tune: --csv: cannot write %s: %s\n", a->csv, strerror(errno));
        return -1;
    }
    if (!job->frame.crowded && job->handoff > SHARED_US)
        fprintf(stderr,
                "abcomm tune: a hand-off takes %.0f us: other work uses the CPUs; try --pin, or measure when it has ended\n",
                job->handoff);
    printf("%-14s %5s %-7s %10s  %-18s %10s  %-18s %10s %6s\n", "collective", "ranks", "memory", "bytes", "by price", "us",
           "best other", "us", "gain");
    return 0;
}

/* ---- Measuring goes on ---- */

static const char *memory_name(unsigned memory)
{
    return abci_memory_name(memory == BENCH_ARENA ? ABCI_ARENA : ABCI_PRIVATE);
}

static void write_csv(const struct tune_job *job, const struct tune_case *c)
{
    for (int i = 0; job->csv && i < c->ncandidates; i++)
        for (int place = 0; place < c->places; place++) {
            const struct tune_candidate *k = &c->candidate[i];
            fprintf(job->csv, "%s,%d,%s,%s,%" PRIu64 ",%s,%s,%.4f,%.4f,%.4f,%d,%.4f,%.4f,%.4f\n",
                    abc_collective_name(c->collective), job->nranks, memory_name(c->memory), place ? "ip" : "oop", c->bytes,
                    k->name, i == 0 ? "chosen" : "fixed", k->median[place], k->half[0][place], k->half[1][place], k->count,
                    job->handoff, c->handoff[0], c->handoff[1]);
        }
}

static double both_places(const struct tune_case *c, int candidate)
{
    const double *us = c->candidate[candidate].median;
    return c->places == 2 ? sqrt(us[0] * us[1]) : us[0];
}

void tune_file_case(struct tune_job *job, const struct tune_case *c)
{
    struct tune_file *f = job->file;
    int best = winner(c, job->args->margin), other = c->ncandidates > 1 ? 1 : 0;
    for (int i = 1; i < c->ncandidates; i++)
        if (c->candidate[i].alive && tune_ratio(c, i, -1) < tune_ratio(c, other, -1))
            other = i;
    f->collective = c->collective;
    f->memory = c->memory;
    f->cases++;
    f->won += best > 0;
    write_csv(job, c);
    const char *rival = other > 0 ? c->candidate[other].name : "-";
    printf("%-14s %5d %-7s %10" PRIu64 "  %-18s %10.2f  %-18s %10.2f %5.0f%%%s\n", abc_collective_name(c->collective), job->nranks,
           memory_name(c->memory), c->bytes, c->candidate[0].name, both_places(c, 0), rival, both_places(c, other),
           100 * (1 - tune_ratio(c, other, -1)), best > 0 ? "  written" : "");
    fflush(stdout);
    if (f->outcomes == MOST_SIZES)
        return;
    struct outcome *o = &f->outcome[f->outcomes++];
    *o = (struct outcome){.bytes = c->count * sizeof(float), .priced_us = both_places(c, 0), .us = both_places(c, best)};
    if (best > 0)
        snprintf(o->name, sizeof o->name, "%s", c->candidate[best].name);
}

/* Between two sizes the border is their geometric mean, on a cache line. */
static uint64_t border(uint64_t a, uint64_t b)
{
    uint64_t mean = (uint64_t)sqrt((double)a * (double)b);
    return mean > 64 ? (mean + 63) / 64 * 64 : mean;
}

/* Neighbours with one winner become one row. Beyond the smallest and the largest size it holds, too. */
void tune_file_group(struct tune_job *job)
{
    struct tune_file *f = job->file;
    for (int i = 0, next; i < f->outcomes; i = next) {
        const struct outcome *o = &f->outcome[i];
        for (next = i + 1; next < f->outcomes && strcmp(f->outcome[next].name, o->name) == 0;)
            next++;
        if (o->name[0] == 0)
            continue;
        char algorithm[32] = "";
        unsigned long long chunk = 0;
        sscanf(o->name, "%31[^@]@%llu", algorithm, &chunk);
        uint64_t from = i > 0 ? border(f->outcome[i - 1].bytes, o->bytes) : 0;
        json_t *row = json_pack("{ss si ss sI}", "collective", abc_collective_name(f->collective), "ranks", job->nranks, "memory",
                                memory_name(f->memory), "from_bytes", (json_int_t)from);
        if (next < f->outcomes)
            json_object_set_new(row, "to_bytes",
                                json_integer((json_int_t)border(f->outcome[next - 1].bytes, f->outcome[next].bytes)));
        json_object_set_new(row, "algorithm", json_string(algorithm));
        json_object_set_new(row, "chunk", json_integer((json_int_t)chunk));
        json_object_set_new(row, "priced_us", json_real(o->priced_us));
        json_object_set_new(row, "us", json_real(o->us));
        json_array_append_new(f->rows, row);
    }
    f->outcomes = 0;
}

/* ---- Closing ---- */

/* Has this job measured what the row is about? Then its own rows say what is left of it. */
static bool replaced(const struct tune_job *job, const struct abci_tuning_row *row)
{
    unsigned memory = row->memory == ABCI_ARENA ? BENCH_ARENA : BENCH_PRIVATE;
    return row->ranks == job->nranks && (job->args->collectives & 1u << row->collective) && (job->args->memory & memory);
}

static json_t *old_row(const struct abci_tuning_row *r)
{
    const char *algorithm = r->algorithm == ABCI_TUNING_AUTO ? "auto" : abci_algos[r->algorithm]->name;
    json_t *row = json_pack("{ss si ss sI}", "collective", abc_collective_name((abc_collective)r->collective), "ranks",
                            (int)r->ranks, "memory", abci_memory_name(r->memory), "from_bytes", (json_int_t)r->from);
    if (r->to < 1ull << 47)
        json_object_set_new(row, "to_bytes", json_integer((json_int_t)r->to));
    json_object_set_new(row, "algorithm", json_string(algorithm));
    json_object_set_new(row, "chunk", json_integer((json_int_t)r->chunk));
    return row;
}

static void dump(FILE *out, const json_t *value)
{
    char *text = json_dumps(value, JSON_REAL_PRECISION(4) | JSON_ENCODE_ANY);
    fputs(text ? text : "null", out);
    free(text);
}

/* One row a line: people read and compare this. */
static void print_file(FILE *out, const struct tune_job *job)
{
    struct tune_file *f = job->file;
    struct utsname host;
    uname(&host);
    size_t at;
    json_t *row, *all = json_array();
    for (uint32_t i = 0; i < f->old->count; i++)
        if (!replaced(job, &f->old->row[i]))
            json_array_append_new(all, old_row(&f->old->row[i]));
    json_array_extend(all, f->rows);
    const char *distance = job->nranks != 2 ? "-" : job->handoff < BENCH_NEAR_US ? "near" : "far";
    json_array_append_new(f->jobs, json_pack("{si si sf ss}", "ranks", job->nranks, "cpus", job->frame.ncpus, "hand_off_us",
                                             job->handoff, "distance", distance));
    fprintf(out, "{\n  \"abcomm_tuning\": %d,\n  \"machine\": {\"host\": ", ABCI_TUNING_VERSION);
    json_t *name = json_string(host.nodename);
    dump(out, name);
    json_decref(name);
    fprintf(out, ", \"version\": \"%s\", \"jobs\": ", abc_version());
    dump(out, f->jobs);
    fprintf(out, "},\n  \"rows\": [");
    json_array_foreach(all, at, row)
    {
        fprintf(out, "%s\n    ", at ? "," : "");
        dump(out, row);
    }
    fprintf(out, "\n  ]\n}\n");
    json_decref(all);
}

static int write_file(const struct tune_job *job)
{
    char beside[4096];
    if (snprintf(beside, sizeof beside, "%s.%d", job->args->out, (int)getpid()) >= (int)sizeof beside) {
        fprintf(stderr, "abcomm tune: --out: the name is too long\n");
        return -1;
    }
    FILE *out = fopen(beside, "w");
    if (out) {
        print_file(out, job);
        bool ok = !ferror(out);
        if ((fclose(out) == 0) && ok && rename(beside, job->args->out) == 0)
            return 0;
        remove(beside);
    }
    fprintf(stderr, "abcomm tune: --out: cannot write %s: %s\n", job->args->out, strerror(errno));
    return -1;
}

int tune_file_close(struct tune_job *job, bool ok)
{
    struct tune_file *f = job->file;
    int status = ok ? write_file(job) : -1;
    if (status == 0)
        printf("# %d ranks: %zu rows in %s, where %d of %d sizes were faster by more than %.0f %%; use it with ABCOMM_TUNING=%s\n",
               job->nranks, json_array_size(f->rows), job->args->out, f->won, f->cases, 100 * job->args->margin, job->args->out);
    if (job->csv && fclose(job->csv) != 0) {
        fprintf(stderr, "abcomm tune: --csv: cannot write %s: %s\n", job->args->csv, strerror(errno));
        status = -1;
    }
    if (f) {
        json_decref(f->rows);
        json_decref(f->jobs);
        free(f->old);
    }
    free(f);
    job->file = NULL;
    return status;
}
