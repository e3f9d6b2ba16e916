/*
 * plan.c - `abcomm plan`: shows what each rank does in a collective, proves it and prices it; or does the same with a plan from a
 * file. A thin shell around src/plan/: printing, checking and pricing live there.
 */
#include "tools.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "plan/plan.h"
#include "tune/choose.h"

#define MAX_FILE (256l << 20)

struct options {
    const char *collective, *algo, *file;
    int ranks, root, rank; /* rank -1: all */
    bool list, json, check, price;
    double bytes;
};

/* Of a usual server with one CPU a rank: only for comparing plans here; communicators measure their own. */
static const struct abci_price_constants typical = {
    .hand_off = 0.15e-6, .step = 0.03e-6, .copy = 0.08e-9, .read = 0.12e-9, .reduce = 0.05e-9, .crowding = 1};

static void print_usage(FILE *out)
{
    fputs("usage: abcomm plan COLLECTIVE [--algo NAME] [--ranks N] [--root R] [--rank R] [--json] [--check] [--price BYTES]\n"
          "       abcomm plan --file FILE [--rank R] [--json] [--check] [--price BYTES]\n"
          "       abcomm plan --list\n\n"
          "COLLECTIVE is allreduce, reduce_scatter, allgather, broadcast, barrier, reduce, gather, scatter, alltoall, scan or\n"
          "exscan. Without --algo all algorithms that do it are compared, and what is chosen at which size is shown, by price or "
          "by the file that ABCOMM_TUNING names.\n\n"
          "  --algo NAME    print the plan of this algorithm\n"
          "  --ranks N      number of ranks (default 4)\n"
          "  --root R       root of a broadcast, reduce, gather or scatter (default 0)\n"
          "  --rank R       print only this rank's steps\n"
          "  --json         print the plan as JSON, which --file and abc_comm_load_plan read\n"
          "  --check        only prove the plan: exit code 1 when it is wrong\n"
          "  --price BYTES  only say what an operation of so many bytes costs on a typical server\n"
          "  --file FILE    read the plan from a JSON file\n"
          "  --list         list the algorithms\n",
          out);
}

static bool number_of(const char *text, double low, double high, double *number)
{
    char *end;
    errno = 0;
    *number = strtod(text, &end);
    return end != text && *end == 0 && errno == 0 && *number >= low && *number <= high;
}

static bool count_of(const char *name, const char *text, int low, int high, int *count)
{
    double number;
    if (!number_of(text, low, high, &number) || number != (double)(int)number) {
        tool_misuse("plan", "%s must be a whole number from %d to %d", name, low, high);
        return false;
    }
    *count = (int)number;
    return true;
}

static int collective_of(const char *name)
{
    for (int k = 0; k < ABCI_PLANNED; k++)
        if (strcmp(name, abc_collective_name((abc_collective)k)) == 0)
            return k;
    return -1;
}

/* Returns 0, or the exit code to stop with, -1 for success. */
static int parse(int argc, char **argv, struct options *o)
{
    static const struct option long_options[] = {{"algo", required_argument, NULL, 'a'},
                                                 {"ranks", required_argument, NULL, 'n'},
                                                 {"root", required_argument, NULL, 'r'},
                                                 {"rank", required_argument, NULL, 'k'},
                                                 {"json", no_argument, NULL, 'j'},
                                                 {"check", no_argument, NULL, 'c'},
                                                 {"price", required_argument, NULL, 'p'},
                                                 {"file", required_argument, NULL, 'f'},
                                                 {"list", no_argument, NULL, 'l'},
                                                 {"help", no_argument, NULL, 'h'},
                                                 {NULL, 0, NULL, 0}};
    char why[128];
    *o = (struct options){.ranks = 4, .rank = -1};
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":n:h", long_options, NULL)) != -1;) {
        bool ok = true;
        if (c == 'h') {
            print_usage(stdout);
            return -1;
        } else if (c == 'a') {
            o->algo = optarg;
        } else if (c == 'f') {
            o->file = optarg;
        } else if (c == 'n') {
            ok = count_of("--ranks", optarg, 1, ABCI_MAX_RANKS, &o->ranks);
        } else if (c == 'r') {
            ok = count_of("--root", optarg, 0, ABCI_MAX_RANKS - 1, &o->root);
        } else if (c == 'k') {
            ok = count_of("--rank", optarg, 0, ABCI_MAX_RANKS - 1, &o->rank);
        } else if (c == 'p') {
            o->price = true;
            if (!number_of(optarg, 0, 1e15, &o->bytes) &&
                abci_setting_parse(&abci_setting_table[ABCI_SET_CHUNK], optarg, &o->bytes, why, sizeof why) != ABC_OK)
                return tool_misuse("plan", "--price must be a number of bytes, such as 8, 64K or 16M");
        } else if (c == ':' || c == '?') {
            return tool_misuse("plan", c == ':' ? "%s needs a value" : "unknown option %s", argv[optind - 1]);
        } else {
            *(c == 'j' ? &o->json : c == 'c' ? &o->check : &o->list) = true;
        }
        if (!ok)
            return TOOL_USAGE;
    }
    o->collective = optind < argc ? argv[optind++] : NULL;
    if (optind < argc)
        return tool_misuse("plan", "one collective is enough, what is '%s'?", argv[optind]);
    return 0;
}

