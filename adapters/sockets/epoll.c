/* epoll.c: epoll_create, epoll_ctl, epoll_wait and their variants.
 *
 * What it is:   an epoll_wait that merges ring data with what the kernel reports: one event per descriptor, with the data that the
 *               program registered.
 * What it isn't: another readiness model. Level, edge and one-shot have the kernel's meaning:
 *                 edge       reported again only when the stream's position has advanced or EPOLL_CTL_MOD has armed it (by the engine)
 *                 one-shot   a report of ring data disarms the kernel's registration as well
 *                 exclusive  like any other: the kernel selects the sleeper
 *                 nested     an outer descriptor reports an inner one while a stream there has an event due (epoll_nesting.c)
 *
 * Events with equal data are one event for the program, so merging compares the data only.
 * Cancellation: the kernel call is the cancellation point. Signal safety: a handler that interrupted the engine waits in the kernel only.
 * Fork safety: a child that waits on an inherited epoll descriptor moves its streams to TCP first. errno: kept on success. */
#include "epoll_interest.h"

#define NANOSECONDS 1000000000ll

struct waiting {
    struct epoll_record *record;
    struct epoll_event *events;
    int epfd, capacity;
    bool precise; /* the program passed a timespec */
    const sigset_t *mask;
    int64_t at; /* deadline: CLOCK_MONOTONIC, ns; INT64_MAX: none; 0: do not sleep */
    struct motet_wait wait;
    bool covered, sleeping, counted_asleep, uncovered;
    bool woken;    /* the wakeup descriptor was among the kernel's events */
    uint64_t arms; /* the record's `arms` before the kernel was asked */
};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NANOSECONDS + now.tv_nsec;
}

static void waiting_cleanup(void *waiting)
{
    struct waiting *x = waiting;
    if (x->uncovered) record_uncover(x->record);
    if (x->counted_asleep) ENGINE_DO(engine.epoll_slept(x->record->set));
    if (x->covered) ENGINE_DO(engine.wait_end(&x->wait));
    record_leave(x->record);
}

/* ---------------------------------------------------------------- the kernel's answer */

static int kernel_wait(struct waiting *x, struct epoll_event *events, int capacity, bool sleep)
{
    int64_t left = sleep && x->at == INT64_MAX ? -1 : sleep && x->at ? x->at - now_ns() : 0;
    if (sleep && x->at != INT64_MAX && left < 0) left = 0;
    if (left > 0 && x->precise) {
        struct timespec time = {left / NANOSECONDS, left % NANOSECONDS};
        return REAL(epoll_pwait2)(x->epfd, events, capacity, &time, x->mask);
    }
    int64_t ms = left < 0 ? -1 : (left + 999999) / 1000000;
    return REAL(epoll_pwait)(x->epfd, events, capacity, ms > INT32_MAX ? INT32_MAX : (int)ms, x->mask);
}

/* True for a one-shot event that was armed again after this thread had asked the kernel: another thread may have reported the same data from
 * the ring, and the program may have read it. The kernel's registration, which may be used up, is renewed. */
static bool one_shot_stale(struct waiting *x, struct interest *interest)
{
    struct pollfd now = {.fd = interest->fd, .events = (short)(interest->events & (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI))};
    if (LIKELY(interest->armed <= x->arms)) return false;
    if (interest->stream && (engine.rx_ready(interest->stream) & MOTET_RX_DATA) && interest_wants_data(interest)) return false;
    if (interest->inner && record_has_ring_data(record_at(interest->inner))) return false;
    if (REAL(poll)(&now, 1, 0) != 0) return false;
    struct epoll_event again = {.events = interest->events, .data.u64 = interest->data};
    REAL(epoll_ctl)(x->epfd, EPOLL_CTL_MOD, interest->fd, &again);
    return true;
}

