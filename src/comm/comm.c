/*
 * comm.c - creating a communicator: find the peers (exchange), map each other's memory (handshake), measure (probe), agree. Two
 * gathers, one Unix connection and a few milliseconds of measuring a rank. When one rank fails, all get an error that names it.
 */
#include "comm/comm.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "comm/exchange.h"

#define HANG_UP_PATIENCE 2.0 /* seconds to hear from rank 0 why it ended the handshake */

/* What each rank tells the others first. */
struct card {
    char version[16];
    uint64_t settings_hash;
    uint64_t control_offset;
    uint64_t host[2];        /* boot id: the same kernel */
    uint64_t creation;       /* of rank 0: makes the chain of this communicator its own */
    char socket[64];         /* of rank 0 */
    unsigned char token[32]; /* of rank 0: strangers on the socket do not know it */
    char settings[1024];
    char hostname[64];
    uint64_t cpus[16];    /* that this rank may run on */
    double quota;         /* CPUs that its cgroup grants, 0: no limit */
    uint32_t tuning_rows; /* of rank 0: rows of its tuning file, which all then fetch */
};

/* ... and after mapping each other. */
struct card2 {
    uint64_t readable[ABCI_MAX_RANKS / 64]; /* peers whose memory this rank can read by process_vm_readv */
    struct abci_machine machine;            /* rank 0's holds */
};

#define TUNING_KEY "abcomm/tuning"

/* A creation in progress. */
struct joining {
    const abc_exchange *x;
    double deadline;            /* of all stages together */
    struct card *all;           /* [nranks] */
    struct abci_tuning *tuning; /* first of rank 0, then of all */
};

static void boot_id(uint64_t id[2])
{
    unsigned char text[40] = {0};
    id[0] = id[1] = 0;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f)
        return;
    size_t n = fread(text, 1, 36, f);
    fclose(f);
    for (size_t i = 0; i < n; i++)
        id[i % 2] = id[i % 2] * 1099511628211ull ^ text[i];
}

/* Rank 0 reads the tuning file and puts its rows where the others find them once the first gather has told how many. */
static int give_tuning(const struct abci_shm *shm, const struct joining *j)
{
    const char *path = abci_setting_string(ABCI_SET_TUNING);
    j->tuning->count = 0;
    if (shm->rank != 0 || path[0] == 0)
        return ABC_OK;
    int status = abci_tuning_load(path, j->tuning);
    size_t bytes = j->tuning->count * sizeof j->tuning->row[0];
    if (status != ABC_OK || shm->nranks == 1 || bytes == 0)
        return status;
    status = j->x->put(j->x->ctx, TUNING_KEY, j->tuning->row, bytes);
    return status == ABC_OK ? ABC_OK : abci_error(status, "rank 0 could not hand out the rows of its tuning file");
}

static int take_tuning(const struct abci_shm *shm, const struct joining *j)
{
    uint32_t rows = j->all[0].tuning_rows;
    size_t length = sizeof j->tuning->row;
    if (shm->rank == 0 || rows == 0)
        return ABC_OK;
    int status = j->x->wait(j->x->ctx, TUNING_KEY, j->deadline - abci_now());
    if (status == ABC_OK)
        status = j->x->get(j->x->ctx, TUNING_KEY, j->tuning->row, &length);
    if (status != ABC_OK)
        return abci_error(status, "the %u rows of rank 0's tuning file did not arrive", rows);
    j->tuning->count = rows;
    if (rows > ABCI_TUNING_ROWS || length != rows * sizeof j->tuning->row[0] || !abci_tuning_sound(j->tuning))
        return abci_error(ABC_ERR_VERSION, "rank 0's tuning file means nothing to this rank's library");
    return ABC_OK;
}

static int fill_card(struct card *c, const struct abci_shm *shm, const struct joining *j, int *listen_fd)
{
    memset(c, 0, sizeof *c);
    snprintf(c->version, sizeof c->version, "%s", abc_version());
    c->settings_hash = abci_settings_hash();
    snprintf(c->settings, sizeof c->settings, "%s", abci_settings_job_text());
    snprintf(c->hostname, sizeof c->hostname, "%s", abci_hostname());
    c->control_offset = shm->control_offset;
    boot_id(c->host);
    abci_cpu_mask(c->cpus);
    c->quota = abci_cpu_quota("");
    if (shm->rank != 0)
        return ABC_OK;
    int status = give_tuning(shm, j);
    c->tuning_rows = j->tuning->count;
    if (status != ABC_OK)
        return status;
    if (getrandom(c->token, sizeof c->token, 0) != sizeof c->token || getrandom(&c->creation, sizeof c->creation, 0) < 0)
        return abci_error_errno(ABC_ERR_SYSTEM, "getrandom failed");
    return shm->nranks > 1 ? abci_handshake_listen(listen_fd, c->socket) : ABC_OK;
}

