/*
 * test_stop.c - a rank that is stopped in the middle of an operation and wakes after its peers have given up (contract C8). The
 * others time out and name it; what they then write into their buffers stays as it is; the woken rank gets an error, never success.
 */
#include "job.h"

#include "plan/plan.h"
#include "comm/comm.h"
#include "plan/run.h"

#define NRANKS 3
#define TIMEOUT (UNDER_SANITIZER ? 1 : 0.3)
#define SAMPLE (UNDER_SANITIZER ? 180 : 360)
#define CALLS 20 /* a root that reads nobody learns it 16 calls later */

static double patience = TIMEOUT; /* of operations; longer when a busy machine has spoilt the first attempt */

enum { FLAG_FILLED, FLAG_WOKEN, FLAG_CHECKED, FLAG_STOPS };
enum size_class { TINY, STAGED, CHUNKED, SIZES };
static const uint64_t counts[] = {8, 20480, 40960}; /* per rank for the wide collectives; whole pages; chunks of 64 KiB */

struct point {
    abc_collective collective;
    const char *algorithm;
    enum size_class size;
    int victim, step;
    uint32_t chunk;
    bool in_place, arena;
};

static struct point point_of(const struct scenario *s)
{
    return (struct point){(abc_collective)s->a,
                          s->b > 0 ? abci_algos[s->b - 1]->name : NULL,
                          (enum size_class)(s->c % 10),
                          (int)(s->c / 10),
                          (int)s->d,
                          (uint32_t)(s->e / 4),
                          s->e & 1,
                          s->e >> 1 & 1};
}

/* ---- The stop ---- */

static struct {
    int rank, step;
    uint32_t sequence;
    bool armed, done;
    _Atomic int *flag;
} stop_at;

static void stop_here(int rank, uint32_t sequence, int step)
{
    if (!stop_at.armed || stop_at.done || rank != stop_at.rank || sequence != stop_at.sequence || step != stop_at.step)
        return;
    stop_at.done = true;
    atomic_store(stop_at.flag, 1);
    raise(SIGSTOP);
}

/* ---- Ranks ---- */

static void fill(float *x, size_t n, float value)
{
    for (size_t i = 0; i < n; i++)
        x[i] = value + (float)(i % 8);
}

static bool holds(const float *x, size_t n, float value)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] != value + (float)(i % 8))
            return false;
    return true;
}

/* One call on fresh input, its result checked where it succeeds. */
static int one_call(const struct point *p, int rank, abc_comm *comm, float *in, float *out)
{
    abc_call c;
    uint64_t n = counts[p->size];
    abc_call_init(&c, p->collective);
    c.count = n;
    c.algorithm = p->algorithm;
    c.in = p->in_place ? out : in;
    c.out = out;
    if (p->in_place && p->collective == ABC_REDUCE_SCATTER)
        c.out = out + (uint64_t)rank * n;
    if (p->in_place && p->collective == ABC_ALLGATHER)
        c.in = out + (uint64_t)rank * n;
    fill(in, NRANKS * n, 1);
    fill(out, NRANKS * n, 1);
    bool by_short_way = p->collective == ABC_ALLREDUCE && p->size == TINY && p->algorithm && strcmp(p->algorithm, "oneshot") == 0;
    /* The plain call takes a way of its own for what fits a header; it chooses one-shot there. */
    int status = by_short_way ? abc_allreduce(c.in, c.out, n, ABC_F32, ABC_SUM, comm) : abc_run(comm, &c);
    bool sums = p->collective == ABC_ALLREDUCE || p->collective == ABC_REDUCE_SCATTER;
    if (status == ABC_OK && sums)
        for (uint64_t i = 0; i < n; i++)
            must(((float *)c.out)[i] == NRANKS * (1 + (float)(i % 8)), "rank %d: wrong sum at %lu", rank, (unsigned long)i);
    return status;
}

