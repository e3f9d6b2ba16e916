/*
 * memory.c - the one door to the allocator, and fault injection. Everyone allocates here; no other file of the library calls
 * malloc. Not for the steady state, which allocates nothing. Any thread.
 */
#include "base/base.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *abci_alloc(size_t bytes)
{
    if (abci_fault("alloc"))
        return NULL;
    /* Never NULL for 0 bytes: callers read NULL as exhaustion. */
    return calloc(1, bytes ? bytes : 1);
}

void *abci_alloc_aligned(size_t bytes, size_t alignment)
{
    void *ptr = NULL;
    if (abci_fault("alloc_aligned") || posix_memalign(&ptr, alignment, bytes ? bytes : 1) != 0)
        return NULL;
    memset(ptr, 0, bytes);
    return ptr;
}

void abci_free(void *ptr)
{
    free(ptr);
}

char *abci_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = abci_alloc(bytes);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

#ifdef ABCI_FAULTS
/*
 * All sites count into one number, so a test walks n = 1, 2, ... up to the number of passes of a clean run and has failed every
 * call once. Counting stays exact with threads; which site is n-th may then differ from run to run.
 */
static uint64_t passes, target;
static pthread_once_t fault_once = PTHREAD_ONCE_INIT;

static void report_passes(void)
{
    char line[32];
    int length = snprintf(line, sizeof line, "%" PRIu64 "\n", abci_fault_passes());
    int fd = open(abci_setting_test("FAULT_REPORT"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, (size_t)length) != length)
        ABCI_LOG(ABCI_LOG_ERROR, "base", -1, "cannot append to the file of ABCOMM_TEST_FAULT_REPORT");
    if (fd >= 0)
        close(fd);
}

static void read_target(void)
{
    const char *text = abci_setting_test("FAULT");
    if (text)
        __atomic_store_n(&target, strtoull(text, NULL, 10), __ATOMIC_RELAXED);
    if (abci_setting_test("FAULT_REPORT"))
        atexit(report_passes);
}

bool abci_fault(const char *site)
{
    pthread_once(&fault_once, read_target);
    uint64_t pass = __atomic_add_fetch(&passes, 1, __ATOMIC_RELAXED);
    if (pass != __atomic_load_n(&target, __ATOMIC_RELAXED))
        return false;
    ABCI_LOG(ABCI_LOG_INFO, "base", -1, "pass %" PRIu64 " fails on purpose at %s", pass, site);
    return true;
}

void abci_fault_arm(uint64_t n)
{
    pthread_once(&fault_once, read_target);
    __atomic_store_n(&target, n, __ATOMIC_RELAXED);
    __atomic_store_n(&passes, 0, __ATOMIC_RELAXED);
}

uint64_t abci_fault_passes(void)
{
    return __atomic_load_n(&passes, __ATOMIC_RELAXED);
}
#endif

#ifdef ABCI_MUTATIONS
bool abci_mutated(const char *name)
{
    static _Atomic(const char *) chosen;
    const char *c = atomic_load_explicit(&chosen, memory_order_acquire);
    if (!c) {
        c = abci_setting_test("MUTATE");
        c = c ? c : "";
        atomic_store_explicit(&chosen, c, memory_order_release);
    }
    return strcmp(c, name) == 0;
}
#endif
