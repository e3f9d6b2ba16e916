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

/* Bytes of the character of UTF-8 that begins here; 0: none does. Reads `most` bytes at most. */
static size_t character(const char *text, size_t most)
{
    const unsigned char *c = (const unsigned char *)text;
    size_t bytes = c[0] < 0x80 ? 1 : c[0] >= 0xc2 && c[0] < 0xe0 ? 2 : c[0] >= 0xe0 && c[0] < 0xf0 ? 3 : c[0] < 0xf5 ? 4 : 0;
    if (bytes > most || (c[0] >= 0x80 && c[0] < 0xc2))
        return 0;
    for (size_t i = 1; i < bytes; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    /* Longer than it need be, half of a pair of UTF-16, or beyond the last character. */
    bool wrong = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] > 0x9f) || (c[0] == 0xf0 && c[1] < 0x90) ||
                 (c[0] == 0xf4 && c[1] > 0x8f);
    return wrong ? 0 : bytes;
}

void abci_text_clean(char *out, size_t capacity, const char *text)
{
    size_t n = 0;
    while (n + 1 < capacity && text[n]) {
        unsigned char c = (unsigned char)text[n];
        size_t bytes = character(text + n, capacity - 1 - n);
        if (bytes > 1)
            memmove(out + n, text + n, bytes);
        else
            out[n] = bytes == 0 || c < 0x20 || c == 0x7f ? '?' : text[n];
        n += bytes > 0 ? bytes : 1;
    }
    if (capacity > 0)
        out[n] = 0;
}
