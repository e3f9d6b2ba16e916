/*
 * inspect_read.c - finds and copies the shared memory of a process for `abcomm inspect`. The memfds of the process and of all its
 * peers are among its open files, so that even a rank which has died can still be read. Everything is read by pread, not mapped:
 * holes stay holes, and an offset that is out of bounds is an error and no signal. What is read may change at any moment and is
 * trusted in nothing.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inspect.h"

static bool read_at(int fd, void *to, size_t bytes, uint64_t offset)
{
    return offset < (1ull << 60) && pread(fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* First line of /proc/PID/NAME that begins with `key`, without it; the whole file's first line for "". */
static bool proc_line(pid_t pid, const char *name, const char *key, char *line, size_t capacity)
{
    char path[64];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, (int)capacity, f))
        found = strncmp(line, key, strlen(key)) == 0;
    if (f)
        fclose(f);
    if (found)
        memmove(line, line + strlen(key), strlen(line + strlen(key)) + 1);
    return found;
}

/* The process's number in its own namespace: the last one of the list. */
static uint32_t inner_pid(pid_t pid)
{
    char line[256];
    if (!proc_line(pid, "status", "NSpid:", line, sizeof line))
        return (uint32_t)pid;
    const char *last = strrchr(line, '\t');
    return last ? (uint32_t)strtoul(last, NULL, 10) : (uint32_t)pid;
}

static char process_state(pid_t pid)
{
    char line[1024];
    if (!proc_line(pid, "stat", "", line, sizeof line))
        return 0;
    const char *after_name = strrchr(line, ')');
    return after_name && after_name[1] == ' ' ? after_name[2] : 0;
}

/* ---- Segments ---- */

static bool known(const struct inspect *all, const uint64_t id[2])
{
    for (int i = 0; i < all->nsegments; i++)
        if (memcmp(all->segment[i].id, id, sizeof all->segment[i].id) == 0)
            return true;
    return false;
}

static bool add_segment(struct inspect *all, int fd, const struct abci_segment_head *head)
{
    struct inspect_segment *more = realloc(all->segment, sizeof *more * (size_t)(all->nsegments + 1));
    if (!more)
        return false;
    all->segment = more;
    more[all->nsegments] = (struct inspect_segment){fd, head->pid, {head->id[0], head->id[1]}};
    if (head->pid == all->own_pid)
        all->own = all->nsegments;
    all->nsegments++;
    return true;
}

/* Open one file of the process if it is a segment. 1: taken, 0: something else, -1: a segment of another version. */
static int try_file(struct inspect *all, const char *name)
{
    char path[300], target[64];
    struct abci_segment_head head;
    snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)all->pid, name);
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    if (strcmp(target, "/memfd:abcomm (deleted)") != 0)
        return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    bool whole = read_at(fd, &head, sizeof head, 0);
    if (whole && head.magic == ABCI_SEGMENT_MAGIC && !known(all, head.id) && add_segment(all, fd, &head))
        return 1;
    close(fd);
    return whole && head.magic != ABCI_SEGMENT_MAGIC ? -1 : 0;
}

static void list_children(pid_t pid, char *text, size_t capacity)
{
    char path[64], line[200];
    snprintf(path, sizeof path, "task/%d/children", (int)pid);
    text[0] = 0;
    if (proc_line(pid, path, "", line, sizeof line))
        snprintf(text, capacity, ", or one of its children: %s", line);
}

static bool open_segments(struct inspect *all, char *why, size_t capacity)
{
    char path[64], children[256];
    int pid = (int)all->pid;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    if (!dir) {
        if (errno == EACCES || errno == EPERM)
            snprintf(why, capacity, "no permission to look into process %d; run this as the user who started it, or as root", pid);
        else
            snprintf(why, capacity, "there is no process %d on host %s; give the process id of a rank that runs here", pid,
                     abci_hostname());
        return false;
    }
    bool foreign = false;
    for (struct dirent *entry; (entry = readdir(dir));)
        foreign |= try_file(all, entry->d_name) < 0;
    closedir(dir);
    if (all->nsegments > 0)
        return true;
    list_children(all->pid, children, sizeof children);
    if (foreign)
        snprintf(why, capacity, "process %d uses another version of libabcomm; use the abcomm program of that version", pid);
    else
        snprintf(why, capacity, "process %d has no communicator of libabcomm; give the process id of a rank%s", pid, children);
    return false;
}

/* ---- Ends ---- */

