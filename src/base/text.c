/*
 * text.c - small helpers for text that people typed: how far two names are apart, and making foreign text safe to print. Pure
 * functions, any thread, no allocation.
 */
#include "base/base.h"

#include <string.h>

#define DISTANCE_MAX 63

int abci_text_distance(const char *a, const char *b)
{
    /* The classic table, one row at a time: row[j] is the distance between the first i bytes of a and the first j of b. */
    int row[DISTANCE_MAX + 1];
    int na = (int)strnlen(a, DISTANCE_MAX), nb = (int)strnlen(b, DISTANCE_MAX);
    for (int j = 0; j <= nb; j++)
        row[j] = j;
    for (int i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int replace = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int shift = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            row[j] = replace < shift ? replace : shift;
        }
    }
    return row[nb];
}

void abci_text_clean(char *out, size_t capacity, const char *text)
{
    size_t n = 0;
    for (; n + 1 < capacity && text[n]; n++) {
        unsigned char c = (unsigned char)text[n];
        out[n] = (c < 0x20 || c == 0x7f) ? '?' : text[n];
    }
    if (capacity > 0)
        out[n] = 0;
}
