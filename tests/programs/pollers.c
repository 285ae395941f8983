/* An exchange between programs that poll with timeout 0 and never sleep in a wait. Prints the hash of what came back.
 * Usage: pollers poll|select|epoll|edge COUNT */
#include "check.h"
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/select.h>

enum { SIZE = 64 };
static const char *how;
static int count, set = -1;

static bool looks(int fd)
{
    if (!strcmp(how, "poll")) {
        struct pollfd in = {.fd = fd, .events = POLLIN};
        CHECK(poll(&in, 1, 0) >= 0);
        return in.revents != 0;
    }
    if (!strcmp(how, "select")) {
        fd_set in;
        struct timeval none = {0};
        FD_ZERO(&in);
        FD_SET(fd, &in);
        int n = select(fd + 1, &in, NULL, NULL, &none);
        CHECK(n >= 0);
        return n > 0;
    }
    struct epoll_event came;
    int n = epoll_wait(set, &came, 1, 0);
    CHECK(n >= 0 && (n == 0 || came.data.fd == fd));
    return n > 0;
}

/* False at the end of the connection. */
static bool take(int fd, char *data)
{
    for (size_t done = 0; done < SIZE;) {
        ssize_t n = recv(fd, data + done, SIZE - done, 0);
        if (n == 0) return false;
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        CHECK(errno == EAGAIN);
        while (!looks(fd)) sched_yield();
    }
    return true;
}

static void prepare(int fd)
{
    struct epoll_event event = {.events = EPOLLIN | (strcmp(how, "edge") ? 0 : EPOLLET), .data.fd = fd};
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK((set = epoll_create1(EPOLL_CLOEXEC)) >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

static void serve(int fd)
{
    char data[SIZE];
    prepare(fd);
    while (take(fd, data)) CHECK(send(fd, data, SIZE, MSG_NOSIGNAL) == SIZE);
    close(fd);
}

static void call(int fd)
{
    char out[SIZE], in[SIZE];
    uint64_t state = 1, hash = 0;
    prepare(fd);
    for (int i = 0; i < count; i++) {
        fill(out, SIZE, &state);
        CHECK(send(fd, out, SIZE, 0) == SIZE);
        CHECK(take(fd, in) && memcmp(in, out, SIZE) == 0);
        hash = hash_more(hash, in, SIZE);
    }
    printf("%d echoes by %s, hash %016llx\n", count, how, (unsigned long long)hash);
    close(fd);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    how = argv[1];
    count = atoi(argv[2]);
    two_processes("4", serve, call);
}
