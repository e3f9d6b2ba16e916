/*
 * run.c - `abcomm run`: starts a program as N ranks on this machine and stays their parent. It makes the job key and rank 0's
 * listening socket, hands both over as inherited descriptors, merges the output (run_output.c), forwards signals, and ends the job
 * when a rank dies. One thread, one poll loop; it takes no part in the communication. Should it be killed, the ranks die with it.
 */
#include "tools.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "run_output.h"

#define RANKS_MOST 1024
#define KEY_BYTES 32
#define ENV_MOST 64
#define TERM_SECONDS 2.0  /* from SIGTERM to SIGKILL */
#define KILL_SECONDS 10.0 /* from SIGKILL until the launcher gives up on a rank that the kernel holds */
#define EXIT_TIMEOUT 124
#define EXIT_NOT_RUN 127

/* How far the end of the job has got: let ranks end by themselves, ask them, force them, give them up. */
enum stage { RUNNING, GRACE, TERMINATED, KILLED, GIVEN_UP };

struct child {
    pid_t pid;
    bool running;
    struct stream out, err;
};

struct job {
    /* options */
    int nranks;
    enum tag_output tag;
    double grace, timeout;
    bool keep_going;
    const char *environment[ENV_MOST];
    int environment_count;
    char **program;
    /* what ranks inherit */
    int key_fd, listen_fd;
    char address[32];
    struct rlimit files;
    sigset_t mask;
    struct sigaction on_pipe;
    /* state */
    struct child *children;
    int running, signal_fd;
    enum stage stage;
    double due; /* of the next stage, or of the timeout while RUNNING */
    bool interrupted;
    int code;        /* of the first failure */
    int first, more; /* first rank that failed, -1: none; how many failed after it */
    struct tagger tagger;
    struct sink out, err;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A line of the launcher's own, in order with the ranks' stderr. */
static void say(struct job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct job *job, const char *format, ...)
{
    char line[1024] = "abcomm run: ";
    size_t used = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + used, sizeof(line) - used - 1, format, arguments);
    va_end(arguments);
    used = strlen(line);
    line[used++] = '\n';
    sink_add(&job->err, line, used);
}

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

/* 0: go on; else the exit code plus one. */
static int parse_arguments(struct job *job, int argc, char **argv)
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
        listen(job->listen_fd, RANKS_MOST) != 0 || getsockname(job->listen_fd, (struct sockaddr *)&address, &length) != 0)
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

/* Start one rank; 0 or an error number. */
static int start_rank(struct job *job, int rank)
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

/* ---- while the ranks run ---- */

static void signal_all(const struct job *job, int number)
{
    for (int rank = 0; rank < job->nranks; rank++) {
        if (job->children[rank].running)
            kill(job->children[rank].pid, number);
    }
}

/* "rank 3" or "4 ranks": who still runs. */
static const char *still_running(const struct job *job)
{
    static char text[32];
    int last = -1;
    for (int rank = 0; rank < job->nranks; rank++) {
        if (job->children[rank].running)
            last = rank;
    }
    if (job->running == 1)
        snprintf(text, sizeof(text), "rank %d still runs", last);
    else
        snprintf(text, sizeof(text), "%d ranks still run", job->running);
    return text;
}

/* Go one stage further towards the end of the job. */
static void next_stage(struct job *job)
{
    job->stage++;
    if (job->stage == GRACE) {
        job->due = now() + job->grace;
    } else if (job->stage == TERMINATED) {
        say(job, "%s; sending SIGTERM", still_running(job));
        signal_all(job, SIGTERM);
        signal_all(job, SIGCONT); /* a stopped rank would not get it */
        job->due = now() + TERM_SECONDS;
    } else if (job->stage == KILLED) {
        say(job, "%s; sending SIGKILL", still_running(job));
        signal_all(job, SIGKILL);
        job->due = now() + KILL_SECONDS;
    } else {
        say(job, "%s after SIGKILL; leaving", still_running(job));
    }
}

static void on_due(struct job *job)
{
    if (job->stage == RUNNING) {
        say(job, "the job has not ended within %g s", job->timeout);
        if (job->first < 0)
            job->code = EXIT_TIMEOUT;
        job->stage = GRACE; /* its time is over */
    }
    next_stage(job);
}

/* One rank has ended. */
static void on_exit_of(struct job *job, int rank, int status)
{
    struct child *child = &job->children[rank];
    child->running = false;
    job->running--;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    bool first = job->first < 0;
    if (first) {
        job->first = rank;
        if (job->code == 0)
            job->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    } else if (job->stage < TERMINATED) {
        job->more++;
    }
    if ((first && job->stage < TERMINATED) || job->keep_going) {
        if (WIFSIGNALED(status))
            say(job, "rank %d (pid %d) was killed by signal %d (%s)", rank, (int)child->pid, WTERMSIG(status),
                strsignal(WTERMSIG(status)));
        else
            say(job, "rank %d (pid %d) exited with code %d", rank, (int)child->pid, WEXITSTATUS(status));
    }
    if (!job->keep_going && job->stage == RUNNING)
        next_stage(job);
}

static void reap(struct job *job)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (int rank = 0; rank < job->nranks; rank++) {
            if (job->children[rank].running && job->children[rank].pid == pid) {
                on_exit_of(job, rank, status);
                break;
            }
        }
    }
}

