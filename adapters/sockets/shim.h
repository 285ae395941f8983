/* shim.h: the map of the sockets voice.
 *
 * What it is:   the declarations shared by the files of libmotet_sockets.so, the preload object that lets an unmodified
 *               program's TCP connections use Motet's engine. Read the files in this order:
 *                 environment.c the settings, as the process was started with them
 *                 beginning.c  the root and the user that the process began with
 *                 table.c      what each descriptor is to us: one word per descriptor
 *                 candidate.c  from a TCP socket that was only counted to a stream of the engine
 *                 engine.c     opening libmotet.so.0, once, at the first eligible socket
 *                 send.c, receive.c, splice.c   payload; stdio.c, aio.c, raw.c: payload that comes another way
 *                 poll.c, epoll.c, interest.c   waiting
 *                 confined.c   under a seccomp filter
 *                 descriptors.c, life.c close, dup, fcntl; fork, confinement, exit
 *                 opens.c      numbers that were closed unseen
 *                 exec.c, hand_on.c exec and spawn; connections that reach other programs
 *                 symbols.c    one question of libfabric's about the kernel
 *                 signals.c    handlers of the program's
 *                 room.c       memory that no stack has to have
 *                 real.c       the C library's own functions
 * What it isn't: a protocol. Rings, gates and peers are the engine's (include/motet.h); nothing here knows of them.
 *
 * Rules for every file
 *   - Linked only to libc. No allocation, lock or stdio on a path that a signal handler may enter.
 *   - A descriptor that the table does not know costs one load and one branch, then the C library's own function.
 *   - errno is what the C library would have left: unchanged by success.
 *   - Nothing is ever written to the program's stdout or stderr.
 */
#ifndef MOTET_SHIM_H
#define MOTET_SHIM_H

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

#include "motet.h"

#define SHIM_API __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ---------------------------------------------------------------- constants: all of them are here */

#define SHIM_KILL_FILE "/etc/motet/disable" /* while it exists, processes that begin stay plain */
#define SHIM_ENVIRONMENT 16384     /* bytes of settings that are kept from the start of the process */
#define SHIM_STACK 4096            /* bytes of stack that one call may take here and in the engine: `make lint` looks at each function */
#define SHIM_ROOM (128 << 10)      /* what does not go on the stack: room.c */
#define SHIM_PIECES 64             /* buffers of a call that goes on in steps, at a time */
#define SHIM_SLOTS 65536           /* descriptors from here on are never tracked */
#define SHIM_MESSAGES_BEFORE 4     /* a connected socket is taken under the engine at this send, an accepted one after this receive, */
#define SHIM_MESSAGES_MOST 64      /* or later, up to this, where the last ones did not live long enough to gain by it */
#define SHIM_ANSWERS 3             /* messages the other way that count as one */
#define SHIM_WORTH 1024            /* bytes over the wire that are worth bringing it up */
#define SHIM_PROBE_EVERY 8         /* of so many answers in a row one is the kernel's, too, where most may come from rings alone */
#define SHIM_PROBE_US 50           /* nor do those go on for longer than this */
#define SHIM_WAIT_MAX 1024         /* tracked descriptors in one poll or select; more go plain */
#define SHIM_EPOLLS 1024           /* epoll descriptors that may hold streams */
#define SHIM_INTERESTS 65536       /* (epoll, descriptor) pairs remembered */

/* Flags of preadv2 and pwritev2 that a socket takes: RWF_NOWAIT is obeyed, the others mean nothing to it. */
#define SHIM_RWF_IGNORED (RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT)

/* Reasons handed to motet_plain(): codes of motet_reason(). */
enum shim_reason {
    REASON_NONE = 0,
    REASON_STDIO = 16,
    REASON_EXEC = 17,
    REASON_PASSED = 18,      /* descriptor passing by SCM_RIGHTS */
    REASON_UNSEEN_WAIT = 19, /* readiness is learned where it cannot be mirrored: O_ASYNC, foreign epoll, SO_RCVLOWAT ... */
    REASON_NESTED_EPOLL = 20,
    REASON_CONFINED = 24,    /* seccomp */
    REASON_TOO_HIGH = 27,    /* a descriptor from SHIM_SLOTS on */
    REASON_URGENT = 28,      /* MSG_OOB */
    REASON_KERNEL_TELLS = 34, /* time stamps, SO_PEEK_OFF, TCP_INQ, AIO ... */
};

