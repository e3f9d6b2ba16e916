/*
 * ranks.h - helpers of the rendezvous tests: free ports, ranks as threads, what is asserted again and again.
 */
#ifndef TEST_RANKS_H
#define TEST_RANKS_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base.h"
#include "comm/exchange.h"

static const unsigned char test_key[ABCI_KEY_BYTES] = "the key of this job, 32 bytes...";
static const unsigned char other_key[ABCI_KEY_BYTES] = "the key of some other job, also.";

/* One rank as a thread: what it is told, and what it ended with. */
struct rank {
    struct abci_rendezvous_config config;
    int (*body)(struct rank *rank, const abc_exchange *exchange);
    const void *argument;
    pthread_t thread;
    int status;
    double seconds;
    char text[1024];
};

/* A listening socket on a free port of 127.0.0.1, and its address. */
__attribute__((unused)) static int listen_anywhere(char address[64])
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(any);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof(any)), 0);
    assert_int_equal(listen(fd, 128), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&any, &length), 0);
    snprintf(address, 64, "127.0.0.1:%d", ntohs(any.sin_port));
    return fd;
}

/* A port that was free a moment ago. */
__attribute__((unused)) static void free_address(char address[64])
{
    close(listen_anywhere(address));
}

static void *run_rank(void *argument)
{
    struct rank *rank = argument;
    struct abci_rendezvous *rdv;
    abc_exchange exchange;
    double start = abci_now();
    rank->status = abci_rendezvous_open(&rank->config, &rdv, &exchange);
    if (rank->status == ABC_OK) {
        rank->status = rank->body(rank, &exchange);
        snprintf(rank->text, sizeof(rank->text), "%s", abci_error_text());
        rank->seconds = abci_now() - start;
        abci_rendezvous_close(rdv);
    } else {
        snprintf(rank->text, sizeof(rank->text), "%s", abci_error_text());
        rank->seconds = abci_now() - start;
    }
    return NULL;
}

__attribute__((unused)) static void start_rank(struct rank *rank)
{
    assert_int_equal(pthread_create(&rank->thread, NULL, run_rank, rank), 0);
}

__attribute__((unused)) static void join_rank(struct rank *rank)
{
    assert_int_equal(pthread_join(rank->thread, NULL), 0);
}

/* Fill one rank's orders. */
__attribute__((unused)) static void prepare_rank(struct rank *rank, int number, int nranks, const char *address,
                                                 int (*body)(struct rank *, const abc_exchange *), const void *argument)
{
    memset(rank, 0, sizeof(*rank));
    rank->config = (struct abci_rendezvous_config){
        .rank = number, .nranks = nranks, .address = address, .listen_fd = -1, .key = test_key, .timeout = 10};
    rank->body = body;
    rank->argument = argument;
}

__attribute__((unused)) static int open_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

__attribute__((unused)) static void assert_mentions(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not mention \"%s\"", text, part);
}

#endif
