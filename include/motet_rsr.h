/* motet_rsr.h: remote service requests in C (libmotet.so.0). docs/rsr.md is the introduction.
 *
 * What it is:    an endpoint is fixed on a node, and has handlers. A startpoint refers to one endpoint or several; it is plain data, can be sent to any process, and
 *                works there. A request runs a handler with data; it is one-way. A startpoint in the data is where replies go; motet_rsr_call() does that.
 * What it isn't: calls with types that are checked: the two sides agree on the order of the data (CORBA does more).
 *
 * Conventions beyond those of motet.h
 *   - Handles are checked: an unknown one gives -EBADF. They are never used again. Every call may be made from any thread.
 *   - A reader (struct motet_rsr_reader) is an unchecked pointer, for one thread at a time.
 *   - A startpoint contains the secrets of its nodes: who has it may use it, and connect to them.
 *   - -EDEADLK: from within a message handler of motet.h.
 *   - After fork() the child has none of the handles: every call on one gives -ECHILD. */
#ifndef MOTET_RSR_H
#define MOTET_RSR_H

#include "motet.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t motet_rsr;            /* a node's part in requests */
typedef uint64_t motet_rsr_endpoint;
typedef uint64_t motet_rsr_startpoint;
typedef uint64_t motet_rsr_buffer;     /* data that will be sent */
struct motet_rsr_reader;               /* data that have come */

/* ---- nodes */

/* Which threads receive requests, and run the handlers that are not threaded. */
enum motet_rsr_reception {
    MOTET_RSR_ONE_THREAD = 0,         /* one thread of Motet */
    MOTET_RSR_CALLER = 1,             /* the program's own, in motet_rsr_poll() and motet_rsr_call(); Motet makes no thread */
    MOTET_RSR_THREAD_PER_CHANNEL = 2  /* a thread of Motet for each channel, so for each peer */
};

struct motet_rsr_options {
    size_t size;
    uint32_t reception;     /* enum motet_rsr_reception */
    uint32_t workers;       /* most threads for threaded handlers; 0: 8 */
    uint32_t queue;         /* requests that wait for such a thread, until senders have to wait; 0: 64 */
    int32_t one_packet;     /* data of up to so many bytes travel in one packet with their head, at most 32768; 0: that; -1: never */
    uint64_t max_request;   /* the longest request that is received, bytes; 0: 256 MiB */
    uint64_t memory;        /* memory for requests beyond one packet, bytes; 0: 1 GiB */
};

/* Lets a node send and receive requests. `options` may be NULL. The node cannot be closed (-EBUSY) until motet_rsr_detach(). Errors: -EINVAL (it does
 * already, a node with MOTET_NODE_SINGLE, or wrong options). */
int motet_rsr_attach(motet_node node, const struct motet_rsr_options *options, motet_rsr *out);

/* Ends that. -EBUSY: endpoints are open. -EDEADLK: from within a handler. */
int motet_rsr_detach(motet_rsr rsr);

/* Receives requests in this thread: waits for the first until the deadline, and handles all that are there. Returns how many packets came; 0 at the
 * deadline. -EINVAL: the reception is not MOTET_RSR_CALLER. */
int motet_rsr_poll(motet_rsr rsr, int64_t deadline);

struct motet_rsr_counts {
    size_t size;
    uint64_t handled;      /* requests for which a handler ran or will run */
    uint64_t no_endpoint;  /* dropped: for endpoints that are not there */
    uint64_t no_handler;   /* dropped: for handlers that are not there */
    uint64_t malformed;    /* dropped: messages that are no requests */
    uint64_t too_long;     /* dropped: longer than max_request */
    uint64_t incomplete;   /* dropped: their data did not come */
    uint64_t late_replies; /* dropped: replies after the deadline of their call */
    uint64_t foreign;      /* requests whose data had to be converted */
};
int motet_rsr_count(motet_rsr rsr, struct motet_rsr_counts *out);

/* ---- endpoints */

/* A handler. `request` has the data; it is valid until the handler returns. `user` is the endpoint's. A handler that is not threaded runs in the thread
 * that receives: it should end soon, and make no motet_rsr_call(), unless the reception is MOTET_RSR_CALLER. */
typedef void (*motet_rsr_function)(struct motet_rsr_reader *request, void *user);

struct motet_rsr_handler {
    size_t size;
    const char *name;       /* of 1 to 64 bytes; NULL: by number */
    uint32_t number;
    uint32_t threaded;      /* 1: a thread of a pool runs it, and it may wait */
    motet_rsr_function function;
};

/* Makes an endpoint. `handlers` is an array; the first element's `size` is the distance of its elements. */
int motet_rsr_endpoint_open(motet_rsr rsr, const struct motet_rsr_handler *handlers, unsigned count, void *user, motet_rsr_endpoint *out);

/* Closes it, and waits for its handlers; from within one it does not wait for that. Later requests are dropped and counted. */
int motet_rsr_endpoint_close(motet_rsr_endpoint endpoint);

/* ---- startpoints */

/* A startpoint of an endpoint. */
int motet_rsr_startpoint_open(motet_rsr_endpoint endpoint, motet_rsr_startpoint *out);
int motet_rsr_startpoint_copy(motet_rsr_startpoint startpoint, motet_rsr_startpoint *out);
int motet_rsr_startpoint_close(motet_rsr_startpoint startpoint);

