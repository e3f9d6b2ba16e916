/*
 * fuzz_frames.c - feeds bytes to the parser of rendezvous frames as a socket would, frame after frame. Checks what must hold for
 * any input: nothing is read outside the bytes, a prefix never says more than the whole, no stranger's frame passes the tag, and
 * what is taken apart and built again is the same.
 */
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "comm/frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition)
        abort();
}

/* Build the request or reply again from its parts. */
static void check_rebuilt(const struct abci_frame *frame, const uint8_t *bytes)
{
    static unsigned char out[ABCI_FRAME_MAX];
    struct abci_frame_request request;
    struct abci_frame_reply reply;
    struct abci_frame_hello hello;
    size_t total = 0;
    if (abci_frame_read_request(frame, &request)) {
        require(strlen(request.name) >= 1 && strlen(request.name) <= ABCI_FRAME_NAME_MAX && request.length <= ABCI_VALUE_MAX);
        total = abci_frame_build_request(out, frame->type, request.name, request.milliseconds, request.value, request.length, NULL);
    } else if (abci_frame_read_reply(frame, &reply)) {
        total = abci_frame_build_reply(out, frame->type, reply.status, reply.data, reply.length, NULL);
    } else if (abci_frame_read_hello(frame, &hello)) {
        total = abci_frame_build_hello(out, &hello);
    } else {
        return;
    }
    require(total == frame->total && memcmp(out, bytes, ABCI_FRAME_HEADER + frame->length) == 0);
}

/* One frame at the start of bytes; its length, or 0 to stop. */
static size_t check_frame(const uint8_t *bytes, size_t size)
{
    struct abci_frame frame, part;
    struct abci_frame_channel channel = {.counter = 0};
    enum abci_frame_verdict verdict = abci_frame_parse(bytes, size, &frame);
    if (verdict == ABCI_FRAME_MORE) {
        require(frame.total == 0 || (frame.total > size && frame.total <= ABCI_FRAME_MAX));
        return 0;
    }
    if (verdict != ABCI_FRAME_OK)
        return 0;
    require(frame.total <= size && frame.body + frame.length + ABCI_FRAME_TAG == bytes + frame.total);
    require(abci_frame_parse(bytes, frame.total - 1, &part) == ABCI_FRAME_MORE && part.total == frame.total);
    require(!abci_frame_verify(&frame, bytes, &channel) && channel.counter == 0);
    check_rebuilt(&frame, bytes);
    return frame.total;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (sodium_init() < 0)
        return 0;
    /* A copy of exact size, so that a sanitizer sees one byte too many. */
    uint8_t *bytes = malloc(size > 0 ? size : 1);
    if (bytes == NULL)
        return 0;
    if (size > 0)
        memcpy(bytes, data, size);
    for (size_t at = 0, step; at < size && (step = check_frame(bytes + at, size - at)) != 0; at += step)
        ;
    free(bytes);
    return 0;
}
