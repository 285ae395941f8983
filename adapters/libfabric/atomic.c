/* atomic.c: libfabric's atomics on Motet's: the same nineteen operations, on the ten types that both know. One row of elements each. */
#include "fabric.h"

#define ROW 256 /* bytes of operands, what they are compared with included, that every link takes */

static const uint32_t operations[] = {
    [FI_MIN] = MOTET_ATOMIC_MINIMUM,
    [FI_MAX] = MOTET_ATOMIC_MAXIMUM,
    [FI_SUM] = MOTET_ATOMIC_SUM,
    [FI_PROD] = MOTET_ATOMIC_PRODUCT,
    [FI_LOR] = MOTET_ATOMIC_LOGICAL_OR,
    [FI_LAND] = MOTET_ATOMIC_LOGICAL_AND,
    [FI_BOR] = MOTET_ATOMIC_BIT_OR,
    [FI_BAND] = MOTET_ATOMIC_BIT_AND,
    [FI_LXOR] = MOTET_ATOMIC_LOGICAL_XOR,
    [FI_BXOR] = MOTET_ATOMIC_BIT_XOR,
    [FI_ATOMIC_READ] = MOTET_ATOMIC_READ,
    [FI_ATOMIC_WRITE] = MOTET_ATOMIC_REPLACE,
    [FI_CSWAP] = MOTET_ATOMIC_SWAP_EQUAL,
    [FI_CSWAP_NE] = MOTET_ATOMIC_SWAP_UNEQUAL,
    [FI_CSWAP_LE] = MOTET_ATOMIC_SWAP_LESS_OR_EQUAL,
    [FI_CSWAP_LT] = MOTET_ATOMIC_SWAP_LESS,
    [FI_CSWAP_GE] = MOTET_ATOMIC_SWAP_GREATER_OR_EQUAL,
    [FI_CSWAP_GT] = MOTET_ATOMIC_SWAP_GREATER,
    [FI_MSWAP] = MOTET_ATOMIC_SWAP_MASKED,
};

static const struct { uint32_t type, size; } types[] = {
    [FI_INT8] = { MOTET_ATOMIC_I8, 1 },   [FI_UINT8] = { MOTET_ATOMIC_U8, 1 },   [FI_INT16] = { MOTET_ATOMIC_I16, 2 },
    [FI_UINT16] = { MOTET_ATOMIC_U16, 2 }, [FI_INT32] = { MOTET_ATOMIC_I32, 4 }, [FI_UINT32] = { MOTET_ATOMIC_U32, 4 },
    [FI_INT64] = { MOTET_ATOMIC_I64, 8 }, [FI_UINT64] = { MOTET_ATOMIC_U64, 8 }, [FI_FLOAT] = { MOTET_ATOMIC_F32, 4 },
    [FI_DOUBLE] = { MOTET_ATOMIC_F64, 8 },
};

enum form { CHANGE, FETCH, COMPARE };

static bool on_bits(enum fi_op op) { return op == FI_BOR || op == FI_BAND || op == FI_BXOR || op == FI_MSWAP; }

/* How many elements one call takes; 0: such are not offered. */
static size_t elements(enum fi_datatype type, enum fi_op op, enum form form)
{
    bool swap = op >= FI_CSWAP && op <= FI_MSWAP;
    if ((unsigned)type >= sizeof types / sizeof *types || (unsigned)op >= sizeof operations / sizeof *operations) return 0;
    if ((form == COMPARE) != swap || (form == CHANGE && op == FI_ATOMIC_READ)) return 0;
    if (on_bits(op) && (type == FI_FLOAT || type == FI_DOUBLE)) return 0;
    return ROW / (form == COMPARE ? 2 : 1) / types[type].size;
}

struct change {
    enum form form;
    const void *operand, *compare;
    void *before;
    size_t count;
    fi_addr_t peer;
    uint64_t addr, key;
    enum fi_datatype type;
    enum fi_op op;
    uint64_t flags;
    void *context;
    bool quiet;
};

