/*
 * service.c - rank 0's side of the rendezvous: a thread that lets ranks in and answers their requests from the table. Second
 * stage, between the sockets of the other ranks (rendezvous.c in their processes) and store.c. The thread owns all connections;
 * it sleeps in poll and ends with abci_service_stop. Strangers cost one small buffer each for at most five seconds.
 */
#include "comm/rendezvous.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/base.h"

#define STRANGER_SECONDS 5.0   /* from accept to a good hello */
#define SPARE_CONNECTIONS 64   /* beyond one a rank */
#define ACCEPT_PAUSE 0.05      /* after accept failed for lack of descriptors or memory */
#define LATECOMER_SECONDS 1.0  /* when stopping although some ranks have never come: they may just be on their way */
#define LAST_WORDS_SECONDS 0.5 /* when stopping after the deadline: present ranks may just be about to ask */
#define THREAD_STACK ((size_t)256 << 10)

enum stage { STRANGER, MEMBER, REFUSED };

struct connection {
    int fd;
    enum stage stage;
    int rank;
    double born;
    unsigned char nonce[ABCI_FRAME_NONCE];
    struct abci_frame_channel from_peer, to_peer;
    unsigned char *in; /* small, until a member's frame needs more */
    size_t in_capacity, in_length;
    unsigned char *out; /* the one frame that is on its way out, or NULL */
    size_t out_length, out_sent;
    bool waiting; /* a WAIT is open */
    bool doomed;  /* to be closed at the end of this round */
    double wait_deadline;
    char wait_name[ABCI_FRAME_NAME_MAX + 1];
    unsigned char small[ABCI_FRAME_SMALL];
};

struct abci_service {
    struct abci_store *store;
    int nranks, listen_fd, event_fd;
    const unsigned char *key; /* own_key or NULL */
    unsigned char own_key[ABCI_KEY_BYTES];
    unsigned char job[ABCI_FRAME_JOB];
    double deadline;
    _Atomic bool stopping;
    double stopping_since; /* set before `stopping` */
    double accept_after;
    pthread_t thread;
    int limit, count; /* connections */
    struct connection **connections;
    struct pollfd *polls;                  /* limit + 2 */
    unsigned char scratch[ABCI_VALUE_MAX]; /* a value on its way from the table to a frame */
};

static void drop(struct connection *connection, const char *format, ...) ABCI_PRINTF(2, 3);

/* Give a connection up, with the reason in the log. */
static void drop(struct connection *connection, const char *format, ...)
{
    if (!connection->doomed && abci_log_level >= ABCI_LOG_INFO) {
        char why[160];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(why, sizeof(why), format, arguments);
        va_end(arguments);
        abci_log(ABCI_LOG_INFO, "comm", 0, "rendezvous: dropped a connection: %s", why);
    }
    connection->doomed = true;
}

/* A member is lost: the whole job must hear of it. */
static void lose_member(struct abci_service *service, struct connection *connection, const char *how)
{
    char text[160];
    snprintf(text, sizeof(text), "rank %d has died or left while the communicator was created (%s)", connection->rank, how);
    abci_store_fail(service->store, connection->rank, ABC_ERR_PEER, text);
    drop(connection, "%s", text);
}

/* The peer broke the protocol, closed, or cannot be served. */
static void give_up(struct abci_service *service, struct connection *connection, const char *how)
{
    if (connection->stage == MEMBER && !connection->doomed)
        lose_member(service, connection, how);
    else
        drop(connection, "%s", how);
}

