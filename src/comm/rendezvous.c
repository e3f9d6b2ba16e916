/*
 * rendezvous.c - the built-in abc_exchange: rank 0 works on its own table and runs the service, every other rank is a client of
 * it. Top of the rendezvous, over address.c, frames.c, store.c and service.c; used by comm.c while a communicator is created, by
 * the calling thread. A put, and a wait with its get, are one round trip each.
 */
#include "comm/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/base.h"

#define PAUSE_FIRST 0.001 /* seconds between two attempts to connect; doubles */
#define PAUSE_LAST 0.05
/*
 * Seconds until a connection is tried anew on which rank 0 has said nothing: it may have met a socket that was just being closed.
 * Tripled each time, so that a slow rank 0 is met after all and few dead connections wait in its queue.
 */
#define SILENCE_FIRST 0.1
#define SILENCE_GROWTH 3
#define REFUSAL_PATIENCE 2.0 /* seconds: an old service on the same port may just be ending */
#define ANSWER_PATIENCE 2.0  /* seconds that an answer may come later than the wait that it is for */

struct abci_rendezvous {
    int rank, nranks;
    double deadline;
    int last_status;              /* of the last request: told to the others with the goodbye */
    struct abci_store *store;     /* rank 0 */
    struct abci_service *service; /* rank 0 of several ranks */
    int fd;                       /* other ranks */
    struct abci_frame_channel to_server, to_client;
    unsigned char *buffer; /* ABCI_FRAME_MAX: the frame that is sent or was received */
    const unsigned char *cached;
    size_t cached_length;
    char cached_name[ABCI_FRAME_NAME_MAX + 1]; /* the value that the last wait brought; empty: none */
    char address[256];
};

/* ---- frames over the client's socket ---- */

/* Bytes until the deadline: ABC_OK, ABC_ERR_TIMEOUT, or ABC_ERR_PEER with errno (0: closed). No text. */
static int receive_bytes(int fd, unsigned char *to, size_t length, double deadline)
{
    while (length > 0) {
        ssize_t got = abci_fault("recv") ? (errno = ECONNRESET, -1) : recv(fd, to, length, 0);
        if (got > 0) {
            to += got;
            length -= (size_t)got;
            continue;
        }
        if (got == 0)
            errno = 0;
        if (got == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK))
            return ABC_ERR_PEER;
        if (errno != EINTR && abci_socket_poll(fd, POLLIN, deadline) == 0)
            return ABC_ERR_TIMEOUT;
    }
    return ABC_OK;
}

static int send_bytes(int fd, const unsigned char *from, size_t length, double deadline)
{
    while (length > 0) {
        ssize_t sent = abci_fault("send") ? (errno = EPIPE, -1) : send(fd, from, length, MSG_NOSIGNAL);
        if (sent >= 0) {
            from += sent;
            length -= (size_t)sent;
            continue;
        }
        if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)
            return ABC_ERR_PEER;
        if (errno != EINTR && abci_socket_poll(fd, POLLOUT, deadline) == 0)
            return ABC_ERR_TIMEOUT;
    }
    return ABC_OK;
}

/* One frame into buffer. Also ABC_ERR_ADDRESS (not our protocol) and ABC_ERR_VERSION. No text. */
static int receive_frame(int fd, unsigned char *buffer, size_t capacity, double deadline, struct abci_frame *frame)
{
    int status = receive_bytes(fd, buffer, ABCI_FRAME_HEADER, deadline);
    if (status != ABC_OK)
        return status;
    enum abci_frame_verdict verdict = abci_frame_parse(buffer, ABCI_FRAME_HEADER, frame);
    if (verdict == ABCI_FRAME_OTHER)
        return ABC_ERR_VERSION;
    if (verdict != ABCI_FRAME_MORE || frame->total > capacity)
        return ABC_ERR_ADDRESS;
    status = receive_bytes(fd, buffer + ABCI_FRAME_HEADER, frame->total - ABCI_FRAME_HEADER, deadline);
    if (status == ABC_OK && abci_frame_parse(buffer, frame->total, frame) != ABCI_FRAME_OK)
        return ABC_ERR_ADDRESS;
    return status;
}

