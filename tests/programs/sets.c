/* Descriptors in more than one epoll set, and nested sets. Usage: sets WHAT HOW COUNT    HOW: level, edge or oneshot
 *   moved      COUNT connections go from an acceptor's set to a worker's and back, some with data waiting
 *   second     one connection in two sets, each waited on by a thread of its own, and in a third thread's poll
 *   exclusive  as second, added with EPOLLEXCLUSIVE: at least one thread is woken
 *   nested     a set in a set in a set; poll on the inner ones; data that arrived before the nesting
 *   twins      two descriptors of one connection in one set
 *   shared     a set that a forked child waits on too */
#include "sets.h"

static const char *how;
static int count;
static int fds[SETS_MAX];

static void echo(int fd)
{
    char data[SETS_SIZE];
    receive_all(fd, data, sizeof data);
    send_all(fd, data, sizeof data);
}

static void settle(int *own, int n)
{
    for (int round = 0; round < 40; round++)
        for (int i = 0; i < n; i++) request_awake(own[i], 's'), answer_awake(own[i], 's');
}

static void settled(void)
{
    for (int round = 0; round < 40; round++)
        for (int i = 0; i < count; i++) echo(fds[i]);
}

/* ---------------------------------------------------------------- moved */

enum { TURNS = 12 };

static void moving_client(int *own, int n)
{
    settle(own, n);
    for (int turn = 0; turn < TURNS; turn++)
        for (int base = 0; base < n; base += 8) {
            int end = base + 8 < n ? base + 8 : n;
            for (int i = base; i < end; i++) request_awake(own[i], (char)turn);
            for (int i = base; i < end; i++) answer_awake(own[i], (char)turn);
        }
}

static void moved(void)
{
    uint32_t kind = kind_of(how);
    int sets[2] = {epoll_create1(0), epoll_create1(0)};
    pid_t child = sets_connect(count, fds, moving_client);
    settled();
    for (int i = 0; i < count; i++) set_add(sets[0], fds[i], kind);
    for (int turn = 0; turn < TURNS; turn++) {
        int at = turn % 2, from = sets[at], to = sets[!at];
        for (int done = 0; done < count;) {
            struct epoll_event events[5];
            int n = epoll_wait(from, events, 5, 10000);
            CHECK(n > 0);
            for (int i = 0; i < n; i++) {
                int fd = events[i].data.fd;
                CHECK(events[i].events == EPOLLIN);
                if (fd % 3 == 0) echo(fd); /* the others move with their data unread */
                set_delete(from, fd);
                set_add(to, fd, kind);
                if (fd % 3 == 0) {
                    done++;
                    continue;
                }
                struct epoll_event other;
                CHECK(epoll_wait(to, &other, 1, 10000) == 1 && other.data.fd == fd);
                echo(fd);
                if (kind == EPOLLONESHOT) set_again(to, fd, kind);
                done++;
            }
        }
    }
    wait_for(child);
    printf("moved %s: %d connections, %d turns\n", how, count, TURNS);
}

/* ---------------------------------------------------------------- second, exclusive */

static pthread_barrier_t told, read_by_now;
static int rounds, set_of[2], tellings;

static void *waits_in_set(void *number)
{
    int epfd = set_of[*(int *)number];
    for (int round = 0; round < rounds; round++) {
        struct epoll_event event;
        CHECK(epoll_wait(epfd, &event, 1, 10000) == 1 && event.data.fd == fds[0] && event.events == EPOLLIN);
        pthread_barrier_wait(&told);
        pthread_barrier_wait(&read_by_now);
        if (strcmp(how, "edge") == 0) CHECK(epoll_wait(epfd, &event, 1, 0) == 0);
        if (strcmp(how, "oneshot") == 0) {
            CHECK(epoll_wait(epfd, &event, 1, 0) == 0);
            set_again(epfd, fds[0], EPOLLONESHOT);
        }
        pthread_barrier_wait(&told);
    }
    return NULL;
}

