/*
 * test_kinds.c - the short way of every collective (run_learn.c, run_tiny.c): which calls take it, that calls of many kinds by
 * turns each find their own, and that ranks on it meet ranks which are not. The linker puts a counter in front of it. Links the
 * testing library.
 */
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"
#include "harness.h"
#include "plan/run_internal.h"

#define MOST 4096
#define RANKS 3
#define UNTOUCHED INT32_MIN

static _Thread_local int taken; /* calls of this rank that went the short way */

int __real_abci_tiny_run(struct abci_engine *e, struct abci_tiny *t, const char *in, char *out);
int __wrap_abci_tiny_run(struct abci_engine *e, struct abci_tiny *t, const char *in, char *out);

int __wrap_abci_tiny_run(struct abci_engine *e, struct abci_tiny *t, const char *in, char *out)
{
    int status = __real_abci_tiny_run(e, t, in, out);
    taken += status == ABC_OK || status == ABCI_LATE;
    return status;
}

enum place { APART, IN_PLACE, BY_WORD };

struct operation {
    abc_collective collective;
    int count, root, round;
    enum place place;
    abc_op op; /* sum or max */
};

/* ---- What goes in and must come out ---- */

static bool is(const struct operation *o, abc_collective a, abc_collective b, abc_collective c)
{
    return o->collective == a || o->collective == b || o->collective == c;
}

static int in_length(const struct rank *r, const struct operation *o)
{
    if (o->collective == ABC_BARRIER || (is(o, ABC_BROADCAST, ABC_SCATTER, ABC_SCATTER) && r->rank != o->root))
        return 0;
    return o->count * (is(o, ABC_REDUCE_SCATTER, ABC_SCATTER, ABC_ALLTOALL) ? r->nranks : 1);
}

static int out_length(const struct rank *r, const struct operation *o)
{
    if (o->collective == ABC_BARRIER || (is(o, ABC_REDUCE, ABC_GATHER, ABC_GATHER) && r->rank != o->root) ||
        (o->collective == ABC_EXSCAN && r->rank == 0))
        return 0;
    return o->count * (is(o, ABC_ALLGATHER, ABC_GATHER, ABC_ALLTOALL) ? r->nranks : 1);
}

static int32_t input(const struct operation *o, int rank, int i)
{
    return rank * 100000 + o->round * 7 + i;
}

static int32_t wanted(const struct rank *r, const struct operation *o, int i)
{
    int mine = r->rank * o->count, first = 0, end = r->nranks;
    switch (o->collective) {
    case ABC_ALLGATHER:
    case ABC_GATHER:
        return input(o, i / o->count, i % o->count);
    case ABC_BROADCAST:
        return input(o, o->root, i);
    case ABC_SCATTER:
        return input(o, o->root, mine + i);
    case ABC_ALLTOALL:
        return input(o, i / o->count, mine + i % o->count);
    default:
        break;
    }
    if (is(o, ABC_SCAN, ABC_EXSCAN, ABC_EXSCAN))
        end = r->rank + (o->collective == ABC_SCAN);
    int32_t sum = 0;
    first = o->op == ABC_MAX && end > 0 ? end - 1 : 0; /* the last rank has the largest */
    for (int k = first; k < end; k++)
        sum += input(o, k, i + (o->collective == ABC_REDUCE_SCATTER ? mine : 0));
    return sum;
}

/* Describe the call on buffers of this rank, and fill them. */
static void describe(const struct rank *r, const struct operation *o, abc_call *call, int32_t *a, int32_t *b)
{
    int n = in_length(r, o), m = out_length(r, o), mine = r->rank * o->count;
    int32_t *in = a, *out = b;
    bool together = o->place != APART && n > 0 && m > 0;
    if (together) {
        in = n < m ? a + mine : a;
        out = m < n ? a + mine : a;
    }
    for (int i = 0; i <= RANKS * MOST; i++)
        a[i] = b[i] = UNTOUCHED;
    for (int i = 0; i < n; i++)
        in[i] = input(o, r->rank, i);
    abc_call_init(call, o->collective);
    call->in = n ? in : NULL;
    call->out = m ? out : NULL;
    call->count = o->collective == ABC_BARRIER ? 0 : (uint64_t)o->count; /* not looked at there, but another kind of call */
    call->type = ABC_I32;
    call->root = o->root;
    call->op = o->op;
    if (together && o->place == BY_WORD && m < n)
        call->out = (void *)(uintptr_t)ABC_IN_PLACE;
    else if (together && o->place == BY_WORD)
        call->in = ABC_IN_PLACE;
}

