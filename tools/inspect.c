/*
 * inspect.c - `abcomm inspect PID`: where a running or hung rank stands. Reads the shared memory of the process from outside
 * (inspect_read.c), compares the rank with its peers (inspect_say.c), prints text or JSON. Works on a stopped process, and on this
 * host only. The process notices nothing.
 */
#include "inspect.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools.h"

#define SHOWN_SLOTS 4
#define DIAGNOSIS 4096

static void print_usage(void)
{
    printf("usage: abcomm inspect PID [--json] [--events N]\n\n"
           "Show where the rank with process id PID stands in each of its communicators: its last calls, counters, whom it\n"
           "waits for, its last events, and a diagnosis. The process may hang or be stopped; it is not disturbed.\n\n"
           "  --events N  show the last N events, 0 to %d (8)\n"
           "  --json      print JSON\n",
           ABCI_EVENTS);
}

/* Progress of the four counters in a slot; 0 where the counter is still one of an older operation. */
static uint32_t counter_value(const struct abci_control *c, uint32_t sequence, int k)
{
    uint64_t word = atomic_load_explicit(&c->counter[sequence % ABCI_SLOTS][k].word, memory_order_relaxed);
    return word >> 32 == sequence ? (uint32_t)word : 0;
}

static void print_slots(const struct inspect_end *end)
{
    const struct abci_header *slot[ABCI_SLOTS];
    int n = inspect_slots(end, slot);
    for (int i = 0; i < n && i < SHOWN_SLOTS; i++) {
        char call[128];
        uint32_t s = atomic_load_explicit(&slot[i]->sequence, memory_order_relaxed);
        inspect_call(slot[i], call, sizeof call);
        printf("  header    #%u %s, counters %u", s, call, slot[i]->counter0 | counter_value(&end->control, s, 0));
        for (int k = 1; k < ABCI_COUNTERS; k++)
            printf(" %u", counter_value(&end->control, s, k));
        printf("\n");
    }
    if (n == 0)
        printf("  header    none: no operation has started\n");
}

/* Whom the rank sleeps for, and who sleeps for it. */
static void print_sleepers(const struct inspect *all, const struct inspect_end *end)
{
    int n = 0;
    printf("  sleepers  waiting for this rank:");
    for (uint32_t r = 0; r < end->control.nranks; r++)
        if (abci_shm_is_waiter(&end->control, r)) {
            printf(" %u", r);
            n++;
        }
    printf("%s; it waits for:", n ? "" : " none");
    n = 0;
    for (uint32_t r = 0; r < end->control.nranks; r++) {
        const struct inspect_end *peer = inspect_peer(all, end, (int)r);
        if (peer && abci_shm_is_waiter(&peer->control, end->control.rank)) {
            printf(" %u", r);
            n++;
        }
    }
    printf("%s\n", n ? "" : " none");
}

static void print_events(const struct inspect_end *end, int most)
{
    for (int i = end->nevents > most ? end->nevents - most : 0; i < end->nevents; i++) {
        const struct abci_event *e = &end->event[i];
        struct abci_call_id id = {.collective = e->collective, .type = e->type, .op = e->op, .root = e->root, .count = e->count};
        char call[128], ago[32], name[ABCI_EVENT_NAME + 1] = "";
        abci_call_describe(&id, call, sizeof call);
        inspect_age(end, e->time, ago);
        memcpy(name, e->algorithm, ABCI_EVENT_NAME);
        abci_text_clean(name, sizeof name, name);
        printf("  event     %8s ago  %-5s #%u %s by %s, %u in flight", ago, abci_event_kind_name(e->kind), e->sequence, call, name,
               e->in_flight);
        if (e->tag)
            printf(", tag %d", e->tag);
        if (e->kind == ABCI_EVENT_ERROR)
            printf(", %s, rank named: %d", abc_status_name(e->status), e->culprit);
        printf("\n");
    }
}

/* The other ranks, also those that have died: their memory is open here. */
static void print_peers(const struct inspect *all, const struct inspect_end *end)
{
    for (uint32_t r = 0; r < end->control.nranks; r++) {
        const struct inspect_end *p = inspect_peer(all, end, (int)r);
        char ago[32];
        if (!p || p == end)
            continue;
        printf("  peer      rank %u, pid %u (%s): last started #%u, reads over up to #%u", r, p->control.pid,
               inspect_process_word(p->process), p->issued, atomic_load_explicit(&p->control.done, memory_order_relaxed));
        if (p->last) {
            inspect_age(p, p->last->time, ago);
            printf(", last event %s #%u %s ago", abci_event_kind_name(p->last->kind), p->last->sequence, ago);
        }
        printf("\n");
    }
}

