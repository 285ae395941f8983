/* cq.c: completion queues: what is read, in which form, and how a program sleeps until there is something.
 *
 * A sleep is in the node's descriptor: readable when progress would do something, which fi_trywait() arms (motet_node_arm). A
 * program that polls may sleep, too: poll_pause.c. */
#include "fabric.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>

static inline struct event *front(struct cq *queue) { return &queue->events[queue->first]; }

static inline void drop_front(struct cq *queue)
{
    queue->first = --queue->count == 0 ? 0 : (queue->first + 1) & (queue->size - 1); /* the same lines again */
}

static size_t form_size(enum fi_cq_format format)
{
    switch (format) {
    case FI_CQ_FORMAT_MSG: return sizeof(struct fi_cq_msg_entry);
    case FI_CQ_FORMAT_DATA: return sizeof(struct fi_cq_data_entry);
    case FI_CQ_FORMAT_TAGGED: return sizeof(struct fi_cq_tagged_entry);
    default: return sizeof(struct fi_cq_entry);
    }
}

/* The next entry, in the queue's form: those are beginnings of one another. */
static void write_entry(void *place, size_t size, const struct event *event)
{
    struct fi_cq_tagged_entry entry = { event->context, event->flags, event->length, event->buffer, event->data, event->tag };
    memcpy(place, &entry, size);
}

static ssize_t read_ring(struct cq *queue, char *into, size_t most, fi_addr_t *sources)
{
    size_t taken = 0;
    for (; taken < most && queue->count > 0 && front(queue)->error == 0; taken++) {
        const struct event *event = front(queue);
        if (unlikely(sources != NULL))
            sources[taken] = event->flags & FI_RECV && event->endpoint ? peer_source(event->endpoint, event->channel) : FI_ADDR_NOTAVAIL;
        write_entry(into + taken * queue->entry, queue->entry, event);
        drop_front(queue);
    }
    return taken == 0 && most > 0 ? -FI_EAVAIL : (ssize_t)taken;
}

/* Ends of receives, straight into the entries of a program that wants no more than those say. How many; -EAGAIN: nothing has ended; 0: ask for
 * completions. */
static inline int take_entries(struct cq *queue, void *into, size_t most, const fi_addr_t *sources)
{
    if (unlikely(sources != NULL || queue->entry != sizeof(struct fi_cq_tagged_entry) || most == 0)) return 0;
    return motet_port_poll(queue->domain->port, queue->group, into, most < INT_MAX ? (unsigned)most : INT_MAX);
}

static ssize_t read_locked(struct cq *queue, void *into, size_t most, fi_addr_t *sources)
{
    if (queue->count == 0) {
        int taken = take_entries(queue, into, most, sources);
        hellos_read(queue->domain);
        if (taken > 0) return taken;
        if (taken == 0) cq_finish(queue, cq_take(queue, most ? most : 1));
    }
    return queue->count == 0 ? -FI_EAGAIN : read_ring(queue, into, most, sources);
}

static ssize_t read_from(struct fid_cq *fid, void *into, size_t most, fi_addr_t *sources)
{
    struct cq *queue = container(fid, struct cq, fid);
    enter(queue->domain);
    ssize_t result = read_locked(queue, into, most, sources);
    leave(queue->domain);
    return result;
}

/* Whatever is there. The lock is held until it is over. */
static __attribute__((noinline)) ssize_t poll_anyhow(struct fid_cq *fid, void *into, size_t most, fi_addr_t *sources)
{
    struct cq *queue = container(fid, struct cq, fid);
    ssize_t result = read_locked(queue, into, most, sources);
    enum poll_pause due = result == -FI_EAGAIN && queue->domain->pauses ? pause_due(queue) : PAUSE_NONE;
    if (result != -FI_EAGAIN) pause_reset(queue);
    leave(queue->domain);
    if (likely(due == PAUSE_NONE)) return result;
    pause_poll(queue, due);
    result = read_from(fid, into, most, sources);
    if (result != -FI_EAGAIN) pause_reset(queue);
    return result;
}

/* For a program that polls: mostly there is nothing, then an end. */
static ssize_t poll_from(struct fid_cq *fid, void *into, size_t most, fi_addr_t *sources)
{
    struct cq *queue = container(fid, struct cq, fid);
    enter(queue->domain);
    if (unlikely(queue->count > 0 || queue->domain->pauses)) return poll_anyhow(fid, into, most, sources);
    int taken = take_entries(queue, into, most, sources);
    bool pending = atomic_load_explicit(&queue->domain->pending_hellos, memory_order_relaxed) != NULL;
    if (unlikely((taken <= 0 && taken != -EAGAIN) || pending)) {
        if (taken <= 0) return poll_anyhow(fid, into, most, sources);
        hellos_read(queue->domain);
    }
    if (likely(taken > 0)) pause_reset(queue);
    leave(queue->domain);
    return likely(taken > 0) ? taken : -FI_EAGAIN;
}

