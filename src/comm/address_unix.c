/*
 * address_unix.c - rendezvous addresses "unix:@name": a name that only programs of this machine (of this network namespace) see.
 * The kernel tells who is at the other end, and another user is refused, so that no job key is needed. Beside address.c, which
 * calls it; only while a communicator is created.
 */
#include "comm/rendezvous.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/base.h"

#define PREFIX "unix:"

struct whole {
    struct addrinfo info;
    struct sockaddr_un address;
};

bool abci_unix_is_address(const char *text)
{
    return strncmp(text, PREFIX, strlen(PREFIX)) == 0;
}

int abci_unix_parse(const char *text, struct abci_address *address)
{
    const char *name = text + strlen(PREFIX);
    size_t length = strlen(name);
    if (name[0] != '@' || length < 2 || length >= sizeof(((struct whole *)0)->address.sun_path))
        return abci_error(ABC_ERR_ADDRESS,
                          "the rendezvous address \"%.120s\" must be unix:@name with a name of 1 to %zu bytes, or host:port", text,
                          sizeof(((struct whole *)0)->address.sun_path) - 2);
    memcpy(address->host, name, length + 1);
    address->port[0] = '\0';
    return ABC_OK;
}

int abci_unix_resolve(const struct abci_address *address, struct addrinfo **list)
{
    struct whole *one = abci_fault("unix address") ? NULL : abci_alloc(sizeof(*one));
    if (one == NULL)
        return abci_error(ABC_ERR_MEMORY, "no memory for the address unix:%s", address->host);
    size_t length = strlen(address->host);
    one->address.sun_family = AF_UNIX;
    memcpy(one->address.sun_path + 1, address->host + 1, length - 1); /* begins with a zero byte: no file */
    one->info = (struct addrinfo){.ai_family = AF_UNIX,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_addr = (struct sockaddr *)&one->address,
                                  .ai_addrlen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)};
    *list = &one->info;
    return ABC_OK;
}

void abci_address_free(struct addrinfo *list)
{
    if (list != NULL && list->ai_family == AF_UNIX)
        abci_free(list);
    else if (list != NULL)
        freeaddrinfo(list);
}

bool abci_unix_same_user(int fd)
{
    struct ucred peer;
    socklen_t length = sizeof(peer);
    int domain = AF_UNSPEC;
    socklen_t size = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX)
        return true; /* the job key decides */
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}
