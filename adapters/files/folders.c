/* folders.c: the current directory, and canonical paths.
 *
 * What it is:   chdir() into mapped folders, and names of folders as the program knows them.
 * What it isn't: a record of the current directory. The kernel has it; its name is translated whenever it is asked.
 *
 * Signal safety: that of libc's functions; getcwd() and realpath() allocate where libc's do. errno: theirs. */
#include "files.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

void __chk_fail(void) __attribute__((noreturn));

PATH_CALL(int, -1, chdir, (const char *path), (path), AT_FDCWD, USE_LOOK)
PATH_CALL(int, -1, chroot, (const char *path), (path), AT_FDCWD, USE_LOOK)

FILES_API int fchdir(int fd)
{
    may_be_inside = mapping_count > 0;
    return REAL(fchdir)(fd);
}

/* ---------------------------------------------------------------- the current directory */

static NOINLINE char *shown_current(char *into, size_t size)
{
    char shown[PATH_MAX];
    size_t length = folder_shown(AT_FDCWD, shown);
    if (length == 0) return NULL;
    if (!into && size == 0) size = length + 1;
    if (into && size == 0) return errno = EINVAL, NULL;
    if (length + 1 > size) return errno = ERANGE, NULL;
    if (!into && !(into = malloc(size))) return NULL;
    return memcpy(into, shown, length + 1);
}

FILES_API char *getcwd(char *into, size_t size)
{
    char real[PATH_MAX];
    long length = mapping_count && may_be_inside ? RAW(SYS_getcwd, real, sizeof real, 0, 0) : 0;
    if (UNLIKELY(length > 1) && mapping_by_folder(real, (size_t)length - 1)) return shown_current(into, size);
    return REAL(getcwd)(into, size);
}

FILES_API char *__getcwd_chk(char *into, size_t size, size_t room)
{
    if (size > room) __chk_fail();
    return getcwd(into, size);
}

FILES_API char *getwd(char *into)
{
    char *result = getcwd(into, PATH_MAX);
    return result;
}

FILES_API char *get_current_dir_name(void)
{
    if (!mapping_count || !may_be_inside) return REAL(get_current_dir_name)();
    return getcwd(NULL, 0);
}

/* ---------------------------------------------------------------- canonical paths */

static NOINLINE char *real_path_mapped(const char *path, char *into) { MAPPED(char *, NULL, AT_FDCWD, USE_LOOK, REAL(realpath)(path, into)); }

static char *real_path(const char *path, char *into)
{
    PLAIN_OR(char *, NULL, AT_FDCWD, USE_LOOK, REAL(realpath)(path, into), real_path_mapped(path, into));
}

/* Libc's answer, which is the kernel's path, as the program knows it. */
static NOINLINE char *show_answer(char *answer, char *into)
{
    char shown[PATH_MAX];
    size_t length = path_shown(answer, strlen(answer), shown);
    if (length < PATH_MAX && into) return memcpy(into, shown, length + 1);
    if (!into) free(answer);
    if (length < PATH_MAX) return strdup(shown);
    errno = ENAMETOOLONG;
    return NULL;
}

FILES_API char *realpath(const char *path, char *into)
{
    char *answer = real_path(path, into);
    if (LIKELY(!answer || !mapping_count || !mapping_by_folder(answer, strlen(answer)))) return answer;
    return show_answer(answer, into);
}

FILES_API char *canonicalize_file_name(const char *path) { return realpath(path, NULL); }

FILES_API char *__realpath_chk(const char *path, char *into, size_t room)
{
    if (room < PATH_MAX) __chk_fail();
    return realpath(path, into);
}
