/* motet_group.h: sessions, groups and circuits in C (libmotet.so.0). docs/session.md is the introduction.
 *
 * What it is:    a node attaches to the session that `motet up` has begun, joins groups, and opens circuits: message channels among the members of a
 *                group, by rank, with collective operations. Members may come and go at any time, from any program of the session.
 * What it isn't: needed for messages between two nodes (motet.h). No data pass through the gatekeeper.
 *
 * Conventions beyond those of motet.h
 *   - Handles are checked: an unknown one gives -EBADF. They are never used again. Every call may be made from any thread.
 *   - -ECONNRESET: a member that the call needs has left its group, by its death or otherwise. Open a circuit in the new view to go on without it.
 *     Or its link was lost, and messages with it, although it lives: open a circuit of another name to go on with it.
 *     Collective operations then fail at all members, in any call from then on.
 *   - -ENOTCONN: no session is up, or it has ended. -EACCES: the gatekeeper refuses. -ETIMEDOUT: the deadline has passed; with deadline 0 -EAGAIN.
 *   - A membership, a group, a circuit and an end point keep their node open: motet_node_close() gives -EBUSY until all of them are detached, left and
 *     closed.
 *   - After fork() the child has none of them: every call on one gives -ECHILD. */
#ifndef MOTET_GROUP_H
#define MOTET_GROUP_H

#include "motet.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t motet_membership; /* a node's part in a session */
typedef uint64_t motet_group;
typedef uint64_t motet_circuit;
typedef uint64_t motet_end_point;

/* ---- sessions and groups */

/* Attaches a node to a session: the one of this name, or with NULL the one that the environment names (`motet run` sets it). A thread of Motet keeps the
 * connection to the gatekeeper, and makes it again if the gatekeeper was killed. If the session has other hosts, the node listens for their nodes
 * from then on. Errors: -EINVAL (no name of a session, or a node with
 * MOTET_NODE_SINGLE). */
int motet_session_attach(motet_node node, const char *session, motet_membership *out);

/* The node leaves the session with all of its groups. Their handles, and those of their circuits, are closed one by one. */
int motet_session_detach(motet_membership membership);

/* Joins a group, and waits for the first view with this node in it. Members are in the order of the ranks that they ask for; those with `rank` -1 come
 * last, in the order of joining. A node joins a group once; a second handle stands for the same place. Errors: -EINVAL (the name or the rank). */
int motet_group_join(motet_membership membership, const char *name, int64_t rank, motet_group *out);

/* Joins the group in which `motet run --group` has started this process, with its rank there, and waits until all that were started with it have
 * joined. Errors: -EINVAL (this process was started in no group). */
int motet_group_join_own(motet_membership membership, int64_t deadline, motet_group *out);

/* Leaves the group, and closes the handle. Its circuits end; their handles have to be closed. */
int motet_group_leave(motet_group group);

/* The members of a group from one change to the next. All members see the same views in the same order. */
struct motet_view {
    size_t size;
    uint64_t number;  /* from 1 */
    uint32_t members; /* how many */
    int32_t rank;     /* this node's, or -1 */
};

struct motet_member {
    size_t size;
    uint8_t node[16]; /* the node's unique number */
    char host[64];
    int32_t pid;
    uint32_t reserved;
    uint64_t since;   /* the number of the view since which it has been a member without a break */
};

/* Writes the view of the group as it is now, and its members by rank, at most `max` of them. `members` is an array; the first element's `size` is the
 * distance of its elements. `view` and `members` may be NULL. */
int motet_group_view(motet_group group, struct motet_view *view, struct motet_member *members, unsigned max);

/* Writes the next view after the one with the number `after`, and waits for it if there is none yet. A program that calls it in a loop sees every change;
 * the last 64 views are kept. Errors: -EINVAL (the node has left the group). */
int motet_group_next_view(motet_group group, uint64_t after, int64_t deadline, struct motet_view *view, struct motet_member *members, unsigned max);

/* Waits until the group has at least so many members. */
int motet_group_wait(motet_group group, unsigned members, int64_t deadline);

/* ---- circuits */

/* Opens the circuit of this name, of 1 to 256 bytes, among the members of the group's view. Members that open it at the same time, or later while all of
 * its members are there, get the same one; members whose requests for several names cross open them in the same order. When a member has gone, the name
 * stands for a new circuit among those that are left. */
int motet_circuit_open(motet_group group, const char *name, int64_t deadline, motet_circuit *out);

/* Closes the handle, and ends its function for active messages. The circuit itself stays open here while all of its members are there. -EDEADLK: from
 * within such a function. */
int motet_circuit_close(motet_circuit circuit);

struct motet_circuit_state {
    size_t size;
    uint64_t number;  /* the circuit's in its group: members open circuits in the order of their numbers */
    uint32_t members; /* how many */
    uint32_t rank;    /* this node's */
};
/* Describes a circuit, with its members by rank as motet_group_view() writes them. */
int motet_circuit_info(motet_circuit circuit, struct motet_circuit_state *state, struct motet_member *members, unsigned max);

/* This node's rank, and the number of members. */
int motet_circuit_rank(motet_circuit circuit);
int motet_circuit_size(motet_circuit circuit);

/* Sets the deadline of all calls on this handle that wait and have none of their own: sends of any kind and collective operations fail with -ETIMEDOUT
 * when CLOCK_MONOTONIC passes it. INT64_MAX, as at first: they have none. A deadline in the past (0): they fail unless they need not wait. A call that
 * waits already may keep the former deadline.
 *   A message whose send fails so does not arrive (motet_message_send() says what becomes of a long one). A collective operation that fails so has not
 * happened here, and others may wait for this member until their own deadlines: open a circuit of another name to go on. */
