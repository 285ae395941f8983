/* port.c: a port: its calls beside the ones that they stand for, receives with and without names, looks that find nothing and what ends them,
 * other threads that use the node at the same time, and calls that are wrong. */
#include "check.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { SERVICE = 1, WINDOW = 16, LONGEST = 200000, TURNS = 4000, BATCH = 5 };

/* One of the two. */
struct end {
    motet_node node;
    motet_port port;
    motet_group group, other;
    motet_context context;
    motet_channel channel;
};
static struct end ends[2];
static unsigned char buffers[WINDOW][LONGEST], body[LONGEST];
static struct motet_completion taken[BATCH];
static struct motet_port_end entries[BATCH];
static const uint64_t flags[2] = { 3, 5 };
static uint32_t state = 12345;

static uint32_t chance(uint32_t below)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

static int take(const struct end *end, motet_group group)
{
    taken[0].size = sizeof taken[0];
    int count = motet_port_ends(end->port, group, taken, BATCH);
    if (count != -EAGAIN) CHECK(count > 0, 1);
    return count < 0 ? 0 : count;
}

/* The same by entries where that is all that there is; as completions, whose `full` is not known. */
static int take_entries(const struct end *end, motet_group group)
{
    memset(entries, 0xee, sizeof entries);
    int count = motet_port_take(end->port, group, entries, BATCH);
    if (count == 0 || count == -EAGAIN) return count == 0 ? take(end, group) : 0;
    CHECK(count > 0 && count <= BATCH, 1);
    for (int i = 0; i < count; i++) {
        struct motet_completion as = MOTET_INIT(struct motet_completion);
        CHECK(entries[i].flags, flags[1]);
        as.context = (uintptr_t)entries[i].context;
        as.length = as.full = entries[i].length;
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
    struct motet_reception receptions[2];
    pthread_t thread;
    motet_link link;
    char name[128];
    for (int i = 0; i < 2; i++) {
        CHECK(motet_node_open(NULL, &ends[i].node), 0);
        CHECK(motet_group_new(ends[i].node, &ends[i].group), 0);
        CHECK(motet_group_new(ends[i].node, &ends[i].other), 0);
        CHECK(motet_context_new(ends[i].node, &ends[i].context), 0);
        receptions[i] = tagged(ends[i].context);
        CHECK(motet_service_open(ends[i].node, SERVICE, &receptions[i]), 0);
        CHECK(motet_port_open(ends[i].node, flags, &ends[i].port), 0);
    }
    CHECK(motet_node_name(ends[1].node, name, sizeof name) > 0, 1);
    CHECK(pthread_create(&thread, NULL, accepts, NULL), 0);
    CHECK(motet_link_open(ends[0].node, name, SOON, &link), 0);
    CHECK(motet_channel_open(ends[0].node, link, SERVICE, &receptions[0], SOON, &ends[0].channel), 0);
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
    CHECK(motet_port_ends(NULL, end->group, taken, 1), -EINVAL);
    CHECK(motet_port_take(NULL, end->group, entries, 1), -EINVAL);
    CHECK(motet_port_begin(NULL, 0, end->context, 0, 0, body, 1, end->group, 0, &operation), -EINVAL);
    CHECK(motet_port_post(NULL, 0, end->context, 0, 0, body, 1, end->group, 0), -EINVAL);
    CHECK(motet_port_send(NULL, end->channel, 0, NULL, 0, body, 1), -EINVAL);
    taken[0].size = sizeof taken[0];
    CHECK(motet_port_ends(end->port, end->group, taken, 0), -EINVAL);
    CHECK(motet_port_take(end->port, end->group, entries, 0), -EINVAL);
    CHECK(motet_port_ends(end->port, 0, taken, 1), -EBADF);
    CHECK(motet_port_take(end->port, 0, entries, 1), -EBADF);
    CHECK(motet_port_ends(end->port, 99999, taken, 1), -EBADF);
    CHECK(motet_port_take(end->port, 99999, entries, 1), -EBADF);
    CHECK(motet_port_begin(end->port, end->channel, end->context, 0, 0, body, 1, end->group, 0, &operation), -EINVAL);
    CHECK(motet_port_post(end->port, end->channel, end->context, 0, 0, body, 1, end->group, 0), -EINVAL);
    CHECK(motet_port_begin(end->port, 0, 0, 0, 0, body, 1, end->group, 0, &operation), -EBADF);
    CHECK(motet_port_post(end->port, 0, 0, 0, 0, body, 1, end->group, 0), -EBADF);
    CHECK(motet_port_begin(end->port, 0, end->context, 0, 0, NULL, 1, end->group, 0, &operation), -EINVAL);
    CHECK(motet_port_post(end->port, 0, end->context, 0, 0, NULL, 1, end->group, 0), -EINVAL);
    CHECK(motet_port_begin(end->port, 0, end->context, 0, 0, body, 1, 0, 0, &operation), -EBADF);
    CHECK(motet_port_post(end->port, 0, end->context, 0, 0, body, 1, 0, 0), -EBADF);
    CHECK(motet_port_begin(end->port, 0, end->context, 0, 0, body, 1, end->group, 0, NULL), -EINVAL);
    CHECK(motet_port_send(end->port, 1, 0, NULL, 0, body, 1), -EBADF);
    CHECK(motet_port_send(end->port, end->channel, 0, NULL, 0, NULL, 1), -EINVAL);
    CHECK(motet_port_send(end->port, end->channel, 0, NULL, 0, body, LONGEST), -E2BIG);
    CHECK(motet_port_take(end->port, end->group, NULL, 1), -EINVAL);
    CHECK(motet_port_cancel(NULL, end->group, 0, end->context, 0), -EINVAL);
    CHECK(motet_port_cancel(end->port, 0, 0, end->context, 0), -EBADF);
    CHECK(motet_port_abandon(NULL, end->group, 0, end->context), -EINVAL);
    CHECK(motet_port_abandon(end->port, end->group, 1, 1), -EINVAL);
    CHECK(motet_port_abandon(end->port, end->group, 0, 0), -EBADF);
    for (int i = 0; i < 3000; i++) CHECK(take(end, i % 3 ? end->group : end->other), 0); /* what is known of one group is not the other's */
}

/* Messages of all lengths, each for the receive that was posted first of those that match, sometimes of another group, by either kind of call. */
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
            motet_group group = others[i] ? receiver->other : receiver->group;
            uint64_t notice = (uint64_t)turn << 8 | i;
            unsigned kind = chance(8);
            if (kind > 3) {
                CHECK(motet_port_post(receiver->port, on, any, 5, 0, buffers[i], room[i], group, notice), 0);
            } else if (kind > 0) {
                CHECK(motet_port_begin(receiver->port, on, any, 5, 0, buffers[i], room[i], group, notice, &operation), 0);
            } else {
                struct motet_source source = from(on, any, 5, 0);
                struct motet_notice words = told(group, notice, 0);
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
            if (result != 0) { /* longer than a packet, or no room now */
                struct motet_outgoing outgoing = message(sender->channel, 5, MOTET_SEND_AUTOMATIC);
                motet_operation operation;
                struct motet_notice words = told(sender->other, 1, 0);
                CHECK(result == -E2BIG || result == -EAGAIN, 1);
                outgoing.headers = &header, outgoing.headers_length = sizeof header;
                while ((result = motet_message_start(sender->node, &outgoing, &piece, 1, &words, &operation)) == -EAGAIN)
                    motet_node_progress(receiver->node);
                CHECK(result, 0);
                for (int done = operation == 0; !done; motet_node_progress(receiver->node))
                    for (int n = take(sender, sender->other); n > 0; n--, done = 1) CHECK(taken[n - 1].status, 0);
            }
        }
        unsigned next[2] = { 0, 0 }; /* ends of a group come in the order of messages */
        int64_t until = SOON;
        while (ended < count) {
            int other = chance(2) == 0, found = (chance(2) ? take : take_entries)(receiver, other ? receiver->other : receiver->group);
            for (int n = 0; n < found; n++) {
                const struct motet_completion *end = &taken[n];
                unsigned i = (unsigned)(end->context & 0xff);
                uint64_t header;
                size_t fits = lengths[i] < room[i] ? lengths[i] : room[i];
                CHECK(end->context >> 8, turn);
                CHECK(others[i], other);
                CHECK(end->operation, named[i]);
                if (lengths[i] <= 40) CHECK(i >= next[other], 1);
                next[other] = i;
                CHECK(end->status, lengths[i] <= room[i] ? 0 : -EMSGSIZE);
                CHECK(end->length, fits);
                CHECK(end->full, lengths[i]);
                CHECK(end->tag, 5);
                CHECK(end->channel, receiver->channel);
                CHECK(end->headers_length, sizeof header);
                memcpy(&header, end->headers, sizeof header);
                CHECK(header, end->context);
                CHECK(is_filled(buffers[i], fits, (unsigned)header), 1);
                ended++;
            }
            if (found == 0 && chance(3) == 0) take(sender, sender->group); /* it makes progress, too: grants, long bodies */
            CHECK(in(0) < until, 1);
        }
    }
}

