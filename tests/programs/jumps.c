/* A handler leaves a call by siglongjmp(), the old way to limit time. Calls that took nothing are left many times, and the connection continues;
 * so does a new connection after a send or receive was left. Usage: jumps WAY ROUNDS
 *
 * WAY: poll, select, epoll, peek   a wait for a silent peer is left, on the thread's own stack and on an alternate one in turn
 *      new                          sends and receives are left; each time a new connection carries a message */
#include "check.h"
#include <setjmp.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/time.h>

enum { SIZE = 64, MESSAGES = 12 };
static const char *way;
static sigjmp_buf out;

static bool is(const char *name) { return strcmp(way, name) == 0; }

static void handler(int number)
{
    (void)number;
    siglongjmp(out, 1);
}

static void arm(int after_us)
{
    struct itimerval time = {.it_value = {0, after_us}};
    CHECK(setitimer(ITIMER_REAL, &time, NULL) == 0);
}

static void handle(bool on_stack)
{
    static char stack[32768];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = handler, .sa_flags = on_stack ? SA_ONSTACK : 0};
    CHECK(sigaltstack(&alternate, NULL) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
}

/* Waits until there is something to receive. */
static void await(int fd, int set)
{
    struct epoll_event event;
    struct pollfd in = {.fd = fd, .events = POLLIN};
    fd_set readable;
    char byte;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    if (is("poll")) CHECK(poll(&in, 1, -1) == 1);
    if (is("select")) CHECK(select(fd + 1, &readable, NULL, NULL, NULL) == 1);
    if (is("epoll")) CHECK(epoll_wait(set, &event, 1, -1) == 1);
    if (is("peek")) CHECK(recv(fd, &byte, 1, MSG_PEEK) == 1);
}

static void exchange_by(int fd, int set, int messages)
{
    char data[SIZE], back[SIZE];
    for (int i = 0; i < messages; i++) {
        memset(data, i, SIZE);
        send_all(fd, data, SIZE);
        await(fd, set);
        receive_all(fd, back, SIZE);
        CHECK(memcmp(data, back, SIZE) == 0);
    }
}

static int leave_waits(int port, int rounds)
{
    int fd = connect_to("4", port), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    static volatile int left;
    volatile int round;
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    exchange_by(fd, set, 64);
    for (round = 0; round < rounds; round++) {
        handle(round % 2);
        if (sigsetjmp(out, 1) == 0) {
            arm(1 + round * 37 % 400);
            await(fd, set);
            CHECK(!"the peer is silent");
        }
        left++;
        exchange_by(fd, set, MESSAGES);
    }
    close(fd);
    return left;
}

static int leave_transfers(int port, int rounds)
{
    volatile int round;
    static volatile int good;
    for (round = 0; round < rounds; round++) {
        char data[SIZE] = {0};
        int fd = connect_to("4", port);
        handle(round % 2);
        if (sigsetjmp(out, 1) == 0) {
            arm(1000 + round % 53 * 20);
            for (;;) {
                send_all(fd, data, SIZE);
                receive_all(fd, data, SIZE);
            }
        }
        close(fd);
        fd = connect_to("4", port);
        exchange_by(fd, -1, 1);
        close(fd);
        good++;
    }
    return good;
}

static void *echo(void *of)
{
    int fd = (int)(intptr_t)of;
    char data[SIZE];
    for (ssize_t n; (n = recv(fd, data, SIZE, 0)) > 0;)
        for (ssize_t done = 0, sent; done < n; done += sent)
            if ((sent = send(fd, data + done, (size_t)(n - done), MSG_NOSIGNAL)) <= 0) break;
    close(fd);
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    way = argv[1];
    int port = 0, listener = listen_on("4", &port);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        for (;;) {
            pthread_t thread;
            int fd = accept(listener, NULL, NULL);
            CHECK(fd >= 0 && pthread_create(&thread, NULL, echo, (void *)(intptr_t)fd) == 0 && pthread_detach(thread) == 0);
        }
    }
    close(listener);
    printf("%d calls were left\n", is("new") ? leave_transfers(port, atoi(argv[2])) : leave_waits(port, atoi(argv[2])));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    return 0;
}
