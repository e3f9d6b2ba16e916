/*
 * test_locks.c - moments between threads of a process, held still by the linker's --wrap: a fork while another thread is inside one
 * of the library's locks, and a destroy while a request is on its way back. Links the testing library.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"
#include "harness.h"

/* ---- A fork while a lock is held ---- */

static _Thread_local bool stays; /* this thread stops inside the next lock that it takes */
static _Atomic int inside, leave;

int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);

int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock)
{
    if (stays) {
        stays = false;
        atomic_store(&inside, 1);
        while (!atomic_load(&leave))
            nap(0.0005);
    }
    return __real_pthread_mutex_unlock(lock);
}

static void add(const void *from, void *to, uint64_t count, abc_type type, void *context)
{
    for (uint64_t i = 0; i < count; i++)
        ((float *)to)[i] += ((const float *)from)[i];
}

static void make_op(void)
{
    abc_op op;
    if (abc_op_create(add, 1, NULL, &op) == ABC_OK)
        abc_op_free(op);
}

static void make_memory(void)
{
    void *p;
    if (abc_mem_alloc(5000, &p) == ABC_OK)
        abc_mem_free(p);
}

static void (*const holder[])(void) = {abci_comm_reap, make_op, make_memory};
static const char *const holder_name[] = {"the list of ended communicators", "the table of operations", "the arena"};

static void *hold(void *argument)
{
    stays = true;
    holder[*(int *)argument]();
    stays = false;
    return NULL;
}

/* Everything that takes one of the locks. The exit code says what did not work; a hang ends by the alarm. */
static void child(void)
{
    float x = 3, y = 0;
    abc_op op;
    void *p;
    abc_comm_config config;
    abc_comm *own = NULL;
    alarm(5);
    abc_comm_config_init(&config);
    config.rank = 0;
    config.nranks = 1;
    if (abc_op_create(add, 1, NULL, &op) != ABC_OK)
        _exit(1);
    if (abc_comm_create(&config, &own) != ABC_OK || abc_allreduce(&x, &y, 1, ABC_F32, op, own) != ABC_OK || y != 3)
        _exit(2);
    if (abc_comm_destroy(own) != ABC_OK || abc_op_free(op) != ABC_OK)
        _exit(3);
    _exit(abc_mem_alloc(1000, &p) != ABC_OK || abc_mem_free(p) != ABC_OK ? 4 : 0);
}

static int fork_inside(struct rank *r)
{
    bool ok = true;
    make_op(); /* once before: locks are made known when they are taken first */
    make_memory();
    for (int i = 0; i < 3 && ok; i++) {
        pthread_t thread;
        int state = -1;
        atomic_store(&inside, 0);
        atomic_store(&leave, 0);
        if (!check(r, pthread_create(&thread, NULL, hold, &i) == 0, "no thread"))
            return 1;
        for (double end = now_seconds() + 5; !atomic_load(&inside) && now_seconds() < end;)
            nap(0.0005);
        ok = check(r, atomic_load(&inside), "nobody came inside");
        pid_t pid = ok ? fork() : -1;
        if (pid == 0)
            child();
        atomic_store(&leave, 1);
        pthread_join(thread, NULL);
        ok = ok && check(r, waitpid(pid, &state, 0) == pid, "waitpid");
        ok = ok && check(r, state == 0, "forked while %s was locked, the child ended with %x", holder_name[i], (unsigned)state);
    }
    return !ok;
}

/* ---- A destroy while a request is on its way back ---- */

static int early = ABC_PENDING; /* what a destroy at this moment returns */
static bool destroys;

void __real_abci_request_give(struct abc_comm *comm, struct abc_request *q);
void __wrap_abci_request_give(struct abc_comm *comm, struct abc_request *q);

void __wrap_abci_request_give(struct abc_comm *comm, struct abc_request *q)
{
    if (destroys)
        early = abc_comm_destroy(comm);
    __real_abci_request_give(comm, q);
}

static int destroy_meanwhile(struct rank *r)
{
    int32_t x = 2, sum = 0;
    abc_request *q;
    abc_call call;
    abc_call_init(&call, ABC_ALLREDUCE);
    call.in = &x;
    call.out = &sum;
    call.count = 1;
    call.type = ABC_I32;
    destroys = true;
    bool ok = check_status(r, abc_start(r->comm, &call, &q), ABC_OK, "start") && check_status(r, abc_wait(&q), ABC_OK, "wait");
    ok = ok && check_status(r, early, ABC_ERR_STATE, "destroy while a wait gives its request back");
    ok = ok && check_status(r, abc_request_create(r->comm, &call, &q), ABC_OK, "create");
    ok = ok && check_status(r, abc_request_free(q), ABC_OK, "free");
    destroys = false;
    return !(ok && check_status(r, early, ABC_ERR_STATE, "destroy while a request is freed"));
}

int main(int argc, char **argv)
{
    struct options o;
    options_read(argc, argv, &o);
    job_run(&(struct job){.name = "fork inside a lock", .body = fork_inside, .nranks = 2});
    job_run(&(struct job){.name = "destroy meanwhile", .body = destroy_meanwhile, .nranks = 2});
    return jobs_end();
}
