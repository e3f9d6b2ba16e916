/*
 * test_launch.c - the environment of a job: what is missing, what contradicts, and the key. The environment is read once a
 * process, so each case is a child that reports status and text through a pipe.
 */
#include "ranks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

struct report {
    int status;
    struct abci_launch launch;
    char text[1024];
};

/* Detect in a child whose environment has these variables, "NAME=value". */
static struct report detect(const char *const *variables)
{
    struct report report = {.status = 99};
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        clearenv();
        for (; *variables != NULL; variables++)
            putenv((char *)*variables);
        report.status = abci_launch_detect(&report.launch);
        if (report.status == ABC_OK) /* twice, because the key must be readable again */
            report.status = abci_launch_detect(&report.launch);
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

static void refuses(struct report report, int status, const char *part)
{
    if (report.status != status)
        fail_msg("status %d instead of %d: %s", report.status, status, report.text);
    assert_mentions(report.text, part);
}

static void test_complete(void **state)
{
    struct report report = DETECT("ABCOMM_RANK=2", "ABCOMM_SIZE=4", "ABCOMM_ADDR=127.0.0.1:5000");
    assert_int_equal(report.status, ABC_OK);
    assert_int_equal(report.launch.rank, 2);
    assert_int_equal(report.launch.nranks, 4);
    assert_string_equal(report.launch.address, "127.0.0.1:5000");
    assert_int_equal(report.launch.listen_fd, -1);
    assert_int_equal(report.launch.have_key, 0);
    report = DETECT("ABCOMM_RANK=0", "ABCOMM_SIZE=1"); /* alone: nobody to meet */
    assert_int_equal(report.status, ABC_OK);
}

static void test_missing_and_contradicting(void **state)
{
    refuses(DETECT("PATH=/bin"), ABC_ERR_ENVIRONMENT, "not part of a job");
    refuses(DETECT("ABCOMM_SIZE=4", "ABCOMM_ADDR=h:1"), ABC_ERR_ENVIRONMENT, "ABCOMM_RANK is not set");
    refuses(DETECT("ABCOMM_RANK=0", "ABCOMM_ADDR=h:1"), ABC_ERR_ENVIRONMENT, "ABCOMM_SIZE is not set");
    refuses(DETECT("ABCOMM_RANK=0"), ABC_ERR_ENVIRONMENT, "ABCOMM_SIZE, ABCOMM_ADDR are not set");
    refuses(DETECT("ABCOMM_RANK=0", "ABCOMM_SIZE=2"), ABC_ERR_ENVIRONMENT, "ABCOMM_ADDR is not set");
    refuses(DETECT("ABCOMM_RANK=4", "ABCOMM_SIZE=4", "ABCOMM_ADDR=h:1"), ABC_ERR_ENVIRONMENT, "ranks are 0 to 3");
    refuses(DETECT("ABCOMM_RANK=0", "ABCOMM_SIZE=0", "ABCOMM_ADDR=h:1"), ABC_ERR_ENVIRONMENT, "ABCOMM_SIZE=0");
    refuses(DETECT("ABCOMM_RANK=1", "ABCOMM_SIZE=2", "ABCOMM_ADDR=h:1", "ABCOMM_LISTEN_FD=0"), ABC_ERR_ENVIRONMENT,
            "only rank 0 listens");
    refuses(DETECT("ABCOMM_RANK=0", "ABCOMM_SIZE=2", "ABCOMM_ADDR=h:1", "ABCOMM_LISTEN_FD=900"), ABC_ERR_ENVIRONMENT,
            "not a listening socket");
    char address[400] = "ABCOMM_ADDR=";
    memset(address + strlen(address), 'h', 300);
    refuses(DETECT("ABCOMM_RANK=0", "ABCOMM_SIZE=2", address), ABC_ERR_ENVIRONMENT, "ABCOMM_ADDR has 300 bytes");
}

static void write_key(const char *path, size_t length, mode_t mode)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    for (size_t i = 0; i < length; i++)
        assert_int_equal(write(fd, "k", 1), 1);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void test_key_file(void **state)
{
    char folder[] = "/tmp/abcomm-test-XXXXXX", path[64], setting[96];
    unsigned char expected[ABCI_KEY_BYTES];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/key", folder);
    snprintf(setting, sizeof(setting), "ABCOMM_KEY_FILE=%s", path);
    const char *const job[] = {"ABCOMM_RANK=0", "ABCOMM_SIZE=2", "ABCOMM_ADDR=127.0.0.1:5000", setting, NULL};
    refuses(detect(job), ABC_ERR_AUTH, "cannot be opened");
    write_key(path, 16, 0600);
    struct report report = detect(job);
    assert_int_equal(report.status, ABC_OK);
    assert_int_equal(report.launch.have_key, 1);
    assert_int_equal(abci_key_derive("kkkkkkkkkkkkkkkk", 16, expected), ABC_OK);
    assert_memory_equal(report.launch.key, expected, sizeof(expected));
    write_key(path, 15, 0600);
    refuses(detect(job), ABC_ERR_AUTH, "15 bytes");
    write_key(path, 5000, 0600);
    refuses(detect(job), ABC_ERR_AUTH, "more than 4096 bytes");
    write_key(path, 32, 0640);
    refuses(detect(job), ABC_ERR_AUTH, "chmod 600");
    write_key(path, 32, 0604);
    refuses(detect(job), ABC_ERR_AUTH, "mode 0604");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    refuses(detect(job), ABC_ERR_AUTH, "not a regular file"); /* and does not hang */
    unlink(path);
    rmdir(folder);
}

static void test_key_descriptor(void **state)
{
    char setting[64];
    int fd = memfd_create("key", 0);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "0123456789abcdef0123456789abcdef", 32), 32); /* the position is at the end now */
    snprintf(setting, sizeof(setting), "ABCOMM_KEY_FD=%d", fd);
    struct report report = DETECT("ABCOMM_RANK=1", "ABCOMM_SIZE=2", "ABCOMM_ADDR=127.0.0.1:5000", setting);
    assert_int_equal(report.status, ABC_OK);
    assert_int_equal(report.launch.have_key, 1);
    refuses(DETECT("ABCOMM_RANK=1", "ABCOMM_SIZE=2", "ABCOMM_ADDR=127.0.0.1:5000", setting, "ABCOMM_KEY_FILE=/nowhere"),
            ABC_ERR_ENVIRONMENT, "both set");
    close(fd);
    refuses(DETECT("ABCOMM_RANK=1", "ABCOMM_SIZE=2", "ABCOMM_ADDR=127.0.0.1:5000", setting), ABC_ERR_AUTH, "cannot be read");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_complete),
        cmocka_unit_test(test_missing_and_contradicting),
        cmocka_unit_test(test_key_file),
        cmocka_unit_test(test_key_descriptor),
    };
    return cmocka_run_group_tests_name("launch", tests, NULL, NULL);
}
