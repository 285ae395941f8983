/* beginning.h: what beginning.c tells; of the sockets voice and the omniORB voice. */
#ifndef MOTET_BEGINNING_H
#define MOTET_BEGINNING_H

#include <stdbool.h>

bool beginning_has_root(void);          /* root and mount namespace are those that the process began with */
bool beginning_may_load(char *path);    /* the library at `path` */

#endif
