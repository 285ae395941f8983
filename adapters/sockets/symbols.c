/* symbols.c: a question of libfabric's that is answered without a look at every symbol of the kernel.
 *
 * What it is:   libfabric asks as it starts whether the kernel has two functions of InfiniBand's (for memory of devices), whatever
 *               providers it may use: it reads all of /proc/kallsyms twice, lines of 1 KiB at a time, 70 ms of CPU in each rank
 *               and far more where ranks share CPUs. A kernel without /sys/class/infiniband has neither function, so there it reads
 *               an empty file, which says the same.
 * What it isn't: for anybody but libfabric and its providers, in jobs of MPI under `motet run`, nor where there is InfiniBand.
 *
 * Signal safety: as the C library's fopen: not to be called in a handler. */
#include "shim.h"

#include <dlfcn.h>
#include <string.h>

#define SYMBOLS "/proc/kallsyms"
#define INFINIBAND "/sys/class/infiniband"
#define TOLD "MOTET_MPI_SET" /* by `motet run` */

/* libfabric.so.1; libverbs-fi.so */
static bool is_libfabric(const void *caller)
{
    static const char core[] = "libfabric.so", provider[] = "-fi.so";
    Dl_info where;
    if (dladdr(caller, &where) == 0 || !where.dli_fname) return false;
    const char *slash = strrchr(where.dli_fname, '/'), *name = slash ? slash + 1 : where.dli_fname;
    size_t length = strlen(name), end = sizeof provider - 1;
    return strncmp(name, core, sizeof core - 1) == 0 || (length > end && strcmp(name + length - end, provider) == 0);
}

static bool needs_no_symbols(const void *caller)
{
    int kept = errno;
    bool spared = environment_get(TOLD) && !engine_disabled() && is_libfabric(caller) && access(INFINIBAND, F_OK) != 0;
    errno = kept;
    return spared;
}

SHIM_API FILE *fopen(const char *path, const char *mode)
{
    if (UNLIKELY(path && strcmp(path, SYMBOLS) == 0) && needs_no_symbols(__builtin_return_address(0))) path = "/dev/null";
    return opens_file(REAL(fopen)(path, mode));
}
