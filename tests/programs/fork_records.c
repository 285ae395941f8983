/* Many connections come and go, then the process forks, and parent and child create new ones at the same time. What the engine kept of the
 * old connections must serve only one of the two. */
#include "check.h"

enum { BEFORE = 100, AFTER = 6, ROUNDS = 400 };

static void *serve(void *fd)
{
    char data[4096];
    ssize_t n;
    while ((n = recv((int)(intptr_t)fd, data, sizeof data, 0)) > 0) send_all((int)(intptr_t)fd, data, (size_t)n);
    CHECK(n == 0);
    close((int)(intptr_t)fd);
    return NULL;
}

static void server(int listener)
{
    pthread_t threads[BEFORE + 2 * AFTER];
    int count = BEFORE + 2 * AFTER;
    for (int i = 0; i < count; i++) {
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        CHECK(pthread_create(&threads[i], NULL, serve, (void *)(intptr_t)fd) == 0);
    }
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    exit(0);
}

static void echo(int fd, uint64_t seed, int rounds)
{
    char out[64], in[64];
    for (int i = 0; i < rounds; i++) {
        fill(out, sizeof out, &seed);
        send_all(fd, out, sizeof out);
        receive_all(fd, in, sizeof in);
        CHECK(memcmp(in, out, sizeof in) == 0);
    }
}

int main(void)
{
    int port = 0, listener = listen_on("4", &port), fds[AFTER];
    pid_t peer = fork();
    CHECK(peer >= 0);
    if (peer == 0) server(listener);
    for (int i = 0; i < BEFORE; i++) {
        int fd = connect_to("4", port);
        echo(fd, (uint64_t)i, 12);
        close(fd);
    }
    pid_t child = fork();
    CHECK(child >= 0);
    for (int i = 0; i < AFTER; i++) fds[i] = connect_to("4", port);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < AFTER; i++) echo(fds[i], (uint64_t)(round + i + (child == 0 ? 1000 : 0)), 5);
    for (int i = 0; i < AFTER; i++) close(fds[i]);
    if (child == 0) exit(0);
    wait_for(child);
    wait_for(peer);
    printf("%d and %d connections\n", BEFORE, 2 * AFTER);
}
