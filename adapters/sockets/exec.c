/* exec.c: exec and spawn: another program image.
 *
 * What it is:   gates closed for good on descriptors that the new image inherits, and an environment without this object for
 *               an image that cannot load it: a musl loader would refuse to start, a 32-bit one would complain.
 * What it isn't: re-attachment: a socket that survives exec is plain TCP in the new image.
 *
 * Signal safety: exec may be called in a handler; one that interrupted the engine (shim_depth > 0) makes only the system
 * call. Fork safety: usable in a vfork child: system calls and the stack only; engine and table are the parent's there. */
#include "shim.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <paths.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#define OWN_NAME "libmotet_sockets.so"
#define GLIBC_LOADER "ld-linux"
#define SCRIPT_DEPTH 4 /* a script's interpreter may be a script: the kernel follows four */

extern char **environ;

/* ---------------------------------------------------------------- may the image load this object? */

static bool read_at(int fd, uint64_t offset, void *into, size_t length)
{
    return syscall(SYS_pread64, fd, into, length, offset) == (long)length;
}

/* Of an ELF file: false when its loader is another C library's or another machine's. Static programs read no LD_PRELOAD. */
static bool elf_is_ours(int fd, const Elf64_Ehdr *head)
{
#if defined(__x86_64__)
    const unsigned machine = EM_X86_64;
#elif defined(__aarch64__)
    const unsigned machine = EM_AARCH64;
#else
#error "which machine is this?"
#endif
    if (head->e_ident[EI_CLASS] != ELFCLASS64 || head->e_machine != machine) return false;
    for (unsigned i = 0; i < head->e_phnum && i < 64; i++) {
        Elf64_Phdr part;
        char loader[256] = "";
        if (!read_at(fd, head->e_phoff + i * (uint64_t)head->e_phentsize, &part, sizeof part)) return true;
        if (part.p_type != PT_INTERP) continue;
        size_t length = part.p_filesz < sizeof loader ? part.p_filesz : sizeof loader;
        if (!read_at(fd, part.p_offset, loader, length)) return true;
        loader[sizeof loader - 1] = 0;
        return strstr(loader, GLIBC_LOADER) != NULL;
    }
    return true;
}

static bool image_is_ours(const char *path)
{
    char start[256], next[256];
    for (int depth = 0; depth <= SCRIPT_DEPTH; depth++) {
        long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) return true; /* the kernel will say what is wrong */
        long length = syscall(SYS_pread64, (int)fd, start, sizeof start - 1, 0L);
        bool ours = true, script = false;
        if (length >= (long)sizeof(Elf64_Ehdr) && memcmp(start, ELFMAG, SELFMAG) == 0) {
            Elf64_Ehdr head;
            memcpy(&head, start, sizeof head);
            ours = elf_is_ours((int)fd, &head);
        } else if (length > 2 && memcmp(start, "#!", 2) == 0) {
            start[length] = 0;
            char *name = start + 2 + strspn(start + 2, " \t");
            size_t end = strcspn(name, " \t\n");
            memcpy(next, name, end);
            next[end] = 0;
            script = end > 0;
        }
        syscall(SYS_close, (int)fd);
        if (!script) return ours;
        path = next;
    }
    return true;
}

