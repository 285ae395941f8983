/* paths.c: from the program's path to that of the kernel, and back.
 *
 * What it is:   the decision whether a path concerns a prefix, and the path that the kernel gets. A path without `..` is compared byte by byte.
 *               A relative path goes to the kernel as it is, as the current directory is a real one, unless it leads across a prefix: then the
 *               current directory is asked from the kernel.
 * What it isn't: a resolver of symbolic links; see links.c. The kernel follows those that it finds.
 *
 * Signal, fork and vfork safety: stack and system calls only. errno: set only where NULL is returned. */
#include "files.h"

#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define PAGE_BYTES FILES_PAGE_BYTES
#define CHANGES (USE_CHANGE | USE_CREATE)

/* ---------------------------------------------------------------- does a path concern a prefix? */

static size_t left_in_page(const char *at) { return PAGE_BYTES - (uintptr_t)at % PAGE_BYTES; }

static bool ends_name(char byte) { return byte == 0 || byte == '/'; }

/* Whether a component that begins here is empty, `.` or `..`. True also if that cannot be read. */
static bool is_odd(const char *name)
{
    if (left_in_page(name) < 3 && !(readable(name) && readable(name + 2))) return true;
    if (*name != '.') return *name == '/';
    return ends_name(name[1]) || (name[1] == '.' && ends_name(name[2]));
}

/* Whether a component after the first slash is empty, `.` or `..`. True also if the path cannot be read to its end. */
static bool has_odd_component(const char *at)
{
    for (;;) {
#if defined(__SSE2__)
        while (left_in_page(at) > 16) {
            __m128i slash = _mm_set1_epi8('/');
            __m128i bytes = _mm_loadu_si128((const __m128i *)at), next = _mm_loadu_si128((const __m128i *)(at + 1));
            __m128i pairs = _mm_and_si128(_mm_cmpeq_epi8(bytes, slash),
                                          _mm_or_si128(_mm_cmpeq_epi8(next, slash), _mm_cmpeq_epi8(next, _mm_set1_epi8('.'))));
            unsigned found = (unsigned)_mm_movemask_epi8(pairs);
            unsigned ends = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_setzero_si128()));
            if (ends) found &= (ends & -ends) - 1;
            for (; UNLIKELY(found); found &= found - 1)
                if (is_odd(at + __builtin_ctz(found) + 1)) return true;
            if (ends) return false;
            at += 16;
        }
#endif
        if (*at == 0) return false;
        if (left_in_page(at) == 1 && !readable(at + 1)) return true;
        if (*at == '/' && (at[1] == '/' || at[1] == '.') && is_odd(at + 1)) return true;
        at++;
    }
}

/* A path as its components say, without regard to symbolic links. */
struct lexical {
    char *path; /* "" or "/a/b"; its base at first */
    size_t length;
    const struct mapping *base; /* that of the base */
    bool crossed;               /* a step had another mapping than the base */
    bool climbed;               /* there was a `..` */
};

/* Appends a path. False: longer than PATH_MAX. */
static bool append(struct lexical *to, const char *path)
{
    for (const char *at = path; *at;) {
        size_t length = strcspn(at, "/");
        if (length == 2 && at[0] == '.' && at[1] == '.') {
            to->climbed = true;
            while (to->length > 0 && to->path[--to->length] != '/') {}
        } else if (length > 0 && !(length == 1 && at[0] == '.')) {
            if (to->length + length + 2 >= PATH_MAX) return false;
            to->path[to->length] = '/';
            memcpy(to->path + to->length + 1, at, length);
            to->length += length + 1;
        }
        to->path[to->length] = 0;
        to->crossed |= mapping_of(to->path, to->length) != to->base;
        at += length + (at[length] == '/');
    }
    return true;
}

static NOINLINE bool absolute_is_plain(const char *path)
{
    char buffer[PATH_MAX];
    struct lexical lexical = {.path = buffer};
    size_t length = path_length(path);
    if (length >= PATH_MAX) return true;
    if (!has_odd_component(path)) return !mapping_of(path, length);
    buffer[0] = 0;
    return !append(&lexical, path) || !lexical.crossed;
}

static NOINLINE bool relative_is_plain(int folder, const char *path)
{
    bool climbs = false, meets = false, first = true;
    if (confined || path_length(path) >= PATH_MAX) return true;
    for (const char *at = path; *at;) {
        size_t length = strcspn(at, "/");
        if (length == 2 && at[0] == '.' && at[1] == '.')
            climbs = true;
        else if (length > 0 && !(length == 1 && at[0] == '.')) {
            meets |= (first || climbs) && is_prefix_component(at, length);
            first = false;
        }
        at += length + (at[length] == '/');
    }
    return !(meets || (climbs && (may_be_inside || folder != AT_FDCWD)));
}

