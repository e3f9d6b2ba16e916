/*
 * tuning.c - reads a tuning file: JSON, one row for each range of sizes in which a measurement has beaten the price. Strict: every
 * key is known, every number is an integer in its range, no two rows overlap, and what is wrong is named by its row. Input is
 * untrusted. Used by comm.c on rank 0 while a communicator is created; choose.c then follows the rows. Allocates; no state.
 */
#include "tune/tuning.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "plan/plan.h"

#define MOST_BYTES (1ll << 47) /* of an operation */
#define MOST_CHUNK (1ll << 30) /* as ABCOMM_CHUNK */

const char *abci_memory_name(int memory)
{
    return memory == ABCI_PRIVATE ? "private" : memory == ABCI_ARENA ? "arena" : "?";
}

/* A parse in progress. */
struct parse {
    char *why;
    size_t capacity;
    int row; /* from 1; 0: not in a row */
};

static bool refuse(const struct parse *p, const char *format, ...) ABCI_PRINTF(2, 3);
static bool refuse(const struct parse *p, const char *format, ...)
{
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (p->row > 0)
        snprintf(p->why, p->capacity, "row %d: %s", p->row, text);
    else
        snprintf(p->why, p->capacity, "%s", text);
    return false;
}

/* Text of the file that may stand in a message. */
struct shown {
    char text[41];
};

static struct shown show(const char *text)
{
    struct shown s;
    abci_text_clean(s.text, sizeof s.text, text);
    return s;
}

/* ---- One row ---- */

static bool keys_known(const struct parse *p, json_t *object, const char *const *known, const char *what)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        bool found = false;
        for (int i = 0; known[i]; i++)
            found |= strcmp(key, known[i]) == 0;
        if (!found)
            return refuse(p, "%s has no key \"%s\"", what, show(key).text);
    }
    return true;
}

static bool integer(const struct parse *p, const json_t *row, const char *key, json_int_t low, json_int_t high, json_int_t *out)
{
    const json_t *value = json_object_get(row, key);
    if (!value)
        return refuse(p, "\"%s\" is missing", key);
    if (!json_is_integer(value) || json_integer_value(value) < low || json_integer_value(value) > high)
        return refuse(p, "\"%s\" must be a whole number from %lld to %lld", key, (long long)low, (long long)high);
    *out = json_integer_value(value);
    return true;
}

/* Same, but it may be missing. */
static bool optional(const struct parse *p, const json_t *row, const char *key, json_int_t low, json_int_t high, json_int_t *out)
{
    return !json_object_get(row, key) || integer(p, row, key, low, high, out);
}

static const char *string(const struct parse *p, const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    if (!text)
        refuse(p, "\"%s\" must be a string", key);
    return text;
}

static bool take_collective(const struct parse *p, const json_t *row, struct abci_tuning_row *out)
{
    const char *name = string(p, row, "collective");
    for (int c = 0; name && c < ABCI_PLANNED; c++)
        if (strcmp(name, abc_collective_name((abc_collective)c)) == 0) {
            out->collective = (uint8_t)c;
            return true;
        }
    return name && refuse(p, "there is no collective \"%s\"", show(name).text);
}

static bool take_memory(const struct parse *p, const json_t *row, struct abci_tuning_row *out)
{
    const char *name = string(p, row, "memory");
    for (int m = 0; name && m < ABCI_MEMORY_COUNT; m++)
        if (strcmp(name, abci_memory_name(m)) == 0) {
            out->memory = (uint8_t)m;
            return true;
        }
    return name && refuse(p, "\"memory\" is \"%s\"; it must be private or arena", show(name).text);
}

