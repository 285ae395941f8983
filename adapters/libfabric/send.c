/* send.c: sends, tagged and not.
 *
 * A message that fits leaves within the call, as an inject, and its event is ready at once. Any other is an operation of the engine that completes
 * in the queue. Data beside a message (FI_REMOTE_CQ_DATA) is a header of 8 bytes. */
#include "fabric.h"

/* Bodies of up to so many bytes are copied into the peer's memory within the call, where there is room: such a send is complete at once, and needs
 * no record. A link may take fewer (-E2BIG); the rest are operations. */
#define AT_ONCE (64u << 10)
#define DELIVERED (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE)

struct out {
    enum kind kind;
    const struct iovec *iov;
    size_t count;
    fi_addr_t to;
    uint64_t tag, data, flags;
    void *context;
    bool quiet; /* no event, whatever the queue is for */
};

static uint64_t event_flags(enum kind kind) { return FI_SEND | (kind == TAGGED ? FI_TAGGED : FI_MSG); }

static bool told(const struct endpoint *endpoint, const struct out *out)
{
    return !out->quiet && (!endpoint->selective_sends || out->flags & FI_COMPLETION);
}

/* The body as one piece of our own, until the operation has ended. */
static bool copy(struct request *request, const struct out *out, struct iovec *whole)
{
    size_t length = 0, at = 0;
    for (size_t i = 0; i < out->count; i++)
        length += out->iov[i].iov_len;
    if (!(request->copy = malloc(length ? length : 1))) return false;
    for (size_t i = 0; i < out->count; at += out->iov[i].iov_len, i++)
        if (out->iov[i].iov_len) memcpy((char *)request->copy + at, out->iov[i].iov_base, out->iov[i].iov_len);
    *whole = (struct iovec){ request->copy, length };
    return true;
}

/* As an operation: its memory is the program's, or with FI_INJECT a copy. */
static int start(struct endpoint *endpoint, const struct out *out, struct motet_outgoing *message)
{
    struct motet_completion_options notice = MOTET_INIT(struct motet_completion_options);
    struct request *request = request_take(endpoint);
    struct iovec whole;
    bool copied = out->flags & FI_INJECT;
    if (!request || (copied && !copy(request, out, &whole))) {
        if (request) request_give_back(request);
        return -EAGAIN;
    }
    request->context = out->context;
    request->flags = event_flags(out->kind);
    request->told = told(endpoint, out);
    request->counter = COUNT_SEND;
    notice.cq = endpoint->sends->group;
    notice.user_data = (uintptr_t)request;
    message->mode = out->flags & DELIVERED ? MOTET_SEND_SYNCHRONOUS : MOTET_SEND_AUTOMATIC;
    int result = motet_message_send_start(endpoint->domain->node, message, copied ? &whole : out->iov, copied ? 1 : (int)out->count, &notice,
                                     &request->operation);
    if (likely(result == 0)) request_note(request);
    else request_give_back(request);
    return result;
}

/* A message has left within the call. Its event is written word by word where it stays (see write_entry). */
static inline void gone(struct endpoint *endpoint, enum kind kind, void *context, bool told)
{
    struct cq *queue = endpoint->sends;
    count(endpoint, COUNT_SEND, 0);
    if (!told || !queue->told) return;
    struct event *event = cq_next_event(queue);
    event->context = context;
    event->flags = event_flags(kind);
    event->length = 0;
    event->buffer = NULL;
    event->data = event->tag = 0;
    event->endpoint = endpoint;
    event->channel = 0;
    event->beyond = 0;
    event->error = 0;
}

static ssize_t send_out(struct fid_ep *fid, const struct out *out)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid);
    struct motet_outgoing message = MOTET_INIT(struct motet_outgoing);
    size_t length = 0;
    motet_operation none;
    for (size_t i = 0; i < out->count; i++)
        length += out->iov[i].iov_len;
    if (unlikely(out->count > VECTORS || (out->flags & FI_INJECT && length > INJECT_SIZE))) return -FI_EINVAL;
    enter(endpoint->domain);
    endpoint->domain->ops_started++;
    struct peer *peer = peer_at(endpoint, out->to);
    int result = unlikely(!peer) ? -FI_EINVAL : likely(peer->out[out->kind] != 0) ? 0 : peer_out(endpoint, peer, out->kind);
    if (unlikely(result != 0)) {
        leave(endpoint->domain);
        return result;
    }
    message.channel = peer->out[out->kind];
    message.tag = out->tag;
    if (out->flags & FI_REMOTE_CQ_DATA) message.headers = &out->data, message.headers_length = sizeof out->data;
    result = -E2BIG;
    if (length <= AT_ONCE && !(out->flags & DELIVERED)) {
        message.mode = MOTET_SEND_INJECT;
        result = motet_message_send_start(endpoint->domain->node, &message, out->iov, (int)out->count, NULL, &none);
        if (likely(result == 0)) gone(endpoint, out->kind, out->context, told(endpoint, out));
    }
    if (unlikely(result == -E2BIG || result == -EAGAIN)) result = start(endpoint, out, &message);
    leave(endpoint->domain);
    return likely(result == 0) ? 0 : -to_errno(result);
}

/* The flags of calls that have none of their own: the endpoint's. */
static uint64_t usual(struct fid_ep *fid) { return container(fid, struct endpoint, fid)->send_flags; }