/* ---- joining ---- */

/* How one attempt to join ended. AGAIN: try until the deadline. SHORTLY: try for REFUSAL_PATIENCE, then fail with `status`. */
enum outcome { JOINED, AGAIN, SHORTLY, FINAL };
struct attempt {
    enum outcome outcome;
    int status;
    char why[ABCI_FRAME_TEXT_MAX + 64];
};

static enum outcome attempt_ends(struct attempt *attempt, enum outcome outcome, int status, const char *why)
{
    attempt->outcome = outcome;
    attempt->status = status;
    snprintf(attempt->why, sizeof(attempt->why), "%s", why);
    return outcome;
}

/* A frame of the handshake that did not come. */
static enum outcome handshake_failed(struct attempt *attempt, int status)
{
    if (status == ABC_ERR_TIMEOUT)
        return attempt_ends(attempt, AGAIN, status,
                            "the port is open but rank 0 does not answer; it may not create a communicator");
    if (status == ABC_ERR_PEER)
        return attempt_ends(attempt, AGAIN, status, errno == 0 ? "the connection was closed" : strerror(errno));
    if (status == ABC_ERR_VERSION)
        return attempt_ends(attempt, SHORTLY, status, "rank 0 speaks another version of the rendezvous");
    return attempt_ends(attempt, SHORTLY, ABC_ERR_ADDRESS, "another program answers there, not rank 0 of a job");
}

static enum outcome refused(struct attempt *attempt, const struct abci_frame *frame)
{
    struct abci_frame_reply reply;
    char text[ABCI_FRAME_TEXT_MAX + 1];
    abci_frame_read_reply(frame, &reply);
    snprintf(text, sizeof(text), "%.*s", (int)reply.length, (const char *)reply.data);
    for (char *at = text; *at != '\0'; at++)
        *at = *at < ' ' || *at > '~' ? '?' : *at; /* not yet authenticated: keep it printable */
    static const int statuses[] = {[ABCI_REFUSE_JOB] = ABC_ERR_AUTH,
                                   [ABCI_REFUSE_VERSION] = ABC_ERR_VERSION,
                                   [ABCI_REFUSE_RANK] = ABC_ERR_ENVIRONMENT,
                                   [ABCI_REFUSE_TAKEN] = ABC_ERR_ENVIRONMENT};
    if (reply.status == ABCI_REFUSE_BUSY)
        return attempt_ends(attempt, AGAIN, ABC_ERR_TIMEOUT, text);
    if (reply.status < ABCI_REFUSE_JOB || reply.status > ABCI_REFUSE_TAKEN)
        return attempt_ends(attempt, SHORTLY, ABC_ERR_ADDRESS, "rank 0 refused for an unknown reason");
    return attempt_ends(attempt, SHORTLY, statuses[reply.status],
                        reply.status == ABCI_REFUSE_JOB ? "rank 0 there belongs to another job: its job key is different" : text);
}

/* Prove the key to rank 0 and have it proved. After its first word, within `silence`, to leave would look like a death. */
static enum outcome shake_hands(struct abci_rendezvous *rdv, const unsigned char *key, double silence, struct attempt *attempt)
{
    struct abci_frame frame;
    struct abci_frame_hello hello = {.rank = (uint32_t)rdv->rank, .nranks = (uint32_t)rdv->nranks};
    struct abci_frame_session session;
    unsigned char small[ABCI_FRAME_SMALL];
    double until = abci_now() + silence;
    int status = receive_frame(rdv->fd, rdv->buffer, ABCI_FRAME_SMALL, until < rdv->deadline ? until : rdv->deadline, &frame);
    if (status == ABC_OK && frame.type != ABCI_FRAME_CHALLENGE)
        status = ABC_ERR_ADDRESS;
    if (status != ABC_OK)
        return handshake_failed(attempt, status);

