/*
 * test_settings.c - the table of settings: parsing of good and bad values, ranges, nearest names, loading once, what is said about
 * unknown names, and the hash over what all ranks must share.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <pthread.h>

#include "base/base.h"
#include "child.h"

static void test_defaults_parse(void **state)
{
    (void)state;
    for (int i = 0; i < ABCI_SETTING_COUNT; i++) {
        const struct abci_setting *setting = &abci_setting_table[i];
        char why[256] = "";
        double number;
        if (abci_setting_parse(setting, setting->fallback, &number, why, sizeof why) != ABC_OK)
            fail_msg("%s: default %s", setting->name, why);
        assert_true(setting->help[0] != 0 && setting->help[strlen(setting->help) - 1] != '.');
        assert_int_equal(strncmp(setting->name, "ABCOMM_", 7), 0);
    }
}

#define BAD -12345.0

static const struct {
    enum abci_setting_id id;
    const char *text;
    double number; /* BAD: refused */
} values[] = {
    {ABCI_SET_PIPELINE, "3", 3},
    {ABCI_SET_PIPELINE, "+3", 3},
    {ABCI_SET_PIPELINE, "0", BAD},
    {ABCI_SET_PIPELINE, "5", BAD},
    {ABCI_SET_PIPELINE, "", BAD},
    {ABCI_SET_PIPELINE, " 3", BAD},
    {ABCI_SET_PIPELINE, "3 ", BAD},
    {ABCI_SET_PIPELINE, "3.0", BAD},
    {ABCI_SET_PIPELINE, "0x3", BAD},
    {ABCI_SET_PIPELINE, "-", BAD},
    {ABCI_SET_SPIN, "-1", -1},
    {ABCI_SET_SPIN, "99999999999999999999999", BAD},
    {ABCI_SET_SPIN, "-99999999999999999999999", BAD},
    {ABCI_SET_CHUNK, "0", 0},
    {ABCI_SET_CHUNK, "4096", 4096},
    {ABCI_SET_CHUNK, "64K", 65536},
    {ABCI_SET_CHUNK, "64k", 65536},
    {ABCI_SET_CHUNK, "4M", 4194304},
    {ABCI_SET_CHUNK, "1G", 1073741824},
    {ABCI_SET_CHUNK, "2G", BAD},
    {ABCI_SET_CHUNK, "4MB", BAD},
    {ABCI_SET_CHUNK, "M", BAD},
    {ABCI_SET_CHUNK, "-4", BAD},
    {ABCI_SET_CHUNK, "18014398509481984K", BAD},
    {ABCI_SET_CHUNK, "1T", BAD},
    {ABCI_SET_TIMEOUT, "1.5", 1.5},
    {ABCI_SET_TIMEOUT, "1e2", 100},
    {ABCI_SET_TIMEOUT, ".5", 0.5},
    {ABCI_SET_TIMEOUT, "0", BAD},
    {ABCI_SET_TIMEOUT, "-1", BAD},
    {ABCI_SET_TIMEOUT, "nan", BAD},
    {ABCI_SET_TIMEOUT, "inf", BAD},
    {ABCI_SET_TIMEOUT, "1e999", BAD},
    {ABCI_SET_TIMEOUT, "0x10", BAD},
    {ABCI_SET_TIMEOUT, "1,5", BAD},
    {ABCI_SET_TIMEOUT, "3s", BAD},
    {ABCI_SET_TIMEOUT, "", BAD},
    {ABCI_SET_PROGRESS, "1", 1},
    {ABCI_SET_PROGRESS, "Yes", 1},
    {ABCI_SET_PROGRESS, "on", 1},
    {ABCI_SET_PROGRESS, "TRUE", 1},
    {ABCI_SET_PROGRESS, "0", 0},
    {ABCI_SET_PROGRESS, "no", 0},
    {ABCI_SET_PROGRESS, "OFF", 0},
    {ABCI_SET_PROGRESS, "false", 0},
    {ABCI_SET_PROGRESS, "2", BAD},
    {ABCI_SET_PROGRESS, "0|1", BAD},
    {ABCI_SET_PROGRESS, "y", BAD},
    {ABCI_SET_DEBUG, "NONE", 0},
    {ABCI_SET_DEBUG, "info", 3},
    {ABCI_SET_DEBUG, "5", 5},
    {ABCI_SET_DEBUG, "6", BAD},
    {ABCI_SET_DEBUG, "loud", BAD},
    {ABCI_SET_PVR, "auto", 0},
    {ABCI_SET_PVR, "off", 2},
    {ABCI_SET_PVR, "of", BAD},
    {ABCI_SET_PVR, "OFF", BAD},
    {ABCI_SET_PVR, "", BAD},
    {ABCI_SET_ALGO, "allreduce:ring", 0},
    {ABCI_SET_ALGO, "", 0},
    {ABCI_SET_ALGO, "a\nb", BAD},
};