/* First line of a that b does not have, without its newline. */
static void first_difference(const char *a, const char *b, char *line, size_t capacity)
{
    while (*a) {
        size_t n = strcspn(a, "\n");
        if (strncmp(a, b, n) != 0 || (b[n] != '\n' && b[n] != 0)) {
            snprintf(line, capacity, "%.*s", (int)n, a);
            return;
        }
        a += n + (a[n] == '\n');
        size_t m = strcspn(b, "\n");
        b += m + (b[m] == '\n');
    }
    snprintf(line, capacity, "nothing visible");
}

/* All ranks must have the same version, kernel and job settings; the text names the first that differs from rank 0. */
static int compare_cards(const struct card *all, int nranks)
{
    for (int r = 1; r < nranks; r++) {
        char mine[128], theirs[128];
        if (memcmp(all[r].version, all[0].version, sizeof all[0].version) != 0)
            return abci_error(ABC_ERR_VERSION, "rank %d has libabcomm %.15s, rank 0 has %.15s", r, all[r].version, all[0].version);
        if (memcmp(all[r].host, all[0].host, sizeof all[0].host) != 0)
            return abci_error(ABC_ERR_UNSUPPORTED,
                              "rank %d runs on host %.63s, rank 0 on %.63s; ranks on several hosts are not supported yet", r,
                              all[r].hostname, all[0].hostname);
        if (all[r].settings_hash == all[0].settings_hash || abci_mutated("c16_settings_not_compared"))
            continue;
        first_difference(all[0].settings, all[r].settings, mine, sizeof mine);
        first_difference(all[r].settings, all[0].settings, theirs, sizeof theirs);
        return abci_error(ABC_ERR_VERSION, "job settings differ: rank 0 has %s, rank %d has %s", mine, r, theirs);
    }
    return ABC_OK;
}

/* CPUs that the ranks have together: each may be bound to one of its own. */
static double shared_cpus(const struct card *all, int nranks)
{
    int count = 0;
    double quota = 0;
    for (int word = 0; word < 16; word++) {
        uint64_t any = 0;
        for (int r = 0; r < nranks; r++)
            any |= all[r].cpus[word];
        count += __builtin_popcountll(any);
    }
    for (int r = 0; r < nranks; r++)
        if (all[r].quota > 0 && (quota == 0 || all[r].quota < quota))
            quota = all[r].quota;
    return quota > 0 && quota < count ? quota : count > 0 ? count : 1;
}

/* Attach every peer's segment and find its control block. Closes what it does not keep. */
static int bind_all(struct abci_shm *shm, const struct card *all, struct abci_passed *passed)
{
    int status = ABC_OK;
    for (int r = 0; r < shm->nranks; r++) {
        struct abci_segment *segment;
        if (r == shm->rank || status != ABC_OK) {
            close(passed[r].memfd);
            close(passed[r].pidfd);
            continue;
        }
        status = abci_segment_attach(passed[r].memfd, &segment);
        bool own = status == ABC_OK && segment == shm->segment;
        if (status != ABC_OK || own) /* a rank of this process needs no watching */
            close(passed[r].pidfd);
        if (status == ABC_OK)
            status = abci_shm_bind(shm, r, segment, all[r].control_offset, own ? -1 : passed[r].pidfd);
    }
    return status;
}

static int look_at_exchange(void *context)
{
    return abci_exchange_look(context, "abcomm/2", 0);
}

/* The handshake has ended here: perhaps because rank 0 hung up, and then it says why. Else the own error stands. */
static int ask_why(const abc_exchange *x, int status, bool *told)
{
    char own[512];
    snprintf(own, sizeof own, "%s", abci_error_text());
    int why = abci_exchange_look(x, "abcomm/2", HANG_UP_PATIENCE);
    *told = why != ABC_OK;
    return *told ? why : abci_error(status, "%s", own);
}

/*
 * First gather, then every memory into everybody's. *told: the error is one that rank 0 has told everybody; nobody needs to hear it
 * again.
 */