/* Slots are only ever taken in order, so the newest header is the one furthest ahead of the watermark. */
static uint32_t newest_sequence(const struct abci_control *c)
{
    uint32_t newest = 0;
    for (int i = 0; i < ABCI_SLOTS; i++) {
        uint32_t sequence = atomic_load_explicit(&c->header[i].head.sequence, memory_order_relaxed);
        if (sequence && (newest == 0 || (int32_t)(sequence - newest) > 0))
            newest = sequence;
    }
    return newest;
}

static void read_events(struct inspect_end *end, int fd)
{
    struct abci_event_ring *again = malloc(sizeof *again);
    uint64_t at = end->control.events_offset;
    if (again && at && read_at(fd, &end->ring, sizeof end->ring, at) && read_at(fd, again, sizeof *again, at) &&
        end->ring.magic == ABCI_EVENT_MAGIC)
        end->nevents = abci_event_pick(&end->ring, again, end->event, ABCI_EVENTS);
    free(again);
    /* The rank's operations end in any order; the oldest start without an end is where it stands. */
    for (int i = 0; i < end->nevents; i++) {
        const struct abci_event *e = &end->event[i];
        bool over = e->kind != ABCI_EVENT_START;
        for (int k = i + 1; k < end->nevents && !over; k++)
            over = end->event[k].kind != ABCI_EVENT_START && end->event[k].sequence == e->sequence;
        if (!over && !end->open)
            end->open = e;
        end->last = e;
    }
}

static struct inspect_end *read_end(const struct inspect *all, int segment, uint64_t offset)
{
    struct inspect_end *end = aligned_alloc(4096, (sizeof *end + 4095) & ~4095ul);
    int fd = all->segment[segment].fd;
    if (!end)
        return NULL;
    memset(end, 0, sizeof *end);
    const struct abci_control *c = &end->control;
    if (!read_at(fd, &end->control, sizeof end->control, offset) || c->magic != ABCI_RECORD_MAGIC || c->nranks == 0 ||
        c->nranks > ABCI_MAX_RANKS || c->rank >= c->nranks) {
        free(end);
        return NULL;
    }
    end->segment = segment;
    end->issued = newest_sequence(c);
    end->process = all->same_namespace || segment == all->own ? process_state(segment == all->own ? all->pid : (pid_t)c->pid) : '?';
    read_events(end, fd);
    return end;
}

static bool read_ends(struct inspect *all, int segment)
{
    struct abci_segment_head head;
    if (!read_at(all->segment[segment].fd, &head, sizeof head, 0))
        return true;
    for (int i = 0; i < ABCI_SEGMENT_ENDS; i++) {
        uint64_t offset = atomic_load_explicit(&head.end[i], memory_order_relaxed);
        struct inspect_end *end = offset ? read_end(all, segment, offset) : NULL;
        if (!end)
            continue;
        struct inspect_end **more = realloc(all->end, sizeof *more * (size_t)(all->nends + 1));
        if (!more) {
            free(end);
            return false;
        }
        all->end = more;
        all->end[all->nends++] = end;
    }
    return true;
}

bool inspect_read(pid_t pid, struct inspect *all, char *why, size_t capacity)
{
    memset(all, 0, sizeof *all);
    all->pid = pid;
    all->own = -1;
    all->own_pid = inner_pid(pid);
    all->same_namespace = all->own_pid == (uint32_t)pid;
    bool ok = open_segments(all, why, capacity);
    for (int i = 0; i < all->nsegments && ok; i++) {
        ok = read_ends(all, i);
        if (!ok)
            snprintf(why, capacity, "no memory to copy what process %d shares", (int)pid);
    }
    if (ok && all->own < 0) {
        ok = false;
        snprintf(why, capacity, "process %d made no communicator; it was forked from process %u, which did: inspect that one",
                 (int)pid, all->segment[0].pid);
    }
    if (!ok)
        inspect_free(all);
    return ok;
}

void inspect_free(struct inspect *all)
{
    for (int i = 0; i < all->nends; i++)
        free(all->end[i]);
    for (int i = 0; i < all->nsegments; i++)
        close(all->segment[i].fd);
    free(all->end);
    free(all->segment);
    memset(all, 0, sizeof *all);
}

const struct inspect_end *inspect_peer(const struct inspect *all, const struct inspect_end *end, int rank)
{
    for (int i = 0; i < all->nends; i++) {
        const struct abci_control *c = &all->end[i]->control;
        if (c->epoch == end->control.epoch && c->nranks == end->control.nranks && c->rank == (uint32_t)rank)
            return all->end[i];
    }
    return NULL;
}
