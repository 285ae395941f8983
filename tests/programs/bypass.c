/* Connections that from some moment on are used in ways that a preload object cannot follow, or only with effort: every byte stays in its
 * place. Usage: bypass HOW
 *   dprintf     libc writes to the descriptor
 *   preadv2     preadv2 and pwritev2 without an offset
 *   stdio-out   fdopen() for writing only, while the other direction continues with recv()
 *   fclose      fclose() ends the connection
 *   async       O_ASYNC: readiness is signalled by SIGIO
 *   sigio       as async, set by ioctl() with a signal of the program's choice
 *   lowat       SO_RCVLOWAT
 *   lowat-before   SO_RCVLOWAT, inherited from the listener
 *   urgent      MSG_OOB in the middle of a conversation
 *   syscall     every second call is made by syscall()
 *   inline         after a moment without traffic, system calls are made without libc
 *   inline-reads   every third receive of one end is made without libc
 *   inline-calls   and every third send of both; one message at a time. It may end in a reset */
#include "check.h"
#include "raw.h"
#include <stdbool.h>

static const char *how;
static int is(const char *name) { return strcmp(how, name) == 0; }
enum { ROUNDS = 300 };

static int go[2], done[2];
static bool gone; /* the connection was reset, which "inline-calls" allows */
static volatile sig_atomic_t signals;
static void tell(int to) { CHECK(write(to, "", 1) == 1); }
static void hear(int from)
{
    char byte;
    CHECK(read(from, &byte, 1) == 1);
}

static void count_signal(int number)
{
    (void)number;
    signals++;
}

/* The bytes of a direction are numbered; both ends know which byte is next. */
struct flow {
    uint64_t state, hash, bytes;
    size_t at;
    unsigned char block[1 << 12];
};

static void next_bytes(struct flow *flow, void *to, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (flow->at % sizeof flow->block == 0) fill(flow->block, sizeof flow->block, &flow->state);
        ((unsigned char *)to)[i] = flow->block[flow->at++ % sizeof flow->block];
    }
    flow->bytes += length;
}

static void expect(struct flow *flow, const unsigned char *came, size_t length)
{
    unsigned char want[8192];
    CHECK(length <= sizeof want);
    next_bytes(flow, want, length);
    for (size_t i = 0; i < length; i++)
        if (want[i] != came[i]) {
            fprintf(stderr, "a wrong byte at %llu\n", (unsigned long long)(flow->bytes - length + i));
            exit(1);
        }
}

static void put(int fd, const unsigned char *data, size_t length, int round)
{
    for (size_t at = 0; at < length;) {
        ssize_t n;
        if (is("preadv2")) {
            struct iovec iov[2] = {{(void *)(data + at), (length - at) / 2}, {(void *)(data + at + (length - at) / 2), length - at - (length - at) / 2}};
            n = pwritev2(fd, iov, 2, -1, 0);
        } else if (is("syscall") && round % 2) {
            n = round % 4 == 1 ? syscall(SYS_write, fd, data + at, length - at) : syscall(SYS_sendto, fd, data + at, length - at, 0, NULL, 0);
        } else if ((is("inline") && round >= ROUNDS / 2) || (is("inline-calls") && round % 3 == 0)) {
            n = raw(SYS_write, fd, (long)(data + at), (long)(length - at), 0, 0);
        } else {
            n = send(fd, data + at, length - at, MSG_NOSIGNAL);
        }
        gone |= n < 0 && is("inline-calls");
        if (gone) return;
        CHECK(n > 0);
        at += (size_t)n;
    }
}

static size_t get(int fd, unsigned char *data, size_t room, int round, int asks)
{
    static uint64_t reads = 9;
    ssize_t n;
    if (is("preadv2")) {
        struct iovec iov[2] = {{data, room / 2}, {data + room / 2, room - room / 2}};
        n = preadv2(fd, iov, 2, -1, 0);
    } else if (is("syscall") && round % 3 == 1) {
        n = round % 2 ? syscall(SYS_read, fd, data, room) : syscall(SYS_recvfrom, fd, data, room, 0, NULL, NULL);
    } else if ((is("inline") && round >= ROUNDS / 2) || (!asks && strstr(how, "inline-") && next_random(&reads) % 3 == 0)) {
        n = raw(SYS_read, fd, (long)data, (long)room, 0, 0);
    } else {
        n = recv(fd, data, room, 0);
    }
    gone |= n <= 0 && is("inline-calls");
    if (gone) return 0;
    CHECK(n > 0);
    return (size_t)n;
}

