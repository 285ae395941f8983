/* loans.c: loans between two processes through motet.h: a loaned message stays valid until it is released, once; other messages are received as copies;
 * and loans return when a process is killed. */
#include "check.h"

#include <signal.h>
#include <sys/prctl.h>

enum { SERVICE = 4, LONG = 300000, POOL = 64 << 20 };
/* Requests to the sender. */
enum { LEND = 1, SEND, HAS_ENDED, BYE };

struct question {
    int32_t what;
    uint32_t seed;
    uint64_t length;
};

static motet_node node;
static motet_channel channel;
static unsigned char buffer[LONG];
static motet_operation sent;

static struct motet_completion nothing(void) { return (struct motet_completion)MOTET_INIT(struct motet_completion); }

/* ---- the sender */

static int64_t lend(const struct question *q)
{
    struct motet_outgoing outgoing = message(channel, q->seed, MOTET_SEND_AUTOMATIC);
    void *memory = NULL;
    motet_loan loan;
    motet_operation none;
    CHECK(motet_loan_alloc(node, q->length + 10, &memory, &loan), 0);
    fill(memory, q->length, q->seed);
    outgoing.headers = "head";
    outgoing.headers_length = 4;
    CHECK(motet_loan_send(node, &outgoing, loan, q->length, NULL, SOON, &sent), 0);
    CHECK(motet_loan_send(node, &outgoing, loan, q->length, NULL, SOON, &none), -EBADF);
    CHECK(motet_loan_free(node, loan), -EBADF);
    return 0;
}

static void refusals(void)
{
    struct motet_outgoing outgoing = message(channel, 1, MOTET_SEND_AUTOMATIC), bad = outgoing;
    struct motet_completion_options options = options_of(0, 1, 0);
    void *memory = NULL;
    motet_loan loan, more[3];
    motet_operation operation = 1;
    CHECK(motet_loan_alloc(node, 5000, NULL, &loan), -EINVAL);
    CHECK(motet_loan_alloc(node, 5000, &memory, NULL), -EINVAL);
    CHECK(motet_loan_alloc(node, SIZE_MAX, &memory, &loan), -ENOBUFS);
    CHECK(memory == NULL && loan == 0, 1);
    CHECK(motet_loan_alloc(node, 5000, &memory, &loan), 0);
    memset(memory, 1, 5000);
    CHECK(motet_loan_send(node, NULL, loan, 5000, NULL, SOON, &operation), -EINVAL);
    CHECK(motet_loan_send(node, &outgoing, loan, 5001, NULL, SOON, &operation), -EINVAL);
    CHECK(operation, 0);
    CHECK(motet_loan_send(node, &outgoing, loan, 5000, &options, SOON, NULL), -EINVAL);
    CHECK(motet_loan_send(node, &outgoing, loan ^ 1 << 20, 5000, NULL, SOON, NULL), -EBADF);
    CHECK(motet_loan_send(node, &outgoing, 0, 5000, NULL, SOON, NULL), -EBADF);
    bad.mode = MOTET_SEND_SYNCHRONOUS;
    CHECK(motet_loan_send(node, &bad, loan, 5000, NULL, SOON, NULL), -EINVAL);
    bad = outgoing;
    bad.channel ^= UINT64_C(1) << 40;
    CHECK(motet_loan_send(node, &bad, loan, 5000, NULL, SOON, NULL), -EBADF);
    options = options_of(99, 1, 0);
    CHECK(motet_loan_send(node, &outgoing, loan, 5000, &options, SOON, &operation), -EBADF);
    CHECK(motet_message_release(node, loan), -EBADF); /* a handle of one kind is never one of another */
    CHECK(motet_region_close(node, loan), -EBADF);
    ((unsigned char *)memory)[4999] = 2; /* the loan is still the sender's */
    CHECK(motet_loan_free(node, loan), 0);
    CHECK(motet_loan_free(node, loan), -EBADF);
    CHECK(motet_loan_alloc(node, POOL / 2, &memory, &more[0]), 0);
    CHECK(motet_loan_alloc(node, POOL / 2, &memory, &more[1]), 0);
    CHECK(motet_loan_alloc(node, 1, &memory, &more[2]), -ENOBUFS);
    CHECK(motet_loan_free(node, more[0]), 0);
    CHECK(motet_loan_alloc(node, 1, &memory, &more[2]), 0);
    CHECK(motet_loan_free(node, more[2]), 0);
    CHECK(motet_loan_free(node, more[1]), 0);
}

