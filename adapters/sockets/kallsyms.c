/* kallsyms.c: answers libfabric's lookup of two kernel symbols without a scan of all symbols.
 *
 * What it is:   at its start libfabric searches /proc/kallsyms twice for two InfiniBand functions (for device memory), whatever providers it will
 *               use. It reads lines of 1 KiB at a time, which takes 70 ms of CPU in each rank and far more where ranks share CPUs. A kernel
 *               without /sys/class/infiniband has neither function; there libfabric reads an empty file instead, with the same result.
 * What it isn't: active for other callers of fopen(), outside of MPI jobs under `motet run`, or where there is InfiniBand.
 *
 * Signal safety: none, as libc's fopen(). Fork safety: no state. errno: kept. */
#include "sockets.h"

#include <dlfcn.h>
#include <string.h>

#define KALLSYMS "/proc/kallsyms"
#define INFINIBAND_CLASS "/sys/class/infiniband"
#define MPI_SETTING "MOTET_MPI_SET" /* set by `motet run` */

/* True for files like libfabric.so.1 and libverbs-fi.so. */
static bool is_libfabric(const void *caller)
{
    static const char core[] = "libfabric.so", provider[] = "-fi.so";
    Dl_info where;
    if (dladdr(caller, &where) == 0 || !where.dli_fname) return false;
    const char *slash = strrchr(where.dli_fname, '/'), *name = slash ? slash + 1 : where.dli_fname;
    size_t length = strlen(name), end = sizeof provider - 1;
    return strncmp(name, core, sizeof core - 1) == 0 || (length > end && strcmp(name + length - end, provider) == 0);
}

static bool answers_empty(const void *caller)
{
    int kept = errno;
    bool spared = environment_get(MPI_SETTING) && !engine_disabled() && is_libfabric(caller) && access(INFINIBAND_CLASS, F_OK) != 0;
    errno = kept;
    return spared;
}

SHIM_API FILE *fopen(const char *path, const char *mode)
{
    if (UNLIKELY(path && strcmp(path, KALLSYMS) == 0) && answers_empty(__builtin_return_address(0))) path = "/dev/null";
    return fd_reuse_check_file(REAL(fopen)(path, mode));
}
