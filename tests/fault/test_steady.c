/*
 * test_steady.c - what must not happen while work goes on, and what must not grow: system calls and allocations in the steady
 * state, descriptors, mappings, threads and memory over many operations and communicators, memory of a large job, CPU time of a
 * waiting rank. Linked with --wrap for the allocator; system calls are trapped by a seccomp filter that counts them and carries
 * none out.
 */
#include <errno.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "calls.h"
#include "job.h"

#include "comm/comm.h"

/* ---- The allocator ---- */

static _Atomic long allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
int __real_posix_memalign(void **p, size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
int __wrap_posix_memalign(void **p, size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    allocations++;
    return __real_malloc(bytes);
}
void *__wrap_calloc(size_t n, size_t bytes)
{
    allocations++;
    return __real_calloc(n, bytes);
}
void *__wrap_realloc(void *p, size_t bytes)
{
    allocations++;
    return __real_realloc(p, bytes);
}
int __wrap_posix_memalign(void **p, size_t alignment, size_t bytes)
{
    allocations++;
    return __real_posix_memalign(p, alignment, bytes);
}

/* ---- System calls ---- */

static volatile long calls_waiting, calls_sleeping, calls_other, last_other;

static bool count_call(long number, long *result)
{
    (void)result;
    if (number == SYS_sched_yield || number == SYS_futex) {
        calls_waiting++;
    } else if (number == SYS_membarrier || number == SYS_poll) {
        calls_sleeping++; /* each comes with a sleep of up to 0.1 s */
    } else {
        calls_other++;
        last_other = number;
    }
    return false;
}

static void work(abc_comm *comm, float *in, float *out, long count, long calls)
{
    for (long i = 0; i < calls; i++)
        must(abc_allreduce(in, out, (uint64_t)count, ABC_F32, ABC_SUM, comm) == ABC_OK, "allreduce: %s", abc_last_error());
}

/* a: elements, b: calls, c: arena */
static void steady(struct job *job, int rank, const struct scenario *s)
{
    setenv("ABCOMM_PVR", "off", 1);
    abc_comm *comm = must_create(job, rank, 0);
    void *memory;
    must(abc_mem_alloc((size_t)s->a * 8, &memory) == ABC_OK, "memory");
    float *in = s->c ? memory : malloc((size_t)s->a * 8), *out = in + s->a;
    memset(in, 0, (size_t)s->a * 8);
    work(comm, in, out, s->a, 200);
    meet(job);
    long before = allocations;
    calls_trap(count_call);
    work(comm, in, out, s->a, s->b);
    struct outcome *o = &job->shared->rank[rank];
    o->number[0] = calls_other;
    o->number[1] = last_other;
    o->number[2] = calls_waiting + calls_sleeping;
    o->number[3] = allocations - before;
    must(abc_comm_destroy(comm) == ABC_OK, "destroy: %s", abc_last_error());
    _exit(0);
}

static void run_steady(const struct scenario *s)
{
    for (int attempt = 0;; attempt++) {
        struct job job;
        job_start(&job, 2, steady, s);
        job_wait(&job, 60);
        job_must_succeed(&job);
        const struct outcome *o = job.shared->rank;
        double load = 0;
        for (int r = 0; r < 2; r++) {
            must(o[r].number[0] == 0, "rank %d made %ld system calls, the last was number %ld", r, o[r].number[0], o[r].number[1]);
            must(o[r].number[3] == 0, "rank %d allocated %ld times", r, o[r].number[3]);
        }
        long most = o[0].number[2] > o[1].number[2] ? o[0].number[2] : o[1].number[2];
        if (most * 100 <= s->b) /* ten times the figure of 1 in 1000 */
            return;
        if (attempt < 2)
            continue;
        if (getloadavg(&load, 1) == 1 && load > 0.7 * abci_cpu_affinity())
            skip("the machine is busy (load %.1f): %ld yields and futex calls in %ld operations", load, most, s->b);
        must(false, "%ld yields and futex calls in %ld operations", most, s->b);
    }
}

/* ---- Growth ---- */

struct sizes {
    int fds, maps, threads;
    long rss, pss;
};

static struct sizes measure(void)
{
    return (struct sizes){count_fds(), count_maps(), count_threads(), memory_kib("Rss"), memory_kib("Pss")};
}

static void must_not_have_grown(int rank, struct sizes a, struct sizes b, long kib)
{
    must(b.fds <= a.fds, "rank %d: %d descriptors, then %d", rank, a.fds, b.fds);
    must(b.maps <= a.maps + 3 || UNDER_SANITIZER, "rank %d: %d mappings, then %d", rank, a.maps, b.maps);
    must(b.threads <= a.threads, "rank %d: %d threads, then %d", rank, a.threads, b.threads);
    must((b.rss <= a.rss + kib && b.pss <= a.pss + kib) || UNDER_SANITIZER, "rank %d: %ld KiB (PSS %ld), then %ld (%ld)", rank,
         a.rss, a.pss, b.rss, b.pss);
}

/* Operations of mixed sizes, blocking and started. b: how many */
static void operations(struct job *job, int rank, const struct scenario *s)
{
    static float x[100000];
    static const uint64_t counts[] = {1, 40, 1000, 5000, 100000};
    abc_comm *comm = must_create(job, rank, 0);
    struct sizes first = {0};
    memset(x, 0, sizeof x);
    for (long i = 0; i < s->b; i++) {
        abc_request *r[3] = {0};
        if (i == s->b / 5)
            first = measure();
        if (i % 7) {
            must(abc_allreduce(ABC_IN_PLACE, x, counts[i % 5], ABC_F32, ABC_MAX, comm) == ABC_OK, "allreduce: %s",
                 abc_last_error());
            continue;
        }
        for (int k = 0; k < 3; k++)
            must(abc_allreduce_start(ABC_IN_PLACE, x + 1000 * k, 1000, ABC_F32, ABC_MAX, comm, &r[k]) == ABC_OK, "start");
        for (int k = 2; k >= 0; k--)
            must(abc_wait(&r[k]) == ABC_OK, "wait: %s", abc_last_error());
    }
    must_not_have_grown(rank, first, measure(), 256);
    must(abc_comm_destroy(comm) == ABC_OK, "destroy");
}

/* Communicators one after another, also split ones. b: how many */
static void communicators(struct job *job, int rank, const struct scenario *s)
{
    struct sizes first = {0};
    float x[2000] = {0};
    long warm = s->b / 2; /* blocks lie at other places until the pattern of retired ones repeats */
    for (long i = 0; i < s->b; i++) {
        abc_comm *comm = must_create(job, rank, 0), *part = NULL;
        must(abc_allreduce(ABC_IN_PLACE, x, 2000, ABC_F32, ABC_MAX, comm) == ABC_OK, "allreduce: %s", abc_last_error());
        if (i % 4 == 0) {
            must(abc_comm_split(comm, rank % 2, 0, &part) == ABC_OK, "split: %s", abc_last_error());
            must(abc_barrier(part) == ABC_OK && abc_comm_destroy(part) == ABC_OK, "part: %s", abc_last_error());
        }
        must(abc_comm_destroy(comm) == ABC_OK, "destroy: %s", abc_last_error());
        if (i != warm && i != s->b - 1)
            continue;
        meet(job);
        abci_comm_reap();
        meet(job);
        if (i == warm)
            first = measure();
        else
            must_not_have_grown(rank, first, measure(), 512);
        meet(job);
    }
}

/* ---- Footprint ---- */

/* 8 ranks, 2 communicators, 32 MB in place; creation alone first. */
static void footprint(struct job *job, int rank, const struct scenario *s)
{
    if (UNDER_SANITIZER)
        skip("the sanitizer's own memory is in every measure");
    size_t n = 8u << 20;
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) /* not zeros: the compiler would make it calloc, which touches nothing */
        x[i] = (float)rank;
    meet(job);
    long start = memory_kib("Pss");
    abc_comm *one = must_create(job, rank, 0);
    meet(job);
    long created = memory_kib("Pss") - start;
    meet(job);
    abc_comm *two = must_create(job, rank, 0);
    for (int i = 0; i < 3; i++)
        must(abc_allreduce(ABC_IN_PLACE, x, n, ABC_F32, ABC_MAX, i % 2 ? one : two) == ABC_OK, "allreduce: %s", abc_last_error());
    meet(job);
    long used = memory_kib("Pss") - start;
    job->shared->rank[rank].number[0] = created;
    job->shared->rank[rank].number[1] = used;
    meet(job);
    must(created <= 1024, "rank %d: creation touches %ld KiB", rank, created);
    must(used <= 32 << 10, "rank %d: 2 communicators with 32 MB messages use %ld KiB", rank, used);
    meet(job);
    abc_comm_destroy(one);
    abc_comm_destroy(two);
}