static ssize_t read_plain(struct fid_cq *fid, void *into, size_t most) { return poll_from(fid, into, most, NULL); }

/* Fields of later versions are not written: a program of an older one has something else there. */
static ssize_t read_error(struct fid_cq *fid, struct fi_cq_err_entry *into, uint64_t flags)
{
    struct cq *queue = container(fid, struct cq, fid);
    ssize_t result = -FI_EAGAIN;
    enter(queue->domain);
    if (queue->count > 0 && front(queue)->error != 0) {
        struct event *event = front(queue);
        into->op_context = event->context;
        into->flags = event->flags;
        into->len = event->length;
        into->buf = event->buffer;
        into->data = event->data;
        into->tag = event->tag;
        into->olen = event->beyond;
        into->err = event->error;
        into->prov_errno = event->error;
        if (queue->domain->version >= FI_VERSION(1, 5)) into->err_data_size = 0;
        drop_front(queue);
        result = 1;
    }
    leave(queue->domain);
    return result;
}

/* ---------------------------------------------------------------- sleep */

/* Operations of all queues that have ended so far. */
static uint64_t ended(const struct domain *domain)
{
    uint64_t sum = 0;
    for (const struct cq *queue = domain->queues; queue; queue = queue->next) {
        struct motet_cq_counters counts = MOTET_INIT(struct motet_cq_counters);
        if (motet_cq_counts(domain->node, queue->group, &counts) == 0) sum += counts.succeeded + counts.failed;
    }
    return sum;
}

/* Arms the node's descriptor: false when there is something to do already. Of the whole domain, as one descriptor is for all of it. */
bool domain_may_sleep(struct domain *domain)
{
    uint64_t before = ended(domain);
    domain_pump(domain);
    if (atomic_load(&domain->pending_hellos)) return false;
    if (ended(domain) != before) return false; /* what a round for one queue has ended may lie in the group of another */
    for (struct cq *queue = domain->queues; queue; queue = queue->next)
        if (queue->count > 0) return false;
    return motet_node_arm(domain->node) == 1;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static ssize_t wait_from(struct fid_cq *fid, void *into, size_t most, fi_addr_t *sources, const void *condition, int timeout)
{
    struct cq *queue = container(fid, struct cq, fid);
    int64_t until = timeout < 0 ? INT64_MAX : now_ms() + timeout;
    if (queue->wait == FI_WAIT_NONE) return -FI_EINVAL;
    for (;;) {
        ssize_t result = read_from(fid, into, most, sources);
        if (result != -FI_EAGAIN || atomic_exchange(&queue->signalled, false)) return result;
        int64_t left = until == INT64_MAX ? -1 : until - now_ms();
        if (until != INT64_MAX && left <= 0) return -FI_EAGAIN;
        enter(queue->domain);
        bool sleeps = queue->count == 0 && domain_may_sleep(queue->domain);
        leave(queue->domain);
        struct pollfd descriptors[2] = { { motet_node_descriptor(queue->domain->node), POLLIN, 0 }, { queue->pipe[0], POLLIN, 0 } };
        if (sleeps && poll(descriptors, 2, (int)left) < 0 && errno != EINTR) return -errno;
        char byte[16];
        if (sleeps && descriptors[1].revents && read(queue->pipe[0], byte, sizeof byte) < 0 && errno != EAGAIN) return -errno;
    }
}

static ssize_t wait_plain(struct fid_cq *fid, void *into, size_t most, const void *condition, int timeout)
{
    return wait_from(fid, into, most, NULL, condition, timeout);
}

/* Has one who waits return. */
static int signal_queue(struct fid_cq *fid)
{
    struct cq *queue = container(fid, struct cq, fid);
    if (queue->wait == FI_WAIT_NONE) return -FI_EINVAL;
    atomic_store(&queue->signalled, true);
    return write(queue->pipe[1], "", 1) < 0 && errno != EAGAIN ? -errno : 0;
}

int trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
    for (int i = 0; i < count; i++) {
        struct domain *domain = NULL;
        if (fids[i]->fclass == FI_CLASS_CQ) domain = container(fids[i], struct cq, fid.fid)->domain;
        if (fids[i]->fclass == FI_CLASS_CNTR) domain = container(fids[i], struct cntr, fid.fid)->domain;
        if (fids[i]->fclass == FI_CLASS_EQ) continue;
        if (!domain) return -FI_EINVAL;
        enter(domain);
        bool may = domain_may_sleep(domain);
        leave(domain);
        if (!may) return -FI_EAGAIN;
    }
    return 0;
}

