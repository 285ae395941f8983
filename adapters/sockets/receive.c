/* receive.c: incoming payload: read, readv, recv, recvfrom, recvmsg, recvmmsg and the fortified forms.
 *
 * What it is:   each call asks the engine first. Where the engine answers MOTET_KERNEL, the adapter makes the program's own system call, so
 *               blocking, SO_RCVTIMEO, restart after signals and cancellation are the kernel's.
 * What it isn't: a decision about order. The order of bytes from the ring and from TCP is the engine's.
 *
 * Cancellation: every function is a cancellation point in the kernel call that it makes; a cancelled thread still runs the matching end
 * call.
 * Signal safety: as libc's. A handler that interrupts the engine gets EAGAIN from a receive on a stream. Fork safety: the engine's.
 * errno: kept on success. */
#include "sockets.h"

#include <limits.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#define REST_VECTORS 4

struct receiving {
    int fd;
    const struct iovec *iov;
    int count, flags;
    enum { RECEIVING_PLAIN, RECEIVING_COUNTED, RECEIVING_STREAM, RECEIVING_WAIT, RECEIVING_REST } mode;
    motet_stream stream;
    ssize_t result;     /* the answer when no kernel call follows */
    bool message;       /* the program called recvmsg() */
    struct timespec began; /* MSG_WAITALL on a stream: when the call began, from which its time limit counts */
    struct iovec *rest; /* REST_VECTORS entries: replaces iov where a confined process must receive less than the program asked for */
};

#define RECEIVE_KERNEL_ONLY (MSG_OOB | MSG_ERRQUEUE)

static void receive_cancelled(void *receiving)
{
    struct receiving *x = receiving;
    if (x->mode == RECEIVING_COUNTED) candidate_kernel_leave(x->fd);
    if (x->mode == RECEIVING_STREAM) ENGINE_DO(engine.recv_end(x->stream, -1, x->flags));
    if (x->mode == RECEIVING_WAIT) ENGINE_DO(engine.recv_wait_end(x->stream));
}

/* Sleeps until the kernel has data for this socket. Receiving with MSG_PEEK sleeps and wakes as the program's own call would: SO_RCVTIMEO,
 * SA_RESTART and errors included. Returns 0, or -1 with errno. */
static int receive_wait(struct receiving *x)
{
    char byte;
    ssize_t peeked;
    x->mode = RECEIVING_WAIT;
    WITH_CLEANUP(receive_cancelled, x, peeked = REAL(recv)(x->fd, &byte, 1, MSG_PEEK));
    x->mode = RECEIVING_STREAM;
    ENGINE_DO(engine.recv_wait_end(x->stream));
    return peeked < 0 ? -1 : 0;
}

/* MSG_TRUNC discards the bytes, or with MSG_PEEK counts them, and the program's buffer may be invalid. All of them go to one place. */
static __attribute__((noinline)) ssize_t receive_begin_discarding(struct receiving *x, bool blocking)
{
    static char discarded[64 << 10];
    struct iovec iov[SHIM_DISCARD_BUFFERS];
    int count = iov_discarding(x->iov, x->count, iov, (struct iovec){discarded, sizeof discarded});
    return ENGINE_HELD(engine.recv_begin(x->stream, iov, count, x->flags, blocking));
}

static ssize_t receive_begin(struct receiving *x, const struct iovec *iov, int count, bool blocking)
{
    if (UNLIKELY(x->flags & MSG_TRUNC)) return receive_begin_discarding(x, blocking);
    return ENGINE_HELD(engine.recv_begin(x->stream, iov, count, x->flags, blocking));
}

/* What is left of SO_RCVTIMEO, which counts from the beginning of the call. NULL: no limit. */
static const struct timespec *time_left(const struct receiving *x, struct timespec *left)
{
    struct timeval limit = {0};
    socklen_t length = sizeof limit;
    struct timespec now;
    if (getsockopt(x->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &length) != 0 || (limit.tv_sec == 0 && limit.tv_usec == 0)) return NULL;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t spent = (now.tv_sec - x->began.tv_sec) * 1000000000 + now.tv_nsec - x->began.tv_nsec;
    int64_t rest = limit.tv_sec >= INT64_MAX / 2000000000 ? INT64_MAX : limit.tv_sec * 1000000000 + limit.tv_usec * 1000 - spent;
    *left = rest <= 0 ? (struct timespec){0} : (struct timespec){rest / 1000000000, rest % 1000000000};
    return left;
}

