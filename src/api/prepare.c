/*
 * prepare.c - stage 0: is this call sound, and what does it ask for? Everything that can be wrong is found here, before the
 * operation gets a number, so that the communicator stays usable. After: the engine (plan/run.c). No state; any thread; no
 * allocation.
 */
#include <stdio.h>
#include <string.h>

#include "api/api.h"

#define ADDRESSABLE (1ull << 47)

/* Names of the operations that a type has. */
static void fitting_ops(abc_type type, char *text, size_t capacity)
{
    size_t at = 0;
    text[0] = 0;
    for (int op = 0; op < ABC_OP_COUNT; op++)
        if (abci_reduce_has(type, (abc_op)op) && at < capacity)
            at += (size_t)snprintf(text + at, capacity - at, "%s%s", at ? ", " : "", abc_op_name((abc_op)op));
}

static int check_op(const abc_call *c, struct abc_request *q)
{
    char names[128];
    if (c->op >= ABC_OP_USER) {
        int status = abci_op_get(c->op, &q->user);
        if (status == ABC_OK && q->user.scaled && q->user.type != c->type)
            return abci_error(ABC_ERR_UNSUPPORTED, "the scaled sum was made for %s, the call is of %s; make one for that type",
                              abc_type_name(q->user.type), abc_type_name(c->type));
        return status;
    }
    if ((unsigned)c->op >= ABC_OP_COUNT)
        return abci_error(ABC_ERR_ARGUMENT,
                          "operation %d is unknown; use one of abc_op, ABC_SUM = 0 to ABC_MAXLOC = %d, or of "
                          "abc_op_create",
                          (int)c->op, ABC_OP_COUNT - 1);
    if (abci_reduce_has(c->type, c->op))
        return ABC_OK;
    fitting_ops(c->type, names, sizeof names);
    return abci_error(ABC_ERR_UNSUPPORTED, "%s of %s means nothing; %s has %s, and operations of abc_op_create", abc_op_name(c->op),
                      abc_type_name(c->type), abc_type_name(c->type), names);
}

static int check_call(const abc_comm *comm, const abc_call *c, struct abc_request *q)
{
    if (c->size != sizeof *c && !abci_mutated("c11_size_ignored"))
        return abci_error(ABC_ERR_VERSION, "abc_call has size %zu, this library knows %zu; call abc_call_init first", c->size,
                          sizeof *c);
    if ((unsigned)c->collective >= ABC_COLLECTIVE_COUNT)
        return abci_error(ABC_ERR_ARGUMENT, "collective %d is unknown", (int)c->collective);
    if (c->codec || c->stream || c->priority != 0)
        return abci_error(ABC_ERR_UNSUPPORTED, "codec, stream and priority are reserved; leave them NULL, NULL and 0");
    if (!(c->timeout >= 0))
        return abci_error(ABC_ERR_ARGUMENT, "timeout %g is not a number of seconds >= 0", c->timeout);
    if (c->collective == ABC_BARRIER)
        return ABC_OK;
    size_t element = abc_type_size(c->type);
    if (element == 0)
        return abci_error(ABC_ERR_ARGUMENT, "type %d is unknown; use one of abc_type, ABC_F32 = 0 to ABC_I32_I32 = %d",
                          (int)c->type, ABC_TYPE_COUNT - 1);
    if (c->count > ADDRESSABLE / element / (uint64_t)comm->nranks)
        return abci_error(ABC_ERR_ARGUMENT, "count %llu of %s is more than memory can hold", (unsigned long long)c->count,
                          abc_type_name(c->type));
    if (abci_is(ABCI_ROOTED, c->collective) && (c->root < 0 || c->root >= comm->nranks))
        return abci_error(ABC_ERR_ARGUMENT, "root %d is not a rank; there are %d", c->root, comm->nranks);
    if (!abci_is(ABCI_REDUCING, c->collective))
        return ABC_OK;
    if (abci_is(ABCI_PREFIX, c->collective) && c->op == ABC_AVG)
        return abci_error(ABC_ERR_UNSUPPORTED, "%s has no average; add, and divide by the number of ranks that count",
                          abc_collective_name(c->collective));
    return check_op(c, q);
}

