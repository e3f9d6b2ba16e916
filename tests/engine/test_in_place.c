/*
 * test_in_place.c - ABC_IN_PLACE as output: each collective that allows it, small and large, again and again; and the words for
 * those that do not.
 */
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define LARGE 20000

static void *const here = (void *)(intptr_t)-1; /* ABC_IN_PLACE is const, outputs are not */

static void fill(int32_t *x, int count, int value)
{
    for (int i = 0; i < count; i++)
        x[i] = i + value;
}

static bool holds(struct rank *r, const int32_t *x, int count, int factor, int value, const char *what)
{
    bool ok = true;
    for (int i = 0; i < count && ok; i++)
        ok = check(r, x[i] == factor * i + value, "%s of %d: element %d is %d, must be %d", what, count, i, x[i],
                   factor * i + value);
    return ok;
}

static bool each_collective(struct rank *r, int32_t *x, int count)
{
    int n = r->nranks, extra = n * (n - 1) / 2;
    fill(x, count, r->rank);
    bool ok = check_status(r, abc_allreduce(x, here, (uint64_t)count, ABC_I32, ABC_SUM, r->comm), ABC_OK, "allreduce");
    ok = ok && holds(r, x, count, n, extra, "allreduce");
    fill(x, count, r->rank);
    ok = ok && check_status(r, abc_broadcast(x, here, (uint64_t)count, ABC_I32, n - 1, r->comm), ABC_OK, "broadcast");
    ok = ok && holds(r, x, count, 1, n - 1, "broadcast");
    fill(x, count * n, r->rank);
    ok = ok && check_status(r, abc_reduce_scatter(x, here, (uint64_t)count, ABC_I32, ABC_SUM, r->comm), ABC_OK, "reduce_scatter");
    return ok && holds(r, x + r->rank * count, count, n, extra + n * r->rank * count, "reduce_scatter");
}

static bool refused(struct rank *r, int status, const char *words)
{
    return check_status(r, status, ABC_ERR_ARGUMENT, "in place where it cannot be") &&
           check(r, strstr(abc_last_error(), words) != NULL, "\"%s\" does not say \"%s\"", abc_last_error(), words);
}

static bool refusals(struct rank *r, int32_t *x)
{
    return refused(r, abc_allreduce(ABC_IN_PLACE, here, 4, ABC_I32, ABC_SUM, r->comm), "needs an input") &&
           refused(r, abc_broadcast(ABC_IN_PLACE, here, 4, ABC_I32, 0, r->comm), "needs an input") &&
           refused(r, abc_reduce_scatter(ABC_IN_PLACE, here, 4, ABC_I32, ABC_SUM, r->comm), "needs an input") &&
           refused(r, abc_reduce_scatter(ABC_IN_PLACE, x, 4, ABC_I32, ABC_SUM, r->comm), "ABC_IN_PLACE as output") &&
           refused(r, abc_allgather(x, here, 4, ABC_I32, r->comm), "allgather works in place by ABC_IN_PLACE as input") &&
           refused(r, abc_allgather(ABC_IN_PLACE, here, 4, ABC_I32, r->comm), "allgather works in place by");
}

static int body(struct rank *r)
{
    int32_t *private = malloc(sizeof(int32_t) * LARGE * (size_t)r->nranks), *x;
    void *arena = NULL;
    bool ok = check_status(r, abc_mem_alloc(sizeof(int32_t) * LARGE * (size_t)r->nranks, &arena), ABC_OK, "alloc");
    for (int round = 0; round < 8 && ok; round++) {
        x = round & 1 ? arena : private;
        ok = each_collective(r, x, 4) && each_collective(r, x, 4) && each_collective(r, x, 700) && each_collective(r, x, LARGE) &&
             refusals(r, x);
    }
    for (int round = 0; round < 3 && ok; round++) { /* the second like the first goes the short way */
        fill(private, 4, r->rank);
        ok = check_status(r, abc_allreduce(private, here, 4, ABC_I32, ABC_MAX, r->comm), ABC_OK, "allreduce") &&
             holds(r, private, 4, 1, r->nranks - 1, "maximum");
    }
    abc_mem_free(arena);
    free(private);
    return !ok;
}

int main(int argc, char **argv)
{
    struct options o;
    options_read(argc, argv, &o);
    for (int n = 1; n <= 3; n++)
        job_run(&(struct job){.name = "output in place", .body = body, .nranks = n});
    return jobs_end();
}
