/*
 * frames.c - parse, build and authenticate the frames of the rendezvous. Pure functions over bytes: no input or output, no
 * allocation, any thread. Between the sockets (talk.c, rendezvous.c) and libsodium. The parser is what strangers on the port
 * reach first, so it checks every length before it uses it; fuzz/fuzz_frames.c feeds it.
 */
#include "comm/frames.h"

#include <string.h>

#include <sodium.h>

static const unsigned char frame_magic[4] = {'A', 'B', 'C', 'R'};

/* Smallest and largest body of each type. */
static const struct {
    uint32_t low, high;
} body_bounds[ABCI_FRAME_TYPE_END] = {
    [ABCI_FRAME_CHALLENGE] = {ABCI_FRAME_NONCE, ABCI_FRAME_NONCE},
    [ABCI_FRAME_HELLO] = {ABCI_FRAME_HELLO_BODY, ABCI_FRAME_HELLO_BODY},
    [ABCI_FRAME_WELCOME] = {ABCI_FRAME_PROOF, ABCI_FRAME_PROOF},
    [ABCI_FRAME_REFUSE] = {4, 4 + ABCI_FRAME_TEXT_MAX},
    [ABCI_FRAME_PUT] = {9, 8 + ABCI_FRAME_NAME_MAX + ABCI_VALUE_MAX},
    [ABCI_FRAME_WAIT] = {9, 8 + ABCI_FRAME_NAME_MAX},
    [ABCI_FRAME_GET] = {9, 8 + ABCI_FRAME_NAME_MAX},
    [ABCI_FRAME_REPLY] = {4, 4 + ABCI_VALUE_MAX},
    [ABCI_FRAME_BYE] = {4, 4},
};

