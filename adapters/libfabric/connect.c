/* connect.c: how two endpoints connect.
 *
 * For each peer and kind of message there is one channel in each direction, opened by the side that receives on it. An endpoint that posts a
 * receive for one peer therefore has the channel whether or not the peer has sent, and receives from one peer and from any keep the order in
 * which they were posted.
 *
 *                 sender                               receiver
 *                   | link; channel to the hello service  |
 *                   | "I am A, open me a channel" ------> |
 *                   | <------ channel to the service of this kind; the receiver matches its messages
 *                   | <------ "I am B" on it              |
 *                   | messages -------------------------> |
 *
 * A receive for one peer starts with the second step. A hello arrives in a handler, which queues it (pending_hellos) for the next call that
 * holds the lock; while the program makes no calls the progress thread reads it (progress_gate.c).
 *
 * A hello carries the secrets of both addresses, which are given only to the processes that are to communicate. A peer that does not know
 * this endpoint's secret loses the link, and nothing of its hello is kept. */
#include "fabric.h"

#include <arpa/inet.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#define HELLO_MAGIC 0x314d7447u
#define MAX_PENDING_HELLOS 65536 /* further hellos are dropped */
#define PEER_TIMEOUT_NS ((int64_t)120 * 1000000000)      /* for a peer that makes no progress */
#define CONNECT_TIEBREAK_NS ((int64_t)15 * 1000000)       /* how long the node with the greater number waits for the other's connect */
#define FIRST_ANSWER_TIMEOUT_NS ((int64_t)200 * 1000000)  /* of the first request for a channel; a peer that makes no progress answers after 10 to 20 ms */
#define HELLO_TIMEOUT_NS ((int64_t)30 * 1000000)          /* for the hello on a new link; waited for once for each link */

enum hello_step { HELLO_REQUEST = 1, HELLO_OPENED = 2 };

struct hello {
    uint32_t magic;
    uint16_t step;   /* enum hello_step */
    uint16_t kind;   /* enum msg_kind */
    uint64_t secret; /* of the destination's address */
    struct address from;
};

struct pending_hello {
    struct pending_hello *next;
    struct endpoint *endpoint;
    motet_channel channel;
    struct hello hello;
};

/* Services of an endpoint: one for each kind of message, and one for requests for channels. */
enum { HELLO_SERVICE = KINDS, SERVICES };
static uint64_t service(uint16_t endpoint, unsigned number) { return (uint64_t)endpoint << 8 | number; }

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t peer_deadline(void) { return now_ns() + PEER_TIMEOUT_NS; }

static struct address address_of(const struct endpoint *endpoint)
{
    struct address address = endpoint->domain->address;
    address.endpoint = endpoint->index;
    return address;
}

/* ---------------------------------------------------------------- peers */

static struct peer *peer_of(struct endpoint *endpoint, const struct address *address)
{
    struct peer *peer = hash_map_find(&endpoint->by_address, address_key(address));
    if (peer) return memcmp(&peer->address, address, sizeof *address) == 0 ? peer : NULL;
    if (!(peer = calloc(1, sizeof *peer))) return NULL;
    peer->address = *address;
    peer->source = endpoint->av ? av_find(endpoint->av, address) : FI_ADDR_NOTAVAIL;
    if (hash_map_put(&endpoint->by_address, address_key(address), peer) != 0) {
        free(peer);
        return NULL;
    }
    peer->next = endpoint->peers;
    endpoint->peers = peer;
    return peer;
}

struct peer *peer_at_slow(struct endpoint *endpoint, fi_addr_t at)
{
    struct av *av = endpoint->av;
    if (!av || at >= av->count || av->entries[at].magic == 0) return NULL;
    if (at >= endpoint->peers_by_addr_count) {
        struct peer **larger = realloc(endpoint->peers_by_addr, av->count * sizeof *larger);
        if (!larger) return NULL;
        memset(larger + endpoint->peers_by_addr_count, 0, (av->count - endpoint->peers_by_addr_count) * sizeof *larger);
        endpoint->peers_by_addr = larger;
        endpoint->peers_by_addr_count = av->count;
    }
    struct peer *peer = peer_of(endpoint, &av->entries[at]);
    if (peer && peer->source == FI_ADDR_NOTAVAIL) peer->source = at;
    return endpoint->peers_by_addr[at] = peer;
}