/* Removes events of this object's own registrations, and one-shot events that another thread has reported from the ring. */
static int kernel_filter(struct waiting *x, int count)
{
    struct epoll_record *record = x->record;
    struct epoll_event *events = x->events;
    int kept = 0, entry_errno = errno;
    bool locked = record->one_shots > 0;
    if (locked) {
        reentrancy_enter(); /* defers handlers, which might need this lock */
        pthread_mutex_lock(&record->lock);
    }
    for (int i = 0; i < count; i++) {
        if (events[i].data.u64 == (uintptr_t)&interest_marker) {
            x->woken = true;
            continue;
        }
        struct interest *interest = locked ? interest_one_shot(record, events[i].data.u64) : NULL;
        if (interest) {
            if (interest->fired || one_shot_stale(x, interest)) continue;
            if (interest->stream && interest_wants_data(interest) && (engine.rx_ready(interest->stream) & MOTET_RX_DATA))
                events[i].events |= interest->events & (EPOLLIN | EPOLLRDNORM);
            interest->fired = true;
            interest_arm(record, interest);
        }
        events[kept++] = events[i];
    }
    if (locked) {
        pthread_mutex_unlock(&record->lock);
        reentrancy_exit();
        signals_deliver_pending();
    }
    errno = entry_errno;
    return kept;
}

/* ---------------------------------------------------------------- ring data */

/* Other conditions for which a one-shot interest is registered. The event is reported once, so the kernel is asked before it is disarmed. */
static uint32_t other_conditions(const struct interest *interest)
{
    uint32_t others = interest->events & (EPOLLOUT | EPOLLWRNORM | EPOLLRDHUP | EPOLLPRI);
    struct pollfd now = {.fd = interest->fd, .events = (short)others};
    return others && REAL(poll)(&now, 1, 0) > 0 ? (uint32_t)(unsigned short)now.revents : 0;
}

static int merge(struct epoll_event *events, int count, const struct interest *interest, uint32_t also)
{
    uint32_t bits = (interest->events & (EPOLLIN | EPOLLRDNORM)) | also;
    for (int i = 0; i < count; i++)
        if (events[i].data.u64 == interest->data) {
            events[i].events |= bits;
            return count;
        }
    events[count].events = bits;
    events[count].data.u64 = interest->data;
    return count + 1;
}

/* Whether an interest is among the events of an array that has no room for another one. */
static int is_among_events(void *interest, void *waiting)
{
    const struct waiting *x = waiting;
    int i = 0;
    while (i < x->capacity && x->events[i].data.u64 != ((struct interest *)interest)->data) i++;
    return i < x->capacity;
}

/* Adds streams with ring data to `count` events. */
static int ring_collect(struct waiting *x, int count)
{
    void *cookies[128];
    struct epoll_record *record = x->record;
    bool full = count == x->capacity;
    int capacity = !full && x->capacity - count < 128 ? x->capacity - count : 128; /* what the engine returns counts as reported */
    reentrancy_enter(); /* defers handlers, which might need this lock */
    pthread_mutex_lock(&record->lock);
    unsigned found = record->set ? engine.epoll_ready(record->set, cookies, (unsigned)capacity, full ? is_among_events : NULL, x) : 0;
    for (unsigned i = 0; i < found; i++) {
        struct interest *interest = cookies[i];
        if ((!interest->stream && !interest->inner) || !interest_wants_data(interest) || word_kind(table_word(interest->fd)) == KIND_CLOSED_IN_HANDLER) continue;
        /* Where the array is full, the kernel cannot add what it knows of the descriptor. */
        uint32_t also = !full && (int)found == capacity && x->capacity <= 128 ? other_conditions(interest) : 0;
        if (interest->events & EPOLLONESHOT) {
            also = other_conditions(interest);
            struct epoll_event off = {.events = EPOLLONESHOT, .data.u64 = (uintptr_t)&interest_marker};
            interest->fired = true;
            interest_arm(record, interest);
            REAL(epoll_ctl)(x->epfd, EPOLL_CTL_MOD, interest->fd, &off);
        }
        count = merge(x->events, count, interest, also);
    }
    pthread_mutex_unlock(&record->lock);
    reentrancy_exit();
    signals_deliver_pending();
    return count;
}

/* ---------------------------------------------------------------- waiting */

