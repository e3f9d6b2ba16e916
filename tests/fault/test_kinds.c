/*
 * test_kinds.c - a rank that dies or is stopped in the middle of the collectives with a root, of alltoall, of prefixes and of
 * messages; test_death.c and test_stop.c do that to allreduce and its kin, more thoroughly. The others get an error that names it,
 * nobody writes into their buffers after that, and a rank that wakes up late gets an error, never success.
 */
#include "job.h"

#include "plan/plan.h"
#include "plan/run.h"

#include <sys/wait.h>

#define NRANKS 3
#define TIMEOUT (UNDER_SANITIZER ? 1 : 0.4) /* of operations */
#define PATIENCE 8                          /* seconds of calls until the victim must have been missed */
#define COUNT_MAX 60000

enum { FLAG_FILLED, FLAG_GONE, FLAG_STOPS };

static const abc_collective kinds[] = {ABC_REDUCE, ABC_GATHER, ABC_SCATTER, ABC_ALLTOALL, ABC_SCAN, ABC_EXSCAN, ABC_SEND};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

struct plot {
    abc_collective kind;
    uint64_t count;
    int victim, root;
    bool stops, arena;
    long moment; /* hook calls until it happens */
};

static struct plot plot_of(const struct scenario *s)
{
    return (struct plot){.kind = kinds[s->a],
                         .count = (uint64_t)s->b,
                         .victim = (int)(s->c / 10),
                         .root = (int)(s->c % 10),
                         .stops = s->d & 1,
                         .arena = s->d >> 1 & 1,
                         .moment = s->e};
}

/* ---- The victim ---- */

static struct {
    long left;
    bool stops, done, in_send;
    _Atomic int *flag;
} strike;

static void strike_here(int rank, uint32_t sequence, int step)
{
    (void)rank, (void)sequence;
    if (strike.done || strike.left-- > 0)
        return;
    strike.done = true;
    strike.in_send = step == ABCI_STOP_SEND;
    atomic_store(strike.flag, 1);
    raise(strike.stops ? SIGSTOP : SIGKILL);
}

/* ---- Ranks ---- */

static void fill(float *x, float value)
{
    for (size_t i = 0; i < (size_t)NRANKS * COUNT_MAX; i++)
        x[i] = value + (float)(i % 8);
}

static bool holds(const float *x, float value)
{
    for (size_t i = 0; i < (size_t)NRANKS * COUNT_MAX; i++)
        if (x[i] != value + (float)(i % 8))
            return false;
    return true;
}

static int one_call(const struct plot *p, int rank, abc_comm *comm, const float *in, float *out)
{
    abc_call c;
    if (p->kind == ABC_SEND) { /* round a ring */
        int left = (rank + NRANKS - 1) % NRANKS;
        return abc_sendrecv(in, p->count, (rank + 1) % NRANKS, 7, out, p->count, left, 7, ABC_F32, comm, NULL);
    }
    abc_call_init(&c, p->kind);
    c.in = in;
    c.out = out;
    c.count = p->count;
    c.root = p->root;
    return abc_run(comm, &c);
}

/* The buffers are the caller's again: whatever the victim does when it wakes up, it writes into none of them. */
static void check_buffers(struct job *job, int rank, float *in, float *out)
{
    fill(in, 1000);
    fill(out, 2000);
    atomic_fetch_add(&job->shared->flag[FLAG_FILLED], 1);
    wait_flag(job, FLAG_GONE, 1, 20);
    nap(0.03);
    must(holds(in, 1000), "rank %d: somebody wrote into its input after the error", rank);
    must(holds(out, 2000), "rank %d: somebody wrote into its output after the error", rank);
}

