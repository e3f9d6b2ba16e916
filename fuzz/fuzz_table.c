/*
 * fuzz_table.c - what a launcher's table answers: the first byte says whether this is rank 0 or another, and PMI-1 or torch's
 * store; the rest is what comes over the socket, whatever is asked. No crash, no wait beyond the end of the answer, and what is
 * taken for rank 0's address is a text that ends. The file launch_agree.c is part of this one, so that each input meets a process
 * that has not asked.
 */
#include "comm/launch_agree.c" /* NOLINT(bugprone-suspicious-include) */

#include <pthread.h>
#include <stdlib.h>
#include <sys/un.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int MPI_Initialized(int *flag);

/* An MPI library that has opened PMI's table: then nothing is left for the end of the process. */
int MPI_Initialized(int *flag)
{
    *flag = 1;
    return 0;
}

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void check(struct abci_launch *launch)
{
    memset(&agreed, 0, sizeof agreed);
    agreed.listen_fd = -1;
    bool zero = launch->rank == 0;
    if (abci_launch_agree(launch, 2) != ABC_OK) {
        require(strlen(abc_last_error()) > 20);
        return;
    }
    require(launch->address[0] != 0 && memchr(launch->address, 0, sizeof launch->address) && launch->have_key);
    require(zero == (launch->listen_fd >= 0));
    abci_socket_close(launch->listen_fd);
}

static void try_pmi(struct abci_launch *launch, const uint8_t *data, size_t size)
{
    char number[16];
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return;
    bool sent = true;
    for (size_t at = 0, part; at < size && sent;
         at += part) { /* a line a message: the launcher does not answer before it is asked */
        const uint8_t *end = memchr(data + at, '\n', size - at);
        part = end ? (size_t)(end + 1 - (data + at)) : size - at;
        sent = send(ends[1], data + at, part, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)part;
    }
    if (sent && shutdown(ends[1], SHUT_WR) == 0) {
        snprintf(number, sizeof number, "%d", ends[0]);
        setenv("PMI_FD", number, 1);
        launch->table = ABCI_TABLE_PMI;
        check(launch);
    }
    close(ends[0]);
    close(ends[1]);
}

struct server {
    int fd;
    const uint8_t *data;
    size_t size;
};

/* Answer the one connection, then say no more; its end is that of the client. */
static void *serve(void *argument)
{
    struct server *s = argument;
    char drain[256];
    int fd = accept(s->fd, NULL, NULL);
    if (fd < 0)
        return NULL;
    if (s->size == 0 || send(fd, s->data, s->size, MSG_NOSIGNAL) > 0)
        shutdown(fd, SHUT_WR);
    while (recv(fd, drain, sizeof drain, 0) > 0)
        ;
    close(fd);
    return NULL;
}

static void try_torch(struct abci_launch *launch, const uint8_t *data, size_t size)
{
    struct server server = {socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), data, size};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    pthread_t thread;
    char port[16];
    snprintf(port, sizeof port, "@fz%05u", (unsigned)getpid() % 100000u);
    memcpy(at.sun_path + 1, port + 1, strlen(port) - 1);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(port));
    if (server.fd < 0 || bind(server.fd, (struct sockaddr *)&at, length) != 0 || listen(server.fd, 1) != 0 ||
        pthread_create(&thread, NULL, serve, &server) != 0) {
        close(server.fd);
        return;
    }
    setenv("MASTER_ADDR", "unix", 1);
    setenv("MASTER_PORT", port, 1);
    launch->rank = 0; /* another rank would call at the address that it is given */
    launch->table = ABCI_TABLE_TORCH;
    check(launch);
    shutdown(server.fd, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(server.fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct abci_launch launch = {.rank = data[0] & 1, .nranks = 2, .listen_fd = -1, .local = true};
    if (data[0] & 2)
        try_torch(&launch, data + 1, size - 1);
    else
        try_pmi(&launch, data + 1, size - 1);
    return 0;
}
