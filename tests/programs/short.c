/* Short connections one after another, between two processes: short COUNT MESSAGES */
#include "check.h"

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    int count = atoi(argv[1]), messages = atoi(argv[2]), port = 0, listener = listen_on("4", &port);
    pid_t child = fork();
    CHECK(child >= 0);
    for (int i = 0; i < count; i++) {
        int fd = child == 0 ? connect_to("4", port) : accept(listener, NULL, NULL);
        exchange(fd, child == 0, messages);
        if (child != 0) { /* the end of the connection is one more receive, as in most servers */
            char byte;
            CHECK(recv(fd, &byte, 1, 0) == 0);
        }
        close(fd);
    }
    if (child == 0) exit(0);
    wait_for(child);
    printf("%d connections of %d messages\n", count, messages);
}
