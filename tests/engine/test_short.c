/*
 * test_short.c - the short way of small allreduces (run_tiny.c): which calls take it, and that ranks which take it meet ranks which
 * do not. The linker puts a counter in front of it. Links the testing library.
 */
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"
#include "harness.h"
#include "plan/run_internal.h"

static int taken; /* calls of this process that went the short way */

int __real_abci_tiny_run(struct abci_engine *e, struct abci_tiny *t, const char *in, char *out);
int __wrap_abci_tiny_run(struct abci_engine *e, struct abci_tiny *t, const char *in, char *out);

int __wrap_abci_tiny_run(struct abci_engine *e, struct abci_tiny *t, const char *in, char *out)
{
    int status = __real_abci_tiny_run(e, t, in, out);
    taken += status == ABC_OK || status == ABCI_LATE;
    return status;
}

static bool sum(struct rank *r, int count, int round)
{
    static float x[60000], y[60000];
    for (int i = 0; i < count; i++)
        x[i] = (float)(i % 100 + round % 50 + r->rank);
    doing(r, "%d values, round %d", count, round);
    bool ok = check_status(r, abc_allreduce(x, y, (uint64_t)count, ABC_F32, ABC_SUM, r->comm), ABC_OK, "allreduce");
    for (int i = 0; i < count && ok; i++) {
        float wanted = (float)(r->nranks * (i % 100 + round % 50) + r->nranks * (r->nranks - 1) / 2);
        ok = check(r, y[i] == wanted, "%d values, round %d: element %d is %g, must be %g", count, round, i, (double)y[i],
                   (double)wanted);
    }
    return ok;
}

/* A whole number below 256 as a float of 16 bits: so many of them are its mantissa. */
static uint16_t narrow_bits(abc_type type, unsigned v)
{
    const int mantissa = type == ABC_BF16 ? 7 : 10, bias = type == ABC_BF16 ? 127 : 15;
    int top = 0;
    while (v >> top > 1)
        top++;
    return v ? (uint16_t)((top + bias) << mantissa | ((v << mantissa >> top) & ((1u << mantissa) - 1))) : 0;
}

static bool narrow_sum(struct rank *r, abc_type type, int count, int round)
{
    static uint16_t x[8192], y[8192];
    for (int i = 0; i < count; i++)
        x[i] = narrow_bits(type, (unsigned)((i + round) % 50 + r->rank));
    doing(r, "%d of %s, round %d", count, abc_type_name(type), round);
    bool ok = check_status(r, abc_allreduce(x, y, (uint64_t)count, type, ABC_SUM, r->comm), ABC_OK, "allreduce");
    for (int i = 0; i < count && ok; i++) {
        uint16_t wanted = narrow_bits(type, (unsigned)(r->nranks * ((i + round) % 50) + r->nranks * (r->nranks - 1) / 2));
        ok = check(r, y[i] == wanted, "%d of %s, round %d: element %d is %#x, must be %#x", count, abc_type_name(type), round, i,
                   y[i], wanted);
    }
    return ok;
}

/* Floats of 16 bits: in a header, in whole vectors of every family, and staged with some elements over. */
static int narrow(struct rank *r)
{
    static const int counts[] = {1, 3, 4, 7, 31, 256, 300, 1025, 4096, 8191};
    bool ok = true;
    for (int k = 0; k < (int)(sizeof counts / sizeof *counts) && ok; k++) {
        int before = taken;
        for (int round = 0; round < 12 && ok; round++)
            ok = narrow_sum(r, ABC_BF16, counts[k], round) && narrow_sum(r, ABC_F16, counts[k], round);
        ok = ok && check(r, taken > before, "no call of %d elements went the short way", counts[k]);
    }
    return !ok;
}

/* 100 bytes are two chunks here, so two sequences: on every rank, be it early or late. */
static int chunked(struct rank *r)
{
    bool ok = true;
    for (int round = 0; round < 150 && ok; round++) {
        random_nap(r, 1500);
        ok = sum(r, 25, round);
    }
    ok = ok && check(r, taken == 0, "%d calls of two chunks went the short way", taken);
    for (int round = 0; round < 60 && ok; round++) {
        random_nap(r, 1500);
        ok = sum(r, 25, round);
        ok = ok && (round % 3 || check_status(r, abc_barrier(r->comm), ABC_OK, "barrier"));
        random_nap(r, 300);
        ok = ok && (round % 4 || (sum(r, 8, round) && sum(r, 16, round)));
        ok = ok && (round % 7 || sum(r, 300, round));
    }
    return !ok;
}

/* One chunk; ranks that are late go on the general way after the short one. */
static int whole(struct rank *r)
{
    bool ok = true;
    for (int round = 0; round < 150 && ok; round++) {
        random_nap(r, 1500);
        ok = sum(r, 25, round) && (round % 5 || check_status(r, abc_barrier(r->comm), ABC_OK, "barrier"));
        ok = ok && (round % 8 || sum(r, 40, round));
    }
    return !(ok && check(r, taken > 0, "no call went the short way"));
}

/* What a header holds and what is staged by turns, ranks late: a slot must not give its last user's staging away once more. */
static int by_turns(struct rank *r)
{
    bool ok = true;
    for (int round = 0; round < 400 && ok; round++) {
        if (round % 3)
            random_nap(r, 400);
        ok = sum(r, round / 16 % 2 ? 2 : 1000, round);
    }
    struct abci_engine *e = &r->comm->engine;
    for (int i = 0; i < e->tokens && ok; i++)
        for (int k = 0; k < i && ok; k++)
            ok = check(r, e->token[i] != e->token[k], "staging token %d is there twice", e->token[i]);
    return !ok;
}

/* A large call in between does not make the engine forget the small one. */
static int after_large(struct rank *r)
{
    bool ok = sum(r, 4, 0) && sum(r, 4, 1);
    int before = taken;
    for (int round = 0; round < 20 && ok; round++)
        ok = sum(r, 60000, round) && check_status(r, abc_barrier(r->comm), ABC_OK, "barrier") && sum(r, 4, round);
    /* not each: where a peer still reads the large call nothing is short */
    return !(ok && check(r, taken - before >= 10, "%d of 20 small calls after large ones went the short way", taken - before));
}

int main(int argc, char **argv)
{
    struct options o;
    static const char *const small_chunks[] = {"ABCOMM_CHUNK=64", NULL};
    options_read(argc, argv, &o);
    for (int n = 2; n <= 3; n++) {
        job_run(&(struct job){.name = "two chunks", .body = chunked, .nranks = n, .environment = small_chunks});
        if (n > abci_cpu_available())
            continue; /* crowded ranks never take the short way */
        job_run(&(struct job){.name = "one chunk", .body = whole, .nranks = n});
        job_run(&(struct job){.name = "floats of 16 bits", .body = narrow, .nranks = n});
        job_run(&(struct job){.name = "by turns", .body = by_turns, .nranks = n});
        job_run(&(struct job){.name = "small after large", .body = after_large, .nranks = n});
    }
    return jobs_end();
}
