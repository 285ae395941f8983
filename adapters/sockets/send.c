/* send.c: payload on its way out: write, writev, send, sendto, sendmsg, sendmmsg.
 *
 * What it is:   asks the engine first; where the engine says "kernel", makes the very call that the program made.
 * What it isn't: buffering. A blocking send returns when everything was taken, by the ring, by TCP, or by both in turn.
 *
 * Cancellation: every function is a cancellation point in the kernel call it makes; a cancelled thread still runs
 * motet_send_end(). Signal safety: as the C library's, except that on a stream which the interrupted thread is busy with
 * inside the engine a send from the handler fails with EAGAIN. Fork safety: the engine's.
 * Not carried over: EFAULT. A bad buffer address faults in the copy instead of failing in the kernel. */
#include "shim.h"

#include <limits.h>
#include <netinet/in.h>
#include <string.h>

struct sending {
    int fd;
    const struct iovec *iov;
    int count, flags;
    enum { SENDING_PLAIN, SENDING_COUNTED, SENDING_STREAM } mode;
    motet_stream stream;
    ssize_t result; /* when no kernel call is wanted */
};

/* Flags that the wire cannot carry. MSG_FASTOPEN on a connected socket is the kernel's error to give. */
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
    if (x->mode == SENDING_COUNTED) candidate_sleep_end(x->fd);
    if (x->mode == SENDING_STREAM) ENGINE_DO(engine.send_end(x->stream, -1));
}

/* The kernel raises SIGPIPE together with EPIPE; an empty send to a broken connection makes it do so for us. */
static ssize_t send_failed(struct sending *x, ssize_t step)
{
    if (step == -EPIPE && !(x->flags & MSG_NOSIGNAL) && REAL(send)(x->fd, "", 0, 0) == 0) pthread_kill(pthread_self(), SIGPIPE);
    errno = (int)-step;
    return -1;
}

/* A kernel's send that a signal interrupts begins anew if the handler has SA_RESTART; which one ran is not known here. */
static bool handlers_restart(void)
{
    struct sigaction now;
    for (int number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &now) == 0 && now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN && !(now.sa_flags & SA_RESTART))
            return false;
    return true;
}

/* TCP is full, and what the peer has not read of the ring must go there first (MOTET_POLL). Sleeps until there is room, and ends where the
 * kernel's own send would: at a signal, or after SO_SNDTIMEO. */
int send_wait(int fd)
{
    struct timeval limit = {0, 0};
    socklen_t size = sizeof limit;
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    if (REAL(getsockopt)(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, &size) != 0) limit = (struct timeval){0, 0};
    bool limited = limit.tv_sec || limit.tv_usec;
    struct timespec time = {limit.tv_sec, limit.tv_usec * 1000};
    for (;;) {
        int ready = REAL(ppoll)(&room, 1, limited ? &time : NULL, NULL);
        if (ready > 0) return 0;
        if (ready == 0) errno = EAGAIN;
        if (ready == 0 || errno != EINTR || limited || !handlers_restart()) return -1;
    }
}

/* A long blocking send that begins in the kernel looks at the gate once more after so many bytes: they have woken the peer,
 * which may have opened it meanwhile. (Looking more often costs more than it gains where the peer has no CPU to wake up on.) */
#define FIRST_PIECE (256u << 10)

/* A blocking send in steps, each to wherever the engine says; `step` is its first answer. Ends early where the kernel would:
 * error, signal, SO_SNDTIMEO. */
static __attribute__((noinline)) ssize_t send_in_steps(struct sending *x, ssize_t step, ssize_t total)
{
    struct iovec rest[SHIM_PIECES];
    ssize_t done = 0;
    size_t limit = FIRST_PIECE;
    for (;;) {
        size_t piece = 0;
        if (step == MOTET_KERNEL) {
            int count = iov_first(rest, iov_after(x->iov, x->count, (size_t)done, rest), limit, &piece);
            limit = SSIZE_MAX;
            struct msghdr message = {.msg_iov = rest, .msg_iovlen = (size_t)count};
            OPEN_WHILE(send_cancelled, x, step = REAL(sendmsg)(x->fd, &message, x->flags & ~MOTET_PLAIN));
            ENGINE_DO(engine.send_end(x->stream, step));
            if (step < 0) return done > 0 ? done : -1;
        }
        if (step <= 0) return done > 0 ? done : send_failed(x, step);
        done += step;
        if (done >= total || (size_t)step < piece) return done;
        int count = iov_after(x->iov, x->count, (size_t)done, rest);
        while ((step = ENGINE_HELD(engine.send_begin(x->stream, rest, count, x->flags))) == MOTET_POLL)
            if (send_wait(x->fd) != 0) return done;
    }
}

