/* atomic.c: atomics: nineteen operations on ten types, the ones that libfabric and Motet share. An atomic on several pieces is several
 * operations with one event. */
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

/* Rows of elements: what changes memory, what it is compared with, and where what was there goes. Those that a form has not are empty. */
struct rows {
    const struct fi_ioc *list;
    size_t count;
};

struct change {
    enum form form;
    struct rows operand, compare, before;
    fi_addr_t peer;
    const struct fi_rma_ioc *remote;
    size_t remotes;
    enum fi_datatype type;
    enum fi_op op;
    uint64_t flags;
    void *context;
    bool quiet;
};

static size_t elements_of(struct rows rows)
{
    size_t all = 0;
    for (size_t i = 0; i < rows.count; i++)
        all += rows.list[i].count;
    return all;
}

/* As many elements everywhere as there. (What a read's operand is does not matter.) */
static bool agree(const struct change *change, size_t count)
{
    if (change->operand.count > VECTORS || change->compare.count > VECTORS || change->before.count > VECTORS) return false;
    if (change->remotes == 0 || change->remotes > VECTORS) return false;
    if (change->op != FI_ATOMIC_READ && elements_of(change->operand) != count) return false;
    if (change->form == COMPARE && elements_of(change->compare) != count) return false;
    return change->form == CHANGE || elements_of(change->before) == count;
}

/* A place in rows. */
struct cursor {
    const struct fi_ioc *row;
    size_t left, done; /* rows, this one included; elements of it */
};

static struct cursor first(struct rows rows)
{
    struct cursor cursor = { rows.list, rows.count, 0 };
    while (cursor.left > 0 && cursor.row->count == 0)
        cursor.row++, cursor.left--;
    return cursor;
}

static void *memory_at(const struct cursor *cursor, size_t size) { return cursor->left ? (char *)cursor->row->addr + cursor->done * size : NULL; }

static size_t at_most(size_t count, const struct cursor *cursor)
{
    return cursor->left && cursor->row->count - cursor->done < count ? cursor->row->count - cursor->done : count;
}

static void move(struct cursor *cursor, size_t count)
{
    if (cursor->left == 0) return;
    cursor->done += count;
    while (cursor->left > 0 && cursor->done == cursor->row->count)
        cursor->row++, cursor->left--, cursor->done = 0;
}

/* One row everywhere. */
static int start(struct endpoint *endpoint, struct request *request, motet_link link, const struct change *change, const struct fi_rma_ioc *remote,
                 const void *operand, const void *compare, void *before)
{
    struct motet_completion_options notice = MOTET_INIT(struct motet_completion_options);
    struct motet_atomic atomic = MOTET_INIT(struct motet_atomic);
    struct motet_remote_address at = { sizeof at, link, remote->key, remote->addr };
    notice.cq = endpoint->sends->group;
    notice.user_data = (uintptr_t)request;
    atomic.operation = operations[change->op];
    atomic.type = types[change->type].type;
    atomic.count = (uint32_t)remote->count;
    atomic.operand = operand;
    atomic.compare = compare;
    atomic.result = before;
    int result = motet_region_atomic_start(endpoint->domain->node, &at, &atomic, &notice, &request->operation);
    if (likely(result == 0)) request_note(request);
    return result;
}

/* Several rows: each piece that is one row everywhere is an operation under the whole, as elements are atomic one by one. What has begun cannot
 * be taken back: after the first, room is waited for. */
static void start_pieces(struct endpoint *endpoint, struct request *whole, motet_link link, const struct change *change)
{
    const size_t size = types[change->type].size;
    struct cursor operand = first(change->operand), compare = first(change->compare), before = first(change->before);
    int result = 0;
    whole->children = 1; /* this loop */
    for (size_t i = 0; i < change->remotes && result == 0; i++) {
        const struct fi_rma_ioc *remote = &change->remote[i];
        for (size_t done = 0; done < remote->count && result == 0;) {
            size_t count = at_most(at_most(at_most(remote->count - done, &operand), &compare), &before);
            struct fi_rma_ioc row = { remote->addr + done * size, count, remote->key };
            struct request *piece = request_take(endpoint);
            result = piece ? -EAGAIN : -ENOMEM;
            if (piece) piece->parent = whole;
            while (result == -EAGAIN) {
                result = start(endpoint, piece, link, change, &row, memory_at(&operand, size), memory_at(&compare, size), memory_at(&before, size));
                if (result == -EAGAIN) domain_pump(endpoint->domain);
            }
            if (result == 0) whole->children++;
            else if (piece) request_give_back(piece);
            move(&operand, count);
            move(&compare, count);
            move(&before, count);
            done += count;
        }
    }
    request_piece_ended(whole, result);
}