/* Receives that are taken back are told by the next look: by their names, or by their notices. */
static void taken_back(void)
{
    motet_operation operation;
    const struct end *end = &ends[0];
    for (int i = 0; i < 1500; i++) CHECK(take_entries(end, end->group), 0);
    CHECK(motet_port_begin(end->port, 0, end->context, 9, 0, body, 8, end->group, 77, &operation), 0);
    for (int i = 0; i < 40; i++) CHECK(motet_port_post(end->port, i & 1 ? end->channel : 0, i & 1 ? 0 : end->context, 9, 0, body, 8, end->group, (uint64_t)i), 0);
    for (int i = 0; i < 100; i++) CHECK(take_entries(end, end->group), 0);
    CHECK(motet_operation_cancel(end->node, operation), 0);
    CHECK(take_entries(end, end->group), 1);
    CHECK(taken[0].context, 77);
    CHECK(taken[0].status, -ECANCELED);
    CHECK(motet_port_cancel(end->port, end->group, 0, end->context, 77), 0);
    CHECK(motet_port_cancel(end->port, end->other, end->channel, 0, 7), 0);
    CHECK(motet_group_free(end->node, end->group), -EAGAIN);
    for (uint64_t i = 0; i < 40; i += 3) {
        motet_channel on = i & 1 ? end->channel : 0;
        CHECK(motet_port_cancel(end->port, end->group, on ? 0 : end->channel, on ? end->context : 0, i), 0);
        CHECK(motet_port_cancel(end->port, end->group, on, on ? 0 : end->context, i), 1);
        CHECK(motet_port_cancel(end->port, end->group, on, on ? 0 : end->context, i), 0);
        CHECK(take_entries(end, end->group), 1);
        CHECK(taken[0].context, i);
        CHECK(taken[0].operation, 0);
        CHECK(taken[0].status, -ECANCELED);
    }
    int left = 40 - 14, ended = 0, found;
    CHECK(motet_port_abandon(end->port, end->other, 0, end->context), 0);
    CHECK(take_entries(end, end->group), 0);
    CHECK(motet_port_abandon(end->port, end->group, 0, end->context), 0);
    CHECK(motet_port_abandon(end->port, end->group, end->channel, 0), 0);
    for (; (found = take_entries(end, end->group)) > 0; ended += found) CHECK(taken[0].status, -ECANCELED);
    CHECK(ended, left);
}

