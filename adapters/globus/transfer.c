/* transfer.c: reads and writes of XIO.
 *
 * What it is:   an operation is a number of steps (stream_io.c). Between two steps, when nothing can move, XIO's event loop waits for the socket, so
 *               operations of many handles share one thread, timeouts and cancellation are XIO's own, and any thread model of Globus works.
 * What it isn't: a buffer. The caller's memory is used.
 *
 * As the driver `tcp`: `wait_for` bytes complete an operation; 0 with buffers: no wait; 0 with an empty buffer: a wait for readiness. An operation that
 * ends early, by end of file (GLOBUS_XIO_ERROR_EOF), an error or cancellation, reports the bytes that it has moved. */
#include "driver.h"

#include <errno.h>

typedef void (*finish)(globus_xio_operation_t, globus_result_t, globus_size_t);

static globus_result_t begin(struct handle *handle, struct transfer *transfer, const globus_xio_iovec_t *parts, int count, globus_xio_operation_t operation)
{
    GlobusXIOName(begin);
    globus_mutex_lock(&handle->lock);
    bool busy = transfer->operation != NULL;
    if (!busy) transfer->operation = operation;
    globus_mutex_unlock(&handle->lock);
    if (busy) return GlobusXIOErrorAlreadyRegistered();
    bool fits = (size_t)count <= sizeof transfer->inline_parts / sizeof *transfer->inline_parts;
    transfer->parts = fits ? transfer->inline_parts : malloc((size_t)count * sizeof *parts);
    if (!transfer->parts) {
        transfer->operation = NULL;
        return GlobusXIOErrorMemory("parts");
    }
    memcpy(transfer->parts, parts, (size_t)count * sizeof *parts);
    transfer->count = count;
    transfer->wanted = globus_xio_operation_get_wait_for(operation);
    transfer->done = 0;
    return GLOBUS_SUCCESS;
}

static void end(struct handle *handle, struct transfer *transfer, finish finished, globus_result_t result)
{
    globus_size_t done = transfer->done;
    if (transfer->parts != transfer->inline_parts) free(transfer->parts);
    globus_mutex_lock(&handle->lock);
    globus_xio_operation_t operation = transfer->operation;
    transfer->operation = NULL;
    globus_mutex_unlock(&handle->lock);
    finished(operation, result, done); /* may free the handle */
}

static globus_size_t left(const struct transfer *transfer)
{
    globus_size_t total = 0;
    for (int i = 0; i < transfer->count; i++) total += transfer->parts[i].iov_len;
    return total;
}

/* Counts moved bytes and shortens the buffers, which stay at the beginning of the array. */
static void advance(struct transfer *transfer, size_t moved)
{
    transfer->done += moved;
    int gone = 0;
    while (gone < transfer->count && moved >= transfer->parts[gone].iov_len) moved -= transfer->parts[gone++].iov_len;
    transfer->count -= gone;
    memmove(transfer->parts, transfer->parts + gone, (size_t)transfer->count * sizeof *transfer->parts);
    if (!transfer->count) return;
    transfer->parts[0].iov_base = (char *)transfer->parts[0].iov_base + moved;
    transfer->parts[0].iov_len -= moved;
}

static bool is_complete(const struct transfer *transfer) { return transfer->done >= transfer->wanted || !left(transfer); }

static globus_xio_iovec_t nothing = { .iov_base = NULL, .iov_len = 0 };

static void continue_read(struct handle *handle);

static void readable(globus_result_t result, globus_size_t bytes, void *argument)
{
    struct handle *handle = argument;
    stream_wait_end(handle);
    if (result != GLOBUS_SUCCESS) end(handle, &handle->read, globus_xio_driver_finished_read, result);
    else continue_read(handle);
}

