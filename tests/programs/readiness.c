/* What each way of waiting reports in each state of a connection. Usage: readiness WAY
 * WAY: select, pselect, poll, ppoll, poll-chk, epoll, epoll-edge, epoll-oneshot, epoll-exclusive, epoll-pwait, epoll-pwait2, epoll-nested.
 * An idle TCP connection outside of the conversation and a pipe are in every set. The two ends take turns by tokens, so each state is known. */
#include "check.h"

static int go[2], done[2], quiet[2];
static const char *way;
static int epfd = -1, outer = -1, watched = -1, idle = -1;
static int is(const char *name) { return strcmp(way, name) == 0; }

int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t room);

static void ask(char what)
{
    char byte;
    CHECK(write(go[1], &what, 1) == 1);
    CHECK(read(done[0], &byte, 1) == 1);
}

static void enter(int set, int operation, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    CHECK(epoll_ctl(set, operation, fd, &event) == 0);
}

static uint32_t extra(void) { return is("epoll-edge") ? EPOLLET : is("epoll-oneshot") ? EPOLLONESHOT : is("epoll-exclusive") ? EPOLLEXCLUSIVE : 0; }

static uint32_t by_select(uint32_t wanted, int ms)
{
    fd_set in, out, bad;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&bad);
    if (wanted & EPOLLIN) FD_SET(watched, &in);
    if (wanted & EPOLLOUT) FD_SET(watched, &out);
    FD_SET(watched, &bad);
    FD_SET(idle, &in);
    FD_SET(quiet[0], &in);
    struct timeval time = {ms / 1000, ms % 1000 * 1000};
    struct timespec precise = {ms / 1000, ms % 1000 * 1000000l};
    int n = is("select") ? select(FD_SETSIZE, &in, &out, &bad, &time) : pselect(FD_SETSIZE, &in, &out, &bad, &precise, NULL);
    CHECK(n == FD_ISSET(watched, &in) + FD_ISSET(watched, &out) + FD_ISSET(watched, &bad));
    return (FD_ISSET(watched, &in) ? EPOLLIN : 0u) | (FD_ISSET(watched, &out) ? EPOLLOUT : 0u) | (FD_ISSET(watched, &bad) ? EPOLLPRI : 0u);
}

static uint32_t by_poll(uint32_t wanted, int ms)
{
    struct pollfd set[3] = {{.fd = quiet[0], .events = POLLIN}, {.fd = watched, .events = (short)wanted}, {.fd = idle, .events = POLLIN}};
    struct timespec precise = {ms / 1000, ms % 1000 * 1000000l};
    int n = is("poll") ? poll(set, 3, ms) : is("ppoll") ? ppoll(set, 3, &precise, NULL) : __poll_chk(set, 3, ms, sizeof set);
    CHECK(n == (set[1].revents != 0) && set[0].revents == 0 && set[2].revents == 0);
    return (uint16_t)set[1].revents;
}

static uint32_t by_epoll(int ms)
{
    struct epoll_event events[3];
    struct timespec precise = {ms / 1000, ms % 1000 * 1000000l};
    if (outer >= 0 && epoll_wait(outer, events, 3, ms) == 0) return 0;
    int n = is("epoll-pwait")    ? epoll_pwait(epfd, events, 3, ms, NULL)
            : is("epoll-pwait2") ? epoll_pwait2(epfd, events, 3, &precise, NULL)
                                 : epoll_wait(epfd, events, 3, ms);
    CHECK(n == 0 || (n == 1 && events[0].data.fd == watched));
    return n ? events[0].events : 0;
}