static int connect_peers(struct abci_shm *shm, const struct joining *j, int *listen_fd, bool *told)
{
    const struct abci_watch watch = {look_at_exchange, (void *)j->x};
    struct card mine;
    int status = fill_card(&mine, shm, j, listen_fd);
    int gathered = abci_exchange_gather(j->x, "abcomm/1", shm->rank, shm->nranks, status, &mine, sizeof mine, j->all,
                                        j->deadline - abci_now());
    if (status == ABC_OK)
        status = gathered;
    if (status == ABC_OK)
        status = compare_cards(j->all, shm->nranks);
    shm->cpus = status == ABC_OK ? shared_cpus(j->all, shm->nranks) : 1;
    if (status != ABC_OK)
        return status;
    struct abci_passed *passed = abci_alloc(sizeof *passed * (size_t)shm->nranks);
    if (!passed)
        return abci_error(ABC_ERR_MEMORY, "no memory for %d peers", shm->nranks);
    /* Rank 0 knows who is missing: its time is over first, early enough for the others to hear it within the exchange's. */
    double left = j->deadline - abci_now();
    left += shm->rank != 0 ? HANG_UP_PATIENCE : left > 5 ? -0.5 : -0.1 * left;
    status = abci_handshake(shm->rank, shm->nranks, *listen_fd, j->all[0].socket, j->all[0].token, left, &watch, passed);
    if (status == ABC_OK)
        status = bind_all(shm, j->all, passed);
    else if (shm->rank != 0 && (status == ABC_ERR_PEER || status == ABC_ERR_TIMEOUT || status == ABC_ERR_UNSUPPORTED))
        status = ask_why(j->x, status, told);
    abci_free(passed);
    return status;
}

#define TURN 4 /* yields that find nobody, in the time of a turn: that of 16 ranks on 2 CPUs is 2 us, and such a yield 0.46 us */

/*
 * What a rank's turn on a shared CPU costs here, seconds. A yield that finds others takes as long as they do, 0.5 to 5 us or a time
 * slice, which says nothing of this machine. So the shortest counts, one that finds nobody.
 */
static double turn_cost(void)
{
    double best = 1;
    for (int i = 0; i < 40; i++) {
        double start = abci_now();
        sched_yield();
        double one = abci_now() - start;
        best = one < best ? one : best;
    }
    return TURN * (best < 1e-7 ? 1e-7 : best > 6e-7 ? 6e-7 : best);
}

/* Second gather: nobody goes on unless all have mapped all; who can read whom; rank 0's constants. */
static int agree(struct abci_shm *shm, const struct joining *j, int status, struct abci_machine *machine)
{
    struct card2 mine, *all = abci_alloc(sizeof *all * (size_t)shm->nranks);
    memset(&mine, 0, sizeof mine);
    if (!all && status == ABC_OK)
        status = abci_error(ABC_ERR_MEMORY, "no memory for %d peers", shm->nranks);
    if (status == ABC_OK)
        status = take_tuning(shm, j);
    if (status == ABC_OK) {
        if (strcmp(abci_setting_string(ABCI_SET_PVR), "off") != 0)
            abci_shm_try_remote(shm);
        abci_probe(shm, &mine.machine);
        double crowding = (double)shm->nranks / shm->cpus; /* rank 0's holds, like the rest of its constants */
        mine.machine.price.crowding = crowding > 1 ? crowding : 1;
        bool measures = strcmp(abci_setting_string(ABCI_SET_DETERMINISTIC), "false") == 0;
        if (crowding > 1 && measures) /* a hand-off goes through every rank of the CPU */
            mine.machine.price.hand_off += crowding * turn_cost();
        for (int r = 0; r < shm->nranks; r++)
            if (shm->peer[r].readable)
                mine.readable[r / 64] |= 1ull << (r % 64);
    }
    /* Also with an error, which it tells the others; then `all` is not used. */
    int gathered =
        abci_exchange_gather(j->x, "abcomm/2", shm->rank, shm->nranks, status, &mine, sizeof mine, all, j->deadline - abci_now());
    if (status == ABC_OK)
        status = gathered;
    if (status == ABC_OK) {
        *machine = all[0].machine;
        if (abci_mutated("c16_local_constants"))
            machine->price.hand_off *= 1 + shm->rank; /* as if each rank went by a clock of its own */
        shm->remote_for_all = true;
        for (int r = 0; r < shm->nranks; r++)
            if (r != shm->rank && !(all[r].readable[shm->rank / 64] >> (shm->rank % 64) & 1))
                shm->remote_for_all = false;
    }
    abci_free(all);
    return status;
}

