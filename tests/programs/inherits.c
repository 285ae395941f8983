/* A connection handed over as standard input and output to an exec'd program, as inetd does. Usage: inherits BEFORE BETWEEN
 * Makes BEFORE exchanges before the fork and BETWEEN in the child before the exec. An exec that fails precedes the real one; the new image
 * then execs itself once more. INHERITS_IMAGE is another program that serves in place of the first image. */
#include "check.h"

static const char *self;
enum { SERVED = 400 };
static int before, between;

static void accepted(int fd)
{
    exchange(fd, 0, before);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(execl("/no/such/program", "program", (char *)NULL) == -1 && errno == ENOENT);
        exchange(fd, 0, between);
        CHECK(dup2(fd, 0) == 0);
        CHECK(dup2(fd, 1) == 1);
        const char *image = getenv("INHERITS_IMAGE");
        execl(image ? image : self, self, "serve", (char *)NULL);
        _exit(127);
    }
    close(fd);
    wait_for(child);
}

static void connected(int fd)
{
    exchange(fd, 1, before);
    exchange(fd, 1, between);
    exchange(fd, 1, SERVED);
    shutdown(fd, SHUT_WR);
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
    printf("%d exchanges with the new image\n", SERVED);
}

static int serve(int most)
{
    char data[64];
    ssize_t n = 1;
    for (int i = 0; i < most && (n = read(0, data, sizeof data)) > 0; i++) CHECK(write(1, data, (size_t)n) == n);
    return n < 0;
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    self = argv[0];
    if (strcmp(argv[1], "serve") == 0) {
        if (serve(SERVED / 2) != 0) return 1;
        execl("/proc/self/exe", self, "serve-on", (char *)NULL);
        return 127;
    }
    if (strcmp(argv[1], "serve-on") == 0) return serve(1 << 20);
    CHECK(argc == 3);
    before = atoi(argv[1]);
    between = atoi(argv[2]);
    two_processes("4", accepted, connected);
}
