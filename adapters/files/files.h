/* files.h: declarations shared by the files of the files adapter, libmotet_files.so.
 *
 * What it is:   the preload object that makes exported folders appear under a path of one program and its children. It changes paths only:
 *               `/mnt/r/x` becomes `/real/folder/x` before libc's function is called. Every open file is one of the kernel, so reads, writes,
 *               mappings, locks and descriptors need nothing from this object. Files in reading order:
 *                 mappings.c               which prefixes stand for which folders (MOTET_FILES)
 *                 readable.c               whether memory of a path can be read
 *                 paths.c                  from the program's path to that of the kernel, and back
 *                 links.c                  symbolic links and `..` that lead across a prefix
 *                 open.c                   calls that open files
 *                 attributes.c             attributes of files
 *                 names.c                  calls that make, rename and remove names
 *                 folders.c                current directory, canonical paths
 *                 listing.c, fts.c         lists and walks of folders
 *                 environment.c, image.c, exec.c   programs
 *                 libraries.c              shared libraries
 *                 addresses.c              sockets with paths
 *                 confined.c               processes that install a seccomp filter
 *                 syscall.c                syscall() of calls that take a path
 *                 libc_symbols.c           libc's own functions
 * What it isn't: a client of an export's server, or a protection: the program may use the folder by its own path as well.
 *
 * Rules for every file
 *   - Linked to libc only. No allocation and no lock where libc's own function has none.
 *   - A path that has nothing to do with a prefix costs one pass over its bytes and no system call, unless libc's function reports ENOENT.
 *   - errno: kept by what this object does itself.
 *
 * Stack: 4 KiB for a mapped path, two paths 8 KiB; up to 32 KiB for links and `..` that lead across a prefix, and for exec.
 *
 * Signal safety: every call is as safe as libc's. Fork and vfork safety: the mappings never change after the constructor; the current directory
 * is asked from the kernel whenever it matters, so nothing that a vfork child changes is wrong in its parent. */
#ifndef MOTET_FILES_H
#define MOTET_FILES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "libc_symbols.h"

#define FILES_API __attribute__((visibility("default")))
#define NOINLINE __attribute__((noinline, cold))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ---------------------------------------------------------------- mappings.c */

#define FILES_VARIABLE "MOTET_FILES"
#define FILES_OBJECT "libmotet_files.so"
#define FILES_MAPPINGS_MAX 16
#define FILES_TEXT_BYTES 16384 /* of all mappings */

struct text {
    const char *at;
    size_t length;
};

/* A prefix that stands for a folder. Both are absolute, without `.`, `..`, double or trailing slashes. */
struct mapping {
    struct text prefix, folder;
    bool read_only;
};

/* Sorted: the longest prefix first. */
extern struct mapping mappings[FILES_MAPPINGS_MAX];
extern size_t mapping_count;
extern bool any_read_only;
/* False: the current directory is in no mapped folder. */
extern bool may_be_inside;

/* The mapping of a path without `.`, `..` and double slashes. */
const struct mapping *mapping_of(const char *path, size_t length);
/* The mapping whose folder a path of the kernel is in. */
const struct mapping *mapping_by_folder(const char *path, size_t length);
/* Whether a path that begins with this component, or has it behind `..`, may reach a prefix. */
bool is_prefix_component(const char *name, size_t length);
/* For each byte: a prefix has a component that begins with it; a first component. */
enum { BEGINS_COMPONENT = 1, BEGINS_PREFIX = 2 };
extern unsigned char first_bytes[256];
/* `MOTET_FILES=...`, and the entry of LD_PRELOAD, as the process was started with them. `own_object` empty: there was none. */
extern char files_variable[], own_object[];

/* ---------------------------------------------------------------- readable.c */

#define FILES_PAGE_BYTES 4096u /* the smallest page of any machine */
#define FILES_READABLE_PAGES 512u

/* Numbers of pages; 0: free. The first page is never readable. */
extern uintptr_t readable_pages[FILES_READABLE_PAGES];
/* Asks the kernel. */
bool page_is_readable(uintptr_t page);
/* Whether the page of an address can be read. What the kernel has once said counts until munmap() or mprotect(). */
static inline bool readable(const void *at)
{
    uintptr_t page = (uintptr_t)at / FILES_PAGE_BYTES;
    return LIKELY(__atomic_load_n(&readable_pages[page % FILES_READABLE_PAGES], __ATOMIC_RELAXED) == page && page != 0) || page_is_readable(page);
}
/* The length of a path; PATH_MAX if it is longer or cannot be read, so that the kernel says what is wrong. */
size_t path_length(const char *path);

