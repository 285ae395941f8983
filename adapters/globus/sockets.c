/* sockets.c: sockets of the driver: options, ports in a range, listeners, contact strings.
 *
 * What it is:   what a transport does with a socket before and beside the transfer of bytes. Contact strings are `host:port`, as those of `tcp`.
 * What it isn't: aware of the engine. */
#include "driver.h"

#include <netinet/tcp.h>

static globus_result_t set_option(int fd, int level, int name, const void *value, socklen_t length)
{
    return globus_xio_system_socket_setsockopt(fd, level, name, value, length);
}

globus_result_t apply_options(const struct attributes *a, int fd)
{
    int one = 1;
    struct linger linger = { .l_onoff = 1, .l_linger = a->linger_seconds };
    globus_result_t result = GLOBUS_SUCCESS;
    if (a->reuse) result = set_option(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (result == GLOBUS_SUCCESS && a->keepalive) result = set_option(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    if (result == GLOBUS_SUCCESS && a->linger) result = set_option(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    if (result == GLOBUS_SUCCESS && a->send_buffer > 0) result = set_option(fd, SOL_SOCKET, SO_SNDBUF, &a->send_buffer, sizeof a->send_buffer);
    if (result == GLOBUS_SUCCESS && a->receive_buffer > 0) result = set_option(fd, SOL_SOCKET, SO_RCVBUF, &a->receive_buffer, sizeof a->receive_buffer);
    if (result == GLOBUS_SUCCESS && a->nodelay) result = set_option(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return result;
}

static in_port_t *port_of(struct sockaddr *address)
{
    return address->sa_family == AF_INET6 ? &((struct sockaddr_in6 *)address)->sin6_port : &((struct sockaddr_in *)address)->sin_port;
}

/* Binds to the address. With port 0 and a range, to some free port of the range, beginning at a random one. */
globus_result_t bind_in_range(int fd, const struct sockaddr *address, socklen_t length, int min, int max)
{
    GlobusXIOName(bind_in_range);
    struct sockaddr_storage own = { 0 };
    memcpy(&own, address, length < sizeof own ? length : sizeof own);
    in_port_t *port = port_of((struct sockaddr *)&own);
    if (*port || max <= 0 || min > max) return globus_xio_system_socket_bind(fd, (struct sockaddr *)&own, length);
    int ports = max - min + 1, first = rand() % ports;
    globus_result_t result = GLOBUS_SUCCESS;
    for (int tried = 0; tried < ports; tried++) {
        if (result != GLOBUS_SUCCESS) globus_object_free(globus_error_get(result));
        *port = htons((uint16_t)(min + (first + tried) % ports));
        result = globus_xio_system_socket_bind(fd, (struct sockaddr *)&own, length);
        if (result == GLOBUS_SUCCESS) return result;
    }
    return result;
}

static globus_result_t listen_at(const struct attributes *a, const globus_addrinfo_t *at, int *out)
{
    int fd, zero = 0;
    globus_result_t result = globus_xio_system_socket_create(&fd, at->ai_family, at->ai_socktype, at->ai_protocol);
    if (result != GLOBUS_SUCCESS) return result;
    /* Without an interface the listener takes connections of IPv4, too. A system without that is not an error. */
    if (at->ai_family == AF_INET6 && !a->interface) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    result = apply_options(a, fd);
    if (result == GLOBUS_SUCCESS)
        result = bind_in_range(fd, at->ai_addr, at->ai_addrlen, a->listen_min, a->restrict_port ? a->listen_max : 0);
    if (result == GLOBUS_SUCCESS) result = globus_xio_system_socket_listen(fd, a->backlog < 0 ? SOMAXCONN : a->backlog);
    if (result != GLOBUS_SUCCESS) {
        globus_xio_system_socket_close(fd);
        return result;
    }
    *out = fd;
    return GLOBUS_SUCCESS;
}

static globus_result_t listen_in_family(const struct attributes *a, int family, int *out)
{
    GlobusXIOName(listen_in_family);
    char number[12];
    snprintf(number, sizeof number, "%d", a->port);
    globus_addrinfo_t hints = { .ai_flags = AI_PASSIVE, .ai_family = family, .ai_socktype = SOCK_STREAM }, *found;
    globus_result_t result = globus_libc_getaddrinfo(a->interface, a->service ? a->service : number, &hints, &found);
    if (result != GLOBUS_SUCCESS) return GlobusXIOErrorWrapFailed("globus_libc_getaddrinfo", result);
    bool listening = false;
    result = GLOBUS_SUCCESS;
    for (globus_addrinfo_t *at = found; at && !listening; at = at->ai_next) {
        if (result != GLOBUS_SUCCESS) globus_object_free(globus_error_get(result));
        result = listen_at(a, at, out);
        listening = result == GLOBUS_SUCCESS;
    }
    globus_libc_freeaddrinfo(found);
    return listening || result != GLOBUS_SUCCESS ? result : GlobusXIOErrorContactString("no address to listen at");
}

globus_result_t make_listener(const struct attributes *a, int *out)
{
    if (a->no_ipv6) return listen_in_family(a, PF_INET, out);
    if (a->interface) return listen_in_family(a, PF_UNSPEC, out);
    globus_result_t result = listen_in_family(a, PF_INET6, out);
    if (result == GLOBUS_SUCCESS) return result;
    globus_object_free(globus_error_get(result));
    return listen_in_family(a, PF_INET, out);
}

bool is_contact_command(int command)
{
    switch (command) {
    case GLOBUS_XIO_TCP_GET_LOCAL_CONTACT: case GLOBUS_XIO_GET_LOCAL_CONTACT:
    case GLOBUS_XIO_TCP_GET_LOCAL_NUMERIC_CONTACT: case GLOBUS_XIO_GET_LOCAL_NUMERIC_CONTACT:
    case GLOBUS_XIO_TCP_GET_REMOTE_CONTACT: case GLOBUS_XIO_GET_REMOTE_CONTACT:
    case GLOBUS_XIO_TCP_GET_REMOTE_NUMERIC_CONTACT: case GLOBUS_XIO_GET_REMOTE_NUMERIC_CONTACT: return true;
    default: return false;
    }
}

globus_result_t contact_of(int fd, int command, char **out)
{
    globus_sockaddr_t address;
    globus_socklen_t length = sizeof address;
    bool remote = command == GLOBUS_XIO_TCP_GET_REMOTE_CONTACT || command == GLOBUS_XIO_GET_REMOTE_CONTACT ||
                  command == GLOBUS_XIO_TCP_GET_REMOTE_NUMERIC_CONTACT || command == GLOBUS_XIO_GET_REMOTE_NUMERIC_CONTACT;
    bool numeric = command == GLOBUS_XIO_TCP_GET_LOCAL_NUMERIC_CONTACT || command == GLOBUS_XIO_GET_LOCAL_NUMERIC_CONTACT ||
                   command == GLOBUS_XIO_TCP_GET_REMOTE_NUMERIC_CONTACT || command == GLOBUS_XIO_GET_REMOTE_NUMERIC_CONTACT;
    globus_result_t result = remote ? globus_xio_system_socket_getpeername(fd, (struct sockaddr *)&address, &length)
                                    : globus_xio_system_socket_getsockname(fd, (struct sockaddr *)&address, &length);
    if (result != GLOBUS_SUCCESS) return result;
    return globus_libc_addr_to_contact_string(&address, (numeric ? GLOBUS_LIBC_ADDR_NUMERIC : 0) | (remote ? 0 : GLOBUS_LIBC_ADDR_LOCAL), out);
}
