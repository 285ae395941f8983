/* receive.c: payload on its way in: read, readv, recv, recvfrom, recvmsg, recvmmsg and the fortified forms.
 *
 * What it is:   asks the engine first; where the engine says "kernel", makes the very call that the program made, so
 *               blocking, SO_RCVTIMEO, restart after signals and cancellation are the kernel's.
 * What it isn't: an opinion on what is readable. Order between ring and TCP is the engine's.
 *
 * Cancellation: every function is a cancellation point in the kernel call it makes; a cancelled thread still runs the matching
 * end call. Signal safety: as the C library's, except that on a stream which the interrupted thread is busy with inside
 * the engine a receive from the handler fails with EAGAIN. Fork safety: the engine's. */
#include "shim.h"

#include <limits.h>
#include <string.h>
#include <time.h>

#define REST_VECTORS 4

struct receiving {
    int fd;
    const struct iovec *iov;
    int count, flags;
    enum { RECEIVING_PLAIN, RECEIVING_COUNTED, RECEIVING_STREAM, RECEIVING_WAIT, RECEIVING_REST } mode;
    motet_stream stream;
    ssize_t result; /* when no kernel call is wanted */
    bool message;       /* by recvmsg() */
    struct iovec *rest; /* REST_VECTORS of them: what iov is where a confined process may receive so much only */
};

#define RECEIVE_KERNEL_ONLY (MSG_OOB | MSG_ERRQUEUE)

static void receive_cancelled(void *receiving)
{
    struct receiving *x = receiving;
    if (x->mode == RECEIVING_COUNTED) candidate_sleep_end(x->fd);
    if (x->mode == RECEIVING_STREAM) ENGINE_DO(engine.recv_end(x->stream, -1, x->flags));
    if (x->mode == RECEIVING_WAIT) ENGINE_DO(engine.recv_wait_end(x->stream));
}

/* Sleeps until the kernel has something for this socket. A receive that only peeks sleeps and wakes like the program's
 * own: SO_RCVTIMEO, SA_RESTART and errors included. 0, or -1 with errno. */
static int receive_wait(struct receiving *x)
{
    char byte;
    ssize_t seen;
    x->mode = RECEIVING_WAIT;
    OPEN_WHILE(receive_cancelled, x, seen = REAL(recv)(x->fd, &byte, 1, MSG_PEEK));
    x->mode = RECEIVING_STREAM;
    ENGINE_DO(engine.recv_wait_end(x->stream));
    return seen < 0 ? -1 : 0;
}

/* MSG_TRUNC throws the bytes away, and the program's buffer may not even exist. So many at a time: a short receive is one that a
 * program expects. */
static __attribute__((noinline)) ssize_t begin_discarding(struct receiving *x, bool blocking)
{
    char bounce[2048];
    struct iovec iov = {bounce, 0};
    for (int i = 0; i < x->count && iov.iov_len < sizeof bounce; i++) iov.iov_len += x->iov[i].iov_len;
    if (iov.iov_len > sizeof bounce) iov.iov_len = sizeof bounce;
    return ENGINE_HELD(engine.recv_begin(x->stream, &iov, 1, x->flags, blocking));
}

static ssize_t begin(struct receiving *x, const struct iovec *iov, int count, bool blocking)
{
    if (UNLIKELY(x->flags & MSG_TRUNC)) return begin_discarding(x, blocking);
    return ENGINE_HELD(engine.recv_begin(x->stream, iov, count, x->flags, blocking));
}

/* MSG_WAITALL when the ring had only a part: the rest, wherever it comes from. Ends early where the kernel would: end of
 * file, error, signal, SO_RCVTIMEO. */
static __attribute__((noinline)) ssize_t receive_rest(struct receiving *x, size_t done)
{
    struct iovec rest[SHIM_PIECES];
    for (;;) {
        int count = iov_after(x->iov, x->count, done, rest);
        if (count == 0) return (ssize_t)done;
        ssize_t step = begin(x, rest, count, true);
        if (step == MOTET_KERNEL) {
            size_t wanted = 0;
            for (int i = 0; i < count; i++) wanted += rest[i].iov_len;
            struct msghdr message = {.msg_iov = rest, .msg_iovlen = (size_t)count};
            OPEN_WHILE(receive_cancelled, x, step = REAL(recvmsg)(x->fd, &message, x->flags & ~MOTET_PLAIN));
            /* An error that ends the connection is told once, and these bytes come first. */
            bool dead = step < 0 && errno != EINTR && errno != EAGAIN && errno != EFAULT && errno != EBADF && errno != ENOMEM;
            ENGINE_DO(engine.recv_end(x->stream, dead ? -errno : step, x->flags));
            if (step > 0) done += (size_t)step;
            if (step == (ssize_t)wanted) continue; /* there may be more buffers */
            return (ssize_t)done;
        }
        if (step == MOTET_POLL && receive_wait(x) == 0) continue;
        if (step <= 0) return (ssize_t)done;
        done += (size_t)step;
    }
}

/* What follows `done` bytes of the buffers, `limit` at most, into x->rest. */
static int rest_first(struct receiving *x, size_t done, uint64_t limit)
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

