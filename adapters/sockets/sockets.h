/* sockets.h: declarations shared by the files of the sockets adapter, libmotet_sockets.so.
 *
 * What it is:   the preload object that moves the payload of an unmodified program's TCP connections to Motet's engine. Files in
 *               reading order:
 *                 environment.c            settings, as the process was started with them
 *                 trusted_path.c           whether a library may be loaded by its path
 *                 fd_table.c               state of each descriptor: one word per descriptor
 *                 fork_shared.c            counts that the processes of a fork group share
 *                 candidate.c              upgrade of a connected TCP socket to a stream
 *                 engine.c                 loads libmotet.so.0 at the first eligible socket
 *                 send.c, receive.c        payload
 *                 splice.c, stdio.c, aio.c, syscall.c   payload through other calls
 *                 poll.c, epoll.c, epoll_interest.c, epoll_nesting.c   waiting
 *                 go_runtime.c             processes whose calls pass this object by
 *                 descriptors.c            socket, connect, close, dup, fcntl and the like
 *                 fd_reuse.c               descriptor numbers that were closed without a call to this object
 *                 process_lifecycle.c      fork, threads, descriptor tables, exit
 *                 confined.c               processes that Motet leaves: seccomp filters, descriptor tables of threads
 *                 exec.c, exec_handover.c  exec and spawn; descriptors that reach other programs
 *                 signals.c                signal handlers of the program
 *                 scratch.c                memory for what does not fit on a small stack
 *                 kallsyms.c               libfabric's lookup of two kernel symbols
 *                 libc_symbols.c, unwind.c functions of libc and libgcc_s
 * What it isn't: a protocol. Rings, gates and peers belong to the engine (include/motet_adapter.h).
 *
 * Rules for every file
 *   - Linked to libc only. No allocation, lock or stdio on a path that a signal handler may enter.
 *   - A call on an untracked descriptor costs one load and one branch, then runs libc's function.
 *   - errno: after success it has its value from before the call; after a failure it has the value that libc would set.
 *   - Nothing is written to the program's stdout or stderr.
 *
 * Signal safety, fork safety: each file's header states them for all its functions. A function that differs says so in its comment.
 * Two conditions recur. reentrancy_depth > 0: a signal handler interrupted this object or the engine, or the engine itself calls; only
 * libc's function runs then. table_in_own_process() is false: a vfork child runs in its parent's memory; tables must not change then.
 */
#ifndef MOTET_SOCKETS_H
#define MOTET_SOCKETS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "motet_adapter.h"

#define SHIM_API __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ---------------------------------------------------------------- constants */

#define SHIM_KILL_FILE "/etc/motet/disable" /* while it exists, new processes stay on TCP */
#define SHIM_ENVIRONMENT_BYTES 16384        /* settings kept from the start of the process */
#define SHIM_STACK_BYTES 4096               /* stack of one function at most: scripts/test checks each */
#define SHIM_SCRATCH_BYTES (128 << 10)      /* one piece of scratch.c */
#define SHIM_LOOKS_MAX 16                   /* how often a wait whose time is over looks again for data that were there and moved */
#define SHIM_DISCARD_BUFFERS 64             /* times the memory for discarded bytes is used by one call */
#define SHIM_STEP_BUFFERS 64                /* iovec entries of one step of a call that proceeds in steps */
#define SHIM_TRACKED_FDS 65536              /* descriptors from this number on are not tracked */
#define SHIM_UPGRADE_MESSAGES_MIN 4         /* lowest upgrade threshold: sends of a connected socket, receives of an accepted one */
#define SHIM_UPGRADE_MESSAGES_MAX 64        /* the threshold does not double from this value on: candidate_stream_closing() */
#define SHIM_REVERSE_MESSAGES 3             /* messages in the other direction that count as one */
#define SHIM_UPGRADE_WORTH_BYTES 1024       /* bytes through shared memory from which an upgrade counts as worthwhile */
#define SHIM_KERNEL_PROBE_EVERY 8           /* one of this many consecutive answers includes the kernel's */
#define SHIM_KERNEL_PROBE_US 50             /* longest time between two answers that include the kernel's, microseconds */
#define SHIM_WAIT_FDS_MAX 1024              /* tracked descriptors in one poll or select; further ones fall back to TCP */
#define SHIM_EPOLLS_MAX 1024                /* epoll descriptors that may hold streams */
#define SHIM_INTERESTS_MAX 65536            /* (epoll, descriptor) pairs */

