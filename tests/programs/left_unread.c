/* The peer is killed before it has read everything that was sent to it: the next receive returns a reset, as over TCP. The peer waits for
 * its end in a call that does not use the connection, so what was sent stays where it is. */
#include "check.h"

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    int port = 0, listener = listen_on("4", &port), settled[2];
    CHECK(pipe(settled) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int fd = connect_to("4", port);
        exchange_until_settled(fd, 0);
        CHECK(write(settled[1], "", 1) == 1);
        for (;;) nap_ms(1000);
    }
    int fd = accept(listener, NULL, NULL);
    exchange_until_settled(fd, 1);
    char bytes[1000] = "unread";
    CHECK(read(settled[0], bytes, 1) == 1);
    send_all(fd, bytes, sizeof bytes);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, NULL, 0) == child);
    ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    printf("%s\n", n < 0 ? strerror(errno) : "something else");
}
