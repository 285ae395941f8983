/* What connections leave behind in a process that lives on. Usage: links HOW COUNT
 *   served   COUNT programs connect to this process, one after another, talk and end
 *   called   this process connects to COUNT programs, one after another
 *   again    COUNT connections, one after another, between this process and one other
 *   killed   COUNT connections to a process that is killed while they are open, and not waited for
 *   forked   COUNT children start over a connection to one peer, have connections of their own with it, and close all
 * In each case the process must hold no more at the end than after the first few connections. */
#include "held.h"

enum { ROUNDS = 48, FEW = 10 };

/* Starts another program, not a child that shares what this process holds. */
static pid_t start(const char *role, const char *argument)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "links", role, argument, NULL);
        _exit(127);
    }
    return child;
}

static void as_a_client(int port)
{
    int fd = connect_to("4", port);
    exchange(fd, 1, ROUNDS);
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
}

static void as_a_server(int out)
{
    int port = 0, listener = listen_on("4", &port);
    CHECK(write(out, &port, sizeof port) == sizeof port);
    int fd = accept(listener, NULL, NULL);
    exchange(fd, 0, ROUNDS);
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
}

static void programs(bool served, int count)
{
    int port = 0, listener = served ? listen_on("4", &port) : -1, out[2];
    char argument[16];
    struct held before = {0};
    CHECK(pipe(out) == 0);
    snprintf(argument, sizeof argument, "%d", served ? port : out[1]);
    for (int i = 0; i < count; i++) {
        pid_t child = start(served ? "client" : "server", argument);
        int fd;
        if (served) {
            fd = accept(listener, NULL, NULL);
        } else {
            CHECK(read(out[0], &port, sizeof port) == sizeof port);
            fd = connect_to("4", port);
        }
        exchange(fd, !served, ROUNDS);
        close(fd);
        wait_for(child);
        if (i == FEW) before = held();
    }
    no_more_than(before, "at the end");
}

static void again(int count)
{
    int port = 0, listener = listen_on("4", &port);
    pid_t child = fork();
    CHECK(child >= 0);
    struct held before = {0};
    for (int i = 0; i < count; i++) {
        int fd = child == 0 ? connect_to("4", port) : accept(listener, NULL, NULL);
        exchange(fd, child == 0, ROUNDS);
        close(fd);
        if (i == FEW) before = held();
        if (i > FEW && i % 100 == 0) no_more_than(before, "on the way");
    }
    no_more_than(before, "at the end");
    if (child == 0) exit(0);
    wait_for(child);
}

static void killed(int count)
{
    int port = 0, listener = listen_on("4", &port), fds[64];
    CHECK(count <= 64);
    pid_t other = fork();
    CHECK(other >= 0);
    if (other == 0) {
        for (int i = 0; i < count; i++) fds[i] = connect_to("4", port);
        for (int i = 0; i < count; i++) exchange_until_settled(fds[i], 1);
        for (;;) pause();
    }
    for (int i = 0; i < count; i++) fds[i] = accept(listener, NULL, NULL);
    /* What the first connection allocates serves later ones, so it is not counted. */
    exchange_until_settled(fds[0], 0);
    struct held before = held();
    for (int i = 1; i < count; i++) exchange_until_settled(fds[i], 0);
    kill(other, SIGKILL);
    siginfo_t end;
    CHECK(waitid(P_PID, (id_t)other, &end, WEXITED | WNOWAIT) == 0);
    for (int i = 0; i < count; i++) close(fds[i]);
    struct held now = held();
    CHECK(now.descriptors < before.descriptors && now.mappings <= before.mappings && now.kilobytes <= before.kilobytes);
    CHECK(waitpid(other, NULL, 0) == other);
}

static void forked(int count)
{
    int port = 0, listener = listen_on("4", &port);
    pid_t other = fork();
    CHECK(other >= 0);
    if (other == 0) {
        int fd = connect_to("4", port);
        exchange(fd, 1, ROUNDS);
        for (int i = 0; i < count; i++) {
            int own = connect_to("4", port);
            exchange(own, 1, ROUNDS);
            close(own);
            exchange(fd, 1, ROUNDS);
        }
        char byte;
        CHECK(recv(fd, &byte, 1, 0) == 0);
        exit(0);
    }
    int fd = accept(listener, NULL, NULL);
    exchange(fd, 0, ROUNDS);
    struct held before = held();
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            int own = accept(listener, NULL, NULL);
            exchange(own, 0, ROUNDS);
            close(own);
            close(fd);
            exit(0);
        }
        wait_for(child);
        exchange(fd, 0, ROUNDS);
    }
    close(fd);
    no_more_than(before, "at the end");
    wait_for(other);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    const char *how = argv[1];
    int count = atoi(argv[2]);
    if (strcmp(how, "client") == 0) {
        as_a_client(count);
        return 0;
    }
    if (strcmp(how, "server") == 0) {
        as_a_server(count);
        return 0;
    }
    if (strcmp(how, "served") == 0 || strcmp(how, "called") == 0) programs(how[0] == 's', count);
    if (strcmp(how, "again") == 0) again(count);
    if (strcmp(how, "killed") == 0) killed(count);
    if (strcmp(how, "forked") == 0) forked(count);
    printf("%s: held no more at the end\n", how);
}
