/* unsupported.c: calls that this provider does not offer: those that a program has no bit to ask for, or has not asked for. */
#include "fabric.h"

int unsupported_bind(struct fid *fid, struct fid *other, uint64_t flags) { return -FI_ENOSYS; }
int unsupported_control(struct fid *fid, int command, void *arg) { return -FI_ENOSYS; }
int unsupported_ops(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context) { return -FI_ENOSYS; }

#define NO(type, name, ...) \
    static type name(__VA_ARGS__) { return -FI_ENOSYS; }
#define WHAT enum fi_datatype datatype, enum fi_op op
#define CONTEXT void *context

#define RESULTS struct fi_ioc *results, void **result_desc, size_t result_count
#define GROUP fi_addr_t group
#define BUFFERS const void *buf, size_t n, void *desc, void *result, void *result_desc
#define OF_TYPE enum fi_datatype datatype, uint64_t flags

NO(ssize_t, no_barrier, struct fid_ep *ep, GROUP, CONTEXT)
NO(ssize_t, no_broadcast, struct fid_ep *ep, void *buf, size_t n, void *desc, GROUP, fi_addr_t root, OF_TYPE, CONTEXT)
NO(ssize_t, no_all, struct fid_ep *ep, BUFFERS, GROUP, OF_TYPE, CONTEXT)
NO(ssize_t, no_all_reduced, struct fid_ep *ep, BUFFERS, GROUP, WHAT, uint64_t flags, CONTEXT)
NO(ssize_t, no_reduced, struct fid_ep *ep, BUFFERS, GROUP, fi_addr_t root, WHAT, uint64_t flags, CONTEXT)
NO(ssize_t, no_rooted, struct fid_ep *ep, BUFFERS, GROUP, fi_addr_t root, OF_TYPE, CONTEXT)
NO(ssize_t, no_collective, struct fid_ep *ep, const struct fi_msg_collective *msg, RESULTS, uint64_t flags)
NO(ssize_t, no_barrier_with_flags, struct fid_ep *ep, GROUP, uint64_t flags, CONTEXT)

struct fi_ops_collective no_collectives = {
    .size = sizeof no_collectives,
    .barrier = no_barrier,
    .broadcast = no_broadcast,
    .alltoall = no_all,
    .allreduce = no_all_reduced,
    .allgather = no_all,
    .reduce_scatter = no_all_reduced,
    .reduce = no_reduced,
    .scatter = no_rooted,
    .gather = no_rooted,
    .msg = no_collective,
    .barrier2 = no_barrier_with_flags,
};
