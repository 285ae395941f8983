/* completion.c: turns completions of the engine into events of a completion queue and counts of counters. */
#include "fabric.h"

int to_errno(int status)
{
    int error = status < 0 ? -status : status;
    switch (error) {
    case EMSGSIZE: return FI_ETRUNC;
    case EPIPE: return FI_ECONNRESET; /* the other endpoint was closed */
    case ENOBUFS: return FI_EAGAIN;
    default: return error; /* libfabric's numbers are those of errno */
    }
}

bool cq_grow(struct cq *cq)
{
    size_t size = cq->size ? cq->size * 2 : 256;
    struct event *events = malloc(size * sizeof *events);
    if (!events) return false;
    for (size_t i = 0; i < cq->count; i++)
        events[i] = cq->events[(cq->head + i) & (cq->size - 1)];
    free(cq->events);
    cq->events = events;
    cq->head = 0;
    cq->size = size;
    return true;
}

/* Counts a completed operation and adds its event to the queue. Failures are added even where the operation does not report. */
void report(struct endpoint *endpoint, struct cq *cq, const struct event *event, bool reports, enum cntr_kind kind)
{
    count_operation(endpoint, kind, event->error);
    if (!cq->user_visible || !(reports || event->error)) return;
    *cq_next_event(cq) = *event;
}

/* The endpoint that owns a channel; NULL: no endpoint does. */
static struct endpoint *endpoint_of(const struct domain *domain, motet_channel channel)
{
    struct endpoint *endpoint = domain->endpoints;
    while (endpoint && !hash_map_find(&endpoint->by_channel, channel))
        endpoint = endpoint->next;
    return endpoint;
}

/* Fills in what has been received. */
static inline void fill_receive_event(struct event *event, const struct motet_completion *completion)
{
    event->length = completion->length;
    event->tag = completion->tag;
    event->channel = completion->channel;
    if (completion->headers_length == sizeof event->data) {
        memcpy(&event->data, completion->headers, sizeof event->data);
        event->flags |= FI_REMOTE_CQ_DATA;
    }
    if (unlikely(completion->status != 0)) {
        event->error = to_errno(completion->status);
        event->truncated = event->error == FI_ETRUNC ? completion->message_length - completion->length : 0;
    }
}

static void complete_receive_without_request(struct cq *cq, const struct motet_completion *completion)
{
    struct event event = { .context = (void *)(uintptr_t)completion->user_data, .flags = FI_RECV | FI_TAGGED };
    fill_receive_event(&event, completion);
    event.endpoint = endpoint_of(cq->domain, completion->channel);
    *cq_next_event(cq) = event;
}

/* Posts the rest of a multi-receive buffer again, rounded up to 8 bytes. False: the buffer is used up. */
static bool repost_multi_recv(struct request *request, const struct motet_completion *completion)
{
    size_t used = (completion->length + 7) & ~(size_t)7;
    if (completion->status != 0 || used >= request->remaining || request->remaining - used < request->endpoint->min_multi_recv) return false;
    request->offset += used;
    request->remaining -= used;
    return recv_repost(request) == 0;
}

/* A child of a request has completed, or all children have been started. The last of these calls reports the event. */
void request_child_done(struct request *parent, int status)
{
    if (status != 0 && parent->error == 0) parent->error = to_errno(status);
    if (--parent->children > 0) return;
    struct endpoint *endpoint = parent->endpoint;
    struct event event = { .context = parent->context, .flags = parent->flags, .endpoint = endpoint, .error = parent->error };
    report(endpoint, endpoint->tx_cq, &event, parent->reports, parent->cntr_kind);
    request_free(parent);
}

static __attribute__((noinline)) void complete_request(struct cq *cq, const struct motet_completion *completion)
{
    struct request *request = (struct request *)(uintptr_t)completion->user_data;
    request_untrack(request);
    if (unlikely(request->parent != NULL)) {
        request_child_done(request->parent, completion->status);
        request_free(request);
        return;
    }
    struct event event = { .context = request->context, .flags = request->flags, .endpoint = request->endpoint };
    if (request->flags & FI_RECV) {
        fill_receive_event(&event, completion);
        event.buffer = (char *)request->buffer + request->offset;
    } else if (unlikely(completion->status != 0)) {
        event.error = to_errno(completion->status);
    }
    bool reposted = request->multi_recv && repost_multi_recv(request, completion);
    if (request->multi_recv && !reposted) event.flags |= FI_MULTI_RECV;
    report(request->endpoint, cq, &event, request->reports, request->cntr_kind);
    if (!reposted) request_free(request);
}

bool completions_alloc(struct cq *cq)
{
    if ((cq->completions = aligned_alloc(64, POLL_BATCH * COMPLETION_SIZE))) cq->completions[0].size = COMPLETION_SIZE;
    return cq->completions != NULL;
}

void cq_finish(struct cq *cq, int count)
{
    for (int i = 0; i < count; i++)
        (is_unrecorded(completion_at(cq, i)) ? complete_receive_without_request : complete_request)(cq, completion_at(cq, i));
    hellos_read(cq->domain);
}

void cq_pump(struct cq *cq)
{
    cq_finish(cq, cq_take(cq, POLL_BATCH));
}

void domain_pump(struct domain *domain)
{
    for (struct cq *cq = domain->cqs; cq; cq = cq->next)
        cq_pump(cq);
}
