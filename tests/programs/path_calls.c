/* path_calls.c: every function of libc that takes a path, on files of the folder argv[1]. Prints results and errors, so that a run on a folder and a run
 * on the same folder under another path can be compared. */
#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <linux/openat2.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

extern char **environ;
static const char *top;
static char paths[8][PATH_MAX];

/* The path of a name of the folder. Eight results are valid at a time. */
static const char *at(const char *name)
{
    static unsigned next;
    char *path = paths[next++ % 8];
    if (snprintf(path, PATH_MAX, "%s/%s", top, name) >= PATH_MAX) exit(9);
    return path;
}

static void say(const char *what, long result)
{
    printf("%s: %s\n", what, result < 0 ? strerror(errno) : "done");
}

#define TRY(call) (errno = 0, say(#call, (long)(call)))
#define VALUE(call) printf(#call ": %ld\n", (long)(call))

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0) printf("write %s: %s\n", path, strerror(errno));
}

static void show_file(const char *path)
{
    char text[200] = "";
    FILE *file = fopen(path, "r");
    if (file && !fgets(text, sizeof text, file)) strcpy(text, "(empty)");
    printf("%s holds %s\n", path, file ? text : strerror(errno));
    if (file) fclose(file);
}

static void close_open(const char *what, int fd)
{
    say(what, fd);
    if (fd >= 0) close(fd);
}
#define OPENED(call) (errno = 0, close_open(#call, call))

static void opens(void)
{
    int folder = open(top, O_RDONLY | O_DIRECTORY), flags = O_RDWR | (top[0] == 0);
    OPENED(open(at("one"), O_CREAT | O_WRONLY, 0640));
    OPENED(open64(at("one"), O_RDONLY));
    OPENED(open(at("one"), flags));
    OPENED(open64(at("one"), flags));
    OPENED(openat(folder, "one", flags));
    OPENED(openat64(AT_FDCWD, at("one"), flags));
    OPENED(openat(folder, "../no-such-name/one", O_RDONLY));
    OPENED(creat(at("two"), 0600));
    OPENED(creat64(at("two"), 0600));
    OPENED(open(at("none"), O_RDONLY));
    OPENED(open(at("one/x"), O_RDONLY));
    OPENED(open(at("one"), O_CREAT | O_EXCL | O_RDWR, 0600));
    OPENED(open(top, O_TMPFILE | O_RDWR, 0600));
    OPENED(open(at("one/"), O_RDONLY));
    OPENED((int)syscall(SYS_openat, AT_FDCWD, at("one"), O_RDONLY));
    struct open_how how = {.flags = O_RDONLY};
    OPENED((int)syscall(SYS_openat2, AT_FDCWD, at("one"), &how, sizeof how));
    FILE *file = fopen64(at("one"), "r+");
    printf("fopen64: %d\n", file != NULL);
    if (file) file = freopen(at("two"), "w", file);
    printf("freopen: %d\n", file != NULL);
    if (file) fputs("by freopen", file), fclose(file);
    show_file(at("two"));
    char name[PATH_MAX];
    strcpy(name, at("made-XXXXXX"));
    OPENED(mkstemp(name));
    printf("the name is changed: %d, its file exists: %d\n", strstr(name, "XXXXXX") == NULL, access(name, F_OK) == 0 && strncmp(name, top, strlen(top)) == 0);
    unlink(name);
    strcpy(name, at("made-XXXXXX.txt"));
    OPENED(mkostemps(name, 4, O_CLOEXEC));
    printf("the name is changed: %d, its file exists: %d\n", strstr(name, "XXXXXX.txt") == NULL, access(name, F_OK) == 0);
    unlink(name);
    strcpy(name, at("folder-XXXXXX"));
    printf("mkdtemp returns its template: %d\n", mkdtemp(name) == name);
    TRY(rmdir(name));
    close(folder);
}

