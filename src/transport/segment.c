/*
 * segment.c - stage 4: the growing memfd of a process and the mappings of its peers'. Owner: the process. The allocator keeps
 * extents in address order (first fit, coalescing); calls are rare (buffers, communicators), so a lock and a list are enough. The
 * hot look-ups (abci_segment_find, abci_segment_at) take no lock: windows are only ever added.
 */
#include "transport/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

/*
 * Every process maps every peer's first window: small, so that eight of them share a page of page tables. Those are the only memory
 * that grows with the square of the ranks. It holds control blocks and short staging; the second one holds the staging of chunks.
 */
#define FIRST_WINDOW (256ull << 10)
#define SECOND_WINDOW (8ull << 20)
#define NEXT_WINDOW (64ull << 20)
#define PAGE 4096ull
#define PUNCH_FROM (2ull << 20) /* freed blocks from this size on give their pages back */

struct extent {
    uint64_t offset, bytes;
    uint64_t asked; /* bytes that its user asked for */
    bool used;
    bool detached; /* some of its pages are private now: its place in the file is never used again */
    struct extent *next;
};

struct abci_segment {
    int fd;
    int holders;
    struct abci_segment_head *head;
    _Atomic(char *) base[ABCI_SEGMENT_WINDOWS]; /* NULL until mapped */
    uint64_t id[2];
    struct abci_segment *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct abci_segment *) self;
static struct abci_segment *attached;
static struct extent *extents;
static _Atomic uint32_t detachments; /* extents with detached pages; abci_segment_find looks closer when there are any */

/* A child has the parent's mappings but is not the parent: it starts with no segment of its own; inherited buffers stay readable.
 */
static void forget_in_child(void)
{
    atomic_store(&self, NULL);
    extents = NULL;
    attached = NULL;
    atomic_store(&detachments, 0);
}

static char *map_window(struct abci_segment *s, uint32_t w)
{
    char *base = atomic_load_explicit(&s->base[w], memory_order_acquire); /* pairs with the store below */
    if (base)
        return base;
    pthread_mutex_lock(&lock);
    base = atomic_load_explicit(&s->base[w], memory_order_relaxed);
    if (!base) {
        uint64_t bytes = s->head->window[w].bytes, offset = s->head->window[w].offset;
        base = abci_fault("mmap window") ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, (off_t)offset);
        if (base == MAP_FAILED)
            base = NULL;
        else
            atomic_store_explicit(&s->base[w], base, memory_order_release); /* pairs with the load above */
    }
    pthread_mutex_unlock(&lock);
    return base;
}

void *abci_segment_at(struct abci_segment *s, uint64_t offset, uint64_t bytes)
{
    uint32_t n = atomic_load_explicit(&s->head->windows, memory_order_acquire); /* pairs with add_window's release */
    if (n > ABCI_SEGMENT_WINDOWS)
        return NULL;
    for (uint32_t w = n; w-- > 0;) { /* chunks and large buffers lie in the later ones */
        uint64_t first = s->head->window[w].offset, size = s->head->window[w].bytes;
        if (offset < first || offset - first >= size)
            continue;
        if (bytes > size - (offset - first))
            return NULL;
        char *base = map_window(s, w);
        return base ? base + (offset - first) : NULL;
    }
    return NULL;
}

/* Where in the file an address of the own windows lies, and how much of the window is behind it. A few comparisons. */
static bool place_of(const struct abci_segment *s, const void *ptr, uint64_t *offset, uint64_t *left)
{
    uint32_t n = atomic_load_explicit(&s->head->windows, memory_order_acquire); /* pairs with add_window's release */
    for (uint32_t w = 0; w < n; w++) {
        const char *base = atomic_load_explicit(&s->base[w], memory_order_relaxed);
        uint64_t at = (uint64_t)((const char *)ptr - base), size = s->head->window[w].bytes;
        if (base && (const char *)ptr >= base && at < size) {
            *offset = s->head->window[w].offset + at;
            *left = size - at;
            return true;
        }
    }
    return false;
}

