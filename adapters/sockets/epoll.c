/* epoll.c: epoll_create, epoll_ctl, epoll_wait and its kin.
 *
 * What it is:   an epoll_wait that merges what the engine's rings hold with what the kernel reports, one event per
 *               descriptor, with the data that the program registered.
 * What it isn't: a second readiness model. Level, edge and one-shot mean what they mean in the kernel:
 *                 edge      reported again only when the stream's position advanced or EPOLL_CTL_MOD armed it (the engine's)
 *                 one-shot  reporting ring data disarms the kernel's registration too
 *                 exclusive as any other: a sleeper is the kernel's to wake
 *                 an epoll descriptor that is itself waited on: its streams stay on TCP
 *
 * Events with equal data are one event to the program, so merging compares the data only.
 * Cancellation: the kernel call is the cancellation point. Signal safety: in a handler that interrupted the engine only the
 * kernel is asked. Fork safety: a child that waits on an inherited epoll descriptor sends its streams to TCP first. */
#include "interest.h"

#define NANOSECONDS 1000000000ll

struct waiting {
    struct epoll_record *record;
    struct epoll_event *events;
    int epfd, room;
    bool precise; /* the program gave a timespec */
    const sigset_t *mask;
    int64_t at; /* CLOCK_MONOTONIC, ns; INT64_MAX: no limit; 0: do not sleep */
    struct motet_wait wait;
    bool covered, sleeping, dozing, uncovered;
    bool rung; /* the engine's bell was among the kernel's events */
    uint64_t arms; /* the record's count before the kernel was asked */
};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NANOSECONDS + now.tv_nsec;
}

static void waiting_over(void *waiting)
{
    struct waiting *x = waiting;
    if (x->uncovered) record_uncover(x->record);
    if (x->dozing) ENGINE_DO(engine.set_slept(x->record->set));
    if (x->covered) ENGINE_DO(engine.wait_end(&x->wait));
    record_leave(x->record);
}

/* ---------------------------------------------------------------- the kernel's answer */

static int kernel_wait(struct waiting *x, struct epoll_event *events, int room, bool sleep)
{
    int64_t left = sleep && x->at == INT64_MAX ? -1 : sleep && x->at ? x->at - now_ns() : 0;
    if (sleep && x->at != INT64_MAX && left < 0) left = 0;
    if (left > 0 && x->precise) {
        struct timespec time = {left / NANOSECONDS, left % NANOSECONDS};
        return REAL(epoll_pwait2)(x->epfd, events, room, &time, x->mask);
    }
    int64_t ms = left < 0 ? -1 : (left + 999999) / 1000000;
    return REAL(epoll_pwait)(x->epfd, events, room, ms > INT32_MAX ? INT32_MAX : (int)ms, x->mask);
}

/* A one-shot event that was armed again after this thread had asked the kernel: another thread may have reported the data of this
 * event from the ring, and the program have read it. Then the kernel's registration, which may be spent, is renewed. */
static bool one_shot_stale(struct waiting *x, struct interest *interest)
{
    struct pollfd now = {.fd = interest->fd, .events = (short)(interest->events & (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI))};
    if (LIKELY(interest->armed <= x->arms)) return false;
    if (interest->stream && (engine.rx_ready(interest->stream) & MOTET_RX_DATA) && interest_wants_data(interest)) return false;
    if (REAL(poll)(&now, 1, 0) != 0) return false;
    struct epoll_event again = {.events = interest->events, .data.u64 = interest->data};
    REAL(epoll_ctl)(x->epfd, EPOLL_CTL_MOD, interest->fd, &again);
    return true;
}

