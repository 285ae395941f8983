/* splice() out of a connection takes what the pipe has accepted, and no more: the pipe is full; its reader has closed; another thread fills
 * it all the time. Usage: pipes */
#include "check.h"
#include <stdbool.h>

enum { SIZE = 1000, TOTAL = 4 << 20, PIECE = 4096 };

static void check_next(int fd)
{
    char data[SIZE];
    receive_all(fd, data, SIZE);
    for (int i = 0; i < SIZE; i++) CHECK(data[i] == 'x');
}

static void until_there(int fd)
{
    struct pollfd in = {.fd = fd, .events = POLLIN};
    CHECK(poll(&in, 1, -1) == 1);
}

static void full(int fd)
{
    int ends[2];
    char junk[PIECE] = {0};
    CHECK(pipe2(ends, O_NONBLOCK) == 0);
    while (write(ends[1], junk, sizeof junk) > 0) {}
    until_there(fd);
    CHECK(splice(fd, NULL, ends[1], NULL, SIZE, 0) == -1 && errno == EAGAIN);
    check_next(fd);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void without_reader(int fd)
{
    int ends[2];
    CHECK(pipe(ends) == 0 && close(ends[0]) == 0);
    until_there(fd);
    CHECK(splice(fd, NULL, ends[1], NULL, SIZE, 0) == -1 && errno == EPIPE);
    check_next(fd);
    CHECK(close(ends[1]) == 0);
}

/* ---- crowded */

static int crowd[2];
static volatile bool over;

static void *fills(void *unused)
{
    static char junk[PIECE];
    while (!over)
        if (write(crowd[1], junk, sizeof junk) < 0) CHECK(errno == EAGAIN);
    return unused;
}

static void *empties(void *count)
{
    static char in[PIECE];
    for (;;) {
        ssize_t n = read(crowd[0], in, sizeof in);
        if (n == 0) return NULL;
        CHECK(n > 0 || errno == EAGAIN);
        for (ssize_t i = 0; i < n; i++) *(long *)count += in[i] == 'x';
    }
}

static void crowded(int fd)
{
    pthread_t threads[2];
    long came = 0, moved = 0;
    CHECK(pipe2(crowd, O_NONBLOCK) == 0 && fcntl(crowd[1], F_SETPIPE_SZ, 2 * PIECE) == 2 * PIECE);
    CHECK(pthread_create(&threads[0], NULL, fills, NULL) == 0 && pthread_create(&threads[1], NULL, empties, &came) == 0);
    for (ssize_t n; (n = splice(fd, NULL, crowd[1], NULL, PIECE, 0)) != 0;) {
        CHECK(n > 0 || errno == EAGAIN);
        if (n > 0) moved += n;
    }
    over = true;
    CHECK(pthread_join(threads[0], NULL) == 0 && close(crowd[1]) == 0 && pthread_join(threads[1], NULL) == 0);
    printf("%ld bytes left the connection, %ld came\n", moved, came);
}

/* ---- the two ends */

static void accepted(int fd)
{
    signal(SIGPIPE, SIG_IGN);
    exchange(fd, 0, 200);
    for (int i = 0; i < 20; i++) {
        full(fd);
        send_all(fd, "y", 1);
        without_reader(fd);
        send_all(fd, "y", 1);
    }
    printf("what no pipe took was still there\n");
    crowded(fd);
    close(fd);
}

static void connected(int fd)
{
    static char data[TOTAL];
    char told;
    memset(data, 'x', TOTAL);
    exchange(fd, 1, 200);
    for (int i = 0; i < 40; i++) {
        send_all(fd, data, SIZE);
        receive_all(fd, &told, 1);
    }
    for (int done = 0; done < TOTAL; done += PIECE) send_all(fd, data, PIECE);
    CHECK(shutdown(fd, SHUT_WR) == 0 && recv(fd, &told, 1, 0) == 0);
    close(fd);
}

int main(void)
{
    two_processes("4", accepted, connected);
    return 0;
}
