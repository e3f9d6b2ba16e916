/*
 * harness.h - what the contract programs share: ranks as processes or threads that find each other over a table in shared memory,
 * which is also an instance of abc_exchange. A check is a function over all of its ranks; it passes when every rank's body returns
 * 0.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <abcomm/abcomm.h>

#include "comm/comm.h"

#define MAX_RANKS 4

struct board; /* the table; shared by all ranks */

struct rank {
    int rank, nranks;
    struct board *board;
    int creations; /* prefix of the keys of the next creation */
    int failures;
};

/* Run body once a rank; 0 when all returned 0. Processes that hang are killed after some seconds, and fail. */
int run_processes(int nranks, int (*body)(struct rank *));
int run_threads(int nranks, int (*body)(struct rank *));
/* The communicator of all ranks, over the board. timeout in seconds for its operations. */
int create(struct rank *r, double timeout, abc_comm **comm);
/* The same, which must work: NULL and a failure noted otherwise. */
abc_comm *must_create(struct rank *r, double timeout);
/* Calls that the library has made to put and get. */
int exchange_calls(const struct rank *r);
/* Words and bytes that all ranks see; zero at first. */
_Atomic int *board_word(const struct rank *r, int index);
void *board_bytes(const struct rank *r, int rank);
#define BOARD_BYTES 1024
/* Wait until the word has the value, five seconds at most. */
bool await_word(const struct rank *r, int index, int value);

/* Note a failure with its reason when ok is false; returns ok. */
bool expect(struct rank *r, bool ok, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A status that should be OK. */
bool expect_ok(struct rank *r, int status, const char *what);
void sleep_ms(int ms);
void destroy(struct rank *r, abc_comm *comm);

/* The checks, by file. */
int check_copy_before_publish(void); /* data.c */
int check_every_block(void);
int check_slots_wait(void);
int check_mail_whole(void); /* mail.c */
int check_mail_credits(void);
int check_mail_last_look(void);
int check_mail_brief_last_look(void);
int check_mail_compared(void);
int check_swaps_wait(void);
int check_regions_wait(void);
int check_calls_compared(void);
int check_counts_compared(void);
int check_arena_offsets(void);
int check_operand_order(void);
int check_callback_free(void); /* ends.c */
int check_sleeper_rung(void);
int check_last_look(void);
int check_failure_rings(void);
int check_no_reader_inside(void);
int check_no_late_writer(void);
int check_no_late_spread(void);
int check_sealed(void);
int check_reserved_kinds(void); /* rules.c */
int check_sizes(void);
int check_exchange(void);
int check_events(void);
int check_constants(void);
int check_settings(void);

#endif
