/*
 * bench_args.c - the command line of `abcomm bench`: flags as in nccl-tests, plus long ones of our own. Parses and checks; prints
 * only the help. Every refusal names the flag, the value and what is allowed.
 */
#include "bench.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tools.h"

#include "plan/plan.h"

#define MOST_BYTES (1ull << 40)
#define MOST_ITERATIONS 100000
#define MOST_CALLS 1000

enum { FLAG_MEM = 256, FLAG_ALGO, FLAG_JSON, FLAG_PLACE, FLAG_PIN, FLAG_GROUP, FLAG_STARTED, FLAG_CORRUPT };

/* A parse in progress. */
struct parse {
    struct bench_args *args;
    char *why;
    size_t capacity;
    const char *collectives_only; /* a flag that was given and that messages do not have */
};

static int refuse(struct parse *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int refuse(struct parse *p, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(p->why, p->capacity, format, list);
    va_end(list);
    return TOOL_USAGE;
}

/* A whole number with an optional suffix K, M or G; false for anything else. */
static bool parse_number(const char *text, uint64_t low, uint64_t high, bool suffix, uint64_t *value)
{
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    unsigned shift = 0;
    if (suffix && *end != '\0') {
        const char *units = "KMG", *unit = strchr(units, *end & ~0x20);
        if (!unit || *unit == '\0')
            return false;
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
        if (*end == 'B' || *end == 'b')
            end++;
    }
    if (errno != 0 || *end != '\0' || n > high >> shift || n << shift < low)
        return false;
    *value = n << shift;
    return true;
}

static int take_bytes(struct parse *p, char flag, const char *text, uint64_t low, uint64_t *value)
{
    if (parse_number(text, low, MOST_BYTES, true, value))
        return BENCH_RUN;
    return refuse(p, "-%c: '%s' is not a size; give %llu to 1024G, e.g. 8, 64K or 8M", flag, text, (unsigned long long)low);
}

static int take_count(struct parse *p, char flag, const char *text, uint64_t low, uint64_t high, int *value)
{
    uint64_t n;
    if (!parse_number(text, low, high, false, &n))
        return refuse(p, "-%c: '%s' is not a number from %llu to %llu", flag, text, (unsigned long long)low,
                      (unsigned long long)high);
    *value = (int)n;
    return BENCH_RUN;
}

/* Comma-separated names, or all; result is a mask of 1 << index. */
static int take_names(struct parse *p, char flag, const char *text, int count, const char *(*name)(int), unsigned *mask)
{
    char known[256] = "all", copy[256], *state = NULL;
    for (int i = 0; i < count; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), ", %s", name(i));
    snprintf(copy, sizeof copy, "%s", text);
    *mask = 0;
    for (char *word = strtok_r(copy, ",", &state); word; word = strtok_r(NULL, ",", &state)) {
        unsigned found = strcmp(word, "all") == 0 ? (1u << count) - 1 : 0;
        for (int i = 0; i < count; i++)
            found |= strcmp(word, name(i)) == 0 ? 1u << i : 0;
        if (found == 0)
            return refuse(p, "-%c: '%s' is unknown; known are %s", flag, word, known);
        *mask |= found;
    }
    return *mask != 0 ? BENCH_RUN : refuse(p, "-%c: '%s' names nothing; known are %s", flag, text, known);
}

static const char *type_name(int i)
{
    return abc_type_name((abc_type)i);
}

static const char *op_name(int i)
{
    return abc_op_name((abc_op)i);
}

/* The value must be one of the two words or a third that means both. */
static int take_choice(struct parse *p, const char *flag, const char *text, const char *const words[3], unsigned *mask)
{
    for (unsigned i = 0; i < 3; i++)
        if (strcmp(text, words[i]) == 0) {
            *mask = i + 1;
            return BENCH_RUN;
        }
    return refuse(p, "%s: '%s' is unknown; give %s, %s or %s", flag, text, words[0], words[1], words[2]);
}

static int take_collective(struct parse *p, const char *text)
{
    p->args->messages = strcmp(text, "sendrecv") == 0;
    if (p->args->messages)
        return BENCH_RUN;
    for (int i = 0; i < ABCI_PLANNED; i++)
        if (strcmp(text, abc_collective_name((abc_collective)i)) == 0) {
            p->args->collective = (abc_collective)i;
            return BENCH_RUN;
        }
    return refuse(p,
                  "unknown collective '%s'; give allreduce, reduce_scatter, allgather, broadcast, barrier, reduce, gather, "
                  "scatter, alltoall, scan, exscan or sendrecv",
                  text);
}

