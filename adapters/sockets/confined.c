/* confined.c: processes that restrict their system calls by a seccomp filter ("confined"), or that give a thread descriptors of its own.
 *
 * What it is:   from just before the filter is installed, this object makes no system call except those that the program itself makes, with
 *               the program's arguments (a receive may be shorter, a wait may have timeout 0). Every gate closes for good, candidates are
 *               not tracked any more, and epoll descriptors are the kernel's alone. Only bytes that rings hold at that moment remain: they
 *               are delivered in order, by memory access alone; after the last one the descriptor is not tracked any more.
 * What it isn't: a filter. Threads that are inside the engine while another thread confines the whole process are not covered.
 *
 * A close over bytes that are left in a ring ends the connection in order: a reset would take a system call.
 *
 * Signal safety: as the functions of the same names. No signal is blocked; reentrancy_depth is raised while a short lock is held. Fork
 * safety: the state is a copy of the parent's, and a child is as confined as its parent. errno: kept on success, and by confined_begin(). */
#include "epoll_interest.h"

#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#define NANOSECONDS 1000000000ll
#define SET_BITS (8 * (int)sizeof(long))

static _Atomic bool any_rest; /* some ring held bytes at the confinement */

/* ---------------------------------------------------------------- before the confinement */

bool confined_prctl(long option, unsigned long filter)
{
    return option == PR_SET_SECCOMP && (filter == SECCOMP_MODE_STRICT || filter == SECCOMP_MODE_FILTER);
}

/* Operation and arguments of seccomp(2). Libraries call it without a filter to ask what the kernel supports. */
bool confined_seccomp(long operation, const void *arguments)
{
    return operation == SECCOMP_SET_MODE_STRICT || (operation == SECCOMP_SET_MODE_FILTER && arguments != NULL);
}

static void detach(int fd, enum tcp_reason reason)
{
    table_force_tcp(fd, reason);
    uint64_t word = table_word(fd);
    motet_stream s = table_handle(fd);
    if (word_kind(word) != KIND_STREAM) return;
    bool empty = ENGINE(engine.hand_over(s, fd, reason)) != 0;
    table_lock();
    if (table_word(fd) == word && table_handle(fd) == s) {
        engine_report(s, fd);
        if (empty)
            interest_forget(fd);
        else
            interest_confined(fd);
        if (!empty) atomic_store(&any_rest, true);
        table_replace(fd, empty ? 0 : KIND_RING_REST | (word & (WORD_SHARED | WORD_DUPLICATED | WORD_OTHER_PROCESS)));
    }
    table_unlock();
}

void confined_begin(enum tcp_reason reason)
{
    if (reentrancy_depth > 0 || engine_confined() || !table_in_own_process()) return;
    int kept = errno;
    engine_disable(); /* first, so that no thread upgrades another stream */
    for (int fd = 0; fd <= atomic_load(&fd_top); fd++) {
        enum kind kind = word_kind(table_word(fd));
        if (kind == KIND_UNCONNECTED || kind >= KIND_CANDIDATE) detach(fd, reason);
    }
    for (int fd = 0; fd <= atomic_load(&fd_top); fd++)
        if (word_kind(table_word(fd)) == KIND_EPOLL && interest_epoll_confined(word_extra(table_word(fd))) && !any_rest) table_replace(fd, 0);
    engine_confine();
    errno = kept;
}

bool confined_has_rest(void) { return atomic_load(&any_rest); }

/* ---------------------------------------------------------------- receiving */

static void rest_drained(int fd)
{
    table_lock();
    if (word_kind(table_word(fd)) == KIND_RING_REST) {
        interest_forget(fd);
        table_replace(fd, 0);
    }
    table_unlock();
}

/* Receives bytes of the ring. Returns their number (> 0); or 0: make the kernel's call for *limit bytes at most, and report its result by
 * confined_received(); or -1 with errno. */
ssize_t confined_take(int fd, const struct iovec *iov, int count, int flags, uint64_t *limit)
{
    *limit = UINT64_MAX;
    if (flags & (MSG_OOB | MSG_ERRQUEUE) || count <= 0 || reentrancy_depth > 0) return 0;
    static char discarded[16 << 10];
    struct iovec bounce[SHIM_DISCARD_BUFFERS];
    if (flags & MSG_TRUNC) { /* discards the bytes; the program's buffer may be invalid */
        count = iov_discarding(iov, count, bounce, (struct iovec){discarded, sizeof discarded});
        iov = bounce;
    }
    ssize_t step = ENGINE(engine.drain(table_handle(fd), iov, count, flags, limit));
    if (step == 0 && *limit == UINT64_MAX) rest_drained(fd);
    if (step >= 0) return step;
    errno = (int)-step;
    return -1;
}

void confined_received(int fd, ssize_t received, int flags)
{
    if (received > 0 && !(flags & (MSG_PEEK | MSG_OOB | MSG_ERRQUEUE)) && word_kind(table_word(fd)) == KIND_RING_REST)
        ENGINE_DO(engine.drain_received(table_handle(fd), (size_t)received));
}

/* True when a receive would take bytes of the ring now. */
bool confined_ready(int fd)
{
    return word_kind(table_word(fd)) == KIND_RING_REST && reentrancy_depth == 0 && (ENGINE(engine.rx_ready(table_handle(fd))) & MOTET_RX_DATA);
}

/* Bytes of the ring that a receive could take now; 0 while bytes of the kernel precede them. */
size_t confined_bytes(int fd) { return confined_ready(fd) ? ENGINE(engine.rx_bytes(table_handle(fd))) : 0; }

/* ---------------------------------------------------------------- poll and select */

