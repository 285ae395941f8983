/* Event loops that believe what a result on TCP lets a program conclude about later readiness. Usage: torture_readiness SEED SECONDS [SEEDS]
 * One random schedule for each seed, SEED, SEED + 1 ..., until the time (0: no limit) is over, at most SEEDS.
 *
 * Two processes have some connections and compare each byte at its place. Every end goes on only when an event says so:
 *   a short send, or EAGAIN       the socket is full: EPOLLOUT follows
 *   a short receive, or EAGAIN    the socket is drained: EPOLLIN follows (after EPOLLRDHUP, or where it cannot be registered, only EAGAIN says so)
 *   EPOLL_CTL_MOD                 what holds now is reported, again if need be
 *   EPOLLONESHOT                  nothing is reported until EPOLL_CTL_MOD
 *   EPOLLEXCLUSIVE in two sets    one of the sets reports
 *   the other end shuts down      EPOLLRDHUP, and end of file after the last byte
 *   SO_RCVLOWAT                   EPOLLIN once so many bytes are there
 *   FIONREAD, MSG_PEEK            so many bytes can be received without a wait
 * with one or two threads, in a set that is waited for itself, or by another set, poll or select, on descriptors and their duplicates.
 * After a wrong conclusion an end gets no event: no byte moves for TORTURE_HANG seconds (10), which is reported.
 *
 * TORTURE_VERBOSE=1 prints each seed. */
#include "check.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum { CONNECTIONS = 4, SIDES = 2, THREADS = 2, LARGEST = 400000, LOWEST_WATER = 3000 };
enum trigger { LEVEL, EDGE, ONE_SHOT, EXCLUSIVE };
enum nesting { FLAT, IN_SET, IN_POLL, IN_SELECT };
static const char *const trigger_names[] = {"level", "edge", "one-shot", "exclusive"};
static const char *const nesting_names[] = {"waited for itself", "in a set", "in poll", "in select"};

struct end {
    pthread_mutex_t lock;
    uint64_t state, quota, incoming, sent, received;
    int side, number, fd, twin;
    enum trigger trigger;
    bool low_water; /* it sets SO_RCVLOWAT */
    bool readable, writable, hung_up, shut, ended; /* hung_up: EPOLLRDHUP was reported, so the receives go on until end of file */
};

struct side {
    uint64_t state;
    int threads, sets[THREADS], outer[THREADS], over; /* `over`: an eventfd that ends the loops */
    enum nesting nesting;
    uint32_t outer_events;
    _Atomic int unfinished;
    struct end ends[CONNECTIONS];
};

struct shared {
    uint64_t seed;
    struct side sides[SIDES];
    _Atomic uint64_t progress;
};

static struct shared *shared;

static void wrong(const struct end *end, const char *what, long long number)
{
    fprintf(stderr, "seed %llu: side %d, connection %d, %s, %s: %s (%lld, errno %s)\n", (unsigned long long)shared->seed, end->side, end->number,
            trigger_names[end->trigger], nesting_names[shared->sides[end->side].nesting], what, number, strerror(errno));
    _exit(1);
}

static uint32_t pick(uint64_t *state, uint32_t n) { return next_random(state) % n; }

static size_t some_size(uint64_t *state)
{
    uint32_t kind = pick(state, 16);
    return 1 + pick(state, kind < 8 ? 300 : kind < 12 ? 9000 : kind < 14 ? 70000 : LARGEST);
}

static unsigned char byte_at(int side, int number, uint64_t offset)
{
    return (unsigned char)((offset * 2654435761u >> 13) + (uint64_t)(side * 97 + number * 31));
}

/* ---- one end, under its lock ---- */

static uint32_t wanted(const struct end *end)
{
    uint32_t now = (end->ended ? 0 : EPOLLIN | EPOLLRDHUP) | (end->shut ? 0 : EPOLLOUT);
    switch (end->trigger) {
    case LEVEL: return now;
    case ONE_SHOT: return now | EPOLLONESHOT;
    case EDGE: return EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    default: return EPOLLIN | EPOLLOUT | EPOLLET | EPOLLEXCLUSIVE;
    }
}

static void control(struct end *end, int set, int operation)
{
    struct epoll_event event = {.events = wanted(end), .data.ptr = end};
    if (epoll_ctl(set, operation, end->fd, &event) != 0) wrong(end, "epoll_ctl", operation);
}

