/* connect.c: how two endpoints connect.
 *
 * For each peer and kind of message there is one channel in each direction, opened by the side that receives on it. An endpoint that posts a
 * receive for one peer therefore has the channel whether or not the peer has sent, and receives from one peer and from any keep the order in
 * which they were posted.
 *
 *                 sender                               receiver
 *                   | link; channel to service ASK        |
 *                   | "I am A, open me a channel" ------> |
 *                   | <------ channel to service TAGGED or MSG, its messages matched here
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
#define MAX_PENDING_HELLOS 65536                            /* hellos that wait, at most: others are lost */
#define PATIENCE ((int64_t)120 * 1000000000)     /* for a peer that does not look, ns */
#define CONNECT_TIEBREAK_NS ((int64_t)15 * 1000000)         /* for a peer that may be calling, ns */
#define ANSWER ((int64_t)200 * 1000000)          /* to a first question, ns: a peer that makes no progress takes 10 to 20 ms */
#define HELLO_TIMEOUT_NS ((int64_t)30 * 1000000)     /* for the hello of one that has called, once, ns */

enum what { ASKS = 1, OPENED = 2 };

struct hello {
    uint32_t magic;
    uint16_t what;   /* enum what */
    uint16_t kind;   /* enum kind */
    uint64_t secret; /* of the address to which this goes */
    struct address from;
};

struct pending_hello {
    struct pending_hello *next;
    struct endpoint *endpoint;
    motet_channel channel;
    struct hello hello;
};

/* Services of an endpoint. */
enum { ASK = KINDS, SERVICES };
static uint64_t service(uint16_t endpoint, unsigned what) { return (uint64_t)endpoint << 8 | what; }

static int64_t now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t patience(void) { return now() + PATIENCE; }

static struct address address_of(const struct endpoint *endpoint)
{
    struct address address = endpoint->domain->address;
    address.endpoint = endpoint->number;
    return address;
}

/* ---------------------------------------------------------------- who is there */

static struct peer *peer_of(struct endpoint *endpoint, const struct address *address)
{
    struct peer *peer = hash_map_find(&endpoint->by_address, address_key(address));
    if (peer) return memcmp(&peer->address, address, sizeof *address) == 0 ? peer : NULL;
    if (!(peer = calloc(1, sizeof *peer))) return NULL;
    peer->address = *address;
    peer->source = endpoint->vector ? av_find(endpoint->vector, address) : FI_ADDR_NOTAVAIL;
    if (hash_map_put(&endpoint->by_address, address_key(address), peer) != 0) {
        free(peer);
        return NULL;
    }
    peer->next = endpoint->peers;
    endpoint->peers = peer;
    return peer;
}

struct peer *peer_connect(struct endpoint *endpoint, fi_addr_t at)
{
    struct av *vector = endpoint->vector;
    if (!vector || at >= vector->count || vector->entries[at].magic == 0) return NULL;
    if (at >= endpoint->known_count) {
        struct peer **more = realloc(endpoint->known, vector->count * sizeof *more);
        if (!more) return NULL;
        memset(more + endpoint->known_count, 0, (vector->count - endpoint->known_count) * sizeof *more);
        endpoint->known = more;
        endpoint->known_count = vector->count;
    }
    struct peer *peer = peer_of(endpoint, &vector->entries[at]);
    if (peer && peer->source == FI_ADDR_NOTAVAIL) peer->source = at;
    return endpoint->known[at] = peer;
}

fi_addr_t peer_source(struct endpoint *endpoint, motet_channel channel)
{
    struct peer *peer = hash_map_find(&endpoint->by_channel, channel);
    if (!peer) return FI_ADDR_NOTAVAIL;
    if (peer->source == FI_ADDR_NOTAVAIL && endpoint->vector) peer->source = av_find(endpoint->vector, &peer->address);
    return peer->source;
}

/* ---------------------------------------------------------------- meeting */

/* What is kept of a link by its number: that it is a peer's, or when it was first seen. */
static void *const A_PEERS = (void *)1;

/* One of this peer's links is known now: the one that is used, or a second one, where both have called. */
static void know_link(struct endpoint *endpoint, struct peer *peer, motet_link link)
{
    if (!peer->link) peer->link = link;
    hash_map_put(&endpoint->domain->links, link, A_PEERS); /* without memory it is taken for a stranger's, and waited for once */
}

/* Of links that are no more nothing is kept. */
static void forget_links(struct domain *domain, const motet_link *links, size_t count)
{
    struct hash_map kept = { 0 };
    for (size_t i = 0; i < count; i++) {
        void *known = hash_map_find(&domain->links, links[i]);
        if (known && hash_map_put(&kept, links[i], known) != 0) break;
    }
    hash_map_free(&domain->links);
    domain->links = kept;
}

