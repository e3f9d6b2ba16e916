/*
 * mlp.c - forward, backward and update of the demo's model. Every sum runs in one fixed order (the build forbids fused
 * multiply-add here), so a gradient depends on its images alone, not on the process that computes it. Inner loops run over
 * outputs, which lets the compiler vectorise them without reordering a sum. Cost: about 6 * count operations an image.
 */
#include "mlp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where the four parts of a parameter array lie. */
struct parts {
    float *w1, *b1, *w2, *b2;
};

static struct parts split(float *array, int hidden)
{
    struct parts p;
    p.w1 = array;
    p.b1 = p.w1 + (size_t)DEMO_PIXELS * (size_t)hidden;
    p.w2 = p.b1 + hidden;
    p.b2 = p.w2 + (size_t)hidden * DEMO_CLASSES;
    return p;
}

int mlp_create(struct mlp *mlp, int hidden, uint64_t seed)
{
    size_t h = (size_t)hidden;
    mlp->hidden = hidden;
    mlp->count = DEMO_PIXELS * h + h + h * DEMO_CLASSES + DEMO_CLASSES;
    mlp->weight = calloc(mlp->count, sizeof(float));
    mlp->velocity = calloc(mlp->count, sizeof(float));
    mlp->scratch = calloc(2 * h + DEMO_CLASSES, sizeof(float));
    if (!mlp->weight || !mlp->velocity || !mlp->scratch) {
        mlp_destroy(mlp);
        return -1;
    }
    struct random random = {seed};
    struct parts p = split(mlp->weight, hidden);
    float range1 = sqrtf(6.0f / DEMO_PIXELS), range2 = sqrtf(6.0f / (float)hidden);
    for (size_t i = 0; i < DEMO_PIXELS * h; i++)
        p.w1[i] = range1 * random_uniform(&random);
    for (size_t i = 0; i < h * DEMO_CLASSES; i++)
        p.w2[i] = range2 * random_uniform(&random);
    return 0;
}

void mlp_destroy(struct mlp *mlp)
{
    free(mlp->weight);
    free(mlp->velocity);
    free(mlp->scratch);
    memset(mlp, 0, sizeof(*mlp));
}

/* One image through the net: hidden[] after ReLU, output[] as probabilities. */
static void forward(const struct mlp *mlp, const float *restrict pixel, float *restrict hidden, float *restrict output)
{
    struct parts p = split(mlp->weight, mlp->hidden);
    int width = mlp->hidden;
    memcpy(hidden, p.b1, sizeof(float) * (size_t)width);
    for (int i = 0; i < DEMO_PIXELS; i++) {
        const float *row = p.w1 + (size_t)i * (size_t)width;
        for (int j = 0; j < width; j++)
            hidden[j] += pixel[i] * row[j];
    }
    for (int j = 0; j < width; j++)
        hidden[j] = hidden[j] > 0 ? hidden[j] : 0;
    memcpy(output, p.b2, sizeof(float) * DEMO_CLASSES);
    for (int j = 0; j < width; j++) {
        const float *row = p.w2 + (size_t)j * DEMO_CLASSES;
        for (int k = 0; k < DEMO_CLASSES; k++)
            output[k] += hidden[j] * row[k];
    }
    float top = output[0], sum = 0;
    for (int k = 1; k < DEMO_CLASSES; k++)
        top = output[k] > top ? output[k] : top;
    for (int k = 0; k < DEMO_CLASSES; k++) {
        output[k] = expf(output[k] - top);
        sum += output[k];
    }
    for (int k = 0; k < DEMO_CLASSES; k++)
        output[k] /= sum;
}

/* Gradient of one image's loss: output[] comes in as probabilities and leaves as the loss's slope. */
static void backward(const struct mlp *mlp, const float *restrict pixel, const float *restrict hidden, float *restrict output,
                     int label, float *restrict gradient)
{
    struct parts p = split(mlp->weight, mlp->hidden), g = split(gradient, mlp->hidden);
    int width = mlp->hidden;
    float *slope = mlp->scratch + width + DEMO_CLASSES;
    output[label] -= 1.0f;
    for (int k = 0; k < DEMO_CLASSES; k++)
        g.b2[k] += output[k];
    for (int j = 0; j < width; j++) {
        float sum = 0;
        for (int k = 0; k < DEMO_CLASSES; k++) {
            g.w2[(size_t)j * DEMO_CLASSES + (size_t)k] += hidden[j] * output[k];
            sum += p.w2[(size_t)j * DEMO_CLASSES + (size_t)k] * output[k];
        }
        slope[j] = hidden[j] > 0 ? sum : 0;
        g.b1[j] += slope[j];
    }
    for (int i = 0; i < DEMO_PIXELS; i++) {
        float *row = g.w1 + (size_t)i * (size_t)width;
        for (int j = 0; j < width; j++)
            row[j] += pixel[i] * slope[j];
    }
}

static void count_result(const float *output, int label, struct score *score)
{
    int best = 0;
    for (int k = 1; k < DEMO_CLASSES; k++)
        best = output[k] > output[best] ? k : best;
    score->loss -= log((double)output[label] + 1e-30);
    score->right += best == label;
    score->seen += 1;
}

void mlp_gradient(struct mlp *mlp, const struct digits *digits, const int *order, int n, float *gradient, struct score *score)
{
    float *hidden = mlp->scratch, *output = mlp->scratch + mlp->hidden;
    memset(gradient, 0, mlp->count * sizeof(float));
    for (int s = 0; s < n; s++) {
        const float *pixel = digits->pixel + (size_t)order[s] * DEMO_PIXELS;
        int label = digits->label[order[s]];
        forward(mlp, pixel, hidden, output);
        count_result(output, label, score);
        backward(mlp, pixel, hidden, output, label, gradient);
    }
}

void mlp_score(struct mlp *mlp, const struct digits *digits, const int *order, int n, struct score *score)
{
    float *hidden = mlp->scratch, *output = mlp->scratch + mlp->hidden;
    for (int s = 0; s < n; s++) {
        forward(mlp, digits->pixel + (size_t)order[s] * DEMO_PIXELS, hidden, output);
        count_result(output, digits->label[order[s]], score);
    }
}

void mlp_update(struct mlp *mlp, const float *restrict gradient, int n, float rate, float momentum)
{
    float *restrict weight = mlp->weight, *restrict velocity = mlp->velocity;
    float scale = rate / (float)n;
    for (size_t i = 0; i < mlp->count; i++) {
        velocity[i] = momentum * velocity[i] - scale * gradient[i];
        weight[i] += velocity[i];
    }
}

/* FNV-1a over the bytes. */
uint64_t mlp_hash(const struct mlp *mlp)
{
    const unsigned char *bytes = (const unsigned char *)mlp->weight;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < mlp->count * sizeof(float); i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}
