/* stream.c: messages one after another, one byte back after each block of them. Figures are ns for a message. See peer.h.
 *
 * Both ends use `BUFFERS` distinct buffers in turn (fifth argument of call; 1: always the same). */
#include "peer.h"

struct plan {
    uint64_t size, count, buffers;
};

struct call {
    int fd;
    struct plan plan;
    char **buffers;
    uint64_t next;
};

static char **make_buffers(const struct plan *plan)
{
    char **buffers = calloc(plan->buffers, sizeof *buffers);
    for (uint64_t i = 0; i < plan->buffers; i++) {
        if (!buffers || !(buffers[i] = aligned_alloc(4096, (plan->size + 4095) & ~4095ull))) fail("buffers");
        memset(buffers[i], 1, plan->size);
    }
    return buffers;
}

static void free_buffers(const struct plan *plan, char **buffers)
{
    for (uint64_t i = 0; i < plan->buffers; i++)
        free(buffers[i]);
    free(buffers);
}

static void one_block(void *context, long count)
{
    struct call *call = context;
    char done;
    while (count-- > 0)
        send_all(call->fd, call->buffers[call->next++ % call->plan.buffers], call->plan.size);
    if (!receive_all(call->fd, &done, 1)) {
        fprintf(stderr, "stream: the server closed the connection\n");
        exit(1);
    }
}

static void serve(int fd)
{
    struct plan plan;
    greet(fd, 0);
    if (!receive_all(fd, &plan, sizeof plan)) return;
    char **buffers = make_buffers(&plan);
    for (uint64_t i = 0; receive_all(fd, buffers[i % plan.buffers], plan.size);)
        if (++i % plan.count == 0) send_all(fd, "", 1);
    free_buffers(&plan, buffers);
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "serve")) {
        int fd = accept_one(listen_anywhere());
        serve(fd);
        close(fd);
    } else if ((argc == 6 || argc == 7) && !strcmp(argv[1], "call")) {
        uint64_t size = strtoull(argv[4], NULL, 0), count = (16 << 20) / size;
        struct plan plan = {size, count < 1 ? 1 : count > 4096 ? 4096 : count, argc == 7 ? strtoull(argv[6], NULL, 0) : 1};
        struct call call = {connect_to(argv[2], argv[3]), plan, make_buffers(&plan), 0};
        greet(call.fd, 1);
        send_all(call.fd, &plan, sizeof plan);
        measure(one_block, &call, plan.count, atof(argv[5]), 1);
        close(call.fd);
        free_buffers(&plan, call.buffers);
    } else {
        fprintf(stderr, "stream: usage: serve | call HOST PORT SIZE MS [BUFFERS]\n");
        return 2;
    }
    return 0;
}
