/*
 * test_calls.c - every system call that work makes fails in turn. A clean run of each kind of work notes which calls a rank makes
 * and how often; then a run each in which one of them fails, at some turn or from some turn on always, with an error that the
 * kernel may give. The work goes on with right results, or ends with a clear error on every rank; nobody hangs, no descriptor is
 * left, and the same processes work on.
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "calls.h"
#include "job.h"

#include "comm/comm.h"

#define NRANKS 3
#define QUICK 9.0 /* seconds, on a busy machine; less than any time limit */
#define NUMBERS 512
#define LARGE 700000u
#define CONNECT 3.0 /* time limit of a creation in which something fails */
#define LATE 0.4    /* time limit where a rank does not come */

enum kind { SHORT, STAGED, REMOTE, ARENA, MESSAGES, REQUESTS, MEMORY, ABORTED, TIMED_OUT, CREATION, KINDS };
static const char *const kind_name[KINDS] = {"short calls", "staged calls", "remote reads",    "calls in the arena", "messages",
                                             "requests",    "memory",       "an aborted call", "a late rank",        "creation"};

/* ---- The rule ---- */

static struct {
    _Atomic bool armed;
    long number, turn, error; /* number -1: only count */
    bool always;
    _Atomic long made;
} rule;

/* All scenarios share these: how often the victim of a clean run made each call, and how the others ended. */
static struct {
    _Atomic long seen[KINDS][NUMBERS], went_on, ended;
} * notes;
static _Atomic long *counting; /* that row, in a clean run */

static bool fails_now(long number, long *result)
{
    if (!atomic_load(&rule.armed) || number < 0 || number >= NUMBERS)
        return false;
    if (counting)
        atomic_fetch_add(&counting[number], 1);
    if (number != rule.number)
        return false;
    long made = atomic_fetch_add(&rule.made, 1);
    *result = number == SYS_brk ? 0 : -rule.error; /* that one tells by a break which has not moved */
    return rule.always ? made >= rule.turn : made == rule.turn;
}

/* The library's threads block all signals; the trap's must come through. */
int __real_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);
int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);

int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *before)
{
    sigset_t open = *set;
    sigdelset(&open, SIGSYS);
    return __real_pthread_sigmask(how, &open, before);
}

/* ---- Work ---- */

struct work {
    abc_comm *comm;
    int rank, victim;
    float *in, *out; /* LARGE elements each */
};

/* The others are late now and then, a little and so much that the victim goes to sleep in earnest. */
static void come_late(const struct work *w, int turn)
{
    if (w->rank != w->victim && turn % 4 == 1)
        nap(turn % 8 == 1 ? 0.001 : 0.012);
}

static int summed(const struct work *w, const float *in, float *out, uint64_t count, int turn)
{
    float *own = in == out ? out : (float *)(uintptr_t)in;
    for (uint64_t i = 0; i < count; i++)
        own[i] = (float)(w->rank + turn);
    come_late(w, turn);
    int status = abc_allreduce(in == out ? ABC_IN_PLACE : in, out, count, ABC_F32, ABC_SUM, w->comm);
    const float sum = (float)(NRANKS * (NRANKS - 1) / 2 + NRANKS * turn);
    for (uint64_t i = 0; i < count && status == ABC_OK; i++)
        must(out[i] == sum, "rank %d: element %lu is %g instead of %g", w->rank, (unsigned long)i, (double)out[i], (double)sum);
    return status;
}

static int short_calls(const struct work *w)
{
    int status = ABC_OK;
    for (int i = 0; i < 24 && status == ABC_OK; i++)
        status = summed(w, w->in, w->out, i % 2 ? 2 : 900, i);
    return status;
}

static int large_calls(const struct work *w)
{
    int status = ABC_OK;
    for (int i = 0; i < 4 && status == ABC_OK; i++)
        status = summed(w, i % 2 ? w->out : w->in, w->out, i < 2 ? LARGE : LARGE / 10, i);
    return status == ABC_OK ? abc_broadcast(w->in, w->in, LARGE, ABC_F32, 2, w->comm) : status;
}

static int one_message(const struct work *w, uint64_t count, int turn)
{
    int right = (w->rank + 1) % NRANKS, left = (w->rank + NRANKS - 1) % NRANKS;
    for (uint64_t i = 0; i < count; i++)
        w->in[i] = (float)(w->rank * 10 + turn);
    come_late(w, turn);
    int status = abc_sendrecv(w->in, count, right, 3, w->out, count, turn % 2 ? ABC_ANY_SOURCE : left, 3, ABC_F32, w->comm, NULL);
    for (uint64_t i = 0; i < count && status == ABC_OK; i++)
        must(w->out[i] == (float)(left * 10 + turn), "rank %d: element %lu of a message is %g", w->rank, (unsigned long)i,
             (double)w->out[i]);
    return status;
}

