/* Special cases of epoll: partial reads under edge and level, silence after a one-shot, MOD and DEL, a nested set, two sets, poll on a set,
 * timeouts, removal by close. Each observation is printed. */
#include "check.h"

static int go[2], done[2];

static void ask(int bytes)
{
    CHECK(write(go[1], &bytes, sizeof bytes) == sizeof bytes);
    char byte;
    if (bytes) CHECK(read(done[0], &byte, 1) == 1);
}

static int wait_set(int epfd, int timeout, uint32_t *events)
{
    struct epoll_event event = {0};
    int n = epoll_wait(epfd, &event, 1, timeout);
    *events = event.events;
    return n;
}

static void show(const char *name, int epfd, int timeout)
{
    uint32_t events = 0;
    int n = wait_set(epfd, timeout, &events);
    printf("%-34s %d %s%s\n", name, n, n == 1 && (events & EPOLLIN) ? "IN " : "", n == 1 && (events & EPOLLRDHUP) ? "RDHUP" : "");
}

static void read_exactly(int fd, size_t bytes)
{
    char data[8192];
    receive_all(fd, data, bytes);
}

static void control(int epfd, int operation, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    CHECK(epoll_ctl(epfd, operation, fd, &event) == 0);
}

static void busy(int fd, int epfd)
{
    for (int i = 0; i < 40; i++) { /* the path settles while the set is in use */
        char data[64];
        uint32_t events;
        ask(64);
        CHECK(wait_set(epfd, 5000, &events) == 1);
        receive_all(fd, data, sizeof data);
    }
}

static void accepted(int fd)
{
    exchange_until_settled(fd, 0);
    int epfd = epoll_create1(0);
    control(epfd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP);
    busy(fd, epfd);
    show("level, nothing", epfd, 0);
    ask(100);
    show("level, 100 bytes", epfd, 2000);
    read_exactly(fd, 60);
    show("level, 40 left", epfd, 2000);
    show("level, 40 left still", epfd, 0);
    read_exactly(fd, 40);
    show("level, empty", epfd, 10);

    control(epfd, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET);
    busy(fd, epfd);
    show("edge, nothing", epfd, 10);
    ask(100);
    show("edge, 100 bytes", epfd, 2000);
    show("edge, told once", epfd, 10);
    read_exactly(fd, 60);
    show("edge, 40 left, no news", epfd, 20);
    ask(10);
    show("edge, 10 more", epfd, 2000);
    control(epfd, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET);
    show("edge, armed again with data", epfd, 2000);
    read_exactly(fd, 50);
    show("edge, empty", epfd, 10);
    ask(10);
    show("edge, news while away", epfd, 2000);
    read_exactly(fd, 10);

    control(epfd, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
    ask(100);
    show("one-shot, 100 bytes", epfd, 2000);
    show("one-shot, silent", epfd, 10);
    ask(50);
    show("one-shot, silent for more", epfd, 20);
    read_exactly(fd, 100);
    control(epfd, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
    show("one-shot, armed with 50 left", epfd, 2000);
    read_exactly(fd, 50);

    control(epfd, EPOLL_CTL_MOD, fd, EPOLLIN);
    busy(fd, epfd);
    control(epfd, EPOLL_CTL_MOD, fd, EPOLLOUT);
    ask(30);
    show("only writing is wanted", epfd, 2000);
    control(epfd, EPOLL_CTL_DEL, fd, 0);
    show("removed", epfd, 10);
    control(epfd, EPOLL_CTL_ADD, fd, EPOLLIN);
    show("added with data", epfd, 2000);
    read_exactly(fd, 30);

    int second = epoll_create1(0);
    control(second, EPOLL_CTL_ADD, fd, EPOLLIN);
    ask(20);
    show("first set", epfd, 2000);
    show("second set", second, 2000);
    read_exactly(fd, 20);
    ask(20);
    show("second set first", second, 2000);
    show("first set second", epfd, 2000);
    read_exactly(fd, 20);
    close(second);
    ask(20);
    show("after the second is closed", epfd, 2000);
    read_exactly(fd, 20);

    int outer = epoll_create1(0);
    control(outer, EPOLL_CTL_ADD, epfd, EPOLLIN);
    show("outer set, nothing", outer, 10);
    ask(20);
    show("outer set", outer, 2000);
    show("inner set", epfd, 2000);
    read_exactly(fd, 20);
    struct pollfd in = {.fd = epfd, .events = POLLIN};
    printf("poll on the set, nothing: %d\n", poll(&in, 1, 10));
    ask(20);
    printf("poll on the set: %d\n", poll(&in, 1, 2000));
    read_exactly(fd, 20);
    ask(0);
    CHECK(close(fd) == 0);
    show("closed", epfd, 10);
}

static void connected(int fd)
{
    char data[8192] = {0}, byte = 0;
    exchange_until_settled(fd, 1);
    for (;;) {
        int bytes;
        CHECK(read(go[0], &bytes, sizeof bytes) == sizeof bytes);
        if (bytes == 0) return;
        send_all(fd, data, (size_t)bytes);
        CHECK(write(done[1], &byte, 1) == 1);
    }
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 4096);
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    two_processes("4", accepted, connected);
}
