/* An event loop that deletes and adds its descriptors around every request, as some client libraries do. Usage: readds HOW CLIENTS ROUNDS
 * This process holds CLIENTS connections, each with one request in progress; its child serves them. HOW: where a deleted descriptor goes
 *   same      back into its epoll descriptor (first for output, then for input)
 *   turns     into the other one of two
 *   between   it is read and answered while it is in none
 * Now and then an answer is awaited by another call: a blocking receive, poll, or a thread that already sleeps in the epoll descriptor. */
#include "check.h"

enum { MAX = 64, SIZE = 48 };
static const char *how;
static int clients, rounds;
static int epfds[2], fds[MAX], at[MAX], done[MAX];

static void control(int operation, int index, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u32 = (uint32_t)index};
    CHECK(epoll_ctl(epfds[at[index]], operation, fds[index], &event) == 0);
}

static void readd(int index, uint32_t events)
{
    control(EPOLL_CTL_DEL, index, 0);
    errno = 0;
    CHECK(epoll_ctl(epfds[at[index]], EPOLL_CTL_DEL, fds[index], NULL) == -1 && errno == ENOENT);
    if (strcmp(how, "turns") == 0) at[index] ^= 1;
    control(EPOLL_CTL_ADD, index, events);
    if (done[index] % 100 == 7) {
        struct epoll_event event = {.events = events, .data.u32 = (uint32_t)index};
        errno = 0;
        CHECK(epoll_ctl(epfds[at[index]], EPOLL_CTL_ADD, fds[index], &event) == -1 && errno == EEXIST);
    }
}

static void request(int index)
{
    char data[SIZE];
    memset(data, index + done[index], sizeof data);
    send_all(fds[index], data, sizeof data);
}

static void answer(int index, int flags)
{
    char data[SIZE], none;
    ssize_t n = 0;
    while (n < SIZE) {
        ssize_t more = recv(fds[index], data + n, (size_t)(SIZE - n), flags);
        if (more < 0 && errno == EAGAIN) {
            struct pollfd one = {.fd = fds[index], .events = POLLIN};
            CHECK(poll(&one, 1, 10000) == 1);
            continue;
        }
        CHECK(more > 0);
        n += more;
    }
    for (int i = 0; i < SIZE; i++) CHECK(data[i] == (char)(index + done[index]));
    CHECK(recv(fds[index], &none, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    done[index]++;
}

static void event_of(int index, uint32_t events)
{
    if (events & EPOLLOUT) {
        request(index);
        readd(index, EPOLLIN);
        if (done[index] % 50 != 49) return;
        if (strcmp(how, "between") == 0) {
            control(EPOLL_CTL_DEL, index, 0);
            answer(index, done[index] % 100 == 99 ? 0 : MSG_DONTWAIT);
            control(EPOLL_CTL_ADD, index, EPOLLOUT);
        } else {
            readd(index, EPOLLIN);
        }
        return;
    }
    CHECK(events & EPOLLIN);
    answer(index, MSG_DONTWAIT);
    readd(index, EPOLLOUT);
}

static void *adds_later(void *number)
{
    nap_ms(20);
    control(EPOLL_CTL_ADD, *(int *)number, EPOLLIN);
    return NULL;
}

/* A thread sleeps in an epoll descriptor while another thread adds an active stream. */
static void added_under_a_sleeper(int index)
{
    pthread_t thread;
    struct epoll_event event;
    control(EPOLL_CTL_DEL, index, 0);
    for (int i = 0; i < clients; i++)
        if (i != index) control(EPOLL_CTL_DEL, i, 0);
    request(index);
    CHECK(pthread_create(&thread, NULL, adds_later, &index) == 0);
    CHECK(epoll_wait(epfds[at[index]], &event, 1, 10000) == 1 && event.data.u32 == (uint32_t)index);
    CHECK(pthread_join(thread, NULL) == 0);
    answer(index, MSG_DONTWAIT);
    for (int i = 0; i < clients; i++)
        if (i != index) control(EPOLL_CTL_ADD, i, EPOLLOUT);
    control(EPOLL_CTL_MOD, index, EPOLLOUT);
}

static void drive(void)
{
    int open = clients;
    for (int i = 0; i < clients; i++) control(EPOLL_CTL_ADD, i, EPOLLOUT);
    for (unsigned turn = 0; open > 0; turn++) {
        struct epoll_event events[8];
        int n = epoll_wait(epfds[0], events, 8, strcmp(how, "turns") == 0 ? 0 : 10000);
        CHECK(n >= 0);
        if (n == 0) n = epoll_wait(epfds[1], events, 8, strcmp(how, "turns") == 0 ? (int)(turn % 2) : 0);
        for (int i = 0; i < n; i++) {
            int index = (int)events[i].data.u32;
            event_of(index, events[i].events);
            if (done[index] == rounds) {
                control(EPOLL_CTL_DEL, index, 0);
                open--;
                done[index]++;
            }
        }
    }
    for (int i = 0; i < clients; i++) done[i] = 0, control(EPOLL_CTL_ADD, i, EPOLLOUT);
    for (int i = 0; i < 10; i++) added_under_a_sleeper(i % clients);
}

static void serve(int listener)
{
    int epfd = epoll_create1(0), open = clients;
    for (int i = 0; i < clients; i++) {
        int fd = accept(listener, NULL, NULL);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        CHECK(fd >= 0 && epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    while (open > 0) {
        struct epoll_event event;
        char data[SIZE];
        CHECK(epoll_wait(epfd, &event, 1, 10000) == 1);
        ssize_t n = recv(event.data.fd, data, sizeof data, 0);
        CHECK(n >= 0);
        if (n == 0) open--, close(event.data.fd);
        else send_all(event.data.fd, data, (size_t)n);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    how = argv[1];
    clients = atoi(argv[2]);
    rounds = atoi(argv[3]);
    CHECK(clients <= MAX);
    int port = 0, listener = listen_on("4", &port);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        serve(listener);
        exit(0);
    }
    close(listener);
    epfds[0] = epoll_create1(EPOLL_CLOEXEC);
    epfds[1] = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < clients; i++) fds[i] = connect_to("4", port);
    drive();
    for (int i = 0; i < clients; i++) close(fds[i]);
    wait_for(child);
    printf("%s: %d clients, %d rounds\n", how, clients, rounds);
    return 0;
}
