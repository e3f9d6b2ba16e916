/*
 * data.c - reads data/digits/digits.csv for the demo and draws reproducible random numbers. Every rank loads the whole file (a
 * quarter of a megabyte) and shuffles it alike, so ranks never exchange images. Used by train.c and main.c; no state of its own.
 */
#include "data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BRIGHTEST 16

/* Read one number of a line and step over the comma or line end behind it. -1: not a number from 0 to `limit`. */
static int read_number(char **text, long limit)
{
    char *end;
    errno = 0;
    long value = strtol(*text, &end, 10);
    if (end == *text || errno != 0 || value < 0 || value > limit)
        return -1;
    if (*end == ',' || *end == '\n')
        end++;
    *text = end;
    return (int)value;
}

static int parse_line(char *line, float *pixel, unsigned char *label)
{
    for (int i = 0; i < DEMO_PIXELS; i++) {
        int value = read_number(&line, BRIGHTEST);
        if (value < 0)
            return -1;
        pixel[i] = (float)value / BRIGHTEST;
    }
    int digit = read_number(&line, DEMO_CLASSES - 1);
    if (digit < 0 || *line != '\0')
        return -1;
    *label = (unsigned char)digit;
    return 0;
}

/* Make room for one more image. Grows by doubling, so that the file's length need not be known. */
static int reserve(struct digits *digits, int *capacity)
{
    if (digits->count < *capacity)
        return 0;
    int wanted = *capacity ? 2 * *capacity : 2048;
    float *pixel = realloc(digits->pixel, sizeof(float) * DEMO_PIXELS * (size_t)wanted);
    if (pixel)
        digits->pixel = pixel;
    unsigned char *label = realloc(digits->label, (size_t)wanted);
    if (label)
        digits->label = label;
    if (!pixel || !label)
        return -1;
    *capacity = wanted;
    return 0;
}

static int read_all(FILE *file, const char *path, struct digits *digits)
{
    char line[1024];
    int capacity = 0;
    while (fgets(line, sizeof(line), file)) {
        if (reserve(digits, &capacity) != 0) {
            fprintf(stderr, "demo: no memory for the images of %s\n", path);
            return -1;
        }
        if (parse_line(line, digits->pixel + (size_t)digits->count * DEMO_PIXELS, digits->label + digits->count) != 0) {
            fprintf(stderr, "demo: %s, line %d: expected 64 numbers from 0 to 16 and a digit, separated by commas\n", path,
                    digits->count + 1);
            return -1;
        }
        digits->count++;
    }
    if (digits->count <= DEMO_TRAIN) {
        fprintf(stderr, "demo: %s has %d images, more than %d are needed\n", path, digits->count, DEMO_TRAIN);
        return -1;
    }
    return 0;
}

int digits_load(const char *path, struct digits *digits)
{
    memset(digits, 0, sizeof(*digits));
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "demo: cannot read %s: %s; give the file with --data PATH\n", path, strerror(errno));
        return -1;
    }
    int result = read_all(file, path, digits);
    fclose(file);
    if (result != 0)
        digits_free(digits);
    return result;
}

void digits_free(struct digits *digits)
{
    free(digits->pixel);
    free(digits->label);
    memset(digits, 0, sizeof(*digits));
}

/* A Weyl sequence whose terms are mixed by multiplications (splitmix64). */
uint64_t random_next(struct random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float random_uniform(struct random *random)
{
    return (float)(random_next(random) >> 40) / (float)(1u << 23) - 1.0f;
}

void random_shuffle(struct random *random, int *order, int count)
{
    for (int i = count - 1; i > 0; i--) {
        int other = (int)(random_next(random) % (uint64_t)(i + 1));
        int kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}
