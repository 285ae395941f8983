/* fabric.h: the objects of the provider, and what of Motet is behind each.
 *
 *   fid_fabric  provider.c  nothing
 *   fid_domain  domain.c    a node; its address for other hosts: listen_addr.c; the progress thread: progress_gate.c
 *   fid_av      av.c        addresses, each of a node and one of its endpoints
 *   fid_ep      endpoint.c  two contexts (tagged and untagged messages), a handler for hellos, and peers
 *   (a peer)    connect.c   a link, and for each kind of message a channel out and a channel in
 *   fid_mr      mr.c        a region
 *   fid_cq      cq.c        a completion queue of the engine, and a ring of events
 *   fid_cntr    cntr.c      two numbers
 *   fid_eq      eq.c        only what the program writes to it
 *
 * Sends are in send.c, receives in recv.c, puts and gets in rma.c, atomics in atomic.c; all complete in completion.c.
 *
 * Locks: one for each domain, held in every call on it. Where the program has promised to make one call at a time (FI_THREAD_DOMAIN) the lock
 * is a flag, which only Motet's progress thread has to respect (progress_gate.c). The handler of hellos runs in any thread that makes progress,
 * with or without the lock, so it takes none: it queues the hello (connect.c).
 *
 * Hot path: no allocation (requests come from the domain's store), no system call. */
#ifndef MOTET_ADAPTER_FABRIC_H
#define MOTET_ADAPTER_FABRIC_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "motet.h"

#define PROVIDER_NAME "motet"
#define PROVIDER_VERSION FI_VERSION(MOTET_VERSION_MAJOR, MOTET_VERSION_MINOR)
#define ADDRESS_FORMAT (FI_PROV_SPECIFIC | 0x4d74u)
#define INJECT_SIZE 1024        /* bytes; a link may take fewer, then there is a copy */
#define VECTORS 8               /* of a body that is sent */
#define LONGEST ((size_t)1 << 46)

#define container(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* ---- addresses: what fi_getname() says and fi_av_insert() takes, as bytes of the network */

struct address {
    uint32_t magic;
    uint16_t endpoint; /* of the node */
    uint16_t port;     /* 0: of this host only */
    uint64_t node;     /* its name is derived from it */
    uint64_t secret;   /* part of the address: hellos carry it, and connections from other hosts present it to the node's port */
    uint64_t answer;   /* what that port answers with */
    uint8_t family;    /* 4 or 6, of `ip` */
    uint8_t zero[7];
    uint8_t ip[16];
};
_Static_assert(sizeof(struct address) == 56, "all of it is said; FI_NAME_MAX is 64");
#define ADDRESS_MAGIC 0x324d7446u

/* ---- a map from numbers to pointers, that nothing is taken out of singly */

struct hash_map {
    struct slot { uint64_t key; void *value; } *slots;
    size_t used, size;
};
void hash_map_salt(uint64_t random); /* before any is used; the first one counts */
void *hash_map_find(const struct hash_map *map, uint64_t key);
int hash_map_put(struct hash_map *map, uint64_t key, void *value); /* 0, or -FI_ENOMEM; the latest call wins */
void hash_map_free(struct hash_map *map);

/* ---- what the program holds */

struct domain {
    struct fid_domain fid;
    motet_node node;
    motet_port port; /* of the node */
    struct address address; /* of endpoint 0 */
    uint32_t version; /* of libfabric's interface, for which the program was compiled */
    bool locked;        /* by `lock`; otherwise by `inside` and `progress_thread_in` */
    atomic_bool inside; /* the program is in a call */
    atomic_bool progress_thread_in;  /* the progress thread is in the domain, or is entering */
    atomic_bool put_off; /* it is to read pending hellos */
    pid_t process;
    bool by_address; /* peers name bytes of regions by their addresses here, not by offsets */
    pthread_mutex_t lock;
    uint16_t endpoints_ever;
    enum wait_mode { WAIT_AUTO, WAIT_POLL, WAIT_SLEEP, WAIT_INVALID } wait;
    struct hash_map local_peers_seen; /* how often each node of this host was inserted */
    long local_peers;
    long cpus;
    bool pauses;          /* empty reads yield the CPU (poll_pause.c) */
    unsigned ops_started; /* sends and remote accesses so far */
    struct hash_map links;    /* of the node: whose they are, or since when that is not known (connect.c) */
    motet_link *seen;    /* room for a list of them */
    size_t seen_room;
    unsigned users; /* objects that are open */
    struct cq *queues;
    struct endpoint *endpoints;
    struct request *spare;
    struct chunk *chunks;
    _Atomic(struct pending_hello *) pending_hellos;
    atomic_uint hello_count;
};

