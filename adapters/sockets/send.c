/* send.c: outgoing payload: write, writev, send, sendto, sendmsg, sendmmsg.
 *
 * What it is:   each call asks the engine first. Where the engine answers MOTET_KERNEL, the adapter makes the program's own system call.
 * What it isn't: buffering. A blocking send returns when all bytes were accepted by the ring, by TCP, or by both in turn.
 *
 * Cancellation: every function is a cancellation point in the kernel call that it makes; a cancelled thread still runs motet_send_end().
 * Signal safety: as libc's. A handler that interrupts the engine gets EAGAIN from a send on a stream. Fork safety: the engine's.
 * errno: kept on success.
 * Difference from the kernel: EFAULT. A bad buffer address faults in the copy instead of failing the call. */
#include "sockets.h"

#include <limits.h>
#include <netinet/in.h>
#include <string.h>

struct sending {
    int fd;
    const struct iovec *iov;
    int count, flags;
    enum { SENDING_PLAIN, SENDING_COUNTED, SENDING_STREAM } mode;
    motet_stream stream;
    ssize_t result; /* the answer when no kernel call follows */
};

/* Flags that only the kernel implements. With MSG_FASTOPEN on a connected socket it returns the error. */
#define SEND_KERNEL_ONLY (MSG_OOB | MSG_ZEROCOPY | MSG_FASTOPEN)

static ssize_t total_length(const struct iovec *iov, int count)
{
    size_t total = 0;
    for (int i = 0; i < count; i++) {
        if (iov[i].iov_len > SSIZE_MAX - total) return -1;
        total += iov[i].iov_len;
    }
    return (ssize_t)total;
}

static void send_cancelled(void *sending)
{
    struct sending *x = sending;
    if (x->mode == SENDING_COUNTED) candidate_kernel_leave(x->fd);
    if (x->mode == SENDING_STREAM) ENGINE_DO(engine.send_end(x->stream, -1));
}

/* The kernel raises SIGPIPE together with EPIPE. An empty send on the broken connection has the same effect. */
static ssize_t send_error(struct sending *x, ssize_t step)
{
    if (step == -EPIPE && !(x->flags & MSG_NOSIGNAL) && REAL(send)(x->fd, "", 0, 0) == 0) pthread_kill(pthread_self(), SIGPIPE);
    errno = (int)-step;
    return -1;
}

/* A send in the kernel that a signal interrupts is restarted if the handler has SA_RESTART. Which handler ran is not known here, so all
 * installed ones must have it. */
static bool handlers_restart(void)
{
    struct sigaction now;
    for (int number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &now) == 0 && now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN && !(now.sa_flags & SA_RESTART))
            return false;
    return true;
}

/* MOTET_POLL: the unread bytes of the ring must move to TCP first, and TCP has no room. Sleeps until the socket is writable. Returns 0, or
 * -1 with errno where the kernel's own send would end: at a signal, or after SO_SNDTIMEO. */
int send_wait_writable(int fd)
{
    struct timeval limit = {0, 0};
    socklen_t size = sizeof limit;
    struct pollfd writable = {.fd = fd, .events = POLLOUT};
    if (REAL(getsockopt)(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, &size) != 0) limit = (struct timeval){0, 0};
    bool limited = limit.tv_sec || limit.tv_usec;
    struct timespec time = {limit.tv_sec, limit.tv_usec * 1000};
    for (;;) {
        int ready = REAL(ppoll)(&writable, 1, limited ? &time : NULL, NULL);
        if (ready > 0) return 0;
        if (ready == 0) errno = EAGAIN;
        if (ready == 0 || errno != EINTR || limited || !handlers_restart()) return -1;
    }
}

/* A long blocking send that starts in the kernel asks the engine again after this many bytes. They have woken the peer, which may have
 * opened the gate since. Asking more often costs more than it gains where the peer has no CPU to wake up on. */
#define FIRST_STEP_BYTES (256u << 10)

/* A send in steps, each through the ring or through TCP as the engine decides; `step` is its first answer. Returns early where the kernel
 * would: error, signal, SO_SNDTIMEO, no room for a send that must not block. */