static void send_some(struct end *end, unsigned char *data)
{
    size_t length = some_size(&end->state), left = end->quota - end->sent;
    int fd = pick(&end->state, 4) ? end->fd : end->twin;
    if (left == 0) {
        if (shutdown(fd, SHUT_WR) != 0) wrong(end, "shutdown", 0);
        end->shut = true;
        return;
    }
    if (length > left) length = left;
    for (size_t i = 0; i < length; i++) data[i] = byte_at(end->side, end->number, end->sent + i);
    struct iovec parts[2] = {{data, length / 2}, {data + length / 2, length - length / 2}};
    ssize_t n = pick(&end->state, 2) ? send(fd, data, length, MSG_NOSIGNAL) : writev(fd, parts, 2);
    if (n < 0 && errno != EAGAIN) wrong(end, "a send failed", n);
    if (n < (ssize_t)length) end->writable = false;
    if (n <= 0) return;
    end->sent += (uint64_t)n;
    atomic_fetch_add(&shared->progress, 1);
}

static void receive_some(struct end *end, unsigned char *data)
{
    size_t length = some_size(&end->state);
    int fd = pick(&end->state, 4) ? end->fd : end->twin, there = 0;
    if (pick(&end->state, 6) == 0) {
        if (ioctl(fd, FIONREAD, &there) != 0 || there < 0) wrong(end, "FIONREAD", there);
    } else if (pick(&end->state, 6) == 0) {
        there = (int)recv(fd, data, 16, MSG_PEEK);
        if (there < 0 && errno != EAGAIN) wrong(end, "a peek failed", there);
    }
    ssize_t n = recv(fd, data, length, 0);
    if (n < 0 && errno != EAGAIN) wrong(end, "a receive failed", n);
    if (n <= 0 && there > 0) wrong(end, "nothing, although bytes were reported", there);
    if (n < 0 || (n < (ssize_t)length && !end->hung_up && end->trigger != EXCLUSIVE)) end->readable = false;
    if (n == 0) {
        if (end->received != end->incoming) wrong(end, "an early end of file", (long long)end->received);
        end->ended = true;
    }
    if (n <= 0) return;
    for (ssize_t i = 0; i < n; i++)
        if (data[i] != byte_at(1 - end->side, end->number, end->received + (uint64_t)i)) wrong(end, "a wrong byte", (long long)i);
    end->received += (uint64_t)n;
    atomic_fetch_add(&shared->progress, 1);
    if (end->low_water && pick(&end->state, 16) == 0) {
        int lowest = pick(&end->state, 2) ? 1 : 1 + (int)pick(&end->state, LOWEST_WATER);
        if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &lowest, sizeof lowest) != 0) wrong(end, "SO_RCVLOWAT", lowest);
    }
}

static void finish(struct side *side, struct end *end)
{
    for (int i = 0; i < (end->trigger == EXCLUSIVE ? THREADS : 1); i++)
        if (epoll_ctl(side->sets[i], EPOLL_CTL_DEL, end->fd, NULL) != 0) wrong(end, "EPOLL_CTL_DEL", i);
    if (atomic_fetch_sub(&side->unfinished, 1) == 1 && eventfd_write(side->over, 1) != 0) wrong(end, "eventfd_write", 0);
}

static void serve(struct side *side, struct end *end, int set, uint32_t events, unsigned char *data)
{
    bool edge = end->trigger == EDGE || end->trigger == EXCLUSIVE;
    pthread_mutex_lock(&end->lock);
    bool over = end->shut && end->ended;
    if (events & (EPOLLRDHUP | EPOLLHUP)) end->hung_up = true;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) end->readable = true;
    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) end->writable = true;
    while ((end->readable && !end->ended) || (end->writable && !end->shut)) {
        if (end->readable && !end->ended && pick(&end->state, 2)) receive_some(end, data);
        if (end->writable && !end->shut && pick(&end->state, 2)) send_some(end, data);
        if (!edge && pick(&end->state, 4) == 0) break;
        if (end->trigger == EDGE && pick(&end->state, 16) == 0) {
            end->readable = end->writable = false;
            control(end, set, EPOLL_CTL_MOD);
        }
    }
    if (!edge) end->readable = end->writable = false;
    if (!over && end->shut && end->ended) finish(side, end);
    else if (!over && !edge) control(end, set, EPOLL_CTL_MOD);
    pthread_mutex_unlock(&end->lock);
}

/* ---- the loops ---- */

