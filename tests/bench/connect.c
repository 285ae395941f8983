/* connect.c: short connections, one after another: connect, some messages there and back, close. Figures are of one whole
 * connection. SIZE is the number of messages, of 64 bytes each. See peer.h; the server serves every caller, one by one, until it
 * is killed. */
#include "peer.h"

enum { MESSAGE = 64 };

struct call {
    struct sockaddr_in to;
    long messages;
};

static void connections(void *context, long count)
{
    struct call *call = context;
    char data[MESSAGE] = {0};
    while (count-- > 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (void *)&call->to, sizeof call->to)) fail("connect");
        for (long i = 0; i < call->messages; i++) {
            send_all(fd, data, sizeof data);
            if (!receive_all(fd, data, sizeof data)) {
                fprintf(stderr, "connect: the server closed the connection\n");
                exit(1);
            }
        }
        close(fd);
    }
}

static void serve(int listener)
{
    char data[MESSAGE];
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) fail("accept");
        while (receive_all(fd, data, sizeof data))
            send_all(fd, data, sizeof data);
        close(fd);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "serve")) {
        serve(listen_anywhere());
    } else if (argc == 6 && !strcmp(argv[1], "call")) {
        struct call call = {.to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))}, .messages = atol(argv[4])};
        if (inet_pton(AF_INET, argv[2], &call.to.sin_addr) != 1) fail(argv[2]);
        measure(connections, &call, 0, atof(argv[5]), 1);
    } else {
        fprintf(stderr, "connect: usage: serve | call HOST PORT MESSAGES MS\n");
        return 2;
    }
    return 0;
}
