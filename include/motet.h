/* motet.h: the C interface of Motet's engine (libmotet.so.0).
 *
 * What it is:   two things on the fastest path there is.
 *               Byte streams between two processes. A stream starts as a TCP connection that the caller made and keeps;
 *               motet_upgrade() lets its payload move to a faster wire (shared memory on one host) and back, at any byte,
 *               without adding anything to the TCP stream.
 *               Messages between nodes, which meet by name or address (section "messages"; docs/messages-api.md to begin).
 * What it isn't: a sockets replacement. Names, backlog, firewalls, errors and end of file of a stream stay the kernel's.
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
#include <string.h>
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

enum motet_upgrade_flags { MOTET_UPGRADE_LAZY = 1 /* begin after the first few messages, so that short connections pay nothing */ };

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
 *   if (step == MOTET_POLL)   { sleep in poll(fd, POLLOUT); begin again }      (not with MSG_DONTWAIT: -EAGAIN)
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

/* Without a system call, on a plain stream of a process that has confined its calls: motet_rest() takes what the wire still holds. Bytes, or a
 * negative errno, or 0 with *before: so many bytes of the kernel's precede it, at most so many may be received, and motet_rest_came() counts
 * them (peeked ones do not count). UINT64_MAX: the wire is empty, for good. `flags`: of recv(2) MSG_PEEK. */
ssize_t motet_rest(motet_stream s, const struct iovec *iov, int count, int flags, uint64_t *before);
void motet_rest_came(motet_stream s, size_t received);

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

/* ------------------------------------------------------------------ messages
 * A node is a process that has joined. It has a link to each node that it has met, and any number of channels over a link: a channel
 * is opened by one side to a service of the other, and then both may send and receive on it. A message is a tag, headers (at
 * most MOTET_HEADERS_MOST bytes: every layer of a program pushes its own) and a body of any length.
 *
 * The messages of a channel are received in one of three ways, which each side chooses for itself:
 *   queue      in order, by whoever receives on the channel
 *   tagged     by tag, of which bits may be ignored, on one channel or on any channel of a context
 *   handler    by a function, as they come
 *
 * Conventions beyond those above
 *   - Handles belong to the node that they are used with. 0 is none. Every use is checked: a handle that is stale or made up gives
 *     -EBADF. Those of nodes are never used again; the number of anything else may be, after thousands of others of its kind.
 *   - Calls that may wait have a deadline (CLOCK_MONOTONIC, ns; INT64_MAX: none) and fail with -ETIMEDOUT after it. Deadline 0: do not
 *     wait, -EAGAIN instead.
 *   - Nothing runs in the background: whoever waits makes progress for the whole node, handlers and deferred work included; a program that
 *     does not wait calls motet_node_progress(). Bodies up to a few KiB leave at once, longer ones as progress is made.
 *   - Memory handed to motet_message_post(), motet_message_start(), motet_message_accept() or one of motet_region_*_start() stays the
 *     caller's and is used in place:
 *     of a receive it is written, of a send read (by the peer, too), until the operation has ended. Until then it must neither be freed
 *     nor, of a send, be changed. motet_operation_cancel() does not end an operation, it only hastens the end. motet_node_close() ends all.
 *     Every other call is done with its memory when it returns.
 *   - A link that breaks (the peer has ended, say) ends everything that is under way on it with -ECONNRESET. Messages that were complete
 *     before can still be received.
 *   - After fork() a child has no nodes: every call on one gives -ECHILD, motet_node_close() forgets it. */
typedef uint64_t motet_node;
typedef uint64_t motet_link;
typedef uint64_t motet_channel;
typedef uint64_t motet_context;
typedef uint64_t motet_handler;
typedef uint64_t motet_group;
typedef uint64_t motet_operation;
typedef uint64_t motet_message;
typedef uint64_t motet_key;  /* of a region: what its owner tells its peers */
typedef uint64_t motet_view; /* a region of a peer's, mapped */
typedef uint64_t motet_loan; /* memory for a message that is received in place */
typedef uint64_t motet_lent; /* such a message, received */

#define MOTET_HEADERS_MOST 256

/* ---- nodes */

enum motet_node_flags {
    MOTET_NODE_SINGLE = 1, /* for the thread that opens it alone: calls pay for no lock, and give -EPERM in any other */
    MOTET_NODE_STAND_IN = 2, /* a thread of Motet's makes progress once the program has made none for 10 ms; not with MOTET_NODE_SINGLE */
};

