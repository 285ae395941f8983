/* exec.c: exec and spawn of another program image.
 *
 * What it is:   an inspection of the image that is about to run. If it cannot load this object (its loader is not glibc's, or it is for
 *               another machine), it gets an environment without the object: musl's loader would refuse to start, a 32-bit glibc would print
 *               an error.
 * What it isn't: responsible for connections; see exec_handover.c.
 *
 * Signal safety: exec may be called in a handler; one that interrupted the engine (reentrancy_depth > 0) makes the system call only. Fork
 * safety: usable in a vfork child: it uses system calls and the stack only; engine and table are the parent's. errno: exec's own. */
#include "sockets.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <paths.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define OWN_NAME "libmotet_sockets.so"
#define ADAPTER_PREFIX "libmotet_" /* this object and those of the other adapters, which the same images cannot load */
#define GLIBC_LOADER "ld-linux"
#define SCRIPT_DEPTH 4 /* a script's interpreter may be a script; the kernel follows four levels */

extern char **environ;

/* ---------------------------------------------------------------- may the image load this object? */

static bool read_at(int fd, uint64_t offset, void *into, size_t length)
{
    return syscall(SYS_pread64, fd, into, length, offset) == (long)length;
}

enum image {
    IMAGE_ABSENT,      /* exec will report it */
    IMAGE_FOREIGN,     /* for another libc or machine: it must not see this object */
    IMAGE_INDIFFERENT, /* unreadable, static, or with raised privileges: it ignores LD_PRELOAD */
    IMAGE_LOADS_SHIM,
};

static enum image image_of_elf(int fd, const Elf64_Ehdr *head)
{
#if defined(__x86_64__)
    const unsigned machine = EM_X86_64;
#elif defined(__aarch64__)
    const unsigned machine = EM_AARCH64;
#else
#error "which machine is this?"
#endif
    if (head->e_ident[EI_CLASS] != ELFCLASS64 || head->e_machine != machine) return IMAGE_FOREIGN;
    for (unsigned i = 0; i < head->e_phnum && i < 64; i++) {
        Elf64_Phdr part;
        char loader[256] = "";
        if (!read_at(fd, head->e_phoff + i * (uint64_t)head->e_phentsize, &part, sizeof part)) return IMAGE_INDIFFERENT;
        if (part.p_type != PT_INTERP) continue;
        size_t length = part.p_filesz < sizeof loader ? part.p_filesz : sizeof loader;
        if (!read_at(fd, part.p_offset, loader, length)) return IMAGE_INDIFFERENT;
        loader[sizeof loader - 1] = 0;
        if (!strstr(loader, GLIBC_LOADER)) return IMAGE_FOREIGN;
        struct stat status;
        bool raised = syscall(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) != 0 || status.st_mode & (S_ISUID | S_ISGID);
        return raised ? IMAGE_INDIFFERENT : IMAGE_LOADS_SHIM;
    }
    return IMAGE_INDIFFERENT;
}

/* Inspects an ELF file. A script's interpreter is stored in `script`. Other files are left to the kernel. */
static enum image image_in_file(int fd, char script[256])
{
    char start[256];
    long length = syscall(SYS_pread64, fd, start, sizeof start - 1, 0L);
    script[0] = 0;
    if (length >= (long)sizeof(Elf64_Ehdr) && memcmp(start, ELFMAG, SELFMAG) == 0) {
        Elf64_Ehdr head;
        memcpy(&head, start, sizeof head);
        return image_of_elf(fd, &head);
    }
    if (length > 2 && memcmp(start, "#!", 2) == 0) {
        start[length] = 0;
        char *name = start + 2 + strspn(start + 2, " \t");
        size_t end = strcspn(name, " \t\n");
        memcpy(script, name, end);
        script[end] = 0;
    }
    return IMAGE_INDIFFERENT;
}

static enum image image_at(const char *path)
{
    char next[256];
    for (int depth = 0; depth <= SCRIPT_DEPTH; depth++) {
        /* Not a regular file: a FIFO would make the open wait. The kernel refuses to execute it. */
        struct stat status;
        if (syscall(SYS_newfstatat, AT_FDCWD, path, &status, 0) == 0 && !S_ISREG(status.st_mode)) return IMAGE_INDIFFERENT;
        long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) return fd == -1 && (errno == ENOENT || errno == ENOTDIR) ? IMAGE_ABSENT : IMAGE_INDIFFERENT;
        enum image image = image_in_file((int)fd, next);
        syscall(SYS_close, (int)fd);
        if (next[0] == 0) return image;
        path = next;
    }
    return IMAGE_INDIFFERENT;
}

static enum image image_in(int fd)
{
    char script[256];
    enum image image = image_in_file(fd, script);
    return script[0] ? image_at(script) : image;
}

/* Inspects a command that is looked up in PATH. */
static enum image image_of_command(const char *file)
{
    if (strchr(file, '/')) return image_at(file);
    const char *folders = getenv("PATH");
    if (!folders) folders = "/bin:/usr/bin";
    for (const char *at = folders;; at++) {
        size_t length = strcspn(at, ":");
        char path[PATH_MAX];
        if (length + strlen(file) + 2 <= sizeof path) {
            memcpy(path, at, length);
            if (length > 0) path[length++] = '/';
            strcpy(path + length, file);
            if (syscall(SYS_faccessat, AT_FDCWD, path, X_OK) == 0) return image_at(path);
            if (length > 0) length--;
        }
        at += length;
        if (*at == 0) return IMAGE_ABSENT;
    }
}

/* ---------------------------------------------------------------- an environment without this object */

static char *preload_of(char *const environment[])
{
    for (char *const *at = environment; at && *at; at++)
        if (strncmp(*at, "LD_PRELOAD=", 11) == 0 && strstr(*at, OWN_NAME)) return *at;
    return NULL;
}

