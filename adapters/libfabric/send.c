/* send.c: sends, tagged and not.
 *
 * A message that fits leaves within the call, as an inject, and its event is ready at once. Any other is an operation of the engine that completes
 * in the queue. Data beside a message (FI_REMOTE_CQ_DATA) is a header of 8 bytes. */
#include "fabric.h"

/* Bodies of up to this many bytes are copied to the peer within the call where there is room. Such a send completes at once and needs no request.
 * A link may take fewer bytes (-E2BIG); other sends are operations of the engine. */
#define MAX_EAGER_BYTES (64u << 10)
#define DELIVERY_FLAGS (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE)

struct send_args {
    enum msg_kind kind;
    const struct iovec *iov;
    size_t count;
    fi_addr_t to;
    uint64_t tag, data, flags;
    void *context;
    bool no_completion; /* no event in any case (inject) */
};

static uint64_t event_flags(enum msg_kind kind) { return FI_SEND | (kind == TAGGED ? FI_TAGGED : FI_MSG); }

static bool reports(const struct endpoint *endpoint, const struct send_args *args)
{
    return !args->no_completion && (!endpoint->tx_selective || args->flags & FI_COMPLETION);
}

/* Copies the body into one piece that is kept until the operation completes. */
static bool copy_body(struct request *request, const struct send_args *args, struct iovec *whole)
{
    size_t length = 0, at = 0;
    for (size_t i = 0; i < args->count; i++)
        length += args->iov[i].iov_len;
    if (!(request->copy = malloc(length ? length : 1))) return false;
    for (size_t i = 0; i < args->count; at += args->iov[i].iov_len, i++)
        if (args->iov[i].iov_len) memcpy((char *)request->copy + at, args->iov[i].iov_base, args->iov[i].iov_len);
    *whole = (struct iovec){ request->copy, length };
    return true;
}

/* Starts an operation of the engine. The body is the program's memory, or with FI_INJECT a copy. */
static int start_operation(struct endpoint *endpoint, const struct send_args *args, struct motet_outgoing *message)
{
    struct motet_completion_options options = MOTET_INIT(struct motet_completion_options);
    struct request *request = request_alloc(endpoint);
    struct iovec whole;
    bool copied = args->flags & FI_INJECT;
    if (!request || (copied && !copy_body(request, args, &whole))) {
        if (request) request_free(request);
        return -EAGAIN;
    }
    request->context = args->context;
    request->flags = event_flags(args->kind);
    request->reports = reports(endpoint, args);
    request->cntr_kind = CNTR_SEND;
    options.cq = endpoint->tx_cq->engine_cq;
    options.user_data = (uintptr_t)request;
    message->mode = args->flags & DELIVERY_FLAGS ? MOTET_SEND_SYNCHRONOUS : MOTET_SEND_AUTOMATIC;
    int result = motet_message_send_start(endpoint->domain->node, message, copied ? &whole : args->iov, copied ? 1 : (int)args->count, &options,
                                          &request->operation);
    if (likely(result == 0)) request_track(request);
    else request_free(request);
    return result;
}

/* Reports a message that has left within the call. Each field is stored directly in the slot of the event: a wide load of separately stored fields
 * cannot be forwarded from the store buffer and stalls (ADR 32). */
static inline void report_sent(struct endpoint *endpoint, enum msg_kind kind, void *context, bool reports)
{
    struct cq *cq = endpoint->tx_cq;
    count_operation(endpoint, CNTR_SEND, 0);
    if (!reports || !cq->user_visible) return;
    struct event *event = cq_next_event(cq);
    event->context = context;
    event->flags = event_flags(kind);
    event->length = 0;
    event->buffer = NULL;
    event->data = event->tag = 0;
    event->endpoint = endpoint;
    event->channel = 0;
    event->truncated = 0;
    event->error = 0;
}