static void send_what_is_asked(const char *to)
{
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    struct motet_receive_mode mode = queue();
    struct motet_completion end = nothing();
    struct question q;
    motet_link link;
    options.pool_max = POOL;
    CHECK(motet_node_open(&options, &node), 0);
    CHECK(motet_link_open(node, to, SOON, &link), 0);
    CHECK(motet_channel_open(node, link, SERVICE, &mode, SOON, &channel), 0);
    refusals();
    while (motet_message_receive(node, channel, &q, sizeof q, NEVER, NULL) == 0 && q.what != BYE) {
        int64_t said = 0;
        fill(buffer, q.what == SEND ? q.length : 0, q.seed);
        switch (q.what) {
        case LEND: lend(&q); continue;
        case SEND: CHECK(motet_message_send(node, channel, q.seed, buffer, q.length, SOON), 0); continue;
        default: /* HAS_ENDED, at once or very soon */
            said = sent == 0 ? 2 : motet_operation_wait(node, sent, q.length ? SOON : 0, &end);
            if (sent != 0 && said == 0)
                CHECK(end.status == 0 && end.operation == sent && end.loaned == 0, 1);
            CHECK(motet_message_send(node, channel, 99, &said, sizeof said, SOON), 0);
        }
    }
    CHECK(motet_node_close(node), 0);
    exit(0);
}

/* ---- the receiver */

static void ask(int what, uint64_t length, uint32_t seed)
{
    struct question q = { what, seed, length };
    CHECK(motet_message_send(node, channel, 0, &q, sizeof q, SOON), 0);
}

/* The state of the sender's last operation: -EAGAIN, 0 (completed), or 2 (there is none). */
static int64_t has_ended(int wait)
{
    struct motet_source source = from(channel, 0, 99, 0);
    int64_t said = -1;
    ask(HAS_ENDED, (uint64_t)wait, 0);
    CHECK(motet_message_receive_from(node, &source, &said, sizeof said, SOON, NULL), 0);
    return said;
}

static struct motet_source any(void) { return from(channel, 0, 0, UINT64_MAX); }

static void lent(int shm)
{
    static const uint64_t lengths[] = { 1, 100, 3840, 3841, 5000, LONG, 8 << 20 };
    struct motet_source source = any();
    struct motet_completion end = nothing();
    for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        ask(LEND, lengths[i], i);
        CHECK(motet_message_receive_in_place(node, &source, 1 << 30, SOON, &end), 0);
        CHECK(end.length == lengths[i] && end.message_length == lengths[i] && end.tag == i && end.channel == channel && end.operation == 0, 1);
        CHECK(end.headers_length == 4 && memcmp(end.headers, "head", 4) == 0, 1);
        CHECK(end.loaned != 0 && is_filled(end.body, lengths[i], i), 1);
        if (lengths[i] > 3840)
            CHECK(has_ended(!shm), shm ? -EAGAIN : 0); /* over shared memory it completes at the release */
        CHECK(is_filled(end.body, lengths[i], i), 1);
        CHECK(motet_message_release(node, end.loaned ^ 1), -EBADF);
        CHECK(motet_loan_free(node, end.loaned), -EBADF);
        CHECK(motet_message_release(node, end.loaned), 0);
        CHECK(motet_message_release(node, end.loaned), -EBADF);
        if (lengths[i] > 3840 && shm)
            CHECK(has_ended(1), 0);
    }
    /* An empty message needs no release. */
    end.loaned = 7;
    ask(LEND, 0, 3);
    CHECK(motet_message_receive_in_place(node, &source, 1 << 30, SOON, &end), 0);
    CHECK(end.loaned == 0 && end.body == NULL && end.length == 0 && end.tag == 3, 1);
}

