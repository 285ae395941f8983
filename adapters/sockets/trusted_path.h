/* trusted_path.h: interface of trusted_path.c, for the sockets adapter and the preload object of the omniORB adapter. */
#ifndef MOTET_SOCKETS_TRUSTED_PATH_H
#define MOTET_SOCKETS_TRUSTED_PATH_H

#include <stdbool.h>

bool trusted_root_unchanged(void); /* root and mount namespace are those of the process's start. Keeps errno */
bool trusted_may_load(char *path); /* whether the library at `path` is safe to load. May change errno */

#endif
