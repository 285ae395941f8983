/* Processes that share a connection after a fork. Usage: fork_group HOW
 *   young-both           forked after the first message; both use it in turn
 *   young-child-ends     the child lives for a while and does nothing; later the parent is alone
 *   young-child-closes   the child closes its copy and lives on
 *   young-child-killed   the child is killed
 *   parent-closes        over bytes that it has not read, and the child reads them
 *   child-closes         over bytes that it has not read, and the parent reads them
 *   child-renumbers      the child moves its copy to another number and closes the first; both use it in turn */
#include "check.h"
#include <signal.h>
#include <stdbool.h>

enum { MESSAGE = 64, SETTLED = 200, TURNS = 8, TURN = 50, BURST = 30 };
static int told[2], asked[2], sent[2];

static void tell(int *pipe) { CHECK(write(pipe[1], "", 1) == 1); }

static void hear(int *pipe)
{
    char byte;
    CHECK(read(pipe[0], &byte, 1) == 1);
}

static void echo(int fd, int messages)
{
    char data[MESSAGE];
    while (messages-- > 0) {
        receive_all(fd, data, sizeof data);
        send_all(fd, data, sizeof data);
    }
}

static void in_turn(int fd, bool child)
{
    for (int turn = 0; turn < TURNS; turn++) {
        if (turn % 2 == child) {
            echo(fd, TURN);
            tell(child ? told : asked);
        } else {
            hear(child ? asked : told);
        }
    }
}

/* The burst is where the peer has put it: the process that closes has not received any of it. */
static void take_burst(int fd)
{
    char data[BURST], expected[BURST];
    memset(expected, 'b', sizeof expected);
    receive_all(fd, data, sizeof data);
    CHECK(memcmp(data, expected, sizeof data) == 0);
    echo(fd, SETTLED);
}

static void child_part(const char *how, int fd)
{
    if (strcmp(how, "young-both") == 0) in_turn(fd, true);
    if (strcmp(how, "young-child-ends") == 0) hear(asked);
    if (strcmp(how, "young-child-closes") == 0) {
        close(fd);
        tell(told);
        hear(asked);
    }
    if (strcmp(how, "young-child-killed") == 0) pause();
    if (strcmp(how, "parent-closes") == 0) {
        hear(asked);
        take_burst(fd);
    }
    if (strcmp(how, "child-closes") == 0) {
        hear(sent);
        close(fd);
    }
    if (strcmp(how, "child-renumbers") == 0) {
        int other = dup(fd);
        CHECK(other >= 0 && close(fd) == 0);
        in_turn(other, true);
    }
    exit(0);
}

static void server(const char *how, int listener)
{
    int fd = accept(listener, NULL, NULL), status;
    CHECK(fd >= 0);
    echo(fd, strncmp(how, "young", 5) == 0 ? 1 : SETTLED);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) child_part(how, fd);
    if (strcmp(how, "young-both") == 0 || strcmp(how, "child-renumbers") == 0) in_turn(fd, false);
    if (strcmp(how, "young-child-ends") == 0) {
        echo(fd, 100);
        tell(asked);
    }
    if (strcmp(how, "young-child-closes") == 0) {
        hear(told);
        echo(fd, SETTLED);
        tell(asked);
    }
    if (strcmp(how, "young-child-killed") == 0) kill(child, SIGKILL);
    if (strcmp(how, "parent-closes") == 0) {
        hear(sent);
        close(fd);
        tell(asked);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == (strcmp(how, "young-child-killed") == 0 ? SIGKILL : 0));
    if (strcmp(how, "young-child-ends") == 0 || strcmp(how, "young-child-killed") == 0) echo(fd, SETTLED);
    if (strcmp(how, "child-closes") == 0) take_burst(fd);
    exit(0);
}

static void talk(int fd, int *number, int messages)
{
    char out[MESSAGE], in[MESSAGE];
    for (; messages > 0; messages--, ++*number) {
        memset(out, *number, sizeof out);
        memcpy(out, number, sizeof *number);
        send_all(fd, out, sizeof out);
        receive_all(fd, in, sizeof in);
        CHECK(memcmp(in, out, sizeof out) == 0);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    const char *how = argv[1];
    int port = 0, listener = listen_on("4", &port), number = 0;
    CHECK(pipe(told) == 0 && pipe(asked) == 0 && pipe(sent) == 0);
    pid_t other = fork();
    CHECK(other >= 0);
    if (other == 0) server(how, listener);
    close(listener);
    int fd = connect_to("4", port);
    talk(fd, &number, strncmp(how, "young", 5) == 0 ? 1 : SETTLED);
    if (strcmp(how, "young-both") == 0 || strcmp(how, "child-renumbers") == 0) talk(fd, &number, TURNS * TURN);
    if (strcmp(how, "young-child-ends") == 0) talk(fd, &number, 100 + SETTLED);
    if (strcmp(how, "young-child-closes") == 0 || strcmp(how, "young-child-killed") == 0) talk(fd, &number, SETTLED);
    if (strstr(how, "-closes") && strncmp(how, "young", 5) != 0) {
        char burst[BURST];
        memset(burst, 'b', sizeof burst);
        send_all(fd, burst, sizeof burst);
        tell(sent);
        talk(fd, &number, SETTLED);
    }
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
    wait_for(other);
    printf("%s: %d messages\n", how, number);
}