struct av {
    struct fid_av fid;
    struct domain *domain;
    enum fi_av_type type;
    struct address *entries; /* magic 0: removed */
    size_t count, room;
    struct hash_map places; /* place + 1, by address_key() */
    unsigned users;
};

/* An event, as the queue tells it. */
struct event {
    void *context;
    uint64_t flags;
    size_t length;
    void *buffer;
    uint64_t data, tag;
    struct endpoint *endpoint;
    motet_channel channel; /* where a receive's message came */
    size_t beyond;         /* bytes that did not fit */
    int error;             /* of libfabric, or 0 */
};

struct cq {
    struct fid_cq fid;
    struct domain *domain;
    struct cq *next; /* of the domain */
    motet_cq group;
    enum fi_cq_format format;
    enum fi_wait_obj wait;
    bool told;              /* the program reads it; otherwise an endpoint's own, of which nothing is kept */
    struct event *events;   /* a ring, whose size is a power of two */
    size_t first, count, size;
    atomic_bool signalled;
    int pipe[2]; /* wakes who waits; where there is a wait object */
    size_t entry;       /* bytes of one that is read */
    unsigned users;
    unsigned empty_reads;      /* reads in a row */
    unsigned ops_started; /* what the domain had begun by the last one */
    atomic_llong used;  /* CPU time of its thread then, ns; 0: not known */
    unsigned compute_score; /* a score: up where its thread has computed since the read before, down by each that follows at once */
    struct motet_completion *ends; /* END_SIZE bytes apart */
};

struct cntr {
    struct fid_cntr fid;
    struct domain *domain;
    enum fi_wait_obj wait;
    atomic_ulong done, failed;
    unsigned users;
};

enum kind { TAGGED, MSG, KINDS };

struct peer {
    struct address address;
    struct peer *next; /* of the endpoint */
    fi_addr_t source;  /* or FI_ADDR_NOTAVAIL */
    motet_link link;
    motet_channel ask;                 /* where we ask for channels */
    motet_channel out[KINDS], in[KINDS]; /* each was opened by the side that receives on it */
    bool asked[KINDS];
};

/* Most receives with tags need no record here: they are posted without a name, known to the engine by the program's context, and their ends are
 * written into the program's entries (motet_port_poll()). Only where that is all that an end is: an event of a queue that the program reads. */
static inline bool is_unrecorded(const struct motet_completion *end) { return end->operation == 0; }

/* An operation that the engine knows by this record's address. */
struct request {
    struct request *next, **link; /* among those of the endpoint; or spare ones */
    struct endpoint *endpoint;
    void *context;
    uint64_t flags; /* of its event */
    motet_operation operation;
    void *copy;   /* freed at the end */
    void *buffer; /* of a receive */
    size_t left;  /* of a buffer for many messages */
    size_t place; /* of it in the program's buffer, bytes */
    motet_channel from; /* of a receive from one peer, or 0 */
    struct request *parent; /* the request of which this is one of several operations */
    unsigned children;       /* operations of this request that have not completed, and one while they are created */
    int error;
    uint8_t kind, counter;
    bool told, multi_recv;
};

enum counted { COUNT_SEND, COUNT_RECEIVE, COUNT_READ, COUNT_WRITE, COUNTED };

/* A message that was claimed, under the program's context. */
struct claimed {
    struct claimed *next;
    void *context;
    motet_message message;
    struct event seen;
};

struct endpoint {
    struct fid_ep fid;
    struct domain *domain;
    struct endpoint *next; /* of the domain */
    struct av *vector;
    struct cq *sends, *receives;
    struct cq *own; /* for a direction that has no queue of the program's */
    struct cntr *counters[COUNTED];
    bool selective_sends, selective_receives, enabled, ending;
    uint64_t caps, send_flags, receive_flags;
    size_t least; /* room that a buffer for many messages must have left */
    uint16_t number;
    motet_context contexts[KINDS];
    motet_handler handler;
    struct peer **known; /* by fi_addr_t */
    size_t known_count;
    struct peer *peers;
    struct hash_map by_address, by_channel;
    struct request *requests; /* under way */
    struct claimed *claimed;
    unsigned looked; /* what the domain had begun by the last look at messages from anybody */
    bool put_off;    /* which has not told what it found */
};

/* Whether the end of a receive is an event and nothing else. */
static inline bool posts_unrecorded(const struct endpoint *endpoint)
{
    return endpoint->receives->told && !endpoint->counters[COUNT_RECEIVE];
}

