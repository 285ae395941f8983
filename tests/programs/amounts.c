/* Amounts of bytes that calls report and return in one conversation. Usage: amounts HOW
 *   there      FIONREAD and MSG_PEEK never report more than a receive then returns, while bytes arrive by ring and by TCP
 *   holes      vectors with empty and absent parts, in both directions; too many parts; a negative count
 *   timeouts   SO_RCVTIMEO and SO_SNDTIMEO, with bytes and without
 *   flags      MSG_TRUNC, MSG_WAITALL, MSG_DONTWAIT, MSG_PEEK in combination; recvmmsg and sendmmsg
 *   children   MSG_WAITALL returns everything, except where the kernel cuts it, in a process whose children end all the time
 *   signals    a blocked signal stays pending while a receive waits; a caught one ends the receive */
#include "check.h"
#include <limits.h>

static const char *how;
static int is(const char *name) { return strcmp(how, name) == 0; }

static int go[2], done[2];
static void tell(int to) { CHECK(write(to, "", 1) == 1); }
static void hear(int from)
{
    char byte;
    CHECK(read(from, &byte, 1) == 1);
}

static void ask(int number)
{
    CHECK(write(go[1], &number, sizeof number) == sizeof number);
    hear(done[0]);
}

static void step(const char *name, ssize_t n)
{
    printf("%-44s %zd %s\n", name, n, n < 0 ? strerror(errno) : "");
}

/* ---- there ---- */

enum { POURED = 12 << 20 };

static void pours(int fd)
{
    static char data[40000];
    uint64_t state = 3;
    int empty = fileno(tmpfile());
    CHECK(ftruncate(empty, sizeof data) == 0);
    for (size_t left = POURED; left > 0;) {
        size_t length = 1 + next_random(&state) % (next_random(&state) % 4 ? 300 : sizeof data);
        if (length > left) length = left;
        off_t at = 0; /* by the kernel only, so that ring and TCP alternate */
        ssize_t n = next_random(&state) % 64 ? send(fd, data, length, 0) : sendfile(fd, empty, &at, length);
        CHECK(n > 0);
        left -= (size_t)n;
        if (next_random(&state) % 256 == 0) nap_ms(1);
    }
}

static void looks_first(int fd)
{
    static char data[100000];
    uint64_t state = 4;
    for (size_t left = POURED; left > 0;) {
        int there = 0;
        ssize_t peeked = 0;
        struct pollfd in = {.fd = fd, .events = POLLIN};
        if (next_random(&state) % 2) CHECK(poll(&in, 1, 5000) == 1);
        if (next_random(&state) % 2)
            CHECK(ioctl(fd, FIONREAD, &there) == 0);
        else
            peeked = recv(fd, data, sizeof data, MSG_PEEK | (next_random(&state) % 2 ? MSG_DONTWAIT : 0));
        size_t promised = there > 0 ? (size_t)there : peeked > 0 ? (size_t)peeked : 0;
        if (promised > sizeof data) promised = sizeof data;
        ssize_t n = recv(fd, data, promised ? promised : 1 + next_random(&state) % 3000, promised ? MSG_DONTWAIT : 0);
        if (n <= 0 || (size_t)n < promised) {
            fprintf(stderr, "%zu promised by %s, %zd received: %s\n", promised, there > 0 ? "FIONREAD" : "MSG_PEEK", n, strerror(errno));
            exit(1);
        }
        left -= (size_t)n;
    }
    printf("no promise was broken\n");
}

/* ---- holes ---- */

