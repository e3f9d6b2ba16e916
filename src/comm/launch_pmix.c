/*
 * launch_pmix.c - the PMIx table of Open MPI, PRRTE and Slurm (--mpi=pmix). libpmix is opened when it is first needed, with our own
 * declarations of the few calls; a program under another launcher never loads it. Called by launch_agree.c, once a process, under
 * its lock; a helper thread makes the calls, because some of them know no time limit. The table stays open until exit: not every
 * release can open it twice, and a launcher takes the end of a process that has not closed it for a crash.
 */
#include "comm/launch.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

/* The parts of PMIx's binary interface that are used; fixed since version 2. */
#define KEY "abcomm-0"
#define SCOPE_GLOBAL 3
#define TYPE_BOOL 1
#define TYPE_STRING 3
#define TYPE_UINT32 14
#define RANK_WILDCARD (UINT32_MAX - 1)
struct process {
    char space[256];
    uint32_t rank;
};
struct value {
    uint16_t type;
    union {
        bool flag;
        char *string;
        uint32_t number;
        void *room[3];
    } data;
};
struct info {
    char key[512];
    uint32_t flags;
    struct value value;
};
_Static_assert(sizeof(struct process) == 260 && sizeof(struct value) == 32 && sizeof(struct info) == 552, "layout of PMIx");

struct calls {
    int (*init)(struct process *self, struct info *info, size_t count);
    int (*finalize)(const struct info *info, size_t count);
    int (*put)(uint8_t scope, const char *key, struct value *value);
    int (*commit)(void);
    int (*fence)(const struct process *all, size_t processes, const struct info *info, size_t count);
    int (*get)(const struct process *of, const char *key, const struct info *info, size_t count, struct value **value);
    const char *(*error)(int status);
};
static struct calls pmix;

