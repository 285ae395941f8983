/* domain.c: a domain is a node of Motet, opened and closed with it, and the store of requests that its endpoints share.
 *
 * The node's name is 64 random bits, so that an address is short and of fixed length. The node listens for other hosts where listen_addr.c
 * says so. Its address holds the secret that peers must know: MPI's launcher gives addresses to the ranks of a job only. */
#include "fabric.h"

#include <stdio.h>
#include <sys/random.h>

#define REQUESTS 256 /* of a chunk */
/* What waits for a receive, at most, of one peer: MPI programs send before the other side looks, and must not be held up for it. */
#define WINDOW ((uint64_t)256 << 20)
#define LONGS 262144

struct chunk {
    struct chunk *next;
    struct request requests[REQUESTS];
};

bool requests_grow(struct domain *domain)
{
    struct chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk) return false;
    chunk->next = domain->chunks;
    domain->chunks = chunk;
    for (size_t i = 0; i < REQUESTS; i++) {
        chunk->requests[i].next = domain->spare;
        domain->spare = &chunk->requests[i];
    }
    return true;
}

/* ---------------------------------------------------------------- life */

static void leave_node(struct domain *domain)
{
    if (domain->port) motet_port_close(domain->port);
    motet_node_close(domain->node);
}

static int domain_close(struct fid *fid)
{
    struct domain *domain = container(fid, struct domain, fid.fid);
    if (domain->users) return -FI_EBUSY;
    leave_node(domain);
    for (struct chunk *chunk; (chunk = domain->chunks);) {
        domain->chunks = chunk->next;
        free(chunk);
    }
    pthread_mutex_destroy(&domain->lock);
    hash_map_free(&domain->local_peers_seen);
    hash_map_free(&domain->links);
    free(domain->seen);
    free(domain);
    return 0;
}

static int no_scalable(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out, void *context) { return -FI_ENOSYS; }
static int no_poll_set(struct fid_domain *domain, struct fi_poll_attr *attr, struct fid_poll **out) { return -FI_ENOSYS; }
static int no_shared_sends(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **out, void *context) { return -FI_ENOSYS; }
static int no_shared_receives(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **out, void *context) { return -FI_ENOSYS; }

static int no_collective_types(struct fid_domain *domain, enum fi_collective_op op, struct fi_collective_attr *attr, uint64_t flags)
{
    return -FI_EOPNOTSUPP;
}

static int endpoint_with_flags(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out, uint64_t flags, void *context)
{
    return flags ? -FI_EINVAL : endpoint_open(domain, info, out, context);
}

static struct fi_ops object = {
    .size = sizeof object, .close = domain_close, .bind = unsupported_bind, .control = unsupported_control, .ops_open = unsupported_ops,
};

static struct fi_ops_domain operations = {
    .size = sizeof operations,
    .av_open = av_open,
    .cq_open = cq_open,
    .endpoint = endpoint_open,
    .scalable_ep = no_scalable,
    .cntr_open = cntr_open,
    .poll_open = no_poll_set,
    .stx_ctx = no_shared_sends,
    .srx_ctx = no_shared_receives,
    .query_atomic = atomic_query,
    .query_collective = no_collective_types,
    .endpoint2 = endpoint_with_flags,
};

/* Where other hosts find the node: "...tcp://SECRET@10.0.0.1:4000,..." or "tcp://SECRET@[::1]:4000". */
static void find_way(struct domain *domain)
{
    char ways[512];
    ssize_t length = motet_node_address(domain->node, ways, sizeof ways);
    const char *way = length > 0 && (size_t)length < sizeof ways ? strstr(ways, "tcp://") : NULL;
    const char *place = way ? strchr(way, '@') : NULL;
    if (place) listen_reached(&domain->address, place + 1);
}

static int join(struct domain *domain)
{
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    char name[32], secret[40], listen[LISTEN_TEXT];
    uint64_t random[4];
    if (getrandom(random, sizeof random, 0) != sizeof random) return -FI_EIO; /* and no domain without it */
    domain->address.magic = ADDRESS_MAGIC;
    domain->address.node = random[0];
    domain->address.secret = random[1];
    domain->address.answer = random[2];
    hash_map_salt(random[3]);
    snprintf(name, sizeof name, "fi-%016llx", (unsigned long long)random[0]);
    snprintf(secret, sizeof secret, "%016llx%016llx", (unsigned long long)random[1], (unsigned long long)random[2]);
    options.name = name;
    options.secret = secret;
    enum listen_wish where = listen_address(listen, sizeof listen);
    if (where == LISTEN_INVALID) return -FI_EINVAL;
    options.listen = where == LISTEN_OFF ? NULL : listen;
    options.window = WINDOW;
    options.max_rendezvous = LONGS;
    options.flags = MOTET_NODE_PROGRESS_THREAD; /* a rank that computes must answer those who meet it */
    int result = motet_node_open(&options, &domain->node);
    if (result != 0 && where == LISTEN_IF_POSSIBLE) { /* the user has not asked for it */
        options.listen = NULL;
        result = motet_node_open(&options, &domain->node);
    }
    if (result != 0) return -to_errno(result);
    const uint64_t flags[2] = { FI_RECV | FI_TAGGED, FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA };
    if ((result = motet_port_open(domain->node, flags, &domain->port)) != 0) {
        leave_node(domain);
        return -to_errno(result);
    }
    find_way(domain);
    return 0;
}

int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, void *context)
{
    struct domain *domain = calloc(1, sizeof *domain);
    if (!domain) return -FI_ENOMEM;
    domain->wait = wait_mode_wanted();
    domain->process = getpid();
    int result = domain->wait == WAIT_INVALID ? -FI_EINVAL : join(domain);
    if (result != 0) {
        free(domain);
        return result;
    }
    domain->locked = !info->domain_attr || info->domain_attr->threading != FI_THREAD_DOMAIN;
    domain->by_address = info->domain_attr && info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    domain->version = fabric->api_version;
    pthread_mutex_init(&domain->lock, NULL);
    domain->fid.fid.fclass = FI_CLASS_DOMAIN;
    domain->fid.fid.context = context;
    domain->fid.fid.ops = &object;
    domain->fid.ops = &operations;
    domain->fid.mr = &regions;
    *out = &domain->fid;
    return 0;
}
