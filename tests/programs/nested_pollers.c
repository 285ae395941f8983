/* Threads that read, and poller threads that wait for them in sets within one set, as the virtual threads of JDK 22 and later do. Usage:
 * nested_pollers CONNECTIONS ROUNDS
 *
 * Every read of the server that finds nothing registers its socket once (EPOLLONESHOT) in one of two inner sets. A poller asks its inner set
 * without waiting; when it has nothing, it registers the set once in the outer set, and the only thread that sleeps there tells it. */
#include "check.h"
#include <semaphore.h>
#include <stdbool.h>

enum { POLLERS = 2, MOST = 64, BYTES = 64 };

struct socket_end {
    int fd;
    sem_t readable;
};

struct poller {
    int set;
    sem_t readable;
};

static int outer, rounds;
static struct poller pollers[POLLERS];
static struct socket_end ends[MOST];

/* Registers a descriptor once more, for one event. */
static void await(int set, int fd, void *data, sem_t *readable)
{
    struct epoll_event once = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = data};
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &once) == 0 || (errno == ENOENT && epoll_ctl(set, EPOLL_CTL_ADD, fd, &once) == 0));
    while (sem_wait(readable) != 0) CHECK(errno == EINTR);
}

static void *read_poller(void *argument)
{
    struct poller *poller = argument;
    for (;;) {
        struct epoll_event events[8];
        int count = epoll_wait(poller->set, events, 8, 0);
        CHECK(count >= 0);
        for (int i = 0; i < count; i++) sem_post(&((struct socket_end *)events[i].data.ptr)->readable);
        if (count == 0) await(outer, poller->set, poller, &poller->readable);
    }
    return NULL;
}

static void *master_poller(void *argument)
{
    (void)argument;
    for (;;) {
        struct epoll_event events[POLLERS];
        int count = epoll_wait(outer, events, POLLERS, -1);
        CHECK(count > 0);
        for (int i = 0; i < count; i++) sem_post(&((struct poller *)events[i].data.ptr)->readable);
    }
    return NULL;
}

static void *serve(void *argument)
{
    struct socket_end *end = argument;
    char data[BYTES];
    for (;;) {
        ssize_t n = recv(end->fd, data, sizeof data, 0);
        if (n == 0) return NULL;
        CHECK(n > 0 || errno == EAGAIN);
        if (n > 0) send_all(end->fd, data, (size_t)n);
        else await(pollers[end->fd % POLLERS].set, end->fd, end, &end->readable);
    }
}

static void *request(void *argument)
{
    int fd = *(int *)argument;
    char mine[BYTES], theirs[BYTES];
    for (int i = 0; i < rounds; i++) {
        memset(mine, i, sizeof mine);
        send_all(fd, mine, sizeof mine);
        receive_all(fd, theirs, sizeof theirs);
        CHECK(memcmp(mine, theirs, sizeof mine) == 0);
    }
    close(fd);
    return NULL;
}

static void client(int port, int connections)
{
    int fds[MOST];
    pthread_t ids[MOST];
    for (int i = 0; i < connections; i++) fds[i] = connect_to("4", port);
    for (int i = 0; i < connections; i++) CHECK(pthread_create(&ids[i], NULL, request, &fds[i]) == 0);
    for (int i = 0; i < connections; i++) CHECK(pthread_join(ids[i], NULL) == 0);
    exit(0);
}

int main(int count, char **words)
{
    CHECK(count == 3);
    int connections = atoi(words[1]), port = 0, listener = listen_on("4", &port);
    rounds = atoi(words[2]);
    CHECK(connections <= MOST);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) client(port, connections);
    pthread_t id, ids[MOST];
    outer = epoll_create1(0);
    for (int i = 0; i < POLLERS; i++) {
        pollers[i].set = epoll_create1(0);
        sem_init(&pollers[i].readable, 0, 0);
        CHECK(pthread_create(&id, NULL, read_poller, &pollers[i]) == 0);
    }
    CHECK(pthread_create(&id, NULL, master_poller, NULL) == 0);
    for (int i = 0; i < connections; i++) {
        ends[i].fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        CHECK(ends[i].fd >= 0);
        sem_init(&ends[i].readable, 0, 0);
        CHECK(pthread_create(&ids[i], NULL, serve, &ends[i]) == 0);
    }
    for (int i = 0; i < connections; i++) CHECK(pthread_join(ids[i], NULL) == 0);
    wait_for(child);
    printf("%d connections, %d rounds each\n", connections, rounds);
}
