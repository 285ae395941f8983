/* open.c: calls that open files and folders by descriptor.
 *
 * What it is:   open() in all its forms, and files with names made up by libc (mkstemp and the like).
 *
 * Signal, fork and vfork safety: those of libc's functions. errno: theirs. */
#include "files.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Other names, and the forms of _FORTIFY_SOURCE. */
int __open(const char *, int, ...);
int __open64(const char *, int, ...);
int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);

static unsigned use_of_flags(int flags)
{
    unsigned use = USE_LOOK;
    if (flags & O_PATH) return flags & O_NOFOLLOW ? USE_NOFOLLOW : use;
    if ((flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC) use |= USE_CHANGE;
    if (flags & O_CREAT) use |= USE_CREATE | (flags & O_EXCL ? USE_NEW | USE_NOFOLLOW : 0);
    return use | (flags & O_NOFOLLOW ? USE_NOFOLLOW : 0);
}

#define TAKE_MODE                                                                                                       \
    mode_t mode = 0;                                                                                                    \
    if (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) {                                                               \
        va_list list;                                                                                                   \
        va_start(list, flags);                                                                                          \
        mode = va_arg(list, mode_t);                                                                                    \
        va_end(list);                                                                                                   \
    }

#define OPEN(name)                                                                                                      \
    static NOINLINE int name##_mapped(const char *path, int flags, mode_t mode)                                         \
    {                                                                                                                   \
        MAPPED(int, -1, AT_FDCWD, use_of_flags(flags), REAL(name)(path, flags, mode));                                  \
    }                                                                                                                   \
    FILES_API int name(const char *path, int flags, ...)                                                                \
    {                                                                                                                   \
        TAKE_MODE                                                                                                       \
        PLAIN_OR(int, -1, AT_FDCWD, use_of_flags(flags), REAL(name)(path, flags, mode), name##_mapped(path, flags, mode)); \
    }

#define OPENAT(name)                                                                                                    \
    static NOINLINE int name##_mapped(int folder, const char *path, int flags, mode_t mode)                             \
    {                                                                                                                   \
        MAPPED(int, -1, folder, use_of_flags(flags), REAL(name)(folder, path, flags, mode));                            \
    }                                                                                                                   \
    FILES_API int name(int folder, const char *path, int flags, ...)                                                    \
    {                                                                                                                   \
        TAKE_MODE                                                                                                       \
        PLAIN_OR(int, -1, folder, use_of_flags(flags), REAL(name)(folder, path, flags, mode),                           \
                 name##_mapped(folder, path, flags, mode));                                                             \
    }

OPEN(open)
OPEN(open64)
OPEN(__open)
OPEN(__open64)
OPENAT(openat)
OPENAT(openat64)

PATH_CALL(int, -1, __open_2, (const char *path, int flags), (path, flags), AT_FDCWD, use_of_flags(flags))
PATH_CALL(int, -1, __open64_2, (const char *path, int flags), (path, flags), AT_FDCWD, use_of_flags(flags))
PATH_CALL(int, -1, __openat_2, (int folder, const char *path, int flags), (folder, path, flags), folder, use_of_flags(flags))
PATH_CALL(int, -1, __openat64_2, (int folder, const char *path, int flags), (folder, path, flags), folder, use_of_flags(flags))
PATH_CALL(int, -1, creat, (const char *path, mode_t mode), (path, mode), AT_FDCWD, USE_CHANGE | USE_CREATE)
PATH_CALL(int, -1, creat64, (const char *path, mode_t mode), (path, mode), AT_FDCWD, USE_CHANGE | USE_CREATE)
PATH_CALL(DIR *, NULL, opendir, (const char *path), (path), AT_FDCWD, USE_LOOK)

/* ---------------------------------------------------------------- stdio */

static unsigned use_of_mode(const char *mode)
{
    unsigned use = *mode == 'r' ? USE_LOOK : USE_CHANGE | USE_CREATE;
    if (*mode && strchr(mode, '+')) use |= USE_CHANGE;
    if (*mode && *mode != 'r' && strchr(mode, 'x')) use |= USE_NEW;
    return use;
}

PATH_CALL(FILE *, NULL, fopen, (const char *path, const char *mode), (path, mode), AT_FDCWD, use_of_mode(mode))
PATH_CALL(FILE *, NULL, fopen64, (const char *path, const char *mode), (path, mode), AT_FDCWD, use_of_mode(mode))

/* A failed freopen() has closed the stream, so there is no second try: links that lead beneath a prefix are followed before. */
#define REOPEN(name)                                                                                                    \
    static NOINLINE FILE *name##_mapped(const char *path, const char *mode, FILE *file)                                 \
    {                                                                                                                   \
        char buffer[PATH_MAX];                                                                                          \
        const char *through = path_through_links(AT_FDCWD, path, use_of_mode(mode), buffer);                            \
        if (!through) through = path_map(AT_FDCWD, path, use_of_mode(mode), buffer);                                    \
        if (through) return REAL(name)(through, mode, file);                                                            \
        int error = errno;                                                                                              \
        fclose(file);                                                                                                   \
        errno = error;                                                                                                  \
        return NULL;                                                                                                    \
    }                                                                                                                   \
    FILES_API FILE *name(const char *path, const char *mode, FILE *file)                                                \
    {                                                                                                                   \
        bool plain = path_is_plain(AT_FDCWD, path, use_of_mode(mode)) && (!readable(path) || !path_meets_link(AT_FDCWD, path, USE_LOOK)); \
        return plain ? REAL(name)(path, mode, file) : name##_mapped(path, mode, file);                                  \
    }

REOPEN(freopen)
REOPEN(freopen64)

/* ---------------------------------------------------------------- names made up by libc */

/* Calls with a template of which libc changes the last `tail` bytes. */
#define TEMPLATE(type, failed, name, parameters, arguments, tail)                                                       \
    static NOINLINE type name##_mapped parameters                                                                       \
    {                                                                                                                   \
        char buffer[PATH_MAX], *given = path;                                                                           \
        const unsigned use = USE_CREATE | USE_NOFOLLOW;                                                                 \
        path = (char *)path_map(AT_FDCWD, given, use, buffer);                                                          \
        if (!path) return failed;                                                                                       \
        type result = REAL(name) arguments;                                                                             \
        if (result == failed && errno == ENOENT) {                                                                      \
            path = (char *)path_through_links(AT_FDCWD, given, use, buffer);                                            \
            if (!path) return result;                                                                                   \
            result = REAL(name) arguments;                                                                              \
        }                                                                                                               \
        size_t length = strlen(given), changed = (tail);                                                                \
        if (path != given && result != failed && changed <= length)                                                     \
            memcpy(given + length - changed, path + strlen(path) - changed, changed);                                   \
        return sizeof result == sizeof given && result != failed ? (type)(uintptr_t)given : result;                     \
    }                                                                                                                   \
    FILES_API type name parameters                                                                                      \
    {                                                                                                                   \
        return LIKELY(path_is_plain(AT_FDCWD, path, USE_CREATE | USE_NOFOLLOW)) ? REAL(name) arguments : name##_mapped arguments; \
    }

TEMPLATE(int, -1, mkstemp, (char *path), (path), 6)
TEMPLATE(int, -1, mkstemp64, (char *path), (path), 6)
TEMPLATE(int, -1, mkostemp, (char *path, int flags), (path, flags), 6)
TEMPLATE(int, -1, mkostemp64, (char *path, int flags), (path, flags), 6)
TEMPLATE(int, -1, mkstemps, (char *path, int suffix), (path, suffix), 6 + (size_t)suffix)
TEMPLATE(int, -1, mkstemps64, (char *path, int suffix), (path, suffix), 6 + (size_t)suffix)
TEMPLATE(int, -1, mkostemps, (char *path, int suffix, int flags), (path, suffix, flags), 6 + (size_t)suffix)
TEMPLATE(int, -1, mkostemps64, (char *path, int suffix, int flags), (path, suffix, flags), 6 + (size_t)suffix)
TEMPLATE(char *, NULL, mkdtemp, (char *path), (path), 6)
