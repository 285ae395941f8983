/* handles.c [SEED [CALLS]]: random calls with handles that are valid, stale, of another node, off by one bit or random, in any order. Checks only that they
 * return 0, a small count or a negative errno, and that the process survives. */
#include "check.h"

#include <sched.h>

enum { KEPT = 64, NODES = 2 };

static uint64_t state;
static uint64_t kept[KEPT];
static motet_node nodes[NODES];
static unsigned long good, bad;
static int over, file;
/* Memory that operations may use at any time; its contents do not matter. */
static unsigned char memory[1 << 20];

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1d;
}

static uint64_t below(uint64_t n) { return draw() % n; }

static void keep(uint64_t handle)
{
    if (handle)
        kept[below(KEPT)] = handle;
}

/* A handle of any kind, valid or not. */
static uint64_t some(void)
{
    uint64_t handle = kept[below(KEPT)];
    switch (below(8)) {
    case 0: return draw();
    case 1: return handle ^ (UINT64_C(1) << below(64));
    case 2: return handle + 1;
    case 3: return handle >> 32;
    case 4: return below(4);
    default: return handle;
    }
}

static motet_node node(void) { return below(10) ? nodes[below(NODES)] : some(); }

static void is_sane_number(long long result)
{
    if (result < -4095 || result > 1 << 20) {
        fprintf(stderr, "handles: a call returned %lld\n", result);
        exit(1);
    }
}

static void is_sane(long long result)
{
    is_sane_number(result);
    *(result < 0 ? &bad : &good) += 1;
}

static int on_message(motet_node at, const struct motet_arrival *arrival, void *user)
{
    (void)at;
    (void)user;
    keep(arrival->message);
    keep(arrival->channel);
    return (int)below(2);
}

static void work(motet_node at, void *user)
{
    (void)at;
    (void)user;
}

