/* descriptors.c: calls that create, copy, change or close descriptors.
 *
 * What it is:   socket, connect, accept, shutdown, close, close_range, the dup family, fcntl, ioctl, setsockopt, getsockopt. Each makes the
 *               kernel's call and keeps the table consistent with it.
 * What it isn't: a virtualisation. Numbers, errors and options are the kernel's, with one exception: descriptors of the engine and of this
 *               object behave as not open (EBADF).
 *
 * Signal safety: as libc's; the table lock defers signal handlers. In a handler that interrupted the engine (reentrancy_depth > 0) only the
 * kernel's call is made, and a close is recorded for later. Fork safety: in a vfork child only the kernel's call is made; a copy of a
 * stream's descriptor moves the stream to TCP first. errno: kept on success. */
#include "sockets.h"

#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>

#ifndef TCP_ULP
#define TCP_ULP 31
#endif
#ifndef TCP_ZEROCOPY_RECEIVE
#define TCP_ZEROCOPY_RECEIVE 35
#endif
#ifndef TCP_INQ
#define TCP_INQ 36
#endif
#ifndef TCP_REPAIR
#define TCP_REPAIR 19
#endif

static bool may_change_table(void) { return reentrancy_depth == 0 && table_in_own_process(); }

static int not_open(void)
{
    errno = EBADF;
    return -1;
}

/* Asked for untracked descriptors as well: those of the engine are not in the table. */
static bool is_private(int fd) { return fd >= 0 && engine_owns(fd); }

/* ---------------------------------------------------------------- creating */

SHIM_API int socket(int domain, int type, int protocol)
{
    int fd = REAL(socket)(domain, type, protocol);
    if (fd < 0) return fd;
    bool disabled = engine_disabled(); /* first: under a seccomp filter no further call may follow */
    if (!may_change_table()) return fd;
    bool tcp = (domain == AF_INET || domain == AF_INET6) && (type & 0xf) == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);
    if (UNLIKELY(fd >= SHIM_TRACKED_FDS)) {
        if (tcp) engine_count_tcp_only(REASON_TOO_HIGH);
        return fd;
    }
    int kept = errno;
    table_set(fd, tcp && !disabled ? KIND_UNCONNECTED : KIND_NONE);
    errno = kept;
    return fd;
}

SHIM_API int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    bool disconnects = UNLIKELY(word_kind(table_word(fd)) >= KIND_CANDIDATE) && address && length >= sizeof address->sa_family &&
                address->sa_family == AF_UNSPEC;
    if (disconnects && may_change_table()) { /* a later connection of this socket is another one, and stays on TCP */
        int kept = errno;
        table_disconnect(fd);
        errno = kept;
    }
    int result = REAL(connect)(fd, address, length);
    if (LIKELY(word_kind(table_word(fd)) != KIND_UNCONNECTED)) return result;
    if ((result == 0 || errno == EINPROGRESS || errno == EINTR) && address && address->sa_family != AF_UNSPEC && may_change_table()) {
        int kept = errno;
        candidate_new(fd, false, result == 0 ? -1 : errno == EINPROGRESS ? 1 : 0);
        errno = kept;
    }
    return result;
}

static int accepted(int fd, int nonblock)
{
    if (fd < 0) return fd;
    bool disabled = engine_disabled();
    if (!may_change_table()) return fd;
    int kept = errno, domain = 0, protocol = 0;
    socklen_t size = sizeof domain;
    bool tcp = !disabled && getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
               (domain == AF_INET || domain == AF_INET6) && getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 &&
               protocol == IPPROTO_TCP;
    if (UNLIKELY(fd >= SHIM_TRACKED_FDS)) {
        if (tcp) engine_count_tcp_only(REASON_TOO_HIGH);
    } else if (tcp)
        candidate_new(fd, true, nonblock);
    else
        table_set(fd, KIND_NONE);
    errno = kept;
    return fd;
}

SHIM_API int accept(int listener, struct sockaddr *address, socklen_t *length)
{
    return accepted(REAL(accept)(listener, address, length), 0);
}

SHIM_API int accept4(int listener, struct sockaddr *address, socklen_t *length, int flags)
{
    return accepted(REAL(accept4)(listener, address, length, flags), !!(flags & SOCK_NONBLOCK));
}

/* ---------------------------------------------------------------- closing */

