/* interest.h: what interest.c and epoll.c share: one record per epoll descriptor, one interest per descriptor in it.
 *
 * Both live in static arrays and are never unmapped, so a pointer that comes back late from the engine may be checked.
 * Locks: the table lock is taken before a record's lock; the engine's own come last. */
#ifndef MOTET_SHIM_INTEREST_H
#define MOTET_SHIM_INTEREST_H

#include "shim.h"

struct interest {
    uint32_t record, next_of_fd, next_in_epoll, previous_in_epoll;
    uint32_t next_of_data; /* one-shot ones, by what the program registered */
    int fd;
    uint32_t events;
    uint64_t data;
    motet_stream stream;
    bool absent; /* deleted by the program, which will add it again: see control_quick() */
    bool fired;  /* one-shot, reported, not armed again yet */
    bool hashed;    /* in a list by data */
    uint64_t armed; /* one-shot: the record's count when it was armed last */
};

struct epoll_record {
    pthread_mutex_t lock;
    motet_set *set;
    int fd, bell;
    uint32_t first;
    int one_shots;
    int writers; /* level-triggered ones that ask for room to write */
    _Atomic bool room_anew; /* an edge-triggered one has asked for room since the kernel was asked: its first answer is due */
    _Atomic uint64_t arms; /* one-shots armed so far */
    bool used, inherited;
    _Atomic bool closed, nested;
    _Atomic bool wanted;   /* the lock, by a thread that has the table's */
    _Atomic int users;     /* threads in epoll_wait */
    _Atomic int uncovered; /* ... of which asleep in the kernel without the engine's knowing (label COVER) */
    _Atomic bool counted;  /* those count as one that sleeps in the engine's set */
    _Atomic int streams;   /* members that are streams, or about to be (label COVER) */
};

extern char interest_marker; /* its address is the event data of what is ours in the program's epoll descriptor */

struct epoll_record *record_enter(int epfd); /* NULL: not one of ours */
void record_leave(struct epoll_record *record);
struct interest *interest_at(uint32_t index);
int interest_control(struct epoll_record *record, int epfd, int operation, int fd, struct epoll_event *event);
void interest_arm(struct epoll_record *record, struct interest *interest);
struct interest *interest_one_shot(struct epoll_record *record, uint64_t data); /* under the record's lock */
void record_ring(struct epoll_record *record);
void record_lend(struct epoll_record *record);
void record_uncover(struct epoll_record *record); /* one of the uncovered is back */
void record_all_plain(struct epoll_record *record, uint32_t reason);

static inline bool interest_wants_data(const struct interest *interest)
{
    return (interest->events & (EPOLLIN | EPOLLRDNORM)) && !interest->fired;
}

#endif
