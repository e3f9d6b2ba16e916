/*
 * job.c - processes of the fault tests: scenarios side by side, their ranks below them. Knows nothing of single tests; see job.h.
 */
#include "job.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "comm/comm.h"

static struct job *current; /* of this scenario's process */
static const struct scenario *running;
static _Atomic uint32_t *next_port; /* shared by all scenarios */
static bool is_private;

/* ---- Checks ---- */

static void kill_ranks(void)
{
    for (int r = 0; current && r < current->nranks; r++)
        if (current->pid[r] > 0) {
            kill(current->pid[r], SIGKILL);
            waitpid(current->pid[r], NULL, 0);
        }
}

void must(bool ok, const char *format, ...)
{
    if (ok)
        return;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "FAILED %s: %s\n", running ? running->name : "test", text);
    kill_ranks();
    _exit(1);
}

void skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "skipped %s: ", running ? running->name : "test");
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    kill_ranks();
    _exit(77);
}

void must_mention(const char *text, const char *part, const char *where)
{
    must(strstr(text, part) != NULL, "%s: \"%s\" does not mention \"%s\"", where, text, part);
}

void nap(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

void *buffer_take(size_t bytes, bool arena)
{
    void *p = NULL;
    if (arena)
        must(abc_mem_alloc(bytes, &p) == ABC_OK, "abc_mem_alloc: %s", abc_last_error());
    else
        p = malloc(bytes);
    must(p != NULL, "no memory");
    return p;
}

void buffer_give(void *buffer, bool arena)
{
    if (arena)
        must(abc_mem_free(buffer) == ABC_OK, "abc_mem_free: %s", abc_last_error());
    else
        free(buffer);
}

static bool anyhow;

void ends_anyhow(void)
{
    anyhow = true;
}

/* LeakSanitizer asks this where it is linked in. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);

int __lsan_is_turned_off(void)
{
    return anyhow;
}

/* ---- Ranks ---- */

/* A port below the ephemeral range that is free now; in a private world nobody else takes ports. */
static void choose_address(char address[64])
{
    for (int attempt = 0; attempt < 1000; attempt++) {
        uint32_t port = 10000 + atomic_fetch_add(next_port, 1) % 20000;
        struct sockaddr_in a = {
            .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        bool free = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
        close(fd);
        snprintf(address, 64, "127.0.0.1:%u", port);
        if (free)
            return;
    }
    must(false, "no free port");
}

void job_start(struct job *job, int nranks, rank_body body, const struct scenario *scenario)
{
    memset(job, 0, sizeof *job);
    job->nranks = nranks;
    job->shared = mmap(NULL, sizeof *job->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(job->shared != MAP_FAILED, "mmap: %s", strerror(errno));
    job->shared->expected = nranks;
    choose_address(job->address);
    current = job;
    pid_t parent = getpid();
    for (int r = 0; r < nranks; r++) {
        job->shared->rank[r].status = 999;
        pid_t pid = fork();
        must(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(1);
            current = NULL;
            body(job, r, scenario);
            exit(0);
        }
        job->pid[r] = pid;
    }
}

static bool poll_rank(struct job *job, int r)
{
    if (job->pid[r] > 0 && waitpid(job->pid[r], &job->state[r], WNOHANG) == job->pid[r])
        job->pid[r] = 0;
    return job->pid[r] == 0;
}

void job_wait_rank(struct job *job, int rank, double seconds)
{
    double end = abci_now() + seconds;
    while (!poll_rank(job, rank) && abci_now() < end)
        nap(0.002);
    must(job->pid[rank] == 0, "rank %d hangs (more than %g s)", rank, seconds);
}

void job_wait(struct job *job, double seconds)
{
    double end = abci_now() + seconds;
    for (int r = 0; r < job->nranks; r++)
        job_wait_rank(job, r, end - abci_now() > 0 ? end - abci_now() : 0);
}

void job_signal(struct job *job, int rank, int signal)
{
    if (job->pid[rank] > 0)
        kill(job->pid[rank], signal);
}

void job_must_succeed(struct job *job)
{
    for (int r = 0; r < job->nranks; r++) {
        int s = job->state[r];
        if (WIFEXITED(s) && WEXITSTATUS(s) == 77) {
            kill_ranks();
            _exit(77); /* it has said why */
        }
        must(WIFEXITED(s) && WEXITSTATUS(s) == 0, "rank %d ended with %s %d", r, WIFEXITED(s) ? "code" : "signal",
             WIFEXITED(s) ? WEXITSTATUS(s) : WTERMSIG(s));
    }
}

void job_wait_stopped(struct job *job, int rank, double seconds)
{
    double end = abci_now() + seconds;
    int state = 0;
    while (waitpid(job->pid[rank], &state, WUNTRACED | WNOHANG) == 0 && abci_now() < end)
        nap(0.002);
    bool stopped = WIFSTOPPED(state) && state != 0;
    if (!stopped && (WIFEXITED(state) || WIFSIGNALED(state)) && abci_now() < end) {
        job->pid[rank] = 0;
        job->state[rank] = state;
    }
    must(stopped, "rank %d did not stop (state %x)", rank, (unsigned)state);
}

/* Is there a socket of the handshake in this network namespace? */
static bool has_unix_socket(void)
{
    char line[512];
    bool found = false;
    FILE *f = fopen("/proc/net/unix", "re");
    while (f && fgets(line, sizeof line, f))
        found |= strstr(line, "@abcomm-") != NULL;
    if (f)
        fclose(f);
    return found;
}

/* Is somebody listening on the job's port still? */
static bool has_listener(const struct job *job)
{
    char line[512], port[32];
    bool found = false;
    snprintf(port, sizeof port, "0100007F:%04X 00000000:0000 0A", (unsigned)atoi(strchr(job->address, ':') + 1));
    FILE *f = fopen("/proc/net/tcp", "re");
    while (f && fgets(line, sizeof line, f))
        found |= strstr(line, port) != NULL;
    if (f)
        fclose(f);
    return found;
}

int count_dir(const char *path)
{
    int count = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        count += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return count;
}

void job_must_be_clean(struct job *job)
{
    for (int r = 0; r < job->nranks; r++)
        must(job->pid[r] == 0, "rank %d still runs", r);
    must(!has_listener(job), "somebody still listens on %s", job->address);
    must(!is_private || count_dir("/dev/shm") == 0, "/dev/shm is not empty");
}

/* ---- What ranks do ---- */

void meet(struct job *job)
{
    struct shared *s = job->shared;
    uint32_t round = atomic_load(&s->round);
    double end = abci_now() + 20;
    if (atomic_fetch_add(&s->arrived, 1) + 1 == (uint32_t)s->expected) {
        atomic_store(&s->arrived, 0);
        atomic_fetch_add(&s->round, 1);
    }
    while (atomic_load(&s->round) == round && abci_now() < end)
        nap(0.0005);
    must(atomic_load(&s->round) != round, "the ranks do not meet");
}

void wait_flag(struct job *job, int which, int value, double seconds)
{
    double end = abci_now() + seconds;
    while (atomic_load(&job->shared->flag[which]) < value && abci_now() < end)
        nap(0.001);
    must(atomic_load(&job->shared->flag[which]) >= value, "flag %d did not reach %d in %g s", which, value, seconds);
}

int create_comm(struct job *job, int rank, int nranks, double timeout, abc_comm **comm)
{
    abc_comm_config config;
    abc_comm_config_init(&config);
    config.rank = rank;
    config.nranks = nranks;
    config.address = job->address;
    config.connect_timeout = job->connect_timeout > 0 ? job->connect_timeout : 15;
    config.timeout = timeout > 0 ? timeout : 20;
    return abc_comm_create(&config, comm);
}

abc_comm *must_create(struct job *job, int rank, double timeout)
{
    abc_comm *comm = NULL;
    int status = create_comm(job, rank, job->nranks, timeout, &comm);
    must(status == ABC_OK, "rank %d: creation: %s", rank, abc_last_error());
    return comm;
}

void must_work(struct job *job, int rank, const char *when)
{
    abc_comm *comm = NULL;
    float x[4] = {1, 2, 3, (float)rank};
    int status = create_comm(job, rank, 3, 0, &comm);
    must(status == ABC_OK, "rank %d: creation %s: %s", rank, when, abc_last_error());
    must(abc_allreduce(ABC_IN_PLACE, x, 4, ABC_F32, ABC_SUM, comm) == ABC_OK, "allreduce %s: %s", when, abc_last_error());
    must(x[0] == 3 && x[3] == 3, "wrong sum %s", when);
    must(abc_comm_destroy(comm) == ABC_OK, "destroy %s: %s", when, abc_last_error());
    meet(job);
    abci_comm_reap();
    meet(job);
}

void tell(struct job *job, int rank, int status, double since)
{
    struct outcome *o = &job->shared->rank[rank];
    snprintf(o->text, sizeof o->text, "%s", status < 0 ? abc_last_error() : "");
    o->seconds = abci_now() - since;
    o->status = status;
}

int count_fds(void)
{
    return count_dir("/proc/self/fd");
}

int count_threads(void)
{
    return count_dir("/proc/self/task");
}

int count_maps(void)
{
    int count = 0;
    char line[512];
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && fgets(line, sizeof line, f))
        count++;
    if (f)
        fclose(f);
    return count;
}

long memory_kib(const char *field)
{
    char line[256];
    long kib = -1;
    size_t n = strlen(field);
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, field, n) == 0 && line[n] == ':')
            kib = atol(line + n + 1);
    if (f)
        fclose(f);
    return kib;
}

