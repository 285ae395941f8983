/* Several threads wait on one epoll set. Usage: set_threads HOW THREADS CLIENTS ROUNDS    HOW: level, edge or oneshot
 * The clients never sleep while they wait, so a lost wakeup is not repaired by a sender that takes bytes back. Part of the time one thread
 * is held by a request until another thread has served another request. A request may be read in two parts. */
#include "sets.h"

#include <stdatomic.h>

static const char *how;
static int threads, clients, rounds, epfd, stop[2];
static int fds[SETS_MAX];
static uint32_t kind;

static struct connection {
    pthread_mutex_t lock;
    size_t held; /* bytes of a request that have been read */
    char data[SETS_SIZE];
    _Atomic int inside;
    _Atomic unsigned told; /* edges reported */
} connections[SETS_MAX];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t went_on = PTHREAD_COND_INITIALIZER;
static unsigned releases;

/* 'h' waits until an 'r' has been served since. */
static void serve(char what)
{
    pthread_mutex_lock(&lock);
    unsigned before = releases;
    if (what == 'r') {
        releases++;
        pthread_cond_broadcast(&went_on);
    }
    while (what == 'h' && releases == before) pthread_cond_wait(&went_on, &lock);
    pthread_mutex_unlock(&lock);
}

/* One receive of a part of a request. False: there was nothing, or end of file. */
static bool read_part(int index)
{
    struct connection *x = &connections[index];
    size_t part = x->held == 0 && x->inside % 2 == 0 ? SETS_SIZE / 4 : SETS_SIZE - x->held;
    ssize_t n = recv(fds[index], x->data + x->held, part, MSG_DONTWAIT);
    CHECK(n >= 0 || errno == EAGAIN);
    if (n <= 0) return false;
    x->held += (size_t)n;
    x->inside++;
    return true;
}

static void answer_whole(int index)
{
    struct connection *x = &connections[index];
    if (x->held < SETS_SIZE) return;
    x->held = 0;
    serve(x->data[0]);
    send_all(fds[index], x->data, SETS_SIZE);
}

/* Serves an edge. A thread that gets an edge while another thread works on that connection leaves it to that thread: if it waited, all other
 * threads could wait behind a request that is held, and none would serve the request that releases it. */
static void edge(int index)
{
    struct connection *x = &connections[index];
    unsigned seen;
    x->told++;
    do {
        if (pthread_mutex_trylock(&x->lock) != 0) return;
        seen = x->told;
        while (read_part(index)) answer_whole(index);
        pthread_mutex_unlock(&x->lock);
    } while (x->told != seen);
}

static void *serves(void *none)
{
    for (;;) {
        struct epoll_event event;
        int n = epoll_wait(epfd, &event, 1, 15000);
        CHECK(n == 1);
        if (event.data.u32 == SETS_MAX) return none;
        int index = (int)event.data.u32;
        struct connection *x = &connections[index];
        CHECK(event.events == EPOLLIN);
        if (kind == EPOLLONESHOT) {
            CHECK(pthread_mutex_trylock(&x->lock) == 0); /* no other thread was woken */
            bool any = read_part(index);
            pthread_mutex_unlock(&x->lock);
            if (!any) continue; /* end of file */
            answer_whole(index);
            event.events = EPOLLIN | EPOLLONESHOT;
            CHECK(epoll_ctl(epfd, EPOLL_CTL_MOD, fds[index], &event) == 0);
            continue;
        }
        if (kind == EPOLLET) {
            edge(index);
            continue;
        }
        /* Several threads may be woken for data that is left: the others continue. */
        if (pthread_mutex_trylock(&x->lock) != 0) continue;
        if (read_part(index)) answer_whole(index);
        pthread_mutex_unlock(&x->lock);
    }
}

static void client(int *own, int n)
{
    for (int round = 0; round < rounds; round++) {
        if (round % 4 == 3 && n >= 2) {
            request_awake(own[0], 'h');
            for (int i = 0; i < round % 7 * 50; i++) sched_yield();
            request_awake(own[1], 'r');
            answer_awake(own[1], 'r');
            request_awake(own[1], 'r'); /* the first request may have arrived before the other thread was held */
            answer_awake(own[1], 'r');
            while (recv(own[0], &(char){0}, 1, MSG_DONTWAIT | MSG_PEEK) < 0) {
                request_awake(own[1], 'r');
                answer_awake(own[1], 'r');
            }
            answer_awake(own[0], 'h');
            continue;
        }
        for (int i = 0; i < n; i++) request_awake(own[i], (char)('A' + round % 20));
        for (int i = 0; i < n; i++) answer_awake(own[i], (char)('A' + round % 20));
    }
}

int main(int argc, char **argv)
{
    pthread_t workers[16];
    CHECK(argc == 5);
    how = argv[1];
    kind = kind_of(how);
    threads = atoi(argv[2]);
    clients = atoi(argv[3]);
    rounds = atoi(argv[4]);
    CHECK(threads <= 16);
    pid_t child = sets_connect(clients, fds, client);
    epfd = epoll_create1(0);
    CHECK(pipe(stop) == 0);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = SETS_MAX};
    CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, stop[0], &event) == 0);
    for (int i = 0; i < threads; i++) CHECK(pthread_create(&workers[i], NULL, serves, NULL) == 0);
    nap_ms(5); /* they sleep before the set has a connection */
    for (int i = 0; i < clients; i++) {
        pthread_mutex_init(&connections[i].lock, NULL);
        event = (struct epoll_event){.events = EPOLLIN | kind, .data.u32 = (uint32_t)i};
        CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fds[i], &event) == 0);
    }
    wait_for(child);
    for (int i = 0; i < clients; i++) CHECK(epoll_ctl(epfd, EPOLL_CTL_DEL, fds[i], NULL) == 0);
    CHECK(write(stop[1], "", 1) == 1);
    for (int i = 0; i < threads; i++) CHECK(pthread_join(workers[i], NULL) == 0);
    printf("%s: %d threads, %d clients, %d rounds\n", how, threads, clients, rounds);
    return 0;
}