static ssize_t send_message(struct fid_ep *fid, const struct send_args *args)
{
    struct endpoint *endpoint = container_of(fid, struct endpoint, fid);
    struct motet_outgoing message = MOTET_INIT(struct motet_outgoing);
    size_t length = 0;
    motet_operation none;
    for (size_t i = 0; i < args->count; i++)
        length += args->iov[i].iov_len;
    if (unlikely(args->count > IOV_LIMIT || (args->flags & FI_INJECT && length > INJECT_SIZE))) return -FI_EINVAL;
    domain_lock(endpoint->domain);
    endpoint->domain->ops_started++;
    struct peer *peer = peer_at(endpoint, args->to);
    int result = unlikely(!peer) ? -FI_EINVAL : likely(peer->out[args->kind] != 0) ? 0 : peer_open_out(endpoint, peer, args->kind);
    if (unlikely(result != 0)) {
        domain_unlock(endpoint->domain);
        return result;
    }
    message.channel = peer->out[args->kind];
    message.tag = args->tag;
    if (args->flags & FI_REMOTE_CQ_DATA) message.headers = &args->data, message.headers_length = sizeof args->data;
    result = -E2BIG;
    if (length <= MAX_EAGER_BYTES && !(args->flags & DELIVERY_FLAGS)) {
        message.mode = MOTET_SEND_INJECT;
        result = motet_message_send_start(endpoint->domain->node, &message, args->iov, (int)args->count, NULL, &none);
        if (likely(result == 0)) report_sent(endpoint, args->kind, args->context, reports(endpoint, args));
    }
    if (unlikely(result == -E2BIG || result == -EAGAIN)) result = start_operation(endpoint, args, &message);
    domain_unlock(endpoint->domain);
    return likely(result == 0) ? 0 : -to_errno(result);
}

/* The endpoint's flags, for calls without a flags argument. */
static uint64_t default_flags(struct fid_ep *fid) { return container_of(fid, struct endpoint, fid)->tx_op_flags; }

/* Fast path: a body of one piece to a connected peer, where there is room. False: nothing was sent, take the general path. */
static inline bool try_send(struct fid_ep *fid, enum msg_kind kind, const void *buf, size_t length, fi_addr_t to, uint64_t tag, const uint64_t *data,
                            void *context, bool no_completion, uint64_t flags)
{
    struct endpoint *endpoint = container_of(fid, struct endpoint, fid);
    if (length > MAX_EAGER_BYTES || flags & (data ? DELIVERY_FLAGS : DELIVERY_FLAGS | FI_REMOTE_CQ_DATA)) return false;
    struct domain *domain = endpoint->domain;
    domain_lock(domain);
    domain->ops_started++;
    struct peer *peer = to < endpoint->peers_by_addr_count ? endpoint->peers_by_addr[to] : NULL;
    bool result = false;
    if (likely(peer && peer->out[kind])) {
        result = motet_port_send(domain->port, peer->out[kind], tag, data, data ? sizeof *data : 0, buf, length) == 0;
        if (likely(result)) report_sent(endpoint, kind, context, !no_completion && (!endpoint->tx_selective || flags & FI_COMPLETION));
    }
    domain_unlock(domain);
    return result;
}

/* Inject calls: the body may be reused at once, and no event follows. */
static ssize_t send_inject(struct fid_ep *fid, enum msg_kind kind, const void *buf, size_t length, fi_addr_t to, uint64_t tag, uint64_t data,
                           uint64_t flags)
{
    if (likely(length <= INJECT_SIZE) && likely(try_send(fid, kind, buf, length, to, tag, flags & FI_REMOTE_CQ_DATA ? &data : NULL, NULL, true, 0))) return 0;
    struct iovec iov = { (void *)buf, length };
    struct send_args args = { kind, &iov, 1, to, tag, data, flags | FI_INJECT, NULL, true };
    return send_message(fid, &args);
}

/* ---------------------------------------------------------------- tagged */

static ssize_t tagged_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t to, uint64_t tag, void *context)
{
    struct send_args args = { TAGGED, iov, count, to, tag, 0, default_flags(fid), context, false };
    return send_message(fid, &args);
}

