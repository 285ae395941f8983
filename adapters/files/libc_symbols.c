/* libc_symbols.c: libc's own functions, found behind this object in the loader's search order, each at its first call.
 *
 * What it isn't: a table that is filled at the start: most programs need few of them, and a start shall cost little.
 *
 * Signal and fork safety: dlsym() neither allocates nor calls what is interposed here; two threads may store the same value. errno: kept. */
#include "files.h"

#include <dlfcn.h>

void *real_calls[REAL_COUNT];

/* Names without pointers: nothing to relocate. */
static const struct {
#define X(name) char name##_[sizeof #name];
    REAL_LIST(X)
#undef X
} texts = {
#define X(name) #name,
    REAL_LIST(X)
#undef X
};

static const unsigned short offsets[REAL_COUNT] = {
#define X(name) offsetof(__typeof__(texts), name##_),
    REAL_LIST(X)
#undef X
};

static long missing(void)
{
    errno = ENOSYS;
    return -1;
}

void *real_find(unsigned call)
{
    int kept = errno;
    void *address = dlsym(RTLD_NEXT, (const char *)&texts + offsets[call]);
    if (!address) address = (void *)missing;
    __atomic_store_n(&real_calls[call], address, __ATOMIC_RELAXED);
    errno = kept;
    return address;
}
