/* One server thread and many clients. Usage: waiters HOW CLIENTS ROUNDS
 * HOW: poll, ppoll, select, pselect, epoll (level), epoll-edge, epoll-oneshot or epoll-pwait2. Each client sends messages of varying size
 * over several connections at once, and checks the echo. The server also watches a pipe. */
#include "check.h"

enum { MAX = 256 };
static int clients, rounds;
static const char *how;
static int fds[MAX];
static int open_count;
static unsigned ticks_seen;

/* Echoes what has arrived; if edge-triggered, until EAGAIN. */
static void serve_one(int index)
{
    char data[5000];
    int again = strcmp(how, "epoll-edge") == 0;
    do {
        ssize_t n = recv(fds[index], data, sizeof data, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) return;
        CHECK(n >= 0);
        if (n == 0) {
            CHECK(close(fds[index]) == 0);
            fds[index] = -1;
            open_count--;
            return;
        }
        send_all(fds[index], data, (size_t)n);
    } while (again);
}

static void serve_tick(int pipe_end)
{
    char byte;
    if (read(pipe_end, &byte, 1) == 1) ticks_seen++;
}

static void with_epoll(int pipe_end)
{
    uint32_t extra = strcmp(how, "epoll-edge") == 0 ? EPOLLET : strcmp(how, "epoll-oneshot") == 0 ? EPOLLONESHOT : 0;
    int epfd = epoll_create1(EPOLL_CLOEXEC);
    CHECK(epfd >= 0);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 100000};
    CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, pipe_end, &event) == 0);
    for (int i = 0; i < clients; i++) {
        event = (struct epoll_event){.events = EPOLLIN | EPOLLRDHUP | extra, .data.u32 = (uint32_t)i};
        CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fds[i], &event) == 0);
    }
    while (open_count > 0) {
        struct epoll_event events[16];
        struct timespec time = {5, 0};
        int n = strcmp(how, "epoll-pwait2") == 0 ? epoll_pwait2(epfd, events, 16, &time, NULL) : epoll_wait(epfd, events, 16, 5000);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            uint32_t index = events[i].data.u32;
            for (int j = 0; j < i; j++) CHECK(events[j].data.u32 != index); /* one event per descriptor */
            if (index == 100000) {
                serve_tick(pipe_end);
                continue;
            }
            CHECK(index < (uint32_t)clients && fds[index] >= 0);
            serve_one((int)index);
            if (extra == EPOLLONESHOT && fds[index] >= 0) {
                event = (struct epoll_event){.events = EPOLLIN | EPOLLRDHUP | extra, .data.u32 = index};
                CHECK(epoll_ctl(epfd, EPOLL_CTL_MOD, fds[index], &event) == 0);
            }
        }
    }
    close(epfd);
}

static void with_poll(int pipe_end)
{
    while (open_count > 0) {
        struct pollfd set[MAX + 1];
        for (int i = 0; i < clients; i++) set[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
        set[clients] = (struct pollfd){.fd = pipe_end, .events = POLLIN};
        struct timespec time = {5, 0};
        int n = strcmp(how, "poll") == 0 ? poll(set, (nfds_t)clients + 1, 5000) : ppoll(set, (nfds_t)clients + 1, &time, NULL);
        CHECK(n > 0);
        int seen = 0;
        for (int i = 0; i <= clients; i++) seen += set[i].revents != 0;
        CHECK(seen == n);
        for (int i = 0; i < clients; i++)
            if (set[i].revents) serve_one(i);
        if (set[clients].revents) serve_tick(pipe_end);
    }
}

static void with_select(int pipe_end)
{
    while (open_count > 0) {
        fd_set set, broken;
        FD_ZERO(&set);
        FD_ZERO(&broken);
        int top = pipe_end;
        FD_SET(pipe_end, &set);
        for (int i = 0; i < clients; i++) {
            if (fds[i] < 0) continue;
            FD_SET(fds[i], &set);
            FD_SET(fds[i], &broken);
            if (fds[i] > top) top = fds[i];
        }
        struct timeval time = {5, 0};
        struct timespec precise = {5, 0};
        int n = strcmp(how, "select") == 0 ? select(top + 1, &set, NULL, &broken, &time)
                                           : pselect(top + 1, &set, NULL, &broken, &precise, NULL);
        CHECK(n > 0);
        int seen = 0;
        for (int fd = 0; fd <= top; fd++) seen += FD_ISSET(fd, &set) ? 1 : 0;
        CHECK(seen == n);
        for (int i = 0; i < clients; i++)
            if (fds[i] >= 0 && FD_ISSET(fds[i], &set)) serve_one(i);
        if (FD_ISSET(pipe_end, &set)) serve_tick(pipe_end);
    }
}

static void client(int port)
{
    int own[MAX];
    size_t sizes[MAX];
    static char out[MAX][4000], in[4000];
    uint64_t state = 5, hash = 0;
    for (int i = 0; i < clients; i++) own[i] = connect_to("4", port);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < clients; i++) {
            sizes[i] = 1 + next_random(&state) % (round % 5 ? 100 : sizeof in);
            if ((round + i) % 7 == 3) sizes[i] = 0; /* some connections are silent in some rounds */
            fill(out[i], sizes[i], &state);
            if (sizes[i]) send_all(own[i], out[i], sizes[i]);
        }
        for (int i = 0; i < clients; i++) {
            receive_all(own[i], in, sizes[i]);
            CHECK(memcmp(in, out[i], sizes[i]) == 0);
            hash = hash_more(hash, in, sizes[i]);
        }
    }
    for (int i = 0; i < clients; i++) close(own[i]);
    printf("%s: %d clients, %d rounds, hash %016llx\n", how, clients, rounds, (unsigned long long)hash);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    how = argv[1];
    clients = atoi(argv[2]);
    rounds = atoi(argv[3]);
    CHECK(clients <= MAX);
    int port = 0, listener = listen_on("4", &port), ticker[2];
    CHECK(pipe(ticker) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(listener);
        client(port);
        exit(0);
    }
    pid_t beat = fork();
    CHECK(beat >= 0);
    if (beat == 0) {
        for (int i = 0; i < 50; i++) {
            nap_ms(2);
            if (write(ticker[1], "", 1) != 1) break;
        }
        _exit(0);
    }
    for (int i = 0; i < clients; i++) CHECK((fds[i] = accept(listener, NULL, NULL)) >= 0);
    open_count = clients;
    close(ticker[1]);
    if (strncmp(how, "epoll", 5) == 0)
        with_epoll(ticker[0]);
    else if (strstr(how, "poll"))
        with_poll(ticker[0]);
    else
        with_select(ticker[0]);
    wait_for(child);
    wait_for(beat);
}