/* Flags of preadv2 and pwritev2 that a socket accepts: RWF_NOWAIT has an effect, the others have none. */
#define SHIM_RWF_IGNORED (RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT)

/* Why a connection stays on TCP: codes of motet_reason(). */
enum tcp_reason {
    REASON_NONE = 0,
    REASON_OTHER_HOST = 2,
    REASON_STDIO = 16,
    REASON_EXEC = 17,
    REASON_PASSED = 18,          /* descriptor passing by SCM_RIGHTS */
    REASON_UNSEEN_WAIT = 19,     /* readiness is observed where the adapter cannot add to it: O_ASYNC, foreign epoll, SO_RCVLOWAT ... */
    REASON_NESTED_EPOLL = 20,
    REASON_PEER_GONE = 21,
    REASON_CONFINED = 24,        /* seccomp */
    REASON_TOO_HIGH = 27,        /* a descriptor from SHIM_TRACKED_FDS on */
    REASON_URGENT = 28,          /* MSG_OOB */
    REASON_KERNEL_METADATA = 34, /* what only the kernel's queue provides: time stamps, SO_PEEK_OFF, TCP_INQ, AIO ... */
    REASON_TWO_ADDRESSES = 49,   /* both ends are in this network namespace, at different addresses */
    REASON_GO = 52,              /* go_runtime.c */
    REASON_OWN_DESCRIPTORS = 53, /* a thread has a descriptor table of its own */
};

/* ---------------------------------------------------------------- settings (environment.c) */

const char *environment_get(const char *name); /* like getenv(), of the environment at the start of the process */
const char *environment_all(size_t *size);     /* its variables that concern Motet, for motet_environment() */

/* ---------------------------------------------------------------- descriptor table (fd_table.c) */

enum kind {
    KIND_NONE = 0,              /* not tracked, or on TCP for good */
    KIND_UNCONNECTED = 1,       /* a TCP socket before connect() */
    KIND_EPOLL = 2,
    KIND_PRIVATE = 3,           /* of this object: calls of the program fail with EBADF. From this value on data calls take the slow path. */
    KIND_CANDIDATE = 4,         /* a connected TCP socket whose messages are counted */
    KIND_UPGRADING = 5,         /* an upgrade is in progress, under the table lock */
    KIND_STREAM = 6,
    KIND_RING_REST = 7,         /* in a confined process: a stream whose gate is closed for good and whose ring still holds bytes */
    KIND_CLOSED_IN_HANDLER = 8, /* closed by a signal handler that interrupted the engine: on TCP, released at the next use of the number */
};

#define WORD_KIND 0xfull
#define WORD_NONBLOCK 0x10ull
#define WORD_NONBLOCK_KNOWN 0x20ull
#define WORD_SHARED 0x40ull             /* other descriptors, of this or another process, refer to the same socket */
#define WORD_ACCEPTED 0x80ull           /* role of a candidate */
#define WORD_SENDS_SHIFT 8
#define WORD_RECEIVES_SHIFT 16
#define WORD_COUNT_MASK 0xffull
#define WORD_OTHER_PROCESS 0x1000000ull /* another process may have the socket: fork, exec, SCM_RIGHTS */
#define WORD_HANDED_OVER 0x2000000ull   /* a stream on TCP for good with empty rings: exec_handover.c */
#define WORD_DUPLICATED 0x4000000ull    /* another descriptor of this process refers to the same socket: dup */
#define WORD_WAS_STREAM 0x8000000ull    /* of KIND_CLOSED_IN_HANDLER: it was a stream, not a candidate */
#define WORD_EXTRA_SHIFT 32             /* epoll: index of its record. Candidate: group of duplicates, 0: none */

extern _Atomic uint64_t fd_words[SHIM_TRACKED_FDS];
extern _Atomic uint64_t fd_handles[SHIM_TRACKED_FDS];  /* a stream's motet_stream; a candidate's place in fork_shared.c */
extern _Atomic uint32_t fd_sleepers[SHIM_TRACKED_FDS]; /* threads in a kernel call on a candidate */
extern _Atomic int fd_top;                             /* highest number that was ever tracked; -1: none */

/* How deep this thread is in the engine or in a short lock of this object. A call that finds it non-zero was made by the engine itself
 * or by a signal handler that interrupted it. */
