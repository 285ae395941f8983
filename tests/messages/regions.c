/* regions.c: memory of another process through motet.h, over shared memory and over TCP: puts arrive, refused accesses change nothing, every atomic gives
 * the right result, and outstanding accesses complete when a region is revoked or the peer is killed. */
#include "check.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>

enum { SERVICE = 9, LENGTH = 1 << 20, GUARD = 64, MANY = 200 };
/* Requests to the owner. */
enum { FILLED, WORD, ALL_AS_IT_WAS, REVOKE, SLEEP, BYE };
/* Regions: registered, registered read-only, of the pool, of the pool read-only. */
enum { PLAIN, PLAIN_READ, POOL, POOL_READ, REGIONS };

struct question {
    int32_t what, region;
    uint64_t at, length;
    uint32_t seed;
};

static struct { unsigned char before[GUARD], bytes[LENGTH], after[GUARD]; } mine __attribute__((aligned(64)));
static const unsigned char to_read[5000] = { 1, 2, 3 };
static unsigned char buffer[LENGTH];

static motet_node node;
static motet_link link_;
static motet_channel channel;
static motet_key keys[REGIONS];
static uint64_t first; /* iova of the registered memory */

/* ---- the owner */

static int64_t answer(const struct question *q, unsigned char *bytes[REGIONS])
{
    uint64_t word;
    switch (q->what) {
    case FILLED: return is_filled(bytes[q->region] + q->at, q->length, q->seed);
    case WORD: memcpy(&word, bytes[q->region] + q->at, sizeof word); return (int64_t)word;
    case ALL_AS_IT_WAS:
        for (int i = 0; i < GUARD; i++)
            if (mine.before[i] != 0xaa || mine.after[i] != 0xaa)
                return 0;
        return to_read[0] == 1 && to_read[4999] == 0 && bytes[POOL_READ][0] == 0 && bytes[POOL_READ][99] == 0;
    case REVOKE: {
        int revoked = motet_region_revoke(node, keys[q->region], SOON);
        CHECK(motet_region_revoke(node, keys[q->region], SOON), -EBADF);
        if (q->region == PLAIN) /* no peer may change it any more */
            fill(mine.bytes, LENGTH, 77);
        return revoked;
    }
    default: return -1;
    }
}

static void own(int asked)
{
    unsigned char *bytes[REGIONS] = { mine.bytes, (unsigned char *)to_read };
    void *base = NULL;
    memset(mine.before, 0xaa, GUARD);
    memset(mine.after, 0xaa, GUARD);
    if (first == 0) {
        CHECK(motet_region_register(node, mine.bytes, LENGTH, MOTET_REGION_ALL, &keys[PLAIN]), 0);
        CHECK(motet_region_register(node, (void *)to_read, sizeof to_read, MOTET_REGION_GET, &keys[PLAIN_READ]), 0);
    } else {
        CHECK(motet_region_register_iova(node, mine.bytes, LENGTH, first, MOTET_REGION_ALL, &keys[PLAIN]), 0);
        CHECK(motet_region_register_iova(node, (void *)to_read, sizeof to_read, first, MOTET_REGION_GET, &keys[PLAIN_READ]), 0);
    }
    CHECK(motet_region_alloc(node, LENGTH, MOTET_REGION_ALL, &base, &keys[POOL]), 0);
    bytes[POOL] = base;
    CHECK(motet_region_alloc(node, 100, MOTET_REGION_GET, &base, &keys[POOL_READ]), 0);
    bytes[POOL_READ] = base;
    struct motet_receive_mode mode = queue();
    CHECK(motet_service_open(node, SERVICE, &mode), 0);
    CHECK(write(asked, "!", 1), 1);
    CHECK(motet_channel_accept(node, SERVICE, SOON, &channel), 0);
    CHECK(motet_message_send(node, channel, 0, keys, sizeof keys, SOON), 0);
    struct question q;
    while (motet_message_receive(node, channel, &q, sizeof q, NEVER, NULL) == 0 && q.what != BYE) {
        if (q.what == SLEEP)
            raise(SIGSTOP);
        int64_t said = answer(&q, bytes);
        CHECK(motet_message_send(node, channel, 0, &said, sizeof said, SOON), 0);
    }
}

/* ---- the peer */

static int64_t ask(int what, int region, uint64_t at, uint64_t length, uint32_t seed)
{
    struct question q = { what, region, at, length, seed };
    int64_t said = -1;
    CHECK(motet_message_send(node, channel, 0, &q, sizeof q, SOON), 0);
    CHECK(motet_message_receive(node, channel, &said, sizeof said, SOON, NULL), 0);
    return said;
}

static struct motet_remote_address place(int region, uint64_t offset)
{
    struct motet_remote_address at = MOTET_INIT(struct motet_remote_address);
    at.link = link_;
    at.key = keys[region];
    at.offset = offset + (region < POOL ? first : 0);
    return at;
}