SHIM_API int shutdown(int fd, int how)
{
    uint64_t word = table_word(fd);
    if (word_passes_through(word) || word_kind(word) != KIND_STREAM || reentrancy_depth > 0) return REAL(shutdown)(fd, how);
    int result = ENGINE(engine.shutdown(table_handle(fd), how));
    if (result == -EBADF || result == -EINVAL) return REAL(shutdown)(fd, how);
    if (result == 0) return 0;
    errno = -result;
    return -1;
}

SHIM_API int close(int fd)
{
    if (UNLIKELY(reentrancy_depth > 0)) {
        table_close_in_handler(fd);
        return REAL(close)(fd);
    }
    if (LIKELY(word_kind(table_word(fd)) == KIND_NONE)) {
        if (UNLIKELY(is_private(fd)) && table_in_own_process()) return not_open();
        return REAL(close)(fd);
    }
    if (!table_in_own_process()) return REAL(close)(fd);
    if (word_kind(table_word(fd)) == KIND_PRIVATE) return not_open();
    int kept = errno;
    table_set(fd, KIND_NONE);
    errno = kept;
    return REAL(close)(fd);
}

/* The first private descriptor from a number on; UINT_MAX: none. The numbers are kept in memory: /proc may be missing, and so may a free
 * descriptor to list it with. */
static unsigned next_private_fd(unsigned from)
{
    unsigned found = UINT_MAX;
    for (int fd = from < SHIM_TRACKED_FDS ? (int)from : SHIM_TRACKED_FDS; found == UINT_MAX && fd <= atomic_load(&fd_top); fd++)
        if (word_kind(table_word(fd)) == KIND_PRIVATE) found = (unsigned)fd;
    int engine_fd = engine_is_open() && from <= INT_MAX ? ENGINE(engine.next_owned_fd((int)from)) : -1;
    return engine_fd >= 0 && (unsigned)engine_fd < found ? (unsigned)engine_fd : found;
}

SHIM_API int close_range(unsigned first, unsigned last, int flags)
{
    if (UNLIKELY(flags & CLOSE_RANGE_UNSHARE)) lifecycle_before_unshare();
    if (first > last || (flags & CLOSE_RANGE_CLOEXEC) || table_is_empty() || !may_change_table()) return REAL(close_range)(first, last, flags);
    for (unsigned fd = first; fd <= last && (int)fd <= atomic_load(&fd_top); fd++)
        if (word_kind(table_word((int)fd)) != KIND_NONE && word_kind(table_word((int)fd)) != KIND_PRIVATE)
            table_set((int)fd, KIND_NONE);
    for (unsigned private_fd; first <= last; first = private_fd + 1) {
        private_fd = next_private_fd(first);
        if (private_fd > last || private_fd == UINT_MAX) return REAL(close_range)(first, last, flags);
        if (private_fd > first && REAL(close_range)(first, private_fd - 1, flags) != 0) return -1;
    }
    return 0;
}

SHIM_API void closefrom(int lowest) { close_range(lowest < 0 ? 0 : (unsigned)lowest, UINT_MAX, 0); }

/* ---------------------------------------------------------------- copying */

/* `to` is a copy of `from`. Duplicates of a candidate form a group, so that one stream replaces all of them. A descriptor that stdio may use
 * is handed over. */
static int duplicated(int from, int to)
{
    if (to < 0 || to >= SHIM_TRACKED_FDS) return to;
    int kept = errno;
    if (UNLIKELY(to <= SHIM_STDIO_FD_MAX)) handover_fd(from, REASON_STDIO);
    uint64_t word = table_word(from);
    table_set(to, KIND_NONE);
    if (word_kind(word) >= KIND_EPOLL && word_kind(word) != KIND_PRIVATE) {
        table_lock();
        word = table_word(from);
        if (word_kind(word) == KIND_CANDIDATE && word_extra(word) == 0)
            word |= table_new_group();
        if (word_kind(word) >= KIND_EPOLL) {
            atomic_store(&fd_handles[to], atomic_load(&fd_handles[from]));
            table_replace(from, word | WORD_SHARED | WORD_DUPLICATED);
            table_replace(to, word | WORD_SHARED | WORD_DUPLICATED);
        }
        table_unlock();
    } else if (word_kind(word) == KIND_UNCONNECTED) {
        table_set(from, KIND_NONE);
    }
    errno = kept;
    return to;
}

static bool is_open(int fd) { return engine_confined() || REAL(fcntl)(fd, F_GETFD) >= 0; }

