/*
 * train.c - the demo's training loop. A batch is cut into as many sub-batches as there are ranks; each rank computes the gradient
 * of its own, abc_allreduce adds them, every rank makes the same update. Alone, the process computes all sub-batches itself and
 * adds them in rank order, which must lead to the same bits. Called by main.c; owns the model and the two gradient buffers.
 */
#include "train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct trainer {
    const struct setup *setup;
    const struct digits *digits;
    const struct team *team;
    struct mlp mlp;
    int *order;      /* images: first the training set, shuffled anew each epoch, then the test set */
    float *gradient; /* of one sub-batch; peers read it in place */
    float *sum;      /* of all sub-batches */
    double communication, bytes;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The one place where ranks talk: out = sum over ranks of in. */
static int add_over_ranks(struct trainer *t, const void *in, void *out, uint64_t count, abc_type type)
{
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = in;
    call.out = out;
    call.count = count;
    call.type = type;
    call.op = ABC_SUM;
    call.algorithm = t->setup->algorithm;
    double start = now();
    int status = abc_run(t->team->comm, &call);
    t->communication += now() - start;
    t->bytes += (double)count * (double)abc_type_size(type);
    if (status != ABC_OK)
        fprintf(stderr, "demo: %s\n", abc_last_error());
    return status == ABC_OK ? 0 : -1;
}

/* First image of sub-batch `part`, when n images are cut into `parts` nearly equal pieces. */
static int cut(int n, int parts, int part)
{
    return (int)((long)n * part / parts);
}

/* t->sum = gradient summed over the n images. */
static int batch_gradient(struct trainer *t, const int *order, int n, struct score *score)
{
    const struct team *team = t->team;
    if (team->comm) {
        int first = cut(n, team->parts, team->rank), last = cut(n, team->parts, team->rank + 1);
        mlp_gradient(&t->mlp, t->digits, order + first, last - first, t->gradient, score);
        return add_over_ranks(t, t->gradient, t->sum, t->mlp.count, ABC_F32);
    }
    for (int part = 0; part < team->parts; part++) {
        int first = cut(n, team->parts, part), last = cut(n, team->parts, part + 1);
        mlp_gradient(&t->mlp, t->digits, order + first, last - first, part == 0 ? t->sum : t->gradient, score);
        for (size_t i = 0; part > 0 && i < t->mlp.count; i++)
            t->sum[i] += t->gradient[i];
    }
    return 0;
}

/* Add the ranks' scores, so that all know the whole. */
static int total_score(struct trainer *t, struct score *score)
{
    double in[3] = {score->loss, score->right, score->seen}, out[3];
    if (!t->team->comm)
        return 0;
    if (add_over_ranks(t, in, out, 3, ABC_F64) != 0)
        return -1;
    *score = (struct score){out[0], out[1], out[2]};
    return 0;
}

static int test(struct trainer *t, struct score *score)
{
    int n = t->digits->count - DEMO_TRAIN;
    int parts = t->team->comm ? t->team->parts : 1, rank = t->team->comm ? t->team->rank : 0;
    int first = cut(n, parts, rank), last = cut(n, parts, rank + 1);
    memset(score, 0, sizeof(*score));
    mlp_score(&t->mlp, t->digits, t->order + DEMO_TRAIN + first, last - first, score);
    return total_score(t, score);
}

static int epoch(struct trainer *t, struct random *random, struct score *score)
{
    const struct setup *s = t->setup;
    memset(score, 0, sizeof(*score));
    random_shuffle(random, t->order, DEMO_TRAIN);
    for (int first = 0; first < DEMO_TRAIN; first += s->batch) {
        int n = DEMO_TRAIN - first < s->batch ? DEMO_TRAIN - first : s->batch;
        if (batch_gradient(t, t->order + first, n, score) != 0)
            return -1;
        mlp_update(&t->mlp, t->sum, n, s->rate, s->momentum);
    }
    return total_score(t, score);
}

static int all_epochs(struct trainer *t, int progress, struct result *result)
{
    struct random random = {t->setup->seed};
    /* One shuffle over the whole file decides which images are the test set. */
    for (int i = 0; i < t->digits->count; i++)
        t->order[i] = i;
    random_shuffle(&random, t->order, t->digits->count);
    if (t->team->comm && abc_barrier(t->team->comm) != ABC_OK) {
        fprintf(stderr, "demo: %s\n", abc_last_error());
        return -1;
    }
    double start = now();
    for (int e = 1; e <= t->setup->epochs; e++) {
        struct score seen;
        if (epoch(t, &random, &seen) != 0 || test(t, &result->test) != 0)
            return -1;
        if (progress && t->team->rank == 0)
            printf("epoch %3d   loss %.4f   training set %6.2f %%   test set %6.2f %%\n", e, seen.loss / seen.seen,
                   100 * seen.right / seen.seen, 100 * result->test.right / result->test.seen);
    }
    result->seconds = now() - start;
    result->communication = t->communication;
    result->bytes = t->bytes;
    result->hash = mlp_hash(&t->mlp);
    return 0;
}

/* Replace the times by their mean over ranks. */
static int mean_times(struct trainer *t, struct result *result)
{
    double in[2] = {result->seconds, result->communication}, out[2];
    if (!t->team->comm)
        return 0;
    if (add_over_ranks(t, in, out, 2, ABC_F64) != 0)
        return -1;
    result->seconds = out[0] / t->team->parts;
    result->communication = out[1] / t->team->parts;
    return 0;
}

static int open_trainer(struct trainer *t)
{
    void *gradient, *sum;
    t->order = calloc((size_t)t->digits->count, sizeof(int));
    if (!t->order || mlp_create(&t->mlp, t->setup->hidden, t->setup->seed) != 0) {
        fprintf(stderr, "demo: no memory for a hidden layer of %d\n", t->setup->hidden);
        return -1;
    }
    if (abc_mem_alloc(t->mlp.count * sizeof(float), &gradient) != ABC_OK) {
        fprintf(stderr, "demo: %s\n", abc_last_error());
        return -1;
    }
    t->gradient = gradient;
    if (abc_mem_alloc(t->mlp.count * sizeof(float), &sum) != ABC_OK) {
        fprintf(stderr, "demo: %s\n", abc_last_error());
        return -1;
    }
    t->sum = sum;
    return 0;
}

static void close_trainer(struct trainer *t)
{
    abc_mem_free(t->gradient);
    abc_mem_free(t->sum);
    mlp_destroy(&t->mlp);
    free(t->order);
}

int train(const struct setup *setup, const struct digits *digits, const struct team *team, int progress, struct result *result)
{
    struct trainer t = {.setup = setup, .digits = digits, .team = team};
    memset(result, 0, sizeof(*result));
    int status = open_trainer(&t);
    if (status == 0)
        status = all_epochs(&t, progress, result);
    if (status == 0)
        status = mean_times(&t, result);
    close_trainer(&t);
    return status;
}
