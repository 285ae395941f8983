/* stream_io.c: one step of a transfer, through the engine or the kernel.
 *
 * What it is:   the engine's split calls. The kernel's part is made with MSG_DONTWAIT, so no step sleeps: XIO's event loop does.
 * What it isn't: an operation of XIO.
 *
 * The kernel's functions are libc's own: the sockets adapter may be in the process, and must not see them a second time. */
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

static struct {
    ssize_t (*sendmsg)(int, const struct msghdr *, int);
    ssize_t (*recvmsg)(int, struct msghdr *, int);
} kernel;

static void find_kernel_calls(void)
{
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    kernel.sendmsg = libc ? (__typeof__(kernel.sendmsg))dlsym(libc, "sendmsg") : sendmsg;
    kernel.recvmsg = libc ? (__typeof__(kernel.recvmsg))dlsym(libc, "recvmsg") : recvmsg;
}

static void need_kernel_calls(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_kernel_calls);
}

static ssize_t kernel_send(int fd, const struct iovec *parts, int count)
{
    struct msghdr message = { .msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)count };
    ssize_t sent;
    do sent = kernel.sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent >= 0 ? sent : -errno;
}

static ssize_t kernel_receive(int fd, const struct iovec *parts, int count)
{
    struct msghdr message = { .msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)count };
    ssize_t received;
    do received = kernel.recvmsg(fd, &message, MSG_DONTWAIT);
    while (received < 0 && errno == EINTR);
    return received >= 0 ? received : -errno;
}

/* With `may_wait` the engine waits a little for room in the ring, because bytes that take TCP instead cost more than the wait. */
ssize_t stream_send(struct handle *handle, const struct iovec *parts, int count, bool may_wait)
{
    need_kernel_calls();
    if (!handle->stream) return kernel_send(handle->fd, parts, count);
    ssize_t step = motet_send_begin(handle->stream, parts, count, MSG_NOSIGNAL | (may_wait ? 0 : MSG_DONTWAIT));
    if (step == MOTET_POLL) return -EAGAIN;
    if (step != MOTET_KERNEL) return step;
    ssize_t sent = kernel_send(handle->fd, parts, count);
    motet_send_end(handle->stream, sent >= 0 ? sent : -1);
    return sent;
}

/* -EAGAIN with `may_wait`: every byte that arrives from now on wakes a wait for the socket, after which stream_receive_waited() is called. */
ssize_t stream_receive(struct handle *handle, const struct iovec *parts, int count, bool may_wait)
{
    need_kernel_calls();
    if (!handle->stream) return kernel_receive(handle->fd, parts, count);
    ssize_t step = motet_recv_begin(handle->stream, parts, count, may_wait ? 0 : MSG_DONTWAIT, may_wait);
    if (step == MOTET_POLL) return -EAGAIN;
    if (step != MOTET_KERNEL) return step;
    ssize_t received = kernel_receive(handle->fd, parts, count);
    if (received == -EAGAIN && may_wait) return received; /* the wait ends this step */
    motet_recv_end(handle->stream, received >= 0 ? received : -1, 0);
    return received;
}

void stream_receive_waited(struct handle *handle)
{
    if (handle->stream) motet_recv_wait_end(handle->stream);
}
