/* cq.c: completion queues: reads in the program's format, and waits for completions.
 *
 * A wait sleeps in the node's descriptor, which becomes readable when progress would do something; fi_trywait() arms it (motet_node_arm).
 * Reads that do not block may also sleep: poll_pause.c. */
#include "fabric.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>

static inline struct event *event_ring_front(struct cq *cq) { return &cq->events[cq->head]; }

static inline void event_ring_pop(struct cq *cq)
{
    cq->head = --cq->count == 0 ? 0 : (cq->head + 1) & (cq->size - 1); /* an empty ring starts at 0, so that the same cache lines are used again */
}

static size_t entry_size_of(enum fi_cq_format format)
{
    switch (format) {
    case FI_CQ_FORMAT_MSG: return sizeof(struct fi_cq_msg_entry);
    case FI_CQ_FORMAT_DATA: return sizeof(struct fi_cq_data_entry);
    case FI_CQ_FORMAT_TAGGED: return sizeof(struct fi_cq_tagged_entry);
    default: return sizeof(struct fi_cq_entry);
    }
}

/* Writes an event in the queue's format. Every format is a prefix of fi_cq_tagged_entry. */
static void write_entry(void *place, size_t size, const struct event *event)
{
    struct fi_cq_tagged_entry entry = { event->context, event->flags, event->length, event->buffer, event->data, event->tag };
    memcpy(place, &entry, size);
}

static ssize_t read_ring(struct cq *cq, char *into, size_t max, fi_addr_t *sources)
{
    size_t count = 0;
    for (; count < max && cq->count > 0 && event_ring_front(cq)->error == 0; count++) {
        const struct event *event = event_ring_front(cq);
        if (unlikely(sources != NULL))
            sources[count] = event->flags & FI_RECV && event->endpoint ? peer_source(event->endpoint, event->channel) : FI_ADDR_NOTAVAIL;
        write_entry(into + count * cq->entry_size, cq->entry_size, event);
        event_ring_pop(cq);
    }
    return count == 0 && max > 0 ? -FI_EAVAIL : (ssize_t)count;
}

/* Takes completions of receives without a record straight into the program's entries. Returns their number; -EAGAIN: there are no completions;
 * 0: take full completions with cq_take(), also for other formats and for sources. */
static inline int poll_entries(struct cq *cq, void *into, size_t max, const fi_addr_t *sources)
{
    if (unlikely(sources != NULL || cq->entry_size != sizeof(struct fi_cq_tagged_entry) || max == 0)) return 0;
    return motet_port_poll(cq->domain->port, cq->engine_cq, into, max < INT_MAX ? (unsigned)max : INT_MAX);
}

static ssize_t read_locked(struct cq *cq, void *into, size_t max, fi_addr_t *sources)
{
    if (cq->count == 0) {
        int count = poll_entries(cq, into, max, sources);
        hellos_read(cq->domain);
        if (count > 0) return count;
        if (count == 0) cq_finish(cq, cq_take(cq, max ? max : 1));
    }
    return cq->count == 0 ? -FI_EAGAIN : read_ring(cq, into, max, sources);
}

static ssize_t read_now(struct fid_cq *fid, void *into, size_t max, fi_addr_t *sources)
{
    struct cq *cq = container_of(fid, struct cq, fid);
    domain_lock(cq->domain);
    ssize_t result = read_locked(cq, into, max, sources);
    domain_unlock(cq->domain);
    return result;
}

/* The general case. The lock is held on entry and released before the return. */
static __attribute__((noinline)) ssize_t cq_readfrom_slow(struct fid_cq *fid, void *into, size_t max, fi_addr_t *sources)
{
    struct cq *cq = container_of(fid, struct cq, fid);
    ssize_t result = read_locked(cq, into, max, sources);
    enum poll_pause pause = result == -FI_EAGAIN && cq->domain->pauses ? pause_due(cq) : PAUSE_NONE;
    if (result != -FI_EAGAIN) pause_reset(cq);
    domain_unlock(cq->domain);
    if (likely(pause == PAUSE_NONE)) return result;
    pause_poll(cq, pause);
    result = read_now(fid, into, max, sources);
    if (result != -FI_EAGAIN) pause_reset(cq);
    return result;
}

/* Fast path for a program that polls: no event is queued, and either nothing or a receive without a record has completed. */
static ssize_t cq_readfrom(struct fid_cq *fid, void *into, size_t max, fi_addr_t *sources)
{
    struct cq *cq = container_of(fid, struct cq, fid);
    domain_lock(cq->domain);
    if (unlikely(cq->count > 0 || cq->domain->pauses)) return cq_readfrom_slow(fid, into, max, sources);
    int count = poll_entries(cq, into, max, sources);
    bool hellos = atomic_load_explicit(&cq->domain->pending_hellos, memory_order_relaxed) != NULL;
    if (unlikely((count <= 0 && count != -EAGAIN) || hellos)) {
        if (count <= 0) return cq_readfrom_slow(fid, into, max, sources);
        hellos_read(cq->domain);
    }
    if (likely(count > 0)) pause_reset(cq);
    domain_unlock(cq->domain);
    return likely(count > 0) ? count : -FI_EAGAIN;
}

