/*
 * test_rdv.c - the rendezvous when all goes well or a rank of the job fails: the table, gathers of several sizes, a failing, a
 * dying and an absent rank, one communicator after another on one port. Ranks are threads, or processes where one has to die.
 */
#include "ranks.h"

#include <signal.h>
#include <sys/wait.h>

#define MANY 64

static struct rank ranks[MANY];

/* Run n ranks as threads with the same body; `absent` is left out. */
static void run_job(int n, int absent, const char *address, int (*body)(struct rank *, const abc_exchange *), const void *argument,
                    double timeout)
{
    for (int i = 0; i < n; i++) {
        prepare_rank(&ranks[i], i, n, address, body, argument);
        ranks[i].config.timeout = timeout;
        if (i != absent)
            start_rank(&ranks[i]);
    }
    for (int i = 0; i < n; i++) {
        if (i != absent)
            join_rank(&ranks[i]);
    }
}

static void assert_all_ok(int n)
{
    for (int i = 0; i < n; i++) {
        if (ranks[i].status != ABC_OK)
            fail_msg("rank %d of %d: status %d: %s", i, n, ranks[i].status, ranks[i].text);
    }
}

static int exchange_names(struct rank *rank, const abc_exchange *exchange)
{
    char mine[32], theirs[32], value[32], short_value[2];
    int other = 1 - rank->config.rank, status;
    snprintf(mine, sizeof(mine), "name/%d", rank->config.rank);
    snprintf(theirs, sizeof(theirs), "name/%d", other);
    size_t length = sizeof(value);
    status = exchange->put(exchange->ctx, mine, mine, strlen(mine));
    if (status == ABC_OK)
        status = exchange->wait(exchange->ctx, theirs, 5);
    if (status == ABC_OK)
        status = exchange->get(exchange->ctx, theirs, value, &length);
    if (status != ABC_OK)
        return status;
    if (length != strlen(theirs) || memcmp(value, theirs, length) != 0)
        return abci_error(ABC_ERR_INTERNAL, "wrong value");
    length = sizeof(short_value); /* too small a buffer: an error, and the true length */
    if (exchange->get(exchange->ctx, mine, short_value, &length) != ABC_ERR_ARGUMENT || length != strlen(mine))
        return abci_error(ABC_ERR_INTERNAL, "a short buffer was not refused");
    length = sizeof(value);
    if (exchange->get(exchange->ctx, "no such name", value, &length) != ABC_ERR_ARGUMENT)
        return abci_error(ABC_ERR_INTERNAL, "an unknown name was found");
    if (exchange->wait(exchange->ctx, "never", 0.02) != ABC_ERR_TIMEOUT)
        return abci_error(ABC_ERR_INTERNAL, "a wait for nothing did not time out");
    length = 0;
    return exchange->put(exchange->ctx, "empty", "", 0);
}

static void test_table(void **state)
{
    char address[64];
    free_address(address);
    run_job(2, -1, address, exchange_names, NULL, 10);
    assert_all_ok(2);
}

/* Gather `*argument` bytes a rank twice and check every byte. */
static int gather_bytes(struct rank *rank, const abc_exchange *exchange)
{
    size_t length = *(const size_t *)rank->argument;
    int n = rank->config.nranks, status = ABC_OK;
    unsigned char *mine = malloc(length + 1), *all = malloc(length * (size_t)n + 1);
    for (int round = 0; round < 2 && status == ABC_OK; round++) {
        memset(mine, rank->config.rank * 3 + round + 1, length);
        status = abci_exchange_gather(exchange, round ? "second" : "first", rank->config.rank, n, ABC_OK, mine, length, all,
                                      rank->config.timeout);
        for (size_t i = 0; i < length * (size_t)n && status == ABC_OK; i++) {
            if (all[i] != (unsigned char)((int)(i / length) * 3 + round + 1))
                status = abci_error(ABC_ERR_INTERNAL, "byte %zu of round %d is wrong", i, round);
        }
    }
    free(mine);
    free(all);
    return status;
}

static void test_gather(void **state)
{
    static const int counts[] = {1, 2, 9, 64};
    static const size_t lengths[] = {0, 8, 4096};
    char address[64];
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 3; j++) {
            free_address(address);
            run_job(counts[i], -1, address, gather_bytes, &lengths[j], 20);
            assert_all_ok(counts[i]);
        }
    }
}

