/* A socket is disconnected by connect(AF_UNSPEC) and connected to another peer, which alone receives what is sent then. The first peer
 * computes meanwhile, and reads an error. */
#include "check.h"
#include <stdatomic.h>
#include <sys/mman.h>

static _Atomic int *sent;

int main(void)
{
    int ports[2] = {0, 0}, listeners[2] = {listen_on("4", &ports[0]), listen_on("4", &ports[1])};
    sent = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(sent != MAP_FAILED);
    setvbuf(stdout, NULL, _IOLBF, 4096);
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child > 0) continue;
        int fd = accept(listeners[i], NULL, NULL);
        char got[16] = {0};
        if (i == 0) {
            exchange(fd, 0, 300);
            while (atomic_load(sent) == 0) {}
        }
        if (i == 0) CHECK(recv(fd, got, sizeof got, 0) < 0 && errno == ECONNRESET);
        else receive_all(fd, got, 5);
        CHECK(i == 0 || strcmp(got, "for B") == 0);
        exchange(i == 0 ? accept(listeners[0], NULL, NULL) : fd, 0, 100);
        exit(0);
    }
    int fd = connect_to("4", ports[0]);
    exchange(fd, 1, 300);
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    struct sockaddr_storage second;
    socklen_t length = loopback("4", ports[1], &second);
    CHECK(connect(fd, &nobody, sizeof nobody) == 0);
    CHECK(connect(fd, (struct sockaddr *)&second, length) == 0);
    send_all(fd, "for B", 5);
    atomic_store(sent, 1);
    exchange(fd, 1, 100);
    int again = connect_to("4", ports[0]);
    exchange(again, 1, 100);
    CHECK(wait(NULL) > 0 && wait(NULL) > 0);
    close(fd);
    close(again);
    puts("each has read what was for it");
}
