/* recv.c: receives: from one peer or any, tagged or not; probes; and buffers for many messages.
 *
 * A receive is posted on a peer's channel, or on the context of all channels. FI_PEEK and FI_CLAIM are Motet's peek and claim; a claimed message
 * is kept under the program's context until it is received. A buffer for many messages (FI_MULTI_RECV) is posted again, behind what it has
 * received, with each message (completion.c). */
#include "fabric.h"

struct in {
    enum kind kind;
    void *buffer;
    size_t capacity;
    fi_addr_t from;
    uint64_t tag, ignore, flags;
    void *context;
};

static uint64_t event_flags(enum kind kind) { return FI_RECV | (kind == TAGGED ? FI_TAGGED : FI_MSG); }

static bool told(const struct endpoint *endpoint, uint64_t flags) { return !endpoint->selective_receives || flags & FI_COMPLETION; }

/* Where it looks: 0, or an error of libfabric's. */
static int source(struct endpoint *endpoint, const struct in *in, struct motet_source *source)
{
    source->tag = in->kind == TAGGED ? in->tag : 0;
    source->ignore = in->kind == TAGGED ? in->ignore : ~(uint64_t)0;
    source->context = endpoint->contexts[in->kind];
    if (in->from == FI_ADDR_UNSPEC || !(endpoint->caps & FI_DIRECTED_RECV)) return 0;
    struct peer *peer = peer_at(endpoint, in->from);
    int result = unlikely(!peer) ? -FI_EINVAL : likely(peer->in[in->kind] != 0) ? 0 : peer_in(endpoint, peer, in->kind);
    if (likely(result == 0)) source->channel = peer->in[in->kind], source->context = 0;
    return result;
}

static int post(struct request *request, const struct motet_source *source)
{
    struct endpoint *endpoint = request->endpoint;
    int result = motet_port_post_operation(endpoint->domain->port, source->channel, source->context, source->tag, source->ignore,
                                  (char *)request->buffer + request->place, request->left, endpoint->receives->group, (uintptr_t)request,
                                  &request->operation);
    if (likely(result == 0)) request_note(request);
    return result;
}

/* What is left of a buffer for many messages. */
int receive_post(struct request *request)
{
    struct motet_source source = MOTET_INIT(struct motet_source);
    source.channel = request->from;
    source.context = request->from ? 0 : request->endpoint->contexts[request->kind];
    source.ignore = ~(uint64_t)0;
    return post(request, &source);
}

static struct request *request_for(struct endpoint *endpoint, const struct in *in)
{
    struct request *request = request_take(endpoint);
    if (unlikely(!request)) return NULL;
    request->context = in->context;
    request->flags = event_flags(in->kind);
    request->told = told(endpoint, in->flags);
    request->counter = COUNT_RECEIVE;
    request->kind = (uint8_t)in->kind;
    request->buffer = in->buffer;
    request->left = in->capacity;
    request->place = 0;
    request->multi_recv = in->flags & FI_MULTI_RECV && in->kind == MSG;
    return request;
}

/* ---------------------------------------------------------------- looks */

static struct claimed **claimed_by(struct endpoint *endpoint, const void *context)
{
    struct claimed **at = &endpoint->claimed;
    while (*at && (*at)->context != context)
        at = &(*at)->next;
    return at;
}

static void push(struct endpoint *endpoint, const struct event *event) { report(endpoint, endpoint->receives, event, true, COUNTED); }

/* Whether a probe for a message from any source may report that it has found one. MPICH keeps messages of a rank to itself in a queue of its own:
 * it probes that queue, then this provider, and makes progress on its own queue only then; its receives from any source look there first. So
 * MPI_Dist_graph_create, which probes and then receives from any source, took a message of its own that it had not seen yet for the one found
 * here. It sends before it probes: the first probe after a send reports nothing, the next one reports all. No two probes in a row are
 * suppressed, so a program that sends before every probe still progresses. */
static bool may_report(struct endpoint *endpoint, bool found)
{
    bool first = endpoint->looked != endpoint->domain->ops_started;
    endpoint->looked = endpoint->domain->ops_started;
    return !(endpoint->put_off = found && first && !endpoint->put_off);
}

/* FI_PEEK, and with FI_CLAIM or FI_DISCARD it is taken from the others, too. What there is, is an event; so is that there is nothing. */
static int peek(struct endpoint *endpoint, const struct in *in, const struct motet_source *source)
{
    motet_node node = endpoint->domain->node;
    struct motet_completion seen = MOTET_INIT(struct motet_completion);
    struct event event = { .context = in->context, .flags = event_flags(in->kind), .endpoint = endpoint };
    motet_message message = 0;
    bool takes = in->flags & (FI_CLAIM | FI_DISCARD);
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
        /* For the next look, as this one's event is read without any. */
        motet_node_progress(node);
    }
    if (found == 1 && in->flags & FI_DISCARD) motet_message_discard(node, message);
    if (found == 1 && takes && !(in->flags & FI_DISCARD)) {
        *claimed = (struct claimed){ endpoint->claimed, in->context, message, event };
        endpoint->claimed = claimed;
        claimed = NULL;
    }
    free(claimed);
    push(endpoint, &event);
    return 0;
}