static void puts_and_gets(int region)
{
    static const size_t lengths[] = { 0, 1, 8, 100, 256, 257, 4000, 20000, 700000, LENGTH - 3 };
    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct motet_remote_address to = place(region, 3);
        fill(buffer, lengths[i], i);
        CHECK(motet_region_put(node, &to, buffer, lengths[i], SOON), 0);
        CHECK(ask(FILLED, region, 3, lengths[i], i), 1);
        memset(buffer, 0, lengths[i]);
        CHECK(motet_region_get(node, &to, buffer, lengths[i], SOON), 0);
        CHECK(is_filled(buffer, lengths[i], i), 1);
    }
}

/* Refused accesses do not change the region. */
static void refusals(int region, int readable)
{
    static const size_t lengths[] = { 1, 8, 300, 70000 };
    struct motet_atomic add = MOTET_INIT(struct motet_atomic);
    uint64_t one = 1;
    add.operation = MOTET_ATOMIC_SUM;
    add.type = MOTET_ATOMIC_U64;
    add.count = 1;
    add.operand = &one;
    struct motet_remote_address all = place(region, 0), read_only = place(readable, 0);
    fill(buffer, LENGTH, 5);
    CHECK(motet_region_put(node, &all, buffer, LENGTH, SOON), 0);
    memset(buffer, 0xee, LENGTH);
    for (unsigned i = 0; i < 4; i++) {
        struct motet_remote_address over = place(region, LENGTH - lengths[i] + 1), far = place(region, UINT64_MAX);
        CHECK(motet_region_put(node, &over, buffer, lengths[i], SOON), -ERANGE);
        CHECK(motet_region_get(node, &over, buffer, lengths[i], SOON), -ERANGE);
        CHECK(motet_region_put(node, &far, buffer, lengths[i], SOON), -ERANGE);
        CHECK(motet_region_get(node, &far, buffer, lengths[i], SOON), -ERANGE);
        CHECK(motet_region_put(node, &read_only, buffer, lengths[i], SOON), -EACCES);
    }
    struct motet_remote_address end = place(region, LENGTH), odd = place(region, 4);
    CHECK(motet_region_atomic(node, &end, &add, SOON), -ERANGE);
    CHECK(motet_region_atomic(node, &odd, &add, SOON), -EINVAL);
    CHECK(motet_region_atomic(node, &read_only, &add, SOON), -EACCES);
    CHECK(buffer[0] == 0xee && buffer[69999] == 0xee, 1);
    CHECK(ask(FILLED, region, 0, LENGTH, 5), 1);
    CHECK(ask(ALL_AS_IT_WAS, 0, 0, 0, 0), 1);
    CHECK(motet_region_get(node, &read_only, buffer, 100, SOON), 0);
    CHECK(buffer[0] == (readable == PLAIN_READ), 1);
}

/* Completions of one operation, of any, through a completion queue, or at once. */
static void ends(int region, int opened)
{
    struct motet_remote_address at = place(region, 0), outside = place(region, LENGTH);
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    motet_operation started[3];
    int left = 0;
    for (int i = 0; i < 3; i++) {
        at = place(region, (uint64_t)i * 8);
        CHECK(motet_region_put_start(node, &at, "12345678", 8, NULL, &started[i]), 0);
        CHECK(started[i] == 0, opened);
        left += started[i] != 0;
    }
    if (!opened) {
        CHECK(motet_operation_wait(node, started[0], SOON, &end), 0);
        CHECK(end.status == 0 && end.operation == started[0] && end.loaned == 0 && end.body == NULL, 1);
        CHECK(motet_operation_test(node, started[0], &end), -EBADF);
        for (left--; left > 0; left--) {
            CHECK(motet_operation_wait_any(node, started, 3, SOON, &end) >= 1, 1);
            CHECK(end.status == 0 && end.length == 8, 1);
        }
        CHECK(motet_region_get_start(node, &outside, buffer, 8, NULL, &started[0]), 0);
        CHECK(motet_operation_wait(node, started[0], SOON, &end), 0);
        CHECK(end.status, -ERANGE);
    } else {
        CHECK(motet_region_get_start(node, &outside, buffer, 8, NULL, &started[0]), -ERANGE);
        CHECK(started[0], 0);
    }

    /* Many outstanding puts, one buffer each; one fails, the others are only counted. */
    motet_cq cq;
    struct motet_cq_counters counts = MOTET_INIT(struct motet_cq_counters);
    CHECK(motet_cq_new(node, &cq), 0);
    for (unsigned i = 0; i < MANY; i++) {
        struct motet_completion_options options = options_of(cq, i, MOTET_COMPLETION_ERRORS_ONLY);
        struct motet_remote_address to = place(region, i == 50 ? LENGTH : i * 5000);
        unsigned char *bytes = buffer + i * 5000;
        int begun;
        fill(bytes, 5000, i);
        while ((begun = motet_region_put_start(node, &to, bytes, 5000, &options, &started[0])) == -EAGAIN)
            CHECK(motet_node_progress(node) >= 0, 1);
        CHECK(begun, 0);
        CHECK(started[0] != 0, 1);
    }
    CHECK(motet_region_fence(node, link_, SOON), 0);
    CHECK(motet_cq_counts(node, cq, &counts), 0);
    CHECK(counts.succeeded == MANY - 1 && counts.failed == 1 && counts.outstanding == 0, 1);
    CHECK(motet_cq_wait(node, cq, &end, 1, SOON), 1);
    CHECK(end.user_data == 50 && end.status == -ERANGE && end.length == 0, 1);
    CHECK(motet_cq_wait(node, cq, &end, 1, 0), -EAGAIN);
    for (unsigned i = 0; i < MANY; i++)
        if (i != 50)
            CHECK(ask(FILLED, region, i * 5000, 5000, i), 1);
    struct motet_completion_options options = options_of(cq, 51, 0);
    CHECK(motet_region_fence_start(node, link_, &options, &started[0]), 0);
    CHECK(motet_cq_wait(node, cq, &end, 1, SOON), 1);
    CHECK(end.user_data == 51 && end.status == 0 && end.operation == started[0], 1);
    CHECK(motet_cq_free(node, cq), 0);
}