/* Rank *argument brings an error of its own. */
static int gather_with_failure(struct rank *rank, const abc_exchange *exchange)
{
    int n = rank->config.nranks, status = ABC_OK, bad = *(const int *)rank->argument;
    int mine = rank->config.rank, all[MANY];
    if (rank->config.rank == bad)
        status = abci_error(ABC_ERR_MEMORY, "no room for the frobnicator");
    return abci_exchange_gather(exchange, "g", rank->config.rank, n, status, &mine, sizeof(mine), all, rank->config.timeout);
}

static void check_failure(int n, int bad, int absent)
{
    char name[32];
    snprintf(name, sizeof(name), "rank %d ", bad);
    for (int i = 0; i < n; i++) {
        if (i == absent)
            continue;
        if (i == bad)
            assert_int_equal(ranks[i].status, ABC_ERR_MEMORY);
        else
            assert_int_equal(ranks[i].status, ABC_ERR_PEER);
        if (i != bad)
            assert_mentions(ranks[i].text, name);
        assert_mentions(ranks[i].text, "frobnicator");
        assert_true(ranks[i].seconds < 3);
    }
}

static void test_failing_rank(void **state)
{
    char address[64];
    for (int bad = 0; bad < 3; bad++) {
        free_address(address);
        run_job(5, -1, address, gather_with_failure, &bad, 20);
        check_failure(5, bad, -1);
    }
    /* Rank 1 never comes; that must not hide that rank 3 has failed. */
    int bad = 3;
    free_address(address);
    run_job(5, 1, address, gather_with_failure, &bad, 20);
    check_failure(5, bad, 1);
}

static int gather_rank(struct rank *rank, const abc_exchange *exchange)
{
    int mine = rank->config.rank, all[MANY];
    return abci_exchange_gather(exchange, "g", mine, rank->config.nranks, ABC_OK, &mine, sizeof(mine), all, rank->config.timeout);
}

/* Rank 1 arrives, and then stands still; rank 2 is the first whose time is over. */
static int gather_without_one(struct rank *rank, const abc_exchange *exchange)
{
    static const double patience[] = {1, 0, 0.2};
    int mine = rank->config.rank, all[MANY];
    if (mine == 1)
        usleep(500000);
    return mine == 1 ? ABC_OK : abci_exchange_gather(exchange, "g/7", mine, 3, ABC_OK, &mine, sizeof(mine), all, patience[mine]);
}

static void test_late_rank(void **state)
{
    char address[64];
    free_address(address);
    run_job(3, -1, address, gather_without_one, NULL, 5);
    assert_int_equal(ranks[2].status, ABC_ERR_TIMEOUT);
    assert_mentions(ranks[2].text, "rank 1 has not got so far");
}

static void test_absent_rank(void **state)
{
    char address[64];
    free_address(address);
    run_job(4, 2, address, gather_rank, NULL, 0.6);
    for (int i = 0; i < 4; i++) {
        if (i == 2)
            continue;
        assert_int_equal(ranks[i].status, ABC_ERR_TIMEOUT);
        assert_mentions(ranks[i].text, "rank 2 of 4 has not arrived");
        assert_true(ranks[i].seconds < 3);
    }
}

static void test_absent_rank_zero(void **state)
{
    char address[64];
    free_address(address);
    run_job(3, 0, address, gather_rank, NULL, 0.4);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(ranks[i].status, ABC_ERR_TIMEOUT);
        assert_mentions(ranks[i].text, "rank 0");
        assert_mentions(ranks[i].text, address);
        assert_true(ranks[i].seconds < 2);
    }
}

/* A process that joins as `number`, tells so through a pipe, and stays until it is killed; a forked child of it holds on. */
static pid_t start_victim(int number, int nranks, const char *address, bool forks)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct rank self;
        struct abci_rendezvous *rdv;
        abc_exchange exchange;
        prepare_rank(&self, number, nranks, address, NULL, NULL);
        if (abci_rendezvous_open(&self.config, &rdv, &exchange) != ABC_OK)
            _exit(1);
        if (forks && fork() == 0) {
            close(ready[0]);
            close(ready[1]);
            sleep(4);
            _exit(0);
        }
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    close(ready[1]);
    if (nranks > 1 && number == 0)
        assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void check_dying_rank(bool forks)
{
    char address[64];
    free_address(address);
    pid_t victim = start_victim(1, 3, address, forks);
    for (int i = 0; i < 3; i += 2) {
        prepare_rank(&ranks[i], i, 3, address, gather_rank, NULL);
        start_rank(&ranks[i]);
    }
    usleep(200000);
    assert_int_equal(kill(victim, SIGKILL), 0);
    for (int i = 0; i < 3; i += 2)
        join_rank(&ranks[i]);
    assert_int_equal(waitpid(victim, NULL, 0), victim);
    for (int i = 0; i < 3; i += 2) {
        assert_int_equal(ranks[i].status, ABC_ERR_PEER);
        assert_mentions(ranks[i].text, "rank 1 ");
        assert_true(ranks[i].seconds < 2);
    }
}

