/*
 * log.c - one line of text for people, to stderr or to the file of ABCOMM_DEBUG_FILE. Told by settings.c what to do; used by
 * everyone through ABCI_LOG. A line is one write(2), so lines of ranks that share a terminal or a file do not mix. No allocation,
 * no lock; keeps errno.
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_SIZE 2048

/* Before the settings are read warnings go to stderr, which is also the default. */
int abci_log_level = ABCI_LOG_WARN;
static int log_fd = STDERR_FILENO;

static const char *const level_names[] = {"NONE", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"};

void abci_log(enum abci_level level, const char *subsystem, int rank, const char *format, ...)
{
    int saved = errno;
    char line[LINE_SIZE], number[16] = "-";
    if (rank >= 0)
        snprintf(number, sizeof number, "%d", rank);
    const char *name = (unsigned)level <= ABCI_LOG_TRACE ? level_names[level] : "?";
    int length = snprintf(line, sizeof line, "%s:%d:%d [%s] abcomm %s %s: ", abci_hostname(), (int)getpid(), (int)gettid(), number,
                          name, subsystem);
    if (length > 0 && length < LINE_SIZE - 1) {
        va_list args;
        va_start(args, format);
        int more = vsnprintf(line + length, sizeof line - (size_t)length, format, args);
        va_end(args);
        if (more > 0)
            length += more;
    }
    if (length > LINE_SIZE - 2) {
        length = LINE_SIZE - 2;
        memcpy(line + length - 3, "...", 3);
    }
    line[length] = 0;
    /* Names and paths may hold line ends; a record stays one line. */
    abci_text_clean(line, sizeof line, line);
    line[length++] = '\n';
    int fd = __atomic_load_n(&log_fd, __ATOMIC_RELAXED);
    while (write(fd, line, (size_t)length) < 0 && errno == EINTR)
        ;
    errno = saved;
}

/* Replace %h and %p. Returns false when the path does not fit. */
static bool expand(const char *pattern, char *path, size_t capacity)
{
    size_t n = 0;
    for (const char *c = pattern; *c; c++) {
        char piece[256] = {*c, 0};
        if (c[0] == '%' && c[1] == 'h')
            snprintf(piece, sizeof piece, "%s", abci_hostname());
        else if (c[0] == '%' && c[1] == 'p')
            snprintf(piece, sizeof piece, "%d", (int)getpid());
        if (c[0] == '%' && (c[1] == 'h' || c[1] == 'p' || c[1] == '%'))
            c++;
        size_t length = strlen(piece);
        if (n + length >= capacity)
            return false;
        memcpy(path + n, piece, length + 1);
        n += length;
    }
    return true;
}

void abci_log_open(enum abci_level level, const char *pattern)
{
    __atomic_store_n(&abci_log_level, (int)level, __ATOMIC_RELAXED);
    if (pattern[0] == 0 || level == ABCI_LOG_NONE)
        return;
    char path[4096];
    int fd = -1;
    errno = ENAMETOOLONG;
    if (expand(pattern, path, sizeof path))
        fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) {
        char reason[128];
        const char *text = strerror_r(errno, reason, sizeof reason);
        ABCI_LOG(ABCI_LOG_WARN, "base", -1, "cannot open log file %s: %s; logging to stderr, correct ABCOMM_DEBUG_FILE", pattern,
                 text);
        return;
    }
    __atomic_store_n(&log_fd, fd, __ATOMIC_RELAXED);
}