/* A rank that was never stopped or has been woken: the call in which it was stopped must fail. */
static void after_victim(struct job *job, int rank, int status)
{
    must(status != ABC_OK || !stop_at.done, "rank %d: woken after the failure, it returned success", rank);
    job->shared->rank[rank].number[1] = stop_at.done;
    atomic_store(&job->shared->flag[FLAG_WOKEN], 1);
}

static void after_survivor(struct job *job, int rank, float *in, float *out, size_t n)
{
    fill(in, n, 1000);
    fill(out, n, 2000);
    atomic_fetch_add(&job->shared->flag[FLAG_FILLED], 1);
    wait_flag(job, FLAG_WOKEN, 1, 20);
    for (int i = 0; i < 5; i++) {
        must(holds(in, n, 1000), "rank %d: somebody wrote into its input after the error", rank);
        must(holds(out, n, 2000), "rank %d: somebody wrote into its output after the error", rank);
        nap(0.02);
    }
    atomic_fetch_add(&job->shared->flag[FLAG_CHECKED], 1);
}

static void body(struct job *job, int rank, const struct scenario *s)
{
    struct point p = point_of(s);
    setenv("ABCOMM_CHUNK", "65536", 1);
    abc_comm *comm = must_create(job, rank, 10);
    size_t n = (size_t)counts[p.size] * NRANKS;
    float *in = buffer_take(n * sizeof *in, p.arena), *out = buffer_take(n * sizeof *out, p.arena);
    must(one_call(&p, rank, comm, in, out) == ABC_OK, "rank %d: the first call: %s", rank, abc_last_error());
    comm->timeout = patience;
    uint32_t first = comm->engine.next_sequence;
    stop_at.rank = p.victim;
    stop_at.step = p.step;
    stop_at.sequence = first + p.chunk;
    stop_at.flag = &job->shared->flag[FLAG_STOPS];
    stop_at.armed = rank == p.victim;
    abci_hook = stop_here;
    int status = ABC_OK;
    meet(job);
    double start = abci_now();
    for (int i = 0; i < CALLS && status == ABC_OK && !stop_at.done; i++)
        status = one_call(&p, rank, comm, in, out);
    tell(job, rank, status, start);
    job->shared->rank[rank].number[0] = 1;
    if (rank == p.victim)
        after_victim(job, rank, status);
    else
        after_survivor(job, rank, in, out, n);
    int end = abc_comm_destroy(comm);
    must(end == status, "rank %d: destroy returns %d after %d", rank, end, status);
    buffer_give(in, p.arena);
    buffer_give(out, p.arena);
}

/* ---- The scenario ---- */

/* False: an operation took too long though nobody was stopped. */
static bool attempt(const struct scenario *s)
{
    struct point p = point_of(s);
    struct job job;
    char who[32];
    job_start(&job, NRANKS, body, s);
    double end = abci_now() + 20;
    while (atomic_load(&job.shared->flag[FLAG_FILLED]) < NRANKS - 1 && abci_now() < end)
        nap(0.003);
    must(atomic_load(&job.shared->flag[FLAG_FILLED]) == NRANKS - 1, "the others do not end their calls");
    /* Else it may be ending: SIGCONT takes back the stop by which LeakSanitizer attaches, and both would wait for ever. */
    if (atomic_load(&job.shared->flag[FLAG_STOPS])) {
        job_wait_stopped(&job, p.victim, 10);
        job_signal(&job, p.victim, SIGCONT);
    }
    job_wait(&job, 20);
    job_must_succeed(&job);
    const struct outcome *o = job.shared->rank;
    if (!o[p.victim].number[1]) { /* this rank has no such step: then all must be well */
        for (int r = 0; r < NRANKS; r++) {
            if (o[r].status == ABC_ERR_TIMEOUT && patience <= TIMEOUT)
                return false;
            must(o[r].status == ABC_OK, "rank %d ended with %d though nobody was stopped: %s", r, o[r].status, o[r].text);
        }
        return true;
    }
    snprintf(who, sizeof who, "rank %d (pid", p.victim);
    for (int r = 0; r < NRANKS; r++) {
        must(o[r].status == ABC_ERR_TIMEOUT, "rank %d ended with %d: %s", r, o[r].status, o[r].text);
        must_mention(o[r].text, who, "the stopped rank");
        must_mention(o[r].text, abc_collective_name(p.collective), "the operation");
        must(r == p.victim || o[r].seconds < patience + 3, "rank %d took %.2f s", r, o[r].seconds);
    }
    job_must_be_clean(&job);
    return true;
}

