/* instructions.c: one thread with two nodes sends empty requests there and back, so that the instructions of each can be counted.
 *
 *     cc -O2 -Iinclude tests/rsr/instructions.c -o instructions -L target/release -lmotet -lpthread
 *     LD_LIBRARY_PATH=target/release valgrind --tool=callgrind --toggle-collect=measured ./instructions WHAT COUNT
 *
 * WHAT: `request`, COUNT requests each way in turn, each handled by a poll; `reply`, the replies to COUNT calls alone, which another thread makes. */
#include <motet_rsr.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WARM_UP = 3000, PING = 1, CALL = 2 };

struct end {
    motet_node node;
    motet_rsr rsr;
    motet_rsr_endpoint endpoint;
    motet_rsr_startpoint start;
};
static struct end ends[2];
static volatile long handled;
static atomic_bool ended;

static void must(int result, const char *what)
{
    if (result >= 0) return;
    fprintf(stderr, "%s: %d\n", what, result);
    exit(1);
}

static void ping(struct motet_rsr_reader *request, void *user)
{
    (void)request, (void)user;
    handled++;
}

static void answer_unmeasured(struct motet_rsr_reader *request, void *user)
{
    (void)user;
    must(motet_rsr_reply(request, 0), "reply");
}

static void send_to(int to)
{
    must(motet_rsr_request(ends[!to].rsr, ends[to].start, NULL, PING, 0, INT64_MAX), "request");
}

static inline __attribute__((always_inline)) void requests(long count)
{
    for (long n = 0; n < count; n++)
        for (int to = 0; to < 2; to++) {
            long before = handled;
            send_to(to);
            while (handled == before)
                must(motet_rsr_poll(ends[to].rsr, INT64_MAX), "poll");
        }
}

static __attribute__((noinline)) void warm_up(void)
{
    requests(WARM_UP);
}

__attribute__((noinline)) void measured(long count)
{
    requests(count);
}

__attribute__((noinline)) void measured_reply(struct motet_rsr_reader *request)
{
    must(motet_rsr_reply(request, 0), "reply");
}

static void answer(struct motet_rsr_reader *request, void *user)
{
    if (handled++ < WARM_UP)
        answer_unmeasured(request, user);
    else
        measured_reply(request);
}

/* Polls one end while the other one's first request makes the link, and while it makes calls. */
static void *polls(void *end)
{
    while (!atomic_load(&ended)) {
        int came = motet_rsr_poll(((struct end *)end)->rsr, 0);
        must(came, "poll");
        if (came == 0) usleep(20); /* valgrind runs one thread at a time */
    }
    return NULL;
}

int main(int argc, char **argv)
{
    struct motet_rsr_handler handlers[] = {
        {.size = sizeof handlers[0], .number = PING, .function = ping},
        {.size = sizeof handlers[0], .number = CALL, .function = answer},
    };
    struct motet_rsr_options options = MOTET_INIT(struct motet_rsr_options);
    struct motet_rsr_reader *reply;
    pthread_t thread;
    if (argc != 3) return 2;
    long count = atol(argv[2]);
    options.reception = MOTET_RSR_CALLER;
    for (int i = 0; i < 2; i++) {
        must(motet_node_open(NULL, &ends[i].node), "a node");
        must(motet_rsr_attach(ends[i].node, &options, &ends[i].rsr), "attach");
        must(motet_rsr_endpoint_open(ends[i].rsr, handlers, 2, NULL, &ends[i].endpoint), "an endpoint");
        must(motet_rsr_startpoint_open(ends[i].endpoint, &ends[i].start), "a startpoint");
    }
    must(pthread_create(&thread, NULL, polls, &ends[1]), "a thread");
    send_to(1);
    while (handled == 0) /* now the other end knows the way back */
        usleep(20);
    if (!strcmp(argv[1], "reply")) {
        for (long n = 0; n < WARM_UP + count; n++) {
            must(motet_rsr_call(ends[0].rsr, ends[1].start, NULL, CALL, 0, INT64_MAX, &reply), "call");
            motet_rsr_reader_free(reply);
        }
        atomic_store(&ended, 1);
        pthread_join(thread, NULL);
    } else {
        atomic_store(&ended, 1);
        pthread_join(thread, NULL);
        warm_up();
        measured(count);
    }
    for (int i = 0; i < 2; i++) {
        must(motet_rsr_startpoint_close(ends[i].start), "close");
        must(motet_rsr_endpoint_close(ends[i].endpoint), "close");
        must(motet_rsr_detach(ends[i].rsr), "detach");
        must(motet_node_close(ends[i].node), "close");
    }
    return 0;
}