/* Sleeps until the rest of a MSG_WAITALL may be there. False: a signal or SO_RCVTIMEO ends the call, which has received a part. A receive in
 * the kernel would go on after a handler with SA_RESTART, because the kernel does not know of the part. */
static bool rest_wait(struct receiving *x, unsigned handled)
{
    struct pollfd readable = {.fd = x->fd, .events = POLLIN};
    struct timespec left;
    int ready;
    WITH_CLEANUP(receive_cancelled, x, ready = signals_poll(&readable, time_left(x, &left), handled));
    return ready > 0;
}

/* Receives what is there of the rest, in the kernel. */
static ssize_t rest_step(struct receiving *x, struct iovec *rest, int count, unsigned handled)
{
    if (!rest_wait(x, handled)) {
        ENGINE_DO(engine.recv_end(x->stream, -1, x->flags));
        return 0;
    }
    struct msghdr message = {.msg_iov = rest, .msg_iovlen = (size_t)count};
    ssize_t step = REAL(recvmsg)(x->fd, &message, (x->flags & ~(MOTET_KERNEL_ONLY | MSG_WAITALL)) | MSG_DONTWAIT);
    bool retry = step < 0 && errno == EAGAIN; /* another thread was first */
    /* An error that ends the connection is reported once, after the bytes that were received before it. */
    bool dead = step < 0 && !retry && errno != EINTR && errno != EFAULT && errno != EBADF && errno != ENOMEM;
    ENGINE_DO(engine.recv_end(x->stream, dead ? -errno : step, x->flags));
    return retry ? MOTET_POLL : step;
}

/* MSG_WAITALL when the ring had only a part: receives the rest from the ring or from TCP. Returns early where the kernel would: end of file,
 * error, signal, SO_RCVTIMEO. */
static __attribute__((noinline)) ssize_t receive_rest(struct receiving *x, size_t done)
{
    struct iovec rest[SHIM_STEP_BUFFERS];
    unsigned handled = signals_handled; /* handlers that have begun since end the call */
    for (;;) {
        int count = iov_after(x->iov, x->count, done, rest);
        if (count == 0) return (ssize_t)done;
        ssize_t step = receive_begin(x, rest, count, true);
        if (step == MOTET_POLL) {
            x->mode = RECEIVING_WAIT;
            bool ready = rest_wait(x, handled);
            x->mode = RECEIVING_STREAM;
            ENGINE_DO(engine.recv_wait_end(x->stream));
            if (ready) continue;
            return (ssize_t)done;
        }
        if (step == MOTET_KERNEL && (step = rest_step(x, rest, count, handled)) == MOTET_POLL) continue;
        if (step <= 0) return (ssize_t)done;
        done += (size_t)step;
    }
}

/* Stores in x->rest the buffers after the first `done` bytes, `limit` bytes at most. Returns the number of entries. */
static int rest_slice(struct receiving *x, size_t done, uint64_t limit)
{
    int first = 0, count = 0;
    size_t length;
    while (first < x->count && done >= x->iov[first].iov_len) done -= x->iov[first++].iov_len;
    for (; first + count < x->count && count < REST_VECTORS; count++) {
        x->rest[count].iov_base = (char *)x->iov[first + count].iov_base + (count == 0 ? done : 0);
        x->rest[count].iov_len = x->iov[first + count].iov_len - (count == 0 ? done : 0);
    }
    return iov_first(x->rest, count, limit > SSIZE_MAX ? SSIZE_MAX : (size_t)limit, &length);
}