static void run(const struct scenario *s)
{
    if (attempt(s))
        return;
    patience = 10 * TIMEOUT;
    must(attempt(s), "no end");
}

static void add(struct scenario **list, int *count, struct point p, long algorithm)
{
    struct scenario *s = add_scenario(list, count);
    static const char *const size_name[] = {"tiny", "staged", "chunked"};
    *s = (struct scenario){.run = run,
                           .a = p.collective,
                           .b = algorithm,
                           .c = p.victim * 10 + (long)p.size,
                           .d = p.step,
                           .e = p.chunk * 4 + p.arena * 2 + p.in_place};
    snprintf(s->name, sizeof s->name, "stop rank %d in %s by %s, %s, chunk %u, step %d, %s, %s", p.victim,
             abc_collective_name(p.collective), p.algorithm ? p.algorithm : "default", size_name[p.size], p.chunk, p.step,
             p.arena ? "arena" : "private", p.in_place ? "in place" : "out of place");
}

static int steps_of(const struct abci_algo *algo, int rank)
{
    struct abci_plan *plan;
    must(abci_plan_build(algo, ABC_ALLREDUCE, NRANKS, rank, 0, &plan) == ABC_OK, "plan of %s", algo->name);
    int n = (int)plan->nsteps;
    abci_plan_free(plan);
    return n;
}

/* Every stop point of one algorithm (or of a default, whose steps we do not know: some points do not exist then). */
static void add_all(struct scenario **list, int *count, abc_collective collective, long algorithm)
{
    for (int victim = 0; victim < NRANKS; victim++)
        for (int size = 0; size < SIZES; size++)
            for (int memory = 0; memory < 4; memory++)
                for (uint32_t chunk = 0; chunk < (size == CHUNKED ? 3 : 1); chunk++) {
                    const struct abci_algo *algo = algorithm ? abci_algos[algorithm - 1] : NULL;
                    int steps = algo ? steps_of(algo, victim) : 5;
                    for (int step = ABCI_STOP_HEADER; step < steps; step++)
                        add(list, count,
                            (struct point){collective, algo ? algo->name : NULL, (enum size_class)size, victim, step, chunk,
                                           memory & 1, memory >> 1 & 1},
                            algorithm);
                }
}

int main(void)
{
    struct scenario *all = NULL, *list;
    int total = 0, count = 0;
    setenv("ABCOMM_DEBUG", "NONE", 1);
    private_world();
    uint64_t seed = test_seed();
    for (long a = 1; abci_algos[a - 1]; a++)
        if (abci_algo_fits(abci_algos[a - 1], ABC_ALLREDUCE, NRANKS))
            add_all(&all, &total, ABC_ALLREDUCE, a);
    add_all(&all, &total, ABC_BROADCAST, 0);
    add_all(&all, &total, ABC_ALLGATHER, 0);
    add_all(&all, &total, ABC_REDUCE_SCATTER, 0);
    count = full_mode() ? total : SAMPLE;
    list = calloc((size_t)total, sizeof *list);
    must(list != NULL, "no memory");
    for (int i = 0; i < total; i++) { /* shuffle, so that the sample is fair and neighbours differ */
        int k = (int)draw(&seed, (uint32_t)i + 1);
        list[i] = list[k];
        list[k] = all[i];
    }
    printf("%d of %d stop points\n", count, total);
    int code = run_scenarios(list, count, 12);
    free(list);
    free(all);
    return code;
}
