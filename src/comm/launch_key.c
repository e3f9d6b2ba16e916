/*
 * launch_key.c - the job key: read from a descriptor or a file that others cannot read, and made into the key of the rendezvous.
 * Part of launch.c's first step of communicator creation. Any thread, any number of times; reads the descriptor without moving it.
 */
#include "comm/exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
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
