/*
 * test_death.c - a rank that dies, leaves or is stopped, in each phase of a communicator's life. Every survivor gets an error that
 * names it within the timeout; no process, socket, descriptor or file is left. The last scenarios draw way, phase, work and moment
 * at random.
 */
#include "job.h"

#include "comm/comm.h"
#include "plan/run.h"

#define TIMEOUT (UNDER_SANITIZER ? 1.5 : 0.6) /* of operations */
#define CONNECT 2.0                           /* of creation */

enum way { BY_KILL, BY_EXIT_0, BY_EXIT_3, BY_RETURN, BY_STOP, WAYS };
enum phase { BEFORE_CREATE, RENDEZVOUS, AFTER_CREATE, IDLE, IN_OPERATION, SLEEPERS, IN_SPLIT, IN_DESTROY, PHASES };
enum work { ALLREDUCE, ARENA, ALLTOALL, REQUESTS, PROGRESS, MESSAGES, WORKS };
enum { FLAG_READY, FLAG_LEFT, FLAG_DEAD };
static const char *const way_name[] = {"SIGKILL", "exit(0)", "exit(3)", "return", "SIGSTOP"};
static const char *const phase_name[] = {"before creation", "in the rendezvous",  "after creation", "idle",
                                         "in an operation", "while others sleep", "in split",       "in destroy"};
static const char *const work_name[] = {"allreduce", "allreduce in the arena",      "alltoall",
                                        "requests",  "requests, a progress thread", "messages"};
#define ELEMENTS 300000

struct plot {
    int nranks, victim;
    enum way way;
    enum phase phase;
    enum work work;
    long moment; /* hook calls, or microseconds, until it happens */
};

static struct plot plot_of(const struct scenario *s)
{
    return (struct plot){(int)s->a, (int)s->b, (enum way)(s->c), (enum phase)(s->d % 100), (enum work)(s->d / 100), s->e};
}

/* ---- The victim ---- */

static struct plot mine;
static long hook_calls;

static void die(void)
{
    if (mine.way == BY_KILL)
        raise(SIGKILL);
    if (mine.way == BY_STOP)
        raise(SIGSTOP);
    exit(mine.way == BY_EXIT_3 ? 3 : 0); /* BY_RETURN ends here too when it is deep inside a call */
}

static void die_in_step(int rank, uint32_t sequence, int step)
{
    (void)rank, (void)sequence, (void)step;
    if (hook_calls++ == mine.moment)
        die();
}

static const uint64_t counts[] = {8, 5000, ELEMENTS};

/* Three operations in flight; all are waited for, whatever becomes of them. */
static int three_requests(abc_comm *comm, float *x, uint64_t count)
{
    abc_request *r[3] = {0};
    int status = ABC_OK;
    for (int k = 0; k < 3 && status == ABC_OK; k++)
        status = abc_allreduce_start(ABC_IN_PLACE, x + (uint64_t)k * (count / 3), count / 3, ABC_F32, ABC_MAX, comm, &r[k]);
    for (int k = 2; k >= 0; k--) {
        int one = r[k] ? abc_wait(&r[k]) : ABC_OK;
        status = status == ABC_OK ? one : status;
    }
    return status;
}

static int one_call(abc_comm *comm, float *x, int i)
{
    uint64_t count = counts[i % 3], half = count / 2;
    int n = abc_comm_size(comm), rank = abc_comm_rank(comm), left = (rank + n - 1) % n, right = (rank + 1) % n;
    switch (mine.work) {
    case ALLTOALL:
        return abc_alltoall(x, x + half, half / (uint64_t)n, ABC_F32, comm);
    case REQUESTS:
    case PROGRESS:
        return three_requests(comm, x, count);
    case MESSAGES: /* round a ring */
        return abc_sendrecv(x, half, right, 1, x + half, half, i % 2 ? ABC_ANY_SOURCE : left, 1, ABC_F32, comm, NULL);
    default:
        return abc_allreduce(ABC_IN_PLACE, x, count, ABC_F32, ABC_MAX, comm);
    }
}

/* Create, two calls, then what the phase wants. Comes back only to return from main without destroy. */
static void victim(struct job *job, int rank, float *x)
{
    abc_comm *comm, *part;
    ends_anyhow();
    if (mine.phase == BEFORE_CREATE && mine.way != BY_RETURN)
        die();
    if (mine.phase == BEFORE_CREATE)
        return;
    if (create_comm(job, rank, mine.nranks, TIMEOUT, &comm) != ABC_OK)
        exit(0);
    if (mine.phase == AFTER_CREATE && mine.way != BY_RETURN)
        die();
    if (mine.phase == AFTER_CREATE)
        return;
    abci_hook = mine.phase == IN_OPERATION ? die_in_step : NULL;
    for (int i = 0; i < 2 || mine.phase == IN_OPERATION || mine.phase == RENDEZVOUS; i++)
        if (one_call(comm, x, i) != ABC_OK)
            exit(0);
    if (mine.phase == SLEEPERS)
        nap(0.2);
    abci_hook = mine.phase == IN_SPLIT ? die_in_step : NULL;
    while (mine.phase == IN_SPLIT)
        if (abc_comm_split(comm, 0, rank, &part) != ABC_OK || abc_comm_destroy(part) != ABC_OK)
            exit(0);
    if (mine.phase == IN_DESTROY) {
        atomic_store(&job->shared->flag[FLAG_READY], 1);
        abc_comm_destroy(comm);
        nap(0.1);
    }
    if (mine.way != BY_RETURN)
        die();
}

