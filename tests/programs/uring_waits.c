/* A reader that changes from receives to waits by io_uring, and a writer that computes after it has sent: the kernel alone tells the reader.
 * Usage: uring_waits poll|receive|fixed|syscall-poll|syscall-receive (the poll only waits by it, the others send and receive)
 * The first three submit by liburing (`fixed`: with a registered file), the others by syscall(). Exits with 77 where the kernel offers no io_uring.
 * Links with -luring. */
#include "check.h"
#include "uring.h"
#include <liburing.h>

enum { ROUNDS = 100, LENGTH = 100, FIRST_PART = 10, LIMIT_S = 20 };

static const char *way;
static _Atomic int *answered; /* rounds whose answer the reader has */
static struct io_uring queue;

static bool by_library(void) { return strncmp(way, "syscall", 7) != 0; }

static long by_syscall(long number, long a, long b, long c, long d, long e) { return syscall(number, a, b, c, d, e, 0); }

static void set_up(int fd)
{
    ring_call = by_syscall;
    if (!by_library()) {
        ring_set_up();
        return;
    }
    if (io_uring_queue_init(4, &queue, 0) != 0) exit(77);
    if (strcmp(way, "fixed") == 0) CHECK(io_uring_register_files(&queue, &fd, 1) == 0);
}

static int operate(int code, int fd, void *data, size_t length)
{
    static int times;
    if (!by_library()) return ring_operate(code, fd, data, length);
    struct io_uring_sqe *entry = io_uring_get_sqe(&queue);
    struct io_uring_cqe *found;
    CHECK(entry);
    if (code == IORING_OP_POLL_ADD) io_uring_prep_poll_add(entry, fd, POLLIN);
    else io_uring_prep_rw(code, entry, fd, data, (unsigned)length, 0);
    if (strcmp(way, "fixed") == 0) {
        entry->fd = 0;
        entry->flags |= IOSQE_FIXED_FILE;
    }
    CHECK((++times % 2 ? io_uring_submit_and_wait(&queue, 1) : io_uring_submit(&queue)) == 1);
    CHECK(io_uring_wait_cqe(&queue, &found) == 0);
    int result = found->res;
    io_uring_cqe_seen(&queue, found);
    return result;
}

static void receive(int fd, char *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n;
        if (strstr(way, "poll")) {
            CHECK(operate(IORING_OP_POLL_ADD, fd, NULL, 0) & POLLIN);
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
    for (int i = 0; i < 5; i++) exchange_until_settled(fd, 1);
    set_up(fd);
    for (int round = 1; round <= ROUNDS; round++) {
        if (strstr(way, "poll")) send_all(fd, "?", 1);
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
    answered = mmap(NULL, sizeof *answered, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(answered != MAP_FAILED);
    setvbuf(stdout, NULL, _IOLBF, 4096);
    alarm(LIMIT_S);
    two_processes("4", write_answers, read_answers);
}
