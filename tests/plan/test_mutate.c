/*
 * test_mutate.c - the checker against broken plans: for every algorithm and collective, each single step deleted, neighbours
 * swapped, values raised and lowered, readers dropped, flags lost. Every break must be refused; what is provably harmless is listed
 * here with its reason.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "plan/plan.h"

/* A way to break step `at` (and entry `k`) of one rank's plan in place. False: does not apply there. */
typedef bool (*mutation)(struct abci_plan *plan, uint32_t at, uint32_t k);

/* Later steps move up; what waited for the step waits for what it waited for first; later values of its counter sink by one. */
static bool delete_step(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    struct abci_step gone = plan->steps[at];
    if (k > 0)
        return false;
    for (uint32_t i = at + 1; i < plan->nsteps; i++) {
        struct abci_step step = plan->steps[i];
        for (int a = 0; a < 2; a++)
            step.after[a] = step.after[a] == (int)at ? gone.after[0] : step.after[a] > (int)at ? step.after[a] - 1 : step.after[a];
        if (gone.kind == ABCI_PUBLISH && step.kind == ABCI_PUBLISH && step.counter == gone.counter)
            step.value--;
        plan->steps[i - 1] = step;
    }
    plan->nsteps--;
    return true;
}

/* Does the step read, of its own memory, what the other writes? */
static bool uses(const struct abci_step *step, struct abci_ref written)
{
    struct abci_ref read = step->kind == ABCI_PUBLISH || step->kind == ABCI_COPY ? step->src : step->own;
    return read.buffer != ABCI_NONE && read.buffer == written.buffer && read.block < written.block + written.count &&
           written.block < read.block + read.count;
}

/* Exchange what two steps do, not what they wait for. Without data between them that may only cost time: not tried. */
static bool swap_steps(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    if (k > 0 || at + 1 >= plan->nsteps)
        return false;
    struct abci_step *a = &plan->steps[at], *b = &plan->steps[at + 1], old = *a;
    if (!uses(b, a->dst))
        return false;
    *a = *b;
    memcpy(a->after, old.after, sizeof a->after);
    int after[2] = {b->after[0], b->after[1]};
    *b = old;
    memcpy(b->after, after, sizeof after);
    if (a->kind == ABCI_PUBLISH && b->kind == ABCI_PUBLISH && a->counter == b->counter) {
        uint16_t value = a->value;
        a->value = b->value;
        b->value = value;
    }
    return true;
}

static bool raise_wait(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    const struct abci_step *step = &plan->steps[at];
    if (step->kind == ABCI_PUBLISH || k >= step->npeers)
        return false;
    plan->peers[step->peer + k].value++;
    return true;
}

static bool lower_wait(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    const struct abci_step *step = &plan->steps[at];
    if (step->kind == ABCI_PUBLISH || k >= step->npeers)
        return false;
    plan->peers[step->peer + k].value--;
    return true;
}

static bool other_counter(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    const struct abci_step *step = &plan->steps[at];
    if (step->kind == ABCI_PUBLISH || k >= step->npeers)
        return false;
    plan->peers[step->peer + k].counter ^= 1;
    return true;
}

static bool raise_published(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    if (plan->steps[at].kind != ABCI_PUBLISH || k > 0)
        return false;
    plan->steps[at].value++;
    return true;
}

static bool drop_reader(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    struct abci_step *step = &plan->steps[at];
    if (step->kind != ABCI_PUBLISH || k >= step->npeers)
        return false;
    plan->peers[step->peer + k] = plan->peers[step->peer + step->npeers - 1];
    step->npeers--;
    return true;
}

static bool drop_operand(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    struct abci_step *step = &plan->steps[at];
    if (step->kind == ABCI_PUBLISH || k >= step->npeers)
        return false;
    for (uint32_t i = k; i + 1 < step->npeers; i++)
        plan->peers[step->peer + i] = plan->peers[step->peer + i + 1];
    step->npeers--;
    if (step->own_at > k)
        step->own_at--;
    return true;
}

