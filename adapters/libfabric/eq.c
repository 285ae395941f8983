/* eq.c: event queues. Nothing that this provider offers is asynchronous (connections, address vectors), so an event queue holds only what
 * the program writes to it. */
#include "fabric.h"

#include <time.h>

struct written {
    struct written *next;
    uint32_t event;
    size_t length;
    char bytes[];
};

struct events {
    struct fid_eq fid;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct written *first, **last;
};

static ssize_t take(struct events *events, uint32_t *event, void *into, size_t length, uint64_t flags)
{
    struct written *written = events->first;
    if (!written) return -FI_EAGAIN;
    if (length < written->length) return -FI_ETOOSMALL;
    *event = written->event;
    memcpy(into, written->bytes, written->length);
    ssize_t result = (ssize_t)written->length;
    if (flags & FI_PEEK) return result;
    if (!(events->first = written->next)) events->last = &events->first;
    free(written);
    return result;
}

static ssize_t read_event(struct fid_eq *fid, uint32_t *event, void *into, size_t length, uint64_t flags)
{
    struct events *events = container(fid, struct events, fid);
    pthread_mutex_lock(&events->lock);
    ssize_t result = take(events, event, into, length, flags);
    pthread_mutex_unlock(&events->lock);
    return result;
}

static ssize_t read_error(struct fid_eq *fid, struct fi_eq_err_entry *into, uint64_t flags) { return -FI_EAGAIN; }

static ssize_t write_event(struct fid_eq *fid, uint32_t event, const void *bytes, size_t length, uint64_t flags)
{
    struct events *events = container(fid, struct events, fid);
    struct written *written = malloc(sizeof *written + length);
    if (!written) return -FI_ENOMEM;
    *written = (struct written){ NULL, event, length };
    memcpy(written->bytes, bytes, length);
    pthread_mutex_lock(&events->lock);
    *events->last = written;
    events->last = &written->next;
    pthread_cond_signal(&events->more);
    pthread_mutex_unlock(&events->lock);
    return (ssize_t)length;
}

static ssize_t wait_event(struct fid_eq *fid, uint32_t *event, void *into, size_t length, int timeout, uint64_t flags)
{
    struct events *events = container(fid, struct events, fid);
    struct timespec until;
    int slept = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout / 1000;
    until.tv_nsec += (long)(timeout % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&events->lock);
    while (!events->first && slept != ETIMEDOUT)
        slept = timeout < 0 ? pthread_cond_wait(&events->more, &events->lock) : pthread_cond_timedwait(&events->more, &events->lock, &until);
    ssize_t result = take(events, event, into, length, flags);
    pthread_mutex_unlock(&events->lock);
    return result;
}

static const char *words(struct fid_eq *fid, int error, const void *data, char *text, size_t length) { return strerror(error); }

static int events_close(struct fid *fid)
{
    struct events *events = container(fid, struct events, fid.fid);
    for (struct written *written; (written = events->first);) {
        events->first = written->next;
        free(written);
    }
    pthread_cond_destroy(&events->more);
    pthread_mutex_destroy(&events->lock);
    free(events);
    return 0;
}

static struct fi_ops object = {
    .size = sizeof object, .close = events_close, .bind = unsupported_bind, .control = unsupported_control, .ops_open = unsupported_ops,
};

static struct fi_ops_eq operations = {
    .size = sizeof operations, .read = read_event, .readerr = read_error, .write = write_event, .sread = wait_event, .strerror = words,
};

int eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **out, void *context)
{
    if (attr && attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_UNSPEC) return -FI_ENOSYS;
    struct events *events = calloc(1, sizeof *events);
    if (!events) return -FI_ENOMEM;
    pthread_mutex_init(&events->lock, NULL);
    pthread_cond_init(&events->more, NULL);
    events->last = &events->first;
    events->fid.fid.fclass = FI_CLASS_EQ;
    events->fid.fid.context = context;
    events->fid.fid.ops = &object;
    events->fid.ops = &operations;
    *out = &events->fid;
    return 0;
}
