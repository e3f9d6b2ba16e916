/*
 * launch_agree.c - rank 0 listens, makes a job key and tells both over the launcher's own table; the others read them there.
 * Between launch.c, which knows that there is such a table, and rendezvous.c, which goes by what is agreed. Once a process: one
 * round over the table, a fraction of a second; the answer and rank 0's socket are kept for later communicators.
 */
#include "comm/launch.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/base.h"
#include "comm/rendezvous.h"

#define MARK "abcomm1/" /* format of the text: MARK address / key in hexadecimal, or - */

static struct {
    bool known, failed;
    uint32_t generation; /* of the process that asked */
    int nranks, listen_fd;
    char address[256];
    bool has_key;
    unsigned char key[ABCI_KEY_BYTES];
} agreed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Listen on any free port of the host; the address with that port. */
static int listen_anywhere(const char *host, int *fd, char *address, size_t capacity)
{
    struct abci_address where;
    struct addrinfo *list = NULL;
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } bound = {.any.sa_family = AF_UNSPEC};
    socklen_t length = sizeof(bound);
    char text[256];
    bool colon = strchr(host, ':') != NULL;
    snprintf(text, sizeof(text), "%s%s%s:1", colon ? "[" : "", host, colon ? "]" : "");
    int status = abci_address_parse(text, &where);
    snprintf(where.port, sizeof(where.port), "0");
    if (status == ABC_OK)
        status = abci_address_resolve(&where, true, &list);
    if (status == ABC_OK)
        status = abci_address_listen(&where, list, abci_now() + 1, fd);
    abci_address_free(list);
    if (status != ABC_OK)
        return status;
    if (abci_fault("getsockname") || getsockname(*fd, &bound.any, &length) != 0) {
        status = abci_error_errno(ABC_ERR_SYSTEM, "the port that rank 0 listens on cannot be read");
        abci_socket_close(*fd);
        return status;
    }
    snprintf(address, capacity, "%s%s%s:%u", colon ? "[" : "", host, colon ? "]" : "",
             (unsigned)ntohs(colon ? bound.six.sin6_port : bound.four.sin_port));
    return ABC_OK;
}

/* Rank 0: listen, and put what the others need into the text. A key that the user gave is not told: all ranks have it. */
static int make_text(struct abci_launch *launch, char text[ABCI_LAUNCH_TEXT])
{
    const char *spec = abci_setting_string(ABCI_SET_SOCKET_IFNAME);
    char host[232] = "127.0.0.1", hex[2 * ABCI_KEY_BYTES + 1] = "-";
    int status = ABC_OK;
    if (launch->address[0] == '\0') {
        if (!launch->local || spec[0] != '\0')
            status = abci_interface_host(spec, host, sizeof(host));
        if (status == ABC_OK)
            status = listen_anywhere(host, &launch->listen_fd, launch->address, sizeof(launch->address));
    }
    if (status == ABC_OK && sodium_init() < 0)
        status = abci_error(ABC_ERR_SYSTEM, "libsodium cannot be initialised (no source of random numbers)");
    if (status == ABC_OK && !launch->have_key) {
        randombytes_buf(launch->key, sizeof(launch->key));
        launch->have_key = 1;
        sodium_bin2hex(hex, sizeof(hex), launch->key, sizeof(launch->key));
    }
    if (status == ABC_OK)
        snprintf(text, ABCI_LAUNCH_TEXT, MARK "%s/%s", launch->address, hex);
    else /* tell the others not to wait */
        snprintf(text, ABCI_LAUNCH_TEXT, MARK "!/-");
    sodium_memzero(hex, sizeof(hex));
    return status;
}

/* Another rank: what rank 0 has told. */
static int read_text(struct abci_launch *launch, const char *text)
{
    const char *address = text + strlen(MARK), *hex = strrchr(text, '/');
    size_t length = hex != NULL && hex > address ? (size_t)(hex - address) : 0, bytes = 0;
    if (strncmp(text, MARK, strlen(MARK)) != 0 || length == 0 || length >= sizeof(launch->address))
        return abci_error(ABC_ERR_VERSION, "the launcher's table holds \"%.40s\" where rank 0's address should be", text);
    if (address[0] == '!')
        return abci_error(ABC_ERR_PEER, "rank 0 could not open the rendezvous; its own error says why");
    if (launch->address[0] == '\0')
        snprintf(launch->address, sizeof(launch->address), "%.*s", (int)length, address);
    if (strcmp(hex + 1, "-") == 0)
        return launch->have_key
                   ? ABC_OK
                   : abci_error(ABC_ERR_AUTH, "rank 0 has a job key from ABCOMM_KEY_FILE or ABCOMM_KEY_FD, this rank none");
    if (launch->have_key)
        return abci_error(ABC_ERR_AUTH, "this rank has a job key from ABCOMM_KEY_FILE or ABCOMM_KEY_FD, rank 0 none");
    if (sodium_init() < 0 || sodium_hex2bin(launch->key, sizeof(launch->key), hex + 1, strlen(hex + 1), NULL, &bytes, NULL) != 0 ||
        bytes != sizeof(launch->key))
        return abci_error(ABC_ERR_VERSION, "the launcher's table holds a job key that is none");
    launch->have_key = 1;
    return ABC_OK;
}

