/* life.cc: the process's turns: loading, fork, exit.
 *
 * What it is:   what happens when shim.c loads this object, before the ORB is initialised; fork handlers and the engine's leave, as
 *               every voice has them. */
#include <pthread.h>

#include "adapter.h"

namespace motet_omniorb {

static bool in_use;

__attribute__((constructor)) static void begin()
{
    /* While the major version is 0 the minor one may change the interface. */
    if (motet_version() != (((uint32_t)MOTET_VERSION_MAJOR << 16) | MOTET_VERSION_MINOR)) return;
    if (!stand_in_for_tcp()) return;
    in_use = true;
    pthread_atfork(motet_fork_prepare, motet_fork_parent, motet_fork_child);
}

__attribute__((destructor)) static void end()
{
    if (in_use) motet_leave();
}

} // namespace motet_omniorb
