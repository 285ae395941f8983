/* domain.c: a domain is a node of Motet, opened and closed with it, and the store of requests that its endpoints share.
 *
 * The node's name is 64 random bits, so that an address is short and of fixed length. The node listens for other hosts where listen_addr.c
 * says so. Its address holds the secret that peers must know: MPI's launcher gives addresses to the ranks of a job only. */
#include "fabric.h"

#include <stdio.h>
#include <sys/random.h>

#define REQUESTS_PER_CHUNK 256
/* Limits of unexpected messages from one peer: bytes, and messages that wait for a rendezvous. MPI programs send long before the other side
 * receives, and must not block meanwhile. */
#define MAX_UNEXPECTED_BYTES ((uint64_t)256 << 20)
#define MAX_UNEXPECTED_LONG 262144

struct request_chunk {
    struct request_chunk *next;
    struct request requests[REQUESTS_PER_CHUNK];
};

bool requests_grow(struct domain *domain)
{
    struct request_chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk) return false;
    chunk->next = domain->request_chunks;
    domain->request_chunks = chunk;
    for (size_t i = 0; i < REQUESTS_PER_CHUNK; i++) {
        chunk->requests[i].next = domain->free_requests;
        domain->free_requests = &chunk->requests[i];
    }
    return true;
}

/* ---------------------------------------------------------------- life */

static void close_node(struct domain *domain)
{
    if (domain->port) motet_port_close(domain->port);
    motet_node_close(domain->node);
}

static int domain_close(struct fid *fid)
{
    struct domain *domain = container_of(fid, struct domain, fid.fid);
    if (domain->references) return -FI_EBUSY;
    close_node(domain);
    for (struct request_chunk *chunk; (chunk = domain->request_chunks);) {
        domain->request_chunks = chunk->next;
        free(chunk);
    }
    pthread_mutex_destroy(&domain->lock);
    hash_map_free(&domain->local_peers_seen);
    hash_map_free(&domain->links);
    free(domain->link_list);
    free(domain);
    return 0;
}

static int unsupported_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out, void *context) { return -FI_ENOSYS; }
static int unsupported_poll_set(struct fid_domain *domain, struct fi_poll_attr *attr, struct fid_poll **out) { return -FI_ENOSYS; }
static int unsupported_stx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **out, void *context) { return -FI_ENOSYS; }
static int unsupported_srx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **out, void *context) { return -FI_ENOSYS; }

static int unsupported_collective(struct fid_domain *domain, enum fi_collective_op op, struct fi_collective_attr *attr, uint64_t flags)
{
    return -FI_EOPNOTSUPP;
}

static int endpoint_with_flags(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out, uint64_t flags, void *context)
{
    return flags ? -FI_EINVAL : endpoint_open(domain, info, out, context);
}

static struct fi_ops domain_fid_ops = {
    .size = sizeof domain_fid_ops, .close = domain_close, .bind = unsupported_bind, .control = unsupported_control, .ops_open = unsupported_ops,
};

static struct fi_ops_domain domain_ops = {
    .size = sizeof domain_ops,
    .av_open = av_open,
    .cq_open = cq_open,
    .endpoint = endpoint_open,
    .scalable_ep = unsupported_scalable_ep,
    .cntr_open = cntr_open,
    .poll_open = unsupported_poll_set,
    .stx_ctx = unsupported_stx,
    .srx_ctx = unsupported_srx,
    .query_atomic = atomic_query,
    .query_collective = unsupported_collective,
    .endpoint2 = endpoint_with_flags,
};

/* Copies the TCP address of the node into the address of the domain: "...tcp://SECRET@10.0.0.1:4000,..." or "tcp://SECRET@[::1]:4000". */
static void record_tcp_address(struct domain *domain)
{
    char addresses[512];
    ssize_t length = motet_node_address(domain->node, addresses, sizeof addresses);
    const char *address = length > 0 && (size_t)length < sizeof addresses ? strstr(addresses, "tcp://") : NULL;
    const char *ip_port = address ? strchr(address, '@') : NULL;
    if (ip_port) listen_reached(&domain->address, ip_port + 1);
}

static int open_node(struct domain *domain)
{
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    char name[32], secret[40], listen[LISTEN_TEXT_SIZE];
    uint64_t random[4];
    if (getrandom(random, sizeof random, 0) != sizeof random) return -FI_EIO; /* names and secrets need it */
    domain->address.magic = ADDRESS_MAGIC;
    domain->address.node = random[0];
    domain->address.secret = random[1];
    domain->address.answer = random[2];
    hash_map_salt(random[3]);
    snprintf(name, sizeof name, "fi-%016llx", (unsigned long long)random[0]);
    snprintf(secret, sizeof secret, "%016llx%016llx", (unsigned long long)random[1], (unsigned long long)random[2]);
    options.name = name;
    options.secret = secret;
    enum listen_wish choice = listen_address(listen, sizeof listen);
    if (choice == LISTEN_INVALID) return -FI_EINVAL;
    options.listen = choice == LISTEN_OFF ? NULL : listen;
    options.window = MAX_UNEXPECTED_BYTES;
    options.max_rendezvous = MAX_UNEXPECTED_LONG;
    options.flags = MOTET_NODE_PROGRESS_THREAD; /* a rank that computes must answer peers that connect to it */
    int result = motet_node_open(&options, &domain->node);
    if (result != 0 && choice == LISTEN_IF_POSSIBLE) { /* the user has not asked for it */
        options.listen = NULL;
        result = motet_node_open(&options, &domain->node);
    }
    if (result != 0) return -to_errno(result);
    const uint64_t flags[2] = { FI_RECV | FI_TAGGED, FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA };
    if ((result = motet_port_open(domain->node, flags, &domain->port)) != 0) {
        close_node(domain);
        return -to_errno(result);
    }
    record_tcp_address(domain);
    return 0;
}

int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, void *context)
{
    struct domain *domain = calloc(1, sizeof *domain);
    if (!domain) return -FI_ENOMEM;
    domain->wait_mode = wait_mode_wanted();
    domain->pid = getpid();
    int result = domain->wait_mode == WAIT_INVALID ? -FI_EINVAL : open_node(domain);
    if (result != 0) {
        free(domain);
        return result;
    }
    domain->uses_mutex = !info->domain_attr || info->domain_attr->threading != FI_THREAD_DOMAIN;
    domain->by_address = info->domain_attr && info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    domain->version = fabric->api_version;
    pthread_mutex_init(&domain->lock, NULL);
    domain->fid.fid.fclass = FI_CLASS_DOMAIN;
    domain->fid.fid.context = context;
    domain->fid.fid.ops = &domain_fid_ops;
    domain->fid.ops = &domain_ops;
    domain->fid.mr = &mr_ops;
    *out = &domain->fid;
    return 0;
}
