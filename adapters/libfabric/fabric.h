/* fabric.h: the objects of the provider and the functions that its files share. Each libfabric object wraps objects of Motet:
 *
 *   fid_fabric    provider.c   nothing
 *   fid_domain    domain.c     a node and its port; its TCP address: listen_addr.c; the progress thread's access to it: progress_gate.c
 *   fid_av        av.c         a table of addresses, each of a node and one of its endpoints
 *   fid_ep        endpoint.c   two contexts (tagged and untagged messages), a handler for hello messages, and the peers
 *   (peer)        connect.c    a link, and for each kind of message one channel out and one in
 *   fid_mr        mr.c         a region
 *   fid_cq        cq.c         a completion queue of the engine and a ring of events
 *   fid_cntr      cntr.c       two numbers
 *   fid_eq        eq.c         only what the program writes to it: no operation of the provider is asynchronous in this sense
 *
 * Sends are in send.c, receives in recv.c, puts and gets in rma.c, atomics in atomic.c. All complete in completion.c, which turns completions of
 * the engine into events and counts.
 *
 * Locks: each domain has one lock, held in every call on the domain or on an object of it. Where the program has promised to make one call at a
 * time (FI_THREAD_DOMAIN), the lock is a flag, and only Motet's progress thread has to check it (progress_gate.c). The handler of hello messages
 * runs in whatever thread makes progress, with or without the lock, so it takes no lock: it appends to a list (connect.c).
 * Hot path: no allocation (requests are taken from the domain's free list), no system call. */
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
#define INJECT_SIZE 1024        /* bytes; where a link takes fewer, the provider sends a copy */
#define IOV_LIMIT 8             /* pieces of a body that is sent */
#define MAX_MESSAGE_SIZE ((size_t)1 << 46)

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* ---- addresses: what fi_getname() returns and fi_av_insert() takes. An opaque byte string in host byte order */

struct address {
    uint32_t magic;
    uint16_t endpoint; /* index in the node */
    uint16_t port;     /* TCP port; 0: reachable from this host only */
    uint64_t node;     /* the number in the node's name */
    uint64_t secret;   /* known to everyone who has the address: hello messages contain it, and callers on other hosts send it to the TCP port */
    uint64_t answer;   /* the answer of that TCP port */
    uint8_t family;    /* of `ip`: 4 or 6; 0: none */
    uint8_t zero[7];
    uint8_t ip[16];
};
_Static_assert(sizeof(struct address) == 56, "an address has no padding; FI_NAME_MAX is 64");
#define ADDRESS_MAGIC 0x324d7446u

/* ---- hash_map.c: a map from numbers to pointers. Single entries cannot be removed */

struct hash_map {
    struct hash_slot { uint64_t key; void *value; } *slots;
    size_t used, size;
};
void hash_map_salt(uint64_t random); /* to be called before any map is used; later calls have no effect */
void *hash_map_find(const struct hash_map *map, uint64_t key); /* NULL: not found */
int hash_map_put(struct hash_map *map, uint64_t key, void *value); /* inserts or replaces; 0 or -FI_ENOMEM */
void hash_map_free(struct hash_map *map);

/* ---- objects */

