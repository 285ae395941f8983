/* syscall.c: syscall(), which programs use for system calls without a libc function.
 *
 * What it is:   calls that carry payload on a tracked descriptor, or that change which descriptors exist, are redirected to the function of
 *               the same name. All other calls go to libc's syscall() with the same arguments.
 * What it isn't: a filter. System calls that do not go through libc (inline assembly, io_uring) are not seen; docs/sockets-internals.md says what the
 *               engine does then.
 *
 * Cancellation: syscall() is not a cancellation point, so cancellation is disabled during a redirected call. Signal safety, fork safety and
 * errno: those of the function that is called. */
#include "sockets.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

static bool carries_payload(long fd) { return word_kind(table_word((int)fd)) >= KIND_CANDIDATE; }
static bool is_tracked(long fd) { return word_kind(table_word((int)fd)) != KIND_NONE; }

#define POINTER(type, at) ((type *)(uintptr_t)(at))
#define REDIRECT(number, condition, call)                                                                                   \
    case number:                                                                                                        \
        if (LIKELY(!(condition))) return false;                                                                         \
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);                                                         \
        *result = (call);                                                                                               \
        pthread_setcancelstate(state, NULL);                                                                            \
        return true

/* A fork by system call, which runs no handler of pthread_atfork(). */
static long fork_child(long number, const long a[6])
{
    bool ours = table_in_own_process();
    if (ours) lifecycle_before_fork();
    long child = REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    int kept = errno;
    if (ours) lifecycle_after_fork(child == 0);
    errno = kept;
    return child;
}

