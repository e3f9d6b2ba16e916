/*
 * launch.c - where this process stands in its job: rank, size, address and key, from the variables of `abcomm run` or of another
 * launcher. First step of communicator creation (comm.c) when the caller names no rank. A launcher is one row of the table below;
 * how its ranks find rank 0 is launch_agree.c. Any thread, any number of times; reads the environment only.
 */
#include "comm/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/base.h"

/* Innermost first: where several describe this process alike, the first is taken. */
enum { OWN, TORCH, OPENMPI, PMI, SLURM, PMIX, LAUNCHERS };
struct launcher {
    const char *name; /* as ABCOMM_LAUNCHER says it */
    const char *rank, *size, *local_size;
};
static const struct launcher table[LAUNCHERS] = {
    [OWN] = {"abcomm", "ABCOMM_RANK", "ABCOMM_SIZE", NULL},
    [TORCH] = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
    [OPENMPI] = {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    [PMI] = {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
    [SLURM] = {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL}, /* SLURM_NTASKS speaks of the job, not of this step */
    [PMIX] = {"pmix", "PMIX_RANK", NULL, NULL},                        /* the size is asked from its server */
};

/* What one launcher's variables say; -1: nothing. */
struct place {
    int rank, size;
};

/* ---- reading ---- */

/* A whole number >= 0 from the environment; *number is -1 when the name is not set. */
static int read_number(const char *name, int *number)
{
    const char *text = name != NULL ? abci_environment(name) : NULL;
    *number = -1;
    if (text == NULL)
        return ABC_OK;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value > INT32_MAX)
        return abci_error(ABC_ERR_ENVIRONMENT, "%s=%.40s is not a whole number >= 0", name, text);
    *number = (int)value;
    return ABC_OK;
}

static bool complete(int which, const struct place *place)
{
    return place->rank >= 0 && (place->size >= 0 || table[which].size == NULL);
}

static int read_places(struct place places[LAUNCHERS])
{
    int status = ABC_OK;
    places[OWN] = (struct place){(int)abci_setting_int(ABCI_SET_RANK), (int)abci_setting_int(ABCI_SET_SIZE)};
    for (int i = OWN + 1; i < LAUNCHERS && status == ABC_OK; i++) {
        status = read_number(table[i].rank, &places[i].rank);
        if (status == ABC_OK)
            status = read_number(table[i].size, &places[i].size);
    }
    return status;
}

/* ---- choosing ---- */

static bool alike(const struct place *a, const struct place *b)
{
    return a->rank == b->rank && (a->size == b->size || a->size < 0 || b->size < 0);
}

/* Slurm notes the process that it started; a program started by that one has another number. */
static bool started_by_slurm(void)
{
    const char *task = abci_environment("SLURM_TASK_PID");
    return task != NULL && atol(task) == (long)getpid();
}

/* Does `other`, which says something else, only describe the launcher of the launcher? */
static bool is_outer(int other, int chosen, const struct place places[LAUNCHERS])
{
    struct place agent;
    bool slurms = other == SLURM || (complete(SLURM, &places[SLURM]) && alike(&places[other], &places[SLURM]));
    if (slurms && !started_by_slurm())
        return true;
    /* One torchrun a node, each started as a rank of an MPI job. */
    return chosen == TORCH && read_number("GROUP_RANK", &agent.rank) == ABC_OK &&
           read_number("GROUP_WORLD_SIZE", &agent.size) == ABC_OK && agent.rank >= 0 && alike(&places[other], &agent);
}

static void say_place(char *text, size_t capacity, int which, const struct place *place)
{
    int used = snprintf(text, capacity, "%s=%d", table[which].rank, place->rank);
    if (place->size >= 0)
        snprintf(text + used, capacity - (size_t)used, " of %s=%d", table[which].size, place->size);
}

static int contradiction(int chosen, int other, const struct place places[LAUNCHERS])
{
    char one[96], two[96];
    say_place(one, sizeof(one), chosen, &places[chosen]);
    say_place(two, sizeof(two), other, &places[other]);
    return abci_error(ABC_ERR_ENVIRONMENT,
                      "two launchers describe this process, and not alike: %s, but %s; unset the variables that are left over, or "
                      "choose by ABCOMM_LAUNCHER=%s or ABCOMM_LAUNCHER=%s",
                      one, two, table[chosen].name, table[other].name);
}

/* Nobody's variables are complete: tell which is the nearest. */
static int nobody(const struct place places[LAUNCHERS])
{
    const char *slurm_size = abci_environment("SLURM_NTASKS");
    for (int i = OWN; i < LAUNCHERS; i++) {
        bool rank = places[i].rank >= 0, size = places[i].size >= 0;
        if (i == SLURM && rank && slurm_size != NULL)
            return abci_error(ABC_ERR_ENVIRONMENT,
                              "this process is part of a Slurm job but of no step of it: start the program by srun in the script");
        if (rank || size)
            return abci_error(ABC_ERR_ENVIRONMENT, "the environment describes a job only in part: %s is set, %s is not set",
                              rank ? table[i].rank : table[i].size, rank ? table[i].size : table[i].rank);
    }
    return abci_error(ABC_ERR_ENVIRONMENT,
                      "this process is not part of a job: ABCOMM_RANK, ABCOMM_SIZE, ABCOMM_ADDR are not set, nor the variables of "
                      "torchrun, mpirun, srun or PMIx");
}

/* Which launcher's word holds. */
static int choose(const struct place places[LAUNCHERS], int *chosen)
{
    const char *wish = abci_setting_string(ABCI_SET_LAUNCHER);
    for (int i = OWN; i < LAUNCHERS; i++) {
        if (strcmp(wish, table[i].name) != 0)
            continue;
        *chosen = i;
        if (complete(i, &places[i]) || i == OWN)
            return ABC_OK;
        return abci_error(ABC_ERR_ENVIRONMENT, "ABCOMM_LAUNCHER=%s, but %s%s%s are not both set", wish, table[i].rank,
                          table[i].size ? " and " : "", table[i].size ? table[i].size : "");
    }
    *chosen = OWN;
    if (places[OWN].rank >= 0 || places[OWN].size >= 0)
        return ABC_OK; /* said on purpose, or by `abcomm run`, which may itself run below any other */
    while (*chosen < LAUNCHERS && !complete(*chosen, &places[*chosen]))
        (*chosen)++;
    if (*chosen == LAUNCHERS)
        return nobody(places);
    for (int i = *chosen + 1; i < LAUNCHERS; i++) {
        if (complete(i, &places[i]) && !alike(&places[i], &places[*chosen]) && !is_outer(i, *chosen, places))
            return contradiction(*chosen, i, places);
    }
    return ABC_OK;
}

/* ---- checking ---- */

/* Our own variables: all that is needed must be there. */
static int check_own(const struct place *own, const char *address)
{
    char missing[96] = "";
    size_t used = 0;
    const struct {
        const char *name;
        bool absent;
    } needed[] = {
        {"ABCOMM_RANK", own->rank < 0}, {"ABCOMM_SIZE", own->size < 0}, {"ABCOMM_ADDR", address[0] == '\0' && own->size != 1}};
    int count = 0;
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        if (needed[i].absent)
            used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%s%s", count++ > 0 ? ", " : "", needed[i].name);
    }
    if (count > 0)
        return abci_error(ABC_ERR_ENVIRONMENT, "the environment describes a job only in part: %s %s not set", missing,
                          count > 1 ? "are" : "is");
    return ABC_OK;
}