/* Takes out what is ours, and one-shot events that another thread has reported from the ring already. */
static int kernel_filter(struct waiting *x, int count)
{
    struct epoll_record *record = x->record;
    struct epoll_event *events = x->events;
    int kept = 0, before = errno;
    bool locked = record->one_shots > 0;
    if (locked) {
        shim_enter(); /* a handler that runs now must not want this lock */
        pthread_mutex_lock(&record->lock);
    }
    for (int i = 0; i < count; i++) {
        if (events[i].data.u64 == (uintptr_t)&interest_marker) {
            x->rung = true;
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
        shim_exit();
        signals_due();
    }
    errno = before;
    return kept;
}

/* ---------------------------------------------------------------- what the rings add */

/* Other conditions that the program awaits of a one-shot event. The event is reported once, so the kernel is asked before it is disarmed. */
static uint32_t also_ready(const struct interest *interest)
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

/* Adds streams with ring data to `count` events that are there already. */
static int ring_collect(struct waiting *x, int count)
{
    void *cookies[128];
    struct epoll_record *record = x->record;
    int room = x->room - count < 128 ? x->room - count : 128; /* what the engine hands out counts as told */
    if (room <= 0) return count;
    shim_enter(); /* a handler that runs now must not want this lock */
    pthread_mutex_lock(&record->lock);
    unsigned found = record->set ? engine.set_ready(record->set, cookies, (unsigned)room) : 0;
    for (unsigned i = 0; i < found; i++) {
        struct interest *interest = cookies[i];
        if (!interest->stream || !interest_wants_data(interest) || word_kind(table_word(interest->fd)) == KIND_CLOSED) continue;
        uint32_t also = 0;
        if (interest->events & EPOLLONESHOT) {
            also = also_ready(interest);
            struct epoll_event off = {.events = EPOLLONESHOT, .data.u64 = (uintptr_t)&interest_marker};
            interest->fired = true;
            interest_arm(record, interest);
            REAL(epoll_ctl)(x->epfd, EPOLL_CTL_MOD, interest->fd, &off);
        }
        count = merge(x->events, count, interest, also);
    }
    pthread_mutex_unlock(&record->lock);
    shim_exit();
    signals_due();
    return count;
}

/* ---------------------------------------------------------------- waiting */

static int kernel_events(struct waiting *x, bool sleep)
{
    x->arms = atomic_load(&x->record->arms);
    if (UNLIKELY(atomic_load_explicit(&x->record->room_anew, memory_order_relaxed))) atomic_store(&x->record->room_anew, false);
    int count = kernel_wait(x, x->events, x->room, sleep);
    if (count <= 0) return count;
    int kept = kernel_filter(x, count);
    if (LIKELY(kept > 0) || count < x->room) return kept;
    /* All of the room went to what is ours. */
    count = kernel_wait(x, x->events, x->room, false);
    return count > 0 ? kernel_filter(x, count) : 0;
}

/* Whether this answer has to be the kernel's, too. A thread's answers from the rings alone are few in a row and soon over, so what
 * else is ready comes late by that much at most, however few events the program takes at a time and however its threads and sets
 * alternate. */
static bool kernel_is_due(const struct epoll_record *record)
{
    static __thread struct {
        const struct epoll_record *record;
        uint64_t since;
        unsigned answers;
    } last;
    uint64_t now = shim_ticks();
    if (last.record == record && ++last.answers % SHIM_PROBE_EVERY != 0 && now - last.since < shim_ticks_of_probe()) return false;
    last.record = record;
    last.answers = 0;
    last.since = now;
    return true;
}

/* Adds what the kernel has to `count` events from the rings: one event per descriptor. */
static int add_kernel_events(struct waiting *x, int count)
{
    struct waiting rest = *x;
    rest.events += count;
    rest.room -= count;
    if (rest.room <= 0) return count;
    int more = kernel_events(&rest, false), before = count;
    x->rung |= rest.rung;
    for (int i = 0; i < more; i++) {
        int at = 0;
        while (at < before && x->events[at].data.u64 != rest.events[i].data.u64) at++;
        if (at < before)
            x->events[at].events |= rest.events[i].events;
        else
            x->events[count++] = rest.events[i];
    }
    return count > 0 ? count : more;
}

/* Kernel first when it is due; otherwise the rings, and the kernel where they gave nothing or room to write is awaited: then each
 * answer says whether there is some. */
static int ready_events(struct waiting *x)
{
    int kept = errno;
    if (!kernel_is_due(x->record)) {
        int count = ring_collect(x, 0);
        bool room = x->record->writers > 0 || atomic_load_explicit(&x->record->room_anew, memory_order_relaxed);
        if (count == 0 || room) count = add_kernel_events(x, count);
        if (count > 0) errno = kept;
        return count;
    }
    int count = kernel_events(x, false);
    if (count < 0 && errno != EINTR) return count;
    bool interrupted = count < 0;
    count = ring_collect(x, interrupted ? 0 : count);
    errno = interrupted && count == 0 ? EINTR : kept;
    return interrupted && count == 0 ? -1 : count;
}

static bool over(const struct waiting *x) { return x->at == 0 || (x->at != INT64_MAX && now_ns() >= x->at); }

static int wait_covered(struct waiting *x)
{
    int count;
    ENGINE_DO(engine.wait_begin_set(&x->wait, x->record->set));
    x->covered = true;
    for (;;) {
        switch (ENGINE(engine.wait_step(&x->wait, x->at != 0))) {
        case MOTET_WAIT_READY:
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
        if (count != 0 || over(x)) return count;
    }
}

/* Sleeps where the engine has nothing to look at. A bell that came with other events is for whoever sleeps still. */
static int wait_dozing(struct waiting *x)
{
    x->dozing = true;
    int count = kernel_events(x, true);
    x->dozing = false;
    ENGINE_DO(engine.set_slept(x->record->set));
    if (count > 0 && UNLIKELY(x->rung)) {
        ENGINE_DO(engine.wait_begin_set(&x->wait, x->record->set));
        x->covered = true; /* its end tells them */
    }
    return count;
}

/* 0 before the time is over: there is a set now, or the bell has been rung. */
static int wait_plainly(struct waiting *x)
{
    x->rung = false;
    int count = kernel_events(x, true);
    if (x->uncovered) {
        x->uncovered = false;
        record_uncover(x->record);
    }
    if (x->rung && atomic_load(&x->record->uncovered) > 0) record_ring(x->record); /* the next one, too */
    return count;
}

/* One round; 0 before the time is over asks for another. */
static int wait_round(struct waiting *x)
{
    struct epoll_record *record = x->record;
    if (record->inherited && atomic_load(&record->streams) > 0) {
        record_all_plain(record, REASON_UNSEEN_WAIT);
        return wait_plainly(x);
    }
    atomic_fetch_add(&record->uncovered, 1); /* COVER */
    x->uncovered = true;
    if (!record->set && atomic_load(&record->streams) == 0) return wait_plainly(x); /* COVER */
    x->uncovered = false;
    record_uncover(record);
    if (UNLIKELY(!record->set)) {
        /* A stream that is just being handed over puts the set in place before it releases the table lock. */
        table_lock();
        table_unlock();
        if (!record->set) return wait_plainly(x);
    }
    if (x->at != 0 && ENGINE(engine.set_doze(record->set))) return wait_dozing(x);
    return wait_covered(x);
}

/* `at`: the deadline. The record is held until waiting_over(). */
static int epoll_events(struct epoll_record *record, int epfd, struct epoll_event *events, int room, int64_t at, bool precise,
                        const sigset_t *mask)
{
    struct waiting x = {.record = record, .events = events, .epfd = epfd, .room = room, .precise = precise, .mask = mask, .at = at};
    int count;
    OPEN_WHILE(waiting_over, &x, do count = wait_round(&x); while (count == 0 && !over(&x)));
    int kept = errno;
    if (UNLIKELY(atomic_load(&record->nested))) record_lend(record);
    waiting_over(&x);
    errno = kept;
    return count;
}

static int64_t deadline_ns(int64_t seconds, int64_t nanoseconds)
{
    if (seconds == 0 && nanoseconds == 0) return 0;
    if (seconds > INT64_MAX / NANOSECONDS / 2) return INT64_MAX;
    return now_ns() + seconds * NANOSECONDS + nanoseconds;
}

SHIM_API int epoll_wait(int epfd, struct epoll_event *events, int room, int timeout)
{
    if (word_kind(table_word(epfd)) != KIND_EPOLL || shim_depth > 0 || room <= 0 || !events)
        return REAL(epoll_wait)(epfd, events, room, timeout);
    if (UNLIKELY(engine_confined()))
        return confined_epoll(&(struct confined_epoll_call){.kind = EPOLL_WAIT, .epfd = epfd, .events = events, .room = room, .timeout = timeout});
    return epoll_pwait(epfd, events, room, timeout, NULL);
}

SHIM_API int epoll_pwait(int epfd, struct epoll_event *events, int room, int timeout, const sigset_t *mask)
{
    struct epoll_record *record = shim_depth == 0 && room > 0 && events ? record_enter(epfd) : NULL;
    if (!record) return REAL(epoll_pwait)(epfd, events, room, timeout, mask);
    if (UNLIKELY(engine_confined())) {
        record_leave(record);
        return confined_epoll(&(struct confined_epoll_call){EPOLL_PWAIT, epfd, events, room, timeout, NULL, mask});
    }
    return epoll_events(record, epfd, events, room, timeout < 0 ? INT64_MAX : deadline_ns(timeout / 1000, timeout % 1000 * 1000000ll),
                        false, mask);
}

SHIM_API int epoll_pwait2(int epfd, struct epoll_event *events, int room, const struct timespec *timeout, const sigset_t *mask)
{
    bool fits = !timeout || (timeout->tv_sec >= 0 && timeout->tv_nsec >= 0 && timeout->tv_nsec < NANOSECONDS);
    struct epoll_record *record = shim_depth == 0 && fits && room > 0 && events ? record_enter(epfd) : NULL;
    if (!record) return REAL(epoll_pwait2)(epfd, events, room, timeout, mask);
    if (UNLIKELY(engine_confined())) {
        record_leave(record);
        return confined_epoll(&(struct confined_epoll_call){EPOLL_PWAIT2, epfd, events, room, 0, timeout, mask});
    }
    return epoll_events(record, epfd, events, room, timeout ? deadline_ns(timeout->tv_sec, timeout->tv_nsec) : INT64_MAX, true, mask);
}

/* ---------------------------------------------------------------- making and changing */

static int made(int epfd)
{
    if (epfd < 0) return epfd;
    int kept = errno;
    bool tracked = !engine_disabled() || confined_has_rest();
    if (tracked && shim_depth == 0 && table_in_own_process() && epfd < SHIM_SLOTS) {
        table_set(epfd, 0);
        uint32_t record = interest_epoll_new(epfd);
        if (record) table_replace(epfd, KIND_EPOLL | (uint64_t)record << WORD_EXTRA_SHIFT);
    }
    errno = kept;
    return epfd;
}

SHIM_API int epoll_create(int size) { return made(REAL(epoll_create)(size)); }

SHIM_API int epoll_create1(int flags) { return made(REAL(epoll_create1)(flags)); }

SHIM_API int epoll_ctl(int epfd, int operation, int fd, struct epoll_event *event)
{
    enum kind kind = word_kind(table_word(fd));
    /* No question whose process this is: what a vfork child changes is its parent's epoll descriptor too. */
    if (LIKELY(kind == KIND_NONE) || shim_depth > 0) {
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
    if (kind == KIND_EPOLL) {
        int result = REAL(epoll_ctl)(epfd, operation, fd, event);
        if (result == 0 && operation != EPOLL_CTL_DEL && !engine_confined()) interest_epoll_nested(fd);
        return result;
    }
    struct epoll_record *record = record_enter(epfd);
    if (!record) { /* made by somebody else: its waits cannot be mirrored */
        if (operation != EPOLL_CTL_DEL && !engine_confined()) table_make_plain(fd, REASON_UNSEEN_WAIT);
        return REAL(epoll_ctl)(epfd, operation, fd, event);
    }
    int result = interest_control(record, epfd, operation, fd, event);
    int kept = errno;
    record_leave(record);
    errno = kept;
    return result;
}
