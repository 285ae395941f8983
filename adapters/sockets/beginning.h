/* beginning.h: what beginning.c tells; of the sockets voice and the omniORB voice. */
#ifndef MOTET_BEGINNING_H
#define MOTET_BEGINNING_H

#include <stdbool.h>
#include <sys/types.h>

/* Which file was at a path. */
struct seen {
    dev_t device;
    ino_t inode;
    bool known;
};
bool beginning_see(const char *path, struct seen *file);
bool beginning_has_root(void);                                     /* the root is the one that the process began with */
bool beginning_may_load(char *path, const struct seen *file);      /* the library at `path`; `file`, unless NULL: what it must be still */

#endif
