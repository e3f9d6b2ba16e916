/*
 * test_life.c - communicators come and go: split in all ways, destroyed in any order, made two hundred times; what a destroyed rank
 * leaves to slower peers; and fork().
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

/* ---- split ---- */

static bool sums_to(struct rank *r, abc_comm *comm, int32_t mine, int32_t wanted, const char *what)
{
    int32_t sum = 0;
    return check_status(r, abc_allreduce(&mine, &sum, 1, ABC_I32, ABC_SUM, comm), ABC_OK, what) &&
           check(r, sum == wanted, "%s: %d instead of %d", what, sum, wanted);
}

static bool place(struct rank *r, abc_comm *comm, int rank, int size, const char *what)
{
    return check(r, abc_comm_rank(comm) == rank && abc_comm_size(comm) == size, "%s: rank %d of %d instead of %d of %d", what,
                 abc_comm_rank(comm), abc_comm_size(comm), rank, size);
}

/* Odd and even, keys reversed; the order of ranks shows in an allgather. */
static bool split_colors(struct rank *r)
{
    abc_comm *half = NULL;
    int color = r->rank % 2, size = (r->nranks + 1 - color) / 2, total = 0;
    int32_t all[MAX_TEST_RANKS];
    bool ok = check_status(r, abc_comm_split(r->comm, color, -r->rank, &half), ABC_OK, "split");
    ok = ok && place(r, half, size - 1 - r->rank / 2, size, "half");
    ok = ok && check_status(r, abc_allgather(&r->rank, all, 1, ABC_I32, half), ABC_OK, "allgather");
    for (int i = 0; i < size && ok; i++) {
        ok = check(r, all[i] == 2 * (size - 1 - i) + color, "member %d is rank %d", i, all[i]);
        total += all[i];
    }
    abc_comm *quarter = NULL, *self = NULL;
    ok = ok && sums_to(r, half, r->rank, total, "half");
    ok = ok && check_status(r, abc_comm_split(half, r->rank / 2 % 2, 0, &quarter), ABC_OK, "nested split");
    ok = ok && check_status(r, abc_comm_split(quarter, r->rank, 0, &self), ABC_OK, "self") && place(r, self, 0, 1, "self");
    ok = ok && sums_to(r, self, 17, 17, "self") && check_status(r, abc_comm_destroy(half), ABC_OK, "parent first");
    ok = ok && sums_to(r, quarter, 1, abc_comm_size(quarter), "child of a destroyed parent");
    return ok && check_status(r, abc_comm_destroy(self), ABC_OK, "self") &&
           check_status(r, abc_comm_destroy(quarter), ABC_OK, "quarter");
}

static bool split_some(struct rank *r)
{
    abc_comm *some = (abc_comm *)r, *none = (abc_comm *)r;
    int color = r->rank == 1 ? -1 : 2000000000;
    bool ok = check_status(r, abc_comm_split(r->comm, color, 5, &some), ABC_OK, "split");
    ok = ok && check(r, (some == NULL) == (color < 0), "who takes no part gets NULL");
    ok = ok && check_status(r, abc_comm_split(r->comm, -7, 0, &none), ABC_OK, "nobody") && check(r, none == NULL, "nobody");
    if (!ok || !some)
        return ok;
    ok = place(r, some, r->rank - (r->rank > 1), r->nranks - 1, "without one") && sums_to(r, some, 1, r->nranks - 1, "without one");
    return ok && check_status(r, abc_comm_destroy(some), ABC_OK, "destroy");
}

static int split(struct rank *r)
{
    bool ok = true;
    for (int i = 0; i < 8 && ok; i++) {
        doing(r, "split, round %d", i);
        ok = split_colors(r) && split_some(r) && sums_to(r, r->comm, 2, 2 * r->nranks, "the whole");
    }
    return !ok;
}

/* ---- again and again ---- */

