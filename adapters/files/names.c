/* names.c: calls that make, rename and remove names.
 *
 * What it is:   mkdir, mknod, unlink, rename, link, symlink, readlink and their forms. The text of a symbolic link is never changed: one that
 *               names a prefix is followed as such.
 * What it isn't: a copy between file systems. What the kernel refuses with EXDEV stays refused.
 *
 * Signal, fork and vfork safety: those of libc's functions. errno: theirs. */
#include "files.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

int __xmknod(int, const char *, mode_t, dev_t *);
int __xmknodat(int, int, const char *, mode_t, dev_t *);

#define NEW_NAME (USE_CREATE | USE_NEW | USE_NOFOLLOW)
#define OLD_NAME (USE_CHANGE | USE_NOFOLLOW)
#define NAME(name, parameters, arguments, use) PATH_CALL(int, -1, name, parameters, arguments, AT_FDCWD, use)
#define NAME_AT(name, parameters, arguments, use) PATH_CALL(int, -1, name, parameters, arguments, folder, use)

NAME(mkdir, (const char *path, mode_t mode), (path, mode), NEW_NAME)
NAME_AT(mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode), NEW_NAME)
NAME(mkfifo, (const char *path, mode_t mode), (path, mode), NEW_NAME)
NAME_AT(mkfifoat, (int folder, const char *path, mode_t mode), (folder, path, mode), NEW_NAME)
NAME(mknod, (const char *path, mode_t mode, dev_t device), (path, mode, device), NEW_NAME)
NAME_AT(mknodat, (int folder, const char *path, mode_t mode, dev_t device), (folder, path, mode, device), NEW_NAME)
NAME(__xmknod, (int form, const char *path, mode_t mode, dev_t *device), (form, path, mode, device), NEW_NAME)
NAME_AT(__xmknodat, (int form, int folder, const char *path, mode_t mode, dev_t *device), (form, folder, path, mode, device), NEW_NAME)
NAME(unlink, (const char *path), (path), OLD_NAME)
NAME_AT(unlinkat, (int folder, const char *path, int flags), (folder, path, flags), flags & AT_REMOVEDIR ? OLD_NAME | USE_REMOVE : OLD_NAME)
NAME(rmdir, (const char *path), (path), OLD_NAME | USE_REMOVE)
NAME(remove, (const char *path), (path), OLD_NAME | USE_REMOVE)
NAME(symlink, (const char *text, const char *path), (text, path), NEW_NAME)
NAME_AT(symlinkat, (const char *text, int folder, const char *path), (text, folder, path), NEW_NAME)

/* ---------------------------------------------------------------- two paths */

/* Calls of which `from` is looked up with FROM and `to` with TO. After ENOENT both are tried through links. */
#define TWO_NAMES(name, parameters, arguments, from_folder, FROM, to_folder, TO)                                        \
    static NOINLINE int name##_mapped parameters                                                                        \
    {                                                                                                                   \
        char from_buffer[PATH_MAX], to_buffer[PATH_MAX];                                                                \
        const char *given_from = from, *given_to = to;                                                                  \
        if (!(from = path_map(from_folder, given_from, FROM, from_buffer))) return -1;                                  \
        if (!(to = path_map(to_folder, given_to, TO, to_buffer))) return -1;                                            \
        int result = REAL(name) arguments;                                                                              \
        if (result == 0 || errno != ENOENT) return result;                                                              \
        const char *linked_from = path_through_links(from_folder, given_from, FROM, from_buffer);                       \
        if (!linked_from && errno != ENOENT) return -1;                                                                 \
        const char *linked_to = path_through_links(to_folder, given_to, TO, to_buffer);                                 \
        if (!linked_from && !linked_to) return -1;                                                                      \
        from = linked_from ? linked_from : path_map(from_folder, given_from, FROM, from_buffer);                        \
        to = linked_to ? linked_to : path_map(to_folder, given_to, TO, to_buffer);                                      \
        return from && to ? REAL(name) arguments : -1;                                                                  \
    }                                                                                                                   \
    FILES_API int name parameters                                                                                       \
    {                                                                                                                   \
        if (LIKELY(path_is_plain(from_folder, from, FROM) && path_is_plain(to_folder, to, TO))) {                       \
            int result = REAL(name) arguments;                                                                          \
            if (LIKELY(result == 0 || errno != ENOENT)) return result;                                                  \
            if (!path_meets_link(from_folder, from, FROM) && !path_meets_link(to_folder, to, TO)) return result;        \
        }                                                                                                               \
        return name##_mapped arguments;                                                                                 \
    }

