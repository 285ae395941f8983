/* syscall.c: syscall(), which programs use for system calls without a libc function.
 *
 * What it is:   calls that take a path are redirected to the function of the same name, or get the mapped path. All others go to libc's syscall().
 * What it isn't: a filter. System calls that do not go through libc (static programs, inline assembly, io_uring) see no prefix.
 *
 * Signal and fork safety, errno: those of the function that is called. */
#include "files.h"

#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#define P(type, at) ((type *)(uintptr_t)(at))
#define PATH(at) P(const char, at)

static NOINLINE long open2(int folder, const char *path, struct open_how *how, size_t size)
{
    bool changes = readable(how) && ((how->flags & O_ACCMODE) != O_RDONLY || how->flags & (O_TRUNC | O_CREAT));
    MAPPED(long, -1, folder, changes ? USE_CHANGE | USE_CREATE : USE_LOOK, REAL(syscall)(SYS_openat2, folder, path, how, size));
}

static NOINLINE long access2(int folder, const char *path, int mode, int flags)
{
    MAPPED(long, -1, folder, mode & W_OK ? USE_CHANGE : USE_LOOK, REAL(syscall)(SYS_faccessat2, folder, path, mode, flags));
}

#ifdef SYS_fchmodat2
/* fchmodat() of some libcs opens the file or knows no flags. */
static NOINLINE long change_mode2(int folder, const char *path, mode_t mode, int flags)
{
    MAPPED(long, -1, folder, USE_CHANGE | (flags & AT_SYMLINK_NOFOLLOW ? USE_NOFOLLOW : USE_LOOK), REAL(syscall)(SYS_fchmodat2, folder, path, mode, flags));
}
#endif

/* The function of libc allocates memory for the call without any, and has another error for a length of 0. */
static NOINLINE long get_current(char *into, size_t size)
{
    if (!into || !size) return REAL(syscall)(SYS_getcwd, into, size);
    char *got = getcwd(into, size);
    return got ? (long)strlen(got) + 1 : -1;
}

/* Calls for attributes of files. */
static bool redirect_attributes(long number, const long a[6], long *result)
{
    int folder = (int)a[0];
    switch (number) {
#define CASE(call, expression)                                                                                          \
    case call: *result = (expression); return true;
#ifdef SYS_open
        CASE(SYS_utime, utime(PATH(a[0]), P(struct utimbuf, a[1])))
        CASE(SYS_utimes, utimes(PATH(a[0]), P(struct timeval, a[1])))
#endif
        CASE(SYS_statfs, statfs(PATH(a[0]), P(struct statfs, a[1])))
        CASE(SYS_getxattr, getxattr(PATH(a[0]), PATH(a[1]), P(void, a[2]), (size_t)a[3]))
        CASE(SYS_lgetxattr, lgetxattr(PATH(a[0]), PATH(a[1]), P(void, a[2]), (size_t)a[3]))
        CASE(SYS_setxattr, setxattr(PATH(a[0]), PATH(a[1]), P(void, a[2]), (size_t)a[3], (int)a[4]))
        CASE(SYS_lsetxattr, lsetxattr(PATH(a[0]), PATH(a[1]), P(void, a[2]), (size_t)a[3], (int)a[4]))
        CASE(SYS_listxattr, listxattr(PATH(a[0]), P(char, a[1]), (size_t)a[2]))
        CASE(SYS_llistxattr, llistxattr(PATH(a[0]), P(char, a[1]), (size_t)a[2]))
        CASE(SYS_removexattr, removexattr(PATH(a[0]), PATH(a[1])))
        CASE(SYS_lremovexattr, lremovexattr(PATH(a[0]), PATH(a[1])))
        CASE(SYS_inotify_add_watch, inotify_add_watch((int)a[0], PATH(a[1]), (uint32_t)a[2]))
        CASE(SYS_name_to_handle_at, name_to_handle_at(folder, PATH(a[1]), P(struct file_handle, a[2]), P(int, a[3]), (int)a[4]))
#undef CASE
    /* Without a path these concern the descriptor. The function of libc refuses that. */
#ifdef SYS_futimesat
    case SYS_futimesat:
        if (!a[1]) return false;
        *result = futimesat(folder, PATH(a[1]), P(struct timeval, a[2]));
        return true;
#endif
    case SYS_utimensat:
        if (!a[1]) return false;
        *result = utimensat(folder, PATH(a[1]), P(struct timespec, a[2]), (int)a[3]);
        return true;
#ifdef SYS_fchmodat2
    case SYS_fchmodat2:
        if (path_is_plain(folder, PATH(a[1]), USE_CHANGE)) return false;
        *result = change_mode2(folder, PATH(a[1]), (mode_t)a[2], (int)a[3]);
        return true;
#endif
    default: return false;
    }
}

