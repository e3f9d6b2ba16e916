/*
 * handshake.c - stage 4, at creation: every rank learns every rank's memfd and pidfd. Ranks send theirs to rank 0 over an abstract
 * Unix socket and get all back (SCM_RIGHTS), so a creation costs one connection a rank. The pidfd tells later whether the process
 * lives, whoever else (a forked child) holds its sockets. Blocks up to the deadline; no state stays behind.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "transport/shm.h"

#define LOOK_MS 50
#define BATCH 100 /* ranks whose two descriptors go with one message; the kernel allows 253 descriptors */

struct greeting {
    uint32_t rank;
    unsigned char token[32];
};

static socklen_t abstract_address(const char *name, struct sockaddr_un *a)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    size_t n = strnlen(name, 63);
    memcpy(a->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

int abci_handshake_listen(int *out, char name[64])
{
    unsigned char random[16];
    struct sockaddr_un a;
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return abci_error_errno(ABC_ERR_SYSTEM, "getrandom failed");
    int at = snprintf(name, 64, "abcomm-");
    for (size_t i = 0; i < sizeof random; i++)
        at += snprintf(name + at, 64 - (size_t)at, "%02x", random[i]);
    int fd = abci_fault("socket unix") ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return abci_error_errno(ABC_ERR_SYSTEM, "a Unix socket cannot be made");
    socklen_t length = abstract_address(name, &a);
    if (abci_fault("bind unix") || bind(fd, (struct sockaddr *)&a, length) != 0 || listen(fd, 1024) != 0) {
        int status = abci_error_errno(ABC_ERR_SYSTEM, "a Unix socket cannot listen");
        close(fd);
        return status;
    }
    *out = fd;
    return ABC_OK;
}

/* Wait until fd is ready or the deadline has passed. */
static int ready(int fd, short events, double deadline, const char *what)
{
    for (;;) {
        double left = deadline - abci_now();
        if (left <= 0)
            return abci_error(ABC_ERR_TIMEOUT, "handshake: %s did not happen in time", what);
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, left > 1 ? 1000 : (int)(left * 1000) + 1);
        if (n > 0)
            return ABC_OK;
        if (n < 0 && errno != EINTR)
            return abci_error_errno(ABC_ERR_SYSTEM, "poll failed");
    }
}

/*
 * The kernel counts descriptors that are sent and not yet received, for each user: not more than ulimit -n, and many ranks come
 * there. They are being received all the time, so wait a moment.
 */
static int let_others_receive(int to, double deadline)
{
    if (abci_now() >= deadline)
        return abci_error(ABC_ERR_TIMEOUT,
                          "handshake: too many descriptors are on their way, none could be sent to rank %d; raise ulimit -n", to);
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return ABC_OK;
}

/* Send bytes and descriptors in one message to the rank of the communicator whose connection fd is. */
static int send_fds(int fd, int to, const void *data, size_t bytes, const int *fds, int nfds, double deadline)
{
    char what[48];
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int) * 2 * BATCH)];
    } control;
    struct iovec v = {(void *)data, bytes};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (nfds > 0) {
        m.msg_control = control.space;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfds);
        memset(&control, 0, sizeof control);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)nfds);
    }
    for (;;) {
        ssize_t n = abci_fault("sendmsg") ? (errno = EIO, -1) : sendmsg(fd, &m, MSG_NOSIGNAL);
        if (n == (ssize_t)bytes)
            return ABC_OK;
        bool crowded = n < 0 && errno == ETOOMANYREFS;
        if (n >= 0 || (errno != EAGAIN && errno != EINTR && !crowded))
            return abci_error_errno(ABC_ERR_PEER, "rank %d went away during the handshake", to);
        snprintf(what, sizeof what, "sending descriptors to rank %d", to);
        int status = crowded ? let_others_receive(to, deadline) : ready(fd, POLLOUT, deadline, what);
        if (status != ABC_OK)
            return status;
    }
}

/* Receive exactly bytes and exactly nfds descriptors in one message. */
static int receive_fds(int fd, void *data, size_t bytes, int *fds, int nfds, double deadline, const char *what)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int) * 2 * BATCH)];
    } control;
    struct iovec v = {data, bytes};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    ssize_t n;
    for (;;) {
        int status = ready(fd, POLLIN, deadline, what);
        if (status != ABC_OK)
            return status;
        n = abci_fault("recvmsg") ? (errno = EIO, -1) : recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_WAITALL);
        if (n >= 0 || (errno != EAGAIN && errno != EINTR))
            break;
    }
    int got = 0;
    for (struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL; c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        int count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < count; i++) {
            int one;
            memcpy(&one, CMSG_DATA(c) + sizeof(int) * (size_t)i, sizeof one);
            if (got < nfds)
                fds[got++] = one;
            else
                close(one);
        }
    }
    if (n == (ssize_t)bytes && got == nfds)
        return ABC_OK;
    for (int i = 0; i < got; i++)
        close(fds[i]);
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        return abci_error(ABC_ERR_PEER, "handshake: %s: the other side went away", what);
    if (n < 0)
        return abci_error_errno(ABC_ERR_SYSTEM, "handshake: %s", what);
    if (m.msg_flags & MSG_CTRUNC && got < nfds)
        return abci_error(ABC_ERR_SYSTEM, "handshake: %s: too few descriptors; raise ulimit -n", what);
    return abci_error(ABC_ERR_PEER, "handshake: %s: a message was cut short", what);
}