/* ---- atomics: every operation on every type, beside a model of small numbers, which no type rounds or wraps */

static const size_t sizes[] = { 1, 1, 2, 2, 4, 4, 8, 8, 4, 8 };

static void store(unsigned char *at, int type, long value)
{
    float single = (float)value;
    double twice = (double)value;
    const void *from = type == MOTET_ATOMIC_F32 ? (void *)&single : type == MOTET_ATOMIC_F64 ? (void *)&twice : (void *)&value;
    memcpy(at, from, sizes[type]); /* little-endian */
}

static long model(int operation, long old, long new, long given)
{
    switch (operation) {
    case MOTET_ATOMIC_SUM: return old + new;
    case MOTET_ATOMIC_PRODUCT: return old * new;
    case MOTET_ATOMIC_MINIMUM: return old < new ? old : new;
    case MOTET_ATOMIC_MAXIMUM: return old > new ? old : new;
    case MOTET_ATOMIC_LOGICAL_AND: return old && new;
    case MOTET_ATOMIC_LOGICAL_OR: return old || new;
    case MOTET_ATOMIC_LOGICAL_XOR: return !old != !new;
    case MOTET_ATOMIC_BIT_AND: return old & new;
    case MOTET_ATOMIC_BIT_OR: return old | new;
    case MOTET_ATOMIC_BIT_XOR: return old ^ new;
    case MOTET_ATOMIC_REPLACE: return new;
    case MOTET_ATOMIC_READ: return old;
    case MOTET_ATOMIC_SWAP_EQUAL: return given == old ? new : old;
    case MOTET_ATOMIC_SWAP_UNEQUAL: return given != old ? new : old;
    case MOTET_ATOMIC_SWAP_LESS_OR_EQUAL: return given <= old ? new : old;
    case MOTET_ATOMIC_SWAP_LESS: return given < old ? new : old;
    case MOTET_ATOMIC_SWAP_GREATER_OR_EQUAL: return given >= old ? new : old;
    case MOTET_ATOMIC_SWAP_GREATER: return given > old ? new : old;
    default: return (new & given) | (old & ~given);
    }
}

static int is_of_bits(int operation)
{
    return (operation >= MOTET_ATOMIC_BIT_AND && operation <= MOTET_ATOMIC_BIT_XOR) || operation == MOTET_ATOMIC_SWAP_MASKED;
}

static void one_atomic(int region, int operation, int type)
{
    static const long olds[3] = { 5, 0, 3 }, news[3] = { 3, 4, 0 }, givens[3] = { 5, 1, 2 };
    unsigned char old[24], new[24], given[24], expected[24], before[25], after[24];
    size_t size = sizes[type], length = 3 * size;
    struct motet_remote_address at = place(region, 64 + 24);
    struct motet_atomic atomic = MOTET_INIT(struct motet_atomic);
    for (int i = 0; i < 3; i++) {
        store(old + i * size, type, olds[i]);
        store(new + i * size, type, news[i]);
        store(given + i * size, type, givens[i]);
        store(expected + i * size, type, model(operation, olds[i], news[i], givens[i]));
    }
    atomic.operation = (uint32_t)operation;
    atomic.type = (uint32_t)type;
    atomic.count = 3;
    atomic.operand = new;
    atomic.compare = given;
    for (int fetch = operation == MOTET_ATOMIC_READ; fetch < 2; fetch++) {
        int senseless = is_of_bits(operation) && type >= MOTET_ATOMIC_F32;
        before[24] = before[length] = 0x5a;
        atomic.result = fetch ? before : NULL;
        CHECK(motet_region_put(node, &at, old, length, SOON), 0);
        CHECK(motet_region_atomic(node, &at, &atomic, SOON), senseless ? -EINVAL : 0);
        CHECK(motet_region_get(node, &at, after, length, SOON), 0);
        CHECK(memcmp(after, senseless ? old : expected, length), 0);
        CHECK(!fetch || senseless || (memcmp(before, old, length) == 0 && before[length] == 0x5a), 1);
    }
}

