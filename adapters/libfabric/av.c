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

fi_addr_t av_find(const struct av *vector, const struct address *address)
{
    uintptr_t place = (uintptr_t)hash_map_find(&vector->places, address_key(address));
    if (place == 0 || memcmp(&vector->entries[place - 1], address, sizeof *address) != 0) return FI_ADDR_NOTAVAIL;
    return (fi_addr_t)(place - 1);
}

static int put(struct av *vector, const struct address *address, fi_addr_t *out)
{
    if (!address_valid(address)) return -FI_EINVAL;
    if (vector->count == vector->room) {
        size_t room = vector->room ? vector->room * 2 : 64;
        struct address *more = realloc(vector->entries, room * sizeof *more);
        if (!more) return -FI_ENOMEM;
        vector->entries = more;
        vector->room = room;
    }
    if (av_find(vector, address) == FI_ADDR_NOTAVAIL &&
        hash_map_put(&vector->places, address_key(address), (void *)(uintptr_t)(vector->count + 1)) != 0)
        return -FI_ENOMEM;
    vector->entries[vector->count] = *address;
    *out = vector->count++;
    pause_count_peers(vector->domain, address, 1);
    return 0;
}

static int insert(struct fid_av *fid, const void *addresses, size_t count, fi_addr_t *places, uint64_t flags, void *context)
{
    struct av *vector = container(fid, struct av, fid);
    int *errors = flags & FI_SYNC_ERR ? context : NULL, inserted = 0;
    if (flags & ~(uint64_t)(FI_MORE | FI_SYNC_ERR)) return -FI_EINVAL;
    enter(vector->domain);
    for (size_t i = 0; i < count; i++) {
        struct address address;
        fi_addr_t place = FI_ADDR_NOTAVAIL;
        memcpy(&address, (const char *)addresses + i * sizeof address, sizeof address);
        int result = put(vector, &address, &place);
        if (result == 0) inserted++;
        if (places) places[i] = place;
        if (errors) errors[i] = -result;
    }
    leave(vector->domain);
    return inserted;
}

static int no_service(struct fid_av *av, const char *node, const char *service, fi_addr_t *place, uint64_t flags, void *context)
{
    return -FI_ENOSYS;
}

static int no_symmetric(struct fid_av *av, const char *node, size_t nodes, const char *service, size_t services, fi_addr_t *places,
                        uint64_t flags, void *context)
{
    return -FI_ENOSYS;
}

static int take_out(struct fid_av *fid, fi_addr_t *places, size_t count, uint64_t flags)
{
    struct av *vector = container(fid, struct av, fid);
    int result = 0;
    enter(vector->domain);
    for (size_t i = 0; i < count; i++) {
        if (places[i] >= vector->count || vector->entries[places[i]].magic == 0) {
            result = -FI_EINVAL;
            continue;
        }
        pause_count_peers(vector->domain, &vector->entries[places[i]], -1);
        vector->entries[places[i]].magic = 0;
        for (struct endpoint *endpoint = vector->domain->endpoints; endpoint; endpoint = endpoint->next)
            if (endpoint->vector == vector && places[i] < endpoint->known_count) endpoint->known[places[i]] = NULL;
    }
    leave(vector->domain);
    return result;
}

static int look_up(struct fid_av *fid, fi_addr_t place, void *into, size_t *length)
{
    struct av *vector = container(fid, struct av, fid);
    int result = -FI_EINVAL;
    enter(vector->domain);
    if (place < vector->count && vector->entries[place].magic != 0) {
        size_t room = *length;
        memcpy(into, &vector->entries[place], room < sizeof(struct address) ? room : sizeof(struct address));
        *length = sizeof(struct address);
        result = 0;
    }
    leave(vector->domain);
    return result;
}

static const char *as_text(struct fid_av *fid, const void *bytes, char *text, size_t *size)
{
    struct address address;
    memcpy(&address, bytes, sizeof address);
    int length = snprintf(text, *size, "motet://fi-%016llx/%u", (unsigned long long)address.node, address.endpoint);
    *size = (size_t)length + 1;
    return text;
}

static int no_set(struct fid_av *av, struct fi_av_set_attr *attr, struct fid_av_set **out, void *context) { return -FI_ENOSYS; }

static int vector_close(struct fid *fid)
{
    struct av *vector = container(fid, struct av, fid.fid);
    if (vector->users) return -FI_EBUSY;
    enter(vector->domain);
    vector->domain->users--;
    leave(vector->domain);
    hash_map_free(&vector->places);
    free(vector->entries);
    free(vector);
    return 0;
}

static struct fi_ops object = {
    .size = sizeof object, .close = vector_close, .bind = unsupported_bind, .control = unsupported_control, .ops_open = unsupported_ops,
};

static struct fi_ops_av operations = {
    .size = sizeof operations,
    .insert = insert,
    .insertsvc = no_service,
    .insertsym = no_symmetric,
    .remove = take_out,
    .lookup = look_up,
    .straddr = as_text,
    .av_set = no_set,
};

int av_open(struct fid_domain *fid, struct fi_av_attr *attr, struct fid_av **out, void *context)
{
    struct domain *domain = container(fid, struct domain, fid);
    if (attr && (attr->name || attr->flags || attr->rx_ctx_bits)) return -FI_ENOSYS;
    struct av *vector = calloc(1, sizeof *vector);
    if (!vector) return -FI_ENOMEM;
    vector->domain = domain;
    vector->type = attr && attr->type != FI_AV_UNSPEC ? attr->type : FI_AV_TABLE;
    if (attr) attr->type = vector->type;
    vector->fid.fid.fclass = FI_CLASS_AV;
    vector->fid.fid.context = context;
    vector->fid.fid.ops = &object;
    vector->fid.ops = &operations;
    enter(domain);
    domain->users++;
    leave(domain);
    *out = &vector->fid;
    return 0;
}
