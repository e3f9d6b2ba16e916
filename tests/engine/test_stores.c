/*
 * test_stores.c - long sums of two ranks whose outputs another core seems to have read, so that they are stored by way of a tile
 * (src/plan/run_pair.c): all sizes about a stretch and a piece of it, types of 1 to 16 bytes, unaligned outputs, an operation of
 * the caller's. Every byte is compared, and what lies beside the output.
 */
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "plan/price.h"
#include "plan/run.h"

#define MOST (700u << 10)
#define GUARD 64
#define FILL 0x5a

/* Distant cores, and whatever takes time is slow. */
static void distant(struct abci_engine *e)
{
    e->machine.price.hand_off = ABCI_DISTANT;
    e->machine.price.read = 1e-15;
}

static void less(const void *in, void *inout, uint64_t count, abc_type type, void *context)
{
    const int32_t *a = in;
    int32_t *b = inout;
    (void)type;
    (void)context;
    for (uint64_t i = 0; i < count; i++)
        b[i] = a[i] - b[i];
}

static void fill(char *x, uint64_t bytes, abc_type type, int rank)
{
    for (uint64_t i = 0; i < bytes / abc_type_size(type); i++)
        switch (type) {
        case ABC_I8:
            x[i] = (char)(i * 7 % 50 + (uint64_t)rank);
            break;
        case ABC_COMPLEX128:
            ((double *)x)[2 * i] = ((double *)x)[2 * i + 1] = (double)(i + (uint64_t)rank);
            break;
        default:
            ((int32_t *)x)[i] = (int32_t)(i * 3 + (uint64_t)rank * 1000);
        }
}

/* The sum, or difference, of both ranks' inputs; small numbers, so exact. */
static bool is_right(const char *x, uint64_t at, abc_type type, bool subtracted)
{
    if (type == ABC_I8)
        return x[at] == (char)(2 * (at * 7 % 50) + 1);
    if (type == ABC_COMPLEX128) {
        double pair[2];
        memcpy(pair, x + 16 * at, sizeof pair);
        return pair[0] == (double)(2 * at + 1) && pair[1] == pair[0];
    }
    int32_t value;
    memcpy(&value, x + 4 * at, sizeof value);
    return value == (subtracted ? -1000 : (int32_t)(6 * at + 1000));
}

static bool one(struct rank *r, char *in, char *room, uint64_t count, abc_type type, abc_op op, unsigned shift)
{
    const uint64_t bytes = count * abc_type_size(type);
    char *out = room + GUARD + shift;
    fill(in, bytes, type, r->rank);
    memset(room, FILL, bytes + 2 * GUARD + shift);
    doing(r, "%llu bytes of type %d, operation %d, %u bytes from a line", (unsigned long long)bytes, (int)type, (int)op, shift);
    bool ok = check_status(r, abc_allreduce(in, out, count, type, op, r->comm), ABC_OK, "allreduce");
    for (uint64_t i = 0; i < count && ok; i++)
        ok = check(r, is_right(out, i, type, op != ABC_SUM), "element %llu is wrong", (unsigned long long)i);
    for (int i = 0; i < GUARD && ok; i++)
        ok = check(r, out[-1 - i] == FILL && out[bytes + (uint64_t)i] == FILL, "a byte beside the output was written");
    return ok;
}

static int body(struct rank *r)
{
    static const uint64_t edges[] = {64 << 10, 80 << 10, 128 << 10, 192 << 10, 256 << 10, 520 << 10, 640 << 10};
    static const abc_type types[] = {ABC_I8, ABC_I32, ABC_COMPLEX128};
    char *in = aligned_alloc(64, MOST + 4096), *room = aligned_alloc(64, MOST + 4096);
    abc_op difference;
    bool ok = check_status(r, abc_op_create(less, 0, NULL, &difference), ABC_OK, "an operation");
    for (unsigned e = 0; e < sizeof edges / sizeof *edges && ok; e++)
        for (unsigned t = 0; t < 3; t++)
            for (int beside = -1; beside <= 1 && ok; beside++) {
                uint64_t count = edges[e] / abc_type_size(types[t]) + (uint64_t)(int64_t)beside;
                ok = one(r, in, room, count, types[t], ABC_SUM, 16 * (e % 3)) && one(r, in, room, count, types[t], ABC_SUM, 0);
                ok = ok && (types[t] != ABC_I32 || one(r, in, room, count, ABC_I32, difference, 4));
            }
    free(in);
    free(room);
    return !ok;
}

int main(int argc, char **argv)
{
    struct options o;
    options_read(argc, argv, &o);
    abci_hook_measured = distant;
    job_run(&(struct job){.name = "two processes", .body = body, .nranks = 2});
    job_run(&(struct job){.name = "two threads", .body = body, .nranks = 2, .threads = true});
    return jobs_end();
}