/* A signal for the job. What the terminal sends goes to the whole process group: the ranks have it already. */
static void forward(struct job *job, int number, bool from_terminal)
{
    if (!from_terminal || number == SIGCONT)
        signal_all(job, number);
    if (number == SIGTSTP) {
        raise(SIGSTOP);
        return;
    }
    if (number == SIGUSR1 || number == SIGUSR2 || number == SIGCONT)
        return;
    /* A first interrupt is the program's to handle; a second one, and the others, mean the end. */
    bool again = job->interrupted;
    job->interrupted = true;
    if (again && job->stage < TERMINATED) {
        job->stage = GRACE;
        next_stage(job);
    } else if (!again && (number == SIGTERM || number == SIGHUP) && job->stage == RUNNING) {
        next_stage(job);
    }
}

static void on_signals(struct job *job)
{
    struct signalfd_siginfo info;
    while (read(job->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            reap(job);
        else
            forward(job, (int)info.ssi_signo, info.ssi_code == SI_KERNEL);
    }
}

/* A stream is worth polling if it is open and its reader keeps up; a broken sink is read once more, to be closed. */
static int polled(const struct stream *stream)
{
    return stream->fd >= 0 && sink_has_room(stream->sink) ? stream->fd : -1;
}

/* Sleep until something happens and handle it. */
static void turn(struct job *job, struct pollfd *polls)
{
    polls[0] = (struct pollfd){.fd = job->signal_fd, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = job->out.used > 0 ? job->out.fd : -1, .events = POLLOUT};
    polls[2] = (struct pollfd){.fd = job->err.used > 0 ? job->err.fd : -1, .events = POLLOUT};
    for (int rank = 0; rank < job->nranks; rank++) {
        polls[3 + 2 * rank] = (struct pollfd){.fd = polled(&job->children[rank].out), .events = POLLIN};
        polls[4 + 2 * rank] = (struct pollfd){.fd = polled(&job->children[rank].err), .events = POLLIN};
    }
    double left = job->running > 0 ? job->due - now() : INFINITY;
    int milliseconds = left > 1e6 ? -1 : left <= 0 ? 0 : (int)(left * 1000) + 1;
    if (poll(polls, (nfds_t)job->nranks * 2 + 3, milliseconds) > 0) {
        for (int rank = 0; rank < job->nranks; rank++) {
            if (polls[3 + 2 * rank].revents != 0)
                stream_read(&job->children[rank].out, &job->tagger);
            if (polls[4 + 2 * rank].revents != 0)
                stream_read(&job->children[rank].err, &job->tagger);
        }
        if (polls[1].revents != 0)
            sink_write(&job->out);
        if (polls[2].revents != 0)
            sink_write(&job->err);
        if (polls[0].revents != 0)
            on_signals(job);
    }
    if (job->running > 0 && now() >= job->due)
        on_due(job);
}

/* All ranks have ended: bring out what they left in their pipes. */
static void finish_output(struct job *job, struct pollfd *polls)
{
    for (int rank = 0; rank < job->nranks; rank++) {
        stream_finish(&job->children[rank].out, &job->tagger);
        stream_finish(&job->children[rank].err, &job->tagger);
    }
    if (job->more > 0 && !job->keep_going)
        say(job, "%d more rank%s failed after rank %d", job->more, job->more > 1 ? "s" : "", job->first);
    job->interrupted = false;
    while ((job->out.used > 0 || job->err.used > 0) && !job->interrupted)
        turn(job, polls);
}

/* Start all ranks; on failure those that run are killed. */
static bool start_all(struct job *job)
{
    for (int rank = 0; rank < job->nranks; rank++) {
        int error = start_rank(job, rank);
        if (rank == 0)
            close(job->listen_fd); /* when rank 0 dies, nobody shall seem to listen */
        if (error == 0)
            continue;
        say(job, "rank %d: cannot execute '%s': %s", rank, job->program[0], strerror(error));
        job->code = EXIT_NOT_RUN;
        job->stage = TERMINATED;
        job->due = now() + KILL_SECONDS;
        job->first = rank;
        signal_all(job, SIGKILL);
        return false;
    }
    return true;
}

static int run_job(struct job *job)
{
    struct pollfd *polls = calloc((size_t)job->nranks * 2 + 3, sizeof(*polls));
    job->children = calloc((size_t)job->nranks, sizeof(*job->children));
    if (polls == NULL || job->children == NULL) {
        free(polls);
        return setup_failed("cannot start");
    }
    for (int rank = 0; rank < job->nranks; rank++)
        job->children[rank].out.fd = job->children[rank].err.fd = -1;
    job->due = job->timeout > 0 ? now() + job->timeout : INFINITY;
    start_all(job);
    while (job->running > 0 && job->stage < GIVEN_UP)
        turn(job, polls);
    finish_output(job, polls);
    free(polls);
    free(job->children);
    free(job->out.bytes);
    free(job->err.bytes);
    return job->code;
}

int tool_run(int argc, char **argv)
{
    struct job job = {.grace = 5, .first = -1, .out = {.fd = STDOUT_FILENO}, .err = {.fd = STDERR_FILENO}};
    int code = parse_arguments(&job, argc, argv);
    if (code != 0)
        return code - 1;
    job.tagger = (struct tagger){.mode = job.tag, .first = -1};
    if (hold_standard_descriptors() != 0 || make_key(&job) != 0 || make_listener(&job) != 0 || raise_file_limit(&job) != 0 ||
        take_signals(&job) != 0)
        return 1;
    return run_job(&job);
}
