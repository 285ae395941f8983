/* real.c: the C library's own functions, found behind this object in the loader's search order.
 *
 * What it is:   one structure of pointers, filled by a constructor, or by the first call that comes earlier than that
 *               (another preloaded object's constructor).
 * What it isn't: a wrapper. Each pointer has the signature and the errors of the function that it names.
 *
 * Signal and fork safety: a pointer, once set, is never changed. real_resolve() calls only dlsym(), which on success
 * neither allocates nor makes a system call that is interposed here. It may run in two threads at once: both write the
 * same values. */
#include "shim.h"

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

__attribute__((constructor(101))) static void real_constructor(void) { real_resolve(); }
