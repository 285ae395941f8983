/* Results that say what is there, or what comes later, one by one: each must be what TCP's says. Argument: the case. The reader is the accepted end; the writer
 * sends what the reader asks for by a word that both map, so that it is out of both streams. */
#include "check.h"

#include <stdbool.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

struct turn {
    _Atomic int wanted, sent;
    _Atomic int bytes, more, pause_us;
};

static struct turn *turn;
static const char *which; /* the case */
static char data[64 << 10];

static void wait_us(int us) { usleep((useconds_t)us); }

static void compute_us(int us)
{
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - began.tv_sec) * 1000000 + (now.tv_nsec - began.tv_nsec) / 1000 < us);
}

/* The writer: `bytes`, after `pause_us` of computing `more`. */
static void writes(int fd)
{
    int on = 1;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    exchange_until_settled(fd, 1);
    if (strcmp(which, "messages") == 0) {
        nap_ms(150);
        while (recv(fd, data, sizeof data, 0) > 0) {}
        return;
    }
    for (int round = 1;; round++) {
        /* A program that computes makes no call by which Motet could move what it has sent. */
        while (turn->wanted >= 0 && turn->wanted < round) turn->more ? compute_us(100) : wait_us(20);
        if (turn->wanted < 0) return;
        if (turn->more) compute_us(round % 3 ? 1500 : 20);
        send_all(fd, data, (size_t)turn->bytes);
        if (turn->more) {
            compute_us(turn->pause_us);
            send_all(fd, data, (size_t)turn->more);
        }
        turn->sent = round;
    }
}

static void ask(int bytes, int more, int pause_us)
{
    turn->bytes = bytes;
    turn->more = more;
    turn->pause_us = pause_us;
    turn->wanted++;
}

static void ask_and_wait(int bytes)
{
    ask(bytes, 0, 0);
    while (turn->sent < turn->wanted) wait_us(20);
}

static bool is_readable(int fd)
{
    struct pollfd in = {.fd = fd, .events = POLLIN};
    return poll(&in, 1, 0) == 1;
}

static int unread(int fd)
{
    int bytes = 0;
    CHECK(ioctl(fd, FIONREAD, &bytes) == 0);
    return bytes;
}

/* Bytes to be discarded, and those that a peek counts, are as many as there are. */
static void discards(int fd)
{
    for (int round = 0; round < 20; round++) {
        is_readable(fd); /* the program waits: its gate may open */
        ask_and_wait(10000);
        ssize_t there = recv(fd, NULL, sizeof data, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
        ssize_t some = recv(fd, NULL, 6000, MSG_TRUNC | MSG_DONTWAIT), rest = recv(fd, data, sizeof data, MSG_DONTWAIT);
        printf("%zd %zd %zd\n", there, some, rest);
    }
}

/* read(2) of nothing never fails; recv(2) looks at the socket. */
static void nothing(int fd)
{
    struct iovec none[2] = {{data, 0}, {NULL, 0}};
    fcntl(fd, F_SETFL, O_NONBLOCK);
    for (int round = 0; round < 2; round++) {
        printf("read %zd, ", read(fd, data, 0));
        printf("readv %zd, ", readv(fd, none, 2));
        printf("preadv2 %zd, ", preadv2(fd, none, 2, -1, 0));
        ssize_t received = recv(fd, data, 0, 0);
        printf("recv %s\n", received == 0 ? "0" : strerror(errno));
        if (round == 0) ask_and_wait(100);
    }
}

/* An array without room for another event has all events of the descriptors that it has. */
static void full_array(int fd, uint32_t trigger)
{
    int set = epoll_create1(0), missing = 0;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | trigger};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (int round = 0; round < 100; round++) {
        event.events = EPOLLIN | EPOLLOUT | trigger;
        CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
        is_readable(fd);
        ask_and_wait(100);
        wait_us(100);
        CHECK(epoll_wait(set, &event, 1, 1000) == 1);
        missing += !(event.events & EPOLLIN);
        receive_all(fd, data, 100);
    }
    printf("EPOLLIN was missing %d times\n", missing);
    close(set);
}

/* Each arrival is an edge, although what came before is unread. */
static void edges(int fd)
{
    int set = epoll_create1(0), late = 0;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (int round = 0; round < 100; round++) {
        ask(500, 500, 100 + round % 7 * 15);
        for (;;) {
            int ready = epoll_wait(set, &event, 1, 500);
            if (unread(fd) < 1000 && ready == 1) continue;
            late += ready == 0;
            break;
        }
        receive_all(fd, data, 1000);
    }
    printf("late %d\n", late);
    close(set);
}

/* What is there stays there until it is read, for FIONREAD and for poll. */
static void stays(int fd)
{
    int fewer = 0, gone = 0;
    for (int round = 0; round < 3000; round++) {
        ask(64, 0, 0);
        struct pollfd in = {.fd = fd, .events = POLLIN};
        CHECK(poll(&in, 1, 5000) == 1);
        for (int look = 0; look < 40; look++) {
            fewer += unread(fd) < 64;
            gone += !is_readable(fd);
        }
        receive_all(fd, data, 64);
        while (turn->sent < turn->wanted) wait_us(1);
    }
    printf("fewer %d, gone %d\n", fewer, gone);
}

/* A mark that is set over unread bytes counts them. */
static void low_water(int fd)
{
    int mark = 200;
    is_readable(fd);
    ask_and_wait(9);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) == 0);
    nap_ms(20);
    printf("readable %d, ", is_readable(fd));
    ask(200, 0, 0);
    printf("received %zd\n", recv(fd, data, 1000, 0));
}