    abci_frame_job(key, hello.job);
    randombytes_buf(hello.nonce, sizeof(hello.nonce));
    abci_frame_session(key, frame.body, &hello, &session);
    memcpy(hello.proof, session.client_proof, sizeof(hello.proof));
    status = send_bytes(rdv->fd, small, abci_frame_build_hello(small, &hello), rdv->deadline);
    if (status == ABC_OK)
        status = receive_frame(rdv->fd, rdv->buffer, ABCI_FRAME_SMALL, rdv->deadline, &frame);
    if (status != ABC_OK)
        return handshake_failed(attempt, status);
    if (frame.type == ABCI_FRAME_REFUSE)
        return refused(attempt, &frame);
    if (frame.type != ABCI_FRAME_WELCOME)
        return handshake_failed(attempt, ABC_ERR_ADDRESS);
    if (!abci_frame_same_proof(session.server_proof, frame.body))
        return attempt_ends(attempt, SHORTLY, ABC_ERR_AUTH, "the service there cannot prove the job key");
    rdv->to_server = session.to_server;
    rdv->to_client = session.to_client;
    sodium_memzero(&session, sizeof(session));
    return attempt_ends(attempt, JOINED, ABC_OK, "");
}

/* Try until rank 0 lets this rank in, refuses for good, or the time is over. */
static int join(struct abci_rendezvous *rdv, const struct addrinfo *list, const unsigned char *key)
{
    double pause = PAUSE_FIRST, patience = 0, silence = SILENCE_FIRST;
    for (;;) {
        struct attempt attempt;
        double start = abci_now();
        rdv->fd = abci_address_connect(list, silence, rdv->deadline);
        if (rdv->fd >= 0) {
            if (shake_hands(rdv, key, silence, &attempt) == JOINED)
                return ABC_OK;
            abci_socket_close(rdv->fd);
            rdv->fd = -1;
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
            return abci_error_errno(ABC_ERR_SYSTEM, "cannot make a socket for the rendezvous at %s", rdv->address);
        } else {
            attempt_ends(&attempt, AGAIN, ABC_ERR_TIMEOUT, strerror(errno));
        }
        double now = abci_now();
        if (attempt.outcome == SHORTLY && patience == 0)
            patience = now + REFUSAL_PATIENCE;
        if (attempt.outcome == SHORTLY && (now >= patience || now + pause >= rdv->deadline))
            return abci_error(attempt.status, "rank %d could not join at %s: %s", rdv->rank, rdv->address, attempt.why);
        if (attempt.outcome == AGAIN)
            patience = 0;
        if (now - start >= silence) /* waited enough: at once again */
            silence *= SILENCE_GROWTH, pause = PAUSE_FIRST;
        if (now + pause >= rdv->deadline)
            return abci_error(ABC_ERR_TIMEOUT, "rank %d did not reach rank 0 at %s in time (last attempt: %s)", rdv->rank,
                              rdv->address, attempt.why);
        usleep((useconds_t)(pause * 1e6));
        pause = pause * 2 < PAUSE_LAST ? pause * 2 : PAUSE_LAST;
    }
}

/* ---- the exchange of the other ranks ---- */

static int lost_service(struct abci_rendezvous *rdv, int status)
{
    if (status == ABC_ERR_TIMEOUT)
        return abci_error(status, "rank 0 did not answer at %s in time", rdv->address);
    if (status == ABC_ERR_PEER)
        return abci_error(status, "rank 0 has died or left while the communicator was created (its connection at %s: %s)",
                          rdv->address, errno == 0 ? "closed" : strerror(errno));
    return abci_error(ABC_ERR_PEER, "rank 0 at %s sent something that is not an answer", rdv->address);
}

