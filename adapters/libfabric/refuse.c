/* refuse.c: what this provider does not offer, and says so. Only what the program has no bit to ask for, or has asked for without. */
#include "fabric.h"

int refuse_bind(struct fid *fid, struct fid *other, uint64_t flags) { return -FI_ENOSYS; }
int refuse_control(struct fid *fid, int command, void *arg) { return -FI_ENOSYS; }
int refuse_ops(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context) { return -FI_ENOSYS; }

#define NO(type, name, ...) \
    static type name(__VA_ARGS__) { return -FI_ENOSYS; }
#define REMOTE fi_addr_t peer, uint64_t addr, uint64_t key
#define WHAT enum fi_datatype datatype, enum fi_op op
#define CONTEXT void *context

NO(ssize_t, no_read, struct fid_ep *ep, void *buf, size_t len, void *desc, REMOTE, CONTEXT)
NO(ssize_t, no_readv, struct fid_ep *ep, const struct iovec *iov, void **desc, size_t n, REMOTE, CONTEXT)
NO(ssize_t, no_rma_message, struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags)
NO(ssize_t, no_write, struct fid_ep *ep, const void *buf, size_t len, void *desc, REMOTE, CONTEXT)
NO(ssize_t, no_inject_write, struct fid_ep *ep, const void *buf, size_t len, REMOTE)
NO(ssize_t, no_write_data, struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, REMOTE, CONTEXT)
NO(ssize_t, no_inject_data, struct fid_ep *ep, const void *buf, size_t len, uint64_t data, REMOTE)

struct fi_ops_rma no_rma = {
    .size = sizeof no_rma,
    .read = no_read,
    .readv = no_readv,
    .readmsg = no_rma_message,
    .write = no_write,
    .writev = no_readv,
    .writemsg = no_rma_message,
    .inject = no_inject_write,
    .writedata = no_write_data,
    .injectdata = no_inject_data,
};

#define LIST const struct fi_ioc *iov, void **desc, size_t n
#define RESULTS struct fi_ioc *results, void **result_desc, size_t result_count
#define COMPARED const struct fi_ioc *compared, void **compare_desc, size_t compare_count
#define ONE const void *buf, size_t n, void *desc

NO(ssize_t, no_atomic, struct fid_ep *ep, ONE, REMOTE, WHAT, CONTEXT)
NO(ssize_t, no_atomic_list, struct fid_ep *ep, LIST, REMOTE, WHAT, CONTEXT)
NO(ssize_t, no_atomic_message, struct fid_ep *ep, const struct fi_msg_atomic *msg, uint64_t flags)
NO(ssize_t, no_atomic_inject, struct fid_ep *ep, const void *buf, size_t n, REMOTE, WHAT)
NO(ssize_t, no_fetch, struct fid_ep *ep, ONE, void *result, void *result_desc, REMOTE, WHAT, CONTEXT)
NO(ssize_t, no_fetch_list, struct fid_ep *ep, LIST, RESULTS, REMOTE, WHAT, CONTEXT)
NO(ssize_t, no_fetch_message, struct fid_ep *ep, const struct fi_msg_atomic *msg, RESULTS, uint64_t flags)
NO(ssize_t, no_compare, struct fid_ep *ep, ONE, const void *compare, void *compare_desc, void *result, void *result_desc, REMOTE, WHAT, CONTEXT)
NO(ssize_t, no_compare_list, struct fid_ep *ep, LIST, COMPARED, RESULTS, REMOTE, WHAT, CONTEXT)
NO(ssize_t, no_compare_message, struct fid_ep *ep, const struct fi_msg_atomic *msg, COMPARED, RESULTS, uint64_t flags)
NO(int, no_valid, struct fid_ep *ep, WHAT, size_t *n)

struct fi_ops_atomic no_atomics = {
    .size = sizeof no_atomics,
    .write = no_atomic,
    .writev = no_atomic_list,
    .writemsg = no_atomic_message,
    .inject = no_atomic_inject,
    .readwrite = no_fetch,
    .readwritev = no_fetch_list,
    .readwritemsg = no_fetch_message,
    .compwrite = no_compare,
    .compwritev = no_compare_list,
    .compwritemsg = no_compare_message,
    .writevalid = no_valid,
    .readwritevalid = no_valid,
    .compwritevalid = no_valid,
};

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

#define KEYED uint64_t access, uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr, void *context
NO(int, no_reg, struct fid *fid, const void *buf, size_t len, KEYED)
NO(int, no_regv, struct fid *fid, const struct iovec *iov, size_t n, KEYED)
NO(int, no_regattr, struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr)

struct fi_ops_mr no_regions = { .size = sizeof no_regions, .reg = no_reg, .regv = no_regv, .regattr = no_regattr };
