/* motet.h: the C interface of Motet (libmotet.so.0), for programs.
 *
 * What it is:    byte streams between two processes, and messages and remote memory between nodes, over the fastest transport that both sides have.
 *                A stream starts as a TCP connection that the caller made and keeps. motet_upgrade() lets its bytes move to a faster wire (shared
 *                memory on one host) and back, at any byte, without adding anything to the TCP stream.
 *                Nodes find each other by name or address (section "messages"; docs/messages-api.md is the introduction).
 * What it isn't: a replacement of sockets. Addresses, backlog, firewalls, errors and end of file of a stream stay the kernel's.
 *                Calls that only adapters need are in motet_adapter.h.
 *
 * Conventions
 *   - A function that can fail returns a negative errno (-EAGAIN, -ECONNRESET ...). It never sets errno and never raises SIGPIPE.
 *   - Sizes are bytes. Times are nanoseconds of CLOCK_MONOTONIC. The deadline INT64_MAX means no deadline.
 *   - A struct that may grow starts with `size`: set it to sizeof of the struct that you compiled with (MOTET_INIT does that). The library reads
 *     and writes no further. Fields named `reserved` are 0.
 *   - Every call may be made from any thread. No call may be made from a signal handler, except where stated.
 *   - No call throws, and no Rust panic leaves the library: an internal failure returns -EPROTO and closes the stream's gate.
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

/* Returns the version of the library in use: (major << 16) | minor. May be called from a signal handler. */
uint32_t motet_version(void);

/* An initializer for a struct that starts with `size`: the other fields are zero. */
#define MOTET_INIT(type) { .size = sizeof(type) }

/* ------------------------------------------------------------------ streams */

/* A stream's handle. 0 is no stream. Every use is checked: the handle of a closed stream gives -EBADF. */
typedef uint64_t motet_stream;

enum motet_role { MOTET_ROLE_CONNECTED = 1, MOTET_ROLE_ACCEPTED = 2 };

enum motet_upgrade_flags { MOTET_UPGRADE_LAZY = 1 /* begin after the first few messages, so that short connections cost nothing */ };

struct motet_upgrade_options {
    size_t size;
    uint32_t role;   /* enum motet_role: whether this end connected or accepted */
    uint32_t flags;  /* enum motet_upgrade_flags */
};

/* Makes a connected TCP socket a stream. The descriptor stays the caller's and must stay open until motet_close(). A connection is one stream for
 * all adapters of a process: a second upgrade returns the same handle, and the stream ends at the last motet_close(), one for each upgrade.
 * In between, every byte must pass through Motet. A peer without Motet is no failure: the stream stays on TCP, and `motet why` shows the reason.
 * Errors: -EBADF, -ENOTSOCK, -EPROTONOSUPPORT (not TCP), -ENOTCONN, -EMFILE (the engine's table is full). */
int motet_upgrade(int fd, const struct motet_upgrade_options *options, motet_stream *out);

/* Ends the stream, not the connection: the descriptor stays open. Bytes that the peer has not read move back to TCP where that is still possible;
 * the peer can read them in any case. Calls that are blocked on the stream return -EBADF.
 * Returns 1 instead of 0 when bytes that arrived over the wire were not received. They are lost, and the kernel does not know of them: it would
 * end the connection without an error. To let the peer know, as TCP would, set SO_LINGER {1, 0} before you close the last descriptor. */
int motet_close(motet_stream s);

/* Sends or receives like send(2) and recv(2). Blocks, unless MSG_DONTWAIT is given or the descriptor was O_NONBLOCK when it was upgraded.
 * Flags: MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_WAITALL; any other gives -EOPNOTSUPP. Returns bytes; a receive returns 0 at end of file. */
ssize_t motet_send(motet_stream s, const void *data, size_t length, int flags);
ssize_t motet_recv(motet_stream s, void *data, size_t length, int flags);
ssize_t motet_sendv(motet_stream s, const struct iovec *iov, int count, int flags);
ssize_t motet_recvv(motet_stream s, const struct iovec *iov, int count, int flags);

/* Sets the deadline of all blocking calls on the stream: they fail with -ETIMEDOUT when CLOCK_MONOTONIC passes it. */
int motet_set_deadline(motet_stream s, int64_t deadline);

/* Makes the call that is blocked on the stream, or otherwise the next one that would block, return -EINTR. */
int motet_wake(motet_stream s);

/* Half-close. `how`: SHUT_RD, SHUT_WR or SHUT_RDWR as in shutdown(2). */
int motet_shutdown(motet_stream s, int how);

/* Returns 1 when a receive would return at once (data, end of file or an error), otherwise 0. Consumes nothing. */
int motet_readable(motet_stream s);

/* Waits until one of the streams is readable. Returns its index, -ETIMEDOUT or -EINTR. */
int motet_wait_any(const motet_stream *streams, unsigned count, int64_t deadline);

enum motet_path { MOTET_PATH_TCP = 0, MOTET_PATH_SHM = 1, MOTET_PATH_LOOPBACK = 2 };

struct motet_stream_info {
    size_t size;
    struct sockaddr_storage local, peer; /* addresses of the connection */
    int32_t peer_pid;                    /* 0: unknown (TCP) */
    int64_t peer_uid, peer_gid;          /* -1: unknown */
    uint32_t path;                       /* enum motet_path: what carries payload */
    uint32_t reason;                     /* why no faster path; text: motet_reason() */
    uint64_t sent_fast, sent_tcp, received_fast, received_tcp; /* bytes */
};
int motet_info(motet_stream s, struct motet_stream_info *info);

