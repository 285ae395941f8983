/* calls.c: every message call of motet.h: two nodes of one process, one with a thread that makes progress. */
#include "check.h"

enum { QUEUE = 1, TAGGED = 2, HANDLED = 3, LONG = 300000 };

static motet_node near_node, far_node;
static motet_link link_to_far;
static struct driver driver;

/* Opens a channel to a service of the far node; returns both ends. */
static void pair(uint64_t service, const struct motet_receive_mode *mode, motet_channel *near_end, motet_channel *far_end)
{
    CHECK(motet_channel_open(near_node, link_to_far, service, mode, SOON, near_end), 0);
    CHECK(motet_channel_accept(far_node, service, SOON, far_end), 0);
    CHECK(motet_channel_link(*near_end), link_to_far);
}

static void nodes(void)
{
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    char name[64], again[64], address[256], few[4];
    snprintf(name, sizeof name, "calls-%d", getpid());
    options.name = name;
    options.listen = "127.0.0.1:0";
    CHECK(motet_node_open(&options, &far_node), 0);
    CHECK(motet_node_open(NULL, &near_node), 0);
    CHECK(motet_node_name(far_node, again, sizeof again), strlen(name));
    CHECK(strcmp(name, again), 0);
    CHECK(motet_node_name(far_node, few, sizeof few), strlen(name));
    CHECK(strcmp(few, "cal"), 0);
    CHECK(motet_node_name(far_node, NULL, 0), strlen(name));
    CHECK(motet_node_address(far_node, address, sizeof address) > (ssize_t)strlen(name), 1);
    CHECK(strstr(address, "shm://") != NULL, 1);

    start_driver(&driver, far_node);
    CHECK(motet_link_open(near_node, address, SOON, &link_to_far), 0);
    struct motet_link_state info = MOTET_INIT(struct motet_link_state);
    CHECK(motet_link_info(near_node, link_to_far, &info), 0);
    CHECK(info.size, sizeof info);
    CHECK(strcmp(info.driver, "shm"), 0);
    CHECK(info.down, 0);
    CHECK(info.inject_size > 1000 && info.inject_size < 1 << 20, 1);
    motet_link links[2] = { 0, 0 };
    CHECK(motet_links(near_node, links, 2), 1);
    CHECK(links[0], link_to_far);
    CHECK(motet_links(near_node, NULL, 0), 1);
}

