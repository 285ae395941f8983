/* A server with 400 connections under a limit on its address space. It then allocates most of the address space that is left.
 * Usage: address_space LIMIT-MB OWN-MB */
#include "check.h"
#include <sys/resource.h>

#define CONNECTIONS 400
#define ROUNDS 40

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    rlim_t most = (rlim_t)atol(argv[1]) << 20;
    size_t own = (size_t)atol(argv[2]) << 20;
    static int fds[CONNECTIONS];
    char bytes[64] = {0};
    struct rlimit space = {most, most}, files;
    CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0 && setrlimit(RLIMIT_AS, &space) == 0);
    int port = 0, listener = listen_on("4", &port);
    pid_t child = fork();
    CHECK(child >= 0);
    for (int i = 0; i < CONNECTIONS; i++) CHECK((fds[i] = child ? accept(listener, NULL, NULL) : connect_to("4", port)) >= 0);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < CONNECTIONS; i++) {
            if (child == 0) send_all(fds[i], bytes, sizeof bytes);
            receive_all(fds[i], bytes, sizeof bytes);
            if (child != 0) send_all(fds[i], bytes, sizeof bytes);
        }
    char *mine = malloc(own);
    CHECK(mine != NULL);
    memset(mine, 1, 1 << 20);
    memset(mine + own - (1 << 20), 1, 1 << 20);
    if (child == 0) {
        receive_all(fds[0], bytes, 1);
        exit(0);
    }
    send_all(fds[0], bytes, 1);
    wait_for(child);
    printf("%d connections, and %zu MB of its own\n", CONNECTIONS, own >> 20);
}
