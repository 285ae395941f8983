/* beginning.c: the root and the user that the process began with.
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

static struct stat root;
static bool known;

bool beginning_see(const char *path, struct seen *file)
{
    struct stat now;
    int kept = errno;
    file->known = stat(path, &now) == 0;
    file->device = now.st_dev;
    file->inode = now.st_ino;
    errno = kept;
    return file->known;
}

/* After the environment (101). */
__attribute__((constructor(102))) static void begin(void)
{
    int kept = errno;
    known = getauxval(AT_SECURE) == 0 && stat("/", &root) == 0;
    errno = kept;
}

bool beginning_has_root(void)
{
    struct stat now;
    int kept = errno;
    bool same = known && stat("/", &now) == 0 && now.st_dev == root.st_dev && now.st_ino == root.st_ino;
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

bool beginning_may_load(char *path, const struct seen *file)
{
    struct seen now;
    if (!beginning_has_root()) return false;
    if (file && (!file->known || !beginning_see(path, &now) || now.device != file->device || now.inode != file->inode)) return false;
    char *slash = strrchr(path, '/');
    if (!slash || !is_safe(path, false)) return false;
    *slash = 0;
    bool safe = is_safe(slash == path ? "/" : path, true);
    *slash = '/';
    return safe;
}