fi_addr_t peer_source(struct endpoint *endpoint, motet_channel channel)
{
    struct peer *peer = hash_map_find(&endpoint->by_channel, channel);
    if (!peer) return FI_ADDR_NOTAVAIL;
    if (peer->source == FI_ADDR_NOTAVAIL && endpoint->av) peer->source = av_find(endpoint->av, &peer->address);
    return peer->source;
}

/* ---------------------------------------------------------------- connecting */

/* The value of a link in domain->links: this constant for a peer's link, otherwise the time at which it was first seen. */
static void *const KNOWN_PEER_LINK = (void *)1;

/* Records that a link belongs to a peer. The first one is used; there is a second one where both sides have connected. */
static void record_peer_link(struct endpoint *endpoint, struct peer *peer, motet_link link)
{
    if (!peer->link) peer->link = link;
    hash_map_put(&endpoint->domain->links, link, KNOWN_PEER_LINK); /* without memory the link counts as unidentified and is waited for once */
}

/* Drops the entries of links that are closed. */
static void prune_links(struct domain *domain, const motet_link *links, size_t count)
{
    struct hash_map kept = { 0 };
    for (size_t i = 0; i < count; i++) {
        void *known = hash_map_find(&domain->links, links[i]);
        if (known && hash_map_put(&kept, links[i], known) != 0) break;
    }
    hash_map_free(&domain->links);
    domain->links = kept;
}

/* Whether there is a link whose hello may still arrive: one that is younger than HELLO_TIMEOUT_NS and not recorded as a peer's. */
static bool has_unidentified_link(struct domain *domain)
{
    bool found = false;
    ssize_t count = motet_links(domain->node, domain->link_list, domain->link_list_capacity);
    if (count <= 0) return false;
    if ((size_t)count > domain->link_list_capacity) {
        motet_link *larger = realloc(domain->link_list, (size_t)count * 2 * sizeof *larger);
        if (!larger) return false;
        domain->link_list = larger;
        domain->link_list_capacity = (size_t)count * 2;
        count = motet_links(domain->node, domain->link_list, domain->link_list_capacity);
        if (count <= 0) return false;
        if ((size_t)count > domain->link_list_capacity) count = (ssize_t)domain->link_list_capacity;
    }
    for (ssize_t i = 0; i < count; i++) {
        void *known = hash_map_find(&domain->links, domain->link_list[i]);
        int64_t first_seen = known ? (int64_t)(intptr_t)known : now_ns();
        if (known == KNOWN_PEER_LINK) continue;
        if (!known && hash_map_put(&domain->links, domain->link_list[i], (void *)(intptr_t)first_seen) != 0) continue;
        found = found || now_ns() - first_seen < HELLO_TIMEOUT_NS;
    }
    if (domain->links.used > 2 * (size_t)count + 64) prune_links(domain, domain->link_list, (size_t)count);
    return found;
}

/* Two ranks often connect at the same moment, and one link is better than two. So the node with the greater address waits a moment for the other's
 * connect, which a hello announces. Either node connects only when it knows the peers of all its links, because a link without a hello may be
 * this peer's. */
static bool wait_for_peer_connect(struct endpoint *endpoint, struct peer *peer)
{
    struct domain *domain = endpoint->domain;
    const bool yields = peer->address.node < domain->address.node, same_node = peer->address.node == domain->address.node;
    for (int64_t start = now_ns(); !same_node; sched_yield()) {
        motet_node_progress(domain->node);
        hellos_read(domain);
        const int64_t elapsed = now_ns() - start;
        if (peer->link || elapsed > HELLO_TIMEOUT_NS || (elapsed > (yields ? CONNECT_TIEBREAK_NS : 0) && !has_unidentified_link(domain))) break;
    }
    return peer->link != 0;
}

int peer_connect(struct endpoint *endpoint, struct peer *peer)
{
    char text[160], ip[INET6_ADDRSTRLEN];
    if (peer->link || wait_for_peer_connect(endpoint, peer)) return 0;
    const struct address *at = &peer->address;
    int length = snprintf(text, sizeof text, "fi-%016llx", (unsigned long long)at->node);
    if (at->family && inet_ntop(at->family == 6 ? AF_INET6 : AF_INET, at->ip, ip, sizeof ip))
        snprintf(text + length, sizeof text - (size_t)length, at->family == 6 ? ",tcp://%016llx%016llx@[%s]:%u" : ",tcp://%016llx%016llx@%s:%u",
                 (unsigned long long)at->secret, (unsigned long long)at->answer, ip, at->port);
    motet_link link;
    int result = motet_link_open(endpoint->domain->node, text, peer_deadline(), &link);
    if (result == 0) record_peer_link(endpoint, peer, link);
    return -to_errno(result);
}

