/*
 * split.c - a split inherits the rows of the tuning file, those for its own number of ranks. Run as 5 ranks with two.json: the
 * whole has no row, the parts of 2 and 3 ranks have one each. What abc_explain tells must also run.
 */
#include <stdio.h>
#include <string.h>

#include <abcomm/abcomm.h>

static int expect(abc_comm *comm, const char *word)
{
    static int32_t in[1024], out[1024];
    char text[96] = "";
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = in;
    call.out = out;
    call.count = 1024;
    call.type = ABC_I32;
    for (int i = 0; i < 1024; i++)
        in[i] = i;
    if (abc_explain(comm, &call, text, sizeof text) != ABC_OK || !strstr(text, word)) {
        fprintf(stderr, "%d ranks: \"%s\" has no \"%s\" (%s)\n", abc_comm_size(comm), text, word, abc_last_error());
        return 1;
    }
    if (abc_run(comm, &call) != ABC_OK || out[1023] != 1023 * abc_comm_size(comm)) {
        fprintf(stderr, "%d ranks: %s\n", abc_comm_size(comm), abc_last_error());
        return 1;
    }
    return 0;
}

/* Nothing is run to explain a call, and a call that is wrong is refused as it would be when run. */
static int refusals(abc_comm *comm)
{
    char text[96];
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.count = 1;
    int wrong = abc_explain(comm, &call, text, sizeof text) != ABC_ERR_ARGUMENT; /* no buffers */
    abc_call_init(&call, ABC_BARRIER);
    wrong |= abc_explain(comm, &call, text, 0) != ABC_ERR_ARGUMENT || abc_explain(comm, &call, NULL, 9) != ABC_ERR_ARGUMENT;
    wrong |= abc_explain(NULL, &call, text, sizeof text) != ABC_ERR_HANDLE;
    wrong |= abc_explain(comm, &call, text, 4) != ABC_OK || strlen(text) != 3; /* cut, and terminated */
    if (wrong)
        fprintf(stderr, "abc_explain takes what is wrong: %s\n", abc_last_error());
    return wrong;
}

int main(void)
{
    abc_comm *whole, *part;
    if (abc_comm_create(NULL, &whole) != ABC_OK || abc_comm_split(whole, abc_comm_rank(whole) % 2, 0, &part) != ABC_OK) {
        fprintf(stderr, "%s\n", abc_last_error());
        return 1;
    }
    int wrong = expect(whole, "by price") + refusals(whole);
    wrong += expect(part, abc_comm_size(part) == 2 ? "ring@65536 by file" : "binomial@4096 by file");
    abc_comm_destroy(part);
    abc_comm_destroy(whole);
    return wrong > 0;
}
