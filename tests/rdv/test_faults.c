/*
 * test_faults.c - every allocation and system call of the rendezvous fails once, in turn. Whatever fails: all ranks come back in
 * time, no descriptor stays open, and who reports success has right values. Faults are compiled in here.
 */
#include "ranks.h"

#define RANKS 3

static int gather_rank(struct rank *rank, const abc_exchange *exchange)
{
    int mine = rank->config.rank, all[RANKS];
    int status = abci_exchange_gather(exchange, "g", mine, RANKS, ABC_OK, &mine, sizeof(mine), all, rank->config.timeout);
    for (int i = 0; i < RANKS && status == ABC_OK; i++) {
        if (all[i] != i)
            status = abci_error(ABC_ERR_INTERNAL, "a wrong value was reported as success");
    }
    return status;
}

static void run_once(struct rank *ranks, const char *address, int listen_fd)
{
    for (int i = 0; i < RANKS; i++) {
        prepare_rank(&ranks[i], i, RANKS, address, gather_rank, NULL);
        ranks[i].config.timeout = 0.3; /* what a rank that misses another one waits */
        ranks[i].config.listen_fd = i == 0 ? listen_fd : -1;
        start_rank(&ranks[i]);
    }
    for (int i = 0; i < RANKS; i++)
        join_rank(&ranks[i]);
}

static void test_each_call_fails(void **state)
{
    struct rank ranks[RANKS];
    char address[64];
    int failures = 0;
    int fd = listen_anywhere(address);
    abci_fault_arm(0);
    run_once(ranks, address, fd);
    uint64_t passes = abci_fault_passes();
    int before = open_descriptors();
    for (uint64_t n = 1; n <= passes; n++) {
        bool inherited = n % 2 == 0;
        char own[64];
        free_address(own);
        abci_fault_arm(n);
        run_once(ranks, inherited ? address : own, inherited ? fd : -1);
        for (int i = 0; i < RANKS; i++) {
            failures += ranks[i].status != ABC_OK;
            assert_int_not_equal(ranks[i].status, ABC_ERR_INTERNAL);
            assert_true(ranks[i].seconds < 4);
            if (ranks[i].status != ABC_OK)
                assert_true(ranks[i].text[0] != '\0');
        }
        assert_int_equal(open_descriptors(), before);
    }
    abci_fault_arm(0);
    print_message("%d calls failed in turn, %d ranks reported it\n", (int)passes, failures);
    assert_true(failures > 0);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_call_fails)};
    return cmocka_run_group_tests_name("rendezvous faults", tests, NULL, NULL);
}