extern __thread int reentrancy_depth __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* A clock that costs a few ns to read, for bounds that need not be exact. Unit: that of clock_ticks_of_probe(). */
static inline uint64_t clock_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t now;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now;
#endif
}

/* SHIM_KERNEL_PROBE_US in ticks. On x86-64 a clock of 2 GHz is assumed; real ones tick at 1 to 5 GHz. */
static inline uint64_t clock_ticks_of_probe(void)
{
#if defined(__x86_64__)
    return SHIM_KERNEL_PROBE_US * 2000ull;
#elif defined(__aarch64__)
    uint64_t hertz;
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hertz));
    return hertz / (1000000 / SHIM_KERNEL_PROBE_US);
#endif
}

static inline void reentrancy_enter(void)
{
    reentrancy_depth++;
    atomic_signal_fence(memory_order_seq_cst);
}

static inline void reentrancy_exit(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    reentrancy_depth--;
    atomic_signal_fence(memory_order_seq_cst);
}

/* ---------------------------------------------------------------- signal handlers (signals.c) */

extern __thread volatile int signals_pending __attribute__((tls_model("initial-exec"), visibility("hidden")));  /* deferred signals exist */
extern __thread int signals_handler_depth __attribute__((tls_model("initial-exec"), visibility("hidden"))); /* handlers that run */
extern __thread unsigned signals_handled __attribute__((tls_model("initial-exec"), visibility("hidden")));  /* handlers that have begun */
void signals_deliver(void);                  /* async-signal-safe, keeps errno */

/* As ppoll() of one descriptor. -1 also if a handler has begun since signals_handled was `handled`: no signal comes between that and the sleep. */
int signals_poll(struct pollfd *descriptor, const struct timespec *limit, unsigned handled);
void signals_attach_engine(void *library);   /* registers the callbacks of motet_signal_hooks() */

static inline bool signals_in_handler(void) { return UNLIKELY(signals_handler_depth > 0); }

/* Runs the handlers whose signals arrived while the thread was in the engine. Keeps errno. */
static inline void signals_deliver_pending(void)
{
    if (UNLIKELY(signals_pending) && reentrancy_depth == 0) signals_deliver();
}

/* Engine operations that stay open during a kernel call. end(of) closes one when a signal handler leaves the call by a jump. `of` points
 * into the stack frame that opened it. */
#define SHIM_HANDLER_DEPTH_MAX 8
struct signals_cleanup {
    void (*end)(void *);
    void *of;
};
extern __thread struct signals_cleanup signals_cleanups[SHIM_HANDLER_DEPTH_MAX] __attribute__((tls_model("initial-exec"), visibility("hidden")));
extern __thread int signals_cleanup_count __attribute__((tls_model("initial-exec"), visibility("hidden")));

static inline int signals_push_cleanup(void (*end)(void *), void *of)
{
    int at = signals_cleanup_count;
    if (LIKELY(at < SHIM_HANDLER_DEPTH_MAX)) {
        signals_cleanups[at].end = end;
        signals_cleanups[at].of = of;
        atomic_signal_fence(memory_order_seq_cst);
        signals_cleanup_count = at + 1;
        atomic_signal_fence(memory_order_seq_cst);
    }
    signals_deliver_pending();
    return at;
}

static inline void signals_pop_cleanup(const int *at)
{
    if (LIKELY(signals_cleanup_count > *at)) signals_cleanup_count = *at;
}

/* Makes kernel calls within an engine operation. end(of) runs when the thread is cancelled or a signal handler leaves by a jump. */
#define WITH_CLEANUP(end, of, calls)                                                                                    \
    do {                                                                                                                \
        pthread_cleanup_push(end, of);                                                                                  \
        {                                                                                                               \
            int open_ __attribute__((cleanup(signals_pop_cleanup), unused)) = signals_push_cleanup(end, of);            \
            calls;                                                                                                      \
        }                                                                                                               \
        pthread_cleanup_pop(0);                                                                                         \
    } while (0)

/* ---------------------------------------------------------------- words of the descriptor table */

static inline enum kind word_kind(uint64_t word) { return (enum kind)(word & WORD_KIND); }
static inline uint32_t word_extra(uint64_t word) { return (uint32_t)(word >> WORD_EXTRA_SHIFT); }

static inline uint64_t table_word(int fd)
{
    return LIKELY((unsigned)fd < SHIM_TRACKED_FDS) ? atomic_load_explicit(&fd_words[fd], memory_order_acquire) : 0;
}

