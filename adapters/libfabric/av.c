/* av.c: the address vector. Both kinds are tables: an fi_addr_t is an index. Removing an address leaves its entry empty.
 *
 * The vector holds no connections: an endpoint connects with its first message to, or receive from, an address. */
#include "fabric.h"

#include <stdio.h>

uint64_t address_key(const struct address *address) { return address->node ^ (uint64_t)address->endpoint << 48; }

bool address_valid(const struct address *address)
{
    return address->magic == ADDRESS_MAGIC && (address->family == 0 || address->family == 4 || address->family == 6);
}

fi_addr_t av_find(const struct av *av, const struct address *address)
{
    uintptr_t index = (uintptr_t)hash_map_find(&av->index_of, address_key(address));
    if (index == 0 || memcmp(&av->entries[index - 1], address, sizeof *address) != 0) return FI_ADDR_NOTAVAIL;
    return (fi_addr_t)(index - 1);
}

static int add_entry(struct av *av, const struct address *address, fi_addr_t *out)
{
    if (!address_valid(address)) return -FI_EINVAL;
    if (av->count == av->capacity) {
        size_t capacity = av->capacity ? av->capacity * 2 : 64;
        struct address *larger = realloc(av->entries, capacity * sizeof *larger);
        if (!larger) return -FI_ENOMEM;
        av->entries = larger;
        av->capacity = capacity;
    }
    if (av_find(av, address) == FI_ADDR_NOTAVAIL &&
        hash_map_put(&av->index_of, address_key(address), (void *)(uintptr_t)(av->count + 1)) != 0)
        return -FI_ENOMEM;
    av->entries[av->count] = *address;
    *out = av->count++;
    pause_count_peers(av->domain, address, 1);
    return 0;
}

static int av_insert(struct fid_av *fid, const void *addresses, size_t count, fi_addr_t *indexes, uint64_t flags, void *context)
{
    struct av *av = container_of(fid, struct av, fid);
    int *errors = flags & FI_SYNC_ERR ? context : NULL, inserted = 0;
    if (flags & ~(uint64_t)(FI_MORE | FI_SYNC_ERR)) return -FI_EINVAL;
    domain_lock(av->domain);
    for (size_t i = 0; i < count; i++) {
        struct address address;
        fi_addr_t index = FI_ADDR_NOTAVAIL;
        memcpy(&address, (const char *)addresses + i * sizeof address, sizeof address);
        int result = add_entry(av, &address, &index);
        if (result == 0) inserted++;
        if (indexes) indexes[i] = index;
        if (errors) errors[i] = -result;
    }
    domain_unlock(av->domain);
    return inserted;
}

static int unsupported_insertsvc(struct fid_av *av, const char *node, const char *service, fi_addr_t *index, uint64_t flags, void *context)
{
    return -FI_ENOSYS;
}

static int unsupported_insertsym(struct fid_av *av, const char *node, size_t nodes, const char *service, size_t services, fi_addr_t *indexes,
                                 uint64_t flags, void *context)
{
    return -FI_ENOSYS;
}

static int av_remove(struct fid_av *fid, fi_addr_t *indexes, size_t count, uint64_t flags)
{
    struct av *av = container_of(fid, struct av, fid);
    int result = 0;
    domain_lock(av->domain);
    for (size_t i = 0; i < count; i++) {
        if (indexes[i] >= av->count || av->entries[indexes[i]].magic == 0) {
            result = -FI_EINVAL;
            continue;
        }
        pause_count_peers(av->domain, &av->entries[indexes[i]], -1);
        av->entries[indexes[i]].magic = 0;
        for (struct endpoint *endpoint = av->domain->endpoints; endpoint; endpoint = endpoint->next)
            if (endpoint->av == av && indexes[i] < endpoint->peers_by_addr_count) endpoint->peers_by_addr[indexes[i]] = NULL;
    }
    domain_unlock(av->domain);
    return result;
}

static int av_lookup(struct fid_av *fid, fi_addr_t index, void *into, size_t *length)
{
    struct av *av = container_of(fid, struct av, fid);
    int result = -FI_EINVAL;
    domain_lock(av->domain);
    if (index < av->count && av->entries[index].magic != 0) {
        size_t capacity = *length;
        memcpy(into, &av->entries[index], capacity < sizeof(struct address) ? capacity : sizeof(struct address));
        *length = sizeof(struct address);
        result = 0;
    }
    domain_unlock(av->domain);
    return result;
}

static const char *av_straddr(struct fid_av *fid, const void *bytes, char *text, size_t *size)
{
    struct address address;
    memcpy(&address, bytes, sizeof address);
    int length = snprintf(text, *size, "motet://fi-%016llx/%u", (unsigned long long)address.node, address.endpoint);
    *size = (size_t)length + 1;
    return text;
}

static int unsupported_av_set(struct fid_av *av, struct fi_av_set_attr *attr, struct fid_av_set **out, void *context) { return -FI_ENOSYS; }

static int av_close(struct fid *fid)
{
    struct av *av = container_of(fid, struct av, fid.fid);
    if (av->references) return -FI_EBUSY;
    domain_lock(av->domain);
    av->domain->references--;
    domain_unlock(av->domain);
    hash_map_free(&av->index_of);
    free(av->entries);
    free(av);
    return 0;
}

static struct fi_ops av_fid_ops = {
    .size = sizeof av_fid_ops, .close = av_close, .bind = unsupported_bind, .control = unsupported_control, .ops_open = unsupported_ops,
};

static struct fi_ops_av av_ops = {
    .size = sizeof av_ops,
    .insert = av_insert,
    .insertsvc = unsupported_insertsvc,
    .insertsym = unsupported_insertsym,
    .remove = av_remove,
    .lookup = av_lookup,
    .straddr = av_straddr,
    .av_set = unsupported_av_set,
};

int av_open(struct fid_domain *fid, struct fi_av_attr *attr, struct fid_av **out, void *context)
{
    struct domain *domain = container_of(fid, struct domain, fid);
    if (attr && (attr->name || attr->flags || attr->rx_ctx_bits)) return -FI_ENOSYS;
    struct av *av = calloc(1, sizeof *av);
    if (!av) return -FI_ENOMEM;
    av->domain = domain;
    av->type = attr && attr->type != FI_AV_UNSPEC ? attr->type : FI_AV_TABLE;
    if (attr) attr->type = av->type;
    av->fid.fid.fclass = FI_CLASS_AV;
    av->fid.fid.context = context;
    av->fid.fid.ops = &av_fid_ops;
    av->fid.ops = &av_ops;
    domain_lock(domain);
    domain->references++;
    domain_unlock(domain);
    *out = &av->fid;
    return 0;
}
