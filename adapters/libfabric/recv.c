/* recv.c: receives: from one peer or any, tagged or not; probes; and buffers for many messages.
 *
 * A receive is posted on a peer's channel, or on the context of all channels. FI_PEEK and FI_CLAIM are Motet's peek and claim; a claimed message
 * is kept under the program's context until it is received. A buffer for many messages (FI_MULTI_RECV) is posted again, behind what it has
 * received, with each message (completion.c). */
#include "fabric.h"

struct recv_args {
    enum msg_kind kind;
    void *buffer;
    size_t capacity;
    fi_addr_t from;
    uint64_t tag, ignore, flags;
    void *context;
};

static uint64_t event_flags(enum msg_kind kind) { return FI_RECV | (kind == TAGGED ? FI_TAGGED : FI_MSG); }

static bool reports(const struct endpoint *endpoint, uint64_t flags) { return !endpoint->rx_selective || flags & FI_COMPLETION; }

/* Fills in where a receive looks for its message. 0, or a negative error of libfabric's. */
static int resolve_source(struct endpoint *endpoint, const struct recv_args *args, struct motet_source *source)
{
    source->tag = args->kind == TAGGED ? args->tag : 0;
    source->ignore = args->kind == TAGGED ? args->ignore : ~(uint64_t)0;
    source->context = endpoint->contexts[args->kind];
    if (args->from == FI_ADDR_UNSPEC || !(endpoint->caps & FI_DIRECTED_RECV)) return 0;
    struct peer *peer = peer_at(endpoint, args->from);
    int result = unlikely(!peer) ? -FI_EINVAL : likely(peer->in[args->kind] != 0) ? 0 : peer_open_in(endpoint, peer, args->kind);
    if (likely(result == 0)) source->channel = peer->in[args->kind], source->context = 0;
    return result;
}

static int post_receive(struct request *request, const struct motet_source *source)
{
    struct endpoint *endpoint = request->endpoint;
    int result = motet_port_post_operation(endpoint->domain->port, source->channel, source->context, source->tag, source->ignore,
                                           (char *)request->buffer + request->offset, request->remaining, endpoint->rx_cq->engine_cq, (uintptr_t)request,
                                  &request->operation);
    if (likely(result == 0)) request_track(request);
    return result;
}

/* Posts the free part of a multi-receive buffer. */
int recv_repost(struct request *request)
{
    struct motet_source source = MOTET_INIT(struct motet_source);
    source.channel = request->source_channel;
    source.context = request->source_channel ? 0 : request->endpoint->contexts[request->kind];
    source.ignore = ~(uint64_t)0;
    return post_receive(request, &source);
}

static struct request *recv_request_alloc(struct endpoint *endpoint, const struct recv_args *args)
{
    struct request *request = request_alloc(endpoint);
    if (unlikely(!request)) return NULL;
    request->context = args->context;
    request->flags = event_flags(args->kind);
    request->reports = reports(endpoint, args->flags);
    request->cntr_kind = CNTR_RECV;
    request->kind = (uint8_t)args->kind;
    request->buffer = args->buffer;
    request->remaining = args->capacity;
    request->offset = 0;
    request->multi_recv = args->flags & FI_MULTI_RECV && args->kind == MSG;
    return request;
}

/* ---------------------------------------------------------------- probes */

static struct claimed **claimed_by(struct endpoint *endpoint, const void *context)
{
    struct claimed **at = &endpoint->claimed;
    while (*at && (*at)->context != context)
        at = &(*at)->next;
    return at;
}

static void report_receive(struct endpoint *endpoint, const struct event *event) { report(endpoint, endpoint->rx_cq, event, true, CNTR_KINDS); }

/* Whether a probe for a message from any source may report that it has found one. MPICH keeps messages of a rank to itself in a queue of its own:
 * it probes that queue, then this provider, and makes progress on its own queue only then; its receives from any source look there first. So
 * MPI_Dist_graph_create, which probes and then receives from any source, took a message of its own that it had not seen yet for the one found
 * here. It sends before it probes: the first probe after a send reports nothing, the next one reports all. No two probes in a row are
 * suppressed, so a program that sends before every probe still progresses. */
static bool may_report(struct endpoint *endpoint, bool found)
{
    bool first = endpoint->ops_started_at_probe != endpoint->domain->ops_started;
    endpoint->ops_started_at_probe = endpoint->domain->ops_started;
    return !(endpoint->probe_suppressed = found && first && !endpoint->probe_suppressed);
}