static inline motet_stream table_handle(int fd) { return atomic_load_explicit(&fd_handles[fd], memory_order_acquire); }

/* True when a data call on this descriptor goes straight to libc's function. */
static inline bool word_passes_through(uint64_t word) { return LIKELY((word & WORD_KIND) < KIND_PRIVATE); }

void table_lock(void);   /* raises reentrancy_depth, so no signal handler of the program runs while the lock is held */
void table_unlock(void); /* runs the handlers that were deferred; keeps errno */
void table_lock_for_fork(void);
void table_unlock_after_fork(bool child);
void table_set(int fd, uint64_t word);     /* releases what the number referred to before, the engine's stream included. May change errno */
void table_replace(int fd, uint64_t word); /* same socket, other state. Under the lock, unless no other thread knows of fd */
uint64_t table_new_group(void);
void table_disconnect(int fd);                 /* connect(AF_UNSPEC): the socket stays, its connection ends */
void table_reset_at_close(int fd);             /* close() will reset the connection, as TCP does when unread bytes are lost */
void table_close_in_handler(int fd);           /* async-signal-safe at any reentrancy_depth, keeps errno */
void table_force_tcp(int fd, uint32_t reason); /* a candidate is not tracked any more; a stream's gate closes for good */
void table_set_bits(int fd, uint64_t bits);    /* in the words of all descriptors of the stream */
bool table_in_own_process(void);         /* false in a vfork child, which may make the system call only */
void table_record_process(void);
void table_record_initial_process(void);       /* for a constructor: makes no system call */
bool table_is_empty(void);                     /* no descriptor was ever tracked and the engine is not open */
bool table_is_blocking(int fd, uint64_t word); /* O_NONBLOCK is clear. Keeps errno */
void table_record_nonblock(int fd, bool nonblock);
int fd_move_private(int fd);         /* moves a descriptor of this object above the program's numbers */
void fd_reserve_private_range(void); /* makes the kernel's table large enough for those numbers while that is cheap. Keeps errno */

/* ---------------------------------------------------------------- reused descriptor numbers (fd_reuse.c) */

int fd_reuse_check(int fd);            /* `fd` was just created, or is -1; returns it. Keeps errno */
FILE *fd_reuse_check_file(FILE *file); /* checks the descriptor of `file`, which may be NULL; returns `file`. Keeps errno */

/* ---------------------------------------------------------------- fork groups (fork_shared.c) */

void fork_shared_before_fork(void);                    /* under the table lock */
bool fork_shared_is_sole_owner(int fd, uint64_t word); /* no other process has this candidate */
void fork_shared_release(uint64_t place);              /* under the table lock: the last descriptor of a candidate closes */
void fork_shared_exit(void);
void fork_shared_before_exec(void);         /* subtracts this process from candidates that are close-on-exec */
void fork_shared_exec_failed(void);         /* adds it again */
void fork_shared_nonblock_changed(void);    /* O_NONBLOCK of a tracked descriptor has changed */
bool fork_shared_nonblock_is_current(void); /* false: O_NONBLOCK may have changed, WORD_NONBLOCK_KNOWN has been cleared */

/* ---------------------------------------------------------------- descriptors that reach other programs (exec_handover.c) */

#define SHIM_STDIO_FD_MAX 2 /* stdio uses descriptors up to this one without calling this object */

void handover_passed(const struct msghdr *message); /* the descriptors in a message that is sent */
void handover_fd(int fd, enum tcp_reason reason); /* both ends of the connection stay on TCP from then on. Keeps errno */
void handover_before_exec(void);
void handover_exec_failed(void);
void handover_before_spawn(bool with_actions);
void handover_after_spawn(bool with_actions);

/* ---------------------------------------------------------------- io_uring (uring.c) */

extern atomic_bool uring_by_system_call;
void uring_set_up_by_system_call(void);
void uring_before_wait(int fd); /* where uring_by_system_call is set: before a wait on one descriptor, which is not in an epoll set. Keeps errno */

/* ---------------------------------------------------------------- candidates (candidate.c) */

enum direction { SENDING, RECEIVING };
void candidate_new(int fd, bool accepted, int nonblock /* -1: unknown */);
uint64_t candidate_upgrade_if_due(int fd, enum direction direction); /* returns the word after that. Keeps errno */
void candidate_count(int fd, enum direction direction);
void candidate_stream_closing(motet_stream s); /* adapts the upgrade threshold */
bool candidate_kernel_enter(int fd);           /* announces a kernel call; false: fd is not a candidate any more, read its word again */
void candidate_kernel_leave(int fd);

