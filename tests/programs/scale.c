/* Very many connections at once. Usage: scale HOW COUNT PEERS [FILE]
 *   epoll, edge, oneshot   this process serves COUNT connections by one epoll descriptor; PEERS other processes connect, talk over each
 *                          connection, keep all open, then talk over each again
 * With FILE it prints "open" when all are open, and continues when that file exists. */
#include "check.h"
#include <stdbool.h>
#include <sys/resource.h>

enum { EVENTS = 512, ROUNDS = 14, SIZE = 64 };

static void message(char *data, int connection, int round)
{
    uint64_t state = (uint64_t)connection << 20 | (uint64_t)round;
    next_random(&state);
    fill(data, SIZE, &state);
}

static void talk(int fd, int connection, int first, int rounds)
{
    char mine[SIZE], theirs[SIZE];
    for (int round = first; round < first + rounds; round++) {
        message(mine, connection, round);
        send_all(fd, mine, sizeof mine);
        receive_all(fd, theirs, sizeof theirs);
        CHECK(memcmp(mine, theirs, sizeof mine) == 0);
    }
}

/* One peer. `told` reports when all peers are ready, and when this one may end. */
static void call(int port, int first, int count, int ready, int told)
{
    int *fds = calloc((size_t)count, sizeof *fds);
    for (int i = 0; i < count; i++) {
        fds[i] = connect_to("4", port);
        talk(fds[i], first + i, 0, ROUNDS);
    }
    char byte = 1;
    CHECK(write(ready, &byte, 1) == 1 && read(told, &byte, 1) == 1);
    for (int i = 0; i < count; i++) talk(fds[i], first + i, ROUNDS, 2);
    CHECK(write(ready, &byte, 1) == 1 && read(told, &byte, 1) == 1);
    for (int i = 0; i < count; i++) close(fds[i]);
    exit(0);
}

static void tell(const int told[][2], int peers)
{
    for (int i = 0; i < peers; i++) CHECK(write(told[i][1], "x", 1) == 1);
}

static void arm(int epoll, int operation, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    CHECK(epoll_ctl(epoll, operation, fd, &event) == 0);
}

/* Echoes what has arrived. False at the end of the connection. */
static bool echo(int fd, bool all)
{
    char data[SIZE * 4];
    do {
        ssize_t got = recv(fd, data, sizeof data, MSG_DONTWAIT);
        if (got == 0) return false;
        if (got < 0) {
            CHECK(errno == EAGAIN);
            return true;
        }
        send_all(fd, data, (size_t)got);
    } while (all);
    return true;
}

static void serve(int listener, int ready, const int told[][2], uint32_t how, int count, int peers, const char *file)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC), open = 0, ended = 0, said = 0;
    static struct epoll_event events[EVENTS];
    arm(epoll, EPOLL_CTL_ADD, listener, EPOLLIN);
    arm(epoll, EPOLL_CTL_ADD, ready, EPOLLIN);
    while (ended < count) {
        int n = epoll_wait(epoll, events, EVENTS, -1);
        CHECK(n > 0 || errno == EINTR);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                int accepted = accept(listener, NULL, NULL);
                CHECK(accepted >= 0);
                arm(epoll, EPOLL_CTL_ADD, accepted, EPOLLIN | how);
                open++;
            } else if (fd == ready) {
                char byte;
                CHECK(read(ready, &byte, 1) == 1);
                if (++said == peers || said == 2 * peers) {
                    CHECK(open == count);
                    if (said == peers && file) {
                        printf("open\n");
                        fflush(stdout);
                        while (access(file, F_OK) != 0) nap_ms(10);
                    }
                    tell(told, peers);
                }
            } else if (!echo(fd, how & EPOLLET)) {
                close(fd);
                ended++;
            } else if (how & EPOLLONESHOT) {
                arm(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | how);
            }
        }
    }
    close(epoll);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4 || argc == 5);
    uint32_t how = strcmp(argv[1], "edge") == 0 ? EPOLLET : strcmp(argv[1], "oneshot") == 0 ? EPOLLONESHOT : 0;
    int count = atoi(argv[2]), peers = atoi(argv[3]), port = 0, ready[2], told[64][2];
    struct rlimit limit = {65536, 65536};
    CHECK(peers <= 64);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    int listener = listen_on("4", &port);
    CHECK(pipe(ready) == 0);
    pid_t children[64];
    for (int i = 0; i < peers; i++) {
        CHECK(pipe(told[i]) == 0);
        children[i] = fork();
        CHECK(children[i] >= 0);
        int first = (int)((long)count * i / peers), next = (int)((long)count * (i + 1) / peers);
        if (children[i] == 0) {
            close(listener);
            call(port, first, next - first, ready[1], told[i][0]);
        }
    }
    serve(listener, ready[0], told, how, count, peers, argc == 5 ? argv[4] : NULL);
    for (int i = 0; i < peers; i++) wait_for(children[i]);
    printf("%d connections to %d peers, each echoed\n", count, peers);
}