/* Returns one line of English for a reason code; never NULL. */
const char *motet_reason(uint32_t reason);

/* ------------------------------------------------------------------ buffers
 * Reusable memory whose pages are present: a freed block returns to the pool, not to the kernel, so that a receive into it takes no page faults.
 * Blocks are powers of two, at least 4 KiB, page-aligned. NULL: no memory. */
void *motet_buffer_alloc(size_t length);
void motet_buffer_free(void *buffer);

/* ------------------------------------------------------------------ messages
 * A node is one endpoint of a process. It has a link to each node that it connected to, and any number of channels over a link. One side opens a
 * channel to a service of the other; then both may send and receive on it. A message is a tag, headers (at most MOTET_HEADERS_MAX bytes; every
 * layer of a program pushes its own) and a body of any length.
 *
 * Each side chooses how it receives the messages of a channel:
 *   queue      in order, by receives on the channel
 *   tagged     by tag, of which bits may be ignored, on one channel or on any channel of a context
 *   handler    by a function that runs when a message arrives
 *
 * Conventions beyond those above
 *   - Handles belong to the node that they are used with. 0 is none. Every use is checked: an unknown handle gives -EBADF. Node handles are never
 *     used again; other numbers may be, after thousands of others of their kind.
 *   - Calls that may wait have a deadline and fail with -ETIMEDOUT after it. Deadline 0: do not wait; -EAGAIN instead.
 *   - Without MOTET_NODE_PROGRESS_THREAD nothing runs in the background. A call that waits makes progress for the whole node, handlers and deferred
 *     work included. A program that does not wait calls motet_node_progress(). Bodies up to a few KiB leave at once, longer ones with progress.
 *   - Memory that is passed to motet_message_post(), motet_message_send_start(), motet_message_accept() or a motet_region_*_start() stays the
 *     caller's and is used in place until the operation completes: a receive writes it, a send reads it (the peer, too). Until then do not free
 *     it, and do not change the memory of a send. motet_operation_cancel() does not complete an operation, it only makes it complete sooner.
 *     motet_node_close() ends all operations. Every other call is done with its memory when it returns.
 *   - A link that breaks (the peer exits, for example) completes everything on it with -ECONNRESET. Messages that were complete before can still
 *     be received.
 *   - After fork() the child has no nodes: every call on one gives -ECHILD, and motet_node_close() forgets it. */
typedef uint64_t motet_node;
typedef uint64_t motet_link;
typedef uint64_t motet_channel;
typedef uint64_t motet_context;
typedef uint64_t motet_handler;
typedef uint64_t motet_cq;             /* completion queue */
typedef uint64_t motet_operation;
typedef uint64_t motet_message;        /* a message without a receive: claimed, or kept by a handler */
typedef uint64_t motet_key;            /* remote key of a region: its owner gives it to its peers */
typedef uint64_t motet_mapping;        /* a peer's region, mapped into this process */
typedef uint64_t motet_loan;           /* memory of the node's pool that is sent without a copy */
typedef uint64_t motet_loaned_message; /* a message that was received in place */

#define MOTET_HEADERS_MAX 256

/* ---- nodes */

enum motet_node_flags {
    MOTET_NODE_SINGLE = 1,          /* one thread, the one that opens the node: calls take no lock, and give -EPERM in other threads */
    MOTET_NODE_PROGRESS_THREAD = 2, /* a thread makes progress when the program has made none for 10 ms; not with MOTET_NODE_SINGLE */
};

/* A field that is 0 or NULL has its default. */
struct motet_node_options {
    size_t size;
    const char *name;           /* for nodes of this host: 1 to 64 letters, digits and . _ - @; NULL or "": a unique name */
    const char *listen;         /* for nodes of other hosts: IP:PORT or [IP]:PORT, port 0: any; NULL: they cannot connect */
    uint32_t flags;             /* one of enum motet_node_flags, or 0 */
    uint32_t max_rendezvous;    /* rendezvous messages of one link at a time (1024); at most 1048575 */
    uint32_t max_channels;      /* channels that one peer may have open at a time (16384); at most 1048575 */
    uint32_t reserved;
    uint64_t window;            /* bytes of unexpected messages, with their records, that one link may hold (1 MiB + 16 KiB); 4 KiB to 4 GiB */
    uint64_t eager_max_shm;     /* longest body that is sent before its receive is posted, over shared memory (64 KiB) */
    uint64_t eager_max_network; /* the longest such body over a network (64 KiB) */
    uint64_t single_copy_min;   /* shortest body that its receiver may copy out of the sender's memory (128 KiB); the fastest way is used */
    uint64_t pool_max;          /* most bytes for loans and regions of motet_region_alloc() (4 GiB); pages are allocated when they are touched */
    const char *secret;         /* what nodes of other hosts must know: 32 random hexadecimal digits; NULL: generated, see motet_node_address() */
};

/* Opens a node. `options` may be NULL.
 * Errors: -EADDRINUSE (another node has the name or address), -EINVAL (an invalid option), -EMFILE (256 nodes of this process, or the system's
 * limit), -EHOSTUNREACH (the settings allow no driver that carries messages), and errors of the system. */
int motet_node_open(const struct motet_node_options *options, motet_node *out);

