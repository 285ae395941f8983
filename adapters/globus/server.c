/* server.c: a listening server, and the link between an accepted connection and the handle that opens it.
 *
 * What it is:   XIO's server functions over a listening socket that XIO's event loop watches.
 * What it isn't: where a stream begins. That is the open of a handle, after the accept. */
#include "driver.h"

struct server {
    int fd;
    bool borrowed;
    globus_xio_system_socket_handle_t system;
};

/* An accepted connection that no handle has taken yet. */
struct link {
    globus_xio_operation_t operation;
    int fd;
};

globus_result_t server_destroy(void *driver_server)
{
    struct server *server = driver_server;
    globus_xio_system_socket_destroy(server->system);
    globus_result_t result = server->borrowed ? GLOBUS_SUCCESS : globus_xio_system_socket_close(server->fd);
    free(server);
    return result;
}

globus_result_t server_init(void *driver_attributes, const globus_xio_contact_t *contact, globus_xio_operation_t operation)
{
    GlobusXIOName(server_init);
    const struct attributes *attributes = driver_attributes ? driver_attributes : &default_attributes;
    struct server *server = calloc(1, sizeof *server);
    if (!server) return GlobusXIOErrorMemory("server");
    server->borrowed = attributes->fd >= 0;
    server->fd = attributes->fd;
    globus_result_t result = server->borrowed ? apply_options(attributes, server->fd) : make_listener(attributes, &server->fd);
    if (result != GLOBUS_SUCCESS) {
        free(server);
        return GlobusXIOErrorWrapFailed("listener", result);
    }
    result = globus_xio_system_socket_init(&server->system, server->fd, GLOBUS_XIO_SYSTEM_TCP_LISTENER);
    if (result != GLOBUS_SUCCESS) {
        if (!server->borrowed) globus_xio_system_socket_close(server->fd);
        free(server);
        return GlobusXIOErrorWrapFailed("globus_xio_system_socket_init", result);
    }
    char *text;
    globus_xio_contact_t own;
    result = contact_of(server->fd, GLOBUS_XIO_GET_LOCAL_CONTACT, &text);
    if (result == GLOBUS_SUCCESS) {
        result = globus_xio_contact_parse(&own, text);
        free(text);
    }
    if (result == GLOBUS_SUCCESS) {
        result = globus_xio_driver_pass_server_init(operation, &own, server);
        globus_xio_contact_destroy(&own);
    }
    if (result != GLOBUS_SUCCESS) server_destroy(server);
    return result;
}

static void accepted(globus_result_t result, void *argument)
{
    struct link *link = argument;
    globus_xio_operation_t operation = link->operation;
    if (result != GLOBUS_SUCCESS) {
        free(link);
        link = NULL;
    }
    globus_xio_driver_finished_accept(operation, link, result);
}

globus_result_t server_accept(void *driver_server, globus_xio_operation_t operation)
{
    GlobusXIOName(server_accept);
    struct server *server = driver_server;
    struct link *link = malloc(sizeof *link);
    if (!link) return GlobusXIOErrorMemory("link");
    *link = (struct link){ .operation = operation, .fd = -1 };
    globus_result_t result = globus_xio_system_socket_register_accept(operation, server->system, &link->fd, accepted, link);
    if (result == GLOBUS_SUCCESS) return result;
    free(link);
    return GlobusXIOErrorWrapFailed("globus_xio_system_socket_register_accept", result);
}

static globus_result_t socket_control(int fd, int command, va_list arguments)
{
    GlobusXIOName(socket_control);
    if (command == GLOBUS_XIO_TCP_GET_HANDLE) {
        *va_arg(arguments, globus_xio_system_socket_t *) = fd;
        return GLOBUS_SUCCESS;
    }
    if (is_contact_command(command)) return contact_of(fd, command, va_arg(arguments, char **));
    return GlobusXIOErrorInvalidCommand(command);
}

globus_result_t server_control(void *server, int command, va_list arguments)
{
    return socket_control(((struct server *)server)->fd, command, arguments);
}

globus_result_t link_control(void *link, int command, va_list arguments)
{
    return socket_control(((struct link *)link)->fd, command, arguments);
}

globus_result_t link_destroy(void *driver_link)
{
    struct link *link = driver_link;
    globus_result_t result = link->fd >= 0 ? globus_xio_system_socket_close(link->fd) : GLOBUS_SUCCESS;
    free(link);
    return result;
}

/* The socket of an accepted connection; it is the caller's from now on. */
int link_take_socket(void *driver_link)
{
    struct link *link = driver_link;
    int fd = link->fd;
    link->fd = -1;
    return fd;
}