/* The round over the table; called under the lock. */
static int ask_table(struct abci_launch *launch, double timeout)
{
    static const abci_launch_share_fn shares[] = {[ABCI_TABLE_PMI] = abci_launch_share_pmi,
                                                  [ABCI_TABLE_PMIX] = abci_launch_share_pmix,
                                                  [ABCI_TABLE_TORCH] = abci_launch_share_torch};
    char text[ABCI_LAUNCH_TEXT] = "", own[512] = "";
    int made = launch->rank == 0 ? make_text(launch, text) : ABC_OK, nranks = launch->nranks;
    if (made != ABC_OK)
        snprintf(own, sizeof(own), "%s", abci_error_text());
    int status = shares[launch->table](launch, text, abci_now() + timeout, &nranks);
    launch->nranks = nranks;
    if (made != ABC_OK)
        status = abci_error(made, "%s", own);
    else if (status == ABC_OK && launch->rank != 0)
        status = read_text(launch, text);
    if (status == ABC_OK && (nranks < 1 || nranks > 1024 || launch->rank >= nranks))
        status = abci_error(ABC_ERR_ENVIRONMENT, "the launcher's table says %d ranks, and this is rank %d", nranks, launch->rank);
    if (status != ABC_OK && launch->listen_fd >= 0) {
        abci_socket_close(launch->listen_fd);
        launch->listen_fd = -1;
    }
    sodium_memzero(text, sizeof(text));
    return status;
}

static void keep(const struct abci_launch *launch)
{
    agreed.known = true;
    agreed.nranks = launch->nranks;
    agreed.listen_fd = launch->listen_fd;
    agreed.has_key = launch->have_key != 0;
    memcpy(agreed.key, launch->key, sizeof(agreed.key));
    snprintf(agreed.address, sizeof(agreed.address), "%s", launch->address);
}

static int recall(struct abci_launch *launch)
{
    if (agreed.generation != abci_fork_generation)
        return abci_error(ABC_ERR_ENVIRONMENT,
                          "the parent of this process has already met the other ranks as rank %d; create communicators before "
                          "fork, or set ABCOMM_ADDR",
                          launch->rank);
    launch->nranks = agreed.nranks;
    launch->listen_fd = agreed.listen_fd;
    launch->have_key = agreed.has_key;
    memcpy(launch->key, agreed.key, sizeof(launch->key));
    snprintf(launch->address, sizeof(launch->address), "%s", agreed.address);
    return ABC_OK;
}

/* Once a process; ranks that left the round at different places would not meet in a second one. */
static int first_time(struct abci_launch *launch, double timeout)
{
    static const char *const names[] = {[ABCI_TABLE_PMI] = "PMI", [ABCI_TABLE_PMIX] = "PMIx", [ABCI_TABLE_TORCH] = "store"};
    if (agreed.failed && agreed.generation == abci_fork_generation)
        return abci_error(ABC_ERR_PEER,
                          "an earlier attempt to find rank 0 over the launcher's table has failed; start the job again");
    int status = ask_table(launch, timeout);
    agreed.generation = abci_fork_generation;
    agreed.failed = status != ABC_OK;
    if (status != ABC_OK)
        return status;
    keep(launch);
    ABCI_LOG(ABCI_LOG_INFO, "comm", launch->rank, "rank 0 is at %s, by the launcher's %s", launch->address, names[launch->table]);
    return ABC_OK;
}

int abci_launch_agree(struct abci_launch *launch, double timeout)
{
    if (launch->table == ABCI_TABLE_NONE || launch->nranks == 1)
        return ABC_OK;
    abci_fork_guard(&lock);
    pthread_mutex_lock(&lock);
    int status = agreed.known ? recall(launch) : first_time(launch, timeout);
    pthread_mutex_unlock(&lock);
    return status;
}