static void queued(void)
{
    motet_channel near_end, far_end;
    struct motet_receive_mode mode = queue();
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    CHECK(motet_service_open(far_node, QUEUE, &mode), 0);
    pair(QUEUE, &mode, &near_end, &far_end);

    char text[64];
    CHECK(motet_message_send(near_node, near_end, 7, "hello", 5, SOON), 0);
    CHECK(motet_message_receive(far_node, far_end, text, sizeof text, SOON, &end), 0);
    CHECK(end.tag == 7 && end.length == 5 && end.message_length == 5 && end.channel == far_end && end.operation == 0, 1);
    CHECK(memcmp(text, "hello", 5), 0);
    CHECK(motet_message_inject(far_node, far_end, 8, NULL, 0, SOON), 0);
    CHECK(motet_message_receive(near_node, near_end, NULL, 0, SOON, &end), 0);
    CHECK(end.tag == 8 && end.length == 0, 1);

    /* Headers, outermost first, and a body in more pieces than usual. */
    struct motet_headers stack;
    motet_headers_clear(&stack);
    CHECK(motet_headers_push(&stack, "inner", 5) && motet_headers_push(&stack, "outer!", 6), 1);
    struct motet_outgoing outgoing = message(near_end, 9, MOTET_SEND_AUTOMATIC);
    outgoing.headers = stack.bytes + stack.start;
    outgoing.headers_length = motet_headers_length(&stack);
    struct iovec pieces[40];
    for (int i = 0; i < 40; i++)
        pieces[i] = (struct iovec){ "0123456789" + i % 10, 1 };
    CHECK(motet_message_sendv(near_node, &outgoing, pieces, 40, SOON), 0);
    CHECK(motet_message_receive(far_node, far_end, text, sizeof text, SOON, &end), 0);
    CHECK(end.length, 40);
    CHECK(memcmp(text, "0123456789012345678901234567890123456789", 40), 0);
    const unsigned char *headers = end.headers;
    char word[6];
    CHECK(motet_headers_pop(&headers, &end.headers_length, word, 6), 1);
    CHECK(memcmp(word, "outer!", 6), 0);
    CHECK(motet_headers_pop(&headers, &end.headers_length, word, 6), 0);
    CHECK(motet_headers_pop(&headers, &end.headers_length, word, 5), 1);
    char large[MOTET_HEADERS_MAX] = "";
    CHECK(motet_headers_push(&stack, large, 250), 0); /* eleven bytes are there already */

    /* Too long for the buffer: the buffer is full, and the completion has the message's length. */
    CHECK(motet_message_send(near_node, near_end, 1, "0123456789", 10, SOON), 0);
    CHECK(motet_message_receive(far_node, far_end, text, 4, SOON, &end), -EMSGSIZE);
    CHECK(end.status == -EMSGSIZE && end.length == 4 && end.message_length == 10, 1);

    /* No message: at once, and until a deadline. */
    CHECK(motet_message_receive(far_node, far_end, text, 4, 0, &end), -EAGAIN);
    CHECK(motet_message_receive(far_node, far_end, text, 4, in(0.002), NULL), -ETIMEDOUT);
    CHECK(motet_channel_accept(far_node, QUEUE, 0, &near_end), -EAGAIN);
    pair(QUEUE, &mode, &near_end, &far_end);

    /* Long bodies: in one piece and in two. */
    unsigned char *body = malloc(LONG), *buffer = malloc(LONG);
    fill(body, LONG, 1);
    struct iovec whole = { body, LONG }, halves[2] = { { body, 1000 }, { body + 1000, LONG - 1000 } };
    for (int round = 0; round < 4; round++) {
        struct motet_source source = from(far_end, 0, 0, 0);
        motet_operation receive, send;
        memset(buffer, 0, LONG);
        outgoing = message(near_end, 3, round & 1 ? MOTET_SEND_SYNCHRONOUS : MOTET_SEND_AUTOMATIC);
        CHECK(motet_message_send_start(near_node, &outgoing, round & 2 ? halves : &whole, round & 2 ? 2 : 1, NULL, &send), 0);
        CHECK(send != 0, 1);
        CHECK(motet_operation_test(near_node, send, &end), 0);
        CHECK(motet_operation_wait(near_node, send, 0, &end), -EAGAIN);
        CHECK(motet_message_post(far_node, &source, buffer, LONG, NULL, &receive), 0);
        CHECK(motet_operation_wait(near_node, send, SOON, &end), 0);
        CHECK(end.status == 0 && end.length == LONG && end.operation == send, 1);
        CHECK(motet_operation_wait(far_node, receive, SOON, &end), 0);
        CHECK(end.status == 0 && end.length == LONG && end.message_length == LONG, 1);
        CHECK(is_filled(buffer, LONG, 1), 1);
        CHECK(motet_operation_wait(far_node, receive, SOON, &end), -EBADF);
    }
    outgoing = message(near_end, 3, MOTET_SEND_INJECT);
    motet_operation none = 1;
    CHECK(motet_message_send_start(near_node, &outgoing, &whole, 1, NULL, &none), -E2BIG);
    CHECK(none, 0);
    CHECK(motet_message_inject(near_node, near_end, 3, body, LONG, SOON), -E2BIG);
    CHECK(motet_message_send(near_node, near_end, 3, body, LONG, in(0.01)), -ETIMEDOUT); /* recalled */
    whole.iov_len = 20;
    CHECK(motet_message_send_start(near_node, &outgoing, &whole, 1, NULL, &none), 0);
    outgoing.mode = MOTET_SEND_AUTOMATIC;
    CHECK(motet_message_send_start(near_node, &outgoing, &whole, 1, NULL, &none), 0);
    CHECK(none, 0);
    for (int i = 0; i < 2; i++) {
        CHECK(motet_message_receive(far_node, far_end, buffer, LONG, SOON, &end), 0);
        CHECK(end.length, 20);
    }

    /* Half-close, then the rest. */
    CHECK(motet_channel_finish(near_node, near_end), 0);
    CHECK(motet_message_send(near_node, near_end, 1, "x", 1, SOON), -EPIPE);
    CHECK(motet_message_receive(far_node, far_end, buffer, LONG, SOON, &end), -EPIPE);
    CHECK(motet_message_send(far_node, far_end, 5, "y", 1, SOON), 0);
    CHECK(motet_message_receive(near_node, near_end, buffer, LONG, SOON, &end), 0);
    CHECK(motet_channel_close(near_node, near_end), 0);
    CHECK(motet_channel_close(far_node, far_end), 0);
    CHECK(motet_channel_close(far_node, far_end), -EBADF);
    free(body);
    free(buffer);
}