/* Whether a peer has connected whose hello has not arrived yet. A link whose peer never sends a hello is waited for once. */
static bool someone_has_come(struct domain *domain)
{
    bool young = false;
    ssize_t count = motet_links(domain->node, domain->seen, domain->seen_room);
    if (count <= 0) return false;
    if ((size_t)count > domain->seen_room) {
        motet_link *more = realloc(domain->seen, (size_t)count * 2 * sizeof *more);
        if (!more) return false;
        domain->seen = more;
        domain->seen_room = (size_t)count * 2;
        count = motet_links(domain->node, domain->seen, domain->seen_room);
        if (count <= 0) return false;
        if ((size_t)count > domain->seen_room) count = (ssize_t)domain->seen_room;
    }
    for (ssize_t i = 0; i < count; i++) {
        void *known = hash_map_find(&domain->links, domain->seen[i]);
        int64_t since = known ? (int64_t)(intptr_t)known : now();
        if (known == A_PEERS) continue;
        if (!known && hash_map_put(&domain->links, domain->seen[i], (void *)(intptr_t)since) != 0) continue;
        young = young || now() - since < HELLO_TIMEOUT_NS;
    }
    if (domain->links.used > 2 * (size_t)count + 64) forget_links(domain, domain->seen, (size_t)count);
    return young;
}

/* Two ranks often connect at the same moment, and one link is better than two. So the node with the greater address waits a moment for the other's
 * connect, which a hello announces. Either node connects only when it knows the peers of all its links, because a link without a hello may be
 * this peer's. */
static bool wait_for_peer_connect(struct endpoint *endpoint, struct peer *peer)
{
    struct domain *domain = endpoint->domain;
    const bool waits = peer->address.node < domain->address.node, itself = peer->address.node == domain->address.node;
    for (int64_t began = now(); !itself; sched_yield()) {
        motet_node_progress(domain->node);
        hellos_read(domain);
        const int64_t passed = now() - began;
        if (peer->link || passed > HELLO_TIMEOUT_NS || (passed > (waits ? CONNECT_TIEBREAK_NS : 0) && !someone_has_come(domain))) break;
    }
    return peer->link != 0;
}

int peer_link(struct endpoint *endpoint, struct peer *peer)
{
    char text[160], ip[INET6_ADDRSTRLEN];
    if (peer->link || wait_for_peer_connect(endpoint, peer)) return 0;
    const struct address *at = &peer->address;
    int length = snprintf(text, sizeof text, "fi-%016llx", (unsigned long long)at->node);
    if (at->family && inet_ntop(at->family == 6 ? AF_INET6 : AF_INET, at->ip, ip, sizeof ip))
        snprintf(text + length, sizeof text - (size_t)length, at->family == 6 ? ",tcp://%016llx%016llx@[%s]:%u" : ",tcp://%016llx%016llx@%s:%u",
                 (unsigned long long)at->secret, (unsigned long long)at->answer, ip, at->port);
    motet_link link;
    int result = motet_link_open(endpoint->domain->node, text, patience(), &link);
    if (result == 0) know_link(endpoint, peer, link);
    return -to_errno(result);
}

static int greet(struct endpoint *endpoint, struct peer *peer, motet_channel channel, enum what what, enum kind kind)
{
    struct hello hello = { HELLO_MAGIC, what, kind, peer->address.secret, address_of(endpoint) };
    return -to_errno(motet_message_inject(endpoint->domain->node, channel, 0, &hello, sizeof hello, patience()));
}

int peer_in(struct endpoint *endpoint, struct peer *peer, enum kind kind)
{
    struct motet_receive_mode reception = MOTET_INIT(struct motet_receive_mode);
    motet_channel channel;
    if (peer->in[kind]) return 0;
    int result = peer_link(endpoint, peer);
    if (result != 0 || peer->in[kind]) return result; /* pending has been read meanwhile */
    reception.kind = MOTET_RECEIVE_TAGGED;
    reception.target = endpoint->contexts[kind];
    result = motet_channel_open(endpoint->domain->node, peer->link, service(peer->address.endpoint, kind), &reception, patience(), &channel);
    if (result != 0) return -to_errno(result);
    if ((result = hash_map_put(&endpoint->by_channel, channel, peer)) == 0) result = greet(endpoint, peer, channel, OPENED, kind);
    if (result != 0) {
        motet_channel_close(endpoint->domain->node, channel);
        return result;
    }
    peer->in[kind] = channel;
    return 0;
}

static int ask(struct endpoint *endpoint, struct peer *peer, enum kind kind)
{
    struct motet_receive_mode reception = MOTET_INIT(struct motet_receive_mode);
    int result = peer_link(endpoint, peer);
    if (result != 0) return result;
    if (!peer->ask) {
        reception.kind = MOTET_RECEIVE_QUEUE; /* nothing comes back on it */
        result = motet_channel_open(endpoint->domain->node, peer->link, service(peer->address.endpoint, ASK), &reception, patience(), &peer->ask);
        if (result != 0) return -to_errno(result);
    }
    if ((result = greet(endpoint, peer, peer->ask, ASKS, kind)) == 0) peer->asked[kind] = true;
    return result;
}

