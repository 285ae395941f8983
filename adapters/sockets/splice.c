/* splice.c: payload that the kernel moves between descriptors: sendfile, splice.
 *
 * What it is:   transfers through the kernel. The stream's gate is closed around them, which keeps the order of bytes. Short pieces of files
 *               are sent like any payload.
 * What it isn't: tee and vmsplice. They take pipes only and are not interposed.
 *
 * When a program splices out of a socket whose ring holds bytes, they are copied to the pipe, SPLICE_BYTES_MAX at most, and then taken from
 * the ring. Another thread that receives from the socket at that moment may get them as well.
 * Signal safety: as libc's; in a handler that interrupted the engine sendfile() to a stream fails with EAGAIN, splice() out of one reads the
 * kernel only. Fork safety: the engine's. errno: kept on success. */
#include "sockets.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHORT_FILE_BYTES 16384
#define SPLICE_BYTES_MAX 2048

struct kernel_transfer {
    motet_stream stream;
    int fd;
    bool sends, active, counted, waits;
};

static void transfer_cancelled(void *transfer)
{
    struct kernel_transfer *x = transfer;
    if (x->counted) candidate_kernel_leave(x->fd);
    if (x->waits) ENGINE_DO(engine.recv_wait_end(x->stream));
    if (!x->active) return;
    if (x->sends)
        ENGINE_DO(engine.send_end(x->stream, -1));
    else
        ENGINE_DO(engine.recv_end(x->stream, -1, MOTET_KERNEL_ONLY));
}

static uint64_t settled_word(struct kernel_transfer *x)
{
    for (;;) {
        uint64_t word = table_word(x->fd);
        if (word_kind(word) < KIND_CANDIDATE) return word;
        word = candidate_upgrade_if_due(x->fd, x->sends ? SENDING : RECEIVING);
        if (word_kind(word) != KIND_CANDIDATE) return word;
        x->counted = candidate_kernel_enter(x->fd);
        if (x->counted) return word;
    }
}

/* Returns 1: make the kernel call. 0: *result is the answer. */
static int begin_send_transfer(struct kernel_transfer *x, ssize_t *result)
{
    uint64_t word = settled_word(x);
    if (word_kind(word) == KIND_PRIVATE || (word_kind(word) == KIND_STREAM && reentrancy_depth > 0)) {
        errno = word_kind(word) == KIND_PRIVATE ? EBADF : EAGAIN;
        *result = -1;
        return 0;
    }
    if (word_kind(word) != KIND_STREAM) return 1;
    x->stream = table_handle(x->fd);
    ssize_t step;
    int nowait = table_is_blocking(x->fd, word) ? 0 : MSG_DONTWAIT;
    while ((step = ENGINE(engine.send_begin(x->stream, NULL, 0, MOTET_KERNEL_ONLY | nowait))) == MOTET_POLL)
        if (send_wait_writable(x->fd) != 0) {
            *result = -1;
            return 0;
        }
    x->active = step == MOTET_KERNEL;
    if (step < 0 && step != MOTET_KERNEL && step != -EBADF) {
        errno = (int)-step;
        *result = -1;
        return 0;
    }
    return 1;
}

static ssize_t end_transfer(struct kernel_transfer *x, ssize_t result)
{
    if (x->active && x->sends) ENGINE_DO(engine.send_end(x->stream, result));
    if (x->active && !x->sends) ENGINE_DO(engine.recv_end(x->stream, result, MOTET_KERNEL_ONLY));
    if (x->counted) candidate_kernel_leave(x->fd);
    if (x->counted && result > 0) candidate_count(x->fd, x->sends ? SENDING : RECEIVING);
    return result;
}

/* Sends a short piece of a file like any payload, through the ring when its gate is open: reading it costs less than waking the peer. False:
 * nothing was sent, the kernel's call follows. */
static bool send_short_file(int out, int in, off_t *offset, size_t length, ssize_t *result)
{
    int kept = errno;
    if (length > SHORT_FILE_BYTES || reentrancy_depth > 0 || word_kind(table_word(out)) != KIND_STREAM) return false;
    char *piece = scratch_alloc();
    if (!piece) return false;
    off_t at = offset ? *offset : syscall(SYS_lseek, in, 0, SEEK_CUR);
    ssize_t got = at < 0 ? -1 : syscall(SYS_pread64, in, piece, length, at), sent = 0;
    errno = kept;
    WITH_CLEANUP(scratch_free, piece, if (got > 0) sent = send(out, piece, (size_t)got, 0));
    scratch_free(piece);
    if (got <= 0) return false;
    if (sent > 0 && offset) *offset = at + sent;
    if (sent > 0 && !offset) syscall(SYS_lseek, in, at + sent, SEEK_SET);
    *result = sent;
    return true;
}
_Static_assert(SHORT_FILE_BYTES <= SHIM_SCRATCH_BYTES, "a short file fits");

SHIM_API ssize_t sendfile(int out, int in, off_t *offset, size_t length)
{
    ssize_t sent;
    if (word_passes_through(table_word(out))) return REAL(sendfile)(out, in, offset, length);
    if (send_short_file(out, in, offset, length, &sent)) return sent;
    struct kernel_transfer x = {.fd = out, .sends = true};
    ssize_t result;
    if (!begin_send_transfer(&x, &result)) return result;
    WITH_CLEANUP(transfer_cancelled, &x, result = REAL(sendfile)(out, in, offset, length));
    return end_transfer(&x, result);
}

