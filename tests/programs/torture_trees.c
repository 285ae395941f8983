/* Random trees of processes that inherit, pass and exec connections. Usage: torture_trees SEED SECONDS [SEEDS]
 * Peers exchange bytes with the tree. A process of the tree that has a connection reads on from the last position, under a lock, and
 * answers. Every byte is compared at its place, and so are the digests of both ends. One tree for each seed, SEED, SEED + 1 ..., until the
 * time is over, at most SEEDS.
 *
 * The first process stops and continues peers, and fails when nothing moves for TORTURE_HANG seconds (10). TORTURE_IMAGE is another image (a
 * static one, for example) that some members of the tree execute. TORTURE_WITHOUT holds letters of what is left out: t stops, b backlogs
 * larger than the sockets hold. TORTURE_VERBOSE=1 prints each seed. */
#include "check.h"
#include <sched.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

extern char **environ;

enum { CONNECTIONS = 3, MOST = 10, LARGEST = 1 << 18 };

/* One direction of a connection: the process that has the lock takes the next step. */
struct way {
    pthread_mutex_t lock;
    _Atomic uint64_t done; /* by the tree */
    _Atomic uint64_t peer; /* by the peer */
    uint64_t quota, stream, hash, peer_hash, backlog;
    _Atomic int finished;
};

struct shared {
    uint64_t seed, calm; /* bytes before the first event of a connection, and in how many of 1000 steps an event occurs */
    uint32_t rate;
    struct way in[CONNECTIONS], back[CONNECTIONS];
    _Atomic int holders[CONNECTIONS]; /* descriptors in the tree, those in transit between processes included */
    _Atomic int alive, failed, members, births[8];
    pthread_mutex_t leaving;
};

static struct shared *shared;
static const char *self, *other, *without = "";
static int memory, pool[2], fds[CONNECTIONS];
static uint64_t state;
static unsigned char data[LARGEST];

static bool with(char what) { return strchr(without, what) == NULL; }
static uint32_t pick(uint32_t below) { return next_random(&state) % below; }

static void wrong(const char *what, long long a, long long b)
{
    fprintf(stderr, "seed %llu: process %d: %s (%lld, %lld, errno %s)\n", (unsigned long long)shared->seed, (int)getpid(), what, a, b, strerror(errno));
    shared->failed = 1;
    _exit(1);
}