static bool right(struct rank *r, const struct operation *o, const abc_call *call, const int32_t *a, const int32_t *b)
{
    int n = in_length(r, o), m = out_length(r, o), mine = r->rank * o->count;
    bool together = o->place != APART && n > 0 && m > 0, ok = true;
    const int32_t *out = !together ? b : m < n ? a + mine : a;
    for (int i = 0; i < m && ok; i++)
        ok = check(r, out[i] == wanted(r, o, i), "%s of %d, root %d, round %d, place %d: element %d is %d, must be %d",
                   abc_collective_name(call->collective), o->count, o->root, o->round, o->place, i, out[i], wanted(r, o, i));
    for (int i = 0; i < n && ok && !together; i++)
        ok = check(r, a[i] == input(o, r->rank, i), "the input has changed");
    return ok && check(r, together || b[m] == UNTOUCHED, "%s of %d: written behind the output",
                       abc_collective_name(call->collective), o->count);
}

static bool operate(struct rank *r, const struct operation *o, bool started)
{
    static _Thread_local int32_t a[RANKS * MOST + 1], b[RANKS * MOST + 1];
    abc_call call;
    abc_request *q;
    describe(r, o, &call, a, b);
    doing(r, "%s of %d, root %d, round %d, place %d", abc_collective_name(o->collective), o->count, o->root, o->round, o->place);
    bool ok = started
                  ? check_status(r, abc_start(r->comm, &call, &q), ABC_OK, "start") && check_status(r, abc_wait(&q), ABC_OK, "wait")
                  : check_status(r, abc_run(r->comm, &call), ABC_OK, "run");
    return ok && right(r, o, &call, a, b);
}

/* ---- Scenarios ---- */

/* Two sizes of each, by turns: in a header's lines and staged, in place too; all but the first of a kind are short. */
static int each(struct rank *r)
{
    static const int counts[] = {2, 17, 300};
    enum { ROUNDS = 24 };
    bool ok = true;
    for (int c = 0; c < (ABC_EXSCAN + 1) && ok; c++) {
        bool always = c < ABC_EXSCAN; /* exscan has no own operand, so the general machine adds */
        taken = 0;
        for (int round = 0; round < ROUNDS && ok; round++) {
            struct operation o = {(abc_collective)c, counts[round % 3], 0, round, (enum place)(round / 3 % 3)};
            ok = operate(r, &o, false) && meet(r);
        }
        /* a peer's staging or slot may not be free now and then */
        ok = ok && check(r, !always || taken >= ROUNDS / 2, "%s: %d of %d went the short way",
                         abc_collective_name((abc_collective)c), taken, ROUNDS);
    }
    return !ok;
}

/* Everything by turns, sizes around what lines and headers hold, ranks late, each blocking or started as it likes. */
static int mixed(struct rank *r)
{
    static const int counts[] = {1, 2, 8, 9, 13, 17, 18, 23, 24, 26, 27, 38, 53, 54, 107, 1000, 2048, 2049, 4096};
    uint64_t shared = 5;
    bool ok = true;
    for (int round = 0; round < 1500 && ok; round++) {
        uint64_t dice = random_next(&shared), own = random_next(&r->random);
        struct operation o = {.collective = (abc_collective)(dice % (ABC_EXSCAN + 1)), .round = round};
        o.count = counts[(dice >> 8) % (dice >> 40 & 1 ? 4 : sizeof counts / sizeof counts[0])];
        o.root = (int)((dice >> 16) % (uint64_t)r->nranks);
        o.place = (enum place)((own >> 24) % 3);
        o.op = dice >> 48 & 1 ? ABC_MAX : ABC_SUM;
        if (own % 8 == 0)
            random_nap(r, 200);
        ok = operate(r, &o, own >> 8 & 1);
    }
    struct abci_engine *e = &r->comm->engine;
    for (int i = 0; i < e->tokens && ok; i++)
        for (int k = 0; k < i && ok; k++)
            ok = check(r, e->token[i] != e->token[k], "staging token %d is there twice", e->token[i]);
    if (r->nranks == 2 && ok) { /* who has read a token has it: none is lost */
        _Atomic int *words = board_words(r->board);
        words[r->rank] = e->tokens;
        ok = meet(r) && check(r, words[0] + words[1] == 2 * ABCI_SWAPS, "%d and %d staging tokens", words[0], words[1]);
    }
    if (r->nranks <= abci_cpu_available())
        ok = ok && check(r, taken > 30, "only %d calls went the short way", taken);
    return !ok;
}