/* Whoever sends first waits a moment for the answer, as some programs take the first FI_EAGAIN for a failure; later calls only look. */
int peer_out(struct endpoint *endpoint, struct peer *peer, enum kind kind)
{
    int64_t until = 0;
    if (!peer->asked[kind] && !peer->out[kind]) {
        int result = ask(endpoint, peer, kind);
        if (result != 0) return result;
        until = now() + ANSWER;
    }
    struct motet_link_state state = MOTET_INIT(struct motet_link_state);
    for (;; sched_yield()) {
        if (!peer->out[kind]) motet_node_progress(endpoint->domain->node);
        hellos_read(endpoint->domain);
        if (peer->out[kind]) return 0;
        if (motet_link_info(endpoint->domain->node, peer->link, &state) != 0 || state.down) return -FI_ECONNRESET;
        if (until == 0 || now() > until) return -FI_EAGAIN;
    }
}

/* ---------------------------------------------------------------- hellos */

static bool makes_sense(const struct domain *domain, const struct hello *hello)
{
    return hello->magic == HELLO_MAGIC && (hello->what == ASKS || hello->what == OPENED) && hello->kind < KINDS &&
           hello->secret == domain->address.secret && address_valid(&hello->from);
}

/* In any thread. What a peer says is copied, measured, and kept if it knows our secret: those who do not cannot fill the box. */
static int keep(motet_node node, const struct motet_arrival *arrival, void *user)
{
    struct endpoint *endpoint = user;
    struct domain *domain = endpoint->domain;
    struct hello hello;
    struct pending_hello *pending;
    const bool whole = arrival->message == 0 && arrival->length == sizeof hello;
    if (whole) memcpy(&hello, arrival->body, sizeof hello);
    if (!whole || !makes_sense(domain, &hello)) {
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

static void answer(const struct pending_hello *pending)
{
    const struct hello *hello = &pending->hello;
    struct endpoint *endpoint = pending->endpoint;
    unsigned kind = hello->kind;
    motet_channel offered;
    motet_channel_accept(endpoint->domain->node, service(endpoint->number, hello->what == ASKS ? ASK : kind), 0, &offered); /* no news */
    struct peer *peer = peer_of(endpoint, &hello->from);
    if (!peer) return;
    know_link(endpoint, peer, motet_channel_link(pending->channel));
    if (hello->what == ASKS) peer_in(endpoint, peer, kind); /* where that fails, the peer's sends do */
    else if (hello->what == OPENED && !peer->out[kind]) peer->out[kind] = pending->channel;
}

void hellos_take(struct domain *domain)
{
    struct pending_hello *pending = atomic_exchange(&domain->pending_hellos, NULL), *first = NULL;
    while (pending) { /* the last one lies on top */
        struct pending_hello *next = pending->next;
        pending->next = first;
        first = pending;
        pending = next;
    }
    for (; first; first = pending) {
        pending = first->next;
        atomic_fetch_sub(&domain->hello_count, 1);
        if (!first->endpoint->ending) answer(first);
        free(first);
    }
}

/* ---------------------------------------------------------------- an endpoint's begin and end */

int peers_begin(struct endpoint *endpoint)
{
    motet_node node = endpoint->domain->node;
    struct motet_receive_mode reception = MOTET_INIT(struct motet_receive_mode);
    int result = motet_handler_new(node, keep, endpoint, &endpoint->handler);
    reception.kind = MOTET_RECEIVE_HANDLER;
    reception.target = endpoint->handler;
    for (unsigned kind = 0; kind < KINDS && result == 0; kind++)
        result = motet_context_new(node, &endpoint->contexts[kind]);
    for (unsigned what = 0; what < SERVICES && result == 0; what++)
        result = motet_service_open(node, service(endpoint->number, what), &reception);
    return -to_errno(result);
}

void peers_end(struct endpoint *endpoint)
{
    motet_node node = endpoint->domain->node;
    for (unsigned what = 0; what < SERVICES; what++)
        motet_service_close(node, service(endpoint->number, what));
    if (endpoint->handler) motet_handler_free(node, endpoint->handler);
    endpoint->ending = true;
    hellos_read(endpoint->domain); /* the last that can name this endpoint */
    for (struct peer *peer; (peer = endpoint->peers);) {
        endpoint->peers = peer->next;
        for (unsigned kind = 0; kind < KINDS; kind++) {
            if (peer->in[kind]) motet_channel_close(node, peer->in[kind]);
            if (peer->out[kind]) motet_channel_finish(node, peer->out[kind]);
        }
        if (peer->ask) motet_channel_close(node, peer->ask);
        free(peer);
    }
    for (unsigned kind = 0; kind < KINDS; kind++)
        if (endpoint->contexts[kind]) motet_context_free(node, endpoint->contexts[kind]);
    hash_map_free(&endpoint->by_address);
    hash_map_free(&endpoint->by_channel);
    free(endpoint->known);
}
