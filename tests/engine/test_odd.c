/*
 * test_odd.c - odd circumstances: ranks with different local settings, ranks late at random on a crowded machine, an environment
 * that names the algorithms, and (full runs only) one operation of more than 2^31 elements.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data.h"
#include "harness.h"

/* ---- Local settings may differ from rank to rank ---- */

static bool allreduce_of(struct rank *r, uint64_t n, abc_op op)
{
    float *x = malloc(n * 4), *y = malloc(n * 4);
    struct values v = {.seed = n, .type = ABC_F32, .op = (enum test_op)op};
    uint64_t got = 0, want = 0;
    values_fill(&v, r->rank, 0, n, x);
    doing(r, "allreduce of %llu", (unsigned long long)n);
    bool ok = check_status(r, abc_allreduce(x, y, n, ABC_F32, op, r->comm), ABC_OK, "allreduce");
    uint64_t at = ok ? reduction_differs(&v, r->nranks, 0, n, y, &got, &want) : 0;
    ok = ok && check(r, at == n, "element %llu is %llx, must be %llx", (unsigned long long)at, (unsigned long long)got,
                     (unsigned long long)want);
    free(x);
    free(y);
    return ok;
}

static int local_settings(struct rank *r)
{
    static const uint64_t sizes[] = {1, 60, 5000, 20000, 100000, 600000};
    bool ok = true;
    for (int round = 0; round < 2 && ok; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && ok; i++)
            ok = allreduce_of(r, sizes[i], round ? ABC_MIN : ABC_SUM);
    return !ok;
}

static const char *mixed_readv(int rank)
{
    static const char *const values[] = {"ABCOMM_PVR=on", "ABCOMM_PVR=auto", "ABCOMM_PVR=on"};
    return values[rank % 3];
}

static const char *mixed_readv_off(int rank)
{
    return rank == 1 ? "ABCOMM_PVR=off" : "ABCOMM_PVR=on";
}

static const char *mixed_pipeline(int rank)
{
    static const char *const values[] = {"ABCOMM_PIPELINE=1", "ABCOMM_PIPELINE=4", "ABCOMM_PIPELINE=3"};
    return values[rank % 3];
}

static const char *mixed_kernels(int rank)
{
    static const char *const values[] = {"ABCOMM_SIMD=scalar", "ABCOMM_SIMD=generic", "ABCOMM_SIMD=auto"};
    return values[rank % 3];
}

static const char *mixed_spin(int rank)
{
    static const char *const values[] = {"ABCOMM_SPIN=0", "ABCOMM_SPIN=100000", "ABCOMM_SPIN=10"};
    return values[rank % 3];
}

/* ---- Wake-ups ---- */

/* Ranks come late and sleep at once (no spinning): a wake-up that is lost costs a whole slice of 100 ms, and there must be none. */
static int wake_ups(struct rank *r)
{
    bool ok = true;
    int lost = 0;
    for (int i = 0; i < 200 && ok; i++) {
        int32_t x = r->rank, sum = 0;
        doing(r, "call %d", i);
        nap(1e-5 * (double)(random_next(&r->random) % 400));
        double start = now_seconds();
        ok = check_status(r, abc_allreduce(&x, &sum, 1, ABC_I32, ABC_SUM, r->comm), ABC_OK, "allreduce") &&
             check(r, sum == r->nranks * (r->nranks - 1) / 2, "sum");
        lost += now_seconds() - start > 0.09;
    }
    atomic_fetch_add(&board_words(r->board)[0], lost);
    ok = ok && meet(r);
    int all = atomic_load(&board_words(r->board)[0]);
    if (r->rank == 0 && all)
        printf("    %d of %d calls took 90 ms or more\n", all, 200 * r->nranks);
    return !(ok && check(r, all <= 2 * r->nranks, "%d of %d calls took 90 ms or more", all, 200 * r->nranks));
}

/* ---- Names from the environment ---- */

static int forced(struct rank *r)
{
    int32_t x = r->rank, out[MAX_TEST_RANKS], y = r->rank == 1 ? 77 : 0;
    bool ok = allreduce_of(r, 3000, ABC_MAX) && check_status(r, abc_barrier(r->comm), ABC_OK, "barrier");
    ok = ok && check_status(r, abc_allgather(&x, out, 1, ABC_I32, r->comm), ABC_OK, "allgather");
    for (int i = 0; i < r->nranks && ok; i++)
        ok = check(r, out[i] == i, "block %d", i);
    ok = ok && check_status(r, abc_broadcast(&y, &y, 1, ABC_I32, 1, r->comm), ABC_OK, "broadcast");
    return !(ok && check(r, y == 77, "broadcast"));
}