static int take_root(struct parse *p, const char *text)
{
    if (strcmp(text, "-1") == 0 || strcmp(text, "all") == 0) {
        p->args->root = -1;
        return BENCH_RUN;
    }
    return take_count(p, 'r', text, 0, 1023, &p->args->root);
}

/* How many calls are timed together; one way of it at a time. */
static int take_calls(struct parse *p, const char *flag, const char *text, bool grouped)
{
    uint64_t calls;
    if (p->args->calls > 1 && p->args->grouped != grouped)
        return refuse(p, "--group and --started: calls are in a group or started one by one; leave one of the two out");
    if (!parse_number(text, 2, MOST_CALLS, false, &calls))
        return refuse(p, "%s: '%s' is not a number of calls from 2 to %d", flag, text, MOST_CALLS);
    p->args->calls = (int)calls;
    p->args->grouped = grouped;
    return BENCH_RUN;
}

static int take_flag(struct parse *p, int flag, const char *value)
{
    static const char *const memories[] = {"private", "arena", "both"}, *const places[] = {"0", "1", "both"};
    struct bench_args *a = p->args;
    int number = 0, code;
    p->collectives_only = flag == 'o'            ? "-o"
                          : flag == 'r'          ? "-r"
                          : flag == FLAG_PLACE   ? "--in-place"
                          : flag == FLAG_ALGO    ? "--algo"
                          : flag == FLAG_GROUP   ? "--group"
                          : flag == FLAG_STARTED ? "--started"
                                                 : p->collectives_only;
    switch (flag) {
    case 'b':
        return take_bytes(p, 'b', value, 0, &a->begin);
    case 'e':
        return take_bytes(p, 'e', value, 0, &a->end);
    case 'i':
        return take_bytes(p, 'i', value, 1, &a->step);
    case 'f':
        code = take_count(p, 'f', value, 2, 1024, &number);
        if (code == BENCH_RUN)
            a->factor = (uint64_t)number;
        return code;
    case 'n':
        return take_count(p, 'n', value, 1, MOST_ITERATIONS, &a->iterations);
    case 'w':
        return take_count(p, 'w', value, 0, MOST_ITERATIONS, &a->warmup);
    case 'd':
        return take_names(p, 'd', value, ABC_TYPE_COUNT, type_name, &a->types);
    case 'o':
        return take_names(p, 'o', value, ABC_OP_COUNT, op_name, &a->ops);
    case 'r':
        return take_root(p, value);
    case 'c':
        code = take_count(p, 'c', value, 0, 1, &number);
        if (code == BENCH_RUN)
            a->check = number != 0;
        return code;
    case FLAG_MEM:
        return take_choice(p, "--mem", value, memories, &a->memory);
    case FLAG_PLACE:
        return take_choice(p, "--in-place", value, places, &a->places);
    case FLAG_ALGO:
        a->algorithm = value;
        return BENCH_RUN;
    case FLAG_JSON:
        a->json = value;
        return BENCH_RUN;
    case FLAG_GROUP:
        return take_calls(p, "--group", value, true);
    case FLAG_STARTED:
        return take_calls(p, "--started", value, false);
    case FLAG_PIN:
        a->pin = true;
        return BENCH_RUN;
    default:
        a->corrupt = true;
        return BENCH_RUN;
    }
}

/* Combinations that mean nothing. */
static int check_whole(struct parse *p)
{
    const struct bench_args *a = p->args;
    if (a->messages && p->collectives_only)
        return refuse(p, "%s means nothing for sendrecv; leave it out", p->collectives_only);
    if (a->end < a->begin)
        return refuse(p, "-e %llu is less than -b %llu", (unsigned long long)a->end, (unsigned long long)a->begin);
    if (a->begin == 0 && a->step == 0 && a->end != 0)
        return refuse(p, "-b 0 never grows by a factor; give -i BYTES or a larger -b");
    if (a->corrupt && !a->check)
        return refuse(p, "--corrupt without the check (-c 0) shows nothing");
    return BENCH_RUN;
}

static bool wants_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

