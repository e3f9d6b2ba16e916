/*
 * store.c - the key-value table of a rendezvous and the presence of its ranks, in rank 0's process. Between rank 0's own calls
 * (rendezvous.c) and the service thread (service.c); one mutex, one condition. Freed with the rendezvous, so it only grows; it is
 * bounded because peers fill it. Cost: a hash look-up.
 */
#include "comm/rendezvous.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

#define BUCKETS 512
#define BYTES_MAX ((size_t)256 << 20)

struct entry {
    struct entry *next;
    unsigned char *value;
    size_t length;
    char name[];
};

struct abci_store {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int nranks;
    size_t bytes;
    struct entry *buckets[BUCKETS];
    int failure; /* ABC_OK, or the status that every wait reports */
    char failure_text[ABCI_FRAME_TEXT_MAX];
    unsigned char presence[]; /* enum abci_presence by rank */
};

struct abci_store *abci_store_create(int nranks)
{
    struct abci_store *store = abci_alloc(sizeof(*store) + (size_t)nranks);
    if (store == NULL)
        return NULL;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    store->nranks = nranks;
    store->presence[0] = ABCI_PRESENT;
    return store;
}

void abci_store_destroy(struct abci_store *store)
{
    if (store == NULL)
        return;
    for (int i = 0; i < BUCKETS; i++) {
        while (store->buckets[i] != NULL) {
            struct entry *entry = store->buckets[i];
            store->buckets[i] = entry->next;
            abci_free(entry->value);
            abci_free(entry);
        }
    }
    pthread_cond_destroy(&store->changed);
    pthread_mutex_destroy(&store->lock);
    abci_free(store);
}

/* The chain that a name belongs to (FNV-1a). */
static struct entry **bucket_of(struct abci_store *store, const char *name)
{
    uint32_t hash = 2166136261u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return &store->buckets[hash % BUCKETS];
}

static struct entry *find(struct abci_store *store, const char *name)
{
    struct entry *entry = *bucket_of(store, name);
    while (entry != NULL && strcmp(entry->name, name) != 0)
        entry = entry->next;
    return entry;
}

int abci_store_put(struct abci_store *store, const char *name, const void *value, size_t length)
{
    size_t name_size = strlen(name) + 1;
    unsigned char *copy = abci_alloc(length > 0 ? length : 1);
    struct entry *fresh = abci_alloc(sizeof(*fresh) + name_size);
    if (copy == NULL || fresh == NULL) {
        abci_free(copy);
        abci_free(fresh);
        return ABC_ERR_MEMORY;
    }
    if (length > 0)
        memcpy(copy, value, length);
    memcpy(fresh->name, name, name_size);

    int status = ABC_OK;
    unsigned char *old = copy;
    pthread_mutex_lock(&store->lock);
    struct entry *entry = find(store, name);
    if (store->bytes + length + name_size > BYTES_MAX) {
        status = ABC_ERR_ARGUMENT;
    } else {
        if (entry == NULL) {
            entry = fresh;
            fresh = NULL;
            entry->next = *bucket_of(store, name);
            *bucket_of(store, name) = entry;
            store->bytes += name_size + sizeof(*entry);
        }
        old = entry->value;
        store->bytes += length - (old != NULL ? entry->length : 0);
        entry->value = copy;
        entry->length = length;
        pthread_cond_broadcast(&store->changed);
    }
    pthread_mutex_unlock(&store->lock);
    abci_free(old);
    abci_free(fresh);
    return status;
}

bool abci_store_get(struct abci_store *store, const char *name, void *value, size_t capacity, size_t *length)
{
    pthread_mutex_lock(&store->lock);
    struct entry *entry = find(store, name);
    if (entry != NULL) {
        *length = entry->length;
        size_t count = entry->length < capacity ? entry->length : capacity;
        if (count > 0)
            memcpy(value, entry->value, count);
    }
    pthread_mutex_unlock(&store->lock);
    return entry != NULL;
}

/* Who has arrived, but given no value to the gather whose table this is (exchange.c)? -1: it is no table. */
static int find_late(struct abci_store *store, const char *name)
{
    const char *table = strrchr(name, '/');
    char value[ABCI_FRAME_NAME_MAX + 16];
    if (table == NULL || table[1] != 't')
        return -1;
    for (int rank = 1; rank < store->nranks; rank++) {
        snprintf(value, sizeof(value), "%.*s/r%d", (int)(table - name), name, rank);
        if (find(store, value) == NULL)
            return rank;
    }
    return 0; /* who makes the table of them */
}

