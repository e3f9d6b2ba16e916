/*
 * rendezvous.h - the pieces of the TCP rendezvous, shared only by address.c, store.c, service.c, talk.c and rendezvous.c.
 */
#ifndef ABCI_RENDEZVOUS_H
#define ABCI_RENDEZVOUS_H

#include <netdb.h>

#include "comm/exchange.h"
#include "comm/frames.h"

/* ---- address.c: host and port to sockets ---- */

struct abci_address {
    char host[232]; /* "@name" of a Unix address */
    char port[8];   /* "" of a Unix address */
};
int abci_address_parse(const char *text, struct abci_address *address);
/* Every socket address of it, in the resolver's order. `passive`: to listen on. */
int abci_address_resolve(const struct abci_address *address, bool passive, struct addrinfo **list);
void abci_address_free(struct addrinfo *list);
bool abci_address_is_loopback(const struct sockaddr *address);
/* Without a key only loopback will do: ABC_ERR_AUTH with the remedy. */
int abci_address_check_open(const struct abci_address *address, const struct addrinfo *list);
/* Listen on the first address of the list that works. A busy port is tried again for a moment. */
int abci_address_listen(const struct abci_address *address, const struct addrinfo *list, double deadline, int *fd);
/* One round over the list, `patience` seconds an address: a connected, non-blocking socket, or -1 with errno (ETIMEDOUT). */
int abci_address_connect(const struct addrinfo *list, double patience, double deadline);
/* Wait for events on one socket until the deadline; 1 ready, 0 time is over, -1 errno. */
int abci_socket_poll(int fd, short events, double deadline);
/*
 * Sockets that a forked child must not keep open, because its parent would seem alive to peers: what these make is closed in the
 * child of fork(). -1 with errno. abci_socket_close keeps errno.
 */
int abci_socket_make(const struct addrinfo *one);
int abci_socket_accept(int listen_fd);
int abci_socket_copy(int fd);
void abci_socket_close(int fd);

/* ---- address_unix.c: "unix:@name" ---- */

bool abci_unix_is_address(const char *text);
int abci_unix_parse(const char *text, struct abci_address *address);
int abci_unix_resolve(const struct abci_address *address, struct addrinfo **list);
/* Is the peer of a Unix socket a program of this user? True for any other socket. */
bool abci_unix_same_user(int fd);

/* ---- store.c: the table and who is there; every function is thread-safe ---- */

enum abci_presence { ABCI_ABSENT, ABCI_PRESENT, ABCI_LEFT, ABCI_FAILED };
struct abci_store;
struct abci_store *abci_store_create(int nranks);
void abci_store_destroy(struct abci_store *store);
/* ABC_OK, ABC_ERR_MEMORY or ABC_ERR_ARGUMENT (too many or too large); records no text. */
int abci_store_put(struct abci_store *store, const char *name, const void *value, size_t length);
/* Copy up to capacity bytes; false if there is no such name. */
bool abci_store_get(struct abci_store *store, const char *name, void *value, size_t capacity, size_t *length);
/* Block until the name exists (ABC_OK), a rank has failed or the deadline is over; `text` then says why. */
int abci_store_wait(struct abci_store *store, const char *name, double deadline, char *text, size_t capacity);
void abci_store_mark(struct abci_store *store, int rank, enum abci_presence presence);
enum abci_presence abci_store_presence(struct abci_store *store, int rank);
/* Number of ranks in that state; rank 0 is always present and not counted. */
int abci_store_count(struct abci_store *store, enum abci_presence presence);
/* Mark a rank failed; the first failure is what every wait reports. */
void abci_store_fail(struct abci_store *store, int rank, int status, const char *text);
/* The first failure's status and text, or ABC_OK. */
int abci_store_failure(struct abci_store *store, char *text, size_t capacity);
/* Text of a wait that ran out of time: what was waited for and which ranks have not come. */
void abci_store_describe_timeout(struct abci_store *store, const char *name, char *text, size_t capacity);

/* ---- service.c: rank 0's thread ---- */

struct abci_service;
/* Takes over listen_fd, also when it fails. key NULL: no key. */
int abci_service_start(struct abci_store *store, int nranks, int listen_fd, const unsigned char *key, double deadline,
                       struct abci_service **service);
/* Tell the thread that the table has changed. */
void abci_service_notify(struct abci_service *service);
/* Serve until all ranks have left, or, if some will not come, for a moment more; then end the thread and free. */
void abci_service_stop(struct abci_service *service);

#endif