static void *waits_in_poll(void *none)
{
    for (int round = 0; round < rounds; round++) {
        struct pollfd one = {.fd = fds[0], .events = POLLIN};
        CHECK(poll(&one, 1, 10000) == 1 && one.revents == POLLIN);
        pthread_barrier_wait(&told);
        pthread_barrier_wait(&read_by_now);
        pthread_barrier_wait(&told);
    }
    return none;
}

static void asking_client(int *own, int n)
{
    settle(own, n);
    for (int round = 0; round < rounds; round++) request_awake(own[0], 'q'), answer_awake(own[0], 'q');
}

/* Each waiter must be woken for each request before any of it is read; after that none is woken again. */
static void second(void)
{
    int numbers[2] = {0, 1};
    pthread_t threads[3];
    rounds = 300;
    pid_t child = sets_connect(1, fds, asking_client);
    count = 1;
    settled();
    pthread_barrier_init(&told, NULL, 4);
    pthread_barrier_init(&read_by_now, NULL, 4);
    for (int i = 0; i < 2; i++) {
        set_of[i] = epoll_create1(0);
        set_add(set_of[i], fds[0], kind_of(how));
        CHECK(pthread_create(&threads[i], NULL, waits_in_set, &numbers[i]) == 0);
    }
    CHECK(pthread_create(&threads[2], NULL, waits_in_poll, NULL) == 0);
    for (int round = 0; round < rounds; round++) {
        char data[SETS_SIZE];
        pthread_barrier_wait(&told);
        receive_all(fds[0], data, sizeof data);
        pthread_barrier_wait(&read_by_now);
        pthread_barrier_wait(&told);
        send_all(fds[0], data, sizeof data);
    }
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    wait_for(child);
    printf("second %s: %d requests, all three told of each\n", how, rounds);
}

static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;

/* Some of the waiters are woken; one of them finds the data. */
static void *waits_exclusively(void *none)
{
    int epfd = epoll_create1(0);
    uint32_t kind = strcmp(how, "edge") == 0 ? EPOLLET : 0;
    for (int i = 0; i < count; i++) set_add(epfd, fds[i], EPOLLEXCLUSIVE | kind);
    for (;;) {
        struct epoll_event event;
        int n = epoll_wait(epfd, &event, 1, 100);
        char data[SETS_SIZE];
        CHECK(n >= 0);
        pthread_mutex_lock(&reading);
        bool over = tellings == count * rounds;
        ssize_t got = n == 1 ? recv(event.data.fd, data, sizeof data, MSG_DONTWAIT) : 0;
        if (got > 0) {
            CHECK(got == SETS_SIZE);
            tellings++;
            send_all(event.data.fd, data, sizeof data);
        }
        pthread_mutex_unlock(&reading);
        if (over) return none;
    }
}

static void crowd_client(int *own, int n)
{
    settle(own, n);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < n; i++) request_awake(own[i], (char)i);
        for (int i = 0; i < n; i++) answer_awake(own[i], (char)i);
    }
}

static void exclusively(void)
{
    pthread_t threads[3];
    rounds = 300;
    pid_t child = sets_connect(count, fds, crowd_client);
    settled();
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, waits_exclusively, NULL) == 0);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    wait_for(child);
    CHECK(tellings == count * rounds);
    printf("exclusive %s: %d requests\n", how, tellings);
}

/* ---------------------------------------------------------------- nested */

static int expect(int epfd, int timeout)
{
    struct epoll_event event = {0};
    int n = epoll_wait(epfd, &event, 1, timeout);
    CHECK(n == 0 || event.events == EPOLLIN);
    return n == 1 ? event.data.fd : -1;
}

static void nested_client(int *own, int n)
{
    settle(own, n);
    for (int round = 0; round < rounds + 62; round++) request_awake(own[0], 'n'), answer_awake(own[0], 'n');
}

