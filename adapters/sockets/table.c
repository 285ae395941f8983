/* table.c: what each descriptor is to this object.
 *
 * What it is:   one 64-bit word per descriptor, read without a lock by every call, changed under one lock by the few calls
 *               that make, copy or close tracked descriptors. The words live in zero pages: a process that never uses
 *               a socket never touches them.
 * What it isn't: the truth about descriptors, which is the kernel's. A word that is out of date because somebody closed
 *               the descriptor by a raw system call is replaced when a new socket appears under its number.
 *
 * Signal safety: readers are wait-free. Whoever holds the lock is in the engine (shim_depth > 0), so handlers wait; one that the
 * program installed by a bare system call skips the table then. The lock is never held across a call that sleeps, and never while
 * the loader's lock may be wanted.
 * Fork safety: the fork handlers hold the lock. In a vfork child table_in_own_process() is false and nothing is changed. */
#include "shim.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

_Atomic uint64_t shim_words[SHIM_SLOTS];
_Atomic uint64_t shim_handles[SHIM_SLOTS];
_Atomic uint32_t shim_sleepers[SHIM_SLOTS];
_Atomic int shim_top = -1;
__thread int shim_depth;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic long process;

/* A handler of the program's waits until the thread has left (signals.c). No signal is blocked here: a thread that unblocks signals takes
 * those that the kernel meant for another thread, and some programs end by one that interrupts the main thread's sleep. */
void table_lock(void)
{
    shim_enter();
    pthread_mutex_lock(&lock);
}

void table_unlock(void)
{
    pthread_mutex_unlock(&lock);
    shim_exit();
    signals_due();
}

/* ---------------------------------------------------------------- fork */

/* Across a fork signals are blocked instead: the child must not find a handler put off that its parent runs. */
static sigset_t fork_mask;
static bool fork_silent; /* in a confined process nothing is blocked */
static bool fork_holds;  /* the lock; not in a handler, installed by a bare system call, that has interrupted its holder */

void table_lock_for_fork(void)
{
    fork_silent = engine_confined();
    if (UNLIKELY(fork_silent)) return table_lock();
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    fork_holds = pthread_mutex_trylock(&lock) == 0 || (shim_depth == 0 && pthread_mutex_lock(&lock) == 0);
    fork_mask = before;
    family_before_fork();
    interest_before_fork();
}