static unsigned char byte_at(uint64_t stream, uint64_t offset)
{
    uint64_t x = (stream + offset / 8 + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
    return (unsigned char)((x ^ (x >> 32)) >> (offset % 8 * 8));
}

static void make(uint64_t stream, uint64_t offset, size_t length)
{
    for (size_t i = 0; i < length; i++) data[i] = byte_at(stream, offset + i);
}

static void verify(const struct way *way, uint64_t at, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (data[i] != byte_at(way->stream, at + i)) wrong("a wrong byte, in its stream and in its call", (long long)(at + i), (long long)i);
}

static size_t some(uint64_t left)
{
    size_t n = 1 + pick(1u << (1 + pick(18)));
    return n > left ? (size_t)left : n;
}

static void hold(pthread_mutex_t *lock)
{
    int result = pthread_mutex_lock(lock);
    if (result != 0) wrong("a lock", result, 0);
}

static bool transient(ssize_t n) { return n < 0 && (errno == EAGAIN || errno == EINTR); }

/* ---- the tree ---- */

static void read_step(int c)
{
    struct way *way = &shared->in[c];
    hold(&way->lock);
    if (!way->finished) {
        size_t length = 1 + pick(1u << (1 + pick(18)));
        size_t first;
        struct pollfd ready = {fds[c], POLLIN, 0};
        bool waits = pick(2);
        if (waits && poll(&ready, 1, (int)pick(20)) < 0) wrong("poll", 0, 0);
        int flags = waits || pick(4) ? MSG_DONTWAIT : 0;
        if (flags == 0) length = 1 + pick(64);
        first = length - length / 2;
        struct iovec parts[2] = {{data, first}, {data + first, length / 2}};
        ssize_t n;
        switch (flags ? pick(2) : pick(3)) {
        case 0: n = recv(fds[c], data, length, flags); break;
        case 1: n = recvmsg(fds[c], &(struct msghdr){.msg_iov = parts, .msg_iovlen = flags ? 2 : 1}, flags); break;
        default: n = read(fds[c], data, length); break;
        }
        if (n > 0) {
            verify(way, way->done, (size_t)n);
            way->hash = hash_more(way->hash, data, (size_t)n);
            way->done += (uint64_t)n;
            if (way->done > way->quota) wrong("too many bytes", (long long)way->done, (long long)way->quota);
        } else if (n == 0) {
            if (way->done != way->quota) wrong("an early end of file", (long long)way->done, (long long)way->quota);
            way->finished = 1;
        } else if (!transient(n)) {
            wrong("a receive", n, 0);
        }
    }
    pthread_mutex_unlock(&way->lock);
}

static void answer_step(int c)
{
    struct way *way = &shared->back[c];
    hold(&way->lock);
    if (way->done < way->quota && way->done - way->peer < way->backlog) {
        size_t n = some(way->quota - way->done);
        make(way->stream, way->done, n);
        ssize_t sent = pick(2) ? send(fds[c], data, n, MSG_DONTWAIT | MSG_NOSIGNAL) : n < 4096 ? write(fds[c], data, n) : (errno = EAGAIN, -1);
        if (sent > 0) {
            way->hash = hash_more(way->hash, data, (size_t)sent);
            way->done += (uint64_t)sent;
        } else if (!transient(sent)) {
            wrong("a send", sent, 0);
        }
    }
    pthread_mutex_unlock(&way->lock);
}

static bool is_done(int c) { return shared->in[c].finished && shared->back[c].done == shared->back[c].quota; }

/* True when this process may drop the connection: it is done, or another process still has it. */
static bool may_leave(int c)
{
    if (fds[c] < 0 || is_done(c)) return true;
    int now = shared->holders[c];
    while (now > 1)
        if (atomic_compare_exchange_weak(&shared->holders[c], &now, now - 1)) return true;
    return false;
}

static void leave_step(int c)
{
    if (!may_leave(c)) return;
    CHECK(close(fds[c]) == 0);
    fds[c] = -1;
}

static void pass_step(int c)
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    unsigned char byte = (unsigned char)c;
    struct iovec iov = {&byte, 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (fds[c] >= 0 && pick(2)) {
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fds[c], sizeof(int));
        shared->holders[c]++;
        ssize_t n = sendmsg(pool[0], &message, MSG_DONTWAIT);
        if (n != 1) shared->holders[c]--;
        if (n != 1 && !transient(n)) wrong("passing", n, 0);
        return;
    }
    if (recvmsg(pool[1], &message, MSG_DONTWAIT) != 1) return;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    int fd;
    if (!header || header->cmsg_type != SCM_RIGHTS) wrong("no descriptor in a message", 0, 0);
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    c = byte;
    if (fds[c] >= 0) {
        close(pick(2) ? fd : fds[c]); /* one of the two; the other one stays */
        if (fcntl(fd, F_GETFD) >= 0) fds[c] = fd;
        shared->holders[c]--;
    } else {
        fds[c] = fd;
    }
}

static char texts[CONNECTIONS + 4][24];

static char **arguments(const char *image, int steps)
{
    static char *all[CONNECTIONS + 8];
    int n = 0;
    all[n++] = (char *)image;
    all[n++] = "member";
    snprintf(texts[0], sizeof texts[0], "%d", memory);
    snprintf(texts[1], sizeof texts[1], "%llu", (unsigned long long)next_random(&state));
    snprintf(texts[2], sizeof texts[2], "%d", steps);
    snprintf(texts[3], sizeof texts[3], "%d,%d", pool[0], pool[1]);
    for (int i = 0; i < 4; i++) all[n++] = texts[i];
    for (int c = 0; c < CONNECTIONS; c++) {
        snprintf(texts[4 + c], sizeof texts[0], "%d", fds[c]);
        all[n++] = texts[4 + c];
    }
    all[n] = NULL;
    return all;
}

static void member(int steps);