static int check_range(int which, const struct place *place)
{
    if (table[which].size != NULL && (place->size < 1 || place->size > 1024))
        return abci_error(ABC_ERR_ENVIRONMENT, "%s=%d is not a number of ranks: 1 to 1024 are possible", table[which].size,
                          place->size);
    if (table[which].size != NULL && place->rank >= place->size)
        return abci_error(ABC_ERR_ENVIRONMENT, "%s=%d does not fit %s=%d: ranks are 0 to %d", table[which].rank, place->rank,
                          table[which].size, place->size, place->size - 1);
    return ABC_OK;
}

/* The launcher's listening socket; programs that this one starts must not inherit it. */
static int check_listener(int rank, int fd)
{
    int listening = 0;
    socklen_t length = sizeof(listening);
    if (fd < 0)
        return ABC_OK;
    if (rank != 0)
        return abci_error(ABC_ERR_ENVIRONMENT, "ABCOMM_LISTEN_FD=%d is set on rank %d; only rank 0 listens", fd, rank);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 || !listening)
        return abci_error(ABC_ERR_ENVIRONMENT, "ABCOMM_LISTEN_FD=%d is not a listening socket; it is set by abcomm run only", fd);
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return abci_error_errno(ABC_ERR_SYSTEM, "cannot keep ABCOMM_LISTEN_FD=%d from child programs", fd);
    return ABC_OK;
}

/* ---- where rank 0 is ---- */

