/* harness.c - ranks for the contract programs: processes or threads, a shared board, and an exchange over it. */
#include "harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROWS 96
#define VALUE 8192
#define WORDS 16
#define LIMIT_SECONDS 8

struct board {
    atomic_flag lock;
    _Atomic int rows, calls;
    _Atomic int word[WORDS];
    _Alignas(64) char bytes[MAX_RANKS][BOARD_BYTES];
    struct {
        char key[96];
        size_t length;
        char value[VALUE];
    } row[ROWS];
};

void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000l}, NULL);
}

bool expect(struct rank *r, bool ok, const char *format, ...)
{
    if (ok)
        return true;
    va_list args;
    va_start(args, format);
    printf("rank %d: ", r->rank);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    r->failures++;
    return false;
}

bool expect_ok(struct rank *r, int status, const char *what)
{
    return expect(r, status == ABC_OK, "%s: %s", what, abc_last_error());
}

_Atomic int *board_word(const struct rank *r, int index)
{
    return &r->board->word[index];
}

void *board_bytes(const struct rank *r, int rank)
{
    return r->board->bytes[rank];
}

bool await_word(const struct rank *r, int index, int value)
{
    for (int ms = 0; ms < 5000 && atomic_load(board_word(r, index)) != value; ms++)
        sleep_ms(1);
    return atomic_load(board_word(r, index)) == value;
}

/* ---- The exchange: a list of rows, searched from its start ---- */

static void lock(struct board *b)
{
    while (atomic_flag_test_and_set_explicit(&b->lock, memory_order_acquire))
        sched_yield();
}

static void unlock(struct board *b)
{
    atomic_flag_clear_explicit(&b->lock, memory_order_release);
}

static void full_key(const struct rank *r, const char *key, char out[96])
{
    snprintf(out, 96, "%d/%.80s", r->creations, key);
}

static int find(struct board *b, const char *key)
{
    for (int i = 0; i < b->rows; i++)
        if (strcmp(b->row[i].key, key) == 0)
            return i;
    return -1;
}

static int board_put(void *ctx, const char *key, const void *value, size_t length)
{
    struct rank *r = ctx;
    struct board *b = r->board;
    char name[96];
    full_key(r, key, name);
    b->calls++;
    lock(b);
    int i = find(b, name);
    bool fits = length <= VALUE && (i >= 0 || b->rows < ROWS);
    if (fits) {
        i = i >= 0 ? i : b->rows;
        strcpy(b->row[i].key, name);
        memcpy(b->row[i].value, value, length);
        b->row[i].length = length;
        b->rows = i == b->rows ? i + 1 : b->rows;
    }
    unlock(b);
    return fits ? ABC_OK : ABC_ERR_MEMORY;
}

static int board_get(void *ctx, const char *key, void *value, size_t *length)
{
    struct rank *r = ctx;
    struct board *b = r->board;
    char name[96];
    full_key(r, key, name);
    b->calls++;
    lock(b);
    int i = find(b, name);
    if (i >= 0) {
        memcpy(value, b->row[i].value, b->row[i].length < *length ? b->row[i].length : *length);
        *length = b->row[i].length;
    }
    unlock(b);
    return i >= 0 ? ABC_OK : ABC_ERR_TIMEOUT;
}

static int board_wait(void *ctx, const char *key, double timeout)
{
    struct rank *r = ctx;
    char name[96];
    full_key(r, key, name);
    for (double end = abci_now() + timeout; abci_now() < end; sleep_ms(1)) {
        lock(r->board);
        int i = find(r->board, name);
        unlock(r->board);
        if (i >= 0)
            return ABC_OK;
    }
    return ABC_ERR_TIMEOUT;
}

int exchange_calls(const struct rank *r)
{
    return r->board->calls;
}

int create(struct rank *r, double timeout, abc_comm **comm)
{
    abc_exchange exchange;
    abc_comm_config config;
    abc_exchange_init(&exchange);
    exchange.ctx = r;
    exchange.put = board_put;
    exchange.wait = board_wait;
    exchange.get = board_get;
    abc_comm_config_init(&config);
    config.rank = r->rank;
    config.nranks = r->nranks;
    config.exchange = &exchange;
    config.connect_timeout = 5;
    config.timeout = timeout;
    config.progress_thread = 0;
    int status = abc_comm_create(&config, comm);
    r->creations++;
    return status;
}

abc_comm *must_create(struct rank *r, double timeout)
{
    abc_comm *comm = NULL;
    return expect_ok(r, create(r, timeout, &comm), "create") ? comm : NULL;
}

void destroy(struct rank *r, abc_comm *comm)
{
    (void)r;
    abc_comm_destroy(comm);
}

/* ---- Ranks ---- */

static struct board *new_board(void)
{
    struct board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return b == MAP_FAILED ? NULL : b;
}

int run_processes(int nranks, int (*body)(struct rank *))
{
    struct board *board = new_board();
    pid_t child[MAX_RANKS];
    int failed = !board;
    for (int r = 0; board && r < nranks; r++) {
        fflush(stdout);
        child[r] = fork();
        if (child[r] != 0)
            continue;
        struct rank me = {r, nranks, board, 0, 0};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(LIMIT_SECONDS); /* a hang fails */
        int bad = body(&me);
        fflush(stdout);
        _exit(bad != 0);
    }
    for (int r = 0; board && r < nranks; r++) {
        int state = 1;
        if (child[r] < 0 || waitpid(child[r], &state, 0) != child[r] || state != 0)
            failed = 1;
    }
    if (board)
        munmap(board, sizeof *board);
    return failed;
}

struct thread {
    struct rank me;
    int (*body)(struct rank *);
    int bad;
};

static void *thread_body(void *argument)
{
    struct thread *t = argument;
    t->bad = t->body(&t->me);
    return NULL;
}

int run_threads(int nranks, int (*body)(struct rank *))
{
    static struct thread thread[MAX_RANKS];
    struct board *board = new_board();
    pthread_t id[MAX_RANKS];
    int failed = !board;
    alarm(LIMIT_SECONDS * 4);
    for (int r = 0; r < nranks && !failed; r++) {
        thread[r] = (struct thread){{r, nranks, board, 0, 0}, body, 0};
        failed |= pthread_create(&id[r], NULL, thread_body, &thread[r]) != 0;
    }
    for (int r = 0; r < nranks && !failed; r++)
        pthread_join(id[r], NULL);
    for (int r = 0; r < nranks; r++)
        failed |= thread[r].bad != 0;
    return failed;
}