/* The same for a name that is looked up in PATH. */
static bool command_is_ours(const char *file)
{
    if (strchr(file, '/')) return image_is_ours(file);
    const char *folders = getenv("PATH");
    if (!folders) folders = "/bin:/usr/bin";
    for (const char *at = folders;; at++) {
        size_t length = strcspn(at, ":");
        char path[PATH_MAX];
        if (length + strlen(file) + 2 <= sizeof path) {
            memcpy(path, at, length);
            if (length > 0) path[length++] = '/';
            strcpy(path + length, file);
            if (syscall(SYS_faccessat, AT_FDCWD, path, X_OK) == 0) return image_is_ours(path);
            if (length > 0) length--;
        }
        at += length;
        if (*at == 0) return true;
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

/* Copies `environment` into `into`; `text` takes the LD_PRELOAD that is left of `preload`. */
static void without_us(char *const environment[], const char *preload, char **into, char *text)
{
    char *to = stpcpy(text, "LD_PRELOAD=");
    const char *first = to;
    for (const char *at = preload + 11; *at;) {
        size_t length = strcspn(at, ": ");
        const char *slash = memrchr(at, '/', length);
        const char *name = slash ? slash + 1 : at;
        if (length > 0 && ((size_t)(at + length - name) != strlen(OWN_NAME) || memcmp(name, OWN_NAME, strlen(OWN_NAME)) != 0)) {
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

/* Returns what CALL does with `env`: the given environment, or one without this object where the image cannot load it. */
#define WITH_ENVIRONMENT(is_ours, environment, CALL)                                                                    \
    do {                                                                                                                \
        int kept_ = errno;                                                                                              \
        char *const *env = (environment);                                                                               \
        const char *preload_ = preload_of(env);                                                                         \
        bool strip_ = UNLIKELY(preload_ != NULL) && !(is_ours);                                                         \
        size_t count_ = strip_ ? count_of(env) + 1 : 1, length_ = strip_ ? strlen(preload_) + 1 : 1;                    \
        char *stripped_[count_], text_[length_];                                                                        \
        if (strip_) {                                                                                                   \
            without_us(env, preload_, stripped_, text_);                                                                \
            env = stripped_;                                                                                            \
        }                                                                                                               \
        errno = kept_;                                                                                                  \
        return CALL;                                                                                                    \
    } while (0)

/* ---------------------------------------------------------------- exec and spawn */

/* Streams that the new image inherits. */
static void before_spawn(void)
{
    if (!engine_is_open() || shim_depth > 0 || !table_in_own_process()) return;
    int kept = errno;
    for (int fd = 0; fd <= atomic_load(&shim_top); fd++) {
        if (word_kind(table_word(fd)) != KIND_STREAM) continue;
        int flags = REAL(fcntl)(fd, F_GETFD);
        if (flags >= 0 && !(flags & FD_CLOEXEC)) table_make_plain(fd, REASON_EXEC);
    }
    errno = kept;
}

static void before_exec(void)
{
    before_spawn();
    if (shim_depth == 0 && table_in_own_process()) family_before_exec();
}

/* exec returns only when it has failed. */
static int exec_failed(int result)
{
    if (shim_depth == 0 && table_in_own_process()) family_exec_failed();
    return result;
}

SHIM_API int execve(const char *path, char *const arguments[], char *const environment[])
{
    before_exec();
    WITH_ENVIRONMENT(image_is_ours(path), environment, exec_failed(REAL(execve)(path, arguments, env)));
}

SHIM_API int execv(const char *path, char *const arguments[]) { return execve(path, arguments, environ); }

SHIM_API int execvpe(const char *file, char *const arguments[], char *const environment[])
{
    before_exec();
    WITH_ENVIRONMENT(command_is_ours(file), environment, exec_failed(REAL(execvpe)(file, arguments, env)));
}

SHIM_API int execvp(const char *file, char *const arguments[]) { return execvpe(file, arguments, environ); }

SHIM_API int fexecve(int fd, char *const arguments[], char *const environment[])
{
    Elf64_Ehdr head;
    before_exec();
    WITH_ENVIRONMENT(!read_at(fd, 0, &head, sizeof head) || memcmp(&head, ELFMAG, SELFMAG) != 0 || elf_is_ours(fd, &head),
                     environment, exec_failed(REAL(fexecve)(fd, arguments, env)));
}

/* The forms with a list: counted, then copied to the stack, so they stay usable after vfork and in handlers. */
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
    before_spawn();
    WITH_ENVIRONMENT(image_is_ours(path), environment, REAL(posix_spawn)(pid, path, actions, attributes, arguments, env));
}

SHIM_API int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                          const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[])
{
    before_spawn();
    WITH_ENVIRONMENT(command_is_ours(file), environment, REAL(posix_spawnp)(pid, file, actions, attributes, arguments, env));
}