/* Closes a node with every link, channel, operation and handle of it. Operations are not reported, and their memory is the caller's again. Calls of
 * other threads on the node return -EBADF; this call waits for them.
 * Errors: -EDEADLK (from within a call on the node, such as a handler), -EBUSY (a port is open). */
int motet_node_close(motet_node node);

/* Writes the node's name, or its full address "shm://NAME,tcp://SECRET@IP:PORT", in the form that motet_link_open() takes. Every process that has the
 * address may connect: give it to no other. Writes at most `size` bytes with a zero at the end; returns the length of the whole text without it. */
ssize_t motet_node_name(motet_node node, char *text, size_t size);
ssize_t motet_node_address(motet_node node, char *text, size_t size);

/* Makes one round of progress. Returns 1 when something arrived or was done; 0 when nothing was, or when another thread makes progress. Deferred work
 * that is due runs in it; after such work the call may wait for another thread that began to make progress in the meantime. */
int motet_node_progress(motet_node node);

/* For poll and epoll: returns a descriptor of the node that becomes readable when there is progress to make, once motet_node_arm() has returned 1.
 * motet_node_arm() returns 0 when there is progress to make already: call motet_node_progress() instead of sleeping. Make progress after the
 * sleep, too, and do not read from the descriptor. (As libfabric's fi_trywait() and UCX's ucp_worker_arm().) */
int motet_node_descriptor(motet_node node);
int motet_node_arm(motet_node node);

/* Runs `function` once, outside of any handler, in the thread that makes progress next. It may wait. It does not run if the node is closed first. */
int motet_node_defer(motet_node node, void (*function)(motet_node node, void *user), void *user);

/* ---- links */

/* Opens a link to the node at `address`: a name of this host, or the text of motet_node_address(). "tcp://IP:PORT" without the secret reaches only a
 * process of the same user on this host, which the kernel attests. Waits until the deadline for a node that does not exist yet. Two nodes may
 * have several links.
 * Errors: -ECONNREFUSED (no such node), -EACCES (a node of another user, or a wrong secret), -EHOSTUNREACH, -EINVAL (no address), -ETIMEDOUT. */
int motet_link_open(motet_node node, const char *address, int64_t deadline, motet_link *out);

struct motet_link_state {
    size_t size;
    uint8_t peer[16];              /* the peer node's unique number */
    char driver[16];               /* name of the driver that carries the link */
    int32_t down;                  /* 1: the link is down; `reason` says why */
    uint32_t reason;               /* text: motet_reason() */
    uint32_t channels;             /* open channels */
    uint32_t rendezvous_receives;  /* long messages in progress towards this node */
    uint32_t rendezvous_sends;     /* and towards the peer */
    uint32_t reserved;
    uint64_t record_bytes;         /* bytes of records held for the link */
    uint64_t unexpected_bytes;     /* bytes of messages that arrived and were not received yet */
    uint64_t inject_size;          /* most bytes of headers and body that MOTET_SEND_INJECT takes */
};
int motet_link_info(motet_node node, motet_link link, struct motet_link_state *state);

/* Writes at most `max` links that are up, or down and not closed; returns how many exist. A link that the peer opened and that is down closes itself
 * when none of its messages waits and this side has no channel of it: -EBADF from then on. */
ssize_t motet_links(motet_node node, motet_link *links, size_t max);

/* Closes a link with its channels; operations on it complete with -ECONNRESET. Messages that have left reach a peer that lives. */
int motet_link_close(motet_node node, motet_link link);

/* ---- services and channels */

enum motet_receive_kind { MOTET_RECEIVE_QUEUE = 1, MOTET_RECEIVE_TAGGED = 2, MOTET_RECEIVE_HANDLER = 3 };

/* How a side receives the messages of a channel. */
struct motet_receive_mode {
    size_t size;
    uint32_t kind;     /* enum motet_receive_kind */
    uint32_t reserved;
    uint64_t target;   /* TAGGED: a motet_context; HANDLER: a motet_handler; QUEUE: 0 */
};

/* Lets peers open channels to a service, a number that both sides agree on. The latest call determines the mode of channels that open after it.
 * After motet_service_close() new channels are refused; open ones stay. */
int motet_service_open(motet_node node, uint64_t service, const struct motet_receive_mode *mode);
int motet_service_close(motet_node node, uint64_t service);

/* Returns the next channel that a peer opened to a service. Its messages can be received earlier, from its context or by its handler.
 * Errors: -ECONNREFUSED (the service is not open here). */
int motet_channel_accept(motet_node node, uint64_t service, int64_t deadline, motet_channel *out);

/* Opens a channel and waits for the peer's answer. `mode`: how this side receives.
 * Errors: -ECONNREFUSED (the peer has no such service), -ENOBUFS (the peer allows no more channels), -ECONNRESET. */
int motet_channel_open(motet_node node, motet_link link, uint64_t service, const struct motet_receive_mode *mode,
                       int64_t deadline, motet_channel *out);

/* Ends this side's sends; messages still arrive. The peer's receives on the channel complete with -EPIPE when it has received everything. */
int motet_channel_finish(motet_node node, motet_channel channel);

/* Closes this side: receives on the channel complete with -EPIPE, messages that were not received are discarded. */
int motet_channel_close(motet_node node, motet_channel channel);

/* Returns the link of a channel. */
static inline motet_link motet_channel_link(motet_channel channel) { return channel >> 32; }

/* A context: receives from any of the channels that are put into it. motet_context_free() gives -EAGAIN while it has channels or receives. A service
 * whose mode names a freed context does not keep it alive. */