static size_t count_of(char *const environment[])
{
    size_t count = 0;
    while (environment[count]) count++;
    return count;
}

/* Copies `environment` to `into`. `text` receives LD_PRELOAD without the adapters. */
static void without_shim(char *const environment[], const char *preload, char **into, char *text)
{
    char *to = stpcpy(text, "LD_PRELOAD=");
    const char *first = to;
    for (const char *at = preload + 11; *at;) {
        size_t length = strcspn(at, ": ");
        const char *slash = memrchr(at, '/', length);
        const char *name = slash ? slash + 1 : at;
        if (length > 0 && strncmp(name, ADAPTER_PREFIX, strlen(ADAPTER_PREFIX)) != 0) {
            if (to > first) *to++ = ':';
            to = mempcpy(to, at, length);
        }
        at += length;
        if (*at) at++;
    }
    *to = 0;
    for (; *environment; environment++) {
        if (*environment != preload)
            *into++ = *environment;
        else if (to > first)
            *into++ = text;
    }
    *into = NULL;
}

/* Makes CALL with `env`: the given environment, without the adapters where the image cannot load them. */
#define WITH_ENVIRONMENT(loads_shim, environment, CALL)                                                                    \
    do {                                                                                                                \
        int kept_ = errno;                                                                                              \
        char *const *env = (environment);                                                                               \
        const char *preload_ = preload_of(env);                                                                         \
        bool strip_ = UNLIKELY(preload_ != NULL) && !(loads_shim);                                                         \
        size_t count_ = strip_ ? count_of(env) + 1 : 1, length_ = strip_ ? strlen(preload_) + 1 : 1;                    \
        char *changed_[count_], text_[length_];                                                                         \
        if (strip_) without_shim(env, preload_, changed_, text_);                                                         \
        if (strip_) env = changed_;                                                                                     \
        errno = kept_;                                                                                                  \
        CALL;                                                                                                           \
    } while (0)

/* ---------------------------------------------------------------- exec and spawn */

#define EXEC(INSPECT, environment, CALL)                                                                                   \
    enum image next = (INSPECT);                                                                                           \
    int result;                                                                                                         \
    if (next != IMAGE_ABSENT) handover_before_exec();                                                                    \
    WITH_ENVIRONMENT(next != IMAGE_FOREIGN, environment, result = CALL);                                                \
    if (next != IMAGE_ABSENT) handover_exec_failed(); /* reached only if exec failed */                                      \
    return result

SHIM_API int execve(const char *path, char *const arguments[], char *const environment[])
{
    EXEC(image_at(path), environment, REAL(execve)(path, arguments, env));
}

SHIM_API int execv(const char *path, char *const arguments[]) { return execve(path, arguments, environ); }

SHIM_API int execvpe(const char *file, char *const arguments[], char *const environment[])
{
    EXEC(image_of_command(file), environment, REAL(execvpe)(file, arguments, env));
}

SHIM_API int execvp(const char *file, char *const arguments[]) { return execvpe(file, arguments, environ); }

SHIM_API int fexecve(int fd, char *const arguments[], char *const environment[])
{
    EXEC(image_in(fd), environment, REAL(fexecve)(fd, arguments, env));
}

SHIM_API int execveat(int folder, const char *path, char *const arguments[], char *const environment[], int flags)
{
    long fd = *path ? syscall(SYS_openat, folder, path, O_RDONLY | O_CLOEXEC) : folder;
    enum image seen = fd >= 0 ? image_in((int)fd) : errno == ENOENT ? IMAGE_ABSENT : IMAGE_INDIFFERENT;
    if (fd >= 0 && *path) syscall(SYS_close, (int)fd);
    EXEC(seen, environment, REAL(execveat)(folder, path, arguments, env, flags));
}

/* The forms with an argument list copy it to the stack, so they are usable after vfork and in handlers. */
#define LIST_TO_ARRAY(first)                                                                                            \
    va_list list;                                                                                                       \
    va_start(list, first);                                                                                              \
    size_t count = 1;                                                                                                   \
    while (va_arg(list, char *)) count++;                                                                               \
    va_end(list);                                                                                                       \
    char *arguments[count + 1];                                                                                         \
    va_start(list, first);                                                                                              \
    arguments[0] = (char *)first;                                                                                       \
    for (size_t i = 1; i <= count; i++) arguments[i] = va_arg(list, char *)

SHIM_API int execl(const char *path, const char *first, ...)
{
    LIST_TO_ARRAY(first);
    va_end(list);
    return execve(path, arguments, environ);
}

SHIM_API int execlp(const char *file, const char *first, ...)
{
    LIST_TO_ARRAY(first);
    va_end(list);
    return execvpe(file, arguments, environ);
}

SHIM_API int execle(const char *path, const char *first, ...)
{
    LIST_TO_ARRAY(first);
    char *const *environment = va_arg(list, char *const *);
    va_end(list);
    return execve(path, arguments, environment);
}

SHIM_API int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                         char *const arguments[], char *const environment[])
{
    int result;
    handover_before_spawn(actions != NULL);
    WITH_ENVIRONMENT(image_at(path) != IMAGE_FOREIGN, environment,
                     result = REAL(posix_spawn)(pid, path, actions, attributes, arguments, env));
    handover_after_spawn(actions != NULL);
    return result;
}

SHIM_API int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                          const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[])
{
    int result;
    handover_before_spawn(actions != NULL);
    WITH_ENVIRONMENT(image_of_command(file) != IMAGE_FOREIGN, environment,
                     result = REAL(posix_spawnp)(pid, file, actions, attributes, arguments, env));
    handover_after_spawn(actions != NULL);
    return result;
}