/* Forks a child, which has all connections of this process. */
static bool bear(void)
{
    int now = shared->alive;
    do {
        if (now >= MOST) return false;
    } while (!atomic_compare_exchange_weak(&shared->alive, &now, now + 1));
    for (int c = 0; c < CONNECTIONS; c++)
        if (fds[c] >= 0) shared->holders[c]++;
    shared->members++;
    return true;
}

/* `left`: the steps that this process still has. */
static void birth_step(int left)
{
    const char *image = other && pick(3) == 0 ? other : self;
    int steps = 20 + (int)pick(200), how = (int)pick(7);
    pid_t child = -1;
    if (how == 0) { /* the next image of this process */
        shared->births[0]++;
        execv(image, arguments(image, left));
        wrong("exec", 0, 0);
    }
    if (!bear()) return;
    shared->births[how]++;
    char **words = arguments(image, steps), command[1024];
    if (snprintf(command, sizeof command, "exec '%s' %s %s %s %s %s %s %s %s", words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7], words[8]) >=
        (int)sizeof command)
        wrong("a long command", 0, 0);
    switch (how) {
    case 1:
    case 2:
        if ((child = fork()) == 0) {
            state ^= (uint64_t)getpid() * 0x9e3779b97f4a7c15ull;
            if (how == 2) execv(image, words);
            member(steps);
        }
        if (child < 0) wrong("fork", 0, 0);
        break;
    case 3:
        if ((child = vfork()) == 0) {
            execv(image, words);
            _exit(127);
        }
        break;
    case 4:
        if (posix_spawn(&child, image, NULL, NULL, words, environ) != 0) wrong("posix_spawn", 0, 0);
        break;
    case 5:
        if (system(command) != 0) wrong("system", 0, 0);
        break;
    default: {
        FILE *pipe_end = popen(command, "r");
        if (!pipe_end || pclose(pipe_end) != 0) wrong("popen", 0, 0);
    }
    }
}

static void reap(void)
{
    int status;
    while (waitpid(-1, &status, WNOHANG) > 0)
        if (status != 0) wrong("a child ended", status, 0);
}

/* Some steps of a member, or all that there are, then its end. */
static void member(int steps)
{
    for (;; steps--) {
        bool all = true;
        for (int c = 0; c < CONNECTIONS; c++) all &= is_done(c);
        if (all || shared->failed) break;
        if (steps <= 0) {
            bool gone = true;
            for (int c = 0; c < CONNECTIONS; c++) {
                if (fds[c] >= 0) leave_step(c);
                gone &= fds[c] < 0;
            }
            if (gone) break;
        }
        int c = (int)pick(CONNECTIONS);
        uint32_t what = pick(100), event = pick(1000);
        if (shared->in[c].done < shared->calm) event = 1000;
        if (event < shared->rate) pass_step(c);
        else if (event < 2 * shared->rate) birth_step(steps);
        else if (fds[c] < 0) sched_yield();
        else if (event < 3 * shared->rate) leave_step(c);
        else if (what < 75) read_step(c);
        else if (what < 98) answer_step(c);
        else nap_ms((int)pick(4));
        reap();
    }
    int status; /* a process that is still there has connections of its own */
    while (waitpid(-1, &status, 0) > 0)
        if (status != 0) wrong("a child ended", status, 0);
    shared->alive--;
    _exit(shared->failed);
}

/* ---- a peer ---- */