static int messages(const struct work *w)
{
    static const uint64_t counts[] = {2, 2, 700, LARGE, 2, 60000};
    int status = ABC_OK;
    for (int i = 0; i < 12 && status == ABC_OK; i++)
        status = one_message(w, counts[i % 6], i);
    return status;
}

/* Several started, one persistent; with a progress thread. All are waited for, whatever becomes of them. */
static int requests(const struct work *w)
{
    abc_request *r[4] = {0}, *again = NULL;
    abc_call c;
    int status = ABC_OK;
    abc_call_init(&c, ABC_ALLREDUCE);
    c.in = ABC_IN_PLACE;
    c.out = w->out;
    c.count = 5000;
    c.op = ABC_MAX;
    status = abc_request_create(w->comm, &c, &again);
    for (int i = 0; i < 6 && status == ABC_OK; i++) {
        come_late(w, i);
        status = abc_restart(again);
        for (int k = 0; k < 4 && status == ABC_OK; k++)
            status = abc_allreduce_start(w->in, w->out + 100000 * (k + 1), k % 2 ? 3 : 90000, ABC_F32, ABC_MAX, w->comm, &r[k]);
        for (int k = 3; k >= 0; k--)
            if (r[k]) {
                int one = abc_wait(&r[k]);
                status = status == ABC_OK ? one : status;
            }
        if (status == ABC_OK)
            status = abc_wait(&again);
    }
    if (again && abc_request_free(again) != ABC_OK)
        abc_comm_abort(w->comm, "a request is still on its way"), abc_wait(&again), abc_request_free(again);
    return status;
}

static int memory(const struct work *w)
{
    int status = ABC_OK;
    for (int i = 0; i < 3 && status == ABC_OK; i++) {
        void *more = NULL;
        status = abc_mem_alloc((size_t)(40u << 20) << i, &more);
        if (status == ABC_OK)
            status = summed(w, more, more, 100000, i);
        must(abc_mem_free(more) == ABC_OK, "abc_mem_free: %s", abc_last_error());
    }
    return status;
}

/* Rank 2 ends the communicator, or does not come, while the others have offered their outputs. */
static int deserted(const struct work *w, bool abort)
{
    int status = summed(w, w->in, w->out, LARGE, 0);
    if (status == ABC_OK && w->rank == 2) {
        nap(abort ? 0.05 : 4 * LATE);
        if (abort)
            abc_comm_abort(w->comm, "enough");
    }
    return status == ABC_OK ? summed(w, w->in, w->out, LARGE, 0) : status;
}

static int do_work(const struct work *w, enum kind kind)
{
    switch (kind) {
    case SHORT:
        return short_calls(w);
    case MESSAGES:
        return messages(w);
    case REQUESTS:
        return requests(w);
    case MEMORY:
        return memory(w);
    case ABORTED:
    case TIMED_OUT:
        return deserted(w, kind == ABORTED);
    default:
        return large_calls(w);
    }
}

/* ---- Ranks ---- */

static void set_rule(const struct scenario *s, int rank)
{
    rule.number = s->b;
    rule.turn = s->c / 2;
    rule.always = s->c & 1;
    rule.error = s->d;
    counting = s->b < 0 ? notes->seen[s->a] : NULL;
    if (rank == s->e)
        calls_trap(fails_now);
}

