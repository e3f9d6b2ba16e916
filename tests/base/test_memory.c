/*
 * test_memory.c - the allocator's door, and fault injection: linked with a copy of base that is compiled with it. Walks every pass
 * of a small piece of work, from inside and through the environment.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>

#include "base/base.h"
#include "child.h"

/* Address and thread sanitizer ask for these by name; by default they end the program where malloc would return NULL. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void);

const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void test_alloc(void **state)
{
    (void)state;
    unsigned char *p = abci_alloc(1000);
    assert_non_null(p);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(p[i], 0);
    abci_free(p);
    p = abci_alloc(0);
    assert_non_null(p);
    abci_free(p);
    abci_free(NULL);
    assert_null(abci_alloc(SIZE_MAX / 2));
}

static void test_alloc_aligned(void **state)
{
    (void)state;
    for (size_t alignment = sizeof(void *); alignment <= 65536; alignment *= 2) {
        unsigned char *p = abci_alloc_aligned(100, alignment);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % alignment, 0);
        for (int i = 0; i < 100; i++)
            assert_int_equal(p[i], 0);
        abci_free(p);
    }
    assert_null(abci_alloc_aligned(100, 24));
    assert_null(abci_alloc_aligned(SIZE_MAX / 2, 64));
}

/* Four passes. Returns how many pieces it got; frees all. */
static int work(void)
{
    void *a = abci_alloc(10);
    void *b = abci_alloc_aligned(10, 64);
    char *c = abci_strdup("text");
    int done = (a != NULL) + (b != NULL) + (c && strcmp(c, "text") == 0) + !abci_fault("system call");
    abci_free(a);
    abci_free(b);
    abci_free(c);
    return done;
}

static void test_walk(void **state)
{
    (void)state;
    abci_fault_arm(0);
    assert_int_equal(work(), 4);
    uint64_t total = abci_fault_passes();
    assert_int_equal(total, 4);
    for (uint64_t n = 1; n <= total; n++) {
        abci_fault_arm(n);
        assert_int_equal(work(), 3);
        assert_int_equal(work(), 4); /* once only */
    }
    abci_fault_arm(total + 1);
    assert_int_equal(work(), 4);
}

#define THREADS 4
#define TURNS 2000

static void *pass_many(void *failed)
{
    for (int i = 0; i < TURNS; i++)
        *(int *)failed += abci_fault("thread");
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    int failed[THREADS] = {0}, sum = 0;
    abci_fault_arm(TURNS + 5);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, pass_many, &failed[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        sum += failed[i];
    }
    assert_int_equal(sum, 1);
    assert_int_equal(abci_fault_passes(), THREADS * TURNS);
}

/* The environment counts from the start of a program, so this test starts itself anew. */
static void test_environment(void **state)
{
    char *program = *state, path[] = "/tmp/abcomm-fault-XXXXXX", command[600];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (int n = 0; n <= 5; n++) {
        snprintf(command, sizeof command, "ABCOMM_TEST_FAULT=%d ABCOMM_TEST_FAULT_REPORT=%s '%s' work", n, path, program);
        int code = system(command);
        assert_true(WIFEXITED(code));
        assert_int_equal(WEXITSTATUS(code), n >= 1 && n <= 4 ? 3 : 4);
    }
    char text[64] = "";
    assert_int_equal(read(fd, text, sizeof text - 1), 12);
    assert_string_equal(text, "4\n4\n4\n4\n4\n4\n");
    close(fd);
    unlink(path);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return work();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_alloc_aligned),
        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_threads),
        cmocka_unit_test_prestate(test_environment, argv[0]),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
