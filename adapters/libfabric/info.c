/* info.c: what this provider offers, and whether that is what a program asks for.
 *
 * One description is compared with the hints field by field, as fi_getinfo(3) says. What a program may choose (threading, the kind of address
 * vector) is returned as chosen. */
#include "fabric.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define PRIMARY (FI_MSG | FI_TAGGED | REMOTE)
#define REMOTE (FI_RMA | FI_ATOMIC)
#define SIDES (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define SECONDARY (FI_SEND | FI_RECV | SIDES | FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM)
/* Of puts, gets and atomics up to IN_ORDER bytes. */
#define REMOTE_ORDERS (FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_WAR | FI_ORDER_WAW)
#define EACH_ORDERS (FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW)
#define ORDERS (FI_ORDER_SAS | REMOTE_ORDERS | EACH_ORDERS)
#define IN_ORDER 256
#define SEND_FLAGS (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE)
#define RECEIVE_FLAGS (FI_COMPLETION | FI_MULTI_RECV)
#define GENERIC_TAG 0xaaaaaaaaaaaaaaaaull /* 64 bits that are all the program's */
#define DEPTH 65536 /* operations of an endpoint, in a direction: no limit of ours, but programs divide by it */

static bool within(uint64_t wanted, uint64_t offered) { return (wanted & ~offered) == 0; }
static bool named(const char *wanted, const char *ours) { return !wanted || strcmp(wanted, ours) == 0; }

/* Data comes beside messages; a put tells its target nothing. */
static size_t data_size(uint64_t caps) { return caps & (FI_MSG | FI_TAGGED) ? sizeof(uint64_t) : 0; }

/* Keys of regions are ours: who wants to reach memory must be able to take them. */
static bool takes_keys(const struct fi_domain_attr *wanted) { return !wanted || wanted->mr_mode & FI_MR_PROV_KEY; }

static bool fits_domain(const struct fi_domain_attr *wanted, uint64_t caps)
{
    if (!wanted) return true;
    if (caps & REMOTE && !takes_keys(wanted)) return false;
    if (wanted->cq_data_size > data_size(caps ? caps : PRIMARY)) return false;
    return named(wanted->name, PROVIDER_NAME) && wanted->control_progress != FI_PROGRESS_AUTO &&
           wanted->data_progress != FI_PROGRESS_AUTO && wanted->mr_key_size <= sizeof(uint64_t) &&
           within(wanted->caps, FI_LOCAL_COMM | FI_REMOTE_COMM) && wanted->auth_key_size == 0;
}

static bool fits_endpoint(const struct fi_ep_attr *wanted)
{
    if (!wanted) return true;
    return (wanted->type == FI_EP_UNSPEC || wanted->type == FI_EP_RDM) && wanted->protocol == FI_PROTO_UNSPEC &&
           wanted->max_msg_size <= LONGEST && wanted->max_order_raw_size <= IN_ORDER && wanted->max_order_war_size <= IN_ORDER &&
           wanted->max_order_waw_size <= IN_ORDER && wanted->tx_ctx_cnt <= 1 && wanted->rx_ctx_cnt <= 1 && wanted->auth_key_size == 0;
}

static bool fits_sends(const struct fi_tx_attr *wanted)
{
    if (!wanted) return true;
    return within(wanted->caps, PRIMARY | SECONDARY) && within(wanted->op_flags, SEND_FLAGS) && within(wanted->msg_order, ORDERS) &&
           wanted->comp_order == FI_ORDER_NONE && wanted->inject_size <= INJECT_SIZE && wanted->size <= DEPTH &&
           wanted->iov_limit <= VECTORS && wanted->rma_iov_limit <= VECTORS;
}

static bool fits_receives(const struct fi_rx_attr *wanted)
{
    if (!wanted) return true;
    return within(wanted->caps, PRIMARY | SECONDARY) && within(wanted->op_flags, RECEIVE_FLAGS) && within(wanted->msg_order, ORDERS) &&
           wanted->comp_order == FI_ORDER_NONE && wanted->size <= DEPTH && wanted->iov_limit <= 1;
}

