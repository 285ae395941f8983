/* torture.h: the state that all processes of a torture run share, and one step of a sender or a receiver. */
#ifndef TORTURE_H
#define TORTURE_H

#include "check.h"
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { CONNECTIONS = 6, LARGEST = 3 << 20, SIDES = 2 };

/* One end of a direction. The thread that holds the lock takes the next step. The lock works across threads and processes. */
struct half {
    pthread_mutex_t lock;
    _Atomic uint64_t done;  /* bytes sent or received */
    uint64_t quota, stream; /* bytes in all; which bytes */
    uint64_t state, hash;
    int connection, side, fd;
    bool sends, nonblocking;
    _Atomic int finished, forks;
    const char *_Atomic doing;
    _Atomic uint64_t length;
};

struct shared {
    uint64_t seed;
    struct half halves[CONNECTIONS][SIDES][2]; /* for each side: what it sends, what it receives */
    _Atomic pid_t sides[SIDES];
    _Atomic int failed, stops;
};

static struct shared *shared;
static bool strict; /* TORTURE_STRICT=1: also checks what TCP does without promising it */
static _Thread_local _Atomic int interruptions; /* a signal ends MSG_WAITALL, SA_RESTART or not, and so does a stop */

static inline void wrong(const struct half *half, const char *what, long long number)
{
    fprintf(stderr, "seed %llu: connection %d, side %d, %s at %llu: %s: %s (%lld, errno %s)\n",
            (unsigned long long)shared->seed, half->connection, half->side, half->sends ? "sender" : "receiver",
            (unsigned long long)half->done, half->doing ? half->doing : "?", what, number, strerror(errno));
    shared->failed = 1;
    _exit(1);
}

/* ---- what the bytes are ---- */

static inline uint64_t word_at(uint64_t stream, uint64_t n)
{
    uint64_t x = (stream + n) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
    return x ^ (x >> 32);
}

static inline void make(unsigned char *to, uint64_t stream, uint64_t offset, size_t length)
{
    for (size_t i = 0; i < length;) {
        uint64_t word = word_at(stream, (offset + i) / 8), skip = (offset + i) % 8;
        size_t n = length - i < 8 - skip ? length - i : 8 - skip;
        memcpy(to + i, (char *)&word + skip, n);
        i += n;
    }
}

static inline void verify(struct half *half, const unsigned char *from, size_t length)
{
    unsigned char expected[4096];
    for (size_t at = 0; at < length; at += sizeof expected) {
        size_t n = length - at < sizeof expected ? length - at : sizeof expected;
        make(expected, half->stream, half->done + at, n);
        if (memcmp(expected, from + at, n) == 0) continue;
        while (*expected == from[at] && n-- > 1) memmove(expected, expected + 1, n), at++;
        wrong(half, "a wrong byte, so far into this call", (long long)at);
    }
}

/* Not byte by byte, which would dominate the run time. */
static inline void count(struct half *half, const unsigned char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i += 61) half->hash = (half->hash ^ bytes[i]) * 0x100000001b3ull;
    half->hash ^= half->done;
    half->done += length;
}

static inline uint32_t pick(struct half *half, uint32_t n) { return next_random(&half->state) % n; }

static inline size_t some_size(struct half *half)
{
    uint32_t kind = pick(half, 32);
    size_t most = kind < 16 ? 256 : kind < 24 ? 8192 : kind < 29 ? 100000 : kind < 31 ? 600000 : LARGEST;
    return 1 + pick(half, (uint32_t)most);
}

/* ---- waiting, in every way ---- */

static inline void await(struct half *half, bool out)
{
    int fd = half->fd, n = 0, ms = 50; /* another thread may take what this one waits for */
    static const char *const names[] = {"poll", "ppoll", "select", "epoll", "epoll edge", "epoll oneshot"};
    uint32_t how = pick(half, 6);
    half->doing = names[how];
    if (how < 2) {
        struct pollfd one = {.fd = fd, .events = out ? POLLOUT : POLLIN};
        struct timespec limit = {0, ms * 1000000l};
        n = how == 0 ? poll(&one, 1, ms) : ppoll(&one, 1, &limit, NULL);
    } else if (how == 2) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        struct timeval limit = {0, ms * 1000};
        n = select(fd + 1, out ? NULL : &set, out ? &set : NULL, NULL, &limit);
    } else {
        uint32_t flags = how == 4 ? EPOLLET : how == 5 ? EPOLLONESHOT : 0;
        struct epoll_event event = {.events = (out ? EPOLLOUT : EPOLLIN) | flags}, came;
        int set = epoll_create1(EPOLL_CLOEXEC);
        if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) wrong(half, "epoll", set);
        n = epoll_wait(set, &came, 1, ms);
        close(set);
    }
    if (n < 0 && errno != EINTR) wrong(half, "a wait failed", n);
}