/* ---- Scenarios ---- */

bool private_world(void)
{
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0)
        return false;
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = ioctl(fd, SIOCSIFFLAGS, &lo) == 0;
    close(fd);
    is_private =
        up && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("shm", "/dev/shm", "tmpfs", 0, "size=64k") == 0;
    must(up, "the loopback interface cannot be brought up");
    return is_private;
}

bool full_mode(void)
{
    const char *full = getenv("ABC_TEST_FULL");
    return full && *full && strcmp(full, "0") != 0;
}

uint64_t test_seed(void)
{
    const char *text = getenv("ABC_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
    printf("seed %llu (ABC_TEST_SEED)\n", (unsigned long long)seed);
    return seed;
}

uint32_t draw(uint64_t *state, uint32_t below)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)((z ^ z >> 31) >> 32) % below;
}

struct scenario *add_scenario(struct scenario **list, int *count)
{
    if ((*count & (*count - 1)) == 0) {
        *list = realloc(*list, sizeof **list * (size_t)(*count ? 2 * *count : 1));
        must(*list != NULL, "no memory for scenarios");
    }
    struct scenario *s = &(*list)[(*count)++];
    memset(s, 0, sizeof *s);
    return s;
}

static pid_t start_scenario(const struct scenario *s)
{
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    running = s;
    s->run(s);
    _exit(0);
}