static bool take_algorithm(const struct parse *p, const json_t *row, struct abci_tuning_row *out)
{
    char known[200] = "auto";
    const char *name = string(p, row, "algorithm");
    if (!name)
        return false;
    out->algorithm = ABCI_TUNING_AUTO;
    if (strcmp(name, "auto") == 0)
        return true;
    for (int i = 0; abci_algos[i]; i++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, ", %s", abci_algos[i]->name);
        if (strcmp(name, abci_algos[i]->name) != 0)
            continue;
        if (!abci_algo_fits(abci_algos[i], (abc_collective)out->collective, out->ranks))
            return refuse(p, "algorithm %s does not do %s with %d ranks", name,
                          abc_collective_name((abc_collective)out->collective), out->ranks);
        if (abci_algos[i]->direct && out->memory == ABCI_PRIVATE)
            return refuse(p, "algorithm %s is for memory \"arena\"", name);
        out->algorithm = (uint8_t)i;
        return true;
    }
    return refuse(p, "there is no algorithm \"%s\"; known are %s", show(name).text, known);
}

static bool take_row(const struct parse *p, json_t *row, struct abci_tuning_row *out)
{
    static const char *const keys[] = {"collective", "ranks", "memory",    "from_bytes", "to_bytes",
                                       "algorithm",  "chunk", "priced_us", "us",         NULL};
    json_int_t ranks = 0, from = 0, to = MOST_BYTES, chunk = 0;
    memset(out, 0, sizeof *out); /* rows are compared and sent as bytes */
    if (!json_is_object(row))
        return refuse(p, "it is not an object");
    if (!keys_known(p, row, keys, "a row") || !take_collective(p, row, out) || !take_memory(p, row, out) ||
        !integer(p, row, "ranks", 2, ABCI_MAX_RANKS, &ranks) || !integer(p, row, "from_bytes", 0, MOST_BYTES - 1, &from) ||
        !optional(p, row, "to_bytes", 1, MOST_BYTES, &to) || !optional(p, row, "chunk", 0, MOST_CHUNK, &chunk))
        return false;
    if (to <= from)
        return refuse(p, "\"to_bytes\" %lld is not above \"from_bytes\" %lld", (long long)to, (long long)from);
    out->ranks = (uint16_t)ranks;
    out->from = (uint64_t)from;
    out->to = (uint64_t)to;
    out->chunk = (uint64_t)chunk;
    return take_algorithm(p, row, out);
}

/* ---- The file ---- */

static int same_case(const struct abci_tuning_row *a, const struct abci_tuning_row *b)
{
    return a->ranks == b->ranks && a->collective == b->collective && a->memory == b->memory;
}

static int by_place(const void *x, const void *y)
{
    const struct abci_tuning_row *a = x, *b = y;
    int order = (int)a->ranks - (int)b->ranks;
    order = order ? order : (int)a->collective - (int)b->collective;
    order = order ? order : (int)a->memory - (int)b->memory;
    return order ? order : (a->from > b->from) - (a->from < b->from);
}

static bool take_rows(struct parse *p, const json_t *rows, struct abci_tuning *tuning)
{
    if (!json_is_array(rows))
        return refuse(p, "\"rows\" must be a list");
    if (json_array_size(rows) > ABCI_TUNING_ROWS)
        return refuse(p, "there are %zu rows; at most %d are allowed", json_array_size(rows), ABCI_TUNING_ROWS);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        p->row = (int)i + 1;
        if (!take_row(p, json_array_get(rows, i), &tuning->row[i]))
            return false;
    }
    p->row = 0;
    tuning->count = (uint32_t)json_array_size(rows);
    qsort(tuning->row, tuning->count, sizeof tuning->row[0], by_place);
    for (uint32_t i = 1; i < tuning->count; i++) {
        const struct abci_tuning_row *a = &tuning->row[i - 1], *b = &tuning->row[i];
        if (same_case(a, b) && b->from < a->to)
            return refuse(p, "two rows of %s, %d ranks, %s both hold for %llu bytes",
                          abc_collective_name((abc_collective)a->collective), a->ranks, abci_memory_name(a->memory),
                          (unsigned long long)b->from);
    }
    return true;
}

