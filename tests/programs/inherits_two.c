/* A new program image inherits two connections, each under two numbers: a candidate and an upgraded one. The image duplicates a third, of
 * its own. What is sent on one connection never arrives on another. */
#include "check.h"

enum { ROUNDS = 200, INHERITED = 2 };

static void talk(int fd, unsigned char mark, int rounds)
{
    unsigned char out[64], in[64];
    for (int i = 0; i < rounds; i++) {
        memset(out, mark, sizeof out);
        out[1] = (unsigned char)i;
        send_all(fd, (char *)out, sizeof out);
        receive_all(fd, (char *)in, sizeof in);
        CHECK(memcmp(in, out, sizeof in) == 0);
    }
}

static void serve(int listener)
{
    for (int n = 0; n < INHERITED + 1; n++) {
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            char data[64];
            ssize_t got;
            while ((got = recv(fd, data, sizeof data, 0)) > 0) send_all(fd, data, (size_t)got);
            exit(0);
        }
        close(fd);
    }
    exit(0);
}

int main(int argc, char **argv)
{
    if (argc == 1) {
        int port = 0, listener = listen_on("4", &port);
        pid_t server = fork();
        CHECK(server >= 0);
        if (server == 0) serve(listener);
        close(listener);
        int old = connect_to("4", port), young = connect_to("4", port);
        talk(old, 'o', ROUNDS);
        talk(young, 'y', 1);
        char text[5][12];
        int numbers[5] = {old, young, dup(old), dup(young), port};
        for (int i = 0; i < 5; i++) snprintf(text[i], sizeof text[i], "%d", numbers[i]);
        execl("/proc/self/exe", argv[0], text[0], text[1], text[2], text[3], text[4], (char *)NULL);
        return 127;
    }
    CHECK(argc == 6);
    int own = connect_to("4", atoi(argv[5])), copy = dup(own);
    for (int i = 0; i < ROUNDS; i++) {
        talk(own, 'n', 1);
        talk(copy, 'c', 1);
        for (int n = 1; n < 5; n++) talk(atoi(argv[n]), (unsigned char)('0' + n), 1);
    }
    printf("three connections, six numbers\n");
}
