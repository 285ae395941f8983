/* Other ready descriptors are reported beside a busy stream. Usage: beside WAY BLOCKS
 *
 * The peer sends a batch whenever the previous one was read. A pipe is readable and the stream is writable all the time. So poll and select
 * must report both in every answer, and epoll must report the pipe at least once in a few answers, even with room for a single event.
 *
 * WAY: poll, ppoll, select, pselect       a stream, the pipe, and writability of the stream
 *      turns                               two polls that alternate; one of them is of a second stream alone
 *      epoll, one, edge                    room for many events; room for one; the stream is edge-triggered
 *      sets                                two sets that one thread waits on in turn, each with a stream and the pipe
 *      threads                             two threads in one set
 *      room                                the stream is registered for input and output */
#include "check.h"
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>

static const char *way;
static int count, side[2];
/* Consecutive answers of an epoll set that may leave out the pipe. The bound of the adapter is smaller. */
enum { MOST_IN_A_ROW = 32, SIZE = 64, BATCH = 16 };
static _Atomic long *taken; /* bytes taken of each stream, for the peer; afterwards a mark that the run is over */
static int second;
static _Thread_local int took; /* blocks taken by this thread */

static bool is(const char *name) { return strcmp(way, name) == 0; }

/* False at the end of the connection, or when there is nothing to read. */
static bool take_by(int fd, int flags)
{
    char data[SIZE];
    ssize_t n = recv(fd, data, sizeof data, flags);
    CHECK(n >= 0 || errno == ECONNRESET || (flags && errno == EAGAIN));
    if (n > 0) atomic_fetch_add(&taken[fd == second], n);
    took += n > 0;
    return n > 0;
}

static bool take(int fd) { return take_by(fd, 0); }

/* ---- poll and select: every answer is complete */

static void by_array(int fd, int other)
{
    while (took < count) {
        if (is("poll") || is("ppoll") || is("turns")) {
            struct pollfd of[] = {{.fd = fd, .events = POLLIN | POLLOUT}, {.fd = side[0], .events = POLLIN}};
            CHECK((is("ppoll") ? ppoll(of, 2, NULL, NULL) : poll(of, 2, -1)) == 2);
            CHECK(of[0].revents & POLLOUT && of[1].revents == POLLIN);
            if (of[0].revents & POLLIN) CHECK(take(fd));
            struct pollfd alone = {.fd = other, .events = POLLIN};
            if (is("turns")) CHECK(poll(&alone, 1, -1) == 1 && alone.revents == POLLIN && take(other));
            continue;
        }
        fd_set in, out;
        FD_ZERO(&in);
        FD_ZERO(&out);
        FD_SET(fd, &in);
        FD_SET(side[0], &in);
        FD_SET(fd, &out);
        int top = (fd > side[0] ? fd : side[0]) + 1;
        int ready = is("pselect") ? pselect(top, &in, &out, NULL, NULL, NULL) : select(top, &in, &out, NULL, NULL);
        CHECK(FD_ISSET(side[0], &in) && FD_ISSET(fd, &out) && ready == 2 + !!FD_ISSET(fd, &in));
        if (FD_ISSET(fd, &in)) CHECK(take(fd));
    }
    printf("all answers by %s were whole\n", way);
}

/* ---- epoll: the pipe is reported within a few answers */

static int set_of(int fd)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | (is("edge") ? EPOLLET : 0) | (is("room") ? EPOLLOUT : 0), .data.fd = fd};
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    event = (struct epoll_event){.events = EPOLLIN, .data.fd = side[0]};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, side[0], &event) == 0);
    return set;
}

/* Takes one answer. Returns the number of consecutive answers without the pipe. */
static int answer(int set, int fd, int missed)
{
    struct epoll_event came[4];
    int room = is("one") || is("threads") ? 1 : 4, ready = epoll_wait(set, came, room, -1);
    CHECK(ready > 0);
    for (int i = 0; i < ready; i++) {
        if (came[i].data.fd == side[0]) {
            missed = -1;
        } else {
            CHECK(came[i].data.fd == fd && (!is("room") || came[i].events & EPOLLOUT));
            if (is("edge"))
                while (take_by(fd, MSG_DONTWAIT)) {}
            else if (came[i].events & EPOLLIN)
                CHECK(take(fd));
        }
    }
    CHECK(missed < MOST_IN_A_ROW);
    return missed + 1;
}

struct waits {
    int set, fd;
};

static void *waits(void *of)
{
    struct waits *w = of;
    for (int missed = 0; took < count;) missed = answer(w->set, w->fd, missed);
    return NULL;
}

static void by_set(int fd, int other)
{
    struct waits first = {set_of(fd), fd};
    if (is("sets")) {
        int missed[2] = {0, 0}, second = set_of(other);
        while (took < count) {
            missed[0] = answer(first.set, fd, missed[0]);
            missed[1] = answer(second, other, missed[1]);
        }
    } else if (is("threads")) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, waits, &first) == 0);
        for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    } else {
        waits(&first);
    }
    printf("no answers by %s hid what was beside\n", way);
}

/* ---- the two processes */

static void send_for_ever(int port)
{
    int fds[2] = {connect_to("4", port), connect_to("4", port)};
    char block[SIZE] = {0};
    long sent[2] = {0, 0};
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 2; i++) exchange(fds[i], 1, 200);
    for (; !atomic_load(&taken[2]); sched_yield())
        for (int i = 0; i < 2; i++)
            for (int n = 0; atomic_load(&taken[i]) == sent[i] - n * SIZE && n < BATCH; n++) {
                if (send(fds[i], block, SIZE, 0) < 0) exit(0);
                sent[i] += SIZE;
            }
    exit(0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    way = argv[1];
    count = atoi(argv[2]);
    int port = 0, listener = listen_on("4", &port), fds[2];
    CHECK(pipe(side) == 0 && write(side[1], "x", 1) == 1);
    taken = mmap(NULL, 3 * sizeof *taken, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(taken != MAP_FAILED);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(listener);
        send_for_ever(port);
    }
    for (int i = 0; i < 2; i++) CHECK((fds[i] = accept(listener, NULL, NULL)) >= 0);
    for (int i = 0; i < 2; i++) exchange(fds[i], 0, 200);
    second = fds[1];
    bool array = is("poll") || is("ppoll") || is("turns") || is("select") || is("pselect");
    (array ? by_array : by_set)(fds[0], fds[1]);
    atomic_store(&taken[2], 1);
    for (int i = 0; i < 2; i++) close(fds[i]);
    wait_for(child);
    return 0;
}