/* ---- The survivors ---- */

static int live_on(struct job *job, int rank, abc_comm *comm, float *x)
{
    int status = ABC_OK;
    bool split_at_end = mine.phase == IN_SPLIT;
    double end = abci_now() + 10;
    for (int i = 0; status == ABC_OK && abci_now() < end; i++) {
        abc_comm *part = NULL;
        double start = abci_now();
        if (mine.phase == IN_DESTROY && i == 2)
            break;
        status = split_at_end && i >= 2 ? abc_comm_split(comm, 0, rank, &part) : one_call(comm, x, i);
        tell(job, rank, status, start);
        if (part) {
            status = abc_comm_destroy(part);
            tell(job, rank, status, start);
        }
    }
    return status;
}

static void survivor(struct job *job, int rank, float *x, int fds)
{
    abc_comm *comm;
    double start = abci_now();
    abc_comm_config config;
    abc_comm_config_init(&config);
    config.rank = rank;
    config.nranks = mine.nranks;
    config.address = job->address;
    bool early = mine.phase == BEFORE_CREATE || mine.phase == RENDEZVOUS;
    config.connect_timeout = early ? CONNECT : 15;                     /* a busy machine may take its time */
    config.timeout = mine.phase == RENDEZVOUS ? 2 * CONNECT : TIMEOUT; /* a rank 0 that serves to the end is late, not stopped */
    int status = abc_comm_create(&config, &comm);
    tell(job, rank, status, start);
    job->shared->rank[rank].number[0] = status == ABC_OK; /* created */
    if (status == ABC_OK) {
        status = live_on(job, rank, comm, x);
        start = abci_now();
        int end = abc_comm_destroy(comm);
        must(abci_now() - start < 3, "rank %d: destroy took %.1f s", rank, abci_now() - start);
        must(end == status || mine.phase == IN_DESTROY, "rank %d: destroy returns %d after %d", rank, end, status);
    }
    atomic_fetch_add(&job->shared->flag[FLAG_LEFT], 1);
    wait_flag(job, FLAG_LEFT, mine.nranks - 1, 20);
    wait_flag(job, FLAG_DEAD, 1, 20);
    abci_comm_reap();
    int now = count_fds();
    /* A split that works here and fails at a peer which has not mapped us yet: two descriptors a peer stay until that one dies. */
    int unsaid = mine.phase == IN_SPLIT ? 2 * (mine.nranks - 1) : 0;
    must(now <= fds + 2 + unsaid, "rank %d: %d descriptors before, %d after (the process's memory and its pages may be new)", rank,
         fds, now);
    must(count_threads() == 1, "rank %d: a thread is left", rank);
}

static void body(struct job *job, int rank, const struct scenario *s)
{
    mine = plot_of(s);
    static float ordinary[ELEMENTS];
    int fds = count_fds();
    float *x = mine.work == ARENA ? buffer_take(sizeof ordinary, true) : ordinary;
    if (mine.work == PROGRESS)
        setenv("ABCOMM_PROGRESS", "1", 1);
    if (rank == mine.victim)
        victim(job, rank, x);
    else
        survivor(job, rank, x, fds);
}

/* ---- The scenario ---- */

static void strike(struct job *job, const struct plot *p)
{
    if (p->phase == IN_DESTROY) {
        double end = abci_now() + 15;
        while (!atomic_load(&job->shared->flag[FLAG_READY]) && abci_now() < end)
            nap(1e-5);
    }
    nap((double)p->moment * 1e-6);
    job_signal(job, p->victim, p->way == BY_STOP ? SIGSTOP : SIGKILL);
}

static bool names(const char *text, int rank)
{
    char who[2][16];
    for (int many = 0; many < 2; many++) {
        size_t n = (size_t)snprintf(who[many], sizeof who[many], many ? "ranks %d" : "rank %d", rank);
        for (const char *at = strstr(text, who[many]); at; at = strstr(at + 1, who[many]))
            if (at[n] < '0' || at[n] > '9')
                return true;
    }
    return false;
}

/* The text names another survivor, which has ended because of the victim: that one was gone before this rank could hear the reason.
 */
static bool names_messenger(const struct plot *p, int r, const struct outcome *all)
{
    for (int q = 0; q < p->nranks; q++)
        if (q != r && q != p->victim && all[q].status < 0 && names(all[r].text, q) && names(all[q].text, p->victim))
            return true;
    return false;
}

