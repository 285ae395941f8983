/* stream_io.c: one step of a transfer, through the engine or the kernel.
 *
 * What it is:   the engine's split calls. The kernel's part is made with MSG_DONTWAIT, so no step sleeps: XIO's event loop does.
 * What it isn't: an operation of XIO.
 *
 * A handle without a stream uses the functions that the process has, which may be those of a preloaded adapter. The kernel's part of a stream uses libc's own. */
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>

static struct {
    ssize_t (*sendmsg)(int, const struct msghdr *, int);
    ssize_t (*recvmsg)(int, struct msghdr *, int);
    int (*poll)(struct pollfd *, nfds_t, int);
} kernel;

static void find_kernel_calls(void)
{
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    kernel.sendmsg = libc ? (__typeof__(kernel.sendmsg))dlsym(libc, "sendmsg") : sendmsg;
    kernel.recvmsg = libc ? (__typeof__(kernel.recvmsg))dlsym(libc, "recvmsg") : recvmsg;
    kernel.poll = libc ? (__typeof__(kernel.poll))dlsym(libc, "poll") : poll;
}

static void need_kernel_calls(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_kernel_calls);
}

bool sockets_are_served(void)
{
    Dl_info at;
    void *call = dlsym(RTLD_DEFAULT, "recvmsg");
    if (!call || !dladdr(call, &at) || !at.dli_fname) return false;
    const char *slash = strrchr(at.dli_fname, '/');
    return strncmp(slash ? slash + 1 : at.dli_fname, "libmotet_", sizeof "libmotet_" - 1) == 0;
}

static ssize_t send_by(__typeof__(kernel.sendmsg) call, int fd, const struct iovec *parts, int count)
{
    struct msghdr message = { .msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)count };
    ssize_t sent;
    do sent = call(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent >= 0 ? sent : -errno;
}

static ssize_t receive_by(__typeof__(kernel.recvmsg) call, int fd, const struct iovec *parts, int count)
{
    struct msghdr message = { .msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)count };
    ssize_t received;
    do received = call(fd, &message, MSG_DONTWAIT);
    while (received < 0 && errno == EINTR);
    return received >= 0 ? received : -errno;
}

ssize_t stream_send(struct handle *handle, const struct iovec *parts, int count)
{
    if (!handle->stream) return send_by(sendmsg, handle->fd, parts, count);
    need_kernel_calls();
    ssize_t step = motet_send_begin(handle->stream, parts, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (step != MOTET_KERNEL) return step;
    ssize_t sent = send_by(kernel.sendmsg, handle->fd, parts, count);
    motet_send_end(handle->stream, sent >= 0 ? sent : -1);
    return sent;
}

ssize_t stream_receive(struct handle *handle, const struct iovec *parts, int count)
{
    if (!handle->stream) return receive_by(recvmsg, handle->fd, parts, count);
    need_kernel_calls();
    ssize_t step = motet_recv_begin(handle->stream, parts, count, MSG_DONTWAIT, 0);
    if (step != MOTET_KERNEL) return step;
    ssize_t received = receive_by(kernel.recvmsg, handle->fd, parts, count);
    motet_recv_end(handle->stream, received >= 0 ? received : -1, 0);
    return received;
}

static bool kernel_is_readable(int fd)
{
    struct pollfd one = { .fd = fd, .events = POLLIN };
    return kernel.poll(&one, 1, 0) > 0;
}

/* A wait of one stream, as the engine has it for poll(): it spins where that pays, and closes the gate before the sleep, so that every byte that arrives later
 * wakes the kernel's wait. */
int stream_wait_begin(struct handle *handle)
{
    if (!handle->stream) return 0;
    need_kernel_calls();
    motet_wait_begin(&handle->wait, &handle->stream, 1);
    for (;;) {
        switch (motet_wait_step(&handle->wait, 1)) {
        case MOTET_WAIT_SLEEP: return 0;
        case MOTET_WAIT_PROBE:
            if (!kernel_is_readable(handle->fd)) break;
            /* fall through */
        default: motet_wait_end(&handle->wait); return 1;
        }
    }
}

/* An operation waits here whenever it finds nothing. The engine learns that at its begin, since a sender that is faster never lets it find nothing: so the gate may
 * open while TCP has data. */
void stream_wait_announce(struct handle *handle)
{
    if (!handle->stream) return;
    motet_wait_begin(&handle->wait, &handle->stream, 1);
    motet_wait_end(&handle->wait);
}

void stream_wait_end(struct handle *handle)
{
    if (!handle->stream) return;
    motet_wait_slept(&handle->wait);
    motet_wait_end(&handle->wait);
}
