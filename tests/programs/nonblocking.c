/* Non-blocking connect finished under epoll (the socket is registered before it is connected), then a non-blocking client
 * and an accept4(SOCK_NONBLOCK) server, both under epoll with interest in reading and writing. */
#include "check.h"

enum { TOTAL = 8 << 20 };

static void wait_epoll(int epfd, uint32_t *events)
{
    struct epoll_event event;
    CHECK(epoll_wait(epfd, &event, 1, 5000) == 1);
    *events = event.events;
}

int main(void)
{
    int port = 0, listener = listen_on("4", &port);
    pid_t child = fork();
    CHECK(child >= 0);
    static char data[70000];
    if (child == 0) {
        struct sockaddr_storage address;
        socklen_t length = loopback("4", port, &address);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), epfd = epoll_create1(0), error = -1;
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
        CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
        CHECK(connect(fd, (struct sockaddr *)&address, length) == -1 && errno == EINPROGRESS);
        uint32_t events;
        do wait_epoll(epfd, &events);
        while (!(events & EPOLLOUT) || (events & EPOLLHUP));
        length = sizeof error;
        CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
        uint64_t out_state = 1, out = 0, in = 0;
        size_t sent = 0, received = 0, held = 0, at = 0;
        while (received < TOTAL) {
            int stuck = 1;
            while (sent < TOTAL) {
                if (at == held) {
                    held = 1 + next_random(&out_state) % (sent < 100000 ? 200 : sizeof data);
                    if (held > TOTAL - sent) held = TOTAL - sent;
                    fill(data, held, &out_state);
                    at = 0;
                }
                ssize_t n = send(fd, data + at, held - at, 0);
                if (n < 0 && errno == EAGAIN) break;
                CHECK(n > 0);
                out = hash_more(out, data + at, (size_t)n);
                at += (size_t)n;
                sent += (size_t)n;
                stuck = 0;
            }
            static char back[50000];
            for (;;) {
                ssize_t n = read(fd, back, sizeof back);
                if (n < 0 && errno == EAGAIN) break;
                CHECK(n > 0);
                in = hash_more(in, back, (size_t)n);
                received += (size_t)n;
                stuck = 0;
            }
            if (stuck && received < TOTAL) wait_epoll(epfd, &events);
        }
        CHECK(in == out);
        printf("%d bytes there and back, hash %016llx\n", TOTAL, (unsigned long long)in);
        exit(0);
    }
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), epfd = epoll_create1(0);
    CHECK(fd >= 0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
    size_t held = 0, at = 0;
    for (int ended = 0; !ended || at < held;) {
        uint32_t events;
        wait_epoll(epfd, &events);
        if (at == held && (events & (EPOLLIN | EPOLLHUP))) {
            ssize_t n = recv(fd, data, sizeof data, 0);
            CHECK(n >= 0 || errno == EAGAIN || errno == ECONNRESET);
            if (n == 0 || (n < 0 && errno == ECONNRESET)) ended = 1;
            held = n > 0 ? (size_t)n : 0;
            at = 0;
        }
        while (at < held) {
            ssize_t n = send(fd, data + at, held - at, MSG_NOSIGNAL);
            if (n < 0 && errno == EAGAIN) break;
            CHECK(n > 0);
            at += (size_t)n;
        }
        event.events = at < held ? EPOLLOUT : EPOLLIN;
        CHECK(epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &event) == 0);
    }
    wait_for(child);
}