static void atomics(int region)
{
    for (int operation = 0; operation <= MOTET_ATOMIC_SWAP_MASKED; operation++)
        for (int type = 0; type <= MOTET_ATOMIC_F64; type++)
            one_atomic(region, operation, type);

    /* Started: the results are there with the completion. */
    uint64_t one = 1, before[MANY], last;
    struct motet_remote_address at = place(region, 8);
    struct motet_atomic add = MOTET_INIT(struct motet_atomic);
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    motet_cq cq;
    motet_operation operation;
    CHECK(motet_cq_new(node, &cq), 0);
    CHECK(motet_region_put(node, &at, "\0\0\0\0\0\0\0\0", 8, SOON), 0);
    add.operation = MOTET_ATOMIC_SUM;
    add.type = MOTET_ATOMIC_U64;
    add.count = 1;
    add.operand = &one;
    for (uint64_t i = 0; i < MANY; i++) {
        struct motet_completion_options options = options_of(cq, i, 0);
        int begun;
        add.result = &before[i];
        while ((begun = motet_region_atomic_start(node, &at, &add, &options, &operation)) == -EAGAIN)
            CHECK(motet_node_progress(node) >= 0, 1);
        CHECK(begun, 0);
    }
    for (uint64_t i = 0; i < MANY; i++) {
        CHECK(motet_cq_wait(node, cq, &end, 1, SOON), 1);
        CHECK(end.status == 0 && end.user_data == i && end.length == 8 && before[i] == i, 1);
    }
    CHECK(ask(WORD, region, 8, 0, 0), MANY);
    add.result = NULL;
    CHECK(motet_region_atomic_start(node, &at, &add, NULL, &operation), 0);
    if (operation != 0)
        CHECK(motet_operation_wait(node, operation, SOON, NULL), 0);
    CHECK(motet_region_get(node, &at, &last, 8, SOON), 0);
    CHECK(last, MANY + 1);
    CHECK(motet_cq_free(node, cq), 0);

    /* Invalid atomics are refused at once. */
    struct motet_atomic bad = add;
    bad.size--;
    CHECK(motet_region_atomic(node, &at, &bad, SOON), -EINVAL);
    CHECK(motet_region_atomic(node, &at, NULL, SOON), -EINVAL);
    CHECK(motet_region_atomic(node, NULL, &add, SOON), -EINVAL);
#define BAD(field, value)                                                       \
    bad = add;                                                                  \
    bad.field = value;                                                          \
    CHECK(motet_region_atomic(node, &at, &bad, SOON), -EINVAL);                 \
    CHECK(motet_region_atomic_start(node, &at, &bad, NULL, &operation), -EINVAL)
    BAD(operation, 19);
    BAD(operation, UINT32_MAX);
    BAD(type, 10);
    BAD(count, 0);
    BAD(reserved, 1);
    BAD(operand, NULL);
    BAD(operation, MOTET_ATOMIC_READ);       /* without a result */
    BAD(operation, MOTET_ATOMIC_SWAP_EQUAL); /* without a compare value */
    CHECK(motet_region_atomic_start(node, &at, &add, NULL, NULL), -EINVAL);
}