static ssize_t cq_read(struct fid_cq *fid, void *into, size_t max) { return cq_readfrom(fid, into, max, NULL); }

/* Writes no fields that are newer than the version for which the program was compiled: its struct ends before them. */
static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *into, uint64_t flags)
{
    struct cq *cq = container_of(fid, struct cq, fid);
    ssize_t result = -FI_EAGAIN;
    domain_lock(cq->domain);
    if (cq->count > 0 && event_ring_front(cq)->error != 0) {
        struct event *event = event_ring_front(cq);
        into->op_context = event->context;
        into->flags = event->flags;
        into->len = event->length;
        into->buf = event->buffer;
        into->data = event->data;
        into->tag = event->tag;
        into->olen = event->truncated;
        into->err = event->error;
        into->prov_errno = event->error;
        if (cq->domain->version >= FI_VERSION(1, 5)) into->err_data_size = 0;
        event_ring_pop(cq);
        result = 1;
    }
    domain_unlock(cq->domain);
    return result;
}

/* ---------------------------------------------------------------- sleep */

/* The number of operations of all queues that have completed so far. */
static uint64_t completed_operations(const struct domain *domain)
{
    uint64_t sum = 0;
    for (const struct cq *cq = domain->cqs; cq; cq = cq->next) {
        struct motet_cq_counters counts = MOTET_INIT(struct motet_cq_counters);
        if (motet_cq_counts(domain->node, cq->engine_cq, &counts) == 0) sum += counts.succeeded + counts.failed;
    }
    return sum;
}

/* Arms the node's descriptor, which is the same for all queues of the domain. False: there are events, or progress would do something. */
bool domain_arm(struct domain *domain)
{
    uint64_t before = completed_operations(domain);
    domain_pump(domain);
    if (atomic_load(&domain->pending_hellos)) return false;
    if (completed_operations(domain) != before) return false; /* progress for one queue may have completed operations of another */
    for (struct cq *cq = domain->cqs; cq; cq = cq->next)
        if (cq->count > 0) return false;
    return motet_node_arm(domain->node) == 1;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static ssize_t cq_sreadfrom(struct fid_cq *fid, void *into, size_t max, fi_addr_t *sources, const void *condition, int timeout)
{
    struct cq *cq = container_of(fid, struct cq, fid);
    int64_t deadline_ms = timeout < 0 ? INT64_MAX : now_ms() + timeout;
    if (cq->wait_obj == FI_WAIT_NONE) return -FI_EINVAL;
    for (;;) {
        ssize_t result = read_now(fid, into, max, sources);
        if (result != -FI_EAGAIN || atomic_exchange(&cq->signalled, false)) return result;
        int64_t remaining_ms = deadline_ms == INT64_MAX ? -1 : deadline_ms - now_ms();
        if (deadline_ms != INT64_MAX && remaining_ms <= 0) return -FI_EAGAIN;
        domain_lock(cq->domain);
        bool armed = cq->count == 0 && domain_arm(cq->domain);
        domain_unlock(cq->domain);
        struct pollfd descriptors[2] = { { motet_node_descriptor(cq->domain->node), POLLIN, 0 }, { cq->signal_pipe[0], POLLIN, 0 } };
        if (armed && poll(descriptors, 2, (int)remaining_ms) < 0 && errno != EINTR) return -errno;
        char byte[16];
        if (armed && descriptors[1].revents && read(cq->signal_pipe[0], byte, sizeof byte) < 0 && errno != EAGAIN) return -errno;
    }
}

static ssize_t cq_sread(struct fid_cq *fid, void *into, size_t max, const void *condition, int timeout)
{
    return cq_sreadfrom(fid, into, max, NULL, condition, timeout);
}

/* Makes a blocking read return. */
static int cq_signal(struct fid_cq *fid)
{
    struct cq *cq = container_of(fid, struct cq, fid);
    if (cq->wait_obj == FI_WAIT_NONE) return -FI_EINVAL;
    atomic_store(&cq->signalled, true);
    return write(cq->signal_pipe[1], "", 1) < 0 && errno != EAGAIN ? -errno : 0;
}

int fabric_trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
    for (int i = 0; i < count; i++) {
        struct domain *domain = NULL;
        if (fids[i]->fclass == FI_CLASS_CQ) domain = container_of(fids[i], struct cq, fid.fid)->domain;
        if (fids[i]->fclass == FI_CLASS_CNTR) domain = container_of(fids[i], struct cntr, fid.fid)->domain;
        if (fids[i]->fclass == FI_CLASS_EQ) continue;
        if (!domain) return -FI_EINVAL;
        domain_lock(domain);
        bool armed = domain_arm(domain);
        domain_unlock(domain);
        if (!armed) return -FI_EAGAIN;
    }
    return 0;
}