static void test_parse(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char why[256] = "";
        double number = BAD;
        int status = abci_setting_parse(&abci_setting_table[values[i].id], values[i].text, &number, why, sizeof why);
        if (number != values[i].number || (status == ABC_OK) != (values[i].number != BAD))
            fail_msg("%s=%s: %f, %s", abci_setting_table[values[i].id].name, values[i].text, number, why);
        if (status != ABC_OK)
            assert_non_null(strstr(why, "must be"));
    }
}

static void test_parse_why(void **state)
{
    (void)state;
    char why[256], small[8], text[2000];
    double number;
    abci_setting_parse(&abci_setting_table[ABCI_SET_PIPELINE], "9", &number, why, sizeof why);
    assert_string_equal(why, "'9' is not allowed; it must be a whole number from 1 to 4");
    abci_setting_parse(&abci_setting_table[ABCI_SET_PVR], "o\x1b[2J", &number, why, sizeof why);
    assert_string_equal(why, "'o?[2J' is not allowed; it must be one of auto|on|off");
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    assert_int_equal(abci_setting_parse(&abci_setting_table[ABCI_SET_ALGO], text, &number, why, sizeof why), ABC_ERR_ARGUMENT);
    assert_non_null(strstr(why, "aaa...' is not allowed"));
    text[ABCI_SETTING_TEXT - 1] = 0;
    assert_int_equal(abci_setting_parse(&abci_setting_table[ABCI_SET_ALGO], text, &number, why, sizeof why), ABC_OK);
    abci_setting_parse(&abci_setting_table[ABCI_SET_PIPELINE], "9", &number, small, sizeof small);
    assert_string_equal(small, "'9' is ");
}

static void test_nearest(void **state)
{
    (void)state;
    assert_string_equal(abci_setting_nearest("ABCOMM_TIMOUT"), "ABCOMM_TIMEOUT");
    assert_string_equal(abci_setting_nearest("ABCOMM_DEBUGFILE"), "ABCOMM_DEBUG_FILE");
    assert_string_equal(abci_setting_nearest("ABCOMM_ALOG"), "ABCOMM_ALGO");
    assert_null(abci_setting_nearest("ABCOMM_COLOUR_OF_SKY"));
    assert_null(abci_setting_nearest("ABCOMM_"));
    assert_null(abci_setting_nearest(""));
    for (int i = 0; i < ABCI_SETTING_COUNT; i++)
        assert_string_equal(abci_setting_nearest(abci_setting_table[i].name), abci_setting_table[i].name);
}

static void test_distance(void **state)
{
    (void)state;
    assert_int_equal(abci_text_distance("", ""), 0);
    assert_int_equal(abci_text_distance("", "abc"), 3);
    assert_int_equal(abci_text_distance("kitten", "sitting"), 3);
    assert_int_equal(abci_text_distance("env", "evn"), 1);
    assert_int_equal(abci_text_distance("ab", "ba"), 1);
    assert_int_equal(abci_text_distance("abcd", "badc"), 2);
    assert_int_equal(abci_text_distance("abc", ""), 3);
    char text[300];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    assert_int_equal(abci_text_distance(text, ""), 63);
}

/* ---- Loading, in a child each time ---- */

static void print_values(FILE *out)
{
    int status = abci_settings_load();
    fprintf(out, "%d %" PRId64 " %g %s %s %d %d\n", status, abci_setting_int(ABCI_SET_CHUNK), abci_setting_real(ABCI_SET_TIMEOUT),
            abci_setting_string(ABCI_SET_PVR), abci_setting_string(ABCI_SET_ALGO), abci_setting_is_set(ABCI_SET_CHUNK),
            abci_setting_is_set(ABCI_SET_TIMEOUT));
    if (status != ABC_OK)
        fprintf(out, "%s\n", abci_error_text());
}

static void test_load(void **state)
{
    (void)state;
    struct child child;
    child_run(CHILD_ENV("ABCOMM_CHUNK=64K", "ABCOMM_PVR=off", "ABCOMM_ALGO=allreduce:ring", "ABCOMM_TIMEOUT="), print_values,
              &child);
    assert_string_equal(child.out, "0 65536 300 off allreduce:ring 1 0\n");
    assert_string_equal(child.err, "");
}

