/*
 * compare.c - MPI_Allreduce and abc_allreduce in one process, sample by sample, by the rules of `abcomm bench`: same buffers, fresh
 * data, full check, one rank late, time from the last start to the last end. Float32 sums. Built with Open MPI's mpicc together
 * with tools/bench_{frame,data,stat}.c and started by mpirun; bench/run does both. Prints CSV, one row per size and place:
 *   setting,ranks,bytes,place,peer_us,ours_us,arena_us,handoff_us,samples,wrong_peer,wrong_ours
 * Usage: compare SETTING [MIN MAX [SCALE [peer]]]; SCALE multiplies the number of samples, `peer` leaves our library out.
 */
#include <arpa/inet.h>
#include <mpi.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../tools/bench.h"

#define HUGE_PAGE (2u << 20)
#define MOST_SAMPLES 1000
#define WARMUP 2

enum who { PEER, OURS, ARENA, WHO_COUNT };

static const size_t sizes[] = {8, 64, 512, 2048, 8192, 32768, 131072, 524288, 2097152, 8388608};

static struct {
    struct bench_frame frame;
    abc_comm *comm; /* NULL: the peer alone */
    int rank, nranks;
    float *private[2], *arena[2]; /* input, output */
    double samples[WHO_COUNT][MOST_SAMPLES], handoff[MOST_SAMPLES];
    uint64_t wrong[WHO_COUNT];
    uint32_t *seeds;
    uint32_t iteration;
} run;

static void fail(const char *what)
{
    fprintf(stderr, "compare: rank %d: %s\n", run.rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

static int share_by_mpi(void *unused, void *data, size_t bytes)
{
    return MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD) == MPI_SUCCESS ? 0 : -1;
}

/* What the ranks must know of each other before they have a communicator. */
struct meeting {
    char address[64];
    unsigned char key[32];
};

/* A loopback address that was free a moment ago, and a key that strangers do not know. */
static void arrange(struct meeting *m)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) != 0 || getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        fail("no free port on the loopback interface");
    close(fd);
    snprintf(m->address, sizeof m->address, "127.0.0.1:%d", ntohs(address.sin_port));
    if (getrandom(m->key, sizeof m->key, 0) != (ssize_t)sizeof m->key)
        fail("no random key");
}

static void open_ours(size_t bytes)
{
    struct meeting meeting = {0};
    if (run.rank == 0)
        arrange(&meeting);
    MPI_Bcast(&meeting, sizeof meeting, MPI_BYTE, 0, MPI_COMM_WORLD);
    abc_comm_config config;
    abc_comm_config_init(&config);
    config.rank = run.rank;
    config.nranks = run.nranks;
    config.address = meeting.address;
    config.key = meeting.key;
    config.key_length = sizeof meeting.key;
    if (abc_comm_create(&config, &run.comm) != ABC_OK)
        fail(abc_last_error());
    for (int i = 0; i < 2; i++) {
        if (abc_mem_alloc(bytes, (void **)&run.arena[i]) != ABC_OK)
            fail(abc_last_error());
        memset(run.arena[i], 0, bytes);
    }
}

static float *alloc_private(size_t bytes)
{
    size_t whole = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    float *p = aligned_alloc(HUGE_PAGE, whole);
    if (!p)
        fail("no memory");
    madvise(p, whole, MADV_HUGEPAGE);
    memset(p, 0, whole);
    return p;
}