static ssize_t go(struct fid_ep *fid, const struct change *change)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid);
    struct motet_notice notice = MOTET_INIT(struct motet_notice);
    struct motet_atomic atomic = MOTET_INIT(struct motet_atomic);
    size_t most = elements(change->type, change->op, change->form);
    if (most == 0) return -FI_EOPNOTSUPP;
    if (change->count > most) return -FI_EMSGSIZE;
    bool told = !change->quiet && (!endpoint->selective_sends || change->flags & FI_COMPLETION);
    enter(endpoint->domain);
    endpoint->domain->begun++;
    struct peer *peer = peer_at(endpoint, change->peer);
    int result = unlikely(!peer) ? -FI_EINVAL : likely(peer->link != 0) ? 0 : peer_link(endpoint, peer);
    struct request *request = result != 0 ? NULL : request_whole(endpoint, change->context, FI_ATOMIC | (change->form == CHANGE ? FI_WRITE : FI_READ),
                                                                 change->form == CHANGE ? COUNT_WRITE : COUNT_READ, told);
    if (result == 0 && !request) result = -EAGAIN;
    if (request) {
        struct motet_remote at = { sizeof at, peer->link, change->key, change->addr };
        notice.group = endpoint->sends->group;
        notice.context = (uintptr_t)request;
        atomic.operation = operations[change->op];
        atomic.type = types[change->type].type;
        atomic.count = (uint32_t)change->count;
        atomic.operand = change->operand;
        atomic.compare = change->compare;
        atomic.before = change->before;
        result = motet_region_atomic_start(endpoint->domain->node, &at, &atomic, &notice, &request->operation);
        if (likely(result == 0)) request_note(request);
        else request_give_back(request);
    }
    leave(endpoint->domain);
    return -to_errno(result);
}

/* ---------------------------------------------------------------- as libfabric has it */

#define REMOTE fi_addr_t peer, uint64_t addr, uint64_t key
#define WHAT enum fi_datatype type, enum fi_op op
#define ONE_OF(list, number) ((number) == 1 ? (list)->addr : NULL)

static uint64_t usual(struct fid_ep *fid) { return container(fid, struct endpoint, fid)->send_flags; }

static ssize_t change(struct fid_ep *fid, const void *operand, size_t count, void *desc, REMOTE, WHAT, void *context)
{
    struct change it = { CHANGE, operand, NULL, NULL, count, peer, addr, key, type, op, usual(fid), context, false };
    return go(fid, &it);
}

static ssize_t change_list(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count, REMOTE, WHAT, void *context)
{
    return count == 1 ? change(fid, iov->addr, iov->count, NULL, peer, addr, key, type, op, context) : -FI_EINVAL;
}

/* One row here and one there. */
static bool is_row(const struct fi_msg_atomic *msg)
{
    return msg->rma_iov_count == 1 && (msg->iov_count == 1 ? msg->msg_iov->count == msg->rma_iov->count : msg->iov_count == 0 && msg->op == FI_ATOMIC_READ);
}

static ssize_t change_message(struct fid_ep *fid, const struct fi_msg_atomic *msg, uint64_t flags)
{
    if (!is_row(msg)) return -FI_EINVAL;
    struct change it = { CHANGE, msg->msg_iov->addr, NULL, NULL, msg->rma_iov->count, msg->addr, msg->rma_iov->addr, msg->rma_iov->key, msg->datatype,
                         msg->op, flags, msg->context, false };
    return go(fid, &it);
}

static ssize_t change_inject(struct fid_ep *fid, const void *operand, size_t count, REMOTE, WHAT)
{
    struct change it = { CHANGE, operand, NULL, NULL, count, peer, addr, key, type, op, 0, NULL, true };
    return go(fid, &it);
}

static ssize_t fetch(struct fid_ep *fid, const void *operand, size_t count, void *desc, void *before, void *before_desc, REMOTE, WHAT, void *context)
{
    struct change it = { FETCH, operand, NULL, before, count, peer, addr, key, type, op, usual(fid), context, false };
    return go(fid, &it);
}

