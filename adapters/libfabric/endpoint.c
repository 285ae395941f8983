/* endpoint.c: a reliable-datagram endpoint: what it is bound to, its name, its options, its end. */
#include "fabric.h"

#include <sched.h>

#define ROUNDS 1000 /* of progress, for peers to answer */
#define LEAST 64 /* room in a buffer for many messages, unless the program says otherwise */

static int bind_queue(struct endpoint *endpoint, struct cq *queue, uint64_t flags)
{
    bool selective = flags & FI_SELECTIVE_COMPLETION;
    if (flags & ~(uint64_t)(FI_SEND | FI_RECV | FI_SELECTIVE_COMPLETION) || queue->domain != endpoint->domain) return -FI_EINVAL;
    if (flags & FI_SEND && !endpoint->sends) endpoint->sends = queue, endpoint->selective_sends = selective, queue->users++;
    if (flags & FI_RECV && !endpoint->receives) endpoint->receives = queue, endpoint->selective_receives = selective, queue->users++;
    return 0;
}

static int bind_counter(struct endpoint *endpoint, struct cntr *counter, uint64_t flags)
{
    static const uint64_t bits[COUNTED] = { FI_SEND, FI_RECV, FI_READ, FI_WRITE };
    /* What peers do to memory is not counted: no endpoint has FI_RMA_EVENT. One counter for all that an endpoint counts may name it. */
    const uint64_t ours = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
    if (flags & ~(ours | FI_REMOTE_READ | FI_REMOTE_WRITE) || !(flags & ours) || counter->domain != endpoint->domain) return -FI_EINVAL;
    if (endpoint->enabled) return -FI_EOPBADSTATE; /* receives that are posted do not ask for one when they end */
    for (unsigned i = 0; i < COUNTED; i++)
        if (flags & bits[i] && !endpoint->counters[i]) endpoint->counters[i] = counter, counter->users++;
    return 0;
}

static int bind_to(struct fid *fid, struct fid *other, uint64_t flags)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid.fid);
    int result = -FI_ENOSYS;
    enter(endpoint->domain);
    if (other->fclass == FI_CLASS_AV) {
        struct av *vector = container(other, struct av, fid.fid);
        bool good = vector->domain == endpoint->domain && !endpoint->vector;
        if (good) endpoint->vector = vector, vector->users++;
        result = good ? 0 : -FI_EINVAL;
    } else if (other->fclass == FI_CLASS_CQ) {
        result = bind_queue(endpoint, container(other, struct cq, fid.fid), flags);
    } else if (other->fclass == FI_CLASS_CNTR) {
        result = bind_counter(endpoint, container(other, struct cntr, fid.fid), flags);
    } else if (other->fclass == FI_CLASS_EQ) {
        result = 0; /* of which nothing will come */
    }
    leave(endpoint->domain);
    return result;
}

static int enable(struct endpoint *endpoint)
{
    int result;
    if (endpoint->enabled) return 0;
    if (!endpoint->vector) return -FI_ENOAV;
    if (!endpoint->sends || !endpoint->receives) {
        if (!(endpoint->own = cq_own(endpoint->domain))) return -FI_ENOMEM;
        if (!endpoint->sends) endpoint->sends = endpoint->own, endpoint->own->users++;
        if (!endpoint->receives) endpoint->receives = endpoint->own, endpoint->own->users++;
    }
    if ((result = peers_begin(endpoint)) == 0) endpoint->enabled = true;
    return result;
}

static int control(struct fid *fid, int command, void *arg)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid.fid);
    int result = 0;
    uint64_t *flags = arg;
    enter(endpoint->domain);
    switch (command) {
    case FI_ENABLE: result = enable(endpoint); break;
    case FI_GETOPSFLAG:
        if (*flags & FI_SEND) *flags = endpoint->send_flags;
        else if (*flags & FI_RECV) *flags = endpoint->receive_flags;
        else result = -FI_EINVAL;
        break;
    case FI_SETOPSFLAG:
        if (*flags & FI_SEND) endpoint->send_flags = *flags & ~(uint64_t)FI_SEND;
        else if (*flags & FI_RECV) endpoint->receive_flags = *flags & ~(uint64_t)FI_RECV;
        else result = -FI_EINVAL;
        break;
    default: result = -FI_ENOSYS;
    }
    leave(endpoint->domain);
    return result;
}

/* ---------------------------------------------------------------- names and options */

static int own_name(fid_t fid, void *into, size_t *length)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid.fid);
    struct address address = endpoint->domain->address;
    size_t room = *length;
    address.endpoint = endpoint->number;
    *length = sizeof address;
    if (room < sizeof address) return -FI_ETOOSMALL;
    memcpy(into, &address, sizeof address);
    return 0;
}

static int no_setname(fid_t fid, void *address, size_t length) { return -FI_ENOSYS; }
static int no_peer(struct fid_ep *ep, void *address, size_t *length) { return -FI_ENOSYS; }
static int no_connect(struct fid_ep *ep, const void *address, const void *param, size_t length) { return -FI_ENOSYS; }
static int no_listen(struct fid_pep *pep) { return -FI_ENOSYS; }
static int no_accept(struct fid_ep *ep, const void *param, size_t length) { return -FI_ENOSYS; }
static int no_reject(struct fid_pep *pep, fid_t handle, const void *param, size_t length) { return -FI_ENOSYS; }
static int no_shutdown(struct fid_ep *ep, uint64_t flags) { return -FI_ENOSYS; }
static int no_join(struct fid_ep *ep, const void *address, uint64_t flags, struct fid_mc **mc, void *context) { return -FI_ENOSYS; }

