/*
 * play.h - stage 3, inside the checker: one symbolic run of all ranks in one setting of their buffers. check.c prepares and judges,
 * play.c plays.
 */
#ifndef ABCI_PLAY_H
#define ABCI_PLAY_H

#include "plan/clock.h"
#include "plan/plan.h"
#include "plan/value.h"

/* One block of memory that steps of several ranks can touch. */
struct abci_cell {
    uint32_t value;
    uint32_t writer; /* event + 1; 0: the caller before the operation, or nobody */
    uint32_t reads;  /* list of reads since the last write */
};
struct abci_read {
    uint32_t event, next;
};

/* How the buffers of one rank lie. */
struct abci_lie {
    bool in_place;
    bool staged[2]; /* IN, OUT */
};

struct abci_checker {
    const struct abci_plan_set *set;
    struct abci_check_report *report;
    struct abci_clock clock;
    struct abci_values values;
    const char *setting;
    struct abci_lie *lie; /* [nranks] */
    size_t *first_cell;   /* [nranks] */
    struct abci_cell *cells;
    struct abci_read *reads;
    uint32_t nreads, read_room;
    int32_t **published; /* [nranks * ABCI_COUNTERS] step of each value, from 1 on */
    uint32_t *reach;     /* [nranks * ABCI_COUNTERS] last value of each counter */
    uint32_t *next;      /* [nranks] step to play next */
    uint32_t *depth;     /* [events] reading steps on the longest way to the end of the event */
    uint32_t *time;      /* [events] blocks read, one after another, by then */
    uint32_t *busy;      /* [nranks] when the rank is free, in blocks */
    unsigned char *over; /* [nranks] direct plans: the last step has been played, nobody may touch the rank's buffers */
    unsigned char *met;  /* barrier: [nranks * nranks] rank's past contains a step of the other */
    size_t ncells;
};

/* Places that blocks of a rank have: IN, OUT, what peers see of them when staged, then the temporaries. */
enum abci_area { AREA_IN, AREA_OUT, AREA_STAGED_IN, AREA_STAGED_OUT, AREA_TMP };

/* Record the first fault; always false. */
bool abci_check_fault(struct abci_checker *c, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A fault of a step: with rank, step, kind, and in which setting it shows. */
bool abci_check_step_fault(struct abci_checker *c, int rank, uint32_t at, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* A block of a rank's memory; in place, IN and OUT may be the same. */
struct abci_cell *abci_check_cell(struct abci_checker *c, int rank, int area, int block);
/* Last rank that counts for this rank's sums. */
int abci_check_last(const struct abci_plan *plan);
/* Is the value the sum over just the ranks that count? */
bool abci_check_is_prefix(const struct abci_checker *c, int rank, uint32_t value);
/* Play every rank as far as it can go, in turn, until all are done. False after a fault, a deadlock among them. */
bool abci_check_play(struct abci_checker *c);

#endif
