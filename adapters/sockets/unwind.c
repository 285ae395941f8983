/* unwind.c: the two functions of the C unwinder that cleanup handlers refer to.
 *
 * What it is:   forwarders to libgcc_s, which are resolved when a thread is cancelled inside a call of this object; libc has loaded libgcc_s
 *               by then. They let this object be linked to libc only, so processes without sockets load no other library.
 * What it isn't: an unwinder.
 *
 * Signal and fork safety: as thread cancellation in libc. */
#include "sockets.h"

#include <dlfcn.h>
#include <stdlib.h>

/* Names of the Itanium C++ ABI; <unwind.h> would give them default visibility. */
void _Unwind_Resume(void *exception) __attribute__((visibility("hidden"), noreturn));
int __gcc_personality_v0(int version, int actions, uint64_t class, void *exception, void *context)
    __attribute__((visibility("hidden")));

static void *unwinder(const char *name)
{
    void *library = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, name) : NULL;
    if (!symbol) abort(); /* libc, too, aborts when it cannot unwind */
    return symbol;
}

void _Unwind_Resume(void *exception)
{
    void (*resume)(void *) = (void (*)(void *))(uintptr_t)unwinder("_Unwind_Resume");
    resume(exception);
    abort();
}

int __gcc_personality_v0(int version, int actions, uint64_t class, void *exception, void *context)
{
    __typeof__(&__gcc_personality_v0) personality =
        (__typeof__(&__gcc_personality_v0))(uintptr_t)unwinder("__gcc_personality_v0");
    return personality(version, actions, class, exception, context);
}
