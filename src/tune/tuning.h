/*
 * tuning.h - what a tuning file says, and reading one. Made by `abcomm tune`; rank 0 alone opens the file (ABCOMM_TUNING) and hands
 * the rows to all ranks at creation. Plain data, immutable once read; blocking file access, so never after creation.
 */
#ifndef ABCI_TUNING_H
#define ABCI_TUNING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ABCI_TUNING_VERSION 1
#define ABCI_TUNING_ROWS 1024             /* of a file: together they fit one value of an exchange */
#define ABCI_TUNING_FILE_BYTES (1u << 20) /* a longer file is no tuning file */
#define ABCI_TUNING_AUTO 255              /* algorithm: by price, only the chunk is given */

enum abci_memory { ABCI_PRIVATE, ABCI_ARENA, ABCI_MEMORY_COUNT };
/* "private", "arena" */
const char *abci_memory_name(int memory);

/* Operations of from <= bytes < to. */
struct abci_tuning_row {
    uint64_t from, to;
    uint64_t chunk; /* 0: as without the row */
    uint16_t ranks;
    uint8_t collective; /* abc_collective */
    uint8_t memory;     /* enum abci_memory */
    uint8_t algorithm;  /* index in abci_algos, or ABCI_TUNING_AUTO */
};

struct abci_tuning {
    uint32_t count;
    struct abci_tuning_row row[ABCI_TUNING_ROWS]; /* by ranks, collective, memory, from; no two overlap */
};

/* The text of a file, untrusted. ABC_ERR_ARGUMENT with the reason and the row in `why`. */
int abci_tuning_parse(const char *text, size_t length, struct abci_tuning *tuning, char *why, size_t capacity);
/* Read and parse; the error names the file and what to do. */
int abci_tuning_load(const char *path, struct abci_tuning *tuning);
/* Could a parser have made these rows? Asked of rows that came from another process. */
bool abci_tuning_sound(const struct abci_tuning *tuning);

#endif