/* True when the call was redirected; its result is in *result. */
static bool redirect(long number, const long a[6], long *result)
{
    int folder = (int)a[0];
    switch (number) {
#define CASE(call, expression)                                                                                          \
    case call: *result = (expression); return true;
#ifdef SYS_open
        CASE(SYS_open, open(PATH(a[0]), (int)a[1], (mode_t)a[2]))
        CASE(SYS_creat, creat(PATH(a[0]), (mode_t)a[1]))
        CASE(SYS_stat, stat(PATH(a[0]), P(struct stat, a[1])))
        CASE(SYS_lstat, lstat(PATH(a[0]), P(struct stat, a[1])))
        CASE(SYS_access, access(PATH(a[0]), (int)a[1]))
        CASE(SYS_mkdir, mkdir(PATH(a[0]), (mode_t)a[1]))
        CASE(SYS_rmdir, rmdir(PATH(a[0])))
        CASE(SYS_unlink, unlink(PATH(a[0])))
        CASE(SYS_rename, rename(PATH(a[0]), PATH(a[1])))
        CASE(SYS_link, link(PATH(a[0]), PATH(a[1])))
        CASE(SYS_symlink, symlink(PATH(a[0]), PATH(a[1])))
        CASE(SYS_readlink, readlink(PATH(a[0]), P(char, a[1]), (size_t)a[2]))
        CASE(SYS_chmod, chmod(PATH(a[0]), (mode_t)a[1]))
        CASE(SYS_chown, chown(PATH(a[0]), (uid_t)a[1], (gid_t)a[2]))
        CASE(SYS_lchown, lchown(PATH(a[0]), (uid_t)a[1], (gid_t)a[2]))
        CASE(SYS_mknod, mknod(PATH(a[0]), (mode_t)a[1], (dev_t)a[2]))
#endif
#ifdef SYS_renameat
        CASE(SYS_renameat, renameat(folder, PATH(a[1]), (int)a[2], PATH(a[3])))
#endif
        CASE(SYS_mknodat, mknodat(folder, PATH(a[1]), (mode_t)a[2], (dev_t)a[3]))
        CASE(SYS_chroot, chroot(PATH(a[0])))
        CASE(SYS_openat, openat(folder, PATH(a[1]), (int)a[2], (mode_t)a[3]))
        CASE(SYS_newfstatat, fstatat(folder, PATH(a[1]), P(struct stat, a[2]), (int)a[3]))
        CASE(SYS_statx, statx(folder, PATH(a[1]), (int)a[2], (unsigned)a[3], P(struct statx, a[4])))
        CASE(SYS_faccessat, faccessat(folder, PATH(a[1]), (int)a[2], 0))
        CASE(SYS_mkdirat, mkdirat(folder, PATH(a[1]), (mode_t)a[2]))
        CASE(SYS_unlinkat, unlinkat(folder, PATH(a[1]), (int)a[2]))
        CASE(SYS_renameat2, renameat2(folder, PATH(a[1]), (int)a[2], PATH(a[3]), (unsigned)a[4]))
        CASE(SYS_linkat, linkat(folder, PATH(a[1]), (int)a[2], PATH(a[3]), (int)a[4]))
        CASE(SYS_symlinkat, symlinkat(PATH(a[0]), (int)a[1], PATH(a[2])))
        CASE(SYS_readlinkat, readlinkat(folder, PATH(a[1]), P(char, a[2]), (size_t)a[3]))
        CASE(SYS_fchmodat, fchmodat(folder, PATH(a[1]), (mode_t)a[2], 0))
        CASE(SYS_fchownat, fchownat(folder, PATH(a[1]), (uid_t)a[2], (gid_t)a[3], (int)a[4]))
        CASE(SYS_truncate, truncate(PATH(a[0]), a[1]))
        CASE(SYS_chdir, chdir(PATH(a[0])))
        CASE(SYS_fchdir, fchdir(folder))
        CASE(SYS_getcwd, get_current(P(char, a[0]), (size_t)a[1]))
        CASE(SYS_execve, execve(PATH(a[0]), P(char *const, a[1]), P(char *const, a[2])))
        CASE(SYS_execveat, execveat(folder, PATH(a[1]), P(char *const, a[2]), P(char *const, a[3]), (int)a[4]))
#undef CASE
    case SYS_prctl: confined |= begins_confinement(a[0], (unsigned long)a[1]); return false;
    /* Libraries call it without a filter to ask what the kernel supports. */
    case SYS_seccomp: confined |= a[0] == SECCOMP_SET_MODE_STRICT || (a[0] == SECCOMP_SET_MODE_FILTER && a[2] != 0); return false;
    case SYS_openat2:
        if (path_is_plain(folder, PATH(a[1]), USE_LOOK)) return false;
        *result = open2(folder, PATH(a[1]), P(struct open_how, a[2]), (size_t)a[3]);
        return true;
    case SYS_faccessat2:
        if (path_is_plain(folder, PATH(a[1]), USE_LOOK)) return false;
        *result = access2(folder, PATH(a[1]), (int)a[2], (int)a[3]);
        return true;
    default: return redirect_attributes(number, a, result);
    }
}

#undef syscall
FILES_API long syscall(long number, ...)
{
    va_list list;
    long a[6], result;
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (LIKELY(mapping_count) && UNLIKELY(redirect(number, a, &result))) return result;
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