/* What is 0 or NULL has its default. */
struct motet_node_options {
    size_t size;
    const char *name;     /* for nodes of this host: 1 to 64 letters, digits and . _ - @; NULL or "": one that nobody else has */
    const char *listen;   /* IP:PORT (port 0: any), [IP]:PORT: for nodes of other hosts; NULL: they do not find it */
    uint32_t flags;       /* of enum motet_node_flags one, or 0 */
    uint32_t longs;       /* long messages of one link at a time (1024), at most 1048575 */
    uint32_t channels;    /* channels that one peer may have opened at a time (16384), at most 1048575 */
    uint32_t reserved;    /* 0 */
    uint64_t window;      /* bytes of messages, with their records, that wait for a receive on one link (1 MiB); 4 KiB to 4 GiB */
    uint64_t eager_memory; /* longest body that goes before a receive is there, through shared memory (64 KiB) */
    uint64_t eager_network; /* and otherwise (64 KiB) */
    uint64_t single_copy; /* smallest body that its receiver may copy out of the sender's memory (128 KiB); it takes the fastest way */
    uint64_t pool;        /* most bytes for loans and regions of motet_region_alloc() (4 GiB); pages come as they are touched */
    const char *secret;   /* what callers of other hosts must know: 32 hexadecimal digits that nobody guesses; NULL: random ones (motet_node_address()) */
};

/* Joins. options may be NULL.
 * Errors: -EADDRINUSE (the name or address is another's), -EINVAL (it is none), -EMFILE (256 nodes of this process, or the system's
 * limit), -EHOSTUNREACH (no driver is allowed that carries messages), what the system says. */
int motet_node_open(const struct motet_node_options *options, motet_node *out);

/* Leaves: every link, channel, operation and handle of the node ends, operations without being reported, and memory that they
 * used is the caller's again. Calls of other threads on the node end with -EBADF and are waited for. -EDEADLK from within one (a handler). */
int motet_node_close(motet_node node);

/* Its name, and all ways to it, as motet_link_open() of another node takes them: NAME, and "shm://NAME,tcp://SECRET@IP:PORT". Who has that may
 * come in, so tell it to no others. Writes at most `size` bytes with a zero at the end;
 * returns the length of the whole without it. */
ssize_t motet_node_name(motet_node node, char *text, size_t size);
ssize_t motet_node_address(motet_node node, char *text, size_t size);

/* One round of progress. 1: something has come or was done; 0: nothing, or another thread makes progress. Deferred work that is due runs
 * in it, and after such it may have to wait until another thread that has begun to make progress meanwhile has ended. */
int motet_node_progress(motet_node node);

/* For poll and epoll: a descriptor, the node's own, that is readable when progress would do something, as soon as
 * motet_node_prepare_sleep() has returned 1. When that returns 0 there is something to do already: make progress instead. After the sleep
 * make progress, too, and read nothing from the descriptor. */
int motet_node_descriptor(motet_node node);
int motet_node_prepare_sleep(motet_node node);

/* Has `function` run once, outside of any handler, by whoever makes progress next. It may wait. Not at all when the node is closed before. */
int motet_node_defer(motet_node node, void (*function)(motet_node node, void *user), void *user);

/* ---- links */

/* A link to the node at `address`: a name of this host, or what motet_node_address() says there. "tcp://IP:PORT", without the secret, does for a
 * process of the same user on this host, which the kernel attests, and for no other. One that is not there yet is waited for until the
 * deadline. Two nodes may have several links.
 * Errors: -ECONNREFUSED (no such node), -EACCES (another user's, or the secret is wrong), -EHOSTUNREACH, -EINVAL (no address), -ETIMEDOUT. */
int motet_link_open(motet_node node, const char *address, int64_t deadline, motet_link *out);

struct motet_link_state {
    size_t size;
    uint8_t peer[16];      /* the peer node's number: of no other node, ever */
    char driver[16];       /* what carries it */
    int32_t gone;          /* 1: the link is gone, and */
    uint32_t reason;       /* why: motet_reason() */
    uint32_t channels;     /* open */
    uint32_t receiving;    /* long messages under way */
    uint32_t sending;
    uint32_t reserved;
    uint64_t records;      /* bytes held for it */
    uint64_t waiting;      /* bytes of messages that nobody has received */
    uint64_t inject_size;  /* most bytes of headers and body that go with MOTET_SEND_INJECT */
};
int motet_link_info(motet_node node, motet_link link, struct motet_link_state *state);

/* Links that are up, or gone and not closed: at most `most` of them are written; returns how many there are. One that a peer has begun and that is
 * gone is closed by itself when no message of it waits and no channel of it is left that was opened or accepted here: -EBADF from then on. */
ssize_t motet_links(motet_node node, motet_link *links, size_t most);

/* Ends a link with its channels; operations on it end with -ECONNRESET. What has left reaches the peer if that lives. */
int motet_link_close(motet_node node, motet_link link);

/* ---- services and channels */

enum motet_reception_kind { MOTET_RECEIVE_QUEUE = 1, MOTET_RECEIVE_TAGGED = 2, MOTET_RECEIVE_HANDLER = 3 };

struct motet_reception {
    size_t size;
    uint32_t kind;     /* enum motet_reception_kind */
    uint32_t reserved; /* 0 */
    uint64_t with;     /* TAGGED: a motet_context; HANDLER: a motet_handler; QUEUE: 0 */
};

/* Lets peers open channels to a service, a number that the two sides agree on. The last word counts, for channels to come.
 * After motet_service_close() they are refused; those that are open stay. */
