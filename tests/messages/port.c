/* port.c: ports: their calls compared with the general ones, receives with and without an operation, empty polls and what ends them, other threads that
 * use the node at the same time, and invalid calls. */
#include "check.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { SERVICE = 1, WINDOW = 16, LONGEST = 200000, TURNS = 4000, BATCH = 5 };

/* One of the two nodes. */
struct end {
    motet_node node;
    motet_port port;
    motet_cq cq, other;
    motet_context context;
    motet_channel channel;
};
static struct end ends[2];
static unsigned char buffers[WINDOW][LONGEST], body[LONGEST];
static struct motet_completion taken[BATCH];
static struct motet_port_completion entries[BATCH];
static const uint64_t flags[2] = { 3, 5 };
static uint32_t state = 12345;

static uint32_t chance(uint32_t below)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

static int take(const struct end *end, motet_cq cq)
{
    taken[0].size = sizeof taken[0];
    int count = motet_port_poll_full(end->port, cq, taken, BATCH);
    if (count != -EAGAIN) CHECK(count > 0, 1);
    return count < 0 ? 0 : count;
}

/* Polls entries where they suffice, and converts them to completions; their message_length is not known. */
static int take_entries(const struct end *end, motet_cq cq)
{
    memset(entries, 0xee, sizeof entries);
    int count = motet_port_poll(end->port, cq, entries, BATCH);
    if (count == 0 || count == -EAGAIN) return count == 0 ? take(end, cq) : 0;
    CHECK(count > 0 && count <= BATCH, 1);
    for (int i = 0; i < count; i++) {
        struct motet_completion as = MOTET_INIT(struct motet_completion);
        CHECK(entries[i].flags, flags[1]);
        as.user_data = (uintptr_t)entries[i].op_context;
        as.length = as.message_length = entries[i].length;
        as.tag = entries[i].tag;
        as.channel = end->channel;
        as.headers_length = sizeof entries[i].data;
        memcpy(as.headers, &entries[i].data, sizeof entries[i].data);
        taken[i] = as;
    }
    return count;
}

static void *accepts(void *unused)
{
    CHECK(motet_channel_accept(ends[1].node, SERVICE, SOON, &ends[1].channel), 0);
    return unused;
}

static void meet(void)
{
    struct motet_receive_mode modes[2];
    pthread_t thread;
    motet_link link;
    char name[128];
    for (int i = 0; i < 2; i++) {
        CHECK(motet_node_open(NULL, &ends[i].node), 0);
        CHECK(motet_cq_new(ends[i].node, &ends[i].cq), 0);
        CHECK(motet_cq_new(ends[i].node, &ends[i].other), 0);
        CHECK(motet_context_new(ends[i].node, &ends[i].context), 0);
        modes[i] = tagged(ends[i].context);
        CHECK(motet_service_open(ends[i].node, SERVICE, &modes[i]), 0);
        CHECK(motet_port_open(ends[i].node, flags, &ends[i].port), 0);
    }
    CHECK(motet_node_name(ends[1].node, name, sizeof name) > 0, 1);
    CHECK(pthread_create(&thread, NULL, accepts, NULL), 0);
    CHECK(motet_link_open(ends[0].node, name, SOON, &link), 0);
    CHECK(motet_channel_open(ends[0].node, link, SERVICE, &modes[0], SOON, &ends[0].channel), 0);
    pthread_join(thread, NULL);
}

