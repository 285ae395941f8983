/* A peer is killed at a random instant, COUNT times. The survivor soon gets what TCP would report, and keeps no memory of the peer.
 * Usage: random_kills SEED COUNT [ROUND]: with ROUND, that round alone, COUNT times
 * Roles of the victim:
 *   sender    every byte whose send had returned arrives, in order, then the connection ends
 *   receiver  the survivor's sends fail
 *   server    answers requests; if it dies with a request unread, the survivor gets a reset, not an end of file
 * The survivor blocks, or sleeps in epoll. */
#include "held.h"
#include <sched.h>
#include <sys/mman.h>

enum role { SENDER, RECEIVER, SERVER };
enum { LATE_MS = 100, VERY_LATE_MS = 3000, LARGEST = 3 << 20, REQUEST = 64, FEW = 20 };

static const char *const names[] = {"sender", "receiver", "server"};

/* What one end reports to the other in memory instead of over the connection. */
static struct {
    _Atomic uint64_t accepted; /* by sends that returned */
    _Atomic uint64_t answered; /* requests */
    _Atomic int thinking;      /* the server has answered everything that it received, and is not receiving */
    _Atomic uint64_t killed;   /* time of the kill, ns */
    _Atomic int settled;       /* the victim has received all of the first exchange; it may be killed from then on */
} *shared;

static enum role role;
static bool sleeps_in_epoll;
static uint64_t seed, state;
static int round_now, epfd, resets;
static unsigned char *buffer;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#define EXPECT(condition, ...)                                                                                          \
    do {                                                                                                                \
        if (!(condition)) {                                                                                             \
            fprintf(stderr, "seed %llu, round %d (%s killed, survivor %s): %s: ", (unsigned long long)seed, round_now,  \
                    names[role], sleeps_in_epoll ? "in epoll" : "blocks", #condition);                                  \
            fprintf(stderr, __VA_ARGS__);                                                                               \
            fprintf(stderr, " (errno %s)\n", strerror(errno));                                                         \
            exit(1);                                                                                                    \
        }                                                                                                               \
    } while (0)

static unsigned char at(uint64_t offset) { return (unsigned char)((offset * 0x9e3779b97f4a7c15ull) >> 56); }

static size_t some_size(void)
{
    uint32_t kind = next_random(&state) % 8, n = next_random(&state);
    return 1 + n % (kind < 4 ? 200 : kind < 6 ? 20000 : kind < 7 ? 200000 : LARGEST);
}

static void sleep_until(int fd, uint32_t events)
{
    struct epoll_event event = {.events = events}, came;
    CHECK(epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &event) == 0);
    int n = epoll_wait(epfd, &came, 1, 5000);
    EXPECT(n == 1, "no event for 5 s");
}

/* A blocking receive; the survivor's variant decides how it waits. */
static ssize_t receive(int fd, void *to, size_t length)
{
    for (;;) {
        ssize_t n = recv(fd, to, length, sleeps_in_epoll ? MSG_DONTWAIT : 0);
        if (n >= 0 || errno != EAGAIN) return n;
        sleep_until(fd, EPOLLIN);
    }
}

static ssize_t submit(int fd, const void *from, size_t length)
{
    for (;;) {
        ssize_t n = send(fd, from, length, MSG_NOSIGNAL | (sleeps_in_epoll ? MSG_DONTWAIT : 0));
        if (n >= 0 || errno != EAGAIN) return n;
        sleep_until(fd, EPOLLOUT);
    }
}

/* ---- the victim ---- */

static void victim(int port)
{
    int fd = connect_to("4", port);
    sleeps_in_epoll = false;
    exchange_until_settled(fd, 1);
    shared->settled = 1;
    for (uint64_t offset = 0;;) {
        if (role == SENDER) {
            size_t length = some_size();
            for (size_t i = 0; i < length; i++) buffer[i] = at(offset + i);
            ssize_t n = send(fd, buffer, length, 0);
            CHECK(n > 0);
            offset += (uint64_t)n;
            shared->accepted = offset;
        } else if (role == RECEIVER) {
            CHECK(recv(fd, buffer, some_size(), 0) > 0);
        } else {
            receive_all(fd, buffer, REQUEST);
            send_all(fd, buffer, REQUEST);
            shared->answered = ++offset;
            shared->thinking = 1;
            if (next_random(&state) % 2) {
                struct timespec nap = {0, next_random(&state) % 300000};
                nanosleep(&nap, NULL);
            }
            shared->thinking = 0;
        }
    }
}

