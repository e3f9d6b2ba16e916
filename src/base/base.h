/*
 * base.h - what everything stands on: errors, log, settings, memory, time, CPUs. Knows nobody above. Thread-safe unless said.
 */
#ifndef ABCI_BASE_H
#define ABCI_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <abcomm/status.h>

#define ABCI_LINE 64 /* bytes of a cache line, the unit of sharing */
#define ABCI_LIKELY(x) __builtin_expect(!!(x), 1)
#define ABCI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define ABCI_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* ---- error.c: the calling thread's last error
 * -------------------------------------------------------------------------------------- */
/* Record "what happened" for abc_last_error and return status; the remedy of the status is appended. Logs at DEBUG. */
int abci_error(int status, const char *format, ...) ABCI_PRINTF(2, 3);
/* The same for a failed system call: appends the text of errno. */
int abci_error_errno(int status, const char *format, ...) ABCI_PRINTF(2, 3);
/* Put words before the recorded text, e.g. "rank 3 on host a: ". */
void abci_error_prefix(const char *format, ...) ABCI_PRINTF(1, 2);
const char *abci_error_text(void);
void abci_error_clear(void);
const char *abci_hostname(void);

/* ---- log.c: ABCOMM_DEBUG, ABCOMM_DEBUG_FILE
 * ------------------------------------------------------------------------------------------ */
enum abci_level { ABCI_LOG_NONE, ABCI_LOG_ERROR, ABCI_LOG_WARN, ABCI_LOG_INFO, ABCI_LOG_DEBUG, ABCI_LOG_TRACE };
extern int abci_log_level; /* set by abci_settings_load; read plainly: off costs one load and one branch */
/* One line "host:pid:tid [rank] abcomm WARN subsystem: text" to stderr or the file. subsystem is the folder's name. */
void abci_log(enum abci_level level, const char *subsystem, int rank, const char *format, ...) ABCI_PRINTF(4, 5);
#define ABCI_LOG(level, subsystem, rank, ...)                                                                                      \
    do {                                                                                                                           \
        if (ABCI_UNLIKELY((level) <= abci_log_level))                                                                              \
            abci_log((level), (subsystem), (rank), __VA_ARGS__);                                                                   \
    } while (0)

/* ---- settings.c: the one table of environment variables (settings.def)
 * --------------------------------------------------------------- */
enum abci_setting_type {
    ABCI_SETTING_STRING,
    ABCI_SETTING_INT,
    ABCI_SETTING_REAL,
    ABCI_SETTING_BOOL,
    ABCI_SETTING_BYTES,
    ABCI_SETTING_LEVEL
};
/* `job`: all ranks must agree, compared at creation. `local`: may differ. */
enum abci_scope { ABCI_SCOPE_JOB, ABCI_SCOPE_LOCAL };
struct abci_setting {
    const char *name; /* ABCOMM_... */
    enum abci_setting_type type;
    enum abci_scope scope;
    const char *fallback; /* default, as text */
    double low, high;     /* range of numbers */
    const char *unit;
    const char *help; /* one sentence */
};
#define ABCI_SETTING_ENUM(id, ...) ABCI_SET_##id,
enum abci_setting_id {
#include "base/settings.def"
    ABCI_SETTING_COUNT
};
#undef ABCI_SETTING_ENUM
extern const struct abci_setting abci_setting_table[ABCI_SETTING_COUNT];
/*
 * Read the environment once (idempotent, thread-safe); warns about unknown ABCOMM_ names with the nearest known one. A value that
 * does not parse is an error naming variable, value and what is allowed.
 */
int abci_settings_load(void);
/* Values after load. Strings are "" when unset; they live as long as the process. */
const char *abci_setting_string(enum abci_setting_id id);
int64_t abci_setting_int(enum abci_setting_id id); /* INT, BOOL, BYTES, LEVEL */
double abci_setting_real(enum abci_setting_id id);
bool abci_setting_is_set(enum abci_setting_id id); /* given by the environment */
/* Hash over all job-scope values, and the n-th job-scope "NAME=value" for comparing; NULL past the end. */
uint64_t abci_settings_hash(void);
const char *abci_settings_job_text(void); /* "A=1\nB=2\n", for naming the difference */
/* Parse one value as its setting would; for tests, fuzzing and tools. number receives numeric types. */
int abci_setting_parse(const struct abci_setting *setting, const char *text, double *number, char *why, size_t capacity);
/* Nearest known setting name to an unknown one, or NULL. */
const char *abci_setting_nearest(const char *name);

/* ---- memory.c
 * ------------------------------------------------------------------------------------------------------------------------ */
/* Allocation through one door, so that tests can make the n-th fail. Zeroed. NULL sets no error text. */
void *abci_alloc(size_t bytes);
void *abci_alloc_aligned(size_t bytes, size_t alignment);
void abci_free(void *ptr);
char *abci_strdup(const char *text);
/*
 * Fault injection: in builds with -Dfaults=true, abci_fault("name") returns true at the n-th pass that ABCOMM_TEST_FAULT=n selects
 * (all sites counted together); else it is constant false. Call it where a system call or an allocation could fail.
 */
#ifdef ABCI_FAULTS
bool abci_fault(const char *site);
#else
static inline bool abci_fault(const char *site)
{
    (void)site;
    return false;
}
#endif

/* ---- cpu.c
 * --------------------------------------------------------------------------------------------------------------------------- */
/* CPUs this process may really use: affinity mask and cgroup quota, at least 1. Cheap after the first call; refresh re-reads. */
double abci_cpu_available(void);
void abci_cpu_refresh(void);

/* Seconds of the monotonic clock. */
static inline double abci_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Tell the CPU that this is a spin loop. */
static inline void abci_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

#endif