int bench_args_parse(struct bench_args *args, int argc, char **argv, char *why, size_t capacity)
{
    static const struct option options[] = {{"mem", required_argument, NULL, FLAG_MEM},
                                            {"algo", required_argument, NULL, FLAG_ALGO},
                                            {"json", required_argument, NULL, FLAG_JSON},
                                            {"in-place", required_argument, NULL, FLAG_PLACE},
                                            {"pin", no_argument, NULL, FLAG_PIN},
                                            {"group", required_argument, NULL, FLAG_GROUP},
                                            {"started", required_argument, NULL, FLAG_STARTED},
                                            {"corrupt", no_argument, NULL, FLAG_CORRUPT},
                                            {0}};
    struct parse p = {.args = args, .why = why, .capacity = capacity};
    *args = (struct bench_args){.begin = 8, .end = 8u << 20, .factor = 4, .iterations = 20, .warmup = 1, .calls = 1};
    args->types = 1u << ABC_F32;
    args->ops = 1u << ABC_SUM;
    args->check = true;
    args->memory = BENCH_PRIVATE;
    args->places = BENCH_OUT_OF_PLACE | BENCH_IN_PLACE;
    if (wants_help(argc, argv))
        return 0;
    if (argc < 2 || argv[1][0] == '-')
        return refuse(&p, "name the collective first: allreduce, reduce_scatter, allgather, broadcast, barrier, reduce, gather, "
                          "scatter, alltoall, scan, exscan or sendrecv");
    int code = take_collective(&p, argv[1]);
    opterr = 0;
    optind = 2;
    for (int flag; code == BENCH_RUN && (flag = getopt_long(argc, argv, ":b:e:i:f:n:w:d:o:r:c:", options, NULL)) != -1;) {
        if (flag == ':')
            return refuse(&p, "%s needs a value", argv[optind - 1]);
        if (flag == '?')
            return optopt ? refuse(&p, "unknown flag '-%c'", optopt) : refuse(&p, "unknown flag '%s'", argv[optind - 1]);
        code = take_flag(&p, flag, optarg);
    }
    if (code != BENCH_RUN)
        return code;
    if (optind < argc)
        return refuse(&p, "unexpected argument '%s'", argv[optind]);
    return check_whole(&p);
}

void bench_args_help(FILE *out)
{
    fputs(
        "usage: abcomm run -n RANKS -- abcomm bench COLLECTIVE [FLAGS]\n\n"
        "Measure a collective and check every result: allreduce, reduce_scatter, allgather, broadcast, barrier, reduce, gather,\n"
        "scatter, alltoall, scan or exscan. sendrecv: messages between two ranks, one way of a ping-pong and both ways at once.\n\n"
        "  -b, -e SIZE        smallest and largest size in bytes, K, M or G (8, 8M)\n"
        "  -f FACTOR          from one size to the next (4)\n"
        "  -i SIZE            or a fixed step\n"
        "  -n, -w COUNT       timed calls a size (20), untimed calls before them (1)\n"
        "  -d TYPES           f32, bf16, f16, i8 and all else that `abcomm info` lists, several with commas, or all (f32)\n"
        "  -o OPERATIONS      sum, min, max, avg, several with commas, or all (sum)\n"
        "  -r ROOT            of broadcast, reduce, gather and scatter; -1: each in turn (0)\n"
        "  -c 0|1             check the results (1)\n"
        "  --mem MEMORY       private, arena (abc_mem_alloc) or both (private)\n"
        "  --in-place PLACE   0, 1 or both (both)\n"
        "  --algo NAME        an algorithm of `abcomm plan --list` instead of the choice by price\n"
        "  --group N          N calls in a group, each with buffers of its own; a time is that of the whole group\n"
        "  --started N        the same N calls started one after another, then waited for\n"
        "  --json FILE        the numbers as JSON too; -: instead of the table\n"
        "  --pin              rank r stays on CPU r modulo the allowed ones\n\n"
        "Sizes count as in nccl-tests: the whole vector for allreduce, broadcast, reduce and scans, else the larger of the two\n"
        "buffers, which all ranks' blocks make up. Before each call every rank writes its whole input anew, after it every rank "
        "reads its whole\n"
        "output; one rank starts up to 1 us late. A time runs from the last start to the last end over the ranks. `time` is the\n"
        "mean; p50 and p99 stand at the end of the row, then the bare hand-off: all ranks exchange one flag, nothing else.\n",
        out);
}
