/* bytes.c - patterns that differ from message to message; see bytes.h. */
#include "bytes.h"

static unsigned char byte_at(uint64_t key, size_t i)
{
    uint64_t x = (key + 1) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
    return (unsigned char)(x >> 56 ^ x >> 24);
}

void bytes_fill(void *to, size_t n, uint64_t key)
{
    for (size_t i = 0; i < n; i++)
        ((unsigned char *)to)[i] = byte_at(key, i);
}

size_t bytes_wrong(const void *from, size_t n, uint64_t key)
{
    size_t i = 0;
    while (i < n && ((const unsigned char *)from)[i] == byte_at(key, i))
        i++;
    return i;
}
