/*
 * rank.c - a rank that hangs where it is told to, for the tests of `abcomm inspect` and of the line that a slow peer brings:
 *   rank OPERATIONS CULPRIT SECONDS [LARGE]
 * All ranks run OPERATIONS allreduces; then the culprit sleeps while the others go on to the next one. LARGE: elements of it. Each
 * rank prints "ready PID" first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <abcomm/abcomm.h>

static int fail(void)
{
    fprintf(stderr, "%s\n", abc_last_error());
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    int operations = atoi(argv[1]), culprit = atoi(argv[2]);
    double seconds = atof(argv[3]);
    size_t count = argc > 4 ? strtoul(argv[4], NULL, 10) : 14;
    float small[14] = {0}, sum[14], *large = calloc(count, sizeof *large), *out = calloc(count, sizeof *out);
    abc_comm *comm;
    if (!large || !out || abc_comm_create(NULL, &comm) != ABC_OK)
        return fail();
    for (int i = 0; i < operations; i++)
        if (abc_allreduce(small, sum, 14, ABC_F32, ABC_SUM, comm) != ABC_OK)
            return fail();
    printf("ready %d %d\n", abc_comm_rank(comm), (int)getpid());
    fflush(stdout);
    if (abc_comm_rank(comm) == culprit) {
        struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
        nanosleep(&t, NULL);
    }
    int status = abc_allreduce(large, out, count, ABC_F32, ABC_MAX, comm);
    if (status != ABC_OK)
        fail();
    abc_comm_destroy(comm);
    free(large);
    free(out);
    return status == ABC_OK ? 0 : 3;
}
