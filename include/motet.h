/* motet.h: the C interface of Motet's engine (libmotet.so.0).
 *
 * What it is:   byte streams between two processes on the fastest path there is. A stream starts as a TCP connection
 *               that the caller made and keeps; motet_upgrade() lets its payload move to a faster wire (shared memory
 *               on one host) and back, at any byte, without adding anything to the TCP stream.
 * What it isn't: a sockets replacement. Names, backlog, firewalls, errors and end of file stay the kernel's.
 *
 * Conventions
 *   - A function that can fail returns a negative errno (-EAGAIN, -ECONNRESET ...), never sets errno, never raises SIGPIPE.
 *   - Sizes are bytes, times are nanoseconds of CLOCK_MONOTONIC, a deadline of INT64_MAX means none.
 *   - A struct that may grow starts with `size`: set it to sizeof the struct you compiled with (MOTET_INIT does).
 *     The library reads and writes no further than that.
 *   - Every call may be made from any thread. None may be made from a signal handler except where stated.
 *   - No call throws, and none lets a Rust panic out: an internal failure returns -EPROTO and closes the stream's gate.
 */
#ifndef MOTET_H
#define MOTET_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOTET_VERSION_MAJOR 0
#define MOTET_VERSION_MINOR 1

/* Version of the library in use: (major << 16) | minor. Callable from a signal handler. */
uint32_t motet_version(void);

/* ------------------------------------------------------------------ streams */

/* A stream's handle. 0 is no stream. A handle outlives its stream harmlessly: it is checked on every use (-EBADF). */
typedef uint64_t motet_stream;

#define MOTET_INIT(type) { .size = sizeof(type) }

enum motet_role { MOTET_ROLE_CONNECTED = 1, MOTET_ROLE_ACCEPTED = 2 };

enum motet_upgrade_flags {
    MOTET_UPGRADE_LAZY = 1,  /* begin after the first few messages, so that short connections pay nothing */
    MOTET_UPGRADE_RECEIVES = 2, /* what is received on it goes through motet_recv_*; implied without LAZY */
};

struct motet_upgrade_options {
    size_t size;
    uint32_t role;   /* enum motet_role: which end made the connection */
    uint32_t flags;  /* enum motet_upgrade_flags */
};

/* Takes a connected TCP socket under the engine. The descriptor stays the caller's; it must stay open until
 * motet_close(). A connection is one stream for all voices of a process: a second upgrade returns the same handle, and
 * the stream ends at the last motet_close(), one for each upgrade. Between them every byte must pass through Motet.
 * Never fails because the peer is not equipped: such a stream simply stays on TCP, with a reason in `motet why`.
 * Errors: -EBADF, -ENOTSOCK, -EPROTONOSUPPORT (not TCP), -ENOTCONN, -EMFILE (the engine's table is full). */
int motet_upgrade(int fd, const struct motet_upgrade_options *options, motet_stream *out);

/* Ends the engine's part in a stream: bytes that the peer has not read move back to TCP where that is still possible;
 * they stay readable by the peer in any case. Does not close the descriptor. Wakes calls blocked on the stream (-EBADF).
 * Returns 1 instead of 0 when bytes that came over the wire have not been read: they are lost, and the kernel, which does
 * not know of them, would end the connection in order. A caller that now closes the last descriptor of the socket lets
 * the peer know, as TCP would, by SO_LINGER {1, 0} before. */
int motet_close(motet_stream s);

/* Sends or receives like send(2)/recv(2), blocking unless MSG_DONTWAIT is given or the descriptor was
 * O_NONBLOCK when it was upgraded.
 * Flags: MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_WAITALL (others: -EOPNOTSUPP). A receive of 0 is end of file. */
ssize_t motet_send(motet_stream s, const void *data, size_t length, int flags);
ssize_t motet_recv(motet_stream s, void *data, size_t length, int flags);
ssize_t motet_sendv(motet_stream s, const struct iovec *iov, int count, int flags);
ssize_t motet_recvv(motet_stream s, const struct iovec *iov, int count, int flags);

/* Every blocking call on the stream fails with -ETIMEDOUT once CLOCK_MONOTONIC passes `deadline`. */
int motet_set_deadline(motet_stream s, int64_t deadline);

/* Makes the call that is blocked on the stream now, or else the next one that would block, return -EINTR. */
int motet_wake(motet_stream s);

/* Half-close: SHUT_RD, SHUT_WR, SHUT_RDWR as in shutdown(2). */
int motet_shutdown(motet_stream s, int how);

/* 1 when a receive would return at once (data, end of file or error), 0 when not. Consumes nothing. */
int motet_readable(motet_stream s);