/* FI_CLAIM alone: a buffer for what was claimed under this context; or, with FI_DISCARD, none. */
static int claim(struct endpoint *endpoint, const struct in *in)
{
    motet_node node = endpoint->domain->node;
    struct motet_completion_options notice = MOTET_INIT(struct motet_completion_options);
    struct claimed **at = claimed_by(endpoint, in->context), *claimed = *at;
    if (!claimed) return -FI_EINVAL;
    int result = 0;
    if (in->flags & FI_DISCARD) {
        motet_message_discard(node, claimed->message);
        push(endpoint, &claimed->seen);
    } else {
        struct request *request = request_for(endpoint, in);
        if (!request) return -FI_EAGAIN;
        request->multi_recv = false;
        notice.cq = endpoint->receives->group;
        notice.user_data = (uintptr_t)request;
        result = motet_message_accept(node, claimed->message, in->buffer, in->capacity, &notice, &request->operation);
        if (result == 0) request_note(request);
        else request_give_back(request);
    }
    if (result == -EAGAIN || result == -ENOBUFS) return -FI_EAGAIN;
    *at = claimed->next;
    free(claimed);
    return -to_errno(result);
}

static ssize_t look(struct fid_ep *fid, const struct in *in)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid);
    struct motet_source where = MOTET_INIT(struct motet_source);
    enter(endpoint->domain);
    int result;
    if (!(in->flags & FI_PEEK)) result = claim(endpoint, in);
    else if ((result = source(endpoint, in, &where)) == 0) result = peek(endpoint, in, &where);
    leave(endpoint->domain);
    return result;
}

/* ---------------------------------------------------------------- receives */

static ssize_t receive(struct fid_ep *fid, const struct in *in)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid);
    struct motet_source where = MOTET_INIT(struct motet_source);
    enter(endpoint->domain);
    int result = source(endpoint, in, &where);
    if (likely(result == 0)) {
        struct request *request = request_for(endpoint, in);
        if (likely(request != NULL)) {
            request->from = where.channel;
            result = post(request, &where);
            if (unlikely(result != 0)) request_give_back(request);
        }
        result = unlikely(!request || result == -ENOBUFS) ? -FI_EAGAIN : -to_errno(result);
    }
    leave(endpoint->domain);
    return result;
}

static uint64_t usual(struct fid_ep *fid) { return container(fid, struct endpoint, fid)->receive_flags; }

/* What most receives are: of one message with a tag, from a peer that is known or from any. False, and nothing is done: any other way. */
static inline __attribute__((always_inline)) bool posts(struct endpoint *endpoint, void *buffer, size_t length, fi_addr_t from, uint64_t tag, uint64_t ignore, void *context)
{
    struct domain *domain = endpoint->domain;
    motet_channel channel = 0;
    bool posted = false;
    enter(domain);
    if (unlikely(!posts_unrecorded(endpoint) || !told(endpoint, endpoint->receive_flags))) goto other;
    if (from != FI_ADDR_UNSPEC && endpoint->caps & FI_DIRECTED_RECV) {
        struct peer *peer = from < endpoint->known_count ? endpoint->known[from] : NULL;
        channel = likely(peer != NULL) ? peer->in[TAGGED] : 0;
        if (unlikely(channel == 0)) goto other;
    }
    posted = motet_port_post(domain->port, channel, channel ? 0 : endpoint->contexts[TAGGED], tag, ignore, buffer, length,
                             endpoint->receives->group, (uintptr_t)context) == 0;
other:
    leave(domain);
    return posted;
}

static __attribute__((noinline)) ssize_t tagged_otherwise(struct fid_ep *fid, void *buf, size_t length, fi_addr_t from, uint64_t tag,
                                                         uint64_t ignore, void *context)
{
    struct in in = { TAGGED, buf, length, from, tag, ignore, usual(fid), context };
    return receive(fid, &in);
}

ssize_t tagged_recv(struct fid_ep *fid, void *buf, size_t length, void *desc, fi_addr_t from, uint64_t tag, uint64_t ignore, void *context)
{
    if (likely(posts(container(fid, struct endpoint, fid), buf, length, from, tag, ignore, context))) return 0;
    return tagged_otherwise(fid, buf, length, from, tag, ignore, context);
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
    struct in in = { TAGGED, iov.iov_base, iov.iov_len, msg->addr, msg->tag, msg->ignore, flags, msg->context };
    return flags & (FI_PEEK | FI_CLAIM) ? look(fid, &in) : receive(fid, &in);
}

ssize_t msg_recv(struct fid_ep *fid, void *buf, size_t length, void *desc, fi_addr_t from, void *context)
{
    struct in in = { MSG, buf, length, from, 0, 0, usual(fid), context };
    return receive(fid, &in);
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
    struct in in = { MSG, iov.iov_base, iov.iov_len, msg->addr, 0, 0, flags, msg->context };
    return flags & (FI_PEEK | FI_CLAIM) ? look(fid, &in) : receive(fid, &in);
}

static bool cancel_nameless(struct endpoint *endpoint, void *context)
{
    motet_port port = endpoint->domain->port;
    motet_cq group = endpoint->receives->group;
    if (motet_port_cancel(port, group, 0, endpoint->contexts[TAGGED], (uintptr_t)context) == 1) return true;
    for (struct peer *peer = endpoint->peers; peer; peer = peer->next)
        if (peer->in[TAGGED] && motet_port_cancel(port, group, peer->in[TAGGED], 0, (uintptr_t)context) == 1) return true;
    return false;
}

/* Of a send, too: it ends with FI_ECANCELED, or as it would have. */
ssize_t cancel(fid_t fid, void *context)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid.fid);
    ssize_t result = -FI_ENOENT;
    enter(endpoint->domain);
    if (endpoint->enabled && cancel_nameless(endpoint, context)) result = 0;
    for (struct request *request = result == 0 ? NULL : endpoint->requests; request; request = request->next)
        if (request->context == context) {
            motet_operation_cancel(endpoint->domain->node, request->operation);
            result = 0;
            break;
        }
    leave(endpoint->domain);
    return result;
}