static void print_end(const struct inspect *all, const struct inspect_end *end, int most)
{
    const struct abci_control *c = &end->control;
    char *text = malloc(DIAGNOSIS);
    printf("communicator %08llx: rank %u of %u, pid %d (%s) on host %s\n", (unsigned long long)c->epoch, c->rank, c->nranks,
           (int)all->pid, inspect_process_word(end->process), abci_hostname());
    print_slots(end);
    printf("  state     last started #%u, reads over up to #%u, doorbell rung %u times\n", end->issued,
           atomic_load_explicit(&c->done, memory_order_relaxed), atomic_load_explicit(&c->doorbell, memory_order_relaxed));
    print_sleepers(all, end);
    print_peers(all, end);
    print_events(end, most);
    if (text)
        inspect_diagnose(all, end, text, DIAGNOSIS);
    printf("  diagnosis %s\n", text ? text : "no memory");
    free(text);
}

/* ---- JSON ---- */

static json_t *json_slots(const struct inspect_end *end)
{
    const struct abci_header *slot[ABCI_SLOTS];
    json_t *list = json_array();
    int n = inspect_slots(end, slot);
    for (int i = 0; i < n; i++) {
        char call[128];
        uint32_t s = atomic_load_explicit(&slot[i]->sequence, memory_order_relaxed);
        inspect_call(slot[i], call, sizeof call);
        json_t *counters = json_array();
        for (int k = 0; k < ABCI_COUNTERS; k++)
            json_array_append_new(counters, json_integer(counter_value(&end->control, s, k) | (k ? 0 : slot[i]->counter0)));
        json_array_append_new(list, json_pack("{sI ss so}", "sequence", (json_int_t)s, "call", call, "counters", counters));
    }
    return list;
}

