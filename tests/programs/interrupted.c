/* Signals while a thread waits: EINTR without SA_RESTART, restart with it, ppoll's and epoll_pwait's masks. */
#include "check.h"
#include <sys/time.h>

static volatile sig_atomic_t hits;
static int ready[2];

static void hit(int number)
{
    (void)number;
    hits++;
}

static void catch(int flags)
{
    struct sigaction action = {.sa_handler = hit, .sa_flags = flags};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
}

static void alarm_in_ms(int ms)
{
    struct itimerval time = {.it_value = {0, ms * 1000}};
    CHECK(setitimer(ITIMER_REAL, &time, NULL) == 0);
}

static void accepted(int fd)
{
    char data[64];
    exchange_until_settled(fd, 0);
    for (int round = 0; round < 5; round++) {
        catch(0);
        hits = 0;
        alarm_in_ms(20);
        CHECK(recv(fd, data, sizeof data, 0) == -1 && errno == EINTR && hits == 1);
        alarm_in_ms(20);
        struct pollfd in = {.fd = fd, .events = POLLIN};
        CHECK(poll(&in, 1, -1) == -1 && errno == EINTR && hits == 2);
        int epfd = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN};
        CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
        alarm_in_ms(20);
        CHECK(epoll_wait(epfd, &event, 1, -1) == -1 && errno == EINTR && hits == 3);
        sigset_t blocked, open;
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGALRM);
        CHECK(sigprocmask(SIG_BLOCK, &blocked, &open) == 0);
        raise(SIGALRM);
        CHECK(hits == 3);
        CHECK(ppoll(&in, 1, NULL, &open) == -1 && errno == EINTR && hits == 4);
        raise(SIGALRM);
        CHECK(epoll_pwait(epfd, &event, 1, -1, &open) == -1 && errno == EINTR && hits == 5);
        raise(SIGALRM);
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        CHECK(pselect(fd + 1, &set, NULL, NULL, NULL, &open) == -1 && errno == EINTR && hits == 6);
        CHECK(sigprocmask(SIG_SETMASK, &open, NULL) == 0);
        close(epfd);
        catch(SA_RESTART);
        alarm_in_ms(20);
        CHECK(write(ready[1], "", 1) == 1);
        CHECK(recv(fd, data, sizeof data, 0) == 64); /* the peer sends after the alarm */
        CHECK(hits == 7);
        exchange(fd, 0, 40);
    }
    printf("interrupted as the kernel would\n");
    close(fd);
}

static void connected(int fd)
{
    char data[64] = {0};
    exchange_until_settled(fd, 1);
    for (int round = 0; round < 5; round++) {
        CHECK(read(ready[0], data, 1) == 1);
        nap_ms(60);
        send_all(fd, data, sizeof data);
        exchange(fd, 1, 40);
    }
}

int main(void)
{
    CHECK(pipe(ready) == 0);
    two_processes("4", accepted, connected);
}