static void nested(void)
{
    uint32_t kind = kind_of(how);
    int inner = epoll_create1(0), middle = epoll_create1(0), outer = epoll_create1(0);
    rounds = 200;
    pid_t child = sets_connect(1, fds, nested_client);
    count = 1;
    settled();
    set_add(inner, fds[0], 0);
    for (int i = 0; i < 60; i++) { /* the path settles */
        CHECK(expect(inner, 10000) == fds[0]);
        echo(fds[0]);
    }
    CHECK(expect(inner, 10000) == fds[0]);
    set_add(middle, inner, kind); /* with data that was reported and not read */
    set_add(outer, middle, kind);
    CHECK(expect(outer, 10000) == middle && expect(middle, 10000) == inner && expect(inner, 10000) == fds[0]);
    struct pollfd one = {.fd = inner, .events = POLLIN};
    CHECK(poll(&one, 1, 10000) == 1 && one.revents == POLLIN);
    echo(fds[0]);
    if (kind == EPOLLONESHOT) set_again(outer, middle, kind), set_again(middle, inner, kind);
    for (int round = 0; round < rounds; round++) {
        if (round % 3 == 2 && kind == 0) {
            CHECK(poll(&one, 1, 10000) == 1 && one.revents == POLLIN);
        } else {
            CHECK(expect(outer, 10000) == middle);
            CHECK(expect(middle, 10000) == inner);
            if (kind == EPOLLONESHOT) set_again(outer, middle, kind);
        }
        CHECK(expect(inner, 10000) == fds[0]);
        echo(fds[0]);
        if (kind == EPOLLONESHOT) set_again(middle, inner, kind);
    }
    CHECK(expect(inner, 10000) == fds[0]);
    echo(fds[0]);
    wait_for(child);
    printf("nested %s: %d requests\n", how, rounds);
}

/* ---------------------------------------------------------------- twins, shared */

static void twins(void)
{
    int epfd = epoll_create1(0);
    rounds = 200;
    pid_t child = sets_connect(1, fds, asking_client);
    count = 1;
    settled();
    int twin = dup(fds[0]);
    struct epoll_event events[4], writable = {.events = EPOLLOUT | EPOLLET, .data.fd = -1};
    set_add(epfd, fds[0], kind_of(how));
    CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, twin, &writable) == 0);
    for (int served = 0; served < rounds;) {
        int n = epoll_wait(epfd, events, 4, 10000);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == -1) {
                CHECK(events[i].events == EPOLLOUT);
                continue;
            }
            CHECK(events[i].data.fd == fds[0] && events[i].events == EPOLLIN);
            echo(served % 2 ? fds[0] : twin);
            served++;
            if (strcmp(how, "oneshot") == 0) set_again(epfd, fds[0], EPOLLONESHOT);
        }
    }
    wait_for(child);
    printf("twins %s: %d requests\n", how, rounds);
}

static void serve_shared(int epfd)
{
    for (;;) {
        struct epoll_event event;
        char data[SETS_SIZE];
        CHECK(epoll_wait(epfd, &event, 1, 10000) == 1);
        ssize_t n = recv(event.data.fd, data, sizeof data, MSG_DONTWAIT);
        if (n == 0) return;
        CHECK(n < 0 || n == SETS_SIZE);
        if (n > 0) send_all(event.data.fd, data, sizeof data);
        if (strcmp(how, "oneshot") == 0) set_again(epfd, event.data.fd, EPOLLONESHOT);
    }
}

/* Parent and child wait on one set, and the one that is woken answers. The end of the connections wakes both (level), or each in turn. */
static void shared(void)
{
    int epfd = epoll_create1(0);
    rounds = 100;
    pid_t child = sets_connect(count, fds, crowd_client);
    settled();
    for (int i = 0; i < count; i++) set_add(epfd, fds[i], kind_of(how));
    pid_t second_server = fork();
    CHECK(second_server >= 0);
    serve_shared(epfd);
    if (second_server == 0) _exit(0);
    wait_for(child);
    wait_for(second_server);
    printf("shared %s: %d connections, %d rounds\n", how, count, rounds);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    how = argv[2];
    count = atoi(argv[3]);
    if (strcmp(argv[1], "moved") == 0) moved();
    if (strcmp(argv[1], "second") == 0) second();
    if (strcmp(argv[1], "exclusive") == 0) exclusively();
    if (strcmp(argv[1], "nested") == 0) nested();
    if (strcmp(argv[1], "twins") == 0) twins();
    if (strcmp(argv[1], "shared") == 0) shared();
    return 0;
}
