/* exec.c: exec and spawn of programs beneath a prefix.
 *
 * What it is:   the path of the program is mapped, also where it is found through PATH. A script beneath a prefix, or with an interpreter there, is
 *               started as the kernel does it: interpreter, argument, the script's path as the program gave it.
 * What it isn't: a loader. The dynamic loader reads libraries without libc's functions: see libraries.c and environment.c.
 *
 * Signal, fork and vfork safety: stack and system calls only. errno: exec's own. */
#include "environment.h"

#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SCRIPT_DEPTH 4 /* the kernel follows as many levels of scripts */

extern char **environ;

/* ---------------------------------------------------------------- scripts */

struct script {
    char text[256]; /* of its first line */
    const char *interpreter, *argument; /* NULL: it is no script; no argument */
};

static void read_script(const char *real, struct script *script)
{
    script->interpreter = script->argument = NULL;
    long fd = RAW(SYS_openat, AT_FDCWD, real, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return;
    long length = RAW(SYS_read, fd, script->text, sizeof script->text - 1, 0);
    RAW(SYS_close, fd, 0, 0, 0);
    if (length < 3 || script->text[0] != '#' || script->text[1] != '!') return;
    script->text[length] = 0;
    char *end = script->text + strcspn(script->text, "\n");
    while (end > script->text + 2 && (end[-1] == ' ' || end[-1] == '\t')) end--;
    *end = 0;
    char *name = script->text + 2 + strspn(script->text + 2, " \t"), *rest = name + strcspn(name, " \t");
    if (*name == 0) return;
    script->interpreter = name;
    if (*rest) {
        *rest++ = 0;
        script->argument = rest + strspn(rest, " \t");
    }
}

static size_t count_of(char *const *list)
{
    size_t count = 0;
    while (list && readable(list + count) && list[count]) count++;
    return count;
}

static void arguments_of(const struct script *script, const char *path, char *const *arguments, size_t count, char **into)
{
    *into++ = (char *)script->interpreter;
    if (script->argument) *into++ = (char *)script->argument;
    *into++ = (char *)path;
    for (size_t i = 1; i < count; i++) *into++ = arguments[i];
    *into = NULL;
}

/* ---------------------------------------------------------------- one program by its path */

/* What is called with the kernel's path of a program. Returns its result. */
struct start {
    int (*call)(const struct start *start, const char *path, char *const *arguments, char *const *environment);
    pid_t *pid;
    const posix_spawn_file_actions_t *actions;
    const posix_spawnattr_t *attributes;
};

static int start_exec(const struct start *start, const char *path, char *const *arguments, char *const *environment)
{
    (void)start;
    return REAL(execve)(path, arguments, environment);
}

/* With libc's way for files that are no programs: they are scripts of /bin/sh. */
static int start_execvpe(const struct start *start, const char *path, char *const *arguments, char *const *environment)
{
    (void)start;
    return REAL(execvpe)(path, arguments, environment);
}

static int start_spawn(const struct start *start, const char *path, char *const *arguments, char *const *environment)
{
    int result = REAL(posix_spawn)(start->pid, path, start->actions, start->attributes, arguments, environment);
    if (result == 0) return 0;
    errno = result;
    return -1;
}

/* `depth`: how many scripts this one is the interpreter of. */
static NOINLINE int start_mapped(const struct start *start, const char *given, char *const *arguments, char *const *environment, int depth)
{
    char buffer[PATH_MAX], interpreter_buffer[PATH_MAX];
    struct script script;
    const char *real = path_through_links(AT_FDCWD, given, USE_LOOK, buffer);
    if (!real) real = path_map(AT_FDCWD, given, USE_LOOK, buffer);
    if (!real) return -1;
    read_script(real, &script);
    const char *interpreter = script.interpreter;
    if (interpreter && !path_is_plain(AT_FDCWD, interpreter, USE_LOOK)) interpreter = path_map(AT_FDCWD, interpreter, USE_LOOK, interpreter_buffer);
    if (!interpreter || (real == given && interpreter == script.interpreter)) return start->call(start, real, arguments, environment);
    long refused = RAW(SYS_faccessat, AT_FDCWD, real, X_OK, 0);
    if (refused < 0) {
        errno = (int)-refused;
        return -1;
    }
    if (depth == SCRIPT_DEPTH) {
        errno = ELOOP;
        return -1;
    }
    size_t count = count_of(arguments);
    char *all[count + 4];
    arguments_of(&script, given, arguments, count, all);
    if (interpreter == script.interpreter) return start->call(start, interpreter, all, environment);
    return start_mapped(start, script.interpreter, all, environment, depth + 1);
}

static bool is_file(const char *path)
{
    return RAW(SYS_faccessat, AT_FDCWD, path, X_OK, 0) == 0;
}

static int start_path(const struct start *start, const char *path, char *const *arguments, char *const *environment)
{
    if (LIKELY(path_is_plain(AT_FDCWD, path, USE_LOOK))) {
        int result = start->call(start, path, arguments, environment);
        if (result == 0 || errno != ENOENT || !mapping_count) return result;
        /* A program that exists, but its interpreter does not; or a link that leads beneath a prefix. */
        if (!is_file(path) && !path_meets_link(AT_FDCWD, path, USE_LOOK)) return result;
        errno = ENOENT;
    }
    return start_mapped(start, path, arguments, environment, 0);
}

/* ---------------------------------------------------------------- a program in PATH */

/* Copies the next candidate for a name. False: no more. */
static bool next_candidate(const char **folders, const char *file, char path[PATH_MAX])
{
    while (*folders) {
        const char *at = *folders;
        size_t length = strcspn(at, ":"), name = strlen(file);
        *folders = at[length] ? at + length + 1 : NULL;
        if (length + name + 2 > PATH_MAX) continue;
        memcpy(path, at, length);
        if (length > 0 && path[length - 1] != '/') path[length++] = '/';
        memcpy(path + length, file, name + 1);
        return true;
    }
    return false;
}

static const char *search_path(void)
{
    const char *folders = getenv("PATH");
    return folders ? folders : "/bin:/usr/bin";
}

/* Whether a name is found by this object: if a prefix is in PATH. */
static bool searches(const char *file)
{
    char path[PATH_MAX];
    if (!mapping_count || !readable(file) || !*file || strchr(file, '/')) return false;
    for (const char *folders = search_path(); next_candidate(&folders, file, path);)
        if (!path_is_plain(AT_FDCWD, path, USE_LOOK)) return true;
    return false;
}

static bool command_is_foreign(const char *file)
{
    char path[PATH_MAX];
    if (!readable(file) || !*file || strchr(file, '/')) return false;
    for (const char *folders = search_path(); next_candidate(&folders, file, path);) {
        int kept = errno;
        bool found = access(path, X_OK) == 0;
        errno = kept;
        if (found) return image_is_foreign(AT_FDCWD, path);
    }
    return false;
}

static NOINLINE int start_found(const struct start *start, const char *file, char *const *arguments, char *const *environment)
{
    char path[PATH_MAX];
    int error = ENOENT;
    for (const char *folders = search_path(); next_candidate(&folders, file, path);) {
        if (access(path, X_OK) == 0 && start_path(start, path, arguments, environment) == 0) return 0;
        if (errno == EACCES) error = EACCES;
        else if (errno != ENOENT && errno != ENOTDIR) return -1;
    }
    errno = error;
    return -1;
}

/* ---------------------------------------------------------------- exec */

FILES_API int execve(const char *path, char *const arguments[], char *const environment[])
{
    const struct start start = {.call = start_exec};
    int result;
    WITH_ENVIRONMENT(environment, image_is_foreign(AT_FDCWD, path), result = start_path(&start, path, arguments, env));
    return result;
}

FILES_API int execv(const char *path, char *const arguments[]) { return execve(path, arguments, environ); }

FILES_API int execvpe(const char *file, char *const arguments[], char *const environment[])
{
    const struct start start = {.call = start_execvpe};
    bool has_folder = readable(file) && strchr(file, '/');
    int result;
    if (has_folder)
        WITH_ENVIRONMENT(environment, image_is_foreign(AT_FDCWD, file), result = start_path(&start, file, arguments, env));
    else if (searches(file))
        WITH_ENVIRONMENT(environment, command_is_foreign(file), result = start_found(&start, file, arguments, env));
    else
        WITH_ENVIRONMENT(environment, command_is_foreign(file), result = REAL(execvpe)(file, arguments, env));
    return result;
}

FILES_API int execvp(const char *file, char *const arguments[]) { return execvpe(file, arguments, environ); }

FILES_API int fexecve(int fd, char *const arguments[], char *const environment[])
{
    int result;
    WITH_ENVIRONMENT(environment, descriptor_is_foreign(fd), result = REAL(fexecve)(fd, arguments, env));
    return result;
}

static NOINLINE int execveat_mapped(int folder, const char *path, char *const arguments[], char *const environment[], int flags)
{
    MAPPED(int, -1, folder, USE_LOOK, REAL(execveat)(folder, path, arguments, environment, flags));
}

static int execveat_path(int folder, const char *path, char *const arguments[], char *const environment[], int flags)
{
    PLAIN_OR(int, -1, folder, USE_LOOK, REAL(execveat)(folder, path, arguments, environment, flags),
             execveat_mapped(folder, path, arguments, environment, flags));
}

FILES_API int execveat(int folder, const char *path, char *const arguments[], char *const environment[], int flags)
{
    int result;
    WITH_ENVIRONMENT(environment, readable(path) && *path ? image_is_foreign(folder, path) : descriptor_is_foreign(folder),
                     result = execveat_path(folder, path, arguments, env, flags));
    return result;
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

FILES_API int execl(const char *path, const char *first, ...)
{
    LIST_TO_ARRAY(first);
    va_end(list);
    return execve(path, arguments, environ);
}

FILES_API int execlp(const char *file, const char *first, ...)
{
    LIST_TO_ARRAY(first);
    va_end(list);
    return execvpe(file, arguments, environ);
}

FILES_API int execle(const char *path, const char *first, ...)
{
    LIST_TO_ARRAY(first);
    char *const *environment = va_arg(list, char *const *);
    va_end(list);
    return execve(path, arguments, environment);
}

/* ---------------------------------------------------------------- spawn */

FILES_API int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                          char *const arguments[], char *const environment[])
{
    const struct start start = {start_spawn, pid, actions, attributes};
    int result, kept = errno;
    WITH_ENVIRONMENT(environment, image_is_foreign(AT_FDCWD, path), result = start_path(&start, path, arguments, env) == 0 ? 0 : errno);
    errno = kept;
    return result;
}

FILES_API int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                           char *const arguments[], char *const environment[])
{
    const struct start start = {start_spawn, pid, actions, attributes};
    int result, kept = errno;
    if (searches(file))
        WITH_ENVIRONMENT(environment, command_is_foreign(file), result = start_found(&start, file, arguments, env) == 0 ? 0 : errno);
    else if (readable(file) && strchr(file, '/'))
        WITH_ENVIRONMENT(environment, image_is_foreign(AT_FDCWD, file), result = start_path(&start, file, arguments, env) == 0 ? 0 : errno);
    else
        WITH_ENVIRONMENT(environment, command_is_foreign(file), result = REAL(posix_spawnp)(pid, file, actions, attributes, arguments, env));
    errno = kept;
    return result;
}

/* Libc copies the path of an action; the child makes the call without this object. */
#define ACTION(name, parameters, arguments, use)                                                                        \
    FILES_API int name parameters                                                                                       \
    {                                                                                                                   \
        char buffer[PATH_MAX];                                                                                          \
        if (LIKELY(path_is_plain(AT_FDCWD, path, use))) return REAL(name) arguments;                                    \
        path = path_map(AT_FDCWD, path, use, buffer);                                                                   \
        return path ? REAL(name) arguments : errno;                                                                     \
    }

ACTION(posix_spawn_file_actions_addopen, (posix_spawn_file_actions_t *actions, int fd, const char *path, int flags, mode_t mode),
       (actions, fd, path, flags, mode), (flags & O_ACCMODE) != O_RDONLY ? USE_CHANGE | USE_CREATE : USE_LOOK)
ACTION(posix_spawn_file_actions_addchdir_np, (posix_spawn_file_actions_t *actions, const char *path), (actions, path), USE_LOOK)