void table_unlock_after_fork(bool child)
{
    if (UNLIKELY(fork_silent)) return table_unlock();
    if (child) table_note_process();
    for (int fd = 0; fd <= atomic_load(&shim_top); fd++) {
        uint64_t word = atomic_load(&shim_words[fd]);
        if (word_kind(word) == KIND_STREAM || word_kind(word) == KIND_CANDIDATE || word_kind(word) == KIND_EPOLL)
            atomic_fetch_or(&shim_words[fd], WORD_SHARED | WORD_ELSEWHERE);
        else if (word_kind(word) == KIND_FRESH)
            atomic_fetch_or(&shim_words[fd], WORD_ELSEWHERE);
        if (child) atomic_store(&shim_sleepers[fd], 0);
    }
    interest_after_fork(child);
    sigset_t before = fork_mask;
    if (LIKELY(fork_holds)) pthread_mutex_unlock(&lock);
    else if (child) pthread_mutex_init(&lock, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---------------------------------------------------------------- processes */

void table_note_process(void) { atomic_store(&process, syscall(SYS_getpid)); }

/* The C library has its thread's number from the kernel already, and writes it into a mutex of this kind. */
void table_note_beginning(void)
{
    pthread_mutex_t known = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
    pthread_mutex_lock(&known);
    atomic_store(&process, known.__data.__owner);
    pthread_mutex_unlock(&known);
}

bool table_is_empty(void) { return atomic_load_explicit(&shim_top, memory_order_relaxed) < 0 && !engine_is_open(); }

bool table_in_own_process(void)
{
    long known = atomic_load_explicit(&process, memory_order_relaxed);
    if (UNLIKELY(known == 0)) {
        table_note_process();
        return true;
    }
    return engine_known_disabled() || syscall(SYS_getpid) == known;
}

/* ---------------------------------------------------------------- words */

static void raise_top(int fd)
{
    int top = atomic_load_explicit(&shim_top, memory_order_relaxed);
    while (fd > top && !atomic_compare_exchange_weak(&shim_top, &top, fd)) {}
}

void table_replace(int fd, uint64_t word)
{
    if ((unsigned)fd >= SHIM_SLOTS) return;
    if (word != 0) raise_top(fd);
    atomic_store(&shim_words[fd], word);
}

static bool means_same(int fd, uint64_t word, motet_stream handle)
{
    uint64_t other = atomic_load(&shim_words[fd]);
    if (word_kind(other) != word_kind(word)) return false;
    if (word_kind(word) == KIND_STREAM) return atomic_load(&shim_handles[fd]) == handle;
    return word_extra(word) != 0 && word_extra(other) == word_extra(word);
}

/* For candidates that are duplicates of each other: bits of their words, unlike those of all other groups. */
uint64_t table_new_group(void)
{
    static _Atomic uint32_t groups;
    return (uint64_t)(atomic_fetch_add(&groups, 1) + 1) << WORD_EXTRA_SHIFT;
}

/* Another descriptor of this process for the same thing, or -1. */
static int duplicate(int fd, uint64_t word, motet_stream handle)
{
    if (LIKELY(!(word & WORD_COPIED))) return -1;
    for (int other = 0; other <= atomic_load(&shim_top); other++)
        if (other != fd && means_same(other, word, handle)) return other;
    return -1;
}

/* The engine uses the descriptor that it was given: before that one goes, it is given a duplicate. The second upgrade counts
 * as a second user of the stream, so it is followed by a close. */
static void rebind(int other, motet_stream handle)
{
    struct motet_upgrade_options options = {.size = sizeof options, .flags = MOTET_UPGRADE_LAZY, .role = MOTET_ROLE_CONNECTED};
    motet_stream same = 0;
    if (ENGINE(engine.upgrade(other, &options, &same)) == 0) ENGINE(engine.close(same));
    if (same != handle) ENGINE(engine.plain(handle, REASON_UNSEEN_WAIT));
}

struct ending {
    motet_stream stream;
    int result;
};

static void close_now(void *of) { ((struct ending *)of)->result = engine.close(((struct ending *)of)->stream); }

static int close_stream(motet_stream stream)
{
    struct ending ending = {stream, 0};
    ENGINE_DO(room_call(close_now, &ending));
    return ending.result;
}

/* The engine's close runs outside the lock: it may move bytes back to TCP. `closes`: the descriptor goes. */
static void forget(int fd, uint64_t word, bool closes)
{
    if ((unsigned)fd >= SHIM_SLOTS) return;
    uint64_t old = atomic_load(&shim_words[fd]);
    if (LIKELY(word_kind(old) == KIND_NONE || word_kind(old) == KIND_FRESH)) {
        if (old != word) {
            interest_forget(fd);
            table_replace(fd, word);
        }
        return;
    }
    motet_stream finished = 0;
    table_lock();
    old = atomic_load(&shim_words[fd]);
    if (word_kind(old) == KIND_CLOSED) old = (old & ~WORD_KIND) | (old & WORD_STREAM ? KIND_STREAM : KIND_CANDIDATE);
    motet_stream handle = atomic_load(&shim_handles[fd]);
    int other = duplicate(fd, old, handle);
    table_replace(fd, word);
    bool waited = interest_forget(fd);
    if (word_kind(old) == KIND_EPOLL && other < 0) interest_epoll_closed(word_extra(old));
    if (word_kind(old) == KIND_STREAM && other < 0) finished = handle;
    if (word_kind(old) == KIND_CANDIDATE && other < 0) family_close(handle);
    if (word_kind(old) == KIND_STREAM && other >= 0) {
        rebind(other, handle);
        /* The kernel keeps a registration of a closed descriptor while a duplicate lives; it is not mirrored. */
        if (waited) ENGINE(engine.plain(handle, REASON_UNSEEN_WAIT));
    }
    table_unlock();
    if (finished) {
        engine_report(finished, fd);
        candidate_ended(finished);
        if (close_stream(finished) > 0 && closes && !(old & WORD_ELSEWHERE)) table_reset_at_close(fd);
    }
}

void table_set(int fd, uint64_t word) { forget(fd, word, true); }

void table_disconnect(int fd)
{
    table_make_plain(fd, REASON_PASSED); /* for whoever has the socket, too */
    forget(fd, KIND_NONE, false);
}

/* The engine's record, the sets and the counts of the family wait for a call that may change them. */
void table_closed_by_handler(int fd)
{
    uint64_t word = table_word(fd);
    while (word_kind(word) == KIND_STREAM || word_kind(word) == KIND_CANDIDATE) {
        uint64_t closed = (word & ~WORD_KIND) | KIND_CLOSED | (word_kind(word) == KIND_STREAM ? WORD_STREAM : 0);
        if (atomic_compare_exchange_weak(&shim_words[fd], &word, closed)) return;
    }
}

void table_reset_at_close(int fd)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    REAL(setsockopt)(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

void table_make_plain(int fd, uint32_t reason)
{
    uint64_t word = table_word(fd);
    if (word_kind(word) == KIND_CANDIDATE || word_kind(word) == KIND_FRESH) {
        table_lock();
        word = table_word(fd);
        bool changes = word_kind(word) == KIND_CANDIDATE || word_kind(word) == KIND_FRESH;
        if (changes) {
            for (int other; (other = duplicate(fd, word, 0)) >= 0;) {
                interest_forget(other);
                table_replace(other, 0);
            }
            interest_forget(fd);
            table_replace(fd, 0);
        }
        table_unlock();
        if (changes && reason != REASON_NONE) engine_stayed_plain(reason);
    }
    if (word_kind(word) == KIND_STREAM) ENGINE(engine.plain(table_handle(fd), reason));
}

void table_note(int fd, uint64_t bits)
{
    uint64_t word = table_word(fd);
    motet_stream handle = table_handle(fd);
    for (int other = 0; other <= atomic_load(&shim_top); other++)
        if (other == fd || ((word & WORD_COPIED) && means_same(other, word, handle))) atomic_fetch_or(&shim_words[other], bits);
}


bool table_has_streams(void)
{
    if (!engine_is_open()) return false;
    for (int fd = 0; fd <= atomic_load(&shim_top); fd++)
        if (word_kind(atomic_load(&shim_words[fd])) == KIND_STREAM) return true;
    return false;
}

/* ---------------------------------------------------------------- blocking or not */

void table_note_flags(int fd, bool nonblock)
{
    uint64_t word = table_word(fd);
    while (word_kind(word) >= KIND_CANDIDATE) {
        uint64_t next = (word & ~WORD_NONBLOCK) | WORD_NONBLOCK_KNOWN | (nonblock ? WORD_NONBLOCK : 0);
        if (atomic_compare_exchange_weak(&shim_words[fd], &word, next)) return;
    }
}

/* The flag belongs to the open file: where a duplicate or another process has changed it, the kernel is asked. */
bool table_blocks(int fd, uint64_t word)
{
    if (LIKELY((word & WORD_NONBLOCK_KNOWN) && (!(word & WORD_SHARED) || family_flags_hold()))) return !(word & WORD_NONBLOCK);
    int kept = errno;
    int flags = REAL(fcntl)(fd, F_GETFL);
    errno = kept;
    if (flags < 0) return false;
    table_note_flags(fd, flags & O_NONBLOCK);
    return !(flags & O_NONBLOCK);
}

/* ---------------------------------------------------------------- private numbers */

/* As crates/motet-sys/src/fds.rs has it. */
#define PRIVATE_FROM 1024

static int private_from(void)
{
    struct rlimit limit;
    rlim_t soft = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : PRIVATE_FROM;
    rlim_t most = soft - soft / 4;
    return (int)(most < PRIVATE_FROM ? most : PRIVATE_FROM);
}

/* The kernel keeps descriptors in a table that grows with their numbers. Once there are threads it waits for all CPUs whenever the
 * table grows (10 ms measured), before that it takes 10 us. */
void shim_make_room(void)
{
    int kept = errno, high = -1;
    for (int fd = 0; fd < 3 && high < 0; fd++) high = REAL(fcntl)(fd, F_DUPFD_CLOEXEC, private_from());
    if (high >= 0) REAL(close)(high);
    errno = kept;
}

/* Takes ownership of fd and returns it at a number that programs do not reach, or -1 with fd closed. */
int shim_private_number(int fd)
{
    int high = REAL(fcntl)(fd, F_DUPFD_CLOEXEC, private_from());
    REAL(close)(fd);
    if (high >= SHIM_SLOTS) {
        REAL(close)(high);
        return -1;
    }
    if (high >= 0) table_replace(high, KIND_PRIVATE);
    return high;
}
