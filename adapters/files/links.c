/* links.c: symbolic links and `..` that lead across a prefix.
 *
 * What it is:   path resolution as the kernel does it (path_resolution(7)), component by component, over the names that the program sees: a
 *               prefix counts as a folder, and a link may lead into one or out of it. Used for paths with `..` that cross a prefix, and
 *               after ENOENT.
 * What it isn't: used for other paths; the kernel is faster. Links of /proc are left to the kernel, as their texts are no paths.
 *
 * Signal, fork and vfork safety: stack and system calls only. errno: set only on failure. */
#include "files.h"

#include <sys/stat.h>
#include <sys/syscall.h>

#define LINKS_MAX 40 /* of the kernel */

static bool fail(int error)
{
    errno = error;
    return false;
}

static bool is_in_proc(const char *path) { return strncmp(path, "/proc/", 6) == 0; }

/* Reads a link of the program's path. Returns the length, or minus an error number. */
static long read_link(const char *shown, size_t length, char target[PATH_MAX])
{
    char real[PATH_MAX];
    const struct mapping *mapping;
    if (is_in_proc(shown)) return -EINVAL;
    if (!path_real(shown, length, real, &mapping)) return -ENAMETOOLONG;
    return RAW(SYS_readlinkat, AT_FDCWD, real, target, PATH_MAX - 1);
}

/* Puts the text of a link before the rest of the path, which ends the buffer. */
static bool put_before(char pending[PATH_MAX], size_t *at, const char *target, size_t length)
{
    if (length + 1 > *at) return false;
    pending[--*at] = '/';
    *at -= length;
    memcpy(pending + *at, target, length);
    return true;
}

static bool is_folder(const char *shown, size_t length)
{
    char real[PATH_MAX];
    const struct mapping *mapping;
    struct stat status;
    return is_in_proc(shown) || (path_real(shown, length, real, &mapping) && RAW(SYS_newfstatat, AT_FDCWD, real, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(status.st_mode));
}

/* Leaves the rest of a path to the kernel. */
static bool append_rest(char out[PATH_MAX], size_t length, const char *rest)
{
    size_t left = strlen(rest);
    if (length + left + 2 >= PATH_MAX) return fail(ENAMETOOLONG);
    out[length] = '/';
    memcpy(out + length + 1, rest, left + 1);
    return true;
}

bool follow(const char *start, const char *path, unsigned use, char out[PATH_MAX], bool *linked)
{
    char pending[PATH_MAX], target[PATH_MAX];
    size_t length = *path == '/' || start[1] == 0 ? 0 : strlen(start), rest = strlen(path), at = sizeof pending - 1 - rest, links = 0;
    bool ends_with_slash = false;
    *linked = false;
    if (rest >= sizeof pending) return fail(ENAMETOOLONG);
    memcpy(pending + at, path, rest + 1);
    memcpy(out, start, length);
    out[length] = 0;
    while (pending[at]) {
        size_t name = strcspn(pending + at, "/");
        const char *component = pending + at;
        at += name + (component[name] == '/');
        bool last = pending[at + strspn(pending + at, "/")] == 0, slash = component[name] == '/';
        bool here = name == 1 && *component == '.', up = name == 2 && component[0] == '.' && component[1] == '.';
        if (name == 0) continue;
        ends_with_slash = slash;
        /* Only a folder has these names. */
        if ((here || up) && length > 0 && !is_folder(out, length)) return append_rest(out, length, component);
        if (here) continue;
        if (up) {
            while (length > 0 && out[--length] != '/') {}
            out[length] = 0;
            continue;
        }
        if (length + name + 2 >= PATH_MAX) return fail(ENAMETOOLONG);
        size_t before = length;
        out[length++] = '/';
        memcpy(out + length, component, name);
        out[length += name] = 0;
        if (last && use & USE_NOFOLLOW && !slash) break;
        long got = read_link(out, length, target);
        if (got == -EINVAL) continue;
        if (got < 0) {
            /* The kernel finds the same error. */
            if (slash) return append_rest(out, length, pending + at);
            break;
        }
        *linked = true;
        if (++links > LINKS_MAX) return fail(ELOOP);
        if (last && !slash) {
            /* A target without a slash at the end is followed as a last component is. */
            if ((size_t)got >= at) return fail(ENAMETOOLONG);
            at -= (size_t)got;
            memcpy(pending + at, target, (size_t)got);
        } else if (!put_before(pending, &at, target, (size_t)got))
            return fail(ENAMETOOLONG);
        length = target[0] == '/' ? 0 : before;
        out[length] = 0;
    }
    if (length == 0 || (ends_with_slash && length + 1 < PATH_MAX)) strcpy(out + length, "/");
    return true;
}
