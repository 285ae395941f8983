/* epoll_nesting.c: epoll descriptors that are registered in epoll descriptors, at any depth.
 *
 * What it is:   an interest of the outer record, whose `inner` is the record of the inner one. The engine's sets are nested in the same way, so
 *               a wait on the outer descriptor polls the rings of the inner one's streams, and closes their gates before it sleeps. The
 *               number of streams is counted in every record around a stream, so that no thread sleeps there uncovered.
 * What it isn't: poll or select on an epoll descriptor: its streams stay on TCP from then on, as in a descriptor that another process shares.
 *
 * Locks: the table lock, which lists of interests change under, then one record's lock at a time. control_quick() does without the table
 * lock, but not on an inner record. Signal safety, fork safety, errno: those of epoll_interest.c. */
#include "epoll_interest.h"

bool interest_may_nest(int epfd, int fd)
{
    uint64_t outer = table_word(epfd), inner = table_word(fd);
    if (word_kind(outer) != KIND_EPOLL || word_kind(inner) != KIND_EPOLL) return false;
    struct epoll_record *within = record_at(word_extra(inner));
    return !record_at(word_extra(outer))->inherited && !within->inherited && within->fd == fd; /* not by a duplicate of its descriptor */
}

bool nesting_is_inner(const struct epoll_record *record)
{
    uint32_t number = record_number(record), index = interest_first_of(record->fd);
    while (index && interest_at(index)->inner != number) index = interest_at(index)->next_of_fd;
    return index != 0;
}

bool nesting_enter(struct epoll_record *record)
{
    uint32_t number = record_number(record);
    bool all = true;
    for (uint32_t index = interest_first_of(record->fd); index; index = interest_at(index)->next_of_fd) {
        struct interest *interest = interest_at(index);
        if (interest->inner != number) continue;
        struct epoll_record *outer = record_at(interest->record);
        record_lock(outer);
        bool ready = record_ready(outer);
        if (ready) {
            record_cover(outer);
            interest_arm(outer, interest);
        }
        pthread_mutex_unlock(&outer->lock);
        all &= ready && nesting_enter(outer);
    }
    return all;
}

void nesting_count(struct epoll_record *record, int streams)
{
    uint32_t number = record_number(record);
    atomic_fetch_add(&record->streams, streams); /* COVER */
    for (uint32_t index = interest_first_of(record->fd); index; index = interest_at(index)->next_of_fd)
        if (interest_at(index)->inner == number) nesting_count(record_at(interest_at(index)->record), streams);
}

bool nesting_added(struct epoll_record *outer, struct interest *interest)
{
    struct epoll_record *inner = record_at(interest->inner);
    record_lock(inner); /* what control_quick() has begun there is done: from now on it leaves this record alone */
    pthread_mutex_unlock(&inner->lock);
    int streams = atomic_load(&inner->streams);
    if (streams == 0) return true;
    nesting_count(outer, streams);
    return nesting_enter(inner);
}

void nesting_erase(struct epoll_record *outer, struct interest *interest)
{
    struct epoll_record *inner = record_at(interest->inner);
    if (outer->set && inner->set) ENGINE(engine.epoll_unnest(outer->set, inner->set));
    interest->inner = 0;
    nesting_count(outer, -atomic_load(&inner->streams));
}
