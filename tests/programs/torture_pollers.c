/* Threads that wait on streams beside descriptors of other kinds, by every waiting call, in random order. Usage: torture_pollers SEED
 * SECONDS [SEEDS]
 * One schedule for each seed, SEED, SEED + 1 ..., until the time is over, at most SEEDS.
 *
 * A poller has some streams, a cancel pipe, a timerfd and an eventfd of its own. Before each call it asks the kernel by a raw system call
 * which of the latter are ready, and FIONREAD which streams have bytes. What was ready before the call must be in its answer; an
 * edge-triggered set may leave out what it has reported and what was not drained since; epoll may leave it out of eight consecutive answers
 * (docs/sockets.md). So no descriptor is starved. Every byte is compared at its place.
 *
 * TORTURE_HANG seconds (10) without progress are a failure. TORTURE_WITHOUT=i permits 1000 consecutive calls that do not report a ready
 * descriptor. TORTURE_VERBOSE=1 prints each seed. */
#include "check.h"
#include "raw.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>

enum { POLLERS = 2, STREAMS = 3, PIPE = STREAMS, TIMER, EVENT, ALL, LARGEST = 1 << 16 };
enum way { BY_POLL, BY_PPOLL, BY_SELECT, BY_PSELECT, BY_LEVEL, BY_EDGE, WAYS };
static const char *const names[] = {"poll", "ppoll", "select", "pselect", "epoll, level", "epoll, edge"};

struct stream {
    uint64_t quota, number;
    _Atomic uint64_t sent, received, echoed;
};

struct shared {
    uint64_t seed;
    struct stream streams[POLLERS][STREAMS];
    _Atomic uint64_t tokens[POLLERS][2]; /* written into the pipe, taken out of it */
    _Atomic uint64_t calls[WAYS], found[WAYS];
    _Atomic int finished[POLLERS], failed;
};

static struct shared *shared;
enum { LATE_IN_SETS = 8 };
static int late; /* this many consecutive calls may leave out a ready descriptor of any kind */

struct poller {
    int number, fds[ALL], token_end, level, edge;
    uint64_t state;
    bool told[ALL];   /* reported by the edge-triggered set, and not drained since */
    bool ended[STREAMS];
    int missed[ALL];  /* consecutive calls */
    uint64_t pending[STREAMS]; /* to be echoed: of what was received */
};

static void wrong(const struct poller *p, const char *what, long long a, long long b)
{
    fprintf(stderr, "seed %llu: poller %d: %s (%lld, %lld, errno %s)\n", (unsigned long long)shared->seed, p ? p->number : -1, what, a, b, strerror(errno));
    shared->failed = 1;
    _exit(1);
}

