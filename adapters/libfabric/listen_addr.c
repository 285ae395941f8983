/* listen_addr.c: the address at which ranks of other hosts reach a domain.
 *
 * FI_MOTET_LISTEN is IP:PORT ([IP]:PORT; port 0: any), the name of an interface, or "off". Without it the domain listens on the address that
 * this host has towards others. Addresses are exchanged before it is known which ranks will communicate, and jobs may connect later
 * (MPI_Comm_spawn, MPI_Comm_connect), so a domain listens from its start, at a port that the system chooses. The cost is one descriptor.
 * A host without such an address is not an error: all ranks are on it.
 *
 * Incoming connections must know the secret of the address: connect.c and mr.c check secrets and keys. */
#include "fabric.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>

#define LISTEN "FI_MOTET_LISTEN"
/* Of RFC 5737 and RFC 3849, for documentation: no packet is ever sent there, the system only says by which way it would go. */
#define ANYBODY_4 "203.0.113.1"
#define ANYBODY_6 "2001:db8::1"

static bool is_link_local(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 16 == 0xa9fe;
    return IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

/* "10.0.0.1:0", "[fd00::1]:0" */
static bool say(const struct sockaddr *address, char *text, size_t size)
{
    char ip[INET6_ADDRSTRLEN];
    bool six = address->sa_family == AF_INET6;
    const void *bytes = six ? (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr
                            : (const void *)&((const struct sockaddr_in *)address)->sin_addr;
    if (!inet_ntop(address->sa_family, bytes, ip, sizeof ip)) return false;
    return (size_t)snprintf(text, size, six ? "[%s]:0" : "%s:0", ip) < size;
}

/* The address from which this host would send to a network that is not its own: where there is a way out, others come in by it. */
static bool towards_others(int family, char *text, size_t size)
{
    struct sockaddr_storage to = { .ss_family = (sa_family_t)family }, own;
    socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6), own_length = sizeof own;
    void *bytes = family == AF_INET ? (void *)&((struct sockaddr_in *)&to)->sin_addr : (void *)&((struct sockaddr_in6 *)&to)->sin6_addr;
    if (family == AF_INET) ((struct sockaddr_in *)&to)->sin_port = htons(9);
    else ((struct sockaddr_in6 *)&to)->sin6_port = htons(9);
    if (inet_pton(family, family == AF_INET ? ANYBODY_4 : ANYBODY_6, bytes) != 1) return false;
    int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    bool found = connect(fd, (struct sockaddr *)&to, length) == 0 && getsockname(fd, (struct sockaddr *)&own, &own_length) == 0 &&
                 !is_loopback((struct sockaddr *)&own) && !is_link_local((struct sockaddr *)&own) && say((struct sockaddr *)&own, text, size);
    close(fd);
    return found;
}

/* Bridges of containers and virtual machines (docker0, virbr0) are of this host alone, whatever their addresses look like. */
static bool is_bridge(const char *interface)
{
    char path[64 + IFNAMSIZ];
    snprintf(path, sizeof path, "/sys/class/net/%s/bridge", interface);
    return access(path, F_OK) == 0;
}

/* The first address of an interface, or of any that leads elsewhere; IPv4 before IPv6. */
static bool of_interface(const char *name, char *text, size_t size)
{
    struct ifaddrs *all, *at;
    bool found = false;
    if (getifaddrs(&all) != 0) return false;
    for (int family = AF_INET; !found; family = AF_INET6) {
        for (at = all; at && !found; at = at->ifa_next) {
            if (!at->ifa_addr || at->ifa_addr->sa_family != family || !(at->ifa_flags & IFF_UP) || is_link_local(at->ifa_addr)) continue;
            bool meant = name ? strcmp(name, at->ifa_name) == 0
                              : at->ifa_flags & IFF_RUNNING && !(at->ifa_flags & IFF_LOOPBACK) && !is_bridge(at->ifa_name);
            found = meant && say(at->ifa_addr, text, size);
        }
        if (family == AF_INET6) break;
    }
    freeifaddrs(all);
    return found;
}

static bool anywhere(char *text, size_t size)
{
    return towards_others(AF_INET, text, size) || of_interface(NULL, text, size) || towards_others(AF_INET6, text, size);
}

enum listen_wish listen_address(char *text, size_t size)
{
    const char *wanted = getenv(LISTEN);
    if (!wanted || !*wanted) return anywhere(text, size) ? LISTEN_IF_POSSIBLE : LISTEN_OFF;
    if (strcmp(wanted, "off") == 0) return LISTEN_OFF;
    if (of_interface(wanted, text, size)) return LISTEN_REQUIRED;
    return (size_t)snprintf(text, size, "%s", wanted) < size ? LISTEN_REQUIRED : LISTEN_INVALID;
}

bool listen_reached(struct address *address, const char *listening)
{
    char text[LISTEN_TEXT], any[LISTEN_TEXT];
    if ((size_t)snprintf(text, sizeof text, "%s", listening) >= sizeof text) return false;
    text[strcspn(text, ",")] = 0;
    char *port = strrchr(text, ':'), *ip = text, *end;
    if (!port) return false;
    *port++ = 0;
    unsigned long number = strtoul(port, &end, 10);
    if (*end || number == 0 || number > UINT16_MAX) return false;
    if (strcmp(ip, "0.0.0.0") == 0 || strcmp(ip, "[::]") == 0) { /* listens at all of them: one must be told */
        if (!anywhere(any, sizeof any)) return false;
        *strrchr(any, ':') = 0;
        ip = any;
    }
    bool six = *ip == '[';
    if (six) ip[strcspn(ip, "]")] = 0;
    if (inet_pton(six ? AF_INET6 : AF_INET, ip + six, address->ip) != 1) return false;
    address->family = six ? 6 : 4;
    address->port = (uint16_t)number;
    return true;
}