static void arguments(void)
{
    struct motet_remote_address at = place(PLAIN, 0), bad = at;
    motet_operation operation = 1;
    motet_mapping mapping = 1;
    struct motet_region_mapping mapped = MOTET_INIT(struct motet_region_mapping);
    struct motet_region_limits limits = MOTET_INIT(struct motet_region_limits);
    struct motet_completion_options options = options_of(77, 0, 0);
    bad.size--;
    CHECK(motet_region_put(node, NULL, buffer, 1, SOON), -EINVAL);
    CHECK(motet_region_put(node, &bad, buffer, 1, SOON), -EINVAL);
    CHECK(motet_region_put(node, &at, NULL, 1, SOON), -EINVAL);
    CHECK(motet_region_put(node, &at, buffer, SIZE_MAX, SOON), -EINVAL);
    CHECK(motet_region_get(node, &at, NULL, 1, SOON), -EINVAL);
    CHECK(motet_region_get(node, NULL, buffer, 1, SOON), -EINVAL);
    CHECK(motet_region_put_start(node, &at, buffer, 1, NULL, NULL), -EINVAL);
    CHECK(motet_region_put_start(node, &at, buffer, 1, &options, &operation), -EBADF);
    CHECK(operation, 0);
    CHECK(motet_region_get_start(node, &at, buffer, 1, &options, &operation), -EBADF);
    CHECK(motet_region_get_start(node, &at, buffer, 1, NULL, NULL), -EINVAL);
    CHECK(motet_region_fence_start(node, link_, &options, &operation), -EBADF);
    CHECK(motet_region_fence_start(node, link_, NULL, NULL), -EINVAL);
    CHECK(motet_region_open(node, link_, keys[POOL], SOON, NULL, &mapping), -EINVAL);
    CHECK(motet_region_open(node, link_, keys[POOL], SOON, &mapped, NULL), -EINVAL);
    CHECK(mapping, 0);
    CHECK(motet_link_region_limits(node, link_, NULL), -EINVAL);
    CHECK(motet_link_region_limits(node, 12345, &limits), -EBADF);
    bad = at;
    bad.link = 12345;
    CHECK(motet_region_put(node, &bad, buffer, 1, SOON), -EBADF);
    CHECK(motet_region_put(node, &bad, buffer, 1, 0), -EBADF);
    CHECK(motet_region_put_start(node, &bad, buffer, 1, NULL, &operation), -EBADF);
    CHECK(motet_region_get(node, &bad, buffer, 1, SOON), -EBADF);
    CHECK(motet_region_fence(node, 12345, SOON), -EBADF);
    CHECK(motet_region_open(node, 12345, keys[POOL], SOON, &mapped, &mapping), -EBADF);
    CHECK(motet_region_put(node, &at, buffer, 1, 0), -EAGAIN);
    CHECK(motet_region_open(node, link_, keys[POOL], 0, &mapped, &mapping), -EAGAIN);
    CHECK(motet_region_close(node, 12345), -EBADF);
    CHECK(motet_region_close(node, 0), -EBADF);
    CHECK(motet_region_is_valid(node, 12345), -EBADF);

    CHECK(motet_link_region_limits(node, link_, &limits), 0);
    CHECK(limits.put_size >= 256 && limits.atomic_size >= 256 && limits.fetch_size >= 256, 1);
    /* A row that is too long for one packet, or for one reply. */
    struct motet_atomic row = MOTET_INIT(struct motet_atomic);
    row.type = MOTET_ATOMIC_U8;
    row.operand = buffer;
    row.count = (uint32_t)limits.atomic_size + 1;
    CHECK(motet_region_atomic(node, &at, &row, SOON), -E2BIG);
    row.count--;
    CHECK(motet_region_atomic(node, &at, &row, SOON), 0);
    row.result = buffer;
    row.count = (uint32_t)limits.fetch_size + 1;
    CHECK(motet_region_atomic(node, &at, &row, SOON), -E2BIG);
    /* The bytes of a put of put_size are free at once. */
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    at = place(PLAIN, 1000);
    fill(buffer, limits.put_size, 6);
    CHECK(motet_region_put_start(node, &at, buffer, limits.put_size, NULL, &operation), 0);
    memset(buffer, 0, limits.put_size);
    CHECK(motet_operation_wait(node, operation, SOON, &end), 0);
    CHECK(end.status, 0);
    CHECK(ask(FILLED, PLAIN, 1000, limits.put_size, 6), 1);
}

/* Loads and stores by address, and calls on the open region. */
static motet_mapping open_regions(int shm, volatile unsigned char **base)
{
    struct motet_region_mapping mapped = MOTET_INIT(struct motet_region_mapping);
    motet_mapping mapping, again, readable;
    int seen = shm ? 0 : -EOPNOTSUPP;
    CHECK(motet_region_open(node, link_, keys[PLAIN], SOON, &mapped, &mapping), -EOPNOTSUPP);
    CHECK(mapping, 0);
    CHECK(motet_region_open(node, link_, keys[POOL_READ], SOON, &mapped, &readable), seen);
    if (!shm)
        return 0;
    CHECK(mapped.length == 100 && mapped.rights == MOTET_REGION_GET && ((unsigned char *)mapped.base)[99] == 0, 1);
    CHECK(motet_region_open(node, link_, keys[POOL], SOON, &mapped, &mapping), 0);
    CHECK(mapped.length == LENGTH && mapped.rights == MOTET_REGION_ALL && mapped.size == sizeof mapped, 1);
    CHECK(motet_region_open(node, link_, keys[POOL], 0, &mapped, &again), 0); /* it is open already */
    CHECK(again != mapping, 1);
    CHECK(motet_region_close(node, again), 0);
    CHECK(motet_region_close(node, again), -EBADF);
    CHECK(motet_region_is_valid(node, again), -EBADF);
    CHECK(motet_loan_free(node, mapping), -EBADF); /* a handle of one kind is never one of another */
    CHECK(motet_message_release(node, mapping), -EBADF);
    CHECK(motet_region_is_valid(node, mapping), 1);
    CHECK(motet_region_close(node, readable), 0);
    *base = mapped.base;
    fill((unsigned char *)mapped.base + 5, 70000, 8);
    CHECK(ask(FILLED, POOL, 5, 70000, 8), 1);
    atomic_fetch_add((_Atomic uint64_t *)((char *)mapped.base + 80000), 40);
    struct motet_remote_address at = place(POOL, 80000);
    uint64_t two = 2, old = 0;
    struct motet_atomic add = MOTET_INIT(struct motet_atomic);
    add.type = MOTET_ATOMIC_U64;
    add.count = 1;
    add.operand = &two;
    add.result = &old;
    uint64_t was = (uint64_t)ask(WORD, POOL, 80000, 0, 0);
    CHECK(motet_region_atomic(node, &at, &add, 0), 0); /* works with deadline 0 */
    CHECK(old == was && (uint64_t)ask(WORD, POOL, 80000, 0, 0) == was + 2, 1);
    return mapping;
}

