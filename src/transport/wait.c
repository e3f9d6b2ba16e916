/*
 * wait.c - stage 4: what a rank does while nothing moves: spin, yield, sleep on its own doorbell. Sleeping costs two atomic
 * operations a blocked peer and one membarrier, which lets publishers go without a fence. Owner: the holder of the claim.
 *
 * No wake-up is lost: the sleeper notes its doorbell, sets its bit in the waiters word of each rank that it waits for, orders that
 * before everybody's loads (membarrier), and looks once more before it sleeps. A publisher whose store came too late for that look
 * loads the waiters word after the barrier, finds the bit, and rings. The first milliseconds of a wait do without the barrier:
 * there a lost wake-up is possible and costs a millisecond, while a row of short waits makes no system call but futex.
 */
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "transport/shm.h"

#define SLICE 0.1        /* longest sleep between two looks at who is alive */
#define BRIEF 5e-3       /* a wait up to here sleeps without asking the kernel for a barrier or who is alive, */
#define BRIEF_SLICE 1e-3 /* so little at a time that a wake-up lost to the missing barrier costs no more */

void abci_shm_wait_policy(struct abci_shm *shm, double timeout)
{
    int64_t wanted = abci_setting_int(ABCI_SET_SPIN);
    bool crowded = (double)shm->nranks > shm->cpus;
    /* A crowded host: the awaited rank needs this CPU. Else spinning is free, for longer than most steps take. */
    shm->wait.spins = wanted >= 0 ? (uint32_t)wanted : crowded ? 16 : 4000;
    shm->wait.skipped = wanted < 0 && crowded ? 15 : 0;
    shm->wait.yield_time = crowded ? 2e-3 : 2e-5;
    shm->wait.slow = abci_setting_real(ABCI_SET_SLOW);
    shm->wait.timeout = timeout;
}