static int send_hello(struct endpoint *endpoint, struct peer *peer, motet_channel channel, enum hello_step step, enum msg_kind kind)
{
    struct hello hello = { HELLO_MAGIC, step, kind, peer->address.secret, address_of(endpoint) };
    return -to_errno(motet_message_inject(endpoint->domain->node, channel, 0, &hello, sizeof hello, peer_deadline()));
}

int peer_open_in(struct endpoint *endpoint, struct peer *peer, enum msg_kind kind)
{
    struct motet_receive_mode mode = MOTET_INIT(struct motet_receive_mode);
    motet_channel channel;
    if (peer->in[kind]) return 0;
    int result = peer_connect(endpoint, peer);
    if (result != 0 || peer->in[kind]) return result; /* a hello handled by peer_connect() may have opened it */
    mode.kind = MOTET_RECEIVE_TAGGED;
    mode.target = endpoint->contexts[kind];
    result = motet_channel_open(endpoint->domain->node, peer->link, service(peer->address.endpoint, kind), &mode, peer_deadline(), &channel);
    if (result != 0) return -to_errno(result);
    if ((result = hash_map_put(&endpoint->by_channel, channel, peer)) == 0) result = send_hello(endpoint, peer, channel, HELLO_OPENED, kind);
    if (result != 0) {
        motet_channel_close(endpoint->domain->node, channel);
        return result;
    }
    peer->in[kind] = channel;
    return 0;
}

static int request_channel(struct endpoint *endpoint, struct peer *peer, enum msg_kind kind)
{
    struct motet_receive_mode mode = MOTET_INIT(struct motet_receive_mode);
    int result = peer_connect(endpoint, peer);
    if (result != 0) return result;
    if (!peer->hello_channel) {
        mode.kind = MOTET_RECEIVE_QUEUE; /* the peer sends nothing on this channel */
        result = motet_channel_open(endpoint->domain->node, peer->link, service(peer->address.endpoint, HELLO_SERVICE), &mode, peer_deadline(),
                                    &peer->hello_channel);
        if (result != 0) return -to_errno(result);
    }
    if ((result = send_hello(endpoint, peer, peer->hello_channel, HELLO_REQUEST, kind)) == 0) peer->requested[kind] = true;
    return result;
}

/* The first call for a peer waits up to FIRST_ANSWER_TIMEOUT_NS, because some programs take a first FI_EAGAIN for a failure; later calls only check. */
int peer_open_out(struct endpoint *endpoint, struct peer *peer, enum msg_kind kind)
{
    int64_t deadline = 0;
    if (!peer->requested[kind] && !peer->out[kind]) {
        int result = request_channel(endpoint, peer, kind);
        if (result != 0) return result;
        deadline = now_ns() + FIRST_ANSWER_TIMEOUT_NS;
    }
    struct motet_link_state state = MOTET_INIT(struct motet_link_state);
    for (;; sched_yield()) {
        if (!peer->out[kind]) motet_node_progress(endpoint->domain->node);
        hellos_read(endpoint->domain);
        if (peer->out[kind]) return 0;
        if (motet_link_info(endpoint->domain->node, peer->link, &state) != 0 || state.down) return -FI_ECONNRESET;
        if (deadline == 0 || now_ns() > deadline) return -FI_EAGAIN;
    }
}

/* ---------------------------------------------------------------- hellos */

static bool hello_is_valid(const struct domain *domain, const struct hello *hello)
{
    return hello->magic == HELLO_MAGIC && (hello->step == HELLO_REQUEST || hello->step == HELLO_OPENED) && hello->kind < KINDS &&
           hello->secret == domain->address.secret && address_valid(&hello->from);
}

/* The handler of hellos; runs in any thread. It copies and validates a hello, and queues it only if its secret is right, so that strangers cannot fill
 * the queue. */
