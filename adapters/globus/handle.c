/* handle.c: a handle from its socket to its end.
 *
 * What it is:   the pair of a socket in XIO's event loop and a stream of the engine, and the commands on it.
 * What it isn't: a transfer (transfer.c), or how the socket comes to be (open.c, server.c).
 *
 * Close: bytes that the peer has not read stay readable for it. When bytes that arrived were not read, the peer gets a reset, as from TCP. */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>

globus_xio_string_cntl_table_t handle_options[] = {
    { "keepalive", GLOBUS_XIO_TCP_SET_KEEPALIVE, globus_xio_string_cntl_bool },
    { "sndbuf", GLOBUS_XIO_TCP_SET_SNDBUF, globus_xio_string_cntl_formated_int },
    { "rcvbuf", GLOBUS_XIO_TCP_SET_RCVBUF, globus_xio_string_cntl_formated_int },
    { "nodelay", GLOBUS_XIO_TCP_SET_NODELAY, globus_xio_string_cntl_bool },
    { NULL, 0, NULL },
};

globus_result_t handle_make(int fd, bool borrowed, struct handle **out)
{
    GlobusXIOName(handle_make);
    struct handle *handle = calloc(1, sizeof *handle);
    if (!handle) return GlobusXIOErrorMemory("handle");
    handle->fd = fd;
    handle->borrowed = borrowed;
    globus_result_t result = globus_xio_system_socket_init(&handle->system, fd, GLOBUS_XIO_SYSTEM_TCP);
    if (result != GLOBUS_SUCCESS) {
        free(handle);
        return GlobusXIOErrorWrapFailed("globus_xio_system_socket_init", result);
    }
    globus_mutex_init(&handle->lock, NULL);
    *out = handle;
    return GLOBUS_SUCCESS;
}

static bool is_disabled(void)
{
    const char *value = getenv("MOTET_DISABLE");
    return (value && *value && strcmp(value, "0") != 0) || motet_version() != (((uint32_t)MOTET_VERSION_MAJOR << 16) | MOTET_VERSION_MINOR);
}

/* The socket is connected now. Whatever keeps it from becoming a stream here, it stays a socket. Two waits for one stream, the driver's and a preloaded
 * adapter's in select(), would keep its gate closed: where there is such an adapter, it serves the socket. */
void handle_upgrade(struct handle *handle, const struct attributes *attributes, enum motet_role role)
{
    if (attributes->tcp_only || is_disabled() || sockets_are_served()) return;
    struct motet_upgrade_options options = MOTET_INIT(struct motet_upgrade_options);
    options.role = role;
    if (motet_upgrade(handle->fd, &options, &handle->stream) != 0) handle->stream = 0;
}

globus_result_t handle_free(struct handle *handle)
{
    globus_xio_system_socket_destroy(handle->system);
    if (handle->stream && motet_close(handle->stream) == 1 && !handle->borrowed) {
        struct linger reset = { .l_onoff = 1, .l_linger = 0 };
        setsockopt(handle->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    globus_result_t result = handle->borrowed ? GLOBUS_SUCCESS : globus_xio_system_socket_close(handle->fd);
    globus_mutex_destroy(&handle->lock);
    free(handle);
    return result;
}

static const char *const path_names[] = { [MOTET_PATH_TCP] = "tcp", [MOTET_PATH_SHM] = "shm", [MOTET_PATH_LOOPBACK] = "loopback" };

static globus_result_t path_of(const struct handle *handle, char **out)
{
    GlobusXIOName(path_of);
    struct motet_stream_info info = MOTET_INIT(struct motet_stream_info);
    uint32_t path = handle->stream && motet_info(handle->stream, &info) == 0 ? info.path : MOTET_PATH_TCP;
    *out = strdup(path < sizeof path_names / sizeof *path_names ? path_names[path] : "unknown");
    return *out ? GLOBUS_SUCCESS : GlobusXIOErrorMemory("path");
}

static globus_result_t set_number(int fd, int level, int name, int value)
{
    return globus_xio_system_socket_setsockopt(fd, level, name, &value, sizeof value);
}

static globus_result_t get_number(int fd, int level, int name, int *out)
{
    globus_socklen_t length = sizeof *out;
    return globus_xio_system_socket_getsockopt(fd, level, name, out, &length);
}

/* The engine keeps TCP_NODELAY set under a stream with a fast path, and remembers the caller's value. */
static globus_result_t set_nodelay(struct handle *handle, bool on)
{
    if (handle->stream && motet_nodelay(handle->stream, on) >= 0) return GLOBUS_SUCCESS;
    return set_number(handle->fd, IPPROTO_TCP, TCP_NODELAY, on);
}

static globus_result_t get_nodelay(struct handle *handle, int *out)
{
    int known = handle->stream ? motet_nodelay(handle->stream, -1) : -1;
    if (known < 0) return get_number(handle->fd, IPPROTO_TCP, TCP_NODELAY, out);
    *out = known;
    return GLOBUS_SUCCESS;
}

globus_result_t handle_control(void *driver_handle, int command, va_list arguments)
{
    GlobusXIOName(handle_control);
    struct handle *handle = driver_handle;
    if (is_contact_command(command)) return contact_of(handle->fd, command, va_arg(arguments, char **));
    switch (command) {
    case GLOBUS_XIO_TCP_GET_HANDLE: *va_arg(arguments, globus_xio_system_socket_t *) = handle->fd; return GLOBUS_SUCCESS;
    case GLOBUS_XIO_TCP_SET_KEEPALIVE: return set_number(handle->fd, SOL_SOCKET, SO_KEEPALIVE, va_arg(arguments, globus_bool_t));
    case GLOBUS_XIO_TCP_GET_KEEPALIVE: return get_number(handle->fd, SOL_SOCKET, SO_KEEPALIVE, va_arg(arguments, globus_bool_t *));
    case GLOBUS_XIO_TCP_SET_SNDBUF: return set_number(handle->fd, SOL_SOCKET, SO_SNDBUF, va_arg(arguments, int));
    case GLOBUS_XIO_TCP_GET_SNDBUF: return get_number(handle->fd, SOL_SOCKET, SO_SNDBUF, va_arg(arguments, int *));
    case GLOBUS_XIO_TCP_SET_RCVBUF: return set_number(handle->fd, SOL_SOCKET, SO_RCVBUF, va_arg(arguments, int));
    case GLOBUS_XIO_TCP_GET_RCVBUF: return get_number(handle->fd, SOL_SOCKET, SO_RCVBUF, va_arg(arguments, int *));
    case GLOBUS_XIO_TCP_SET_NODELAY: return set_nodelay(handle, va_arg(arguments, globus_bool_t));
    case GLOBUS_XIO_TCP_GET_NODELAY: return get_nodelay(handle, va_arg(arguments, globus_bool_t *));
    case MOTET_XIO_GET_PATH: return path_of(handle, va_arg(arguments, char **));
    default: return GlobusXIOErrorInvalidCommand(command);
    }
}