static ssize_t tagged_send(struct fid_ep *fid, const void *buf, size_t length, void *desc, fi_addr_t to, uint64_t tag, void *context)
{
    struct iovec iov = { (void *)buf, length };
    if (likely(try_send(fid, TAGGED, buf, length, to, tag, NULL, context, false, default_flags(fid)))) return 0;
    return tagged_sendv(fid, &iov, NULL, 1, to, tag, context);
}

static ssize_t tagged_sendmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg, uint64_t flags)
{
    struct send_args args = { TAGGED, msg->msg_iov, msg->iov_count, msg->addr, msg->tag, msg->data, flags, msg->context, false };
    return send_message(fid, &args);
}

static ssize_t tagged_inject(struct fid_ep *fid, const void *buf, size_t length, fi_addr_t to, uint64_t tag)
{
    return send_inject(fid, TAGGED, buf, length, to, tag, 0, 0);
}

static ssize_t tagged_senddata(struct fid_ep *fid, const void *buf, size_t length, void *desc, uint64_t data, fi_addr_t to, uint64_t tag,
                               void *context)
{
    struct iovec iov = { (void *)buf, length };
    if (likely(try_send(fid, TAGGED, buf, length, to, tag, &data, context, false, default_flags(fid)))) return 0;
    struct send_args args = { TAGGED, &iov, 1, to, tag, data, default_flags(fid) | FI_REMOTE_CQ_DATA, context, false };
    return send_message(fid, &args);
}

static ssize_t tagged_injectdata(struct fid_ep *fid, const void *buf, size_t length, uint64_t data, fi_addr_t to, uint64_t tag)
{
    return send_inject(fid, TAGGED, buf, length, to, tag, data, FI_REMOTE_CQ_DATA);
}

struct fi_ops_tagged tagged_ops = {
    .size = sizeof tagged_ops,
    .recv = tagged_recv,
    .recvv = tagged_recvv,
    .recvmsg = tagged_recvmsg,
    .send = tagged_send,
    .sendv = tagged_sendv,
    .sendmsg = tagged_sendmsg,
    .inject = tagged_inject,
    .senddata = tagged_senddata,
    .injectdata = tagged_injectdata,
};

/* ---------------------------------------------------------------- untagged */

static ssize_t msg_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t to, void *context)
{
    struct send_args args = { MSG, iov, count, to, 0, 0, default_flags(fid), context, false };
    return send_message(fid, &args);
}

static ssize_t msg_send(struct fid_ep *fid, const void *buf, size_t length, void *desc, fi_addr_t to, void *context)
{
    struct iovec iov = { (void *)buf, length };
    return msg_sendv(fid, &iov, NULL, 1, to, context);
}

static ssize_t msg_sendmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
    struct send_args args = { MSG, msg->msg_iov, msg->iov_count, msg->addr, 0, msg->data, flags, msg->context, false };
    return send_message(fid, &args);
}

static ssize_t msg_inject(struct fid_ep *fid, const void *buf, size_t length, fi_addr_t to)
{
    return send_inject(fid, MSG, buf, length, to, 0, 0, 0);
}

static ssize_t msg_senddata(struct fid_ep *fid, const void *buf, size_t length, void *desc, uint64_t data, fi_addr_t to, void *context)
{
    struct iovec iov = { (void *)buf, length };
    struct send_args args = { MSG, &iov, 1, to, 0, data, default_flags(fid) | FI_REMOTE_CQ_DATA, context, false };
    return send_message(fid, &args);
}

static ssize_t msg_injectdata(struct fid_ep *fid, const void *buf, size_t length, uint64_t data, fi_addr_t to)
{
    return send_inject(fid, MSG, buf, length, to, 0, data, FI_REMOTE_CQ_DATA);
}

struct fi_ops_msg msg_ops = {
    .size = sizeof msg_ops,
    .recv = msg_recv,
    .recvv = msg_recvv,
    .recvmsg = msg_recvmsg,
    .send = msg_send,
    .sendv = msg_sendv,
    .sendmsg = msg_sendmsg,
    .inject = msg_inject,
    .senddata = msg_senddata,
    .injectdata = msg_injectdata,
};
