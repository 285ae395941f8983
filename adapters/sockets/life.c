/* life.c: the process's turns: fork, exec, spawn, stdio, exit.
 *
 * What it is:   fork handlers that stop the table and the engine for the moment of the copy; gates closed for good on
 *               descriptors that a new program image or stdio will use without this object; the engine's leave at exit.
 * What it isn't: re-attachment after exec: a socket that survives exec is plain TCP in the new image.
 *
 * Signal safety: execve and _exit may be called in a handler; one that interrupted the engine (shim_depth > 0) makes only
 * the system call. Fork safety: in a vfork child every function here makes only the system call. */
#include "shim.h"

#include <fcntl.h>
#include <paths.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

/* ---------------------------------------------------------------- fork */

static void fork_prepare(void)
{
    table_lock_for_fork();
    if (engine_is_open()) ENGINE_DO(engine.fork_prepare());
}

static void fork_parent(void)
{
    if (engine_is_open()) ENGINE_DO(engine.fork_parent());
    table_unlock_after_fork(false);
}

static void fork_child(void)
{
    if (engine_is_open()) ENGINE_DO(engine.fork_child());
    table_unlock_after_fork(true);
}

__attribute__((constructor(102))) static void life_begin(void)
{
    int kept = errno;
    table_note_process();
    pthread_atfork(fork_prepare, fork_parent, fork_child);
    errno = kept;
}

/* ---------------------------------------------------------------- exit */

void life_leave(void)
{
    if (!engine_is_open() || shim_depth > 0 || !table_in_own_process()) return;
    static _Atomic bool left;
    if (atomic_exchange(&left, true)) return;
    int kept = errno;
    for (int fd = 0; fd <= atomic_load(&shim_top); fd++) {
        uint64_t word = table_word(fd);
        if (word_kind(word) != KIND_STREAM) continue;
        engine_report(table_handle(fd), fd);
        if (!(word & WORD_ELSEWHERE) && ENGINE(engine.rx_bytes(table_handle(fd))) > 0) table_reset_at_close(fd);
    }
    ENGINE_DO(engine.leave());
    errno = kept;
}

__attribute__((destructor)) static void life_end(void) { life_leave(); }

SHIM_API void _exit(int status)
{
    life_leave();
    REAL(_exit)(status);
    __builtin_unreachable();
}

SHIM_API void _Exit(int status) __attribute__((alias("_exit")));

/* ---------------------------------------------------------------- exec and spawn */

/* Streams that the new image inherits. */
void life_before_exec(void)
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

SHIM_API int execve(const char *path, char *const arguments[], char *const environment[])
{
    life_before_exec();
    return REAL(execve)(path, arguments, environment);
}

SHIM_API int execv(const char *path, char *const arguments[]) { return execve(path, arguments, environ); }

SHIM_API int execvpe(const char *file, char *const arguments[], char *const environment[])
{
    life_before_exec();
    return REAL(execvpe)(file, arguments, environment);
}

SHIM_API int execvp(const char *file, char *const arguments[]) { return execvpe(file, arguments, environ); }

SHIM_API int fexecve(int fd, char *const arguments[], char *const environment[])
{
    life_before_exec();
    return REAL(fexecve)(fd, arguments, environment);
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
    life_before_exec();
    return REAL(posix_spawn)(pid, path, actions, attributes, arguments, environment);
}

SHIM_API int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                          const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[])
{
    life_before_exec();
    return REAL(posix_spawnp)(pid, file, actions, attributes, arguments, environment);
}

/* ---------------------------------------------------------------- stdio */

/* stdio makes its calls inside the C library, unseen. Ring bytes that are there already are pushed back into the FILE. */
SHIM_API FILE *fdopen(int fd, const char *mode)
{
    if (LIKELY(word_kind(table_word(fd)) < KIND_CANDIDATE) || shim_depth > 0) return REAL(fdopen)(fd, mode);
    motet_stream s = word_kind(table_word(fd)) == KIND_STREAM ? table_handle(fd) : 0;
    FILE *file = REAL(fdopen)(fd, mode);
    if (!file) return NULL;
    if (!s) {
        table_make_plain(fd, REASON_STDIO);
        return file;
    }
    int kept = errno;
    size_t held = 0, room = 0;
    unsigned char *bytes = NULL;
    bool drained;
    while (!(drained = ENGINE(engine.plain(s, REASON_STDIO)) != 0)) {
        if (held == room) {
            unsigned char *more = realloc(bytes, room = room ? room * 2 : 65536);
            if (!more) break;
            bytes = more;
        }
        ssize_t got = recv(fd, bytes + held, room - held, MSG_DONTWAIT);
        if (got <= 0) break;
        held += (size_t)got;
    }
    while (held > 0) ungetc(bytes[--held], file);
    free(bytes);
    /* fclose() will close the descriptor unseen: the engine lets go of it now. */
    if (drained) table_set(fd, KIND_NONE);
    errno = kept;
    return file;
}
