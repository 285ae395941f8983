/* pingpong.c: one message there, one back. Figures are one way: half a round trip. See peer.h.
 *
 *   pingpong serve [epoll]                     with `epoll` sockets do not block, and every wait is an epoll_wait
 *   pingpong call HOST PORT SIZE MS [epoll] */
#include "peer.h"

#include <fcntl.h>
#include <sys/epoll.h>

static int set = -1; /* of the connection, when it never blocks */

static void never_block(int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    set = epoll_create1(EPOLL_CLOEXEC);
    if (set < 0 || fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) fail("epoll");
}

static void await(int fd, uint32_t events)
{
    struct epoll_event event = {.events = events}, ready;
    if (events != EPOLLIN && epoll_ctl(set, EPOLL_CTL_MOD, fd, &event)) fail("epoll_ctl");
    while (epoll_wait(set, &ready, 1, -1) < 0)
        if (errno != EINTR) fail("epoll_wait");
    event.events = EPOLLIN;
    if (events != EPOLLIN && epoll_ctl(set, EPOLL_CTL_MOD, fd, &event)) fail("epoll_ctl");
}

static void put(int fd, const char *data, size_t size)
{
    if (set < 0) {
        send_all(fd, data, size);
        return;
    }
    for (size_t done = 0; done < size;) {
        ssize_t n = send(fd, data + done, size - done, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) fail("send");
        if (n < 0)
            await(fd, EPOLLOUT);
        else
            done += n;
    }
}

/* Receives all bytes. Returns 1, or 0 if the peer closed the connection before the first byte. */
static int take(int fd, char *data, size_t size)
{
    if (set < 0) return receive_all(fd, data, size);
    for (size_t done = 0; done < size;) {
        await(fd, EPOLLIN);
        ssize_t n = recv(fd, data + done, size - done, 0);
        if (n == 0 || (n < 0 && errno == ECONNRESET)) return 0;
        if (n < 0 && errno != EAGAIN) fail("recv");
        if (n > 0) done += n;
    }
    return 1;
}

struct call {
    int fd;
    size_t size;
    char *data;
};

static void round_trips(void *context, long count)
{
    struct call *call = context;
    while (count-- > 0) {
        put(call->fd, call->data, call->size);
        if (!take(call->fd, call->data, call->size)) {
            fprintf(stderr, "pingpong: the server closed the connection\n");
            exit(1);
        }
    }
}

static void serve(int fd, int blocks)
{
    uint64_t size;
    if (!receive_all(fd, &size, sizeof size)) return;
    if (!blocks) never_block(fd);
    char *data = calloc(1, size);
    while (take(fd, data, size))
        put(fd, data, size);
    free(data);
}

int main(int argc, char **argv)
{
    int blocks = strcmp(argv[argc - 1], "epoll") != 0;
    argc -= !blocks;
    if (argc == 2 && !strcmp(argv[1], "serve")) {
        int fd = accept_one(listen_anywhere());
        serve(fd, blocks);
        close(fd);
    } else if (argc == 6 && !strcmp(argv[1], "call")) {
        uint64_t size = strtoull(argv[4], NULL, 0);
        struct call call = {connect_to(argv[2], argv[3]), size, calloc(1, size)};
        send_all(call.fd, &size, sizeof size);
        if (!blocks) never_block(call.fd);
        measure(round_trips, &call, 0, atof(argv[5]), 2);
        close(call.fd);
        free(call.data);
    } else {
        fprintf(stderr, "pingpong: usage: serve [epoll] | call HOST PORT SIZE MS [epoll]\n");
        return 2;
    }
    return 0;
}
