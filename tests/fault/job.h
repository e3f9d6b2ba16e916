/*
 * job.h - the frame of the fault tests: scenarios that run side by side, each in a process of its own with rank processes below it.
 * Every process ends by a hard time limit and with its parent; nothing is killed by name. Checks end the process that made them.
 */
#ifndef TEST_FAULT_JOB_H
#define TEST_FAULT_JOB_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <abcomm/abcomm.h>

#include "base/base.h"

#define RANKS_MAX 16
#ifdef __SANITIZE_ADDRESS__
#define UNDER_SANITIZER 1 /* slower, and memory is what the sanitizer makes of it */
#else
#define UNDER_SANITIZER 0
#endif

/* One thing to show, with the numbers that tell it from its neighbours. */
struct scenario {
    char name[112];
    void (*run)(const struct scenario *scenario);
    double limit; /* seconds, 0: 30 */
    long a, b, c, d, e;
};

/* What a rank tells the scenario; in memory that all of its processes share. */
struct outcome {
    int status;
    double seconds;
    char text[768];
    long number[8];
};

struct shared {
    struct outcome rank[RANKS_MAX];
    _Atomic int flag[8];
    _Atomic uint32_t arrived, round; /* meet() */
    int expected;
};

/* The rank processes of a scenario. */
struct job {
    int nranks;
    pid_t pid[RANKS_MAX]; /* 0: waited for */
    int state[RANKS_MAX]; /* of waitpid */
    struct shared *shared;
    char address[64];
    double connect_timeout; /* 0: 15 s */
};

typedef void (*rank_body)(struct job *job, int rank, const struct scenario *scenario);

/* End this process with a message unless ok. In a scenario's own process its ranks are killed first. */
void must(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* End this process as skipped, saying why. */
void skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Start a body in a process for each rank. */
void job_start(struct job *job, int nranks, rank_body body, const struct scenario *scenario);
/* Wait for one rank, or for all that run; too long is a failure. */
void job_wait_rank(struct job *job, int rank, double seconds);
void job_wait(struct job *job, double seconds);
void job_signal(struct job *job, int rank, int signal);
/* All ranks ended with exit code 0. */
void job_must_succeed(struct job *job);
/* Wait until the rank is stopped by a signal. */
void job_wait_stopped(struct job *job, int rank, double seconds);
/* No process, socket, file in /dev/shm of this scenario is left; exact only in private_world(). */
void job_must_be_clean(struct job *job);

/* For ranks: all expected ranks meet; ends the process after 20 s. */
void meet(struct job *job);
void wait_flag(struct job *job, int which, int value, double seconds);
/* A communicator over the job's address. timeout: of operations, 0: 20 s. */
int create_comm(struct job *job, int rank, int nranks, double timeout, abc_comm **comm);
abc_comm *must_create(struct job *job, int rank, double timeout);
/* A communicator of three ranks is created, sums and ends; when: what is told of a failure. */
void must_work(struct job *job, int rank, const char *when);
/* Put the status and the last error's text where the scenario finds them. */
void tell(struct job *job, int rank, int status, double since);
void must_mention(const char *text, const char *part, const char *where);
void nap(double seconds);
/* Memory for a call, from the heap or the arena. */
void *buffer_take(size_t bytes, bool arena);
void buffer_give(void *buffer, bool arena);
/* This process ends in the middle of things on purpose: no look for leaks, which also takes its time. */
void ends_anyhow(void);
/* Descriptors, lines of /proc/self/maps, threads, KiB of a field of /proc/self/smaps_rollup. */
int count_fds(void);
int count_maps(void);
int count_threads(void);
long memory_kib(const char *field);
int count_dir(const char *path);

/* A network and a /dev/shm of our own, so that leftovers are ours; false without the privilege. */
bool private_world(void);
bool full_mode(void);
/* Seed of the random samples: ABC_TEST_SEED or the clock; printed. */
uint64_t test_seed(void);
uint32_t draw(uint64_t *state, uint32_t below);
/* Grows by doubling; the caller fills the row. */
struct scenario *add_scenario(struct scenario **list, int *count);
/* Run them, `parallel` at a time. Returns main's exit code: 77 when all were skipped. */
int run_scenarios(const struct scenario *list, int count, int parallel);

#endif