/* ---- progress_gate.c: who is in a domain */
void gate_wait(struct domain *domain);
bool gate_enter(struct domain *domain); /* false: the program is there */
void gate_leave(struct domain *domain);
void gate_request_hellos(struct domain *domain); /* soon, whatever the program does */

static inline void enter(struct domain *domain)
{
    if (unlikely(domain->locked)) {
        pthread_mutex_lock(&domain->lock);
        return;
    }
    atomic_store_explicit(&domain->inside, true, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* the progress thread's barrier stands for a fence here: edge inside <-> progress_thread_in */
    if (unlikely(atomic_load_explicit(&domain->progress_thread_in, memory_order_acquire))) gate_wait(domain);
}

static inline void leave(struct domain *domain)
{
    if (unlikely(domain->locked)) pthread_mutex_unlock(&domain->lock);
    else atomic_store_explicit(&domain->inside, false, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst); /* as in enter(): a progress thread that has seen the flag has left */
    if (unlikely(atomic_load_explicit(&domain->pending_hellos, memory_order_relaxed) != NULL)) gate_request_hellos(domain);
}

/* ---- libfabric_api.c: the libfabric of the process */
bool libfabric_find(const void *caller);
struct fi_info *libfabric_info(void); /* a new one, whose parts are there and all zeros */
void libfabric_free_info(struct fi_info *info);
uint32_t libfabric_version(void);

/* ---- info.c */
int info_offer(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **out);

/* ---- listen_addr.c: addresses of this host, for others */
#define LISTEN_TEXT 96
enum listen_wish { LISTEN_OFF, LISTEN_IF_POSSIBLE, LISTEN_REQUIRED, LISTEN_INVALID };
enum listen_wish listen_address(char *text, size_t size);                     /* writes IP:PORT; POSSIBLE: it need not succeed */
bool listen_reached(struct address *address, const char *listening);      /* of "IP:PORT,...": what peers are told */

/* ---- poll_pause.c: polls that give their CPU away, where there are more ranks than CPUs */
enum poll_pause { PAUSE_NONE, PAUSE_YIELD, PAUSE_SLEEP };
enum wait_mode wait_mode_wanted(void);
void pause_count_peers(struct domain *domain, const struct address *address, int more);
enum poll_pause pause_due(struct cq *queue); /* where the domain's reader rests at all */
void pause_poll(struct cq *queue, enum poll_pause how);

/* A read has found an event: counting of empty reads starts again. */
static inline void pause_reset(struct cq *queue) { queue->empty_reads = 0; }

/* ---- domain.c */
int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, void *context);
bool requests_grow(struct domain *domain); /* false: no memory */

/* One that is spare is clean: it has no copy, is no piece, has none, and has not failed; it is not `many`. */
static inline struct request *request_take(struct endpoint *endpoint) /* NULL: no memory */
{
    struct domain *domain = endpoint->domain;
    if (unlikely(!domain->spare) && !requests_grow(domain)) return NULL;
    struct request *request = domain->spare;
    domain->spare = request->next;
    request->endpoint = endpoint;
    return request;
}

static inline void request_give_back(struct request *request)
{
    struct domain *domain = request->endpoint->domain;
    if (unlikely(request->copy != NULL)) free(request->copy);
    request->copy = NULL;
    request->parent = NULL;
    request->children = 0;
    request->error = 0;
    request->multi_recv = false;
    request->next = domain->spare;
    domain->spare = request;
}

static inline void request_note(struct request *request)
{
    struct request **list = &request->endpoint->requests;
    request->next = *list;
    request->link = list;
    if (*list) (*list)->link = &request->next;
    *list = request;
}

static inline void request_forget(struct request *request)
{
    *request->link = request->next;
    if (request->next) request->next->link = request->link;
}

/* ---- av.c */
int av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **out, void *context);
uint64_t address_key(const struct address *address);
bool address_valid(const struct address *address);
fi_addr_t av_find(const struct av *vector, const struct address *address);

/* ---- endpoint.c */
int endpoint_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out, void *context);

/* ---- connect.c */
int peers_begin(struct endpoint *endpoint);
void peers_end(struct endpoint *endpoint);
struct peer *peer_connect(struct endpoint *endpoint, fi_addr_t at); /* NULL: there is no such address */
int peer_out(struct endpoint *endpoint, struct peer *peer, enum kind kind); /* 0: peer->out[kind] is there; -FI_EAGAIN: soon */
int peer_in(struct endpoint *endpoint, struct peer *peer, enum kind kind);  /* 0: peer->in[kind] is there */
int peer_link(struct endpoint *endpoint, struct peer *peer);                /* 0: peer->link is there */
fi_addr_t peer_source(struct endpoint *endpoint, motet_channel channel);
void hellos_take(struct domain *domain);

