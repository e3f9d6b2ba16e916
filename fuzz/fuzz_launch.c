/*
 * fuzz_launch.c - the variables of launchers: lines "NAME=value", of which those with a launcher's name are put into the
 * environment, beside nothing else that a launcher could have set. Checks what must hold for any of them: a refusal says why, and
 * an accepted place is a rank below its size with an address that ends.
 */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "comm/exchange.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Without ABCOMM_, which is read once a process: fuzz_settings.c. */
static const char *const names[] = {"RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_WORLD_SIZE",
                                    "GROUP_RANK",
                                    "GROUP_WORLD_SIZE",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "TORCHELASTIC_RUN_ID",
                                    "TORCHELASTIC_RESTART_COUNT",
                                    "TORCHELASTIC_USE_AGENT_STORE",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "PMI_FD",
                                    "PMI_JOBID",
                                    "MPI_LOCALNRANKS",
                                    "PMIX_RANK",
                                    "PMIX_NAMESPACE",
                                    "PMIX_SERVER_URI2",
                                    "SLURM_PROCID",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_NTASKS",
                                    "SLURM_TASK_PID",
                                    "SLURM_STEP_NUM_NODES",
                                    "SLURM_STEP_NODELIST",
                                    "SLURM_JOB_ID",
                                    "SLURM_STEP_ID",
                                    "SLURM_RESTART_COUNT",
                                    "SLURM_CLUSTER_NAME"};
#define NAMES (sizeof names / sizeof *names)

static void require(bool condition)
{
    if (!condition)
        abort();
}

/* "NAME=value" if the name is one of ours. */
static void set(char *line)
{
    char *value = strchr(line, '=');
    if (!value)
        return;
    *value++ = 0;
    for (size_t i = 0; i < NAMES; i++)
        if (strcmp(line, names[i]) == 0)
            setenv(line, value, 1);
}

static void check(void)
{
    struct abci_launch launch;
    memset(&launch, 'x', sizeof launch);
    if (abci_launch_detect(&launch) != ABC_OK) {
        require(strlen(abc_last_error()) > 20 && launch.rank == 0x78787878);
        return;
    }
    require(memchr(launch.address, 0, sizeof launch.address) != NULL);
    require(launch.rank >= 0 && launch.listen_fd == -1 && !launch.have_key);
    require(launch.table <= ABCI_TABLE_TORCH);
    if (launch.nranks == -1)
        require(launch.table == ABCI_TABLE_PMIX);
    else
        require(launch.nranks >= 1 && launch.nranks <= 1024 && launch.rank < launch.nranks);
    require(launch.nranks == 1 || launch.table != ABCI_TABLE_NONE || launch.address[0] != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *rest = NULL;
    if (!text)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = 0;
    for (size_t i = 0; i < NAMES; i++)
        unsetenv(names[i]);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        set(line);
    check();
    free(text);
    return 0;
}
