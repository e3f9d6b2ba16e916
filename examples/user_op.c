/*
 * user_op.c - a reduction of our own: pairs (factor, offset) stand for the functions f(x) = factor * x + offset, and to combine two
 * is to apply one after the other. That is associative but does not commute, so the order of the ranks shows in the result.
 * Run: abcomm run -n 4 user_op
 */
#include <abcomm/abcomm.h>
#include <stdio.h>

/* One element: its halves are packed into an f64, because slices are cut between elements. */
struct pair {
    float factor, offset;
};
_Static_assert(sizeof(struct pair) == sizeof(double), "a pair travels as one f64");

/* `in` stands for the lower ranks, so it is applied first. */
static void then(const void *in, void *inout, uint64_t count, abc_type type, void *context)
{
    const struct pair *first = in;
    struct pair *second = inout;
    (void)type;
    (void)context;
    for (uint64_t i = 0; i < count; i++) {
        struct pair both = {second[i].factor * first[i].factor, second[i].factor * first[i].offset + second[i].offset};
        second[i] = both;
    }
}

int main(void)
{
    abc_comm *comm;
    abc_op op;
    if (abc_comm_create(NULL, &comm) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), 1;
    if (abc_op_create(then, 0, NULL, &op) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), 1;
    int rank = abc_comm_rank(comm), size = abc_comm_size(comm);
    struct pair mine = {2, (float)rank}, all;
    if (abc_allreduce(&mine, &all, 1, ABC_F64, op, comm) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), 1;
    struct pair expected = {1, 0};
    for (int r = 0; r < size; r++)
        expected = (struct pair){2 * expected.factor, 2 * expected.offset + (float)r};
    if (rank == 0)
        printf("all %d functions in a row: f(x) = %g x + %g\n", size, all.factor, all.offset);
    abc_op_free(op);
    abc_comm_destroy(comm);
    return all.factor != expected.factor || all.offset != expected.offset;
}
