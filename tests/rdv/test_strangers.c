/*
 * test_strangers.c - who is not of the job: garbage, silence, a wrong key, a rank twice, a flood of connections, another job on
 * the port, addresses that cannot be used. The job itself must not notice any of them. Also the frames on their own.
 */
#include "ranks.h"

#include <errno.h>
#include <poll.h>

#include <sodium.h>

#include "comm/frames.h"

#define FLOOD 200

static int connect_raw(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1));
    for (int i = 0; i < 200; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fd >= 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
            return fd;
        close(fd);
        usleep(5000);
    }
    fail_msg("cannot connect to %s", address);
    return -1;
}

/* Whether the peer closes within some seconds, whatever it says before. */
static bool is_closed(int fd, double seconds)
{
    char bytes[512];
    double deadline = abci_now() + seconds;
    while (abci_now() < deadline) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        if (poll(&one, 1, 50) > 0 && recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) <= 0)
            return true;
    }
    return false;
}

static int gather_rank(struct rank *rank, const abc_exchange *exchange)
{
    int mine = rank->config.rank, all[16];
    return abci_exchange_gather(exchange, "g", mine, rank->config.nranks, ABC_OK, &mine, sizeof(mine), all, rank->config.timeout);
}

static struct rank job[3];

/* Ranks 0 and 1 of three are there and wait; rank 2 comes with finish_job. */
static void start_job(const char *address)
{
    for (int i = 0; i < 3; i++)
        prepare_rank(&job[i], i, 3, address, gather_rank, NULL);
    start_rank(&job[0]);
    start_rank(&job[1]);
    usleep(100000);
}

static void finish_job(void)
{
    start_rank(&job[2]);
    for (int i = 0; i < 3; i++)
        join_rank(&job[i]);
    for (int i = 0; i < 3; i++) {
        if (job[i].status != ABC_OK)
            fail_msg("rank %d: %d: %s", i, job[i].status, job[i].text);
    }
}

static void test_garbage(void **state)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char address[64];
    unsigned char frame[ABCI_FRAME_SMALL + 64];
    free_address(address);
    start_job(address);
    int web = connect_raw(address), early = connect_raw(address), huge = connect_raw(address), half = connect_raw(address);
    assert_true(send(web, request, sizeof(request), MSG_NOSIGNAL) > 0);
    /* A request before the hello, a frame that claims a large body, half a header and then silence. */
    size_t bytes = abci_frame_build_request(frame, ABCI_FRAME_GET, "g/r1", 0, NULL, 0, NULL);
    assert_true(send(early, frame, bytes, MSG_NOSIGNAL) > 0);
    memcpy(frame + 8, "\xff\xff\xff\x7f", 4);
    assert_true(send(huge, frame, ABCI_FRAME_HEADER, MSG_NOSIGNAL) > 0);
    assert_true(send(half, frame, 6, MSG_NOSIGNAL) > 0);
    assert_true(is_closed(web, 2));
    assert_true(is_closed(early, 2));
    assert_true(is_closed(huge, 2));
    finish_job();
    close(web);
    close(early);
    close(huge);
    close(half);
}

static void test_silence_is_dropped(void **state)
{
    char address[64];
    free_address(address);
    start_job(address);
    int silent = connect_raw(address), slow = connect_raw(address);
    double start = abci_now();
    /* One byte now and then does not prolong the five seconds. */
    for (int i = 0; i < 12 && abci_now() - start < 5.6; i++) {
        send(slow, &"ABCR\1\2\0\0\130\0\0\0"[i], 1, MSG_NOSIGNAL);
        usleep(460000);
    }
    assert_true(is_closed(silent, 0.5));
    assert_true(is_closed(slow, 0.5));
    finish_job();
    close(silent);
    close(slow);
}