/* The ranks all run on this machine, as far as the launcher says. */
static int is_local(int which, const struct place places[LAUNCHERS], bool *local)
{
    int nodes = -1, status = read_number("SLURM_STEP_NUM_NODES", &nodes);
    *local = nodes == 1 && complete(SLURM, &places[SLURM]) && alike(&places[which], &places[SLURM]);
    for (int i = OWN; i < LAUNCHERS && status == ABC_OK; i++) {
        int count = -1;
        status = read_number(table[i].local_size, &count);
        if (count >= 0 && count == places[i].size && alike(&places[which], &places[i]))
            *local = true;
    }
    return status;
}

/*
 * The launcher's own table, if this launcher offers one to exactly this rank. PMIx is left alone while the ranks can meet without:
 * Open MPI 5 fails in an MPI_Init that comes after somebody else's use of it.
 */
static void find_table(int which, const struct place places[LAUNCHERS], struct abci_launch *found)
{
    const char *store = abci_environment("TORCHELASTIC_USE_AGENT_STORE");
    bool pmi = places[PMI].rank == found->rank && places[PMI].size == found->nranks && abci_environment("PMI_FD") != NULL;
    bool pmix = places[PMIX].rank == found->rank && abci_environment("PMIX_NAMESPACE") != NULL && !found->local;
    bool torchrun = which == TORCH && abci_environment("TORCHELASTIC_RUN_ID") != NULL;
    found->table = ABCI_TABLE_NONE;
    if (torchrun)
        found->table = !found->local && store != NULL && strcmp(store, "True") == 0 ? ABCI_TABLE_TORCH : ABCI_TABLE_NONE;
    else if (which == PMIX)
        found->table = ABCI_TABLE_PMIX;
    else if (pmi)
        found->table = ABCI_TABLE_PMI;
    else if (pmix && abci_launch_pmix_present())
        found->table = ABCI_TABLE_PMIX;
}

/* A name that the ranks of this job, of this user, on this machine have in common, and nobody else; false: no such thing is known.
 */
