/* usage.h - what this process holds of the machine, read from /proc. For figures.c; slow, allocates nothing that stays. */
#ifndef BENCH_USAGE_H
#define BENCH_USAGE_H

#include <stdint.h>

struct usage {
    double pss_kib;     /* all memory, shared pages divided among those who map them */
    double touched_kib; /* of it anonymous and shared memory: no program text, no files */
    int descriptors, threads;
    int segments; /* entries of /dev/shm, of all processes */
};
/* 0, or -1 when /proc does not tell. */
int usage_read(struct usage *u);

/* Calls of malloc and its kin by this process so far, or -1 when they are not counted in this build. See allocations.c. */
int64_t usage_allocations(void);

#endif
