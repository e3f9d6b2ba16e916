/*
 * test_plan_json.c - plans written by hand, which no built-in algorithm emits: loaded as JSON they run and are right. With one step
 * taken out the checker refuses them, and unchecked they are wrong or end by timeout: so the executor does what the plan says, no
 * more.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "harness.h"

#define LARGEST 300000

/*
 * Allreduce of three: rank 1 adds rank 0's operand to its own into a temporary; rank 2 adds its own to that and hands the result to
 * both. Sums stand in rank order: (x0 + x1) + x2.
 */
#define HAND_DOWN ",{\"do\":\"publish\",\"src\":[\"out\",0,1],\"counter\":1,\"value\":1,\"readers\":[0,1],\"after\":[0]}"
static const char pair_then_third[] =
    "{\"abcomm_plan\":1,\"name\":\"pair\",\"collective\":\"allreduce\",\"ranks\":3,\"root\":0,\"blocks\":1,\"temporaries\":1,"
    "\"rank_order\":true,\"ordered\":true,\"stage_in_place\":[0],\"plan\":["
    "[{\"do\":\"publish\",\"src\":[\"in\",0,1],\"counter\":0,\"value\":1,\"readers\":[1],\"after\":[]},"
    "{\"do\":\"fetch\",\"src\":[\"out\",0,1],\"dst\":[\"out\",0,1],\"peers\":[[2,1,1]],\"after\":[0]}],"
    "[{\"do\":\"reduce\",\"src\":[\"in\",0,1],\"own\":[\"in\",0,1],\"own_at\":1,\"dst\":[\"tmp0\",0,1],\"peers\":[[0,0,1]],"
    "\"after\":[]},"
    "{\"do\":\"publish\",\"src\":[\"tmp0\",0,1],\"counter\":1,\"value\":1,\"readers\":[2],\"after\":[0]},"
    "{\"do\":\"fetch\",\"src\":[\"out\",0,1],\"dst\":[\"out\",0,1],\"peers\":[[2,1,1]],\"after\":[1]}],"
    "[{\"do\":\"reduce\",\"src\":[\"tmp0\",0,1],\"own\":[\"in\",0,1],\"own_at\":1,\"dst\":[\"out\",0,1],\"peers\":[[1,1,1]],"
    "\"after\":[],"
    "\"flags\":[\"final\"]}" HAND_DOWN "]]}";

/* Allgather of three through rank 1: the others read its collection, never each other. */
#define OWN_BLOCK ",{\"do\":\"copy\",\"src\":[\"in\",2,1],\"dst\":[\"out\",2,1],\"after\":[0]}"
static const char through_middle[] =
    "{\"abcomm_plan\":1,\"name\":\"middle\",\"collective\":\"allgather\",\"ranks\":3,\"root\":0,\"blocks\":3,\"temporaries\":0,"
    "\"rank_order\":false,\"ordered\":false,\"stage_in_place\":[],\"plan\":["
    "[{\"do\":\"publish\",\"src\":[\"in\",0,1],\"counter\":0,\"value\":1,\"readers\":[1],\"after\":[]},"
    "{\"do\":\"copy\",\"src\":[\"in\",0,1],\"dst\":[\"out\",0,1],\"after\":[0]},"
    "{\"do\":\"fetch\",\"src\":[\"out\",1,2],\"dst\":[\"out\",1,2],\"peers\":[[1,1,1]],\"after\":[1]}],"
    "[{\"do\":\"copy\",\"src\":[\"in\",1,1],\"dst\":[\"out\",1,1],\"after\":[]},"
    "{\"do\":\"fetch\",\"src\":[\"in\",0,1],\"dst\":[\"out\",0,1],\"peers\":[[0,0,1]],\"after\":[0]},"
    "{\"do\":\"fetch\",\"src\":[\"in\",2,1],\"dst\":[\"out\",2,1],\"peers\":[[2,0,1]],\"after\":[1]},"
    "{\"do\":\"publish\",\"src\":[\"out\",0,3],\"counter\":1,\"value\":1,\"readers\":[0,2],\"after\":[2]}],"
    "[{\"do\":\"publish\",\"src\":[\"in\",2,1],\"counter\":0,\"value\":1,\"readers\":[1],\"after\":[]}" OWN_BLOCK ","
    "{\"do\":\"fetch\",\"src\":[\"out\",0,2],\"dst\":[\"out\",0,2],\"peers\":[[1,1,1]],\"after\":[0]}]]}";