static int on_hello(motet_node node, const struct motet_arrival *arrival, void *user)
{
    struct endpoint *endpoint = user;
    struct domain *domain = endpoint->domain;
    struct hello hello;
    struct pending_hello *pending;
    const bool complete = arrival->message == 0 && arrival->length == sizeof hello;
    if (complete) memcpy(&hello, arrival->body, sizeof hello);
    if (!complete || !hello_is_valid(domain, &hello)) {
        motet_link_close(node, motet_channel_link(arrival->channel));
        return 0;
    }
    if (atomic_fetch_add(&domain->hello_count, 1) >= MAX_PENDING_HELLOS || !(pending = malloc(sizeof *pending))) {
        atomic_fetch_sub(&domain->hello_count, 1);
        return 0;
    }
    pending->endpoint = endpoint;
    pending->channel = arrival->channel;
    pending->hello = hello;
    pending->next = atomic_load(&domain->pending_hellos);
    while (!atomic_compare_exchange_weak(&domain->pending_hellos, &pending->next, pending)) {
    }
    gate_request_hellos(domain);
    return 0;
}

static void handle_hello(const struct pending_hello *pending)
{
    const struct hello *hello = &pending->hello;
    struct endpoint *endpoint = pending->endpoint;
    unsigned kind = hello->kind;
    motet_channel offered;
    /* Takes the channel off the list of incoming ones. */
    motet_channel_accept(endpoint->domain->node, service(endpoint->index, hello->step == HELLO_REQUEST ? HELLO_SERVICE : kind), 0, &offered);
    struct peer *peer = peer_of(endpoint, &hello->from);
    if (!peer) return;
    record_peer_link(endpoint, peer, motet_channel_link(pending->channel));
    if (hello->step == HELLO_REQUEST) peer_open_in(endpoint, peer, kind); /* if this fails, the peer's sends fail */
    else if (hello->step == HELLO_OPENED && !peer->out[kind]) peer->out[kind] = pending->channel;
}

void hellos_take(struct domain *domain)
{
    struct pending_hello *pending = atomic_exchange(&domain->pending_hellos, NULL), *first = NULL;
    while (pending) { /* reverses the list: the newest is first */
        struct pending_hello *next = pending->next;
        pending->next = first;
        first = pending;
        pending = next;
    }
    for (; first; first = pending) {
        pending = first->next;
        atomic_fetch_sub(&domain->hello_count, 1);
        if (!first->endpoint->closing) handle_hello(first);
        free(first);
    }
}

/* ---------------------------------------------------------------- opening and closing an endpoint */

int peers_open(struct endpoint *endpoint)
{
    motet_node node = endpoint->domain->node;
    struct motet_receive_mode mode = MOTET_INIT(struct motet_receive_mode);
    int result = motet_handler_new(node, on_hello, endpoint, &endpoint->handler);
    mode.kind = MOTET_RECEIVE_HANDLER;
    mode.target = endpoint->handler;
    for (unsigned kind = 0; kind < KINDS && result == 0; kind++)
        result = motet_context_new(node, &endpoint->contexts[kind]);
    for (unsigned number = 0; number < SERVICES && result == 0; number++)
        result = motet_service_open(node, service(endpoint->index, number), &mode);
    return -to_errno(result);
}

void peers_close(struct endpoint *endpoint)
{
    motet_node node = endpoint->domain->node;
    for (unsigned number = 0; number < SERVICES; number++)
        motet_service_close(node, service(endpoint->index, number));
    if (endpoint->handler) motet_handler_free(node, endpoint->handler);
    endpoint->closing = true;
    hellos_read(endpoint->domain); /* drops the last hellos that name this endpoint */
    for (struct peer *peer; (peer = endpoint->peers);) {
        endpoint->peers = peer->next;
        for (unsigned kind = 0; kind < KINDS; kind++) {
            if (peer->in[kind]) motet_channel_close(node, peer->in[kind]);
            if (peer->out[kind]) motet_channel_finish(node, peer->out[kind]);
        }
        if (peer->hello_channel) motet_channel_close(node, peer->hello_channel);
        free(peer);
    }
    for (unsigned kind = 0; kind < KINDS; kind++)
        if (endpoint->contexts[kind]) motet_context_free(node, endpoint->contexts[kind]);
    hash_map_free(&endpoint->by_address);
    hash_map_free(&endpoint->by_channel);
    free(endpoint->peers_by_addr);
}
