/*
 * text.c - small helpers for text that people typed: how far two names are apart, and making foreign text safe to print. Pure
 * functions, any thread, no allocation.
 */
#include "base/base.h"

#include <string.h>

#define DISTANCE_MAX 63

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

int abci_text_distance(const char *a, const char *b)
{
    /* rows[i % 3][j]: distance between the first i bytes of a and the first j of b. Three rows, as a swap looks two back. */
    int rows[3][DISTANCE_MAX + 1];
    int na = (int)strnlen(a, DISTANCE_MAX), nb = (int)strnlen(b, DISTANCE_MAX);
    for (int j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *row = rows[i % 3], *above = rows[(i - 1) % 3], *second = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            row[j] = smaller(above[j - 1] + (a[i - 1] != b[j - 1]), 1 + smaller(above[j], row[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = smaller(row[j], second[j - 2] + 1);
        }
    }
    return rows[na % 3][nb];
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