static int refused(struct rank *r)
{
    int status = rank_create(r, 0, 0, &r->comm);
    bool ok = check(r, status < 0, "a wrong ABCOMM_ALGO made a communicator");
    return !(ok && check(r, strstr(abc_last_error(), "ABCOMM_ALGO") || strstr(abc_last_error(), "no algorithm"), "text: %s",
                         abc_last_error()));
}

/* ---- More than 2^31 elements ---- */

#define HUGE_COUNT ((1ull << 31) + 17)

static int huge(struct rank *r)
{
    uint16_t *x = mmap(NULL, HUGE_COUNT * 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!check(r, x != MAP_FAILED, "no memory"))
        return 1;
    struct values v = {.seed = 5, .type = ABC_BF16, .exact = true};
    for (uint64_t i = 0; i < HUGE_COUNT; i += i < HUGE_COUNT - 100 ? 4099 : 1)
        values_fill(&v, r->rank, i, 1, x + i);
    doing(r, "huge allreduce");
    bool ok = check_status(r, abc_allreduce(ABC_IN_PLACE, x, HUGE_COUNT, ABC_BF16, ABC_SUM, r->comm), ABC_OK, "allreduce");
    for (uint64_t i = 0; i < HUGE_COUNT && ok; i += i < HUGE_COUNT - 100 ? 4099 : 1) {
        uint64_t got, want;
        ok = check(r, reduction_differs(&v, r->nranks, i, 1, x + i, &got, &want) == 1, "element %llu", (unsigned long long)i);
    }
    doing(r, "huge broadcast");
    if (r->rank == 1 && ok)
        for (uint64_t i = 0; i < HUGE_COUNT; i += i < HUGE_COUNT - 100 ? 4099 : 1)
            values_fill(&v, 9, i, 1, x + i);
    ok = ok && check_status(r, abc_broadcast(x, x, HUGE_COUNT, ABC_BF16, 1, r->comm), ABC_OK, "broadcast");
    for (uint64_t i = 0; i < HUGE_COUNT && ok; i += i < HUGE_COUNT - 100 ? 4099 : 1)
        ok = check(r, values_differ(&v, 9, i, 1, x + i) == 1, "element %llu", (unsigned long long)i);
    munmap(x, HUGE_COUNT * 2);
    return !ok;
}

static void run_huge(void)
{
    double free_bytes = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (free_bytes < 12e9)
        printf("skipped huge: %.1f GB of memory are free, 12 are needed\n", free_bytes / 1e9);
    else
        job_run(&(struct job){.name = "huge", .body = huge, .nranks = 2, .limit = 600, .timeout = 300});
}

int main(int argc, char **argv)
{
    struct options o;
    static const char *const chain[] = {"ABCOMM_ALGO=allreduce:chain;broadcast:binomial;barrier:recdbl;allgather:ring", NULL};
    static const char *const unknown[] = {"ABCOMM_ALGO=allreduce:quickest", NULL}, *const malformed[] = {"ABCOMM_ALGO=oneshot",
                                                                                                         NULL};
    static const char *const sleepy[] = {"ABCOMM_SPIN=0", NULL};
    options_read(argc, argv, &o);
    job_run(&(struct job){.name = "readv on and auto", .body = local_settings, .nranks = 3, .rank_environment = mixed_readv});
    job_run(&(struct job){.name = "readv on and off", .body = local_settings, .nranks = 3, .rank_environment = mixed_readv_off});
    job_run(&(struct job){.name = "pipelines", .body = local_settings, .nranks = 3, .rank_environment = mixed_pipeline});
    job_run(&(struct job){.name = "kernels", .body = local_settings, .nranks = 3, .rank_environment = mixed_kernels});
    job_run(&(struct job){.name = "spinning", .body = local_settings, .nranks = 3, .rank_environment = mixed_spin});
    for (int threads = 0; threads < 2; threads++) {
        job_run(&(struct job){.name = "wake-ups", .body = wake_ups, .nranks = 8, .threads = threads, .environment = sleepy});
        job_run(&(struct job){.name = "wake-ups, many", .body = wake_ups, .nranks = 24, .threads = threads, .environment = sleepy});
    }
    job_run(&(struct job){.name = "named by environment", .body = forced, .nranks = 5, .environment = chain});
    job_run(&(struct job){.name = "unknown name", .body = refused, .nranks = 2, .environment = unknown, .no_comm = true});
    job_run(&(struct job){.name = "malformed name", .body = refused, .nranks = 2, .environment = malformed, .no_comm = true});
    if (o.full)
        run_huge();
    return jobs_end();
}