static void continue_read(struct handle *handle)
{
    GlobusXIOName(continue_read);
    struct transfer *read = &handle->read;
    globus_result_t result = GLOBUS_SUCCESS;
    do {
        ssize_t got = stream_receive(handle, read->parts, read->count);
        if (got == -EAGAIN) {
            if (!read->wanted || stream_wait_begin(handle)) continue;
            result = globus_xio_system_socket_register_read(read->operation, handle->system, &nothing, 1, 0, 0, NULL, readable, handle);
            if (result == GLOBUS_SUCCESS) return;
            stream_wait_end(handle);
        } else if (got == 0) {
            result = GlobusXIOErrorEOF();
        } else if (got < 0) {
            result = GlobusXIOErrorSystemError("recvmsg", (int)-got);
        } else {
            advance(read, (size_t)got);
            globus_xio_operation_refresh_timeout(read->operation);
        }
    } while (result == GLOBUS_SUCCESS && !is_complete(read));
    end(handle, read, globus_xio_driver_finished_read, result);
}

static void continue_write(struct handle *handle);

static void writable(globus_result_t result, globus_size_t bytes, void *argument)
{
    struct handle *handle = argument;
    if (result != GLOBUS_SUCCESS) end(handle, &handle->write, globus_xio_driver_finished_write, result);
    else continue_write(handle);
}

static void continue_write(struct handle *handle)
{
    GlobusXIOName(continue_write);
    struct transfer *write = &handle->write;
    globus_result_t result = GLOBUS_SUCCESS;
    do {
        ssize_t sent = stream_send(handle, write->parts, write->count);
        if (sent == -EAGAIN && write->wanted) {
            result = globus_xio_system_socket_register_write(write->operation, handle->system, &nothing, 1, 0, 0, NULL, writable, handle);
            if (result == GLOBUS_SUCCESS) return;
        } else if (sent < 0 && sent != -EAGAIN) {
            result = GlobusXIOErrorSystemError("sendmsg", (int)-sent);
        } else if (sent > 0) {
            advance(write, (size_t)sent);
            globus_xio_operation_refresh_timeout(write->operation);
        }
    } while (result == GLOBUS_SUCCESS && !is_complete(write));
    end(handle, write, globus_xio_driver_finished_write, result);
}

/* A wait for readiness: no buffers. */
static void ready_to_read(globus_result_t result, globus_size_t bytes, void *argument)
{
    struct handle *handle = argument;
    stream_wait_end(handle);
    end(handle, &handle->read, globus_xio_driver_finished_read, result);
}

static void ready_to_write(globus_result_t result, globus_size_t bytes, void *argument)
{
    struct handle *handle = argument;
    end(handle, &handle->write, globus_xio_driver_finished_write, result);
}

static globus_result_t wait_until_readable(struct handle *handle, globus_xio_operation_t operation)
{
    if (stream_wait_begin(handle)) {
        end(handle, &handle->read, globus_xio_driver_finished_read, GLOBUS_SUCCESS);
        return GLOBUS_SUCCESS;
    }
    globus_result_t result =
        globus_xio_system_socket_register_read(operation, handle->system, &nothing, 1, 0, 0, NULL, ready_to_read, handle);
    if (result != GLOBUS_SUCCESS) {
        stream_wait_end(handle);
        handle->read.operation = NULL;
    }
    return result;
}

globus_result_t handle_read(void *driver_handle, const globus_xio_iovec_t *parts, int count, globus_xio_operation_t operation)
{
    struct handle *handle = driver_handle;
    globus_result_t result = begin(handle, &handle->read, parts, count, operation);
    if (result != GLOBUS_SUCCESS) return result;
    if (!left(&handle->read)) return wait_until_readable(handle, operation);
    if (handle->read.wanted) stream_wait_announce(handle);
    continue_read(handle);
    return GLOBUS_SUCCESS;
}

globus_result_t handle_write(void *driver_handle, const globus_xio_iovec_t *parts, int count, globus_xio_operation_t operation)
{
    struct handle *handle = driver_handle;
    globus_result_t result = begin(handle, &handle->write, parts, count, operation);
    if (result != GLOBUS_SUCCESS) return result;
    if (left(&handle->write)) {
        continue_write(handle);
        return GLOBUS_SUCCESS;
    }
    if (globus_xio_operation_get_wait_for(operation) > 0) {
        end(handle, &handle->write, globus_xio_driver_finished_write, GLOBUS_SUCCESS);
        return GLOBUS_SUCCESS;
    }
    result = globus_xio_system_socket_register_write(operation, handle->system, &nothing, 1, 0, 0, NULL, ready_to_write, handle);
    if (result != GLOBUS_SUCCESS) handle->write.operation = NULL;
    return result;
}
