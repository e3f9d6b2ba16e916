/*
 * test_own_tmp.c - a rank still needs its own temporary after its only reader has gone on to the next operation: a loaded plan in
 * which rank 0 shows a temporary to rank 1 and later adds it up itself. Ranks are threads; a hook keeps rank 0 back. Links the
 * testing library.
 */
#include <abcomm/abcomm.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "plan/run.h"

#define RANKS 2
#define COUNT 4000
#define ROW 30

static const char plan[] =
    "{\"abcomm_plan\":1,\"name\":\"keeps\",\"collective\":\"allreduce\",\"ranks\":2,\"root\":0,\"blocks\":1,\"temporaries\":1,"
    "\"rank_order\":true,\"ordered\":true,\"stage_in_place\":[],\"plan\":["
    "[{\"do\":\"copy\",\"src\":[\"in\",0,1],\"dst\":[\"tmp0\",0,1],\"after\":[]},"
    "{\"do\":\"publish\",\"src\":[\"tmp0\",0,1],\"counter\":0,\"value\":1,\"readers\":[1],\"after\":[0]},"
    "{\"do\":\"reduce\",\"src\":[\"tmp0\",0,1],\"dst\":[\"out\",0,1],\"own\":[\"tmp0\",0,1],\"own_at\":0,\"peers\":[[1,0,1]],"
    "\"after\":[1],\"flags\":[\"final\"]}],"
    "[{\"do\":\"copy\",\"src\":[\"in\",0,1],\"dst\":[\"tmp0\",0,1],\"after\":[]},"
    "{\"do\":\"publish\",\"src\":[\"tmp0\",0,1],\"counter\":0,\"value\":1,\"readers\":[0],\"after\":[0]},"
    "{\"do\":\"reduce\",\"src\":[\"tmp0\",0,1],\"dst\":[\"out\",0,1],\"own\":[\"in\",0,1],\"own_at\":1,\"peers\":[[0,0,1]],"
    "\"after\":[1],\"flags\":[\"final\"]}]]}";

static char address[32];
static float in[RANKS][COUNT], out[RANKS][COUNT];

static void keep_back(int rank, uint32_t sequence, int step)
{
    (void)sequence;
    if (rank == 0 && step == 2)
        usleep(1000);
}

static void *rank_body(void *argument)
{
    int rank = *(int *)argument;
    long wrong = 0;
    abc_comm_config config;
    abc_comm *comm;
    abc_call call;
    abc_comm_config_init(&config);
    config.rank = rank;
    config.nranks = RANKS;
    config.address = address;
    config.timeout = 10;
    if (abc_comm_create(&config, &comm) != ABC_OK || abc_comm_load_plan(comm, plan, 1) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), argument;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = in[rank];
    call.out = out[rank];
    call.count = COUNT;
    call.algorithm = "keeps";
    for (int n = 0; n < ROW; n++) {
        for (int i = 0; i < COUNT; i++)
            in[rank][i] = (float)(n * (rank + 1) + i % 50);
        if (abc_run(comm, &call) != ABC_OK)
            return fprintf(stderr, "%s\n", abc_last_error()), argument;
        for (int i = 0; i < COUNT; i++)
            wrong += out[rank][i] != (float)(3 * n + 2 * (i % 50));
    }
    abc_comm_destroy(comm);
    if (wrong)
        printf("rank %d: %ld wrong values\n", rank, wrong);
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
    abci_hook = keep_back;
    snprintf(address, sizeof address, "127.0.0.1:%d", free_port());
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
