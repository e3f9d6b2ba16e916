/*
 * env.c - `abcomm env`: every setting with its value, where it comes from, scope, unit and help, as a table or as JSON. Prints what
 * a program started from the same shell would use.
 */
#include "tools.h"

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

static const char *scope_name(const struct abci_setting *setting)
{
    return setting->scope == ABCI_SCOPE_JOB ? "job" : "local";
}

static const char *source_name(int id)
{
    return abci_setting_is_set((enum abci_setting_id)id) ? "environment" : "default";
}

static void print_table(void)
{
    int width = 0;
    for (int i = 0; i < ABCI_SETTING_COUNT; i++) {
        int length = (int)strlen(abci_setting_string((enum abci_setting_id)i));
        /* One long value does not push the help off the screen. */
        if (length > width && length <= 24)
            width = length;
    }
    printf("%-22s  %-*s  %-11s  %-5s  %s\n", "name", width, "value", "source", "scope", "help");
    for (int i = 0; i < ABCI_SETTING_COUNT; i++) {
        const struct abci_setting *setting = &abci_setting_table[i];
        const char *value = abci_setting_string((enum abci_setting_id)i);
        printf("%-22s  %-*s  %-11s  %-5s  %s", setting->name, width, value[0] ? value : "-", source_name(i), scope_name(setting),
               setting->help);
        printf(setting->unit[0] ? " [%s]\n" : "%s\n", setting->unit);
    }
    printf("\nscope job: all ranks must have the same value; local: each rank its own\n");
}

static int print_json(void)
{
    json_t *list = json_array();
    for (int i = 0; i < ABCI_SETTING_COUNT; i++) {
        const struct abci_setting *setting = &abci_setting_table[i];
        json_t *row = json_pack("{ss ss ss ss ss ss ss}", "name", setting->name, "value",
                                abci_setting_string((enum abci_setting_id)i), "default", setting->fallback, "source",
                                source_name(i), "scope", scope_name(setting), "unit", setting->unit, "help", setting->help);
        /* Only a value that is not UTF-8 or exhausted memory gets here. */
        if (!row || json_array_append_new(list, row) != 0) {
            fprintf(stderr, "abcomm env: %s cannot be written as JSON; its value must be UTF-8\n", setting->name);
            json_decref(list);
            return 1;
        }
    }
    int failed = json_dumpf(list, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(list);
    return failed ? 1 : 0;
}

int tool_env(int argc, char **argv)
{
    static const struct option options[] = {{"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
    int json = 0;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (c == 'h') {
            printf("usage: abcomm env [--json]\n\nList every setting: name, value, source, scope and help.\n");
            return 0;
        }
        if (c != 'j')
            return tool_misuse("env", "unknown flag '%s'", argv[optind - 1]);
        json = 1;
    }
    if (optind < argc)
        return tool_misuse("env", "unexpected argument '%s'", argv[optind]);
    int status = abci_settings_load();
    int code = 0;
    if (json)
        code = print_json();
    else
        print_table();
    if (status != ABC_OK) {
        fflush(stdout);
        fprintf(stderr, "abcomm env: %s\n", abci_error_text());
        return 1;
    }
    return code;
}
