/* attributes.c: attributes of files, by path.
 *
 * What it is:   stat, access, chmod, chown, times, sizes, file systems, extended attributes and watches, in all forms of libc.
 *
 * Signal, fork and vfork safety: those of libc's functions. errno: theirs. */
#include "files.h"

#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

/* Forms that programs built before glibc 2.33 use. */
int __xstat(int, const char *, struct stat *);
int __lxstat(int, const char *, struct stat *);
int __fxstatat(int, int, const char *, struct stat *, int);
int __xstat64(int, const char *, struct stat64 *);
int __lxstat64(int, const char *, struct stat64 *);
int __fxstatat64(int, int, const char *, struct stat64 *, int);

static unsigned nofollow(int flags) { return flags & AT_SYMLINK_NOFOLLOW ? USE_NOFOLLOW : USE_LOOK; }
static unsigned use_of_access(int mode) { return mode & W_OK ? USE_CHANGE : USE_LOOK; }

#define PATH_ONLY(type, name, parameters, arguments, use) PATH_CALL(type, -1, name, parameters, arguments, AT_FDCWD, use)
#define PATH_AT(type, name, parameters, arguments, use) PATH_CALL(type, -1, name, parameters, arguments, folder, use)

PATH_ONLY(int, stat, (const char *path, struct stat *into), (path, into), USE_LOOK)
PATH_ONLY(int, lstat, (const char *path, struct stat *into), (path, into), USE_NOFOLLOW)
PATH_AT(int, fstatat, (int folder, const char *path, struct stat *into, int flags), (folder, path, into, flags), nofollow(flags))
PATH_ONLY(int, stat64, (const char *path, struct stat64 *into), (path, into), USE_LOOK)
PATH_ONLY(int, lstat64, (const char *path, struct stat64 *into), (path, into), USE_NOFOLLOW)
PATH_AT(int, fstatat64, (int folder, const char *path, struct stat64 *into, int flags), (folder, path, into, flags), nofollow(flags))
PATH_ONLY(int, __xstat, (int form, const char *path, struct stat *into), (form, path, into), USE_LOOK)
PATH_ONLY(int, __lxstat, (int form, const char *path, struct stat *into), (form, path, into), USE_NOFOLLOW)
PATH_AT(int, __fxstatat, (int form, int folder, const char *path, struct stat *into, int flags), (form, folder, path, into, flags), nofollow(flags))
PATH_ONLY(int, __xstat64, (int form, const char *path, struct stat64 *into), (form, path, into), USE_LOOK)
PATH_ONLY(int, __lxstat64, (int form, const char *path, struct stat64 *into), (form, path, into), USE_NOFOLLOW)
PATH_AT(int, __fxstatat64, (int form, int folder, const char *path, struct stat64 *into, int flags), (form, folder, path, into, flags), nofollow(flags))
PATH_AT(int, statx, (int folder, const char *path, int flags, unsigned mask, struct statx *into), (folder, path, flags, mask, into), nofollow(flags))

PATH_ONLY(int, access, (const char *path, int mode), (path, mode), use_of_access(mode))
PATH_ONLY(int, eaccess, (const char *path, int mode), (path, mode), use_of_access(mode))
PATH_ONLY(int, euidaccess, (const char *path, int mode), (path, mode), use_of_access(mode))
PATH_AT(int, faccessat, (int folder, const char *path, int mode, int flags), (folder, path, mode, flags), use_of_access(mode) | nofollow(flags))

PATH_ONLY(int, chmod, (const char *path, mode_t mode), (path, mode), USE_CHANGE)
PATH_ONLY(int, lchmod, (const char *path, mode_t mode), (path, mode), USE_CHANGE | USE_NOFOLLOW)
PATH_AT(int, fchmodat, (int folder, const char *path, mode_t mode, int flags), (folder, path, mode, flags), USE_CHANGE | nofollow(flags))
PATH_ONLY(int, chown, (const char *path, uid_t user, gid_t group), (path, user, group), USE_CHANGE)
PATH_ONLY(int, lchown, (const char *path, uid_t user, gid_t group), (path, user, group), USE_CHANGE | USE_NOFOLLOW)
PATH_AT(int, fchownat, (int folder, const char *path, uid_t user, gid_t group, int flags), (folder, path, user, group, flags), USE_CHANGE | nofollow(flags))

