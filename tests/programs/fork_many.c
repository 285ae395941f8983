/* A server forks children one after another and then all at once; some are killed. The connection continues between and after them. Usage:
 * fork_many COUNT */
#include "check.h"
#include <signal.h>

static int count;

static void accepted(int fd)
{
    exchange_until_settled(fd, 0);
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (i % 3 == 0) close(fd);
            if (i % 3 == 1) kill(getpid(), SIGKILL);
            _exit(0);
        }
        CHECK(waitpid(child, NULL, 0) == child);
        exchange(fd, 0, 10);
    }
    pid_t children[100];
    for (int i = 0; i < 100; i++) {
        CHECK((children[i] = fork()) >= 0);
        if (children[i] == 0) pause();
    }
    exchange(fd, 0, 100);
    for (int i = 0; i < 100; i++) kill(children[i], SIGKILL);
    for (int i = 0; i < 100; i++) CHECK(waitpid(children[i], NULL, 0) == children[i]);
    exchange(fd, 0, 100);
    close(fd);
}

static void connected(int fd)
{
    char byte;
    exchange_until_settled(fd, 1);
    for (int i = 0; i < count; i++) exchange(fd, 1, 10);
    exchange(fd, 1, 100);
    exchange(fd, 1, 100);
    CHECK(recv(fd, &byte, 1, 0) == 0);
    printf("served across %d forks\n", count + 100);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && (count = atoi(argv[1])) > 0);
    two_processes("4", accepted, connected);
}