/*
 * Allreduce of two in two blocks: rank 1 sums both and stages both, but shows only the second. So it stages a block that lies
 * before all that is shown.
 */
static const char stages_more[] =
    "{\"abcomm_plan\":1,\"name\":\"more\",\"collective\":\"allreduce\",\"ranks\":2,\"root\":0,\"blocks\":2,\"temporaries\":0,"
    "\"rank_order\":true,\"ordered\":true,\"stage_in_place\":[0,1],\"plan\":["
    "[{\"do\":\"publish\",\"src\":[\"in\",0,2],\"counter\":0,\"value\":1,\"readers\":[1],\"after\":[]},"
    "{\"do\":\"reduce\",\"src\":[\"in\",0,1],\"own\":[\"in\",0,1],\"own_at\":0,\"dst\":[\"out\",0,1],\"peers\":[[1,0,1]],"
    "\"after\":[0],\"flags\":[\"final\"]},"
    "{\"do\":\"fetch\",\"src\":[\"out\",1,1],\"dst\":[\"out\",1,1],\"peers\":[[1,1,1]],\"after\":[0]}],"
    "[{\"do\":\"publish\",\"src\":[\"in\",0,1],\"counter\":0,\"value\":1,\"readers\":[0],\"after\":[]},"
    "{\"do\":\"reduce\",\"src\":[\"in\",0,2],\"own\":[\"in\",0,2],\"own_at\":1,\"dst\":[\"out\",0,2],\"peers\":[[0,0,1]],"
    "\"after\":[0],\"flags\":[\"final\",\"stage\"]},"
    "{\"do\":\"publish\",\"src\":[\"out\",1,1],\"counter\":1,\"value\":1,\"readers\":[0],\"after\":[1],\"flags\":[\"staged\"]}]]}";

/* The text without one step. */
static char *without(const char *plan, const char *step)
{
    char *text = strdup(plan), *at = strstr(text, step);
    if (!at)
        abort();
    memmove(at, at + strlen(step), strlen(at + strlen(step)) + 1);
    return text;
}

/* ---- Right ---- */

static void *memory_for(struct rank *r, bool arena, size_t bytes)
{
    void *p = NULL;
    if (!arena)
        return malloc(bytes);
    check_status(r, abc_mem_alloc(bytes, &p), ABC_OK, "alloc");
    return p;
}

static void give(void *p, bool arena)
{
    if (arena)
        abc_mem_free(p);
    else
        free(p);
}

/* kind: bit 0 arena for the input, bit 1 for the output; bit 2: in place. */
static bool one_pair(struct rank *r, uint64_t n, int kind, bool last_private)
{
    bool arena_in = kind & 1 && !(last_private && r->rank == 2), arena_out = kind & 2;
    struct values v = {.seed = n + (uint64_t)kind, .type = ABC_F32, .op = TEST_SUM};
    float *in = memory_for(r, arena_in, n * 4 + 4), *out = memory_for(r, arena_out, n * 4 + 4);
    uint64_t got = 0, want = 0;
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = kind & 4 ? ABC_IN_PLACE : in;
    call.out = out;
    call.count = n;
    call.algorithm = "pair";
    memset(out, 0xcc, n * 4);
    values_fill(&v, r->rank, 0, n, kind & 4 ? out : in);
    doing(r, "pair, %llu elements, kind %d", (unsigned long long)n, kind);
    bool ok = check_status(r, abc_run(r->comm, &call), ABC_OK, "run");
    uint64_t at = reduction_differs(&v, 3, 0, n, out, &got, &want);
    ok = ok && check(r, at == n, "element %llu is %llx, must be %llx", (unsigned long long)at, (unsigned long long)got,
                     (unsigned long long)want);
    give(in, arena_in);
    give(out, arena_out);
    return ok;
}

