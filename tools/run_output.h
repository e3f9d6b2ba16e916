/*
 * run_output.h - how the output of many ranks becomes one: whole lines, prefixed when more than one rank prints. For run.c only.
 */
#ifndef RUN_OUTPUT_H
#define RUN_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

enum tag_output { TAG_AUTO, TAG_YES, TAG_NO };

/* One of the launcher's own two streams: bytes that wait to be written. */
struct sink {
    int fd;
    bool broken; /* nobody reads any more, or the disk is full */
    int error;   /* why, 0 for a reader that is gone */
    char *bytes;
    size_t used, capacity;
};

/* One rank's stream on its way to a sink. */
struct stream {
    int fd; /* read end of the rank's pipe, or -1 */
    int rank;
    struct sink *sink;
    char *line; /* what came since the last line end */
    size_t used, capacity;
};

/* The rule of prefixing, shared by all streams. */
struct tagger {
    enum tag_output mode;
    int first; /* the rank that printed first, -1: none yet */
    bool several;
};

/* Whether the sink can take more now; while not, its streams are not read and the ranks wait. */
bool sink_has_room(const struct sink *sink);
/* Append text of the launcher's own. */
void sink_add(struct sink *sink, const char *bytes, size_t length);
/* Write as much as does not block; call when poll says that the descriptor is writable. */
void sink_write(struct sink *sink);
/* Read what is there and pass whole lines on. At the end of the stream, or when the sink is broken, closes it. */
void stream_read(struct stream *stream, struct tagger *tagger);
/* Pass on the rest, with a line end if one is missing and lines are prefixed, and close. */
void stream_finish(struct stream *stream, struct tagger *tagger);

#endif
