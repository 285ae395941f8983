/* completion.c: how operations end: completions of the engine become events of a queue and counts. */
#include "fabric.h"

int to_errno(int status)
{
    int error = status < 0 ? -status : status;
    switch (error) {
    case EMSGSIZE: return FI_ETRUNC;
    case EPIPE: return FI_ECONNRESET; /* the other endpoint was closed */
    case ENOBUFS: return FI_EAGAIN;
    default: return error; /* libfabric's are those of the system */
    }
}

bool cq_grow(struct cq *queue)
{
    size_t size = queue->size ? queue->size * 2 : 256;
    struct event *events = malloc(size * sizeof *events);
    if (!events) return false;
    for (size_t i = 0; i < queue->count; i++)
        events[i] = queue->events[(queue->first + i) & (queue->size - 1)];
    free(queue->events);
    queue->events = events;
    queue->first = 0;
    queue->size = size;
    return true;
}

/* An operation's end, for the queue (failures always) and the counter. */
void report(struct endpoint *endpoint, struct cq *queue, const struct event *event, bool told, enum counted what)
{
    count(endpoint, what, event->error);
    if (!queue->told || !(told || event->error)) return;
    *cq_next_event(queue) = *event;
}

/* The endpoint of which this is a channel; NULL: it is none's, or was never known. */
static struct endpoint *endpoint_of(const struct domain *domain, motet_channel channel)
{
    struct endpoint *endpoint = domain->endpoints;
    while (endpoint && !hash_map_find(&endpoint->by_channel, channel))
        endpoint = endpoint->next;
    return endpoint;
}

/* What a receive has got. */
static inline void describe(struct event *event, const struct motet_completion *end)
{
    event->length = end->length;
    event->tag = end->tag;
    event->channel = end->channel;
    if (end->headers_length == sizeof event->data) {
        memcpy(&event->data, end->headers, sizeof event->data);
        event->flags |= FI_REMOTE_CQ_DATA;
    }
    if (unlikely(end->status != 0)) {
        event->error = to_errno(end->status);
        event->beyond = event->error == FI_ETRUNC ? end->message_length - end->length : 0;
    }
}

static void finish_nameless(struct cq *queue, const struct motet_completion *end)
{
    struct event event = { .context = (void *)(uintptr_t)end->user_data, .flags = FI_RECV | FI_TAGGED };
    describe(&event, end);
    event.endpoint = endpoint_of(queue->domain, end->channel);
    *cq_next_event(queue) = event;
}

/* A buffer for many messages has got one: true, it goes on. */
static bool goes_on(struct request *request, const struct motet_completion *end)
{
    size_t used = (end->length + 7) & ~(size_t)7;
    if (end->status != 0 || used >= request->left || request->left - used < request->endpoint->least) return false;
    request->place += used;
    request->left -= used;
    return receive_post(request) == 0;
}

/* One child of a request has completed, or its creation has: the last one reports the event. */
void request_piece_ended(struct request *whole, int status)
{
    if (status != 0 && whole->error == 0) whole->error = to_errno(status);
    if (--whole->children > 0) return;
    struct endpoint *endpoint = whole->endpoint;
    struct event event = { .context = whole->context, .flags = whole->flags, .endpoint = endpoint, .error = whole->error };
    report(endpoint, endpoint->sends, &event, whole->told, whole->counter);
    request_give_back(whole);
}

static __attribute__((noinline)) void finish(struct cq *queue, const struct motet_completion *end)
{
    struct request *request = (struct request *)(uintptr_t)end->user_data;
    request_forget(request);
    if (unlikely(request->parent != NULL)) {
        request_piece_ended(request->parent, end->status);
        request_give_back(request);
        return;
    }
    struct event event = { .context = request->context, .flags = request->flags, .endpoint = request->endpoint };
    if (request->flags & FI_RECV) {
        describe(&event, end);
        event.buffer = (char *)request->buffer + request->place;
    } else if (unlikely(end->status != 0)) {
        event.error = to_errno(end->status);
    }
    bool more = request->multi_recv && goes_on(request, end);
    if (request->multi_recv && !more) event.flags |= FI_MULTI_RECV;
    report(request->endpoint, queue, &event, request->told, request->counter);
    if (!more) request_give_back(request);
}

bool completions_alloc(struct cq *queue)
{
    if ((queue->ends = aligned_alloc(64, BATCH * END_SIZE))) queue->ends[0].size = END_SIZE;
    return queue->ends != NULL;
}

void cq_finish(struct cq *queue, int taken)
{
    for (int i = 0; i < taken; i++)
        (is_unrecorded(end_of(queue, i)) ? finish_nameless : finish)(queue, end_of(queue, i));
    hellos_read(queue->domain);
}

void cq_pump(struct cq *queue)
{
    cq_finish(queue, cq_take(queue, BATCH));
}

void domain_pump(struct domain *domain)
{
    for (struct cq *queue = domain->queues; queue; queue = queue->next)
        cq_pump(queue);
}