static __attribute__((noinline)) ssize_t send_in_steps(struct sending *x, ssize_t step, ssize_t total)
{
    struct iovec rest[SHIM_STEP_BUFFERS];
    ssize_t done = 0;
    size_t limit = FIRST_STEP_BYTES;
    for (;;) {
        size_t piece = 0;
        if (step == MOTET_KERNEL) {
            int count = iov_first(rest, iov_after(x->iov, x->count, (size_t)done, rest), limit, &piece);
            limit = SSIZE_MAX;
            struct msghdr message = {.msg_iov = rest, .msg_iovlen = (size_t)count};
            WITH_CLEANUP(send_cancelled, x, step = REAL(sendmsg)(x->fd, &message, x->flags & ~MOTET_KERNEL_ONLY));
            ENGINE_DO(engine.send_end(x->stream, step));
            if (step < 0) return done > 0 ? done : -1;
        }
        if (step <= 0) return done > 0 ? done : send_error(x, step);
        done += step;
        if (done >= total || (size_t)step < piece) return done;
        int count = iov_after(x->iov, x->count, (size_t)done, rest);
        while ((step = ENGINE_HELD(engine.send_begin(x->stream, rest, count, x->flags))) == MOTET_POLL)
            if (send_wait_writable(x->fd) != 0) return done;
    }
}

/* True: the caller makes the kernel call, then send_finish(). False: x->result and errno are the answer. */
static bool send_start(struct sending *x)
{
    uint64_t word = table_word(x->fd);
    if (UNLIKELY(word_kind(word) == KIND_CLOSED_IN_HANDLER)) word = candidate_upgrade_if_due(x->fd, SENDING);
    if (UNLIKELY(x->flags & MSG_OOB) && word_kind(word) == KIND_CANDIDATE) {
        table_force_tcp(x->fd, REASON_URGENT);
        word = table_word(x->fd);
    }
    for (;;) {
        if (word_kind(word) == KIND_CANDIDATE || word_kind(word) == KIND_UPGRADING) word = candidate_upgrade_if_due(x->fd, SENDING);
        if (word_kind(word) != KIND_CANDIDATE) break;
        x->mode = SENDING_COUNTED;
        if (candidate_kernel_enter(x->fd)) return true;
        word = table_word(x->fd);
    }
    if (word_kind(word) == KIND_PRIVATE) {
        errno = EBADF;
        x->result = -1;
        return false;
    }
    x->mode = SENDING_PLAIN;
    if (word_kind(word) != KIND_STREAM) return true;
    if (UNLIKELY(reentrancy_depth > 0)) {
        errno = EAGAIN;
        x->result = -1;
        return false;
    }
    x->mode = SENDING_STREAM;
    x->stream = table_handle(x->fd);
    ssize_t total = x->count > 0 && x->count <= IOV_MAX ? total_length(x->iov, x->count) : -1;
    if (x->flags & SEND_KERNEL_ONLY) x->flags |= MOTET_KERNEL_ONLY;
    if (UNLIKELY(x->flags & MSG_OOB)) table_force_tcp(x->fd, REASON_URGENT); /* the kernel does not count the urgent byte */
    if (UNLIKELY(total <= 0)) {
        x->mode = SENDING_PLAIN; /* no payload, or an error that the kernel reports */
        return true;
    }
    bool blocks = !(x->flags & MSG_DONTWAIT) && table_is_blocking(x->fd, word);
    int flags = blocks ? x->flags : x->flags | MSG_DONTWAIT;
    ssize_t step;
    while (UNLIKELY((step = ENGINE_HELD(engine.send_begin(x->stream, x->iov, x->count, flags))) == MOTET_POLL))
        if (send_wait_writable(x->fd) != 0) {
            x->result = -1;
            return false;
        }
    if (step == MOTET_KERNEL && (!blocks || total < 2 * (ssize_t)FIRST_STEP_BYTES || x->flags & MOTET_KERNEL_ONLY)) return true;
    if (UNLIKELY(step == -EBADF)) {
        x->mode = SENDING_PLAIN; /* another thread closed it: the kernel reports the error */
        return true;
    }
    /* A short send that must not block promises an edge of EPOLLOUT, also to programs that wait by system calls of their own. Only a kernel
     * that was full itself keeps that promise: what the ring had no room for is offered to TCP in this call. */
    if (UNLIKELY(step < total && (blocks || step > 0))) {
        x->flags = flags;
        x->result = send_in_steps(x, step, total);
    } else {
        x->result = LIKELY(step >= 0) ? step : send_error(x, step);
    }
    return false;
}

static ssize_t send_finish(struct sending *x, ssize_t result)
{
    if (x->mode == SENDING_COUNTED) {
        candidate_kernel_leave(x->fd);
        if (result > 0) candidate_count(x->fd, SENDING);
    }
    if (x->mode == SENDING_STREAM) ENGINE_DO(engine.send_end(x->stream, result));
    return result;
}

