/*
 * test_error.c - the calling thread's error text, and the public names and texts of statuses, types, operations and collectives.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <abcomm/abcomm.h>

#include "base/base.h"

static void test_text(void **state)
{
    (void)state;
    errno = ENOENT;
    assert_int_equal(abci_error(ABC_ERR_STATE, "request %d is in progress", 7), ABC_ERR_STATE);
    assert_int_equal(errno, ENOENT);
    assert_string_equal(abc_last_error(), "request 7 is in progress; wait for the request, or destroy the communicator first");
    abci_error_prefix("rank %d on host %s: ", 3, "a");
    assert_string_equal(abc_last_error(),
                        "rank 3 on host a: request 7 is in progress; wait for the request, or destroy the communicator first");
    abci_error_clear();
    assert_string_equal(abc_last_error(), "");
}

static void test_errno(void **state)
{
    (void)state;
    errno = EACCES;
    assert_int_equal(abci_error_errno(ABC_ERR_SYSTEM, "open of %s", "x"), ABC_ERR_SYSTEM);
    assert_int_equal(errno, EACCES);
    assert_int_equal(strncmp(abc_last_error(), "open of x: Permission denied; read the system's", 46), 0);
}

/* However long the words, the remedy stays and the text ends. */
static void test_long(void **state)
{
    (void)state;
    char words[3000];
    memset(words, 'w', sizeof words - 1);
    words[sizeof words - 1] = 0;
    abci_error(ABC_ERR_ABORTED, "%s", words);
    assert_non_null(strstr(abc_last_error(), "www...; destroy it and make a new one"));
    assert_int_equal(strlen(abc_last_error()), 1023);
    errno = EACCES;
    abci_error_errno(ABC_ERR_ABORTED, "%s", words);
    assert_non_null(strstr(abc_last_error(), "www...; destroy it and make a new one"));
    abci_error_prefix("%s", words);
    assert_int_equal(strlen(abc_last_error()), 1023);
}

static void test_of_itself(void **state)
{
    (void)state;
    abci_error(ABC_ERR_PEER, "inner");
    abci_error(ABC_ERR_ABORTED, "outer (%s)", abci_error_text());
    assert_int_equal(strncmp(abci_error_text(), "outer (inner; read that rank's", 30), 0);
    /* The remedy of the same status is said once, however often the text is handed on. */
    abci_error(ABC_ERR_ABORTED, "inner");
    abci_error(ABC_ERR_ABORTED, "middle: %s", abci_error_text());
    abci_error(ABC_ERR_ABORTED, "outer: %s", abci_error_text());
    assert_string_equal(abci_error_text(), "outer: middle: inner; destroy it and make a new one");
}

static void *other_thread(void *unused)
{
    (void)unused;
    int empty = abci_error_text()[0] == 0;
    abci_error(ABC_ERR_MEMORY, "other");
    return empty ? (void *)1 : NULL;
}

static void test_by_thread(void **state)
{
    (void)state;
    abci_error(ABC_ERR_STATE, "mine");
    pthread_t thread;
    void *empty = NULL;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, &empty);
    assert_non_null(empty);
    assert_int_equal(strncmp(abci_error_text(), "mine; ", 6), 0);
}

static void test_statuses(void **state)
{
    (void)state;
    size_t rows = 0;
    for (const struct abci_status_row *row; (row = abci_status_at(rows)); rows++) {
        assert_string_equal(abc_status_name(row->value), row->name);
        assert_string_equal(abc_status_text(row->value), row->text);
        assert_string_equal(abc_status_remedy(row->value), row->remedy);
        assert_true(row->text[0] && row->remedy[0]);
    }
    assert_int_equal(rows, 18);
    assert_string_equal(abc_status_name(ABC_ERR_TIMEOUT), "ABC_ERR_TIMEOUT");
    static const int unknown[] = {2, -17, INT_MIN, INT_MAX};
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(abc_status_name(unknown[i]), "ABC_?");
        assert_string_equal(abc_status_text(unknown[i]), "unknown status code");
        assert_true(abc_status_remedy(unknown[i])[0] != 0);
    }
}

static void test_names(void **state)
{
    (void)state;
    static const size_t sizes[ABC_TYPE_COUNT] = {4, 8, 2, 4, 2, 1, 1, 1, 1, 2, 2, 4, 8, 8, 1, 8, 16, 8, 16, 8};
    static const char *const types[ABC_TYPE_COUNT] = {
        "f32", "f64", "bf16", "i32", "f16",  "fp8_e4m3",  "fp8_e5m2",   "i8",      "u8",      "i16",
        "u16", "u32", "i64",  "u64", "bool", "complex64", "complex128", "f32_i32", "f64_i32", "i32_i32"};
    for (int i = 0; i < ABC_TYPE_COUNT; i++) {
        assert_int_equal(abc_type_size((abc_type)i), sizes[i]);
        assert_string_equal(abc_type_name((abc_type)i), types[i]);
    }
    assert_int_equal(abc_type_size((abc_type)-1), 0);
    assert_int_equal(abc_type_size(ABC_TYPE_COUNT), 0);
    assert_string_equal(abc_type_name((abc_type)-1), "?");
    assert_string_equal(abc_op_name(ABC_SUM), "sum");
    assert_string_equal(abc_op_name(ABC_AVG), "avg");
    assert_string_equal(abc_op_name(ABC_OP_COUNT), "?");
    assert_string_equal(abc_op_name(ABC_OP_USER), "user");
    assert_string_equal(abc_op_name((abc_op)127), "user");
    assert_string_equal(abc_op_name(ABC_OP_LIMIT), "?");
    assert_string_equal(abc_op_name((abc_op)-1), "?");
    assert_string_equal(abc_collective_name(ABC_REDUCE_SCATTER), "reduce_scatter");
    assert_string_equal(abc_collective_name(ABC_COLLECTIVE_COUNT), "?");
    assert_string_equal(abc_collective_name((abc_collective)-1), "?");
}

static void test_version(void **state)
{
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", ABC_VERSION_MAJOR, ABC_VERSION_MINOR, ABC_VERSION_PATCH);
    assert_string_equal(abc_version(), text);
    assert_string_equal(abc_version(), PROJECT_VERSION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),      cmocka_unit_test(test_errno),     cmocka_unit_test(test_long),
        cmocka_unit_test(test_of_itself), cmocka_unit_test(test_by_thread), cmocka_unit_test(test_statuses),
        cmocka_unit_test(test_names),     cmocka_unit_test(test_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