static void body(struct job *job, int rank, const struct scenario *s)
{
    struct plot p = plot_of(s);
    size_t bytes = sizeof(float) * NRANKS * COUNT_MAX;
    setenv("ABCOMM_CHUNK", "65536", 1);
    abc_comm *comm = must_create(job, rank, TIMEOUT);
    float *in = buffer_take(bytes, p.arena), *out = buffer_take(bytes, p.arena);
    fill(in, 1);
    fill(out, 1);
    strike.left = p.moment;
    strike.stops = p.stops;
    strike.flag = &job->shared->flag[FLAG_STOPS];
    meet(job);
    abci_hook = rank == p.victim ? strike_here : NULL;
    int status = ABC_OK;
    double start, end = abci_now() + PATIENCE;
    do {
        start = abci_now();
        status = one_call(&p, rank, comm, in, out);
    } while (status == ABC_OK && !strike.done && abci_now() < end);
    /* A short send is over when it has been put, whatever becomes of it: the next call must tell. */
    if (status == ABC_OK && strike.in_send && p.count * sizeof(float) <= 4096)
        status = one_call(&p, rank, comm, in, out);
    tell(job, rank, status, start);
    if (rank == p.victim)
        atomic_store(&job->shared->flag[FLAG_GONE], 1);
    else
        check_buffers(job, rank, in, out);
    int over = abc_comm_destroy(comm);
    must(over == status, "rank %d: destroy returns %d after %d", rank, over, status);
    buffer_give(in, p.arena);
    buffer_give(out, p.arena);
}

/* ---- The scenario ---- */

static void check_rank(const struct plot *p, int r, const struct outcome *o)
{
    char who[32];
    int wanted = p->stops ? ABC_ERR_TIMEOUT : ABC_ERR_PEER;
    snprintf(who, sizeof who, "rank %d (pid", p->victim);
    must(o->status == wanted, "rank %d ended with %d: %s", r, o->status, o->text);
    must_mention(o->text, who, "the lost rank");
    if (p->kind == ABC_SEND)
        must(strstr(o->text, "send(") || strstr(o->text, "recv("), "rank %d: \"%s\" names no message", r, o->text);
    else
        must_mention(o->text, abc_collective_name(p->kind), "the operation");
    must(r == p->victim || o->seconds < TIMEOUT + 2, "rank %d knew after %.2f s", r, o->seconds);
}

static void run(const struct scenario *s)
{
    struct plot p = plot_of(s);
    struct job job;
    job_start(&job, NRANKS, body, s);
    double end = abci_now() + 20;
    while (atomic_load(&job.shared->flag[FLAG_FILLED]) < NRANKS - 1 && abci_now() < end)
        nap(0.003);
    must(atomic_load(&job.shared->flag[FLAG_FILLED]) == NRANKS - 1, "the others do not end their calls");
    must(atomic_load(&job.shared->flag[FLAG_STOPS]), "the victim has not come to its end");
    if (p.stops) {
        job_wait_stopped(&job, p.victim, 10);
        job_signal(&job, p.victim, SIGCONT);
    } else {
        job_wait_rank(&job, p.victim, 10);
        must(WIFSIGNALED(job.state[p.victim]), "the victim lives");
        job.state[p.victim] = 0;
        atomic_store(&job.shared->flag[FLAG_GONE], 1);
    }
    job_wait(&job, 20);
    job_must_succeed(&job);
    for (int r = 0; r < NRANKS; r++)
        if (p.stops || r != p.victim)
            check_rank(&p, r, &job.shared->rank[r]);
    job_must_be_clean(&job);
}

int main(void)
{
    static const long counts[] = {8, 700, COUNT_MAX};
    struct scenario *list = NULL;
    int count = 0;
    setenv("ABCOMM_DEBUG", "NONE", 1);
    private_world();
    uint64_t seed = test_seed();
    for (int kind = 0; kind < KINDS; kind++)
        for (int way = 0; way < 2; way++)
            for (int i = 0; i < (full_mode() ? 60 : 3); i++) {
                struct scenario *s = add_scenario(&list, &count);
                int victim = i % NRANKS, root = (int)draw(&seed, NRANKS), arena = (int)draw(&seed, 2);
                *s = (struct scenario){.run = run,
                                       .a = kind,
                                       .b = counts[draw(&seed, 3)],
                                       .c = victim * 10 + root,
                                       .d = way + 2 * arena,
                                       .e = draw(&seed, 60)};
                snprintf(s->name, sizeof s->name, "%s of rank %d in %s, %ld elements, root %d, %s, moment %ld",
                         way ? "stop" : "death", victim, kinds[kind] == ABC_SEND ? "messages" : abc_collective_name(kinds[kind]),
                         s->b, root, arena ? "arena" : "private", s->e);
            }
    int code = run_scenarios(list, count, 8);
    free(list);
    return code;
}
