/* Addresses of connections: both ends, a bound source, wildcard and dual-stack listeners, several listeners on one port, accept order, a
 * backlog that outlives its listener, a non-blocking connect, a refused connection. Ports are compared, not printed. */
#include "check.h"

enum { QUEUED = 5 };

struct end {
    struct sockaddr_storage own, peer;
};

static struct end ends_of(int fd)
{
    struct end end;
    socklen_t own = sizeof end.own, peer = sizeof end.peer;
    memset(&end, 0, sizeof end);
    CHECK(getsockname(fd, (struct sockaddr *)&end.own, &own) == 0);
    CHECK(getpeername(fd, (struct sockaddr *)&end.peer, &peer) == 0);
    return end;
}

static int port_of(const struct sockaddr_storage *a)
{
    return ntohs(a->ss_family == AF_INET ? ((const struct sockaddr_in *)a)->sin_port : ((const struct sockaddr_in6 *)a)->sin6_port);
}

static const char *host_of(const struct sockaddr_storage *a)
{
    static char text[4][INET6_ADDRSTRLEN];
    static int next;
    char *to = text[next++ % 4];
    const void *bytes = a->ss_family == AF_INET ? (const void *)&((const struct sockaddr_in *)a)->sin_addr
                                                : (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr;
    CHECK(inet_ntop(a->ss_family, bytes, to, INET6_ADDRSTRLEN));
    return to;
}

static struct sockaddr_in address(const char *host, int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    CHECK(inet_pton(AF_INET, host, &a.sin_addr) == 1);
    return a;
}

static int listener_at(const char *host, int *port, int shared)
{
    struct sockaddr_in a = address(host, *port);
    socklen_t length = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    CHECK(fd >= 0);
    if (shared) CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0);
    CHECK(bind(fd, (struct sockaddr *)&a, length) == 0 && listen(fd, 16) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&a, &length) == 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static int call_from(const char *source, const char *host, int port)
{
    struct sockaddr_in from = address(source, 0), to = address(host, port);
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    CHECK(fd >= 0);
    CHECK(setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on) == 0);
    CHECK(bind(fd, (struct sockaddr *)&from, sizeof from) == 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

/* Both ends send their addresses before and after the path has settled; they must agree. */
static void introduce(const char *what, int fd, int first)
{
    struct end before = ends_of(fd), after;
    exchange_until_settled(fd, first);
    after = ends_of(fd);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    int mine[2] = {port_of(&after.own), port_of(&after.peer)}, theirs[2];
    send_all(fd, mine, sizeof mine);
    receive_all(fd, theirs, sizeof theirs);
    CHECK(mine[0] == theirs[1] && mine[1] == theirs[0]);
    if (!first) printf("%s: %s <- %s\n", what, host_of(&after.own), host_of(&after.peer));
}

static void served(const char *what, int listener, int (*call)(int port), int port, int close_listener)
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(listener);
        int fd = call(port);
        introduce(what, fd, 1);
        exit(0);
    }
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    if (close_listener) CHECK(close(listener) == 0);
    introduce(what, fd, 0);
    close(fd);
    wait_for(child);
}

static int call_wildcard(int port) { return call_from("127.0.0.1", "127.0.0.1", port); }
static int call_bound(int port) { return call_from("127.0.0.2", "127.0.0.1", port); }
static int call_other(int port) { return call_from("127.0.0.1", "127.0.0.3", port); }
static int call_v4(int port) { return connect_to("4", port); }
static int call_mapped(int port) { return connect_to("mapped", port); }
static int call_v6(int port) { return connect_to("6", port); }

static int call_unblocked(int port)
{
    struct sockaddr_in to = address("127.0.0.1", port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), error = -1;
    socklen_t length = sizeof error;
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == -1 && errno == EINPROGRESS);
    struct pollfd out = {.fd = fd, .events = POLLOUT};
    CHECK(poll(&out, 1, 5000) == 1 && out.revents == POLLOUT);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0 || errno == EISCONN);
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    return fd;
}

