/*
 * info.c - `abcomm info`: what the library is and what it found on this machine: CPUs, kernels, algorithms, limits, and which
 * system calls a job may use here. The first page of a bug report. Forks one child for a probe and waits for it.
 */
#include "tools.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <linux/membarrier.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <abcomm/abcomm.h>

#include "base/base.h"
#ifdef HAVE_ALGO
#include "plan/plan.h"
#endif
#include "tune/tuning.h"
#ifdef HAVE_REDUCE
#include "reduce/reduce.h"
#endif

/* Answer of a probe: NULL when usable, else why not. */
typedef const char *probe_fn(void);

/* A rank reads a rank that is no child of it. The child reads its parent, which the kernel's rules treat alike. */
static const char *probe_vm_readv(void)
{
    static volatile long word = 0x5eed;
    pid_t child = fork();
    if (child == 0) {
        long copy = 0;
        struct iovec here = {&copy, sizeof copy}, there = {(void *)&word, sizeof word};
        ssize_t n = process_vm_readv(getppid(), &here, 1, &there, 1, 0);
        _exit(n == (ssize_t)sizeof copy && copy == word ? 0 : (n < 0 ? errno & 0x7f : 0x7f));
    }
    int state;
    if (child < 0 || waitpid(child, &state, 0) != child || !WIFEXITED(state))
        return "the probe could not run";
    return WEXITSTATUS(state) ? strerror(WEXITSTATUS(state)) : NULL;
}