static int list_algorithms(void)
{
    for (int a = 0; abci_algos[a]; a++) {
        printf("%-9s %s\n%9s ", abci_algos[a]->name, abci_algos[a]->doc, "");
        for (int k = 0; k < ABCI_PLANNED; k++)
            if (abci_algos[a]->collectives & (1u << k))
                printf(" %s", abc_collective_name((abc_collective)k));
        printf("; %s\n", abci_algos[a]->rank_order ? "sums in rank order"
                         : abci_algos[a]->ordered  ? "operands in rank order"
                                                   : "sums in any order");
    }
    return 0;
}

/* What communicators take, with prices of a typical server and the file that ABCOMM_TUNING names. */
static int show_choice(const struct options *o, abc_collective coll)
{
    static struct abci_tuning tuning;
    struct abci_chooser_config config = {.nranks = o->ranks, .constants = &typical, .forced = "", .tuning = &tuning};
    struct abci_chooser *chooser = NULL;
    const char *path = abci_setting_string(ABCI_SET_TUNING);
    bool sums = abci_is(ABCI_REDUCING, coll);
    int status = path[0] ? abci_tuning_load(path, &tuning) : ABC_OK;
    if (status == ABC_OK)
        status = abci_chooser_open(&config, &chooser);
    for (int m = 0; status == ABC_OK && m < ABCI_MEMORY_COUNT; m++) {
        struct abci_wish wish = {.collective = coll, .one_rounding = sums, .arena = m == ABCI_ARENA};
        printf("chosen%s, %s memory on all ranks:\n", sums ? " for sums of floats" : "", abci_memory_name(m));
        status = abci_chooser_print(chooser, &wish, stdout);
    }
    abci_chooser_close(chooser);
    if (status != ABC_OK)
        fprintf(stderr, "abcomm plan: %s\n", abci_error_text());
    return status != ABC_OK;
}

/* One row an algorithm: critical path and price at a few sizes. */
static int compare(const struct options *o, abc_collective coll)
{
    static const double usual[] = {8, 64 << 10, 16 << 20};
    static const char *const usual_name[] = {"8 B", "64 KiB", "16 MiB"};
    const double *sizes = o->price ? &o->bytes : usual;
    int bad = 0, count = o->price ? 1 : 3;
    printf("%s, %d rank%s\n%-10s %6s %14s", abc_collective_name(coll), o->ranks, o->ranks == 1 ? "" : "s", "algorithm", "steps",
           "blocks read");
    for (int i = 0; i < count; i++)
        printf(" %12s", o->price ? "this size" : usual_name[i]);
    printf("   check\n");
    for (int a = 0; abci_algos[a]; a++) {
        struct abci_plan_set set;
        struct abci_check_report report;
        struct abci_price price;
        if (!abci_algo_fits(abci_algos[a], coll, o->ranks))
            continue;
        if (abci_plan_set_build(abci_algos[a], coll, o->ranks, o->root, &set) != ABC_OK) {
            fprintf(stderr, "abcomm plan: %s\n", abci_error_text());
            return 1;
        }
        abci_plan_check(&set, &report);
        abci_plan_price(&set, &typical, &price);
        printf("%-10s %6d %8d of 1/%-3d", abci_algos[a]->name, report.steps, report.blocks, set.plan[0]->nblocks);
        for (int i = 0; i < count; i++)
            printf(" %9.2f us", 1e6 * (price.fixed + sizes[i] * price.per_byte));
        printf("   %s\n", report.status == ABC_OK ? "ok" : report.text);
        bad |= report.status != ABC_OK;
        abci_plan_set_free(&set);
    }
    return bad;
}

/* A whole file as text. */
static char *read_file(const char *path)
{
    FILE *in = fopen(path, "rb");
    char *text = NULL;
    size_t length = 0, room = 1 << 16, got = 1;
    if (!in)
        return NULL;
    for (; got > 0; length += got) {
        if (!text || length == room) {
            char *more = realloc(text, (room *= text ? 2 : 1) + 1);
            if (!more || room > MAX_FILE) {
                errno = EFBIG;
                free(more ? more : text);
                fclose(in);
                return NULL;
            }
            text = more;
        }
        got = fread(text + length, 1, room - length, in);
    }
    text[length] = 0;
    bool whole = !ferror(in);
    fclose(in);
    if (whole)
        return text;
    free(text);
    return NULL;
}

