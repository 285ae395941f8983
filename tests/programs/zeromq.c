/* ZeroMQ over TCP. Usage: zeromq serve (prints two ports) and zeromq call PORT PORT ROUNDS
 * The first port answers requests, the second one takes what is pushed; a request for the sum ends the server. Prints a hash of all answers. */
#include "check.h"

#include <zmq.h>

static int bound(void *socket)
{
    char name[128];
    size_t length = sizeof name;
    CHECK(zmq_bind(socket, "tcp://127.0.0.1:*") == 0);
    CHECK(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, name, &length) == 0);
    return atoi(strrchr(name, ':') + 1);
}

static void joined(void *socket, const char *port)
{
    char name[64];
    snprintf(name, sizeof name, "tcp://127.0.0.1:%s", port);
    CHECK(zmq_connect(socket, name) == 0);
}

enum { MOST = 200000 };
static char out[MOST], in[MOST];

static void serve(void *context)
{
    void *answers = zmq_socket(context, ZMQ_REP), *pulls = zmq_socket(context, ZMQ_PULL);
    printf("ports %d %d\n", bound(answers), bound(pulls));
    fflush(stdout);
    uint64_t hash = 0, taken = 0;
    for (;;) {
        zmq_pollitem_t items[] = {{answers, 0, ZMQ_POLLIN, 0}, {pulls, 0, ZMQ_POLLIN, 0}};
        CHECK(zmq_poll(items, 2, 30000) > 0);
        if (items[1].revents) {
            int n = zmq_recv(pulls, in, MOST, 0);
            CHECK(n >= 0);
            hash = hash_more(hash, in, (size_t)n);
            taken++;
        }
        if (items[0].revents) {
            int n = zmq_recv(answers, in, MOST, 0);
            CHECK(n >= 0);
            uint64_t wanted;
            if (n == sizeof wanted) {
                memcpy(&wanted, in, sizeof wanted);
                while (taken < wanted) {
                    int more = zmq_recv(pulls, out, MOST, 0);
                    CHECK(more >= 0);
                    hash = hash_more(hash, out, (size_t)more);
                    taken++;
                }
                CHECK(zmq_send(answers, &hash, sizeof hash, 0) == sizeof hash);
                break;
            }
            CHECK(zmq_send(answers, in, (size_t)n, 0) == n);
        }
    }
    zmq_close(answers);
    zmq_close(pulls);
}

static void call(void *context, char **words)
{
    void *asks = zmq_socket(context, ZMQ_REQ), *pushes = zmq_socket(context, ZMQ_PUSH);
    joined(asks, words[0]);
    joined(pushes, words[1]);
    uint64_t rounds = (uint64_t)atoi(words[2]), state = 7, hash = 0, pushed = 0, there;
    for (uint64_t i = 0; i < rounds; i++) {
        size_t length = 9 + next_random(&state) % (i % 50 ? 300 : MOST - 9);
        fill(out, length, &state);
        CHECK(zmq_send(pushes, out, length, 0) == (int)length);
        pushed = hash_more(pushed, out, length);
        CHECK(zmq_send(asks, out, length, 0) == (int)length);
        CHECK(zmq_recv(asks, in, MOST, 0) == (int)length);
        CHECK(memcmp(in, out, length) == 0);
        hash = hash_more(hash, in, length);
    }
    CHECK(zmq_send(asks, &rounds, sizeof rounds, 0) == sizeof rounds);
    CHECK(zmq_recv(asks, &there, sizeof there, 0) == sizeof there);
    CHECK(there == pushed);
    printf("%llu requests, hash %016llx\n", (unsigned long long)rounds, (unsigned long long)hash);
    zmq_close(asks);
    zmq_close(pushes);
}

int main(int argc, char **argv)
{
    void *context = zmq_ctx_new();
    CHECK(argc == 2 || argc == 5);
    if (argc == 2)
        serve(context);
    else
        call(context, argv + 2);
    CHECK(zmq_ctx_term(context) == 0);
}