/* The extent in use that holds an offset; under the lock. */
static struct extent *extent_at(uint64_t offset)
{
    for (struct extent *e = extents; e; e = e->next)
        if (e->used && offset >= e->offset && offset - e->offset < e->bytes)
            return e;
    return NULL;
}

static bool is_detached(uint64_t offset)
{
    pthread_mutex_lock(&lock);
    const struct extent *e = extent_at(offset);
    bool detached = e && e->detached;
    pthread_mutex_unlock(&lock);
    return detached;
}

bool abci_segment_find(const void *ptr, uint64_t bytes, uint64_t *offset)
{
    uint64_t left;
    struct abci_segment *s = atomic_load_explicit(&self, memory_order_acquire); /* pairs with abci_segment_self's release */
    if (!s || !place_of(s, ptr, offset, &left))
        return false;
    *offset += abci_mutated("c9_offset") ? ABCI_LINE : 0;
    if (ABCI_UNLIKELY(atomic_load_explicit(&detachments, memory_order_relaxed)) && is_detached(*offset))
        return false;
    return bytes <= left;
}

/* Add a free extent in address order and join it with free neighbours that touch it within one window. */
static void insert_free(struct extent *e)
{
    struct extent **at = &extents;
    while (*at && (*at)->offset < e->offset)
        at = &(*at)->next;
    e->next = *at;
    *at = e;
}

static bool window_starts_at(const struct abci_segment *s, uint64_t offset)
{
    uint32_t n = atomic_load_explicit(&s->head->windows, memory_order_relaxed);
    for (uint32_t w = 0; w < n; w++)
        if (s->head->window[w].offset == offset)
            return true;
    return false;
}

static void coalesce(const struct abci_segment *s)
{
    for (struct extent *e = extents; e && e->next;) {
        struct extent *n = e->next;
        if (!e->used && !n->used && e->offset + e->bytes == n->offset && !window_starts_at(s, n->offset)) {
            e->bytes += n->bytes;
            e->next = n->next;
            abci_free(n);
        } else {
            e = n;
        }
    }
}

/* Grow the memfd by a window of at least `bytes`; the caller holds the lock. */
static int add_window(struct abci_segment *s, uint64_t bytes)
{
    struct abci_segment_head *h = s->head;
    uint32_t w = atomic_load_explicit(&h->windows, memory_order_relaxed);
    if (w == ABCI_SEGMENT_WINDOWS)
        return abci_error(ABC_ERR_MEMORY, "shared memory has grown %u times; free buffers before allocating more", w);
    uint64_t offset = h->window[w - 1].offset + h->window[w - 1].bytes;
    uint64_t size = w == 1 ? SECOND_WINDOW : NEXT_WINDOW << (w / 8);
    if (size < bytes)
        size = (bytes + (2ull << 20) - 1) & ~((2ull << 20) - 1);
    struct extent *e = abci_alloc(sizeof *e);
    if (!e)
        return abci_error(ABC_ERR_MEMORY, "no memory for the arena's records");
    struct stat st; /* an earlier growth whose mapping failed has left the file longer; it cannot shrink */
    bool long_enough = fstat(s->fd, &st) == 0 && st.st_size >= (off_t)(offset + size);
    if (abci_fault("ftruncate segment") || (!long_enough && ftruncate(s->fd, (off_t)(offset + size)) != 0)) {
        abci_free(e);
        return abci_error_errno(ABC_ERR_MEMORY, "shared memory cannot grow to %llu MiB",
                                (unsigned long long)((offset + size) >> 20));
    }
    char *base =
        abci_fault("mmap segment") ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, (off_t)offset);
    if (base == MAP_FAILED) {
        abci_free(e);
        return abci_error_errno(ABC_ERR_MEMORY, "%llu MiB of shared memory cannot be mapped", (unsigned long long)(size >> 20));
    }
    madvise(base, size, MADV_HUGEPAGE); /* a wish: ignored where shared memory has no huge pages */
    e->offset = offset;
    e->bytes = size;
    insert_free(e);
    h->window[w].offset = offset;
    h->window[w].bytes = size;
    atomic_store_explicit(&s->base[w], base, memory_order_release);  /* pairs with map_window's acquire */
    atomic_store_explicit(&h->windows, w + 1, memory_order_release); /* pairs with abci_segment_at's acquire */
    return ABC_OK;
}

