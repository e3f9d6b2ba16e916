/*
 * split.c - a part of a communicator becomes one. Everything goes over the parent: members already have each other's memory mapped,
 * so a split costs two allgathers and no connection.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"

struct ticket {
    int32_t color, key, status;
    uint32_t rank; /* in the parent */
    uint64_t control_offset;
};

static int by_key(const void *a, const void *b)
{
    const struct ticket *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int gather(struct abc_comm *parent, const void *mine, void *all, size_t bytes)
{
    return abc_allgather(mine, all, bytes / 4, ABC_I32, parent);
}

static int share_peer(struct abci_shm *shm, int r, const struct abc_comm *parent, const struct ticket *t)
{
    struct abci_shm_peer *from = &parent->shm->peer[t->rank];
    int pidfd = -1, status = ABC_OK;
    if (from->pidfd >= 0) {
        pidfd = abci_fault("dup pidfd") ? -1 : fcntl(from->pidfd, F_DUPFD_CLOEXEC, 0);
        if (pidfd < 0)
            status = abci_error_errno(ABC_ERR_SYSTEM, "a descriptor of rank %u cannot be duplicated", t->rank);
    }
    abci_segment_hold(from->segment);
    int bound = abci_shm_bind(shm, r, from->segment, t->control_offset, pidfd);
    shm->peer[r].readable = from->readable;
    return status != ABC_OK ? status : bound;
}

/* All peers, also after an error: it is too late to stop the others, so each must hear that this rank will not come. */
static int share_peers(struct abci_shm *shm, const struct abc_comm *parent, const struct ticket *all)
{
    char why[400] = "";
    int status = ABC_OK;
    for (int r = 0; r < shm->nranks; r++) {
        int one = r != shm->rank ? share_peer(shm, r, parent, &all[r]) : ABC_OK;
        if (status == ABC_OK && one != ABC_OK) {
            status = one;
            snprintf(why, sizeof why, "%s", abci_error_text());
        }
    }
    if (status == ABC_OK)
        return status;
    abci_shm_fail(shm, ABC_ERR_PEER, shm->rank, NULL, NULL, "rank %d could not finish the split: %s", shm->rank, why);
    return abci_error(status, "%s", why);
}

/* Keep the members of my color, in their new order. Returns how many; *me is my place. */
static int members(struct ticket *all, int n, int color, uint32_t parent_rank, int *me)
{
    int count = 0;
    for (int r = 0; r < n; r++)
        if (all[r].color == color)
            all[count++] = all[r];
    qsort(all, (size_t)count, sizeof *all, by_key);
    for (int r = 0; r < count; r++)
        if (all[r].rank == parent_rank)
            *me = r;
    return count;
}

/* The new control block must know its rank before peers look: so the first allgather only tells colors. */
static int split(struct abc_comm *parent, int color, int key, struct ticket *all, struct abc_comm **newcomm)
{
    struct ticket mine = {.color = color, .key = key, .rank = (uint32_t)parent->rank};
    int me = 0, count = 0;
    struct abci_shm *shm = NULL;
    int status = gather(parent, &mine, all, sizeof mine);
    if (status != ABC_OK)
        return status;
    parent->splits++; /* also where this rank takes no part: the number must stay the same on all ranks */
    if (color >= 0) {
        count = members(all, parent->nranks, color, mine.rank, &me);
        shm = abci_alloc(sizeof *shm);
        mine.status = shm ? abci_shm_prepare(shm, me, count) : abci_error(ABC_ERR_MEMORY, "no memory for a communicator");
        mine.control_offset = mine.status == ABC_OK ? shm->control_offset : 0;
    }
    status = gather(parent, &mine, all, sizeof mine);
    for (int r = 0; r < parent->nranks && status == ABC_OK; r++)
        if (all[r].status != ABC_OK)
            status = r == parent->rank ? mine.status : abci_error(ABC_ERR_PEER, "rank %d could not take part in the split", r);
    if (color >= 0 && status == ABC_OK) {
        members(all, parent->nranks, color, mine.rank, &me);
        status = share_peers(shm, parent, all);
    }
    if (color < 0 || status != ABC_OK) {
        if (shm && shm->control) {
            abci_shm_leave(shm);
            abci_comm_retire(shm);
        } else {
            abci_free(shm);
        }
        if (status == ABC_OK)
            *newcomm = NULL;
        return status;
    }
    shm->remote_for_all = parent->shm->remote_for_all;
    shm->cpus = parent->shm->cpus;
    uint32_t epoch = parent->epoch * 2654435761u ^ (uint32_t)(color + 1) ^ parent->splits << 8;
    struct abci_comm_config config = {.machine = parent->engine.machine,
                                      .tuning = abci_chooser_tuning(parent->chooser),
                                      .epoch = epoch,
                                      .timeout = parent->timeout,
                                      .progress = parent->has_thread};
    return abci_comm_assemble(shm, &config, newcomm);
}

ABC_API int abc_comm_split(abc_comm *comm, int color, int key, abc_comm **newcomm)
{
    int status = abci_comm_usable(comm);
    if (status != ABC_OK)
        return status;
    if (!newcomm)
        return abci_error(ABC_ERR_ARGUMENT, "the place for the new communicator is null");
    if (abci_group_here())
        return abci_error(ABC_ERR_STATE, "a split inside a group of calls; call abc_group_end first");
    abci_comm_reap();
    struct ticket *all = abci_alloc(sizeof *all * (size_t)comm->nranks);
    if (!all)
        return abci_error(ABC_ERR_MEMORY, "no memory for %d ranks", comm->nranks);
    status = split(comm, color, key, all, newcomm);
    abci_free(all);
    return status;
}
