/* endpoints.c: features of the provider `motet` that MPI libraries do not use: sleeps in a descriptor and in fi_cq_sread, sources, multi-receive
 * buffers, counters, cancelled receives, puts of several pieces, refused accesses, strangers. Two domains of one process, each with its own thread.
 * Ends with the line "endpoints do what they say". */
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "motet.h"

#define CHECK(got, expected)                                                                                       \
    do {                                                                                                           \
        long long got_ = (long long)(got), expected_ = (long long)(expected);                                      \
        if (got_ != expected_) {                                                                                   \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #got, got_, expected_);           \
            exit(1);                                                                                               \
        }                                                                                                          \
    } while (0)

struct side {
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_cntr *sent, *written;
    struct fid_ep *ep;
    fi_addr_t other;
    char name[64];
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct side near, far;
static struct fid_mr *region;
static int64_t memory[1000];
static char many[4096];

static void open_side(struct side *side)
{
    struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD };
    struct fi_av_attr av = { .type = FI_AV_MAP };
    struct fi_cntr_attr counter = { .events = FI_CNTR_EVENTS_COMP };
    size_t length = sizeof side->name, least = 100;
    CHECK(fi_domain(fabric, info, &side->domain, NULL), 0);
    CHECK(fi_av_open(side->domain, &av, &side->av, NULL), 0);
    CHECK(fi_cq_open(side->domain, &cq, &side->cq, NULL), 0);
    CHECK(fi_cntr_open(side->domain, &counter, &side->sent, NULL), 0);
    CHECK(fi_cntr_open(side->domain, &counter, &side->written, NULL), 0);
    CHECK(fi_endpoint(side->domain, info, &side->ep, NULL), 0);
    CHECK(fi_enable(side->ep), -FI_ENOAV);
    CHECK(fi_ep_bind(side->ep, &side->av->fid, 0), 0);
    CHECK(fi_ep_bind(side->ep, &side->cq->fid, FI_SEND | FI_RECV), 0);
    CHECK(fi_ep_bind(side->ep, &side->sent->fid, FI_SEND), 0);
    CHECK(fi_ep_bind(side->ep, &side->written->fid, FI_WRITE), 0);
    CHECK(fi_setopt(&side->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least), 0);
    CHECK(fi_enable(side->ep), 0);
    CHECK(fi_getname(&side->ep->fid, side->name, &length), 0);
    CHECK(length, 56);
    length = 10;
    CHECK(fi_getname(&side->ep->fid, many, &length), -FI_ETOOSMALL);
}

static void close_side(struct side *side)
{
    CHECK(fi_close(&side->cq->fid), -FI_EBUSY);
    CHECK(fi_close(&side->ep->fid), 0);
    CHECK(fi_close(&side->sent->fid), 0);
    CHECK(fi_close(&side->written->fid), 0);
    CHECK(fi_close(&side->cq->fid), 0);
    CHECK(fi_close(&side->av->fid), 0);
    CHECK(fi_close(&side->domain->fid), 0);
}

/* Waits for the next event, which must have this context. */
static struct fi_cq_tagged_entry event(struct side *side, void *context, fi_addr_t *source)
{
    struct fi_cq_tagged_entry entry;
    CHECK(fi_cq_sreadfrom(side->cq, &entry, 1, source, NULL, 30000), 1);
    CHECK((char *)entry.op_context - (char *)context, 0);
    return entry;
}

static int failure(struct side *side, void *context)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = { 0 };
    CHECK(fi_cq_sread(side->cq, &entry, 1, NULL, 30000), -FI_EAVAIL);
    CHECK(fi_cq_readerr(side->cq, &error, 0), 1);
    CHECK((char *)error.op_context - (char *)context, 0);
    return error.err;
}

/* The contents of the messages that fill a multi-receive buffer, at this offset. */
static size_t length_of(int number, size_t place)
{
    size_t length = (size_t)(150 + number), left = sizeof many - place;
    return length < left ? length : left;
}

