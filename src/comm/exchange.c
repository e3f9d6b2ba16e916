/*
 * exchange.c - all-gather over any abc_exchange, be it the built-in rendezvous, torch's Store or an MPI communicator. Used by
 * comm.c while a communicator is created, on the calling thread; blocks up to the timeout. Two round trips a rank: everyone puts
 * its value, rank 0 collects them and puts one table, everyone waits for the table. The table also carries failure, so that one
 * bad rank frees all others at once.
 */
#include "comm/exchange.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

#define LENGTH_MAX 4096 /* of one rank's value */
#define TEXT_MAX 480
#define SLICE_FIRST 0.1 /* seconds that rank 0 waits for one value before it looks whether another rank has failed */
#define SLICE_LAST 1.0
#define NAME_BYTES 288
#define STAMP 0x41424331u

/* What a rank puts: this, then its value or, if status is an error, a text. */
struct entry_head {
    uint32_t stamp;
    int32_t status;
    uint32_t length;
    int32_t culprit; /* of a table that tells a failure */
};

#define CHUNK_MAX (ABCI_VALUE_MAX - sizeof(struct entry_head))

/* One gather in progress. */
struct gather {
    const abc_exchange *exchange;
    const char *prefix;
    int rank, nranks;
    size_t length;
    double deadline;
    unsigned char *buffer; /* ABCI_VALUE_MAX */
};

static double time_left(const struct gather *gather)
{
    double left = gather->deadline - abci_now();
    return left > 0 ? left : 0;
}

/* A foreign exchange may return an error without a text of its own. */
static int pass_on(int status, const char *what, const char *name)
{
    if (status != ABC_OK && abci_error_text()[0] == '\0')
        abci_error(status, "the exchange could not %s \"%.128s\"", what, name);
    return status;
}

static int put_entry(struct gather *gather, const char *name, int status, int culprit, const void *data, size_t length)
{
    struct entry_head head = {.stamp = STAMP, .status = status, .length = (uint32_t)length, .culprit = culprit};
    memcpy(gather->buffer, &head, sizeof(head));
    if (length > 0)
        memcpy(gather->buffer + sizeof(head), data, length);
    return pass_on(gather->exchange->put(gather->exchange->ctx, name, gather->buffer, sizeof(head) + length), "put", name);
}

/* Fetch an entry into the buffer and check its shape; the data follows the head. */
static int get_entry(struct gather *gather, const char *name, struct entry_head *head)
{
    size_t length = ABCI_VALUE_MAX;
    int status = gather->exchange->get(gather->exchange->ctx, name, gather->buffer, &length);
    if (status != ABC_OK)
        return pass_on(status, "get", name);
    if (length >= sizeof(*head) && length <= ABCI_VALUE_MAX)
        memcpy(head, gather->buffer, sizeof(*head));
    if (length < sizeof(*head) || length > ABCI_VALUE_MAX || head->stamp != STAMP || head->length != length - sizeof(*head))
        return abci_error(ABC_ERR_VERSION, "the exchanged value \"%.128s\" was not written by this library", name);
    return ABC_OK;
}

static void name_of(const struct gather *gather, char *name, char kind, int index)
{
    snprintf(name, NAME_BYTES, "%.240s/%c%d", gather->prefix, kind, index);
}

/* Put a failure where everyone waits: first writer or last writer, each names a rank that failed. */
static void tell_failure(struct gather *gather, int status, int culprit, const char *text)
{
    char name[NAME_BYTES];
    name_of(gather, name, 't', 0);
    size_t length = strlen(text);
    put_entry(gather, name, status, culprit, text, length < TEXT_MAX ? length : TEXT_MAX);
}

/* This rank brings an error: tell the others, keep the caller's own text. */
static int give_failure(struct gather *gather, int status)
{
    char text[TEXT_MAX], name[NAME_BYTES];
    snprintf(text, sizeof(text), "%s", abci_error_text());
    if (text[0] == '\0')
        snprintf(text, sizeof(text), "it failed with status %d", status);
    if (gather->rank != 0) {
        name_of(gather, name, 'r', gather->rank);
        put_entry(gather, name, status, gather->rank, text, strlen(text));
    }
    tell_failure(gather, status, gather->rank, text);
    return abci_error(status, "%s", text);
}