/* Other messages received in place, and a loan received into a buffer. */
static void mixed(void)
{
    struct motet_source source = any();
    struct motet_completion end = nothing();
    for (int round = 0; round < 2; round++) {
        ask(SEND, LONG, 5);
        CHECK(motet_message_receive_in_place(node, &source, 1 << 30, SOON, &end), 0);
        CHECK(end.length == LONG && end.loaned != 0 && is_filled(end.body, LONG, 5), 1);
        CHECK(motet_message_release(node, end.loaned), 0);
        ask(SEND, LONG, 6); /* longer than `max` */
        CHECK(motet_message_receive_in_place(node, &source, 1000, SOON, &end), -EMSGSIZE);
        CHECK(end.length == 1000 && end.message_length == LONG && end.loaned != 0 && is_filled(end.body, 1000, 6), 1);
        CHECK(motet_message_release(node, end.loaned), 0);
    }
    ask(LEND, LONG, 7);
    memset(buffer, 0, LONG);
    CHECK(motet_message_receive(node, channel, buffer, LONG, SOON, &end), 0);
    CHECK(is_filled(buffer, LONG, 7) && end.length == LONG && end.tag == 7, 1);
    CHECK(has_ended(1), 0);
}

/* Completions of one operation, through a completion queue, of a claimed message, and not reported. */
static void told_so(void)
{
    struct motet_source source = any();
    struct motet_completion end = nothing(), ends[2] = { nothing(), nothing() };
    motet_operation one, two;
    motet_cq cq;
    motet_message claimed;
    CHECK(motet_cq_new(node, &cq), 0);
    struct motet_completion_options options = options_of(cq, 42, 0);
    CHECK(motet_message_post_in_place(node, &source, 1 << 20, NULL, &one), 0);
    CHECK(motet_message_post_in_place(node, &source, 1 << 20, &options, &two), 0);
    ask(LEND, LONG, 8);
    ask(LEND, LONG, 9);
    CHECK(motet_operation_wait(node, one, SOON, &end), 0);
    CHECK(motet_cq_wait(node, cq, ends, 2, SOON), 1);
    CHECK(end.status == 0 && end.operation == one && is_filled(end.body, LONG, 8), 1);
    CHECK(ends[0].user_data == 42 && ends[0].operation == two && is_filled(ends[0].body, LONG, 9), 1);
    CHECK(end.loaned != ends[0].loaned, 1);
    CHECK(motet_message_release(node, ends[0].loaned), 0);
    CHECK(is_filled(end.body, LONG, 8), 1);
    CHECK(motet_message_release(node, end.loaned), 0);

    ask(LEND, LONG, 10);
    int found;
    while ((found = motet_message_claim(node, &source, &end, &claimed)) == 0)
        CHECK(motet_node_progress(node) >= 0, 1);
    CHECK(found == 1 && end.message_length == LONG, 1);
    struct motet_completion_options wrong = options_of(cq + 1, 0, 0);
    CHECK(motet_message_accept_in_place(node, claimed, 1 << 20, &wrong, &one), -EBADF); /* the message is still claimed */
    CHECK(motet_message_accept_in_place(node, claimed, 1 << 20, NULL, NULL), -EINVAL);
    CHECK(motet_message_accept_in_place(node, claimed, 1 << 20, &options, &one), 0);
    CHECK(motet_message_accept_in_place(node, claimed, 1 << 20, &options, &one), -EBADF);
    CHECK(motet_cq_wait(node, cq, ends, 1, SOON), 1);
    CHECK(ends[0].status == 0 && is_filled(ends[0].body, LONG, 10), 1);
    CHECK(motet_message_release(node, ends[0].loaned), 0);

    /* A completion that is not reported releases the message. */
    for (uint32_t version = 0; version < 2; version++) {
        CHECK(motet_message_post_in_place(node, &source, 1 << 20, NULL, &one), 0);
        ask(LEND, LONG, 11);
        end = nothing();
        end.size = offsetof(struct motet_completion, loaned); /* an earlier version of the struct */
        end.loaned = 0xabc;
        CHECK(motet_operation_wait(node, one, SOON, version ? &end : NULL), 0);
        CHECK(end.loaned, 0xabc);
        CHECK(has_ended(1), 0);
    }
    CHECK(motet_message_receive_in_place(node, &source, 1 << 20, SOON, &end), -EINVAL);
    CHECK(motet_message_receive_in_place(node, &source, 1 << 20, SOON, NULL), -EINVAL);
    CHECK(motet_message_receive_in_place(node, NULL, 1 << 20, SOON, &ends[0]), -EINVAL);
    CHECK(motet_message_receive_in_place(node, &source, 1 << 20, in(0.005), &ends[0]), -ETIMEDOUT);
    CHECK(motet_message_receive_in_place(node, &source, 1 << 20, 0, &ends[0]), -EAGAIN);
    CHECK(motet_message_post_in_place(node, NULL, 1 << 20, NULL, &one), -EINVAL);
    CHECK(motet_message_post_in_place(node, &source, 1 << 20, NULL, NULL), -EINVAL);
    CHECK(motet_message_accept_in_place(node, 12345, 1 << 20, NULL, &one), -EBADF);
    CHECK(motet_message_release(node, 0), -EBADF);
    CHECK(motet_message_release(node, UINT64_MAX), -EBADF);
    /* A cancelled receive has no message. */
    CHECK(motet_message_post_in_place(node, &source, 1 << 20, NULL, &one), 0);
    CHECK(motet_operation_cancel(node, one), 0);
    CHECK(motet_operation_wait(node, one, SOON, &ends[0]), 0);
    CHECK(ends[0].status == -ECANCELED && ends[0].loaned == 0 && ends[0].body == NULL, 1);
    CHECK(motet_cq_free(node, cq), 0);
}

