/* invalid_calls.c: message calls of motet.h with invalid arguments, structs of other sizes, stale handles and handles of another thread's node; and the state
 * after a node is closed, its peer is killed, or the process has forked. */
#include "check.h"

#include <signal.h>

/* Refused before anything is done: NULL, wrong sizes, invalid values. */
static void arguments(motet_node node)
{
    motet_node other = 1;
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    options.size = sizeof options - 1;
    CHECK(motet_node_open(&options, &other), -EINVAL);
    CHECK(other, 0);
    CHECK(motet_node_open(NULL, NULL), -EINVAL);
    options.size = offsetof(struct motet_node_options, pool_max); /* the struct's first version */
    options.pool_max = 1;
    CHECK(motet_node_open(&options, &other), 0);
    CHECK(motet_node_close(other), 0);
    options.pool_max = 0;
    options.size = sizeof options + 64; /* a later version: the bytes beyond are ignored */
    options.flags = 4;
    CHECK(motet_node_open(&options, &other), -EINVAL);
    options.flags = 0;
    options.window = 1;
    CHECK(motet_node_open(&options, &other), -EINVAL);
    options.window = 0;
    options.max_rendezvous = 1u << 20;
    CHECK(motet_node_open(&options, &other), -EINVAL);
    options.max_rendezvous = 0;
    options.reserved = 1;
    CHECK(motet_node_open(&options, &other), -EINVAL);
    options.reserved = 0;
    options.name = "a name with blanks";
    CHECK(motet_node_open(&options, &other), -EINVAL);
    options.name = "\xff";
    CHECK(motet_node_open(&options, &other), -EINVAL);
    options.name = NULL;
    options.listen = "nowhere";
    CHECK(motet_node_open(&options, &other), -EINVAL);
    char name[64];
    CHECK(motet_node_name(node, name, sizeof name) > 0, 1);
    CHECK(motet_node_name(node, NULL, 5), -EINVAL);
    CHECK(motet_node_address(node, NULL, 5), -EINVAL);
    options.listen = NULL;
    options.name = name;
    CHECK(motet_node_open(&options, &other), -EADDRINUSE);

    motet_link link = 1;
    CHECK(motet_link_open(node, "no-such-name", 0, &link), -ECONNREFUSED);
    CHECK(motet_link_open(node, "no-such-name", in(0.005), &link), -ECONNREFUSED);
    CHECK(motet_link_open(node, "carrier-pigeon://loft", 0, &link), -EHOSTUNREACH);
    CHECK(motet_link_open(node, name, SOON, NULL), -EINVAL);
    CHECK(link, 0);
    CHECK(motet_link_info(node, 1, NULL), -EBADF);
    CHECK(motet_links(node, NULL, 3), -EINVAL);

    struct motet_receive_mode mode = queue();
    CHECK(motet_service_open(node, 1, NULL), -EINVAL);
    mode.size = 8;
    CHECK(motet_service_open(node, 1, &mode), -EINVAL);
    mode = queue();
    mode.kind = 4;
    CHECK(motet_service_open(node, 1, &mode), -EINVAL);
    mode = tagged(0);
    CHECK(motet_service_open(node, 1, &mode), -EBADF);
    mode = handled(77);
    CHECK(motet_service_open(node, 1, &mode), -EBADF);
    motet_channel channel;
    CHECK(motet_channel_accept(node, 99, SOON, &channel), -ECONNREFUSED);
    CHECK(motet_channel_accept(node, 99, SOON, NULL), -EINVAL);
    mode = queue();
    CHECK(motet_channel_open(node, 12345, 1, &mode, SOON, &channel), -EBADF);
    CHECK(motet_channel_open(node, 12345, 1, &mode, SOON, NULL), -EINVAL);
    CHECK(motet_context_new(node, NULL), -EINVAL);
    CHECK(motet_cq_new(node, NULL), -EINVAL);
    motet_handler handler = 1;
    CHECK(motet_handler_new(node, NULL, NULL, &handler), -EINVAL);
    CHECK(handler, 0);
    CHECK(motet_node_defer(node, NULL, NULL), -EINVAL);
}