/* True: make the kernel call, then send_finish(). False: x->result and errno are the answer. */
static bool send_start(struct sending *x)
{
    uint64_t word = table_word(x->fd);
    if (UNLIKELY(word_kind(word) == KIND_CLOSED)) word = candidate_touch(x->fd, SENDING);
    if (UNLIKELY(x->flags & MSG_OOB) && word_kind(word) == KIND_CANDIDATE) {
        table_make_plain(x->fd, REASON_URGENT);
        word = table_word(x->fd);
    }
    for (;;) {
        if (word_kind(word) == KIND_CANDIDATE || word_kind(word) == KIND_UPGRADING) word = candidate_touch(x->fd, SENDING);
        if (word_kind(word) != KIND_CANDIDATE) break;
        x->mode = SENDING_COUNTED;
        if (candidate_sleep_begin(x->fd)) return true;
        word = table_word(x->fd);
    }
    if (word_kind(word) == KIND_PRIVATE) {
        errno = EBADF;
        x->result = -1;
        return false;
    }
    x->mode = SENDING_PLAIN;
    if (word_kind(word) != KIND_STREAM) return true;
    if (UNLIKELY(shim_depth > 0)) {
        errno = EAGAIN;
        x->result = -1;
        return false;
    }
    x->mode = SENDING_STREAM;
    x->stream = table_handle(x->fd);
    ssize_t total = x->count > 0 && x->count <= IOV_MAX ? total_length(x->iov, x->count) : -1;
    if (x->flags & SEND_KERNEL_ONLY) x->flags |= MOTET_PLAIN;
    if (UNLIKELY(x->flags & MSG_OOB)) table_make_plain(x->fd, REASON_URGENT); /* not every byte of it is counted */
    if (UNLIKELY(total <= 0)) {
        x->mode = SENDING_PLAIN; /* nothing to carry, or an error that the kernel words better */
        return true;
    }
    bool blocks = !(x->flags & MSG_DONTWAIT) && table_blocks(x->fd, word);
    int flags = blocks ? x->flags : x->flags | MSG_DONTWAIT;
    ssize_t step;
    while (UNLIKELY((step = ENGINE_HELD(engine.send_begin(x->stream, x->iov, x->count, flags))) == MOTET_POLL))
        if (send_wait(x->fd) != 0) {
            x->result = -1;
            return false;
        }
    if (step == MOTET_KERNEL && (!blocks || total < 2 * (ssize_t)FIRST_PIECE || x->flags & MOTET_PLAIN)) return true;
    if (UNLIKELY(step == -EBADF)) {
        x->mode = SENDING_PLAIN; /* closed by another thread meanwhile: the kernel knows what to say */
        return true;
    }
    if (UNLIKELY(step < total && blocks))
        x->result = send_in_steps(x, step, total);
    else
        x->result = LIKELY(step >= 0) ? step : send_failed(x, step);
    return false;
}

static ssize_t send_finish(struct sending *x, ssize_t result)
{
    if (x->mode == SENDING_COUNTED) {
        candidate_sleep_end(x->fd);
        if (result > 0) candidate_count(x->fd, SENDING);
    }
    if (x->mode == SENDING_STREAM) ENGINE_DO(engine.send_end(x->stream, result));
    return result;
}

