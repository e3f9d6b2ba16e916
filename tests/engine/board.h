/* board.h - the shared memory of one job: who does what, a key-value store for the exchange, a meeting point. Inside the harness.
 */
#ifndef TEST_BOARD_H
#define TEST_BOARD_H

#include <pthread.h>
#include <stdatomic.h>

#include "harness.h"

#define BOARD_ENTRIES 16384
#define BOARD_BYTES (64u << 20)
#define BOARD_WORDS 256

struct entry {
    _Atomic int ready; /* release: name and value are there */
    char name[112];
    uint32_t at, length;
};

struct note {
    char doing[192];
    char failure[512];
    _Atomic int failed, over;
};

struct board {
    pthread_mutex_t lock; /* of entries and used, shared between processes */
    int entries;
    uint32_t used;
    _Atomic int arrived; /* ranks at the meeting point, counted up for ever */
    _Atomic int failed;  /* ranks that have failed */
    double timeout;
    _Atomic int word[BOARD_WORDS];
    struct note note[MAX_TEST_RANKS];
    struct entry entry[BOARD_ENTRIES];
    unsigned char bytes[BOARD_BYTES];
};

struct board *board_make(void);
void board_free(struct board *board);

#endif