static inline void hellos_read(struct domain *domain)
{
    if (unlikely(atomic_load_explicit(&domain->pending_hellos, memory_order_relaxed) != NULL)) hellos_take(domain);
}

static inline struct peer *peer_at(struct endpoint *endpoint, fi_addr_t at)
{
    if (likely(at < endpoint->known_count && endpoint->known[at])) return endpoint->known[at];
    return peer_connect(endpoint, at);
}

/* ---- cq.c, completion.c */
int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **out, void *context);
struct cq *cq_own(struct domain *domain);
int cq_free(struct cq *queue);
void cq_forget(struct cq *queue, struct endpoint *endpoint); /* events of one that ends stay, but name it no more */
#define BATCH 16 /* most ends taken at a time */
#define END_SIZE offsetof(struct motet_completion, loaned) /* no receive is in place here; whole lines */
static inline struct motet_completion *end_of(const struct cq *queue, int at) { return (void *)((char *)queue->ends + (size_t)at * END_SIZE); }
bool completions_alloc(struct cq *queue);
/* What has ended, at most `most`, into `ends`; one round of progress where nothing has. How many, or less than 1. */
static inline int cq_take(struct cq *queue, size_t most)
{
    return motet_port_poll_full(queue->domain->port, queue->group, queue->ends, most < BATCH ? (uint32_t)most : BATCH);
}
void cq_finish(struct cq *queue, int taken); /* what was taken goes into the ring */
void cq_pump(struct cq *queue);             /* what has ended goes there */
void domain_pump(struct domain *domain); /* of all queues */
bool domain_may_sleep(struct domain *domain);
static inline void count(struct endpoint *endpoint, enum counted what, int error)
{
    struct cntr *counter = what < COUNTED ? endpoint->counters[what] : NULL;
    if (unlikely(counter != NULL)) atomic_fetch_add(error ? &counter->failed : &counter->done, 1);
}
void report(struct endpoint *endpoint, struct cq *queue, const struct event *event, bool told, enum counted what);
bool cq_grow(struct cq *queue);

/* Where the next event goes. */
static inline struct event *cq_next_event(struct cq *queue)
{
    if (unlikely(queue->count == queue->size && !cq_grow(queue))) abort(); /* an event that is lost is a program that waits for ever */
    return &queue->events[(queue->first + queue->count++) & (queue->size - 1)];
}
int to_errno(int status); /* of Motet's errors, positive or negative; libfabric's, positive */

void request_piece_ended(struct request *whole, int status);

/* ---- rma.c, atomic.c */
struct request *request_whole(struct endpoint *endpoint, void *context, uint64_t flags, enum counted counter, bool told);
int atomic_query(struct fid_domain *domain, enum fi_datatype datatype, enum fi_op op, struct fi_atomic_attr *attr, uint64_t flags);

/* ---- recv.c */
int receive_post(struct request *request); /* 0, or a negative errno of Motet's */

/* ---- cntr.c, eq.c */
int cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **out, void *context);
int eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **out, void *context);
int trywait(struct fid_fabric *fabric, struct fid **fids, int count);

/* ---- tables that others fill */
extern struct fi_ops_msg msg_ops;
extern struct fi_ops_tagged tagged_ops;
extern struct fi_ops_rma rma_ops;
extern struct fi_ops_atomic atomics;
extern struct fi_ops_mr regions;
extern struct fi_ops_collective no_collectives;

/* ---- unsupported.c: what is not offered */
int unsupported_bind(struct fid *fid, struct fid *other, uint64_t flags);
int unsupported_control(struct fid *fid, int command, void *arg);
int unsupported_ops(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);

/* ---- recv.c, send.c */
ssize_t tagged_recv(struct fid_ep *, void *, size_t, void *, fi_addr_t, uint64_t, uint64_t, void *);
ssize_t tagged_recvv(struct fid_ep *, const struct iovec *, void **, size_t, fi_addr_t, uint64_t, uint64_t, void *);
ssize_t tagged_recvmsg(struct fid_ep *, const struct fi_msg_tagged *, uint64_t);
ssize_t msg_recv(struct fid_ep *, void *, size_t, void *, fi_addr_t, void *);
ssize_t msg_recvv(struct fid_ep *, const struct iovec *, void **, size_t, fi_addr_t, void *);
ssize_t msg_recvmsg(struct fid_ep *, const struct fi_msg *, uint64_t);
ssize_t cancel(fid_t fid, void *context);

#endif