static void tags(void)
{
    motet_context context, mine;
    motet_channel near_end[2], far_end[2];
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    CHECK(motet_context_new(far_node, &context), 0);
    CHECK(motet_context_new(near_node, &mine), 0);
    struct motet_receive_mode theirs = tagged(context), ours = tagged(mine);
    CHECK(motet_service_open(far_node, TAGGED, &theirs), 0);
    for (int i = 0; i < 2; i++)
        pair(TAGGED, &ours, &near_end[i], &far_end[i]);
    CHECK(motet_context_free(far_node, context), -EAGAIN);

    /* The first posted receive gets the message, over one channel and any channel; ignored bits; an exact tag. */
    unsigned char got[4][8];
    motet_operation posted[4];
    struct motet_source sources[4] = { from(0, context, 0x10, 0x0f), from(far_end[1], 0, 0x11, 0), from(0, context, 0x11, 0),
                                       from(far_end[0], 0, 0, UINT64_MAX) };
    for (int i = 0; i < 4; i++) {
        struct motet_completion_options options = options_of(0, 100 + i, 0);
        CHECK(motet_message_post(far_node, &sources[i], got[i], 8, &options, &posted[i]), 0);
    }
    CHECK(motet_message_send(near_node, near_end[0], 0x11, "a", 1, SOON), 0);
    CHECK(motet_operation_wait(far_node, posted[0], SOON, &end), 0);
    CHECK(end.user_data == 100 && end.tag == 0x11 && end.channel == far_end[0] && got[0][0] == 'a', 1);
    CHECK(motet_message_send(near_node, near_end[0], 0x11, "b", 1, SOON), 0);
    CHECK(motet_operation_wait(far_node, posted[2], SOON, &end), 0);
    CHECK(got[2][0], 'b');
    CHECK(motet_message_send(near_node, near_end[1], 0x11, "c", 1, SOON), 0);
    motet_operation some[3] = { posted[1], posted[3], 0 };
    CHECK(motet_operation_wait_any(far_node, some, 3, SOON, &end), 0);
    CHECK(end.operation == posted[1] && got[1][0] == 'c', 1);
    CHECK(motet_operation_wait_any(far_node, some, 3, 0, &end), -EAGAIN);
    CHECK(motet_operation_cancel(far_node, posted[3]), 0);
    CHECK(motet_operation_wait(far_node, posted[3], SOON, &end), 0);
    CHECK(end.status, -ECANCELED);
    CHECK(motet_operation_cancel(far_node, posted[3]), -EBADF);
    CHECK(motet_operation_wait_any(far_node, some, 3, SOON, &end), -EBADF);

    /* Unexpected messages: peeked, claimed, accepted, discarded, received in order. */
    unsigned char *body = malloc(LONG), *buffer = malloc(LONG);
    fill(body, LONG, 2);
    struct motet_source any = from(0, context, 0, UINT64_MAX);
    CHECK(motet_message_peek(far_node, &any, &end), 0);
    struct motet_outgoing outgoing = message(near_end[0], 21, MOTET_SEND_AUTOMATIC);
    struct iovec whole = { body, LONG };
    motet_operation sends[2];
    outgoing.headers = "head";
    outgoing.headers_length = 4;
    for (int i = 0; i < 2; i++) {
        outgoing.tag = 21 + i;
        CHECK(motet_message_send_start(near_node, &outgoing, &whole, 1, NULL, &sends[i]), 0);
    }
    CHECK(motet_message_send(near_node, near_end[1], 23, "short", 5, SOON), 0);
    struct motet_source last = from(0, context, 23, 0);
    while (motet_message_peek(far_node, &last, NULL) == 0)
        usleep(100);
    CHECK(motet_message_peek(far_node, &any, &end), 1);
    CHECK(end.tag == 21 && end.message_length == LONG && end.channel == far_end[0] && end.headers_length == 4, 1);
    CHECK(memcmp(end.headers, "head", 4), 0);
    motet_message claimed[2], nothing = 1;
    CHECK(motet_message_claim(far_node, &any, &end, &claimed[0]), 1);
    CHECK(end.tag, 21);
    CHECK(motet_message_claim(far_node, &any, &end, &claimed[1]), 1);
    CHECK(end.tag, 22);
    CHECK(motet_message_receive_from(far_node, &any, buffer, LONG, SOON, &end), 0);
    CHECK(end.tag == 23 && end.length == 5, 1);
    CHECK(motet_message_claim(far_node, &any, &end, &nothing), 0);
    CHECK(nothing, 0);
    motet_operation accepted;
    struct motet_completion_options bad = options_of(12345, 0, 0);
    CHECK(motet_message_accept(far_node, claimed[1], buffer, LONG, &bad, &accepted), -EBADF); /* the message is still claimed */
    CHECK(motet_message_accept(far_node, claimed[1], buffer, LONG, NULL, &accepted), 0);
    CHECK(motet_message_accept(far_node, claimed[1], buffer, LONG, NULL, &accepted), -EBADF);
    CHECK(motet_operation_wait(near_node, sends[1], SOON, &end), 0);
    CHECK(end.status, 0);
    CHECK(motet_message_discard(far_node, claimed[0]), 0);
    CHECK(motet_message_discard(far_node, claimed[0]), -EBADF);
    CHECK(motet_operation_wait(near_node, sends[0], SOON, &end), 0);
    CHECK(end.status, -EPIPE);
    free(body);
    free(buffer);
    for (int i = 0; i < 2; i++) {
        CHECK(motet_channel_close(near_node, near_end[i]), 0);
        CHECK(motet_channel_close(far_node, far_end[i]), 0);
    }
    CHECK(motet_service_close(far_node, TAGGED), 0);
    while (motet_context_free(far_node, context) == -EAGAIN)
        CHECK(motet_node_progress(near_node) >= 0, 1);
    CHECK(motet_context_free(far_node, context), -EBADF);
    CHECK(motet_channel_open(near_node, link_to_far, TAGGED, &ours, SOON, &near_end[0]), -ECONNREFUSED);
    CHECK(motet_service_open(far_node, TAGGED, &theirs), -EBADF);
}

