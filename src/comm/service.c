/*
 * service.c - rank 0's side of the rendezvous: a thread that accepts connections and lets talk.c speak on them. Second stage,
 * between the sockets of the other ranks (rendezvous.c in their processes) and store.c. The thread owns all connections; it sleeps
 * in poll and ends with abci_service_stop. Strangers cost one small buffer each for at most five seconds.
 */
#include "comm/service.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#define STRANGER_SECONDS 5.0   /* from accept to a good hello */
#define SPARE_CONNECTIONS 64   /* beyond one a rank */
#define ACCEPT_PAUSE 0.05      /* after accept failed for lack of descriptors or memory */
#define LATECOMER_SECONDS 1.0  /* when stopping although some ranks have never come: they may just be on their way */
#define LAST_WORDS_SECONDS 0.5 /* when stopping after the deadline: present ranks may just be about to ask */
#define THREAD_STACK ((size_t)256 << 10)

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
    abci_talk_drop(service->connections[oldest], "too many connections");
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
        abci_socket_close(fd);
        return;
    }
    connection->fd = fd;
    connection->born = abci_now();
    connection->in = connection->small;
    connection->in_capacity = sizeof(connection->small);
    service->connections[service->count++] = connection;
    abci_talk_greet(service, connection);
}

static void accept_all(struct abci_service *service)
{
    for (int i = 0; i < 64; i++) { /* bounded, so that a flood of strangers cannot starve the members */
        int fd = abci_fault("accept") ? (errno = EMFILE, -1) : abci_socket_accept(service->listen_fd);
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
            abci_talk_answer_wait(service, connection, false);
        if (connection->stage != MEMBER && now >= connection->born + STRANGER_SECONDS)
            abci_talk_drop(connection, "no hello within %g s", STRANGER_SECONDS);
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
    double due = abci_now() + 1; /* a wake-up that could not be written costs a second */
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
                abci_talk_flush(service, service->connections[i]);
            if (events & (POLLIN | POLLHUP | POLLERR))
                abci_talk_read(service, service->connections[i]);
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
            abci_talk_answer_wait(service, service->connections[i], true);
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
        abci_socket_close(listen_fd);
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
