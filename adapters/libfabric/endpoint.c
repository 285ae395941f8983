/* endpoint.c: a reliable-datagram endpoint: what it is bound to, its name, its options, its close. */
#include "fabric.h"

#include <sched.h>

#define CANCEL_ROUNDS 1000 /* rounds of progress in which peers can answer cancellations */
#define DEFAULT_MIN_MULTI_RECV 64 /* bytes */

static int bind_cq(struct endpoint *endpoint, struct cq *cq, uint64_t flags)
{
    bool selective = flags & FI_SELECTIVE_COMPLETION;
    if (flags & ~(uint64_t)(FI_SEND | FI_RECV | FI_SELECTIVE_COMPLETION) || cq->domain != endpoint->domain) return -FI_EINVAL;
    if (flags & FI_SEND && !endpoint->tx_cq) endpoint->tx_cq = cq, endpoint->tx_selective = selective, cq->references++;
    if (flags & FI_RECV && !endpoint->rx_cq) endpoint->rx_cq = cq, endpoint->rx_selective = selective, cq->references++;
    return 0;
}

static int bind_cntr(struct endpoint *endpoint, struct cntr *cntr, uint64_t flags)
{
    static const uint64_t cntr_flags[CNTR_KINDS] = { FI_SEND, FI_RECV, FI_READ, FI_WRITE };
    /* Remote accesses by peers are not counted: no endpoint has FI_RMA_EVENT. Their flags are accepted beside flags that are counted. */
    const uint64_t counted = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
    if (flags & ~(counted | FI_REMOTE_READ | FI_REMOTE_WRITE) || !(flags & counted) || cntr->domain != endpoint->domain) return -FI_EINVAL;
    if (endpoint->enabled) return -FI_EOPBADSTATE; /* receives posted without a record do not look for a counter */
    for (unsigned i = 0; i < CNTR_KINDS; i++)
        if (flags & cntr_flags[i] && !endpoint->cntrs[i]) endpoint->cntrs[i] = cntr, cntr->references++;
    return 0;
}

static int ep_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
    struct endpoint *endpoint = container_of(fid, struct endpoint, fid.fid);
    int result = -FI_ENOSYS;
    domain_lock(endpoint->domain);
    if (other->fclass == FI_CLASS_AV) {
        struct av *av = container_of(other, struct av, fid.fid);
        bool valid = av->domain == endpoint->domain && !endpoint->av;
        if (valid) endpoint->av = av, av->references++;
        result = valid ? 0 : -FI_EINVAL;
    } else if (other->fclass == FI_CLASS_CQ) {
        result = bind_cq(endpoint, container_of(other, struct cq, fid.fid), flags);
    } else if (other->fclass == FI_CLASS_CNTR) {
        result = bind_cntr(endpoint, container_of(other, struct cntr, fid.fid), flags);
    } else if (other->fclass == FI_CLASS_EQ) {
        result = 0; /* no event is ever written to it */
    }
    domain_unlock(endpoint->domain);
    return result;
}

static int ep_enable(struct endpoint *endpoint)
{
    int result;
    if (endpoint->enabled) return 0;
    if (!endpoint->av) return -FI_ENOAV;
    if (!endpoint->tx_cq || !endpoint->rx_cq) {
        if (!(endpoint->internal_cq = cq_own(endpoint->domain))) return -FI_ENOMEM;
        if (!endpoint->tx_cq) endpoint->tx_cq = endpoint->internal_cq, endpoint->internal_cq->references++;
        if (!endpoint->rx_cq) endpoint->rx_cq = endpoint->internal_cq, endpoint->internal_cq->references++;
    }
    if ((result = peers_open(endpoint)) == 0) endpoint->enabled = true;
    return result;
}