int motet_service_open(motet_node node, uint64_t service, const struct motet_reception *reception);
int motet_service_close(motet_node node, uint64_t service);

/* The next channel that a peer has opened to a service. Messages can be received from it (any of its context, a handler) before.
 * Errors: -ECONNREFUSED (the service is not open here). */
int motet_channel_accept(motet_node node, uint64_t service, int64_t deadline, motet_channel *out);

/* Opens a channel; `reception`: of what the peer sends on it. Waits for the peer's answer. Errors: -ECONNREFUSED (no such
 * service there), -ENOBUFS (the peer allows no more), -ECONNRESET. */
int motet_channel_open(motet_node node, motet_link link, uint64_t service, const struct motet_reception *reception,
                       int64_t deadline, motet_channel *out);

/* Sends no more; messages still come. The peer's receives on it end with -EPIPE once all that was sent has been received. */
int motet_channel_finish(motet_node node, motet_channel channel);

/* Ends it on this side: receives on it end with -EPIPE, messages that nobody has received are discarded. */
int motet_channel_close(motet_node node, motet_channel channel);

/* The link of a channel. */
static inline motet_link motet_channel_link(motet_channel channel) { return channel >> 32; }

/* Contexts. -EAGAIN when one is freed that has channels or receives; a service that uses it keeps nothing of it. */
int motet_context_new(motet_node node, motet_context *out);
int motet_context_free(motet_node node, motet_context context);

/* ---- completion */

enum motet_notice_flags {
    MOTET_NOTICE_QUIET = 1, /* needs a group: an end as asked is only counted (selective completion) */
};

/* What to do when an operation ends. NULL stands for all zeros: the end is kept until motet_operation_test() or _wait() asks. */
struct motet_notice {
    size_t size;
    motet_group group; /* which is told; then nobody asks for the operation itself (-EBADF) */
    uint64_t context;  /* comes back */
    uint32_t flags;    /* enum motet_notice_flags */
    uint32_t reserved; /* 0 */
};

/* The end of an operation, or a message that waits. */
struct motet_completion {
    size_t size;
    motet_operation operation; /* 0: of a call that waited itself */
    uint64_t context;          /* the notice's */
    int32_t status;            /* 0, -EMSGSIZE (longer than the buffer, which is full), -ECANCELED, -EPIPE (the channel has ended), */
                               /* -ECONNRESET, -EPROTO (the peer broke the protocol), -ENOBUFS; on regions also -EACCES (no such region, */
                               /* or it does not allow that), -ERANGE (not inside it), -EINVAL (an atomic that cannot be done there) */
    uint32_t headers_length;
    uint64_t length;           /* bytes sent, or in the buffer */
    uint64_t full;             /* of a receive: bytes of the message's body, those that did not fit included */
    uint64_t tag;              /* of a receive: the message's */
    motet_channel channel;     /* of a receive: where it came */
    unsigned char headers[MOTET_HEADERS_MOST]; /* of a receive: the outermost first; bytes beyond headers_length are not written */
    motet_lent lent;           /* of a receive in place: to be given back; 0: nothing is. Not written by motet_message_receive(), */
    const void *body;          /* _receive_from(), _peek() and _claim(), nor when `size` ends before it. lent != 0: the body, length bytes */
};

/* Takes note of an operation's end, which is forgotten then. test: 1, it has ended; 0, not yet (progress is not made).
 * wait: 0. wait_any: the place among `count` operations. How the operation ended is end->status; end may be NULL.
 * -EBADF: there is no such operation (in wait_any: none of them). */
int motet_operation_test(motet_node node, motet_operation operation, struct motet_completion *end);
int motet_operation_wait(motet_node node, motet_operation operation, int64_t deadline, struct motet_completion *end);
int motet_operation_wait_any(motet_node node, const motet_operation *operations, unsigned count, int64_t deadline,
                             struct motet_completion *end);

/* Would like an operation not to happen. It ends in any case, with -ECANCELED or as it would have. A send that has left, or is on its
 * way in pieces, goes on. -EBADF: its end has been reported already. */
int motet_operation_cancel(motet_node node, motet_operation operation);

/* A completion group: ends of many operations, for one thread to take. -EAGAIN when one is freed that has operations under way. */
int motet_group_new(motet_node node, motet_group *out);
int motet_group_free(motet_node node, motet_group group);

/* Takes up to `most` ends, in their order, waiting for the first; returns how many. `ends` is an array, the first one's `size`
 * their distance. Deadline 0: one round of progress is made where nothing is there. -EINTR after motet_group_signal(). */
int motet_group_wait(motet_node node, motet_group group, struct motet_completion *ends, unsigned most, int64_t deadline);

struct motet_counts {
    size_t size;
    uint64_t done;      /* operations that ended as asked, quiet ones included */
    uint64_t failed;    /* that ended otherwise */
    uint64_t under_way;
};
int motet_group_counts(motet_node node, motet_group group, struct motet_counts *counts);

