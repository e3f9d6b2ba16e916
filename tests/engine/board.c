/*
 * board.c - the exchange of the tests: put, wait and get over memory that all ranks share, be they processes or threads. Values are
 * written once under a lock and then announced; waiting is polling, since creation is not what these tests measure.
 */
#include "board.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

struct board *board_make(void)
{
    struct board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b == MAP_FAILED)
        return NULL;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&b->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return b;
}

void board_free(struct board *b)
{
    munmap(b, sizeof *b);
}

_Atomic int *board_words(struct board *b)
{
    return b->word;
}

static struct entry *find(struct board *b, const char *name)
{
    for (int i = 0; i < BOARD_ENTRIES && atomic_load_explicit(&b->entry[i].ready, memory_order_acquire); i++)
        if (strcmp(b->entry[i].name, name) == 0)
            return &b->entry[i];
    return NULL;
}

static void full_name(const struct exchange_context *x, const char *key, char name[112])
{
    snprintf(name, 112, "%s:%s", x->prefix, key);
}

/* The first value stays: a second put of a key is dropped, as many stores do. */
static int put(void *context, const char *key, const void *value, size_t length)
{
    struct exchange_context *x = context;
    struct board *b = x->board;
    char name[112];
    int status = ABC_OK;
    full_name(x, key, name);
    pthread_mutex_lock(&b->lock);
    if (!find(b, name)) {
        struct entry *e = &b->entry[b->entries];
        if (b->entries == BOARD_ENTRIES - 1 || b->used + length > BOARD_BYTES) {
            status = ABC_ERR_MEMORY;
        } else {
            memcpy(b->bytes + b->used, value, length);
            e->at = b->used;
            e->length = (uint32_t)length;
            strcpy(e->name, name);
            b->used += (uint32_t)(length + 63) & ~63u;
            b->entries++;
            atomic_store_explicit(&e->ready, 1, memory_order_release);
        }
    }
    pthread_mutex_unlock(&b->lock);
    return status;
}

static int wait_for(void *context, const char *key, double timeout)
{
    struct exchange_context *x = context;
    char name[112];
    full_name(x, key, name);
    for (double end = now_seconds() + timeout;; nap(0.0002)) {
        if (find(x->board, name))
            return ABC_OK;
        if (now_seconds() >= end)
            return ABC_ERR_TIMEOUT;
    }
}

static int get(void *context, const char *key, void *value, size_t *length)
{
    struct exchange_context *x = context;
    char name[112];
    full_name(x, key, name);
    const struct entry *e = find(x->board, name);
    if (!e)
        return ABC_ERR_TIMEOUT;
    if (*length < e->length)
        return ABC_ERR_ARGUMENT;
    memcpy(value, x->board->bytes + e->at, e->length);
    *length = e->length;
    return ABC_OK;
}

void exchange_over_board(struct exchange_context *context, struct board *board, const char *prefix, abc_exchange *exchange)
{
    context->board = board;
    snprintf(context->prefix, sizeof context->prefix, "%s", prefix);
    abc_exchange_init(exchange);
    exchange->ctx = context;
    exchange->put = put;
    exchange->wait = wait_for;
    exchange->get = get;
}
