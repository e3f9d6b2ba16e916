/* train.h - the demo's training loop, alone or data-parallel over a communicator. */
#ifndef DEMO_TRAIN_H
#define DEMO_TRAIN_H

#include <abcomm/abcomm.h>

#include "data.h"
#include "mlp.h"

struct setup {
    int epochs, batch, hidden;
    float rate, momentum;
    uint64_t seed;
    const char *algorithm; /* NULL: the library chooses */
};

/* Who trains: the ranks of `comm`, or, with comm NULL, this process alone. */
struct team {
    abc_comm *comm;
    int rank;  /* 0 when alone */
    int parts; /* sub-batches that every batch is cut into; the number of ranks of comm */
};

struct result {
    double seconds;       /* of the epochs; the mean over ranks */
    double communication; /* of these, inside allreduce calls, waiting for slower ranks included */
    double bytes;         /* that one rank handed to allreduce */
    struct score test;    /* after the last epoch */
    uint64_t hash;        /* of the weights */
};

/*
 * Train from the seed to the last epoch. Rank 0 prints a line an epoch when `progress` is set. Collective over team->comm. Returns
 * 0, or -1 after it has said on stderr what failed.
 */
int train(const struct setup *setup, const struct digits *digits, const struct team *team, int progress, struct result *result);

#endif