static int kernel_events(struct waiting *x, bool sleep)
{
    x->arms = atomic_load(&x->record->arms);
    if (UNLIKELY(atomic_load_explicit(&x->record->write_edge_due, memory_order_relaxed))) atomic_store(&x->record->write_edge_due, false);
    int count = kernel_wait(x, x->events, x->capacity, sleep);
    if (count <= 0) return count;
    int kept = kernel_filter(x, count);
    if (LIKELY(kept > 0) || count < x->capacity) return kept;
    /* The wakeup descriptor took all the space. */
    count = kernel_wait(x, x->events, x->capacity, false);
    return count > 0 ? kernel_filter(x, count) : 0;
}

/* The latest answer of this thread that had the kernel's events first. */
static __thread struct {
    const struct epoll_record *record;
    uint64_t since;
    unsigned answers;
    bool was_full; /* of the kernel's events: the next answer has those of rings first */
} last_kernel_answer;

/* True when this answer must include the kernel's events. A thread gives few answers in a row from rings alone, and only for a short time.
 * That bounds the delay of other events, however few events the program takes at a time and however its threads and sets alternate. */
static bool kernel_is_due(const struct epoll_record *record)
{
    uint64_t now = clock_ticks();
    if (last_kernel_answer.record == record) {
        bool is_turn_of_rings = last_kernel_answer.was_full;
        last_kernel_answer.was_full = false;
        if (is_turn_of_rings) return false;
        if (++last_kernel_answer.answers % SHIM_KERNEL_PROBE_EVERY != 0 && now - last_kernel_answer.since < clock_ticks_of_probe())
            return false;
    }
    last_kernel_answer.record = record;
    last_kernel_answer.answers = 0;
    last_kernel_answer.since = now;
    last_kernel_answer.was_full = false;
    return true;
}

/* Adds the kernel's events to `count` events from rings: one event per descriptor. */
static int add_kernel_events(struct waiting *x, int count)
{
    struct waiting rest = *x;
    rest.events += count;
    rest.capacity -= count;
    if (rest.capacity <= 0) return count;
    int more = kernel_events(&rest, false), entry_errno = count;
    x->woken |= rest.woken;
    for (int i = 0; i < more; i++) {
        int at = 0;
        while (at < entry_errno && x->events[at].data.u64 != rest.events[i].data.u64) at++;
        if (at < entry_errno)
            x->events[at].events |= rest.events[i].events;
        else
            x->events[count++] = rest.events[i];
    }
    return count > 0 ? count : more;
}

/* Asks the kernel first when that is due. Otherwise the rings, and also the kernel when they had nothing or when EPOLLOUT is awaited. */
static int ready_events(struct waiting *x)
{
    int kept = errno;
    if (!kernel_is_due(x->record)) {
        int count = ring_collect(x, 0);
        bool capacity = x->record->level_writers > 0 || atomic_load_explicit(&x->record->write_edge_due, memory_order_relaxed);
        if (count == 0 || capacity) count = add_kernel_events(x, count);
        if (count > 0) errno = kept;
        return count;
    }
    int count = kernel_events(x, false);
    if (count < 0 && errno != EINTR) return count;
    bool interrupted = count < 0;
    last_kernel_answer.was_full = count == x->capacity;
    count = ring_collect(x, interrupted ? 0 : count);
    errno = interrupted && count == 0 ? EINTR : kept;
    return interrupted && count == 0 ? -1 : count;
}

static bool is_time_over(const struct waiting *x) { return x->at == 0 || (x->at != INT64_MAX && now_ns() >= x->at); }

static int wait_covered(struct waiting *x)
{
    int count, looks = 0;
    ENGINE_DO(engine.wait_begin_set(&x->wait, x->record->set));
    x->covered = true;
    for (;;) {
        bool had_data = false;
        switch (ENGINE(engine.wait_step(&x->wait, x->at != 0))) {
        case MOTET_WAIT_READY:
            had_data = ++looks < SHIM_LOOKS_MAX;
            count = ready_events(x);
            break;
        case MOTET_WAIT_PROBE:
            count = kernel_events(x, false);
            break;
        default:
            count = kernel_events(x, true);
            ENGINE_DO(engine.wait_slept(&x->wait));
            if (count == 0) count = ring_collect(x, 0);
        }
        if (count != 0 || (is_time_over(x) && !had_data)) return count; /* data that the sender has taken back meanwhile are in the kernel */
    }
}

