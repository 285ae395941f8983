/* raw.c: syscall(), by which programs make system calls that have, or once had, no function of their own.
 *
 * What it is:   calls that move payload on a descriptor known here, or change which descriptors there are, take the same way as
 *               the C library's functions of the same name; with descriptors that are not known here, and all other calls, the
 *               C library's syscall() is called with the same arguments.
 * What it isn't: a filter. Programs with system calls of their own making (inline assembly, io_uring) are not seen; what the
 *               engine does then: docs/sockets.md.
 *
 * Cancellation: syscall() is no cancellation point, so cancellation is off meanwhile. Signal and fork safety: those of the function
 * that is called. */
#include "shim.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

static bool moves(long fd) { return word_kind(table_word((int)fd)) >= KIND_CANDIDATE; }
static bool known(long fd) { return word_kind(table_word((int)fd)) != KIND_NONE; }

#define POINTER(type, at) ((type *)(uintptr_t)(at))
#define TAKE(number, condition, call)                                                                                   \
    case number:                                                                                                        \
        if (LIKELY(!(condition))) return false;                                                                         \
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);                                                         \
        *result = (call);                                                                                               \
        pthread_setcancelstate(state, NULL);                                                                            \
        return true

/* A child with memory of its own, behind the C library's back. */
static long forked(long number, const long a[6])
{
    bool ours = table_in_own_process();
    if (ours) life_before_fork();
    long child = REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    int kept = errno;
    if (ours) life_after_fork(child == 0);
    errno = kept;
    return child;
}

/* True when the call was one of those; its result in *result. */
static bool taken(long number, const long a[6], long *result)
{
    int fd = (int)a[0], state;
    switch (number) {
        TAKE(SYS_read, moves(fd), read(fd, POINTER(void, a[1]), (size_t)a[2]));
        TAKE(SYS_write, moves(fd), write(fd, POINTER(void, a[1]), (size_t)a[2]));
        TAKE(SYS_readv, moves(fd), readv(fd, POINTER(struct iovec, a[1]), (int)a[2]));
        TAKE(SYS_writev, moves(fd), writev(fd, POINTER(struct iovec, a[1]), (int)a[2]));
        TAKE(SYS_preadv2, moves(fd), preadv2(fd, POINTER(struct iovec, a[1]), (int)a[2], a[3], (int)a[5]));
        TAKE(SYS_pwritev2, moves(fd), pwritev2(fd, POINTER(struct iovec, a[1]), (int)a[2], a[3], (int)a[5]));
        TAKE(SYS_recvfrom, moves(fd), recvfrom(fd, POINTER(void, a[1]), (size_t)a[2], (int)a[3], POINTER(struct sockaddr, a[4]), POINTER(socklen_t, a[5])));
        TAKE(SYS_sendto, moves(fd), sendto(fd, POINTER(void, a[1]), (size_t)a[2], (int)a[3], POINTER(struct sockaddr, a[4]), (socklen_t)a[5]));
        TAKE(SYS_recvmsg, moves(fd), recvmsg(fd, POINTER(struct msghdr, a[1]), (int)a[2]));
        TAKE(SYS_sendmsg, moves(fd), sendmsg(fd, POINTER(struct msghdr, a[1]), (int)a[2]));
        TAKE(SYS_recvmmsg, moves(fd), recvmmsg(fd, POINTER(struct mmsghdr, a[1]), (unsigned)a[2], (int)a[3], POINTER(struct timespec, a[4])));
        TAKE(SYS_sendmmsg, moves(fd), sendmmsg(fd, POINTER(struct mmsghdr, a[1]), (unsigned)a[2], (int)a[3]));
        TAKE(SYS_sendfile, moves(fd), sendfile(fd, (int)a[1], POINTER(off_t, a[2]), (size_t)a[3]));
        TAKE(SYS_splice, moves(fd) || moves(a[2]), splice(fd, POINTER(off_t, a[1]), (int)a[2], POINTER(off_t, a[3]), (size_t)a[4], (unsigned)a[5]));
        TAKE(SYS_shutdown, moves(fd), shutdown(fd, (int)a[1]));
        TAKE(SYS_ioctl, moves(fd), ioctl(fd, (unsigned long)a[1], POINTER(void, a[2])));
        TAKE(SYS_setsockopt, moves(fd), setsockopt(fd, (int)a[1], (int)a[2], POINTER(void, a[3]), (socklen_t)a[4]));
        TAKE(SYS_getsockopt, moves(fd), getsockopt(fd, (int)a[1], (int)a[2], POINTER(void, a[3]), POINTER(socklen_t, a[4])));
        TAKE(SYS_prctl, confined_prctl(fd, (unsigned long)a[1]), prctl(fd, a[1], a[2], a[3], a[4]));
    case SYS_seccomp:
        if (confined_seccomp(a[0], POINTER(void, a[2]))) confined_begin();
        return false;
        TAKE(SYS_fcntl, known(fd), fcntl(fd, (int)a[1], a[2]));
        TAKE(SYS_close, known(fd), close(fd));
        TAKE(SYS_dup, known(fd), dup(fd));
        TAKE(SYS_dup3, known(fd) || known(a[1]), dup3(fd, (int)a[1], (int)a[2]));
#ifdef SYS_dup2
        TAKE(SYS_dup2, known(fd) || known(a[1]), dup2(fd, (int)a[1]));
#endif
        TAKE(SYS_epoll_ctl, known(a[2]), epoll_ctl(fd, (int)a[1], (int)a[2], POINTER(struct epoll_event, a[3])));
    case SYS_execve: *result = execve(POINTER(char, a[0]), POINTER(char *, a[1]), POINTER(char *, a[2])); return true;
    case SYS_execveat:
        *result = execveat(fd, POINTER(char, a[1]), POINTER(char *, a[2]), POINTER(char *, a[3]), (int)a[4]);
        return true;
#ifdef SYS_fork
    case SYS_fork: *result = forked(number, a); return true;
#endif
    case SYS_clone:
        if (a[0] & CLONE_VM) return false;
        *result = forked(number, a);
        return true;
        TAKE(SYS_close_range, !table_is_empty(), close_range((unsigned)a[0], (unsigned)a[1], (int)a[2]));
    default: return false;
    }
}

/* Calls whose result is a new descriptor. */
static bool makes(long number)
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
    if (LIKELY(shim_depth == 0) && UNLIKELY(taken(number, a, &result))) return result;
    result = REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (UNLIKELY(result >= 0 && result <= atomic_load_explicit(&shim_top, memory_order_relaxed) && known(result)) && makes(number))
        opens_number((int)result);
    return result;
}