static void test_wrong_key_and_taken_rank(void **state)
{
    char address[64];
    struct rank stranger, twin, unknown;
    free_address(address);
    start_job(address);
    prepare_rank(&stranger, 2, 3, address, gather_rank, NULL);
    stranger.config.key = other_key;
    prepare_rank(&twin, 1, 3, address, gather_rank, NULL);
    prepare_rank(&unknown, 5, 7, address, gather_rank, NULL);
    start_rank(&stranger);
    start_rank(&twin);
    start_rank(&unknown);
    join_rank(&stranger);
    join_rank(&twin);
    join_rank(&unknown);
    assert_int_equal(stranger.status, ABC_ERR_AUTH);
    assert_mentions(stranger.text, "job key is different");
    assert_int_equal(twin.status, ABC_ERR_ENVIRONMENT);
    assert_mentions(twin.text, "already come as rank 1");
    assert_int_equal(unknown.status, ABC_ERR_ENVIRONMENT);
    assert_mentions(unknown.text, "not rank 5 of 7");
    finish_job();
}

/* A service that knows the job's name but not the key, and one that is no service at all. */
static void test_false_service(void **state)
{
    char address[64];
    struct rank client;
    int fd = listen_anywhere(address);
    prepare_rank(&client, 1, 2, address, gather_rank, NULL);
    client.config.timeout = 1;
    start_rank(&client);
    double deadline = abci_now() + 3;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    bool told = false;
    while (!told && abci_now() < deadline && poll(&one, 1, 1200) > 0) {
        unsigned char frame[ABCI_FRAME_SMALL], nonce[ABCI_FRAME_NONCE] = {0};
        int peer = accept(fd, NULL, NULL);
        assert_true(send(peer, frame, abci_frame_build(frame, ABCI_FRAME_CHALLENGE, nonce, sizeof(nonce), NULL), MSG_NOSIGNAL) > 0);
        told = recv(peer, frame, sizeof(frame), 0) <= 0;
        send(peer, frame, abci_frame_build(frame, ABCI_FRAME_WELCOME, nonce, sizeof(nonce), NULL), MSG_NOSIGNAL);
        close(peer);
    }
    join_rank(&client);
    assert_int_equal(client.status, ABC_ERR_AUTH);
    assert_mentions(client.text, "cannot prove the job key");
    close(fd);
}

static void test_flood(void **state)
{
    char address[64];
    int fds[FLOOD];
    int before = open_descriptors();
    free_address(address);
    start_job(address);
    for (int i = 0; i < FLOOD; i++)
        fds[i] = connect_raw(address);
    usleep(100000);
    int most = open_descriptors() - before;
    assert_true(most <= FLOOD + 3 + 64 + 16); /* the service has closed the oldest */
    assert_true(is_closed(fds[0], 1));
    finish_job();
    for (int i = 0; i < FLOOD; i++)
        close(fds[i]);
    assert_int_equal(open_descriptors(), before);
}

static void test_ipv6(void **state)
{
    char address[64], six[64];
    struct sockaddr_in6 loop = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&loop, sizeof(loop)) != 0) {
        close(fd);
        print_message("skipped: this machine has no IPv6 loopback\n");
        skip();
    }
    close(fd);
    free_address(address);
    snprintf(six, sizeof(six), "[::1]%s", strchr(address, ':'));
    start_job(six);
    finish_job();
    snprintf(six, sizeof(six), "localhost%s", strchr(address, ':')); /* either family */
    start_job(six);
    finish_job();
}

static void test_busy_port(void **state)
{
    char address[64];
    struct rank zero;
    int fd = listen_anywhere(address);
    prepare_rank(&zero, 0, 2, address, gather_rank, NULL);
    run_rank(&zero);
    assert_int_equal(zero.status, ABC_ERR_ADDRESS);
    assert_mentions(zero.text, strchr(address, ':') + 1);
    assert_mentions(zero.text, "choose another port");
    assert_true(zero.seconds < 3);
    close(fd);
}

/* A job whose rank 1 never came is given up, and another job starts on its port while the first still ends. */
static void test_restart_with_another_key(void **state)
{
    char address[64];
    struct rank old, fresh[2];
    free_address(address);
    prepare_rank(&old, 0, 2, address, gather_rank, NULL);
    old.config.timeout = 0.5;
    start_rank(&old);
    usleep(100000);
    for (int i = 0; i < 2; i++) {
        prepare_rank(&fresh[i], i, 2, address, gather_rank, NULL);
        fresh[i].config.key = other_key;
    }
    start_rank(&fresh[1]);
    join_rank(&old);
    assert_int_equal(old.status, ABC_ERR_TIMEOUT);
    start_rank(&fresh[0]);
    for (int i = 0; i < 2; i++) {
        join_rank(&fresh[i]);
        if (fresh[i].status != ABC_OK)
            fail_msg("rank %d: %s", i, fresh[i].text);
    }
}