static int differs(struct rank *r, struct operation left, struct operation right_one)
{
    static _Thread_local int32_t a[RANKS * MOST + 1], b[RANKS * MOST + 1];
    abc_call call;
    bool ok = check_status(r, rank_create(r, 0, 0, &r->comm), ABC_OK, "create");
    for (int i = 0; i < 3 && ok; i++)
        ok = operate(r, &left, false) && operate(r, &right_one, false) && meet(r);
    describe(r, r->rank ? &right_one : &left, &call, a, b);
    taken = 0;
    ok = ok && check_status(r, abc_run(r->comm, &call), ABC_ERR_MISMATCH, "run") &&
         check(r, taken == 1, "the call did not go the short way");
    for (int i = 0; i < RANKS * MOST && ok; i++)
        ok = check(r, b[i] == UNTOUCHED, "a call that differs has written its output");
    ok = meet(r) && ok && check_status(r, abc_comm_destroy(r->comm), ABC_ERR_MISMATCH, "destroy says so");
    r->comm = NULL;
    return !ok;
}

static int other_collective(struct rank *r)
{
    return differs(r, (struct operation){.collective = ABC_ALLGATHER, .count = 4},
                   (struct operation){.collective = ABC_REDUCE_SCATTER, .count = 4});
}

static int other_count(struct rank *r)
{
    return differs(r, (struct operation){.collective = ABC_ALLGATHER, .count = 4},
                   (struct operation){.collective = ABC_ALLGATHER, .count = 300});
}

/* Both read: neither is the root that it thinks the other is. */
static int other_root(struct rank *r)
{
    return differs(r, (struct operation){.collective = ABC_BROADCAST, .count = 4, .root = 1},
                   (struct operation){.collective = ABC_BROADCAST, .count = 4, .root = 0});
}

/* The peer ends the communicator instead of coming. */
static int aborted(struct rank *r)
{
    static const abc_collective waiting[] = {ABC_REDUCE_SCATTER, ABC_ALLGATHER, ABC_BROADCAST, ABC_BARRIER};
    bool ok = true;
    for (size_t k = 0; k < sizeof waiting / sizeof *waiting && ok; k++) {
        static _Thread_local int32_t a[RANKS * MOST + 1], b[RANKS * MOST + 1];
        struct operation o = {.collective = waiting[k], .count = 4, .root = 1};
        abc_call call;
        ok = check_status(r, rank_create(r, 0, 0, &r->comm), ABC_OK, "create");
        for (int i = 0; i < 3 && ok; i++)
            ok = operate(r, &o, false) && meet(r);
        describe(r, &o, &call, a, b);
        taken = 0;
        if (ok && r->rank == 1)
            nap(0.01);
        ok = ok && check_status(r, r->rank ? abc_comm_abort(r->comm, "enough") : abc_run(r->comm, &call),
                                r->rank ? ABC_OK : ABC_ERR_ABORTED, "the end");
        ok = meet(r) && ok && check_status(r, abc_comm_destroy(r->comm), ABC_ERR_ABORTED, "destroy says so");
        r->comm = NULL;
    }
    return !ok;
}

static const struct {
    const char *name;
    int (*body)(struct rank *r);
    bool no_comm, short_only;
} scenarios[] = {
    {"each", each, false, true},
    {"mixed", mixed, false, false},
    {"other collective", other_collective, true, true},
    {"other count", other_count, true, true},
    {"other root", other_root, true, true},
    {"aborted", aborted, true, true},
};

int main(int argc, char **argv)
{
    struct options o;
    /* whatever is measured here */
    static const char *const oneshot[] = {
        "ABCOMM_ALGO=allreduce:oneshot;reduce_scatter:oneshot;allgather:oneshot;broadcast:oneshot;barrier:oneshot;"
        "reduce:oneshot;gather:oneshot;scatter:oneshot;alltoall:oneshot;scan:oneshot",
        NULL};
    options_read(argc, argv, &o);
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
        for (int threads = 0; threads < 2; threads++)
            if (!scenarios[i].short_only || abci_cpu_available() >= 2) /* crowded ranks never take the short way */
                job_run(&(struct job){.name = scenarios[i].name,
                                      .body = scenarios[i].body,
                                      .nranks = 2,
                                      .threads = threads,
                                      .environment = scenarios[i].short_only ? oneshot : NULL,
                                      .no_comm = scenarios[i].no_comm});
    job_run(&(struct job){.name = "mixed", .body = mixed, .nranks = RANKS});
    return jobs_end();
}