static bool fits(const struct fi_info *hints)
{
    const struct fi_fabric_attr *fabric = hints->fabric_attr;
    return within(hints->caps, PRIMARY | SECONDARY) && (hints->addr_format == FI_FORMAT_UNSPEC || hints->addr_format == ADDRESS_FORMAT) &&
           (!fabric || (named(fabric->name, PROVIDER_NAME) && named(fabric->prov_name, PROVIDER_NAME))) && fits_domain(hints->domain_attr, hints->caps) &&
           fits_endpoint(hints->ep_attr) && fits_sends(hints->tx_attr) && fits_receives(hints->rx_attr);
}

/* What we are, as far as the program wants it. */
static bool describe(struct fi_info *info, const struct fi_info *hints)
{
    const uint64_t all = !hints || takes_keys(hints->domain_attr) ? PRIMARY | SECONDARY : (PRIMARY & ~REMOTE) | (SECONDARY & ~SIDES);
    /* Nothing that was not asked for: a program that has not asked for FI_DIRECTED_RECV gives sources that mean nothing. */
    info->caps = (hints && hints->caps ? hints->caps : all) | FI_LOCAL_COMM | FI_REMOTE_COMM;
    if (!(info->caps & (FI_SEND | FI_RECV))) info->caps |= FI_SEND | FI_RECV;
    if (info->caps & REMOTE && !(info->caps & SIDES)) info->caps |= SIDES;
    info->addr_format = ADDRESS_FORMAT;
    *info->tx_attr = (struct fi_tx_attr){
        .caps = info->caps & (PRIMARY | FI_SEND | FI_READ | FI_WRITE), .msg_order = ORDERS, .inject_size = INJECT_SIZE, .size = DEPTH,
        .iov_limit = VECTORS, .rma_iov_limit = VECTORS,
    };
    *info->rx_attr = (struct fi_rx_attr){
        .caps = info->caps & (PRIMARY | FI_RECV | FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE),
        .msg_order = ORDERS, .size = DEPTH, .iov_limit = 1,
    };
    struct fi_ep_attr *endpoint = info->ep_attr;
    endpoint->type = FI_EP_RDM;
    endpoint->protocol = FI_PROTO_UNSPEC;
    endpoint->protocol_version = 1;
    endpoint->max_msg_size = LONGEST;
    endpoint->max_order_raw_size = endpoint->max_order_war_size = endpoint->max_order_waw_size = IN_ORDER;
    endpoint->mem_tag_format = GENERIC_TAG;
    endpoint->tx_ctx_cnt = endpoint->rx_ctx_cnt = 1;
    struct fi_domain_attr *domain = info->domain_attr;
    domain->threading = FI_THREAD_SAFE;
    domain->control_progress = domain->data_progress = FI_PROGRESS_MANUAL;
    domain->resource_mgmt = FI_RM_ENABLED;
    domain->av_type = FI_AV_UNSPEC;
    domain->cq_data_size = data_size(info->caps);
    domain->mr_mode = info->caps & REMOTE ? FI_MR_PROV_KEY : 0;
    domain->mr_iov_limit = 1;
    domain->mr_cnt = 65536;
    domain->mr_key_size = sizeof(uint64_t);
    domain->cq_cnt = domain->cntr_cnt = domain->ep_cnt = 256;
    domain->tx_ctx_cnt = domain->rx_ctx_cnt = 256;
    domain->max_ep_tx_ctx = domain->max_ep_rx_ctx = 1;
    domain->caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
    domain->name = strdup(PROVIDER_NAME);
    info->fabric_attr->name = strdup(PROVIDER_NAME);
    info->fabric_attr->prov_version = PROVIDER_VERSION; /* prov_name is libfabric's to fill in */
    return domain->name && info->fabric_attr->name;
}