/* A vfork child copies descriptors for the program that it will execute. */
static void duplicated_in_vfork_child(int from)
{
    if (reentrancy_depth == 0 && !table_in_own_process()) handover_fd(from, REASON_EXEC);
}

SHIM_API int dup(int fd)
{
    if (table_is_empty()) return REAL(dup)(fd);
    if (!may_change_table()) {
        duplicated_in_vfork_child(fd);
        return REAL(dup)(fd);
    }
    if (is_private(fd)) return not_open();
    return duplicated(fd, REAL(dup)(fd));
}

static int dup_onto(int from, int to, int flags, bool three)
{
    if (UNLIKELY(reentrancy_depth > 0) && from != to) table_close_in_handler(to);
    if (!table_is_empty() && !may_change_table()) duplicated_in_vfork_child(from);
    if (table_is_empty() || !may_change_table()) return three ? REAL(dup3)(from, to, flags) : REAL(dup2)(from, to);
    if (is_private(from) || is_private(to)) return not_open();
    if (from == to || to < 0 || !is_open(from)) return three ? REAL(dup3)(from, to, flags) : REAL(dup2)(from, to);
    if (word_kind(table_word(to)) != KIND_NONE) table_set(to, KIND_NONE); /* the kernel closes it */
    return duplicated(from, three ? REAL(dup3)(from, to, flags) : REAL(dup2)(from, to));
}

SHIM_API int dup2(int from, int to) { return dup_onto(from, to, 0, false); }

SHIM_API int dup3(int from, int to, int flags) { return dup_onto(from, to, flags, true); }

/* ---------------------------------------------------------------- changing */

SHIM_API int fcntl(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (UNLIKELY(engine_is_open()) && reentrancy_depth == 0 && is_private(fd)) return not_open();
    int result = REAL(fcntl)(fd, command, argument);
    if (LIKELY(word_kind(table_word(fd)) == KIND_NONE) && command != F_DUPFD && command != F_DUPFD_CLOEXEC) return result;
    if (result < 0) return result;
    if (!may_change_table()) {
        if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) duplicated_in_vfork_child(fd);
        return result;
    }
    switch (command) {
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
        return duplicated(fd, result);
    case F_SETFL:
        if (word_kind(table_word(fd)) >= KIND_CANDIDATE) fork_shared_nonblock_changed();
        table_record_nonblock(fd, (long)argument & O_NONBLOCK);
        if ((long)argument & O_ASYNC) table_force_tcp(fd, REASON_UNSEEN_WAIT);
        return result;
    case F_SETSIG:
        table_force_tcp(fd, REASON_UNSEEN_WAIT);
        return result;
    default:
        return result;
    }
}

/* Looks at the ring and at the kernel so often, while the sender takes bytes of the ring back to TCP. */
#define COUNTS_MAX 64

/* FIONREAD of a stream: the bytes of the ring and of the kernel at one time. The sender may take bytes of the ring back to TCP between the two, so the ring
 * must be the same before and after the kernel was asked. */
static int count_unread(int fd, motet_stream stream, int *unread)
{
    for (int counts = 1;; counts++) {
        uint64_t position = ENGINE(engine.rx_position(stream));
        size_t before = ENGINE(engine.rx_bytes(stream));
        int result = REAL(ioctl)(fd, FIONREAD, unread);
        if (result < 0) return result;
        size_t after = ENGINE(engine.rx_bytes(stream));
        bool returning = after == 0 && (ENGINE(engine.rx_ready(stream)) & MOTET_RX_DATA);
        bool same = before == after && position == ENGINE(engine.rx_position(stream)) && !returning;
        if (same || counts == COUNTS_MAX) {
            *unread = after > (size_t)(INT_MAX - *unread) ? INT_MAX : *unread + (int)after;
            return result;
        }
        if (returning) sched_yield();
    }
}