/* ---------------------------------------------------------------- settings (environment.c) */

const char *environment_get(const char *name);  /* as getenv(), of the environment that the process was started with */
const char *environment_all(size_t *size);      /* what of it concerns Motet, for motet_environment() */

/* ---------------------------------------------------------------- the table (table.c) */

enum kind {
    KIND_NONE = 0,      /* unknown or plain for good */
    KIND_FRESH = 1,     /* a TCP socket that has not been connected yet */
    KIND_EPOLL = 2,
    KIND_PRIVATE = 3,   /* ours: the program must see it as not open. From here on a data call takes the slow path. */
    KIND_CANDIDATE = 4, /* a connected TCP socket that is only counted */
    KIND_UPGRADING = 5, /* for some microseconds, under the table lock */
    KIND_STREAM = 6,
    KIND_REST = 7,      /* in a confined process: a stream whose ring, closed for good, holds bytes still. As a rule there is none. */
    KIND_CLOSED = 8,    /* closed by a handler that interrupted the engine: plain, and to be tidied at the next use of the number */
};

#define WORD_KIND 0xfull
#define WORD_NONBLOCK 0x10ull
#define WORD_NONBLOCK_KNOWN 0x20ull
#define WORD_SHARED 0x40ull   /* other descriptors, perhaps of another process, mean the same socket */
#define WORD_ACCEPTED 0x80ull /* role of a candidate */
#define WORD_SENDS_SHIFT 8
#define WORD_RECEIVES_SHIFT 16
#define WORD_COUNT_MASK 0xffull
#define WORD_ELSEWHERE 0x1000000ull /* another process may have the socket: fork, exec, SCM_RIGHTS */
#define WORD_HANDED_ON 0x2000000ull /* a stream that is plain for good, and whose rings are empty: hand_on.c */
#define WORD_COPIED 0x4000000ull    /* another descriptor of this process means the same: dup */
#define WORD_STREAM 0x8000000ull /* of a KIND_CLOSED: it was a stream, not a candidate */
#define WORD_EXTRA_SHIFT 32 /* epoll: index of its record. Candidate: group of duplicates, 0 none */

extern _Atomic uint64_t shim_words[SHIM_SLOTS];
extern _Atomic uint64_t shim_handles[SHIM_SLOTS];   /* motet_stream of a KIND_STREAM; a candidate's place in the family */
extern _Atomic uint32_t shim_sleepers[SHIM_SLOTS];  /* threads in a kernel call on a candidate */
extern _Atomic int shim_top;                        /* no tracked descriptor is above; -1: there never was one */

/* The one word of thread-local storage: how deep this thread is in the engine or in a short lock of ours.
 * A call that finds it non-zero comes from the engine itself or from a signal handler that interrupted it. */
extern __thread int shim_depth __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* A clock that costs a few ns, for bounds that need not be exact. */
static inline uint64_t shim_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t now;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now;
#endif
}

/* SHIM_PROBE_US at 2 GHz on x86-64, whose clocks tick at 1 to 5. */
static inline uint64_t shim_ticks_of_probe(void)
{
#if defined(__x86_64__)
    return SHIM_PROBE_US * 2000ull;
#elif defined(__aarch64__)
    uint64_t hertz;
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hertz));
    return hertz / (1000000 / SHIM_PROBE_US);
#endif
}

static inline void shim_enter(void)
{
    shim_depth++;
    atomic_signal_fence(memory_order_seq_cst);
}

static inline void shim_exit(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    shim_depth--;
    atomic_signal_fence(memory_order_seq_cst);
}

