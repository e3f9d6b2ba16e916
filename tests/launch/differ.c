/*
 * differ.c - random programs done twice, by MPI and by this library, whose results must be the same to the last byte: splits of
 * splits, every collective with equal blocks and with counts, messages, types, operations, also a caller's own that does not
 * commute. Values are small, so that any order of adding gives the same bits and no integer overflows (there MPIs have rules of
 * their own). usage, under mpirun: differ FIRST_SEED PROGRAMS. Prints "N programs, M operations agree", or which differed with its
 * seed.
 */
#include <complex.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <abcomm/abcomm.h>

#define MOST 16   /* ranks */
#define COMMS 4   /* open at once */
#define STEPS 60  /* of a program */
#define FILL 0x5a /* of outputs before */

static MPI_Op user_mpi;
static abc_op user_abc;

static uint64_t roll(uint64_t *dice)
{
    uint64_t z = *dice += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- What both know, by their names ---- */

enum kind { SIGNED, UNSIGNED, FLOAT, COMPLEX, BOOL, PAIR };
static const struct type {
    abc_type abc;
    MPI_Datatype mpi;
    enum kind kind;
    size_t size;
} * types;
static int ntypes;

static void list_types(void)
{
    static struct type list[16];
    const struct type all[] = {
        {ABC_F32, MPI_FLOAT, FLOAT, 4},
        {ABC_F64, MPI_DOUBLE, FLOAT, 8},
        {ABC_I8, MPI_INT8_T, SIGNED, 1},
        {ABC_I16, MPI_INT16_T, SIGNED, 2},
        {ABC_I32, MPI_INT32_T, SIGNED, 4},
        {ABC_I64, MPI_INT64_T, SIGNED, 8},
        {ABC_U8, MPI_UINT8_T, UNSIGNED, 1},
        {ABC_U16, MPI_UINT16_T, UNSIGNED, 2},
        {ABC_U32, MPI_UINT32_T, UNSIGNED, 4},
        {ABC_U64, MPI_UINT64_T, UNSIGNED, 8},
        {ABC_BOOL, MPI_C_BOOL, BOOL, 1},
        {ABC_COMPLEX64, MPI_C_FLOAT_COMPLEX, COMPLEX, 8},
        {ABC_COMPLEX128, MPI_C_DOUBLE_COMPLEX, COMPLEX, 16},
        {ABC_F32_I32, MPI_FLOAT_INT, PAIR, 8},
        {ABC_I32_I32, MPI_2INT, PAIR, 8},
    };
    ntypes = sizeof all / sizeof all[0];
    memcpy(list, all, sizeof all);
    types = list;
}

struct operation {
    abc_op abc;
    MPI_Op mpi;
};

/* One that fits the type. The caller's own takes eight bytes as a map x -> ax + b. */
static struct operation draw_operation(const struct type *t, uint64_t *dice)
{
    const struct operation numbers[] = {{ABC_SUM, MPI_SUM}, {ABC_PROD, MPI_PROD}, {ABC_MIN, MPI_MIN}, {ABC_MAX, MPI_MAX}};
    const struct operation bits[] = {{ABC_BAND, MPI_BAND}, {ABC_BOR, MPI_BOR}, {ABC_BXOR, MPI_BXOR},
                                     {ABC_LAND, MPI_LAND}, {ABC_LOR, MPI_LOR}, {ABC_LXOR, MPI_LXOR}};
    const struct operation places[] = {{ABC_MINLOC, MPI_MINLOC}, {ABC_MAXLOC, MPI_MAXLOC}};
    uint64_t number = roll(dice);
    if (t->abc == ABC_U64 && number % 3 == 0)
        return (struct operation){user_abc, user_mpi};
    if (t->kind == PAIR)
        return places[number % 2];
    if (t->kind == BOOL)
        return bits[3 + number % 3];
    if (t->kind == COMPLEX)
        return numbers[number % 2];
    return t->kind == FLOAT || number % 2 ? numbers[number / 2 % 4] : bits[number / 2 % 6];
}

static uint64_t compose(uint64_t low, uint64_t high)
{
    uint32_t a = (uint32_t)low, b = (uint32_t)(low >> 32), c = (uint32_t)high, d = (uint32_t)(high >> 32);
    return (uint64_t)(c * b + d) << 32 | (uint32_t)(a * c);
}

static void compose_abc(const void *in, void *inout, uint64_t count, abc_type type, void *context)
{
    const uint64_t *low = in;
    uint64_t *high = inout;
    for (uint64_t i = 0; i < count; i++)
        high[i] = compose(low[i], high[i]);
}

static void compose_mpi(void *in, void *inout, int *count, MPI_Datatype *type)
{
    compose_abc(in, inout, (uint64_t)*count, ABC_U64, NULL);
}

/* Products of all ranks, and sums, fit one byte. */
static void fill(char *to, const struct type *t, uint64_t count, uint64_t *dice)
{
    for (uint64_t i = 0; i < count; i++, to += t->size) {
        uint64_t number = roll(dice);
        int small = number % 16 == 0 ? 2 : t->kind == UNSIGNED || t->kind == BOOL ? (int)(number % 2) : (int)(number % 3) - 1;
        if (t->kind == BOOL)
            small = small != 0;
        float f = (float)small, g = (float)(number >> 8 & 1);
        double d = small, e = g;
        int32_t index = (int32_t)(number >> 8 & 7);
        int64_t whole = small;
        memcpy(to, &whole, t->size < 8 ? t->size : 8);
        if (t->abc == ABC_F32 || t->abc == ABC_COMPLEX64 || t->abc == ABC_F32_I32)
            memcpy(to, &f, 4);
        if (t->abc == ABC_F64 || t->abc == ABC_COMPLEX128)
            memcpy(to, &d, 8);
        if (t->abc == ABC_COMPLEX64)
            memcpy(to + 4, &g, 4);
        if (t->abc == ABC_COMPLEX128)
            memcpy(to + 8, &e, 8);
        if (t->kind == PAIR)
            memcpy(to + 4, &index, 4);
    }
}

/* ---- One operation, twice ---- */

struct both {
    MPI_Comm mpi;
    abc_comm *abc;
    int rank, size;
};

struct task {
    abc_collective collective;
    const struct type *type;
    struct operation op;
    int count, root, how;                             /* how: this rank makes the call */
    int in_counts[MOST], out_counts[MOST];            /* of this rank, or the ones that all know */
    int in_offsets[MOST], out_offsets[MOST];          /* in elements */
    uint64_t in_list[4][MOST], in_elements, elements; /* the same for the library; elements of both buffers */
    char *in, *out[2];
};

static bool with_counts(abc_collective c)
{
    return c >= ABC_GATHERV;
}

/* Blocks with a gap between them; returns where the last one ends. */
static int place(const int *counts, int n, int gap, int *offsets)
{
    int at = 0;
    for (int r = 0; r < n; at += counts[r] + gap, r++)
        offsets[r] = at;
    return at;
}

static void draw_counts(const struct both *b, uint64_t *dice, int most, struct task *t)
{
    int sizes[MOST][MOST], me = b->rank, n = b->size, gap = (int)(roll(dice) % 3);
    for (int from = 0; from < n; from++)
        for (int to = 0; to < n; to++)
            sizes[from][to] = roll(dice) % 4 ? (int)(roll(dice) % (uint64_t)(most + 1)) : 0;
    bool all = t->collective == ABC_ALLTOALLV;
    for (int r = 0; r < n; r++) {
        t->in_counts[r] = all ? sizes[me][r] : sizes[0][r];
        t->out_counts[r] = all ? sizes[r][me] : sizes[0][r];
    }
    t->count = sizes[0][me];
    if (t->collective == ABC_REDUCE_SCATTERV)
        gap = 0;
    t->in_elements = (uint64_t)place(t->in_counts, n, gap, t->in_offsets);
    t->elements = (uint64_t)place(t->out_counts, n, gap, t->out_offsets);
    for (int r = 0; r < n; r++) {
        t->in_list[0][r] = (uint64_t)t->in_counts[r];
        t->in_list[1][r] = (uint64_t)t->in_offsets[r];
        t->in_list[2][r] = (uint64_t)t->out_counts[r];
        t->in_list[3][r] = (uint64_t)t->out_offsets[r];
    }
}

static void draw(const struct both *b, uint64_t *dice, uint64_t *own, struct task *t)
{
    static const int mosts[] = {1, 8, 60, 900, 5000};
    int most = mosts[roll(dice) % 5];
    memset(t, 0, sizeof *t);
    t->collective = (abc_collective)(roll(dice) % ABC_COLLECTIVE_COUNT);
    t->type = &types[roll(dice) % (uint64_t)ntypes];
    t->op = draw_operation(t->type, dice);
    t->root = (int)(roll(dice) % (uint64_t)b->size);
    t->count = (int)(roll(dice) % (uint64_t)(most + 1));
    t->in_elements = t->elements = (uint64_t)t->count * (uint64_t)b->size;
    if (with_counts(t->collective))
        draw_counts(b, dice, most, t);
    t->how = (int)(roll(own) % 3);
    size_t bytes = (size_t)(t->in_elements + t->elements + 8) * 16;
    t->in = malloc(bytes);
    for (int i = 0; i < 2; i++) {
        t->out[i] = malloc(bytes);
        memset(t->out[i], FILL, bytes);
    }
    memset(t->in, 0, bytes);
    fill(t->in, t->type, t->in_elements + t->elements, own);
}

static void by_mpi_with_counts(const struct both *b, const struct task *t, void *out)
{
    MPI_Datatype type = t->type->mpi;
    switch (t->collective) {
    case ABC_GATHERV:
        MPI_Gatherv(t->in, t->count, type, out, t->out_counts, t->out_offsets, type, t->root, b->mpi);
        break;
    case ABC_SCATTERV:
        MPI_Scatterv(t->in, t->in_counts, t->in_offsets, type, out, t->count, type, t->root, b->mpi);
        break;
    case ABC_ALLGATHERV:
        MPI_Allgatherv(t->in, t->count, type, out, t->out_counts, t->out_offsets, type, b->mpi);
        break;
    case ABC_REDUCE_SCATTERV:
        MPI_Reduce_scatter(t->in, out, t->in_counts, type, t->op.mpi, b->mpi);
        break;
    default:
        MPI_Alltoallv(t->in, t->in_counts, t->in_offsets, type, out, t->out_counts, t->out_offsets, type, b->mpi);
    }
}

static void by_mpi(const struct both *b, const struct task *t, void *out)
{
    MPI_Datatype type = t->type->mpi;
    switch (t->collective) {
    case ABC_ALLREDUCE:
        MPI_Allreduce(t->in, out, t->count, type, t->op.mpi, b->mpi);
        break;
    case ABC_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(t->in, out, t->count, type, t->op.mpi, b->mpi);
        break;
    case ABC_ALLGATHER:
        MPI_Allgather(t->in, t->count, type, out, t->count, type, b->mpi);
        break;
    case ABC_BROADCAST:
        if (b->rank == t->root)
            memcpy(out, t->in, (size_t)t->count * t->type->size);
        MPI_Bcast(out, t->count, type, t->root, b->mpi);
        break;
    case ABC_BARRIER:
        MPI_Barrier(b->mpi);
        break;
    case ABC_REDUCE:
        MPI_Reduce(t->in, out, t->count, type, t->op.mpi, t->root, b->mpi);
        break;
    case ABC_GATHER:
        MPI_Gather(t->in, t->count, type, out, t->count, type, t->root, b->mpi);
        break;
    case ABC_SCATTER:
        MPI_Scatter(t->in, t->count, type, out, t->count, type, t->root, b->mpi);
        break;
    case ABC_ALLTOALL:
        MPI_Alltoall(t->in, t->count, type, out, t->count, type, b->mpi);
        break;
    case ABC_SCAN:
        MPI_Scan(t->in, out, t->count, type, t->op.mpi, b->mpi);
        break;
    case ABC_EXSCAN:
        MPI_Exscan(t->in, out, t->count, type, t->op.mpi, b->mpi);
        break;
    default:
        by_mpi_with_counts(b, t, out);
    }
}

static int by_abc(const struct both *b, const struct task *t, void *out)
{
    abc_request *request;
    abc_call call;
    abc_call_init(&call, t->collective);
    call.in = t->in;
    call.out = out;
    call.count = (uint64_t)t->count;
    call.type = t->type->abc;
    call.op = t->op.abc;
    call.root = t->root;
    call.in_counts = t->in_list[0];
    call.in_offsets = t->in_list[1];
    call.out_counts = t->in_list[2];
    call.out_offsets = t->in_list[3];
    if (t->how == 0)
        return abc_run(b->abc, &call);
    if (t->how == 1) {
        int status = abc_start(b->abc, &call, &request);
        return status == ABC_OK ? abc_wait(&request) : status;
    }
    int status = abc_group_start();
    if (status == ABC_OK)
        status = abc_run(b->abc, &call);
    return status == ABC_OK ? abc_group_end() : status;
}

/* A ring: everybody passes what it has to the next rank. */
static int pass_on(const struct both *b, const struct task *t)
{
    int next = (b->rank + 1) % b->size, last = (b->rank + b->size - 1) % b->size;
    MPI_Sendrecv(t->in, t->count, t->type->mpi, next, 7, t->out[0], t->count, t->type->mpi, last, 7, b->mpi, MPI_STATUS_IGNORE);
    return abc_sendrecv(t->in, (uint64_t)t->count, next, 7, t->out[1], (uint64_t)t->count, last, 7, t->type->abc, b->abc, NULL);
}

/* A product of complex numbers may be -0 or 0 by the order of its factors. */
static void forget_signs_of_zeros(const struct task *t)
{
    uint64_t parts = (t->in_elements + t->elements) * 2;
    for (int i = 0; i < 2; i++)
        for (uint64_t k = 0; k < parts; k++) {
            if (t->type->abc == ABC_COMPLEX64)
                ((float *)(void *)t->out[i])[k] += 0.0f;
            if (t->type->abc == ABC_COMPLEX128)
                ((double *)(void *)t->out[i])[k] += 0.0;
        }
}

/* True when both agree. What a rank 0 of exscan has in its output, MPI does not say. */
static bool operate(const struct both *b, uint64_t *dice, uint64_t *own, uint64_t seed)
{
    struct task t;
    draw(b, dice, own, &t);
    bool ring = t.collective == ABC_BARRIER && roll(dice) % 2, silent = t.collective == ABC_EXSCAN && b->rank == 0;
    int status = ABC_OK;
    if (ring) {
        status = pass_on(b, &t);
    } else {
        by_mpi(b, &t, t.out[0]);
        status = by_abc(b, &t, t.out[1]);
    }
    forget_signs_of_zeros(&t);
    size_t bytes = (size_t)(t.in_elements + t.elements + 8) * t.type->size, at = 0;
    while (!silent && at < bytes && t.out[0][at] == t.out[1][at])
        at++;
    bool same = status == ABC_OK && (silent || at == bytes);
    if (!same)
        printf("program %llu: %s of %d %s by %s on rank %d of %d: %s, byte %zu\n", (unsigned long long)seed,
               ring ? "sendrecv" : abc_collective_name(t.collective), t.count, abc_type_name(t.type->abc), abc_op_name(t.op.abc),
               b->rank, b->size, status == ABC_OK ? "other bytes" : abc_last_error(), at);
    free(t.in);
    free(t.out[0]);
    free(t.out[1]);
    return same;
}

/* ---- Programs ---- */

static void end(struct both *b)
{
    if (!b->abc)
        return;
    if (abc_comm_destroy(b->abc) != ABC_OK)
        printf("destroy: %s\n", abc_last_error());
    MPI_Comm_free(&b->mpi);
    b->abc = NULL;
}

static bool split(const struct both *from, struct both *to, uint64_t *own)
{
    int color = (int)(roll(own) % 3) - 1, key = (int)(roll(own) % 5) - 2;
    int status = abc_comm_split(from->abc, color, key, &to->abc);
    MPI_Comm_split(from->mpi, color < 0 ? MPI_UNDEFINED : color, key, &to->mpi);
    if (status != ABC_OK || (to->mpi == MPI_COMM_NULL) != !to->abc) {
        printf("split: %s\n", status == ABC_OK ? "one took part, the other did not" : abc_last_error());
        return false;
    }
    if (!to->abc)
        return true;
    MPI_Comm_rank(to->mpi, &to->rank);
    MPI_Comm_size(to->mpi, &to->size);
    return to->rank == abc_comm_rank(to->abc) && to->size == abc_comm_size(to->abc);
}

/* The dice of a communicator are the same on its ranks, and come from what its first rank draws. */
static bool program(const struct both *world, uint64_t seed, unsigned long *operations)
{
    struct both comm[COMMS] = {*world};
    uint64_t shared = seed * 1000003, own = shared + 77 + (uint64_t)world->rank;
    bool ok = true;
    for (int i = 0; i < STEPS && ok; i++) {
        int at = (int)(roll(&shared) % COMMS), to = 1 + (int)(roll(&shared) % (COMMS - 1));
        bool divides = roll(&shared) % 6 == 0;
        uint64_t dice = roll(&shared);
        bool divided = divides && to != at;
        if (divided)
            end(&comm[to]); /* on all its ranks, whoever takes part in the split */
        if (!comm[at].abc)
            continue;
        if (divided) {
            ok = split(&comm[at], &comm[to], &own);
            continue;
        }
        MPI_Bcast(&dice, 1, MPI_UINT64_T, 0, comm[at].mpi);
        ok = operate(&comm[at], &dice, &own, seed);
        ++*operations;
    }
    for (int c = 1; c < COMMS; c++)
        end(&comm[c]);
    return ok;
}

int main(int argc, char **argv)
{
    struct both world = {.mpi = MPI_COMM_WORLD};
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, programs = argc > 2 ? strtoull(argv[2], NULL, 10) : 10;
    unsigned long operations = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world.size);
    list_types();
    MPI_Op_create(compose_mpi, 0, &user_mpi);
    bool ok = abc_op_create(compose_abc, 0, NULL, &user_abc) == ABC_OK && abc_comm_create(NULL, &world.abc) == ABC_OK;
    if (!ok)
        printf("%s\n", abc_last_error());
    for (uint64_t i = 0; i < programs && ok; i++)
        ok = program(&world, first + i, &operations);
    fflush(stdout);
    if (!ok)
        MPI_Abort(MPI_COMM_WORLD, 1);
    ok = abc_comm_destroy(world.abc) == ABC_OK;
    if (world.rank == 0)
        printf("%llu programs, %lu operations agree\n", (unsigned long long)programs, operations);
    MPI_Op_free(&user_mpi);
    MPI_Finalize();
    return !ok;
}
