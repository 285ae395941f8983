/* dup, dup2, dup3 and F_DUPFD of a connection. The copies remain usable when the first descriptor is closed, and the other end gets end of
 * file only after the last one. */
#include "check.h"

static void accepted(int fd)
{
    char byte;
    exchange_until_settled(fd, 0);
    int copy = dup(fd);
    CHECK(copy >= 0);
    exchange(fd, 0, 20);
    exchange(copy, 0, 20);
    CHECK(close(fd) == 0);
    exchange(copy, 0, 40);
    int other = open("/dev/null", O_RDONLY);
    CHECK(dup2(copy, other) == other);
    exchange(other, 0, 20);
    CHECK(close(copy) == 0);
    exchange(other, 0, 40);
    int high = fcntl(other, F_DUPFD_CLOEXEC, 200);
    CHECK(high == 200);
    CHECK(dup3(high, other, O_CLOEXEC) == other);
    CHECK(close(other) == 0);
    exchange(high, 0, 20);
    printf("before the last close: %s\n", recv(high, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN ? "open" : "ended");
    CHECK(close(high) == 0);
    CHECK(close(high) == -1 && errno == EBADF);
}

static void connected(int fd)
{
    char byte;
    int early = dup(fd); /* a copy made while the connection is a candidate */
    exchange_until_settled(fd, 1);
    exchange(early, 1, 20);
    CHECK(close(early) == 0);
    static const int parts[] = {20, 40, 20, 40, 20};
    for (int i = 0; i < 5; i++) exchange(fd, 1, parts[i]);
    ssize_t n = recv(fd, &byte, 1, 0);
    CHECK(n == 0);
    nap_ms(50);
    printf("end of file after the last close\n");
    CHECK(dup2(0, fd) == fd); /* closes the socket */
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 4096);
    two_processes("4", accepted, connected);
}