/* Send what is queued as far as the socket takes it. */
static void flush_out(struct abci_service *service, struct connection *connection)
{
    while (connection->out != NULL && !connection->doomed) {
        ssize_t sent = send(connection->fd, connection->out + connection->out_sent, connection->out_length - connection->out_sent,
                            MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (sent < 0) {
            give_up(service, connection, strerror(errno));
            return;
        }
        connection->out_sent += (size_t)sent;
        if (connection->out_sent < connection->out_length)
            continue;
        abci_free(connection->out);
        connection->out = NULL;
        if (connection->stage == REFUSED)
            shutdown(connection->fd, SHUT_WR); /* and read on until the peer closes, so that no reset eats the refusal */
    }
}

/* Room for one frame to go out; NULL (and the connection is given up) without memory or if one is still on its way. */
static unsigned char *claim_out(struct abci_service *service, struct connection *connection, size_t bytes)
{
    if (connection->out != NULL) {
        give_up(service, connection, "it asked again before it took the answer");
        return NULL;
    }
    connection->out = abci_fault("service reply") ? NULL : abci_alloc(bytes);
    connection->out_sent = 0;
    if (connection->out == NULL)
        give_up(service, connection, "rank 0 has no memory for an answer");
    return connection->out;
}

static void refuse(struct abci_service *service, struct connection *connection, enum abci_refusal reason, const char *text)
{
    unsigned char *out = claim_out(service, connection, ABCI_FRAME_SMALL);
    if (out == NULL)
        return;
    ABCI_LOG(ABCI_LOG_INFO, "comm", 0, "rendezvous: refused a connection: %s", text);
    connection->stage = REFUSED;
    connection->out_length = abci_frame_build_reply(out, ABCI_FRAME_REFUSE, (int32_t)reason, text, strlen(text), NULL);
    flush_out(service, connection);
}

static void answer(struct abci_service *service, struct connection *connection, int status, const void *data, size_t length)
{
    connection->waiting = false;
    unsigned char *out = claim_out(service, connection, ABCI_FRAME_HEADER + 4 + length + ABCI_FRAME_TAG);
    if (out == NULL)
        return;
    connection->out_length = abci_frame_build_reply(out, ABCI_FRAME_REPLY, status, data, length, &connection->to_peer);
    flush_out(service, connection);
}

static void answer_text(struct abci_service *service, struct connection *connection, int status, const char *text)
{
    answer(service, connection, status, text, strlen(text));
}

/* Answer an open WAIT if the table, a failure or the time allows. `last`: the service ends. */
static void answer_wait(struct abci_service *service, struct connection *connection, bool last)
{
    char text[ABCI_FRAME_TEXT_MAX];
    size_t length;
    int status;
    if (abci_store_get(service->store, connection->wait_name, service->scratch, sizeof(service->scratch), &length)) {
        answer(service, connection, ABC_OK, service->scratch, length);
    } else if ((status = abci_store_failure(service->store, text, sizeof(text))) != ABC_OK) {
        answer_text(service, connection, status, text);
    } else if (last || abci_now() >= connection->wait_deadline) {
        abci_store_describe_timeout(service->store, connection->wait_name, text, sizeof(text));
        answer_text(service, connection, ABC_ERR_TIMEOUT, text);
    }
}

/* A hello that proves the key: let the rank in unless its place is taken. */
static void admit(struct abci_service *service, struct connection *connection, const struct abci_frame_hello *hello,
                  const struct abci_frame_session *session)
{
    char text[160];
    enum abci_presence presence = hello->rank > 0 && hello->rank < (uint32_t)service->nranks
                                      ? abci_store_presence(service->store, (int)hello->rank)
                                      : ABCI_ABSENT;
    if (presence == ABCI_LEFT || presence == ABCI_FAILED) {
        refuse(service, connection, ABCI_REFUSE_BUSY, "this rendezvous is ending");
        return;
    }
    if (hello->nranks != (uint32_t)service->nranks || hello->rank == 0 || hello->rank >= hello->nranks) {
        snprintf(text, sizeof(text), "rank 0 expects ranks 1 to %d of %d, not rank %u of %u", service->nranks - 1, service->nranks,
                 hello->rank, hello->nranks);
        refuse(service, connection, ABCI_REFUSE_RANK, text);
        return;
    }
    if (presence == ABCI_PRESENT) {
        snprintf(text, sizeof(text), "another process has already come as rank %u", hello->rank);
        refuse(service, connection, ABCI_REFUSE_TAKEN, text);
        return;
    }
    unsigned char *out = claim_out(service, connection, ABCI_FRAME_SMALL);
    if (out == NULL)
        return;
    connection->stage = MEMBER;
    connection->rank = (int)hello->rank;
    connection->from_peer = session->to_server;
    connection->to_peer = session->to_client;
    abci_store_mark(service->store, connection->rank, ABCI_PRESENT);
    connection->out_length = abci_frame_build(out, ABCI_FRAME_WELCOME, session->server_proof, ABCI_FRAME_PROOF, NULL);
    ABCI_LOG(ABCI_LOG_DEBUG, "comm", 0, "rendezvous: rank %d has come", connection->rank);
    flush_out(service, connection);
}

static void handle_stranger(struct abci_service *service, struct connection *connection, const struct abci_frame *frame)
{
    struct abci_frame_hello hello;
    struct abci_frame_session session;
    if (!abci_frame_read_hello(frame, &hello)) {
        drop(connection, "it did not begin with a hello");
        return;
    }
    if (memcmp(hello.job, service->job, sizeof(hello.job)) != 0) {
        refuse(service, connection, ABCI_REFUSE_JOB, "it belongs to another job: its job key is different");
        return;
    }
    abci_frame_session(service->key, connection->nonce, &hello, &session);
    if (abci_frame_same_proof(session.client_proof, hello.proof))
        admit(service, connection, &hello, &session);
    else
        drop(connection, "it named the job but could not prove the key");
    sodium_memzero(&session, sizeof(session));
}

static void handle_bye(struct abci_service *service, struct connection *connection, int status)
{
    connection->doomed = true;
    if (status == ABC_OK) {
        abci_store_mark(service->store, connection->rank, ABCI_LEFT);
        return;
    }
    char text[80];
    snprintf(text, sizeof(text), "rank %d gave up", connection->rank);
    abci_store_fail(service->store, connection->rank, status == ABC_ERR_TIMEOUT ? ABC_ERR_TIMEOUT : ABC_ERR_PEER, text);
}

static void handle_member(struct abci_service *service, struct connection *connection, const struct abci_frame *frame)
{
    struct abci_frame_request request;
    struct abci_frame_reply bye;
    size_t length;
    if (!abci_frame_verify(frame, connection->in, &connection->from_peer)) {
        give_up(service, connection, "a frame of it was forged or damaged");
    } else if (frame->type == ABCI_FRAME_BYE && abci_frame_read_reply(frame, &bye)) {
        handle_bye(service, connection, bye.status);
    } else if (connection->waiting || !abci_frame_read_request(frame, &request)) {
        give_up(service, connection, "it broke the protocol");
    } else if (frame->type == ABCI_FRAME_PUT) {
        int status = abci_store_put(service->store, request.name, request.value, request.length);
        answer_text(service, connection, status, status == ABC_OK ? "" : "rank 0 has no room for another value");
    } else if (frame->type == ABCI_FRAME_WAIT) {
        connection->waiting = true;
        connection->wait_deadline = abci_now() + request.milliseconds * 1e-3;
        memcpy(connection->wait_name, request.name, sizeof(request.name));
    } else if (abci_store_get(service->store, request.name, service->scratch, sizeof(service->scratch), &length)) {
        answer(service, connection, ABC_OK, service->scratch, length);
    } else {
        answer_text(service, connection, ABC_ERR_ARGUMENT, "there is no value of that name");
    }
}

/* Make the input buffer hold a member's whole frame. */
static bool grow_in(struct connection *connection, size_t total)
{
    if (total <= connection->in_capacity)
        return true;
    unsigned char *larger = abci_fault("service input") ? NULL : abci_alloc(total);
    if (larger == NULL)
        return false;
    memcpy(larger, connection->in, connection->in_length);
    if (connection->in != connection->small)
        abci_free(connection->in);
    connection->in = larger;
    connection->in_capacity = total;
    return true;
}

/* Work off the whole frames in the input buffer. */
static void handle_input(struct abci_service *service, struct connection *connection)
{
    while (!connection->doomed && connection->stage != REFUSED && connection->in_length > 0) {
        struct abci_frame frame;
        enum abci_frame_verdict verdict = abci_frame_parse(connection->in, connection->in_length, &frame);
        if (verdict == ABCI_FRAME_OTHER && connection->stage == STRANGER) {
            char text[80];
            snprintf(text, sizeof(text), "rank 0 speaks rendezvous version %d, not %d", ABCI_FRAME_VERSION, frame.version);
            refuse(service, connection, ABCI_REFUSE_VERSION, text);
            return;
        }
        if (verdict < 0) {
            give_up(service, connection, "it does not speak the protocol");
            return;
        }
        if (connection->stage == STRANGER && frame.total != 0 && frame.type != ABCI_FRAME_HELLO) {
            drop(connection, "it did not begin with a hello");
            return;
        }
        if (verdict == ABCI_FRAME_MORE) {
            if (!grow_in(connection, frame.total))
                give_up(service, connection, "rank 0 has no memory for a request");
            return;
        }
        if (connection->stage == STRANGER)
            handle_stranger(service, connection, &frame);
        else
            handle_member(service, connection, &frame);
        connection->in_length -= frame.total;
        memmove(connection->in, connection->in + frame.total, connection->in_length);
    }
    if (connection->stage == REFUSED)
        connection->in_length = 0; /* read on only to see the peer close */
}

static void read_in(struct abci_service *service, struct connection *connection)
{
    while (!connection->doomed) {
        ssize_t got =
            recv(connection->fd, connection->in + connection->in_length, connection->in_capacity - connection->in_length, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (got <= 0) {
            if (connection->stage == REFUSED)
                connection->doomed = true;
            else
                give_up(service, connection, got == 0 ? "its connection closed" : strerror(errno));
            return;
        }
        connection->in_length += (size_t)got;
        handle_input(service, connection);
    }
}

static void free_connection(struct connection *connection)
{
    abci_socket_close(connection->fd);
    abci_free(connection->out);
    if (connection->in != connection->small)
        abci_free(connection->in);
    sodium_memzero(connection, sizeof(*connection));
    abci_free(connection);
}

/* Make room by closing the stranger that has been here longest; members are never closed for room. */
static bool make_room(struct abci_service *service)
{
    int oldest = -1;
    for (int i = 0; i < service->count; i++) {
        if (service->connections[i]->stage != MEMBER &&
            (oldest < 0 || service->connections[i]->born < service->connections[oldest]->born))
            oldest = i;
    }
    if (oldest < 0)
        return false;
    drop(service->connections[oldest], "too many connections");
    free_connection(service->connections[oldest]);
    service->connections[oldest] = service->connections[--service->count];
    return true;
}

/* Greet one new connection with a nonce of its own. */
static void greet(struct abci_service *service, int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    struct connection *connection = abci_fault("service connection") ? NULL : abci_alloc(sizeof(*connection));
    if (connection == NULL || (service->count == service->limit && !make_room(service))) {
        abci_free(connection);
        close(fd);
        return;
    }
    abci_socket_register(fd);
    connection->fd = fd;
    connection->born = abci_now();
    connection->in = connection->small;
    connection->in_capacity = sizeof(connection->small);
    service->connections[service->count++] = connection;
    randombytes_buf(connection->nonce, sizeof(connection->nonce));
    unsigned char *out = claim_out(service, connection, ABCI_FRAME_SMALL);
    if (out == NULL)
        return;
    connection->out_length = abci_frame_build(out, ABCI_FRAME_CHALLENGE, connection->nonce, sizeof(connection->nonce), NULL);
    flush_out(service, connection);
}

static void accept_all(struct abci_service *service)
{
    for (int i = 0; i < 64; i++) { /* bounded, so that a flood of strangers cannot starve the members */
        int fd =
            abci_fault("accept") ? (errno = EMFILE, -1) : accept4(service->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            greet(service, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            ABCI_LOG(ABCI_LOG_WARN, "comm", 0, "rendezvous: cannot take a connection yet: %s", strerror(errno));
            make_room(service);
            service->accept_after = abci_now() + ACCEPT_PAUSE;
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

/* Close what is done for; answer what the table now allows. */
static void sweep(struct abci_service *service)
{
    double now = abci_now();
    for (int i = 0; i < service->count; i++) {
        struct connection *connection = service->connections[i];
        if (connection->waiting && !connection->doomed)
            answer_wait(service, connection, false);
        if (connection->stage != MEMBER && now >= connection->born + STRANGER_SECONDS)
            drop(connection, "no hello within %g s", STRANGER_SECONDS);
    }
    for (int i = service->count - 1; i >= 0; i--) {
        if (service->connections[i]->doomed) {
            free_connection(service->connections[i]);
            service->connections[i] = service->connections[--service->count];
        }
    }
}

/* The next moment at which something is due without an event. */
static double next_due(const struct abci_service *service, bool stopping)
{
    double due = abci_now() + 60;
    for (int i = 0; i < service->count; i++) {
        const struct connection *connection = service->connections[i];
        double own = connection->stage != MEMBER ? connection->born + STRANGER_SECONDS
                     : connection->waiting       ? connection->wait_deadline
                                                 : due;
        due = own < due ? own : due;
    }
    if (service->accept_after > 0 && service->accept_after < due)
        due = service->accept_after;
    return stopping && due > abci_now() + 0.05 ? abci_now() + 0.05 : due;
}

/* One round: sleep until something happens, then handle it. */
static void serve_once(struct abci_service *service, bool stopping)
{
    int count = service->count;
    bool accepting = abci_now() >= service->accept_after;
    if (accepting)
        service->accept_after = 0;
    service->polls[0] = (struct pollfd){.fd = service->event_fd, .events = POLLIN};
    service->polls[1] = (struct pollfd){.fd = accepting ? service->listen_fd : -1, .events = POLLIN};
    for (int i = 0; i < count; i++) {
        struct connection *connection = service->connections[i];
        service->polls[i + 2] =
            (struct pollfd){.fd = connection->fd, .events = (short)(POLLIN | (connection->out != NULL ? POLLOUT : 0))};
    }
    double left = next_due(service, stopping) - abci_now();
    if (poll(service->polls, (nfds_t)count + 2, left <= 0 ? 0 : (int)(left * 1000) + 1) > 0) {
        uint64_t ignored;
        if (service->polls[0].revents != 0 && read(service->event_fd, &ignored, sizeof(ignored)) < 0)
            ABCI_LOG(ABCI_LOG_DEBUG, "comm", 0, "rendezvous: empty wake-up");
        for (int i = 0; i < count; i++) {
            short events = service->polls[i + 2].revents;
            if (events & POLLOUT)
                flush_out(service, service->connections[i]);
            if (events & (POLLIN | POLLHUP | POLLERR))
                read_in(service, service->connections[i]);
        }
        if (service->polls[1].revents != 0)
            accept_all(service); /* last: a goodbye on an old connection comes before the same rank's next hello */
    }
    sweep(service);
}

/* Whether nobody needs the service any more. */
static bool finished(const struct abci_service *service)
{
    double now = abci_now(), since = service->stopping_since;
    int present = abci_store_count(service->store, ABCI_PRESENT), absent = abci_store_count(service->store, ABCI_ABSENT);
    if (present == 0)
        return absent == 0 || now >= since + LATECOMER_SECONDS || now >= service->deadline;
    return now >= service->deadline && now >= since + LAST_WORDS_SECONDS;
}

static void *serve(void *argument)
{
    struct abci_service *service = argument;
    for (;;) {
        bool stopping = atomic_load_explicit(&service->stopping, memory_order_acquire); /* pairs with abci_service_stop */
        if (stopping && finished(service))
            break;
        serve_once(service, stopping);
    }
    for (int i = 0; i < service->count; i++) {
        if (service->connections[i]->waiting && !service->connections[i]->doomed)
            answer_wait(service, service->connections[i], true);
        free_connection(service->connections[i]);
    }
    service->count = 0;
    return NULL;
}

static void free_service(struct abci_service *service)
{
    abci_socket_close(service->listen_fd);
    abci_socket_close(service->event_fd);
    abci_free(service->connections);
    abci_free(service->polls);
    sodium_memzero(service->own_key, sizeof(service->own_key));
    abci_free(service);
}

/* The thread takes no signals: they are the program's. */
static int start_thread(struct abci_service *service)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, THREAD_STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = abci_fault("service thread") ? EAGAIN : pthread_create(&service->thread, &attributes, serve, service);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error == 0)
        return ABC_OK;
    errno = error;
    return abci_error_errno(ABC_ERR_SYSTEM, "rank 0 cannot start the thread of the rendezvous");
}

int abci_service_start(struct abci_store *store, int nranks, int listen_fd, const unsigned char *key, double deadline,
                       struct abci_service **service)
{
    struct abci_service *fresh = abci_fault("service") ? NULL : abci_alloc(sizeof(*fresh));
    if (fresh == NULL) {
        close(listen_fd);
        return abci_error(ABC_ERR_MEMORY, "no memory for the rendezvous of %d ranks", nranks);
    }
    fresh->store = store;
    fresh->nranks = nranks;
    fresh->listen_fd = listen_fd;
    fresh->deadline = deadline;
    if (key != NULL) {
        memcpy(fresh->own_key, key, sizeof(fresh->own_key));
        fresh->key = fresh->own_key;
    }
    abci_frame_job(fresh->key, fresh->job);
    abci_socket_register(listen_fd);
    fresh->limit = nranks + SPARE_CONNECTIONS;
    fresh->connections = abci_alloc((size_t)fresh->limit * sizeof(struct connection *));
    fresh->polls = abci_alloc(((size_t)fresh->limit + 2) * sizeof(struct pollfd));
    fresh->event_fd = abci_fault("eventfd") ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int status;
    if (fresh->connections == NULL || fresh->polls == NULL)
        status = abci_error(ABC_ERR_MEMORY, "no memory for the rendezvous of %d ranks", nranks);
    else if (fresh->event_fd < 0)
        status = abci_error_errno(ABC_ERR_SYSTEM, "rank 0 cannot make an eventfd for the rendezvous");
    else
        status = start_thread(fresh);
    if (status != ABC_OK) {
        free_service(fresh);
        return status;
    }
    *service = fresh;
    return ABC_OK;
}

void abci_service_notify(struct abci_service *service)
{
    uint64_t one = 1;
    /* Fails only when the counter is full, and then the thread has a wake-up to come. */
    if (write(service->event_fd, &one, sizeof(one)) < 0)
        ABCI_LOG(ABCI_LOG_DEBUG, "comm", 0, "rendezvous: a wake-up was already due");
}

void abci_service_stop(struct abci_service *service)
{
    service->stopping_since = abci_now();
    atomic_store_explicit(&service->stopping, true, memory_order_release); /* read by serve() */
    abci_service_notify(service);
    pthread_join(service->thread, NULL);
    free_service(service);
}
