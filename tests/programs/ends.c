/* How connections end: for every way in which one end closes or dies, what the calls of the other end return, one after another.
 * Usage: ends SETTLED    1: after the path has settled, 0: at once */
#include "check.h"

static int go[2], done[2];
static int settled;
static volatile sig_atomic_t pipes;

static void tell(int to) { CHECK(write(to, "", 1) == 1); }
static void hear(int from)
{
    char byte;
    CHECK(read(from, &byte, 1) == 1);
}

static void count_pipe(int number)
{
    (void)number;
    pipes++;
}

static void say(const char *what, ssize_t n)
{
    if (n < 0)
        printf("  %s: %s", what, strerror(errno));
    else
        printf("  %s: %zd", what, n);
    printf(pipes ? " and SIGPIPE\n" : "\n");
    pipes = 0;
}

static void linger(int fd, int seconds)
{
    struct linger how = {1, seconds};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &how, sizeof how) == 0);
}

/* Waits until the kernel reports the end. */
static void await_end(int fd)
{
    struct pollfd end = {.fd = fd, .events = POLLRDHUP};
    CHECK(poll(&end, 1, 5000) == 1);
}

static void send_some(int fd, size_t bytes)
{
    static char data[300000];
    send_all(fd, data, bytes);
}

static void drain(int fd)
{
    char data[4096];
    size_t got = 0;
    ssize_t n;
    while ((n = recv(fd, data, sizeof data, 0)) > 0) got += (size_t)n;
    printf("  received %zu\n", got);
    say("then", n);
    say("again", recv(fd, data, sizeof data, 0));
}

static void error_of(int fd)
{
    int error = -1;
    socklen_t length = sizeof error;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
    printf("  SO_ERROR: %s\n", strerror(error));
}

/* What one end does, and what the other end observes. */
struct ending {
    const char *name;
    void (*ends)(int fd);
    void (*sees)(int fd);
};

static void closes(int fd) { CHECK(close(fd) == 0); }

static void sends_and_closes(int fd)
{
    send_some(fd, 100000);
    CHECK(close(fd) == 0);
}

static void sends_and_lingers(int fd)
{
    linger(fd, 5);
    send_some(fd, 3000);
    CHECK(close(fd) == 0);
}

static void sends_and_aborts(int fd)
{
    send_some(fd, 3000);
    tell(go[1]);
    linger(fd, 0);
    CHECK(close(fd) == 0);
}

static void aborts(int fd)
{
    linger(fd, 0);
    CHECK(close(fd) == 0);
}

static void shuts_both(int fd)
{
    send_some(fd, 500);
    CHECK(shutdown(fd, SHUT_RDWR) == 0);
    char byte;
    say("own recv", recv(fd, &byte, 1, 0));
    say("own send", send(fd, "x", 1, 0));
    hear(done[0]);
    close(fd);
}

static void shuts_writing(int fd)
{
    send_some(fd, 200000);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    char data[600];
    receive_all(fd, data, 600);
    say("after the half-close, recv", recv(fd, data, sizeof data, 0));
    close(fd);
}

static void shuts_reading(int fd)
{
    char data[1000];
    tell(go[1]);
    hear(done[0]); /* 300 bytes have been sent */
    struct pollfd in = {.fd = fd, .events = POLLIN};
    CHECK(poll(&in, 1, 5000) == 1);
    CHECK(shutdown(fd, SHUT_RD) == 0);
    say("what was there", recv(fd, data, sizeof data, 0));
    say("then", recv(fd, data, sizeof data, 0));
    say("then without waiting", recv(fd, data, sizeof data, MSG_DONTWAIT));
    send_some(fd, 10);
    hear(done[0]);
    close(fd);
}

static void leaves_unread(int fd)
{
    tell(go[1]);
    hear(done[0]);
    struct pollfd in = {.fd = fd, .events = POLLIN};
    CHECK(poll(&in, 1, 5000) == 1);
    CHECK(close(fd) == 0);
}

static void sees_end(int fd)
{
    await_end(fd);
    drain(fd);
    say("first send", send(fd, "x", 1, 0));
    nap_ms(20);
    say("second send", send(fd, "x", 1, 0));
    say("third send, no signal", send(fd, "x", 1, MSG_NOSIGNAL));
    error_of(fd);
    close(fd);
}

static void sees_bytes_and_end(int fd)
{
    drain(fd);
    close(fd);
}

static void sees_abort(int fd)
{
    char byte;
    await_end(fd);
    say("recv", recv(fd, &byte, 1, 0));
    say("again", recv(fd, &byte, 1, 0));
    say("send", send(fd, "x", 1, 0));
    error_of(fd);
    close(fd);
}

static void sees_abort_by_sending(int fd)
{
    await_end(fd);
    say("send", write(fd, "x", 1));
    say("again", write(fd, "x", 1));
    error_of(fd);
    close(fd);
}

static void sees_bytes_and_abort(int fd)
{
    char data[4096];
    hear(go[0]);
    struct pollfd end = {.fd = fd, .events = POLLRDHUP};
    CHECK(poll(&end, 1, 5000) == 1);
    say("recv", recv(fd, data, sizeof data, MSG_WAITALL));
    say("again", recv(fd, data, sizeof data, 0));
    close(fd);
}

static void sees_shut_both(int fd)
{
    await_end(fd);
    drain(fd);
    tell(done[1]);
    close(fd);
}

static void answers_half_close(int fd)
{
    char data[4096];
    size_t got = 0;
    ssize_t n;
    while ((n = recv(fd, data, sizeof data, 0)) > 0) got += (size_t)n;
    printf("  received %zu, then %zd\n", got, n);
    send_some(fd, 600);
    close(fd);
}

static void sends_to_closed_ear(int fd)
{
    hear(go[0]);
    send_some(fd, 300);
    tell(done[1]);
    char data[10];
    receive_all(fd, data, sizeof data);
    tell(done[1]);
    say("end", recv(fd, data, 1, 0));
    close(fd);
}

static void sees_reset(int fd)
{
    char data[1000];
    hear(go[0]);
    send_some(fd, 1000);
    tell(done[1]);
    await_end(fd);
    say("recv", recv(fd, data, sizeof data, 0));
    say("send", send(fd, "x", 1, 0));
    close(fd);
}

static const struct ending endings[] = {
    {"close", closes, sees_end},
    {"bytes, then close", sends_and_closes, sees_bytes_and_end},
    {"bytes, then close with SO_LINGER", sends_and_lingers, sees_bytes_and_end},
    {"abort", aborts, sees_abort},
    {"abort, seen by sending", aborts, sees_abort_by_sending},
    {"bytes, then abort", sends_and_aborts, sees_bytes_and_abort},
    {"shut down both ways", shuts_both, sees_shut_both},
    {"half-close", shuts_writing, answers_half_close},
    {"shut down for reading", shuts_reading, sends_to_closed_ear},
    {"close over unread bytes", leaves_unread, sees_reset},
};

static const struct ending *now;

/* The end that closes prints first, into its own part of the output. */
static void goes(int fd)
{
    if (settled) exchange_until_settled(fd, 1);
    now->ends(fd);
}

static void stays(int fd)
{
    if (settled) exchange_until_settled(fd, 0);
    now->sees(fd);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    settled = atoi(argv[1]);
    setvbuf(stdout, NULL, _IOFBF, 65536);
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    CHECK(signal(SIGPIPE, count_pipe) != SIG_ERR);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        now = &endings[i];
        printf("%s\n", now->name);
        two_processes("4", stays, goes);
        two_processes("4", goes, stays);
        fflush(stdout);
    }
}
