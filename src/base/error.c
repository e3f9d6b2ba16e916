/*
 * error.c - the calling thread's last error as text: "what happened; what to do". The place that decides on an error records it
 * here once; callers pass the status on. Also expands the status table. Owns one 1 KiB buffer a thread; no allocation, no lock.
 */
#include "base/base.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TEXT_SIZE 1024

static _Thread_local char last_text[TEXT_SIZE];

#define STATUS_ROW(name, value, text, remedy) {value, "ABC_" #name, text, remedy},
static const struct abci_status_row status_rows[] = {ABC_STATUS_MAP(STATUS_ROW)};
#define STATUS_ROWS (sizeof status_rows / sizeof status_rows[0])

static const struct abci_status_row unknown_status = {0, "ABC_?", "unknown status code",
                                                      "check that the value came from a call of this library"};

const struct abci_status_row *abci_status_row(int status)
{
    for (size_t i = 0; i < STATUS_ROWS; i++)
        if (status_rows[i].value == status)
            return &status_rows[i];
    return &unknown_status;
}

const struct abci_status_row *abci_status_at(size_t n)
{
    return n < STATUS_ROWS ? &status_rows[n] : NULL;
}

/*
 * Store "what; remedy". A text that is too long loses the end of `what`: the remedy is what the reader needs most. A text that was
 * built from another error of the same status ends with the remedy already.
 */
static void record(int status, char *what)
{
    const char *remedy = abci_status_row(status)->remedy;
    size_t room = TEXT_SIZE - strlen(remedy) - sizeof "; ";
    size_t length = strlen(what), tail = strlen(remedy) + strlen("; ");
    if (length >= tail && strcmp(what + length - tail + 2, remedy) == 0 && memcmp(what + length - tail, "; ", 2) == 0)
        what[length - tail] = 0;
    else if (length > room)
        memcpy(what + room - 3, "...", 4);
    /* `what` is a copy, so a text built from abci_error_text() does not overlap. */
    snprintf(last_text, TEXT_SIZE, "%s; %s", what, remedy);
    ABCI_LOG(ABCI_LOG_DEBUG, "base", -1, "%s: %s", abci_status_row(status)->name, last_text);
}

int abci_error(int status, const char *format, ...)
{
    int saved = errno;
    char what[TEXT_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    record(status, what);
    errno = saved;
    return status;
}

int abci_error_errno(int status, const char *format, ...)
{
    int saved = errno;
    char what[TEXT_SIZE], reason[128];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(what, sizeof what, format, args);
    va_end(args);
    const char *text = strerror_r(saved, reason, sizeof reason);
    if (length >= 0 && length < (int)sizeof what)
        snprintf(what + length, sizeof what - (size_t)length, ": %s", text);
    record(status, what);
    errno = saved;
    return status;
}

void abci_error_prefix(const char *format, ...)
{
    char old[TEXT_SIZE];
    memcpy(old, last_text, sizeof old);
    va_list args;
    va_start(args, format);
    int length = vsnprintf(last_text, TEXT_SIZE, format, args);
    va_end(args);
    if (length >= 0 && length < TEXT_SIZE)
        snprintf(last_text + length, TEXT_SIZE - (size_t)length, "%s", old);
}

const char *abci_error_text(void)
{
    return last_text;
}

void abci_error_clear(void)
{
    last_text[0] = 0;
}

static char host[256];

static void read_host(void)
{
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == 0)
        strcpy(host, "unknown-host");
}

const char *abci_hostname(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_host);
    return host;
}
