/*
 * json.c - stage 3: plans as JSON, out and back in. Reading is strict: every number is an integer in its range, every key is known,
 * every fault is named by its place; then validate.c has its say. Input is untrusted. Any thread; not a hot path.
 *
 * One object: the head, then "plan": one list of steps for each rank. A block range is ["in", block, count], an awaited peer
 * [rank, counter, value], "after" lists the own steps that come first.
 */
#include "plan/plan.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#define FORMAT_VERSION 1
#define MAX_TEXT (256u << 20)

static const char *const flag_names[] = {"final", "stage", "staged", "spread"}; /* bits 0 to 3 */
#define FLAGS (sizeof flag_names / sizeof flag_names[0])

/* ---- Writing ---- */

static json_t *ref_json(struct abci_ref ref)
{
    return json_pack("[sii]", abci_buffer_name(ref.buffer), ref.block, ref.count);
}

static json_t *peers_json(const struct abci_step *step, const struct abci_peer *peers)
{
    json_t *list = json_array();
    for (int k = 0; k < step->npeers; k++)
        json_array_append_new(list, step->kind == ABCI_PUBLISH
                                        ? json_integer(peers[k].rank)
                                        : json_pack("[iii]", peers[k].rank, peers[k].counter, peers[k].value));
    return list;
}

static json_t *step_json(const struct abci_plan *plan, const struct abci_step *step)
{
    json_t *object = json_object(), *after = json_array(), *flags = json_array();
    const struct abci_peer *peers = abci_plan_peers(plan, step);
    json_object_set_new(object, "do", json_string(abci_kind_name(step->kind)));
    if (step->src.buffer != ABCI_NONE)
        json_object_set_new(object, "src", ref_json(step->src));
    if (step->dst.buffer != ABCI_NONE)
        json_object_set_new(object, "dst", ref_json(step->dst));
    if (step->own.buffer != ABCI_NONE) {
        json_object_set_new(object, "own", ref_json(step->own));
        json_object_set_new(object, "own_at", json_integer(step->own_at));
    }
    if (step->kind == ABCI_PUBLISH) {
        json_object_set_new(object, "counter", json_integer(step->counter));
        json_object_set_new(object, "value", json_integer(step->value));
    }
    if (step->npeers > 0)
        json_object_set_new(object, step->kind == ABCI_PUBLISH ? "readers" : "peers", peers_json(step, peers));
    for (int k = 0; k < 2; k++)
        if (step->after[k] >= 0)
            json_array_append_new(after, json_integer(step->after[k]));
    json_object_set_new(object, "after", after);
    for (size_t k = 0; k < FLAGS; k++)
        if (step->flags & (1 << k))
            json_array_append_new(flags, json_string(flag_names[k]));
    if (json_array_size(flags) > 0)
        json_object_set(object, "flags", flags);
    json_decref(flags);
    return object;
}

static json_t *head_json(const struct abci_plan_set *set)
{
    const struct abci_plan *zero = set->plan[0];
    json_t *staged = json_array();
    for (int rank = 0; rank < set->nranks; rank++)
        if (set->plan[rank]->stage_in_place)
            json_array_append_new(staged, json_integer(rank));
    return json_pack("{sisssssisisisisbsbso}", "abcomm_plan", FORMAT_VERSION, "name", zero->name, "collective",
                     abc_collective_name((abc_collective)zero->collective), "ranks", set->nranks, "root", zero->root, "blocks",
                     zero->nblocks, "temporaries", zero->ntmp, "rank_order", zero->rank_order, "ordered", zero->ordered,
                     "stage_in_place", staged);
}