static void peer(int c, int port)
{
    int fd = connect_to("4", port);
    struct way *out = &shared->in[c], *in = &shared->back[c];
    bool ended = false;
    for (;;) {
        if (out->peer == out->quota && !ended) {
            if (shutdown(fd, SHUT_WR) != 0) wrong("shutdown", 0, 0);
            ended = true;
        }
        bool may_send = !ended && out->peer - out->done < out->backlog;
        struct pollfd ready = {fd, (short)(POLLIN | (may_send ? POLLOUT : 0)), 0};
        uint32_t what = pick(100);
        ssize_t n;
        if (what < 45 && may_send) {
            size_t length = some(out->quota - out->peer);
            make(out->stream, out->peer, length);
            n = send(fd, data, length, MSG_NOSIGNAL | (pick(2) ? MSG_DONTWAIT : 0));
            if (n < 0 && !transient(n)) wrong("the peer's send", n, 0);
            if (n > 0) out->peer_hash = hash_more(out->peer_hash, data, (size_t)n);
            if (n > 0) out->peer += (uint64_t)n;
        } else if (what < 90) {
            n = recv(fd, data, 1 + pick(LARGEST), ended && pick(2) ? 0 : MSG_DONTWAIT);
            if (n < 0 && !transient(n)) wrong("the peer's receive", n, 0);
            if (n > 0) verify(in, in->peer, (size_t)n);
            if (n > 0) in->peer_hash = hash_more(in->peer_hash, data, (size_t)n);
            if (n > 0) in->peer += (uint64_t)n;
            if (n == 0 && (!ended || in->peer != in->quota)) wrong("the peer met an early end of file", (long long)in->peer, (long long)in->quota);
            if (n == 0) break;
        } else if (what < 97) {
            if (poll(&ready, 1, (int)pick(10)) < 0 && errno != EINTR) wrong("the peer's poll", 0, 0);
        } else {
            nap_ms((int)pick(3));
        }
    }
    close(fd);
    exit(0);
}

/* ---- the supervisor ---- */

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

static void prepare(uint64_t seed)
{
    memset(shared, 0, sizeof *shared);
    shared->seed = seed;
    state = seed * 0x9e3779b97f4a7c15ull + 1;
    next_random(&state);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    for (int c = 0; c < CONNECTIONS; c++)
        for (int back = 0; back < 2; back++) {
            struct way *way = back ? &shared->back[c] : &shared->in[c];
            pthread_mutex_init(&way->lock, &attributes);
            way->quota = (1u << (10 + pick(back ? 9 : 14))) + pick(1000);
            way->stream = seed * 1000003 + (uint64_t)(c * 2 + back) * 0x100000000ull;
            way->backlog = with('b') && pick(3) == 0 ? UINT64_MAX / 2 : 1u << (10 + pick(9));
            shared->holders[c] = 1;
        }
    shared->alive = 1;
    shared->calm = pick(3) ? pick(1u << (1 + pick(22))) : 0;
    shared->rate = 1 + pick(pick(2) ? 2 : 30);
}

static void dump(void)
{
    for (int c = 0; c < CONNECTIONS; c++)
        for (int back = 0; back < 2; back++) {
            struct way *way = back ? &shared->back[c] : &shared->in[c];
            fprintf(stderr, "  connection %d %s: tree %llu, peer %llu of %llu%s, %d have it, at most %llu on their way\n", c, back ? "back" : "in",
                    (unsigned long long)way->done, (unsigned long long)way->peer, (unsigned long long)way->quota, way->finished ? ", finished" : "",
                    (int)shared->holders[c], (unsigned long long)way->backlog);
        }
    fprintf(stderr, "  %d members of %d\n", (int)shared->alive, (int)shared->members + 1);
}

static uint64_t moved(void)
{
    uint64_t sum = (uint64_t)shared->members;
    for (int c = 0; c < CONNECTIONS; c++)
        sum += shared->in[c].done + shared->in[c].peer + shared->back[c].done + shared->back[c].peer + (uint64_t)shared->in[c].finished;
    return sum;
}

