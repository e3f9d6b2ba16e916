/*
 * frames.h - the wire format of the rendezvous: what a frame is, how it is parsed, how two ends prove the job key to each other.
 * Pure functions over bytes, no input or output, so that they can be fuzzed. Used by talk.c (server) and rendezvous.c (client).
 *
 * A frame is a 12-byte header (magic, version, type, two zero bytes, body length), the body, and a 16-byte tag. Numbers are
 * little-endian. The tag is a keyed hash over a per-direction counter, header and body; it is zero until the two ends have
 * proved the key to each other:
 *     server: CHALLENGE   client: HELLO (with its proof)   server: WELCOME (with its proof) or REFUSE
 * After that the client sends one request (PUT, WAIT, GET), the server answers each with one REPLY, and BYE ends it all.
 */
#ifndef ABCI_FRAMES_H
#define ABCI_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/exchange.h"

#define ABCI_FRAME_VERSION 1
#define ABCI_FRAME_HEADER 12
#define ABCI_FRAME_TAG 16
#define ABCI_FRAME_NONCE 32
#define ABCI_FRAME_PROOF 32
#define ABCI_FRAME_JOB 16
#define ABCI_FRAME_NAME_MAX 256 /* bytes of a key of the table, without the end mark */
#define ABCI_FRAME_TEXT_MAX 480
#define ABCI_FRAME_HELLO_BODY (ABCI_FRAME_JOB + ABCI_FRAME_NONCE + 8 + ABCI_FRAME_PROOF)
#define ABCI_FRAME_BODY_MAX (8 + ABCI_FRAME_NAME_MAX + ABCI_VALUE_MAX)
#define ABCI_FRAME_MAX (ABCI_FRAME_HEADER + ABCI_FRAME_BODY_MAX + ABCI_FRAME_TAG)
/* The largest frame that either end takes before the other has proved the key. */
#define ABCI_FRAME_SMALL (ABCI_FRAME_HEADER + 8 + ABCI_FRAME_TEXT_MAX + ABCI_FRAME_TAG)

enum abci_frame_type {
    ABCI_FRAME_CHALLENGE = 1, /* server nonce                                       */
    ABCI_FRAME_HELLO,         /* job, client nonce, rank, nranks, proof             */
    ABCI_FRAME_WELCOME,       /* proof                                              */
    ABCI_FRAME_REFUSE,        /* reason (4), text                                   */
    ABCI_FRAME_PUT,           /* name length (4), zero (4), name, value             */
    ABCI_FRAME_WAIT,          /* name length (4), milliseconds (4), name            */
    ABCI_FRAME_GET,           /* name length (4), zero (4), name                    */
    ABCI_FRAME_REPLY,         /* status (4), value or, if status < 0, a text        */
    ABCI_FRAME_BYE,           /* status of the client's last request (4)            */
    ABCI_FRAME_TYPE_END
};

/* Why a server refuses. BUSY may pass at once, so the client comes back; the others may pass when an old service ends. */
enum abci_refusal { ABCI_REFUSE_BUSY = 1, ABCI_REFUSE_JOB, ABCI_REFUSE_VERSION, ABCI_REFUSE_RANK, ABCI_REFUSE_TAKEN };

enum abci_frame_verdict {
    ABCI_FRAME_OK = 0,
    ABCI_FRAME_MORE = 1,       /* not complete; frame.total is set once the header is there */
    ABCI_FRAME_ALIEN = -1,     /* not our protocol */
    ABCI_FRAME_OTHER = -2,     /* our protocol in another version */
    ABCI_FRAME_MALFORMED = -3, /* a length or type out of bounds */
};

/* A parsed frame; pointers lead into the parsed bytes. */
struct abci_frame {
    enum abci_frame_type type;
    int version;
    const unsigned char *body;
    size_t length;
    const unsigned char *tag;
    size_t total; /* bytes of the whole frame */
};

struct abci_frame_hello {
    unsigned char job[ABCI_FRAME_JOB];
    unsigned char nonce[ABCI_FRAME_NONCE];
    uint32_t rank, nranks;
    unsigned char proof[ABCI_FRAME_PROOF];
};

struct abci_frame_request {
    char name[ABCI_FRAME_NAME_MAX + 1];
    uint32_t milliseconds;
    const unsigned char *value;
    size_t length;
};

struct abci_frame_reply {
    int32_t status; /* also the reason of a REFUSE and the status of a BYE */
    const unsigned char *data;
    size_t length;
};

/* One direction of a connection whose ends have proved the key. */
struct abci_frame_channel {
    unsigned char key[32];
    uint64_t counter;
};

/* What both ends derive from the job key and the two nonces. */
struct abci_frame_session {
    unsigned char client_proof[ABCI_FRAME_PROOF], server_proof[ABCI_FRAME_PROOF];
    struct abci_frame_channel to_server, to_client;
};

/* Look at the first frame in bytes. Never reads beyond length. */
enum abci_frame_verdict abci_frame_parse(const unsigned char *bytes, size_t length, struct abci_frame *frame);
/* Take a body apart; false if it does not fit its type. */
bool abci_frame_read_hello(const struct abci_frame *frame, struct abci_frame_hello *hello);
bool abci_frame_read_request(const struct abci_frame *frame, struct abci_frame_request *request);
bool abci_frame_read_reply(const struct abci_frame *frame, struct abci_frame_reply *reply);

/*
 * Build frames into out, which the caller has made large enough (ABCI_FRAME_SMALL; for PUT and REPLY ABCI_FRAME_HEADER + 8 + name +
 * value + ABCI_FRAME_TAG); return the bytes of the frame. channel NULL: the tag stays zero.
 */
size_t abci_frame_build(unsigned char *out, enum abci_frame_type type, const void *body, size_t length,
                        struct abci_frame_channel *channel);
size_t abci_frame_build_hello(unsigned char *out, const struct abci_frame_hello *hello);
size_t abci_frame_build_request(unsigned char *out, enum abci_frame_type type, const char *name, uint32_t milliseconds,
                                const void *value, size_t length, struct abci_frame_channel *channel);
size_t abci_frame_build_reply(unsigned char *out, enum abci_frame_type type, int32_t status, const void *data, size_t length,
                              struct abci_frame_channel *channel);

/* Check a frame's tag and step the counter; false: the frame is forged, replayed or damaged. */
bool abci_frame_verify(const struct abci_frame *frame, const unsigned char *bytes, struct abci_frame_channel *channel);
/* The name of the job under this key: tells jobs apart and gives nothing of the key away. key NULL: the job without a key. */
void abci_frame_job(const unsigned char *key, unsigned char job[ABCI_FRAME_JOB]);
/* Proofs and channel keys of one connection. hello.proof is not used. key NULL: anybody can compute them. */
void abci_frame_session(const unsigned char *key, const unsigned char server_nonce[ABCI_FRAME_NONCE],
                        const struct abci_frame_hello *hello, struct abci_frame_session *session);
bool abci_frame_same_proof(const unsigned char *a, const unsigned char *b);

#endif