static bool drop_own(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    struct abci_step *step = &plan->steps[at];
    if (k > 0 || step->own.buffer == ABCI_NONE)
        return false;
    step->own = abci_ref(ABCI_NONE, 0, 0);
    step->own_at = 0;
    return true;
}

/* Operands in another order; only plans that claim an order can tell. */
static bool move_own(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    struct abci_step *step = &plan->steps[at];
    if (k > 0 || step->own.buffer == ABCI_NONE || !plan->ordered)
        return false;
    step->own_at = step->own_at > 0 ? 0 : step->npeers;
    return true;
}

static bool swap_operands(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    struct abci_step *step = &plan->steps[at];
    if (step->kind != ABCI_REDUCE || k + 1 >= step->npeers || !plan->ordered)
        return false;
    struct abci_peer *a = &plan->peers[step->peer + k], old = *a;
    *a = a[1];
    a[1] = old;
    return true;
}

static bool toggle_final(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    if (plan->steps[at].kind != ABCI_REDUCE || k > 0)
        return false;
    plan->steps[at].flags ^= ABCI_FINAL;
    return true;
}

/* The bytes are then never staged, yet published as staged. */
static bool lose_stage(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    if (k > 0 || !(plan->steps[at].flags & ABCI_STAGE))
        return false;
    plan->steps[at].flags &= (uint8_t)~ABCI_STAGE;
    return true;
}

/* The peers' outputs then lack this rank's slice. */
static bool lose_spread(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    if (k > 0 || !(plan->steps[at].flags & ABCI_SPREAD))
        return false;
    plan->steps[at].flags &= (uint8_t)~ABCI_SPREAD;
    return true;
}

static bool claim_staged(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    struct abci_step *step = &plan->steps[at];
    if (k > 0 || step->kind != ABCI_PUBLISH || step->flags & ABCI_STAGED || step->src.buffer >= ABCI_TMP)
        return false;
    step->flags |= ABCI_STAGED;
    return true;
}

static bool shift_dst(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    struct abci_step *step = &plan->steps[at];
    if (k > 0 || step->dst.buffer == ABCI_NONE || plan->nblocks < 2)
        return false;
    step->dst.block = (uint16_t)((step->dst.block + 1) % plan->nblocks);
    return true;
}

/* In place, peers would read what the sum overwrites. */
static bool never_stage(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    if (at > 0 || k > 0 || !plan->stage_in_place)
        return false;
    plan->stage_in_place = false;
    return true;
}

/* Own work before the peers have come: the order of a write and an earlier publish or read is lost. */
static bool forget_after(struct abci_plan *plan, uint32_t at, uint32_t k)
{
    struct abci_step *step = &plan->steps[at];
    if (k > 0 || step->after[0] < 0 || step->kind != ABCI_PUBLISH || step->src.buffer == ABCI_NONE)
        return false;
    if (step->src.buffer == ABCI_IN)
        return false; /* the input has been there from the start */
    step->after[0] = step->after[1] = -1;
    return true;
}

static const struct {
    const char *name;
    mutation apply;
} mutations[] = {
    {"delete step", delete_step}, {"swap steps", swap_steps},       {"raise wait", raise_wait},
    {"lower wait", lower_wait},   {"other counter", other_counter}, {"raise published", raise_published},
    {"drop reader", drop_reader}, {"drop operand", drop_operand},   {"drop own", drop_own},
    {"move own", move_own},       {"swap operands", swap_operands}, {"toggle final", toggle_final},
    {"lose stage", lose_stage},   {"claim staged", claim_staged},   {"shift dst", shift_dst},
    {"never stage", never_stage}, {"forget after", forget_after},   {"lose spread", lose_spread},
};
#define MUTATIONS (sizeof mutations / sizeof mutations[0])