#define RENAMED (OLD_NAME | USE_REMOVE)
#define REPLACED (USE_CHANGE | USE_CREATE | USE_NOFOLLOW | USE_REMOVE)

TWO_NAMES(rename, (const char *from, const char *to), (from, to), AT_FDCWD, RENAMED, AT_FDCWD, REPLACED)
TWO_NAMES(renameat, (int from_folder, const char *from, int to_folder, const char *to), (from_folder, from, to_folder, to), from_folder, RENAMED, to_folder, REPLACED)
TWO_NAMES(renameat2, (int from_folder, const char *from, int to_folder, const char *to, unsigned flags), (from_folder, from, to_folder, to, flags), from_folder, RENAMED, to_folder, REPLACED)
TWO_NAMES(link, (const char *from, const char *to), (from, to), AT_FDCWD, USE_NOFOLLOW, AT_FDCWD, NEW_NAME)
TWO_NAMES(linkat, (int from_folder, const char *from, int to_folder, const char *to, int flags), (from_folder, from, to_folder, to, flags), from_folder,
          flags & AT_SYMLINK_FOLLOW ? USE_LOOK : USE_NOFOLLOW, to_folder, NEW_NAME)

/* ---------------------------------------------------------------- readlink */

static NOINLINE ssize_t read_mapped(int folder, const char *path, char *into, size_t size)
{
    MAPPED(ssize_t, -1, folder, USE_NOFOLLOW, REAL(readlinkat)(folder, path, into, size));
}

static ssize_t read_text(int folder, const char *path, char *into, size_t size)
{
    PLAIN_OR(ssize_t, -1, folder, USE_NOFOLLOW, REAL(readlinkat)(folder, path, into, size), read_mapped(folder, path, into, size));
}

/* Links of /proc name files by the kernel's paths. */
static bool is_of_proc(const char *path)
{
    return path_length(path) < PATH_MAX && (strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/dev/fd/", 8) == 0);
}

static NOINLINE ssize_t read_proc(int folder, const char *path, char *into, size_t size)
{
    char real[PATH_MAX], shown[PATH_MAX];
    ssize_t length = REAL(readlinkat)(folder, path, real, sizeof real);
    if (length < 0) return length;
    size_t now = path_shown(real, (size_t)length, shown);
    if (now >= PATH_MAX) memcpy(shown, real, now = (size_t)length);
    if (now > size) now = size;
    memcpy(into, shown, now);
    return (ssize_t)now;
}

FILES_API ssize_t readlinkat(int folder, const char *path, char *into, size_t size)
{
    if (UNLIKELY(mapping_count && size > 0 && is_of_proc(path))) return read_proc(folder, path, into, size);
    return read_text(folder, path, into, size);
}

FILES_API ssize_t readlink(const char *path, char *into, size_t size) { return readlinkat(AT_FDCWD, path, into, size); }

void __chk_fail(void) __attribute__((noreturn));

FILES_API ssize_t __readlinkat_chk(int folder, const char *path, char *into, size_t size, size_t room)
{
    if (size > room) __chk_fail();
    return readlinkat(folder, path, into, size);
}

FILES_API ssize_t __readlink_chk(const char *path, char *into, size_t size, size_t room)
{
    return __readlinkat_chk(AT_FDCWD, path, into, size, room);
}
