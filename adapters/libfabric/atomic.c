/* atomic.c: atomics: nineteen operations on ten types, the ones that libfabric and Motet share. An atomic on several pieces is several
 * operations with one event. */
#include "fabric.h"

#define MAX_OPERAND_BYTES 256 /* bytes of operands and compared values in one operation that every link takes */

static const uint32_t atomic_op_codes[] = {
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

static const struct { uint32_t type, size; } atomic_types[] = {
    [FI_INT8] = { MOTET_ATOMIC_I8, 1 },   [FI_UINT8] = { MOTET_ATOMIC_U8, 1 },   [FI_INT16] = { MOTET_ATOMIC_I16, 2 },
    [FI_UINT16] = { MOTET_ATOMIC_U16, 2 }, [FI_INT32] = { MOTET_ATOMIC_I32, 4 }, [FI_UINT32] = { MOTET_ATOMIC_U32, 4 },
    [FI_INT64] = { MOTET_ATOMIC_I64, 8 }, [FI_UINT64] = { MOTET_ATOMIC_U64, 8 }, [FI_FLOAT] = { MOTET_ATOMIC_F32, 4 },
    [FI_DOUBLE] = { MOTET_ATOMIC_F64, 8 },
};

enum atomic_class { ATOMIC_WRITE, ATOMIC_FETCH, ATOMIC_COMPARE };

static bool is_bitwise(enum fi_op op) { return op == FI_BOR || op == FI_BAND || op == FI_BXOR || op == FI_MSWAP; }

/* The number of elements that one call takes; 0: this operation is not offered for this type. */
static size_t max_elements(enum fi_datatype type, enum fi_op op, enum atomic_class class)
{
    bool swap = op >= FI_CSWAP && op <= FI_MSWAP;
    if ((unsigned)type >= sizeof atomic_types / sizeof *atomic_types || (unsigned)op >= sizeof atomic_op_codes / sizeof *atomic_op_codes) return 0;
    if ((class == ATOMIC_COMPARE) != swap || (class == ATOMIC_WRITE && op == FI_ATOMIC_READ)) return 0;
    if (is_bitwise(op) && (type == FI_FLOAT || type == FI_DOUBLE)) return 0;
    return MAX_OPERAND_BYTES / (class == ATOMIC_COMPARE ? 2 : 1) / atomic_types[type].size;
}

/* Local pieces: operands, compared values, or results (the values before the operation). Empty where a class of operation has none. */
struct pieces {
    const struct fi_ioc *list;
    size_t count;
};

struct atomic_args {
    enum atomic_class class;
    struct pieces operand, compare, fetched;
    fi_addr_t peer;
    const struct fi_rma_ioc *remote;
    size_t remote_count;
    enum fi_datatype type;
    enum fi_op op;
    uint64_t flags;
    void *context;
    bool no_completion;
};

static size_t count_elements(struct pieces pieces)
{
    size_t all = 0;
    for (size_t i = 0; i < pieces.count; i++)
        all += pieces.list[i].count;
    return all;
}

/* Whether the local lists have as many elements as the remote one. A read ignores its operand. */
static bool counts_match(const struct atomic_args *args, size_t count)
{
    if (args->operand.count > IOV_LIMIT || args->compare.count > IOV_LIMIT || args->fetched.count > IOV_LIMIT) return false;
    if (args->remote_count == 0 || args->remote_count > IOV_LIMIT) return false;
    if (args->op != FI_ATOMIC_READ && count_elements(args->operand) != count) return false;
    if (args->class == ATOMIC_COMPARE && count_elements(args->compare) != count) return false;
    return args->class == ATOMIC_WRITE || count_elements(args->fetched) == count;
}

/* A position in a list of pieces. */
struct cursor {
    const struct fi_ioc *piece;
    size_t left, done; /* pieces from this one on; elements of this piece that are done */
};

static struct cursor cursor_start(struct pieces pieces)
{
    struct cursor cursor = { pieces.list, pieces.count, 0 };
    while (cursor.left > 0 && cursor.piece->count == 0)
        cursor.piece++, cursor.left--;
    return cursor;
}

static void *cursor_address(const struct cursor *cursor, size_t size) { return cursor->left ? (char *)cursor->piece->addr + cursor->done * size : NULL; }

static size_t limit_to_piece(size_t count, const struct cursor *cursor)
{
    return cursor->left && cursor->piece->count - cursor->done < count ? cursor->piece->count - cursor->done : count;
}

static void cursor_advance(struct cursor *cursor, size_t count)
{
    if (cursor->left == 0) return;
    cursor->done += count;
    while (cursor->left > 0 && cursor->done == cursor->piece->count)
        cursor->piece++, cursor->left--, cursor->done = 0;
}

/* Starts one operation of the engine: one piece in each list. */
static int start_one(struct endpoint *endpoint, struct request *request, motet_link link, const struct atomic_args *args,
                     const struct fi_rma_ioc *remote, const void *operand, const void *compare, void *fetched)
{
    struct motet_completion_options options = MOTET_INIT(struct motet_completion_options);
    struct motet_atomic atomic = MOTET_INIT(struct motet_atomic);
    struct motet_remote_address at = { sizeof at, link, remote->key, remote->addr };
    options.cq = endpoint->tx_cq->engine_cq;
    options.user_data = (uintptr_t)request;
    atomic.operation = atomic_op_codes[args->op];
    atomic.type = atomic_types[args->type].type;
    atomic.count = (uint32_t)remote->count;
    atomic.operand = operand;
    atomic.compare = compare;
    atomic.result = fetched;
    int result = motet_region_atomic_start(endpoint->domain->node, &at, &atomic, &options, &request->operation);
    if (likely(result == 0)) request_track(request);
    return result;
}

/* Starts one child operation for each run of elements that is contiguous in every list; elements are atomic one by one. An operation that has started
 * cannot be revoked, so this function waits for room instead of failing with -EAGAIN. */
static void start_children(struct endpoint *endpoint, struct request *parent, motet_link link, const struct atomic_args *args)
{
    const size_t size = atomic_types[args->type].size;
    struct cursor operand = cursor_start(args->operand), compare = cursor_start(args->compare), fetched = cursor_start(args->fetched);
    int result = 0;
    parent->children = 1; /* held by this loop */
    for (size_t i = 0; i < args->remote_count && result == 0; i++) {
        const struct fi_rma_ioc *remote = &args->remote[i];
        for (size_t done = 0; done < remote->count && result == 0;) {
            size_t count = limit_to_piece(limit_to_piece(limit_to_piece(remote->count - done, &operand), &compare), &fetched);
            struct fi_rma_ioc piece = { remote->addr + done * size, count, remote->key };
            struct request *child = request_alloc(endpoint);
            result = child ? -EAGAIN : -ENOMEM;
            if (child) child->parent = parent;
            while (result == -EAGAIN) {
                result = start_one(endpoint, child, link, args, &piece, cursor_address(&operand, size), cursor_address(&compare, size),
                                   cursor_address(&fetched, size));
                if (result == -EAGAIN) domain_pump(endpoint->domain);
            }
            if (result == 0) parent->children++;
            else if (child) request_free(child);
            cursor_advance(&operand, count);
            cursor_advance(&compare, count);
            cursor_advance(&fetched, count);
            done += count;
        }
    }
    request_child_done(parent, result);
}

static ssize_t start_atomic(struct fid_ep *fid, const struct atomic_args *args)
{
    struct endpoint *endpoint = container_of(fid, struct endpoint, fid);
    size_t max_count = max_elements(args->type, args->op, args->class), count = 0;
    for (size_t i = 0; i < args->remote_count && i < IOV_LIMIT; i++)
        count += args->remote[i].count;
    if (max_count == 0) return -FI_EOPNOTSUPP;
    if (unlikely(!counts_match(args, count))) return -FI_EINVAL;
    if (count > max_count) return -FI_EMSGSIZE;
    bool reports = !args->no_completion && (!endpoint->tx_selective || args->flags & FI_COMPLETION);
    domain_lock(endpoint->domain);
    endpoint->domain->ops_started++;
    struct peer *peer = peer_at(endpoint, args->peer);
    int result = unlikely(!peer) ? -FI_EINVAL : likely(peer->link != 0) ? 0 : peer_connect(endpoint, peer);
    struct request *request = result != 0 ? NULL : rma_request_alloc(endpoint, args->context,
                                                                     FI_ATOMIC | (args->class == ATOMIC_WRITE ? FI_WRITE : FI_READ),
                                                                     args->class == ATOMIC_WRITE ? CNTR_WRITE : CNTR_READ, reports);
    if (result == 0 && !request) result = -EAGAIN;
    if (request && likely(args->remote_count == 1 && args->operand.count <= 1 && args->compare.count <= 1 && args->fetched.count <= 1)) {
        struct cursor operand = { args->operand.list, args->operand.count, 0 }, compare = { args->compare.list, args->compare.count, 0 },
                      fetched = { args->fetched.list, args->fetched.count, 0 };
        result = start_one(endpoint, request, peer->link, args, args->remote, cursor_address(&operand, 0), cursor_address(&compare, 0),
                           cursor_address(&fetched, 0));
        if (unlikely(result != 0)) request_free(request);
    } else if (request) {
        start_children(endpoint, request, peer->link, args);
    }
    domain_unlock(endpoint->domain);
    return -to_errno(result);
}

/* ---------------------------------------------------------------- functions of libfabric */

#define TARGET fi_addr_t peer, uint64_t addr, uint64_t key
#define TYPE_AND_OP enum fi_datatype type, enum fi_op op

static const struct pieces no_pieces;

static uint64_t default_flags(struct fid_ep *fid) { return container_of(fid, struct endpoint, fid)->tx_op_flags; }

/* Local pieces, one remote piece. */
static ssize_t atomic_one_target(struct fid_ep *fid, enum atomic_class class, struct pieces operand, struct pieces compare, struct pieces fetched,
                                 TARGET, TYPE_AND_OP, uint64_t flags, void *context, bool no_completion)
{
    struct fi_rma_ioc remote = { addr, count_elements(class == ATOMIC_WRITE ? operand : fetched), key };
    struct atomic_args args = { class, op == FI_ATOMIC_READ ? no_pieces : operand, compare, fetched, peer, &remote, 1, type, op,
                                flags, context, no_completion };
    return start_atomic(fid, &args);
}

static ssize_t atomic_msg(struct fid_ep *fid, enum atomic_class class, const struct fi_msg_atomic *msg, struct pieces compare,
                          struct pieces fetched, uint64_t flags)
{
    struct pieces operand = { msg->msg_iov, msg->iov_count };
    struct atomic_args args = { class, msg->op == FI_ATOMIC_READ ? no_pieces : operand, compare, fetched, msg->addr, msg->rma_iov,
                                msg->rma_iov_count, msg->datatype, msg->op, flags, msg->context, false };
    return start_atomic(fid, &args);
}

static ssize_t atomic_writev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count, TARGET, TYPE_AND_OP, void *context)
{
    return atomic_one_target(fid, ATOMIC_WRITE, (struct pieces){ iov, count }, no_pieces, no_pieces, peer, addr, key, type, op,
                             default_flags(fid), context, false);
}

