/*
 * mlp.h - the demo's model: one hidden layer, ReLU, softmax, cross-entropy; SGD with momentum. All parameters are one array of
 * floats, and so are gradients, so that a gradient is one buffer for one allreduce.
 */
#ifndef DEMO_MLP_H
#define DEMO_MLP_H

#include <stddef.h>
#include <stdint.h>

#include "data.h"

struct mlp {
    int hidden;
    size_t count;    /* parameters */
    float *weight;   /* [count]: layer 1 [64][hidden], its bias [hidden], layer 2 [hidden][10], its bias [10] */
    float *velocity; /* [count] */
    float *scratch;  /* activations of one image */
};

/* Sums over a set of images. */
struct score {
    double loss;
    double right; /* images classified correctly */
    double seen;
};

/* Weights come from the seed alone. Returns -1 when memory is short. */
int mlp_create(struct mlp *mlp, int hidden, uint64_t seed);
void mlp_destroy(struct mlp *mlp);

/* gradient[0..count) = sum over the images order[0..n); adds to score. Images are taken in this order, one after another. */
void mlp_gradient(struct mlp *mlp, const struct digits *digits, const int *order, int n, float *gradient, struct score *score);
/* Classify only. */
void mlp_score(struct mlp *mlp, const struct digits *digits, const int *order, int n, struct score *score);
/* One step of SGD with momentum on a gradient summed over n images. */
void mlp_update(struct mlp *mlp, const float *gradient, int n, float rate, float momentum);
/* A hash of every bit of the weights. */
uint64_t mlp_hash(const struct mlp *mlp);

#endif