int motet_context_new(motet_node node, motet_context *out);
int motet_context_free(motet_node node, motet_context context);

/* ---- completions */

enum motet_completion_flags {
    MOTET_COMPLETION_ERRORS_ONLY = 1, /* needs a completion queue: a success is only counted (selective completion, unsignaled) */
};

/* What to do when an operation completes. NULL is the same as all zeros: the completion is kept until motet_operation_test() or _wait() takes it. */
struct motet_completion_options {
    size_t size;
    motet_cq cq;        /* queue that gets the completion; the operation itself then gives -EBADF in test and wait. 0: none */
    uint64_t user_data; /* returned with the completion */
    uint32_t flags;     /* enum motet_completion_flags */
    uint32_t reserved;
};

/* The completion of an operation, or the description of a message that waits. */
struct motet_completion {
    size_t size;
    motet_operation operation; /* 0: a call that waited itself */
    uint64_t user_data;        /* of the completion options */
    int32_t status;            /* 0, -EMSGSIZE (longer than the buffer, which is full), -ECANCELED, -EPIPE (the channel has ended), */
                               /* -ECONNRESET, -EPROTO (the peer broke the protocol), -ENOBUFS; on regions also -EACCES (no such region, */
                               /* or the access is not allowed), -ERANGE (out of bounds), -EINVAL (an atomic that is not possible there) */
    uint32_t headers_length;
    uint64_t length;           /* bytes sent, or bytes in the buffer */
    uint64_t message_length;   /* of a receive: bytes of the message's body, including those that did not fit */
    uint64_t tag;              /* of a receive: the message's */
    motet_channel channel;     /* of a receive: the message's */
    unsigned char headers[MOTET_HEADERS_MAX]; /* of a receive: outermost first; bytes beyond headers_length are not written */
    motet_loaned_message loaned; /* of a receive in place: to be released; 0: nothing to release. Not written by motet_message_receive(), */
    const void *body;            /* _receive_from(), _peek() and _claim(), or when `size` ends before it. If loaned != 0: `length` bytes */
};

/* Takes the completion of an operation, which is forgotten then. `completion` may be NULL.
 *   test      returns 1 when it has completed, otherwise 0; makes no progress
 *   wait      returns 0
 *   wait_any  returns the index of the operation, of `count`
 * The result of the operation is completion->status. Errors: -EBADF (no such operation; in wait_any: none of them exists). */
int motet_operation_test(motet_node node, motet_operation operation, struct motet_completion *completion);
int motet_operation_wait(motet_node node, motet_operation operation, int64_t deadline, struct motet_completion *completion);
int motet_operation_wait_any(motet_node node, const motet_operation *operations, unsigned count, int64_t deadline,
                             struct motet_completion *completion);

/* Asks for an operation to be cancelled. It completes in any case, with -ECANCELED or with its normal result. A send that has left, or whose fragments
 * are on their way, continues. Errors: -EBADF (the completion was reported already). */
int motet_operation_cancel(motet_node node, motet_operation operation);

/* A completion queue: completions of many operations in order. motet_cq_free() gives -EAGAIN while operations of the queue are outstanding. */
int motet_cq_new(motet_node node, motet_cq *out);
int motet_cq_free(motet_node node, motet_cq cq);

/* Takes up to `max` completions, in order, and returns how many. Waits for the first one; deadline 0: makes one round of progress when the queue is
 * empty, then -EAGAIN. `completions` is an array; the first element's `size` is the distance of its elements. -EINTR after motet_cq_signal(). */
int motet_cq_wait(motet_node node, motet_cq cq, struct motet_completion *completions, unsigned max, int64_t deadline);

struct motet_cq_counters {
    size_t size;
    uint64_t succeeded;   /* operations that completed with success, those with MOTET_COMPLETION_ERRORS_ONLY included */
    uint64_t failed;      /* operations that completed otherwise */
    uint64_t outstanding; /* operations that have not completed */
};
int motet_cq_counts(motet_node node, motet_cq cq, struct motet_cq_counters *counters);

/* Waits until at least `succeeded` operations have completed with success or more than `failed` otherwise, counted since motet_cq_new(). */
int motet_cq_wait_counts(motet_node node, motet_cq cq, uint64_t succeeded, uint64_t failed, int64_t deadline);

/* Makes one thread that waits for the queue, or the next one that would, return -EINTR. */
int motet_cq_signal(motet_node node, motet_cq cq);

/* ---- ports: for a library that posts receives, sends and polls (MPI, libfabric)
 * A port's calls do what motet_message_post(), motet_message_send_start() of an injected message and motet_cq_wait() with deadline 0 do, with the same
 * errors, for a fraction of the instructions. A port needs no lookup of its node. It takes the node's lock without an atomic exchange while no other
 * caller uses it (biased lock).
 *   - One call at a time on a port, from any thread. Other calls on the node at any time. A handler must not call a port.
 *   - A port is a pointer, which is not checked. motet_node_close() gives -EBUSY while a port is open.
 *   - MOTET_NODE_SINGLE nodes have no ports (-EINVAL). A forked child closes its ports; every other call on them gives -ECHILD. */
typedef struct motet_port_impl *motet_port;

/* Layout of libfabric's struct fi_cq_tagged_entry. */
struct motet_port_completion { void *op_context; uint64_t flags; size_t length; void *buffer; uint64_t data, tag; };