SHIM_API int ioctl(int fd, unsigned long request, ...)
{
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    uint64_t word = table_word(fd);
    if (request == FIONREAD && word_kind(word) == KIND_STREAM && reentrancy_depth == 0 && argument) return count_unread(fd, table_handle(fd), argument);
    int result = REAL(ioctl)(fd, request, argument);
    if (LIKELY(word_kind(word) < KIND_CANDIDATE) || result < 0 || reentrancy_depth > 0) return result;
    if (request == FIONBIO) {
        fork_shared_nonblock_changed();
        table_record_nonblock(fd, *(int *)argument != 0);
    }
    if (request == FIOASYNC && *(int *)argument != 0) table_force_tcp(fd, REASON_UNSEEN_WAIT);
    if (request == FIONREAD && word_kind(word) == KIND_RING_REST) {
        size_t bytes = confined_bytes(fd);
        int kernel = *(int *)argument;
        *(int *)argument = bytes > (size_t)(INT_MAX - kernel) ? INT_MAX : kernel + (int)bytes;
    }
    return result;
}

/* Stores the program's TCP_NODELAY in the engine when shared memory is in use. The kernel's option stays set then. */
static void nodelay_changed(int fd, bool on)
{
    if (word_kind(table_word(fd)) != KIND_STREAM || ENGINE(engine.nodelay(table_handle(fd), on)) < 0) return;
    static const int set = 1;
    REAL(setsockopt)(fd, IPPROTO_TCP, TCP_NODELAY, &set, sizeof set);
}

/* True for options that make receives report, or peek at, what only the kernel's queue provides. */
static bool option_needs_kernel(int level, int name)
{
    if (level == IPPROTO_TCP) return name == TCP_INQ;
    if (level != SOL_SOCKET) return false;
    switch (name) {
    case SO_PEEK_OFF:
    case SO_TIMESTAMP:
    case SO_TIMESTAMPNS:
    case SO_TIMESTAMPING:
    case SO_TIMESTAMP_NEW:
    case SO_TIMESTAMPNS_NEW:
    case SO_TIMESTAMPING_NEW:
    case SO_ATTACH_FILTER:
    case SO_ATTACH_BPF:
        return true;
    default: return false;
    }
}

/* Options that refer to TCP's own queue end the fast path. */
SHIM_API int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    if (UNLIKELY(level == SOL_SOCKET && name == SO_PEEK_OFF) && word_kind(table_word(fd)) == KIND_STREAM && reentrancy_depth == 0) {
        int kept = errno;
        table_force_tcp(fd, REASON_KERNEL_METADATA);
        bool empty = ENGINE(engine.set_tcp_only(table_handle(fd), REASON_KERNEL_METADATA)) != 0;
        errno = empty ? kept : EOPNOTSUPP; /* as before Linux 6.9: the kernel's peek offset would not count the bytes of the ring */
        if (!empty) return -1;
    }
    int result = REAL(setsockopt)(fd, level, name, value, length);
    if (LIKELY(word_kind(table_word(fd)) < KIND_CANDIDATE) || result != 0 || reentrancy_depth > 0) return result;
    if (level == IPPROTO_TCP && name == TCP_NODELAY) nodelay_changed(fd, *(const int *)value != 0);
    if (option_needs_kernel(level, name)) table_force_tcp(fd, REASON_KERNEL_METADATA);
    /* What is unread counts for the mark, so it returns to TCP. */
    if (level == SOL_SOCKET && name == SO_RCVLOWAT && length >= sizeof(int) && *(const int *)value > 1) handover_fd(fd, REASON_UNSEEN_WAIT);
    if (level == IPPROTO_TCP && (name == TCP_ULP || name == TCP_REPAIR)) table_force_tcp(fd, REASON_UNSEEN_WAIT);
    return result;
}

SHIM_API int getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
    if (UNLIKELY(level == IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE) && reentrancy_depth == 0) table_force_tcp(fd, REASON_KERNEL_METADATA);
    int result = REAL(getsockopt)(fd, level, name, value, length);
    if (LIKELY(level != IPPROTO_TCP || name != TCP_NODELAY) || result != 0 || reentrancy_depth > 0) return result;
    if (word_kind(table_word(fd)) != KIND_STREAM) return result;
    int seen = ENGINE(engine.nodelay(table_handle(fd), -1));
    if (seen >= 0) memcpy(value, &seen, *length < sizeof seen ? *length : sizeof seen);
    return result;
}

SHIM_API int fcntl64(int fd, int command, ...) __attribute__((alias("fcntl")));
SHIM_API int __fcntl(int fd, int command, ...) __attribute__((alias("fcntl")));
SHIM_API int __close(int fd) __attribute__((alias("close")));
SHIM_API int __connect(int fd, const struct sockaddr *address, socklen_t length) __attribute__((alias("connect")));
SHIM_API int __dup2(int from, int to) __THROW __attribute__((alias("dup2")));
