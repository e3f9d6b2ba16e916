/*
 * calls.h - every system call of this process passes a rule of the test, which may let it fail without carrying it out. Made with a
 * seccomp filter that raises a signal; for all threads, until the process ends.
 */
#ifndef TEST_FAULT_CALLS_H
#define TEST_FAULT_CALLS_H

#include <stdbool.h>
#include <sys/syscall.h>

/* Machines without these calls never make them. */
#ifndef SYS_open
#define SYS_open (-1L)
#endif
#ifndef SYS_poll
#define SYS_poll (-1L)
#endif

/* Called in a signal handler, in any thread. True: the call is not carried out (but close, which always closes) and returns
 * *result, which is -errno. */
typedef bool (*call_rule)(long number, long *result);

/* Skips the scenario where there is no such filter. What threads call at their beginning and end passes unseen. */
void calls_trap(call_rule rule);

#endif
