/* fd_table.c: the state of each descriptor.
 *
 * What it is:   one 64-bit word per descriptor. Every call reads it without a lock; the few calls that create, copy or close tracked
 *               descriptors change it under one lock. The words are in zero pages: a process without sockets never touches them.
 * What it isn't: an authority on descriptors, which is the kernel. A word that is out of date because the descriptor was closed by a raw
 *               system call is replaced when a new descriptor gets its number.
 *
 * Signal safety: readers are wait-free. The holder of the lock has reentrancy_depth > 0, so the program's handlers are deferred; a handler
 * that was installed by a raw system call finds that depth and skips the table. The lock is never held across a call that sleeps, nor while
 * the loader's lock may be needed.
 * Fork safety: the fork handlers hold the lock. In a vfork child table_in_own_process() is false and nothing changes.
 * errno: functions may change it unless sockets.h says that they keep it. */
#include "sockets.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

_Atomic uint64_t fd_words[SHIM_TRACKED_FDS];
_Atomic uint64_t fd_handles[SHIM_TRACKED_FDS];
_Atomic uint32_t fd_sleepers[SHIM_TRACKED_FDS];
_Atomic int fd_top = -1;
__thread int reentrancy_depth;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic long process;

/* Handlers of the program are deferred until the thread has left (signals.c). No signal is blocked here: a thread that unblocks signals
 * takes signals that the kernel meant for another thread, and some programs end by a signal that interrupts the main thread's sleep. */
void table_lock(void)
{
    reentrancy_enter();
    pthread_mutex_lock(&lock);
}

void table_unlock(void)
{
    pthread_mutex_unlock(&lock);
    reentrancy_exit();
    signals_deliver_pending();
}

/* ---------------------------------------------------------------- fork */

/* Across a fork all signals are blocked instead: the child must not inherit a deferred signal that its parent delivers. */
static sigset_t fork_mask;
static bool fork_masks_nothing; /* in a confined process no signal is blocked */
static bool fork_holds_lock;    /* the lock; false in a handler, installed by a raw system call, that interrupted its holder */

void table_lock_for_fork(void)
{
    fork_masks_nothing = engine_confined();
    if (UNLIKELY(fork_masks_nothing)) return table_lock();
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    fork_holds_lock = pthread_mutex_trylock(&lock) == 0 || (reentrancy_depth == 0 && pthread_mutex_lock(&lock) == 0);
    fork_mask = before;
    fork_shared_before_fork();
    interest_before_fork();
}

