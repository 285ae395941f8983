/* environment.c: the settings, as the process was started with them.
 *
 * What it is:   a copy of the environment variables that Motet reads. It is made before the program runs, as servers overwrite their
 *               environment with a process title (setproctitle) long before the first connection needs a setting.
 * What it isn't: the current environment. What the program changes there later applies to the programs that it starts.
 *
 * Signal safety: the copy is read-only after the constructor. Fork safety: a child has its parent's copy. errno: unchanged. */
#include "sockets.h"

#include <string.h>
#include <sys/auxv.h>

extern char **environ;

/* NAME=value strings, each with its terminating zero. Variables that do not fit are left out. */
static char copy[SHIM_ENVIRONMENT_BYTES];
static size_t length;
static bool recorded;

static bool is_motet_setting(const char *variable)
{
    static const char *const names[] = {"HOME=", "XDG_CONFIG_HOME=", "XDG_CACHE_HOME="};
    if (strncmp(variable, "MOTET_", 6) == 0) return strchr(variable, '=') != NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0) return true;
    return false;
}

/* Priority 101: runs before every other constructor of this object. A library that is initialised earlier may already call in. */
__attribute__((constructor(101))) static void record_environment(void)
{
    if (recorded) return;
    recorded = true;
    /* A set-user-ID program takes no settings from the user who starts it. */
    if (getauxval(AT_SECURE) != 0) return;
    for (char **at = environ; at && *at; at++) {
        if (!is_motet_setting(*at)) continue;
        size_t size = strlen(*at) + 1;
        if (size > sizeof copy - length) continue;
        memcpy(copy + length, *at, size);
        length += size;
    }
}

const char *environment_all(size_t *size)
{
    record_environment();
    *size = length;
    return copy;
}

const char *environment_get(const char *name)
{
    size_t size, wanted = strlen(name);
    const char *all = environment_all(&size);
    for (const char *at = all; at < all + size; at += strlen(at) + 1)
        if (strncmp(at, name, wanted) == 0 && at[wanted] == '=') return at + wanted + 1;
    return NULL;
}