/* One request and its answer; on ABC_OK `reply` leads into the buffer. */
static int ask(struct abci_rendezvous *rdv, enum abci_frame_type type, const char *name, double wait, const void *value,
               size_t length, struct abci_frame_reply *reply)
{
    struct abci_frame frame;
    rdv->cached_name[0] = '\0';
    if (rdv->fd < 0)
        return abci_error(ABC_ERR_PEER, "rank 0 has died or left while the communicator was created");
    if (wait < 0)
        wait = 0;
    uint32_t milliseconds = wait > 4e6 ? 4000000000u : (uint32_t)(wait * 1000 + 0.999);
    double deadline = abci_now() + wait + ANSWER_PATIENCE;
    if (type != ABCI_FRAME_WAIT && deadline < rdv->deadline)
        deadline = rdv->deadline;
    size_t bytes = abci_frame_build_request(rdv->buffer, type, name, milliseconds, value, length, &rdv->to_server);
    int status = send_bytes(rdv->fd, rdv->buffer, bytes, deadline);
    if (status == ABC_OK)
        status = receive_frame(rdv->fd, rdv->buffer, ABCI_FRAME_MAX, deadline, &frame);
    if (status == ABC_OK && (!abci_frame_verify(&frame, rdv->buffer, &rdv->to_client) || !abci_frame_read_reply(&frame, reply)))
        status = ABC_ERR_ADDRESS;
    if (status != ABC_OK) {
        /* The next answer would not belong to the next question: this connection is over. */
        status = lost_service(rdv, status);
        abci_socket_close(rdv->fd);
        rdv->fd = -1;
        return status;
    }
    if (reply->status >= 0)
        return ABC_OK;
    return abci_error(reply->status, "%.*s", (int)(reply->length < ABCI_FRAME_TEXT_MAX ? reply->length : ABCI_FRAME_TEXT_MAX),
                      (const char *)reply->data);
}

static int check_name(const char *name)
{
    size_t length = name != NULL ? strlen(name) : 0;
    if (length == 0 || length > ABCI_FRAME_NAME_MAX)
        return abci_error(ABC_ERR_ARGUMENT, "the name of an exchanged value has %zu bytes; 1 to %d are allowed", length,
                          ABCI_FRAME_NAME_MAX);
    return ABC_OK;
}

static int rendezvous_put(void *ctx, const char *name, const void *value, size_t length)
{
    struct abci_rendezvous *rdv = ctx;
    struct abci_frame_reply reply;
    int status = check_name(name);
    if (status != ABC_OK)
        return status;
    if (length > ABCI_VALUE_MAX)
        return abci_error(ABC_ERR_ARGUMENT, "the value \"%.64s\" has %zu bytes; at most %d are allowed", name, length,
                          ABCI_VALUE_MAX);
    if (rdv->store == NULL)
        return rdv->last_status = ask(rdv, ABCI_FRAME_PUT, name, 0, value, length, &reply);
    status = abci_fault("put") ? ABC_ERR_MEMORY : abci_store_put(rdv->store, name, value, length);
    if (status != ABC_OK)
        abci_error(status, "rank 0 has no room for the value \"%.64s\" of %zu bytes", name, length);
    else if (rdv->service != NULL)
        abci_service_notify(rdv->service);
    return rdv->last_status = status;
}

static int rendezvous_wait(void *ctx, const char *name, double timeout)
{
    struct abci_rendezvous *rdv = ctx;
    int status = check_name(name);
    if (status != ABC_OK)
        return status;
    double left = rdv->deadline - abci_now(); /* no wait outlives the rendezvous */
    if (timeout > left)
        timeout = left;
    if (rdv->store != NULL) {
        char text[ABCI_FRAME_TEXT_MAX];
        status = abci_store_wait(rdv->store, name, abci_now() + timeout, text, sizeof(text));
        if (status != ABC_OK)
            abci_error(status, "%s", text);
        return rdv->last_status = status;
    }
    if (rdv->cached_name[0] != '\0' && strcmp(rdv->cached_name, name) == 0)
        return ABC_OK;
    struct abci_frame_reply reply;
    status = ask(rdv, ABCI_FRAME_WAIT, name, timeout, NULL, 0, &reply);
    if (status == ABC_OK) {
        rdv->cached = reply.data;
        rdv->cached_length = reply.length;
        snprintf(rdv->cached_name, sizeof(rdv->cached_name), "%s", name);
    }
    return rdv->last_status = status;
}

