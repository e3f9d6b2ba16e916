/*
 * shm.c - stage 4: life of a rank's control block, and ringing. Neighbours: segment.c below, plan/run.c above. Owner: the
 * communicator. No allocation or system call on the hot path: ringing happens only when a peer has gone to sleep.
 */
#include "transport/mail.h"
#include "transport/shm.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Registering twice is harmless; a kernel without it makes publishers use a fence. */
static bool register_membarrier(void)
{
#ifdef __SANITIZE_THREAD__
    return false;
#else
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
#endif
}

/* Staging tokens of two ranks. They live as long as the control block: a late writer must find them. */
static int prepare_swap(struct abci_shm *shm)
{
    void *memory;
    int status = abci_segment_alloc((uint64_t)ABCI_SWAPS * ABCI_SWAP_BYTES, &memory, &shm->control->swap_offset);
    if (status == ABC_OK)
        shm->swap[shm->rank] = memory;
    return status;
}

int abci_shm_prepare(struct abci_shm *shm, int rank, int nranks)
{
    memset(shm, 0, sizeof *shm);
    shm->rank = rank;
    shm->nranks = nranks;
    shm->segment = abci_segment_self();
    shm->peer = shm->segment ? abci_alloc(sizeof *shm->peer * (size_t)nranks) : NULL;
    if (!shm->peer)
        return shm->segment ? abci_error(ABC_ERR_MEMORY, "no memory for %d peers", nranks) : ABC_ERR_MEMORY;
    for (int r = 0; r < nranks; r++)
        shm->peer[r].pidfd = -1;
    void *block;
    int status = abci_segment_alloc(sizeof *shm->control, &block, &shm->control_offset);
    if (status != ABC_OK) {
        abci_free(shm->peer);
        shm->peer = NULL;
        return status;
    }
    shm->control = block;
    memset(shm->control, 0, sizeof *shm->control);
    shm->control->magic = ABCI_RECORD_MAGIC;
    shm->control->rank = (uint32_t)rank;
    shm->control->nranks = (uint32_t)nranks;
    shm->control->pid = (uint32_t)getpid();
    shm->control->self = (uint64_t)(uintptr_t)shm->control;
    shm->barrier_by_kernel = register_membarrier();
    abci_segment_hold(shm->segment);
    shm->peer[rank].control = shm->control;
    shm->peer[rank].segment = shm->segment;
    shm->failure = rank == 0 ? &shm->control->failure : NULL;
    abci_segment_list(shm->control_offset);
    return nranks == 2 ? prepare_swap(shm) : ABC_OK;
}

int abci_shm_bind(struct abci_shm *shm, int peer, struct abci_segment *segment, uint64_t control_offset, int pidfd)
{
    struct abci_shm_peer *p = &shm->peer[peer];
    p->segment = segment;
    p->bound = true;
    p->pidfd = pidfd;
    p->control = abci_segment_at(segment, control_offset, sizeof *p->control);
    if (!p->control)
        return abci_error(ABC_ERR_MEMORY, "the control block of rank %d cannot be mapped", peer);
    if (p->control->magic != ABCI_RECORD_MAGIC || p->control->rank != (uint32_t)peer || p->control->nranks != (uint32_t)shm->nranks)
        return abci_error(ABC_ERR_PEER, "rank %d's control block is not one of this communicator", peer);
    p->pid = p->control->pid;
    if (peer == 0)
        shm->failure = &p->control->failure;
    if (shm->nranks == 2)
        shm->swap[peer] = abci_segment_at(segment, p->control->swap_offset, (uint64_t)ABCI_SWAPS * ABCI_SWAP_BYTES);
    if (shm->nranks == 2 && !shm->swap[peer])
        return abci_error(ABC_ERR_MEMORY, "the staging of rank %d cannot be mapped", peer);
    return ABC_OK;
}

static void ring_futex(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

void abci_shm_ring(struct abci_control *control)
{
    atomic_fetch_add_explicit(&control->doorbell, 1, memory_order_seq_cst); /* pairs with the sleeper's load in wait.c */
    ring_futex(&control->doorbell);
}

static void ring_each(struct abci_shm *shm, int first, uint64_t bits)
{
    for (; bits && !abci_mutated("c4_no_ring"); bits &= bits - 1) {
        int r = first + __builtin_ctzll(bits);
        if (r < shm->nranks && r != shm->rank && shm->peer[r].control)
            abci_shm_ring(shm->peer[r].control);
    }
}

/* Beyond 64 ranks a bit of `waiters` says only that there may be sleepers in its column of `waiter`. They set theirs first. */
void abci_shm_ring_waiters(struct abci_shm *shm)
{
    struct abci_control *c = shm->control;
    uint64_t bits = atomic_exchange_explicit(&c->waiters, 0, memory_order_seq_cst);
    if (shm->nranks <= 64) {
        ring_each(shm, 0, bits);
        return;
    }
    for (int w = 0; w * 64 < shm->nranks; w++) {
        uint64_t here = atomic_load_explicit(&c->waiter[w], memory_order_seq_cst) & bits;
        if (here)
            ring_each(shm, w * 64, atomic_fetch_and_explicit(&c->waiter[w], ~here, memory_order_seq_cst) & here);
    }
}

void abci_shm_leave(struct abci_shm *shm)
{
    uint64_t bit = 1ull << (shm->rank % 64);
    for (int r = 0; r < shm->nranks; r++)
        if (r != shm->rank && shm->peer[r].control) {
            struct abci_control *c = shm->peer[r].control;
            atomic_fetch_or_explicit(&c->left[shm->rank / 64], bit, memory_order_release); /* the last touch; pairs with unused */
            shm->peer[r].control = NULL;
        }
    shm->failure = NULL;
}

void abci_shm_abandon(struct abci_shm *shm)
{
    for (int r = 0; r < shm->nranks; r++) {
        if (r == shm->rank)
            continue;
        abci_segment_release(shm->peer[r].segment);
        shm->peer[r].segment = NULL;
        if (shm->peer[r].pidfd >= 0)
            close(shm->peer[r].pidfd);
        shm->peer[r].pidfd = -1;
    }
}

bool abci_shm_unused(struct abci_shm *shm)
{
    for (int r = 0; r < shm->nranks; r++) {
        if (r == shm->rank || !shm->peer[r].bound)
            continue;
        uint64_t word = atomic_load_explicit(&shm->control->left[r / 64], memory_order_acquire); /* pairs with abci_shm_leave */
        if (!(word >> (r % 64) & 1) && !abci_shm_peer_gone(shm, r))
            return false;
    }
    return true;
}

void abci_shm_free(struct abci_shm *shm)
{
    for (int r = 0; shm->peer && r < shm->nranks; r++) {
        abci_segment_release(shm->peer[r].segment);
        if (shm->peer[r].pidfd >= 0)
            close(shm->peer[r].pidfd);
    }
    abci_free(shm->peer);
    shm->peer = NULL;
    if (shm->control) {
        if (shm->nranks == 2)
            abci_segment_free(shm->swap[shm->rank]);
        abci_mail_free(shm);
        abci_segment_unlist(shm->control_offset);
        abci_segment_free(shm->events);
        shm->events = NULL;
        abci_segment_free(shm->control);
        shm->control = NULL;
    }
}
