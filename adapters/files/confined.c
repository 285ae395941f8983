/* confined.c: processes that restrict their system calls by a seccomp filter ("confined").
 *
 * What it is:   from just before the filter is installed, this object makes no system calls beside those of the program. Paths that name a prefix are
 *               mapped still; links and `..` that lead across one are left to the kernel.
 * What it isn't: a way back. A process stays confined, and so do its children.
 *
 * Signal and fork safety: one flag, which only becomes true. */
#include "files.h"

#include <linux/seccomp.h>
#include <stdarg.h>
#include <sys/prctl.h>

bool confined;

bool begins_confinement(long option, unsigned long mode)
{
    return option == PR_SET_SECCOMP && (mode == SECCOMP_MODE_STRICT || mode == SECCOMP_MODE_FILTER);
}

FILES_API int prctl(int option, ...)
{
    va_list list;
    unsigned long a[4];
    va_start(list, option);
    for (int i = 0; i < 4; i++) a[i] = va_arg(list, unsigned long);
    va_end(list);
    if (UNLIKELY(begins_confinement(option, a[0]))) confined = true;
    return REAL(prctl)(option, a[0], a[1], a[2], a[3]);
}
