/* motet_adapter.h: calls of libmotet.so.0 that only adapters need.
 *
 * What it is:    the interface between the engine and code that puts Motet under another library: split stream calls, readiness for poll and
 *                epoll, hand-over of a connection to another program, and the life of the process (fork, exec, exit, signal handlers).
 * What it isn't: for programs. A program includes motet.h, whose conventions apply here too.
 */
#ifndef MOTET_ADAPTER_H
#define MOTET_ADAPTER_H

#include "motet.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ split calls
 * An adapter that implements a program's system calls makes the kernel's call itself, so that flags, cancellation points and signals stay those
 * of the C library. It asks the engine first.
 *
 *   step = motet_send_begin(s, iov, count, flags);
 *   if (step == MOTET_KERNEL)    { r = sendmsg(...); motet_send_end(s, r); }     r: bytes, or -1
 *   else if (step == MOTET_POLL) { sleep in poll(fd, POLLOUT); begin again }      (never with MSG_DONTWAIT, which gives -EAGAIN)
 *   else                         step is the result: bytes sent, or a negative errno
 *
 *   step = motet_recv_begin(s, iov, count, flags, blocking);
 *   if (step == MOTET_KERNEL)    { r = recvmsg(...); motet_recv_end(s, r, flags); }
 *                                r: bytes, -1, or -errno if the program gets that error at its next call
 *   else if (step == MOTET_POLL) { sleep in poll(fd, POLLIN); motet_recv_wait_end(s); begin again }
 *   else                         step is the result: bytes received, 0 at end of file, or a negative errno
 *
 * From begin to end the engine counts the calling thread as one that may sleep in the kernel. A thread that is cancelled there must still call
 * the matching end, with result -1. `flags` are those of send(2) or recv(2). Pass MOTET_KERNEL_ONLY with a transfer that the wire cannot carry
 * (ancillary data, splice ...); MSG_OOB, MSG_ERRQUEUE and MSG_ZEROCOPY imply it. */
#define MOTET_KERNEL ((ssize_t)-1000001)
#define MOTET_POLL   ((ssize_t)-1000002)
#define MOTET_KERNEL_ONLY 0x40000000 /* in `flags`: this transfer must use the kernel */

ssize_t motet_send_begin(motet_stream s, const struct iovec *iov, int count, int flags);
void motet_send_end(motet_stream s, ssize_t result);
ssize_t motet_recv_begin(motet_stream s, const struct iovec *iov, int count, int flags, int blocking);
void motet_recv_end(motet_stream s, ssize_t result, int flags);
void motet_recv_wait_end(motet_stream s);

/* Readiness of bytes on the wire, which the kernel does not report. */
#define MOTET_RX_DATA 1u /* a receive would take bytes from the wire */

/* Returns MOTET_RX_DATA or 0. */
unsigned motet_rx_ready(motet_stream s);

/* The stream position after the last byte on the wire. For edge-triggered readiness: a larger value than last time is a new edge. */
uint64_t motet_rx_position(motet_stream s);

/* Bytes on the wire that a receive can take. For FIONREAD: add them to the kernel's count. */
size_t motet_rx_bytes(motet_stream s);

/* Gets (`set` -1) or sets (`set` 0 or 1) TCP_NODELAY as the program sees it. While the stream has a wire, the engine keeps the option set in the
 * kernel: Nagle's algorithm does not work with two paths. Returns the program's value, or -1 when the kernel's option is the program's. */
int motet_nodelay(motet_stream s, int set);

/* Closes the gate for good: the stream stays on TCP from here on (stdio, exec, descriptor passing, urgent data ...). `reason` is a code of
 * motet_reason(). Returns 1 when the receiver has read all bytes from the wire, 0 while some remain; motet_recv_begin() still delivers those. */
int motet_set_tcp_only(motet_stream s, uint32_t reason);

