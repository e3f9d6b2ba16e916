/*
 * persistent.c - a training loop's way to sum gradients: memory that peers read without a copy, one request made before the loop
 * and started again in each step, other work while it runs. Run: abcomm run -n 4 persistent
 */
#include <abcomm/abcomm.h>
#include <stdio.h>

#define COUNT 100000u
#define STEPS 20

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, abc_last_error());
    return 1;
}

/* Stands for the work of the next layer; returns something so that it is not optimised away. */
static double other_work(int step)
{
    double x = step;
    for (int i = 0; i < 10000; i++)
        x = x * 0.999 + 1;
    return x;
}

int main(void)
{
    abc_comm *comm;
    abc_request *request;
    void *memory;
    if (abc_comm_create(NULL, &comm) != ABC_OK)
        return failed("create");
    if (abc_mem_alloc(COUNT * sizeof(float), &memory) != ABC_OK)
        return failed("abc_mem_alloc");
    float *gradient = memory;
    int rank = abc_comm_rank(comm), size = abc_comm_size(comm);
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = ABC_IN_PLACE;
    call.out = gradient;
    call.count = COUNT;
    call.type = ABC_F32;
    call.op = ABC_AVG;
    if (abc_request_create(comm, &call, &request) != ABC_OK)
        return failed("abc_request_create");
    unsigned wrong = 0;
    double work = 0;
    for (int step = 0; step < STEPS; step++) {
        for (unsigned i = 0; i < COUNT; i++)
            gradient[i] = (float)(rank + step);
        if (abc_restart(request) != ABC_OK)
            return failed("abc_restart");
        work += other_work(step); /* the gradient is the library's until abc_wait has returned */
        if (abc_wait(&request) != ABC_OK)
            return failed("abc_wait");
        for (unsigned i = 0; i < COUNT; i++)
            wrong += gradient[i] != (float)step + (float)(size - 1) / 2;
    }
    if (rank == 0)
        printf("%d steps on %d ranks: %u wrong values%s\n", STEPS, size, wrong, work > 0 ? "" : "!");
    abc_request_free(request);
    abc_comm_destroy(comm);
    abc_mem_free(memory);
    return wrong > 0;
}