static void one(uint64_t seed, uint64_t hang)
{
    prepare(seed);
    fflush(NULL);
    int ports[CONNECTIONS], listeners[CONNECTIONS], status = 0;
    pid_t peers[CONNECTIONS];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pool) == 0);
    for (int c = 0; c < CONNECTIONS; c++) ports[c] = 0, listeners[c] = listen_on("4", &ports[c]);
    for (int c = 0; c < CONNECTIONS; c++) {
        CHECK((peers[c] = fork()) >= 0);
        if (peers[c] == 0) {
            state ^= (uint64_t)(c + 1) * 0x9e3779b97f4a7c15ull;
            for (int other_one = 0; other_one < CONNECTIONS; other_one++) close(listeners[other_one]);
            close(pool[0]), close(pool[1]);
            peer(c, ports[c]);
        }
    }
    pid_t tree = fork();
    CHECK(tree >= 0);
    if (tree == 0) {
        for (int c = 0; c < CONNECTIONS; c++) {
            fds[c] = accept(listeners[c], NULL, NULL);
            close(listeners[c]);
        }
        member(INT32_MAX);
    }
    for (int c = 0; c < CONNECTIONS; c++) close(listeners[c]);
    close(pool[0]), close(pool[1]);
    uint64_t last = 0, since = now_ms();
    for (bool failed = false;;) {
        pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended < 0 && errno == ECHILD) break;
        failed |= (ended > 0 && status != 0) || shared->failed;
        if (moved() != last) last = moved(), since = now_ms();
        if (now_ms() - since > hang) {
            fprintf(stderr, "seed %llu: nothing has moved for %llu ms\n", (unsigned long long)seed, (unsigned long long)hang);
            failed = true;
        }
        if (failed) {
            fprintf(stderr, "seed %llu failed (status %#x)\n", (unsigned long long)seed, status);
            dump();
            kill(0, SIGKILL);
        }
        if (ended > 0) continue;
        nap_ms(1 + (int)pick(10));
        if (!with('t') || pick(4)) continue;
        int c = (int)pick(CONNECTIONS);
        if (kill(peers[c], SIGSTOP) != 0) continue;
        nap_ms(1 + (int)pick(30));
        kill(peers[c], SIGCONT);
    }
    for (int c = 0; c < CONNECTIONS; c++) {
        struct way *in = &shared->in[c], *back = &shared->back[c];
        CHECK(in->hash == in->peer_hash && in->done == in->quota && back->hash == back->peer_hash && back->peer == back->quota);
    }
}

int main(int argc, char **argv)
{
    static char path[4096];
    CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
    other = getenv("TORTURE_IMAGE");
    self = path;
    if (argc == 6 + CONNECTIONS && strcmp(argv[1], "member") == 0) {
        memory = atoi(argv[2]);
        state = strtoull(argv[3], NULL, 0) ^ (uint64_t)getpid() << 32;
        CHECK(sscanf(argv[5], "%d,%d", &pool[0], &pool[1]) == 2);
        for (int c = 0; c < CONNECTIONS; c++) fds[c] = atoi(argv[6 + c]);
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
        CHECK(shared != MAP_FAILED);
        member(atoi(argv[4]));
    }
    CHECK(argc >= 3);
    uint64_t seed = strtoull(argv[1], NULL, 0), first = seed, end = now_ms() + strtoull(argv[2], NULL, 0) * 1000;
    uint64_t most = argc > 3 ? strtoull(argv[3], NULL, 0) : UINT64_MAX;
    uint64_t hang = getenv("TORTURE_HANG") ? strtoull(getenv("TORTURE_HANG"), NULL, 0) * 1000 : 10000;
    if (getenv("TORTURE_WITHOUT")) without = getenv("TORTURE_WITHOUT");
    CHECK(setpgid(0, 0) == 0 || getpgrp() == getpid());
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    memory = memfd_create("torture", 0);
    CHECK(memory >= 0 && ftruncate(memory, sizeof *shared) == 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    CHECK(shared != MAP_FAILED);
    do {
        uint64_t begun = now_ms();
        one(seed, hang);
        if (getenv("TORTURE_VERBOSE"))
            fprintf(stderr, "seed %llu: %llu ms, %u of 1000, %d members, execs %d, forks %d, with exec %d, vforks %d, spawns %d, system %d, popen %d\n", (unsigned long long)seed,
                    (unsigned long long)(now_ms() - begun), shared->rate, (int)shared->members + 1, shared->births[0], shared->births[1], shared->births[2], shared->births[3],
                    shared->births[4], shared->births[5], shared->births[6]);
        seed++;
    } while (now_ms() < end && seed - first < most);
    if (getenv("TORTURE_VERBOSE")) fprintf(stderr, "%llu seeds\n", (unsigned long long)(seed - first));
    printf("trees from seed %llu on: every byte in its place\n", (unsigned long long)first);
}
