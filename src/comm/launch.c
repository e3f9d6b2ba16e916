/*
 * launch.c - where this process stands in its job: rank, size, address and key from the environment, as `abcomm run` or a user
 * sets them. First step of communicator creation (comm.c) when the caller names no rank. Any thread, any number of times; reads
 * the key from its descriptor without moving it.
 */
#include "comm/exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#include "base/base.h"

#define KEY_LEAST 16
#define KEY_MOST 4096

int abci_key_derive(const void *material, size_t length, unsigned char key[ABCI_KEY_BYTES])
{
    static const char purpose[] = "abcomm job key";
    if (material == NULL || length < KEY_LEAST)
        return abci_error(ABC_ERR_AUTH, "the job key has %zu bytes; %d or more are needed", material != NULL ? length : 0,
                          KEY_LEAST);
    if (sodium_init() < 0)
        return abci_error(ABC_ERR_SYSTEM, "libsodium cannot be initialised (no source of random numbers)");
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, ABCI_KEY_BYTES);
    crypto_generichash_update(&state, (const unsigned char *)purpose, sizeof(purpose));
    crypto_generichash_update(&state, material, length);
    crypto_generichash_final(&state, key, ABCI_KEY_BYTES);
    sodium_memzero(&state, sizeof(state));
    return ABC_OK;
}

/* Key material from an open descriptor, from its beginning, whatever its position. `what` names it in errors. */
static int read_key(int fd, const char *what, unsigned char key[ABCI_KEY_BYTES])
{
    unsigned char material[KEY_MOST + 1];
    size_t length = 0;
    while (length < sizeof(material)) {
        ssize_t got =
            abci_fault("read key") ? (errno = EIO, -1) : pread(fd, material + length, sizeof(material) - length, (off_t)length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return abci_error_errno(ABC_ERR_AUTH, "the job key cannot be read from %s", what);
        if (got == 0)
            break;
        length += (size_t)got;
    }
    int status = ABC_OK;
    if (length < KEY_LEAST || length > KEY_MOST)
        status =
            abci_error(ABC_ERR_AUTH, "the job key in %s has %s%zu bytes; %d to %d are allowed", what,
                       length > KEY_MOST ? "more than " : "", length > KEY_MOST ? (size_t)KEY_MOST : length, KEY_LEAST, KEY_MOST);
    else
        status = abci_key_derive(material, length, key);
    sodium_memzero(material, sizeof(material));
    return status;
}

/* A key file that others can read is no secret. */
static int check_key_file(int fd, const char *path)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return abci_error_errno(ABC_ERR_AUTH, "ABCOMM_KEY_FILE=%.200s cannot be examined", path);
    if (!S_ISREG(info.st_mode))
        return abci_error(ABC_ERR_AUTH, "ABCOMM_KEY_FILE=%.200s is not a regular file", path);
    if (info.st_mode & 0177)
        return abci_error(ABC_ERR_AUTH, "ABCOMM_KEY_FILE=%.200s has mode %04o and may be read by others; run: chmod 600 %.200s",
                          path, (unsigned)(info.st_mode & 07777), path);
    if (info.st_uid != geteuid())
        return abci_error(ABC_ERR_AUTH, "ABCOMM_KEY_FILE=%.200s belongs to user %u, not to user %u who runs this", path,
                          (unsigned)info.st_uid, (unsigned)geteuid());
    return ABC_OK;
}

static int read_key_file(const char *path, unsigned char key[ABCI_KEY_BYTES])
{
    char what[256];
    /* Without O_NONBLOCK a named pipe in that place would hang. */
    int fd = abci_fault("open key") ? (errno = EMFILE, -1) : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return abci_error_errno(ABC_ERR_AUTH, "ABCOMM_KEY_FILE=%.200s cannot be opened", path);
    snprintf(what, sizeof(what), "ABCOMM_KEY_FILE=%.200s", path);
    int status = check_key_file(fd, path);
    if (status == ABC_OK)
        status = read_key(fd, what, key);
    close(fd);
    return status;
}