static int create_self(struct abci_segment **out)
{
    struct abci_segment *s = abci_alloc(sizeof *s);
    struct extent *e = abci_alloc(sizeof *e);
    int status = ABC_ERR_MEMORY;
    if (!s || !e) {
        abci_error(status, "no memory for the process's segment");
        goto free_records;
    }
    s->fd = abci_fault("memfd_create") ? -1 : memfd_create("abcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (s->fd < 0) {
        status = abci_error_errno(ABC_ERR_SYSTEM, "memfd_create failed");
        goto free_records;
    }
    if (abci_fault("ftruncate") || ftruncate(s->fd, FIRST_WINDOW) != 0) {
        status = abci_error_errno(ABC_ERR_MEMORY, "shared memory of %llu KiB cannot be made", FIRST_WINDOW >> 10);
        goto close_fd;
    }
    if (!abci_mutated("c8_unsealed"))
        fcntl(s->fd, F_ADD_SEALS, F_SEAL_SHRINK); /* peers may map it without fear of SIGBUS */
    char *base = abci_fault("mmap") ? MAP_FAILED : mmap(NULL, FIRST_WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (base == MAP_FAILED) {
        status = abci_error_errno(ABC_ERR_MEMORY, "shared memory cannot be mapped");
        goto close_fd;
    }
    s->head = (struct abci_segment_head *)base;
    if (getrandom(s->id, sizeof s->id, 0) != sizeof s->id) {
        status = abci_error_errno(ABC_ERR_SYSTEM, "getrandom failed");
        munmap(base, FIRST_WINDOW);
        goto close_fd;
    }
    memcpy(s->head->id, s->id, sizeof s->id);
    s->head->pid = (uint32_t)getpid();
    s->head->window[0].bytes = FIRST_WINDOW;
    atomic_store_explicit(&s->base[0], base, memory_order_relaxed);
    atomic_store_explicit(&s->head->windows, 1, memory_order_release); /* pairs with abci_segment_at's acquire */
    s->head->magic = ABCI_SEGMENT_MAGIC;
    s->holders = 1;
    e->offset = PAGE; /* the head's page; it holds far less than a page */
    e->bytes = FIRST_WINDOW - PAGE;
    extents = e;
    *out = s;
    return ABC_OK;
close_fd:
    close(s->fd);
free_records:
    abci_free(s);
    abci_free(e);
    return status;
}

_Static_assert(sizeof(struct abci_segment_head) <= PAGE, "the head must fit the first page");

struct abci_segment *abci_segment_self(void)
{
    struct abci_segment *s = atomic_load_explicit(&self, memory_order_acquire);
    if (s)
        return s;
    pthread_mutex_lock(&lock);
    s = atomic_load_explicit(&self, memory_order_relaxed);
    if (!s && create_self(&s) == ABC_OK) {
        abci_fork_guard(&lock);
        abci_fork_watch(forget_in_child);
        atomic_store_explicit(&self, s, memory_order_release); /* pairs with abci_segment_find's acquire */
    }
    pthread_mutex_unlock(&lock);
    return s;
}

int abci_segment_alloc(uint64_t bytes, void **ptr, uint64_t *offset)
{
    struct abci_segment *s = abci_segment_self();
    if (!s)
        return ABC_ERR_MEMORY;
    if (bytes > (1ull << 46))
        return abci_error(ABC_ERR_MEMORY, "%llu bytes are more than this machine can address", (unsigned long long)bytes);
    uint64_t asked = bytes;
    bytes = (bytes ? (bytes + PAGE - 1) & ~(PAGE - 1) : PAGE) + ABCI_SEGMENT_FENCE;
    pthread_mutex_lock(&lock);
    int status = ABC_OK;
    struct extent *e = NULL;
    for (int round = 0; round < 2 && !e && status == ABC_OK; round++) {
        for (e = extents; e && (e->used || e->bytes < bytes); e = e->next)
            ;
        if (!e && round == 0)
            status = add_window(s, bytes);
    }
    if (status == ABC_OK && e && e->bytes > bytes) {
        struct extent *rest = abci_alloc(sizeof *rest);
        if (!rest) {
            status = abci_error(ABC_ERR_MEMORY, "no memory for the arena's records");
        } else {
            rest->offset = e->offset + bytes;
            rest->bytes = e->bytes - bytes;
            rest->next = e->next;
            e->next = rest;
            e->bytes = bytes;
        }
    }
    if (status == ABC_OK && e) {
        e->used = true;
        e->asked = asked;
        *offset = e->offset;
    }
    pthread_mutex_unlock(&lock);
    if (status != ABC_OK)
        return status;
    *ptr = abci_segment_at(s, *offset, bytes);
    abci_segment_open(*ptr, asked);
    abci_segment_shut((char *)*ptr + asked, bytes - asked);
    return status;
}

/* The addresses of a detached extent stay reserved and its place in the file unused, for a peer that is late may still write there;
 * the memory behind both goes back. */
static void retire(struct abci_segment *s, struct extent *e)
{
    char *base = abci_segment_at(s, e->offset, e->bytes);
    (void)!mmap(base, e->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    (void)!fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)e->offset, (off_t)e->bytes);
}