/* Head on the first line, then one line a step: a plan can be read and compared. */
char *abci_plan_json(const struct abci_plan_set *set)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = set->nranks > 0 ? open_memstream(&text, &length) : NULL;
    json_t *head = out ? head_json(set) : NULL;
    char *line = head ? json_dumps(head, JSON_COMPACT) : NULL;
    bool ok = line != NULL;
    json_decref(head);
    if (ok)
        fprintf(out, "%.*s,\"plan\":[", (int)strlen(line) - 1, line);
    free(line);
    for (int rank = 0; ok && rank < set->nranks; rank++) {
        fputs(rank ? ",\n[" : "\n[", out);
        for (uint32_t i = 0; ok && i < set->plan[rank]->nsteps; i++) {
            json_t *step = step_json(set->plan[rank], &set->plan[rank]->steps[i]);
            line = json_dumps(step, JSON_COMPACT);
            ok = line != NULL;
            fprintf(out, "%s%s", i ? ",\n " : "", ok ? line : "");
            free(line);
            json_decref(step);
        }
        fputc(']', out);
    }
    if (out) {
        fputs("]}\n", out);
        ok = fclose(out) == 0 && ok;
    }
    if (ok)
        return text;
    free(text);
    return NULL;
}

/* ---- Reading ---- */

struct parser {
    char *why;
    size_t capacity;
    int rank, step; /* where we are; -1: not there yet */
    bool no_memory;
};

static bool refuse(struct parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(struct parser *p, const char *format, ...)
{
    char place[48] = "", words[160];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    if (p->step >= 0)
        snprintf(place, sizeof place, "rank %d step %d: ", p->rank, p->step);
    else if (p->rank >= 0)
        snprintf(place, sizeof place, "rank %d: ", p->rank);
    if (p->capacity > 0)
        snprintf(p->why, p->capacity, "%s%s", place, words);
    return false;
}

static bool read_number(struct parser *p, const json_t *value, const char *name, int low, int high, int *number)
{
    *number = low;
    if (!json_is_integer(value))
        return refuse(p, "%s must be an integer from %d to %d", name, low, high);
    json_int_t n = json_integer_value(value);
    if (n < low || n > high)
        return refuse(p, "%s is %" JSON_INTEGER_FORMAT ", must be from %d to %d", name, n, low, high);
    *number = (int)n;
    return true;
}

static bool read_bool(struct parser *p, const json_t *object, const char *name, bool *value)
{
    const json_t *found = json_object_get(object, name);
    if (!json_is_boolean(found))
        return refuse(p, "%s must be true or false", name);
    *value = json_is_true(found);
    return true;
}

/* Refuse keys that are not in the list, which ends with NULL. */
static bool known_keys(struct parser *p, json_t *object, const char *const *known)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        int k = 0;
        while (known[k] && strcmp(known[k], key) != 0)
            k++;
        if (!known[k]) {
            char clean[40];
            abci_text_clean(clean, sizeof clean, key);
            return refuse(p, "key \"%s\" is not known here", clean);
        }
    }
    return true;
}

static bool read_buffer(struct parser *p, const json_t *value, const char *name, uint8_t *buffer)
{
    const char *text = json_string_value(value);
    for (int k = 0; text && k < ABCI_TMP + ABCI_MAX_TMP; k++)
        if (strcmp(text, abci_buffer_name(k)) == 0) {
            *buffer = (uint8_t)k;
            return true;
        }
    return refuse(p, "%s must begin with a buffer: \"in\", \"out\", \"tmp0\" to \"tmp%d\"", name, ABCI_MAX_TMP - 1);
}

/* Absent: nothing. */
static bool read_ref(struct parser *p, const json_t *object, const char *name, struct abci_ref *ref)
{
    const json_t *list = json_object_get(object, name);
    int block, count;
    *ref = abci_ref(ABCI_NONE, 0, 0);
    if (!list)
        return true;
    if (!json_is_array(list) || json_array_size(list) != 3)
        return refuse(p, "%s must be [buffer, block, count]", name);
    if (!read_buffer(p, json_array_get(list, 0), name, &ref->buffer) ||
        !read_number(p, json_array_get(list, 1), name, 0, UINT16_MAX - 1, &block) ||
        !read_number(p, json_array_get(list, 2), name, 1, UINT16_MAX, &count))
        return false;
    ref->block = (uint16_t)block;
    ref->count = (uint16_t)count;
    return true;
}