/* Repeats a call while there is no room or the peer is not connected. */
#define AGAIN(side, call)                                              \
    do {                                                               \
        ssize_t result_;                                               \
        while ((result_ = (call)) == -FI_EAGAIN) fi_cntr_read((side)->sent); \
        CHECK(result_, 0);                                             \
    } while (0)

/* ---------------------------------------------------------------- the far side: answers, and makes progress until the end */

static atomic_int over;

static void *answer(void *nothing)
{
    char text[64];
    struct fi_context context[2];
    fi_addr_t source;
    /* A receive from the near side alone, before they are connected; then a message to the near side while that sleeps. */
    CHECK(fi_trecv(far.ep, text, sizeof text, NULL, far.other, 7, 0xff00, &context[0]), 0);
    struct fi_cq_tagged_entry got = event(&far, &context[0], &source);
    CHECK(got.tag, 0x1207);
    CHECK(got.data, 99);
    CHECK(got.flags & FI_REMOTE_CQ_DATA, FI_REMOTE_CQ_DATA);
    CHECK(got.len, 6);
    CHECK(source, far.other);
    usleep(50000); /* so that the near side sleeps */
    AGAIN(&far, fi_tsend(far.ep, "world", 6, NULL, far.other, 8, &context[1]));
    event(&far, &context[1], NULL);

    /* One multi-receive buffer for untagged messages. */
    struct fi_msg message = { .msg_iov = &(struct iovec){ many, sizeof many }, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &context[0] };
    CHECK(fi_recvmsg(far.ep, &message, FI_MULTI_RECV), 0);
    size_t place = 0;
    for (int i = 0;; i++) {
        got = event(&far, &context[0], NULL);
        CHECK((char *)got.buf - many, place);
        CHECK(got.len, length_of(i, place));
        for (size_t at = 0; at < got.len; at++)
            CHECK(((char *)got.buf)[at], (char)i);
        place += (got.len + 7) / 8 * 8;
        if (got.flags & FI_MULTI_RECV) break;
    }
    CHECK(sizeof many - place < 100, 1);
    AGAIN(&far, fi_tinject(far.ep, &region->key, sizeof region->key, far.other, 9));
    while (!over)
        fi_cntr_read(far.sent);
    return nothing;
}

/* ---------------------------------------------------------------- the near side: requests */

static void talk(void)
{
    char text[64];
    struct fi_context context[3];
    struct fi_cq_tagged_entry entry;
    CHECK(fi_cq_read(near.cq, &entry, 1), -FI_EAGAIN);
    CHECK(fi_cq_sread(near.cq, &entry, 1, NULL, 5), -FI_EAGAIN);
    CHECK(fi_cq_signal(near.cq), 0);
    CHECK(fi_cq_sread(near.cq, &entry, 1, NULL, -1), -FI_EAGAIN);
    AGAIN(&near, fi_tsenddata(near.ep, "hello", 6, NULL, 99, near.other, 0x1207, &context[0]));
    event(&near, &context[0], NULL);
    CHECK(fi_cntr_read(near.sent), 1);

    /* Sleeps in its own poll(). */
    CHECK(fi_trecv(near.ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, 8, 0, &context[1]), 0);
    struct fid *fids[] = { &near.cq->fid };
    int descriptor;
    CHECK(fi_control(&near.cq->fid, FI_GETWAIT, &descriptor), 0);
    ssize_t result;
    while ((result = fi_cq_read(near.cq, &entry, 1)) == -FI_EAGAIN)
        if (fi_trywait(fabric, fids, 1) == 0) CHECK(poll(&(struct pollfd){ descriptor, POLLIN, 0 }, 1, 30000), 1);
    CHECK(result, 1);
    CHECK(strcmp(text, "world"), 0);

    CHECK(fi_trecv(near.ep, text, sizeof text, NULL, near.other, 1, 0, &context[2]), 0);
    CHECK(fi_cancel(&near.ep->fid, &context[2]), 0);
    CHECK(failure(&near, &context[2]), FI_ECANCELED);
    CHECK(fi_cancel(&near.ep->fid, &context[2]), -FI_ENOENT);
    struct fi_msg_tagged look = { .addr = FI_ADDR_UNSPEC, .tag = 555, .context = &context[0] };
    CHECK(fi_trecvmsg(near.ep, &look, FI_PEEK), 0);
    CHECK(failure(&near, &context[0]), FI_ENOMSG);

    /* As many messages as the peer's buffer takes. */
    size_t place = 0;
    for (int i = 0; sizeof many - place >= 100; i++) {
        char body[400];
        memset(body, i, sizeof body);
        size_t length = length_of(i, place);
        AGAIN(&near, fi_send(near.ep, body, length, NULL, near.other, &context[0]));
        event(&near, &context[0], NULL);
        place += (length + 7) / 8 * 8;
    }
}

