/*
 * test_describe.c - what the variables of the launchers say together: who is taken, what contradicts, where rank 0 is, and the
 * names of HCCL. The environment is read once a process, so each case is a child that reports through a pipe.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "comm/launch.h"
#include "comm/rendezvous.h"

struct report {
    int status;
    struct abci_launch launch;
    double connect, timeout;
    char interface[64], text[1024], host[64];
};

static struct report detect(const char *const *variables)
{
    struct report report = {.status = 99};
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char task[32];
        clearenv();
        for (; *variables != NULL; variables++) {
            snprintf(task, sizeof(task), "SLURM_TASK_PID=%d", (int)getpid());
            putenv(strcmp(*variables, "SLURM_TASK_PID=own") == 0 ? task : (char *)*variables);
        }
        report.status = abci_launch_detect(&report.launch);
        report.connect = abci_setting_real(ABCI_SET_CONNECT_TIMEOUT);
        report.timeout = abci_setting_real(ABCI_SET_TIMEOUT);
        snprintf(report.interface, sizeof(report.interface), "%s", abci_setting_string(ABCI_SET_SOCKET_IFNAME));
        snprintf(report.text, sizeof(report.text), "%s", abci_error_text());
        ssize_t sent = write(ends[1], &report, sizeof(report));
        _exit(sent == (ssize_t)sizeof(report) ? 0 : 1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &report, sizeof(report)), sizeof(report));
    close(ends[0]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return report;
}

#define DETECT(...) detect((const char *const[]){__VA_ARGS__, NULL})
#define OMPI(r, n) "OMPI_COMM_WORLD_RANK=" #r, "OMPI_COMM_WORLD_SIZE=" #n
#define TORCH(r, n) "RANK=" #r, "WORLD_SIZE=" #n
#define AGENT(r, n) "GROUP_RANK=" #r, "GROUP_WORLD_SIZE=" #n, "TORCHELASTIC_RUN_ID=run"
#define MASTER "MASTER_ADDR=host7", "MASTER_PORT=29500"
#define PMI(r, n) "PMI_RANK=" #r, "PMI_SIZE=" #n
#define STEP(r, n) "SLURM_PROCID=" #r, "SLURM_STEP_NUM_TASKS=" #n, "SLURM_JOB_ID=70", "SLURM_STEP_ID=2"

static void is(struct report report, int rank, int size, enum abci_launch_table asked, const char *address)
{
    if (report.status != ABC_OK)
        fail_msg("status %d: %s", report.status, report.text);
    assert_int_equal(report.launch.rank, rank);
    assert_int_equal(report.launch.nranks, size);
    assert_int_equal(report.launch.table, asked);
    if (strncmp(report.launch.address, address, strlen(address)) != 0 || (address[0] == '\0' && report.launch.address[0] != '\0'))
        fail_msg("address %s instead of %s", report.launch.address, address);
}

static void refuses(struct report report, const char *part, const char *other)
{
    assert_int_equal(report.status, ABC_ERR_ENVIRONMENT);
    if (strstr(report.text, part) == NULL || strstr(report.text, other) == NULL)
        fail_msg("not \"%s\" and \"%s\" in: %s", part, other, report.text);
}

static void test_each(void **state)
{
    is(DETECT(TORCH(1, 2), MASTER), 1, 2, ABCI_TABLE_NONE, "host7:29500");
    is(DETECT(TORCH(1, 2), "MASTER_ADDR=fd00::7", "MASTER_PORT=29500"), 1, 2, ABCI_TABLE_NONE, "[fd00::7]:29500");
    is(DETECT(TORCH(1, 2), AGENT(0, 1), MASTER, "LOCAL_WORLD_SIZE=2"), 1, 2, ABCI_TABLE_NONE, "unix:@abcomm-");
    is(DETECT(TORCH(1, 4), AGENT(0, 2), MASTER, "LOCAL_WORLD_SIZE=2", "TORCHELASTIC_USE_AGENT_STORE=True"), 1, 4, ABCI_TABLE_TORCH,
       "");
    is(DETECT(OMPI(3, 4), "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_RANK=3", "PMIX_NAMESPACE=a"), 3, 4, ABCI_TABLE_NONE,
       "unix:@abcomm-");
    is(DETECT(PMI(0, 2), "PMI_FD=9"), 0, 2, ABCI_TABLE_PMI, "");
    is(DETECT(STEP(1, 3), "SLURM_STEP_NUM_NODES=1"), 1, 3, ABCI_TABLE_NONE, "unix:@abcomm-");
    is(DETECT(STEP(1, 3), "SLURM_STEP_NUM_NODES=2", "SLURM_STEP_NODELIST=rack1-n[007-9,12],x"), 1, 3, ABCI_TABLE_NONE,
       "rack1-n007:24272");
    is(DETECT(STEP(1, 3), PMI(1, 3), "PMI_FD=9"), 1, 3, ABCI_TABLE_PMI, "");
    is(DETECT("PMIX_RANK=1", "PMIX_NAMESPACE=a"), 1, -1, ABCI_TABLE_PMIX, "");
    is(DETECT(OMPI(0, 1)), 0, 1, ABCI_TABLE_NONE, ""); /* alone: nobody to meet */
    is(DETECT(OMPI(1, 2), "ABCOMM_ADDR=127.0.0.1:5"), 1, 2, ABCI_TABLE_NONE, "127.0.0.1:5");
}