/* FI_PEEK; with FI_CLAIM or FI_DISCARD it also takes the message off the unexpected queue. The result is an event, also when there is no message. */
static int peek_message(struct endpoint *endpoint, const struct recv_args *args, const struct motet_source *source)
{
    motet_node node = endpoint->domain->node;
    struct motet_completion seen = MOTET_INIT(struct motet_completion);
    struct event event = { .context = args->context, .flags = event_flags(args->kind), .endpoint = endpoint };
    motet_message message = 0;
    bool takes = args->flags & (FI_CLAIM | FI_DISCARD);
    struct claimed *claimed = takes ? malloc(sizeof *claimed) : NULL;
    if (takes && !claimed) return -FI_EAGAIN;
    int found = takes ? motet_message_claim(node, source, &seen, &message) : motet_message_peek(node, source, &seen);
    if (!takes && source->context && !may_report(endpoint, found == 1)) found = 0;
    if (found == 1) {
        event.length = seen.message_length;
        event.tag = seen.tag;
        event.channel = seen.channel;
        if (seen.headers_length == sizeof event.data) {
            memcpy(&event.data, seen.headers, sizeof event.data);
            event.flags |= FI_REMOTE_CQ_DATA;
        }
    } else {
        event.error = FI_ENOMSG;
        /* Progress for the next probe: the event of this one is read without any. */
        motet_node_progress(node);
    }
    if (found == 1 && args->flags & FI_DISCARD) motet_message_discard(node, message);
    if (found == 1 && takes && !(args->flags & FI_DISCARD)) {
        *claimed = (struct claimed){ endpoint->claimed, args->context, message, event };
        endpoint->claimed = claimed;
        claimed = NULL;
    }
    free(claimed);
    report_receive(endpoint, &event);
    return 0;
}

/* FI_CLAIM without FI_PEEK: receives the message that was claimed under this context, or drops it (FI_DISCARD). */
static int claim_message(struct endpoint *endpoint, const struct recv_args *args)
{
    motet_node node = endpoint->domain->node;
    struct motet_completion_options options = MOTET_INIT(struct motet_completion_options);
    struct claimed **at = claimed_by(endpoint, args->context), *claimed = *at;
    if (!claimed) return -FI_EINVAL;
    int result = 0;
    if (args->flags & FI_DISCARD) {
        motet_message_discard(node, claimed->message);
        report_receive(endpoint, &claimed->seen);
    } else {
        struct request *request = recv_request_alloc(endpoint, args);
        if (!request) return -FI_EAGAIN;
        request->multi_recv = false;
        options.cq = endpoint->rx_cq->engine_cq;
        options.user_data = (uintptr_t)request;
        result = motet_message_accept(node, claimed->message, args->buffer, args->capacity, &options, &request->operation);
        if (result == 0) request_track(request);
        else request_free(request);
    }
    if (result == -EAGAIN || result == -ENOBUFS) return -FI_EAGAIN;
    *at = claimed->next;
    free(claimed);
    return -to_errno(result);
}

static ssize_t peek_or_claim(struct fid_ep *fid, const struct recv_args *args)
{
    struct endpoint *endpoint = container_of(fid, struct endpoint, fid);
    struct motet_source source = MOTET_INIT(struct motet_source);
    domain_lock(endpoint->domain);
    int result;
    if (!(args->flags & FI_PEEK)) result = claim_message(endpoint, args);
    else if ((result = resolve_source(endpoint, args, &source)) == 0) result = peek_message(endpoint, args, &source);
    domain_unlock(endpoint->domain);
    return result;
}

/* ---------------------------------------------------------------- receives */

static ssize_t post_with_request(struct fid_ep *fid, const struct recv_args *args)
{
    struct endpoint *endpoint = container_of(fid, struct endpoint, fid);
    struct motet_source source = MOTET_INIT(struct motet_source);
    domain_lock(endpoint->domain);
    int result = resolve_source(endpoint, args, &source);
    if (likely(result == 0)) {
        struct request *request = recv_request_alloc(endpoint, args);
        if (likely(request != NULL)) {
            request->source_channel = source.channel;
            result = post_receive(request, &source);
            if (unlikely(result != 0)) request_free(request);
        }
        result = unlikely(!request || result == -ENOBUFS) ? -FI_EAGAIN : -to_errno(result);
    }
    domain_unlock(endpoint->domain);
    return result;
}

static uint64_t default_flags(struct fid_ep *fid) { return container_of(fid, struct endpoint, fid)->rx_op_flags; }

