/* receive_buffer.h: memory into which large sequences are received. */
#ifndef MOTET_OMNIORB_RECEIVE_BUFFER_H
#define MOTET_OMNIORB_RECEIVE_BUFFER_H

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace motet_omniorb {

/* The state of a connection's receiver about large blocks. Used by the receiving thread only. */
class ReceiveBuffer {
public:
    /* `size` bytes will be received into `data`, all of them, in one or more calls. */
    void prepare(const void *data, size_t size)
    {
        if (__builtin_expect(size >= LARGE_BYTES, 0)) advise_huge_pages((uintptr_t)data, size);
    }
    /* The setting MOTET_OMNIORB_HUGE, for all connections. */
    static std::atomic<bool> huge_pages;
    /* `size` of them have been received. */
    void received(const void *data, size_t size) { next_ = (uintptr_t)data + size; }

private:
    /* Smaller blocks come from the heap, which reuses them. */
    static constexpr size_t LARGE_BYTES = 4 << 20;
    void advise_huge_pages(uintptr_t begin, size_t size);

    uintptr_t next_ = 0; /* end of the bytes received last */
};

} // namespace motet_omniorb

#endif
