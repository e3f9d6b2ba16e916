/*
 * test_wrap.c - sequences are 32 bits and wrap around: operations at every edge of them, on words that still hold what was left
 * there long ago. Ranks are threads; the numbers are moved on by hand between two operations. Links the testing library.
 */
#include <abcomm/abcomm.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/comm.h"

#define RANKS 3
#define COUNT 60000

/* Just before the edges; then leaps of more than half the range, as when staging or a counter is not used for long. */
static const uint32_t edges[] = {0x7ffffff0u, 0x80001000u, 0xfffffff8u, 0x00001000u, 0x90001000u,
                                 0x20001000u, 0xb0001000u, 0x40001000u, 0xd0001000u, 0x60001000u};

static char address[32];
static pthread_barrier_t meet;
static float in[RANKS][COUNT], out[RANKS][COUNT];

/* Rank 1 is slow between storing its header and publishing its data. */
static void slow_publisher(int rank, uint32_t sequence, int step)
{
    (void)sequence;
    if (rank == 1 && step == 0)
        usleep(2000);
}

/* As if so many operations had been done; all ranks at the same time, nothing is in flight. */
static void move_to(abc_comm *comm, uint32_t next)
{
    struct abci_engine *e = &comm->engine;
    pthread_barrier_wait(&meet);
    e->next_sequence = next;
    e->reads_over = next - 1;
    e->slots_free_to = next - 1 + ABCI_SLOTS;
    atomic_store(&e->shm->control->done, next - 1);
    for (int r = 0; r < RANKS; r++)
        e->shm->peer[r].done = next - 1;
    pthread_barrier_wait(&meet);
}

/* Returns the number of wrong values. */
static long check_sum(abc_comm *comm, const char *algorithm, uint64_t count, float seed)
{
    int rank = abc_comm_rank(comm);
    long wrong = 0;
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = in[rank];
    call.out = out[rank];
    call.count = count;
    call.type = ABC_F32;
    call.op = ABC_SUM;
    call.algorithm = algorithm;
    call.timeout = 10;
    for (uint64_t i = 0; i < count; i++)
        in[rank][i] = seed + (float)(rank + (int)(i % 100));
    if (abc_run(comm, &call) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), -1;
    for (uint64_t i = 0; i < count; i++)
        wrong += out[rank][i] != RANKS * (seed + (float)(i % 100)) + 3;
    return wrong;
}

static void *rank_body(void *argument)
{
    abc_comm_config config;
    abc_comm *comm;
    long wrong = 0;
    abc_comm_config_init(&config);
    config.rank = *(int *)argument;
    config.nranks = RANKS;
    config.address = address;
    if (abc_comm_create(&config, &comm) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), argument;
    wrong += check_sum(comm, "twoshot", COUNT, 1) != 0; /* staging and counters are used once, early */
    for (size_t k = 0; k < sizeof edges / sizeof edges[0] && wrong == 0; k++) {
        move_to(comm, edges[k]);
        for (int n = 0; n < 20 && wrong == 0; n++)
            wrong += check_sum(comm, "oneshot", 2, (float)n) != 0;
        static const char *const algorithms[] = {"twoshot", "ring", "recdbl", "oneshot"};
        for (int n = 0; n < 4 && wrong == 0; n++)
            wrong += check_sum(comm, algorithms[n], COUNT, (float)n) != 0;
        if (wrong)
            printf("rank %d: wrong after moving to sequence 0x%08x\n", config.rank, edges[k]);
    }
    abc_comm_destroy(comm);
    return wrong ? argument : NULL;
}

/* A port that is free now. */
static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || getsockname(fd, (struct sockaddr *)&a, &length) != 0)
        return -1;
    close(fd);
    return ntohs(a.sin_port);
}

int main(void)
{
    pthread_t thread[RANKS];
    int rank[RANKS], failed = 0;
    abci_hook = slow_publisher;
    snprintf(address, sizeof address, "127.0.0.1:%d", free_port());
    pthread_barrier_init(&meet, NULL, RANKS);
    alarm(50); /* a rank that gives up leaves the others at the barrier */
    for (int r = 0; r < RANKS; r++) {
        rank[r] = r;
        pthread_create(&thread[r], NULL, rank_body, &rank[r]);
    }
    for (int r = 0; r < RANKS; r++) {
        void *result;
        pthread_join(thread[r], &result);
        failed |= result != NULL;
    }
    return failed;
}