/* MSG_WAITALL in a confined process: calls recv(2) if the program called it, otherwise recvmsg(2). */
static __attribute__((noinline)) ssize_t rest_waitall(struct receiving *x)
{
    size_t done = 0, whole = 0;
    for (int i = 0; i < x->count; i++) whole += x->iov[i].iov_len;
    while (done < whole) {
        uint64_t limit = UINT64_MAX;
        int count = rest_slice(x, done, UINT64_MAX);
        bool left = word_kind(table_word(x->fd)) == KIND_RING_REST;
        ssize_t got = left ? confined_take(x->fd, x->rest, count, x->flags, &limit) : 0;
        if (got == 0) {
            count = rest_slice(x, done, limit);
            struct msghdr message = {.msg_iov = x->rest, .msg_iovlen = (size_t)count};
            got = x->message ? REAL(recvmsg)(x->fd, &message, x->flags) : REAL(recv)(x->fd, x->rest->iov_base, x->rest->iov_len, x->flags);
            confined_received(x->fd, got, x->flags);
        }
        if (got <= 0) return done > 0 ? (ssize_t)done : got;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

/* In a confined process while the ring still holds bytes: takes them, or prepares a shorter form of the program's own call. */
static __attribute__((noinline)) bool rest_start(struct receiving *x)
{
    uint64_t limit;
    x->mode = RECEIVING_PLAIN;
    if (x->flags & MSG_WAITALL && !(x->flags & MSG_PEEK)) {
        x->result = rest_waitall(x);
        return false;
    }
    x->result = confined_take(x->fd, x->iov, x->count, x->flags, &limit);
    if (x->result != 0) return false;
    if (limit == UINT64_MAX) return true;
    x->mode = RECEIVING_REST;
    x->count = rest_slice(x, 0, limit);
    x->iov = x->rest;
    return true;
}

/* True: the caller makes the kernel call, then receive_finish(). False: x->result and errno are the answer. */
static bool receive_start(struct receiving *x)
{
    uint64_t word = table_word(x->fd);
    if (UNLIKELY(word_kind(word) == KIND_CLOSED_IN_HANDLER)) word = candidate_upgrade_if_due(x->fd, RECEIVING);
    for (;;) {
        if (word_kind(word) == KIND_CANDIDATE || word_kind(word) == KIND_UPGRADING) word = candidate_upgrade_if_due(x->fd, RECEIVING);
        if (word_kind(word) != KIND_CANDIDATE) break;
        x->mode = RECEIVING_COUNTED;
        if (candidate_kernel_enter(x->fd)) return true;
        word = table_word(x->fd);
    }
    x->mode = RECEIVING_PLAIN;
    if (word_kind(word) == KIND_PRIVATE) {
        errno = EBADF;
        x->result = -1;
        return false;
    }
    if (UNLIKELY(word_kind(word) == KIND_RING_REST)) return rest_start(x);
    if (word_kind(word) != KIND_STREAM) return true;
    if (UNLIKELY(reentrancy_depth > 0)) {
        errno = EAGAIN;
        x->result = -1;
        return false;
    }
    if (UNLIKELY(x->count < 0 || x->count > IOV_MAX)) return true; /* the kernel reports the error */
    x->mode = RECEIVING_STREAM;
    x->stream = table_handle(x->fd);
    if (UNLIKELY(x->flags & RECEIVE_KERNEL_ONLY)) x->flags |= MOTET_KERNEL_ONLY;
    bool blocks = !(x->flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) && table_is_blocking(x->fd, word);
    int kept = errno;
    bool timed_out = false;
    /* A receive that waits until all is there, and takes nothing, is the kernel's: no ring waits for more than its first byte. */
    if (UNLIKELY((x->flags & (MSG_PEEK | MSG_WAITALL)) == (MSG_PEEK | MSG_WAITALL)) && blocks) handover_fd(x->fd, REASON_UNSEEN_WAIT);
    if (UNLIKELY(x->flags & MSG_WAITALL) && blocks) clock_gettime(CLOCK_MONOTONIC, &x->began);
    if (UNLIKELY(atomic_load_explicit(&uring_by_system_call, memory_order_relaxed)) && blocks) uring_before_wait(x->fd);
    for (;;) {
        ssize_t step = receive_begin(x, x->iov, x->count, blocks && !timed_out);
        if (LIKELY(step >= 0)) {
            bool all = (x->flags & MSG_WAITALL) && !(x->flags & MSG_PEEK) && blocks && step > 0;
            x->result = UNLIKELY(all) ? receive_rest(x, (size_t)step) : step;
            errno = kept;
            return false;
        }
        if (step == MOTET_KERNEL) {
            errno = kept;
            if (!timed_out) return true;
            ENGINE_DO(engine.recv_end(x->stream, -1, x->flags));
            step = -EAGAIN;
        }
        if (step == MOTET_POLL) {
            if (receive_wait(x) == 0) continue;
            if (errno == EAGAIN && !timed_out) {
                timed_out = true; /* SO_RCVTIMEO has passed: the ring is read once more */
                continue;
            }
            x->result = -1;
            return false;
        }
        if (step == -EBADF) {
            x->mode = RECEIVING_PLAIN; /* another thread closed it */
            errno = kept;
            return true;
        }
        errno = (int)-step;
        x->result = -1;
        return false;
    }
}

/* An end of file in the kernel is a reset if the peer closed over unread ring bytes, which the kernel does not know. The engine knows. */
static __attribute__((noinline)) ssize_t end_of_file_or_reset(struct receiving *x)
{
    int kept = errno;
    ssize_t step = receive_begin(x, x->iov, 0, false);
    if (step == MOTET_KERNEL) ENGINE_DO(engine.recv_end(x->stream, -1, x->flags));
    signals_deliver_pending();
    errno = step == -ECONNRESET ? ECONNRESET : kept;
    return step == -ECONNRESET ? -1 : 0;
}

static ssize_t receive_finish(struct receiving *x, ssize_t result)
{
    if (x->mode == RECEIVING_COUNTED) {
        candidate_kernel_leave(x->fd);
        if (result > 0 && !(x->flags & MSG_PEEK)) candidate_count(x->fd, RECEIVING);
    }
    if (UNLIKELY(x->mode == RECEIVING_REST)) confined_received(x->fd, result, x->flags);
    if (x->mode == RECEIVING_STREAM) {
        ENGINE_DO(engine.recv_end(x->stream, result, x->flags));
        if (UNLIKELY(result == 0)) result = end_of_file_or_reset(x);
    }
    return result;
}

/* Declares `result`, and `from_ring`, which is false when the kernel call filled in the caller's other arguments. */
#define RECEIVE_THROUGH(FD, IOV, COUNT, FLAGS, CALL) RECEIVE_AS(false, FD, IOV, COUNT, FLAGS, CALL)
#define RECEIVE_AS(MESSAGE, FD, IOV, COUNT, FLAGS, CALL)                                                                \
    struct iovec rest_[REST_VECTORS];                                                                                   \
    struct receiving x = {.fd = (FD), .iov = (IOV), .count = (COUNT), .flags = (FLAGS), .message = (MESSAGE), .rest = rest_}; \
    ssize_t result;                                                                                                     \
    bool from_ring = !receive_start(&x);                                                                                \
    if (from_ring) {                                                                                                    \
        signals_deliver_pending();                                                                                                  \
        result = x.result;                                                                                              \
    } else {                                                                                                            \
        WITH_CLEANUP(receive_cancelled, &x, result = CALL);                                                               \
        result = receive_finish(&x, result);                                                                            \
    }

/* Whether the kernel refuses one of the lengths: its own call reports that. */
static bool has_refused_length(const struct iovec *iov, int count)
{
    for (int i = 0; i < count; i++)
        if (UNLIKELY(iov[i].iov_len > SSIZE_MAX)) return true;
    return false;
}

/* read(2) and its variants return 0 for no bytes, whatever the state of the socket; recv(2) looks at it. A length that is refused is an error first. */
static bool takes_nothing(uint64_t word, const struct iovec *iov, int count)
{
    if (word_kind(word) == KIND_PRIVATE || count < 0 || count > IOV_MAX) return false;
    if (has_refused_length(iov, count)) return true;
    while (count > 0 && iov[count - 1].iov_len == 0) count--;
    return count == 0;
}

SHIM_API ssize_t read(int fd, void *data, size_t length)
{
    uint64_t word = table_word(fd);
    struct iovec iov = {data, length};
    if (word_passes_through(word) || UNLIKELY(takes_nothing(word, &iov, 1))) return REAL(read)(fd, data, length);
    RECEIVE_THROUGH(fd, &iov, 1, 0, REAL(read)(fd, data, x.iov->iov_len))
    return result;
}

SHIM_API ssize_t readv(int fd, const struct iovec *iov, int count)
{
    uint64_t word = table_word(fd);
    if (word_passes_through(word) || UNLIKELY(takes_nothing(word, iov, count))) return REAL(readv)(fd, iov, count);
    RECEIVE_THROUGH(fd, iov, count, 0, REAL(readv)(fd, x.iov, x.count))
    return result;
}

/* Offset and flags: see pwritev2() in send.c. */
SHIM_API ssize_t preadv2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
    uint64_t word = table_word(fd);
    if (word_passes_through(word) || offset != -1 || flags & ~SHIM_RWF_IGNORED || UNLIKELY(takes_nothing(word, iov, count)))
        return REAL(preadv2)(fd, iov, count, offset, flags);
    int nowait = flags & RWF_NOWAIT ? MSG_DONTWAIT : 0;
    RECEIVE_THROUGH(fd, iov, count, nowait, REAL(preadv2)(fd, x.iov, x.count, offset, flags))
    return result;
}

SHIM_API ssize_t preadv64v2(int fd, const struct iovec *iov, int count, off_t offset, int flags) __attribute__((alias("preadv2")));

SHIM_API ssize_t recv(int fd, void *data, size_t length, int flags)
{
    if (word_passes_through(table_word(fd))) return REAL(recv)(fd, data, length, flags);
    struct iovec iov = {data, length};
    RECEIVE_THROUGH(fd, &iov, 1, flags, REAL(recv)(fd, data, x.iov->iov_len, flags))
    return result;
}

/* A connected TCP socket returns no address: the kernel sets the length to 0. */
SHIM_API ssize_t recvfrom(int fd, void *data, size_t length, int flags, struct sockaddr *from, socklen_t *from_length)
{
    if (word_passes_through(table_word(fd))) return REAL(recvfrom)(fd, data, length, flags, from, from_length);
    struct iovec iov = {data, length};
    RECEIVE_THROUGH(fd, &iov, 1, flags, REAL(recvfrom)(fd, data, x.iov->iov_len, flags, from, from_length))
    if (from_ring && result >= 0 && from && from_length) *from_length = 0;
    return result;
}

static __attribute__((noinline)) ssize_t rest_message(struct receiving *x, struct msghdr *message)
{
    struct msghdr some = *message;
    some.msg_iov = x->rest;
    some.msg_iovlen = (size_t)x->count;
    ssize_t result = REAL(recvmsg)(x->fd, &some, x->flags);
    some.msg_iov = message->msg_iov;
    some.msg_iovlen = message->msg_iovlen;
    *message = some;
    return result;
}

SHIM_API ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    if (word_passes_through(table_word(fd))) return REAL(recvmsg)(fd, message, flags);
    bool is_refused = message->msg_iovlen > IOV_MAX || has_refused_length(message->msg_iov, (int)message->msg_iovlen);
    int count = is_refused ? -1 : (int)message->msg_iovlen;
    RECEIVE_AS(true, fd, message->msg_iov, count, flags,
               UNLIKELY(x.mode == RECEIVING_REST) ? rest_message(&x, message) : REAL(recvmsg)(fd, message, flags))
    if (from_ring && result >= 0) {
        message->msg_namelen = 0;
        message->msg_controllen = 0;
        message->msg_flags = flags & MSG_CMSG_CLOEXEC;
    }
    return result;
}

