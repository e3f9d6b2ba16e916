/*
 * base.h - what everything stands on: errors, log, settings, memory, time, CPUs. Knows nobody above. Thread-safe unless said.
 */
#ifndef ABCI_BASE_H
#define ABCI_BASE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <abcomm/status.h>

#define ABCI_LINE 64 /* bytes of a cache line, the unit of sharing */
#define ABCI_LIKELY(x) __builtin_expect(!!(x), 1)
#define ABCI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define ABCI_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* ---- error.c: the calling thread's last error ---- */
/* One row of include/abcomm/status.h. Unknown codes get a row that says so; never NULL. */
struct abci_status_row {
    int value;
    const char *name, *text, *remedy;
};
const struct abci_status_row *abci_status_row(int status);
/* The n-th row of the table, NULL past the end. */
const struct abci_status_row *abci_status_at(size_t n);
/* Record "what happened" for abc_last_error and return status; the remedy of the status is appended. Logs at DEBUG. */
int abci_error(int status, const char *format, ...) ABCI_PRINTF(2, 3);
/* The same for a failed system call: appends the text of errno. */
int abci_error_errno(int status, const char *format, ...) ABCI_PRINTF(2, 3);
/* Put words before the recorded text, e.g. "rank 3 on host a: ". */
void abci_error_prefix(const char *format, ...) ABCI_PRINTF(1, 2);
const char *abci_error_text(void);
void abci_error_clear(void);
const char *abci_hostname(void);

/* ---- log.c: ABCOMM_DEBUG, ABCOMM_DEBUG_FILE ---- */
enum abci_level { ABCI_LOG_NONE, ABCI_LOG_ERROR, ABCI_LOG_WARN, ABCI_LOG_INFO, ABCI_LOG_DEBUG, ABCI_LOG_TRACE };
extern int abci_log_level; /* set by abci_settings_load; off costs one load and one branch */
/* One line "host:pid:tid [rank] abcomm WARN subsystem: text" to stderr or the file. subsystem is the folder's name. */
void abci_log(enum abci_level level, const char *subsystem, int rank, const char *format, ...) ABCI_PRINTF(4, 5);
/*
 * Set level and destination. pattern: path in which %h stands for the host and %p for the process id; "" is stderr. Called by
 * settings.c; a file that cannot be opened leaves stderr and says so once.
 */
void abci_log_open(enum abci_level level, const char *pattern);
#define ABCI_LOG(level, subsystem, rank, ...)                                                                                      \
    do {                                                                                                                           \
        if (ABCI_UNLIKELY((int)(level) <= __atomic_load_n(&abci_log_level, __ATOMIC_RELAXED)))                                     \
            abci_log((level), (subsystem), (rank), __VA_ARGS__);                                                                   \
    } while (0)

/* ---- settings.c: the one table of environment variables (settings.def) ---- */
#define ABCI_SETTING_TEXT 1024 /* longest value, with its terminating zero */
enum abci_setting_type {
    ABCI_SETTING_STRING,
    ABCI_SETTING_INT,
    ABCI_SETTING_REAL,
    ABCI_SETTING_BOOL,
    ABCI_SETTING_BYTES,
    ABCI_SETTING_LEVEL,
    ABCI_SETTING_CHOICE /* a string; `unit` lists what is allowed: "auto|on|off" */
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
/*
 * Values; the first call loads. string: of any type, the text as given or the default; lives as long as the process. After a bad
 * value the default holds.
 */
const char *abci_setting_string(enum abci_setting_id id);
int64_t abci_setting_int(enum abci_setting_id id); /* INT, BOOL, BYTES, LEVEL */
double abci_setting_real(enum abci_setting_id id);
bool abci_setting_is_set(enum abci_setting_id id); /* given by the environment */
/* Hash over all job-scope values ("1M" and "1048576" are the same value). */
uint64_t abci_settings_hash(void);
const char *abci_settings_job_text(void); /* "A=1\nB=2\n", for naming the difference */
/* Parse one value as its setting would; for tests, fuzzing and tools. number receives numeric types. */
int abci_setting_parse(const struct abci_setting *setting, const char *text, double *number, char *why, size_t capacity);
/* Nearest known setting name to an unknown one, or NULL. */
const char *abci_setting_nearest(const char *name);
/* A variable that somebody else defines, a launcher for instance, as it is now; NULL when it is not set or empty. */
const char *abci_environment(const char *name);
/* Value of the environment variable ABCOMM_TEST_<suffix>, or NULL. Test builds only ask; no setting, in no table. */
const char *abci_setting_test(const char *suffix);

/* ---- fork.c ---- */
/* Incremented in every forked child: what was created under another value is not this process's. */
extern uint32_t abci_fork_generation;
typedef void (*abci_fork_fn)(void);
/* A child starts with this static lock free. Call before taking it; cheap after the first time. */
void abci_fork_guard(pthread_mutex_t *lock);
/* Call this in every child. */
void abci_fork_watch(abci_fork_fn watcher);

/* ---- group.c ---- */
struct abci_group;           /* api/group.c knows what is in it */
extern uint32_t abci_groups; /* open ones of all threads, atomic: one load says that there is none */
struct abci_group *abci_group_of_thread(void);
void abci_group_set(struct abci_group *group);
/* The calling thread's open group, or NULL. */
static inline struct abci_group *abci_group_here(void)
{
    return ABCI_LIKELY(__atomic_load_n(&abci_groups, __ATOMIC_RELAXED) == 0) ? NULL : abci_group_of_thread();
}

/* ---- text.c ---- */
/* Number of slips (a character too many, missing, wrong, or two swapped) between a and b; only the first 63 bytes count. */
int abci_text_distance(const char *a, const char *b);
/* Copy at most capacity - 1 bytes and make a '?' of every control character, and of every byte that belongs to no character of
 * UTF-8: foreign text breaks neither a line nor JSON. `out` may be `text`. */
void abci_text_clean(char *out, size_t capacity, const char *text);

/* ---- memory.c ---- */
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
/* The same from inside a test program: count from 0 again and fail pass n (0: none); and the passes counted so far. */
void abci_fault_arm(uint64_t n);
uint64_t abci_fault_passes(void);
#else
static inline bool abci_fault(const char *site)
{
    (void)site;
    return false;
}
#endif

/*
 * Contracts that a test breaks on purpose: true when ABCOMM_TEST_MUTATE names this one, in the testing library only; else constant
 * false.
 */
#ifdef ABCI_MUTATIONS
bool abci_mutated(const char *name);
#else
static inline bool abci_mutated(const char *name)
{
    (void)name;
    return false;
}
#endif

/* ---- cpu.c ---- */
/* CPUs this process may really use: affinity mask and cgroup quota, at least 1. Cheap after the first call; refresh re-reads. */
double abci_cpu_available(void);
void abci_cpu_refresh(void);
/* Parts of the above: CPUs of the affinity mask; CPUs that the cgroups below `root` ("" or a folder of fake files) grant, 0: no
 * limit. */
int abci_cpu_affinity(void);
/* The first 1024 CPUs of the affinity mask as bits. */
void abci_cpu_mask(uint64_t mask[16]);
double abci_cpu_quota(const char *root);

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
