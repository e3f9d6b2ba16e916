/*
 * recdbl.c - stage 3: recursive doubling. In round j everybody exchanges what it has with a partner 2^j away, so ceil(log2 p)
 * rounds reach all; ranks beyond the largest power of two are folded into a neighbour first and served last (2 more steps). The
 * barrier is the dissemination form, which needs no folding.
 *
 * Bytes touched per element and rank: allreduce 3 per round of the whole buffer, allgather 2 (p - 1) in all. Groups are always
 * ranges of consecutive ranks and the lower group is the first operand: operands keep rank order, though bracketed as a tree.
 * Sources: recursive doubling with folding (Thakur, Rabenseifner and Gropp 2005), dissemination (Hensgen, Finkel and Manber 1988).
 */
#include "plan/plan.h"

/* Who takes part in the rounds. Of the first 2 * extra ranks the odd ones are folded into the even rank below. */
struct fold {
    int rounds; /* log2 of the number of active ranks */
    int extra;
    int id;    /* place of this rank among the active ones; -1 for a folded one */
    bool host; /* this rank speaks for the next one too */
};

static struct fold fold_of(int rank, int p)
{
    struct fold f = {0};
    while (2 << f.rounds <= p)
        f.rounds++;
    f.extra = p - (1 << f.rounds);
    f.host = rank < 2 * f.extra && rank % 2 == 0;
    f.id = rank >= 2 * f.extra ? rank - f.extra : f.host ? rank / 2 : -1;
    return f;
}

/* Rank of an active place, which is also the first rank that its group contains. */
static int rank_of(const struct fold *f, int id)
{
    return id < f->extra ? 2 * id : id + f->extra;
}

/* What an active place shows before round j: its input, the folded sum, or the result of the round before. */
static struct abci_ref partial(const struct fold *f, int id, int j)
{
    if (j == 0)
        return abci_ref(id < f->extra ? ABCI_TMP : ABCI_IN, 0, 1);
    return abci_ref(ABCI_TMP + (f->extra > 0) + j - 1, 0, 1); /* a new one each round: the last partner may still be reading */
}

static void allreduce_rounds(struct abci_builder *b, const struct fold *f)
{
    for (int j = 0; j < f->rounds; j++) {
        int other = f->id ^ (1 << j), partner = rank_of(f, other);
        bool last = j == f->rounds - 1;
        abci_b_publish(b, 0, partial(f, f->id, j));
        abci_b_reader(b, partner);
        abci_b_flags(b, last ? ABCI_FINAL | (f->host ? ABCI_STAGE : 0) : 0);
        abci_b_reduce(b, partial(f, other, j), last ? abci_ref(ABCI_OUT, 0, 1) : partial(f, f->id, j + 1));
        if (other < f->id)
            abci_b_operand(b, partner, 0, j + 1);
        abci_b_own(b, partial(f, f->id, j));
        if (other > f->id)
            abci_b_operand(b, partner, 0, j + 1);
    }
}

static void build_allreduce(struct abci_builder *b)
{
    struct fold f = fold_of(b->rank, b->nranks);
    struct abci_ref in = abci_ref(ABCI_IN, 0, 1), out = abci_ref(ABCI_OUT, 0, 1);
    b->ntmp = f.rounds - 1 + (f.extra > 0);
    if (f.id < 0) {
        abci_b_publish(b, 0, in);
        abci_b_reader(b, b->rank - 1);
        abci_b_fetch(b, b->rank - 1, 0, f.rounds + 1, out, out);
        return;
    }
    if (f.host) {
        abci_b_reduce(b, in, partial(&f, f.id, 0));
        abci_b_own(b, in);
        abci_b_operand(b, b->rank + 1, 0, 1);
    } else {
        b->stage_in_place = true; /* round 0 shows IN to a partner that nobody waits for afterwards */
    }
    allreduce_rounds(b, &f);
    if (f.host) {
        abci_b_flags(b, ABCI_STAGED);
        abci_b_publish(b, 0, out);
        abci_b_reader(b, b->rank + 1);
    }
}

