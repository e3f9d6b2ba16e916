/*
 * run_output.c - lines of ranks into the launcher's own output. Each rank's bytes are kept until their line is whole, so that two
 * ranks never share a line; a stream is prefixed "[rank] " from the moment a second rank has printed. Nothing here blocks: what
 * the launcher's own reader does not take yet waits in a bounded buffer, and then the ranks wait. One thread: run.c's loop.
 */
#include "run_output.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SINK_FULL ((size_t)256 << 10)
#define LINE_FULL ((size_t)1 << 20) /* a longer line is passed on in pieces */
#define READ_BYTES 16384
#define PIPE_READS 64

/* Make room for more bytes; the launcher cannot go on without memory. */
static char *grow(char *bytes, size_t *capacity, size_t needed)
{
    if (needed <= *capacity)
        return bytes;
    size_t larger = *capacity * 2 > needed ? *capacity * 2 : needed;
    char *moved = realloc(bytes, larger);
    if (moved == NULL) {
        static const char text[] = "abcomm run: no memory for the output of the ranks\n";
        if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
            _exit(2);
        _exit(1); /* the ranks die with their launcher */
    }
    *capacity = larger;
    return moved;
}

bool sink_has_room(const struct sink *sink)
{
    return sink->used < SINK_FULL;
}

void sink_add(struct sink *sink, const char *bytes, size_t length)
{
    if (sink->broken || length == 0)
        return;
    sink->bytes = grow(sink->bytes, &sink->capacity, sink->used + length);
    memcpy(sink->bytes + sink->used, bytes, length);
    sink->used += length;
}

void sink_write(struct sink *sink)
{
    /* A writable pipe takes PIPE_BUF bytes at once; more might block. */
    size_t piece = sink->used < PIPE_BUF ? sink->used : PIPE_BUF;
    ssize_t written = piece > 0 ? write(sink->fd, sink->bytes, piece) : 0;
    if (written < 0 && errno != EINTR && errno != EAGAIN) {
        sink->broken = true;
        sink->error = errno == EPIPE ? 0 : errno;
        sink->used = 0;
    }
    if (written > 0) {
        sink->used -= (size_t)written;
        memmove(sink->bytes, sink->bytes + written, sink->used);
    }
}

/* Pass on one line, or a piece of one. */
static void emit(struct stream *stream, struct tagger *tagger, const char *bytes, size_t length)
{
    char prefix[24];
    if (tagger->first < 0)
        tagger->first = stream->rank;
    if (tagger->first != stream->rank)
        tagger->several = true;
    bool tagged = tagger->mode == TAG_YES || (tagger->mode == TAG_AUTO && tagger->several);
    if (tagged)
        sink_add(stream->sink, prefix, (size_t)snprintf(prefix, sizeof(prefix), "[%d] ", stream->rank));
    sink_add(stream->sink, bytes, length);
    /* A half line must not run into another rank's line. */
    if (tagged && bytes[length - 1] != '\n')
        sink_add(stream->sink, "\n", 1);
}

/* Pass on the whole lines; the first `old` bytes are known to hold no line end. */
static void emit_lines(struct stream *stream, struct tagger *tagger, size_t old)
{
    size_t from = 0;
    char *end;
    while ((end = memchr(stream->line + from + old, '\n', stream->used - from - old)) != NULL) {
        size_t length = (size_t)(end - (stream->line + from)) + 1;
        emit(stream, tagger, stream->line + from, length);
        from += length;
        old = 0;
    }
    if (stream->used - from >= LINE_FULL) {
        emit(stream, tagger, stream->line + from, stream->used - from);
        from = stream->used;
    }
    stream->used -= from;
    memmove(stream->line, stream->line + from, stream->used);
}

static void close_stream(struct stream *stream)
{
    close(stream->fd);
    stream->fd = -1;
    free(stream->line);
    stream->line = NULL;
    stream->used = stream->capacity = 0;
}

/* The rest of a stream that has ended. */
static void end_stream(struct stream *stream, struct tagger *tagger)
{
    if (stream->used > 0)
        emit(stream, tagger, stream->line, stream->used);
    close_stream(stream);
}

/* 1: read something, 0: nothing there now, -1: the end. */
static int read_some(struct stream *stream)
{
    stream->line = grow(stream->line, &stream->capacity, stream->used + READ_BYTES);
    ssize_t got = read(stream->fd, stream->line + stream->used, READ_BYTES);
    if (got > 0)
        stream->used += (size_t)got;
    return got > 0 ? 1 : got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

void stream_read(struct stream *stream, struct tagger *tagger)
{
    if (stream->fd < 0)
        return;
    if (stream->sink->broken) {
        close_stream(stream); /* the rank learns it the usual way, by SIGPIPE */
        return;
    }
    size_t old = stream->used;
    int got = read_some(stream);
    if (got > 0)
        emit_lines(stream, tagger, old);
    else if (got < 0)
        end_stream(stream, tagger);
}

void stream_finish(struct stream *stream, struct tagger *tagger)
{
    /* Bounded by what a pipe can hold: a process that the rank left behind may write for ever. */
    for (int i = 0; i < PIPE_READS && stream->fd >= 0 && !stream->sink->broken; i++) {
        size_t old = stream->used;
        if (read_some(stream) <= 0)
            break;
        emit_lines(stream, tagger, old);
    }
    if (stream->fd >= 0)
        end_stream(stream, tagger);
}
