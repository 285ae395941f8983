/* poll.c: waiting on an array of descriptors: poll, ppoll, select, pselect and the fortified forms.
 *
 * What it is:   a wait that covers streams looks at the engine's rings and at the kernel in turn, and sleeps in the
 *               program's own system call with what is left of its timeout and with its signal mask.
 * What it isn't: a loop of its own: when to look, to probe and to sleep is the engine's decision (motet_wait_step).
 *
 * Without a stream or candidate among the descriptors the C library's function is called at once.
 * Cancellation: the kernel call is the cancellation point; a cancelled thread ends the engine's wait.
 * Signal safety: as the C library's; in a handler that interrupted the engine (shim_depth > 0) only the kernel is asked. */
#include "shim.h"

#include <string.h>

#define NANOSECONDS 1000000000ll

#define NEAR 32 /* descriptors for which a wait finds room on the stack */

struct covered {
    struct motet_wait wait;
    motet_stream *streams;
    int *positions; /* index into the pollfd array, or the descriptor number for select */
    int *candidates;
    int room, count, candidate_count;
    bool waiting, sleeping;
    bool alone; /* one stream is all that is waited for, and the ring may answer for it */
    struct far_room *far;
    motet_stream near_streams[NEAR];
    int near_positions[NEAR], near_candidates[NEAR];
};

struct deadline {
    bool forever, zero;
    int64_t at; /* CLOCK_MONOTONIC, ns */
};

/* ---------------------------------------------------------------- time */

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NANOSECONDS + now.tv_nsec;
}

static struct deadline deadline_after(const struct timespec *timeout)
{
    struct deadline deadline = {.forever = timeout == NULL};
    if (!timeout) return deadline;
    deadline.zero = timeout->tv_sec == 0 && timeout->tv_nsec == 0;
    if (timeout->tv_sec > INT64_MAX / NANOSECONDS / 2)
        deadline.forever = true;
    else if (!deadline.zero)
        deadline.at = now_ns() + timeout->tv_sec * NANOSECONDS + timeout->tv_nsec;
    return deadline;
}

static const struct timespec *time_left(const struct deadline *deadline, struct timespec *left)
{
    if (deadline->forever) return NULL;
    int64_t ns = deadline->zero ? 0 : deadline->at - now_ns();
    if (ns < 0) ns = 0;
    left->tv_sec = ns / NANOSECONDS;
    left->tv_nsec = ns % NANOSECONDS;
    return left;
}

static bool deadline_passed(const struct deadline *deadline)
{
    return deadline->zero || (!deadline->forever && now_ns() >= deadline->at);
}

static bool bad_time(const struct timespec *t) { return t && (t->tv_sec < 0 || t->tv_nsec < 0 || t->tv_nsec >= NANOSECONDS); }

/* ---------------------------------------------------------------- what a wait covers */

/* Room for a wait on many descriptors: a program's stack may be small (poll and select are called in handlers, too). */
#define FAR_SETS (3 * SHIM_SLOTS / 8 / sizeof(long))

struct far_room {
    motet_stream streams[SHIM_WAIT_MAX];
    int positions[SHIM_WAIT_MAX], candidates[SHIM_WAIT_MAX];
    long sets[FAR_SETS];
};

_Static_assert(sizeof(struct far_room) <= SHIM_ROOM, "a wait needs one piece");

static void cover_nothing(struct covered *x, struct far_room *far)
{
    x->streams = far ? far->streams : x->near_streams;
    x->positions = far ? far->positions : x->near_positions;
    x->candidates = far ? far->candidates : x->near_candidates;
    x->room = far ? SHIM_WAIT_MAX : NEAR;
    x->count = x->candidate_count = 0;
    x->waiting = x->sleeping = x->alone = false;
    x->far = far;
}

static void cover(struct covered *x, int fd, int position, bool wants_data, bool sleeps)
{
    uint64_t word = table_word(fd);
    if (LIKELY(word_kind(word) < KIND_EPOLL)) return;
    if (word_kind(word) == KIND_EPOLL) {
        interest_epoll_nested(fd);
    } else if (!wants_data || word_kind(word) == KIND_PRIVATE) {
        return;
    } else if (x->count == x->room || x->candidate_count == x->room) {
        table_make_plain(fd, REASON_UNSEEN_WAIT);
    } else if (word_kind(word) != KIND_STREAM && (!sleeps || candidate_sleep_begin(fd))) {
        if (sleeps) x->candidates[x->candidate_count++] = fd;
    } else if (word_kind(table_word(fd)) == KIND_STREAM) {
        x->streams[x->count] = table_handle(fd);
        x->positions[x->count++] = position;
    }
}

