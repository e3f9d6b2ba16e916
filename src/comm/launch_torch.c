/*
 * launch_torch.c - the table of torchrun: the store that its agent serves on MASTER_ADDR and MASTER_PORT while the ranks run.
 * Needed only where one torchrun does not start all ranks. The store outlives a restart of the ranks, so names carry the run and
 * the count of restarts, and an address that nobody listens on is taken for an old one and read again. Called by launch_agree.c,
 * once a process, under its lock. The store knows no user and no secret: who reaches it can read the job key.
 */
#include "comm/launch.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base.h"
#include "comm/rendezvous.h"

#define PAUSE_MICROSECONDS 20000
#define PROBE_SECONDS 1.0

/* First byte of a question; numbers are little endian, texts come after their length in 8 bytes. */
enum { QUERY_VALIDATE = 0, QUERY_SET = 1, QUERY_GET = 3, QUERY_CHECK = 5 };
#define VALIDATE_MAGIC 0x3C85F7CEu
#define CHECK_READY 0

struct store {
    int fd;
    double deadline;
    char where[256];
    char name[160];
    unsigned char out[1024]; /* the question that is being written */
    size_t length;
};

static int lost(const struct store *store, int ready)
{
    if (ready == 0)
        return abci_error(ABC_ERR_TIMEOUT, "torchrun's store at %s did not answer in time", store->where);
    return abci_error_errno(ABC_ERR_PEER, "torchrun's store at %s closed the connection or is none", store->where);
}

static void add(struct store *store, const void *bytes, size_t length)
{
    memcpy(store->out + store->length, bytes, length);
    store->length += length;
}

static void add_text(struct store *store, const char *text)
{
    uint64_t length = htole64(strlen(text));
    add(store, &length, sizeof(length));
    add(store, text, strlen(text));
}