/* Adds the endpoints of `other`: a request then goes to all of them. At most 256. */
int motet_rsr_startpoint_bind(motet_rsr_startpoint startpoint, motet_rsr_startpoint other);

/* Chooses the driver by which requests go, such as "tcp"; NULL: the first that both nodes have and that works for the pair. The choice travels along. */
int motet_rsr_choose(motet_rsr_startpoint startpoint, const char *driver);

/* Writes the startpoint as bytes, or as text with a zero at its end, to be sent anywhere, and returns the length without the zero. Longer than `size`: nothing
 * is written. `into` may be NULL then. */
ssize_t motet_rsr_startpoint_bytes(motet_rsr_startpoint startpoint, void *into, size_t size);
ssize_t motet_rsr_startpoint_text(motet_rsr_startpoint startpoint, char *into, size_t size);

/* The startpoint of bytes or text. -EBADMSG: they are none. */
int motet_rsr_startpoint_from_bytes(const void *bytes, size_t length, motet_rsr_startpoint *out);
int motet_rsr_startpoint_from_text(const char *text, motet_rsr_startpoint *out);

struct motet_rsr_way {
    size_t size;
    char driver[16];      /* in use */
    char rejected[16];    /* the last driver before it that does not work for this pair, or "" */
    int32_t errno_;       /* why it does not, a negative errno */
    uint32_t chosen;      /* 1: the program has chosen the driver */
    uint32_t by_peer;     /* 1: the peer has made the channel */
    uint32_t endpoints;   /* of the startpoint */
};

/* By which way requests go to the endpoint at place `which` of the startpoint, and why. Makes the link if there is none. */
int motet_rsr_way_of(motet_rsr rsr, motet_rsr_startpoint startpoint, unsigned which, int64_t deadline, struct motet_rsr_way *out);

/* ---- data */

enum motet_rsr_type {
    MOTET_RSR_U8, MOTET_RSR_I8, MOTET_RSR_U16, MOTET_RSR_I16, MOTET_RSR_U32, MOTET_RSR_I32, MOTET_RSR_U64, MOTET_RSR_I64, MOTET_RSR_F32, MOTET_RSR_F64,
    MOTET_RSR_LONG /* C's long. A receiver whose long is shorter gets -ERANGE where a number does not fit */
};

int motet_rsr_buffer_new(motet_rsr_buffer *out);
int motet_rsr_buffer_free(motet_rsr_buffer buffer);
int motet_rsr_buffer_clear(motet_rsr_buffer buffer);

/* Puts `count` numbers, one after the other. */
int motet_rsr_put(motet_rsr_buffer buffer, enum motet_rsr_type type, const void *numbers, size_t count);

/* Puts an array with its length. It is not copied: it must stay as it is until the last motet_rsr_request() with the buffer has returned, or
 * motet_rsr_buffer_clear(). Not for MOTET_RSR_LONG (-EINVAL). */
int motet_rsr_put_array(motet_rsr_buffer buffer, enum motet_rsr_type type, const void *numbers, size_t count);
int motet_rsr_put_string(motet_rsr_buffer buffer, const char *text);
int motet_rsr_put_startpoint(motet_rsr_buffer buffer, motet_rsr_startpoint startpoint);

/* Gets what was put, in the same order; numbers are converted. -EBADMSG: the data end, or are something else; nothing is taken then. */
int motet_rsr_get(struct motet_rsr_reader *reader, enum motet_rsr_type type, void *numbers, size_t count);

/* Gets an array of `count` numbers into `numbers`. Returns its length; if it is longer than `count`, nothing is taken. `numbers` may be NULL then. */
ssize_t motet_rsr_get_array(struct motet_rsr_reader *reader, enum motet_rsr_type type, void *numbers, size_t count);

/* Gets a block or string where it is: `*bytes` is valid as long as the reader, and no zero follows it. Returns its length. */
ssize_t motet_rsr_get_block(struct motet_rsr_reader *reader, const void **bytes);
int motet_rsr_get_startpoint(struct motet_rsr_reader *reader, motet_rsr_startpoint *out);

/* Bytes that are left. */
size_t motet_rsr_remaining(const struct motet_rsr_reader *reader);

/* ---- requests */

/* Sends a request to the handler `name`, or with NULL to that of `number`, and waits until its data are free. `buffer` 0: no data. -EHOSTUNREACH and others:
 * no driver works. -ETIMEDOUT: the deadline has passed. Of several endpoints, all are tried, and the first error is returned. */
int motet_rsr_request(motet_rsr rsr, motet_rsr_startpoint startpoint, const char *name, uint32_t number, motet_rsr_buffer buffer, int64_t deadline);

/* Sends a request to one endpoint, and waits for the reply; free it with motet_rsr_reader_free(). -ENOENT: there is no such endpoint; -ENOSYS: no such
 * handler; -E2BIG: the request is longer than the peer takes; -EIO: the handler has not replied; -ECONNRESET: the peer is gone; -ETIMEDOUT. */
int motet_rsr_call(motet_rsr rsr, motet_rsr_startpoint startpoint, const char *name, uint32_t number, motet_rsr_buffer buffer, int64_t deadline,
                   struct motet_rsr_reader **reply);
void motet_rsr_reader_free(struct motet_rsr_reader *reply);

/* Replies to the call that `request` is, from within its handler. -EINVAL: it is none, or has its reply. */
int motet_rsr_reply(struct motet_rsr_reader *request, motet_rsr_buffer buffer);

#ifdef __cplusplus
}
#endif

#endif