static int load(const struct options *o, struct abci_plan_set *set)
{
    char why[256], *text = read_file(o->file);
    if (!text) {
        fprintf(stderr, "abcomm plan: cannot read %s: %s\n", o->file, strerror(errno));
        return 1;
    }
    int status = abci_plan_parse(text, set, why, sizeof why);
    free(text);
    if (status == ABC_OK)
        return 0;
    fprintf(stderr, "abcomm plan: %s: %s\n", o->file, why);
    return 1;
}

static void print_plan(const struct options *o, const struct abci_plan_set *set)
{
    abci_plan_print_head(stdout, set->plan[0]);
    for (int rank = 0; rank < set->nranks; rank++)
        if (o->rank < 0 || o->rank == rank)
            abci_plan_print(stdout, set->plan[rank]);
}

/* Print as asked, then one line with the proof. */
static int show(const struct options *o, const struct abci_plan_set *set)
{
    struct abci_check_report report;
    if (o->rank >= set->nranks)
        return tool_misuse("plan", "--rank must be below the number of ranks, %d", set->nranks);
    if (o->json) {
        char *text = abci_plan_json(set);
        if (text)
            fputs(text, stdout);
        free(text);
        if (!text || !o->check)
            return text ? 0 : 1;
    } else if (!o->check && !o->price) {
        print_plan(o, set);
    }
    abci_plan_check(set, &report);
    if (report.status != ABC_OK) {
        fflush(stdout);
        fprintf(stderr, "abcomm plan: %s: %s\n", report.status == ABC_ERR_PLAN ? "wrong plan" : "not checked", report.text);
        return 1;
    }
    if (o->json)
        return 0;
    if (o->price) {
        struct abci_price price;
        abci_plan_price(set, &typical, &price);
        printf("%.3f us for %.0f bytes: %.3f us + %.3f us per MiB\n", 1e6 * (price.fixed + o->bytes * price.per_byte), o->bytes,
               1e6 * price.fixed, 1e6 * price.per_byte * (1 << 20));
    }
    printf("critical path: %d reading step%s, %d block%s of 1/%d; checked ok\n", report.steps, report.steps == 1 ? "" : "s",
           report.blocks, report.blocks == 1 ? "" : "s", set->plan[0]->nblocks);
    return 0;
}

/* A plan of a built-in algorithm. */
static int build(const struct options *o, abc_collective coll, struct abci_plan_set *set)
{
    const struct abci_algo *algo = abci_algo_find(o->algo);
    if (!algo)
        return tool_misuse("plan", "no algorithm '%s'; abcomm plan --list shows all", o->algo);
    if (!abci_algo_fits(algo, coll, o->ranks))
        return tool_misuse("plan", "%s does not do %s with %d ranks; abcomm plan --list shows what it does", o->algo,
                           abc_collective_name(coll), o->ranks);
    if (abci_plan_set_build(algo, coll, o->ranks, o->root, set) == ABC_OK)
        return 0;
    fprintf(stderr, "abcomm plan: %s\n", abci_error_text());
    return 1;
}

int tool_plan(int argc, char **argv)
{
    struct options o;
    struct abci_plan_set set = {0};
    int code = parse(argc, argv, &o);
    if (code != 0)
        return code < 0 ? 0 : code;
    if (o.list)
        return list_algorithms();
    if (!o.file == !o.collective)
        return tool_misuse("plan", "give a collective, or a plan with --file");
    int coll = o.collective ? collective_of(o.collective) : 0;
    if (coll < 0)
        return tool_misuse("plan",
                           "no collective '%s'; there are allreduce, reduce_scatter, allgather, broadcast, barrier, reduce, "
                           "gather, scatter, alltoall, scan or exscan",
                           o.collective);
    if (!o.file && o.root >= o.ranks)
        return tool_misuse("plan", "--root must be below the number of ranks, %d", o.ranks);
    if (!o.file && !o.algo) {
        if (o.json || o.rank >= 0)
            return tool_misuse("plan", "--json and --rank need --algo");
        return compare(&o, (abc_collective)coll) | show_choice(&o, (abc_collective)coll);
    }
    code = o.file ? load(&o, &set) : build(&o, (abc_collective)coll, &set);
    if (code == 0)
        code = show(&o, &set);
    abci_plan_set_free(&set);
    return code;
}