static ssize_t atomic_write(struct fid_ep *fid, const void *operand, size_t count, void *desc, TARGET, TYPE_AND_OP, void *context)
{
    struct fi_ioc piece = { (void *)operand, count };
    return atomic_writev(fid, &piece, NULL, 1, peer, addr, key, type, op, context);
}

static ssize_t atomic_writemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg, uint64_t flags)
{
    return atomic_msg(fid, ATOMIC_WRITE, msg, no_pieces, no_pieces, flags);
}

static ssize_t atomic_inject(struct fid_ep *fid, const void *operand, size_t count, TARGET, TYPE_AND_OP)
{
    struct fi_ioc piece = { (void *)operand, count };
    return atomic_one_target(fid, ATOMIC_WRITE, (struct pieces){ &piece, 1 }, no_pieces, no_pieces, peer, addr, key, type, op, 0, NULL, true);
}

static ssize_t atomic_readwritev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count, struct fi_ioc *fetched, void **fetched_desc,
                                 size_t fetched_count, TARGET, TYPE_AND_OP, void *context)
{
    return atomic_one_target(fid, ATOMIC_FETCH, (struct pieces){ iov, count }, no_pieces, (struct pieces){ fetched, fetched_count }, peer, addr, key,
                             type, op, default_flags(fid), context, false);
}

