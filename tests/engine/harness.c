/*
 * harness.c - jobs: fork the ranks, watch them, collect what they say. The parent only forks and waits; all use of the library is
 * in children. Everything here is bounded in time.
 */
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "board.h"

#define MEETING 20.0 /* seconds to wait for all ranks at the meeting point */

static struct {
    int passed, failed;
    const char *only;
    int descriptors; /* of the parent before the first job */
} totals;

/* ---- Small things ---- */

double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void nap(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void random_nap(struct rank *r, unsigned most)
{
    uint64_t dice = random_next(&r->random);
    if (dice % 3 == 0)
        nap(1e-6 * (double)(dice / 3 % (most + 1)));
}

int open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = -3; /* ".", ".." and the directory itself */
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

/* ---- What ranks say ---- */

static bool failed(struct rank *r, const char *format, va_list args)
{
    struct note *note = &r->board->note[r->rank];
    int none = 0;
    if (atomic_compare_exchange_strong(&note->failed, &none, 1)) {
        vsnprintf(note->failure, sizeof note->failure, format, args);
        atomic_fetch_add(&r->board->failed, 1);
    }
    return false;
}

bool check(struct rank *r, bool ok, const char *format, ...)
{
    if (ok)
        return true;
    va_list args;
    va_start(args, format);
    failed(r, format, args);
    va_end(args);
    return false;
}

bool check_status(struct rank *r, int status, int wanted, const char *what)
{
    return check(r, status == wanted, "%s: %s instead of %s: %s", what, abc_status_name(status), abc_status_name(wanted),
                 status < 0 ? abc_last_error() : "");
}

void doing(struct rank *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->board->note[r->rank].doing, sizeof r->board->note[r->rank].doing, format, args);
    va_end(args);
}

bool meet(struct rank *r)
{
    struct board *b = r->board;
    int mine = atomic_fetch_add(&b->arrived, 1);
    int all = (mine / r->nranks + 1) * r->nranks;
    for (double end = now_seconds() + MEETING; atomic_load(&b->arrived) < all; nap(0.0001)) {
        if (atomic_load(&b->failed))
            return false;
        if (now_seconds() > end)
            return check(r, false, "not all ranks came to the meeting point");
    }
    return true;
}

int rank_create(struct rank *r, int progress, double timeout, abc_comm **comm)
{
    struct exchange_context context;
    abc_exchange exchange;
    abc_comm_config config;
    char prefix[32];
    snprintf(prefix, sizeof prefix, "c%u", r->creations++);
    exchange_over_board(&context, r->board, prefix, &exchange);
    abc_comm_config_init(&config);
    config.rank = r->rank;
    config.nranks = r->nranks;
    config.exchange = &exchange;
    config.connect_timeout = MEETING;
    config.timeout = timeout > 0 ? timeout : r->board->timeout;
    config.progress_thread = progress;
    return abc_comm_create(&config, comm);
}

/* ---- A job's processes ---- */

static void set_environment(const struct job *job, int rank)
{
    for (char **entry = environ; *entry;) {
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        if (strncmp(name, "ABCOMM_", 7) == 0 && strcmp(name, "ABCOMM_TEST_MUTATE") != 0)
            unsetenv(name); /* moves the rest down */
        else
            entry++;
    }
    for (const char *const *e = job->environment; e && *e; e++)
        putenv((char *)*e);
    if (rank >= 0 && job->rank_environment && job->rank_environment(rank))
        putenv((char *)job->rank_environment(rank));
}

struct seat {
    const struct job *job;
    struct board *board;
    int rank;
};

/* One rank from creation to destruction. */
static void *be_rank(void *argument)
{
    const struct seat *seat = argument;
    const struct job *job = seat->job;
    struct rank r = {
        .rank = seat->rank, .nranks = job->nranks, .threads = job->threads, .argument = job->argument, .board = seat->board};
    r.random = 77 + (uint64_t)seat->rank;
    doing(&r, "creating");
    bool ok = job->no_comm || check_status(&r, rank_create(&r, job->progress, job->timeout, &r.comm), ABC_OK, "create");
    if (ok) {
        doing(&r, "body");
        ok = check(&r, job->body(&r) == 0, "the body failed without a word");
    }
    if (r.comm && ok) {
        doing(&r, "destroying");
        ok = check_status(&r, abc_comm_destroy(r.comm), ABC_OK, "destroy");
    }
    atomic_store(&seat->board->note[seat->rank].over, 1);
    return NULL;
}

