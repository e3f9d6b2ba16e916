/*
 * test_collectives.c - every collective against the scalar reference, bit for bit: a sample that covers all pairs of collective,
 * type, operation, size, place, alignment, memory, algorithm, root, way of calling, number of ranks, ranks as processes or threads,
 * progress thread, process_vm_readv, chunk, pipeline, stores and instruction set. `--full` goes on at random for half an hour.
 */
#include <stdio.h>
#include <stdlib.h>

#include "run_case.h"

#define CASES 120

struct plan_of_job {
    struct one_case one[CASES];
    size_t bytes; /* of the largest */
};

static int body(struct rank *r)
{
    struct plan_of_job *plan = r->argument;
    struct buffers buffers;
    bool ok = buffers_open(r, &buffers, plan->bytes);
    for (int i = 0; i < CASES && ok; i++) {
        random_nap(r, 100);
        ok = run_case(r, &buffers, &plan->one[i]);
    }
    if (ok)
        buffers_close(&buffers);
    return ok ? 0 : 1;
}

/* The operations belong to the process: threads share them. The parent may make them, as it makes no communicator. */
static bool one_job(struct sample *s, int number, bool greedy, uint64_t seed)
{
    struct plan_of_job *plan = calloc(1, sizeof *plan);
    struct vector setting, v;
    char text[8][64], name[64];
    const char *environment[8];
    if (!plan)
        abort();
    sample_setting(s, &setting);
    for (int i = 0; i < CASES; i++) {
        v = setting;
        sample_case(s, &v, greedy);
        case_of(&v, seed + (uint64_t)number * CASES + (uint64_t)i, &plan->one[i]);
        size_t need = case_bytes(&plan->one[i], setting_ranks(&setting));
        plan->bytes = need > plan->bytes ? need : plan->bytes;
    }
    setting_environment(&setting, text, environment);
    snprintf(name, sizeof name, "collectives %d", number);
    struct job job = {.name = name, .body = body, .argument = plan, .nranks = setting_ranks(&setting), .environment = environment};
    job.threads = setting.level[D_THREADS] == 1 || setting.level[D_THREADS] == 2;
    job.progress = setting.level[D_THREADS] >= 2;
    bool ok = job_run(&job);
    free(plan);
    return ok;
}

int main(int argc, char **argv)
{
    struct options o;
    options_read(argc, argv, &o);
    struct sample *s = sample_open(o.seed);
    unsigned long seen, possible;
    ops_open();
    double start = now_seconds();
    int jobs = 0, failed = 0;
    for (; failed < 5 && (o.full ? now_seconds() - start < 1800 : jobs < 45); jobs++)
        failed += !one_job(s, jobs, jobs < 200, o.seed);
    sample_report(s, &seen, &possible);
    ops_close();
    sample_close(s);
    printf("%d cases, %lu of %lu pairs\n", jobs * CASES, seen, possible);
    return jobs_end();
}