/* ---------------------------------------------------------------- paths.c */

/* What a call does with the file of a path. */
enum use {
    USE_LOOK = 0,
    USE_NOFOLLOW = 1, /* with the last component itself, if it is a symbolic link */
    USE_CHANGE = 2,   /* a file that exists is changed */
    USE_CREATE = 4,   /* a file that is missing is made */
    USE_NEW = 8,      /* a file that exists is an error */
    USE_REMOVE = 16,  /* its name goes: that of an exported folder stays */
};

/* Whether a call can go to libc as it is. */
bool path_is_plain(int folder, const char *path, unsigned use);
/* The path for the kernel: `path` itself or one in `buffer`. NULL: refused, with errno. */
const char *path_map(int folder, const char *path, unsigned use, char buffer[PATH_MAX]);
/* Whether the path that the kernel did not find leads over a symbolic link. Keeps errno. */
bool path_meets_link(int folder, const char *path, unsigned use);
/* After ENOENT: the path for the kernel if a symbolic link of the path leads beneath a prefix. NULL: none does, errno is kept, or refused. */
const char *path_through_links(int folder, const char *path, unsigned use, char buffer[PATH_MAX]);
/* The program's name of a path of the kernel. Returns its length; PATH_MAX: too long. */
size_t path_shown(const char *real, size_t length, char shown[PATH_MAX]);
/* The program's name of a folder by its descriptor, or AT_FDCWD. 0: not known. */
size_t folder_shown(int folder, char shown[PATH_MAX]);
/* The kernel's name of a path that the program names `shown`, which is without `.` and `..`. False: too long. */
bool path_real(const char *shown, size_t length, char real[PATH_MAX], const struct mapping **mapping);
/* Refuses what a read-only export does not allow. `real`: the path for the kernel. */
const char *allowed(const struct mapping *mapping, const char *real, unsigned use);
/* The mapping that a descriptor's file is in. */
const struct mapping *mapping_of_descriptor(int fd);

/* ---------------------------------------------------------------- confined.c */

/* True: no system calls but those of the program. */
extern bool confined;
/* Whether these arguments of prctl() install a filter. */
bool begins_confinement(long option, unsigned long mode);

/* ---------------------------------------------------------------- links.c */

/* Follows a path from `start` (canonical) as the kernel would if the prefixes were mounted. `out` receives the program's canonical path.
 * False: with errno. `*linked`: a symbolic link was met. */
bool follow(const char *start, const char *path, unsigned use, char out[PATH_MAX], bool *linked);

/* ---------------------------------------------------------------- calls with a path */

/* The part of a call for mapped paths: a function of its own, as it needs a buffer. CALL uses `path`. */
#define MAPPED(type, failed, folder, use, CALL)                                                                         \
    char buffer_[PATH_MAX];                                                                                             \
    const char *given_ = path;                                                                                          \
    if (!(path = path_map(folder, given_, use, buffer_))) return failed;                                                \
    type result_ = CALL;                                                                                                \
    if (result_ == failed && errno == ENOENT && (path = path_through_links(folder, given_, use, buffer_)))              \
        result_ = CALL;                                                                                                 \
    return result_

/* The part for all others. */
#define PLAIN_OR(type, failed, folder, use, CALL, MAPPED_CALL)                                                          \
    if (LIKELY(path_is_plain(folder, path, use))) {                                                                     \
        type result_ = CALL;                                                                                            \
        if (LIKELY(result_ != failed || errno != ENOENT) || !path_meets_link(folder, path, use)) return result_;        \
    }                                                                                                                   \
    return MAPPED_CALL

/* A function with one path, which its parameter list calls `path`. */
#define PATH_CALL(type, failed, name, parameters, arguments, folder, use)                                               \
    static NOINLINE type name##_mapped parameters { MAPPED(type, failed, folder, use, REAL(name) arguments); }         \
    FILES_API type name parameters { PLAIN_OR(type, failed, folder, use, REAL(name) arguments, name##_mapped arguments); }

/* ---------------------------------------------------------------- system calls that are not interposed */

static inline long raw_result(long result)
{
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

#if defined(__x86_64__)
static inline long raw4(long number, long a, long b, long c, long d)
{
    register long r10 __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
static inline long raw4(long number, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}
#else
#error "which machine is this?"
#endif
/* A system call: its result, or minus an error number. errno is unchanged. */
#define RAW(number, a, b, c, d) raw4(number, (long)(a), (long)(b), (long)(c), (long)(d))

#endif