int confined_poll(struct pollfd *fds, nfds_t count, const struct confined_poll_call *call)
{
    bool ready = false;
    for (nfds_t i = 0; confined_has_rest() && !ready && i < count; i++)
        ready = (fds[i].events & (POLLIN | POLLRDNORM)) && confined_ready(fds[i].fd);
    static const struct timespec zero;
    int found = call->precise ? REAL(ppoll)(fds, count, ready ? &zero : call->time, call->mask)
                              : REAL(poll)(fds, count, ready ? 0 : call->timeout);
    if (found < 0 || !ready) return found;
    for (nfds_t i = 0; i < count; i++) {
        if (!(fds[i].events & (POLLIN | POLLRDNORM)) || !confined_ready(fds[i].fd)) continue;
        found += fds[i].revents == 0;
        fds[i].revents |= (short)(fds[i].events & (POLLIN | POLLRDNORM));
    }
    return found;
}

static bool has(const long *set, int fd) { return (unsigned long)set[fd / SET_BITS] >> (fd % SET_BITS) & 1; }

/* One select reports the rings of this many descriptors at most; the next one reports the others. */
#define REPORTED_MAX 64

int confined_select(int count, fd_set *const sets[3], const struct confined_select_call *call)
{
    int limit = count < SHIM_TRACKED_FDS ? count : SHIM_TRACKED_FDS, ready[REPORTED_MAX], reported = 0;
    for (int fd = 0; confined_has_rest() && sets[0] && fd < limit && reported < REPORTED_MAX; fd++)
        if (has((long *)sets[0], fd) && confined_ready(fd)) ready[reported++] = fd;
    struct timeval now = {0, 0};
    static const struct timespec zero;
    int found = call->precise ? REAL(pselect)(count, sets[0], sets[1], sets[2], reported ? &zero : call->time, call->mask)
                              : REAL(select)(count, sets[0], sets[1], sets[2], reported ? &now : call->timeout);
    for (int i = 0; found >= 0 && i < reported; i++) {
        long *words = (long *)sets[0];
        if (has(words, ready[i])) continue;
        words[ready[i] / SET_BITS] = (long)((unsigned long)words[ready[i] / SET_BITS] | 1ul << (ready[i] % SET_BITS));
        found++;
    }
    return found;
}

/* ---------------------------------------------------------------- epoll */

static int kernel_events(const struct confined_epoll_call *x, bool at_once, int64_t until)
{
    struct timespec now, zero = {0, 0};
    int timeout = at_once ? 0 : x->timeout;
    if (x->kind == EPOLL_PWAIT2) return REAL(epoll_pwait2)(x->epfd, x->events, x->capacity, at_once ? &zero : x->time, x->mask);
    if (until != INT64_MAX && timeout > 0) { /* not the first round */
        clock_gettime(CLOCK_MONOTONIC, &now);
        int64_t left = until - (now.tv_sec * NANOSECONDS + now.tv_nsec);
        timeout = left > 0 ? (int)((left + 999999) / 1000000) : 0;
    }
    if (x->kind == EPOLL_PWAIT) return REAL(epoll_pwait)(x->epfd, x->events, x->capacity, timeout, x->mask);
    return REAL(epoll_wait)(x->epfd, x->events, x->capacity, timeout);
}

/* Removes the engine's wakeup event: an inherited epoll descriptor still has the parent's wakeup descriptor. */
static int without_wake_events(struct epoll_event *events, int count)
{
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (events[i].data.u64 != (uintptr_t)&interest_marker) events[kept++] = events[i];
    return kept;
}

static bool has_ring_rest(const struct interest *interest)
{
    return interest_wants_data(interest) && !interest->absent && confined_ready(interest->fd);
}

static int add_rest(const struct confined_epoll_call *x, struct epoll_record *record, int count)
{
    for (uint32_t at = record->first; at; at = interest_at(at)->next_in_epoll) {
        struct interest *interest = interest_at(at);
        if (!has_ring_rest(interest)) continue;
        uint32_t bits = interest->events & (EPOLLIN | EPOLLRDNORM);
        int same = 0;
        while (same < count && x->events[same].data.u64 != interest->data) same++;
        if (same == x->capacity) continue;
        if (same == count) x->events[count++] = (struct epoll_event){.data.u64 = interest->data};
        x->events[same].events |= bits;
        interest->fired = interest->events & (EPOLLET | EPOLLONESHOT); /* until epoll_ctl changes it */
        if (interest->events & EPOLLONESHOT) {
            struct epoll_event off = {.events = EPOLLONESHOT, .data.u64 = interest->data};
            REAL(epoll_ctl)(x->epfd, EPOLL_CTL_MOD, interest->fd, &off);
        }
    }
    return count;
}

int confined_epoll(const struct confined_epoll_call *x)
{
    struct epoll_record *record = record_enter(x->epfd);
    int64_t until = INT64_MAX;
    if (!record) return kernel_events(x, false, until);
    int count;
    for (bool ready = false, woken_only = true; woken_only;) {
        for (uint32_t at = record->first; confined_has_rest() && at && !ready; at = interest_at(at)->next_in_epoll)
            ready = has_ring_rest(interest_at(at));
        struct timespec now;
        if (until == INT64_MAX && x->timeout > 0 && record->inherited) {
            clock_gettime(CLOCK_MONOTONIC, &now);
            until = now.tv_sec * NANOSECONDS + now.tv_nsec + x->timeout * 1000000ll;
        }
        int found = kernel_events(x, ready, until);
        if ((count = found) < 0) break;
        count = without_wake_events(x->events, found);
        woken_only = count == 0 && found > 0 && !ready;
        if (ready) count = add_rest(x, record, count);
    }
    int kept = errno;
    record_leave(record);
    errno = kept;
    return count;
}
