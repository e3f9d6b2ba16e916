/*
 * test_text.c - foreign text made safe to print: no control characters, nothing but whole characters of UTF-8, never beyond the
 * room.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

static void test_clean(void **state)
{
    static const struct {
        const char *from, *to;
    } rows[] = {
        {"", ""},
        {"plain text", "plain text"},
        {"a\nb\x7f\x1b", "a?b??"},
        {"Gr\xc3\xbc\xc3\x9f", "Gr\xc3\xbc\xc3\x9f"},
        {"\xe2\x82\xac\xf0\x9f\x98\x80", "\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\xff\xfe", "??"},
        {"\x80", "?"},
        {"\xc3", "?"},
        {"\xc3-", "?-"},
        {"\xc0\xaf", "??"},           /* a slash in two bytes */
        {"\xe0\x80\xaf", "???"},      /* in three */
        {"\xed\xa0\x80", "???"},      /* half of a pair */
        {"\xf4\x90\x80\x80", "????"}, /* beyond the last */
        {"\xf0\x9f\x98", "???"},      /* cut short */
    };
    char out[32];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        memset(out, 'x', sizeof out);
        abci_text_clean(out, sizeof out, rows[i].from);
        assert_string_equal(out, rows[i].to);
        strcpy(out, rows[i].from); /* in place */
        abci_text_clean(out, sizeof out, out);
        assert_string_equal(out, rows[i].to);
    }
}

static void test_room(void **state)
{
    char out[8] = "xxxxxxx";
    char unended[3] = {'a', 'b', 'c'};
    (void)state;
    abci_text_clean(out, 5, "abc\xe2\x82\xac"); /* a character that does not fit whole */
    assert_string_equal(out, "abc?");
    assert_int_equal(out[5], 'x');
    abci_text_clean(out, 0, "abc");
    assert_int_equal(out[0], 'a');
    abci_text_clean(out, 1, "abc");
    assert_int_equal(out[0], 0);
    abci_text_clean(out, sizeof unended, unended); /* reads no more than it has room for */
    assert_string_equal(out, "ab");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_clean), cmocka_unit_test(test_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