/* Waits until the set may have events. */
static void wait_outside(const struct side *side, int number)
{
    int set = side->sets[number];
    struct epoll_event event;
    struct pollfd one = {.fd = set, .events = POLLIN};
    fd_set some;
    FD_ZERO(&some);
    FD_SET(set, &some);
    if (side->nesting == IN_SET) CHECK(epoll_wait(side->outer[number], &event, 1, -1) == 1 && (event.data.fd == set || event.data.fd == side->over));
    if (side->nesting == IN_POLL) CHECK(poll(&one, 1, -1) == 1 && one.revents == POLLIN);
    if (side->nesting == IN_SELECT) CHECK(select(set + 1, &some, NULL, NULL, NULL) == 1);
}

struct thread {
    struct side *side;
    int number;
};

static void *loop(void *argument)
{
    struct thread *thread = argument;
    struct side *side = thread->side;
    int set = side->sets[thread->number];
    uint64_t state = side->state + (uint64_t)thread->number;
    unsigned char *data = malloc(LARGEST);
    CHECK(data);
    for (;;) {
        wait_outside(side, thread->number);
        struct epoll_event events[CONNECTIONS];
        int count = 0;
        do {
            count = epoll_wait(set, events, 1 + (int)pick(&state, CONNECTIONS), side->nesting == FLAT ? -1 : 0);
            CHECK(count >= 0);
            for (int i = 0; i < count; i++)
                if (events[i].data.ptr) serve(side, events[i].data.ptr, set, events[i].events, data);
            if (atomic_load(&side->unfinished) == 0) {
                free(data);
                return NULL;
            }
        } while (side->outer_events & EPOLLET ? count > 0 : pick(&state, 2)); /* an edge of the outer set: until the inner one is drained */
        struct epoll_event again = {.events = side->outer_events, .data.fd = set};
        if (side->outer_events & EPOLLONESHOT) CHECK(epoll_ctl(side->outer[thread->number], EPOLL_CTL_MOD, set, &again) == 0);
    }
}

static void prepare_sets(struct side *side)
{
    bool apart = side->ends[0].trigger == EXCLUSIVE;
    side->over = eventfd(0, EFD_NONBLOCK);
    for (int i = 0; i < THREADS; i++) {
        struct epoll_event over = {.events = EPOLLIN}, inner = {.events = side->outer_events};
        side->sets[i] = i > 0 && !apart ? side->sets[0] : epoll_create1(0);
        side->outer[i] = i > 0 && !apart ? side->outer[0] : epoll_create1(0);
        if (i > 0 && !apart) continue;
        inner.data.fd = side->sets[i];
        CHECK(epoll_ctl(side->sets[i], EPOLL_CTL_ADD, side->over, &over) == 0);
        if (side->nesting == IN_SET) CHECK(epoll_ctl(side->outer[i], EPOLL_CTL_ADD, side->sets[i], &inner) == 0);
        inner = (struct epoll_event){.events = EPOLLIN, .data.fd = side->over}; /* ends both threads, whichever has got the event of the set */
        CHECK(epoll_ctl(side->outer[i], EPOLL_CTL_ADD, side->over, &inner) == 0);
        for (int c = 0; c < CONNECTIONS; c++) control(&side->ends[c], side->sets[i], EPOLL_CTL_ADD);
    }
}

static void run_side(struct side *side)
{
    pthread_t ids[THREADS];
    struct thread threads[THREADS];
    prepare_sets(side);
    for (int i = 0; i < side->threads; i++) {
        threads[i] = (struct thread){side, i};
        CHECK(pthread_create(&ids[i], NULL, loop, &threads[i]) == 0);
    }
    for (int i = 0; i < side->threads; i++) CHECK(pthread_join(ids[i], NULL) == 0);
    exit(0);
}

/* ---- a schedule ---- */

static void plan(uint64_t seed)
{
    *shared = (struct shared){.seed = seed};
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    for (int i = 0; i < 4; i++) next_random(&state);
    for (int s = 0; s < SIDES; s++) {
        struct side *side = &shared->sides[s];
        static const uint32_t outer[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT};
        static const enum nesting nestings[8] = {FLAT, FLAT, FLAT, IN_SET, IN_SET, IN_SET, IN_POLL, IN_SELECT};
        bool exclusive = pick(&state, 4) == 0;
        side->nesting = nestings[pick(&state, 8)];
        side->outer_events = side->nesting == IN_SET ? outer[pick(&state, 3)] : 0;
        side->threads = exclusive ? THREADS : 1 + (int)pick(&state, THREADS);
        side->unfinished = CONNECTIONS;
        side->state = state;
        for (int c = 0; c < CONNECTIONS; c++) {
            struct end *end = &side->ends[c];
            *end = (struct end){.side = s, .number = c, .state = state + (uint64_t)c, .trigger = exclusive ? EXCLUSIVE : (enum trigger)pick(&state, 3)};
            end->low_water = pick(&state, 8) == 0;
            end->quota = 1 + pick(&state, pick(&state, 4) ? 3000000 : 3000);
            pthread_mutex_init(&end->lock, NULL);
        }
    }
    for (int c = 0; c < CONNECTIONS; c++)
        for (int s = 0; s < SIDES; s++) shared->sides[s].ends[c].incoming = shared->sides[1 - s].ends[c].quota;
}