/* The owner revokes regions during many accesses. */
static void revocation(int shm, motet_mapping mapping, volatile unsigned char *base)
{
    struct motet_remote_address at = place(PLAIN, 0);
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    motet_cq cq;
    motet_operation operation;
    int begun = 0;
    CHECK(motet_cq_new(node, &cq), 0);
    for (int i = 0; i < MANY; i++) {
        struct motet_completion_options options = options_of(cq, (uint64_t)i, 0);
        at = place(PLAIN, (uint64_t)i * 4096);
        begun += motet_region_put_start(node, &at, buffer + i * 4096, 200000, &options, &operation) == 0;
    }
    CHECK(begun > 0, 1);
    CHECK(ask(REVOKE, PLAIN, 0, 0, 0), 0);
    for (int i = 0; i < begun; i++) {
        CHECK(motet_cq_wait(node, cq, &end, 1, SOON), 1);
        CHECK(end.status == 0 || end.status == -EACCES, 1);
    }
    CHECK(motet_cq_free(node, cq), 0);
    CHECK(ask(FILLED, PLAIN, 0, LENGTH, 77), 1); /* the owner has written it after the revocation */
    CHECK(motet_region_put(node, &at, buffer, 8, SOON), -EACCES);
    CHECK(motet_region_get(node, &at, buffer, 100000, SOON), -EACCES);
    CHECK(ask(FILLED, PLAIN, 0, LENGTH, 77), 1);

    CHECK(ask(REVOKE, POOL, 0, 0, 0), 0);
    at = place(POOL, 0);
    CHECK(motet_region_put(node, &at, buffer, 8, SOON), -EACCES);
    if (shm) {
        CHECK(motet_region_is_valid(node, mapping), 0);
        base[LENGTH - 1] = 1; /* memory that no other process uses */
        CHECK(base[LENGTH - 1], 1);
        CHECK(motet_region_close(node, mapping), 0);
        CHECK(motet_region_close(node, mapping), -EBADF);
    }
}

#include "meet.h"

/* A key with one wrong bit ends its link and no other; the regions are unchanged. */
static void guesses(void)
{
    static const size_t lengths[] = { 8, 70000 };
    struct motet_atomic add = MOTET_INIT(struct motet_atomic);
    struct motet_region_mapping mapped = MOTET_INIT(struct motet_region_mapping);
    uint64_t one = 1;
    motet_mapping mapping;
    add.operation = MOTET_ATOMIC_SUM;
    add.type = MOTET_ATOMIC_U64;
    add.count = 1;
    add.operand = &one;
    struct motet_remote_address right = place(PLAIN, 0), pool = place(POOL, 0);
    fill(buffer, LENGTH, 5);
    CHECK(motet_region_put(node, &right, buffer, LENGTH, SOON), 0);
    CHECK(motet_region_put(node, &pool, buffer, LENGTH, SOON), 0);
    memset(buffer, 0xee, LENGTH);
    for (int bit = 0; bit < 64; bit += 3) {
        struct motet_remote_address wrong = place(bit % 2 ? PLAIN : POOL, 0);
        size_t length = lengths[bit % 4 / 2];
        wrong.key ^= UINT64_C(1) << bit;
        CHECK(motet_link_open(node, met_at, SOON, &wrong.link), 0);
        int result = bit % 5 == 0   ? motet_region_get(node, &wrong, buffer, length, SOON)
                     : bit % 5 == 1 ? motet_region_atomic(node, &wrong, &add, SOON)
                     : bit % 5 == 2 ? motet_region_open(node, wrong.link, wrong.key, SOON, &mapped, &mapping)
                                    : motet_region_put(node, &wrong, buffer, length, SOON);
        CHECK(result == -ECONNRESET || (bit % 5 == 2 && result == -EOPNOTSUPP), 1);
        if (result == -ECONNRESET) CHECK(motet_region_get(node, &wrong, buffer, 8, SOON), -ECONNRESET);
        CHECK(motet_link_close(node, wrong.link), 0);
    }
    CHECK(motet_region_get(node, &right, buffer, 100, SOON), 0);
    CHECK(is_filled(buffer, 100, 5), 1);
    CHECK(ask(FILLED, PLAIN, 0, LENGTH, 5), 1);
    CHECK(ask(FILLED, POOL, 0, LENGTH, 5), 1);
}

static void between(const char *way, uint64_t from)
{
    first = from;
    int shm = strcmp(way, "shm") == 0, status;
    volatile unsigned char *base = NULL;
    pid_t owner = meet(way, "regions");
    arguments();
    puts_and_gets(PLAIN);
    puts_and_gets(POOL);
    refusals(PLAIN, PLAIN_READ);
    refusals(POOL, POOL_READ);
    guesses();
    ends(PLAIN, 0);
    atomics(PLAIN);
    motet_mapping mapping = open_regions(shm, &base);
    puts_and_gets(POOL);
    refusals(POOL, POOL_READ);
    ends(POOL, shm);
    atomics(POOL);
    revocation(shm, mapping, base);
    struct question bye = { .what = BYE };
    CHECK(motet_message_send(node, channel, 0, &bye, sizeof bye, SOON), 0);
    CHECK(waitpid(owner, &status, 0), owner);
    CHECK(status, 0);
    CHECK(motet_node_close(node), 0);
}