static void wrong(void)
{
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    motet_operation operation = 7;
    motet_node single;
    motet_port port = (motet_port)&port;
    const struct end *end = &ends[0];
    CHECK(motet_port_open(end->node, flags, NULL), -EINVAL);
    CHECK(motet_port_open(end->node, NULL, &port), -EINVAL);
    CHECK(motet_port_open(0, flags, &port), -EBADF);
    CHECK(port == NULL, 1);
    CHECK(motet_port_close(NULL), -EINVAL);
    options.flags = MOTET_NODE_SINGLE;
    CHECK(motet_node_open(&options, &single), 0);
    CHECK(motet_port_open(single, flags, &port), -EINVAL);
    CHECK(motet_node_close(single), 0);
    CHECK(motet_node_close(end->node), -EBUSY);
    CHECK(motet_port_poll_full(NULL, end->cq, taken, 1), -EINVAL);
    CHECK(motet_port_poll(NULL, end->cq, entries, 1), -EINVAL);
    CHECK(motet_port_post_operation(NULL, 0, end->context, 0, 0, body, 1, end->cq, 0, &operation), -EINVAL);
    CHECK(motet_port_post(NULL, 0, end->context, 0, 0, body, 1, end->cq, 0), -EINVAL);
    CHECK(motet_port_send(NULL, end->channel, 0, NULL, 0, body, 1), -EINVAL);
    taken[0].size = sizeof taken[0];
    CHECK(motet_port_poll_full(end->port, end->cq, taken, 0), -EINVAL);
    CHECK(motet_port_poll(end->port, end->cq, entries, 0), -EINVAL);
    CHECK(motet_port_poll_full(end->port, 0, taken, 1), -EBADF);
    CHECK(motet_port_poll(end->port, 0, entries, 1), -EBADF);
    CHECK(motet_port_poll_full(end->port, 99999, taken, 1), -EBADF);
    CHECK(motet_port_poll(end->port, 99999, entries, 1), -EBADF);
    CHECK(motet_port_post_operation(end->port, end->channel, end->context, 0, 0, body, 1, end->cq, 0, &operation), -EINVAL);
    CHECK(motet_port_post(end->port, end->channel, end->context, 0, 0, body, 1, end->cq, 0), -EINVAL);
    CHECK(motet_port_post_operation(end->port, 0, 0, 0, 0, body, 1, end->cq, 0, &operation), -EBADF);
    CHECK(motet_port_post(end->port, 0, 0, 0, 0, body, 1, end->cq, 0), -EBADF);
    CHECK(motet_port_post_operation(end->port, 0, end->context, 0, 0, NULL, 1, end->cq, 0, &operation), -EINVAL);
    CHECK(motet_port_post(end->port, 0, end->context, 0, 0, NULL, 1, end->cq, 0), -EINVAL);
    CHECK(motet_port_post_operation(end->port, 0, end->context, 0, 0, body, 1, 0, 0, &operation), -EBADF);
    CHECK(motet_port_post(end->port, 0, end->context, 0, 0, body, 1, 0, 0), -EBADF);
    CHECK(motet_port_post_operation(end->port, 0, end->context, 0, 0, body, 1, end->cq, 0, NULL), -EINVAL);
    CHECK(motet_port_send(end->port, 1, 0, NULL, 0, body, 1), -EBADF);
    CHECK(motet_port_send(end->port, end->channel, 0, NULL, 0, NULL, 1), -EINVAL);
    CHECK(motet_port_send(end->port, end->channel, 0, NULL, 0, body, LONGEST), -E2BIG);
    CHECK(motet_port_poll(end->port, end->cq, NULL, 1), -EINVAL);
    CHECK(motet_port_cancel(NULL, end->cq, 0, end->context, 0), -EINVAL);
    CHECK(motet_port_cancel(end->port, 0, 0, end->context, 0), -EBADF);
    CHECK(motet_port_abandon(NULL, end->cq, 0, end->context), -EINVAL);
    CHECK(motet_port_abandon(end->port, end->cq, 1, 1), -EINVAL);
    CHECK(motet_port_abandon(end->port, end->cq, 0, 0), -EBADF);
    for (int i = 0; i < 3000; i++) CHECK(take(end, i % 3 ? end->cq : end->other), 0); /* the state of one queue does not affect the other */
}

