/* Every form of receiving and its flags, each step's result printed. The two ends take turns by a token on a pipe, so
 * what is in flight at each step is known. */
#include "check.h"

static int go[2], done[2];

static void tell(int pipe_end) { CHECK(write(pipe_end, "", 1) == 1); }
static void hear(int pipe_end)
{
    char byte;
    CHECK(read(pipe_end, &byte, 1) == 1);
}

static void step(const char *name, ssize_t result, const char *data, size_t length)
{
    printf("%-28s %zd", name, result);
    if (result < 0) printf(" %s", strerror(errno));
    if (data && result > 0) printf(" %016llx", (unsigned long long)hash_more(0, data, length));
    printf("\n");
}

/* Makes the peer send `length` bytes and waits for its token. */
static void ask(size_t length)
{
    CHECK(write(go[1], &length, sizeof length) == sizeof length);
    if (length) hear(done[0]);
}

static void settle(int fd, int bytes)
{
    struct pollfd in = {.fd = fd, .events = POLLIN};
    CHECK(poll(&in, 1, 5000) == 1);
    for (int i = 0, there = 0; i < 1000; i++) {
        CHECK(ioctl(fd, FIONREAD, &there) == 0);
        if (there == bytes) return;
        nap_ms(1);
    }
}

static void accepted(int fd)
{
    char data[20000], more[300];
    int there;
    exchange_until_settled(fd, 0);
    for (int round = 0; round < 3; round++) {
        step("nothing, MSG_DONTWAIT", recv(fd, data, 10, MSG_DONTWAIT), NULL, 0);
        ask(300);
        settle(fd, 300);
        CHECK(ioctl(fd, FIONREAD, &there) == 0);
        step("FIONREAD", there, NULL, 0);
        step("MSG_PEEK 100", recv(fd, data, 100, MSG_PEEK), data, 100);
        step("MSG_PEEK 100 again", recv(fd, data, 100, MSG_PEEK), data, 100);
        step("recv 100", recv(fd, data, 100, 0), data, 100);
        CHECK(ioctl(fd, FIONREAD, &there) == 0);
        step("FIONREAD", there, NULL, 0);
        struct iovec iov[4] = {{data, 10}, {NULL, 0}, {more, 0}, {data + 10, 40}};
        step("readv 10 + 0 + 0 + 40", readv(fd, iov, 4), data, 50);
        struct sockaddr_storage from;
        socklen_t from_length = sizeof from;
        step("recvfrom 50", recvfrom(fd, data, 50, 0, (struct sockaddr *)&from, &from_length), data, 50);
        step("... address length", (ssize_t)from_length, NULL, 0);
        char control[64];
        struct iovec two[2] = {{data, 20}, {more, 30}};
        struct msghdr message = {.msg_iov = two, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof control,
                                 .msg_name = &from, .msg_namelen = sizeof from, .msg_flags = 77};
        step("recvmsg 20 + 30", recvmsg(fd, &message, 0), data, 20);
        printf("... flags %d name %u control %zu\n", message.msg_flags, message.msg_namelen, message.msg_controllen);
        step("read with room to spare", read(fd, data, sizeof data), data, 50);
        step("nothing is left", recv(fd, data, 10, MSG_DONTWAIT), NULL, 0);

        ask(7000);
        step("MSG_WAITALL 7000", recv(fd, data, 7000, MSG_WAITALL), data, 7000);

        ask(200);
        settle(fd, 200);
        step("MSG_TRUNC 150, no buffer", recv(fd, NULL, 150, MSG_TRUNC | MSG_DONTWAIT), NULL, 0);
        step("the rest", recv(fd, data, 300, 0), data, 50);

        ask(256);
        settle(fd, 256);
        struct mmsghdr several[3];
        struct iovec each[3] = {{data, 100}, {data + 100, 100}, {data + 200, 100}};
        memset(several, 0, sizeof several);
        for (int i = 0; i < 3; i++) several[i].msg_hdr = (struct msghdr){.msg_iov = &each[i], .msg_iovlen = 1};
        step("recvmmsg", recvmmsg(fd, several, 3, MSG_WAITFORONE, NULL), NULL, 0);
        printf("... %u %u %u\n", several[0].msg_len, several[1].msg_len, several[2].msg_len);

        struct timeval limit = {0, 30000};
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
        step("SO_RCVTIMEO", recv(fd, data, 10, 0), NULL, 0);
        limit.tv_usec = 0;
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);

        CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
        step("O_NONBLOCK", recv(fd, data, 10, 0), NULL, 0);
        step("O_NONBLOCK, MSG_WAITALL", recv(fd, data, 10, MSG_WAITALL), NULL, 0);
        there = 0;
        CHECK(ioctl(fd, FIONBIO, &there) == 0);
        ask(10);
        step("blocking again", recv(fd, data, 10, MSG_WAITALL), data, 10);
        exchange(fd, 0, 40);
    }
    ask(0);
    close(fd);
}

static void connected(int fd)
{
    char data[20000];
    uint64_t state = 11;
    exchange_until_settled(fd, 1);
    for (;;) {
        size_t length;
        CHECK(read(go[0], &length, sizeof length) == sizeof length);
        if (length == 0) return;
        fill(data, length, &state);
        if (length == 7000) { /* in pieces, some of them late */
            for (int i = 0; i < 7; i++) {
                send_all(fd, data + i * 1000, 1000);
                if (i == 2) tell(done[1]);
                if (i > 2) nap_ms(3);
            }
        } else if (length == 256) {
            struct mmsghdr several[2];
            struct iovec each[2] = {{data, 100}, {data + 100, 156}};
            memset(several, 0, sizeof several);
            for (int i = 0; i < 2; i++) several[i].msg_hdr = (struct msghdr){.msg_iov = &each[i], .msg_iovlen = 1};
            CHECK(sendmmsg(fd, several, 2, 0) == 2);
            CHECK(several[0].msg_len == 100 && several[1].msg_len == 156);
            tell(done[1]);
        } else {
            send_all(fd, data, length);
            tell(done[1]);
        }
        if (length == 10) exchange(fd, 1, 40);
    }
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 4096);
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    two_processes("4", accepted, connected);
}
