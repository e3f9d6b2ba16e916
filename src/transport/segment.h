/*
 * segment.h - stage 4: the shared memory of a process. One growing memfd a process holds everything that peers read: control
 * blocks, staging and the arena of abc_mem_alloc. A segment is a process's memfd as mapped here, own or a peer's; peers map windows
 * of it on demand. Offsets into the memfd mean the same to everybody. Thread-safe.
 */
#ifndef ABCI_SEGMENT_H
#define ABCI_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ABCI_SEGMENT_WINDOWS 64
#define ABCI_SEGMENT_ENDS 256 /* communicator ends that `abcomm inspect` can find */
#define ABCI_SEGMENT_MAGIC 0x61626373656731ull

struct abci_segment;

/* First page of the memfd; written by the owner, read by peers and `abcomm inspect`. */
struct abci_segment_head {
    uint64_t magic;
    uint64_t id[2];
    uint32_t pid;
    _Atomic uint32_t windows; /* release: the window's row is complete; acquire in abci_segment_at */
    struct {
        uint64_t offset, bytes;
    } window[ABCI_SEGMENT_WINDOWS];
    _Atomic uint64_t end[ABCI_SEGMENT_ENDS]; /* offsets of control blocks in use, 0: free row */
};

/* This process's segment, made on first use; NULL with an error text. Lives until the process ends. */
struct abci_segment *abci_segment_self(void);
/* Take over a peer's memfd; the same process seen twice (or oneself) gives the same segment. Closes fd unless it keeps it. */
int abci_segment_attach(int fd, struct abci_segment **segment);
void abci_segment_hold(struct abci_segment *segment);
void abci_segment_release(struct abci_segment *segment);
int abci_segment_fd(const struct abci_segment *segment);

/* Address of [offset, offset + bytes) of a segment, mapping its window when needed; NULL when no window holds the range. */
void *abci_segment_at(struct abci_segment *segment, uint64_t offset, uint64_t bytes);

/* Allocate from the own segment: page-aligned, lazily touched. 0 offset is never returned. */
int abci_segment_alloc(uint64_t bytes, void **ptr, uint64_t *offset);
int abci_segment_free(void *ptr);
/* Is [ptr, ptr + bytes) inside the own segment? Then *offset. A few comparisons: cheap enough for every call. */
bool abci_segment_find(const void *ptr, uint64_t bytes, uint64_t *offset);

/* May peers be let write to [ptr, ptr + bytes), found by abci_segment_find? It begins at a page, and what is behind it on its last
 * page belongs to nobody. */
bool abci_segment_whole(const void *ptr, uint64_t bytes);
/* Give pages up that peers may still write to: the same addresses, but private from now on; what peers write there reaches nobody.
 * The contents stay unless there is no memory for a copy. abci_segment_find does not find them any more. ABC_ERR_MEMORY when the
 * kernel refuses even empty pages: then they stay shared, and their place is never used again. */
int abci_segment_detach(void *ptr, uint64_t bytes);

/*
 * What nobody may touch, in the testing library under AddressSanitizer: the memory behind an allocation, which has a page of its
 * own for this, and behind what is in use of a piece of staging. Elsewhere nothing. open takes shut back. This process's mapping
 * only.
 */
#if defined(ABCI_HOOKS) && defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define ABCI_SEGMENT_FENCE 4096ull
static inline void abci_segment_shut(const void *ptr, uint64_t bytes)
{
    __asan_poison_memory_region(ptr, bytes);
}
static inline void abci_segment_open(const void *ptr, uint64_t bytes)
{
    __asan_unpoison_memory_region(ptr, bytes);
}
#else
#define ABCI_SEGMENT_FENCE 0ull
static inline void abci_segment_shut(const void *ptr, uint64_t bytes)
{
    (void)ptr;
    (void)bytes;
}
static inline void abci_segment_open(const void *ptr, uint64_t bytes)
{
    (void)ptr;
    (void)bytes;
}
#endif

/* List a control block for `abcomm inspect`; remove it again. */
void abci_segment_list(uint64_t offset);
void abci_segment_unlist(uint64_t offset);

#endif
