/*
 * run_start.c - `abcomm run` up to the moment when the ranks run: command line, job key, listening socket, limits, signals, and the
 * birth of one rank. run.c's loop follows. One thread.
 */
#include "run.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools.h"

#define KEY_BYTES 32

/* ---- options ---- */

static void print_help(void)
{
    printf(
        "usage: abcomm run -n N [OPTIONS] [--] PROGRAM [ARGUMENTS]\n\n"
        "Start PROGRAM as N ranks (1 to %d) on this machine. Each finds its rank, the number of ranks, rank 0's address and the\n"
        "job key in its environment; abc_comm_create(NULL, ...) reads them.\n\n"
        "  -n N                        number of ranks\n"
        "      --tag-output=auto|yes|no  prefix lines with [rank]: once more than one rank prints (auto), always, or never\n"
        "                              (no: the ranks write to the terminal themselves)\n"
        "      --grace=SECONDS         how long the others may go on when a rank has failed (5); then SIGTERM, then SIGKILL\n"
        "      --keep-going            leave the others alone when a rank has failed\n"
        "      --timeout=SECONDS       end the job after that time, with exit code %d\n"
        "      --env NAME=VALUE        set a variable for all ranks; may be repeated\n\n"
        "Rank 0 reads the standard input. The exit code is that of the first rank that failed, 128 + N for signal N.\n",
        RANKS_MOST, EXIT_TIMEOUT);
}

/* A number of seconds from `low`; false if it is none. */
static bool parse_seconds(const char *text, double low, double *seconds)
{
    char *end;
    *seconds = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*seconds) && *seconds >= low && *seconds <= 1e7;
}

static bool parse_ranks(const char *text, int *nranks)
{
    char *end;
    long value = strtol(text, &end, 10);
    *nranks = (int)value;
    return end != text && *end == '\0' && value >= 1 && value <= RANKS_MOST;
}

static bool parse_tag(const char *text, enum tag_output *tag)
{
    static const char *const names[] = {[TAG_AUTO] = "auto", [TAG_YES] = "yes", [TAG_NO] = "no"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *tag = (enum tag_output)i;
            return true;
        }
    }
    return false;
}

static int parse_option(struct job *job, int option)
{
    switch (option) {
    case 'n':
        return parse_ranks(optarg, &job->nranks) ? 0 : tool_misuse("run", "-n %s: give a number from 1 to %d", optarg, RANKS_MOST);
    case 't':
        return parse_tag(optarg, &job->tag) ? 0 : tool_misuse("run", "--tag-output=%s: give auto, yes or no", optarg);
    case 'g':
        return parse_seconds(optarg, 0, &job->grace) ? 0 : tool_misuse("run", "--grace=%s: give seconds, 0 or more", optarg);
    case 'T':
        return parse_seconds(optarg, 1e-3, &job->timeout) ? 0 : tool_misuse("run", "--timeout=%s: give seconds above 0", optarg);
    case 'k':
        job->keep_going = true;
        return 0;
    case 'e':
        if (strchr(optarg, '=') == NULL || optarg[0] == '=')
            return tool_misuse("run", "--env %s: give NAME=VALUE", optarg);
        if (job->environment_count == ENV_MOST)
            return tool_misuse("run", "--env may be given %d times", ENV_MOST);
        job->environment[job->environment_count++] = optarg;
        return 0;
    default:
        return tool_misuse("run", "an option is unknown or has no value");
    }
}