static unsigned char byte_at(uint64_t number, uint64_t offset)
{
    uint64_t x = (number + offset / 8 + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
    return (unsigned char)((x ^ (x >> 32)) >> (offset % 8 * 8));
}

static void make(unsigned char *data, uint64_t number, uint64_t offset, size_t length)
{
    for (size_t i = 0; i < length; i++) data[i] = byte_at(number, offset + i);
}

static void verify(const struct poller *p, const unsigned char *data, uint64_t number, uint64_t offset, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (data[i] != byte_at(number, offset + i)) wrong(p, "a wrong byte", (long long)(offset + i), (long long)i);
}

static bool transient(ssize_t n) { return n < 0 && (errno == EAGAIN || errno == EINTR); }

/* ---- the pollers ---- */

static void arm(struct poller *p)
{
    struct itimerspec in = {.it_value = {0, 1000 + next_random(&p->state) % 3000000}};
    if (timerfd_settime(p->fds[TIMER], 0, &in, NULL) != 0) wrong(p, "timerfd_settime", 0, 0);
}

/* Takes what a descriptor has; for an edge-triggered set all of it. */
static void serve(struct poller *p, int at, bool all)
{
    static _Thread_local unsigned char data[LARGEST];
    uint64_t value;
    if (at < STREAMS) {
        struct stream *s = &shared->streams[p->number][at];
        for (;;) {
            size_t length = 1 + next_random(&p->state) % (1u << (1 + next_random(&p->state) % 16));
            ssize_t n = recv(p->fds[at], data, length, MSG_DONTWAIT);
            if (n < 0 && !transient(n)) wrong(p, "a receive", n, at);
            if (n < 0) p->told[at] = false;
            if (n == 0 && s->received != s->quota) wrong(p, "an early end of file", (long long)s->received, (long long)s->quota);
            if (n == 0) p->ended[at] = true;
            if (n <= 0) return;
            verify(p, data, s->number, s->received, (size_t)n);
            s->received += (uint64_t)n;
            if (!all && next_random(&p->state) % 2) return;
        }
    }
    if (at == PIPE) {
        for (;;) {
            ssize_t n = read(p->fds[PIPE], data, 1 + next_random(&p->state) % 4);
            if (n < 0) p->told[PIPE] = false;
            if (n <= 0) return;
            shared->tokens[p->number][1] += (uint64_t)n;
            if (!all) return;
        }
    }
    if (at == TIMER) {
        if (read(p->fds[TIMER], &value, sizeof value) == sizeof value) arm(p);
        p->told[TIMER] = false;
    }
    if (at == EVENT) {
        while (read(p->fds[EVENT], &value, sizeof value) == sizeof value) {}
        p->told[EVENT] = false;
    }
}

/* Sends back as many bytes as arrived, now and then. */
static void echo(struct poller *p, int at)
{
    static _Thread_local unsigned char data[LARGEST];
    struct stream *s = &shared->streams[p->number][at];
    if (s->echoed >= s->received) return;
    size_t length = 1 + next_random(&p->state) % LARGEST;
    if (length > s->received - s->echoed) length = (size_t)(s->received - s->echoed);
    make(data, s->number + 1, s->echoed, length);
    ssize_t n = send(p->fds[at], data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && !transient(n)) wrong(p, "a send", n, at);
    if (n > 0) s->echoed += (uint64_t)n;
    if (s->echoed == s->quota && shutdown(p->fds[at], SHUT_WR) != 0) wrong(p, "shutdown", at, 0);
}

/* Finds out what is ready without calling a library; a stream is ready when a receive would find bytes. */
static void look(const struct poller *p, bool ready[ALL])
{
    for (int at = 0; at < ALL; at++) {
        int there = 0;
        struct pollfd one = {p->fds[at], POLLIN, 0};
        struct timespec none = {0, 0};
        ready[at] = false;
        if (at < STREAMS && !p->ended[at]) ready[at] = ioctl(p->fds[at], FIONREAD, &there) == 0 && there > 0;
        if (at >= STREAMS) ready[at] = raw(SYS_ppoll, (long)&one, 1, (long)&none, 0, 0) == 1;
    }
}

static int wait_some(struct poller *p, enum way way, bool answer[ALL], const bool wanted[ALL], bool writes[STREAMS])
{
    int timeout = next_random(&p->state) % 3 ? (int)(next_random(&p->state) % 5) : 0, n = 0;
    struct timespec time = {0, timeout * 1000000l};
    memset(answer, 0, ALL * sizeof *answer);
    if (way == BY_POLL || way == BY_PPOLL) {
        struct pollfd polled[ALL];
        for (int at = 0; at < ALL; at++) polled[at] = (struct pollfd){wanted[at] ? p->fds[at] : -1, (short)(POLLIN | (at < STREAMS && writes[at] ? POLLOUT : 0)), 0};
        n = way == BY_POLL ? poll(polled, ALL, timeout) : ppoll(polled, ALL, &time, NULL);
        for (int at = 0; at < ALL && n > 0; at++) answer[at] = polled[at].revents & (POLLIN | POLLHUP | POLLERR);
        return n;
    }
    if (way == BY_SELECT || way == BY_PSELECT) {
        fd_set in, out;
        int top = 0;
        FD_ZERO(&in);
        FD_ZERO(&out);
        for (int at = 0; at < ALL; at++) {
            if (!wanted[at]) continue;
            FD_SET(p->fds[at], &in);
            if (at < STREAMS && writes[at]) FD_SET(p->fds[at], &out);
            if (p->fds[at] > top) top = p->fds[at];
        }
        struct timeval limit = {0, timeout * 1000};
        n = way == BY_SELECT ? select(top + 1, &in, &out, NULL, &limit) : pselect(top + 1, &in, &out, NULL, &time, NULL);
        for (int at = 0; at < ALL && n > 0; at++) answer[at] = wanted[at] && FD_ISSET(p->fds[at], &in);
        return n;
    }
    struct epoll_event events[ALL * 2];
    n = epoll_wait(way == BY_LEVEL ? p->level : p->edge, events, ALL * 2, timeout);
    for (int i = 0; i < n; i++) {
        answer[events[i].data.u32] |= (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0;
        if (way == BY_EDGE) p->told[events[i].data.u32] |= answer[events[i].data.u32];
    }
    return n;
}

static void *poll_on(void *pointer)
{
    struct poller *p = pointer;
    arm(p);
    for (unsigned round = 0;; round++) {
        bool ready[ALL], answer[ALL], wanted[ALL], writes[STREAMS], done = true;
        for (int at = 0; at < STREAMS; at++) done &= p->ended[at] && shared->streams[p->number][at].echoed == shared->streams[p->number][at].quota;
        if (done || shared->failed) break;
        enum way way = (enum way)(next_random(&p->state) % WAYS);
        for (int at = 0; at < ALL; at++) wanted[at] = (at >= STREAMS || !p->ended[at]);
        for (int at = 0; at < STREAMS; at++) writes[at] = next_random(&p->state) % 4 == 0;
        look(p, ready);
        bool told[ALL];
        memcpy(told, p->told, sizeof told);
        int n = wait_some(p, way, answer, wanted, writes);
        if (n < 0 && errno != EINTR) wrong(p, names[way], n, 0);
        if (n < 0) continue;
        shared->calls[way]++;
        for (int at = 0; at < ALL; at++) {
            shared->found[way] += answer[at];
            if (!ready[at] || answer[at] || !wanted[at] || (way == BY_EDGE && told[at])) p->missed[at] = 0;
            else p->missed[at]++;
            if (p->missed[at] <= (late == 0 && (way == BY_LEVEL || way == BY_EDGE) ? LATE_IN_SETS : late)) continue;
            const char *const kinds[] = {"a stream", "the pipe", "the timer", "the event"};
            char words[80];
            snprintf(words, sizeof words, "%s was ready and %s does not say so", kinds[at < STREAMS ? 0 : at - STREAMS + 1], names[way]);
            wrong(p, words, at, n);
        }
        for (int at = 0; at < ALL; at++)
            if (answer[at] && (way == BY_EDGE || next_random(&p->state) % 4)) serve(p, at, way == BY_EDGE || p->told[at]);
        for (int at = 0; at < STREAMS; at++)
            if (next_random(&p->state) % 2) echo(p, at);
    }
    shared->finished[p->number] = 1;
    return NULL;
}

/* Tokens and events at any time, from another thread. */
static void *tick(void *pointer)
{
    struct poller *p = pointer;
    uint64_t state = p->state * 31 + 7, one = 1;
    while (!shared->finished[p->number] && !shared->failed) {
        struct timespec nap = {0, next_random(&state) % 2000000};
        nanosleep(&nap, NULL);
        if (next_random(&state) % 2 && write(p->token_end, "", 1) == 1) shared->tokens[p->number][0]++;
        if (next_random(&state) % 2 && write(p->fds[EVENT], &one, sizeof one) != sizeof one && errno != EAGAIN) wrong(p, "an eventfd", 0, 0);
    }
    return NULL;
}

static void side_of_pollers(const int listeners[POLLERS])
{
    static struct poller pollers[POLLERS];
    pthread_t threads[POLLERS], tickers[POLLERS];
    for (int i = 0; i < POLLERS; i++) {
        struct poller *p = &pollers[i];
        int ends[2];
        p->number = i, p->state = shared->seed * 7919 + (uint64_t)i;
        for (int at = 0; at < STREAMS; at++) CHECK((p->fds[at] = accept(listeners[i], NULL, NULL)) >= 0);
        CHECK(pipe2(ends, O_NONBLOCK) == 0);
        p->fds[PIPE] = ends[0], p->token_end = ends[1];
        CHECK((p->fds[TIMER] = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)) >= 0 && (p->fds[EVENT] = eventfd(0, EFD_NONBLOCK)) >= 0);
        CHECK((p->level = epoll_create1(0)) >= 0 && (p->edge = epoll_create1(0)) >= 0);
        for (uint32_t at = 0; at < ALL; at++) {
            struct epoll_event event = {EPOLLIN | EPOLLRDHUP, {.u32 = at}};
            CHECK(epoll_ctl(p->level, EPOLL_CTL_ADD, p->fds[at], &event) == 0);
            event.events |= EPOLLET | (at < STREAMS && next_random(&p->state) % 2 ? EPOLLOUT : 0);
            CHECK(epoll_ctl(p->edge, EPOLL_CTL_ADD, p->fds[at], &event) == 0);
        }
    }
    for (int i = 0; i < POLLERS; i++) {
        CHECK(pthread_create(&threads[i], NULL, poll_on, &pollers[i]) == 0);
        CHECK(pthread_create(&tickers[i], NULL, tick, &pollers[i]) == 0);
    }
    for (int i = 0; i < POLLERS; i++) pthread_join(threads[i], NULL), pthread_join(tickers[i], NULL);
    exit(0);
}

/* ---- the senders ---- */

struct sender {
    struct stream *stream;
    int fd;
    uint64_t state;
};

static void *send_on(void *pointer)
{
    static _Thread_local unsigned char data[LARGEST];
    struct sender *x = pointer;
    struct stream *s = x->stream;
    uint64_t heard = 0;
    for (bool ended = false;;) {
        if (s->sent == s->quota && !ended) {
            if (shutdown(x->fd, SHUT_WR) != 0) wrong(NULL, "shutdown", 0, 0);
            ended = true;
        }
        size_t length = 1 + next_random(&x->state) % (1u << (1 + next_random(&x->state) % 16));
        uint32_t what = next_random(&x->state) % 100;
        if (what < 55 && !ended && s->sent - heard < 1 << 18) {
            if (length > s->quota - s->sent) length = (size_t)(s->quota - s->sent);
            make(data, s->number, s->sent, length);
            ssize_t n = send(x->fd, data, length, MSG_NOSIGNAL | (next_random(&x->state) % 2 ? MSG_DONTWAIT : 0));
            if (n < 0 && !transient(n)) wrong(NULL, "the sender's send", n, 0);
            if (n > 0) s->sent += (uint64_t)n;
        } else if (what < 97) {
            ssize_t n = recv(x->fd, data, length, ended || s->sent - heard >= 1 << 18 ? 0 : MSG_DONTWAIT);
            if (n < 0 && !transient(n)) wrong(NULL, "the sender's receive", n, 0);
            if (n > 0) verify(NULL, data, s->number + 1, heard, (size_t)n), heard += (uint64_t)n;
            if (n == 0 && heard != s->quota) wrong(NULL, "the sender met an early end of file", (long long)heard, (long long)s->quota);
            if (n == 0) return NULL;
        } else {
            struct timespec nap = {0, next_random(&x->state) % 1000000};
            nanosleep(&nap, NULL);
        }
    }
}

static void side_of_senders(const int ports[POLLERS])
{
    static struct sender senders[POLLERS][STREAMS];
    pthread_t threads[POLLERS][STREAMS];
    for (int i = 0; i < POLLERS; i++)
        for (int at = 0; at < STREAMS; at++)
            senders[i][at] = (struct sender){&shared->streams[i][at], connect_to("4", ports[i]), shared->seed * 104729 + (uint64_t)(i * STREAMS + at)};
    for (int i = 0; i < POLLERS; i++)
        for (int at = 0; at < STREAMS; at++) CHECK(pthread_create(&threads[i][at], NULL, send_on, &senders[i][at]) == 0);
    for (int i = 0; i < POLLERS; i++)
        for (int at = 0; at < STREAMS; at++) pthread_join(threads[i][at], NULL);
    exit(0);
}

/* ---- the supervisor ---- */

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

static uint64_t moved(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < POLLERS; i++)
        for (int at = 0; at < STREAMS; at++) sum += shared->streams[i][at].sent + shared->streams[i][at].received + shared->streams[i][at].echoed;
    return sum;
}

