/*
 * tune.c - `abcomm tune`: measures which algorithm and chunk is best here and writes a tuning file (ABCOMM_TUNING). Starts itself
 * as the ranks of a job, once for each number of ranks; the ranks measure (tune_measure.c) and rank 0 writes (tune_file.c). This
 * file has the command line and both ways to begin.
 */
#include "tune.h"

#include <errno.h>
#include <getopt.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "tools.h"

#define MOST_RANKS 64
#define MOST_BYTES (1ull << 30)

static void print_usage(void)
{
    fputs(
        "usage: abcomm tune [-n RANKS] [--out FILE] [FLAGS]\n\n"
        "Measure which algorithm and chunk size are best on this machine, and write what beats the choice by price to a file that\n"
        "ABCOMM_TUNING names. Only rank 0 of a job reads it. Rows of other numbers of ranks that FILE has already stay.\n\n"
        "  -n RANKS         numbers of ranks, 2 to 64, several with commas (2)\n"
        "  --out FILE       the tuning file (abcomm-tuning.json)\n"
        "  --quick          fewer sizes, samples and chunks\n"
        "  -c LIST          allreduce, reduce_scatter, allgather, broadcast, several with commas, or all (all)\n"
        "  --mem MEMORY     private, arena or both (both)\n"
        "  -b, -e SIZE      smallest and largest buffer in bytes, K, M or G (8, 32M)\n"
        "  -f FACTOR        from one size to the next (4)\n"
        "  --margin PERCENT what a row must win (5)\n"
        "  --csv FILE       append every median, one line a candidate\n"
        "  --pin            rank r stays on CPU r modulo the allowed ones\n\n"
        "Let nothing else run. Sizes are of the largest buffer: the gathered one for allgather, the input for reduce_scatter.\n",
        stdout);
}

static bool take_size(const char *text, uint64_t low, uint64_t *out)
{
    char why[200];
    double number;
    if (abci_setting_parse(&abci_setting_table[ABCI_SET_CHUNK], text, &number, why, sizeof why) != ABC_OK || number < (double)low)
        return false;
    *out = (uint64_t)number;
    return true;
}

static bool take_ranks(const char *text, struct tune_args *a)
{
    a->nruns = 0;
    for (char *end; a->nruns < TUNE_RUNS; text = end + 1) {
        long n = strtol(text, &end, 10);
        if (end == text || n < 2 || n > MOST_RANKS || (*end != 0 && *end != ','))
            return false;
        a->ranks[a->nruns++] = (int)n;
        if (*end == 0)
            return true;
    }
    return false;
}

static bool take_collectives(const char *text, unsigned *mask)
{
    char copy[128], *state = NULL;
    *mask = 0;
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy)
        return false;
    for (char *word = strtok_r(copy, ",", &state); word; word = strtok_r(NULL, ",", &state)) {
        unsigned found = strcmp(word, "all") == 0 ? (1u << ABC_BARRIER) - 1 : 0;
        for (int k = 0; k < ABC_BARRIER; k++)
            found |= strcmp(word, abc_collective_name((abc_collective)k)) == 0 ? 1u << k : 0;
        if (found == 0)
            return false;
        *mask |= found;
    }
    return *mask != 0;
}

static bool take_memory(const char *text, unsigned *mask)
{
    *mask = strcmp(text, "private") == 0 ? BENCH_PRIVATE
            : strcmp(text, "arena") == 0 ? BENCH_ARENA
            : strcmp(text, "both") == 0  ? BENCH_PRIVATE | BENCH_ARENA
                                         : 0;
    return *mask != 0;
}

static bool take_margin(const char *text, double *margin)
{
    char *end;
    double percent = strtod(text, &end);
    *margin = percent / 100;
    return end != text && *end == 0 && percent >= 0 && percent <= 90;
}

enum { FLAG_OUT = 256, FLAG_QUICK, FLAG_MEM, FLAG_MARGIN, FLAG_CSV, FLAG_PIN, FLAG_JOB };

/* What the flag's value must be, or NULL when it is. */
static const char *take_flag(struct tune_args *a, int flag, const char *value)
{
    switch (flag) {
    case 'n':
        return take_ranks(value, a) ? NULL : "-n must be numbers of ranks from 2 to 64, up to 8 with commas, such as 2,4,8";
    case 'c':
        return take_collectives(value, &a->collectives) ? NULL : "-c knows allreduce, reduce_scatter, allgather, broadcast and all";
    case 'b':
        return take_size(value, 4, &a->begin) ? NULL : "-b must be a size from 4 to 1G, such as 8, 64K or 8M";
    case 'e':
        return take_size(value, 4, &a->end) ? NULL : "-e must be a size from 4 to 1G, such as 8, 64K or 8M";
    case 'f':
        return take_size(value, 2, &a->factor) && a->factor <= 1024 ? NULL : "-f must be a factor from 2 to 1024";
    case FLAG_MEM:
        return take_memory(value, &a->memory) ? NULL : "--mem must be private, arena or both";
    case FLAG_MARGIN:
        return take_margin(value, &a->margin) ? NULL : "--margin must be 0 to 90 percent";
    case FLAG_OUT:
        a->out = value;
        return value[0] ? NULL : "--out must name a file";
    case FLAG_CSV:
        a->csv = value;
        return NULL;
    default:
        *(flag == FLAG_QUICK ? &a->quick : flag == FLAG_PIN ? &a->pin : &a->job) = true;
        return NULL;
    }
}

