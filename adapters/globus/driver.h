/* driver.h: what the files of the XIO driver share.
 *
 * What it is:    the driver's attributes, servers and handles, and which file implements which of XIO's functions.
 * What it isn't: known to any other adapter.
 *
 * A handle is a TCP socket that XIO's event loop watches, and a stream of the engine over the same socket. Bytes pass through the stream. Where the engine
 * cannot make one, they pass through the socket, as in XIO's own driver `tcp`. */
#ifndef MOTET_GLOBUS_DRIVER_H
#define MOTET_GLOBUS_DRIVER_H

#include <stdbool.h>

#include "globus_xio_driver.h"
#include "globus_xio_system.h"
#include "globus_xio_tcp_driver.h"

#include "motet.h"
#include "motet_adapter.h"

/* The commands of GLOBUS_XIO_TCP_* mean the same here. */
struct attributes {
    char *service, *interface;
    int port, backlog;
    int listen_min, listen_max, connect_min, connect_max;
    globus_bool_t restrict_port, reuse, no_ipv6, keepalive, nodelay, linger;
    int linger_seconds, send_buffer, receive_buffer;
    globus_bool_t tcp_only; /* MOTET_XIO_SET_TCP_ONLY: no stream of the engine */
    int fd;                 /* GLOBUS_XIO_TCP_SET_HANDLE: a socket of the caller, or -1 */
};

/* Commands of this driver alone, out of the range of GLOBUS_XIO_TCP_*. */
enum { MOTET_XIO_SET_TCP_ONLY = 4096 /* globus_bool_t */, MOTET_XIO_GET_PATH /* char **: `tcp`, `shm` ...; the caller frees it */ };

/* One direction of a handle. At most one operation at a time, as XIO's documents ask. */
struct transfer {
    globus_xio_operation_t operation; /* NULL: none */
    globus_xio_iovec_t *parts;        /* what is left of the caller's buffers */
    int count;
    globus_size_t wanted, done;       /* bytes after which it completes, and bytes so far */
    globus_xio_iovec_t inline_parts[4];
};

struct handle {
    int fd;
    bool borrowed; /* the socket is the caller's: it is not closed */
    globus_xio_system_socket_handle_t system;
    motet_stream stream; /* 0: plain TCP */
    globus_mutex_t lock; /* protects the field `operation` of both directions */
    struct transfer read, write;
    struct motet_wait wait; /* of the operation in `read`, while XIO's event loop waits for it */
};

/* attributes.c */
extern struct attributes default_attributes;
extern globus_xio_string_cntl_table_t attribute_options[], handle_options[];
globus_result_t attributes_init(void **out);
globus_result_t attributes_copy(void **out, void *from);
globus_result_t attributes_control(void *attributes, int command, va_list arguments);
globus_result_t attributes_destroy(void *attributes);
void attributes_read_environment(void);

/* sockets.c */
globus_result_t apply_options(const struct attributes *attributes, int fd);
globus_result_t bind_in_range(int fd, const struct sockaddr *address, socklen_t length, int min, int max);
globus_result_t make_listener(const struct attributes *attributes, int *out);
globus_result_t contact_of(int fd, int command, char **out);
bool is_contact_command(int command);

/* server.c */
globus_result_t server_init(void *attributes, const globus_xio_contact_t *contact, globus_xio_operation_t operation);
globus_result_t server_accept(void *server, globus_xio_operation_t operation);
globus_result_t server_control(void *server, int command, va_list arguments);
globus_result_t server_destroy(void *server);
globus_result_t link_control(void *link, int command, va_list arguments);
globus_result_t link_destroy(void *link);
int link_take_socket(void *link);

/* open.c */
globus_result_t handle_open(const globus_xio_contact_t *contact, void *link, void *attributes, globus_xio_operation_t operation);
globus_result_t handle_close(void *handle, void *attributes, globus_xio_operation_t operation);

/* handle.c */
globus_result_t handle_make(int fd, bool borrowed, struct handle **out);
void handle_upgrade(struct handle *handle, const struct attributes *attributes, enum motet_role role);
globus_result_t handle_free(struct handle *handle);
globus_result_t handle_control(void *handle, int command, va_list arguments);

/* transfer.c */
globus_result_t handle_read(void *handle, const globus_xio_iovec_t *parts, int count, globus_xio_operation_t operation);
globus_result_t handle_write(void *handle, const globus_xio_iovec_t *parts, int count, globus_xio_operation_t operation);

/* stream_io.c: one step of a transfer on the stream. Returns bytes, 0 at end of file, or a negative errno. */
ssize_t stream_receive(struct handle *handle, const struct iovec *parts, int count);
ssize_t stream_send(struct handle *handle, const struct iovec *parts, int count);
/* At the begin of an operation that will wait when it finds nothing. */
void stream_wait_announce(struct handle *handle);
/* Before XIO's event loop waits for the socket: 1 when a receive would return at once; 0: wait, then call stream_wait_end(). */
int stream_wait_begin(struct handle *handle);
void stream_wait_end(struct handle *handle);
/* Whether the process's own functions on sockets are an adapter's (`motet run`): it makes the streams then, and XIO's event loop waits in it. */
bool sockets_are_served(void);

#endif
