/* Waiting calls that end without data: by a handler without SA_RESTART, by SO_RCVTIMEO, by poll's timeout; and calls that continue: after a
 * handler with SA_RESTART, and when data arrives late. */
#include "check.h"
#include <sys/time.h>

enum { ROUNDS = 3 };

static volatile sig_atomic_t hits;
static int ready[2];

static void hit(int number)
{
    (void)number;
    hits++;
}

/* Installs a handler that runs every `ms` from then on, or not at all. */
static void handle(int flags, int ms)
{
    struct sigaction action = {.sa_handler = hit, .sa_flags = flags};
    struct itimerval time = {{0, ms * 1000}, {0, ms * 1000}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    hits = 0;
    CHECK(setitimer(ITIMER_REAL, &time, NULL) == 0);
}

static void limit(int fd, int ms)
{
    struct timeval time = {0, ms * 1000};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
}

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void accepted(int fd)
{
    char data[64];
    exchange_until_settled(fd, 0);
    for (int round = 0; round < ROUNDS; round++) {
        handle(0, 20);
        CHECK(recv(fd, data, sizeof data, 0) == -1 && errno == EINTR && hits >= 1);
        handle(SA_RESTART, 20);
        CHECK(write(ready[1], "", 1) == 1);
        CHECK(recv(fd, data, sizeof data, MSG_WAITALL) == sizeof data && hits >= 1); /* sent after some of the signals */
        handle(SA_RESTART, 0);
        limit(fd, 50);
        long before = now_ms();
        CHECK(recv(fd, data, sizeof data, 0) == -1 && errno == EAGAIN && now_ms() - before >= 45);
        limit(fd, 0);
        struct pollfd in = {.fd = fd, .events = POLLIN};
        before = now_ms();
        CHECK(poll(&in, 1, 50) == 0 && now_ms() - before >= 45);
        CHECK(write(ready[1], "", 1) == 1);
        CHECK(poll(&in, 1, -1) == 1 && in.revents == POLLIN && recv(fd, data, sizeof data, MSG_WAITALL) == sizeof data);
        exchange(fd, 0, 40);
    }
    CHECK(recv(fd, data, sizeof data, 0) == 0);
    printf("every wait ended as it should\n");
    close(fd);
}

static void connected(int fd)
{
    char data[64] = {0};
    exchange_until_settled(fd, 1);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(read(ready[0], data, 1) == 1);
        nap_ms(100);
        send_all(fd, data, sizeof data);
        CHECK(read(ready[0], data, 1) == 1);
        nap_ms(round == 0 ? 600 : 30); /* longer than the longest wait, and within it */
        send_all(fd, data, sizeof data);
        exchange(fd, 1, 40);
    }
    close(fd);
}

int main(void)
{
    CHECK(pipe(ready) == 0);
    two_processes("4", accepted, connected);
    return 0;
}