/* ---- ports: for a library that posts receives, sends and polls (MPI, libfabric)
 * The calls of a port stand for motet_message_post(), motet_message_start() of what is injected, and motet_group_wait() with deadline 0, with
 * their errors, and cost a fraction of the instructions: nothing is looked up to enter the node, and its lock costs no exchange while nobody
 * else uses it. One call at a time on a port, from whichever thread; other calls on the node at any time, but from handlers none on a port.
 * motet_node_close() gives -EBUSY while a port is open. A port is an address, which is not checked. Nodes of a single thread have none
 * (-EINVAL). A forked child closes its ports, and gets -ECHILD of all else. */
typedef struct motet_port_impl *motet_port;
struct motet_port_end { void *context; uint64_t flags; size_t length; void *buffer; uint64_t data, tag; }; /* as libfabric's tagged entry */
int motet_port_open(motet_node node, const uint64_t flags[2], motet_port *out); /* flags of ends without headers, and with one of 8 bytes: `data` */
int motet_port_close(motet_port port);
/* Posts a receive on a channel or, where that is 0, in a context: without a name, so that it is cancelled by its notice; or as an operation. */
int motet_port_post(motet_port port, motet_channel channel, motet_context context, uint64_t tag, uint64_t ignore, void *buffer, size_t capacity,
                    motet_group group, uint64_t notice);
int motet_port_begin(motet_port port, motet_channel channel, motet_context context, uint64_t tag, uint64_t ignore, void *buffer, size_t capacity,
                     motet_group group, uint64_t notice, motet_operation *out);
int motet_port_cancel(motet_port port, motet_group group, motet_channel channel, motet_context context, uint64_t notice); /* 1; 0: none waits there */
int motet_port_abandon(motet_port port, motet_group group, motet_channel channel, motet_context context); /* ends them there; forgets those whose messages come */
int motet_port_send(motet_port port, motet_channel channel, uint64_t tag, const void *headers, size_t headers_length, const void *body,
                    size_t length); /* one piece and its headers, in one packet or not at all */
/* The next ends of receives without a name that got all of their message; 0: of others, which motet_port_ends() takes; -EAGAIN: none. */
int motet_port_take(motet_port port, motet_group group, struct motet_port_end *ends, unsigned most);
int motet_port_ends(motet_port port, motet_group group, struct motet_completion *ends, unsigned most); /* -EAGAIN: none. No name: operation 0 */

/* Waits until at least `done` have ended as asked or more than `failed` otherwise, since the group is there. */
int motet_group_wait_counts(motet_node node, motet_group group, uint64_t done, uint64_t failed, int64_t deadline);

/* Has one thread that waits for a group, or the next that would, return -EINTR. */
int motet_group_signal(motet_node node, motet_group group);

/* ---- sending
 * Messages of a channel arrive in the order in which they were sent, by any of these. A call that fails has sent nothing, unless stated.
 * Errors: -EPIPE (the peer receives no more), -ECONNRESET or -EPROTO (the link is gone), -E2BIG (headers too long, or not to be
 * injected), -EAGAIN (no room now: after progress), -ENOBUFS. */

enum motet_send_mode {
    MOTET_SEND_AUTOMATIC = 0,
    MOTET_SEND_INJECT = 1,      /* short: it goes at once and the body is free, or not at all (-E2BIG beyond inject_size) */
    MOTET_SEND_SYNCHRONOUS = 2, /* ends when a receive has got it */
};

struct motet_outgoing {
    size_t size;
    motet_channel channel;
    uint64_t tag;
    const void *headers;    /* the outermost first; copied */
    uint32_t headers_length;
    uint32_t mode;          /* enum motet_send_mode */
};

/* Sends, and waits until the body is free: a short one has left, a long one is in the receiver's memory. -ETIMEDOUT: it was taken back,
 * for which the peer must answer. A peer that makes no progress for three seconds more loses the link, and the call ends with -ECONNRESET:
 * it may be stopped, and could still read the body. Who cannot risk that, or wait so long, starts the send.
 * Within a handler, where nobody may wait, a body that cannot be injected gives -EDEADLK: start it instead. */
int motet_message_send(motet_node node, motet_channel channel, uint64_t tag, const void *body, size_t length, int64_t deadline);
int motet_message_sendv(motet_node node, const struct motet_outgoing *message, const struct iovec *body, int count, int64_t deadline);

/* The same by MOTET_SEND_INJECT. */
int motet_message_inject(motet_node node, motet_channel channel, uint64_t tag, const void *body, size_t length, int64_t deadline);

/* Begins to send and never waits. *out: the operation, until whose end the body (not the vectors) stays in use; or 0, when the
 * message has left already and the body is free: nothing more is reported then. With a group there is always an operation. Injected messages
 * have none and are not counted. */
int motet_message_start(motet_node node, const struct motet_outgoing *message, const struct iovec *body, int count,
                        const struct motet_notice *notice, motet_operation *out);

/* ---- receiving
 * A message goes to the receive that was posted first among those that match it, and a receive gets the message that came first
 * among those that match: over channels and contexts alike. */

