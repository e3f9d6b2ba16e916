/*
 * cpu.c - how much CPU this process may really use: the affinity mask and the quota of its cgroups (version 2 and 1). The waiting
 * loops and the cost model ask. Reads small files once; afterwards one load. Any thread.
 *
 * A quota holds for a whole subtree, so every folder from the process's own up to the mount point is asked and the least grant
 * counts. In a container the path in /proc/self/cgroup may not exist below the mount; then the walk up ends at the container's
 * root.
 */
#include "base/base.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_SIZE 4096
#define CPUS_FIRST 1024
#define CPUS_LAST (1 << 20)

int abci_cpu_affinity(void)
{
    /* The kernel refuses a set that is smaller than its own. */
    for (int cpus = CPUS_FIRST; cpus <= CPUS_LAST; cpus *= 4) {
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        cpu_set_t *set = abci_alloc(bytes);
        if (!set)
            break;
        int failed = sched_getaffinity(0, bytes, set);
        int reason = errno;
        int count = failed ? 0 : CPU_COUNT_S(bytes, set);
        abci_free(set);
        if (count > 0)
            return count;
        if (failed && reason != EINVAL)
            break;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

void abci_cpu_mask(uint64_t mask[16])
{
    cpu_set_t set;
    memset(mask, 0, 16 * sizeof mask[0]);
    if (sched_getaffinity(0, sizeof set, &set) != 0) /* more than 1024 CPUs: then the first ones count */
        memset(&set, 0xff, sizeof set);
    for (int cpu = 0; cpu < CPUS_FIRST; cpu++)
        if (CPU_ISSET(cpu, &set))
            mask[cpu / 64] |= 1ull << (cpu % 64);
}

/* First line of a file. */
static bool read_line(const char *path, char *line, size_t capacity)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool ok = fgets(line, (int)capacity, file) != NULL;
    fclose(file);
    return ok;
}

static double least(double a, double b)
{
    if (a <= 0)
        return b;
    return b > 0 && b < a ? b : a;
}

/* What one folder grants: cpu.max "150000 100000" or "max 100000"; cpu.cfs_quota_us (-1: none) and cpu.cfs_period_us. 0: no limit.
 */
static double folder_quota(const char *folder, bool v2)
{
    char path[PATH_SIZE + 32], line[128];
    double quota = 0, period = 0;
    if (v2) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lf %lf", &quota, &period) != 2)
            return 0;
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lf", &quota) != 1)
            return 0;
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lf", &period) != 1)
            return 0;
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* Least grant from mount/group up to mount. */
static double walk_up(const char *mount, const char *group, bool v2)
{
    char folder[PATH_SIZE];
    size_t base = strlen(mount);
    /* Outside its namespace a group shows as "/../x": nothing below the mount is ours, the mount itself is. */
    int length = snprintf(folder, sizeof folder, "%s%s", mount, strstr(group, "..") ? "" : group);
    if (length < 0 || (size_t)length >= sizeof folder)
        return 0;
    double quota = 0;
    for (;;) {
        quota = least(quota, folder_quota(folder, v2));
        char *slash = strrchr(folder + base, '/');
        if (!slash)
            return quota;
        *slash = 0;
    }
}

static bool has_cpu_controller(const char *list)
{
    char copy[256];
    snprintf(copy, sizeof copy, "%s", list);
    char *rest = NULL;
    for (char *name = strtok_r(copy, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        if (strcmp(name, "cpu") == 0)
            return true;
    return false;
}

/* One line of /proc/self/cgroup, "id:controllers:/group"; version 2 has id 0 and no controllers. */
static double line_quota(const char *root, char *line)
{
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return 0;
    *controllers++ = 0;
    *group++ = 0;
    char mount[PATH_SIZE];
    if (strcmp(line, "0") == 0 && controllers[0] == 0) {
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
        double quota = walk_up(mount, group, true);
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/unified", root);
        return least(quota, walk_up(mount, group, true));
    }
    if (!has_cpu_controller(controllers))
        return 0;
    /* Named after all its controllers ("cpu,cpuacct") or linked under the one name. */
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/%s", root, controllers);
    double quota = walk_up(mount, group, false);
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/cpu", root);
    return least(quota, walk_up(mount, group, false));
}

double abci_cpu_quota(const char *root)
{
    char path[PATH_SIZE], line[PATH_SIZE];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    double quota = 0;
    while (fgets(line, sizeof line, file))
        quota = least(quota, line_quota(root, line));
    fclose(file);
    return quota;
}

/* Bits of the answer, 0 before the first question. Two threads that ask first both find the same. */
static uint64_t cached;

void abci_cpu_refresh(void)
{
    double cpus = least((double)abci_cpu_affinity(), abci_cpu_quota(""));
    if (cpus < 1)
        cpus = 1;
    uint64_t bits;
    memcpy(&bits, &cpus, sizeof bits);
    __atomic_store_n(&cached, bits, __ATOMIC_RELAXED);
}

double abci_cpu_available(void)
{
    uint64_t bits = __atomic_load_n(&cached, __ATOMIC_RELAXED);
    if (ABCI_UNLIKELY(bits == 0)) {
        abci_cpu_refresh();
        bits = __atomic_load_n(&cached, __ATOMIC_RELAXED);
    }
    double cpus;
    memcpy(&cpus, &bits, sizeof cpus);
    return cpus;
}
