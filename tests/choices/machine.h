/*
 * machine.h - a machine that was never measured: what a communicator would have found on it at creation is drawn, and set in place
 * of what was found here. Private to tests/choices.
 */
#ifndef TEST_MACHINE_H
#define TEST_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct machine {
    double hand_off, crowding; /* seconds; ranks a CPU */
    double staged;             /* seconds per byte */
    uint32_t remote_from;      /* KiB; 0: never */
    uint32_t remote_huge;      /* KiB of a block; 0: never. Which memory is huge is drawn, too, by its address */
    uint64_t unreadable;       /* bit: peers may not read this rank by process_vm_readv */
    bool stream_shared;        /* streaming stores into what a peer has read */
    uint64_t stream_from;      /* bytes */
    bool fences;               /* the kernel's barrier is missing */
    uint32_t spins;            /* where nobody shares a CPU */
};

void machine_draw(uint64_t *dice, struct machine *m);
void machine_text(const struct machine *m, char *text, size_t capacity);
/* From now on communicators of this process and its children are created on it. */
void machine_use(const struct machine *m);

/* Sizes at which something changes on this machine, ascending without doubles; fixed ones and those of the choice are the caller's.
 */
struct abc_comm;
size_t machine_edges(struct abc_comm *comm, uint64_t *edge, size_t capacity);

#endif
