/* libraries.c: shared libraries that a program loads by path.
 *
 * What it is:   dlopen() of a path beneath a prefix.
 * What it isn't: a change of the loader's own search. A library that another one needs is found by the kernel's paths only: beside it through $ORIGIN,
 *               or by LD_LIBRARY_PATH, to which environment.c adds the real folders.
 *
 * Signal safety: none, as in libc. errno: libc's. */
#include "files.h"

#include <dlfcn.h>

static NOINLINE void *open_mapped(const char *path, int flags)
{
    char buffer[PATH_MAX];
    const char *real = path_map(AT_FDCWD, path, USE_LOOK, buffer);
    return REAL(dlopen)(real ? real : path, flags);
}

/* Libc looks at its caller's address to find the folders that the caller's library names: the call must be a jump, as it is with -O2. */
FILES_API __attribute__((optimize("O2"))) void *dlopen(const char *path, int flags)
{
    if (path && UNLIKELY(!path_is_plain(AT_FDCWD, path, USE_LOOK)) && strchr(path, '/')) return open_mapped(path, flags);
    return REAL(dlopen)(path, flags);
}
