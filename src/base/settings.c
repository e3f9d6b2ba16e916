/*
 * settings.c - the one place that reads the environment: the table of settings.def, its parser and the values. Runs once, in the
 * first call that needs a value; later reads are a pthread_once check and a load. Tells log.c its level and file. Owns the values
 * for the life of the process; never allocates.
 */
#include "base/base.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define PREFIX "ABCOMM_"
#define TEST_PREFIX "ABCOMM_TEST_"

#define ABCI_SETTING_ENUM(id, type, scope, fallback, low, high, unit, help)                                                        \
    {PREFIX #id, ABCI_SETTING_##type, ABCI_SCOPE_##scope, fallback, low, high, unit, help},
const struct abci_setting abci_setting_table[ABCI_SETTING_COUNT] = {
#include "base/settings.def"
};
#undef ABCI_SETTING_ENUM

struct value {
    char text[ABCI_SETTING_TEXT];
    double number;
    bool set;
    const char *from; /* the variable, when set */
};
static struct value values[ABCI_SETTING_COUNT];
static char job_text[ABCI_SETTING_COUNT * (ABCI_SETTING_TEXT + 64)];
static char load_error[512]; /* "" after a load without a bad value */
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

/* ---- Parsing one value ---- */

static bool parse_int(const char *text, double *number)
{
    /* strtoll would pass over leading space. */
    if (!isdigit((unsigned char)text[0]) && text[0] != '-' && text[0] != '+')
        return false;
    char *end;
    *number = (double)strtoll(text, &end, 10); /* overflow saturates, which no range allows */
    return end != text && *end == 0;
}

static bool parse_bytes(const char *text, double *number)
{
    if (!isdigit((unsigned char)text[0]))
        return false;
    char *end;
    *number = (double)strtoull(text, &end, 10);
    static const char suffixes[] = "KMG";
    const char *suffix = *end ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
    if (suffix) {
        *number = ldexp(*number, 10 * (int)(suffix - suffixes + 1));
        end++;
    }
    return *end == 0;
}

static bool parse_real(const char *text, double *number)
{
    /* Plain decimal only: no nan, inf or hexadecimal; and a point whatever the program's locale says. */
    if (text[0] == 0 || strspn(text, "0123456789+-.eE") != strlen(text))
        return false;
    locale_t plain = newlocale(LC_ALL_MASK, "C", NULL);
    if (!plain)
        return false;
    char *end;
    *number = strtod_l(text, &end, plain);
    freelocale(plain);
    return end != text && *end == 0 && isfinite(*number);
}

/* Position of text among words separated by '|', or -1. */
static int find_word(const char *words, const char *text, bool ignore_case)
{
    size_t length = strlen(text);
    int at = 0;
    for (const char *word = words;; at++) {
        size_t n = strcspn(word, "|");
        if (n == length && (ignore_case ? strncasecmp(word, text, n) : strncmp(word, text, n)) == 0)
            return at;
        if (word[n] == 0)
            return -1;
        word += n + 1;
    }
}

static bool parse_word(const char *words, const char *text, bool ignore_case, double *number)
{
    *number = find_word(words, text, ignore_case);
    return *number >= 0;
}

#define BOOL_WORDS "0|1|no|yes|off|on|false|true"
#define LEVEL_WORDS "NONE|ERROR|WARN|INFO|DEBUG|TRACE"

static bool parse_level(const char *text, double *number)
{
    return parse_word(LEVEL_WORDS, text, true, number) || parse_word("0|1|2|3|4|5", text, false, number);
}

static bool parse_string(const char *text, double *number)
{
    *number = 0;
    if (strlen(text) >= ABCI_SETTING_TEXT)
        return false;
    for (const char *c = text; *c; c++)
        if (iscntrl((unsigned char)*c))
            return false;
    return true;
}

static bool parse_any(const struct abci_setting *setting, const char *text, double *number)
{
    switch (setting->type) {
    case ABCI_SETTING_INT:
        return parse_int(text, number);
    case ABCI_SETTING_BYTES:
        return parse_bytes(text, number);
    case ABCI_SETTING_REAL:
        return parse_real(text, number);
    case ABCI_SETTING_BOOL:
        if (!parse_word(BOOL_WORDS, text, true, number))
            return false;
        *number = (int)*number & 1; /* the words come in pairs, no before yes */
        return true;
    case ABCI_SETTING_LEVEL:
        return parse_level(text, number);
    case ABCI_SETTING_CHOICE:
        return parse_word(setting->unit, text, false, number);
    case ABCI_SETTING_STRING:
        return parse_string(text, number);
    }
    return false;
}

static bool has_range(const struct abci_setting *setting)
{
    return setting->type == ABCI_SETTING_INT || setting->type == ABCI_SETTING_REAL || setting->type == ABCI_SETTING_BYTES;
}

/* What a value of the setting may be, in words. */
static void describe(const struct abci_setting *setting, char *out, size_t capacity)
{
    const char *space = setting->unit[0] ? " " : "";
    switch (setting->type) {
    case ABCI_SETTING_INT:
        snprintf(out, capacity, "a whole number from %.0f to %.0f%s%s", setting->low, setting->high, space, setting->unit);
        break;
    case ABCI_SETTING_BYTES:
        snprintf(out, capacity, "bytes from %.0f to %.0f, with K, M or G for powers of 1024", setting->low, setting->high);
        break;
    case ABCI_SETTING_REAL:
        snprintf(out, capacity, "a number from %g to %g%s%s", setting->low, setting->high, space, setting->unit);
        break;
    case ABCI_SETTING_BOOL:
        snprintf(out, capacity, "one of %s", BOOL_WORDS);
        break;
    case ABCI_SETTING_LEVEL:
        snprintf(out, capacity, "one of %s or 0 to 5", LEVEL_WORDS);
        break;
    case ABCI_SETTING_CHOICE:
        snprintf(out, capacity, "one of %s", setting->unit);
        break;
    case ABCI_SETTING_STRING:
        snprintf(out, capacity, "text of at most %d bytes without control characters", ABCI_SETTING_TEXT - 1);
        break;
    }
}

int abci_setting_parse(const struct abci_setting *setting, const char *text, double *number, char *why, size_t capacity)
{
    double parsed = 0;
    if (parse_any(setting, text, &parsed) && (!has_range(setting) || (parsed >= setting->low && parsed <= setting->high))) {
        *number = parsed;
        return ABC_OK;
    }
    char shown[41], allowed[160];
    abci_text_clean(shown, sizeof shown, text);
    describe(setting, allowed, sizeof allowed);
    snprintf(why, capacity, "'%s%s' is not allowed; it must be %s", shown, strlen(text) >= sizeof shown ? "..." : "", allowed);
    return ABC_ERR_ARGUMENT;
}

const char *abci_setting_nearest(const char *name)
{
    /* More than three slips, or half of what follows the prefix, is another word. */
    int best = 4, limit = (int)strnlen(name, 64) - (int)strlen(PREFIX);
    const char *nearest = NULL;
    for (int i = 0; i < ABCI_SETTING_COUNT; i++) {
        int distance = abci_text_distance(name, abci_setting_table[i].name);
        if (distance < best && 2 * distance <= limit) {
            best = distance;
            nearest = abci_setting_table[i].name;
        }
    }
    return nearest;
}

const char *abci_setting_test(const char *suffix)
{
    char name[64];
    snprintf(name, sizeof name, TEST_PREFIX "%s", suffix);
    return getenv(name);
}

const char *abci_environment(const char *name)
{
    const char *text = getenv(name);
    return text && text[0] ? text : NULL;
}

/* ---- Loading ---- */

/* Names that users of HCCL know; taken where our own name is not set. The first of a setting goes before the second. */
static const struct {
    enum abci_setting_id id;
    const char *name;
    bool zero_is_never; /* 0 means no limit there */
} foreign[] = {
    {ABCI_SET_SOCKET_IFNAME, "HCCL_SOCKET_IFNAME", false},
    {ABCI_SET_CONNECT_TIMEOUT, "HCCL_CONNECT_TIMEOUT", false},
    {ABCI_SET_TIMEOUT, "HCCL_EXEC_TIMEOUT", true},
    {ABCI_SET_TIMEOUT, "HCCL_TIMEOUT", true}, /* which HCCL itself never reads */
};

/* A foreign value for a setting that has none of its own; numbers above our range become its end. */
static void load_foreign(size_t n)
{
    const struct abci_setting *setting = &abci_setting_table[foreign[n].id];
    struct value *value = &values[foreign[n].id];
    const char *text = abci_environment(foreign[n].name);
    char why[256];
    double number = 0;
    if (!text)
        return;
    if (value->set) {
        ABCI_LOG(ABCI_LOG_WARN, "base", -1, "%s=%.64s holds, %s=%.64s is ignored", value->from, value->text, foreign[n].name, text);
        return;
    }
    bool never = setting->type == ABCI_SETTING_REAL && parse_real(text, &number) &&
                 (number > setting->high || (number == 0 && foreign[n].zero_is_never));
    if (never)
        number = setting->high;
    else if (abci_setting_parse(setting, text, &number, why, sizeof why) != ABC_OK) {
        if (load_error[0] == 0)
            snprintf(load_error, sizeof load_error, "%s=%s", foreign[n].name, why);
        return;
    }
    value->number = number;
    value->set = true;
    value->from = foreign[n].name;
    if (never)
        snprintf(value->text, sizeof value->text, "%g", number);
    else
        snprintf(value->text, sizeof value->text, "%s", text);
}

static void load_one(int id)
{
    const struct abci_setting *setting = &abci_setting_table[id];
    struct value *value = &values[id];
    char why[256];
    const char *text = getenv(setting->name);
    /* `NAME= program` is the shell's way to take a setting back. */
    if (text && text[0]) {
        if (abci_setting_parse(setting, text, &value->number, why, sizeof why) == ABC_OK) {
            value->set = true;
            value->from = setting->name;
            snprintf(value->text, sizeof value->text, "%s", text);
            return;
        }
        if (load_error[0] == 0)
            snprintf(load_error, sizeof load_error, "%s=%s", setting->name, why);
    }
    /* Defaults parse: a test goes through the table. */
    abci_setting_parse(setting, setting->fallback, &value->number, why, sizeof why);
    snprintf(value->text, sizeof value->text, "%s", setting->fallback);
}

static bool is_known(const char *name)
{
    for (int i = 0; i < ABCI_SETTING_COUNT; i++)
        if (strcmp(name, abci_setting_table[i].name) == 0)
            return true;
    return false;
}

static void warn_unknown(void)
{
    for (char **entry = environ; entry && *entry; entry++) {
        if (strncmp(*entry, PREFIX, strlen(PREFIX)) != 0 || strncmp(*entry, TEST_PREFIX, strlen(TEST_PREFIX)) == 0)
            continue;
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        if (is_known(name))
            continue;
        const char *nearest = abci_setting_nearest(name);
        if (nearest)
            ABCI_LOG(ABCI_LOG_WARN, "base", -1, "unknown setting %s is ignored; did you mean %s?", name, nearest);
        else
            ABCI_LOG(ABCI_LOG_WARN, "base", -1, "unknown setting %s is ignored; abcomm env lists all", name);
    }
}

/* Equal values give equal text: numbers are printed from the parsed value. */
static void write_job_text(void)
{
    size_t used = 0;
    for (int i = 0; i < ABCI_SETTING_COUNT; i++) {
        const struct abci_setting *setting = &abci_setting_table[i];
        if (setting->scope != ABCI_SCOPE_JOB)
            continue;
        bool text = setting->type == ABCI_SETTING_STRING || setting->type == ABCI_SETTING_CHOICE;
        char number[40];
        if (setting->type == ABCI_SETTING_REAL)
            snprintf(number, sizeof number, "%.17g", values[i].number);
        else
            snprintf(number, sizeof number, "%" PRId64, (int64_t)values[i].number);
        used += (size_t)snprintf(job_text + used, sizeof job_text - used, "%s=%s\n", setting->name, text ? values[i].text : number);
    }
}

static void load(void)
{
    for (int i = 0; i < ABCI_SETTING_COUNT; i++)
        load_one(i);
    abci_log_open((enum abci_level)values[ABCI_SET_DEBUG].number, values[ABCI_SET_DEBUG_FILE].text);
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        load_foreign(i);
    write_job_text();
    warn_unknown();
    for (int i = 0; i < ABCI_SETTING_COUNT; i++)
        if (values[i].set)
            ABCI_LOG(ABCI_LOG_INFO, "base", -1, "%s=%s from %s", abci_setting_table[i].name, values[i].text,
                     values[i].from == abci_setting_table[i].name ? "the environment" : values[i].from);
}

int abci_settings_load(void)
{
    pthread_once(&load_once, load);
    if (load_error[0])
        return abci_error(ABC_ERR_ARGUMENT, "setting %s", load_error);
    return ABC_OK;
}

/* ---- Values ---- */

static const struct value *loaded(enum abci_setting_id id)
{
    pthread_once(&load_once, load);
    return &values[id];
}

const char *abci_setting_string(enum abci_setting_id id)
{
    return loaded(id)->text;
}

int64_t abci_setting_int(enum abci_setting_id id)
{
    return (int64_t)loaded(id)->number;
}

double abci_setting_real(enum abci_setting_id id)
{
    return loaded(id)->number;
}

bool abci_setting_is_set(enum abci_setting_id id)
{
    return loaded(id)->set;
}

const char *abci_settings_job_text(void)
{
    pthread_once(&load_once, load);
    return job_text;
}

uint64_t abci_settings_hash(void)
{
    /* FNV-1a, 64 bits: no enemy here, only a slip to be noticed. */
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = abci_settings_job_text(); *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    return hash;
}
