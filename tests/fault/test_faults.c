/*
 * test_faults.c - every allocation and system call of creation fails in turn, in rank 0 and in rank 1 of three: the failing rank
 * gets an error, the others one that names it (or nothing happened), all quickly; nothing leaks, and the next creation in the same
 * processes works. The same for the growth of staging in the middle of work, for work of every kind, and for what is done to keep a
 * late peer out of a buffer.
 */
#include "job.h"

#include "comm/comm.h"

#define NRANKS 3
#define CONNECT 4.0
#define QUICK 3.6 /* seconds: no failure costs a timeout, except where nobody can be told */

enum { PASSES };
enum { CREATION, GROWTH, WORK, TALK, SPLITTING, REVOKED, BODIES }; /* what is done */

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

/* ---- all other work ---- */

#define WORK_COUNT 60000u

struct tools {
    void *memory, *more;
    abc_comm *part;
    abc_request *started, *persistent;
    abc_op scaled, own;
    bool has_scaled, has_own;
};

static void add_floats(const void *in, void *inout, uint64_t count, abc_type type, void *context)
{
    (void)type, (void)context;
    for (uint64_t i = 0; i < count; i++)
        ((float *)inout)[i] += ((const float *)in)[i];
}

static int call_of(abc_call *c, abc_collective collective, void *memory, uint64_t count)
{
    abc_call_init(c, collective);
    c->in = ABC_IN_PLACE;
    c->out = memory;
    c->count = count;
    return ABC_OK;
}

/* Every kind of call once; the first that fails ends it. */
static int repertoire(abc_comm *comm, struct tools *t)
{
    static float x[WORK_COUNT], y[WORK_COUNT];
    const float half = 0.5f;
    abc_call c;
    int status = abc_mem_alloc(WORK_COUNT * sizeof(float), &t->memory);
    status = status ? status : abc_mem_alloc(8u << 20, &t->more);
    status = status ? status : abc_allreduce(ABC_IN_PLACE, t->memory, WORK_COUNT, ABC_F32, ABC_SUM, comm);
    status = status ? status : abc_allreduce(x, t->more, WORK_COUNT, ABC_F32, ABC_SUM, comm);
    status = status ? status : abc_allreduce_start(x, y, WORK_COUNT, ABC_F32, ABC_MAX, comm, &t->started);
    status = status ? status : abc_wait(&t->started);
    status = status ? status : call_of(&c, ABC_ALLREDUCE, x, 900);
    c.preserve = 1;
    status = status ? status : abc_request_create(comm, &c, &t->persistent);
    for (int i = 0; i < 2; i++) {
        status = status ? status : abc_restart(t->persistent);
        status = status ? status : abc_wait(&t->persistent);
    }
    t->has_scaled = !status && !(status = abc_op_create_scaled(&half, ABC_F32, &t->scaled));
    status = status ? status : abc_allreduce(x, y, 700, ABC_F32, t->scaled, comm);
    t->has_own = !status && !(status = abc_op_create(add_floats, 1, NULL, &t->own));
    status = status ? status : abc_reduce_scatter(x, y, WORK_COUNT / NRANKS, ABC_F32, t->own, comm);
    status = status ? status : abc_allgather(x, y, 5000, ABC_F32, comm);
    status = status ? status : abc_comm_split(comm, 0, 0, &t->part);
    status = status ? status : abc_barrier(t->part);
    return status;
}

