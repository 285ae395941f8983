/* A child that exits without using a connection leaves its bytes where they are: the kernel holds the same bytes for the receiver before and
 * after. */
#include "check.h"
#include <sys/syscall.h>

enum { ROUNDS = 2000 };

static ssize_t in_kernel(int fd)
{
    char data[64];
    ssize_t n = syscall(SYS_recvfrom, fd, data, sizeof data, MSG_PEEK | MSG_DONTWAIT, NULL, NULL);
    return n < 0 ? 0 : n;
}

static void server(int listener, int from, int to)
{
    int fd = accept(listener, NULL, NULL);
    char data[32], word;
    CHECK(fd >= 0);
    for (int i = 0; i < ROUNDS; i++) {
        receive_all(fd, data, sizeof data);
        send_all(fd, data, sizeof data);
    }
    CHECK(read(from, &word, 1) == 1);
    ssize_t before = in_kernel(fd);
    CHECK(write(to, &word, 1) == 1);
    CHECK(read(from, &word, 1) == 1);
    CHECK(in_kernel(fd) == before);
    receive_all(fd, data, sizeof data);
    exit(0);
}

int main(void)
{
    int port = 0, listener = listen_on("4", &port), there[2], back[2];
    char data[32] = "a few bytes that stay unread", word = 0;
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    pid_t peer = fork();
    CHECK(peer >= 0);
    if (peer == 0) server(listener, there[0], back[1]);
    int fd = connect_to("4", port);
    for (int i = 0; i < ROUNDS; i++) {
        send_all(fd, data, sizeof data);
        receive_all(fd, data, sizeof data);
    }
    send_all(fd, data, sizeof data);
    CHECK(write(there[1], &word, 1) == 1 && read(back[0], &word, 1) == 1);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(0);
    wait_for(child);
    CHECK(write(there[1], &word, 1) == 1);
    wait_for(peer);
    close(fd);
}