/* Bytes of the whole input and output on this rank, and where in the larger one the smaller lies when the call is in place. */
struct extent {
    uint64_t in, out, in_shift, out_shift;
};

static struct extent extents(const abc_comm *comm, const abc_call *c, const struct abc_request *q, uint64_t block)
{
    uint64_t all = block * (uint64_t)comm->nranks, mine = block * (uint64_t)comm->rank;
    bool root = comm->rank == c->root;
    if (ABCI_UNLIKELY(q->counts != NULL)) {
        const struct abci_vector *v = &q->counts->vector;
        uint64_t element = abc_type_size(c->type), in = q->extent[ABCI_IN], out = q->extent[ABCI_OUT];
        bool narrow_in = abci_part_width(c->collective, ABCI_IN) == ABCI_SINGLE, both = in > 0 && out > 0;
        uint64_t shift = c->collective == ABC_ALLTOALLV || !both ? 0 : v->offset[narrow_in][comm->rank] * element;
        return (struct extent){in, out, narrow_in ? 0 : shift, narrow_in ? shift : 0};
    }
    switch (c->collective) {
    case ABC_REDUCE_SCATTER:
        return (struct extent){all, block, mine, 0};
    case ABC_ALLGATHER:
        return (struct extent){block, all, 0, mine};
    case ABC_BROADCAST:
        return (struct extent){root ? block : 0, block, 0, 0};
    case ABC_REDUCE:
        return (struct extent){block, root ? block : 0, 0, 0};
    case ABC_GATHER:
        return (struct extent){block, root ? all : 0, 0, root ? mine : 0};
    case ABC_SCATTER:
        return (struct extent){root ? all : 0, block, root ? mine : 0, 0};
    case ABC_ALLTOALL:
        return (struct extent){all, all, 0, 0};
    case ABC_EXSCAN:
        return (struct extent){block, comm->rank > 0 ? block : 0, 0, 0};
    default:
        return (struct extent){block, block, 0, 0};
    }
}

/* Resolve ABC_IN_PLACE as output: the input, or the own block in it. */
static int place_output(const abc_call *c, struct extent e, char **out)
{
    if (e.out == 0 && c->collective != ABC_EXSCAN) {
        *out = NULL; /* this rank has none: not looked at */
        return ABC_OK;
    }
    if (c->in == ABC_IN_PLACE || abci_part_width(c->collective, ABCI_IN) == ABCI_SINGLE)
        return abci_error(ABC_ERR_ARGUMENT,
                          "ABC_IN_PLACE as output needs an input that holds the output; like gather, allgather works in place by "
                          "ABC_IN_PLACE as input");
    if (e.in == 0 && e.out > 0 && abci_plain(c->collective) == ABC_SCATTER)
        return abci_error(ABC_ERR_ARGUMENT, "only root %d of a scatter has an input, so only it can work in place", c->root);
    *out = (char *)c->in + e.in_shift;
    return ABC_OK;
}

/* Resolve ABC_IN_PLACE as input: the output, or the own block in it. */
static int place_input(const abc_call *c, struct extent e, const char *out, const char **in)
{
    if (e.in > 0 && abci_part_width(c->collective, ABCI_OUT) == ABCI_SINGLE)
        return abci_error(ABC_ERR_ARGUMENT, "%s works in place by ABC_IN_PLACE as output, or out = in + rank * count",
                          abc_collective_name(c->collective));
    if (e.in > 0 && e.out == 0 && abci_is(ABCI_OUT_AT_ROOT, c->collective))
        return abci_error(ABC_ERR_ARGUMENT, "only root %d of a %s has an output, so only it can work in place", c->root,
                          abc_collective_name(c->collective));
    *in = out ? out + e.out_shift : NULL;
    return ABC_OK;
}