int motet_circuit_set_deadline(motet_circuit circuit, int64_t deadline);

#define MOTET_ANY_RANK UINT32_MAX

/* A message that was received. */
struct motet_circuit_message {
    size_t size;
    size_t length;
    uint32_t from; /* the rank of its sender */
    uint32_t reserved;
};

/* Sends a message to another member, and waits until `body` is free. The first message to a member makes the link to it; members that do not talk have
 * none. Errors: -EINVAL (no such rank). */
int motet_circuit_send(motet_circuit circuit, uint32_t to, uint32_t tag, const void *body, size_t length);

/* Receives the next message with this tag from a member, or from any (MOTET_ANY_RANK). `message` may be NULL. -EMSGSIZE: the message is longer than the
 * buffer, and lost. */
int motet_circuit_receive(motet_circuit circuit, uint32_t from, uint32_t tag, void *buffer, size_t capacity, int64_t deadline,
                          struct motet_circuit_message *message);

/* Runs for an active message, in the thread that makes progress for the node. It must not wait, and must return; it may use the calls that a
 * motet_message_handler may use, and motet_node_defer() for all else. */
typedef void (*motet_circuit_handler)(motet_circuit circuit, uint32_t from, uint32_t tag, const void *body, size_t length, void *user);

/* Runs `function` for each active message that a member sends to this one. NULL ends that: the function does not run any more when this returns.
 * Messages then are discarded. The latest call on a circuit, by any of its handles, wins. -EDEADLK: from within such a function. */
int motet_circuit_handle(motet_circuit circuit, motet_circuit_handler function, void *user);

/* Sends an active message of at most 16 MiB, and waits until `body` is free. The first one to a member waits until that member has a function. Short ones
 * to one member run in order; one that is longer than a packet may be overtaken. -EDEADLK: from within a function for active messages. */
int motet_circuit_send_active(motet_circuit circuit, uint32_t to, uint32_t tag, const void *body, size_t length);

/* ---- start points and end points
 * An end point is a numbered function of a member; each member that has its start point can send to it. Any number of such pairs share the channels and the links of
 * one circuit: a pair costs an entry in a table at the receiver, and nothing else. */

/* Where messages to an end point are sent: plain data, which may be sent to other members. Valid on the circuit of the end point. */
struct motet_start_point {
    uint64_t number; /* the end point's at its member */
    uint32_t rank;   /* the member */
    uint32_t reserved;
};

#define MOTET_ANY_NUMBER UINT64_MAX

/* Runs for a message to an end point, under the rules of motet_circuit_handler. It may open end points, and close its own. */
typedef void (*motet_end_point_handler)(uint32_t from, uint32_t tag, const void *body, size_t length, void *user);

/* Makes an end point of this member. `number`: one below 2^63, which the program has chosen so that members know it without asking; MOTET_ANY_NUMBER: a new
 * one, which is never used again. `start` may be NULL. The end point works until it is closed or the circuit has ended here, also after
 * motet_circuit_close(). Errors: -EINVAL (the number is in use or not below 2^63; or this member has 2^20 end points on the circuit). */
int motet_end_point_open(motet_circuit circuit, uint64_t number, motet_end_point_handler function, void *user, struct motet_start_point *start,
                         motet_end_point *out);

/* Closes an end point: its function does not run any more when this returns, unless this is called within it. Messages that arrive later are dropped and
 * counted. -EDEADLK: from within another function or handler. */
int motet_end_point_close(motet_end_point end_point);

/* Sends a message of at most 16 MiB to an end point, and waits until `body` is free. The first one to a member waits until that member has made an end point
 * on this circuit. Messages of one thread to one member run in order; one that is longer than a packet may be overtaken. A message to a number that
 * no end point of the member has is dropped there and counted; this call succeeds all the same. Errors: -EINVAL (no such rank); -EDEADLK: from within
 * a handler. */
int motet_circuit_send_to(motet_circuit circuit, const struct motet_start_point *to, uint32_t tag, const void *body, size_t length);

/* Writes the number of messages of other members that this one has dropped, because it had no end point with their number. */
int motet_circuit_dropped(motet_circuit circuit, uint64_t *out);

/* ---- collective operations
 * All members call the same ones in the same order, one thread of each at a time. They end when all members have called, when the deadline of
 * motet_circuit_set_deadline() passes, or with -ECONNRESET when one has gone. -EINVAL: no such root, or members gave different lengths. */

/* Waits until all members have called this. */
int motet_circuit_barrier(motet_circuit circuit);

/* Copies `length` bytes of the root to all members, which give the same length. */
int motet_circuit_broadcast(motet_circuit circuit, uint32_t root, void *data, size_t length);

/* Collects `length` bytes of each member, at most `each`, which is the same at all members. The root finds those of rank r at `all` + r * `each`, and their
 * length at lengths[r] unless `lengths` is NULL; at other members both are not used. */
int motet_circuit_gather(motet_circuit circuit, uint32_t root, const void *own, size_t length, void *all, size_t each, size_t *lengths);

/* Combines `count` numbers of all members, element by element, in the order of ranks. `type`: enum motet_atomic_type. `operation`: MOTET_ATOMIC_SUM,
 * _PRODUCT, _MINIMUM or _MAXIMUM; for integers, which wrap, also _BIT_AND, _BIT_OR and _BIT_XOR. The root gets the result (the values of others are
 * undefined then), or all members get it. */
int motet_circuit_reduce(motet_circuit circuit, uint32_t root, void *values, size_t count, uint32_t type, uint32_t operation);
int motet_circuit_all_reduce(motet_circuit circuit, void *values, size_t count, uint32_t type, uint32_t operation);

#ifdef __cplusplus
}
#endif
#endif