/* Messages of every kind and the calls with a count for each rank; the first that fails ends it. */
static int conversation(abc_comm *comm, int rank, struct tools *t)
{
    static float x[WORK_COUNT], y[WORK_COUNT];
    const uint64_t counts[NRANKS] = {1000, 0, 5000}, pairs[NRANKS] = {20, 20, 20}, offsets[NRANKS] = {0, 1000, 2000};
    int right = (rank + 1) % NRANKS, left = (rank + NRANKS - 1) % NRANKS;
    abc_call c;
    int status = abc_mem_alloc(WORK_COUNT * sizeof(float), &t->memory);
    status = status ? status : abc_sendrecv(x, 2, right, 1, y, 2, left, 1, ABC_F32, comm, NULL);
    status = status ? status : abc_sendrecv(x, WORK_COUNT, right, 2, y, WORK_COUNT, left, 2, ABC_F32, comm, NULL);
    status = status ? status : abc_sendrecv(t->memory, WORK_COUNT, left, 3, y, WORK_COUNT, right, 3, ABC_F32, comm, NULL);
    abc_call_init(&c, ABC_SEND);
    c.in = x;
    c.count = 9000;
    c.root = right;
    status = status ? status : abc_request_create(comm, &c, &t->persistent);
    for (int i = 0; i < 2; i++) {
        status = status ? status : abc_recv_start(y, 9000, ABC_F32, ABC_ANY_SOURCE, ABC_ANY_TAG, comm, NULL, &t->started);
        status = status ? status : abc_restart(t->persistent);
        status = status ? status : abc_wait(&t->persistent);
        status = status ? status : abc_wait(&t->started);
    }
    status = status ? status : abc_gatherv(x, counts[rank], y, counts, offsets, ABC_F32, 2, comm);
    status = status ? status : abc_scatterv(x, counts, offsets, y, counts[rank], ABC_F32, 0, comm);
    status = status ? status : abc_allgatherv(x, y, counts, offsets, ABC_F32, comm);
    status = status ? status : abc_reduce_scatterv(x, y, counts, ABC_F32, ABC_SUM, comm);
    status = status ? status : abc_alltoallv(x, pairs, offsets, y, pairs, offsets, ABC_F32, comm);
    status = status ? status : abc_alltoall(x, y, WORK_COUNT / NRANKS, ABC_F32, comm);
    status = status ? status : abc_scan(x, y, WORK_COUNT, ABC_F32, ABC_SUM, comm);
    return status ? status : abc_barrier(comm);
}

/* Also after a failure all can be given back; a request in progress ends with its communicator. */
static void put_away(abc_comm *comm, struct tools *t)
{
    if (t->started)
        abc_wait(&t->started);
    if (t->persistent)
        must(abc_request_free(t->persistent) == ABC_OK, "free a request: %s", abc_last_error());
    if (t->part)
        abc_comm_destroy(t->part);
    abc_comm_destroy(comm);
    if (t->has_scaled)
        must(abc_op_free(t->scaled) == ABC_OK, "free a scaled sum: %s", abc_last_error());
    if (t->has_own)
        must(abc_op_free(t->own) == ABC_OK, "free an operation: %s", abc_last_error());
    must(abc_mem_free(t->memory) == ABC_OK && abc_mem_free(t->more) == ABC_OK, "free: %s", abc_last_error());
}

/* Work of every kind in which pass n of rank a fails; then the same processes work on. */
static void work(struct job *job, int rank, const struct scenario *s)
{
    struct outcome *mine = &job->shared->rank[rank];
    struct tools t = {.memory = NULL};
    must_work(job, rank, "before the fault");
    int fds = count_fds();
    abc_comm *comm = must_create(job, rank, 10);
    meet(job);
    double start = abci_now();
    abci_fault_arm(rank == s->a ? (uint64_t)s->b : 0);
    int status = s->c == TALK ? conversation(comm, rank, &t) : repertoire(comm, &t);
    mine->number[PASSES] = (long)abci_fault_passes();
    abci_fault_arm(0);
    tell(job, rank, status, start);
    must(status == ABC_OK || strlen(mine->text) > 20, "rank %d: status %d without a text", rank, status);
    if (status != ABC_OK && abc_comm_status(comm) == ABC_OK) /* found before the call got its number: only this rank knows */
        abc_comm_abort(comm, "a call could not be started");
    if (t.part && status != ABC_OK)
        abc_comm_abort(t.part, "a call could not be started");
    meet(job);
    put_away(comm, &t);
    meet(job);
    abci_comm_reap();
    must_work(job, rank, "after the fault");
    must(count_fds() <= fds + 2 * (NRANKS - 1), "rank %d: %d descriptors before, %d after", rank, fds, count_fds());
    must(count_threads() == 1, "rank %d: a thread is left", rank);
}

