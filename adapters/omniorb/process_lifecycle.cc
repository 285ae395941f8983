/* process_lifecycle.cc: load, fork and exit.
 *
 * What it is:   the constructor that runs when preload.c loads this object, before the ORB is initialised; fork handlers; and the engine's
 *               shutdown at exit.
 *
 * Signal safety: none of this runs in a handler. Fork safety: motet_fork_prepare() and its counterparts are registered once. */
#include <pthread.h>

#include "adapter.h"

namespace motet_omniorb {

static bool active;

__attribute__((constructor)) static void on_load()
{
    /* While the major version is 0, a new minor version may change the interface. */
    if (motet_version() != (((uint32_t)MOTET_VERSION_MAJOR << 16) | MOTET_VERSION_MINOR)) return;
    if (!replace_tcp_transport()) return;
    active = true;
    pthread_atfork(motet_fork_prepare, motet_fork_parent, motet_fork_child);
}

__attribute__((destructor)) static void on_exit_or_unload()
{
    if (active) motet_before_exit();
}

} // namespace motet_omniorb