/* ---------------------------------------------------------------- handlers (signals.c) */

extern __thread volatile int shim_pending __attribute__((tls_model("initial-exec"), visibility("hidden"))); /* handlers that wait */
extern __thread int shim_level __attribute__((tls_model("initial-exec"), visibility("hidden")));            /* handlers that run */
void signals_deliver(void);
void signals_of_engine(void *library); /* tells a new engine how to ask */

static inline bool signals_in_handler(void) { return UNLIKELY(shim_level > 0); }

/* Lets handlers run that came while the thread was in the engine. */
static inline void signals_due(void)
{
    if (UNLIKELY(shim_pending) && shim_depth == 0) signals_deliver();
}

/* What is open in the engine while a kernel call is under way; end(of) closes it when a handler leaves the call by a jump. `of` lies in
 * the frame that opened it. */
#define SHIM_LEVELS 8
struct shim_open {
    void (*end)(void *);
    void *of;
};
extern __thread struct shim_open shim_opened[SHIM_LEVELS] __attribute__((tls_model("initial-exec"), visibility("hidden")));
extern __thread int shim_opened_count __attribute__((tls_model("initial-exec"), visibility("hidden")));

static inline int signals_open(void (*end)(void *), void *of)
{
    int at = shim_opened_count;
    if (LIKELY(at < SHIM_LEVELS)) {
        shim_opened[at].end = end;
        shim_opened[at].of = of;
        atomic_signal_fence(memory_order_seq_cst);
        shim_opened_count = at + 1;
        atomic_signal_fence(memory_order_seq_cst);
    }
    signals_due();
    return at;
}

static inline void signals_close(const int *at)
{
    if (LIKELY(shim_opened_count > *at)) shim_opened_count = *at;
}

/* A kernel call, or several, in the middle of an engine operation: end(of) when the thread is cancelled, or a handler jumps away. */
#define OPEN_WHILE(end, of, calls)                                                                                      \
    do {                                                                                                                \
        pthread_cleanup_push(end, of);                                                                                  \
        {                                                                                                               \
            int open_ __attribute__((cleanup(signals_close), unused)) = signals_open(end, of);                          \
            calls;                                                                                                      \
        }                                                                                                               \
        pthread_cleanup_pop(0);                                                                                         \
    } while (0)

static inline enum kind word_kind(uint64_t word) { return (enum kind)(word & WORD_KIND); }
static inline uint32_t word_extra(uint64_t word) { return (uint32_t)(word >> WORD_EXTRA_SHIFT); }

static inline uint64_t table_word(int fd)
{
    return LIKELY((unsigned)fd < SHIM_SLOTS) ? atomic_load_explicit(&shim_words[fd], memory_order_acquire) : 0;
}

static inline motet_stream table_handle(int fd) { return atomic_load_explicit(&shim_handles[fd], memory_order_acquire); }

/* True when a data call on this descriptor is the C library's alone. */
static inline bool word_is_plain(uint64_t word) { return LIKELY((word & WORD_KIND) < KIND_PRIVATE); }

void table_lock(void); /* the thread counts as in the engine meanwhile, so a handler never finds the lock taken */
void table_unlock(void);
void table_lock_for_fork(void);
void table_unlock_after_fork(bool child);
void table_set(int fd, uint64_t word); /* forgets whatever was known of fd before, the engine's stream included */
uint64_t table_new_group(void);
void table_replace(int fd, uint64_t word); /* under the lock: same socket, other state */
void table_disconnect(int fd);             /* the socket stays, its connection ends: connect() to nobody */
void table_reset_at_close(int fd); /* unread bytes are lost with this descriptor: the peer learns it as it would of TCP's */
void table_closed_by_handler(int fd); /* may be called whatever this thread is doing */
void table_make_plain(int fd, uint32_t reason); /* candidate: plain for good; stream: gate for good */
void table_note(int fd, uint64_t bits);    /* of a stream, under all of its numbers */
bool table_has_streams(void);
bool table_in_own_process(void);       /* false in a vfork child, where only the system call may be made */
void table_note_process(void);
void table_note_beginning(void);       /* the same in a constructor, without a system call */
bool table_is_empty(void);             /* nothing was ever tracked, and the engine has no descriptor */
bool table_blocks(int fd, uint64_t word); /* O_NONBLOCK is clear */
void table_note_flags(int fd, bool nonblock);