/* A receive that is given up while its message is on its way: nothing is written to its buffer any more. */
static void given_up(void)
{
    const struct end *sender = &ends[0], *receiver = &ends[1];
    struct iovec piece = { body, LONGEST };
    struct motet_outgoing outgoing = message(sender->channel, 6, MOTET_SEND_AUTOMATIC);
    struct motet_notice words = told(sender->other, 2, 0);
    motet_operation operation;
    fill(body, LONGEST, 1);
    CHECK(motet_port_post(receiver->port, receiver->channel, 0, 6, 0, buffers[0], LONGEST, receiver->group, 1), 0);
    CHECK(motet_message_start(sender->node, &outgoing, &piece, 1, &words, &operation), 0);
    for (int i = 0; i < 3; i++) CHECK(take_entries(receiver, receiver->group), 0); /* it has begun */
    CHECK(motet_port_abandon(receiver->port, receiver->group, receiver->channel, 0), 0);
    memset(buffers[0], 0x77, LONGEST);
    int64_t until = SOON;
    for (int done = 0; !done;) {
        CHECK(in(0) < until, 1);
        while (take_entries(receiver, receiver->group) > 0) CHECK(taken[0].status != 0, 1);
        done = take(sender, sender->other) > 0;
    }
    for (int i = 0; i < 1000; i++) motet_node_progress(receiver->node);
    for (size_t i = 0; i < LONGEST; i++) CHECK(buffers[0][i], 0x77);
}

