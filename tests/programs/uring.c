/* A conversation that begins with libc's calls and continues through io_uring, whose system calls no library sees. Usage: uring ENDS
 * ENDS: how many ends (1 or 2) do so. Exits with 77 where the kernel offers no io_uring. */
#include "check.h"
#include "raw.h"
#include "uring.h"

enum { ROUNDS = 300 };

static int ends;

static void all(int code, int fd, void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        int n = ring_operate(code, fd, (char *)data + done, length - done);
        CHECK(n > 0);
        done += (size_t)n;
    }
}

static void converse(int fd, int first, int by_ring)
{
    static char mine[5000], theirs[5000];
    exchange_until_settled(fd, first);
    if (first) nap_ms(20); /* the moment without traffic in which the program changes to io_uring */
    uint64_t sizes = 7;
    if (by_ring) ring_set_up();
    for (int i = 0; i < ROUNDS; i++) {
        size_t length = 1 + next_random(&sizes) % (i % 10 ? 200 : sizeof mine);
        memset(mine, i, length);
        for (int turn = 0; turn < 2; turn++) {
            if (turn == !first && by_ring) all(IORING_OP_SEND, fd, mine, length);
            if (turn == !first && !by_ring) send_all(fd, mine, length);
            if (turn == first && by_ring) all(IORING_OP_RECV, fd, theirs, length);
            if (turn == first && !by_ring) receive_all(fd, theirs, length);
        }
        CHECK(memcmp(mine, theirs, length) == 0);
    }
}

static void accepted(int fd) { converse(fd, 0, ends == 2); }

static void connected(int fd)
{
    converse(fd, 1, 1);
    printf("%d rounds\n", ROUNDS);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    ring_call = raw;
    ends = atoi(argv[1]);
    setvbuf(stdout, NULL, _IOLBF, 4096);
    two_processes("4", accepted, connected);
}