int abci_segment_free(void *ptr)
{
    uint64_t offset, left;
    struct abci_segment *s = atomic_load_explicit(&self, memory_order_acquire);
    if (!ptr)
        return ABC_OK;
    if (!s || !place_of(s, ptr, &offset, &left))
        return abci_error(ABC_ERR_ARGUMENT, "%p was not allocated by abc_mem_alloc", ptr);
    pthread_mutex_lock(&lock);
    struct extent *e = extent_at(offset);
    if (e && e->offset != offset)
        e = NULL;
    if (e && e->detached && e->asked > 0) {
        e->asked = 0; /* once */
        retire(s, e);
    } else if (e && !e->detached) {
        if (e->bytes >= PUNCH_FROM)
            (void)!fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)e->offset, (off_t)e->bytes);
        abci_segment_shut(ptr, e->bytes);
        e->used = false;
        coalesce(s);
    } else {
        e = NULL;
    }
    pthread_mutex_unlock(&lock);
    return e ? ABC_OK : abci_error(ABC_ERR_ARGUMENT, "%p is not the start of a buffer in use; was it freed twice?", ptr);
}

bool abci_segment_whole(const void *ptr, uint64_t bytes)
{
    uint64_t offset, left;
    struct abci_segment *s = atomic_load_explicit(&self, memory_order_acquire);
    if ((uintptr_t)ptr % PAGE != 0 || !s || !place_of(s, ptr, &offset, &left))
        return false;
    if (bytes % PAGE == 0)
        return true;
    pthread_mutex_lock(&lock);
    const struct extent *e = extent_at(offset);
    bool last = e && offset - e->offset + bytes == e->asked;
    pthread_mutex_unlock(&lock);
    return last;
}

