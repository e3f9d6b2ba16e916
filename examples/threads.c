/*
 * threads.c - ranks as threads of one process, which find each other over an exchange of our own: a small table in memory. The same
 * three functions could speak to a key-value store of a framework. Run: threads [RANKS]
 */
#include <abcomm/abcomm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_RANKS 64
#define MAX_ENTRIES 1024

struct entry {
    char key[128];
    void *value;
    size_t length;
};

/* The table, and the lock that makes it safe. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct entry entry[MAX_ENTRIES];
    int used;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* The caller holds the lock. */
static struct entry *find(const char *key)
{
    for (int i = 0; i < table.used; i++)
        if (strcmp(table.entry[i].key, key) == 0)
            return &table.entry[i];
    return NULL;
}

static int table_put(void *ctx, const char *key, const void *value, size_t length)
{
    int status = ABC_ERR_MEMORY;
    (void)ctx;
    void *copy = malloc(length ? length : 1);
    if (!copy)
        return status;
    memcpy(copy, value, length);
    pthread_mutex_lock(&table.lock);
    struct entry *e = find(key);
    if (!e && table.used < MAX_ENTRIES && strlen(key) < sizeof e->key) {
        e = &table.entry[table.used++];
        strcpy(e->key, key);
    }
    if (e) {
        free(e->value);
        e->value = copy;
        e->length = length;
        status = ABC_OK;
        pthread_cond_broadcast(&table.changed);
    } else {
        free(copy);
    }
    pthread_mutex_unlock(&table.lock);
    return status;
}

static int table_wait(void *ctx, const char *key, double timeout)
{
    struct timespec end;
    int late = 0;
    (void)ctx;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += (time_t)timeout;
    end.tv_nsec += (long)((timeout - (double)(time_t)timeout) * 1e9);
    if (end.tv_nsec >= 1000000000) {
        end.tv_nsec -= 1000000000;
        end.tv_sec++;
    }
    pthread_mutex_lock(&table.lock);
    while (!find(key) && !late)
        late = pthread_cond_timedwait(&table.changed, &table.lock, &end);
    int status = find(key) ? ABC_OK : ABC_ERR_TIMEOUT;
    pthread_mutex_unlock(&table.lock);
    return status;
}

static int table_get(void *ctx, const char *key, void *value, size_t *length)
{
    int status = ABC_ERR_TIMEOUT;
    (void)ctx;
    pthread_mutex_lock(&table.lock);
    struct entry *e = find(key);
    if (e) {
        memcpy(value, e->value, e->length < *length ? e->length : *length);
        *length = e->length;
        status = ABC_OK;
    }
    pthread_mutex_unlock(&table.lock);
    return status;
}

static int nranks = 4;

/* One rank. Returns NULL when all went well. */
static void *rank_body(void *argument)
{
    int rank = *(int *)argument;
    abc_exchange exchange;
    abc_comm_config config;
    abc_comm *comm;
    abc_exchange_init(&exchange);
    exchange.put = table_put;
    exchange.wait = table_wait;
    exchange.get = table_get;
    abc_comm_config_init(&config);
    config.rank = rank;
    config.nranks = nranks;
    config.exchange = &exchange;
    if (abc_comm_create(&config, &comm) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), argument;
    double mine = rank + 1, sum = 0;
    int status = abc_allreduce(&mine, &sum, 1, ABC_F64, ABC_SUM, comm);
    if (status != ABC_OK)
        fprintf(stderr, "%s\n", abc_last_error());
    else
        printf("thread %d of %d: the sum is %g\n", rank, nranks, sum);
    abc_comm_destroy(comm);
    return status == ABC_OK && sum == nranks * (nranks + 1) / 2.0 ? NULL : argument;
}

int main(int argc, char **argv)
{
    pthread_t thread[MAX_RANKS];
    int rank[MAX_RANKS], failed = 0;
    if (argc > 1)
        nranks = atoi(argv[1]);
    if (nranks < 1 || nranks > MAX_RANKS)
        return fprintf(stderr, "usage: threads [1 to %d]\n", MAX_RANKS), 2;
    for (int r = 0; r < nranks; r++) {
        rank[r] = r;
        if (pthread_create(&thread[r], NULL, rank_body, &rank[r]) != 0)
            return fprintf(stderr, "no thread for rank %d\n", r), 1;
    }
    for (int r = 0; r < nranks; r++) {
        void *result;
        pthread_join(thread[r], &result);
        failed |= result != NULL;
    }
    for (int i = 0; i < table.used; i++)
        free(table.entry[i].value);
    return failed;
}
