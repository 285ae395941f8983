/* cntr.c: counters of completed operations. They need no events; reading one makes progress for the domain. */
#include "fabric.h"

#include <sched.h>
#include <time.h>

static void pump(struct cntr *counter)
{
    enter(counter->domain);
    domain_pump(counter->domain);
    leave(counter->domain);
}

static uint64_t read_done(struct fid_cntr *fid)
{
    struct cntr *counter = container(fid, struct cntr, fid);
    pump(counter);
    return atomic_load(&counter->done);
}

static uint64_t read_failed(struct fid_cntr *fid)
{
    struct cntr *counter = container(fid, struct cntr, fid);
    pump(counter);
    return atomic_load(&counter->failed);
}

static int add(struct fid_cntr *fid, uint64_t value)
{
    atomic_fetch_add(&container(fid, struct cntr, fid)->done, value);
    return 0;
}

static int set(struct fid_cntr *fid, uint64_t value)
{
    atomic_store(&container(fid, struct cntr, fid)->done, value);
    return 0;
}

static int add_failed(struct fid_cntr *fid, uint64_t value)
{
    atomic_fetch_add(&container(fid, struct cntr, fid)->failed, value);
    return 0;
}

static int set_failed(struct fid_cntr *fid, uint64_t value)
{
    atomic_store(&container(fid, struct cntr, fid)->failed, value);
    return 0;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Looks, without sleep: another thread may add to it, of which the node's descriptor tells nothing. */
static int wait_for(struct fid_cntr *fid, uint64_t threshold, int timeout)
{
    struct cntr *counter = container(fid, struct cntr, fid);
    uint64_t failed = atomic_load(&counter->failed);
    int64_t until = timeout < 0 ? INT64_MAX : now_ms() + timeout;
    do {
        if (read_done(fid) >= threshold) return 0;
        if (atomic_load(&counter->failed) != failed) return -FI_EAVAIL;
        if (counter->domain->pauses) sched_yield();
    } while (until == INT64_MAX || now_ms() < until);
    return -FI_ETIMEDOUT;
}

static int counter_close(struct fid *fid)
{
    struct cntr *counter = container(fid, struct cntr, fid.fid);
    if (counter->users) return -FI_EBUSY;
    enter(counter->domain);
    counter->domain->users--;
    leave(counter->domain);
    free(counter);
    return 0;
}

static struct fi_ops object = {
    .size = sizeof object, .close = counter_close, .bind = unsupported_bind, .control = unsupported_control, .ops_open = unsupported_ops,
};

static struct fi_ops_cntr operations = {
    .size = sizeof operations,
    .read = read_done,
    .readerr = read_failed,
    .add = add,
    .set = set,
    .wait = wait_for,
    .adderr = add_failed,
    .seterr = set_failed,
};

int cntr_open(struct fid_domain *fid, struct fi_cntr_attr *attr, struct fid_cntr **out, void *context)
{
    struct domain *domain = container(fid, struct domain, fid);
    if (attr && ((attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_UNSPEC) || attr->flags)) return -FI_ENOSYS;
    struct cntr *counter = calloc(1, sizeof *counter);
    if (!counter) return -FI_ENOMEM;
    counter->domain = domain;
    counter->fid.fid.fclass = FI_CLASS_CNTR;
    counter->fid.fid.context = context;
    counter->fid.fid.ops = &object;
    counter->fid.ops = &operations;
    enter(domain);
    domain->users++;
    leave(domain);
    *out = &counter->fid;
    return 0;
}
