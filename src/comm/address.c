/*
 * address.c - from "host:port" to sockets: parse, resolve, listen, connect, and keep the sockets out of forked children. First
 * stage of the rendezvous, below rendezvous.c (client) and service.c (rank 0's thread). Blocks up to the caller's deadline; only
 * while a communicator is created.
 */
#include "comm/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base.h"

#define BUSY_PORT_PATIENCE 1.0  /* seconds: the last job on the port may just be ending */
#define FIRST_ADDRESS_LIMIT 3.0 /* seconds for one of several addresses, so that a dead one does not eat a whole attempt */
#define GUARDED_DESCRIPTORS 65536

/* ---- sockets that a forked child closes ---- */

static pthread_once_t guard_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t guard_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char guard_bits[GUARDED_DESCRIPTORS / 8];
static int guard_top; /* one more than the highest descriptor ever registered */

static void guard_before_fork(void)
{
    pthread_mutex_lock(&guard_lock);
}

static void guard_in_parent(void)
{
    pthread_mutex_unlock(&guard_lock);
}

static void guard_in_child(void)
{
    for (int fd = 0; fd < guard_top; fd++) {
        if (guard_bits[fd / 8] & (1u << (fd % 8)))
            close(fd);
    }
    memset(guard_bits, 0, sizeof(guard_bits));
    guard_top = 0;
    pthread_mutex_unlock(&guard_lock);
}

static void guard_install(void)
{
    pthread_atfork(guard_before_fork, guard_in_parent, guard_in_child);
}

/* A descriptor is made and noted under the lock: a fork in between would leave the child a socket that nobody serves. */
static void guard_begin(void)
{
    pthread_once(&guard_once, guard_install);
    pthread_mutex_lock(&guard_lock);
}

static int guard_end(int fd)
{
    if (fd >= 0 && fd < GUARDED_DESCRIPTORS) {
        guard_bits[fd / 8] |= (unsigned char)(1u << (fd % 8));
        if (fd >= guard_top)
            guard_top = fd + 1;
    }
    pthread_mutex_unlock(&guard_lock);
    return fd;
}

int abci_socket_make(const struct addrinfo *one)
{
    guard_begin();
    int fd = guard_end(socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, one->ai_protocol));
    int on = 1;
    /* Also where it connects: a port that an ended connection went out from shall not keep a service from listening there. */
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    return fd;
}

int abci_socket_accept(int listen_fd)
{
    guard_begin();
    int fd = guard_end(accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd < 0 || abci_unix_same_user(fd))
        return fd;
    abci_socket_close(fd);
    errno = ECONNABORTED; /* the next one, please */
    return -1;
}

int abci_socket_copy(int fd)
{
    guard_begin();
    return guard_end(fcntl(fd, F_DUPFD_CLOEXEC, 3));
}

void abci_socket_close(int fd)
{
    if (fd < 0)
        return;
    int saved = errno;
    /* Under the lock: a fork in between must not see the number reused and still registered. */
    pthread_mutex_lock(&guard_lock);
    if (fd < GUARDED_DESCRIPTORS)
        guard_bits[fd / 8] &= (unsigned char)~(1u << (fd % 8));
    close(fd);
    pthread_mutex_unlock(&guard_lock);
    errno = saved;
}

/* ---- addresses ---- */

static int refuse_address(const char *text, const char *why)
{
    return abci_error(ABC_ERR_ADDRESS, "the rendezvous address \"%.255s\" %s", text, why);
}

int abci_address_parse(const char *text, struct abci_address *address)
{
    if (text == NULL || text[0] == '\0')
        return abci_error(ABC_ERR_ADDRESS, "no rendezvous address was given");
    if (abci_unix_is_address(text))
        return abci_unix_parse(text, address);
    const char *host = text, *host_end, *port;
    if (text[0] == '[') {
        host = text + 1;
        host_end = strchr(host, ']');
        if (host_end == NULL || host_end[1] != ':')
            return refuse_address(text, "opens a bracket but does not go on as [ipv6]:port");
        if (memchr(host, ':', (size_t)(host_end - host)) == NULL)
            return refuse_address(text, "has something else than an IPv6 address in brackets");
        port = host_end + 2;
    } else {
        host_end = strchr(text, ':');
        if (host_end == NULL)
            return refuse_address(text, "has no port");
        if (strchr(host_end + 1, ':') != NULL)
            return refuse_address(text, "has several colons: put an IPv6 address in brackets, [::1]:port");
        port = host_end + 1;
    }
    size_t length = (size_t)(host_end - host);
    if (length == 0)
        return refuse_address(text, "has no host");
    if (length >= sizeof(address->host))
        return refuse_address(text, "has a host name of more than 231 bytes");
    char *end;
    errno = 0;
    long number = strtol(port, &end, 10);
    if (port[0] < '0' || port[0] > '9' || *end != '\0' || errno != 0 || number < 1 || number > 65535)
        return refuse_address(text, "has a port that is not a number from 1 to 65535");
    memcpy(address->host, host, length);
    address->host[length] = '\0';
    snprintf(address->port, sizeof(address->port), "%ld", number);
    return ABC_OK;
}

int abci_address_resolve(const struct abci_address *address, bool passive, struct addrinfo **list)
{
    if (address->port[0] == '\0')
        return abci_unix_resolve(address, list);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
    int code = abci_fault("getaddrinfo") ? EAI_MEMORY : getaddrinfo(address->host, address->port, &hints, list);
    if (code == 0)
        return ABC_OK;
    if (code == EAI_MEMORY)
        return abci_error(ABC_ERR_MEMORY, "no memory to resolve host \"%s\"", address->host);
    return abci_error(ABC_ERR_ADDRESS, "host \"%s\" of the rendezvous address cannot be resolved: %s", address->host,
                      code == EAI_SYSTEM ? strerror(errno) : gai_strerror(code));
}

