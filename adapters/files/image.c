/* image.c: whether a program that is about to run can load this object.
 *
 * What it is:   an inspection of its file: the loader must be glibc's, and the machine this one. musl's loader would refuse to start, a 32-bit glibc would
 *               print an error.
 * What it isn't: a search for other obstacles. A static or a set-user-ID program ignores LD_PRELOAD.
 *
 * Signal, fork and vfork safety: stack and system calls only. errno: unchanged. */
#include "environment.h"

#include <elf.h>
#include <sys/syscall.h>

#define GLIBC_LOADER "ld-linux"
#define SCRIPT_DEPTH 4 /* the kernel follows as many levels of scripts */

static bool read_at(int fd, uint64_t offset, void *into, size_t length)
{
    return RAW(SYS_pread64, fd, into, length, offset) == (long)length;
}

static bool elf_is_foreign(int fd, const Elf64_Ehdr *head)
{
#if defined(__x86_64__)
    const unsigned machine = EM_X86_64;
#else
    const unsigned machine = EM_AARCH64;
#endif
    if (head->e_ident[EI_CLASS] != ELFCLASS64 || head->e_machine != machine) return true;
    for (unsigned i = 0; i < head->e_phnum && i < 64; i++) {
        Elf64_Phdr part;
        char loader[256] = "";
        if (!read_at(fd, head->e_phoff + i * (uint64_t)head->e_phentsize, &part, sizeof part)) return false;
        if (part.p_type != PT_INTERP) continue;
        size_t length = part.p_filesz < sizeof loader - 1 ? part.p_filesz : sizeof loader - 1;
        return read_at(fd, part.p_offset, loader, length) && !strstr(loader, GLIBC_LOADER);
    }
    return false;
}

/* A script's interpreter is stored in `script`. */
static bool file_is_foreign(int fd, char script[256])
{
    char start[256];
    long length = RAW(SYS_pread64, fd, start, sizeof start - 1, 0);
    script[0] = 0;
    if (length >= (long)sizeof(Elf64_Ehdr) && memcmp(start, ELFMAG, SELFMAG) == 0) {
        Elf64_Ehdr head;
        memcpy(&head, start, sizeof head);
        return elf_is_foreign(fd, &head);
    }
    if (length > 2 && memcmp(start, "#!", 2) == 0) {
        start[length] = 0;
        const char *name = start + 2 + strspn(start + 2, " \t");
        size_t end = strcspn(name, " \t\n");
        memcpy(script, name, end);
        script[end] = 0;
    }
    return false;
}

bool image_is_foreign(int folder, const char *path)
{
    char buffer[PATH_MAX], script[256], next[256];
    int kept = errno;
    bool foreign = false;
    for (int depth = 0; depth <= SCRIPT_DEPTH && !foreign && path; depth++) {
        const char *real = path_is_plain(folder, path, USE_LOOK) ? path : path_map(folder, path, USE_LOOK, buffer);
        long fd = real ? RAW(SYS_openat, folder, real, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0) : -1;
        if (fd < 0) break;
        foreign = file_is_foreign((int)fd, script);
        RAW(SYS_close, fd, 0, 0, 0);
        memcpy(next, script, sizeof next);
        path = script[0] ? next : NULL;
    }
    errno = kept;
    return foreign;
}

bool descriptor_is_foreign(int fd)
{
    char script[256];
    return file_is_foreign(fd, script) || (script[0] && image_is_foreign(AT_FDCWD, script));
}