/* ---------------------------------------------------------------- numbers that were closed unseen (opens.c) */

int opens_number(int fd);      /* fd has just been made, or is -1 */
FILE *opens_file(FILE *file);  /* the same for what is in it, or NULL */

/* ---------------------------------------------------------------- forked relatives (family.c) */

void family_before_fork(void);                   /* under the table's lock */
bool family_has_alone(int fd, uint64_t word);    /* no other process has this candidate */
void family_close(uint64_t place);               /* under the lock: of a candidate whose last descriptor goes */
void family_exit(void);
void family_before_exec(void);                   /* descriptors that close by themselves then */
void family_exec_failed(void);
void family_flags_changed(void);                 /* O_NONBLOCK of a tracked descriptor */
bool family_flags_hold(void);                    /* nobody has changed it since the table was told; false: the table asks anew */

/* ---------------------------------------------------------------- descriptors that reach other programs (hand_on.c) */

#define SHIM_STDIO_TOP 2 /* descriptors up to this one are stdio's, which reads and writes them unseen */

void hand_on(int fd, enum shim_reason reason);   /* both ends of the connection stay on TCP from now on */
void hand_on_before_exec(void);
void hand_on_exec_failed(void);
void hand_on_before_spawn(bool with_actions);
void hand_on_after_spawn(bool with_actions);

/* ---------------------------------------------------------------- candidates (candidate.c) */

enum direction { SENDING, RECEIVING };
void candidate_new(int fd, bool accepted, int nonblock /* -1 unknown */);
uint64_t candidate_touch(int fd, enum direction direction); /* counts, upgrades when due; returns the word as it is now */
void candidate_count(int fd, enum direction direction);
void candidate_ended(motet_stream s); /* what was a candidate is about to be closed: was the hand-over worth it? */
bool candidate_sleep_begin(int fd); /* a kernel call begins; false: no longer a candidate, look again */
void candidate_sleep_end(int fd);

/* ---------------------------------------------------------------- the engine (engine.c) */

#define ENGINE_LIST(X)                                                                                                  \
    X(version) X(upgrade) X(close) X(shutdown) X(info) X(send_begin) X(send_end) X(recv_begin) X(recv_end)              \
    X(recv_wait_end) X(rx_ready) X(rx_position) X(rx_bytes) X(nodelay) X(plain) X(stayed_plain) X(wait_begin) X(wait_begin_set) X(wait_step) \
    X(wait_slept) X(wait_end) X(set_new) X(set_free) X(set_put) X(set_remove) X(set_ready) X(set_doze) X(set_asleep)       \
    X(set_slept) X(rest) X(rest_came) X(fork_prepare) X(fork_parent) X(fork_child) X(hand_on) X(before_exec) X(leave) X(owns_fd) X(next_fd)

struct engine {
#define X(name) __typeof__(&motet_##name) name;
    ENGINE_LIST(X)
#undef X
};
extern struct engine engine;

bool engine_open(void);   /* opens it unless that was tried; false: everything stays plain */
bool engine_is_open(void);
bool engine_failed(void);
bool engine_disabled(void);
bool engine_known_disabled(void); /* the same, false as long as nobody has asked */
void engine_disable(void);  /* no socket is taken from now on */
void engine_confine(void);  /* from now on no system call that the program does not make, and no socket taken */
bool engine_confined(void);
bool engine_owns(int fd);
void engine_stayed_plain(enum shim_reason reason); /* counts a connection that never becomes a stream, once the engine is open */
void engine_report(motet_stream s, int fd); /* one line into MOTET_SHIM_REPORT, when that is set */