static ssize_t atomic_readwrite(struct fid_ep *fid, const void *operand, size_t count, void *desc, void *fetched, void *fetched_desc, TARGET,
                                TYPE_AND_OP, void *context)
{
    struct fi_ioc piece = { (void *)operand, count }, result = { fetched, count };
    return atomic_readwritev(fid, &piece, NULL, 1, &result, NULL, 1, peer, addr, key, type, op, context);
}

static ssize_t atomic_readwritemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg, struct fi_ioc *fetched, void **fetched_desc, size_t fetched_count,
                                   uint64_t flags)
{
    return atomic_msg(fid, ATOMIC_FETCH, msg, no_pieces, (struct pieces){ fetched, fetched_count }, flags);
}

static ssize_t atomic_compwritev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count, const struct fi_ioc *compared,
                                 void **compare_desc, size_t compare_count, struct fi_ioc *fetched, void **fetched_desc, size_t fetched_count, TARGET,
                            TYPE_AND_OP, void *context)
{
    return atomic_one_target(fid, ATOMIC_COMPARE, (struct pieces){ iov, count }, (struct pieces){ compared, compare_count },
                             (struct pieces){ fetched, fetched_count }, peer, addr, key, type, op, default_flags(fid), context, false);
}

static ssize_t atomic_compwrite(struct fid_ep *fid, const void *operand, size_t count, void *desc, const void *compared, void *compare_desc, void *fetched,
                                void *fetched_desc, TARGET, TYPE_AND_OP, void *context)
{
    struct fi_ioc piece = { (void *)operand, count }, wanted = { (void *)compared, count }, result = { fetched, count };
    return atomic_compwritev(fid, &piece, NULL, 1, &wanted, NULL, 1, &result, NULL, 1, peer, addr, key, type, op, context);
}

