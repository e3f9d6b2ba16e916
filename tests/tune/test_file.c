/*
 * test_file.c - tuning files: what is read, what is refused and with which words, and what the chooser makes of the rows: file
 * before price, setting and call before file, and never a sum of floats with other bits than promised.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "tune/choose.h"

#define FILE_OF(rows) "{\"abcomm_tuning\": 1, \"rows\": [" rows "]}"
#define ROW(rest) "{\"collective\": \"allreduce\", \"ranks\": 4, \"memory\": \"private\", " rest "}"

static struct abci_tuning tuning;

static int parse(const char *text, char why[300])
{
    return abci_tuning_parse(text, strlen(text), &tuning, why, 300);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"", "not JSON"},
        {"[1", "not JSON"},
        {"{}", "no tuning file"},
        {"[]", "no tuning file"},
        {"{\"abcomm_tuning\": 2, \"rows\": []}", "version 2"},
        {"{\"abcomm_tuning\": 1}", "\"rows\""},
        {"{\"abcomm_tuning\": 1, \"rows\": [], \"row\": 1}", "no key \"row\""},
        {FILE_OF("7"), "row 1: it is not an object"},
        {FILE_OF(ROW("\"from_bytes\": 0")), "\"algorithm\""},
        {FILE_OF(ROW("\"algorithm\": \"ring\"")), "\"from_bytes\" is missing"},
        {FILE_OF(ROW("\"from_bytes\": -1, \"algorithm\": \"ring\"")), "\"from_bytes\""},
        {FILE_OF(ROW("\"from_bytes\": 1.5, \"algorithm\": \"ring\"")), "\"from_bytes\""},
        {FILE_OF(ROW("\"from_bytes\": NaN, \"algorithm\": \"ring\"")), "not JSON"},
        {FILE_OF(ROW("\"from_bytes\": 1e999, \"algorithm\": \"ring\"")), "not JSON"},
        {FILE_OF(ROW("\"from_bytes\": 8, \"to_bytes\": 8, \"algorithm\": \"ring\"")), "not above"},
        {FILE_OF(ROW("\"from_bytes\": 8, \"algorithm\": \"ring\", \"chunk\": 2147483648")), "\"chunk\""},
        {FILE_OF(ROW("\"from_bytes\": 8, \"algorithm\": \"quickest\"")), "known are auto, oneshot"},
        {FILE_OF(ROW("\"from_bytes\": 8, \"algorithm\": \"ring\"") ", " ROW("\"from_bytes\": 9, \"algorithm\": \"ring\"")), "both"},
        {FILE_OF(
             "{\"collective\": \"barrier\", \"ranks\": 4, \"memory\": \"private\", \"from_bytes\": 0, \"algorithm\": \"ring\"}"),
         "does not do barrier"},
        {FILE_OF(
             "{\"collective\": \"allreduce\", \"ranks\": 1, \"memory\": \"private\", \"from_bytes\": 0, \"algorithm\": \"ring\"}"),
         "\"ranks\""},
        {FILE_OF("{\"collective\": \"all\", \"ranks\": 4, \"memory\": \"private\", \"from_bytes\": 0, \"algorithm\": \"ring\"}"),
         "no collective \"all\""},
        {FILE_OF("{\"collective\": \"allreduce\", \"ranks\": 4, \"memory\": \"gpu\", \"from_bytes\": 0, \"algorithm\": \"ring\"}"),
         "private or arena"},
    };
    char why[300];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (parse(cases[i].text, why) == ABC_OK || !strstr(why, cases[i].word) || tuning.count != 0)
            fail_msg("%s: \"%s\" instead of \"%s\"", cases[i].text, why, cases[i].word);
    }
}

/* More rows than fit, more bytes than a tuning file has, and files that are none. */
static void test_limits(void **state)
{
    char why[300], path[] = "/tmp/abcomm-tuning-XXXXXX";
    (void)state;
    size_t room = ABCI_TUNING_FILE_BYTES, at = 0;
    char *text = malloc(room);
    at += (size_t)snprintf(text, room, "{\"abcomm_tuning\": 1, \"rows\": [");
    for (int i = 0; i <= ABCI_TUNING_ROWS; i++)
        at += (size_t)snprintf(text + at, room - at, "%s%d", i ? "," : "", i);
    snprintf(text + at, room - at, "]}");
    assert_int_not_equal(parse(text, why), ABC_OK);
    assert_non_null(strstr(why, "1025 rows"));
    free(text);

    int fd = mkstemp(path);
    assert_true(fd >= 0 && ftruncate(fd, 1 << 30) == 0); /* a hole of 1 GB */
    assert_int_equal(abci_tuning_load(path, &tuning), ABC_ERR_ARGUMENT);
    assert_non_null(strstr(abci_error_text(), "longer than"));
    assert_non_null(strstr(abci_error_text(), "abcomm tune"));
    close(fd);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(abci_tuning_load(path, &tuning), ABC_ERR_ARGUMENT); /* and does not wait for a writer */
    assert_non_null(strstr(abci_error_text(), "not a regular file"));
    unlink(path);
    assert_int_equal(abci_tuning_load(path, &tuning), ABC_ERR_ARGUMENT);
    assert_non_null(strstr(abci_error_text(), "cannot be opened"));
    assert_int_equal(abci_tuning_load("/tmp", &tuning), ABC_ERR_ARGUMENT);
}