SHIM_API ssize_t sendfile64(int out, int in, off_t *offset, size_t length) __attribute__((alias("sendfile")));

#define RING_IS_EMPTY ((ssize_t)-2)

/* Copies ring bytes into a pipe. They are written first and then taken, as many as the pipe accepted, so none is lost when the pipe fills up
 * or its reader closes. RING_IS_EMPTY, with EAGAIN: no byte can be taken now. */
static ssize_t splice_from_ring(int from, int to, size_t length, unsigned flags)
{
    char bounce[SPLICE_BYTES_MAX];
    bool blocks = !(flags & SPLICE_F_NONBLOCK) && !(REAL(fcntl)(to, F_GETFL) & O_NONBLOCK);
    struct pollfd writable = {.fd = to, .events = POLLOUT};
    int ready = REAL(poll)(&writable, 1, blocks ? -1 : 0);
    if (ready <= 0) {
        if (ready == 0) errno = EAGAIN;
        return -1;
    }
    ssize_t seen = recv(from, bounce, length < sizeof bounce ? length : sizeof bounce, MSG_PEEK | MSG_DONTWAIT);
    if (seen < 0 && errno == EAGAIN) return RING_IS_EMPTY;
    if (seen <= 0) return seen;
    ssize_t written = REAL(write)(to, bounce, (size_t)seen);
    int kept = errno;
    for (ssize_t taken = 0; taken < written;) {
        ssize_t more = recv(from, bounce, (size_t)(written - taken), MSG_DONTWAIT);
        if (more <= 0) break;
        taken += more;
    }
    errno = kept;
    return written;
}

/* Sleeps until the kernel has bytes, which precede those of the ring. As receive_wait(). */
static int splice_wait(struct kernel_transfer *x)
{
    char byte;
    ssize_t peeked;
    x->waits = true;
    WITH_CLEANUP(transfer_cancelled, x, peeked = REAL(recv)(x->fd, &byte, 1, MSG_PEEK));
    x->waits = false;
    ENGINE_DO(engine.recv_wait_end(x->stream));
    return peeked < 0 ? -1 : 0;
}

/* Splices out of the ring. True: make the kernel's call instead. */
static bool begin_splice(struct kernel_transfer *x, int out, size_t length, unsigned flags, bool blocks, ssize_t *result)
{
    struct iovec none = {NULL, 0};
    struct pollfd moment = {.fd = -1}; /* a pause of a millisecond */
    for (;;) {
        ssize_t step = 0;
        if (!(ENGINE(engine.rx_ready(x->stream)) & MOTET_RX_DATA))
            step = ENGINE(engine.recv_begin(x->stream, &none, 0, MOTET_KERNEL_ONLY, !(flags & SPLICE_F_NONBLOCK)));
        if (step < 0 && step != MOTET_POLL) {
            x->active = step == MOTET_KERNEL;
            return true;
        }
        if (step == MOTET_POLL && blocks) {
            *result = -1;
            if (splice_wait(x) != 0) return false;
            continue;
        }
        if (step == MOTET_POLL) ENGINE_DO(engine.recv_wait_end(x->stream));
        *result = splice_from_ring(x->fd, out, length, flags);
        /* The producer has taken its bytes back: they come again, over TCP. */
        if (*result != RING_IS_EMPTY || !blocks) break;
        REAL(poll)(&moment, 1, 1);
    }
    if (*result == RING_IS_EMPTY) *result = -1;
    return false;
}

/* Copies ring bytes into a pipe in a confined process. What the pipe did not accept stays in the ring. */
static ssize_t splice_rest(int in, off_t *in_offset, int out, off_t *out_offset, size_t length, unsigned flags)
{
    char bounce[512];
    struct iovec some = {bounce, length < sizeof bounce ? length : sizeof bounce};
    uint64_t limit;
    ssize_t got = confined_take(in, &some, 1, MSG_PEEK, &limit);
    if (got == 0) {
        got = REAL(splice)(in, in_offset, out, out_offset, length < limit ? length : limit, flags);
        confined_received(in, got, 0);
        return got;
    }
    if (got > 0) got = REAL(write)(out, bounce, some.iov_len = (size_t)got);
    if (got > 0) some.iov_len = (size_t)got;
    if (got > 0) confined_take(in, &some, 1, 0, &limit);
    return got;
}

SHIM_API ssize_t splice(int in, off_t *in_offset, int out, off_t *out_offset, size_t length, unsigned flags)
{
    if (word_passes_through(table_word(in)) && word_passes_through(table_word(out)))
        return REAL(splice)(in, in_offset, out, out_offset, length, flags);
    bool sends = !word_passes_through(table_word(out));
    struct kernel_transfer x = {.fd = sends ? out : in, .sends = sends};
    ssize_t result;
    if (x.sends) {
        if (!begin_send_transfer(&x, &result)) return result;
    } else {
        uint64_t word = settled_word(&x);
        if (UNLIKELY(word_kind(word) == KIND_RING_REST)) return splice_rest(in, in_offset, out, out_offset, length, flags);
        if (word_kind(word) == KIND_STREAM && reentrancy_depth == 0) {
            x.stream = table_handle(in);
            bool blocks = !(flags & SPLICE_F_NONBLOCK) && table_is_blocking(in, word);
            if (!begin_splice(&x, out, length, flags, blocks, &result)) return result;
        }
    }
    WITH_CLEANUP(transfer_cancelled, &x, result = REAL(splice)(in, in_offset, out, out_offset, length, flags));
    return end_transfer(&x, result);
}