bool abci_shm_peer_gone(const struct abci_shm *shm, int peer)
{
    if (shm->peer[peer].pidfd < 0)
        return false;
    struct pollfd p = {.fd = shm->peer[peer].pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

void abci_shm_order_others(const struct abci_shm *shm)
{
    if (shm->barrier_by_kernel)
        syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
}

static void arm(struct abci_shm *shm, struct abci_waiting *w, const uint16_t *blocked, int nblocked, bool brief)
{
    w->bell = atomic_load_explicit(&shm->control->doorbell, memory_order_seq_cst);
    for (int i = 0; i < nblocked; i++) {
        struct abci_control *c = shm->peer[blocked[i]].control;
        if (c && shm->nranks > 64) /* first, so that whoever takes the shared bit below finds this one */
            atomic_fetch_or_explicit(&c->waiter[shm->rank / 64], 1ull << (shm->rank % 64), memory_order_seq_cst);
        if (c)
            atomic_fetch_or_explicit(&c->waiters, 1ull << (shm->rank % 64), memory_order_seq_cst);
    }
    if (!brief)
        abci_shm_order_others(shm);
    w->armed = true;
    w->brief = brief;
}

/* Beyond 64 ranks the bit in `waiters` may stand for another sleeper too: it stays, and costs its owner one look. */
void abci_shm_wait_over(struct abci_shm *shm, struct abci_waiting *w, const uint16_t *blocked, int nblocked)
{
    for (int i = 0; w->armed && i < nblocked; i++) {
        struct abci_control *c = shm->peer[blocked[i]].control;
        _Atomic uint64_t *word = !c ? NULL : shm->nranks > 64 ? &c->waiter[shm->rank / 64] : &c->waiters;
        if (word && atomic_load_explicit(word, memory_order_relaxed))
            atomic_fetch_and_explicit(word, ~(1ull << (shm->rank % 64)), memory_order_seq_cst);
    }
    w->armed = w->said = false;
    w->spins = 0;
    w->since = 0;
}

/*
 * Is this rank's bit set at every blocked peer? The look between arming and sleeping may have got on to another one, which knows
 * nothing of this rank yet and would not ring.
 */
static bool armed_at_all(const struct abci_shm *shm, const uint16_t *blocked, int nblocked)
{
    for (int i = 0; i < nblocked; i++) {
        const struct abci_control *c = shm->peer[blocked[i]].control;
        if (c && !abci_shm_is_waiter(c, (uint32_t)shm->rank))
            return false;
    }
    return true;
}

static void sleep_on_doorbell(struct abci_shm *shm, struct abci_waiting *w, double longest)
{
    struct timespec t = {.tv_nsec = (long)(longest * 1e9)};
    if (longest > 0)
        syscall(SYS_futex, &shm->control->doorbell, FUTEX_WAIT, w->bell, &t, NULL, 0);
    w->armed = false;
}

/* A blocked peer that has died or left will never write: say which. The caller has looked at its words after this was true once. */
static int find_gone(const struct abci_shm *shm, const uint16_t *blocked, int nblocked)
{
    for (int i = 0; i < nblocked; i++) {
        int r = blocked[i];
        uint64_t left = atomic_load_explicit(&shm->control->left[r / 64], memory_order_acquire);
        if (left >> (r % 64) & 1 || abci_shm_peer_gone(shm, r))
            return r;
    }
    return -1;
}

/* Is the peer's process stopped (SIGSTOP, a debugger)? Only to name it: where /proc does not tell, it is not. */
static bool is_stopped(const struct abci_shm *shm, int peer)
{
    char path[32], text[512];
    if (shm->peer[peer].pidfd < 0)
        return false;
    snprintf(path, sizeof path, "/proc/%u/stat", shm->peer[peer].pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *state = strrchr(text, ')'); /* the name before it may hold anything */
    return state && state[1] == ' ' && (state[2] == 'T' || state[2] == 't');
}

/*
 * Who holds everybody up? The awaited rank may itself wait for a third; a sleeper's bits in the waiters words tell for whom. Among
 * all that are reached so: a stopped one, else one that waits for nobody, else the first awaited.
 */
static int find_culprit(const struct abci_shm *shm, const uint16_t *blocked, int nblocked)
{
    uint64_t reached[ABCI_RANK_WORDS] = {0}, done[ABCI_RANK_WORDS] = {0};
    int idle = -1;
    if (nblocked == 0)
        return -1;
    for (int i = 0; i < nblocked; i++)
        reached[blocked[i] / 64] |= 1ull << (blocked[i] % 64);
    done[shm->rank / 64] |= 1ull << (shm->rank % 64);
    for (int w = 0; w < ABCI_RANK_WORDS;) {
        uint64_t next = reached[w] & ~done[w];
        if (next == 0) {
            w++;
            continue;
        }
        int r = w * 64 + __builtin_ctzll(next);
        bool waits = false;
        if (is_stopped(shm, r))
            return r;
        for (int k = 0; k < shm->nranks; k++) {
            const struct abci_control *c = shm->peer[k].control;
            if (k == r || !c || !abci_shm_is_waiter(c, (uint32_t)r))
                continue;
            waits = true;
            reached[k / 64] |= 1ull << (k % 64);
            w = k / 64 < w ? k / 64 : w;
        }
        if (!waits && idle < 0)
            idle = r;
        done[r / 64] |= 1ull << (r % 64);
    }
    return idle >= 0 ? idle : blocked[0];
}

/*
 * Waiting has lasted: is it pointless? A peer must look dead twice, with a look at its words in between: it may have published and
 * then left.
 */
static int pointless(struct abci_shm *shm, const uint16_t *blocked, int nblocked, double waited, double timeout, int *culprit)
{
    int gone = find_gone(shm, blocked, nblocked), before = *culprit;
    *culprit = gone;
    if (gone >= 0)
        return gone == before ? ABC_ERR_PEER : ABC_PENDING;
    if (waited <= timeout)
        return ABC_OK;
    *culprit = find_culprit(shm, blocked, nblocked);
    return ABC_ERR_TIMEOUT;
}

/*
 * Gives the CPU away if an awaited rank was last seen waiting on this very one: it cannot get on while this rank spins, however
 * many CPUs there are. Ranks that nobody binds meet on one now and then.
 */
void abci_shm_give_way(const struct abci_shm *shm, const uint16_t *blocked, int nblocked)
{
    int cpu = sched_getcpu();
    uint32_t here = (uint32_t)cpu + 1;
    if (cpu < 0)
        return;
    if (atomic_load_explicit(&shm->control->cpu, memory_order_relaxed) != here)
        atomic_store_explicit(&shm->control->cpu, here, memory_order_relaxed);
    for (int i = 0; i < nblocked; i++) {
        const struct abci_control *c = shm->peer[blocked[i]].control;
        if (c && atomic_load_explicit(&c->cpu, memory_order_relaxed) == here) {
            sched_yield();
            return;
        }
    }
}

int abci_shm_wait(struct abci_shm *shm, struct abci_waiting *w, const uint16_t *blocked, int nblocked, double timeout,
                  bool may_sleep, int *culprit)
{
    if (w->spins < shm->wait.spins) {
        w->spins++;
        abci_shm_relax(shm, w->spins, blocked, nblocked);
        return ABC_PENDING;
    }
    double now = abci_now();
    if (w->since == 0)
        w->since = now;
    double waited = now - w->since;
    if (waited < shm->wait.yield_time || (!may_sleep && now < w->next_look)) {
        sched_yield();
        return ABC_PENDING;
    }
    bool brief = waited < BRIEF && waited <= timeout;
    if (!w->armed && brief && may_sleep) {
        arm(shm, w, blocked, nblocked, true);
        return ABC_PENDING;
    }
    if (!w->armed) {
        int status = pointless(shm, blocked, nblocked, waited, timeout, culprit);
        w->next_look = now + SLICE / 10;
        if (status != ABC_OK || !may_sleep)
            return status != ABC_OK ? status : ABC_PENDING;
        arm(shm, w, blocked, nblocked, false);
        return ABC_PENDING;
    }
    if (!armed_at_all(shm, blocked, nblocked)) {
        arm(shm, w, blocked, nblocked, brief);
        return ABC_PENDING;
    }
    double left = timeout - waited, slice = w->brief ? BRIEF_SLICE : SLICE;
    sleep_on_doorbell(shm, w, left < slice ? left : slice);
    return ABC_PENDING;
}