static void attributes(void)
{
    struct stat status;
    struct stat64 wide;
    struct statx extended;
    write_file(at("file"), "12345");
    TRY(symlink(at("file"), at("link")));
    TRY(symlink("file", at("relative")));
    TRY(symlink(at("nowhere"), at("dangling")));
    TRY(stat(at("link"), &status));
    VALUE(status.st_size);
    TRY(lstat(at("link"), &status));
    VALUE(S_ISLNK(status.st_mode));
    TRY(stat(at("dangling"), &status));
    TRY(stat64(at("relative"), &wide));
    TRY(lstat64(at("relative"), &wide));
    TRY(fstatat(AT_FDCWD, at("link"), &status, AT_SYMLINK_NOFOLLOW));
    VALUE(S_ISLNK(status.st_mode));
    TRY(fstatat64(AT_FDCWD, at("link"), &wide, 0));
    TRY(statx(AT_FDCWD, at("link"), 0, STATX_SIZE, &extended));
    VALUE(extended.stx_size);
    TRY((int)syscall(SYS_newfstatat, AT_FDCWD, at("link"), &status, 0));
    TRY(access(at("link"), R_OK | W_OK));
    TRY(eaccess(at("none"), R_OK));
    TRY(faccessat(AT_FDCWD, at("file"), X_OK, AT_EACCESS));
    TRY(chmod(at("link"), 0644));
    TRY(fchmodat(AT_FDCWD, at("file"), 0600, 0));
    TRY(chown(at("file"), getuid(), getgid()));
    TRY(lchown(at("link"), getuid(), getgid()));
    TRY(fchownat(AT_FDCWD, at("file"), getuid(), getgid(), AT_SYMLINK_NOFOLLOW));
    TRY(utime(at("file"), &(struct utimbuf){1000, 2000}));
    TRY(utimes(at("link"), (struct timeval[2]){{1000, 0}, {3000, 0}}));
    TRY(lutimes(at("link"), (struct timeval[2]){{1000, 0}, {4000, 0}}));
    TRY(futimesat(AT_FDCWD, at("file"), (struct timeval[2]){{1000, 0}, {5000, 0}}));
    TRY(utimensat(AT_FDCWD, at("file"), (struct timespec[2]){{1000, 0}, {6000, 7}}, 0));
    stat(at("file"), &status);
    VALUE(status.st_mtime);
    TRY(truncate(at("link"), 3));
    TRY(truncate64(at("link"), 4));
    stat(at("file"), &status);
    VALUE(status.st_size);
    struct statfs system;
    struct statvfs versions;
    TRY(statfs(at("file"), &system));
    TRY(statvfs(at("file"), &versions));
    VALUE(pathconf(at("file"), _PC_NAME_MAX));
    char value[100] = "";
    TRY(setxattr(at("file"), "user.motet", "x", 1, 0));
    TRY(getxattr(at("link"), "user.motet", value, sizeof value));
    TRY(lgetxattr(at("link"), "user.motet", value, sizeof value));
    VALUE(listxattr(at("file"), value, sizeof value));
    TRY(removexattr(at("file"), "user.motet"));
    int watch = inotify_init1(IN_NONBLOCK);
    TRY(inotify_add_watch(watch, top, IN_CREATE));
    write_file(at("watched"), "x");
    char event[4096] __attribute__((aligned(8)));
    if (read(watch, event, sizeof event) > 0) printf("event: %s\n", ((struct inotify_event *)event)->name);
    close(watch);
}

/* System calls that programs make by syscall(). */
static void by_system_calls(void)
{
    struct stat status;
    struct statx extended;
    struct statfs system;
    char value[100] = "", text[PATH_MAX];
    TRY((int)syscall(SYS_mknodat, AT_FDCWD, at("d/raw"), S_IFREG | 0640, 0));
    TRY((int)syscall(SYS_utimensat, AT_FDCWD, at("d/raw"), (struct timespec[2]){{1000, 0}, {7000, 7}}, 0));
    TRY((int)syscall(SYS_statx, AT_FDCWD, at("d/raw"), 0, STATX_BASIC_STATS, &extended));
    VALUE(extended.stx_mtime.tv_sec);
    int fd = open(at("d/raw"), O_RDWR);
    TRY((int)syscall(SYS_utimensat, fd, NULL, (struct timespec[2]){{1000, 0}, {8000, 0}}, 0));
    close(fd);
    TRY(stat(at("d/raw"), &status));
    VALUE(status.st_mtime);
    TRY((int)syscall(SYS_statfs, at("d/raw"), &system));
    TRY((int)syscall(SYS_setxattr, at("d/raw"), "user.raw", "x", 1, 0));
    VALUE(syscall(SYS_getxattr, at("d/raw"), "user.raw", value, sizeof value));
    VALUE(syscall(SYS_llistxattr, at("d/raw"), value, sizeof value));
    TRY((int)syscall(SYS_removexattr, at("d/raw"), "user.raw"));
    TRY((int)syscall(SYS_renameat2, AT_FDCWD, at("d/raw"), AT_FDCWD, at("d/moved"), RENAME_NOREPLACE));
    TRY((int)syscall(SYS_faccessat, AT_FDCWD, at("d/moved"), W_OK));
    TRY((int)syscall(SYS_linkat, AT_FDCWD, at("d/moved"), AT_FDCWD, at("d/second"), 0));
    TRY((int)syscall(SYS_fchmodat, AT_FDCWD, at("d/second"), 0600));
    TRY((int)syscall(SYS_symlinkat, "moved", AT_FDCWD, at("d/symbolic")));
    VALUE(syscall(SYS_readlinkat, AT_FDCWD, at("d/symbolic"), text, sizeof text));
    TRY((int)syscall(SYS_truncate, at("d/symbolic"), 12L));
    int watch = inotify_init1(IN_NONBLOCK);
    VALUE(syscall(SYS_inotify_add_watch, watch, at("d"), IN_CREATE));
    close(watch);
    for (const char **name = (const char *[]){"d/moved", "d/second", "d/symbolic", NULL}; *name; name++)
        TRY((int)syscall(SYS_unlinkat, AT_FDCWD, at(*name), 0));
    TRY((int)syscall(SYS_getcwd, NULL, sizeof text));
    TRY((int)syscall(SYS_getcwd, text, 0));
    TRY((int)syscall(SYS_getcwd, text, 2));
}