static bool take_file(struct parse *p, json_t *file, struct abci_tuning *tuning)
{
    static const char *const keys[] = {"abcomm_tuning", "machine", "rows", NULL};
    json_int_t version = 0;
    if (!json_is_object(file) || !json_object_get(file, "abcomm_tuning"))
        return refuse(p, "it is no tuning file: the key \"abcomm_tuning\" is missing");
    if (!integer(p, file, "abcomm_tuning", 1, 1000000, &version))
        return false;
    if (version != ABCI_TUNING_VERSION)
        return refuse(p, "it has version %lld, this library reads %d", (long long)version, ABCI_TUNING_VERSION);
    return keys_known(p, file, keys, "a tuning file") && take_rows(p, json_object_get(file, "rows"), tuning);
}

int abci_tuning_parse(const char *text, size_t length, struct abci_tuning *tuning, char *why, size_t capacity)
{
    struct parse p = {why, capacity, 0};
    json_error_t error;
    why[0] = 0;
    tuning->count = 0;
    if (length > ABCI_TUNING_FILE_BYTES) {
        refuse(&p, "it is longer than %u bytes", ABCI_TUNING_FILE_BYTES);
        return ABC_ERR_ARGUMENT;
    }
    json_t *file = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!file)
        refuse(&p, "it is not JSON: line %d: %s", error.line, show(error.text).text);
    bool ok = file && take_file(&p, file, tuning);
    json_decref(file);
    if (!ok)
        tuning->count = 0;
    return ok ? ABC_OK : ABC_ERR_ARGUMENT;
}

#define REMEDY "make a new one with abcomm tune, or unset ABCOMM_TUNING"

/* All of a regular file. A FIFO would let the creation hang; a file without end would fill the memory. */
static int read_file(const char *path, char *text, size_t *length)
{
    struct stat st;
    int fd = abci_fault("open tuning file") ? (errno = EMFILE, -1) : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return abci_error_errno(ABC_ERR_ARGUMENT, "tuning file %s cannot be opened", path);
    int status = fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)
                     ? abci_error(ABC_ERR_ARGUMENT, "tuning file %s is not a regular file; " REMEDY, path)
                     : ABC_OK;
    *length = 0;
    for (ssize_t got = 1; status == ABC_OK && got > 0 && *length <= ABCI_TUNING_FILE_BYTES;) {
        got = abci_fault("read tuning file") ? -1 : read(fd, text + *length, ABCI_TUNING_FILE_BYTES + 1 - *length);
        if (got > 0)
            *length += (size_t)got;
        else if (got < 0 && errno == EINTR)
            got = 1;
        else if (got < 0)
            status = abci_error_errno(ABC_ERR_ARGUMENT, "tuning file %s cannot be read", path);
    }
    close(fd);
    return status;
}

int abci_tuning_load(const char *path, struct abci_tuning *tuning)
{
    char why[320], *text = abci_alloc(ABCI_TUNING_FILE_BYTES + 1);
    size_t length = 0;
    if (!text)
        return abci_error(ABC_ERR_MEMORY, "no memory to read tuning file %s", path);
    int status = read_file(path, text, &length);
    if (status == ABC_OK && abci_tuning_parse(text, length, tuning, why, sizeof why) != ABC_OK)
        status = abci_error(ABC_ERR_ARGUMENT, "tuning file %s: %s; " REMEDY, path, why);
    abci_free(text);
    return status;
}

bool abci_tuning_sound(const struct abci_tuning *tuning)
{
    int algos = 0;
    while (abci_algos[algos])
        algos++;
    if (tuning->count > ABCI_TUNING_ROWS)
        return false;
    for (uint32_t i = 0; i < tuning->count; i++) {
        const struct abci_tuning_row *r = &tuning->row[i];
        bool known = r->algorithm == ABCI_TUNING_AUTO || r->algorithm < algos;
        if (!known || r->collective >= ABCI_PLANNED || r->memory >= ABCI_MEMORY_COUNT || r->from >= r->to || r->chunk > MOST_CHUNK)
            return false;
    }
    return true;
}
