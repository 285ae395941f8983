/* Connections at descriptor numbers that the adapter does not track: one is created before and one after this process has opened descriptors
 * up to number 65536. */
#include "check.h"
#include <sys/resource.h>

enum { HIGH = 65536 };

static void converse(int listener, int port, int server)
{
    int fd = server ? accept(listener, NULL, NULL) : connect_to("4", port);
    CHECK(fd >= 0);
    exchange_until_settled(fd, !server);
    if (server) {
        struct rlimit limit = {HIGH + 1024, HIGH + 1024};
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        for (int next = fd; next < HIGH;) CHECK((next = dup(STDIN_FILENO)) >= 0);
    }
    int high = server ? accept(listener, NULL, NULL) : connect_to("4", port);
    CHECK(high >= 0);
    exchange_until_settled(high, !server);
    close(high);
    close(fd);
}

int main(void)
{
    int port = 0, listener = listen_on("4", &port);
    pid_t child = fork();
    CHECK(child >= 0);
    converse(listener, port, child != 0);
    if (child == 0) exit(0);
    wait_for(child);
    printf("two connections\n");
}