static pid_t meet(const char *way)
{
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    struct motet_receive_mode by_tag;
    char address[256] = "", scheme[16];
    motet_context context;
    int to_sender[2];
    snprintf(scheme, sizeof scheme, "%s://", way);
    options.listen = "127.0.0.1:0";
    CHECK(pipe(to_sender), 0);
    pid_t sender = fork();
    if (sender == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
        CHECK(read(to_sender[0], address, sizeof address), sizeof address);
        send_what_is_asked(address);
    }
    CHECK(motet_node_open(&options, &node), 0);
    CHECK(motet_node_address(node, address, sizeof address) > 0, 1);
    char *only = strstr(address, scheme);
    CHECK(only != NULL, 1);
    if (strchr(only, ','))
        *strchr(only, ',') = 0;
    memmove(address, only, strlen(only) + 1);
    CHECK(motet_context_new(node, &context), 0);
    by_tag = tagged(context);
    CHECK(motet_service_open(node, SERVICE, &by_tag), 0);
    CHECK(write(to_sender[1], address, sizeof address), sizeof address);
    CHECK(motet_channel_accept(node, SERVICE, SOON, &channel), 0);
    close(to_sender[0]);
    close(to_sender[1]);
    return sender;
}

static void between(const char *way)
{
    int status;
    pid_t sender = meet(way);
    lent(strcmp(way, "shm") == 0);
    mixed();
    told_so();
    ask(BYE, 0, 0);
    CHECK(waitpid(sender, &status, 0), sender);
    CHECK(status, 0);
    CHECK(motet_node_close(node), 0);
}

/* A killed sender: its loaned messages stay valid until they are released. */
static void killed_sender(void)
{
    struct motet_completion first = nothing(), second = nothing();
    int status;
    pid_t sender = meet("shm");
    struct motet_source source = any();
    ask(LEND, LONG, 1);
    ask(LEND, LONG, 2);
    CHECK(motet_message_receive_in_place(node, &source, 1 << 20, SOON, &first), 0);
    CHECK(motet_message_receive_in_place(node, &source, 1 << 20, SOON, &second), 0);
    kill(sender, SIGKILL);
    CHECK(waitpid(sender, &status, 0), sender);
    CHECK(motet_message_receive_in_place(node, &source, 1 << 20, SOON, &second), -ECONNRESET);
    CHECK(is_filled(first.body, LONG, 1), 1);
    CHECK(motet_message_release(node, first.loaned), 0);
    CHECK(motet_message_release(node, first.loaned), -EBADF);
    CHECK(motet_link_close(node, motet_channel_link(channel)), 0);
    CHECK(motet_node_close(node), 0);
    CHECK(motet_message_release(node, first.loaned), -EBADF);
}