bool abci_address_is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24) == 127;
    if (address->sa_family != AF_INET6)
        return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

int abci_address_check_open(const struct abci_address *address, const struct addrinfo *list)
{
    for (; list != NULL; list = list->ai_next) {
        if (list->ai_family != AF_UNIX && !abci_address_is_loopback(list->ai_addr))
            return abci_error(ABC_ERR_AUTH,
                              "host \"%s\" can be reached by other machines and there is no job key; make one for all ranks: "
                              "head -c 32 /dev/urandom > key; chmod 600 key; export ABCOMM_KEY_FILE=$PWD/key",
                              address->host);
    }
    return ABC_OK;
}

/* Listen on one address; -1 with errno. */
static int listen_on(const struct addrinfo *one)
{
    if (abci_fault("listen socket")) {
        errno = EMFILE;
        return -1;
    }
    int fd = abci_socket_make(one);
    if (fd < 0)
        return -1;
    int on = 1;
    if (one->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)); /* exactly the address that was named */
    if (bind(fd, one->ai_addr, one->ai_addrlen) == 0 && listen(fd, 1024) == 0)
        return fd;
    abci_socket_close(fd);
    return -1;
}

int abci_address_listen(const struct abci_address *address, const struct addrinfo *list, double deadline, int *fd)
{
    double patience = abci_now() + BUSY_PORT_PATIENCE;
    if (patience > deadline)
        patience = deadline;
    for (;;) {
        bool busy = false;
        for (const struct addrinfo *one = list; one != NULL; one = one->ai_next) {
            *fd = listen_on(one);
            if (*fd >= 0)
                return ABC_OK;
            busy = busy || errno == EADDRINUSE;
        }
        if (busy && abci_now() < patience) {
            usleep(20000);
            continue;
        }
        if (busy && address->port[0] == '\0')
            return abci_error(ABC_ERR_ADDRESS, "unix:%s is taken: another rank 0 listens there (ss -lxp shows it)", address->host);
        if (busy)
            return abci_error(ABC_ERR_ADDRESS,
                              "port %s on %s is busy: another program or job listens there; choose another port for all ranks, or "
                              "end the other (ss -ltnp 'sport = :%s' shows it)",
                              address->port, address->host, address->port);
        if (errno == EADDRNOTAVAIL)
            return abci_error(ABC_ERR_ADDRESS, "%s is not an address of this machine, where rank 0 runs", address->host);
        if (errno == EACCES)
            return abci_error(ABC_ERR_ADDRESS, "port %s may not be used without privileges; choose one above 1023", address->port);
        return abci_error_errno(ABC_ERR_SYSTEM, "rank 0 cannot listen on %s port %s", address->host, address->port);
    }
}

int abci_socket_poll(int fd, short events, double deadline)
{
    struct pollfd one = {.fd = fd, .events = events};
    for (;;) {
        double left = deadline - abci_now();
        int milliseconds = left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1000) + 1;
        int ready = poll(&one, 1, milliseconds);
        if (ready > 0)
            return 1;
        if (ready < 0 && errno != EINTR)
            return -1;
        if (ready == 0 && abci_now() >= deadline)
            return 0;
    }
}

/* Connect to one address; -1 with errno. */
static int connect_to(const struct addrinfo *one, double deadline)
{
    if (abci_fault("connect socket")) {
        errno = EMFILE;
        return -1;
    }
    int fd = abci_socket_make(one);
    if (fd < 0)
        return -1;
    int on = 1, error = 0;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(fd, one->ai_addr, one->ai_addrlen) != 0)
        error = errno;
    if (error == EINPROGRESS) {
        socklen_t length = sizeof(error);
        int ready = abci_socket_poll(fd, POLLOUT, deadline);
        if (ready == 0)
            error = ETIMEDOUT;
        else if (ready < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
            error = errno;
    }
    if (error == 0) {
        /* A free port of the range for outgoing connections can end up connected to itself. */
        struct sockaddr_storage mine, theirs;
        socklen_t a = sizeof(mine), b = sizeof(theirs);
        if (getsockname(fd, (struct sockaddr *)&mine, &a) != 0 || getpeername(fd, (struct sockaddr *)&theirs, &b) != 0)
            error = ECONNREFUSED;
        else if (a == b && memcmp(&mine, &theirs, a) == 0) {
            struct linger at_once = {.l_onoff = 1}; /* else the port would be in use for a minute more */
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
            error = ECONNREFUSED;
        }
    }
    if (error == 0 && !abci_unix_same_user(fd))
        error = EPERM;
    if (error == 0)
        return fd;
    abci_socket_close(fd);
    errno = error;
    return -1;
}

int abci_address_connect(const struct addrinfo *list, double patience, double deadline)
{
    int error = ECONNREFUSED;
    for (; list != NULL; list = list->ai_next) {
        double limit = abci_now() + (list->ai_next != NULL && patience > FIRST_ADDRESS_LIMIT ? FIRST_ADDRESS_LIMIT : patience);
        int fd = connect_to(list, limit < deadline ? limit : deadline);
        if (fd >= 0)
            return fd;
        error = errno;
    }
    errno = error;
    return -1;
}