static int create_over(const abc_exchange *x, int rank, int nranks, double connect_timeout, double timeout, int progress,
                       struct abc_comm **comm)
{
    struct abci_comm_config config = {.timeout = timeout, .progress = progress};
    struct abci_shm *shm = abci_alloc(sizeof *shm);
    struct joining j = {x, abci_now() + connect_timeout, abci_alloc(sizeof *j.all * (size_t)nranks), abci_alloc(sizeof *j.tuning)};
    int status = shm && j.all && j.tuning ? abci_shm_prepare(shm, rank, nranks)
                                          : abci_error(ABC_ERR_MEMORY, "no memory for %d peers", nranks);
    int listen_fd = -1;
    bool told = false;
    if (status == ABC_OK) {
        status = connect_peers(shm, &j, &listen_fd, &told);
        if (!told)
            status = agree(shm, &j, status, &config.machine);
    } else { /* tell the others not to wait */
        abci_exchange_gather(x, "abcomm/1", rank, nranks, status, NULL, 0, NULL, connect_timeout);
    }
    if (listen_fd >= 0)
        close(listen_fd);
    config.epoch = j.all ? (uint32_t)(j.all[0].creation ^ j.all[0].creation >> 32) : 0;
    config.tuning = j.tuning;
    abci_free(j.all);
    if (status == ABC_OK)
        status = abci_comm_assemble(shm, &config, comm);
    else if (shm && shm->control) {
        abci_shm_leave(shm);
        abci_shm_abandon(shm);
        abci_comm_retire(shm);
    } else {
        abci_free(shm);
    }
    abci_free(j.tuning);
    return status;
}

static void *progress_body(void *argument)
{
    struct abc_comm *comm = argument;
    abci_engine_progress(&comm->engine, &comm->stop);
    return NULL;
}

static int start_thread(struct abc_comm *comm)
{
    comm->engine.has_progress = true; /* before the thread is there: it must find every request counted */
    if (abci_fault("pthread_create") || pthread_create(&comm->thread, NULL, progress_body, comm) != 0)
        return abci_error_errno(ABC_ERR_SYSTEM, "the progress thread cannot be started");
    comm->has_thread = true;
    return ABC_OK;
}

/* Streaming stores for an output pay when it does not stay in the caches anyhow. Measured with freshly written buffers at 2 and 4
 * ranks: 10 % slower at 8 MB, 1.1 to 1.2 times faster at 32 MB, up to 1.9 times slower at 512 KB. */
#define STREAM_FROM (16u << 20)

static void apply_settings(struct abci_engine *e, const struct abci_machine *machine)
{
    const char *stores = abci_setting_string(ABCI_SET_STORES), *pvr = abci_setting_string(ABCI_SET_PVR);
    e->machine = *machine;
    e->stream_from = STREAM_FROM;
    if (strcmp(stores, "auto") != 0) {
        e->machine.stream_shared = strcmp(stores, "stream") == 0;
        e->stream_from = e->machine.stream_shared ? 1 : UINT64_MAX;
    }
    if (strcmp(pvr, "on") == 0)
        e->machine.remote_from = 32;
    else if (strcmp(pvr, "off") == 0)
        e->machine.remote_from = e->machine.remote_huge = 0;
}

static int open_chooser(struct abc_comm *comm, const struct abci_comm_config *config)
{
    const struct abci_chooser_config choice = {.rank = comm->rank,
                                               .nranks = comm->nranks,
                                               .constants = &comm->engine.machine.price,
                                               .forced = abci_setting_string(ABCI_SET_ALGO),
                                               .chunk = (uint64_t)abci_setting_int(ABCI_SET_CHUNK),
                                               .tuning = config->tuning};
    return abci_chooser_open(&choice, &comm->chooser);
}