#define SEND_THROUGH(FD, IOV, COUNT, FLAGS, CALL)                                                                       \
    struct sending x = {.fd = (FD), .iov = (IOV), .count = (COUNT), .flags = (FLAGS)};                                  \
    if (!send_start(&x)) {                                                                                              \
        signals_due();                                                                                                  \
        return x.result;                                                                                                \
    }                                                                                                                   \
    ssize_t result;                                                                                                     \
    OPEN_WHILE(send_cancelled, &x, result = CALL);                                                                      \
    return send_finish(&x, result)

SHIM_API ssize_t write(int fd, const void *data, size_t length)
{
    if (word_is_plain(table_word(fd))) return REAL(write)(fd, data, length);
    struct iovec iov = {(void *)data, length};
    SEND_THROUGH(fd, &iov, 1, 0, REAL(write)(fd, data, length));
}

SHIM_API ssize_t writev(int fd, const struct iovec *iov, int count)
{
    if (word_is_plain(table_word(fd))) return REAL(writev)(fd, iov, count);
    SEND_THROUGH(fd, iov, count, 0, REAL(writev)(fd, iov, count));
}

/* A socket has no offset; of the flags only RWF_NOWAIT means something to it. Errors are the kernel's. */
SHIM_API ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
    if (word_is_plain(table_word(fd)) || offset != -1 || flags & ~SHIM_RWF_IGNORED) return REAL(pwritev2)(fd, iov, count, offset, flags);
    int nowait = flags & RWF_NOWAIT ? MSG_DONTWAIT : 0;
    SEND_THROUGH(fd, iov, count, nowait, REAL(pwritev2)(fd, iov, count, offset, flags));
}

SHIM_API ssize_t pwritev64v2(int fd, const struct iovec *iov, int count, off_t offset, int flags) __attribute__((alias("pwritev2")));

SHIM_API ssize_t send(int fd, const void *data, size_t length, int flags)
{
    if (word_is_plain(table_word(fd))) return REAL(send)(fd, data, length, flags);
    struct iovec iov = {(void *)data, length};
    SEND_THROUGH(fd, &iov, 1, flags, REAL(send)(fd, data, length, flags));
}

/* A connected TCP socket ignores the address, in the kernel as here. */
SHIM_API ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to, socklen_t to_length)
{
    if (word_is_plain(table_word(fd))) return REAL(sendto)(fd, data, length, flags, to, to_length);
    struct iovec iov = {(void *)data, length};
    SEND_THROUGH(fd, &iov, 1, flags, REAL(sendto)(fd, data, length, flags, to, to_length));
}

/* A descriptor that travels to another process may be used there without us. */
static void watch_passing(const struct msghdr *message)
{
    for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control; control = CMSG_NXTHDR((struct msghdr *)message, control)) {
        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS || control->cmsg_len < CMSG_LEN(0)) continue;
        size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(control) + i * sizeof fd, sizeof fd);
            hand_on(fd, REASON_PASSED);
        }
    }
}

SHIM_API ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (word_is_plain(table_word(fd))) {
        if (UNLIKELY(message->msg_control && message->msg_controllen >= sizeof(struct cmsghdr))) watch_passing(message);
        return REAL(sendmsg)(fd, message, flags);
    }
    int plain = message->msg_control && message->msg_controllen > 0 ? MOTET_PLAIN : 0;
    int count = message->msg_iovlen > IOV_MAX ? -1 : (int)message->msg_iovlen;
    SEND_THROUGH(fd, message->msg_iov, count, flags | plain, REAL(sendmsg)(fd, message, flags));
}

SHIM_API int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
    if (word_is_plain(table_word(fd))) {
        for (unsigned i = 0; i < count; i++)
            if (messages[i].msg_hdr.msg_control) watch_passing(&messages[i].msg_hdr);
        return REAL(sendmmsg)(fd, messages, count, flags);
    }
    unsigned done = 0;
    for (; done < count; done++) {
        ssize_t sent = sendmsg(fd, &messages[done].msg_hdr, flags);
        if (sent < 0) break;
        messages[done].msg_len = (unsigned)sent;
    }
    return done > 0 || count == 0 ? (int)done : -1;
}

SHIM_API ssize_t __write(int fd, const void *data, size_t length) __attribute__((alias("write")));
SHIM_API ssize_t __send(int fd, const void *data, size_t length, int flags) __attribute__((alias("send")));
