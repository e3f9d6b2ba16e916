/*
 * main.c - the program `abcomm`: finds the subcommand in one table and hands over. A new subcommand is a file, a row here, a
 * declaration in tools.h and a word in meson.build.
 */
#include "tools.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <abcomm/abcomm.h>

#include "base/base.h"

struct tool {
    const char *name;
    const char *summary; /* NULL: not shown by --help */
    int (*run)(int argc, char **argv);
};

static const struct tool tools[] = {
#ifdef HAVE_TOOL_RUN
    {"run", "start a program as N ranks on this machine", tool_run},
#endif
#ifdef HAVE_TOOL_BENCH
    {"bench", "measure a collective and check its results", tool_bench},
#endif
#ifdef HAVE_TOOL_TUNE
    {"tune", "measure what is best here and write a tuning file", tool_tune},
#endif
#ifdef HAVE_TOOL_PLAN
    {"plan", "print, check and price what each rank does", tool_plan},
#endif
#ifdef HAVE_TOOL_INSPECT
    {"inspect", "show where a running or hung rank stands", tool_inspect},
#endif
    {"env", "list every setting: value, source, scope, help", tool_env},
    {"info", "say what the library found on this machine", tool_info},
    {"docs", NULL, tool_docs},
};
#define TOOLS (sizeof tools / sizeof tools[0])

static void print_help(FILE *out)
{
    fprintf(out, "abcomm %s - collectives for data-parallel training\n\nusage: abcomm COMMAND [ARGUMENTS]\n\n", abc_version());
    for (size_t i = 0; i < TOOLS; i++)
        if (tools[i].summary)
            fprintf(out, "  %-8s  %s\n", tools[i].name, tools[i].summary);
    fprintf(out, "\nabcomm COMMAND --help explains one command; abcomm --version prints the version.\n");
}

int tool_misuse(const char *name, const char *format, ...)
{
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fprintf(stderr, "abcomm %s: %s; see abcomm %s --help\n", name, message, name);
    return TOOL_USAGE;
}

static int unknown_command(const char *name)
{
    /* Up to two slips, but not more than half of a short name. */
    int best = 3, limit = (int)strnlen(name, 64) / 2;
    const char *nearest = NULL;
    for (size_t i = 0; i < TOOLS; i++) {
        int distance = abci_text_distance(name, tools[i].name);
        if (tools[i].summary && distance < best && distance <= limit) {
            best = distance;
            nearest = tools[i].name;
        }
    }
    if (nearest)
        fprintf(stderr, "abcomm: unknown command '%s'; did you mean %s?\n", name, nearest);
    else
        fprintf(stderr, "abcomm: unknown command '%s'; abcomm --help lists all\n", name);
    return TOOL_USAGE;
}

/* A full disk or a closed pipe must not look like success. */
static int written(int code)
{
    if (fflush(stdout) == 0 || code != 0)
        return code;
    perror("abcomm: cannot write the output");
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return TOOL_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return written(0);
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("abcomm %s\n", abc_version());
        return written(0);
    }
    for (size_t i = 0; i < TOOLS; i++) {
        if (strcmp(name, tools[i].name) == 0)
            return written(tools[i].run(argc - 1, argv + 1));
    }
    return unknown_command(name);
}
