/*
 * test_reuse.c - staging is not written again before its reader has read it, also when only one rank publishes: rows of broadcasts
 * in which the root runs ahead of a slow peer. Run: abcomm run -n 2 test_reuse
 */
#include <abcomm/abcomm.h>
#include <stdio.h>
#include <unistd.h>

#define MOST (96 * 1024)
#define ROW 40

static int in[MOST], out[MOST];

static int pattern(int n, unsigned i)
{
    return n * 1000003 + (int)i;
}

/* A row of broadcasts; the ranks that are not the root dawdle. Returns the number of wrong values, negative after an error. */
static long row(abc_comm *comm, unsigned count, int root)
{
    long wrong = 0;
    for (int n = 0; n < ROW; n++) {
        for (unsigned i = 0; i < count; i++) {
            in[i] = pattern(n, i);
            out[i] = -1;
        }
        if (abc_comm_rank(comm) != root)
            usleep(200);
        if (abc_broadcast(in, out, count, ABC_I32, root, comm) != ABC_OK)
            return fprintf(stderr, "%s\n", abc_last_error()), -1;
        for (unsigned i = 0; i < count; i++)
            wrong += out[i] != pattern(n, i);
    }
    return wrong;
}

int main(void)
{
    static const unsigned counts[] = {8, 256, 4096, MOST};
    abc_comm *comm;
    if (abc_comm_create(NULL, &comm) != ABC_OK)
        return fprintf(stderr, "%s\n", abc_last_error()), 1;
    int failed = 0;
    for (int root = 0; root < abc_comm_size(comm); root++)
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            long wrong = row(comm, counts[k], root);
            if (wrong != 0)
                printf("rank %d: broadcasts of %u from rank %d: %ld wrong values\n", abc_comm_rank(comm), counts[k], root, wrong);
            failed |= wrong != 0;
        }
    abc_comm_destroy(comm);
    return failed;
}