/* Resolve ABC_IN_PLACE, refuse null and half overlapping buffers. */
static int check_buffers(const abc_comm *comm, const abc_call *c, struct extent e, struct abc_request *q)
{
    const char *in = c->in;
    char *out = c->out;
    int status = ABC_OK;
    if (out == ABC_IN_PLACE)
        status = place_output(c, e, &out);
    if (status == ABC_OK && !out && e.out > 0)
        status = abci_error(ABC_ERR_ARGUMENT, "the output buffer is null");
    if (status == ABC_OK && c->in == ABC_IN_PLACE)
        status = place_input(c, e, out, &in);
    if (status == ABC_OK && !in && e.in > 0)
        status = abci_error(ABC_ERR_ARGUMENT, "the input buffer is null");
    if (status != ABC_OK)
        return status;
    q->in = in;
    q->out = out;
    q->in_place = e.in > 0 && e.out > 0 && in + e.in_shift == out + e.out_shift;
    if (q->in_place || e.in == 0 || e.out == 0)
        return ABC_OK;
    if (in < out + e.out && out < in + e.in && (!q->counts || abci_counts_mingle(comm, c, q)))
        return abci_error(ABC_ERR_ARGUMENT,
                          "input and output overlap without being in place (input %p, %llu bytes; output %p, %llu bytes)",
                          (const void *)in, (unsigned long long)e.in, (void *)out, (unsigned long long)e.out);
    return ABC_OK;
}

/*
 * A scaled sum is a sum of products, which every rank computes before its operation starts (abci_scale): an allreduce into its
 * output, which is an input in place then; the others into room of their own, since their output is too short or not theirs to use.
 */
static int make_scaled(const abc_call *c, struct extent e, struct abc_request *q)
{
    q->unscaled = q->in;
    if (c->collective == ABC_ALLREDUCE) {
        q->in = q->out;
        q->in_place = e.in > 0;
        return ABC_OK;
    }
    q->products = abci_alloc(e.in ? e.in : 1);
    q->in = q->products;
    q->in_place = false;
    if (!q->products)
        return abci_error(ABC_ERR_MEMORY, "no memory for %llu bytes of products", (unsigned long long)e.in);
    return ABC_OK;
}

void abci_scale(const struct abc_request *q)
{
    if (!q->unscaled) /* a message has no extents */
        return;
    uint64_t n = q->extent[ABCI_IN] / q->shape.element;
    abci_reduce_scale(q->reduction.type, (void *)q->in, q->unscaled, q->user.scalar, n);
}

/* Operations of the caller are told from each other by what every rank must have made alike. */
static uint8_t op_code(const abc_call *c, const struct abci_user_op *user)
{
    if (c->op < ABC_OP_USER)
        return (uint8_t)c->op;
    return (uint8_t)(ABC_OP_USER + (user->scaled ? 2 : user->commutes != 0));
}

/* Which buffers can peers reach where they are? What is short is staged wherever it lies: cheaper than to wait for its readers. */
static void find_memory(const abc_comm *comm, struct extent e, struct abc_request *q)
{
    q->is_direct[ABCI_IN] = e.in > ABCI_EAGER && abci_segment_find(q->in, e.in, &q->direct[ABCI_IN]);
    q->is_direct[ABCI_OUT] = e.out > ABCI_EAGER && abci_segment_find(q->out, e.out, &q->direct[ABCI_OUT]);
    if (!q->is_direct[ABCI_IN] || !q->is_direct[ABCI_OUT] || !comm->engine.offers || !abci_segment_whole(q->out, e.out))
        q->direct_run = NULL;
}

