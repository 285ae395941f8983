/* hash_map.c: a map from numbers to pointers: open addressing, at most half full. Peers may choose the numbers, so they are hashed with a secret
 * salt. */
#include "fabric.h"

static _Atomic uint64_t salt;

void hash_map_salt(uint64_t random)
{
    uint64_t none = 0;
    atomic_compare_exchange_strong(&salt, &none, random | 1);
}

static size_t find_slot(const struct hash_map *map, uint64_t key)
{
    uint64_t hash = (key ^ atomic_load_explicit(&salt, memory_order_relaxed)) * 0x9e3779b97f4a7c15u;
    size_t index = (size_t)(hash ^ hash >> 32) & (map->size - 1);
    while (map->slots[index].value && map->slots[index].key != key)
        index = (index + 1) & (map->size - 1);
    return index;
}

void *hash_map_find(const struct hash_map *map, uint64_t key) { return map->size ? map->slots[find_slot(map, key)].value : NULL; }

static int grow(struct hash_map *map)
{
    struct hash_map larger = { calloc(map->size ? map->size * 2 : 64, sizeof *map->slots), map->used, map->size ? map->size * 2 : 64 };
    if (!larger.slots) return -FI_ENOMEM;
    for (size_t i = 0; i < map->size; i++)
        if (map->slots[i].value) larger.slots[find_slot(&larger, map->slots[i].key)] = map->slots[i];
    free(map->slots);
    *map = larger;
    return 0;
}

int hash_map_put(struct hash_map *map, uint64_t key, void *value)
{
    if (map->used * 2 >= map->size && grow(map) != 0) return -FI_ENOMEM;
    struct hash_slot *slot = &map->slots[find_slot(map, key)];
    if (!slot->value) map->used++;
    *slot = (struct hash_slot){ key, value };
    return 0;
}

void hash_map_free(struct hash_map *map)
{
    free(map->slots);
    *map = (struct hash_map){ 0 };
}