struct domain {
    struct fid_domain fid;
    motet_node node;
    motet_port port; /* of the node */
    struct address address; /* of endpoint 0 */
    uint32_t version; /* of libfabric's interface, for which the program was compiled */
    bool uses_mutex;    /* the lock is `lock`; otherwise it is `program_inside` and `progress_thread_in` */
    atomic_bool program_inside; /* the program is in a call */
    atomic_bool progress_thread_in; /* the progress thread has entered or is trying to */
    atomic_bool hello_task_deferred; /* a task that handles pending hellos is deferred on the node */
    pid_t pid; /* of the process that opened the domain */
    bool by_address; /* peers name bytes of regions by virtual addresses (FI_MR_VIRT_ADDR), not by offsets */
    pthread_mutex_t lock;
    uint16_t next_endpoint_index;
    enum wait_mode { WAIT_AUTO, WAIT_POLL, WAIT_SLEEP, WAIT_INVALID } wait_mode; /* FI_MOTET_WAIT */
    struct hash_map local_peers_seen; /* nodes of this host: how often each was inserted into an address vector, plus one */
    long local_peers;    /* nodes of this host that are inserted at present */
    long cpus;           /* online; 0: not asked yet, -1: unknown */
    bool pauses;    /* reads of empty queues yield or sleep */
    unsigned ops_started; /* sends, puts, gets and atomics started so far; wraps */
    struct hash_map links; /* by link: KNOWN_PEER_LINK, or the time at which the link was first seen (connect.c) */
    motet_link *link_list; /* buffer for a list of the node's links */
    size_t link_list_capacity;
    unsigned references; /* open objects of the domain */
    struct cq *cqs;
    struct endpoint *endpoints;
    struct request *free_requests;
    struct request_chunk *request_chunks;
    _Atomic(struct pending_hello *) pending_hellos; /* the newest first */
    atomic_uint hello_count;
};

struct av {
    struct fid_av fid;
    struct domain *domain;
    enum fi_av_type type;
    struct address *entries; /* magic 0: removed */
    size_t count, capacity;
    struct hash_map index_of; /* index + 1 of an entry, by address_key() */
    unsigned references;
};

/* An event as the program reads it from a completion queue. */
struct event {
    void *context;
    uint64_t flags;
    size_t length;
    void *buffer;
    uint64_t data, tag;
    struct endpoint *endpoint;
    motet_channel channel; /* on which a received message arrived */
    size_t truncated;      /* bytes that did not fit into the buffer */
    int error;             /* of libfabric, or 0 */
};

struct cq {
    struct fid_cq fid;
    struct domain *domain;
    struct cq *next; /* of the domain */
    motet_cq engine_cq;
    enum fi_cq_format format;
    enum fi_wait_obj wait_obj;
    bool user_visible;      /* opened by the program; otherwise an endpoint's internal queue, whose events are dropped */
    struct event *events;   /* a ring; `size` is a power of two */
    size_t head, count, size;
    atomic_bool signalled;  /* by fi_cq_signal() */
    int signal_pipe[2];     /* wakes a blocking reader; open where there is a wait object */
    size_t entry_size;      /* bytes of an entry in the program's format */
    unsigned references;
    unsigned empty_reads;   /* in a row */
    unsigned ops_started;   /* the domain's, at the last empty read */
    atomic_llong thread_cpu_ns; /* CPU time of the reading thread at the last empty read; 0: unknown */
    unsigned compute_score; /* raised when the thread has computed since its previous read, lowered by each read that follows at once */
    struct motet_completion *completions; /* POLL_BATCH of them, COMPLETION_SIZE bytes apart */
};

struct cntr {
    struct fid_cntr fid;
    struct domain *domain;
    atomic_ulong done, failed;
    unsigned references;
};

enum msg_kind { TAGGED, MSG, KINDS };

struct peer {
    struct address address;
    struct peer *next; /* of the endpoint */
    fi_addr_t source;  /* or FI_ADDR_NOTAVAIL */
    motet_link link;
    motet_channel hello_channel; /* to the peer's hello service: carries requests for channels */
    motet_channel out[KINDS], in[KINDS]; /* each was opened by the side that receives on it */
    bool requested[KINDS]; /* the peer was asked to open `out` */
};

/* Most tagged receives need no request: they are posted under the program's context alone, and the engine writes their completions into the
 * program's entries (motet_port_poll()). This holds only where a completion is nothing but an event of a queue that the program reads. */
static inline bool is_unrecorded(const struct motet_completion *completion) { return completion->operation == 0; }