SHIM_API int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout)
{
    if (word_passes_through(table_word(fd))) return REAL(recvmmsg)(fd, messages, count, flags, timeout);
    struct timespec start, now;
    if (timeout) clock_gettime(CLOCK_MONOTONIC, &start);
    unsigned done = 0;
    while (done < count) {
        ssize_t got = recvmsg(fd, &messages[done].msg_hdr, flags & ~MSG_WAITFORONE);
        if (got < 0) break;
        messages[done++].msg_len = (unsigned)got;
        if (flags & MSG_WAITFORONE) flags |= MSG_DONTWAIT;
        if (!timeout) continue;
        clock_gettime(CLOCK_MONOTONIC, &now); /* the kernel, too, checks the timeout only after a message */
        if (now.tv_sec - start.tv_sec > timeout->tv_sec ||
            (now.tv_sec - start.tv_sec == timeout->tv_sec && now.tv_nsec - start.tv_nsec >= timeout->tv_nsec))
            break;
    }
    return done > 0 || count == 0 ? (int)done : -1;
}

SHIM_API ssize_t __read_chk(int fd, void *data, size_t length, size_t buffer_size)
{
    if (length > buffer_size) __chk_fail();
    return read(fd, data, length);
}

SHIM_API ssize_t __recv_chk(int fd, void *data, size_t length, size_t buffer_size, int flags)
{
    if (length > buffer_size) __chk_fail();
    return recv(fd, data, length, flags);
}

SHIM_API ssize_t __recvfrom_chk(int fd, void *data, size_t length, size_t buffer_size, int flags, struct sockaddr *from,
                                socklen_t *from_length)
{
    if (length > buffer_size) __chk_fail();
    return recvfrom(fd, data, length, flags, from, from_length);
}

SHIM_API ssize_t __read(int fd, void *data, size_t length) __attribute__((alias("read")));