static int ep_control(struct fid *fid, int command, void *arg)
{
    struct endpoint *endpoint = container_of(fid, struct endpoint, fid.fid);
    int result = 0;
    uint64_t *flags = arg;
    domain_lock(endpoint->domain);
    switch (command) {
    case FI_ENABLE: result = ep_enable(endpoint); break;
    case FI_GETOPSFLAG:
        if (*flags & FI_SEND) *flags = endpoint->tx_op_flags;
        else if (*flags & FI_RECV) *flags = endpoint->rx_op_flags;
        else result = -FI_EINVAL;
        break;
    case FI_SETOPSFLAG:
        if (*flags & FI_SEND) endpoint->tx_op_flags = *flags & ~(uint64_t)FI_SEND;
        else if (*flags & FI_RECV) endpoint->rx_op_flags = *flags & ~(uint64_t)FI_RECV;
        else result = -FI_EINVAL;
        break;
    default: result = -FI_ENOSYS;
    }
    domain_unlock(endpoint->domain);
    return result;
}

/* ---------------------------------------------------------------- names and options */

static int ep_getname(fid_t fid, void *into, size_t *length)
{
    struct endpoint *endpoint = container_of(fid, struct endpoint, fid.fid);
    struct address address = endpoint->domain->address;
    size_t capacity = *length;
    address.endpoint = endpoint->index;
    *length = sizeof address;
    if (capacity < sizeof address) return -FI_ETOOSMALL;
    memcpy(into, &address, sizeof address);
    return 0;
}

static int unsupported_setname(fid_t fid, void *address, size_t length) { return -FI_ENOSYS; }
static int unsupported_getpeer(struct fid_ep *ep, void *address, size_t *length) { return -FI_ENOSYS; }
static int unsupported_connect(struct fid_ep *ep, const void *address, const void *param, size_t length) { return -FI_ENOSYS; }
static int unsupported_listen(struct fid_pep *pep) { return -FI_ENOSYS; }
static int unsupported_accept(struct fid_ep *ep, const void *param, size_t length) { return -FI_ENOSYS; }
static int unsupported_reject(struct fid_pep *pep, fid_t handle, const void *param, size_t length) { return -FI_ENOSYS; }
static int unsupported_shutdown(struct fid_ep *ep, uint64_t flags) { return -FI_ENOSYS; }
static int unsupported_join(struct fid_ep *ep, const void *address, uint64_t flags, struct fid_mc **mc, void *context) { return -FI_ENOSYS; }

static struct fi_ops_cm ep_cm_ops = {
    .size = sizeof ep_cm_ops,
    .setname = unsupported_setname,
    .getname = ep_getname,
    .getpeer = unsupported_getpeer,
    .connect = unsupported_connect,
    .listen = unsupported_listen,
    .accept = unsupported_accept,
    .reject = unsupported_reject,
    .shutdown = unsupported_shutdown,
    .join = unsupported_join,
};

static int ep_getopt(fid_t fid, int level, int name, void *value, size_t *length)
{
    struct endpoint *endpoint = container_of(fid, struct endpoint, fid.fid);
    if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
    if (*length < sizeof(size_t)) return -FI_ETOOSMALL;
    memcpy(value, &endpoint->min_multi_recv, sizeof(size_t));
    *length = sizeof(size_t);
    return 0;
}

static int ep_setopt(fid_t fid, int level, int name, const void *value, size_t length)
{
    struct endpoint *endpoint = container_of(fid, struct endpoint, fid.fid);
    if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
    if (length != sizeof(size_t)) return -FI_EINVAL;
    memcpy(&endpoint->min_multi_recv, value, sizeof(size_t));
    return 0;
}

static int unsupported_tx_ctx(struct fid_ep *ep, int index, struct fi_tx_attr *attr, struct fid_ep **out, void *context) { return -FI_ENOSYS; }
static int unsupported_rx_ctx(struct fid_ep *ep, int index, struct fi_rx_attr *attr, struct fid_ep **out, void *context) { return -FI_ENOSYS; }
static ssize_t unsupported_size_left(struct fid_ep *ep) { return -FI_ENOSYS; }

static struct fi_ops_ep ep_ops = {
    .size = sizeof ep_ops,
    .cancel = ep_cancel,
    .getopt = ep_getopt,
    .setopt = ep_setopt,
    .tx_ctx = unsupported_tx_ctx,
    .rx_ctx = unsupported_rx_ctx,
    .rx_size_left = unsupported_size_left,
    .tx_size_left = unsupported_size_left,
};