/* An operation that the engine knows by the address of this record. */
struct request {
    struct request *next, **link; /* list of the endpoint's requests under way; or `next` of the free list */
    struct endpoint *endpoint;
    void *context;
    uint64_t flags; /* of its event */
    motet_operation operation;
    void *copy;       /* of the body; freed on completion */
    void *buffer;     /* of a receive */
    size_t remaining; /* bytes free in a multi-receive buffer */
    size_t offset;    /* of the free part in that buffer */
    motet_channel source_channel; /* of a receive from one peer, or 0 */
    struct request *parent; /* of an operation on several pieces, of which this is one */
    unsigned children;      /* of a parent: pieces that have not completed, and one while they are being started */
    int error;
    uint8_t kind, cntr_kind;
    bool reports, multi_recv; /* reports: its completion is an event */
};

enum cntr_kind { CNTR_SEND, CNTR_RECV, CNTR_READ, CNTR_WRITE, CNTR_KINDS };

/* A message that was claimed (FI_CLAIM), kept under the program's context. */
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
    struct av *av;
    struct cq *tx_cq, *rx_cq;
    struct cq *internal_cq; /* for a direction to which the program has bound no queue */
    struct cntr *cntrs[CNTR_KINDS];
    bool tx_selective, rx_selective, enabled, closing; /* selective: FI_SELECTIVE_COMPLETION */
    uint64_t caps, tx_op_flags, rx_op_flags;
    size_t min_multi_recv; /* bytes that must be free in a multi-receive buffer for it to be posted again */
    uint16_t index;
    motet_context contexts[KINDS];
    motet_handler handler;
    struct peer **peers_by_addr; /* by fi_addr_t */
    size_t peers_by_addr_count;
    struct peer *peers;
    struct hash_map by_address, by_channel;
    struct request *requests; /* under way */
    struct claimed *claimed;
    unsigned ops_started_at_probe; /* the domain's, at the last probe from any source */
    bool probe_suppressed; /* that probe did not report what it found */
};

/* Whether the completion of a receive is an event and nothing else. */
static inline bool posts_unrecorded(const struct endpoint *endpoint)
{
    return endpoint->rx_cq->user_visible && !endpoint->cntrs[CNTR_RECV];
}

/* ---- progress_gate.c: mutual exclusion between the program's thread and Motet's progress thread */
void gate_wait(struct domain *domain); /* until the progress thread has left */
bool gate_enter(struct domain *domain); /* by the progress thread; false: the program is inside */
void gate_leave(struct domain *domain);
void gate_request_hellos(struct domain *domain); /* has pending hellos handled soon, whether or not the program makes calls */

static inline void domain_lock(struct domain *domain)
{
    if (unlikely(domain->uses_mutex)) {
        pthread_mutex_lock(&domain->lock);
        return;
    }
    atomic_store_explicit(&domain->program_inside, true, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* the progress thread's membarrier replaces a fence here: edge program_inside <-> progress_thread_in */
    if (unlikely(atomic_load_explicit(&domain->progress_thread_in, memory_order_acquire))) gate_wait(domain);
}

static inline void domain_unlock(struct domain *domain)
{
    if (unlikely(domain->uses_mutex)) pthread_mutex_unlock(&domain->lock);
    else atomic_store_explicit(&domain->program_inside, false, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst); /* edge program_inside <-> progress_thread_in: a progress thread that saw the program inside has left */
    if (unlikely(atomic_load_explicit(&domain->pending_hellos, memory_order_relaxed) != NULL)) gate_request_hellos(domain);
}

/* ---- libfabric_api.c: functions of the libfabric that has loaded the provider */
bool libfabric_find(const void *caller);
struct fi_info *libfabric_info(void); /* with all of its parts, zeroed; NULL: no memory */
void libfabric_free_info(struct fi_info *info);
uint32_t libfabric_version(void);

/* ---- info.c */
int provider_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **out);

/* ---- listen_addr.c: the TCP address at which other hosts find a domain */
#define LISTEN_TEXT_SIZE 96
enum listen_wish { LISTEN_OFF, LISTEN_IF_POSSIBLE, LISTEN_REQUIRED, LISTEN_INVALID };
enum listen_wish listen_address(char *text, size_t size); /* writes IP:PORT. LISTEN_IF_POSSIBLE: a failure to listen there is no error */
bool listen_reached(struct address *address, const char *listening); /* "IP:PORT,...": fills in what peers connect to */

