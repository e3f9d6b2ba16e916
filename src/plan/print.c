/*
 * print.c - stage 3: plans as text for people. One line a step, in the words of plan.h:
 *     #3 reduce   out[0] = own in[0] + in[0] of 1 (0>=3) + in[0] of 2 (0>=2)   final stage
 * where (0>=3) means "once its counter 0 has reached 3". Reads plans only; any thread; the caller frees the text.
 */
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>

const char *abci_kind_name(int kind)
{
    static const char *const names[ABCI_KIND_COUNT] = {"publish", "fetch",         "reduce",        "copy",  "await",      "push",
                                                       "encode",  "decode_reduce", "forward_frame", "group", "device_copy"};
    return kind >= 0 && kind < ABCI_KIND_COUNT ? names[kind] : "?";
}

const char *abci_buffer_name(int buffer)
{
    static const char *const names[ABCI_TMP + ABCI_MAX_TMP] = {"in",    "out",   "tmp0",  "tmp1",  "tmp2",  "tmp3",
                                                               "tmp4",  "tmp5",  "tmp6",  "tmp7",  "tmp8",  "tmp9",
                                                               "tmp10", "tmp11", "tmp12", "tmp13", "tmp14", "tmp15"};
    if (buffer == ABCI_NONE)
        return "none";
    return buffer >= 0 && buffer < ABCI_TMP + ABCI_MAX_TMP ? names[buffer] : "?";
}

static void print_ref(FILE *out, struct abci_ref ref)
{
    if (ref.buffer == ABCI_NONE)
        fputs("nothing", out);
    else if (ref.count == 1)
        fprintf(out, "%s[%d]", abci_buffer_name(ref.buffer), ref.block);
    else
        fprintf(out, "%s[%d..%d]", abci_buffer_name(ref.buffer), ref.block, ref.block + ref.count - 1);
}

static void print_wait(FILE *out, const struct abci_peer *peer)
{
    fprintf(out, " of %d (%d>=%d)", peer->rank, peer->counter, peer->value);
}

static void print_reduce(FILE *out, const struct abci_step *step, const struct abci_peer *peers)
{
    const char *plus = "";
    print_ref(out, step->dst);
    fputs(" = ", out);
    for (int k = 0; k <= step->npeers; k++) {
        if (step->own.buffer != ABCI_NONE && k == step->own_at) {
            fprintf(out, "%sown ", plus);
            print_ref(out, step->own);
            plus = " + ";
        }
        if (k == step->npeers)
            break;
        fputs(plus, out);
        print_ref(out, step->src);
        print_wait(out, &peers[k]);
        plus = " + ";
    }
}

static void print_action(FILE *out, const struct abci_step *step, const struct abci_peer *peers)
{
    switch (step->kind) {
    case ABCI_PUBLISH:
        print_ref(out, step->src);
        fprintf(out, ", counter %d = %d, to", step->counter, step->value);
        for (int k = 0; k < step->npeers; k++)
            fprintf(out, " %d", peers[k].rank);
        break;
    case ABCI_REDUCE:
        print_reduce(out, step, peers);
        break;
    case ABCI_FETCH:
    case ABCI_COPY:
        print_ref(out, step->dst);
        fputs(" = ", out);
        print_ref(out, step->src);
        if (step->npeers > 0)
            print_wait(out, peers);
        break;
    default:
        for (int k = 0; k < step->npeers; k++)
            fprintf(out, "%s%d (%d>=%d)", k ? ", " : "", peers[k].rank, peers[k].counter, peers[k].value);
    }
}

/* What is not the usual "after the step before". */
static void print_after(FILE *out, const struct abci_step *step, int at)
{
    int first = step->after[0], second = step->after[1];
    if ((first == at - 1 && second < 0) || (first < 0 && second < 0 && at == 0))
        return;
    if (first < 0 && second < 0)
        fputs("   at once", out);
    else if (first >= 0 && second >= 0)
        fprintf(out, "   after #%d and #%d", first, second);
    else
        fprintf(out, "   after #%d", first >= 0 ? first : second);
}

void abci_plan_print(FILE *out, const struct abci_plan *plan)
{
    fprintf(out, "rank %d: %u step%s%s\n", plan->rank, plan->nsteps, plan->nsteps == 1 ? "" : "s",
            plan->stage_in_place ? ", input staged when in place"
            : plan->direct       ? ", for buffers in the arena"
                                 : "");
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const struct abci_step *step = &plan->steps[i];
        fprintf(out, "  #%-3u %-8s ", i, abci_kind_name(step->kind));
        print_action(out, step, abci_plan_peers(plan, step));
        if (step->flags)
            fprintf(out, "  %s%s%s%s", step->flags & ABCI_FINAL ? " final" : "", step->flags & ABCI_STAGE ? " stage" : "",
                    step->flags & ABCI_STAGED ? " staged" : "", step->flags & ABCI_SPREAD ? " spread" : "");
        print_after(out, step, (int)i);
        fputc('\n', out);
    }
}

/* What the plan claims about sums, if it makes any. */
static const char *order_words(const struct abci_plan *plan)
{
    if (!abci_is(ABCI_REDUCING, plan->collective))
        return "";
    return plan->rank_order ? ", sums in rank order" : plan->ordered ? ", operands in rank order" : ", sums in any order";
}

void abci_plan_print_head(FILE *out, const struct abci_plan *plan)
{
    fprintf(out, "%s by %s, %d rank%s, root %d, %d block%s, %d temporar%s%s\n",
            abc_collective_name((abc_collective)plan->collective), plan->name, plan->nranks, plan->nranks == 1 ? "" : "s",
            plan->root, plan->nblocks, plan->nblocks == 1 ? "" : "s", plan->ntmp, plan->ntmp == 1 ? "y" : "ies", order_words(plan));
}

char *abci_plan_text(const struct abci_plan_set *set)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (!out)
        return NULL;
    if (set->nranks > 0)
        abci_plan_print_head(out, set->plan[0]);
    for (int rank = 0; rank < set->nranks; rank++)
        abci_plan_print(out, set->plan[rank]);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}
