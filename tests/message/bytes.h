/* bytes.h - what the message tests send: bytes that tell sender, tag and number of their message, so that a wrong one shows. */
#ifndef TEST_MESSAGE_BYTES_H
#define TEST_MESSAGE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void bytes_fill(void *to, size_t n, uint64_t key);
/* Position of the first wrong byte, or n. */
size_t bytes_wrong(const void *from, size_t n, uint64_t key);
static inline uint64_t bytes_key(int source, int tag, int number)
{
    return (uint64_t)source << 48 ^ (uint64_t)tag << 24 ^ (uint64_t)number;
}

#endif