/* ---- poll_pause.c: empty reads of completion queues yield or sleep where ranks share CPUs */
enum poll_pause { PAUSE_NONE, PAUSE_YIELD, PAUSE_SLEEP };
enum wait_mode wait_mode_wanted(void);
void pause_count_peers(struct domain *domain, const struct address *address, int delta);
enum poll_pause pause_due(struct cq *cq); /* to be called where domain->pauses is set */
void pause_poll(struct cq *cq, enum poll_pause pause);

/* A read has found something: the count of empty reads starts again. */
static inline void pause_reset(struct cq *cq) { cq->empty_reads = 0; }

/* ---- domain.c */
int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, void *context);
bool requests_grow(struct domain *domain); /* false: no memory */

/* A free request has no copy, no parent, no children and no error, and is no multi-receive. */
static inline struct request *request_alloc(struct endpoint *endpoint) /* NULL: no memory */
{
    struct domain *domain = endpoint->domain;
    if (unlikely(!domain->free_requests) && !requests_grow(domain)) return NULL;
    struct request *request = domain->free_requests;
    domain->free_requests = request->next;
    request->endpoint = endpoint;
    return request;
}

static inline void request_free(struct request *request)
{
    struct domain *domain = request->endpoint->domain;
    if (unlikely(request->copy != NULL)) free(request->copy);
    request->copy = NULL;
    request->parent = NULL;
    request->children = 0;
    request->error = 0;
    request->multi_recv = false;
    request->next = domain->free_requests;
    domain->free_requests = request;
}

/* Adds a request to its endpoint's list of requests under way. */
static inline void request_track(struct request *request)
{
    struct request **list = &request->endpoint->requests;
    request->next = *list;
    request->link = list;
    if (*list) (*list)->link = &request->next;
    *list = request;
}

static inline void request_untrack(struct request *request)
{
    *request->link = request->next;
    if (request->next) request->next->link = request->link;
}

/* ---- av.c */
int av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **out, void *context);
uint64_t address_key(const struct address *address);
bool address_valid(const struct address *address);
fi_addr_t av_find(const struct av *av, const struct address *address); /* or FI_ADDR_NOTAVAIL */

/* ---- endpoint.c */
int endpoint_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out, void *context);

/* ---- connect.c */
int peers_open(struct endpoint *endpoint);
void peers_close(struct endpoint *endpoint);
struct peer *peer_at_slow(struct endpoint *endpoint, fi_addr_t at); /* NULL: there is no such address */
int peer_open_out(struct endpoint *endpoint, struct peer *peer, enum msg_kind kind); /* 0: peer->out[kind] is open; -FI_EAGAIN: not yet */
int peer_open_in(struct endpoint *endpoint, struct peer *peer, enum msg_kind kind);  /* 0: peer->in[kind] is open */
int peer_connect(struct endpoint *endpoint, struct peer *peer);                      /* 0: peer->link is open */
fi_addr_t peer_source(struct endpoint *endpoint, motet_channel channel);
void hellos_take(struct domain *domain);

static inline void hellos_read(struct domain *domain)
{
    if (unlikely(atomic_load_explicit(&domain->pending_hellos, memory_order_relaxed) != NULL)) hellos_take(domain);
}

static inline struct peer *peer_at(struct endpoint *endpoint, fi_addr_t at)
{
    if (likely(at < endpoint->peers_by_addr_count && endpoint->peers_by_addr[at])) return endpoint->peers_by_addr[at];
    return peer_at_slow(endpoint, at);
}