static uint32_t load32(const unsigned char *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static void store32(unsigned char *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (unsigned char)(value >> (8 * i));
}

enum abci_frame_verdict abci_frame_parse(const unsigned char *bytes, size_t length, struct abci_frame *frame)
{
    memset(frame, 0, sizeof(*frame));
    /* A stranger is told by its first wrong byte, so that it need not send a whole header. */
    size_t seen = length < sizeof(frame_magic) ? length : sizeof(frame_magic);
    if (seen > 0 && memcmp(bytes, frame_magic, seen) != 0)
        return ABCI_FRAME_ALIEN;
    if (length < 5)
        return ABCI_FRAME_MORE;
    frame->version = bytes[4];
    if (frame->version != ABCI_FRAME_VERSION)
        return ABCI_FRAME_OTHER;
    if (length < ABCI_FRAME_HEADER)
        return ABCI_FRAME_MORE;
    unsigned type = bytes[5];
    uint32_t body = load32(bytes + 8);
    if (type == 0 || type >= ABCI_FRAME_TYPE_END || bytes[6] != 0 || bytes[7] != 0)
        return ABCI_FRAME_MALFORMED;
    if (body < body_bounds[type].low || body > body_bounds[type].high)
        return ABCI_FRAME_MALFORMED;
    frame->type = (enum abci_frame_type)type;
    frame->length = body;
    frame->total = ABCI_FRAME_HEADER + (size_t)body + ABCI_FRAME_TAG;
    if (length < frame->total)
        return ABCI_FRAME_MORE;
    frame->body = bytes + ABCI_FRAME_HEADER;
    frame->tag = frame->body + body;
    return ABCI_FRAME_OK;
}

bool abci_frame_read_hello(const struct abci_frame *frame, struct abci_frame_hello *hello)
{
    if (frame->type != ABCI_FRAME_HELLO || frame->length != ABCI_FRAME_HELLO_BODY)
        return false;
    const unsigned char *at = frame->body;
    memcpy(hello->job, at, ABCI_FRAME_JOB);
    at += ABCI_FRAME_JOB;
    memcpy(hello->nonce, at, ABCI_FRAME_NONCE);
    at += ABCI_FRAME_NONCE;
    hello->rank = load32(at);
    hello->nranks = load32(at + 4);
    memcpy(hello->proof, at + 8, ABCI_FRAME_PROOF);
    return true;
}

bool abci_frame_read_request(const struct abci_frame *frame, struct abci_frame_request *request)
{
    if (frame->type != ABCI_FRAME_PUT && frame->type != ABCI_FRAME_WAIT && frame->type != ABCI_FRAME_GET)
        return false;
    uint32_t name = load32(frame->body);
    if (name == 0 || name > ABCI_FRAME_NAME_MAX || name > frame->length - 8)
        return false;
    size_t rest = frame->length - 8 - name;
    if (frame->type != ABCI_FRAME_PUT ? rest != 0 : rest > ABCI_VALUE_MAX)
        return false;
    if (memchr(frame->body + 8, 0, name) != NULL)
        return false; /* a name with a zero inside would be another name as a string */
    memcpy(request->name, frame->body + 8, name);
    request->name[name] = '\0';
    request->milliseconds = load32(frame->body + 4);
    request->value = frame->body + 8 + name;
    request->length = rest;
    return true;
}

bool abci_frame_read_reply(const struct abci_frame *frame, struct abci_frame_reply *reply)
{
    if (frame->type != ABCI_FRAME_REPLY && frame->type != ABCI_FRAME_REFUSE && frame->type != ABCI_FRAME_BYE)
        return false;
    reply->status = (int32_t)load32(frame->body);
    reply->data = frame->body + 4;
    reply->length = frame->length - 4;
    return true;
}

/* The tag of a frame: a keyed hash over counter, header and body. */
static void compute_tag(const struct abci_frame_channel *channel, const unsigned char *bytes, size_t length,
                        unsigned char tag[ABCI_FRAME_TAG])
{
    unsigned char counter[8];
    for (int i = 0; i < 8; i++)
        counter[i] = (unsigned char)(channel->counter >> (8 * i));
    crypto_generichash_state state;
    crypto_generichash_init(&state, channel->key, sizeof(channel->key), ABCI_FRAME_TAG);
    crypto_generichash_update(&state, counter, sizeof(counter));
    crypto_generichash_update(&state, bytes, length);
    crypto_generichash_final(&state, tag, ABCI_FRAME_TAG);
}

/* Header before and tag behind a body that already lies in its place. */
static size_t finish_frame(unsigned char *out, enum abci_frame_type type, size_t length, struct abci_frame_channel *channel)
{
    memcpy(out, frame_magic, sizeof(frame_magic));
    out[4] = ABCI_FRAME_VERSION;
    out[5] = (unsigned char)type;
    out[6] = out[7] = 0;
    store32(out + 8, (uint32_t)length);
    unsigned char *tag = out + ABCI_FRAME_HEADER + length;
    if (channel != NULL) {
        compute_tag(channel, out, ABCI_FRAME_HEADER + length, tag);
        channel->counter++;
    } else {
        memset(tag, 0, ABCI_FRAME_TAG);
    }
    return ABCI_FRAME_HEADER + length + ABCI_FRAME_TAG;
}

size_t abci_frame_build(unsigned char *out, enum abci_frame_type type, const void *body, size_t length,
                        struct abci_frame_channel *channel)
{
    if (length > 0)
        memcpy(out + ABCI_FRAME_HEADER, body, length);
    return finish_frame(out, type, length, channel);
}

size_t abci_frame_build_hello(unsigned char *out, const struct abci_frame_hello *hello)
{
    unsigned char *at = out + ABCI_FRAME_HEADER;
    memcpy(at, hello->job, ABCI_FRAME_JOB);
    at += ABCI_FRAME_JOB;
    memcpy(at, hello->nonce, ABCI_FRAME_NONCE);
    at += ABCI_FRAME_NONCE;
    store32(at, hello->rank);
    store32(at + 4, hello->nranks);
    memcpy(at + 8, hello->proof, ABCI_FRAME_PROOF);
    return finish_frame(out, ABCI_FRAME_HELLO, ABCI_FRAME_HELLO_BODY, NULL);
}

size_t abci_frame_build_request(unsigned char *out, enum abci_frame_type type, const char *name, uint32_t milliseconds,
                                const void *value, size_t length, struct abci_frame_channel *channel)
{
    size_t name_length = strlen(name);
    unsigned char *body = out + ABCI_FRAME_HEADER;
    store32(body, (uint32_t)name_length);
    store32(body + 4, milliseconds);
    memcpy(body + 8, name, name_length);
    if (length > 0)
        memcpy(body + 8 + name_length, value, length);
    return finish_frame(out, type, 8 + name_length + length, channel);
}

size_t abci_frame_build_reply(unsigned char *out, enum abci_frame_type type, int32_t status, const void *data, size_t length,
                              struct abci_frame_channel *channel)
{
    store32(out + ABCI_FRAME_HEADER, (uint32_t)status);
    if (length > 0)
        memcpy(out + ABCI_FRAME_HEADER + 4, data, length);
    return finish_frame(out, type, 4 + length, channel);
}

bool abci_frame_verify(const struct abci_frame *frame, const unsigned char *bytes, struct abci_frame_channel *channel)
{
    unsigned char expected[ABCI_FRAME_TAG];
    compute_tag(channel, bytes, ABCI_FRAME_HEADER + frame->length, expected);
    if (sodium_memcmp(expected, frame->tag, ABCI_FRAME_TAG) != 0)
        return false;
    channel->counter++;
    return true;
}

/* One value out of the job key, told apart from the others by its purpose. */
static void derive(const unsigned char *key, const char *purpose, const unsigned char *data, size_t length, unsigned char *out,
                   size_t out_length)
{
    static const unsigned char no_key[ABCI_KEY_BYTES];
    crypto_generichash_state state;
    crypto_generichash_init(&state, key != NULL ? key : no_key, ABCI_KEY_BYTES, out_length);
    /* The end mark of the purpose goes in too: no purpose is the beginning of another. */
    crypto_generichash_update(&state, (const unsigned char *)purpose, strlen(purpose) + 1);
    if (length > 0)
        crypto_generichash_update(&state, data, length);
    crypto_generichash_final(&state, out, out_length);
}

void abci_frame_job(const unsigned char *key, unsigned char job[ABCI_FRAME_JOB])
{
    derive(key, "abcomm rendezvous job name", NULL, 0, job, ABCI_FRAME_JOB);
}

void abci_frame_session(const unsigned char *key, const unsigned char server_nonce[ABCI_FRAME_NONCE],
                        const struct abci_frame_hello *hello, struct abci_frame_session *session)
{
    unsigned char transcript[1 + 2 * ABCI_FRAME_NONCE + ABCI_FRAME_JOB + 8];
    unsigned char *at = transcript;
    *at++ = ABCI_FRAME_VERSION;
    memcpy(at, server_nonce, ABCI_FRAME_NONCE);
    at += ABCI_FRAME_NONCE;
    memcpy(at, hello->nonce, ABCI_FRAME_NONCE);
    at += ABCI_FRAME_NONCE;
    memcpy(at, hello->job, ABCI_FRAME_JOB);
    at += ABCI_FRAME_JOB;
    store32(at, hello->rank);
    store32(at + 4, hello->nranks);

    memset(session, 0, sizeof(*session));
    derive(key, "abcomm rendezvous client proof", transcript, sizeof(transcript), session->client_proof, ABCI_FRAME_PROOF);
    derive(key, "abcomm rendezvous server proof", transcript, sizeof(transcript), session->server_proof, ABCI_FRAME_PROOF);
    derive(key, "abcomm rendezvous to server", transcript, sizeof(transcript), session->to_server.key, 32);
    derive(key, "abcomm rendezvous to client", transcript, sizeof(transcript), session->to_client.key, 32);
}

bool abci_frame_same_proof(const unsigned char *a, const unsigned char *b)
{
    return sodium_memcmp(a, b, ABCI_FRAME_PROOF) == 0;
}