/* An owner that is stopped, and then killed. */
static void killed_owner(const char *way)
{
    volatile unsigned char *base = NULL;
    int shm = strcmp(way, "shm") == 0, status, begun;
    uint64_t word = 1;
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    struct motet_atomic add = MOTET_INIT(struct motet_atomic);
    motet_cq cq;
    motet_operation operation;
    pid_t owner = meet(way, "regions");
    motet_mapping mapping = open_regions(shm, &base);
    struct question sleep = { .what = SLEEP };
    struct motet_remote_address at = place(PLAIN, 0), pooled = place(POOL, 0);
    CHECK(motet_message_send(node, channel, 0, &sleep, sizeof sleep, SOON), 0);
    CHECK(waitpid(owner, &status, WUNTRACED), owner);
    CHECK(WIFSTOPPED(status), 1);
    add.type = MOTET_ATOMIC_U64;
    add.count = 1;
    add.operand = &word;
    if (shm) { /* open regions need no help of the owner; packets would wait for it */
        CHECK(motet_region_put(node, &pooled, "8 bytes", 8, 0), 0);
        CHECK(motet_region_get(node, &pooled, buffer, 8, 0), 0);
        CHECK(memcmp(buffer, "8 bytes", 8), 0);
    }
    CHECK(motet_region_put(node, &at, &word, 8, in(0.01)), -ETIMEDOUT);
    CHECK(motet_region_get(node, &at, &word, 8, in(0.01)), -ETIMEDOUT);
    CHECK(motet_region_get(node, &at, buffer, 100000, in(0.01)), -ETIMEDOUT);
    CHECK(motet_region_atomic(node, &at, &add, in(0.01)), -ETIMEDOUT);
    CHECK(motet_region_fence(node, link_, in(0.01)), -ETIMEDOUT);
    CHECK(motet_cq_new(node, &cq), 0);
    int most = 0;
    for (;; most++) {
        struct motet_completion_options options = options_of(cq, (uint64_t)most, 0);
        begun = most % 2 ? motet_region_get_start(node, &at, buffer + most * 1000, 1000, &options, &operation)
                         : motet_region_put_start(node, &at, buffer + most * 1000, 100000, &options, &operation);
        if (begun != 0)
            break;
    }
    CHECK(begun, -EAGAIN); /* the limit of outstanding accesses */
    CHECK(most > 8 && most <= 256, 1);
    CHECK(motet_region_put(node, &at, &word, 8, in(0.01)), -ETIMEDOUT);
    kill(owner, SIGKILL);
    CHECK(waitpid(owner, &status, 0), owner);
    if (shm) { /* over TCP the peer may reconnect: the link ends later */
        for (int i = 0; i < most; i++) {
            CHECK(motet_cq_wait(node, cq, &end, 1, SOON), 1);
            CHECK(end.status, -ECONNRESET);
        }
        CHECK(motet_region_put(node, &at, &word, 8, SOON), -ECONNRESET);
        CHECK(motet_region_get_start(node, &at, buffer, 8, NULL, &operation), -ECONNRESET);
        CHECK(motet_region_fence(node, link_, SOON), -ECONNRESET);
        CHECK(motet_region_is_valid(node, mapping), 0);
        CHECK(motet_region_put(node, &pooled, &word, 8, SOON), -ECONNRESET);
        CHECK(base[0], '8'); /* mapped until it is closed */
        CHECK(motet_link_close(node, link_), 0);
        CHECK(motet_region_is_valid(node, mapping), 0);
        CHECK(motet_region_put(node, &at, &word, 8, SOON), -EBADF);
        CHECK(motet_cq_free(node, cq), 0);
        CHECK(motet_region_close(node, mapping), 0);
    }
    CHECK(motet_node_close(node), 0); /* with outstanding operations */
}