static void with_holes(int fd)
{
    char a[10], b[20], c[30];
    struct iovec holes[] = {{NULL, 0}, {a, 10}, {b, 0}, {NULL, 0}, {b, 20}, {c, 0}, {c, 30}, {NULL, 0}};
    for (int i = 0; i < 20; i++) {
        memset(a, 'a', sizeof a);
        memset(b, 'b', sizeof b);
        memset(c, 'c', sizeof c);
        CHECK(writev(fd, holes, 8) == 60);
        struct msghdr message = {.msg_iov = holes, .msg_iovlen = 8};
        CHECK(sendmsg(fd, &message, 0) == 60);
        size_t got = 0;
        char all[120];
        while (got < 60) {
            ssize_t n = readv(fd, (struct iovec[]){{NULL, 0}, {all + got, 1}, {NULL, 0}, {all + got + 1, 60 - got - 1}}, got < 59 ? 4 : 2);
            CHECK(n > 0);
            got += (size_t)n;
        }
        message.msg_iov = (struct iovec[]){{all, 0}, {all + 60, 60}, {NULL, 0}};
        message.msg_iovlen = 3;
        CHECK(recvmsg(fd, &message, MSG_WAITALL) == 60);
        for (int k = 0; k < 120; k++) CHECK(all[k] == "abc"[k % 60 < 10 ? 0 : k % 60 < 30 ? 1 : 2]);
    }
    static struct iovec many[IOV_MAX + 1];
    static char bytes[IOV_MAX + 1];
    for (int i = 0; i <= IOV_MAX; i++) many[i] = (struct iovec){bytes + i, 1};
    volatile int minus = -1;
    step("as many parts as there may be", writev(fd, many, IOV_MAX));
    receive_all(fd, bytes, IOV_MAX);
    step("one more", writev(fd, many, IOV_MAX + 1));
    step("one more to receive", readv(fd, many, IOV_MAX + 1));
    step("a negative count", writev(fd, many, minus));
    step("a negative count to receive", readv(fd, many, minus));
    step("nothing", writev(fd, many, 0));
    step("nothing to receive", readv(fd, many, 0));
    step("no bytes", send(fd, "", 0, 0));
    many[0].iov_len = (size_t)SSIZE_MAX;
    step("more bytes than a number can tell", writev(fd, many, 2));
    many[0].iov_len = 1;
    step("none of one", readv(fd, (struct iovec[]){{NULL, 0}}, 1));
    exchange(fd, 1, 10);
}

static void echoes_holes(int fd)
{
    char data[120];
    static char bytes[IOV_MAX];
    for (int i = 0; i < 20; i++) {
        receive_all(fd, data, 120);
        send_all(fd, data, 60);
        if (i % 3 == 0) nap_ms(1);
        send_all(fd, data + 60, 60);
    }
    receive_all(fd, bytes, sizeof bytes);
    send_all(fd, bytes, sizeof bytes);
    exchange(fd, 0, 10);
}

/* ---- timeouts ---- */

static void limit(int fd, int which, int ms)
{
    struct timeval time = {ms / 1000, ms % 1000 * 1000};
    CHECK(setsockopt(fd, SOL_SOCKET, which, &time, sizeof time) == 0);
}

static void runs_out_of_time(int fd)
{
    static char data[64 << 20];
    for (int i = 0; i < 5; i++) {
        limit(fd, SO_RCVTIMEO, 20);
        step("nothing in time", recv(fd, data, 10, 0));
        struct pollfd in = {.fd = fd, .events = POLLIN};
        ask(100);
        CHECK(poll(&in, 1, 5000) == 1);
        step("a part in time", recv(fd, data, 200, MSG_WAITALL));
        ask(100);
        CHECK(poll(&in, 1, 5000) == 1);
        step("all in time", recv(fd, data, 100, MSG_WAITALL));
        limit(fd, SO_RCVTIMEO, 0);
        exchange(fd, 1, 20);
    }
    limit(fd, SO_SNDTIMEO, 50);
    ssize_t n = send(fd, data, sizeof data, 0);
    CHECK(n > 0 && n < (ssize_t)sizeof data);
    ssize_t rest = send(fd, data, sizeof data, 0);
    while (rest > 0) n += rest, rest = send(fd, data, sizeof data, 0);
    step("no room in time", rest);
    uint64_t total = (uint64_t)n;
    CHECK(write(go[1], &(int){-1}, sizeof(int)) == sizeof(int) && write(go[1], &total, sizeof total) == sizeof total);
    hear(done[0]);
    exchange(fd, 1, 20);
}

static void keeps_time(int fd)
{
    static char data[100000];
    for (int i = 0, number; i < 11; i++) {
        CHECK(read(go[0], &number, sizeof number) == sizeof number);
        if (number < 0) break;
        send_all(fd, data, (size_t)number);
        tell(done[1]);
        if (i % 2) exchange(fd, 0, 20);
    }
    uint64_t total;
    CHECK(read(go[0], &total, sizeof total) == sizeof total);
    for (ssize_t n; total > 0; total -= (uint64_t)n) CHECK((n = recv(fd, data, total < sizeof data ? total : sizeof data, 0)) > 0);
    tell(done[1]);
    exchange(fd, 0, 20);
}