/* Fast path: a tagged receive of one message, from a connected peer or from any source. False: nothing was done, take the general path. */
static inline __attribute__((always_inline)) bool try_post(struct endpoint *endpoint, void *buffer, size_t length, fi_addr_t from,
                                                           uint64_t tag, uint64_t ignore, void *context)
{
    struct domain *domain = endpoint->domain;
    motet_channel channel = 0;
    bool posted = false;
    domain_lock(domain);
    if (unlikely(!posts_unrecorded(endpoint) || !reports(endpoint, endpoint->rx_op_flags))) goto unlock;
    if (from != FI_ADDR_UNSPEC && endpoint->caps & FI_DIRECTED_RECV) {
        struct peer *peer = from < endpoint->peers_by_addr_count ? endpoint->peers_by_addr[from] : NULL;
        channel = likely(peer != NULL) ? peer->in[TAGGED] : 0;
        if (unlikely(channel == 0)) goto unlock;
    }
    posted = motet_port_post(domain->port, channel, channel ? 0 : endpoint->contexts[TAGGED], tag, ignore, buffer, length,
                             endpoint->rx_cq->engine_cq, (uintptr_t)context) == 0;
unlock:
    domain_unlock(domain);
    return posted;
}

static __attribute__((noinline)) ssize_t tagged_recv_slow(struct fid_ep *fid, void *buf, size_t length, fi_addr_t from, uint64_t tag,
                                                          uint64_t ignore, void *context)
{
    struct recv_args args = { TAGGED, buf, length, from, tag, ignore, default_flags(fid), context };
    return post_with_request(fid, &args);
}

ssize_t tagged_recv(struct fid_ep *fid, void *buf, size_t length, void *desc, fi_addr_t from, uint64_t tag, uint64_t ignore, void *context)
{
    if (likely(try_post(container_of(fid, struct endpoint, fid), buf, length, from, tag, ignore, context))) return 0;
    return tagged_recv_slow(fid, buf, length, from, tag, ignore, context);
}

ssize_t tagged_recvv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t from, uint64_t tag, uint64_t ignore,
                     void *context)
{
    if (count > 1) return -FI_EINVAL;
    return tagged_recv(fid, count ? iov->iov_base : NULL, count ? iov->iov_len : 0, NULL, from, tag, ignore, context);
}

ssize_t tagged_recvmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg, uint64_t flags)
{
    if (msg->iov_count > 1) return -FI_EINVAL;
    struct iovec iov = msg->iov_count ? *msg->msg_iov : (struct iovec){ 0 };
    struct recv_args args = { TAGGED, iov.iov_base, iov.iov_len, msg->addr, msg->tag, msg->ignore, flags, msg->context };
    return flags & (FI_PEEK | FI_CLAIM) ? peek_or_claim(fid, &args) : post_with_request(fid, &args);
}

ssize_t msg_recv(struct fid_ep *fid, void *buf, size_t length, void *desc, fi_addr_t from, void *context)
{
    struct recv_args args = { MSG, buf, length, from, 0, 0, default_flags(fid), context };
    return post_with_request(fid, &args);
}

ssize_t msg_recvv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t from, void *context)
{
    if (count > 1) return -FI_EINVAL;
    return msg_recv(fid, count ? iov->iov_base : NULL, count ? iov->iov_len : 0, NULL, from, context);
}

ssize_t msg_recvmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
    if (msg->iov_count > 1) return -FI_EINVAL;
    struct iovec iov = msg->iov_count ? *msg->msg_iov : (struct iovec){ 0 };
    struct recv_args args = { MSG, iov.iov_base, iov.iov_len, msg->addr, 0, 0, flags, msg->context };
    return flags & (FI_PEEK | FI_CLAIM) ? peek_or_claim(fid, &args) : post_with_request(fid, &args);
}

static bool cancel_without_request(struct endpoint *endpoint, void *context)
{
    motet_port port = endpoint->domain->port;
    motet_cq engine_cq = endpoint->rx_cq->engine_cq;
    if (motet_port_cancel(port, engine_cq, 0, endpoint->contexts[TAGGED], (uintptr_t)context) == 1) return true;
    for (struct peer *peer = endpoint->peers; peer; peer = peer->next)
        if (peer->in[TAGGED] && motet_port_cancel(port, engine_cq, peer->in[TAGGED], 0, (uintptr_t)context) == 1) return true;
    return false;
}

/* Cancels a receive or a send. The operation completes with FI_ECANCELED, or as it would have. */
ssize_t ep_cancel(fid_t fid, void *context)
{
    struct endpoint *endpoint = container_of(fid, struct endpoint, fid.fid);
    ssize_t result = -FI_ENOENT;
    domain_lock(endpoint->domain);
    if (endpoint->enabled && cancel_without_request(endpoint, context)) result = 0;
    for (struct request *request = result == 0 ? NULL : endpoint->requests; request; request = request->next)
        if (request->context == context) {
            motet_operation_cancel(endpoint->domain->node, request->operation);
            result = 0;
            break;
        }
    domain_unlock(endpoint->domain);
    return result;
}
