/* beginning.c: the root, the mount namespace and the user that the process began with.
 *
 * What it is:   whether a library may be loaded by its path: the root is the one of the start (a chroot, or another mount namespace, would
 *               lead to somebody else's file, and to somebody else's of those that it needs), and nobody can have put something else there
 *               but root, or the user that this process has been all along.
 * What it isn't: a look at every folder above: who can rename those is the administrator's choice.
 *
 * Signal safety: system calls only. Fork safety: never changed after the constructor. */
#include "beginning.h"

#include <errno.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAMESPACE "/proc/self/ns/mnt"

static struct place {
    dev_t device;
    ino_t inode, space; /* 0: no /proc to ask */
} at_start;

static bool look(struct place *place)
{
    struct stat root, space;
    if (stat("/", &root) != 0) return false;
    *place = (struct place){root.st_dev, root.st_ino, stat(NAMESPACE, &space) == 0 ? space.st_ino : 0};
    return true;
}

/* After the environment (101). */
__attribute__((constructor(102))) static void begin(void)
{
    int kept = errno;
    if (getauxval(AT_SECURE) != 0 || !look(&at_start)) at_start.inode = 0;
    errno = kept;
}

bool beginning_has_root(void)
{
    struct place now;
    int kept = errno;
    bool same = at_start.inode != 0 && look(&now) && now.device == at_start.device && now.inode == at_start.inode && now.space == at_start.space;
    errno = kept;
    return same;
}

static bool is_safe(const char *path, bool folder)
{
    struct stat now;
    uid_t user = geteuid();
    if (stat(path, &now) != 0) return false;
    if (now.st_uid != 0 && (now.st_uid != user || getauxval(AT_EUID) != user)) return false;
    bool group = (now.st_mode & S_IWGRP) && now.st_gid != 0 && now.st_gid != getegid();
    bool sticky = folder && (now.st_mode & S_ISVTX);
    return sticky || !(group || (now.st_mode & S_IWOTH));
}

bool beginning_may_load(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || !beginning_has_root() || !is_safe(path, false)) return false;
    *slash = 0;
    bool safe = is_safe(slash == path ? "/" : path, true);
    *slash = '/';
    return safe;
}
