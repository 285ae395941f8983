/* The peer sends and is killed before this process reads: what it sent arrives, then the connection ends; a send to it soon fails. Usage:
 * killed_peer BYTES */
#include "check.h"

static size_t total;

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    total = strtoull(argv[1], NULL, 10);
    signal(SIGPIPE, SIG_IGN);
    int port = 0, listener = listen_on("4", &port), ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    char *data = malloc(total);
    if (child == 0) {
        int fd = connect_to("4", port);
        exchange_until_settled(fd, 1);
        memset(data, 'x', total);
        send_all(fd, data, total);
        CHECK(write(ready[1], "", 1) == 1);
        kill(getpid(), SIGKILL);
    }
    int fd = accept(listener, NULL, NULL);
    exchange_until_settled(fd, 0);
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK(waitpid(child, NULL, 0) == child);
    nap_ms(20);
    size_t got = 0;
    ssize_t n;
    while ((n = recv(fd, data, total, 0)) > 0) got += (size_t)n;
    printf("received %zu of %zu, then %s\n", got, total, n == 0 ? "end of file" : strerror(errno));
    int sends = 0;
    while (sends < 1000 && send(fd, "x", 1, MSG_NOSIGNAL) == 1) {
        sends++;
        nap_ms(1);
    }
    printf("a send failed: %s\n", sends < 200 ? "soon" : "late");
}