/* ---------------------------------------------------------------- life */

/* Cancels all operations and waits for their completions, because their memory is the program's again afterwards. The links of peers that do not
 * answer are closed. */
static void cancel_all(struct endpoint *endpoint)
{
    motet_node node = endpoint->domain->node;
    motet_port_abandon(endpoint->domain->port, endpoint->rx_cq->engine_cq, 0, endpoint->contexts[TAGGED]);
    for (struct peer *peer = endpoint->peers; peer; peer = peer->next)
        if (peer->in[TAGGED]) motet_port_abandon(endpoint->domain->port, endpoint->rx_cq->engine_cq, peer->in[TAGGED], 0);
    domain_pump(endpoint->domain);
    for (struct request *request = endpoint->requests; request; request = request->next)
        motet_operation_cancel(node, request->operation);
    for (int round = 0; endpoint->requests && round < CANCEL_ROUNDS; round++)
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

static int ep_close(struct fid *fid)
{
    struct endpoint *endpoint = container_of(fid, struct endpoint, fid.fid);
    struct domain *domain = endpoint->domain;
    domain_lock(domain);
    if (endpoint->enabled) {
        cancel_all(endpoint);
        peers_close(endpoint);
    }
    if (endpoint->tx_cq) cq_forget(endpoint->tx_cq, endpoint), endpoint->tx_cq->references--;
    if (endpoint->rx_cq) cq_forget(endpoint->rx_cq, endpoint), endpoint->rx_cq->references--;
    if (endpoint->internal_cq) cq_free(endpoint->internal_cq);
    if (endpoint->av) endpoint->av->references--;
    for (unsigned i = 0; i < CNTR_KINDS; i++)
        if (endpoint->cntrs[i]) endpoint->cntrs[i]->references--;
    for (struct endpoint **link = &domain->endpoints; *link; link = &(*link)->next)
        if (*link == endpoint) {
            *link = endpoint->next;
            break;
        }
    domain->references--;
    domain_unlock(domain);
    free(endpoint);
    return 0;
}

static struct fi_ops ep_fid_ops = {
    .size = sizeof ep_fid_ops, .close = ep_close, .bind = ep_bind, .control = ep_control, .ops_open = unsupported_ops,
};

int endpoint_open(struct fid_domain *fid, struct fi_info *info, struct fid_ep **out, void *context)
{
    struct domain *domain = container_of(fid, struct domain, fid);
    if (info->ep_attr && info->ep_attr->type != FI_EP_RDM && info->ep_attr->type != FI_EP_UNSPEC) return -FI_EINVAL;
    struct endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (!endpoint) return -FI_ENOMEM;
    endpoint->domain = domain;
    endpoint->caps = info->caps;
    endpoint->tx_op_flags = info->tx_attr ? info->tx_attr->op_flags : 0;
    endpoint->rx_op_flags = info->rx_attr ? info->rx_attr->op_flags : 0;
    endpoint->min_multi_recv = DEFAULT_MIN_MULTI_RECV;
    endpoint->fid.fid.fclass = FI_CLASS_EP;
    endpoint->fid.fid.context = context;
    endpoint->fid.fid.ops = &ep_fid_ops;
    endpoint->fid.ops = &ep_ops;
    endpoint->fid.cm = &ep_cm_ops;
    endpoint->fid.msg = &msg_ops;
    endpoint->fid.tagged = &tagged_ops;
    endpoint->fid.rma = &rma_ops;
    endpoint->fid.atomic = &atomic_ops;
    endpoint->fid.collective = &unsupported_collective_ops;
    domain_lock(domain);
    endpoint->index = domain->next_endpoint_index++;
    endpoint->next = domain->endpoints;
    domain->endpoints = endpoint;
    domain->references++;
    domain_unlock(domain);
    *out = &endpoint->fid;
    return 0;
}