/* a: kind, b: number of the call, c: turn * 2 + always, d: error, e: victim */
static void body(struct job *job, int rank, const struct scenario *s)
{
    enum kind kind = (enum kind)s->a;
    bool arena = kind == ARENA || kind == ABORTED || kind == TIMED_OUT;
    setenv("ABCOMM_PVR", kind == REMOTE ? "on" : "off", 1);
    must_work(job, rank, "before");
    int fds = count_fds();
    if (kind == REQUESTS)
        setenv("ABCOMM_PROGRESS", "1", 1);
    struct work w = {must_create(job, rank,
                                 kind != TIMED_OUT ? 10
                                 : rank == s->e    ? LATE
                                                   : 2 * LATE),
                     rank, (int)s->e, buffer_take(LARGE * 4, arena), buffer_take(LARGE * 4, arena)};
    memset(w.out, 0, LARGE * 4);
    memset(w.in, 0, LARGE * 4);
    set_rule(s, rank);
    meet(job);
    double start = abci_now();
    atomic_store(&rule.armed, rank == w.victim);
    int status = do_work(&w, kind);
    if (status == ABC_OK)
        status = abc_barrier(w.comm); /* who has sent all may not know yet that another could not receive it */
    if (status != ABC_OK && abc_comm_status(w.comm) == ABC_OK) { /* found before the call got its number: only this rank knows */
        must(strlen(abc_last_error()) > 20, "rank %d: status %d without a text", rank, status);
        abc_comm_abort(w.comm, "a call could not be started");
    }
    tell(job, rank, status, start);
    int over = abc_comm_destroy(w.comm);
    atomic_store(&rule.armed, false);
    must(status == ABC_OK ? over == ABC_OK || rank == w.victim : over != ABC_OK, "rank %d: destroy returns %d after %d: %s", rank,
         over, status, abc_last_error());
    must(status == ABC_OK || strlen(job->shared->rank[rank].text) > 20, "rank %d: status %d without a text", rank, status);
    meet(job);
    buffer_give(w.in, arena);
    buffer_give(w.out, arena);
    abci_comm_reap();
    unsetenv("ABCOMM_PROGRESS");
    if (rank != w.victim)
        must(count_threads() == 1, "rank %d: a thread is left", rank);
    must_work(job, rank, "after");
    must(count_fds() <= fds + 1, "rank %d: %d descriptors before, %d after (one is the process's memory)", rank, fds, count_fds());
}

/* The same for creating a communicator. Who has got it although another has not learns that in its first call. */
static void creation(struct job *job, int rank, const struct scenario *s)
{
    abc_comm *comm = NULL;
    float x = 1;
    setenv("ABCOMM_PVR", "on", 1);
    set_rule(s, rank);
    int fds = count_fds();
    meet(job);
    double start = abci_now(), limit = job->connect_timeout;
    job->connect_timeout = CONNECT;
    atomic_store(&rule.armed, rank == s->e);
    int status = create_comm(job, rank, NRANKS, 0, &comm);
    atomic_store(&rule.armed, false);
    if (comm)
        status = abc_allreduce(ABC_IN_PLACE, &x, 1, ABC_F32, ABC_SUM, comm);
    tell(job, rank, status, start);
    must(status == ABC_OK || strlen(job->shared->rank[rank].text) > 20, "rank %d: status %d without a text", rank, status);
    abc_comm_destroy(comm);
    job->connect_timeout = limit;
    if (s->b == SYS_setsockopt) /* nobody could say that the port may be used again at once */
        snprintf(job->address, sizeof job->address, "127.0.0.1:%d", 20000 + atoi(strchr(job->address, ':') + 1));
    meet(job);
    abci_comm_reap();
    must_work(job, rank, "after");
    /* A rank that failed before it had mapped a peer cannot say goodbye to it: two descriptors a peer stay until it dies. */
    must(count_fds() <= fds + 1 + 2 * (NRANKS - 1), "rank %d: %d descriptors before, %d after", rank, fds, count_fds());
    must(rank == s->e || count_threads() == 1, "rank %d: a thread is left", rank);
}

/* ---- Scenarios ---- */

static void run(const struct scenario *s)
{
    struct job job;
    double longest = s->a == CREATION ? 2 * CONNECT + QUICK : QUICK;
    job_start(&job, NRANKS, s->a == CREATION ? creation : body, s);
    job_wait(&job, 40);
    job_must_succeed(&job);
    const struct outcome *o = job.shared->rank;
    bool ends = s->a == ABORTED || s->a == TIMED_OUT;
    for (int r = 0; r < NRANKS; r++) {
        must(o[r].seconds < longest, "rank %d took %.2f s: %s", r, o[r].seconds, o[r].text);
        must(!ends || o[r].status != ABC_OK, "rank %d: success, though rank 2 has left it alone", r);
        must((o[r].status == ABC_OK) == (o[0].status == ABC_OK), "rank %d has status %d, rank 0 %d: %s%s", r, o[r].status,
             o[0].status, o[r].text, o[0].text);
    }
    atomic_fetch_add(o[0].status == ABC_OK ? &notes->went_on : &notes->ended, s->b >= 0 && !ends);
    job_must_be_clean(&job);
}

static bool count_calls(enum kind kind, int victim)
{
    struct scenario s = {.run = run, .limit = 60, .a = (long)kind, .b = -1, .e = victim};
    snprintf(s.name, sizeof s.name, "%s without a fault", kind_name[kind]);
    return run_scenarios(&s, 1, 1) == 0;
}

