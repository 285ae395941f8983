/* mr.c: memory regions. A region has Motet's key (FI_MR_PROV_KEY) and is addressed from offset 0, or from its address where the program asks
 * for that (FI_MR_VIRT_ADDR).
 *
 * A program's own buffers need no registration: sends, receives, puts and gets take them as they are. */
#include "fabric.h"

#include <time.h>

#define REVOKE_TIMEOUT_NS ((int64_t)10 * 1000000000) /* for peers to stop direct access; a second close waits again */

struct region {
    struct fid_mr fid;
    struct domain *domain;
    bool reachable; /* otherwise its key is 0, which is no region's */
};

static int region_close(struct fid *fid)
{
    struct region *region = container(fid, struct region, fid.fid);
    struct domain *domain = region->domain;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t until = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + REVOKE_TIMEOUT_NS;
    int result = region->reachable ? motet_region_revoke(domain->node, region->fid.key, until) : 0;
    if (result == -ETIMEDOUT || result == -EAGAIN) return -FI_EBUSY;
    enter(domain);
    domain->users--;
    leave(domain);
    free(region);
    return 0;
}

static struct fi_ops object = {
    .size = sizeof object, .close = region_close, .bind = unsupported_bind, .control = unsupported_control, .ops_open = unsupported_ops,
};

static int register_attr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **out)
{
    struct domain *domain = container(fid, struct domain, fid.fid);
    if (attr->iov_count != 1 || attr->offset != 0 || flags & ~(uint64_t)FI_HMEM_HOST_ALLOC) return -FI_EINVAL;
    char *base = attr->mr_iov->iov_base;
    uint32_t rights = 0;
    bool empty = attr->mr_iov->iov_len == 0; /* of a rank that takes part in a window and has no memory in it */
    if (attr->access & FI_REMOTE_READ && !empty) rights |= MOTET_REGION_GET;
    if (attr->access & FI_REMOTE_WRITE && !empty) rights |= MOTET_REGION_PUT;
    /* Atomics want their elements where the processor does them, and an offset must report: memory that does not begin there has none. */
    bool tells = domain->by_address || (uintptr_t)base % 8 == 0;
    if (rights == (MOTET_REGION_GET | MOTET_REGION_PUT) && tells) rights |= MOTET_REGION_ATOMIC;
    uint64_t first = domain->by_address ? (uintptr_t)base : 0;
    struct region *region = calloc(1, sizeof *region);
    if (!region) return -FI_ENOMEM;
    region->domain = domain;
    region->reachable = rights != 0;
    int result = rights ? motet_region_register_iova(domain->node, base, attr->mr_iov->iov_len, first, rights, &region->fid.key) : 0;
    if (result != 0) {
        free(region);
        return -to_errno(result);
    }
    region->fid.fid.fclass = FI_CLASS_MR;
    region->fid.fid.context = attr->context;
    region->fid.fid.ops = &object;
    region->fid.mem_desc = region;
    enter(domain);
    domain->users++;
    leave(domain);
    *out = &region->fid;
    return 0;
}

static int register_list(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access, uint64_t offset, uint64_t key,
                         uint64_t flags, struct fid_mr **out, void *context)
{
    struct fi_mr_attr attr = { .mr_iov = iov, .iov_count = count, .access = access, .offset = offset, .requested_key = key, .context = context };
    return register_attr(fid, &attr, flags, out);
}

static int register_one(struct fid *fid, const void *base, size_t length, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags,
                        struct fid_mr **out, void *context)
{
    struct iovec iov = { (void *)base, length };
    return register_list(fid, &iov, 1, access, offset, key, flags, out, context);
}

struct fi_ops_mr regions = { .size = sizeof regions, .reg = register_one, .regv = register_list, .regattr = register_attr };