static bool read_peer(struct parser *p, const json_t *value, bool reader, int nranks, struct abci_peer *peer)
{
    int rank, counter = 0, number = 0;
    if (reader) {
        if (!read_number(p, value, "a reader", 0, nranks - 1, &rank))
            return false;
    } else {
        if (!json_is_array(value) || json_array_size(value) != 3)
            return refuse(p, "a peer must be [rank, counter, value]");
        if (!read_number(p, json_array_get(value, 0), "a peer's rank", 0, nranks - 1, &rank) ||
            !read_number(p, json_array_get(value, 1), "a peer's counter", 0, ABCI_COUNTERS - 1, &counter) ||
            !read_number(p, json_array_get(value, 2), "a peer's value", 1, UINT16_MAX, &number))
            return false;
    }
    *peer = (struct abci_peer){(uint16_t)rank, (uint8_t)counter, (uint16_t)number};
    return true;
}

/* The list of readers or peers of a step; the plan has room for it. */
static bool read_peers(struct parser *p, const json_t *object, struct abci_plan *plan, struct abci_step *step)
{
    bool reader = step->kind == ABCI_PUBLISH;
    const json_t *list = json_object_get(object, reader ? "readers" : "peers");
    step->peer = plan->npeers;
    if (!list)
        return true;
    if (!json_is_array(list) || json_array_size(list) < 1 || json_array_size(list) >= plan->nranks)
        return refuse(p, "%s must be a list of 1 to %d", reader ? "readers" : "peers", plan->nranks - 1);
    for (size_t k = 0; k < json_array_size(list); k++)
        if (!read_peer(p, json_array_get(list, k), reader, plan->nranks, &plan->peers[plan->npeers++]))
            return false;
    step->npeers = (uint16_t)json_array_size(list);
    return true;
}

static bool read_after(struct parser *p, const json_t *object, struct abci_step *step)
{
    const json_t *list = json_object_get(object, "after");
    step->after[0] = step->after[1] = -1;
    if (!json_is_array(list) || json_array_size(list) > 2)
        return refuse(p, "after must be a list of at most 2 steps");
    for (size_t k = 0; k < json_array_size(list); k++) {
        int at;
        if (p->step == 0)
            return refuse(p, "after must be empty for the first step");
        if (!read_number(p, json_array_get(list, k), "after", 0, p->step - 1, &at))
            return false;
        step->after[k] = at;
    }
    return true;
}

static bool read_flags(struct parser *p, const json_t *object, struct abci_step *step)
{
    const json_t *list = json_object_get(object, "flags");
    if (!list)
        return true;
    if (!json_is_array(list))
        return refuse(p, "flags must be a list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        size_t k = 0;
        while (text && k < FLAGS && strcmp(text, flag_names[k]) != 0)
            k++;
        if (!text || k == FLAGS || step->flags & (1 << k))
            return refuse(p, "flags must be \"final\", \"stage\", \"staged\", \"spread\", each at most once");
        step->flags |= (uint8_t)(1 << k);
    }
    return true;
}

static bool read_kind(struct parser *p, const json_t *object, struct abci_step *step)
{
    const char *text = json_string_value(json_object_get(object, "do"));
    for (int kind = 0; text && kind <= ABCI_AWAIT; kind++)
        if (strcmp(text, abci_kind_name(kind)) == 0) {
            step->kind = (uint8_t)kind;
            return true;
        }
    return refuse(p, "do must be \"publish\", \"fetch\", \"reduce\", \"copy\" or \"await\"");
}