/* A split in which pass n of rank a fails: at whatever place, the others learn it there or in their first call on the part. */
static void splitting(struct job *job, int rank, const struct scenario *s)
{
    struct outcome *mine = &job->shared->rank[rank];
    int32_t x[8 * NRANKS] = {0};
    abc_comm *part = NULL, *comm = must_create(job, rank, 10);
    must(abc_allgather(x, x + 8, 5, ABC_I32, comm) == ABC_OK, "allgather: %s", abc_last_error()); /* its plan is there already */
    meet(job);
    double start = abci_now();
    abci_fault_arm(rank == s->a ? (uint64_t)s->b : 0);
    int status = abc_comm_split(comm, 0, 0, &part);
    mine->number[PASSES] = (long)abci_fault_passes();
    abci_fault_arm(0);
    if (status == ABC_OK)
        status = abc_barrier(part);
    tell(job, rank, status, start);
    if (status != ABC_OK && !part && abc_comm_status(comm) == ABC_OK)
        abc_comm_abort(comm, "a split could not be made");
    meet(job);
    for (int r = 0; r < NRANKS; r++)
        must((job->shared->rank[r].status == ABC_OK) == (status == ABC_OK), "rank %d: status %d, rank %d has %d: %s", rank, status,
             r, job->shared->rank[r].status, job->shared->rank[r].text);
    meet(job);
    if (part)
        abc_comm_destroy(part);
    abc_comm_destroy(comm);
    meet(job);
    abci_comm_reap();
    must_work(job, rank, "after the fault");
}

/* Rank 2 ends the communicator while the others offer their outputs to each other; what they then do to take them back fails. */
static void revoked(struct job *job, int rank, const struct scenario *s)
{
    struct outcome *mine = &job->shared->rank[rank];
    void *memory;
    abc_comm *comm = must_create(job, rank, 10);
    must(abc_mem_alloc(1u << 20, &memory) == ABC_OK, "abc_mem_alloc: %s", abc_last_error());
    must(abc_allreduce(ABC_IN_PLACE, memory, 1u << 18, ABC_F32, ABC_SUM, comm) == ABC_OK, "allreduce: %s", abc_last_error());
    meet(job);
    double start = abci_now();
    if (rank == NRANKS - 1) {
        nap(0.05);
        abc_comm_abort(comm, "enough");
    }
    abci_fault_arm(rank == s->a ? (uint64_t)s->b : 0);
    int status = abc_allreduce(ABC_IN_PLACE, memory, 1u << 18, ABC_F32, ABC_SUM, comm);
    mine->number[PASSES] = (long)abci_fault_passes();
    abci_fault_arm(0);
    tell(job, rank, status, start);
    must(status == ABC_ERR_ABORTED, "rank %d: status %d: %s", rank, status, mine->text);
    must_mention(mine->text, "enough", "after an abort");
    memset(memory, rank, 1u << 20);
    must(abc_comm_destroy(comm) == ABC_ERR_ABORTED && abc_mem_free(memory) == ABC_OK, "the end: %s", abc_last_error());
    meet(job);
    abci_comm_reap();
    must_work(job, rank, "after taking back");
}

static const rank_body bodies[] = {creation, growth, work, work, splitting, revoked};

static void run_work(const struct scenario *s)
{
    struct job job;
    job_start(&job, NRANKS, bodies[s->c], s);
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
    job_start(&job, NRANKS, bodies[s->c], s);
    job_wait(&job, 20);
    job_must_succeed(&job);
    FILE *f = fopen((const char *)(uintptr_t)s->d, "w");
    must(f && fprintf(f, "%ld\n", job.shared->rank[s->a].number[PASSES]) > 0, "cannot write the number of passes");
    fclose(f);
}

static long passes_of(long victim, int where)
{
    char path[] = "/tmp/fault-passes-XXXXXX";
    long n = 0;
    int fd = mkstemp(path);
    struct scenario s = {.name = "no fault", .run = count_passes, .a = victim, .c = where, .d = (long)(uintptr_t)path};
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
    for (long victim = 0; victim < 2; victim++)
        for (int where = CREATION; where < BODIES; where++) {
            static const char *const name[BODIES] = {"creation", "growing work",       "work of every kind", "messages and counts",
                                                     "a split",  "taking outputs back"};
            long passes = passes_of(victim, where);
            printf("rank %ld: %ld passes in %s\n", victim, passes, name[where]);
            /* threads of a creation: the order varies a little */
            long last = passes + (where == CREATION ? 8 : 0),
                 stride = where == CREATION || where == SPLITTING || full_mode() ? 1 : passes / 12 + 1;
            for (long n = 1; n <= last; n += stride) {
                struct scenario *s = add_scenario(&list, &count);
                *s = (struct scenario){.run = where == CREATION ? run : run_work, .limit = 50, .a = victim, .b = n, .c = where};
                snprintf(s->name, sizeof s->name, "fault %ld of rank %ld in %s", n, victim, name[where]);
            }
        }
    int code = run_scenarios(list, count, 10);
    free(list);
    return code;
}
