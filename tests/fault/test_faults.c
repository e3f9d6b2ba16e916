/*
 * test_faults.c - every allocation and system call of creation fails in turn, in rank 0 and in rank 1 of three: the failing rank
 * gets an error, the others one that names it (or nothing happened), all quickly; nothing leaks, and the next creation in the same
 * processes works. The same for the growth of staging in the middle of work.
 */
#include "job.h"

#include "comm/comm.h"

#define NRANKS 3
#define CONNECT 2.5
#define QUICK 2.2 /* seconds: no failure costs a timeout, except where nobody can be told */

enum { PASSES, FIRST_STATUS, SECOND_STATUS };

static void must_work(struct job *job, int rank, const char *when)
{
    abc_comm *comm = NULL;
    float x[4] = {1, 2, 3, (float)rank};
    int status = create_comm(job, rank, NRANKS, 0, &comm);
    must(status == ABC_OK, "rank %d: creation %s: %s", rank, when, abc_last_error());
    must(abc_allreduce(ABC_IN_PLACE, x, 4, ABC_F32, ABC_SUM, comm) == ABC_OK, "allreduce %s: %s", when, abc_last_error());
    must(x[0] == 3 && x[3] == 3, "wrong sum %s", when);
    must(abc_comm_destroy(comm) == ABC_OK, "destroy %s: %s", when, abc_last_error());
    meet(job);
    abci_comm_reap();
    meet(job);
}

/* A creation in which pass n of the victim fails. Returns its status. */
static int faulty(struct job *job, int rank, long victim, long n, struct outcome *mine)
{
    abc_comm *comm = NULL;
    float x[4] = {1, 2, 3, 4};
    double start = abci_now();
    job->connect_timeout = CONNECT;
    abci_fault_arm(rank == victim ? (uint64_t)n : 0);
    int status = create_comm(job, rank, NRANKS, 0, &comm);
    if (rank == victim)
        mine->number[PASSES] = (long)abci_fault_passes();
    abci_fault_arm(0);
    tell(job, rank, status, start);
    meet(job);
    if (comm) { /* who succeeded although another failed learns it in the first call */
        int later = abc_allreduce(ABC_IN_PLACE, x, 4, ABC_F32, ABC_SUM, comm);
        if (later != ABC_OK) {
            tell(job, rank, later, start);
            status = later;
        }
        must(abc_comm_destroy(comm) == later, "rank %d: destroy after %d", rank, later);
    }
    meet(job);
    abci_comm_reap();
    meet(job);
    return status;
}

/* Does the rank's error name the victim, or a rank that failed because of it? */
static bool names_origin(const struct outcome *o, int rank, long victim)
{
    char who[16];
    for (int q = 0; q < NRANKS; q++) {
        char origin[16];
        snprintf(who, sizeof who, "rank %d", q);
        snprintf(origin, sizeof origin, "rank %ld", victim);
        if (q != rank && strstr(o[rank].text, who) && (q == victim || strstr(o[q].text, origin)))
            return true;
    }
    return false;
}

static void check_outcomes(struct job *job, long victim, const char *when)
{
    char who[16];
    snprintf(who, sizeof who, "rank %ld", victim);
    const struct outcome *o = job->shared->rank;
    for (int r = 0; r < NRANKS; r++) {
        bool unheard = strstr(o[r].text, "did not reach rank 0") || strstr(o[r].text, "has not arrived");
        if (unheard && strstr(o[r].text, who) && o[r].seconds < CONNECT + 2)
            continue; /* rank 0 failed before it listened, or the victim before or while it joined: nobody could tell */
        must(o[r].seconds < QUICK, "%s: rank %d took %.2f s: %s", when, r, o[r].seconds, o[r].text);
        must((o[r].status == ABC_OK) == (o[victim].status == ABC_OK), "%s: rank %d has status %d, the victim %d: %s%s", when, r,
             o[r].status, o[victim].status, o[r].text, o[victim].text);
        if (o[r].status == ABC_OK)
            continue;
        must(strlen(o[r].text) > 20, "%s: rank %d has no text", when, r);
        must(r == victim || names_origin(o, r, victim), "%s: rank %d: \"%s\" does not name %s (%s)", when, r, o[r].text, who,
             o[victim].text);
    }
}

static void creation(struct job *job, int rank, const struct scenario *s)
{
    struct outcome *mine = &job->shared->rank[rank];
    faulty(job, rank, s->a, s->b, mine); /* in a fresh process */
    if (rank == 0)
        check_outcomes(job, s->a, "fresh");
    must_work(job, rank, "after the first fault");
    int fds = count_fds(), maps = count_maps();
    faulty(job, rank, s->a, s->b, mine); /* in one that has its memory already */
    if (rank == 0)
        check_outcomes(job, s->a, "again");
    must_work(job, rank, "after the second fault");
    /* A rank that failed before it had mapped a peer cannot say goodbye to it: two descriptors a peer stay until it dies. */
    must(count_fds() <= fds + 2 * (NRANKS - 1), "rank %d: %d descriptors before, %d after", rank, fds, count_fds());
#ifdef __SANITIZE_ADDRESS__
    maps += 1000; /* its allocator maps as it likes; it finds leaks itself */
#endif
    must(count_maps() <= maps + 2, "rank %d: %d mappings before, %d after", rank, maps, count_maps());
    must(count_threads() == 1, "rank %d: a thread is left", rank);
}

