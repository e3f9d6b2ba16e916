/*
 * fuzz_inspect.c - `abcomm inspect` reads memory that a broken process may have filled with anything. A segment with two ranks of
 * one communicator is laid out as the library does it, then the input changes it: places of 2 + 2 bytes (block, offset in words),
 * then 8 bytes that are stored there. Everything that the command prints is printed, as text and as JSON. No crash, no endless
 * output.
 */
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/inspect.h"
#include "tools/tools.h"
#include "transport/segment.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define RANKS 2
#define BLOCKS (1 + 2 * RANKS) /* head, then control block and ring of each rank */
#define BLOCK_BYTES ((uint64_t)(sizeof(struct abci_control) + sizeof(struct abci_event_ring) + 4096) & ~4095ull)
#define CHANGE 12

static uint8_t *segment;
static FILE *nowhere;

int tool_misuse(const char *name, const char *format, ...)
{
    (void)name, (void)format;
    return TOOL_USAGE;
}

static void *block(unsigned i)
{
    return segment + (uint64_t)(i % BLOCKS) * BLOCK_BYTES;
}

/* The memory of two ranks that have both started operation 3; rank 1 has ended it. */
static void lay_out(void)
{
    struct abci_segment_head *head = block(0);
    memset(segment, 0, BLOCKS * BLOCK_BYTES);
    head->magic = ABCI_SEGMENT_MAGIC;
    head->id[0] = 7;
    head->pid = (uint32_t)getpid();
    for (uint32_t r = 0; r < RANKS; r++) {
        struct abci_control *c = block(1 + r);
        struct abci_event_ring *ring = block(1 + RANKS + r);
        head->end[r] = (1 + r) * BLOCK_BYTES;
        c->magic = ABCI_RECORD_MAGIC;
        c->rank = r;
        c->nranks = RANKS;
        c->pid = head->pid;
        c->epoch = 1;
        c->events_offset = (1 + RANKS + r) * BLOCK_BYTES;
        for (uint32_t s = 1; s <= 3; s++) {
            c->header[s].head.sequence = s;
            c->header[s].head.count = s;
        }
        abci_event_ring_init(ring);
        for (uint64_t n = 0; n < 1 + (uint64_t)r; n++)
            ring->event[n] = (struct abci_event){.number = n + 1, .sequence = 3, .kind = (uint8_t)(ABCI_EVENT_START + n)};
        ring->next = 1 + r;
    }
}

static void change(const uint8_t *data, size_t size)
{
    for (; size >= CHANGE; data += CHANGE, size -= CHANGE) {
        uint16_t which, word;
        memcpy(&which, data, sizeof which);
        memcpy(&word, data + 2, sizeof word);
        uint64_t at = (uint64_t)word * 8;
        if (at + 8 <= BLOCK_BYTES)
            memcpy((uint8_t *)block(which) + at, data + 4, 8);
    }
}

/* The process looks at itself: its memfd is among its own open files. */
static void look(const char *format)
{
    char pid[16], name[] = "inspect", flag[16], events[] = "--events=256";
    char *arguments[] = {name, flag, events, pid, NULL};
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    snprintf(flag, sizeof flag, "%s", format);
    optind = 0;
    int code = tool_inspect(4, arguments);
    if (code != 0 && code != 1)
        abort();
}

static bool prepare(void)
{
    if (segment)
        return true;
    int fd = memfd_create("abcomm", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)(BLOCKS * BLOCK_BYTES)) != 0)
        return false;
    segment = mmap(NULL, BLOCKS * BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    nowhere = fopen("/dev/null", "w");
    return segment != MAP_FAILED && nowhere;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!prepare())
        return 0;
    FILE *out = stdout, *err = stderr;
    lay_out();
    change(data, size);
    stdout = stderr = nowhere;
    look("--json");
    look("--events=8");
    fflush(nowhere);
    stdout = out;
    stderr = err;
    return 0;
}