void abci_prepare_again(struct abc_request *q)
{
    uint64_t at;
    for (int b = ABCI_IN; b <= ABCI_OUT; b++)
        if (q->is_direct[b] && !abci_segment_find(b == ABCI_IN ? q->in : q->out, 1, &at)) {
            q->is_direct[b] = false; /* the failure of another communicator has made it private */
            q->direct_run = NULL;
        }
}

/* Blocks of different sizes: the shape is that of the longest; what ranks compare is what all know. */
static void fit_counts(const abc_comm *comm, struct abc_request *q)
{
    bool pairs = q->counts->first != NULL;
    q->shape.vector = &q->counts->vector;
    q->shape.count = q->shape.length = q->counts->most;
    q->id.count = pairs ? 0 : q->counts->total;
    q->id.algorithm = pairs ? 0 : abci_counts_hash(comm, q);
}

static void fill_request(abc_comm *comm, const abc_call *c, struct extent e, uint32_t element, struct abc_request *q)
{
    bool reduces = abci_is(ABCI_REDUCING, c->collective);
    q->comm = comm;
    q->id = (struct abci_call_id){
        .collective = (uint8_t)c->collective,
        .type = c->collective == ABC_BARRIER ? 0 : (uint8_t)c->type,
        .op = reduces ? op_code(c, &q->user) : 0,
        .in_place = q->in_place,
        .root = abci_is(ABCI_ROOTED, c->collective) ? (uint32_t)c->root : 0,
        .count = c->collective == ABC_BARRIER ? 0 : c->count,
    };
    q->reduction = (struct abci_reduction){
        .type = c->type,
        .op = reduces && c->op >= ABC_OP_USER && q->user.scaled ? ABC_SUM : c->op,
        .nranks = comm->nranks,
        .user = reduces && c->op >= ABC_OP_USER && !q->user.scaled ? &q->user : NULL,
    };
    q->shape = (struct abci_shape){
        .collective = abci_plain(c->collective),
        .nranks = (uint32_t)comm->nranks,
        .nblocks = q->run->plan->nblocks,
        .element = element,
        .count = q->id.count,
        .length = q->id.count,
    };
    q->extent[ABCI_IN] = e.in;
    q->extent[ABCI_OUT] = e.out;
    if (ABCI_UNLIKELY(q->counts != NULL))
        fit_counts(comm, q);
    q->room = (struct abci_room){e.in, e.out, e.in_shift - e.out_shift};
    find_memory(comm, e, q);
    q->timeout = c->timeout > 0 ? c->timeout : comm->timeout;
    q->callback = c->callback;
    q->callback_context = c->callback_context;
    q->tag = c->tag;
    q->plain = !c->callback && !c->algorithm && !c->preserve && c->timeout == 0 && c->tag == 0 && !q->unscaled;
}

/* What would be run if the buffers lay in the arena on all ranks; NULL unless it is a plan for just that. */
static const struct abci_runnable *direct_plan(abc_comm *comm, struct abci_wish wish)
{
    struct abci_choice choice;
    wish.arena = true;
    if (wish.collective != ABC_ALLREDUCE || wish.bytes <= ABCI_EAGER || !comm->engine.offers ||
        abci_choose(comm->chooser, &wish, &choice) != ABC_OK)
        return NULL;
    return choice.run->plan->direct ? choice.run : NULL;
}