/* A plan whose arrays may be broken; the original stays. */
static struct abci_plan *copy_plan(const struct abci_plan *plan)
{
    struct abci_plan *copy = abci_alloc(sizeof *copy);
    *copy = *plan;
    copy->steps = abci_alloc((plan->nsteps + 1) * sizeof *copy->steps);
    copy->peers = abci_alloc((plan->npeers + 1) * sizeof *copy->peers);
    if (plan->nsteps)
        memcpy(copy->steps, plan->steps, plan->nsteps * sizeof *copy->steps);
    if (plan->npeers)
        memcpy(copy->peers, plan->peers, plan->npeers * sizeof *copy->peers);
    copy->sources = copy->readers = NULL;
    copy->nsources = copy->nreaders = 0;
    return copy;
}

/* Waiting for a later value that is also meant for this rank costs time, but nothing else. */
static bool awaits_later(const struct abci_plan_set *set, const struct abci_plan *plan, uint32_t at, uint32_t k)
{
    const struct abci_peer *peer = &plan->peers[plan->steps[at].peer + k];
    const struct abci_plan *other = set->plan[peer->rank];
    for (uint32_t i = 0; i < other->nsteps; i++) {
        const struct abci_step *step = &other->steps[i];
        if (step->kind != ABCI_PUBLISH || step->counter != peer->counter || step->value != peer->value + 1)
            continue;
        for (uint32_t n = 0; n < step->npeers; n++)
            if (other->peers[step->peer + n].rank == plan->rank)
                return true;
    }
    return false;
}

/* Returns 1 when the mutation applied and was refused; fails the test when the checker let it pass. */
static int try_mutation(struct abci_plan_set *set, int rank, uint32_t at, uint32_t k, size_t m)
{
    struct abci_plan *original = set->plan[rank], *broken = copy_plan(original);
    struct abci_check_report report;
    bool refused = false;
    if (mutations[m].apply(broken, at, k)) {
        set->plan[rank] = broken;
        abci_plan_check(set, &report);
        set->plan[rank] = original;
        refused = report.status != ABC_OK;
        bool harmless =
            (mutations[m].apply == raise_wait && awaits_later(set, original, at, k)) ||
            (mutations[m].apply == toggle_final && abci_is(ABCI_PREFIX, original->collective)); /* means nothing there */
        if (!refused && !harmless)
            fail_msg("%s %s of %d ranks: the checker accepts \"%s\" of rank %d step %u entry %u (%s)", original->name,
                     abc_collective_name((abc_collective)original->collective), original->nranks, mutations[m].name, rank, at, k,
                     abci_kind_name(original->steps[at].kind));
        assert_true(!refused || strlen(report.text) > 10);
    }
    abci_plan_free(broken);
    return refused;
}

static int mutate_set(struct abci_plan_set *set, size_t m)
{
    int refused = 0;
    for (int rank = 0; rank < set->nranks; rank++)
        for (uint32_t at = 0; at < set->plan[rank]->nsteps; at++)
            for (uint32_t k = 0; k < (uint32_t)set->nranks; k++)
                refused += try_mutation(set, rank, at, k, m);
    return refused;
}

static void test_mutations(void **state)
{
    (void)state;
    int refused[MUTATIONS] = {0}, ranks[] = {2, 3, 4, 6};
    for (int a = 0; abci_algos[a]; a++)
        for (int coll = 0; coll < ABCI_PLANNED; coll++)
            for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r++) {
                struct abci_plan_set set;
                if (!abci_algo_fits(abci_algos[a], (abc_collective)coll, ranks[r]))
                    continue;
                assert_int_equal(
                    abci_plan_set_build(abci_algos[a], (abc_collective)coll, ranks[r], abci_is(ABCI_ROOTED, (unsigned)coll), &set),
                    ABC_OK);
                for (size_t m = 0; m < MUTATIONS; m++)
                    refused[m] += mutate_set(&set, m);
                abci_plan_set_free(&set);
            }
    for (size_t m = 0; m < MUTATIONS; m++) {
        print_message("%-16s %5d refused\n", mutations[m].name, refused[m]);
        assert_true(refused[m] > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
