/* listing.c: lists and walks of folders: scandir, ftw, nftw, glob.
 *
 * What it is:   the path at which a walk begins is mapped; the paths that it reports begin with the program's.
 *
 * Signal safety: none, as in libc. errno: theirs. */
#include "files.h"

#include <dirent.h>
#include <ftw.h>
#include <glob.h>
#include <sys/stat.h>

/* ---------------------------------------------------------------- scandir */

typedef int (*filter)(const struct dirent *);
typedef int (*compare)(const struct dirent **, const struct dirent **);
typedef int (*filter64)(const struct dirent64 *);
typedef int (*compare64)(const struct dirent64 **, const struct dirent64 **);

PATH_CALL(int, -1, scandir, (const char *path, struct dirent ***list, filter take, compare order), (path, list, take, order), AT_FDCWD, USE_LOOK)
PATH_CALL(int, -1, scandir64, (const char *path, struct dirent64 ***list, filter64 take, compare64 order), (path, list, take, order), AT_FDCWD, USE_LOOK)
PATH_CALL(int, -1, scandirat, (int folder, const char *path, struct dirent ***list, filter take, compare order), (folder, path, list, take, order), folder, USE_LOOK)
PATH_CALL(int, -1, scandirat64, (int folder, const char *path, struct dirent64 ***list, filter64 take, compare64 order), (folder, path, list, take, order), folder, USE_LOOK)

/* ---------------------------------------------------------------- ftw, nftw */

/* The walk of this thread: the program's function, and what takes the place of the start of each path. Walks may be nested. */
struct walk {
    union {
        __ftw_func_t plain;
        __ftw64_func_t plain64;
        __nftw_func_t extended;
        __nftw64_func_t extended64;
    } call;
    size_t real_length;
    const char *given;
    size_t given_length;
};

static __thread struct walk *current __attribute__((tls_model("initial-exec")));

static size_t without_slashes(const char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    return length;
}

/* The program's name of a path of the walk. */
static const char *name_in_walk(const char *real, char shown[PATH_MAX])
{
    size_t length = strlen(real), rest = length > current->real_length ? length - current->real_length : 0;
    if (current->given_length + rest >= PATH_MAX) return real;
    memcpy(shown, current->given, current->given_length);
    memcpy(shown + current->given_length, real + length - rest, rest + 1);
    return shown;
}

#define REPORT_PLAIN(name, member, status_type)                                                                         \
    static int name(const char *path, const status_type *status, int flag)                                              \
    {                                                                                                                   \
        char shown[PATH_MAX];                                                                                           \
        return current->call.member(name_in_walk(path, shown), status, flag);                                           \
    }
#define REPORT_EXTENDED(name, member, status_type)                                                                      \
    static int name(const char *path, const status_type *status, int flag, struct FTW *place)                           \
    {                                                                                                                   \
        char shown[PATH_MAX];                                                                                           \
        struct FTW changed = *place;                                                                                    \
        const char *as = name_in_walk(path, shown);                                                                     \
        if (as == shown) changed.base += (int)current->given_length - (int)current->real_length;                        \
        if (changed.base < 0 || changed.level == 0) {                                                                   \
            const char *slash = strrchr(as, '/');                                                                       \
            changed.base = slash ? (int)(slash + 1 - as) : 0;                                                           \
        }                                                                                                               \
        return current->call.member(as, status, flag, &changed);                                                        \
    }