/* Counts a connection that the adapter keeps on TCP without making it a stream. `motet why` shows the count under `reason`. */
void motet_count_tcp_only(uint32_t reason);

/* Receives what the wire still holds of a TCP-only stream, without a system call: for a process that restricts its system calls (seccomp).
 * `flags`: MSG_PEEK of recv(2), or 0. Returns bytes, or a negative errno, or 0 with *before set:
 *   UINT64_MAX  the wire is empty and stays empty
 *   n           the next n bytes of the stream are the kernel's: receive at most n there, and report them by motet_drain_received()
 * Bytes that were only peeked are not reported. */
ssize_t motet_drain(motet_stream s, const struct iovec *iov, int count, int flags, uint64_t *before);
void motet_drain_received(motet_stream s, size_t received);

/* ------------------------------------------------------------------ waits on several descriptors (poll, select, epoll)
 * A wait covers streams. The engine spins where that pays. Before a sleep in the kernel it closes the gates of all covered streams, so that
 * every byte that arrives later wakes the kernel's wait.
 *
 *   struct motet_wait w;
 *   motet_wait_begin(&w, streams, count);             poll and select: an array
 *   motet_wait_begin_set(&w, set);                    epoll: a motet_epoll that the adapter maintains in epoll_ctl
 *   for (;;) switch (motet_wait_step(&w, may_block)) {
 *     case MOTET_WAIT_READY: the wire has data: collect it with motet_rx_ready() or motet_epoll_ready(), add the kernel's answer at timeout 0
 *     case MOTET_WAIT_PROBE: call the kernel's poll with timeout 0; when nothing is ready, take the next step
 *     case MOTET_WAIT_SLEEP: call the kernel's poll with the caller's timeout, then motet_wait_slept(&w)
 *   }
 *   motet_wait_end(&w);
 *
 * `may_block` 0: MOTET_WAIT_SLEEP is not returned. The array `streams` must stay valid until motet_wait_end(). */
struct motet_wait { uint64_t opaque[16]; };
typedef struct motet_epoll_impl motet_epoll;
enum motet_wait_step { MOTET_WAIT_READY = 1, MOTET_WAIT_PROBE = 2, MOTET_WAIT_SLEEP = 3 };

void motet_wait_begin(struct motet_wait *w, const motet_stream *streams, unsigned count);
void motet_wait_begin_set(struct motet_wait *w, motet_epoll *set);
int motet_wait_step(struct motet_wait *w, int may_block);
void motet_wait_slept(struct motet_wait *w);
void motet_wait_end(struct motet_wait *w);

/* The engine's mirror of one epoll descriptor: its streams, each with a `cookie` that motet_epoll_ready() returns. A stream may be in several
 * sets. Interest:
 *   MOTET_EPOLL_NONE   never report it (no EPOLLIN wanted, or EPOLLONESHOT has fired)
 *   MOTET_EPOLL_LEVEL  report it as long as it has data
 *   MOTET_EPOLL_EDGE   report it each time more data has arrived; motet_epoll_put() makes it report existing data again */
enum motet_epoll_interest { MOTET_EPOLL_NONE = 0, MOTET_EPOLL_LEVEL = 1, MOTET_EPOLL_EDGE = 2 };

/* Makes a set. `doorbell` is an eventfd that the adapter keeps in the epoll descriptor, edge-triggered. The engine writes to it when a sleeper
 * must look again. */
motet_epoll *motet_epoll_new(int doorbell);
void motet_epoll_free(motet_epoll *set);

/* Adds a stream or changes its cookie and interest. Returns 0; -EBADF: no such stream; -EINVAL: no such interest. */
int motet_epoll_put(motet_epoll *set, motet_stream s, void *cookie, int interest);

/* Removes a stream. Returns 0. */
int motet_epoll_remove(motet_epoll *set, motet_stream s);