static void uncover(void *covered)
{
    struct covered *x = covered;
    for (int i = 0; i < x->candidate_count; i++) candidate_sleep_end(x->candidates[i]);
    x->candidate_count = 0;
    if (x->waiting && x->sleeping) ENGINE_DO(engine.wait_slept(&x->wait));
    if (x->waiting) ENGINE_DO(engine.wait_end(&x->wait));
    x->waiting = false;
    if (UNLIKELY(x->far != NULL)) room_give_back(x->far);
    x->far = NULL;
}

/* One call into the kernel, and what the rings add to its answer. Implemented by poll and by select. */
struct waiter {
    int (*kernel)(struct waiter *waiter, const struct timespec *timeout);
    void (*nothing)(struct waiter *waiter);          /* the kernel was not asked: as if it had answered 0 */
    int (*add_ring)(struct waiter *waiter, int position); /* 1 when this makes one more descriptor (or bit) ready */
};

static int collect(struct covered *x, struct waiter *waiter, int ready)
{
    for (int i = 0; i < x->count; i++)
        if (ENGINE(engine.rx_ready(x->streams[i])) & MOTET_RX_DATA) ready += waiter->add_ring(waiter, x->positions[i]);
    return ready;
}

/* The rings have something. The kernel says what else there is: other descriptors, room to write, an end, an error. It need not be
 * asked where the ring's answer is the whole one. A signal that comes now finds the wait over. */
static int ready_now(struct covered *x, struct waiter *waiter)
{
    static const struct timespec zero;
    int kept = errno, ready = 0;
    if (!x->alone || (ready = collect(x, waiter, (waiter->nothing(waiter), 0))) == 0) {
        ready = waiter->kernel(waiter, &zero);
        if (ready < 0 && errno != EINTR) return ready;
        if (ready < 0) waiter->nothing(waiter);
        int more = collect(x, waiter, ready < 0 ? 0 : ready);
        if (ready < 0 && more == 0) return ready;
        ready = more;
    }
    errno = kept;
    return ready;
}

static int wait_for_streams(struct covered *x, struct waiter *waiter, const struct deadline *deadline)
{
    struct timespec left;
    static const struct timespec zero;
    int ready = 0;
    ENGINE_DO(engine.wait_begin(&x->wait, x->streams, (unsigned)x->count));
    x->waiting = true;
    do {
        switch (ENGINE(engine.wait_step(&x->wait, !deadline->zero))) {
        case MOTET_WAIT_READY:
            ready = ready_now(x, waiter);
            break;
        case MOTET_WAIT_PROBE:
            ready = waiter->kernel(waiter, &zero);
            if (ready >= 0) ready = collect(x, waiter, ready);
            break;
        default:
            x->sleeping = true;
            ready = waiter->kernel(waiter, time_left(deadline, &left));
            x->sleeping = false;
            ENGINE_DO(engine.wait_slept(&x->wait));
            if (ready >= 0) ready = collect(x, waiter, ready);
        }
    } while (ready == 0 && !deadline_passed(deadline));
    return ready;
}

static int wait_covered(struct covered *x, struct waiter *waiter, const struct timespec *timeout)
{
    struct deadline deadline = deadline_after(timeout);
    int ready;
    OPEN_WHILE(uncover, x,
               ready = x->count == 0 ? waiter->kernel(waiter, timeout) : wait_for_streams(x, waiter, &deadline));
    int kept = errno;
    uncover(x);
    errno = kept;
    return ready;
}

/* ---------------------------------------------------------------- poll */

struct poll_waiter {
    struct waiter base;
    struct pollfd *fds;
    nfds_t count;
    const sigset_t *mask;
};

static int poll_kernel(struct waiter *base, const struct timespec *timeout)
{
    struct poll_waiter *w = (struct poll_waiter *)base;
    return REAL(ppoll)(w->fds, w->count, timeout, w->mask);
}

static void poll_nothing(struct waiter *base)
{
    struct poll_waiter *w = (struct poll_waiter *)base;
    for (nfds_t i = 0; i < w->count; i++) w->fds[i].revents = 0;
}

static int poll_add(struct waiter *base, int position)
{
    struct pollfd *entry = &((struct poll_waiter *)base)->fds[position];
    int more = entry->revents == 0;
    entry->revents |= (short)(entry->events & (POLLIN | POLLRDNORM));
    return more;
}

static bool any_tracked(const struct pollfd *fds, nfds_t count)
{
    for (nfds_t i = 0; i < count; i++)
        if (UNLIKELY(word_kind(table_word(fds[i].fd)) >= KIND_EPOLL)) return true;
    return false;
}