/* Opens a port. flags[0] is what motet_port_poll() writes for messages without headers, flags[1] for messages with a header of 8 bytes (`data`). */
int motet_port_open(motet_node node, const uint64_t flags[2], motet_port *out);
int motet_port_close(motet_port port);

/* Posts a receive on a channel or, when that is 0, on a context. The receive has no operation handle: it is known by `user_data`. */
int motet_port_post(motet_port port, motet_channel channel, motet_context context, uint64_t tag, uint64_t ignore, void *buffer, size_t capacity,
                    motet_cq cq, uint64_t user_data);

/* Posts such a receive as an operation with a handle. */
int motet_port_post_operation(motet_port port, motet_channel channel, motet_context context, uint64_t tag, uint64_t ignore, void *buffer,
                              size_t capacity, motet_cq cq, uint64_t user_data, motet_operation *out);

/* Cancels one receive of motet_port_post() by its user_data. Returns 1: it completes with -ECANCELED; 0: no such receive waits there. */
int motet_port_cancel(motet_port port, motet_cq cq, motet_channel channel, motet_context context, uint64_t user_data);

/* Cancels all receives of motet_port_post() that wait there. Those whose messages are arriving there never complete; their memory is free. */
int motet_port_abandon(motet_port port, motet_cq cq, motet_channel channel, motet_context context);

/* Sends headers and one piece of body in one packet, or nothing: the body is free when the call returns. */
int motet_port_send(motet_port port, motet_channel channel, uint64_t tag, const void *headers, size_t headers_length, const void *body,
                    size_t length);

/* Takes up to `max` completions of receives of motet_port_post() that received all of their message, with no headers or 8 bytes of them. Returns how
 * many; 0: the next completion is of another kind, motet_port_poll_full() takes it; -EAGAIN: there is none. */
int motet_port_poll(motet_port port, motet_cq cq, struct motet_port_completion *completions, unsigned max);

/* Takes up to `max` completions of any kind; a receive of motet_port_post() has operation 0. Returns how many; -EAGAIN: there is none. */
int motet_port_poll_full(motet_port port, motet_cq cq, struct motet_completion *completions, unsigned max);

/* ---- sending
 * Messages of a channel arrive in the order in which they were sent, whichever call sent them. A call that fails has sent nothing, unless stated.
 * Errors: -EPIPE (the peer receives no more), -ECONNRESET or -EPROTO (the link is down), -E2BIG (headers too long, or too long to inject),
 * -EAGAIN (no room; try again after progress), -ENOBUFS. */

enum motet_send_mode {
    MOTET_SEND_AUTOMATIC = 0,
    MOTET_SEND_INJECT = 1,      /* short: sent at once and the body is free, or nothing is sent (-E2BIG beyond inject_size or the peer's window) */
    MOTET_SEND_SYNCHRONOUS = 2, /* completes when a receive has matched the message and got it */
};

struct motet_outgoing {
    size_t size;
    motet_channel channel;
    uint64_t tag;
    const void *headers;    /* outermost first; copied */
    uint32_t headers_length;
    uint32_t mode;          /* enum motet_send_mode */
};

/* Sends, and waits until the body is free: a short one has left, a long one is in the receiver's memory. -ETIMEDOUT: the message was recalled, which
 * needs an answer of the peer. A peer that makes no progress for three seconds after the deadline may be stopped and could still read the body: its
 * link goes down, and the call fails with -ECONNRESET. Use motet_message_send_start() where that is not acceptable.
 * In a handler, which must not wait, a body that cannot be injected gives -EDEADLK. */
int motet_message_send(motet_node node, motet_channel channel, uint64_t tag, const void *body, size_t length, int64_t deadline);
int motet_message_sendv(motet_node node, const struct motet_outgoing *message, const struct iovec *body, int count, int64_t deadline);

/* Sends by MOTET_SEND_INJECT, without headers. Waits for room until the deadline. */
int motet_message_inject(motet_node node, motet_channel channel, uint64_t tag, const void *body, size_t length, int64_t deadline);

/* Starts a send; never waits. *out is the operation; the body (not the iovecs) stays in use until it completes. *out 0: the message has left, the body
 * is free, and there is no completion. With a completion queue there is always an operation. Injected messages have none and are not counted. */
int motet_message_send_start(motet_node node, const struct motet_outgoing *message, const struct iovec *body, int count,
                             const struct motet_completion_options *options, motet_operation *out);

/* ---- receiving
 * A message goes to the receive that was posted first among those that match it. A receive gets the message that arrived first among those that match
 * it. Both hold over channels and contexts together. */

/* Selects the messages that a receive matches. */
struct motet_source {
    size_t size;
    motet_channel channel; /* on this channel; 0: on any channel of `context` */
    motet_context context;
    uint64_t tag;
    uint64_t ignore;       /* bits of the tag to ignore; on a channel received as a queue all are ignored */
};

/* Waits for a message (on a channel whatever its tag, or one that matches) and receives it. Returns the receive's status; -ETIMEDOUT: none arrived.
 * `completion` may be NULL. After -EMSGSIZE its message_length is the message's length. */
int motet_message_receive(motet_node node, motet_channel channel, void *buffer, size_t capacity, int64_t deadline,
                          struct motet_completion *completion);
int motet_message_receive_from(motet_node node, const struct motet_source *source, void *buffer, size_t capacity,
                               int64_t deadline, struct motet_completion *completion);