/* Messages of all lengths, each for the first posted receive that matches, sometimes of another queue, by either kind of call. */
static void messages(int turns)
{
    for (int turn = 0; turn < turns; turn++) {
        const struct end *sender = &ends[turn & 1], *receiver = &ends[!(turn & 1)];
        unsigned count = 1 + chance(WINDOW), ended = 0;
        size_t lengths[WINDOW], room[WINDOW];
        bool others[WINDOW];
        motet_operation named[WINDOW];
        for (unsigned i = 0; i < count; i++) {
            motet_operation operation = 0;
            lengths[i] = chance(4) ? chance(41) : chance(20) ? chance(2000) : chance(LONGEST);
            room[i] = chance(8) ? LONGEST : chance((uint32_t)lengths[i] + 1);
            others[i] = chance(8) == 0;
            motet_channel on = chance(3) ? 0 : receiver->channel;
            motet_context any = on ? 0 : receiver->context;
            motet_cq cq = others[i] ? receiver->other : receiver->cq;
            uint64_t user_data = (uint64_t)turn << 8 | i;
            unsigned kind = chance(8);
            if (kind > 3) {
                CHECK(motet_port_post(receiver->port, on, any, 5, 0, buffers[i], room[i], cq, user_data), 0);
            } else if (kind > 0) {
                CHECK(motet_port_post_operation(receiver->port, on, any, 5, 0, buffers[i], room[i], cq, user_data, &operation), 0);
            } else {
                struct motet_source source = from(on, any, 5, 0);
                struct motet_completion_options words = options_of(cq, user_data, 0);
                CHECK(motet_message_post(receiver->node, &source, buffers[i], room[i], &words, &operation), 0);
            }
            CHECK(operation != 0, kind <= 3);
            named[i] = operation;
        }
        for (unsigned i = 0; i < count; i++) {
            uint64_t header = (uint64_t)turn << 8 | i;
            struct iovec piece = { body, lengths[i] };
            int result = -E2BIG;
            fill(body, lengths[i], (unsigned)header);
            if (chance(5)) result = motet_port_send(sender->port, sender->channel, 5, &header, sizeof header, body, lengths[i]);
            if (result != 0) { /* longer than a packet, or no room */
                struct motet_outgoing outgoing = message(sender->channel, 5, MOTET_SEND_AUTOMATIC);
                motet_operation operation;
                struct motet_completion_options words = options_of(sender->other, 1, 0);
                CHECK(result == -E2BIG || result == -EAGAIN, 1);
                outgoing.headers = &header, outgoing.headers_length = sizeof header;
                while ((result = motet_message_send_start(sender->node, &outgoing, &piece, 1, &words, &operation)) == -EAGAIN)
                    motet_node_progress(receiver->node);
                CHECK(result, 0);
                for (int done = operation == 0; !done; motet_node_progress(receiver->node))
                    for (int n = take(sender, sender->other); n > 0; n--, done = 1) CHECK(taken[n - 1].status, 0);
            }
        }
        unsigned next[2] = { 0, 0 }; /* completions of a queue are in the order of the messages */
        int64_t until = SOON;
        while (ended < count) {
            int other = chance(2) == 0, found = (chance(2) ? take : take_entries)(receiver, other ? receiver->other : receiver->cq);
            for (int n = 0; n < found; n++) {
                const struct motet_completion *end = &taken[n];
                unsigned i = (unsigned)(end->user_data & 0xff);
                uint64_t header;
                size_t fits = lengths[i] < room[i] ? lengths[i] : room[i];
                CHECK(end->user_data >> 8, turn);
                CHECK(others[i], other);
                CHECK(end->operation, named[i]);
                if (lengths[i] <= 40) CHECK(i >= next[other], 1);
                next[other] = i;
                CHECK(end->status, lengths[i] <= room[i] ? 0 : -EMSGSIZE);
                CHECK(end->length, fits);
                CHECK(end->message_length, lengths[i]);
                CHECK(end->tag, 5);
                CHECK(end->channel, receiver->channel);
                CHECK(end->headers_length, sizeof header);
                memcpy(&header, end->headers, sizeof header);
                CHECK(header, end->user_data);
                CHECK(is_filled(buffers[i], fits, (unsigned)header), 1);
                ended++;
            }
            if (found == 0 && chance(3) == 0) take(sender, sender->cq); /* this makes progress, too: credits, long bodies */
            CHECK(in(0) < until, 1);
        }
    }
}

/* The next poll reports cancelled receives: by operation, or by user_data. */
static void taken_back(void)
{
    motet_operation operation;
    const struct end *end = &ends[0];
    for (int i = 0; i < 1500; i++) CHECK(take_entries(end, end->cq), 0);
    CHECK(motet_port_post_operation(end->port, 0, end->context, 9, 0, body, 8, end->cq, 77, &operation), 0);
    for (int i = 0; i < 40; i++) CHECK(motet_port_post(end->port, i & 1 ? end->channel : 0, i & 1 ? 0 : end->context, 9, 0, body, 8, end->cq, (uint64_t)i), 0);
    for (int i = 0; i < 100; i++) CHECK(take_entries(end, end->cq), 0);
    CHECK(motet_operation_cancel(end->node, operation), 0);
    CHECK(take_entries(end, end->cq), 1);
    CHECK(taken[0].user_data, 77);
    CHECK(taken[0].status, -ECANCELED);
    CHECK(motet_port_cancel(end->port, end->cq, 0, end->context, 77), 0);
    CHECK(motet_port_cancel(end->port, end->other, end->channel, 0, 7), 0);
    CHECK(motet_cq_free(end->node, end->cq), -EAGAIN);
    for (uint64_t i = 0; i < 40; i += 3) {
        motet_channel on = i & 1 ? end->channel : 0;
        CHECK(motet_port_cancel(end->port, end->cq, on ? 0 : end->channel, on ? end->context : 0, i), 0);
        CHECK(motet_port_cancel(end->port, end->cq, on, on ? 0 : end->context, i), 1);
        CHECK(motet_port_cancel(end->port, end->cq, on, on ? 0 : end->context, i), 0);
        CHECK(take_entries(end, end->cq), 1);
        CHECK(taken[0].user_data, i);
        CHECK(taken[0].operation, 0);
        CHECK(taken[0].status, -ECANCELED);
    }
    int left = 40 - 14, ended = 0, found;
    CHECK(motet_port_abandon(end->port, end->other, 0, end->context), 0);
    CHECK(take_entries(end, end->cq), 0);
    CHECK(motet_port_abandon(end->port, end->cq, 0, end->context), 0);
    CHECK(motet_port_abandon(end->port, end->cq, end->channel, 0), 0);
    for (; (found = take_entries(end, end->cq)) > 0; ended += found) CHECK(taken[0].status, -ECANCELED);
    CHECK(ended, left);
}

