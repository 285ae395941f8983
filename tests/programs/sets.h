/* sets.h: shared by sets.c and set_threads.c: a child that holds the other ends and never sleeps while it waits for an answer, so only a
 * wakeup lets the server proceed. */
#ifndef SETS_H
#define SETS_H

#include "check.h"
#include <sched.h>
#include <stdbool.h>

enum { SETS_MAX = 256, SETS_SIZE = 40 };

static inline uint32_t kind_of(const char *how)
{
    if (strcmp(how, "edge") == 0) return EPOLLET;
    if (strcmp(how, "oneshot") == 0) return EPOLLONESHOT;
    CHECK(strcmp(how, "level") == 0);
    return 0;
}

static inline void set_add(int epfd, int fd, uint32_t events)
{
    struct epoll_event event = {.events = EPOLLIN | events, .data.fd = fd};
    CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
}

static inline void set_again(int epfd, int fd, uint32_t events)
{
    struct epoll_event event = {.events = EPOLLIN | events, .data.fd = fd};
    CHECK(epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &event) == 0);
}

static inline void set_delete(int epfd, int fd) { CHECK(epoll_ctl(epfd, EPOLL_CTL_DEL, fd, NULL) == 0); }

/* Receives without ever sleeping in the kernel. */
static inline void receive_awake(int fd, void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = recv(fd, (char *)data + done, length - done, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) {
            sched_yield();
            continue;
        }
        CHECK(n > 0);
        done += (size_t)n;
    }
}

static inline void request_awake(int fd, char what)
{
    char data[SETS_SIZE];
    memset(data, what, sizeof data);
    send_all(fd, data, sizeof data);
}

static inline void answer_awake(int fd, char what)
{
    char data[SETS_SIZE];
    receive_awake(fd, data, sizeof data);
    for (int i = 0; i < SETS_SIZE; i++) CHECK(data[i] == what);
}

/* Makes `count` connections to a child that runs `client` on its ends; the ends of this process go into `fds`. Returns the child. */
static inline pid_t sets_connect(int count, int *fds, void (*client)(int *fds, int count))
{
    int port = 0, listener = listen_on("4", &port);
    CHECK(count <= SETS_MAX);
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int own[SETS_MAX];
        close(listener);
        for (int i = 0; i < count; i++) own[i] = connect_to("4", port);
        client(own, count);
        exit(0);
    }
    for (int i = 0; i < count; i++) CHECK((fds[i] = accept(listener, NULL, NULL)) >= 0);
    close(listener);
    return child;
}

#endif
