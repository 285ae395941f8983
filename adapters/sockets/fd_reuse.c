/* fd_reuse.c: calls that create descriptors of files, pipes and the like.
 *
 * What it is:   the point at which a tracked number proves to have been closed without a call to this object (by a raw system call, by a
 *               library loaded with RTLD_DEEPBIND, or inside libc): a new descriptor gets the number. Its old state is released before the
 *               program can use it, so data written to a file never reaches a former peer.
 * What it isn't: tracking of files. A number that is not tracked costs one load and one branch.
 *
 * Signal safety: as libc's functions. In a handler that interrupted the engine the number is marked, and released at its next use. Fork
 * safety: in a vfork child the table is the parent's and does not change. errno: kept on success. */
#include "sockets.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <termios.h>

/* ---------------------------------------------------------------- one number */

static __attribute__((noinline)) void number_reused(int fd)
{
    int kept = errno;
    if (reentrancy_depth > 0)
        table_close_in_handler(fd);
    else if (word_kind(table_word(fd)) != KIND_PRIVATE && table_in_own_process())
        table_set(fd, KIND_NONE);
    errno = kept;
}

int fd_reuse_check(int fd)
{
    if (UNLIKELY(fd >= 0 && word_kind(table_word(fd)) != KIND_NONE)) number_reused(fd);
    return fd;
}

static int check_pair(int result, const int fds[2])
{
    if (result == 0) {
        fd_reuse_check(fds[0]);
        fd_reuse_check(fds[1]);
    }
    return result;
}

static FILE *check_file(FILE *file)
{
    if (LIKELY(file != NULL)) {
        int kept = errno;
        fd_reuse_check(fileno(file));
        errno = kept;
    }
    return file;
}

/* ---------------------------------------------------------------- files and directories */

SHIM_API int open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0;
    va_end(list);
    return fd_reuse_check(REAL(open)(path, flags, mode));
}

SHIM_API int openat(int folder, const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0;
    va_end(list);
    return fd_reuse_check(REAL(openat)(folder, path, flags, mode));
}

SHIM_API int creat(const char *path, mode_t mode) { return fd_reuse_check(REAL(creat)(path, mode)); }

SHIM_API int __open_2(const char *path, int flags) { return fd_reuse_check(REAL(__open_2)(path, flags)); }

SHIM_API int __openat_2(int folder, const char *path, int flags) { return fd_reuse_check(REAL(__openat_2)(folder, path, flags)); }

SHIM_API int mkstemps(char *name, int suffix) { return fd_reuse_check(REAL(mkostemps)(name, suffix, 0)); }

SHIM_API int mkostemps(char *name, int suffix, int flags) { return fd_reuse_check(REAL(mkostemps)(name, suffix, flags)); }

SHIM_API int mkstemp(char *name) { return mkostemps(name, 0, 0); }

SHIM_API int mkostemp(char *name, int flags) { return mkostemps(name, 0, flags); }

SHIM_API int shm_open(const char *name, int flags, mode_t mode) { return fd_reuse_check(REAL(shm_open)(name, flags, mode)); }

SHIM_API int memfd_create(const char *name, unsigned flags) { return fd_reuse_check(REAL(memfd_create)(name, flags)); }

SHIM_API DIR *opendir(const char *path)
{
    DIR *folder = REAL(opendir)(path);
    if (LIKELY(folder != NULL)) fd_reuse_check(dirfd(folder));
    return folder;
}

/* ---------------------------------------------------------------- other descriptors */

SHIM_API int pipe(int fds[2]) { return check_pair(REAL(pipe)(fds), fds); }

SHIM_API int pipe2(int fds[2], int flags) { return check_pair(REAL(pipe2)(fds, flags), fds); }

SHIM_API int socketpair(int domain, int type, int protocol, int fds[2]) { return check_pair(REAL(socketpair)(domain, type, protocol, fds), fds); }