static void step(void)
{
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    struct motet_receive_mode mode = MOTET_INIT(struct motet_receive_mode);
    struct motet_source source = from(below(2) ? some() : 0, some(), below(4), below(2) ? 0 : draw());
    struct motet_completion_options options = options_of(below(2) ? some() : 0, draw(), (uint32_t)below(2));
    struct motet_outgoing outgoing = message(some(), below(4), (uint32_t)below(4));
    struct motet_link_state info = MOTET_INIT(struct motet_link_state);
    struct motet_cq_counters counts = MOTET_INIT(struct motet_cq_counters);
    struct iovec body[3] = { { memory, below(64) }, { memory + 64, below(20000) }, { memory, below(300000) } };
    const struct motet_completion_options *told_so = below(2) ? &options : NULL;
    uint64_t out = 0, several[4] = { some(), some(), some(), some() };
    char text[100];
    mode.kind = (uint32_t)below(5);
    mode.target = some();
    outgoing.headers = memory;
    outgoing.headers_length = (uint32_t)below(300);
    struct motet_remote_address at = MOTET_INIT(struct motet_remote_address);
    struct motet_atomic atomic = MOTET_INIT(struct motet_atomic);
    struct motet_region_mapping mapped = MOTET_INIT(struct motet_region_mapping);
    struct motet_region_limits limits = MOTET_INIT(struct motet_region_limits);
    void *address;
    at.link = some();
    at.key = some();
    at.offset = below(4) ? below(100) * 8 : draw();
    atomic.operation = (uint32_t)below(20);
    atomic.type = (uint32_t)below(11);
    atomic.count = (uint32_t)below(40);
    atomic.operand = memory;
    atomic.compare = memory + 512;
    atomic.result = below(2) ? memory + 1024 : NULL;
    switch (below(62)) {
    case 0: is_sane(motet_node_name(node(), text, below(sizeof text))); break;
    case 1: is_sane(motet_node_address(node(), text, below(sizeof text))); break;
    case 2: is_sane(motet_node_descriptor(node())); break;
    case 3: is_sane(motet_node_arm(node())); break;
    case 4: is_sane(motet_node_defer(node(), work, NULL)); break;
    case 5: is_sane(motet_link_info(node(), some(), &info)); break;
    case 6: is_sane(motet_links(node(), several, below(5))); break;
    case 7: is_sane(below(50) ? 0 : motet_link_close(node(), some())); break;
    case 8: is_sane(motet_service_open(node(), below(4), &mode)); break;
    case 9: is_sane(below(4) ? 0 : motet_service_close(node(), below(4))); break;
    case 10:
    case 11: is_sane(motet_channel_accept(node(), below(4), 0, &out)); break;
    case 12: is_sane(motet_channel_open(node(), some(), below(4), &mode, in(0.001), &out)); break;
    case 13: is_sane(below(8) ? 0 : motet_channel_finish(node(), some())); break;
    case 14: is_sane(below(4) ? 0 : motet_channel_close(node(), some())); break;
    case 15: is_sane(motet_context_new(node(), &out)); break;
    case 16: is_sane(motet_context_free(node(), some())); break;
    case 17: is_sane(motet_operation_test(node(), some(), &end)); break;
    case 18: is_sane(motet_operation_wait(node(), some(), 0, &end)); break;
    case 19: is_sane(motet_operation_wait_any(node(), several, 1 + (unsigned)below(4), 0, &end)); break;
    case 20: is_sane(motet_operation_cancel(node(), some())); break;
    case 21: is_sane(motet_cq_new(node(), &out)); break;
    case 22: is_sane(motet_cq_free(node(), some())); break;
    case 23: is_sane(motet_cq_wait(node(), some(), &end, 1, 0)); break;
    case 24: is_sane(motet_cq_counts(node(), some(), &counts)); break;
    case 25: is_sane(motet_cq_wait_counts(node(), some(), below(3), below(3), 0)); break;
    case 26: is_sane(motet_cq_signal(node(), some())); break;
    case 27: is_sane(motet_message_send(node(), some(), below(4), memory, below(100000), in(0.0005))); break;
    case 28: is_sane(motet_message_sendv(node(), &outgoing, body, (int)below(4), in(0.0005))); break;
    case 29: is_sane(motet_message_inject(node(), some(), below(4), memory, below(5000), 0)); break;
    case 30:
    case 31: is_sane(motet_message_send_start(node(), &outgoing, body, (int)below(4), told_so, &out)); break;
    case 32: is_sane(motet_message_receive(node(), some(), memory, below(100000), 0, &end)); break;
    case 33: is_sane(motet_message_receive_from(node(), &source, memory, below(100000), 0, &end)); break;
    case 34: is_sane(motet_message_post(node(), &source, memory, below(100000), told_so, &out)); break;
    case 35: is_sane(motet_message_peek(node(), &source, &end)); break;
    case 36: is_sane(motet_message_claim(node(), &source, &end, &out)); break;
    case 37: is_sane(motet_message_accept(node(), some(), memory, below(100000), told_so, &out)); break;
    case 38: is_sane(motet_message_discard(node(), some())); break;
    case 40: is_sane(motet_region_register(node(), memory, below(sizeof memory), (uint32_t)below(9), &out)); break;
    case 41: is_sane(motet_region_alloc(node(), below(100000), (uint32_t)below(9), &address, &out)); break;
    case 42: is_sane(below(4) ? 0 : motet_region_revoke(node(), some(), in(0.0005))); break;
    case 43: is_sane(motet_link_region_limits(node(), some(), &limits)); break;
    case 44: is_sane(motet_region_put(node(), &at, memory, below(100), in(0.0005))); break;
    case 45: is_sane(motet_region_get(node(), &at, memory, below(100000), in(0.0005))); break;
    case 46: is_sane(motet_region_atomic(node(), &at, &atomic, in(0.0005))); break;
    case 47: is_sane(motet_region_put_start(node(), &at, memory, below(100000), told_so, &out)); break;
    case 48: is_sane(motet_region_get_start(node(), &at, memory, below(100000), told_so, &out)); break;
    case 49: is_sane(motet_region_atomic_start(node(), &at, &atomic, told_so, &out)); break;
    case 50: is_sane(motet_region_fence(node(), some(), in(0.0005))); break;
    case 51: is_sane(motet_region_fence_start(node(), some(), told_so, &out)); break;
    case 52: is_sane(motet_region_open(node(), some(), some(), in(0.001), &mapped, &out)); break;
    case 53: is_sane(below(2) ? motet_region_close(node(), some()) : motet_region_is_valid(node(), some())); break;
    case 54: is_sane(motet_loan_alloc(node(), below(100000), &address, &out)); break;
    case 55: is_sane(motet_loan_free(node(), some())); break;
    case 56: is_sane(motet_loan_send(node(), &outgoing, some(), below(100000), told_so, in(0.0005), below(2) ? &out : NULL)); break;
    case 57: is_sane(motet_message_receive_in_place(node(), &source, below(100000), 0, &end)); break;
    case 58:
        is_sane(below(2) ? motet_message_post_in_place(node(), &source, below(100000), told_so, &out)
                         : motet_message_accept_in_place(node(), some(), below(100000), told_so, &out));
        break;
    case 59: is_sane(motet_message_release(node(), some())); break;
    case 60: /* no file, a file that is too short, and a valid one */
        is_sane(motet_region_register_file(node(), below(4) ? file : (int)below(2) - 1, below(3000), below(3000), (uint32_t)below(9), &out));
        break;
    case 61: is_sane(below(4) ? motet_region_sync(node(), some(), below(100), below(100)) : ftruncate(file, (off_t)below(6000))); break;
    case 39: is_sane(below(2) ? motet_handler_new(node(), on_message, NULL, &out) : motet_handler_free(node(), some())); break;
    }
    keep(out);
    keep(end.channel);
    keep(end.loaned);
}