static void check_survivor(const struct plot *p, int r, const struct outcome *all)
{
    const struct outcome *o = &all[r];
    if (p->phase == IN_DESTROY && o->status == ABC_OK)
        return;
    bool created = o->number[0];
    must(o->status == ABC_ERR_PEER || o->status == ABC_ERR_TIMEOUT, "rank %d ended with %d: %s", r, o->status, o->text);
    must(p->way == BY_STOP || !created || o->status == ABC_ERR_PEER, "rank %d ended with %d though rank %d is dead: %s", r,
         o->status, p->victim, o->text);
    must(names(o->text, p->victim) || names_messenger(p, r, all), "rank %d: \"%s\" does not name rank %d", r, o->text, p->victim);
    bool message = p->work == MESSAGES && (strstr(o->text, "send(") || strstr(o->text, "recv("));
    if (!message)
        must_mention(o->text, created ? "all" : "creating a communicator", "the operation"); /* or split's allgather */
    double limit = !created ? 3 * CONNECT + 4 : p->way != BY_STOP ? 2 : p->phase == RENDEZVOUS ? 3 * CONNECT + 4 : TIMEOUT + 2;
    must(o->seconds < limit, "rank %d knew after %.2f s", r, o->seconds);
}

static void run(const struct scenario *s)
{
    struct plot p = plot_of(s);
    struct job job;
    job_start(&job, p.nranks, body, s);
    if (p.phase == RENDEZVOUS || p.phase == IN_DESTROY)
        strike(&job, &p);
    double end = abci_now() + 20;
    while (atomic_load(&job.shared->flag[FLAG_LEFT]) < p.nranks - 1 && abci_now() < end)
        nap(0.002);
    must(atomic_load(&job.shared->flag[FLAG_LEFT]) == p.nranks - 1, "survivors do not end");
    job_signal(&job, p.victim, SIGKILL);
    job_wait_rank(&job, p.victim, 5);
    atomic_store(&job.shared->flag[FLAG_DEAD], 1);
    job_wait(&job, 20);
    job.state[p.victim] = 0;
    job_must_succeed(&job);
    for (int r = 0; r < p.nranks; r++)
        if (r != p.victim)
            check_survivor(&p, r, job.shared->rank);
    job_must_be_clean(&job);
}

static void add(struct scenario **list, int *count, struct plot p)
{
    struct scenario *s = add_scenario(list, count);
    *s = (struct scenario){.run = run, .a = p.nranks, .b = p.victim, .c = (long)p.way, .e = p.moment};
    s->d = (long)p.phase + 100 * (long)p.work;
    snprintf(s->name, sizeof s->name, "%s of rank %d of %d %s (%s), moment %ld", way_name[p.way], p.victim, p.nranks,
             phase_name[p.phase], work_name[p.work], p.moment);
}

static struct plot draw_plot(uint64_t *seed)
{
    struct plot p = {.nranks = 2 + (int)draw(seed, 3), .way = (enum way)draw(seed, WAYS), .phase = (enum phase)draw(seed, PHASES)};
    p.victim = (int)draw(seed, (uint32_t)p.nranks);
    p.work = (enum work)draw(seed, WORKS);
    if (p.phase == RENDEZVOUS || p.phase == IN_DESTROY) { /* struck from outside */
        p.way = draw(seed, 2) ? BY_KILL : BY_STOP;
        p.moment = p.phase == RENDEZVOUS ? draw(seed, 25000) : draw(seed, 400);
    } else {
        p.moment = draw(seed, p.phase == IN_SPLIT ? 30 : 400);
    }
    return p;
}

int main(void)
{
    struct scenario *list = NULL;
    int count = 0;
    setenv("ABCOMM_DEBUG", "NONE", 1);
    private_world();
    uint64_t seed = test_seed();
    for (int phase = 0; phase < PHASES; phase++)
        for (int way = 0; way < WAYS; way++)
            for (int n = 2; n <= 4; n += 2) {
                bool outside = phase == RENDEZVOUS || phase == IN_DESTROY;
                if (outside && way != BY_KILL && way != BY_STOP)
                    continue;
                struct plot p = {.nranks = n, .way = (enum way)way, .phase = (enum phase)phase};
                p.victim = (int)draw(&seed, (uint32_t)n);
                p.moment = outside ? 0 : draw(&seed, 40);
                add(&list, &count, p);
                p.victim = p.victim ? 0 : n - 1; /* rank 0 keeps the record and the rendezvous */
                p.moment = outside ? draw(&seed, 12000) : draw(&seed, 12);
                add(&list, &count, p);
            }
    for (int i = 0; i < (full_mode() ? 300 : 15); i++)
        add(&list, &count, draw_plot(&seed));
    int code = run_scenarios(list, count, 8);
    free(list);
    return code;
}