int abci_segment_detach(void *ptr, uint64_t bytes)
{
    uint64_t offset, left;
    bytes = (bytes + PAGE - 1) & ~(PAGE - 1);
    struct abci_segment *s = atomic_load_explicit(&self, memory_order_acquire);
    if (!s || bytes == 0 || !place_of(s, ptr, &offset, &left))
        return ABC_OK;
    pthread_mutex_lock(&lock);
    struct extent *e = extent_at(offset);
    int status = ABC_OK;
    abci_segment_open(ptr, bytes);
    void *copy =
        abci_fault("mmap detach") ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool moved = false;
    if (copy != MAP_FAILED) {
        memcpy(copy, ptr, bytes);
        moved = !abci_fault("mremap detach") && mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, ptr) != MAP_FAILED;
        if (!moved)
            munmap(copy, bytes);
    }
    /* Without memory for a copy the contents go, which are undefined after a failure: empty pages cost nothing until they are used.
     */
    if (!moved && (abci_fault("mmap empty") ||
                   mmap(ptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED))
        status = abci_error_errno(ABC_ERR_MEMORY, "%llu bytes cannot be taken away from a late peer", (unsigned long long)bytes);
    if (e && !e->detached) { /* also where it failed: the late peer must not write into somebody's next buffer */
        e->detached = true;
        atomic_fetch_add_explicit(&detachments, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* Map a peer's head and check that it is one. */
static int open_peer(int fd, struct abci_segment *s)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || st.st_size < (off_t)FIRST_WINDOW)
        return abci_error(ABC_ERR_PEER, "a peer passed a descriptor that is not a segment");
    char *base = abci_fault("mmap peer") ? MAP_FAILED : mmap(NULL, FIRST_WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return abci_error_errno(ABC_ERR_MEMORY, "a peer's shared memory cannot be mapped");
    s->head = (struct abci_segment_head *)base;
    if (s->head->magic != ABCI_SEGMENT_MAGIC) {
        munmap(base, FIRST_WINDOW);
        return abci_error(ABC_ERR_VERSION, "a peer's segment has another layout; use the same libabcomm on every rank");
    }
    s->fd = fd;
    s->holders = 1;
    memcpy(s->id, s->head->id, sizeof s->id);
    atomic_store_explicit(&s->base[0], base, memory_order_relaxed);
    return ABC_OK;
}

static void close_peer(struct abci_segment *s)
{
    uint32_t n = atomic_load_explicit(&s->head->windows, memory_order_acquire);
    uint64_t bytes[ABCI_SEGMENT_WINDOWS];
    n = n < ABCI_SEGMENT_WINDOWS ? n : ABCI_SEGMENT_WINDOWS;
    for (uint32_t w = 0; w < n; w++)
        bytes[w] = s->head->window[w].bytes;
    for (uint32_t w = n; w-- > 0;) {
        char *base = atomic_load_explicit(&s->base[w], memory_order_relaxed);
        if (base) {
            abci_segment_open(base, bytes[w]);
            munmap(base, bytes[w]);
        }
    }
    close(s->fd);
    abci_free(s);
}

int abci_segment_attach(int fd, struct abci_segment **segment)
{
    struct abci_segment *s = abci_alloc(sizeof *s), *known = NULL;
    int status = s ? open_peer(fd, s) : abci_error(ABC_ERR_MEMORY, "no memory for a peer's segment");
    if (status != ABC_OK) {
        close(fd);
        abci_free(s);
        return status;
    }
    pthread_mutex_lock(&lock);
    struct abci_segment *own = atomic_load_explicit(&self, memory_order_relaxed);
    if (own && memcmp(own->id, s->id, sizeof s->id) == 0)
        known = own;
    for (struct abci_segment *k = attached; k && !known; k = k->next)
        if (memcmp(k->id, s->id, sizeof s->id) == 0)
            known = k;
    if (known) {
        known->holders++;
    } else {
        s->next = attached;
        attached = s;
    }
    pthread_mutex_unlock(&lock);
    if (known)
        close_peer(s);
    *segment = known ? known : s;
    return ABC_OK;
}

void abci_segment_hold(struct abci_segment *s)
{
    pthread_mutex_lock(&lock);
    s->holders++;
    pthread_mutex_unlock(&lock);
}

void abci_segment_release(struct abci_segment *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&lock);
    bool last = --s->holders == 0; /* never for the own segment: the process holds it */
    if (last) {
        struct abci_segment **at = &attached;
        while (*at && *at != s)
            at = &(*at)->next;
        if (*at)
            *at = s->next;
    }
    pthread_mutex_unlock(&lock);
    if (last)
        close_peer(s);
}

int abci_segment_fd(const struct abci_segment *s)
{
    return s->fd;
}

void abci_segment_list(uint64_t offset)
{
    struct abci_segment *s = abci_segment_self();
    for (int i = 0; s && i < ABCI_SEGMENT_ENDS; i++) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&s->head->end[i], &none, offset))
            return;
    }
}

void abci_segment_unlist(uint64_t offset)
{
    struct abci_segment *s = atomic_load(&self);
    for (int i = 0; s && i < ABCI_SEGMENT_ENDS; i++) {
        uint64_t mine = offset;
        if (atomic_compare_exchange_strong(&s->head->end[i], &mine, 0))
            return;
    }
}
