/* mr.c: memory regions. A region has Motet's key (FI_MR_PROV_KEY) and is addressed from offset 0, or from its address where the program asks
 * for that (FI_MR_VIRT_ADDR).
 *
 * A program's own buffers need no registration: sends, receives, puts and gets take them as they are. */
#include "fabric.h"

#include <time.h>

#define REVOKE_TIMEOUT_NS ((int64_t)10 * 1000000000) /* for peers to stop direct access; a second close waits again */

struct mr {
    struct fid_mr fid;
    struct domain *domain;
    bool reachable; /* otherwise the key is 0, which belongs to no region */
};

static int mr_close(struct fid *fid)
{
    struct mr *mr = container_of(fid, struct mr, fid.fid);
    struct domain *domain = mr->domain;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t deadline = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + REVOKE_TIMEOUT_NS;
    int result = mr->reachable ? motet_region_revoke(domain->node, mr->fid.key, deadline) : 0;
    if (result == -ETIMEDOUT || result == -EAGAIN) return -FI_EBUSY;
    domain_lock(domain);
    domain->references--;
    domain_unlock(domain);
    free(mr);
    return 0;
}

static struct fi_ops mr_fid_ops = {
    .size = sizeof mr_fid_ops, .close = mr_close, .bind = unsupported_bind, .control = unsupported_control, .ops_open = unsupported_ops,
};

static int mr_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **out)
{
    struct domain *domain = container_of(fid, struct domain, fid.fid);
    if (attr->iov_count != 1 || attr->offset != 0 || flags & ~(uint64_t)FI_HMEM_HOST_ALLOC) return -FI_EINVAL;
    char *base = attr->mr_iov->iov_base;
    uint32_t rights = 0;
    bool empty = attr->mr_iov->iov_len == 0; /* of a rank that contributes no memory to a window */
    if (attr->access & FI_REMOTE_READ && !empty) rights |= MOTET_REGION_GET;
    if (attr->access & FI_REMOTE_WRITE && !empty) rights |= MOTET_REGION_PUT;
    /* Atomics need aligned elements. An offset shows the alignment only where the region begins at a multiple of 8; other regions have no atomics. */
    bool aligned = domain->by_address || (uintptr_t)base % 8 == 0;
    if (rights == (MOTET_REGION_GET | MOTET_REGION_PUT) && aligned) rights |= MOTET_REGION_ATOMIC;
    uint64_t first_address = domain->by_address ? (uintptr_t)base : 0;
    struct mr *mr = calloc(1, sizeof *mr);
    if (!mr) return -FI_ENOMEM;
    mr->domain = domain;
    mr->reachable = rights != 0;
    int result = rights ? motet_region_register_iova(domain->node, base, attr->mr_iov->iov_len, first_address, rights, &mr->fid.key) : 0;
    if (result != 0) {
        free(mr);
        return -to_errno(result);
    }
    mr->fid.fid.fclass = FI_CLASS_MR;
    mr->fid.fid.context = attr->context;
    mr->fid.fid.ops = &mr_fid_ops;
    mr->fid.mem_desc = mr;
    domain_lock(domain);
    domain->references++;
    domain_unlock(domain);
    *out = &mr->fid;
    return 0;
}

static int mr_regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access, uint64_t offset, uint64_t key,
                   uint64_t flags, struct fid_mr **out, void *context)
{
    struct fi_mr_attr attr = { .mr_iov = iov, .iov_count = count, .access = access, .offset = offset, .requested_key = key, .context = context };
    return mr_regattr(fid, &attr, flags, out);
}

static int mr_reg(struct fid *fid, const void *base, size_t length, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags,
                  struct fid_mr **out, void *context)
{
    struct iovec iov = { (void *)base, length };
    return mr_regv(fid, &iov, 1, access, offset, key, flags, out, context);
}

struct fi_ops_mr mr_ops = { .size = sizeof mr_ops, .reg = mr_reg, .regv = mr_regv, .regattr = mr_regattr };
