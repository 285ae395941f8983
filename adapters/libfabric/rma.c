/* rma.c: puts and gets.
 *
 * Each pair of a local and a remote piece is one operation of Motet; several have one event, when the last of them completes (completion.c). A put
 * completes when its bytes are in the region, so every completion is FI_DELIVERY_COMPLETE. */
#include "fabric.h"

struct rma_args {
    bool put;
    const struct iovec *iov;
    size_t count;
    fi_addr_t peer;
    const struct fi_rma_iov *remote;
    size_t remote_count;
    uint64_t flags;
    void *context;
    bool no_completion;
};

struct request *rma_request_alloc(struct endpoint *endpoint, void *context, uint64_t flags, enum cntr_kind kind, bool reports)
{
    struct request *request = request_alloc(endpoint);
    if (unlikely(!request)) return NULL;
    request->context = context;
    request->flags = flags;
    request->cntr_kind = (uint8_t)kind;
    request->reports = reports;
    return request;
}

static int start_one(struct endpoint *endpoint, struct request *request, const struct motet_remote_address *at, void *memory, size_t length, bool put)
{
    struct motet_completion_options options = MOTET_INIT(struct motet_completion_options);
    motet_node node = endpoint->domain->node;
    options.cq = endpoint->tx_cq->engine_cq;
    options.user_data = (uintptr_t)request;
    int result = put ? motet_region_put_start(node, at, memory, length, &options, &request->operation)
                     : motet_region_get_start(node, at, memory, length, &options, &request->operation);
    if (likely(result == 0)) request_track(request);
    return result;
}

/* Starts one child operation for each pair of a local and a remote piece. An operation that has started cannot be revoked, so this function waits
 * for room instead of failing with -EAGAIN. */
static int start_children(struct endpoint *endpoint, struct request *parent, motet_link link, const struct rma_args *args)
{
    size_t local_offset = 0, remote_offset = 0, i = 0, j = 0;
    int result = 0;
    parent->children = 1; /* held by this loop */
    while (i < args->count && j < args->remote_count && result == 0) {
        const struct iovec *iov = &args->iov[i];
        const struct fi_rma_iov *remote = &args->remote[j];
        size_t length = iov->iov_len - local_offset < remote->len - remote_offset ? iov->iov_len - local_offset : remote->len - remote_offset;
        struct motet_remote_address at = { sizeof at, link, remote->key, remote->addr + remote_offset };
        struct request *child = length ? request_alloc(endpoint) : NULL;
        if (length && !child) result = -ENOMEM;
        if (child) {
            child->parent = parent;
            do {
                result = start_one(endpoint, child, &at, (char *)iov->iov_base + local_offset, length, args->put);
                if (result == -EAGAIN) domain_pump(endpoint->domain);
            } while (result == -EAGAIN);
            if (result == 0) parent->children++;
            else request_free(child);
        }
        local_offset += length;
        remote_offset += length;
        if (local_offset == iov->iov_len) local_offset = 0, i++;
        if (remote_offset == remote->len) remote_offset = 0, j++;
    }
    request_child_done(parent, result);
    return 0;
}

static ssize_t start_rma(struct fid_ep *fid, const struct rma_args *args)
{
    struct endpoint *endpoint = container_of(fid, struct endpoint, fid);
    int result = -EAGAIN;
    if (args->count > IOV_LIMIT || args->remote_count > IOV_LIMIT || args->flags & FI_REMOTE_CQ_DATA) return -FI_EINVAL;
    bool reports = !args->no_completion && (!endpoint->tx_selective || args->flags & FI_COMPLETION);
    domain_lock(endpoint->domain);
    endpoint->domain->ops_started++;
    struct peer *peer = peer_at(endpoint, args->peer);
    int connect_result = unlikely(!peer) ? -FI_EINVAL : likely(peer->link != 0) ? 0 : peer_connect(endpoint, peer);
    struct request *request = unlikely(connect_result != 0) ? NULL : rma_request_alloc(endpoint, args->context, FI_RMA | (args->put ? FI_WRITE : FI_READ),
                                                                                       args->put ? CNTR_WRITE : CNTR_READ, reports);
    if (request && args->count == 1 && args->remote_count == 1) {
        const struct iovec *iov = args->iov;
        struct motet_remote_address at = { sizeof at, peer->link, args->remote->key, args->remote->addr };
        void *memory = iov->iov_base;
        if (args->flags & FI_INJECT && iov->iov_len) {
            if ((request->copy = malloc(iov->iov_len))) memory = memcpy(request->copy, memory, iov->iov_len);
        }
        if (!(args->flags & FI_INJECT && iov->iov_len) || request->copy) result = start_one(endpoint, request, &at, memory, iov->iov_len, args->put);
        if (unlikely(result != 0)) request_free(request);
    } else if (request) {
        result = args->flags & FI_INJECT ? -EINVAL : start_children(endpoint, request, peer->link, args);
        if (unlikely(result != 0)) request_free(request);
    }
    domain_unlock(endpoint->domain);
    return unlikely(connect_result != 0) ? connect_result : -to_errno(result);
}