static void test_without_key(void **state)
{
    char address[64];
    struct rank zero, one;
    free_address(address);
    prepare_rank(&zero, 0, 2, address, gather_rank, NULL);
    prepare_rank(&one, 1, 2, address, gather_rank, NULL);
    zero.config.key = one.config.key = NULL;
    start_rank(&zero);
    start_rank(&one);
    join_rank(&zero);
    join_rank(&one);
    assert_int_equal(zero.status, ABC_OK);
    assert_int_equal(one.status, ABC_OK);
    static const char *const open_addresses[] = {"0.0.0.0:5000", "[::]:5000", "192.0.2.1:5000", "[2001:db8::1]:5000"};
    for (size_t i = 0; i < 8; i++) {
        prepare_rank(&one, (int)i % 2, 2, open_addresses[i / 2], gather_rank, NULL);
        one.config.key = NULL;
        run_rank(&one);
        assert_int_equal(one.status, ABC_ERR_AUTH);
        assert_mentions(one.text, "/dev/urandom > key");
    }
}

static void test_bad_addresses(void **state)
{
    static const char *const bad[] = {
        "",        "localhost", "localhost:", "localhost:0", "localhost:65536",  "localhost:12x", ":5000",
        "::1:500", "[::1]5000", "[::1",       "[]:500",      "host.invalid:500", "127.0.0.1:-1"};
    struct rank one;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        prepare_rank(&one, 1, 2, bad[i], gather_rank, NULL);
        run_rank(&one);
        if (one.status != ABC_ERR_ADDRESS)
            fail_msg("\"%s\" gave status %d: %s", bad[i], one.status, one.text);
    }
}

static void test_frames(void **state)
{
    unsigned char bytes[ABCI_FRAME_SMALL];
    struct abci_frame frame;
    struct abci_frame_request request;
    struct abci_frame_session session;
    struct abci_frame_hello hello = {.rank = 3, .nranks = 4};
    unsigned char nonce[ABCI_FRAME_NONCE] = {7};
    abci_frame_session(test_key, nonce, &hello, &session);
    struct abci_frame_channel receiver = session.to_server, wrong = session.to_client;
    size_t total = abci_frame_build_request(bytes, ABCI_FRAME_PUT, "name", 0, "value", 5, &session.to_server);
    for (size_t length = 0; length < total; length++)
        assert_int_equal(abci_frame_parse(bytes, length, &frame), ABCI_FRAME_MORE);
    assert_int_equal(abci_frame_parse(bytes, total, &frame), ABCI_FRAME_OK);
    assert_true(abci_frame_read_request(&frame, &request));
    assert_string_equal(request.name, "name");
    assert_int_equal(request.length, 5);
    assert_false(abci_frame_verify(&frame, bytes, &wrong));
    for (size_t i = 0; i < total; i++) { /* no byte may change */
        bytes[i] ^= 1;
        if (abci_frame_parse(bytes, total, &frame) == ABCI_FRAME_OK)
            assert_false(abci_frame_verify(&frame, bytes, &receiver));
        bytes[i] ^= 1;
    }
    assert_int_equal(abci_frame_parse(bytes, total, &frame), ABCI_FRAME_OK);
    assert_true(abci_frame_verify(&frame, bytes, &receiver));
    assert_false(abci_frame_verify(&frame, bytes, &receiver)); /* nor may the frame come twice */
    bytes[4] = ABCI_FRAME_VERSION + 1;
    assert_int_equal(abci_frame_parse(bytes, total, &frame), ABCI_FRAME_OTHER);
    assert_int_equal(abci_frame_parse((const unsigned char *)"GET", 3, &frame), ABCI_FRAME_ALIEN);
}

int main(void)
{
    if (sodium_init() < 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_silence_is_dropped),
        cmocka_unit_test(test_wrong_key_and_taken_rank),
        cmocka_unit_test(test_false_service),
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_busy_port),
        cmocka_unit_test(test_restart_with_another_key),
        cmocka_unit_test(test_without_key),
        cmocka_unit_test(test_bad_addresses),
    };
    return cmocka_run_group_tests_name("strangers", tests, NULL, NULL);
}