static int prepare(abc_comm *comm, const abc_call *c, struct abc_request *q, enum abci_why *why)
{
    int status = abci_comm_usable(comm);
    q->unscaled = NULL;
    q->products = q->backup = NULL;
    q->message = q->may_join = q->joined = q->deferred = q->dropped = false;
    q->members = NULL;
    q->counts = NULL;
    if (status == ABC_OK && !c)
        status = abci_error(ABC_ERR_ARGUMENT, "the call is null");
    if (status == ABC_OK && (c->collective == ABC_SEND || c->collective == ABC_RECV))
        return abci_message_prepare(comm, c, q);
    if (status == ABC_OK)
        status = check_call(comm, c, q);
    if (status == ABC_OK && ABCI_UNLIKELY(abci_is(ABCI_VECTOR, c->collective)))
        status = abci_counts_make(comm, c, q);
    if (status != ABC_OK)
        return status;
    bool pairs = q->counts && q->counts->first;
    uint32_t element = c->collective == ABC_BARRIER ? 1 : (uint32_t)abc_type_size(c->type);
    uint64_t count = c->collective == ABC_BARRIER || pairs ? 0 : q->counts ? q->counts->most : c->count;
    struct extent e = extents(comm, c, q, count * element);
    status = check_buffers(comm, c, e, q);
    if (status != ABC_OK)
        return status;
    bool reduces = abci_is(ABCI_REDUCING, c->collective);
    bool user = reduces && c->op >= ABC_OP_USER;
    if (user && q->user.scaled)
        status = make_scaled(c, e, q);
    if (status != ABC_OK)
        return status;
    struct abci_wish wish = {
        .collective = abci_plain(c->collective),
        .root = c->root,
        .bytes = count * element,
        .one_rounding = reduces && !abci_reduce_exact(c->type, c->op),
        .narrow = reduces && (abci_reduce_narrow(c->type) || (user && !q->user.scaled)),
        .ordered = user && !q->user.commutes,
        .algorithm = pairs && !c->algorithm ? "oneshot" : c->algorithm, /* others may pass blocks on, see below */
    };
    struct abci_choice choice;
    status = abci_choose(comm->chooser, &wish, &choice);
    if (status != ABC_OK)
        return status;
    *why = choice.why;
    q->run = choice.run;
    q->chunk_bytes = choice.chunk;
    if (pairs && (q->run->plan->ntmp > 0 || q->run->publishes_out))
        return abci_error(ABC_ERR_UNSUPPORTED, "algorithm %s passes blocks on by ranks that do not know their sizes; use oneshot",
                          q->run->plan->name);
    q->direct_run = direct_plan(comm, wish);
    q->may_join = c->collective == ABC_ALLREDUCE && !user && !c->algorithm && (choice.one_rounding || !wish.one_rounding);
    fill_request(comm, c, e, element, q);
    q->id.algorithm ^= q->run->hash ^ (uint32_t)q->chunk_bytes;
    q->planned = abci_part_chunks(q->shape.collective, comm->nranks, element, count, q->chunk_bytes);
    return ABC_OK;
}

int abci_prepare_why(abc_comm *comm, const abc_call *c, struct abc_request *q, enum abci_why *why)
{
    int status = prepare(comm, c, q, why);
    if (ABCI_UNLIKELY(status != ABC_OK)) {
        abci_free(q->products);
        abci_counts_give(comm, q->counts);
        q->products = NULL;
        q->counts = NULL;
    }
    return status;
}

int abci_prepare(abc_comm *comm, const abc_call *c, struct abc_request *q)
{
    enum abci_why why;
    return abci_prepare_why(comm, c, q, &why);
}

ABC_API int abc_explain(abc_comm *comm, const abc_call *call, char *text, size_t capacity)
{
    struct abc_request q = {.products = NULL};
    enum abci_why why = ABCI_BY_PRICE;
    if (!text || capacity == 0)
        return abci_error(ABC_ERR_ARGUMENT, "there is no room for the text");
    int status = abci_prepare_why(comm, call, &q, &why);
    abci_free(q.products);
    abci_counts_give(comm, q.counts);
    if (status == ABC_OK && q.message)
        snprintf(text, capacity, "message of %llu bytes", (unsigned long long)q.mail.bytes);
    else if (status == ABC_OK)
        snprintf(text, capacity, "%s@%llu by %s%s%s%s", q.run->plan->name, (unsigned long long)q.chunk_bytes, abci_why_name(why),
                 q.direct_run ? "; " : "", q.direct_run ? q.direct_run->plan->name : "",
                 q.direct_run ? " if the buffers of all ranks lie so, too" : "");
    return status;
}
