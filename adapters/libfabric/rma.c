/* rma.c: puts and gets.
 *
 * Each pair of a local and a remote piece is one operation of Motet; several have one event, when the last of them completes (completion.c). A put
 * completes when its bytes are in the region, so every completion is FI_DELIVERY_COMPLETE. */
#include "fabric.h"

struct transfer {
    bool put;
    const struct iovec *iov;
    size_t count;
    fi_addr_t peer;
    const struct fi_rma_iov *remote;
    size_t remote_count;
    uint64_t flags;
    void *context;
    bool quiet;
};

struct request *request_whole(struct endpoint *endpoint, void *context, uint64_t flags, enum counted counter, bool told)
{
    struct request *request = request_take(endpoint);
    if (unlikely(!request)) return NULL;
    request->context = context;
    request->flags = flags;
    request->counter = (uint8_t)counter;
    request->told = told;
    return request;
}

static int start(struct endpoint *endpoint, struct request *request, const struct motet_remote_address *at, void *memory, size_t length, bool put)
{
    struct motet_completion_options notice = MOTET_INIT(struct motet_completion_options);
    motet_node node = endpoint->domain->node;
    notice.cq = endpoint->sends->group;
    notice.user_data = (uintptr_t)request;
    int result = put ? motet_region_put_start(node, at, memory, length, &notice, &request->operation)
                     : motet_region_get_start(node, at, memory, length, &notice, &request->operation);
    if (likely(result == 0)) request_note(request);
    return result;
}

/* Several pieces under one whole. What has begun cannot be taken back: after the first, room is waited for. */
static int start_pieces(struct endpoint *endpoint, struct request *whole, motet_link link, const struct transfer *transfer)
{
    size_t here = 0, there = 0, i = 0, j = 0;
    int result = 0;
    whole->children = 1; /* this loop */
    while (i < transfer->count && j < transfer->remote_count && result == 0) {
        const struct iovec *iov = &transfer->iov[i];
        const struct fi_rma_iov *remote = &transfer->remote[j];
        size_t length = iov->iov_len - here < remote->len - there ? iov->iov_len - here : remote->len - there;
        struct motet_remote_address at = { sizeof at, link, remote->key, remote->addr + there };
        struct request *piece = length ? request_take(endpoint) : NULL;
        if (length && !piece) result = -ENOMEM;
        if (piece) {
            piece->parent = whole;
            do {
                result = start(endpoint, piece, &at, (char *)iov->iov_base + here, length, transfer->put);
                if (result == -EAGAIN) domain_pump(endpoint->domain);
            } while (result == -EAGAIN);
            if (result == 0) whole->children++;
            else request_give_back(piece);
        }
        here += length;
        there += length;
        if (here == iov->iov_len) here = 0, i++;
        if (there == remote->len) there = 0, j++;
    }
    request_piece_ended(whole, result);
    return 0;
}

static ssize_t go(struct fid_ep *fid, const struct transfer *transfer)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid);
    int result = -EAGAIN;
    if (transfer->count > VECTORS || transfer->remote_count > VECTORS || transfer->flags & FI_REMOTE_CQ_DATA) return -FI_EINVAL;
    bool told = !transfer->quiet && (!endpoint->selective_sends || transfer->flags & FI_COMPLETION);
    enter(endpoint->domain);
    endpoint->domain->ops_started++;
    struct peer *peer = peer_at(endpoint, transfer->peer);
    int reached = unlikely(!peer) ? -FI_EINVAL : likely(peer->link != 0) ? 0 : peer_link(endpoint, peer);
    struct request *request = unlikely(reached != 0) ? NULL : request_whole(endpoint, transfer->context, FI_RMA | (transfer->put ? FI_WRITE : FI_READ),
                                                                           transfer->put ? COUNT_WRITE : COUNT_READ, told);
    if (request && transfer->count == 1 && transfer->remote_count == 1) {
        const struct iovec *iov = transfer->iov;
        struct motet_remote_address at = { sizeof at, peer->link, transfer->remote->key, transfer->remote->addr };
        void *memory = iov->iov_base;
        if (transfer->flags & FI_INJECT && iov->iov_len) {
            if ((request->copy = malloc(iov->iov_len))) memory = memcpy(request->copy, memory, iov->iov_len);
        }
        if (!(transfer->flags & FI_INJECT && iov->iov_len) || request->copy) result = start(endpoint, request, &at, memory, iov->iov_len, transfer->put);
        if (unlikely(result != 0)) request_give_back(request);
    } else if (request) {
        result = transfer->flags & FI_INJECT ? -EINVAL : start_pieces(endpoint, request, peer->link, transfer);
        if (unlikely(result != 0)) request_give_back(request);
    }
    leave(endpoint->domain);
    return unlikely(reached != 0) ? reached : -to_errno(result);
}

