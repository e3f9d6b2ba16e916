/* data.h - the demo's digits: images as floats, labels, and a generator of reproducible random numbers. */
#ifndef DEMO_DATA_H
#define DEMO_DATA_H

#include <stdint.h>

#define DEMO_PIXELS 64
#define DEMO_CLASSES 10
#define DEMO_TRAIN 1500 /* the rest of the file is the test set */

struct digits {
    int count;
    float *pixel;         /* [count][DEMO_PIXELS], 0 to 1 */
    unsigned char *label; /* [count], 0 to 9 */
};

/* Read the CSV file. Returns 0, or -1 after it has said on stderr which line is wrong. */
int digits_load(const char *path, struct digits *digits);
void digits_free(struct digits *digits);

/* A generator whose numbers depend on the seed alone, so that all ranks draw alike. */
struct random {
    uint64_t state;
};
uint64_t random_next(struct random *random);
float random_uniform(struct random *random); /* -1 to 1 */
/* Put `order` into an order that depends on the generator alone. */
void random_shuffle(struct random *random, int *order, int count);

#endif
