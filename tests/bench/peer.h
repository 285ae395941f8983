/* peer.h: common code of the measuring programs: a connection, whole reads and writes, and timing in blocks.
 *
 * It uses POSIX sockets only: the same program runs without Motet and with it.
 *
 *   PROGRAM serve                            listens, prints "port N", serves one caller, ends with it
 *   PROGRAM call HOST PORT SIZE MS           measures for MS milliseconds, prints "MEDIAN MEAN COUNT": ns, ns, operations
 *
 * A block is a number of operations timed together. MEDIAN is over the blocks, so that time slices of other processes do not
 * count. MEAN is over the whole time. */
#ifndef PEER_H
#define PEER_H

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static inline void nodelay(int fd)
{
    int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) fail("TCP_NODELAY");
}

/* Listens on any address, and prints the port. */
static inline int listen_anywhere(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (void *)&address, sizeof address) || listen(listener, 512)
        || getsockname(listener, (void *)&address, &length))
        fail("listen");
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static inline int accept_one(int listener)
{
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) fail("accept");
    nodelay(fd);
    return fd;
}

static inline int connect_to(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(host, port, &hints, &found)) fail(host);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen)) fail("connect");
    freeaddrinfo(found);
    nodelay(fd);
    return fd;
}

static inline void send_all(int fd, const void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = send(fd, (const char *)data + done, length - done, MSG_NOSIGNAL);
        if (n < 0) fail("send");
        done += n;
    }
}

/* Receives all bytes. Returns 1, or 0 if the peer closed the connection before the first byte. */
static inline int receive_all(int fd, void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = recv(fd, (char *)data + done, length - done, 0);
        if (n < 0 && errno == ECONNRESET && done == 0) return 0;
        if (n < 0) fail("recv");
        if (n == 0 && done == 0) return 0;
        if (n == 0) {
            fprintf(stderr, "recv: the peer closed the connection in the middle of a message\n");
            exit(1);
        }
        done += n;
    }
    return 1;
}

/* Exchanges some small messages, so that a stream is upgraded before anything is measured. `first`: this end begins. */
static inline void greet(int fd, int first)
{
    char message[8] = {0};
    for (int i = 0; i < 2 * 32; i++) {
        if (i % 2 != first)
            send_all(fd, message, sizeof message);
        else if (!receive_all(fd, message, sizeof message))
            exit(1);
    }
}

static inline int by_value(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

/* Repeats `block`: a fifth of `ms`, at least 30 ms, to warm up, then `ms` milliseconds for measuring. `block(context, count)` makes
 * `count` operations; `count` is fixed, or 0 for as many as take about 0.3 ms. Prints the figures, in ns divided by `share`. */
static inline void measure(void (*block)(void *, long), void *context, long count, double ms, double share)
{
    enum { MOST = 1 << 16 };
    double *blocks = malloc(MOST * sizeof *blocks);
    long probe = count ? count : 64;
    double start = now(), last;
    do {
        last = now();
        block(context, probe);
        last = now() - last;
    } while (now() - start < (ms < 150 ? 30e6 : ms * 2e5));
    if (!count) {
        double fit = 3e5 / (last / probe);
        count = fit < 1 ? 1 : fit > 1e6 ? 1000000 : (long)fit;
    }
    long n = 0;
    double begun = now(), before = begun, end;
    do {
        block(context, count);
        end = now();
        blocks[n++] = (end - before) / count;
        before = end;
    } while (n < MOST && end - begun < ms * 1e6);
    qsort(blocks, n, sizeof *blocks, by_value);
    printf("%.1f %.1f %ld\n", blocks[n / 2] / share, (end - begun) / (n * (double)count) / share, n * count);
    free(blocks);
}

#endif
