/* uring.h: an io_uring of few entries with one operation at a time, for test programs. `ring_call` makes its system calls. */
#ifndef URING_H
#define URING_H

#include "check.h"
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

typedef long ring_calling(long number, long a, long b, long c, long d, long e);
static ring_calling *ring_call;

static struct {
    int fd;
    _Atomic unsigned *submit_tail, *complete_head, *complete_tail;
    unsigned submit_mask, complete_mask, *array;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *results;
} ring;

/* Exits with 77 where the kernel offers no io_uring. */
static void ring_set_up(void)
{
    struct io_uring_params at = {0};
    ring.fd = (int)ring_call(SYS_io_uring_setup, 4, (long)&at, 0, 0, 0);
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

/* Makes an operation (a poll: for input), and returns its result. */
static int ring_operate(int code, int fd, void *data, size_t length)
{
    unsigned tail = atomic_load(ring.submit_tail), index = tail & ring.submit_mask;
    ring.entries[index] = (struct io_uring_sqe){.opcode = (uint8_t)code, .fd = fd, .addr = (uintptr_t)data, .len = (uint32_t)length};
    if (code == IORING_OP_POLL_ADD) ring.entries[index].poll32_events = POLLIN;
    ring.array[index] = index;
    atomic_store(ring.submit_tail, tail + 1);
    unsigned head = atomic_load(ring.complete_head);
    CHECK(ring_call(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, 0) == 1);
    CHECK(atomic_load(ring.complete_tail) == head + 1);
    int result = ring.results[head & ring.complete_mask].res;
    atomic_store(ring.complete_head, head + 1);
    return result;
}

#endif