static void refused(void)
{
    int port = 0, listener = listener_at("127.0.0.1", &port, 0);
    close(listener);
    struct sockaddr_in to = address("127.0.0.1", port);
    int fd = socket(AF_INET, SOCK_STREAM, 0), error = -1;
    socklen_t length = sizeof error;
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == -1);
    printf("refused: %s", strerror(errno));
    CHECK(send(fd, "x", 1, MSG_NOSIGNAL) == -1);
    printf(", send: %s", strerror(errno));
    CHECK(recv(fd, &error, 1, 0) == -1);
    printf(", recv: %s\n", strerror(errno));
    close(fd);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == -1);
    struct pollfd out = {.fd = fd, .events = POLLIN | POLLOUT};
    CHECK(poll(&out, 1, 5000) == 1);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
    printf("refused later: events %#x, %s\n", (unsigned)out.revents, strerror(error));
    close(fd);
}

/* Connections wait in the backlog, each with a number already sent; they are accepted in order. */
static void queued(void)
{
    int port = 0, listener = listener_at("127.0.0.1", &port, 0), order[2];
    CHECK(pipe(order) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int fds[QUEUED];
        close(listener);
        for (int i = 0; i < QUEUED; i++) {
            fds[i] = call_v4(port);
            send_all(fds[i], &i, sizeof i);
        }
        CHECK(write(order[1], "", 1) == 1);
        for (int i = 0; i < QUEUED; i++) exchange_until_settled(fds[i], 1);
        exit(0);
    }
    char byte;
    CHECK(read(order[0], &byte, 1) == 1);
    int fds[QUEUED];
    printf("accepted in order:");
    for (int i = 0, n; i < QUEUED; i++) {
        fds[i] = accept(listener, NULL, NULL);
        receive_all(fds[i], &n, sizeof n);
        printf(" %d", n);
    }
    printf("\n");
    close(listener);
    for (int i = 0; i < QUEUED; i++) exchange_until_settled(fds[i], 0);
    wait_for(child);
    for (int i = 0; i < QUEUED; i++) close(fds[i]);
}

static int serve_until(int listener, int end)
{
    for (int served = 0;; served++) {
        struct pollfd either[2] = {{.fd = listener, .events = POLLIN}, {.fd = end}};
        CHECK(poll(either, 2, -1) > 0);
        if (!either[0].revents) return served;
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        exchange_until_settled(fd, 0);
        close(fd);
    }
}

/* Several processes listen on one port: each connection is served by the one that the kernel chose. */
static void group(void)
{
    int port = 0, one = listener_at("127.0.0.1", &port, 1), other = listener_at("127.0.0.1", &port, 1), end[2];
    CHECK(pipe(end) == 0);
    fflush(stdout);
    pid_t client = fork();
    if (client == 0) {
        close(end[0]);
        close(one);
        close(other);
        for (int i = 0; i < 40; i++) {
            int fd = call_v4(port);
            exchange_until_settled(fd, 1);
            close(fd);
        }
        exit(0);
    }
    close(end[1]);
    pid_t server = fork();
    if (server == 0) {
        close(one);
        exit(serve_until(other, end[0]) > 0 ? 0 : 1);
    }
    close(other);
    int served = serve_until(one, end[0]);
    wait_for(server);
    wait_for(client);
    close(one);
    printf("a group of two: %s\n", served > 0 && served < 40 ? "shared" : "one alone");
}

int main(void)
{
    int port = 0, listener = listener_at("0.0.0.0", &port, 0);
    served("wildcard", listener, call_wildcard, port, 0);
    served("wildcard, another of its addresses", listener, call_other, port, 0);
    served("bound source", listener, call_bound, port, 0);
    served("without blocking", listener, call_unblocked, port, 0);
    served("listener closed after accept", listener, call_v4, port, 1);
    port = 0;
    listener = listen_on("6", &port);
    served("IPv6", listener, call_v6, port, 1);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    int off = 0;
    socklen_t length = sizeof any;
    listener = socket(AF_INET6, SOCK_STREAM, 0);
    CHECK(setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0);
    CHECK(bind(listener, (struct sockaddr *)&any, sizeof any) == 0 && listen(listener, 16) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&any, &length) == 0);
    port = ntohs(any.sin6_port);
    served("dual stack, IPv4", listener, call_v4, port, 0);
    served("dual stack, v4-mapped", listener, call_mapped, port, 0);
    served("dual stack, IPv6", listener, call_v6, port, 1);
    refused();
    queued();
    group();
}