static json_t *json_events(const struct inspect_end *end, int most)
{
    json_t *list = json_array();
    for (int i = end->nevents > most ? end->nevents - most : 0; i < end->nevents; i++) {
        const struct abci_event *e = &end->event[i];
        char name[ABCI_EVENT_NAME + 1] = "";
        memcpy(name, e->algorithm, ABCI_EVENT_NAME);
        abci_text_clean(name, sizeof name, name);
        json_t *row = json_pack("{ss sI sf ss sI ss ss}", "kind", abci_event_kind_name(e->kind), "sequence",
                                (json_int_t)e->sequence, "seconds_ago", (double)abci_event_age(&end->ring, e->time) * 1e-9,
                                "collective", abc_collective_name((abc_collective)e->collective), "count", (json_int_t)e->count,
                                "type", abc_type_name((abc_type)e->type), "op", abc_op_name((abc_op)e->op));
        json_t *rest =
            json_pack("{sI ss sI ss sI sI}", "root", (json_int_t)e->root, "algorithm", name, "tag", (json_int_t)e->tag, "status",
                      abc_status_name(e->status), "culprit", (json_int_t)e->culprit, "in_flight", (json_int_t)e->in_flight);
        json_object_update(row, rest);
        json_decref(rest);
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *json_failure(const struct inspect *all, const struct inspect_end *end)
{
    const struct inspect_end *first = inspect_peer(all, end, 0);
    const struct abci_failure *f = first ? &first->control.failure : NULL;
    char what[sizeof f->text];
    if (!f || atomic_load_explicit(&f->state, memory_order_relaxed) != 2)
        return json_null();
    abci_text_clean(what, sizeof what, f->text);
    return json_pack("{ss sI sI ss}", "status", abc_status_name(f->status), "reporter", (json_int_t)f->reporter, "culprit",
                     (json_int_t)f->culprit, "text", what);
}

static json_t *json_peers(const struct inspect *all, const struct inspect_end *end)
{
    json_t *list = json_array();
    for (uint32_t r = 0; r < end->control.nranks; r++) {
        const struct inspect_end *p = inspect_peer(all, end, (int)r);
        if (!p || p == end)
            continue;
        json_t *row = json_pack("{sI sI ss sI sI sb}", "rank", (json_int_t)r, "pid", (json_int_t)p->control.pid, "process",
                                inspect_process_word(p->process), "started", (json_int_t)p->issued, "done",
                                (json_int_t)atomic_load_explicit(&p->control.done, memory_order_relaxed), "awaited",
                                (int)abci_shm_is_waiter(&p->control, end->control.rank));
        if (p->last)
            json_object_set_new(row, "last_event",
                                json_pack("{ss sI sf}", "kind", abci_event_kind_name(p->last->kind), "sequence",
                                          (json_int_t)p->last->sequence, "seconds_ago",
                                          (double)abci_event_age(&p->ring, p->last->time) * 1e-9));
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *json_end(const struct inspect *all, const struct inspect_end *end, int most)
{
    const struct abci_control *c = &end->control;
    char epoch[20], *text = malloc(DIAGNOSIS);
    snprintf(epoch, sizeof epoch, "%08llx", (unsigned long long)c->epoch);
    if (text)
        inspect_diagnose(all, end, text, DIAGNOSIS);
    json_t *row = json_pack("{ss sI sI ss sI sI sI sI}", "communicator", epoch, "rank", (json_int_t)c->rank, "size",
                            (json_int_t)c->nranks, "process", inspect_process_word(end->process), "started",
                            (json_int_t)end->issued, "done", (json_int_t)atomic_load_explicit(&c->done, memory_order_relaxed),
                            "doorbell", (json_int_t)atomic_load_explicit(&c->doorbell, memory_order_relaxed), "waiters",
                            (json_int_t)atomic_load_explicit(&c->waiters, memory_order_relaxed));
    json_object_set_new(row, "headers", json_slots(end));
    json_object_set_new(row, "peers", json_peers(all, end));
    json_object_set_new(row, "failure", json_failure(all, end));
    json_object_set_new(row, "events", json_events(end, most));
    json_object_set_new(row, "diagnosis", json_string(text ? text : "no memory"));
    free(text);
    return row;
}

static int print_json(const struct inspect *all, int most)
{
    json_t *ends = json_array();
    for (int i = 0; i < all->nends; i++)
        if (all->end[i]->segment == all->own)
            json_array_append_new(ends, json_end(all, all->end[i], most));
    json_t *root = json_pack("{sI ss so}", "pid", (json_int_t)all->pid, "host", abci_hostname(), "communicators", ends);
    int failed = root ? json_dumpf(root, stdout, JSON_INDENT(2)) : -1;
    putchar('\n');
    json_decref(root);
    return failed ? 1 : 0;
}

static int print_text(const struct inspect *all, int most)
{
    int shown = 0;
    for (int i = 0; i < all->nends; i++)
        if (all->end[i]->segment == all->own) {
            print_end(all, all->end[i], most);
            shown++;
        }
    if (shown == 0)
        printf("process %d has no communicator now\n", (int)all->pid);
    return 0;
}

static bool parse_number(const char *text, long low, long high, long *value)
{
    char *end;
    errno = 0;
    *value = strtol(text, &end, 10);
    return errno == 0 && end != text && *end == 0 && *value >= low && *value <= high;
}

int tool_inspect(int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"events", required_argument, NULL, 'e'}, {"help", no_argument, NULL, 'h'}, {0}};
    long pid, most = 8;
    bool json = false;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":he:", options, NULL)) != -1;) {
        if (c == 'h') {
            print_usage();
            return 0;
        }
        if (c == 'e' && !parse_number(optarg, 0, ABCI_EVENTS, &most))
            return tool_misuse("inspect", "--events takes a number from 0 to %d, not '%s'", ABCI_EVENTS, optarg);
        if (c == ':')
            return tool_misuse("inspect", "flag '%s' needs a value", argv[optind - 1]);
        if (c == '?')
            return tool_misuse("inspect", "unknown flag '%s'", argv[optind - 1]);
        json |= c == 'j';
    }
    if (argc - optind != 1)
        return tool_misuse("inspect", "%s", optind < argc ? "one process id at a time" : "the process id of a rank is missing");
    if (!parse_number(argv[optind], 1, INT32_MAX, &pid))
        return tool_misuse("inspect", "'%s' is not a process id", argv[optind]);
    struct inspect all;
    char why[512];
    if (!inspect_read((pid_t)pid, &all, why, sizeof why)) {
        fprintf(stderr, "abcomm inspect: %s\n", why);
        return 1;
    }
    int code = json ? print_json(&all, (int)most) : print_text(&all, (int)most);
    inspect_free(&all);
    return code;
}