struct motet_source {
    size_t size;
    motet_channel channel; /* on this channel, or when 0 */
    motet_context context; /* on any channel of this context */
    uint64_t tag;
    uint64_t ignore;       /* bits of the tag that do not matter; on a channel received as a queue no tag matters */
};

/* Waits for the next message, of whatever tag, or that matches, and receives it. Returns its end's status; -ETIMEDOUT when none has come.
 * `end` may be NULL. With -EMSGSIZE it says how long the message was. */
int motet_message_receive(motet_node node, motet_channel channel, void *buffer, size_t capacity, int64_t deadline,
                          struct motet_completion *end);
int motet_message_receive_from(motet_node node, const struct motet_source *source, void *buffer, size_t capacity,
                               int64_t deadline, struct motet_completion *end);

/* Posts a receive. `buffer` stays in use until it has ended. */
int motet_message_post(motet_node node, const struct motet_source *source, void *buffer, size_t capacity,
                       const struct motet_notice *notice, motet_operation *out);

/* What a receive would get now: 1, and `seen` tells its tag, channel, headers and length (in full); or 0. Progress is not made. */
int motet_message_peek(motet_node node, const struct motet_source *source, struct motet_completion *seen);

/* The same, and takes it: no receive gets it any more. It must be accepted or discarded. */
int motet_message_claim(motet_node node, const struct motet_source *source, struct motet_completion *seen, motet_message *out);

/* Gives a buffer to a message that was claimed, or that a handler has got: the operation receives its body, as of a post.
 * The sender of a long message that is discarded is told: its send ends with -EPIPE. Accepted with no buffer (capacity 0) it ends as asked. */
int motet_message_accept(motet_node node, motet_message message, void *buffer, size_t capacity, const struct motet_notice *notice,
                         motet_operation *out);
int motet_message_discard(motet_node node, motet_message message);

/* ---- handlers */

/* A message, as a handler sees it. All memory is valid for the time of the call. */
struct motet_arrival {
    size_t size;
    motet_channel channel;
    uint64_t tag;
    const void *headers;
    size_t headers_length;
    const void *body;      /* all of it, when message is 0 */
    size_t length;         /* of the body */
    motet_message message; /* otherwise it is still to come: accept it, now or later */
};

/* Runs as messages come, in the thread that makes progress, one at a time in a node. It may send (never waiting: -EAGAIN), post,
 * start, accept and defer; it may not wait, and must return: no exception, longjmp or cancellation leaves it. Returns nonzero to keep
 * arrival->message for later; otherwise it is discarded unless it was accepted. */
typedef int (*motet_handle_message)(motet_node node, const struct motet_arrival *arrival, void *user);

int motet_handler_new(motet_node node, motet_handle_message function, void *user, motet_handler *out);

/* The function is not entered any more when this returns (from within a handler: by others); messages for it are discarded. */
int motet_handler_free(motet_node node, motet_handler handler);

/* ---- regions
 * A region is memory of one node that others reach without its program's help: they get from it, put into it and change it by atomics, by
 * its key and an offset in bytes. Its owner tells them the key as it likes, in a message say: 8 random bytes. Each access is checked by the
 * owner's side against key, rights and bounds; one that is refused has changed nothing. A key that the owner never gave out is a guess: the
 * owner's side ends the link on which it came, which is -ECONNRESET here. One whose region has ended is late: -EACCES. (An access of more
 * than put_size bytes whose region is revoked meanwhile may have written some of them.)
 *
 * Order: puts up to put_size bytes, gets up to fetch_size, and atomics on one link take effect and end in the order in which they were begun,
 * longer ones in none; what is begun after a fence has ended comes after all that was begun before it. A put has ended when its bytes are
 * in the region. All of them need progress of the owner's node, too, but where the region is open.
 *
 * Errors of the calls below: -EBADF (node, link), -EINVAL, -EAGAIN (no room now: after progress), -ENOBUFS, -ECONNRESET or -EPROTO (the link
 * is gone), -EPIPE (the peer has no regions). How an operation has ended is its status; a call that waits returns that. A refusal that is known
 * at once (the region is open) is returned, where there is no group to tell. */

enum motet_region_rights { MOTET_REGION_GET = 1, MOTET_REGION_PUT = 2, MOTET_REGION_ATOMIC = 4, MOTET_REGION_ALL = 7 };

/* Makes memory of the caller's a region; without PUT and ATOMIC it is never written. It stays until the region has ended.
 * Errors: -EINVAL (also: atomics, and `base` is no multiple of 8), -ENOBUFS (1048575 regions). */
int motet_region_register(motet_node node, void *base, size_t length, uint32_t rights, motet_key *out);

/* As that, but what peers give as offset of its first byte is `first`: its address in this process, say, where a program speaks of addresses. The
 * memory may begin anywhere: an atomic ends with -EINVAL where its elements do not lie at multiples of their size. -ENOBUFS also: first + length
 * is more than 64 bits hold. */
int motet_region_register_from(motet_node node, void *base, size_t length, uint64_t first, uint32_t rights, motet_key *out);

