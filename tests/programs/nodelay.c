/* TCP_NODELAY: a program reads back what it set, whatever carries its payload. With the argument "kernel" the connecting end prints the
 * kernel's value, which it reads without libc. */
#include "check.h"
#include "raw.h"

static int past;

static int value(int fd)
{
    int on = -1;
    socklen_t length = sizeof on;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &length) == 0 && length == sizeof on);
    return on != 0;
}

static void set(int fd, int on) { CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0); }

static void accepted(int fd)
{
    exchange_until_settled(fd, 0);
    exchange(fd, 0, 100);
}

static void connected(int fd)
{
    printf("at first: %d\n", value(fd));
    exchange_until_settled(fd, 1);
    printf("later: %d\n", value(fd));
    set(fd, 1);
    printf("set: %d\n", value(fd));
    set(fd, 0);
    int copy = dup(fd);
    printf("cleared: %d, by a duplicate: %d\n", value(fd), value(copy));
    exchange(fd, 1, 100);
    if (past) {
        int on = -1;
        socklen_t length = sizeof on;
        CHECK(raw(SYS_getsockopt, fd, IPPROTO_TCP, TCP_NODELAY, (long)&on, (long)&length) == 0);
        printf("the kernel's: %d\n", on != 0);
    }
    unsigned char first = 7;
    socklen_t one = 1;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &first, &one) == 0 && one == 1);
    printf("its first byte: %d\n", first);
    int short_value = 0;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &short_value, 1) == -1 && errno == EINVAL);
    FILE *file = fdopen(copy, "w"); /* on TCP from here on */
    CHECK(file != NULL);
    printf("under stdio: %d\n", value(fd));
}

int main(int count, char **arguments)
{
    setvbuf(stdout, NULL, _IOLBF, 4096);
    past = count > 1 && strcmp(arguments[1], "kernel") == 0;
    two_processes("4", accepted, connected);
}