/* The table in the buffer tells a failure. */
static int report_failure(struct gather *gather, const struct entry_head *head)
{
    const char *text = (const char *)gather->buffer + sizeof(*head);
    int length = (int)(head->length < TEXT_MAX ? head->length : TEXT_MAX);
    if (head->status == ABC_ERR_TIMEOUT && head->culprit < 0)
        return abci_error(ABC_ERR_TIMEOUT, "%.*s", length, text);
    return abci_error(ABC_ERR_PEER, "rank %d could not create the communicator: %.*s", head->culprit, length, text);
}

/* Rank 0: wait for one rank's value, looking now and then whether somebody has told a failure instead. */
static int await_value(struct gather *gather, int rank, const char *name)
{
    char table[NAME_BYTES];
    struct entry_head head = {0};
    const abc_exchange *exchange = gather->exchange;
    double slice = SLICE_FIRST;
    name_of(gather, table, 't', 0);
    for (;;) {
        double left = time_left(gather);
        abci_error_clear();
        int status = exchange->wait(exchange->ctx, name, left < slice ? left : slice);
        if (status == ABC_OK)
            return ABC_OK;
        if (status != ABC_ERR_TIMEOUT)
            return pass_on(status, "wait for", name);
        char text[TEXT_MAX];
        snprintf(text, sizeof(text), "%s", abci_error_text());
        if (exchange->wait(exchange->ctx, table, 0) == ABC_OK && get_entry(gather, table, &head) == ABC_OK && head.status != ABC_OK)
            return report_failure(gather, &head);
        if (left <= slice)
            return abci_error(ABC_ERR_TIMEOUT, "rank %d did not give its value in time%s%s", rank, text[0] != '\0' ? ": " : "",
                              text);
        slice = slice * 2 < SLICE_LAST ? slice * 2 : SLICE_LAST;
    }
}

/* Rank 0: one rank's value into its place of the table. */
static int collect_value(struct gather *gather, int rank, unsigned char *to)
{
    char name[NAME_BYTES];
    struct entry_head head;
    name_of(gather, name, 'r', rank);
    int status = await_value(gather, rank, name);
    if (status == ABC_OK)
        status = get_entry(gather, name, &head);
    if (status != ABC_OK)
        return status;
    if (head.status != ABC_OK) {
        head.culprit = rank;
        return report_failure(gather, &head);
    }
    if (head.length != gather->length)
        return abci_error(ABC_ERR_VERSION, "rank %d exchanges %u bytes where rank 0 exchanges %zu", rank, head.length,
                          gather->length);
    memcpy(to, gather->buffer + sizeof(head), gather->length);
    return ABC_OK;
}

/* Rank 0: collect all values and put the table, its first chunk last: who sees that one finds the others. */
static int lead(struct gather *gather, const void *mine, unsigned char *all)
{
    int status = ABC_OK;
    memcpy(all, mine, gather->length);
    for (int rank = 1; rank < gather->nranks && status == ABC_OK; rank++)
        status = collect_value(gather, rank, all + (size_t)rank * gather->length);
    size_t total = (size_t)gather->nranks * gather->length;
    int chunks = total == 0 ? 1 : (int)((total + CHUNK_MAX - 1) / CHUNK_MAX);
    for (int chunk = chunks - 1; chunk >= 0 && status == ABC_OK; chunk--) {
        char name[NAME_BYTES];
        size_t from = (size_t)chunk * CHUNK_MAX, length = total - from < CHUNK_MAX ? total - from : CHUNK_MAX;
        name_of(gather, name, 't', chunk);
        status = put_entry(gather, name, ABC_OK, -1, all + from, length);
    }
    if (status != ABC_OK) {
        char text[TEXT_MAX];
        snprintf(text, sizeof(text), "%s", abci_error_text());
        tell_failure(gather, status, status == ABC_ERR_TIMEOUT ? -1 : 0, text);
        abci_error_clear();
        return abci_error(status, "%s", text);
    }
    return ABC_OK;
}

