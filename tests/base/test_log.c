/*
 * test_log.c - the log: form of a line, level, file name with %h and %p, a file that cannot be opened, whole lines from several
 * processes, and that a level that is off costs neither a call nor the arguments.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <regex.h>

#include "base/base.h"
#include "child.h"

static void log_some(FILE *out)
{
    abci_settings_load();
    errno = EXDEV;
    ABCI_LOG(ABCI_LOG_WARN, "comm", 3, "rank %d is late", 2);
    ABCI_LOG(ABCI_LOG_ERROR, "plan", -1, "a\nb");
    fprintf(out, "%d", errno == EXDEV);
}

static void assert_matches(const char *text, const char *pattern)
{
    regex_t regex;
    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
    int miss = regexec(&regex, text, 0, NULL, 0);
    regfree(&regex);
    if (miss)
        fail_msg("'%s' does not match %s", text, pattern);
}

static void test_line(void **state)
{
    (void)state;
    struct child child;
    child_run(CHILD_ENV("PLAIN=1"), log_some, &child);
    assert_matches(child.err, "^[^:]+:([0-9]+):[0-9]+ \\[3\\] abcomm WARN comm: rank 2 is late\n"
                              "[^:]+:[0-9]+:[0-9]+ \\[-\\] abcomm ERROR plan: a\\?b\n$");
    assert_non_null(strstr(child.err, abci_hostname()));
    assert_string_equal(child.out, "1");
}

static int calls;

static int count_call(void)
{
    return ++calls;
}

static void log_levels(FILE *out)
{
    abci_settings_load();
    ABCI_LOG(ABCI_LOG_WARN, "comm", 0, "%d", count_call());
    ABCI_LOG(ABCI_LOG_INFO, "comm", 0, "%d", count_call());
    ABCI_LOG(ABCI_LOG_TRACE, "comm", 0, "%d", count_call());
    fprintf(out, "%d", calls);
}

static void test_levels(void **state)
{
    (void)state;
    struct child child;
    child_run(CHILD_ENV("ABCOMM_DEBUG=NONE"), log_levels, &child);
    assert_string_equal(child.out, "0");
    assert_string_equal(child.err, "");
    child_run(CHILD_ENV("ABCOMM_DEBUG=WARN"), log_levels, &child);
    assert_string_equal(child.out, "1");
    child_run(CHILD_ENV("ABCOMM_DEBUG=TRACE"), log_levels, &child);
    assert_string_equal(child.out, "3");
}

static void log_long(FILE *out)
{
    (void)out;
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    abci_log(ABCI_LOG_WARN, "comm", 0, "%s", text);
    abci_log(ABCI_LOG_WARN, text, 0, "subsystem that leaves no room");
}

static void test_long_line(void **state)
{
    (void)state;
    struct child child;
    child_run(CHILD_ENV("PLAIN=1"), log_long, &child);
    assert_int_equal(child_count(child.err, "xxx...\n"), 2);
    assert_int_equal(child_count(child.err, "\n"), 2);
    assert_in_range(strlen(child.err), 2000, 4096);
}

/* A folder of its own for files of a test. */
static void make_folder(char *folder)
{
    strcpy(folder, "/tmp/abcomm-log-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

static void log_pid(FILE *out)
{
    log_some(out);
    fprintf(out, " %d", (int)getpid());
}

static void test_file(void **state)
{
    (void)state;
    char folder[64], setting[200], path[512];
    make_folder(folder);
    snprintf(setting, sizeof setting, "ABCOMM_DEBUG_FILE=%s/%%h-%%p-%%%%-%%x.log", folder);
    struct child child;
    child_run(CHILD_ENV(setting), log_pid, &child);
    assert_string_equal(child.err, "");
    snprintf(path, sizeof path, "%s/%s-%d-%%-%%x.log", folder, abci_hostname(), atoi(child.out + 2));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char text[1000];
    child_read_back(file, text, sizeof text);
    assert_non_null(strstr(text, "abcomm WARN comm: rank 2 is late\n"));
    unlink(path);
    rmdir(folder);
}

static void test_file_refused(void **state)
{
    (void)state;
    struct child child;
    child_run(CHILD_ENV("ABCOMM_DEBUG_FILE=/nowhere/at/all.log"), log_some, &child);
    assert_int_equal(child_count(child.err, "cannot open log file /nowhere/at/all.log: No such file or directory"), 1);
    assert_non_null(strstr(child.err, "rank 2 is late"));
    static char longest[1100] = "ABCOMM_DEBUG_FILE=";
    for (int i = 0; i < 500; i++)
        strcat(longest, "%h");
    child_run(CHILD_ENV(longest), log_some, &child);
    assert_int_equal(child_count(child.err, "cannot open log file"), 1);
}

#define WRITERS 4
#define LINES 200

static void log_from_processes(FILE *out)
{
    abci_settings_load();
    for (int i = 0; i < WRITERS; i++)
        if (fork() == 0) {
            for (int n = 0; n < LINES; n++)
                abci_log(ABCI_LOG_WARN, "comm", i, "line %d begins %0300d ends", n, i);
            _exit(0);
        }
    int good = 0;
    for (int i = 0, code; i < WRITERS; i++)
        good += wait(&code) > 0 && code == 0;
    fprintf(out, "%d", good);
}

static void test_lines_do_not_mix(void **state)
{
    (void)state;
    char folder[64], setting[200], path[128], line[1000];
    make_folder(folder);
    snprintf(path, sizeof path, "%s/shared.log", folder);
    snprintf(setting, sizeof setting, "ABCOMM_DEBUG_FILE=%s", path);
    struct child child;
    child_run(CHILD_ENV(setting), log_from_processes, &child);
    assert_string_equal(child.out, "4");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    int lines = 0;
    for (; fgets(line, sizeof line, file); lines++)
        assert_matches(line, "^[^:]+:[0-9]+:[0-9]+ \\[[0-3]\\] abcomm WARN comm: line [0-9]+ begins 0+[0-3] ends\n$");
    fclose(file);
    assert_int_equal(lines, WRITERS * LINES);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line), cmocka_unit_test(test_levels),       cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_file), cmocka_unit_test(test_file_refused), cmocka_unit_test(test_lines_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