/* Handles of no object, on an open node. */
static void unknown_handles(motet_node node)
{
    char bytes[8];
    motet_operation operation = 1;
    struct motet_completion end = MOTET_INIT(struct motet_completion), small = { .size = 16 };
    struct motet_outgoing outgoing = message(0x100000000100001, 1, MOTET_SEND_AUTOMATIC);
    struct iovec body = { bytes, 8 }, nothing = { NULL, 8 };
    struct motet_source source = from(0x100000000100001, 0, 1, 0);
    motet_message claimed = 1;
    CHECK(motet_message_send(node, outgoing.channel, 1, bytes, 8, SOON), -EBADF);
    CHECK(motet_message_send(node, outgoing.channel, 1, NULL, 8, SOON), -EINVAL);
    CHECK(motet_message_inject(node, outgoing.channel, 1, bytes, 8, 0), -EBADF);
    CHECK(motet_message_sendv(node, NULL, &body, 1, SOON), -EINVAL);
    CHECK(motet_message_sendv(node, &outgoing, &body, -1, SOON), -EINVAL);
    CHECK(motet_message_sendv(node, &outgoing, &body, 1025, SOON), -EINVAL);
    CHECK(motet_message_sendv(node, &outgoing, NULL, 1, SOON), -EINVAL);
    CHECK(motet_message_sendv(node, &outgoing, &nothing, 1, SOON), -EINVAL);
    CHECK(motet_message_send_start(node, &outgoing, &nothing, 1, NULL, &operation), -EINVAL);
    CHECK(motet_message_send_start(node, &outgoing, &body, 1, NULL, NULL), -EINVAL);
    CHECK(motet_message_send_start(node, &outgoing, &body, 1, NULL, &operation), -EBADF);
    CHECK(operation, 0);
    outgoing.mode = 3;
    CHECK(motet_message_send_start(node, &outgoing, &body, 1, NULL, &operation), -EINVAL);
    struct motet_completion_options options = options_of(0, 1, MOTET_COMPLETION_ERRORS_ONLY); /* errors only, without a completion queue */
    CHECK(motet_message_post(node, &source, bytes, 8, &options, &operation), -EINVAL);
    options = options_of(4, 1, 0);
    CHECK(motet_message_post(node, &source, bytes, 8, &options, &operation), -EBADF);
    CHECK(motet_message_post(node, &source, bytes, 8, NULL, &operation), -EBADF);
    CHECK(motet_message_post(node, &source, NULL, 8, NULL, &operation), -EINVAL);
    CHECK(motet_message_post(node, NULL, bytes, 8, NULL, &operation), -EINVAL);
    CHECK(motet_message_post(node, &source, bytes, 8, NULL, NULL), -EINVAL);
    CHECK(motet_message_receive(node, source.channel, bytes, 8, SOON, &end), -EBADF);
    CHECK(motet_message_receive(node, source.channel, bytes, 8, 0, &end), -EBADF);
    CHECK(motet_message_receive(node, source.channel, NULL, 8, SOON, &end), -EINVAL);
    CHECK(motet_message_receive(node, source.channel, bytes, 8, SOON, &small), -EINVAL);
    CHECK(motet_message_receive_from(node, NULL, bytes, 8, SOON, &end), -EINVAL);
    CHECK(motet_message_peek(node, &source, &end), -EBADF);
    CHECK(motet_message_claim(node, &source, &end, &claimed), -EBADF);
    CHECK(motet_message_claim(node, &source, &end, NULL), -EINVAL);
    source = from(0, 0, 0, 0);
    CHECK(motet_message_peek(node, &source, &end), -EBADF);
    source = from(0, 999, 0, 0);
    CHECK(motet_message_peek(node, &source, &end), -EBADF);
    CHECK(motet_message_accept(node, 5, bytes, 8, NULL, &operation), -EBADF);
    CHECK(motet_message_discard(node, 5), -EBADF);
    CHECK(motet_operation_test(node, 1, &small), -EINVAL);
    CHECK(motet_operation_test(node, 0, &end), -EBADF);
    CHECK(motet_operation_wait(node, UINT64_MAX, NEVER, &end), -EBADF);
    CHECK(motet_operation_wait_any(node, NULL, 1, NEVER, &end), -EINVAL);
    CHECK(motet_operation_wait_any(node, &operation, 0, NEVER, &end), -EINVAL);
    CHECK(motet_operation_wait_any(node, &operation, 1, NEVER, &end), -EBADF);
    CHECK(motet_operation_cancel(node, 0), -EBADF);
    CHECK(motet_cq_wait(node, 3, &end, 1, NEVER), -EBADF);
    CHECK(motet_cq_wait(node, 3, NULL, 1, NEVER), -EINVAL);
    CHECK(motet_cq_wait(node, 3, &end, 0, NEVER), -EINVAL);
    CHECK(motet_cq_wait_counts(node, 3, 0, 0, NEVER), -EBADF);
    CHECK(motet_cq_signal(node, 3), -EBADF);
    CHECK(motet_cq_free(node, 3), -EBADF);
    struct motet_cq_counters counts = { .size = 8 };
    motet_cq cq;
    CHECK(motet_cq_new(node, &cq), 0);
    CHECK(motet_cq_counts(node, cq, &counts), -EINVAL);
    CHECK(motet_cq_free(node, cq), 0);
    CHECK(motet_context_free(node, 3), -EBADF);
    CHECK(motet_handler_free(node, 3), -EBADF);
    CHECK(motet_channel_finish(node, 3), -EBADF);
    CHECK(motet_channel_close(node, UINT64_MAX), -EBADF);
    CHECK(motet_link_close(node, 3), -EBADF);

    struct motet_remote_address at = MOTET_INIT(struct motet_remote_address);
    struct motet_atomic add = MOTET_INIT(struct motet_atomic);
    struct motet_region_mapping mapped = MOTET_INIT(struct motet_region_mapping);
    struct motet_region_limits limits = MOTET_INIT(struct motet_region_limits);
    at.link = 0x100001;
    add.count = 1;
    add.operand = bytes;
    CHECK(motet_region_put(node, &at, bytes, 8, SOON), -EBADF);
    CHECK(motet_region_get(node, &at, bytes, 8, SOON), -EBADF);
    CHECK(motet_region_atomic(node, &at, &add, SOON), -EBADF);
    CHECK(motet_region_put_start(node, &at, bytes, 8, NULL, &operation), -EBADF);
    CHECK(motet_region_get_start(node, &at, bytes, 8, NULL, &operation), -EBADF);
    CHECK(motet_region_atomic_start(node, &at, &add, NULL, &operation), -EBADF);
    CHECK(motet_region_fence(node, at.link, SOON), -EBADF);
    CHECK(motet_region_fence_start(node, at.link, NULL, &operation), -EBADF);
    CHECK(motet_region_open(node, at.link, 1, SOON, &mapped, &operation), -EBADF);
    CHECK(motet_link_region_limits(node, at.link, &limits), -EBADF);
    CHECK(motet_region_revoke(node, 1, SOON), -EBADF);
    CHECK(motet_region_close(node, 1), -EBADF);
    CHECK(motet_region_is_valid(node, 1), -EBADF);
    CHECK(motet_loan_free(node, 1), -EBADF);
    CHECK(motet_loan_send(node, &outgoing, 1, 8, NULL, SOON, NULL), -EINVAL); /* the mode */
    outgoing.mode = MOTET_SEND_AUTOMATIC;
    CHECK(motet_loan_send(node, &outgoing, 1, 8, NULL, SOON, NULL), -EBADF);
    source = from(0x100000000100001, 0, 1, 0);
    CHECK(motet_message_receive_in_place(node, &source, 8, SOON, &end), -EBADF);
    CHECK(motet_message_post_in_place(node, &source, 8, NULL, &operation), -EBADF);
    CHECK(motet_message_accept_in_place(node, 5, 8, NULL, &operation), -EBADF);
    CHECK(motet_message_release(node, 5), -EBADF);
}