static bool read_step(struct parser *p, json_t *object, struct abci_plan *plan, struct abci_step *step)
{
    static const char *const publish[] = {"do", "src", "counter", "value", "readers", "after", "flags", NULL};
    static const char *const other[] = {"do", "src", "dst", "own", "own_at", "peers", "after", "flags", NULL};
    int counter = 0, value = 0, own_at = 0;
    if (!json_is_object(object))
        return refuse(p, "must be an object");
    if (!read_kind(p, object, step) || !known_keys(p, object, step->kind == ABCI_PUBLISH ? publish : other))
        return false;
    if (step->kind == ABCI_PUBLISH &&
        (!read_number(p, json_object_get(object, "counter"), "counter", 0, ABCI_COUNTERS - 1, &counter) ||
         !read_number(p, json_object_get(object, "value"), "value", 1, UINT16_MAX, &value)))
        return false;
    if (json_object_get(object, "own_at") &&
        !read_number(p, json_object_get(object, "own_at"), "own_at", 0, ABCI_MAX_RANKS - 1, &own_at))
        return false;
    step->counter = (uint8_t)counter;
    step->value = (uint16_t)value;
    step->own_at = (uint16_t)own_at;
    return read_ref(p, object, "src", &step->src) && read_ref(p, object, "dst", &step->dst) &&
           read_ref(p, object, "own", &step->own) && read_peers(p, object, plan, step) && read_after(p, object, step) &&
           read_flags(p, object, step);
}

/* Peers that the steps will need at most, so that one allocation does. */
static size_t count_peers(const json_t *steps)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        n += json_array_size(json_object_get(step, "readers")) + json_array_size(json_object_get(step, "peers"));
    }
    return n;
}

static bool read_plan(struct parser *p, const json_t *steps, struct abci_plan *plan)
{
    char why[160];
    size_t n = json_array_size(steps);
    if (!json_is_array(steps))
        return refuse(p, "must be a list of steps");
    if (n > ABCI_MAX_STEPS)
        return refuse(p, "%zu steps, at most %d", n, ABCI_MAX_STEPS);
    plan->steps = abci_alloc((n + 1) * sizeof *plan->steps);
    plan->peers = abci_alloc((count_peers(steps) + 1) * sizeof *plan->peers);
    if (!plan->steps || !plan->peers)
        return !(p->no_memory = true);
    for (p->step = 0; (size_t)p->step < n; p->step++, plan->nsteps++)
        if (!read_step(p, json_array_get(steps, (size_t)p->step), plan, &plan->steps[p->step]))
            return false;
    p->step = -1;
    if (abci_plan_index(plan) != ABC_OK)
        return !(p->no_memory = true);
    return abci_plan_validate(plan, why, sizeof why) == ABC_OK || refuse(p, "%s", why);
}

static bool read_collective(struct parser *p, const json_t *root, uint8_t *coll)
{
    const char *text = json_string_value(json_object_get(root, "collective"));
    for (int k = 0; text && k < ABCI_PLANNED; k++)
        if (strcmp(text, abc_collective_name((abc_collective)k)) == 0) {
            *coll = (uint8_t)k;
            return true;
        }
    return refuse(p, "collective must be one of abc_collective, such as allreduce or gather");
}