void table_unlock_after_fork(bool child)
{
    if (UNLIKELY(fork_masks_nothing)) return table_unlock();
    if (child) table_record_process();
    for (int fd = 0; fd <= atomic_load(&fd_top); fd++) {
        uint64_t word = atomic_load(&fd_words[fd]);
        if (word_kind(word) == KIND_STREAM || word_kind(word) == KIND_CANDIDATE || word_kind(word) == KIND_EPOLL)
            atomic_fetch_or(&fd_words[fd], WORD_SHARED | WORD_OTHER_PROCESS);
        else if (word_kind(word) == KIND_UNCONNECTED)
            atomic_fetch_or(&fd_words[fd], WORD_OTHER_PROCESS);
        if (child) atomic_store(&fd_sleepers[fd], 0);
    }
    interest_after_fork(child);
    sigset_t before = fork_mask;
    if (LIKELY(fork_holds_lock)) pthread_mutex_unlock(&lock);
    else if (child) pthread_mutex_init(&lock, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---------------------------------------------------------------- processes */

void table_record_process(void) { atomic_store(&process, syscall(SYS_getpid)); }

/* The number of the process, without a system call: libc already knows the thread's number, and writes it into an error-checking mutex. */
void table_record_initial_process(void)
{
    pthread_mutex_t known = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
    pthread_mutex_lock(&known);
    atomic_store(&process, known.__data.__owner);
    pthread_mutex_unlock(&known);
}

bool table_is_empty(void) { return atomic_load_explicit(&fd_top, memory_order_relaxed) < 0 && !engine_is_open(); }

bool table_in_own_process(void)
{
    long known = atomic_load_explicit(&process, memory_order_relaxed);
    if (UNLIKELY(known == 0)) {
        table_record_process();
        return true;
    }
    return engine_known_disabled() || syscall(SYS_getpid) == known;
}

/* ---------------------------------------------------------------- words of the table */

static void raise_fd_top(int fd)
{
    int top = atomic_load_explicit(&fd_top, memory_order_relaxed);
    while (fd > top && !atomic_compare_exchange_weak(&fd_top, &top, fd)) {}
}

void table_replace(int fd, uint64_t word)
{
    if ((unsigned)fd >= SHIM_TRACKED_FDS) return;
    if (word != 0) raise_fd_top(fd);
    atomic_store(&fd_words[fd], word);
}

static bool is_same_socket(int fd, uint64_t word, motet_stream handle)
{
    uint64_t other = atomic_load(&fd_words[fd]);
    if (word_kind(other) != word_kind(word)) return false;
    if (word_kind(word) == KIND_STREAM) return atomic_load(&fd_handles[fd]) == handle;
    return word_extra(word) != 0 && word_extra(other) == word_extra(word);
}

/* A group for candidates that are duplicates of each other: bits of their words that no other group has. */
uint64_t table_new_group(void)
{
    static _Atomic uint32_t groups;
    return (uint64_t)(atomic_fetch_add(&groups, 1) + 1) << WORD_EXTRA_SHIFT;
}

/* Another descriptor of this process for the same socket, or -1. */
static int find_duplicate(int fd, uint64_t word, motet_stream handle)
{
    if (LIKELY(!(word & WORD_DUPLICATED))) return -1;
    for (int other = 0; other <= atomic_load(&fd_top); other++)
        if (other != fd && is_same_socket(other, word, handle)) return other;
    return -1;
}

/* The engine uses the descriptor that it was given. Before that one closes, the engine is given a duplicate. The second upgrade counts as a
 * second user of the stream, so a close follows. */
static void rebind(int other, motet_stream handle)
{
    struct motet_upgrade_options options = {.size = sizeof options, .flags = MOTET_UPGRADE_LAZY, .role = MOTET_ROLE_CONNECTED};
    motet_stream same = 0;
    if (ENGINE(engine.upgrade(other, &options, &same)) == 0) ENGINE(engine.close(same));
    if (same != handle) ENGINE(engine.set_tcp_only(handle, REASON_UNSEEN_WAIT));
}

struct close_request {
    motet_stream stream;
    int result;
};

static void close_on_scratch_stack(void *of) { ((struct close_request *)of)->result = engine.close(((struct close_request *)of)->stream); }

static int close_stream(motet_stream stream)
{
    struct close_request close_request = {stream, 0};
    ENGINE_DO(scratch_call(close_on_scratch_stack, &close_request));
    return close_request.result;
}

/* Releases what `fd` referred to and sets its word. The engine's close runs outside the lock: it may move bytes back to TCP. `closes`: the
 * descriptor is about to close. */
static void untrack(int fd, uint64_t word, bool closes)
{
    if ((unsigned)fd >= SHIM_TRACKED_FDS) return;
    uint64_t old = atomic_load(&fd_words[fd]);
    if (LIKELY(word_kind(old) == KIND_NONE || word_kind(old) == KIND_UNCONNECTED)) {
        if (old != word) {
            interest_forget(fd);
            table_replace(fd, word);
        }
        return;
    }
    motet_stream finished = 0;
    table_lock();
    old = atomic_load(&fd_words[fd]);
    if (word_kind(old) == KIND_CLOSED_IN_HANDLER) old = (old & ~WORD_KIND) | (old & WORD_WAS_STREAM ? KIND_STREAM : KIND_CANDIDATE);
    motet_stream handle = atomic_load(&fd_handles[fd]);
    int other = find_duplicate(fd, old, handle);
    table_replace(fd, word);
    bool waited = interest_forget(fd);
    if (word_kind(old) == KIND_EPOLL && other < 0) interest_epoll_closed(word_extra(old));
    if (word_kind(old) == KIND_STREAM && other < 0) finished = handle;
    if (word_kind(old) == KIND_CANDIDATE && other < 0) fork_shared_release(handle);
    if (word_kind(old) == KIND_STREAM && other >= 0) {
        rebind(other, handle);
    }
    table_unlock();
    /* The kernel keeps the registration of a closed descriptor while a duplicate, or another process, has the socket. The engine's sets do not, so
     * the stream returns to TCP, with what is unread. */
    if (UNLIKELY(waited && word_kind(old) == KIND_STREAM)) {
        if (other >= 0) handover_fd(other, REASON_UNSEEN_WAIT);
        else if (old & WORD_OTHER_PROCESS) ENGINE(engine.hand_over(handle, fd, REASON_UNSEEN_WAIT));
    }
    /* A closed descriptor of an epoll set stays registered elsewhere while a duplicate lives. */
    if (word_kind(old) == KIND_EPOLL && other >= 0 && waited) interest_epoll_nested(other);
    if (finished) {
        engine_report(finished, fd);
        candidate_stream_closing(finished);
        if (close_stream(finished) > 0 && closes && !(old & WORD_OTHER_PROCESS)) table_reset_at_close(fd);
    }
}

void table_set(int fd, uint64_t word) { untrack(fd, word, true); }

void table_disconnect(int fd)
{
    table_force_tcp(fd, REASON_PASSED); /* also for other processes that have the socket */
    untrack(fd, KIND_NONE, false);
}

/* Changes the word only. The engine's stream, its epoll sets and the counts of fork_shared.c are released by the next call on the number. */
void table_close_in_handler(int fd)
{
    uint64_t word = table_word(fd);
    while (word_kind(word) == KIND_STREAM || word_kind(word) == KIND_CANDIDATE) {
        uint64_t closed = (word & ~WORD_KIND) | KIND_CLOSED_IN_HANDLER | (word_kind(word) == KIND_STREAM ? WORD_WAS_STREAM : 0);
        if (atomic_compare_exchange_weak(&fd_words[fd], &word, closed)) return;
    }
}

void table_reset_at_close(int fd)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    REAL(setsockopt)(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

void table_force_tcp(int fd, uint32_t reason)
{
    uint64_t word = table_word(fd);
    if (word_kind(word) == KIND_CANDIDATE || word_kind(word) == KIND_UNCONNECTED) {
        table_lock();
        word = table_word(fd);
        bool changes = word_kind(word) == KIND_CANDIDATE || word_kind(word) == KIND_UNCONNECTED;
        if (changes) {
            for (int other; (other = find_duplicate(fd, word, 0)) >= 0;) {
                interest_forget(other);
                table_replace(other, 0);
            }
            interest_forget(fd);
            table_replace(fd, 0);
        }
        table_unlock();
        if (changes && reason != REASON_NONE) engine_count_tcp_only(reason);
    }
    if (word_kind(word) == KIND_STREAM) ENGINE(engine.set_tcp_only(table_handle(fd), reason));
}

void table_set_bits(int fd, uint64_t bits)
{
    uint64_t word = table_word(fd);
    motet_stream handle = table_handle(fd);
    for (int other = 0; other <= atomic_load(&fd_top); other++)
        if (other == fd || ((word & WORD_DUPLICATED) && is_same_socket(other, word, handle))) atomic_fetch_or(&fd_words[other], bits);
}

/* ---------------------------------------------------------------- blocking mode */

void table_record_nonblock(int fd, bool nonblock)
{
    uint64_t word = table_word(fd);
    while (word_kind(word) >= KIND_CANDIDATE) {
        uint64_t next = (word & ~WORD_NONBLOCK) | WORD_NONBLOCK_KNOWN | (nonblock ? WORD_NONBLOCK : 0);
        if (atomic_compare_exchange_weak(&fd_words[fd], &word, next)) return;
    }
}

/* O_NONBLOCK belongs to the open file description: where a duplicate or another process may have changed it, the kernel is asked. */
bool table_is_blocking(int fd, uint64_t word)
{
    if (LIKELY((word & WORD_NONBLOCK_KNOWN) && (!(word & WORD_SHARED) || fork_shared_nonblock_is_current()))) return !(word & WORD_NONBLOCK);
    int kept = errno;
    int flags = REAL(fcntl)(fd, F_GETFL);
    errno = kept;
    if (flags < 0) return false;
    table_record_nonblock(fd, flags & O_NONBLOCK);
    return !(flags & O_NONBLOCK);
}

/* ---------------------------------------------------------------- private descriptors */

/* The value of FIRST_PRIVATE in crates/motet-sys/src/private_fds.rs. */
#define PRIVATE_BASE 1024

static int private_base(void)
{
    struct rlimit limit;
    rlim_t soft = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : PRIVATE_BASE;
    rlim_t most = soft - soft / 4;
    return (int)(most < PRIVATE_BASE ? most : PRIVATE_BASE);
}

/* The kernel's descriptor table grows with the highest number. In a process with threads each growth waits for all CPUs (10 ms measured), in
 * a process with one thread it takes 10 us. */
void fd_reserve_private_range(void)
{
    int kept = errno, high = -1;
    for (int fd = 0; fd < 3 && high < 0; fd++) high = REAL(fcntl)(fd, F_DUPFD_CLOEXEC, private_base());
    if (high >= 0) REAL(close)(high);
    errno = kept;
}

/* Takes ownership of `fd` and returns it at a number above those that programs use. -1: failed, `fd` is closed. */
int fd_move_private(int fd)
{
    int high = REAL(fcntl)(fd, F_DUPFD_CLOEXEC, private_base());
    REAL(close)(fd);
    if (high >= SHIM_TRACKED_FDS) {
        REAL(close)(high);
        return -1;
    }
    if (high >= 0) table_replace(high, KIND_PRIVATE);
    return high;
}