/* Work of growing size; somewhere pass n of rank 0 fails: a clean error on all, or no difference. */
static void growth(struct job *job, int rank, const struct scenario *s)
{
    static float x[1500000];
    abc_comm *comm = must_create(job, rank, 10);
    struct outcome *mine = &job->shared->rank[rank];
    int status = ABC_OK;
    meet(job);
    double start = abci_now();
    abci_fault_arm(rank == s->a ? (uint64_t)s->b : 0);
    for (uint64_t n = 10; n < 1500000 && status == ABC_OK; n *= 5) {
        abc_call c;
        abc_call_init(&c, n % 20 ? ABC_ALLREDUCE : ABC_BROADCAST);
        c.in = ABC_IN_PLACE;
        c.out = x;
        c.count = n;
        c.preserve = 1;
        status = abc_run(comm, &c);
    }
    mine->number[PASSES] = (long)abci_fault_passes();
    abci_fault_arm(0);
    tell(job, rank, status, start);
    if (status != ABC_OK && abc_comm_status(comm) == ABC_OK) /* found before the call got its number: only this rank knows */
        abc_comm_abort(comm, "a call could not be started");
    meet(job);
    must(abc_comm_destroy(comm) == ABC_OK || status != ABC_OK, "rank %d: destroy: %s", rank, abc_last_error());
}

static void run_growth(const struct scenario *s)
{
    struct job job;
    job_start(&job, NRANKS, growth, s);
    double end = abci_now() + 5;
    while (job.shared->rank[s->a].status == 999 && abci_now() < end)
        nap(0.002);
    job_wait(&job, 20);
    job_must_succeed(&job);
    for (int r = 0; r < NRANKS; r++)
        must(job.shared->rank[r].seconds < QUICK, "rank %d took %.2f s: %s", r, job.shared->rank[r].seconds,
             job.shared->rank[r].text);
    job_must_be_clean(&job);
}

static void run(const struct scenario *s)
{
    struct job job;
    job_start(&job, NRANKS, creation, s);
    job_wait(&job, 40);
    job_must_succeed(&job);
    job_must_be_clean(&job);
    must(s->b <= 400, "400 passes and no end");
}

/* How many passes a creation has: one without a fault. */
static void count_passes(const struct scenario *s)
{
    struct job job;
    job_start(&job, NRANKS, s->c ? growth : creation, s);
    job_wait(&job, 20);
    job_must_succeed(&job);
    FILE *f = fopen((const char *)(uintptr_t)s->d, "w");
    must(f && fprintf(f, "%ld\n", job.shared->rank[s->a].number[PASSES]) > 0, "cannot write the number of passes");
    fclose(f);
}

static long passes_of(long victim, bool in_growth)
{
    char path[] = "/tmp/fault-passes-XXXXXX";
    long n = 0;
    int fd = mkstemp(path);
    struct scenario s = {.name = "no fault", .run = count_passes, .a = victim, .c = in_growth, .d = (long)(uintptr_t)path};
    must(fd >= 0 && run_scenarios(&s, 1, 1) == 0, "creation without a fault");
    FILE *f = fdopen(fd, "r");
    must(f && fscanf(f, "%ld", &n) == 1 && n > 0, "no number of passes");
    fclose(f);
    unlink(path);
    return n;
}

int main(void)
{
    struct scenario *list = NULL;
    int count = 0;
    setenv("ABCOMM_DEBUG", "NONE", 1);
    private_world();
    for (long victim = 0; victim < 2; victim++) {
        long passes = passes_of(victim, false), more = passes_of(victim, true);
        printf("rank %ld: %ld passes in a creation, %ld in growing work\n", victim, passes, more);
        for (long n = 1; n <= passes + 8; n++) { /* threads: the order varies a little */
            struct scenario *s = add_scenario(&list, &count);
            *s = (struct scenario){.run = run, .limit = 50, .a = victim, .b = n};
            snprintf(s->name, sizeof s->name, "fault %ld of rank %ld in creation", n, victim);
        }
        for (long n = 1; n <= more; n += full_mode() ? 1 : 5) {
            struct scenario *s = add_scenario(&list, &count);
            *s = (struct scenario){.run = run_growth, .limit = 30, .a = victim, .b = n};
            snprintf(s->name, sizeof s->name, "fault %ld of rank %ld in growing work", n, victim);
        }
    }
    int code = run_scenarios(list, count, 10);
    free(list);
    return code;
}
