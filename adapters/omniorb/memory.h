/* memory.h: where large sequences arrive. */
#ifndef MOTET_OMNIORB_MEMORY_H
#define MOTET_OMNIORB_MEMORY_H

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace motet_omniorb {

/* What a connection receives large blocks into; its receiver's alone. */
class Arriving {
public:
    /* `size` bytes are to come to `data`, all of them, in as many calls as it takes. */
    void announce(const void *data, size_t size)
    {
        if (__builtin_expect(size >= LARGE, 0)) prepare((uintptr_t)data, size);
    }
    /* The setting, for all. */
    static std::atomic<bool> asks;
    /* So many of them have come. */
    void came(const void *data, size_t size) { next_ = (uintptr_t)data + size; }

private:
    /* Smaller blocks come from the heap, which keeps them. */
    static constexpr size_t LARGE = 4 << 20;
    void prepare(uintptr_t begin, size_t size);

    uintptr_t next_ = 0; /* behind the last byte that came */
};

} // namespace motet_omniorb

#endif
