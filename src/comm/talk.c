/*
 * talk.c - what rank 0's service says and hears on one connection: the hello of a stranger, the requests of a member. Between the
 * frames (frames.c) and the table (store.c); service.c owns the thread that runs it and the connections. Never blocks.
 */
#include "comm/service.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <sodium.h>

/* Give a connection up, with the reason in the log. */
void abci_talk_drop(struct connection *connection, const char *format, ...)
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
    abci_talk_drop(connection, "%s", text);
}

/* The peer broke the protocol, closed, or cannot be served. */
static void give_up(struct abci_service *service, struct connection *connection, const char *how)
{
    if (connection->stage == MEMBER && !connection->doomed)
        lose_member(service, connection, how);
    else
        abci_talk_drop(connection, "%s", how);
}

/* Send what is queued as far as the socket takes it. */
void abci_talk_flush(struct abci_service *service, struct connection *connection)
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
    abci_talk_flush(service, connection);
}

static void answer(struct abci_service *service, struct connection *connection, int status, const void *data, size_t length)
{
    connection->waiting = false;
    unsigned char *out = claim_out(service, connection, ABCI_FRAME_HEADER + 4 + length + ABCI_FRAME_TAG);
    if (out == NULL)
        return;
    connection->out_length = abci_frame_build_reply(out, ABCI_FRAME_REPLY, status, data, length, &connection->to_peer);
    abci_talk_flush(service, connection);
}

static void answer_text(struct abci_service *service, struct connection *connection, int status, const char *text)
{
    answer(service, connection, status, text, strlen(text));
}

/* Answer an open WAIT if the table, a failure or the time allows. `last`: the service ends. */
void abci_talk_answer_wait(struct abci_service *service, struct connection *connection, bool last)
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

/* Read what a rank has said last on the connection it holds: its goodbye may lie there when its next hello is already heard. */
static void hear_out(struct abci_service *service, uint32_t rank)
{
    for (int i = 0; i < service->count; i++) {
        if (service->connections[i]->stage == MEMBER && (uint32_t)service->connections[i]->rank == rank)
            abci_talk_read(service, service->connections[i]);
    }
}

/* A hello that proves the key: let the rank in unless its place is taken. */
static void admit(struct abci_service *service, struct connection *connection, const struct abci_frame_hello *hello,
                  const struct abci_frame_session *session)
{
    char text[160];
    hear_out(service, hello->rank);
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
    abci_talk_flush(service, connection);
}

static void handle_stranger(struct abci_service *service, struct connection *connection, const struct abci_frame *frame)
{
    struct abci_frame_hello hello;
    struct abci_frame_session session;
    if (!abci_frame_read_hello(frame, &hello)) {
        abci_talk_drop(connection, "it did not begin with a hello");
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
        abci_talk_drop(connection, "it named the job but could not prove the key");
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
            abci_talk_drop(connection, "it did not begin with a hello");
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

void abci_talk_read(struct abci_service *service, struct connection *connection)
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

void abci_talk_greet(struct abci_service *service, struct connection *connection)
{
    randombytes_buf(connection->nonce, sizeof(connection->nonce));
    unsigned char *out = claim_out(service, connection, ABCI_FRAME_SMALL);
    if (out == NULL)
        return;
    connection->out_length = abci_frame_build(out, ABCI_FRAME_CHALLENGE, connection->nonce, sizeof(connection->nonce), NULL);
    abci_talk_flush(service, connection);
}
