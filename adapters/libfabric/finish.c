/* finish.c: how operations end: from the ends that a queue's group has to tell to events and counts. */
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

static bool grow(struct queue *queue)
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
void tell(struct endpoint *endpoint, struct queue *queue, const struct event *event, bool told, enum counted what)
{
    count(endpoint, what, event->error);
    if (!queue->told || !(told || event->error)) return;
    if (unlikely(queue->count == queue->size && !grow(queue))) abort(); /* an event that is lost is a program that waits for ever */
    queue->events[(queue->first + queue->count++) & (queue->size - 1)] = *event;
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

/* A piece of several, or whoever has made them, is done with: the last one tells. */
void request_piece_ended(struct request *whole, int status)
{
    if (status != 0 && whole->error == 0) whole->error = to_errno(status);
    if (--whole->pieces > 0) return;
    struct endpoint *endpoint = whole->endpoint;
    struct event event = { .context = whole->context, .flags = whole->flags, .endpoint = endpoint, .error = whole->error };
    tell(endpoint, endpoint->sends, &event, whole->told, whole->counter);
    request_give_back(whole);
}

static void finish(struct queue *queue, const struct motet_completion *end)
{
    struct request *request = (struct request *)(uintptr_t)end->context;
    request_forget(request);
    if (unlikely(request->whole != NULL)) {
        request_piece_ended(request->whole, end->status);
        request_give_back(request);
        return;
    }
    struct event event = { .context = request->context, .flags = request->flags, .endpoint = request->endpoint };
    if (request->flags & FI_RECV) {
        event.length = end->length;
        event.tag = end->tag;
        event.channel = end->channel;
        event.buffer = (char *)request->buffer + request->place;
        if (end->headers_length == sizeof event.data) {
            memcpy(&event.data, end->headers, sizeof event.data);
            event.flags |= FI_REMOTE_CQ_DATA;
        }
    }
    if (unlikely(end->status != 0)) {
        event.error = to_errno(end->status);
        event.beyond = event.error == FI_ETRUNC ? end->full - end->length : 0;
    }
    bool more = request->many && goes_on(request, end);
    if (request->many && !more) event.flags |= FI_MULTI_RECV;
    tell(request->endpoint, queue, &event, request->told, request->counter);
    if (!more) request_give_back(request);
}

/* The same of a receive that ended as asked, for whoever reads right now and is to have it next. False: it is not that. */
static inline bool finish_at_once(struct queue *queue, const struct motet_completion *end, struct reader *reader)
{
    struct request *request = (struct request *)(uintptr_t)end->context;
    if (reader->taken == reader->most || queue->count > 0 || end->status != 0) return false;
    if (!(request->flags & FI_RECV) || request->whole || request->many || !request->told) return false;
    /* Field by field where it is wanted: what is put together elsewhere by words and copied by pairs of them is waited for. */
    struct fi_cq_tagged_entry apart, *place = (void *)(reader->into + reader->taken * reader->size);
    struct fi_cq_tagged_entry *entry = likely(reader->size == sizeof apart) ? place : &apart;
    bool data = end->headers_length == sizeof entry->data;
    entry->op_context = request->context;
    entry->flags = request->flags | (data ? FI_REMOTE_CQ_DATA : 0);
    entry->len = end->length;
    entry->buf = request->buffer;
    entry->tag = end->tag;
    entry->data = 0;
    if (data) memcpy(&entry->data, end->headers, sizeof entry->data);
    if (unlikely(entry == &apart)) write_entry((char *)place, reader->size, &apart);
    if (reader->sources) reader->sources[reader->taken] = peer_source(request->endpoint, end->channel);
    reader->taken++;
    count(request->endpoint, request->counter, 0);
    request_forget(request);
    request_give_back(request);
    return true;
}

bool ends_make(struct queue *queue)
{
    if ((queue->ends = malloc(BATCH * sizeof *queue->ends))) queue->ends[0].size = sizeof *queue->ends;
    return queue->ends != NULL;
}

void queue_finish(struct queue *queue, int taken, struct reader *reader)
{
    for (int i = 0; i < taken; i++)
        if (!finish_at_once(queue, &queue->ends[i], reader)) finish(queue, &queue->ends[i]);
    mail_read(queue->domain);
}

void queue_pump(struct queue *queue)
{
    struct reader nobody = { .most = 0 };
    queue_finish(queue, queue_take(queue), &nobody);
}

void domain_pump(struct domain *domain)
{
    for (struct queue *queue = domain->queues; queue; queue = queue->next)
        queue_pump(queue);
}