#define SEND_THROUGH(FD, IOV, COUNT, FLAGS, CALL)                                                                       \
    struct sending x = {.fd = (FD), .iov = (IOV), .count = (COUNT), .flags = (FLAGS)};                                  \
    if (!send_start(&x)) {                                                                                              \
        signals_deliver_pending();                                                                                                  \
        return x.result;                                                                                                \
    }                                                                                                                   \
    ssize_t result;                                                                                                     \
    WITH_CLEANUP(send_cancelled, &x, result = CALL);                                                                      \
    return send_finish(&x, result)

SHIM_API ssize_t write(int fd, const void *data, size_t length)
{
    if (word_passes_through(table_word(fd))) return REAL(write)(fd, data, length);
    struct iovec iov = {(void *)data, length};
    SEND_THROUGH(fd, &iov, 1, 0, REAL(write)(fd, data, length));
}

SHIM_API ssize_t writev(int fd, const struct iovec *iov, int count)
{
    if (word_passes_through(table_word(fd))) return REAL(writev)(fd, iov, count);
    SEND_THROUGH(fd, iov, count, 0, REAL(writev)(fd, iov, count));
}

/* A socket has no offset. Of the flags only RWF_NOWAIT has an effect on it. Errors are the kernel's. */
SHIM_API ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
    if (word_passes_through(table_word(fd)) || offset != -1 || flags & ~SHIM_RWF_IGNORED) return REAL(pwritev2)(fd, iov, count, offset, flags);
    int nowait = flags & RWF_NOWAIT ? MSG_DONTWAIT : 0;
    SEND_THROUGH(fd, iov, count, nowait, REAL(pwritev2)(fd, iov, count, offset, flags));
}

SHIM_API ssize_t pwritev64v2(int fd, const struct iovec *iov, int count, off_t offset, int flags) __attribute__((alias("pwritev2")));

SHIM_API ssize_t send(int fd, const void *data, size_t length, int flags)
{
    if (word_passes_through(table_word(fd))) return REAL(send)(fd, data, length, flags);
    struct iovec iov = {(void *)data, length};
    SEND_THROUGH(fd, &iov, 1, flags, REAL(send)(fd, data, length, flags));
}

/* A connected TCP socket ignores the address, in the kernel and here. */
SHIM_API ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to, socklen_t to_length)
{
    if (word_passes_through(table_word(fd))) return REAL(sendto)(fd, data, length, flags, to, to_length);
    struct iovec iov = {(void *)data, length};
    SEND_THROUGH(fd, &iov, 1, flags, REAL(sendto)(fd, data, length, flags, to, to_length));
}

SHIM_API ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (word_passes_through(table_word(fd))) {
        if (UNLIKELY(message->msg_control && message->msg_controllen >= sizeof(struct cmsghdr))) handover_passed(message);
        return REAL(sendmsg)(fd, message, flags);
    }
    int kernel_only = message->msg_control && message->msg_controllen > 0 ? MOTET_KERNEL_ONLY : 0;
    int count = message->msg_iovlen > IOV_MAX ? -1 : (int)message->msg_iovlen;
    SEND_THROUGH(fd, message->msg_iov, count, flags | kernel_only, REAL(sendmsg)(fd, message, flags));
}

SHIM_API int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
    if (word_passes_through(table_word(fd))) {
        for (unsigned i = 0; i < count; i++)
            if (messages[i].msg_hdr.msg_control) handover_passed(&messages[i].msg_hdr);
        return REAL(sendmmsg)(fd, messages, count, flags);
    }
    unsigned done = 0;
    while (done < count) {
        struct msghdr *message = &messages[done].msg_hdr;
        ssize_t sent = sendmsg(fd, message, flags);
        if (sent < 0) break;
        messages[done++].msg_len = (unsigned)sent;
        size_t whole = 0;
        for (size_t i = 0; i < message->msg_iovlen; i++) whole += message->msg_iov[i].iov_len;
        if ((size_t)sent < whole) break; /* the next message must not follow a part of this one */
    }
    return done > 0 || count == 0 ? (int)done : -1;
}

SHIM_API ssize_t __write(int fd, const void *data, size_t length) __attribute__((alias("write")));
SHIM_API ssize_t __send(int fd, const void *data, size_t length, int flags) __attribute__((alias("send")));
