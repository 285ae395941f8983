/* zeromq.c: measures requests and answers over the tcp transport of ZeroMQ.
 *
 *   zeromq serve         prints "port N" and answers until it is ended
 *   zeromq call PORT     for each line "SIZE MS" of its input prints "MEDIAN MEAN COUNT" as peer.h says: ns for a round trip */
#include "peer.h"

#include <zmq.h>

struct call {
    void *socket;
    size_t size;
    char *data;
};

static void round_trips(void *context, long count)
{
    struct call *call = context;
    while (count-- > 0)
        if (zmq_send(call->socket, call->data, call->size, 0) < 0 || zmq_recv(call->socket, call->data, call->size, 0) < 0)
            fail("zmq");
}

static void serve(void *socket)
{
    char name[128];
    size_t length = sizeof name;
    if (zmq_bind(socket, "tcp://127.0.0.1:*") || zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, name, &length)) fail("zmq_bind");
    printf("port %s\n", strrchr(name, ':') + 1);
    fflush(stdout);
    for (zmq_msg_t message;;) {
        zmq_msg_init(&message);
        if (zmq_msg_recv(&message, socket, 0) < 0 || zmq_msg_send(&message, socket, 0) < 0) fail("zmq");
    }
}

int main(int argc, char **argv)
{
    void *context = zmq_ctx_new();
    if (argc == 2) serve(zmq_socket(context, ZMQ_REP));
    char name[64];
    struct call call = {.socket = zmq_socket(context, ZMQ_REQ)};
    snprintf(name, sizeof name, "tcp://127.0.0.1:%s", argv[2]);
    if (zmq_connect(call.socket, name)) fail("zmq_connect");
    for (double ms; scanf("%zu %lf", &call.size, &ms) == 2;) {
        call.data = calloc(1, call.size);
        measure(round_trips, &call, 0, ms, 1);
        fflush(stdout);
        free(call.data);
    }
    zmq_close(call.socket);
    zmq_ctx_term(context);
    return 0;
}
