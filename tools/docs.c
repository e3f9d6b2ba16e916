/*
 * docs.c - `abcomm docs errors|settings`: the pages docs/errors.md and docs/settings.md, printed from the tables that the library
 * is compiled from. Not shown by --help: the build's own tool. A test compares the pages with what this prints.
 */
#include "tools.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

/* A cell of a table: a bar would end it. */
static void print_cell(const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            putchar('\\');
        putchar(*text);
    }
}

static void print_errors(void)
{
    printf("# Errors\n\n"
           "Every call returns one of these codes. 0 is success, positive is progress, negative is an error. Values never change.\n"
           "`abc_status_text` and `abc_status_remedy` give the two texts; `abc_last_error` says what happened in this case, with\n"
           "rank, host and values. Errors that are found before an operation is numbered leave the communicator usable;\n"
           "`abc_comm_status` tells.\n\n"
           "This page is generated from include/abcomm/status.h by `./dev docs`.\n\n"
           "| code | value | what it means | what to do |\n"
           "| --- | ---: | --- | --- |\n");
    const struct abci_status_row *row;
    for (size_t i = 0; (row = abci_status_at(i)); i++) {
        printf("| %s | %d | ", row->name, row->value);
        print_cell(row->text);
        printf(" | ");
        print_cell(row->remedy);
        printf(" |\n");
    }
}

/* What a value may be, for the column "values". */
static void print_values(const struct abci_setting *setting)
{
    switch (setting->type) {
    case ABCI_SETTING_STRING:
        printf("text");
        break;
    case ABCI_SETTING_INT:
        printf("%.0f to %.0f", setting->low, setting->high);
        break;
    case ABCI_SETTING_REAL:
        printf("%g to %.0f", setting->low, setting->high);
        break;
    case ABCI_SETTING_BOOL:
        printf("0 or 1 (no, yes; off, on; false, true)");
        break;
    case ABCI_SETTING_BYTES:
        printf("%.0f to %.0f, or with K, M, G", setting->low, setting->high);
        break;
    case ABCI_SETTING_LEVEL:
        printf("NONE, ERROR, WARN, INFO, DEBUG, TRACE or 0 to 5");
        break;
    case ABCI_SETTING_CHOICE:
        for (const char *c = setting->unit; *c; c++)
            printf(*c == '|' ? ", " : "%c", *c);
        return;
    }
    if (setting->unit[0] && strcmp(setting->unit, "B") != 0)
        printf(" %s", setting->unit);
}

static void print_settings(void)
{
    printf(
        "# Settings\n\n"
        "Environment variables that the library reads, once, when a process first creates a communicator. An empty value counts\n"
        "as not set. A value that does not fit is an error that says what is allowed; an unknown name that begins with `ABCOMM_`\n"
        "gives a warning with the nearest known one. `abcomm env` prints what is in force.\n\n"
        "Scope `job`: all ranks must have the same value, which is compared when a communicator is created. Scope `local`: each\n"
        "rank may have its own.\n\n"
        "This page is generated from src/base/settings.def by `./dev docs`.\n\n"
        "| name | default | values | scope | meaning |\n"
        "| --- | --- | --- | --- | --- |\n");
    for (int i = 0; i < ABCI_SETTING_COUNT; i++) {
        const struct abci_setting *setting = &abci_setting_table[i];
        printf("| %s | %s | ", setting->name, setting->fallback);
        print_values(setting);
        printf(" | %s | ", setting->scope == ABCI_SCOPE_JOB ? "job" : "local");
        print_cell(setting->help);
        printf(" |\n");
    }
}

int tool_docs(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "errors") == 0)
        print_errors();
    else if (argc == 2 && strcmp(argv[1], "settings") == 0)
        print_settings();
    else {
        fprintf(stderr, "usage: abcomm docs errors|settings\n");
        return TOOL_USAGE;
    }
    return 0;
}