static double cpu_time(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Rank 1 is slow. b: seconds */
static void waiting(struct job *job, int rank, const struct scenario *s)
{
    float x = 1;
    abc_comm *comm = must_create(job, rank, 60);
    must(abc_barrier(comm) == ABC_OK, "barrier");
    double start = cpu_time();
    if (rank == 1)
        nap((double)s->b);
    must(abc_allreduce(ABC_IN_PLACE, &x, 1, ABC_F32, ABC_SUM, comm) == ABC_OK, "allreduce: %s", abc_last_error());
    double share = (cpu_time() - start) / (double)s->b;
    must(share < 0.1, "rank %d: waiting takes %.1f %% of a CPU", rank, share * 100); /* ten times the figure */
    abc_comm_destroy(comm);
}

static rank_body const bodies[] = {operations, communicators, footprint, waiting};

static void run(const struct scenario *s)
{
    struct job job;
    job_start(&job, (int)s->c, bodies[s->a], s);
    job_wait(&job, 200);
    job_must_succeed(&job);
    job_must_be_clean(&job);
    if (bodies[s->a] == footprint)
        printf("creation touches %ld KiB a rank, 2 communicators with 32 MB messages use %ld KiB\n", job.shared->rank[1].number[0],
               job.shared->rank[1].number[1]);
    fflush(stdout);
}

int main(void)
{
    bool full = full_mode();
    const struct scenario list[] = {
        {.name = "steady state, 8 bytes", .run = run_steady, .limit = 100, .a = 2, .b = 100000},
        {.name = "steady state, 200 bytes", .run = run_steady, .limit = 100, .a = 50, .b = 50000},
        {.name = "steady state, 16 KB", .run = run_steady, .limit = 100, .a = 4096, .b = 20000},
        {.name = "steady state, 256 KB", .run = run_steady, .limit = 100, .a = 65536, .b = 2000},
        {.name = "steady state, 2 MB, arena", .run = run_steady, .limit = 100, .a = 524288, .b = 200, .c = 1},
        {.name = "operations", .run = run, .limit = 210, .a = 0, .b = 10000, .c = 2},
        {.name = "communicators of 2", .run = run, .limit = 210, .a = 1, .b = full ? 1000 : 150, .c = 2},
        {.name = "communicators of 8", .run = run, .limit = 210, .a = 1, .b = 50, .c = 8},
        {.name = "footprint of 8 ranks", .run = run, .limit = 100, .a = 2, .c = 8},
        {.name = "waiting for a slow rank", .run = run, .limit = 60, .a = 3, .b = full ? 10 : 2, .c = 3},
    };
    setenv("ABCOMM_DEBUG", "NONE", 1);
    private_world();
    return run_scenarios(list, sizeof list / sizeof *list, 1); /* one after another: they measure */
}