/* What the helper thread works on; static, because it may outlive the caller's patience. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool over;
    int rank, nranks;
    char text[ABCI_LAUNCH_TEXT];
    const char *failed; /* the call that failed */
    int error;
    bool open;
    uint32_t generation;
} round_trip = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* An MPI library's own libpmix first, then that of the launcher, then the system's. */
static void *open_library(void)
{
    char path[512];
    const char *prefix = abci_environment("PMIX_PREFIX");
    void *library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_NOLOAD);
    static const char *const folders[] = {"lib/openmpi", "lib", "lib64"};
    for (size_t i = 0; library == NULL && prefix != NULL && i < sizeof(folders) / sizeof(folders[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s/libpmix.so.2", prefix, folders[i]);
        library = dlopen(path, RTLD_NOW);
    }
    return library != NULL ? library : dlopen("libpmix.so.2", RTLD_NOW);
}

static pthread_once_t open_once = PTHREAD_ONCE_INIT;
static bool usable;

static void open_pmix(void)
{
    const struct {
        const char *name;
        void *place;
    } wanted[] = {{"PMIx_Init", &pmix.init},         {"PMIx_Finalize", &pmix.finalize}, {"PMIx_Put", &pmix.put},
                  {"PMIx_Commit", &pmix.commit},     {"PMIx_Fence", &pmix.fence},       {"PMIx_Get", &pmix.get},
                  {"PMIx_Error_string", &pmix.error}};
    void *library = open_library();
    usable = library != NULL;
    if (!usable)
        ABCI_LOG(ABCI_LOG_INFO, "comm", -1, "libpmix cannot be opened: %s", dlerror());
    for (size_t i = 0; usable && i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *found = dlsym(library, wanted[i].name);
        usable = found != NULL;
        memcpy(wanted[i].place, &found, sizeof(found));
    }
}

bool abci_launch_pmix_present(void)
{
    pthread_once(&open_once, open_pmix);
    return usable;
}

/* A helper that still waits holds the library: closing would wait with it. */
static void close_table(void)
{
    if (round_trip.generation != abci_fork_generation)
        return;
    pthread_mutex_lock(&round_trip.lock);
    bool quiet = round_trip.over && round_trip.open;
    pthread_mutex_unlock(&round_trip.lock);
    if (quiet)
        pmix.finalize(NULL, 0);
}

/* Note the call that failed; true when it did not. */
static bool worked(const char *call, int status)
{
    if (status == 0)
        return true;
    round_trip.failed = call;
    round_trip.error = status;
    return false;
}

/* A value of one process; false: noted. */
static bool look_up(const struct process *of, const char *key, uint16_t type, struct value *copy)
{
    struct value *found = NULL;
    if (!worked("PMIx_Get", pmix.get(of, key, NULL, 0, &found)))
        return false;
    bool right = found != NULL && found->type == type;
    if (right)
        *copy = *found;
    free(found); /* allocated by malloc, like the string in it */
    return right || worked("PMIx_Get", -1);
}

static bool make_round(void)
{
    struct process self = {.rank = 0};
    struct info collect = {.key = "pmix.collect", .value = {.type = TYPE_BOOL, .data.flag = true}};
    struct value value = {.type = TYPE_STRING, .data.string = round_trip.text};
    if (!worked("PMIx_Init", pmix.init(&self, NULL, 0)))
        return false;
    round_trip.open = true;
    struct process all = self, first = self;
    all.rank = RANK_WILDCARD;
    first.rank = 0;
    if (self.rank != (uint32_t)round_trip.rank)
        return worked("PMIx_Init (rank)", -1);
    if (round_trip.rank == 0 && !(worked("PMIx_Put", pmix.put(SCOPE_GLOBAL, KEY, &value)) && worked("PMIx_Commit", pmix.commit())))
        return false;
    if (!worked("PMIx_Fence", pmix.fence(NULL, 0, &collect, 1)))
        return false;
    if (round_trip.nranks < 0) {
        if (!look_up(&all, "pmix.job.size", TYPE_UINT32, &value))
            return false;
        round_trip.nranks = (int)value.data.number;
    }
    if (round_trip.rank == 0)
        return true;
    if (!look_up(&first, KEY, TYPE_STRING, &value))
        return false;
    snprintf(round_trip.text, sizeof(round_trip.text), "%s", value.data.string);
    free(value.data.string);
    return true;
}

static void *helper(void *unused)
{
    make_round();
    pthread_mutex_lock(&round_trip.lock);
    round_trip.over = true;
    pthread_cond_signal(&round_trip.ended);
    pthread_mutex_unlock(&round_trip.lock);
    return NULL;
}

/* Start the helper and wait for it up to the deadline. */
static int run_helper(double deadline)
{
    pthread_t thread;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&round_trip.ended, &attributes);
    pthread_condattr_destroy(&attributes);
    int error = abci_fault("pmix thread") ? EAGAIN : pthread_create(&thread, NULL, helper, NULL);
    if (error != 0)
        return abci_error(ABC_ERR_SYSTEM, "the thread that asks PMIx cannot be started: %s", strerror(error));
    pthread_detach(thread);
    struct timespec until = {.tv_sec = (time_t)deadline, .tv_nsec = (long)((deadline - (double)(time_t)deadline) * 1e9)};
    pthread_mutex_lock(&round_trip.lock);
    while (!round_trip.over && pthread_cond_timedwait(&round_trip.ended, &round_trip.lock, &until) == 0)
        continue;
    bool over = round_trip.over;
    pthread_mutex_unlock(&round_trip.lock);
    if (!over)
        return abci_error(ABC_ERR_TIMEOUT,
                          "the launcher's PMIx server did not answer in time: it is gone, or some rank has not begun to create a "
                          "communicator");
    if (round_trip.failed != NULL)
        return abci_error(ABC_ERR_PEER, "%s of the launcher's PMIx failed: %s", round_trip.failed, pmix.error(round_trip.error));
    return ABC_OK;
}

int abci_launch_share_pmix(const struct abci_launch *launch, char text[ABCI_LAUNCH_TEXT], double deadline, int *nranks)
{
    if (!abci_launch_pmix_present())
        return abci_error(ABC_ERR_ENVIRONMENT,
                          "PMIX_RANK=%d is set, but libpmix.so.2 cannot be opened; install it (Debian: libpmix2) "
                          "or set ABCOMM_RANK, ABCOMM_SIZE and ABCOMM_ADDR",
                          launch->rank);
    round_trip.rank = launch->rank;
    round_trip.nranks = *nranks;
    memcpy(round_trip.text, text, sizeof(round_trip.text));
    round_trip.generation = abci_fork_generation;
    atexit(close_table);
    int status = run_helper(deadline);
    if (status == ABC_OK) {
        *nranks = round_trip.nranks;
        memcpy(text, round_trip.text, ABCI_LAUNCH_TEXT);
    }
    return status;
}
