/* pingpong.c: one message there, one back, blocking calls. Figures are one way: half a round trip. See peer.h. */
#include "peer.h"

struct call {
    int fd;
    size_t size;
    char *data;
};

static void round_trips(void *context, long count)
{
    struct call *call = context;
    while (count-- > 0) {
        send_all(call->fd, call->data, call->size);
        if (!receive_all(call->fd, call->data, call->size)) {
            fprintf(stderr, "pingpong: the server left\n");
            exit(1);
        }
    }
}

static void serve(int fd)
{
    uint64_t size;
    if (!receive_all(fd, &size, sizeof size)) return;
    char *data = calloc(1, size);
    while (receive_all(fd, data, size))
        send_all(fd, data, size);
    free(data);
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "serve")) {
        int fd = accept_one(listen_anywhere());
        serve(fd);
        close(fd);
    } else if (argc == 6 && !strcmp(argv[1], "call")) {
        uint64_t size = strtoull(argv[4], NULL, 0);
        struct call call = {connect_to(argv[2], argv[3]), size, calloc(1, size)};
        send_all(call.fd, &size, sizeof size);
        measure(round_trips, &call, 0, atof(argv[5]), 2);
        close(call.fd);
        free(call.data);
    } else {
        fprintf(stderr, "pingpong: usage: serve | call HOST PORT SIZE MS\n");
        return 2;
    }
    return 0;
}