static int rendezvous_get(void *ctx, const char *name, void *value, size_t *length)
{
    struct abci_rendezvous *rdv = ctx;
    size_t capacity = *length, true_length = 0;
    int status = check_name(name);
    if (status != ABC_OK)
        return status;
    if (rdv->store != NULL) {
        if (!abci_store_get(rdv->store, name, value, capacity, &true_length))
            return abci_error(ABC_ERR_ARGUMENT, "there is no value \"%.64s\"", name);
    } else {
        struct abci_frame_reply reply = {.data = rdv->cached, .length = rdv->cached_length};
        if (rdv->cached_name[0] == '\0' || strcmp(rdv->cached_name, name) != 0)
            status = ask(rdv, ABCI_FRAME_GET, name, 0, NULL, 0, &reply);
        if (status != ABC_OK)
            return rdv->last_status = status;
        true_length = reply.length;
        if (true_length > 0)
            memcpy(value, reply.data, true_length < capacity ? true_length : capacity);
    }
    *length = true_length;
    if (true_length > capacity)
        return abci_error(ABC_ERR_ARGUMENT, "the value \"%.64s\" has %zu bytes and the buffer only %zu", name, true_length,
                          capacity);
    return ABC_OK;
}

/* ---- open and close ---- */

static void warn_open_loopback(const struct abci_rendezvous_config *config)
{
    static _Atomic bool warned;
    if (config->rank == 0 && !atomic_exchange(&warned, true))
        ABCI_LOG(ABCI_LOG_WARN, "comm", 0,
                 "no job key: every user of this machine can join the job at %s (abcomm run makes a key; or set ABCOMM_KEY_FILE)",
                 config->address);
}

/* A copy of the inherited listening socket, which stays open for the next communicator. */
static int copy_listener(const struct abci_rendezvous_config *config, int *fd)
{
    struct sockaddr_storage bound;
    socklen_t length = sizeof(bound), one = sizeof(int);
    int listening = 0;
    if (getsockopt(config->listen_fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &one) != 0 || !listening)
        return abci_error(ABC_ERR_ENVIRONMENT, "descriptor %d is not a listening socket", config->listen_fd);
    if (config->key == NULL && (getsockname(config->listen_fd, (struct sockaddr *)&bound, &length) != 0 ||
                                !abci_address_is_loopback((const struct sockaddr *)&bound)))
        return abci_error(ABC_ERR_AUTH, "the listening socket %d can be reached by other machines and there is no job key",
                          config->listen_fd);
    *fd = abci_fault("dup listener") ? -1 : abci_socket_copy(config->listen_fd);
    if (*fd < 0 || fcntl(*fd, F_SETFL, O_NONBLOCK) != 0) {
        int status = abci_error_errno(ABC_ERR_SYSTEM, "cannot copy the listening socket %d", config->listen_fd);
        abci_socket_close(*fd);
        return status;
    }
    return ABC_OK;
}

/* Rank 0: the table, and for several ranks the service. */
static int open_service(struct abci_rendezvous *rdv, const struct abci_rendezvous_config *config,
                        const struct abci_address *address, const struct addrinfo *list)
{
    int fd = -1;
    int status = config->listen_fd >= 0 ? copy_listener(config, &fd) : abci_address_listen(address, list, rdv->deadline, &fd);
    if (status == ABC_OK)
        status = abci_service_start(rdv->store, rdv->nranks, fd, config->key, rdv->deadline, &rdv->service);
    return status;
}

/* Rank 0 starts serving, another rank joins. */
static int open_network(struct abci_rendezvous *rdv, const struct abci_rendezvous_config *config)
{
    struct abci_address address;
    struct addrinfo *list = NULL;
    int status = abci_address_parse(config->address, &address);
    if (status == ABC_OK)
        status = abci_address_resolve(&address, config->rank == 0, &list);
    if (status != ABC_OK)
        return status;
    if (config->key == NULL) {
        status = abci_address_check_open(&address, list);
        if (status == ABC_OK && list->ai_family != AF_UNIX)
            warn_open_loopback(config);
    }
    if (status == ABC_OK)
        status = config->rank == 0 ? open_service(rdv, config, &address, list) : join(rdv, list, config->key);
    abci_address_free(list);
    return status;
}