PATH_ONLY(int, utime, (const char *path, const struct utimbuf *times), (path, times), USE_CHANGE)
PATH_ONLY(int, utimes, (const char *path, const struct timeval times[2]), (path, times), USE_CHANGE)
PATH_ONLY(int, lutimes, (const char *path, const struct timeval times[2]), (path, times), USE_CHANGE | USE_NOFOLLOW)
PATH_AT(int, futimesat, (int folder, const char *path, const struct timeval times[2]), (folder, path, times), USE_CHANGE)
PATH_AT(int, utimensat, (int folder, const char *path, const struct timespec times[2], int flags), (folder, path, times, flags), USE_CHANGE | nofollow(flags))

PATH_ONLY(int, truncate, (const char *path, off_t length), (path, length), USE_CHANGE)
PATH_ONLY(int, truncate64, (const char *path, off64_t length), (path, length), USE_CHANGE)

PATH_ONLY(int, statfs, (const char *path, struct statfs *into), (path, into), USE_LOOK)
PATH_ONLY(int, statfs64, (const char *path, struct statfs64 *into), (path, into), USE_LOOK)
PATH_ONLY(int, statvfs, (const char *path, struct statvfs *into), (path, into), USE_LOOK)
PATH_ONLY(int, statvfs64, (const char *path, struct statvfs64 *into), (path, into), USE_LOOK)
PATH_ONLY(long, pathconf, (const char *path, int name), (path, name), USE_LOOK)
PATH_ONLY(key_t, ftok, (const char *path, int id), (path, id), USE_LOOK)
PATH_AT(int, name_to_handle_at, (int folder, const char *path, struct file_handle *handle, int *mount, int flags),
        (folder, path, handle, mount, flags), flags & AT_SYMLINK_FOLLOW ? USE_LOOK : USE_NOFOLLOW)

PATH_ONLY(ssize_t, getxattr, (const char *path, const char *name, void *value, size_t size), (path, name, value, size), USE_LOOK)
PATH_ONLY(ssize_t, lgetxattr, (const char *path, const char *name, void *value, size_t size), (path, name, value, size), USE_NOFOLLOW)
PATH_ONLY(ssize_t, listxattr, (const char *path, char *list, size_t size), (path, list, size), USE_LOOK)
PATH_ONLY(ssize_t, llistxattr, (const char *path, char *list, size_t size), (path, list, size), USE_NOFOLLOW)
PATH_ONLY(int, setxattr, (const char *path, const char *name, const void *value, size_t size, int flags), (path, name, value, size, flags), USE_CHANGE)
PATH_ONLY(int, lsetxattr, (const char *path, const char *name, const void *value, size_t size, int flags), (path, name, value, size, flags), USE_CHANGE | USE_NOFOLLOW)
PATH_ONLY(int, removexattr, (const char *path, const char *name), (path, name), USE_CHANGE)
PATH_ONLY(int, lremovexattr, (const char *path, const char *name), (path, name), USE_CHANGE | USE_NOFOLLOW)

PATH_CALL(int, -1, inotify_add_watch, (int fd, const char *path, uint32_t mask), (fd, path, mask), AT_FDCWD, mask & IN_DONT_FOLLOW ? USE_NOFOLLOW : USE_LOOK)
PATH_AT(int, fanotify_mark, (int fd, unsigned flags, uint64_t mask, int folder, const char *path), (fd, flags, mask, folder, path),
        flags & FAN_MARK_DONT_FOLLOW ? USE_NOFOLLOW : USE_LOOK)

/* ---------------------------------------------------------------- changes through descriptors of a read-only export
 *
 * A descriptor that was opened for reading refuses all changes but these. */

#define BY_DESCRIPTOR(name, parameters, arguments)                                                                      \
    FILES_API int name parameters                                                                                       \
    {                                                                                                                   \
        if (UNLIKELY(any_read_only && !confined)) {                                                                                  \
            int kept = errno;                                                                                           \
            const struct mapping *mapping = mapping_of_descriptor(fd);                                                  \
            errno = mapping && mapping->read_only ? EROFS : kept;                                                       \
            if (mapping && mapping->read_only) return -1;                                                               \
        }                                                                                                               \
        return REAL(name) arguments;                                                                                    \
    }

BY_DESCRIPTOR(fchmod, (int fd, mode_t mode), (fd, mode))
BY_DESCRIPTOR(fchown, (int fd, uid_t user, gid_t group), (fd, user, group))
BY_DESCRIPTOR(futimens, (int fd, const struct timespec times[2]), (fd, times))
BY_DESCRIPTOR(futimes, (int fd, const struct timeval times[2]), (fd, times))
BY_DESCRIPTOR(fsetxattr, (int fd, const char *name, const void *value, size_t size, int flags), (fd, name, value, size, flags))
BY_DESCRIPTOR(fremovexattr, (int fd, const char *name), (fd, name))
