/*
 * surround.c - runs a command on a poorer machine: surround [no-readv] [one-cpu] [files N] [shm KB] [quota CPUS] -- COMMAND...
 * no-readv: process_vm_readv is forbidden (seccomp); one-cpu: bound to one; files: RLIMIT_NOFILE; shm: a /dev/shm of so many KB in
 * a mount namespace of its own; quota: a control group of version 2 or 1 that is removed again. Its exit code is the command's, or
 * 77 with a reason when this machine does not let itself be made poorer.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PERIOD 100000 /* us */

static char group[96]; /* the control group, empty: none */

static void skip(const char *what)
{
    printf("skip: %s: %s\n", what, strerror(errno));
    if (group[0])
        rmdir(group);
    exit(77);
}

static bool write_text(const char *folder, const char *file, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Does this version 2 hierarchy hand the cpu controller to its groups? */
static bool grants_cpu(const char *root)
{
    char path[128], line[256] = "";
    snprintf(path, sizeof path, "%s/cgroup.subtree_control", root);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    char *got = fgets(line, sizeof line, file);
    fclose(file);
    line[strcspn(line, "\n")] = 0;
    for (char *rest = line, *word; got && (word = strsep(&rest, " "));)
        if (strcmp(word, "cpu") == 0)
            return true;
    return false;
}

static void make_group(double cpus)
{
    char text[64];
    bool v2 = grants_cpu("/sys/fs/cgroup");
    snprintf(group, sizeof group, "/sys/fs/cgroup/%sabcomm-odd-%d", v2 ? "" : "cpu/", (int)getpid());
    if (mkdir(group, 0755) != 0) {
        char reason[160];
        snprintf(reason, sizeof reason, "no control group %s can be made", group);
        group[0] = 0;
        skip(reason);
    }
    snprintf(text, sizeof text, v2 ? "%.0f %d" : "%.0f", cpus * PERIOD, PERIOD);
    if (!write_text(group, v2 ? "cpu.max" : "cpu.cfs_quota_us", text))
        skip("the control group takes no quota");
}

/* Its groups are freed a moment after its last process has gone. */
static void remove_group(void)
{
    for (int i = 0; group[0] && rmdir(group) != 0 && errno == EBUSY && i < 200; i++)
        usleep(10000);
}

static void forbid_readv(void)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        skip("seccomp filters are not allowed");
}

static void one_cpu(void)
{
    cpu_set_t set, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        skip("the affinity mask cannot be read");
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &set))
            CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        skip("the affinity mask cannot be set");
}

static void small_shm(const char *kilobytes)
{
    char options[32];
    snprintf(options, sizeof options, "size=%sk", kilobytes);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, options) != 0)
        skip("no /dev/shm of our own can be mounted");
}

static void limit_files(const char *number)
{
    struct rlimit l = {strtoul(number, NULL, 10), strtoul(number, NULL, 10)};
    if (setrlimit(RLIMIT_NOFILE, &l) != 0)
        skip("setrlimit");
}

/* In the child: become poor, in the order of the words, and run the command. */
static void run(char **words)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (group[0] && !write_text(group, "cgroup.procs", "0"))
        skip("the control group takes no process");
    for (; *words && strcmp(*words, "--") != 0; words++) {
        if (strcmp(*words, "no-readv") == 0)
            forbid_readv();
        else if (strcmp(*words, "one-cpu") == 0)
            one_cpu();
        else if (strcmp(*words, "files") == 0)
            limit_files(*++words);
        else if (strcmp(*words, "shm") == 0)
            small_shm(*++words);
        else if (strcmp(*words, "quota") == 0)
            words++;
    }
    if (*words)
        execvp(words[1], words + 1);
    fprintf(stderr, "surround: cannot run the command: %s\n", strerror(errno));
    exit(126);
}

int main(int argc, char **argv)
{
    int state;
    for (int i = 1; i + 1 < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "quota") == 0)
            make_group(atof(argv[i + 1]));
    pid_t child = fork();
    if (child == 0) {
        run(argv + 1);
        return 126;
    }
    if (child < 0 || waitpid(child, &state, 0) != child)
        return 126;
    remove_group();
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}