static inline int split(struct half *half, unsigned char *data, size_t length, struct iovec *parts)
{
    int n = 0;
    for (size_t at = 0; at < length && n < 8; n++) {
        size_t part = n == 7 ? length - at : 1 + pick(half, (uint32_t)(length - at));
        parts[n] = (struct iovec){data + at, part};
        at += part;
    }
    return n;
}

/* ---- steps ---- */

static inline bool transient(ssize_t n) { return n < 0 && (errno == EAGAIN || errno == EINTR); }

static inline void send_step(struct half *half, unsigned char *data)
{
    size_t left = half->quota - half->done, length = some_size(half);
    if (length > left) length = left;
    make(data, half->stream, half->done, length);
    half->length = length;
    bool waits = half->nonblocking || pick(half, 3) == 0;
    int flags = MSG_NOSIGNAL | (waits ? MSG_DONTWAIT : 0) | (pick(half, 8) == 0 ? MSG_MORE : 0);
    if (waits && pick(half, 2)) await(half, true);
    struct iovec parts[8];
    struct msghdr message = {.msg_iov = parts};
    ssize_t n;
    switch (pick(half, 4)) {
    case 0: half->doing = "write"; n = write(half->fd, data, length); break;
    case 1: half->doing = "writev"; n = writev(half->fd, parts, split(half, data, length, parts)); break;
    case 2:
        half->doing = "sendmsg";
        message.msg_iovlen = (size_t)split(half, data, length, parts);
        n = sendmsg(half->fd, &message, flags);
        break;
    default: half->doing = "send"; n = send(half->fd, data, length, flags); break;
    }
    if (n > 0 && (size_t)n <= length) count(half, data, (size_t)n);
    else if (!transient(n)) wrong(half, "a send failed", n);
    else if (errno == EAGAIN) await(half, true);
}

static inline void receive_step(struct half *half, unsigned char *data)
{
    size_t length = some_size(half);
    half->length = length;
    bool waits = half->nonblocking || pick(half, 2) == 0;
    int flags = waits ? MSG_DONTWAIT : 0, there = -1;
    if (waits && pick(half, 2)) await(half, false);
    if (pick(half, 8) == 0) {
        half->doing = "FIONREAD";
        if (ioctl(half->fd, FIONREAD, &there) != 0) wrong(half, "it failed", 0);
        if (there < 0) wrong(half, "a negative number", there);
        if (there > LARGEST) there = LARGEST;
        if (there > 0) length = (size_t)there, flags |= MSG_DONTWAIT;
    }
    size_t peeked = 0;
    if (pick(half, 8) == 0) {
        half->doing = "peek";
        ssize_t seen = recv(half->fd, data, length, flags | MSG_PEEK);
        if (seen < 0 && !transient(seen)) wrong(half, "it failed", seen);
        if (seen > 0) verify(half, data, peeked = (size_t)seen);
        if (seen < 0) return;
    }
    struct iovec parts[8];
    struct msghdr message = {.msg_iov = parts};
    uint32_t how = there > 0 ? 3 : pick(half, 5);
    bool all = false;
    int stops = 0;
    ssize_t n;
    switch (how) {
    case 0: half->doing = "read"; n = read(half->fd, data, length); break;
    case 1: half->doing = "readv"; n = readv(half->fd, parts, split(half, data, length, parts)); break;
    case 2:
        half->doing = "recvmsg";
        message.msg_iovlen = (size_t)split(half, data, length, parts);
        n = recvmsg(half->fd, &message, flags);
        break;
    case 3: half->doing = there > 0 ? "recv after FIONREAD" : "recv"; n = recv(half->fd, data, length, flags); break;
    default:
        half->doing = "recv all";
        all = !waits;
        interruptions = 0;
        stops = shared->stops;
        if (length > half->quota - half->done && pick(half, 4)) length = half->quota - half->done + (half->quota == half->done);
        n = recv(half->fd, data, length, flags | MSG_WAITALL);
        break;
    }
    if (n > 0) {
        if ((size_t)n > length) wrong(half, "more than asked for", n);
        verify(half, data, (size_t)n);
        if (there > 0 && n < there && strict) wrong(half, "fewer than FIONREAD said", there - n);
        if ((size_t)n < peeked && (size_t)n < length && strict) wrong(half, "fewer than were peeked", n);
        if (all && (size_t)n < length && interruptions == 0 && stops % 2 == 0 && stops == shared->stops && half->done + (uint64_t)n < half->quota)
            wrong(half, "MSG_WAITALL ended early", n);
        count(half, data, (size_t)n);
    } else if (n == 0) {
        if (half->done != half->quota) wrong(half, "an early end of file", (long long)half->quota);
        half->finished = 1;
    } else {
        if (!transient(n)) wrong(half, "a receive failed", n);
        if (errno == EAGAIN && (there > 0 || peeked > 0)) wrong(half, "nothing, after all", there);
        if (errno == EAGAIN) await(half, false);
    }
}

#endif