static ssize_t fetch_list(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count, struct fi_ioc *before, void **before_desc,
                          size_t before_count, REMOTE, WHAT, void *context)
{
    if (count > 1 || before_count != 1 || (count == 0 && op != FI_ATOMIC_READ) || (count == 1 && iov->count != before->count)) return -FI_EINVAL;
    return fetch(fid, ONE_OF(iov, count), before->count, NULL, before->addr, NULL, peer, addr, key, type, op, context);
}

static ssize_t fetch_message(struct fid_ep *fid, const struct fi_msg_atomic *msg, struct fi_ioc *before, void **before_desc, size_t before_count,
                             uint64_t flags)
{
    if (!is_row(msg) || before_count != 1 || before->count != msg->rma_iov->count) return -FI_EINVAL;
    struct change it = { FETCH, ONE_OF(msg->msg_iov, msg->iov_count), NULL, before->addr, before->count, msg->addr, msg->rma_iov->addr,
                         msg->rma_iov->key, msg->datatype, msg->op, flags, msg->context, false };
    return go(fid, &it);
}

static ssize_t compare(struct fid_ep *fid, const void *operand, size_t count, void *desc, const void *compared, void *compare_desc, void *before,
                       void *before_desc, REMOTE, WHAT, void *context)
{
    struct change it = { COMPARE, operand, compared, before, count, peer, addr, key, type, op, usual(fid), context, false };
    return go(fid, &it);
}

static ssize_t compare_list(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count, const struct fi_ioc *compared,
                            void **compare_desc, size_t compare_count, struct fi_ioc *before, void **before_desc, size_t before_count, REMOTE,
                            WHAT, void *context)
{
    if (count != 1 || compare_count != 1 || before_count != 1 || iov->count != compared->count || iov->count != before->count) return -FI_EINVAL;
    return compare(fid, iov->addr, iov->count, NULL, compared->addr, NULL, before->addr, NULL, peer, addr, key, type, op, context);
}

static ssize_t compare_message(struct fid_ep *fid, const struct fi_msg_atomic *msg, const struct fi_ioc *compared, void **compare_desc,
                               size_t compare_count, struct fi_ioc *before, void **before_desc, size_t before_count, uint64_t flags)
{
    if (!is_row(msg) || compare_count != 1 || before_count != 1 || before->count != msg->rma_iov->count || compared->count != before->count)
        return -FI_EINVAL;
    struct change it = { COMPARE, ONE_OF(msg->msg_iov, msg->iov_count), compared->addr, before->addr, before->count, msg->addr, msg->rma_iov->addr,
                         msg->rma_iov->key, msg->datatype, msg->op, flags, msg->context, false };
    return go(fid, &it);
}

static int valid(enum fi_datatype type, enum fi_op op, enum form form, size_t *count)
{
    size_t most = elements(type, op, form);
    if (most && count) *count = most;
    return most ? 0 : -FI_EOPNOTSUPP;
}

static int change_valid(struct fid_ep *fid, WHAT, size_t *count) { return valid(type, op, CHANGE, count); }
static int fetch_valid(struct fid_ep *fid, WHAT, size_t *count) { return valid(type, op, FETCH, count); }
static int compare_valid(struct fid_ep *fid, WHAT, size_t *count) { return valid(type, op, COMPARE, count); }

int atomic_query(struct fid_domain *domain, WHAT, struct fi_atomic_attr *attr, uint64_t flags)
{
    if (flags & FI_TAGGED || (flags & FI_FETCH_ATOMIC && flags & FI_COMPARE_ATOMIC)) return -FI_EINVAL;
    int result = valid(type, op, flags & FI_COMPARE_ATOMIC ? COMPARE : flags & FI_FETCH_ATOMIC ? FETCH : CHANGE, &attr->count);
    if (result == 0) attr->size = types[type].size;
    return result;
}

struct fi_ops_atomic atomics = {
    .size = sizeof atomics,
    .write = change,
    .writev = change_list,
    .writemsg = change_message,
    .inject = change_inject,
    .readwrite = fetch,
    .readwritev = fetch_list,
    .readwritemsg = fetch_message,
    .compwrite = compare,
    .compwritev = compare_list,
    .compwritemsg = compare_message,
    .writevalid = change_valid,
    .readwritevalid = fetch_valid,
    .compwritevalid = compare_valid,
};
