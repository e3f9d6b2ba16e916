/*
 * service.h - the state of rank 0's service, shared by service.c (thread and connections) and talk.c (what is said on one
 * connection). Everything belongs to the service thread.
 */
#ifndef ABCI_SERVICE_H
#define ABCI_SERVICE_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "comm/rendezvous.h"

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

/* Mark a connection to be closed at the end of the round, with the reason in the log. */
void abci_talk_drop(struct connection *connection, const char *format, ...) ABCI_PRINTF(2, 3);
/* Send the challenge to a new connection. */
void abci_talk_greet(struct abci_service *service, struct connection *connection);
/* Send what is queued as far as the socket takes it. */
void abci_talk_flush(struct abci_service *service, struct connection *connection);
/* Read what is there and act on every whole frame. */
void abci_talk_read(struct abci_service *service, struct connection *connection);
/* Answer an open WAIT if the table, a failure or the time allows. `last`: the service ends. */
void abci_talk_answer_wait(struct abci_service *service, struct connection *connection, bool last);

#endif
