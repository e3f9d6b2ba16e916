/*
 * tools.h - the subcommands of `abcomm`, one file each, and what they share. A subcommand gets its own name as argv[0] and returns
 * the exit code: 0 success, 1 failure, 2 wrong use.
 */
#ifndef TOOLS_H
#define TOOLS_H

#define TOOL_USAGE 2 /* exit code of a wrong command line */

int tool_run(int argc, char **argv);
int tool_bench(int argc, char **argv);
int tool_tune(int argc, char **argv);
int tool_plan(int argc, char **argv);
int tool_inspect(int argc, char **argv);
int tool_env(int argc, char **argv);
int tool_info(int argc, char **argv);
int tool_docs(int argc, char **argv);

/* Print "abcomm NAME: message" and where help is found to stderr; returns TOOL_USAGE. */
int tool_misuse(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
