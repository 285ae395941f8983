/* A connection between two addresses of a network namespace, or between two namespaces. Usage: distant addresses|hosts    (root) */
#include "check.h"
#include <sched.h>

enum { PORT = 7000 };
static const char *const addresses[2] = {"10.77.0.1", "10.77.0.2"};

static struct sockaddr_in at(int which, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    CHECK(inet_pton(AF_INET, addresses[which], &address.sin_addr) == 1);
    return address;
}

static void command(const char *text, long number)
{
    char line[256];
    snprintf(line, sizeof line, text, number);
    CHECK(system(line) == 0);
}

int main(int count, char **words)
{
    CHECK(count == 2);
    int far = strcmp(words[1], "hosts") == 0, moved[2], linked[2];
    char byte;
    CHECK(unshare(CLONE_NEWNET) == 0 && pipe(moved) == 0 && pipe(linked) == 0);
    command("ip link set lo up", 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (far) CHECK(unshare(CLONE_NEWNET) == 0);
        CHECK(write(moved[1], "", 1) == 1 && read(linked[0], &byte, 1) == 1);
        if (far) command("ip address add 10.77.0.1/24 dev there && ip link set there up", 0);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in own = at(0, 0), peer = at(1, PORT);
        CHECK(bind(fd, (struct sockaddr *)&own, sizeof own) == 0);
        CHECK(connect(fd, (struct sockaddr *)&peer, sizeof peer) == 0);
        exchange_until_settled(fd, 1);
        return 0;
    }
    CHECK(read(moved[0], &byte, 1) == 1);
    if (far) command("ip link add here type veth peer name there netns %ld && ip address add 10.77.0.2/24 dev here && ip link set here up", child);
    else command("ip address add 10.77.0.1/32 dev lo && ip address add 10.77.0.2/32 dev lo", 0);
    struct sockaddr_in own = at(1, PORT);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&own, sizeof own) == 0 && listen(listener, 1) == 0 && write(linked[1], "", 1) == 1);
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    exchange_until_settled(fd, 0);
    wait_for(child);
    printf("exchanged\n");
}