struct heard {
    int count, longs;
    unsigned char *buffer;
    motet_operation operation, remote;
    motet_message kept;
    motet_key key;
};

/* A handler must not wait: calls that would wait fail, calls that start or complete at once succeed. */
static void in_a_handler(motet_node node, struct heard *heard, motet_link link)
{
    uint64_t one = 1;
    struct motet_remote_address at = MOTET_INIT(struct motet_remote_address);
    struct motet_atomic add = MOTET_INIT(struct motet_atomic);
    struct motet_region_mapping mapped = MOTET_INIT(struct motet_region_mapping);
    motet_key key;
    motet_mapping mapping;
    at.link = link;
    at.key = heard->key;
    add.type = MOTET_ATOMIC_U64;
    add.count = 1;
    add.operand = &one;
    CHECK(motet_region_put(node, &at, &one, 8, SOON), -EDEADLK);
    CHECK(motet_region_get(node, &at, &one, 8, SOON), -EDEADLK);
    CHECK(motet_region_atomic(node, &at, &add, SOON), -EDEADLK);
    CHECK(motet_region_open(node, link, heard->key, SOON, &mapped, &mapping), -EDEADLK);
    CHECK(motet_region_atomic_start(node, &at, &add, NULL, &heard->remote), 0);
    CHECK(motet_region_fence(node, link, SOON), -EDEADLK);
    CHECK(motet_region_register(node, heard->buffer, 8, MOTET_REGION_GET, &key), 0);
    CHECK(motet_region_revoke(node, key, SOON), 0); /* no peer has used it */
}

static int on_message(motet_node node, const struct motet_arrival *arrival, void *user)
{
    struct heard *heard = user;
    char byte;
    __atomic_add_fetch(&heard->count, 1, __ATOMIC_SEQ_CST);
    CHECK(arrival->size, sizeof *arrival);
    CHECK(motet_node_close(node), -EDEADLK);
    CHECK(motet_message_receive(node, arrival->channel, &byte, 1, SOON, NULL), -EPIPE); /* its messages go to the handler */
    if (!arrival->message) {
        CHECK(arrival->length == 4 && memcmp(arrival->body, "ping", 4) == 0, 1);
        if (arrival->tag == 0)
            in_a_handler(node, heard, motet_channel_link(arrival->channel));
        CHECK(motet_message_inject(node, arrival->channel, arrival->tag + 1, "pong", 4, SOON), 0);
        CHECK(motet_message_send(node, arrival->channel, 0, heard->buffer, LONG, SOON), -EDEADLK);
        return 0;
    }
    CHECK(arrival->length == LONG && arrival->body == NULL, 1);
    switch (heard->longs++) {
    case 0: /* discard */
        return 0;
    case 1: /* accept during the call */
        CHECK(motet_message_accept(node, arrival->message, heard->buffer, LONG, NULL, &heard->operation), 0);
        return 0;
    default: /* accept later */
        heard->kept = arrival->message;
        return 1;
    }
}