static bool name_job(int which, struct abci_launch *found)
{
    static const char *const marks[LAUNCHERS][5] = {
        [TORCH] = {"MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
        [OPENMPI] = {"PMIX_NAMESPACE", "PMIX_SERVER_URI2"},
        [PMI] = {"PMI_JOBID"},
        [SLURM] = {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURM_CLUSTER_NAME"},
    };
    unsigned char digest[16];
    char hex[2 * sizeof(digest) + 1];
    crypto_generichash_state state;
    if (marks[which][0] == NULL || abci_environment(marks[which][0]) == NULL || sodium_init() < 0)
        return false;
    crypto_generichash_init(&state, NULL, 0, sizeof(digest));
    for (int i = 0; i < 5 && marks[which][i] != NULL; i++) {
        const char *text = abci_environment(marks[which][i]);
        if (text != NULL)
            crypto_generichash_update(&state, (const unsigned char *)text, strlen(text) + 1);
    }
    crypto_generichash_final(&state, digest, sizeof(digest));
    sodium_bin2hex(hex, sizeof(hex), digest, sizeof(digest));
    snprintf(found->address, sizeof(found->address), "unix:@abcomm-%u-%s-%s", (unsigned)geteuid(), table[which].name, hex);
    return true;
}

/* First host of Slurm's list, "node[3-7,9],other" or "a,b"; leading zeros of the number stay. */
static bool first_host(const char *list, char *host, size_t capacity)
{
    size_t plain = strcspn(list, "[,"), used = plain;
    if (plain == 0 || plain >= capacity)
        return false;
    memcpy(host, list, plain);
    if (list[plain] == '[') {
        size_t digits = strspn(list + plain + 1, "0123456789");
        const char *rest = strchr(list + plain, ']');
        size_t tail = rest != NULL ? strcspn(rest + 1, "[,") : 0;
        if (digits == 0 || rest == NULL || plain + digits + tail >= capacity)
            return false;
        memcpy(host + plain, list + plain + 1, digits);
        memcpy(host + plain + digits, rest + 1, tail);
        used = plain + digits + tail;
    }
    host[used] = '\0';
    return true;
}

/* Several nodes and no table: a port made of the numbers of job and step, on the first node. */
static int derive_slurm(struct abci_launch *found)
{
    const char *list = abci_environment("SLURM_STEP_NODELIST");
    char host[200];
    int job, step, status = read_number("SLURM_JOB_ID", &job);
    if (status == ABC_OK)
        status = read_number("SLURM_STEP_ID", &step);
    if (status != ABC_OK)
        return status;
    if (list == NULL || job < 0 || step < 0 || !first_host(list, host, sizeof(host)))
        return abci_error(
            ABC_ERR_ENVIRONMENT,
            "rank 0's node cannot be found from SLURM_STEP_NODELIST=%.100s, SLURM_JOB_ID=%d and SLURM_STEP_ID=%d; use "
            "srun --mpi=pmi2 or set ABCOMM_ADDR",
            list != NULL ? list : "", job, step);
    unsigned port = 20000u + ((unsigned)job * 61u + (unsigned)step) % 12000u; /* below the range for outgoing connections */
    snprintf(found->address, sizeof(found->address), "%s:%u", host, port);
    return ABC_OK;
}

/* torch's own convention; without an agent's store there nobody listens yet. */
static int take_master(struct abci_launch *found)
{
    const char *host = abci_environment("MASTER_ADDR"), *port = abci_environment("MASTER_PORT");
    if (host == NULL || port == NULL)
        return abci_error(ABC_ERR_ENVIRONMENT,
                          "RANK=%d and WORLD_SIZE=%d are set, but %s%s%s not: torchrun sets them all; or set ABCOMM_ADDR",
                          found->rank, found->nranks, host == NULL ? "MASTER_ADDR" : "",
                          host == NULL && port == NULL ? " and " : "", port == NULL ? "MASTER_PORT" : "");
    bool six = strchr(host, ':') != NULL;
    snprintf(found->address, sizeof(found->address), "%s%.200s%s:%.8s", six ? "[" : "", host, six ? "]" : "", port);
    return ABC_OK;
}

static int locate(int which, const struct place places[LAUNCHERS], struct abci_launch *found)
{
    int status = is_local(which, places, &found->local);
    if (status == ABC_OK)
        find_table(which, places, found);
    if (status != ABC_OK || found->table != ABCI_TABLE_NONE || found->nranks == 1)
        return status;
    if (found->local && name_job(which, found))
        return ABC_OK;
    if (which == TORCH)
        return take_master(found);
    if (which == SLURM)
        return derive_slurm(found);
    return abci_error(ABC_ERR_ENVIRONMENT,
                      "%s=%d says the rank, but not where rank 0 is: %s; set ABCOMM_ADDR=host:port for all ranks",
                      table[which].rank, found->rank,
                      which == PMI ? "PMI_FD is not set" : "libpmix.so.2, over which the launcher would tell it, cannot be opened");
}

/* What only our own variables say beside rank, size and address. */
static int take_listener(struct abci_launch *found)
{
    found->listen_fd = (int)abci_setting_int(ABCI_SET_LISTEN_FD);
    return check_listener(found->rank, found->listen_fd);
}

int abci_launch_detect(struct abci_launch *launch)
{
    struct place places[LAUNCHERS];
    int which = OWN, status = abci_settings_load();
    if (status == ABC_OK)
        status = read_places(places);
    if (status == ABC_OK)
        status = choose(places, &which);
    if (status != ABC_OK)
        return status;
    const char *address = abci_setting_string(ABCI_SET_ADDR);
    struct abci_launch found = {.rank = places[which].rank, .nranks = places[which].size, .listen_fd = -1};
    if (which == OWN)
        status = check_own(&places[OWN], address);
    if (status == ABC_OK)
        status = check_range(which, &places[which]);
    if (status == ABC_OK && strlen(address) >= sizeof(found.address))
        status = abci_error(ABC_ERR_ENVIRONMENT, "ABCOMM_ADDR has %zu bytes; at most %zu are allowed", strlen(address),
                            sizeof(found.address) - 1);
    if (status != ABC_OK)
        return status;
    memcpy(found.address, address, strlen(address));
    if (address[0] == '\0' && which != OWN)
        status = locate(which, places, &found);
    else if (found.nranks < 0) /* PMIx alone knows the size */
        found.table = ABCI_TABLE_PMIX;
    if (status == ABC_OK && which == OWN)
        status = take_listener(&found);
    if (status == ABC_OK)
        status = abci_launch_key(&found.have_key, found.key);
    if (status == ABC_OK)
        ABCI_LOG(ABCI_LOG_INFO, "comm", found.rank, "rank %d of %d by the variables of %s", found.rank, found.nranks,
                 table[which].name);
    if (status == ABC_OK)
        *launch = found;
    sodium_memzero(&found, sizeof(found));
    return status;
}