static void test_load_bad_value(void **state)
{
    (void)state;
    struct child child;
    child_run(CHILD_ENV("ABCOMM_CHUNK=lots", "ABCOMM_TIMEOUT=5"), print_values, &child);
    assert_int_equal(child.code, 0);
    assert_int_equal(
        strncmp(child.out, "-1 0 5 auto  0 1\nsetting ABCOMM_CHUNK='lots' is not allowed; it must be bytes from 0 to", 78), 0);
}

static void *load_in_thread(void *text)
{
    abci_settings_load();
    snprintf(text, 200, "%s", abci_error_text());
    return NULL;
}

static void load_from_threads(FILE *out)
{
    pthread_t threads[8];
    static char texts[8][200];
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, load_in_thread, texts[i]);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 8; i++)
        fprintf(out, "%s\n", texts[i]);
}

/* Every thread hears of the bad value; the environment is read and shown once. */
static void test_load_threads(void **state)
{
    (void)state;
    struct child child;
    child_run(CHILD_ENV("ABCOMM_CHUNK=lots", "ABCOMM_DEBUG=INFO", "ABCOMM_SPIN=7"), load_from_threads, &child);
    assert_int_equal(child_count(child.out, "ABCOMM_CHUNK='lots'"), 8);
    assert_int_equal(child_count(child.err, "INFO base: ABCOMM_SPIN=7 from the environment"), 1);
}

static void test_unknown_names(void **state)
{
    (void)state;
    struct child child;
    child_run(CHILD_ENV("ABCOMM_TIMOUT=3", "ABCOMM_COLOUR_OF_SKY=blue", "ABCOMM_TEST_ANYTHING=1", "ABCOMMON=1"), print_values,
              &child);
    assert_non_null(strstr(child.err, "WARN base: unknown setting ABCOMM_TIMOUT is ignored; did you mean ABCOMM_TIMEOUT?\n"));
    assert_non_null(strstr(child.err, "WARN base: unknown setting ABCOMM_COLOUR_OF_SKY is ignored; abcomm env lists all\n"));
    assert_int_equal(child_count(child.err, "\n"), 2);
    child_run(CHILD_ENV("ABCOMM_TIMOUT=3", "ABCOMM_DEBUG=NONE"), print_values, &child);
    assert_string_equal(child.err, "");
}

static void print_hash(FILE *out)
{
    fprintf(out, "%016" PRIx64 "\n%s", abci_settings_hash(), abci_settings_job_text());
}

static void hash_of(char *const *environment, char *hash)
{
    struct child child;
    child_run(environment, print_hash, &child);
    snprintf(hash, 17, "%.16s", child.out);
}

static void test_hash(void **state)
{
    (void)state;
    char plain[17], again[17], local[17], chunk[17], same[17], algo[17];
    hash_of(CHILD_ENV("PLAIN=1"), plain);
    hash_of(CHILD_ENV("PLAIN=2"), again);
    hash_of(CHILD_ENV("ABCOMM_SPIN=5", "ABCOMM_TIMEOUT=7"), local);
    hash_of(CHILD_ENV("ABCOMM_CHUNK=1M"), chunk);
    hash_of(CHILD_ENV("ABCOMM_CHUNK=1048576"), same);
    hash_of(CHILD_ENV("ABCOMM_ALGO=allreduce:ring"), algo);
    assert_string_equal(plain, again);
    assert_string_equal(plain, local);
    assert_string_equal(chunk, same);
    assert_string_not_equal(plain, chunk);
    assert_string_not_equal(plain, algo);
    assert_string_not_equal(chunk, algo);
    struct child child;
    child_run(CHILD_ENV("ABCOMM_CHUNK=1M"), print_hash, &child);
    assert_string_equal(child.out + 17, "ABCOMM_ALGO=\nABCOMM_CHUNK=1048576\nABCOMM_DETERMINISTIC=false\n");
}

static void print_test_value(FILE *out)
{
    const char *value = abci_setting_test("STOP");
    fprintf(out, "%s %d", value ? value : "none", abci_setting_test("OTHER") == NULL);
}

static void test_test_value(void **state)
{
    (void)state;
    struct child child;
    child_run(CHILD_ENV("ABCOMM_TEST_STOP=3"), print_test_value, &child);
    assert_string_equal(child.out, "3 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_parse), cmocka_unit_test(test_parse),        cmocka_unit_test(test_parse_why),
        cmocka_unit_test(test_nearest),        cmocka_unit_test(test_distance),     cmocka_unit_test(test_load),
        cmocka_unit_test(test_load_bad_value), cmocka_unit_test(test_load_threads), cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_hash),           cmocka_unit_test(test_test_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
