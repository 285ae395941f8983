/* info.c: what this provider offers, and whether that is what a program asks for.
 *
 * One description is compared with the hints field by field, as fi_getinfo(3) says. What a program may choose (threading, the kind of address
 * vector) is returned as chosen. */
#include "fabric.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define PRIMARY_CAPS (FI_MSG | FI_TAGGED | RMA_CAPS)
#define RMA_CAPS (FI_RMA | FI_ATOMIC)
#define RMA_ACCESS (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define SECONDARY_CAPS (FI_SEND | FI_RECV | RMA_ACCESS | FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM)
/* Of puts, gets and atomics of up to MAX_ORDERED_SIZE bytes. */
#define RMA_ORDERS (FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_WAR | FI_ORDER_WAW)
#define SEPARATE_RMA_ORDERS \
    (FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | \
     FI_ORDER_ATOMIC_WAW)
#define MSG_ORDERS (FI_ORDER_SAS | RMA_ORDERS | SEPARATE_RMA_ORDERS)
#define MAX_ORDERED_SIZE 256
#define TX_OP_FLAGS (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE)
#define RX_OP_FLAGS (FI_COMPLETION | FI_MULTI_RECV)
#define GENERIC_TAG 0xaaaaaaaaaaaaaaaaull /* all 64 bits are the program's */
#define QUEUE_SIZE 65536 /* reported operations of an endpoint in one direction. The provider has no limit, but programs divide by this number */

static bool is_subset(uint64_t wanted, uint64_t offered) { return (wanted & ~offered) == 0; }
static bool name_matches(const char *wanted, const char *ours) { return !wanted || strcmp(wanted, ours) == 0; }

/* Only messages carry data; a put reports nothing to its target. */
static size_t data_size(uint64_t caps) { return caps & (FI_MSG | FI_TAGGED) ? sizeof(uint64_t) : 0; }

/* The provider chooses the keys of regions, so a program that uses remote memory must accept FI_MR_PROV_KEY. */
static bool accepts_provider_keys(const struct fi_domain_attr *wanted) { return !wanted || wanted->mr_mode & FI_MR_PROV_KEY; }

static bool domain_matches(const struct fi_domain_attr *wanted, uint64_t caps)
{
    if (!wanted) return true;
    if (caps & RMA_CAPS && !accepts_provider_keys(wanted)) return false;
    if (wanted->cq_data_size > data_size(caps ? caps : PRIMARY_CAPS)) return false;
    return name_matches(wanted->name, PROVIDER_NAME) && wanted->control_progress != FI_PROGRESS_AUTO &&
           wanted->data_progress != FI_PROGRESS_AUTO && wanted->mr_key_size <= sizeof(uint64_t) &&
           is_subset(wanted->caps, FI_LOCAL_COMM | FI_REMOTE_COMM) && wanted->auth_key_size == 0;
}

static bool ep_matches(const struct fi_ep_attr *wanted)
{
    if (!wanted) return true;
    return (wanted->type == FI_EP_UNSPEC || wanted->type == FI_EP_RDM) && wanted->protocol == FI_PROTO_UNSPEC &&
           wanted->max_msg_size <= MAX_MESSAGE_SIZE && wanted->max_order_raw_size <= MAX_ORDERED_SIZE && wanted->max_order_war_size <= MAX_ORDERED_SIZE &&
           wanted->max_order_waw_size <= MAX_ORDERED_SIZE && wanted->tx_ctx_cnt <= 1 && wanted->rx_ctx_cnt <= 1 && wanted->auth_key_size == 0;
}

static bool tx_matches(const struct fi_tx_attr *wanted)
{
    if (!wanted) return true;
    return is_subset(wanted->caps, PRIMARY_CAPS | SECONDARY_CAPS) && is_subset(wanted->op_flags, TX_OP_FLAGS) && is_subset(wanted->msg_order, MSG_ORDERS) &&
           wanted->comp_order == FI_ORDER_NONE && wanted->inject_size <= INJECT_SIZE && wanted->size <= QUEUE_SIZE &&
           wanted->iov_limit <= IOV_LIMIT && wanted->rma_iov_limit <= IOV_LIMIT;
}

static bool rx_matches(const struct fi_rx_attr *wanted)
{
    if (!wanted) return true;
    return is_subset(wanted->caps, PRIMARY_CAPS | SECONDARY_CAPS) && is_subset(wanted->op_flags, RX_OP_FLAGS) && is_subset(wanted->msg_order, MSG_ORDERS) &&
           wanted->comp_order == FI_ORDER_NONE && wanted->size <= QUEUE_SIZE && wanted->iov_limit <= 1;
}

static bool hints_match(const struct fi_info *hints)
{
    const struct fi_fabric_attr *fabric = hints->fabric_attr;
    return is_subset(hints->caps, PRIMARY_CAPS | SECONDARY_CAPS) && (hints->addr_format == FI_FORMAT_UNSPEC || hints->addr_format == ADDRESS_FORMAT) &&
           (!fabric || (name_matches(fabric->name, PROVIDER_NAME) && name_matches(fabric->prov_name, PROVIDER_NAME))) &&
           domain_matches(hints->domain_attr, hints->caps) &&
           ep_matches(hints->ep_attr) && tx_matches(hints->tx_attr) && rx_matches(hints->rx_attr);
}