static const char *probe_memfd(void)
{
    int fd = memfd_create("abcomm-info", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return strerror(errno);
    int failed = ftruncate(fd, 4096);
    void *map = failed ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const char *why = map == MAP_FAILED ? strerror(errno) : NULL;
    if (map != MAP_FAILED)
        munmap(map, 4096);
    close(fd);
    return why;
}

static const char *probe_membarrier(void)
{
    long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    if (commands < 0)
        return strerror(errno);
    return commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED ? NULL : "no expedited barriers";
}

static const char *probe_pidfd(void)
{
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (fd < 0)
        return strerror(errno);
    close(fd);
    return NULL;
}

static const struct {
    const char *name, *use;
    probe_fn *probe;
} probes[] = {
    {"memfd", "shared segments", probe_memfd},
    {"process_vm_readv", "large private buffers without a copy", probe_vm_readv},
    {"membarrier", "cheap fences between threads", probe_membarrier},
    {"pidfd", "death of a peer is seen at once", probe_pidfd},
};
#define PROBES (sizeof probes / sizeof probes[0])

static json_t *collect_types(void)
{
    json_t *list = json_array();
    for (int i = 0; i < ABC_TYPE_COUNT; i++)
        json_array_append_new(list, json_string(abc_type_name((abc_type)i)));
    return list;
}

static json_t *collect_ops(void)
{
    json_t *list = json_array();
    for (int i = 0; i < ABC_OP_COUNT; i++)
        json_array_append_new(list, json_string(abc_op_name((abc_op)i)));
    json_array_append_new(list, json_string(abc_op_name(ABC_OP_USER)));
    return list;
}

static json_t *collect_collectives(void)
{
    json_t *list = json_array();
    for (int i = 0; i < ABC_COLLECTIVE_COUNT; i++)
        json_array_append_new(list, json_string(abc_collective_name((abc_collective)i)));
    return list;
}

static json_t *collect_algorithms(void)
{
    json_t *list = json_array();
#ifdef HAVE_ALGO
    for (int i = 0; abci_algos[i]; i++)
        json_array_append_new(list, json_string(abci_algos[i]->name));
#endif
    return list;
}

static json_t *collect_limits(void)
{
    struct rlimit files = {0};
    getrlimit(RLIMIT_NOFILE, &files);
    json_t *limits = json_object();
#ifdef HAVE_ALGO
    json_object_set_new(limits, "ranks", json_integer(ABCI_MAX_RANKS));
    json_object_set_new(limits, "plan_steps", json_integer(ABCI_MAX_STEPS));
#endif
    json_object_set_new(limits, "user_operations", json_integer(ABC_OP_LIMIT - ABC_OP_USER));
    json_object_set_new(limits, "open_files", json_integer(files.rlim_cur > INT32_MAX ? INT32_MAX : (json_int_t)files.rlim_cur));
    return limits;
}

static json_t *collect_paths(void)
{
    json_t *paths = json_object();
    for (size_t i = 0; i < PROBES; i++) {
        const char *why = probes[i].probe();
        json_object_set_new(paths, probes[i].name,
                            json_pack("{sb ss ss}", "usable", why == NULL, "use", probes[i].use, "why", why ? why : ""));
    }
    return paths;
}

/* The file that ABCOMM_TUNING names, and whether rank 0 of a job could use it. */
static json_t *collect_tuning(void)
{
    static struct abci_tuning tuning;
    const char *path = abci_setting_string(ABCI_SET_TUNING);
    if (path[0] == 0)
        return json_string("no file, algorithms are chosen by price");
    if (abci_tuning_load(path, &tuning) != ABC_OK)
        return json_string(abci_error_text());
    return json_sprintf("%s, %u row%s", path, tuning.count, tuning.count == 1 ? "" : "s");
}

static json_t *collect(void)
{
    struct utsname kernel;
    uname(&kernel);
    json_t *all = json_object();
    json_object_set_new(all, "version", json_string(abc_version()));
    json_object_set_new(all, "host", json_string(abci_hostname()));
    json_object_set_new(all, "kernel", json_string(kernel.release));
    json_object_set_new(all, "machine", json_string(kernel.machine));
    json_object_set_new(all, "cpus", json_real(abci_cpu_available()));
    json_object_set_new(all, "cpus_affinity", json_integer(abci_cpu_affinity()));
    double quota = abci_cpu_quota("");
    json_object_set_new(all, "cpus_quota", quota > 0 ? json_real(quota) : json_null());
#ifdef HAVE_REDUCE
    json_object_set_new(all, "kernels", json_string(abci_reduce_family()));
#endif
    json_object_set_new(all, "types", collect_types());
    json_object_set_new(all, "operations", collect_ops());
    json_object_set_new(all, "collectives", collect_collectives());
    json_object_set_new(all, "algorithms", collect_algorithms());
    json_object_set_new(all, "tuning", collect_tuning());
    json_object_set_new(all, "limits", collect_limits());
    json_object_set_new(all, "paths", collect_paths());
    return all;
}

/* Labels are the names of the JSON, with spaces. */
static void print_label(const char *before, const char *name)
{
    char label[64];
    snprintf(label, sizeof label, "%s%s", before, name);
    for (char *c = label; *c; c++)
        if (*c == '_' && strcmp(name, "process_vm_readv") != 0)
            *c = ' ';
    printf("%-20s  ", label);
}

static void print_value(const json_t *value)
{
    if (json_is_string(value))
        printf("%s\n", json_string_value(value));
    else if (json_is_null(value))
        printf("no limit\n");
    else
        printf("%.6g\n", json_number_value(value));
}

static void print_list(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        printf("%s%s", i == 0 ? "" : " ", json_string_value(json_array_get(list, i)));
    printf("\n");
}

static void print_text(json_t *all)
{
    const char *name;
    json_t *value;
    json_object_foreach(all, name, value)
    {
        if (json_is_object(value))
            continue;
        print_label("", name);
        if (json_is_array(value))
            print_list(value);
        else
            print_value(value);
    }
    json_object_foreach(json_object_get(all, "limits"), name, value)
    {
        print_label("max ", name);
        print_value(value);
    }
    json_object_foreach(json_object_get(all, "paths"), name, value)
    {
        const char *why = json_string_value(json_object_get(value, "why"));
        print_label("", name);
        printf("%-10s  %s%s%s\n", why[0] ? "not usable" : "usable", json_string_value(json_object_get(value, "use")),
               why[0] ? ": " : "", why);
    }
}

int tool_info(int argc, char **argv)
{
    static const struct option options[] = {{"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
    int json = 0;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (c == 'h') {
            printf("usage: abcomm info [--json]\n\nSay what the library is and what it found on this machine.\n");
            return 0;
        }
        if (c != 'j')
            return tool_misuse("info", "unknown flag '%s'", argv[optind - 1]);
        json = 1;
    }
    if (optind < argc)
        return tool_misuse("info", "unexpected argument '%s'", argv[optind]);
    if (abci_settings_load() != ABC_OK)
        fprintf(stderr, "abcomm info: %s\n", abci_error_text());
    json_t *all = collect();
    if (!all)
        return 1;
    int failed = 0;
    if (json) {
        failed = json_dumpf(all, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        print_text(all);
    }
    json_decref(all);
    return failed ? 1 : 0;
}