/* ---- flags ---- */

static void combines_flags(int fd)
{
    char data[1000], more[1000];
    struct iovec each[4] = {{data, 100}, {data + 100, 100}, {data + 200, 100}, {data + 300, 100}};
    for (int i = 0; i < 5; i++) {
        ask(300);
        struct pollfd in = {.fd = fd, .events = POLLIN};
        CHECK(poll(&in, 1, 5000) == 1);
        step("peek at what is there and more, all wanted", recv(fd, data, 300, MSG_PEEK | MSG_WAITALL));
        step("peek without waiting", recv(fd, more, 1000, MSG_PEEK | MSG_DONTWAIT));
        CHECK(memcmp(data, more, 300) == 0);
        step("peek and throw away", recv(fd, data, 50, MSG_PEEK | MSG_TRUNC));
        step("throw away", recv(fd, NULL, 50, MSG_TRUNC));
        step("throw away all", recv(fd, NULL, 100, MSG_TRUNC | MSG_WAITALL));
        step("all that is left and more, without waiting", recv(fd, data, 1000, MSG_WAITALL | MSG_DONTWAIT));
        CHECK(memcmp(data, more + 150, 150) == 0);
        step("nothing, peeking", recv(fd, data, 1, MSG_PEEK | MSG_DONTWAIT));
        step("nothing, throwing away", recv(fd, NULL, 1, MSG_TRUNC | MSG_DONTWAIT));
        step("nothing of nothing", recv(fd, data, 0, MSG_DONTWAIT));
        ask(250);
        CHECK(poll(&in, 1, 5000) == 1);
        struct mmsghdr several[4];
        memset(several, 0, sizeof several);
        for (int k = 0; k < 4; k++) several[k].msg_hdr = (struct msghdr){.msg_iov = &each[k], .msg_iovlen = 1};
        struct timespec moment = {0, 1};
        int count = recvmmsg(fd, several, 4, MSG_DONTWAIT, NULL), there = 0;
        for (int k = 0; k < count; k++) there += (int)several[k].msg_len;
        step("several, at once", there);
        ask(250);
        CHECK(poll(&in, 1, 5000) == 1);
        step("several, a moment", recvmmsg(fd, several, 2, 0, &moment) > 0);
        for (there = 1; there > 0;) {
            CHECK(recvmmsg(fd, several, 4, MSG_WAITFORONE, NULL) > 0);
            CHECK(ioctl(fd, FIONREAD, &there) == 0);
        }
        step("none is there", recvmmsg(fd, several, 4, MSG_DONTWAIT, NULL));
        exchange(fd, 1, 40);
    }
}

static void sends_when_asked(int fd)
{
    char data[1000];
    uint64_t state = 1;
    for (int i = 0, number; i < 15; i++) {
        CHECK(read(go[0], &number, sizeof number) == sizeof number);
        fill(data, (size_t)number, &state);
        struct mmsghdr two[2];
        struct iovec half[2] = {{data, (size_t)number / 2}, {data + number / 2, (size_t)(number - number / 2)}};
        memset(two, 0, sizeof two);
        for (int k = 0; k < 2; k++) two[k].msg_hdr = (struct msghdr){.msg_iov = &half[k], .msg_iovlen = 1};
        CHECK(sendmmsg(fd, two, 2, 0) == 2);
        tell(done[1]);
        if (i % 3 == 2) exchange(fd, 0, 40);
    }
}

/* ---- children ---- */

enum { BLOCKS = 400, BLOCK = 30000, CHILDREN = 60 };

/* The kernel itself returns a part now and then (two or three of 100 000 blocks, in Linux 6.18), at a moment when a signal is due. */
enum { MAY_BE_CUT = 4 };

static void *takes_blocks(void *argument)
{
    static char block[BLOCK];
    int fd = *(int *)argument, cut = 0;
    for (int i = 0; i < BLOCKS; i++) {
        ssize_t n = recv(fd, block, sizeof block, MSG_WAITALL);
        if (n > 0 && n < BLOCK && ++cut <= MAY_BE_CUT) {
            receive_all(fd, block + n, (size_t)(BLOCK - n));
        } else if (n != BLOCK) {
            fprintf(stderr, "block %d: %zd bytes (%s)\n", i, n, strerror(errno));
            exit(1);
        }
    }
    return NULL;
}

