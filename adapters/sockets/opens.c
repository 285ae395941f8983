/* opens.c: calls that make descriptors of files, pipes and the like.
 *
 * What it is:   the one moment in which it shows that a number known here was closed unseen (by a system call without the C library, by
 *               a library that was loaded with RTLD_DEEPBIND, by the C library itself): it is given to something else. What was known
 *               of it is forgotten before the program can use it, so nothing written to a file ever goes to an old peer.
 * What it isn't: interested in files. A number that is not known here costs one load and one branch.
 *
 * Signal safety: as the C library's functions; in a handler that interrupted the engine the number is marked, and tidied at its next use.
 * Fork safety: in a vfork child the table is the parent's, and nothing is changed. */
#include "shim.h"

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

static __attribute__((noinline)) void reused(int fd)
{
    int kept = errno;
    if (shim_depth > 0)
        table_closed_by_handler(fd);
    else if (word_kind(table_word(fd)) != KIND_PRIVATE && table_in_own_process())
        table_set(fd, KIND_NONE);
    errno = kept;
}

int opens_number(int fd)
{
    if (UNLIKELY(fd >= 0 && word_kind(table_word(fd)) != KIND_NONE)) reused(fd);
    return fd;
}

static int two(int result, const int fds[2])
{
    if (result == 0) {
        opens_number(fds[0]);
        opens_number(fds[1]);
    }
    return result;
}

static FILE *of_file(FILE *file)
{
    if (LIKELY(file != NULL)) {
        int kept = errno;
        opens_number(fileno(file));
        errno = kept;
    }
    return file;
}

/* ---------------------------------------------------------------- files */

SHIM_API int open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0;
    va_end(list);
    return opens_number(REAL(open)(path, flags, mode));
}

SHIM_API int openat(int folder, const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0;
    va_end(list);
    return opens_number(REAL(openat)(folder, path, flags, mode));
}

SHIM_API int creat(const char *path, mode_t mode) { return opens_number(REAL(creat)(path, mode)); }

SHIM_API int __open_2(const char *path, int flags) { return opens_number(REAL(__open_2)(path, flags)); }

SHIM_API int __openat_2(int folder, const char *path, int flags) { return opens_number(REAL(__openat_2)(folder, path, flags)); }

SHIM_API int mkstemps(char *name, int suffix) { return opens_number(REAL(mkostemps)(name, suffix, 0)); }

SHIM_API int mkostemps(char *name, int suffix, int flags) { return opens_number(REAL(mkostemps)(name, suffix, flags)); }

SHIM_API int mkstemp(char *name) { return mkostemps(name, 0, 0); }

SHIM_API int mkostemp(char *name, int flags) { return mkostemps(name, 0, flags); }

SHIM_API int shm_open(const char *name, int flags, mode_t mode) { return opens_number(REAL(shm_open)(name, flags, mode)); }

SHIM_API int memfd_create(const char *name, unsigned flags) { return opens_number(REAL(memfd_create)(name, flags)); }

SHIM_API DIR *opendir(const char *path)
{
    DIR *folder = REAL(opendir)(path);
    if (LIKELY(folder != NULL)) opens_number(dirfd(folder));
    return folder;
}

/* ---------------------------------------------------------------- others */

SHIM_API int pipe(int fds[2]) { return two(REAL(pipe)(fds), fds); }

SHIM_API int pipe2(int fds[2], int flags) { return two(REAL(pipe2)(fds, flags), fds); }

SHIM_API int socketpair(int domain, int type, int protocol, int fds[2]) { return two(REAL(socketpair)(domain, type, protocol, fds), fds); }

SHIM_API int eventfd(unsigned count, int flags) { return opens_number(REAL(eventfd)(count, flags)); }

SHIM_API int timerfd_create(int clock, int flags) { return opens_number(REAL(timerfd_create)(clock, flags)); }

SHIM_API int signalfd(int fd, const sigset_t *mask, int flags)
{
    int made = REAL(signalfd)(fd, mask, flags);
    return fd == -1 ? opens_number(made) : made;
}

SHIM_API int inotify_init(void) { return opens_number(REAL(inotify_init1)(0)); }

SHIM_API int inotify_init1(int flags) { return opens_number(REAL(inotify_init1)(flags)); }

SHIM_API int posix_openpt(int flags) { return opens_number(REAL(posix_openpt)(flags)); }

/* ---------------------------------------------------------------- stdio */

SHIM_API FILE *fopen64(const char *path, const char *mode) { return of_file(REAL(fopen64)(path, mode)); }

FILE *opens_file(FILE *file) { return of_file(file); }

SHIM_API FILE *tmpfile(void) { return of_file(REAL(tmpfile)()); }

/* The old descriptor closes inside the C library, and the new one may have its number. */
SHIM_API FILE *freopen(const char *path, const char *mode, FILE *file)
{
    int kept = errno, fd = file ? fileno(file) : -1;
    errno = kept;
    if (UNLIKELY(fd >= 0 && word_kind(table_word(fd)) != KIND_NONE)) {
        fflush(file);
        reused(fd);
    }
    return of_file(REAL(freopen)(path, mode, file));
}

/* ---------------------------------------------------------------- numbers 0, 1 and 2, which the C library exchanges */

static int standard(int result, bool exchanged)
{
    for (int fd = 0; result == 0 && exchanged && fd <= 2; fd++) opens_number(fd);
    return result;
}

SHIM_API int daemon(int stays, int keeps) { return standard(REAL(daemon)(stays, keeps), !keeps); }

SHIM_API int login_tty(int fd)
{
    int result = REAL(login_tty)(fd);
    if (result == 0) opens_number(fd); /* closed */
    return standard(result, true);
}

SHIM_API pid_t forkpty(int *master, char *name, const struct termios *terminal, const struct winsize *size)
{
    pid_t child = REAL(forkpty)(master, name, terminal, size);
    if (child > 0) opens_number(*master);
    standard((int)child, child == 0);
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
