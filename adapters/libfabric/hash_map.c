/* hash_map.c: from numbers to pointers: open addressing, at most half full. Numbers may be a peer's choice, so they are mixed with one that no
 * peer knows. */
#include "fabric.h"

static _Atomic uint64_t salt;

void hash_map_salt(uint64_t random)
{
    uint64_t none = 0;
    atomic_compare_exchange_strong(&salt, &none, random | 1);
}

static size_t place(const struct hash_map *map, uint64_t key)
{
    uint64_t mixed = (key ^ atomic_load_explicit(&salt, memory_order_relaxed)) * 0x9e3779b97f4a7c15u;
    size_t at = (size_t)(mixed ^ mixed >> 32) & (map->size - 1);
    while (map->slots[at].value && map->slots[at].key != key)
        at = (at + 1) & (map->size - 1);
    return at;
}

void *hash_map_find(const struct hash_map *map, uint64_t key) { return map->size ? map->slots[place(map, key)].value : NULL; }

static int grow(struct hash_map *map)
{
    struct hash_map larger = { calloc(map->size ? map->size * 2 : 64, sizeof *map->slots), map->used, map->size ? map->size * 2 : 64 };
    if (!larger.slots) return -FI_ENOMEM;
    for (size_t i = 0; i < map->size; i++)
        if (map->slots[i].value) larger.slots[place(&larger, map->slots[i].key)] = map->slots[i];
    free(map->slots);
    *map = larger;
    return 0;
}

int hash_map_put(struct hash_map *map, uint64_t key, void *value)
{
    if (map->used * 2 >= map->size && grow(map) != 0) return -FI_ENOMEM;
    struct slot *slot = &map->slots[place(map, key)];
    if (!slot->value) map->used++;
    *slot = (struct slot){ key, value };
    return 0;
}

void hash_map_free(struct hash_map *map)
{
    free(map->slots);
    *map = (struct hash_map){ 0 };
}