static long error_of(long number, int which)
{
    static const struct {
        long number, error[2];
    } table[] = {
        {SYS_futex, {EINTR, EPERM}},         {SYS_poll, {EINTR, ENOMEM}},           {SYS_membarrier, {EPERM, ENOMEM}},
        {SYS_mmap, {ENOMEM, EAGAIN}},        {SYS_ftruncate, {EINTR, ENOMEM}},      {SYS_process_vm_readv, {EPERM, EFAULT}},
        {SYS_open, {EMFILE, EACCES}},        {SYS_openat, {EMFILE, EACCES}},        {SYS_read, {EINTR, EIO}},
        {SYS_close, {EINTR, EIO}},           {SYS_mremap, {ENOMEM, EAGAIN}},        {SYS_munmap, {ENOMEM, ENOMEM}},
        {SYS_socket, {EMFILE, EACCES}},      {SYS_connect, {EINTR, ECONNREFUSED}},  {SYS_accept4, {EINTR, EMFILE}},
        {SYS_recvfrom, {EINTR, ECONNRESET}}, {SYS_recvmsg, {EINTR, ENOMEM}},        {SYS_sendto, {EINTR, EPIPE}},
        {SYS_sendmsg, {EINTR, ENOBUFS}},     {SYS_bind, {EADDRINUSE, EACCES}},      {SYS_getrandom, {EINTR, ENOSYS}},
        {SYS_fallocate, {ENOSPC, ENOSYS}},   {SYS_clock_nanosleep, {EINTR, EPERM}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].number == number)
            return table[i].error[which];
    return which ? ENOSYS : EINVAL;
}

static void add(struct scenario **list, int *count, struct scenario s)
{
    struct scenario *row = add_scenario(list, count);
    if (s.c & 1 && s.d == EINTR)
        s.d = error_of(s.b, 1); /* no kernel interrupts always */
    s.run = run;
    s.limit = 60;
    snprintf(s.name, sizeof s.name, "system call %ld of rank %ld in %s, %s %ld: %s", s.b, s.e, kind_name[s.a],
             s.c & 1 ? "all from turn" : "turn", s.c / 2 + 1, strerror((int)s.d));
    *row = s;
}

/* The turns of a clean run, some of them; a run differs a little from another. Quick: one of them, or all. */
static void add_call(struct scenario **list, int *count, struct scenario s, long times, uint64_t *seed)
{
    long turns[] = {0, 1, 2, 3, 4, 5, 6, 7, times / 2, times - 1};
    if (!full_mode()) {
        s.c = draw(seed, 2) ? (long)draw(seed, (uint32_t)times) * 2 : 1;
        add(list, count, s);
        return;
    }
    for (int i = 0; i < 10; i++) {
        s.c = turns[i] * 2;
        if (turns[i] < times && (i < 8 || turns[i] >= 8))
            add(list, count, s);
    }
    s.c = 1;
    add(list, count, s);
}

/* libsodium ends a process that gets no random bytes, the C library one whose locks cannot sleep: they have no way to tell. */
static bool is_spared(int kind, long number)
{
    return number == SYS_getrandom || (kind == CREATION && number == SYS_futex);
}

/* A clean run, then the runs in which its calls fail. */
static void add_kind(struct scenario **list, int *count, int kind, uint64_t *seed)
{
    int victim = (int)draw(seed, 2);
    must(count_calls((enum kind)kind, victim), "%s do not even work without a fault", kind_name[kind]);
    for (long number = 0; number < NUMBERS; number++) {
        long times = notes->seen[kind][number];
        if (times > 0)
            printf("rank %d, %s: call %ld, %ld times\n", victim, kind_name[kind], number, times);
        for (int which = 0; which < (full_mode() ? 2 : 1) && times > 0 && !is_spared(kind, number); which++) {
            struct scenario s = {.a = kind, .b = number, .d = error_of(number, which), .e = victim};
            add_call(list, count, s, times, seed);
        }
    }
}

int main(void)
{
    struct scenario *list = NULL;
    int count = 0;
    setenv("ABCOMM_DEBUG", "NONE", 1);
    private_world();
    notes = mmap(NULL, sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(notes != MAP_FAILED, "mmap: %s", strerror(errno));
    uint64_t seed = test_seed();
    for (int kind = 0; kind < KINDS && !UNDER_SANITIZER; kind++) /* the sanitizer's own calls would fail */
        add_kind(&list, &count, kind, &seed);
    int code = run_scenarios(list, count, 6);
    printf("work went on %ld times, ended with an error on every rank %ld times\n", notes->went_on, notes->ended);
    free(list);
    return UNDER_SANITIZER ? 77 : code;
}
