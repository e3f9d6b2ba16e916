/*
 * launch_pmi.c - the PMI-1 table of MPICH, Intel MPI and Slurm (--mpi=pmi2 answers PMI-1, too): lines of text over the socket
 * PMI_FD that the launcher gave this process. Called by launch_agree.c, once a process, under its lock. Four questions and one
 * barrier a rank. An MPI library in this process uses the same socket, before or after; at exit the table is given back only
 * where there is none.
 */
#include "comm/launch.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "comm/rendezvous.h"

#define LINE 2048
#define GOODBYE_SECONDS 2.0

static struct {
    int fd;
    ino_t inode;
    uint32_t generation;
} joined = {.fd = -1};

bool abci_launch_mpi_active(void)
{
    union {
        void *object;
        int (*call)(int *);
    } initialized = {dlsym(RTLD_DEFAULT, "MPI_Initialized")};
    int yes = 0;
    return initialized.object != NULL && initialized.call(&yes) == 0 && yes;
}

/* One question, one line of answer without its end. */
static int ask(int fd, const char *question, const char *answer_begins, char answer[LINE], double deadline)
{
    size_t length = strlen(question), have = 0;
    char asked[32]; /* without what it carries: a key does not belong in an error text */
    snprintf(asked, sizeof(asked), "%.*s", (int)strcspn(question, " \n"), question);
    if ((abci_fault("pmi send") ? (errno = EIO, -1) : send(fd, question, length, MSG_NOSIGNAL)) != (ssize_t)length)
        return abci_error_errno(ABC_ERR_PEER, "the launcher does not take \"%s\" on PMI_FD=%d", asked, fd);
    while (have == 0 || answer[have - 1] != '\n') {
        int ready = abci_socket_poll(fd, POLLIN, deadline);
        if (ready == 0)
            return abci_error(ABC_ERR_TIMEOUT, "the launcher did not answer \"%s\" in time%s", asked,
                              strcmp(asked, "cmd=barrier_in") == 0 ? ": some rank has not begun to create a communicator" : "");
        bool broken = ready < 0 || have == LINE - 1 || abci_fault("pmi recv");
        ssize_t got = broken ? (errno = EIO, -1) : recv(fd, answer + have, LINE - 1 - have, MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            return abci_error(ABC_ERR_PEER, "the launcher closed PMI_FD=%d instead of answering \"%s\"; has MPI been finalized?",
                              fd, asked);
        have += (size_t)got;
    }
    answer[have - 1] = '\0';
    bool good = strncmp(answer, answer_begins, strlen(answer_begins)) == 0;
    const char *rc = strstr(answer, " rc=");
    if (!good || (rc != NULL && atoi(rc + 4) != 0))
        return abci_error(ABC_ERR_PEER, "the launcher answered \"%s\" with an error", asked);
    return ABC_OK;
}

/* The word after `name`, up to a space. */
static int word(const char *answer, const char *name, char *out, size_t capacity)
{
    const char *at = strstr(answer, name);
    size_t length = at != NULL ? strcspn(at + strlen(name), " ") : 0;
    if (length == 0 || length >= capacity)
        return abci_error(ABC_ERR_PEER, "the launcher's answer lacks %s", name);
    memcpy(out, at + strlen(name), length);
    out[length] = '\0';
    return ABC_OK;
}

/* Launchers take the silent end of a process that has used the table for a crash. */
static void say_goodbye(void)
{
    struct stat now;
    char answer[LINE];
    if (joined.fd < 0 || joined.generation != abci_fork_generation || abci_launch_mpi_active() || fstat(joined.fd, &now) != 0 ||
        now.st_ino != joined.inode)
        return;
    ask(joined.fd, "cmd=finalize\n", "cmd=finalize_ack", answer, abci_now() + GOODBYE_SECONDS);
}

static int open_table(int fd, char answer[LINE], double deadline)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode))
        return abci_error(
            ABC_ERR_ENVIRONMENT,
            "PMI_FD=%d is not the launcher's socket: closed by MPI_Finalize, or left over from another program; create "
            "communicators before MPI_Finalize",
            fd);
    if (abci_launch_mpi_active())
        return ABC_OK; /* the MPI library has opened it and will give it back */
    int status = ask(fd, "cmd=init pmi_version=1 pmi_subversion=1\n", "cmd=response_to_init", answer, deadline);
    if (status != ABC_OK)
        return status;
    joined.fd = fd;
    joined.inode = info.st_ino;
    joined.generation = abci_fork_generation;
    atexit(say_goodbye);
    return ABC_OK;
}

int abci_launch_share_pmi(const struct abci_launch *launch, char text[ABCI_LAUNCH_TEXT], double deadline, int *nranks)
{
    char answer[LINE], table[256], question[LINE];
    const char *value = abci_environment("PMI_FD");
    int fd = value != NULL ? atoi(value) : -1;
    int status = open_table(fd, answer, deadline);
    if (status == ABC_OK)
        status = ask(fd, "cmd=get_my_kvsname\n", "cmd=my_kvsname", answer, deadline);
    if (status == ABC_OK)
        status = word(answer, " kvsname=", table, sizeof(table));
    if (status == ABC_OK && launch->rank == 0) {
        snprintf(question, sizeof(question), "cmd=put kvsname=%s key=abcomm-0 value=%s\n", table, text);
        status = ask(fd, question, "cmd=put_result", answer, deadline);
    }
    if (status == ABC_OK)
        status = ask(fd, "cmd=barrier_in\n", "cmd=barrier_out", answer, deadline);
    if (status != ABC_OK || launch->rank == 0)
        return status;
    snprintf(question, sizeof(question), "cmd=get kvsname=%s key=abcomm-0\n", table);
    status = ask(fd, question, "cmd=get_result", answer, deadline);
    return status == ABC_OK ? word(answer, " value=", text, ABCI_LAUNCH_TEXT) : status;
}
