/*
 * run.h - the job that `abcomm run` keeps, shared by run.c (the loop) and run_start.c (what comes before it).
 */
#ifndef RUN_H
#define RUN_H

#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "run_output.h"

#define RANKS_MOST 1024
#define ENV_MOST 64
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

/* Read the command line: 0 to go on, else the exit code plus one. */
int run_parse(struct job *job, int argc, char **argv);
/* Make the key, the listening socket and the signal descriptor; 0, or 1 after a message. */
int run_prepare(struct job *job);
/* Start one rank and wait until it runs the program; 0 or an error number. */
int run_start_rank(struct job *job, int rank);

#endif
