/*
 * remote.c - stage 4: private memory of a peer, read by process_vm_readv. Whether that is permitted is found by trying: rules about
 * ptrace, user namespaces and seccomp differ from system to system. Costs a system call a read; never used where the trial failed.
 */
#include <errno.h>
#include <sys/uio.h>

#include "transport/shm.h"

int abci_shm_read_remote(const struct abci_shm *shm, int peer, void *to, uint64_t from, uint64_t bytes)
{
    while (bytes > 0) {
        struct iovec local = {to, bytes}, remote = {(void *)(uintptr_t)from, bytes};
        ssize_t n = abci_fault("process_vm_readv") ? (errno = EPERM, -1)
                                                   : process_vm_readv((pid_t)shm->peer[peer].pid, &local, 1, &remote, 1, 0);
        if (n <= 0)
            return ABC_ERR_PEER;
        to = (char *)to + n;
        from += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return ABC_OK;
}

void abci_shm_try_remote(struct abci_shm *shm)
{
    for (int r = 0; r < shm->nranks; r++) {
        uint32_t got[4] = {0};
        if (r == shm->rank)
            continue;
        const struct abci_control *c = shm->peer[r].control;
        shm->peer[r].readable = abci_shm_read_remote(shm, r, got, c->self, sizeof got) == ABC_OK && got[0] == ABCI_RECORD_MAGIC &&
                                got[1] == (uint32_t)r && got[3] == c->pid;
    }
}