/* MSG_WAITALL: recv(2) where that is what the program calls, otherwise recvmsg(2). */
static __attribute__((noinline)) ssize_t rest_whole(struct receiving *x)
{
    size_t done = 0, whole = 0;
    for (int i = 0; i < x->count; i++) whole += x->iov[i].iov_len;
    while (done < whole) {
        uint64_t limit = UINT64_MAX;
        int count = rest_first(x, done, UINT64_MAX);
        bool left = word_kind(table_word(x->fd)) == KIND_REST;
        ssize_t got = left ? confined_take(x->fd, x->rest, count, x->flags, &limit) : 0;
        if (got == 0) {
            count = rest_first(x, done, limit);
            struct msghdr message = {.msg_iov = x->rest, .msg_iovlen = (size_t)count};
            got = x->message ? REAL(recvmsg)(x->fd, &message, x->flags) : REAL(recv)(x->fd, x->rest->iov_base, x->rest->iov_len, x->flags);
            confined_came(x->fd, got, x->flags);
        }
        if (got <= 0) return done > 0 ? (ssize_t)done : got;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

/* In a confined process, while the ring holds bytes still: they, or a shorter call of the program's own. */
static __attribute__((noinline)) bool rest_start(struct receiving *x)
{
    uint64_t limit;
    x->mode = RECEIVING_PLAIN;
    if (x->flags & MSG_WAITALL && !(x->flags & MSG_PEEK)) {
        x->result = rest_whole(x);
        return false;
    }
    x->result = confined_take(x->fd, x->iov, x->count, x->flags, &limit);
    if (x->result != 0) return false;
    if (limit == UINT64_MAX) return true;
    x->mode = RECEIVING_REST;
    x->count = rest_first(x, 0, limit);
    x->iov = x->rest;
    return true;
}

/* True: make the kernel call, then receive_finish(). False: x->result and errno are the answer. */
static bool receive_start(struct receiving *x)
{
    uint64_t word = table_word(x->fd);
    if (UNLIKELY(word_kind(word) == KIND_CLOSED)) word = candidate_touch(x->fd, RECEIVING);
    for (;;) {
        if (word_kind(word) == KIND_CANDIDATE || word_kind(word) == KIND_UPGRADING) word = candidate_touch(x->fd, RECEIVING);
        if (word_kind(word) != KIND_CANDIDATE) break;
        x->mode = RECEIVING_COUNTED;
        if (candidate_sleep_begin(x->fd)) return true;
        word = table_word(x->fd);
    }
    x->mode = RECEIVING_PLAIN;
    if (word_kind(word) == KIND_PRIVATE) {
        errno = EBADF;
        x->result = -1;
        return false;
    }
    if (UNLIKELY(word_kind(word) == KIND_REST)) return rest_start(x);
    if (word_kind(word) != KIND_STREAM) return true;
    if (UNLIKELY(shim_depth > 0)) {
        errno = EAGAIN;
        x->result = -1;
        return false;
    }
    if (UNLIKELY(x->count < 0 || x->count > IOV_MAX)) return true; /* the kernel's error to give */
    x->mode = RECEIVING_STREAM;
    x->stream = table_handle(x->fd);
    if (UNLIKELY(x->flags & RECEIVE_KERNEL_ONLY)) x->flags |= MOTET_PLAIN;
    bool blocks = !(x->flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) && table_blocks(x->fd, word);
    int kept = errno;
    bool timed_out = false;
    for (;;) {
        ssize_t step = begin(x, x->iov, x->count, blocks && !timed_out);
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
                timed_out = true; /* SO_RCVTIMEO has passed: one last look at the ring */
                continue;
            }
            x->result = -1;
            return false;
        }
        if (step == -EBADF) {
            x->mode = RECEIVING_PLAIN; /* closed by another thread meanwhile */
            errno = kept;
            return true;
        }
        errno = (int)-step;
        x->result = -1;
        return false;
    }
}

/* The end that the kernel reports is a reset when the peer left bytes unread that the kernel knows nothing of: the engine has
 * looked, and says so. */
static __attribute__((noinline)) ssize_t end_of_file(struct receiving *x)
{
    int kept = errno;
    ssize_t step = begin(x, x->iov, 0, false);
    if (step == MOTET_KERNEL) ENGINE_DO(engine.recv_end(x->stream, -1, x->flags));
    signals_due();
    errno = step == -ECONNRESET ? ECONNRESET : kept;
    return step == -ECONNRESET ? -1 : 0;
}

static ssize_t receive_finish(struct receiving *x, ssize_t result)
{
    if (x->mode == RECEIVING_COUNTED) {
        candidate_sleep_end(x->fd);
        if (result > 0 && !(x->flags & MSG_PEEK)) candidate_count(x->fd, RECEIVING);
    }
    if (UNLIKELY(x->mode == RECEIVING_REST)) confined_came(x->fd, result, x->flags);
    if (x->mode == RECEIVING_STREAM) {
        ENGINE_DO(engine.recv_end(x->stream, result, x->flags));
        if (UNLIKELY(result == 0)) result = end_of_file(x);
    }
    return result;
}