/* Show newly gathered blocks to the partners of rounds `from` on and to the folded rank. Each block is shown once. */
static void show(struct abci_builder *b, const struct fold *f, int from, struct abci_ref blocks)
{
    if (from == f->rounds && !f->host)
        return;
    abci_b_flags(b, ABCI_STAGED);
    abci_b_publish(b, 0, blocks);
    for (int j = from; j < f->rounds; j++)
        abci_b_reader(b, rank_of(f, f->id ^ (1 << j)));
    if (f->host)
        abci_b_reader(b, b->rank + 1);
}

/* Blocks that an active place gets in round j: those of its partner's group. */
static struct abci_ref gathered(const struct fold *f, int id, int j)
{
    int group = (id ^ (1 << j)) >> j << j, first = rank_of(f, group);
    return abci_ref(ABCI_OUT, first, rank_of(f, group + (1 << j)) - first);
}

/* A folded rank gives its block and gets all the others as its host gathers them. */
static void build_allgather_folded(struct abci_builder *b, const struct fold *f)
{
    int me = b->rank, host = me - 1;
    int shown = abci_b_publish(b, 0, abci_ref(ABCI_IN, me, 1));
    abci_b_reader(b, host);
    abci_b_copy(b, abci_ref(ABCI_IN, me, 1), abci_ref(ABCI_OUT, me, 1));
    for (int j = -1; j < f->rounds; j++) {
        struct abci_ref blocks = j < 0 ? abci_ref(ABCI_OUT, host, 1) : gathered(f, host / 2, j);
        abci_b_after(b, shown, -1);
        abci_b_fetch(b, host, 0, j + 2, blocks, blocks);
    }
}

static void build_allgather(struct abci_builder *b)
{
    struct fold f = fold_of(b->rank, b->nranks);
    int me = b->rank;
    b->nblocks = b->nranks;
    if (f.id < 0) {
        build_allgather_folded(b, &f);
        return;
    }
    abci_b_flags(b, ABCI_STAGE);
    abci_b_copy(b, abci_ref(ABCI_IN, me, 1), abci_ref(ABCI_OUT, me, 1));
    if (f.host) {
        abci_b_flags(b, ABCI_STAGE);
        abci_b_fetch(b, me + 1, 0, 1, abci_ref(ABCI_IN, me + 1, 1), abci_ref(ABCI_OUT, me + 1, 1));
    }
    show(b, &f, 0, abci_ref(ABCI_OUT, me, f.host ? 2 : 1));
    for (int j = 0; j < f.rounds; j++) {
        struct abci_ref blocks = gathered(&f, f.id, j);
        abci_b_flags(b, j < f.rounds - 1 || f.host ? ABCI_STAGE : 0);
        abci_b_fetch(b, rank_of(&f, f.id ^ (1 << j)), 0, j + 1, blocks, blocks);
        show(b, &f, j + 1, blocks);
    }
}

/* Dissemination: in round j tell the rank 2^j above and hear the one 2^j below. */
static void build_barrier(struct abci_builder *b)
{
    int p = b->nranks;
    for (int j = 0; 1 << j < p; j++) {
        abci_b_publish(b, 0, abci_ref(ABCI_NONE, 0, 0));
        abci_b_reader(b, (b->rank + (1 << j)) % p);
        abci_b_await(b);
        abci_b_awaited(b, (b->rank - (1 << j) + p) % p, 0, j + 1);
    }
}

static void build(struct abci_builder *b)
{
    if (b->collective == ABC_ALLREDUCE)
        build_allreduce(b);
    else if (b->collective == ABC_ALLGATHER)
        build_allgather(b);
    else
        build_barrier(b);
}

const struct abci_algo abci_algo_recdbl = {
    .name = "recdbl",
    .doc = "recursive doubling: ceil(log2 p) steps, 2 more where p is no power of two; one peer a step",
    .collectives = 1u << ABC_ALLREDUCE | 1u << ABC_ALLGATHER | 1u << ABC_BARRIER,
    .rank_order = false,
    .ordered = true,
    .min_ranks = 2,
    .max_ranks = ABCI_MAX_RANKS,
    .build = build,
};