static ssize_t atomic_compwritemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg, const struct fi_ioc *compared, void **compare_desc,
                                   size_t compare_count, struct fi_ioc *fetched, void **fetched_desc, size_t fetched_count, uint64_t flags)
{
    return atomic_msg(fid, ATOMIC_COMPARE, msg, (struct pieces){ compared, compare_count }, (struct pieces){ fetched, fetched_count }, flags);
}

static int check_valid(enum fi_datatype type, enum fi_op op, enum atomic_class class, size_t *count)
{
    size_t max_count = max_elements(type, op, class);
    if (max_count && count) *count = max_count;
    return max_count ? 0 : -FI_EOPNOTSUPP;
}

static int atomic_writevalid(struct fid_ep *fid, TYPE_AND_OP, size_t *count) { return check_valid(type, op, ATOMIC_WRITE, count); }
static int atomic_readwritevalid(struct fid_ep *fid, TYPE_AND_OP, size_t *count) { return check_valid(type, op, ATOMIC_FETCH, count); }
static int atomic_compwritevalid(struct fid_ep *fid, TYPE_AND_OP, size_t *count) { return check_valid(type, op, ATOMIC_COMPARE, count); }

int atomic_query(struct fid_domain *domain, TYPE_AND_OP, struct fi_atomic_attr *attr, uint64_t flags)
{
    if (flags & FI_TAGGED || (flags & FI_FETCH_ATOMIC && flags & FI_COMPARE_ATOMIC)) return -FI_EINVAL;
    int result = check_valid(type, op, flags & FI_COMPARE_ATOMIC ? ATOMIC_COMPARE : flags & FI_FETCH_ATOMIC ? ATOMIC_FETCH : ATOMIC_WRITE, &attr->count);
    if (result == 0) attr->size = atomic_types[type].size;
    return result;
}

struct fi_ops_atomic atomic_ops = {
    .size = sizeof atomic_ops,
    .write = atomic_write,
    .writev = atomic_writev,
    .writemsg = atomic_writemsg,
    .inject = atomic_inject,
    .readwrite = atomic_readwrite,
    .readwritev = atomic_readwritev,
    .readwritemsg = atomic_readwritemsg,
    .compwrite = atomic_compwrite,
    .compwritev = atomic_compwritev,
    .compwritemsg = atomic_compwritemsg,
    .writevalid = atomic_writevalid,
    .readwritevalid = atomic_readwritevalid,
    .compwritevalid = atomic_compwritevalid,
};