/* A receive that is abandoned while its message arrives: its buffer is not written any more. */
static void given_up(void)
{
    const struct end *sender = &ends[0], *receiver = &ends[1];
    struct iovec piece = { body, LONGEST };
    struct motet_outgoing outgoing = message(sender->channel, 6, MOTET_SEND_AUTOMATIC);
    struct motet_completion_options words = options_of(sender->other, 2, 0);
    motet_operation operation;
    fill(body, LONGEST, 1);
    CHECK(motet_port_post(receiver->port, receiver->channel, 0, 6, 0, buffers[0], LONGEST, receiver->cq, 1), 0);
    CHECK(motet_message_send_start(sender->node, &outgoing, &piece, 1, &words, &operation), 0);
    for (int i = 0; i < 3; i++) CHECK(take_entries(receiver, receiver->cq), 0); /* the message has started to arrive */
    CHECK(motet_port_abandon(receiver->port, receiver->cq, receiver->channel, 0), 0);
    memset(buffers[0], 0x77, LONGEST);
    int64_t until = SOON;
    for (int done = 0; !done;) {
        CHECK(in(0) < until, 1);
        while (take_entries(receiver, receiver->cq) > 0) CHECK(taken[0].status != 0, 1);
        done = take(sender, sender->other) > 0;
    }
    for (int i = 0; i < 1000; i++) motet_node_progress(receiver->node);
    for (size_t i = 0; i < LONGEST; i++) CHECK(buffers[0][i], 0x77);
}

static atomic_bool over;

static void *disturbs(void *unused)
{
    for (unsigned n = 0; !atomic_load(&over); n++) {
        struct motet_cq_counters counts = MOTET_INIT(struct motet_cq_counters);
        const struct end *end = &ends[n & 1];
        CHECK(motet_cq_counts(end->node, end->other, &counts), 0);
        if (n % 3 == 0) CHECK(motet_node_progress(end->node) >= 0, 1);
        if (n % 16 == 0) usleep(50);
    }
    return unused;
}

/* A forked child cannot use ports. */
static void child(void)
{
    int status;
    pid_t forked = fork();
    if (forked == 0) {
        motet_operation operation;
        taken[0].size = sizeof taken[0];
        CHECK(motet_port_poll(ends[0].port, ends[0].cq, entries, 1), -ECHILD);
        CHECK(motet_port_poll_full(ends[0].port, ends[0].cq, taken, 1), -ECHILD);
        CHECK(motet_port_post(ends[0].port, 0, ends[0].context, 0, 0, body, 1, ends[0].cq, 0), -ECHILD);
        CHECK(motet_port_post_operation(ends[0].port, 0, ends[0].context, 0, 0, body, 1, ends[0].cq, 0, &operation), -ECHILD);
        CHECK(motet_port_cancel(ends[0].port, ends[0].cq, 0, ends[0].context, 0), -ECHILD);
        CHECK(motet_port_abandon(ends[0].port, ends[0].cq, 0, ends[0].context), -ECHILD);
        CHECK(motet_port_send(ends[0].port, ends[0].channel, 0, NULL, 0, body, 1), -ECHILD);
        CHECK(motet_port_close(ends[0].port), 0);
        CHECK(motet_node_close(ends[0].node), 0);
        exit(0);
    }
    CHECK(waitpid(forked, &status, 0), forked);
    CHECK(status, 0);
}

int main(void)
{
    pthread_t thread;
    motet_port again;
    meet();
    wrong();
    messages(TURNS);
    taken_back();
    given_up();
    CHECK(pthread_create(&thread, NULL, disturbs, NULL), 0);
    messages(TURNS / 4);
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    child();
    CHECK(motet_port_open(ends[1].node, flags, &again), 0); /* a second port of the node: only one has the lock's bias */
    CHECK(motet_port_close(ends[1].port), 0);
    CHECK(motet_node_close(ends[1].node), -EBUSY);
    ends[1].port = again;
    messages(10);
    /* A peer that exits: polls report it. */
    CHECK(motet_port_post(ends[0].port, ends[0].channel, 0, 5, 0, body, 8, ends[0].cq, 3), 0);
    CHECK(take(&ends[0], ends[0].cq), 0);
    CHECK(motet_port_close(ends[1].port), 0);
    CHECK(motet_node_close(ends[1].node), 0);
    int64_t until = SOON;
    while (take(&ends[0], ends[0].cq) == 0) CHECK(in(0) < until, 1);
    CHECK(taken[0].status < 0, 1);
    CHECK(motet_port_close(ends[0].port), 0);
    CHECK(motet_node_close(ends[0].node), 0);
    puts("ports carry");
    return 0;
}
