/* check.h: shared by the test programs, which are ordinary socket programs: nothing here depends on Motet.
 *
 * A program prints its observations in words that do not depend on timing. The harness runs it without and with Motet and compares the
 * output. A failed CHECK prints its place and exits with 1. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                                \
    do {                                                                                                                \
        if (!(condition)) {                                                                                             \
            fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno));      \
            exit(1);                                                                                                    \
        }                                                                                                               \
    } while (0)

/* FNV-1a, incremental. */
static inline uint64_t hash_more(uint64_t hash, const void *data, size_t length)
{
    const unsigned char *byte = data;
    if (hash == 0) hash = 0xcbf29ce484222325ull;
    while (length--) hash = (hash ^ *byte++) * 0x100000001b3ull;
    return hash;
}

static inline uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

static inline void fill(void *data, size_t length, uint64_t *state)
{
    unsigned char *byte = data;
    for (size_t i = 0; i < length; i++) byte[i] = (unsigned char)(i % 8 ? i + (*state >> 40) : next_random(state));
}

/* The loopback address of a family: 4, 6 or "mapped" (an IPv6 socket that uses IPv4). */
static inline socklen_t loopback(const char *family, int port, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof *out);
    if (strcmp(family, "4") == 0) {
        struct sockaddr_in *a = (struct sockaddr_in *)out;
        a->sin_family = AF_INET;
        a->sin_port = htons((uint16_t)port);
        a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return sizeof *a;
    }
    struct sockaddr_in6 *a = (struct sockaddr_in6 *)out;
    a->sin6_family = AF_INET6;
    a->sin6_port = htons((uint16_t)port);
    inet_pton(AF_INET6, strcmp(family, "6") == 0 ? "::1" : "::ffff:127.0.0.1", &a->sin6_addr);
    return sizeof *a;
}

static inline int listen_on(const char *family, int *port)
{
    struct sockaddr_storage address;
    socklen_t length = loopback(family, *port, &address);
    int off = 0, on = 1, fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    if (address.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    CHECK(bind(fd, (struct sockaddr *)&address, length) == 0);
    CHECK(listen(fd, 256) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
    *port = ntohs(address.ss_family == AF_INET ? ((struct sockaddr_in *)&address)->sin_port : ((struct sockaddr_in6 *)&address)->sin6_port);
    return fd;
}

static inline int connect_to(const char *family, int port)
{
    struct sockaddr_storage address;
    socklen_t length = loopback(family, port, &address);
    int fd = socket(address.ss_family, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (struct sockaddr *)&address, length) == 0);
    return fd;
}

static inline void send_all(int fd, const void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = send(fd, (const char *)data + done, length - done, 0);
        CHECK(n > 0);
        done += (size_t)n;
    }
}

static inline void receive_all(int fd, void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = recv(fd, (char *)data + done, length - done, 0);
        CHECK(n > 0);
        done += (size_t)n;
    }
}

/* Enough small exchanges for any path to settle. */
static inline void exchange(int fd, int first, int rounds)
{
    char mine[64], theirs[64];
    for (int i = 0; i < rounds; i++) {
        memset(mine, i, sizeof mine);
        if (first) send_all(fd, mine, sizeof mine);
        receive_all(fd, theirs, sizeof theirs);
        CHECK(memcmp(mine, theirs, sizeof mine) == 0);
        if (!first) send_all(fd, mine, sizeof mine);
    }
}

static inline void exchange_until_settled(int fd, int first) { exchange(fd, first, 64); }

static inline void wait_for(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Two processes with one connection: the child connects, this process accepts. Returns when both are done. */
static inline void two_processes(const char *family, void (*accepted)(int fd), void (*connected)(int fd))
{
    int port = 0, listener = listen_on(family, &port);
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(listener);
        int fd = connect_to(family, port);
        connected(fd);
        fflush(stdout);
        exit(0);
    }
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    close(listener);
    accepted(fd);
    wait_for(child);
}

static inline void nap_ms(int ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000l};
    while (nanosleep(&time, &time) != 0) {}
}

#endif
