/* many_peers.c: an epoll server that echoes messages of 64 bytes, and its idle peers. See peer.h.
 *
 *   many_peers serve                  serves any number of callers until it is ended
 *   many_peers idle HOST PORT COUNT   COUNT processes, each with a connection that has carried 32 messages and then waits;
 *                                     prints "idle" when all wait, and ends them when its standard input ends
 *   many_peers call HOST PORT SIZE MS one active peer (SIZE at most 64) */
#define _GNU_SOURCE
#include "peer.h"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { MESSAGE = 64, MESSAGES = 32 };

struct call {
    int fd;
    char data[MESSAGE];
};

static void round_trips(void *context, long count)
{
    struct call *call = context;
    while (count-- > 0) {
        send_all(call->fd, call->data, MESSAGE);
        if (!receive_all(call->fd, call->data, MESSAGE)) {
            fprintf(stderr, "many_peers: the server closed the connection\n");
            exit(1);
        }
    }
}

static void serve(int listener)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[64];
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, listener, &event)) fail("epoll");
    for (;;) {
        int n = epoll_wait(set, ready, 64, -1);
        if (n < 0 && errno != EINTR) fail("epoll_wait");
        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd;
            if (fd == listener) {
                event.data.fd = accept_one(listener);
                if (epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event)) fail("epoll_ctl");
                continue;
            }
            char data[MESSAGE];
            if (receive_all(fd, data, MESSAGE))
                send_all(fd, data, MESSAGE);
            else
                close(fd);
        }
    }
}

static void idle(const char *host, const char *port, int count)
{
    int report[2], status = 0;
    char byte = 0;
    if (pipe(report)) fail("pipe");
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            struct call call = {connect_to(host, port), {0}};
            round_trips(&call, MESSAGES);
            if (write(report[1], &byte, 1) != 1) fail("write");
            receive_all(call.fd, call.data, MESSAGE);
            _exit(0);
        }
        if (read(report[0], &byte, 1) != 1) fail("read"); /* one after another, so that the server is not flooded */
    }
    puts("idle");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {}
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    while (wait(&status) > 0) {}
}

int main(int argc, char **argv)
{
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (argc == 2 && !strcmp(argv[1], "serve")) {
        serve(listen_anywhere());
    } else if (argc == 5 && !strcmp(argv[1], "idle")) {
        if (setpgid(0, 0)) fail("setpgid");
        idle(argv[2], argv[3], atoi(argv[4]));
    } else if (argc == 6 && !strcmp(argv[1], "call") && atoi(argv[4]) == MESSAGE) {
        struct call call = {connect_to(argv[2], argv[3]), {0}};
        measure(round_trips, &call, 0, atof(argv[5]), 2);
        close(call.fd);
    } else {
        fprintf(stderr, "many_peers: usage: serve | idle HOST PORT COUNT | call HOST PORT 64 MS\n");
        return 2;
    }
    return 0;
}