/* A peer that has opened a region and puts into another, and is stopped: the owner gets its memory back when the peer is killed. */
static void killed_user(void)
{
    char name[64];
    int status;
    void *base;
    struct motet_receive_mode mode = queue();
    snprintf(name, sizeof name, "regions-owner-%d", getpid());
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    int hold[2];
    CHECK(pipe(hold), 0);
    options.name = name;
    pid_t user = fork();
    if (user == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
        char go;
        struct motet_region_mapping mapped = MOTET_INIT(struct motet_region_mapping);
        motet_mapping mapping;
        motet_operation operation;
        CHECK(read(hold[0], &go, 1), 1);
        CHECK(motet_node_open(NULL, &node), 0);
        CHECK(motet_link_open(node, name, SOON, &link_), 0);
        CHECK(motet_channel_open(node, link_, SERVICE, &mode, SOON, &channel), 0);
        CHECK(motet_message_receive(node, channel, keys, sizeof keys, SOON, NULL), 0);
        CHECK(motet_region_open(node, link_, keys[POOL], SOON, &mapped, &mapping), 0);
        struct motet_remote_address at = place(PLAIN, 0);
        CHECK(motet_region_put_start(node, &at, buffer, LENGTH, NULL, &operation), 0);
        CHECK(motet_message_send(node, channel, 0, "", 1, SOON), 0);
        raise(SIGSTOP);
        _exit(0);
    }
    CHECK(motet_node_open(&options, &node), 0);
    CHECK(motet_service_open(node, SERVICE, &mode), 0);
    CHECK(motet_region_register(node, mine.bytes, LENGTH, MOTET_REGION_ALL, &keys[PLAIN]), 0);
    CHECK(motet_region_alloc(node, LENGTH, MOTET_REGION_ALL, &base, &keys[POOL]), 0);
    CHECK(write(hold[1], "!", 1), 1);
    CHECK(motet_channel_accept(node, SERVICE, SOON, &channel), 0);
    CHECK(motet_message_send(node, channel, 0, keys, sizeof keys, SOON), 0);
    CHECK(motet_message_receive(node, channel, buffer, 1, SOON, NULL), 0);
    CHECK(waitpid(user, &status, WUNTRACED), user);
    CHECK(motet_region_revoke(node, keys[POOL], in(0.01)), -ETIMEDOUT);
    CHECK(motet_region_revoke(node, keys[POOL], 0), -EAGAIN);
    kill(user, SIGKILL);
    CHECK(waitpid(user, &status, 0), user);
    CHECK(motet_region_revoke(node, keys[POOL], SOON), 0);
    CHECK(motet_region_revoke(node, keys[POOL], SOON), -EBADF);
    CHECK(motet_region_revoke(node, keys[PLAIN], SOON), 0);
    CHECK(((volatile char *)base)[0], 0); /* zeros, and no fault */
    close(hold[0]);
    close(hold[1]);

    /* Invalid calls of the owner. */
    motet_key key = 1;
    CHECK(motet_region_register(node, NULL, 8, MOTET_REGION_ALL, &key), -EINVAL);
    CHECK(key, 0);
    CHECK(motet_region_register(node, buffer, 0, MOTET_REGION_ALL, &key), -EINVAL);
    CHECK(motet_region_register(node, buffer, SIZE_MAX, MOTET_REGION_ALL, &key), -EINVAL);
    CHECK(motet_region_register(node, buffer, 8, 0, &key), -EINVAL);
    CHECK(motet_region_register(node, buffer, 8, 8, &key), -EINVAL);
    CHECK(motet_region_register(node, buffer, 8, MOTET_REGION_GET, NULL), -EINVAL);
    CHECK(motet_region_register(node, mine.bytes + 1, 8, MOTET_REGION_ATOMIC, &key), -EINVAL);
    CHECK(motet_region_register(node, mine.bytes + 1, 8, MOTET_REGION_GET | MOTET_REGION_PUT, &key), 0);
    CHECK(motet_region_revoke(node, key, 0), 0);
    CHECK(motet_region_revoke(node, key, 0), -EBADF);
    CHECK(motet_region_register_iova(node, buffer, 8, UINT64_MAX - 6, MOTET_REGION_ALL, &key), -ENOBUFS);
    CHECK(motet_region_register_iova(node, NULL, 8, 8, MOTET_REGION_ALL, &key), -EINVAL);
    CHECK(motet_region_register_iova(node, mine.bytes + 1, 8, 8, MOTET_REGION_ATOMIC, &key), 0);
    CHECK(motet_region_revoke(node, key, 0), 0);
    CHECK(motet_region_revoke(node, 0, SOON), -EBADF);
    CHECK(motet_region_revoke(node, UINT64_MAX, SOON), -EBADF);
    CHECK(motet_region_alloc(node, 0, MOTET_REGION_ALL, &base, &key), -EINVAL);
    CHECK(motet_region_alloc(node, 8, 16, &base, &key), -EINVAL);
    CHECK(motet_region_alloc(node, 8, MOTET_REGION_ALL, NULL, &key), -EINVAL);
    CHECK(motet_region_alloc(node, 8, MOTET_REGION_ALL, &base, NULL), -EINVAL);
    CHECK(motet_region_alloc(node, (size_t)1 << 60, MOTET_REGION_ALL, &base, &key), -ENOBUFS);
    CHECK(base == NULL && key == 0, 1);
    CHECK(motet_node_close(node), 0);
}

int main(void)
{
    between("shm", 0);
    between("tcp", 0);
    between("shm", (uint64_t)(uintptr_t)mine.bytes);
    between("tcp", UINT64_MAX - 7 - LENGTH); /* the last byte is close to the largest iova */
    first = 0;
    killed_owner("shm");
    killed_owner("tcp");
    killed_user();
    puts("regions are what they say");
    return 0;
}