static int cq_control(struct fid *fid, int command, void *arg)
{
    struct cq *cq = container_of(fid, struct cq, fid.fid);
    if (command == FI_GETWAITOBJ) {
        *(enum fi_wait_obj *)arg = cq->wait_obj;
        return 0;
    }
    if (command != FI_GETWAIT || cq->wait_obj != FI_WAIT_FD) return -FI_ENOSYS;
    *(int *)arg = motet_node_descriptor(cq->domain->node);
    return 0;
}

/* ---------------------------------------------------------------- life */

static const char *cq_strerror(struct fid_cq *fid, int error, const void *data, char *text, size_t length)
{
    const char *found = error == FI_ETRUNC ? "message longer than the buffer" : error == FI_ENOMSG ? "no such message" : strerror(error);
    if (text && length) snprintf(text, length, "%s", found);
    return text && length ? text : found;
}

void cq_forget(struct cq *cq, struct endpoint *endpoint)
{
    for (size_t i = 0; i < cq->count; i++) {
        struct event *event = &cq->events[(cq->head + i) & (cq->size - 1)];
        if (event->endpoint == endpoint) event->endpoint = NULL;
    }
}

int cq_free(struct cq *cq)
{
    struct domain *domain = cq->domain;
    for (struct cq **at = &domain->cqs; *at; at = &(*at)->next)
        if (*at == cq) {
            *at = cq->next;
            break;
        }
    motet_cq_free(domain->node, cq->engine_cq);
    if (cq->wait_obj != FI_WAIT_NONE) close(cq->signal_pipe[0]), close(cq->signal_pipe[1]);
    free(cq->events);
    free(cq->completions);
    free(cq);
    return 0;
}

static int cq_close(struct fid *fid)
{
    struct cq *cq = container_of(fid, struct cq, fid.fid);
    struct domain *domain = cq->domain;
    domain_lock(domain);
    int result = cq->references ? -FI_EBUSY : cq_free(cq);
    if (result == 0) domain->references--;
    domain_unlock(domain);
    return result;
}

static struct fi_ops cq_fid_ops = {
    .size = sizeof cq_fid_ops, .close = cq_close, .bind = unsupported_bind, .control = cq_control, .ops_open = unsupported_ops,
};

static struct fi_ops_cq cq_ops = {
    .size = sizeof cq_ops,
    .read = cq_read,
    .readfrom = cq_readfrom,
    .readerr = cq_readerr,
    .sread = cq_sread,
    .sreadfrom = cq_sreadfrom,
    .signal = cq_signal,
    .strerror = cq_strerror,
};

/* A queue that the program does not read, for operations that are only counted. The lock is held. */
struct cq *cq_own(struct domain *domain)
{
    struct cq *cq = calloc(1, sizeof *cq);
    if (!cq) return NULL;
    cq->domain = domain;
    cq->wait_obj = FI_WAIT_NONE;
    if (!completions_alloc(cq) || motet_cq_new(domain->node, &cq->engine_cq) != 0) {
        free(cq->completions);
        free(cq);
        return NULL;
    }
    cq->next = domain->cqs;
    domain->cqs = cq;
    return cq;
}

int cq_open(struct fid_domain *fid, struct fi_cq_attr *attr, struct fid_cq **out, void *context)
{
    struct domain *domain = container_of(fid, struct domain, fid);
    enum fi_wait_obj wait = attr->wait_obj == FI_WAIT_UNSPEC ? FI_WAIT_FD : attr->wait_obj;
    if ((wait != FI_WAIT_NONE && wait != FI_WAIT_FD) || attr->wait_cond != FI_CQ_COND_NONE) return -FI_ENOSYS;
    domain_lock(domain);
    struct cq *cq = cq_own(domain);
    if (cq && wait == FI_WAIT_FD && pipe2(cq->signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
        cq_free(cq);
        cq = NULL;
    }
    if (cq) {
        cq->wait_obj = wait;
        cq->user_visible = true;
        cq->format = attr->format == FI_CQ_FORMAT_UNSPEC ? FI_CQ_FORMAT_TAGGED : attr->format;
        attr->format = cq->format;
        cq->entry_size = entry_size_of(cq->format);
        cq->fid.fid.fclass = FI_CLASS_CQ;
        cq->fid.fid.context = context;
        cq->fid.fid.ops = &cq_fid_ops;
        cq->fid.ops = &cq_ops;
        domain->references++;
        *out = &cq->fid;
    }
    domain_unlock(domain);
    return cq ? 0 : -FI_ENOMEM;
}
