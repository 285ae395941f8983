/* A reader that changes from receives to waits by io_uring, and a writer that computes after it has sent: the kernel alone tells the reader.
 * Usage: uring_waits WAY
 *   poll             waits by it only, the others send and receive
 *   set-poll         waits for the epoll set that has the connection
 *   receive, fixed   with a registered file; before-fixed: registered before it is connected; large: with entries of 128 bytes
 *   passes           receives as `receive`, after the connection was passed on
 *   enter            fills the queue itself, and calls liburing's form of io_uring_enter()
 *   syscall-poll, syscall-receive    by syscall()
 * The others submit by liburing. Exits with 77 where the kernel offers no io_uring.
 * Links with -luring. */
#include "check.h"
#include "uring.h"
#include <liburing.h>

enum { ROUNDS = 100, LENGTH = 100, FIRST_PART = 10, LIMIT_S = 20 };

static const char *way;
static _Atomic int *answered; /* rounds whose answer the reader has, and the port of a listener */
static struct io_uring queue;
static int set = -1;

static bool is(const char *what) { return strstr(way, what) != NULL; }

static bool by_library(void) { return !is("syscall"); }

static long by_syscall(long number, long a, long b, long c, long d, long e) { return syscall(number, a, b, c, d, e, 0); }

static void set_up(int fd)
{
    ring_call = by_syscall;
    if (!by_library()) {
        ring_set_up();
        return;
    }
    if (io_uring_queue_init(4, &queue, is("large") ? IORING_SETUP_SQE128 : 0) != 0) exit(77);
    if (is("fixed")) CHECK(io_uring_register_files(&queue, &fd, 1) == 0);
    struct epoll_event event = {.events = EPOLLIN};
    if (is("set")) CHECK((set = epoll_create1(EPOLL_CLOEXEC)) >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

static int finish(int submitted)
{
    struct io_uring_cqe *found;
    CHECK(submitted == 1 && io_uring_wait_cqe(&queue, &found) == 0);
    int result = found->res;
    io_uring_cqe_seen(&queue, found);
    return result;
}

/* What io_uring_submit() does. */
static int enter(void)
{
    unsigned tail = *queue.sq.ktail, mask = *queue.sq.kring_mask;
    queue.sq.array[tail & mask] = queue.sq.sqe_head & mask;
    queue.sq.sqe_head = queue.sq.sqe_tail;
    __atomic_store_n(queue.sq.ktail, tail + 1, __ATOMIC_RELEASE);
    return io_uring_enter((unsigned)queue.ring_fd, 1, 1, IORING_ENTER_GETEVENTS, NULL);
}

/* Sends a copy of the connection to this process. */
static void pass(int fd)
{
    int ends[2];
    char room[CMSG_SPACE(sizeof fd)] = {0}, byte = 'x';
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    *control = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(control), &fd, sizeof fd);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    io_uring_prep_sendmsg(io_uring_get_sqe(&queue), ends[0], &message, 0);
    CHECK(finish(io_uring_submit(&queue)) == 1);
    close(ends[0]);
    close(ends[1]);
}

static int operate(int code, int fd, void *data, size_t length)
{
    static int times;
    if (!by_library()) return ring_operate(code, fd, data, length);
    struct io_uring_sqe *entry = io_uring_get_sqe(&queue);
    CHECK(entry);
    if (code == IORING_OP_POLL_ADD) io_uring_prep_poll_add(entry, fd, POLLIN);
    else io_uring_prep_rw(code, entry, fd, data, (unsigned)length, 0);
    if (is("fixed")) {
        entry->fd = 0;
        entry->flags |= IOSQE_FIXED_FILE;
    }
    if (is("enter")) return finish(enter());
    return finish(++times % 2 ? io_uring_submit_and_wait(&queue, 1) : io_uring_submit(&queue));
}

static void receive(int fd, char *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n;
        if (is("poll")) {
            struct epoll_event event;
            CHECK(operate(IORING_OP_POLL_ADD, set >= 0 ? set : fd, NULL, 0) & POLLIN);
            if (set >= 0 && epoll_wait(set, &event, 1, 0) == 0) continue;
            n = recv(fd, data + done, length - done, MSG_DONTWAIT);
        } else {
            n = operate(IORING_OP_RECV, fd, data + done, length - done);
        }
        CHECK(n > 0);
        done += (size_t)n;
    }
}

static void write_answers(int fd)
{
    char asked, answer[LENGTH];
    if (is("before")) {
        int port = 0, listener = listen_on("4", &port);
        atomic_store(&answered[1], port);
        CHECK((fd = accept(listener, NULL, NULL)) >= 0);
    }
    for (int i = 0; i < 5; i++) exchange_until_settled(fd, 0);
    for (int round = 1; round <= ROUNDS; round++) {
        receive_all(fd, &asked, 1);
        memset(answer, round, sizeof answer);
        send_all(fd, answer, sizeof answer);
        while (atomic_load(answered) < round) {} /* computes, without a system call */
    }
    receive_all(fd, &asked, 1);
}

static void read_answers(int fd)
{
    char answer[LENGTH];
    if (is("before")) {
        struct sockaddr_storage address;
        int port;
        while ((port = atomic_load(&answered[1])) == 0) nap_ms(1);
        CHECK((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
        set_up(fd);
        socklen_t length = loopback("4", port, &address);
        CHECK(connect(fd, (struct sockaddr *)&address, length) == 0);
    }
    for (int i = 0; i < 5; i++) exchange_until_settled(fd, 1);
    if (!is("before")) set_up(fd);
    if (is("large")) CHECK(operate(IORING_OP_NOP, 0, NULL, 0) == 0); /* the next entry is not the first */
    if (is("passes")) pass(fd);
    for (int round = 1; round <= ROUNDS; round++) {
        if (is("poll")) send_all(fd, "?", 1);
        else CHECK(operate(IORING_OP_SEND, fd, "?", 1) == 1);
        receive(fd, answer, FIRST_PART);
        receive(fd, answer + FIRST_PART, LENGTH - FIRST_PART);
        for (int i = 0; i < LENGTH; i++) CHECK(answer[i] == round);
        atomic_store(answered, round);
    }
    send_all(fd, "?", 1);
    printf("%d rounds\n", ROUNDS);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    way = argv[1];
    answered = mmap(NULL, 2 * sizeof *answered, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(answered != MAP_FAILED);
    setvbuf(stdout, NULL, _IOLBF, 4096);
    alarm(LIMIT_S);
    two_processes("4", write_answers, read_answers);
}