/* Declares `result`, and `from_ring`: false when the kernel call filled in the caller's other arguments. */
#define RECEIVE_THROUGH(FD, IOV, COUNT, FLAGS, CALL) RECEIVE_AS(false, FD, IOV, COUNT, FLAGS, CALL)
#define RECEIVE_AS(MESSAGE, FD, IOV, COUNT, FLAGS, CALL)                                                                \
    struct iovec rest_[REST_VECTORS];                                                                                   \
    struct receiving x = {.fd = (FD), .iov = (IOV), .count = (COUNT), .flags = (FLAGS), .message = (MESSAGE), .rest = rest_}; \
    ssize_t result;                                                                                                     \
    bool from_ring = !receive_start(&x);                                                                                \
    if (from_ring) {                                                                                                    \
        signals_due();                                                                                                  \
        result = x.result;                                                                                              \
    } else {                                                                                                            \
        OPEN_WHILE(receive_cancelled, &x, result = CALL);                                                               \
        result = receive_finish(&x, result);                                                                            \
    }

SHIM_API ssize_t read(int fd, void *data, size_t length)
{
    if (word_is_plain(table_word(fd))) return REAL(read)(fd, data, length);
    struct iovec iov = {data, length};
    RECEIVE_THROUGH(fd, &iov, 1, 0, REAL(read)(fd, data, x.iov->iov_len))
    return result;
}

SHIM_API ssize_t readv(int fd, const struct iovec *iov, int count)
{
    if (word_is_plain(table_word(fd))) return REAL(readv)(fd, iov, count);
    RECEIVE_THROUGH(fd, iov, count, 0, REAL(readv)(fd, x.iov, x.count))
    return result;
}

/* As pwritev2(). */
SHIM_API ssize_t preadv2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
    if (word_is_plain(table_word(fd)) || offset != -1 || flags & ~SHIM_RWF_IGNORED) return REAL(preadv2)(fd, iov, count, offset, flags);
    int nowait = flags & RWF_NOWAIT ? MSG_DONTWAIT : 0;
    RECEIVE_THROUGH(fd, iov, count, nowait, REAL(preadv2)(fd, x.iov, x.count, offset, flags))
    return result;
}

SHIM_API ssize_t preadv64v2(int fd, const struct iovec *iov, int count, off_t offset, int flags) __attribute__((alias("preadv2")));

SHIM_API ssize_t recv(int fd, void *data, size_t length, int flags)
{
    if (word_is_plain(table_word(fd))) return REAL(recv)(fd, data, length, flags);
    struct iovec iov = {data, length};
    RECEIVE_THROUGH(fd, &iov, 1, flags, REAL(recv)(fd, data, x.iov->iov_len, flags))
    return result;
}

/* A connected TCP socket gives no address: the kernel sets the length to 0. */
SHIM_API ssize_t recvfrom(int fd, void *data, size_t length, int flags, struct sockaddr *from, socklen_t *from_length)
{
    if (word_is_plain(table_word(fd))) return REAL(recvfrom)(fd, data, length, flags, from, from_length);
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
    if (word_is_plain(table_word(fd))) return REAL(recvmsg)(fd, message, flags);
    int count = message->msg_iovlen > IOV_MAX ? -1 : (int)message->msg_iovlen;
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
    if (word_is_plain(table_word(fd))) return REAL(recvmmsg)(fd, messages, count, flags, timeout);
    struct timespec start, now;
    if (timeout) clock_gettime(CLOCK_MONOTONIC, &start);
    unsigned done = 0;
    while (done < count) {
        ssize_t got = recvmsg(fd, &messages[done].msg_hdr, flags & ~MSG_WAITFORONE);
        if (got < 0) break;
        messages[done++].msg_len = (unsigned)got;
        if (flags & MSG_WAITFORONE) flags |= MSG_DONTWAIT;
        if (!timeout) continue;
        clock_gettime(CLOCK_MONOTONIC, &now); /* looked at after each message only, as the kernel does */
        if (now.tv_sec - start.tv_sec > timeout->tv_sec ||
            (now.tv_sec - start.tv_sec == timeout->tv_sec && now.tv_nsec - start.tv_nsec >= timeout->tv_nsec))
            break;
    }
    return done > 0 || count == 0 ? (int)done : -1;
}

SHIM_API ssize_t __read_chk(int fd, void *data, size_t length, size_t room)
{
    if (length > room) __chk_fail();
    return read(fd, data, length);
}

SHIM_API ssize_t __recv_chk(int fd, void *data, size_t length, size_t room, int flags)
{
    if (length > room) __chk_fail();
    return recv(fd, data, length, flags);
}

SHIM_API ssize_t __recvfrom_chk(int fd, void *data, size_t length, size_t room, int flags, struct sockaddr *from,
                                socklen_t *from_length)
{
    if (length > room) __chk_fail();
    return recvfrom(fd, data, length, flags, from, from_length);
}

SHIM_API ssize_t __read(int fd, void *data, size_t length) __attribute__((alias("read")));