/* Posts a receive. `buffer` stays in use until it completes. */
int motet_message_post(motet_node node, const struct motet_source *source, void *buffer, size_t capacity,
                       const struct motet_completion_options *options, motet_operation *out);

/* Describes the message that a receive would get: returns 1 and writes tag, channel, headers and length (of the whole body), or returns 0. Makes no
 * progress. */
int motet_message_peek(motet_node node, const struct motet_source *source, struct motet_completion *description);

/* Does what motet_message_peek() does and takes the message out of matching. It must be accepted or discarded. */
int motet_message_claim(motet_node node, const struct motet_source *source, struct motet_completion *description, motet_message *out);

/* Receives a message that was claimed, or that a handler kept, into a buffer; the operation completes like that of a post. With capacity 0 it completes
 * with success. Discarding drops the message; the send of a long one then completes with -EPIPE. */
int motet_message_accept(motet_node node, motet_message message, void *buffer, size_t capacity,
                         const struct motet_completion_options *options, motet_operation *out);
int motet_message_discard(motet_node node, motet_message message);

/* ---- handlers */

/* A message, as a handler gets it. All memory is valid during the call. */
struct motet_arrival {
    size_t size;
    motet_channel channel;
    uint64_t tag;
    const void *headers;
    size_t headers_length;
    const void *body;      /* the whole body, when `message` is 0 */
    size_t length;         /* bytes of the body */
    motet_message message; /* not 0: the body has not arrived; accept the message during the call or later */
};

/* Runs when a message arrives, in the thread that makes progress, one handler at a time in a node. It may send (without waiting: -EAGAIN), post, start,
 * accept and defer. It must not wait, and must return: no exception, longjmp or cancellation may leave it. Nonzero keeps arrival->message for later;
 * 0 discards it, unless it was accepted. */
typedef int (*motet_message_handler)(motet_node node, const struct motet_arrival *arrival, void *user);

int motet_handler_new(motet_node node, motet_message_handler function, void *user, motet_handler *out);

/* Frees a handler. The function does not run any more when this returns (called from within a handler: other threads may still be in it). Messages for it
 * are discarded. */
int motet_handler_free(motet_node node, motet_handler handler);

/* ---- regions
 * A region is memory of one node that others access without its program's help. They get from it, put into it and change it by atomics; they name it by
 * its key (8 random bytes) and an offset in bytes. The owner gives the key to its peers, in a message for example. The owner's side checks each access
 * against key, rights and bounds; a refused access has changed nothing. A key that the owner never gave out is a guess: the owner's side ends the link,
 * -ECONNRESET here. An access to a region that has ended gives -EACCES. (When a region is revoked during an access of more than put_size bytes, some of
 * them may have been written.)
 *
 * Order: puts up to put_size bytes, gets up to fetch_size bytes, and atomics on one link take effect and complete in the order in which they were started;
 * longer ones in no order. What is started after a fence has completed takes effect after everything that was started before the fence. A put completes
 * when its bytes are in the region. All of them need progress of the owner's node, except where the region is open.
 *
 * Errors of the calls below: -EBADF (node, link), -EINVAL, -EAGAIN (no room; try again after progress), -ENOBUFS, -ECONNRESET or -EPROTO (the link is
 * down), -EPIPE (the peer has no regions). An operation's result is its status; a call that waits returns that. A refusal that is known at once (the
 * region is open) is returned by the call, unless there is a completion queue. */

enum motet_region_rights { MOTET_REGION_GET = 1, MOTET_REGION_PUT = 2, MOTET_REGION_ATOMIC = 4, MOTET_REGION_ALL = 7 };

/* Registers memory of the caller as a region. The memory must stay until the region has ended. Without PUT and ATOMIC it is never written.
 * Errors: -EINVAL (also: ATOMIC, and `base` is not a multiple of 8), -ENOBUFS (1048575 regions). */
int motet_region_register(motet_node node, void *base, size_t length, uint32_t rights, motet_key *out);

/* Registers memory whose first byte has the offset `iova` for peers, as ibv_reg_mr_iova() does: its address, for example. `base` may have any alignment: an
 * atomic completes with -EINVAL where its elements are not aligned to their size. -ENOBUFS also: iova + length exceeds 64 bits. */
int motet_region_register_iova(motet_node node, void *base, size_t length, uint64_t iova, uint32_t rights, motet_key *out);

/* Allocates a region of zeros that peers of this host can open. *base stays valid until the region has ended; then it reads as zeros.
 * Errors: -ENOBUFS (the pool is used up). */
int motet_region_alloc(motet_node node, size_t length, uint32_t rights, void **base, motet_key *out);

/* Registers a part of an open file as a region: `length` bytes from `offset`, which the file must have. Any alignment is allowed, but ATOMIC needs an
 * `offset` that is a multiple of 8. The region keeps a copy of the descriptor; the caller may close its own. Peers access it like registered memory;
 * motet_region_open() gives them -EOPNOTSUPP, as they can map the file themselves. The file must be open for reading (GET, ATOMIC) and writing (PUT,
 * ATOMIC), and not with O_DIRECT, nor with O_APPEND if it is written.
 *   - A put has completed when its bytes are in the file as every process of the host sees it (read(2), mmap(2)). They survive this process. They are on
 *     the disk only after motet_region_sync().
 *   - When the file is cut short, an access to missing bytes completes with -ERANGE, without a SIGBUS. (A mapping of a file that is registered with
 *     motet_region_register() has no such guarantee.) A get at that moment may return zeros. A full or failing disk gives -EACCES. The file never
 *     grows beyond the end of the region.
 *   - An atomic changes each element in one step with respect to other accesses through the same region, not to other regions over the file or other users
 *     of the file. For a memfd that is sealed against shrinking (F_SEAL_SHRINK) it is one step for everyone, and as fast as memory.
 *   - An access may wait for the disk, and everything else of this node waits with it.
 * Errors: -EBADF (also: `file` is not open, or opened with O_PATH), -EISDIR, -ESPIPE (a pipe, a socket, a device), -EACCES (not opened for this, or sealed
 * against it), -ERANGE (the file does not have these bytes), -EINVAL (rights; no bytes; ATOMIC and `offset`; the flags above), -EFBIG (RLIMIT_FSIZE),
 * -EOPNOTSUPP (huge pages), -EMFILE, -ENOBUFS. */