/* ---------------------------------------------------------------- engine (engine.c) */

#define ENGINE_LIST(X)                                                                                                  \
    X(version) X(upgrade) X(close) X(shutdown) X(info) X(send_begin) X(send_end) X(recv_begin) X(recv_end)              \
    X(recv_wait_end) X(rx_ready) X(rx_position) X(rx_bytes) X(nodelay) X(set_tcp_only) X(count_tcp_only)                \
    X(wait_begin) X(wait_begin_set) X(wait_step) X(wait_slept) X(wait_end) X(epoll_new) X(epoll_free)                   \
    X(epoll_put) X(epoll_remove) X(epoll_nest) X(epoll_unnest) X(epoll_ready) X(epoll_try_sleep) X(epoll_asleep)        \
    X(epoll_slept) X(drain)                                                                                             \
    X(drain_received) X(fork_prepare) X(fork_parent) X(fork_child) X(hand_over) X(before_exec) X(before_exit)           \
    X(owns_fd) X(next_owned_fd)

struct engine {
#define X(name) __typeof__(&motet_##name) name;
    ENGINE_LIST(X)
#undef X
};
extern struct engine engine;

bool engine_open(void);           /* loads the engine at the first call; false: connections stay on TCP */
bool engine_is_open(void);
bool engine_failed(void);
bool engine_disabled(void);
bool engine_known_disabled(void); /* like engine_disabled(), but false until the first call of that; makes no system call */
void engine_disable(void);        /* no socket is upgraded from then on */
void engine_confine(void);        /* engine_disable(), and this object makes no system calls of its own from then on */
bool engine_confined(void);
bool engine_process_has_threads(void); /* several, or the kernel does not say */
bool engine_owns(int fd);
void engine_count_tcp_only(enum tcp_reason reason); /* counts a connection that never becomes a stream, if the engine is open */
void engine_report(motet_stream s, int fd);         /* appends a line to the file MOTET_SHIM_REPORT, if that is set */

/* Stores in `rest` the buffers after the first `skip` bytes, SHIM_STEP_BUFFERS at most. Returns the number of entries. */
static inline int iov_after(const struct iovec *iov, int count, size_t skip, struct iovec *rest)
{
    int kept = 0;
    for (int i = 0; i < count && kept < SHIM_STEP_BUFFERS; i++) {
        if (skip >= iov[i].iov_len) {
            skip -= iov[i].iov_len;
            continue;
        }
        rest[kept].iov_base = (char *)iov[i].iov_base + skip;
        rest[kept++].iov_len = iov[i].iov_len - skip;
        skip = 0;
    }
    return kept;
}

/* Stores in `into`, which has SHIM_DISCARD_BUFFERS entries, as many bytes as the buffers have, all in `place`. Returns the number of entries. */
static inline int iov_discarding(const struct iovec *iov, int count, struct iovec *into, struct iovec place)
{
    size_t wanted = 0;
    for (int i = 0; i < count; i++)
        if (__builtin_add_overflow(wanted, iov[i].iov_len, &wanted)) wanted = SIZE_MAX;
    int entries = 0;
    while (entries < SHIM_DISCARD_BUFFERS && (wanted > 0 || entries == 0)) {
        into[entries] = place;
        if (into[entries].iov_len > wanted) into[entries].iov_len = wanted;
        wanted -= into[entries++].iov_len;
    }
    return entries;
}

/* Shortens the buffers to their first `limit` bytes. Returns the number of entries that are left; *length: bytes in them. */
static inline int iov_first(struct iovec *iov, int count, size_t limit, size_t *length)
{
    *length = 0;
    for (int i = 0; i < count; i++) {
        if (iov[i].iov_len >= limit - *length) {
            iov[i].iov_len = limit - *length;
            *length = limit;
            return i + 1;
        }
        *length += iov[i].iov_len;
    }
    return count;
}

/* Calls of the engine. They raise reentrancy_depth and keep errno. Deferred signal handlers run afterwards; after ENGINE_HELD they run only
 * when the caller calls signals_deliver_pending() or signals_push_cleanup(). */