#define WALK(name, member, function_type, report, parameters, arguments)                                                \
    static NOINLINE int name##_mapped parameters                                                                        \
    {                                                                                                                   \
        char buffer[PATH_MAX];                                                                                          \
        const char *given = path;                                                                                       \
        if (!(path = path_map(AT_FDCWD, given, USE_LOOK, buffer))) return -1;                                           \
        const char *through = path_through_links(AT_FDCWD, given, USE_LOOK, buffer);                                    \
        path = through ? through : path_map(AT_FDCWD, given, USE_LOOK, buffer);                                         \
        if (!path || path == given) return REAL(name) arguments;                                                        \
        struct walk walk = {.call.member = function, .real_length = without_slashes(path), .given = given};             \
        walk.given_length = without_slashes(given);                                                                     \
        struct walk *outer = current;                                                                                   \
        current = &walk;                                                                                                \
        function = report;                                                                                              \
        int result = REAL(name) arguments;                                                                              \
        current = outer;                                                                                                \
        return result;                                                                                                  \
    }                                                                                                                   \
    FILES_API int name parameters                                                                                       \
    {                                                                                                                   \
        bool plain = path_is_plain(AT_FDCWD, path, USE_LOOK) && (!mapping_count || !path_meets_link(AT_FDCWD, path, USE_LOOK)); \
        return plain ? REAL(name) arguments : name##_mapped arguments;                                                  \
    }

REPORT_PLAIN(report_ftw, plain, struct stat)
REPORT_PLAIN(report_ftw64, plain64, struct stat64)
REPORT_EXTENDED(report_nftw, extended, struct stat)
REPORT_EXTENDED(report_nftw64, extended64, struct stat64)

WALK(ftw, plain, __ftw_func_t, report_ftw, (const char *path, __ftw_func_t function, int descriptors), (path, function, descriptors))
WALK(ftw64, plain64, __ftw64_func_t, report_ftw64, (const char *path, __ftw64_func_t function, int descriptors), (path, function, descriptors))
WALK(nftw, extended, __nftw_func_t, report_nftw, (const char *path, __nftw_func_t function, int descriptors, int flags), (path, function, descriptors, flags))
WALK(nftw64, extended64, __nftw64_func_t, report_nftw64, (const char *path, __nftw64_func_t function, int descriptors, int flags), (path, function, descriptors, flags))

/* ---------------------------------------------------------------- glob */

static void *open_listed(const char *path) { return opendir(path); }
static struct dirent *next_listed(void *listed) { return readdir(listed); }
static struct dirent64 *next_listed64(void *listed) { return readdir64(listed); }
static void close_listed(void *listed) { closedir(listed); }
static int status_listed(const char *path, struct stat *into) { return stat(path, into); }
static int link_listed(const char *path, struct stat *into) { return lstat(path, into); }
static int status_listed64(const char *path, struct stat64 *into) { return stat64(path, into); }
static int link_listed64(const char *path, struct stat64 *into) { return lstat64(path, into); }

/* glob() takes the functions that it reads folders with: those of this object. */
#define GLOB(name, glob_type, next, status, status_of_link)                                                             \
    FILES_API int name(const char *pattern, int flags, int (*failed)(const char *, int), glob_type *found)              \
    {                                                                                                                   \
        if (!mapping_count || flags & GLOB_ALTDIRFUNC) return REAL(name)(pattern, flags, failed, found);                \
        glob_type kept = *found;                                                                                        \
        found->gl_opendir = open_listed;                                                                                \
        found->gl_readdir = next;                                                                                       \
        found->gl_closedir = close_listed;                                                                              \
        found->gl_stat = status;                                                                                        \
        found->gl_lstat = status_of_link;                                                                               \
        int result = REAL(name)(pattern, flags | GLOB_ALTDIRFUNC, failed, found);                                       \
        found->gl_opendir = kept.gl_opendir;                                                                            \
        found->gl_readdir = kept.gl_readdir;                                                                            \
        found->gl_closedir = kept.gl_closedir;                                                                          \
        found->gl_stat = kept.gl_stat;                                                                                  \
        found->gl_lstat = kept.gl_lstat;                                                                                \
        found->gl_flags &= ~GLOB_ALTDIRFUNC;                                                                            \
        return result;                                                                                                  \
    }

GLOB(glob, glob_t, next_listed, status_listed, link_listed)
GLOB(glob64, glob64_t, next_listed64, status_listed64, link_listed64)