/* Registers the set of one epoll descriptor in that of another, or changes its cookie and interest. -EBADF: one is another process's. */
int motet_epoll_nest(motet_epoll *set, motet_epoll *inner, void *cookie, int interest);
int motet_epoll_unnest(motet_epoll *set, motet_epoll *inner);

/* Writes the cookies of at most `max` streams that are ready; returns how many. Their events count as reported. Looks only at streams whose gate is
 * open, and only at those whose cookie is `wanted`, if that is not NULL. `wanted` must not call the engine. */
unsigned motet_epoll_ready(motet_epoll *set, void **cookies, unsigned max, int (*wanted)(void *cookie, void *context), void *context);

/* Replaces the first steps of a wait where no gate is open and spinning does not pay. Returns 1: the sleep is counted; make the kernel's wait,
 * then call motet_epoll_slept(). Returns 0: nothing happened; begin a wait. */
int motet_epoll_try_sleep(motet_epoll *set);

/* Tells the engine of a thread that sleeps in the epoll descriptor without a wait of the engine. Call motet_epoll_slept() when none does. */
void motet_epoll_asleep(motet_epoll *set);
void motet_epoll_slept(motet_epoll *set);

/* Returns 1 when no stream of the set is upgraded, so that the system call alone is enough; otherwise 0. NULL counts as such a set. */
int motet_epoll_idle(motet_epoll *set);

/* ------------------------------------------------------------------ settings
 * The engine reads its settings when the first stream or node begins, from the environment (MOTET_*, HOME, XDG_CONFIG_HOME, XDG_CACHE_HOME) and
 * from files. An adapter that saw the environment before the program changed it passes that copy here: strings NAME=value, each followed by a
 * zero byte, `size` bytes in all. The engine copies them. The first call counts.
 * Errors: -EINVAL (`variables` is NULL), -EALREADY (settings have been read or passed already). */
int motet_environment(const char *variables, size_t size);

/* ------------------------------------------------------------------ signal handlers
 * For an adapter that keeps signal handlers out of the engine.
 *   in_handler()   returns nonzero when the calling thread runs a signal handler. The engine then neither allocates from the C library nor frees
 *                  to it.
 *   run_pending()  runs handlers that the adapter has deferred. The engine calls it after each sleep in the middle of an operation.
 * The engine calls both from any thread at any time. The first call of motet_signal_hooks() counts.
 * Errors: -EINVAL (a function is NULL), -EALREADY (hooks are set). */
int motet_signal_hooks(int (*in_handler)(void), void (*run_pending)(void));

/* ------------------------------------------------------------------ process life */

/* For pthread_atfork(). Every adapter of a process registers them; the engine acts once for each fork. */
void motet_fork_prepare(void), motet_fork_parent(void), motet_fork_child(void);

/* Hands a stream's descriptor `fd` over to another program image (exec, spawn, SCM_RIGHTS) or to the C library's own calls (stdio): call it before
 * that happens. The stream stays on TCP for good. Unread bytes of both directions return to TCP: those of this process at once; the peer's at
 * once where ptrace access rules allow the use of its socket, otherwise at its next call. Never waits, allocates nothing, and may be called in a
 * child of vfork.
 * Returns 1 when no ring holds bytes, 0 when the peer has bytes to return. -EBADF: `fd` is not this stream's socket; nothing has changed. */
int motet_hand_over(motet_stream s, int fd, uint32_t reason);

/* Call it before exec: unread bytes of this process's streams return to TCP. */
void motet_before_exec(void);

/* Call it before the process exits: unread bytes return to TCP where that is possible, and the process writes its exit log and statistics once.
 * Allocates nothing. May run in a signal handler that interrupted the program outside the engine. */
void motet_before_exit(void);

/* Returns 1 for a descriptor that the engine owns; a program must see it as not open. Otherwise 0. */
int motet_owns_fd(int fd);

/* Returns the first descriptor >= `from` that the engine owns, or -1. */
int motet_next_owned_fd(int from);

#ifdef __cplusplus
}
#endif
#endif
