/*
 * fuzz_tuning.c - tuning files come from users. Whatever the bytes: no crash, a refusal says why, and rows that are accepted are in
 * range, ascend, do not overlap, and give a list of rules that every size finds its way through.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tune/choose.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Choose by the row at both its ends. */
static void follow(struct abci_chooser *chooser, const struct abci_tuning_row *row)
{
    uint64_t sizes[] = {row->from, row->to - 1, row->to};
    for (int k = 0; k < 3; k++) {
        struct abci_wish wish = {
            .collective = (abc_collective)row->collective, .bytes = sizes[k], .arena = row->memory == ABCI_ARENA};
        struct abci_choice choice;
        if (abci_choose(chooser, &wish, &choice) != ABC_OK || !choice.run || choice.chunk == 0)
            abort();
        if (k < 2 && choice.why != ABCI_BY_FILE)
            abort();
        if (k < 2 && row->algorithm != ABCI_TUNING_AUTO && strcmp(choice.run->plan->name, abci_algos[row->algorithm]->name) != 0)
            abort();
    }
}

static void use(const struct abci_tuning *tuning)
{
    static const struct abci_price_constants constants = {1e-7, 1e-8, 1e-10, 1e-10, 1e-10, 2};
    struct abci_chooser *chooser;
    const struct abci_chooser_config config = {.rank = 1, .nranks = 4, .constants = &constants, .forced = "", .tuning = tuning};
    if (!abci_tuning_sound(tuning) || abci_chooser_open(&config, &chooser) != ABC_OK)
        abort();
    for (uint32_t i = 0; i < tuning->count; i++)
        if (tuning->row[i].ranks == config.nranks)
            follow(chooser, &tuning->row[i]);
    abci_chooser_close(chooser);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct abci_tuning tuning;
    char why[300], *text = malloc(size + 1);
    if (!text)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = 0;
    if (abci_tuning_parse(text, size, &tuning, why, sizeof why) == ABC_OK)
        use(&tuning);
    else if (why[0] == 0 || tuning.count != 0)
        abort();
    free(text);
    return 0;
}