int abci_comm_assemble(struct abci_shm *shm, const struct abci_comm_config *config, struct abc_comm **out)
{
    struct abc_comm *comm = abci_alloc_aligned(sizeof *comm, ABCI_LINE);
    int status = comm ? ABC_OK : abci_error(ABC_ERR_MEMORY, "no memory for a communicator");
    if (status == ABC_OK) {
        memset(comm, 0, sizeof *comm);
        comm->rank = shm->rank;
        comm->nranks = shm->nranks;
        comm->fork_generation = abci_fork_generation;
        comm->timeout = config->timeout;
        comm->epoch = config->epoch;
        comm->shm = shm;
        pthread_mutex_init(&comm->lock, NULL);
        abci_shm_wait_policy(shm, config->timeout);
        status = abci_engine_open(&comm->engine, shm, config->epoch);
    }
    if (status == ABC_OK) {
        apply_settings(&comm->engine, &config->machine);
        ABCI_HOOK_MEASURED(&comm->engine);
        if (strcmp(abci_setting_string(ABCI_SET_PVR), "off") != 0) /* a peer may publish that way even if this rank never does */
            status = abci_engine_allow_remote(&comm->engine);
    }
    if (status == ABC_OK)
        status = open_chooser(comm, config);
    if (status == ABC_OK && (config->progress > 0 || (config->progress < 0 && abci_setting_int(ABCI_SET_PROGRESS))))
        status = start_thread(comm);
    if (status == ABC_OK) {
        if (comm->rank == 0)
            ABCI_LOG(ABCI_LOG_INFO, "comm", comm->rank,
                     "communicator of %d ranks: hand-off %.2f us, %s stores into what a peer has read, process_vm_readv %s",
                     comm->nranks, comm->engine.machine.price.hand_off * 1e6,
                     comm->engine.machine.stream_shared ? "streaming" : "plain",
                     !shm->remote_for_all               ? "not used"
                     : comm->engine.machine.remote_from ? "used"
                     : comm->engine.machine.remote_huge ? "used for huge pages"
                                                        : "not used");
        *out = comm;
        return ABC_OK;
    }
    if (comm) {
        abci_chooser_close(comm->chooser);
        abci_engine_close(&comm->engine);
        abci_free(comm);
    }
    abci_shm_fail(shm, ABC_ERR_PEER, shm->rank, NULL, NULL, "rank %d could not finish creation: %s", shm->rank, abci_error_text());
    abci_shm_leave(shm);
    abci_comm_retire(shm);
    return status;
}

struct abc_request *abci_request_take(struct abc_comm *comm)
{
    struct abc_request *q = atomic_load_explicit(&comm->spare_first, memory_order_relaxed);
    if (q)
        q = atomic_exchange_explicit(&comm->spare_first, NULL, memory_order_acquire); /* pairs with abci_request_give */
    if (q)
        return q;
    pthread_mutex_lock(&comm->lock);
    q = comm->spare;
    if (q)
        comm->spare = q->next;
    pthread_mutex_unlock(&comm->lock);
    return q ? q : abci_alloc(sizeof *q);
}

void abci_request_give(struct abc_comm *comm, struct abc_request *q)
{
    abci_free(q->backup);
    abci_free(q->products);
    abci_counts_give(comm, q->counts);
    q->backup = q->products = NULL;
    q->counts = NULL;
    atomic_store_explicit(&q->state, ABCI_REQUEST_FREED, memory_order_relaxed); /* as long as it is spare, a stale handle shows */
    struct abc_request *none = NULL;
    if (!atomic_load_explicit(&comm->spare_first, memory_order_relaxed) &&
        atomic_compare_exchange_strong_explicit(&comm->spare_first, &none, q, memory_order_release,
                                                memory_order_relaxed)) /* pairs with abci_request_take */
        return;
    pthread_mutex_lock(&comm->lock);
    q->next = comm->spare;
    comm->spare = q;
    pthread_mutex_unlock(&comm->lock);
}

struct abci_counts *abci_counts_take(struct abc_comm *comm, size_t bytes)
{
    struct abci_counts *c = atomic_exchange_explicit(&comm->spare_counts, NULL, memory_order_acquire); /* pairs with give */
    return c ? c : abci_alloc(bytes);
}

void abci_counts_give(struct abc_comm *comm, struct abci_counts *counts)
{
    if (counts) /* release: pairs with abci_counts_take */
        abci_free(atomic_exchange_explicit(&comm->spare_counts, counts, memory_order_acq_rel));
}

