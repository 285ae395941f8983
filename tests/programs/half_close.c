/* shutdown() in both directions: everything sent before arrives, the other direction stays open. */
#include "check.h"

static void drain(int fd, const char *name)
{
    char data[10000];
    size_t got = 0;
    ssize_t n;
    while ((n = recv(fd, data, sizeof data, 0)) > 0) got += (size_t)n;
    CHECK(n == 0);
    CHECK(recv(fd, data, 1, 0) == 0); /* and again */
    printf("%s received %zu bytes, then end of file\n", name, got);
}

static void pour(int fd, size_t total)
{
    char *data = calloc(1, total);
    send_all(fd, data, total);
    free(data);
}

static void accepted(int fd)
{
    exchange_until_settled(fd, 0);
    drain(fd, "accepted");
    nap_ms(30);
    pour(fd, 300000);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    struct pollfd end = {.fd = fd, .events = POLLIN};
    CHECK(poll(&end, 1, 5000) == 1);
    close(fd);
}

static volatile sig_atomic_t pipes;
static void count_pipe(int number)
{
    (void)number;
    pipes++;
}

static void connected(int fd)
{
    exchange_until_settled(fd, 1);
    pour(fd, 200000);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    signal(SIGPIPE, count_pipe);
    CHECK(write(fd, "x", 1) == -1 && errno == EPIPE);
    CHECK(pipes == 1);
    drain(fd, "connected");
    close(fd);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 4096);
    two_processes("4", accepted, connected);
}
