/* trusted_path.c: decides whether a library may be loaded by its path.
 *
 * What it is:   two checks. The root directory and the mount namespace must be those of the process's start: after a chroot the same path
 *               leads to another file and to other dependencies. The file and its directory must be writable for root only, or for the user
 *               that the process has run as from its start, or for its group.
 * What it isn't: a check of the directories further up. Who may rename those is the administrator's choice.
 *
 * Signal safety: system calls only. Fork safety: the recorded root does not change after the constructor. */
#include "trusted_path.h"

#include <errno.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOUNT_NAMESPACE "/proc/self/ns/mnt"

static struct root_identity {
    dev_t device;
    ino_t inode, namespace_inode; /* inode 0: not known, nothing is trusted. namespace_inode 0: there is no /proc */
} initial_root;

static bool read_root_identity(struct root_identity *root_identity)
{
    struct stat root, namespace_inode;
    if (stat("/", &root) != 0) return false;
    *root_identity = (struct root_identity){root.st_dev, root.st_ino, stat(MOUNT_NAMESPACE, &namespace_inode) == 0 ? namespace_inode.st_ino : 0};
    return true;
}

/* Priority 102: runs after the constructor of environment.c (101). */
__attribute__((constructor(102))) static void record_initial_root(void)
{
    int kept = errno;
    if (getauxval(AT_SECURE) != 0 || !read_root_identity(&initial_root)) initial_root.inode = 0;
    errno = kept;
}

bool trusted_root_unchanged(void)
{
    struct root_identity now;
    int kept = errno;
    bool same = initial_root.inode != 0 && read_root_identity(&now) &&
                now.device == initial_root.device && now.inode == initial_root.inode && now.namespace_inode == initial_root.namespace_inode;
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

bool trusted_may_load(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || !trusted_root_unchanged() || !is_safe(path, false)) return false;
    *slash = 0;
    bool safe = is_safe(slash == path ? "/" : path, true);
    *slash = '/';
    return safe;
}