bool path_is_plain(int folder, const char *path, unsigned use)
{
    if (UNLIKELY(mapping_count == 0) || UNLIKELY(!readable(path))) return true;
    if (*path == '/') {
        if (UNLIKELY(left_in_page(path) == 1) && !readable(path + 1)) return true;
        return LIKELY(!(first_bytes[(unsigned char)path[1]] & BEGINS_PREFIX) && !has_odd_component(path)) || absolute_is_plain(path);
    }
    if (*path == 0) return true;
    if (UNLIKELY(any_read_only && !confined && use & CHANGES && (may_be_inside || folder != AT_FDCWD))) return false;
    return LIKELY(*path != '.' && !first_bytes[(unsigned char)*path] && !has_odd_component(path)) || relative_is_plain(folder, path);
}

/* ---------------------------------------------------------------- names of the kernel and of the program */

/* Replaces the first `from` bytes of a path. False: too long. */
static bool replace_start(char path[PATH_MAX], size_t *length, size_t from, struct text start)
{
    if (start.length == 1) start.length = 0; /* "/" before a rest that begins with a slash */
    size_t now = *length - from + start.length;
    if (now >= PATH_MAX) return false;
    memmove(path + start.length, path + from, *length - from);
    memcpy(path, start.at, start.length);
    if (now == 0) path[now++] = '/';
    path[now] = 0;
    *length = now;
    return true;
}

static size_t show(char path[PATH_MAX], size_t length)
{
    const struct mapping *mapping = mapping_by_folder(path, length);
    if (!mapping) return length;
    return replace_start(path, &length, mapping->folder.length == 1 ? 0 : mapping->folder.length, mapping->prefix) ? length : PATH_MAX;
}

size_t path_shown(const char *real, size_t length, char shown[PATH_MAX])
{
    if (length >= PATH_MAX) return PATH_MAX;
    memcpy(shown, real, length);
    shown[length] = 0;
    return show(shown, length);
}

static const char *name_of_descriptor(int fd, char name[32])
{
    char digits[12];
    size_t count = 0;
    for (unsigned rest = (unsigned)fd; rest || !count; rest /= 10) digits[count++] = (char)('0' + rest % 10);
    char *to = stpcpy(name, "/proc/self/fd/");
    while (count) *to++ = digits[--count];
    *to = 0;
    return name;
}

/* The kernel's name of a folder. 0: not known. */
static size_t folder_real(int folder, char real[PATH_MAX])
{
    char name[32];
    long length;
    if (folder == AT_FDCWD)
        length = RAW(SYS_getcwd, real, PATH_MAX, 0, 0) - 1;
    else if (folder < 0)
        return 0;
    else
        length = RAW(SYS_readlinkat, AT_FDCWD, name_of_descriptor(folder, name), real, PATH_MAX - 1);
    if (length <= 0 || real[0] != '/') return 0;
    real[length] = 0;
    return (size_t)length;
}

size_t folder_shown(int folder, char shown[PATH_MAX])
{
    size_t length = folder_real(folder, shown);
    if (length) length = show(shown, length);
    return length < PATH_MAX ? length : 0;
}

const struct mapping *mapping_of_descriptor(int fd)
{
    char real[PATH_MAX];
    size_t length = folder_real(fd, real);
    return length ? mapping_by_folder(real, length) : NULL;
}

bool path_real(const char *shown, size_t length, char real[PATH_MAX], const struct mapping **mapping)
{
    if (length >= PATH_MAX) return false;
    *mapping = mapping_of(shown, length);
    memmove(real, shown, length);
    real[length] = 0;
    return !*mapping || replace_start(real, &length, (*mapping)->prefix.length, (*mapping)->folder);
}

/* ---------------------------------------------------------------- the path for the kernel */

static const char *refused(int error)
{
    errno = error;
    return NULL;
}

const char *allowed(const struct mapping *mapping, const char *real, unsigned use)
{
    if (!mapping) return real;
    may_be_inside = true;
    size_t root = mapping->folder.length;
    if (use & USE_REMOVE && strncmp(real, mapping->folder.at, root) == 0 && real[root + strspn(real + root, "/")] == 0) return refused(EBUSY);
    if (!mapping->read_only || !(use & CHANGES)) return real;
    if (confined) return refused(EROFS);
    struct stat status;
    long result = RAW(SYS_newfstatat, AT_FDCWD, real, &status, use & USE_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0);
    if (result < 0) return refused(result == -ENOENT && use & USE_CREATE ? EROFS : (int)-result);
    if (use & USE_NEW) return refused(EEXIST);
    return use & USE_CHANGE ? refused(EROFS) : real;
}

/* The path for the kernel of one that leads across a prefix by `..`. */
static const char *map_followed(const char *base, const char *path, unsigned use, char buffer[PATH_MAX])
{
    char shown[PATH_MAX];
    const struct mapping *mapping;
    bool linked;
    if (!follow(base, path, use, shown, &linked)) return NULL;
    if (!path_real(shown, strlen(shown), buffer, &mapping)) return refused(ENAMETOOLONG);
    return allowed(mapping, buffer, use);
}