int motet_region_register_file(motet_node node, int file, uint64_t offset, uint64_t length, uint32_t rights, motet_key *out);

/* Waits until bytes of a region over a file are on the disk (fdatasync(2)): those of every put and atomic that has been reported complete, and other writes
 * there. It may take long; calls of other threads on the node continue.
 * Errors: -EBADF (no such region), -EINVAL (not a file's region), -ERANGE (out of bounds; or the file is shorter, and what it has is on the disk), and
 * errors of the system: after -EIO or -ENOSPC bytes may be lost. */
int motet_region_sync(motet_node node, motet_key key, uint64_t offset, uint64_t length);

/* Ends a region of this node: new accesses are refused, those in progress complete with -EACCES. Returns 0 when no peer uses the memory any more.
 * -ETIMEDOUT, or -EAGAIN with deadline 0: a peer still uses it or has not answered; call again, or close that link. -EBADF: there is no such region, or it
 * has ended since such a call. motet_node_close() ends all regions. */
int motet_region_revoke(motet_node node, motet_key key, int64_t deadline);

struct motet_region_limits {
    size_t size;
    uint64_t put_size;    /* longest put whose bytes are free as soon as it has started */
    uint64_t atomic_size; /* most bytes of an atomic's operands and compare values together: at least 256; beyond it: -E2BIG */
    uint64_t fetch_size;  /* most bytes of an atomic's results: 256 */
};
int motet_link_region_limits(motet_node node, motet_link link, struct motet_region_limits *limits);

/* A place in a region of a peer. */
struct motet_remote_address {
    size_t size;
    motet_link link;
    motet_key key;    /* the peer's */
    uint64_t offset;  /* bytes */
};

/* Writes to, or reads from, a region and waits. -ETIMEDOUT: the access may still happen, but the memory here is not used any more. (A put of more than
 * put_size bytes that has started is waited for beyond the deadline, because the peer may be reading them.) Deadline 0: done at once where the region
 * is open, otherwise -EAGAIN. In a handler likewise, otherwise -EDEADLK. */
int motet_region_put(motet_node node, const struct motet_remote_address *to, const void *from, size_t length, int64_t deadline);
int motet_region_get(motet_node node, const struct motet_remote_address *at, void *into, size_t length, int64_t deadline);

/* Starts a put or get; never waits. *out is the operation; the memory stays in use until it completes (not that of a put of at most put_size bytes).
 * *out 0: it is done, and there is no completion. With a completion queue there is always an operation. At most 256 are outstanding on a link: -EAGAIN
 * beyond that. motet_operation_cancel() has no effect on them. */
int motet_region_put_start(motet_node node, const struct motet_remote_address *to, const void *from, size_t length,
                           const struct motet_completion_options *options, motet_operation *out);
int motet_region_get_start(motet_node node, const struct motet_remote_address *at, void *into, size_t length,
                           const struct motet_completion_options *options, motet_operation *out);

/* What is done to each element of the target. SWAP_x writes the operand if `compare` x target holds (FI_CSWAP of libfabric); SWAP_MASKED writes the bits
 * of the operand that are set in `compare` (FI_MSWAP). */