#define ENGINE_DO(call)                                                                                                 \
    do {                                                                                                                \
        int kept_ = errno;                                                                                              \
        reentrancy_enter();                                                                                             \
        call;                                                                                                           \
        reentrancy_exit();                                                                                              \
        signals_deliver_pending();                                                                                      \
        errno = kept_;                                                                                                  \
    } while (0)
#define ENGINE(call)                                                                                                    \
    ({                                                                                                                  \
        int kept_ = errno;                                                                                              \
        reentrancy_enter();                                                                                             \
        __typeof__(call) result_ = (call);                                                                              \
        reentrancy_exit();                                                                                              \
        signals_deliver_pending();                                                                                      \
        errno = kept_;                                                                                                  \
        result_;                                                                                                        \
    })
#define ENGINE_HELD(call)                                                                                               \
    ({                                                                                                                  \
        int kept_ = errno;                                                                                              \
        reentrancy_enter();                                                                                             \
        __typeof__(call) result_ = (call);                                                                              \
        reentrancy_exit();                                                                                              \
        errno = kept_;                                                                                                  \
        result_;                                                                                                        \
    })

/* ---------------------------------------------------------------- epoll (epoll_interest.c, epoll.c) */

struct epoll_record;

/* Whether a descriptor may become a stream. */
enum upgradable {
    UPGRADABLE,
    UPGRADABLE_LATER, /* registered in an epoll descriptor that was inherited from the parent */
    UPGRADABLE_NEVER, /* registered in a nested epoll descriptor */
};

/* Under the table lock. An answer of interest_may_upgrade() is followed by interest_upgraded() or interest_upgrade_aborted(). */
enum upgradable interest_may_upgrade(int fd);
void interest_upgraded(int fd, motet_stream s); /* enters the stream into the engine's sets of the epoll descriptors that hold fd */
void interest_upgrade_aborted(int fd);
bool interest_forget(int fd);                   /* fd is about to close; true: it was registered */
void interest_epoll_closed(uint32_t index);
void interest_confined(int fd);               /* takes the stream out of the engine's sets and keeps its registrations */
bool interest_epoll_confined(uint32_t index); /* true: the epoll descriptor holds no registration of this object any more */

/* Without the table lock. */
uint32_t interest_epoll_new(int epfd); /* 0: no record is left */
bool interest_may_nest(int epfd, int fd); /* the epoll descriptor fd may be registered in epfd: both are this process's */
void interest_epoll_nested(int epfd);  /* something waits on epfd that is not served here */

/* Across fork, with signals blocked. */
void interest_before_fork(void);
void interest_after_fork(bool child);

int send_wait_writable(int fd); /* sleeps until the socket is writable; 0, or -1 with errno (send.c) */

bool go_runtime_present(void); /* the process has a Go runtime, whose system calls pass this object by (go_runtime.c) */

/* ---------------------------------------------------------------- confinement (confined.c) */

struct confined_poll_call {
    bool precise; /* ppoll */
    int timeout;
    const struct timespec *time;
    const sigset_t *mask;
};
struct confined_select_call {
    bool precise; /* pselect */
    struct timeval *timeout;
    const struct timespec *time;
    const sigset_t *mask;
};
struct confined_epoll_call {
    enum { EPOLL_WAIT, EPOLL_PWAIT, EPOLL_PWAIT2 } kind;
    int epfd;
    struct epoll_event *events;
    int capacity, timeout;
    const struct timespec *time;
    const sigset_t *mask;
};
bool confined_prctl(long option, unsigned long argument); /* the call is about to confine the process */
bool confined_seccomp(long operation, const void *arguments);
void confined_begin(enum tcp_reason reason); /* before such a call, or before a thread has its own descriptors. Keeps errno */
bool confined_has_rest(void); /* some ring held bytes at the confinement */
ssize_t confined_take(int fd, const struct iovec *iov, int count, int flags, uint64_t *limit);
void confined_received(int fd, ssize_t received, int flags);
bool confined_ready(int fd);
size_t confined_bytes(int fd);
int confined_poll(struct pollfd *fds, nfds_t count, const struct confined_poll_call *call);
int confined_select(int count, fd_set *const sets[3], const struct confined_select_call *call);
int confined_epoll(const struct confined_epoll_call *call);

/* ---------------------------------------------------------------- scratch memory (scratch.c) */

