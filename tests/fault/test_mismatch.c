/*
 * test_mismatch.c - ranks that call different operations: an error that shows both calls on every rank still in the call, at once;
 * a rank that has returned already learns it within 16 calls, in barrier and in destroy. With two ranks no byte is touched.
 */
#include "job.h"

#include "plan/plan.h"
#include "transport/shm.h"

#define QUICK 2.0 /* seconds; the promise is 0.2 on a quiet machine */

enum difference {
    COUNT_FAR,
    OP,
    KIND,
    ROOT,
    TYPE,
    OFF_BY_ONE,
    WIDE,
    BARRIER,
    ALGORITHM,
    EARLIER,
    REDUCE_ROOT,
    GATHER_COUNT,
    SCATTER_ROOT,
    TO_ALL_COUNT,
    PREFIX,
    NO_ROOT,
    DIFFERENCES
};
static const char *const difference_name[] = {
    "count",           "op",        "kind",    "root",          "type",           "off by one",     "wide",
    "barrier",         "algorithm", "earlier", "reduce's root", "gather's count", "scatter's root", "alltoall's count",
    "scan and exscan", "no root"};

struct setting {
    int nranks, odd; /* odd: the rank that calls something else */
    enum difference difference;
    uint64_t count;
    bool in_place, arena;
    const char *algorithm;
};

static struct setting setting_of(const struct scenario *s)
{
    return (struct setting){(int)(s->a / 10),
                            (int)(s->a % 10),
                            (enum difference)s->b,
                            (uint64_t)s->c,
                            s->d & 1,
                            s->d >> 1 & 1,
                            s->e > 0 ? abci_algos[s->e - 1]->name : NULL};
}

/* What the rank calls, buffers excepted. */
static abc_call call_of(const struct setting *set, int rank)
{
    bool odd = rank == set->odd;
    abc_call c;
    abc_call_init(&c, ABC_ALLREDUCE);
    c.count = set->count;
    c.algorithm = set->algorithm;
    switch (set->difference) {
    case COUNT_FAR:
        c.count = odd ? 14 : set->count;
        break;
    case OP:
        c.op = odd ? ABC_MAX : ABC_SUM;
        break;
    case KIND:
        c.collective = odd ? ABC_BROADCAST : ABC_ALLREDUCE;
        c.root = odd ? rank : 0;
        break;
    case ROOT:
        c.collective = ABC_BROADCAST;
        c.root = odd ? (rank + 1) % set->nranks : set->odd;
        break;
    case TYPE:
        c.type = odd ? ABC_I32 : ABC_F32;
        break;
    case OFF_BY_ONE:
        c.count = set->count + (odd ? 1 : 0);
        break;
    case WIDE:
        c.collective = odd ? ABC_REDUCE_SCATTER : ABC_ALLGATHER;
        break;
    case BARRIER:
        c.collective = odd ? ABC_BARRIER : ABC_ALLREDUCE;
        break;
    case ALGORITHM:
        c.algorithm = odd ? "ring" : "chain";
        break;
    case REDUCE_ROOT:
        c.collective = ABC_REDUCE; /* two ranks take themselves for the root */
        c.root = odd ? rank : (set->odd + 1) % set->nranks;
        break;
    case GATHER_COUNT:
        c.collective = ABC_GATHER;
        c.count = set->count + (odd ? 3 : 0);
        break;
    case SCATTER_ROOT:
        c.collective = ABC_SCATTER;
        c.root = odd ? (rank + 1) % set->nranks : set->odd;
        break;
    case TO_ALL_COUNT:
        c.collective = ABC_ALLTOALL;
        c.count = set->count + (odd ? 1 : 0);
        break;
    case PREFIX:
        c.collective = odd ? ABC_EXSCAN : ABC_SCAN;
        break;
    case NO_ROOT: /* everybody takes another one for the root, so nobody reads anything */
        c.collective = ABC_REDUCE;
        c.root = odd ? (rank + 1) % set->nranks : set->odd;
        break;
    default:
        break;
    }
    return c;
}