/* A node handle that is not open. */
static void closed_node(motet_node node, int error)
{
    char bytes[8];
    motet_operation operation;
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    struct motet_source source = from(0x100000000100001, 0, 1, 0);
    CHECK(motet_node_name(node, bytes, 8), error);
    CHECK(motet_node_address(node, bytes, 8), error);
    CHECK(motet_node_progress(node), error);
    CHECK(motet_node_arm(node), error);
    CHECK(motet_link_open(node, "some-name", SOON, &operation), error);
    CHECK(motet_links(node, NULL, 0), error);
    CHECK(motet_link_close(node, 0x100001), error);
    CHECK(motet_service_close(node, 1), error);
    CHECK(motet_channel_accept(node, 1, SOON, &operation), error);
    CHECK(motet_channel_finish(node, 0x10000100100001), error);
    CHECK(motet_channel_close(node, 0x10000100100001), error);
    CHECK(motet_context_new(node, &operation), error);
    CHECK(motet_message_send(node, source.channel, 1, bytes, 8, SOON), error);
    CHECK(motet_message_inject(node, source.channel, 1, bytes, 8, SOON), error);
    CHECK(motet_message_receive(node, source.channel, bytes, 8, SOON, &end), error);
    CHECK(motet_message_post(node, &source, bytes, 8, NULL, &operation), error);
    CHECK(motet_message_peek(node, &source, &end), error);
    CHECK(motet_operation_test(node, 0x100001, &end), error);
    CHECK(motet_operation_wait(node, 0x100001, SOON, &end), error);
    CHECK(motet_operation_cancel(node, 0x100001), error);
    CHECK(motet_cq_new(node, &operation), error);
    CHECK(motet_cq_wait(node, 0x100001, &end, 1, SOON), error);
    CHECK(motet_cq_signal(node, 0x100001), error);

    static uint64_t words[8];
    void *memory;
    struct motet_remote_address at = MOTET_INIT(struct motet_remote_address);
    struct motet_atomic add = MOTET_INIT(struct motet_atomic);
    struct motet_region_mapping mapped = MOTET_INIT(struct motet_region_mapping);
    struct motet_region_limits limits = MOTET_INIT(struct motet_region_limits);
    struct motet_outgoing outgoing = message(source.channel, 1, MOTET_SEND_AUTOMATIC);
    at.link = 0x100001;
    add.count = 1;
    add.operand = bytes;
    CHECK(motet_region_register(node, words, sizeof words, MOTET_REGION_ALL, &operation), error);
    CHECK(motet_region_alloc(node, 8, MOTET_REGION_ALL, &memory, &operation), error);
    CHECK(motet_region_revoke(node, 0x100001, SOON), error);
    CHECK(motet_link_region_limits(node, at.link, &limits), error);
    CHECK(motet_region_put(node, &at, bytes, 8, SOON), error);
    CHECK(motet_region_get(node, &at, bytes, 8, SOON), error);
    CHECK(motet_region_atomic(node, &at, &add, SOON), error);
    CHECK(motet_region_put_start(node, &at, bytes, 8, NULL, &operation), error);
    CHECK(motet_region_get_start(node, &at, bytes, 8, NULL, &operation), error);
    CHECK(motet_region_atomic_start(node, &at, &add, NULL, &operation), error);
    CHECK(motet_region_fence(node, at.link, SOON), error);
    CHECK(motet_region_fence_start(node, at.link, NULL, &operation), error);
    CHECK(motet_region_open(node, at.link, 0x100001, SOON, &mapped, &operation), error);
    CHECK(motet_region_close(node, 0x100001), error);
    CHECK(motet_region_is_valid(node, 0x100001), error);
    CHECK(motet_loan_alloc(node, 8, &memory, &operation), error);
    CHECK(motet_loan_free(node, 0x100001), error);
    CHECK(motet_loan_send(node, &outgoing, 0x100001, 8, NULL, SOON, NULL), error);
    CHECK(motet_message_receive_in_place(node, &source, 8, SOON, &end), error);
    CHECK(motet_message_post_in_place(node, &source, 8, NULL, &operation), error);
    CHECK(motet_message_release(node, 0x100001), error);
}