static bool one_middle(struct rank *r, uint64_t n, int kind)
{
    struct values v = {.seed = n * 3 + (uint64_t)kind, .type = ABC_I32, .op = TEST_SUM};
    int32_t *in = memory_for(r, kind & 1, n * 4 + 4), *out = memory_for(r, kind & 2, n * 12 + 4);
    abc_call call;
    abc_call_init(&call, ABC_ALLGATHER);
    call.in = kind & 4 ? ABC_IN_PLACE : in;
    call.out = out;
    call.count = n;
    call.type = ABC_I32;
    call.algorithm = "middle";
    memset(out, 0xcc, n * 12);
    values_fill(&v, r->rank, 0, n, kind & 4 ? out + n * (uint64_t)r->rank : in);
    doing(r, "middle, %llu elements, kind %d", (unsigned long long)n, kind);
    bool ok = check_status(r, abc_run(r->comm, &call), ABC_OK, "run");
    for (int p = 0; p < 3 && ok; p++)
        ok = check(r, values_differ(&v, p, 0, n, out + n * (uint64_t)p) == n, "block %d is wrong", p);
    give(in, kind & 1);
    give(out, kind & 2);
    return ok;
}

static int right(struct rank *r)
{
    static const uint64_t sizes[] = {0, 1, 5, 12, 50, 1000, 1024, 5000, 16384, 20000, LARGEST};
    bool ok = check_status(r, abc_comm_load_plan(r->comm, pair_then_third, 1), ABC_OK, "load the pair");
    ok = ok && check_status(r, abc_comm_load_plan(r->comm, through_middle, 1), ABC_OK, "load the middle");
    ok = ok && check_status(r, abc_comm_load_plan(r->comm, through_middle, 1), ABC_ERR_STATE, "load it twice");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && ok; i++)
        for (int kind = 0; kind < 8 && ok; kind++)
            ok = one_pair(r, sizes[i], kind, i & 1) && one_middle(r, sizes[i], kind);
    abc_call call;
    abc_call_init(&call, ABC_BROADCAST);
    int32_t x = 0;
    call.out = &x;
    call.in = &x;
    call.count = 1;
    call.algorithm = "pair";
    return !(ok && check_status(r, abc_run(r->comm, &call), ABC_ERR_UNSUPPORTED, "a plan for another collective"));
}

/* What a step stages without anybody reading it there needs room, too: it must not lie on somebody else's memory. */
static int staged_unread(struct rank *r)
{
    static const uint64_t sizes[] = {40, 3000, 16384, 100003, LARGEST};
    bool ok = check_status(r, abc_comm_load_plan(r->comm, stages_more, 1), ABC_OK, "load");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && ok; i++) {
        uint64_t n = sizes[i], bytes = n * 4;
        char *mine = memory_for(r, true, bytes); /* the staging is likely to lie behind it */
        int32_t *in = memory_for(r, false, bytes), *out = memory_for(r, false, bytes);
        abc_call call;
        abc_call_init(&call, ABC_ALLREDUCE);
        call.in = in;
        call.out = out;
        call.count = n;
        call.type = ABC_I32;
        call.algorithm = "more";
        memset(mine, 0x55, bytes);
        for (uint64_t k = 0; k < n; k++)
            in[k] = (int32_t)k * (r->rank + 1);
        ok = check_status(r, abc_run(r->comm, &call), ABC_OK, "run");
        for (uint64_t k = 0; k < n && ok; k++)
            ok = check(r, out[k] == (int32_t)k * 3, "%llu elements: element %llu is %d", (unsigned long long)n,
                       (unsigned long long)k, out[k]);
        for (uint64_t k = 0; k < bytes && ok; k++)
            ok = check(r, mine[k] == 0x55, "%llu elements: byte %llu of other memory was written", (unsigned long long)n,
                       (unsigned long long)k);
        give(mine, true);
        give(in, false);
        give(out, false);
    }
    return !ok;
}

