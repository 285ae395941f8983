/* Many megabytes in random pieces, in both directions at once. Usage: bulk MEGABYTES [SEED]
 * Prints the hashes that each end computed of what it sent and received. */
#include "check.h"

static size_t total;
static uint64_t seed = 7;
static uint64_t sent_hash;

static void *sender(void *argument)
{
    int fd = *(int *)argument;
    uint64_t state = seed * 2 + (uint64_t)getpid() % 1;
    static char data[300000];
    for (size_t done = 0; done < total;) {
        uint32_t kind = next_random(&state) % 8;
        size_t n = 1 + next_random(&state) % (kind == 0 ? sizeof data : kind < 4 ? 70000 : 400);
        if (n > total - done) n = total - done;
        fill(data, n, &state);
        sent_hash = hash_more(sent_hash, data, n);
        if (kind == 5) {
            struct iovec iov[4] = {{data, n / 3}, {NULL, 0}, {data + n / 3, n - n / 3 - n / 5}, {data + n - n / 5, n / 5}};
            CHECK(writev(fd, iov, 4) == (ssize_t)n); /* blocking: all of it */
        } else {
            CHECK(send(fd, data, n, 0) == (ssize_t)n);
        }
        done += n;
    }
    return NULL;
}

static void both(int fd, const char *name)
{
    pthread_t thread;
    static char data[200000];
    uint64_t state = seed + 99, hash = 0;
    CHECK(pthread_create(&thread, NULL, sender, &fd) == 0);
    for (size_t done = 0; done < total;) {
        size_t n = 1 + next_random(&state) % (next_random(&state) % 4 ? 3000 : sizeof data);
        ssize_t got = next_random(&state) % 3 ? recv(fd, data, n, 0) : read(fd, data, n);
        CHECK(got > 0);
        hash = hash_more(hash, data, (size_t)got);
        done += (size_t)got;
    }
    pthread_join(thread, NULL);
    shutdown(fd, SHUT_WR);
    CHECK(recv(fd, data, 1, 0) == 0);
    printf("%s sent %016llx received %016llx\n", name, (unsigned long long)sent_hash, (unsigned long long)hash);
    CHECK(sent_hash == hash); /* both ends send the same stream */
}

static void accepted(int fd)
{
    exchange_until_settled(fd, 0);
    both(fd, "accepted");
}

static void connected(int fd)
{
    exchange_until_settled(fd, 1);
    both(fd, "connected");
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    total = (size_t)atoi(argv[1]) << 20;
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    FILE *ordered = stdout;
    setvbuf(ordered, NULL, _IOLBF, 4096);
    int port = 0, listener = listen_on("4", &port);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int fd = connect_to("4", port);
        close(listener);
        stdout = fopen("/dev/null", "w");
        connected(fd);
        exit(0);
    }
    accepted(accept(listener, NULL, NULL));
    wait_for(child);
}