static void describe(const abc_call *c, char *text, size_t capacity)
{
    struct abci_call_id id = {.collective = (uint8_t)c->collective,
                              .type = (uint8_t)c->type,
                              .op = (uint8_t)c->op,
                              .root = (uint32_t)c->root,
                              .count = c->count};
    abci_call_describe(&id, text, capacity);
}

static void fill(unsigned char *p, size_t bytes, int rank)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (unsigned char)(i * 7 + (i >> 9) + (size_t)rank * 31);
}

static bool is_filled(const unsigned char *p, size_t bytes, int rank)
{
    for (size_t i = 0; i < bytes; i++)
        if (p[i] != (unsigned char)(i * 7 + (i >> 9) + (size_t)rank * 31))
            return false;
    return true;
}

/* A rank that has returned goes on as a root, which reads nobody. Returns the calls until it knew. */
static int calls_until_known(struct job *job, int rank, abc_comm *comm, int *status)
{
    int n = 0;
    float x = 1;
    for (*status = ABC_OK; n < 40 && *status == ABC_OK; n++) {
        double start = abci_now();
        *status = abc_broadcast(&x, &x, 1, ABC_F32, rank, comm);
        tell(job, rank, *status, start);
    }
    return n;
}

/* It may have copied its own data already. */
static bool begins_alone(const abc_call *c, int rank)
{
    bool rooted = c->collective == ABC_BROADCAST || c->collective == ABC_GATHER;
    return rooted ? c->root == rank : c->collective == ABC_SCAN && rank == 0;
}

/* Does every rank of such calls need another one's data? Else some may return before they can know. */
static bool all_read(const struct setting *set)
{
    enum difference d = set->difference;
    return d != KIND && d != ROOT && d != NO_ROOT && d != EARLIER && d != GATHER_COUNT && d != PREFIX &&
           (d != REDUCE_ROOT || set->nranks == 2) && !set->algorithm;
}

static void body(struct job *job, int rank, const struct scenario *s)
{
    struct setting set = setting_of(s);
    abc_comm *comm = must_create(job, rank, 0);
    size_t bytes = (size_t)(set.count + 64) * 4 * (size_t)set.nranks;
    unsigned char *in = buffer_take(bytes, set.arena), *out = buffer_take(bytes, set.arena);
    abc_call c = call_of(&set, rank);
    c.in = in;
    c.out = out;
    if (set.in_place && (c.collective == ABC_ALLGATHER || c.collective == ABC_GATHER))
        c.in = out + (size_t)rank * (size_t)c.count * 4;
    else if (set.in_place && (c.collective == ABC_REDUCE_SCATTER || c.collective == ABC_SCATTER))
        c.in = out, c.out = out + (size_t)rank * (size_t)c.count * 4;
    else if (set.in_place)
        c.in = out;
    fill(in, bytes, rank);
    fill(out, bytes, rank + 50);
    meet(job);                                          /* not a barrier: a rank still in it would get the next call's failure */
    if (set.difference == EARLIER && rank == set.odd) { /* a root waits for nobody, but may be told at once */
        int alone = abc_broadcast(in, in, 1, ABC_F32, rank, comm);
        must(alone == ABC_OK || alone == ABC_ERR_MISMATCH, "a root alone: %s", abc_last_error());
    }
    double start = abci_now();
    int status = abc_run(comm, &c), later = 0;
    tell(job, rank, status, start);
    struct outcome *mine = &job->shared->rank[rank];
    mine->number[0] = status;
    bool intact = is_filled(in, bytes, rank) && (status == ABC_OK || begins_alone(&c, rank) || is_filled(out, bytes, rank + 50));
    must(set.nranks > 2 || intact, "rank %d: data touched though it returned %d", rank, status);
    must(is_filled(in, bytes, rank), "rank %d: input touched", rank);
    if (status == ABC_OK && set.difference == NO_ROOT) { /* the next call that reads tells it */
        start = abci_now();
        status = abc_barrier(comm);
        tell(job, rank, status, start);
    } else if (status == ABC_OK) {
        later = calls_until_known(job, rank, comm, &status);
    }
    mine->number[1] = later;
    must(status == ABC_ERR_MISMATCH, "rank %d: status %d after %d calls: %s", rank, status, later, abc_last_error());
    must(later <= 16, "rank %d: %d calls until it knew", rank, later);
    must(abc_comm_status(comm) == ABC_ERR_MISMATCH, "comm_status");
    must(abc_barrier(comm) == ABC_ERR_MISMATCH, "barrier after");
    must_mention(abc_last_error(), "called", "barrier after");
    start = abci_now();
    must(abc_comm_destroy(comm) == ABC_ERR_MISMATCH, "destroy after");
    must_mention(abc_last_error(), "called", "destroy after");
    must(abci_now() - start < QUICK, "destroy took %.3f s", abci_now() - start);
    buffer_give(in, set.arena);
    buffer_give(out, set.arena);
}