/* ---------------------------------------------------------------- functions of libfabric */

static uint64_t default_flags(struct fid_ep *fid) { return container_of(fid, struct endpoint, fid)->tx_op_flags; }

static ssize_t rma_iov(struct fid_ep *fid, bool put, const struct iovec *iov, size_t count, fi_addr_t peer, uint64_t addr, uint64_t key,
                       void *context)
{
    size_t length = 0;
    for (size_t i = 0; i < count; i++)
        length += iov[i].iov_len;
    struct fi_rma_iov remote = { addr, length, key };
    struct rma_args args = { put, iov, count, peer, &remote, 1, default_flags(fid), context, false };
    return start_rma(fid, &args);
}

static ssize_t rma_msg(struct fid_ep *fid, bool put, const struct fi_msg_rma *msg, uint64_t flags)
{
    struct rma_args args = { put, msg->msg_iov, msg->iov_count, msg->addr, msg->rma_iov, msg->rma_iov_count, flags, msg->context, false };
    return start_rma(fid, &args);
}

static ssize_t rma_readv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t peer, uint64_t addr, uint64_t key,
                         void *context)
{
    return rma_iov(fid, false, iov, count, peer, addr, key, context);
}

static ssize_t rma_read(struct fid_ep *fid, void *into, size_t length, void *desc, fi_addr_t peer, uint64_t addr, uint64_t key, void *context)
{
    struct iovec iov = { into, length };
    return rma_iov(fid, false, &iov, 1, peer, addr, key, context);
}

static ssize_t rma_readmsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags) { return rma_msg(fid, false, msg, flags); }

static ssize_t rma_writev(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t peer, uint64_t addr, uint64_t key,
                          void *context)
{
    return rma_iov(fid, true, iov, count, peer, addr, key, context);
}

static ssize_t rma_write(struct fid_ep *fid, const void *from, size_t length, void *desc, fi_addr_t peer, uint64_t addr, uint64_t key, void *context)
{
    struct iovec iov = { (void *)from, length };
    return rma_iov(fid, true, &iov, 1, peer, addr, key, context);
}

static ssize_t rma_writemsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags) { return rma_msg(fid, true, msg, flags); }

static ssize_t rma_inject(struct fid_ep *fid, const void *from, size_t length, fi_addr_t peer, uint64_t addr, uint64_t key)
{
    struct iovec iov = { (void *)from, length };
    struct fi_rma_iov remote = { addr, length, key };
    struct rma_args args = { true, &iov, 1, peer, &remote, 1, FI_INJECT, NULL, true };
    return length > INJECT_SIZE ? -FI_EINVAL : start_rma(fid, &args);
}

/* A put reports nothing to its target. */
static ssize_t unsupported_writedata(struct fid_ep *fid, const void *from, size_t length, void *desc, uint64_t data, fi_addr_t peer, uint64_t addr,
                                     uint64_t key, void *context)
{
    return -FI_ENOSYS;
}

static ssize_t unsupported_inject_writedata(struct fid_ep *fid, const void *from, size_t length, uint64_t data, fi_addr_t peer, uint64_t addr, uint64_t key)
{
    return -FI_ENOSYS;
}

struct fi_ops_rma rma_ops = {
    .size = sizeof rma_ops,
    .read = rma_read,
    .readv = rma_readv,
    .readmsg = rma_readmsg,
    .write = rma_write,
    .writev = rma_writev,
    .writemsg = rma_writemsg,
    .inject = rma_inject,
    .writedata = unsupported_writedata,
    .injectdata = unsupported_inject_writedata,
};
