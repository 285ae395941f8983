/* Threads with descriptor tables of their own, where one number means two connections. Argument: how they get them. Before that the process has a
 * connection with unread bytes. */
#include "check.h"

#include <linux/close_range.h>
#include <sched.h>
#include <sys/syscall.h>

#define ROUNDS 500

static const char *how;
static int early, port;
static char before[3000];
static pthread_barrier_t both_connected;

/* One connection of the server. */
static void *echoes(void *number)
{
    char data[256];
    int fd = (int)(intptr_t)number;
    for (ssize_t n; (n = recv(fd, data, sizeof data, 0)) > 0;) send_all(fd, data, (size_t)n);
    close(fd);
    return NULL;
}

static void serve(int listener)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, echoes, (void *)(intptr_t)accept(listener, NULL, NULL)) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void leave_the_table(void)
{
    if (strcmp(how, "unshare") == 0) CHECK(unshare(CLONE_FILES) == 0);
    if (strcmp(how, "raw unshare") == 0) CHECK(syscall(SYS_unshare, CLONE_FILES) == 0);
    if (strcmp(how, "close_range") == 0) CHECK(close_range(5000, 5000, CLOSE_RANGE_UNSHARE) == 0);
}

static void *talks(void *own_table)
{
    char sent[64], got[64];
    if (own_table) leave_the_table();
    memset(sent, own_table ? 'b' : 'a', sizeof sent);
    int fd = connect_to("4", port);
    pthread_barrier_wait(&both_connected);
    for (int round = 0; round < ROUNDS; round++) {
        sent[1] = (char)round;
        send_all(fd, sent, sizeof sent);
        receive_all(fd, got, sizeof got);
        CHECK(memcmp(sent, got, sizeof sent) == 0);
    }
    pthread_barrier_wait(&both_connected);
    if (!own_table) {
        uint64_t state = 1;
        static char expected[sizeof before];
        fill(expected, sizeof expected, &state);
        receive_all(early, before, sizeof before);
        CHECK(memcmp(before, expected, sizeof before) == 0);
    }
    close(fd);
    return NULL;
}

static void accepted(int fd)
{
    uint64_t state = 1;
    int listener;
    exchange_until_settled(fd, 0);
    exchange(fd, 0, 200);
    fill(before, sizeof before, &state);
    CHECK((listener = listen_on("4", &port)) >= 0);
    send_all(fd, &port, sizeof port);
    send_all(fd, before, sizeof before);
    serve(listener);
}

static void connected(int fd)
{
    static char own_table[1];
    pthread_t other;
    early = fd;
    exchange_until_settled(fd, 1);
    exchange(fd, 1, 200);
    receive_all(fd, &port, sizeof port);
    nap_ms(20);
    pthread_barrier_init(&both_connected, NULL, 2);
    CHECK(pthread_create(&other, NULL, talks, own_table) == 0);
    talks(NULL);
    CHECK(pthread_join(other, NULL) == 0);
    printf("each thread had the answers of its own connection\n");
}

int main(int count, char **arguments)
{
    CHECK(count > 1);
    how = arguments[1];
    setvbuf(stdout, NULL, _IOLBF, 4096);
    two_processes("4", accepted, connected);
}
