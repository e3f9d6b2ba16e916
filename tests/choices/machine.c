/*
 * machine.c - draws machines, sets what was measured, and asks the engine and the chooser for the sizes at which something changes.
 */
#include "machine.h"

#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "comm/comm.h"
#include "harness.h"
#include "plan/price.h"
#include "plan/run_internal.h"
#include "transport/mail.h"
#include "tune/rules.h"

static struct machine current;

static uint64_t below(uint64_t *dice, uint64_t end)
{
    return random_next(dice) % end;
}

void machine_draw(uint64_t *dice, struct machine *m)
{
    static const double hand_offs[] = {2e-8, 6e-8, 0.99 * ABCI_DISTANT, ABCI_DISTANT, 2.5e-7, 2e-6, 3e-5};
    static const double crowdings[] = {1, 1, 1, 1.01, 2, 4.5, 30};
    static const uint32_t remotes[] = {0, 0, 0, 32, 256}, spins[] = {0, 1, 20, 4000}, huges[] = {0, 1, 16, 256};
    static const uint64_t streams[] = {16 << 20, 16 << 20, 1 << 20, 1, UINT64_MAX};
    m->hand_off = hand_offs[below(dice, 7)];
    m->crowding = crowdings[below(dice, 7)];
    m->staged = 1e-11 * (double)(1 + below(dice, 50));
    m->remote_from = remotes[below(dice, 5)];
    m->remote_huge = huges[below(dice, 4)];
    m->unreadable = below(dice, 4) ? 0 : random_next(dice);
    m->stream_shared = below(dice, 2);
    m->stream_from = streams[below(dice, 5)];
    m->fences = below(dice, 4) == 0;
    m->spins = spins[below(dice, 4)];
}

void machine_text(const struct machine *m, char *text, size_t capacity)
{
    snprintf(text, capacity,
             "hand-off %.0f ns, crowding %g, %.0f ps/B, remote from %u KiB (huge: %u)%s, %s stores, output %s, %s, %u spins",
             m->hand_off * 1e9, m->crowding, m->staged * 1e12, m->remote_from, m->remote_huge, m->unreadable ? " of some" : "",
             m->stream_shared ? "streaming" : "plain", m->stream_from > 1 << 20 ? "plain" : "streamed",
             m->fences ? "fences" : "barriers", m->spins);
}

/* The engine is open and has its settings, the chooser is not made yet. */
bool __wrap_abci_shm_is_huge(const void *memory, uint64_t bytes);
bool __wrap_abci_shm_is_huge(const void *memory, uint64_t bytes)
{
    return ((uintptr_t)memory >> 12) % 3 > 0; /* each rank decides alone, so any answer must be right */
}

static void set(struct abci_engine *e)
{
    const struct machine *m = &current;
    struct abci_shm *shm = e->shm;
    bool crowded = m->crowding > 1;
    e->machine.price.hand_off = m->hand_off;
    e->machine.price.crowding = m->crowding;
    e->machine.price.read = e->machine.price.copy = m->staged / 2;
    e->machine.stream_shared = m->stream_shared;
    e->machine.remote_from = m->remote_from;
    e->machine.remote_huge = m->remote_huge;
    e->stream_from = m->stream_from;
    shm->cpus = shm->nranks / m->crowding;
    shm->remote_for_all &= !(m->unreadable >> shm->rank & 1);
    shm->barrier_by_kernel &= !m->fences;
    shm->wait.spins = crowded ? 16 : m->spins;
    shm->wait.skipped = crowded ? 15 : 0;
    shm->wait.yield_time = crowded ? 2e-3 : 2e-5;
}

void machine_use(const struct machine *m)
{
    current = *m;
    abci_hook_measured = set;
}

struct edges {
    uint64_t *edge;
    size_t count, capacity;
};

static void add(struct edges *all, uint64_t bytes)
{
    size_t at = 0;
    while (at < all->count && all->edge[at] < bytes)
        at++;
    if (bytes == 0 || all->count == all->capacity || (at < all->count && all->edge[at] == bytes))
        return;
    memmove(all->edge + at + 1, all->edge + at, (all->count - at) * sizeof *all->edge);
    all->edge[at] = bytes;
    all->count++;
}

static void add_rules(struct edges *all, struct abc_comm *comm, abc_collective coll, bool arena, bool one_rounding)
{
    const struct abci_wish wish = {.collective = coll, .arena = arena, .one_rounding = one_rounding};
    const struct abci_rule *rule;
    if (abci_chooser_rules(comm->chooser, &wish, &rule) != ABC_OK)
        return;
    for (; rule->from != UINT64_MAX; rule++) {
        add(all, rule->from);
        add(all, rule->chunk);
        add(all, rule->chunk * 2);
        add(all, rule->chunk * (uint64_t)comm->nranks);
    }
}

size_t machine_edges(struct abc_comm *comm, uint64_t *edge, size_t capacity)
{
    static const uint64_t fixed[] = {ABCI_LINE,        ABCI_INLINE_LINE, ABCI_INLINE_HEADER, ABCI_INLINE_COUNTER,
                                     ABCI_EAGER,       ABCI_TINY_MAX,    ABCI_TOKEN_ROOM,    ABCI_SWAP_BYTES,
                                     ABCI_REMOTE_TILE, ABCI_JOINT_BYTES, ABCI_MAIL_LINE,     ABCI_MAIL_EAGER,
                                     ABCI_MAIL_HEAD,   ABCI_MAIL_TILE,   ABCI_MAIL_QUANTUM,  ABCI_MAIL_PAGED,
                                     ABCI_MAIL_REMOTE, 4u << 10,         2u << 20,           ABCI_MAIL_TILE * ABCI_MAIL_TILES};
    struct edges all = {edge, 0, capacity};
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        add(&all, fixed[i]);
    add(&all, (uint64_t)current.remote_from << 10);
    for (int twice = 10; twice <= 12; twice++) /* alltoall of more and of two ranks, allgather of two */
        add(&all, (uint64_t)current.remote_huge << twice);
    for (int c = 0; c < ABCI_PLANNED && comm->nranks > 1; c++)
        for (int k = 0; k < 4; k++)
            add_rules(&all, comm, (abc_collective)c, k & 1, k & 2);
    return all.count;
}
