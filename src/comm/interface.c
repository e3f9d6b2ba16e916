/*
 * interface.c - which address rank 0 listens on when no one has named it: the grammar of ABCOMM_SOCKET_IFNAME over the interfaces
 * of this machine. Called by launch_agree.c on rank 0, once a process; a few system calls.
 */
#include "comm/launch.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/base.h"

/* Position in the list of the first word that the name begins with, or is; -1: none. */
static int find_word(const char *list, bool exact, const char *name)
{
    int at = 0;
    for (const char *word = list;; at++) {
        size_t length = strcspn(word, ",");
        if (length > 0 && strncmp(word, name, length) == 0 && (!exact || name[length] == '\0'))
            return at;
        if (word[length] == '\0')
            return -1;
        word += length + 1;
    }
}

/* How badly one wants this interface: less is better, -1: not at all. */
static int rate(const char *spec, const char *name, bool loopback)
{
    /* Bridges and ends of containers lead nowhere; the loopback only to this machine. */
    int by_kind = loopback ? 2000 : find_word("docker,veth,virbr,br-,cni,flannel", false, name) >= 0 ? 1000 : 0;
    bool exclude = spec[0] == '^';
    const char *list = spec + exclude;
    bool exact = list[0] == '=';
    list += exact;
    if (list[0] == '\0')
        return by_kind;
    int at = find_word(list, exact, name);
    if (exclude)
        return at >= 0 ? -1 : by_kind;
    return at;
}

/* Addresses of the same interface: IPv4, then IPv6, then what is valid on one cable only. */
static int rate_family(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return 0;
    return IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr) ? 2 : 1;
}

static void write_host(const struct ifaddrs *one, char *host, size_t capacity)
{
    char text[INET6_ADDRSTRLEN] = "";
    if (one->ifa_addr->sa_family == AF_INET) {
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)one->ifa_addr)->sin_addr, text, sizeof(text));
        snprintf(host, capacity, "%s", text);
    } else {
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)one->ifa_addr)->sin6_addr, text, sizeof(text));
        bool scoped = rate_family(one->ifa_addr) == 2;
        snprintf(host, capacity, "%s%s%s", text, scoped ? "%" : "", scoped ? one->ifa_name : "");
    }
}

static int nothing_matches(const char *spec, const struct ifaddrs *list)
{
    char names[256] = "";
    size_t used = 0;
    for (const struct ifaddrs *one = list; one != NULL && used + IF_NAMESIZE + 2 < sizeof(names); one = one->ifa_next) {
        if (one->ifa_addr != NULL && one->ifa_addr->sa_family == AF_INET && (one->ifa_flags & IFF_UP))
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used > 0 ? ", " : "", one->ifa_name);
    }
    return abci_error(ABC_ERR_ADDRESS, "ABCOMM_SOCKET_IFNAME=%.100s fits no interface that is up and has an address; there are: %s",
                      spec, used > 0 ? names : "none");
}

int abci_interface_host(const char *spec, char *host, size_t capacity)
{
    struct ifaddrs *list = NULL;
    const struct ifaddrs *best = NULL;
    int best_rate = 0;
    if (abci_fault("getifaddrs") || getifaddrs(&list) != 0)
        return abci_error_errno(ABC_ERR_SYSTEM, "the network interfaces cannot be listed");
    for (const struct ifaddrs *one = list; one != NULL; one = one->ifa_next) {
        int family = one->ifa_addr != NULL && (one->ifa_flags & IFF_UP) ? one->ifa_addr->sa_family : AF_UNSPEC;
        if (family != AF_INET && family != AF_INET6)
            continue;
        int rating = rate(spec, one->ifa_name, (one->ifa_flags & IFF_LOOPBACK) != 0);
        if (rating < 0)
            continue;
        rating = rating * 4 + rate_family(one->ifa_addr);
        if (best == NULL || rating < best_rate) {
            best = one;
            best_rate = rating;
        }
    }
    int status = ABC_OK;
    if (best != NULL)
        write_host(best, host, capacity);
    else
        status = nothing_matches(spec, list);
    freeifaddrs(list);
    return status;
}
