/*
 * run.c - `abcomm run`: starts a program as N ranks on this machine and stays their parent. run_start.c makes the job key and rank
 * 0's listening socket and hands both over as inherited descriptors; this file merges the output (run_output.c), forwards signals
 * and ends the job when a rank dies. One thread, one poll loop; it takes no part in the communication. Should it be killed, the
 * ranks die with it.
 */
#include "run.h"

#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools.h"

#define TERM_SECONDS 2.0  /* from SIGTERM to SIGKILL */
#define KILL_SECONDS 10.0 /* from SIGKILL until the launcher gives up on a rank that the kernel holds */

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

/* Stop as the ranks do. Not by SIGSTOP: the kernel ignores SIGTSTP where no shell could continue the group, for us and for them. */
static void stop_self(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTSTP);
    raise(SIGTSTP); /* blocked, so it takes effect with the next line */
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

/* A signal for the job. What the terminal sends goes to the whole process group: the ranks have it already. */
static void forward(struct job *job, int number, bool from_terminal)
{
    if (!from_terminal || number == SIGCONT)
        signal_all(job, number);
    if (number == SIGTSTP) {
        stop_self();
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
    /* Without pipes their rows are left out: poll refuses more rows than files may be open. */
    int piped = job->tag == TAG_NO ? 0 : job->nranks;
    if (poll(polls, (nfds_t)piped * 2 + 3, milliseconds) > 0) {
        for (int rank = 0; rank < piped; rank++) {
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
    if (job->out.error == 0)
        return;
    fprintf(stderr, "abcomm run: cannot write the ranks' output: %s\n", strerror(job->out.error));
    job->code = job->code ? job->code : 1;
}

/* Start all ranks; on failure those that run are killed. */
static bool start_all(struct job *job)
{
    for (int rank = 0; rank < job->nranks; rank++) {
        int error = run_start_rank(job, rank);
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
        free(job->children);
        perror("abcomm run: cannot start");
        return 1;
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
    int code = run_parse(&job, argc, argv);
    if (code != 0)
        return code - 1;
    job.tagger = (struct tagger){.mode = job.tag, .first = -1};
    return run_prepare(&job) != 0 ? 1 : run_job(&job);
}
