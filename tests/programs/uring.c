/* A conversation that begins with libc's calls and continues through io_uring, whose system calls no library sees. Usage: uring ENDS
 * ENDS: how many ends (1 or 2) do so. Exits with 77 where the kernel offers no io_uring. */
#include "check.h"
#include "raw.h"
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { ROUNDS = 300 };

static int ends;

/* A ring of few entries; one operation at a time. */
static struct {
    int fd;
    _Atomic unsigned *submit_tail, *complete_head, *complete_tail;
    unsigned submit_mask, complete_mask, *array;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *results;
} ring;

static void set_up(void)
{
    struct io_uring_params at = {0};
    ring.fd = (int)raw(SYS_io_uring_setup, 4, (long)&at, 0, 0, 0);
    if (ring.fd < 0) exit(77);
    size_t length = at.sq_off.array + at.sq_entries * sizeof(unsigned), more = at.cq_off.cqes + at.cq_entries * sizeof(struct io_uring_cqe);
    if (more > length) length = more;
    CHECK(at.features & IORING_FEAT_SINGLE_MMAP);
    char *both = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQ_RING);
    ring.entries = mmap(NULL, at.sq_entries * sizeof *ring.entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQES);
    CHECK(both != MAP_FAILED && ring.entries != MAP_FAILED);
    ring.submit_tail = (_Atomic unsigned *)(both + at.sq_off.tail);
    ring.submit_mask = *(unsigned *)(both + at.sq_off.ring_mask);
    ring.array = (unsigned *)(both + at.sq_off.array);
    ring.complete_head = (_Atomic unsigned *)(both + at.cq_off.head);
    ring.complete_tail = (_Atomic unsigned *)(both + at.cq_off.tail);
    ring.complete_mask = *(unsigned *)(both + at.cq_off.ring_mask);
    ring.results = (struct io_uring_cqe *)(both + at.cq_off.cqes);
}

static int operate(int code, int fd, void *data, size_t length)
{
    unsigned tail = atomic_load(ring.submit_tail), index = tail & ring.submit_mask;
    ring.entries[index] = (struct io_uring_sqe){.opcode = (uint8_t)code, .fd = fd, .addr = (uintptr_t)data, .len = (uint32_t)length};
    ring.array[index] = index;
    atomic_store(ring.submit_tail, tail + 1);
    unsigned head = atomic_load(ring.complete_head);
    CHECK(raw(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, 0) == 1);
    CHECK(atomic_load(ring.complete_tail) == head + 1);
    int result = ring.results[head & ring.complete_mask].res;
    atomic_store(ring.complete_head, head + 1);
    return result;
}

static void all(int code, int fd, void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        int n = operate(code, fd, (char *)data + done, length - done);
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
    if (by_ring) set_up();
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
    ends = atoi(argv[1]);
    setvbuf(stdout, NULL, _IOLBF, 4096);
    two_processes("4", accepted, connected);
}