/* Sleeps in the kernel where no gate is open and spinning does not pay: the engine counts the sleep. A wakeup that arrived together with
 * other events is passed on to the threads that still sleep. */
static int wait_counted_asleep(struct waiting *x)
{
    x->counted_asleep = true;
    int count = kernel_events(x, true);
    x->counted_asleep = false;
    ENGINE_DO(engine.epoll_slept(x->record->set));
    if (count > 0 && UNLIKELY(x->woken)) {
        ENGINE_DO(engine.wait_begin_set(&x->wait, x->record->set));
        x->covered = true; /* motet_wait_end() wakes them */
    }
    return count;
}

/* Sleeps in the kernel without the engine. 0 before the deadline: the record has a set now, or the wakeup descriptor was signalled. */
static int wait_uncovered(struct waiting *x)
{
    x->woken = false;
    int count = kernel_events(x, true);
    if (x->uncovered) {
        x->uncovered = false;
        record_uncover(x->record);
    }
    if (x->woken && atomic_load(&x->record->uncovered) > 0) record_wake(x->record); /* wakes the next one */
    return count;
}

/* One round of the wait. 0 before the deadline asks for another round. */
static int wait_round(struct waiting *x)
{
    struct epoll_record *record = x->record;
    if (record->inherited && atomic_load(&record->streams) > 0) {
        record_force_tcp(record, REASON_UNSEEN_WAIT);
        return wait_uncovered(x);
    }
    atomic_fetch_add(&record->uncovered, 1); /* COVER */
    x->uncovered = true;
    if (!record->set && atomic_load(&record->streams) == 0) return wait_uncovered(x); /* COVER */
    x->uncovered = false;
    record_uncover(record);
    if (UNLIKELY(!record->set)) {
        /* An upgrade in progress puts the set in place before it releases the table lock. */
        table_lock();
        table_unlock();
        if (!record->set) return wait_uncovered(x);
    }
    if (x->at != 0 && ENGINE(engine.epoll_try_sleep(record->set))) return wait_counted_asleep(x);
    return wait_covered(x);
}

/* `at`: the deadline. The record is held until waiting_cleanup(). */
static int epoll_events(struct epoll_record *record, int epfd, struct epoll_event *events, int capacity, int64_t at, bool precise,
                        const sigset_t *mask)
{
    struct waiting x = {.record = record, .events = events, .epfd = epfd, .capacity = capacity, .precise = precise, .mask = mask, .at = at};
    int count;
    WITH_CLEANUP(waiting_cleanup, &x, do count = wait_round(&x); while (count == 0 && !is_time_over(&x)));
    int kept = errno;
    if (UNLIKELY(atomic_load(&record->nested))) record_signal_ring_data(record);
    waiting_cleanup(&x);
    errno = kept;
    return count;
}

static int64_t deadline_ns(int64_t seconds, int64_t nanoseconds)
{
    if (seconds == 0 && nanoseconds == 0) return 0;
    if (seconds > INT64_MAX / NANOSECONDS / 2) return INT64_MAX;
    return now_ns() + seconds * NANOSECONDS + nanoseconds;
}

SHIM_API int epoll_wait(int epfd, struct epoll_event *events, int capacity, int timeout)
{
    if (word_kind(table_word(epfd)) != KIND_EPOLL || reentrancy_depth > 0 || capacity <= 0 || !events)
        return REAL(epoll_wait)(epfd, events, capacity, timeout);
    if (UNLIKELY(engine_confined()))
        return confined_epoll(&(struct confined_epoll_call){.kind = EPOLL_WAIT, .epfd = epfd, .events = events, .capacity = capacity, .timeout = timeout});
    return epoll_pwait(epfd, events, capacity, timeout, NULL);
}

