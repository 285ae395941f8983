/* Receives that report, or peek at, what only the kernel's queue provides. Usage: kernel_tells WHAT before|after
 * WHAT: timestamp, inq, peekoff, zerocopy, aio, listio; requested before or after the first 300 exchanges */
#include "check.h"
#include <aio.h>
#include <stdbool.h>

#ifndef TCP_INQ
#define TCP_INQ 36
#endif
#ifndef TCP_ZEROCOPY_RECEIVE
#define TCP_ZEROCOPY_RECEIVE 35
#endif

static const char *what;
static bool before;

static bool is(const char *word) { return strcmp(what, word) == 0; }

static bool ask(int fd)
{
    int on = 1, none = 0;
    if (is("timestamp")) CHECK(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on) == 0);
    if (is("inq")) CHECK(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on) == 0);
    if (is("peekoff") && setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &none, sizeof none) != 0) {
        CHECK(errno == EOPNOTSUPP); /* TCP has it since Linux 6.9 */
        return false;
    }
    return true;
}

static size_t controls(int fd, void *into, size_t length)
{
    char space[256];
    struct iovec some = {into, length};
    struct msghdr message = {.msg_iov = &some, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    CHECK(recvmsg(fd, &message, MSG_WAITALL) == (ssize_t)length);
    return message.msg_controllen;
}

static void read_by_itself(int fd, char *into, size_t length)
{
    for (size_t done = 0; done < length;) {
        struct aiocb request = {.aio_fildes = fd, .aio_buf = into + done, .aio_nbytes = length - done, .aio_lio_opcode = LIO_READ};
        const struct aiocb *all[] = {&request};
        struct aiocb *list[] = {&request};
        struct timespec limit = {20, 0};
        CHECK(is("aio") ? aio_read(&request) == 0 : lio_listio(LIO_NOWAIT, list, 1, NULL) == 0);
        CHECK(aio_suspend(all, 1, &limit) == 0 && aio_error(&request) == 0);
        ssize_t n = aio_return(&request);
        CHECK(n > 0);
        done += (size_t)n;
    }
}

/* Zero-copy receives need whole pages that have arrived: here there are none. */
static void asks_for_pages(int fd)
{
    char space[64] = {0};
    socklen_t length = sizeof space;
    (void)getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, space, &length); /* an error is acceptable */
}

static void accepted(int fd)
{
    char got[64] = {0}, go = 'g';
    bool able = true;
    if (before) able = ask(fd);
    exchange(fd, 0, 300);
    if (!before) able = ask(fd);
    send_all(fd, &go, 1);
    for (int round = 0; round < 20; round++) {
        if (is("aio") || is("listio")) {
            read_by_itself(fd, got, 10);
        } else if (is("zerocopy")) {
            asks_for_pages(fd);
            receive_all(fd, got, 10);
        } else if (is("peekoff")) {
            char first[5] = {0}, second[5] = {0};
            int left;
            do
                CHECK(ioctl(fd, FIONREAD, &left) == 0);
            while (left < 10);
            CHECK(recv(fd, first, 4, MSG_PEEK) == 4 && recv(fd, second, 4, MSG_PEEK) == 4);
            CHECK(strcmp(first, "0123") == 0 && strcmp(second, able ? "4567" : "0123") == 0);
            receive_all(fd, got, 10);
            int none = 0;
            if (able) CHECK(setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &none, sizeof none) == 0);
        } else {
            size_t told = controls(fd, got, 10);
            /* The system begins to take time stamps a moment after the first socket requests them. */
            if (round > 10) CHECK(told > 0);
        }
        CHECK(memcmp(got, "0123456789", 10) == 0);
        nap_ms(round < 5 ? 5 : 0);
        send_all(fd, &go, 1);
    }
    exchange(fd, 0, 100);
}

static void connected(int fd)
{
    char go;
    exchange(fd, 1, 300);
    receive_all(fd, &go, 1);
    for (int round = 0; round < 20; round++) {
        send_all(fd, "0123456789", 10);
        receive_all(fd, &go, 1);
    }
    exchange(fd, 1, 100);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    what = argv[1];
    before = strcmp(argv[2], "before") == 0;
    two_processes("4", accepted, connected);
    puts("as the kernel tells it");
}