/* Returns 0 to go on, -1 when help was given, or the exit code of a wrong command line. */
static int parse(int argc, char **argv, struct tune_args *a)
{
    static const struct option options[] = {{"out", required_argument, NULL, FLAG_OUT},
                                            {"quick", no_argument, NULL, FLAG_QUICK},
                                            {"mem", required_argument, NULL, FLAG_MEM},
                                            {"margin", required_argument, NULL, FLAG_MARGIN},
                                            {"csv", required_argument, NULL, FLAG_CSV},
                                            {"pin", no_argument, NULL, FLAG_PIN},
                                            {"job", no_argument, NULL, FLAG_JOB},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    *a = (struct tune_args){.ranks = {2}, .nruns = 1, .out = "abcomm-tuning.json", .begin = 8, .end = 32u << 20, .margin = 0.05};
    a->collectives = (1u << ABC_BARRIER) - 1;
    a->memory = BENCH_PRIVATE | BENCH_ARENA;
    opterr = 0;
    for (int flag; (flag = getopt_long(argc, argv, ":n:c:b:e:f:h", options, NULL)) != -1;) {
        if (flag == 'h') {
            print_usage();
            return -1;
        }
        if (flag == ':')
            return tool_misuse("tune", "%s needs a value", argv[optind - 1]);
        if (flag == '?')
            return tool_misuse("tune", "unknown flag '%s'", argv[optind - 1]);
        const char *wrong = take_flag(a, flag, optarg);
        if (wrong)
            return tool_misuse("tune", "%s, not '%s'", wrong, optarg);
    }
    if (optind < argc)
        return tool_misuse("tune", "unexpected argument '%s'", argv[optind]);
    if (a->end < a->begin)
        return tool_misuse("tune", "-e is less than -b");
    if (a->factor == 0)
        a->factor = a->quick ? 16 : 4;
    return 0;
}

/* ---- A rank ---- */

static int share_by_broadcast(void *comm, void *data, size_t bytes)
{
    return abc_broadcast(data, data, bytes / 4, ABC_I32, 0, comm);
}

static int be_rank(const struct tune_args *a)
{
    struct tune_job job = {.args = a};
    if (abc_comm_create(NULL, &job.comm) != ABC_OK) {
        fprintf(stderr, "abcomm tune: %s\n", abc_last_error());
        return 1;
    }
    job.rank = abc_comm_rank(job.comm);
    job.nranks = abc_comm_size(job.comm);
    int code = 1;
    if (bench_frame_open(&job.frame, job.rank, job.nranks, a->pin, share_by_broadcast, job.comm) == 0) {
        int opened = tune_measure_handoff(&job, &job.handoff);
        if (job.rank == 0 && opened == 0)
            opened = tune_file_open(&job);
        if (bench_frame_sum(&job.frame, opened != 0) == 0) /* all go on or none */
            code = tune_measure_all(&job) == 0 && abc_barrier(job.comm) == ABC_OK ? 0 : 1;
        if (job.file && tune_file_close(&job, code == 0) != 0)
            code = 1;
        bench_frame_close(&job.frame);
    }
    abc_comm_destroy(job.comm);
    return code;
}

/* ---- The command ---- */

/* Start this program again as `ranks` ranks, without what would change the choice by price. Returns its exit code. */
static int run_job(int ranks, int argc, char **argv)
{
    static char self[] = "/proc/self/exe";
    char count[16], path[4096];
    char *head[] = {"abcomm",
                    "run",
                    "-n",
                    count,
                    "--tag-output=no",
                    "--env",
                    "ABCOMM_TUNING=",
                    "--env",
                    "ABCOMM_ALGO=",
                    "--env",
                    "ABCOMM_CHUNK=",
                    "--",
                    path,
                    "tune",
                    "--job"};
    enum { HEAD = sizeof head / sizeof head[0] };
    ssize_t length = readlink(self, path, sizeof path - 1);
    char **all = calloc((size_t)argc + HEAD + 1, sizeof *all);
    if (length < 0 || !all) {
        perror("abcomm tune: cannot start the ranks");
        free(all);
        return 1;
    }
    path[length] = 0;
    snprintf(count, sizeof count, "%d", ranks);
    memcpy(all, head, sizeof head);
    for (int i = 1; i < argc; i++)
        all[HEAD + i - 1] = argv[i];
    pid_t child;
    int error = posix_spawn(&child, path, NULL, NULL, all, environ), state;
    free(all);
    if (error != 0) {
        fprintf(stderr, "abcomm tune: cannot start the ranks: %s\n", strerror(error));
        return 1;
    }
    while (waitpid(child, &state, 0) < 0)
        if (errno != EINTR)
            return 1;
    return WIFEXITED(state) ? WEXITSTATUS(state) : 1;
}

int tool_tune(int argc, char **argv)
{
    struct tune_args a;
    char **kept = calloc((size_t)argc + 1, sizeof *kept); /* getopt moves what is no flag */
    if (kept)
        memcpy(kept, argv, sizeof *kept * (size_t)argc);
    int code = kept ? parse(argc, argv, &a) : 1;
    if (code != 0) {
        free(kept);
        return code < 0 ? 0 : code;
    }
    if (a.job)
        code = be_rank(&a);
    for (int i = 0; !a.job && code == 0 && i < a.nruns; i++) {
        fflush(stdout);
        code = run_job(a.ranks[i], argc, kept);
    }
    free(kept);
    return code;
}