static void peeks_all(int fd)
{
    is_readable(fd);
    ask_and_wait(9);
    ask(200, 0, 0);
    printf("peeked %zd, ", recv(fd, data, 209, MSG_PEEK | MSG_WAITALL));
    printf("received %zd\n", recv(fd, data, 209, MSG_WAITALL));
}

static volatile sig_atomic_t signals;

static void note_signal(int number)
{
    (void)number;
    if (++signals == 10) ask(91, 0, 0); /* a receive that no signal ends has its rest then */
}

/* A signal ends a MSG_WAITALL that has received a part, also if its handler has SA_RESTART. */
static void ended_parts(int fd)
{
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    for (int round = 0; round < 10; round++) {
        struct itimerval each = {{0, 20000}, {0, 20000}}, none = {{0, 0}, {0, 0}};
        is_readable(fd);
        ask_and_wait(9);
        signals = 0;
        CHECK(setitimer(ITIMER_REAL, &each, NULL) == 0);
        ssize_t part = recv(fd, data, 100, MSG_WAITALL);
        CHECK(setitimer(ITIMER_REAL, &none, NULL) == 0);
        printf("part %zd, ", part);
    }
    printf("ended by signals\n");
}

/* A length that the kernel refuses is an error, wherever the bytes are. */
static void refused(int fd)
{
    struct iovec first[1] = {{data, SIZE_MAX}}, second[2] = {{data, 5}, {data + 5, (size_t)SSIZE_MAX + 1}};
    struct msghdr message = {.msg_iov = second, .msg_iovlen = 2};
    is_readable(fd);
    ask_and_wait(9);
    for (int call = 0; call < 5; call++) {
        ssize_t got = call == 0   ? readv(fd, first, 1)
                      : call == 1 ? readv(fd, second, 2)
                      : call == 2 ? preadv2(fd, second, 2, -1, 0)
                      : call == 3 ? recvmsg(fd, &message, 0)
                                  : syscall(SYS_read, fd, data, SIZE_MAX);
        printf("%zd %s, ", got, got < 0 ? strerrorname_np(errno) : "");
    }
    printf("received %zd\n", recv(fd, data, 1000, 0));
}

/* A message that is sent in part is the last one of its call. */
static void messages(int fd)
{
    static char large[16 << 20];
    struct iovec parts[2] = {{large, sizeof large}, {"behind", 6}};
    struct mmsghdr both[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};
    struct timeval limit = {.tv_usec = 100000};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
    int sent = sendmmsg(fd, both, 2, 0);
    printf("%d message, in part: %d\n", sent, sent == 1 && both[0].msg_len < sizeof large);
    CHECK(shutdown(fd, SHUT_WR) == 0);
}

/* A FILE that is read and written, and written first. */
static void greets(int fd)
{
    char line[64] = "";
    is_readable(fd);
    ask_and_wait(20); /* of `data`: a line */
    FILE *file = fdopen(fd, "r+");
    CHECK(file && fileno(file) == fd);
    CHECK(fprintf(file, "welcome\n") == 8 && fflush(file) == 0);
    CHECK(fgets(line, sizeof line, file));
    printf("%s", line);
    ask(20, 0, 0);
    CHECK(fgets(line, sizeof line, file));
    printf("%s", line);
    turn->wanted = -1;
    CHECK(fclose(file) == 0);
}

/* The registration of a closed descriptor lives as long as a copy of it: for what is there, and for what comes. */
static void closed_copy(int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(EPOLL_CLOEXEC), copy = dup(fd);
    CHECK(copy >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, copy, &event) == 0);
    for (int round = 0; round < 100; round++) { /* until the gate is open */
        ask(64, 0, 0);
        CHECK(epoll_wait(set, &event, 1, 5000) == 1);
        receive_all(fd, data, 64);
    }
    ask(64, 0, 0);
    printf("open %d, ", epoll_wait(set, &event, 1, 5000));
    close(copy);
    printf("closed %d, unread %d, ", epoll_wait(set, &event, 1, 1000), unread(fd));
    receive_all(fd, data, 64);
    ask(64, 0, 0);
    printf("later %d\n", epoll_wait(set, &event, 1, 1000));
    receive_all(fd, data, 64);
    close(set);
}

static void reads(int fd)
{
    exchange_until_settled(fd, 0);
    if (strcmp(which, "discards") == 0) discards(fd);
    if (strcmp(which, "nothing") == 0) nothing(fd);
    if (strcmp(which, "full") == 0) full_array(fd, 0);
    if (strcmp(which, "full edges") == 0) full_array(fd, EPOLLET);
    if (strcmp(which, "edges") == 0) edges(fd);
    if (strcmp(which, "stays") == 0) stays(fd);
    if (strcmp(which, "low water") == 0) low_water(fd);
    if (strcmp(which, "peeks all") == 0) peeks_all(fd);
    if (strcmp(which, "ended parts") == 0) ended_parts(fd);
    if (strcmp(which, "refused") == 0) refused(fd);
    if (strcmp(which, "messages") == 0) messages(fd);
    if (strcmp(which, "greets") == 0) greets(fd);
    if (strcmp(which, "closed copy") == 0) closed_copy(fd);
    turn->wanted = -1;
}

int main(int count, char **arguments)
{
    CHECK(count > 1);
    which = arguments[1];
    setvbuf(stdout, NULL, _IOLBF, 4096);
    memcpy(data, "a line of 19 letters\n", 20);
    data[19] = '\n';
    turn = mmap(NULL, sizeof *turn, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(turn != MAP_FAILED);
    two_processes("4", reads, writes);
}