void *scratch_alloc(void);                           /* SHIM_SCRATCH_BYTES bytes, or NULL. Async-signal-safe */
void scratch_free(void *piece);                      /* async-signal-safe */
void scratch_call(void (*work)(void *), void *with); /* on a stack of its own. The caller keeps handlers out: reentrancy_depth > 0, or signals blocked */

/* ---------------------------------------------------------------- process (process_lifecycle.c) */

void lifecycle_before_fork(void);
void lifecycle_before_unshare(void); /* before this thread gets a descriptor table of its own */
void lifecycle_before_clone(unsigned long flags);
void lifecycle_after_fork(bool child);
void lifecycle_exit(void);

/* ---------------------------------------------------------------- libc's own functions (libc_symbols.c) */

struct mmsghdr;
struct __jmp_buf_tag;
struct posix_spawnattr;
struct termios;
struct winsize;
struct aiocb;
#include <dirent.h>
#include <spawn.h>
#include <wordexp.h>

#define REAL_LIST(X)                                                                                                    \
    X(int, close, (int))                                                                                                \
    X(ssize_t, read, (int, void *, size_t))                                                                             \
    X(ssize_t, write, (int, const void *, size_t))                                                                      \
    X(int, fcntl, (int, int, ...))                                                                                      \
    X(int, poll, (struct pollfd *, nfds_t, int))                                                                        \
    X(int, socket, (int, int, int))                                                                                     \
    X(int, pthread_create, (pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))                            \
    X(int, connect, (int, const struct sockaddr *, socklen_t))                                                          \
    X(int, accept, (int, struct sockaddr *, socklen_t *))                                                               \
    X(int, accept4, (int, struct sockaddr *, socklen_t *, int))                                                         \
    X(int, close_range, (unsigned, unsigned, int))                                                                      \
    X(int, shutdown, (int, int))                                                                                        \
    X(int, dup, (int))                                                                                                  \
    X(int, dup2, (int, int))                                                                                            \
    X(int, dup3, (int, int, int))                                                                                       \
    X(int, ioctl, (int, unsigned long, ...))                                                                            \
    X(int, setsockopt, (int, int, int, const void *, socklen_t))                                                        \
    X(int, getsockopt, (int, int, int, void *, socklen_t *))                                                            \
    X(ssize_t, readv, (int, const struct iovec *, int))                                                                 \
    X(ssize_t, writev, (int, const struct iovec *, int))                                                                \
    X(ssize_t, recv, (int, void *, size_t, int))                                                                        \
    X(ssize_t, recvfrom, (int, void *, size_t, int, struct sockaddr *, socklen_t *))                                    \
    X(ssize_t, recvmsg, (int, struct msghdr *, int))                                                                    \
    X(int, recvmmsg, (int, struct mmsghdr *, unsigned, int, struct timespec *))                                         \
    X(ssize_t, send, (int, const void *, size_t, int))                                                                  \
    X(ssize_t, sendto, (int, const void *, size_t, int, const struct sockaddr *, socklen_t))                            \
    X(ssize_t, sendmsg, (int, const struct msghdr *, int))                                                              \
    X(int, sendmmsg, (int, struct mmsghdr *, unsigned, int))                                                            \
    X(int, ppoll, (struct pollfd *, nfds_t, const struct timespec *, const sigset_t *))                                 \
    X(int, select, (int, fd_set *, fd_set *, fd_set *, struct timeval *))                                               \
    X(int, pselect, (int, fd_set *, fd_set *, fd_set *, const struct timespec *, const sigset_t *))                     \
    X(int, epoll_create, (int))                                                                                         \
    X(int, epoll_create1, (int))                                                                                        \
    X(int, epoll_ctl, (int, int, int, struct epoll_event *))                                                            \
    X(int, epoll_wait, (int, struct epoll_event *, int, int))                                                           \
    X(int, epoll_pwait, (int, struct epoll_event *, int, int, const sigset_t *))                                        \
    X(int, epoll_pwait2, (int, struct epoll_event *, int, const struct timespec *, const sigset_t *))                   \
    X(ssize_t, sendfile, (int, int, off_t *, size_t))                                                                   \
    X(ssize_t, splice, (int, off_t *, int, off_t *, size_t, unsigned))                                                  \
    X(ssize_t, preadv2, (int, const struct iovec *, int, off_t, int))                                                   \
    X(ssize_t, pwritev2, (int, const struct iovec *, int, off_t, int))                                                  \
    X(long, syscall, (long, ...))                                                                                       \
    X(int, vdprintf, (int, const char *, va_list))                                                                      \
    X(int, fclose, (FILE *))                                                                                            \
    X(FILE *, fopen, (const char *, const char *))                                                                      \
    X(FILE *, fdopen, (int, const char *))                                                                              \
    X(int, execve, (const char *, char *const[], char *const[]))                                                        \
    X(int, execvpe, (const char *, char *const[], char *const[]))                                                       \
    X(int, fexecve, (int, char *const[], char *const[]))                                                                \
    X(int, posix_spawn, (pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,          \
                         char *const[], char *const[]))                                                                 \
    X(int, posix_spawn_file_actions_adddup2, (posix_spawn_file_actions_t *, int, int))                                  \
    X(int, system, (const char *))                                                                                      \
    X(FILE *, popen, (const char *, const char *))                                                                      \
    X(int, wordexp, (const char *, wordexp_t *, int))                                                                   \
    X(int, execveat, (int, const char *, char *const[], char *const[], int))                                            \
    X(int, unshare, (int flags))                                                                                        \
    X(pid_t, _Fork, (void))                                                                                             \
    X(int, clone, (int (*)(void *), void *, int, void *, ...))                                                          \
    X(int, posix_spawnp, (pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,         \
                          char *const[], char *const[]))                                                                \
    X(int, prctl, (int, ...))                                                                                           \
    X(int, aio_read, (struct aiocb *))                                                                                  \
    X(int, aio_write, (struct aiocb *))                                                                                 \
    X(int, lio_listio, (int, struct aiocb *const *, int, struct sigevent *))                                            \
    X(int, open, (const char *, int, ...))                                                                              \
    X(int, openat, (int, const char *, int, ...))                                                                       \
    X(int, creat, (const char *, mode_t))                                                                               \
    X(int, __open_2, (const char *, int))                                                                               \
    X(int, __openat_2, (int, const char *, int))                                                                        \
    X(int, mkostemps, (char *, int, int))                                                                               \
    X(int, shm_open, (const char *, int, mode_t))                                                                       \
    X(int, memfd_create, (const char *, unsigned))                                                                      \
    X(DIR *, opendir, (const char *))                                                                                   \
    X(int, pipe, (int *))                                                                                               \
    X(int, pipe2, (int *, int))                                                                                         \
    X(int, socketpair, (int, int, int, int *))                                                                          \
    X(int, eventfd, (unsigned, int))                                                                                    \
    X(int, timerfd_create, (int, int))                                                                                  \
    X(int, signalfd, (int, const sigset_t *, int))                                                                      \
    X(int, inotify_init1, (int))                                                                                        \
    X(int, posix_openpt, (int))                                                                                         \
    X(FILE *, fopen64, (const char *, const char *))                                                                    \
    X(FILE *, tmpfile, (void))                                                                                          \
    X(FILE *, freopen, (const char *, const char *, FILE *))                                                            \
    X(int, daemon, (int, int))                                                                                          \
    X(int, login_tty, (int))                                                                                            \
    X(pid_t, forkpty, (int *, char *, const struct termios *, const struct winsize *))                                  \
    X(int, sigaction, (int, const struct sigaction *, struct sigaction *))                                              \
    X(sighandler_t, signal, (int, sighandler_t))                                                                        \
    X(sighandler_t, sigset, (int, sighandler_t))                                                                        \
    X(sighandler_t, __sysv_signal, (int, sighandler_t))                                                                 \
    X(void, siglongjmp, (struct __jmp_buf_tag *, int))                                                                  \
    X(void, longjmp, (struct __jmp_buf_tag *, int))                                                                     \
    X(void, _longjmp, (struct __jmp_buf_tag *, int))                                                                    \
    X(void, __longjmp_chk, (struct __jmp_buf_tag *, int))                                                               \
    X(void, _exit, (int))

struct real_calls {
#define X(type, name, arguments) type(*name) arguments;
    REAL_LIST(X)
#undef X
};
extern struct real_calls real_calls;
void real_resolve(void);

#define REAL(name) (LIKELY(real_calls.name != NULL) ? real_calls.name : (real_resolve(), real_calls.name))

/* System calls of this object do not go through the syscall() that syscall.c exports. */
#define syscall(...) REAL(syscall)(__VA_ARGS__)

/* libc's reaction to a buffer that a fortified caller declared too short. Does not return. */
void __chk_fail(void) __attribute__((noreturn));

#endif