/* One call of one library with all that belongs to it. */
static double sample(enum who who, size_t bytes, int in_place)
{
    uint64_t n = bytes / sizeof(float);
    float **buffers = who == ARENA ? run.arena : run.private, *out = buffers[1], *in = in_place ? out : buffers[0];
    uint32_t limit = bench_data_limit(ABC_F32, run.nranks);
    run.iteration++;
    for (int r = 0; r < run.nranks; r++)
        run.seeds[r] = bench_seed(run.iteration, r);
    bench_fill(in, ABC_F32, limit, run.seeds[run.rank], 0, n);
    int status;
    if (bench_frame_begin(&run.frame) != 0)
        fail("the ranks are no more together");
    if (who == PEER)
        status = MPI_Allreduce(in_place ? MPI_IN_PLACE : in, out, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else
        status = abc_allreduce(in, out, n, ABC_F32, ABC_SUM, run.comm);
    double us = bench_frame_end(&run.frame);
    if (status != 0)
        fail(who == PEER ? "MPI_Allreduce failed" : abc_last_error());
    if (us < 0)
        fail("the ranks are no more together");
    run.wrong[who] += bench_check(out, ABC_F32, ABC_SUM, limit, run.seeds, run.nranks, 0, n);
    return us;
}

static int samples_of(size_t bytes, double scale)
{
    static const struct {
        size_t most;
        int samples, crowded;
    } table[] = {{8192, 200, 80}, {32768, 100, 60}, {131072, 60, 40}, {524288, 40, 24}, {2097152, 20, 12}, {SIZE_MAX, 12, 8}};
    int i = 0;
    while (bytes > table[i].most)
        i++;
    int n = (int)(scale * (run.frame.crowded ? table[i].crowded : table[i].samples) + 0.5);
    return n < 3 ? 3 : (n > MOST_SAMPLES ? MOST_SAMPLES : n);
}

static double median(double *samples, int n)
{
    return bench_percentile(samples, (size_t)n, 0.5);
}

static void print_cell(const char *setting, size_t bytes, int in_place, int n)
{
    uint64_t wrong[WHO_COUNT];
    for (int who = 0; who < WHO_COUNT; who++)
        wrong[who] = bench_frame_sum(&run.frame, run.wrong[who]);
    if (run.rank != 0)
        return;
    printf("%s,%d,%zu,%s,%.4f,", setting, run.nranks, bytes, in_place ? "ip" : "oop", median(run.samples[PEER], n));
    if (run.comm)
        printf("%.4f,%.4f,", median(run.samples[OURS], n), median(run.samples[ARENA], n));
    else
        printf(",,");
    printf("%.4f,%d,%llu,%llu\n", median(run.handoff, n), n, (unsigned long long)wrong[PEER],
           (unsigned long long)(wrong[OURS] + wrong[ARENA]));
    fflush(stdout);
}

/* Who goes first changes from sample to sample. */
static void measure_cell(const char *setting, size_t bytes, int in_place, double scale)
{
    int n = samples_of(bytes, scale), whos = run.comm ? WHO_COUNT : 1;
    memset(run.wrong, 0, sizeof run.wrong);
    for (int i = -WARMUP; i < n; i++) {
        for (int k = 0; k < whos; k++) {
            enum who who = (enum who)((i & 1) ? whos - 1 - k : k);
            double us = sample(who, bytes, in_place);
            if (i >= 0)
                run.samples[who][i] = us;
        }
        double us = bench_frame_exchange(&run.frame);
        if (us < 0)
            fail("the ranks are no more together");
        if (i >= 0)
            run.handoff[i] = us;
    }
    print_cell(setting, bytes, in_place, n);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run.nranks);
    const char *setting = argc > 1 ? argv[1] : "default";
    size_t least = argc > 2 ? strtoull(argv[2], NULL, 10) : 8, most = argc > 3 ? strtoull(argv[3], NULL, 10) : 8u << 20;
    double scale = argc > 4 ? strtod(argv[4], NULL) : 1;
    int peer_only = argc > 5 && strcmp(argv[5], "peer") == 0;

    if (bench_frame_open(&run.frame, run.rank, run.nranks, true, share_by_mpi, NULL) != 0)
        fail("no common frame");
    run.seeds = calloc((size_t)run.nranks, sizeof *run.seeds);
    for (int i = 0; i < 2; i++)
        run.private[i] = alloc_private(most);
    if (!peer_only)
        open_ours(most);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int in_place = 0; in_place < 2 && sizes[i] >= least && sizes[i] <= most; in_place++)
            measure_cell(setting, sizes[i], in_place, scale);

    abc_comm_destroy(run.comm);
    for (int i = 0; i < 2; i++) {
        free(run.private[i]);
        abc_mem_free(run.arena[i]);
    }
    free(run.seeds);
    bench_frame_close(&run.frame);
    MPI_Finalize();
    return 0;
}
