/*
 * trouble.c - ranks that do something wrong, one way a run, so that docs/trouble.md can show what is said then.
 * Run: abcomm run -n 3 --keep-going -- trouble WAY
 */
#include <abcomm/abcomm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static abc_comm *comm;
static int rank;
static float in[64], out[64];

static int sum(uint64_t count)
{
    return abc_allreduce(in, out, count, ABC_F32, ABC_SUM, comm);
}

static int other_count(void)
{
    return sum(rank == 2 ? 15 : 14);
}

static int other_call(void)
{
    return rank == 1 ? abc_broadcast(in, out, 14, ABC_F32, 0, comm) : sum(14);
}

static int death(void)
{
    if (rank == 1)
        _exit(3);
    return sum(14);
}

static int late(void)
{
    if (rank == 1)
        sleep(2);
    return sum(14);
}

static int give_up(void)
{
    if (rank == 1)
        abc_comm_abort(comm, "the loss is not a number");
    return sum(14);
}

static int overlap(void)
{
    return abc_allreduce(in, in + 4, 14, ABC_F32, ABC_SUM, comm);
}

static int use_after_fork(void)
{
    pid_t child = fork();
    if (child == 0) {
        if (sum(14) != ABC_OK && rank == 0)
            fprintf(stderr, "child: %s\n", abc_last_error());
        _exit(0);
    }
    waitpid(child, NULL, 0);
    return sum(14);
}

static int forgotten_wait(void)
{
    abc_request *request;
    int status = abc_allreduce_start(in, out, 14, ABC_F32, ABC_SUM, comm, &request);
    if (status == ABC_OK && (status = abc_comm_destroy(comm)) != ABC_OK) {
        fprintf(stderr, "%s: %s\n", abc_status_name(status), abc_last_error());
        status = abc_wait(&request);
    }
    return status;
}

static const struct {
    const char *name;
    int (*run)(void);
} ways[] = {
    {"other-count", other_count}, {"other-call", other_call}, {"death", death},         {"late", late},
    {"abort", give_up},           {"overlap", overlap},       {"fork", use_after_fork}, {"wait", forgotten_wait},
};

int main(int argc, char **argv)
{
    int status = ABC_ERR_ARGUMENT;
    if (abc_comm_create(NULL, &comm) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), 1;
    rank = abc_comm_rank(comm);
    for (size_t i = 0; argc > 1 && i < sizeof ways / sizeof ways[0]; i++)
        if (strcmp(argv[1], ways[i].name) == 0) {
            status = ways[i].run();
            if (status != ABC_OK)
                fprintf(stderr, "%s: %s\n", abc_status_name(status), abc_last_error());
        }
    abc_comm_destroy(comm);
    return status != ABC_OK;
}