/* ---- Wrong ---- */

static int step_short_allreduce(struct rank *r)
{
    float in[10] = {1}, out[10];
    char *text = without(pair_then_third, HAND_DOWN);
    bool ok = check_status(r, abc_comm_load_plan(r->comm, text, 1), ABC_ERR_PLAN, "checked");
    ok = ok && check(r, strstr(abc_last_error(), "rank"), "no place in: %s", abc_last_error());
    ok = ok && check_status(r, abc_comm_load_plan(r->comm, text, 0), ABC_OK, "unchecked");
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = in;
    call.out = out;
    call.count = 10;
    call.algorithm = "pair";
    call.timeout = 1;
    double start = now_seconds();
    int status = ok ? abc_run(r->comm, &call) : 0;
    double took = now_seconds() - start;
    if (r->rank != 2)
        ok = ok && check(r, status == ABC_ERR_TIMEOUT || status == ABC_ERR_PEER, "the broken plan ended with %s",
                         abc_status_name(status));
    ok = ok && check(r, took < 5, "it took %.1f s", took);
    meet(r);
    abc_comm_destroy(r->comm);
    r->comm = NULL;
    free(text);
    return !ok;
}

static int step_short_allgather(struct rank *r)
{
    int32_t in = r->rank + 5, out[3] = {-1, -1, -1};
    char *text = without(through_middle, OWN_BLOCK);
    bool ok = check_status(r, abc_comm_load_plan(r->comm, text, 1), ABC_ERR_PLAN, "checked");
    ok = ok && check_status(r, abc_comm_load_plan(r->comm, text, 0), ABC_OK, "unchecked");
    abc_call call;
    abc_call_init(&call, ABC_ALLGATHER);
    call.in = &in;
    call.out = out;
    call.count = 1;
    call.type = ABC_I32;
    call.algorithm = "middle";
    call.timeout = 1;
    ok = ok && check_status(r, abc_run(r->comm, &call), ABC_OK, "run");
    free(text);
    return !(ok &&
             check(r, out[0] == 5 && out[1] == 6 && out[2] == (r->rank == 2 ? -1 : 7), "got %d %d %d", out[0], out[1], out[2]));
}

int main(int argc, char **argv)
{
    struct options o;
    static const char *const small[] = {"ABCOMM_CHUNK=16K", NULL}, *const off[] = {"ABCOMM_PVR=off", NULL},
                             *const on[] = {"ABCOMM_PVR=on", NULL};
    options_read(argc, argv, &o);
    for (int threads = 0; threads < 2; threads++) {
        job_run(&(struct job){.name = "plans by hand", .body = right, .nranks = 3, .threads = threads});
        job_run(&(struct job){
            .name = "plans by hand, small chunks", .body = right, .nranks = 3, .threads = threads, .environment = small});
        job_run(
            &(struct job){.name = "plans by hand, no readv", .body = right, .nranks = 3, .threads = threads, .environment = off});
        job_run(&(struct job){.name = "plans by hand, readv", .body = right, .nranks = 3, .threads = threads, .environment = on});
        job_run(&(struct job){.name = "staged, not read", .body = staged_unread, .nranks = 2, .threads = threads});
        job_run(&(struct job){.name = "staged, not read, small chunks",
                              .body = staged_unread,
                              .nranks = 2,
                              .threads = threads,
                              .environment = small});
        job_run(&(struct job){.name = "a step short: no end", .body = step_short_allreduce, .nranks = 3, .threads = threads});
        job_run(&(struct job){.name = "a step short: wrong", .body = step_short_allgather, .nranks = 3, .threads = threads});
    }
    return jobs_end();
}