static void work(motet_node node, void *user)
{
    CHECK(node, far_node);
    __atomic_store_n((int *)user, 1, __ATOMIC_SEQ_CST);
}

static void handlers(void)
{
    struct heard heard = { .buffer = malloc(LONG) };
    unsigned char *body = malloc(LONG);
    motet_handler handler;
    motet_channel near_end, far_end;
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    uint64_t word = 40;
    CHECK(motet_region_register(near_node, &word, sizeof word, MOTET_REGION_ALL, &heard.key), 0);
    CHECK(motet_handler_new(far_node, on_message, &heard, &handler), 0);
    struct motet_receive_mode theirs = handled(handler), ours = queue();
    CHECK(motet_service_open(far_node, HANDLED, &theirs), 0);
    pair(HANDLED, &ours, &near_end, &far_end);
    char answer[4];
    for (int i = 0; i < 100; i++) {
        CHECK(motet_message_send(near_node, near_end, i, "ping", 4, SOON), 0);
        CHECK(motet_message_receive(near_node, near_end, answer, 4, SOON, &end), 0);
        CHECK(end.tag == (uint64_t)i + 1 && memcmp(answer, "pong", 4) == 0, 1);
    }
    CHECK(heard.count, 100);
    CHECK(motet_operation_wait(far_node, heard.remote, SOON, &end), 0);
    CHECK(end.status == 0 && word == 41, 1);
    CHECK(motet_region_revoke(near_node, heard.key, SOON), 0);
    fill(body, LONG, 3);
    CHECK(motet_message_send(near_node, near_end, 0, body, LONG, SOON), -EPIPE); /* the handler discards it */
    CHECK(motet_message_send(near_node, near_end, 1, body, LONG, SOON), 0);
    CHECK(motet_operation_wait(far_node, heard.operation, SOON, &end), 0);
    CHECK(end.status == 0 && end.length == LONG && is_filled(heard.buffer, LONG, 3), 1);
    struct motet_outgoing outgoing = message(near_end, 5, MOTET_SEND_SYNCHRONOUS);
    struct iovec whole = { body, LONG };
    motet_operation send, receive;
    CHECK(motet_message_send_start(near_node, &outgoing, &whole, 1, NULL, &send), 0);
    while (__atomic_load_n(&heard.count, __ATOMIC_SEQ_CST) < 103)
        usleep(100);
    CHECK(motet_handler_free(far_node, handler), 0); /* the handler does not run any more when this returns */
    memset(heard.buffer, 0, LONG);
    CHECK(motet_message_accept(far_node, heard.kept, heard.buffer, LONG, NULL, &receive), 0);
    CHECK(motet_operation_wait(near_node, send, SOON, &end), 0);
    CHECK(motet_operation_wait(far_node, receive, SOON, &end), 0);
    CHECK(is_filled(heard.buffer, LONG, 3), 1);
    CHECK(motet_message_send(near_node, near_end, 1, "ping", 4, SOON), 0);
    CHECK(motet_handler_free(far_node, handler), -EBADF);
    int done = 0;
    CHECK(motet_node_defer(far_node, work, &done), 0);
    while (!__atomic_load_n(&done, __ATOMIC_SEQ_CST))
        CHECK(motet_node_progress(far_node) >= 0, 1);
    CHECK(heard.count, 103);
    CHECK(motet_channel_close(near_node, near_end), 0);
    free(body);
    free(heard.buffer);
}

