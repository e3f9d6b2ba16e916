/*
 * both.c - a rank that uses MPI and finds its job by the launcher's table as well: both talk to the launcher over the same channel,
 * in either order. Built and started by test_mpi.py. usage: both before|between|after
 */
#include <abcomm/abcomm.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static int sum_of_ranks(void)
{
    abc_comm *comm;
    if (abc_comm_create(NULL, &comm) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), 0;
    int mine = 1 + abc_comm_rank(comm), sum = 0, size = abc_comm_size(comm);
    int status = abc_allreduce(&mine, &sum, 1, ABC_I32, ABC_SUM, comm);
    abc_comm_destroy(comm);
    if (status == ABC_OK && sum == size * (size + 1) / 2)
        printf("good\n");
    return status == ABC_OK;
}

int main(int argc, char **argv)
{
    const char *when = argc > 1 ? argv[1] : "";
    int good = 1, one = 1, all = 0;
    if (strcmp(when, "before") == 0)
        good = sum_of_ranks() && sum_of_ranks(); /* the second one goes by what the first has agreed */
    MPI_Init(&argc, &argv);
    if (strcmp(when, "between") == 0)
        good = sum_of_ranks() && sum_of_ranks();
    MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("all %d\n", all);
    MPI_Finalize();
    if (strcmp(when, "after") == 0)
        good = sum_of_ranks();
    return good ? 0 : 1;
}
