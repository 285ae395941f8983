/* Descriptor numbers stay the program's: it gets the lowest free one, close_range and closefrom spare private descriptors, and the process
 * works afterwards. Also with a limit on descriptors. Usage: numbers LIMIT (0: unchanged) */
#include "check.h"
#include <sys/resource.h>

enum { ALL = 20000 }; /* more than a process gets by default */
static int limit;

static void accepted(int fd)
{
    if (limit) {
        struct rlimit few = {(rlim_t)limit, (rlim_t)limit};
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        while (dup(2) >= 0) {} /* none is left */
        exchange_until_settled(fd, 0);
        exchange(fd, 0, 200);
        close(fd);
        return;
    }
    exchange_until_settled(fd, 0);
    int epfd = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
    exchange(fd, 0, 100);
    int a = open("/dev/null", O_RDONLY), b = dup(a), c = socket(AF_INET, SOCK_STREAM, 0);
    printf("numbers %d %d %d %d %d\n", fd, epfd, a, b, c);
    for (int other = c + 1; other < ALL; other++) {
        CHECK(close(other) == -1 && errno == EBADF);
        CHECK(dup(other) == -1 && errno == EBADF);
        CHECK(dup2(other, a) == -1 && errno == EBADF);
        CHECK(fcntl(other, F_GETFD) == -1 && errno == EBADF);
        CHECK(close_range((unsigned)other, (unsigned)other, 0) == 0);
    }
    exchange(fd, 0, 100);
    CHECK(close_range((unsigned)a, ~0u, 0) == 0);
    CHECK(fcntl(a, F_GETFD) == -1 && fcntl(c, F_GETFD) == -1);
    exchange(fd, 0, 100);
    CHECK(epoll_wait(epfd, &event, 1, 0) >= 0);
    closefrom(epfd < fd ? fd + 1 : epfd);
    exchange(fd, 0, 100);
    CHECK(open("/dev/null", O_RDONLY) == epfd || epfd < fd);
    close(fd);
}

static void connected(int fd)
{
    char byte;
    exchange_until_settled(fd, 1);
    if (limit) {
        exchange(fd, 1, 200);
        printf("served with no descriptor left\n");
    } else {
        for (int i = 0; i < 4; i++) exchange(fd, 1, 100);
    }
    CHECK(recv(fd, &byte, 1, 0) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    limit = atoi(argv[1]);
    close_range(3, ~0u, 0); /* descriptors that the harness left open */
    two_processes("4", accepted, connected);
}