/* A poll of one stream for input alone may be answered from the ring. What the kernel could add is POLLERR and POLLHUP, which come
 * once no more bytes do; so a program hears of them when it has read what is there. One that polls and does not read hears of them
 * as every eighth poll of the descriptor asks the kernel. */
static bool ring_may_answer(const struct pollfd *fds, nfds_t count)
{
    static _Atomic uint8_t polls[SHIM_SLOTS];
    const struct pollfd *only = NULL;
    for (nfds_t i = 0; i < count; i++) {
        if (fds[i].fd < 0) continue;
        if (only || fds[i].events & ~(POLLIN | POLLRDNORM)) return false;
        only = &fds[i];
    }
    if (!only || only->fd >= SHIM_SLOTS) return false;
    return atomic_fetch_add_explicit(&polls[only->fd], 1, memory_order_relaxed) % SHIM_PROBE_EVERY != 0;
}

static int poll_streams(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    struct poll_waiter waiter = {{poll_kernel, poll_nothing, poll_add}, fds, count, mask};
    struct covered x;
    cover_nothing(&x, count > NEAR ? room_take() : NULL);
    bool sleeps = !timeout || timeout->tv_sec || timeout->tv_nsec;
    for (nfds_t i = 0; i < count; i++)
        cover(&x, fds[i].fd, (int)i, fds[i].events & (POLLIN | POLLRDNORM), sleeps);
    x.alone = x.count == 1 && ring_may_answer(fds, count);
    return wait_covered(&x, &waiter.base, timeout);
}

SHIM_API int poll(struct pollfd *fds, nfds_t count, int timeout)
{
    if (LIKELY(!any_tracked(fds, count)) || shim_depth > 0) return REAL(poll)(fds, count, timeout);
    if (UNLIKELY(engine_confined())) return confined_poll(fds, count, &(struct confined_poll_call){.timeout = timeout});
    struct timespec time = {timeout / 1000, timeout % 1000 * 1000000l};
    return poll_streams(fds, count, timeout < 0 ? NULL : &time, NULL);
}

SHIM_API int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    if (LIKELY(!any_tracked(fds, count)) || shim_depth > 0 || bad_time(timeout)) return REAL(ppoll)(fds, count, timeout, mask);
    if (UNLIKELY(engine_confined()))
        return confined_poll(fds, count, &(struct confined_poll_call){.precise = true, .time = timeout, .mask = mask});
    return poll_streams(fds, count, timeout, mask);
}

SHIM_API int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t room)
{
    if (room / sizeof *fds < count) __chk_fail();
    return poll(fds, count, timeout);
}

SHIM_API int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask, size_t room)
{
    if (room / sizeof *fds < count) __chk_fail();
    return ppoll(fds, count, timeout, mask);
}

/* ---------------------------------------------------------------- select */

/* The program's sets are both question and answer, so the question is kept. A set may be larger than fd_set. */
#define SET_BITS (8 * (int)sizeof(long))
#define SET_WORDS(count) (((count) + SET_BITS - 1) / SET_BITS)

struct select_waiter {
    struct waiter base;
    int count;
    long *sets[3];
    long *asked[3];
    const sigset_t *mask;
};

static bool set_has(const long *set, int fd) { return set && ((unsigned long)set[fd / SET_BITS] >> (fd % SET_BITS) & 1); }

static int select_kernel(struct waiter *base, const struct timespec *timeout)
{
    struct select_waiter *w = (struct select_waiter *)base;
    for (int i = 0; i < 3; i++)
        if (w->sets[i]) memcpy(w->sets[i], w->asked[i], (size_t)SET_WORDS(w->count) * sizeof(long));
    return REAL(pselect)(w->count, (fd_set *)w->sets[0], (fd_set *)w->sets[1], (fd_set *)w->sets[2], timeout, w->mask);
}

static void select_nothing(struct waiter *base)
{
    struct select_waiter *w = (struct select_waiter *)base;
    for (int i = 0; i < 3; i++)
        if (w->sets[i]) memset(w->sets[i], 0, (size_t)SET_WORDS(w->count) * sizeof(long));
}

static int select_add(struct waiter *base, int fd)
{
    long *set = ((struct select_waiter *)base)->sets[0];
    if (set_has(set, fd)) return 0;
    set[fd / SET_BITS] = (long)((unsigned long)set[fd / SET_BITS] | 1ul << (fd % SET_BITS));
    return 1;
}

/* Only the first set can hold streams that matter; nested epoll descriptors count in any. */
static bool any_selected(int count, const long *readable)
{
    if (!readable || count <= 0) return false;
    for (int word = 0; word < SET_WORDS(count) && word < SHIM_SLOTS / SET_BITS; word++)
        for (unsigned long bits = (unsigned long)readable[word]; bits; bits &= bits - 1) {
            int fd = word * SET_BITS + __builtin_ctzl(bits);
            if (fd < count && UNLIKELY(word_kind(table_word(fd)) >= KIND_EPOLL)) return true;
        }
    return false;
}

