/*
 * fuzz_addresses.c - rendezvous addresses and lists of interfaces come from users and launchers. Whatever the text: no crash, a
 * refusal says why and leaves the result alone, and an accepted address is one that can be written down and read again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/launch.h"
#include "comm/rendezvous.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void check_address(const char *text)
{
    struct abci_address address = {.host = "untouched"}, again;
    char back[300];
    if (abci_address_parse(text, &address) != ABC_OK) {
        require(strlen(abc_last_error()) > 20);
        return;
    }
    require(memchr(address.host, 0, sizeof address.host) && address.host[0] != 0);
    require(memchr(address.port, 0, sizeof address.port) != NULL);
    if (address.port[0] == 0) {
        require(address.host[0] == '@');
        snprintf(back, sizeof back, "unix:%s", address.host);
    } else {
        require(atoi(address.port) >= 1 && atoi(address.port) <= 65535);
        bool bracket = strchr(address.host, ':') != NULL || address.host[0] == '[';
        snprintf(back, sizeof back, "%s%s%s:%s", bracket ? "[" : "", address.host, bracket ? "]" : "", address.port);
    }
    require(abci_address_parse(back, &again) == ABC_OK);
    require(strcmp(again.host, address.host) == 0 && strcmp(again.port, address.port) == 0);
}

static void check_interface(const char *spec)
{
    char host[232] = "";
    if (abci_interface_host(spec, host, sizeof host) == ABC_OK)
        require(host[0] != 0 && memchr(host, 0, sizeof host));
    else
        require(strlen(abc_last_error()) > 20);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = 0;
    check_address(text);
    check_interface(text);
    free(text);
    return 0;
}