/* Waits until one of the streams is readable. Returns its index, -ETIMEDOUT or -EINTR. */
int motet_wait_any(const motet_stream *streams, unsigned count, int64_t deadline);

enum motet_path { MOTET_PATH_TCP = 0, MOTET_PATH_SHM = 1, MOTET_PATH_LOOPBACK = 2 };

struct motet_stream_info {
    size_t size;
    struct sockaddr_storage local, peer; /* the real addresses */
    int32_t peer_pid;                    /* 0 when unknown (TCP) */
    int64_t peer_uid, peer_gid;          /* -1 when unknown */
    uint32_t path;                       /* enum motet_path: what payload takes now */
    uint32_t reason;                     /* why not something faster; text: motet_reason() */
    uint64_t sent_fast, sent_tcp, received_fast, received_tcp; /* bytes */
};
int motet_info(motet_stream s, struct motet_stream_info *info);

/* One line of English for a reason code; never NULL. */
const char *motet_reason(uint32_t reason);

/* ------------------------------------------------------------------ buffers
 * Pre-faulted, reusable memory: a block that is freed goes back to the pool, not to the kernel, so receiving into it takes no
 * page faults. Blocks are powers of two, at least 4 KiB, page-aligned. NULL when memory is exhausted. */
void *motet_buffer_alloc(size_t length);
void motet_buffer_free(void *buffer);

/* ------------------------------------------------------------------ split calls, for adapters
 * An adapter that sits under a program's own system calls lets the engine decide first and makes the kernel call itself
 * (so flags, cancellation points and signals stay those of the host library).
 *
 *   step = motet_send_begin(s, iov, n, flags);
 *   if (step == MOTET_KERNEL) { r = real sendmsg(...);  motet_send_end(s, r); }     r: bytes or -1
 *   else                        step is the result: bytes taken or a negative errno
 *
 *   step = motet_recv_begin(s, iov, n, flags, blocking);
 *   if (step == MOTET_KERNEL) { r = real recvmsg(...);  motet_recv_end(s, r, flags); }
 *                                                       r: or -errno, when the program is told only at its next call
 *   if (step == MOTET_POLL)   { sleep in poll(fd, POLLIN); motet_recv_wait_end(s); begin again }
 *
 * Between begin and end the stream knows that a thread may sleep in the kernel. A thread that is cancelled there must
 * still call the matching end with -1. `flags` are those of send(2)/recv(2); ones that the wire cannot carry (MSG_OOB,
 * ancillary data, splice ...) are announced with MOTET_PLAIN and go to the kernel. */
#define MOTET_KERNEL ((ssize_t)-1000001)
#define MOTET_POLL   ((ssize_t)-1000002)
#define MOTET_PLAIN  0x40000000 /* in flags: this transfer must use the kernel */

ssize_t motet_send_begin(motet_stream s, const struct iovec *iov, int count, int flags);
void motet_send_end(motet_stream s, ssize_t result);
ssize_t motet_recv_begin(motet_stream s, const struct iovec *iov, int count, int flags, int blocking);
void motet_recv_end(motet_stream s, ssize_t result, int flags);
void motet_recv_wait_end(motet_stream s);

/* Readiness of payload that the kernel does not know of. */
#define MOTET_RX_DATA 1u /* a receive would take bytes from the wire now */
unsigned motet_rx_ready(motet_stream s);
uint64_t motet_rx_position(motet_stream s); /* stream position after the last byte on the wire: edges compare it */
size_t motet_rx_bytes(motet_stream s);      /* bytes on the wire that can be had now, for FIONREAD: add them to the kernel's count */

/* TCP_NODELAY. A stream whose wire is up keeps it set in the kernel, as two paths and Nagle's algorithm do not mix, whatever
 * the program sets. `set`: 0 or 1, or -1 to ask. Returns what the program sees, or -1: the kernel's option is the program's. */
int motet_nodelay(motet_stream s, int set);

/* Gate for good: the stream stays on TCP from now on (stdio, exec, descriptor passing, urgent data ...). Returns 1 when all wire bytes
 * have been read, 0 while some remain (they are still delivered by motet_recv_begin). */
int motet_plain(motet_stream s, uint32_t reason);

/* Counts a connection that the adapter keeps on TCP without ever making it a stream, for `motet why`. */
void motet_stayed_plain(uint32_t reason);