/* "rank 1", "ranks 1, 5, 7": those that rank 0 still waits for. */
static void list_missing(const struct abci_passed *passed, int nranks, char *text, size_t capacity)
{
    size_t at = 0;
    int count = 0;
    for (int r = 1; r < nranks; r++)
        count += passed[r].memfd < 0;
    at = (size_t)snprintf(text, capacity, "rank%s", count > 1 ? "s" : "");
    for (int r = 1, n = 0; r < nranks && at < capacity; r++)
        if (passed[r].memfd < 0)
            at += (size_t)snprintf(text + at, capacity - at, "%s %d", n++ ? "," : "", r);
}

/* Rank 0: wait for the next connection. Who died on the way will not come, so the watch is asked now and then. */
static int await_arrival(int listen_fd, int nranks, const struct abci_passed *passed, const struct abci_watch *watch,
                         double deadline)
{
    char missing[160];
    for (;;) {
        struct pollfd p = {.fd = listen_fd, .events = POLLIN};
        int n = poll(&p, 1, LOOK_MS), status = ABC_OK;
        if (n > 0)
            return ABC_OK;
        if (n < 0 && errno != EINTR)
            return abci_error_errno(ABC_ERR_SYSTEM, "poll failed");
        if (watch)
            status = watch->look(watch->context);
        if (status != ABC_OK)
            return status;
        if (abci_now() < deadline)
            continue;
        list_missing(passed, nranks, missing, sizeof missing);
        return abci_error(ABC_ERR_TIMEOUT, "handshake: %s did not come in time", missing);
    }
}

/* Rank 0: take one connection and its greeting; a stranger is dropped. Returns the rank, 0 when dropped, negative on error. */
static int take_one(int listen_fd, int nranks, const unsigned char *token, struct abci_passed *passed,
                    const struct abci_watch *watch, int *connection, double deadline)
{
    struct greeting g;
    int fds[2];
    int status = await_arrival(listen_fd, nranks, passed, watch, deadline);
    if (status != ABC_OK)
        return status;
    int fd = abci_fault("accept unix") ? -1 : accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? 0 : abci_error_errno(ABC_ERR_SYSTEM, "accept failed");
    double soon = abci_now() + 5;
    status = receive_fds(fd, &g, sizeof g, fds, 2, soon < deadline ? soon : deadline, "a greeting");
    if (status != ABC_OK) {
        close(fd);
        return status == ABC_ERR_SYSTEM ? status : 0; /* an own lack of descriptors is no stranger's fault */
    }
    if (memcmp(g.token, token, sizeof g.token) != 0 || g.rank == 0 || g.rank >= (uint32_t)nranks || passed[g.rank].memfd >= 0) {
        ABCI_LOG(ABCI_LOG_INFO, "transport", 0, "dropped a stranger on the handshake socket");
        close(fds[0]);
        close(fds[1]);
        close(fd);
        return 0;
    }
    passed[g.rank] = (struct abci_passed){fds[0], fds[1]};
    *connection = fd;
    return (int)g.rank;
}

static int hand_out(int fd, int to, int nranks, const struct abci_passed *passed, double deadline)
{
    int fds[2 * BATCH], status = ABC_OK;
    for (int first = 0; first < nranks && status == ABC_OK; first += BATCH) {
        int n = nranks - first < BATCH ? nranks - first : BATCH;
        for (int i = 0; i < n; i++) {
            fds[2 * i] = passed[first + i].memfd;
            fds[2 * i + 1] = passed[first + i].pidfd;
        }
        uint32_t count = (uint32_t)n;
        status = send_fds(fd, to, &count, sizeof count, fds, 2 * n, deadline);
    }
    return status;
}