static void test_dying_rank(void **state)
{
    check_dying_rank(false);
}

static void test_dying_rank_whose_child_lives(void **state)
{
    check_dying_rank(true);
}

static void test_dying_rank_zero(void **state)
{
    char address[64];
    free_address(address);
    pid_t victim = start_victim(0, 3, address, true);
    for (int i = 1; i < 3; i++) {
        prepare_rank(&ranks[i], i, 3, address, gather_rank, NULL);
        start_rank(&ranks[i]);
    }
    usleep(200000);
    assert_int_equal(kill(victim, SIGKILL), 0);
    for (int i = 1; i < 3; i++) {
        join_rank(&ranks[i]);
        assert_int_equal(ranks[i].status, ABC_ERR_PEER);
        assert_mentions(ranks[i].text, "rank 0 ");
        assert_true(ranks[i].seconds < 2);
    }
    assert_int_equal(waitpid(victim, NULL, 0), victim);
}

/* One rank's life through many communicators on the same port. */
struct series {
    int rank, rounds, listen_fd;
    const char *address;
    int status;
    char text[1024];
};

static void *run_series(void *argument)
{
    struct series *series = argument;
    for (int i = 0; i < series->rounds && series->status == ABC_OK; i++) {
        struct rank self;
        prepare_rank(&self, series->rank, 3, series->address, gather_rank, NULL);
        self.config.listen_fd = series->listen_fd;
        self.config.timeout = 30; /* with a hundred busy threads beside it one creation took 2 s */
        run_rank(&self);
        series->status = self.status;
        snprintf(series->text, sizeof(series->text), "round %d: %.900s", i, self.text);
    }
    return NULL;
}

static void check_series(bool inherited)
{
    char address[64];
    int fd = listen_anywhere(address);
    if (!inherited)
        close(fd);
    struct series all[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        all[i] = (struct series){.rank = i, .rounds = 50, .address = address, .listen_fd = i == 0 && inherited ? fd : -1};
        assert_int_equal(pthread_create(&threads[i], NULL, run_series, &all[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    bool good = true;
    for (int i = 0; i < 3; i++) { /* all: the first to fail is not always the one that the others name */
        if (all[i].status != ABC_OK)
            print_error("rank %d: %d: %s\n", i, all[i].status, all[i].text);
        good = good && all[i].status == ABC_OK;
    }
    assert_true(good);
    if (inherited)
        close(fd);
}

static void test_one_after_another(void **state)
{
    check_series(false);
}

static void test_one_after_another_inherited(void **state)
{
    check_series(true);
}

static void test_creation_time(void **state)
{
    char address[64];
    double best = 10;
    size_t length = 256;
    for (int i = 0; i < 5; i++) {
        free_address(address);
        double start = abci_now();
        run_job(8, -1, address, gather_bytes, &length, 10);
        assert_all_ok(8);
        best = abci_now() - start < best ? abci_now() - start : best;
    }
    print_message("8 ranks, 2 gathers, open to close: %.1f ms\n", best * 1e3);
    assert_true(best < 1.5);
}

static void test_no_descriptor_leak(void **state)
{
    char address[64];
    size_t length = 8;
    int before = open_descriptors();
    for (int i = 0; i < 10; i++) {
        free_address(address);
        run_job(3, i % 2 ? 2 : -1, address, gather_bytes, &length, i % 2 ? 0.05 : 5);
    }
    assert_int_equal(open_descriptors(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_gather),
        cmocka_unit_test(test_failing_rank),
        cmocka_unit_test(test_late_rank),
        cmocka_unit_test(test_absent_rank),
        cmocka_unit_test(test_absent_rank_zero),
        cmocka_unit_test(test_dying_rank),
        cmocka_unit_test(test_dying_rank_whose_child_lives),
        cmocka_unit_test(test_dying_rank_zero),
        cmocka_unit_test(test_one_after_another),
        cmocka_unit_test(test_one_after_another_inherited),
        cmocka_unit_test(test_creation_time),
        cmocka_unit_test(test_no_descriptor_leak),
    };
    return cmocka_run_group_tests_name("rendezvous", tests, NULL, NULL);
}