static void names(void)
{
    char text[PATH_MAX];
    TRY(mkdir(at("d"), 0755));
    TRY(mkdir(at("d"), 0755));
    TRY(mkdirat(AT_FDCWD, at("d/e"), 0755));
    TRY(mkdir(at("d/f/"), 0755));
    TRY(mkfifo(at("d/pipe"), 0600));
    TRY(mknod(at("d/node"), S_IFREG | 0600, 0));
    TRY(rename(at("d/node"), at("d/renamed")));
    TRY(renameat(AT_FDCWD, at("d/renamed"), AT_FDCWD, at("d/node")));
    TRY(renameat2(AT_FDCWD, at("d/node"), AT_FDCWD, at("d/pipe"), RENAME_NOREPLACE));
    TRY(link(at("d/node"), at("d/hard")));
    TRY(linkat(AT_FDCWD, at("d/node"), AT_FDCWD, at("d/hard"), 0));
    TRY(symlinkat(at("d"), AT_FDCWD, at("d/self")));
    ssize_t length = readlink(at("d/self"), text, sizeof text);
    printf("readlink: %.*s\n", (int)length, text);
    length = readlinkat(AT_FDCWD, at("d/self"), text, 3);
    printf("readlinkat: %zd\n", length);
    TRY(access(at("d/self/self/hard"), F_OK));
    by_system_calls();
    TRY(unlink(at("d/hard")));
    TRY(unlinkat(AT_FDCWD, at("d/e"), AT_REMOVEDIR));
    TRY(remove(at("d/f")));
    TRY(rmdir(at("d")));
    TRY(rename(at("none"), at("d/x")));
    TRY(unlink(at("d")));
}

static const char *base_name(const char *path, const struct FTW *place) { return path + place->base; }

static int walked(const char *path, const struct stat *status, int flag, struct FTW *place)
{
    (void)status;
    printf("nftw %s %s %d %d\n", path, base_name(path, place), flag, place->level);
    return 0;
}

static int walked_plain(const char *path, const struct stat *status, int flag)
{
    (void)status;
    printf("ftw %s %d\n", path, flag);
    return 0;
}

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }
static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static void lists(void)
{
    mkdir(at("l"), 0755);
    mkdir(at("l/m"), 0755);
    write_file(at("l/m/x"), "x");
    TRY(chdir(at("l/m")) + chdir(".."));
    DIR *folder = opendir(at("l"));
    int count = 0;
    while (folder && readdir(folder)) count++;
    VALUE(count);
    if (folder) closedir(folder);
    struct dirent **found;
    VALUE(count = scandir(at("l"), &found, is_visible, alphasort));
    for (int i = 0; i < count; i++) puts(found[i]->d_name), free(found[i]);
    if (count >= 0) free(found);
    TRY(nftw(at("l/"), walked, 8, FTW_PHYS));
    TRY(nftw(at("l"), walked, 8, FTW_PHYS | FTW_DEPTH | FTW_CHDIR));
    TRY(ftw(at("l"), walked_plain, 8));
    for (int options = 0; options < 2; options++) {
        char *roots[] = {(char *)at("l"), NULL};
        FTS *walk = fts_open(roots, FTS_PHYSICAL | (options ? FTS_NOCHDIR : 0), by_name);
        for (FTSENT *entry; walk && (entry = fts_read(walk));)
            printf("fts %s %s %d %d\n", entry->fts_path, entry->fts_name, entry->fts_info, entry->fts_level);
        if (walk) TRY(fts_close(walk));
    }
    glob_t all;
    const char *const patterns[] = {"l/*/x", "l/m/*", "l/?", "none/*"};
    for (size_t i = 0; i < 4; i++) {
        VALUE(glob(at(patterns[i]), GLOB_MARK, NULL, &all));
        for (size_t k = 0; k < all.gl_pathc; k++) puts(all.gl_pathv[k]);
        globfree(&all);
    }
}

