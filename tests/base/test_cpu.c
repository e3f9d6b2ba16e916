/*
 * test_cpu.c - how many CPUs the process may use: cgroup quotas of both versions read from folders of fake files, and the affinity
 * mask of the running process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"

static char root[64];

/* Write a file below root, making its folders. */
static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/abcomm-cpu-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    return system(command);
}

static void assert_quota(double expected)
{
    double quota = abci_cpu_quota(root);
    if (quota != expected)
        fail_msg("quota %g, not %g", quota, expected);
}

static void test_v2(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/user.slice/job\n");
    put("/sys/fs/cgroup/user.slice/job/cpu.max", "150000 100000\n");
    assert_quota(1.5);
    /* The least of the path counts, the folder of somebody else does not. */
    put("/sys/fs/cgroup/user.slice/cpu.max", "125000 100000\n");
    put("/sys/fs/cgroup/other.slice/cpu.max", "10000 100000\n");
    assert_quota(1.25);
    put("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
    assert_quota(1.5);
    put("/sys/fs/cgroup/user.slice/job/cpu.max", "max 100000\n");
    assert_quota(0);
}

static void test_v2_container(void **state)
{
    (void)state;
    put("/sys/fs/cgroup/cpu.max", "300000 100000\n");
    put("/proc/self/cgroup", "0::/\n");
    assert_quota(3);
    put("/proc/self/cgroup", "0::/not/mounted/here\n");
    assert_quota(3);
    put("/proc/self/cgroup", "0::/../other\n");
    put("/sys/fs/other/cpu.max", "100000 100000\n");
    assert_quota(3);
}

static void test_v1(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n0::/docker/x\n");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "250000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
    assert_quota(2.5);
    put("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n");
    assert_quota(0);
}

/* Both versions mounted: version 1 has the controller, the unified folder says nothing; and the link under the single name. */
static void test_hybrid(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "1:cpu:/\n2:cpuset:/\n0::/\n");
    put("/sys/fs/cgroup/unified/cgroup.procs", "1\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "1\n");
    put("/sys/fs/cgroup/cpuset/cpu.cfs_period_us", "100000\n");
    assert_quota(0.5);
}

static void test_nonsense(void **state)
{
    (void)state;
    assert_quota(0); /* no file at all */
    static const char *const lines[] = {"", "\n", "0", "0:", "0::", "0::/a/b/c", ":::::\n", "4:cpu", "4:cpu:", "x:y:z"};
    static const char *const limits[] = {"", "max", "1 0", "0 0", "-5 100000", "nan nan", "a b", "100000"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        for (size_t k = 0; k < sizeof limits / sizeof limits[0]; k++) {
            put("/proc/self/cgroup", lines[i]);
            put("/sys/fs/cgroup/cpu.max", limits[k]);
            assert_quota(0);
        }
    static char deep[9000] = "0::";
    for (int i = 0; i < 4000; i++)
        strcat(deep, "/x");
    put("/proc/self/cgroup", deep);
    put("/sys/fs/cgroup/cpu.max", "200000 100000");
    abci_cpu_quota(root);
}

static void test_available(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(abci_cpu_affinity(), CPU_COUNT(&before));
    double all = abci_cpu_available();
    assert_true(all >= 1 && all <= CPU_COUNT(&before));
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &before)) {
            CPU_SET(i, &one);
            break;
        }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_true(abci_cpu_available() == all); /* kept */
    abci_cpu_refresh();
    assert_true(abci_cpu_available() == 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    abci_cpu_refresh();
    assert_true(abci_cpu_available() == all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_v2, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_v2_container, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_v1, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_hybrid, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_nonsense, make_root, remove_root),
        cmocka_unit_test(test_available),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
