/* libc_symbols.c: pointers to libc's own functions, found behind this object in the loader's search order.
 *
 * What it is:   one structure of pointers. A constructor fills it, or the first call that comes earlier (from another preloaded object's
 *               constructor).
 * What it isn't: a wrapper. Each pointer has the signature and the errors of the function that it names.
 *
 * Signal and fork safety: a pointer that is set never changes. real_resolve() calls only dlsym(), which on success neither allocates nor
 * makes a system call that is interposed here. Two threads may run it at once: both write the same values. errno: kept. */
#include "sockets.h"

#include <dlfcn.h>

struct real_calls real_calls;

void real_resolve(void)
{
    int kept = errno;
#define X(type, name, arguments)                                                                                        \
    if (real_calls.name == NULL)                                                                                        \
        __atomic_store_n((void **)&real_calls.name, dlsym(RTLD_NEXT, #name), __ATOMIC_RELEASE);
    REAL_LIST(X)
#undef X
    errno = kept;
}

__attribute__((constructor(101))) static void resolve_at_load(void) { real_resolve(); }