static struct fi_ops_cm names = {
    .size = sizeof names,
    .setname = no_setname,
    .getname = own_name,
    .getpeer = no_peer,
    .connect = no_connect,
    .listen = no_listen,
    .accept = no_accept,
    .reject = no_reject,
    .shutdown = no_shutdown,
    .join = no_join,
};

static int option(fid_t fid, int level, int name, void *value, size_t *length)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid.fid);
    if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
    if (*length < sizeof(size_t)) return -FI_ETOOSMALL;
    memcpy(value, &endpoint->least, sizeof(size_t));
    *length = sizeof(size_t);
    return 0;
}

static int set_option(fid_t fid, int level, int name, const void *value, size_t length)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid.fid);
    if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
    if (length != sizeof(size_t)) return -FI_EINVAL;
    memcpy(&endpoint->least, value, sizeof(size_t));
    return 0;
}

static int no_send_context(struct fid_ep *ep, int index, struct fi_tx_attr *attr, struct fid_ep **out, void *context) { return -FI_ENOSYS; }
static int no_receive_context(struct fid_ep *ep, int index, struct fi_rx_attr *attr, struct fid_ep **out, void *context) { return -FI_ENOSYS; }
static ssize_t no_room_known(struct fid_ep *ep) { return -FI_ENOSYS; }

static struct fi_ops_ep options = {
    .size = sizeof options,
    .cancel = cancel,
    .getopt = option,
    .setopt = set_option,
    .tx_ctx = no_send_context,
    .rx_ctx = no_receive_context,
    .rx_size_left = no_room_known,
    .tx_size_left = no_room_known,
};

/* ---------------------------------------------------------------- life */

/* All that is under way ends, as its memory is the program's again when the endpoint is closed. A peer that does not answer loses the link. */
static void withdraw(struct endpoint *endpoint)
{
    motet_node node = endpoint->domain->node;
    motet_port_abandon(endpoint->domain->port, endpoint->receives->group, 0, endpoint->contexts[TAGGED]);
    for (struct peer *peer = endpoint->peers; peer; peer = peer->next)
        if (peer->in[TAGGED]) motet_port_abandon(endpoint->domain->port, endpoint->receives->group, peer->in[TAGGED], 0);
    domain_pump(endpoint->domain);
    for (struct request *request = endpoint->requests; request; request = request->next)
        motet_operation_cancel(node, request->operation);
    for (int round = 0; endpoint->requests && round < ROUNDS; round++)
        domain_pump(endpoint->domain);
    for (struct peer *peer = endpoint->requests ? endpoint->peers : NULL; peer; peer = peer->next)
        if (peer->link) motet_link_close(node, peer->link);
    for (; endpoint->requests; sched_yield())
        domain_pump(endpoint->domain);
    for (struct claimed *claimed; (claimed = endpoint->claimed);) {
        endpoint->claimed = claimed->next;
        motet_message_discard(node, claimed->message);
        free(claimed);
    }
}

static int endpoint_close(struct fid *fid)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid.fid);
    struct domain *domain = endpoint->domain;
    enter(domain);
    if (endpoint->enabled) {
        withdraw(endpoint);
        peers_end(endpoint);
    }
    if (endpoint->sends) cq_forget(endpoint->sends, endpoint), endpoint->sends->users--;
    if (endpoint->receives) cq_forget(endpoint->receives, endpoint), endpoint->receives->users--;
    if (endpoint->own) cq_free(endpoint->own);
    if (endpoint->vector) endpoint->vector->users--;
    for (unsigned i = 0; i < COUNTED; i++)
        if (endpoint->counters[i]) endpoint->counters[i]->users--;
    for (struct endpoint **at = &domain->endpoints; *at; at = &(*at)->next)
        if (*at == endpoint) {
            *at = endpoint->next;
            break;
        }
    domain->users--;
    leave(domain);
    free(endpoint);
    return 0;
}

static struct fi_ops object = {
    .size = sizeof object, .close = endpoint_close, .bind = bind_to, .control = control, .ops_open = unsupported_ops,
};

int endpoint_open(struct fid_domain *fid, struct fi_info *info, struct fid_ep **out, void *context)
{
    struct domain *domain = container(fid, struct domain, fid);
    if (info->ep_attr && info->ep_attr->type != FI_EP_RDM && info->ep_attr->type != FI_EP_UNSPEC) return -FI_EINVAL;
    struct endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (!endpoint) return -FI_ENOMEM;
    endpoint->domain = domain;
    endpoint->caps = info->caps;
    endpoint->send_flags = info->tx_attr ? info->tx_attr->op_flags : 0;
    endpoint->receive_flags = info->rx_attr ? info->rx_attr->op_flags : 0;
    endpoint->least = LEAST;
    endpoint->fid.fid.fclass = FI_CLASS_EP;
    endpoint->fid.fid.context = context;
    endpoint->fid.fid.ops = &object;
    endpoint->fid.ops = &options;
    endpoint->fid.cm = &names;
    endpoint->fid.msg = &msg_ops;
    endpoint->fid.tagged = &tagged_ops;
    endpoint->fid.rma = &rma_ops;
    endpoint->fid.atomic = &atomics;
    endpoint->fid.collective = &no_collectives;
    enter(domain);
    endpoint->number = domain->endpoints_ever++;
    endpoint->next = domain->endpoints;
    domain->endpoints = endpoint;
    domain->users++;
    leave(domain);
    *out = &endpoint->fid;
    return 0;
}
