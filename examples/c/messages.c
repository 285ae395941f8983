/* messages.c: ping-pong with messages: two nodes, one in a child process, linked by name.
 *
 *   cc -O2 -I include examples/c/messages.c -L target/release -lmotet -o messages
 *   LD_LIBRARY_PATH=target/release ./messages [round trips] [bytes]
 *
 * Every answer is checked. Prints the median of seven runs, ns one way, and the driver that carried the messages. */
#define _GNU_SOURCE
#include <motet.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SERVICE = 1, RUNS = 7, WARM = 1000 };

static void check(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "messages: %s: %s\n", what, strerror(-result));
        exit(1);
    }
}

static void run_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set); /* best effort: one CPU is fine too */
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static motet_node open_node(const char *name)
{
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    motet_node node;
    options.name = name;
    options.flags = MOTET_NODE_SINGLE;
    check(motet_node_open(&options, &node), "motet_node_open");
    return node;
}

/* Sends every message back, with the next tag, until the peer has finished. */
static int answer(const char *name, char *data, size_t length)
{
    motet_node node = open_node(name);
    motet_channel channel;
    struct motet_receive_mode mode = MOTET_INIT(struct motet_receive_mode);
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    int result;
    mode.kind = MOTET_RECEIVE_QUEUE;
    check(motet_service_open(node, SERVICE, &mode), "motet_service_open");
    check(motet_channel_accept(node, SERVICE, now_ns() + 10000000000, &channel), "motet_channel_accept");
    while ((result = motet_message_receive(node, channel, data, length, INT64_MAX, &end)) == 0)
        check(motet_message_send(node, channel, end.tag + 1, data, end.length, INT64_MAX), "an answer");
    motet_node_close(node);
    return result != -EPIPE; /* -EPIPE: the peer has finished */
}

static int compare(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? atol(argv[1]) : 100000;
    size_t length = argc > 2 ? strtoul(argv[2], NULL, 0) : 8;
    char *data = calloc(1, length + 1), *back = calloc(1, length + 1), name[64];
    if (rounds < 1 || !data || !back)
        return 2;
    snprintf(name, sizeof name, "messages-%d", getpid());
    pid_t child = fork();
    if (child == 0) {
        run_on(1);
        _exit(answer(name, data, length));
    }
    run_on(0);
    motet_node node = open_node(NULL);
    motet_link link;
    motet_channel channel;
    struct motet_receive_mode mode = MOTET_INIT(struct motet_receive_mode);
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    mode.kind = MOTET_RECEIVE_QUEUE;
    check(motet_link_open(node, name, now_ns() + 10000000000, &link), "motet_link_open");
    int result; /* the node exists before its service is open */
    while ((result = motet_channel_open(node, link, SERVICE, &mode, now_ns() + 10000000000, &channel)) == -ECONNREFUSED)
        usleep(1000);
    check(result, "motet_channel_open");

    double runs[RUNS];
    memset(data, 'x', length);
    for (int run = -1; run < RUNS; run++) {
        int64_t start = now_ns();
        long count = run < 0 ? WARM : rounds;
        for (long i = 0; i < count; i++) {
            if (length > 0)
                data[i % (long)length] = (char)i;
            check(motet_message_send(node, channel, (uint64_t)i, data, length, INT64_MAX), "motet_message_send");
            check(motet_message_receive(node, channel, back, length, INT64_MAX, &end), "motet_message_receive");
            if (end.tag != (uint64_t)i + 1 || end.length != length || memcmp(data, back, length) != 0) {
                fprintf(stderr, "messages: a wrong answer to %ld\n", i);
                return 1;
            }
        }
        if (run >= 0)
            runs[run] = (double)(now_ns() - start) / (double)count / 2;
    }
    struct motet_link_state info = MOTET_INIT(struct motet_link_state);
    check(motet_link_info(node, link, &info), "motet_link_info");
    check(motet_channel_finish(node, channel), "motet_channel_finish");
    int status;
    while (waitpid(child, &status, WNOHANG) == 0) /* the last packets leave as progress is made */
        check(motet_node_progress(node), "motet_node_progress");
    qsort(runs, RUNS, sizeof *runs, compare);
    printf("%zu bytes, one way: median %.0f ns (%.0f to %.0f); driver: %s\n", length, runs[RUNS / 2], runs[0], runs[RUNS - 1],
           info.driver);
    motet_node_close(node);
    free(data);
    free(back);
    return !WIFEXITED(status) || WEXITSTATUS(status);
}
