/* sendfile, splice and writev mixed with send on one connection; the receiver splices some of it out through a pipe.
 * Order and content must hold. */
#include "check.h"
#include <stdbool.h>

enum { ROUNDS = 200, PIECE = 3000 };

static void connected(int fd)
{
    exchange_until_settled(fd, 1);
    char data[PIECE];
    uint64_t state = 3, hash = 0;
    int file = fileno(tmpfile()), pipes[2];
    CHECK(pipe(pipes) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        fill(data, sizeof data, &state);
        hash = hash_more(hash, data, sizeof data);
        send_all(fd, data, 1000);
        if (i % 2) {
            off_t at = i * 1000; /* pages in flight must not be written again */
            CHECK(pwrite(file, data + 1000, 1000, at) == 1000);
            bool by_position = i % 4 == 1;
            off_t end = at + 1000, start = lseek(file, by_position ? at : 7, SEEK_SET);
            for (size_t done = 0; done < 1000;) {
                ssize_t n = sendfile(fd, file, by_position ? NULL : &at, 1000 - done);
                CHECK(n > 0);
                done += (size_t)n;
            }
            CHECK(by_position || at == end);
            CHECK(lseek(file, 0, SEEK_CUR) == (by_position ? end : start));
            CHECK(sendfile(fd, file, &end, 1000) == 0); /* no bytes after the end */
        } else {
            CHECK(write(pipes[1], data + 1000, 1000) == 1000);
            for (size_t done = 0; done < 1000;) {
                ssize_t n = splice(pipes[0], NULL, fd, NULL, 1000 - done, 0);
                CHECK(n > 0);
                done += (size_t)n;
            }
        }
        struct iovec iov[2] = {{data + 2000, 400}, {data + 2400, 600}};
        CHECK(writev(fd, iov, 2) == 1000);
    }
    printf("sent     %016llx\n", (unsigned long long)hash);
    shutdown(fd, SHUT_WR);
    CHECK(recv(fd, data, 1, 0) == 0);
}

static void accepted(int fd)
{
    exchange_until_settled(fd, 0);
    char data[PIECE];
    uint64_t hash = 0;
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    size_t total = 0;
    for (int i = 0;; i++) {
        ssize_t n;
        if (i % 3 == 2) {
            n = splice(fd, NULL, pipes[1], NULL, 700, 0);
            CHECK(n >= 0);
            if (n > 0) CHECK(read(pipes[0], data, (size_t)n) == n);
        } else {
            n = recv(fd, data, 1 + (size_t)(i * 37 % PIECE), 0);
        }
        CHECK(n >= 0);
        if (n == 0) break;
        hash = hash_more(hash, data, (size_t)n);
        total += (size_t)n;
    }
    close(fd);
    nap_ms(50); /* the other process prints first */
    printf("received %016llx, %zu bytes\n", (unsigned long long)hash, total);
    CHECK(total == (size_t)ROUNDS * PIECE);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 4096);
    two_processes("4", accepted, connected);
}