/* Where the caller's configuration says nothing the environment decides. */
static int settle(const abc_comm_config *config, struct abci_launch *launch, double *connect_timeout, double *timeout)
{
    *connect_timeout =
        config && config->connect_timeout > 0 ? config->connect_timeout : abci_setting_real(ABCI_SET_CONNECT_TIMEOUT);
    *timeout = config && config->timeout > 0 ? config->timeout : abci_setting_real(ABCI_SET_TIMEOUT);
    if (!config || config->rank < 0) {
        int status = abci_launch_detect(launch);
        return status == ABC_OK ? abci_launch_agree(launch, *connect_timeout) : status;
    }
    memset(launch, 0, sizeof *launch);
    launch->rank = config->rank;
    launch->nranks = config->nranks;
    launch->listen_fd = -1;
    if (config->nranks < 1 || config->nranks > ABCI_MAX_RANKS || config->rank >= config->nranks)
        return abci_error(ABC_ERR_ARGUMENT, "rank %d of %d ranks is impossible; there are 1 to %d ranks, numbered from 0",
                          config->rank, config->nranks, ABCI_MAX_RANKS);
    if (!config->exchange && !config->address && config->nranks > 1)
        return abci_error(ABC_ERR_ARGUMENT, "abc_comm_config needs an address or an exchange");
    if (config->address && strlen(config->address) >= sizeof launch->address)
        return abci_error(ABC_ERR_ADDRESS, "the address is longer than %zu characters", sizeof launch->address - 1);
    if (config->address)
        strcpy(launch->address, config->address);
    if (!config->key)
        return abci_launch_key(&launch->have_key, launch->key);
    launch->have_key = 1;
    return abci_key_derive(config->key, config->key_length, launch->key);
}

static int check_config(const abc_comm_config *config)
{
    if (!config)
        return ABC_OK;
    if (config->size != sizeof *config)
        return abci_error(ABC_ERR_VERSION, "abc_comm_config has size %zu, this library knows %zu; call abc_comm_config_init first",
                          config->size, sizeof *config);
    if (!(config->timeout >= 0) || !(config->connect_timeout >= 0)) /* NaN too */
        return abci_error(ABC_ERR_ARGUMENT, "timeout %g or connect_timeout %g is not a number of seconds >= 0", config->timeout,
                          config->connect_timeout);
    if (config->progress_thread < -1 || config->progress_thread > 1)
        return abci_error(ABC_ERR_ARGUMENT, "progress_thread %d is none of 1, 0 and -1", config->progress_thread);
    if (config->exchange && (config->exchange->size != sizeof(abc_exchange) || !config->exchange->put || !config->exchange->get ||
                             !config->exchange->wait))
        return abci_error(ABC_ERR_ARGUMENT, "the exchange lacks put, wait or get, or was not filled by abc_exchange_init");
    return ABC_OK;
}

/* One rank needs nobody. */
static int put_nothing(void *ctx, const char *key, const void *value, size_t length)
{
    return ABC_OK;
}
static int wait_nothing(void *ctx, const char *key, double timeout)
{
    return ABC_ERR_TIMEOUT;
}
static int get_nothing(void *ctx, const char *key, void *value, size_t *length)
{
    return ABC_ERR_TIMEOUT;
}

ABC_API int abc_comm_create(const abc_comm_config *config, abc_comm **comm)
{
    struct abci_launch launch;
    struct abci_rendezvous *rdv = NULL;
    abc_exchange exchange = {sizeof exchange, NULL, put_nothing, wait_nothing, get_nothing};
    double connect_timeout, timeout;
    if (!comm)
        return abci_error(ABC_ERR_ARGUMENT, "the place for the communicator is null");
    int status = abci_settings_load();
    if (status == ABC_OK)
        status = check_config(config);
    if (status == ABC_OK)
        status = settle(config, &launch, &connect_timeout, &timeout);
    if (status != ABC_OK)
        return status;
    abci_comm_reap();
    if (config && config->rank >= 0 && config->exchange && !abci_mutated("c12_exchange_ignored")) {
        exchange = *config->exchange;
    } else if (launch.nranks > 1) {
        struct abci_rendezvous_config rc = {
            launch.rank, launch.nranks, launch.address, launch.listen_fd, launch.have_key ? launch.key : NULL, connect_timeout};
        status = abci_rendezvous_open(&rc, &rdv, &exchange);
    }
    struct abc_comm *made = NULL;
    if (status == ABC_OK)
        status = create_over(&exchange, launch.rank, launch.nranks, connect_timeout, timeout, config ? config->progress_thread : -1,
                             &made);
    if (rdv)
        abci_rendezvous_close(rdv);
    if (status == ABC_OK)
        *comm = made;
    else
        abci_error_prefix("rank %d on host %s: creating a communicator of %d ranks: ", launch.rank, abci_hostname(), launch.nranks);
    return status;
}

ABC_API void abc_comm_config_init(abc_comm_config *config)
{
    if (config)
        *config = (abc_comm_config){.size = sizeof *config, .rank = -1, .progress_thread = -1};
}

ABC_API void abc_exchange_init(abc_exchange *exchange)
{
    if (exchange)
        *exchange = (abc_exchange){.size = sizeof *exchange};
}
