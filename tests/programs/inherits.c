/* A connection handed over as standard input and output to an exec'd program, as inetd does it: inherits MESSAGES sends that
 * many exchanges before the exec. */
#include "check.h"

static const char *self;
static int messages;

static void accepted(int fd)
{
    exchange(fd, 0, messages);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(dup2(fd, 0) == 0);
        CHECK(dup2(fd, 1) == 1);
        execl(self, self, "serve", (char *)NULL);
        _exit(127);
    }
    close(fd);
    wait_for(child);
}

static void connected(int fd)
{
    exchange(fd, 1, messages);
    exchange(fd, 1, 100);
    shutdown(fd, SHUT_WR);
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
    printf("100 exchanges with the new image\n");
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    self = argv[0];
    if (strcmp(argv[1], "serve") == 0) {
        char data[64];
        ssize_t n;
        while ((n = read(0, data, sizeof data)) > 0) CHECK(write(1, data, (size_t)n) == n);
        return n == 0 ? 0 : 1;
    }
    messages = atoi(argv[1]);
    two_processes("4", accepted, connected);
}