/* Makes a region of zeros that peers of this host can open. *base is the caller's until the region has ended; it shows zeros then.
 * Errors: -ENOBUFS (the pool is used up). */
int motet_region_alloc(motet_node node, size_t length, uint32_t rights, void **base, motet_key *out);

/* Makes a part of an open file a region: `length` bytes from `offset` on, which the file must have; neither need be a multiple of anything, but for
 * atomics `offset` must be one of 8. The descriptor stays the caller's, who may close it; the region keeps a copy. Peers reach it as they
 * reach registered memory; motet_region_open() gives them -EOPNOTSUPP: who may map the file does so by itself. `file` must have been opened for
 * reading (GET, ATOMIC) and writing (PUT, ATOMIC), and not with O_APPEND (if it is to be written) or O_DIRECT.
 *   - The end of a put says that its bytes are in the file as every process of the host sees it (read(2), mmap(2)), and that they stay when
 *     this process dies. It says nothing of the disk: see motet_region_sync().
 *   - A file may be cut short at any time, by anybody: an access to bytes that are gone ends with -ERANGE, and nobody gets a SIGBUS. (A program
 *     that maps a file and registers the mapping with motet_region_register() has no such promise.) A get during which it is cut short may bring
 *     zeros. Where the disk is full or fails, an access ends with -EACCES. Nothing makes the file longer than the region's end.
 *   - An element that an atomic changes is changed in one step to whatever else goes through this region, but not to other regions over the same
 *     file, nor to who reads, writes or maps it. It is to everybody where the file is a memfd that is sealed against
 *     shrinking (F_SEAL_SHRINK): that is memory, and as fast.
 *   - An access may wait for the disk, and whatever else this node does waits with it.
 * Errors: -EBADF (also: `file` is not open, or opened with O_PATH), -EISDIR, -ESPIPE (a pipe, a socket, a device), -EACCES (not opened for this, or
 * sealed against it), -ERANGE (the file does not have these bytes), -EINVAL (rights; no bytes; atomics and `offset`; the flags above), -EFBIG
 * (RLIMIT_FSIZE), -EOPNOTSUPP (huge pages), -EMFILE, -ENOBUFS. */
int motet_region_register_file(motet_node node, int file, uint64_t offset, uint64_t length, uint32_t rights, motet_key *out);

/* Waits until bytes of a region over a file are on the disk (fdatasync(2)): those of every put and atomic whose end somebody knows of, and whatever
 * else was written there. It may take long; other threads' calls on the node go on meanwhile.
 * Errors: -EBADF (no such region), -EINVAL (it is no file's), -ERANGE (not inside; or the file is shorter by now, and what it has is on the
 * disk), and the system's: after -EIO or -ENOSPC bytes may be lost. */
int motet_region_sync(motet_node node, motet_key key, uint64_t offset, uint64_t length);

/* Ends a region of this node: no access begins any more, those under way end with -EACCES. When it returns 0 nobody uses the memory any
 * more. -ETIMEDOUT (or -EAGAIN) while somebody does, or a peer has not answered: call it again, or close that link. -EBADF: there
 * is no such region, or it has ended since such a call. motet_node_close() ends all regions. */
int motet_region_revoke(motet_node node, motet_key key, int64_t deadline);

struct motet_region_limits {
    size_t size;
    uint64_t put_size;    /* longest put whose bytes are free as soon as it has begun */
    uint64_t atomic_size; /* most bytes of an atomic's operands, what it compares with included: at least 256; beyond: -E2BIG */
    uint64_t fetch_size;  /* most bytes of values before: 256 */
};
int motet_link_region_limits(motet_node node, motet_link link, struct motet_region_limits *limits);

/* Bytes of a region of a peer's, from there on. */
struct motet_remote {
    size_t size;
    motet_link link;
    motet_key key;    /* the peer's */
    uint64_t offset;  /* bytes */
};

/* Writes, reads; and waits for the end. -ETIMEDOUT: it may still happen to the region, but the memory here is not used any more. (A put of
 * more than put_size bytes that has begun is waited for whatever the deadline: the peer may be fetching them.) Deadline 0: where the region is
 * open it is done, else -EAGAIN. Within a handler likewise, with -EDEADLK. */
int motet_region_put(motet_node node, const struct motet_remote *to, const void *from, size_t length, int64_t deadline);
int motet_region_get(motet_node node, const struct motet_remote *at, void *into, size_t length, int64_t deadline);

/* Begins it and never waits. *out: the operation, until whose end the memory stays in use (but for a put of at most put_size bytes); or 0, when
 * it has been done already: nothing more is reported then. With a group there is always an operation. Up to 256 are under way on a link:
 * -EAGAIN beyond. motet_operation_cancel() does nothing to them. */
int motet_region_put_start(motet_node node, const struct motet_remote *to, const void *from, size_t length,
                           const struct motet_notice *notice, motet_operation *out);
int motet_region_get_start(motet_node node, const struct motet_remote *at, void *into, size_t length, const struct motet_notice *notice,
                           motet_operation *out);