/* ---- cq.c, completion.c */
int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **out, void *context);
struct cq *cq_own(struct domain *domain);
int cq_free(struct cq *cq);
void cq_forget(struct cq *cq, struct endpoint *endpoint); /* events of an endpoint that closes stay, but no longer name it */
#define POLL_BATCH 16 /* completions taken from the engine at a time, at most */
#define COMPLETION_SIZE offsetof(struct motet_completion, loaned) /* the provider receives no message in place; a multiple of a cache line */
static inline struct motet_completion *completion_at(const struct cq *cq, int at) { return (void *)((char *)cq->completions + (size_t)at * COMPLETION_SIZE); }
bool completions_alloc(struct cq *cq);
/* Takes at most `max` completions into cq->completions; makes one round of progress where there are none. Returns their number, or less than 1. */
static inline int cq_take(struct cq *cq, size_t max)
{
    return motet_port_poll_full(cq->domain->port, cq->engine_cq, cq->completions, max < POLL_BATCH ? (uint32_t)max : POLL_BATCH);
}
void cq_finish(struct cq *cq, int count);   /* turns completions that were taken into events */
void cq_pump(struct cq *cq);              /* cq_take() and cq_finish() */
void domain_pump(struct domain *domain);  /* cq_pump() for all queues */
bool domain_arm(struct domain *domain);
static inline void count_operation(struct endpoint *endpoint, enum cntr_kind kind, int error)
{
    struct cntr *cntr = kind < CNTR_KINDS ? endpoint->cntrs[kind] : NULL;
    if (unlikely(cntr != NULL)) atomic_fetch_add(error ? &cntr->failed : &cntr->done, 1);
}
void report(struct endpoint *endpoint, struct cq *cq, const struct event *event, bool reports, enum cntr_kind kind);
bool cq_grow(struct cq *cq); /* false: no memory */

/* The slot of the next event, which the caller fills. */
static inline struct event *cq_next_event(struct cq *cq)
{
    if (unlikely(cq->count == cq->size && !cq_grow(cq))) abort(); /* a program whose event is lost waits for ever */
    return &cq->events[(cq->head + cq->count++) & (cq->size - 1)];
}
int to_errno(int status); /* from an error of Motet's, positive or negative, to a positive one of libfabric's */

void request_child_done(struct request *parent, int status);

/* ---- rma.c, atomic.c */
struct request *rma_request_alloc(struct endpoint *endpoint, void *context, uint64_t flags, enum cntr_kind kind, bool reports);
int atomic_query(struct fid_domain *domain, enum fi_datatype datatype, enum fi_op op, struct fi_atomic_attr *attr, uint64_t flags);

/* ---- cntr.c, eq.c */
int cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **out, void *context);
int eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **out, void *context);
int fabric_trywait(struct fid_fabric *fabric, struct fid **fids, int count); /* cq.c */

/* ---- tables of functions */
extern struct fi_ops_msg msg_ops;
extern struct fi_ops_tagged tagged_ops;
extern struct fi_ops_rma rma_ops;
extern struct fi_ops_atomic atomic_ops;
extern struct fi_ops_mr mr_ops;
extern struct fi_ops_collective unsupported_collective_ops;

/* ---- unsupported.c: functions that return -FI_ENOSYS */
int unsupported_bind(struct fid *fid, struct fid *other, uint64_t flags);
int unsupported_control(struct fid *fid, int command, void *arg);
int unsupported_ops(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);

/* ---- recv.c */
int recv_repost(struct request *request); /* the free part of a multi-receive buffer; 0, or a negative errno of Motet's */
ssize_t tagged_recv(struct fid_ep *, void *, size_t, void *, fi_addr_t, uint64_t, uint64_t, void *);
ssize_t tagged_recvv(struct fid_ep *, const struct iovec *, void **, size_t, fi_addr_t, uint64_t, uint64_t, void *);
ssize_t tagged_recvmsg(struct fid_ep *, const struct fi_msg_tagged *, uint64_t);
ssize_t msg_recv(struct fid_ep *, void *, size_t, void *, fi_addr_t, void *);
ssize_t msg_recvv(struct fid_ep *, const struct iovec *, void **, size_t, fi_addr_t, void *);
ssize_t msg_recvmsg(struct fid_ep *, const struct fi_msg *, uint64_t);
ssize_t ep_cancel(fid_t fid, void *context);

#endif
