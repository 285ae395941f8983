/* interest.h: what interest.c and epoll.c share: one record per epoll descriptor, one interest per descriptor in it.
 *
 * Both live in static arrays and are never unmapped, so a pointer that comes back late from the engine may be checked.
 * Locks: the table lock is taken before a record's lock; the engine's own come last. */
#ifndef MOTET_SHIM_INTEREST_H
#define MOTET_SHIM_INTEREST_H

#include "shim.h"

struct interest {
    uint32_t record, next_of_fd, next_in_epoll, previous_in_epoll;
    int fd;
    uint32_t events;
    uint64_t data;
    uint64_t reported; /* edge-triggered: the stream position that the program has been told of */
    motet_stream stream;
    bool absent; /* deleted by the program, which will add it again: see control_quick() */
    bool fired;  /* one-shot, reported, not armed again yet */
    bool parked; /* edge-triggered, told everything, left unread: the kernel alone reports what comes next */
};

struct epoll_record {
    pthread_mutex_t lock;
    motet_set *set;
    int fd, bell;
    uint32_t first;
    int one_shots, parked;
    unsigned since_probe;
    bool used, inherited;
    _Atomic bool closed, nested;
    _Atomic bool wanted;   /* the lock, by a thread that has the table's */
    _Atomic int users;     /* threads in epoll_wait */
    _Atomic int uncovered; /* ... of which asleep in the kernel without the engine's knowing (label COVER) */
    _Atomic int streams;   /* members that are streams, or about to be (label COVER) */
};

extern char interest_marker; /* its address is the event data of what is ours in the program's epoll descriptor */

struct epoll_record *record_enter(int epfd); /* NULL: not one of ours */
void record_leave(struct epoll_record *record);
struct interest *interest_at(uint32_t index);
int interest_control(struct epoll_record *record, int epfd, int operation, int fd, struct epoll_event *event);
void interest_arm(struct epoll_record *record, struct interest *interest);
struct interest *interest_one_shot(struct epoll_record *record, uint64_t data);
void record_all_plain(struct epoll_record *record, uint32_t reason);

static inline bool interest_wants_data(const struct interest *interest)
{
    return (interest->events & (EPOLLIN | EPOLLRDNORM)) && !interest->fired && !interest->parked;
}

#endif
