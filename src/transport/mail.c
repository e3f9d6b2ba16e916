/*
 * mail.c - stage 4: mailboxes come into being. A rank that sends its first message allocates a table with the place of its mailbox
 * to each peer, and then one mailbox a peer that it talks to. They live as long as the control block, since a receiver that is late
 * may still write its two words. Under the claim; allocates only on first use.
 */
#include <string.h>

#include "transport/mail.h"

/* What this rank has made: shm->mail points to one row a peer. */
struct abci_mail_own {
    struct abci_mailbox *box;
    char *tiles;
};

static int make_table(struct abci_shm *shm)
{
    void *memory;
    uint64_t offset, bytes = sizeof(_Atomic uint64_t) * (uint64_t)shm->nranks;
    shm->mail = abci_alloc(sizeof *shm->mail * (size_t)shm->nranks);
    if (!shm->mail)
        return abci_error(ABC_ERR_MEMORY, "no memory for mailboxes to %d peers", shm->nranks);
    int status = abci_segment_alloc(bytes, &memory, &offset);
    if (status != ABC_OK) {
        abci_free(shm->mail);
        shm->mail = NULL;
        return status;
    }
    memset(memory, 0, bytes);
    shm->mail_table = memory;
    atomic_store_explicit(&shm->control->mail, offset, memory_order_release); /* the zeros; pairs with abci_mail_find */
    return ABC_OK;
}

struct abci_mailbox *abci_mail_open(struct abci_shm *shm, int peer, int *status)
{
    void *memory;
    uint64_t offset;
    *status = shm->mail ? ABC_OK : make_table(shm);
    if (*status != ABC_OK)
        return NULL;
    struct abci_mail_own *own = &shm->mail[peer];
    if (own->box)
        return own->box;
    *status = abci_segment_alloc(sizeof *own->box, &memory, &offset);
    if (*status != ABC_OK)
        return NULL;
    own->box = memory;
    memset(own->box, 0, offsetof(struct abci_mailbox, page));
    atomic_store_explicit(&shm->mail_table[peer], offset, memory_order_release); /* the zeros; pairs with abci_mail_find */
    abci_shm_notify(shm);
    return own->box;
}

char *abci_mail_tiles(struct abci_shm *shm, int peer, int *status)
{
    struct abci_mail_own *own = &shm->mail[peer];
    void *memory;
    *status = ABC_OK;
    if (own->tiles)
        return own->tiles;
    *status = abci_segment_alloc(ABCI_MAIL_TILE * ABCI_MAIL_TILES + ABCI_MAIL_HEAD * ABCI_MAIL_HEADS, &memory, &own->box->tiles);
    if (*status == ABC_OK)
        own->tiles = memory;
    return own->tiles;
}

struct abci_mailbox *abci_mail_find(const struct abci_shm *shm, int peer, int *status)
{
    const struct abci_shm_peer *p = &shm->peer[peer];
    *status = ABC_OK;
    uint64_t at = atomic_load_explicit(&p->control->mail, memory_order_acquire);
    if (at == 0)
        return NULL;
    uint64_t bytes = sizeof(_Atomic uint64_t) * (uint64_t)shm->nranks;
    const _Atomic uint64_t *table = abci_segment_at(p->segment, at, bytes);
    uint64_t offset = table ? atomic_load_explicit(&table[shm->rank], memory_order_acquire) : 0;
    if (table && offset == 0)
        return NULL;
    struct abci_mailbox *box = table ? abci_segment_at(p->segment, offset, sizeof *box) : NULL;
    if (!box)
        *status = abci_error(ABC_ERR_MEMORY, "cannot map the mailbox of rank %d (ulimit -v?)", peer);
    return box;
}

void abci_mail_free(struct abci_shm *shm)
{
    for (int r = 0; shm->mail && r < shm->nranks; r++) {
        abci_segment_free(shm->mail[r].tiles);
        abci_segment_free(shm->mail[r].box);
    }
    abci_segment_free(shm->mail_table);
    abci_free(shm->mail);
    shm->mail = NULL;
    shm->mail_table = NULL;
}
