/*
 * fork.c - what a child of fork() must know: that it is not the process that created communicators and segments, and that locks
 * which another thread held at the fork are free. Rows are only added; a handful in the life of a process. Any thread.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"

#define ROWS 16

uint32_t abci_fork_generation;
static _Atomic(pthread_mutex_t *) locks[ROWS];
static _Atomic(abci_fork_fn) watchers[ROWS];

static void in_child(void)
{
    abci_fork_generation++;
    for (int i = 0; i < ROWS; i++) {
        pthread_mutex_t *lock = atomic_load_explicit(&locks[i], memory_order_relaxed);
        abci_fork_fn watcher = atomic_load_explicit(&watchers[i], memory_order_relaxed);
        if (lock)
            pthread_mutex_init(lock, NULL);
        if (watcher)
            watcher();
    }
}

static void install(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static void installed(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

void abci_fork_guard(pthread_mutex_t *lock)
{
    installed();
    for (int i = 0; i < ROWS; i++) {
        pthread_mutex_t *none = NULL;
        if (atomic_load_explicit(&locks[i], memory_order_relaxed) == lock ||
            atomic_compare_exchange_strong(&locks[i], &none, lock) || none == lock)
            return;
    }
}

void abci_fork_watch(abci_fork_fn watcher)
{
    installed();
    for (int i = 0; i < ROWS; i++) {
        abci_fork_fn none = NULL;
        if (atomic_compare_exchange_strong(&watchers[i], &none, watcher) || none == watcher)
            return;
    }
}