struct slot {
    pid_t pid;
    const struct scenario *scenario;
    double end;
};

/* One look at a running scenario: over, over time, or running. Returns true when the slot is free again. */
static bool look_at(struct slot *slot, int *failed, int *skipped)
{
    int state;
    if (slot->pid == 0)
        return true;
    if (waitpid(slot->pid, &state, WNOHANG) != slot->pid) {
        if (abci_now() < slot->end)
            return false;
        kill(slot->pid, SIGKILL); /* its ranks die with it */
        waitpid(slot->pid, &state, 0);
        fprintf(stderr, "FAILED %s: longer than %g s\n", slot->scenario->name,
                slot->scenario->limit > 0 ? slot->scenario->limit : 30);
        ++*failed;
    } else if (WIFEXITED(state) && WEXITSTATUS(state) == 77) {
        ++*skipped;
    } else if (!WIFEXITED(state) || WEXITSTATUS(state) != 0) {
        fprintf(stderr, "FAILED %s: ended with %s %d\n", slot->scenario->name, WIFEXITED(state) ? "code" : "signal",
                WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state));
        ++*failed;
    }
    slot->pid = 0;
    return true;
}

int run_scenarios(const struct scenario *list, int count, int parallel)
{
    struct slot slot[64] = {{0}};
    int failed = 0, skipped = 0, next = 0, busy = 1;
    double start = abci_now();
    next_port = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(next_port != MAP_FAILED, "mmap: %s", strerror(errno));
    atomic_store(next_port, (uint32_t)getpid() * 7919u);
    fflush(NULL);
    const char *only = getenv("ABC_TEST_ONLY"); /* part of a name */
    while (busy || next < count) {
        busy = 0;
        for (int i = 0; i < parallel && i < 64; i++) {
            if (look_at(&slot[i], &failed, &skipped) && next < count && failed < 60) {
                const struct scenario *s = &list[next++];
                if (only && !strstr(s->name, only))
                    continue;
                slot[i] = (struct slot){start_scenario(s), s, abci_now() + (s->limit > 0 ? s->limit : 30)};
                must(slot[i].pid > 0, "fork: %s", strerror(errno));
            }
            busy += slot[i].pid != 0;
        }
        if (failed >= 60)
            next = count;
        nap(0.003);
    }
    printf("%d scenarios, %d failed, %d skipped, %.1f s\n", count, failed, skipped, abci_now() - start);
    munmap((void *)next_port, 4096);
    if (is_private && has_unix_socket()) {
        fprintf(stderr, "FAILED: a Unix socket is left\n");
        failed++;
    }
    return failed ? 1 : skipped == count && count > 0 ? 77 : 0;
}