/* A receiver that is killed while it holds a message: the sender's memory returns. */
static void killed_receiver(void)
{
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    struct motet_receive_mode mode = queue();
    struct motet_completion end = nothing();
    char name[64];
    void *memory;
    int status;
    motet_loan loan, all;
    motet_operation operation, unheard;
    snprintf(name, sizeof name, "loans-%d", getpid());
    pid_t receiver = fork();
    if (receiver == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
        options.name = name;
        CHECK(motet_node_open(&options, &node), 0);
        CHECK(motet_service_open(node, SERVICE, &mode), 0);
        CHECK(motet_channel_accept(node, SERVICE, SOON, &channel), 0);
        struct motet_source source = any();
        CHECK(motet_message_receive_in_place(node, &source, 1 << 20, SOON, &end), 0);
        CHECK(motet_message_send(node, channel, 0, "seen", 4, SOON), 0);
        raise(SIGSTOP);
        _exit(0);
    }
    motet_link link;
    options.pool_max = POOL;
    CHECK(motet_node_open(&options, &node), 0);
    CHECK(motet_link_open(node, name, SOON, &link), 0);
    CHECK(motet_channel_open(node, link, SERVICE, &mode, SOON, &channel), 0);
    struct motet_outgoing outgoing = message(channel, 1, MOTET_SEND_AUTOMATIC);
    CHECK(motet_loan_alloc(node, POOL / 2, &memory, &loan), 0);
    memset(memory, 1, LONG);
    CHECK(motet_loan_send(node, &outgoing, loan, LONG, NULL, SOON, &operation), 0);
    CHECK(operation != 0, 1);
    CHECK(motet_loan_alloc(node, LONG, &memory, &loan), 0);
    CHECK(motet_loan_send(node, &outgoing, loan, LONG, NULL, SOON, NULL), 0); /* without a completion */
    CHECK(motet_loan_alloc(node, LONG, &memory, &loan), 0);
    CHECK(motet_loan_send(node, &outgoing, loan, LONG, NULL, SOON, &unheard), 0);
    CHECK(motet_message_receive(node, channel, buffer, 4, SOON, NULL), 0);
    CHECK(waitpid(receiver, &status, WUNTRACED), receiver);
    CHECK(motet_operation_wait(node, operation, 0, &end), -EAGAIN);
    kill(receiver, SIGKILL);
    CHECK(waitpid(receiver, &status, 0), receiver);
    CHECK(motet_operation_wait(node, operation, SOON, &end), 0);
    CHECK(end.status, -ECONNRESET);
    CHECK(motet_operation_wait(node, unheard, SOON, &end), 0);
    CHECK(end.status, -ECONNRESET);
    CHECK(motet_loan_alloc(node, POOL, &memory, &all), 0); /* all loans have returned */
    CHECK(motet_loan_send(node, &outgoing, all, LONG, NULL, SOON, NULL), -ECONNRESET);
    ((char *)memory)[LONG - 1] = 1; /* the memory is writable */
    CHECK(motet_link_close(node, link), 0);
    CHECK(motet_loan_send(node, &outgoing, all, LONG, NULL, SOON, NULL), -EBADF);
    CHECK(motet_loan_free(node, all), 0);
    CHECK(motet_loan_alloc(node, LONG, &memory, &loan), 0); /* freed by motet_node_close() */
    CHECK(motet_node_close(node), 0);
    CHECK(motet_loan_free(node, loan), -EBADF);
}

int main(void)
{
    between("shm");
    between("tcp");
    killed_sender();
    killed_receiver();
    puts("loans come back");
    return 0;
}
