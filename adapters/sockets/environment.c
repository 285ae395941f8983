/* environment.c: the settings, as the process was started with them.
 *
 * What it is:   a copy of the variables that Motet reads, made before the program runs: servers write their titles over the
 *               environment (setproctitle), long before the first connection needs a setting.
 * What it isn't: the environment. What the program changes there later is for the programs that it starts.
 *
 * Signal safety: reads only, once copied. Fork safety: never changed after the constructor. */
#include "shim.h"

#include <string.h>
#include <sys/auxv.h>

extern char **environ;

/* NAME=value, each with its zero. A program that sets more than fits here loses the last ones. */
static char copy[SHIM_ENVIRONMENT];
static size_t length;
static bool taken;

static bool is_ours(const char *variable)
{
    static const char *const names[] = {"HOME=", "XDG_CONFIG_HOME=", "XDG_CACHE_HOME="};
    if (strncmp(variable, "MOTET_", 6) == 0) return strchr(variable, '=') != NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0) return true;
    return false;
}

/* 101: before every other constructor of this object. A library that is initialised earlier may already call in. */
__attribute__((constructor(101))) static void take(void)
{
    if (taken) return;
    taken = true;
    /* A program with raised privileges is not led by whoever started it. */
    if (getauxval(AT_SECURE) != 0) return;
    for (char **at = environ; at && *at; at++) {
        if (!is_ours(*at)) continue;
        size_t size = strlen(*at) + 1;
        if (size > sizeof copy - length) continue;
        memcpy(copy + length, *at, size);
        length += size;
    }
}

const char *environment_all(size_t *size)
{
    take();
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
