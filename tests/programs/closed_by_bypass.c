/* A connection's descriptor is closed without a call to the adapter, and a file gets its number. What the program writes to the file is in
 * the file, and the peer reads the end of the connection. Usage: closed_by_bypass HOW [MODULE]
 *   HOW   asm     closed by a raw system call
 *         module  closed in a library that binds to libc first (RTLD_DEEPBIND)
 *         handler closed by a signal handler that interrupts calls on the connection, and opens the file
 *         freopen closed by libc, for standard input
 *         daemon  closed by libc, for standard output
 * The number is then given to a file, a pipe, an event descriptor and memory in turn. */
#include "check.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>

#define ROUNDS 24

static const char *how, *module;
static volatile int connection, made;
static char name[64];
static int turn;

static bool is(const char *word) { return strcmp(how, word) == 0; }

static int make(void)
{
    int fds[2] = {-1, -1};
    switch (is("handler") ? 0 : turn++ % 6) {
    case 0: return open(name, O_CREAT | O_TRUNC | O_RDWR, 0600);
    case 1: return memfd_create("own", 0);
    case 2: return openat(AT_FDCWD, name, O_CREAT | O_TRUNC | O_RDWR, 0600);
    case 3: return (int)syscall(SYS_openat, AT_FDCWD, name, O_CREAT | O_TRUNC | O_RDWR, 0600);
    case 4: {
        FILE *file = fopen(name, "w+");
        CHECK(file != NULL);
        return fileno(file); /* stays open */
    }
    default:
        CHECK(pipe(fds) == 0);
        if (fds[1] == connection) return fds[1];
        CHECK(dup2(fds[1], 1000) == 1000 && close(fds[1]) == 0);
        return fds[0];
    }
}

static void by_itself(int fd)
{
    long result;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_close), "D"(fd) : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = SYS_close, x0 __asm__("x0") = fd;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8) : "memory");
    result = x0;
#endif
    CHECK(result == 0);
}

static void handler(int number)
{
    (void)number;
    close(connection);
    made = make();
}

static void close_bypassing(int fd)
{
    if (is("asm")) by_itself(fd);
    if (is("module")) {
        void *library = dlopen(module, RTLD_NOW | RTLD_DEEPBIND);
        int (*closes)(int) = library ? (int (*)(int))dlsym(library, "module_close") : NULL;
        CHECK(closes && closes(fd) == 0);
    }
}

static int interrupted(int fd)
{
    char bytes[64] = {0};
    struct itimerval time = {{0, 0}, {0, 500 + turn++ * 37 % 97}};
    made = -1;
    connection = fd;
    setitimer(ITIMER_REAL, &time, NULL);
    while (made < 0)
        if (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes || recv(fd, bytes, sizeof bytes, 0) <= 0)
            while (made < 0) {}
    return made;
}

/* What was written is read back where that is possible. */
static void goes_where_it_should(int fd)
{
    char back[8] = {0};
    int kind = fcntl(fd, F_GETFL) & O_ACCMODE;
    if (kind == O_RDONLY) { /* the other end of a pipe */
        CHECK(write(1000, "MARKER", 6) == 6 && read(fd, back, 6) == 6 && memcmp(back, "MARKER", 6) == 0);
        close(1000);
    } else if (kind == O_RDWR) {
        CHECK(write(fd, "MARKER", 6) == 6);
        CHECK(pread(fd, back, 6, 0) == 6 && memcmp(back, "MARKER", 6) == 0);
    }
}

/* Receives whole blocks of zeros and nothing else. */
static void serve(int listener)
{
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0; close(fd)) {
        char bytes[64], none[64] = {0};
        for (size_t done = 0;;) {
            ssize_t n = recv(fd, bytes + done, sizeof bytes - done, 0);
            if (n <= 0) break;
            if (memchr(bytes + done, 'M', (size_t)n)) {
                puts("a connection that was closed has brought what was a file's");
                fflush(stdout);
                _exit(1);
            }
            if ((done += (size_t)n) < sizeof bytes) continue;
            done = 0;
            if (send(fd, none, sizeof none, MSG_NOSIGNAL) != sizeof none) break;
        }
    }
}

static void talk(int fd)
{
    char bytes[64] = {0};
    for (int i = 0; i < 200; i++) {
        send_all(fd, bytes, sizeof bytes);
        receive_all(fd, bytes, sizeof bytes);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    how = argv[1];
    module = argc > 2 ? argv[2] : NULL;
    snprintf(name, sizeof name, "/tmp/motet-bypass-%d", getpid());
    int port = 0, listener = listen_on("4", &port);
    struct sigaction action = {.sa_handler = handler};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    pid_t server = fork();
    CHECK(server >= 0);
    if (server == 0) serve(listener);
    close(listener);
    if (is("freopen") || is("daemon")) {
        int fd = connect_to("4", port), number = is("freopen") ? 0 : 1, out = dup(1);
        CHECK(dup2(fd, number) == number && close(fd) == 0);
        talk(number);
        int copy = is("daemon") ? (int)syscall(SYS_memfd_create, "keeps", 0) : -1;
        if (is("freopen")) {
            CHECK(freopen(name, "w+", stdin) != NULL && fileno(stdin) == 0);
            goes_where_it_should(0);
        } else {
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                CHECK(daemon(1, 0) == 0);
                CHECK(write(1, "MARKER", 6) == 6); /* not to the connection */
                nap_ms(100);
                CHECK(write(copy, "x", 1) == 1);
                _exit(0);
            }
            waitpid(child, NULL, 0);
            for (int i = 0; i < 200 && lseek(copy, 0, SEEK_END) == 0; i++) nap_ms(10);
            CHECK(lseek(copy, 0, SEEK_END) == 1);
        }
        CHECK(dup2(out, 1) == 1);
    } else {
        for (int round = 0; round < (is("handler") ? 400 : ROUNDS); round++) {
            int fd = connect_to("4", port);
            talk(fd);
            connection = fd;
            int now = is("handler") ? interrupted(fd) : (close_bypassing(fd), make());
            CHECK(now == fd || !is("handler"));
            goes_where_it_should(now);
            close(now);
        }
    }
    unlink(name);
    CHECK(waitpid(server, NULL, WNOHANG) == 0); /* the server lives: nothing wrong has arrived */
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    puts("all of it where it should be");
    fflush(stdout);
    _exit(0);
}
