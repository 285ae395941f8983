/* posted.c: one thread with two nodes sends and receives messages, by posted receives whose completions a completion queue reports, as
 * a library over motet.h (MPI, libfabric) does. No call waits, so that instructions can be counted.
 *
 *     cc -O2 -Iinclude tests/bench/posted.c -o posted -L target/release -lmotet -lpthread
 *     LD_LIBRARY_PATH=target/release valgrind --tool=callgrind --toggle-collect=measured ./posted WHAT SIZE COUNT [port]
 *
 * WHAT: `turn`, one message at a time, each way in turn; `headers`, as `turn`, with a header of 8 bytes; `early`, as `headers`, but each
 * message arrives before its receive is posted; `blocking`, as `turn`, by blocking calls; `window`, 64 at a time, answered by one of 4 bytes;
 * `poll`, empty polls. `port` makes the calls of a port instead. `window` has COUNT messages and their answers, `poll` COUNT polls,
 * all others 2 * COUNT messages. */
#include "motet.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { SERVICE = 1, WINDOW = 64, LONGEST = 1 << 14, BATCH = 16, ANSWER = 4 };

/* One of the two ends. */
struct end {
    motet_node node;
    motet_port port;
    motet_cq queue;
    motet_context context;
    motet_channel channel;
};
static struct end ends[2];
static struct motet_completion completions[BATCH];
static struct motet_port_completion entries[BATCH];
static bool ports;
static char body[LONGEST], buffers[WINDOW][LONGEST];

static void must(int result, const char *what)
{
    if (result >= 0) return;
    fprintf(stderr, "%s: %d\n", what, result);
    exit(1);
}

static void post(const struct end *end, uint64_t tag, void *buffer, size_t size)
{
    struct motet_completion_options options = MOTET_INIT(struct motet_completion_options);
    struct motet_source source = MOTET_INIT(struct motet_source);
    motet_operation operation;
    options.cq = end->queue;
    options.user_data = (uintptr_t)buffer;
    source.context = end->context;
    source.tag = tag;
    if (ports) {
        must(motet_port_post(end->port, 0, end->context, tag, 0, buffer, size, end->queue, (uintptr_t)buffer), "post");
        return;
    }
    must(motet_message_post(end->node, &source, buffer, size, &options, &operation), "post");
}

static void put(const struct end *end, uint64_t tag, size_t size, uint32_t headers)
{
    struct motet_outgoing message = MOTET_INIT(struct motet_outgoing);
    struct iovec vector = { body, size };
    uint64_t header = tag;
    motet_operation none;
    if (ports) {
        must(motet_port_send(end->port, end->channel, tag, &header, headers, body, size), "inject");
        return;
    }
    message.channel = end->channel;
    message.tag = tag;
    message.mode = MOTET_SEND_INJECT;
    message.headers = &header;
    message.headers_length = headers;
    must(motet_message_send_start(end->node, &message, &vector, 1, NULL, &none), "start");
}

static int look(const struct end *end)
{
    if (ports) {
        int count = motet_port_poll(end->port, end->queue, entries, BATCH);
        if (count != 0) return count == -EAGAIN ? 0 : (must(count, "take"), count);
    }
    completions[0].size = sizeof completions[0];
    int count = ports ? motet_port_poll_full(end->port, end->queue, completions, BATCH) : motet_cq_wait(end->node, end->queue, completions, BATCH, 0);
    if (count != -EAGAIN) must(count, "wait");
    for (int i = 0; i < count; i++)
        must(completions[i].status, "a message");
    return count < 0 ? 0 : count;
}

static void take(const struct end *end, int count)
{
    while (count > 0)
        count -= look(end);
}

__attribute__((noinline)) void measured(const char *what, size_t size, long count)
{
    bool window = !strcmp(what, "window"), poll = !strcmp(what, "poll"), blocking = !strcmp(what, "blocking");
    bool early = !strcmp(what, "early");
    uint32_t headers = early || !strcmp(what, "headers") ? 8 : 0;
    for (long n = 0; n < count && poll; n++)
        look(&ends[0]);
    for (long n = 0; n < count && window; n += WINDOW) {
        for (int i = 0; i < WINDOW; i++)
            post(&ends[1], 1, buffers[i], size);
        for (int i = 0; i < WINDOW; i++)
            put(&ends[0], 1, size, 0);
        take(&ends[1], WINDOW);
        post(&ends[0], 2, buffers[0], ANSWER);
        put(&ends[1], 2, ANSWER, 0);
        take(&ends[0], 1);
    }
    for (long n = 0; n < count && blocking; n++)
        for (int from = 0; from < 2; from++) {
            must(motet_message_send(ends[from].node, ends[from].channel, (uint64_t)n, body, size, INT64_MAX), "send");
            completions[0].size = sizeof completions[0];
            must(motet_message_receive(ends[!from].node, ends[!from].channel, buffers[from], size, INT64_MAX, completions), "receive");
        }
    for (long n = 0; n < count && !window && !poll && !blocking; n++)
        for (int from = 0; from < 2; from++) {
            if (!early) post(&ends[!from], (uint64_t)n, buffers[from], size);
            put(&ends[from], (uint64_t)n, size, headers);
            if (early) {
                must(-look(&ends[!from]), "a message without a receive");
                post(&ends[!from], (uint64_t)n, buffers[from], size);
            }
            take(&ends[!from], 1);
        }
}

static void *accepts(void *unused)
{
    must(motet_channel_accept(ends[1].node, SERVICE, INT64_MAX, &ends[1].channel), "accept");
    return unused;
}

int main(int argc, char **argv)
{
    struct motet_receive_mode receptions[2];
    pthread_t thread;
    motet_link link;
    char name[128];
    ports = argc == 5 && !strcmp(argv[4], "port");
    if (argc != 4 + ports || strtoul(argv[2], NULL, 10) > LONGEST) return 2;
    for (int i = 0; i < 2; i++) {
        struct end *end = &ends[i];
        must(motet_node_open(NULL, &end->node), "a node");
        must(ports ? motet_port_open(end->node, (const uint64_t[2]){ 1, 2 }, &end->port) : 0, "a port");
        must(motet_cq_new(end->node, &end->queue), "a completion queue");
        must(motet_context_new(end->node, &end->context), "a context");
        receptions[i] = (struct motet_receive_mode){ sizeof receptions[i], MOTET_RECEIVE_TAGGED, 0, end->context };
        must(motet_service_open(end->node, SERVICE, &receptions[i]), "a service");
    }
    must((int)motet_node_name(ends[1].node, name, sizeof name), "a name");
    must(-pthread_create(&thread, NULL, accepts, NULL), "a thread");
    must(motet_link_open(ends[0].node, name, INT64_MAX, &link), "a link");
    must(motet_channel_open(ends[0].node, link, SERVICE, &receptions[0], INT64_MAX, &ends[0].channel), "a channel");
    pthread_join(thread, NULL);
    measured(argv[1], strtoul(argv[2], NULL, 10), strtol(argv[3], NULL, 10));
    for (int i = 0; i < 2; i++) {
        must(ports ? motet_port_close(ends[i].port) : 0, "a port");
        must(motet_node_close(ends[i].node), "the end");
    }
    return 0;
}