int run_parse(struct job *job, int argc, char **argv)
{
    static const struct option options[] = {{"tag-output", required_argument, NULL, 't'},
                                            {"grace", required_argument, NULL, 'g'},
                                            {"timeout", required_argument, NULL, 'T'},
                                            {"keep-going", no_argument, NULL, 'k'},
                                            {"env", required_argument, NULL, 'e'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int option;
    optind = 1;
    while ((option = getopt_long(argc, argv, "+n:h", options, NULL)) != -1) {
        if (option == 'h') {
            print_help();
            return 1;
        }
        int code = parse_option(job, option);
        if (code != 0)
            return code + 1;
    }
    if (job->nranks == 0)
        return tool_misuse("run", "the number of ranks is missing: -n N") + 1;
    if (optind == argc)
        return tool_misuse("run", "no program was named") + 1;
    job->program = argv + optind;
    return 0;
}

/* ---- before the ranks start ---- */

static int setup_failed(const char *what)
{
    fprintf(stderr, "abcomm run: %s: %s\n", what, strerror(errno));
    return 1;
}

/* The job key in memory that every rank can read again and again and none can change. */
static int make_key(struct job *job)
{
    unsigned char key[KEY_BYTES];
    job->key_fd = memfd_create("abcomm-key", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (job->key_fd < 0 || getrandom(key, sizeof(key), 0) != (ssize_t)sizeof(key) ||
        write(job->key_fd, key, sizeof(key)) != (ssize_t)sizeof(key))
        return setup_failed("cannot make the job key");
    if (fcntl(job->key_fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return setup_failed("cannot seal the job key");
    explicit_bzero(key, sizeof(key));
    return 0;
}

static int make_listener(struct job *job)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    job->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (job->listen_fd < 0 || bind(job->listen_fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(job->listen_fd, SOMAXCONN) != 0 || getsockname(job->listen_fd, (struct sockaddr *)&address, &length) != 0)
        return setup_failed("cannot listen on 127.0.0.1");
    snprintf(job->address, sizeof(job->address), "127.0.0.1:%d", ntohs(address.sin_port));
    return 0;
}

/* Room for the pipes of all ranks; each rank gets the limit back that we had. */
static int raise_file_limit(struct job *job)
{
    rlim_t needed = (rlim_t)job->nranks * 2 + 32;
    if (getrlimit(RLIMIT_NOFILE, &job->files) != 0)
        return setup_failed("cannot read the limit of open files");
    struct rlimit raised = {.rlim_cur = job->files.rlim_max, .rlim_max = job->files.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) != 0)
        raised.rlim_cur = job->files.rlim_cur;
    if (job->tag != TAG_NO && raised.rlim_cur < needed) {
        fprintf(stderr,
                "abcomm run: %d ranks need %llu open files and the limit is %llu; raise it (ulimit -n), or use --tag-output=no\n",
                job->nranks, (unsigned long long)needed, (unsigned long long)raised.rlim_cur);
        return 1;
    }
    return 0;
}

/* Signals come through a descriptor, so that nothing is interrupted. */
static int take_signals(struct job *job)
{
    static const int wanted[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP, SIGCHLD};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        sigaddset(&set, wanted[i]);
    signal(SIGCHLD, SIG_DFL); /* ignored, it would let children vanish without a status */
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    if (sigaction(SIGPIPE, &ignore, &job->on_pipe) != 0 || sigprocmask(SIG_BLOCK, &set, &job->mask) != 0)
        return setup_failed("cannot set up signals");
    job->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return job->signal_fd < 0 ? setup_failed("cannot set up signals") : 0;
}

/* A closed standard descriptor would otherwise become the key or a pipe. */
static int hold_standard_descriptors(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
        if (fd < 0)
            return setup_failed("cannot open /dev/null");
    } while (fd <= 2);
    close(fd);
    return 0;
}

/* ---- starting a rank ---- */

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", number);
    setenv(name, text, 1);
}

static void set_rank_environment(const struct job *job, int rank)
{
    /* A job inside a job, or a key of the user's own, must not mix with this one. */
    unsetenv("ABCOMM_KEY_FILE");
    unsetenv("ABCOMM_LISTEN_FD");
    for (int i = 0; i < job->environment_count; i++) {
        const char *equals = strchr(job->environment[i], '=');
        char *name = strndup(job->environment[i], (size_t)(equals - job->environment[i]));
        if (name != NULL)
            setenv(name, equals + 1, 1);
        free(name);
    }
    set_number("ABCOMM_RANK", rank);
    set_number("ABCOMM_SIZE", job->nranks);
    setenv("ABCOMM_ADDR", job->address, 1);
    set_number("ABCOMM_KEY_FD", job->key_fd);
    if (rank == 0)
        set_number("ABCOMM_LISTEN_FD", job->listen_fd);
}

/* In the new process: become the rank, or report errno through `report`. */
static void become_rank(const struct job *job, int rank, pid_t launcher, int out, int err, int report)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher)
        _exit(1); /* the launcher died before the line above */
    if (rank != 0) {
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (null < 0 || dup2(null, STDIN_FILENO) < 0)
            goto failed;
    }
    if (out >= 0 && (dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0))
        goto failed;
    if (fcntl(job->key_fd, F_SETFD, 0) != 0 || (rank == 0 && fcntl(job->listen_fd, F_SETFD, 0) != 0))
        goto failed;
    setrlimit(RLIMIT_NOFILE, &job->files);
    set_rank_environment(job, rank);
    sigaction(SIGPIPE, &job->on_pipe, NULL);
    sigprocmask(SIG_SETMASK, &job->mask, NULL);
    execvp(job->program[0], job->program);
failed:;
    int error = errno;
    ssize_t sent = write(report, &error, sizeof(error));
    _exit(sent == (ssize_t)sizeof(error) ? EXIT_NOT_RUN : 1);
}

static void close_pair(const int pair[2])
{
    for (int i = 0; i < 2; i++) {
        if (pair[i] >= 0)
            close(pair[i]);
    }
}

/* Wait until the new process runs the program; 0 or the error. The pipe closes by itself when exec succeeds. */
static int await_exec(int report)
{
    int error = 0;
    ssize_t got;
    do
        got = read(report, &error, sizeof(error));
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof(error) ? error : 0;
}

int run_start_rank(struct job *job, int rank)
{
    struct child *child = &job->children[rank];
    int out[2] = {-1, -1}, err[2] = {-1, -1}, report[2] = {-1, -1}, error = 0;
    bool piped = job->tag != TAG_NO;
    pid_t launcher = getpid();
    if (pipe2(report, O_CLOEXEC) != 0 || (piped && (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)) ||
        (child->pid = fork()) < 0) {
        error = errno;
        close_pair(report);
        close_pair(out);
        close_pair(err);
        return error;
    }
    if (child->pid == 0)
        become_rank(job, rank, launcher, out[1], err[1], report[1]);
    close(report[1]);
    error = await_exec(report[0]);
    close(report[0]);
    child->running = true;
    job->running++;
    child->out = (struct stream){.fd = out[0], .rank = rank, .sink = &job->out};
    child->err = (struct stream){.fd = err[0], .rank = rank, .sink = &job->err};
    if (piped) {
        close(out[1]);
        close(err[1]);
        fcntl(out[0], F_SETFL, O_NONBLOCK);
        fcntl(err[0], F_SETFL, O_NONBLOCK);
    }
    return error;
}

int run_prepare(struct job *job)
{
    return hold_standard_descriptors() != 0 || make_key(job) != 0 || make_listener(job) != 0 || raise_file_limit(job) != 0 ||
           take_signals(job) != 0;
}
