/* cntr.c: counters of completed operations. They need no events; reading one makes progress for the domain. */
#include "fabric.h"

#include <sched.h>
#include <time.h>

static void make_progress(struct cntr *cntr)
{
    domain_lock(cntr->domain);
    domain_pump(cntr->domain);
    domain_unlock(cntr->domain);
}

static uint64_t cntr_read(struct fid_cntr *fid)
{
    struct cntr *cntr = container_of(fid, struct cntr, fid);
    make_progress(cntr);
    return atomic_load(&cntr->done);
}

static uint64_t cntr_readerr(struct fid_cntr *fid)
{
    struct cntr *cntr = container_of(fid, struct cntr, fid);
    make_progress(cntr);
    return atomic_load(&cntr->failed);
}

static int cntr_add(struct fid_cntr *fid, uint64_t value)
{
    atomic_fetch_add(&container_of(fid, struct cntr, fid)->done, value);
    return 0;
}

static int cntr_set(struct fid_cntr *fid, uint64_t value)
{
    atomic_store(&container_of(fid, struct cntr, fid)->done, value);
    return 0;
}

static int cntr_adderr(struct fid_cntr *fid, uint64_t value)
{
    atomic_fetch_add(&container_of(fid, struct cntr, fid)->failed, value);
    return 0;
}

static int cntr_seterr(struct fid_cntr *fid, uint64_t value)
{
    atomic_store(&container_of(fid, struct cntr, fid)->failed, value);
    return 0;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Polls without sleeping: another thread may call fi_cntr_add(), which does not make the node's descriptor readable. */
static int cntr_wait(struct fid_cntr *fid, uint64_t threshold, int timeout)
{
    struct cntr *cntr = container_of(fid, struct cntr, fid);
    uint64_t failed = atomic_load(&cntr->failed);
    int64_t deadline_ms = timeout < 0 ? INT64_MAX : now_ms() + timeout;
    do {
        if (cntr_read(fid) >= threshold) return 0;
        if (atomic_load(&cntr->failed) != failed) return -FI_EAVAIL;
        if (cntr->domain->pauses) sched_yield();
    } while (deadline_ms == INT64_MAX || now_ms() < deadline_ms);
    return -FI_ETIMEDOUT;
}

static int cntr_close(struct fid *fid)
{
    struct cntr *cntr = container_of(fid, struct cntr, fid.fid);
    if (cntr->references) return -FI_EBUSY;
    domain_lock(cntr->domain);
    cntr->domain->references--;
    domain_unlock(cntr->domain);
    free(cntr);
    return 0;
}

static struct fi_ops cntr_fid_ops = {
    .size = sizeof cntr_fid_ops, .close = cntr_close, .bind = unsupported_bind, .control = unsupported_control, .ops_open = unsupported_ops,
};

static struct fi_ops_cntr cntr_ops = {
    .size = sizeof cntr_ops,
    .read = cntr_read,
    .readerr = cntr_readerr,
    .add = cntr_add,
    .set = cntr_set,
    .wait = cntr_wait,
    .adderr = cntr_adderr,
    .seterr = cntr_seterr,
};

int cntr_open(struct fid_domain *fid, struct fi_cntr_attr *attr, struct fid_cntr **out, void *context)
{
    struct domain *domain = container_of(fid, struct domain, fid);
    if (attr && ((attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_UNSPEC) || attr->flags)) return -FI_ENOSYS;
    struct cntr *cntr = calloc(1, sizeof *cntr);
    if (!cntr) return -FI_ENOMEM;
    cntr->domain = domain;
    cntr->fid.fid.fclass = FI_CLASS_CNTR;
    cntr->fid.fid.context = context;
    cntr->fid.fid.ops = &cntr_fid_ops;
    cntr->fid.ops = &cntr_ops;
    domain_lock(domain);
    domain->references++;
    domain_unlock(domain);
    *out = &cntr->fid;
    return 0;
}