static void *wait_for_ever(void *of)
{
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    motet_cq cq;
    int made = motet_cq_new(*(motet_node *)of, &cq);
    CHECK(made == 0 || made == -EBADF, 1); /* the node may be closed already */
    CHECK(motet_cq_wait(*(motet_node *)of, cq, &end, 1, NEVER), -EBADF);
    return NULL;
}

static void *use(void *of)
{
    CHECK(motet_node_progress(*(motet_node *)of), -EPERM);
    CHECK(motet_node_close(*(motet_node *)of), -EPERM);
    return NULL;
}

static void *hammer(void *of)
{
    motet_node node = *(motet_node *)of;
    int result;
    while ((result = motet_node_progress(node)) >= 0)
        ;
    CHECK(result, -EBADF);
    return NULL;
}

/* Closing a node that other threads are in: their calls fail. */
static void closing(void)
{
    for (int round = 0; round < 30; round++) {
        motet_node node;
        pthread_t threads[3];
        CHECK(motet_node_open(NULL, &node), 0);
        for (int i = 0; i < 3; i++)
            CHECK(pthread_create(&threads[i], NULL, i == 0 ? hammer : wait_for_ever, &node), 0);
        usleep(1000 * (round % 5));
        if (round % 5 == 0) /* let the threads start */
            usleep(20000);
        CHECK(motet_node_close(node), 0);
        for (int i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
        closed_node(node, -EBADF);
    }
}

static void single(void)
{
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    options.flags = MOTET_NODE_SINGLE;
    motet_node node;
    pthread_t thread;
    CHECK(motet_node_open(&options, &node), 0);
    CHECK(pthread_create(&thread, NULL, use, &node), 0);
    pthread_join(thread, NULL);
    CHECK(motet_node_progress(node) >= 0, 1);
    unknown_handles(node);
    CHECK(motet_node_close(node), 0);
}

/* The progress thread leaves messages to a program that sleeps on the node's descriptor, however long it takes to wake up. */
static void slept_beside(motet_node node, motet_channel channel, motet_node idle)
{
    struct pollfd descriptor = { motet_node_descriptor(idle), POLLIN, 0 };
    motet_channel there;
    char byte;
    CHECK(motet_channel_accept(idle, 5, SOON, &there), 0);
    for (int i = 0; i < 8; i++) {
        while (motet_node_arm(idle) == 0)
            motet_node_progress(idle);
        CHECK(motet_message_inject(node, channel, 0, "x", 1, SOON), 0);
        usleep(25000);
        CHECK(poll(&descriptor, 1, 10000), 1);
        CHECK(motet_message_receive(idle, there, &byte, 1, SOON, NULL), 0);
    }
}

/* The progress thread answers peers while the program makes no progress, and exits with its node. */
static void progress_thread(motet_node node)
{
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    struct motet_receive_mode mode = MOTET_INIT(struct motet_receive_mode);
    char name[64];
    motet_node idle;
    motet_link link;
    motet_channel channel;
    options.flags = MOTET_NODE_PROGRESS_THREAD | MOTET_NODE_SINGLE;
    CHECK(motet_node_open(&options, &idle), -EINVAL);
    options.flags = MOTET_NODE_PROGRESS_THREAD;
    CHECK(motet_node_open(&options, &idle), 0);
    mode.kind = MOTET_RECEIVE_QUEUE;
    CHECK(motet_service_open(idle, 5, &mode), 0);
    CHECK(motet_node_name(idle, name, sizeof name) > 0, 1);
    CHECK(motet_link_open(node, name, SOON, &link), 0);
    CHECK(motet_channel_open(node, link, 5, &mode, SOON, &channel), 0);
    slept_beside(node, channel, idle);
    CHECK(motet_link_close(node, link), 0);
    CHECK(motet_node_close(idle), 0);
    CHECK(motet_node_progress(idle), -EBADF);
}

static void forked(motet_node node)
{
    pid_t child = fork();
    if (child == 0) {
        closed_node(node, -ECHILD);
        CHECK(motet_node_close(node), 0);
        closed_node(node, -EBADF);
        motet_node mine; /* a child may open its own nodes */
        CHECK(motet_node_open(NULL, &mine), 0);
        CHECK(motet_node_close(mine), 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0), child);
    CHECK(status, 0);
    CHECK(motet_node_progress(node) >= 0, 1);
}

/* A killed peer: complete messages can be received, everything else completes with an error. */
static void killed(motet_node node)
{
    char name[64], bytes[64], large[4096];
    CHECK(motet_node_name(node, name, sizeof name) > 0, 1);
    struct motet_receive_mode mode = queue();
    CHECK(motet_service_open(node, 5, &mode), 0);
    pid_t child = fork();
    if (child == 0) {
        motet_node mine;
        motet_link link;
        motet_channel channel;
        CHECK(motet_node_open(NULL, &mine), 0);
        CHECK(motet_link_open(mine, name, SOON, &link), 0);
        CHECK(motet_channel_open(mine, link, 5, &mode, SOON, &channel), 0);
        CHECK(motet_message_send(mine, channel, 1, "last words", 10, SOON), 0);
        CHECK(motet_message_receive(mine, channel, bytes, 64, SOON, NULL), 0);
        raise(SIGKILL);
    }
    motet_channel channel;
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    motet_cq cq;
    motet_operation operation;
    CHECK(motet_channel_accept(node, 5, SOON, &channel), 0);
    CHECK(motet_cq_new(node, &cq), 0);
    struct motet_source source = from(channel, 0, 0, 0);
    struct motet_completion_options options = options_of(cq, 42, MOTET_COMPLETION_ERRORS_ONLY);
    CHECK(motet_message_receive(node, channel, bytes, 64, SOON, &end), 0);
    CHECK(end.length == 10 && memcmp(bytes, "last words", 10) == 0, 1);
    CHECK(motet_message_post(node, &source, large, sizeof large, &options, &operation), 0);
    CHECK(motet_message_send(node, channel, 1, "go", 2, SOON), 0);
    CHECK(motet_cq_wait(node, cq, &end, 1, SOON), 1);
    CHECK(end.status == -ECONNRESET && end.user_data == 42 && end.operation == operation, 1);
    CHECK(motet_message_send(node, channel, 1, "?", 1, SOON), -ECONNRESET);
    CHECK(motet_message_receive(node, channel, bytes, 64, SOON, &end), -ECONNRESET);
    struct motet_link_state info = MOTET_INIT(struct motet_link_state);
    CHECK(motet_link_info(node, motet_channel_link(channel), &info), 0);
    CHECK(info.down, 1);
    CHECK(strcmp(motet_reason(info.reason), "the peer is gone"), 0);
    CHECK(motet_link_close(node, motet_channel_link(channel)), 0);
    CHECK(motet_message_send(node, channel, 1, "?", 1, SOON), -EBADF);
    CHECK(motet_channel_close(node, channel), -EBADF);
    waitpid(child, NULL, 0);
}

int main(void)
{
    motet_node node;
    closed_node(0, -EBADF);
    closed_node(UINT64_MAX, -EBADF);
    closed_node(0x1234, -EBADF);
    CHECK(motet_node_descriptor(7), -EBADF);
    CHECK(motet_node_open(NULL, &node), 0);
    CHECK(motet_node_descriptor(node) >= 0, 1);
    arguments(node);
    unknown_handles(node);
    closing();
    single();
    progress_thread(node);
    forked(node);
    killed(node);
    CHECK(motet_node_close(node), 0);
    closed_node(node, -EBADF);
    puts("every end was reported");
    return 0;
}