/* What is done to each element of the target. Of the swaps: operand, if compare == (!=, <= ...) target; MASKED: of the bits set in compare. */
enum motet_atomic_operation {
    MOTET_ATOMIC_SUM = 0,
    MOTET_ATOMIC_PRODUCT = 1,
    MOTET_ATOMIC_MINIMUM = 2,
    MOTET_ATOMIC_MAXIMUM = 3,
    MOTET_ATOMIC_LOGICAL_AND = 4,
    MOTET_ATOMIC_LOGICAL_OR = 5,
    MOTET_ATOMIC_LOGICAL_XOR = 6,
    MOTET_ATOMIC_BIT_AND = 7, /* those on bits: integers only */
    MOTET_ATOMIC_BIT_OR = 8,
    MOTET_ATOMIC_BIT_XOR = 9,
    MOTET_ATOMIC_REPLACE = 10,
    MOTET_ATOMIC_READ = 11, /* no operand; `before` */
    MOTET_ATOMIC_SWAP_EQUAL = 12,
    MOTET_ATOMIC_SWAP_UNEQUAL = 13,
    MOTET_ATOMIC_SWAP_LESS_OR_EQUAL = 14,
    MOTET_ATOMIC_SWAP_LESS = 15,
    MOTET_ATOMIC_SWAP_GREATER_OR_EQUAL = 16,
    MOTET_ATOMIC_SWAP_GREATER = 17,
    MOTET_ATOMIC_SWAP_MASKED = 18,
};

enum motet_atomic_type {
    MOTET_ATOMIC_I8 = 0, MOTET_ATOMIC_U8 = 1, MOTET_ATOMIC_I16 = 2, MOTET_ATOMIC_U16 = 3, MOTET_ATOMIC_I32 = 4,
    MOTET_ATOMIC_U32 = 5, MOTET_ATOMIC_I64 = 6, MOTET_ATOMIC_U64 = 7, MOTET_ATOMIC_F32 = 8, MOTET_ATOMIC_F64 = 9,
};

/* An atomic on a row of elements: each is changed in one step, the row is not. Integers wrap, values are little-endian, the offset is a multiple of
 * the element's size. In memory that the owner or who has opened it changes as well, the processor's atomic instructions (C11: seq_cst) fit. */
struct motet_atomic {
    size_t size;
    uint32_t operation;  /* enum motet_atomic_operation */
    uint32_t type;       /* enum motet_atomic_type */
    uint32_t count;      /* elements */
    uint32_t reserved;   /* 0 */
    const void *operand; /* one for each; free when the call returns, as what it compares with. Not looked at by READ */
    const void *compare; /* one for each; of the swaps only */
    void *before;        /* where the values go that were there before, or NULL */
};
int motet_region_atomic(motet_node node, const struct motet_remote *at, const struct motet_atomic *atomic, int64_t deadline);
int motet_region_atomic_start(motet_node node, const struct motet_remote *at, const struct motet_atomic *atomic,
                              const struct motet_notice *notice, motet_operation *out);

/* Ends when all that was begun on the link before it has ended: puts, gets and atomics. */
int motet_region_fence(motet_node node, motet_link link, int64_t deadline);
int motet_region_fence_start(motet_node node, motet_link link, const struct motet_notice *notice, motet_operation *out);

struct motet_region_sight {
    size_t size;
    void *base;        /* for loads and stores until motet_region_close() */
    uint64_t length;
    uint32_t rights;   /* with neither PUT nor ATOMIC a store is a fault (SIGSEGV) */
    uint32_t reserved;
};

/* Opens a region of a peer's: its memory lies at sight->base. From then on the calls above use it, too, and need no help of the peer; but while others
 * of this node are under way on the link they wait in line. Loads and stores by address do not. After the owner has revoked the region, or is
 * gone, the memory stays until it is closed here, but it is nobody else's any more: motet_region_stands() is 0 then, before 1.
 * Errors: -EOPNOTSUPP (registered memory, another host, or the system does not let us see it: use the calls above), -EACCES (no such region),
 * -EAGAIN (deadline 0, and it is not open). */
int motet_region_open(motet_node node, motet_link link, motet_key key, int64_t deadline, struct motet_region_sight *sight,
                      motet_view *out);
int motet_region_close(motet_node node, motet_view view);
int motet_region_stands(motet_node node, motet_view view);

/* ---- loans
 * A loan is memory of the node's pool that goes as a message without being copied: where the receiver can see it and wants to, it reads it where it
 * is, in constant time whatever the length, and gives it back. Everywhere else it is a message like any other. */

/* Memory for a message: what an earlier one left there, or zeros. -ENOBUFS when the pool is used up: after loans have come back. */
int motet_loan_alloc(motet_node node, size_t length, void **memory, motet_loan *out);

/* Gives it up unsent. */
int motet_loan_free(motet_node node, motet_loan loan);

