/* Three threads create connections, use and close them while the main thread forks. Whatever the threads were doing, each child has a
 * conversation of its own and ends; every second one closes what it inherited first. A child that hangs is killed. */
#include "check.h"

#include <stdatomic.h>

enum { THREADS = 3, CHILDREN = 300, ROUNDS = 12, LONG = 150 /* is upgraded, however many ended early */, WATCHDOG = 5000 /* ms */ };

static int port;
static _Atomic int over;

static void *serve(void *fd)
{
    char data[64];
    ssize_t n;
    while ((n = recv((int)(intptr_t)fd, data, sizeof data, 0)) > 0)
        if (send((int)(intptr_t)fd, data, (size_t)n, MSG_NOSIGNAL) != n) break;
    close((int)(intptr_t)fd);
    return NULL;
}

static void server(int listener)
{
    for (;;) {
        pthread_t thread;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        CHECK(fd >= 0);
        CHECK(pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd) == 0);
        pthread_detach(thread);
    }
}

static void converse(int rounds)
{
    int fd = connect_to("4", port);
    exchange(fd, 1, rounds);
    close(fd);
}

/* Registers a socket for a moment, so that epoll sets are created and closed as well. */
static void converse_in_a_set(int rounds)
{
    int fd = connect_to("4", port), set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    char data[64];
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (int i = 0; i < rounds; i++) {
        memset(data, i, sizeof data);
        send_all(fd, data, sizeof data);
        CHECK(epoll_wait(set, &event, 1, -1) == 1);
        receive_all(fd, data, sizeof data);
        CHECK(data[0] == i && data[63] == i);
    }
    close(set);
    close(fd);
}

static void *use(void *number)
{
    for (int i = 0; !atomic_load(&over); i++)
        if ((i + (int)(intptr_t)number) % 4 == 0) converse_in_a_set(ROUNDS);
        else converse(i % 8 == 5 ? LONG : ROUNDS);
    return NULL;
}

/* From outside the child: one that waits for a lock may have blocked its signals. */
static void see_end(pid_t child, int number)
{
    int status;
    for (int waited = 0; waitpid(child, &status, WNOHANG) == 0; waited++) {
        if (waited == WATCHDOG) {
            fprintf(stderr, "child %d hangs\n", number);
            kill(child, SIGKILL);
        }
        usleep(1000);
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    int listener = listen_on("4", &port);
    pid_t peer = fork();
    CHECK(peer >= 0);
    if (peer == 0) server(listener);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, use, (void *)(intptr_t)i) == 0);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (i % 2)
                for (int fd = listener; fd < listener + 4 * THREADS; fd++) close(fd);
            converse(ROUNDS);
            exit(0);
        }
        see_end(child, i);
    }
    atomic_store(&over, 1);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    kill(peer, SIGKILL);
    CHECK(waitpid(peer, NULL, 0) == peer);
    printf("%d children\n", CHILDREN);
}
