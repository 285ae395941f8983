/* provider.c: the one symbol that libfabric looks up, and the fabric, which is only a name. */
#include "fabric.h"

#include <rdma/providers/fi_prov.h>

struct fabric {
    struct fid_fabric fid;
};

static int fabric_close(struct fid *fid)
{
    free(container_of(fid, struct fabric, fid.fid));
    return 0;
}

static struct fi_ops fabric_fid_ops = {
    .size = sizeof fabric_fid_ops, .close = fabric_close, .bind = unsupported_bind, .control = unsupported_control, .ops_open = unsupported_ops,
};

static int unsupported_passive_ep(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **out, void *context) { return -FI_ENOSYS; }
static int unsupported_wait_set(struct fid_fabric *fabric, struct fi_wait_attr *attr, struct fid_wait **out) { return -FI_ENOSYS; }

static int domain_with_flags(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, uint64_t flags, void *context)
{
    return flags ? -FI_EINVAL : domain_open(fabric, info, out, context);
}

static struct fi_ops_fabric fabric_ops = {
    .size = sizeof fabric_ops,
    .domain = domain_open,
    .passive_ep = unsupported_passive_ep,
    .eq_open = eq_open,
    .wait_open = unsupported_wait_set,
    .trywait = fabric_trywait,
    .domain2 = domain_with_flags,
};

static int fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context)
{
    if (attr->name && strcmp(attr->name, PROVIDER_NAME) != 0) return -FI_ENODATA;
    struct fabric *fabric = calloc(1, sizeof *fabric);
    if (!fabric) return -FI_ENOMEM;
    fabric->fid.fid.fclass = FI_CLASS_FABRIC;
    fabric->fid.fid.context = context;
    fabric->fid.fid.ops = &fabric_fid_ops;
    fabric->fid.ops = &fabric_ops;
    fabric->fid.api_version = attr->api_version;
    *out = &fabric->fid;
    return 0;
}

static void provider_cleanup(void) {}

static struct fi_provider provider = {
    .version = PROVIDER_VERSION,
    .name = PROVIDER_NAME,
    .getinfo = provider_getinfo,
    .fabric = fabric_open,
    .cleanup = provider_cleanup,
};

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void);

/* Returns NULL, so that the provider does not exist, if the caller is not a libfabric. */
struct fi_provider *fi_prov_ini(void)
{
    if (!libfabric_find(__builtin_return_address(0))) return NULL;
    provider.fi_version = libfabric_version();
    return &provider;
}