static void reach(void)
{
    uint64_t key;
    struct fi_context context;
    int64_t values[4] = { 10, 11, 12, 13 }, before = 0, one = 1, back[4] = { 0 };
    CHECK(fi_trecv(near.ep, &key, sizeof key, NULL, near.other, 9, 0, &context), 0);
    event(&near, &context, NULL);
    /* Two local pieces into two remote ones. */
    struct iovec here[2] = { { values, 8 }, { values + 1, 24 } };
    struct fi_rma_iov there[2] = { { 80, 16, key }, { 160, 16, key } };
    struct fi_msg_rma put = { .msg_iov = here, .iov_count = 2, .addr = near.other, .rma_iov = there, .rma_iov_count = 2, .context = &context };
    CHECK(fi_writemsg(near.ep, &put, FI_DELIVERY_COMPLETE), 0);
    CHECK(event(&near, &context, NULL).flags & FI_RMA, FI_RMA);
    CHECK(memory[10] == 10 && memory[11] == 11 && memory[20] == 12 && memory[21] == 13, 1);
    CHECK(fi_cntr_read(near.written), 1);
    CHECK(fi_read(near.ep, back, 32, NULL, near.other, 80, key, &context), 0);
    event(&near, &context, NULL);
    CHECK(back[0] == 10 && back[1] == 11, 1);
    CHECK(fi_inject_write(near.ep, &one, 8, near.other, 0, key), 0);
    CHECK(fi_fetch_atomic(near.ep, &one, 1, NULL, &before, NULL, near.other, 0, key, FI_INT64, FI_SUM, &context), 0);
    event(&near, &context, NULL);
    CHECK(before, 1);
    CHECK(fi_compare_atomic(near.ep, &values[0], 1, NULL, &values[1], NULL, &before, NULL, near.other, 80, key, FI_INT64, FI_CSWAP, &context), 0);
    event(&near, &context, NULL);
    CHECK(before == 10 && memory[10] == 10 && memory[0] == 2, 1);
    size_t count;
    CHECK(fi_atomicvalid(near.ep, FI_DOUBLE, FI_SUM, &count), 0);
    CHECK(count, 32);
    CHECK(fi_atomicvalid(near.ep, FI_DOUBLE, FI_BOR, &count), -FI_EOPNOTSUPP);
    CHECK(fi_atomicvalid(near.ep, FI_LONG_DOUBLE, FI_SUM, &count), -FI_EOPNOTSUPP);
    /* Bytes outside of the region are refused. An invented key ends the link. */
    CHECK(fi_write(near.ep, values, 16, NULL, near.other, sizeof memory - 8, key, &context), 0);
    CHECK(failure(&near, &context) != 0, 1);
    CHECK(fi_write(near.ep, values, 8, NULL, near.other, 0, key ^ 1ull << 63, &context), 0);
    CHECK(failure(&near, &context), FI_ECONNRESET);
    CHECK(memory[999], 0);
}

