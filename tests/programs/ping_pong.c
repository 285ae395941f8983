/* Blocking echo in two processes of its own, or in two given ones. Prints the hash of what came back.
 * Usage: ping_pong FAMILY COUNT SIZE, or ping_pong serve FAMILY (prints the port) and ping_pong call FAMILY PORT COUNT SIZE */
#include "check.h"

static int count = 1000, size = 64;

static void serve(int fd)
{
    char *data = malloc(1 << 20);
    for (;;) {
        ssize_t n = read(fd, data, 1 << 20);
        CHECK(n >= 0);
        if (n == 0) break;
        send_all(fd, data, (size_t)n);
    }
    close(fd);
    free(data);
}

static void call(int fd)
{
    char *out = malloc((size_t)size), *in = malloc((size_t)size);
    uint64_t state = 1, hash = 0;
    for (int i = 0; i < count; i++) {
        fill(out, (size_t)size, &state);
        CHECK(write(fd, out, (size_t)size) == size);
        receive_all(fd, in, (size_t)size);
        CHECK(memcmp(in, out, (size_t)size) == 0);
        hash = hash_more(hash, in, (size_t)size);
    }
    printf("%d echoes of %d bytes, hash %016llx\n", count, size, (unsigned long long)hash);
    shutdown(fd, SHUT_WR);
    CHECK(read(fd, in, 1) == 0);
    close(fd);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "serve") == 0) {
        int port = 0, listener = listen_on(argv[2], &port);
        printf("%d\n", port);
        fflush(stdout);
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        serve(fd);
        return 0;
    }
    if (argc == 6) {
        count = atoi(argv[4]);
        size = atoi(argv[5]);
        call(connect_to(argv[2], atoi(argv[3])));
        return 0;
    }
    CHECK(argc == 4);
    count = atoi(argv[2]);
    size = atoi(argv[3]);
    two_processes(argv[1], serve, call);
}