/* ------------------------------------------------------------------ waiting on several descriptors (poll, select, epoll)
 * A wait covers streams. Outside the kernel the engine spins where that pays; before a kernel sleep it closes the
 * gates of all streams covered, so that every byte arriving later wakes the kernel's wait.
 *
 *   struct motet_wait w;
 *   motet_wait_begin(&w, streams, count);             poll and select: an array
 *   motet_wait_begin_set(&w, set);                    epoll: a motet_set kept by epoll_ctl
 *   for (;;) switch (motet_wait_step(&w, may_block)) {
 *     case MOTET_WAIT_READY: ring data: collect with motet_rx_ready / motet_set_ready, add the kernel's answer at timeout 0
 *     case MOTET_WAIT_PROBE: real poll with timeout 0; nothing ready: next step
 *     case MOTET_WAIT_SLEEP: real poll with the caller's timeout, then motet_wait_slept(&w)
 *   }
 *   motet_wait_end(&w);
 */
typedef struct motet_set_impl motet_set;
struct motet_wait { uint64_t opaque[16]; };
enum motet_wait_step { MOTET_WAIT_READY = 1, MOTET_WAIT_PROBE = 2, MOTET_WAIT_SLEEP = 3 };

void motet_wait_begin(struct motet_wait *w, const motet_stream *streams, unsigned count);
void motet_wait_begin_set(struct motet_wait *w, motet_set *set);
int motet_wait_step(struct motet_wait *w, int may_block);
void motet_wait_slept(struct motet_wait *w);
void motet_wait_end(struct motet_wait *w);

/* A set mirrors the streams of one epoll descriptor; a stream may be in several. `cookie` comes back from motet_set_ready():
 * under MOTET_SET_LEVEL as long as the stream has data, under MOTET_SET_EDGE once whenever more has come, and never under
 * MOTET_SET_NONE (the program does not want EPOLLIN, or EPOLLONESHOT has fired). A put makes an edge report again what is there.
 * Only streams with an open gate are ever looked at. `bell` is an eventfd that the adapter keeps in the epoll descriptor,
 * edge-triggered; the engine writes to it when a sleeper must look again.
 *
 * Where no gate is open and spinning does not pay, motet_set_doze() stands for a wait's first steps: 1, the sleep is counted, make
 * the kernel's wait and then call motet_set_slept(); 0, nothing happened, begin a wait. */
enum motet_set_interest { MOTET_SET_NONE = 0, MOTET_SET_LEVEL = 1, MOTET_SET_EDGE = 2 };
motet_set *motet_set_new(int bell);
void motet_set_free(motet_set *set);
int motet_set_put(motet_set *set, motet_stream s, void *cookie, int interest); /* add or change */
int motet_set_remove(motet_set *set, motet_stream s);
unsigned motet_set_ready(motet_set *set, void **cookies, unsigned max);
int motet_set_doze(motet_set *set);
void motet_set_asleep(motet_set *set); /* somebody sleeps already, without having asked; motet_set_slept() once nobody does */
void motet_set_slept(motet_set *set);
int motet_set_idle(motet_set *set); /* 1 when no stream of the set is upgraded: the plain system call is enough */

/* ------------------------------------------------------------------ settings
 * The engine reads its settings once, when the first stream begins, from the environment (MOTET_*, HOME, XDG_CONFIG_HOME,
 * XDG_CACHE_HOME) and from files. A voice that has seen the environment before the program changed it hands it over here:
 * strings NAME=value, each with a zero behind it, `size` bytes in all, copied. The first call counts.
 * Errors: -EINVAL, -EALREADY (the settings have been read, or handed over). */
int motet_environment(const char *variables, size_t size);

/* ------------------------------------------------------------------ process life
 * For pthread_atfork(). Every voice of a process registers them for itself; the engine acts once for each fork. */
void motet_fork_prepare(void);
void motet_fork_parent(void);
void motet_fork_child(void);

/* For exec. Before it: `count` streams of this process, with descriptors of theirs that stay open. They are made ready to be left to the
 * next program image, or stay on TCP for good where that cannot be. Waits up to 100 ms for peers to take unread bytes back. Returns a
 * descriptor for the next image, open across exec together with what it needs; -1 when there is nothing to leave.
 * motet_exec_failed() undoes it. The next image hands the descriptor to motet_inherit() before its first stream begins (0, or -EINVAL: it
 * is no such thing, or another process's); then motet_upgrade() of an inherited descriptor goes on where the last image stopped. */
int motet_before_exec(const int *fds, const motet_stream *streams, unsigned count);
void motet_exec_failed(int list);
int motet_inherit(int list);
void motet_leave(void);       /* at exit: unread bytes go back to TCP where possible. Allocates nothing */
int motet_owns_fd(int fd);    /* 1 for the engine's private descriptors, which a program must see as not open */

#ifdef __cplusplus
}
#endif
#endif