/* What is the program's choice. */
static bool choose(struct fi_info *info, const struct fi_info *hints)
{
    if (hints->domain_attr) {
        const struct fi_domain_attr *wanted = hints->domain_attr;
        if (wanted->threading != FI_THREAD_UNSPEC) info->domain_attr->threading = wanted->threading;
        if (wanted->resource_mgmt != FI_RM_UNSPEC) info->domain_attr->resource_mgmt = wanted->resource_mgmt;
        info->domain_attr->av_type = wanted->av_type;
        /* Addresses from those who know them: Intel MPI has no others, and memory that begins at no multiple of 8 has atomics so. */
        if (info->caps & REMOTE) info->domain_attr->mr_mode |= wanted->mr_mode & FI_MR_VIRT_ADDR;
    }
    if (hints->tx_attr) info->tx_attr->op_flags = hints->tx_attr->op_flags;
    if (hints->rx_attr) info->rx_attr->op_flags = hints->rx_attr->op_flags;
    info->handle = hints->handle;
    if (hints->dest_addr && hints->dest_addrlen == sizeof(struct address)) {
        info->dest_addr = malloc(sizeof(struct address));
        if (!info->dest_addr) return false;
        memcpy(info->dest_addr, hints->dest_addr, sizeof(struct address));
        info->dest_addrlen = sizeof(struct address);
    }
    return true;
}

/* ---------------------------------------------------------------- addresses */

/* An address of this host: one can be bound to it. */
static bool is_ours(const struct addrinfo *found)
{
    int probe = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool ours = probe >= 0 && bind(probe, found->ai_addr, found->ai_addrlen) == 0;
    if (probe >= 0) close(probe);
    return ours;
}

/* Writes the host's part of an address. False: the name is not one of this host's. */
static bool resolve(const char *node, struct address *address)
{
    struct addrinfo hints = { .ai_socktype = SOCK_DGRAM }, *list = NULL;
    if (getaddrinfo(node, NULL, &hints, &list) != 0) return false;
    const struct addrinfo *found = list;
    while (found && !((found->ai_family == AF_INET || found->ai_family == AF_INET6) && is_ours(found)))
        found = found->ai_next;
    if (found && found->ai_family == AF_INET) {
        address->family = 4;
        memcpy(address->ip, &((const struct sockaddr_in *)found->ai_addr)->sin_addr, sizeof(struct in_addr));
    } else if (found) {
        address->family = 6;
        memcpy(address->ip, &((const struct sockaddr_in6 *)found->ai_addr)->sin6_addr, sizeof(struct in6_addr));
    }
    freeaddrinfo(list);
    return found != NULL;
}

/* The source: of no node yet, as that is named when a domain is opened, nor of a port, which is the system's choice (a service says nothing).
 * Peers cannot use it: fi_getname() is for those. */
static int add_source(struct fi_info *info, const char *node, uint64_t flags)
{
    struct address source = { .magic = ADDRESS_MAGIC };
    if (node && flags & FI_SOURCE && !resolve(node, &source)) return -FI_ENODATA;
    if (!(info->src_addr = malloc(sizeof source))) return -FI_ENOMEM;
    memcpy(info->src_addr, &source, sizeof source);
    info->src_addrlen = sizeof source;
    return 0;
}

int info_offer(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **out)
{
    *out = NULL;
    /* Addresses have no names: those that a program would have resolved are not ours. */
    if ((node && !(flags & FI_SOURCE)) || (hints && !fits(hints))) return -FI_ENODATA;
    struct fi_info *info = libfabric_info();
    if (!info) return -FI_ENOMEM;
    int result = describe(info, hints) && (!hints || choose(info, hints)) ? add_source(info, node, flags) : -FI_ENOMEM;
    if (result != 0) {
        libfabric_free_info(info);
        return result;
    }
    *out = info;
    return 0;
}