/* Sends the first `length` bytes of a loan, which is the caller's no more. Waits until there is room for that; deadline 0: -EAGAIN instead. The operation ends
 * when the receiver has given it back, or has a copy; *out is 0 when that is so already. Where `out` is NULL nobody is told (nor is `notice` possible). On an
 * error the loan is still the caller's, but cut to `length`; -EINVAL: also where it is shorter. message->mode is MOTET_SEND_AUTOMATIC. */
int motet_loan_send(motet_node node, const struct motet_outgoing *message, motet_loan loan, size_t length, const struct motet_notice *notice,
                    int64_t deadline, motet_operation *out);

/* Receives where the message lies, be it a loan or not, as motet_message_receive_from(), _post() and _accept() receive into a buffer. What does not lie
 * where it can be seen is copied, at most `most` bytes, and ends with -EMSGSIZE if it was longer. If end->lent is not 0, the body is at end->body until that is given
 * back; without a body nothing is. Where the end is told to nobody (NULL, a struct of an earlier version), the message goes back. Its sender has promised
 * not to write there meanwhile: whoever does not trust it copies before looking. */
int motet_message_receive_in_place(motet_node node, const struct motet_source *source, uint64_t most, int64_t deadline,
                                   struct motet_completion *end);
int motet_message_post_in_place(motet_node node, const struct motet_source *source, uint64_t most, const struct motet_notice *notice,
                                motet_operation *out);
int motet_message_accept_in_place(motet_node node, motet_message message, uint64_t most, const struct motet_notice *notice,
                                  motet_operation *out);

/* Gives a message back: its memory is not there any more. Also after its link has gone; motet_node_close() gives back all. */
int motet_message_give_back(motet_node node, motet_lent lent);

/* ---- headers: a stack that grows towards its front */

struct motet_headers {
    uint32_t start; /* MOTET_HEADERS_MOST: empty */
    unsigned char bytes[MOTET_HEADERS_MOST];
};

static inline void motet_headers_clear(struct motet_headers *stack) { stack->start = MOTET_HEADERS_MOST; }

/* Puts a header before those that are there. 0, and nothing is changed, when it does not fit. */
static inline int motet_headers_push(struct motet_headers *stack, const void *header, uint32_t length)
{
    if (length > stack->start || stack->start > MOTET_HEADERS_MOST)
        return 0;
    stack->start -= length;
    memcpy(stack->bytes + stack->start, header, length);
    return 1;
}

/* As a message's headers: stack->bytes + stack->start, and so many bytes. */
static inline uint32_t motet_headers_length(const struct motet_headers *stack) { return MOTET_HEADERS_MOST - stack->start; }

/* The receiver's side: takes `length` bytes from the front. 0, and nothing is taken, when there are fewer. */
static inline int motet_headers_pop(const unsigned char **headers, uint32_t *left, void *header, uint32_t length)
{
    if (length > *left) return 0;
    memcpy(header, *headers, length);
    *headers += length;
    *left -= length;
    return 1;
}

/* ------------------------------------------------------------------ settings
 * The engine reads its settings once, when the first stream begins, from the environment (MOTET_*, HOME, XDG_CONFIG_HOME,
 * XDG_CACHE_HOME) and from files. A voice that has seen the environment before the program changed it hands it over here:
 * strings NAME=value, each with a zero behind it, `size` bytes in all, copied. The first call counts.
 * Errors: -EINVAL, -EALREADY (the settings have been read, or handed over). */
int motet_environment(const char *variables, size_t size);

/* ------------------------------------------------------------------ handlers
 * For a voice that keeps signal handlers out of the engine. inside(): the calling thread runs one. Then the engine neither takes memory from the C
 * library nor gives any back. pause() is called after each sleep in the middle of an operation; handlers may run there. Both may be called
 * by any thread at any time. The first call counts. Errors: -EINVAL, -EALREADY. */
int motet_handlers(int (*inside)(void), void (*pause)(void));

/* ------------------------------------------------------------------ process life
 * For pthread_atfork(). Every voice of a process registers them for itself; the engine acts once for each fork. */
void motet_fork_prepare(void), motet_fork_parent(void), motet_fork_child(void);

/* The stream's descriptor `fd` is about to reach another program image (exec, spawn, SCM_RIGHTS) or the C library's own calls (stdio). The stream
 * stays on TCP for good, and unread bytes of both directions go back to TCP: ours at once, the peer's at once where ptrace access rules let
 * us use its socket, else at its next call. Never waits, allocates nothing, and may be called in a child of vfork. Returns 1 when no ring has
 * bytes left, 0 when the peer will return them, -EBADF: `fd` is not this stream's socket, and nothing has changed. */
int motet_hand_on(motet_stream s, int fd, uint32_t reason);
void motet_before_exec(void); /* unread bytes of this process's streams go back to TCP */
void motet_leave(void);       /* at exit: unread bytes go back to TCP where possible. Allocates nothing */
int motet_owns_fd(int fd);    /* 1 for the engine's private descriptors, which a program must see as not open */
int motet_next_fd(int from);  /* the first such descriptor from a number on, or -1 */

#ifdef __cplusplus
}
#endif
#endif
