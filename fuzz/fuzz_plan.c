/*
 * fuzz_plan.c - plans in JSON come from users. Whatever the bytes: no crash, and a plan that is accepted prints, prices, checks and
 * parses again to the same text.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct abci_plan_set *set)
{
    static const struct abci_price_constants constants = {1e-7, 1e-8, 1e-10, 1e-10, 1e-10, 2};
    struct abci_check_report report;
    struct abci_price price;
    struct abci_plan_set again;
    char why[200];
    abci_plan_check(set, &report);
    abci_plan_price(set, &constants, &price);
    char *json = abci_plan_json(set), *text = abci_plan_text(set);
    if (!json || !text || abci_plan_parse(json, &again, why, sizeof why) != ABC_OK)
        abort();
    char *json2 = abci_plan_json(&again);
    if (!json2 || strcmp(json, json2) != 0)
        abort();
    abci_plan_set_free(&again);
    free(json);
    free(json2);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct abci_plan_set set;
    char why[200], *json = malloc(size + 1);
    if (!json)
        return 0;
    if (size > 0)
        memcpy(json, data, size);
    json[size] = 0;
    if (abci_plan_parse(json, &set, why, sizeof why) == ABC_OK) {
        use(&set);
        abci_plan_set_free(&set);
    } else if (why[0] == 0) {
        abort();
    }
    free(json);
    return 0;
}