static int control(struct fid *fid, int command, void *arg)
{
    struct cq *queue = container(fid, struct cq, fid.fid);
    if (command == FI_GETWAITOBJ) {
        *(enum fi_wait_obj *)arg = queue->wait;
        return 0;
    }
    if (command != FI_GETWAIT || queue->wait != FI_WAIT_FD) return -FI_ENOSYS;
    *(int *)arg = motet_node_descriptor(queue->domain->node);
    return 0;
}

/* ---------------------------------------------------------------- life */

static const char *words(struct fid_cq *fid, int error, const void *data, char *text, size_t length)
{
    const char *found = error == FI_ETRUNC ? "message longer than the buffer" : error == FI_ENOMSG ? "no such message" : strerror(error);
    if (text && length) snprintf(text, length, "%s", found);
    return text && length ? text : found;
}

void cq_forget(struct cq *queue, struct endpoint *endpoint)
{
    for (size_t i = 0; i < queue->count; i++) {
        struct event *event = &queue->events[(queue->first + i) & (queue->size - 1)];
        if (event->endpoint == endpoint) event->endpoint = NULL;
    }
}

int cq_free(struct cq *queue)
{
    struct domain *domain = queue->domain;
    for (struct cq **at = &domain->queues; *at; at = &(*at)->next)
        if (*at == queue) {
            *at = queue->next;
            break;
        }
    motet_cq_free(domain->node, queue->group);
    if (queue->wait != FI_WAIT_NONE) close(queue->pipe[0]), close(queue->pipe[1]);
    free(queue->events);
    free(queue->ends);
    free(queue);
    return 0;
}

static int queue_close(struct fid *fid)
{
    struct cq *queue = container(fid, struct cq, fid.fid);
    struct domain *domain = queue->domain;
    enter(domain);
    int result = queue->users ? -FI_EBUSY : cq_free(queue);
    if (result == 0) domain->users--;
    leave(domain);
    return result;
}

static struct fi_ops object = {
    .size = sizeof object, .close = queue_close, .bind = unsupported_bind, .control = control, .ops_open = unsupported_ops,
};

static struct fi_ops_cq operations = {
    .size = sizeof operations,
    .read = read_plain,
    .readfrom = poll_from,
    .readerr = read_error,
    .sread = wait_plain,
    .sreadfrom = wait_from,
    .signal = signal_queue,
    .strerror = words,
};

/* One that no program reads, for the ends of operations that are only counted. The lock is held. */
struct cq *cq_own(struct domain *domain)
{
    struct cq *queue = calloc(1, sizeof *queue);
    if (!queue) return NULL;
    queue->domain = domain;
    queue->wait = FI_WAIT_NONE;
    if (!completions_alloc(queue) || motet_cq_new(domain->node, &queue->group) != 0) {
        free(queue->ends);
        free(queue);
        return NULL;
    }
    queue->next = domain->queues;
    domain->queues = queue;
    return queue;
}

int cq_open(struct fid_domain *fid, struct fi_cq_attr *attr, struct fid_cq **out, void *context)
{
    struct domain *domain = container(fid, struct domain, fid);
    enum fi_wait_obj wait = attr->wait_obj == FI_WAIT_UNSPEC ? FI_WAIT_FD : attr->wait_obj;
    if ((wait != FI_WAIT_NONE && wait != FI_WAIT_FD) || attr->wait_cond != FI_CQ_COND_NONE) return -FI_ENOSYS;
    enter(domain);
    struct cq *queue = cq_own(domain);
    if (queue && wait == FI_WAIT_FD && pipe2(queue->pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
        cq_free(queue);
        queue = NULL;
    }
    if (queue) {
        queue->wait = wait;
        queue->told = true;
        queue->format = attr->format == FI_CQ_FORMAT_UNSPEC ? FI_CQ_FORMAT_TAGGED : attr->format;
        attr->format = queue->format;
        queue->entry = form_size(queue->format);
        queue->fid.fid.fclass = FI_CLASS_CQ;
        queue->fid.fid.context = context;
        queue->fid.fid.ops = &object;
        queue->fid.ops = &operations;
        domain->users++;
        *out = &queue->fid;
    }
    leave(domain);
    return queue ? 0 : -FI_ENOMEM;
}
