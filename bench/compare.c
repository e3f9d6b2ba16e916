/*
 * compare.c - MPI_Allreduce and abc_allreduce in one process, sample by sample, by the rules of `abcomm bench`: same buffers, fresh
 * data, full check, one rank late, time from the last start to the last end. Float32 sums. Built with each peer's own mpicc
 * together with tools/bench_{frame,data,stat}.c and started by that peer's mpirun; bench/peers.py does both. Prints CSV, one row
 * per size and place:
 *   setting,ranks,bytes,place,peer_us,ours_us,arena_us,handoff_us,copy_us,half_us,samples,wrong_peer,wrong_ours
 * copy_us and half_us, with two ranks only: each rank copies what the other has just written, the whole size or half of it, into
 * its own memory. Together with the hand-off they bound what any library can reach.
 * Usage: compare SETTING [MIN MAX [SCALE [tune]]]; SCALE multiplies the number of samples, `tune` leaves out arena and copies.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <mpi.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../tools/bench.h"

#define HUGE_PAGE (2u << 20)
#define MOST_SAMPLES 1000
#define WARMUP 2

enum who { PEER, OURS, ARENA, WHO_COUNT };
enum copy { WHOLE, HALF, COPY_COUNT };
enum hand { LIBRARY, VECTORS, HAND_COUNT }; /* who copies: memcpy, or a loop of plain stores; the faster one counts */

static const size_t sizes[] = {8, 64, 512, 2048, 8192, 32768, 131072, 524288, 2097152, 8388608};

static struct {
    struct bench_frame frame;
    abc_comm *comm;
    int whos; /* ARENA + 1, or less for tuning */
    int rank, nranks;
    float *private[2], *arena[2]; /* input, output */
    float *mailbox[2];            /* written by this rank, by the other; NULL: no copies are measured */
    double samples[WHO_COUNT][MOST_SAMPLES], handoff[MOST_SAMPLES], copies[COPY_COUNT][HAND_COUNT][MOST_SAMPLES];
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

/* Shared memory of two ranks, `bytes` written by each. Found through /proc as the frame's is; it has no name and dies with them. */
static void open_mailboxes(size_t bytes)
{
    char path[64];
    int32_t where[2] = {(int32_t)getpid(), -1};
    if (run.rank == 0 && (where[1] = memfd_create("compare", MFD_CLOEXEC)) >= 0 && ftruncate(where[1], (off_t)(2 * bytes)) != 0)
        where[1] = -1;
    MPI_Bcast(where, 2, MPI_INT32_T, 0, MPI_COMM_WORLD);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)where[0], (int)where[1]);
    int fd = where[1] < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
    char *map = fd < 0 ? MAP_FAILED : mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        fail("no shared memory for the copies");
    close(fd);
    for (int i = 0; i < 2; i++)
        run.mailbox[i] = (float *)(map + (size_t)(run.rank ^ i) * bytes);
    memset(run.mailbox[0], 0, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    if (run.rank == 0)
        close(where[1]);
}

/* Plain stores, whatever the size; the compiler must not make a memcpy of it again. */
static void copy_by_vectors(float *dst, const float *src, size_t bytes)
{
    typedef float vector __attribute__((vector_size(64), aligned(4), may_alias));
    size_t n = bytes / sizeof(vector);
    for (size_t i = 0; i < n; i++) {
        ((vector *)dst)[i] = ((const vector *)src)[i];
        __asm__ volatile("" ::: "memory");
    }
    memcpy((char *)dst + n * sizeof(vector), (const char *)src + n * sizeof(vector), bytes % sizeof(vector));
}

/* What the other rank has just written, into own memory, both ranks at once. */
static double sample_copy(size_t bytes, enum hand hand)
{
    run.iteration++;
    bench_fill(run.mailbox[0], ABC_F32, bench_data_limit(ABC_F32, run.nranks), bench_seed(run.iteration, run.rank), 0,
               bytes / sizeof(float));
    if (bench_frame_begin(&run.frame) != 0)
        fail("the ranks are no more together");
    if (hand == VECTORS)
        copy_by_vectors(run.private[1], run.mailbox[1], bytes);
    else
        memcpy(run.private[1], run.mailbox[1], bytes);
    double us = bench_frame_end(&run.frame);
    if (us < 0)
        fail("the ranks are no more together");
    return us;
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

static double faster_copy(enum copy copy, int n)
{
    double by_library = median(run.copies[copy][LIBRARY], n), by_vectors = median(run.copies[copy][VECTORS], n);
    return by_library < by_vectors ? by_library : by_vectors;
}

static void print_optional(bool measured, double us)
{
    if (measured)
        printf("%.4f", us);
    putchar(',');
}

static void print_cell(const char *setting, size_t bytes, int in_place, int n)
{
    uint64_t wrong[WHO_COUNT];
    for (int who = 0; who < WHO_COUNT; who++)
        wrong[who] = bench_frame_sum(&run.frame, run.wrong[who]);
    if (run.rank != 0)
        return;
    printf("%s,%d,%zu,%s,%.4f,%.4f,", setting, run.nranks, bytes, in_place ? "ip" : "oop", median(run.samples[PEER], n),
           median(run.samples[OURS], n));
    print_optional(run.whos > ARENA, median(run.samples[ARENA], n));
    printf("%.4f,", median(run.handoff, n));
    print_optional(run.mailbox[0], faster_copy(WHOLE, n));
    print_optional(run.mailbox[0] && in_place, faster_copy(HALF, n));
    printf("%d,%llu,%llu\n", n, (unsigned long long)wrong[PEER], (unsigned long long)(wrong[OURS] + wrong[ARENA]));
    fflush(stdout);
}

/* The bare hand-off, and the copies where they bound something: half of the bytes cross only in place. Warm-up has i < 0. */
static void sample_bounds(size_t bytes, int in_place, int i)
{
    double us = bench_frame_exchange(&run.frame);
    if (us < 0)
        fail("the ranks are no more together");
    if (i >= 0)
        run.handoff[i] = us;
    for (int copy = 0; copy < (in_place ? COPY_COUNT : HALF) && run.mailbox[0]; copy++)
        for (int hand = 0; hand < HAND_COUNT; hand++) {
            us = sample_copy(copy == HALF ? bytes / 2 : bytes, (enum hand)hand);
            if (i >= 0)
                run.copies[copy][hand][i] = us;
        }
}

/* Who goes first changes from sample to sample. */
static void measure_cell(const char *setting, size_t bytes, int in_place, double scale)
{
    int n = samples_of(bytes, scale);
    memset(run.wrong, 0, sizeof run.wrong);
    for (int i = -WARMUP; i < n; i++) {
        for (int k = 0; k < run.whos; k++) {
            enum who who = (enum who)((i & 1) ? run.whos - 1 - k : k);
            double us = sample(who, bytes, in_place);
            if (i >= 0)
                run.samples[who][i] = us;
        }
        sample_bounds(bytes, in_place, i);
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
    int tuning = argc > 5 && strcmp(argv[5], "tune") == 0;

    if (bench_frame_open(&run.frame, run.rank, run.nranks, true, share_by_mpi, NULL) != 0)
        fail("no common frame");
    run.seeds = calloc((size_t)run.nranks, sizeof *run.seeds);
    for (int i = 0; i < 2; i++)
        run.private[i] = alloc_private(most);
    run.whos = tuning ? ARENA : WHO_COUNT;
    open_ours(most);
    if (run.nranks == 2 && !tuning)
        open_mailboxes(most);
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