static int many(struct rank *r)
{
    bool ok = true;
    int before = 0;
    for (int i = 0; i < 200 && ok; i++) {
        abc_comm *c = NULL;
        doing(r, "creation %d", i);
        ok = check_status(r, rank_create(r, i % 3 == 0, 0, &c), ABC_OK, "create") && sums_to(r, c, i, i * r->nranks, "fresh");
        ok = ok && check_status(r, abc_comm_destroy(c), ABC_OK, "destroy");
        if (i == 20 || i == 199) { /* all are through; then a rank alone sweeps what could not go before */
            abc_comm_config config;
            abc_comm_config_init(&config);
            config.rank = 0;
            config.nranks = 1;
            ok = ok && meet(r) && check_status(r, abc_comm_create(&config, &c), ABC_OK, "alone");
            ok = ok && check_status(r, abc_comm_destroy(c), ABC_OK, "alone") && meet(r);
            int now = r->rank == 0 || !r->threads ? open_descriptors() : 0; /* looking takes one */
            if (i == 20)
                before = now;
            else
                ok = ok && check(r, now == before, "%d descriptors, %d after a few", now, before);
            ok = ok && meet(r); /* ranks that are threads share their descriptors */
        }
    }
    return !ok;
}

/* ---- destroyed before the slowest has read ---- */

/*
 * Rank 0 broadcasts and destroys; its timeout is shorter than rank 1's delay. Its staging is free again then, and holds other
 * things when rank 1 comes at last: that one must be told, not given what is there now.
 */
#define BROADCAST 100000

static int left_too_early(struct rank *r)
{
    abc_comm *c = NULL;
    int32_t *x = malloc(BROADCAST * sizeof *x);
    bool ok = check_status(r, rank_create(r, 0, r->rank == 0 ? 0.4 : 20, &c), ABC_OK, "create");
    for (int i = 0; i < BROADCAST; i++)
        x[i] = r->rank == 0 ? i : -1;
    if (r->rank == 0) {
        void *p[256];
        ok = ok && check_status(r, abc_broadcast(x, x, BROADCAST, ABC_I32, 0, c), ABC_OK, "broadcast");
        int status = abc_comm_destroy(c);
        ok = ok && check_status(r, status, ABC_ERR_TIMEOUT, "destroy while a peer has not read");
        for (int i = 0; i < 256 && ok; i++) {
            ok = check_status(r, abc_mem_alloc(64 << 10, &p[i]), ABC_OK, "alloc");
            if (ok)
                memset(p[i], 0x55, 64 << 10);
        }
        free(x);
        return !(meet(r) && meet(r) && ok);
    }
    if (!meet(r))
        return 1;
    int status = abc_broadcast(x, x, BROADCAST, ABC_I32, 0, c);
    for (int i = 0; i < BROADCAST && ok && status == ABC_OK; i++)
        ok = check(r, x[i] == i, "the broadcast says OK, but element %d is %x", i, (unsigned)x[i]);
    ok = ok && meet(r);
    abc_comm_destroy(c);
    free(x);
    return !ok;
}

/* ---- fork ---- */

/* What a child of a rank may and may not do. Its exit code says which step went wrong. */
static void child(struct rank *r, void *arena)
{
    int32_t x = 3, y = 0;
    abc_request *q = NULL;
    abc_comm_config config;
    abc_comm *own = NULL;
    alarm(20);
    if (abc_allreduce(&x, &y, 1, ABC_I32, ABC_SUM, r->comm) != ABC_ERR_HANDLE || !strstr(abc_last_error(), "fork"))
        _exit(1);
    if (abc_barrier_start(r->comm, &q) != ABC_ERR_HANDLE || abc_comm_destroy(r->comm) != ABC_ERR_HANDLE)
        _exit(2);
    if (abc_comm_abort(r->comm, "child") != ABC_ERR_HANDLE || abc_comm_split(r->comm, 0, 0, &own) != ABC_ERR_HANDLE)
        _exit(3);
    if (*(int32_t *)arena != 1234)
        _exit(4);
    abc_comm_config_init(&config);
    config.rank = 0;
    config.nranks = 1;
    if (abc_comm_create(&config, &own) != ABC_OK || abc_allreduce(&x, &y, 1, ABC_I32, ABC_SUM, own) != ABC_OK || y != 3)
        _exit(5);
    if (abc_comm_destroy(own) != ABC_OK)
        _exit(6);
    void *mine;
    if (abc_mem_alloc(1000, &mine) != ABC_OK || abc_mem_free(mine) != ABC_OK)
        _exit(7);
    _exit(0);
}