static ssize_t go(struct fid_ep *fid, const struct change *change)
{
    struct endpoint *endpoint = container(fid, struct endpoint, fid);
    size_t most = elements(change->type, change->op, change->form), count = 0;
    for (size_t i = 0; i < change->remotes && i < VECTORS; i++)
        count += change->remote[i].count;
    if (most == 0) return -FI_EOPNOTSUPP;
    if (unlikely(!agree(change, count))) return -FI_EINVAL;
    if (count > most) return -FI_EMSGSIZE;
    bool told = !change->quiet && (!endpoint->selective_sends || change->flags & FI_COMPLETION);
    enter(endpoint->domain);
    endpoint->domain->ops_started++;
    struct peer *peer = peer_at(endpoint, change->peer);
    int result = unlikely(!peer) ? -FI_EINVAL : likely(peer->link != 0) ? 0 : peer_link(endpoint, peer);
    struct request *request = result != 0 ? NULL : request_whole(endpoint, change->context, FI_ATOMIC | (change->form == CHANGE ? FI_WRITE : FI_READ),
                                                                 change->form == CHANGE ? COUNT_WRITE : COUNT_READ, told);
    if (result == 0 && !request) result = -EAGAIN;
    if (request && likely(change->remotes == 1 && change->operand.count <= 1 && change->compare.count <= 1 && change->before.count <= 1)) {
        struct cursor operand = { change->operand.list, change->operand.count, 0 }, compare = { change->compare.list, change->compare.count, 0 },
                      before = { change->before.list, change->before.count, 0 };
        result = start(endpoint, request, peer->link, change, change->remote, memory_at(&operand, 0), memory_at(&compare, 0), memory_at(&before, 0));
        if (unlikely(result != 0)) request_give_back(request);
    } else if (request) {
        start_pieces(endpoint, request, peer->link, change);
    }
    leave(endpoint->domain);
    return -to_errno(result);
}

/* ---------------------------------------------------------------- as libfabric has it */

#define REMOTE fi_addr_t peer, uint64_t addr, uint64_t key
#define WHAT enum fi_datatype type, enum fi_op op

static const struct rows none;

static uint64_t usual(struct fid_ep *fid) { return container(fid, struct endpoint, fid)->send_flags; }

/* Rows here, one row there. */
static ssize_t one_there(struct fid_ep *fid, enum form form, struct rows operand, struct rows compare, struct rows before, REMOTE, WHAT,
                         uint64_t flags, void *context, bool quiet)
{
    struct fi_rma_ioc remote = { addr, elements_of(form == CHANGE ? operand : before), key };
    struct change it = { form, op == FI_ATOMIC_READ ? none : operand, compare, before, peer, &remote, 1, type, op, flags, context, quiet };
    return go(fid, &it);
}

static ssize_t message(struct fid_ep *fid, enum form form, const struct fi_msg_atomic *msg, struct rows compare, struct rows before, uint64_t flags)
{
    struct rows operand = { msg->msg_iov, msg->iov_count };
    struct change it = { form, msg->op == FI_ATOMIC_READ ? none : operand, compare, before, msg->addr, msg->rma_iov, msg->rma_iov_count, msg->datatype,
                         msg->op, flags, msg->context, false };
    return go(fid, &it);
}

static ssize_t change_list(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count, REMOTE, WHAT, void *context)
{
    return one_there(fid, CHANGE, (struct rows){ iov, count }, none, none, peer, addr, key, type, op, usual(fid), context, false);
}

static ssize_t change(struct fid_ep *fid, const void *operand, size_t count, void *desc, REMOTE, WHAT, void *context)
{
    struct fi_ioc row = { (void *)operand, count };
    return change_list(fid, &row, NULL, 1, peer, addr, key, type, op, context);
}

static ssize_t change_message(struct fid_ep *fid, const struct fi_msg_atomic *msg, uint64_t flags)
{
    return message(fid, CHANGE, msg, none, none, flags);
}

static ssize_t change_inject(struct fid_ep *fid, const void *operand, size_t count, REMOTE, WHAT)
{
    struct fi_ioc row = { (void *)operand, count };
    return one_there(fid, CHANGE, (struct rows){ &row, 1 }, none, none, peer, addr, key, type, op, 0, NULL, true);
}

static ssize_t fetch_list(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count, struct fi_ioc *before, void **before_desc,
                          size_t before_count, REMOTE, WHAT, void *context)
{
    return one_there(fid, FETCH, (struct rows){ iov, count }, none, (struct rows){ before, before_count }, peer, addr, key, type, op, usual(fid),
                     context, false);
}

static ssize_t fetch(struct fid_ep *fid, const void *operand, size_t count, void *desc, void *before, void *before_desc, REMOTE, WHAT, void *context)
{
    struct fi_ioc row = { (void *)operand, count }, result = { before, count };
    return fetch_list(fid, &row, NULL, 1, &result, NULL, 1, peer, addr, key, type, op, context);
}

static ssize_t fetch_message(struct fid_ep *fid, const struct fi_msg_atomic *msg, struct fi_ioc *before, void **before_desc, size_t before_count,
                             uint64_t flags)
{
    return message(fid, FETCH, msg, none, (struct rows){ before, before_count }, flags);
}

static ssize_t compare_list(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count, const struct fi_ioc *compared,
                            void **compare_desc, size_t compare_count, struct fi_ioc *before, void **before_desc, size_t before_count, REMOTE,
                            WHAT, void *context)
{
    return one_there(fid, COMPARE, (struct rows){ iov, count }, (struct rows){ compared, compare_count }, (struct rows){ before, before_count },
                     peer, addr, key, type, op, usual(fid), context, false);
}

static ssize_t compare(struct fid_ep *fid, const void *operand, size_t count, void *desc, const void *compared, void *compare_desc, void *before,
                       void *before_desc, REMOTE, WHAT, void *context)
{
    struct fi_ioc row = { (void *)operand, count }, wanted = { (void *)compared, count }, result = { before, count };
    return compare_list(fid, &row, NULL, 1, &wanted, NULL, 1, &result, NULL, 1, peer, addr, key, type, op, context);
}

static ssize_t compare_message(struct fid_ep *fid, const struct fi_msg_atomic *msg, const struct fi_ioc *compared, void **compare_desc,
                               size_t compare_count, struct fi_ioc *before, void **before_desc, size_t before_count, uint64_t flags)
{
    return message(fid, COMPARE, msg, (struct rows){ compared, compare_count }, (struct rows){ before, before_count }, flags);
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
