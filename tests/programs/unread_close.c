/* A socket is closed over bytes that were not read. Usage: unread_close HOW
 *   close   by close()
 *   part    by close(), after some of the bytes were read
 *   copies  by close() of each of two descriptors
 *   onto    by dup2() onto it
 *   exit    by the end of the process
 *   forked  by close() in one of two processes: the other one continues */
#include "check.h"

static const char *how;
static int is(const char *name) { return strcmp(how, name) == 0; }
enum { CONNECTIONS = 10, UNREAD = 1000 };

static void closes(int fd)
{
    char data[UNREAD];
    exchange_until_settled(fd, 0);
    struct pollfd in = {.fd = fd, .events = POLLIN};
    CHECK(poll(&in, 1, 5000) == 1 && in.revents == POLLIN);
    if (is("part")) CHECK(recv(fd, data, 10, 0) == 10);
    if (is("copies")) {
        int copy = dup(fd);
        CHECK(close(fd) == 0);
        fd = copy;
    }
    if (is("exit")) exit(0);
    if (is("onto")) {
        CHECK(dup2(0, fd) == fd);
        return;
    }
    if (is("forked")) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            nap_ms(30);
            CHECK(send(fd, "x", 1, 0) == 1);
            nap_ms(30);
            _exit(0);
        }
        CHECK(close(fd) == 0);
        wait_for(child);
        return;
    }
    CHECK(close(fd) == 0);
}

static void sends(int fd)
{
    char data[UNREAD] = {0};
    exchange_until_settled(fd, 1);
    send_all(fd, data, sizeof data);
    ssize_t n = recv(fd, data, 1, 0);
    printf("%s: %s\n", how, n > 0 ? "the other process goes on" : n == 0 ? "end of file" : strerror(errno));
    close(fd);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    how = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 4096);
    for (int i = 0; i < CONNECTIONS; i++) two_processes("4", sends, closes);
}
