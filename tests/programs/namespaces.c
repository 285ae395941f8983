/* A library in a namespace of its own (dlmopen) that uses sockets, in a program that uses sockets too.
 * namespaces LIBRARY: the library is namespace_library.c. Both talk to a forked peer, in turn. */
#include "check.h"

#include <dlfcn.h>

enum { ROUNDS = 300 };

static void serve(int fd)
{
    char data[4096];
    for (;;) {
        ssize_t n = recv(fd, data, sizeof data, 0);
        CHECK(n >= 0);
        if (n == 0) break;
        send_all(fd, data, (size_t)n);
    }
    close(fd);
}

static void *serve_thread(void *fd)
{
    serve((int)(intptr_t)fd);
    return NULL;
}

static uint64_t echo(int fd, int rounds)
{
    char out[64], in[64];
    uint64_t state = 3, hash = 0;
    for (int i = 0; i < rounds; i++) {
        fill(out, sizeof out, &state);
        send_all(fd, out, sizeof out);
        receive_all(fd, in, sizeof in);
        CHECK(memcmp(in, out, sizeof in) == 0);
        hash = hash_more(hash, in, sizeof in);
    }
    return hash;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    int port = 0, listener = listen_on("4", &port);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) {
            int fd = accept(listener, NULL, NULL);
            CHECK(fd >= 0);
            CHECK(pthread_create(&threads[i], NULL, serve_thread, (void *)(intptr_t)fd) == 0);
        }
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        exit(0);
    }
    int own = connect_to("4", port);
    uint64_t hash = echo(own, ROUNDS);
    void *library = dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    CHECK(library);
    int (*open_there)(int) = (int (*)(int))dlsym(library, "open_connection");
    uint64_t (*echo_there)(int, int) = (uint64_t(*)(int, int))dlsym(library, "echo_connection");
    int (*close_there)(int) = (int (*)(int))dlsym(library, "close_connection");
    CHECK(open_there && echo_there && close_there);
    int other = open_there(port);
    CHECK(other >= 0 && other != own);
    uint64_t there = echo_there(other, ROUNDS);
    for (int i = 0; i < 20; i++) { /* in turn: what one leaves behind must not disturb the other */
        hash = hash * 31 + echo(own, 7);
        there = there * 31 + echo_there(other, 7);
    }
    CHECK(close_there(other) == 0);
    hash = hash * 31 + echo(own, ROUNDS);
    close(own);
    wait_for(child);
    printf("here %016llx, there %016llx\n", (unsigned long long)hash, (unsigned long long)there);
}
