/* Edges of a set within a set, from connections that are alike. Usage: nested_edges level|renewed ROUNDS
 *
 * The peer sends the same number of bytes by two connections in turn, and waits for each answer. Each message has to bring an edge of the
 * outer set. The inner set is level-triggered; or it is edge-triggered, and a registration that is renewed brings the edge once more. */
#include "check.h"
#include <stdbool.h>

enum { CONNECTIONS = 2, BYTES = 64, LIMIT_MS = 20000 };

static void answer(int fd)
{
    char data[BYTES];
    receive_all(fd, data, sizeof data);
    send_all(fd, data, sizeof data);
}

static void await_edge(int outer)
{
    struct epoll_event event;
    CHECK(epoll_wait(outer, &event, 1, LIMIT_MS) == 1);
}

/* Serves the inner set until it has nothing; returns the messages, at most `left`. */
static int drain(int inner, int left)
{
    struct epoll_event event;
    int served = 0;
    for (; served < left && epoll_wait(inner, &event, 1, 0) == 1; served++) answer(event.data.fd);
    return served;
}

static void renew(int inner)
{
    struct epoll_event event, again = {.events = EPOLLIN | EPOLLET};
    if (epoll_wait(inner, &event, 1, 0) != 1) return;
    again.data.fd = event.data.fd;
    CHECK(epoll_ctl(inner, EPOLL_CTL_MOD, event.data.fd, &again) == 0);
}

int main(int count, char **words)
{
    CHECK(count == 3);
    bool renewed = strcmp(words[1], "renewed") == 0;
    int rounds = atoi(words[2]), port = 0, listener = listen_on("4", &port), fds[CONNECTIONS];
    pid_t child = fork();
    CHECK(child >= 0);
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = child == 0 ? connect_to("4", port) : accept(listener, NULL, NULL);
        CHECK(fds[i] >= 0);
        exchange_until_settled(fds[i], child == 0);
    }
    if (child == 0) {
        for (int i = 0; i < rounds; i++) exchange(fds[i % CONNECTIONS], 1, 1);
        return 0;
    }
    int outer = epoll_create1(0), inner = epoll_create1(0);
    struct epoll_event edge = {.events = EPOLLIN | EPOLLET};
    CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &edge) == 0);
    for (int i = 0; i < CONNECTIONS; i++) {
        struct epoll_event event = {.events = EPOLLIN | (renewed ? EPOLLET : 0), .data.fd = fds[i]};
        CHECK(epoll_ctl(inner, EPOLL_CTL_ADD, fds[i], &event) == 0);
    }
    for (int served = 0; served < rounds;) {
        await_edge(outer);
        if (renewed) {
            renew(inner);
            await_edge(outer);
        }
        served += drain(inner, rounds - served);
    }
    wait_for(child);
    printf("%d messages\n", rounds);
}