/* The part of iov after the first `skip` bytes, as much of it as SHIM_PIECES buffers are, into rest; returns how many. */
static inline int iov_after(const struct iovec *iov, int count, size_t skip, struct iovec *rest)
{
    int kept = 0;
    for (int i = 0; i < count && kept < SHIM_PIECES; i++) {
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

/* Of these buffers the first `limit` bytes; how many they are, at most that. */
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

/* Calls the engine with the depth word raised and errno kept; a handler that has come meanwhile runs when it is lowered, or, by
 * ENGINE_HELD, when the caller says so: by signals_due() or signals_open(). */
#define ENGINE_DO(call) do { int kept_ = errno; shim_enter(); call; shim_exit(); signals_due(); errno = kept_; } while (0)
#define ENGINE(call) ({ int kept_ = errno; shim_enter(); __typeof__(call) result_ = (call); shim_exit(); signals_due(); errno = kept_; result_; })
#define ENGINE_HELD(call) ({ int kept_ = errno; shim_enter(); __typeof__(call) result_ = (call); shim_exit(); errno = kept_; result_; })

/* ---------------------------------------------------------------- epoll (interest.c, epoll.c) */

struct epoll_record;
void interest_upgraded(int fd, motet_stream s);  /* under the lock: enters the stream into the sets that hold fd */
/* Under the lock: whether fd may become a stream; leaves marks. */
enum upgradable { UPGRADABLE, UPGRADABLE_LATER /* the parent's epoll */, UPGRADABLE_NEVER /* nesting */ };
enum upgradable interest_may_upgrade(int fd);
void interest_undo(int fd);
bool interest_forget(int fd);                    /* under the lock: fd is being closed; true: it was registered */
void interest_epoll_closed(uint32_t index);      /* under the lock */
uint32_t interest_epoll_new(int epfd);           /* 0: no record left */
void interest_epoll_nested(int epfd);            /* epfd is being waited on by something that is not epoll_wait */
void interest_before_fork(void);
void interest_after_fork(bool child);

int send_wait(int fd); /* until the kernel takes more; 0, or -1 with errno (send.c) */

void interest_confined(int fd);                  /* under the lock: a stream in no set of the engine's any more, its registrations are kept */
bool interest_epoll_confined(uint32_t index);    /* nothing of ours is left in this epoll descriptor */

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
    int room, timeout;
    const struct timespec *time;
    const sigset_t *mask;
};
bool confined_prctl(long option, unsigned long argument); /* such a call is about to confine the process */
bool confined_seccomp(long operation, const void *arguments);
void confined_begin(void);      /* before it */
bool confined_has_rest(void);
ssize_t confined_take(int fd, const struct iovec *iov, int count, int flags, uint64_t *limit);
void confined_came(int fd, ssize_t received, int flags);
bool confined_ready(int fd);
size_t confined_bytes(int fd);
int confined_poll(struct pollfd *fds, nfds_t count, const struct confined_poll_call *call);
int confined_select(int count, fd_set *const sets[3], const struct confined_select_call *call);
int confined_epoll(const struct confined_epoll_call *call);

/* ---------------------------------------------------------------- memory beside the stack (room.c) */

void *room_take(void);
void room_give_back(void *room);
void room_call(void (*work)(void *), void *with); /* with a stack of its own. No handler may run meanwhile: shim_depth > 0, or signals blocked */

/* ---------------------------------------------------------------- life */

void life_before_fork(void);
void life_after_fork(bool child);

void life_leave(void);
int shim_private_number(int fd); /* moves a descriptor of ours above the program's range */
void shim_make_room(void);       /* for that range, while it costs nothing */

/* ---------------------------------------------------------------- the C library's own functions (real.c) */

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

/* System calls of this object's own do not go by way of raw.c. */
#define syscall(...) REAL(syscall)(__VA_ARGS__)

/* The C library's answer for a buffer that a fortified caller declared too short. Never returns. */
void __chk_fail(void) __attribute__((noreturn));

#endif
