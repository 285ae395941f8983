/* Forks around a connection. Usage: forks HOW
 *   child-serves-young   accept, fork, the child serves from the first byte, the parent closes
 *   child-serves         as child-serves-young, after many messages
 *   parent-continues     a child starts and exits, the parent continues
 *   spawn-continues      as parent-continues, through posix_spawn and through vfork + exec
 *   both-in-turn         child and parent use the connection alternately */
#include "check.h"
#include <spawn.h>

extern char **environ;
static const char *how;
enum { ROUNDS = 200 };

static void accepted(int fd)
{
    int young = strcmp(how, "child-serves-young") == 0;
    if (!young) exchange_until_settled(fd, 0);
    if (young || strcmp(how, "child-serves") == 0) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (young) exchange_until_settled(fd, 0);
            exchange(fd, 0, ROUNDS);
            exit(0);
        }
        close(fd);
        wait_for(child);
        return;
    }
    if (strcmp(how, "parent-continues") == 0) {
        exchange(fd, 0, ROUNDS / 2);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(0);
        wait_for(child);
        exchange(fd, 0, ROUNDS / 2);
    } else if (strcmp(how, "spawn-continues") == 0) {
        char *arguments[] = {"true", NULL};
        pid_t child;
        exchange(fd, 0, ROUNDS / 2);
        CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0);
        wait_for(child);
        exchange(fd, 0, ROUNDS / 4);
        child = vfork();
        if (child == 0) {
            close(fd); /* in the child only */
            execvp("true", arguments);
            _exit(127);
        }
        wait_for(child);
        exchange(fd, 0, ROUNDS / 4);
    } else {
        int turn[2];
        CHECK(pipe(turn) == 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            exchange(fd, 0, ROUNDS / 2);
            CHECK(write(turn[1], "", 1) == 1);
            exit(0);
        }
        char byte;
        CHECK(read(turn[0], &byte, 1) == 1);
        exchange(fd, 0, ROUNDS / 2);
        wait_for(child);
    }
    close(fd);
}

static void connected(int fd)
{
    char byte;
    exchange_until_settled(fd, 1);
    if (strcmp(how, "parent-continues") == 0 || strcmp(how, "spawn-continues") == 0 || strcmp(how, "both-in-turn") == 0) {
        /* the other end begins a new count after each turn */
        int parts[4] = {ROUNDS / 2, ROUNDS / 2, 0, 0};
        if (how[0] == 's') parts[1] = parts[2] = ROUNDS / 4;
        for (int i = 0; i < 4; i++) exchange(fd, 1, parts[i]);
    } else {
        exchange(fd, 1, ROUNDS);
    }
    CHECK(recv(fd, &byte, 1, 0) == 0);
    printf("%s: served\n", how);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    how = argv[1];
    two_processes("4", accepted, connected);
}