static void one(uint64_t seed, uint64_t hang)
{
    memset(shared, 0, sizeof *shared);
    shared->seed = seed;
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    int ports[POLLERS], listeners[POLLERS], status = 0;
    for (int i = 0; i < POLLERS; i++) {
        ports[i] = 0, listeners[i] = listen_on("4", &ports[i]);
        for (int at = 0; at < STREAMS; at++) {
            next_random(&state);
            shared->streams[i][at].quota = (1u << (10 + next_random(&state) % 12)) + next_random(&state) % 1000;
        }
    }
    /* Connections are accepted in the order in which they are made. */
    for (int i = 0; i < POLLERS; i++)
        for (int at = 0; at < STREAMS; at++) shared->streams[i][at].number = seed * 1000003 + (uint64_t)(i * STREAMS + at) * 0x100000000ull;
    fflush(NULL);
    for (int side = 0; side < 2; side++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) (void)(side ? side_of_senders(ports) : side_of_pollers(listeners));
    }
    for (int i = 0; i < POLLERS; i++) close(listeners[i]);
    uint64_t last = 0, since = now_ms();
    for (int left = 2; left > 0;) {
        pid_t ended = waitpid(-1, &status, WNOHANG);
        left -= ended > 0;
        if (moved() != last) last = moved(), since = now_ms();
        bool hangs = now_ms() - since > hang;
        if ((ended > 0 && status != 0) || shared->failed || hangs) {
            fprintf(stderr, "seed %llu failed (status %#x)%s\n", (unsigned long long)seed, status, hangs ? ": nothing moves" : "");
            for (int i = 0; i < POLLERS; i++)
                for (int at = 0; at < STREAMS; at++) {
                    struct stream *s = &shared->streams[i][at];
                    fprintf(stderr, "  poller %d, stream %d: sent %llu, received %llu, echoed %llu of %llu\n", i, at, (unsigned long long)s->sent,
                            (unsigned long long)s->received, (unsigned long long)s->echoed, (unsigned long long)s->quota);
                }
            if (!getenv("TORTURE_KEEP")) kill(0, SIGKILL);
            for (;;) pause();
        }
        nap_ms(2);
    }
    for (int i = 0; i < POLLERS; i++)
        for (int at = 0; at < STREAMS; at++) CHECK(shared->streams[i][at].received == shared->streams[i][at].quota);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3);
    if (getenv("TORTURE_WITHOUT") && strchr(getenv("TORTURE_WITHOUT"), 'i')) late = 1000;
    uint64_t seed = strtoull(argv[1], NULL, 0), first = seed, end = now_ms() + strtoull(argv[2], NULL, 0) * 1000;
    uint64_t most = argc > 3 ? strtoull(argv[3], NULL, 0) : UINT64_MAX;
    uint64_t hang = getenv("TORTURE_HANG") ? strtoull(getenv("TORTURE_HANG"), NULL, 0) * 1000 : 10000;
    CHECK(setpgid(0, 0) == 0 || getpgrp() == getpid());
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    do {
        uint64_t begun = now_ms();
        one(seed, hang);
        if (getenv("TORTURE_VERBOSE")) {
            fprintf(stderr, "seed %llu: %llu ms", (unsigned long long)seed, (unsigned long long)(now_ms() - begun));
            for (int way = 0; way < WAYS; way++) fprintf(stderr, ", %s %llu: %llu", names[way], (unsigned long long)shared->calls[way], (unsigned long long)shared->found[way]);
            fprintf(stderr, "\n");
        }
        seed++;
    } while (now_ms() < end && seed - first < most);
    if (getenv("TORTURE_VERBOSE")) fprintf(stderr, "%llu seeds\n", (unsigned long long)(seed - first));
    printf("pollers from seed %llu on: nothing starved, every byte in its place\n", (unsigned long long)first);
}
