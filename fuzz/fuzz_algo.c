/*
 * fuzz_algo.c - names of algorithms come from users: ABCOMM_ALGO's list "allreduce:ring;broadcast:binomial@64K" and a call's
 * "ring@64K". Whatever the text: no crash, a refusal says why, and what is accepted gives every collective a plan and a chunk.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tune/choose.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct abci_price_constants constants = {1e-7, 1e-8, 1e-10, 1e-10, 1e-10, 2};

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void choose_all(struct abci_chooser *chooser, const char *named)
{
    for (int k = 0; k < ABCI_PLANNED; k++) {
        struct abci_wish wish = {.collective = (abc_collective)k, .bytes = 70000, .algorithm = named};
        struct abci_choice choice = {.chunk = 0};
        int status = abci_choose(chooser, &wish, &choice);
        if (status == ABC_OK)
            require(choice.run != NULL && choice.chunk > 0);
        else
            require(named && strlen(abc_last_error()) > 20);
    }
}

static void try_size(int nranks, const char *text)
{
    struct abci_chooser *chooser = NULL;
    struct abci_chooser_config config = {.rank = 0, .nranks = nranks, .constants = &constants, .forced = text};
    if (abci_chooser_open(&config, &chooser) == ABC_OK) {
        choose_all(chooser, NULL);
        abci_chooser_close(chooser);
    } else {
        require(chooser == NULL && strlen(abc_last_error()) > 20);
    }
    config.forced = "";
    require(abci_chooser_open(&config, &chooser) == ABC_OK);
    choose_all(chooser, text);
    abci_chooser_close(chooser);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = 0;
    try_size(3, text);
    try_size(1, text);
    free(text);
    return 0;
}