/* Of one descriptor that is asked for input and nothing else the ring tells all there is to tell. */
static bool asks_for_one_bit(long *const asked[3], int count)
{
    int bits = 0;
    for (int i = 0; i < 3; i++)
        for (int word = 0; asked[i] && word < SET_WORDS(count) && bits < 2; word++) {
            unsigned long in = (unsigned long)asked[i][word];
            if (word == SET_WORDS(count) - 1 && count % SET_BITS) in &= (1ul << count % SET_BITS) - 1;
            bits += __builtin_popcountl(in);
        }
    return bits == 1;
}

static int select_copied(struct select_waiter *waiter, struct far_room *far, const struct timespec *timeout)
{
    struct covered x;
    cover_nothing(&x, far);
    bool sleeps = !timeout || timeout->tv_sec || timeout->tv_nsec;
    for (int fd = 0; fd < waiter->count; fd++)
        if (set_has(waiter->asked[0], fd)) cover(&x, fd, fd, true, sleeps);
    x.alone = x.count == 1 && asks_for_one_bit(waiter->asked, waiter->count);
    return wait_covered(&x, &waiter->base, timeout);
}

static int select_streams(int count, long *const sets[3], const struct timespec *timeout, const sigset_t *mask)
{
    long near[3 * SET_WORDS(FD_SETSIZE)];
    struct far_room *far = count > NEAR ? room_take() : NULL;
    if (UNLIKELY(!far && count > FD_SETSIZE)) { /* no memory for the question */
        errno = ENOMEM;
        return -1;
    }
    struct select_waiter waiter = {{select_kernel, select_nothing, select_add}, count, {0}, {0}, mask};
    for (int i = 0; i < 3; i++) {
        waiter.sets[i] = sets[i];
        if (sets[i]) waiter.asked[i] = (count > FD_SETSIZE ? far->sets : near) + i * SET_WORDS(count);
        if (sets[i]) memcpy(waiter.asked[i], sets[i], (size_t)SET_WORDS(count) * sizeof(long));
    }
    return select_copied(&waiter, far, timeout);
}

SHIM_API int pselect(int count, fd_set *readable, fd_set *writable, fd_set *exceptional, const struct timespec *timeout,
                     const sigset_t *mask)
{
    if (LIKELY(!any_selected(count, (long *)readable)) || shim_depth > 0 || bad_time(timeout) || count > SHIM_SLOTS)
        return REAL(pselect)(count, readable, writable, exceptional, timeout, mask);
    if (UNLIKELY(engine_confined()))
        return confined_select(count, (fd_set *[3]){readable, writable, exceptional},
                               &(struct confined_select_call){.precise = true, .time = timeout, .mask = mask});
    return select_streams(count, (long *[3]){(long *)readable, (long *)writable, (long *)exceptional}, timeout, mask);
}

/* Linux leaves the time that was not slept in *timeout. */
SHIM_API int select(int count, fd_set *readable, fd_set *writable, fd_set *exceptional, struct timeval *timeout)
{
    if (LIKELY(!any_selected(count, (long *)readable)) || shim_depth > 0 || count > SHIM_SLOTS ||
        (timeout && (timeout->tv_sec < 0 || timeout->tv_usec < 0)))
        return REAL(select)(count, readable, writable, exceptional, timeout);
    if (UNLIKELY(engine_confined()))
        return confined_select(count, (fd_set *[3]){readable, writable, exceptional}, &(struct confined_select_call){.timeout = timeout});
    struct timespec time = {0, 0}, left;
    if (timeout) {
        time.tv_sec = timeout->tv_sec + timeout->tv_usec / 1000000;
        time.tv_nsec = timeout->tv_usec % 1000000 * 1000;
    }
    struct deadline deadline = deadline_after(timeout ? &time : NULL);
    int ready = select_streams(count, (long *[3]){(long *)readable, (long *)writable, (long *)exceptional},
                               timeout ? &time : NULL, NULL);
    if (timeout && time_left(&deadline, &left)) {
        timeout->tv_sec = left.tv_sec;
        timeout->tv_usec = left.tv_nsec / 1000;
    }
    return ready;
}

SHIM_API int __poll(struct pollfd *fds, nfds_t count, int timeout) __attribute__((alias("poll")));
SHIM_API int __select(int count, fd_set *readable, fd_set *writable, fd_set *exceptional, struct timeval *timeout)
    __attribute__((alias("select")));