/* True when the call was redirected; its result is in *result. */
static bool redirect(long number, const long a[6], long *result)
{
    int fd = (int)a[0], state;
    switch (number) {
        REDIRECT(SYS_read, carries_payload(fd), read(fd, POINTER(void, a[1]), (size_t)a[2]));
        REDIRECT(SYS_write, carries_payload(fd), write(fd, POINTER(void, a[1]), (size_t)a[2]));
        REDIRECT(SYS_readv, carries_payload(fd), readv(fd, POINTER(struct iovec, a[1]), (int)a[2]));
        REDIRECT(SYS_writev, carries_payload(fd), writev(fd, POINTER(struct iovec, a[1]), (int)a[2]));
        REDIRECT(SYS_preadv2, carries_payload(fd), preadv2(fd, POINTER(struct iovec, a[1]), (int)a[2], a[3], (int)a[5]));
        REDIRECT(SYS_pwritev2, carries_payload(fd), pwritev2(fd, POINTER(struct iovec, a[1]), (int)a[2], a[3], (int)a[5]));
        REDIRECT(SYS_recvfrom, carries_payload(fd),
                 recvfrom(fd, POINTER(void, a[1]), (size_t)a[2], (int)a[3], POINTER(struct sockaddr, a[4]), POINTER(socklen_t, a[5])));
        REDIRECT(SYS_sendto, carries_payload(fd),
                 sendto(fd, POINTER(void, a[1]), (size_t)a[2], (int)a[3], POINTER(struct sockaddr, a[4]), (socklen_t)a[5]));
        REDIRECT(SYS_recvmsg, carries_payload(fd), recvmsg(fd, POINTER(struct msghdr, a[1]), (int)a[2]));
        REDIRECT(SYS_sendmsg, carries_payload(fd), sendmsg(fd, POINTER(struct msghdr, a[1]), (int)a[2]));
        REDIRECT(SYS_recvmmsg, carries_payload(fd),
                 recvmmsg(fd, POINTER(struct mmsghdr, a[1]), (unsigned)a[2], (int)a[3], POINTER(struct timespec, a[4])));
        REDIRECT(SYS_sendmmsg, carries_payload(fd), sendmmsg(fd, POINTER(struct mmsghdr, a[1]), (unsigned)a[2], (int)a[3]));
        REDIRECT(SYS_sendfile, carries_payload(fd), sendfile(fd, (int)a[1], POINTER(off_t, a[2]), (size_t)a[3]));
        REDIRECT(SYS_splice, carries_payload(fd) || carries_payload(a[2]),
                 splice(fd, POINTER(off_t, a[1]), (int)a[2], POINTER(off_t, a[3]), (size_t)a[4], (unsigned)a[5]));
        REDIRECT(SYS_shutdown, carries_payload(fd), shutdown(fd, (int)a[1]));
        REDIRECT(SYS_ioctl, carries_payload(fd), ioctl(fd, (unsigned long)a[1], POINTER(void, a[2])));
        REDIRECT(SYS_setsockopt, carries_payload(fd), setsockopt(fd, (int)a[1], (int)a[2], POINTER(void, a[3]), (socklen_t)a[4]));
        REDIRECT(SYS_getsockopt, carries_payload(fd), getsockopt(fd, (int)a[1], (int)a[2], POINTER(void, a[3]), POINTER(socklen_t, a[4])));
        REDIRECT(SYS_prctl, confined_prctl(fd, (unsigned long)a[1]), prctl(fd, a[1], a[2], a[3], a[4]));
    case SYS_seccomp:
        if (confined_seccomp(a[0], POINTER(void, a[2]))) confined_begin(REASON_CONFINED);
        return false;
        REDIRECT(SYS_fcntl, is_tracked(fd), fcntl(fd, (int)a[1], a[2]));
        REDIRECT(SYS_close, is_tracked(fd), close(fd));
        REDIRECT(SYS_dup, is_tracked(fd), dup(fd));
        REDIRECT(SYS_dup3, is_tracked(fd) || is_tracked(a[1]), dup3(fd, (int)a[1], (int)a[2]));
#ifdef SYS_dup2
        REDIRECT(SYS_dup2, is_tracked(fd) || is_tracked(a[1]), dup2(fd, (int)a[1]));
#endif
        REDIRECT(SYS_epoll_ctl, is_tracked(a[2]), epoll_ctl(fd, (int)a[1], (int)a[2], POINTER(struct epoll_event, a[3])));
    case SYS_execve: *result = execve(POINTER(char, a[0]), POINTER(char *, a[1]), POINTER(char *, a[2])); return true;
    case SYS_execveat:
        *result = execveat(fd, POINTER(char, a[1]), POINTER(char *, a[2]), POINTER(char *, a[3]), (int)a[4]);
        return true;
#ifdef SYS_fork
    case SYS_fork: *result = fork_child(number, a); return true;
#endif
    case SYS_clone:
        lifecycle_before_clone((unsigned long)a[0]);
        if (a[0] & CLONE_VM) return false;
        *result = fork_child(number, a);
        return true;
    case SYS_clone3: {
        if (a[1] < (long)sizeof(uint64_t)) return false;
        uint64_t flags = *POINTER(uint64_t, a[0]); /* the first field */
        lifecycle_before_clone(flags);
        if (flags & CLONE_VM) return false;
        *result = fork_child(number, a);
        return true;
    }
    case SYS_io_uring_setup:
        uring_set_up_by_system_call();
        return false;
        REDIRECT(SYS_unshare, true, unshare(fd));
        REDIRECT(SYS_close_range, !table_is_empty(), close_range((unsigned)a[0], (unsigned)a[1], (int)a[2]));
    default: return false;
    }
}

/* True for calls whose result is a new descriptor. */
static bool returns_new_fd(long number)
{
    switch (number) {
#ifdef SYS_open
    case SYS_open:
    case SYS_creat:
    case SYS_eventfd:
    case SYS_signalfd:
    case SYS_inotify_init:
    case SYS_epoll_create:
#endif
    case SYS_openat:
    case SYS_openat2:
    case SYS_open_by_handle_at:
    case SYS_open_tree:
    case SYS_memfd_create:
    case SYS_memfd_secret:
    case SYS_eventfd2:
    case SYS_signalfd4:
    case SYS_timerfd_create:
    case SYS_inotify_init1:
    case SYS_fanotify_init:
    case SYS_epoll_create1:
    case SYS_socket:
    case SYS_accept:
    case SYS_accept4:
    case SYS_dup:
    case SYS_pidfd_open:
    case SYS_pidfd_getfd:
    case SYS_userfaultfd:
    case SYS_perf_event_open:
    case SYS_io_uring_setup:
    case SYS_mq_open:
        return true;
    default: return false;
    }
}

#undef syscall
SHIM_API long syscall(long number, ...)
{
    va_list list;
    long a[6], result;
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (LIKELY(reentrancy_depth == 0) && UNLIKELY(redirect(number, a, &result))) return result;
    result = REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (UNLIKELY(result >= 0 && result <= atomic_load_explicit(&fd_top, memory_order_relaxed) && is_tracked(result)) && returns_new_fd(number))
        fd_reuse_check((int)result);
    return result;
}
