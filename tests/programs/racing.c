/* Threads send, receive, poll, wait and change options on one connection while another thread closes it, again and again under the same number.
 * Usage: racing HOW ROUNDS
 *   close      close(), after shutdown() has woken the sleeping threads
 *   replace    dup2() of an ordinary file onto it
 *   range      close_range()
 *   reset      the other end resets it, then close()
 * Every byte received was sent on this connection. Calls end with the kernel's result for an end of file, or for a descriptor that is not open or
 * not a socket. */
#include "check.h"
#include <stdatomic.h>
#include <stdbool.h>

enum { THREADS = 7 };

static const char *how;
static int rounds, shared, epfd, file;
static _Atomic bool over;
static unsigned char mark; /* the byte that this round sends */
static _Atomic uint64_t moved;

static bool expected(int error)
{
    return error == EBADF || error == ENOTSOCK || error == ECONNRESET || error == EPIPE || error == EAGAIN || error == EINTR ||
           error == ENOTCONN || error == EINVAL || error == ENOENT || error == ENOTTY || error == EPERM || error == ENOPROTOOPT;
}

static bool goes_on(ssize_t n, const char *what)
{
    if (n < 0 && !expected(errno)) {
        fprintf(stderr, "%s, %s: %s\n", how, what, strerror(errno));
        exit(1);
    }
    return !over && (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)));
}

static void *sends(void *large)
{
    size_t length = large ? 50000 : 64;
    unsigned char *data = malloc(length);
    memset(data, mark, length);
    ssize_t n;
    do {
        n = send(shared, data, length, MSG_NOSIGNAL);
        if (n > 0) moved += (uint64_t)n;
    } while (goes_on(n, "send"));
    free(data);
    return NULL;
}

static void *receives(void *all)
{
    unsigned char data[20000];
    ssize_t n;
    do {
        n = recv(shared, data, all ? 300 : sizeof data, all ? MSG_WAITALL : 0);
        for (ssize_t i = 0; i < n; i++)
            if (data[i] != mark) {
                fprintf(stderr, "%s: a byte %d in a round of %d\n", how, data[i], mark);
                exit(1);
            }
    } while (goes_on(n, "recv"));
    return NULL;
}

static void *waits(void *by_epoll)
{
    int n;
    do {
        struct epoll_event came;
        struct pollfd in = {.fd = shared, .events = POLLIN};
        if (by_epoll) {
            struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
            if (epoll_ctl(epfd, EPOLL_CTL_ADD, shared, &event) == 0 || errno == EEXIST) epoll_ctl(epfd, EPOLL_CTL_MOD, shared, &event);
            n = epoll_wait(epfd, &came, 1, 5);
            epoll_ctl(epfd, EPOLL_CTL_DEL, shared, NULL);
        } else {
            n = poll(&in, 1, 5);
            if (n == 1 && (in.revents & POLLNVAL)) return NULL;
        }
    } while (!over && n >= 0);
    return NULL;
}

static void *looks(void *unused)
{
    (void)unused;
    unsigned char byte;
    int n, on = 1;
    do {
        if (ioctl(shared, FIONREAD, &n) < 0) break;
        if (recv(shared, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && byte != mark) {
            fprintf(stderr, "%s: peeked at %d in a round of %d\n", how, byte, mark);
            exit(1);
        }
        setsockopt(shared, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        fcntl(shared, F_SETFL, fcntl(shared, F_GETFL)); /* unchanged flags */
    } while (!over);
    return NULL;
}

static void ends(int round)
{
    struct timespec time = {0, 200000 + round % 7 * 400000};
    struct pollfd end = {.fd = shared};
    nanosleep(&time, NULL);
    if (strcmp(how, "reset") == 0) {
        CHECK(poll(&end, 1, 5000) == 1);
    } else {
        shutdown(shared, SHUT_RDWR);
        if (strcmp(how, "replace") == 0) CHECK(dup2(file, shared) == shared);
        if (strcmp(how, "range") == 0) CHECK(close_range((unsigned)shared, (unsigned)shared, 0) == 0);
        if (strcmp(how, "close") == 0) CHECK(close(shared) == 0);
    }
    over = true;
}

/* The last descriptor of the socket closes while other threads are in their calls. */
static void resets(void)
{
    struct linger now = {1, 0};
    struct timespec time = {0, 1000000};
    nanosleep(&time, NULL);
    setsockopt(shared, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    CHECK(dup2(file, shared) == shared);
    over = true;
}

static void race(int fd, int round, bool first)
{
    static void *(*const body[THREADS])(void *) = {sends, sends, receives, receives, waits, waits, looks};
    pthread_t threads[THREADS];
    mark = (unsigned char)(round % 250 + 1);
    shared = fd;
    over = false;
    exchange(fd, first, 8);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, body[i], (void *)(uintptr_t)(i % 2)) == 0);
    if (first && strcmp(how, "reset") == 0)
        resets();
    else
        ends(round);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    close(fd);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    how = argv[1];
    rounds = atoi(argv[2]);
    int port = 0, listener = listen_on("4", &port), number = -1;
    file = open("/dev/null", O_RDWR);
    pid_t child = fork();
    CHECK(child >= 0);
    epfd = epoll_create1(0);
    for (int i = 0; i < rounds; i++) {
        int fd = child == 0 ? connect_to("4", port) : accept(listener, NULL, NULL);
        CHECK(fd >= 0 && (number < 0 || fd == number));
        number = fd;
        race(fd, i, child == 0);
    }
    CHECK(moved > 0);
    if (child == 0) return 0;
    wait_for(child);
    printf("%d connections, closed under %d threads\n", rounds, THREADS);
}