static void current(void)
{
    char text[PATH_MAX];
    mkdir(at("c"), 0755);
    mkdir(at("c/d"), 0755);
    write_file(at("c/x"), "in c");
    TRY(chdir(at("c/d")));
    printf("getcwd: %s\n", getcwd(text, sizeof text));
    VALUE(getcwd(text, strlen(top) + 4) == NULL && errno == ERANGE);
    VALUE(getcwd(text, strlen(top) + 5) != NULL);
    char *made = getcwd(NULL, 0);
    printf("getcwd: %s\n", made);
    free(made);
    made = get_current_dir_name();
    printf("get_current_dir_name: %s\n", made);
    free(made);
    printf("realpath: %s\n", realpath("../x", text));
    made = canonicalize_file_name(at("c/d/../x"));
    printf("canonicalize_file_name: %s\n", made);
    free(made);
    VALUE(realpath(at("c/none"), text) == NULL && errno == ENOENT);
    ssize_t length = readlink("/proc/self/cwd", text, sizeof text);
    printf("/proc/self/cwd: %.*s\n", (int)length, text);
    show_file("../x");
    TRY(chdir(".."));
    show_file("d/../x");
    int fd = open("x", O_RDONLY);
    snprintf(text, sizeof text, "/proc/self/fd/%d", fd);
    char target[PATH_MAX];
    length = readlink(text, target, sizeof target);
    printf("descriptor: %.*s\n", (int)length, target);
    show_file(text);
    close(fd);
    int folder = open("d", O_RDONLY);
    TRY(faccessat(folder, "../x", F_OK, 0));
    TRY(fchdir(folder));
    printf("getcwd: %s\n", getcwd(text, sizeof text));
    close(folder);
    /* Up to the folder above the prefix, and back. */
    TRY(chdir("../../.."));
    char *parent = strdup(top), *slash = strrchr(parent, '/');
    *slash = 0;
    VALUE(strcmp(getcwd(text, sizeof text), *parent ? parent : "/") == 0);
    snprintf(text, sizeof text, "%s/c/x", slash + 1);
    VALUE(access(text, R_OK));
    snprintf(text, sizeof text, "./%s//c/./x", slash + 1);
    VALUE(access(text, F_OK));
    snprintf(text, sizeof text, "%s/c/../../%s/c/x", slash + 1, slash + 1);
    VALUE(access(text, F_OK));
    snprintf(text, sizeof text, "%s/./%s//c/../c/x", parent, slash + 1);
    VALUE(access(text, F_OK));
    snprintf(text, sizeof text, "/proc/../%s/c/x", top);
    VALUE(access(text, F_OK));
    folder = open(*parent ? parent : "/", O_RDONLY);
    snprintf(text, sizeof text, "%s/c/x", slash + 1);
    VALUE(faccessat(folder, text, F_OK, 0));
    close(folder);
    free(parent);
    TRY(chdir("/"));
}

static void child(const char *what, int result, const pid_t *pid)
{
    int status = 0;
    if (result == 0) waitpid(*pid, &status, 0);
    printf("%s: %s, status %d\n", what, strerror(result), WEXITSTATUS(status));
    fflush(stdout);
}

