/* open.c: opens and closes handles.
 *
 * What it is:   three ways to a connected socket: an accepted connection, a socket of the caller, and a connect to `host:port`, which tries the addresses of
 *               the host one after the other.
 * What it isn't: a new address. An unequipped peer sees an ordinary TCP connection. */
#include "driver.h"

/* A connect in progress. */
struct connecting {
    globus_xio_operation_t operation;
    struct attributes *attributes;
    globus_addrinfo_t *addresses, *next;
    struct handle *handle;
};

static void connected(globus_result_t result, void *argument);

static void forget(struct connecting *connecting)
{
    globus_libc_freeaddrinfo(connecting->addresses);
    attributes_destroy(connecting->attributes);
    free(connecting);
}

static globus_result_t bind_source(const struct attributes *a, int fd, int family)
{
    if (!a->interface && !(a->restrict_port && a->connect_max > 0)) return GLOBUS_SUCCESS;
    globus_addrinfo_t hints = { .ai_flags = AI_PASSIVE, .ai_family = family, .ai_socktype = SOCK_STREAM }, *found;
    globus_result_t result = globus_libc_getaddrinfo(a->interface, "0", &hints, &found);
    if (result != GLOBUS_SUCCESS) return result;
    result = bind_in_range(fd, found->ai_addr, found->ai_addrlen, a->connect_min, a->restrict_port ? a->connect_max : 0);
    globus_libc_freeaddrinfo(found);
    return result;
}

static globus_result_t connect_to(struct connecting *c, globus_addrinfo_t *address)
{
    int fd;
    globus_result_t result = globus_xio_system_socket_create(&fd, address->ai_family, address->ai_socktype, address->ai_protocol);
    if (result != GLOBUS_SUCCESS) return result;
    result = apply_options(c->attributes, fd);
    if (result == GLOBUS_SUCCESS) result = bind_source(c->attributes, fd, address->ai_family);
    if (result == GLOBUS_SUCCESS) result = handle_make(fd, false, &c->handle);
    if (result != GLOBUS_SUCCESS) {
        globus_xio_system_socket_close(fd);
        return result;
    }
    result = globus_xio_system_socket_register_connect(c->operation, c->handle->system, (globus_sockaddr_t *)address->ai_addr, connected, c);
    if (result != GLOBUS_SUCCESS) handle_free(c->handle);
    return result;
}

/* Tries the next address. On failure none is left, and `failure`, or the last error, is the result. */
static globus_result_t connect_next(struct connecting *c, globus_result_t failure)
{
    while (c->next) {
        globus_addrinfo_t *address = c->next;
        c->next = address->ai_next;
        if (!GlobusLibcProtocolFamilyIsIP(address->ai_family)) continue;
        if (failure != GLOBUS_SUCCESS) globus_object_free(globus_error_get(failure));
        failure = connect_to(c, address);
        if (failure == GLOBUS_SUCCESS) return failure;
    }
    GlobusXIOName(connect_next);
    return failure != GLOBUS_SUCCESS ? failure : GlobusXIOErrorContactString("no address to connect to");
}

static void connected(globus_result_t result, void *argument)
{
    struct connecting *c = argument;
    globus_xio_operation_t operation = c->operation;
    struct handle *handle = c->handle;
    if (result != GLOBUS_SUCCESS) {
        handle_free(handle);
        if (!globus_xio_error_is_canceled(result)) {
            result = connect_next(c, result);
            if (result == GLOBUS_SUCCESS) return; /* another connect is in progress */
        }
        handle = NULL;
    } else {
        handle_upgrade(handle, c->attributes, MOTET_ROLE_CONNECTED);
    }
    forget(c);
    globus_xio_driver_finished_open(handle, operation, result);
}

static globus_result_t begin_connect(const globus_xio_contact_t *contact, const struct attributes *attributes, globus_xio_operation_t operation)
{
    GlobusXIOName(begin_connect);
    if (!contact->host || !contact->port) return GlobusXIOErrorContactString("no host or no port");
    struct connecting *c = calloc(1, sizeof *c);
    if (!c) return GlobusXIOErrorMemory("connecting");
    c->operation = operation;
    globus_addrinfo_t hints = { .ai_family = attributes->no_ipv6 ? PF_INET : PF_UNSPEC, .ai_socktype = SOCK_STREAM };
    globus_result_t result = attributes_copy((void **)(void *)&c->attributes, (void *)(uintptr_t)attributes);
    if (result != GLOBUS_SUCCESS) {
        free(c);
        return result;
    }
    result = globus_libc_getaddrinfo(contact->host, contact->port, &hints, &c->addresses);
    if (result != GLOBUS_SUCCESS) {
        attributes_destroy(c->attributes);
        free(c);
        return GlobusXIOErrorWrapFailed("globus_libc_getaddrinfo", result);
    }
    c->next = c->addresses;
    result = connect_next(c, GLOBUS_SUCCESS);
    if (result != GLOBUS_SUCCESS) forget(c);
    return result;
}

globus_result_t handle_open(const globus_xio_contact_t *contact, void *link, void *driver_attributes, globus_xio_operation_t operation)
{
    const struct attributes *attributes = driver_attributes ? driver_attributes : &default_attributes;
    if (!link && attributes->fd < 0) return begin_connect(contact, attributes, operation);
    int fd = link ? link_take_socket(link) : attributes->fd;
    struct handle *handle;
    globus_result_t result = apply_options(attributes, fd);
    if (result == GLOBUS_SUCCESS) result = handle_make(fd, !link, &handle);
    if (result != GLOBUS_SUCCESS) {
        if (link) globus_xio_system_socket_close(fd);
        return result;
    }
    handle_upgrade(handle, attributes, link ? MOTET_ROLE_ACCEPTED : MOTET_ROLE_CONNECTED);
    globus_xio_driver_finished_open(handle, operation, GLOBUS_SUCCESS);
    return GLOBUS_SUCCESS;
}

globus_result_t handle_close(void *handle, void *attributes, globus_xio_operation_t operation)
{
    globus_result_t result = handle_free(handle);
    globus_xio_driver_finished_close(operation, result);
    return GLOBUS_SUCCESS;
}
