/* unsupported.c: calls that the provider does not offer and that return -FI_ENOSYS. Only calls without a capability bit, or of capabilities that
 * the provider does not report. */
#include "fabric.h"

int unsupported_bind(struct fid *fid, struct fid *other, uint64_t flags) { return -FI_ENOSYS; }
int unsupported_control(struct fid *fid, int command, void *arg) { return -FI_ENOSYS; }
int unsupported_ops(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context) { return -FI_ENOSYS; }

#define UNSUPPORTED(type, name, ...) \
    static type name(__VA_ARGS__) { return -FI_ENOSYS; }
#define TYPE_AND_OP enum fi_datatype datatype, enum fi_op op
#define CONTEXT void *context

#define RESULTS struct fi_ioc *results, void **result_desc, size_t result_count
#define GROUP fi_addr_t group
#define BUFFERS const void *buf, size_t n, void *desc, void *result, void *result_desc
#define OF_TYPE enum fi_datatype datatype, uint64_t flags

UNSUPPORTED(ssize_t, unsupported_barrier, struct fid_ep *ep, GROUP, CONTEXT)
UNSUPPORTED(ssize_t, unsupported_broadcast, struct fid_ep *ep, void *buf, size_t n, void *desc, GROUP, fi_addr_t root, OF_TYPE, CONTEXT)
UNSUPPORTED(ssize_t, unsupported_all, struct fid_ep *ep, BUFFERS, GROUP, OF_TYPE, CONTEXT)
UNSUPPORTED(ssize_t, unsupported_allreduce, struct fid_ep *ep, BUFFERS, GROUP, TYPE_AND_OP, uint64_t flags, CONTEXT)
UNSUPPORTED(ssize_t, unsupported_reduce, struct fid_ep *ep, BUFFERS, GROUP, fi_addr_t root, TYPE_AND_OP, uint64_t flags, CONTEXT)
UNSUPPORTED(ssize_t, unsupported_rooted, struct fid_ep *ep, BUFFERS, GROUP, fi_addr_t root, OF_TYPE, CONTEXT)
UNSUPPORTED(ssize_t, unsupported_msg, struct fid_ep *ep, const struct fi_msg_collective *msg, RESULTS, uint64_t flags)
UNSUPPORTED(ssize_t, unsupported_barrier2, struct fid_ep *ep, GROUP, uint64_t flags, CONTEXT)

struct fi_ops_collective unsupported_collective_ops = {
    .size = sizeof unsupported_collective_ops,
    .barrier = unsupported_barrier,
    .broadcast = unsupported_broadcast,
    .alltoall = unsupported_all,
    .allreduce = unsupported_allreduce,
    .allgather = unsupported_all,
    .reduce_scatter = unsupported_allreduce,
    .reduce = unsupported_reduce,
    .scatter = unsupported_rooted,
    .gather = unsupported_rooted,
    .msg = unsupported_msg,
    .barrier2 = unsupported_barrier2,
};