static void run(const struct scenario *s)
{
    struct setting set = setting_of(s);
    struct job job;
    char one[96], other[96];
    abc_call a = call_of(&set, set.odd), b = call_of(&set, (set.odd + 1) % set.nranks);
    int in_call = 0;
    describe(&a, one, sizeof one);
    describe(&b, other, sizeof other);
    job_start(&job, set.nranks, body, s);
    job_wait(&job, 25);
    job_must_succeed(&job);
    for (int r = 0; r < set.nranks; r++) {
        const struct outcome *o = &job.shared->rank[r];
        in_call += o->number[0] != ABC_OK;
        must(o->seconds < QUICK, "rank %d knew after %.3f s", r, o->seconds);
        bool is_over = set.difference == EARLIER || set.difference == NO_ROOT;
        if (!is_over) { /* else two of the calls that followed are shown */
            must_mention(o->text, one, "text");
            must_mention(o->text, other, "text");
        }
        must(o->number[0] != ABC_OK || !all_read(&set) || set.nranks > 2 || set.difference == BARRIER,
             "rank %d returned success from %s against %s", r, one, other);
    }
    must(in_call > 0 || set.difference == NO_ROOT, "no rank noticed within the call");
    job_must_be_clean(&job);
}

static void add(struct scenario **list, int *count, long nranks, long odd, long difference, long elements, long memory,
                long algorithm)
{
    struct scenario *s = add_scenario(list, count);
    *s = (struct scenario){.run = run, .a = nranks * 10 + odd, .b = difference, .c = elements, .d = memory, .e = algorithm};
    snprintf(s->name, sizeof s->name, "mismatch of %s, %ld elements, %ld ranks, odd %ld, %s, %s, %s", difference_name[difference],
             elements, nranks, odd, memory & 1 ? "in place" : "out of place", memory & 2 ? "arena" : "private",
             algorithm ? abci_algos[algorithm - 1]->name : "default");
}

int main(void)
{
    static const long sizes[] = {1, 8, 50, 60, 4096, 5000, 140000, 1000000};
    struct scenario *list = NULL;
    int count = 0;
    setenv("ABCOMM_DEBUG", "NONE", 1);
    private_world();
    uint64_t seed = test_seed();
    for (long d = 0; d < DIFFERENCES; d++)
        for (int k = 0; k < 8; k++)
            for (long memory = 0; memory < 4; memory++)
                for (long n = 2; n <= 4; n++) {
                    bool wanted = n == 2 ? draw(&seed, 4) == 0 : draw(&seed, 12) == 0;
                    if (wanted || full_mode() || (sizes[k] == 1000000 && memory == 0 && n < 4))
                        add(&list, &count, n, (long)draw(&seed, (uint32_t)n), d, sizes[k], memory, 0);
                }
    for (long algorithm = 1; abci_algos[algorithm - 1]; algorithm++)
        for (long memory = 0; memory < 4 && abci_algo_fits(abci_algos[algorithm - 1], ABC_ALLREDUCE, 2); memory++) {
            add(&list, &count, 2, memory & 1, OP, 5000, memory, algorithm);
            add(&list, &count, 2, memory >> 1, OFF_BY_ONE, 20, memory, algorithm);
            add(&list, &count, 3, 2, TYPE, 300000, memory, algorithm);
        }
    int code = run_scenarios(list, count, 6);
    free(list);
    return code;
}