static void test_same_job_same_name(void **state)
{
    struct report one = DETECT(TORCH(0, 2), AGENT(0, 1), MASTER, "LOCAL_WORLD_SIZE=2", "TORCHELASTIC_RESTART_COUNT=0");
    struct report two = DETECT(TORCH(1, 2), AGENT(0, 1), MASTER, "LOCAL_WORLD_SIZE=2", "TORCHELASTIC_RESTART_COUNT=0");
    struct report again = DETECT(TORCH(0, 2), AGENT(0, 1), MASTER, "LOCAL_WORLD_SIZE=2", "TORCHELASTIC_RESTART_COUNT=1");
    assert_string_equal(one.launch.address, two.launch.address);
    assert_string_not_equal(one.launch.address, again.launch.address);
}

static void test_together(void **state)
{
    /* The same said twice; one launcher below another. */
    is(DETECT(OMPI(1, 2), TORCH(1, 2), MASTER), 1, 2, ABCI_TABLE_NONE, "host7:29500");
    is(DETECT(STEP(0, 1), "SLURM_TASK_PID=1", TORCH(3, 4), AGENT(0, 1), MASTER, "LOCAL_WORLD_SIZE=4"), 3, 4, ABCI_TABLE_NONE,
       "unix:@");
    is(DETECT(OMPI(1, 2), TORCH(5, 8), AGENT(1, 2), MASTER), 5, 8, ABCI_TABLE_NONE, "host7:29500");
    is(DETECT(STEP(0, 1), PMI(0, 1), "SLURM_TASK_PID=1", OMPI(2, 4), "ABCOMM_ADDR=h:1"), 2, 4, ABCI_TABLE_NONE, "h:1");
    is(DETECT(OMPI(1, 2), "ABCOMM_RANK=0", "ABCOMM_SIZE=3", "ABCOMM_ADDR=h:1"), 0, 3, ABCI_TABLE_NONE, "h:1");
    is(DETECT(OMPI(1, 2), PMI(0, 4), "PMI_FD=9", "ABCOMM_LAUNCHER=pmi"), 0, 4, ABCI_TABLE_PMI, "");
    is(DETECT("WORLD_SIZE=7", PMI(0, 4), "PMI_FD=9"), 0, 4, ABCI_TABLE_PMI, ""); /* half a description is none */
}

static void test_contradictions(void **state)
{
    refuses(DETECT(OMPI(1, 2), TORCH(0, 2), MASTER), "RANK=0 of WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1 of OMPI_COMM_WORLD_SIZE=2");
    refuses(DETECT(OMPI(1, 2), PMI(1, 3)), "OMPI_COMM_WORLD_SIZE=2", "PMI_SIZE=3");
    refuses(DETECT(STEP(0, 2), "SLURM_TASK_PID=own", OMPI(0, 1)), "SLURM_PROCID=0", "ABCOMM_LAUNCHER=slurm");
}

static void test_incomplete(void **state)
{
    refuses(DETECT("RANK=0"), "RANK is set", "WORLD_SIZE is not set");
    refuses(DETECT("PMI_SIZE=2"), "PMI_SIZE is set", "PMI_RANK is not set");
    refuses(DETECT(TORCH(0, 2), "MASTER_ADDR=h"), "MASTER_PORT not", "ABCOMM_ADDR");
    refuses(DETECT(TORCH(0, 2)), "MASTER_ADDR and MASTER_PORT", "RANK=0");
    refuses(DETECT(TORCH(2, 2), MASTER), "RANK=2 does not fit WORLD_SIZE=2", "0 to 1");
    refuses(DETECT(TORCH(0, 0), MASTER), "WORLD_SIZE=0", "1 to 1024");
    refuses(DETECT("RANK=one", "WORLD_SIZE=2"), "RANK=one", "whole number");
    refuses(DETECT("RANK=-1", "WORLD_SIZE=2"), "RANK=-1", "whole number");
    refuses(DETECT(PMI(0, 2)), "PMI_FD is not set", "ABCOMM_ADDR");
    refuses(DETECT("SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_ID=7"), "Slurm job but of no step", "srun");
    refuses(DETECT(STEP(0, 4), "SLURM_STEP_NUM_NODES=2"), "SLURM_STEP_NODELIST=", "srun --mpi=pmi2");
    refuses(DETECT(OMPI(0, 2), "ABCOMM_LAUNCHER=slurm"), "ABCOMM_LAUNCHER=slurm", "SLURM_PROCID and SLURM_STEP_NUM_TASKS");
}