static void has_children(int fd)
{
    pthread_t thread;
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = children[i] = fork();
        CHECK(child >= 0);
        if (child == 0) {
            struct timespec time = {0, (i + 1) * 3000000l};
            nanosleep(&time, NULL);
            _exit(0);
        }
    }
    CHECK(pthread_create(&thread, NULL, takes_blocks, &fd) == 0);
    for (int i = 0; i < CHILDREN;) { /* meanwhile this thread creates and closes descriptors */
        for (int k = 0; k < 100; k++) close(dup(fd));
        if (waitpid(children[i], NULL, WNOHANG) > 0) i++;
    }
    CHECK(pthread_join(thread, NULL) == 0);
    printf("every block came\n");
}

static void sends_blocks(int fd)
{
    static char data[BLOCK];
    for (int i = 0; i < BLOCKS; i++) {
        for (int at = 0; at < BLOCK; at += BLOCK / 6) {
            send_all(fd, data + at, BLOCK / 6);
            if (at % (BLOCK / 2) == 0) {
                struct timespec time = {0, 100000};
                nanosleep(&time, NULL);
            }
        }
    }
}

/* ---- signals ---- */

static volatile sig_atomic_t hits;
static void hit(int number)
{
    (void)number;
    hits++;
}

static pthread_t receiver;
static _Atomic int interrupted;

static void *disturbs(void *unused)
{
    (void)unused;
    while (!interrupted) {
        pthread_kill(receiver, SIGUSR1);
        struct timespec time = {0, 20000};
        nanosleep(&time, NULL);
    }
    return NULL;
}

static void is_disturbed(int fd)
{
    char data[64];
    struct sigaction action = {.sa_handler = hit};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    receiver = pthread_self();
    sigset_t usr, open;
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR1);
    for (int i = 0; i < 10; i++) {
        pthread_t thread;
        interrupted = 0;
        hits = 0;
        CHECK(pthread_sigmask(SIG_BLOCK, &usr, &open) == 0);
        CHECK(pthread_create(&thread, NULL, disturbs, NULL) == 0);
        for (int k = 0; k < 50; k++) {
            ask(64);
            CHECK(recv(fd, data, sizeof data, MSG_WAITALL) == 64);
        }
        CHECK(hits == 0);
        struct pollfd in = {.fd = fd, .events = POLLIN};
        CHECK(ppoll(&in, 1, NULL, &open) == -1 && errno == EINTR);
        CHECK(hits > 0);
        CHECK(pthread_sigmask(SIG_SETMASK, &open, NULL) == 0);
        CHECK(recv(fd, data, sizeof data, 0) == -1 && errno == EINTR);
        interrupted = 1;
        CHECK(pthread_join(thread, NULL) == 0);
    }
    tell(go[1]);
    printf("a mask holds, and a handler interrupts\n");
}

static void sends_to_disturbed(int fd)
{
    char data[64] = {0};
    for (int i = 0, number; i < 500; i++) {
        CHECK(read(go[0], &number, sizeof number) == sizeof number);
        send_all(fd, data, (size_t)number / 2);
        tell(done[1]);
        send_all(fd, data, (size_t)(number - number / 2));
    }
    hear(go[0]);
}

static void accepted(int fd)
{
    exchange_until_settled(fd, 1);
    if (is("there")) looks_first(fd);
    if (is("holes")) with_holes(fd);
    if (is("timeouts")) runs_out_of_time(fd);
    if (is("flags")) combines_flags(fd);
    if (is("children")) has_children(fd);
    if (is("signals")) is_disturbed(fd);
}

static void connected(int fd)
{
    exchange_until_settled(fd, 0);
    if (is("there")) pours(fd);
    if (is("holes")) echoes_holes(fd);
    if (is("timeouts")) keeps_time(fd);
    if (is("flags")) sends_when_asked(fd);
    if (is("children")) sends_blocks(fd);
    if (is("signals")) sends_to_disturbed(fd);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    how = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 4096);
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    two_processes("4", accepted, connected);
}