enum motet_atomic_operation {
    MOTET_ATOMIC_SUM = 0,
    MOTET_ATOMIC_PRODUCT = 1,
    MOTET_ATOMIC_MINIMUM = 2,
    MOTET_ATOMIC_MAXIMUM = 3,
    MOTET_ATOMIC_LOGICAL_AND = 4,
    MOTET_ATOMIC_LOGICAL_OR = 5,
    MOTET_ATOMIC_LOGICAL_XOR = 6,
    MOTET_ATOMIC_BIT_AND = 7, /* operations on bits: integers only */
    MOTET_ATOMIC_BIT_OR = 8,
    MOTET_ATOMIC_BIT_XOR = 9,
    MOTET_ATOMIC_REPLACE = 10,
    MOTET_ATOMIC_READ = 11, /* no operand; needs `result` */
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

/* An atomic on `count` consecutive elements. Each element changes in one step; the row does not. Integers wrap, values are little-endian, the offset is a
 * multiple of the element's size. On memory that the owner, or a peer that has opened it, changes as well, they are atomic with respect to the
 * processor's atomic instructions (C11 seq_cst). */
struct motet_atomic {
    size_t size;
    uint32_t operation;  /* enum motet_atomic_operation */
    uint32_t type;       /* enum motet_atomic_type */
    uint32_t count;      /* elements */
    uint32_t reserved;
    const void *operand; /* one value for each element; free when the call returns. Not used by READ */
    const void *compare; /* one value for each element; free when the call returns. Used by the swaps only */
    void *result;        /* gets the values from before the change, or NULL */
};
int motet_region_atomic(motet_node node, const struct motet_remote_address *at, const struct motet_atomic *atomic, int64_t deadline);
int motet_region_atomic_start(motet_node node, const struct motet_remote_address *at, const struct motet_atomic *atomic,
                              const struct motet_completion_options *options, motet_operation *out);

/* A fence completes when every put, get and atomic that was started on the link before it has completed. */
int motet_region_fence(motet_node node, motet_link link, int64_t deadline);
int motet_region_fence_start(motet_node node, motet_link link, const struct motet_completion_options *options, motet_operation *out);

/* A peer's region as it is mapped here. */
struct motet_region_mapping {
    size_t size;
    void *base;        /* for loads and stores until motet_region_close() */
    uint64_t length;   /* bytes */
    uint32_t rights;   /* without PUT and ATOMIC a store is a fault (SIGSEGV) */
    uint32_t reserved;
};

/* Opens a region of a peer: maps its memory at mapping->base. From then on the calls above use the mapping and need no help of the peer; while other
 * accesses of this node are outstanding on the link, they queue behind them. Loads and stores by address do not. After the owner has revoked the
 * region, or is gone, the memory stays mapped until it is closed here but belongs to no region; motet_region_is_valid() then returns 0, otherwise 1.
 * Errors: -EOPNOTSUPP (registered memory, another host, or the system refuses the mapping: use the calls above), -EACCES (no such region),
 * -EAGAIN (deadline 0, and the region is not open). */
int motet_region_open(motet_node node, motet_link link, motet_key key, int64_t deadline, struct motet_region_mapping *mapping,
                      motet_mapping *out);
int motet_region_close(motet_node node, motet_mapping mapping);
int motet_region_is_valid(motet_node node, motet_mapping mapping);

/* ---- loans
 * A loan is memory of the node's pool that is sent as a message without a copy. A receiver that can map it reads it in place, in constant time whatever its
 * length, and releases it. For any other receiver it is a message like every other. */

/* Allocates memory for a message. It holds zeros, or bytes of an earlier message. -ENOBUFS: the pool is used up; try again after receivers release. */
int motet_loan_alloc(motet_node node, size_t length, void **memory, motet_loan *out);

/* Frees a loan that was not sent. */
int motet_loan_free(motet_node node, motet_loan loan);

/* Sends the first `length` bytes of a loan; after success the loan is not the caller's any more. Waits for room; deadline 0: -EAGAIN. The operation completes
 * when the receiver has released the message or has a copy; *out 0: that has happened already. `out` NULL: there is no completion, and `options` must
 * be NULL. After an error the loan is still the caller's, cut to `length`. -EINVAL also: it is shorter. message->mode must be MOTET_SEND_AUTOMATIC. */
int motet_loan_send(motet_node node, const struct motet_outgoing *message, motet_loan loan, size_t length,
                    const struct motet_completion_options *options, int64_t deadline, motet_operation *out);

/* Receive in place, otherwise like motet_message_receive_from(), _post() and _accept(). A message that cannot be mapped is copied, at most `max` bytes of it;
 * -EMSGSIZE if it is longer. When completion->loaned is not 0, the body is at completion->body until it is released. A message without a body needs no
 * release. Where the completion cannot be reported (NULL, or a struct of an earlier version) the message is released at once. The sender has promised not
 * to write to it; copy it before you check it, if you do not trust the sender. */
int motet_message_receive_in_place(motet_node node, const struct motet_source *source, uint64_t max, int64_t deadline,
                                   struct motet_completion *completion);
int motet_message_post_in_place(motet_node node, const struct motet_source *source, uint64_t max,
                                const struct motet_completion_options *options, motet_operation *out);
int motet_message_accept_in_place(motet_node node, motet_message message, uint64_t max,
                                  const struct motet_completion_options *options, motet_operation *out);

/* Releases a message that was received in place: its memory is no longer valid. Allowed after its link is down, too. motet_node_close() releases all. */
int motet_message_release(motet_node node, motet_loaned_message message);

/* ---- headers: a stack that grows towards its front */

struct motet_headers {
    uint32_t start; /* MOTET_HEADERS_MAX: empty */
    unsigned char bytes[MOTET_HEADERS_MAX];
};

static inline void motet_headers_clear(struct motet_headers *stack) { stack->start = MOTET_HEADERS_MAX; }

/* Puts a header in front of the others. Returns 0, and changes nothing, when it does not fit; otherwise 1. */
static inline int motet_headers_push(struct motet_headers *stack, const void *header, uint32_t length)
{
    if (length > stack->start || stack->start > MOTET_HEADERS_MAX)
        return 0;
    stack->start -= length;
    memcpy(stack->bytes + stack->start, header, length);
    return 1;
}

/* The length of a message's headers, which are at stack->bytes + stack->start. */
static inline uint32_t motet_headers_length(const struct motet_headers *stack) { return MOTET_HEADERS_MAX - stack->start; }

/* The receiver's side: takes `length` bytes from the front. Returns 0, and takes nothing, when fewer are left; otherwise 1. */
static inline int motet_headers_pop(const unsigned char **headers, uint32_t *left, void *header, uint32_t length)
{
    if (length > *left) return 0;
    memcpy(header, *headers, length);
    *headers += length;
    *left -= length;
    return 1;
}

#ifdef __cplusplus
}
#endif
#endif