SHIM_API int epoll_pwait(int epfd, struct epoll_event *events, int capacity, int timeout, const sigset_t *mask)
{
    struct epoll_record *record = reentrancy_depth == 0 && capacity > 0 && events ? record_enter(epfd) : NULL;
    if (!record) return REAL(epoll_pwait)(epfd, events, capacity, timeout, mask);
    if (UNLIKELY(engine_confined())) {
        record_leave(record);
        return confined_epoll(&(struct confined_epoll_call){EPOLL_PWAIT, epfd, events, capacity, timeout, NULL, mask});
    }
    return epoll_events(record, epfd, events, capacity, timeout < 0 ? INT64_MAX : deadline_ns(timeout / 1000, timeout % 1000 * 1000000ll),
                        false, mask);
}

SHIM_API int epoll_pwait2(int epfd, struct epoll_event *events, int capacity, const struct timespec *timeout, const sigset_t *mask)
{
    bool fits = !timeout || (timeout->tv_sec >= 0 && timeout->tv_nsec >= 0 && timeout->tv_nsec < NANOSECONDS);
    struct epoll_record *record = reentrancy_depth == 0 && fits && capacity > 0 && events ? record_enter(epfd) : NULL;
    if (!record) return REAL(epoll_pwait2)(epfd, events, capacity, timeout, mask);
    if (UNLIKELY(engine_confined())) {
        record_leave(record);
        return confined_epoll(&(struct confined_epoll_call){EPOLL_PWAIT2, epfd, events, capacity, 0, timeout, mask});
    }
    return epoll_events(record, epfd, events, capacity, timeout ? deadline_ns(timeout->tv_sec, timeout->tv_nsec) : INT64_MAX, true, mask);
}

/* ---------------------------------------------------------------- creating and changing */

static int track_epoll(int epfd)
{
    if (epfd < 0) return epfd;
    int kept = errno;
    bool tracked = !engine_disabled() || confined_has_rest();
    if (tracked && reentrancy_depth == 0 && table_in_own_process() && epfd < SHIM_TRACKED_FDS) {
        table_set(epfd, 0);
        uint32_t record = interest_epoll_new(epfd);
        if (record) table_replace(epfd, KIND_EPOLL | (uint64_t)record << WORD_EXTRA_SHIFT);
    }
    errno = kept;
    return epfd;
}

SHIM_API int epoll_create(int size) { return track_epoll(REAL(epoll_create)(size)); }

SHIM_API int epoll_create1(int flags) { return track_epoll(REAL(epoll_create1)(flags)); }

SHIM_API int epoll_ctl(int epfd, int operation, int fd, struct epoll_event *event)
{
    enum kind kind = word_kind(table_word(fd));
    /* No check for a vfork child: what it changes is its parent's epoll descriptor as well. */
    if (LIKELY(kind == KIND_NONE) || reentrancy_depth > 0) {
        if (UNLIKELY(engine_is_open()) && kind == KIND_NONE && engine_owns(fd)) {
            errno = EBADF;
            return -1;
        }
        return REAL(epoll_ctl)(epfd, operation, fd, event);
    }
    if (kind == KIND_PRIVATE || (operation != EPOLL_CTL_DEL && !event)) {
        errno = kind == KIND_PRIVATE ? EBADF : EFAULT;
        return -1;
    }
    if (kind == KIND_EPOLL && (engine_confined() || (operation != EPOLL_CTL_DEL && !interest_may_nest(epfd, fd)))) {
        int result = REAL(epoll_ctl)(epfd, operation, fd, event);
        if (result == 0 && !engine_confined()) interest_epoll_nested(fd);
        return result;
    }
    struct epoll_record *record = record_enter(epfd);
    if (!record) { /* not created through this object: ring data cannot be added to its events */
        if (operation != EPOLL_CTL_DEL && !engine_confined()) table_force_tcp(fd, REASON_UNSEEN_WAIT);
        return REAL(epoll_ctl)(epfd, operation, fd, event);
    }
    int result = interest_control(record, epfd, operation, fd, event);
    int kept = errno;
    record_leave(record);
    errno = kept;
    return result;
}