/* `comes`: an event is expected; otherwise a short wait without one. */
static void show(const char *state, uint32_t wanted, int comes)
{
    int ms = comes ? 5000 : 20;
    uint32_t seen;
    if (epfd < 0) {
        seen = strstr(way, "select") ? by_select(wanted, ms) : by_poll(wanted, ms);
    } else {
        uint32_t events = wanted | extra();
        if (is("epoll-exclusive")) events &= ~(uint32_t)EPOLLRDHUP; /* may not be combined */
        static uint32_t had;
        static int had_fd = -1;
        if (had_fd != watched || had != wanted || is("epoll-oneshot")) {
            if (is("epoll-exclusive") && had_fd == watched) enter(epfd, EPOLL_CTL_DEL, watched, 0);
            int again = had_fd == watched && !is("epoll-exclusive");
            enter(epfd, again ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, watched, events);
        }
        had = wanted;
        had_fd = watched;
        seen = by_epoll(ms);
    }
    printf("%-30s%s%s%s%s%s%s%s\n", state, seen ? "" : " nothing", seen & EPOLLIN ? " IN" : "", seen & EPOLLOUT ? " OUT" : "",
           seen & EPOLLPRI ? " PRI" : "", seen & EPOLLERR ? " ERR" : "", seen & EPOLLHUP ? " HUP" : "", seen & EPOLLRDHUP ? " RDHUP" : "");
}

static void read_exactly(size_t bytes)
{
    char data[4096];
    receive_all(watched, data, bytes);
}

enum { IN = EPOLLIN | EPOLLRDHUP, OUT = EPOLLOUT | EPOLLRDHUP, BOTH = IN | EPOLLOUT };

static void bytes_come_and_go(void)
{
    show("nothing", IN, 0);
    show("room to write", OUT, 1);
    ask('b');
    show("a hundred bytes", IN, 1);
    show("a hundred bytes, and room", BOTH, 1);
    read_exactly(60);
    show("forty are left", IN, !is("epoll-edge"));
    show("forty are left, and room", BOTH, 1);
    ask('b');
    show("a hundred more", IN, 1);
    read_exactly(140);
    show("all read", IN, 0);
    show("all read, and room", BOTH, 1);
}

static void accepted(int fd)
{
    watched = fd;
    exchange_until_settled(fd, 0);
    if (strstr(way, "epoll")) {
        epfd = epoll_create1(0);
        if (is("epoll-nested")) {
            outer = epoll_create1(0);
            enter(outer, EPOLL_CTL_ADD, epfd, EPOLLIN);
        }
        enter(epfd, EPOLL_CTL_ADD, idle, EPOLLIN);
        enter(epfd, EPOLL_CTL_ADD, quiet[0], EPOLLIN);
    }
    for (int i = 0; i < 3; i++) bytes_come_and_go();
    for (int i = 0; i < 50; i++) { /* the path settles while the wait is in use */
        char data[64];
        ask('e');
        if (epfd < 0 || i % 2) show("an exchange", IN, 1);
        receive_all(fd, data, sizeof data);
    }
    bytes_come_and_go();
    ask('b');
    ask('w');
    show("bytes, then a half-close", IN, 1);
    read_exactly(100);
    show("half-closed", IN, !is("epoll-edge"));
    show("half-closed, and room", BOTH, 1);
    CHECK(send(fd, "x", 1, 0) == 1);
    ask('r'); /* the other end closes over that byte */
    struct pollfd end = {.fd = fd, .events = 0};
    CHECK(poll(&end, 1, 5000) == 1);
    show("reset", BOTH, 1);
    close(fd);
}

static void connected(int fd)
{
    char data[4096] = {0};
    exchange_until_settled(fd, 1);
    for (char what;;) {
        CHECK(read(go[0], &what, 1) == 1);
        if (what == 'b') send_all(fd, data, 100);
        if (what == 'e') send_all(fd, data, 64);
        if (what == 'w') CHECK(shutdown(fd, SHUT_WR) == 0);
        if (what == 'r') {
            struct pollfd in = {.fd = fd, .events = POLLIN};
            CHECK(poll(&in, 1, 5000) == 1);
            CHECK(close(fd) == 0);
        }
        CHECK(write(done[1], "", 1) == 1);
        if (what == 'r') return;
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    way = argv[1];
    CHECK(pipe(go) == 0 && pipe(done) == 0 && pipe(quiet) == 0);
    int port = 0, listener = listen_on("4", &port), other = connect_to("4", port);
    idle = accept(listener, NULL, NULL);
    CHECK(idle >= 0 && other >= 0);
    two_processes("4", accepted, connected);
}