static void cqs(void)
{
    motet_cq cq;
    motet_channel near_end, far_end;
    struct motet_receive_mode mode = queue();
    struct motet_completion ends[4];
    struct motet_cq_counters counts = MOTET_INIT(struct motet_cq_counters);
    char got[8][8];
    motet_operation posted[8];
    ends[0].size = sizeof ends[0];
    pair(QUEUE, &mode, &near_end, &far_end);
    CHECK(motet_cq_new(near_node, &cq), 0);
    CHECK(motet_cq_wait(near_node, cq, ends, 4, 0), -EAGAIN);
    CHECK(motet_cq_wait(near_node, cq, ends, 4, in(0.002)), -ETIMEDOUT);
    struct motet_source source = from(near_end, 0, 0, 0);
    for (int i = 0; i < 8; i++) {
        struct motet_completion_options options = options_of(cq, i, i % 2 ? MOTET_COMPLETION_ERRORS_ONLY : 0);
        CHECK(motet_message_post(near_node, &source, got[i], 8, &options, &posted[i]), 0);
    }
    CHECK(motet_cq_counts(near_node, cq, &counts), 0);
    CHECK(counts.succeeded == 0 && counts.failed == 0 && counts.outstanding == 8, 1);
    CHECK(motet_cq_free(near_node, cq), -EAGAIN);
    for (int i = 0; i < 6; i++)
        CHECK(motet_message_send(far_node, far_end, i, "ok", 2, SOON), 0);
    CHECK(motet_cq_wait_counts(near_node, cq, 6, 0, SOON), 0);
    CHECK(motet_cq_wait_counts(near_node, cq, 7, 0, 0), -EAGAIN);
    CHECK(motet_cq_wait(near_node, cq, ends, 2, SOON), 2);
    CHECK(ends[0].user_data == 0 && ends[1].user_data == 2 && ends[1].tag == 2 && ends[1].operation == posted[2], 1);
    CHECK(motet_cq_wait(near_node, cq, ends, 4, SOON), 1);
    CHECK(ends[0].user_data, 4);
    CHECK(motet_operation_test(near_node, posted[4], NULL), -EBADF);
    CHECK(motet_channel_close(near_node, near_end), 0); /* completes the other two; the failure of the errors-only receive is reported, too */
    CHECK(motet_cq_wait(near_node, cq, ends, 4, SOON), 2);
    CHECK(ends[0].user_data == 6 && ends[1].user_data == 7 && ends[0].status == -EPIPE && ends[1].status == -EPIPE, 1);
    CHECK(motet_cq_wait_counts(near_node, cq, 100, 1, SOON), 0);
    CHECK(motet_cq_counts(near_node, cq, &counts), 0);
    CHECK(counts.succeeded == 6 && counts.failed == 2 && counts.outstanding == 0, 1);
    CHECK(motet_cq_signal(near_node, cq), 0);
    CHECK(motet_cq_wait(near_node, cq, ends, 4, SOON), -EINTR);
    CHECK(motet_cq_free(near_node, cq), 0);
    CHECK(motet_cq_free(near_node, cq), -EBADF);
    struct motet_completion_options stale = options_of(cq, 0, 0);
    pair(QUEUE, &mode, &near_end, &far_end);
    source.channel = near_end;
    CHECK(motet_message_post(near_node, &source, got[0], 8, &stale, &posted[0]), -EBADF);
}

static void sleep_in_poll(void)
{
    motet_channel near_end, far_end;
    struct motet_receive_mode mode = queue();
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    pair(QUEUE, &mode, &near_end, &far_end);
    int slept = 0;
    for (int i = 0; i < 50; i++) {
        char got[8];
        struct motet_source source = from(near_end, 0, 0, 0);
        motet_operation receive;
        CHECK(motet_message_post(near_node, &source, got, 8, NULL, &receive), 0);
        if (i % 2)
            CHECK(motet_message_send(far_node, far_end, i, "x", 1, SOON), 0);
        struct pollfd descriptor = { motet_node_descriptor(near_node), POLLIN, 0 };
        for (int sent = i % 2; motet_operation_test(near_node, receive, &end) == 0;) {
            if (!sent && motet_node_arm(near_node) == 1) {
                CHECK(motet_message_send(far_node, far_end, i, "x", 1, SOON), 0);
                sent = 1;
                CHECK(poll(&descriptor, 1, 15000), 1);
                slept++;
            }
            CHECK(motet_node_progress(near_node) >= 0, 1);
        }
        CHECK(end.status == 0 && end.tag == (uint64_t)i, 1);
    }
    CHECK(slept, 25);
    CHECK(motet_channel_close(near_node, near_end), 0);
}

int main(void)
{
    nodes();
    queued();
    tags();
    handlers();
    cqs();
    sleep_in_poll();
    CHECK(motet_link_close(near_node, link_to_far), 0);
    CHECK(motet_link_close(near_node, link_to_far), -EBADF);
    stop_driver(&driver);
    CHECK(motet_node_close(near_node), 0);
    CHECK(motet_node_close(far_node), 0);
    CHECK(motet_node_close(far_node), -EBADF);
    puts("every call did what it says");
    return 0;
}