static void test_hccl_names(void **state)
{
    struct report report = DETECT("HCCL_CONNECT_TIMEOUT=600", "HCCL_EXEC_TIMEOUT=1800", "HCCL_SOCKET_IFNAME==lo", OMPI(0, 1));
    assert_int_equal(report.status, ABC_OK);
    assert_true(report.connect == 600 && report.timeout == 1800);
    assert_string_equal(report.interface, "=lo");
    report = DETECT("HCCL_TIMEOUT=900", OMPI(0, 1));
    assert_true(report.timeout == 900);
    report = DETECT("HCCL_TIMEOUT=900", "HCCL_EXEC_TIMEOUT=700", OMPI(0, 1)); /* the real name goes before the informal one */
    assert_true(report.timeout == 700);
    report = DETECT("HCCL_EXEC_TIMEOUT=0", "ABCOMM_DEBUG=NONE", OMPI(0, 1)); /* never */
    assert_true(report.timeout == 864000);
    report = DETECT("HCCL_EXEC_TIMEOUT=2147483647", OMPI(0, 1));
    assert_true(report.timeout == 864000);
    report = DETECT("HCCL_CONNECT_TIMEOUT=600", "ABCOMM_CONNECT_TIMEOUT=3", "ABCOMM_DEBUG=NONE", OMPI(0, 1));
    assert_true(report.connect == 3);
    report = DETECT("HCCL_EXEC_TIMEOUT=soon", OMPI(0, 1));
    assert_int_equal(report.status, ABC_ERR_ARGUMENT);
    assert_non_null(strstr(report.text, "HCCL_EXEC_TIMEOUT='soon'"));
}

static void test_interfaces(void **state)
{
    char host[232];
    static const char *const good[] = {"=lo", "lo", "nothing,lo", "=nothing,lo", "l", "^nothing", "^=l", ""};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_int_equal(abci_interface_host(good[i], host, sizeof(host)), ABC_OK);
    assert_int_equal(abci_interface_host("=lo", host, sizeof(host)), ABC_OK);
    assert_string_equal(host, "127.0.0.1");
    static const char *const bad[] = {"=l", "=lo0", "nothing"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(abci_interface_host(bad[i], host, sizeof(host)), ABC_ERR_ADDRESS);
        assert_non_null(strstr(abci_error_text(), "there are: lo"));
    }
    /* Where there is more than the loopback, it is taken only when asked for. */
    int others = abci_interface_host("^=lo", host, sizeof(host));
    char chosen[232];
    assert_int_equal(abci_interface_host("", chosen, sizeof(chosen)), ABC_OK);
    if (others == ABC_OK)
        assert_string_equal(host, chosen);
}

static void test_unix_addresses(void **state)
{
    struct abci_address address;
    struct addrinfo *list = NULL;
    char name[64];
    int fd = -1, second = -1;
    snprintf(name, sizeof(name), "unix:@abcomm-test-%d", (int)getpid());
    assert_int_equal(abci_address_parse(name, &address), ABC_OK);
    assert_int_equal(abci_address_resolve(&address, true, &list), ABC_OK);
    assert_int_equal(abci_address_check_open(&address, list), ABC_OK);
    assert_int_equal(abci_address_listen(&address, list, abci_now() + 1, &fd), ABC_OK);
    int client = abci_address_connect(list, 1, abci_now() + 1), server = abci_socket_accept(fd);
    assert_true(client >= 0 && server >= 0 && abci_unix_same_user(client) && abci_unix_same_user(server));
    assert_int_equal(abci_address_listen(&address, list, abci_now(), &second), ABC_ERR_ADDRESS);
    assert_non_null(strstr(abci_error_text(), "is taken"));
    abci_socket_close(client);
    abci_socket_close(server);
    abci_socket_close(fd);
    abci_address_free(list);
    assert_int_equal(abci_address_parse("unix:/tmp/x", &address), ABC_ERR_ADDRESS);
    assert_int_equal(abci_address_parse("unix:@", &address), ABC_ERR_ADDRESS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each),           cmocka_unit_test(test_same_job_same_name), cmocka_unit_test(test_together),
        cmocka_unit_test(test_contradictions), cmocka_unit_test(test_incomplete),         cmocka_unit_test(test_hccl_names),
        cmocka_unit_test(test_interfaces),     cmocka_unit_test(test_unix_addresses),
    };
    return cmocka_run_group_tests_name("describe", tests, NULL, NULL);
}