int abci_launch_key(int *have_key, unsigned char key[ABCI_KEY_BYTES])
{
    int status = abci_settings_load();
    if (status != ABC_OK)
        return status;
    int fd = (int)abci_setting_int(ABCI_SET_KEY_FD);
    const char *path = abci_setting_string(ABCI_SET_KEY_FILE);
    *have_key = 0;
    if (fd >= 0 && path[0] != '\0')
        return abci_error(ABC_ERR_ENVIRONMENT, "ABCOMM_KEY_FD=%d and ABCOMM_KEY_FILE=%.200s are both set; unset one", fd, path);
    if (fd >= 0) {
        char what[64];
        snprintf(what, sizeof(what), "ABCOMM_KEY_FD=%d", fd);
        status = read_key(fd, what, key);
    } else if (path[0] != '\0') {
        status = read_key_file(path, key);
    } else {
        return ABC_OK;
    }
    *have_key = status == ABC_OK;
    return status;
}

/* All that is needed must be there. */
static int check_complete(int64_t rank, int64_t size, const char *address)
{
    char missing[96] = "";
    size_t used = 0;
    const struct {
        const char *name;
        bool absent;
    } needed[] = {{"ABCOMM_RANK", rank < 0}, {"ABCOMM_SIZE", size < 0}, {"ABCOMM_ADDR", address[0] == '\0' && size != 1}};
    int count = 0;
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        if (!needed[i].absent)
            continue;
        used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%s%s", count++ > 0 ? ", " : "", needed[i].name);
    }
    if (count == 3)
        return abci_error(ABC_ERR_ENVIRONMENT, "this process is not part of a job: %s are not set", missing);
    if (count > 0)
        return abci_error(ABC_ERR_ENVIRONMENT, "the environment describes a job only in part: %s %s not set", missing,
                          count > 1 ? "are" : "is");
    if (size < 1)
        return abci_error(ABC_ERR_ENVIRONMENT, "ABCOMM_SIZE=%lld is not a number of ranks", (long long)size);
    if (rank >= size)
        return abci_error(ABC_ERR_ENVIRONMENT, "ABCOMM_RANK=%lld does not fit ABCOMM_SIZE=%lld: ranks are 0 to %lld",
                          (long long)rank, (long long)size, (long long)size - 1);
    return ABC_OK;
}

/* The launcher's listening socket; programs that this one starts must not inherit it. */
static int check_listener(int rank, int fd)
{
    int listening = 0;
    socklen_t length = sizeof(listening);
    if (fd < 0)
        return ABC_OK;
    if (rank != 0)
        return abci_error(ABC_ERR_ENVIRONMENT, "ABCOMM_LISTEN_FD=%d is set on rank %d; only rank 0 listens", fd, rank);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 || !listening)
        return abci_error(ABC_ERR_ENVIRONMENT, "ABCOMM_LISTEN_FD=%d is not a listening socket; it is set by abcomm run only", fd);
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return abci_error_errno(ABC_ERR_SYSTEM, "cannot keep ABCOMM_LISTEN_FD=%d from child programs", fd);
    return ABC_OK;
}

int abci_launch_detect(struct abci_launch *launch)
{
    int status = abci_settings_load();
    if (status != ABC_OK)
        return status;
    int64_t rank = abci_setting_int(ABCI_SET_RANK), size = abci_setting_int(ABCI_SET_SIZE);
    const char *address = abci_setting_string(ABCI_SET_ADDR);
    status = check_complete(rank, size, address);
    if (status != ABC_OK)
        return status;
    struct abci_launch found = {.rank = (int)rank, .nranks = (int)size, .listen_fd = (int)abci_setting_int(ABCI_SET_LISTEN_FD)};
    if (strlen(address) >= sizeof(found.address))
        return abci_error(ABC_ERR_ENVIRONMENT, "ABCOMM_ADDR has %zu bytes; at most %zu are allowed", strlen(address),
                          sizeof(found.address) - 1);
    memcpy(found.address, address, strlen(address));
    status = check_listener(found.rank, found.listen_fd);
    if (status == ABC_OK)
        status = abci_launch_key(&found.have_key, found.key);
    if (status == ABC_OK)
        *launch = found;
    sodium_memzero(&found, sizeof(found));
    return status;
}