/* Another rank: put the value, wait for the table. */
static int follow(struct gather *gather, const void *mine, unsigned char *all)
{
    char name[NAME_BYTES];
    name_of(gather, name, 'r', gather->rank);
    int status = put_entry(gather, name, ABC_OK, -1, mine, gather->length);
    size_t total = (size_t)gather->nranks * gather->length, done = 0;
    if (status != ABC_OK) /* a failure may still find room where the value did not: rank 0 waits for either */
        return give_failure(gather, status);
    for (int chunk = 0; status == ABC_OK && (done < total || chunk == 0); chunk++) {
        struct entry_head head;
        name_of(gather, name, 't', chunk);
        status = pass_on(gather->exchange->wait(gather->exchange->ctx, name, time_left(gather)), "wait for", name);
        if (status == ABC_OK)
            status = get_entry(gather, name, &head);
        if (status != ABC_OK)
            return status;
        if (head.status != ABC_OK)
            return report_failure(gather, &head);
        size_t expected = total - done < CHUNK_MAX ? total - done : CHUNK_MAX;
        if (head.length != expected)
            return abci_error(ABC_ERR_VERSION, "rank 0 exchanges %u bytes where rank %d exchanges %zu", head.length, gather->rank,
                              expected);
        if (expected > 0)
            memcpy(all + done, gather->buffer + sizeof(head), expected);
        done += expected;
    }
    return status;
}

int abci_exchange_look(const abc_exchange *exchange, const char *prefix, double timeout)
{
    struct gather gather = {.exchange = exchange, .prefix = prefix};
    struct entry_head head;
    char table[NAME_BYTES];
    name_of(&gather, table, 't', 0);
    abci_error_clear();
    int status = exchange->wait(exchange->ctx, table, timeout);
    if (status == ABC_ERR_TIMEOUT) {
        abci_error_clear();
        return ABC_OK;
    }
    if (status != ABC_OK)
        return pass_on(status, "wait for", table);
    gather.buffer = abci_alloc(ABCI_VALUE_MAX);
    if (gather.buffer == NULL)
        return ABC_OK;
    status = get_entry(&gather, table, &head);
    if (status == ABC_OK && head.status != ABC_OK)
        status = report_failure(&gather, &head);
    abci_free(gather.buffer);
    return status;
}

int abci_exchange_gather(const abc_exchange *exchange, const char *prefix, int rank, int nranks, int status, const void *mine,
                         size_t length, void *all, double timeout)
{
    if (length > LENGTH_MAX)
        return abci_error(ABC_ERR_INTERNAL, "a gather of %zu bytes a rank; at most %d are allowed", length, LENGTH_MAX);
    struct gather gather = {.exchange = exchange, .prefix = prefix, .rank = rank, .nranks = nranks, .length = length};
    if (nranks == 1) {
        if (status == ABC_OK && length > 0)
            memcpy(all, mine, length);
        return status;
    }
    gather.deadline = abci_now() + timeout;
    gather.buffer = abci_alloc(ABCI_VALUE_MAX);
    if (gather.buffer == NULL) {
        /* Even then the others shall not wait in vain: a failure needs little room. */
        unsigned char small[sizeof(struct entry_head) + TEXT_MAX];
        gather.buffer = small;
        if (status == ABC_OK)
            status = abci_error(ABC_ERR_MEMORY, "no memory to exchange values with %d ranks", nranks);
        return give_failure(&gather, status);
    }
    if (status != ABC_OK)
        status = give_failure(&gather, status);
    else
        status = rank == 0 ? lead(&gather, mine, all) : follow(&gather, mine, all);
    abci_free(gather.buffer);
    if (status == ABC_OK)
        abci_error_clear();
    return status;
}