/* ---- the survivor ---- */

static void after_sender(int fd)
{
    uint64_t got = 0;
    ssize_t n;
    while ((n = receive(fd, buffer, some_size())) > 0) {
        for (ssize_t i = 0; i < n; i++) EXPECT(buffer[i] == at(got + (uint64_t)i), "byte %llu is wrong", (unsigned long long)got + (unsigned long long)i);
        got += (uint64_t)n;
    }
    uint64_t accepted = shared->accepted;
    EXPECT(n == 0 || errno == ECONNRESET, "another error");
    EXPECT(n != 0 || got >= accepted, "%llu of %llu accepted bytes, then end of file", (unsigned long long)got, (unsigned long long)accepted);
    resets += n < 0; /* killed while bytes move between ring and TCP */
}

static void after_receiver(int fd)
{
    while (submit(fd, buffer, some_size()) > 0) {}
    EXPECT(errno == EPIPE || errno == ECONNRESET, "another error");
}

static void after_server(int fd)
{
    uint64_t sent = 0, asked = 0;
    ssize_t n = 1;
    int error = 0;
    for (size_t got; n > 0;) {
        n = submit(fd, buffer, REQUEST);
        if (n < 0) {
            EXPECT(errno == EPIPE || errno == ECONNRESET, "another error");
            return;
        }
        EXPECT(n == REQUEST, "a short send");
        asked = now_ns();
        sent++;
        for (got = 0; got < REQUEST && (n = receive(fd, buffer + got, REQUEST - got)) > 0;) got += (size_t)n;
        error = errno;
    }
    EXPECT(n == 0 || error == ECONNRESET, "another error");
    /* Sent well before the end, and not received: TCP reports a reset. */
    bool unread = shared->thinking && shared->answered == sent - 1 && asked + 20000 < shared->killed;
    EXPECT(!unread || n < 0, "end of file over an unread request");
}

static pid_t victims;
static struct timespec delay;

static void *killer(void *ignored)
{
    (void)ignored;
    while (!shared->settled) sched_yield();
    nanosleep(&delay, NULL);
    shared->killed = now_ns();
    CHECK(kill(victims, SIGKILL) == 0);
    return NULL;
}

/* Returns the milliseconds from the kill until the survivor gets an error or end of file. */
static int one_kill(int listener, int port)
{
    memset(shared, 0, sizeof *shared);
    state = seed + (uint64_t)round_now * 0x9e3779b97f4a7c15ull;
    next_random(&state);
    role = next_random(&state) % 3;
    sleeps_in_epoll = next_random(&state) % 2;
    delay.tv_nsec = next_random(&state) % 3000000;
    CHECK((victims = fork()) >= 0);
    if (victims == 0) victim(port);
    next_random(&state);
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    exchange_until_settled(fd, 0);
    struct epoll_event event = {0};
    CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, killer, NULL) == 0);
    (role == SENDER ? after_sender : role == RECEIVER ? after_receiver : after_server)(fd);
    uint64_t known = now_ns();
    CHECK(pthread_join(thread, NULL) == 0);
    int status;
    CHECK(waitpid(victims, &status, 0) == victims);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the other one ended by itself");
    close(fd);
    EXPECT(known >= shared->killed, "ended before the kill");
    return (int)((known - shared->killed) / 1000000);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3);
    seed = strtoull(argv[1], NULL, 0);
    int count = atoi(argv[2]), late = 0, port = 0, listener = listen_on("4", &port);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    CHECK((epfd = epoll_create1(EPOLL_CLOEXEC)) >= 0);
    CHECK((buffer = calloc(1, LARGEST + 1)) != NULL);
    struct held before = {0};
    for (int i = 0; i < count; i++) {
        round_now = argc > 3 ? atoi(argv[3]) : i;
        int ms = one_kill(listener, port);
        late += ms > LATE_MS;
        EXPECT(ms < VERY_LATE_MS && late <= 1 + count / 50, "%d ms after the kill, %d late", ms, late);
        EXPECT(resets <= 1 + count / 50, "%d resets", resets);
        if (i == FEW) before = held();
    }
    if (count > FEW) no_more_than(before, "at the end");
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    printf("seed %llu: %d kills, as TCP would show\n", (unsigned long long)seed, count);
}