static void free_rendezvous(struct abci_rendezvous *rdv)
{
    abci_socket_close(rdv->fd);
    abci_store_destroy(rdv->store);
    abci_free(rdv->buffer);
    sodium_memzero(rdv, sizeof(*rdv));
    abci_free(rdv);
}

static int check_config(const struct abci_rendezvous_config *config)
{
    if (config->nranks < 1 || config->rank < 0 || config->rank >= config->nranks)
        return abci_error(ABC_ERR_ARGUMENT, "rank %d of %d ranks does not exist", config->rank, config->nranks);
    if (!(config->timeout > 0))
        return abci_error(ABC_ERR_ARGUMENT, "the timeout of %g s for creating a communicator is not positive", config->timeout);
    if (sodium_init() < 0)
        return abci_error(ABC_ERR_SYSTEM, "libsodium cannot be initialised (no source of random numbers)");
    return ABC_OK;
}

int abci_rendezvous_open(const struct abci_rendezvous_config *config, struct abci_rendezvous **rdv, abc_exchange *exchange)
{
    int status = check_config(config);
    if (status != ABC_OK)
        return status;
    struct abci_rendezvous *fresh = abci_fault("rendezvous") ? NULL : abci_alloc(sizeof(*fresh));
    if (fresh == NULL)
        return abci_error(ABC_ERR_MEMORY, "no memory for the rendezvous");
    fresh->rank = config->rank;
    fresh->nranks = config->nranks;
    fresh->fd = -1;
    fresh->deadline = abci_now() + config->timeout;
    snprintf(fresh->address, sizeof(fresh->address), "%s", config->address != NULL ? config->address : "");
    if (config->rank == 0)
        fresh->store = abci_store_create(config->nranks);
    else
        fresh->buffer = abci_alloc(ABCI_FRAME_MAX);
    if (fresh->store == NULL && fresh->buffer == NULL)
        status = abci_error(ABC_ERR_MEMORY, "no memory for the rendezvous");
    else if (config->nranks > 1)
        status = open_network(fresh, config);
    if (status != ABC_OK) {
        free_rendezvous(fresh);
        return status;
    }
    *rdv = fresh;
    exchange->size = sizeof(*exchange);
    exchange->ctx = fresh;
    exchange->put = rendezvous_put;
    exchange->wait = rendezvous_wait;
    exchange->get = rendezvous_get;
    return ABC_OK;
}

/* Tell rank 0 that this connection ends on purpose, and how. */
static void say_goodbye(struct abci_rendezvous *rdv)
{
    unsigned char frame[ABCI_FRAME_SMALL], ignored[256];
    size_t bytes = abci_frame_build_reply(frame, ABCI_FRAME_BYE, rdv->last_status, NULL, 0, &rdv->to_server);
    if (send_bytes(rdv->fd, frame, bytes, abci_now() + 1) != ABC_OK)
        return;
    /* An unread late answer would turn the close into a reset, which may overtake the goodbye. */
    shutdown(rdv->fd, SHUT_WR);
    while (recv(rdv->fd, ignored, sizeof(ignored), MSG_DONTWAIT) > 0)
        ;
}

int abci_rendezvous_close(struct abci_rendezvous *rdv)
{
    if (rdv == NULL)
        return ABC_OK;
    if (rdv->service != NULL) {
        if (rdv->last_status != ABC_OK) {
            abci_store_fail(rdv->store, 0, rdv->last_status == ABC_ERR_TIMEOUT ? ABC_ERR_TIMEOUT : ABC_ERR_PEER, "rank 0 gave up");
            abci_service_notify(rdv->service);
        }
        abci_service_stop(rdv->service);
    } else if (rdv->fd >= 0) {
        say_goodbye(rdv);
    }
    free_rendezvous(rdv);
    return ABC_OK;
}
