/* poll.c: waiting on an array of descriptors: poll, ppoll, select, pselect and the fortified forms.
 *
 * What it is:   a wait that covers streams polls the engine's rings and the kernel in turn, and sleeps in the program's own system call with
 *               the rest of its timeout and with its signal mask.
 * What it isn't: a policy. The engine decides when to poll, to probe and to sleep (motet_wait_step).
 *
 * Without a stream or candidate among the descriptors libc's function runs at once.
 * Cancellation: the kernel call is the cancellation point; a cancelled thread ends the engine's wait.
 * Signal safety: as libc's; a handler that interrupted the engine (reentrancy_depth > 0) waits in the kernel only. Fork safety: no state
 * that a child uses. errno: kept on success. */
#include "sockets.h"

#include <string.h>

#define NANOSECONDS 1000000000ll

#define STACK_FDS 32 /* descriptors up to which a wait needs no scratch memory */

struct covered {
    struct motet_wait wait;
    motet_stream *streams;
    int *positions; /* index into the pollfd array, or the descriptor number for select */
    int *candidates;
    int capacity, count, candidate_count;
    bool waiting, sleeping;
    bool ring_may_answer_alone; /* one stream is all that the call waits for, and the ring's answer is complete */
    struct wait_scratch *scratch;
    motet_stream stack_streams[STACK_FDS];
    int stack_positions[STACK_FDS], stack_candidates[STACK_FDS];
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

static bool is_invalid_time(const struct timespec *t) { return t && (t->tv_sec < 0 || t->tv_nsec < 0 || t->tv_nsec >= NANOSECONDS); }

/* ---------------------------------------------------------------- descriptors of a wait */

/* Memory for a wait on many descriptors. It is not on the stack, which may be small: programs call poll and select in signal handlers, too. */
#define SCRATCH_SET_LONGS (3 * SHIM_TRACKED_FDS / 8 / sizeof(long))

struct wait_scratch {
    motet_stream streams[SHIM_WAIT_FDS_MAX];
    int positions[SHIM_WAIT_FDS_MAX], candidates[SHIM_WAIT_FDS_MAX];
    long sets[SCRATCH_SET_LONGS];
};

_Static_assert(sizeof(struct wait_scratch) <= SHIM_SCRATCH_BYTES, "a wait needs one piece");

static void cover_init(struct covered *x, struct wait_scratch *scratch)
{
    x->streams = scratch ? scratch->streams : x->stack_streams;
    x->positions = scratch ? scratch->positions : x->stack_positions;
    x->candidates = scratch ? scratch->candidates : x->stack_candidates;
    x->capacity = scratch ? SHIM_WAIT_FDS_MAX : STACK_FDS;
    x->count = x->candidate_count = 0;
    x->waiting = x->sleeping = x->ring_may_answer_alone = false;
    x->scratch = scratch;
}

static void cover(struct covered *x, int fd, int position, bool wants_data, bool sleeps)
{
    if (UNLIKELY(atomic_load_explicit(&uring_by_system_call, memory_order_relaxed))) uring_before_wait(fd);
    uint64_t word = table_word(fd);
    if (LIKELY(word_kind(word) < KIND_EPOLL)) return;
    if (word_kind(word) == KIND_EPOLL) {
        interest_epoll_nested(fd);
    } else if (!wants_data || word_kind(word) == KIND_PRIVATE) {
        return;
    } else if (x->count == x->capacity || x->candidate_count == x->capacity) {
        table_force_tcp(fd, REASON_UNSEEN_WAIT);
    } else if (word_kind(word) != KIND_STREAM && (!sleeps || candidate_kernel_enter(fd))) {
        if (sleeps) x->candidates[x->candidate_count++] = fd;
    } else if (word_kind(table_word(fd)) == KIND_STREAM) {
        x->streams[x->count] = table_handle(fd);
        x->positions[x->count++] = position;
    }
}

static void uncover(void *covered)
{
    struct covered *x = covered;
    for (int i = 0; i < x->candidate_count; i++) candidate_kernel_leave(x->candidates[i]);
    x->candidate_count = 0;
    if (x->waiting && x->sleeping) ENGINE_DO(engine.wait_slept(&x->wait));
    if (x->waiting) ENGINE_DO(engine.wait_end(&x->wait));
    x->waiting = false;
    if (UNLIKELY(x->scratch != NULL)) scratch_free(x->scratch);
    x->scratch = NULL;
}

/* One kernel call, and how ring data is added to its result. Implemented by poll and by select. */
struct waiter {
    int (*kernel)(struct waiter *waiter, const struct timespec *timeout);
    void (*clear)(struct waiter *waiter);                     /* sets the result of a kernel call that was not made */
    int (*add_readable)(struct waiter *waiter, int position); /* 1 when this adds a ready descriptor (or bit) */
};

static int collect(struct covered *x, struct waiter *waiter, int ready)
{
    for (int i = 0; i < x->count; i++)
        if (ENGINE(engine.rx_ready(x->streams[i])) & MOTET_RX_DATA) ready += waiter->add_readable(waiter, x->positions[i]);
    return ready;
}

/* Some ring has data. The kernel adds other descriptors, room to write, end of file and errors; it is not asked where the ring's answer is
 * complete. A signal that arrives here finds the wait already satisfied. */
static int ready_now(struct covered *x, struct waiter *waiter)
{
    static const struct timespec zero;
    int kept = errno, ready = 0;
    if (!x->ring_may_answer_alone || (ready = collect(x, waiter, (waiter->clear(waiter), 0))) == 0) {
        ready = waiter->kernel(waiter, &zero);
        if (ready < 0 && errno != EINTR) return ready;
        if (ready < 0) waiter->clear(waiter);
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
    int ready = 0, looks = 0;
    bool had_data;
    ENGINE_DO(engine.wait_begin(&x->wait, x->streams, (unsigned)x->count));
    x->waiting = true;
    do {
        had_data = false;
        switch (ENGINE(engine.wait_step(&x->wait, !deadline->zero))) {
        case MOTET_WAIT_READY:
            had_data = ++looks < SHIM_LOOKS_MAX;
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
    } while (ready == 0 && (had_data || !deadline_passed(deadline))); /* data that the sender has taken back meanwhile are in the kernel */
    return ready;
}

static int wait_covered(struct covered *x, struct waiter *waiter, const struct timespec *timeout)
{
    struct deadline deadline = deadline_after(timeout);
    int ready;
    WITH_CLEANUP(uncover, x,
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

static void poll_clear(struct waiter *base)
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

/* True when a poll for input on a single stream may be answered from the ring. The kernel could only add POLLERR and POLLHUP, which follow
 * the last bytes: a program that reads sees them after it has read the ring. For a program that polls without reading, one in
 * SHIM_KERNEL_PROBE_EVERY polls of the descriptor asks the kernel. */
static bool ring_may_answer(const struct pollfd *fds, nfds_t count)
{
    static _Atomic uint8_t polls[SHIM_TRACKED_FDS];
    const struct pollfd *only = NULL;
    for (nfds_t i = 0; i < count; i++) {
        if (fds[i].fd < 0) continue;
        if (only || fds[i].events & ~(POLLIN | POLLRDNORM)) return false;
        only = &fds[i];
    }
    if (!only || only->fd >= SHIM_TRACKED_FDS) return false;
    return atomic_fetch_add_explicit(&polls[only->fd], 1, memory_order_relaxed) % SHIM_KERNEL_PROBE_EVERY != 0;
}

static int poll_streams(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    struct poll_waiter waiter = {{poll_kernel, poll_clear, poll_add}, fds, count, mask};
    struct covered x;
    cover_init(&x, count > STACK_FDS ? scratch_alloc() : NULL);
    bool sleeps = !timeout || timeout->tv_sec || timeout->tv_nsec;
    for (nfds_t i = 0; i < count; i++)
        cover(&x, fds[i].fd, (int)i, fds[i].events & (POLLIN | POLLRDNORM), sleeps);
    x.ring_may_answer_alone = x.count == 1 && ring_may_answer(fds, count);
    return wait_covered(&x, &waiter.base, timeout);
}

SHIM_API int poll(struct pollfd *fds, nfds_t count, int timeout)
{
    if (LIKELY(!any_tracked(fds, count)) || reentrancy_depth > 0) return REAL(poll)(fds, count, timeout);
    if (UNLIKELY(engine_confined())) return confined_poll(fds, count, &(struct confined_poll_call){.timeout = timeout});
    struct timespec time = {timeout / 1000, timeout % 1000 * 1000000l};
    return poll_streams(fds, count, timeout < 0 ? NULL : &time, NULL);
}

SHIM_API int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    if (LIKELY(!any_tracked(fds, count)) || reentrancy_depth > 0 || is_invalid_time(timeout)) return REAL(ppoll)(fds, count, timeout, mask);
    if (UNLIKELY(engine_confined()))
        return confined_poll(fds, count, &(struct confined_poll_call){.precise = true, .time = timeout, .mask = mask});
    return poll_streams(fds, count, timeout, mask);
}

SHIM_API int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t capacity)
{
    if (capacity / sizeof *fds < count) __chk_fail();
    return poll(fds, count, timeout);
}

SHIM_API int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask, size_t capacity)
{
    if (capacity / sizeof *fds < count) __chk_fail();
    return ppoll(fds, count, timeout, mask);
}

/* ---------------------------------------------------------------- select */

/* select overwrites the program's sets, so they are copied first. A set may be larger than fd_set. */
#define SET_BITS (8 * (int)sizeof(long))
#define SET_WORDS(count) (((count) + SET_BITS - 1) / SET_BITS)

struct select_waiter {
    struct waiter base;
    int count;
    long *sets[3];
    long *requested[3];
    const sigset_t *mask;
};

static bool set_has(const long *set, int fd) { return set && ((unsigned long)set[fd / SET_BITS] >> (fd % SET_BITS) & 1); }

static int select_kernel(struct waiter *base, const struct timespec *timeout)
{
    struct select_waiter *w = (struct select_waiter *)base;
    for (int i = 0; i < 3; i++)
        if (w->sets[i]) memcpy(w->sets[i], w->requested[i], (size_t)SET_WORDS(w->count) * sizeof(long));
    return REAL(pselect)(w->count, (fd_set *)w->sets[0], (fd_set *)w->sets[1], (fd_set *)w->sets[2], timeout, w->mask);
}

static void select_clear(struct waiter *base)
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

/* Only the first set can hold streams that matter. Nested epoll descriptors are found there as well. */
static bool any_selected(int count, const long *readable)
{
    if (!readable || count <= 0) return false;
    for (int word = 0; word < SET_WORDS(count) && word < SHIM_TRACKED_FDS / SET_BITS; word++)
        for (unsigned long bits = (unsigned long)readable[word]; bits; bits &= bits - 1) {
            int fd = word * SET_BITS + __builtin_ctzl(bits);
            if (fd < count && UNLIKELY(word_kind(table_word(fd)) >= KIND_EPOLL)) return true;
        }
    return false;
}

/* True when the call asks for input on one descriptor and for nothing else: the ring's answer is complete then. */
static bool requests_one_bit(long *const requested[3], int count)
{
    int bits = 0;
    for (int i = 0; i < 3; i++)
        for (int word = 0; requested[i] && word < SET_WORDS(count) && bits < 2; word++) {
            unsigned long in = (unsigned long)requested[i][word];
            if (word == SET_WORDS(count) - 1 && count % SET_BITS) in &= (1ul << count % SET_BITS) - 1;
            bits += __builtin_popcountl(in);
        }
    return bits == 1;
}

static int select_copied(struct select_waiter *waiter, struct wait_scratch *scratch, const struct timespec *timeout)
{
    struct covered x;
    cover_init(&x, scratch);
    bool sleeps = !timeout || timeout->tv_sec || timeout->tv_nsec;
    for (int fd = 0; fd < waiter->count; fd++)
        if (set_has(waiter->requested[0], fd)) cover(&x, fd, fd, true, sleeps);
    x.ring_may_answer_alone = x.count == 1 && requests_one_bit(waiter->requested, waiter->count);
    return wait_covered(&x, &waiter->base, timeout);
}

static int select_streams(int count, long *const sets[3], const struct timespec *timeout, const sigset_t *mask)
{
    long stack_sets[3 * SET_WORDS(FD_SETSIZE)];
    struct wait_scratch *scratch = count > STACK_FDS ? scratch_alloc() : NULL;
    if (UNLIKELY(!scratch && count > FD_SETSIZE)) { /* no memory for the copy */
        errno = ENOMEM;
        return -1;
    }
    struct select_waiter waiter = {{select_kernel, select_clear, select_add}, count, {0}, {0}, mask};
    for (int i = 0; i < 3; i++) {
        waiter.sets[i] = sets[i];
        if (sets[i]) waiter.requested[i] = (count > FD_SETSIZE ? scratch->sets : stack_sets) + i * SET_WORDS(count);
        if (sets[i]) memcpy(waiter.requested[i], sets[i], (size_t)SET_WORDS(count) * sizeof(long));
    }
    return select_copied(&waiter, scratch, timeout);
}

SHIM_API int pselect(int count, fd_set *readable, fd_set *writable, fd_set *exceptional, const struct timespec *timeout,
                     const sigset_t *mask)
{
    if (LIKELY(!any_selected(count, (long *)readable)) || reentrancy_depth > 0 || is_invalid_time(timeout) || count > SHIM_TRACKED_FDS)
        return REAL(pselect)(count, readable, writable, exceptional, timeout, mask);
    if (UNLIKELY(engine_confined()))
        return confined_select(count, (fd_set *[3]){readable, writable, exceptional},
                               &(struct confined_select_call){.precise = true, .time = timeout, .mask = mask});
    return select_streams(count, (long *[3]){(long *)readable, (long *)writable, (long *)exceptional}, timeout, mask);
}

/* Linux returns the remaining time in *timeout. */
SHIM_API int select(int count, fd_set *readable, fd_set *writable, fd_set *exceptional, struct timeval *timeout)
{
    if (LIKELY(!any_selected(count, (long *)readable)) || reentrancy_depth > 0 || count > SHIM_TRACKED_FDS ||
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
