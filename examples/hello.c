/* hello.c - the program of README.md's first screen: every rank adds its number to the sum. Run: abcomm run -n 4 hello */
#include <abcomm/abcomm.h>
#include <stdio.h>

int main(void)
{
    abc_comm *comm;
    if (abc_comm_create(NULL, &comm) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), 1;
    float mine = 1.0f + (float)abc_comm_rank(comm), sum;
    if (abc_allreduce(&mine, &sum, 1, ABC_F32, ABC_SUM, comm) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), 1;
    printf("rank %d of %d: the sum is %g\n", abc_comm_rank(comm), abc_comm_size(comm), sum);
    abc_comm_destroy(comm);
    return 0;
}
