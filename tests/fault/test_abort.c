/*
 * test_abort.c - abort from a rank that waits for nobody, from another thread, with requests in flight, beside a stopped rank: all
 * operations end soon with ABC_ERR_ABORTED, abort itself never blocks, and destroy works afterwards, also on some ranks only.
 */
#include <pthread.h>

#include "job.h"

#define SOON 1.0
#define NRANKS 4

enum { FLAG_STOPPED, FLAG_OVER };
enum kind { BY_RANK, BY_THREAD, REQUESTS, BESIDE_STOPPED, SOME_DESTROY, PROGRESS, TWICE, KINDS };
static const char *const kind_name[] = {
    "by a rank", "by a thread", "of requests", "beside a stopped rank", "and destroy on three of four", "with a progress thread",
    "twice"};

static void abort_quickly(abc_comm *comm, const char *reason)
{
    double start = abci_now();
    must(abc_comm_abort(comm, reason) == ABC_OK, "abort: %s", abc_last_error());
    must(abci_now() - start < 0.2, "abort took %.3f s", abci_now() - start);
}

static void *abort_later(void *comm)
{
    nap(0.15);
    abort_quickly(comm, "thread\x1b[1m says so");
    return NULL;
}

static void must_be_aborted(int rank, int status, double since)
{
    must(status == ABC_ERR_ABORTED, "rank %d: status %d: %s", rank, status, abc_last_error());
    must_mention(abc_last_error(), "aborted the communicator: ", "the reason");
    must(!strchr(abc_last_error(), 0x1b), "a control character in the text");
    must(abci_now() - since < 0.15 + SOON, "rank %d: %.2f s", rank, abci_now() - since);
}

/* Several requests that cannot complete: their peers start nothing. */
static void wait_requests(int rank, abc_comm *comm, float *x, double start)
{
    abc_request *request[20];
    for (int i = 0; i < 20; i++)
        must(abc_allreduce_start(ABC_IN_PLACE, x + i * 1000, 1000, ABC_F32, ABC_SUM, comm, &request[i]) == ABC_OK, "start: %s",
             abc_last_error());
    for (int i = 19; i >= 0; i--)
        must_be_aborted(rank, abc_wait(&request[i]), start);
}

/* The rank that aborts, or whose thread does. */
static void lead(struct job *job, enum kind kind, abc_comm *comm, float *x, double start)
{
    pthread_t thread;
    if (kind == BY_THREAD) {
        pthread_create(&thread, NULL, abort_later, comm);
        must_be_aborted(0, abc_allreduce(x, x + 300000, 300000, ABC_F32, ABC_SUM, comm), start);
        pthread_join(thread, NULL);
        return;
    }
    nap(0.15);
    abort_quickly(comm, kind == TWICE ? NULL : "the user lost patience");
    if (kind == TWICE)
        abort_quickly(comm, "again");
    must_be_aborted(0, abc_barrier(comm), start);
}

static void body(struct job *job, int rank, const struct scenario *s)
{
    enum kind kind = (enum kind)s->a;
    static float x[600000];
    abc_comm *comm;
    if (kind == PROGRESS)
        setenv("ABCOMM_PROGRESS", "1", 1);
    comm = must_create(job, rank, 10);
    must(abc_barrier(comm) == ABC_OK, "barrier: %s", abc_last_error());
    meet(job);
    double start = abci_now();
    if (kind == BESIDE_STOPPED && rank == 3)
        raise(SIGSTOP);
    if (rank == 0)
        lead(job, kind, comm, x, start);
    else if (kind == BY_THREAD && rank == 1)
        nap(0.3); /* never comes */
    else if (kind == REQUESTS || kind == PROGRESS)
        wait_requests(rank, comm, x, start);
    else if (rank != 3 || kind != BESIDE_STOPPED)
        must_be_aborted(rank, abc_allreduce(x, x + 300000, 300000, ABC_F32, ABC_SUM, comm), start);
    must(kind == BESIDE_STOPPED || abc_comm_status(comm) == ABC_ERR_ABORTED, "status %d", abc_comm_status(comm));
    if (kind == BESIDE_STOPPED && rank == 3)
        must(abc_barrier(comm) == ABC_ERR_ABORTED, "the woken rank does not learn it");
    if (kind == SOME_DESTROY && rank == 2) {
        wait_flag(job, FLAG_OVER, 3, 10);
        exit(0);
    }
    start = abci_now();
    must(abc_comm_destroy(comm) == ABC_ERR_ABORTED, "destroy: %s", abc_last_error());
    must(abci_now() - start < SOON, "destroy took %.2f s", abci_now() - start);
    must(count_threads() == 1, "a thread is left");
    atomic_fetch_add(&job->shared->flag[FLAG_OVER], 1);
}

static void run(const struct scenario *s)
{
    struct job job;
    job_start(&job, NRANKS, body, s);
    if (s->a == BESIDE_STOPPED) {
        double end = abci_now() + 10;
        while (atomic_load(&job.shared->flag[FLAG_OVER]) < 3 && abci_now() < end)
            nap(0.002);
        must(atomic_load(&job.shared->flag[FLAG_OVER]) == 3, "the others wait for the stopped rank");
        job_signal(&job, 3, SIGCONT);
    }
    job_wait(&job, 20);
    job_must_succeed(&job);
    job_must_be_clean(&job);
}

int main(void)
{
    struct scenario *list = NULL;
    int count = 0;
    setenv("ABCOMM_DEBUG", "NONE", 1);
    private_world();
    for (int kind = 0; kind < KINDS; kind++)
        for (int round = 0; round < (full_mode() ? 20 : 2); round++) {
            struct scenario *s = add_scenario(&list, &count);
            *s = (struct scenario){.run = run, .a = kind};
            snprintf(s->name, sizeof s->name, "abort %s, round %d", kind_name[kind], round);
        }
    int code = run_scenarios(list, count, 3);
    free(list);
    return code;
}
