/* epoll_interest.h: shared by epoll_interest.c and epoll.c: one record per epoll descriptor, one interest per registered descriptor.
 *
 * Both are in static arrays that are never unmapped, so a pointer that the engine returns late can be checked.
 * Locks: table lock, then a record's lock, then the engine's locks. */
#ifndef MOTET_SOCKETS_EPOLL_INTEREST_H
#define MOTET_SOCKETS_EPOLL_INTEREST_H

#include "sockets.h"

/* A socket, or an epoll descriptor, that is registered in an epoll descriptor. */
struct interest {
    uint32_t record, next_of_fd, next_in_epoll, previous_in_epoll;
    uint32_t next_of_data; /* one-shot interests, in lists by registered data */
    int fd;
    uint32_t events;
    uint64_t data;
    motet_stream stream;
    uint32_t inner; /* index of the record of an epoll descriptor. 0: it is a socket */
    bool absent;    /* deleted by the program, and kept because it may be added again: control_quick() */
    bool fired;     /* one-shot, reported and not armed again */
    bool hashed;    /* in a list by data */
    uint64_t armed; /* one-shot: value of the record's `arms` when it was last armed */
};

/* An epoll descriptor. `lock` guards its interests and its set. */
struct epoll_record {
    pthread_mutex_t lock;
    motet_epoll *set;
    int fd, wake_fd;
    uint32_t first;
    int one_shots;
    int level_writers;           /* level-triggered interests in EPOLLOUT */
    _Atomic bool write_edge_due; /* an edge-triggered interest in EPOLLOUT was registered after the kernel was last asked: its first event is due */
    _Atomic uint64_t arms;       /* how often one-shots were armed */
    bool used, inherited;
    _Atomic bool closed;
    _Atomic bool nested; /* something waits on it that cannot be seen or served here: its streams stay on TCP */
    _Atomic bool wanted;   /* a thread that holds the table lock waits for this lock */
    _Atomic int users;     /* threads in epoll_wait */
    _Atomic int uncovered; /* ... of which in the kernel without the engine's knowledge (label COVER) */
    _Atomic bool counted;  /* those count as one sleeper of the engine's set */
    _Atomic int streams;   /* members, also of inner epoll descriptors, that are streams or about to become streams (label COVER) */
};

extern char interest_marker; /* its address is the event data of this object's own registrations in a program's epoll descriptor */

struct epoll_record *record_enter(int epfd); /* NULL: epfd is not tracked */
void record_leave(struct epoll_record *record);
struct interest *interest_at(uint32_t index);
int interest_control(struct epoll_record *record, int epfd, int operation, int fd, struct epoll_event *event);
void interest_arm(struct epoll_record *record, struct interest *interest);
struct interest *interest_one_shot(struct epoll_record *record, uint64_t data); /* under the record's lock */
void record_wake(struct epoll_record *record);
bool record_has_ring_data(struct epoll_record *record); /* an event is due for it */
void record_signal_ring_data(struct epoll_record *record);
void record_uncover(struct epoll_record *record); /* one of the uncovered threads has returned */
void record_force_tcp(struct epoll_record *record, uint32_t reason);

/* In epoll_nesting.c, all under the table lock. */
bool nesting_enter(struct epoll_record *record);                /* enters the record's set into those around it. False: not everywhere */
void nesting_count(struct epoll_record *record, int streams);   /* so many streams more, in it and around it */
bool nesting_is_inner(const struct epoll_record *record);
bool nesting_added(struct epoll_record *outer, struct interest *interest); /* the interest, of an epoll descriptor, is new. As nesting_enter() */
void nesting_erase(struct epoll_record *outer, struct interest *interest); /* under the lock of `outer` */
uint32_t record_number(const struct epoll_record *record);
struct epoll_record *record_at(uint32_t index);
uint32_t interest_first_of(int fd); /* index of the first interest of a descriptor; the next one is its next_of_fd. 0: none */
void record_lock(struct epoll_record *record);
bool record_ready(struct epoll_record *record); /* under its lock: it has a set, which is made if need be */
void record_cover(struct epoll_record *record); /* under its lock: no thread sleeps there without being counted */

static inline bool interest_wants_data(const struct interest *interest)
{
    return (interest->events & (EPOLLIN | EPOLLRDNORM)) && !interest->fired;
}

#endif
