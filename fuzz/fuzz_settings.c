/*
 * fuzz_settings.c - feeds "NAME=value" to the parser of settings and to the search for the nearest name. Checks what must hold for
 * any input: an accepted number is finite and inside its range, and a refusal says why.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_value(const struct abci_setting *setting, const char *value)
{
    char why[200];
    double number = -12345;
    memset(why, 'x', sizeof why);
    int status = abci_setting_parse(setting, value, &number, why, sizeof why);
    if (status != ABC_OK) {
        if (!memchr(why, 0, sizeof why) || why[0] == 0 || number != -12345)
            abort();
        return;
    }
    if (!isfinite(number))
        abort();
    bool ranged = setting->type == ABCI_SETTING_INT || setting->type == ABCI_SETTING_REAL || setting->type == ABCI_SETTING_BYTES;
    if (ranged && (number < setting->low || number > setting->high))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    char *value = strchr(text, '=');
    if (value)
        *value++ = 0;
    else
        value = text + strlen(text);
    const char *nearest = abci_setting_nearest(text);
    for (int i = 0; i < ABCI_SETTING_COUNT; i++) {
        const struct abci_setting *setting = &abci_setting_table[i];
        if (strcmp(text, setting->name) == 0 && nearest != setting->name)
            abort();
        check_value(setting, value);
    }
    free(text);
    return 0;
}