/* A hello without the secret of the endpoint's address: the sender loses its link, and other peers are not affected. */
struct name {
    uint32_t magic;
    uint16_t endpoint, port;
    uint64_t node, secret, answer;
    uint8_t rest[24];
};
struct hello {
    uint32_t magic;
    uint16_t step, kind;
    uint64_t secret;
    struct name from;
};

#define CALL(function) ((__typeof__(&function))dlsym(engine, #function))

static void strangers(void)
{
    void *engine = dlopen("libmotet.so.0", RTLD_LAZY | RTLD_NOLOAD); /* loaded by the provider */
    CHECK(engine != NULL, 1);
    struct name own;
    char text[32];
    motet_node node;
    struct motet_receive_mode queue = MOTET_INIT(struct motet_receive_mode);
    memcpy(&own, far.name, sizeof own);
    snprintf(text, sizeof text, "fi-%016llx", (unsigned long long)own.node);
    queue.kind = MOTET_RECEIVE_QUEUE;
    CHECK(CALL(motet_node_open)(NULL, &node), 0);
    for (int i = 0; i < 20; i++) {
        struct hello hello = { 0x314d7447, 1, 0, own.secret, own };
        size_t length = sizeof hello;
        motet_link link;
        motet_channel channel;
        switch (i % 5) {
        case 0: hello.secret ^= 1ull << i; break;
        case 1: hello.magic++; break;
        case 2: hello.kind = 2; break;
        case 3: hello.step = 3; break;
        case 4: length -= 1 + (size_t)i; break;
        }
        CHECK(CALL(motet_link_open)(node, text, INT64_MAX, &link), 0);
        CHECK(CALL(motet_channel_open)(node, link, (uint64_t)own.endpoint << 8 | 2, &queue, INT64_MAX, &channel), 0);
        CHECK(CALL(motet_message_send)(node, channel, 0, &hello, length, INT64_MAX), 0);
        struct motet_link_state state = MOTET_INIT(struct motet_link_state);
        for (time_t end = time(NULL) + 20; !state.down;) {
            CALL(motet_node_progress)(node);
            CHECK(CALL(motet_link_info)(node, link, &state), 0);
            CHECK(time(NULL) < end, 1);
        }
        CHECK(CALL(motet_link_close)(node, link), 0);
    }
    CHECK(CALL(motet_node_close)(node), 0);
}

int main(void)
{
    struct fi_info *hints = fi_allocinfo();
    pthread_t thread;
    hints->fabric_attr->prov_name = strdup("motet");
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV;
    hints->domain_attr->mr_mode = FI_MR_PROV_KEY | FI_MR_ALLOCATED;
    CHECK(fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info), 0);
    struct fi_info *none;
    hints->domain_attr->mr_mode = 0; /* keys chosen by the program */
    CHECK(fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &none), -FI_ENODATA);
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL), 0);
    open_side(&near);
    open_side(&far);
    CHECK(fi_av_insert(near.av, far.name, 1, &near.other, 0, NULL), 1);
    CHECK(fi_av_insert(far.av, near.name, 1, &far.other, 0, NULL), 1);
    char garbage[56] = "garbage";
    fi_addr_t at = 0;
    CHECK(fi_av_insert(far.av, garbage, 1, &at, 0, NULL), 0);
    CHECK(at, FI_ADDR_NOTAVAIL);
    CHECK(fi_mr_reg(far.domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &region, NULL), 0);
    pthread_create(&thread, NULL, answer, NULL);
    strangers();
    talk();
    reach();
    over = 1;
    pthread_join(thread, NULL);
    CHECK(fi_close(&region->fid), 0);
    close_side(&near);
    close_side(&far);
    CHECK(fi_close(&fabric->fid), 0);
    fi_freeinfo(info);
    fi_freeinfo(hints);
    puts("endpoints do what they say");
    return 0;
}