static int forks(struct rank *r)
{
    void *arena;
    bool ok = check_status(r, abc_mem_alloc(4096, &arena), ABC_OK, "alloc");
    for (int i = 0; i < 5 && ok; i++) {
        int state = 0;
        *(int32_t *)arena = 1234;
        pid_t pid = fork();
        if (pid == 0)
            child(r, arena);
        ok = sums_to(r, r->comm, i, i * r->nranks, "the parent goes on") && check(r, waitpid(pid, &state, 0) == pid, "waitpid");
        ok = ok && check(r, WIFEXITED(state) && WEXITSTATUS(state) == 0, "the child ended with %x", (unsigned)state);
        ok = ok && sums_to(r, r->comm, i, i * r->nranks, "the parent after the child");
    }
    abc_mem_free(arena);
    return !ok;
}

/* Two ranks that are children of two ranks make a communicator among themselves, while the parents use theirs. */
static int forks_meet(struct rank *r)
{
    int state = 0;
    bool ok = sums_to(r, r->comm, 1, r->nranks, "before");
    pid_t pid = fork();
    if (pid == 0) {
        abc_comm *c = NULL;
        alarm(30);
        bool fine = check_status(r, rank_create(r, 0, 0, &c), ABC_OK, "create in a child");
        for (int i = 0; i < 50 && fine; i++)
            fine = sums_to(r, c, i, i * r->nranks, "children");
        _exit(!(fine && abc_comm_destroy(c) == ABC_OK));
    }
    for (int i = 0; i < 50 && ok; i++)
        ok = sums_to(r, r->comm, i, i * r->nranks, "parents");
    ok = ok && check(r, waitpid(pid, &state, 0) == pid && state == 0, "the child ended with %x", (unsigned)state);
    return !ok;
}

/* Rank 1 dies; its child lives on. Rank 0 must learn of the death at once. */
static int survivor(struct rank *r)
{
    _Atomic int *word = board_words(r->board);
    bool ok = sums_to(r, r->comm, 1, r->nranks, "before");
    if (r->rank == 1) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20);
            for (;;)
                pause();
        }
        atomic_store(&word[1], pid);
        meet(r);
        nap(0.2);
        _exit(0);
    }
    ok = ok && meet(r);
    int32_t x = 1, y;
    double start = now_seconds();
    ok = ok && check_status(r, abc_allreduce(&x, &y, 1, ABC_I32, ABC_SUM, r->comm), ABC_ERR_PEER, "a peer died");
    ok = ok && check(r, now_seconds() - start < 3, "it took %.1f s", now_seconds() - start);
    pid_t orphan = atomic_load(&word[1]);
    ok = check(r, kill(orphan, 0) == 0, "the orphan is gone, nothing was shown") && ok;
    kill(orphan, SIGKILL);
    abc_comm_destroy(r->comm);
    r->comm = NULL;
    return !ok;
}

int main(int argc, char **argv)
{
    struct options o;
    static const char *const staged[] = {"ABCOMM_PVR=off", NULL};
    options_read(argc, argv, &o);
    for (int threads = 0; threads < 2; threads++) {
        job_run(&(struct job){.name = "split", .body = split, .nranks = 5, .threads = threads});
        job_run(&(struct job){.name = "split, progress thread", .body = split, .nranks = 4, .threads = threads, .progress = 1});
        job_run(&(struct job){.name = "200 communicators", .body = many, .nranks = 3, .threads = threads, .no_comm = true});
        job_run(&(struct job){.name = "left too early",
                              .body = left_too_early,
                              .nranks = 2,
                              .threads = threads,
                              .no_comm = true,
                              .environment = staged});
    }
    job_run(&(struct job){.name = "fork", .body = forks, .nranks = 3});
    job_run(&(struct job){.name = "fork, progress thread", .body = forks, .nranks = 2, .progress = 1});
    job_run(&(struct job){.name = "children meet", .body = forks_meet, .nranks = 2});
    job_run(&(struct job){.name = "a child outlives its rank", .body = survivor, .nranks = 2});
    return jobs_end();
}
