/* A process confines itself over bytes that it has not received. It receives them and what follows afterwards, by the one call that its filter
 * allows, or by what a wait reports. The peer makes no call meanwhile. Prints a digest of everything received.
 * Usage: confined_unread HOW [child]
 *   HOW    read recv recvmsg whole peek discard poll select epoll edge once
 *   child  in a child that is forked before by the process that has talked */
#include "check.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define BEFORE 20000
#define AFTER 50000
#define CONNECTIONS 8

static const char *how;
static bool by_child;
static _Atomic int *turn; /* shared: 1 the bytes have arrived, 2 the process is confined */
static unsigned char data[BEFORE + AFTER], got[BEFORE + AFTER];

static bool is(const char *name) { return strcmp(how, name) == 0; }

static void confine(void)
{
    static const int allowed[] = {SYS_recvfrom, SYS_write, SYS_exit_group, SYS_read, SYS_recvmsg, SYS_poll, SYS_select, SYS_pselect6, SYS_epoll_wait, SYS_epoll_ctl};
    enum { COUNT = sizeof allowed / sizeof *allowed };
    struct sock_filter filter[COUNT + 3];
    /* The calls that this way of receiving needs, and no other. */
    unsigned first = is("read") ? 3 : is("recvmsg") ? 4 : is("poll") ? 5 : is("select") ? 6 : is("epoll") || is("edge") ? 8 : is("once") ? 8 : 0;
    unsigned last = is("select") || is("once") ? first + 1 : first;
    filter[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < COUNT; i++) {
        unsigned number = i < 3 || (i >= first && i <= last) ? (unsigned)allowed[i] : (unsigned)allowed[0];
        filter[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, (unsigned char)(COUNT - i), 0);
    }
    filter[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {COUNT + 3, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void await(int value)
{
    while (atomic_load(turn) < value) {}
}

static void send_pieces(int fd, const unsigned char *from, size_t length)
{
    for (size_t at = 0; at < length; at += 500) send_all(fd, from + at, length - at < 500 ? length - at : 500);
}

static void accepted(int fd)
{
    exchange(fd, 0, 300);
    send_pieces(fd, data, BEFORE);
    atomic_store(turn, 1);
    await(2);
    send_pieces(fd, data + BEFORE, AFTER);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    char end;
    CHECK(recv(fd, &end, 1, 0) <= 0);
    close(fd);
}

static int set = -1;

static void await_event(int fd);

/* Waits until there is something to receive, in the kernel or in the ring. */
static void await_bytes(int fd)
{
    struct pollfd polled = {fd, POLLIN, 0};
    struct timeval later = {20, 0};
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    if (is("poll")) CHECK(poll(&polled, 1, 20000) == 1 && (polled.revents & POLLIN));
    if (is("select")) CHECK(select(fd + 1, &readable, NULL, NULL, &later) == 1 && FD_ISSET(fd, &readable));
    if (set >= 0 && !is("edge")) await_event(fd);
}

static void await_event(int fd)
{
    struct epoll_event event;
    CHECK(epoll_wait(set, &event, 1, 20000) == 1 && event.data.fd == fd && (event.events & EPOLLIN));
    event.events = EPOLLIN | EPOLLONESHOT;
    if (is("once")) CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
}

static ssize_t receive(int fd, void *into, size_t room)
{
    struct iovec some[2] = {{into, room / 3}, {(char *)into + room / 3, room - room / 3}};
    struct msghdr message = {.msg_iov = some, .msg_iovlen = 2};
    if (is("read")) return read(fd, into, room);
    if (is("recvmsg")) return recvmsg(fd, &message, 0);
    if (is("whole")) return recv(fd, into, room, MSG_WAITALL);
    if (is("peek")) {
        ssize_t seen = recv(fd, into, room, MSG_PEEK);
        if (seen <= 0) return seen;
        uint64_t shown = hash_more(0, into, (size_t)seen);
        CHECK(recv(fd, into, (size_t)seen, MSG_WAITALL) == seen && hash_more(0, into, (size_t)seen) == shown);
        return seen;
    }
    if (is("edge")) { /* waits only after everything was read */
        ssize_t n;
        while ((n = recv(fd, into, room, MSG_DONTWAIT)) < 0) {
            CHECK(errno == EAGAIN);
            await_event(fd);
        }
        return n;
    }
    return recv(fd, into, room, 0);
}

static void talk(int fd)
{
    static char line[100];
    await(1);
    confine();
    atomic_store(turn, 2);
    size_t done = 0, discarded = 0;
    for (ssize_t n = 1; n != 0;) {
        size_t room = sizeof got - done < 7000 ? sizeof got - done : 7000;
        await_bytes(fd);
        n = is("discard") && discarded == 0 ? recv(fd, NULL, 0, 0) : room > 0 ? receive(fd, got + done, room) : receive(fd, line, 1);
        if (is("discard") && discarded == 0) {
            CHECK(n == 0);
            n = recv(fd, NULL, 1000, MSG_TRUNC);
            CHECK(n > 0 && n <= 1000);
            memcpy(got, data, (size_t)n); /* discarded bytes: counted as correct */
            discarded = (size_t)n;
        }
        CHECK(n >= 0);
        if (room > 0) done += (size_t)n;
    }
    CHECK(done == sizeof got && memcmp(got, data, sizeof got) == 0);
    int length = snprintf(line, sizeof line, "%zu bytes, %016llx\n", done, (unsigned long long)hash_more(0, got, done));
    CHECK(write(1, line, (size_t)length) == length);
    _exit(0);
}

static void connected(int fd)
{
    struct epoll_event event = {.events = EPOLLIN | (is("edge") ? EPOLLET : is("once") ? EPOLLONESHOT : 0), .data.fd = fd};
    if (is("epoll") || is("edge") || is("once")) CHECK((set = epoll_create1(0)) >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    exchange(fd, 1, 300);
    if (!by_child) talk(fd);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) talk(fd);
    wait_for(child);
    exit(0);
}

int main(int argc, char **argv)
{
    uint64_t state = 7;
    CHECK(argc > 1);
    how = argv[1];
    by_child = argc > 2;
    setvbuf(stdout, NULL, _IOLBF, 4096);
    fill(data, sizeof data, &state);
    turn = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(turn != MAP_FAILED);
    for (int i = 0; i < CONNECTIONS; i++) {
        atomic_store(turn, 0);
        two_processes("4", accepted, connected);
    }
}