/* ---- What the chooser makes of it ---- */

static const struct abci_price_constants usual = {
    .hand_off = 0.2e-6, .step = 0.03e-6, .copy = 0.08e-9, .read = 0.12e-9, .reduce = 0.05e-9, .crowding = 1};

static struct abci_chooser *chooser_of(const char *forced, uint64_t chunk)
{
    struct abci_chooser *chooser;
    const struct abci_chooser_config config = {
        .rank = 2, .nranks = 4, .constants = &usual, .forced = forced, .chunk = chunk, .tuning = &tuning};
    assert_int_equal(abci_chooser_open(&config, &chooser), ABC_OK);
    return chooser;
}

static void expect(struct abci_chooser *chooser, struct abci_wish wish, const char *name, uint64_t chunk, enum abci_why why)
{
    struct abci_choice choice;
    assert_int_equal(abci_choose(chooser, &wish, &choice), ABC_OK);
    if (name)
        assert_string_equal(choice.run->plan->name, name);
    if (chunk)
        assert_int_equal(choice.chunk, chunk);
    if (choice.why != why)
        fail_msg("%llu bytes: %s by %s, not by %s", (unsigned long long)wish.bytes, choice.run->plan->name,
                 abci_why_name(choice.why), abci_why_name(why));
}

static void test_rows(void **state)
{
    char why[300];
    (void)state;
    assert_int_equal(
        parse(
            FILE_OF(ROW("\"from_bytes\": 65536, \"algorithm\": \"auto\", \"chunk\": 4096") ", " ROW(
                "\"from_bytes\": 1000, \"to_bytes\": 2000, \"algorithm\": \"ring\", \"chunk\": 65536") ", "
                                                                                                       "{\"collective\": "
                                                                                                       "\"allreduce\", \"ranks\": "
                                                                                                       "3, \"memory\": "
                                                                                                       "\"private\", "
                                                                                                       "\"from_bytes\": 0, "
                                                                                                       "\"algorithm\": \"chain\"}, "
                                                                                                       "{\"collective\": "
                                                                                                       "\"allreduce\", \"ranks\": "
                                                                                                       "4, \"memory\": \"arena\", "
                                                                                                       "\"from_bytes\": 8, "
                                                                                                       "\"algorithm\": "
                                                                                                       "\"recdbl\"}"),
            why),
        ABC_OK);
    struct abci_chooser *c = chooser_of("", 0);
    struct abci_wish w = {.collective = ABC_ALLREDUCE, .bytes = 1000};
    expect(c, w, "ring", 65536, ABCI_BY_FILE);
    w.bytes = 1999;
    expect(c, w, "ring", 65536, ABCI_BY_FILE);
    w.bytes = 999;
    expect(c, w, NULL, 1 << 20, ABCI_BY_PRICE);
    w.bytes = 2000;
    expect(c, w, NULL, 1 << 20, ABCI_BY_PRICE);
    w.bytes = 1ull << 40;
    expect(c, w, NULL, 4096, ABCI_BY_FILE);
    w.arena = true;
    expect(c, w, "recdbl", 1 << 20, ABCI_BY_FILE);
    w.bytes = 7;
    expect(c, w, NULL, 0, ABCI_BY_PRICE);
    w.collective = ABC_ALLGATHER;
    expect(c, w, NULL, 0, ABCI_BY_PRICE);
    /* A ring adds in another order: no sum of floats, and nothing that does not commute. */
    w = (struct abci_wish){.collective = ABC_ALLREDUCE, .bytes = 1500, .one_rounding = true};
    expect(c, w, NULL, 0, ABCI_BY_PRICE);
    w = (struct abci_wish){.collective = ABC_ALLREDUCE, .bytes = 1500, .ordered = true};
    expect(c, w, NULL, 0, ABCI_BY_PRICE);
    abci_chooser_close(c);
}

static void test_order(void **state)
{
    char why[300];
    (void)state;
    assert_int_equal(parse(FILE_OF(ROW("\"from_bytes\": 0, \"algorithm\": \"ring\", \"chunk\": 65536")), why), ABC_OK);
    struct abci_wish w = {.collective = ABC_ALLREDUCE, .bytes = 1 << 20};
    struct abci_choice choice;
    struct abci_chooser *c = chooser_of("allreduce:chain@8K", 0);
    expect(c, w, "chain", 8192, ABCI_BY_SETTING);
    w.algorithm = "twoshot@32K";
    expect(c, w, "twoshot", 32768, ABCI_BY_CALL);
    static const char *const wrong[] = {"twoshot@",
                                        "twoshot@0",
                                        "twoshot@x",
                                        "twoshot@2G",
                                        "quickest@4K",
                                        "@4K",
                                        "a-name-of-an-algorithm-that-is-far-too-long-to-be-one"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        w.algorithm = wrong[i];
        assert_int_equal(abci_choose(c, &w, &choice), ABC_ERR_ARGUMENT);
    }
    abci_chooser_close(c);
    c = chooser_of("", 4096);
    w.algorithm = NULL;
    expect(c, w, "ring", 4096, ABCI_BY_FILE);
    abci_chooser_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
