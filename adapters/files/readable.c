/* readable.c: whether the memory of a path can be read.
 *
 * What it is:   a check before this object reads what a program passes as a path. A path in memory that does not exist is left to the kernel,
 *               which reports EFAULT. Pages that could be read once are remembered in a small table.
 * What it isn't: certain. A program that passes a path in memory that it has given back otherwise than by munmap() or mprotect() crashes.
 *
 * Signal, thread and fork safety: entries are single words; a lost one costs a system call. errno: unchanged. */
#include "files.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#define PAGE_BYTES FILES_PAGE_BYTES
#define ENTRIES FILES_READABLE_PAGES

uintptr_t readable_pages[ENTRIES];

NOINLINE bool page_is_readable(uintptr_t page)
{
    if (page == 0) return false;
    if (UNLIKELY(confined)) return true;
    /* The kernel copies the set before it looks at `how`, which is invalid: EFAULT or EINVAL, and nothing changes. */
    if (RAW(SYS_rt_sigprocmask, -1, page * PAGE_BYTES, 0, 8) == -EFAULT) return false;
    __atomic_store_n(&readable_pages[page % ENTRIES], page, __ATOMIC_RELAXED);
    return true;
}

size_t path_length(const char *path)
{
    for (size_t length = 0; length < PATH_MAX;) {
        if (!readable(path + length)) return PATH_MAX;
        size_t rest = PAGE_BYTES - (uintptr_t)(path + length) % PAGE_BYTES, most = PATH_MAX - length;
        const char *end = memchr(path + length, 0, rest < most ? rest : most);
        if (end) return (size_t)(end - path);
        length += rest;
    }
    return PATH_MAX;
}

static void forget(const void *at, size_t length)
{
    uintptr_t first = (uintptr_t)at / PAGE_BYTES;
    size_t pages = length / PAGE_BYTES + 2;
    for (size_t i = 0; i < (pages < ENTRIES ? pages : ENTRIES); i++) __atomic_store_n(&readable_pages[(first + i) % ENTRIES], 0, __ATOMIC_RELAXED);
}

FILES_API int munmap(void *at, size_t length)
{
    int result = REAL(munmap)(at, length);
    forget(at, length);
    return result;
}

FILES_API int mprotect(void *at, size_t length, int protection)
{
    int result = REAL(mprotect)(at, length, protection);
    if (!(protection & PROT_READ)) forget(at, length);
    return result;
}