static int serve(int nranks, int listen_fd, const unsigned char *token, const struct abci_watch *watch, struct abci_passed *passed,
                 double deadline)
{
    int *connection = abci_alloc(sizeof(int) * (size_t)nranks), status = ABC_OK;
    if (!connection)
        return abci_error(ABC_ERR_MEMORY, "no memory for %d connections", nranks);
    for (int r = 0; r < nranks; r++)
        connection[r] = -1;
    for (int arrived = 1; arrived < nranks;) {
        int fd = -1, rank = take_one(listen_fd, nranks, token, passed, watch, &fd, deadline);
        if (rank < 0) {
            status = rank;
            break;
        }
        if (rank > 0) {
            connection[rank] = fd;
            arrived++;
        }
    }
    for (int r = 1; r < nranks; r++) {
        if (connection[r] >= 0 && status == ABC_OK)
            status = hand_out(connection[r], r, nranks, passed, deadline);
    }
    for (int r = 1; r < nranks; r++)
        if (connection[r] >= 0)
            close(connection[r]);
    abci_free(connection);
    return status;
}

static int join(int rank, int nranks, const char *name, const unsigned char *token, struct abci_passed *passed, double deadline)
{
    struct sockaddr_un a;
    struct greeting g = {.rank = (uint32_t)rank};
    memcpy(g.token, token, sizeof g.token);
    int fd = abci_fault("socket join") ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return abci_error_errno(ABC_ERR_SYSTEM, "a Unix socket cannot be made");
    socklen_t length = abstract_address(name, &a);
    int status = ABC_OK;
    if (abci_fault("connect unix") || connect(fd, (struct sockaddr *)&a, length) != 0)
        status = abci_error_errno(ABC_ERR_UNSUPPORTED,
                                  "rank 0 shares no Unix socket with this rank (another host or network namespace?); "
                                  "ranks on several hosts are not supported yet");
    int mine[2] = {passed[rank].memfd, passed[rank].pidfd};
    if (status == ABC_OK)
        status = send_fds(fd, 0, &g, sizeof g, mine, 2, deadline);
    for (int first = 0; first < nranks && status == ABC_OK; first += BATCH) {
        int fds[2 * BATCH], n = nranks - first < BATCH ? nranks - first : BATCH;
        uint32_t count;
        status = receive_fds(fd, &count, sizeof count, fds, 2 * n, deadline, "receiving the ranks' descriptors from rank 0");
        for (int i = 0; i < n && status == ABC_OK; i++) {
            if (first + i == rank) {
                close(fds[2 * i]);
                close(fds[2 * i + 1]);
            } else {
                passed[first + i] = (struct abci_passed){fds[2 * i], fds[2 * i + 1]};
            }
        }
    }
    close(fd);
    return status;
}

static void close_all(struct abci_passed *passed, int nranks)
{
    for (int r = 0; r < nranks; r++) {
        if (passed[r].memfd >= 0)
            close(passed[r].memfd);
        if (passed[r].pidfd >= 0)
            close(passed[r].pidfd);
        passed[r].memfd = passed[r].pidfd = -1;
    }
}

/*
 * A descriptor that becomes readable when this process ends. Where there is no pidfd (an emulator, valgrind), the reading end of a
 * pipe whose other end nobody closes before: then a forked child that lives on keeps its parent alive for peers, until the timeout.
 */
static int life_line(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int ends[2] = {-1, -1};
    int fd = abci_fault("pidfd_open") ? (errno = EMFILE, -1) : (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (fd >= 0 || errno != ENOSYS)
        return fd;
    abci_fork_guard(&lock);
    pthread_mutex_lock(&lock);
    if (ends[0] >= 0 || pipe2(ends, O_CLOEXEC) == 0)
        fd = fcntl(ends[0], F_DUPFD_CLOEXEC, 0);
    pthread_mutex_unlock(&lock);
    return fd;
}

int abci_handshake(int rank, int nranks, int listen_fd, const char *name, const unsigned char token[32], double timeout,
                   const struct abci_watch *watch, struct abci_passed *passed)
{
    double deadline = abci_now() + timeout;
    for (int r = 0; r < nranks; r++)
        passed[r].memfd = passed[r].pidfd = -1;
    struct abci_segment *own = abci_segment_self();
    if (!own || nranks == 1)
        return own ? ABC_OK : ABC_ERR_MEMORY;
    passed[rank].memfd = abci_fault("dup memfd") ? -1 : fcntl(abci_segment_fd(own), F_DUPFD_CLOEXEC, 0);
    passed[rank].pidfd = life_line();
    int status = ABC_OK;
    if (passed[rank].memfd < 0 || passed[rank].pidfd < 0)
        status = abci_error_errno(ABC_ERR_SYSTEM, "descriptors for the handshake cannot be made (Linux 5.3 or newer is needed)");
    if (status == ABC_OK)
        status = rank == 0 ? serve(nranks, listen_fd, token, watch, passed, deadline)
                           : join(rank, nranks, name, token, passed, deadline);
    if (status != ABC_OK)
        close_all(passed, nranks);
    return status;
}
