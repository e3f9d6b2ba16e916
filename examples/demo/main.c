/*
 * main.c - abcomm-demo: trains a handwritten-digit classifier with all ranks of the job, then on rank 0 alone, and compares time,
 * accuracy and, bit for bit, the weights. Start it with `abcomm run -n 4 abcomm-demo`; ./dev demo does. The training is in train.c.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train.h"

/* Accuracies further apart than this count as different: one image of the test set is a third of a percent. */
#define SAME_ACCURACY 0.5

struct options {
    struct setup setup;
    const char *data;
};

static const char usage[] = "usage: abcomm run -n N abcomm-demo [options]\n"
                            "Trains a digit classifier with N processes, then with one, and compares.\n"
                            "  --epochs N      passes over the training set (30)\n"
                            "  --batch N       images a batch, over all ranks (64)\n"
                            "  --hidden N      width of the hidden layer (512)\n"
                            "  --rate R        learning rate (0.05)\n"
                            "  --seed N        seed of weights and order (1)\n"
                            "  --algorithm A   allreduce algorithm, as `abcomm plan --list` shows (chosen by the library)\n"
                            "  --data PATH     the images (" DEMO_DATA ")\n";

/* The number in `text`, or an end with a message: options are the same on all ranks, so all of them end. */
static double number(const char *option, const char *text, double low, double high)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !(value >= low && value <= high)) {
        fprintf(stderr, "demo: --%s takes a number from %g to %g, not \"%s\"\n", option, low, high, text);
        exit(2);
    }
    return value;
}

static void parse_options(int argc, char **argv, struct options *o)
{
    static const struct option known[] = {{"epochs", 1, NULL, 'e'},    {"batch", 1, NULL, 'b'}, {"hidden", 1, NULL, 'w'},
                                          {"rate", 1, NULL, 'r'},      {"seed", 1, NULL, 's'},  {"data", 1, NULL, 'd'},
                                          {"algorithm", 1, NULL, 'a'}, {"help", 0, NULL, 'h'},  {NULL, 0, NULL, 0}};
    *o = (struct options){{30, 64, 512, 0.05f, 0.9f, 1, NULL}, DEMO_DATA};
    int c, index = 0;
    while ((c = getopt_long(argc, argv, "", known, &index)) != -1) {
        const char *name = known[index].name;
        switch (c) {
        case 'e':
            o->setup.epochs = (int)number(name, optarg, 1, 100000);
            break;
        case 'b':
            o->setup.batch = (int)number(name, optarg, 1, DEMO_TRAIN);
            break;
        case 'w':
            o->setup.hidden = (int)number(name, optarg, 1, 65536);
            break;
        case 'r':
            o->setup.rate = (float)number(name, optarg, 1e-9, 10);
            break;
        case 's':
            o->setup.seed = (uint64_t)number(name, optarg, 0, 1e15);
            break;
        case 'd':
            o->data = optarg;
            break;
        case 'a':
            o->setup.algorithm = optarg;
            break;
        case 'h':
            fputs(usage, stdout);
            exit(0);
        default:
            fputs(usage, stderr);
            exit(2);
        }
    }
    if (optind < argc) {
        fprintf(stderr, "demo: unexpected argument \"%s\"\n%s", argv[optind], usage);
        exit(2);
    }
}

static double accuracy(const struct result *r)
{
    return 100 * r->test.right / r->test.seen;
}

static void print_row(const char *what, int ranks, const struct result *r, double base)
{
    char share[32] = "-", bytes[32] = "-";
    if (r->bytes > 0) {
        snprintf(share, sizeof(share), "%.1f %%", 100 * r->communication / r->seconds);
        snprintf(bytes, sizeof(bytes), "%.1f MB", r->bytes / 1e6);
    }
    printf("%-30s %5d %7.3f s %9.2f %14s %13s %8.2f %%   %016llx\n", what, ranks, r->seconds, base / r->seconds, share, bytes,
           accuracy(r), (unsigned long long)r->hash);
}

/* The table and the verdict. Returns 0 when all is as it must be. */
static int report(int nranks, const struct result *parallel, const struct result *alone, const struct result *proof)
{
    char name[64];
    printf("\n%-30s %5s %9s %9s %14s %13s %10s   %s\n", "", "ranks", "time", "speed-up", "communication", "bytes a rank",
           "accuracy", "weights");
    print_row("one process", 1, alone, alone->seconds);
    snprintf(name, sizeof(name), "%d process%s, abc_allreduce", nranks, nranks == 1 ? "" : "es");
    print_row(name, nranks, parallel, alone->seconds);
    snprintf(name, sizeof(name), "one process, %d sub-batch%s", nranks, nranks == 1 ? "" : "es");
    print_row(name, 1, proof, alone->seconds);
    printf("\ncommunication: the share of time in allreduce calls, waiting for slower ranks included. CPUs: %ld.\n",
           sysconf(_SC_NPROCESSORS_ONLN));
    int failed = parallel->hash != proof->hash;
    printf("%s those of one process that computes the same %d sub-batch%s and adds their gradients in rank order.\n",
           failed ? "FAILED: the weights differ from" : "proof: the weights are bit for bit", nranks, nranks == 1 ? "" : "es");
    if (fabs(accuracy(parallel) - accuracy(alone)) > SAME_ACCURACY) {
        printf("FAILED: the accuracy differs from that of one process.\n");
        failed = 1;
    }
    fflush(stdout);
    return failed;
}

/* Train together, then let rank 0 train alone twice while the others sleep, then tell all ranks the verdict. */
static int compare(const struct options *o, const struct digits *digits, abc_comm *comm)
{
    struct team together = {comm, abc_comm_rank(comm), abc_comm_size(comm)};
    struct team single = {NULL, 0, 1}, slices = {NULL, 0, together.parts};
    struct result parallel, alone, proof;
    int32_t verdict = 0;
    if (together.rank == 0)
        printf("%d rank%s, %d training and %d test images, 64-%d-10 net, batches of %d images\n", together.parts,
               together.parts == 1 ? "" : "s", DEMO_TRAIN, digits->count - DEMO_TRAIN, o->setup.hidden, o->setup.batch);
    if (train(&o->setup, digits, &together, 1, &parallel) != 0)
        return 1;
    if (together.rank == 0)
        verdict = train(&o->setup, digits, &single, 0, &alone) != 0 || train(&o->setup, digits, &slices, 0, &proof) != 0 ||
                  report(together.parts, &parallel, &alone, &proof) != 0;
    if (abc_broadcast(&verdict, &verdict, 1, ABC_I32, 0, comm) != ABC_OK) {
        fprintf(stderr, "demo: %s\n", abc_last_error());
        return 1;
    }
    return verdict != 0;
}

int main(int argc, char **argv)
{
    struct options options;
    struct digits digits;
    abc_comm *comm = NULL;
    parse_options(argc, argv, &options);
    /* Before the communicator: a rank that cannot read its data should end before others wait for it. */
    if (digits_load(options.data, &digits) != 0)
        return 1;
    int failed = 1;
    if (abc_comm_create(NULL, &comm) != ABC_OK) {
        fprintf(stderr, "demo: %s\n", abc_last_error());
    } else {
        setvbuf(stdout, NULL, _IOLBF, 0);
        failed = compare(&options, &digits, comm);
    }
    if (comm && abc_comm_destroy(comm) != ABC_OK) {
        fprintf(stderr, "demo: %s\n", abc_last_error());
        failed = 1;
    }
    digits_free(&digits);
    return failed;
}