/* What most short messages are: one piece, for a peer that is known, and there is room. False, and nothing is done: any other way. */
static inline bool goes(struct fid_ep *fid, enum kind kind, const void *buf, size_t length, fi_addr_t to, uint64_t tag, const uint64_t *data,
                        void *context, bool quiet, uint64_t flags)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid);
    if (length > AT_ONCE || flags & (data ? DELIVERED : DELIVERED | FI_REMOTE_CQ_DATA)) return false;
    struct domain *domain = endpoint->domain;
    enter(domain);
    domain->ops_started++;
    struct peer *peer = to < endpoint->known_count ? endpoint->known[to] : NULL;
    bool result = false;
    if (likely(peer && peer->out[kind])) {
        result = motet_port_send(domain->port, peer->out[kind], tag, data, data ? sizeof *data : 0, buf, length) == 0;
        if (likely(result)) gone(endpoint, kind, context, !quiet && (!endpoint->selective_sends || flags & FI_COMPLETION));
    }
    leave(domain);
    return result;
}

/* Those of calls that inject: the memory is free at once, and no event follows. */
static ssize_t inject_out(struct fid_ep *fid, enum kind kind, const void *buf, size_t length, fi_addr_t to, uint64_t tag, uint64_t data,
                          uint64_t flags)
{
    if (likely(length <= INJECT_SIZE) && likely(goes(fid, kind, buf, length, to, tag, flags & FI_REMOTE_CQ_DATA ? &data : NULL, NULL, true, 0))) return 0;
    struct iovec iov = { (void *)buf, length };
    struct out out = { kind, &iov, 1, to, tag, data, flags | FI_INJECT, NULL, true };
    return send_out(fid, &out);
}

/* ---------------------------------------------------------------- with tags */

static ssize_t tagged_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t to, uint64_t tag, void *context)
{
    struct out out = { TAGGED, iov, count, to, tag, 0, usual(fid), context, false };
    return send_out(fid, &out);
}

static ssize_t tagged_send(struct fid_ep *fid, const void *buf, size_t length, void *desc, fi_addr_t to, uint64_t tag, void *context)
{
    struct iovec iov = { (void *)buf, length };
    if (likely(goes(fid, TAGGED, buf, length, to, tag, NULL, context, false, usual(fid)))) return 0;
    return tagged_sendv(fid, &iov, NULL, 1, to, tag, context);
}

static ssize_t tagged_sendmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg, uint64_t flags)
{
    struct out out = { TAGGED, msg->msg_iov, msg->iov_count, msg->addr, msg->tag, msg->data, flags, msg->context, false };
    return send_out(fid, &out);
}

static ssize_t tagged_inject(struct fid_ep *fid, const void *buf, size_t length, fi_addr_t to, uint64_t tag)
{
    return inject_out(fid, TAGGED, buf, length, to, tag, 0, 0);
}

static ssize_t tagged_senddata(struct fid_ep *fid, const void *buf, size_t length, void *desc, uint64_t data, fi_addr_t to, uint64_t tag,
                               void *context)
{
    struct iovec iov = { (void *)buf, length };
    if (likely(goes(fid, TAGGED, buf, length, to, tag, &data, context, false, usual(fid)))) return 0;
    struct out out = { TAGGED, &iov, 1, to, tag, data, usual(fid) | FI_REMOTE_CQ_DATA, context, false };
    return send_out(fid, &out);
}

static ssize_t tagged_injectdata(struct fid_ep *fid, const void *buf, size_t length, uint64_t data, fi_addr_t to, uint64_t tag)
{
    return inject_out(fid, TAGGED, buf, length, to, tag, data, FI_REMOTE_CQ_DATA);
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

/* ---------------------------------------------------------------- without */

static ssize_t plain_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t to, void *context)
{
    struct out out = { MSG, iov, count, to, 0, 0, usual(fid), context, false };
    return send_out(fid, &out);
}

static ssize_t plain_send(struct fid_ep *fid, const void *buf, size_t length, void *desc, fi_addr_t to, void *context)
{
    struct iovec iov = { (void *)buf, length };
    return plain_sendv(fid, &iov, NULL, 1, to, context);
}

static ssize_t plain_sendmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
    struct out out = { MSG, msg->msg_iov, msg->iov_count, msg->addr, 0, msg->data, flags, msg->context, false };
    return send_out(fid, &out);
}

static ssize_t plain_inject(struct fid_ep *fid, const void *buf, size_t length, fi_addr_t to)
{
    return inject_out(fid, MSG, buf, length, to, 0, 0, 0);
}

static ssize_t plain_senddata(struct fid_ep *fid, const void *buf, size_t length, void *desc, uint64_t data, fi_addr_t to, void *context)
{
    struct iovec iov = { (void *)buf, length };
    struct out out = { MSG, &iov, 1, to, 0, data, usual(fid) | FI_REMOTE_CQ_DATA, context, false };
    return send_out(fid, &out);
}

static ssize_t plain_injectdata(struct fid_ep *fid, const void *buf, size_t length, uint64_t data, fi_addr_t to)
{
    return inject_out(fid, MSG, buf, length, to, 0, data, FI_REMOTE_CQ_DATA);
}

struct fi_ops_msg msg_ops = {
    .size = sizeof msg_ops,
    .recv = msg_recv,
    .recvv = msg_recvv,
    .recvmsg = msg_recvmsg,
    .send = plain_send,
    .sendv = plain_sendv,
    .sendmsg = plain_sendmsg,
    .inject = plain_inject,
    .senddata = plain_senddata,
    .injectdata = plain_injectdata,
};