SHIM_API int eventfd(unsigned count, int flags) { return fd_reuse_check(REAL(eventfd)(count, flags)); }

SHIM_API int timerfd_create(int clock, int flags) { return fd_reuse_check(REAL(timerfd_create)(clock, flags)); }

SHIM_API int signalfd(int fd, const sigset_t *mask, int flags)
{
    int made = REAL(signalfd)(fd, mask, flags);
    return fd == -1 ? fd_reuse_check(made) : made;
}

SHIM_API int inotify_init(void) { return fd_reuse_check(REAL(inotify_init1)(0)); }

SHIM_API int inotify_init1(int flags) { return fd_reuse_check(REAL(inotify_init1)(flags)); }

SHIM_API int posix_openpt(int flags) { return fd_reuse_check(REAL(posix_openpt)(flags)); }

/* ---------------------------------------------------------------- stdio */

SHIM_API FILE *fopen64(const char *path, const char *mode) { return check_file(REAL(fopen64)(path, mode)); }

FILE *fd_reuse_check_file(FILE *file) { return check_file(file); }

SHIM_API FILE *tmpfile(void) { return check_file(REAL(tmpfile)()); }

/* libc closes the old descriptor, and the new one may get its number. */
SHIM_API FILE *freopen(const char *path, const char *mode, FILE *file)
{
    int kept = errno, fd = file ? fileno(file) : -1;
    errno = kept;
    if (UNLIKELY(fd >= 0 && word_kind(table_word(fd)) != KIND_NONE)) {
        fflush(file);
        number_reused(fd);
    }
    return check_file(REAL(freopen)(path, mode, file));
}

/* ---------------------------------------------------------------- numbers 0, 1 and 2, which libc replaces */

static int check_standard(int result, bool exchanged)
{
    for (int fd = 0; result == 0 && exchanged && fd <= 2; fd++) fd_reuse_check(fd);
    return result;
}

SHIM_API int daemon(int keeps_directory, int keeps_streams) { return check_standard(REAL(daemon)(keeps_directory, keeps_streams), !keeps_streams); }

SHIM_API int login_tty(int fd)
{
    int result = REAL(login_tty)(fd);
    if (result == 0) fd_reuse_check(fd); /* login_tty() has closed it */
    return check_standard(result, true);
}

SHIM_API pid_t forkpty(int *master, char *name, const struct termios *terminal, const struct winsize *size)
{
    pid_t child = REAL(forkpty)(master, name, terminal, size);
    if (child > 0) fd_reuse_check(*master);
    check_standard((int)child, child == 0);
    return child;
}

SHIM_API int open64(const char *path, int flags, ...) __attribute__((alias("open")));
SHIM_API int __open(const char *path, int flags, ...) __attribute__((nonnull(1), alias("open")));
SHIM_API int __open64(const char *path, int flags, ...) __attribute__((nonnull(1), alias("open")));
SHIM_API int __open64_2(const char *path, int flags) __attribute__((alias("__open_2")));
SHIM_API int openat64(int folder, const char *path, int flags, ...) __attribute__((alias("openat")));
SHIM_API int __openat64_2(int folder, const char *path, int flags) __attribute__((alias("__openat_2")));
SHIM_API int creat64(const char *path, mode_t mode) __attribute__((alias("creat")));
SHIM_API int mkstemp64(char *name) __attribute__((alias("mkstemp")));
SHIM_API int mkostemp64(char *name, int flags) __attribute__((alias("mkostemp")));
SHIM_API int mkstemps64(char *name, int suffix) __attribute__((alias("mkstemps")));
SHIM_API int mkostemps64(char *name, int suffix, int flags) __attribute__((alias("mkostemps")));
SHIM_API int __pipe(int fds[2]) __THROW __attribute__((alias("pipe")));
SHIM_API FILE *tmpfile64(void) __attribute__((alias("tmpfile")));
SHIM_API FILE *freopen64(const char *path, const char *mode, FILE *file) __attribute__((alias("freopen")));