static void open_node(int at)
{
    motet_node opened;
    CHECK(motet_node_open(NULL, &opened), 0);
    __atomic_store_n(&nodes[at], opened, __ATOMIC_SEQ_CST);
}

/* Reopens what was closed: nodes, a link between them, services. */
static void mend(void)
{
    char name[100];
    motet_link link;
    motet_channel channel;
    struct motet_receive_mode mode = queue();
    for (int i = 0; i < NODES; i++)
        if (motet_node_progress(nodes[i]) == -EBADF)
            open_node(i);
    CHECK(motet_node_name(nodes[1], name, sizeof name) > 0, 1);
    struct driver driver;
    start_driver(&driver, nodes[1]);
    if (motet_link_open(nodes[0], name, SOON, &link) == 0) {
        keep(link);
        CHECK(motet_service_open(nodes[1], 1, &mode), 0);
        if (motet_channel_open(nodes[0], link, 1, &mode, SOON, &channel) == 0)
            keep(channel);
    }
    stop_driver(&driver);
}

/* Makes progress for a node, or for the one that replaced it. */
static void *progress(void *of)
{
    motet_node *one = of;
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
        is_sane_number(motet_node_progress(__atomic_load_n(one, __ATOMIC_SEQ_CST)));
        sched_yield();
    }
    return NULL;
}

int main(int argc, char **argv)
{
    unsigned long calls = argc > 2 ? strtoul(argv[2], NULL, 0) : 20000;
    state = (argc > 1 ? strtoull(argv[1], NULL, 0) : 1) * 0x9e3779b97f4a7c15 | 1;
    pthread_t threads[NODES];
    FILE *scratch = tmpfile();
    CHECK(scratch != NULL, 1);
    file = fileno(scratch);
    for (int i = 0; i < NODES; i++)
        CHECK(pthread_create(&threads[i], NULL, progress, &nodes[i]), 0);
    for (unsigned long i = 0; i < calls; i++) {
        if (i % 1000 == 0) {
            if (i % 5000 == 4000)
                CHECK(motet_node_close(nodes[below(NODES)]), 0);
            mend();
        }
        step();
    }
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < NODES; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < NODES; i++)
        CHECK(motet_node_close(nodes[i]), 0);
    printf("%lu calls: %lu did something, %lu did not\n", calls, good, bad);
    return good < calls / 20 || bad < calls / 20;
}