/* Describes the provider, restricted to the capabilities that the program wants. */
static bool describe(struct fi_info *info, const struct fi_info *hints)
{
    const uint64_t all = !hints || accepts_provider_keys(hints->domain_attr) ? PRIMARY_CAPS | SECONDARY_CAPS
                                                                             : (PRIMARY_CAPS & ~RMA_CAPS) | (SECONDARY_CAPS & ~RMA_ACCESS);
    /* No capability beyond the hints: without FI_DIRECTED_RECV the source that a receive passes has no meaning and must be ignored. */
    info->caps = (hints && hints->caps ? hints->caps : all) | FI_LOCAL_COMM | FI_REMOTE_COMM;
    if (!(info->caps & (FI_SEND | FI_RECV))) info->caps |= FI_SEND | FI_RECV;
    if (info->caps & RMA_CAPS && !(info->caps & RMA_ACCESS)) info->caps |= RMA_ACCESS;
    info->addr_format = ADDRESS_FORMAT;
    *info->tx_attr = (struct fi_tx_attr){
        .caps = info->caps & (PRIMARY_CAPS | FI_SEND | FI_READ | FI_WRITE), .msg_order = MSG_ORDERS, .inject_size = INJECT_SIZE, .size = QUEUE_SIZE,
        .iov_limit = IOV_LIMIT, .rma_iov_limit = IOV_LIMIT,
    };
    *info->rx_attr = (struct fi_rx_attr){
        .caps = info->caps & (PRIMARY_CAPS | FI_RECV | FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE),
        .msg_order = MSG_ORDERS, .size = QUEUE_SIZE, .iov_limit = 1,
    };
    struct fi_ep_attr *endpoint = info->ep_attr;
    endpoint->type = FI_EP_RDM;
    endpoint->protocol = FI_PROTO_UNSPEC;
    endpoint->protocol_version = 1;
    endpoint->max_msg_size = MAX_MESSAGE_SIZE;
    endpoint->max_order_raw_size = endpoint->max_order_war_size = endpoint->max_order_waw_size = MAX_ORDERED_SIZE;
    endpoint->mem_tag_format = GENERIC_TAG;
    endpoint->tx_ctx_cnt = endpoint->rx_ctx_cnt = 1;
    struct fi_domain_attr *domain = info->domain_attr;
    domain->threading = FI_THREAD_SAFE;
    domain->control_progress = domain->data_progress = FI_PROGRESS_MANUAL;
    domain->resource_mgmt = FI_RM_ENABLED;
    domain->av_type = FI_AV_UNSPEC;
    domain->cq_data_size = data_size(info->caps);
    domain->mr_mode = info->caps & RMA_CAPS ? FI_MR_PROV_KEY : 0;
    domain->mr_iov_limit = 1;
    domain->mr_cnt = 65536;
    domain->mr_key_size = sizeof(uint64_t);
    domain->cq_cnt = domain->cntr_cnt = domain->ep_cnt = 256;
    domain->tx_ctx_cnt = domain->rx_ctx_cnt = 256;
    domain->max_ep_tx_ctx = domain->max_ep_rx_ctx = 1;
    domain->caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
    domain->name = strdup(PROVIDER_NAME);
    info->fabric_attr->name = strdup(PROVIDER_NAME);
    info->fabric_attr->prov_version = PROVIDER_VERSION; /* libfabric fills in prov_name */
    return domain->name && info->fabric_attr->name;
}

/* Takes over what a program may choose. */
static bool apply_choices(struct fi_info *info, const struct fi_info *hints)
{
    if (hints->domain_attr) {
        const struct fi_domain_attr *wanted = hints->domain_attr;
        if (wanted->threading != FI_THREAD_UNSPEC) info->domain_attr->threading = wanted->threading;
        if (wanted->resource_mgmt != FI_RM_UNSPEC) info->domain_attr->resource_mgmt = wanted->resource_mgmt;
        info->domain_attr->av_type = wanted->av_type;
        /* Regions by virtual address: Intel MPI has no other mode, and it allows atomics in memory that does not begin at a multiple of 8. */
        if (info->caps & RMA_CAPS) info->domain_attr->mr_mode |= wanted->mr_mode & FI_MR_VIRT_ADDR;
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

/* Whether an address belongs to this host: a socket can be bound to it. */
static bool is_local_address(const struct addrinfo *found)
{
    int probe = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool ours = probe >= 0 && bind(probe, found->ai_addr, found->ai_addrlen) == 0;
    if (probe >= 0) close(probe);
    return ours;
}

/* Resolves a name of this host and writes the IP part of an address. False: the name does not belong to this host. */
static bool resolve_local(const char *node, struct address *address)
{
    struct addrinfo hints = { .ai_socktype = SOCK_DGRAM }, *list = NULL;
    if (getaddrinfo(node, NULL, &hints, &list) != 0) return false;
    const struct addrinfo *found = list;
    while (found && !((found->ai_family == AF_INET || found->ai_family == AF_INET6) && is_local_address(found)))
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

/* Adds a source address. It names no node, because the node is created with the domain, and no port, which the system chooses (the service is
 * ignored). Peers cannot use it; they need the result of fi_getname(). */
static int add_src_addr(struct fi_info *info, const char *node, uint64_t flags)
{
    struct address source = { .magic = ADDRESS_MAGIC };
    if (node && flags & FI_SOURCE && !resolve_local(node, &source)) return -FI_ENODATA;
    if (!(info->src_addr = malloc(sizeof source))) return -FI_ENOMEM;
    memcpy(info->src_addr, &source, sizeof source);
    info->src_addrlen = sizeof source;
    return 0;
}

int provider_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **out)
{
    *out = NULL;
    /* Addresses have no names, so the name of a peer cannot be resolved. */
    if ((node && !(flags & FI_SOURCE)) || (hints && !hints_match(hints))) return -FI_ENODATA;
    struct fi_info *info = libfabric_info();
    if (!info) return -FI_ENOMEM;
    int result = describe(info, hints) && (!hints || apply_choices(info, hints)) ? add_src_addr(info, node, flags) : -FI_ENOMEM;
    if (result != 0) {
        libfabric_free_info(info);
        return result;
    }
    *out = info;
    return 0;
}