static pid_t start_process(const struct job *job, struct board *board, int first, int count)
{
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(99);
    set_environment(job, job->threads ? -1 : first);
    struct seat seat[MAX_TEST_RANKS];
    pthread_t thread[MAX_TEST_RANKS];
    for (int i = 0; i < count; i++) {
        seat[i] = (struct seat){job, board, first + i};
        if (count > 1 && pthread_create(&thread[i], NULL, be_rank, &seat[i]) != 0)
            _exit(98);
    }
    if (count == 1)
        be_rank(&seat[0]);
    for (int i = 0; i < count && count > 1; i++)
        pthread_join(thread[i], NULL);
    fflush(NULL);
    exit(0); /* through atexit: sanitizers look for leaks there */
}

/* Wait for the children; when time is over (or shortly after a failure) kill those that still run. Returns true for a clean end. */
static bool watch(const struct job *job, struct board *board, pid_t *pid, int count)
{
    double limit = job->limit > 0 ? job->limit : 60, end = now_seconds() + limit;
    bool clean = true, hurried = false;
    for (int left = count; left > 0; nap(0.0005)) {
        for (int i = 0; i < count; i++) {
            int state;
            if (pid[i] <= 0 || waitpid(pid[i], &state, WNOHANG) != pid[i])
                continue;
            pid[i] = 0;
            left--;
            if (!WIFEXITED(state) || WEXITSTATUS(state) != 0) {
                printf("    process of rank %d ended with %s %d\n", i, WIFSIGNALED(state) ? "signal" : "code",
                       WIFSIGNALED(state) ? WTERMSIG(state) : WEXITSTATUS(state));
                clean = false;
            }
        }
        if (!hurried && (!clean || atomic_load(&board->failed))) {
            hurried = true; /* the others learn of it soon or hang for a reason that is known */
            end = now_seconds() + 3 < end ? now_seconds() + 3 : end;
        }
        for (int i = 0; now_seconds() > end && i < count; i++)
            if (pid[i] > 0) {
                kill(pid[i], SIGKILL);
                clean = false;
            }
    }
    return clean;
}

static void tell(const struct job *job, const struct board *board)
{
    for (int r = 0; r < job->nranks; r++) {
        const struct note *n = &board->note[r];
        if (atomic_load(&n->failed))
            printf("    rank %d: %s [while: %s]\n", r, n->failure, n->doing);
        else if (!atomic_load(&n->over))
            printf("    rank %d did not end [while: %s]\n", r, n->doing);
    }
    for (const char *const *e = job->environment; e && *e; e++)
        printf("    %s\n", *e);
}

bool job_run(const struct job *job)
{
    if (totals.only && !strstr(job->name, totals.only))
        return true;
    if (totals.passed + totals.failed == 0)
        totals.descriptors = open_descriptors();
    double start = now_seconds();
    struct board *board = board_make();
    pid_t pid[MAX_TEST_RANKS];
    int count = job->threads ? 1 : job->nranks;
    bool ok = board != NULL;
    fflush(NULL);
    if (ok)
        board->timeout = job->timeout > 0 ? job->timeout : 30;
    for (int i = 0; i < count && ok; i++) {
        pid[i] = start_process(job, board, i, job->threads ? job->nranks : 1);
        if (pid[i] < 0) {
            count = i;
            ok = false;
        }
    }
    if (board) {
        ok = watch(job, board, pid, count) && ok && atomic_load(&board->failed) == 0;
        printf("%s %s (%d %s, %.2f s)\n", ok ? "ok    " : "FAILED", job->name, job->nranks, job->threads ? "threads" : "processes",
               now_seconds() - start);
        if (!ok)
            tell(job, board);
        board_free(board);
    }
    totals.passed += ok;
    totals.failed += !ok;
    return ok;
}

int jobs_end(void)
{
    bool clean = waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD;
    if (!clean)
        printf("FAILED children were left behind\n");
    if (totals.passed + totals.failed > 0 && open_descriptors() != totals.descriptors) {
        printf("FAILED %d descriptors instead of %d\n", open_descriptors(), totals.descriptors);
        clean = false;
    }
    printf("%d passed, %d failed\n", totals.passed, totals.failed);
    return totals.failed > 0 || !clean;
}

void jobs_only(const char *text)
{
    totals.only = text;
}

void options_read(int argc, char **argv, struct options *o)
{
    const char *seed = getenv("ABC_TEST_SEED"), *full = getenv("ABC_TEST_FULL");
    o->full = full && strcmp(full, "1") == 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--full") == 0)
            o->full = true;
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = argv[++i];
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            jobs_only(argv[++i]);
        else {
            fprintf(stderr, "usage: %s [--seed N] [--full] [--only TEXT]\n", argv[0]);
            exit(2);
        }
    }
    o->seed = seed ? strtoull(seed, NULL, 0) : 20240607;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("seed %llu%s\n", (unsigned long long)o->seed, o->full ? ", full" : "");
}