static void prepare_end(struct end *end, int fd)
{
    int small = 20000 + (int)pick(&end->state, 200000);
    if (pick(&end->state, 4) == 0) CHECK(setsockopt(fd, SOL_SOCKET, pick(&end->state, 2) ? SO_SNDBUF : SO_RCVBUF, &small, sizeof small) == 0);
    exchange_until_settled(fd, end->side);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    end->fd = fd;
    end->twin = dup(fd);
    CHECK(end->twin >= 0);
}

static pid_t start_side(int number, int listener, int port)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int c = 0; c < CONNECTIONS; c++)
        prepare_end(&shared->sides[number].ends[c], number == 0 ? accept(listener, NULL, NULL) : connect_to("4", port));
    run_side(&shared->sides[number]);
    exit(1);
}

static void report_hang(int seconds)
{
    fprintf(stderr, "seed %llu: no byte has moved for %d s\n", (unsigned long long)shared->seed, seconds);
    for (int s = 0; s < SIDES; s++)
        for (int c = 0; c < CONNECTIONS; c++) {
            const struct side *side = &shared->sides[s];
            const struct end *e = &side->ends[c];
            if (e->ended && e->shut) continue;
            fprintf(stderr, "  side %d (%d threads, set %s, events %x), connection %d (%s): sent %llu of %llu%s%s, received %llu of %llu%s%s\n", s,
                    side->threads, nesting_names[side->nesting], side->outer_events, c, trigger_names[e->trigger], (unsigned long long)e->sent,
                    (unsigned long long)e->quota, e->shut ? ", shut" : "", e->writable ? ", writable" : "", (unsigned long long)e->received,
                    (unsigned long long)e->incoming, e->ended ? ", ended" : "", e->readable ? ", readable" : "");
        }
}

/* True: both sides have ended well. */
static bool run_seed(uint64_t seed, int hang)
{
    int port = 0, left = SIDES, status;
    plan(seed);
    int listener = listen_on("4", &port);
    pid_t sides[SIDES] = {start_side(0, listener, port), start_side(1, listener, port)};
    close(listener);
    bool good = true;
    uint64_t seen = 0;
    for (int still = 0; left > 0 && good; still++) {
        for (int s = 0; s < SIDES; s++)
            if (sides[s] && waitpid(sides[s], &status, WNOHANG) == sides[s]) sides[s] = 0, left--, good &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (left > 0) nap_ms(5);
        if (seen != atomic_load(&shared->progress)) seen = atomic_load(&shared->progress), still = 0;
        if (still < hang * 200) continue;
        report_hang(hang);
        if (getenv("TORTURE_PAUSE")) pause(); /* for a debugger */
        good = false;
    }
    for (int s = 0; s < SIDES; s++)
        if (sides[s]) kill(sides[s], SIGKILL); /* both first: the end of one is an early end of file for the other */
    for (int s = 0; s < SIDES; s++)
        if (sides[s]) waitpid(sides[s], &status, 0);
    return good;
}

int main(int count, char **words)
{
    CHECK(count >= 3);
    uint64_t seed = strtoull(words[1], NULL, 10), most = count > 3 ? strtoull(words[3], NULL, 10) : UINT64_MAX;
    int hang = getenv("TORTURE_HANG") ? atoi(getenv("TORTURE_HANG")) : 10;
    int seconds = atoi(words[2]);
    time_t until = time(NULL) + seconds;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    uint64_t done = 0;
    for (; done < most && (seconds == 0 || time(NULL) < until); done++) {
        if (getenv("TORTURE_VERBOSE")) fprintf(stderr, "seed %llu\n", (unsigned long long)(seed + done));
        if (!run_seed(seed + done, hang)) return 1;
    }
    fprintf(stderr, "%llu schedules from seed %llu on: as on TCP\n", (unsigned long long)done, (unsigned long long)seed);
}
