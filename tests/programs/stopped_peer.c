/* A receiver is stopped (SIGSTOP) again and again while large blocks are on their way to it: non-blocking calls do not block, and everything
 * arrives. */
#include "check.h"

enum { BLOCK = 4 << 20, BLOCKS = 20, STOPS = 15 };
static pid_t receiver;
static _Atomic int over;

static void *stops(void *unused)
{
    (void)unused;
    uint64_t state = 1;
    for (int i = 0; i < STOPS && !over; i++) {
        struct timespec gap = {0, 100000 + next_random(&state) % 3000000};
        nanosleep(&gap, NULL);
        CHECK(kill(receiver, SIGSTOP) == 0);
        nap_ms(30);
        CHECK(kill(receiver, SIGCONT) == 0);
    }
    return NULL;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void sends(int fd)
{
    char *data = malloc(BLOCK), go;
    uint64_t state = 7, hash = 0;
    double longest = 0;
    exchange_until_settled(fd, 0);
    receive_all(fd, &receiver, sizeof receiver);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, stops, NULL) == 0);
    for (int i = 0; i < BLOCKS; i++) {
        fill(data, BLOCK, &state);
        hash = hash_more(hash, data, BLOCK);
        receive_all(fd, &go, 1);
        for (size_t done = 0; done < BLOCK;) {
            double start = seconds();
            ssize_t n = send(fd, data + done, BLOCK - done, MSG_DONTWAIT);
            double took = seconds() - start;
            if (took > longest) longest = took;
            struct pollfd out = {.fd = fd, .events = POLLOUT};
            if (n > 0)
                done += (size_t)n;
            else
                CHECK(errno == EAGAIN && poll(&out, 1, 5000) == 1);
        }
    }
    over = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(recv(fd, &go, 1, 0) == 0); /* it has printed its line */
    printf("sent %016llx, %s\n", (unsigned long long)hash, longest < 2 ? "no call blocked" : "a call blocked");
}

static void receives(int fd)
{
    char *data = malloc(BLOCK);
    uint64_t hash = 0;
    pid_t self = getpid();
    exchange_until_settled(fd, 1);
    send_all(fd, &self, sizeof self);
    for (int i = 0; i < BLOCKS; i++) {
        send_all(fd, "", 1);
        for (size_t done = 0; done < BLOCK;) { /* being stopped cuts a receive short */
            ssize_t n = recv(fd, data + done, BLOCK - done, MSG_WAITALL);
            CHECK(n > 0 || (n < 0 && errno == EINTR));
            if (n > 0) done += (size_t)n;
        }
        hash = hash_more(hash, data, BLOCK);
    }
    printf("received %016llx\n", (unsigned long long)hash);
    fflush(stdout);
    close(fd);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 4096);
    two_processes("4", sends, receives);
}
