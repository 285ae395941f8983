/* memory.cc: where large sequences arrive.
 *
 * What it is:   the receive allocator of HP-CORBA (section 4.5) with the means of today. A stub allocates a new sequence for each call,
 *               which the C library maps and unmaps when it is large, and whose first touch costs a page fault for every 4 KiB: more than
 *               the copy. Here memory that is about to be filled is asked for in huge pages, one fault for 2 MiB.
 * What it isn't: an allocator in front of the program's. Its memory stays its own, from where it has always been. */
#include "memory.h"

#include <sys/mman.h>

namespace motet_omniorb {

static constexpr uintptr_t PAGE = 4096;

std::atomic<bool> Arriving::asks{true};

void Arriving::prepare(uintptr_t begin, size_t size)
{
    if (begin == next_ || !asks.load(std::memory_order_relaxed)) return; /* the rest of a block that comes in parts */
    const uintptr_t first = begin & ~(PAGE - 1), end = (begin + size + PAGE - 1) & ~(PAGE - 1);
    madvise((void *)first, end - first, MADV_HUGEPAGE);
}

} // namespace motet_omniorb