static int send_question(struct store *store)
{
    for (size_t sent = 0; sent < store->length;) {
        int ready = abci_fault("store send") ? (errno = EIO, -1) : abci_socket_poll(store->fd, POLLOUT, store->deadline);
        ssize_t n = ready > 0 ? send(store->fd, store->out + sent, store->length - sent, MSG_NOSIGNAL) : -1;
        if (ready <= 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return lost(store, ready);
        sent += n > 0 ? (size_t)n : 0;
    }
    store->length = 0;
    return ABC_OK;
}

static int receive(struct store *store, void *to, size_t length)
{
    for (size_t have = 0; have < length;) {
        int ready = abci_fault("store recv") ? (errno = EIO, -1) : abci_socket_poll(store->fd, POLLIN, store->deadline);
        ssize_t n = ready > 0 ? recv(store->fd, (char *)to + have, length - have, 0) : -1;
        if (ready <= 0 || n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return lost(store, ready);
        have += n > 0 ? (size_t)n : 0;
    }
    return ABC_OK;
}

/* The place where rank 0's text is, for this run and this attempt. */
static void name_place(struct store *store)
{
    const char *run = abci_environment("TORCHELASTIC_RUN_ID"), *count = abci_environment("TORCHELASTIC_RESTART_COUNT");
    snprintf(store->name, sizeof(store->name), "/abcomm/%.100s/%.20s/rank0", run != NULL ? run : "", count != NULL ? count : "0");
}

static int open_store(struct store *store)
{
    const char *host = abci_environment("MASTER_ADDR"), *port = abci_environment("MASTER_PORT");
    struct abci_address address;
    struct addrinfo *list = NULL;
    if (host == NULL || port == NULL)
        return abci_error(ABC_ERR_ENVIRONMENT, "torchrun's store is to be asked, but MASTER_ADDR or MASTER_PORT is not set");
    bool six = strchr(host, ':') != NULL;
    snprintf(store->where, sizeof(store->where), "%s%.200s%s:%.8s", six ? "[" : "", host, six ? "]" : "", port);
    int status = abci_address_parse(store->where, &address);
    if (status == ABC_OK)
        status = abci_address_resolve(&address, false, &list);
    if (status != ABC_OK)
        return status;
    store->fd = abci_address_connect(list, store->deadline - abci_now(), store->deadline);
    if (store->fd < 0)
        status = abci_error_errno(ABC_ERR_ADDRESS, "torchrun's store at MASTER_ADDR and MASTER_PORT, %s, cannot be reached",
                                  store->where);
    abci_address_free(list);
    uint32_t magic = htole32(VALIDATE_MAGIC);
    add(store, &(unsigned char){QUERY_VALIDATE}, 1);
    add(store, &magic, sizeof(magic));
    return status == ABC_OK ? send_question(store) : status;
}

/* What is at the place now: *there false when nothing is. */
static int read_once(struct store *store, char text[ABCI_LAUNCH_TEXT], bool *there)
{
    unsigned char state = 0;
    uint64_t length = 0, one = htole64(1);
    add(store, &(unsigned char){QUERY_CHECK}, 1);
    add(store, &one, sizeof(one));
    add_text(store, store->name);
    int status = send_question(store);
    if (status == ABC_OK)
        status = receive(store, &state, 1);
    *there = status == ABC_OK && state == CHECK_READY;
    if (!*there)
        return status;
    add(store, &(unsigned char){QUERY_GET}, 1);
    add_text(store, store->name);
    status = send_question(store);
    if (status == ABC_OK)
        status = receive(store, &length, sizeof(length));
    if (status != ABC_OK)
        return status;
    length = le64toh(length);
    if (length == 0 || length >= ABCI_LAUNCH_TEXT)
        return abci_error(ABC_ERR_PEER, "torchrun's store at %s holds %llu bytes where rank 0's address should be", store->where,
                          (unsigned long long)length);
    status = receive(store, text, (size_t)length);
    text[length] = '\0';
    return status;
}

/* Does anybody listen where the text says? An earlier attempt's rank 0 does not. What is no address, is for the caller to judge. */
static bool alive(const char *text)
{
    struct abci_address address;
    struct addrinfo *list = NULL;
    char where[256];
    const char *start = strchr(text, '/'), *end = strrchr(text, '/');
    if (start == NULL || end == start || start[1] == '!')
        return true;
    snprintf(where, sizeof(where), "%.*s", (int)(end - start - 1), start + 1);
    if (abci_address_parse(where, &address) != ABC_OK || abci_address_resolve(&address, false, &list) != ABC_OK)
        return true;
    int fd = abci_address_connect(list, PROBE_SECONDS, abci_now() + PROBE_SECONDS);
    bool refused = fd < 0 && errno == ECONNREFUSED;
    abci_socket_close(fd);
    abci_address_free(list);
    return !refused;
}

static int await_text(struct store *store, char text[ABCI_LAUNCH_TEXT])
{
    bool there = false, stale = false;
    for (;;) {
        int status = read_once(store, text, &there);
        if (status != ABC_OK)
            return status;
        stale = there && !alive(text);
        if (there && !stale)
            return ABC_OK;
        if (abci_now() >= store->deadline)
            return abci_error(ABC_ERR_TIMEOUT,
                              stale ? "rank 0 does not listen where torchrun's store at %s says"
                                    : "rank 0 has not told its address in torchrun's store at %s in time",
                              store->where);
        usleep(PAUSE_MICROSECONDS);
    }
}

int abci_launch_share_torch(const struct abci_launch *launch, char text[ABCI_LAUNCH_TEXT], double deadline, int *nranks)
{
    struct store store = {.fd = -1, .deadline = deadline};
    name_place(&store);
    int status = open_store(&store);
    if (status == ABC_OK && launch->rank == 0) {
        /* The store does not confirm; a question that it answers, after it, does. */
        char back[ABCI_LAUNCH_TEXT];
        bool there;
        add(&store, &(unsigned char){QUERY_SET}, 1);
        add_text(&store, store.name);
        add_text(&store, text);
        status = read_once(&store, back, &there);
    } else if (status == ABC_OK) {
        status = await_text(&store, text);
    }
    abci_socket_close(store.fd);
    return status;
}
