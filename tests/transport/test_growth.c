/*
 * test_growth.c - the arena grows, and something fails on the way: each allocation and system call of a growth in turn. What was
 * asked for is refused with words; what is smaller works afterwards, and so does the same again. Links the testing library.
 */
#include <abcomm/abcomm.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

#define MIB (1ull << 20)

static bool usable(uint64_t bytes)
{
    char *p = NULL;
    if (abc_mem_alloc(bytes, (void **)&p) != ABC_OK)
        return fprintf(stderr, "%llu MiB: %s\n", (unsigned long long)(bytes / MIB), abc_last_error()), false;
    for (uint64_t at = 0; at < bytes; at += MIB)
        p[at] = (char)(at / MIB);
    p[bytes - 1] = 77;
    for (uint64_t at = 0; at < bytes; at += MIB)
        if (p[at] != (char)(at / MIB))
            return fprintf(stderr, "the memory does not keep what is written there\n"), false;
    return true; /* kept: the next one needs room of its own */
}

enum { WORKS, BROKEN, NO_FAULT, NOT_MAPPED };

/* Pass n of a growth by 300 MiB fails. */
static int grow(unsigned n)
{
    void *p = NULL;
    if (!usable(MIB)) /* the segment is there */
        return BROKEN;
    abci_fault_arm(n);
    int status = abc_mem_alloc(300 * MIB, &p);
    unsigned long long passes = abci_fault_passes();
    abci_fault_arm(0);
    if (status == ABC_OK)
        return passes < n ? NO_FAULT : WORKS;
    if (status != ABC_ERR_MEMORY || strlen(abc_last_error()) < 20)
        return fprintf(stderr, "pass %u: status %d, \"%s\"\n", n, status, abc_last_error()), BROKEN;
    bool mapping = strstr(abc_last_error(), "cannot be mapped") != NULL;
    if (!usable(20 * MIB) || !usable(100 * MIB) || !usable(400 * MIB))
        return fprintf(stderr, "after the failure of pass %u\n", n), BROKEN;
    return mapping ? NOT_MAPPED : WORKS;
}

int main(void)
{
    bool mapping = false;
    for (unsigned n = 1; n < 50; n++) {
        int state = 0;
        pid_t pid = fork();
        if (pid == 0)
            _exit(grow(n));
        if (pid < 0 || waitpid(pid, &state, 0) != pid || !WIFEXITED(state) || WEXITSTATUS(state) == BROKEN)
            return fprintf(stderr, "FAILED: pass %u (state %x)\n", n, (unsigned)state), 1;
        mapping |= WEXITSTATUS(state) == NOT_MAPPED;
        if (WEXITSTATUS(state) == NO_FAULT)
            return mapping ? 0 : (fprintf(stderr, "FAILED: no mapping failed in %u passes\n", n), 1);
    }
    fprintf(stderr, "FAILED: there is no end of passes\n");
    return 1;
}
