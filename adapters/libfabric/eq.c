/* eq.c: event queues. Nothing that this provider offers is asynchronous (connections, address vectors), so an event queue holds only what
 * the program writes to it. */
#include "fabric.h"

#include <time.h>

struct eq_entry {
    struct eq_entry *next;
    uint32_t event;
    size_t length;
    char bytes[];
};

struct eq {
    struct fid_eq fid;
    pthread_mutex_t lock;
    pthread_cond_t not_empty;
    struct eq_entry *head, **tail;
};

static ssize_t take_entry(struct eq *eq, uint32_t *event, void *into, size_t length, uint64_t flags)
{
    struct eq_entry *entry = eq->head;
    if (!entry) return -FI_EAGAIN;
    if (length < entry->length) return -FI_ETOOSMALL;
    *event = entry->event;
    memcpy(into, entry->bytes, entry->length);
    ssize_t result = (ssize_t)entry->length;
    if (flags & FI_PEEK) return result;
    if (!(eq->head = entry->next)) eq->tail = &eq->head;
    free(entry);
    return result;
}

static ssize_t eq_read(struct fid_eq *fid, uint32_t *event, void *into, size_t length, uint64_t flags)
{
    struct eq *eq = container_of(fid, struct eq, fid);
    pthread_mutex_lock(&eq->lock);
    ssize_t result = take_entry(eq, event, into, length, flags);
    pthread_mutex_unlock(&eq->lock);
    return result;
}

static ssize_t eq_readerr(struct fid_eq *fid, struct fi_eq_err_entry *into, uint64_t flags) { return -FI_EAGAIN; }

static ssize_t eq_write(struct fid_eq *fid, uint32_t event, const void *bytes, size_t length, uint64_t flags)
{
    struct eq *eq = container_of(fid, struct eq, fid);
    struct eq_entry *entry = malloc(sizeof *entry + length);
    if (!entry) return -FI_ENOMEM;
    *entry = (struct eq_entry){ NULL, event, length };
    memcpy(entry->bytes, bytes, length);
    pthread_mutex_lock(&eq->lock);
    *eq->tail = entry;
    eq->tail = &entry->next;
    pthread_cond_signal(&eq->not_empty);
    pthread_mutex_unlock(&eq->lock);
    return (ssize_t)length;
}

static ssize_t eq_sread(struct fid_eq *fid, uint32_t *event, void *into, size_t length, int timeout, uint64_t flags)
{
    struct eq *eq = container_of(fid, struct eq, fid);
    struct timespec deadline;
    int wait_result = 0;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += timeout / 1000;
    deadline.tv_nsec += (long)(timeout % 1000) * 1000000;
    if (deadline.tv_nsec >= 1000000000) deadline.tv_sec++, deadline.tv_nsec -= 1000000000;
    pthread_mutex_lock(&eq->lock);
    while (!eq->head && wait_result != ETIMEDOUT)
        wait_result = timeout < 0 ? pthread_cond_wait(&eq->not_empty, &eq->lock) : pthread_cond_timedwait(&eq->not_empty, &eq->lock, &deadline);
    ssize_t result = take_entry(eq, event, into, length, flags);
    pthread_mutex_unlock(&eq->lock);
    return result;
}

static const char *eq_strerror(struct fid_eq *fid, int error, const void *data, char *text, size_t length) { return strerror(error); }

static int eq_close(struct fid *fid)
{
    struct eq *eq = container_of(fid, struct eq, fid.fid);
    for (struct eq_entry *entry; (entry = eq->head);) {
        eq->head = entry->next;
        free(entry);
    }
    pthread_cond_destroy(&eq->not_empty);
    pthread_mutex_destroy(&eq->lock);
    free(eq);
    return 0;
}

static struct fi_ops eq_fid_ops = {
    .size = sizeof eq_fid_ops, .close = eq_close, .bind = unsupported_bind, .control = unsupported_control, .ops_open = unsupported_ops,
};

static struct fi_ops_eq eq_ops = {
    .size = sizeof eq_ops, .read = eq_read, .readerr = eq_readerr, .write = eq_write, .sread = eq_sread, .strerror = eq_strerror,
};

int eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **out, void *context)
{
    if (attr && attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_UNSPEC) return -FI_ENOSYS;
    struct eq *eq = calloc(1, sizeof *eq);
    if (!eq) return -FI_ENOMEM;
    pthread_mutex_init(&eq->lock, NULL);
    pthread_cond_init(&eq->not_empty, NULL);
    eq->tail = &eq->head;
    eq->fid.fid.fclass = FI_CLASS_EQ;
    eq->fid.fid.context = context;
    eq->fid.fid.ops = &eq_fid_ops;
    eq->fid.ops = &eq_ops;
    *out = &eq->fid;
    return 0;
}