/* Requests of some size are answered by as many bytes. Now and then the client sends several requests before it reads. */
static void converse(int fd, int asks)
{
    struct flow out = {.state = asks ? 1 : 2}, in = {.state = asks ? 2 : 1};
    unsigned char data[8192];
    uint64_t sizes = 5;
    for (int round = 0; round < ROUNDS && !gone; round++) {
        int messages = round % 16 == 15 && !is("inline-calls") ? 8 : 1;
        if (is("inline") && round == ROUNDS / 2) asks ? nap_ms(20) : hear(done[0]);
        if (is("inline") && round == ROUNDS / 2 - 1 && asks) tell(done[1]);
        size_t length[8], total = 0;
        for (int i = 0; i < messages; i++) total += length[i] = 1 + next_random(&sizes) % (round % 8 == 7 ? 5000 : 100);
        for (int i = 0; asks && i < messages; i++) {
            next_bytes(&out, data, length[i]);
            put(fd, data, length[i], is("inline") ? round : round + i);
        }
        for (size_t left = total; left > 0 && !gone;) {
            size_t n = get(fd, data, left < sizeof data ? left : sizeof data, round, asks);
            expect(&in, data, n);
            left -= n;
        }
        for (int i = 0; !asks && i < messages; i++) {
            next_bytes(&out, data, length[i]);
            put(fd, data, length[i], is("inline") ? round : round + i);
        }
    }
    if (asks && is("inline-calls")) printf("%s: in order as far as it went\n", how);
    else if (asks) printf("%s: %llu bytes out, %llu in, all in their places\n", how, (unsigned long long)out.bytes, (unsigned long long)in.bytes);
}

/* ---- one end uses the special call, the other one ordinary calls ---- */

static void writes_lines(int fd)
{
    FILE *out = is("stdio-out") ? fdopen(fd, "w") : NULL;
    char answer[16];
    for (int i = 0; i < ROUNDS; i++) {
        if (i % 3 == 0) send_all(fd, "sent\n", 5);
        if (out)
            CHECK(fprintf(out, "line %d\n", i) > 0 && fflush(out) == 0);
        else
            CHECK(dprintf(fd, "line %d%s\n", i, i % 50 == 49 ? " ............................................................" : "") > 0);
        if (i % 3 == 1) send_all(fd, "more\n", 5);
        if (i % 5 == 4) receive_all(fd, answer, 8);
    }
    if (out) CHECK(fclose(out) == 0);
}

static void reads_lines(int fd)
{
    static char all[65536];
    size_t length = 0;
    int lines = 0;
    for (ssize_t n; (n = recv(fd, all + length, sizeof all - length, 0)) > 0; length += (size_t)n)
        for (char *at = all + length; at < all + length + n; at++) /* a line has the only spaces */
            if (*at == ' ' && at > all && at[-1] == 'e' && lines++ % 5 == 4) send_all(fd, "answer..", 8);
    printf("%s: %zu bytes, hash %016llx\n", how, length, (unsigned long long)hash_more(0, all, length));
}

static void closes_stream(int fd)
{
    FILE *both = fdopen(fd, "r+");
    CHECK(both && fputs("last words\n", both) > 0 && fclose(both) == 0);
    CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
    int next = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(next == fd);
    close(next);
}

static void hears_signals(int fd)
{
    int on = 1, number = is("async") ? SIGIO : SIGRTMIN + 3;
    char data[64];
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
    CHECK(sigaction(number, &action, NULL) == 0);
    CHECK(fcntl(fd, F_SETOWN, getpid()) == 0);
    if (is("async")) {
        CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC) == 0);
    } else {
        CHECK(fcntl(fd, F_SETSIG, number) == 0);
        CHECK(ioctl(fd, FIOASYNC, &on) == 0);
    }
    sigset_t blocked, open;
    sigemptyset(&blocked);
    sigaddset(&blocked, number);
    for (int i = 0; i < 100; i++) {
        CHECK(sigprocmask(SIG_BLOCK, &blocked, &open) == 0);
        signals = 0;
        tell(go[1]);
        while (recv(fd, data, sizeof data, MSG_DONTWAIT | MSG_PEEK) != 64) { /* only a signal wakes this end */
            struct timespec limit = {5, 0};
            CHECK(sigtimedwait(&blocked, NULL, &limit) == number);
        }
        receive_all(fd, data, 64);
        CHECK(sigprocmask(SIG_SETMASK, &open, NULL) == 0);
        send_all(fd, data, 64);
    }
    printf("%s: woken each time\n", how);
}