/* ---------------------------------------------------------------- as libfabric has it */

static uint64_t usual(struct fid_ep *fid) { return container(fid, struct endpoint, fid)->send_flags; }

static ssize_t list(struct fid_ep *fid, bool put, const struct iovec *iov, size_t count, fi_addr_t peer, uint64_t addr, uint64_t key,
                    void *context)
{
    size_t length = 0;
    for (size_t i = 0; i < count; i++)
        length += iov[i].iov_len;
    struct fi_rma_iov remote = { addr, length, key };
    struct transfer transfer = { put, iov, count, peer, &remote, 1, usual(fid), context, false };
    return go(fid, &transfer);
}

static ssize_t message(struct fid_ep *fid, bool put, const struct fi_msg_rma *msg, uint64_t flags)
{
    struct transfer transfer = { put, msg->msg_iov, msg->iov_count, msg->addr, msg->rma_iov, msg->rma_iov_count, flags, msg->context, false };
    return go(fid, &transfer);
}

static ssize_t get_list(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t peer, uint64_t addr, uint64_t key,
                        void *context)
{
    return list(fid, false, iov, count, peer, addr, key, context);
}

static ssize_t get(struct fid_ep *fid, void *into, size_t length, void *desc, fi_addr_t peer, uint64_t addr, uint64_t key, void *context)
{
    struct iovec iov = { into, length };
    return list(fid, false, &iov, 1, peer, addr, key, context);
}

static ssize_t get_message(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags) { return message(fid, false, msg, flags); }

static ssize_t put_list(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t peer, uint64_t addr, uint64_t key,
                        void *context)
{
    return list(fid, true, iov, count, peer, addr, key, context);
}

static ssize_t put(struct fid_ep *fid, const void *from, size_t length, void *desc, fi_addr_t peer, uint64_t addr, uint64_t key, void *context)
{
    struct iovec iov = { (void *)from, length };
    return list(fid, true, &iov, 1, peer, addr, key, context);
}

static ssize_t put_message(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags) { return message(fid, true, msg, flags); }

static ssize_t put_inject(struct fid_ep *fid, const void *from, size_t length, fi_addr_t peer, uint64_t addr, uint64_t key)
{
    struct iovec iov = { (void *)from, length };
    struct fi_rma_iov remote = { addr, length, key };
    struct transfer transfer = { true, &iov, 1, peer, &remote, 1, FI_INJECT, NULL, true };
    return length > INJECT_SIZE ? -FI_EINVAL : go(fid, &transfer);
}

/* A put tells its target nothing. */
static ssize_t no_data(struct fid_ep *fid, const void *from, size_t length, void *desc, uint64_t data, fi_addr_t peer, uint64_t addr,
                       uint64_t key, void *context)
{
    return -FI_ENOSYS;
}

static ssize_t no_inject_data(struct fid_ep *fid, const void *from, size_t length, uint64_t data, fi_addr_t peer, uint64_t addr, uint64_t key)
{
    return -FI_ENOSYS;
}

struct fi_ops_rma rma_ops = {
    .size = sizeof rma_ops,
    .read = get,
    .readv = get_list,
    .readmsg = get_message,
    .write = put,
    .writev = put_list,
    .writemsg = put_message,
    .inject = put_inject,
    .writedata = no_data,
    .injectdata = no_inject_data,
};