static void programs(void)
{
    char *arguments[] = {"script", "a", NULL}, *none[] = {NULL}, text[2 * PATH_MAX];
    write_file(at("script"), "#!/bin/sh -e\necho $0 $1; exit 3\n");
    chmod(at("script"), 0755);
    snprintf(text, sizeof text, "#!%s/script\n", top);
    write_file(at("outer"), text);
    chmod(at("outer"), 0755);
    write_file(at("bare"), "echo bare $1; exit 4\n");
    chmod(at("bare"), 0755);
    fflush(stdout);
    pid_t pid = 0;
    child("posix_spawn", posix_spawn(&pid, at("script"), NULL, NULL, arguments, environ), &pid);
    child("posix_spawn without environment", posix_spawn(&pid, at("outer"), NULL, NULL, arguments, none), &pid);
    child("posix_spawn", posix_spawn(&pid, at("none"), NULL, NULL, arguments, environ), &pid);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, at("output"), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addchdir_np(&actions, top);
    child("posix_spawn with actions", posix_spawn(&pid, "./script", &actions, NULL, arguments, environ), &pid);
    posix_spawn_file_actions_destroy(&actions);
    show_file(at("output"));
    setenv("PATH", top, 1);
    child("posix_spawnp", posix_spawnp(&pid, "script", NULL, NULL, arguments, environ), &pid);
    for (int way = 0; way < 7; way++) {
        pid = way % 2 ? fork() : vfork();
        if (pid == 0) {
            if (way == 0) execv(at("script"), arguments);
            if (way == 1) execl(at("script"), "script", "l", NULL);
            if (way == 2) execvp("script", arguments);
            if (way == 3) execlp(at("bare"), "bare", "p", NULL);
            if (way == 4) execle(at("outer"), "outer", "e", NULL, none);
            if (way == 5) execveat(AT_FDCWD, at("none"), arguments, environ, 0);
            if (way == 6) execve(at("outer"), arguments, environ);
            _exit(errno);
        }
        printf("way %d ", way);
        child("exec", 0, &pid);
    }
    setenv("PATH", "/usr/bin:/bin", 1);
}

static void addresses(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if ((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", top) >= sizeof address.sun_path) exit(8);
    int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    TRY(bind(server, (struct sockaddr *)&address, sizeof address));
    TRY(listen(server, 1));
    TRY(connect(client, (struct sockaddr *)&address, sizeof address));
    close(server), close(client);
    TRY(unlink(at("socket")));
}

/* Paths that no program should pass: the kernel reports what is wrong. */
static void invalid(void)
{
    struct stat status;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *bad = memory + page;
    /* A path that ends at the end of a page, before and after the next page is gone. */
    for (int round = 0; round < 2; round++) {
        char *last = bad - strlen(top) - 1;
        strcpy(last, top);
        TRY(stat(last, &status));
        TRY(open(bad - 1, O_RDONLY));
        memset(memory, '/', page);
        if (round == 0) munmap(bad, page);
        else TRY(stat(bad - 5, &status));
    }
    memcpy(bad - strlen(top), top, strlen(top));
    TRY(stat(bad - strlen(top), &status));
    TRY(open(bad, O_RDONLY));
    TRY(stat(bad, &status));
    TRY(chdir(bad));
    TRY(mkdir(bad, 0700));
    TRY(rename(bad, at("x")));
    TRY(rename(at("x"), bad));
    TRY(readlink(bad, memory, 1));
    TRY(access((const char *)(uintptr_t)8, F_OK));
    TRY(access((const char *)(UINTPTR_MAX - 100), F_OK));
    const char *volatile no_path = NULL;
    TRY(access(no_path, F_OK));
    TRY((int)syscall(SYS_openat, AT_FDCWD, bad, O_RDONLY));
    TRY(open("", O_RDONLY));
    static char text[3 * PATH_MAX];
    for (int extra = -3; extra < 3; extra++) {
        memset(text, '/', sizeof text);
        strcpy(text, top);
        text[strlen(top)] = '/';
        text[PATH_MAX + 300 * extra] = 0;
        if (extra > 0) TRY(stat(text, &status));
        memset(text + strlen(top) + 1, 'x', PATH_MAX + 300 * (size_t)(extra + 3));
        text[strlen(top) + 200 + 100 * (size_t)(extra + 3)] = 0;
        TRY(stat(text, &status));
    }
    TRY(symlink(at("loop"), at("loop")));
    TRY(stat(at("loop/x"), &status));
    TRY(open(at("loop"), O_RDONLY));
    TRY(openat(-7, "x", O_RDONLY));
    TRY(openat(-7, "..", O_RDONLY));
    TRY(openat(12345, "../x", O_RDONLY));
    TRY(openat(0, "../x", O_RDONLY));
}

int main(int count, char **arguments)
{
    if (count < 2) return 2;
    top = arguments[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    opens();
    attributes();
    names();
    lists();
    current();
    programs();
    addresses();
    invalid();
    return 0;
}
