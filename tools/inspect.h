/*
 * inspect.h - what `abcomm inspect` knows of a process: its own ends of communicators and, as far as their memory is open in that
 * process, those of its peers. inspect_read.c fills it, inspect.c and inspect_say.c print it. A snapshot: nothing here changes.
 */
#ifndef INSPECT_H
#define INSPECT_H

#include <jansson.h>
#include <sys/types.h>

#include "diag/event.h"
#include "transport/shm.h"

/* One rank's end of a communicator, copied. */
struct inspect_end {
    struct abci_control control;
    struct abci_event_ring ring; /* its head: the clock */
    struct abci_event event[ABCI_EVENTS];
    int nevents;
    int segment;                   /* the row of inspect.segment that it lies in */
    uint32_t issued;               /* sequence of the last header, 0: none */
    char process;                  /* state letter of the rank's process as ps shows it, 0: gone or unknown */
    const struct abci_event *open; /* START of the oldest operation without an end, or NULL */
    const struct abci_event *last; /* newest record, or NULL */
};

struct inspect {
    pid_t pid;
    int own; /* row of the process's own segment, -1: it has none (a forked child) */
    uint32_t own_pid;
    bool same_namespace; /* process ids in shared memory mean the same here */
    int nsegments, nends;
    struct inspect_segment {
        int fd;
        uint32_t pid;
        uint64_t id[2];
    } * segment;
    struct inspect_end **end;
};

/* Read everything; false with a text that says what to do. Only reads: the process notices nothing. */
bool inspect_read(pid_t pid, struct inspect *all, char *why, size_t capacity);
void inspect_free(struct inspect *all);
/* The end of a rank of the same communicator, NULL when its memory is not open in the process. */
const struct inspect_end *inspect_peer(const struct inspect *all, const struct inspect_end *end, int rank);

/* The slots that hold a header, newest first; returns how many. */
int inspect_slots(const struct inspect_end *end, const struct abci_header *slot[ABCI_SLOTS]);
void inspect_call(const struct abci_header *header, char *text, size_t capacity);
/* One sentence or more: where this rank stands and whom it waits for. */
void inspect_diagnose(const struct inspect *all, const struct inspect_end *end, char *text, size_t capacity);
/* "stopped", "gone", ... from a state letter. */
const char *inspect_process_word(char state);
/* "3.2 s", "15 ms" */
void inspect_age(const struct inspect_end *end, uint64_t time, char text[32]);

#endif
