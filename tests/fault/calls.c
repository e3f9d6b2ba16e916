/* calls.c - the filter, the signal handler and the one place from which calls pass; see calls.h. x86-64 only. */
#include "calls.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "job.h"

#if defined(__x86_64__)
/* Carries a system call out; the filter lets calls from this place pass. (number, arguments of the call) */
long counted_call(long number, long a, long b, long c, long d, long e, long f);
extern const char counted_call_end[];
__asm__(".text\n.globl counted_call, counted_call_end\n.hidden counted_call\n.hidden counted_call_end\n"
        "counted_call:\n mov %rdi, %rax\n mov %rsi, %rdi\n mov %rdx, %rsi\n mov %rcx, %rdx\n mov %r8, %r10\n mov %r9, %r8\n"
        " mov 8(%rsp), %r9\n syscall\ncounted_call_end:\n ret\n");

static call_rule rule_now;

static void on_call(int signal, siginfo_t *info, void *context)
{
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    long number = info->si_syscall, result = 0;
    bool fails = rule_now(number, &result);
    (void)signal;
    if (!fails || number == SYS_close) {
        long done = counted_call(number, r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]);
        result = fails ? result : done;
    }
    r[REG_RAX] = result;
}

/* What a thread does at its beginning and end, where it takes no signals, and what returns from a handler. */
static const uint32_t passing[] = {SYS_rt_sigreturn,    SYS_exit_group, SYS_exit,    SYS_clone,         SYS_clone3,
                                   SYS_set_robust_list, SYS_rseq,       SYS_madvise, SYS_rt_sigprocmask};
#define PASSING (sizeof passing / sizeof *passing)

void calls_trap(call_rule rule)
{
    uint64_t place = (uint64_t)(uintptr_t)counted_call_end;
    struct sock_filter program[PASSING + 7] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)place, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(place >> 32), PASSING + 2, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (size_t i = 0; i < PASSING; i++)
        program[5 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, passing[i], (uint8_t)(PASSING - i), 0);
    program[5 + PASSING] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    program[6 + PASSING] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {PASSING + 7, program};
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    rule_now = rule;
    sigaction(SIGSYS, &action, NULL);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0)
        skip("seccomp filters are not allowed here: %s", strerror(errno));
}
#else
void calls_trap(call_rule rule)
{
    (void)rule;
    skip("the trap for system calls is written for x86-64");
}
#endif
