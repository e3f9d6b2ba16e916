/*
 * remote.c - stage 4: private memory of a peer, read by process_vm_readv. Whether that is permitted is found by trying: rules about
 * ptrace, user namespaces and seccomp differ from system to system. Costs a system call a read; never used where the trial failed.
 *
 * What it costs depends on the pages that the owner has: the kernel takes and gives back each page of 4 KiB (0.3 us), but only each
 * huge page. So the owner asks the kernel about its own buffer, by one ioctl that ends at the first page that is not huge.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/shm.h"

/* The kernel's struct pm_scan_arg and struct page_region (since Linux 6.7), which older headers lack. */
struct page_run {
    uint64_t start, end, categories;
};
struct page_scan {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PAGE_SCAN _IOWR('f', 16, struct page_scan)
#define PAGE_HUGE (1u << 6)
#define PAGE_BYTES 4096u

/* The file that answers: of this process, opened once. */
static struct {
    pthread_mutex_t lock;
    _Atomic int fd; /* -1: none, this kernel does not tell */
} pages = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

/* The child of a fork has pages of its own. */
static void forget_pages(void)
{
    int fd = atomic_exchange_explicit(&pages.fd, -1, memory_order_relaxed);
    if (fd >= 0)
        close(fd);
}

static void open_pages(void)
{
    abci_fork_guard(&pages.lock);
    abci_fork_watch(forget_pages);
    pthread_mutex_lock(&pages.lock);
    if (atomic_load_explicit(&pages.fd, memory_order_relaxed) < 0)
        atomic_store_explicit(&pages.fd, open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), memory_order_relaxed);
    pthread_mutex_unlock(&pages.lock);
}

bool abci_shm_is_huge(const void *memory, uint64_t bytes)
{
    /* The ends may share pages with other memory: the middle half speaks for all. */
    uint64_t start = ((uint64_t)(uintptr_t)memory + bytes / 4) / PAGE_BYTES * PAGE_BYTES;
    struct page_run found;
    struct page_scan scan = {.size = sizeof scan,
                             .start = start,
                             .end = start + bytes / 2,
                             .vec = (uint64_t)(uintptr_t)&found,
                             .vec_len = 1,
                             .max_pages = 1,
                             .category_inverted = PAGE_HUGE,
                             .category_mask = PAGE_HUGE,
                             .return_mask = PAGE_HUGE};
    int fd = atomic_load_explicit(&pages.fd, memory_order_relaxed);
    return fd >= 0 && ioctl(fd, PAGE_SCAN, &scan) == 0; /* no page that is not huge */
}

int abci_shm_read_remote(const struct abci_shm *shm, int peer, void *to, uint64_t from, uint64_t bytes)
{
    while (bytes > 0) {
        struct iovec local = {to, bytes}, remote = {(void *)(uintptr_t)from, bytes};
        ssize_t n = abci_fault("process_vm_readv") ? (errno = EPERM, -1)
                                                   : process_vm_readv((pid_t)shm->peer[peer].pid, &local, 1, &remote, 1, 0);
        if (n <= 0)
            return ABC_ERR_PEER;
        to = (char *)to + n;
        from += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return ABC_OK;
}

void abci_shm_try_remote(struct abci_shm *shm)
{
    open_pages();
    for (int r = 0; r < shm->nranks; r++) {
        uint32_t got[4] = {0};
        if (r == shm->rank)
            continue;
        const struct abci_control *c = shm->peer[r].control;
        shm->peer[r].readable = abci_shm_read_remote(shm, r, got, c->self, sizeof got) == ABC_OK && got[0] == ABCI_RECORD_MAGIC &&
                                got[1] == (uint32_t)r && got[3] == c->pid;
    }
}
