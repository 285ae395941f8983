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

#define LISTEN_VARIABLE "FI_MOTET_LISTEN"
/* Documentation addresses of RFC 5737 and RFC 3849. No packet is sent; the kernel is only asked for the route. */
#define PROBE_IPV4 "203.0.113.1"
#define PROBE_IPV6 "2001:db8::1"

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

/* Writes "10.0.0.1:0" or "[fd00::1]:0". */
static bool format_ip_port(const struct sockaddr *address, char *text, size_t size)
{
    char ip[INET6_ADDRSTRLEN];
    bool six = address->sa_family == AF_INET6;
    const void *bytes = six ? (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr
                            : (const void *)&((const struct sockaddr_in *)address)->sin_addr;
    if (!inet_ntop(address->sa_family, bytes, ip, sizeof ip)) return false;
    return (size_t)snprintf(text, size, six ? "[%s]:0" : "%s:0", ip) < size;
}

/* The source address of the default route: other hosts are assumed to reach this host by the same interface. */
static bool default_route_address(int family, char *text, size_t size)
{
    struct sockaddr_storage to = { .ss_family = (sa_family_t)family }, own;
    socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6), own_length = sizeof own;
    void *bytes = family == AF_INET ? (void *)&((struct sockaddr_in *)&to)->sin_addr : (void *)&((struct sockaddr_in6 *)&to)->sin6_addr;
    if (family == AF_INET) ((struct sockaddr_in *)&to)->sin_port = htons(9);
    else ((struct sockaddr_in6 *)&to)->sin6_port = htons(9);
    if (inet_pton(family, family == AF_INET ? PROBE_IPV4 : PROBE_IPV6, bytes) != 1) return false;
    int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    bool found = connect(fd, (struct sockaddr *)&to, length) == 0 && getsockname(fd, (struct sockaddr *)&own, &own_length) == 0 &&
                 !is_loopback((struct sockaddr *)&own) && !is_link_local((struct sockaddr *)&own) && format_ip_port((struct sockaddr *)&own, text, size);
    close(fd);
    return found;
}

/* Bridges of containers and virtual machines (docker0, virbr0) do not lead to other hosts. */
static bool is_bridge(const char *interface)
{
    char path[64 + IFNAMSIZ];
    snprintf(path, sizeof path, "/sys/class/net/%s/bridge", interface);
    return access(path, F_OK) == 0;
}

/* The first address of the named interface, or, without a name, of any interface that leads to other hosts; IPv4 before IPv6. */
static bool interface_address(const char *name, char *text, size_t size)
{
    struct ifaddrs *all, *at;
    bool found = false;
    if (getifaddrs(&all) != 0) return false;
    for (int family = AF_INET; !found; family = AF_INET6) {
        for (at = all; at && !found; at = at->ifa_next) {
            if (!at->ifa_addr || at->ifa_addr->sa_family != family || !(at->ifa_flags & IFF_UP) || is_link_local(at->ifa_addr)) continue;
            bool matches = name ? strcmp(name, at->ifa_name) == 0
                              : at->ifa_flags & IFF_RUNNING && !(at->ifa_flags & IFF_LOOPBACK) && !is_bridge(at->ifa_name);
            found = matches && format_ip_port(at->ifa_addr, text, size);
        }
        if (family == AF_INET6) break;
    }
    freeifaddrs(all);
    return found;
}

static bool default_address(char *text, size_t size)
{
    return default_route_address(AF_INET, text, size) || interface_address(NULL, text, size) || default_route_address(AF_INET6, text, size);
}

enum listen_wish listen_address(char *text, size_t size)
{
    const char *wanted = getenv(LISTEN_VARIABLE);
    if (!wanted || !*wanted) return default_address(text, size) ? LISTEN_IF_POSSIBLE : LISTEN_OFF;
    if (strcmp(wanted, "off") == 0) return LISTEN_OFF;
    if (interface_address(wanted, text, size)) return LISTEN_REQUIRED;
    return (size_t)snprintf(text, size, "%s", wanted) < size ? LISTEN_REQUIRED : LISTEN_INVALID;
}

bool listen_reached(struct address *address, const char *listening)
{
    char text[LISTEN_TEXT_SIZE], own[LISTEN_TEXT_SIZE];
    if ((size_t)snprintf(text, sizeof text, "%s", listening) >= sizeof text) return false;
    text[strcspn(text, ",")] = 0;
    char *port = strrchr(text, ':'), *ip = text, *end;
    if (!port) return false;
    *port++ = 0;
    unsigned long number = strtoul(port, &end, 10);
    if (*end || number == 0 || number > UINT16_MAX) return false;
    if (strcmp(ip, "0.0.0.0") == 0 || strcmp(ip, "[::]") == 0) { /* a wildcard: peers need one address */
        if (!default_address(own, sizeof own)) return false;
        *strrchr(own, ':') = 0;
        ip = own;
    }
    bool six = *ip == '[';
    if (six) ip[strcspn(ip, "]")] = 0;
    if (inet_pton(six ? AF_INET6 : AF_INET, ip + six, address->ip) != 1) return false;
    address->family = six ? 6 : 4;
    address->port = (uint16_t)number;
    return true;
}