static NOINLINE const char *map_relative_followed(int folder, const char *path, unsigned use, char buffer[PATH_MAX])
{
    char base[PATH_MAX];
    return folder_shown(folder, base) ? map_followed(base, path, use, buffer) : path;
}

/* The path of `lexical`, which is in `buffer`, for the kernel. */
static const char *map_lexical(struct lexical *lexical, bool slash, unsigned use, char buffer[PATH_MAX])
{
    const struct mapping *mapping = mapping_of(buffer, lexical->length);
    if (slash && lexical->length + 1 < PATH_MAX) strcpy(buffer + lexical->length++, "/");
    if (mapping && !replace_start(buffer, &lexical->length, mapping->prefix.length, mapping->folder)) return refused(ENAMETOOLONG);
    if (lexical->length == 0) strcpy(buffer, "/");
    return allowed(mapping, buffer, use);
}

static const char *map_relative(int folder, const char *path, bool slash, unsigned use, char buffer[PATH_MAX])
{
    struct lexical lexical = {.path = buffer, .length = folder_shown(folder, buffer)};
    if (lexical.length == 0) return path;
    if (lexical.length == 1) lexical.length = 0;
    lexical.base = mapping_of(buffer, lexical.length);
    if (!append(&lexical, path)) return path;
    if (lexical.crossed) return lexical.climbed ? map_relative_followed(folder, path, use, buffer) : map_lexical(&lexical, slash, use, buffer);
    /* The kernel's way is the same. */
    if (!lexical.base || !lexical.base->read_only || !(use & CHANGES)) return path;
    return map_lexical(&lexical, slash, use, buffer) ? path : NULL;
}

const char *path_map(int folder, const char *path, unsigned use, char buffer[PATH_MAX])
{
    size_t length = path_length(path);
    if (length >= PATH_MAX || length == 0) return path;
    bool slash = path[length - 1] == '/' || (path[length - 1] == '.' && length > 1 && path[length - 2] == '/');
    if (*path != '/') return map_relative(folder, path, slash, use, buffer);
    struct lexical lexical = {.path = buffer};
    buffer[0] = 0;
    if (!append(&lexical, path) || !lexical.crossed) return path;
    return lexical.climbed ? map_followed("", path, use, buffer) : map_lexical(&lexical, slash, use, buffer);
}

/* ---------------------------------------------------------------- paths that the kernel did not find */

/* The folder of a name exists by the kernel's own way: a name that is missing there is missing. It is asked each time, as a folder may become a link. */
static NOINLINE bool folder_exists(const char *path, size_t length)
{
    char folder[PATH_MAX];
    memcpy(folder, path, length);
    folder[length] = 0;
    return RAW(SYS_faccessat, AT_FDCWD, folder, F_OK, 0) == 0;
}

static bool any_link(int folder, const char *path, unsigned use)
{
    struct open_how how = {.flags = O_PATH | O_CLOEXEC | (use & USE_NOFOLLOW ? O_NOFOLLOW : 0), .resolve = RESOLVE_NO_SYMLINKS};
    long result = RAW(SYS_openat2, folder, path, &how, sizeof how);
    if (result >= 0) RAW(SYS_close, result, 0, 0, 0);
    return result == -ELOOP;
}

bool path_meets_link(int folder, const char *path, unsigned use)
{
    char byte;
    size_t length = mapping_count && !confined ? path_length(path) : 0;
    if (length == 0 || length >= PATH_MAX) return false;
    if (path[length - 1] == '/') return any_link(folder, path, use);
    if (!(use & USE_NOFOLLOW) && RAW(SYS_readlinkat, folder, path, &byte, 1) > 0) return true;
    while (length > 0 && path[length - 1] != '/') length--;
    /* The folder of the name is the current one or the root. */
    if (length <= 1) return false;
    if (*path != '/') return any_link(folder, path, use);
    return !folder_exists(path, length) && any_link(folder, path, use);
}

const char *path_through_links(int folder, const char *path, unsigned use, char buffer[PATH_MAX])
{
    char base[PATH_MAX], shown[PATH_MAX];
    const struct mapping *mapping;
    bool linked;
    size_t length = path_length(path);
    if (length >= PATH_MAX || length == 0) return NULL;
    const char *real = path_map(folder, path, use, buffer);
    if (!real) return NULL;
    errno = ENOENT;
    if (!path_meets_link(folder, real, use)) return NULL;
    base[0] = 0;
    if (*path != '/' && !folder_shown(folder, base)) return NULL;
    if (!follow(base, path, use, shown, &linked) || !linked) return NULL;
    if (!path_real(shown, strlen(shown), buffer, &mapping)) return refused(ENAMETOOLONG);
    return allowed(mapping, buffer, use);
}