static void answers_signals(int fd)
{
    char data[64] = {0};
    for (int i = 0; i < 100; i++) {
        hear(go[0]);
        send_all(fd, data, 64);
        receive_all(fd, data, 64);
    }
}

static void waits_for_many(int fd)
{
    char data[4096];
    int enough = 1000;
    if (fcntl(fd, F_GETFD) >= 0) CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &enough, sizeof enough) == 0);
    struct pollfd in = {.fd = fd, .events = POLLIN};
    for (int i = 0; i < 50; i++) {
        tell(go[1]); /* 400 bytes */
        hear(done[0]);
        CHECK(poll(&in, 1, i < 5 ? 20 : 0) == 0);
        CHECK(recv(fd, data, 100, MSG_DONTWAIT) == 100 && recv(fd, data, 1, MSG_PEEK | MSG_DONTWAIT) == 1);
        tell(go[1]); /* 700 more */
        hear(done[0]);
        CHECK(poll(&in, 1, 5000) == 1);
        ssize_t n = recv(fd, data, sizeof data, 0);
        CHECK(n == 1000);
    }
    printf("%s: never woken for less\n", how);
}

static void sends_pieces(int fd)
{
    static char data[700];
    for (int i = 0; i < 100; i++) {
        hear(go[0]);
        send_all(fd, data, i % 2 ? 700 : 400);
        nap_ms(i < 10 ? 5 : 0);
        tell(done[1]);
    }
}

static void is_urgent(int fd)
{
    for (int i = 0; i < 50; i++) {
        send_all(fd, "ordinary", 8);
        CHECK(send(fd, "!", 1, MSG_OOB) == 1);
        send_all(fd, "afterwards", 10);
        hear(done[0]);
        exchange(fd, 1, 5);
    }
}

static void hears_urgent(int fd)
{
    char data[64];
    for (int i = 0; i < 50; i++) {
        struct pollfd bad = {.fd = fd, .events = POLLPRI};
        CHECK(poll(&bad, 1, 5000) == 1 && (bad.revents & POLLPRI));
        receive_all(fd, data, 8);
        int at_mark = -1;
        CHECK(ioctl(fd, SIOCATMARK, &at_mark) == 0);
        CHECK(recv(fd, data + 8, 1, MSG_OOB) == 1);
        CHECK(at_mark == 1 && memcmp(data, "ordinary!", 9) == 0);
        receive_all(fd, data, 10);
        CHECK(memcmp(data, "afterwards", 10) == 0);
        tell(done[1]);
        exchange(fd, 0, 5);
    }
    printf("%s: each mark in its place\n", how);
}

static void inherits_least(void)
{
    int port = 0, listener = listen_on("4", &port), least = 64;
    socklen_t length = sizeof least;
    CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVLOWAT, &least, length) == 0);
    pid_t child = fork();
    if (child == 0) {
        exchange(connect_to("4", port), 1, 200);
        exit(0);
    }
    int fd = accept(listener, NULL, NULL);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, &length) == 0);
    exchange(fd, 0, 200);
    wait_for(child);
    printf("%s: %d\n", how, least);
}

static void accepted(int fd)
{
    exchange_until_settled(fd, 0);
    if (is("dprintf") || is("stdio-out")) reads_lines(fd);
    else if (is("fclose")) reads_lines(fd);
    else if (is("async") || is("sigio")) hears_signals(fd);
    else if (is("lowat")) waits_for_many(fd);
    else if (is("urgent")) hears_urgent(fd);
    else converse(fd, 0);
    fflush(stdout);
}

static void connected(int fd)
{
    exchange_until_settled(fd, 1);
    if (is("dprintf") || is("stdio-out")) writes_lines(fd);
    else if (is("fclose")) closes_stream(fd);
    else if (is("async") || is("sigio")) answers_signals(fd);
    else if (is("lowat")) sends_pieces(fd);
    else if (is("urgent")) is_urgent(fd);
    else converse(fd, 1);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    how = argv[1];
    setvbuf(stdout, NULL, _IOFBF, 65536);
    if (is("lowat-before")) return inherits_least(), 0;
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    if (is("inline-calls")) signal(SIGPIPE, SIG_IGN); /* a plain write() may be the first call after a reset */
    two_processes("4", accepted, connected);
}