static atomic_bool over;

static void *disturbs(void *unused)
{
    for (unsigned n = 0; !atomic_load(&over); n++) {
        struct motet_counts counts = MOTET_INIT(struct motet_counts);
        const struct end *end = &ends[n & 1];
        CHECK(motet_group_counts(end->node, end->other, &counts), 0);
        if (n % 3 == 0) CHECK(motet_node_progress(end->node) >= 0, 1);
        if (n % 16 == 0) usleep(50);
    }
    return unused;
}

/* A forked child has none. */
static void child(void)
{
    int status;
    pid_t forked = fork();
    if (forked == 0) {
        motet_operation operation;
        taken[0].size = sizeof taken[0];
        CHECK(motet_port_take(ends[0].port, ends[0].group, entries, 1), -ECHILD);
        CHECK(motet_port_ends(ends[0].port, ends[0].group, taken, 1), -ECHILD);
        CHECK(motet_port_post(ends[0].port, 0, ends[0].context, 0, 0, body, 1, ends[0].group, 0), -ECHILD);
        CHECK(motet_port_begin(ends[0].port, 0, ends[0].context, 0, 0, body, 1, ends[0].group, 0, &operation), -ECHILD);
        CHECK(motet_port_cancel(ends[0].port, ends[0].group, 0, ends[0].context, 0), -ECHILD);
        CHECK(motet_port_abandon(ends[0].port, ends[0].group, 0, ends[0].context), -ECHILD);
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
    CHECK(motet_port_open(ends[1].node, flags, &again), 0); /* twice: only one is biased */
    CHECK(motet_port_close(ends[1].port), 0);
    CHECK(motet_node_close(ends[1].node), -EBUSY);
    ends[1].port = again;
    messages(10);
    /* A peer that goes: looks find out. */
    CHECK(motet_port_post(ends[0].port, ends[0].channel, 0, 5, 0, body, 8, ends[0].group, 3), 0);
    CHECK(take(&ends[0], ends[0].group), 0);
    CHECK(motet_port_close(ends[1].port), 0);
    CHECK(motet_node_close(ends[1].node), 0);
    int64_t until = SOON;
    while (take(&ends[0], ends[0].group) == 0) CHECK(in(0) < until, 1);
    CHECK(taken[0].status < 0, 1);
    CHECK(motet_port_close(ends[0].port), 0);
    CHECK(motet_node_close(ends[0].node), 0);
    puts("ports carry");
    return 0;
}