/* "ranks 3, 5 and 12 more have not arrived", or that all have and who is late. The lock is held. */
static void describe_absent(struct abci_store *store, const char *name, char *text, size_t capacity)
{
    char list[128] = "";
    size_t used = 0;
    int absent = 0, more = 0;
    for (int rank = 1; rank < store->nranks; rank++) {
        if (store->presence[rank] != ABCI_ABSENT)
            continue;
        absent++;
        if (used < sizeof(list) - 16)
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%d", used > 0 ? ", " : "", rank);
        else
            more++;
    }
    int late = absent == 0 ? find_late(store, name) : -1;
    if (late >= 0)
        snprintf(text, capacity, "all %d ranks have arrived, but rank %d has not got so far", store->nranks, late);
    else if (absent == 0)
        snprintf(text, capacity, "all %d ranks have arrived, but one has not got so far", store->nranks);
    else if (more == 0)
        snprintf(text, capacity, "rank%s %s of %d %s not arrived", absent > 1 ? "s" : "", list, store->nranks,
                 absent > 1 ? "have" : "has");
    else
        snprintf(text, capacity, "ranks %s and %d more of %d have not arrived", list, more, store->nranks);
}

static void describe_timeout(struct abci_store *store, const char *name, char *text, size_t capacity)
{
    char absent[256];
    describe_absent(store, name, absent, sizeof(absent));
    snprintf(text, capacity, "the time for creating the communicator is over: %s (waited for \"%.64s\")", absent, name);
}

void abci_store_describe_timeout(struct abci_store *store, const char *name, char *text, size_t capacity)
{
    pthread_mutex_lock(&store->lock);
    describe_timeout(store, name, text, capacity);
    pthread_mutex_unlock(&store->lock);
}

int abci_store_wait(struct abci_store *store, const char *name, double deadline, char *text, size_t capacity)
{
    struct timespec until = {.tv_sec = (time_t)deadline, .tv_nsec = (long)((deadline - (double)(time_t)deadline) * 1e9)};
    int status = ABC_OK, timed = 0;
    pthread_mutex_lock(&store->lock);
    while (find(store, name) == NULL) {
        if (store->failure != ABC_OK) {
            status = store->failure;
            snprintf(text, capacity, "%s", store->failure_text);
            break;
        }
        if (timed == ETIMEDOUT) {
            status = ABC_ERR_TIMEOUT;
            describe_timeout(store, name, text, capacity);
            break;
        }
        timed = pthread_cond_timedwait(&store->changed, &store->lock, &until);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

void abci_store_mark(struct abci_store *store, int rank, enum abci_presence presence)
{
    pthread_mutex_lock(&store->lock);
    store->presence[rank] = (unsigned char)presence;
    pthread_mutex_unlock(&store->lock);
}

enum abci_presence abci_store_presence(struct abci_store *store, int rank)
{
    pthread_mutex_lock(&store->lock);
    enum abci_presence presence = (enum abci_presence)store->presence[rank];
    pthread_mutex_unlock(&store->lock);
    return presence;
}

int abci_store_count(struct abci_store *store, enum abci_presence presence)
{
    int count = 0;
    pthread_mutex_lock(&store->lock);
    for (int rank = 1; rank < store->nranks; rank++)
        count += store->presence[rank] == presence;
    pthread_mutex_unlock(&store->lock);
    return count;
}

void abci_store_fail(struct abci_store *store, int rank, int status, const char *text)
{
    pthread_mutex_lock(&store->lock);
    store->presence[rank] = ABCI_FAILED;
    if (store->failure == ABC_OK) {
        store->failure = status;
        int used = snprintf(store->failure_text, sizeof(store->failure_text), "%s", text);
        if (status == ABC_ERR_TIMEOUT && used > 0 && (size_t)used < sizeof(store->failure_text) - 2) {
            /* A rank that gave up is the consequence; those that never came are the cause. */
            size_t at = (size_t)used;
            at += (size_t)snprintf(store->failure_text + at, sizeof(store->failure_text) - at, "; ");
            describe_absent(store, "", store->failure_text + at, sizeof(store->failure_text) - at);
        }
        pthread_cond_broadcast(&store->changed);
    }
    pthread_mutex_unlock(&store->lock);
}

int abci_store_failure(struct abci_store *store, char *text, size_t capacity)
{
    pthread_mutex_lock(&store->lock);
    int status = store->failure;
    if (status != ABC_OK)
        snprintf(text, capacity, "%s", store->failure_text);
    pthread_mutex_unlock(&store->lock);
    return status;
}