/* A name is printed and compared: letters, digits and - _ . only. */
static bool read_name(struct parser *p, const json_t *root, char name[ABCI_NAME_MAX])
{
    const json_t *value = json_object_get(root, "name");
    size_t n = json_string_length(value);
    if (!json_is_string(value) || n < 1 || n >= ABCI_NAME_MAX ||
        strspn(json_string_value(value), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != n)
        return refuse(p, "name must be 1 to %d letters, digits, '-', '_' or '.'", ABCI_NAME_MAX - 1);
    memcpy(name, json_string_value(value), n);
    return true;
}

static bool read_head(struct parser *p, json_t *root, struct abci_plan *head)
{
    static const char *const keys[] = {"abcomm_plan", "name",       "collective", "ranks",          "root", "blocks",
                                       "temporaries", "rank_order", "ordered",    "stage_in_place", "plan", NULL};
    int version, nranks, of, blocks, ntmp;
    if (!json_is_object(root))
        return refuse(p, "the file must hold one object");
    if (!read_number(p, json_object_get(root, "abcomm_plan"), "abcomm_plan", FORMAT_VERSION, FORMAT_VERSION, &version) ||
        !known_keys(p, root, keys) || !read_name(p, root, head->name) || !read_collective(p, root, &head->collective) ||
        !read_number(p, json_object_get(root, "ranks"), "ranks", 1, ABCI_MAX_RANKS, &nranks) ||
        !read_number(p, json_object_get(root, "root"), "root", 0, nranks - 1, &of) ||
        !read_number(p, json_object_get(root, "blocks"), "blocks", 1, UINT16_MAX, &blocks) ||
        !read_number(p, json_object_get(root, "temporaries"), "temporaries", 0, ABCI_MAX_TMP, &ntmp) ||
        !read_bool(p, root, "rank_order", &head->rank_order) || !read_bool(p, root, "ordered", &head->ordered))
        return false;
    head->nranks = (uint16_t)nranks;
    head->root = (uint16_t)of;
    head->nblocks = (uint16_t)blocks;
    head->ntmp = (uint8_t)ntmp;
    const json_t *plan = json_object_get(root, "plan");
    if (!json_is_array(plan) || json_array_size(plan) != (size_t)nranks)
        return refuse(p, "plan must be a list of %d lists of steps, one for each rank", nranks);
    return true;
}

/* Ranks that stage their input in place, by number. */
static bool read_staged(struct parser *p, const json_t *root, struct abci_plan_set *set)
{
    const json_t *list = json_object_get(root, "stage_in_place");
    if (!list)
        return true;
    if (!json_is_array(list))
        return refuse(p, "stage_in_place must be a list of ranks");
    for (size_t k = 0; k < json_array_size(list); k++) {
        int rank;
        if (!read_number(p, json_array_get(list, k), "stage_in_place", 0, set->nranks - 1, &rank))
            return false;
        set->plan[rank]->stage_in_place = true;
    }
    return true;
}

static bool read_set(struct parser *p, json_t *root, struct abci_plan_set *set)
{
    struct abci_plan head = {0};
    if (!read_head(p, root, &head))
        return false;
    set->plan = abci_alloc(head.nranks * sizeof(struct abci_plan *));
    if (!set->plan)
        return !(p->no_memory = true);
    set->nranks = head.nranks;
    for (p->rank = 0; p->rank < set->nranks; p->rank++) {
        struct abci_plan *plan = set->plan[p->rank] = abci_alloc(sizeof *plan);
        if (!plan)
            return !(p->no_memory = true);
        *plan = head;
        plan->rank = (uint16_t)p->rank;
        if (!read_plan(p, json_array_get(json_object_get(root, "plan"), (size_t)p->rank), plan))
            return false;
    }
    p->rank = -1;
    return read_staged(p, root, set);
}

int abci_plan_parse(const char *json, struct abci_plan_set *set, char *why, size_t capacity)
{
    struct parser p = {why, capacity, -1, -1, false};
    json_error_t error;
    memset(set, 0, sizeof *set);
    if (capacity > 0)
        why[0] = 0;
    size_t length = strnlen(json, MAX_TEXT + 1ul);
    if (length > MAX_TEXT) {
        refuse(&p, "longer than %u MiB", MAX_TEXT >> 20);
        return ABC_ERR_PLAN;
    }
    json_t *root = json_loadb(json, length, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        char clean[100];
        abci_text_clean(clean, sizeof clean, error.text);
        refuse(&p, "line %d column %d: %s", error.line, error.column, clean);
        return ABC_ERR_PLAN;
    }
    bool ok = read_set(&p, root, set);
    json_decref(root);
    if (ok)
        return ABC_OK;
    abci_plan_set_free(set);
    if (p.no_memory)
        refuse(&p, "out of memory");
    return p.no_memory ? ABC_ERR_MEMORY : ABC_ERR_PLAN;
}
